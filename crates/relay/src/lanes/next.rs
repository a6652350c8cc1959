//! What to dispatch next: two from the hot queue, one from the cold, replays when there is nothing
//! else, suspects few at a time.

use posthaste_core::{
    Envelope,
    store::{Verdict, Wait},
};

use super::{Entry, LaneId, Lanes, Queue, Ready, Recorded, State, Then, lane::Pending, unsettled};

/// A batch on its way to be handed over: full with so many events, or with so many bytes.
struct Filling {
    events: Vec<Envelope>,
    most: usize,
    bytes: usize,
    most_bytes: usize,
}

impl Filling {
    fn is_full(&self) -> bool {
        self.events.len() >= self.most || self.bytes >= self.most_bytes
    }

    fn push(&mut self, envelope: Envelope) {
        self.bytes = self.bytes.saturating_add(envelope.event.payload().len());
        self.events.push(envelope);
    }
}

impl Lanes {
    /// Returns up to `max` events to hand to this destination now, none with `sequence > reserved`, and
    /// the sequence of the event for which only the reservation was in the way.
    pub fn next_batch(
        &mut self,
        destination: u16,
        max: usize,
        reserved: i64,
    ) -> (Vec<Envelope>, Option<i64>) {
        let global = self.rules.global;
        let of = self.at(destination);
        // Others put what waits aside when they are paused; one lane for all just stops.
        if global && of.breaker.paused.is_some() {
            return (Vec::new(), None);
        }
        let waiting = of.all_waiting();
        // Nothing is held under `global`: what failed behind another one would have no place to wait.
        let together = of.rules.together && !global;
        let mut batch = Filling {
            events: Vec::with_capacity(max.min(waiting)),
            most: max,
            bytes: 0,
            most_bytes: self.rules.budget.publish(),
        };
        while !batch.is_full() {
            if let Some(envelope) = self.next_careful(destination) {
                self.start(envelope.sequence);
                batch.push(envelope);
                continue;
            }
            let Some((queue, ready)) = self.at(destination).next_ready() else {
                break;
            };
            let (lane, pending) = match ready {
                Ready::Single(pending) => (None, Some(*pending)),
                Ready::Lane(id) => (Some(id), self.take_head(id, destination)),
            };
            let Some(pending) = pending else { continue };
            if global && lane.is_some() && self.is_paused_event(pending.sequence) {
                self.push_front(destination, queue, lane, pending);
                break;
            }
            if pending.sequence > reserved {
                let wanted = pending.sequence;
                self.push_front(destination, queue, lane, pending);
                self.start_careful();
                return (batch.events, Some(wanted));
            }
            self.leave_queue(pending.sequence);
            let before = batch.events.len();
            self.admit(pending, &mut batch);
            if let Some(id) = lane
                && together
                && batch.events.len() > before
            {
                self.take_followers(id, reserved, &mut batch);
            }
        }
        self.start_careful();
        while !batch.is_full() {
            let Some(envelope) = self.next_careful(destination) else {
                break;
            };
            self.start(envelope.sequence);
            batch.push(envelope);
        }
        (batch.events, None)
    }

    /// A suspect of this destination that is on record.
    fn next_careful(&mut self, destination: u16) -> Option<Envelope> {
        let (known, of) = (&self.known, &self.destinations[usize::from(destination)]);
        let paused = &self.paused_keys;
        self.careful.next_ready(|sequence| {
            let goes = |entry: &Entry| {
                // Under `global` it stays where it is while its key is paused.
                entry.destination == destination
                    && entry.key.is_none_or(|key| !paused.contains_key(&key))
            };
            of.breaker.lets(sequence) && known.get(&sequence).is_some_and(goes)
        })
    }

    /// What follows in the lane flies together with its head, where the destination takes it so.
    fn take_followers(&mut self, id: LaneId, reserved: i64, batch: &mut Filling) {
        while !batch.is_full()
            && let Some(lane) = self.lanes.get_mut(&id)
            && let Some(Pending { sequence, content: Ok(_), wait, .. }) = lane.queue.front()
            && *sequence <= reserved
            && *wait != Some(Wait::Suspect)
        {
            let suspect = self.shards.get(&lane.shard).and_then(|shard| shard.suspect_to);
            if suspect.is_some_and(|to| *sequence <= to) {
                return;
            }
            let Some(Pending { sequence, content: Ok(envelope), .. }) = lane.queue.pop_front()
            else {
                return;
            };
            lane.in_flight += 1;
            self.leave_queue(sequence);
            self.start(sequence);
            batch.push(*envelope);
        }
    }

    /// The event no longer waits for its turn. It is counted by how it came itself: its lane may have
    /// stood in line since an earlier event of it that came another way.
    pub(super) fn leave_queue(&mut self, sequence: i64) {
        if let Some(entry) = self.known.get(&sequence) {
            self.destinations[usize::from(entry.destination)].count_waiting(entry.queue, -1);
        }
    }

    fn take_head(&mut self, id: LaneId, destination: u16) -> Option<Pending> {
        let lane = self.lanes.get_mut(&id)?;
        // A lane that was forgotten and made anew can stand in line twice; under `global` also at a
        // destination that its head does not go to.
        let head = lane.queue.front().and_then(|head| self.known.get(&head.sequence))?;
        if head.destination != destination || !std::mem::take(&mut lane.scheduled) {
            return None;
        }
        let pending = lane.queue.pop_front()?;
        lane.in_flight += 1;
        Some(pending)
    }

    fn push_front(
        &mut self,
        destination: u16,
        queue: Queue,
        lane: Option<LaneId>,
        pending: Pending,
    ) {
        let ready = match lane {
            None => Ready::Single(Box::new(pending)),
            Some(id) => {
                if let Some(lane) = self.lanes.get_mut(&id) {
                    lane.in_flight -= 1;
                    lane.scheduled = true;
                    lane.queue.push_front(pending);
                }
                Ready::Lane(id)
            }
        };
        self.at(destination).queue(queue).push_front(ready);
    }

    /// The event's turn has come: into the batch, or dead, or first to be recorded.
    fn admit(&mut self, pending: Pending, batch: &mut Filling) {
        let sequence = pending.sequence;
        let Some(entry) = self.known.get_mut(&sequence) else {
            return;
        };
        // It has left its queue and is under way in its lane.
        entry.state = State::Undecided;
        let deaths = entry.attempts.saturating_sub(entry.recorded.attempts());
        let in_doubt = self
            .shards
            .get(&entry.shard)
            .and_then(|shard| shard.suspect_to)
            .is_some_and(|to| sequence <= to);
        // A replay stays one when it is recorded, and only its attempts tell: the first of them may
        // be that it was in a group.
        let most = self.rules.max_attempts.saturating_add(u32::from(entry.replay));
        let was_suspect =
            pending.wait == Some(Wait::Suspect) || (in_doubt && entry.replay && entry.attempts > 0);
        let may_kill = was_suspect || in_doubt;
        match pending.content {
            Err(reason) => self.die(sequence, reason),
            Ok(_) if was_suspect && deaths >= most => {
                if let Some(entry) = self.known.get_mut(&sequence) {
                    entry.attempts = deaths;
                }
                self.die_counted(
                    sequence,
                    format!("the relay died {deaths} times while dispatching it"),
                );
            }
            Ok(envelope) if may_kill && entry.recorded == Recorded::Nothing => {
                if let Some(entry) = self.known.get_mut(&sequence) {
                    entry.state = State::Suspect;
                    self.careful.push(entry.destination, *envelope, was_suspect);
                }
            }
            Ok(envelope) => {
                self.start(sequence);
                batch.push(*envelope);
            }
        }
    }

    pub(super) fn start(&mut self, sequence: i64) {
        let Some(entry) = self.known.get_mut(&sequence) else {
            return;
        };
        entry.state = State::InFlight;
        self.in_flight += 1;
        let of = &mut self.destinations[usize::from(entry.destination)];
        of.in_flight += 1;
        of.started += 1;
        entry.started = of.started;
    }

    /// Records the next few suspects of each destination, when its last few are done.
    fn start_careful(&mut self) {
        let (group, alone) = self.careful.next_groups();
        for sequence in group {
            let Some(entry) = self.known.get_mut(&sequence) else {
                continue;
            };
            entry.recorded =
                if alone || entry.replay { Recorded::Attempt } else { Recorded::Suspect };
            entry.attempts += entry.recorded.attempts();
            entry.state = State::Settling(Then::Dispatch);
            self.moved_suspects.remove(&sequence);
            let verdict = Verdict::Suspect {
                destination: self.destinations[usize::from(entry.destination)].rules.name.clone(),
                key: entry.lane.map(|lane| lane.key),
                replay: entry.replay,
            };
            self.stats.suspects += 1;
            let unsettled = unsettled(sequence, entry, verdict);
            self.settlements.push_back(unsettled);
        }
    }
}
