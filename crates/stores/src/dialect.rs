//! What a database must do for a writer: one insert, in the caller's own transaction.

use std::{future::Future, sync::Arc};

use posthaste_core::{Enqueued, Event, Result, store::Store};
use sqlx::{Database, Pool, Transaction, error::DatabaseError};

use crate::Tables;

/// A database that Posthaste can write to through sqlx.
pub trait Dialect: Database {
    /// Writes events on this connection, in the transaction that is open on it, in the order given,
    /// and answers in that order. Several events go in one statement. An event id that is there
    /// already writes nothing and gives the first sequence; with another tenant, type or key it is
    /// an error of kind `Conflict`, and so is an id that comes twice in one call with different
    /// content.
    fn enqueue<'c>(
        connection: &'c mut Self::Connection,
        tables: &'c Tables,
        events: &'c [Event],
    ) -> impl Future<Output = Result<Vec<Enqueued>>> + Send + 'c;

    /// Whether a transaction is open on this connection, as far as the driver can tell.
    fn in_transaction(connection: &mut Self::Connection) -> bool;

    /// Whether the transaction that is open on this connection can only be rolled back, although its
    /// commit would be answered with success: PostgreSQL does that when a statement has failed.
    fn has_failed(connection: &mut Self::Connection) -> impl Future<Output = bool> + Send {
        let _ = connection;
        std::future::ready(false)
    }

    /// Begins a transaction that will write. On SQLite it takes the write lock at once: one that
    /// reads first and then finds another writer at work could only fail.
    fn begin(
        pool: &Pool<Self>,
    ) -> impl Future<Output = Result<Transaction<'static, Self>, sqlx::Error>> + Send {
        pool.begin()
    }

    /// The relay's side of the same outbox.
    fn store(pool: Pool<Self>, tables: Tables) -> Arc<dyn Store>;
}

/// Whether the database itself answered a commit with "no", so that nothing was committed. Of
/// any other error the result is unknown.
pub fn is_rolled_back(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(DatabaseError::code);
    code.is_some_and(|code| match code.parse::<u32>() {
        // SQLite: busy and constraint, with their extended codes. The driver rolls back then.
        Ok(number) if code.len() < 5 => matches!(number & 0xff, 5 | 19),
        // Violated constraints, serialisation and deadlocks; 40003 is "completion unknown".
        _ => code.starts_with("23") || (code.starts_with("40") && code != "40003"),
    })
}
