//! Which reads are under way, and what may leave once they are merged.

use std::collections::{BTreeSet, VecDeque};

#[derive(Debug, Default)]
pub(super) struct Leaving {
    /// Number of the last read that began.
    last: u64,
    under_way: BTreeSet<u64>,
    /// Settled events by the last read that began before their settle was confirmed.
    waiting: VecDeque<(u64, i64)>,
}

impl Leaving {
    pub(super) fn read_began(&mut self) -> u64 {
        self.last += 1;
        self.under_way.insert(self.last);
        self.last
    }

    /// The number of the next read.
    pub(super) fn next_read(&self) -> u64 {
        self.last + 1
    }

    /// The stamp of what is settled now; `None` when no read is under way that could bring it back.
    pub(super) fn stamp(&self) -> Option<u64> {
        (!self.under_way.is_empty()).then_some(self.last)
    }

    pub(super) fn push(&mut self, stamp: u64, sequence: i64) {
        self.waiting.push_back((stamp, sequence));
    }

    /// The read is merged: gives what may leave now.
    pub(super) fn read_merged(&mut self, read: u64) -> Vec<(u64, i64)> {
        self.under_way.remove(&read);
        let oldest = self.under_way.first().copied().unwrap_or(u64::MAX);
        let count = self.waiting.iter().take_while(|(stamp, _)| *stamp < oldest).count();
        self.waiting.drain(..count).collect()
    }
}
