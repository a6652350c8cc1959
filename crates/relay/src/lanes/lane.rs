//! One lane: its queue and what blocks it.

use std::collections::VecDeque;

use posthaste_core::{Envelope, store::Wait};

#[cfg(feature = "transitions")]
use super::transitions::count;

#[cfg(not(feature = "transitions"))]
fn count(_: Option<Block>, _: Option<Block>) {}

/// An event that waits for its turn.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) sequence: i64,
    /// The envelope, or why its row cannot be decoded.
    pub(super) content: Result<Box<Envelope>, String>,
    /// Why it waited when it was read.
    pub(super) wait: Option<Wait>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Block {
    /// Events go one after the other.
    Open,
    /// The head failed and waits for its next attempt.
    Waiting,
    /// The head is dead and an operator must act.
    Parked,
    /// The head is out of the way; held followers are read back.
    Releasing,
}

/// A read of held followers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// It waits for its turn.
    Wanted,
    /// It is under way, with this number.
    Began(u64),
}

/// The events of one (destination, ordering key), or of all under `global`.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) shard: u16,
    pub(super) queue: VecDeque<Pending>,
    /// It stands in line.
    pub(super) scheduled: bool,
    /// How many of its events are with the transport, being recorded, undecided, or dead and being
    /// written as such: one, or several where its destination takes them together.
    pub(super) in_flight: u32,
    pub(super) block: Block,
    /// The database may hold followers of it.
    pub(super) held: bool,
    /// Holds that are being written.
    pub(super) holds: u32,
    /// The read that brings its held followers back, if one is wanted.
    pub(super) reading: Option<Reading>,
    /// There may be more to release than the last read has seen: after this number.
    pub(super) more: Option<i64>,
    /// Reads with this number or a later one see in the table what blocks it; `None` until that is
    /// written.
    pub(super) written: Option<u64>,
    /// Reads with this number or a later one see in the table all that is held.
    pub(super) held_from: u64,
    /// What blocks it fell due while its key was looked at, and is about to be read again.
    pub(super) due: bool,
    /// It is among those that are asked for soon.
    pub(super) unsure: bool,
}

impl Lane {
    pub(super) fn new(shard: u16) -> Self {
        count(None, Some(Block::Open));
        Self {
            shard,
            queue: VecDeque::new(),
            scheduled: false,
            in_flight: 0,
            block: Block::Open,
            held: false,
            holds: 0,
            reading: None,
            more: None,
            written: None,
            held_from: 0,
            due: false,
            unsure: false,
        }
    }

    /// It is blocked so from now on.
    pub(super) fn turn(&mut self, block: Block) {
        count(Some(self.block), Some(block));
        self.block = block;
    }

    /// Told before it leaves the memory.
    pub(super) fn drops(&self) {
        count(Some(self.block), None);
    }

    /// A place by its number, also for an event that comes late: under `global` everything that is
    /// visible has its turn in that order, but for what blocks the lane, which is the first. A new head
    /// must be put in line anew.
    pub(super) fn insert(&mut self, pending: Pending) {
        let first = usize::from(self.scheduled && self.block != Block::Open);
        let waiting = self.queue.iter().skip(first).rev();
        let behind = waiting.take_while(|other| other.sequence > pending.sequence).count();
        let at = self.queue.len() - behind;
        self.scheduled &= at > 0;
        self.queue.insert(at, pending);
    }

    /// An event of it that is in the table is in the way of all others.
    pub(super) fn is_blocked(&self) -> bool {
        matches!(self.block, Block::Waiting | Block::Parked)
    }

    /// The table alone knows whether it is still blocked.
    pub(super) fn can_be_asked_for(&self) -> bool {
        self.is_blocked() && !self.busy()
    }

    /// Its held followers are read back, and nothing of it is in memory.
    pub(super) fn stands_released(&self) -> bool {
        self.block == Block::Releasing && !self.busy() && self.queue.is_empty()
    }

    /// Something before what was read back is held: the next read begins with it.
    pub(super) fn read_anew(&mut self) {
        self.more = Some(0);
    }

    /// Its head is in line or under way.
    pub(super) fn busy(&self) -> bool {
        self.scheduled || self.in_flight > 0
    }

    /// Something of it is under way that no mark in the table tells of.
    pub(super) fn is_under_way(&self) -> bool {
        self.in_flight > 0 && self.block == Block::Open
    }

    /// It is blocked, this read has seen in the table what blocks it and all that is held, and nothing of it
    /// is in memory.
    pub(super) fn is_in_the_table(&self, read: u64) -> bool {
        let waits = self.busy() || self.holds > 0 || self.reading.is_some() || self.due;
        let seen = self.written.is_some_and(|from| from <= read) && self.held_from <= read;
        self.is_blocked() && seen && !waits && self.queue.is_empty()
    }

    /// Nothing in memory and nothing in the table depends on it.
    pub(super) fn is_unused(&self) -> bool {
        let waits = self.busy() || self.holds > 0 || self.reading.is_some();
        !waits && self.queue.is_empty() && !self.held
    }
}
