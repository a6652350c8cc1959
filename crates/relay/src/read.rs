//! Reading: starts the read that comes next, and offers what reads brought to the lanes.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use posthaste_core::{
    Error, ErrorKind, Result,
    store::{
        Blocked, BlockedLanes, Due, DueKey, Fetched, LaneKey, LeaveOut, Limit, Page, RelayOrdering,
        RowLease, Store,
    },
};

use crate::{
    driver::{Done, Driver, RETRY_PAUSE},
    lanes::{
        Feed, Lanes, Offered, Origin, Probed, RELEASE_LIMIT, ReadBack, Release, backlog_limit,
    },
    settle::SETTLE_BATCHES,
    source::{NextRead, Room, RoomBehind, Source, Take},
};

/// Most events that are looked for when the one lane of `global` is blocked. It is one, unless others
/// are left from a time of another ordering.
const BLOCKERS: usize = 100;

/// A claim of fewer rows would bring none but those whose time has come, as long as there are any.
pub(crate) const TWO_KINDS: usize = 2;

/// How many rows are looked at to find one that a destination can be tried with.
const PROBE_PAGE: usize = 100;

/// How many blocked lanes are asked about in one statement.
pub(crate) const LANES: usize = 1_000;

/// Most lanes, whoever's they are, that one statement of a survey walks over.
const SURVEYED: usize = 5_000;

/// Most lanes whose held events are read back at the same time: each brings a page.
const RELEASES: usize = 4;

impl Driver {
    /// Whether there is something to read from, and nothing in the way of it.
    pub(crate) fn reads(&self) -> bool {
        let taking = self.acquiring || !self.wanted.is_empty() || self.surveys_taken();
        let owns = self.shards.reads() && self.shards.suffices();
        let claims = self.by_rows() && self.owns_rows(self.clock.now());
        !self.rests() && (claims || (!self.by_rows() && owns && !taking))
    }

    /// It is not known yet what blocks lanes of shards that were taken.
    fn surveys_taken(&self) -> bool {
        self.survey.as_ref().is_some_and(|survey| survey.taken)
    }

    pub(crate) fn read(&mut self, now: Instant) {
        if !self.reads() {
            return;
        }
        let room = self.room();
        let Some(next) = self.source.next(now, &room) else {
            return;
        };
        self.lanes.stats.polls += 1;
        let reserved = self.lanes.budget().reserve(next.limit().bytes);
        if self.by_rows() {
            self.claim(next, reserved);
            return;
        }
        let read = self.lanes.read_began();
        let generation = match &next {
            NextRead::Behind { destination, .. } => self.source.behind_generation(*destination),
            _ => self.source.generation(),
        };
        if matches!(next, NextRead::Due(None, _)) {
            self.lanes.due_walk_began();
        }
        let shards = self.shards.reading();
        let store = Arc::clone(&self.store);
        let blocked = self.lanes.all_blocked();
        let but = match &next {
            NextRead::Due(..) | NextRead::Replays(..) => LeaveOut {
                replays: matches!(next, NextRead::Due(..)) && self.source.has_replays(),
                destinations: self.left_out(),
            },
            _ => LeaveOut::default(),
        };
        let deadline = self.config.deadline();
        self.tasks.spawn(async move {
            match next {
                NextRead::Ahead(from, limit) => {
                    let page = within(deadline, store.read_on(&shards, &from, limit)).await;
                    Done::Ahead { read, generation, page, reserved }
                }
                NextRead::Late(from, limit) => {
                    let page = within(deadline, store.read_late(&shards, &from, limit)).await;
                    Done::Late { read, generation, page, reserved }
                }
                NextRead::Due(after, limit) => {
                    let due = read_due(&*store, &shards, after, limit, blocked, &but);
                    let due = within(deadline, due).await;
                    Done::Due { read, replays: false, due, reserved }
                }
                NextRead::Replays(after, limit) => {
                    let due = store.read_due_but(&shards, after, limit, &but);
                    Done::Due { read, replays: true, due: within(deadline, due).await, reserved }
                }
                NextRead::Behind { destination, from, limit, take } => {
                    let page = within(deadline, store.read_on(&shards, &from, limit)).await;
                    Done::Behind { read, destination, generation, take, page, reserved }
                }
            }
        });
    }

    /// Destinations whose retries are not read now.
    fn left_out(&mut self) -> Vec<String> {
        if self.source.leaves_out() { self.lanes.left_out() } else { Vec::new() }
    }

    /// How much the next read may bring.
    fn room(&self) -> Room {
        let (batch, limit) = (self.config.batch, self.config.cold_queue);
        // A queue that is smaller than half a batch never has room for that.
        let half = batch.div_ceil(2).min(limit);
        let cold = self.lanes.cold_room(limit);
        let mut behind = Vec::new();
        let least = half.min(backlog_limit(limit));
        for destination in self.source.behind() {
            if self.lanes.wants_probe(destination) {
                behind.push(RoomBehind { destination, rows: PROBE_PAGE, probes: true });
            } else if self.lanes.room_behind(destination, limit) >= least {
                let rows = self.lanes.room_behind(destination, limit);
                behind.push(RoomBehind { destination, rows, probes: false });
            }
        }
        // Small reads of a large backlog cost as much as large ones: wait for half a batch of room.
        let (cold, due, least) = match self.lanes.feed() {
            // One of those whose time has come and a fresh one: the one that was not tried yet goes.
            Feed::Probes if self.by_rows() => (TWO_KINDS, 1, 1),
            Feed::Flows | Feed::Probes => (cold, cold, half),
            Feed::Stands => (0, cold, half),
        };
        // As many again: those of a key that stands still take a part of it.
        let stands = self.lanes.feed() == Feed::Stands;
        let late = if stands || self.by_rows() { cold } else { self.lanes.cold_room(2 * limit) };
        // Without a byte in memory one event may pass, however large it is.
        let bytes = self.lanes.budget().page();
        if self.lanes.unsettled() >= SETTLE_BATCHES * batch {
            // What is read and cannot go is written back: writing has to keep up.
            let blocked = self.lanes.all_blocked();
            return Room { blocked, bytes, least: 1, ..Room::default() };
        }
        let room = self.unwritten.room();
        let (due, late) = (due.min(room), late.min(room));
        let cold = if self.unwritten.is_full() { 0 } else { cold };
        behind.retain_mut(|of| {
            of.rows = of.rows.min(room);
            of.rows > 0
        });
        let replays = self.lanes.replay_room(limit).min(room);
        let blocked = self.lanes.all_blocked();
        Room { cold, late, due, replays, blocked, behind, bytes, least }
    }

    /// The cursor of one destination has read.
    pub(crate) fn read_behind(
        &mut self,
        destination: u16,
        generation: u64,
        take: Take,
        page: Result<Page>,
        now: Instant,
    ) {
        let Some(mut page) = self.came(page, "catching up", now) else {
            return;
        };
        let mut rows = std::mem::take(&mut page.rows);
        let reused = self.cut_reused(&mut rows);
        let mut taken = false;
        if self.source.is_behind_since(destination, generation) {
            for row in &rows {
                self.highest = self.highest.max(row.sequence);
            }
            // What was cut is read again: a walk has not met its keys.
            if !(reused && matches!(take, Take::OneOfNewKey { .. } | Take::OneOfKey(_))) {
                let (source, lanes) = (&mut self.source, &mut self.lanes);
                taken = take_behind(source, lanes, destination, take, &page, rows, now);
            }
            self.fall_behind();
        }
        if reused {
            return self.source.failed(now);
        }
        if self.source.read_behind(destination, &page, generation, taken) {
            self.lanes.caught_up(destination);
        }
    }

    /// Notes what lanes passed over, before the position moves.
    pub(crate) fn fall_behind(&mut self) {
        fall_behind(&mut self.source, &mut self.lanes);
    }

    /// Offers what a read of the cursor has brought. `None` when the cursor must not pass it yet.
    pub(crate) fn offer_page(&mut self, page: &mut Page, now: Instant) -> Option<usize> {
        let mut rows = std::mem::take(&mut page.rows);
        let reused = self.cut_reused(&mut rows);
        let news = self.offer_all(rows, Origin::Cold, None);
        if reused {
            self.source.failed(now);
        }
        (!reused).then_some(news)
    }

    /// Cuts these before the first whose number an event in hand has that the server has lost: the lanes
    /// know events by their numbers, and would take it for that one. It is read again until that one has
    /// ended. Gives whether there was any.
    fn cut_reused(&self, rows: &mut Vec<Fetched>) -> bool {
        let first = rows.iter().position(|row| self.lanes.is_reused(row));
        rows.truncate(first.unwrap_or(rows.len()));
        first.is_some()
    }

    pub(crate) fn offer_all(
        &mut self,
        rows: Vec<Fetched>,
        origin: Origin,
        claim: Option<&Arc<RowLease>>,
    ) -> usize {
        let now = self.clock.now();
        self.lanes.set_cursor(self.source.position().sequence);
        let mut news = 0;
        for row in rows {
            self.highest = self.highest.max(row.sequence);
            news += usize::from(self.lanes.offer(row, origin, claim, now) != Offered::Ignored);
        }
        self.fall_behind();
        self.lanes.stats.cold_enqueued += news as u64;
        news
    }

    /// Offers what is due.
    pub(crate) fn offer_due(&mut self, rows: Vec<Fetched>) -> usize {
        let rows = due_by_now(rows, self.source.position().sequence);
        self.offer_all(rows, Origin::Due, None)
    }

    /// Reads held events back, and looks at lanes that an earlier owner left: a few lanes at a time.
    pub(crate) fn read_back(&mut self) {
        if self.surveys_taken() {
            // It may know of only some of a key's lanes yet, and another of them may come first.
            return;
        }
        let most_unsettled = SETTLE_BATCHES * self.config.batch;
        while self.releasing < RELEASES {
            let Some(bytes) = self.lanes.budget().small_page() else { break };
            let Some(next) = self.lanes.next_read_back(most_unsettled) else { break };
            let reserved = self.lanes.budget().reserve(bytes);
            self.releasing += 1;
            let store = Arc::clone(&self.store);
            let deadline = self.config.deadline();
            self.tasks.spawn(async move {
                let limit = Limit { rows: RELEASE_LIMIT, bytes };
                match next {
                    ReadBack::Release(release) => {
                        let Release { lane, destination, after, .. } = &release;
                        let read = store.read_held(destination, lane.key, *after, limit);
                        let read = within(deadline, read);
                        let rows = or_pause(read.await, "held events could not be read").await;
                        Done::Released { release, rows, reserved }
                    }
                    ReadBack::Look(look) => {
                        let read = within(deadline, store.read_lane(&look.lane, look.after, limit));
                        let rows = or_pause(read.await, "a lane could not be looked at").await;
                        Done::Looked { look, rows, reserved }
                    }
                }
            });
        }
        if self.lanes.take_due_again() {
            self.source.more_is_due();
        }
    }

    /// Asks now and then whether what blocks lanes is still in the table: an operator can have
    /// removed it when nothing was held behind it that could tell. Under `global` nothing is ever
    /// held, so it is asked more often.
    pub(crate) fn reconcile(&mut self, now: Instant) {
        if self.reconciling || now < self.reconcile_not_before || !self.lanes.blocked() {
            return;
        }
        let (in_turn, asks) = (now >= self.reconcile_at, self.lanes.asks());
        let forgets = self.lanes.is_crowded() && now >= self.forget_at;
        if !in_turn && !asks && !forgets {
            return;
        }
        self.reconciling = true;
        // Those that are asked for before their turn do not put off that of the others.
        if in_turn {
            self.reconcile_at = now
                + match self.config.ordering {
                    RelayOrdering::Global => self.config.idle_interval,
                    _ => self.config.heartbeat,
                };
        }
        let (store, deadline) = (Arc::clone(&self.store), self.config.deadline());
        let read = self.lanes.read_began();
        if self.config.ordering == RelayOrdering::Global {
            // Its one lane is blocked by an event of any lane in the table.
            let shards = self.shards.reading();
            self.tasks.spawn(async move {
                let blocked = any_blocked(&*store, &shards, deadline).await;
                Done::Reconciled { read, asked: None, blocked }
            });
            return;
        }
        let most = if in_turn { LANES / 2 } else { LANES };
        let mut lanes = self.lanes.unsure_lanes(most);
        if forgets {
            lanes.extend(self.forgettable(read, most - lanes.len(), now));
        }
        if in_turn {
            lanes.extend(self.lanes.blocked_lanes(LANES - lanes.len()));
        }
        if lanes.is_empty() {
            self.reconciling = false;
            return self.lanes.read_merged(read);
        }
        self.tasks.spawn(async move {
            let blocked = within(deadline, store.still_blocked(&lanes)).await;
            Done::Reconciled { read, asked: Some(lanes), blocked }
        });
    }

    pub(crate) fn reconciled(
        &mut self,
        read: u64,
        asked: Option<&[LaneKey]>,
        blocked: Result<Vec<Blocked>>,
        now: Instant,
    ) {
        self.reconciling = false;
        match blocked {
            Ok(blocked) => {
                self.lanes.reconcile(read, asked, &blocked);
                self.forget(read, &blocked, now);
            }
            Err(error) => {
                self.lanes.ask_again(asked.unwrap_or_default());
                self.reconcile_not_before = now + RETRY_PAUSE;
                if asked.is_none() {
                    self.reconcile_at = self.reconcile_not_before;
                }
                self.database_failed("looking at blocked lanes", &error);
                if error.kind() == ErrorKind::Moved {
                    self.moved(&error);
                }
            }
        }
        self.lanes.read_merged(read);
    }

    /// Learns which lanes of new shards are blocked, page by page, before their first event is read.
    /// Leases are renewed meanwhile.
    pub(crate) fn survey(&mut self, now: Instant) {
        self.survey_again(now);
        let Some(survey) = &mut self.survey else { return };
        if survey.asking || now < survey.not_before {
            return;
        }
        survey.asking = true;
        let (store, deadline) = (Arc::clone(&self.store), self.config.deadline());
        let (shards, after) = (survey.shards.clone(), survey.after.clone());
        let (number, most) = (survey.number, survey.most);
        self.tasks.spawn(async move {
            let read = store.read_blocked(&shards, after.as_ref(), most);
            let page = within(deadline, read).await;
            Done::Surveyed { number, page }
        });
    }

    pub(crate) fn surveyed(&mut self, number: u64, page: Result<BlockedLanes>, now: Instant) {
        // Others were taken meanwhile, and everything is asked anew.
        let Some(survey) = self.survey.as_mut().filter(|survey| survey.number == number) else {
            return;
        };
        let asked = survey.shards.clone();
        survey.asking = false;
        let page = match page {
            Ok(page) => page,
            Err(error) => {
                survey.failed(error.kind(), now);
                self.database_failed("reading blocked lanes", &error);
                if error.kind() == ErrorKind::Moved {
                    self.moved(&error);
                }
                return;
            }
        };
        survey.answered(page.more);
        for lane in &page.lanes {
            let shard = lane.key.shard(self.shards.total());
            let global = self.config.ordering == RelayOrdering::Global;
            // Some may have been lost while it was asked. The one lane of `global` is of all shards.
            if !asked.contains(&shard) && !global {
                continue;
            }
            if self.lanes.surveyed(shard, lane, survey.taken) {
                survey.finds_all = false;
            }
        }
        if survey.after.is_none() {
            if survey.finds_all {
                self.lanes.has_all_lanes();
            }
            self.survey = None;
        }
    }
}

/// Notes what lanes passed over, before the position moves, and tells them where the cursors of destinations
/// that are behind stand.
pub(crate) fn fall_behind(source: &mut Source, lanes: &mut Lanes) {
    for (destination, sequence) in lanes.take_skipped() {
        source.fall_behind(destination, sequence);
    }
    for destination in source.behind() {
        lanes.set_own_cursor(destination, source.behind_position(destination));
    }
}

/// Which of these go on now, and in which order. A delayed event joins its key's order when it falls due. One
/// that the cursor has not reached waits for it: earlier events of its key may come before.
pub(crate) fn due_by_now(rows: Vec<Fetched>, cursor: i64) -> Vec<Fetched> {
    let (mut delayed, mut due): (Vec<_>, Vec<_>) =
        rows.into_iter().partition(|row| row.wait.is_none());
    delayed.retain(|row| row.sequence <= cursor);
    delayed.sort_unstable_by_key(|row| row.sequence);
    due.append(&mut delayed);
    due
}

/// Hands the lanes what is to be taken of a page of one destination's cursor. Returns whether all of it is in
/// hand, so that the cursor may move on.
pub(crate) fn take_behind(
    source: &mut Source,
    lanes: &mut Lanes,
    destination: u16,
    take: Take,
    page: &Page,
    rows: Vec<Fetched>,
    now: Instant,
) -> bool {
    match take {
        // If that is all there is, one of any key may go.
        Take::OneOfNewKey { first }
            if lanes.wants_probe(destination) && !(first && page.caught_up) =>
        {
            let Some(walked) = source.walked(destination) else { return false };
            let keys = lanes.new_keys(destination, &rows, walked);
            let probed = lanes.probe_new_key(destination, rows, walked, now);
            source.met(destination, &keys, |key| lanes.was_tried(destination, key));
            match probed {
                Probed::Nothing if first => return true,
                Probed::Nothing | Probed::OnlyKnown => {
                    source.walk_on(destination, page, |tried| lanes.next_turn(destination, tried));
                }
                Probed::Tried => source.walk_ended(destination),
            }
            false
        }
        Take::OneOfKey(key) if lanes.wants_probe(destination) => {
            if lanes.probe_key(destination, key, rows, now) {
                source.walk_ended(destination);
            } else {
                source.is_gone(destination, key);
            }
            false
        }
        // The destination takes events again: first those that the page comes after.
        Take::OneOfNewKey { first: false } | Take::OneOfKey(_) => false,
        Take::OneOfNewKey { first: true } | Take::All | Take::One => {
            source.walk_ended(destination);
            lanes.catch_up(destination, rows, now)
        }
    }
}

/// What new shards must be asked for before they are read.
pub(crate) struct Survey {
    /// Each has its own: an answer to an earlier one is not for this one.
    pub(crate) number: u64,
    pub(crate) shards: Vec<u16>,
    pub(crate) after: Option<LaneKey>,
    pub(crate) asking: bool,
    pub(crate) not_before: Instant,
    /// The shards were taken just now. Nothing is read before it has ended: any lane that was not met yet
    /// may be one of a destination that had another name.
    pub(crate) taken: bool,
    /// It began with all shards, and no blocked lane was left in the table since.
    pub(crate) finds_all: bool,
    /// How many lanes, whoever's they are, its next statement walks over.
    most: usize,
}

impl Survey {
    /// One of shards that were taken just now, or of all.
    pub(crate) fn new(number: u64, shards: Vec<u16>, taken: bool, now: Instant) -> Self {
        Self {
            number,
            shards,
            after: None,
            asking: false,
            not_before: now,
            taken,
            finds_all: !taken,
            most: SURVEYED,
        }
    }

    /// A page came: the next one may be larger again.
    fn answered(&mut self, more: Option<LaneKey>) {
        self.after = more;
        self.most = (self.most * 2).min(SURVEYED);
    }

    /// A page did not come. If it was not ready in time, the next one is smaller.
    fn failed(&mut self, why: ErrorKind, now: Instant) {
        self.not_before = now + RETRY_PAUSE;
        if why == ErrorKind::TimedOut {
            self.most = (self.most / 2).max(1);
        }
    }
}

/// The answer of a store, or that there was none in time. Whatever was under way is given up: a
/// connection with an unanswered statement is closed.
pub(crate) async fn within<T>(
    deadline: Duration,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    match tokio::time::timeout(deadline, call).await {
        Ok(answer) => answer,
        Err(_) => Err(Error::new(
            ErrorKind::TimedOut,
            format!("the database has not answered within {deadline:?}"),
        )),
    }
}

/// What was read, or `None` after a pause.
async fn or_pause<T>(answer: Result<T>, failed: &str) -> Option<T> {
    match answer {
        Ok(rows) => Some(rows),
        Err(error) => {
            tracing::warn!(%error, "{failed}; trying again");
            tokio::time::sleep(RETRY_PAUSE).await;
            None
        }
    }
}

/// A page of blocked lanes in which something blocks one; an empty one when nothing does. Lanes that are
/// only held, left from a time of another ordering, may come before it.
async fn any_blocked(
    store: &dyn Store,
    shards: &[u16],
    deadline: Duration,
) -> Result<Vec<Blocked>> {
    let mut after = None;
    loop {
        let page = within(deadline, store.read_blocked(shards, after.as_ref(), LANES)).await?;
        if page.lanes.iter().any(|lane| lane.waiting || lane.parked) {
            return Ok(page.lanes);
        }
        after = page.more;
        if after.is_none() {
            return Ok(Vec::new());
        }
    }
}

/// Due events, and before them what blocks everything: behind many that are delayed it would not be
/// found.
async fn read_due(
    store: &dyn Store,
    shards: &[u16],
    after: Option<DueKey>,
    limit: Limit,
    blocked: bool,
    but: &LeaveOut,
) -> Result<Due> {
    let mut due = store.read_due_but(shards, after, limit, but).await?;
    if blocked {
        let mut rows = store.read_blockers(Limit { rows: BLOCKERS, ..limit }).await?;
        rows.append(&mut due.rows);
        due.rows = rows;
    }
    Ok(due)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_survey_that_is_not_answered_in_time_asks_for_less() {
        let now = Instant::now();
        let mut survey = Survey::new(1, vec![0], true, now);
        for _ in 0..20 {
            survey.failed(ErrorKind::TimedOut, now);
        }
        assert_eq!((survey.most, survey.not_before), (1, now + RETRY_PAUSE));
        survey.answered(None);
        assert_eq!(survey.most, 2);
        survey.failed(ErrorKind::State, now);
        assert_eq!(survey.most, 2, "that says nothing of its size");
        for _ in 0..20 {
            survey.answered(None);
        }
        assert_eq!(survey.most, SURVEYED);
    }
}
