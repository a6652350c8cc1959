//! Rows in: into a lane, behind a blocked one, or ignored because they are in hand.

use std::sync::Arc;

use posthaste_core::{
    Key,
    store::{Fetched, RowLease, Verdict, Wait},
};

use super::{
    Entry, LaneId, Lanes, Offered, Origin, Ready, State, Then, Unsettled,
    lane::{Block, Lane, Pending},
    unsettled,
};

impl Lanes {
    /// Room for events from the hot path, given a limit.
    pub fn hot_room(&self, limit: usize) -> usize {
        limit.saturating_sub(self.waiting_hot)
    }

    /// Room for events from polls, given a limit.
    pub fn cold_room(&self, limit: usize) -> usize {
        limit.saturating_sub(self.waiting_cold)
    }

    /// Whether this event is in hand and not yet settled.
    pub fn in_hand(&self, sequence: i64) -> bool {
        self.known
            .get(&sequence)
            .is_some_and(|entry| !matches!(entry.state, State::Leaving { .. } | State::Orphan))
    }

    /// A row was read.
    pub fn offer(
        &mut self,
        row: Fetched,
        origin: Origin,
        lease: Option<&Arc<RowLease>>,
    ) -> Offered {
        if !self.rules.unordered && !self.shards.contains_key(&row.shard) {
            return Offered::Ignored;
        }
        let lane_id = self.lane_of(&row);
        if let Some(entry) = self.known.get(&row.sequence) {
            let comes_back =
                origin == Origin::Held && matches!(entry.state, State::Leaving { held: true, .. });
            if !comes_back {
                return Offered::Ignored;
            }
        }
        let Fetched { sequence, shard, attempts, wait, content, .. } = row;
        let mut entry = Entry {
            shard,
            lane: lane_id,
            attempts,
            // Under row leases an expired claim was counted when it was taken.
            recorded: self.rules.unordered && wait == Some(Wait::Suspect),
            replay: wait == Some(Wait::Replay),
            hot: origin == Origin::Hot,
            marked: wait.is_some() || matches!(origin, Origin::Due | Origin::Held),
            lease: lease.cloned(),
            state: State::Waiting,
        };
        let pending = Pending { sequence, content, held: origin == Origin::Held, wait };
        let hot = entry.hot;
        let Some(id) = lane_id else {
            self.known.insert(sequence, entry);
            self.count_waiting(hot, 1);
            self.push_ready(hot, Ready::Single(Box::new(pending)));
            return Offered::Accepted;
        };

        let global = self.rules.global;
        let lane = self.lanes.entry(id).or_insert_with(|| Lane::new(shard));
        let blocker_is_due =
            origin == Origin::Due && matches!(wait, Some(Wait::Retry | Wait::Suspect));
        match lane.block {
            Block::Waiting | Block::Parked if blocker_is_due => {
                if lane.busy() {
                    return Offered::Ignored;
                }
                lane.block = Block::Waiting;
                lane.queue.push_front(pending);
            }
            // An operator removed what blocked the lane and set its first follower free.
            Block::Open | Block::Waiting | Block::Parked
                if origin == Origin::Due && wait == Some(Wait::Held) =>
            {
                if !lane.busy() {
                    lane.block = Block::Releasing;
                    self.request_release(id);
                }
                return Offered::Ignored;
            }
            Block::Releasing if origin == Origin::Due && wait == Some(Wait::Held) => {
                return Offered::Ignored;
            }
            Block::Open => lane.queue.push_back(pending),
            Block::Waiting | Block::Parked if global => lane.queue.push_back(pending),
            Block::Releasing if origin == Origin::Held => lane.queue.push_back(pending),
            // A follower failed while its lane was being read back: the rest stays held.
            Block::Waiting | Block::Parked if origin == Origin::Held => return Offered::Ignored,
            Block::Waiting | Block::Parked | Block::Releasing => {
                lane.held = true;
                lane.holds += 1;
                lane.again = true;
                entry.state = State::Settling(Then::Hold);
                let settlement = self.hold(sequence, &entry, id);
                self.known.insert(sequence, entry);
                self.settlements.push_back(settlement);
                self.stats.held += 1;
                return Offered::Held;
            }
        }
        self.known.insert(sequence, entry);
        self.count_waiting(hot, 1);
        self.schedule(id);
        Offered::Accepted
    }

    fn lane_of(&self, row: &Fetched) -> Option<LaneId> {
        if self.rules.unordered || row.wait == Some(Wait::Replay) {
            return None;
        }
        let key = if self.rules.global { Key(0) } else { row.key? };
        Some(LaneId { destination: 0, key })
    }

    pub(super) fn destination_index(&self, name: &str) -> Option<u16> {
        self.rules.destinations.iter().position(|known| known == name).map(|index| index as u16)
    }

    /// Puts the lane in line when its head can go.
    pub(super) fn schedule(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        if lane.busy() {
            return;
        }
        let Some(head) = lane.queue.front() else {
            return;
        };
        lane.scheduled = true;
        let hot = self.known.get(&head.sequence).is_some_and(|entry| entry.hot);
        self.push_ready(hot, Ready::Lane(id));
    }

    pub(super) fn push_ready(&mut self, hot: bool, ready: Ready) {
        if hot { &mut self.hot } else { &mut self.cold }.push_back(ready);
    }

    pub(super) fn count_waiting(&mut self, hot: bool, by: isize) {
        let count = if hot { &mut self.waiting_hot } else { &mut self.waiting_cold };
        *count = count.saturating_add_signed(by);
    }

    pub(super) fn hold(&self, sequence: i64, entry: &Entry, id: LaneId) -> Unsettled {
        unsettled(
            sequence,
            entry,
            Verdict::Held {
                destination: self.rules.destinations[usize::from(id.destination)].clone(),
                key: id.key,
            },
        )
    }
}
