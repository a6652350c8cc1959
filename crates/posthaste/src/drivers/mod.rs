//! Drivers of PostgreSQL other than sqlx 0.9: each runs two statements in its own transaction.
//!
//! The statements' texts, their values and what the answers mean come from
//! [`posthaste_core::enqueue`]; an adapter only binds and reads.

#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;

#[cfg(feature = "deadpool")]
mod deadpool;

#[cfg(feature = "diesel-async")]
mod diesel_async;

#[cfg(feature = "sea-orm")]
mod sea_orm;

use std::future::Future;

use posthaste_core::{
    Error, ErrorKind, Event, Result,
    enqueue::{Known, postgres::Statements},
};
use uuid::Uuid;

/// A transaction of some driver that events can be enqueued in, with
/// [`PostgresOutbox`](crate::PostgresOutbox). Implement it for a driver that is not among ours.
pub trait PostgresTransaction: Send {
    /// Inserts these events in the transaction that is open, in this order, and gives id and
    /// sequence of each row that the database returns: those that were not there already. Runs
    /// [`INSERT`](posthaste_core::enqueue::postgres::INSERT) with the columns of all events, or
    /// [`INSERT_ONE`](posthaste_core::enqueue::postgres::INSERT_ONE) for each. Refuses when the
    /// driver knows that no transaction is open.
    fn insert(
        &mut self,
        statements: &Statements,
        events: &[Event],
    ) -> impl Future<Output = Result<Vec<(Uuid, i64)>>> + Send;

    /// Runs [`FIND_KNOWN`](posthaste_core::enqueue::postgres::FIND_KNOWN) with these ids.
    fn find_known(
        &mut self,
        statements: &Statements,
        ids: &[Uuid],
    ) -> impl Future<Output = Result<Vec<(Uuid, Known)>>> + Send;

    /// Makes the transaction one that can only be rolled back, by a statement that fails.
    fn fail(&mut self, statements: &Statements) -> impl Future<Output = ()> + Send {
        let failing = Statements { find_known: statements.fail.clone(), ..statements.clone() };
        async move {
            let _ = self.find_known(&failing, &[]).await;
        }
    }
}

/// What the insert is called in errors.
pub const WRITING: &str = "writing events";

/// What the second statement is called in errors.
pub const FINDING: &str = "looking for events that were written before";

/// A driver's error as ours. Its message can quote values, so it is the source and not part of our
/// own message.
pub fn failed(
    doing: &str,
    kind: ErrorKind,
    sqlstate: Option<&str>,
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Error {
    let message = match sqlstate {
        Some(code) => format!("{doing} failed: the database answered {code}"),
        None => format!("{doing} failed"),
    };
    Error::new(kind, message).with_source(error)
}
