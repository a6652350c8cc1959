//! A row of the events' table.

use jiff::Timestamp;
use posthaste_core::{
    Envelope, Event, Key, Ordering, Status,
    envelope::{StoredRow, headers_column},
    key::shard_of,
    store::{EventRecord, Fetched, Identity, Wait},
};

use super::FOR_EVER;

/// An event, and what became of it.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its place in the outbox.
    pub sequence: i64,
    /// The transaction that wrote it.
    pub transaction: u64,
    /// What was enqueued.
    pub event: Event,
    /// The text of its headers, for a row that was written without `enqueue`.
    pub headers: Option<String>,
    /// Its shard.
    pub shard: u16,
    /// Its ordering key.
    pub key: Option<Key>,
    /// Bytes of payload and headers.
    pub bytes: usize,
    /// When it was written.
    pub created_at: i64,
    /// Failed attempts.
    pub attempts: u32,
    /// How often it has been replayed.
    pub replay: u32,
    /// Not before this time; [`FOR_EVER`] for its lane or an operator.
    pub not_before: Option<i64>,
    /// Why it waits.
    pub wait: Option<Wait>,
    /// The lane that it blocks, or in which it is held.
    pub lane: Option<Key>,
    /// The lane's destination.
    pub destination: Option<String>,
    /// The row lease.
    pub locked_by: Option<String>,
    /// Until when that lasts.
    pub locked_until: Option<i64>,
    /// When it was acknowledged.
    pub sent_at: Option<i64>,
    /// When it was given up on.
    pub dead_at: Option<i64>,
    /// When an operator gave it up.
    pub discarded_at: Option<i64>,
    /// The last failure.
    pub last_error: Option<String>,
}

impl Row {
    pub(super) fn new(
        sequence: i64,
        transaction: u64,
        event: &Event,
        shards: u16,
        now: i64,
    ) -> Self {
        let key = match event.ordering() {
            Ordering::Unordered => None,
            Ordering::Aggregate | Ordering::Key(_) => event.ordering_key(),
        };
        let headers = headers_column(event).map_or(0, |headers| headers.len());
        Self {
            sequence,
            transaction,
            shard: shard_of(key.as_deref(), event.id(), shards),
            key: event.key(),
            bytes: event.payload().len() + headers,
            headers: None,
            created_at: now,
            attempts: 0,
            replay: 0,
            not_before: event.deliver_at().map(Timestamp::as_microsecond),
            wait: None,
            lane: None,
            destination: None,
            locked_by: None,
            locked_until: None,
            sent_at: None,
            dead_at: None,
            discarded_at: None,
            last_error: None,
            event: event.clone(),
        }
    }

    /// Neither sent, dead nor discarded.
    pub fn is_unsettled(&self) -> bool {
        self.sent_at.is_none() && self.dead_at.is_none() && self.discarded_at.is_none()
    }

    /// Waits for nothing, or only for a time that has come.
    pub(super) fn is_fresh(&self, now: i64) -> bool {
        let waits = match (self.not_before, self.wait) {
            (None, _) => false,
            (Some(at), None) => at > now,
            (Some(_), Some(_)) => true,
        };
        self.is_unsettled() && !waits
    }

    /// Waited for a time that has come.
    pub(super) fn is_due(&self, now: i64) -> bool {
        self.is_unsettled() && self.not_before.is_some_and(|at| at <= now)
    }

    /// Its lane and destination.
    pub(super) fn lane(&self) -> Option<(Key, &str)> {
        Some((self.lane?, self.destination.as_deref()?))
    }

    /// A retry or a suspect: it will fall due.
    pub(super) fn is_waiting_blocker(&self) -> bool {
        matches!(self.wait, Some(Wait::Retry | Wait::Suspect)) && self.is_unsettled()
    }

    /// Dead, and its lane waits for an operator.
    pub(super) fn is_parked(&self) -> bool {
        self.wait == Some(Wait::Parked) && self.sent_at.is_none() && self.discarded_at.is_none()
    }

    pub(super) fn is_held(&self) -> bool {
        self.wait == Some(Wait::Held) && self.is_unsettled()
    }

    /// Another event has its number by now, or it was replayed in between.
    pub(super) fn is_another(&self, identity: Identity) -> bool {
        identity.id.is_some_and(|id| id != self.event.id() || identity.replay != self.replay)
    }

    /// Where it stands.
    pub fn status(&self, now: i64) -> Status {
        if self.sent_at.is_some() {
            Status::Sent
        } else if self.discarded_at.is_some() {
            Status::Discarded
        } else if self.dead_at.is_some() {
            Status::Dead
        } else if self.locked_until.is_some_and(|until| until > now) {
            Status::Sending
        } else if matches!(self.wait, Some(Wait::Retry | Wait::Suspect)) || self.attempts > 0 {
            Status::Retry
        } else {
            Status::New
        }
    }

    pub(super) fn fetched(&self) -> Fetched {
        Fetched {
            sequence: self.sequence,
            identity: Identity { id: Some(self.event.id()), replay: self.replay },
            shard: self.shard,
            key: self.key,
            attempts: self.attempts,
            wait: self.wait,
            bytes: self.bytes,
            content: self.envelope().map(Box::new),
        }
    }

    pub(super) fn record(&self, now: i64, with_payload: bool) -> EventRecord {
        let time = |micros: Option<i64>| {
            micros.filter(|at| *at != FOR_EVER).and_then(|at| Timestamp::from_microsecond(at).ok())
        };
        let content = if with_payload { self.envelope() } else { self.decoded(Vec::new()) };
        EventRecord {
            status: self.status(now),
            sequence: self.sequence,
            shard: self.shard,
            event_id: Some(self.event.id()),
            content,
            payload_bytes: self.event.payload().len() as u64,
            attempts: self.attempts,
            not_before: time(self.not_before),
            wait: self.wait,
            sent_at: time(self.sent_at),
            dead_at: time(self.dead_at),
            last_error: self.last_error.clone(),
            destination: self.destination.clone(),
            locked_by: self.locked_by.clone(),
        }
    }

    fn envelope(&self) -> Result<Envelope, String> {
        if self.headers.is_some() || self.wait.is_some() || self.event.deliver_at().is_some() {
            return self.decoded(self.event.payload().to_vec());
        }
        Ok(Envelope {
            sequence: self.sequence,
            attempts: self.attempts,
            replay: self.replay,
            created_at: Timestamp::from_microsecond(self.created_at).unwrap_or_default(),
            topic: None,
            event: self.event.clone(),
        })
    }

    /// As the SQL stores decode it: the column that held the time of a delayed event says when to try again
    /// once something has happened to it.
    fn decoded(&self, payload: Vec<u8>) -> Result<Envelope, String> {
        let event = &self.event;
        let text = |text: Option<&str>| text.map(str::to_owned);
        let stored = StoredRow {
            sequence: self.sequence,
            event_id: Some(event.id()),
            event_type: event.event_type().to_owned(),
            aggregate_type: event.aggregate_type().to_owned(),
            aggregate_id: text(event.aggregate_id()),
            tenant: text(event.tenant()),
            topic: text(event.topic()),
            routing_key: text(event.routing_key()),
            schema_id: text(event.schema_id()),
            schema_version: event.schema_version(),
            ordering_key: text(posthaste_core::envelope::ordering_column(event)),
            headers: self.headers.clone().or_else(|| headers_column(event)),
            payload,
            content_type: event.content_type().to_owned(),
            occurred_at: event.occurred_at().as_microsecond(),
            deliver_at: self.not_before.filter(|_| self.wait.is_none()),
            created_at: self.created_at,
            attempts: self.attempts.min(i32::MAX as u32) as i32,
            replay: self.replay.min(i32::MAX as u32) as i32,
        };
        stored.decode()
    }
}
