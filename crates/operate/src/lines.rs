//! Events and shards as programs read them: the same for `--json` as for the admin API. Never a payload.

use std::collections::BTreeMap;

use jiff::Timestamp;
use posthaste_core::{
    Envelope, Event, Status,
    store::{EventRecord, Pausable, ShardRecord, Wait},
};
use serde::Serialize;
use uuid::Uuid;

/// An event in a list. What is the event's own is null when the row cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EventLine {
    /// Its id.
    pub id: Option<Uuid>,
    /// Its place in the outbox.
    pub sequence: i64,
    /// Where it stands.
    pub status: Status,
    /// Its type.
    pub r#type: Option<String>,
    /// Its aggregate's type.
    pub aggregate_type: Option<String>,
    /// Its aggregate.
    pub aggregate_id: Option<String>,
    /// Its tenant.
    pub tenant: Option<String>,
    /// Its topic.
    pub topic: Option<String>,
    /// Its shard.
    pub shard: u16,
    /// Failed attempts.
    pub attempts: u32,
    /// How often it was replayed.
    pub replay: u32,
    /// When it was written.
    pub created_at: Option<Timestamp>,
    /// When it happened.
    pub occurred_at: Option<Timestamp>,
    /// Not before this time.
    pub not_before: Option<Timestamp>,
    /// Why it waits.
    pub wait: Option<&'static str>,
    /// When it was acknowledged.
    pub sent_at: Option<Timestamp>,
    /// When it was given up on.
    pub dead_at: Option<Timestamp>,
    /// The last failure.
    pub last_error: Option<String>,
    /// Where that was.
    pub destination: Option<String>,
    /// Who holds a row lease on it.
    pub locked_by: Option<String>,
    /// How large its payload is.
    pub payload_bytes: u64,
    /// Why the row is no event.
    pub undecodable: Option<String>,
}

impl EventLine {
    /// The event of this row.
    pub fn new(record: &EventRecord) -> Self {
        let envelope = record.content.as_ref().ok();
        let event = envelope.map(|envelope| &envelope.event);
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Self {
            id: record.event_id,
            sequence: record.sequence,
            status: record.status,
            r#type: owned(event.map(Event::event_type)),
            aggregate_type: owned(event.map(Event::aggregate_type)),
            aggregate_id: owned(event.and_then(|event| event.aggregate_id())),
            tenant: owned(event.and_then(|event| event.tenant())),
            topic: owned(envelope.map(Envelope::topic)),
            shard: record.shard,
            attempts: record.attempts,
            replay: envelope.map_or(0, |envelope| envelope.replay),
            created_at: envelope.map(|envelope| envelope.created_at),
            occurred_at: event.map(Event::occurred_at),
            not_before: record.not_before,
            wait: record.wait.map(Wait::as_str),
            sent_at: record.sent_at,
            dead_at: record.dead_at,
            last_error: record.last_error.clone(),
            destination: record.destination.clone(),
            locked_by: record.locked_by.clone(),
            payload_bytes: record.payload_bytes,
            undecodable: record.content.as_ref().err().cloned(),
        }
    }
}

/// One event with all but its payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EventDetail {
    /// What a list shows of it.
    #[serde(flatten)]
    pub line: EventLine,
    /// Its headers.
    pub headers: BTreeMap<String, String>,
    /// What its payload is.
    pub content_type: Option<String>,
    /// Its schema.
    pub schema_id: Option<String>,
    /// The schema's version.
    pub schema_version: Option<i32>,
    /// Its routing key.
    pub routing_key: Option<String>,
    /// What keeps it in order.
    pub ordering_key: Option<String>,
    /// The 16 digits by which a pause names that.
    pub key: Option<String>,
}

impl EventDetail {
    /// The event of this row.
    pub fn new(record: &EventRecord) -> Self {
        let event = record.content.as_ref().ok().map(|envelope| &envelope.event);
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Self {
            line: EventLine::new(record),
            headers: event.map(|event| event.headers().clone()).unwrap_or_default(),
            content_type: owned(event.map(Event::content_type)),
            schema_id: owned(event.and_then(|event| event.schema_id())),
            schema_version: event.map(Event::schema_version),
            routing_key: owned(event.and_then(|event| event.routing_key())),
            ordering_key: event.and_then(Event::ordering_key),
            key: event.and_then(Event::key).map(|key| Pausable::Key(key).name()),
        }
    }
}

/// A shard and its owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShardLine {
    /// The shard.
    pub shard: u16,
    /// This run of the relay that holds it.
    pub locked_by: Option<String>,
    /// The relay's name.
    pub relay: Option<String>,
    /// Until when.
    pub locked_until: Option<Timestamp>,
    /// How many owners it has had.
    pub epoch: i64,
    /// Where the next owner starts.
    pub mark: i64,
}

impl From<ShardRecord> for ShardLine {
    fn from(record: ShardRecord) -> Self {
        let ShardRecord { shard, locked_by, locked_until, epoch, mark } = record;
        // An owner is a relay's name, a slash, and its run.
        let relay = locked_by.as_ref().and_then(|owner| owner.rsplit_once('/'));
        let relay = relay.map(|(name, _)| name.to_owned());
        Self { shard, locked_by, relay, locked_until, epoch, mark }
    }
}
