//! Pauses: what an operator has stopped is put aside, and comes back in order.
//!
//! A paused destination is a breaker that nobody tries: its events are passed over and come through a
//! cursor of its own when it goes on. The lanes of a paused key hold everything: what waits in them and
//! what comes is marked held in the table, whatever its destination, so that the next owner of the
//! shard finds it there too; when the key goes on, they are read back like any held lane. Nothing is
//! held before what is under way in its lane has ended: the next owner would find a follower that is
//! held, and read it back before the cursor brings what it follows.
//!
//! Replays and events that were claimed one by one have no lane. They are written back without an
//! attempt, and come again soon after their key goes on. Under `global` everything shares one lane, so
//! everything waits behind the first event that is paused.

use std::{
    collections::{BTreeSet, btree_map::Entry as MapEntry},
    time::{Duration, Instant},
};

use posthaste_core::{Key, store::Wait};

use super::{
    Entry, LaneId, Lanes, Offered, Origin, Ready, Recorded, State,
    destination::{Gate, Queue},
    lane::{Block, Lane},
};

/// How long an event is written back for that has no lane to be held in: a quarter of the time that
/// the pause has lasted. Long pauses cost few writes, and short ones little time after their end.
pub(super) fn pause_wait(since: Instant, now: Instant) -> Duration {
    let lasted = now.saturating_duration_since(since);
    (lasted / 4).clamp(Duration::from_secs(1), Duration::from_mins(1))
}

impl Lanes {
    /// All that is paused now; whatever is not among it goes on.
    pub fn pause(&mut self, keys: &BTreeSet<Key>, destinations: &BTreeSet<&str>, now: Instant) {
        for destination in 0..self.destinations() {
            let of = self.at(destination);
            let paused = destinations.contains(of.rules.name.as_str());
            match of.breaker.paused {
                None if paused => self.pause_destination(destination, now),
                Some(_) if !paused => {
                    of.breaker.resume();
                    if of.breaker.is_closed() {
                        self.release_all(destination);
                    }
                }
                _ => {}
            }
        }
        let resumed: Vec<Key> =
            self.paused_keys.keys().filter(|key| !keys.contains(key)).copied().collect();
        for key in resumed {
            self.paused_keys.remove(&key);
            for id in self.lanes_of(key) {
                let releases = |lane: &Lane| lane.block == Block::Releasing && !lane.busy();
                if self.lanes.get(&id).is_some_and(releases) {
                    self.request_release(id);
                }
            }
        }
        for &key in keys {
            if let MapEntry::Vacant(new) = self.paused_keys.entry(key) {
                new.insert(now);
                self.pause_key(key, now);
            }
        }
    }

    /// Everything waits behind an event that is paused (`global`): there is nothing to do.
    pub fn stands_behind_a_pause(&self) -> bool {
        let Some(lane) = self.lanes.get(&LaneId::OF_ALL).filter(|_| self.rules.global) else {
            return false;
        };
        let paused = |entry: &Entry| {
            let of = &self.destinations[usize::from(entry.destination)];
            of.breaker.paused.is_some() || self.is_paused(entry.key)
        };
        // In line, or recorded as one that may have killed a relay.
        let head = lane.queue.front().filter(|_| lane.scheduled);
        let head = head.and_then(|head| self.known.get(&head.sequence));
        let recorded = |entry: &Entry| entry.state == State::Suspect && paused(entry);
        self.in_flight == 0 && head.map_or_else(|| self.known.values().any(recorded), paused)
    }

    /// Nothing of the lanes of this key goes: an operator has paused it, or it is in doubt.
    pub(super) fn is_paused(&self, key: Option<Key>) -> bool {
        key.is_some_and(|key| self.in_doubt(key) || self.is_paused_by_hand(key))
    }

    fn is_paused_by_hand(&self, key: Key) -> bool {
        !self.paused_keys.is_empty() && self.paused_keys.contains_key(&key)
    }

    /// An event of this key does not go. One without a lane, such as a replay, follows nothing: it waits for
    /// no doubt about lanes, which may last until an operator acts.
    pub(super) fn stops(&self, key: Option<Key>, has_lane: bool) -> bool {
        if has_lane {
            self.is_paused(key)
        } else {
            key.is_some_and(|key| self.is_paused_by_hand(key))
        }
    }

    pub(super) fn is_paused_event(&self, sequence: i64) -> bool {
        let stops = |entry: &Entry| self.stops(entry.key, entry.lane.is_some());
        !self.paused_keys.is_empty() && self.known.get(&sequence).is_some_and(stops)
    }

    /// What becomes of a row that would be let in if its key were not paused. Where its destination
    /// would pass it over, it is passed over: what was passed over before it must come first.
    pub(super) fn pause_gate(&self, gate: Gate, key: Option<Key>, lane: Option<LaneId>) -> Gate {
        match gate {
            Gate::Admit | Gate::Probe if self.stops(key, lane.is_some()) => match lane {
                None => Gate::Postpone,
                Some(_) if self.rules.global => gate,
                // It follows that in its lane. A probe stays one: in the lane of a destination that is down it
                // would overtake its predecessor, which is put back when it fails.
                Some(id) if self.lanes.get(&id).is_some_and(Lane::is_under_way) => gate,
                Some(_) => Gate::Hold,
            },
            gate => gate,
        }
    }

    /// A row of a paused key: marked held, also when it was what blocked its lane.
    pub(super) fn hold_paused(
        &mut self,
        sequence: i64,
        entry: Entry,
        id: LaneId,
        origin: Origin,
        wait: Option<Wait>,
    ) -> Offered {
        let lane = self.lanes.entry(id).or_insert_with(|| Lane::new(entry.shard));
        if origin == Origin::Held {
            lane.read_anew();
            return Offered::Ignored;
        }
        let marked = origin == Origin::Due && wait == Some(Wait::Held);
        if marked && lane.is_blocked() {
            // Perhaps of an earlier discard: the table knows whether anything blocks the lane.
            self.ask_for(id);
            return Offered::Ignored;
        }
        let was_in_the_way =
            origin == Origin::Due && matches!(wait, Some(Wait::Retry | Wait::Suspect | Wait::Held));
        // A read that is under way would bring the lane back without it. It comes again.
        if was_in_the_way && (lane.busy() || lane.reading.is_some()) {
            return Offered::Ignored;
        }
        if was_in_the_way || lane.block == Block::Open {
            lane.turn(Block::Releasing);
        }
        self.hold_offered(sequence, entry, id)
    }

    pub(super) fn lanes_of(&self, key: Key) -> Vec<LaneId> {
        let ids = (0..self.destinations()).map(|destination| LaneId { destination, key });
        ids.filter(|id| self.lanes.contains_key(id)).collect()
    }

    /// Nothing more goes there; what is under way may end.
    fn pause_destination(&mut self, destination: u16, now: Instant) {
        let of = self.at(destination);
        of.breaker.paused = Some(now);
        if self.rules.global {
            return;
        }
        self.forget_destination(destination, now);
        self.put_undecided_back(destination, now);
    }

    fn pause_key(&mut self, key: Key, now: Instant) {
        self.put_singles_back(key, now);
        if self.rules.global {
            return;
        }
        let suspects = self.events_in(|entry| entry.key == Some(key), State::Suspect);
        for sequence in suspects {
            self.careful.forget(|other| other != sequence);
            self.pause_suspect(sequence, now);
        }
        for id in self.lanes_of(key) {
            if self.lanes.get(&id).is_some_and(|lane| lane.in_flight == 0) {
                self.hold_lane(id);
            }
        }
    }

    /// Everything that waits in the lane is held, also what waits for its next attempt at its head.
    pub(super) fn hold_lane(&mut self, id: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&id)
            && !lane.queue.is_empty()
        {
            lane.scheduled = false;
            lane.read_anew();
            lane.turn(Block::Releasing);
            self.hold_queue(id);
        }
    }

    /// A suspect that has not been handed over yet. Once it is recorded, that must be taken back, and a
    /// hold does not write attempts.
    fn pause_suspect(&mut self, sequence: i64, now: Instant) {
        let Some(entry) = self.known.get(&sequence) else { return };
        let Some(id) = entry.lane.filter(|_| entry.recorded == Recorded::Nothing) else {
            self.put_back(sequence, now);
            return;
        };
        self.leave_lane(sequence);
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.read_anew();
            lane.turn(Block::Releasing);
        }
        self.hold_follower(id, sequence);
    }

    /// Events of this key that wait alone, without a lane, are written back.
    fn put_singles_back(&mut self, key: Key, now: Instant) {
        let of_key = |entry: &Entry| entry.key == Some(key) && entry.lane.is_none();
        let singles = self.events_in(of_key, State::Waiting);
        if singles.is_empty() {
            return;
        }
        for of in &mut self.destinations {
            for line in Queue::ALL {
                let queue = of.queue(line);
                let before = queue.len();
                queue.retain(|ready| match ready {
                    Ready::Single(pending) => singles.binary_search(&pending.sequence).is_err(),
                    Ready::Lane(_) => true,
                });
                let gone = before - queue.len();
                of.count_waiting(line, -(gone as isize));
            }
        }
        for sequence in singles {
            self.put_back(sequence, now);
        }
    }

    /// Events in this state, in order.
    fn events_in(&self, which: impl Fn(&Entry) -> bool, state: State) -> Vec<i64> {
        let found = self.known.iter().filter(|(_, entry)| entry.state == state && which(entry));
        let mut found: Vec<i64> = found.map(|(sequence, _)| *sequence).collect();
        found.sort_unstable();
        found
    }
}
