//! Random schedules: writes, reads that linger, outcomes, outages, settles that linger, crashes, a
//! shard that goes to another relay and comes back, in any order, against a model of the table.

use posthaste_core::store::{Page, Position};

use super::*;
use crate::{Config, source::Source};

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
    /// Written for later: it keeps no order with what was written before or after it.
    delayed: bool,
    stand: Stand,
    /// Held, and set free by an operator who discarded what it was held behind.
    free: bool,
    attempts: u32,
}

impl Stored {
    fn is_done(&self) -> bool {
        matches!(self.stand, Stand::Sent | Stand::Dead)
    }

    /// The cursor finds it.
    fn is_ahead(&self) -> bool {
        self.stand == Stand::Fresh && !self.delayed
    }

    fn blocks(&self) -> bool {
        matches!(self.stand, Stand::Waits(Wait::Retry | Wait::Suspect))
    }

    fn is_due(&self) -> bool {
        match self.stand {
            Stand::Waits(wait) => wait != Wait::Held || self.free,
            Stand::Fresh => self.delayed,
            Stand::Sent | Stand::Dead => false,
        }
    }
}

/// A read under way: its number, what it looks for, what it saw, and how far it went (for a
/// destination's own cursor: its generation).
type Reading = (u64, Origin, Option<Release>, Vec<Fetched>, i64);

const NAMES: [&str; 2] = ["together", "single"];

/// Two destinations: one takes several events of a key together, the other one by one.
fn two(on_dead: OnDead, global: bool) -> Rules {
    let destination =
        |index: usize, together| DestinationRules { name: NAMES[index].to_owned(), together };
    Rules {
        destinations: vec![destination(0, true), destination(1, false)],
        route: Some(Box::new(|envelope| {
            let destination = destination_of(envelope.event.aggregate_id().unwrap_or_default());
            Ok(Routed { destination, topic: None })
        })),
        cold_queue: 4,
        ..rules(on_dead, global)
    }
}

fn destination_of(key: &str) -> u16 {
    u16::from(key.parse().is_ok_and(|key: u8| key % 2 == 1))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Us,
    /// Ours until what is under way has ended; the next owner starts here.
    Leaving(i64),
    /// Ours before, and nobody's since; or another relay's, which has told where it got to.
    Nobody,
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
    on_dead: OnDead,
    /// All events share one lane.
    global: bool,
    lanes: Lanes,
    cursor: i64,
    /// What a crash leaves for the next owner.
    mark: i64,
    reads: VecDeque<Reading>,
    /// What a read of the hot path says must come first.
    previous: BTreeMap<u64, Vec<i64>>,
    /// A look at what is blocked, under way.
    look: Option<(u64, Vec<Blocked>)>,
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
    fn new(on_dead: OnDead, global: bool) -> Self {
        let mut world = Self {
            table: BTreeMap::new(),
            on_dead,
            global,
            lanes: Lanes::new(two(on_dead, global)),
            cursor: 0,
            mark: 0,
            reads: VecDeque::new(),
            previous: BTreeMap::new(),
            look: None,
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

    fn write(&mut self, key: u8, delayed: bool) {
        let sequence = self.table.len() as i64 + 1;
        self.table.insert(
            sequence,
            Stored { key, delayed, stand: Stand::Fresh, free: false, attempts: 0 },
        );
    }

    /// An operator wants one that was sent to come again.
    fn replay(&mut self, pick: usize) {
        let count = self.table.len().max(1);
        if let Some((sequence, stored)) = self.table.iter_mut().nth(pick % count)
            && stored.stand == Stand::Sent
            && !self.lanes.in_hand(*sequence)
        {
            stored.stand = Stand::Waits(Wait::Replay);
        }
    }

    /// One poll is under way at a time, whoever's cursor it moves.
    fn polling(&self) -> bool {
        self.reads.iter().any(|(_, origin, ..)| {
            matches!(origin, Origin::Cold | Origin::Due | Origin::CatchUp(_))
        })
    }

    fn begin_read(&mut self, origin: Origin) {
        if self.polling() || self.owner != Owner::Us {
            return;
        }
        let wanted = |stored: &Stored| match origin {
            Origin::Cold | Origin::Hot => stored.is_ahead(),
            Origin::Due => stored.is_due(),
            Origin::Held | Origin::CatchUp(_) => false,
        };
        let from = if origin == Origin::Cold { self.cursor } else { 0 };
        // What blocks everything comes first, however much is due before it.
        let first = origin == Origin::Due && self.lanes.all_blocked();
        let blockers = self.table.iter().filter(|(_, stored)| first && stored.blocks());
        let found = self.table.range(from + 1..).filter(|(_, stored)| wanted(stored)).take(4);
        let rows: Vec<Fetched> =
            blockers.chain(found).map(|(sequence, _)| self.fetched(*sequence)).collect();
        let until = rows.last().map_or(from, |row| row.sequence);
        let read = self.lanes.read_began();
        self.reads.push_back((read, origin, None, rows, until));
    }

    /// The hot path: one row by its number, only when all before it of its key are settled or in hand.
    fn begin_hot(&mut self, pick: usize) {
        let fresh: Vec<i64> = self
            .table
            .iter()
            .filter(|(_, stored)| stored.is_ahead())
            .map(|(sequence, _)| *sequence)
            .collect();
        let Some(sequence) = fresh.get(pick % fresh.len().max(1)).copied() else { return };
        // Of other keys the read says nothing.
        if !self.read_once || self.owner != Owner::Us || self.global {
            return;
        }
        let read = self.lanes.read_began();
        let key = self.table[&sequence].key;
        let before = self.table.range(..sequence);
        let unsettled = before.filter(|(_, stored)| stored.key == key && !stored.is_done());
        self.previous.insert(read, unsettled.map(|(sequence, _)| *sequence).collect());
        self.reads.push_back((read, Origin::Hot, None, vec![self.fetched(sequence)], 0));
    }

    fn begin_release(&mut self) {
        for release in self.lanes.next_releases() {
            let key = release.lane.key.0;
            let rows = self
                .table
                .iter()
                .filter(|(_, stored)| {
                    stored.stand == Stand::Waits(Wait::Held) && i64::from(stored.key) == key
                })
                .map(|(sequence, _)| self.fetched(*sequence))
                .take(RELEASE_LIMIT)
                .collect();
            self.reads.push_back((release.read, Origin::Held, Some(release), rows, 0));
        }
    }

    fn merge_read(&mut self, pick: usize) {
        if self.reads.is_empty() {
            return;
        }
        let Some((read, origin, release, rows, until)) = self.reads.remove(pick % self.reads.len())
        else {
            return;
        };
        match (origin, release) {
            (Origin::Held, Some(release)) => {
                let rows = (pick % 7 != 1).then_some(rows);
                self.lanes.released(&release, rows, self.now);
            }
            (Origin::Hot, _) => {
                let ours = self.read_once && self.lanes.saw(read, 0);
                let previous = self.previous.remove(&read).unwrap_or_default();
                if ours && previous.iter().all(|sequence| self.lanes.in_hand(*sequence)) {
                    self.offer(rows, origin);
                }
            }
            (Origin::CatchUp(destination), _) => self.caught(destination, rows, until as u64),
            _ => {
                self.read_once |= origin == Origin::Cold && rows.len() < 4;
                self.offer(rows, origin);
                if origin == Origin::Cold {
                    self.cursor = self.cursor.max(until);
                    self.source.read_ahead(&page(self.cursor, true), self.source.generation(), 0);
                }
            }
        }
        self.note_skipped();
        self.lanes.read_merged(read);
    }

    fn offer(&mut self, rows: Vec<Fetched>, origin: Origin) {
        for row in rows {
            self.lanes.offer(row, origin, None, self.now);
        }
        self.note_skipped();
    }

    fn note_skipped(&mut self) {
        for (destination, sequence) in self.lanes.take_skipped() {
            self.source.fall_behind(destination, sequence);
        }
    }

    /// A destination that is behind reads on, as the driver does it.
    fn begin_catch_up(&mut self, pick: usize) {
        let behind: Vec<u16> = self.source.behind().collect();
        let Some(destination) = behind.get(pick % behind.len().max(1)).copied() else { return };
        let wanted = self.lanes.wants_probe(destination)
            || self.lanes.room_behind(destination, usize::MAX) > 0;
        if self.polling() || !wanted || self.owner != Owner::Us {
            return;
        }
        let from = self.source.begin_behind(destination);
        let rows: Vec<Fetched> = self
            .table
            .range(from + 1..)
            .filter(|(_, stored)| stored.is_ahead())
            .map(|(sequence, _)| self.fetched(*sequence))
            .take(PAGE)
            .collect();
        let read = self.lanes.read_began();
        let generation = self.source.behind_generation(destination) as i64;
        self.reads.push_back((read, Origin::CatchUp(destination), None, rows, generation));
    }

    fn caught(&mut self, destination: u16, rows: Vec<Fetched>, generation: u64) {
        let until = rows.last().map_or(self.source.behind_position(destination), |r| r.sequence);
        let page = page(until, rows.len() < PAGE);
        if !self.source.is_behind_since(destination, generation) {
            return;
        }
        let taken = self.lanes.catch_up(destination, rows, self.now);
        self.note_skipped();
        if self.source.read_behind(destination, &page, generation, taken) {
            self.lanes.caught_up(destination);
        }
    }

    fn dispatch(&mut self, max: usize) {
        self.lanes.wake_breakers(self.now);
        for destination in 0..self.lanes.destinations() {
            let batch = self.lanes.next_batch(destination, max, i64::MAX).0;
            let mut ahead: BTreeSet<i64> = BTreeSet::new();
            let name = NAMES.get(usize::from(destination));
            assert!(batch.is_empty() || !name.is_some_and(|name| self.paused.contains(name)));
            assert!(batch.is_empty() || self.owner == Owner::Us, "the shard is not ours");
            for envelope in &batch {
                let sequence = envelope.sequence;
                let key = self.table[&sequence].key;
                assert!(!self.paused_keys.contains(&Key(i64::from(key))), "{sequence} is paused");
                let before = self.table.range(..sequence);
                for (earlier, stored) in before.filter(|(_, s)| self.global || s.key == key) {
                    assert!(
                        stored.stand == Stand::Dead
                            || stored.delayed
                            || self.table[&sequence].delayed
                            || self.acknowledged.contains(earlier)
                            || ahead.contains(earlier),
                        "{sequence} was handed over before {earlier} ({:?})",
                        stored.stand
                    );
                }
                ahead.insert(sequence);
            }
            if !batch.is_empty() {
                self.in_flight.push(batch.iter().map(|envelope| envelope.sequence).collect());
            }
        }
        self.lanes.judge_all(self.now);
        self.note_skipped();
    }

    /// A batch is answered: a prefix of it is accepted, the rest is not; or each for itself.
    fn outcome(&mut self, pick: usize, kind: usize) {
        if self.in_flight.is_empty() {
            return;
        }
        let batch = self.in_flight.swap_remove(pick % self.in_flight.len());
        let destination = destination_of(&self.table[&batch[0]].key.to_string());
        let up = self.up[usize::from(destination)];
        let mut failed = false;
        let mut outcomes = Vec::new();
        for (index, sequence) in batch.into_iter().enumerate() {
            let outcome = match (kind + index * 5) % 8 {
                _ if destination == 0 && failed => Outcome::retry("behind one that failed"),
                0 | 1 if !up => Outcome::retry("no answer"),
                _ if !up => Outcome::unavailable("down"),
                0 => Outcome::retry("no"),
                1 => Outcome::dead("never"),
                2 => Outcome::Retry { error: String::new(), after: Some(Duration::ZERO) },
                3 => Outcome::unavailable("this one not"),
                _ => Outcome::Delivered,
            };
            failed |= outcome != Outcome::Delivered;
            if outcome == Outcome::Delivered && !self.acknowledged.contains(&sequence) {
                self.acknowledged.push(sequence);
            }
            outcomes.push((sequence, outcome));
        }
        self.lanes.published(outcomes, self.now);
        self.note_skipped();
    }

    /// Outcomes are written now, or on the way for a while.
    fn begin_settle(&mut self, written: bool) {
        if self.settling.is_some() {
            return;
        }
        let batch = self.lanes.next_settlements(3);
        if written {
            self.write_outcomes(&batch);
        }
        self.settling = Some(Settling { batch, epoch: self.epoch, written });
    }

    fn write_outcomes(&mut self, batch: &[Unsettled]) {
        for unsettled in batch {
            let settlement = &unsettled.settlement;
            let Some(stored) = self.table.get_mut(&settlement.sequence) else { continue };
            if stored.is_done() {
                continue;
            }
            stored.attempts = settlement.attempts;
            stored.free = false;
            stored.stand = match &settlement.verdict {
                Verdict::Sent => Stand::Sent,
                Verdict::Retry { replay: true, .. } | Verdict::Suspect { replay: true, .. } => {
                    Stand::Waits(Wait::Replay)
                }
                Verdict::Retry { .. } => Stand::Waits(Wait::Retry),
                Verdict::Dead { .. } => Stand::Dead,
                Verdict::Held { .. } => Stand::Waits(Wait::Held),
                Verdict::Suspect { .. } => Stand::Waits(Wait::Suspect),
                Verdict::Unclaimed => Stand::Fresh,
            };
            // The operator of this world discards what parks a lane at once.
            if matches!(settlement.verdict, Verdict::Dead { parked: Some(_), .. }) {
                self.discard(settlement.sequence);
            }
        }
    }

    fn end_settle(&mut self) {
        let Some(Settling { batch, epoch, written }) = self.settling.take() else { return };
        let refused = !written && epoch != self.epoch;
        if !written && !refused {
            self.write_outcomes(&batch);
        }
        let sequences = batch.iter().map(|unsettled| unsettled.settlement.sequence);
        if epoch != self.epoch {
            // As the driver does it: what was in hand then is forgotten.
        } else if refused {
            self.lanes.refused(sequences);
        } else {
            self.lanes.settled(sequences, now());
        }
    }

    /// An operator discards a parked event: its first held follower is set free.
    fn discard(&mut self, parked: i64) {
        let key = self.table[&parked].key;
        let held =
            |stored: &&mut Stored| stored.key == key && stored.stand == Stand::Waits(Wait::Held);
        if let Some(first) = self.table.values_mut().find(held) {
            first.free = true;
        }
    }

    fn save_mark(&mut self) {
        let mark = self.lanes.mark(self.cursor);
        let mark = self.source.behind_mark().map_or(mark, |behind| mark.min(behind));
        match self.owner {
            Owner::Us => self.mark = mark,
            Owner::Leaving(first) => self.mark = mark.min(first),
            Owner::Nobody | Owner::Other => {}
        }
    }

    /// The shard goes to another relay: in good order, or because its lease has run out.
    fn give_away(&mut self, in_order: bool) {
        match self.owner {
            Owner::Us if in_order => {
                self.save_mark();
                self.owner = Owner::Leaving(self.mark);
                self.lanes.close_shard(0);
            }
            Owner::Leaving(_) if in_order => {
                if !self.lanes.busy_shards().contains(&0) {
                    self.save_mark();
                    self.lose(Owner::Other);
                }
            }
            Owner::Us | Owner::Leaving(_) => self.lose(Owner::Nobody),
            Owner::Nobody | Owner::Other => {}
        }
    }

    fn lose(&mut self, owner: Owner) {
        self.owner = owner;
        self.lanes.lose_shards(&BTreeSet::from([0]));
        self.source.reset();
        for destination in 0..self.lanes.destinations() {
            self.lanes.caught_up(destination);
        }
    }

    /// Another relay has the shard, and delivers or fails the next event of a key.
    fn other(&mut self, pick: usize) {
        if !matches!(self.owner, Owner::Nobody | Owner::Other) {
            return;
        }
        if self.owner == Owner::Nobody {
            self.epoch += 1;
            self.owner = Owner::Other;
        }
        let of_lane = |(_, stored): &(&i64, &Stored)| {
            (self.global || usize::from(stored.key) == pick % 3)
                && !stored.is_done()
                && (!stored.is_due() || stored.blocks() || stored.free)
        };
        let mut lane: Vec<i64> =
            self.table.iter().filter(of_lane).map(|(sequence, _)| *sequence).collect();
        // What blocks the lane is tried before anything else of it.
        lane.sort_by_key(|sequence| (!self.table[sequence].blocks(), *sequence));
        let Some((&head, followers)) = lane.split_first() else { return };
        let held = if pick.is_multiple_of(4) && !self.global { pick / 4 % 3 } else { 0 };
        let stand = if pick.is_multiple_of(4) { Stand::Waits(Wait::Retry) } else { Stand::Sent };
        if stand == Stand::Sent && !self.acknowledged.contains(&head) {
            self.acknowledged.push(head);
        }
        let held = followers.iter().take(held).map(|held| (*held, Stand::Waits(Wait::Held)));
        for (sequence, stand) in held.chain([(head, stand)]) {
            if let Some(stored) = self.table.get_mut(&sequence) {
                (stored.stand, stored.free) = (stand, false);
            }
        }
        let first = self.table.iter().find(|(_, stored)| stored.is_ahead());
        self.mark = first.map_or(self.table.len() as i64, |(first, _)| first - 1);
    }

    /// The shard is free and ours again, as the driver takes it.
    fn acquire(&mut self) {
        let suspect_to = match self.owner {
            Owner::Other => None,
            Owner::Nobody => self.table.keys().last().copied(),
            Owner::Us | Owner::Leaving(_) => return,
        };
        if self.polling() || self.lanes.busy_shards().contains(&0) {
            return;
        }
        self.epoch += 1;
        self.take_over(suspect_to);
    }

    /// The relay dies and another takes over: from the mark, with what the table says is blocked.
    fn crash(&mut self) {
        self.lanes = Lanes::new(two(self.on_dead, self.global));
        self.source = Source::new(&Config::default(), now());
        self.lanes.pause(&self.paused_keys, &self.paused, self.now);
        self.reads.clear();
        self.previous.clear();
        self.look = None;
        self.in_flight.clear();
        self.settling = None;
        self.epoch += 1;
        self.take_over(self.table.keys().last().copied());
    }

    fn take_over(&mut self, suspect_to: Option<i64>) {
        self.owner = Owner::Us;
        self.read_once = false;
        self.cursor = self.mark;
        self.lanes.open_shard(0, suspect_to);
        for lane in self.blocked() {
            self.lanes.block(0, &lane);
        }
        self.source.rewind(page(self.mark, true).position);
    }

    /// What the table says is blocked.
    fn blocked(&self) -> Vec<Blocked> {
        let mut blocked: BTreeMap<(u8, i64), bool> = BTreeMap::new();
        for stored in self.table.values() {
            let lane = if self.global { 0 } else { i64::from(stored.key) };
            if let Stand::Waits(wait) = stored.stand
                && wait != Wait::Replay
            {
                *blocked.entry((stored.key % 2, lane)).or_default() |= wait != Wait::Held;
            }
        }
        let blocked = blocked.into_iter().map(|((destination, lane), waiting)| Blocked {
            destination: NAMES[usize::from(destination)].to_owned(),
            key: Key(lane),
            waiting,
            parked: false,
        });
        blocked.collect()
    }

    /// Whether what blocks lanes is still in the table is asked, and the answer comes later.
    fn reconcile(&mut self) {
        match self.look.take() {
            Some((read, blocked)) => {
                self.lanes.reconcile(read, &blocked);
                self.lanes.read_merged(read);
            }
            None if self.owner == Owner::Us => {
                self.look = Some((self.lanes.read_began(), self.blocked()));
            }
            None => {}
        }
    }

    /// An operator pauses a key or a destination, or lets it go on.
    fn pause(&mut self, pick: usize) {
        match pick % 5 {
            destination @ (0 | 1) => toggle(&mut self.paused, NAMES[destination]),
            key => toggle(&mut self.paused_keys, Key(key as i64 - 2)),
        }
        self.lanes.pause(&self.paused_keys, &self.paused, self.now);
        self.note_skipped();
    }

    /// What is counted is what is there.
    fn check_counts(&self) {
        let lanes = &self.lanes;
        let count = |which: &dyn Fn(&Entry) -> bool| {
            lanes.known.values().filter(|entry| which(entry)).count()
        };
        let flies = |entry: &Entry| matches!(entry.state, State::InFlight | State::Orphan);
        assert_eq!(lanes.in_flight, count(&flies), "in flight");
        for (index, of) in (0..).zip(&lanes.destinations) {
            let (name, here) = (&of.rules.name, |entry: &Entry| entry.destination == index);
            let waits = |entry: &Entry| here(entry) && entry.state == State::Waiting;
            assert_eq!(of.in_flight, count(&|e| here(e) && flies(e)), "in flight to {name}");
            assert_eq!(of.waiting_hot, count(&|e| waits(e) && e.hot), "hot for {name}");
            assert_eq!(of.waiting_cold, count(&|e| waits(e) && !e.hot), "cold for {name}");
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
            assert_eq!(lane.holds as usize, holds, "holds of {id:?}");
            assert_eq!(lane.in_flight as usize, count(&|e| of_it(e) && under_way(e)), "{id:?}");
        }
    }

    /// Lets everything end well, and checks that nothing is left.
    fn finish(&mut self) {
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
                0 => self.begin_read(Origin::Cold),
                1 => self.begin_read(Origin::Due),
                _ => self.begin_catch_up(turn / 3),
            }
            self.begin_release();
            while !self.reads.is_empty() {
                self.merge_read(0);
            }
            self.dispatch(10);
            while !self.in_flight.is_empty() {
                self.outcome(0, 7);
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

fn act(world: &mut World, action: u8, pick: u8) {
    let pick = usize::from(pick);
    match action % 27 {
        0 | 1 => world.write((pick % 3) as u8, pick % 16 > 13),
        2 | 3 => world.begin_read(Origin::Cold),
        4 => world.begin_read(Origin::Due),
        5 => world.begin_release(),
        6 => world.begin_hot(pick),
        7 | 8 => world.merge_read(pick),
        9 | 10 => world.dispatch(1 + pick % 4),
        11 | 12 => world.outcome(pick, pick / 7),
        13 => world.begin_settle(pick % 3 > 0),
        14 => world.end_settle(),
        15 | 16 => world.begin_catch_up(pick),
        17 => world.now += Duration::from_millis(50),
        20 | 21 => world.pause(pick),
        22 => world.give_away(pick % 4 > 0),
        23 => world.other(pick),
        24 => world.acquire(),
        25 => world.reconcile(),
        26 => world.replay(pick),
        18 => world.up[pick % 2] = pick % 3 > 0,
        _ if pick < 32 => world.crash(),
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_schedule_keeps_order_and_loses_nothing(
        actions in prop::collection::vec((any::<u8>(), any::<u8>()), 1..300),
        park in any::<bool>(),
        global in any::<bool>(),
    ) {
        let mut world = World::new(if park { OnDead::Park } else { OnDead::Skip }, global);
        for (action, pick) in actions {
            act(&mut world, action, pick);
            world.check_counts();
        }
        world.finish();
    }
}
