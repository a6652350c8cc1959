//! What is handed over, what becomes of it, and what is written of that.

use super::*;

impl World {
    pub(super) fn dispatch(&mut self, max: usize) {
        self.lanes.wake_breakers(self.now);
        for destination in 0..self.lanes.destinations() {
            let (batch, wants) = self.lanes.next_batch(destination, max, self.reserved);
            assert!(batch.iter().all(|envelope| envelope.sequence <= self.reserved));
            if wants.is_some() {
                // As with the driver's next heartbeat.
                self.reserved = self.newest() + 2;
            }
            let mut ahead: BTreeSet<i64> = BTreeSet::new();
            let name = NAMES[self.routes].get(usize::from(destination));
            assert!(batch.is_empty() || !name.is_some_and(|name| self.paused.contains(name)));
            assert!(batch.is_empty() || self.owner == Owner::Us, "the shard is not ours");
            for envelope in &batch {
                let sequence = envelope.sequence;
                let key = self.table[&sequence].key;
                assert!(!self.paused_keys.contains(&Key(i64::from(key))), "{sequence} is paused");
                let before = self.table.range(..sequence);
                for (earlier, stored) in before.filter(|(_, s)| self.global || s.key == key) {
                    assert!(
                        stored.stand == Stand::Dead
                            || stored.not_before.is_some()
                            || self.acknowledged.contains(earlier)
                            || ahead.contains(earlier),
                        "{sequence} was handed over before {earlier} ({:?})",
                        stored.stand
                    );
                }
                ahead.insert(sequence);
            }
            if !batch.is_empty() {
                self.in_flight.push(batch.iter().map(|envelope| envelope.sequence).collect());
            }
        }
        self.lanes.judge_all(self.now);
        self.note_skipped();
    }

    /// A batch is answered: a prefix of it is accepted, the rest is not; or each for itself.
    pub(super) fn outcome(&mut self, pick: usize, kind: usize) {
        if self.in_flight.is_empty() {
            return;
        }
        let batch = self.in_flight.swap_remove(pick % self.in_flight.len());
        let destination = destination_of(self.table[&batch[0]].key, self.routes);
        let up = self.up[usize::from(destination)];
        let mut failed = false;
        let mut outcomes = Vec::new();
        for (index, sequence) in batch.into_iter().enumerate() {
            let outcome = match (kind + index * 5) % 8 {
                0 | 1 if !up => Outcome::timed_out("no answer"),
                5 if !up => not_before("down", 200),
                _ if !up => Outcome::unavailable("down"),
                _ if destination == 0 && failed => Outcome::retry("behind one that failed"),
                0 if index > 0 => Outcome::timed_out("this one hangs"),
                0 => Outcome::retry("no"),
                1 => Outcome::dead("never"),
                2 => Outcome::Retry { error: String::new(), after: Some(Duration::ZERO) },
                3 => Outcome::unavailable("this one not"),
                4 if kind.is_multiple_of(3) => not_before("this one later", 50),
                _ => Outcome::Delivered,
            };
            failed |= outcome != Outcome::Delivered;
            if outcome == Outcome::Delivered && !self.acknowledged.contains(&sequence) {
                self.acknowledged.push(sequence);
            }
            outcomes.push((sequence, outcome));
        }
        self.lanes.published(outcomes, self.now);
        self.note_skipped();
    }

    /// A batch is accepted but for what is of this key, as long as others are not done.
    pub(super) fn refuse(&mut self, key: Option<u8>) {
        let Some(batch) = self.in_flight.pop() else { return };
        let others = self.table.values().any(|stored| !stored.is_done() && Some(stored.key) != key);
        let mut outcomes = Vec::new();
        let mut failed = false;
        for sequence in batch {
            failed |= others && Some(self.table[&sequence].key) == key;
            if !failed && !self.acknowledged.contains(&sequence) {
                self.acknowledged.push(sequence);
            }
            let outcome = if failed { Outcome::retry("no") } else { Outcome::Delivered };
            outcomes.push((sequence, outcome));
        }
        self.lanes.published(outcomes, self.now);
        self.note_skipped();
    }

    /// Outcomes are written now, or on the way for a while.
    pub(super) fn begin_settle(&mut self, written: bool) {
        if self.settling.is_some() {
            return;
        }
        let batch = self.lanes.next_settlements(3);
        if written {
            self.write_outcomes(&batch);
        }
        self.settling = Some(Settling { batch, epoch: self.epoch, written });
    }

    pub(super) fn write_outcomes(&mut self, batch: &[Unsettled]) {
        for unsettled in batch {
            let settlement = &unsettled.settlement;
            let Some(stored) = self.table.get_mut(&settlement.sequence) else { continue };
            if stored.is_done() {
                continue;
            }
            stored.attempts = settlement.attempts;
            stored.free = false;
            if let Some(name) = lane_name(&settlement.verdict) {
                stored.at = name;
            }
            stored.stand = match &settlement.verdict {
                Verdict::Sent => Stand::Sent,
                Verdict::Retry { replay: true, .. } | Verdict::Suspect { replay: true, .. } => {
                    Stand::Waits(Wait::Replay)
                }
                Verdict::Retry { .. } => Stand::Waits(Wait::Retry),
                Verdict::Dead { .. } => Stand::Dead,
                Verdict::Held { .. } => Stand::Waits(Wait::Held),
                Verdict::Suspect { .. } => Stand::Waits(Wait::Suspect),
                Verdict::Unclaimed => Stand::Fresh,
            };
            // The operator of this world discards what parks a lane at once.
            if matches!(settlement.verdict, Verdict::Dead { parked: Some(_), .. }) {
                self.discard(settlement.sequence);
            }
        }
    }

    pub(super) fn end_settle(&mut self) {
        let Some(Settling { batch, epoch, written }) = self.settling.take() else { return };
        let refused = !written && epoch != self.epoch;
        if !written && !refused {
            self.write_outcomes(&batch);
        }
        let sequences = batch.iter().map(|unsettled| unsettled.settlement.sequence);
        if epoch != self.epoch {
            // As the driver does it: what was in hand then is forgotten.
        } else if refused {
            self.lanes.refused(sequences);
        } else {
            self.lanes.settled(sequences, now());
        }
    }

    /// An operator discards a parked event: its first held follower is set free.
    pub(super) fn discard(&mut self, parked: i64) {
        let key = self.table[&parked].key;
        let at = self.table[&parked].at;
        let held = |stored: &&mut Stored| {
            (stored.key, stored.at) == (key, at) && stored.stand == Stand::Waits(Wait::Held)
        };
        if let Some(first) = self.table.values_mut().find(held) {
            first.free = true;
        }
    }
}

fn not_before(error: &str, millis: u64) -> Outcome {
    Outcome::Unavailable { error: error.to_owned(), after: Some(Duration::from_millis(millis)) }
}

/// The destination that is written with this.
fn lane_name(verdict: &Verdict) -> Option<&'static str> {
    match verdict {
        Verdict::Retry { destination, .. }
        | Verdict::Dead { destination, .. }
        | Verdict::Held { destination, .. }
        | Verdict::Suspect { destination, .. } => {
            NAMES.into_iter().flatten().find(|name| name == destination)
        }
        Verdict::Sent | Verdict::Unclaimed => None,
    }
}
