//! Proofs for Posthaste, a transactional outbox: published, so that a third party's store or
//! transport can prove itself too.
//!
//! - `conformance`: what every store must do, one named test a claim. A store's own tests are one
//!   call of `store_conformance!`. The feature `conformance` alone builds without sqlx; with the feature
//!   `sqlx` a pool of sqlx is all that a subject takes.
//! - `transports`: what every transport must do, against a real server, read back by independent
//!   clients. A transport's own tests are one call of `transport_conformance!`.
//! - [`checker`]: says from what was committed and what was delivered whether anything was lost,
//!   reordered, repeated or made up.
//! - `tables`: outboxes that nobody else uses, and an end for them.
//! - `statements`: which statements a process sent.
//! - `proxy`: swallows answers of a server, or hangs up on a text.
//! - `wait`: for what nobody announces.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(any(feature = "conformance", feature = "tables"))]
mod names;

#[cfg(feature = "tables")]
pub mod tables;

#[cfg(any(feature = "tables", feature = "transports"))]
pub mod wait;

#[cfg(feature = "proxy")]
pub mod proxy;

#[cfg(feature = "conformance")]
pub mod conformance;

#[cfg(feature = "sqlx")]
pub mod statements;

#[cfg(feature = "transports")]
pub mod transports;

pub mod checker;

#[cfg(all(test, any(feature = "conformance", feature = "transports")))]
mod listed;
