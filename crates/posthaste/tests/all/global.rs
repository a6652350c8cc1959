//! One order for all events, whatever their keys and destinations.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use posthaste::{
    Envelope, Event,
    backoff::Backoff,
    relay::{Config, Destination, OnDead, Relay, Route, Routes},
    store::{RelayOrdering, Selection},
    transport::{Acceptance, Capabilities, Outcome, Transport},
    transports::memory::MemoryTransport,
};

use crate::support::{Fixture, TestDatabase, event, quick, soon, until};

on_every_database!(
    the_total_order_is_kept,
    what_comes_while_the_first_one_waits_goes_after_it,
    what_failed_comes_back_although_there_is_no_room,
    the_hot_path_overtakes_nobody,
    a_batch_of_which_one_fails_is_delivered_in_order,
    the_next_owner_waits_for_what_failed_at_another_destination,
    a_parked_event_holds_all_until_it_is_discarded,
    one_pass_ends_behind_an_event_that_waits,
    one_pass_ends_behind_an_event_that_is_parked,
    what_waits_holds_all_however_many_lanes_another_ordering_left,
);

fn global() -> Config {
    Config { ordering: RelayOrdering::Global, ..quick() }
}

fn number(envelope: &Envelope) -> usize {
    std::str::from_utf8(envelope.event.payload()).unwrap().parse().unwrap()
}

fn order(transport: &MemoryTransport) -> Vec<usize> {
    transport.delivered().iter().map(number).collect()
}

fn up_to(count: usize) -> Vec<usize> {
    (0..count).collect()
}

/// Refuses these the first time.
fn failing_once(which: fn(usize) -> bool) -> MemoryTransport {
    MemoryTransport::scripted(move |envelope| {
        if envelope.attempts == 0 && which(number(envelope)) {
            return Outcome::retry("once");
        }
        Outcome::Delivered
    })
}

/// Every event has a key of its own, so that they are of many shards.
fn events(numbers: std::ops::Range<usize>) -> Vec<Event> {
    numbers.map(|n| event(&n.to_string(), n)).collect()
}

async fn the_total_order_is_kept<DB: TestDatabase>(on: &Fixture<DB>) {
    on.enqueue(events(0..300)).await;
    let transport = failing_once(|number| number % 50 == 3);
    let relay = on.relay(transport.clone(), global());
    relay.start().await.unwrap();
    soon("delivery", transport.wait_for(300)).await;
    assert_eq!(order(&transport), up_to(300));
    relay.stop().await.unwrap();
}

async fn what_comes_while_the_first_one_waits_goes_after_it<DB: TestDatabase>(on: &Fixture<DB>) {
    let transport = failing_once(|number| number == 0);
    let backoff = Backoff::Fixed(Duration::from_millis(700));
    let relay = on.relay(transport.clone(), Config { backoff, ..global() });
    relay.start().await.unwrap();
    on.enqueue(events(0..1)).await;
    until(&relay, "the failure", |stats| stats.retried == 1).await;
    on.enqueue(events(1..10)).await;
    soon("delivery", transport.wait_for(10)).await;
    assert_eq!(order(&transport), up_to(10));
    relay.stop().await.unwrap();
}

/// What waits behind it fills the queue, and more events than one read brings fell due before it.
async fn what_failed_comes_back_although_there_is_no_room<DB: TestDatabase>(on: &Fixture<DB>) {
    let transport = failing_once(|number| number == 0);
    let backoff = Backoff::Fixed(Duration::from_millis(700));
    let config = Config { batch: 10, cold_queue: 20, backoff, ..global() };
    let relay = on.relay(transport.clone(), config);
    relay.start().await.unwrap();
    on.enqueue(events(0..1)).await;
    until(&relay, "the failure", |stats| stats.retried == 1).await;
    let at = jiff::Timestamp::now() + Duration::from_millis(200);
    let delayed = (0..50).map(|n| {
        let event = Event::builder("Later").aggregate("Order", n).raw_json("1000");
        event.deliver_at(at).build().unwrap()
    });
    on.enqueue(delayed.collect()).await;
    on.enqueue(events(1..50)).await;
    soon("delivery", transport.wait_for(100)).await;
    let order: Vec<usize> = order(&transport).into_iter().filter(|n| *n < 1_000).collect();
    assert_eq!(order, up_to(50));
    relay.stop().await.unwrap();
}

/// Its writer tells of an event; another one, of another process, has told nobody.
async fn the_hot_path_overtakes_nobody<DB: TestDatabase>(on: &Fixture<DB>) {
    let transport = MemoryTransport::new();
    let rare = Duration::from_secs(50);
    let config = Config { busy_interval: rare, idle_interval: rare, ..global() };
    let relay = on.relay(transport.clone(), config);
    relay.start().await.unwrap();
    until(&relay, "idle", |stats| stats.idle && stats.shards_owned == stats.shards).await;
    let outbox = on.outbox().with_hot_path(relay.hot_path());
    for n in (0..20).step_by(2) {
        on.enqueue(events(n..n + 1)).await;
        let mut tx = outbox.begin(&on.pool).await.unwrap();
        outbox.enqueue_all(&mut tx, events(n + 1..n + 2)).await.unwrap();
        tx.commit().await.unwrap();
    }
    soon("delivery", transport.wait_for(20)).await;
    assert_eq!(order(&transport), up_to(20));
    relay.stop().await.unwrap();
}

/// Takes a prefix of a batch.
struct Prefix {
    inner: MemoryTransport,
    failed: AtomicBool,
}

#[async_trait]
impl Transport for Prefix {
    fn name(&self) -> &str {
        "prefix"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { acceptance: Acceptance::Prefix, ..self.inner.capabilities() }
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        let fails = batch.iter().position(|one| number(one) == 5);
        let fails = fails.filter(|_| !self.failed.swap(true, Ordering::SeqCst));
        let taken = fails.unwrap_or(batch.len());
        let mut outcomes = self.inner.publish(&batch[..taken]).await;
        outcomes.resize(batch.len(), Outcome::retry("not this time"));
        outcomes
    }
}

async fn a_batch_of_which_one_fails_is_delivered_in_order<DB: TestDatabase>(on: &Fixture<DB>) {
    let inner = MemoryTransport::new();
    let prefix = Prefix { inner: inner.clone(), failed: AtomicBool::new(false) };
    on.enqueue(events(0..20)).await;
    // Jittered, so that what failed together would not come back together.
    let backoff = Backoff::default();
    let relay = on.relay(prefix, Config { backoff, ..global() });
    relay.start().await.unwrap();
    soon("delivery", inner.wait_for(20)).await;
    assert_eq!(order(&inner), up_to(20));
    relay.stop().await.unwrap();
}

/// One of several destinations, which log what they took in one place.
#[derive(Clone)]
struct Logged {
    name: &'static str,
    log: Arc<Mutex<Vec<usize>>>,
    up: bool,
}

#[async_trait]
impl Transport for Logged {
    fn name(&self) -> &str {
        self.name
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        if !self.up {
            let after = Some(Duration::from_millis(700));
            return vec![Outcome::Retry { error: "later".to_owned(), after }; batch.len()];
        }
        self.log.lock().unwrap().extend(batch.iter().map(number));
        vec![Outcome::Delivered; batch.len()]
    }
}

async fn the_next_owner_waits_for_what_failed_at_another_destination<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let log = Arc::new(Mutex::new(Vec::new()));
    let relay = |up: bool| {
        let to =
            |name, up| Destination::new(Arc::new(Logged { name, log: Arc::clone(&log), up }) as _);
        let routes = Routes::new()
            .route(Route::to("right").event_type("Right"))
            .route(Route::to("left").event_type("*"));
        let destinations = vec![to("left", true), to("right", up)];
        Relay::routed(on.store(), destinations, routes, global()).unwrap()
    };
    let right = Event::builder("Right").aggregate("Order", "r").payload(&0).build().unwrap();
    on.enqueue(vec![right]).await;
    let first = relay(false);
    first.start().await.unwrap();
    until(&first, "the failure", |stats| stats.retried >= 1).await;
    first.stop().await.unwrap();
    on.enqueue(events(1..10)).await;
    let second = relay(true);
    second.start().await.unwrap();
    until(&second, "delivery", |stats| stats.delivered == 10).await;
    assert_eq!(*log.lock().unwrap(), up_to(10));
    second.stop().await.unwrap();
}

async fn a_parked_event_holds_all_until_it_is_discarded<DB: TestDatabase>(on: &Fixture<DB>) {
    let transport = MemoryTransport::scripted(|envelope| match number(envelope) {
        0 => Outcome::dead("never"),
        _ => Outcome::Delivered,
    });
    let ids: Vec<_> = on.enqueue(events(0..3)).await.iter().map(|one| one.id).collect();
    let relay = on.relay(transport.clone(), Config { on_dead: OnDead::Park, ..global() });
    relay.start().await.unwrap();
    until(&relay, "its death", |stats| stats.dead == 1).await;
    on.enqueue(events(3..5)).await;
    let polls = relay.stats().polls;
    until(&relay, "a few polls", |stats| stats.polls > polls + 6).await;
    assert!(transport.delivered().is_empty());
    on.store.discard(&Selection::One(ids[0])).await.unwrap();
    soon("the rest", transport.wait_for(4)).await;
    assert_eq!(order(&transport), [1, 2, 3, 4]);
    relay.stop().await.unwrap();
}

/// More than fits into the queue, with one that cannot go now.
async fn passes<DB: TestDatabase>(on: &Fixture<DB>, on_dead: OnDead, outcome: Outcome) {
    on.enqueue(events(0..40)).await;
    let transport = MemoryTransport::scripted(move |envelope| match number(envelope) {
        3 => outcome.clone(),
        _ => Outcome::Delivered,
    });
    for _ in 0..2 {
        let backoff = Backoff::Fixed(Duration::from_hours(1));
        let config = Config { on_dead, batch: 5, cold_queue: 10, backoff, ..global() };
        let relay = on.relay(transport.clone(), config);
        soon("the pass", relay.relay_once()).await.unwrap();
        assert_eq!(order(&transport), up_to(3));
    }
}

async fn one_pass_ends_behind_an_event_that_waits<DB: TestDatabase>(on: &Fixture<DB>) {
    passes(on, OnDead::Skip, Outcome::retry("later")).await;
}

async fn one_pass_ends_behind_an_event_that_is_parked<DB: TestDatabase>(on: &Fixture<DB>) {
    passes(on, OnDead::Park, Outcome::dead("never")).await;
}

async fn what_waits_holds_all_however_many_lanes_another_ordering_left<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    // Held lanes that come before the one of all in the table.
    on.enqueue(events(1_000..2_200)).await;
    let for_ever = match DB::NAME {
        "SQLite" => "9223372036854775807",
        "MySQL" => "'9999-12-31 00:00:00'",
        _ => "'infinity'",
    };
    on.sql(&format!(
        "update {{events}} set wait = 'held', lane = -sequence, destination = 'memory',
            not_before = {for_ever}"
    ))
    .await;
    on.enqueue(events(0..10)).await;
    let transport = failing_once(|number| number == 0);
    let backoff = Backoff::Fixed(Duration::from_secs(2));
    let relay = on.relay(transport.clone(), Config { backoff, ..global() });
    relay.start().await.unwrap();
    // It is asked many times meanwhile whether the first one still waits.
    soon("delivery", transport.wait_for(10)).await;
    assert_eq!(order(&transport), up_to(10));
    relay.stop().await.unwrap();
}
