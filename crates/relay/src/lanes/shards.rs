//! Shards come and go, and their lanes with them.

use std::collections::BTreeSet;

use posthaste_core::store::{Blocked, LaneKey};

use super::{
    LaneId, Lanes, Queue, Ready, Shard, State,
    lane::{Block, Lane},
};

impl Lanes {
    /// Events of this shard are welcome from now on.
    pub fn open_shard(&mut self, shard: u16, suspect_to: Option<i64>) {
        let first_read = self.leaving.next_read();
        self.shards.insert(shard, Shard { suspect_to, first_read });
    }

    /// Whether the shard has been ours since before this read began: an earlier one has seen nothing
    /// of what another relay did with it.
    pub fn saw(&self, read: u64, shard: u16) -> bool {
        self.shards.get(&shard).is_some_and(|shard| shard.first_read <= read)
    }

    /// The shard is to be handed over: what is in flight ends, the rest is forgotten.
    pub fn close_shard(&mut self, shard: u16) {
        self.shards.remove(&shard);
        self.forget_doubts(&BTreeSet::from([shard]));
        self.forget_waiting(&BTreeSet::from([shard]));
    }

    /// The shards are gone: nothing of theirs is dispatched or settled any more.
    pub fn lose_shards(&mut self, lost: &BTreeSet<u16>) {
        for shard in lost {
            self.shards.remove(shard);
        }
        self.forget_doubts(lost);
        self.forget_waiting(lost);
        self.lanes.retain(|_, lane| {
            let keep = !lost.contains(&lane.shard);
            if !keep {
                lane.drops();
            }
            keep
        });
        let stats = &mut self.stats;
        self.settlements.retain(|unsettled| {
            let keep = !lost.contains(&unsettled.settlement.shard);
            stats.stale_settles += u64::from(!keep);
            keep
        });
        self.known.retain(|_, entry| {
            if lost.contains(&entry.shard) {
                if !matches!(entry.state, State::InFlight | State::Orphan) {
                    return false;
                }
                entry.state = State::Orphan;
            }
            true
        });
        // Also those whose attempt was being recorded, or the others would wait for them for ever.
        let known = &self.known;
        self.careful.forget(|sequence| known.contains_key(&sequence));
    }

    pub(super) fn forget_waiting(&mut self, shards: &BTreeSet<u16>) {
        let mut under_way = BTreeSet::new();
        let destinations = &mut self.destinations;
        self.known.retain(|_, entry| {
            if !shards.contains(&entry.shard) {
                return true;
            }
            match entry.state {
                State::Waiting => {
                    destinations[usize::from(entry.destination)].count_waiting(entry.queue, -1);
                }
                State::InFlight | State::Settling(_) => under_way.extend(entry.lane),
                State::Suspect | State::Undecided | State::Leaving { .. } | State::Orphan => {}
            }
            !matches!(entry.state, State::Waiting | State::Suspect | State::Undecided)
        });
        let known = &self.known;
        for destination in &mut self.destinations {
            for queue in Queue::ALL {
                destination.queue(queue).retain(|item| match item {
                    Ready::Lane(_) => true,
                    Ready::Single(pending) => known.contains_key(&pending.sequence),
                });
            }
            destination.undecided.retain(|undecided| known.contains_key(&undecided.sequence));
        }
        self.careful.forget(|sequence| known.contains_key(&sequence));
        self.lanes.retain(|id, lane| {
            let keep = !shards.contains(&lane.shard) || under_way.contains(id);
            if !keep {
                lane.drops();
            }
            keep
        });
        for lane in self.lanes.values_mut().filter(|lane| shards.contains(&lane.shard)) {
            lane.queue.clear();
            lane.scheduled = false;
            lane.more = lane.more.map(|_| 0);
        }
    }

    /// Shards with events in flight or on their way to be settled, but for outcomes that cannot be written: of
    /// these nobody knows when they can.
    pub fn busy_shards(&self, is_stuck: impl Fn(i64) -> bool) -> BTreeSet<u16> {
        self.known
            .iter()
            .filter(|(sequence, entry)| match entry.state {
                State::InFlight | State::Undecided | State::Orphan => true,
                State::Settling(_) => !is_stuck(**sequence),
                State::Waiting | State::Suspect | State::Leaving { .. } => false,
            })
            .map(|(_, entry)| entry.shard)
            .collect()
    }

    /// The lane is blocked in the database, left so by an earlier owner.
    pub fn block(&mut self, shard: u16, blocked: &Blocked) {
        self.block_as_left(shard, blocked, true);
    }

    /// With `doubt`, its key stands until its lanes were looked at. Returns the lane, if it is new here.
    pub(super) fn block_as_left(
        &mut self,
        shard: u16,
        blocked: &Blocked,
        doubt: bool,
    ) -> Option<LaneId> {
        // Nothing is held under `global`, but what is left from a time of another ordering.
        if self.rules.global && !blocked.waiting && !blocked.parked {
            return None;
        }
        let id = self.blocked_lane(blocked);
        // A read that is under way does not know this shard: its silence says nothing.
        let next = self.leaving.next_read();
        if !self.rules.global && self.lanes.contains_key(&id) {
            // It was learnt before, and may have moved on since.
            return None;
        }
        let lane = self.lanes.entry(id).or_insert_with(|| Lane::new(shard));
        lane.held = true;
        lane.written = Some(next);
        lane.turn(match (blocked.parked, blocked.waiting) {
            (true, _) => Block::Parked,
            (false, true) => Block::Waiting,
            (false, false) => Block::Releasing,
        });
        let releases = lane.block == Block::Releasing;
        if !releases {
            // Under `global` late commits of shards that came before this one can be in line.
            lane.scheduled = false;
        }
        if doubt {
            self.doubt(id, shard);
        }
        if releases {
            self.request_release(id);
            self.look_at(id.key, false);
        }
        Some(id)
    }

    pub(super) fn blocked_lane(&mut self, blocked: &Blocked) -> LaneId {
        if self.rules.global {
            return LaneId::OF_ALL;
        }
        LaneId { destination: self.destination_of(&blocked.destination), key: blocked.key }
    }

    /// Blocked lanes, for those who must ask whether an operator has acted.
    pub fn blocked(&self) -> bool {
        self.lanes.values().any(Lane::is_blocked)
    }

    /// Lanes that an event in the table blocks, for those who ask whether it is still there: at most
    /// `most`, those first that may not be blocked any more, and others with each call.
    pub fn blocked_lanes(&mut self, most: usize) -> Vec<LaneKey> {
        let mut lanes = self.unsure_lanes(most);
        let room = most - lanes.len();
        let blocked = self.lanes.iter().filter(|(_, lane)| lane.can_be_asked_for());
        let others = blocked.skip(self.asked_for).take(room).map(|(id, _)| self.lane_key(*id));
        lanes.extend(others);
        self.asked_for = if lanes.len() < most { 0 } else { self.asked_for + room };
        lanes
    }

    /// Of the blocked lanes, at most `most` that may not be blocked in the table any more.
    pub fn unsure_lanes(&mut self, most: usize) -> Vec<LaneKey> {
        let mut unsure = Vec::new();
        while unsure.len() < most
            && let Some(id) = self.unsure.pop_front()
        {
            // What is under way in a lane tells by itself how it goes on.
            if let Some(lane) = self.lanes.get_mut(&id)
                && std::mem::take(&mut lane.unsure)
                && lane.can_be_asked_for()
            {
                unsure.push(self.lane_key(id));
            }
        }
        unsure
    }

    /// If this lane is blocked, it may not be so in the table any more: that is asked soon.
    pub(super) fn ask_for(&mut self, id: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&id)
            && lane.is_blocked()
            && !lane.unsure
        {
            lane.unsure = true;
            self.unsure.push_back(id);
        }
    }

    /// Whether lanes are still blocked is to be asked before their turn.
    pub fn asks(&self) -> bool {
        !self.unsure.is_empty() && self.blocked()
    }

    /// It was asked whether these are blocked, and there was no answer.
    pub fn ask_again(&mut self, lanes: &[LaneKey]) {
        for lane in lanes {
            let destination = self.destination_of(&lane.destination);
            self.ask_for(LaneId { destination, key: lane.key });
        }
    }

    pub(super) fn lane_key(&self, id: LaneId) -> LaneKey {
        LaneKey { key: id.key, destination: self.name_of(id.destination) }
    }

    /// The one lane of `global` is blocked: what blocks it must be read back even if what waits behind
    /// it leaves no room.
    pub fn all_blocked(&self) -> bool {
        self.rules.global && self.blocked()
    }

    /// Everything waits in memory for an event that is in the table (`global`): there is nothing to do
    /// before its time has come.
    pub fn stands_behind_a_blocker(&self) -> bool {
        self.all_blocked()
            && self
                .lanes
                .get(&LaneId::OF_ALL)
                .is_some_and(|lane| !lane.busy() && lane.written.is_some())
    }

    /// What a read of blocked lanes found, of these or of all. A lane that is blocked here and no longer
    /// in the table was freed by an operator: it goes on.
    pub fn reconcile(&mut self, read: u64, asked: Option<&[LaneKey]>, blocked: &[Blocked]) {
        // There may be many more lanes than were asked for.
        let asked: Vec<LaneId> = match asked {
            Some(asked) => {
                let lane = |lane: &LaneKey| LaneId {
                    destination: self.destination_of(&lane.destination),
                    key: lane.key,
                };
                asked.iter().map(lane).collect()
            }
            None => self.lanes.keys().copied().collect(),
        };
        let still: BTreeSet<LaneId> = blocked
            .iter()
            .filter(|lane| lane.waiting || lane.parked)
            .map(|lane| self.blocked_lane(lane))
            .collect();
        for id in asked {
            let freed = |lane: &Lane| {
                lane.can_be_asked_for() && lane.written.is_some_and(|from| from <= read)
            };
            if !still.contains(&id) && self.lanes.get(&id).is_some_and(freed) {
                self.lane_done(id);
                self.look_at(id.key, true);
            }
        }
    }
}
