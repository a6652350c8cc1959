//! The outbox in PostgreSQL.
//!
//! Late commits are found by transaction id: a row keeps the `xid8` that wrote it, and a read asks
//! for the rows whose transaction an earlier snapshot could not see. Leases are rows that a settle
//! locks in share mode before it writes. Success only sets `sent_at`, inside the page.

#[macro_use]
mod row;

mod pooler;

mod schema;

mod enqueue;

mod transaction;

mod context;

#[macro_use]
mod life;

mod leases;

#[macro_use]
mod read;

mod claim;

mod outcomes;

mod settle;

#[macro_use]
mod backlog;

#[macro_use]
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
    sync::{Arc, Mutex, OnceLock, atomic::AtomicI64},
    time::Duration,
};

use posthaste_core::{Event, Result, Secret, store::Store};
use sqlx::{
    Connection, Executor, PgConnection, PgPool, Postgres, Transaction,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use crate::{
    Dialect, Enqueued, Options, Tables,
    connect::{ACQUIRE_TIMEOUT, open_pool},
    failure::failed,
    sessions::Sessions,
};

/// Our statements have one good plan each, whatever their values are. Left to itself the server plans
/// the longer ones anew with every call, which takes longer than running them, and on large tables
/// compiles them, which takes a hundred times as long. And the server gives a statement up before the
/// relay does: one that nobody waits for any more would run on. The server looks after a minute whether a
/// client that says nothing is still there, and closes a connection whose answers nobody acknowledges;
/// the driver has no such settings of its own.
const PLAN_ONCE: &str = "select set_config('plan_cache_mode', 'force_generic_plan', false),
            set_config('jit', 'off', false), set_config('statement_timeout', '4500', false),
            set_config('lock_timeout', '4000', false), set_config('tcp_keepalives_idle', '30', false),
            set_config('tcp_keepalives_interval', '10', false),
            set_config('tcp_keepalives_count', '3', false),
            set_config('tcp_user_timeout', '20000', false)";

/// An outbox in PostgreSQL, as relays and operators use it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PostgresStore {
    /// For what is asked now and then; a relay's own statements run on `sessions`.
    pool: PgPool,
    sessions: Sessions<Postgres>,
    tables: Tables,
    /// For LISTEN when that is not to go where the pool goes; `None` uses the pool's options.
    listen_url: Option<Secret>,
    /// No transaction pooler is in between, once somebody has looked.
    direct: Arc<OnceLock<()>>,
    /// How many shards there are, once `check` or `migrate` has learnt it.
    shards: Arc<OnceLock<u16>>,
    /// Up to here expired row leases were looked for.
    searched: Arc<Mutex<claim::Searched>>,
    /// How far events beyond late commits were looked at.
    beyond: Arc<AtomicI64>,
    /// The life of the server in which shards were taken last.
    taken_in: Arc<Mutex<Option<Arc<str>>>>,
}

impl PostgresStore {
    /// Connects with a pool of its own.
    pub async fn connect(url: &str, tables: Tables, options: &Options) -> Result<Self> {
        let connect = connect_options(url)?;
        let pool = PgPoolOptions::new()
            .max_connections(options.connections)
            .acquire_timeout(ACQUIRE_TIMEOUT);
        let pool = open_pool(pool, connect, "connecting to PostgreSQL").await?;
        Ok(Self::over(pool, tables, options.connections))
    }

    /// Uses the application's pool. A relay takes the connections that it works with out of the
    /// pool and keeps them, at most [`Options::connections`] by default; the pool opens others in
    /// their place.
    pub fn new(pool: PgPool, tables: Tables) -> Self {
        Self::over(pool, tables, Options::default().connections)
    }

    fn over(pool: PgPool, tables: Tables, connections: u32) -> Self {
        Self {
            sessions: Sessions::new(pool.clone(), connections, PLAN_ONCE),
            pool,
            tables,
            listen_url: None,
            direct: Arc::default(),
            shards: Arc::default(),
            searched: Arc::default(),
            beyond: Arc::default(),
            taken_in: Arc::default(),
        }
    }

    /// Listens for wake-ups on this URL instead of the pool's: LISTEN needs a session of its own, which a pooler in
    /// session mode may end when it is idle.
    pub fn with_listen_url(mut self, url: impl Into<String>) -> Self {
        self.listen_url = Some(Secret::new(url));
        self
    }

    /// The pool.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// The tables.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// A transaction that the server ends when its client falls silent. It has locked leases, and a
    /// takeover passes over locked ones: a relay that is paused inside would keep them for ever.
    async fn begin<'c>(
        connection: &'c mut PgConnection,
        doing: &'static str,
    ) -> Result<Transaction<'c, Postgres>> {
        const BEGIN: &str = "begin; set local idle_in_transaction_session_timeout = '5s'";

        connection.begin_with(BEGIN).await.map_err(failed(doing))
    }

    /// Whether these are all the shards there are, as far as is known.
    fn all_shards(&self, shards: &[u16]) -> bool {
        self.shards.get().is_some_and(|&count| shards.len() == usize::from(count))
    }
}

fn connect_options(url: &str) -> Result<PgConnectOptions> {
    crate::connect::check_login(url)?;
    let options = PgConnectOptions::from_str(url).map_err(failed("reading the PostgreSQL URL"))?;
    Ok(match options.get_application_name() {
        Some(_) => options,
        None => options.application_name("posthaste"),
    })
}

/// Shards as the column's type.
fn shard_numbers(shards: &[u16]) -> Vec<i32> {
    shards.iter().map(|&shard| i32::from(shard)).collect()
}

/// A time span as PostgreSQL is given it: `$1 * interval '1 microsecond'`.
fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX / 1_000_000)
}

impl Dialect for Postgres {
    async fn enqueue<'c>(
        connection: &'c mut PgConnection,
        tables: &'c Tables,
        events: &'c [Event],
    ) -> Result<Vec<Enqueued>> {
        enqueue::enqueue(connection, tables, events).await
    }

    fn in_transaction(connection: &mut PgConnection) -> bool {
        connection.is_in_transaction()
    }

    async fn break_off(connection: &mut PgConnection, depth: usize) {
        transaction::break_off(connection, depth).await;
    }

    async fn ready(connection: &mut PgConnection, proven: bool) -> Result<(), sqlx::Error> {
        if !proven {
            // In a failed transaction every statement fails but the commit.
            connection.execute("select 1").await?;
        }
        Ok(())
    }

    async fn takes_savepoints(
        connection: &mut PgConnection,
        proven: bool,
    ) -> Result<(), sqlx::Error> {
        Self::ready(connection, proven).await
    }

    fn store(pool: PgPool, tables: Tables) -> Arc<dyn Store> {
        Arc::new(PostgresStore::new(pool, tables))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_store_shows_no_password() {
        let options = PgConnectOptions::new_without_pgpass().password("s3cret");
        let pool = PgPoolOptions::new().connect_lazy_with(options);
        let tables = Tables::new("outbox_event".parse().unwrap());
        let store = PostgresStore::new(pool, tables).with_listen_url("postgres://u:s3cret@h/d");
        let shown = format!("{store:?}");
        assert!(!shown.contains("s3cret"), "{shown}");
    }

    #[tokio::test]
    async fn the_server_looks_whether_the_client_of_a_relays_connection_is_there() {
        const SETTINGS: &str = "
            select current_setting('tcp_keepalives_idle'), current_setting('tcp_keepalives_interval'),
                   current_setting('tcp_keepalives_count'), current_setting('tcp_user_timeout')";

        let url =
            std::env::var("POSTHASTE_TEST_POSTGRES").expect("run the tests with scripts/test");
        let tables = Tables::new("outbox_event".parse().unwrap());
        let store = PostgresStore::connect(&url, tables, &Options::default()).await.unwrap();
        let mut session = store.sessions.take("testing").await.unwrap();
        let settings: (String, String, String, String) =
            sqlx::query_as(SETTINGS).fetch_one(&mut *session).await.unwrap();
        let (idle, interval, count, unacknowledged) = settings;
        let settings = [&*idle, &*interval, &*count, &*unacknowledged];
        assert_eq!(settings, ["30", "10", "3", "20000"]);
    }
}
