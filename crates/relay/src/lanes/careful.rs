//! Suspects: events that may have killed the relay that had them.
//!
//! They are recorded before each dispatch, few at a time, so that the next crash names the few. Those
//! are then tried one by one, each with an attempt that is counted before it goes: the innocent are
//! delivered, and only the guilty one gathers attempts until it is dead. What was never alone when
//! its relay died has no attempt for it.

use std::collections::{BTreeSet, VecDeque};

use posthaste_core::Envelope;

use crate::hash::IntMap;

/// How many suspects of an unknown past are recorded and dispatched together.
const GROUP: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Careful {
    /// May have been in flight when a relay died.
    maybe: VecDeque<Envelope>,
    /// Were in flight when a relay died.
    surely: VecDeque<Envelope>,
    /// They are being recorded.
    recording: IntMap<i64, Envelope>,
    /// Recorded, ready to go.
    ready: VecDeque<Envelope>,
    /// The present group: everything recorded whose outcome is not known.
    group: BTreeSet<i64>,
}

impl Careful {
    pub(super) fn push(&mut self, envelope: Envelope, surely: bool) {
        if surely { &mut self.surely } else { &mut self.maybe }.push_back(envelope);
    }

    /// Starts the next group when the last one is done: gives the sequences to be recorded, and whether
    /// it is one alone that was in flight when a relay died.
    pub(super) fn next_group(&mut self) -> (Vec<i64>, bool) {
        if !self.group.is_empty() {
            return (Vec::new(), false);
        }
        let (group, alone): (Vec<Envelope>, bool) = match self.surely.pop_front() {
            Some(one) => (vec![one], true),
            None => (self.maybe.drain(..self.maybe.len().min(GROUP)).collect(), false),
        };
        let sequences = group
            .into_iter()
            .map(|envelope| {
                let sequence = envelope.sequence;
                self.group.insert(sequence);
                self.recording.insert(sequence, envelope);
                sequence
            })
            .collect();
        (sequences, alone)
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
        if !self.group.is_empty() {
            self.group.remove(&sequence);
            self.recording.remove(&sequence);
        }
    }

    pub(super) fn forget(&mut self, keep: impl Fn(i64) -> bool) {
        self.maybe.retain(|envelope| keep(envelope.sequence));
        self.surely.retain(|envelope| keep(envelope.sequence));
        self.ready.retain(|envelope| keep(envelope.sequence));
        self.recording.retain(|sequence, _| keep(*sequence));
        self.group.retain(|sequence| keep(*sequence));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.maybe.is_empty() && self.surely.is_empty() && self.group.is_empty()
    }
}
