//! SQLite: one file, one writer, the outbox beside the application's own tables.
//!
//! Every write goes through one connection and begins with `begin immediate`, so that writers
//! queue instead of failing half-way; reads have connections of their own and, in WAL mode, never
//! wait for a writer. Since there is one writer, sequences become visible in order and no commit
//! comes late. There is no hash to shard by, and nothing to gain from it: one shard.
//!
//! Times are microseconds since 1970 by the clock of the statement, in steps of a millisecond.

mod row;

mod schema;

mod transaction;

mod enqueue;

mod leases;

mod read;

mod claim;

mod settle;

mod backlog;

mod inspect;

mod overdue;

mod operate;

mod control;

mod audit;

mod diagnose;

mod wake;

mod inbox;

mod idempotency;

mod expire;

use std::{
    str::FromStr,
    sync::{Arc, atomic::AtomicI64},
    time::Duration,
};

use posthaste_core::{Error, Event, Result, store::Store};
use sqlx::{
    Connection, Sqlite, SqliteConnection, SqlitePool, Transaction,
    pool::PoolOptions,
    sqlite::{SqliteConnectOptions, SqliteSynchronous},
};

use self::transaction::WriteTransaction;
use crate::{Dialect, Enqueued, Options, Tables, failure::failed};

/// How long a statement waits for the write lock of another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// An outbox in a SQLite file, as relays and operators use it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SqliteStore {
    /// One connection when the store made it: writes queue here rather than at the file's lock.
    writer: SqlitePool,
    reader: SqlitePool,
    tables: Tables,
    /// How far events beyond a cursor that stands were looked at.
    beyond: Arc<AtomicI64>,
}

impl SqliteStore {
    /// Opens the file that the URL names (`sqlite:app.db`). A file that is not there is made by
    /// [`migrate`](posthaste_core::store::Schema::migrate), and only by it, unless the URL says
    /// `mode=rwc`.
    ///
    /// A database in memory must have a name that other connections can use, as in
    /// `sqlite:file:NAME?mode=memory`.
    pub async fn connect(url: &str, tables: Tables, options: &Options) -> Result<Self> {
        schema::refuse_name(&tables)?;
        refuse_private(url)?;
        let file = SqliteConnectOptions::from_str(url)
            .map_err(|error| Error::invalid("database URL is not valid").with_source(error))?
            .busy_timeout(BUSY_TIMEOUT)
            // In WAL mode `normal` can lose the last commits at a power cut: a delivered event
            // would only come again, but a caller's event would be lost.
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(false);
        // Connections are kept: opening one reads the schema again, and a database in memory
        // lives only as long as its last connection.
        let kept = PoolOptions::<Sqlite>::new()
            .idle_timeout(None)
            .max_lifetime(None)
            .test_before_acquire(false);
        let writer = kept.clone().max_connections(1).connect_lazy_with(file.clone());
        let reader = kept
            .max_connections(options.connections.max(1))
            .connect_lazy_with(file.pragma("query_only", "on"));
        match writer.acquire().await {
            Ok(_) => {}
            Err(error) if schema::is_missing_file(&error) => {}
            Err(error) => return Err(failed("opening the database file")(error)),
        }
        Ok(Self { writer, reader, tables, beyond: Arc::default() })
    }

    /// The outbox in the caller's own database. Reads and writes share the caller's pool.
    pub fn new(pool: SqlitePool, tables: Tables) -> Self {
        Self { writer: pool.clone(), reader: pool, tables, beyond: Arc::default() }
    }

    /// The pool through which is written.
    pub fn pool(&self) -> &SqlitePool {
        &self.writer
    }

    /// The tables.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// A transaction that has the write lock from its start.
    async fn begin(&self, doing: &'static str) -> Result<WriteTransaction> {
        WriteTransaction::begin(&self.writer).await.map_err(failed(doing))
    }
}

impl Dialect for Sqlite {
    async fn enqueue<'c>(
        connection: &'c mut SqliteConnection,
        tables: &'c Tables,
        events: &'c [Event],
    ) -> Result<Vec<Enqueued>> {
        enqueue::enqueue(connection, tables, events).await
    }

    fn in_transaction(connection: &mut SqliteConnection) -> bool {
        connection.is_in_transaction()
    }

    async fn depth(connection: &mut SqliteConnection) -> usize {
        transaction::depth(connection).await
    }

    async fn break_off(connection: &mut SqliteConnection, depth: usize) {
        transaction::break_off(connection, depth).await;
    }

    async fn still_open(connection: &mut SqliteConnection) -> Result<()> {
        transaction::still_open(connection).await
    }

    async fn begin(pool: &SqlitePool) -> Result<Transaction<'static, Self>, sqlx::Error> {
        transaction::begin(pool).await
    }

    async fn commit(transaction: Transaction<'static, Self>) -> Result<(), sqlx::Error> {
        transaction::commit(transaction).await
    }

    fn had_ended(error: &sqlx::Error) -> bool {
        transaction::had_ended(error)
    }

    fn store(pool: SqlitePool, tables: Tables) -> Arc<dyn Store> {
        Arc::new(SqliteStore::new(pool, tables))
    }
}

/// Refuses a database that no other connection could reach: nobody could enqueue into it.
fn refuse_private(url: &str) -> Result<()> {
    let rest = url.trim_start_matches("sqlite:").trim_start_matches("//");
    let (file, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    let has = |wanted: &str| parameters.split('&').any(|parameter| parameter == wanted);
    if file.is_empty() {
        return Err(Error::invalid("database URL names no file; use sqlite:PATH"));
    }
    // SQLite shares what is in memory by its name, and only when that is written as a URI.
    let shared = file.starts_with("file:") && !has("cache=private");
    if file.ends_with(":memory:") || (has("mode=memory") && !shared) {
        return Err(Error::invalid(
            "a private database in memory cannot be shared between connections, so nobody could \
             enqueue into it; use a file, or give it a name: sqlite:file:NAME?mode=memory",
        ));
    }
    Ok(())
}

/// A list as one bound value, for `json_each(?)`.
fn list<T: Into<serde_json::Value>>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(Into::into).collect::<serde_json::Value>().to_string()
}

/// A time span in the unit of the columns. A century is for ever enough, and its sum with a time
/// stays in range.
fn micros(span: Duration) -> i64 {
    const CENTURY: i64 = 100 * 365 * 24 * 3_600 * 1_000_000;
    i64::try_from(span.as_micros()).map_or(CENTURY, |micros| micros.min(CENTURY))
}
