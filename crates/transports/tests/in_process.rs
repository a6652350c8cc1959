//! Handlers and the event bus: who gets an event, and what becomes of it when they refuse.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use posthaste_core::{
    Envelope, Event, EventBuilder, Failure, TypedEvent,
    transport::{Outcome, Transport},
};
use posthaste_transports::{bus::EventBus, handlers::Handlers};

const MARKER: &str = "marker-7c1f";

#[derive(Debug, thiserror::Error)]
#[error("could not read {0:?}")]
struct Talkative(String);

fn placed() -> Envelope {
    envelope(Event::builder("OrderPlaced").aggregate("Order", 7))
}

fn envelope(event: EventBuilder) -> Envelope {
    Envelope {
        topic: None,
        sequence: 1,
        attempts: 0,
        replay: 0,
        created_at: Timestamp::now(),
        event: event.raw_json(format!("{{\"secret\":\"{MARKER}\"}}")).build().unwrap(),
    }
}

fn talkative(envelope: &Envelope) -> Talkative {
    Talkative(String::from_utf8_lossy(envelope.event.payload()).into_owned())
}

async fn outcome(transport: &dyn Transport, envelope: Envelope) -> Outcome {
    let mut outcomes = transport.publish(&[envelope]).await;
    assert_eq!(outcomes.len(), 1);
    outcomes.remove(0)
}

#[tokio::test]
async fn an_event_goes_to_the_handler_of_its_aggregate_and_type() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = |by: usize| {
        let calls = Arc::clone(&calls);
        move |_| {
            calls.fetch_add(by, Ordering::Relaxed);
            async { Ok(()) }
        }
    };
    let handlers = Handlers::new("handlers")
        .on("Order", "OrderPlaced", count(1))
        .unwrap()
        .on("Invoice", "OrderPlaced", count(10))
        .unwrap()
        .on_global("DayEnded", count(100))
        .unwrap();

    assert_eq!(outcome(&handlers, placed()).await, Outcome::Delivered);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    let global = envelope(Event::builder("DayEnded"));
    assert_eq!(outcome(&handlers, global).await, Outcome::Delivered);
    assert_eq!(calls.load(Ordering::Relaxed), 101);
}

#[tokio::test]
async fn an_event_without_a_handler_is_dead_and_its_type_is_named() {
    let handlers = Handlers::new("handlers").on("Order", "OrderPaid", async |_| Ok(())).unwrap();
    let Outcome::Dead { error } = outcome(&handlers, placed()).await else {
        panic!("it is not dead");
    };
    assert_eq!(error, "no handler for OrderPlaced of Order");
}

#[test]
fn a_second_handler_for_the_same_events_is_refused() {
    let handlers = Handlers::new("handlers").on("Order", "OrderPlaced", async |_| Ok(())).unwrap();
    let Err(error) = handlers.on("Order", "OrderPlaced", async |_| Ok(())) else {
        panic!("it was taken");
    };
    assert!(error.to_string().contains("OrderPlaced of Order"), "{error}");
}

#[tokio::test]
async fn a_failing_handler_says_what_becomes_of_the_event_and_nothing_of_its_payload() {
    let failing = async |envelope: Envelope| Err::<(), Failure>(talkative(&envelope).into());
    let handlers = Handlers::new("handlers").on("Order", "OrderPlaced", failing).unwrap();
    let Outcome::Retry { error, after: None } = outcome(&handlers, placed()).await else {
        panic!("it is no retry that counts");
    };
    assert!(error.contains("Talkative") && !error.contains(MARKER), "{error}");

    let dead = async |_| Err(Failure::dead("an order without lines"));
    let handlers = Handlers::new("handlers").on("Order", "OrderPlaced", dead).unwrap();
    assert_eq!(outcome(&handlers, placed()).await, Outcome::dead("an order without lines"));
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Placed {
    total: u64,
}

impl TypedEvent for Placed {
    const TYPE: &'static str = "OrderPlaced";
    const VERSION: i32 = 2;
    const AGGREGATE: &'static str = "Order";
}

#[tokio::test]
async fn a_typed_handler_gets_its_event_and_what_does_not_fit_is_dead_but_a_newer_version_comes_again()
 {
    let handlers = Handlers::new("handlers")
        .on_event(async |placed: Placed, envelope| match envelope.event.aggregate_id() {
            Some("7") if placed.total == 1999 => Ok(()),
            _ => Err(Failure::dead("another one")),
        })
        .unwrap();
    let of = |event: EventBuilder| Envelope {
        event: event.aggregate_id(7).build().unwrap(),
        ..envelope(Event::builder("any"))
    };
    let placed = Event::of(&Placed { total: 1999 });
    assert_eq!(outcome(&handlers, of(placed)).await, Outcome::Delivered);

    let newer = Event::of(&Placed { total: 1999 }).schema_version(3);
    let unknown = "version 3 of OrderPlaced is not known here, version 2 is";
    let Outcome::Retry { error, after: Some(_) } = outcome(&handlers, of(newer)).await else {
        panic!("it is no retry that counts no attempt");
    };
    assert_eq!(error, unknown);

    let broken = Event::of(&Placed { total: 0 }).raw_json(format!("{{\"total\":\"{MARKER}\"}}"));
    let Outcome::Dead { error } = outcome(&handlers, of(broken)).await else {
        panic!("it is not dead");
    };
    assert!(error.contains("does not fit") && !error.contains(MARKER), "{error}");
}

#[tokio::test]
async fn every_subscriber_runs_and_their_refusals_are_joined() {
    let ran = Arc::new(AtomicUsize::new(0));
    let counts = {
        let ran = Arc::clone(&ran);
        move |_| {
            ran.fetch_add(1, Ordering::Relaxed);
            async { Ok(()) }
        }
    };
    let bus = EventBus::new("bus")
        .subscribe("stubborn", "OrderPlaced", async |_| Err(Failure::dead("never")))
        .subscribe("panicking", "OrderPlaced", async |envelope: Envelope| {
            panic!("{}", talkative(&envelope));
        })
        .subscribe("quick to panic", "OrderPlaced", |envelope: Envelope| {
            assert!(envelope.event.payload().is_empty(), "{}", talkative(&envelope));
            async { Ok(()) }
        })
        .subscribe("elsewhere", "OrderPaid", async |_| Err(Failure::dead("not asked")))
        .subscribe_all("audit", counts);
    let Outcome::Retry { error, after: None } = outcome(&bus, placed()).await else {
        panic!("one of them may still take it");
    };
    assert_eq!(error, "stubborn: never; panicking: panicked; quick to panic: panicked");
    assert_eq!(ran.load(Ordering::Relaxed), 1, "the others run all the same");
}

#[tokio::test]
async fn an_event_is_dead_when_all_that_refused_it_always_will() {
    let bus = EventBus::new("bus")
        .subscribe("a", "OrderPlaced", async |_| Err(Failure::dead("never")))
        .subscribe_all("b", async |_| Ok(()));
    assert_eq!(outcome(&bus, placed()).await, Outcome::dead("a: never"));
}

#[tokio::test]
async fn no_attempt_is_counted_when_all_that_may_still_take_an_event_named_a_time() {
    let bus = EventBus::new("bus")
        .subscribe("a", "OrderPlaced", async |_| Err(Failure::dead("never")))
        .subscribe("b", "OrderPlaced", async |_| {
            Err(Failure::retry_after("soon", Duration::from_secs(5)))
        })
        .subscribe("c", "OrderPlaced", async |_| {
            Err(Failure::retry_after("later", Duration::from_mins(1)))
        });
    let error = "a: never; b: soon; c: later".to_owned();
    let waits = Outcome::Retry { error, after: Some(Duration::from_mins(1)) };
    assert_eq!(outcome(&bus, placed()).await, waits);

    let bus = bus.subscribe("d", "OrderPlaced", async |_| Err(Failure::retry("not now")));
    let counts = Outcome::retry("a: never; b: soon; c: later; d: not now");
    assert_eq!(outcome(&bus, placed()).await, counts);
}

#[tokio::test]
async fn an_event_that_nobody_wants_comes_again() {
    let bus = EventBus::new("bus").subscribe("a", "OrderPaid", async |_| Ok(()));
    let nobody = Outcome::retry("nobody has subscribed to OrderPlaced");
    assert_eq!(outcome(&bus, placed()).await, nobody);
}
