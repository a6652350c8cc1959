//! What goes over the wire: an event as a body and headers, in one of three formats.
//!
//! | format | body | headers |
//! | --- | --- | --- |
//! | `raw` | the payload | the event's own, and its metadata under `posthaste-…` |
//! | `cloudevents-binary` | the payload | the event's own, and CloudEvents attributes under the prefix of the protocol |
//! | `cloudevents-structured` | a JSON document with the payload in it | the event's own |
//!
//! The event's id travels in each of them.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fmt::{self, Write as _},
    str::FromStr,
};

use bytes::Bytes;
use posthaste_core::{Envelope, Error, GLOBAL};
use serde_json::{Map, Value};

/// How an event becomes a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MessageFormat {
    /// The payload as it is, metadata in headers.
    #[default]
    Raw,
    /// CloudEvents 1.0, binary mode.
    CloudEventsBinary,
    /// CloudEvents 1.0, structured mode (JSON).
    CloudEventsStructured,
}

impl MessageFormat {
    /// Its name in configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::CloudEventsBinary => "cloudevents-binary",
            Self::CloudEventsStructured => "cloudevents-structured",
        }
    }

    /// The event as a message. `prefix` is what the protocol puts before CloudEvents attributes
    /// in binary mode, such as `ce-`.
    pub fn message<'e>(self, envelope: &'e Envelope, prefix: &str) -> Message<'e> {
        let event = &envelope.event;
        let (content_type, body) = match self {
            Self::Raw | Self::CloudEventsBinary => (event.content_type(), event.payload().clone()),
            Self::CloudEventsStructured => {
                ("application/cloudevents+json; charset=utf-8", structured(envelope))
            }
        };
        let added = match self {
            Self::Raw => metadata(envelope),
            Self::CloudEventsBinary => attributes(envelope)
                .into_iter()
                .map(|(name, value)| (format!("{prefix}{name}").into(), value))
                .collect(),
            Self::CloudEventsStructured => Vec::new(),
        };
        Message { id: envelope.deduplication_id(), content_type, own: event.headers(), added, body }
    }
}

impl fmt::Display for MessageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for MessageFormat {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        [Self::Raw, Self::CloudEventsBinary, Self::CloudEventsStructured]
            .into_iter()
            .find(|format| format.as_str() == text)
            .ok_or_else(|| {
                Error::invalid(format!(
                    "message format {text:?} is not known; there are raw, cloudevents-binary and \
                     cloudevents-structured"
                ))
            })
    }
}

/// An event as a destination gets it. What the event holds is not copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message<'e> {
    /// By which a broker drops repeats; an operator's replay has one of its own.
    pub id: String,
    /// The body's media type.
    pub content_type: &'e str,
    /// The event's own headers, those included whose place an added one takes.
    pub own: &'e BTreeMap<String, String>,
    /// The headers that the format adds, without the media type.
    pub added: Vec<(Cow<'static, str>, Cow<'e, str>)>,
    /// The bytes.
    pub body: Bytes,
}

impl Message<'_> {
    /// The event's own headers but for those whose place an added one takes. Capital letters make no
    /// difference: they make none to many who read headers.
    pub fn own_headers(&self) -> impl Iterator<Item = (&str, &str)> + Clone {
        let own = self.own.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        own.filter(|(name, _)| {
            !self.added.iter().any(|(added, _)| added.eq_ignore_ascii_case(name))
        })
    }

    /// All headers, each name once: the event's own, then those that the format adds, which take the place of
    /// an own one of the same name.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> + Clone {
        self.own_headers().chain(self.added.iter().map(|(name, value)| (&**name, &**value)))
    }
}

/// Names of the metadata that every raw message has.
pub(crate) const METADATA: [&str; 5] = [
    "posthaste-id",
    "posthaste-type",
    "posthaste-aggregate-type",
    "posthaste-schema-version",
    "posthaste-occurred-at",
];

/// Names of the metadata that a raw message may have.
const OPTIONAL: [&str; 5] = [
    "posthaste-aggregate-id",
    "posthaste-tenant",
    "posthaste-routing-key",
    "posthaste-schema-id",
    "posthaste-replay",
];

/// The metadata headers of a raw message.
fn metadata(envelope: &Envelope) -> Vec<(Cow<'static, str>, Cow<'_, str>)> {
    let event = &envelope.event;
    let always: [Cow<'_, str>; METADATA.len()] = [
        event.id().to_string().into(),
        event.event_type().into(),
        event.aggregate_type().into(),
        event.schema_version().to_string().into(),
        event.occurred_at().to_string().into(),
    ];
    let replay = (envelope.replay > 0).then(|| envelope.replay.to_string());
    let optional: [Option<Cow<'_, str>>; OPTIONAL.len()] = [
        event.aggregate_id().map(Cow::from),
        event.tenant().map(Cow::from),
        event.routing_key().map(Cow::from),
        event.schema_id().map(Cow::from),
        replay.map(Cow::from),
    ];
    let mut headers: Vec<(Cow<'static, str>, Cow<'_, str>)> =
        Vec::with_capacity(METADATA.len() + OPTIONAL.len());
    headers.extend(METADATA.into_iter().map(Cow::from).zip(always));
    let given = OPTIONAL.into_iter().zip(optional);
    headers.extend(given.filter_map(|(name, value)| Some((name.into(), value?))));
    headers
}

/// CloudEvents context attributes, all but `datacontenttype`: that is the protocol's own header.
fn attributes(envelope: &Envelope) -> Vec<(&'static str, Cow<'_, str>)> {
    let event = &envelope.event;
    let source = match event.tenant() {
        Some(tenant) => format!("/{}/{}", segment(tenant), segment(event.aggregate_type())),
        None if event.aggregate_type() == GLOBAL => "/".to_owned(),
        None => format!("/{}", segment(event.aggregate_type())),
    };
    let mut attributes = vec![
        ("specversion", "1.0".into()),
        // Also for a replay, which is the same event: whoever has handled it has nothing more to do.
        ("id", event.id().to_string().into()),
        ("source", source.into()),
        ("type", event.event_type().into()),
        ("time", event.occurred_at().to_string().into()),
        ("schemaversion", event.schema_version().to_string().into()),
    ];
    if let Some(id) = event.aggregate_id() {
        attributes.push(("subject", id.into()));
    }
    if let Some(key) = event.ordering_key() {
        attributes.push(("partitionkey", key.into()));
    }
    if envelope.replay > 0 {
        attributes.push(("replay", envelope.replay.to_string().into()));
    }
    if let Some(id) = event.schema_id() {
        attributes.push(("dataschema", data_schema(id, event.schema_version())));
    }
    if let Some(key) = event.routing_key() {
        attributes.push(("routingkey", key.into()));
    }
    for name in ["traceparent", "tracestate"] {
        if let Some(value) = event.headers().get(name) {
            attributes.push((name, value.into()));
        }
    }
    attributes
}

/// The schema as an absolute URI: its id where that is one, and otherwise a name made of id and version, which
/// differs for data that old readers cannot read.
fn data_schema(id: &str, version: i32) -> Cow<'_, str> {
    if is_absolute_uri(id) {
        return id.into();
    }
    format!("urn:posthaste:schema:{}:{version}", segment(id)).into()
}

fn is_absolute_uri(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else {
        return false;
    };
    let of_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let of_uri = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte);
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(of_scheme)
        && !rest.is_empty()
        && rest.bytes().all(of_uri)
}

/// A text as one segment of a URI path.
pub(crate) fn segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// A CloudEvents attribute as the value of a header, as the bindings for HTTP and NATS want it:
/// blanks, quotes, percent signs and what is not ASCII are percent-encoded.
#[allow(dead_code, reason = "each destination that needs it is a feature")]
pub(crate) fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_graphic() && byte != b'"' && byte != b'%' {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// The whole event as a JSON document. A JSON payload is embedded as it stands, byte for byte;
/// anything else travels as `data_base64`.
fn structured(envelope: &Envelope) -> Bytes {
    let event = &envelope.event;
    let mut document = Map::new();
    for (name, value) in attributes(envelope) {
        document.insert(name.to_owned(), Value::String(value.into_owned()));
    }
    document.insert("datacontenttype".to_owned(), event.content_type().into());
    let mut text = Value::Object(document).to_string();
    // Behind the attributes: a parsed and printed payload would be another one.
    text.truncate(text.len() - 1);
    match std::str::from_utf8(event.payload()) {
        Ok(payload) if is_json(event.content_type()) && is_document(payload) => {
            text.push_str(",\"data\":");
            text.push_str(payload);
        }
        _ => {
            text.push_str(",\"data_base64\":\"");
            text.push_str(&base64(event.payload()));
            text.push('"');
        }
    }
    text.push('}');
    Bytes::from(text)
}

fn is_json(content_type: &str) -> bool {
    let media = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    media == "application/json" || media == "text/json" || media.ends_with("+json")
}

fn is_document(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

pub(crate) fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = [chunk[0], *chunk.get(1).unwrap_or(&0), *chunk.get(2).unwrap_or(&0)];
        let bits = u32::from_be_bytes([0, group[0], group[1], group[2]]);
        for place in 0..4 {
            if place <= chunk.len() {
                let index = (bits >> (18 - 6 * place)) & 63;
                out.push(char::from(ALPHABET[index as usize]));
            } else {
                out.push('=');
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use posthaste_core::Event;

    use super::*;

    fn envelope(payload: &[u8], content_type: &str) -> Envelope {
        let event = Event::builder("OrderPlaced")
            .aggregate("Order", "42")
            .tenant("acme")
            .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
            .bytes(content_type, payload.to_vec())
            .build()
            .unwrap();
        Envelope {
            sequence: 7,
            attempts: 0,
            replay: 0,
            created_at: event.occurred_at(),
            topic: None,
            event,
        }
    }

    #[test]
    fn base64_is_what_others_read() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn an_attribute_in_a_header_is_percent_encoded() {
        assert_eq!(percent_encoded("Zürich 50%"), "Z%C3%BCrich%2050%25");
        assert_eq!(percent_encoded("/acme/Order:42"), "/acme/Order:42");
    }

    #[test]
    fn a_schema_is_named_by_an_absolute_uri() {
        let registry = "https://registry.example/schemas/ids/7?format=avro";
        for (id, uri) in [
            ("order", "urn:posthaste:schema:order:3"),
            ("com.acme/Order v1", "urn:posthaste:schema:com.acme%2FOrder%20v1:3"),
            (registry, registry),
            ("urn:acme:order", "urn:acme:order"),
            ("7:order", "urn:posthaste:schema:7%3Aorder:3"),
            (
                "https://registry.example/Zürich",
                "urn:posthaste:schema:https%3A%2F%2Fregistry.example%2FZ%C3%BCrich:3",
            ),
        ] {
            assert_eq!(data_schema(id, 3), uri);
        }
    }

    #[test]
    fn a_json_payload_is_embedded_byte_for_byte() {
        let payload = br#"{"b":1,"a":1.0,"a":2}"#;
        let envelope = envelope(payload, "application/json");
        let message = MessageFormat::CloudEventsStructured.message(&envelope, "ce-");
        let text = std::str::from_utf8(&message.body).unwrap();
        assert!(text.contains(r#""data":{"b":1,"a":1.0,"a":2}}"#), "{text}");
        assert!(text.contains(r#""source":"/acme/Order""#), "{text}");
        assert!(serde_json::from_str::<Value>(text).is_ok());
    }

    #[test]
    fn a_payload_that_claims_to_be_json_and_is_not_travels_as_bytes() {
        let envelope = envelope(b"{\"a\":", "application/json");
        let message = MessageFormat::CloudEventsStructured.message(&envelope, "ce-");
        let document: Value = serde_json::from_slice(&message.body).unwrap();
        assert_eq!(document["data_base64"], base64(b"{\"a\":"));
    }

    #[test]
    fn a_header_of_the_format_takes_the_place_of_the_events_own() {
        let envelope = envelope(b"{}", "application/json");
        let names = ["Posthaste-Id", "ce_id", "traceparent", "theirs"];
        let own = names.map(|name| (name.to_owned(), "mine".to_owned())).into();
        for (format, prefix, taken) in [
            (MessageFormat::Raw, "ce_", "posthaste-id"),
            (MessageFormat::CloudEventsBinary, "ce_", "ce_id"),
            (MessageFormat::CloudEventsBinary, "", "traceparent"),
        ] {
            let message = Message { own: &own, ..format.message(&envelope, prefix) };
            let mut names: Vec<String> =
                message.headers().map(|(name, _)| name.to_ascii_lowercase()).collect();
            assert!(names.iter().any(|name| name == taken), "{format}: {names:?}");
            names.sort_unstable();
            let all = names.len();
            names.dedup();
            assert_eq!(names.len(), all, "{format}: {names:?}");
            let of_taken = message.headers().find(|(name, _)| name.eq_ignore_ascii_case(taken));
            assert_ne!(of_taken.unwrap().1, "mine", "{format}");
        }
    }

    #[test]
    fn the_id_travels_in_every_format() {
        let envelope = envelope(b"{}", "application/json");
        let id = envelope.event.id().to_string();
        for format in [
            MessageFormat::Raw,
            MessageFormat::CloudEventsBinary,
            MessageFormat::CloudEventsStructured,
        ] {
            let message = format.message(&envelope, "ce_");
            let in_headers = message
                .headers()
                .any(|(name, value)| ["posthaste-id", "ce_id"].contains(&name) && value == id);
            let in_body = std::str::from_utf8(&message.body).is_ok_and(|text| text.contains(&id));
            assert!(in_headers || in_body, "{format}");
            assert_eq!(message.id, id);
        }
    }
}
