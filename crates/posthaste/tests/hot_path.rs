//! What the hot path costs: one read by key, and no poll.

mod support;

use std::time::Duration;

use posthaste::{
    relay::{Config, Stats},
    transports::memory::MemoryTransport,
};
use posthaste_testkit::statements::Statements;
use sqlx::{MySql, Postgres};
use support::{Fixture, TestDatabase, event, quick, soon, until};

// Not on SQLite: its file tells the relay of every commit by itself, and a poll may come first.
#[tokio::test(flavor = "multi_thread")]
async fn on_postgres_an_event_is_dispatched_after_one_read_by_its_key() {
    one_read_by_key(Postgres::fixture().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_mariadb_an_event_is_dispatched_after_one_read_by_its_key() {
    one_read_by_key(MySql::fixture().await).await;
}

/// The relay has nothing else to do for the next minutes: whatever it reads is for this event.
async fn one_read_by_key<DB: TestDatabase>(on: Fixture<DB>) {
    let rare = Duration::from_mins(5);
    let config = Config {
        lease: 4 * rare,
        heartbeat: rare,
        busy_interval: rare,
        idle_interval: rare,
        ..quick()
    };
    let transport = MemoryTransport::new();
    let relay = on.relay(transport.clone(), config);
    relay.start().await.unwrap();
    until(&relay, "idle", |stats| stats.idle && stats.shards_owned == stats.shards).await;
    let outbox = on.outbox().with_hot_path(relay.hot_path());

    // One poll may still come from the start: the listener wakes the relay once when it is up.
    for n in 1..=3 {
        let before = relay.stats();
        let statements = Statements::on(&on.table());
        let mut tx = outbox.begin(&on.pool).await.unwrap();
        outbox.enqueue(&mut tx, event("k", n)).await.unwrap();
        tx.commit().await.unwrap();
        soon("delivery", transport.wait_for(n)).await;
        let done = |stats: &Stats| stats.delivered == n as u64 && stats.idle;
        let stats = until(&relay, "settled", done).await;
        let sent = statements.until("sent_at = ").await;
        if stats.polls > before.polls && n < 3 {
            continue;
        }
        // Every read of events, of the hot path and of polls, brings their payload.
        let reads: Vec<_> = sent
            .iter()
            .filter(|sql| sql.contains("payload") && !sql.contains("insert into"))
            .collect();
        assert_eq!((reads.len(), stats.polls), (1, before.polls), "{reads:#?}");
        assert_eq!(stats.hot_enqueued, before.hot_enqueued + 1);
        break;
    }
    relay.stop().await.unwrap();
    on.clean().await;
}
