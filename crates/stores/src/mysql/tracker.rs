//! Tracker: which numbers of the table were missing when readers passed them, and which of them have
//! appeared since.
//!
//! A number is missing because of the table, not because of a reader. So all readers of a store share
//! one tracker:
//!
//! ```text
//!             frontier
//!                v
//! 1 2 3 . . 6 7 . 9           missing: 4, 5, 8
//! appeared:  5                a reader's context says how many of these it has been given
//! ```
//!
//! Each read looks for the missing ones. That would cost too much while a statement runs for long that might
//! still insert under any of them. So those under which nothing is inserted become *quiet*: only the
//! statements that are *watched* can still use them, and nothing of a statement is committed while it runs.
//! They are looked for again when one of these ends.
//!
//! A context is also good for another process, which has another tracker: it names the numbers that
//! were missing, or, when these are many, the first of them, and reading starts again there.
//!
//! ```text
//! vm/3306/1/…/1794734034|0198f2c1-…:17|12-15,20     life of the server | tracker : appeared | missing
//! vm/3306/1/…/1794734034|0198f2c1-…:17|<12
//! ```

use std::{
    collections::{HashSet, VecDeque},
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use posthaste_core::store::Position;
use uuid::Uuid;

use super::{
    gaps::{Gaps, Run, Span},
    life::is_same,
    statements::{Readers, Running, Watched},
};

/// Most runs of missing numbers that a context names one by one.
const NAMED: usize = 200;

/// Most numbers that are remembered as appeared. A reader that has not been given older ones starts
/// again before the lowest of them.
const REMEMBERED: usize = 400_000;

/// So many numbers that were forgotten are a block. A reader that was given some of them starts again before the lowest.
const BLOCK: u64 = 10_000;

/// Most blocks that are told apart; the oldest ones are one.
const BLOCKS: usize = 1_000;

/// Most quiet runs that are listed. Beyond that they are a span, and reading starts again before the first of them when a
/// watched statement ends that could use one.
const QUIET: usize = 200_000;

/// How often the server's statements are looked at while few numbers are missing.
const CLOSE_INTERVAL: Duration = Duration::from_millis(200);

/// Up to so long that is quick.
const CLOSING_QUICK: Duration = Duration::from_millis(20);

/// After one that is not, so many times as long as it took passes before they are looked at again: the numbers of a large
/// transaction that is open are there to stay.
const CLOSING_REST: u32 = 8;

/// No longer than this counts: numbers that nobody can use would pile up meanwhile.
const CLOSING_SLOW: Duration = Duration::from_secs(1);

/// Most positions of other trackers whose readers are remembered.
const LEARNT: usize = 100;

/// With more missing runs than this they are looked at with every read.
const FEW: usize = 64;

/// What is known of the missing numbers.
#[derive(Debug)]
pub(super) struct Tracker {
    id: Uuid,
    /// The life of the server that all of this was learnt in.
    life: String,
    /// The numbers up to here were looked at; `None` before the first look.
    frontier: Option<i64>,
    pub(super) missing: Gaps,
    /// Missing, too: none of these can appear before a watched statement ends.
    quiet: Gaps,
    watched: Vec<Watched>,
    /// Where readers stood whose positions other trackers have written, the oldest first. A position that is read from
    /// again and again is learnt once.
    learnt: VecDeque<(Position, Reader)>,
    /// The quiet ones that are not listed.
    unlisted: Vec<Span>,
    /// Those that are read again, in the order in which they were seen.
    again: Vec<Span>,
    /// How often quiet ones were taken back.
    recalls: u64,
    appeared: VecDeque<i64>,
    /// How many have been forgotten of those that have appeared.
    forgotten: u64,
    /// These, block by block, the oldest first.
    blocks: VecDeque<Block>,
    /// The round over the missing numbers that is under way.
    round: Option<Round>,
    /// A round has ended that began when the numbers up to this one had been looked at.
    looked_back_from: i64,
    /// When numbers were last given up that nobody can use any more.
    closed_at: Option<Instant>,
    /// How long that took.
    closing_took: Duration,
    /// The statements of other sessions, when they were last listed.
    pub(super) listed: Option<Arc<Running>>,
    /// When it was last looked up which sessions only read, and which these were.
    pub(super) readers_at: Option<Instant>,
    pub(super) readers: Option<Readers>,
}

/// Numbers that have appeared and were forgotten one after the other.
#[derive(Debug, Clone, Copy)]
struct Block {
    /// How many had been forgotten with the first and with the last of them.
    from: u64,
    to: u64,
    /// The lowest of them.
    lowest: i64,
}

/// A look at all numbers that are missing, from the lowest to the highest, in as many parts as it takes.
///
/// Numbers that appear are given to readers part by part. That keeps the order: a number which was known as missing when
/// the round began had been given out by then. Whatever was committed before that is found by a look at any time since, and
/// the lower ones were looked at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Round {
    /// Numbers that were seen missing later are left to the next one.
    pub(super) began: Instant,
    /// It gives up the numbers that nobody can use any more.
    pub(super) closes: bool,
    /// Where the next part begins.
    pub(super) next: i64,
    /// The numbers up to this one had been looked at when it began.
    frontier: i64,
    /// How long its parts have taken.
    took: Duration,
}

/// What there is for a reader. One answer for all of it: between two questions another reader could make all of them start
/// again, and what was forgotten by that would count as given.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// It was not given something that was forgotten, and starts again here.
    Again(Reader),
    /// These have appeared up to `end`, so far may it go, and so many in all.
    Late { late: Vec<(u64, i64)>, end: i64, appeared: u64 },
}

/// Where a reader stands with this tracker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reader {
    /// The tracker that it stands with.
    pub(super) tracker: Uuid,
    pub(super) sequence: i64,
    /// It has been given this many of the numbers that appeared.
    pub(super) given: u64,
}

impl Tracker {
    pub(super) fn new(life: &str) -> Self {
        Self {
            id: Uuid::now_v7(),
            life: life.to_owned(),
            frontier: None,
            missing: Gaps::default(),
            quiet: Gaps::default(),
            watched: Vec::new(),
            learnt: VecDeque::new(),
            unlisted: Vec::new(),
            again: Vec::new(),
            recalls: 0,
            appeared: VecDeque::new(),
            forgotten: 0,
            blocks: VecDeque::new(),
            round: None,
            looked_back_from: 0,
            closed_at: None,
            closing_took: Duration::ZERO,
            listed: None,
            readers_at: None,
            readers: None,
        }
    }

    /// Which tracker it is: another one knows other numbers.
    pub(super) fn id(&self) -> Uuid {
        self.id
    }

    pub(super) fn life(&self) -> &str {
        &self.life
    }

    /// How many have appeared since the beginning.
    pub(super) fn appeared(&self) -> u64 {
        self.forgotten + self.appeared.len() as u64
    }

    /// Where the reader of this position stands. Learns what another tracker has written into it.
    pub(super) fn reader(&mut self, from: &Position, now: Instant) -> Reader {
        if let Some(&(_, known)) = self.learnt.iter().find(|(learnt, _)| learnt == from) {
            return self.again(known).unwrap_or(known);
        }
        let mut reader =
            Reader { tracker: self.id, sequence: from.sequence, given: self.appeared() };
        match Context::parse(&from.context) {
            // Nothing is known to have been seen.
            None => reader.sequence = 0,
            Some(context) if context.tracker == self.id => {
                reader.given = context.given.min(reader.given);
                reader = self.again(reader).unwrap_or(reader);
            }
            // It speaks for all numbers up to its sequence.
            Some(context) => {
                self.recall(None);
                let known = self.missing.len();
                match context.missing {
                    Missing::Named(runs) => {
                        for (first, last) in runs {
                            self.missing.add(first, last.min(from.sequence), now);
                        }
                    }
                    Missing::From(first) => reader.sequence = reader.sequence.min(first - 1),
                }
                if self.missing.len() > known {
                    // Rounds that began before have not looked at these.
                    (self.round, self.looked_back_from) = (None, 0);
                }
                self.frontier = self.frontier.max(Some(reader.sequence));
                self.learnt.push_back((from.clone(), reader));
                if self.learnt.len() > LEARNT {
                    self.learnt.pop_front();
                }
            }
        }
        self.frontier.get_or_insert(reader.sequence);
        reader
    }

    /// The numbers up to `end` were looked at, and of those after `after` these were visible.
    pub(super) fn looked(&mut self, after: i64, present: &[i64], end: i64, now: Instant) {
        let frontier = self.frontier.unwrap_or(after);
        // Nobody has looked at what lies between: the reader starts again.
        if end <= frontier || after > frontier {
            return;
        }
        // What is read again had been given out before it was seen for the first time.
        for span in &self.again {
            self.missing.add_missing(frontier, end.min(span.last), present, span.seen);
            // A look at a part that is under way does not speak for these.
            self.recalls += 1;
            if span.last >= end {
                break;
            }
        }
        self.missing.add_missing(frontier, end, present, now);
        self.again.retain(|span| span.last > end);
        self.frontier = Some(end);
    }

    pub(super) fn frontier(&self) -> i64 {
        self.frontier.unwrap_or(0)
    }

    /// Where this reader starts again, if it was not given something that was forgotten meanwhile.
    pub(super) fn again(&self, reader: Reader) -> Option<Reader> {
        let lowest = self.lowest_forgotten(reader)?;
        Some(Reader { given: self.forgotten, sequence: reader.sequence.min(lowest - 1), ..reader })
    }

    /// The lowest number that was forgotten before this reader was given it, or one below that.
    fn lowest_forgotten(&self, reader: Reader) -> Option<i64> {
        let newer = self.blocks.partition_point(|block| block.to <= reader.given);
        self.blocks.range(newer..).map(|block| block.lowest).min()
    }

    /// This number is not remembered any longer.
    fn forget(&mut self, number: i64) {
        self.forgotten += 1;
        match self.blocks.back_mut() {
            Some(block) if self.forgotten - block.from < BLOCK => {
                (block.to, block.lowest) = (self.forgotten, block.lowest.min(number));
            }
            _ => self.begin_block(number),
        }
    }

    /// The number that was forgotten last is the first of a block.
    fn begin_block(&mut self, number: i64) {
        self.blocks.push_back(Block { from: self.forgotten, to: self.forgotten, lowest: number });
        if self.blocks.len() > BLOCKS
            && let Some(oldest) = self.blocks.pop_front()
            && let Some(next) = self.blocks.front_mut()
        {
            (next.from, next.lowest) = (oldest.from, next.lowest.min(oldest.lowest));
        }
    }

    /// The round that is under way, or a new one; `None` if nothing is missing.
    pub(super) fn round(&mut self, now: Instant) -> Option<Round> {
        if self.misses_nothing() {
            self.round = None;
            self.looked_back_from = self.frontier();
            return None;
        }
        if self.round.is_none() {
            let few = self.missing.len() <= FEW && !self.has_quiet();
            let interval = if few { CLOSE_INTERVAL } else { Duration::ZERO };
            let took = self.closing_took.min(CLOSING_SLOW);
            let rest = CLOSING_REST * took.saturating_sub(CLOSING_QUICK);
            let pause = interval.max(rest);
            let closes = self.closed_at.is_none_or(|at| now.duration_since(at) >= pause);
            if closes {
                self.closed_at = Some(now);
            }
            let frontier = self.frontier();
            self.round =
                Some(Round { began: now, closes, next: i64::MIN, frontier, took: Duration::ZERO });
        }
        self.round
    }

    /// Where the next part of this round begins; `None` if it is over.
    pub(super) fn next_part(&self, round: Round) -> Option<i64> {
        self.round.filter(|now| now.began == round.began).map(|round| round.next)
    }

    /// A part of the round was looked at, up to this number, and it was the last one or not.
    pub(super) fn looked_back(&mut self, end: i64, is_last: bool, took: Duration) {
        let Some(round) = &mut self.round else { return };
        (round.next, round.took) = (end.saturating_add(1), round.took + took);
        if is_last {
            self.looked_back_from = self.looked_back_from.max(round.frontier);
            if round.closes {
                self.closing_took = round.took;
            }
            self.round = None;
        }
    }

    pub(super) fn misses_nothing(&self) -> bool {
        self.missing.is_empty() && !self.has_quiet()
    }

    pub(super) fn has_quiet(&self) -> bool {
        !self.quiet.is_empty() || !self.unlisted.is_empty()
    }

    pub(super) fn recalls(&self) -> u64 {
        self.recalls
    }

    /// Takes back the quiet ones that a watched statement could use which has ended since; all of them when
    /// statements are not shown.
    pub(super) fn recall_ended(&mut self, running: Option<&Running>) {
        let Some(running) = running else {
            return self.recall(None);
        };
        let ended: Vec<Watched> =
            self.watched.extract_if(.., |watched| !running.has(watched)).collect();
        self.recalls += ended.len() as u64;
        for watched in ended {
            self.recall(watched.began);
        }
    }

    /// Takes back the quiet ones that were seen since then, or all.
    fn recall(&mut self, since: Option<Instant>) {
        if !self.has_quiet() {
            return;
        }
        self.recalls += 1;
        let recalled = match since {
            Some(since) => self.quiet.take_seen_since(since),
            None => std::mem::take(&mut self.quiet),
        };
        self.missing.merge(recalled);
        let unlisted = self.unlisted.iter();
        let recalled = unlisted.filter(|span| since.is_none_or(|since| span.seen >= since));
        if let Some(first) = recalled.map(|span| span.first).min() {
            self.start_again(first);
        }
    }

    /// All readers start again before this number, or before what they were not given.
    fn start_again(&mut self, first: i64) {
        for number in std::mem::take(&mut self.appeared) {
            self.forget(number);
        }
        // In a block of its own: who was given the others does not start before them.
        self.forgotten += 1;
        self.begin_block(first);
        self.frontier = self.frontier.map(|frontier| frontier.min(first - 1));
        // They are met again.
        self.again.extend(self.unlisted.iter().filter(|span| span.last >= first));
        self.again.sort_by_key(|span| span.seen);
        self.unlisted.retain(|span| span.first < first);
        self.missing.keep_below(first);
        self.quiet.keep_below(first);
        (self.round, self.looked_back_from) = (None, self.looked_back_from.min(first - 1));
    }

    /// Gives up the numbers of this run that were seen missing by `until`, but for those that somebody has inserted.
    pub(super) fn close(&mut self, run: Run, until: Instant, inserted: &[i64]) {
        self.missing.take_unused(run, until, inserted);
    }

    /// The statements of these sessions only read until then. Gives up the quiet numbers of before that no other one can
    /// use: when they became quiet nothing was inserted under them, and nobody but these could.
    pub(super) fn only_read(&mut self, sessions: &[u64], until: Instant) {
        if sessions.is_empty() {
            return;
        }
        for watched in &mut self.watched {
            if sessions.iter().any(|&session| watched.is_of(session)) {
                watched.began = watched.began.max(Some(until));
            }
        }
        let began = self.watched.iter().map(|watched| watched.began);
        if let Some(until) = began.min().unwrap_or(Some(until)) {
            self.quiet.take_unused((i64::MIN, i64::MAX), until, &[]);
            self.unlisted.retain(|span| span.seen > until);
        }
    }

    /// Those of this run that were seen missing by `until` are quiet, but for those that somebody has inserted: only
    /// these statements can still use them.
    pub(super) fn hush(
        &mut self,
        run: Run,
        until: Instant,
        inserted: &[i64],
        watched: impl Iterator<Item = Watched>,
    ) {
        let unused = self.missing.take_unused(run, until, inserted);
        self.quiet.merge(unused);
        for watched in watched {
            if !self.watched.iter().any(|known| known.is(&watched)) {
                self.watched.push(watched);
            }
        }
        if self.quiet.len() > QUIET
            && let Some(span) = self.quiet.span()
        {
            self.unlisted.push(span);
            self.quiet = Gaps::default();
        }
    }

    /// These numbers are visible, in order: those that were missing have appeared.
    pub(super) fn saw(&mut self, visible: &[i64]) {
        for number in self.missing.take(visible) {
            self.appeared.push_back(number);
        }
        while self.appeared.len() > REMEMBERED {
            let Some(number) = self.appeared.pop_front() else { break };
            self.forget(number);
        }
    }

    /// The numbers up to `up_to` that have appeared and that the reader has not been given, at most so
    /// many, each with how many were given once it is.
    pub(super) fn late(&self, reader: Reader, up_to: i64, most: usize) -> Vec<(u64, i64)> {
        let skipped = reader.given.saturating_sub(self.forgotten) as usize;
        let counted = (reader.given.max(self.forgotten) + 1..).zip(self.appeared.range(skipped..));
        counted.map(|(given, &n)| (given, n)).filter(|&(_, n)| n <= up_to).take(most).collect()
    }

    /// The late numbers that a reader has not been given, which has read up to `end`: at most `most`.
    pub(super) fn news(&self, reader: Reader, end: i64, most: usize) -> News {
        if let Some(again) = self.again(reader) {
            return News::Again(again);
        }
        // All that was committed before a number up to there was given out has been found. An event after it can follow
        // one that is late and not found yet.
        let end = end.min(self.looked_back_from.max(reader.sequence));
        News::Late { late: self.late(reader, end, most), end, appeared: self.appeared() }
    }

    /// The context of a reader that stands here.
    pub(super) fn context(&self, reader: Reader) -> String {
        let few = self.missing.len() + self.quiet.len() <= NAMED;
        let all_listed = self.unlisted.is_empty() && reader.given >= self.forgotten;
        // What it has not been given is missing to another tracker.
        let late = self.late(reader, i64::MAX, NAMED + 1);
        let missing = if few && all_listed && late.len() <= NAMED {
            let gaps = self.missing.iter().chain(self.quiet.iter());
            let runs = gaps.map(|gap| (gap.first, gap.last));
            Missing::Named(runs.chain(late.iter().map(|&(_, n)| (n, n))).collect())
        } else {
            self.first_missing(reader)
        };
        Context { life: self.life.clone(), tracker: self.id, given: reader.given, missing }
            .to_string()
    }

    /// The numbers that have appeared and that the reader has not been given.
    fn not_given(&self, reader: Reader) -> impl Iterator<Item = i64> {
        let skipped = reader.given.saturating_sub(self.forgotten) as usize;
        self.appeared.range(skipped..).copied()
    }

    /// The lowest and the highest number that the reader has not been given.
    pub(super) fn late_between(&self, reader: Reader) -> Option<(i64, i64)> {
        self.not_given(reader).fold(None, |between, number| match between {
            Some((first, last)) => Some((number.min(first), number.max(last))),
            None => Some((number, number)),
        })
    }

    /// Those of these numbers that the reader has not been given.
    pub(super) fn late_among(&self, reader: Reader, numbers: &HashSet<i64>) -> HashSet<i64> {
        if numbers.is_empty() {
            return HashSet::new();
        }
        self.not_given(reader).filter(|number| numbers.contains(number)).collect()
    }

    /// The lowest number that the reader may not have been given. They appear in no order: all are compared.
    fn first_missing(&self, reader: Reader) -> Missing {
        let late = self.not_given(reader).min();
        let forgotten = self.lowest_forgotten(reader);
        let unlisted = self.unlisted.iter().map(|span| span.first).min();
        let all = [self.missing.first(), self.quiet.first(), unlisted, late, forgotten];
        Missing::From(all.into_iter().flatten().min().unwrap_or(1))
    }
}

/// What a position remembers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Context {
    pub(super) life: String,
    tracker: Uuid,
    given: u64,
    pub(super) missing: Missing,
}

/// The numbers that were missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Missing {
    /// These runs.
    Named(Vec<(i64, i64)>),
    /// This one, and others after it.
    From(i64),
}

impl Context {
    /// The context of this text; `None` for an empty one and for that of another version.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('|');
        let life = parts.next()?.to_owned();
        let (tracker, given) = parts.next()?.split_once(':')?;
        let missing = parts.next()?;
        let missing = if let Some(first) = missing.strip_prefix('<') {
            Missing::From(first.parse().ok()?)
        } else {
            let runs = missing.split(',').filter(|run| !run.is_empty());
            Missing::Named(runs.map(run).collect::<Option<_>>()?)
        };
        let (tracker, given) = (tracker.parse().ok()?, given.parse().ok()?);
        Some(Self { life, tracker, given, missing })
    }

    /// The numbers that it names as missing.
    pub(super) fn gaps(&self) -> Gaps {
        let mut gaps = Gaps::default();
        if let Missing::Named(runs) = &self.missing {
            let now = Instant::now();
            for &(first, last) in runs {
                gaps.add(first, last, now);
            }
        }
        gaps
    }

    /// The same, of another life.
    pub(super) fn in_life(self, life: &str) -> Self {
        Self { life: life.to_owned(), ..self }
    }
}

fn run(text: &str) -> Option<(i64, i64)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some((first.parse().ok()?, last.parse().ok()?))
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}|{}:{}|", self.life, self.tracker, self.given)?;
        match &self.missing {
            Missing::From(first) => write!(f, "<{first}"),
            Missing::Named(runs) => {
                for (index, (first, last)) in runs.iter().enumerate() {
                    let comma = if index == 0 { "" } else { "," };
                    write!(f, "{comma}{first}")?;
                    if last > first {
                        write!(f, "-{last}")?;
                    }
                }
                Ok(())
            }
        }
    }
}

/// The position before the first number that is missing, where a context does not name them all.
pub(super) fn from_first(position: Position) -> Position {
    match Context::parse(&position.context).map(|context| context.missing) {
        Some(Missing::From(first)) => {
            Position { sequence: position.sequence.min(first - 1), ..position }
        }
        _ => position,
    }
}

/// A position from which a reader finds all that readers at any of these would find.
pub(super) fn join(positions: &[Position]) -> Position {
    let Some((first, rest)) = positions.split_first() else {
        return Position::default();
    };
    let mut sequence = first.sequence;
    let mut common = Context::parse(&first.context);
    for position in rest {
        sequence = sequence.min(position.sequence);
        let other = Context::parse(&position.context);
        common = common.zip(other).and_then(|(common, other)| meet(common, other));
    }
    match common {
        Some(common) => Position { sequence, context: common.to_string() },
        // Nothing is known to have been seen.
        None => Position::default(),
    }
}

fn meet(one: Context, other: Context) -> Option<Context> {
    if !is_same(&one.life, &other.life) {
        return None;
    }
    let missing = match (one.missing, other.missing) {
        (Missing::Named(mut runs), Missing::Named(others)) => {
            runs.extend(others.into_iter().filter(|run| !runs.contains(run)).collect::<Vec<_>>());
            Missing::Named(runs)
        }
        (one, other) => Missing::From(first(&one).min(first(&other))),
    };
    // Two trackers have nothing in common but what the contexts name.
    let (tracker, given) = if one.tracker == other.tracker {
        (one.tracker, one.given.min(other.given))
    } else {
        (Uuid::nil(), 0)
    };
    Some(Context { life: one.life, tracker, given, missing })
}

fn first(missing: &Missing) -> i64 {
    match missing {
        Missing::From(first) => *first,
        Missing::Named(runs) => runs.iter().map(|run| run.0).min().unwrap_or(i64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::mysql::gaps::PIECE;

    const ALL: Run = (i64::MIN, i64::MAX);

    fn position(sequence: i64, context: String) -> Position {
        Position { sequence, context }
    }

    fn numbers(late: &[(u64, i64)]) -> Vec<i64> {
        late.iter().map(|&(_, number)| number).collect()
    }

    #[test]
    fn a_reader_is_given_each_number_that_appears_once() {
        let now = Instant::now();
        let mut tracker = Tracker::new("a/1");
        let reader = tracker.reader(&Position::default(), now);
        tracker.looked(0, &[1, 2, 3, 6, 7, 9], 9, now);
        tracker.saw(&[1, 5, 7]);
        assert_eq!(numbers(&tracker.late(reader, 9, 10)), [5]);
        assert!(tracker.late(reader, 4, 10).is_empty(), "it has not come that far");
        let given = Reader { given: 1, ..reader };
        assert!(tracker.late(given, 9, 10).is_empty());
        tracker.saw(&[4, 8]);
        assert_eq!(tracker.late(given, 9, 1), [(2, 4)]);
        assert_eq!(numbers(&tracker.late(reader, 9, 10)), [5, 4, 8]);
    }

    #[test]
    fn another_tracker_learns_what_is_missing_from_a_context() {
        let now = Instant::now();
        let mut tracker = Tracker::new("a/1");
        let reader = tracker.reader(&Position::default(), now);
        tracker.looked(0, &[1, 2, 3, 6, 7, 9], 9, now);
        tracker.saw(&[5]);
        let context = tracker.context(Reader { sequence: 9, ..reader });
        let mut other = Tracker::new("a/1");
        let there = other.reader(&position(9, context.clone()), now);
        assert_eq!((there.sequence, other.frontier()), (9, 9));
        other.saw(&[4, 5]);
        assert_eq!(numbers(&other.late(there, 9, 10)), [4, 5], "5 was not given yet");
        // The same tracker knows more than the text says.
        assert_eq!(tracker.reader(&position(9, context), now).given, 0);
    }

    #[test]
    fn a_context_with_many_missing_numbers_is_short_and_starts_at_the_first() {
        let now = Instant::now();
        let mut tracker = Tracker::new("a/1");
        let reader = tracker.reader(&Position::default(), now);
        let present: Vec<i64> = (1..=5_000).map(|n| n * 2).collect();
        tracker.looked(0, &present, 10_000, now);
        let context = tracker.context(Reader { sequence: 10_000, ..reader });
        assert!(context.len() < 100, "{context}");
        let mut other = Tracker::new("a/1");
        assert_eq!(other.reader(&position(10_000, context), now).sequence, 0);
    }

    #[test]
    fn a_context_with_many_late_numbers_starts_at_the_lowest_of_them() {
        let now = Instant::now();
        let mut tracker = Tracker::new("a/1");
        let reader = tracker.reader(&Position::default(), now);
        tracker.looked(0, &[10_000], 10_000, now);
        tracker.saw(&(5_000..6_000).collect::<Vec<_>>());
        tracker.missing.take_unused(ALL, now, &[]);
        tracker.missing.add(7, 7, now);
        tracker.saw(&[7]);
        let context = tracker.context(Reader { sequence: 10_000, ..reader });
        let mut other = Tracker::new("a/1");
        assert_eq!(other.reader(&position(10_000, context), now).sequence, 6);
    }

    #[test]
    fn a_common_position_misses_what_any_of_them_misses() {
        let context = |text: &str| format!("a/1|{}|{text}", format_args!("{}:3", Uuid::nil()));
        let one = position(90, context("12-15,20"));
        let two = position(70, context("20,33"));
        assert_eq!(join(&[one.clone(), two.clone()]), position(70, context("12-15,20,33")));
        let many = position(80, context("<8"));
        assert_eq!(join(&[one.clone(), many]), position(80, context("<8")));
        let other_life = position(80, context("").replace("a/1|", "b/1|"));
        assert_eq!(join(&[one.clone(), other_life]), Position::default());
        assert_eq!(join(&[one.clone(), position(80, String::new())]), Position::default());
        assert_eq!(join(std::slice::from_ref(&one)), one);
    }

    #[test]
    fn a_round_goes_on_where_it_was_left_and_counts_when_it_has_ended() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let mut tracker = Tracker::new("a/1");
        assert_eq!(tracker.round(now), None);
        tracker.looked(0, &[1, 4, 100, 104], 104, now);
        let round = tracker.round(now).unwrap();
        assert_eq!(tracker.looked_back_from, 0, "nobody has looked back");
        tracker.looked_back(50, false, second);
        tracker.looked(104, &[110], 110, now + second);
        let same = tracker.round(now + second).unwrap();
        assert_eq!((same.began, tracker.next_part(round)), (now, Some(51)));
        let part = tracker.missing.part(same.next, same.began, PIECE);
        let left: Vec<_> = part.gaps.iter().map(|gap| (gap.first, gap.last)).collect();
        assert_eq!(left, [(51, 99), (101, 103)], "what was seen since is for the next one");
        tracker.looked_back(part.end, part.is_last, second);
        assert_eq!((tracker.next_part(round), tracker.looked_back_from), (None, 104));
        let reader = tracker.reader(&Position::default(), now);
        let end = |tracker: &Tracker| match tracker.news(reader, 110, 10) {
            News::Late { end, .. } => end,
            News::Again(reader) => reader.sequence,
        };
        assert_eq!(end(&tracker), 104, "what comes after can follow one that is not found yet");
        let next = tracker.round(now + 2 * second).unwrap();
        assert!(!next.closes, "the last one took two seconds");
        tracker.looked_back(109, true, second);
        assert_eq!(end(&tracker), 110);
        assert!(tracker.round(now + 9 * second).unwrap().closes, "but eight are enough");
    }

    #[test]
    fn a_round_begins_again_when_another_process_tells_of_missing_numbers() {
        let now = Instant::now();
        let mut tracker = Tracker::new("a/1");
        tracker.looked(0, &[1, 4, 9], 9, now);
        let round = tracker.round(now).unwrap();
        tracker.looked_back(8, true, Duration::ZERO);
        assert_eq!(tracker.looked_back_from, 9);
        let context = |text: &str| position(9, format!("a/1|{}:3|{text}", Uuid::nil()));
        tracker.reader(&context("2-3,6"), now);
        assert_eq!(tracker.looked_back_from, 9, "they are known");
        tracker.reader(&context("1"), now);
        assert_eq!((tracker.looked_back_from, tracker.next_part(round)), (0, None));
    }

    #[test]
    fn a_context_of_another_process_is_learnt_once() {
        let now = Instant::now();
        let mut tracker = Tracker::new("a/1");
        let from = position(9, format!("a/1|{}:3|1-3,6", Uuid::nil()));
        let first = tracker.reader(&from, now);
        tracker.round(now).unwrap();
        tracker.close((1, 1), now, &[]);
        tracker.saw(&[2]);
        tracker.looked_back(9, true, Duration::ZERO);
        assert_eq!(tracker.reader(&from, now), first);
        assert_eq!(tracker.looked_back_from, 9, "its rounds go on");
        let missing: Vec<_> = tracker.missing.iter().map(|gap| (gap.first, gap.last)).collect();
        assert_eq!(missing, [(3, 3), (6, 6)], "what was given up or found stays so");
        assert_eq!(numbers(&tracker.late(first, 9, 10)), [2]);
        // From another place it speaks for other numbers.
        tracker.reader(&position(12, from.context.clone()), now);
        assert_eq!(tracker.looked_back_from, 0);
    }

    #[test]
    fn no_more_than_so_many_contexts_of_other_processes_are_remembered() {
        let now = Instant::now();
        let mut tracker = Tracker::new("a/1");
        for n in 1..=2 * LEARNT as i64 {
            tracker.reader(&position(n, format!("a/1|{}:3|", Uuid::nil())), now);
        }
        assert_eq!(tracker.learnt.len(), LEARNT);
    }

    fn running(at: Instant, began: Instant) -> Running {
        Running::of_one(7, 12, at, began)
    }

    #[test]
    fn quiet_numbers_are_looked_for_again_when_a_watched_statement_ends() {
        let begun = Instant::now();
        let mut tracker = Tracker::new("a/1");
        let reader = tracker.reader(&Position::default(), begun);
        tracker.looked(0, &[1, 4, 7], 7, begun);
        let now = begun + Duration::from_secs(1);
        let runs = running(now, begun.checked_sub(Duration::from_secs(4)).unwrap());
        tracker.hush(ALL, begun, &[3], runs.watched());
        let missing: Vec<_> = tracker.missing.iter().map(|gap| (gap.first, gap.last)).collect();
        assert_eq!(missing, [(3, 3)], "somebody has inserted it");
        assert!(tracker.has_quiet());
        assert!(tracker.context(Reader { sequence: 7, ..reader }).ends_with("|3,2,5-6"));
        tracker.recall_ended(Some(&runs));
        assert!(tracker.has_quiet(), "it still runs");
        tracker.recall_ended(Some(&Running::none(now)));
        assert!(!tracker.has_quiet());
        tracker.saw(&[5]);
        assert_eq!(numbers(&tracker.late(reader, 9, 10)), [5]);
    }

    #[test]
    fn quiet_numbers_of_before_a_statement_stay_quiet_when_it_ends() {
        let begun = Instant::now();
        let mut tracker = Tracker::new("a/1");
        tracker.reader(&Position::default(), begun);
        tracker.looked(0, &[1, 4], 4, begun);
        let now = begun + Duration::from_secs(9);
        tracker.hush(ALL, begun, &[], running(now, begun + Duration::from_secs(4)).watched());
        tracker.recall_ended(Some(&Running::none(now)));
        assert!(tracker.has_quiet(), "it began 4 s after they were seen");
    }

    #[test]
    fn quiet_numbers_are_given_up_when_those_that_could_use_them_only_read() {
        let begun = Instant::now();
        let second = Duration::from_secs(1);
        let mut tracker = Tracker::new("a/1");
        tracker.reader(&Position::default(), begun);
        tracker.looked(0, &[1, 4], 4, begun + second);
        let now = begun + 9 * second;
        let runs = |session, began| Running::of_one(session, 12, now, began);
        tracker.hush(ALL, now, &[], runs(7, begun).watched().chain(runs(8, begun).watched()));
        let until = begun + 2 * second;
        tracker.only_read(&[7], until);
        assert!(tracker.has_quiet(), "the other one can use them");
        tracker.hush(ALL, now, &[], runs(9, begun + 2 * second).watched());
        tracker.only_read(&[8], begun);
        assert!(tracker.has_quiet(), "it may have begun to insert since");
        tracker.only_read(&[8], until);
        assert!(!tracker.has_quiet(), "the third one began after they were seen");
        tracker.looked(4, &[9], 9, begun + 3 * second);
        tracker.hush(ALL, now, &[], std::iter::empty());
        tracker.only_read(&[7, 8, 9], begun + 3 * second);
        assert!(tracker.misses_nothing());
    }

    #[test]
    fn too_many_quiet_numbers_are_read_again_when_a_watched_statement_ends() {
        let begun = Instant::now();
        let mut tracker = Tracker::new("a/1");
        let reader = tracker.reader(&Position::default(), begun);
        let end = 2 * QUIET as i64 + 4;
        let present: Vec<i64> = (1..=end / 2).map(|n| n * 2).collect();
        tracker.looked(0, &present, end, begun);
        let now = begun + Duration::from_secs(1);
        tracker.hush(ALL, begun, &[], running(now, begun).watched());
        assert!(tracker.quiet.is_empty() && tracker.has_quiet());
        let there = Reader { sequence: end, ..reader };
        let context = tracker.context(there);
        assert!(context.ends_with("|<1"), "{context}");
        assert_eq!(tracker.again(there), None, "nothing of them can be there yet");
        tracker.recall_ended(Some(&Running::none(now)));
        let again = tracker.again(there).unwrap();
        assert_eq!((again.sequence, tracker.frontier()), (0, 0));
        assert_eq!(
            tracker.news(there, end, 10),
            News::Again(again),
            "none of them counts as given"
        );
        assert_eq!(tracker.reader(&position(end, context), now), again);
        // One that was reading meanwhile moves nothing.
        tracker.looked(end, &[end + 2], end + 2, now);
        assert_eq!(tracker.frontier(), 0);
    }

    #[test]
    fn what_is_read_again_was_given_out_before_it_was_seen_first() {
        let begun = Instant::now();
        let second = Duration::from_secs(1);
        let mut tracker = Tracker::new("a/1");
        let reader = tracker.reader(&Position::default(), begun);
        let end = 2 * QUIET as i64 + 4;
        let present: Vec<i64> = (1..=end / 2).map(|n| n * 2).collect();
        tracker.looked(0, &present, end, begun);
        let began = begun + second;
        let first = running(began, begun).watched().next().unwrap();
        let second_one = Running::of_one(8, 13, began + second, began);
        tracker.hush(ALL, begun, &[], [first].into_iter().chain(second_one.watched()));
        let more: Vec<i64> = (end / 2 + 1..=end).map(|n| n * 2).collect();
        tracker.looked(end, &more, 2 * end, began + second);
        tracker.hush(ALL, began + second, &[], second_one.watched());
        let there = Reader { sequence: 2 * end, ..reader };

        // The first one ends. Of what it could use, the second one can use the later half.
        tracker.recall_ended(Some(&second_one));
        assert_eq!(tracker.again(there).unwrap().sequence, 0);
        let there = Reader { sequence: 2 * end, given: tracker.appeared(), ..reader };
        let (now, recalls) = (began + 3 * second, tracker.recalls());
        tracker.looked(0, &[&present[..], &more[..]].concat(), 2 * end, now);
        assert!(tracker.recalls() > recalls, "a part that is being looked at may not have these");
        tracker.close(ALL, began, &[]);
        assert_eq!(tracker.missing.first(), Some(end + 1), "nobody can use those before");
        tracker.hush(ALL, now, &[], second_one.watched());
        tracker.recall_ended(Some(&Running::none(now)));
        assert_eq!(tracker.again(there).unwrap().sequence, end, "nothing is read a third time");
    }

    #[test]
    fn a_reader_that_stood_still_for_long_starts_before_what_was_forgotten() {
        let now = Instant::now();
        let mut tracker = Tracker::new("a/1");
        let reader = tracker.reader(&Position::default(), now);
        let all = REMEMBERED as i64 + 10;
        tracker.looked(0, &[all + 1], all + 1, now);
        let context = tracker.context(Reader { sequence: all + 1, ..reader });
        tracker.saw(&(1..=all).collect::<Vec<_>>());
        let there = tracker.reader(&position(all + 1, context), now);
        assert_eq!((there.sequence, there.given), (0, 10));
    }

    #[test]
    fn a_reader_does_not_start_before_what_it_was_given() {
        let now = Instant::now();
        let mut tracker = Tracker::new("a/1");
        let reader = tracker.reader(&Position::default(), now);
        let early = 1..=REMEMBERED as i64;
        let late = 1_000_000..1_000_000 + REMEMBERED as i64;
        tracker.looked(0, &[2_000_000], 2_000_000, now);
        tracker.saw(&early.collect::<Vec<_>>());
        let given = tracker.appeared();
        tracker.saw(&late.collect::<Vec<_>>());
        assert_eq!(tracker.again(Reader { given, ..reader }), None, "all that it needs is there");
        tracker.saw(&[1_900_000]);
        let there = Reader { given, sequence: 2_000_000, ..reader };
        assert_eq!(tracker.again(there).unwrap().sequence, 999_999);
        let context = tracker.context(there);
        assert!(context.ends_with("|<400001"), "the lowest that is missing: {context}");
        // One that was given all of them reads again what is not listed, and no more.
        tracker.start_again(1_950_000);
        let all = Reader { given: 2 * REMEMBERED as u64 + 1, ..there };
        assert_eq!(tracker.again(all).unwrap().sequence, 1_949_999);
        assert_eq!(tracker.again(there).unwrap().sequence, 999_999);
        assert_eq!(tracker.again(Reader { given: 0, ..there }).unwrap().sequence, 0);
    }

    #[test]
    fn old_blocks_of_forgotten_numbers_are_one() {
        let mut tracker = Tracker::new("a/1");
        let reader = tracker.reader(&Position::default(), Instant::now());
        for number in 1..=(BLOCKS as i64 + 5) * BLOCK as i64 {
            tracker.forget(number);
        }
        assert_eq!(tracker.blocks.len(), BLOCKS);
        let again = |given| {
            let there = Reader { given, sequence: i64::MAX, ..reader };
            tracker.again(there).map(|reader| reader.sequence)
        };
        assert_eq!(again(0), Some(0));
        assert_eq!(again(BLOCK * 4), Some(0), "in the oldest");
        assert_eq!(again(BLOCK * 9), Some(BLOCK as i64 * 9));
        assert_eq!(again(BLOCK * 9 + 7), Some(BLOCK as i64 * 9), "in the midst of one");
        assert_eq!(again(tracker.forgotten), None);
    }
}
