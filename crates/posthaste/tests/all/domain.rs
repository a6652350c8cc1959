//! Aggregates that raise events, and units of work that write them.

use crate::support::{Fixture, TestDatabase, quick};
use posthaste::{
    Envelope, Event,
    domain::{Aggregate, Context, Events, Payload, Serializer, UnitOfWork},
    transports::memory::MemoryTransport,
};
use serde::Serialize;
use sqlx::{Postgres, Sqlite};

on_every_database!(
    events_of_several_aggregates_are_written_in_the_order_they_were_raised,
    a_failed_commit_leaves_the_events_and_a_second_one_does_not_repeat_them,
    what_is_rolled_back_or_dropped_stays_with_its_aggregate,
);

#[derive(Serialize, Event)]
struct Renamed {
    name: String,
}

#[derive(Serialize, Event)]
#[event(aggregate = "Invoice")]
struct Invoiced {
    #[event(aggregate_id)]
    invoice: u64,
}

#[derive(Default)]
struct Shelf {
    id: u64,
    events: Events,
}

impl Shelf {
    fn new(id: u64) -> Self {
        Self { id, events: Events::new() }
    }

    fn rename(&mut self, name: &str) {
        self.raise(Renamed { name: name.to_owned() });
    }
}

impl Aggregate for Shelf {
    const TYPE: &'static str = "Shelf";

    fn aggregate_id(&self) -> String {
        self.id.to_string()
    }

    fn events(&self) -> &Events {
        &self.events
    }
}

/// Aggregate id and payload of all events, in the order in which they were written.
async fn written<DB: TestDatabase>(on: &Fixture<DB>) -> Vec<String> {
    delivered(on).await.iter().map(line).collect()
}

async fn delivered<DB: TestDatabase>(on: &Fixture<DB>) -> Vec<Envelope> {
    let transport = MemoryTransport::new();
    on.relay(transport.clone(), quick()).relay_once().await.unwrap();
    let mut delivered = transport.delivered();
    delivered.sort_by_key(|envelope| envelope.sequence);
    delivered
}

fn line(envelope: &Envelope) -> String {
    let event = &envelope.event;
    let id = event.aggregate_id().unwrap_or_default();
    format!("{} {id} {}", event.aggregate_type(), String::from_utf8_lossy(event.payload()))
}

async fn events_of_several_aggregates_are_written_in_the_order_they_were_raised<
    DB: TestDatabase,
>(
    on: &Fixture<DB>,
) {
    let outbox = on.outbox();
    let [mut a, mut b, mut c] = [1, 2, 3].map(Shelf::new);
    a.rename("one");
    c.rename("two");
    let mut work = UnitOfWork::begin(&outbox, &on.pool).await.unwrap();
    for shelf in [&c, &b, &a, &a] {
        work.track(shelf);
    }
    b.rename("three");
    a.rename("four");
    c.raise(Invoiced { invoice: 9 });
    let context = Context::new().tenant("acme").operator("ada").trace("00-1-2-01");
    let enqueued = work.with_context(context).commit().await.unwrap();
    assert_eq!(enqueued.len(), 5);
    assert!([&a, &b, &c].iter().all(|shelf| shelf.events.is_empty()));

    let delivered = delivered(on).await;
    let lines: Vec<_> = delivered.iter().map(line).collect();
    let told = [
        r#"Shelf 1 {"name":"one"}"#,
        r#"Shelf 3 {"name":"two"}"#,
        r#"Shelf 2 {"name":"three"}"#,
        r#"Shelf 1 {"name":"four"}"#,
        r#"Invoice 9 {"invoice":9}"#,
    ];
    assert_eq!(lines, told);
    for envelope in delivered {
        assert_eq!(envelope.event.tenant(), Some("acme"));
        assert_eq!(envelope.event.headers()["operator"], "ada");
        assert_eq!(envelope.event.headers()["traceparent"], "00-1-2-01");
    }
}

async fn a_failed_commit_leaves_the_events_and_a_second_one_does_not_repeat_them<
    DB: TestDatabase,
>(
    on: &Fixture<DB>,
) {
    let outbox = on.outbox();
    let mut shelf = Shelf::new(1);
    let id = shelf.raise(Renamed { name: "one".to_owned() });
    // The table is not there: the write fails, and with it the commit.
    let nowhere = posthaste::Outbox::new("posthaste_nowhere".parse().unwrap());
    let mut work = UnitOfWork::begin(&nowhere, &on.pool).await.unwrap();
    work.track(&shelf);
    work.commit().await.unwrap_err();
    assert_eq!(shelf.events.len(), 1);

    for _ in 0..2 {
        let mut work = UnitOfWork::begin(&outbox, &on.pool).await.unwrap();
        work.track(&shelf);
        work.commit().await.unwrap();
        assert!(shelf.events.is_empty());
    }
    assert!(on.store.event(id).await.unwrap().is_some(), "it has the id it was raised with");
    assert_eq!(written(on).await, [r#"Shelf 1 {"name":"one"}"#]);
}

async fn what_is_rolled_back_or_dropped_stays_with_its_aggregate<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let outbox = on.outbox();
    let mut shelf = Shelf::new(1);
    shelf.rename("one");
    for rolls_back in [true, false] {
        let mut work = UnitOfWork::begin(&outbox, &on.pool).await.unwrap();
        work.track(&shelf);
        if rolls_back {
            work.rollback().await.unwrap();
        }
    }
    assert_eq!(shelf.events.len(), 1);
    assert!(written(on).await.is_empty());
}

/// Three ways in which a commit fails on PostgreSQL: refused, a rollback in disguise, unknown.
#[tokio::test(flavor = "multi_thread")]
async fn only_a_certain_commit_takes_the_events_from_their_aggregates() {
    let on = Postgres::fixture().await;
    let outbox = on.outbox();
    on.sql("create table {events}_once (id int unique deferrable initially deferred)").await;
    let twice = on.tables.fill("insert into {events}_once values (1), (1)");
    let [mut a, mut b] = [1, 2].map(Shelf::new);
    a.rename("one");
    b.rename("two");
    for failure in ["refused", "disguised", "unknown"] {
        let mut work = UnitOfWork::begin(&outbox, &on.pool).await.unwrap();
        work.track(&a);
        work.track(&b);
        match failure {
            "refused" => Postgres::run_on(work.connection(), twice.clone()).await.unwrap(),
            "disguised" => {
                let broken = sqlx::query("select 1/0").execute(work.connection()).await;
                broken.unwrap_err();
            }
            _ => {
                let cut = "select pg_terminate_backend($1, 10000)";
                let pid: i32 = sqlx::query_scalar("select pg_backend_pid()")
                    .fetch_one(work.connection())
                    .await
                    .unwrap();
                sqlx::query(cut).bind(pid).execute(&on.pool).await.unwrap();
            }
        }
        let failed = work.commit().await;
        assert!(failed.is_err(), "{failure}");
        assert_eq!((a.events.len(), b.events.len()), (1, 1), "{failure}");
    }
    let mut work = UnitOfWork::begin(&outbox, &on.pool).await.unwrap();
    work.track(&a);
    work.track(&b);
    assert_eq!(work.commit().await.unwrap().len(), 2);
    assert_eq!(written(&on).await.len(), 2);
    on.sql("drop table {events}_once").await;
    on.clean().await;
}

/// Says only how many bytes of JSON there would be.
struct Lengths;

impl Serializer for Lengths {
    fn content_type(&self) -> &str {
        "text/plain"
    }

    fn serialize(
        &self,
        payload: &dyn Payload,
    ) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
        Ok(serde_json::to_vec(payload)?.len().to_string().into())
    }
}

#[tokio::test]
async fn serializer_and_clock_can_be_replaced() {
    let on = Sqlite::fixture().await;
    let noon: jiff::Timestamp = "2024-02-29T12:00:00Z".parse().unwrap();
    let mut shelf = Shelf { id: 1, events: Events::with_clock(move || noon) };
    shelf.rename("one");
    let mut work = UnitOfWork::begin(&on.outbox(), &on.pool)
        .await
        .unwrap()
        .with_context(Context::new().serializer(Lengths));
    work.track(&shelf);
    work.commit().await.unwrap();
    let event = delivered(&on).await.remove(0).event;
    assert_eq!((&event.payload()[..], event.content_type()), (&b"14"[..], "text/plain"));
    assert_eq!(event.occurred_at(), noon);
    on.clean().await;
}

#[test]
fn events_are_pulled_once_and_keep_their_id() {
    let mut shelf = Shelf::new(4);
    let id = shelf.raise(Renamed { name: "one".to_owned() });
    let pulled = shelf.pull_events();
    assert!(shelf.pull_events().is_empty());
    assert_eq!((pulled.len(), pulled[0].id()), (1, id));
    assert_eq!(pulled[0].event::<Renamed>().unwrap().name, "one");
    assert!(pulled[0].event::<Invoiced>().is_none());
    let event = Context::new().event(&shelf, &pulled[0]).unwrap();
    assert_eq!((event.id(), event.aggregate_type()), (id, "Shelf"));
    assert_eq!(event.aggregate_id(), Some("4"));
    assert_eq!(event.occurred_at(), pulled[0].occurred_at());
}
