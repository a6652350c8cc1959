//! Sequence numbers are taken before commit: what becomes visible late is found, and nobody waits
//! for it.

use std::time::Duration;

use posthaste::{Dialect, Status};
use posthaste_harness::{
    clock,
    fixture::{Fixture, OpenTransaction, event},
    on_databases,
    options::RelayOptions,
    with_pool,
};
use sqlx::Pool;
use uuid::Uuid;

on_databases! {
    postgres, Postgres:
        two_transactions_that_commit_in_reverse_order_are_both_delivered,
        an_open_transaction_holds_nobody_back_and_its_own_events_come_with_its_commit;
    mariadb, MariaDb:
        two_transactions_that_commit_in_reverse_order_are_both_delivered,
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
            let counts = on.store.counts().await.unwrap();
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
