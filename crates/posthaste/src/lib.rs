//! Posthaste is a transactional outbox: a service writes events in its own database transaction,
//! and a relay delivers them to the world, at least once and in order per aggregate.
//!
//! This crate is the front door that applications depend on. It costs only what its features name:
//! a database (`postgres`, `mysql`, `sqlite`, through sqlx 0.9) or another driver of PostgreSQL
//! (`tokio-postgres`, `deadpool`, `diesel-async`, `sea-orm`), `derive` for events that are types of the
//! application's, `domain` for aggregates and units of work, `idempotency` for HTTP APIs, `relay` for
//! delivering in the same process, `metrics` for counters and latencies through the facade of that name, `trace` for W3C trace context from the current span at enqueue to the
//! span of the publish, and a destination (`nats`, `kafka`, `rabbitmq`, `redis`, `mqtt`, `pulsar`, `http`, `bus`,
//! `handlers`, `log`, `memory`). `testing` is for an application's own tests.
//!
//! The driver that a feature names is given on (`posthaste::sqlx`, `posthaste::tokio_postgres`, …),
//! and so are `uuid` and `jiff`: one line in Cargo.toml is enough to enqueue.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod check;

#[cfg(feature = "sqlx")]
mod outbox;

#[cfg(feature = "sqlx")]
mod hook;

#[cfg(feature = "sqlx")]
mod transaction;

#[cfg(feature = "sqlx")]
mod level;

#[cfg(feature = "sqlx")]
mod savepoint;

#[cfg(feature = "sqlx")]
mod notify;

#[cfg(feature = "sqlx")]
mod inbox;

mod postgres_outbox;

mod meter;

pub mod drivers;

#[cfg(feature = "idempotency")]
pub mod idempotency;

#[cfg(feature = "domain")]
pub mod domain;

#[cfg(feature = "testing")]
pub mod testing;

#[cfg(feature = "trace")]
mod trace;

#[cfg(feature = "deadpool")]
pub use deadpool_postgres;
#[cfg(feature = "diesel-async")]
pub use diesel;
#[cfg(feature = "diesel-async")]
pub use diesel_async;
pub use jiff;
pub use posthaste_core::{
    Enqueued, Envelope, Error, ErrorKind, Event, EventBuilder, Failure, GLOBAL, IntoEvent, Key,
    Limits, Ordering, Result, Secret, Status, TableName, TypeName, TypedEvent, backoff, clock,
    enqueue, key, metric, store, transport, typed,
};
#[cfg(feature = "derive")]
pub use posthaste_derive::Event;
#[cfg(feature = "relay")]
pub use posthaste_relay as relay;
#[cfg(feature = "sqlx")]
pub use posthaste_stores as stores;
#[cfg(feature = "sqlx")]
pub use posthaste_stores::Dialect;
#[cfg(any(
    feature = "bus",
    feature = "handlers",
    feature = "log",
    feature = "memory",
    feature = "wire"
))]
pub use posthaste_transports as transports;
#[cfg(feature = "sea-orm")]
pub use sea_orm;
#[cfg(feature = "sqlx")]
pub use sqlx;
#[cfg(feature = "tokio-postgres")]
pub use tokio_postgres;
pub use uuid;

pub use self::{drivers::PostgresTransaction, postgres_outbox::PostgresOutbox};
#[cfg(feature = "sqlx")]
pub use self::{
    hook::{Hook, Hooks, Refusal, Written},
    inbox::{Inbox, Once, message_id},
    outbox::{EnqueueIn, Outbox},
    savepoint::Savepoint,
    transaction::OutboxTransaction,
};

/// The README's code compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
