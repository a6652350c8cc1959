//! A destination gets another name, or events another route, while some of them wait: the order of each
//! key is kept, and nothing stays behind.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use posthaste::{
    Envelope, Event, Status,
    relay::{Config, Destination, OnDead, Relay, Route, Routes},
    store::{Filter, Pausable, RelayOrdering, Selection},
    transport::{Outcome, Transport},
};
use posthaste_testkit::wait::asked;

use crate::support::{Fixture, TestDatabase, quick, until};

on_every_database!(
    a_renamed_destination_keeps_the_order_behind_one_that_waits,
    what_fails_at_the_new_name_brings_its_followers_back,
    a_new_route_keeps_the_order_behind_one_that_waits,
    followers_get_another_route_and_what_they_wait_for_does_not,
    behind_a_dead_event_nothing_goes_before_an_operator_acts,
    two_destinations_are_renamed_at_once,
    a_pause_of_the_old_name_holds_nothing_back,
    a_destination_is_renamed_twice,
    a_key_with_two_destinations_goes_on_at_the_one_that_was_not_changed,
    under_one_order_for_all_a_rename_changes_nothing,
    relays_of_different_routes_take_turns,
    with_one_lane_in_memory_a_new_name_keeps_the_order,
    with_one_lane_in_memory_a_new_route_keeps_the_order,
    with_one_lane_in_memory_nothing_passes_a_dead_event_of_another_route,
);

/// Key, number and place of each first delivery, in their order.
type Deliveries = Arc<Mutex<Vec<(String, usize, &'static str)>>>;

/// What is answered to an event of this key and number.
type Answers = Arc<dyn Fn(&Envelope, usize) -> Outcome + Send + Sync>;

struct Place {
    name: &'static str,
    deliveries: Deliveries,
    answers: Answers,
}

#[async_trait]
impl Transport for Place {
    fn name(&self) -> &str {
        self.name
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        let answer = |envelope: &Envelope| {
            let number = number(envelope);
            let outcome = (self.answers)(envelope, number);
            if outcome == Outcome::Delivered {
                let key = envelope.event.aggregate_id().unwrap().to_owned();
                let mut deliveries = self.deliveries.lock().unwrap();
                if !deliveries.iter().any(|known| known.0 == key && known.1 == number) {
                    deliveries.push((key, number, self.name));
                }
            }
            outcome
        };
        batch.iter().map(answer).collect()
    }
}

fn number(envelope: &Envelope) -> usize {
    serde_json::from_slice(envelope.event.payload()).unwrap()
}

/// Where events go: each type to the place of this name.
#[derive(Clone)]
struct Setup {
    deliveries: Deliveries,
    routes: Vec<(&'static str, &'static str)>,
    answers: Answers,
    config: Config,
}

impl Setup {
    fn new(routes: &[(&'static str, &'static str)], config: Config) -> Self {
        let answers: Answers = Arc::new(|_, _| Outcome::Delivered);
        Self { deliveries: Deliveries::default(), routes: routes.to_vec(), answers, config }
    }

    fn answering(
        &self,
        answers: impl Fn(&Envelope, usize) -> Outcome + Send + Sync + 'static,
    ) -> Self {
        Self { answers: Arc::new(answers), ..self.clone() }
    }

    fn routed(&self, routes: &[(&'static str, &'static str)]) -> Self {
        Self { routes: routes.to_vec(), ..self.clone() }
    }

    fn relay<DB: TestDatabase>(&self, on: &Fixture<DB>) -> Relay {
        let place = |name| Place {
            name,
            deliveries: Arc::clone(&self.deliveries),
            answers: Arc::clone(&self.answers),
        };
        let mut names: Vec<&'static str> = self.routes.iter().map(|route| route.1).collect();
        names.sort_unstable();
        names.dedup();
        let config = self.config.clone();
        if self.routes.iter().all(|route| route.0 == "*") {
            return Relay::new(on.store(), Arc::new(place(names[0])), config).unwrap();
        }
        let destinations =
            names.into_iter().map(|name| Destination::new(Arc::new(place(name)))).collect();
        let routes = self
            .routes
            .iter()
            .fold(Routes::new(), |all, (of, to)| all.route(Route::to(*to).event_type(*of)));
        Relay::routed(on.store(), destinations, routes, config).unwrap()
    }

    fn count(&self) -> usize {
        self.deliveries.lock().unwrap().len()
    }

    /// The numbers of a key in the order of their delivery, of this type: each number has one.
    fn of(&self, key: usize, which: impl Fn(usize) -> bool) -> Vec<usize> {
        let deliveries = self.deliveries.lock().unwrap();
        let of_key = deliveries.iter().filter(|(of, ..)| *of == key.to_string());
        of_key.map(|(_, number, _)| *number).filter(|number| which(*number)).collect()
    }

    fn places(&self, key: usize) -> BTreeMap<usize, &'static str> {
        let deliveries = self.deliveries.lock().unwrap();
        let of_key = deliveries.iter().filter(|(of, ..)| *of == key.to_string());
        of_key.map(|(_, number, place)| (*number, *place)).collect()
    }
}

fn of(event_type: &str, key: usize, number: usize) -> Event {
    Event::builder(event_type).aggregate("Order", key).payload(&number).build().unwrap()
}

/// Even numbers of one type, odd ones of another.
fn mixed(key: usize, number: usize) -> Event {
    of(if number.is_multiple_of(2) { "Even" } else { "Odd" }, key, number)
}

fn listed(numbers: impl Iterator<Item = usize>) -> Vec<usize> {
    numbers.collect()
}

fn refused_for(wait: Duration) -> Outcome {
    Outcome::Retry { error: "not now".to_owned(), after: Some(wait) }
}

/// Long enough for a relay to be stopped, and for another to read what is written then.
const WAIT: Duration = Duration::from_millis(1500);

/// The first event of keys 0 to 2 is refused and its four followers are held, then the relay stops. Key 9
/// has nothing in its way.
async fn block<DB: TestDatabase>(
    on: &Fixture<DB>,
    setup: &Setup,
    event: impl Fn(usize, usize) -> Event,
    refusal: Outcome,
) {
    let events = (0..5).flat_map(|n| [event(0, n), event(1, n), event(2, n), event(9, n)]);
    on.enqueue(events.collect()).await;
    let refusing = setup.answering(move |envelope, number| {
        if number == 0 && envelope.event.aggregate_id() != Some("9") {
            return refusal.clone();
        }
        Outcome::Delivered
    });
    let relay = refusing.relay(on);
    relay.start().await.unwrap();
    until(&relay, "the followers", |stats| stats.held >= 12 && stats.delivered >= 5).await;
    relay.stop().await.unwrap();
    assert_eq!(setup.of(9, |_| true), [0, 1, 2, 3, 4]);
    assert_eq!(setup.count(), 5);
}

/// Numbers 5 to 9 of all keys are written, and everything is delivered.
async fn go_on<DB: TestDatabase>(
    on: &Fixture<DB>,
    setup: &Setup,
    event: impl Fn(usize, usize) -> Event,
) {
    let relay = setup.relay(on);
    relay.start().await.unwrap();
    let fresh = (5..10).flat_map(|n| [event(0, n), event(1, n), event(2, n), event(9, n)]);
    on.enqueue(fresh.collect()).await;
    asked("the rest", async || setup.count() == 40).await;
    until(&relay, "its end", |stats| stats.idle && stats.in_memory == 0).await;
    relay.stop().await.unwrap();
    assert_eq!(on.number("select count(*) from {events} where sent_at is null").await, 0);
}

fn dead() -> Filter {
    Filter { status: Some(Status::Dead), ..Filter::default() }
}

async fn discard_the_dead<DB: TestDatabase>(on: &Fixture<DB>) {
    let dead = Selection::Matching { filter: dead(), limit: 100 };
    assert!(on.store.discard(&dead).await.unwrap() > 0);
}

async fn a_renamed_destination_keeps_the_order_behind_one_that_waits<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let event = |key, number| of("Placed", key, number);
    let setup = Setup::new(&[("*", "old")], quick());
    block(on, &setup, event, refused_for(WAIT)).await;
    let renamed = setup.routed(&[("*", "new")]);
    go_on(on, &renamed, event).await;
    for key in 0..3 {
        assert_eq!(setup.of(key, |_| true), listed(0..10), "key {key}");
        assert!(setup.places(key).values().all(|place| *place == "new"));
    }
}

async fn what_fails_at_the_new_name_brings_its_followers_back<DB: TestDatabase>(on: &Fixture<DB>) {
    let event = |key, number| of("Placed", key, number);
    let setup = Setup::new(&[("*", "old")], quick());
    block(on, &setup, event, refused_for(Duration::from_millis(50))).await;
    let renamed = setup.routed(&[("*", "new")]).answering(|envelope, number| {
        if envelope.attempts == 0 && number.is_multiple_of(3) {
            return Outcome::retry("once");
        }
        Outcome::Delivered
    });
    go_on(on, &renamed, event).await;
    for key in 0..3 {
        assert_eq!(setup.of(key, |_| true), listed(0..10), "key {key}");
    }
}

async fn a_new_route_keeps_the_order_behind_one_that_waits<DB: TestDatabase>(on: &Fixture<DB>) {
    let setup = Setup::new(&[("Even", "a"), ("Odd", "a"), ("Other", "b")], quick());
    block(on, &setup, mixed, refused_for(WAIT)).await;
    let rerouted = setup.routed(&[("Even", "b"), ("Odd", "a"), ("Other", "b")]);
    go_on(on, &rerouted, mixed).await;
    for key in 0..3 {
        assert_eq!(setup.of(key, |n| n % 2 == 0), [0, 2, 4, 6, 8], "key {key}");
        assert_eq!(setup.of(key, |n| n % 2 == 1), [1, 3, 5, 7, 9], "key {key}");
        let places = setup.places(key);
        assert!(places.iter().all(|(n, place)| *place == if n % 2 == 0 { "b" } else { "a" }));
    }
}

async fn followers_get_another_route_and_what_they_wait_for_does_not<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let setup = Setup::new(&[("Even", "a"), ("Odd", "a"), ("Other", "b")], quick());
    block(on, &setup, mixed, refused_for(WAIT)).await;
    let rerouted = setup.routed(&[("Even", "a"), ("Odd", "b")]);
    go_on(on, &rerouted, mixed).await;
    for key in 0..3 {
        assert_eq!(setup.of(key, |n| n % 2 == 0), [0, 2, 4, 6, 8], "key {key}");
        assert_eq!(setup.of(key, |n| n % 2 == 1), [1, 3, 5, 7, 9], "key {key}");
    }
}

async fn behind_a_dead_event_nothing_goes_before_an_operator_acts<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let event = |key, number| of("Placed", key, number);
    let config = Config { on_dead: OnDead::Park, ..quick() };
    let setup = Setup::new(&[("*", "old")], config);
    block(on, &setup, event, Outcome::dead("never")).await;
    let renamed = setup.routed(&[("*", "new")]);
    for round in 0..2 {
        // The second time the followers are found where the first relay has put them.
        let relay = renamed.relay(on);
        relay.start().await.unwrap();
        let numbers = 5 + round * 2..7 + round * 2;
        let fresh = numbers.clone().flat_map(|n| [event(0, n), event(1, n), event(9, n)]);
        on.enqueue(fresh.collect()).await;
        until(&relay, "what can go", |stats| stats.delivered >= 2 && stats.idle).await;
        relay.stop().await.unwrap();
        assert_eq!(setup.of(9, |_| true), listed(0..numbers.end));
        assert_eq!(setup.count(), numbers.end, "something went before the dead event");
    }
    let relay = renamed.relay(on);
    relay.start().await.unwrap();
    // One is sent again, the others are given up.
    let filter = Filter { aggregate_id: Some("1".to_owned()), ..dead() };
    let selection = Selection::Matching { filter, limit: 1 };
    assert_eq!(on.store.replay(&selection).await.unwrap(), 1);
    discard_the_dead(on).await;
    on.enqueue(vec![event(0, 9), event(1, 9), event(2, 9)]).await;
    asked("the rest", async || setup.count() == 9 + 9 + 10 + 5).await;
    until(&relay, "its end", |stats| stats.idle && stats.in_memory == 0).await;
    relay.stop().await.unwrap();
    assert_eq!(setup.of(0, |_| true), listed(1..10));
    assert_eq!(setup.of(1, |_| true), listed(0..10));
    assert_eq!(setup.of(2, |_| true), [1, 2, 3, 4, 9]);
}

async fn two_destinations_are_renamed_at_once<DB: TestDatabase>(on: &Fixture<DB>) {
    let setup = Setup::new(&[("Even", "a"), ("Odd", "b")], quick());
    on.enqueue((0..10).map(|n| mixed(0, n)).collect()).await;
    let refusing = setup.answering(
        |_, number| {
            if number < 2 { refused_for(WAIT) } else { Outcome::Delivered }
        },
    );
    let relay = refusing.relay(on);
    relay.start().await.unwrap();
    until(&relay, "the followers", |stats| stats.held >= 8).await;
    relay.stop().await.unwrap();
    assert_eq!(setup.count(), 0);

    let renamed = setup.routed(&[("Even", "c"), ("Odd", "d")]);
    let relay = renamed.relay(on);
    relay.start().await.unwrap();
    on.enqueue((10..20).map(|n| mixed(0, n)).collect()).await;
    asked("all", async || setup.count() == 20).await;
    relay.stop().await.unwrap();
    assert_eq!(setup.of(0, |n| n % 2 == 0), listed((0..20).step_by(2)));
    assert_eq!(setup.of(0, |n| n % 2 == 1), listed((1..20).step_by(2)));
}

async fn a_pause_of_the_old_name_holds_nothing_back<DB: TestDatabase>(on: &Fixture<DB>) {
    let event = |key, number| of("Placed", key, number);
    let setup = Setup::new(&[("*", "old")], quick());
    block(on, &setup, event, refused_for(Duration::from_millis(50))).await;
    on.store.pause(&Pausable::Destination("old".to_owned()), "test", None).await.unwrap();
    go_on(on, &setup.routed(&[("*", "new")]), event).await;
    for key in 0..3 {
        assert_eq!(setup.of(key, |_| true), listed(0..10), "key {key}");
    }
}

async fn a_destination_is_renamed_twice<DB: TestDatabase>(on: &Fixture<DB>) {
    let event = |key, number| of("Placed", key, number);
    let setup = Setup::new(&[("*", "old")], quick());
    block(on, &setup, event, refused_for(Duration::from_millis(50))).await;
    let second = setup.routed(&[("*", "mid")]).answering(|envelope, number| {
        if number == 0 && envelope.event.aggregate_id() != Some("9") {
            return refused_for(WAIT);
        }
        Outcome::Delivered
    });
    let relay = second.relay(on);
    relay.start().await.unwrap();
    on.enqueue((0..3).map(|key| event(key, 5)).collect()).await;
    until(&relay, "the fresh ones", |stats| stats.retried >= 3 && stats.held >= 3).await;
    relay.stop().await.unwrap();
    assert_eq!(setup.count(), 5);

    let relay = setup.routed(&[("*", "new")]).relay(on);
    relay.start().await.unwrap();
    on.enqueue((0..3).map(|key| event(key, 6)).collect()).await;
    asked("all", async || setup.count() == 5 + 21).await;
    relay.stop().await.unwrap();
    for key in 0..3 {
        assert_eq!(setup.of(key, |_| true), listed(0..7), "key {key}");
    }
}

async fn a_key_with_two_destinations_goes_on_at_the_one_that_was_not_changed<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let config = Config { on_dead: OnDead::Park, ..quick() };
    let routes = [("Even", "a"), ("Odd", "b"), ("Other", "a")];
    let setup = Setup::new(&routes, config);
    on.enqueue((0..10).map(|n| mixed(0, n)).collect()).await;
    let refusing = setup.answering(|_, number| match number {
        0 => Outcome::dead("never"),
        _ => Outcome::Delivered,
    });
    let relay = refusing.relay(on);
    relay.start().await.unwrap();
    until(&relay, "the others", |stats| stats.held >= 4 && stats.delivered >= 5).await;
    relay.stop().await.unwrap();

    let rerouted = setup.routed(&[("Even", "a"), ("Odd", "b"), ("Other", "b")]);
    let relay = rerouted.relay(on);
    relay.start().await.unwrap();
    on.enqueue((10..20).map(|n| mixed(0, n)).collect()).await;
    asked("what goes to b", async || setup.count() == 10).await;
    until(&relay, "its end", |stats| stats.idle).await;
    assert_eq!(setup.of(0, |_| true), listed((1..20).step_by(2)));
    discard_the_dead(on).await;
    asked("the rest", async || setup.count() == 19).await;
    assert_eq!(setup.of(0, |n| n % 2 == 0), listed((2..20).step_by(2)));
    relay.stop().await.unwrap();
}

async fn under_one_order_for_all_a_rename_changes_nothing<DB: TestDatabase>(on: &Fixture<DB>) {
    let config = Config { ordering: RelayOrdering::Global, ..quick() };
    let setup = Setup::new(&[("*", "old")], config);
    on.enqueue((0..5).map(|n| of("Placed", n, n)).collect()).await;
    let relay = setup.answering(|_, _| refused_for(WAIT)).relay(on);
    relay.start().await.unwrap();
    until(&relay, "the refusal", |stats| stats.retried >= 1).await;
    relay.stop().await.unwrap();
    let relay = setup.routed(&[("*", "new")]).relay(on);
    relay.start().await.unwrap();
    on.enqueue((5..10).map(|n| of("Placed", n, n)).collect()).await;
    asked("all", async || setup.count() == 10).await;
    let order: Vec<usize> = setup.deliveries.lock().unwrap().iter().map(|known| known.1).collect();
    assert_eq!(order, listed(0..10));
    relay.stop().await.unwrap();
}

async fn relays_of_different_routes_take_turns<DB: TestDatabase>(on: &Fixture<DB>) {
    const KEYS: usize = 12;
    let config = quick();
    // Each fourth is refused twice, whoever asks.
    let refusals: Mutex<BTreeMap<(usize, usize), usize>> = Mutex::default();
    let refusing = move |envelope: &Envelope, number: usize| {
        let key: usize = envelope.event.aggregate_id().unwrap().parse().unwrap();
        let mut refusals = refusals.lock().unwrap();
        let refused = refusals.entry((key, number)).or_default();
        if *refused < 2 && (number + key).is_multiple_of(4) {
            *refused += 1;
            return refused_for(Duration::from_millis(60));
        }
        Outcome::Delivered
    };
    let old = Setup::new(&[("Even", "old"), ("Odd", "side")], config).answering(refusing);
    let new = old.routed(&[("Even", "new"), ("Odd", "side"), ("Other", "old")]);
    let mut written = 0;
    let mut running: Option<Relay> = None;
    for round in 0..6 {
        let setup = if round % 2 == 0 { &old } else { &new };
        let relay = setup.relay(on);
        relay.start().await.unwrap();
        for _ in 0..10 {
            on.enqueue((0..KEYS).map(|key| mixed(key, written)).collect()).await;
            written += 1;
        }
        // Both of them work, until the shards are shared out.
        if running.is_some() {
            until(&relay, "its share", |stats| stats.shards_owned > 0 || stats.shards == 1).await;
        }
        for _ in 0..10 {
            on.enqueue((0..KEYS).map(|key| mixed(key, written)).collect()).await;
            written += 1;
        }
        if let Some(before) = running.replace(relay) {
            before.stop().await.unwrap();
        }
    }
    asked("all", async || old.count() == written * KEYS).await;
    running.unwrap().stop().await.unwrap();
    for key in 0..KEYS {
        for part in 0..2 {
            let numbers = old.of(key, |n| n % 2 == part);
            assert!(numbers.is_sorted(), "key {key}: {numbers:?}");
        }
    }
}

/// What other keys have in their way is in the table only.
fn one_lane() -> Config {
    Config { blocked_lanes: 1, ..quick() }
}

async fn with_one_lane_in_memory_a_new_name_keeps_the_order<DB: TestDatabase>(on: &Fixture<DB>) {
    let event = |key, number| of("Placed", key, number);
    let setup = Setup::new(&[("*", "old")], one_lane());
    block(on, &setup, event, refused_for(WAIT)).await;
    go_on(on, &setup.routed(&[("*", "new")]), event).await;
    for key in 0..3 {
        assert_eq!(setup.of(key, |_| true), (0..10).collect::<Vec<_>>(), "key {key}");
    }
}

async fn with_one_lane_in_memory_a_new_route_keeps_the_order<DB: TestDatabase>(on: &Fixture<DB>) {
    let setup = Setup::new(&[("Even", "a"), ("Odd", "a"), ("Other", "b")], one_lane());
    block(on, &setup, mixed, refused_for(WAIT)).await;
    let rerouted = setup.routed(&[("Even", "b"), ("Odd", "a"), ("Other", "b")]);
    go_on(on, &rerouted, mixed).await;
    for key in 0..3 {
        assert_eq!(setup.of(key, |n| n % 2 == 0), [0, 2, 4, 6, 8], "key {key}");
        assert_eq!(setup.of(key, |n| n % 2 == 1), [1, 3, 5, 7, 9], "key {key}");
    }
}

async fn with_one_lane_in_memory_nothing_passes_a_dead_event_of_another_route<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let config = Config { on_dead: OnDead::Park, ..one_lane() };
    let setup = Setup::new(&[("Even", "a"), ("Odd", "a"), ("Other", "b")], config);
    block(on, &setup, mixed, Outcome::dead("never")).await;
    let rerouted = setup.routed(&[("Even", "b"), ("Odd", "a"), ("Other", "b")]);
    let relay = rerouted.relay(on);
    relay.start().await.unwrap();
    on.enqueue((0..3).flat_map(|key| (5..7).map(move |n| mixed(key, n))).collect()).await;
    on.enqueue(vec![mixed(9, 5)]).await;
    until(&relay, "what can go", |stats| stats.delivered >= 1 && stats.idle).await;
    assert_eq!(setup.count(), 6, "something went before the dead event");
    discard_the_dead(on).await;
    on.enqueue((0..3).map(|key| mixed(key, 7)).collect()).await;
    asked("the rest", async || setup.count() == 6 + 3 * 7).await;
    relay.stop().await.unwrap();
    for key in 0..3 {
        assert_eq!(setup.of(key, |n| n % 2 == 0), [2, 4, 6], "key {key}");
        assert_eq!(setup.of(key, |n| n % 2 == 1), [1, 3, 5, 7], "key {key}");
    }
}
