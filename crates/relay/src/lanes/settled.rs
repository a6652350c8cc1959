//! What was written leaves, and held followers come back.

use std::time::Instant;

use posthaste_core::store::{Fetched, Wait};

use super::{
    LaneId, Lanes, Origin, ReadBack, Release, State, Then, UNAVAILABLE_WAIT, Unsettled,
    lane::{Lane, Reading},
};

impl Lanes {
    /// How many outcomes wait to be written.
    pub fn unsettled(&self) -> usize {
        self.settlements.len()
    }

    /// Up to `max` outcomes to write now.
    pub fn next_settlements(&mut self, max: usize) -> Vec<Unsettled> {
        let count = self.settlements.len().min(max);
        self.settlements.drain(..count).collect()
    }

    /// These were written.
    pub fn settled(&mut self, sequences: impl IntoIterator<Item = i64>, now: Instant) {
        for sequence in sequences {
            if self.moved(sequence) {
                continue;
            }
            let Some(entry) = self.known.get_mut(&sequence) else {
                continue;
            };
            let State::Settling(then) = entry.state else {
                continue;
            };
            let lane = entry.lane;
            if then == Then::Dispatch {
                if self.rules.unordered || self.shards.contains_key(&entry.shard) {
                    entry.state = State::Suspect;
                    let of = &self.destinations[usize::from(entry.destination)];
                    let paused = !self.rules.global && self.is_paused_event(sequence);
                    if of.breaker.lets(sequence) && !paused {
                        self.careful.recorded(sequence);
                    } else {
                        // Others wait until this one is through, and it cannot go.
                        self.put_back(sequence, now);
                    }
                } else {
                    // The shard is being handed over: the next owner finds the record.
                    self.known.remove(&sequence);
                    self.careful.done(sequence);
                }
                continue;
            }
            self.leave(sequence, then == Then::Hold);
            match (then, lane) {
                (Then::AdvanceLane, Some(id)) => self.lane_done(id),
                (Then::Hold, Some(id)) => self.hold_written(id),
                (Then::BlockLane, Some(id)) => self.block_written(id),
                _ => {}
            }
        }
    }

    /// This suspect cannot be recorded, because somebody has locked its row: it is written back when that is free,
    /// and others go first.
    pub fn cannot_record(&mut self, sequence: i64) {
        let Some(entry) = self.known.get_mut(&sequence) else { return };
        if entry.state != State::Settling(Then::Dispatch) {
            return;
        }
        let recorded = std::mem::take(&mut entry.recorded);
        entry.attempts -= recorded.attempts();
        // Its lane counts it among those under way until it has left.
        entry.state = State::Suspect;
        self.careful.done(sequence);
        if self.rules.unordered || self.shards.contains_key(&entry.shard) {
            self.write_back(sequence, UNAVAILABLE_WAIT, "somebody had locked its row".to_owned());
        } else {
            self.known.remove(&sequence);
        }
    }

    /// Nothing is left to do for this event, as the table has it. It stays known until every read is
    /// merged that may have seen it as it was before.
    pub(super) fn leave(&mut self, sequence: i64, held: bool) {
        if held
            && let Some(id) = self.known.get(&sequence).and_then(|entry| entry.lane)
            && let Some(lane) = self.lanes.get_mut(&id)
        {
            lane.read_anew();
        }
        match (self.leaving.stamp(), self.known.get_mut(&sequence)) {
            (Some(stamp), Some(entry)) => {
                entry.state = State::Leaving { stamp, held };
                entry.charge = None;
                self.leaving.push(stamp, sequence);
            }
            _ => {
                self.known.remove(&sequence);
            }
        }
    }

    /// These were refused: the right to write them was lost.
    pub fn refused(&mut self, sequences: impl IntoIterator<Item = i64>) {
        for sequence in sequences {
            self.moving.remove(&sequence);
            if self.known.get(&sequence).is_some_and(|e| matches!(e.state, State::Settling(_))) {
                self.known.remove(&sequence);
                self.careful.done(sequence);
            }
        }
    }

    /// The lane's head was written back: from here on the table says that the lane is blocked.
    fn block_written(&mut self, id: LaneId) {
        let next = self.leaving.next_read();
        if let Some(lane) = self.lanes.get_mut(&id)
            && lane.is_blocked()
            && !lane.busy()
        {
            lane.written.get_or_insert(next);
        }
    }

    pub(super) fn hold_written(&mut self, id: LaneId) {
        let next = self.leaving.next_read();
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        lane.holds -= 1;
        // A read that is under way may have looked before.
        lane.read_anew();
        let first = lane.held_from == 0 && lane.written.is_some_and(|written| written < next);
        lane.held_from = next;
        if lane.stands_released() {
            self.request_release(id);
        } else if first {
            // It came since the lane was blocked. If what blocks the lane was removed or delivered before this
            // one was held, nothing was set free that could tell.
            self.ask_for(id);
        }
    }

    /// Asks for the lane's held followers, once all holds are written: a read in between would
    /// miss one and open the lane over it.
    pub(super) fn request_release(&mut self, id: LaneId) {
        let paused = self.is_paused(Some(id.key));
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        if lane.holds > 0 || lane.reading.is_some() {
            return;
        }
        // Its shard is being handed over. Nothing of it would be taken in, and it would be asked for again.
        // The one lane of `global` is of all shards.
        if !self.rules.global && !self.shards.contains_key(&lane.shard) {
            return;
        }
        let breaker = &self.destinations[usize::from(id.destination)].breaker;
        let down = !breaker.is_closed() && !breaker.wants_probe();
        if down || paused {
            // When it closes, or the key goes on, this is asked again.
            lane.read_anew();
            return;
        }
        lane.reading = Some(Reading::Wanted);
        self.at(id.destination).releases.push_back(id);
    }

    /// What is to be read of lanes next: releases and looks take turns. No lane is looked at while so many outcomes wait
    /// to be written: what a look finds elsewhere than where it belongs is written, too.
    pub fn next_read_back(&mut self, most_unsettled: usize) -> Option<ReadBack> {
        let looks = self.unsettled() < most_unsettled;
        self.looks_first = !self.looks_first;
        if self.looks_first
            && looks
            && let Some(look) = self.next_look()
        {
            return Some(ReadBack::Look(look));
        }
        let release = self.next_release().map(ReadBack::Release);
        release.or_else(|| if looks { self.next_look().map(ReadBack::Look) } else { None })
    }

    /// A lane whose held followers are to be read, of a destination that has room for them: they take turns. It is due
    /// back in [`released`](Self::released).
    pub fn next_release(&mut self) -> Option<Release> {
        let count = self.destinations.len();
        let turns = (1..=count).map(|turn| (self.released_last + turn) % count);
        let may = |index: &usize| {
            let any = !self.destinations[*index].releases.is_empty();
            any && !self.has_its_due(*index as u16, Some(Wait::Held))
        };
        let turns: Vec<usize> = turns.filter(may).collect();
        turns.into_iter().find_map(|index| {
            self.released_last = index;
            self.next_release_of(index)
        })
    }

    fn next_release_of(&mut self, destination: usize) -> Option<Release> {
        while let Some(id) = self.destinations[destination].releases.pop_front() {
            // Its shard may have been lost meanwhile, and may have come back.
            let wanted = |lane: &&mut Lane| lane.reading == Some(Reading::Wanted);
            let Some(lane) = self.lanes.get_mut(&id).filter(wanted) else {
                continue;
            };
            let read = self.leaving.read_began();
            lane.reading = Some(Reading::Began(read));
            let after = lane.more.take().unwrap_or(0);
            let destination = self.name_of(id.destination);
            return Some(Release { lane: id, destination, after, read });
        }
        None
    }

    /// All of them.
    #[cfg(test)]
    pub fn next_releases(&mut self) -> Vec<Release> {
        std::iter::from_fn(|| self.next_release()).collect()
    }

    fn awaits(&self, release: &Release) -> bool {
        let lane = self.lanes.get(&release.lane);
        lane.is_some_and(|lane| lane.reading == Some(Reading::Began(release.read)))
    }

    /// The lane's held followers, in order; `None` when they could not be read.
    pub fn released(&mut self, release: &Release, rows: Option<Vec<Fetched>>, now: Instant) {
        // Its shard was lost meanwhile, and may have come back: another relay had the followers.
        if self.awaits(release) {
            // What was held while it was under way may lie before where it began, and before what it brings.
            let is_late = self.lanes.get(&release.lane).is_some_and(|lane| lane.more.is_some());
            let rows = rows.filter(|_| release.after == 0 || !is_late);
            self.take_back(release.lane, rows, now);
        }
        self.read_merged(release.read);
    }

    fn take_back(&mut self, id: LaneId, rows: Option<Vec<Fetched>>, now: Instant) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        lane.reading = None;
        let Some(rows) = rows else {
            self.request_release(id);
            return;
        };
        let empty = rows.is_empty();
        for row in rows {
            self.offer(row, Origin::Held, None, now);
        }
        let paused = self.is_paused(Some(id.key));
        let breaker = &mut self.destinations[usize::from(id.destination)].breaker;
        let closed = breaker.is_closed() && !paused;
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let nothing_held = empty && lane.more.is_none() && lane.holds == 0;
        if lane.stands_released() && nothing_held && breaker.wants_probe() && !paused {
            // There is nothing to try the destination with: another lane may have something.
            breaker.look_again();
            self.drop_lane(id);
            return;
        }
        // They stay held until the destination takes events again, and the key is not paused. A page ends
        // by its rows or its bytes: only an empty one says that there are no more.
        if !empty || !closed {
            // From the beginning: to go on after this page passed one that was held again (simulation, seed
            // 1795140543044).
            lane.read_anew();
        }
        if closed && lane.stands_released() {
            self.lane_done(id);
        }
    }

    /// A read begins; its number is due back in [`read_merged`](Self::read_merged).
    pub fn read_began(&mut self) -> u64 {
        self.leaving.read_began()
    }

    /// A read begins that brings only events after this one.
    pub fn read_began_beyond(&mut self, sequence: i64) -> u64 {
        self.leaving.read_began_beyond(sequence)
    }

    /// Everything that this read found has been offered, or it failed.
    pub fn read_merged(&mut self, read: u64) {
        for (stamp, sequence) in self.leaving.read_merged(read) {
            let leaves = self.known.get(&sequence).is_some_and(
                |entry| matches!(entry.state, State::Leaving { stamp: s, .. } if s == stamp),
            );
            if leaves {
                self.known.remove(&sequence);
            }
        }
    }
}
