//! Suspects: events that may have killed the relay that had them.
//!
//! They are recorded before each dispatch, few at a time for each destination, so that the next crash
//! names the few, and a destination that does not answer keeps no other waiting. Those that were named are
//! then tried one by one, each with an attempt that is counted before it goes: the innocent are delivered,
//! and only the guilty one gathers attempts until it is dead. What was never alone when its relay died has
//! no attempt for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use posthaste_core::Envelope;

use crate::hash::IntMap;

/// How many suspects of an unknown past are recorded and dispatched together to one destination.
const GROUP: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Careful {
    /// May have been in flight when a relay died, by their destination.
    maybe: BTreeMap<u16, VecDeque<Envelope>>,
    /// Were in flight when a relay died.
    surely: VecDeque<(u16, Envelope)>,
    /// They are being recorded.
    recording: IntMap<i64, Envelope>,
    /// Recorded, ready to go.
    ready: VecDeque<Envelope>,
    /// The present group of each destination: everything recorded whose outcome is not known.
    groups: BTreeMap<u16, BTreeSet<i64>>,
    /// It is one that was in flight when a relay died, and no other goes beside it.
    alone: bool,
}

impl Careful {
    pub(super) fn push(&mut self, destination: u16, envelope: Envelope, surely: bool) {
        if surely {
            self.surely.push_back((destination, envelope));
        } else {
            self.maybe.entry(destination).or_default().push_back(envelope);
        }
    }

    /// Starts the next group of each destination whose last one is done. Returns the sequences to be recorded, and
    /// whether it is one alone that was in flight when a relay died.
    pub(super) fn next_groups(&mut self) -> (Vec<i64>, bool) {
        if !self.groups.is_empty() && (self.alone || !self.surely.is_empty()) {
            return (Vec::new(), false);
        }
        let one = self.surely.pop_front();
        self.alone = one.is_some();
        if let Some((destination, one)) = one {
            return (self.start(destination, vec![one]), true);
        }
        let mut next = Vec::new();
        for (destination, waiting) in &mut self.maybe {
            if !self.groups.contains_key(destination) {
                let group: Vec<Envelope> = waiting.drain(..waiting.len().min(GROUP)).collect();
                next.push((*destination, group));
            }
        }
        self.maybe.retain(|_, waiting| !waiting.is_empty());
        let started = next.into_iter().map(|(destination, group)| self.start(destination, group));
        (started.flatten().collect(), false)
    }

    fn start(&mut self, destination: u16, group: Vec<Envelope>) -> Vec<i64> {
        let sequences: Vec<i64> = group.iter().map(|envelope| envelope.sequence).collect();
        self.groups.entry(destination).or_default().extend(&sequences);
        self.recording.extend(sequences.iter().copied().zip(group));
        sequences
    }

    pub(super) fn recorded(&mut self, sequence: i64) {
        if let Some(envelope) = self.recording.remove(&sequence) {
            self.ready.push_back(envelope);
        }
    }

    pub(super) fn next_ready(&mut self, may_go: impl Fn(i64) -> bool) -> Option<Envelope> {
        let index = self.ready.iter().position(|envelope| may_go(envelope.sequence))?;
        self.ready.remove(index)
    }

    /// Its outcome is known, or it is no longer ours.
    pub(super) fn done(&mut self, sequence: i64) {
        if self.groups.is_empty() {
            return;
        }
        self.recording.remove(&sequence);
        self.groups.retain(|_, group| {
            group.remove(&sequence);
            !group.is_empty()
        });
    }

    pub(super) fn forget(&mut self, keep: impl Fn(i64) -> bool) {
        self.maybe.retain(|_, waiting| {
            waiting.retain(|envelope| keep(envelope.sequence));
            !waiting.is_empty()
        });
        self.surely.retain(|(_, envelope)| keep(envelope.sequence));
        self.ready.retain(|envelope| keep(envelope.sequence));
        self.recording.retain(|sequence, _| keep(*sequence));
        self.groups.retain(|_, group| {
            group.retain(|sequence| keep(*sequence));
            !group.is_empty()
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.maybe.is_empty() && self.surely.is_empty() && self.groups.is_empty()
    }
}
