//! Numbers that nobody uses: MariaDB gives out every third one, a tenth of the transactions is rolled back,
//! and somebody else's statement or transaction is open throughout. The relay keeps its rate.
//!
//! ```text
//! increment 1   1 2 3 4 5 6 7 …              all are committed
//! increment 3   1 . . 4 . . x . . 10 . . …   x was rolled back
//! ```

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use posthaste::{
    Dialect, Envelope,
    relay::{Config, Housekeeping, Relay},
    stores::Tables,
    transport::{Outcome, Transport},
};
use posthaste_harness::fixture::nightly;
use posthaste_testkit::tables;
use sqlx::{AssertSqlSafe, Connection, MySql, MySqlConnection, MySqlPool, pool::PoolOptions};
use tokio::task::JoinHandle;

use crate::servers::{Engine, Place, Server, free_address};

const WRITERS: usize = 2;

/// Of each writer.
const KEYS: usize = 100;

const TRANSACTION: usize = 50;

/// One transaction of so many is rolled back.
const ROLLED_BACK: usize = 10;

/// Long enough for the slowest run, and none of them gets stuck for so long.
const LIMIT: Duration = Duration::from_mins(4);

/// Who is there throughout.
#[derive(Debug, Clone, Copy)]
enum Other {
    /// A transaction with a snapshot, and no statement.
    OpenTransaction,
    /// A report: one statement that reads a table.
    Report,
    /// A statement that has no transaction.
    Sleep,
    /// A statement that writes into another table.
    Write,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strides_and_rollbacks_beside_an_open_transaction_cost_little() {
    compare(Other::OpenTransaction).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strides_and_rollbacks_beside_a_long_report_cost_little() {
    compare(Other::Report).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strides_and_rollbacks_beside_a_statement_without_a_transaction_cost_little() {
    compare(Other::Sleep).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strides_and_rollbacks_beside_a_long_write_elsewhere_cost_little() {
    compare(Other::Write).await;
}

async fn compare(other: Other) {
    let (pairs, count) = if nightly() { (3, 200_000) } else { (1, 3_000) };
    let place = Place::new("POSTHASTE_TEST_MARIADB_SERVER");
    let settings = ["innodb-flush-log-at-trx-commit = 2", "innodb-buffer-pool-size = 512M"];
    let server: Server<MySql> = place.start("server", free_address(), &settings).await;
    let mut ratios = Vec::new();
    for _ in 0..pairs {
        let plain = Run { server: &server, count, increment: 1, rolled_back: false, other: None };
        let plain = plain.rate().await;
        let other = Some(other);
        let hard = Run { server: &server, count, increment: 3, rolled_back: true, other };
        let hard = hard.rate().await;
        println!("{plain:.0}/s, and beside {other:?} {hard:.0}/s: {:.2}", hard / plain);
        ratios.push(hard / plain);
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    // A short run says nothing of rates.
    assert!(!nightly() || median >= 0.8, "{ratios:?}");
}

struct Run<'a> {
    server: &'a Server<MySql>,
    count: usize,
    increment: u32,
    rolled_back: bool,
    other: Option<Other>,
}

impl Run<'_> {
    /// Events in a second, from the first one written to the last one delivered.
    async fn rate(self) -> f64 {
        let set = format!("set global auto_increment_increment = {}", self.increment);
        sqlx::raw_sql(AssertSqlSafe(set)).execute(&self.server.pool).await.expect("the increment");
        let url = MySql::url(self.server.address);
        // New connections have the new increment.
        let pool: MySqlPool =
            PoolOptions::new().max_connections(8).connect(&url).await.expect("connections");
        let tables = tables::unique("strides");
        let store = MySql::store(pool.clone(), tables.clone());
        store.migrate(None).await.expect("the outbox cannot be made");
        let recorder = Recorder::default();
        let config = Config {
            housekeeping: Housekeeping { purge_interval: None, ..Housekeeping::default() },
            ..Config::default()
        };
        let relay = Relay::new(store, Arc::new(recorder.clone()), config).expect("a relay");
        relay.start().await.expect("the relay does not start");
        let mut stats = relay.watch();
        let all = stats.wait_for(|stats| stats.shards > 0 && stats.shards_owned == stats.shards);
        tokio::time::timeout(LIMIT, all).await.expect("shards in time").expect("a relay");
        let other = match self.other {
            Some(other) => Some(other.begin(&url, &tables).await),
            None => None,
        };

        let begun = Instant::now();
        let writers: Vec<JoinHandle<HashMap<String, Vec<i64>>>> = (0..WRITERS)
            .map(|writer| {
                let count = self.count / WRITERS;
                tokio::spawn(write(pool.clone(), tables.clone(), writer, count, self.rolled_back))
            })
            .collect();
        let mut committed = HashMap::new();
        for writer in writers {
            committed.extend(writer.await.expect("a writer"));
        }
        let written = begun.elapsed();
        let all = stats.wait_for(|stats| stats.delivered >= self.count as u64);
        let waited = tokio::time::timeout(LIMIT, all).await.is_ok();
        assert!(waited, "{} were delivered", relay.stats().delivered);
        let took = begun.elapsed();
        println!("written in {written:.1?}, delivered in {took:.1?}");
        if let Some(other) = other {
            assert!(other.end(&pool).await, "it was there throughout");
        }
        relay.stop().await.expect("the relay does not stop");
        let delivered = recorder.delivered();
        assert_eq!(delivered.len(), committed.len(), "keys");
        for (key, sequences) in &committed {
            assert_eq!(delivered.get(key), Some(sequences), "the order of {key}");
        }
        tables::drop_outbox(&pool, &tables).await.expect("the outbox cannot be dropped");
        self.count as f64 / took.as_secs_f64()
    }
}

/// Writes so many events that are committed, its keys in turn. Returns their numbers, key by key. In plain
/// SQL, so that the writers take less of the machine than the relay.
async fn write(
    pool: MySqlPool,
    tables: Tables,
    writer: usize,
    count: usize,
    rolls_back: bool,
) -> HashMap<String, Vec<i64>> {
    const INSERT: &str =
        "insert into {events} (event_id, event_type, ordering_key, key_hash, payload) values";
    const EVENT: &str = "(uuid(), 'Changed', ?, conv(left(sha2(?, 256), 8), 16, 10), '{}')";

    let mut committed: HashMap<String, Vec<i64>> = HashMap::new();
    let (mut left, mut number) = (count, 0);
    while left > 0 {
        number += 1;
        let keys: Vec<String> = (0..TRANSACTION.min(left))
            .map(|n| format!("w{writer}k{}", (number * TRANSACTION + n) % KEYS))
            .collect();
        let events = vec![EVENT; keys.len()].join(", ");
        let insert = format!("{} {events} returning sequence", tables.fill(INSERT));
        let mut insert = sqlx::query_scalar(AssertSqlSafe(insert));
        for key in &keys {
            insert = insert.bind(key).bind(key);
        }
        let mut transaction = pool.begin().await.expect("no transaction");
        let sequences: Vec<i64> = insert.fetch_all(&mut *transaction).await.expect("insert failed");
        if rolls_back && number % ROLLED_BACK == 0 {
            transaction.rollback().await.expect("rollback failed");
            continue;
        }
        transaction.commit().await.expect("commit failed");
        left -= keys.len();
        for (key, sequence) in keys.into_iter().zip(sequences) {
            committed.entry(key).or_default().push(sequence);
        }
    }
    committed
}

/// Somebody else's connection.
struct Begun {
    id: u64,
    /// Ends when its statement does.
    running: Option<JoinHandle<()>>,
    /// Kept open.
    _idle: Option<MySqlConnection>,
}

impl Other {
    async fn begin(self, url: &str, tables: &Tables) -> Begun {
        let mut connection = MySqlConnection::connect(url).await.expect("a connection");
        let id: u64 = sqlx::query_scalar("select connection_id()")
            .fetch_one(&mut connection)
            .await
            .expect("a connection's id");
        let prepare = match self {
            Self::OpenTransaction => tables
                .fill("start transaction with consistent snapshot; select count(*) from {events}"),
            Self::Sleep => "do 1".to_owned(),
            Self::Report | Self::Write => "
                create table if not exists report (n int) engine = innodb;
                create table if not exists copied (n int) engine = innodb;
                insert into report select seq from seq_1_to_10000"
                .to_owned(),
        };
        sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut connection).await.expect("a table");
        let statement = match self {
            Self::OpenTransaction => return Begun { id, running: None, _idle: Some(connection) },
            Self::Report => "select sum(sleep(0.1)) from report",
            Self::Sleep => "select sleep(1000)",
            Self::Write => "insert into copied select n + sleep(0.1) from report",
        };
        let running = tokio::spawn(async move {
            let _ = sqlx::raw_sql(statement).execute(&mut connection).await;
        });
        Begun { id, running: Some(running), _idle: None }
    }
}

impl Begun {
    /// Ends it. Returns whether it was still there.
    async fn end(self, pool: &MySqlPool) -> bool {
        let there = self.running.as_ref().is_none_or(|running| !running.is_finished());
        let kill = format!("kill {}", self.id);
        let killed = sqlx::raw_sql(AssertSqlSafe(kill)).execute(pool).await;
        if let Some(running) = self.running {
            running.await.expect("somebody else");
        }
        there && killed.is_ok()
    }
}

/// Remembers the numbers of each key in the order of their delivery.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<HashMap<String, Vec<i64>>>>);

impl Recorder {
    fn delivered(&self) -> HashMap<String, Vec<i64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[async_trait]
impl Transport for Recorder {
    fn name(&self) -> &str {
        "recorder"
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        let mut delivered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for envelope in batch {
            let key = envelope.event.ordering_key().unwrap_or_default();
            delivered.entry(key).or_default().push(envelope.sequence);
        }
        vec![Outcome::Delivered; batch.len()]
    }
}
