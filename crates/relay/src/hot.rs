//! The hot path's entrance: after a commit the writer says which events it wrote.
//!
//! Only a hint. When the queue is full, the relay is stopping, or the shard belongs to another
//! relay, the event is found by a poll as if nothing had been said.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use posthaste_core::{
    Event,
    key::shard_hash,
    store::{HotRow, Limit, RelayOrdering},
};
use tokio::sync::{Notify, mpsc};

use crate::{
    driver::{Done, Driver},
    lanes::{Offered, Origin},
    read::within,
};

/// An event that was committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// Its place in the outbox.
    pub sequence: i64,
    /// What its shard is computed from.
    pub hash: u32,
    /// Bytes of its payload and headers.
    pub bytes: usize,
}

impl Committed {
    /// This event, written at this place.
    pub fn new(event: &Event, sequence: i64) -> Self {
        let headers = event.headers().iter().map(|(name, value)| name.len() + value.len());
        Self {
            sequence,
            hash: shard_hash(event.ordering_key().as_deref(), event.id()),
            bytes: event.payload().len() + headers.sum::<usize>(),
        }
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

/// Most events that one look beyond late commits brings.
const BEYOND: usize = 100;

/// Most pages of events that must wait that one look passes over.
const BEYOND_PAGES: usize = 5;

/// Most of those that are remembered.
const BEYOND_WAITING: usize = 10_000;

/// Most events that one hot read brings.
const HOT_PAGE: usize = 256;

/// How many of these a read may bring, and their bytes. One that is larger comes alone.
fn fitting(events: &[Committed], rows: usize, bytes: usize) -> (usize, usize) {
    let mut sum = 0;
    let count = events.iter().take(rows).take_while(|event| {
        let fits = sum < bytes;
        sum += if fits { event.bytes } else { 0 };
        fits
    });
    (count.count(), sum)
}

impl Driver {
    /// The writer's process has committed these.
    pub(crate) fn hot(&mut self, events: Vec<Committed>) {
        let mut events = events;
        while let Ok(more) = self.wires.hot.try_recv() {
            events.extend(more);
        }
        // What there is no room for the poller brings, a few at a time.
        let rows = self.lanes.hot_room(self.config.hot_queue).min(HOT_PAGE);
        let rows = rows.min(self.unwritten.room());
        let (rows, bytes) = self.lanes.budget().page().map_or((0, 0), |bytes| (rows, bytes));
        if self.rests() {
            // Whoever works here finds them.
            self.wake_others();
            return;
        }
        if self.by_rows() && !self.owns_rows(self.clock.now()) {
            self.source.wake();
            return;
        }
        if self.by_rows() {
            let (fits, bytes) = fitting(&events, rows, bytes);
            self.drop_hot(events.len() - fits);
            let sequences: Vec<i64> = events[..fits].iter().map(|e| e.sequence).collect();
            self.claim_hot(sequences, bytes);
            return;
        }
        if self.config.ordering == RelayOrdering::Global {
            // Whether one of another key comes before them, only the cursor knows.
            if self.shards.is_empty() {
                self.wake_others();
            } else {
                self.source.wake();
            }
            return;
        }
        let total = u32::from(self.shards.total());
        let (ours, others): (Vec<_>, Vec<_>) =
            events.into_iter().partition(|e| self.shards.takes_hot((e.hash % total) as u16));
        if !others.is_empty() {
            self.wake_others();
        }
        let (fits, bytes) = fitting(&ours, rows, bytes);
        self.drop_hot(ours.len() - fits);
        if fits == 0 {
            return;
        }
        let sequences: Vec<i64> = ours[..fits].iter().map(|e| e.sequence).collect();
        let read = self.lanes.read_began();
        let reserved = self.lanes.budget().reserve(bytes);
        let store = Arc::clone(&self.store);
        let from = self.source.position().clone();
        let deadline = self.config.deadline();
        self.hot_reads.push(Box::pin(async move {
            let rows = within(deadline, store.read_hot(&sequences, &from)).await;
            Done::Hot { read, rows, reserved, beyond: false }
        }));
    }

    /// While late commits come page by page, or a few keys fill the memory and none of what is there can go,
    /// events of other keys ahead of the cursor go as if their writer had told of them. The rest waits for the
    /// cursor.
    pub(crate) fn look_beyond(&mut self, now: Instant) {
        if !self.source.is_walking() {
            self.waiting_beyond.clear();
        }
        self.note_clog(now);
        if !self.looks_beyond() || now < self.beyond_at || !self.reads() {
            return;
        }
        let rows = self.lanes.hot_room(self.config.hot_queue).min(BEYOND);
        // They may be locked, too.
        let rows = rows.min(self.unwritten.room());
        let bytes = self.lanes.budget().small_page().filter(|_| rows > 0);
        let Some(bytes) = bytes else {
            self.beyond_at = now + self.config.busy_interval;
            return;
        };
        self.looking_beyond = true;
        let limit = Limit { rows, bytes };
        let reserved = self.lanes.budget().reserve(bytes);
        let (store, shards) = (Arc::clone(&self.store), self.shards.reading());
        let from = self.source.position().clone();
        // Of a key that waits for a locked row nothing more may come: it would wait, too.
        let at = if self.unwritten.is_full() { 1 } else { self.outlets.len() };
        let in_hand = self.lanes.keys_in_hand(at);
        let read = self.lanes.read_began_beyond(from.sequence);
        let deadline = self.config.deadline();
        self.waiting_beyond.retain(|_, until| until.is_none_or(|until| now < until));
        let waiting: HashSet<i64> = self.waiting_beyond.keys().copied().collect();
        self.tasks.spawn(async move {
            let rows = within(deadline, async {
                for _ in 0..BEYOND_PAGES {
                    let mut beyond = store.read_beyond(&shards, &from, &in_hand, limit).await?;
                    let all = beyond.len();
                    beyond.retain(|sequence| !waiting.contains(sequence));
                    if !beyond.is_empty() {
                        return store.read_hot(&beyond, &from).await;
                    }
                    if all == 0 {
                        break;
                    }
                }
                Ok(Vec::new())
            })
            .await;
            Done::Hot { read, rows, reserved, beyond: true }
        });
    }

    /// This one waits for these of its key. For late ones it waits until all of them have come: it is not looked at
    /// again, or each look would bring such events instead of others. What is ahead of the cursor, too, comes with
    /// the next look, or was settled just now. Where it is not known what is missing, it is left out for a while.
    fn wait_for_late(&mut self, sequence: i64, missing: Option<&[i64]>, now: Instant) {
        let cursor = self.source.position().sequence;
        let until = match missing {
            Some(missing) if missing.iter().all(|sequence| *sequence > cursor) => return,
            Some(_) => None,
            None => Some(now + self.config.busy_interval * 4),
        };
        if self.waiting_beyond.len() >= BEYOND_WAITING {
            self.waiting_beyond.clear();
        }
        self.waiting_beyond.insert(sequence, until);
    }

    /// Notes since when the memory has no room for what polls read, although destinations have some for more
    /// publishes: what waits follows events of its own key, or outcomes whose rows are locked.
    fn note_clog(&mut self, now: Instant) {
        let (batch, limit) = (self.config.batch, self.config.cold_queue);
        let full = self.lanes.cold_room(limit) < batch.div_ceil(2).min(limit)
            || self.lanes.budget().page().is_none()
            || self.unwritten.is_full();
        let moves = self.lanes.in_flight() > 0 || !self.unwritten.is_empty();
        let waits = self.unwritten.is_full() || self.lanes.waits_for_its_keys();
        let clogged = full && moves && waits;
        self.clogged_since = clogged.then(|| self.clogged_since.unwrap_or(now));
    }

    /// A key that is handled quickly makes room before the others notice.
    fn is_clogged(&self) -> bool {
        let long = self.config.busy_interval;
        self.clogged_since.is_some_and(|since| self.clock.now() >= since + long)
    }

    pub(crate) fn looked_beyond(&mut self, now: Instant) {
        self.looking_beyond = false;
        self.beyond_at = now + self.config.busy_interval / 4;
    }

    pub(crate) fn looks_beyond(&self) -> bool {
        let ordered = self.config.ordering == RelayOrdering::PerKey;
        ordered && (self.source.is_walking() || self.is_clogged()) && !self.looking_beyond
    }

    /// Rows of the hot path go to their lanes only when all earlier events of the key are settled or in
    /// our hands; otherwise the cursor brings them in order. Those of a look beyond the cursor go also before
    /// that has caught up for the first time: a backlog of a few keys may be why it has not.
    pub(crate) fn offer_hot(&mut self, read: u64, rows: Vec<HotRow>, beyond: bool) {
        let (now, cursor) = (self.clock.now(), self.source.position().sequence);
        self.lanes.set_cursor(cursor);
        for HotRow { row, previous } in rows {
            let missing: Option<Vec<i64>> = previous.map(|known| {
                known.into_iter().filter(|sequence| !self.lanes.in_hand(*sequence)).collect()
            });
            let safe = missing.as_ref().is_some_and(Vec::is_empty)
                && (beyond || self.shards.takes_hot(row.shard))
                && self.lanes.saw(read, row.shard);
            if safe {
                self.highest = self.highest.max(row.sequence);
                let offered = self.lanes.offer(row, Origin::Hot, None, now);
                self.lanes.stats.hot_enqueued += u64::from(offered != Offered::Ignored);
                continue;
            }
            self.source.wake();
            if self.source.is_walking() {
                self.wait_for_late(row.sequence, missing.as_deref(), now);
            }
        }
        self.fall_behind();
    }

    pub(crate) fn drop_hot(&mut self, count: usize) {
        if count > 0 {
            self.wires.hot_path.dropped.fetch_add(count as u64, Ordering::Relaxed);
            tracing::warn!(events = count, "hot queue is full; left to the poller");
            self.source.wake();
        }
    }

    /// Shards of other relays: they are woken, and so is our own cursor, for what was not ready.
    pub(crate) fn wake_others(&mut self) {
        self.source.wake();
        let store = Arc::clone(&self.store);
        tokio::spawn(async move {
            if let Err(error) = store.notify().await {
                tracing::debug!(%error, "other relays were not woken; they poll");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hot_read_is_bounded_in_events_and_bytes_and_one_that_is_larger_comes_alone() {
        let events = |bytes: &[usize]| -> Vec<Committed> {
            bytes.iter().map(|&bytes| Committed { sequence: 1, hash: 0, bytes }).collect()
        };
        assert_eq!(fitting(&events(&[10; 5]), 3, 1_000), (3, 30));
        assert_eq!(fitting(&events(&[10; 5]), 9, 25), (3, 30));
        assert_eq!(fitting(&events(&[5_000, 10]), 9, 25), (1, 5_000));
        assert_eq!(fitting(&events(&[10]), 0, 0), (0, 0));
    }
}
