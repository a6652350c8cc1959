//! Reading: starts the read that comes next, and offers what reads brought to the lanes.

use std::{sync::Arc, time::Instant};

use posthaste_core::{
    Result,
    store::{Blocked, Due, Fetched, Page, RelayOrdering, RowLease, Store},
};

use crate::{
    driver::{Done, Driver, RETRY_PAUSE},
    lanes::{Feed, Offered, Origin, RELEASE_LIMIT, Release},
    source::{NextRead, Room},
};

/// Most late commits that one poll takes in: a transaction of a million events can be late.
const LATE_LIMIT: usize = 2_000;

/// Most events that are looked for when the one lane of `global` is blocked. It is one, unless others
/// are left from a time of another ordering.
const BLOCKERS: usize = 100;

/// How many rows are looked at to find one that a destination can be tried with.
const PROBE_PAGE: usize = 100;

impl Driver {
    /// Whether there is something to read from, and nothing in the way of it.
    pub(crate) fn reads(&self) -> bool {
        let taking = self.acquiring || !self.wanted.is_empty();
        let owns = self.shards.reads() && self.shards.suffices();
        !self.rests() && (self.by_rows() || (owns && !taking))
    }

    pub(crate) fn read(&mut self, now: Instant) {
        if !self.reads() {
            return;
        }
        let room = self.room();
        let Some(next) = self.source.next(now, self.config.batch, &room) else {
            return;
        };
        self.lanes.stats.polls += 1;
        if self.by_rows() {
            self.claim(next);
            return;
        }
        let read = self.lanes.read_began();
        let generation = match &next {
            NextRead::Behind { destination, .. } => self.source.behind_generation(*destination),
            _ => self.source.generation(),
        };
        let shards = self.shards.reading();
        let store = Arc::clone(&self.store);
        let blocked = self.lanes.all_blocked();
        self.tasks.spawn(async move {
            match next {
                NextRead::Ahead(from, limit) => {
                    let page = store.read_on(&shards, &from, limit, LATE_LIMIT).await;
                    Done::Ahead { read, generation, page }
                }
                NextRead::Late(from) => {
                    let page = store.read_late(&shards, &from, LATE_LIMIT).await;
                    Done::Late { read, generation, page }
                }
                NextRead::Due(limit) => {
                    let due = read_due(&*store, &shards, limit, blocked).await;
                    Done::Due { read, limit, due }
                }
                NextRead::Behind { destination, from, limit } => {
                    let page = store.read_on(&shards, &from, limit, LATE_LIMIT).await;
                    Done::Behind { read, destination, generation, page }
                }
            }
        });
    }

    /// How much the next read may bring.
    fn room(&self) -> Room {
        let (batch, limit) = (self.config.batch, self.config.cold_queue);
        let half = batch.div_ceil(2);
        let due = self.lanes.cold_room(limit);
        let mut behind = Vec::new();
        for destination in self.source.behind() {
            if self.lanes.wants_probe(destination) {
                behind.push((destination, PROBE_PAGE));
            } else if self.lanes.room_behind(destination, limit) >= half {
                behind.push((destination, self.lanes.room_behind(destination, limit)));
            }
        }
        // Small reads of a large backlog cost as much as large ones: wait for half a batch of room.
        let (cold, due, least) = match self.lanes.feed() {
            // A claim of more would only be given back.
            Feed::Probes if self.by_rows() => (1, 1, 1),
            Feed::Flows | Feed::Probes => (due, due, half),
            Feed::Stands => (0, due, half),
        };
        Room { cold, due, blocked: self.lanes.all_blocked(), behind, least }
    }

    /// The cursor of one destination has read.
    pub(crate) fn read_behind(
        &mut self,
        destination: u16,
        generation: u64,
        page: Result<Page>,
        now: Instant,
    ) {
        let Some(mut page) = self.came(page, "catching up", now) else {
            return;
        };
        let rows = std::mem::take(&mut page.rows);
        let mut taken = false;
        if self.source.is_behind_since(destination, generation) {
            for row in &rows {
                self.highest = self.highest.max(row.sequence);
            }
            taken = self.lanes.catch_up(destination, rows, now);
            self.fall_behind();
        }
        if self.source.read_behind(destination, &page, generation, taken) {
            self.lanes.caught_up(destination);
        }
    }

    /// Notes what lanes passed over, before the position moves.
    pub(crate) fn fall_behind(&mut self) {
        for (destination, sequence) in self.lanes.take_skipped() {
            self.source.fall_behind(destination, sequence);
        }
    }

    pub(crate) fn offer_all(
        &mut self,
        rows: Vec<Fetched>,
        origin: Origin,
        claim: Option<&Arc<RowLease>>,
    ) -> usize {
        let now = self.clock.now();
        let mut news = 0;
        for row in rows {
            self.highest = self.highest.max(row.sequence);
            news += usize::from(self.lanes.offer(row, origin, claim, now) != Offered::Ignored);
        }
        self.fall_behind();
        self.lanes.stats.cold_enqueued += news as u64;
        news
    }

    pub(crate) fn release(&mut self) {
        for release in self.lanes.next_releases() {
            let store = Arc::clone(&self.store);
            self.tasks.spawn(async move {
                let Release { lane, destination, .. } = &release;
                let rows = match store.read_held(destination, lane.key, RELEASE_LIMIT).await {
                    Ok(rows) => Some(rows),
                    Err(error) => {
                        tracing::warn!(%error, "held events could not be read; trying again");
                        tokio::time::sleep(RETRY_PAUSE).await;
                        None
                    }
                };
                Done::Released { release, rows }
            });
        }
    }

    /// Asks now and then whether what blocks lanes is still in the table: an operator can have
    /// removed it when nothing was held behind it that could tell. Under `global` nothing is ever
    /// held, so it is asked more often.
    pub(crate) fn reconcile(&mut self, now: Instant) {
        if self.reconciling || !self.lanes.blocked() {
            return;
        }
        if now < self.reconcile_at && !self.lanes.asks() {
            return;
        }
        self.reconciling = true;
        self.reconcile_at = now
            + match self.config.ordering {
                RelayOrdering::Global => self.config.idle_interval,
                _ => self.config.heartbeat,
            };
        let (store, shards) = (Arc::clone(&self.store), self.shards.reading());
        let read = self.lanes.read_began();
        self.tasks.spawn(async move {
            Done::Reconciled { read, blocked: store.read_blocked(&shards).await }
        });
    }

    pub(crate) fn reconciled(&mut self, read: u64, blocked: Result<Vec<Blocked>>) {
        self.reconciling = false;
        self.lanes.asked();
        match blocked {
            Ok(blocked) => self.lanes.reconcile(read, &blocked),
            Err(error) => self.database_failed("looking at blocked lanes", &error),
        }
        self.lanes.read_merged(read);
    }
}

/// Due events, and before them what blocks everything: behind many that are delayed it would not be
/// found.
async fn read_due(store: &dyn Store, shards: &[u16], limit: usize, blocked: bool) -> Result<Due> {
    let mut due = store.read_due(shards, limit).await?;
    if blocked {
        let mut rows = store.read_blockers(BLOCKERS).await?;
        rows.append(&mut due.rows);
        due.rows = rows;
    }
    Ok(due)
}
