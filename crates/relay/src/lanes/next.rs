//! What to dispatch next: two from the hot queue, one from the cold, suspects few at a time.

use posthaste_core::{
    Envelope,
    store::{Verdict, Wait},
};

use super::{LaneId, Lanes, Ready, State, Then, lane::Pending, unsettled};

impl Lanes {
    /// Up to `max` events to hand to the transport now, none behind `reserved`. Says when only the
    /// reservation was in the way.
    pub fn next_batch(&mut self, max: usize, reserved: i64) -> (Vec<Envelope>, bool) {
        let mut batch = Vec::with_capacity(max.min(self.waiting_hot + self.waiting_cold));
        while batch.len() < max {
            if let Some(envelope) = self.careful.next_ready() {
                self.start(envelope.sequence);
                batch.push(envelope);
                continue;
            }
            let Some((hot, ready)) = self.next_ready() else {
                break;
            };
            let (lane, pending) = match ready {
                Ready::Single(pending) => (None, Some(*pending)),
                Ready::Lane(id) => (Some(id), self.take_head(id)),
            };
            let Some(pending) = pending else { continue };
            if pending.sequence > reserved {
                self.put_back(hot, lane, pending);
                self.start_careful();
                return (batch, true);
            }
            self.count_waiting(hot, -1);
            self.admit(pending, &mut batch);
        }
        self.start_careful();
        while batch.len() < max {
            let Some(envelope) = self.careful.next_ready() else {
                break;
            };
            self.start(envelope.sequence);
            batch.push(envelope);
        }
        (batch, false)
    }

    /// Two from the hot queue, then one from the cold, so that neither starves.
    fn next_ready(&mut self) -> Option<(bool, Ready)> {
        let prefer_hot = self.turn < 2;
        self.turn = (self.turn + 1) % 3;
        let order = if prefer_hot { [true, false] } else { [false, true] };
        order.into_iter().find_map(|hot| {
            if hot { &mut self.hot } else { &mut self.cold }.pop_front().map(|ready| (hot, ready))
        })
    }

    fn take_head(&mut self, id: LaneId) -> Option<Pending> {
        let lane = self.lanes.get_mut(&id)?;
        // A lane that was forgotten and made anew can stand in line twice.
        if !std::mem::take(&mut lane.scheduled) {
            return None;
        }
        let pending = lane.queue.pop_front()?;
        lane.in_flight = true;
        Some(pending)
    }

    fn put_back(&mut self, hot: bool, lane: Option<LaneId>, pending: Pending) {
        let ready = match lane {
            None => Ready::Single(Box::new(pending)),
            Some(id) => {
                if let Some(lane) = self.lanes.get_mut(&id) {
                    lane.in_flight = false;
                    lane.scheduled = true;
                    lane.queue.push_front(pending);
                }
                Ready::Lane(id)
            }
        };
        if hot { &mut self.hot } else { &mut self.cold }.push_front(ready);
    }

    /// The event's turn has come: into the batch, or dead, or first to be recorded.
    fn admit(&mut self, pending: Pending, batch: &mut Vec<Envelope>) {
        let sequence = pending.sequence;
        let Some(entry) = self.known.get(&sequence) else {
            return;
        };
        let was_suspect = pending.wait == Some(Wait::Suspect);
        let deaths = entry.attempts - u32::from(entry.recorded);
        let may_kill = was_suspect
            || self
                .shards
                .get(&entry.shard)
                .and_then(|shard| shard.suspect_to)
                .is_some_and(|to| sequence <= to);
        match pending.content {
            Err(reason) => {
                self.in_flight += 1;
                self.die(sequence, reason);
            }
            Ok(_) if was_suspect && deaths >= self.rules.max_attempts => {
                self.in_flight += 1;
                if let Some(entry) = self.known.get_mut(&sequence) {
                    entry.attempts = deaths;
                }
                self.die_counted(
                    sequence,
                    format!("the relay died {deaths} times while dispatching it"),
                );
            }
            Ok(envelope) if may_kill && !entry.recorded => {
                if let Some(entry) = self.known.get_mut(&sequence) {
                    entry.state = State::Suspect;
                }
                self.careful.push(*envelope, was_suspect);
            }
            Ok(envelope) => {
                self.start(sequence);
                batch.push(*envelope);
            }
        }
    }

    pub(super) fn start(&mut self, sequence: i64) {
        if let Some(entry) = self.known.get_mut(&sequence) {
            entry.state = State::InFlight;
            self.in_flight += 1;
        }
    }

    /// Records attempts for the next few suspects, when the last few are done.
    fn start_careful(&mut self) {
        for sequence in self.careful.next_group() {
            let Some(entry) = self.known.get_mut(&sequence) else {
                continue;
            };
            entry.attempts += 1;
            entry.recorded = true;
            entry.state = State::Settling(Then::Dispatch);
            let verdict = Verdict::Suspect {
                destination: self.rules.destinations[0].clone(),
                key: entry.lane.map(|lane| lane.key),
            };
            self.stats.suspects += 1;
            let unsettled = unsettled(sequence, entry, verdict);
            self.settlements.push_back(unsettled);
        }
    }
}
