//! The driver: one task that owns all state and decides what happens next.
//!
//! Every query and every publish runs in a task of its own and comes back as a [`Done`]. After each
//! message the stages are asked, in order, what they want to start: settle, dispatch, release,
//! read, lease. Nothing else starts anything.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering as Atomic},
    time::{Duration, Instant},
};

use posthaste_core::{
    Envelope, Error, ErrorKind, Result,
    clock::Clock,
    store::{
        Blocked, Census, Due, Fetched, Held, HotRow, Page, Position, Relay as Identity,
        RelayOrdering, RowLease, SettleReport, ShardLease, Store, Wait,
    },
    transport::{Outcome, Transport},
};
use tokio::{
    sync::{Notify, mpsc, watch},
    task::JoinSet,
};
use uuid::Uuid;

use crate::{
    Committed, Config, Stats,
    claim::Shards,
    dispatch,
    hot::HotPath,
    lanes::{LaneId, Lanes, Offered, Origin, RELEASE_LIMIT, Rules},
    settle::Batch,
    source::{NextRead, Source},
};

/// How far a relay may hand out events beyond what it has seen when it last reported. After a crash
/// everything up to there is suspect, so it is not large; each report is a write, so it is not
/// small.
const RESERVE: i64 = 20_000;

/// Pause before something that failed for want of a database is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// What came back.
enum Done {
    Ahead { read: u64, generation: u64, page: Result<Page> },
    Late { read: u64, generation: u64, page: Result<Page> },
    Due { read: u64, limit: usize, due: Result<Due> },
    Claimed { claim: Arc<RowLease>, next: NextRead, rows: Result<(Vec<Fetched>, Position)> },
    Hot { read: u64, rows: Result<Vec<HotRow>> },
    HotClaimed { claim: Arc<RowLease>, rows: Result<Vec<Fetched>> },
    Released { read: u64, lane: LaneId, rows: Option<Vec<Fetched>> },
    Published { outcomes: Vec<(i64, Outcome)> },
    Settled { batch: Batch, report: Result<SettleReport> },
    Tick { tick: Result<Tick>, reserved: i64 },
    Acquired { asked_at: Instant, acquired: Result<Acquired> },
    HandedOver { held: Vec<Held>, result: Result<()> },
    Unblocked { blocked: Result<Vec<Blocked>> },
    Rested,
}

/// A heartbeat's answer, and that of the renewal that went with it.
struct Tick {
    census: Census,
    renewed: Option<Renewed>,
}

struct Renewed {
    asked: Vec<Held>,
    asked_at: Instant,
    still: Vec<u16>,
}

/// New shards, with everything that must be known before the first event of theirs is handed out.
struct Acquired {
    leases: Vec<ShardLease>,
    blocked: Vec<Blocked>,
    late: Vec<Fetched>,
    /// Taken before the late reads, so that whatever they cannot see yet is found later.
    context: String,
}

/// What a relay is made of.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) config: Config,
}

/// What the driver shares with its handle.
pub(crate) struct Wires {
    pub(crate) hot: mpsc::Receiver<Vec<Committed>>,
    pub(crate) hot_path: HotPath,
    pub(crate) wake: Arc<Notify>,
    pub(crate) stop: watch::Receiver<bool>,
    pub(crate) stats: watch::Sender<Stats>,
}

pub(crate) struct Driver {
    store: Arc<dyn Store>,
    transport: Arc<dyn Transport>,
    clock: Arc<dyn Clock>,
    config: Config,
    wires: Wires,
    once: bool,
    tasks: JoinSet<Done>,
    lanes: Lanes,
    source: Source,
    shards: Shards,
    max_batch: usize,
    keep_sent: bool,
    publishing: usize,
    settling: bool,
    /// A settle that failed, to be repeated before any other.
    unwritten: Option<Batch>,
    resting: bool,
    ticking: bool,
    tick_at: Instant,
    renew_at: Instant,
    /// A reservation is wanted before its turn.
    tick_now: bool,
    reserved: i64,
    highest: i64,
    acquiring: bool,
    acquired_once: bool,
    handing_over: bool,
    hot_reads: usize,
    claims: u64,
    /// The claim that had expired and is in hand: the next such one waits for its outcome.
    expired: Option<i64>,
    /// Until when the row leases are ours for certain.
    rows_until: Instant,
    unblocking: bool,
    stopping: Option<Stopping>,
}

/// A graceful stop under way.
struct Stopping {
    until: Instant,
    mark: i64,
}

impl Driver {
    pub(crate) fn new(parts: Parts, total: u16, wires: Wires, once: bool) -> Self {
        let Parts { store, transport, clock, config } = parts;
        let identity = Identity {
            name: config.name.clone(),
            instance: Uuid::now_v7(),
            ordering: config.ordering,
            lease: config.lease,
        };
        let now = clock.now();
        let rules = Rules {
            global: config.ordering == RelayOrdering::Global,
            unordered: config.ordering == RelayOrdering::None,
            on_dead: config.on_dead,
            max_attempts: config.max_attempts,
            wait: {
                let (backoff, random) = (config.backoff.clone(), Arc::clone(&config.random));
                Box::new(move |failures| backoff.wait(failures, &random))
            },
            destinations: vec![transport.name().to_owned()],
        };
        let mut lanes = Lanes::new(rules);
        lanes.stats.shards = total;
        Self {
            max_batch: transport.capabilities().max_batch.clamp(1, config.batch),
            keep_sent: !config.retention.sent.is_zero(),
            lanes,
            source: Source::new(&config, now),
            shards: Shards::new(identity, total, config.margin()),
            rows_until: now + config.lease,
            store,
            transport,
            clock,
            config,
            wires,
            once,
            tasks: JoinSet::new(),
            publishing: 0,
            settling: false,
            unwritten: None,
            resting: false,
            ticking: false,
            tick_at: now,
            renew_at: now,
            tick_now: false,
            reserved: 0,
            highest: 0,
            acquiring: false,
            acquired_once: false,
            handing_over: false,
            hot_reads: 0,
            claims: 0,
            expired: None,
            unblocking: false,
            stopping: None,
        }
    }

    /// Runs until it is stopped, or with `once` until there is nothing left to do. An error means
    /// that it could not go on at all.
    pub(crate) async fn run(mut self) -> Result<Stats> {
        if self.by_rows() {
            self.start_rows().await?;
        }
        loop {
            self.pump();
            self.publish_stats();
            if self.finished() {
                break;
            }
            let timer = tokio::time::sleep(self.until_timer());
            let takes_hot = self.stopping.is_none() && self.hot_reads < 4;
            tokio::select! {
                biased;
                Some(done) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    self.receive(done)?;
                    while let Some(done) = self.tasks.try_join_next() {
                        self.receive(done)?;
                    }
                }
                Some(events) = self.wires.hot.recv(), if takes_hot => self.hot(events),
                () = self.wires.wake.notified(), if self.stopping.is_none() => self.source.wake(),
                changed = self.wires.stop.changed(), if self.stopping.is_none() => {
                    if changed.is_err() || *self.wires.stop.borrow() {
                        self.begin_stop();
                    }
                }
                () = timer => {}
            }
        }
        self.finish().await
    }

    fn by_rows(&self) -> bool {
        self.config.ordering == RelayOrdering::None
    }

    // ---- what to start ------------------------------------------------------------------------

    /// Asks every stage what it wants to start.
    fn pump(&mut self) {
        let now = self.clock.now();
        self.drop_expired(now);
        self.settle();
        self.dispatch(now);
        self.release();
        self.settle();
        if self.stopping.is_none() {
            self.read(now);
            self.unblock();
        }
        self.tick(now);
        self.hand_over();
    }

    fn drop_expired(&mut self, now: Instant) {
        let lost = self.shards.expire(now);
        if !lost.is_empty() {
            tracing::warn!(shards = lost.len(), "leases ran out before they could be renewed");
            self.lose(&lost);
        }
        if self.by_rows() && now + self.config.margin() >= self.rows_until {
            self.lanes.forget_claims();
        }
    }

    fn lose(&mut self, lost: &BTreeSet<u16>) {
        if lost.is_empty() {
            return;
        }
        self.lanes.lose_shards(lost);
        if self.shards.is_empty() {
            self.source.reset();
        }
        self.tick_now = true;
    }

    fn settle(&mut self) {
        if self.settling || self.resting {
            return;
        }
        let batch = if let Some(batch) = self.unwritten.take() {
            batch
        } else {
            let unsettled = self.lanes.next_settlements(self.config.batch);
            let (batch, stale) = Batch::fence(unsettled, &self.shards);
            self.lanes.refused(stale);
            batch
        };
        if batch.is_empty() {
            return;
        }
        self.settling = true;
        let (store, keep_sent) = (Arc::clone(&self.store), self.keep_sent);
        self.tasks.spawn(async move {
            let report = batch.write(&*store, keep_sent).await;
            Done::Settled { batch, report }
        });
    }

    fn dispatch(&mut self, now: Instant) {
        let allowed = if self.by_rows() {
            now + self.config.margin() < self.rows_until
        } else {
            self.shards.may_dispatch(now)
        };
        // A stop lets what is in flight end; it starts nothing new.
        if !allowed || self.stopping.is_some() {
            return;
        }
        let reserved = if self.by_rows() { i64::MAX } else { self.reserved };
        while self.publishing < self.config.concurrency
            && self.lanes.unsettled() < 4 * self.config.batch
        {
            let (batch, need_reserve) = self.lanes.next_batch(self.max_batch, reserved);
            self.tick_now |= need_reserve;
            if batch.is_empty() {
                break;
            }
            self.publishing += 1;
            let transport = Arc::clone(&self.transport);
            let timeout = self.config.dispatch_timeout;
            self.tasks.spawn(async move { publish(&*transport, batch, timeout).await });
        }
    }

    fn release(&mut self) {
        for (lane, destination) in self.lanes.next_releases() {
            let read = self.lanes.read_began();
            let store = Arc::clone(&self.store);
            self.tasks.spawn(async move {
                let rows = match store.read_held(&destination, lane.key, RELEASE_LIMIT).await {
                    Ok(rows) => Some(rows),
                    Err(error) => {
                        tracing::warn!(%error, "held events could not be read; trying again");
                        tokio::time::sleep(RETRY_PAUSE).await;
                        None
                    }
                };
                Done::Released { read, lane, rows }
            });
        }
    }

    fn read(&mut self, now: Instant) {
        if !self.by_rows() && self.shards.reading().is_empty() {
            return;
        }
        let room = self.lanes.cold_room(self.config.cold_queue);
        let Some(next) = self.source.next(now, self.config.batch, room) else {
            return;
        };
        self.lanes.stats.polls += 1;
        if self.by_rows() {
            self.claim(next);
            return;
        }
        let read = self.lanes.read_began();
        let generation = self.source.generation();
        let shards = self.shards.reading();
        let store = Arc::clone(&self.store);
        self.tasks.spawn(async move {
            match next {
                NextRead::Ahead(from, limit) => {
                    let page = store.read_ahead(&shards, &from, limit).await;
                    Done::Ahead { read, generation, page }
                }
                NextRead::Late(from) => {
                    let page = store.read_late(&shards, &from).await;
                    Done::Late { read, generation, page }
                }
                NextRead::Due(limit) => {
                    let due = store.read_due(&shards, limit).await;
                    Done::Due { read, limit, due }
                }
            }
        });
    }

    /// Row leases: the same three reads, each of which claims what it finds.
    fn claim(&mut self, next: NextRead) {
        let claim = self.next_claim();
        let relay = self.shards.relay.clone();
        let store = Arc::clone(&self.store);
        self.expired = self.expired.filter(|sequence| self.lanes.in_hand(*sequence));
        let may_claim_expired = self.expired.is_none();
        let limit = self.config.batch;
        self.tasks.spawn(async move {
            let rows = match &next {
                NextRead::Ahead(from, limit) => store
                    .claim(&relay, &claim, from, *limit)
                    .await
                    .map(|claimed| (claimed.rows, claimed.position)),
                NextRead::Late(from) => store
                    .claim_late(&relay, &claim, from, limit)
                    .await
                    .map(|claimed| (claimed.rows, claimed.position)),
                // One at a time: an event whose dispatch kills its process is alone when it does.
                NextRead::Due(_) if may_claim_expired => {
                    store.claim_expired(&relay, &claim).await.map(|row| {
                        let rows = row.map(|row| Fetched { wait: Some(Wait::Suspect), ..row });
                        (rows.into_iter().collect(), Position::default())
                    })
                }
                NextRead::Due(_) => Ok((Vec::new(), Position::default())),
            };
            Done::Claimed { claim, next, rows }
        });
    }

    fn next_claim(&mut self) -> Arc<RowLease> {
        self.claims += 1;
        Arc::new(RowLease { token: format!("{}/{}", self.shards.relay.owner(), self.claims) })
    }

    /// Under `global` nothing tells that an operator removed what blocks the one lane: ask.
    fn unblock(&mut self) {
        if self.config.ordering != RelayOrdering::Global
            || self.unblocking
            || !self.source.exhausted()
            || !self.lanes.blocked()
            || self.lanes.in_flight() > 0
            || self.lanes.unsettled() > 0
            || self.settling
        {
            return;
        }
        self.unblocking = true;
        let (store, shards) = (Arc::clone(&self.store), self.shards.reading());
        let pause = self.config.busy_interval;
        self.tasks.spawn(async move {
            tokio::time::sleep(pause).await;
            Done::Unblocked { blocked: store.read_blocked(&shards).await }
        });
    }

    fn tick(&mut self, now: Instant) {
        let reserve_runs_out = !self.by_rows() && self.highest + RESERVE / 2 > self.reserved;
        if self.ticking
            || self.resting
            || self.stopping.is_some()
            || !(now >= self.tick_at || self.tick_now || reserve_runs_out)
        {
            return;
        }
        self.ticking = true;
        self.tick_now = false;
        // The census is cheap and comes often, so that what another relay leaves is taken soon;
        // renewals write every lease and come at the heartbeat.
        self.tick_at = now + self.config.heartbeat.min(self.config.idle_interval);
        let renew = now >= self.renew_at;
        if renew {
            self.renew_at = now + self.config.heartbeat;
        }
        let reserved = self.highest + RESERVE;
        let held = self.shards.held();
        let mark = self.mark();
        let leases = if self.by_rows() { self.lanes.leases() } else { Vec::new() };
        let relay = self.shards.relay.clone();
        let (store, clock) = (Arc::clone(&self.store), Arc::clone(&self.clock));
        let by_rows = self.by_rows();
        self.tasks.spawn(async move {
            let tick = async {
                let census = store.heartbeat(&relay, reserved).await?;
                let mut renewed = None;
                if renew {
                    let asked_at = clock.now();
                    let mut still = Vec::new();
                    if by_rows {
                        if !leases.is_empty() {
                            store.renew_rows(&relay, &leases).await?;
                        }
                    } else if !held.is_empty() {
                        still = store.renew(&relay, &held, &mark).await?;
                    }
                    renewed = Some(Renewed { asked: held, asked_at, still });
                }
                Ok(Tick { census, renewed })
            }
            .await;
            Done::Tick { tick, reserved }
        });
    }

    /// Where the next owner of our shards would start.
    fn mark(&self) -> Position {
        let position = self.source.position();
        let mut sequence = self.lanes.mark(position.sequence);
        if let Some(mark) = self.shards.hand_over_mark() {
            sequence = sequence.min(mark);
        }
        Position { sequence, context: position.context.clone() }
    }

    fn acquire(&mut self, wanted: Vec<u16>) {
        self.acquiring = true;
        let relay = self.shards.relay.clone();
        let (store, clock) = (Arc::clone(&self.store), Arc::clone(&self.clock));
        self.tasks.spawn(async move {
            let asked_at = clock.now();
            let acquired = acquire(&*store, &relay, &wanted).await;
            Done::Acquired { asked_at, acquired }
        });
    }

    fn hand_over(&mut self) {
        if self.handing_over || self.stopping.is_some() || !self.shards.handing_over() {
            return;
        }
        let held = self.shards.releasable(&self.lanes.busy_shards());
        if held.is_empty() {
            return;
        }
        self.handing_over = true;
        let mark = self.mark();
        let (store, relay) = (Arc::clone(&self.store), self.shards.relay.clone());
        self.tasks.spawn(async move {
            let result = store.release(&relay, &held, &mark).await;
            Done::HandedOver { held, result }
        });
    }

    // ---- what came back -----------------------------------------------------------------------

    fn receive(&mut self, done: Result<Done, tokio::task::JoinError>) -> Result<()> {
        let done = done.map_err(|error| {
            Error::new(ErrorKind::State, "a task of the relay ended unexpectedly")
                .with_source(error)
        })?;
        let now = self.clock.now();
        match done {
            Done::Ahead { read, generation, page } => {
                if let Some(mut page) = self.came(page, "reading ahead", now) {
                    let news = self.offer_all(std::mem::take(&mut page.rows), Origin::Cold, None);
                    self.source.read_ahead(&page, generation, news);
                    self.highest = self.highest.max(page.position.sequence);
                    if self.source.caught_up() {
                        self.shards.caught_up();
                    }
                }
                self.lanes.read_merged(read);
            }
            Done::Late { read, generation, page } => {
                if let Some(mut page) = self.came(page, "reading late commits", now) {
                    let news = self.offer_all(std::mem::take(&mut page.rows), Origin::Cold, None);
                    self.source.read_late(&page, generation, news);
                }
                self.lanes.read_merged(read);
            }
            Done::Due { read, limit, due } => {
                if let Some(mut due) = self.came(due, "reading due events", now) {
                    let rows = std::mem::take(&mut due.rows);
                    let full = rows.len() >= limit;
                    let news = self.offer_all(rows, Origin::Due, None);
                    self.source.read_due(&due, now, full && news > 0, news);
                }
                self.lanes.read_merged(read);
            }
            Done::Claimed { claim, next, rows } => self.claimed(&claim, &next, rows, now),
            Done::Hot { read, rows } => {
                self.hot_reads -= 1;
                match rows {
                    Ok(rows) => self.offer_hot(rows),
                    Err(error) => {
                        self.lanes.stats.database_errors += 1;
                        tracing::debug!(%error, "hot read failed; left to the poller");
                        self.source.wake();
                    }
                }
                self.lanes.read_merged(read);
            }
            Done::HotClaimed { claim, rows } => {
                self.hot_reads -= 1;
                match rows {
                    Ok(rows) => {
                        self.lanes.stats.hot_enqueued += rows.len() as u64;
                        for row in rows {
                            self.lanes.offer(row, Origin::Hot, Some(&claim));
                        }
                    }
                    Err(error) => {
                        self.lanes.stats.database_errors += 1;
                        tracing::debug!(%error, "hot claim failed; left to the poller");
                        self.source.wake();
                    }
                }
            }
            Done::Released { read, lane, rows } => {
                self.lanes.released(lane, rows);
                self.lanes.read_merged(read);
            }
            Done::Published { outcomes } => {
                self.publishing -= 1;
                for (sequence, outcome) in outcomes {
                    self.lanes.outcome(sequence, outcome);
                }
            }
            Done::Settled { batch, report } => self.settled(batch, report),
            Done::Tick { tick, reserved } => self.ticked(tick, reserved, now)?,
            Done::Acquired { asked_at, acquired } => self.acquired(asked_at, acquired),
            Done::HandedOver { held, result } => {
                self.handing_over = false;
                match result {
                    Ok(()) => {
                        let released: BTreeSet<u16> = held.iter().map(|h| h.shard).collect();
                        self.shards.remove(&held);
                        self.lanes.lose_shards(&released);
                        if self.shards.is_empty() {
                            self.source.reset();
                        }
                        tracing::debug!(shards = held.len(), "handed over");
                    }
                    Err(error) => self.database_failed("handing shards over", &error),
                }
            }
            Done::Unblocked { blocked } => {
                self.unblocking = false;
                match blocked {
                    Ok(blocked) if blocked.is_empty() => self.lanes.unblock_global(),
                    Ok(_) => {}
                    Err(error) => self.database_failed("looking at blocked lanes", &error),
                }
            }
            Done::Rested => self.resting = false,
        }
        Ok(())
    }

    /// The answer to a read, or `None` and a pause when the database failed.
    fn came<T>(&mut self, answer: Result<T>, doing: &str, now: Instant) -> Option<T> {
        match answer {
            Ok(answer) => Some(answer),
            Err(error) => {
                self.database_failed(doing, &error);
                self.source.failed(now);
                None
            }
        }
    }

    fn database_failed(&mut self, doing: &str, error: &Error) {
        self.lanes.stats.database_errors += 1;
        tracing::warn!(%error, "{doing} failed; trying again");
    }

    fn offer_all(
        &mut self,
        rows: Vec<Fetched>,
        origin: Origin,
        claim: Option<&Arc<RowLease>>,
    ) -> usize {
        let mut news = 0;
        for row in rows {
            self.highest = self.highest.max(row.sequence);
            news += usize::from(self.lanes.offer(row, origin, claim) != Offered::Ignored);
        }
        self.lanes.stats.cold_enqueued += news as u64;
        news
    }

    fn claimed(
        &mut self,
        claim: &Arc<RowLease>,
        next: &NextRead,
        rows: Result<(Vec<Fetched>, Position)>,
        now: Instant,
    ) {
        let Some((rows, position)) = self.came(rows, "claiming", now) else {
            return;
        };
        if matches!(next, NextRead::Due(_)) {
            self.expired = self.expired.or(rows.first().map(|row| row.sequence));
        }
        let count = rows.len();
        let news = self.offer_all(rows, Origin::Cold, Some(claim));
        match next {
            NextRead::Ahead(_, limit) => {
                let page = Page { rows: Vec::new(), position, caught_up: count < *limit };
                self.source.read_ahead(&page, self.source.generation(), news);
            }
            NextRead::Late(_) => {
                let page = Page { rows: Vec::new(), position, caught_up: true };
                self.source.read_late(&page, self.source.generation(), news);
            }
            NextRead::Due(_) => {
                let due = Due { rows: Vec::new(), next: None };
                self.source.read_due(&due, now, news > 0, news);
            }
        }
    }

    fn settled(&mut self, batch: Batch, report: Result<SettleReport>) {
        self.settling = false;
        match report {
            Ok(report) => {
                if !report.refused.is_empty() {
                    tracing::warn!(
                        events = report.refused.len(),
                        shards = ?report.stale_shards,
                        "settle refused: the lease was lost"
                    );
                }
                let refused: BTreeSet<i64> = report.refused.iter().copied().collect();
                self.lanes.refused(report.refused);
                self.lanes.settled(batch.sequences().filter(|seq| !refused.contains(seq)));
                for wait in batch.waits() {
                    self.source.expect_due(self.clock.now() + wait);
                }
                let lost = self.shards.lost(&report.stale_shards);
                self.lose(&lost);
            }
            Err(error) => {
                self.database_failed("settling", &error);
                // Outcomes stay as they are and are written again.
                self.unwritten = Some(batch);
                self.rest();
            }
        }
    }

    /// A pause before the database is asked to write again.
    fn rest(&mut self) {
        if !self.resting {
            self.resting = true;
            self.tasks.spawn(async {
                tokio::time::sleep(RETRY_PAUSE).await;
                Done::Rested
            });
        }
    }

    fn ticked(&mut self, tick: Result<Tick>, reserved: i64, now: Instant) -> Result<()> {
        self.ticking = false;
        let Tick { census, renewed } = match tick {
            Ok(tick) => tick,
            Err(error) if error.kind() == ErrorKind::Schema => return Err(error),
            Err(error) => {
                self.database_failed("renewing leases", &error);
                self.renew_at = now;
                self.tick_at = now + RETRY_PAUSE;
                return Ok(());
            }
        };
        self.reserved = self.reserved.max(reserved);
        if let Some((owner, ordering)) = self.shards.conflict(&census) {
            return Err(Error::new(
                ErrorKind::State,
                format!(
                    "relay {owner} works on this outbox with ordering {ordering}, this one was \
                     asked for {}; stop that one first",
                    self.config.ordering
                ),
            ));
        }
        if self.by_rows() {
            if let Some(renewed) = renewed {
                self.rows_until = renewed.asked_at + self.config.lease;
            }
            self.acquired_once = true;
            return Ok(());
        }
        if let Some(Renewed { asked, asked_at, still }) = renewed
            && !asked.is_empty()
        {
            let lost = self.shards.renewed(&asked, &still, asked_at);
            if !lost.is_empty() {
                tracing::warn!(shards = lost.len(), "leases were lost to another relay");
            }
            self.lose(&lost);
        }
        if self.stopping.is_some() || self.acquiring {
            return Ok(());
        }
        let plan = self.shards.plan(&census, &self.lanes.busy_shards());
        if plan.acquire.is_empty() {
            self.acquired_once = true;
        } else {
            self.acquire(plan.acquire);
        }
        let mark = self.mark().sequence;
        for shard in plan.hand_over {
            self.shards.hand_over(shard, mark);
            self.lanes.close_shard(shard);
        }
        Ok(())
    }

    fn acquired(&mut self, asked_at: Instant, acquired: Result<Acquired>) {
        self.acquiring = false;
        self.acquired_once = true;
        let Acquired { leases, blocked, late, context } = match acquired {
            Ok(acquired) => acquired,
            Err(error) => return self.database_failed("acquiring shards", &error),
        };
        let Some(mark) = leases.iter().map(|lease| lease.mark.sequence).min() else {
            return;
        };
        tracing::debug!(
            shards = leases.len(),
            unclean = leases.iter().filter(|lease| lease.suspect_to.is_some()).count(),
            "acquired"
        );
        self.shards.acquired(&leases, asked_at);
        for lease in &leases {
            self.lanes.open_shard(lease.held.shard, lease.suspect_to);
        }
        for lane in &blocked {
            let shard = ((lane.key.0 as u64 >> 32) % u64::from(self.shards.total())) as u16;
            self.lanes.block(shard, lane);
        }
        self.offer_all(late, Origin::Cold, None);
        self.source.rewind(Position { sequence: mark, context });
        // Global needs the rest before it can start; others may have left more.
        self.tick_now = true;
    }

    // ---- hot path -----------------------------------------------------------------------------

    /// The writer's process has committed these.
    fn hot(&mut self, events: Vec<Committed>) {
        let mut events = events;
        while let Ok(more) = self.wires.hot.try_recv() {
            events.extend(more);
        }
        let room = self.lanes.hot_room(self.config.hot_queue);
        if self.by_rows() {
            let fits = events.len().min(room);
            self.drop_hot(events.len() - fits);
            let sequences: Vec<i64> = events[..fits].iter().map(|e| e.sequence).collect();
            self.claim_hot(sequences);
            return;
        }
        let total = u32::from(self.shards.total());
        let (ours, others): (Vec<_>, Vec<_>) =
            events.into_iter().partition(|e| self.shards.takes_hot((e.hash % total) as u16));
        if !others.is_empty() {
            self.wake_others();
        }
        let fits = ours.len().min(room);
        self.drop_hot(ours.len() - fits);
        if fits == 0 {
            return;
        }
        self.hot_reads += 1;
        let sequences: Vec<i64> = ours[..fits].iter().map(|e| e.sequence).collect();
        let read = self.lanes.read_began();
        let store = Arc::clone(&self.store);
        self.tasks.spawn(async move { Done::Hot { read, rows: store.read_hot(&sequences).await } });
    }

    fn claim_hot(&mut self, sequences: Vec<i64>) {
        if sequences.is_empty() {
            return;
        }
        self.hot_reads += 1;
        let claim = self.next_claim();
        let (store, relay) = (Arc::clone(&self.store), self.shards.relay.clone());
        self.tasks.spawn(async move {
            let rows = store.claim_hot(&relay, &claim, &sequences).await;
            Done::HotClaimed { claim, rows }
        });
    }

    fn drop_hot(&mut self, count: usize) {
        if count > 0 {
            self.wires.hot_path.dropped.fetch_add(count as u64, Atomic::Relaxed);
            tracing::warn!(events = count, "hot queue is full; left to the poller");
            self.source.wake();
        }
    }

    /// Rows of the hot path go to their lanes only when the key's previous event is settled or in
    /// our hands; otherwise the cursor brings them in order.
    fn offer_hot(&mut self, rows: Vec<HotRow>) {
        for HotRow { row, previous } in rows {
            let safe = previous.is_none_or(|previous| self.lanes.in_hand(previous))
                && self.shards.takes_hot(row.shard);
            if safe {
                self.highest = self.highest.max(row.sequence);
                let offered = self.lanes.offer(row, Origin::Hot, None);
                self.lanes.stats.hot_enqueued += u64::from(offered != Offered::Ignored);
            } else {
                self.source.wake();
            }
        }
    }

    /// Shards of other relays: they are woken, and so is our own cursor, for what was not ready.
    fn wake_others(&mut self) {
        self.source.wake();
        let store = Arc::clone(&self.store);
        tokio::spawn(async move {
            if let Err(error) = store.notify().await {
                tracing::debug!(%error, "other relays were not woken; they poll");
            }
        });
    }

    // ---- rows, timers, ends -------------------------------------------------------------------

    /// Row leases start at the lowest mark: everything before is settled.
    async fn start_rows(&mut self) -> Result<()> {
        let mark = self.store.shards().await?.iter().map(|shard| shard.mark).min().unwrap_or(0);
        self.source.rewind(Position { sequence: mark, context: String::new() });
        Ok(())
    }

    fn until_timer(&self) -> Duration {
        let now = self.clock.now();
        let mut until = self.tick_at;
        if self.stopping.is_none() {
            until = until.min(self.source.next_poll());
        }
        if let Some(stopping) = &self.stopping {
            until = until.min(stopping.until);
        }
        // A read that waits for room, or a timer in the past, must not spin.
        until.saturating_duration_since(now).max(Duration::from_millis(1))
    }

    fn publish_stats(&mut self) {
        let mut stats = self.lanes.stats;
        stats.hot_dropped = self.wires.hot_path.dropped.load(Atomic::Relaxed);
        stats.shards_owned = self.shards.len() as u16;
        stats.in_memory = self.lanes.in_memory();
        stats.idle = self.acquired_once
            && !self.acquiring
            && !self.settling
            && self.unwritten.is_none()
            && self.source.exhausted()
            && self.lanes.is_idle();
        self.wires.stats.send_if_modified(|known| {
            let changed = *known != stats;
            *known = stats;
            changed
        });
    }

    fn finished(&self) -> bool {
        match &self.stopping {
            Some(stopping) => {
                let drained = self.lanes.in_flight() == 0
                    && self.lanes.unsettled() == 0
                    && !self.settling
                    && self.unwritten.is_none()
                    && !self.acquiring
                    && !self.handing_over;
                drained || self.clock.now() >= stopping.until
            }
            None if self.once => {
                let stats = *self.wires.stats.borrow();
                let nothing_owned = self.acquired_once
                    && !self.acquiring
                    && !self.by_rows()
                    && self.shards.reading().is_empty();
                stats.idle || nothing_owned
            }
            None => false,
        }
    }

    /// Claims end; what is in flight may end; what waits is forgotten or given back.
    fn begin_stop(&mut self) {
        let mark = self.mark().sequence;
        self.stopping = Some(Stopping { until: self.clock.now() + self.config.drain, mark });
        if self.by_rows() {
            self.lanes.give_back();
        } else {
            for held in self.shards.held() {
                self.lanes.close_shard(held.shard);
            }
        }
    }

    async fn finish(mut self) -> Result<Stats> {
        let mut mark = self.mark();
        if let Some(stopping) = &self.stopping {
            mark.sequence = mark.sequence.min(stopping.mark);
        }
        self.tasks.abort_all();
        let held = self.shards.held();
        let relay = self.shards.relay.clone();
        let end = async {
            if !held.is_empty() {
                self.store.release(&relay, &held, &mark).await?;
            }
            self.store.retire(&relay).await?;
            self.store.notify().await
        };
        match tokio::time::timeout(self.config.drain.max(Duration::from_secs(1)), end).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "leases were not released; they expire"),
            Err(_) => tracing::warn!("leases were not released in time; they expire"),
        }
        self.publish_stats();
        Ok(*self.wires.stats.borrow())
    }
}

async fn publish(transport: &dyn Transport, batch: Vec<Envelope>, timeout: Duration) -> Done {
    let outcomes = dispatch::publish(transport, &batch, timeout).await;
    let sequences = batch.iter().map(|envelope| envelope.sequence);
    Done::Published { outcomes: sequences.zip(outcomes).collect() }
}

/// Takes shards and learns all that must be known before their first event is handed out: which
/// lanes are blocked, and what became visible behind the marks.
async fn acquire(store: &dyn Store, relay: &Identity, wanted: &[u16]) -> Result<Acquired> {
    let leases = store.acquire(relay, wanted).await?;
    let look = async {
        let mut late = Vec::new();
        let mut context = None;
        let mut marks: Vec<&Position> = leases.iter().map(|lease| &lease.mark).collect();
        marks.sort_by(|a, b| (a.sequence, &a.context).cmp(&(b.sequence, &b.context)));
        marks.dedup();
        for mark in marks {
            let shards: Vec<u16> = leases
                .iter()
                .filter(|lease| lease.mark == *mark)
                .map(|lease| lease.held.shard)
                .collect();
            let page = store.read_late(&shards, mark).await?;
            late.extend(page.rows);
            context.get_or_insert(page.position.context);
        }
        let shards: Vec<u16> = leases.iter().map(|lease| lease.held.shard).collect();
        let blocked =
            if shards.is_empty() { Vec::new() } else { store.read_blocked(&shards).await? };
        Ok((late, context.unwrap_or_default(), blocked))
    };
    match look.await {
        Ok((late, context, blocked)) => Ok(Acquired { leases, blocked, late, context }),
        Err(error) => {
            // Without that knowledge they are of no use: give them back as they were.
            for lease in &leases {
                if let Err(error) = store.release(relay, &[lease.held], &lease.mark).await {
                    tracing::warn!(%error, "a shard was not given back; its lease expires");
                }
            }
            Err(error)
        }
    }
}
