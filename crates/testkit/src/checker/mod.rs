//! Says from what was committed and what was delivered whether a promise was broken.
//!
//! | finding | meaning |
//! | --- | --- |
//! | lost | committed and never delivered |
//! | reordered | the commit of *a* was acknowledged before the enqueue of *b* began, both have the same key, and yet the first delivery of *b* came before the first delivery of *a* |
//! | repeated | delivered again, and no kill excuses it |
//! | phantom | delivered and never committed |
//!
//! ```
//! use posthaste_testkit::checker::{Checker, Committed, Delivered};
//! use uuid::Uuid;
//!
//! let (a, b) = (Uuid::from_u128(1), Uuid::from_u128(2));
//! let mut checker = Checker::new();
//! checker.committed(Committed::new(a, 0, 10).key("order 42"));
//! checker.committed(Committed::new(b, 11, 20).key("order 42"));
//! checker.delivered(Delivered::new(a, 30, "relay one"));
//! checker.delivered(Delivered::new(b, 31, "relay two"));
//! checker.check().assert_clean();
//! ```
//!
//! Times are nanoseconds of one monotonic clock: of one process (`Instant`), or of all processes
//! of one machine (`CLOCK_MONOTONIC`). A crash of the writer between sending a commit and hearing
//! of it leaves an event that may or may not be there: [`Committed::unacknowledged`].
//!
//! Order is checked per key; when events of one key go to several destinations, make the
//! destination part of the key. A check takes `n log n` steps, so that a run of millions of events
//! can be checked whole.

mod order;

mod repeats;

mod report;

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use uuid::Uuid;

pub use self::report::{Reordered, Repeated, Report};

/// An event that a writer committed, or may have committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Its id.
    pub id: Uuid,
    /// What it is ordered by; `None` when it is unordered.
    pub key: Option<String>,
    /// When its enqueue began.
    pub began: u64,
    /// When its commit was acknowledged; `None` when that was never heard of.
    pub acknowledged: Option<u64>,
    /// Not to be delivered is no loss: the commit's result is unknown, or the event may end dead.
    pub may_be_missing: bool,
}

impl Committed {
    /// An unordered event whose commit was acknowledged.
    pub fn new(id: Uuid, began: u64, acknowledged: u64) -> Self {
        let acknowledged = Some(acknowledged);
        Self { id, key: None, began, acknowledged, may_be_missing: false }
    }

    /// An unordered event of whose commit nobody heard: it may be missing.
    pub fn unacknowledged(id: Uuid, began: u64) -> Self {
        Self { id, key: None, began, acknowledged: None, may_be_missing: true }
    }

    /// Ordered by this key.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Not to be delivered is no loss.
    pub fn may_be_missing(mut self) -> Self {
        self.may_be_missing = true;
        self
    }

    /// The same event enqueued again: nobody knows which call wrote it, so what is claimed of it
    /// is what both calls allow.
    fn merge(&mut self, again: &Self) {
        self.began = self.began.min(again.began);
        self.acknowledged = match (self.acknowledged, again.acknowledged) {
            (Some(one), Some(two)) => Some(one.min(two)),
            (one, two) => one.or(two),
        };
        self.may_be_missing &= again.may_be_missing;
    }
}

/// A delivery that a destination saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    /// The event's id.
    pub id: Uuid,
    /// When.
    pub at: u64,
    /// By which relay.
    pub relay: String,
}

impl Delivered {
    /// A delivery of this event.
    pub fn new(id: Uuid, at: u64, relay: impl Into<String>) -> Self {
        Self { id, at, relay: relay.into() }
    }
}

/// Which repeats are no fault.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
enum Excuse {
    /// None: nothing was killed.
    #[default]
    None,
    /// Those that a kill lies between, so many for each kill.
    Kills { at: Vec<u64>, each: usize },
    /// All.
    All,
}

/// Collects what was committed and what was delivered.
#[derive(Debug, Clone, Default)]
pub struct Checker {
    committed: HashMap<Uuid, Committed>,
    delivered: Vec<Delivered>,
    excuse: Excuse,
}

impl Checker {
    /// Knows nothing yet. Repeats count as faults until something excuses them.
    pub fn new() -> Self {
        Self::default()
    }

    /// An event was committed. The same id again is a repeated enqueue of the same event.
    pub fn committed(&mut self, event: Committed) {
        match self.committed.entry(event.id) {
            std::collections::hash_map::Entry::Occupied(mut known) => known.get_mut().merge(&event),
            std::collections::hash_map::Entry::Vacant(free) => {
                free.insert(event);
            }
        }
    }

    /// A destination saw a delivery, in any order.
    pub fn delivered(&mut self, delivery: Delivered) {
        self.delivered.push(delivery);
    }

    /// Relays were killed (or paused beyond their leases) at these times, each with at most `each`
    /// events in its hands. A repeat is excused by a kill that lies between the event's delivery
    /// before and this one; each kill excuses at most `each` repeats.
    pub fn repeats_after_kills(&mut self, at: impl IntoIterator<Item = u64>, each: usize) {
        let mut at: Vec<u64> = at.into_iter().collect();
        at.sort_unstable();
        self.excuse = Excuse::Kills { at, each };
    }

    /// Repeats are counted and never faults.
    pub fn repeats_anywhere(&mut self) {
        self.excuse = Excuse::All;
    }

    /// The verdict on all that was collected.
    pub fn check(mut self) -> Report {
        // Stable: of two deliveries at the same time the one that was told first came first.
        self.delivered.sort_by_key(|delivery| delivery.at);
        let mut first: HashMap<Uuid, u64> = HashMap::new();
        let mut phantoms = Vec::new();
        for delivery in &self.delivered {
            if self.committed.contains_key(&delivery.id) {
                first.entry(delivery.id).or_insert(delivery.at);
            } else {
                phantoms.push(delivery.clone());
            }
        }
        let mut lost: Vec<Committed> = self
            .committed
            .values()
            .filter(|event| !event.may_be_missing && !first.contains_key(&event.id))
            .cloned()
            .collect();
        lost.sort_by_key(|event| (event.began, event.id));
        let reordered = order::violations(self.committed.values(), &first);
        let (repeated, excused) = repeats::unexcused(&self.delivered, &first, &self.excuse);
        Report {
            committed: self.committed.len(),
            delivered: first.len(),
            deliveries: self.delivered.len(),
            lost,
            reordered,
            repeated,
            excused,
            phantoms,
        }
    }
}
