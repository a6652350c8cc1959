use std::time::Duration;

use async_trait::async_trait;

use crate::{Envelope, Key, Result};

/// Where reading stands: every event of the reader's shards up to `sequence` that was visible by
/// `context` has been handed over.
///
/// `context` is the store's own: a snapshot on PostgreSQL, the open gaps on MySQL, nothing on
/// SQLite. It is what finds commits that become visible behind the cursor.
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

/// A row that was read.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// Its place in the outbox.
    pub sequence: i64,
    /// Its shard.
    pub shard: u16,
    /// Its ordering key; `None` when it is unordered.
    pub key: Option<Key>,
    /// Failed attempts so far.
    pub attempts: u32,
    /// Why it waited, if it did.
    pub wait: Option<Wait>,
    /// The envelope, or why the row cannot be decoded. Boxed: a row is handed on several times.
    pub content: Result<Box<Envelope>, String>,
}

/// What one read found.
#[derive(Debug)]
pub struct Page {
    /// The rows, in the order of their sequence.
    pub rows: Vec<Fetched>,
    /// Where reading stands once they are handed over.
    pub position: Position,
    /// Nothing more was visible.
    pub caught_up: bool,
}

/// Rows whose time has come.
#[derive(Debug)]
pub struct Due {
    /// The rows, the longest due first.
    pub rows: Vec<Fetched>,
    /// How long until the next one falls due, as far as is known.
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

/// Finding events, under shard leases. Nothing here writes.
///
/// All reads skip events that are sent, dead or discarded. They may return a row again that is
/// already in the caller's hands: the caller drops what it knows.
#[async_trait]
pub trait Read: Send + Sync {
    /// One step of the cursor: what is ahead of `from`, at most `limit`, together with what became
    /// visible behind it, in order. When more than `late_limit` became visible behind it, these come
    /// first and the cursor stays.
    ///
    /// An event that is ahead can have been enqueued after the commit of one that is behind: that one
    /// took its number while its transaction was open, and the cursor passed it. So the late ones are
    /// read after those ahead, or in the same snapshot.
    async fn read_on(
        &self,
        shards: &[u16],
        from: &Position,
        limit: usize,
        late_limit: usize,
    ) -> Result<Page> {
        let mut page = self.read_ahead(shards, from, limit).await?;
        if page.rows.is_empty() {
            return Ok(page);
        }
        // Among the late ones are those of the page itself that are new since the last look.
        let late = self.read_late(shards, &page.position, limit * 2 + late_limit).await?;
        if !late.caught_up {
            return Ok(Page { rows: late.rows, position: from.clone(), caught_up: false });
        }
        page.position.context = late.position.context;
        page.rows.extend(late.rows);
        page.rows.sort_by_key(|row| row.sequence);
        page.rows.dedup_by_key(|row| row.sequence);
        Ok(page)
    }

    /// The events of these shards behind `from`, at most `limit`, that wait for nothing. The page
    /// is caught up when nothing more was visible. `from.context` comes back unchanged, or
    /// extended by what the store must look for again (gaps).
    async fn read_ahead(&self, shards: &[u16], from: &Position, limit: usize) -> Result<Page>;

    /// The events of these shards at or before `from.sequence` that became visible after
    /// `from.context` was taken, at most `limit`. A page that is caught up has a new context; one that
    /// is not has the old one, and the rest is found by asking again when these are settled.
    async fn read_late(&self, shards: &[u16], from: &Position, limit: usize) -> Result<Page>;

    /// The events of these shards whose `not_before` has passed: delayed, retried, replayed,
    /// suspect, and held ones that an operator set free.
    async fn read_due(&self, shards: &[u16], limit: usize) -> Result<Due>;

    /// These rows by their sequence, each with the unsettled events of its key that a reader who
    /// stands at `from` may not know, all of one moment. Rows that wait, are settled, or were rolled
    /// back are left out.
    async fn read_hot(&self, sequences: &[i64], from: &Position) -> Result<Vec<HotRow>>;

    /// The held events of one lane, in the order of their sequence, at most `limit`.
    async fn read_held(&self, destination: &str, key: Key, limit: usize) -> Result<Vec<Fetched>>;

    /// What blocks lanes, of all shards, and whose `not_before` has passed: retried and suspect events,
    /// in the order of their lanes and sequences, at most `limit`. For a relay that owns everything.
    async fn read_blockers(&self, limit: usize) -> Result<Vec<Fetched>>;

    /// The blocked lanes of these shards.
    async fn read_blocked(&self, shards: &[u16]) -> Result<Vec<Blocked>>;
}
