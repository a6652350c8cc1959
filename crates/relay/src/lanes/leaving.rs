//! Which reads are under way, and what may leave once they are merged.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Debug, Default)]
pub(super) struct Leaving {
    /// Number of the last read that began.
    last: u64,
    under_way: BTreeSet<u64>,
    /// Reads that bring only events after one: others need not stay for them. Such a read can take longer
    /// than many of the others.
    beyond: BTreeMap<u64, i64>,
    /// Settled events by the last read that began before their settle was confirmed.
    waiting: VecDeque<(u64, i64)>,
    /// Those that only reads of `beyond` may bring back.
    waiting_beyond: Vec<(u64, i64)>,
}

impl Leaving {
    pub(super) fn read_began(&mut self) -> u64 {
        self.last += 1;
        self.under_way.insert(self.last);
        self.last
    }

    /// A read of events after this one alone.
    pub(super) fn read_began_beyond(&mut self, sequence: i64) -> u64 {
        self.last += 1;
        self.beyond.insert(self.last, sequence);
        self.last
    }

    /// The number of the next read.
    pub(super) fn next_read(&self) -> u64 {
        self.last + 1
    }

    /// The stamp of what is settled now; `None` when no read is under way that could bring it back.
    pub(super) fn stamp(&self) -> Option<u64> {
        (!self.under_way.is_empty() || !self.beyond.is_empty()).then_some(self.last)
    }

    pub(super) fn push(&mut self, stamp: u64, sequence: i64) {
        self.waiting.push_back((stamp, sequence));
    }

    /// The read is merged: gives what may leave now.
    pub(super) fn read_merged(&mut self, read: u64) -> Vec<(u64, i64)> {
        self.under_way.remove(&read);
        let oldest = self.under_way.first().copied().unwrap_or(u64::MAX);
        let count = self.waiting.iter().take_while(|(stamp, _)| *stamp < oldest).count();
        let mut left: Vec<(u64, i64)> = self.waiting.drain(..count).collect();
        if self.beyond.remove(&read).is_some() {
            left.append(&mut self.waiting_beyond);
        }
        if !self.beyond.is_empty() {
            let beyond = &self.beyond;
            let comes_back = |left: &mut (u64, i64)| {
                let (stamp, sequence) = *left;
                beyond.range(..=stamp).any(|(_, after)| sequence > *after)
            };
            self.waiting_beyond.extend(left.extract_if(.., comes_back));
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_long_read_cannot_bring_back_does_not_stay_for_it() {
        let mut leaving = Leaving::default();
        let beyond = leaving.read_began_beyond(100);
        let late = leaving.read_began();
        for sequence in [50, 150] {
            leaving.push(leaving.stamp().unwrap(), sequence);
        }
        assert_eq!(leaving.read_merged(late), [(late, 50)]);
        let next = leaving.read_began();
        leaving.push(leaving.stamp().unwrap(), 160);
        assert!(leaving.read_merged(beyond).contains(&(late, 150)), "that could bring it back");
        assert_eq!(leaving.read_merged(next), [(next, 160)]);
        assert_eq!(leaving.stamp(), None);
    }

    #[test]
    fn what_was_settled_before_a_long_read_began_does_not_stay_for_it() {
        let mut leaving = Leaving::default();
        let read = leaving.read_began();
        leaving.push(leaving.stamp().unwrap(), 150);
        leaving.read_began_beyond(100);
        assert_eq!(leaving.read_merged(read), [(read, 150)]);
    }
}
