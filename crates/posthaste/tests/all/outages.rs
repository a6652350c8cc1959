//! The database goes away, refuses or stops listening in the middle of work (mostly on PostgreSQL).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::support::{Fixture, TestDatabase, event, quick, soon, until};
use posthaste::{
    Envelope, Status,
    relay::{Config, Relay},
    stores::{Dialect, postgres::PostgresStore},
    transport::{Outcome, Transport},
    transports::memory::MemoryTransport,
};
use posthaste_testkit::wait::asked;
use sqlx::{AssertSqlSafe, Postgres, postgres::PgPoolOptions};
use tokio::sync::Semaphore;

on_every_database!(a_first_heartbeat_that_fails_at_once_is_repeated_with_a_pause);

async fn a_first_heartbeat_that_fails_at_once_is_repeated_with_a_pause<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    on.sql(match DB::NAME {
        "SQLite" => {
            "create trigger {bare}_refuse before insert on {relays}
             begin select raise(abort, 'refused'); end"
        }
        _ => "alter table {relays} add constraint refused check (lease_ms < 0)",
    })
    .await;
    let transport = MemoryTransport::new();
    let relay = on.relay(transport.clone(), quick());
    relay.start().await.unwrap();
    on.enqueue(vec![event("k", 0)]).await;
    let first = until(&relay, "a failure", |stats| stats.database_errors > 0).await;
    let begun = std::time::Instant::now();
    let fails = |errors| move |stats: &posthaste::relay::Stats| stats.database_errors >= errors;
    until(&relay, "more failures", fails(first.database_errors + 5)).await;
    // A pause of 200 ms after each.
    assert!(begun.elapsed() > Duration::from_millis(900), "{:?}", begun.elapsed());
    on.sql(match DB::NAME {
        "SQLite" => "drop trigger {bare}_refuse",
        _ => "alter table {relays} drop constraint refused",
    })
    .await;
    soon("delivery", transport.wait_for(1)).await;
    relay.stop().await.unwrap();
}

/// A relay on a pool of its own, whose connections carry a name by which they can be ended.
async fn relay_with_name(
    on: &Fixture<Postgres>,
    name: &str,
    transport: impl Transport,
    config: Config,
) -> Relay {
    let url = std::env::var("POSTHASTE_TEST_POSTGRES").unwrap();
    let options: sqlx::postgres::PgConnectOptions = url.parse().unwrap();
    let pool = PgPoolOptions::new()
        .max_connections(6)
        .connect_with(options.application_name(name))
        .await
        .unwrap();
    let store = Arc::new(PostgresStore::new(pool, on.tables.clone()));
    Relay::new(store, Arc::new(transport), config).unwrap()
}

async fn end_connections(on: &Fixture<Postgres>, name: &str, query_like: &str) -> i64 {
    sqlx::query_scalar(
        "select count(pg_terminate_backend(pid)) from pg_stat_activity
         where application_name = $1 and query ilike $2",
    )
    .bind(name)
    .bind(query_like)
    .fetch_one(&on.pool)
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn losing_every_connection_is_survived_and_nothing_is_lost() {
    let on = Postgres::fixture().await;
    let transport = MemoryTransport::new();
    let relay = relay_with_name(&on, "posthaste-lost", transport.clone(), quick()).await;
    relay.start().await.unwrap();
    let mut ended = 0;
    for round in 0..10 {
        on.enqueue((0..50).map(|n| event(&(n % 7).to_string(), round * 50 + n)).collect()).await;
        ended += end_connections(&on, "posthaste-lost", "%").await;
    }
    assert!(ended > 0);
    soon("delivery", async {
        loop {
            until(&relay, "idle", |stats| stats.idle).await;
            if on.store.count_sent().await.unwrap() == 500 {
                break;
            }
            relay.wake();
        }
    })
    .await;
    let mut seen: Vec<i64> = transport.delivered().iter().map(|e| e.sequence).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 500);
    relay.stop().await.unwrap();
    assert_eq!(on.number("select count(*) from {events} where attempts > 0").await, 0);
    on.clean().await;
}

/// Their owner was unclean, and was the relay itself: it knows that nothing in its hands has killed it.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_relay_has_in_its_hands_when_it_loses_its_own_leases_costs_no_attempt() {
    let on = Postgres::fixture().await;
    let transport = Gated::default();
    let config =
        Config { lease: Duration::from_secs(1), heartbeat: Duration::from_millis(200), ..quick() };
    let relay = relay_with_name(&on, "posthaste-own", transport.clone(), config).await;
    relay.start().await.unwrap();
    let id = on.enqueue(vec![event("k", 0)]).await[0].id;
    soon("the publish", transport.came()).await;
    // No connection is left, and no lease is renewed.
    let mut nobody = on.pool.begin().await.unwrap();
    let lock = on.tables.fill("lock table {shards} in access exclusive mode");
    Postgres::run_on(&mut nobody, lock).await.unwrap();
    assert!(end_connections(&on, "posthaste-own", "%").await > 0);
    until(&relay, "the end of its leases", |stats| stats.shards_owned == 0).await;
    // The answer is too late for the lease under which it was published.
    transport.gate.add_permits(1);
    nobody.rollback().await.unwrap();

    soon("the publish after it", transport.came()).await;
    assert!(on.number("select min(epoch) from {shards}").await > 1, "the leases are new ones");
    transport.gate.add_permits(1);
    asked("the settle", async || on.store.count_sent().await.unwrap() == 1).await;
    let record = on.record(id).await;
    assert_eq!((record.status, record.attempts), (Status::Sent, 0));
    assert!(on.store.attempts(record.sequence).await.unwrap().is_empty());
    assert_eq!(relay.stop().await.unwrap().suspects, 0);
    on.clean().await;
}

/// Says that a publish has begun, and waits for leave to answer it.
#[derive(Clone)]
struct Gated {
    begun: Arc<Semaphore>,
    gate: Arc<Semaphore>,
}

impl Default for Gated {
    fn default() -> Self {
        let closed = || Arc::new(Semaphore::new(0));
        Self { begun: closed(), gate: closed() }
    }
}

impl Gated {
    async fn came(&self) {
        self.begun.acquire().await.unwrap().forget();
    }
}

#[async_trait::async_trait]
impl Transport for Gated {
    fn name(&self) -> &str {
        "gated"
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        self.begun.add_permits(1);
        self.gate.acquire().await.unwrap().forget();
        vec![Outcome::Delivered; batch.len()]
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settle_that_fails_is_repeated_and_never_becomes_a_retry() {
    let on = Postgres::fixture().await;
    let (gone, here) = (
        on.tables.fill("alter table {events} rename to {bare}_away"),
        on.tables.fill("alter table {bare}_away rename to {bare}"),
    );
    let transport = Renames {
        memory: MemoryTransport::new(),
        on: on.pool.clone(),
        sql: gone,
        done: AtomicBool::new(false),
    };
    let memory = transport.memory.clone();
    let one = event("k", 1);
    let id = one.id();
    on.enqueue(vec![one]).await;
    let relay = on.relay(transport, quick());
    relay.start().await.unwrap();
    soon("delivery", memory.wait_for(1)).await;
    until(&relay, "failed settles", |stats| stats.database_errors >= 3).await;
    sqlx::raw_sql(AssertSqlSafe(here)).execute(&on.pool).await.unwrap();
    until(&relay, "idle", |stats| stats.idle).await;
    let record = on.record(id).await;
    assert_eq!((record.status, record.attempts), (Status::Sent, 0));
    assert_eq!(memory.delivered().len(), 1);
    assert_eq!(relay.stop().await.unwrap().retried, 0);
    on.clean().await;
}

/// Takes the table away between the delivery and its settle.
struct Renames {
    memory: MemoryTransport,
    on: sqlx::PgPool,
    sql: String,
    done: AtomicBool,
}

#[async_trait::async_trait]
impl Transport for Renames {
    fn name(&self) -> &str {
        "renames"
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        if !self.done.swap(true, Ordering::SeqCst) {
            sqlx::raw_sql(AssertSqlSafe(self.sql.clone())).execute(&self.on).await.unwrap();
        }
        self.memory.publish(batch).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn when_listening_breaks_polling_carries_on_and_listening_comes_back() {
    let on = Postgres::fixture().await;
    let transport = MemoryTransport::new();
    let relay = relay_with_name(&on, "posthaste-listen", transport.clone(), quick()).await;
    relay.start().await.unwrap();
    let listeners = || async {
        let count: i64 = sqlx::query_scalar(
            "select count(*) from pg_stat_activity
             where application_name = 'posthaste-listen' and query ilike 'listen%'",
        )
        .fetch_one(&on.pool)
        .await
        .unwrap();
        count
    };
    soon("a listener", async { while listeners().await == 0 {} }).await;
    assert_eq!(end_connections(&on, "posthaste-listen", "listen%").await, 1);
    on.enqueue(vec![event("k", 1)]).await;
    soon("delivery by poll", transport.wait_for(1)).await;
    soon("the listener's return", async { while listeners().await == 0 {} }).await;
    relay.stop().await.unwrap();
    on.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_is_woken_by_a_notification_after_commit() {
    let on = Postgres::fixture().await;
    let transport = MemoryTransport::new();
    let rare = Duration::from_secs(50);
    let config = Config { busy_interval: rare, idle_interval: rare, ..quick() };
    let relay = relay_with_name(&on, "posthaste-woken", transport.clone(), config).await;
    relay.start().await.unwrap();
    until(&relay, "idle", |stats| stats.idle && stats.shards_owned == stats.shards).await;
    // A writer without a relay: its commits are announced on a connection of their own.
    let outbox = on.outbox();
    for n in 0..5 {
        let mut tx = outbox.begin(&on.pool).await.unwrap();
        outbox.enqueue(&mut tx, event("k", n)).await.unwrap();
        tx.commit().await.unwrap();
        soon("delivery", transport.wait_for(n + 1)).await;
    }
    assert_eq!(relay.stop().await.unwrap().hot_enqueued, 0);
    on.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_hot_queue_leaves_events_to_the_poller_and_enqueue_does_not_fail() {
    let on = Postgres::fixture().await;
    let transport = MemoryTransport::scripted(|_| Outcome::Delivered);
    let config = Config { hot_queue: 1, concurrency: 1, ..quick() };
    let relay = on.relay(transport.clone(), config);
    relay.start().await.unwrap();
    until(&relay, "idle", |stats| stats.idle && stats.shards_owned == stats.shards).await;
    let outbox = on.outbox().with_hot_path(relay.hot_path());
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    outbox.enqueue_all(&mut tx, (0..100).map(|n| event("k", n)).collect()).await.unwrap();
    tx.commit().await.unwrap();
    soon("delivery", transport.wait_for(100)).await;
    let numbers: Vec<i64> = transport.delivered().iter().map(|e| e.sequence).collect();
    assert!(numbers.is_sorted() && numbers.len() == 100, "{numbers:?}");
    assert!(relay.stop().await.unwrap().hot_dropped >= 90);
    on.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bare_connection_is_refused_outside_a_transaction() {
    let on = Postgres::fixture().await;
    let outbox = on.outbox();
    let mut connection = on.pool.acquire().await.unwrap();
    let refused = outbox.enqueue_on_connection(&mut connection, vec![event("k", 1)]).await;
    assert!(refused.unwrap_err().to_string().contains("no transaction is open"));
    assert!(!Postgres::in_transaction(&mut connection));
    drop(connection);
    let mut tx = on.pool.begin().await.unwrap();
    outbox.enqueue_on_connection(&mut tx, vec![event("k", 1)]).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(on.store.counts(u64::MAX).await.unwrap().new, 0);
    on.clean().await;
}
