//! Posthaste is a transactional outbox: a service writes events in its own database transaction,
//! and a relay delivers them to the world, at least once and in order per aggregate.
//!
//! This crate is the front door that applications depend on. It costs only what its features name:
//! a database (`postgres`, `mysql`, `sqlite`), `derive` for events that are types of the application's,
//! `domain` for aggregates and units of work, `idempotency` for HTTP APIs, `relay` for delivering in the
//! same process, `trace` for W3C trace context from the current span at enqueue to the span of the publish,
//! and a destination (`nats`, `kafka`, `rabbitmq`, `redis`, `mqtt`, `pulsar`, `http`, `bus`, `handlers`, `log`,
//! `memory`).
//! `testing` is for an application's own tests.

mod outbox;

mod hook;

mod transaction;

mod savepoint;

mod notify;

mod inbox;

#[cfg(feature = "idempotency")]
pub mod idempotency;

#[cfg(feature = "domain")]
pub mod domain;

#[cfg(feature = "testing")]
pub mod testing;

#[cfg(feature = "trace")]
mod trace;

pub use posthaste_core::{
    Envelope, Error, ErrorKind, Event, EventBuilder, Failure, GLOBAL, IntoEvent, Key, Limits,
    Ordering, Result, Secret, Status, TableName, TypeName, TypedEvent, backoff, clock, key, store,
    transport, typed,
};
#[cfg(feature = "derive")]
pub use posthaste_derive::Event;
#[cfg(feature = "relay")]
pub use posthaste_relay as relay;
pub use posthaste_stores as stores;
pub use posthaste_stores::{Dialect, Enqueued};
#[cfg(any(
    feature = "bus",
    feature = "handlers",
    feature = "log",
    feature = "memory",
    feature = "wire"
))]
pub use posthaste_transports as transports;

pub use self::{
    hook::{Hook, Hooks, Refusal, Written},
    inbox::{Inbox, Once, message_id},
    outbox::{EnqueueIn, Outbox},
    savepoint::Savepoint,
    transaction::OutboxTransaction,
};

/// The README's code compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
