//! Breakers: an outage is not poison, and poison is not an outage.
//!
//! A failure alone says little. It waits, undecided, with its lane, for what the others say:
//!
//! ```text
//!  failure ──► undecided ──┬─ an event that was handed over later is accepted ──► its own: counted
//!                          ├─ many failures, several keys, no success between ─► an outage: open
//!                          ├─ nothing else is under way, and it could not be reached, or no answer
//!                          │  came in time ──► an outage: open
//!                          └─ nothing else is under way ──► its own: counted
//! ```
//!
//! A timeout alone is its event's own when one that was handed over later has been taken meanwhile, or
//! since its last timeout (`hung.rs`). An event that was refused while others were taken says nothing of
//! its destination any more when it is refused again, unless very many are. One to which the destination named a time comes
//! again at that time, and no attempt is counted.
//!
//! While a breaker is open nothing goes to its destination and no attempt is counted. What was under
//! way is put back, what comes is passed over, and nothing of it stays in memory. After a pause,
//! longer each time, one event goes alone; probes go round the keys. One that has no answer after a
//! while stays under way and lets the next key try. When all keys of the first page were tried, the next
//! pages are looked through for one that was not: a key with many events hides no other. If there is none, the
//! key goes that was tried longest ago, wherever its first event was met. When one is accepted, the
//! destination's own cursor reads on from the first event that was passed over.
//!
//! # When things fail
//!
//! A relay that stops or dies meanwhile leaves a mark before the first event that was passed over, so
//! the next owner finds all of them.

use std::{
    collections::{BTreeSet, HashSet},
    time::{Duration, Instant},
};

use posthaste_core::{Key, store::Fetched, transport::Outcome};

use super::{
    LaneId, Lanes, Offered, Origin, State, UNAVAILABLE_WAIT, destination::Destination, hung::Hung,
    lane::Block,
};

/// So many keys that could not be reached, one after the other, are an outage.
const UNREACHED_KEYS: usize = 2;

/// So many failures, one after the other and not all of one key, are one, too. Of a destination that
/// refuses every fifth event, eight in a row come once in 400,000.
const FAILURES_IN_A_ROW: u32 = 8;

/// Pause before the first probe; it doubles with each that fails.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Longest pause between probes, and how long one is waited for before another may go.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// So many keys are remembered as tried.
const PROBED_KEYS: usize = 100;

/// So many keys whose events were refused before, and are again without a success between, are no accident either:
/// the next ones are failures like any other.
const REFUSED_AGAIN: usize = 16;

/// Most events that are remembered as refused.
const MOST_REFUSED: usize = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Position {
    #[default]
    Closed,
    /// Until then nothing is sent.
    Open(Instant),
    /// One event may go, or is under way.
    HalfOpen(Option<Probe>),
}

/// An event that goes alone to see whether its destination is back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Probe {
    sequence: i64,
    since: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Breaker {
    position: Position,
    /// Probes that failed since it opened.
    failures: u32,
    /// The keys of probes since it opened, the last one at the end: the next one is another's.
    probed: Vec<i64>,
    /// A retry or a held event whose key was tried before has made way for another since the last probe.
    made_way: bool,
    /// How many events had been handed over when it opened: what comes later is a probe.
    opened_after: u64,
    /// Timeouts that were not counted.
    hung: Hung,
    /// Events that were refused while others were taken, since it was closed.
    refused: BTreeSet<i64>,
    /// Keys of these that were refused again since the last success.
    refused_again: BTreeSet<i64>,
    /// The last failure since the last success for which the destination named a time.
    put_off: Option<Outcome>,
    /// When a held lane is looked for again that has an event to try.
    look_at: Option<Instant>,
    /// Failures since the last success.
    in_a_row: u32,
    /// Keys of these.
    failed: BTreeSet<i64>,
    /// Those of them that could not be reached.
    unreached: BTreeSet<i64>,
    opened_at: Option<Instant>,
    error: String,
    /// An operator has paused the destination, since then: nothing goes there and nothing is tried.
    pub(super) paused: Option<Instant>,
}

/// How a breaker stands, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BreakerState {
    /// The destination.
    pub destination: String,
    /// `closed`, `open` or `half_open`.
    pub state: &'static str,
    /// Since when it has not been closed.
    pub since: Option<Instant>,
    /// Why it opened, or why the last probe failed.
    pub error: Option<String>,
    /// Events were passed over and come through a cursor of its own.
    pub behind: bool,
    /// An operator has paused it.
    pub paused: bool,
}

/// What came of a page in which a key was looked for that its destination was not tried with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probed {
    /// No event of it goes there.
    Nothing,
    /// All its keys were tried, or cannot go now.
    OnlyKnown,
    /// One of its events goes.
    Tried,
}

/// A failure that may be its event's or its destination's.
#[derive(Debug)]
pub(super) struct Undecided {
    pub(super) sequence: i64,
    /// What failed with it because it came behind it in the same batch and lane has no outcome of its
    /// own.
    outcome: Option<Outcome>,
    /// The last dispatch that had begun when it failed.
    at: u64,
}

impl Undecided {
    fn is_timeout(&self) -> bool {
        matches!(self.outcome, Some(Outcome::TimedOut { .. }))
    }
}

impl Breaker {
    /// The destination takes events.
    pub(super) fn is_closed(&self) -> bool {
        self.position == Position::Closed && self.paused.is_none()
    }

    pub(super) fn wants_probe(&self) -> bool {
        self.position == Position::HalfOpen(None) && self.paused.is_none()
    }

    /// Whether this event may be handed over now.
    pub(super) fn lets(&self, sequence: i64) -> bool {
        self.is_closed() || (self.paused.is_none() && self.probe() == Some(sequence))
    }

    /// One event may go.
    fn half_open(&mut self) {
        self.position = Position::HalfOpen(None);
        self.look_at = None;
    }

    /// A lane that was read back had nothing to try.
    pub(super) fn look_again(&mut self) {
        self.look_at = None;
    }

    /// The operator lets it go on.
    pub(super) fn resume(&mut self) {
        self.paused = None;
        self.look_at = None;
        self.made_way = true;
    }

    fn probe(&self) -> Option<i64> {
        match self.position {
            Position::HalfOpen(probe) => Some(probe?.sequence),
            Position::Closed | Position::Open(_) => None,
        }
    }

    /// Whether the event of this dispatch was to see whether the destination is back.
    fn is_probe(&self, dispatch: u64) -> bool {
        self.position != Position::Closed && dispatch > self.opened_after
    }

    /// How long ago this key was tried: the lowest is the next. Keys that never were come first.
    fn turn(&self, key: i64) -> Option<usize> {
        self.probed.iter().position(|probed| *probed == key)
    }

    /// A retry or a held event would be tried whose key was tried before: another goes first, if there is one.
    pub(super) fn makes_way(&mut self, key: i64) -> bool {
        !self.made_way && self.turn(key).is_some() && {
            self.made_way = true;
            true
        }
    }

    /// What failed since the last success is no accident of single events.
    fn is_outage(&self) -> bool {
        self.unreached.len() >= UNREACHED_KEYS
            || (self.in_a_row >= FAILURES_IN_A_ROW && self.failed.len() >= 2)
    }

    fn forget_failures(&mut self) {
        self.in_a_row = 0;
        self.failed.clear();
        self.refused_again.clear();
        self.unreached.clear();
        self.put_off = None;
    }

    /// An event of this key was not taken.
    fn fails(&mut self, key: i64) {
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.failed.insert(key);
    }

    /// Others were taken, and this event was not.
    fn remember_refused(&mut self, sequence: i64) {
        self.refused.insert(sequence);
        if self.refused.len() > MOST_REFUSED {
            self.refused.pop_first();
        }
    }

    /// How long an event that cannot go now is written back for, and why.
    pub(super) fn wait(&self, now: Instant) -> (Duration, String) {
        let after = match self.position {
            Position::Open(until) => until.saturating_duration_since(now) + FIRST_PAUSE,
            // It made way for another, and may go after it.
            Position::HalfOpen(None) => FIRST_PAUSE,
            Position::HalfOpen(Some(_)) => self.pause(),
            Position::Closed => UNAVAILABLE_WAIT,
        };
        let why = match self.error.as_str() {
            "" => "its destination is busy".to_owned(),
            error => format!("its destination takes nothing: {error}"),
        };
        (after, why)
    }

    /// How long until the next probe.
    fn pause(&self) -> Duration {
        (FIRST_PAUSE * 2_u32.saturating_pow(self.failures)).min(LONGEST_PAUSE)
    }
}

impl Lanes {
    /// Lets breakers whose pause is over try one event. Gives when the next one is due.
    pub fn wake_breakers(&mut self, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        let mut look = Vec::new();
        for (index, destination) in (0_u16..).zip(&mut self.destinations) {
            let breaker = &mut destination.breaker;
            // The probe was lost with its shard, put back, or died before it could be sent.
            if breaker.probe().is_some_and(|probe| !self.known.contains_key(&probe)) {
                breaker.half_open();
            }
            let flies = |probe: &Probe| {
                self.known.get(&probe.sequence).is_some_and(|entry| entry.state == State::InFlight)
            };
            let at = match breaker.position {
                _ if breaker.paused.is_some() => continue,
                Position::Open(until) => until,
                Position::HalfOpen(None) => breaker.look_at.unwrap_or(now),
                Position::HalfOpen(Some(probe)) if flies(&probe) => probe.since + LONGEST_PAUSE,
                Position::Closed | Position::HalfOpen(Some(_)) => continue,
            };
            let mut again = at;
            if now >= at {
                // It hangs. Perhaps it is the event: another one may go.
                breaker.failures += u32::from(breaker.probe().is_some());
                again = now + LONGEST_PAUSE;
                breaker.position = Position::HalfOpen(None);
                breaker.look_at = Some(again);
                look.push(index);
            }
            next = Some(next.map_or(again, |known| known.min(again)));
        }
        for destination in look {
            let at = self.release_for_probe(destination, now);
            next = at.map_or(next, |at| Some(next.map_or(at, |known| known.min(at))));
        }
        for of in &mut self.destinations {
            let takes = of.breaker.is_closed() || of.breaker.wants_probe();
            self.due_again |= takes && std::mem::take(&mut of.left_due);
        }
        next
    }

    /// Perhaps only held events are left to try the destination with: one lane is read back. One whose key was tried
    /// before makes way once for what other reads bring, which take longer. Gives when to look again then.
    fn release_for_probe(&mut self, destination: u16, now: Instant) -> Option<Instant> {
        let breaker = &self.destinations[usize::from(destination)].breaker;
        let lanes = self.lanes.iter().filter(|(id, lane)| {
            id.destination == destination
                && lane.block == Block::Releasing
                && !lane.busy()
                && self.shards.contains_key(&lane.shard)
                && !self.is_paused(Some(id.key))
        });
        let (&id, _) = lanes.min_by_key(|(id, _)| (breaker.turn(id.key.0), id.key))?;
        let breaker = &mut self.at(destination).breaker;
        if breaker.makes_way(id.key.0) {
            breaker.look_at = Some(now + breaker.pause());
            return breaker.look_at;
        }
        self.request_release(id);
        None
    }

    /// No event was found to try this destination with: a pause, then again.
    fn no_probe_found(&mut self, destination: u16, now: Instant) {
        let breaker = &mut self.at(destination).breaker;
        if breaker.wants_probe() {
            breaker.position = Position::Open(now + breaker.pause());
        }
    }

    /// A destination that has been tried again and does not answer: its events wait for who knows how
    /// long.
    pub fn is_down(&self, destination: u16) -> bool {
        let breaker = &self.destinations[usize::from(destination)].breaker;
        breaker.paused.is_some() || (!breaker.is_closed() && breaker.failures > 0)
    }

    /// The cursor of a destination that is behind has read these. Gives whether all that are its own
    /// are in hand now, so that the cursor may move on.
    pub fn catch_up(&mut self, destination: u16, rows: Vec<Fetched>, now: Instant) -> bool {
        if self.wants_probe(destination) {
            let any = self.probe(destination, rows, now);
            if any {
                // Unless one of them goes now, all are in hand in some way: nothing to try it with.
                self.no_probe_found(destination, now);
            }
            return !any;
        }
        if !self.at(destination).breaker.is_closed() {
            return false;
        }
        for row in rows {
            let offered = self.offer(row, Origin::CatchUp(destination), None, now);
            self.stats.cold_enqueued += u64::from(offered != Offered::Ignored);
        }
        true
    }

    /// Tries the destination with one of these, of the key whose turn it is.
    /// Gives whether any of them was its.
    fn probe(&mut self, destination: u16, rows: Vec<Fetched>, now: Instant) -> bool {
        let (mut of_it, any) = self.first_of_keys(destination, rows, &HashSet::new());
        let breaker = &self.at(destination).breaker;
        of_it.sort_by_key(|(key, _)| breaker.turn(*key));
        self.probe_with_one_of(destination, of_it, now);
        any
    }

    /// Tries the destination with one of these that is of a key that was not tried, nor met before in this
    /// walk: an earlier event of that one would have to go first. If none can go, the walk has met all of
    /// their keys.
    pub fn probe_new_key(
        &mut self,
        destination: u16,
        rows: Vec<Fetched>,
        walked: &mut HashSet<i64>,
        now: Instant,
    ) -> Probed {
        let (mut of_it, any) = self.first_of_keys(destination, rows, walked);
        let keys: Vec<i64> = of_it.iter().map(|(key, _)| *key).collect();
        let breaker = &self.at(destination).breaker;
        of_it.retain(|(key, _)| breaker.turn(*key).is_none());
        self.probe_with_one_of(destination, of_it, now);
        if !self.wants_probe(destination) {
            return Probed::Tried;
        }
        walked.extend(keys);
        if any { Probed::OnlyKnown } else { Probed::Nothing }
    }

    /// Tries the destination with the first of these that is of this key. Gives whether it goes.
    pub fn probe_key(
        &mut self,
        destination: u16,
        key: i64,
        rows: Vec<Fetched>,
        now: Instant,
    ) -> bool {
        let (mut of_it, _) = self.first_of_keys(destination, rows, &HashSet::new());
        of_it.retain(|(of, _)| *of == key);
        self.probe_with_one_of(destination, of_it, now);
        !self.wants_probe(destination)
    }

    /// The keys of those of these that go to this destination, without those that were met before.
    pub fn new_keys(&self, destination: u16, rows: &[Fetched], met: &HashSet<i64>) -> Vec<i64> {
        let here = rows.iter().filter(|row| self.destination_for(row) == destination);
        let keys = here.map(|row| row.key.map_or(row.sequence, |key| key.0));
        keys.filter(|key| !met.contains(key)).collect()
    }

    /// Whether the destination was tried with this key, and that is remembered.
    pub fn was_tried(&self, destination: u16, key: i64) -> bool {
        self.destinations[usize::from(destination)].breaker.turn(key).is_some()
    }

    /// Whose turn it is of these: the key that was tried longest ago, of those whose next event can go now.
    pub fn next_turn(&self, destination: u16, keys: Vec<i64>) -> Option<i64> {
        let breaker = &self.destinations[usize::from(destination)].breaker;
        let goes = |key: Key| {
            let lane = self.lanes.get(&LaneId { destination, key });
            !self.is_paused(Some(key))
                && lane.is_none_or(|lane| lane.block == Block::Open && !lane.busy())
        };
        keys.into_iter().filter(|key| goes(Key(*key))).min_by_key(|key| breaker.turn(*key))
    }

    fn probe_with_one_of(&mut self, destination: u16, rows: Vec<(i64, Fetched)>, now: Instant) {
        for (_, row) in rows {
            if !self.wants_probe(destination) {
                break;
            }
            self.offer(row, Origin::CatchUp(destination), None, now);
        }
    }

    /// Those of these that go to this destination, and of each key, unless it was met before, only the first:
    /// no other may go. Also gives whether any of them goes there.
    fn first_of_keys(
        &self,
        destination: u16,
        rows: Vec<Fetched>,
        met: &HashSet<i64>,
    ) -> (Vec<(i64, Fetched)>, bool) {
        let mut keys = BTreeSet::new();
        let mut any = false;
        let mut first = Vec::new();
        for mut row in rows {
            if self.route(&mut row) != destination {
                continue;
            }
            any = true;
            let key = row.key.map_or(row.sequence, |key| key.0);
            if !met.contains(&key) && keys.insert(key) {
                first.push((key, row));
            }
        }
        (first, any)
    }

    /// These in the order in which their destinations are tried with them: first what was not tried yet.
    pub fn by_turn(&self, mut rows: Vec<Fetched>) -> Vec<Fetched> {
        rows.sort_by_cached_key(|row| {
            let destination = self.destination_for(row);
            let identity = row.key.map_or(row.sequence, |key| key.0);
            self.destinations[usize::from(destination)].breaker.turn(identity)
        });
        rows
    }

    /// This destination waits for an event to be tried with.
    pub fn wants_probe(&self, destination: u16) -> bool {
        self.destinations[usize::from(destination)].breaker.wants_probe()
    }

    /// How many of them are not closed.
    pub fn breakers_open(&self) -> u16 {
        let open = |of: &&Destination| of.breaker.position != Position::Closed;
        self.destinations.iter().filter(open).count() as u16
    }

    /// How the breakers of the configured destinations stand.
    pub fn breakers(&self) -> Vec<BreakerState> {
        self.destinations[..self.rules.destinations.len()]
            .iter()
            .map(|destination| {
                let breaker = &destination.breaker;
                let closed = breaker.position == Position::Closed;
                BreakerState {
                    destination: destination.rules.name.clone(),
                    state: match breaker.position {
                        Position::Closed => "closed",
                        Position::Open(_) => "open",
                        Position::HalfOpen(_) => "half_open",
                    },
                    since: breaker.opened_at.filter(|_| !closed),
                    error: (!closed).then(|| breaker.error.clone()),
                    behind: destination.behind,
                    paused: breaker.paused.is_some(),
                }
            })
            .collect()
    }

    /// This event is the one to be tried.
    pub(super) fn probe_with(&mut self, destination: u16, sequence: i64, key: i64, now: Instant) {
        let breaker = &mut self.at(destination).breaker;
        breaker.position = Position::HalfOpen(Some(Probe { sequence, since: now }));
        breaker.made_way = false;
        breaker.probed.retain(|probed| *probed != key);
        if breaker.probed.len() == PROBED_KEYS {
            breaker.probed.remove(0);
        }
        breaker.probed.push(key);
    }

    /// The destination has answered for an event: it is there. `started` is the number of that
    /// dispatch.
    pub(super) fn answered(&mut self, destination: u16, sequence: i64, started: u64, now: Instant) {
        let of = self.at(destination);
        of.breaker.forget_failures();
        of.breaker.hung.answered(sequence, started);
        of.breaker.refused.remove(&sequence);
        if of.breaker.is_probe(started) {
            self.close(destination);
        } else if matches!(of.breaker.position, Position::Open(_)) {
            // Sent before it opened. That one came through: no need to wait any longer.
            of.breaker.half_open();
        }
        // Whatever failed before this one was handed over failed by itself.
        let of = self.at(destination);
        let guilty: Vec<Undecided> = of.undecided.extract_if(.., |u| u.at < started).collect();
        self.convict(guilty, now);
    }

    /// The destination has not taken this event.
    pub(super) fn failed(
        &mut self,
        sequence: i64,
        outcome: Outcome,
        follows_failed: bool,
        now: Instant,
    ) {
        let Some(entry) = self.known.get_mut(&sequence) else {
            return;
        };
        entry.state = State::Undecided;
        let (destination, key, lane) =
            (entry.destination, entry.key_or_number(sequence), entry.lane);
        let started = entry.started;
        let timed_out = matches!(outcome, Outcome::TimedOut { .. });
        let of = self.at(destination);
        if !of.breaker.is_closed() {
            if timed_out && of.breaker.is_probe(started) {
                of.breaker.hung.remember(sequence, of.started);
            }
            if of.breaker.probe() == Some(sequence) {
                of.breaker.failures += 1;
                self.open(destination, &outcome, now);
            }
            if names_a_time(&outcome) && !follows_failed {
                self.fail(sequence, outcome, false);
            } else {
                self.put_back(sequence, now);
            }
            return;
        }
        let at = of.started;
        let unavailable = matches!(outcome, Outcome::Unavailable { .. });
        if follows_failed {
            let of = &self.destinations[usize::from(destination)];
            let head_is_undecided = of.undecided.iter().any(|undecided| {
                self.known.get(&undecided.sequence).is_some_and(|entry| entry.lane == lane)
            });
            if head_is_undecided {
                self.at(destination).undecided.push(Undecided { sequence, outcome: None, at });
            } else {
                self.hold_back(sequence, now);
            }
            return;
        }
        let of = self.at(destination);
        if timed_out && of.breaker.hung.convicts(sequence) {
            self.fail(sequence, outcome, true);
            return;
        }
        if of.breaker.refused.contains(&sequence) && matches!(outcome, Outcome::Retry { .. }) {
            of.breaker.refused_again.insert(key);
            if of.breaker.refused_again.len() <= REFUSED_AGAIN {
                self.fail(sequence, outcome, true);
                return;
            }
        }
        if names_a_time(&outcome) {
            of.breaker.fails(key);
            of.breaker.put_off = Some(outcome.clone());
            self.fail(sequence, outcome, true);
            return;
        }
        of.undecided.push(Undecided { sequence, outcome: Some(outcome), at });
        of.breaker.fails(key);
        if unavailable {
            of.breaker.unreached.insert(key);
        }
    }

    /// Decides what can be decided at each destination.
    pub fn judge_all(&mut self, now: Instant) {
        for destination in 0..self.destinations() {
            self.judge(destination, now);
        }
    }

    /// Decides what can be decided, after outcomes came.
    pub(super) fn judge(&mut self, destination: u16, now: Instant) {
        let of = self.at(destination);
        let last = of.undecided.iter().rev().find_map(|u| u.outcome.clone());
        let Some(last) = last.or_else(|| of.breaker.put_off.clone()) else {
            return;
        };
        let alone = of.in_flight == 0 && !of.has_ready();
        let outage = of.breaker.is_outage() || (alone && !of.breaker.unreached.is_empty());
        if outage {
            self.open(destination, &last, now);
        } else if alone && self.is_silent(destination) {
            let of = self.at(destination);
            for undecided in of.undecided.iter().filter(|undecided| undecided.is_timeout()) {
                of.breaker.hung.remember(undecided.sequence, undecided.at);
            }
            self.open(destination, &last, now);
        } else if alone {
            let guilty = std::mem::take(&mut self.at(destination).undecided);
            self.convict(guilty, now);
        }
    }

    /// No answer came in time, and nobody else can say whether the destination is there. One key that
    /// timed out while others, handed over after it, were taken says so itself.
    fn is_silent(&self, destination: u16) -> bool {
        let of = &self.destinations[usize::from(destination)];
        let entry = |undecided: &Undecided| self.known.get(&undecided.sequence);
        let failed = || of.undecided.iter().filter(|undecided| undecided.outcome.is_some());
        let keys: BTreeSet<i64> =
            failed().filter_map(|u| Some(entry(u)?.key_or_number(u.sequence))).collect();
        failed().filter(|undecided| undecided.is_timeout()).any(|undecided| {
            let passed =
                entry(undecided).is_some_and(|entry| of.breaker.hung.was_passed(entry.started));
            keys.len() > 1 || !passed
        })
    }

    /// These failed by themselves.
    fn convict(&mut self, guilty: Vec<Undecided>, now: Instant) {
        for Undecided { sequence, outcome, .. } in guilty {
            let Some(outcome) = outcome else {
                self.hold_back(sequence, now);
                continue;
            };
            if matches!(outcome, Outcome::Retry { .. })
                && let Some(entry) = self.known.get(&sequence)
            {
                let breaker = &mut self.destinations[usize::from(entry.destination)].breaker;
                if breaker.hung.was_passed(entry.started) {
                    breaker.remember_refused(sequence);
                }
            }
            self.fail(sequence, outcome, true);
        }
    }

    /// Nothing goes to this destination for now.
    fn open(&mut self, destination: u16, cause: &Outcome, now: Instant) {
        let of = self.at(destination);
        let breaker = &mut of.breaker;
        breaker.forget_failures();
        breaker.refused.clear();
        cause.error().unwrap_or_default().clone_into(&mut breaker.error);
        let first = breaker.position == Position::Closed;
        if first {
            breaker.failures = 0;
            breaker.probed.clear();
            breaker.made_way = false;
            breaker.opened_after = of.started;
            breaker.opened_at = Some(now);
        }
        breaker.position = Position::Open(now + breaker.pause());
        if !first {
            return;
        }
        tracing::warn!(
            destination = of.rules.name,
            error = breaker.error,
            "the destination takes nothing; its events wait and no attempt is counted"
        );
        self.stats.breakers_opened += 1;
        self.forget_destination(destination, now);
        self.put_undecided_back(destination, now);
    }

    fn close(&mut self, destination: u16) {
        let of = self.at(destination);
        of.breaker.position = Position::Closed;
        of.breaker.failures = 0;
        tracing::info!(destination = of.rules.name, "the destination takes events again");
        self.release_all(destination);
    }

    /// Whatever waits in the table for this destination is read back.
    pub(super) fn release_all(&mut self, destination: u16) {
        let released: Vec<_> = self
            .lanes
            .iter()
            .filter(|(id, lane)| {
                id.destination == destination && lane.block == Block::Releasing && !lane.busy()
            })
            .map(|(id, _)| *id)
            .collect();
        for id in released {
            self.request_release(id);
        }
    }

    /// The end is near: nothing undecided stays behind, and nothing of what waits is dispatched or held
    /// any more. That is known until its shard is closed.
    pub fn decide_all(&mut self, now: Instant) {
        for lane in self.lanes.values_mut() {
            lane.queue.clear();
            lane.scheduled = false;
        }
        for destination in 0..self.destinations() {
            self.put_undecided_back(destination, now);
        }
    }

    /// After what waits in the lanes is forgotten: behind one that is written back it would be held, and
    /// overtake those that are not.
    pub(super) fn put_undecided_back(&mut self, destination: u16, now: Instant) {
        for undecided in std::mem::take(&mut self.at(destination).undecided) {
            self.put_back(undecided.sequence, now);
        }
    }
}

/// The destination could not take the event, and said when it will.
fn names_a_time(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Unavailable { after: Some(_), .. })
}
