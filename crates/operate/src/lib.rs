//! What an operator does with an outbox, from the command line as from the admin API: looking at it, and
//! changes that are logged and kept in the audit table.
//!
//! Nothing here enqueues and nothing marks an event as sent.

mod overview;

pub mod doctor;

mod filter;

mod operator;

mod bulk;

pub use self::{
    bulk::{Action, Bulk, BulkReport, MAX_EVENTS, Progress},
    filter::describe,
    operator::Operator,
    overview::{Overview, PauseLine, RelayLine, ShardCounts},
};
