//! Source: where reading stands, and which read comes next.
//!
//! One read is under way at a time. Reads ahead follow each other back to back while they find
//! something and there is room, each with a look behind; reads of late commits alone and of due
//! events come once a poll. The pause between polls grows from the busy to the idle interval while
//! nothing happens.

use std::{
    collections::{BTreeMap, HashSet},
    time::{Duration, Instant},
};

use posthaste_core::store::{Due, DueKey, Limit, Page, Position};

use crate::Config;

/// A read to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NextRead {
    Ahead(Position, Limit),
    Late(Position, Limit),
    /// What is due after this one.
    Due(Option<DueKey>, Limit),
    /// The same, on the walk that goes on when there is room for replays.
    Replays(Option<DueKey>, Limit),
    /// The cursor of one destination.
    Behind {
        destination: u16,
        from: Position,
        limit: Limit,
        take: Take,
    },
}

/// What is to become of a page of one destination's cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Take {
    /// All of it.
    All,
    /// One event, to see whether the destination is back.
    One,
    /// One event of a key that was not tried yet.
    OneOfNewKey {
        /// Nothing that was passed over lies before the page.
        first: bool,
    },
    /// The first event of this key: it was tried longest ago.
    OneOfKey(i64),
}

impl NextRead {
    /// The most that it may bring.
    pub(crate) fn limit(&self) -> Limit {
        match self {
            Self::Ahead(_, limit)
            | Self::Late(_, limit)
            | Self::Due(_, limit)
            | Self::Replays(_, limit)
            | Self::Behind { limit, .. } => *limit,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Due,
    Replays,
    Late,
    Ahead,
    Behind,
}

/// How many events there is room for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Room {
    /// From a poll.
    pub(crate) cold: usize,
    /// That came late. A key that fills the memory must not keep late ones of other keys out.
    pub(crate) late: usize,
    /// Whose time has come.
    pub(crate) due: usize,
    /// Which an operator sends again.
    pub(crate) replays: usize,
    /// Everything waits behind one event, which is to be read back whatever room there is.
    pub(crate) blocked: bool,
    /// For destinations that have fallen behind.
    pub(crate) behind: Vec<RoomBehind>,
    /// Bytes that a page may have; `None` when there is no room at all.
    pub(crate) bytes: Option<usize>,
    /// A read of fewer is not worth it.
    pub(crate) least: usize,
}

/// How many events there is room for at a destination that has fallen behind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RoomBehind {
    pub(crate) destination: u16,
    pub(crate) rows: usize,
    /// It is down, and one event is looked for to try it with.
    pub(crate) probes: bool,
}

/// So many pages are walked over for one probe, so that it costs the same however long the destination is
/// down.
const WALKED_PAGES: u32 = 20;

/// So often a walk over what is due leaves nothing out that names a destination: with other routes than when it
/// failed, an event may go elsewhere.
const DUE_WHOLE: Duration = Duration::from_mins(1);

/// Most keys that a walk remembers; then it begins anew.
const WALKED_KEYS: usize = 10_000;

/// A walk over what was passed over, to find an event of a key that the destination was not tried with.
/// Otherwise one key with many events, which the destination never takes, would hide all others. It goes on
/// from probe to probe.
#[derive(Debug, Default)]
struct Walk {
    /// Where it goes on; `None` at the beginning.
    place: Option<Position>,
    /// The keys before that: their later events must not be tried first.
    keys: HashSet<i64>,
    /// How many pages it went over for the present probe.
    pages: u32,
    /// It has found none: any key may be tried.
    ended: bool,
    /// Where the first events lie of keys that were tried.
    tried: BTreeMap<i64, Position>,
    /// The one of these whose turn it is.
    again: Option<i64>,
}

/// The cursor of a destination whose events were passed over: all of them lie ahead of it.
#[derive(Debug)]
struct Behind {
    position: Position,
    /// Another one whenever the position is set back: what a read that began before has found may lie
    /// behind an event that is not in hand any more.
    generation: u64,
    /// Something was passed over since the last read began.
    skipped: bool,
    walk: Walk,
}

impl Behind {
    /// Where the next read begins, and what is to be taken of it.
    fn next(&mut self, probes: bool) -> (Position, Take) {
        if !probes {
            self.walk = Walk::default();
            return (self.position.clone(), Take::All);
        }
        if let Some(key) = self.walk.again
            && let Some(place) = self.walk.tried.get(&key)
        {
            return (place.clone(), Take::OneOfKey(key));
        }
        match &self.walk.place {
            _ if self.walk.ended => (self.position.clone(), Take::One),
            None => (self.position.clone(), Take::OneOfNewKey { first: true }),
            Some(place) => (place.clone(), Take::OneOfNewKey { first: false }),
        }
    }
}

/// A walk over what is due that stands until there is room for replays: an operator can send a million again. As
/// long as there is one, the walk over everything else that is due leaves replays out.
#[derive(Debug, Default)]
struct Replays {
    /// Where it goes on.
    after: Option<DueKey>,
    /// Its next page may be read: a poll came, or something of the last one goes.
    wanted: bool,
    /// Replays were left in the table since it began: it begins anew when it ends.
    left: bool,
    /// One of them though its destination takes events.
    waits: bool,
    /// The last round has left only replays whose destinations take nothing.
    stands: bool,
}

#[derive(Debug)]
pub(crate) struct Source {
    position: Position,
    /// Rises when the position is set back: a read that began before must not move it.
    generation: u64,
    /// The position is somebody's: ours, or that of the marks it started from.
    placed: bool,
    reading: bool,
    ahead: bool,
    late: bool,
    due: bool,
    /// Which kind of read was the last: the others come first.
    last: Kind,
    caught_up: bool,
    /// Late commits come page by page, and the position stays until all of them have come.
    walking: bool,
    /// Something was found since the last poll.
    found: bool,
    pause: Duration,
    poll_at: Instant,
    /// After a read that failed: no other before then.
    not_before: Instant,
    due_at: Option<Instant>,
    /// Where the walk over what is due goes on.
    due_after: Option<DueKey>,
    /// Something may have fallen due before the place where the walk is: another walk follows.
    due_again: bool,
    /// There were more replays than there is room for.
    replays: Option<Replays>,
    /// The walk over what is due leaves nothing out that names a destination.
    due_whole: bool,
    /// When the next one does so; `None` at once.
    due_whole_at: Option<Instant>,
    /// Most rows of a page: fewer after a read that was not answered in time.
    page: usize,
    batch: usize,
    busy_interval: Duration,
    idle_interval: Duration,
    behind: BTreeMap<u16, Behind>,
    /// Which of them was read last: they take turns, too.
    last_behind: u16,
    /// The last generation of any of them.
    generations: u64,
}

impl Source {
    pub(crate) fn new(config: &Config, now: Instant) -> Self {
        Self {
            position: Position::default(),
            generation: 0,
            placed: false,
            reading: false,
            ahead: true,
            late: true,
            due: true,
            last: Kind::Ahead,
            caught_up: false,
            walking: false,
            found: false,
            pause: config.busy_interval,
            poll_at: now,
            not_before: now,
            due_at: None,
            due_after: None,
            due_again: false,
            replays: None,
            due_whole: true,
            due_whole_at: None,
            page: config.batch,
            batch: config.batch,
            busy_interval: config.busy_interval,
            idle_interval: config.idle_interval,
            behind: BTreeMap::new(),
            last_behind: 0,
            generations: 0,
        }
    }

    pub(crate) fn position(&self) -> &Position {
        &self.position
    }

    pub(crate) fn is_reading(&self) -> bool {
        self.reading
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Everything visible was read once, and nothing has been announced since.
    pub(crate) fn exhausted(&self) -> bool {
        let replays = self.replays.as_ref().is_some_and(|walk| !walk.stands);
        self.caught_up && !self.reading && !self.ahead && !self.late && !self.due && !replays
    }

    /// What is due has been read.
    pub(crate) fn due_is_read(&self) -> bool {
        !self.reading && !self.due
    }

    /// Where the walks over what is due go on.
    pub(crate) fn due_positions(&self) -> [Option<DueKey>; 2] {
        [self.due_after, self.replays.as_ref().and_then(|walk| walk.after)]
    }

    /// Retries of destinations that take nothing may be left out of the read of what is due that begins.
    pub(crate) fn leaves_out(&self) -> bool {
        !self.due_whole
    }

    /// Replays come through a walk of their own.
    pub(crate) fn has_replays(&self) -> bool {
        self.replays.is_some()
    }

    /// A replay of the page that was read of due events stays in the table: there is no room for it. Called
    /// before the walk goes on.
    pub(crate) fn leave_replays(&mut self) {
        let after = self.due_after;
        self.replays.get_or_insert_with(|| Replays { after, wanted: true, ..Replays::default() });
    }

    /// All that was visible at the last read ahead has been read.
    pub(crate) fn caught_up(&self) -> bool {
        self.caught_up
    }

    /// Events ahead of the position wait until all late commits are read.
    pub(crate) fn is_walking(&self) -> bool {
        self.walking
    }

    /// The position, if it is somebody's.
    pub(crate) fn placed(&self) -> Option<&Position> {
        self.placed.then_some(&self.position)
    }

    /// New shards: reading starts again from here, where nothing of theirs is missed, nor of those that
    /// were ours before.
    pub(crate) fn rewind(&mut self, to: Position, join: impl Fn(&[Position]) -> Position) {
        self.position = to;
        self.placed = true;
        self.generation += 1;
        self.caught_up = false;
        self.walking = false;
        (self.ahead, self.late, self.due) = (true, true, true);
        (self.due_after, self.replays, self.due_whole_at) = (None, None, None);
        // Whose events of the new shards are in hand, nobody knows yet.
        self.generations += 1;
        for behind in self.behind.values_mut() {
            behind.position = join(&[behind.position.clone(), self.position.clone()]);
            behind.generation = self.generations;
            behind.walk = Walk::default();
        }
    }

    /// Nothing is owned any more: the next owner's position is its own.
    pub(crate) fn reset(&mut self) {
        self.generation += 1;
        self.placed = false;
        self.walking = false;
        self.position = Position::default();
        self.caught_up = false;
        (self.due_after, self.replays) = (None, None);
        self.behind.clear();
    }

    /// An event of this destination was passed over. Called before the position moves past it.
    pub(crate) fn fall_behind(&mut self, destination: u16, sequence: i64) {
        // The hot path goes ahead of the position: what lies between is nobody's yet.
        let before = Position {
            sequence: self.position.sequence.min(sequence - 1),
            context: self.position.context.clone(),
        };
        self.generations += 1;
        let generation = self.generations;
        let behind = self.behind.entry(destination).or_insert_with(|| Behind {
            position: before,
            generation,
            skipped: true,
            walk: Walk::default(),
        });
        behind.skipped = true;
        if sequence <= behind.position.sequence {
            behind.position.sequence = sequence - 1;
            behind.generation = generation;
            behind.walk = Walk::default();
        }
    }

    /// The destinations that have fallen behind.
    pub(crate) fn behind(&self) -> impl Iterator<Item = u16> {
        self.behind.keys().copied()
    }

    /// Nothing that was passed over lies at or before this.
    pub(crate) fn behind_mark(&self) -> Option<i64> {
        self.behind.values().map(|behind| behind.position.sequence).min()
    }

    /// Where this destination's own cursor stands.
    pub(crate) fn behind_position(&self, destination: u16) -> i64 {
        self.behind.get(&destination).map_or(0, |behind| behind.position.sequence)
    }

    /// A read of this destination's own cursor begins: from where, and what is to be taken of it.
    pub(crate) fn begin_behind(
        &mut self,
        destination: u16,
        probes: bool,
    ) -> Option<(Position, Take)> {
        let behind = self.behind.get_mut(&destination)?;
        behind.skipped = false;
        Some(behind.next(probes))
    }

    pub(crate) fn behind_generation(&self, destination: u16) -> u64 {
        self.behind.get(&destination).map_or(0, |behind| behind.generation)
    }

    /// A read of one destination's own cursor came back that is of use: it did not begin before the
    /// cursor was set back.
    pub(crate) fn is_behind_since(&self, destination: u16, generation: u64) -> bool {
        self.behind.get(&destination).is_some_and(|behind| behind.generation == generation)
    }

    /// A read of one destination's cursor was merged; `taken` when everything of it is in hand.
    /// Gives whether it has caught up.
    pub(crate) fn read_behind(
        &mut self,
        destination: u16,
        page: &Page,
        generation: u64,
        taken: bool,
    ) -> bool {
        self.reading = false;
        let Some(behind) = self.behind.get_mut(&destination) else {
            return false;
        };
        if !taken || generation != behind.generation {
            return false;
        }
        self.found = true;
        self.page = (self.page * 2).min(self.batch);
        behind.position = page.position.clone();
        let caught_up = page.caught_up && !behind.skipped;
        if caught_up {
            self.behind.remove(&destination);
        }
        caught_up
    }

    /// The keys that the walk of this destination has met.
    pub(crate) fn walked(&mut self, destination: u16) -> Option<&mut HashSet<i64>> {
        Some(&mut self.behind.get_mut(&destination)?.walk.keys)
    }

    /// The page that the walk of this destination has read brings the first events of these keys, as far as it has
    /// not met them before. Remembers where those lie that were tried.
    pub(crate) fn met(&mut self, destination: u16, keys: &[i64], was_tried: impl Fn(i64) -> bool) {
        let Some(Behind { walk, position, .. }) = self.behind.get_mut(&destination) else { return };
        let place = walk.place.as_ref().unwrap_or(position);
        for key in keys.iter().filter(|key| was_tried(**key)) {
            walk.tried.insert(*key, place.clone());
        }
        walk.tried.retain(|key, _| was_tried(*key));
    }

    /// The walk of this destination has found nothing in this page, and goes on after it. Once it has ended, it is
    /// the turn of the key that `choose` names among those that were tried.
    pub(crate) fn walk_on(
        &mut self,
        destination: u16,
        page: &Page,
        choose: impl FnOnce(Vec<i64>) -> Option<i64>,
    ) {
        let Some(Behind { walk, .. }) = self.behind.get_mut(&destination) else { return };
        if page.caught_up || walk.keys.len() > WALKED_KEYS {
            let tried = std::mem::take(&mut walk.tried);
            *walk = Walk { ended: true, tried, ..Walk::default() };
        } else {
            walk.place = Some(page.position.clone());
            walk.pages += 1;
            walk.ended = walk.pages >= WALKED_PAGES;
        }
        if walk.ended {
            walk.again = choose(walk.tried.keys().copied().collect());
        }
    }

    /// No event of this key can be tried where one was met: any key may be.
    pub(crate) fn is_gone(&mut self, destination: u16, key: i64) {
        if let Some(Behind { walk, .. }) = self.behind.get_mut(&destination) {
            walk.tried.remove(&key);
            walk.again = None;
        }
    }

    /// The destination is being tried, or there is nothing to try it with. The next walk goes on where this
    /// one has come to.
    pub(crate) fn walk_ended(&mut self, destination: u16) {
        if let Some(Behind { walk, .. }) = self.behind.get_mut(&destination) {
            (walk.pages, walk.ended, walk.again) = (0, false, None);
        }
    }

    /// Something was committed.
    pub(crate) fn wake(&mut self) {
        self.ahead = true;
        self.pause = self.busy_interval;
    }

    /// When something is to be done, if nothing happens before.
    pub(crate) fn next_poll(&self) -> Instant {
        self.due_at.map_or(self.poll_at, |due| due.min(self.poll_at)).max(self.not_before)
    }

    /// The read to start now.
    pub(crate) fn next(&mut self, now: Instant, room: &Room) -> Option<NextRead> {
        if self.reading {
            return None;
        }
        if now >= self.poll_at {
            (self.ahead, self.late, self.due) = (true, true, true);
            if let Some(walk) = &mut self.replays {
                walk.wanted = true;
            }
            self.pause = if self.found {
                self.busy_interval
            } else {
                (self.pause * 2).clamp(self.busy_interval, self.idle_interval)
            };
            self.found = false;
            self.poll_at = now + self.pause;
        }
        if self.due_at.is_some_and(|at| now >= at) {
            self.due_at = None;
            self.due = true;
        }
        if now < self.not_before {
            return None;
        }
        let kind = self.next_kind(room)?;
        let bytes = room.bytes.unwrap_or(1);
        self.last = kind;
        let page = self.page;
        let most = |rows: usize| Limit { rows: page.min(rows).max(1), bytes };
        let read = match kind {
            Kind::Due => {
                self.due = false;
                self.due_again &= self.due_after.is_some();
                if self.due_after.is_none() {
                    self.due_whole = self.due_whole_at.is_none_or(|at| now >= at);
                    if self.due_whole {
                        self.due_whole_at = Some(now + DUE_WHOLE);
                    }
                }
                NextRead::Due(self.due_after, most(room.due))
            }
            Kind::Replays => {
                let walk = self.replays.as_mut()?;
                walk.wanted = false;
                NextRead::Replays(walk.after, most(room.replays))
            }
            Kind::Late => {
                self.late = false;
                NextRead::Late(self.position.clone(), most(room.late))
            }
            Kind::Ahead => {
                self.ahead = false;
                NextRead::Ahead(self.position.clone(), most(room.cold))
            }
            Kind::Behind => {
                let next = room.behind.iter().find(|of| of.destination > self.last_behind);
                let RoomBehind { destination, rows, probes } = *next.or(room.behind.first())?;
                self.last_behind = destination;
                let (from, take) = self.begin_behind(destination, probes)?;
                NextRead::Behind { destination, from, limit: most(rows), take }
            }
        };
        self.reading = true;
        Some(read)
    }

    /// They take turns. One that is wanted again and again, such as due events where much fails, or
    /// all of them where a read takes longer than the pause between polls, must not keep the others
    /// from theirs.
    fn next_kind(&self, room: &Room) -> Option<Kind> {
        let turns = [Kind::Due, Kind::Replays, Kind::Late, Kind::Ahead, Kind::Behind];
        let next = turns.iter().position(|kind| *kind == self.last).map_or(0, |last| last + 1);
        let mut in_turn = turns.into_iter().cycle().skip(next).take(turns.len());
        // What blocks everything is read whatever room there is. It must not wait for the turn of a read that
        // has to wait for room: that is taken by what it blocks.
        let has_room = |kind: &Kind| room.bytes.is_some() || *kind == Kind::Due && room.blocked;
        in_turn.find(|kind| {
            has_room(kind)
                && match kind {
                    Kind::Due => self.due && (room.due >= room.least || room.blocked),
                    Kind::Replays => {
                        let wanted = self.replays.as_ref().is_some_and(|walk| walk.wanted);
                        wanted && room.replays >= room.least
                    }
                    Kind::Late => self.late && room.late >= room.least,
                    Kind::Ahead => self.ahead && room.cold >= room.least,
                    Kind::Behind => !room.behind.is_empty(),
                }
        })
    }

    /// A read ahead came back, with this many events that were news. Where there is more, new events are written
    /// meanwhile: the next poll comes soon, also if nothing of this goes on.
    pub(crate) fn read_ahead(&mut self, page: &Page, generation: u64, news: usize) {
        self.answered(news);
        self.found |= !page.caught_up;
        if generation == self.generation {
            self.walking = !page.caught_up && page.position.sequence == self.position.sequence;
            self.position = page.position.clone();
            self.caught_up = page.caught_up;
        }
        self.ahead |= !page.caught_up;
    }

    /// A read of late commits came back.
    pub(crate) fn read_late(&mut self, page: &Page, generation: u64, news: usize) {
        self.answered(news);
        self.found |= !page.caught_up;
        self.late |= !page.caught_up;
        if generation == self.generation {
            self.walking = !page.caught_up;
            // A store that has to start again says so by the sequence.
            self.position = page.position.clone();
        }
    }

    /// A read of due events came back. The walk over them goes on to its end, whatever became of these:
    /// what cannot go now does not hide what falls due after it.
    pub(crate) fn read_due(&mut self, due: &Due, now: Instant, news: usize) {
        self.answered(news);
        self.due |= due.more.is_some() || self.due_again;
        self.due_after = due.more;
        // An earlier time stays: it may be of a retry that was written since the read began.
        if let Some(wait) = due.next {
            self.expect_due(now + wait);
        }
    }

    /// A page of the walk that waits for room for replays came back. `left`: one of it stays in the table, and whether
    /// its destination takes events.
    pub(crate) fn read_replays(&mut self, due: &Due, news: usize, left: Option<bool>) {
        self.answered(news);
        let Some(walk) = &mut self.replays else { return };
        walk.left |= left.is_some();
        walk.waits |= left == Some(true);
        walk.after = due.more;
        // What cannot go now is not read again and again.
        walk.wanted |= news > 0;
        if due.more.is_none() && !walk.left {
            self.replays = None;
            // What came meanwhile was left out.
            self.more_is_due();
        } else if due.more.is_none() {
            walk.stands = !walk.waits;
            (walk.left, walk.waits) = (false, false);
        }
    }

    /// There is more that is due than was read.
    pub(crate) fn more_is_due(&mut self) {
        self.due = true;
        self.due_again = true;
        if let Some(walk) = &mut self.replays {
            (walk.wanted, walk.stands) = (true, false);
        }
    }

    /// Something at or before the position is free again.
    pub(crate) fn more_is_late(&mut self) {
        self.late = true;
    }

    /// A read was answered: the next one may bring more again.
    fn answered(&mut self, news: usize) {
        self.reading = false;
        self.found |= news > 0;
        self.page = (self.page * 2).min(self.batch);
    }

    /// A read was not answered in time: the next one asks for less.
    pub(crate) fn timed_out(&mut self) {
        self.page = (self.page / 2).max(1);
    }

    /// A read failed: pause, then all of them again.
    pub(crate) fn failed(&mut self, now: Instant) {
        self.reading = false;
        self.pause = (self.pause * 2).clamp(self.busy_interval, self.idle_interval);
        self.poll_at = now + self.pause;
        self.not_before = self.poll_at;
    }

    /// A retry was written that falls due after this time.
    pub(crate) fn expect_due(&mut self, at: Instant) {
        if self.due_at.is_none_or(|known| at < known) {
            self.due_at = Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For so many of each kind that is not behind.
    fn room(rows: usize) -> Room {
        let bytes = Some(1000);
        let (cold, late, due) = (rows, rows, rows);
        Room { cold, late, due, least: 5, bytes, ..Room::default() }
    }

    /// A key that fills the memory may be why there is none for others.
    #[test]
    fn late_commits_are_read_although_there_is_no_room_for_what_is_ahead() {
        let now = Instant::now();
        let mut source = Source::new(&Config::default(), now);
        source.rewind(Position::default(), |positions| positions[0].clone());
        let room = Room { late: 10, bytes: Some(1), least: 5, ..Room::default() };
        let next = source.next(now, &room);
        assert!(matches!(next, Some(NextRead::Late(_, Limit { rows: 10, bytes: 1 }))), "{next:?}");
    }

    #[test]
    fn reads_that_take_longer_than_the_pause_between_polls_take_turns() {
        let config = Config {
            busy_interval: Duration::from_millis(1),
            idle_interval: Duration::from_millis(1),
            ..Config::default()
        };
        let mut now = Instant::now();
        let mut source = Source::new(&config, now);
        let mut kinds = Vec::new();
        for _ in 0..6 {
            let room = room(10);
            let next = source.next(now, &room).unwrap();
            now += Duration::from_millis(50);
            let page = Page { rows: Vec::new(), position: Position::default(), caught_up: true };
            match next {
                NextRead::Ahead(..) => source.read_ahead(&page, 0, 0),
                NextRead::Late(..) => source.read_late(&page, 0, 0),
                NextRead::Due(..) => {
                    // The next one is due before it is looked for.
                    let next = Some(Duration::ZERO);
                    let due = Due { rows: Vec::new(), more: None, next };
                    source.read_due(&due, now, 0);
                }
                NextRead::Replays(..) => unreachable!("there are none"),
                NextRead::Behind { .. } => unreachable!("nobody is behind"),
            }
            kinds.push(source.last);
        }
        let turn = [Kind::Due, Kind::Late, Kind::Ahead];
        assert_eq!(kinds, [turn, turn].concat());
    }

    /// Late commits of a paused destination are read page by page, and none of them is news.
    #[test]
    fn polls_stay_frequent_while_there_is_more_to_read() {
        let config = Config::default();
        let mut now = Instant::now();
        let mut source = Source::new(&config, now);
        for _ in 0..100 {
            now += config.busy_interval / 10;
            let room = room(10);
            match source.next(now, &room) {
                Some(NextRead::Due(..)) => source.read_due(&found(None, None), now, 0),
                Some(NextRead::Ahead(..)) => source.read_ahead(&page(9, false), 0, 0),
                Some(NextRead::Late(..)) => source.read_late(&page(9, false), 0, 0),
                other => panic!("{other:?}"),
            }
        }
        assert!(source.next_poll() <= now + config.busy_interval);
    }

    fn page(to: i64, caught_up: bool) -> Page {
        let position = Position { sequence: to, context: Position::default().context };
        Page { rows: Vec::new(), position, caught_up }
    }

    /// The next read of a destination that is down: after which event it begins, and what is taken.
    fn probe(source: &mut Source, now: Instant) -> (i64, Take) {
        let behind = vec![RoomBehind { destination: 3, rows: 100, probes: true }];
        let room = Room { behind, bytes: Some(1000), least: 1, ..Room::default() };
        source.reading = false;
        match source.next(now, &room) {
            Some(NextRead::Behind { from, take, .. }) => (from.sequence, take),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_walk_for_a_probe_goes_on_from_probe_to_probe_and_takes_so_many_pages_for_each() {
        let now = Instant::now();
        let mut source = Source::new(&Config::default(), now);
        source.position.sequence = 1_000_000;
        source.fall_behind(3, 101);
        assert_eq!(probe(&mut source, now), (100, Take::OneOfNewKey { first: true }));
        source.walk_on(3, &page(200, false), |_| None);
        for walked in 2..=WALKED_PAGES {
            let from = i64::from(walked) * 100;
            assert_eq!(probe(&mut source, now), (from, Take::OneOfNewKey { first: false }));
            source.walk_on(3, &page(from + 100, false), |_| None);
        }
        assert_eq!(probe(&mut source, now), (100, Take::One), "there is none so far");
        source.walk_ended(3);
        assert_eq!(probe(&mut source, now), (2_100, Take::OneOfNewKey { first: false }));
        source.walk_on(3, &page(2_150, true), |_| None);
        assert_eq!(probe(&mut source, now), (100, Take::One), "there is none");
        source.walk_ended(3);
        assert_eq!(probe(&mut source, now), (100, Take::OneOfNewKey { first: true }), "again");
    }

    /// What lies between was not met.
    #[test]
    fn a_walk_begins_anew_when_its_cursor_is_set_back() {
        let now = Instant::now();
        let mut source = Source::new(&Config::default(), now);
        source.position.sequence = 1_000_000;
        source.fall_behind(3, 101);
        source.walked(3).unwrap().insert(7);
        source.walk_on(3, &page(200, false), |_| None);
        source.fall_behind(3, 150);
        assert_eq!(probe(&mut source, now), (200, Take::OneOfNewKey { first: false }));
        source.fall_behind(3, 51);
        assert_eq!(probe(&mut source, now), (50, Take::OneOfNewKey { first: true }));
        assert!(source.walked(3).unwrap().is_empty());
    }

    /// The next read of due events: after which one it begins, or 0.
    fn due(source: &mut Source, now: Instant) -> Option<i64> {
        let room = Room { due: 10, least: 5, bytes: Some(1000), ..Room::default() };
        match source.next(now, &room)? {
            NextRead::Due(after, _) => Some(after.map_or(0, |after| after.sequence)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn replays_for_which_there_is_no_room_stop_no_walk_over_what_is_due() {
        let now = Instant::now();
        let mut source = Source::new(&Config::default(), now);
        let key = |sequence| Some(DueKey { at: sequence, sequence });
        assert_eq!(due(&mut source, now), Some(0));
        source.read_due(&found(key(500), None), now, 500);
        assert_eq!(due(&mut source, now), Some(500));
        source.leave_replays();
        source.read_due(&found(key(1_000), None), now, 250);
        assert!(source.has_replays() && !source.exhausted());
        assert_eq!(due(&mut source, now), Some(1_000), "the others go on");
        source.read_due(&found(None, None), now, 0);
        let replays = |source: &mut Source, now, room| {
            source.reading = false;
            let room = Room { replays: room, least: 5, bytes: Some(1000), ..Room::default() };
            match source.next(now, &room)? {
                NextRead::Replays(after, limit) => {
                    Some((after.map_or(0, |a| a.sequence), limit.rows))
                }
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(replays(&mut source, now, 4), None, "not for so few");
        assert_eq!(
            replays(&mut source, now, 10),
            Some((500, 10)),
            "from the page that was not taken whole"
        );
        source.read_replays(&found(key(510), None), 10, None);
        assert_eq!(replays(&mut source, now, 10), Some((510, 10)));
        source.read_replays(&found(key(520), None), 0, Some(true));
        assert_eq!(replays(&mut source, now, 10), None, "nothing of it goes: at the next poll");
        let later = now + Duration::from_secs(2);
        assert_eq!(replays(&mut source, later, 10), Some((520, 10)));
        source.read_replays(&found(None, None), 0, None);
        assert!(source.has_replays(), "one was left");
        let later = later + Duration::from_secs(2);
        assert_eq!(replays(&mut source, later, 10), Some((0, 10)));
        source.read_replays(&found(None, None), 10, None);
        assert!(!source.has_replays());
        assert_eq!(due(&mut source, later), Some(0), "all together again");
    }

    fn found(more: Option<DueKey>, next: Option<Duration>) -> Due {
        Due { rows: Vec::new(), more, next }
    }

    /// The read has looked before that was written.
    #[test]
    fn a_retry_that_is_written_during_a_read_of_due_events_is_awaited() {
        let begin = Instant::now();
        let (second, minute) = (Duration::from_secs(1), Duration::from_mins(1));
        for next in [None, Some(minute)] {
            let mut source = Source::new(&Config::default(), begin);
            source.expect_due(begin + second / 2);
            assert_eq!(due(&mut source, begin + second), Some(0));
            source.poll_at = begin + minute;
            source.expect_due(begin + 2 * second);
            source.read_due(&found(None, next), begin + second, 0);
            assert_eq!(source.next_poll(), begin + 2 * second, "{next:?}");
        }
    }

    /// Large events of other keys fill the memory, and wait behind a retry that is in the table.
    #[test]
    fn what_blocks_everything_is_read_although_nothing_else_has_room_in_memory() {
        let now = Instant::now();
        let mut source = Source::new(&Config::default(), now);
        let room =
            Room { cold: 10, due: 10, blocked: true, bytes: None, least: 5, ..Room::default() };
        for round in 0..3 {
            let next = source.next(now, &room);
            assert!(matches!(next, Some(NextRead::Due(..))), "{round}: {next:?}");
            source.more_is_due();
            source.read_due(&found(None, None), now, 0);
        }
        let room = Room { blocked: false, ..room };
        assert!(source.next(now, &room).is_none(), "nothing else comes without a byte");
    }

    /// It may lie before the place where the walk is.
    #[test]
    fn what_is_due_again_during_a_walk_is_read_by_another_walk() {
        let now = Instant::now();
        let (first, second) = (DueKey { at: 1, sequence: 1 }, DueKey { at: 2, sequence: 2 });
        // While a page is read, and between two pages.
        for during in [true, false] {
            let mut source = Source::new(&Config::default(), now);
            assert_eq!(due(&mut source, now), Some(0));
            source.read_due(&found(Some(first), None), now, 0);
            if !during {
                source.more_is_due();
            }
            assert_eq!(due(&mut source, now), Some(1));
            if during {
                source.more_is_due();
            }
            source.read_due(&found(Some(second), None), now, 0);
            assert_eq!(due(&mut source, now), Some(2), "the walk goes on to its end");
            source.read_due(&found(None, None), now, 0);
            assert_eq!(due(&mut source, now), Some(0), "{during}");
            source.read_due(&found(None, None), now, 0);
            assert_eq!(due(&mut source, now), None);
        }
    }
}
