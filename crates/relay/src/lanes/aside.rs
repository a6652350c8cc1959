//! What cannot go now: as if it had not been read, written back for later, or held behind another.
//!
//! What the cursor brings again is only forgotten. What it does not bring again must be found in the table
//! another way, and one event alone may block a lane there: a lane goes on when what blocked it is out of
//! the way.

use std::time::Instant;

use super::{LaneId, Lanes, Recorded, lane::Block, pause::pause_wait};

/// What is in the way of an event in its lane.
enum Another {
    Blocks,
    UnderWay,
}

impl Lanes {
    /// An event that was not taken, through no fault of its own, or that did not come to be handed
    /// over: as if it had not been read.
    pub(super) fn put_back(&mut self, sequence: i64, now: Instant) {
        let Some(entry) = self.known.get_mut(&sequence) else {
            return;
        };
        let recorded = std::mem::take(&mut entry.recorded);
        entry.attempts -= recorded.attempts();
        self.careful.done(sequence);
        let (destination, lane, held) = (entry.destination, entry.lane, entry.held);
        let (key, has_lease) = (entry.key, entry.lease.is_some());
        if recorded != Recorded::Nothing {
            // That must be taken back, and a hold does not write attempts.
            self.postpone(sequence, now);
            return;
        }
        let delayed = entry.is_delayed();
        let is_brought = !entry.marked || (delayed && self.at(destination).brings(sequence));
        if has_lease || !(held || is_brought) {
            self.set_aside(sequence, now);
            return;
        }
        self.leave_lane(sequence);
        if held {
            self.leave(sequence, true);
        } else {
            self.known.remove(&sequence);
            self.at(destination).skip(sequence, key);
        }
        let Some(id) = lane else { return };
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        if held {
            lane.read_anew();
        } else if lane.block == Block::Open && lane.is_unused() {
            self.drop_lane(id);
        }
    }

    /// An event that cannot go now, and that the cursor does not bring again. With two that block its
    /// lane, that would go on after the first: behind another one it is held. Behind one that is under
    /// way it is only forgotten, and comes again: a follower in the table of one that is not would be
    /// read back before the cursor brings that.
    pub(super) fn set_aside(&mut self, sequence: i64, now: Instant) {
        match self.another(sequence) {
            Some((id, Another::Blocks)) => self.hold_behind(id, sequence),
            Some((_, Another::UnderWay)) => {
                self.leave_lane(sequence);
                self.known.remove(&sequence);
            }
            None => self.postpone(sequence, now),
        }
    }

    /// Its lane, if another event is in the way there.
    fn another(&self, sequence: i64) -> Option<(LaneId, Another)> {
        let entry = self.known.get(&sequence).filter(|entry| !entry.blocks)?;
        let id = entry.lane?;
        let lane = self.lanes.get(&id)?;
        let own = u32::from(entry.state.is_under_way());
        // Also behind events that are held: these come first.
        if lane.is_blocked() || lane.block == Block::Releasing {
            Some((id, Another::Blocks))
        } else {
            (lane.in_flight > own).then_some((id, Another::UnderWay))
        }
    }

    /// Written back, to come again when the destination is tried again. No attempt is counted.
    fn postpone(&mut self, sequence: i64, now: Instant) {
        let Some(entry) = self.known.get(&sequence) else {
            return;
        };
        let breaker = &self.destinations[usize::from(entry.destination)].breaker;
        // Under `global` an event of a paused key waits in its lane.
        let key = entry.key.filter(|_| !self.rules.global || entry.lane.is_none());
        let key_paused = key.and_then(|key| self.paused_keys.get(&key));
        let (mut after, error) = match breaker.paused.as_ref().or(key_paused) {
            Some(since) => {
                let what = if breaker.paused.is_some() { "destination" } else { "key" };
                (pause_wait(*since, now), format!("its {what} is paused"))
            }
            None => breaker.wait(now),
        };
        if self.rules.unordered {
            // Nothing is passed over here: whatever came is written back.
            let destination = entry.destination;
            after = self.at(destination).line_up(after, now);
        }
        self.write_back(sequence, after, error);
    }

    /// It came behind one that failed, in the same lane and batch: it stays behind it, and so does what
    /// waits in the lane.
    pub(super) fn hold_back(&mut self, sequence: i64, now: Instant) {
        match self.known.get(&sequence).map(|entry| entry.lane) {
            Some(Some(id)) => {
                self.hold_behind(id, sequence);
                self.hold_queue(id);
            }
            Some(None) => self.put_back(sequence, now),
            None => {}
        }
    }

    /// It is held behind another one of its lane.
    fn hold_behind(&mut self, id: LaneId, sequence: i64) {
        self.leave_lane(sequence);
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.read_anew();
            if lane.block == Block::Open {
                // It is read back once what it came behind is out of the way.
                lane.turn(Block::Releasing);
            }
        }
        self.hold_follower(id, sequence);
    }

    /// The event is no longer under way in its lane.
    pub(super) fn leave_lane(&mut self, sequence: i64) {
        if let Some(entry) = self.known.get(&sequence)
            && entry.state.is_under_way()
            && let Some(id) = entry.lane
            && let Some(lane) = self.lanes.get_mut(&id)
        {
            lane.in_flight = lane.in_flight.saturating_sub(1);
        }
    }
}
