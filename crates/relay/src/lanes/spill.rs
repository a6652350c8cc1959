//! Too many blocked lanes: beyond a limit they are in the table only.
//!
//! A lane that waits for its head's next attempt, or for an operator, has nothing in memory but that it is
//! blocked, and the table says that too. With more lanes than the limit, those of which the table says so are
//! forgotten. From then on it is asked, for the events of each page, which of their lanes are blocked there, before they are
//! offered: a later event never overtakes. When a forgotten lane's head falls due, the lane is blocked in memory
//! again, with its followers held. Lanes that an earlier owner left in the table are looked at when they are
//! met there (see `rerouted`). Once few are left, all blocked lanes are read again, and nobody asks any more.

use std::collections::BTreeSet;

use posthaste_core::{
    Key,
    store::{Blocked, Fetched, LaneKey, Wait},
};

use super::{
    LaneId, Lanes,
    lane::{Block, Lane},
};

impl Lanes {
    /// Lanes may be blocked in the table that are not in memory.
    pub fn is_spilled(&self) -> bool {
        self.spilled
    }

    /// There is room for all lanes that are blocked in the table, as far as is known.
    pub fn has_room_for_lanes(&self) -> bool {
        self.lanes.len() <= self.rules.most_lanes / 2
    }

    /// There are as many lanes as may be.
    pub fn is_full_of_lanes(&self) -> bool {
        self.lanes.len() >= self.rules.most_lanes && !self.rules.global
    }

    /// There are more lanes than may be: of some of them it is to be asked whether they can be forgotten.
    pub fn is_crowded(&self) -> bool {
        self.lanes.len() > self.rules.most_lanes && !self.rules.global
    }

    /// A survey has met this lane: of shards that were taken, or of all. Gives whether it stays in the table
    /// only. One of a name that is not ours never does: nobody would ask for it. A lane of a shard that was
    /// handed over meanwhile is another relay's: it would be here with an old state when the shard comes back.
    pub fn surveyed(&mut self, shard: u16, blocked: &Blocked, taken: bool) -> bool {
        let ours = self.shards.contains_key(&shard);
        if !ours && (!self.rules.global || self.shards.is_empty()) {
            return false;
        }
        let still = blocked.waiting || blocked.parked;
        if still && self.is_full_of_lanes() && self.is_our_name(&blocked.destination) {
            self.spilled = true;
            self.unlooked |= taken;
            return true;
        }
        if taken {
            self.block(shard, blocked);
        } else {
            self.block_again(shard, blocked);
        }
        false
    }

    /// The table says that a lane is blocked that was not in memory. It may have gone on since.
    pub fn block_again(&mut self, shard: u16, blocked: &Blocked) {
        // What is in memory and not in doubt was let in when all lanes of its key were known.
        let doubt = self.unlooked && (self.in_doubt(blocked.key) || !self.has_key(blocked.key));
        let new = self.block_as_left(shard, blocked, doubt);
        if let Some(id) = new.filter(|_| self.spilled) {
            self.ask_for(id);
        }
    }

    fn is_our_name(&self, name: &str) -> bool {
        self.routed_to().any(|ours| self.destinations[usize::from(ours)].rules.name == name)
    }

    /// Lanes of this key are in memory.
    fn has_key(&self, key: Key) -> bool {
        !self.lanes_of(key).is_empty()
    }

    /// All lanes that are blocked in the table are in memory, and were not forgotten since they were read.
    pub fn has_all_lanes(&mut self) {
        (self.spilled, self.unlooked) = (false, false);
    }

    /// Forgets lanes that this read has seen blocked, if there are too many. An operator who removes later
    /// what blocks such a lane sets its first follower free, so that it comes again; if one was held since
    /// the read, it may be that nobody has. Not while the table is asked about lanes of a page: one that is
    /// forgotten meanwhile could be missing from the answer. Returns whether any was forgotten.
    pub fn forget(&mut self, read: u64, blocked: &[Blocked]) -> bool {
        let before = self.lanes.len();
        for blocked in blocked {
            if !self.is_crowded() {
                break;
            }
            let id = self.blocked_lane(blocked);
            let still = blocked.waiting || blocked.parked;
            let can_go = |lane: &Lane| still && lane.is_in_the_table(read);
            if self.lanes.get(&id).is_some_and(can_go) && !self.is_paused(Some(id.key)) {
                self.drop_lane(id);
            }
        }
        let forgot = self.lanes.len() < before;
        self.spilled |= forgot;
        forgot
    }

    /// Lanes that could be forgotten if the answer to this read says that they are blocked, at most `most`.
    pub fn forgettable_lanes(&self, read: u64, most: usize) -> Vec<LaneKey> {
        let can_go =
            |id: &LaneId, lane: &Lane| lane.is_in_the_table(read) && !self.is_paused(Some(id.key));
        let lanes = self.lanes.iter().filter(|(id, lane)| can_go(id, lane)).take(most);
        lanes.map(|(id, _)| self.lane_key(*id)).collect()
    }

    /// Of the lanes that these rows would enter, those that are not in memory: the table must be asked about
    /// them. What blocks a lane itself needs no question. Where nobody has looked at what an earlier owner left,
    /// an event of a key that is not in memory may belong behind one that waits at another destination: then it
    /// is asked about all of them, also for what blocks a lane.
    pub fn unknown_lanes<'a>(&self, rows: impl Iterator<Item = &'a Fetched>) -> Vec<LaneKey> {
        if !self.spilled || self.rules.global || self.rules.unordered {
            return Vec::new();
        }
        let mut lanes: BTreeSet<LaneId> = BTreeSet::new();
        for row in rows.filter(|row| self.shards.contains_key(&row.shard)) {
            let Some(id) = self.lane_of(row, self.destination_for(row)) else { continue };
            if self.unlooked && self.rules.route.is_some() && !self.has_key(id.key) {
                lanes.extend(self.routed_to().map(|destination| LaneId { destination, ..id }));
            } else if matches!(row.wait, None | Some(Wait::Held)) && !self.lanes.contains_key(&id) {
                lanes.insert(id);
            }
        }
        lanes
            .into_iter()
            .map(|id| LaneKey { key: id.key, destination: self.name_of(id.destination) })
            .collect()
    }

    /// What blocked a lane has fallen due, and the lane was forgotten: it is blocked in memory again.
    pub(super) fn recall(&mut self, id: LaneId, shard: u16) {
        let next = self.leaving.next_read();
        self.lanes.entry(id).or_insert_with(|| {
            let mut lane = Lane::new(shard);
            lane.turn(Block::Waiting);
            lane.held = true;
            lane.written = Some(next);
            lane
        });
    }
}
