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

#![cfg_attr(docsrs, feature(doc_cfg))]

mod budget;

mod config;

mod destination;

mod route;

mod intercept;

mod hash;

mod hot;

mod wake;

mod source;

mod read;

mod spill;

mod claim;

mod shards;

mod rows;

mod pauses;

pub mod lanes;

mod dispatch;

#[cfg(feature = "trace")]
mod trace;

mod settle;

mod purge;

mod housekeeping;

mod breakers;

mod stalls;

mod stop;

mod tasks;

mod unwritten;

mod driver;

mod relay;

mod stats;

mod health;

mod log;

mod latency;

#[cfg_attr(not(feature = "metrics"), path = "no_meters.rs")]
mod meters;

pub mod observe;

pub use self::{
    budget::Budget,
    config::{Config, OnDead, Retention},
    destination::Destination,
    health::{Health, HealthLimits},
    hot::{Committed, HotPath},
    housekeeping::Housekeeping,
    intercept::Interceptor,
    lanes::BreakerState,
    log::LogTenant,
    purge::purge,
    relay::Relay,
    route::{Route, Routes},
    stats::Stats,
};
