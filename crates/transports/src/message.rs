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
    pub fn message(self, envelope: &Envelope, prefix: &str) -> Message {
        let event = &envelope.event;
        let mut headers: Vec<(String, String)> =
            event.headers().iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let (content_type, body) = match self {
            Self::Raw => {
                headers.extend(metadata(envelope));
                (event.content_type().to_owned(), event.payload().clone())
            }
            Self::CloudEventsBinary => {
                headers.extend(
                    attributes(envelope)
                        .into_iter()
                        .map(|(name, value)| (format!("{prefix}{name}"), value)),
                );
                (event.content_type().to_owned(), event.payload().clone())
            }
            Self::CloudEventsStructured => {
                ("application/cloudevents+json; charset=utf-8".to_owned(), structured(envelope))
            }
        };
        Message { id: envelope.deduplication_id(), content_type, headers, body }
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

/// An event as a destination gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// By which a broker drops repeats; an operator's replay has one of its own.
    pub id: String,
    /// The body's media type.
    pub content_type: String,
    /// Headers, without the media type.
    pub headers: Vec<(String, String)>,
    /// The bytes.
    pub body: Bytes,
}

/// The metadata headers of a raw message.
fn metadata(envelope: &Envelope) -> Vec<(String, String)> {
    let event = &envelope.event;
    let mut headers = vec![
        ("posthaste-id".to_owned(), event.id().to_string()),
        ("posthaste-type".to_owned(), event.event_type().to_owned()),
        ("posthaste-aggregate-type".to_owned(), event.aggregate_type().to_owned()),
        ("posthaste-schema-version".to_owned(), event.schema_version().to_string()),
        ("posthaste-occurred-at".to_owned(), event.occurred_at().to_string()),
    ];
    let optional = [
        ("posthaste-aggregate-id", event.aggregate_id().map(str::to_owned)),
        ("posthaste-tenant", event.tenant().map(str::to_owned)),
        ("posthaste-schema-id", event.schema_id().map(str::to_owned)),
        ("posthaste-replay", (envelope.replay > 0).then(|| envelope.replay.to_string())),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            headers.push((name.to_owned(), value));
        }
    }
    headers
}

/// CloudEvents context attributes, all but `datacontenttype`: that is the protocol's own header.
fn attributes(envelope: &Envelope) -> Vec<(&'static str, String)> {
    let event = &envelope.event;
    let source = match event.tenant() {
        Some(tenant) => format!("/{}/{}", segment(tenant), segment(event.aggregate_type())),
        None if event.aggregate_type() == GLOBAL => "/".to_owned(),
        None => format!("/{}", segment(event.aggregate_type())),
    };
    let mut attributes = vec![
        ("specversion", "1.0".to_owned()),
        ("id", envelope.deduplication_id()),
        ("source", source),
        ("type", event.event_type().to_owned()),
        ("time", event.occurred_at().to_string()),
        ("schemaversion", event.schema_version().to_string()),
    ];
    if let Some(id) = event.aggregate_id() {
        attributes.push(("subject", id.to_owned()));
    }
    if let Some(key) = event.ordering_key() {
        attributes.push(("partitionkey", key));
    }
    if let Some(id) = event.schema_id() {
        attributes.push(("dataschema", format!("/{}", segment(id))));
    }
    for name in ["traceparent", "tracestate"] {
        if let Some(value) = event.headers().get(name) {
            attributes.push((name, value.clone()));
        }
    }
    attributes
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
        document.insert(name.to_owned(), Value::String(value));
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
    fn a_json_payload_is_embedded_byte_for_byte() {
        let payload = br#"{"b":1,"a":1.0,"a":2}"#;
        let message = MessageFormat::CloudEventsStructured
            .message(&envelope(payload, "application/json"), "ce-");
        let text = std::str::from_utf8(&message.body).unwrap();
        assert!(text.contains(r#""data":{"b":1,"a":1.0,"a":2}}"#), "{text}");
        assert!(text.contains(r#""source":"/acme/Order""#), "{text}");
        assert!(serde_json::from_str::<Value>(text).is_ok());
    }

    #[test]
    fn a_payload_that_claims_to_be_json_and_is_not_travels_as_bytes() {
        let message = MessageFormat::CloudEventsStructured
            .message(&envelope(b"{\"a\":", "application/json"), "ce-");
        let document: Value = serde_json::from_slice(&message.body).unwrap();
        assert_eq!(document["data_base64"], base64(b"{\"a\":"));
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
            let in_headers = message.headers.iter().any(|(name, value)| {
                ["posthaste-id", "ce_id"].contains(&name.as_str()) && *value == id
            });
            let in_body = std::str::from_utf8(&message.body).is_ok_and(|text| text.contains(&id));
            assert!(in_headers || in_body, "{format}");
            assert_eq!(message.id, id);
        }
    }
}
