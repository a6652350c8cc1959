use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use uuid::Uuid;

use crate::{Envelope, Result, Status};

/// Which events to list, count or act on. Empty matches all; given parts must all match.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only in this state.
    pub status: Option<Status>,
    /// Only of this event type.
    pub event_type: Option<String>,
    /// Only of this aggregate type.
    pub aggregate_type: Option<String>,
    /// Only of this aggregate id.
    pub aggregate_id: Option<String>,
    /// Only of this tenant.
    pub tenant: Option<String>,
    /// Only written at or after this time. Lists find times by the order of the sequences, which is that
    /// of the times but for some seconds: an event that was inserted with another `created_at` than its
    /// neighbours' can be missed.
    pub created_from: Option<Timestamp>,
    /// Only written before this time.
    pub created_before: Option<Timestamp>,
}

/// An event with all that is known about it.
#[derive(Debug, Clone)]
pub struct EventRecord {
    /// Where it stands.
    pub status: Status,
    /// Its place in the outbox.
    pub sequence: i64,
    /// Its shard.
    pub shard: u16,
    /// Its id, `None` when the column holds none.
    pub event_id: Option<Uuid>,
    /// The envelope, or why the row cannot be decoded. Only [`Inspect::event`] gives its payload;
    /// elsewhere that is empty.
    pub content: Result<Envelope, String>,
    /// How large the payload is.
    pub payload_bytes: u64,
    /// Failed attempts.
    pub attempts: u32,
    /// Not before this time; `None` also when it waits for its lane or for an operator.
    pub not_before: Option<Timestamp>,
    /// Why it waits.
    pub wait: Option<super::Wait>,
    /// When it was acknowledged.
    pub sent_at: Option<Timestamp>,
    /// When it was given up on.
    pub dead_at: Option<Timestamp>,
    /// The last failure.
    pub last_error: Option<String>,
    /// Where it failed or is held, or was last; `None` as long as all went well.
    pub destination: Option<String>,
    /// Who holds a row lease on it.
    pub locked_by: Option<String>,
}

/// A page of a list, newest first.
#[derive(Debug, Default)]
pub struct EventPage {
    /// The events.
    pub events: Vec<EventRecord>,
    /// Pass it as `before` to get the next page; `None` on the last one.
    pub next: Option<i64>,
    /// How many events were looked at. A page that is not full and has a next one ended here: the
    /// rest was not looked at yet.
    pub examined: u64,
}

/// One failed attempt.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Attempt {
    /// Which attempt: 1 is the first.
    pub attempt: u32,
    /// When.
    pub at: Timestamp,
    /// By which relay.
    pub relay: String,
    /// Where to.
    pub destination: String,
    /// Why it failed.
    pub error: String,
}

/// How many events are in which state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Written and not yet delivered.
    pub new: u64,
    /// Those of the new ones that wait behind another event of their key, which failed or is dead.
    pub held: u64,
    /// Claimed under a row lease.
    pub sending: u64,
    /// Failed and to be tried again.
    pub retry: u64,
    /// Given up on.
    pub dead: u64,
    /// There are more than were counted, or than could be looked at: `new` is an estimate then, and the
    /// others are what was found.
    pub estimated: bool,
}

impl Counts {
    /// How far counts are exact unless asked otherwise: few enough to count every half minute.
    pub const CAP: u64 = 10_000;
}

/// A tenant's part of the backlog.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct TenantBacklog {
    /// The tenant; `None` for events without one.
    pub tenant: Option<String>,
    /// New, sending and retry.
    pub events: u64,
}

/// The backlog by tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct TenantCounts {
    /// The largest backlog first.
    pub tenants: Vec<TenantBacklog>,
    /// There are more events than were counted: these are the parts of the oldest of them.
    pub estimated: bool,
}

/// A shard, its owner and its mark.
#[derive(Debug, Clone)]
pub struct ShardRecord {
    /// The shard.
    pub shard: u16,
    /// Who holds it, `None` when it is free or the lease has expired.
    pub locked_by: Option<String>,
    /// Until when.
    pub locked_until: Option<Timestamp>,
    /// How many owners it has had.
    pub epoch: i64,
    /// Where the next owner starts.
    pub mark: i64,
}

/// A relay that has reported.
#[derive(Debug, Clone)]
pub struct RelayRecord {
    /// Its name.
    pub name: String,
    /// See [`Relay::owner`](super::Relay::owner).
    pub owner: String,
    /// How it divides the work.
    pub ordering: String,
    /// Its version.
    pub version: String,
    /// Since when.
    pub started_at: Timestamp,
    /// When it last reported.
    pub heartbeat_at: Timestamp,
    /// Its last report is younger than its lease.
    pub alive: bool,
    /// Which of its destinations take nothing.
    pub breakers: Vec<super::OpenBreaker>,
    /// Which events it could deliver and does not.
    pub stalls: Vec<super::Stall>,
}

/// A page of events that have been due for a while.
#[derive(Debug, Default)]
pub struct Overdue {
    /// The events, in the order of their sequence. Without payloads.
    pub events: Vec<EventRecord>,
    /// Where the next page begins; `None` when this was the last.
    pub next: Option<i64>,
}

impl Overdue {
    /// Most events of a page.
    pub const MOST: usize = 100;

    /// The page of a walk that examined so many of at most `examine` rows, the last of them `last`.
    pub fn walked(
        events: Vec<EventRecord>,
        examine: usize,
        (examined, last): (i64, Option<i64>),
    ) -> Self {
        let next = if events.len() >= Self::MOST {
            events.last().map(|event| event.sequence)
        } else {
            last.filter(|_| examined >= examine as i64)
        };
        Self { events, next }
    }
}

/// Looking at an outbox. Nothing here writes, and nothing scans what was sent or what waits: lists look at
/// 10,000 events at most and say so.
#[async_trait]
pub trait Inspect {
    /// One event by its id, with its payload.
    async fn event(&self, id: Uuid) -> Result<Option<EventRecord>>;

    /// Events that match, newest first, at most `limit`, older than `before`. Without payloads.
    async fn events(&self, filter: &Filter, before: Option<i64>, limit: usize)
    -> Result<EventPage>;

    /// The failed attempts of one event, first to last.
    async fn attempts(&self, sequence: i64) -> Result<Vec<Attempt>>;

    /// How many events are in which state, exact as long as there are at most `cap` in the backlog and
    /// at most `cap` dead. Sent events are not counted. Looks at no more than some ten times `cap`: where
    /// more than that were sent above a mark that stays behind, it is an estimate too.
    async fn counts(&self, cap: u64) -> Result<Counts>;

    /// The backlog (new, sending and retry) per tenant, exact as long as there are at most `cap`.
    async fn counts_by_tenant(&self, cap: u64) -> Result<TenantCounts>;

    /// For an event that is held behind another of its lane: the event that holds it. `None` for
    /// any other event.
    async fn held_by(&self, sequence: i64) -> Result<Option<EventRecord>>;

    /// How many events are sent and still kept, for checks and demos: this one counts rows.
    async fn count_sent(&self) -> Result<u64>;

    /// The age of the oldest event that could be delivered now and is not. Looks at some ten thousand
    /// events at most: where more than that are due, the oldest of them can be older still.
    async fn oldest_pending(&self) -> Result<Option<Duration>>;

    /// The events with `sequence > after` that are committed, unsettled and under no row lease, and that
    /// have been due for `age`: fresh, past their `not_before`, or held although nothing in the table
    /// holds them. Walks over at most `examine` rows, settled ones included, and gives at most
    /// [`Overdue::MOST`] events.
    async fn overdue(&self, after: i64, examine: usize, age: Duration) -> Result<Overdue>;

    /// Those of these events that [`overdue`](Self::overdue) would give.
    async fn still_overdue(&self, sequences: &[i64], age: Duration) -> Result<Vec<EventRecord>>;

    /// All shards.
    async fn shards(&self) -> Result<Vec<ShardRecord>>;

    /// All relays that have reported lately.
    async fn relays(&self) -> Result<Vec<RelayRecord>>;
}
