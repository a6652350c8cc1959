//! The three ways in which an event becomes a message.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use posthaste_core::{Envelope, Event};
use posthaste_transports::message::MessageFormat;
use serde::Deserialize;
use serde_json::Value;

use super::{
    Destination, Options, Received, consumer,
    consumer::feed,
    fixture::{Topic, deliver, envelope},
};

/// An event as Python's `cloudevents` library understood it.
#[derive(Debug, Deserialize)]
struct CloudEvent {
    attributes: BTreeMap<String, String>,
    #[serde(default)]
    json: Value,
    #[serde(default)]
    base64: Option<String>,
}

/// All fields set, with characters that must be escaped somewhere.
fn order(topic: &Topic<'_>) -> Envelope {
    let id = if topic.traits.unicode_headers { "Zürich 50%41" } else { "Zurich 50%41" };
    let event = Event::builder("OrderPlaced")
        .aggregate("Order", id)
        .tenant("acme")
        .topic(&topic.name)
        .schema("order", 3)
        // Where it leads somewhere, it leads to where the topic does.
        .routing_key(&topic.name)
        .header("trace", "7f3a")
        .payload(&serde_json::json!({ "total": 1999, "city": "Zürich" }))
        .build()
        .unwrap();
    envelope(event)
}

/// The same with bytes that are no text.
fn photo(topic: &Topic<'_>) -> Envelope {
    let event = Event::builder("PhotoTaken")
        .aggregate("Photo", "7")
        .topic(&topic.name)
        .bytes("image/png", vec![0x89, 0x50, 0x4e, 0x47, 0xff, 0x00])
        .build()
        .unwrap();
    envelope(event)
}

async fn published(topic: &Topic<'_>, format: MessageFormat, event: Envelope) -> Received {
    let before = topic.read().await.len();
    let transport = topic.transport(&Options { format, ..Options::default() });
    deliver(&*transport, &[event]).await;
    let mut received = topic.read().await;
    // Some servers give a message once, others keep it.
    assert!(received.len() == 1 || received.len() == before + 1, "{received:?}");
    received.pop().expect("one was published")
}

fn assert_attributes(attributes: &BTreeMap<String, String>, envelope: &Envelope) {
    let event = &envelope.event;
    let source = match event.tenant() {
        Some(tenant) => format!("/{tenant}/{}", event.aggregate_type()),
        None => format!("/{}", event.aggregate_type()),
    };
    let expected = [
        ("specversion", "1.0".to_owned()),
        ("id", event.id().to_string()),
        ("source", source),
        ("type", event.event_type().to_owned()),
        ("subject", event.aggregate_id().unwrap().to_owned()),
        ("schemaversion", event.schema_version().to_string()),
        ("partitionkey", event.ordering_key().unwrap()),
        ("datacontenttype", event.content_type().to_owned()),
    ];
    for (name, value) in expected {
        assert_eq!(attributes.get(name), Some(&value), "attribute {name}");
    }
    let schema = event.schema_id().map(|id| format!("urn:posthaste:schema:{id}:3"));
    let given = [("dataschema", schema), ("routingkey", event.routing_key().map(str::to_owned))];
    for (name, value) in given {
        assert_eq!(attributes.get(name), value.as_ref(), "attribute {name}");
    }
    let time: jiff::Timestamp = attributes["time"].parse().expect("time is RFC 3339");
    assert_eq!(time.as_microsecond(), event.occurred_at().as_microsecond());
}

/// The metadata of a raw message stands in its headers, beside the event's own.
pub async fn a_raw_message_carries_its_metadata(destination: &dyn Destination) {
    let topic = Topic::shared(destination).await;
    let event = order(&topic);
    let message = published(&topic, MessageFormat::Raw, event.clone()).await;
    assert_eq!(message.body, event.event.payload().as_ref());
    for (name, value) in [
        ("posthaste-id", event.event.id().to_string()),
        ("posthaste-type", "OrderPlaced".to_owned()),
        ("posthaste-aggregate-type", "Order".to_owned()),
        ("posthaste-aggregate-id", event.event.aggregate_id().unwrap().to_owned()),
        ("posthaste-tenant", "acme".to_owned()),
        ("posthaste-routing-key", topic.name.clone()),
        ("posthaste-schema-id", "order".to_owned()),
        ("posthaste-schema-version", "3".to_owned()),
        ("posthaste-occurred-at", event.event.occurred_at().to_string()),
        ("trace", "7f3a".to_owned()),
    ] {
        assert_eq!(message.header(name), Some(value.as_str()), "header {name}");
    }
}

/// Binary mode: attributes in headers under the protocol's prefix, the payload untouched.
pub async fn a_binary_cloud_event_is_read_by_an_independent_library(destination: &dyn Destination) {
    let topic = Topic::shared(destination).await;
    for event in [order(&topic), photo(&topic)] {
        let message = published(&topic, MessageFormat::CloudEventsBinary, event.clone()).await;
        assert_eq!(message.body, event.event.payload().as_ref());
        if event.event.headers().contains_key("trace") {
            assert_eq!(message.header("trace"), Some("7f3a"));
        }
        let attributes = if let Some(binding) = topic.traits.binding {
            let mut read: Vec<CloudEvent> =
                feed(consumer("cloud_event"), &[binding], &[message]).await;
            read.pop().expect("one was read").attributes
        } else {
            let mut attributes: BTreeMap<String, String> = message
                .headers
                .iter()
                .filter_map(|(name, value)| {
                    let name = name.strip_prefix(topic.traits.prefix)?;
                    Some((name.to_owned(), value.clone()))
                })
                .collect();
            attributes.extend(message.content_type.map(|t| ("datacontenttype".to_owned(), t)));
            attributes
        };
        assert_attributes(&attributes, &event);
    }
}

/// Structured mode: one JSON document, with JSON inside it as JSON and bytes as base64.
pub async fn a_structured_cloud_event_is_read_by_an_independent_library(
    destination: &dyn Destination,
) {
    let topic = Topic::shared(destination).await;
    let format = MessageFormat::CloudEventsStructured;
    let (order, photo) = (order(&topic), photo(&topic));
    let messages = [
        published(&topic, format, order.clone()).await,
        published(&topic, format, photo.clone()).await,
    ];
    assert_eq!(messages[0].header("trace"), Some("7f3a"));
    let read: Vec<CloudEvent> = feed(consumer("cloud_event"), &["structured"], &messages).await;
    assert_attributes(&read[0].attributes, &order);
    let payload: Value = serde_json::from_slice(order.event.payload()).unwrap();
    assert_eq!(read[0].json, payload);
    assert_attributes(&read[1].attributes, &photo);
    let bytes = BASE64_STANDARD.decode(read[1].base64.as_deref().unwrap()).unwrap();
    assert_eq!(bytes, photo.event.payload().as_ref());
}

/// Whatever the format, a consumer can recognise a repeat.
pub async fn the_id_travels_in_every_format(destination: &dyn Destination) {
    let topic = Topic::shared(destination).await;
    for format in
        [MessageFormat::Raw, MessageFormat::CloudEventsBinary, MessageFormat::CloudEventsStructured]
    {
        let event = order(&topic);
        let id = event.event.id().to_string();
        let message = published(&topic, format, event).await;
        let named = ["posthaste-id".to_owned(), format!("{}id", topic.traits.prefix)];
        let in_headers = named.iter().any(|name| message.header(name) == Some(&id));
        let document: Value = serde_json::from_slice(&message.body).unwrap();
        assert!(in_headers || document["id"] == id.as_str(), "no id in a {format} message");
    }
}
