use std::{collections::HashSet, time::Duration};

use async_trait::async_trait;
use uuid::Uuid;

use crate::{Envelope, Key, Result};

/// The most that one read may bring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Rows.
    pub rows: usize,
    /// Bytes of payloads and headers. One event that is larger comes alone.
    pub bytes: usize,
}

impl Limit {
    /// So many rows, however large they are.
    pub fn rows(rows: usize) -> Self {
        Self { rows, bytes: i64::MAX as usize }
    }
}

/// Where reading stands: every event of the reader's shards up to `sequence` that was visible by
/// `context` has been handed over.
///
/// `context` is the store's own: a snapshot on PostgreSQL, the missing numbers on MySQL, nothing on
/// SQLite. With it a read finds commits that become visible at or before `sequence`. Where there are
/// more of them than fit into a page, it also says how far the walk over them has come.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Position {
    /// The highest sequence that was read.
    pub sequence: i64,
    /// What the store needs to find late commits.
    pub context: String,
}

/// Why an event is not simply next. Written only when something went otherwise than well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wait {
    /// It failed and waits for its next attempt. Blocks its lane.
    Retry,
    /// It was met behind a blocked event of its lane. Released through the lane.
    Held,
    /// It is dead and its lane waits for an operator. Blocks its lane.
    Parked,
    /// An attempt was recorded before it was dispatched, because its dispatch may have killed a
    /// relay. Blocks its lane.
    Suspect,
    /// An operator replays it. Exempt from order.
    Replay,
}

impl Wait {
    /// The name in the column `wait`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Held => "held",
            Self::Parked => "parked",
            Self::Suspect => "suspect",
            Self::Replay => "replay",
        }
    }

    /// The reason of this name. `None` for anything else: then the event is only delayed.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Retry, Self::Held, Self::Parked, Self::Suspect, Self::Replay]
            .into_iter()
            .find(|wait| wait.as_str() == text)
    }
}

/// Which event a number stands for, and which delivery of it. A number comes again when a table is
/// truncated or a failover loses commits; a replay owes one more delivery of the same event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Identity {
    /// The event's id; `None` when the row has none that is a UUID. Then the number alone counts.
    pub id: Option<Uuid>,
    /// How often the event has been replayed.
    pub replay: u32,
}

impl Identity {
    /// Of columns that hold the id as text. An id that is written in another way than with hyphens is not
    /// compared: as text it would be another one.
    pub fn of_text(id: &str, replay: i32) -> Self {
        let id = Uuid::try_parse(id).ok().filter(|_| id.len() == 36);
        Self { id, replay: replay.max(0) as u32 }
    }
}

/// A row that was read.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// Its place in the outbox.
    pub sequence: i64,
    /// Which event it is.
    pub identity: Identity,
    /// Its shard.
    pub shard: u16,
    /// Its ordering key; `None` when it is unordered.
    pub key: Option<Key>,
    /// Failed attempts so far.
    pub attempts: u32,
    /// Why it waited, if it did.
    pub wait: Option<Wait>,
    /// Bytes of its payload and headers.
    pub bytes: usize,
    /// The envelope, or why the row cannot be decoded. Boxed: a row is handed on several times.
    pub content: Result<Box<Envelope>, String>,
}

/// What one read found.
#[derive(Debug)]
pub struct Page {
    /// The rows, in the order of their sequence.
    pub rows: Vec<Fetched>,
    /// Where the next read goes on. It does not bring these rows again, whatever becomes of them: a
    /// row that cannot be handed over now never hides the rows after it.
    pub position: Position,
    /// Nothing more was visible.
    pub caught_up: bool,
}

/// Place of a row among those whose time has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DueKey {
    /// When it fell due, in microseconds since 1970 of the database's clock.
    pub at: i64,
    /// Its place in the outbox.
    pub sequence: i64,
}

/// What a read of due events leaves out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaveOut {
    /// Replays.
    pub replays: bool,
    /// Retries and suspects that were last handed, or to be handed, to a destination of one of these names.
    pub destinations: Vec<String>,
}

/// Rows whose time has come.
#[derive(Debug)]
pub struct Due {
    /// The rows, the longest due first.
    pub rows: Vec<Fetched>,
    /// Where the next page begins; `None` when there is no more. A page without rows can have more: a read walks
    /// over so many events of other shards and no further.
    pub more: Option<DueKey>,
    /// How long until the next one falls due; `None` when there is none, or it lies behind too many of
    /// other shards.
    pub next: Option<Duration>,
}

/// A row that the hot path asked for.
#[derive(Debug)]
pub struct HotRow {
    /// The row.
    pub row: Fetched,
    /// Earlier events of the same key that are neither sent, dead nor discarded, and that the reader
    /// may not know: those behind its position, and those that became visible since its context was
    /// taken. `None` when the store cannot tell.
    pub previous: Option<Vec<i64>>,
}

/// A lane that something blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// The destination's name.
    pub destination: String,
    /// The ordering key.
    pub key: Key,
    /// A retry or suspect will fall due and unblock it.
    pub waiting: bool,
    /// A dead event holds it until an operator acts.
    pub parked: bool,
}

/// Place of a lane among the blocked ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneKey {
    /// The ordering key.
    pub key: Key,
    /// The destination's name.
    pub destination: String,
}

/// A page of blocked lanes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlockedLanes {
    /// The lanes, by key and destination.
    pub lanes: Vec<Blocked>,
    /// Where the next page begins; `None` when there is no more.
    pub more: Option<LaneKey>,
}

impl BlockedLanes {
    /// The page of a walk over at most `limit` lanes; each with whether it is wanted.
    pub fn walked(lanes: Vec<(Blocked, bool)>, limit: usize) -> Self {
        let last = lanes.last().filter(|_| lanes.len() >= limit);
        Self {
            more: last.map(|(lane, _)| lane.lane()),
            lanes: lanes.into_iter().filter_map(|(lane, wanted)| wanted.then_some(lane)).collect(),
        }
    }
}

impl Blocked {
    /// Its place among the blocked lanes.
    pub fn lane(&self) -> LaneKey {
        LaneKey { key: self.key, destination: self.destination.clone() }
    }
}

/// Finding events, under shard leases. Nothing here writes.
///
/// One rule holds for all reads. Each is bounded in rows and bytes, and in the rows that it walks over
/// to find them. Each can be resumed where it ended, by position: rows that are already in the caller's
/// hands, or that it cannot hand over now, come once in a walk and never hide the rows after them.
///
/// All reads skip events that are sent, dead or discarded. They may return a row again that is
/// already in the caller's hands: the caller drops what it knows.
#[async_trait]
pub trait Read: Send + Sync {
    /// One step of the cursor: events with `sequence > from.sequence`, together with those at or before
    /// it that became visible since `from.context`, in order.
    ///
    /// An event that is ahead can have been enqueued after the commit of one that is late: that one
    /// took its number while its transaction was open, and the cursor passed it. So both are read in
    /// one snapshot, or the late ones after those ahead. When there are more late ones than fit into
    /// the page, they come alone, page by page, and the sequence stays until all of them have come.
    ///
    /// The page can be empty although it is not caught up: then the read has walked over as many settled
    /// events as one read may.
    async fn read_on(&self, shards: &[u16], from: &Position, limit: Limit) -> Result<Page>;

    /// The events of these shards at or before `from.sequence` that became visible after
    /// `from.context` was taken. The page is caught up when these are all.
    async fn read_late(&self, shards: &[u16], from: &Position, limit: Limit) -> Result<Page>;

    /// A position from which a reader finds all that readers at any of these would find.
    fn join(&self, positions: &[Position]) -> Position;

    /// The events of these shards whose `not_before` has passed: delayed, retried, replayed,
    /// suspect, and held ones that an operator set free. Those after `after`, the longest due first.
    async fn read_due(&self, shards: &[u16], after: Option<DueKey>, limit: Limit) -> Result<Due> {
        self.read_due_but(shards, after, limit, &LeaveOut::default()).await
    }

    /// The same without those that could not be handed over now: however many these are, what falls due after
    /// them is read soon.
    async fn read_due_but(
        &self,
        shards: &[u16],
        after: Option<DueKey>,
        limit: Limit,
        but: &LeaveOut,
    ) -> Result<Due>;

    /// These rows by their sequence, each with the unsettled events of its key that a reader who
    /// stands at `from` may not know, all of one moment. Rows that wait, are settled, or were rolled
    /// back are left out. The caller bounds it by what it asks for: whoever wrote a row has told its size.
    async fn read_hot(&self, sequences: &[i64], from: &Position) -> Result<Vec<HotRow>>;

    /// Sequences of events of other keys than these that wait for nothing, with `sequence > from.sequence`. The
    /// events themselves keep to the limit. Asked while late commits come page by page, or a few keys fill the
    /// reader's memory, and `from.sequence` stays: with [`read_hot`](Self::read_hot) those go whose key has
    /// nothing before them that the reader does not know. Calls take turns over all there are.
    async fn read_beyond(
        &self,
        _shards: &[u16],
        _from: &Position,
        _but: &HashSet<Key>,
        _limit: Limit,
    ) -> Result<Vec<i64>> {
        Ok(Vec::new())
    }

    /// Returns the held events of one lane with `sequence > after`, in the order of their sequence. An empty
    /// page says that there are no more.
    async fn read_held(
        &self,
        destination: &str,
        key: Key,
        after: i64,
        limit: Limit,
    ) -> Result<Vec<Fetched>>;

    /// All events of one lane, held ones and what blocks it, a dead one included, by their wait and
    /// sequence: those after `after`. An empty page says that there are no more.
    async fn read_lane(
        &self,
        lane: &LaneKey,
        after: Option<(Wait, i64)>,
        limit: Limit,
    ) -> Result<Vec<Fetched>>;

    /// What blocks lanes, of all shards, and whose `not_before` has passed: retried and suspect events,
    /// in the order of their lanes and sequences. For a relay that owns everything.
    async fn read_blockers(&self, limit: Limit) -> Result<Vec<Fetched>>;

    /// The blocked lanes of these shards, and those of [`Key::OF_ALL`], after `after`, by key and
    /// destination. Walks over at most `limit` lanes, those of other shards included.
    async fn read_blocked(
        &self,
        shards: &[u16],
        after: Option<&LaneKey>,
        limit: usize,
    ) -> Result<BlockedLanes>;

    /// Which of these lanes are blocked, or have events that are held although nothing blocks them.
    async fn still_blocked(&self, lanes: &[LaneKey]) -> Result<Vec<Blocked>>;
}
