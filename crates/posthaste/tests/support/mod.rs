//! Outboxes on real databases for tests of the whole path: enqueue, relay, destination.
#![allow(dead_code, reason = "every test file uses its own part")]

use std::{
    future::poll_fn,
    io::{self, Write},
    path::PathBuf,
    pin::pin,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use futures_util::FutureExt;
use posthaste::{
    Dialect, Enqueued, Event, Outbox, TableName,
    backoff::Backoff,
    relay::{Config, Housekeeping, Relay, Stats},
    store::{EventRecord, Store},
    stores::Tables,
    transport::Transport,
};
use sqlx::{
    Connection, MySql, Pool, Postgres, Sqlite,
    mysql::MySqlPoolOptions,
    postgres::PgPoolOptions,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};
use tracing_subscriber::fmt::MakeWriter;
use uuid::Uuid;

/// Nothing here takes so long unless it hangs.
pub const LIMIT: Duration = Duration::from_mins(1);

/// An outbox of one test.
pub struct Fixture<DB: Dialect> {
    pub pool: Pool<DB>,
    pub store: Arc<dyn Store>,
    pub tables: Tables,
    file: Option<PathBuf>,
}

pub trait TestDatabase: Dialect {
    fn fixture() -> impl Future<Output = Fixture<Self>> + Send;

    /// Plain SQL, as an operator or a writer in another language would send it.
    fn run(pool: &Pool<Self>, sql: String) -> impl Future<Output = ()> + Send;

    /// One statement on a connection, such as a transaction's.
    fn run_on(
        connection: &mut Self::Connection,
        sql: String,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// The one number that a query gives.
    fn number(pool: &Pool<Self>, sql: String) -> impl Future<Output = i64> + Send;
}

macro_rules! run_plain_sql {
    () => {
        async fn run(pool: &Pool<Self>, sql: String) {
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(pool).await.unwrap();
        }

        async fn run_on(connection: &mut Self::Connection, sql: String) -> Result<(), sqlx::Error> {
            sqlx::query(sqlx::AssertSqlSafe(sql)).execute(connection).await.map(|_| ())
        }

        async fn number(pool: &Pool<Self>, sql: String) -> i64 {
            sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(pool).await.unwrap()
        }
    };
}

pub fn url(variable: &str) -> String {
    std::env::var(variable)
        .unwrap_or_else(|_| panic!("{variable} is not set: run the tests with scripts/test"))
}

impl TestDatabase for Postgres {
    run_plain_sql!();

    async fn fixture() -> Fixture<Self> {
        let pool = PgPoolOptions::new()
            .max_connections(20)
            .connect(&url("POSTHASTE_TEST_POSTGRES"))
            .await
            .unwrap();
        Fixture::new(pool, None).await
    }
}

impl TestDatabase for MySql {
    run_plain_sql!();

    async fn fixture() -> Fixture<Self> {
        let pool = MySqlPoolOptions::new()
            .max_connections(20)
            .connect(&url("POSTHASTE_TEST_MARIADB"))
            .await
            .unwrap();
        Fixture::new(pool, None).await
    }
}

impl TestDatabase for Sqlite {
    run_plain_sql!();

    async fn fixture() -> Fixture<Self> {
        let file = std::env::temp_dir().join(format!("posthaste-{}.db", Uuid::now_v7()));
        let options = SqliteConnectOptions::new()
            .filename(&file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(20));
        let pool =
            SqlitePoolOptions::new().max_connections(10).connect_with(options).await.unwrap();
        Fixture::new(pool, Some(file)).await
    }
}

impl<DB: TestDatabase> Fixture<DB> {
    async fn new(pool: Pool<DB>, file: Option<PathBuf>) -> Self {
        let tables = posthaste_testkit::tables::unique("relay");
        let store = DB::store(pool.clone(), tables.clone());
        store.migrate(None).await.unwrap();
        Self { pool, store, tables, file }
    }

    /// The file of an outbox on SQLite.
    pub fn file(&self) -> &std::path::Path {
        self.file.as_deref().expect("only SQLite has a file")
    }

    pub fn table(&self) -> TableName {
        self.tables.name().clone()
    }

    pub fn outbox(&self) -> Outbox<DB> {
        Outbox::new(self.table())
    }

    /// Another store on the same outbox, as another process would have it.
    pub fn store(&self) -> Arc<dyn Store> {
        DB::store(self.pool.clone(), self.tables.clone())
    }

    /// Enqueues and commits through a plain driver transaction: nobody is told.
    pub async fn enqueue(&self, events: Vec<Event>) -> Vec<Enqueued> {
        let mut tx = self.pool.begin().await.unwrap();
        let enqueued = self.outbox().enqueue_all(&mut tx, events).await.unwrap();
        tx.commit().await.unwrap();
        enqueued
    }

    pub fn relay(&self, transport: impl Transport, config: Config) -> Relay {
        Relay::new(self.store(), Arc::new(transport), config).unwrap()
    }

    pub async fn record(&self, id: Uuid) -> EventRecord {
        self.store.event(id).await.unwrap().unwrap_or_else(|| panic!("event {id} is gone"))
    }

    /// Plain SQL with the names of the tables filled in.
    pub async fn sql(&self, template: &str) {
        DB::run(&self.pool, self.tables.fill(template)).await;
    }

    /// The one number that a query gives, with the names of the tables filled in.
    pub async fn number(&self, template: &str) -> i64 {
        DB::number(&self.pool, self.tables.fill(template)).await
    }

    /// SQL for the time in a column, so many hours earlier.
    pub fn earlier(column: &str, hours: u32) -> String {
        match DB::NAME {
            "SQLite" => format!("{column} - {}", u64::from(hours) * 3_600_000_000),
            "MySQL" => format!("{column} - interval {hours} hour"),
            _ => format!("{column} - interval '{hours}' hour"),
        }
    }

    pub async fn clean(self) {
        if let Some(file) = self.file {
            self.pool.close().await;
            for suffix in ["", "-wal", "-shm"] {
                let mut name = file.clone().into_os_string();
                name.push(suffix);
                let _ = std::fs::remove_file(name);
            }
        } else {
            for sql in self.tables.drops(DB::NAME) {
                DB::run(&self.pool, sql).await;
            }
        }
    }
}

/// Settings under which nothing takes long.
pub fn quick() -> Config {
    Config {
        lease: Duration::from_secs(6),
        heartbeat: Duration::from_secs(1),
        busy_interval: Duration::from_millis(10),
        idle_interval: Duration::from_millis(100),
        backoff: Backoff::Fixed(Duration::from_millis(5)),
        housekeeping: Housekeeping { purge_interval: None, ..Housekeeping::default() },
        ..Config::default()
    }
}

/// An event number `n` of order `key`.
pub fn event(key: &str, n: usize) -> Event {
    Event::builder("OrderChanged").aggregate("Order", key).payload(&n).build().unwrap()
}

/// Waits until the relay's counters say so.
pub async fn until(relay: &Relay, what: &str, reached: impl FnMut(&Stats) -> bool) -> Stats {
    let mut watch = relay.watch();
    let waited = tokio::time::timeout(LIMIT, watch.wait_for(reached)).await;
    *waited.unwrap_or_else(|_| panic!("waited in vain for {what}: {:?}", relay.stats())).unwrap()
}

/// Waits for a future that must not hang.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.unwrap_or_else(|_| panic!("{what} hung"))
}

/// Waits for a future until it has waited so many times, and then drops it. One that was done before
/// comes with the number of its waits.
pub async fn hang_up<F: Future>(future: F, most: u64) -> Option<(F::Output, u64)> {
    let mut future = pin!(future);
    let mut waits = 0;
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some((output, waits))),
        Poll::Pending if waits == most => Poll::Ready(None),
        Poll::Pending => {
            waits += 1;
            Poll::Pending
        }
    })
    .await
}

/// A savepoint of the driver's in which others were given up, in a transaction of so many levels:
/// the driver counts too few, and what it sends for the end of the savepoint is the commit of the
/// whole transaction.
pub async fn commit_by_mistake<DB: TestDatabase>(connection: &mut DB::Connection, levels: usize) {
    let mut outer = connection.begin().await.unwrap();
    if DB::NAME != "PostgreSQL" {
        for _ in 0..levels {
            give_up_a_savepoint::<DB>(&mut outer);
        }
        return outer.commit().await.unwrap();
    }
    // There the driver counts down by two.
    if levels == 2 {
        give_up_a_savepoint::<DB>(&mut outer);
        return outer.commit().await.unwrap();
    }
    let mut inner = outer.begin().await.unwrap();
    give_up_a_savepoint::<DB>(&mut inner);
    inner.commit().await.unwrap();
}

/// Polls it once. Nearly always that gives it up half-way.
fn give_up_a_savepoint<DB: TestDatabase>(connection: &mut DB::Connection) {
    while connection.begin().now_or_never().is_some() {}
}

/// Everything that is logged, whoever logs it.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'w> MakeWriter<'w> for Log {
    type Writer = Self;

    fn make_writer(&'w self) -> Self {
        self.clone()
    }
}

/// Runs every named test on each of the three databases.
#[macro_export]
macro_rules! on_every_database {
    ($($name:ident),* $(,)?) => {
        on_every_database!(@ sqlite, sqlx::Sqlite, $($name),*);
        on_every_database!(@ postgres, sqlx::Postgres, $($name),*);
        on_every_database!(@ mariadb, sqlx::MySql, $($name),*);
    };
    (@ $module:ident, $database:ty, $($name:ident),*) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    let fixture = <$database as $crate::support::TestDatabase>::fixture().await;
                    super::$name(&fixture).await;
                    fixture.clean().await;
                }
            )*
        }
    };
}
