//! Relays share the shards, and what one leaves another takes: soon after a kill, at once after a
//! stop.

use std::time::Duration;

use jiff::Timestamp;
use posthaste::store::RelayOrdering;
use posthaste_harness::{
    clock,
    fixture::{Fixture, event},
    on_databases,
    options::RelayOptions,
    process::Process,
};

on_databases! {
    postgres, Postgres:
        two_relays_started_together_end_with_equal_shares,
        what_a_killed_relay_held_is_taken_within_a_lease_and_a_heartbeat,
        what_a_stopped_relay_held_is_taken_at_once,
        under_global_the_stand_by_takes_over_from_a_killed_and_from_a_stopped_relay;
    mariadb, MariaDb:
        two_relays_started_together_end_with_equal_shares,
        what_a_killed_relay_held_is_taken_within_a_lease_and_a_heartbeat,
        what_a_stopped_relay_held_is_taken_at_once,
        under_global_the_stand_by_takes_over_from_a_killed_and_from_a_stopped_relay;
    sqlite, Sqlite:
        what_a_killed_relay_held_is_taken_within_a_lease_and_a_heartbeat,
        what_a_stopped_relay_held_is_taken_at_once,
        under_global_the_stand_by_takes_over_from_a_killed_and_from_a_stopped_relay;
}

/// How much longer than promised a takeover may take on a machine that is busy with other tests.
const MARGIN: Duration = Duration::from_millis(700);

/// Two relays that were started together, each with its share. On SQLite there is one shard: then
/// the first holds it.
async fn two_relays(on: &Fixture, options: &RelayOptions) -> (Process, Process) {
    let begun = clock::now();
    let start = |name: &str| on.relay(&RelayOptions { name: name.to_owned(), ..options.clone() });
    let (a, b) = (start("a"), start("b"));
    let total = on.shard_count().await;
    on.until_holds("a", total.div_ceil(2)).await;
    on.until_holds("b", total / 2).await;
    println!("shares are equal {:?} after the start", clock::since(begun));
    (a, b)
}

async fn two_relays_started_together_end_with_equal_shares(on: &Fixture) {
    let (a, b) = two_relays(on, &on.relay_options("")).await;
    let epochs = |shards: &[posthaste::store::ShardRecord]| -> Vec<_> {
        shards.iter().map(|shard| (shard.shard, shard.epoch)).collect()
    };
    let held = (epochs(&on.shards_of("a").await), epochs(&on.shards_of("b").await));
    assert_eq!((held.0.len(), held.1.len()), (32, 32));
    // They have ended so: three heartbeats later nothing has changed hands.
    let later = on.database_time().await + Duration::from_millis(1_500);
    on.until("three heartbeats of both", async || {
        let relays = on.store.relays().await.unwrap();
        relays.len() == 2 && relays.iter().all(|relay| relay.heartbeat_at > later)
    })
    .await;
    assert_eq!((epochs(&on.shards_of("a").await), epochs(&on.shards_of("b").await)), held);
    a.stop().await;
    b.stop().await;
}

/// Kills the relay and gives its last sign of life and the end of its leases, by the database's
/// clock.
async fn kill(on: &Fixture, relay: &mut Process, lease: Duration) -> (Timestamp, Timestamp) {
    relay.kill();
    let shards = on.shards_of(&relay.name).await;
    let leases = shards.iter().filter_map(|shard| shard.locked_until);
    let (first, last) = (leases.clone().min().unwrap(), leases.max().unwrap());
    let relays = on.store.relays().await.unwrap();
    let heartbeat = relays.iter().find(|one| one.name == relay.name).unwrap().heartbeat_at;
    (heartbeat.max(last - lease), first)
}

/// Checks that a takeover came neither before the leases ended nor later than promised.
async fn taken(on: &Fixture, by: &str, options: &RelayOptions, since: (Timestamp, Timestamp)) {
    let total = on.shard_count().await;
    let (last_sign, leases_end) = since;
    on.until(&format!("{by} to hold everything"), async || on.shards_of(by).await.len() == total)
        .await;
    let now = on.database_time().await;
    let took = Duration::try_from(now.duration_since(last_sign)).unwrap();
    println!(
        "taken {took:?} after the last sign of life (lease {:?}, heartbeat {:?})",
        options.lease(),
        options.heartbeat()
    );
    assert!(now >= leases_end, "a lease was taken before it ended");
    assert!(took <= options.lease() + options.heartbeat() + MARGIN, "it took {took:?}");
}

async fn what_a_killed_relay_held_is_taken_within_a_lease_and_a_heartbeat(on: &Fixture) {
    let options = on.relay_options("");
    let (mut a, b) = two_relays(on, &options).await;
    let since = kill(on, &mut a, options.lease()).await;
    taken(on, "b", &options, since).await;
    b.stop().await;
}

async fn what_a_stopped_relay_held_is_taken_at_once(on: &Fixture) {
    let options = RelayOptions { lease: 30_000, heartbeat: 10_000, ..on.relay_options("") };
    let (a, b) = two_relays(on, &options).await;
    a.stop().await;
    let begun = clock::now();
    on.until_holds("b", on.shard_count().await).await;
    let took = clock::since(begun);
    println!("taken {took:?} after the stop (lease {:?})", options.lease());
    assert!(took < Duration::from_secs(1), "it took {took:?}");
    b.stop().await;
}

async fn under_global_the_stand_by_takes_over_from_a_killed_and_from_a_stopped_relay(on: &Fixture) {
    let options = RelayOptions { ordering: RelayOrdering::Global, ..on.relay_options("a") };
    let named = |name: &str| RelayOptions { name: name.to_owned(), ..options.clone() };
    let total = on.shard_count().await;
    let mut a = on.relay(&options);
    on.until_holds("a", total).await;
    let b = on.relay(&named("b"));
    on.until("the stand-by to report", async || on.store.relays().await.unwrap().len() == 2).await;
    on.enqueue((0..50).map(|n| event("First", &n.to_string())).collect()).await;
    on.until_drained().await;
    assert_eq!(b.report().delivered, 0, "the stand-by stands by");

    let since = kill(on, &mut a, options.lease()).await;
    on.enqueue((0..50).map(|n| event("Second", &n.to_string())).collect()).await;
    taken(on, "b", &options, since).await;
    on.until_drained().await;

    let c = on.relay(&named("c"));
    on.until("the stand-by to report", async || {
        on.store.relays().await.unwrap().iter().any(|relay| relay.name == "c")
    })
    .await;
    b.stop().await;
    let begun = clock::now();
    on.enqueue((0..50).map(|n| event("Third", &n.to_string())).collect()).await;
    on.until_holds("c", total).await;
    let took = clock::since(begun);
    println!("taken {took:?} after the stop (lease {:?})", options.lease());
    assert!(took < options.lease() / 2, "it took {took:?}");
    on.until_drained().await;
    c.stop().await;

    let mut judgement = on.judge();
    judgement.one_order();
    judgement.verdict().assert_clean();
}
