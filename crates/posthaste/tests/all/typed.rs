//! Typed events, from the derive through the outbox to a handler.

use std::sync::{Arc, Mutex};

use crate::support::{TestDatabase, quick};
use posthaste::{
    Event, Ordering, Status, TypedEvent, transports::handlers::Handlers, typed::Value,
};
use serde::{Deserialize, Serialize};
use sqlx::Sqlite;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced", aggregate = "Order", version = 2, upcast = currency)]
struct Placed {
    #[event(aggregate_id)]
    order: u64,
    total: u64,
    currency: String,
}

/// Version 1 knew one currency.
fn currency(version: i32, mut payload: Value) -> Option<Value> {
    (version == 1).then(|| {
        payload["currency"] = "EUR".into();
        payload
    })
}

#[derive(Serialize, Event)]
struct Moved<'a>(#[event(ordering_key)] &'a str);

#[derive(Serialize, Event)]
#[event(unordered)]
struct Seen<T> {
    what: T,
}

fn placed() -> Placed {
    Placed { order: 7, total: 1999, currency: "CHF".to_owned() }
}

#[test]
fn the_derive_writes_what_the_attributes_say() {
    assert_eq!((Placed::TYPE, Placed::VERSION, Placed::AGGREGATE), ("OrderPlaced", 2, "Order"));
    let event = Event::of(&placed()).tenant("acme").build().unwrap();
    assert_eq!((event.aggregate_id(), event.tenant()), (Some("7"), Some("acme")));
    let event = Event::of(&Moved("shelf 3")).build().unwrap();
    assert_eq!((event.event_type(), event.schema_version()), ("Moved", 1));
    assert_eq!(event.ordering(), &Ordering::Key("shelf 3".to_owned()));
    let event = Event::of(&Seen { what: 1 }).build().unwrap();
    assert_eq!(event.ordering(), &Ordering::Unordered);
}

#[tokio::test]
async fn a_typed_event_reaches_its_handler_one_that_cannot_be_read_is_dead_and_a_newer_one_retried()
{
    let on = Sqlite::fixture().await;
    let outbox = on.outbox();
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    outbox.enqueue(&mut tx, placed()).await.unwrap();
    outbox.enqueue(&mut tx, Event::of(&placed()).tenant("acme")).await.unwrap();
    outbox.enqueue(&mut tx, ("DayEnded", &[1, 2])).await.unwrap();
    let old = Event::of(&placed()).schema_version(1).raw_json(r#"{"order":7,"total":5}"#);
    outbox.enqueue(&mut tx, old).await.unwrap();
    let broken = Event::of(&placed()).raw_json(r#"{"order":"marker-31","total":5}"#);
    let newer = Event::of(&placed()).schema_version(3);
    let mut refused = Vec::new();
    for event in [broken, newer] {
        refused.push(outbox.enqueue(&mut tx, event).await.unwrap().unwrap().id);
    }
    tx.commit().await.unwrap();

    let seen = Arc::new(Mutex::new(Vec::new()));
    let see = Arc::clone(&seen);
    let handlers = Handlers::new("handlers")
        .on_event(move |placed: Placed, _| {
            see.lock().unwrap().push(placed);
            async { Ok(()) }
        })
        .unwrap()
        .on_global("DayEnded", async |_| Ok(()))
        .unwrap();
    let stats = on.relay(handlers, quick()).relay_once().await.unwrap();
    assert_eq!((stats.delivered, stats.dead, stats.retried), (4, 1, 1));
    let lifted = Placed { total: 5, currency: "EUR".to_owned(), ..placed() };
    let mut seen = seen.lock().unwrap().clone();
    seen.sort_by_key(|placed| placed.total);
    assert_eq!(seen, [lifted, placed(), placed()]);
    let expected =
        [(Status::Dead, "does not fit"), (Status::Retry, "version 3 of OrderPlaced is not known")];
    let newer = refused[1];
    for (id, (status, reason)) in refused.into_iter().zip(expected) {
        let record = on.record(id).await;
        assert_eq!(record.status, status);
        let error = record.last_error.unwrap();
        assert!(error.contains(reason) && !error.contains("marker"), "{error}");
    }
    // A deployment may take longer than ten of them.
    assert_eq!(on.record(newer).await.attempts, 0, "an attempt was counted");
    on.clean().await;
}
