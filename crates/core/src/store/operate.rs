use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use super::Filter;
use crate::{Result, Status};

/// What an operator acts on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// This event.
    One(Uuid),
    /// These events, as far as they are still in this state and it allows the step. The others are
    /// skipped.
    These {
        /// Which: what a list gave, at most 1,000.
        sequences: Vec<i64>,
        /// The state they must be in.
        status: Status,
    },
    /// Up to `limit` events that match; call again until the answer is 0.
    Matching {
        /// Which.
        filter: Filter,
        /// At most so many in one transaction.
        limit: usize,
    },
}

/// What an operator can do to events. All obey [`Status::after`](crate::Status::after): naming one
/// event whose state forbids the step is an error; a filter skips such events.
#[async_trait]
pub trait Operate {
    /// Sends dead or sent events again: attempts start at 0, the replay number rises, and the
    /// event is found although its sequence lies behind every cursor. A replay is exempt from its
    /// key's order, but for the dead event that parks its lane: it takes its place at the lane's
    /// head again. The filter's status must be `dead` or `sent`. Gives how many.
    async fn replay(&self, selection: &Selection) -> Result<u64>;

    /// Gives up new, retried or dead events. A lane that waited for one of them goes on.
    async fn discard(&self, selection: &Selection) -> Result<u64>;

    /// Examines the next `batch` events behind `cursor` (`None`: from the stored position, which
    /// starts a new cycle) and deletes those that were sent or discarded longer ago than `sent`.
    /// The first call of a cycle also deletes up to `batch` dead ones older than `dead` (`None`:
    /// never), which lets their parked lanes go on. Never holds a long lock, never waits for one.
    async fn purge(
        &self,
        sent: Duration,
        dead: Option<Duration>,
        batch: usize,
        cursor: Option<i64>,
    ) -> Result<Purged>;
}

/// What one step of a purge did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Purged {
    /// How many events were deleted.
    pub deleted: u64,
    /// The cursor of the next step; `None` when the cycle is complete.
    pub next: Option<i64>,
}
