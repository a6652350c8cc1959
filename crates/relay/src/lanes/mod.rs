//! Lanes: the order of things, as a pure state machine.
//!
//! Inputs are rows that were read, outcomes, confirmations of settles and shards that come and go;
//! outputs are what to dispatch, what to settle and which lanes to read back. There is no clock, no
//! task and no database in it, so that schedules can be explored and properties checked.
//!
//! ```text
//!            offer                    next_batch              outcome
//!  row ───────────► lane (one key) ─────────────► in flight ─────────► settlement
//!                     │  ▲                            │ failed              │
//!                     │  └──── released ◄── held ◄────┘                     │ settled
//!                     └── behind a blocked event: marked held               ▼
//!                                                                     leaves the set
//! ```
//!
//! A lane is the events of one (destination, ordering key), one after the other. It is *open* until
//! one of them fails. Then the failed one is written back with the time of its next attempt, its
//! followers are marked held, and the lane is *waiting* with nothing of it in memory. When the
//! failed one falls due and is delivered, the lane is *releasing*: held followers are read back
//! through the lane, in order, until none is left, and it is open again. A dead event under
//! `on_dead = park` leaves its lane *parked* until an operator acts.
//!
//! # When things fail
//!
//! - A shard that is lost takes all its lanes with it; outcomes that come afterwards are counted as
//!   stale and written nowhere.
//! - A dead event holds its lane until the write of its death is confirmed.
//! - One event is handed out once: its entry leaves the set only after every read that began
//!   before its settle was confirmed has been merged, or such a read would bring it back.
//! - After an unclean takeover an event that the dead relay may have had in flight is *suspect*: an
//!   attempt is recorded before it is dispatched, few at a time, and one at a time when it was
//!   recorded before. An event that kills its process so ends dead and takes no other with it.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use posthaste_core::{
    Envelope, Key,
    store::{Blocked, Fetched, RowLease, Settlement, Verdict, Wait},
    transport::Outcome,
};

use crate::{OnDead, Stats, hash::IntMap};

mod careful;

mod lane;

mod leaving;

#[cfg(test)]
mod tests;

use self::{
    careful::Careful,
    lane::{Block, Lane, Pending},
    leaving::Leaving,
};

/// How long an event waits when its destination takes nothing for now and names no time.
const UNAVAILABLE_WAIT: Duration = Duration::from_secs(5);

/// How many held followers one release reads.
pub const RELEASE_LIMIT: usize = 100;

/// One (destination, ordering key).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId {
    /// Index of the destination.
    pub destination: u16,
    /// The ordering key.
    pub key: Key,
}

/// How a row was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The writer's process said so after commit.
    Hot,
    /// A poll read it, ahead or late.
    Cold,
    /// Its time has come.
    Due,
    /// Its lane was released.
    Held,
}

/// What became of an offered row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offered {
    /// It is in a lane now.
    Accepted,
    /// It is behind a blocked event and will be marked held.
    Held,
    /// It is in hand already, or not ours.
    Ignored,
}

/// The rules that lanes follow.
pub struct Rules {
    /// All events share one lane.
    pub global: bool,
    /// Rows were claimed one by one: there are no lanes.
    pub unordered: bool,
    /// What a death means for its lane.
    pub on_dead: OnDead,
    /// The failure with this number is the last.
    pub max_attempts: u32,
    /// The wait after failure number n.
    pub wait: Box<dyn Fn(u32) -> Duration + Send>,
    /// The destinations' names.
    pub destinations: Vec<String>,
}

/// A settlement on its way, with the claim that gives the right to it under row leases.
#[derive(Debug, Clone, PartialEq)]
pub struct Unsettled {
    /// What to write.
    pub settlement: Settlement,
    /// The claim, under row leases.
    pub lease: Option<Arc<RowLease>>,
}

/// What is known of an event in hand.
#[derive(Debug)]
struct Entry {
    shard: u16,
    lane: Option<LaneId>,
    attempts: u32,
    /// The attempt under way is counted in `attempts` already.
    recorded: bool,
    replay: bool,
    hot: bool,
    /// The database finds it again by itself (`not_before` is set): no mark must stop at it.
    marked: bool,
    lease: Option<Arc<RowLease>>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In a queue, and counted there.
    Waiting,
    /// Among the careful: to be recorded, or recorded and ready.
    Suspect,
    InFlight,
    /// Its outcome is being written; what follows the confirmation.
    Settling(Then),
    /// Settled; stays until reads that began before are merged.
    Leaving {
        stamp: u64,
        held: bool,
    },
    /// Its shard was lost while it was in flight.
    Orphan,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Leave,
    /// The lane waited for the confirmation of a death.
    AdvanceLane,
    /// It is held now.
    Hold,
    /// The attempt is recorded: it may be dispatched.
    Dispatch,
}

/// A shard that lanes accept events of.
#[derive(Debug, Clone, Copy, Default)]
struct Shard {
    /// Up to here the previous owner may have had events in flight when it died.
    suspect_to: Option<i64>,
}

/// All lanes of a relay.
pub struct Lanes {
    rules: Rules,
    shards: IntMap<u16, Shard>,
    known: IntMap<i64, Entry>,
    lanes: IntMap<LaneId, Lane>,
    hot: VecDeque<Ready>,
    cold: VecDeque<Ready>,
    /// Turns of 2 hot and 1 cold.
    turn: u8,
    waiting_hot: usize,
    waiting_cold: usize,
    in_flight: usize,
    careful: Careful,
    leaving: Leaving,
    settlements: VecDeque<Unsettled>,
    releases: Vec<LaneId>,
    /// Counters; the driver adds its own and publishes them.
    pub stats: Stats,
}

#[derive(Debug)]
enum Ready {
    Lane(LaneId),
    Single(Box<Pending>),
}

impl Lanes {
    /// No lanes yet.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            shards: IntMap::default(),
            known: IntMap::default(),
            lanes: IntMap::default(),
            hot: VecDeque::new(),
            cold: VecDeque::new(),
            turn: 0,
            waiting_hot: 0,
            waiting_cold: 0,
            in_flight: 0,
            careful: Careful::default(),
            leaving: Leaving::default(),
            settlements: VecDeque::new(),
            releases: Vec::new(),
            stats: Stats::default(),
        }
    }

    // ---- shards -------------------------------------------------------------------------------

    /// Events of this shard are welcome from now on.
    pub fn open_shard(&mut self, shard: u16, suspect_to: Option<i64>) {
        self.shards.insert(shard, Shard { suspect_to });
    }

    /// The shard is to be handed over: what is in flight ends, the rest is forgotten.
    pub fn close_shard(&mut self, shard: u16) {
        self.shards.remove(&shard);
        self.forget_waiting(&BTreeSet::from([shard]));
    }

    /// The shards are gone: nothing of theirs is dispatched or settled any more.
    pub fn lose_shards(&mut self, lost: &BTreeSet<u16>) {
        for shard in lost {
            self.shards.remove(shard);
        }
        self.forget_waiting(lost);
        self.lanes.retain(|_, lane| !lost.contains(&lane.shard));
        let stats = &mut self.stats;
        self.settlements.retain(|unsettled| {
            let keep = !lost.contains(&unsettled.settlement.shard);
            stats.stale_settles += u64::from(!keep);
            keep
        });
        self.known.retain(|_, entry| {
            if lost.contains(&entry.shard) {
                if entry.state != State::InFlight {
                    return false;
                }
                entry.state = State::Orphan;
            }
            true
        });
    }

    /// Shards with events in flight or on their way to be settled.
    pub fn busy_shards(&self) -> BTreeSet<u16> {
        self.known
            .values()
            .filter(|entry| {
                matches!(entry.state, State::InFlight | State::Settling(_) | State::Orphan)
            })
            .map(|entry| entry.shard)
            .collect()
    }

    /// The lane is blocked in the database, left so by an earlier owner.
    pub fn block(&mut self, shard: u16, blocked: &Blocked) {
        let Some(destination) = self.destination_index(&blocked.destination) else {
            return;
        };
        let id = LaneId { destination, key: blocked.key };
        let lane = self.lanes.entry(id).or_insert_with(|| Lane::new(shard));
        lane.held = true;
        lane.block = match (blocked.parked, blocked.waiting) {
            (true, _) => Block::Parked,
            (false, true) => Block::Waiting,
            (false, false) => Block::Releasing,
        };
        if lane.block == Block::Releasing {
            self.request_release(id);
        }
    }

    /// Blocked lanes, for those who must ask whether an operator has acted.
    pub fn blocked(&self) -> bool {
        self.lanes.values().any(|lane| matches!(lane.block, Block::Waiting | Block::Parked))
    }

    /// Opens the one lane of `global` when nothing in the database blocks it any more.
    pub fn unblock_global(&mut self) {
        let idle: Vec<LaneId> = self
            .lanes
            .iter()
            .filter(|(_, lane)| lane.block != Block::Open && !lane.busy())
            .map(|(id, _)| *id)
            .collect();
        for id in idle {
            self.lane_done(id);
        }
    }

    fn forget_waiting(&mut self, shards: &BTreeSet<u16>) {
        let (mut hot, mut cold) = (0, 0);
        let mut under_way = BTreeSet::new();
        self.known.retain(|_, entry| {
            if !shards.contains(&entry.shard) {
                return true;
            }
            match entry.state {
                State::Waiting if entry.hot => hot += 1,
                State::Waiting => cold += 1,
                State::InFlight | State::Settling(_) => under_way.extend(entry.lane),
                State::Suspect | State::Leaving { .. } | State::Orphan => {}
            }
            !matches!(entry.state, State::Waiting | State::Suspect)
        });
        self.waiting_hot -= hot;
        self.waiting_cold -= cold;
        let known = &self.known;
        for ready in [&mut self.hot, &mut self.cold] {
            ready.retain(|item| match item {
                Ready::Lane(_) => true,
                Ready::Single(pending) => known.contains_key(&pending.sequence),
            });
        }
        self.careful.forget(|sequence| known.contains_key(&sequence));
        self.lanes.retain(|id, lane| !shards.contains(&lane.shard) || under_way.contains(id));
        for lane in self.lanes.values_mut().filter(|lane| shards.contains(&lane.shard)) {
            lane.queue.clear();
            lane.scheduled = false;
        }
    }

    // ---- rows in ------------------------------------------------------------------------------

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

    fn destination_index(&self, name: &str) -> Option<u16> {
        self.rules.destinations.iter().position(|known| known == name).map(|index| index as u16)
    }

    /// Puts the lane in line when its head can go.
    fn schedule(&mut self, id: LaneId) {
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

    fn push_ready(&mut self, hot: bool, ready: Ready) {
        if hot { &mut self.hot } else { &mut self.cold }.push_back(ready);
    }

    fn count_waiting(&mut self, hot: bool, by: isize) {
        let count = if hot { &mut self.waiting_hot } else { &mut self.waiting_cold };
        *count = count.saturating_add_signed(by);
    }

    // ---- dispatch -----------------------------------------------------------------------------

    /// Up to `max` events to hand to the transport now, none behind `reserved`. Says when only the
    /// reservation was in the way.
    pub fn next_batch(&mut self, max: usize, reserved: i64) -> (Vec<Envelope>, bool) {
        let mut batch = Vec::new();
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
                self.careful.push(envelope, was_suspect);
            }
            Ok(envelope) => {
                self.start(sequence);
                batch.push(envelope);
            }
        }
    }

    fn start(&mut self, sequence: i64) {
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

    // ---- outcomes -----------------------------------------------------------------------------

    /// The transport has answered.
    pub fn outcome(&mut self, sequence: i64, outcome: Outcome) {
        let Some(entry) = self.known.get_mut(&sequence) else {
            return;
        };
        match entry.state {
            State::InFlight => {}
            State::Orphan => {
                self.in_flight -= 1;
                self.known.remove(&sequence);
                self.careful.done(sequence);
                self.stats.stale_settles += 1;
                return;
            }
            _ => return,
        }
        self.careful.done(sequence);
        match outcome {
            Outcome::Delivered => {
                self.stats.delivered += 1;
                self.in_flight -= 1;
                entry.state = State::Settling(Then::Leave);
                let lane = entry.lane;
                let unsettled = unsettled(sequence, entry, Verdict::Sent);
                self.settlements.push_back(unsettled);
                // The acknowledgement frees the lane, not its write: at worst it comes twice.
                if let Some(id) = lane {
                    self.lane_done(id);
                }
            }
            Outcome::Dead { error } => self.die(sequence, error),
            Outcome::Retry { error, after: None } => {
                let failures = entry.attempts + u32::from(!entry.recorded);
                entry.attempts = failures;
                if failures >= self.rules.max_attempts {
                    self.die_counted(sequence, error);
                } else {
                    let after = (self.rules.wait)(failures);
                    self.retry(sequence, after, error);
                }
            }
            Outcome::Retry { error, after: Some(after) } => {
                entry.attempts -= u32::from(entry.recorded);
                self.retry(sequence, after, error);
            }
            Outcome::Unavailable { error, after } => {
                entry.attempts -= u32::from(entry.recorded);
                self.retry(sequence, after.unwrap_or(UNAVAILABLE_WAIT), error);
            }
        }
    }

    fn retry(&mut self, sequence: i64, after: Duration, error: String) {
        self.stats.retried += 1;
        self.in_flight -= 1;
        let Some(entry) = self.known.get_mut(&sequence) else {
            return;
        };
        entry.state = State::Settling(Then::Leave);
        let lane = entry.lane;
        let verdict = Verdict::Retry {
            after,
            error,
            destination: self.rules.destinations[0].clone(),
            key: lane.map(|lane| lane.key),
            replay: entry.replay,
        };
        let unsettled = unsettled(sequence, entry, verdict);
        self.settlements.push_back(unsettled);
        if let Some(id) = lane {
            self.block_lane(id, Block::Waiting);
        }
    }

    fn die(&mut self, sequence: i64, error: String) {
        if let Some(entry) = self.known.get_mut(&sequence) {
            entry.attempts += u32::from(!entry.recorded);
        }
        self.die_counted(sequence, error);
    }

    fn die_counted(&mut self, sequence: i64, error: String) {
        self.stats.dead += 1;
        self.in_flight -= 1;
        let Some(entry) = self.known.get_mut(&sequence) else {
            return;
        };
        let lane = entry.lane;
        let parks = self.rules.on_dead == OnDead::Park;
        // A lane passes a dead event only after the fenced write of that death succeeded.
        entry.state = State::Settling(match lane {
            Some(_) if !parks => Then::AdvanceLane,
            _ => Then::Leave,
        });
        let verdict = Verdict::Dead {
            error,
            destination: self.rules.destinations[0].clone(),
            parked: lane.filter(|_| parks).map(|lane| lane.key),
        };
        let unsettled = unsettled(sequence, entry, verdict);
        self.settlements.push_back(unsettled);
        if let Some(id) = lane.filter(|_| parks) {
            self.block_lane(id, Block::Parked);
        }
    }

    /// The lane's head is stuck: its followers are marked held and leave the memory.
    fn block_lane(&mut self, id: LaneId, block: Block) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        lane.in_flight = false;
        lane.held |= lane.block == Block::Releasing;
        lane.block = block;
        if self.rules.global {
            return;
        }
        for follower in std::mem::take(&mut lane.queue) {
            let Some(entry) = self.known.get_mut(&follower.sequence) else {
                continue;
            };
            let hot = entry.hot;
            if follower.held {
                // It never stopped being held in the database.
                self.known.remove(&follower.sequence);
            } else {
                entry.state = State::Settling(Then::Hold);
                lane.held = true;
                lane.holds += 1;
                self.settlements.push_back(Unsettled {
                    settlement: Settlement {
                        sequence: follower.sequence,
                        shard: entry.shard,
                        attempts: entry.attempts,
                        verdict: Verdict::Held {
                            destination: self.rules.destinations[usize::from(id.destination)]
                                .clone(),
                            key: id.key,
                        },
                    },
                    lease: entry.lease.clone(),
                });
                self.stats.held += 1;
            }
            let count = if hot { &mut self.waiting_hot } else { &mut self.waiting_cold };
            *count -= 1;
        }
    }

    fn hold(&self, sequence: i64, entry: &Entry, id: LaneId) -> Unsettled {
        unsettled(
            sequence,
            entry,
            Verdict::Held {
                destination: self.rules.destinations[usize::from(id.destination)].clone(),
                key: id.key,
            },
        )
    }

    /// The lane's head is out of the way.
    fn lane_done(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        lane.in_flight = false;
        if self.rules.global {
            lane.block = Block::Open;
        }
        if !lane.queue.is_empty() {
            self.schedule(id);
            return;
        }
        match lane.block {
            Block::Waiting | Block::Parked if lane.held => {
                lane.block = Block::Releasing;
                self.request_release(id);
            }
            Block::Releasing if lane.again => self.request_release(id),
            Block::Releasing if lane.reading => {}
            _ if lane.holds == 0 => {
                self.lanes.remove(&id);
            }
            _ => lane.block = Block::Releasing,
        }
    }

    // ---- settling -----------------------------------------------------------------------------

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
    pub fn settled(&mut self, sequences: impl IntoIterator<Item = i64>) {
        for sequence in sequences {
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
                    self.careful.recorded(sequence);
                } else {
                    // The shard is being handed over: the next owner finds the record.
                    self.known.remove(&sequence);
                    self.careful.done(sequence);
                }
                continue;
            }
            match self.leaving.stamp() {
                Some(stamp) => {
                    entry.state = State::Leaving { stamp, held: then == Then::Hold };
                    self.leaving.push(stamp, sequence);
                }
                None => {
                    self.known.remove(&sequence);
                }
            }
            match (then, lane) {
                (Then::AdvanceLane, Some(id)) => self.lane_done(id),
                (Then::Hold, Some(id)) => self.hold_written(id),
                _ => {}
            }
        }
    }

    /// These were refused: the right to write them was lost.
    pub fn refused(&mut self, sequences: impl IntoIterator<Item = i64>) {
        for sequence in sequences {
            self.stats.stale_settles += 1;
            if self.known.get(&sequence).is_some_and(|e| matches!(e.state, State::Settling(_))) {
                self.known.remove(&sequence);
                self.careful.done(sequence);
            }
        }
    }

    fn hold_written(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        lane.holds -= 1;
        if lane.block == Block::Releasing && lane.queue.is_empty() && !lane.busy() {
            self.request_release(id);
        }
    }

    // ---- releasing ----------------------------------------------------------------------------

    /// Asks for the lane's held followers, once all holds are written: a read in between would
    /// miss one and open the lane over it.
    fn request_release(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        if lane.holds > 0 || lane.reading {
            return;
        }
        lane.reading = true;
        lane.again = false;
        self.releases.push(id);
    }

    /// Lanes whose held followers are to be read, with their destination's name.
    pub fn next_releases(&mut self) -> Vec<(LaneId, String)> {
        std::mem::take(&mut self.releases)
            .into_iter()
            .filter(|id| self.lanes.contains_key(id))
            .map(|id| (id, self.rules.destinations[usize::from(id.destination)].clone()))
            .collect()
    }

    /// The lane's held followers, in order; `None` when they could not be read.
    pub fn released(&mut self, id: LaneId, rows: Option<Vec<Fetched>>) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        lane.reading = false;
        let Some(rows) = rows else {
            self.request_release(id);
            return;
        };
        let full = rows.len() >= RELEASE_LIMIT;
        let mut accepted = false;
        for row in rows {
            accepted |= self.offer(row, Origin::Held, None) == Offered::Accepted;
        }
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        lane.again |= full;
        if !accepted && lane.block == Block::Releasing && !lane.busy() {
            self.lane_done(id);
        }
    }

    // ---- reads under way, marks ---------------------------------------------------------------

    /// A read begins; its number is due back in [`read_merged`](Self::read_merged).
    pub fn read_began(&mut self) -> u64 {
        self.leaving.read_began()
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

    /// The sequence up to which everything that was read is settled or marked.
    pub fn mark(&self, cursor: i64) -> i64 {
        self.known
            .iter()
            .filter(|(_, entry)| {
                !entry.marked && !matches!(entry.state, State::Leaving { .. } | State::Orphan)
            })
            .map(|(sequence, _)| sequence - 1)
            .fold(cursor, i64::min)
    }

    /// Events handed to transports and not answered yet.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Events in memory.
    pub fn in_memory(&self) -> usize {
        self.known.len()
    }

    /// Nothing waits, flies or settles, and no lane is being read back.
    pub fn is_idle(&self) -> bool {
        self.in_flight == 0
            && self.waiting_hot == 0
            && self.waiting_cold == 0
            && self.settlements.is_empty()
            && self.careful.is_empty()
            && self.releases.is_empty()
            && self.known.values().all(|entry| matches!(entry.state, State::Leaving { .. }))
            && !self.lanes.values().any(|lane| lane.block == Block::Releasing)
    }

    /// The claims under which events are in hand (row leases).
    pub fn leases(&self) -> Vec<RowLease> {
        let mut leases: Vec<_> = self
            .known
            .values()
            .filter(|entry| !matches!(entry.state, State::Leaving { .. }))
            .filter_map(|entry| entry.lease.as_deref().cloned())
            .collect();
        leases.sort_by(|a, b| a.token.cmp(&b.token));
        leases.dedup();
        leases
    }

    /// Forgets what waits: the claims on it have run out (row leases).
    pub fn forget_claims(&mut self) {
        let shards = self.known.values().map(|entry| entry.shard).collect();
        self.forget_waiting(&shards);
    }

    /// Gives back what waits (row leases, graceful stop).
    pub fn give_back(&mut self) {
        let waiting: Vec<i64> = self
            .known
            .iter()
            .filter(|(_, entry)| matches!(entry.state, State::Waiting | State::Suspect))
            .map(|(sequence, _)| *sequence)
            .collect();
        for sequence in waiting {
            if let Some(entry) = self.known.get_mut(&sequence) {
                entry.state = State::Settling(Then::Leave);
                let unsettled = unsettled(sequence, entry, Verdict::Unclaimed);
                self.settlements.push_back(unsettled);
            }
        }
        self.hot.clear();
        self.cold.clear();
        self.careful = Careful::default();
        (self.waiting_hot, self.waiting_cold) = (0, 0);
    }
}

fn unsettled(sequence: i64, entry: &Entry, verdict: Verdict) -> Unsettled {
    Unsettled {
        settlement: Settlement { sequence, shard: entry.shard, attempts: entry.attempts, verdict },
        lease: entry.lease.clone(),
    }
}
