//! The admin API, the dashboard, metrics and health of outboxes over HTTP.
//!
//! ```text
//!  connection ─► guard ─► auth ─► api ─► posthaste-operate ─► store
//!  (tls, limits) (host,   (token,  (one file a subject)
//!                origin)   role)
//! ```
//!
//! Nothing here enqueues and nothing marks an event as sent. Every change goes through
//! `posthaste-operate` under the name of the token that asked for it.

mod config;

mod outbox;

mod server;

mod connection;

mod deadline;

mod peers;

mod tls;

mod guard;

mod auth;

mod extract;

mod api;

mod series;

mod problem;

mod dashboard;

pub mod metrics;

pub mod health;

pub use self::{
    config::{AdminConfig, Role, Tls, Token},
    outbox::AdminOutbox,
    server::Admin,
};
