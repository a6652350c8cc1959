//! An outbox of its own for each test, and what the server counted for it.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use posthaste_core::{
    Event,
    store::{
        Held, Identity, Leases, Relay, RelayOrdering, Schema, Settlement, ShardLease, Verdict,
    },
};
use posthaste_stores::{Dialect, Tables, postgres::PostgresStore};
use posthaste_testkit::tables;
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Postgres, postgres::PgPoolOptions};
use uuid::Uuid;

pub const SHARDS: [u16; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

/// An outbox of its own for one test.
#[derive(Clone)]
pub struct Outbox {
    pub pool: PgPool,
    pub tables: Tables,
    pub store: PostgresStore,
}

impl Outbox {
    pub async fn new() -> Self {
        let pool = pool(8).await;
        let tables = tables::unique("pg");
        let store = PostgresStore::new(pool.clone(), tables.clone());
        store.migrate(Some(8)).await.unwrap();
        Self { pool, tables, store }
    }

    pub async fn drop(self) {
        tables::drop_outbox(&self.pool, &self.tables).await.unwrap();
    }

    /// Executes, and has the session report at once what it did.
    pub async fn execute(&self, connection: &mut PgConnection, sql: &str) {
        for sql in [self.tables.fill(sql), "select pg_stat_force_next_flush()".to_owned()] {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *connection).await.unwrap();
        }
    }

    pub async fn enqueue(&self, connection: &mut PgConnection, events: &[Event]) -> Vec<i64> {
        let enqueued = Postgres::enqueue(connection, &self.tables, events).await.unwrap();
        enqueued.into_iter().map(|event| event.sequence).collect()
    }

    pub async fn commit(&self, events: &[Event]) -> Vec<i64> {
        let mut transaction = self.pool.begin().await.unwrap();
        let sequences = self.enqueue(&mut transaction, events).await;
        transaction.commit().await.unwrap();
        sequences
    }

    /// Sent events, all of one transaction.
    pub async fn fill_with_sent(&self, count: i64) {
        let mut connection = self.pool.acquire().await.unwrap();
        let sql = format!(
            "insert into {{events}} (event_id, event_type, aggregate_id, payload, created_at,
                 sent_at)
             select gen_random_uuid(), 'T', (n % 1000)::text, '', now() - interval '1 day', now()
             from generate_series(1, {count}) n;
             analyze {{events}}"
        );
        self.execute(&mut connection, &sql).await;
    }

    /// 15,000 sent events and 15,000 behind the marks, one a second, some of them dead or failed.
    pub async fn fill_half_sent(&self, begin: Timestamp) {
        let mut connection = self.pool.acquire().await.unwrap();
        let fill = format!(
            "insert into {{events}} (event_id, event_type, aggregate_type, aggregate_id, tenant,
                 payload, created_at, sent_at)
             select gen_random_uuid(), 'T', 'A', (n % 1000)::text, 't' || n % 1000, 'x',
                    timestamptz '{begin}' + n * interval '1 second',
                    case when n <= 15000 then now() end
             from generate_series(1, 30000) n"
        );
        for sql in [
            fill.as_str(),
            "update {events} set dead_at = now(), sent_at = null where sequence % 100 = 3",
            "update {events} set attempts = 1, wait = 'retry', not_before = now() + interval '1 h',
                 sent_at = null where sequence % 100 = 4",
            "update {shards} set mark = 15000, mark_context = pg_current_snapshot()::text",
            "vacuum analyze {events}",
        ] {
            self.execute(&mut connection, sql).await;
        }
    }

    pub async fn scalar<T>(&self, sql: &str) -> T
    where
        T: Send + Unpin + for<'r> sqlx::Decode<'r, Postgres> + sqlx::Type<Postgres>,
    {
        let sql = AssertSqlSafe(self.tables.fill(sql));
        sqlx::query_scalar(sql).fetch_one(&self.pool).await.unwrap()
    }

    pub async fn acquire(&self) -> ShardLease {
        let mut leases = self.store.acquire(&new_relay("r"), &SHARDS).await.unwrap();
        leases.swap_remove(0)
    }

    pub async fn hold(&self) -> (Relay, Vec<Held>) {
        let relay = new_relay("r");
        let leases = self.store.acquire(&relay, &SHARDS).await.unwrap();
        (relay, leases.into_iter().map(|lease| lease.held).collect())
    }

    pub async fn shard_of(&self, sequence: i64) -> u16 {
        let sql = self.tables.fill("select shard from {events} where sequence = $1");
        let shard: i32 = sqlx::query_scalar(AssertSqlSafe(sql))
            .bind(sequence)
            .fetch_one(&self.pool)
            .await
            .unwrap();
        shard as u16
    }

    /// The context of a reader that has seen all that is visible now.
    pub async fn context(&self) -> String {
        let relay = new_relay("reader");
        self.store.acquire(&relay, &[]).await.unwrap();
        self.scalar(
            "select concat_ws('|', pg_current_snapshot(),
                pg_relation_filenode('{events}'::regclass), (select token from {life}))",
        )
        .await
    }

    pub async fn other_process(&self) -> OtherProcess {
        let pool = pool(1).await;
        let pid = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&pool).await.unwrap();
        OtherProcess { store: PostgresStore::new(pool, self.tables.clone()), pid }
    }

    /// Asks the server until this session waits for a lock.
    pub async fn until_waiting(&self, pid: i32) {
        const WAITS: &str = "
            select exists (select from pg_stat_activity where pid = $1 and wait_event_type = 'Lock')";

        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let waits: bool =
                sqlx::query_scalar(WAITS).bind(pid).fetch_one(&self.pool).await.unwrap();
            if waits {
                return;
            }
            assert!(Instant::now() < deadline, "session {pid} never came to wait for a lock");
            tokio::task::yield_now().await;
        }
    }

    pub async fn stats(&self) -> Stats {
        const STATS: &str = "
            select n_tup_upd, n_tup_hot_upd, seq_scan, coalesce(idx_tup_fetch, 0) + seq_tup_read,
                   idx_scan
            from pg_stat_user_tables where relname = $1";

        let (updated, updated_in_page, scans_of_all, fetched, searches) = sqlx::query_as(STATS)
            .bind(self.tables.name().bare())
            .fetch_one(&self.pool)
            .await
            .unwrap();
        Stats { updated, updated_in_page, scans_of_all, fetched, searches }
    }

    /// Lets every session of the pool report what it has done so far: they do it now and then, and
    /// what comes late would be taken for somebody else's.
    pub async fn report(&self) {
        let mut sessions = Vec::new();
        for _ in 0..self.pool.size() {
            let mut session = self.pool.acquire().await.unwrap();
            let flush = sqlx::query("select pg_stat_force_next_flush()");
            flush.execute(&mut *session).await.unwrap();
            sessions.push(session);
        }
    }

    /// Ends the session and waits until it is gone: it reports what it did when it ends.
    pub async fn end(&self, process: OtherProcess) {
        const GONE: &str = "select not exists (select from pg_stat_activity where pid = $1)";

        let OtherProcess { store, pid } = process;
        store.pool().close().await;
        drop(store);
        let gone = async || -> bool {
            sqlx::query_scalar(GONE).bind(pid).fetch_one(&self.pool).await.unwrap()
        };
        soon(async {
            while !gone().await {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    pub async fn touches_few<T>(
        &self,
        what: &str,
        read: impl AsyncFnOnce(&PostgresStore) -> posthaste_core::Result<T>,
    ) -> T {
        self.touches_fewer_than(1000, what, read).await
    }

    pub async fn touches_fewer_than<T>(
        &self,
        limit: i64,
        what: &str,
        read: impl AsyncFnOnce(&PostgresStore) -> posthaste_core::Result<T>,
    ) -> T {
        self.report().await;
        let before = self.stats().await;
        let reader = self.other_process().await;
        let answer = read(&reader.store).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        self.end(reader).await;
        let after = self.stats().await;
        assert_eq!(after.scans_of_all, before.scans_of_all, "{what} scans the whole table");
        let fetched = after.fetched - before.fetched;
        assert!(fetched < limit, "{what} looked at {fetched} events");
        assert!(after.searches > before.searches, "{what} was not counted at all");
        answer
    }
}

/// A store on one connection, whose waiting can be watched.
pub struct OtherProcess {
    pub store: PostgresStore,
    pub pid: i32,
}

/// What the server counted for the events.
pub struct Stats {
    pub updated: i64,
    pub updated_in_page: i64,
    pub scans_of_all: i64,
    pub fetched: i64,
    pub searches: i64,
}

/// # Panics
///
/// Without a server: a test that was not run must not look as if it had passed.
pub async fn pool(connections: u32) -> PgPool {
    let url = std::env::var("POSTHASTE_TEST_POSTGRES")
        .expect("POSTHASTE_TEST_POSTGRES names a PostgreSQL server; scripts/servers starts one");
    PgPoolOptions::new()
        .max_connections(connections)
        .connect(&url)
        .await
        .expect("the server of POSTHASTE_TEST_POSTGRES answers")
}

pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("it happens in time")
}

pub fn new_relay(name: &str) -> Relay {
    Relay {
        name: name.to_owned(),
        instance: Uuid::now_v7(),
        ordering: RelayOrdering::PerKey,
        lease: Duration::from_mins(1),
    }
}

pub fn event(id: &str) -> Event {
    Event::builder("T").aggregate("A", id).raw_json("{}").build().unwrap()
}

pub fn sent(sequence: i64, shard: u16) -> Settlement {
    Settlement {
        sequence,
        identity: Identity::default(),
        shard,
        attempts: 0,
        verdict: Verdict::Sent,
    }
}

pub fn sequences(rows: &[posthaste_core::store::Fetched]) -> Vec<i64> {
    rows.iter().map(|row| row.sequence).collect()
}
