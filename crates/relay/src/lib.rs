//! The relay: reads committed events, hands them to a destination in order, settles what became
//! of them.
//!
//! ```text
//!  source ──► claim ──► lanes ──► dispatch ──► settle
//!  (read)    (leases)  (order)   (publish)    (write)
//! ```
//!
//! One driver task owns all state; every query and every publish runs beside it and comes back as
//! a message, so that the order of things is decided in one place and can be read there. The relay
//! names no database and no broker: it knows the contracts of `posthaste-core`.

mod config;

mod destination;

mod route;

mod intercept;

mod hash;

mod hot;

mod wake;

mod source;

mod claim;

mod shards;

mod rows;

pub mod lanes;

mod dispatch;

#[cfg(feature = "trace")]
mod trace;

mod settle;

mod purge;

mod breakers;

mod stop;

mod driver;

mod relay;

mod stats;

pub use self::{
    config::{Config, OnDead, Retention},
    destination::Destination,
    hot::{Committed, HotPath},
    intercept::Interceptor,
    lanes::BreakerState,
    purge::purge,
    relay::Relay,
    route::{Route, Routes},
    stats::Stats,
};
