//! Outboxes on real databases, and relays at them.

use std::{path::PathBuf, sync::Arc, time::Duration};

use posthaste_core::{
    Event,
    backoff::Backoff,
    store::{Relay as Reported, RelayOrdering, Store},
    transport::Transport,
};
use posthaste_relay::{Config, Relay};
use posthaste_stores::{Dialect, Tables};
use posthaste_testkit::tables;
use sqlx::{
    Pool, Postgres, Sqlite,
    postgres::PgPoolOptions,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};
use uuid::Uuid;

/// Runs each case on an outbox of its own, on SQLite and on PostgreSQL.
macro_rules! on_both {
    ($($case:ident)*) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                let on = crate::support::on_sqlite().await;
                super::$case(&on).await;
                on.clean().await;
            })*
        }

        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                let on = crate::support::on_postgres().await;
                super::$case(&on).await;
                on.clean().await;
            })*
        }
    };
}

/// An outbox of one test.
pub struct Outbox<DB: Dialect> {
    pub pool: Pool<DB>,
    pub store: Arc<dyn Store>,
    pub tables: Tables,
    file: Option<PathBuf>,
}

pub async fn on_sqlite() -> Outbox<Sqlite> {
    let file = std::env::temp_dir().join(format!("posthaste-{}.db", Uuid::now_v7()));
    let options = SqliteConnectOptions::new()
        .filename(&file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(Duration::from_secs(20));
    let pool = SqlitePoolOptions::new().max_connections(8).connect_with(options).await.unwrap();
    Outbox::new(pool, Some(file)).await
}

pub async fn on_postgres() -> Outbox<Postgres> {
    let url = std::env::var("POSTHASTE_TEST_POSTGRES")
        .expect("POSTHASTE_TEST_POSTGRES names a PostgreSQL server; scripts/servers starts one");
    let pool = PgPoolOptions::new().max_connections(12).connect(&url).await.unwrap();
    Outbox::new(pool, None).await
}

impl<DB: Dialect> Outbox<DB> {
    async fn new(pool: Pool<DB>, file: Option<PathBuf>) -> Self {
        let tables = tables::unique("operate");
        let store = DB::store(pool.clone(), tables.clone());
        store.migrate(None).await.unwrap();
        Self { pool, store, tables, file }
    }

    pub async fn enqueue(&self, event: &Event) -> Uuid {
        self.enqueue_all(std::slice::from_ref(event)).await;
        event.id()
    }

    pub async fn enqueue_all(&self, events: &[Event]) {
        let mut transaction = self.pool.begin().await.unwrap();
        DB::enqueue(&mut transaction, &self.tables, events).await.unwrap();
        transaction.commit().await.unwrap();
    }

    /// A relay that nobody has started.
    pub fn relay(&self, transport: impl Transport, config: Config) -> Relay {
        let store = DB::store(self.pool.clone(), self.tables.clone());
        Relay::new(store, Arc::new(transport), config).unwrap()
    }

    /// Has a relay of this name report, as one does that lives and has taken nothing yet.
    pub async fn report(&self, name: &str) -> Reported {
        let relay = Reported {
            name: name.to_owned(),
            instance: Uuid::now_v7(),
            ordering: RelayOrdering::PerKey,
            lease: Duration::from_mins(5),
        };
        self.store.heartbeat(&relay, 0).await.unwrap();
        relay
    }

    /// Has a relay of this name report and take every shard.
    pub async fn own(&self, name: &str) -> Reported {
        let relay = self.report(name).await;
        let shards = self.store.check().await.unwrap();
        let all: Vec<u16> = (0..shards).collect();
        assert_eq!(self.store.acquire(&relay, &all).await.unwrap().len(), all.len());
        relay
    }

    pub async fn clean(self)
    where
        for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
    {
        tables::drop_outbox(&self.pool, &self.tables).await.unwrap();
        self.pool.close().await;
        for suffix in ["", "-wal", "-shm"] {
            if let Some(file) = &self.file {
                let _ = std::fs::remove_file(format!("{}{suffix}", file.display()));
            }
        }
    }
}

/// An event of this key.
pub fn event(key: &str) -> Event {
    Event::builder("OrderPlaced").aggregate("Order", key).raw_json("{}").build().unwrap()
}

/// A relay that tries again after an hour.
pub fn patient() -> Config {
    Config { backoff: Backoff::Fixed(Duration::from_hours(1)), ..Config::default() }
}
