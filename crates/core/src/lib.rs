//! The words and the promises of Posthaste, a transactional outbox.
//!
//! An [`Event`] is what an application enqueues in its own database transaction. A relay reads it
//! back as an [`Envelope`], hands it to a [`Transport`](transport::Transport), and settles the
//! [`Outcome`](transport::Outcome) in the [store]. This crate holds the vocabulary that all
//! of them share and the contracts they keep; it talks to no database and to no broker.
//!
//! Modules stand in the order in which an event meets them.

pub mod name;

pub mod limits;

pub mod header;

pub mod event;

pub mod typed;

pub mod key;

pub mod table;

pub mod status;

pub mod envelope;

pub mod enqueue;

pub mod store;

pub mod transport;

pub mod failure;

pub mod secret;

pub mod backoff;

pub mod clock;

pub mod metric;

mod error;

pub use crate::{
    enqueue::Enqueued,
    envelope::Envelope,
    error::{Error, ErrorKind, Result},
    event::{Event, EventBuilder, Ordering},
    failure::Failure,
    key::Key,
    limits::Limits,
    name::{GLOBAL, TypeName},
    secret::Secret,
    status::Status,
    table::TableName,
    typed::{IntoEvent, TypedEvent},
};
