//! A domain model's side of the outbox: aggregates raise events in memory, a unit of work writes
//! them.
//!
//! ```text
//! aggregate.raise(event) ──► Events, in memory ──► UnitOfWork::commit ──► outbox, same transaction
//!                            id and time are fixed   Context adds the rest
//! ```
//!
//! ```no_run
//! # #[cfg(feature = "derive")] mod shop {
//! use posthaste::{Dialect, Event, Outbox, Result, domain::{Aggregate, Context, Events, UnitOfWork}};
//! use serde::Serialize;
//! use sqlx::Pool;
//!
//! #[derive(Serialize, Event)]
//! #[event(aggregate = "Order")]
//! struct OrderPaid { cents: u64 }
//!
//! struct Order { id: u64, events: Events }
//!
//! impl Aggregate for Order {
//!     const TYPE: &'static str = "Order";
//!     fn aggregate_id(&self) -> String { self.id.to_string() }
//!     fn events(&self) -> &Events { &self.events }
//! }
//!
//! impl Order {
//!     fn pay(&mut self, cents: u64) { self.raise(OrderPaid { cents }); }
//! }
//!
//! async fn pay<DB: Dialect>(outbox: &Outbox<DB>, pool: &Pool<DB>, order: &mut Order) -> Result<()> {
//!     let mut work = UnitOfWork::begin(outbox, pool).await?
//!         .with_context(Context::new().tenant("acme").operator("ada"));
//!     order.pay(1999);
//!     // … save the order on work.connection() …
//!     work.track(order);
//!     work.commit().await?;
//!     Ok(())
//! }
//! # }
//! ```

mod aggregate;

mod context;

mod work;

pub use self::{
    aggregate::{Aggregate, Events, Raised},
    context::{Context, Json, Payload, Serializer},
    work::UnitOfWork,
};
