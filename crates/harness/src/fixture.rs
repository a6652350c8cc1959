//! What one test works with: an outbox that nobody else uses, a folder for journals and logs, and
//! the binary whose processes it starts.

use std::{
    fs,
    path::PathBuf,
    str::FromStr,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use posthaste::{
    Dialect, Enqueued, Event, Outbox,
    store::{EventRecord, Filter, ShardRecord, Store},
    stores::Tables,
};
use posthaste_testkit::tables;
use sqlx::{
    AssertSqlSafe, MySql, Pool, Postgres, Sqlite,
    pool::PoolOptions,
    sqlite::{SqliteConnectOptions, SqliteJournalMode},
};
use uuid::Uuid;

use crate::{
    journal::{Entry, Journal},
    judge::Judgement,
    options::{RelayOptions, WriterOptions},
    process::{LIMIT, Process},
};

/// A database to test on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Database {
    /// The server of `POSTHASTE_TEST_POSTGRES`.
    Postgres,
    /// The server of `POSTHASTE_TEST_MARIADB`.
    MariaDb,
    /// The server of `POSTHASTE_TEST_MYSQL`.
    MySql,
    /// A file of its own.
    Sqlite,
}

/// Connections of the test's own process.
#[derive(Debug, Clone)]
pub enum Connections {
    /// To PostgreSQL.
    Postgres(Pool<Postgres>),
    /// To MariaDB or MySQL.
    MySql(Pool<MySql>),
    /// To SQLite.
    Sqlite(Pool<Sqlite>),
}

/// Does the same on whichever database it is.
#[macro_export]
macro_rules! with_pool {
    ($connections:expr, $pool:ident => $body:expr) => {
        match $connections {
            $crate::fixture::Connections::Postgres($pool) => $body,
            $crate::fixture::Connections::MySql($pool) => $body,
            $crate::fixture::Connections::Sqlite($pool) => $body,
        }
    };
}
impl Connections {
    /// Connects as an application would.
    pub async fn open(url: &str, most: u32) -> Result<Self, sqlx::Error> {
        match url.split(':').next() {
            Some("postgres") => {
                Ok(Self::Postgres(PoolOptions::new().max_connections(most).connect(url).await?))
            }
            Some("mysql") => {
                Ok(Self::MySql(PoolOptions::new().max_connections(most).connect(url).await?))
            }
            _ => {
                let options = SqliteConnectOptions::from_str(url)?
                    .create_if_missing(true)
                    .journal_mode(SqliteJournalMode::Wal)
                    .busy_timeout(Duration::from_secs(20));
                let pool = PoolOptions::new().max_connections(most).connect_with(options).await?;
                Ok(Self::Sqlite(pool))
            }
        }
    }
}

/// What one test works with.
pub struct Fixture {
    /// Which database.
    pub database: Database,
    /// Where it is.
    pub url: String,
    /// The outbox.
    pub tables: Tables,
    /// The outbox as relays and operators see it.
    pub store: Arc<dyn Store>,
    /// Connections of the test's own process.
    pub connections: Connections,
    /// Journals and logs; kept when the test fails.
    pub folder: PathBuf,
    binary: PathBuf,
}

impl Fixture {
    /// A new outbox. Give it `env!("CARGO_BIN_EXE_posthaste-harness")`.
    ///
    /// # Panics
    ///
    /// When there is no such database.
    pub async fn new(database: Database, binary: &str) -> Self {
        let tables = tables::unique("crash");
        let folder = std::env::temp_dir().join(format!("posthaste-{}", tables.name().bare()));
        fs::create_dir_all(&folder).expect("a folder for journals cannot be made");
        let mut url = match database {
            Database::Postgres => server("POSTHASTE_TEST_POSTGRES"),
            Database::MariaDb => server("POSTHASTE_TEST_MARIADB"),
            Database::MySql => server("POSTHASTE_TEST_MYSQL"),
            Database::Sqlite => format!("sqlite:{}", folder.join("outbox.db").display()),
        };
        let connections = Connections::open(&url, 8)
            .await
            .unwrap_or_else(|error| panic!("{database:?} cannot be reached: {error}"));
        if database == Database::Postgres {
            // Tells the connections of this test's processes from all others on the server.
            let separator = if url.contains('?') { '&' } else { '?' };
            url = format!("{url}{separator}application_name={}", tables.name().bare());
        }
        let store = with_pool!(&connections, pool => store(pool, &tables));
        store.migrate(None).await.expect("the outbox cannot be made");
        println!("{database:?}, outbox {}, journals in {}", tables.name().bare(), folder.display());
        Self { database, url, tables, store, connections, folder, binary: binary.into() }
    }

    /// Settings of a relay of this outbox.
    pub fn relay_options(&self, name: &str) -> RelayOptions {
        RelayOptions {
            url: self.url.clone(),
            table: self.tables.name().clone(),
            name: name.to_owned(),
            out: self.deliveries(),
            ..parsed::<RelayArguments>().relay
        }
    }

    /// Settings of a writer to this outbox.
    pub fn writer_options(&self, name: &str) -> WriterOptions {
        WriterOptions {
            relay: self.relay_options(name),
            journal: self.commits(),
            ..parsed::<WriterArguments>().writer
        }
    }

    /// Starts a relay.
    pub fn relay(&self, options: &RelayOptions) -> Process {
        self.start("relay", &options.name, options.arguments())
    }

    /// Starts a writer.
    pub fn writer(&self, options: &WriterOptions) -> Process {
        self.start("writer", &options.relay.name, options.arguments())
    }

    fn start(&self, kind: &str, name: &str, mut arguments: Vec<String>) -> Process {
        arguments.insert(0, kind.to_owned());
        Process::start(&self.binary, name, &arguments, self.folder.join(format!("{name}.log")))
    }

    /// The journal of all relays.
    pub fn deliveries(&self) -> PathBuf {
        self.folder.join("deliveries")
    }

    /// The journal of all writers.
    pub fn commits(&self) -> PathBuf {
        self.folder.join("commits")
    }

    /// What the journals say, ready to be judged.
    pub fn judge(&self) -> Judgement {
        Judgement::of(&self.commits(), &self.deliveries())
    }

    /// Writes events in one transaction of the test's own process, into the journal too. Nobody is
    /// told.
    ///
    /// # Panics
    ///
    /// When the database refuses.
    pub async fn enqueue(&self, events: Vec<Event>) {
        with_pool!(&self.connections, pool => {
            let open = OpenTransaction::begin(self, pool, events).await;
            open.commit().await;
        });
    }

    /// The time by the database's clock.
    ///
    /// # Panics
    ///
    /// When the database does not answer.
    pub async fn database_time(&self) -> Timestamp {
        let micros: i64 = match &self.connections {
            Connections::Postgres(pool) => {
                const NOW: &str = "select (extract(epoch from clock_timestamp()) * 1e6)::bigint";
                sqlx::query_scalar(NOW).fetch_one(pool).await
            }
            Connections::MySql(pool) => {
                const NOW: &str = "select cast(unix_timestamp(sysdate(6)) * 1000000 as signed)";
                sqlx::query_scalar(NOW).fetch_one(pool).await
            }
            Connections::Sqlite(pool) => {
                const NOW: &str = "select cast(unixepoch('subsec') * 1000000 as integer)";
                sqlx::query_scalar(NOW).fetch_one(pool).await
            }
        }
        .expect("the time cannot be asked for");
        Timestamp::from_microsecond(micros).expect("a time")
    }

    /// Plain SQL with the names of the tables filled in.
    ///
    /// # Panics
    ///
    /// When the database refuses.
    pub async fn sql(&self, template: &str) {
        let sql = AssertSqlSafe(self.tables.fill(template));
        with_pool!(&self.connections, pool => {
            sqlx::raw_sql(sql).execute(pool).await.expect("plain SQL failed");
        });
    }

    /// Whether nobody holds a lock that a takeover would need: on any lease, or on SQLite's file.
    ///
    /// # Panics
    ///
    /// When the database does not answer.
    pub async fn is_free(&self) -> bool {
        const LEASES: &str = "select shard from {shards} for update skip locked";

        let total = self.shard_count().await;
        let sql = AssertSqlSafe(self.tables.fill(LEASES));
        match &self.connections {
            Connections::Postgres(pool) => {
                sqlx::query(sql).fetch_all(pool).await.expect("leases cannot be read").len()
                    == total
            }
            Connections::MySql(pool) => {
                sqlx::query(sql).fetch_all(pool).await.expect("leases cannot be read").len()
                    == total
            }
            Connections::Sqlite(_) => {
                let options = SqliteConnectOptions::from_str(&self.url).expect("a URL");
                let options = options.busy_timeout(Duration::ZERO);
                let pool = PoolOptions::<Sqlite>::new().connect_with(options).await;
                let pool = pool.expect("the file cannot be opened");
                let free = pool.begin_with("begin immediate").await.is_ok();
                pool.close().await;
                free
            }
        }
    }

    /// Cuts all connections of this test's processes. Gives how many there were.
    ///
    /// # Panics
    ///
    /// Anywhere but on PostgreSQL.
    pub async fn cut_connections(&self) -> usize {
        const CUT: &str = "
            select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1";

        let Connections::Postgres(pool) = &self.connections else {
            panic!("connections can be cut on PostgreSQL only");
        };
        let cut: Vec<bool> = sqlx::query_scalar(CUT)
            .bind(self.tables.name().bare())
            .fetch_all(pool)
            .await
            .expect("connections cannot be cut");
        cut.len()
    }

    /// The shards that each relay holds by name; free ones do not count.
    ///
    /// # Panics
    ///
    /// When the database does not answer.
    pub async fn shards_of(&self, relay: &str) -> Vec<ShardRecord> {
        let prefix = format!("{relay}/");
        let mut shards = self.store.shards().await.expect("the shards cannot be read");
        shards.retain(|shard| shard.locked_by.as_deref().is_some_and(|o| o.starts_with(&prefix)));
        shards
    }

    /// Waits until this relay holds so many shards.
    ///
    /// # Panics
    ///
    /// When it never does.
    pub async fn until_holds(&self, relay: &str, count: usize) {
        self.until(&format!("{relay} to hold {count} shards"), async || {
            self.shards_of(relay).await.len() == count
        })
        .await;
    }

    /// How many shards the outbox has.
    ///
    /// # Panics
    ///
    /// When the database does not answer.
    pub async fn shard_count(&self) -> usize {
        usize::from(self.store.check().await.expect("the outbox is gone"))
    }

    /// Waits until the database says so. Asks every few milliseconds.
    ///
    /// # Panics
    ///
    /// When it never does.
    pub async fn until(&self, what: &str, mut reached: impl AsyncFnMut() -> bool) {
        let begun = Instant::now();
        while !reached().await {
            assert!(
                begun.elapsed() < LIMIT,
                "waited in vain for {what}; {:?}",
                self.store.counts(u64::MAX).await
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until nothing is left to be delivered.
    ///
    /// # Panics
    ///
    /// When something stays.
    pub async fn until_drained(&self) {
        self.until("the outbox to be drained", async || {
            let counts = self.store.counts(u64::MAX).await.expect("counts cannot be read");
            counts.new + counts.sending + counts.retry == 0
        })
        .await;
    }

    /// Every event of the outbox, in the order of its sequence.
    ///
    /// # Panics
    ///
    /// When the database does not answer.
    pub async fn events(&self) -> Vec<EventRecord> {
        let mut all = Vec::new();
        let mut before = None;
        loop {
            let page = self.store.events(&Filter::default(), before, 500).await;
            let page = page.expect("events cannot be listed");
            all.extend(page.events);
            before = page.next;
            if before.is_none() {
                all.reverse();
                return all;
            }
        }
    }

    /// One event.
    ///
    /// # Panics
    ///
    /// When it is not there.
    pub async fn event(&self, id: Uuid) -> EventRecord {
        let event = self.store.event(id).await.expect("an event cannot be read");
        event.unwrap_or_else(|| panic!("event {id} is gone"))
    }

    /// Ends what belongs to the test. Not called when it failed: then all is kept to be looked at.
    ///
    /// # Panics
    ///
    /// When the database refuses.
    pub async fn clean(self) {
        if self.database != Database::Sqlite {
            with_pool!(&self.connections, pool => {
                tables::drop_outbox(pool, &self.tables).await.expect("the outbox cannot be dropped");
            });
        }
        with_pool!(&self.connections, pool => pool.close().await);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A transaction of the test's own process whose events are enqueued and in the journal.
pub struct OpenTransaction<DB: Dialect> {
    transaction: sqlx::Transaction<'static, DB>,
    journal: Journal,
    id: Uuid,
    /// What was enqueued.
    pub enqueued: Vec<Enqueued>,
}

impl<DB: Dialect> OpenTransaction<DB> {
    /// Begins it and enqueues these events.
    ///
    /// # Panics
    ///
    /// When the database refuses.
    pub async fn begin(fixture: &Fixture, pool: &Pool<DB>, events: Vec<Event>) -> Self {
        let journal = Journal::open(&fixture.commits()).expect("the journal cannot be opened");
        let id = Uuid::now_v7();
        let mut transaction = pool.begin().await.expect("no transaction");
        for event in &events {
            let key = event.aggregate_id().unwrap_or("-").to_owned();
            journal.write(&Entry::Began(event.id(), key).line(id));
        }
        let outbox = Outbox::new(fixture.tables.name().clone());
        let enqueued = outbox.enqueue_all(&mut transaction, events).await.expect("enqueue failed");
        Self { transaction, journal, id, enqueued }
    }

    /// Commits it.
    ///
    /// # Panics
    ///
    /// When the database refuses.
    pub async fn commit(self) {
        self.transaction.commit().await.expect("commit failed");
        self.journal.write(&Entry::Committed.line(self.id));
    }
}

/// An event of this type and key.
///
/// # Panics
///
/// When it would not be valid.
pub fn event(event_type: &str, key: &str) -> Event {
    let event = Event::builder(event_type).aggregate("Thing", key).raw_json("{}");
    event.build().expect("an event that is valid")
}

fn store<DB: Dialect>(pool: &Pool<DB>, tables: &Tables) -> Arc<dyn Store> {
    DB::store(pool.clone(), tables.clone())
}

fn server(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run scripts/test, or source target/servers/env")
    })
}

/// The defaults that the binary has.
fn parsed<T: clap::Parser>() -> T {
    T::parse_from(["posthaste-harness"])
}

#[derive(clap::Parser)]
struct RelayArguments {
    #[command(flatten)]
    relay: RelayOptions,
}

#[derive(clap::Parser)]
struct WriterArguments {
    #[command(flatten)]
    writer: WriterOptions,
}

/// Whether the long runs were asked for.
pub fn nightly() -> bool {
    std::env::var_os("POSTHASTE_NIGHTLY").is_some_and(|value| !value.is_empty() && value != "0")
}

/// The seed of this run, printed so that its schedule can be had again with `POSTHASTE_SEED`.
///
/// # Panics
///
/// When `POSTHASTE_SEED` is not a number.
pub fn seed() -> u64 {
    let seed = match std::env::var("POSTHASTE_SEED") {
        Ok(text) => text.parse().expect("POSTHASTE_SEED is not a number"),
        Err(_) => fastrand::u64(..1_000_000),
    };
    println!("seed {seed} (again with POSTHASTE_SEED={seed})");
    seed
}

/// Runs tests on databases: `postgres, Postgres: this_test, that_test;`. Each gets a fixture of its
/// own, which is cleaned when it passes.
#[macro_export]
macro_rules! on_databases {
    ($($module:ident, $database:ident: $($name:ident),+ $(,)?;)+) => {
        $(
            mod $module {
                $(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $name() {
                        let fixture = $crate::fixture::Fixture::new(
                            $crate::fixture::Database::$database,
                            env!("CARGO_BIN_EXE_posthaste-harness"),
                        )
                        .await;
                        super::$name(&fixture).await;
                        fixture.clean().await;
                    }
                )+
            }
        )+
    };
}
