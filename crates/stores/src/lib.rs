//! The databases of Posthaste: PostgreSQL, MySQL/MariaDB and SQLite, each a feature.
//!
//! The three folders hold the same file names, so that a diff of two of them explains the
//! dialects. Each passes the conformance suite of `posthaste-testkit`.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod tables;

pub mod dialect;

pub mod inbox;

pub mod idempotency;

mod connect;

mod failure;

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod control;

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod counts;

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod diagnose;

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod version;

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod window;

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod overdue;

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod beyond;

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod key;

#[cfg(any(feature = "postgres", feature = "mysql"))]
mod sessions;

#[cfg(feature = "postgres")]
pub mod postgres;

#[cfg(feature = "mysql")]
pub mod mysql;

#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use posthaste_core::Enqueued;

pub use self::{
    connect::{Options, connect, migrations_sql},
    dialect::{Dialect, is_rolled_back},
    tables::Tables,
};
