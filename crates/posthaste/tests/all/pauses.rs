//! Pauses: stored with the outbox, obeyed by every relay, surviving restarts and takeovers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::support::{Fixture, TestDatabase, event, quick, soon, until};
use async_trait::async_trait;
use posthaste::{
    Envelope, Event, Key, Status,
    key::derived_key,
    relay::{Config, Destination, Relay, Route, Routes},
    store::{Pausable, RelayOrdering, Wait},
    transport::{Outcome, Transport},
    transports::memory::MemoryTransport,
};
use posthaste_testkit::wait::asked;
use tokio::sync::Semaphore;

macro_rules! on_two_databases {
    ($($name:ident),* $(,)?) => {
        on_every_database!(@ sqlite, sqlx::Sqlite, $($name),*);
        on_every_database!(@ postgres, sqlx::Postgres, $($name),*);
    };
}

on_two_databases!(
    a_paused_outbox_keeps_everything_through_a_restart_and_goes_on_in_order,
    a_pause_that_nobody_announces_is_obeyed_within_two_seconds,
    what_is_in_flight_ends_and_is_settled_under_a_pause,
    a_paused_relay_leaves_its_work_to_the_others,
    a_relay_that_is_switched_off_delivers_nothing_and_is_in_nobodys_way,
    a_paused_destination_waits_and_burns_nothing_while_the_other_goes_on,
    a_paused_key_waits_on_both_paths_through_a_crash_and_a_takeover,
    what_failed_before_its_key_was_paused_comes_first_when_it_goes_on,
    a_paused_key_waits_where_rows_are_claimed,
    under_global_everything_waits_behind_a_paused_key,
    a_pass_by_hand_ends_under_a_pause,
);

async fn pause<DB: TestDatabase>(on: &Fixture<DB>, what: &Pausable) {
    assert!(on.store.pause(what, "test", None).await.unwrap());
    on.store.notify().await.unwrap();
}

async fn resume<DB: TestDatabase>(on: &Fixture<DB>, what: &Pausable) {
    assert!(on.store.resume(what).await.unwrap());
    on.store.notify().await.unwrap();
}

fn order(key: &str) -> Pausable {
    Pausable::Key(Key::of(&derived_key("", "Order", key)))
}

fn named(name: &str) -> Config {
    Config { name: name.to_owned(), ..quick() }
}

async fn started<DB: TestDatabase>(
    on: &Fixture<DB>,
    transport: impl Transport,
    config: Config,
) -> Relay {
    let relay = on.relay(transport, config);
    relay.start().await.unwrap();
    relay
}

/// The numbers of a key's events, in the order of their delivery.
fn numbers(transport: &MemoryTransport, key: &str) -> Vec<usize> {
    let delivered = transport.delivered();
    let of_key = delivered.iter().filter(|e| e.event.aggregate_id() == Some(key));
    of_key.map(|e| serde_json::from_slice(e.event.payload()).unwrap()).collect()
}

/// Waits until the event is held, so that nothing of it can be in memory.
async fn held<DB: TestDatabase>(on: &Fixture<DB>, event: &Event) {
    asked("a hold", async || on.record(event.id()).await.wait == Some(Wait::Held)).await;
}

async fn a_paused_outbox_keeps_everything_through_a_restart_and_goes_on_in_order<
    DB: TestDatabase,
>(
    on: &Fixture<DB>,
) {
    let transport = MemoryTransport::new();
    let relay = started(on, transport.clone(), named("a")).await;
    until(&relay, "idle", |stats| stats.idle).await;
    pause(on, &Pausable::Outbox).await;
    until(&relay, "the pause", |stats| stats.paused && stats.shards_owned == 0).await;
    on.enqueue((0..20).map(|n| event("k", n)).collect()).await;
    let owners = on.store.relays().await.unwrap();
    assert!(owners[0].alive, "heartbeats go on");
    relay.stop().await.unwrap();

    let relay = started(on, transport.clone(), named("b")).await;
    until(&relay, "the pause", |stats| stats.paused).await;
    assert!(transport.delivered().is_empty());
    resume(on, &Pausable::Outbox).await;
    soon("delivery", transport.wait_for(20)).await;
    assert_eq!(numbers(&transport, "k"), (0..20).collect::<Vec<_>>());
    relay.stop().await.unwrap();
}

async fn a_pause_that_nobody_announces_is_obeyed_within_two_seconds<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    // Polls and heartbeats that nobody could wait for.
    let config = Config {
        idle_interval: Duration::from_mins(1),
        lease: Duration::from_mins(3),
        heartbeat: Duration::from_mins(1),
        ..named("a")
    };
    let relay = started(on, MemoryTransport::new(), config).await;
    until(&relay, "idle", |stats| stats.idle).await;
    let changed = async |paused: bool| {
        let since = Instant::now();
        until(&relay, "the change", |stats| stats.paused == paused).await;
        assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
    };
    assert!(on.store.pause(&Pausable::Outbox, "test", None).await.unwrap());
    changed(true).await;
    assert!(on.store.resume(&Pausable::Outbox).await.unwrap());
    changed(false).await;
    relay.stop().await.unwrap();
}

/// Takes events only while it is let.
#[derive(Clone)]
struct Gated {
    inner: MemoryTransport,
    /// Publishes that are under way.
    entered: Arc<Semaphore>,
    let_in: Arc<Semaphore>,
}

#[async_trait]
impl Transport for Gated {
    fn name(&self) -> &str {
        "gated"
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        self.entered.add_permits(1);
        self.let_in.acquire().await.unwrap().forget();
        self.inner.publish(batch).await
    }
}

async fn what_is_in_flight_ends_and_is_settled_under_a_pause<DB: TestDatabase>(on: &Fixture<DB>) {
    let transport = Gated {
        inner: MemoryTransport::new(),
        entered: Arc::new(Semaphore::new(0)),
        let_in: Arc::new(Semaphore::new(0)),
    };
    let (first, second) = (event("k", 1), event("k", 2));
    on.enqueue(vec![first.clone(), second.clone()]).await;
    for ordering in [RelayOrdering::PerKey, RelayOrdering::None] {
        let unordered = ordering == RelayOrdering::None;
        let config = Config { ordering, concurrency: 1, ..named("a") };
        let relay = started(on, transport.clone(), config).await;
        soon("a publish", transport.entered.acquire()).await.unwrap().forget();
        pause(on, &Pausable::Relay("a".to_owned())).await;
        until(&relay, "the pause", |stats| stats.paused).await;
        transport.let_in.add_permits(1);
        until(&relay, "the end of it", |s| s.paused && s.shards_owned == 0 && s.in_memory == 0)
            .await;
        let now = if unordered { &second } else { &first };
        assert_eq!(on.record(now.id()).await.status, Status::Sent);
        assert_eq!(transport.inner.delivered().len(), 1 + usize::from(unordered));
        relay.stop().await.unwrap();
        assert!(on.store.resume(&Pausable::Relay("a".to_owned())).await.unwrap());
    }
    assert_eq!(numbers(&transport.inner, "k"), [1, 2]);
}

async fn a_paused_relay_leaves_its_work_to_the_others<DB: TestDatabase>(on: &Fixture<DB>) {
    let transport = MemoryTransport::new();
    let a = started(on, transport.clone(), named("a")).await;
    let total =
        until(&a, "all shards", |s| s.shards > 0 && s.shards_owned == s.shards).await.shards;
    assert!(until(&a, "its turn", |stats| stats.housekeeper).await.housekeeper);
    let b = started(on, transport.clone(), named("b")).await;
    pause(on, &Pausable::Relay("a".to_owned())).await;
    until(&a, "the pause", |stats| stats.paused && stats.shards_owned == 0).await;
    until(&b, "all shards", |stats| stats.shards_owned == total && stats.housekeeper).await;
    on.enqueue((0..10).map(|n| event("k", n)).collect()).await;
    soon("delivery", transport.wait_for(10)).await;
    until(&b, "its deliveries", |stats| stats.delivered == 10).await;
    resume(on, &Pausable::Relay("a".to_owned())).await;
    let share = total.div_ceil(2);
    until(&a, "its share", |stats| stats.shards_owned == share || total == 1).await;
    for relay in [a, b] {
        relay.stop().await.unwrap();
    }
}

async fn a_relay_that_is_switched_off_delivers_nothing_and_is_in_nobodys_way<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let off = Config { enabled: false, ..named("off") };
    let (unused, transport) = (MemoryTransport::new(), MemoryTransport::new());
    let relay = started(on, unused.clone(), off).await;
    on.enqueue((0..10).map(|n| event(&n.to_string(), n)).collect()).await;
    let works = started(on, transport.clone(), named("works")).await;
    soon("delivery", transport.wait_for(10)).await;
    assert_eq!(works.stats().shards_owned, works.stats().shards);
    assert!(relay.stats().paused && unused.delivered().is_empty());
    asked("health", async || relay.health().ready).await;
    relay.stop().await.unwrap();
    works.stop().await.unwrap();
}

/// A destination with a name of its own.
struct Named(&'static str, MemoryTransport);

#[async_trait]
impl Transport for Named {
    fn name(&self) -> &str {
        self.0
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        self.1.publish(batch).await
    }
}

async fn a_paused_destination_waits_and_burns_nothing_while_the_other_goes_on<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let (left, right) = (MemoryTransport::new(), MemoryTransport::new());
    let destinations = vec![
        Destination::new(Arc::new(Named("left", left.clone()))),
        Destination::new(Arc::new(Named("right", right.clone()))),
    ];
    let routes =
        Routes::new().route(Route::to("left").event_type("Left")).route(Route::to("right"));
    let relay = Relay::routed(on.store(), destinations, routes, named("a")).unwrap();
    let destination = Pausable::Destination("left".to_owned());
    pause(on, &destination).await;
    relay.start().await.unwrap();
    let both = |n: usize| {
        let of = |kind: &str| Event::builder(kind).aggregate("Order", "k").payload(&n).build();
        [of("Left").unwrap(), of("Right").unwrap()]
    };
    let events: Vec<Event> = (0..100).flat_map(both).collect();
    let first = events[0].id();
    on.enqueue(events).await;
    soon("the other", right.wait_for(100)).await;
    let stats = until(&relay, "all read", |stats| stats.idle).await;
    assert_eq!((stats.in_memory, stats.breakers_open), (0, 0));
    assert!(left.delivered().is_empty());
    let record = on.record(first).await;
    assert_eq!((record.status, record.attempts), (Status::New, 0));
    resume(on, &destination).await;
    soon("catching up", left.wait_for(100)).await;
    assert_eq!(numbers(&left, "k"), (0..100).collect::<Vec<_>>());
    relay.stop().await.unwrap();
}

async fn a_paused_key_waits_on_both_paths_through_a_crash_and_a_takeover<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let transport = MemoryTransport::new();
    let key = order("k");
    pause(on, &key).await;
    let relay = started(on, transport.clone(), named("a")).await;
    let outbox = on.outbox().with_hot_path(relay.hot_path());
    let mut last = event("k", 0);
    on.enqueue(vec![last.clone(), event("other", 0)]).await;
    soon("the other key", transport.wait_for(1)).await;
    for n in 1..6 {
        let mut tx = outbox.begin(&on.pool).await.unwrap();
        last = event("k", n);
        outbox.enqueue_all(&mut tx, vec![last.clone(), event("other", n)]).await.unwrap();
        tx.commit().await.unwrap();
    }
    soon("the other key", transport.wait_for(6)).await;
    held(on, &last).await;
    // What was delivered and not settled yet would come again.
    until(&relay, "all settled", |stats| stats.idle && stats.in_memory == 0).await;
    // Dropped without a stop, it leaves its leases to run out.
    drop(relay);

    on.enqueue((6..9).map(|n| event("k", n)).chain([event("other", 6)]).collect()).await;
    let relay = started(on, transport.clone(), named("b")).await;
    soon("the other key", transport.wait_for(7)).await;
    until(&relay, "all read", |stats| stats.idle && stats.in_memory == 0).await;
    assert_eq!(numbers(&transport, "k"), [0_usize; 0]);
    assert_eq!(numbers(&transport, "other"), (0..7).collect::<Vec<_>>());
    resume(on, &key).await;
    soon("the key", transport.wait_for(16)).await;
    assert_eq!(numbers(&transport, "k"), (0..9).collect::<Vec<_>>());
    relay.stop().await.unwrap();
}

async fn what_failed_before_its_key_was_paused_comes_first_when_it_goes_on<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let mended = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&mended);
    let transport = MemoryTransport::scripted(move |envelope| {
        if seen.load(Ordering::SeqCst) || envelope.event.payload() != "0" {
            return Outcome::Delivered;
        }
        Outcome::retry("not yet")
    });
    let key = order("k");
    // It fails again and again until the pause is known, however long that takes.
    let relay =
        started(on, transport.clone(), Config { max_attempts: 1_000_000, ..named("a") }).await;
    let first = event("k", 0);
    on.enqueue(vec![first.clone()]).await;
    until(&relay, "a failure", |stats| stats.retried > 0).await;
    pause(on, &key).await;
    held(on, &first).await;
    let attempts = on.record(first.id()).await.attempts;
    assert!(attempts > 0);
    mended.store(true, Ordering::SeqCst);
    on.enqueue(vec![event("k", 1)]).await;
    until(&relay, "a hold", |stats| stats.held == 2 && stats.idle).await;
    assert!(transport.delivered().is_empty());
    resume(on, &key).await;
    soon("the key", transport.wait_for(2)).await;
    assert_eq!(numbers(&transport, "k"), [0, 1]);
    assert_eq!(on.record(first.id()).await.attempts, attempts, "a pause burns no attempt");
    relay.stop().await.unwrap();
}

async fn a_paused_key_waits_where_rows_are_claimed<DB: TestDatabase>(on: &Fixture<DB>) {
    let transport = MemoryTransport::new();
    let key = order("k");
    pause(on, &key).await;
    let config = Config { ordering: RelayOrdering::None, ..named("a") };
    let relay = started(on, transport.clone(), config).await;
    let one = event("k", 1);
    on.enqueue(vec![one.clone(), event("other", 1)]).await;
    soon("the other key", transport.wait_for(1)).await;
    asked("giving it back", async || on.record(one.id()).await.wait == Some(Wait::Retry)).await;
    assert_eq!(transport.delivered().len(), 1);
    resume(on, &key).await;
    soon("the key", transport.wait_for(2)).await;
    assert_eq!(on.record(one.id()).await.attempts, 0, "no attempt was burnt");
    relay.stop().await.unwrap();
}

async fn under_global_everything_waits_behind_a_paused_key<DB: TestDatabase>(on: &Fixture<DB>) {
    let transport = MemoryTransport::new();
    let key = order("b");
    pause(on, &key).await;
    let config = Config { ordering: RelayOrdering::Global, ..named("a") };
    let relay = started(on, transport.clone(), config).await;
    on.enqueue(vec![event("a", 1), event("b", 2), event("c", 3)]).await;
    soon("the first", transport.wait_for(1)).await;
    until(&relay, "the others", |stats| stats.cold_queue == 2).await;
    relay.stop().await.unwrap();
    let config = Config { ordering: RelayOrdering::Global, ..named("b") };
    soon("a pass by hand", on.relay(transport.clone(), config.clone()).relay_once()).await.unwrap();
    assert_eq!(transport.delivered().len(), 1);
    let relay = started(on, transport.clone(), config).await;
    resume(on, &key).await;
    soon("the rest", transport.wait_for(3)).await;
    let order: Vec<_> = transport.delivered().iter().map(|e| e.event.payload().clone()).collect();
    assert_eq!(order, ["1", "2", "3"]);
    relay.stop().await.unwrap();
}

async fn a_pass_by_hand_ends_under_a_pause<DB: TestDatabase>(on: &Fixture<DB>) {
    let transport = MemoryTransport::new();
    on.enqueue(vec![event("k", 1), event("other", 1)]).await;
    for (what, delivered) in
        [(Pausable::Outbox, 0), (Pausable::Destination("memory".to_owned()), 0), (order("k"), 1)]
    {
        pause(on, &what).await;
        let relay = on.relay(transport.clone(), named("a"));
        soon("the pass", relay.relay_once()).await.unwrap();
        assert_eq!(transport.delivered().len(), delivered, "{what}");
        resume(on, &what).await;
    }
    let relay = on.relay(transport.clone(), named("a"));
    soon("the pass", relay.relay_once()).await.unwrap();
    assert_eq!(transport.delivered().len(), 2);
}
