//! One lane: its queue and what blocks it.

use std::collections::VecDeque;

use posthaste_core::{Envelope, store::Wait};

/// An event that waits for its turn.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) sequence: i64,
    /// The envelope, or why its row cannot be decoded.
    pub(super) content: Result<Box<Envelope>, String>,
    /// It is still marked held in the database.
    pub(super) held: bool,
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

/// The events of one (destination, ordering key).
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) shard: u16,
    pub(super) queue: VecDeque<Pending>,
    /// It stands in line.
    pub(super) scheduled: bool,
    /// Its head is with the transport, being recorded, or its death is being written.
    pub(super) in_flight: bool,
    pub(super) block: Block,
    /// The database may hold followers of it.
    pub(super) held: bool,
    /// Holds that are being written.
    pub(super) holds: u32,
    /// A release is being read.
    pub(super) reading: bool,
    /// There is more to release than the last read can have seen.
    pub(super) again: bool,
    /// Reads with this number or a later one see in the table what blocks it; `None` until that is
    /// written.
    pub(super) written: Option<u64>,
}

impl Lane {
    pub(super) fn new(shard: u16) -> Self {
        Self {
            shard,
            queue: VecDeque::new(),
            scheduled: false,
            in_flight: false,
            block: Block::Open,
            held: false,
            holds: 0,
            reading: false,
            again: false,
            written: None,
        }
    }

    /// Its head is in line or under way.
    pub(super) fn busy(&self) -> bool {
        self.scheduled || self.in_flight
    }
}
