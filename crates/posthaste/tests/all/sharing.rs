//! Relays that share an outbox: shares, hand-overs, stand-bys, and relays that do not agree.

use std::time::Duration;

use crate::support::{Fixture, TestDatabase, event, quick, soon, until};
use posthaste::{
    relay::{Config, Relay},
    store::RelayOrdering,
    transport::Outcome,
    transports::memory::MemoryTransport,
};

on_every_database!(
    two_relays_end_with_equal_shares_and_a_graceful_stop_leaves_all_to_the_other,
    a_hand_over_keeps_order_and_repeats_nothing,
    under_global_the_stand_by_takes_over,
    relays_of_different_ordering_do_not_work_on_one_outbox,
    a_relay_that_was_dropped_is_followed_when_its_leases_expire,
);

fn named(name: &str, ordering: RelayOrdering) -> Config {
    Config { name: name.to_owned(), ordering, ..quick() }
}

async fn started<DB: TestDatabase>(
    on: &Fixture<DB>,
    transport: &MemoryTransport,
    config: Config,
) -> Relay {
    let relay = on.relay(transport.clone(), config);
    relay.start().await.unwrap();
    relay
}

async fn two_relays_end_with_equal_shares_and_a_graceful_stop_leaves_all_to_the_other<
    DB: TestDatabase,
>(
    on: &Fixture<DB>,
) {
    let transport = MemoryTransport::new();
    // Leases that nobody could wait for: what changes hands was handed over.
    let long = |name| Config {
        lease: Duration::from_mins(10),
        heartbeat: Duration::from_secs(200),
        ..named(name, RelayOrdering::PerKey)
    };
    let a = started(on, &transport, long("a")).await;
    let b = started(on, &transport, long("b")).await;
    let total = until(&a, "shards", |stats| stats.shards > 0).await.shards;
    let fair = |owned: u16| owned == total / 2 || owned == total.div_ceil(2);
    until(&a, "a fair share for a", |stats| fair(stats.shards_owned)).await;
    until(&b, "a fair share for b", |stats| fair(stats.shards_owned)).await;
    let owners = on.store.shards().await.unwrap();
    assert!(owners.iter().all(|shard| shard.locked_by.is_some()) || total == 1);
    a.stop().await.unwrap();
    until(&b, "all for b", |stats| stats.shards_owned == total).await;
    b.stop().await.unwrap();
}

async fn a_hand_over_keeps_order_and_repeats_nothing<DB: TestDatabase>(on: &Fixture<DB>) {
    let transport = MemoryTransport::scripted(|_| Outcome::Delivered);
    let mut relay = started(on, &transport, named("r0", RelayOrdering::PerKey)).await;
    for round in 0..6 {
        for n in 0..20 {
            on.enqueue((0..8).map(|key| event(&key.to_string(), round * 20 + n)).collect()).await;
        }
        let name = format!("r{}", round + 1);
        let next = started(on, &transport, named(&name, RelayOrdering::PerKey)).await;
        if round % 2 == 0 {
            until(&next, "a share", |stats| stats.shards_owned > 0 || stats.shards == 1).await;
        }
        relay.stop().await.unwrap();
        relay = next;
    }
    soon("delivery", transport.wait_for(6 * 20 * 8)).await;
    until(&relay, "idle", |stats| stats.idle).await;
    relay.stop().await.unwrap();
    let delivered = transport.delivered();
    assert_eq!(delivered.len(), 6 * 20 * 8, "nothing came twice");
    for key in 0..8 {
        let key = key.to_string();
        let numbers: Vec<usize> = delivered
            .iter()
            .filter(|envelope| envelope.event.aggregate_id() == Some(&key))
            .map(|envelope| std::str::from_utf8(envelope.event.payload()).unwrap().parse().unwrap())
            .collect();
        assert_eq!(numbers, (0..120).collect::<Vec<_>>(), "key {key}");
    }
}

async fn under_global_the_stand_by_takes_over<DB: TestDatabase>(on: &Fixture<DB>) {
    let transport = MemoryTransport::new();
    let first = started(on, &transport, named("first", RelayOrdering::Global)).await;
    until(&first, "all shards", |s| s.shards > 0 && s.shards_owned == s.shards).await;
    let second = started(on, &transport, named("second", RelayOrdering::Global)).await;
    on.enqueue((0..10).map(|n| event(&n.to_string(), n)).collect()).await;
    until(&first, "delivery", |stats| stats.delivered == 10).await;
    assert_eq!(second.stats().shards_owned, 0);
    first.stop().await.unwrap();
    until(&second, "all shards", |s| s.shards_owned == s.shards).await;
    on.enqueue((10..20).map(|n| event(&n.to_string(), n)).collect()).await;
    soon("delivery", transport.wait_for(20)).await;
    assert_eq!(transport.delivered().len(), 20);
    second.stop().await.unwrap();
}

async fn relays_of_different_ordering_do_not_work_on_one_outbox<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let transport = MemoryTransport::new();
    let ordered = started(on, &transport, named("ordered", RelayOrdering::PerKey)).await;
    until(&ordered, "its shards", |stats| stats.shards_owned > 0).await;
    let other = on.relay(transport.clone(), named("other", RelayOrdering::None));
    let error = soon("the refusal", other.relay_once()).await.unwrap_err().to_string();
    assert!(error.contains("relay ordered/") && error.contains("stop that one first"), "{error}");
    assert!(ordered.is_running());
    ordered.stop().await.unwrap();
}

async fn a_relay_that_was_dropped_is_followed_when_its_leases_expire<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let transport = MemoryTransport::new();
    let short = |name| Config {
        lease: Duration::from_millis(900),
        heartbeat: Duration::from_millis(300),
        ..named(name, RelayOrdering::PerKey)
    };
    let gone = started(on, &transport, short("gone")).await;
    until(&gone, "its shards", |stats| stats.shards > 0 && stats.shards_owned == stats.shards)
        .await;
    drop(gone);
    on.enqueue((0..40).map(|n| event(&(n % 5).to_string(), n)).collect()).await;
    let next = started(on, &transport, short("next")).await;
    soon("delivery", transport.wait_for(40)).await;
    let stats = until(&next, "idle", |stats| stats.idle).await;
    assert_eq!(stats.shards_owned, stats.shards);
    assert_eq!(transport.delivered().len(), 40);
    // The takeover was unclean: what the dead relay may have had was recorded first.
    assert_eq!(stats.suspects, 40);
    next.stop().await.unwrap();
}
