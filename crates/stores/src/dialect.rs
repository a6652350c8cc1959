//! What a database must do for a writer: one insert, in the caller's own transaction.

use std::{future::Future, sync::Arc};

use posthaste_core::{Enqueued, Event, Result, store::Store};
#[cfg(feature = "postgres")]
use sqlx::postgres::{PgDatabaseError, PgSeverity};
use sqlx::{Database, Pool, SqlStr, Transaction, error::DatabaseError};
use sqlx_core::transaction::TransactionManager;

use crate::Tables;

/// PostgreSQL's answer to every statement of a transaction in which one has failed.
pub const IN_FAILED_TRANSACTION: &str = "25P02";

/// A database that Posthaste can write to through sqlx.
pub trait Dialect: Database {
    /// Writes events on this connection, in the transaction that is open on it, in the order given,
    /// and answers in that order. Several events go in one statement. An event id that is there
    /// already writes nothing and gives the first sequence; with another tenant, type or key it is
    /// an error of kind `Conflict`, and so is an id that comes twice in one call with different
    /// content.
    ///
    /// An error leaves none of the events behind: on PostgreSQL the transaction can then only be rolled
    /// back, as after the error of any statement; elsewhere the caller may go on with it. A call that
    /// is dropped half-way may have written some.
    fn enqueue<'c>(
        connection: &'c mut Self::Connection,
        tables: &'c Tables,
        events: &'c [Event],
    ) -> impl Future<Output = Result<Vec<Enqueued>>> + Send + 'c;

    /// Whether a transaction is open on this connection, as far as the driver can tell.
    fn in_transaction(connection: &mut Self::Connection) -> bool;

    /// How many levels the driver counts on this connection: the transaction, and each of its savepoints in
    /// it. The driver names savepoints by this number, and counts wrongly when one is dropped while it is
    /// being set: the next end of a level is then the end of another one, or of the whole transaction.
    fn depth(connection: &mut Self::Connection) -> impl Future<Output = usize> + Send {
        std::future::ready(counted::<Self>(connection))
    }

    /// Undoes the whole transaction, whatever the driver counts. After that the driver counts at least
    /// `depth` levels, and the commit of each of them fails: without a level the driver would send nothing,
    /// and answer with success. On PostgreSQL and MySQL the connection is closed.
    fn break_off(
        connection: &mut Self::Connection,
        depth: usize,
    ) -> impl Future<Output = ()> + Send;

    /// Refuses when the database has ended the transaction that the driver takes for open on this
    /// connection, as MySQL does to resolve a deadlock and SQLite when the disk is full: whatever
    /// is written then commits by itself. On MySQL the connection is of no use after that; a
    /// connection is refused, too, on which the driver has lost its place in the answers. On
    /// PostgreSQL a transaction ends only when the client says so.
    fn still_open(connection: &mut Self::Connection) -> impl Future<Output = Result<()>> + Send {
        let _ = connection;
        std::future::ready(Ok(()))
    }

    /// Whether [`commit`](Self::commit), or the end of a savepoint, has failed because the database had ended
    /// the transaction before. What was enqueued in it is undone, unless a statement had committed it.
    fn had_ended(error: &sqlx::Error) -> bool {
        let _ = error;
        false
    }

    /// Begins a transaction that will write. On SQLite it takes the write lock at once: one that
    /// reads first and then finds another writer at work could only fail.
    fn begin(
        pool: &Pool<Self>,
    ) -> impl Future<Output = Result<Transaction<'static, Self>, sqlx::Error>> + Send {
        begin_undisturbed(pool, None)
    }

    /// Asks, before a transaction of [`begin`](Self::begin) is committed, what its commit would not
    /// tell: PostgreSQL answers the commit of one in which a statement has failed with success, and
    /// on MySQL the driver loses its place in the answers when a statement is dropped while the
    /// server prepares it. `proven`: the last statement in it was one of ours, and has succeeded.
    /// After an error the transaction can only be rolled back, or [abandoned](Self::abandon).
    fn ready(
        connection: &mut Self::Connection,
        proven: bool,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        let _ = (connection, proven);
        std::future::ready(Ok(()))
    }

    /// Asks, before a savepoint is set, whether the database would set one: the driver rolls back
    /// whole what it fails to set one in. `proven` as in [`ready`](Self::ready).
    fn takes_savepoints(
        connection: &mut Self::Connection,
        proven: bool,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        let _ = (connection, proven);
        std::future::ready(Ok(()))
    }

    /// Commits a transaction of [`begin`](Self::begin) that is [`ready`](Self::ready), and never
    /// says so of one that was rolled back: MySQL and, after a savepoint, SQLite answer with
    /// success also the commit of one which they have ended themselves.
    fn commit(
        transaction: Transaction<'static, Self>,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        transaction.commit()
    }

    /// Rolls a transaction of [`begin`](Self::begin) back. As with [`abandon`](Self::abandon) the connection
    /// goes back to this pool fit for its next user, or not at all: also when a statement in it was dropped
    /// half-way, or the caller is dropped meanwhile.
    fn rollback(
        transaction: Transaction<'static, Self>,
        pool: &Pool<Self>,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        let _ = pool;
        transaction.rollback()
    }

    /// Rolls a transaction back that was dropped, whatever its caller was waiting for. The connection goes
    /// back to this pool fit for its next user, or not at all.
    fn abandon(transaction: Transaction<'static, Self>, pool: &Pool<Self>) {
        let _ = pool;
        drop(transaction);
    }

    /// The relay's side of the same outbox.
    fn store(pool: Pool<Self>, tables: Tables) -> Arc<dyn Store>;
}

/// How many levels the driver counts.
pub(crate) fn counted<DB: Database>(connection: &DB::Connection) -> usize {
    <DB::TransactionManager as TransactionManager>::get_transaction_depth(connection)
}

/// Has the driver count so many levels at least.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) async fn count_up<DB: Database>(
    connection: &mut DB::Connection,
    depth: usize,
) -> Result<(), sqlx::Error> {
    while counted::<DB>(connection) < depth {
        <DB::TransactionManager as TransactionManager>::begin(connection, None).await?;
    }
    Ok(())
}

/// Begins a transaction, and comes to the end of that when its caller is dropped meanwhile. The driver
/// counts a transaction only when it has the answer: before, a connection that is dropped goes back
/// to its pool with a transaction open that nobody knows of, and the next user's writes land in it.
pub(crate) async fn begin_undisturbed<DB: Database>(
    pool: &Pool<DB>,
    statement: Option<SqlStr>,
) -> Result<Transaction<'static, DB>, sqlx::Error> {
    let connection = pool.acquire().await?;
    // What nobody takes is dropped as the transaction that it is by then, and rolls back.
    let begun = tokio::spawn(Transaction::begin(connection, statement)).await;
    begun.map_err(|_| sqlx::Error::WorkerCrashed)?
}

/// Whether the database itself answered a commit with "no", so that nothing was committed. Of
/// any other error the result is unknown.
pub fn is_rolled_back(error: &sqlx::Error) -> bool {
    let error = error.as_database_error();
    #[cfg(feature = "postgres")]
    if let Some(answer) = error.and_then(|error| error.try_downcast_ref::<PgDatabaseError>()) {
        return is_refusal(answer.severity(), answer.code());
    }
    let code = error.and_then(DatabaseError::code);
    code.is_some_and(|code| match code.parse::<u32>() {
        // SQLite: busy and constraint, with their extended codes. The driver rolls back then.
        Ok(number) if code.len() < 5 => matches!(number & 0xff, 5 | 19),
        // Violated constraints, serialisation and deadlocks.
        _ => code.starts_with("23") || code.starts_with("40"),
    })
}

/// Whether PostgreSQL answered a commit with an error, whatever its code: a trigger that is
/// deferred until then can raise any. What it cannot say whether it was committed ends the
/// connection, or is worse.
#[cfg(feature = "postgres")]
fn is_refusal(severity: PgSeverity, code: &str) -> bool {
    // "Completion unknown", of the connection between a pooler and the server, and of other servers
    // that speak the same protocol and have committed a part.
    let unknown = code == "40003" || code.starts_with("08") || code.starts_with("XX");
    severity == PgSeverity::Error && !unknown
}

#[cfg(all(test, feature = "postgres"))]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_a_refusal_of_the_commit_unless_it_tells_of_something_else() {
        for code in ["23505", "25P02", "40001", "40P01", "57014", "P0001", "22012"] {
            assert!(is_refusal(PgSeverity::Error, code), "{code}");
            assert!(!is_refusal(PgSeverity::Fatal, code), "{code}");
        }
        for code in ["40003", "08006", "08P01", "XX000", "XXA00"] {
            assert!(!is_refusal(PgSeverity::Error, code), "{code}");
        }
    }
}
