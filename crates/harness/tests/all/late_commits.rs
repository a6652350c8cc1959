//! Sequence numbers are taken before commit: what becomes visible late is found, and nobody waits
//! for it.

use std::{sync::Arc, time::Duration};

use posthaste::{
    Dialect, Status,
    relay::{Config, Housekeeping, Relay},
    transports::memory::MemoryTransport,
};
use posthaste_harness::{
    clock,
    fixture::{Fixture, OpenTransaction, event, seed},
    on_databases,
    options::RelayOptions,
    process::LIMIT,
    with_pool,
};
use sqlx::Pool;
use uuid::Uuid;

on_databases! {
    postgres, Postgres:
        two_transactions_that_commit_in_reverse_order_are_both_delivered,
        a_commit_behind_the_cursor_is_handed_over_before_what_was_enqueued_after_it,
        a_commit_behind_the_cursor_at_the_moment_of_a_stop_is_found_by_the_next_relay,
        an_open_transaction_holds_nobody_back_and_its_own_events_come_with_its_commit;
    mariadb, MariaDb:
        two_transactions_that_commit_in_reverse_order_are_both_delivered,
        a_commit_behind_the_cursor_is_handed_over_before_what_was_enqueued_after_it,
        a_commit_behind_the_cursor_at_the_moment_of_a_stop_is_found_by_the_next_relay,
        an_open_transaction_holds_nobody_back_and_its_own_events_come_with_its_commit;
}

/// A late commit is found within one poll, which comes once in the idle interval at the latest; the
/// rest is for a busy machine.
const SOON: Duration = Duration::from_millis(1_200);

async fn until_sent(on: &Fixture, id: Uuid) -> Duration {
    let begun = clock::now();
    on.until("an event to be sent", async || on.event(id).await.status == Status::Sent).await;
    clock::since(begun)
}

async fn two_transactions_that_commit_in_reverse_order_are_both_delivered(on: &Fixture) {
    with_pool!(&on.connections, pool => reverse_order(on, pool).await);
}

async fn reverse_order<DB: Dialect>(on: &Fixture, pool: &Pool<DB>) {
    let relay = on.relay(&on.relay_options("relay"));
    on.until_holds("relay", on.shard_count().await).await;
    // The same key, and two keys.
    for (one, two) in [("same", "same"), ("one", "two")] {
        let early = OpenTransaction::begin(on, pool, vec![event("Changed", one)]).await;
        let late = OpenTransaction::begin(on, pool, vec![event("Changed", two)]).await;
        let (lower, higher) = (early.enqueued[0], late.enqueued[0]);
        assert!(lower.sequence < higher.sequence);
        late.commit().await;
        until_sent(on, higher.id).await;
        // The cursor stands behind both when the lower one becomes visible.
        relay.until("the relay to be idle", |report| report.idle).await;
        early.commit().await;
        let took = until_sent(on, lower.id).await;
        println!("found {took:?} after its commit");
        assert!(took < SOON, "it took {took:?}");
    }
    relay.stop().await;
    on.judge().verdict().assert_clean();
}

async fn a_commit_behind_the_cursor_is_handed_over_before_what_was_enqueued_after_it(on: &Fixture) {
    with_pool!(&on.connections, pool => behind_the_cursor(on, pool).await);
}

/// Nothing but a wake-up makes this relay read, and a wake-up makes it read ahead.
async fn behind_the_cursor<DB: Dialect>(on: &Fixture, pool: &Pool<DB>) {
    let transport = MemoryTransport::new();
    let never = Duration::from_mins(10);
    let config = Config {
        busy_interval: never,
        idle_interval: never,
        housekeeping: Housekeeping { purge_interval: None, ..Housekeeping::default() },
        ..Config::default()
    };
    let store = DB::store(pool.clone(), on.tables.clone());
    let relay = Relay::new(store, Arc::new(transport.clone()), config).unwrap();
    relay.start().await.unwrap();
    let until_idle = async || {
        let mut stats = relay.watch();
        let idle = stats.wait_for(|stats| stats.idle && stats.shards_owned == stats.shards);
        tokio::time::timeout(LIMIT, idle).await.unwrap().unwrap();
    };
    until_idle().await;

    let early = OpenTransaction::begin(on, pool, vec![event("Early", "key")]).await;
    on.enqueue(vec![event("Passing", "another key")]).await;
    relay.wake();
    tokio::time::timeout(LIMIT, transport.wait_for(1)).await.unwrap();
    until_idle().await;
    // The cursor has passed it. Now it is committed, and only then its follower is enqueued.
    early.commit().await;
    on.enqueue(vec![event("Follower", "key")]).await;
    relay.wake();
    tokio::time::timeout(LIMIT, transport.wait_for(2)).await.unwrap();
    let order: Vec<_> =
        transport.delivered().iter().map(|e| e.event.event_type().to_owned()).collect();
    assert_eq!(order[..2], ["Passing", "Early"]);
    tokio::time::timeout(LIMIT, transport.wait_for(3)).await.unwrap();
    relay.stop().await.unwrap();
}

async fn a_commit_behind_the_cursor_at_the_moment_of_a_stop_is_found_by_the_next_relay(
    on: &Fixture,
) {
    with_pool!(&on.connections, pool => at_the_moment_of_a_stop(on, pool).await);
}

/// A read that is under way when the stop begins can see the commit, and what it found is not
/// delivered any more. The next relay must not take it for found.
async fn at_the_moment_of_a_stop<DB: Dialect>(on: &Fixture, pool: &Pool<DB>) {
    let transport = MemoryTransport::new();
    let often = Duration::from_millis(1);
    let mut random = fastrand::Rng::with_seed(seed());
    let mut expected = 0;
    for round in 0..40 {
        let config = Config {
            busy_interval: often,
            idle_interval: often,
            housekeeping: Housekeeping { purge_interval: None, ..Housekeeping::default() },
            ..Config::default()
        };
        let store = DB::store(pool.clone(), on.tables.clone());
        let relay = Relay::new(store, Arc::new(transport.clone()), config).unwrap();
        relay.start().await.unwrap();
        let delivered = async |count: usize| {
            let waited = tokio::time::timeout(SOON * 5, transport.wait_for(count)).await;
            assert!(waited.is_ok(), "lost in round {round}: {}", transport.delivered().len());
        };
        // What the stop of the round before left behind.
        delivered(expected).await;
        let events = (0..20).map(|n| event("Late", &format!("k{n}"))).collect();
        let open = OpenTransaction::begin(on, pool, events).await;
        on.enqueue(vec![event("Passing", "another key")]).await;
        delivered(expected + 1).await;
        let pause = Duration::from_micros(random.u64(..3_000));
        let stop = async {
            tokio::time::sleep(pause).await;
            relay.stop().await.unwrap();
        };
        tokio::join!(open.commit(), stop);
        expected += 21;
    }
    let store = DB::store(pool.clone(), on.tables.clone());
    let last = Relay::new(store, Arc::new(transport.clone()), Config::default()).unwrap();
    last.relay_once().await.unwrap();
    assert_eq!(transport.delivered().len(), expected, "lost with the last stop");
}

async fn an_open_transaction_holds_nobody_back_and_its_own_events_come_with_its_commit(
    on: &Fixture,
) {
    with_pool!(&on.connections, pool => open_all_the_time(on, pool).await);
}

async fn open_all_the_time<DB: Dialect>(on: &Fixture, pool: &Pool<DB>) {
    let relay = |name: &str| on.relay(&RelayOptions { lease: 1_000, ..on.relay_options(name) });
    let mut killed = relay("killed");
    on.until_holds("killed", on.shard_count().await).await;
    let events = (0..20).map(|n| event("Changed", &format!("k{n}"))).collect();
    let open = OpenTransaction::begin(on, pool, events).await;
    let ids: Vec<Uuid> = open.enqueued.iter().map(|enqueued| enqueued.id).collect();

    // Everybody else's events, across a kill and a hand-over.
    let others = async || {
        for _ in 0..20 {
            on.enqueue((0..20).map(|n| event("Changed", &format!("k{n}"))).collect()).await;
        }
        on.until("everybody else's events", async || {
            let counts = on.store.counts(u64::MAX).await.unwrap();
            counts.new + counts.retry == 0
        })
        .await;
    };
    others().await;
    let killed_at = killed.kill();
    let stopped = relay("stopped");
    others().await;
    stopped.stop().await;
    let last = relay("last");
    others().await;
    assert!(
        on.judge().facts.iter().all(|fact| !ids.contains(&fact.id)),
        "delivered before its commit"
    );

    last.until("the relay to be idle", |report| report.idle).await;
    open.commit().await;
    for id in ids {
        let took = until_sent(on, id).await;
        assert!(took < SOON, "it took {took:?}");
    }
    last.stop().await;
    let mut judgement = on.judge();
    judgement.killed("killed", killed_at, on.relay_options("").most_in_hand());
    judgement.verdict().assert_clean();
}
