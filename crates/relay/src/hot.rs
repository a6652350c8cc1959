//! The hot path's entrance: after a commit the writer says which events it wrote.
//!
//! Only a hint. When the queue is full, the relay is stopping, or the shard belongs to another
//! relay, the event is found by a poll as if nothing had been said.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use posthaste_core::{Event, key::shard_hash};
use tokio::sync::{Notify, mpsc};

/// An event that was committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// Its place in the outbox.
    pub sequence: i64,
    /// What its shard is computed from.
    pub hash: u32,
}

impl Committed {
    /// This event, written at this place.
    pub fn new(event: &Event, sequence: i64) -> Self {
        Self { sequence, hash: shard_hash(event.ordering_key().as_deref(), event.id()) }
    }
}

/// Hands committed events to a relay in the same process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct HotPath {
    pub(crate) sender: mpsc::Sender<Vec<Committed>>,
    pub(crate) dropped: Arc<AtomicU64>,
    pub(crate) wake: Arc<Notify>,
}

impl HotPath {
    /// These events were committed. Never waits and never fails: what finds no room is counted and
    /// left to the poller.
    pub fn committed(&self, events: Vec<Committed>) {
        let count = events.len() as u64;
        if count == 0 {
            return;
        }
        if self.sender.try_send(events).is_err() {
            self.dropped.fetch_add(count, Ordering::Relaxed);
            tracing::warn!(events = count, "hot queue is full; left to the poller");
            self.wake.notify_one();
        }
    }

    /// Something was committed, but what is unknown: the relay is only woken.
    pub fn wake(&self) {
        self.wake.notify_one();
    }
}
