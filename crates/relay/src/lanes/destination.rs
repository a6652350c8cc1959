//! One destination: what is ready for it, what its breaker says, and whether it is fed by a cursor of
//! its own.

use std::{
    collections::{HashSet, VecDeque},
    ops::Range,
    time::{Duration, Instant},
};

use posthaste_core::{
    Envelope, Key,
    store::{Fetched, Wait},
};

use super::{
    LaneId, Lanes, Origin, Ready, State,
    breaker::{Breaker, Undecided},
};
use crate::budget::Share;

/// What lanes must know of a destination.
#[derive(Debug, Clone)]
pub struct DestinationRules {
    /// Its name.
    pub name: String,
    /// Several events of one key may fly together: it accepts a prefix of a batch, or all of it.
    pub together: bool,
}

/// Where an event goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routed {
    /// Index of the destination.
    pub destination: u16,
    /// The topic there, unless it is the event's own affair.
    pub topic: Option<String>,
}

/// Finds the route of an event, or says why it has none.
pub type Routing = Box<dyn Fn(&Envelope) -> Result<Routed, String> + Send>;

#[derive(Debug)]
pub(super) struct Destination {
    pub(super) rules: DestinationRules,
    /// What can go, by [`Queue`].
    ready: [VecDeque<Ready>; 3],
    /// How many events wait, by [`Queue`]: those behind the head of their lane, too.
    waiting: [usize; 3],
    /// Turns of 2 hot and 1 cold.
    turn: u8,
    /// How many others went since the last replay.
    since_replay: u8,
    pub(super) in_flight: usize,
    /// What its events take of the memory.
    pub(super) share: Share,
    /// What those of them take that fell due or were read back. It is counted apart, so that a backlog keeps no
    /// retry from being read.
    pub(super) due_share: Share,
    /// How many events were handed to it so far: numbers the dispatches.
    pub(super) started: u64,
    pub(super) breaker: Breaker,
    pub(super) undecided: Vec<Undecided>,
    /// Events of it were passed over: they come through a cursor of its own, until that has caught
    /// up.
    pub(super) behind: bool,
    /// Where that cursor stands: it brings all events after this one.
    own_cursor: i64,
    /// The keys of the events that were passed over since it fell behind.
    passed: Passed,
    /// Lanes whose held events are to be read back.
    pub(super) releases: VecDeque<LaneId>,
    /// The first event that was passed over since the driver last asked.
    pub(super) skipped: Option<i64>,
    /// Due events of it were left in the table, because it takes nothing.
    pub(super) left_due: bool,
    /// The last walk over what is due left events of it in the table, though it takes events: there was no room for
    /// them, or they come in their place.
    pub(super) due_waits: bool,
    /// When the last event comes again that was written back because it could not go (row leases).
    lined_up: Option<Instant>,
}

/// Events that cannot go come again so far apart. However many they are, claiming them and writing them back
/// leaves room for those of other destinations.
const APART: Duration = Duration::from_micros(500);

/// No later than this.
const LAST_IN_LINE: Duration = Duration::from_mins(10);

/// Keys whose events were passed over: later events of theirs must not overtake them. Those of other keys
/// may.
#[derive(Debug, Default)]
struct Passed {
    keys: HashSet<Key>,
    /// There were too many to be remembered.
    too_many: bool,
}

/// This part of what may wait for a destination is kept for events that overtake its backlog.
const OVERTAKING: usize = 4;

/// So many sixteenths of a destination's share of the memory are kept for what falls due or is read back. Replays and
/// held events leave half of that to retries.
const DUE_PART: usize = 2;

/// How much of a backlog may wait in memory, given a limit for all that waits.
pub fn backlog_limit(limit: usize) -> usize {
    limit - limit / OVERTAKING
}

/// Most keys that are remembered as passed over: a few MB.
const PASSED: usize = 120_000;

/// In which line of its destination an event waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    /// It came over the hot path.
    Hot,
    /// A read brought it.
    Cold,
    /// An operator sends it again: it lets the others go first.
    Replay,
}

impl Queue {
    pub(super) const ALL: [Self; 3] = [Self::Hot, Self::Cold, Self::Replay];
}

/// While others are ready, a replay goes after so many of them.
const REPLAYS_AFTER: u8 = 7;

/// What polls can bring to destinations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feed {
    /// Some of them take events.
    Flows,
    /// None does, but one can be tried.
    Probes,
    /// None does.
    Stands,
}

/// What becomes of a row that is offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    Admit,
    /// Alone, to see whether the destination is back.
    Probe,
    /// Passed over: its destination's own cursor brings it.
    Skip,
    /// Written back for later, or nobody would find it before its time.
    Postpone,
    /// It stays in the table as it is: held, or due.
    Leave,
    /// Its key is paused: marked held, and read back when the key goes on.
    Hold,
}

impl Destination {
    pub(super) fn new(rules: DestinationRules) -> Self {
        Self {
            rules,
            ready: Default::default(),
            waiting: [0; 3],
            turn: 0,
            since_replay: 0,
            in_flight: 0,
            share: Share::default(),
            due_share: Share::default(),
            started: 0,
            breaker: Breaker::default(),
            undecided: Vec::new(),
            behind: false,
            own_cursor: 0,
            passed: Passed::default(),
            releases: VecDeque::new(),
            skipped: None,
            left_due: false,
            due_waits: false,
            lined_up: None,
        }
    }

    /// How long an event is written back for that is to come again after this time: behind those that were
    /// written back before.
    pub(super) fn line_up(&mut self, after: Duration, now: Instant) -> Duration {
        let after = match self.lined_up {
            Some(last) => after.max((last + APART).saturating_duration_since(now)),
            None => after,
        };
        let after = after.min(LAST_IN_LINE);
        self.lined_up = Some(now + after);
        after
    }

    pub(super) fn has_ready(&self) -> bool {
        self.ready.iter().any(|queue| !queue.is_empty())
    }

    /// Two from the hot queue, then one from the cold, so that neither starves. Replays go when nothing
    /// else is ready, and now and then before.
    pub(super) fn next_ready(&mut self) -> Option<(Queue, Ready)> {
        if self.since_replay >= REPLAYS_AFTER
            && let Some(replay) = self.next_of(Queue::Replay)
        {
            return Some(replay);
        }
        let prefer_hot = self.turn < 2;
        self.turn = (self.turn + 1) % 3;
        let order = if prefer_hot { [Queue::Hot, Queue::Cold] } else { [Queue::Cold, Queue::Hot] };
        let live = order.into_iter().find_map(|queue| self.next_of(queue));
        live.or_else(|| self.next_of(Queue::Replay))
    }

    fn next_of(&mut self, queue: Queue) -> Option<(Queue, Ready)> {
        let ready = self.queue(queue).pop_front()?;
        self.since_replay = match queue {
            Queue::Replay => 0,
            Queue::Hot | Queue::Cold => self.since_replay.saturating_add(1),
        };
        Some((queue, ready))
    }

    pub(super) fn queue(&mut self, queue: Queue) -> &mut VecDeque<Ready> {
        &mut self.ready[queue as usize]
    }

    /// How many events wait in this line.
    pub(super) fn waiting(&self, queue: Queue) -> usize {
        self.waiting[queue as usize]
    }

    /// How many events wait.
    pub(super) fn all_waiting(&self) -> usize {
        self.waiting.iter().sum()
    }

    pub(super) fn count_waiting(&mut self, queue: Queue, by: isize) {
        let count = &mut self.waiting[queue as usize];
        *count = count.saturating_add_signed(by);
    }

    /// Nothing waits any more.
    pub(super) fn clear(&mut self) {
        self.ready.iter_mut().for_each(VecDeque::clear);
        self.waiting = [0; 3];
    }

    /// This event is passed over.
    pub(super) fn skip(&mut self, sequence: i64, key: Option<Key>) {
        let before = sequence - 1;
        self.own_cursor = if self.behind { self.own_cursor.min(before) } else { before };
        self.behind = true;
        if let Some(key) = key.filter(|_| !self.passed.too_many) {
            self.passed.keys.insert(key);
            if self.passed.keys.len() > PASSED {
                self.passed = Passed { keys: HashSet::new(), too_many: true };
            }
        }
        self.skipped = Some(self.skipped.map_or(sequence, |known| known.min(sequence)));
    }

    /// Its own cursor brings this event, in the order of its key.
    pub(super) fn brings(&self, sequence: i64) -> bool {
        self.behind && sequence > self.own_cursor
    }
}

impl Passed {
    /// Whether no event of this key was passed over.
    fn lets(&self, key: Option<Key>) -> bool {
        key.is_none_or(|key| !self.too_many && !self.keys.contains(&key))
    }
}

impl Lanes {
    /// How many destinations there are, with the place where events go that have none.
    pub fn destinations(&self) -> u16 {
        self.destinations.len() as u16
    }

    /// Those of them that are configured.
    pub(super) fn configured(&self) -> Range<u16> {
        0..self.rules.destinations.len() as u16
    }

    /// The destination of this name; one that is no longer configured gets a number, too.
    pub(super) fn destination_of(&mut self, name: &str) -> u16 {
        let known = self.destinations.iter().position(|known| known.rules.name == name);
        let index = known.unwrap_or_else(|| {
            let rules = DestinationRules { name: name.to_owned(), together: false };
            self.destinations.push(Destination::new(rules));
            self.destinations.len() - 1
        });
        index as u16
    }

    pub(super) fn name_of(&self, destination: u16) -> String {
        self.destinations[usize::from(destination)].rules.name.clone()
    }

    pub(super) fn at(&mut self, destination: u16) -> &mut Destination {
        &mut self.destinations[usize::from(destination)]
    }

    /// Destinations that were passed over since this was last asked, with the first event of each.
    pub fn take_skipped(&mut self) -> Vec<(u16, i64)> {
        self.destinations
            .iter_mut()
            .enumerate()
            .filter_map(|(index, destination)| Some((index as u16, destination.skipped.take()?)))
            .collect()
    }

    /// The destination is behind, and its own cursor stands here.
    pub fn set_own_cursor(&mut self, destination: u16, sequence: i64) {
        self.at(destination).own_cursor = sequence;
    }

    /// The destination's own cursor has caught up: it is fed like the others again.
    pub fn caught_up(&mut self, destination: u16) {
        let of = self.at(destination);
        of.behind = false;
        of.passed = Passed::default();
    }

    /// The destination's own cursor may read on: how many events there is room for.
    pub fn room_behind(&self, destination: u16, limit: usize) -> usize {
        let destination = &self.destinations[usize::from(destination)];
        if !destination.breaker.is_closed() || self.has_its_share(destination) {
            return 0;
        }
        backlog_limit(limit).saturating_sub(destination.waiting(Queue::Cold))
    }

    pub(super) fn has_its_share(&self, destination: &Destination) -> bool {
        let (budget, destinations) = (&self.rules.budget, self.rules.destinations.len());
        budget.is_shared_out(16 - DUE_PART, &destination.share, destinations)
    }

    /// One of several destinations has enough of what falls due: the others have room for theirs.
    pub(super) fn has_its_due(&self, destination: u16, wait: Option<Wait>) -> bool {
        let destinations = self.rules.destinations.len();
        if destinations <= 1 || self.rules.global {
            return false;
        }
        let of = &self.destinations[usize::from(destination)];
        let full = of.waiting(Queue::Cold) >= self.rules.cold_queue;
        let (part, full) = match wait {
            Some(Wait::Replay) => (DUE_PART / 2, false),
            Some(Wait::Held) => (DUE_PART / 2, full),
            _ => (DUE_PART, full),
        };
        full || self.rules.budget.is_shared_out(part, &of.due_share, destinations)
    }

    /// Destinations whose retries could not go now: a read of what is due leaves them out.
    pub fn left_out(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        if self.rules.global {
            return names;
        }
        for destination in self.configured() {
            let of = &self.destinations[usize::from(destination)];
            let takes = of.breaker.is_closed() || of.breaker.wants_probe();
            if takes && !self.has_its_due(destination, Some(Wait::Retry)) {
                continue;
            }
            names.push(of.rules.name.clone());
            self.leave_due(destination, Some(Wait::Retry));
        }
        names
    }

    /// Whether any destination takes what a poll reads. When none does, reading on is for nothing.
    pub fn feed(&self) -> Feed {
        let fed =
            || self.destinations[..self.rules.destinations.len()].iter().filter(|d| !d.behind);
        if self.rules.global || fed().any(|d| d.breaker.is_closed()) {
            Feed::Flows
        } else if fed().any(|d| d.breaker.wants_probe()) {
            Feed::Probes
        } else {
            Feed::Stands
        }
    }

    /// What is to become of a row of this destination.
    pub(super) fn gate(&self, destination: u16, origin: Origin, row: &Fetched) -> Gate {
        let of = &self.destinations[usize::from(destination)];
        if self.rules.global {
            return Gate::Admit;
        }
        if let Origin::CatchUp(only) = origin
            && only != destination
        {
            return Gate::Leave;
        }
        // The table brings a delayed event again as long as nothing is written of it. It is never passed over:
        // that would set the destination's own cursor back to it, perhaps by millions of events.
        let delayed = origin == Origin::Due && row.wait.is_none();
        if delayed && of.brings(row.sequence) {
            return Gate::Leave;
        }
        // A claimed row stays claimed until something is written of it.
        let (passed_over, left) = if self.rules.unordered {
            (Gate::Postpone, Gate::Postpone)
        } else {
            (Gate::Skip, Gate::Leave)
        };
        if of.breaker.is_closed() {
            let several = self.rules.destinations.len() > 1;
            let late = row.sequence <= self.cursor;
            let limit = self.rules.cold_queue;
            let limit = if late { backlog_limit(limit) } else { limit };
            return match origin {
                // A mark of an operator takes no room.
                Origin::Due if row.wait == Some(Wait::Held) => Gate::Admit,
                Origin::Due if self.has_its_due(destination, row.wait) => left,
                Origin::Cold | Origin::Hot if of.behind && !self.overtakes(of, row) => passed_over,
                Origin::Cold if several && !of.behind && of.waiting(Queue::Cold) >= limit => {
                    passed_over
                }
                Origin::Cold | Origin::Hot if several && self.has_its_share(of) => passed_over,
                _ => Gate::Admit,
            };
        }
        let probes = of.breaker.wants_probe();
        match origin {
            Origin::CatchUp(_) | Origin::Held | Origin::Due if probes => Gate::Probe,
            // Nothing is written of it yet that blocks its lane, or an operator has set it free.
            Origin::Due if matches!(row.wait, None | Some(Wait::Held)) => Gate::Postpone,
            Origin::Due => left,
            Origin::CatchUp(_) | Origin::Held => Gate::Leave,
            Origin::Cold | Origin::Hot if probes && !of.behind => Gate::Probe,
            Origin::Cold | Origin::Hot => passed_over,
        }
    }

    /// Whether this event may go before what was passed over: nothing of its key was, and there is room. Late
    /// ones do not: many of them are what others would have to wait for.
    fn overtakes(&self, of: &Destination, row: &Fetched) -> bool {
        let room = of.waiting(Queue::Hot) + of.waiting(Queue::Cold) < self.rules.cold_queue;
        room && row.sequence > self.cursor && of.passed.lets(row.key)
    }

    /// Forgets everything that waits for this destination; its own cursor, or the table, brings it
    /// back.
    pub(super) fn forget_destination(&mut self, destination: u16, now: Instant) {
        let mut waiting: Vec<i64> = self
            .known
            .iter()
            .filter(|(_, entry)| {
                entry.destination == destination
                    && matches!(entry.state, State::Waiting | State::Suspect)
            })
            .map(|(sequence, _)| *sequence)
            .collect();
        waiting.sort_unstable();
        self.careful.forget(|sequence| waiting.binary_search(&sequence).is_err());
        self.at(destination).clear();
        for lane in self.lanes.iter_mut().filter(|(id, _)| id.destination == destination) {
            lane.1.queue.clear();
            lane.1.scheduled = false;
        }
        for sequence in waiting {
            self.put_back(sequence, now);
        }
    }
}
