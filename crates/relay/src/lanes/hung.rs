//! Timeouts whose fault is not known: the destination's, or that of an event which hangs it.
//!
//! While nothing is taken after a timeout, it counts against the destination. Its event is put back
//! without an attempt and remembered here. Once an event that was handed over later is taken, the
//! destination is cleared, and the next timeout of the remembered one is its own.

use std::collections::BTreeMap;

/// Most events that are remembered; where more hang, nobody doubts that it is the destination.
const MOST: usize = 1_000;

#[derive(Debug, Default)]
pub(super) struct Hung {
    /// Events that timed out and were not counted, each with the last dispatch that had begun then.
    events: BTreeMap<i64, u64>,
    /// The last dispatch that was answered.
    answered: u64,
}

impl Hung {
    /// This event timed out after so many dispatches.
    pub(super) fn remember(&mut self, sequence: i64, dispatches: u64) {
        self.events.entry(sequence).or_insert(dispatches);
        if self.events.len() > MOST {
            self.events.pop_first();
        }
    }

    /// The destination has answered for this event.
    pub(super) fn answered(&mut self, sequence: i64, dispatch: u64) {
        self.answered = self.answered.max(dispatch);
        if !self.events.is_empty() {
            self.events.remove(&sequence);
        }
    }

    /// One that was handed over after this dispatch has been answered.
    pub(super) fn was_passed(&self, dispatch: u64) -> bool {
        self.answered > dispatch
    }

    /// Whether this event has timed out before, and the destination was there after that. Each such
    /// timeout convicts it once.
    pub(super) fn convicts(&mut self, sequence: i64) -> bool {
        let guilty = self.events.get(&sequence).is_some_and(|at| self.was_passed(*at));
        if guilty {
            self.events.remove(&sequence);
        }
        guilty
    }
}
