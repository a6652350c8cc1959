//! The cases, for any driver.

use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;
use posthaste::{
    Enqueued, ErrorKind, Event, EventBuilder, Limits,
    jiff::{Timestamp, ToSpan},
    transports::memory::MemoryTransport,
    uuid::Uuid,
};
use tracing::Instrument;
use tracing_subscriber::layer::SubscriberExt;

use super::{
    adapter::{Adapter, End, Settings, Step},
    support::{Fixture, TestDatabase, event, quick},
};

/// What a relay delivers now.
async fn delivered<DB: TestDatabase>(on: &Fixture<DB>) -> Vec<Event> {
    let transport = MemoryTransport::new();
    on.relay(transport.clone(), quick()).relay_once().await.unwrap();
    transport.delivered().into_iter().map(|envelope| envelope.event).collect()
}

fn ids(events: &[Event]) -> Vec<Uuid> {
    events.iter().map(Event::id).collect()
}

/// An order placed, without its event.
fn order<DB: TestDatabase>(on: &Fixture<DB>, number: u32) -> Step {
    Step::Sql(on.tables.fill(&format!("insert into {{bare}}_orders values ({number})")))
}

/// There are so many orders, or this fails: the insert of a null, which the column does not take.
async fn orders<DB: TestDatabase>(on: &Fixture<DB>, count: usize) {
    let sql = format!(
        "insert into {{bare}}_orders
         select null from (select count(*) as n from {{bare}}_orders) as o where o.n <> {count}"
    );
    on.sql(&sql).await;
}

/// An event that has everything, with times that a fraction could not hold.
fn full() -> EventBuilder {
    Event::builder("OrderPlaced")
        .aggregate("Order", "42")
        .tenant("acme")
        .topic("orders")
        .routing_key("eu")
        .schema("order", 3)
        .ordering_key("customer-7")
        .header("language", "Ελληνικά")
        .header("quote", "\"'\\")
        .occurred_at(Timestamp::from_microsecond(10_413_792_000_123_457).unwrap())
        .bytes("application/octet-stream", (0..=255).collect::<Vec<u8>>())
}

pub async fn what_commits_is_delivered<A: Adapter>(on: &Fixture<A::Database>, adapter: &mut A) {
    let settings = Settings::of(on.table());
    let later = Timestamp::now().round(posthaste::jiff::Unit::Millisecond).unwrap() + 9.hours();
    let rich = full().build().unwrap();
    let bare = Event::builder("Ping").unordered().raw_json(" {}").build().unwrap();
    let delayed = full().id(Uuid::now_v7()).deliver_at(later).build().unwrap();
    let (delayed_id, sent) = (delayed.id(), [rich.clone(), bare.clone()]);
    let steps = vec![order(on, 1), Step::Enqueue(vec![rich]), Step::Enqueue(vec![bare, delayed])];
    let enqueued = adapter.transaction(&settings, steps, End::Commit).await.unwrap();
    assert!(enqueued.iter().all(|answer| !answer.duplicate), "{enqueued:?}");
    assert!(enqueued.is_sorted_by_key(|answer| answer.sequence), "{enqueued:?}");
    orders(on, 1).await;

    let mut delivered = delivered(on).await;
    delivered.sort_by_key(|event| event.event_type() == "Ping");
    let [first, second] = &delivered[..] else { panic!("{delivered:?}") };
    assert_eq!(*first, sent[0]);
    assert_eq!((second.id(), second.payload()), (sent[1].id(), sent[1].payload()));
    assert_eq!(second.ordering(), sent[1].ordering());
    assert_eq!((second.tenant(), second.headers().len()), (None, 0));
    assert_eq!(on.record(delayed_id).await.not_before, Some(later));
}

pub async fn what_rolls_back_leaves_nothing<A: Adapter>(
    on: &Fixture<A::Database>,
    adapter: &mut A,
) {
    let settings = Settings::of(on.table());
    for end in [End::Rollback, End::Drop] {
        let steps = vec![order(on, 1), Step::Enqueue(vec![event("1", 1)])];
        adapter.transaction(&settings, steps, end).await.unwrap();
    }
    // On the same connection, so that what was dropped is over.
    let kept = event("2", 2);
    let id = kept.id();
    let steps = vec![Step::Enqueue(vec![kept])];
    adapter.transaction(&settings, steps, End::Commit).await.unwrap();
    assert_eq!(ids(&delivered(on).await), [id]);
    orders(on, 0).await;
}

pub async fn a_savepoint_that_rolls_back_leaves_nothing_of_its_part<A: Adapter>(
    on: &Fixture<A::Database>,
    adapter: &mut A,
) {
    let settings = Settings::of(on.table());
    let events: Vec<Event> = (0..4).map(|n| event("1", n)).collect();
    let one = |n: usize| vec![events[n].clone()];
    let steps = vec![
        Step::Enqueue(one(0)),
        Step::InSavepoint { events: one(1), keep: false },
        Step::InSavepoint { events: one(2), keep: true },
        Step::Enqueue(one(3)),
    ];
    adapter.transaction(&settings, steps, End::Commit).await.unwrap();
    let kept = [&events[0], &events[2], &events[3]].map(Event::id);
    assert_eq!(ids(&delivered(on).await), kept);
}

pub async fn a_raw_rollback_to_leaves_nothing_of_its_part<A: Adapter>(
    on: &Fixture<A::Database>,
    adapter: &mut A,
) {
    let settings = Settings::of(on.table());
    let events: Vec<Event> = (0..3).map(|n| event("1", n)).collect();
    let one = |n: usize| Step::Enqueue(vec![events[n].clone()]);
    let sql = |sql: &str| Step::Sql(sql.to_owned());
    let steps =
        vec![one(0), sql("savepoint here"), order(on, 1), one(1), sql("rollback to here"), one(2)];
    adapter.transaction(&settings, steps, End::Commit).await.unwrap();
    assert_eq!(ids(&delivered(on).await), [events[0].id(), events[2].id()]);
    orders(on, 0).await;
}

pub async fn the_same_id_again_gives_the_first_sequence<A: Adapter>(
    on: &Fixture<A::Database>,
    adapter: &mut A,
) {
    let settings = Settings::of(on.table());
    let (one, two) = (event("1", 1), event("1", 2));
    let steps = vec![
        Step::Enqueue(vec![one.clone()]),
        Step::Enqueue(vec![one.clone()]),
        Step::Enqueue(vec![two.clone(), one.clone(), two.clone()]),
    ];
    let answers = adapter.transaction(&settings, steps, End::Commit).await.unwrap();
    let again = vec![Step::Enqueue(vec![one.clone()])];
    let later = adapter.transaction(&settings, again, End::Commit).await.unwrap();
    let (first, second) = (answers[0].sequence, answers[2].sequence);
    let answer =
        |event: &Event, sequence, duplicate| Enqueued { id: event.id(), sequence, duplicate };
    let expected = [
        answer(&one, first, false),
        answer(&one, first, true),
        answer(&two, second, false),
        answer(&one, first, true),
        answer(&two, second, true),
    ];
    assert_eq!(answers, expected);
    assert_eq!(later, [answer(&one, first, true)]);
    assert_eq!(ids(&delivered(on).await), [one.id(), two.id()]);
}

pub async fn the_same_id_with_another_tenant_type_or_key_is_a_conflict<A: Adapter>(
    on: &Fixture<A::Database>,
    adapter: &mut A,
) {
    let settings = Settings::of(on.table());
    let id = Uuid::now_v7();
    let of = |event_type: &str| {
        Event::builder(event_type).id(id).aggregate("Order", "a").tenant("acme").raw_json("{}")
    };
    let steps = vec![Step::Enqueue(vec![of("Placed").build().unwrap()])];
    adapter.transaction(&settings, steps, End::Commit).await.unwrap();
    for (what, other) in [
        ("event type", of("Undone")),
        ("tenant", of("Placed").tenant("other")),
        ("aggregate type", of("Placed").aggregate_type("Other")),
        ("aggregate id", of("Placed").aggregate_id("b")),
        ("ordering key", of("Placed").ordering_key("mine")),
    ] {
        let steps = vec![Step::Enqueue(vec![event("1", 1), other.build().unwrap()])];
        let error = adapter.transaction(&settings, steps, End::Commit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        let message = error.to_string();
        assert!(message.contains(&id.to_string()) && message.contains(what), "{message}");
    }
    assert_eq!(ids(&delivered(on).await), [id]);
}

pub async fn one_id_for_two_events_of_one_call_is_a_conflict<A: Adapter>(
    on: &Fixture<A::Database>,
    adapter: &mut A,
) {
    let settings = Settings::of(on.table());
    let one = event("1", 1);
    let other = Event::builder("Other").id(one.id()).raw_json("{}").build().unwrap();
    let steps = vec![Step::Enqueue(vec![one, other])];
    let error = adapter.transaction(&settings, steps, End::Commit).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    let of = full().id(Uuid::now_v7()).build().unwrap();
    for other in [of.clone().edit().topic("others"), of.clone().edit().header("language", "Greek")]
    {
        let steps = vec![Step::Enqueue(vec![of.clone(), other.build().unwrap()])];
        let error = adapter.transaction(&settings, steps, End::Commit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    }
    assert!(delivered(on).await.is_empty());
}

/// Whatever is done with its transaction: the application passes over the error, and commits.
pub async fn a_call_that_fails_leaves_none_of_its_events<A: Adapter>(
    on: &Fixture<A::Database>,
    adapter: &mut A,
) {
    let settings = Settings::of(on.table());
    let known = event("known", 1);
    let steps = vec![Step::Enqueue(vec![known.clone()])];
    adapter.transaction(&settings, steps, End::Commit).await.unwrap();
    let other = Event::builder("Other").id(known.id()).raw_json("{}").build().unwrap();
    let steps = vec![Step::Conflict(vec![event("new", 1), other])];
    let _ = adapter.transaction(&settings, steps, End::Commit).await;
    assert_eq!(ids(&delivered(on).await), [known.id()]);
}

/// On PostgreSQL the error ends the transaction, as that of any statement does, also that of a
/// single event.
pub async fn a_conflict_of_one_event_ends_the_transaction_on_postgres<A: Adapter>(
    on: &Fixture<A::Database>,
    adapter: &mut A,
) {
    let settings = Settings::of(on.table());
    let known = event("known", 1);
    let steps = vec![Step::Enqueue(vec![known.clone()])];
    adapter.transaction(&settings, steps, End::Commit).await.unwrap();
    let other = Event::builder("Other").id(known.id()).raw_json("{}").build().unwrap();
    let steps = vec![order(on, 1), Step::Conflict(vec![other])];
    let _ = adapter.transaction(&settings, steps, End::Commit).await;
    orders(on, usize::from(<A::Database as sqlx::Database>::NAME != "PostgreSQL")).await;
    assert_eq!(ids(&delivered(on).await), [known.id()]);
}

pub async fn limits_are_checked_and_the_default_tenant_applies<A: Adapter>(
    on: &Fixture<A::Database>,
    adapter: &mut A,
) {
    let settings = Settings {
        limits: Limits { payload: 8 },
        default_tenant: Some("house".to_owned()),
        ..Settings::of(on.table())
    };
    let of = |json: &str| Event::builder("Limited").aggregate("Order", 1).raw_json(json);
    let large = of("\"a secret\"").build().unwrap();
    let steps = vec![Step::Enqueue(vec![large])];
    let error = adapter.transaction(&settings, steps, End::Commit).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(!error.to_string().contains("secret"), "{error}");

    let events = vec![of("1").build().unwrap(), of("2").tenant("guest").build().unwrap()];
    let steps = vec![Step::Enqueue(events)];
    adapter.transaction(&settings, steps, End::Commit).await.unwrap();
    let delivered = delivered(on).await;
    let mut tenants: Vec<_> = delivered.iter().map(|event| event.tenant().unwrap()).collect();
    tenants.sort_unstable();
    assert_eq!(tenants, ["guest", "house"]);
}

pub async fn the_trace_of_the_current_span_goes_along<A: Adapter>(
    on: &Fixture<A::Database>,
    adapter: &mut A,
) {
    let settings = Settings::of(on.table());
    let provider = SdkTracerProvider::builder().build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    // For this thread only: other tests of this process have spans of their own.
    let subscriber = tracing_subscriber::registry().with(layer);
    let guard = tracing::subscriber::set_default(subscriber);
    let steps = vec![Step::Enqueue(vec![event("1", 1)])];
    let span = tracing::info_span!("place order");
    adapter.transaction(&settings, steps, End::Commit).instrument(span).await.unwrap();
    drop(guard);
    let delivered = delivered(on).await;
    let parent = &delivered[0].headers()["traceparent"];
    assert!(parent.starts_with("00-") && parent.len() == 55, "{parent}");
}

pub async fn many_events_keep_their_order<A: Adapter>(on: &Fixture<A::Database>, adapter: &mut A) {
    let settings = Settings::of(on.table());
    let events: Vec<Event> = (0..100).map(|n| event("1", n)).collect();
    let expected = ids(&events);
    let steps = vec![Step::Enqueue(events)];
    let enqueued = adapter.transaction(&settings, steps, End::Commit).await.unwrap();
    let answered: Vec<Uuid> = enqueued.iter().map(|answer| answer.id).collect();
    assert_eq!(answered, expected);
    assert!(enqueued.is_sorted_by_key(|answer| answer.sequence));
    assert_eq!(ids(&delivered(on).await), expected);
}

/// What a database refuses for good is no reason to try again, and is told without values.
pub async fn a_refusal_quotes_nothing<A: Adapter>(on: &Fixture<A::Database>, adapter: &mut A) {
    let settings = Settings::of("no_such_outbox".parse().unwrap());
    let secret = Event::builder("Secret").raw_json("\"hidden\"").build().unwrap();
    let steps = vec![order(on, 1), Step::Enqueue(vec![secret])];
    let error = adapter.transaction(&settings, steps, End::Commit).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Database, "{error}");
    assert!(error.to_string().starts_with("writing "), "{error}");
    assert!(std::error::Error::source(&error).is_some());
    assert!(!format!("{error:?}").contains("hidden"), "{error:?}");
    orders(on, 0).await;
}

/// What marks a connection, and what then cuts it.
pub fn cut(on: &Fixture<sqlx::Postgres>) -> (String, impl Future<Output = ()> + Send + use<>) {
    let name = on.tables.name().bare().to_owned();
    let pool = on.pool.clone();
    let mark = format!("set application_name = '{name}'");
    let cut = async move {
        let cut =
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1";
        let ended: Vec<bool> = sqlx::query_scalar(cut).bind(&name).fetch_all(&pool).await.unwrap();
        assert_eq!(ended, [true]);
    };
    (mark, cut)
}

/// A connection that was cut is a reason to try again.
pub async fn a_lost_connection_is_worth_another_try<A: Adapter<Database = sqlx::Postgres>>(
    on: &Fixture<sqlx::Postgres>,
    adapter: &mut A,
) {
    let settings = Settings::of(on.table());
    let (mark, cut) = cut(on);
    let (mark, cut) = (Step::Sql(mark), Step::Meanwhile(Box::pin(cut)));
    let steps = vec![mark, cut, Step::Enqueue(vec![event("1", 1)])];
    let error = adapter.transaction(&settings, steps, End::Commit).await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    assert!(delivered(on).await.is_empty());
}
