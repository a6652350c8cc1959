//! Random schedules: writes, reads that linger, outcomes, outages, settles that linger, crashes, a
//! shard that goes to another relay and comes back, routes that change, in any order, against a model of
//! the table.

use posthaste_core::store::{Page, Position};

use super::*;
use crate::{
    Config,
    read::{due_by_now, fall_behind, take_behind},
    source::{Source, Take},
};

mod liveness;
mod outcomes;
mod owners;
mod reads;

/// Most rows of one read of a destination's own cursor: small, so that it takes several.
const PAGE: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stand {
    Fresh,
    Waits(Wait),
    Sent,
    Dead,
}

#[derive(Debug, Clone)]
struct Stored {
    key: u8,
    /// Written for this time: it keeps no order with what was written after it.
    not_before: Option<Instant>,
    stand: Stand,
    /// Held, and set free by an operator who discarded what it was held behind.
    free: bool,
    attempts: u32,
    /// The destination of its lane.
    at: &'static str,
}

impl Stored {
    fn is_done(&self) -> bool {
        matches!(self.stand, Stand::Sent | Stand::Dead)
    }

    /// Cursors find it.
    fn is_ahead(&self, now: Instant) -> bool {
        self.stand == Stand::Fresh && self.not_before.is_none_or(|at| at <= now)
    }

    fn blocks(&self) -> bool {
        matches!(self.stand, Stand::Waits(Wait::Retry | Wait::Suspect))
    }

    fn is_due(&self, now: Instant) -> bool {
        match self.stand {
            Stand::Waits(wait) => wait != Wait::Held || self.free,
            Stand::Fresh => self.not_before.is_some_and(|at| at <= now),
            Stand::Sent | Stand::Dead => false,
        }
    }
}

/// Most events that wait for a destination.
const QUEUE: usize = 4;

/// How many keys there are.
const KEYS: usize = 4;

/// A read under way: its number, what it looks for, what it saw, and how far it went (for a
/// destination's own cursor: its generation).
type Reading = (u64, Origin, Option<Release>, Vec<Fetched>, i64);

/// Two destinations: one takes several events of a key together, the other one by one. Each row is how
/// they are called by one configuration: the second has other routes, the third other names.
const NAMES: [[&str; 2]; 3] = [["together", "single"], ["together", "single"], ["third", "fourth"]];

fn two(on_dead: OnDead, global: bool, routes: usize, most_lanes: usize) -> Rules {
    let destination = |index: usize, together| DestinationRules {
        name: NAMES[routes][index].to_owned(),
        together,
    };
    Rules {
        destinations: vec![destination(0, true), destination(1, false)],
        route: Some(Box::new(move |envelope| {
            let key = envelope.event.aggregate_id().and_then(|key| key.parse().ok());
            let destination = destination_of(key.unwrap_or_default(), routes);
            Ok(Routed { destination, topic: None })
        })),
        cold_queue: QUEUE,
        most_lanes,
        ..rules(on_dead, global)
    }
}

/// Three keys share one: two of them can open its breaker while an event of the third is in flight.
fn destination_of(key: u8, routes: usize) -> u16 {
    u16::from((key == 1) != (routes == 1))
}

/// What these routes call the destination of a key.
fn name_of(key: u8, routes: usize) -> &'static str {
    NAMES[routes][usize::from(destination_of(key, routes))]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Us,
    /// Ours until what is under way has ended; the next owner starts here.
    Leaving(i64),
    /// Nobody's since it was ours.
    Nobody,
    /// Another relay's, which leaves word how far it got.
    Other,
}

/// A settle under way.
struct Settling {
    batch: Vec<Unsettled>,
    epoch: u64,
    /// It has reached the table, and only the answer is missing.
    written: bool,
}

/// The table, the relay's lanes, and everything that is under way between them.
struct World {
    table: BTreeMap<i64, Stored>,
    /// How many keys events are written with.
    keys: usize,
    on_dead: OnDead,
    /// Which routes the relay has.
    routes: usize,
    /// All events share one lane.
    global: bool,
    /// Most lanes in memory.
    most_lanes: usize,
    lanes: Lanes,
    cursor: i64,
    /// What a crash leaves for the next owner.
    mark: i64,
    /// Nothing after it is handed over.
    reserved: i64,
    reads: VecDeque<Reading>,
    /// What a read of the hot path says must come first.
    previous: BTreeMap<u64, Vec<i64>>,
    /// How far a read of a destination's own cursor went, and what is to be taken of it, by its number.
    takes: BTreeMap<u64, (i64, Take)>,
    /// What the table says of the lanes that a read would enter, by the read's number.
    told: BTreeMap<u64, Vec<Blocked>>,
    /// A look at what is blocked, under way.
    asked: Option<(u64, Option<Vec<LaneKey>>, Vec<Blocked>)>,
    /// All that is blocked, read once more, and whether no lane was forgotten since.
    survey: Option<(Vec<Blocked>, bool)>,
    /// Looks at lanes that another owner left, under way.
    looks: VecDeque<(Look, Vec<Fetched>)>,
    /// The cursors of destinations that are behind; the driver's own.
    source: Source,
    now: Instant,
    up: [bool; 2],
    paused_keys: BTreeSet<Key>,
    paused: BTreeSet<&'static str>,
    in_flight: Vec<Vec<i64>>,
    settling: Option<Settling>,
    /// Whose the shard is.
    owner: Owner,
    /// The right to write: another one with each owner.
    epoch: u64,
    /// Everything that was visible has been read since the shard was taken: the hot path is used.
    read_once: bool,
    /// Order of first acknowledgements.
    acknowledged: Vec<i64>,
}

impl World {
    fn new(on_dead: OnDead, global: bool, most_lanes: usize) -> Self {
        let mut world = Self {
            table: BTreeMap::new(),
            keys: KEYS,
            on_dead,
            routes: 0,
            global,
            most_lanes,
            lanes: Lanes::new(two(on_dead, global, 0, most_lanes)),
            cursor: 0,
            mark: 0,
            reserved: 0,
            reads: VecDeque::new(),
            previous: BTreeMap::new(),
            takes: BTreeMap::new(),
            told: BTreeMap::new(),
            asked: None,
            survey: None,
            looks: VecDeque::new(),
            source: Source::new(&Config::default(), now()),
            now: now(),
            up: [true; 2],
            paused_keys: BTreeSet::new(),
            paused: BTreeSet::new(),
            in_flight: Vec::new(),
            settling: None,
            owner: Owner::Us,
            epoch: 0,
            read_once: true,
            acknowledged: Vec::new(),
        };
        world.lanes.open_shard(0, None);
        world
    }

    fn fetched(&self, sequence: i64) -> Fetched {
        let stored = &self.table[&sequence];
        let wait = match stored.stand {
            Stand::Waits(wait) => Some(wait),
            _ => None,
        };
        Fetched { attempts: stored.attempts, wait, ..row(sequence, stored.key) }
    }

    /// An event is written, for now or for so many milliseconds later.
    fn write(&mut self, key: u8, delay: Option<u64>) {
        let sequence = self.table.len() as i64 + 1;
        let not_before = delay.map(|millis| self.now + Duration::from_millis(millis));
        self.table.insert(
            sequence,
            Stored { key, not_before, stand: Stand::Fresh, free: false, attempts: 0, at: "" },
        );
    }

    /// The last event that was written.
    fn newest(&self) -> i64 {
        self.table.len() as i64
    }

    /// What is counted is what is there.
    fn check_counts(&self) {
        let lanes = &self.lanes;
        for key in lanes.doubts.keys() {
            assert!(!lanes.lanes_of(*key).is_empty(), "in doubt, and only in the table: {key:?}");
        }
        let count = |which: &dyn Fn(&Entry) -> bool| {
            lanes.known.values().filter(|entry| which(entry)).count()
        };
        let flies = |entry: &Entry| matches!(entry.state, State::InFlight | State::Orphan);
        assert_eq!(lanes.in_flight, count(&flies), "in flight");
        for (index, of) in (0..).zip(&lanes.destinations) {
            let (name, here) = (&of.rules.name, |entry: &Entry| entry.destination == index);
            let waits = |entry: &Entry| here(entry) && entry.state == State::Waiting;
            assert_eq!(of.in_flight, count(&|e| here(e) && flies(e)), "in flight to {name}");
            for queue in Queue::ALL {
                let counted = count(&|entry| waits(entry) && entry.queue == queue);
                assert_eq!(of.waiting(queue), counted, "{queue:?} for {name}");
            }
        }
        // Those of a shard that is being handed over have no future.
        for (id, lane) in lanes.lanes.iter().filter(|_| self.owner == Owner::Us) {
            let of_it = |entry: &Entry| entry.lane == Some(*id);
            let queued = count(&|e| of_it(e) && e.state == State::Waiting);
            let holds = count(&|e| of_it(e) && e.state == State::Settling(Then::Hold));
            let under_way = |entry: &Entry| {
                matches!(
                    entry.state,
                    State::InFlight
                        | State::Undecided
                        | State::Suspect
                        | State::Settling(Then::Dispatch | Then::AdvanceLane)
                )
            };
            assert_eq!(lane.queue.len(), queued, "queue of {id:?}");
            let goes_on = lane.busy() || (self.global && lane.is_blocked());
            assert!(goes_on || lane.queue.is_empty(), "nothing brings {id:?} on: {lane:?}");
            assert_eq!(lane.holds as usize, holds, "holds of {id:?}");
            assert_eq!(lane.in_flight as usize, count(&|e| of_it(e) && under_way(e)), "{id:?}");
        }
    }

    /// One event of a key hangs, and the next one is passed over: two other keys could not be reached.
    fn begin_outage(&mut self) {
        self.reserved = 10;
        for keys in [&[0][..], &[0, 2, 3]] {
            for key in keys {
                self.write(*key, None);
            }
            self.begin_read(Origin::Cold, 0);
            self.merge_read(0);
            self.dispatch(4);
        }
        self.up[0] = false;
        self.outcome(1, 2);
        assert_eq!(self.lanes.breakers_open(), 1);
    }

    /// Lets everything end well, and checks that nothing is left. One key is refused until the others are done.
    fn finish(&mut self, refused: Option<u8>) {
        self.up = [true; 2];
        self.lanes.pause(&BTreeSet::new(), &BTreeSet::new(), self.now);
        (self.paused_keys, self.paused) = (BTreeSet::new(), BTreeSet::new());
        for turn in 0..2_000 {
            self.now += Duration::from_secs(1);
            if matches!(self.owner, Owner::Leaving(_)) {
                self.give_away(true);
            }
            self.acquire();
            self.lanes.wake_breakers(self.now);
            match turn % 3 {
                0 => self.begin_read(Origin::Cold, 0),
                1 => self.begin_read(Origin::Due, turn / 3),
                _ => self.begin_catch_up(turn / 3),
            }
            self.begin_release();
            self.begin_look();
            self.end_look(0);
            while !self.reads.is_empty() {
                self.merge_read(0);
            }
            self.dispatch(10);
            while !self.in_flight.is_empty() {
                self.refuse(refused);
            }
            self.begin_settle(true);
            self.end_settle();
            self.reconcile();
            if self.table.values().all(Stored::is_done) && self.lanes.is_idle() {
                assert_eq!(self.lanes.in_memory(), 0, "entries stayed behind");
                return;
            }
        }
        panic!(
            "never came to an end: {:?}\n{:?}\n{:?}\n{:?}\n{:?}",
            self.table, self.lanes.known, self.lanes.destinations, self.lanes.lanes, self.source
        );
    }
}

/// How many kinds of actions there are.
const KINDS: u8 = 27;

/// Without these nothing goes on.
const NEEDED: [u8; 8] = [0, 2, 5, 7, 9, 11, 13, 14];

/// These end no outage early. A schedule of them alone begins with one.
const OUTAGES: u32 = 1 << 15 | 1 << 16 | 1 << 17 | 1 << 18 | 1 << 20 | 1 << 21;

/// The kinds of one schedule: with few of them each meets the others more often.
fn kinds(chosen: u32) -> Vec<u8> {
    (0..KINDS).filter(|kind| NEEDED.contains(kind) || chosen & (1 << kind) > 0).collect()
}

fn act(world: &mut World, kind: u8, pick: u8) {
    let pick = usize::from(pick);
    match kind {
        0 | 1 => {
            let delay = (pick % 16 > 13).then(|| [0, 50, 200, 6_000][pick / 16 % 4]);
            world.write((pick % world.keys) as u8, delay);
        }
        2 | 3 => world.begin_read(Origin::Cold, 0),
        4 => world.begin_read(Origin::Due, pick),
        5 if pick % 2 == 0 => world.begin_release(),
        5 if pick % 4 == 1 => world.begin_look(),
        5 => world.end_look(pick),
        6 => world.begin_hot(pick),
        7 | 8 => world.merge_read(pick),
        9 | 10 => world.dispatch(1 + pick % 4),
        11 | 12 => world.outcome(pick, pick / 7),
        13 => world.begin_settle(pick % 3 > 0),
        14 => world.end_settle(),
        15 | 16 => world.begin_catch_up(pick),
        // The last is longer than a breaker waits for a probe that hangs.
        17 => world.now += Duration::from_millis([50, 50, 200, 6_000][pick % 4]),
        20 | 21 => world.pause(pick),
        22 => world.give_away(pick % 4 > 0),
        23 => world.other(pick),
        24 => world.acquire(),
        25 if pick % 4 == 3 => world.survey_again(),
        25 => world.reconcile(),
        26 => world.replay(pick),
        18 => world.up[pick % 2] = pick % 3 > 0,
        _ if pick < 16 => world.crash(),
        _ if pick < 32 => {
            world.routes = pick % 3;
            world.crash();
        }
        _ => world.save_mark(),
    }
}

fn toggle<T: Ord>(set: &mut BTreeSet<T>, what: T) {
    if !set.remove(&what) {
        set.insert(what);
    }
}

fn page(sequence: i64, caught_up: bool) -> Page {
    Page { rows: Vec::new(), position: Position { sequence, context: String::new() }, caught_up }
}

/// Some faults show in one of 30,000 schedules.
fn cases() -> u32 {
    let wanted = std::env::var("PROPTEST_CASES").ok();
    wanted.and_then(|cases| cases.parse().ok()).unwrap_or(20_000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_schedule_keeps_order_and_loses_nothing(
        actions in prop::collection::vec((any::<u8>(), any::<u8>()), 1..300),
        park in any::<bool>(),
        most_lanes in prop::sample::select(vec![1, 1, 3, 1_000]),
        refused in prop::option::of(0..KEYS as u8),
        (global, chosen, keys) in prop_oneof![
            3 => (any::<bool>(), any::<u32>(), 1..=KEYS),
            1 => (Just(false), Just(OUTAGES), Just(KEYS)),
        ],
    ) {
        let on_dead = if park { OnDead::Park } else { OnDead::Skip };
        let mut world = World { keys, ..World::new(on_dead, global, most_lanes) };
        if chosen == OUTAGES {
            world.begin_outage();
        }
        let kinds = kinds(chosen);
        for (kind, pick) in actions {
            act(&mut world, kinds[usize::from(kind) % kinds.len()], pick);
            world.check_counts();
        }
        world.finish(refused);
    }
}
