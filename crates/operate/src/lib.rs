//! What an operator does with an outbox, from the command line as from the admin API: looking at it, and
//! changes that are logged and kept in the audit table.
//!
//! Nothing here enqueues and nothing marks an event as sent.

mod overview;

mod lines;

pub mod doctor;

mod filter;

mod known;

mod operator;

mod bulk;

pub use self::{
    bulk::{Action, Bulk, BulkReport, MAX_EVENTS, Progress},
    doctor::StallLine,
    filter::describe,
    known::{check_name, nearest},
    lines::{EventDetail, EventLine, ShardLine},
    operator::Operator,
    overview::{Overview, PauseLine, RelayLine, ShardCounts},
};
