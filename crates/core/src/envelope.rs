//! The event as it travels: what was enqueued, and where it stands in its outbox.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use uuid::Uuid;

use crate::{Event, Ordering, header::is_reserved};

/// An event read back from its outbox.
#[derive(Debug, Clone, PartialEq)]
pub struct Envelope {
    /// Its place in the outbox.
    pub sequence: i64,
    /// How often its delivery has failed so far.
    pub attempts: u32,
    /// How often an operator has replayed it.
    pub replay: u32,
    /// When it was written, by the database's clock.
    pub created_at: Timestamp,
    /// The topic that its route gave it, see [`topic`](Self::topic).
    pub topic: Option<String>,
    /// What was enqueued.
    pub event: Event,
}

impl Envelope {
    /// Where it goes at its destination: the topic of its route, or its own, or its aggregate
    /// type.
    pub fn topic(&self) -> &str {
        self.topic.as_deref().or(self.event.topic()).unwrap_or(self.event.aggregate_type())
    }

    /// The id by which a broker drops repeats. A replay carries its number, or the broker would
    /// drop what an operator asked to send again.
    pub fn deduplication_id(&self) -> String {
        match self.replay {
            0 => self.event.id().to_string(),
            n => format!("{}/{n}", self.event.id()),
        }
    }
}

/// The columns of a row as the database gives them, before anything was trusted. Rows can be
/// written by hand and in any language; [`decode`](Self::decode) says what is wrong with one.
#[derive(Debug, Clone)]
pub struct StoredRow {
    /// `sequence`
    pub sequence: i64,
    /// `event_id`, `None` when it is not a UUID.
    pub event_id: Option<Uuid>,
    /// `event_type`
    pub event_type: String,
    /// `aggregate_type`
    pub aggregate_type: String,
    /// `aggregate_id`
    pub aggregate_id: Option<String>,
    /// `tenant`
    pub tenant: Option<String>,
    /// `topic`
    pub topic: Option<String>,
    /// `routing_key`
    pub routing_key: Option<String>,
    /// `schema_id`
    pub schema_id: Option<String>,
    /// `schema_version`
    pub schema_version: i32,
    /// `ordering_key`: null derives it from the aggregate, empty means unordered.
    pub ordering_key: Option<String>,
    /// `headers`: a JSON object of strings, or null.
    pub headers: Option<String>,
    /// `payload`
    pub payload: Vec<u8>,
    /// `content_type`
    pub content_type: String,
    /// `occurred_at` in microseconds since 1970.
    pub occurred_at: i64,
    /// `deliver_at` in microseconds since 1970.
    pub deliver_at: Option<i64>,
    /// `created_at` in microseconds since 1970.
    pub created_at: i64,
    /// `attempts`
    pub attempts: i32,
    /// `replay`
    pub replay: i32,
}

impl StoredRow {
    /// What the row says about order.
    pub fn ordering(&self) -> Ordering {
        match self.ordering_key.as_deref() {
            None => Ordering::Aggregate,
            Some("") => Ordering::Unordered,
            Some(key) => Ordering::Key(key.to_owned()),
        }
    }

    /// The envelope, or the reason why the row is none. The reason names the column and never
    /// quotes its content.
    pub fn decode(self) -> Result<Envelope, String> {
        let ordering = self.ordering();
        let mut headers: BTreeMap<String, String> = match self.headers.as_deref() {
            None | Some("") => BTreeMap::new(),
            Some(json) => serde_json::from_str(json).map_err(|error| {
                format!(
                    "column headers is not a JSON object of strings (line {} column {})",
                    error.line(),
                    error.column()
                )
            })?,
        };
        // A row that was written by hand can hold the id of another message.
        headers.retain(|name, _| !is_reserved(name));
        let time = |column: &str, micros: i64| {
            Timestamp::from_microsecond(micros)
                .map_err(|_| format!("column {column} holds a time that is out of range"))
        };
        Ok(Envelope {
            sequence: self.sequence,
            attempts: self.attempts.max(0) as u32,
            replay: self.replay.max(0) as u32,
            created_at: time("created_at", self.created_at)?,
            topic: None,
            event: Event {
                id: self.event_id.ok_or("column event_id is not a UUID")?,
                event_type: self.event_type,
                aggregate_type: self.aggregate_type,
                aggregate_id: self.aggregate_id,
                tenant: self.tenant,
                topic: self.topic,
                routing_key: self.routing_key,
                schema_id: self.schema_id,
                schema_version: self.schema_version,
                ordering,
                headers,
                payload: Bytes::from(self.payload),
                content_type: self.content_type,
                occurred_at: time("occurred_at", self.occurred_at)?,
                deliver_at: self.deliver_at.map(|at| time("deliver_at", at)).transpose()?,
            },
        })
    }
}

/// An event's headers as the column holds them: a JSON object, or null when there are none.
pub fn headers_column(event: &Event) -> Option<String> {
    if event.headers().is_empty() {
        return None;
    }
    serde_json::to_string(event.headers()).ok()
}

/// An event's ordering as the column holds it: null derives the key from the aggregate, empty
/// means unordered.
pub fn ordering_column(event: &Event) -> Option<&str> {
    match event.ordering() {
        Ordering::Aggregate => None,
        Ordering::Unordered => Some(""),
        Ordering::Key(key) => Some(key),
    }
}
