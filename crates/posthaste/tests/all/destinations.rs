//! Several destinations: routes, outages of one of them, poison, limits, interceptors.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::support::{Fixture, TestDatabase, quick, until};
use async_trait::async_trait;
use posthaste::{
    Envelope, Event, Failure, Status,
    backoff::Backoff,
    relay::{Config, Destination, Interceptor, Relay, Route, Routes},
    transport::{Outcome, Transport},
    transports::memory::MemoryTransport,
};
use posthaste_testkit::wait::asked;
use tokio::sync::Semaphore;

on_every_database!(
    a_key_that_uses_both_destinations_goes_on_at_the_living_one,
    an_event_without_a_route_is_dead_with_a_reason,
    one_event_that_always_times_out_ends_dead_and_its_destination_goes_on,
    a_slow_destination_holds_nobody_back,
    unordered_events_wait_out_an_outage_without_burning_an_attempt,
    interceptors_wrap_every_dispatch,
);

/// A destination of another name that is there or not.
#[derive(Clone)]
struct Named {
    name: &'static str,
    up: Arc<AtomicBool>,
    inner: MemoryTransport,
}

impl Named {
    fn new(name: &'static str, up: bool) -> Self {
        Self { name, up: Arc::new(AtomicBool::new(up)), inner: MemoryTransport::new() }
    }
}

#[async_trait]
impl Transport for Named {
    fn name(&self) -> &str {
        self.name
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        if self.up.load(Ordering::SeqCst) {
            return self.inner.publish(batch).await;
        }
        vec![Outcome::unavailable("nobody is there"); batch.len()]
    }
}

fn of(event_type: &str, key: usize, n: usize) -> Event {
    Event::builder(event_type).aggregate("Order", key).payload(&n).build().unwrap()
}

fn routes() -> Routes {
    Routes::new()
        .route(Route::to("left").event_type("Left*").topic("l.{event_type}"))
        .route(Route::to("right").event_type("Right"))
}

fn routed<DB: TestDatabase>(on: &Fixture<DB>, destinations: &[&Named], config: Config) -> Relay {
    let destinations =
        destinations.iter().map(|named| Destination::new(Arc::new((*named).clone()))).collect();
    Relay::routed(on.store(), destinations, routes(), config).unwrap()
}

/// Payloads by key, in the order of their delivery.
fn numbers(transport: &MemoryTransport, key: usize) -> Vec<usize> {
    transport
        .delivered()
        .iter()
        .filter(|envelope| envelope.event.aggregate_id() == Some(&key.to_string()))
        .map(|envelope| serde_json::from_slice(envelope.event.payload()).unwrap())
        .collect()
}

async fn a_key_that_uses_both_destinations_goes_on_at_the_living_one<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let (left, right) = (Named::new("left", false), Named::new("right", true));
    let relay = routed(on, &[&left, &right], quick());
    relay.start().await.unwrap();
    for n in 0..40 {
        let events = (0..5).flat_map(|key| [of("Left", key, n), of("Right", key, n)]).collect();
        on.enqueue(events).await;
    }
    until(&relay, "the living one", |stats| stats.delivered >= 200).await;
    assert_eq!(right.inner.delivered().len(), 200);
    assert!(left.inner.delivered().is_empty());
    until(&relay, "the breaker", |stats| stats.breakers_open == 1).await;
    // Delivered ones leave the memory when they are settled, and what waits for the dead one is not in it.
    until(&relay, "an empty memory", |stats| stats.in_memory < 20).await;

    left.up.store(true, Ordering::SeqCst);
    until(&relay, "the rest", |stats| stats.delivered >= 400 && stats.idle).await;
    relay.stop().await.unwrap();
    for key in 0..5 {
        let all: Vec<usize> = (0..40).collect();
        assert_eq!(numbers(&left.inner, key), all, "key {key} at the left");
        assert_eq!(numbers(&right.inner, key), all, "key {key} at the right");
    }
    let first = &left.inner.delivered()[0];
    assert_eq!(first.topic(), "l.Left");
    assert_eq!(on.record(first.event.id()).await.attempts, 0);
}

async fn an_event_without_a_route_is_dead_with_a_reason<DB: TestDatabase>(on: &Fixture<DB>) {
    let (left, right) = (Named::new("left", true), Named::new("right", true));
    let lost = of("Up", 7, 0);
    let id = lost.id();
    on.enqueue(vec![lost, of("Right", 7, 1)]).await;
    let stats = routed(on, &[&left, &right], quick()).relay_once().await.unwrap();
    assert_eq!((stats.delivered, stats.dead), (1, 1));
    let record = on.record(id).await;
    assert_eq!(record.status, Status::Dead);
    assert_eq!(record.last_error.as_deref(), Some("no route for Up of Order 7"));
}

async fn one_event_that_always_times_out_ends_dead_and_its_destination_goes_on<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    struct Hangs(MemoryTransport);

    #[async_trait]
    impl Transport for Hangs {
        fn name(&self) -> &str {
            "hangs"
        }

        async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
            if batch[0].event.event_type() == "Poison" {
                std::future::pending::<()>().await;
            }
            self.0.publish(batch).await
        }
    }

    let memory = MemoryTransport::new();
    let config = Config {
        dispatch_timeout: Duration::from_millis(30),
        backoff: Backoff::Fixed(Duration::from_millis(1)),
        ..quick()
    };
    let relay = on.relay(Hangs(memory.clone()), config);
    let poison = of("Poison", 0, 0);
    let id = poison.id();
    let fine = |round| (1..=20).map(move |key| of("Fine", key, round));
    // Others come with it, and all the time until it is dead.
    on.enqueue(std::iter::once(poison).chain(fine(0)).collect()).await;
    relay.start().await.unwrap();
    let mut sent = 1;
    while relay.stats().dead == 0 {
        on.enqueue(fine(sent).collect()).await;
        sent += 1;
        assert!(sent < 2_000, "the poisonous event does not die: {:?}", relay.stats());
    }
    let count = sent * 20;
    let stats = until(&relay, "the others", |stats| stats.delivered >= count as u64).await;
    assert_eq!((stats.dead, stats.breakers_open), (1, 0));
    relay.stop().await.unwrap();
    let record = on.record(id).await;
    assert_eq!((record.status, record.attempts), (Status::Dead, 10));
    assert!(record.last_error.unwrap().contains("took longer"), "it says why");
}

async fn a_slow_destination_holds_nobody_back<DB: TestDatabase>(on: &Fixture<DB>) {
    struct Stuck;

    #[async_trait]
    impl Transport for Stuck {
        fn name(&self) -> &str {
            "left"
        }

        async fn publish(&self, _: &[Envelope]) -> Vec<Outcome> {
            std::future::pending().await
        }
    }

    let right = Named::new("right", true);
    let config = Config { cold_queue: 50, batch: 50, drain: Duration::ZERO, ..quick() };
    let destinations = vec![
        Destination::new(Arc::new(Stuck)).with_concurrency(2),
        Destination::new(Arc::new(right.clone())),
    ];
    let relay = Relay::routed(on.store(), destinations, routes(), config).unwrap();
    relay.start().await.unwrap();
    // Ten times what waits in memory at most.
    for n in 0..50 {
        let events = (0..10).flat_map(|key| [of("Left", 100 + key, n), of("Right", key, n)]);
        on.enqueue(events.collect()).await;
    }
    // What is delivered leaves once it is settled; of the rest no more stays than may wait.
    until(&relay, "the quick one", |stats| stats.delivered >= 500 && stats.in_memory <= 52).await;
    relay.stop().await.unwrap();
}

async fn unordered_events_wait_out_an_outage_without_burning_an_attempt<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let left = Named::new("left", false);
    let config = Config { ordering: posthaste::store::RelayOrdering::None, ..quick() };
    let relay = on.relay(left.clone(), config);
    let events: Vec<Event> = (0..100).map(|key| of("Left", key, 0)).collect();
    let ids: Vec<_> = events.iter().map(Event::id).collect();
    on.enqueue(events).await;
    relay.start().await.unwrap();
    until(&relay, "the breaker", |stats| stats.breakers_open == 1).await;
    left.up.store(true, Ordering::SeqCst);
    until(&relay, "all", |stats| stats.delivered >= 100).await;
    relay.stop().await.unwrap();
    for id in ids {
        let record = on.record(id).await;
        assert_eq!((record.status, record.attempts), (Status::Sent, 0));
    }
}

async fn interceptors_wrap_every_dispatch<DB: TestDatabase>(on: &Fixture<DB>) {
    struct Noting(&'static str, Arc<Mutex<Vec<String>>>);

    impl Noting {
        fn note(&self, what: &str, envelope: &Envelope) {
            let line = format!("{} {what} {}", self.0, envelope.event.event_type());
            self.1.lock().unwrap().push(line);
        }
    }

    #[async_trait]
    impl Interceptor for Noting {
        async fn before(&self, _: &str, envelope: &Envelope) -> Result<(), Failure> {
            self.note("before", envelope);
            match envelope.event.event_type() {
                "Refused" if self.0 == "outer" => Err(Failure::dead("not this one")),
                "Panics" => panic!("boom"),
                _ => Ok(()),
            }
        }

        async fn after(
            &self,
            destination: &str,
            envelope: &Envelope,
            error: Option<&str>,
        ) -> Result<(), Failure> {
            let error = error.unwrap_or("well");
            self.note(&format!("after {destination} ({error})"), envelope);
            Err(Failure::retry("only logged"))
        }
    }

    let notes = Arc::new(Mutex::new(Vec::new()));
    let memory = MemoryTransport::new();
    let interceptors: Vec<Arc<dyn Interceptor>> = vec![
        Arc::new(Noting("outer", Arc::clone(&notes))),
        Arc::new(Noting("inner", Arc::clone(&notes))),
    ];
    let events = vec![of("Fine", 1, 0), of("Refused", 1, 1)];
    let refused = events[1].id();
    on.enqueue(events).await;
    let relay = on.relay(memory.clone(), quick()).with_interceptors(interceptors);
    let stats = relay.relay_once().await.unwrap();
    assert_eq!((stats.delivered, stats.dead), (1, 1));
    assert_eq!(on.record(refused).await.last_error.as_deref(), Some("not this one"));
    let wanted = [
        "outer before Fine",
        "inner before Fine",
        "outer before Refused",
        "inner after memory (well) Fine",
        "outer after memory (well) Fine",
        "outer after memory (not this one) Refused",
    ];
    let notes = notes.lock().unwrap().clone();
    // The two events fly together; each goes through in order.
    for event in ["Fine", "Refused"] {
        let of = |lines: &[String]| -> Vec<String> {
            lines.iter().filter(|line| line.ends_with(event)).cloned().collect()
        };
        let wanted: Vec<String> = wanted.iter().map(|line| (*line).to_owned()).collect();
        assert_eq!(of(&notes), of(&wanted));
    }
}

/// Is away for all but what it is tried with, and lets that wait.
struct Hesitates {
    calls: AtomicUsize,
    answer: Arc<Semaphore>,
}

#[async_trait]
impl Transport for Hesitates {
    fn name(&self) -> &str {
        "hesitates"
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        if self.calls.fetch_add(1, Ordering::SeqCst) == 0 {
            return vec![Outcome::unavailable("not yet"); batch.len()];
        }
        self.answer.acquire().await.unwrap().forget();
        vec![Outcome::Delivered; batch.len()]
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_breaker_is_reported_as_half_open_while_its_destination_is_tried() {
    let on = sqlx::Sqlite::fixture().await;
    let answer = Arc::new(Semaphore::new(0));
    let transport = Hesitates { calls: AtomicUsize::new(0), answer: Arc::clone(&answer) };
    let relay = on.relay(transport, quick());
    on.enqueue(vec![of("Left", 1, 1)]).await;
    relay.start().await.unwrap();
    let reported = async |state: Option<&str>| {
        asked("a report", async || {
            let relays = on.store.relays().await.unwrap();
            let breaker = relays.iter().find_map(|relay| relay.breakers.first());
            breaker.map(|breaker| breaker.state.as_str()) == state
        })
        .await;
    };
    reported(Some("half_open")).await;
    answer.add_permits(10);
    until(&relay, "delivery", |stats| stats.delivered == 1).await;
    reported(None).await;
    assert_eq!(relay.stop().await.unwrap().unavailable, 1);
    on.clean().await;
}
