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
//! `on_dead = park` leaves its lane *parked* until an operator acts. The lanes of a paused key stay
//! *releasing* with everything of theirs held, and are read back when the key goes on.
//!
//! # When things fail
//!
//! - A shard that is lost takes all its lanes with it; outcomes that come afterwards are counted as
//!   stale and written nowhere.
//! - A shard that comes back begins anew: what a read or a settle that began before brings is not
//!   taken, because another relay had the shard in between.
//! - A dead event holds its lane until the write of its death is confirmed.
//! - One event is handed out once: its entry leaves the set only after every read that began
//!   before its settle was confirmed has been merged, or such a read would bring it back.
//! - After an unclean takeover an event that the dead relay may have had in flight is *suspect*: that
//!   is recorded before it is dispatched, few at a time. One that was recorded when its relay died
//!   goes alone, and an attempt is counted before it goes. An event that kills its process so ends
//!   dead and takes no other with it.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use posthaste_core::{
    Key,
    store::{Fetched, Identity, RowLease, RowsInHand, Settlement, Verdict},
};

use crate::{
    OnDead, Stats,
    budget::{Budget, Charge},
    hash::IntMap,
};

mod lane;

#[cfg(feature = "transitions")]
pub mod transitions;

mod destination;

mod breaker;

mod hung;

mod aside;

mod pause;

mod shards;

mod spill;

mod offer;

mod rerouted;

mod next;

mod careful;

mod outcome;

mod settled;

mod leaving;

mod whereabouts;

#[cfg(test)]
mod tests;

pub use self::{
    breaker::{BreakerState, Probed},
    destination::{DestinationRules, Feed, Routed, Routing, backlog_limit},
    rerouted::Look,
    whereabouts::Whereabouts,
};
use self::{
    careful::Careful,
    destination::{Destination, Queue},
    lane::{Block, Lane, Pending},
    leaving::Leaving,
    rerouted::Doubt,
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

impl LaneId {
    /// The one lane of `global`, whatever the destinations.
    const OF_ALL: Self = Self { destination: 0, key: Key(0) };
}

/// How a row was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The writer's process said so after commit.
    Hot,
    /// A poll read it, ahead or late.
    Cold,
    /// Its time has come. Under row leases: its claim had expired.
    Due,
    /// Its lane was released.
    Held,
    /// The cursor of this destination alone, which is behind, read it.
    CatchUp(u16),
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
    /// The destinations.
    pub destinations: Vec<DestinationRules>,
    /// Which of them an event goes to; without it, the only one.
    pub route: Option<Routing>,
    /// Most events that wait for one of several destinations; what is more, its own cursor brings.
    pub cold_queue: usize,
    /// The bytes of all events in memory.
    pub budget: Budget,
    /// Most lanes in memory: blocked ones beyond that are in the table only.
    pub most_lanes: usize,
}

/// A lane whose held followers are to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// The lane.
    pub lane: LaneId,
    /// The name of its destination.
    pub destination: String,
    /// Those up to this number were read before.
    pub after: i64,
    /// The number of the read. A lane that was made anew meanwhile does not know it.
    read: u64,
}

/// A read of one lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadBack {
    /// Its held followers.
    Release(Release),
    /// What an earlier owner left in it.
    Look(Look),
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
    identity: Identity,
    shard: u16,
    destination: u16,
    lane: Option<LaneId>,
    /// Its ordering key; `None` when it is unordered.
    key: Option<Key>,
    attempts: u32,
    /// The number of its dispatch.
    started: u64,
    /// What the table knows of the dispatch under way.
    recorded: Recorded,
    replay: bool,
    /// Where it waits for its turn.
    queue: Queue,
    /// The database finds it again by itself (`not_before` is set): no mark must stop at it.
    marked: bool,
    /// It is still marked held in the database.
    held: bool,
    /// It blocked its lane when it was read: it failed, or may have killed a relay.
    blocks: bool,
    lease: Option<Arc<RowLease>>,
    /// What its content takes of the budget; none once that has left the memory.
    charge: Option<Charge>,
    state: State,
}

/// What is written of a dispatch before it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Recorded {
    #[default]
    Nothing,
    /// The event goes together with others that may kill the relay: all of them are named.
    Suspect,
    /// It goes alone, and the attempt is counted in `attempts` already.
    Attempt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In a queue, and counted there.
    Waiting,
    /// Among the careful: to be recorded, or recorded and ready.
    Suspect,
    InFlight,
    /// It failed; whether by itself or with its destination is not known yet.
    Undecided,
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
    /// The table says from here on that its lane is blocked.
    BlockLane,
    /// The lane waited for the confirmation of a death.
    AdvanceLane,
    /// It is held now.
    Hold,
    /// It is on record: it may be dispatched.
    Dispatch,
}

/// A shard that lanes accept events of.
#[derive(Debug, Clone, Copy)]
struct Shard {
    /// Up to here the previous owner may have had events in flight when it died.
    suspect_to: Option<i64>,
    /// The first read that began since.
    first_read: u64,
}

/// All lanes of a relay.
pub struct Lanes {
    rules: Rules,
    shards: IntMap<u16, Shard>,
    known: IntMap<i64, Entry>,
    lanes: IntMap<LaneId, Lane>,
    /// The configured ones, then the place of events that have none, then those of the past that the
    /// table still names.
    destinations: Vec<Destination>,
    /// Where reading stands: an event at or before it that comes now is late.
    cursor: i64,
    in_flight: usize,
    careful: Careful,
    leaving: Leaving,
    settlements: VecDeque<Unsettled>,
    /// The destination of the last lane that was read back.
    released_last: usize,
    /// Whose turn the last read was: a look's, or a release's.
    looks_first: bool,
    /// Keys with lanes that an earlier owner left, until these were looked at.
    doubts: IntMap<Key, Doubt>,
    /// Those whose next page is to be read.
    looks: VecDeque<Key>,
    /// Events that are being written to the lane where they belong now.
    moving: IntMap<i64, Entry>,
    /// Suspects that were written so, with their shards: the table says only that they are held.
    moved_suspects: IntMap<i64, u16>,
    /// A key goes on of which something fell due meanwhile.
    due_again: bool,
    /// Replays were left there, and whether one of them goes to a destination that takes events.
    left_replays: Option<bool>,
    /// How many of the blocked lanes were asked for since all of them were.
    asked_for: usize,
    /// Lanes may be blocked in the table that are not in memory.
    spilled: bool,
    /// Among these are lanes that an earlier owner left: nobody has looked at them.
    unlooked: bool,
    /// Lanes that are blocked, and what blocks them may be gone from the table: whether it is there is asked
    /// soon.
    unsure: VecDeque<LaneId>,
    /// Keys of which nothing is handed over, each since when.
    paused_keys: BTreeMap<Key, Instant>,
    /// Counters; the driver adds its own and publishes them.
    pub stats: Stats,
}

#[derive(Debug)]
enum Ready {
    Lane(LaneId),
    Single(Box<Pending>),
}

impl Recorded {
    /// How many of the entry's `attempts` are the one under way.
    fn attempts(self) -> u32 {
        u32::from(self == Self::Attempt)
    }
}

impl State {
    /// Counted among what is under way in its lane, until it leaves that.
    fn is_under_way(self) -> bool {
        matches!(self, Self::InFlight | Self::Undecided | Self::Suspect)
    }
}

impl Entry {
    /// It was read because its time had come, and nothing else has happened to it.
    fn is_delayed(&self) -> bool {
        self.marked && !self.held && !self.blocks && !self.replay
    }

    /// Its key, or its own number when it has none: whether two failures are of one key.
    fn key_or_number(&self, sequence: i64) -> i64 {
        self.key.map_or(sequence, |key| key.0)
    }
}

impl Lanes {
    /// No lanes yet.
    pub fn new(rules: Rules) -> Self {
        let nowhere = DestinationRules { name: "unrouted".to_owned(), together: false };
        let destinations =
            rules.destinations.iter().cloned().chain([nowhere]).map(Destination::new).collect();
        Self {
            rules,
            shards: IntMap::default(),
            known: IntMap::default(),
            lanes: IntMap::default(),
            destinations,
            cursor: 0,
            in_flight: 0,
            careful: Careful::default(),
            leaving: Leaving::default(),
            settlements: VecDeque::new(),
            released_last: 0,
            looks_first: false,
            doubts: IntMap::default(),
            looks: VecDeque::new(),
            moving: IntMap::default(),
            moved_suspects: IntMap::default(),
            due_again: false,
            left_replays: None,
            asked_for: 0,
            spilled: false,
            unlooked: false,
            unsure: VecDeque::new(),
            paused_keys: BTreeMap::new(),
            stats: Stats::default(),
        }
    }

    /// The lane leaves the memory.
    fn drop_lane(&mut self, id: LaneId) {
        if let Some(lane) = self.lanes.remove(&id) {
            lane.drops();
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

    /// A walk over what is due begins.
    pub fn due_walk_began(&mut self) {
        self.destinations.iter_mut().for_each(|of| of.due_waits = false);
    }

    /// Reading stands here.
    pub fn set_cursor(&mut self, cursor: i64) {
        self.cursor = cursor;
    }

    /// The bytes of all events in memory.
    pub fn budget(&self) -> &Budget {
        &self.rules.budget
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
        let stands = self.stands_behind_a_blocker();
        self.in_flight == 0
            && (stands || self.destinations.iter().all(|d| d.all_waiting() == 0))
            && self.settlements.is_empty()
            && self.careful.is_empty()
            && self.destinations.iter().all(|of| of.releases.is_empty())
            && !self.looks()
            && !self.due_again
            && !self.destinations.iter().any(|of| of.due_waits)
            && !self.asks()
            && self.known.values().all(|entry| {
                matches!(entry.state, State::Leaving { .. })
                    || (stands && entry.lane.is_some() && entry.state == State::Waiting)
            })
            && !self.lanes.iter().any(|(id, lane)| {
                lane.block == Block::Releasing
                    && self.destinations[usize::from(id.destination)].breaker.is_closed()
                    && !self.is_paused(Some(id.key))
            })
    }

    /// The events in hand, by the claims under which they are (row leases).
    pub fn claimed(&self) -> Vec<RowsInHand> {
        let mut claimed: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
        for (sequence, entry) in &self.known {
            if !matches!(entry.state, State::Leaving { .. })
                && let Some(lease) = entry.lease.as_deref()
            {
                claimed.entry(lease.token.as_str()).or_default().push(*sequence);
            }
        }
        let in_hand = |(token, sequences): (&str, _)| RowsInHand {
            lease: RowLease { token: token.to_owned() },
            sequences,
        };
        claimed.into_iter().map(in_hand).collect()
    }

    /// This row is in hand, and was claimed anew when its lease had ended (row leases): what becomes of it is
    /// written under the new claim. Returns whether it is.
    pub fn adopt(&mut self, row: &Fetched, lease: &Arc<RowLease>) -> bool {
        let Some(entry) = self.known.get_mut(&row.sequence) else { return false };
        if entry.identity != row.identity || entry.lease.is_none() {
            return false;
        }
        entry.lease = Some(Arc::clone(lease));
        for unsettled in &mut self.settlements {
            if unsettled.settlement.sequence == row.sequence {
                unsettled.lease = Some(Arc::clone(lease));
            }
        }
        true
    }

    /// This was refused under an earlier claim than the one that the event is in hand by (row leases): it is
    /// written again. Returns whether it is.
    pub fn settle_again(&mut self, settlement: &Settlement, refused: &RowLease) -> bool {
        let entry = self.known.get(&settlement.sequence);
        let entry = entry.filter(|entry| matches!(entry.state, State::Settling(_)));
        let lease = entry.and_then(|entry| entry.lease.clone()).filter(|lease| **lease != *refused);
        let adopted = lease.is_some();
        if adopted {
            self.settlements.push_back(Unsettled { settlement: settlement.clone(), lease });
        }
        adopted
    }

    /// Forgets what waits: the server that it was claimed on is another one (row leases).
    pub fn forget_claims(&mut self) {
        let shards = self.known.values().map(|entry| entry.shard).collect();
        self.forget_waiting(&shards);
    }

    /// Gives back what waits (row leases): the relay stops or rests, or their claims run out.
    pub fn give_back(&mut self, now: Instant) {
        let waiting: Vec<i64> = self
            .known
            .iter()
            .filter(|(_, entry)| matches!(entry.state, State::Waiting | State::Suspect))
            .map(|(sequence, _)| *sequence)
            .collect();
        for sequence in waiting {
            let Some(entry) = self.known.get_mut(&sequence) else { continue };
            if entry.recorded == Recorded::Attempt {
                // An attempt that did not take place is not counted.
                self.put_back(sequence, now);
                continue;
            }
            entry.state = State::Settling(Then::Leave);
            entry.charge = None;
            let unsettled = unsettled(sequence, entry, Verdict::Unclaimed);
            self.settlements.push_back(unsettled);
        }
        for destination in &mut self.destinations {
            destination.clear();
        }
        // One that is being recorded comes back when it is; nobody else has its content.
        let known = &self.known;
        self.careful.forget(|sequence| {
            let state = known.get(&sequence).map(|entry| entry.state);
            matches!(state, Some(State::Settling(Then::Dispatch) | State::InFlight))
        });
    }
}

fn unsettled(sequence: i64, entry: &Entry, verdict: Verdict) -> Unsettled {
    Unsettled {
        settlement: Settlement {
            sequence,
            identity: entry.identity,
            shard: entry.shard,
            attempts: entry.attempts,
            verdict,
        },
        lease: entry.lease.clone(),
    }
}
