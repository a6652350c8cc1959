//! Progress: however many events came late, are due, are large or wait for somebody, nobody else's wait.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::support::{Fixture, TestDatabase, event, quick, soon, until};
use async_trait::async_trait;
use posthaste::{
    Envelope, Event, Status,
    relay::{Config, Destination, OnDead, Relay, Route, Routes},
    store::{Filter, Pausable, Selection},
    transport::{Outcome, Transport},
    transports::memory::MemoryTransport,
};

macro_rules! on_two_servers {
    ($($name:ident),* $(,)?) => {
        on_every_database!(@ postgres, sqlx::Postgres, $($name),*);
        on_every_database!(@ mariadb, sqlx::MySql, $($name),*);
    };
}

/// SQLite has one writer at a time: nothing comes late.
mod late {
    use super::{
        a_takeover_reads_what_came_late_in_pages,
        late_commits_beyond_any_page_are_all_delivered_and_so_is_what_comes_after,
        late_commits_of_a_paused_destination_hold_nobody_back,
        what_came_late_for_a_paused_destination_sets_no_mark_to_the_beginning,
    };

    on_two_servers!(
        late_commits_beyond_any_page_are_all_delivered_and_so_is_what_comes_after,
        late_commits_of_a_paused_destination_hold_nobody_back,
        a_takeover_reads_what_came_late_in_pages,
        what_came_late_for_a_paused_destination_sets_no_mark_to_the_beginning,
    );
}

on_every_database!(
    a_delayed_event_waits_for_earlier_ones_of_its_key_behind_a_backlog,
    freed_followers_at_a_paused_destination_do_not_hide_a_retry_of_another,
    events_of_any_size_pass_within_the_memory_that_was_given,
    a_paused_key_with_a_long_backlog_takes_no_memory_and_keeps_its_order,
    a_destination_with_large_events_that_hangs_holds_nobody_back,
    failing_keys_beyond_the_limit_are_in_the_table_only_and_keep_their_order,
    parked_keys_beyond_the_limit_hold_what_comes_until_they_are_freed,
    a_key_that_its_destination_never_takes_does_not_hide_the_others_after_an_outage,
    replays_that_wait_hold_back_no_retry,
);

/// A destination of this name.
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

fn of(event_type: &str, key: impl std::fmt::Display, n: usize) -> Event {
    Event::builder(event_type).aggregate("Order", key).payload(&n).build().unwrap()
}

/// A relay with the destinations `left` and `right`.
fn routed<DB: TestDatabase>(
    on: &Fixture<DB>,
    left: impl Transport,
    right: &MemoryTransport,
    config: Config,
) -> Relay {
    let routes = Routes::new()
        .route(Route::to("left").event_type("Left"))
        .route(Route::to("right").event_type("Right"));
    let destinations = vec![
        Destination::new(Arc::new(left)),
        Destination::new(Arc::new(Named("right", right.clone()))),
    ];
    Relay::routed(on.store(), destinations, routes, config).unwrap()
}

/// Takes its time once that is said: 20 ms for an event.
struct Paced {
    slow: Arc<AtomicBool>,
    transport: MemoryTransport,
}

#[async_trait]
impl Transport for Paced {
    fn name(&self) -> &str {
        "paced"
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        if self.slow.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(20) * batch.len() as u32).await;
        }
        self.transport.publish(batch).await
    }
}

async fn replays_that_wait_hold_back_no_retry<DB: TestDatabase>(on: &Fixture<DB>) {
    const REPLAYS: usize = 1_000;

    let delivered = Arc::new(tokio::sync::Notify::new());
    let again = Arc::clone(&delivered);
    let transport = MemoryTransport::scripted(move |envelope| {
        let live = envelope.event.aggregate_id() == Some("live");
        match envelope.attempts {
            0 if live => return Outcome::retry("not at first"),
            _ if live => again.notify_one(),
            _ => {}
        }
        Outcome::Delivered
    });
    let slow = Arc::new(AtomicBool::new(false));
    let paced = Paced { slow: Arc::clone(&slow), transport: transport.clone() };
    let config = Config { batch: 20, cold_queue: 50, ..quick() };
    let destination = Destination::new(Arc::new(paced)).with_concurrency(1);
    let routes = Routes::new().route(Route::to("paced").event_type("OrderChanged"));
    let relay = Relay::routed(on.store(), vec![destination], routes, config).unwrap();
    on.enqueue((0..REPLAYS).map(|n| event(&n.to_string(), n)).collect()).await;
    relay.start().await.unwrap();
    soon("all of them", transport.wait_for(REPLAYS)).await;
    until(&relay, "idle", |stats| stats.idle).await;
    slow.store(true, Ordering::Relaxed);
    let filter = Filter { status: Some(Status::Sent), ..Filter::default() };
    let these = Selection::Matching { filter, limit: REPLAYS };
    assert_eq!(on.store.replay(&these).await.unwrap(), REPLAYS as u64);
    until(&relay, "a full queue", |stats| stats.cold_queue >= 35).await;
    // The replays take 20 s.
    on.enqueue(vec![event("live", 0)]).await;
    let second = tokio::time::timeout(Duration::from_secs(6), delivered.notified()).await;
    assert!(second.is_ok(), "it waits for {} replays", REPLAYS * 2 - transport.delivered().len());
    slow.store(false, Ordering::Relaxed);
    soon("the replays", transport.wait_for(2 * REPLAYS + 1)).await;
    relay.stop().await.unwrap();
    assert_eq!(transport.delivered().len(), 2 * REPLAYS + 1, "each once");
}

async fn late_commits_beyond_any_page_are_all_delivered_and_so_is_what_comes_after<
    DB: TestDatabase,
>(
    on: &Fixture<DB>,
) {
    const LATE: usize = 3_600;

    let transport = MemoryTransport::new();
    let relay = on.relay(transport.clone(), quick());
    relay.start().await.unwrap();
    let mut slow = on.pool.begin().await.unwrap();
    let events = (0..LATE).map(|n| event(&n.to_string(), n)).collect();
    on.outbox().enqueue_all(&mut slow, events).await.unwrap();
    on.enqueue(vec![event("quick", 0)]).await;
    soon("what does not wait", transport.wait_for(1)).await;
    slow.commit().await.unwrap();
    soon("what came late", transport.wait_for(LATE + 1)).await;
    on.enqueue(vec![event("after", 0)]).await;
    soon("what came after", transport.wait_for(LATE + 2)).await;
    relay.stop().await.unwrap();
    assert_eq!(transport.delivered().len(), LATE + 2, "each once");
}

async fn late_commits_of_a_paused_destination_hold_nobody_back<DB: TestDatabase>(on: &Fixture<DB>) {
    const LATE: usize = 3_600;

    let (left, right) = (MemoryTransport::new(), MemoryTransport::new());
    let relay = routed(on, Named("left", left.clone()), &right, quick());
    let pause = Pausable::Destination("left".to_owned());
    on.store.pause(&pause, "test", None).await.unwrap();
    relay.start().await.unwrap();
    let mut slow = on.pool.begin().await.unwrap();
    let events = (0..LATE).map(|n| of("Left", n % 100, n)).collect();
    on.outbox().enqueue_all(&mut slow, events).await.unwrap();
    on.enqueue(vec![of("Right", 0, 0)]).await;
    soon("what does not wait", right.wait_for(1)).await;
    slow.commit().await.unwrap();
    for n in 1..20 {
        on.enqueue(vec![of("Right", 0, n)]).await;
        soon("what goes elsewhere", right.wait_for(n + 1)).await;
    }
    assert!(left.delivered().is_empty());
    on.store.resume(&pause).await.unwrap();
    on.store.notify().await.unwrap();
    soon("what was paused", left.wait_for(LATE)).await;
    relay.stop().await.unwrap();
    for key in 0..100 {
        let of_key: Vec<usize> = left
            .delivered()
            .iter()
            .filter(|envelope| envelope.event.aggregate_id() == Some(key.to_string().as_str()))
            .map(|envelope| serde_json::from_slice(envelope.event.payload()).unwrap())
            .collect();
        assert_eq!(of_key, (key..LATE).step_by(100).collect::<Vec<_>>());
    }
}

async fn what_came_late_for_a_paused_destination_sets_no_mark_to_the_beginning<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    const BEFORE: usize = 300;

    let (left, right) = (MemoryTransport::new(), MemoryTransport::new());
    let routed = || routed(on, Named("left", left.clone()), &right, quick());
    on.enqueue((0..BEFORE).map(|n| of("Right", n, n)).collect()).await;
    let relay = routed();
    relay.start().await.unwrap();
    soon("what came before", right.wait_for(BEFORE)).await;
    let mut slow = on.pool.begin().await.unwrap();
    on.outbox().enqueue_all(&mut slow, vec![of("Left", 0, 0), of("Left", 1, 0)]).await.unwrap();
    on.enqueue(vec![of("Right", 0, BEFORE)]).await;
    soon("what comes after", right.wait_for(BEFORE + 1)).await;
    until(&relay, "its end", |stats| stats.idle).await;
    relay.stop().await.unwrap();
    slow.commit().await.unwrap();
    on.store.pause(&Pausable::Destination("left".to_owned()), "test", None).await.unwrap();

    // The first acquire of this one finds them behind its position, and cannot hand them over.
    let relay = routed();
    relay.start().await.unwrap();
    on.enqueue(vec![of("Right", 0, BEFORE + 1)]).await;
    soon("what is not paused", right.wait_for(BEFORE + 2)).await;
    until(&relay, "its end", |stats| stats.idle).await;
    relay.stop().await.unwrap();
    assert!(left.delivered().is_empty());
    let first = on.number("select min(sequence) from {events} where event_type = 'Left'").await;
    let mark = on.number("select min(mark) from {shards} where tenant_group = ''").await;
    assert_eq!(mark, first - 1, "the next owner starts before them, and not from the beginning");
}

async fn a_takeover_reads_what_came_late_in_pages<DB: TestDatabase>(on: &Fixture<DB>) {
    const LATE: usize = 3_600;

    let first = MemoryTransport::new();
    let relay = on.relay(first.clone(), quick());
    relay.start().await.unwrap();
    let mut slow = on.pool.begin().await.unwrap();
    let events = (0..LATE).map(|n| event(&n.to_string(), n)).collect();
    on.outbox().enqueue_all(&mut slow, events).await.unwrap();
    on.enqueue(vec![event("quick", 0)]).await;
    soon("what does not wait", first.wait_for(1)).await;
    relay.stop().await.unwrap();
    slow.commit().await.unwrap();

    let second = MemoryTransport::new();
    let config = Config { batch: 100, cold_queue: 200, ..quick() };
    let relay = on.relay(second.clone(), config);
    let mut most = 0;
    let mut watch = relay.watch();
    relay.start().await.unwrap();
    soon("what came late", async {
        while second.delivered().len() < LATE {
            watch.changed().await.unwrap();
            most = most.max(watch.borrow().in_memory);
        }
    })
    .await;
    relay.stop().await.unwrap();
    assert!(most < LATE / 2, "{most} events were in memory at once");
    assert_eq!(second.delivered().len(), LATE, "each once");
}

async fn freed_followers_at_a_paused_destination_do_not_hide_a_retry_of_another<
    DB: TestDatabase,
>(
    on: &Fixture<DB>,
) {
    const LANES: usize = 120;

    // Heads die and park their lanes, and their followers are held.
    let left = MemoryTransport::scripted(|envelope| {
        match serde_json::from_slice::<usize>(envelope.event.payload()).unwrap() {
            0 => Outcome::Dead { error: "never".to_owned() },
            _ => Outcome::Delivered,
        }
    });
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&tries);
    let right = MemoryTransport::scripted(move |_| match counted.fetch_add(1, Ordering::SeqCst) {
        0 => Outcome::retry("not yet"),
        _ => Outcome::Delivered,
    });
    let config = Config { batch: 50, on_dead: OnDead::Park, ..quick() };
    let relay = routed(on, Named("left", left.clone()), &right, config);
    relay.start().await.unwrap();
    on.enqueue((0..LANES).map(|key| of("Left", key, 0)).collect()).await;
    until(&relay, "the deaths", |stats| stats.dead == LANES as u64).await;
    on.enqueue((0..LANES).map(|key| of("Left", key, 1)).collect()).await;
    until(&relay, "the holds", |stats| stats.held == LANES as u64).await;
    relay.stop().await.unwrap();
    let pause = Pausable::Destination("left".to_owned());
    on.store.pause(&pause, "test", None).await.unwrap();
    let filter = Filter { status: Some(Status::Dead), ..Filter::default() };
    let dead = Selection::Matching { filter, limit: 1_000 };
    // Frees the first follower of each lane: they are due, and cannot go.
    let freed = on.store.discard(&dead).await.unwrap();
    assert_eq!(freed, LANES as u64);
    let config = Config { batch: 50, on_dead: OnDead::Park, ..quick() };
    let relay = routed(on, Named("left", left), &right, config);
    relay.start().await.unwrap();
    on.enqueue(vec![of("Right", "r", 0)]).await;
    soon("the retry of the other one", right.wait_for(1)).await;
    assert_eq!(tries.load(Ordering::SeqCst), 2);
    relay.stop().await.unwrap();
}

async fn a_delayed_event_waits_for_earlier_ones_of_its_key_behind_a_backlog<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    const BACKLOG: usize = 300;

    on.enqueue((0..BACKLOG).map(|n| event(&n.to_string(), n)).collect()).await;
    on.enqueue(vec![event("key", 0)]).await;
    // Due before the cursor has come that far, and one that falls due while it is on its way.
    let delayed = |n: usize, millis: i64| {
        let at = jiff::Timestamp::now() + jiff::SignedDuration::from_millis(millis);
        let event = Event::builder("OrderChanged").aggregate("Order", "key").payload(&n);
        event.deliver_at(at).build().unwrap()
    };
    on.enqueue(vec![delayed(1, -10), delayed(2, 150), event("key", 3)]).await;
    let scale = Scale::default();
    let config = Config { batch: 5, cold_queue: 10, concurrency: 1, ..quick() };
    let relay = on.relay(scale.clone(), config);
    relay.start().await.unwrap();
    soon("all of them", scale.taken.wait_for(BACKLOG + 4)).await;
    relay.stop().await.unwrap();
    let of_key: Vec<usize> = scale
        .taken
        .delivered()
        .iter()
        .filter(|envelope| envelope.event.aggregate_id() == Some("key"))
        .map(|envelope| serde_json::from_slice(envelope.event.payload()).unwrap())
        .collect();
    // The second may fall due before or after the cursor passes it, never before what precedes it.
    assert_eq!(of_key[..2], [0, 1], "{of_key:?}");
    assert_eq!(of_key.len(), 4);
}

async fn a_key_that_its_destination_never_takes_does_not_hide_the_others_after_an_outage<
    DB: TestDatabase,
>(
    on: &Fixture<DB>,
) {
    // More than a destination that is down is tried with at once.
    const POISONED: usize = 350;
    const GOOD: usize = 20;

    let down = Arc::new(AtomicBool::new(true));
    let is_down = Arc::clone(&down);
    let transport = MemoryTransport::scripted(move |envelope| {
        if is_down.load(Ordering::SeqCst) || envelope.event.aggregate_id() == Some("poisoned") {
            Outcome::unavailable("down")
        } else {
            Outcome::Delivered
        }
    });
    on.enqueue((0..POISONED).map(|n| event("poisoned", n)).collect()).await;
    for n in 0..2 {
        on.enqueue((0..GOOD).map(|key| event(&key.to_string(), n)).collect()).await;
    }
    let relay = on.relay(transport.clone(), quick());
    relay.start().await.unwrap();
    until(&relay, "the outage", |stats| stats.breakers_open == 1).await;
    down.store(false, Ordering::SeqCst);
    soon("all other keys", transport.wait_for(2 * GOOD)).await;
    relay.stop().await.unwrap();
    let delivered = transport.delivered();
    for key in 0..GOOD {
        let of_key = delivered
            .iter()
            .filter(|envelope| envelope.event.aggregate_id() == Some(key.to_string().as_str()));
        let numbers: Vec<usize> = of_key
            .map(|envelope| serde_json::from_slice(envelope.event.payload()).unwrap())
            .collect();
        assert_eq!(numbers, [0, 1], "key {key}");
    }
}

/// A destination that takes its time, and counts what it holds.
#[derive(Clone, Default)]
struct Scale {
    bytes: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    taken: MemoryTransport,
}

#[async_trait]
impl Transport for Scale {
    fn name(&self) -> &str {
        "scale"
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        let bytes: usize = batch.iter().map(|envelope| envelope.event.payload().len()).sum();
        let now = self.bytes.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.most.fetch_max(now, Ordering::SeqCst);
        // Others are handed over meanwhile.
        tokio::time::sleep(Duration::from_millis(2)).await;
        self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        self.taken.publish(batch).await
    }
}

fn large(key: usize, bytes: usize) -> Event {
    let payload = format!("{:?}", "x".repeat(bytes));
    Event::builder("Large").aggregate("Order", key).raw_json(payload).build().unwrap()
}

async fn events_of_any_size_pass_within_the_memory_that_was_given<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    const MEMORY: usize = 4 << 20;

    // 120 of 128 KiB are four times the memory; one alone is larger than all of it.
    let mut events: Vec<Event> = (0..120).map(|key| large(key, 128 << 10)).collect();
    events.insert(60, large(500, 1_000_000));
    events.insert(30, large(501, 1_000_000));
    for piece in events.chunks(10) {
        on.enqueue(piece.to_vec()).await;
    }
    let scale = Scale::default();
    let relay = on.relay(scale.clone(), Config { memory: MEMORY, ..quick() });
    let mut watch = relay.watch();
    let mut most = 0;
    relay.start().await.unwrap();
    soon("all of them", async {
        while scale.taken.delivered().len() < 122 {
            watch.changed().await.unwrap();
            most = most.max(watch.borrow().memory);
        }
    })
    .await;
    until(&relay, "the end", |stats| stats.idle).await;
    assert_eq!(relay.stats().memory, 0, "all of it is given back");
    relay.stop().await.unwrap();
    // One event that is larger than what is left of it, on top. Each counts six times: for every copy, and
    // for what the allocator keeps.
    let limit = MEMORY + 6 * (1_000_000 + (MEMORY / 8));
    assert!(most > MEMORY / 4 && most <= limit, "{most} bytes were in memory at once");
    let handed = scale.most.load(Ordering::SeqCst);
    assert!(handed <= MEMORY, "{handed} bytes were at the destination at once");
}

async fn a_paused_key_with_a_long_backlog_takes_no_memory_and_keeps_its_order<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    const EVENTS: usize = 3_000;

    for piece in (0..EVENTS).collect::<Vec<_>>().chunks(500) {
        on.enqueue(piece.iter().map(|&n| event("key", n)).collect()).await;
    }
    let key = posthaste::key::derived_key("", "Order", "key");
    let pause = Pausable::Key(posthaste::Key::of(&key));
    on.store.pause(&pause, "test", None).await.unwrap();
    let transport = MemoryTransport::new();
    let config = Config { batch: 50, cold_queue: 100, ..quick() };
    let relay = on.relay(transport.clone(), config);
    let mut watch = relay.watch();
    let mut most = 0;
    relay.start().await.unwrap();
    soon("the holds", async {
        while watch.borrow_and_update().held < EVENTS as u64 {
            watch.changed().await.unwrap();
            most = most.max(watch.borrow().in_memory);
        }
    })
    .await;
    // What is read and not written yet: four settles of a batch, and a page on its way.
    assert!(most <= 10 * 50, "{most} events were in memory at once");
    on.store.resume(&pause).await.unwrap();
    on.store.notify().await.unwrap();
    soon("all of them", transport.wait_for(EVENTS)).await;
    relay.stop().await.unwrap();
    let order: Vec<usize> = transport
        .delivered()
        .iter()
        .map(|envelope| serde_json::from_slice(envelope.event.payload()).unwrap())
        .collect();
    assert_eq!(order, (0..EVENTS).collect::<Vec<_>>());
}

/// A destination that never answers.
struct Hangs;

#[async_trait]
impl Transport for Hangs {
    fn name(&self) -> &str {
        "left"
    }

    async fn publish(&self, _: &[Envelope]) -> Vec<Outcome> {
        std::future::pending().await
    }
}

async fn a_destination_with_large_events_that_hangs_holds_nobody_back<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    const MEMORY: usize = 2 << 20;

    let payload = format!("{:?}", "x".repeat(64 << 10));
    let events: Vec<Event> = (0..60)
        .map(|key| {
            let event = Event::builder("Left").aggregate("Order", key);
            event.raw_json(payload.clone()).build().unwrap()
        })
        .collect();
    on.enqueue(events).await;
    let right = MemoryTransport::new();
    let config = Config { memory: MEMORY, ..quick() };
    let relay = routed(on, Hangs, &right, config);
    relay.start().await.unwrap();
    for n in 0..10 {
        on.enqueue(vec![of("Right", 0, n)]).await;
        soon("what goes elsewhere", right.wait_for(n + 1)).await;
    }
    relay.stop().await.unwrap();
}

/// Refuses the first event of each key: for now, or for good.
#[derive(Clone, Default)]
struct FirstRefused {
    memory: MemoryTransport,
    refused: Arc<AtomicUsize>,
    takes_all: Arc<AtomicBool>,
    for_good: bool,
}

#[async_trait]
impl Transport for FirstRefused {
    fn name(&self) -> &str {
        self.memory.name()
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for envelope in batch {
            if envelope.event.payload() != b"0".as_slice() || self.takes_all.load(Ordering::SeqCst)
            {
                outcomes.extend(self.memory.publish(std::slice::from_ref(envelope)).await);
                continue;
            }
            self.refused.fetch_add(1, Ordering::SeqCst);
            outcomes.push(if self.for_good {
                Outcome::dead("refused for good")
            } else {
                let after = Some(Duration::from_millis(200));
                Outcome::Retry { error: "refused for now".to_owned(), after }
            });
        }
        outcomes
    }
}

const BLOCKED_KEYS: usize = 60;

/// Event number `n` of each key.
async fn enqueue_for_each_key<DB: TestDatabase>(on: &Fixture<DB>, n: usize) {
    on.enqueue((0..BLOCKED_KEYS).map(|key| event(&key.to_string(), n)).collect()).await;
}

async fn until_held<DB: TestDatabase>(on: &Fixture<DB>, events: usize) {
    const HELD: &str = "select count(*) from {events} where wait = 'held' and sent_at is null";

    let held = async {
        while on.number(HELD).await != events as i64 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon("holding", held).await;
}

/// Each key's events have come in this order.
fn assert_each_key(delivered: &[Envelope], expected: &[usize]) {
    for key in 0..BLOCKED_KEYS {
        let key = key.to_string();
        let of_key = delivered.iter().filter(|one| one.event.aggregate_id() == Some(key.as_str()));
        let numbers = of_key.map(|one| serde_json::from_slice(one.event.payload()).unwrap());
        assert_eq!(numbers.collect::<Vec<usize>>(), expected, "key {key}");
    }
}

async fn failing_keys_beyond_the_limit_are_in_the_table_only_and_keep_their_order<
    DB: TestDatabase,
>(
    on: &Fixture<DB>,
) {
    let transport = FirstRefused::default();
    let config = || Config { blocked_lanes: 10, ..quick() };
    let relay = on.relay(transport.clone(), config());
    relay.start().await.unwrap();
    enqueue_for_each_key(on, 0).await;
    until(&relay, "refusals", |stats| stats.retried >= BLOCKED_KEYS as u64).await;
    enqueue_for_each_key(on, 1).await;
    until_held(on, BLOCKED_KEYS).await;
    // The next one finds more than it may keep.
    relay.stop().await.unwrap();
    let relay = on.relay(transport.clone(), config());
    relay.start().await.unwrap();
    for n in 2..4 {
        enqueue_for_each_key(on, n).await;
        until_held(on, n * BLOCKED_KEYS).await;
    }
    on.enqueue(vec![event("another", 1)]).await;
    soon("another key", transport.memory.wait_for(1)).await;
    transport.takes_all.store(true, Ordering::SeqCst);
    soon("all keys", transport.memory.wait_for(4 * BLOCKED_KEYS + 1)).await;
    relay.stop().await.unwrap();
    assert_each_key(&transport.memory.delivered(), &[0, 1, 2, 3]);
}

async fn parked_keys_beyond_the_limit_hold_what_comes_until_they_are_freed<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let transport = FirstRefused { for_good: true, ..FirstRefused::default() };
    let config = Config { blocked_lanes: 10, on_dead: OnDead::Park, ..quick() };
    let relay = on.relay(transport.clone(), config);
    relay.start().await.unwrap();
    enqueue_for_each_key(on, 0).await;
    until(&relay, "deaths", |stats| stats.dead >= BLOCKED_KEYS as u64).await;
    for n in 1..3 {
        enqueue_for_each_key(on, n).await;
        until_held(on, n * BLOCKED_KEYS).await;
    }
    let filter = Filter { status: Some(Status::Dead), ..Filter::default() };
    on.store.discard(&Selection::Matching { filter, limit: 1_000 }).await.unwrap();
    on.store.notify().await.unwrap();
    enqueue_for_each_key(on, 3).await;
    soon("all keys", transport.memory.wait_for(3 * BLOCKED_KEYS)).await;
    relay.stop().await.unwrap();
    assert_each_key(&transport.memory.delivered(), &[1, 2, 3]);
}
