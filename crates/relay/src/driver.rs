//! The driver: one task that owns all state and decides what happens next.
//!
//! Every query and every publish runs in a task of its own and comes back as a [`Done`]. After each
//! message the stages are asked, in order, what they want to start: settle, dispatch, release,
//! read, lease. Nothing else starts anything, but for the hot path: what it has started runs before
//! the stages are asked.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering as Atomic},
    time::{Duration, Instant},
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use posthaste_core::{
    Envelope, Error, ErrorKind, Result,
    clock::Clock,
    store::{
        Blocked, BlockedLanes, Due, Fetched, Held, HotRow, LaneKey, Page, Pause, Position,
        Relay as Identity, RelayOrdering, Report, RowLease, SettleReport, ShardLease, Store,
    },
    transport::{Acceptance, Outcome},
};
use tokio::sync::{Notify, mpsc, watch};
use uuid::Uuid;

use crate::{
    Committed, Config, Stats,
    breakers::Breakers,
    budget::{Budget, Charge},
    claim::Tick,
    destination::{Destination, Outlet},
    hash::IntMap,
    health::Pulse,
    hot::HotPath,
    housekeeping::Duty,
    intercept::Interceptor,
    lanes::{DestinationRules, Lanes, Look, Origin, Release, Routing, Rules},
    log::Brief,
    observe::{Observer, Sampled},
    pauses::Pauses,
    read::Survey,
    route::Routes,
    rows::{Claimed, UnderWay},
    settle::Batch,
    shards::Shards,
    source::{NextRead, Source, Take},
    stalls::{Looked, Stalls},
    tasks::Tasks,
    unwritten::Unwritten,
};

/// Pause before something that failed for want of a database is tried again.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// What came back. A page's place in the budget comes with it, and is its events' from then on.
pub(crate) enum Done {
    Ahead {
        read: u64,
        generation: u64,
        page: Result<Page>,
        reserved: Charge,
    },
    Late {
        read: u64,
        generation: u64,
        page: Result<Page>,
        reserved: Charge,
    },
    Due {
        read: u64,
        /// On the walk that waits for room for replays.
        replays: bool,
        due: Result<Due>,
        reserved: Charge,
    },
    Claimed {
        claim: Arc<RowLease>,
        next: NextRead,
        claimed: Result<Claimed>,
        reserved: Charge,
    },
    Hot {
        read: u64,
        rows: Result<Vec<HotRow>>,
        reserved: Charge,
        beyond: bool,
    },
    HotClaimed {
        claim: Arc<RowLease>,
        rows: Result<Vec<Fetched>>,
        reserved: Charge,
    },
    GivenBack {
        result: Result<()>,
        again: bool,
    },
    Released {
        release: Release,
        rows: Option<Vec<Fetched>>,
        reserved: Charge,
    },
    Looked {
        look: Look,
        rows: Option<Vec<Fetched>>,
        reserved: Charge,
    },
    Published {
        destination: u16,
        outcomes: Vec<(i64, Outcome)>,
        failed: Vec<(i64, Brief)>,
    },
    Behind {
        read: u64,
        destination: u16,
        generation: u64,
        take: Take,
        page: Result<Page>,
        reserved: Charge,
    },
    Settled {
        batch: Batch,
        report: Result<SettleReport>,
    },
    Locked {
        batch: Batch,
        locked: Result<Vec<i64>>,
    },
    StillLocked {
        asked: Vec<i64>,
        locked: Result<Vec<i64>>,
    },
    Tick {
        tick: Result<Tick>,
        reserved: i64,
    },
    Acquired {
        asked_at: Instant,
        leases: Result<Vec<ShardLease>>,
    },
    Surveyed {
        number: u64,
        page: Result<BlockedLanes>,
    },
    HandedOver {
        held: Vec<Held>,
        result: Result<()>,
    },
    /// Which lanes of a page are blocked in the table, and the page.
    Asked {
        blocked: Result<Vec<Blocked>>,
        page: Box<Done>,
    },
    Reconciled {
        read: u64,
        asked: Option<Vec<LaneKey>>,
        blocked: Result<Vec<Blocked>>,
    },
    Reported {
        report: Report,
        result: Result<()>,
    },
    Pauses {
        pauses: Result<Vec<Pause>>,
    },
    Stalls {
        looked: Result<Looked>,
    },
    Rested,
}

/// What a relay is made of.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) destinations: Vec<Destination>,
    pub(crate) routes: Option<Arc<Routes>>,
    pub(crate) interceptors: Arc<[Arc<dyn Interceptor>]>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) config: Config,
    pub(crate) observer: Arc<Observer>,
    pub(crate) pulse: Arc<Pulse>,
}

/// What the driver shares with its handle.
pub(crate) struct Wires {
    pub(crate) hot: mpsc::Receiver<Vec<Committed>>,
    pub(crate) hot_path: HotPath,
    pub(crate) wake: Arc<Notify>,
    pub(crate) stop: watch::Receiver<bool>,
    pub(crate) stats: watch::Sender<Stats>,
    /// Whether this relay keeps house.
    pub(crate) duty: Duty,
}

pub(crate) struct Driver {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) outlets: Vec<Outlet>,
    pub(crate) interceptors: Arc<[Arc<dyn Interceptor>]>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) config: Config,
    pub(crate) wires: Wires,
    pub(crate) once: bool,
    pub(crate) tasks: Tasks<Done>,
    pub(crate) lanes: Lanes,
    pub(crate) source: Source,
    pub(crate) shards: Shards,
    pub(crate) keep_sent: bool,
    /// When a breaker lets the next event through, if one waits.
    pub(crate) probe_at: Option<Instant>,
    pub(crate) settling: bool,
    /// Outcomes of settles that failed, to be written before any other.
    pub(crate) unwritten: Unwritten,
    pub(crate) resting: bool,
    pub(crate) ticking: bool,
    pub(crate) tick_at: Instant,
    pub(crate) renew_at: Instant,
    /// A reservation is wanted before its turn.
    pub(crate) tick_now: bool,
    /// After a heartbeat that failed: no other before then, for whatever reason.
    pub(crate) tick_not_before: Instant,
    pub(crate) reserved: i64,
    pub(crate) highest: i64,
    /// Shards to take as soon as no poll is under way.
    pub(crate) wanted: Vec<u16>,
    pub(crate) acquiring: bool,
    /// New shards whose blocked lanes are being read.
    pub(crate) survey: Option<Survey>,
    /// How many surveys there were.
    pub(crate) surveys: u64,
    /// When all blocked lanes may be read again, to see whether there is room for them.
    pub(crate) resurvey_at: Instant,
    /// When lanes that are too many may be asked for.
    pub(crate) forget_at: Instant,
    /// Pages that wait for an answer about their lanes.
    pub(crate) asking: usize,
    /// Lanes whose held events are being read back.
    pub(crate) releasing: usize,
    pub(crate) acquired_once: bool,
    pub(crate) handing_over: bool,
    /// Reads of the hot path. Polled by the driver itself: a task of their own would be two more
    /// switches between the commit and the transport.
    pub(crate) hot_reads: FuturesUnordered<BoxFuture<'static, Done>>,
    /// Events ahead of the cursor are looked for, which waits for late commits, and when again.
    pub(crate) looking_beyond: bool,
    pub(crate) beyond_at: Instant,
    /// Since when the memory is full of what waits for others of its key.
    pub(crate) clogged_since: Option<Instant>,
    /// Those that were found and wait for late ones of their key: until then, or until all have come.
    pub(crate) waiting_beyond: HashMap<i64, Option<Instant>>,
    pub(crate) claims: u64,
    /// Claims under way.
    pub(crate) claiming: UnderWay,
    /// Writes under way that give rows back.
    pub(crate) giving_back: usize,
    /// The claim that had expired and is in hand: the next such one waits for its outcome.
    pub(crate) expired: Option<i64>,
    /// Until when the row leases are ours for certain.
    pub(crate) rows_until: Instant,
    pub(crate) reconciling: bool,
    pub(crate) reconcile_at: Instant,
    /// After a question about blocked lanes that failed: no other before then, for whatever reason.
    pub(crate) reconcile_not_before: Instant,
    pub(crate) stopping: Option<Stopping>,
    pub(crate) breakers: Breakers,
    pub(crate) pauses: Pauses,
    pub(crate) stalls: Stalls,
    pub(crate) observer: Arc<Observer>,
    pub(crate) pulse: Arc<Pulse>,
    pub(crate) sampled: Sampled,
    /// What the log will say of events that failed, until that is written.
    pub(crate) briefs: IntMap<i64, Brief>,
}

fn rules_of(destination: &Destination) -> DestinationRules {
    let together = match destination.transport.capabilities().acceptance {
        Acceptance::Any => false,
        Acceptance::Prefix | Acceptance::Atomic => true,
    };
    DestinationRules { name: destination.name().to_owned(), together }
}

/// A graceful stop under way.
pub(crate) struct Stopping {
    pub(crate) until: Instant,
    /// Where the next owner starts, as of when the stop began.
    pub(crate) mark: Position,
}

impl Driver {
    pub(crate) fn new(parts: Parts, total: u16, wires: Wires, once: bool) -> Self {
        let Parts { store, destinations, routes, interceptors, clock, config, observer, pulse } =
            parts;
        let identity = Identity {
            name: config.name.clone(),
            instance: Uuid::now_v7(),
            ordering: config.ordering,
            lease: config.lease,
        };
        let (now, stall_after) = (clock.now(), config.stall_after);
        let deadline = config.deadline();
        let rules = Rules {
            global: config.ordering == RelayOrdering::Global,
            unordered: config.ordering == RelayOrdering::None,
            on_dead: config.on_dead,
            max_attempts: config.max_attempts,
            wait: {
                let (backoff, random) = (config.backoff.clone(), Arc::clone(&config.random));
                Box::new(move |failures| backoff.wait(failures, &random))
            },
            destinations: destinations.iter().map(rules_of).collect(),
            route: routes.map(|routes| {
                Box::new(move |envelope: &Envelope| routes.find(envelope)) as Routing
            }),
            cold_queue: config.cold_queue,
            budget: Budget::new(config.memory),
            most_lanes: config.blocked_lanes,
        };
        let outlets = destinations
            .iter()
            .map(|destination| destination.outlet(config.concurrency, config.batch, now))
            .collect();
        let mut lanes = Lanes::new(rules);
        lanes.stats.shards = total;
        Self {
            keep_sent: !config.housekeeping.retention.sent.is_zero(),
            lanes,
            source: Source::new(&config, now),
            shards: Shards::new(identity, total, config.margin()),
            rows_until: now + config.lease,
            store,
            outlets,
            interceptors,
            clock,
            config,
            wires,
            once,
            tasks: Tasks::new(deadline),
            probe_at: None,
            settling: false,
            unwritten: Unwritten::default(),
            resting: false,
            ticking: false,
            tick_at: now,
            renew_at: now,
            tick_now: false,
            tick_not_before: now,
            reserved: 0,
            highest: 0,
            wanted: Vec::new(),
            acquiring: false,
            survey: None,
            surveys: 0,
            resurvey_at: now,
            forget_at: now,
            asking: 0,
            releasing: 0,
            acquired_once: false,
            handing_over: false,
            hot_reads: FuturesUnordered::new(),
            looking_beyond: false,
            beyond_at: now,
            clogged_since: None,
            waiting_beyond: HashMap::new(),
            claims: 0,
            claiming: UnderWay::default(),
            giving_back: 0,
            expired: None,
            reconciling: false,
            reconcile_at: now,
            reconcile_not_before: now,
            stopping: None,
            breakers: Breakers::default(),
            pauses: Pauses::new(now),
            stalls: Stalls::new(stall_after, now),
            observer,
            pulse,
            sampled: Sampled::default(),
            briefs: IntMap::default(),
        }
    }

    /// Runs until it is stopped, or with `once` until there is nothing left to do. An error means
    /// that it could not go on at all.
    pub(crate) async fn run(mut self) -> Result<Stats> {
        let ended = self.drive().await;
        if let Err(error) = &ended {
            tracing::error!(relay = %self.config.name, %error, "the relay cannot go on");
        }
        let stats = self.finish().await;
        ended.map(|()| stats)
    }

    async fn drive(&mut self) -> Result<()> {
        loop {
            self.pump();
            self.publish_stats();
            if self.finished() {
                return Ok(());
            }
            let timer = tokio::time::sleep(self.until_timer());
            let takes_hot = self.stopping.is_none() && self.hot_reads.len() < 4;
            tokio::select! {
                biased;
                Some(done) = self.hot_reads.next(), if !self.hot_reads.is_empty() => {
                    self.receive(Ok(done))?;
                    self.dispatch(self.clock.now());
                    tokio::task::yield_now().await;
                }
                Some(done) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    self.receive(done)?;
                    while let Some(done) = self.tasks.try_join_next() {
                        self.receive(done)?;
                    }
                }
                Some(events) = self.wires.hot.recv(), if takes_hot => {
                    self.hot(events);
                    // It is asked at once: all else is looked at while the database answers.
                    if let Some(Some(done)) = self.hot_reads.next().now_or_never() {
                        self.receive(Ok(done))?;
                    }
                }
                () = self.wires.wake.notified(), if self.stopping.is_none() => {
                    self.source.wake();
                    self.pauses.wake();
                }
                changed = self.wires.stop.changed(), if self.stopping.is_none() => {
                    if changed.is_err() || *self.wires.stop.borrow() {
                        self.begin_stop();
                    }
                }
                () = timer => {}
            }
        }
    }

    pub(crate) fn by_rows(&self) -> bool {
        self.config.ordering == RelayOrdering::None
    }

    /// Asks every stage what it wants to start.
    pub(crate) fn pump(&mut self) {
        let now = self.clock.now();
        self.pulse.turned(now, self.stands_by());
        self.drop_expired(now);
        self.look_at_pauses(now);
        if self.rests() && self.stopping.is_none() {
            self.stand_down(now);
        }
        self.probe_at = self.lanes.wake_breakers(now);
        self.settle();
        self.dispatch(now);
        self.fall_behind();
        self.read_back();
        self.settle();
        if self.stopping.is_none() {
            self.survey(now);
            self.expired_is_settled();
            self.read(now);
            self.look_beyond(now);
            self.reconcile(now);
        }
        self.tick(now);
        self.acquire();
        self.hand_over();
        self.look_for_stalls(now);
        self.report_state(now);
        self.sample(now);
    }

    pub(crate) fn receive(&mut self, done: Result<Done, tokio::task::JoinError>) -> Result<()> {
        let done = done.map_err(|error| {
            Error::new(ErrorKind::State, "a task of the relay ended unexpectedly")
                .with_source(error)
        })?;
        let now = self.clock.now();
        let Some(done) = self.ask_first(done) else { return Ok(()) };
        match done {
            Done::Ahead { read, generation, page, reserved } => {
                drop(reserved);
                if let Some(mut page) = self.came(page, "reading ahead", now)
                    && let Some(news) = self.offer_page(&mut page, now)
                {
                    self.source.read_ahead(&page, generation, news);
                    self.highest = self.highest.max(page.position.sequence);
                    if self.source.caught_up() {
                        self.shards.caught_up();
                    }
                }
                self.lanes.read_merged(read);
            }
            Done::Late { read, generation, page, reserved } => {
                drop(reserved);
                if let Some(mut page) = self.came(page, "reading late commits", now)
                    && let Some(news) = self.offer_page(&mut page, now)
                {
                    self.source.read_late(&page, generation, news);
                }
                self.lanes.read_merged(read);
            }
            Done::Due { read, replays, due, reserved } => {
                drop(reserved);
                if let Some(mut due) = self.came(due, "reading due events", now) {
                    let news = self.offer_due(std::mem::take(&mut due.rows));
                    let left = self.lanes.take_left_replays();
                    if replays {
                        self.source.read_replays(&due, news, left);
                    } else {
                        if left.is_some() {
                            self.source.leave_replays();
                        }
                        self.source.read_due(&due, now, news);
                    }
                }
                self.lanes.read_merged(read);
            }
            Done::Claimed { claim, next, claimed, reserved } => {
                drop(reserved);
                self.claiming.end(&claim);
                self.claimed(&claim, &next, claimed, now);
            }
            Done::Hot { read, rows, reserved, beyond } => {
                drop(reserved);
                if beyond {
                    self.looked_beyond(now);
                }
                match rows {
                    Ok(rows) => self.offer_hot(read, rows, beyond),
                    Err(error) => {
                        self.lanes.stats.database_errors += 1;
                        tracing::debug!(%error, "hot read failed; left to the poller");
                        if error.kind() == ErrorKind::Moved {
                            self.moved(&error);
                        }
                        self.source.wake();
                    }
                }
                self.lanes.read_merged(read);
            }
            Done::HotClaimed { claim, rows, reserved } => {
                drop(reserved);
                self.claiming.end(&claim);
                match rows {
                    Ok(rows) => {
                        let taken = self.offer_claimed(rows, Origin::Hot, &claim, now);
                        self.lanes.stats.hot_enqueued += taken.news as u64;
                    }
                    Err(error) => {
                        self.lanes.stats.database_errors += 1;
                        tracing::debug!(%error, "hot claim failed; left to the poller");
                        self.source.wake();
                    }
                }
            }
            Done::GivenBack { result, again } => {
                self.giving_back -= 1;
                match result {
                    Ok(()) if again => self.source.more_is_late(),
                    Ok(()) => {}
                    // They are free when their lease has run out.
                    Err(error) => self.database_failed("giving rows back", &error),
                }
            }
            Done::Behind { read, destination, generation, take, page, reserved } => {
                drop(reserved);
                self.read_behind(destination, generation, take, page, now);
                self.lanes.read_merged(read);
            }
            Done::Released { release, rows, reserved } => {
                drop(reserved);
                self.releasing -= 1;
                self.lanes.released(&release, rows, now);
            }
            Done::Looked { look, rows, reserved } => {
                drop(reserved);
                self.releasing -= 1;
                self.lanes.looked(&look, rows);
            }
            Done::Published { destination, outcomes, failed } => {
                self.briefs.extend(failed);
                if let Some(outlet) = self.outlets.get_mut(usize::from(destination)) {
                    outlet.publishing -= 1;
                }
                self.lanes.published(outcomes, now);
                self.fall_behind();
            }
            Done::Settled { batch, report } => self.settled(batch, report),
            Done::Locked { batch, locked } => self.found_locked(batch, locked),
            Done::StillLocked { asked, locked } => self.still_locked(&asked, locked),
            Done::Tick { tick, reserved } => self.ticked(tick, reserved, now)?,
            Done::Acquired { asked_at, leases } => self.acquired(asked_at, leases),
            Done::Surveyed { number, page } => self.surveyed(number, page, now),
            Done::HandedOver { held, result } => {
                self.handing_over = false;
                match result {
                    Ok(()) => {
                        let released = self.shards.lost(&held);
                        self.lanes.lose_shards(&released);
                        self.forget_lost();
                        if self.shards.is_empty() {
                            self.reset_source();
                        }
                        tracing::debug!(shards = held.len(), "handed over");
                    }
                    Err(error) => self.database_failed("handing shards over", &error),
                }
            }
            Done::Reconciled { read, asked, blocked } => {
                self.reconciled(read, asked.as_deref(), blocked, now);
            }
            Done::Reported { report, result } => self.reported(report, result, now),
            // It has become its page.
            Done::Asked { .. } => {}
            Done::Pauses { pauses } => self.paused(pauses, now),
            Done::Stalls { looked } => self.looked_for_stalls(looked, now),
            Done::Rested => self.resting = false,
        }
        Ok(())
    }

    /// The answer to a read, or `None` and a pause when the database failed.
    pub(crate) fn came<T>(&mut self, answer: Result<T>, doing: &str, now: Instant) -> Option<T> {
        self.pulse.read(now, answer.is_err());
        match answer {
            Ok(answer) => Some(answer),
            Err(error) => {
                self.database_failed(doing, &error);
                match error.kind() {
                    ErrorKind::Moved => self.moved(&error),
                    ErrorKind::TimedOut => self.source.timed_out(),
                    _ => {}
                }
                self.source.failed(now);
                None
            }
        }
    }

    pub(crate) fn database_failed(&mut self, doing: &str, error: &Error) {
        self.lanes.stats.database_errors += 1;
        tracing::warn!(%error, "{doing} failed; trying again");
    }

    pub(crate) fn until_timer(&self) -> Duration {
        let now = self.clock.now();
        let mut until = self.pauses.next_look();
        if self.ticks() {
            until = until.min(self.tick_at.max(self.tick_not_before));
        }
        if let Some(survey) = self.survey.as_ref().filter(|survey| !survey.asking) {
            until = until.min(survey.not_before);
        }
        if self.stopping.is_none() && self.reads() {
            until = until.min(self.source.next_poll());
        }
        if self.stopping.is_none() && self.reconcile_not_before > now {
            until = until.min(self.reconcile_not_before);
        }
        if self.stopping.is_none() && self.looks_beyond() {
            until = until.min(self.beyond_at);
        }
        if let Some(question) = self.unwritten.next_question().filter(|_| !self.resting) {
            until = until.min(question);
        }
        if let Some(stopping) = &self.stopping {
            until = until.min(stopping.until);
        } else {
            let waits = self.outlets.iter().filter_map(Outlet::waits_until).filter(|at| *at > now);
            until = waits.chain(self.probe_at).fold(until, Instant::min);
        }
        // A read that waits for room, or a timer in the past, must not spin.
        until.saturating_duration_since(now).max(Duration::from_millis(1))
    }

    /// Everything that is visible was read, or waits for a destination that does not answer.
    fn has_read_all(&self) -> bool {
        if self.lanes.stands_behind_a_blocker() {
            return self.source.due_is_read();
        }
        let waits = |destination| self.lanes.is_down(destination);
        let stands = (0..self.outlets.len() as u16).all(waits) && !self.source.is_reading();
        (self.source.exhausted() || stands) && self.source.behind().all(waits)
    }

    /// Nothing is owned any more.
    pub(crate) fn reset_source(&mut self) {
        self.source.reset();
        for destination in 0..self.lanes.destinations() {
            self.lanes.caught_up(destination);
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        let mut stats = self.lanes.stats;
        stats.hot_dropped = self.wires.hot_path.dropped.load(Atomic::Relaxed);
        stats.shards_owned = self.shards.len() as u16;
        stats.in_memory = self.lanes.in_memory();
        stats.idle = self.acquired_once
            && !self.acquiring
            && self.survey.is_none()
            && self.wanted.is_empty()
            && !self.settling
            && self.unwritten.is_empty()
            && self.giving_back == 0
            && self.has_read_all()
            && self.lanes.is_idle();
        stats.breakers_open = self.lanes.breakers_open();
        stats.memory = self.lanes.budget().used();
        (stats.hot_queue, stats.cold_queue) = self.lanes.waiting();
        [stats.delivery_p50_ms, stats.delivery_p95_ms] = self.sampled.quantiles;
        stats.housekeeper = self.wires.duty.is_on();
        stats.paused = self.stands_by();
        let (stalled, age) = self.stalls.extent(self.clock.now());
        (stats.stalled, stats.stall_age_s) = (stalled, age.map(|age| age.as_secs_f64().floor()));
        stats
    }

    pub(crate) fn publish_stats(&mut self) {
        let stats = self.stats();
        self.wires.stats.send_if_modified(|known| {
            let changed = *known != stats;
            *known = stats;
            changed
        });
    }
}
