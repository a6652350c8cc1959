//! A relay that was away longer than its lease writes nothing when it comes back.

use std::{collections::HashSet, time::Duration};

use posthaste::{
    Status,
    store::{EventRecord, Wait},
};
use posthaste_harness::{
    clock,
    fixture::{Fixture, event},
    journal::{Fact, Step},
    on_databases,
    options::RelayOptions,
    process::Process,
};
use uuid::Uuid;

on_databases! {
    postgres, Postgres:
        a_relay_paused_beyond_its_lease_settles_nothing_and_counts_it,
        what_a_paused_relay_had_is_delivered_by_another_in_order,
        a_relay_paused_inside_a_transaction_does_not_keep_its_shards,
        a_relay_whose_own_clock_stands_still_is_refused_by_the_database;
    mariadb, MariaDb:
        a_relay_paused_beyond_its_lease_settles_nothing_and_counts_it,
        what_a_paused_relay_had_is_delivered_by_another_in_order,
        a_relay_paused_inside_a_transaction_does_not_keep_its_shards,
        a_relay_whose_own_clock_stands_still_is_refused_by_the_database;
    sqlite, Sqlite:
        a_relay_paused_beyond_its_lease_settles_nothing_and_counts_it,
        what_a_paused_relay_had_is_delivered_by_another_in_order,
        a_relay_whose_own_clock_stands_still_is_refused_by_the_database;
}

const KEYS: usize = 40;

/// Ten events for each of forty keys.
async fn fill(on: &Fixture) {
    for _ in 0..10 {
        on.enqueue((0..KEYS).map(|key| event("Changed", &format!("k{key}"))).collect()).await;
    }
}

/// Whose hand-overs take a while, so that it has work in hand whenever it is paused.
fn slow(on: &Fixture) -> RelayOptions {
    RelayOptions { lease: 1_500, heartbeat: 300, delay: 250, ..on.relay_options("slow") }
}

/// Takes over, and is refused: what it was handed waits for a retry that does not come in this test, so
/// that a settle by somebody else would show.
fn failing(on: &Fixture) -> RelayOptions {
    RelayOptions { refuse: Some(600_000), delay: 0, ..slow(on) }
}

/// What a settle could change.
type State = (i64, Status, u32, bool, bool, Option<String>);

async fn states(on: &Fixture) -> Vec<State> {
    let state = |event: EventRecord| {
        let waits = event.not_before.is_some() || event.wait.is_some();
        let sent = event.sent_at.is_some();
        (event.sequence, event.status, event.attempts, waits, sent, event.last_error)
    };
    on.events().await.into_iter().map(state).collect()
}

/// Waits until every event that was not sent has failed with the heir or waits behind one that has.
async fn until_failed(on: &Fixture) {
    on.until("all that is left to have failed", async || {
        on.events().await.iter().all(|event| {
            event.status == Status::Sent
                || (event.status == Status::Retry && event.wait == Some(Wait::Retry))
                || event.wait == Some(Wait::Held)
        })
    })
    .await;
}

/// The events that this relay was handed and has not answered.
fn in_hand(facts: &[Fact], relay: &str) -> HashSet<Uuid> {
    let mut in_hand = HashSet::new();
    for fact in facts.iter().filter(|fact| fact.relay == relay) {
        match fact.step {
            Step::Handed => in_hand.insert(fact.id),
            Step::Delivered | Step::Failed | Step::Aborting => in_hand.remove(&fact.id),
        };
    }
    in_hand
}

/// Starts the slow relay and stops it with SIGSTOP once it has settled some and has some in hand.
async fn paused(on: &Fixture) -> (Process, HashSet<Uuid>) {
    fill(on).await;
    let options = slow(on);
    let mut relay = on.relay(&options);
    relay
        .until("work in hand", |report| {
            report.delivered >= 16 && report.in_flight == options.concurrency as u64
        })
        .await;
    loop {
        relay.pause();
        let in_hand = in_hand(&on.judge().facts, "slow");
        // It is to stand still between two transactions. Inside one it has locks: on SQLite on the
        // whole file, elsewhere on its leases, and a takeover waits until the server loses patience.
        if !in_hand.is_empty() && on.is_free().await {
            return (relay, in_hand);
        }
        relay.resume();
        relay.until("work in hand", |report| report.in_flight > 0).await;
    }
}

async fn a_relay_paused_beyond_its_lease_settles_nothing_and_counts_it(on: &Fixture) {
    let (mut slow, in_hand) = paused(on).await;
    let heir = on.relay(&RelayOptions { name: "heir".to_owned(), ..failing(on) });
    on.until_holds("heir", on.shard_count().await).await;
    until_failed(on).await;
    let before = states(on).await;

    let resumed_at = clock::now();
    slow.resume();
    let report = slow
        .until("its late outcomes", |report| report.stale_settles >= in_hand.len() as u64)
        .await;
    println!(
        "{} in hand when it was paused, {} stale settles",
        in_hand.len(),
        report.stale_settles
    );
    // What it had delivered and not written before counts among those, too.
    on.until("all its late answers", async || {
        let facts = on.judge().facts;
        let late = |id: &Uuid| {
            facts.iter().any(|f| f.id == *id && f.relay == "slow" && f.step == Step::Delivered)
        };
        in_hand.iter().all(late)
    })
    .await;
    // It is back in the circle: whatever it wanted to write has been written or refused by now.
    let resumed = on.database_time().await;
    on.until("another heartbeat of it", async || {
        let relays = on.store.relays().await.unwrap();
        relays.iter().any(|relay| relay.name == "slow" && relay.heartbeat_at > resumed)
    })
    .await;
    assert_eq!(states(on).await, before, "it settled what was no longer its own");
    slow.stop().await;
    heir.stop().await;
    let handed = |fact: &Fact| fact.relay == "slow" && fact.step == Step::Handed;
    assert!(
        !on.judge().facts.iter().any(|fact| handed(fact) && fact.at > resumed_at),
        "it handed over what was no longer its own"
    );
}

async fn what_a_paused_relay_had_is_delivered_by_another_in_order(on: &Fixture) {
    let (mut slow, in_hand) = paused(on).await;
    let paused_at = clock::now();
    let sent = on.store.count_sent().await.unwrap();
    let unsettled = on.judge().delivered() - sent as usize;
    let heir =
        on.relay(&RelayOptions { name: "heir".to_owned(), delay: 0, fail: 0.2, ..self::slow(on) });
    on.until_drained().await;
    let resumed_at = clock::now();
    slow.resume();
    slow.until("its late outcomes", |report| report.stale_settles >= in_hand.len() as u64).await;
    on.enqueue((0..KEYS).map(|key| event("Changed", &format!("k{key}"))).collect()).await;
    on.until_drained().await;
    slow.stop().await;
    heir.stop().await;

    let mut judgement = on.judge();
    judgement.paused("slow", paused_at, resumed_at, self::slow(on).most_in_hand());
    let verdict = judgement.verdict();
    verdict.assert_clean();
    let most = in_hand.len() + unsettled;
    let twice = verdict.report.excused;
    println!("{} in hand, {unsettled} not settled, {twice} came twice", in_hand.len());
    assert!((in_hand.len()..=most).contains(&twice), "what was in hand came twice, and no more");
    assert_eq!(on.store.count_sent().await.unwrap(), 11 * KEYS as u64);
}

/// Inside a settle it has locked its leases, and a takeover passes over locked ones: the server must
/// end a transaction whose client does nothing.
async fn a_relay_paused_inside_a_transaction_does_not_keep_its_shards(on: &Fixture) {
    fill(on).await;
    // Failures, because they take more than one statement to settle.
    let options = RelayOptions { fail: 0.5, max_attempts: 1_000, backoff: 1, delay: 1, ..slow(on) };
    let mut slow = on.relay(&options);
    slow.until("work in hand", |report| report.in_flight > 0).await;
    let mut tries = 0;
    loop {
        slow.pause();
        if !on.is_free().await {
            // A single statement that was under way ends without its client; one that takes longer makes
            // the takeover below easier, not harder.
            tokio::time::sleep(Duration::from_millis(200)).await;
            if !on.is_free().await {
                break;
            }
        }
        slow.resume();
        tries += 1;
        if tries % 20 == 0 {
            fill(on).await;
        }
        assert!(tries < 1_000, "it is never inside a transaction");
        tokio::time::sleep(Duration::from_micros(fastrand::u64(500..5_000))).await;
    }
    let paused_at = clock::now();
    let heir = on.relay(&RelayOptions { name: "heir".to_owned(), fail: 0.2, ..options.clone() });
    on.until_holds("heir", on.shard_count().await).await;
    let took = clock::since(paused_at);
    println!("paused inside a transaction at try {}, all taken {took:?} later", tries + 1);
    assert!(took < Duration::from_secs(10), "it took {took:?}");
    on.until_drained().await;
    let resumed_at = clock::now();
    slow.resume();
    slow.stop().await;
    heir.stop().await;
    let mut judgement = on.judge();
    judgement.paused("slow", paused_at, resumed_at, options.most_in_hand());
    judgement.verdict().assert_clean();
}

/// Its clock tells it that its lease is still good: it hands over, it gets answers, and it asks for
/// them to be written. Only the fence in the database is left.
async fn a_relay_whose_own_clock_stands_still_is_refused_by_the_database(on: &Fixture) {
    fill(on).await;
    let options = RelayOptions {
        name: "frozen".to_owned(),
        frozen_clock: true,
        lease: 1_000,
        // Longer than the lease and than the heir needs to fail with everything.
        delay: 4_000,
        ..slow(on)
    };
    let frozen = on.relay(&options);
    frozen.until("work in hand", |report| report.in_flight == 16).await;
    let heir = on.relay(&RelayOptions { name: "heir".to_owned(), ..failing(on) });
    on.until_holds("heir", on.shard_count().await).await;
    until_failed(on).await;
    let before = states(on).await;
    assert_eq!(frozen.report().delivered, 0, "the heir was too slow for this test");

    let report = frozen.until("a refusal", |report| report.stale_settles >= 16).await;
    println!("{} stale settles", report.stale_settles);
    // The first refusal takes the shard away; outcomes that come later are not even asked for.
    assert!(report.delivered > 0, "the database refused, not the relay's own clock");
    assert_eq!(states(on).await, before, "it settled what was no longer its own");
    heir.stop().await;
    // Its clock would never let its drain end.
    drop(frozen);
}
