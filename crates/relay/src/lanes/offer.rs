//! Rows in: into a lane, behind a blocked one, or ignored because they are in hand.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Instant,
};

use posthaste_core::{
    Key,
    store::{Fetched, RowLease, Verdict, Wait},
};

use super::{
    Entry, LaneId, Lanes, Offered, Origin, Queue, Ready, Recorded, Routed, State, Then, Unsettled,
    destination::{Destination, Gate},
    lane::{Block, Lane, Pending},
    unsettled,
};

impl Lanes {
    /// Room for events from the hot path, given a limit.
    pub fn hot_room(&self, limit: usize) -> usize {
        limit.saturating_sub(self.destinations.iter().map(|d| d.waiting(Queue::Hot)).sum())
    }

    /// Room for events from polls, given a limit for each destination: that of the one with the most. Replays that
    /// wait take none of it.
    pub fn cold_room(&self, limit: usize) -> usize {
        let waiting = |of: &Destination| of.waiting(Queue::Cold);
        if self.rules.global {
            // They wait for each other in one lane, also those that go nowhere.
            return limit.saturating_sub(self.destinations.iter().map(waiting).sum());
        }
        let of = &self.destinations[..self.rules.destinations.len()];
        of.iter().map(|of| limit.saturating_sub(waiting(of))).max().unwrap_or(0)
    }

    /// All that waits in memory follows events of its own key that are under way.
    pub fn waits_for_its_keys(&self) -> bool {
        self.destinations.iter().all(|of| !of.has_ready())
    }

    /// Keys of which something is in hand or blocks at so many of the configured destinations: what comes of them
    /// waits in line there.
    pub fn keys_in_hand(&self, at: usize) -> HashSet<Key> {
        let configured = self.configured();
        let mut lanes: HashMap<Key, usize> = HashMap::with_capacity(self.lanes.len());
        for id in self.lanes.keys().filter(|id| configured.contains(&id.destination)) {
            *lanes.entry(id.key).or_default() += 1;
        }
        lanes.into_iter().filter(|(_, lanes)| *lanes >= at).map(|(key, _)| key).collect()
    }

    /// The same for replays, of destinations that take events or can be tried with one.
    pub fn replay_room(&self, limit: usize) -> usize {
        let room = |destination: u16| {
            let of = &self.destinations[usize::from(destination)];
            let takes = of.breaker.is_closed() || of.breaker.wants_probe();
            let has_room = takes && !self.has_its_due(destination, Some(Wait::Replay));
            if has_room { limit.saturating_sub(of.waiting(Queue::Replay)) } else { 0 }
        };
        self.configured().map(room).max().unwrap_or(0)
    }

    /// Whether a replay was left in the table since this was last asked, and if so, whether one of them goes to a
    /// destination that takes events.
    pub fn take_left_replays(&mut self) -> Option<bool> {
        self.left_replays.take()
    }

    /// This event stays due, and is read again when its destination takes events, or has room.
    pub(super) fn leave_due(&mut self, destination: u16, wait: Option<Wait>) {
        if wait == Some(Wait::Replay) {
            self.leave_replay(destination);
        }
        let of = self.at(destination);
        if !of.breaker.is_closed() {
            of.left_due = true;
        } else if wait != Some(Wait::Replay) {
            of.due_waits = true;
        }
    }

    /// This replay stays due, and is read again when there is room.
    fn leave_replay(&mut self, destination: u16) {
        let takes = self.at(destination).breaker.is_closed();
        self.left_replays = Some(takes || self.left_replays == Some(true));
    }

    /// How many events wait for their turn: from the hot path, and from polls.
    pub fn waiting(&self) -> (usize, usize) {
        let all = self.destinations.iter();
        all.fold((0, 0), |(hot, cold), of| {
            let of_hot = of.waiting(Queue::Hot);
            (hot + of_hot, cold + of.all_waiting() - of_hot)
        })
    }

    /// Whether this event is in hand and not yet settled.
    pub fn in_hand(&self, sequence: i64) -> bool {
        self.known
            .get(&sequence)
            .is_some_and(|entry| !matches!(entry.state, State::Leaving { .. } | State::Orphan))
    }

    /// Whether another event is known by the number of this row. A number stays in its shard, unless the
    /// server has lost the event that had it and given it out again.
    pub fn is_reused(&self, row: &Fetched) -> bool {
        self.shards.contains_key(&row.shard)
            && self.known.get(&row.sequence).is_some_and(|entry| entry.shard != row.shard)
    }

    /// A row was read.
    pub fn offer(
        &mut self,
        row: Fetched,
        origin: Origin,
        lease: Option<&Arc<RowLease>>,
        now: Instant,
    ) -> Offered {
        let mut row = row;
        if !self.rules.unordered && !self.shards.contains_key(&row.shard) {
            return Offered::Ignored;
        }
        if let Some(entry) = self.known.get(&row.sequence) {
            let comes_back =
                origin == Origin::Held && matches!(entry.state, State::Leaving { held: true, .. });
            if !comes_back {
                return Offered::Ignored;
            }
        }
        let destination = self.route(&mut row);
        let lane_id = self.lane_of(&row, destination);
        if let Some(id) = lane_id.filter(|id| self.in_doubt(id.key)) {
            self.look_at(id.key, origin == Origin::Due);
            if origin == Origin::Due {
                self.fell_due(id.key);
                // It stays due, and is read again when its key goes on.
                return Offered::Ignored;
            }
        }
        let identity = row.key.map_or(row.sequence, |key| key.0);
        let mut gate = self.pause_gate(self.gate(destination, origin, &row), row.key, lane_id);
        let replays = self.at(destination).waiting(Queue::Replay);
        if row.wait == Some(Wait::Replay)
            && !self.rules.unordered
            && replays >= self.rules.cold_queue
        {
            self.leave_replay(destination);
            return Offered::Ignored;
        }
        if gate == Gate::Probe
            && origin == Origin::Due
            && self.at(destination).breaker.makes_way(identity)
        {
            gate = Gate::Postpone;
        }
        match gate {
            // It could not go before what is under way in its lane, and that cannot go at all.
            Gate::Probe if self.is_busy(lane_id) => {
                if matches!(origin, Origin::Cold | Origin::Hot) {
                    self.at(destination).skip(row.sequence, row.key);
                }
                return Offered::Ignored;
            }
            Gate::Admit | Gate::Probe | Gate::Postpone | Gate::Hold => {}
            Gate::Skip => {
                self.at(destination).skip(row.sequence, row.key);
                return Offered::Ignored;
            }
            Gate::Leave => {
                if origin == Origin::Due {
                    self.leave_due(destination, row.wait);
                }
                return Offered::Ignored;
            }
        }
        // What overtakes a backlog does not wait in line with it.
        let origin = match origin {
            Origin::Cold if self.at(destination).behind => Origin::Hot,
            origin => origin,
        };
        let sequence = row.sequence;
        if let Some(id) = lane_id.filter(|_| origin == Origin::Due && !self.rules.global)
            && matches!(row.wait, Some(Wait::Retry | Wait::Suspect))
        {
            self.recall(id, row.shard);
        }
        let offered = self.take_in(row, destination, lane_id, origin, lease, gate, now);
        if gate == Gate::Probe && offered == Offered::Accepted {
            self.probe_with(destination, sequence, identity, now);
        }
        offered
    }

    #[allow(clippy::too_many_arguments, reason = "what offer has found out")]
    fn take_in(
        &mut self,
        row: Fetched,
        destination: u16,
        lane_id: Option<LaneId>,
        origin: Origin,
        lease: Option<&Arc<RowLease>>,
        gate: Gate,
        now: Instant,
    ) -> Offered {
        let Fetched { sequence, identity, shard, key, attempts, wait, bytes, content } = row;
        let entry = Entry {
            identity,
            shard,
            destination,
            lane: lane_id,
            key,
            attempts,
            started: 0,
            // Under row leases only a claim that had expired comes so, and was counted when it was taken.
            recorded: if self.rules.unordered && origin == Origin::Due {
                Recorded::Attempt
            } else {
                Recorded::Nothing
            },
            replay: wait == Some(Wait::Replay),
            queue: match origin {
                _ if wait == Some(Wait::Replay) => Queue::Replay,
                Origin::Hot => Queue::Hot,
                _ => Queue::Cold,
            },
            marked: wait.is_some() || matches!(origin, Origin::Due | Origin::Held),
            held: origin == Origin::Held,
            blocks: matches!(wait, Some(Wait::Retry | Wait::Suspect)),
            lease: lease.cloned(),
            charge: Some({
                let of = &self.destinations[usize::from(destination)];
                let due = matches!(origin, Origin::Due | Origin::Held);
                self.rules.budget.charge(bytes, if due { &of.due_share } else { &of.share })
            }),
            state: State::Waiting,
        };
        let moved = origin == Origin::Held && self.moved_suspects.contains_key(&sequence);
        let wait = if moved { Some(Wait::Suspect) } else { wait };
        let pending = Pending { sequence, content, wait };
        match (gate, lane_id) {
            // The mark of an operator stays until the lane is looked at.
            (Gate::Postpone, Some(id)) if pending.wait == Some(Wait::Held) => {
                self.ask_for(id);
                Offered::Ignored
            }
            (Gate::Postpone, _) => self.put_off(entry, sequence, now),
            (Gate::Hold, Some(id)) => self.hold_paused(sequence, entry, id, origin, wait),
            (_, Some(id)) => self.enter_lane(entry, pending, id, origin),
            (_, None) => {
                let queue = entry.queue;
                self.known.insert(sequence, entry);
                let of = self.at(destination);
                of.count_waiting(queue, 1);
                of.queue(queue).push_back(Ready::Single(Box::new(pending)));
                Offered::Accepted
            }
        }
    }

    /// Not now, and the cursor does not bring it again.
    fn put_off(&mut self, mut entry: Entry, sequence: i64, now: Instant) -> Offered {
        // A blocker whose lane is busy is in hand in some way already.
        if self.is_busy(entry.lane) {
            return Offered::Ignored;
        }
        if let Some(id) = entry.lane {
            self.lanes.entry(id).or_insert_with(|| Lane::new(entry.shard));
        }
        // It is not handed over: the attempt that was counted with its claim is none.
        entry.attempts -= std::mem::take(&mut entry.recorded).attempts();
        self.known.insert(sequence, entry);
        self.set_aside(sequence, now);
        Offered::Held
    }

    /// Into its lane, as that stands.
    fn enter_lane(
        &mut self,
        entry: Entry,
        pending: Pending,
        id: LaneId,
        origin: Origin,
    ) -> Offered {
        let global = self.rules.global;
        let (sequence, destination, queue) = (pending.sequence, entry.destination, entry.queue);
        let lane = self.lanes.entry(id).or_insert_with(|| Lane::new(entry.shard));
        let blocker_is_due = origin == Origin::Due && entry.blocks;
        // An operator removed what blocked the lane, and set its first follower free.
        let freed = origin == Origin::Due && pending.wait == Some(Wait::Held) && !global;
        match lane.block {
            Block::Waiting | Block::Parked if blocker_is_due => {
                if lane.busy() {
                    return Offered::Ignored;
                }
                lane.turn(Block::Waiting);
                lane.due = false;
                lane.queue.push_front(pending);
            }
            // That may be long ago, and another event have blocked it since: the table knows.
            Block::Waiting | Block::Parked if freed => {
                self.ask_for(id);
                return Offered::Ignored;
            }
            Block::Open if freed => {
                if !lane.busy() {
                    lane.turn(Block::Releasing);
                    self.request_release(id);
                }
                return Offered::Ignored;
            }
            Block::Releasing if freed => return Offered::Ignored,
            Block::Open if global => lane.insert(pending),
            Block::Open => lane.queue.push_back(pending),
            // It waits in memory, and goes after what blocks the lane.
            Block::Waiting | Block::Parked if global => {
                lane.insert(pending);
                self.known.insert(sequence, entry);
                self.at(destination).count_waiting(queue, 1);
                return Offered::Accepted;
            }
            Block::Releasing if origin == Origin::Held => lane.queue.push_back(pending),
            // A follower failed while its lane was being read back: the rest stays held.
            Block::Waiting | Block::Parked if origin == Origin::Held => return Offered::Ignored,
            Block::Waiting | Block::Parked | Block::Releasing => {
                return self.hold_offered(sequence, entry, id);
            }
        }
        self.known.insert(sequence, entry);
        self.at(destination).count_waiting(queue, 1);
        self.schedule(id);
        Offered::Accepted
    }

    /// It is marked held, and does not stay in memory.
    pub(super) fn hold_offered(&mut self, sequence: i64, mut entry: Entry, id: LaneId) -> Offered {
        let lane = self.lanes.entry(id).or_insert_with(|| Lane::new(entry.shard));
        lane.held = true;
        lane.holds += 1;
        entry.state = State::Settling(Then::Hold);
        entry.charge = None;
        let settlement = self.hold(sequence, &entry, id);
        self.known.insert(sequence, entry);
        self.settlements.push_back(settlement);
        self.stats.held += 1;
        Offered::Held
    }

    fn is_busy(&self, lane: Option<LaneId>) -> bool {
        lane.and_then(|id| self.lanes.get(&id)).is_some_and(Lane::busy)
    }

    /// Where the row goes. One that goes nowhere says why and dies in its turn.
    pub(super) fn route(&self, row: &mut Fetched) -> u16 {
        let Some(route) = &self.rules.route else {
            return 0;
        };
        let nowhere = self.rules.destinations.len() as u16;
        let Ok(envelope) = &mut row.content else {
            return nowhere;
        };
        match route(envelope) {
            Ok(Routed { destination, topic }) => {
                envelope.topic = topic;
                destination
            }
            Err(reason) => {
                row.content = Err(reason);
                nowhere
            }
        }
    }

    /// Where the row would go.
    pub(super) fn destination_for(&self, row: &Fetched) -> u16 {
        let nowhere = self.rules.destinations.len() as u16;
        match (&self.rules.route, &row.content) {
            (None, _) => 0,
            (Some(route), Ok(envelope)) => route(envelope).map_or(nowhere, |to| to.destination),
            (Some(_), Err(_)) => nowhere,
        }
    }

    pub(super) fn lane_of(&self, row: &Fetched, destination: u16) -> Option<LaneId> {
        if self.rules.unordered || row.wait == Some(Wait::Replay) {
            return None;
        }
        if self.rules.global {
            return Some(LaneId::OF_ALL);
        }
        Some(LaneId { destination, key: row.key? })
    }

    /// Puts the lane in line when its head can go.
    pub(super) fn schedule(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        if lane.busy() {
            return;
        }
        let Some(entry) = lane.queue.front().and_then(|head| self.known.get(&head.sequence)) else {
            return;
        };
        lane.scheduled = true;
        let (destination, queue) = (entry.destination, entry.queue);
        self.at(destination).queue(queue).push_back(Ready::Lane(id));
    }

    pub(super) fn hold(&self, sequence: i64, entry: &Entry, id: LaneId) -> Unsettled {
        let verdict = Verdict::Held { destination: self.name_of(id.destination), key: id.key };
        unsettled(sequence, entry, verdict)
    }
}
