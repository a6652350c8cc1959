use std::time::Duration;

use async_trait::async_trait;

use super::{Identity, RowLease};
use crate::{Key, Result};

/// A shard that a relay holds, and the epoch that fences it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Held {
    /// The shard.
    pub shard: u16,
    /// Rises with every owner.
    pub epoch: i64,
}

/// The right by which a settle writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fence {
    /// Leases on shards: the store locks their rows (shared, in shard order), compares owner and
    /// epoch, and only then writes.
    Shards {
        /// See [`Relay::owner`](super::Relay::owner).
        owner: String,
        /// The shards that the batch touches.
        held: Vec<Held>,
    },
    /// A claim on rows: only rows that carry this token are written.
    Rows(RowLease),
}

/// One event's outcome, ready to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct Settlement {
    /// Which event.
    pub sequence: i64,
    /// Which event it was when it was read. Nothing is written when another one has its number by now, or
    /// when it is replayed.
    pub identity: Identity,
    /// Its shard.
    pub shard: u16,
    /// Failed attempts as an absolute number, so that writing it twice is harmless.
    pub attempts: u32,
    /// What to write.
    pub verdict: Verdict,
}

/// What a settle writes for one event.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Delivered.
    Sent,
    /// Failed: try again after this time, counted by the database's clock.
    Retry {
        /// The wait.
        after: Duration,
        /// Why. Goes to `last_error` and to the attempts table, cut at 4,000 characters.
        error: String,
        /// Where it failed.
        destination: String,
        /// Its lane, which it blocks; `None` when unordered or exempt.
        key: Option<Key>,
        /// An operator's replay stays exempt from order.
        replay: bool,
    },
    /// Given up on.
    Dead {
        /// Why. Goes to `last_error` and to the attempts table.
        error: String,
        /// Where it failed.
        destination: String,
        /// With a key: the lane is parked until an operator acts. `None`: it goes on.
        parked: Option<Key>,
    },
    /// Met behind a blocked event of its lane.
    Held {
        /// The destination of the lane.
        destination: String,
        /// The lane's key.
        key: Key,
    },
    /// About to be dispatched although it may have killed a relay: the attempt is recorded first.
    Suspect {
        /// Where it is about to go.
        destination: String,
        /// Its lane, if it has one.
        key: Option<Key>,
        /// It is a replay and stays one: exempt from order.
        replay: bool,
    },
    /// Back to the queue as if nothing had happened: claimed, and given back unsent.
    Unclaimed,
}

/// What a settle did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SettleReport {
    /// Shards of the fence whose lease was lost: nothing of theirs was written.
    pub stale_shards: Vec<u16>,
    /// Events that were not written because the right to do so was lost.
    pub refused: Vec<i64>,
}

/// Writing outcomes back.
#[async_trait]
pub trait Settle {
    /// Writes a batch, all or nothing but for what the fence refuses. Repeating a settle is
    /// harmless. A settle never changes an event that is sent, dead or discarded already, nor one
    /// whose [`Identity`] is another.
    /// With `keep_sent = false` delivered events are deleted instead of marked.
    async fn settle(
        &self,
        fence: &Fence,
        batch: &[Settlement],
        keep_sent: bool,
    ) -> Result<SettleReport>;

    /// Which of these events cannot be written now, because somebody else has locked their rows.
    /// Waits for no such lock. None where rows are not locked, or the server cannot tell.
    async fn locked(&self, sequences: &[i64]) -> Result<Vec<i64>>;
}
