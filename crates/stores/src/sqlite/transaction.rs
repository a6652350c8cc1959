//! Transactions that leave their connection fit for its next user, however they end.
//!
//! SQLite ends a transaction by itself when the disk is full, after an I/O error, when memory runs
//! out, and at `raise(rollback)`. sqlx counts open transactions, and does not notice: its own
//! rollback fails, the connection goes back to the pool with a count of one, and sqlx refuses every
//! later `begin immediate` on it.
//!
//! | transaction | who begins it | what keeps its connection fit |
//! | --- | --- | --- |
//! | [`WriteTransaction`] | the store | sqlx does not count it |
//! | [`sqlx::Transaction`] | the application | [`begin`] sets the count right before the next one |
//!
//! No connection is closed for it, as far as possible: a database in memory lives only as long as
//! its last connection.

use std::ops::{Deref, DerefMut};

use posthaste_core::{Error, ErrorKind, Result};
use sqlx::{
    Connection, Executor, SqlSafeStr, Sqlite, SqliteConnection, SqlitePool, Transaction,
    pool::PoolConnection,
};
use tokio::runtime::Handle;

use crate::{
    dialect::{count_up, counted},
    failure::failed,
};

/// Takes the write lock at once: a transaction that takes it later fails when another process wrote
/// in between.
const BEGIN: &str = "begin immediate";

/// For the application. The savepoint lives as long as the transaction, and [`commit`] asks for it.
const BEGIN_MARKED: &str = "begin immediate; savepoint posthaste_begun";

/// A transaction of the store. Rolls back when it is dropped before its commit has succeeded.
pub(super) struct WriteTransaction {
    /// `None` after the commit.
    connection: Option<PoolConnection<Sqlite>>,
}

impl WriteTransaction {
    pub(super) async fn begin(pool: &SqlitePool) -> sqlx::Result<Self> {
        // Before the statement: a caller that is dropped while it waits for the lock rolls back.
        let mut transaction = Self { connection: Some(pool.acquire().await?) };
        sqlx::query(BEGIN).execute(&mut *transaction).await?;
        Ok(transaction)
    }

    pub(super) async fn commit(mut self) -> sqlx::Result<()> {
        sqlx::query("commit").execute(&mut *self).await?;
        self.connection = None;
        Ok(())
    }
}

impl Deref for WriteTransaction {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        self.connection.as_ref().expect("the commit has consumed it")
    }
}

impl DerefMut for WriteTransaction {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        self.connection.as_mut().expect("the commit has consumed it")
    }
}

impl Drop for WriteTransaction {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        let Ok(runtime) = Handle::try_current() else {
            // Closing it rolls back as well.
            drop(connection.detach());
            return;
        };
        // The pool gets the connection back afterwards: a statement that came before would be
        // rolled back, too.
        runtime.spawn(async move {
            // Fails when there is nothing left to roll back: SQLite has done it, or a commit whose
            // caller did not wait has succeeded.
            let _ = sqlx::query("rollback").execute(&mut *connection).await;
        });
    }
}

/// Begins a transaction for the application, which knows only the type of sqlx.
pub(super) async fn begin(pool: &SqlitePool) -> sqlx::Result<Transaction<'static, Sqlite>> {
    loop {
        let connection = pool.acquire().await?;
        // A pool lends a connection only when the rollback of its last transaction is over. If sqlx
        // still counts one, then SQLite has ended it.
        if !connection.is_in_transaction() {
            return Transaction::begin(connection, Some(BEGIN_MARKED.into_sql_str())).await;
        }
        // In a task of its own, so that it is finished even if the caller is dropped meanwhile.
        let mended = tokio::spawn(mend(connection)).await;
        mended.map_err(|_| sqlx::Error::WorkerCrashed)??;
    }
}

/// Commits a transaction of [`begin`]. One that SQLite has ended has no such savepoint any more, also when a
/// savepoint that came later has begun another transaction: SQLite would commit that one.
pub(super) async fn commit(mut transaction: Transaction<'static, Sqlite>) -> sqlx::Result<()> {
    sqlx::query("release posthaste_begun").execute(&mut *transaction).await?;
    transaction.commit().await
}

/// Whether a savepoint is gone, as all are when the transaction has ended before.
pub(super) fn had_ended(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| error.message().contains("no such savepoint: "))
}

/// Refuses where no transaction is open: inside of one SQLite begins no other. Outside of one every statement
/// commits by itself, and a savepoint begins a transaction that its release commits.
pub(super) async fn still_open(connection: &mut SqliteConnection) -> Result<()> {
    // Where the first of the two fails, SQLite does not come to the second.
    const ASK: &str = "begin; rollback";

    match connection.execute(ASK).await {
        Ok(_) => Err(ended()),
        Err(error) if is_inside(&error) => Ok(()),
        Err(error) => Err(failed("looking after the transaction")(error)),
    }
}

fn is_inside(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .is_some_and(|error| error.message().contains("a transaction within a transaction"))
}

/// The error of a statement in the caller's transaction, or that SQLite has ended the transaction with it.
pub(super) async fn failed_in(connection: &mut SqliteConnection, failure: Error) -> Error {
    match still_open(connection).await {
        Err(error) if error.kind() == ErrorKind::State => error.with_source(failure),
        _ => failure,
    }
}

fn ended() -> Error {
    Error::new(
        ErrorKind::State,
        "SQLite has ended the transaction and undone it, as it does when the disk is full, and at \
         `on conflict rollback`; begin another one",
    )
}

/// How many levels sqlx counts. Its rollbacks run in a thread of their own: the answer to a ping comes after
/// them.
pub(super) async fn depth(connection: &mut SqliteConnection) -> usize {
    let _ = connection.ping().await;
    counted::<Sqlite>(connection)
}

/// Undoes the whole transaction, while sqlx counts so many levels at least: SQLite refuses the commit of each.
/// [`begin`] mends the connection.
pub(super) async fn break_off(connection: &mut SqliteConnection, depth: usize) {
    // An error where nothing is open.
    let _ = connection.execute("rollback").await;
    let _ = count_up::<Sqlite>(connection, depth).await;
    let _ = connection.execute("rollback").await;
}

/// Sets sqlx's count of open transactions to zero and gives the connection back to its pool.
async fn mend(mut connection: PoolConnection<Sqlite>) -> sqlx::Result<()> {
    // sqlx counts down only after a rollback that works, and that needs a transaction. Fails when
    // there is one after all.
    let _ = sqlx::query("begin").execute(&mut *connection).await;
    // sqlx refuses to begin because of its count, and rolls back because it has not begun.
    drop(connection.begin_with(BEGIN).await);
    connection.ping().await?;
    if connection.is_in_transaction() {
        // There were savepoints, and sqlx wants to go back to one of them.
        connection.close().await?;
    }
    Ok(())
}
