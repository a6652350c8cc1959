//! What is written is what is read: bytes, names, headers, shards, and rows of plain SQL.

use jiff::Timestamp;
use posthaste_core::{Event, EventBuilder, GLOBAL, key, limits, store::Fetched};
use uuid::Uuid;

use super::{Edit, PlainEvent, Subject, relays::event};

fn plain(id: Uuid) -> EventBuilder {
    Event::builder("Happened").id(id).raw_json("{}")
}

/// Every field comes back as it was enqueued.
pub async fn every_field_comes_back_as_it_was_enqueued(subject: &Subject) {
    let outbox = subject.outbox().await;
    let full = Event::builder("OrderPlaced")
        .aggregate("Order", "42")
        .tenant("acme")
        .topic("orders.v1")
        .routing_key("eu.high")
        .schema("order-placed", 3)
        .ordering_key("customer 7")
        .header("trace", "7f3a")
        .bytes("application/octet-stream", vec![0, 1, 2])
        .occurred_at(Timestamp::from_microsecond(1_700_000_000_123_456).unwrap())
        .build()
        .unwrap();
    // Before 1970 and without any of the optional fields.
    let bare = Event::builder("Happened")
        .unordered()
        .raw_json("null")
        .occurred_at(Timestamp::from_microsecond(-1).unwrap())
        .build()
        .unwrap();
    let mut enqueued = vec![outbox.enqueue_one(&full).await];
    let many = [bare.clone(), event(1)];
    enqueued.extend(outbox.enqueue(&many).await);
    let rows = outbox.owner().await.read_all().await;
    for ((event, enqueued), row) in [&full, &bare].into_iter().zip(&enqueued).zip(&rows) {
        let record = outbox.record(event.id()).await;
        assert_eq!(record.sequence, enqueued.sequence);
        assert_eq!(record.event_id, Some(event.id()));
        for envelope in [record.content.as_ref().unwrap(), row.content.as_deref().unwrap()] {
            assert_eq!(&envelope.event, event);
            assert_eq!(envelope.sequence, enqueued.sequence);
            assert_eq!((envelope.attempts, envelope.replay), (0, 0));
        }
        assert_eq!(row.key, event.key());
        assert_eq!((row.attempts, row.wait), (0, None));
    }
}

/// The payload delivered is byte for byte the payload enqueued.
pub async fn payloads_come_back_byte_for_byte(subject: &Subject) {
    let outbox = subject.outbox().await;
    let planes: String = (0..=16_u32)
        .flat_map(|plane| [plane * 0x1_0000 + 0x41, plane * 0x1_0000 + 0xfffd])
        .filter_map(char::from_u32)
        .collect();
    let mut random = fastrand::Rng::with_seed(9);
    let payloads: Vec<Vec<u8>> = vec![
        br#"{"b":1,"a":1.0,"a":2}"#.to_vec(),
        b" { \"n\" : 1e400 }\r\n\t".to_vec(),
        Vec::new(),
        vec![0],
        planes.into_bytes(),
        (0..=255).collect(),
        b"\\x00 \\' '' \" ? $1 :name --".to_vec(),
        std::iter::repeat_with(|| random.u8(..)).take(1024 * 1024).collect(),
    ];
    let build = |payload: &Vec<u8>| {
        let builder = Event::builder("Happened").bytes("application/json", payload.clone());
        builder.build().unwrap()
    };
    let one_by_one: Vec<Event> = payloads.iter().map(build).collect();
    for event in &one_by_one {
        outbox.enqueue_one(event).await;
    }
    let together: Vec<Event> = payloads.iter().map(build).collect();
    outbox.enqueue(&together).await;

    let rows = outbox.owner().await.read_all().await;
    assert_eq!(rows.len(), 2 * payloads.len());
    for (row, payload) in rows.iter().zip(payloads.iter().chain(&payloads)) {
        let envelope = row.content.as_ref().unwrap();
        // Not assert_eq: nobody wants to read a mebibyte.
        assert!(envelope.event.payload() == payload, "{} bytes changed", payload.len());
        let record = outbox.record(envelope.event.id()).await;
        assert!(record.content.unwrap().event.payload() == payload);
    }
}

/// Headers keep every character.
pub async fn headers_keep_every_character(subject: &Subject) {
    let outbox = subject.outbox().await;
    let event = Event::builder("Happened")
        .headers([
            ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
            ("ключ", "значение"),
            ("emoji 💡", "👩‍👩‍👧‍👦 \u{10fffd}"),
            ("quotes", r#"' " \ \n ` ? $1"#),
            ("controls", "\0\u{1}\t\r\n\u{7f}\u{2028}"),
            ("empty", ""),
        ])
        .raw_json("{}")
        .build()
        .unwrap();
    outbox.enqueue_one(&event).await;
    let envelope = outbox.record(event.id()).await.content.unwrap();
    assert_eq!(envelope.event.headers(), event.headers());
}

/// Names of the longest length fit, counted in characters and not in bytes.
pub async fn the_longest_names_fit_to_the_character(subject: &Subject) {
    let outbox = subject.outbox().await;
    for character in ["x", "ü", "💡"] {
        let long = |limit: usize| character.repeat(limit);
        let longest = || {
            Event::builder(long(limits::EVENT_TYPE))
                .aggregate(long(limits::AGGREGATE_TYPE), long(limits::AGGREGATE_ID))
                .tenant(long(limits::TENANT))
                .topic(long(limits::TOPIC))
                .routing_key(long(limits::ROUTING_KEY))
                .schema(long(limits::SCHEMA_ID), i32::MAX)
                .bytes(long(limits::CONTENT_TYPE), "")
                .occurred_at(Timestamp::UNIX_EPOCH)
        };
        let derived = longest().build().unwrap();
        let keyed = longest().ordering_key(long(limits::ORDERING_KEY)).build().unwrap();
        outbox.enqueue_one(&derived).await;
        outbox.enqueue(&[keyed.clone(), event(1)]).await;
        for event in [derived, keyed] {
            let record = outbox.record(event.id()).await;
            let shard = key::shard_of(event.ordering_key().as_deref(), event.id(), outbox.shards);
            assert_eq!(record.shard, shard);
            assert_eq!(record.content.unwrap().event, event);
        }
    }
}

/// The shard is what any language computes, whoever writes the row.
pub async fn the_database_computes_the_shard_as_every_language_does(subject: &Subject) {
    let outbox = subject.outbox().await;
    let mut events: Vec<Event> = Vec::new();
    let mut add = |build: fn(EventBuilder) -> EventBuilder| {
        events.push(build(plain(Uuid::now_v7())).build().unwrap());
    };
    add(|event| event);
    add(EventBuilder::unordered);
    add(|event| event.aggregate("Order", "42"));
    add(|event| event.aggregate("Order", "42").tenant("acme"));
    add(|event| event.aggregate("Order", "42").tenant("acme").unordered());
    add(|event| event.aggregate_id("no type"));
    add(|event| event.aggregate_type("no id"));
    add(|event| event.aggregate("a:b", "c").tenant("d"));
    add(|event| event.aggregate("b", "c").tenant("d:a"));
    add(|event| event.aggregate("Заказ", "№ 42").tenant("ООО «Ромашка»"));
    add(|event| event.aggregate("注文", "四十二💡").tenant("株式会社"));
    add(|event| event.aggregate("e\u{301}", "é"));
    add(|event| event.aggregate("Order", "trailing ").tenant(" leading"));
    add(|event| event.ordering_key("customer 7"));
    add(|event| event.ordering_key("кли́ент 💡").aggregate("Order", "42").tenant("acme"));
    for id in 0..40 {
        events.push(plain(Uuid::now_v7()).aggregate("Order", id).build().unwrap());
    }
    let (one_by_one, together) = events.split_at(events.len() / 2);
    for event in one_by_one {
        outbox.enqueue_one(event).await;
    }
    outbox.enqueue(together).await;
    // And all of them by hand, each under an id of its own.
    for event in &events {
        let text = |value: Option<&str>| value.map(str::to_owned);
        let by_hand = PlainEvent {
            id: Uuid::now_v7(),
            payload: "{}".to_owned(),
            tenant: text(event.tenant()),
            aggregate_type: text(Some(event.aggregate_type())),
            aggregate_id: text(event.aggregate_id()),
            ordering_key: text(posthaste_core::envelope::ordering_column(event)),
            ..PlainEvent::default()
        };
        outbox.edit(Edit::Insert(&by_hand)).await;
    }
    let rows = outbox.owner().await.read_all().await;
    assert_eq!(rows.len(), 2 * events.len());
    for row in &rows {
        assert_shard(row, outbox.shards);
    }
}

fn assert_shard(row: &Fetched, shards: u16) {
    let event = &row.content.as_ref().unwrap().event;
    let full_key = event.ordering_key();
    let expected = key::shard_of(full_key.as_deref(), event.id(), shards);
    assert_eq!(row.shard, expected, "key {full_key:?} of event {}", event.id());
    assert_eq!(row.key, event.key());
}

/// Any language can write an event with three columns.
pub async fn a_row_of_plain_sql_needs_three_columns(subject: &Subject) {
    let outbox = subject.outbox().await;
    let (lower, upper) = (Uuid::now_v7(), Uuid::now_v7());
    for id in [lower.to_string(), upper.to_string().to_uppercase()] {
        let insert = format!(
            "insert into {{events}} (event_id, event_type, payload) \
             values ('{id}', 'Happened', '{{\"a\": 1}}')"
        );
        outbox.sql(&insert).await;
    }
    let rows = outbox.owner().await.read_all().await;
    assert_eq!(rows.len(), 2);
    for (row, id) in rows.iter().zip([lower, upper]) {
        let event = &row.content.as_ref().unwrap().event;
        assert_eq!(event.id(), id);
        assert_eq!(event.payload().as_ref(), br#"{"a": 1}"#);
        assert_eq!(event.content_type(), "application/json");
        assert_eq!((event.aggregate_type(), event.aggregate_id()), (GLOBAL, None));
        assert_eq!((event.tenant(), event.topic(), event.routing_key()), (None, None, None));
        assert_eq!((event.schema_id(), event.schema_version()), (None, 1));
        assert!(event.headers().is_empty() && event.deliver_at().is_none());
        assert_eq!(row.key, None);
        assert_shard(row, outbox.shards);
    }
}

/// Times are the database's, right to the second whatever the session's time zone.
pub async fn an_event_was_created_when_it_was_written(subject: &Subject) {
    let outbox = subject.outbox().await;
    let event = event(1);
    outbox.enqueue_one(&event).await;
    let envelope = outbox.record(event.id()).await.content.unwrap();
    let age = Timestamp::now().duration_since(envelope.created_at);
    // The server's clock may differ from ours, but not by a time zone.
    assert!(age.abs() < jiff::SignedDuration::from_mins(10), "created {age:?} ago");
}

/// Keys that a lenient comparison would take for the same are different keys.
pub async fn keys_that_look_alike_stay_apart(subject: &Subject) {
    let outbox = subject.outbox().await;
    let alike = ["a", "A", "a ", " a", "á", "a\u{301}", "ß", "ss", "ａ"];
    let mut taken = Vec::new();
    for id in alike {
        taken.push(outbox.enqueue_one(&event(id)).await.sequence);
    }
    let rows =
        outbox.store.read_hot(&taken, &posthaste_core::store::Position::default()).await.unwrap();
    assert_eq!(rows.len(), alike.len());
    for hot in rows {
        let event = hot.row.content.unwrap().event;
        assert_eq!(
            hot.previous,
            Some(vec![]),
            "{:?} was taken for another key",
            event.aggregate_id()
        );
    }
}
