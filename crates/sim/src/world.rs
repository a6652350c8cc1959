//! The world of one simulation: a database, destinations, relays, writers, operators, and what befalls them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use fastrand::Rng;
use jiff::Timestamp;
use posthaste_core::{
    Event, Key, Status,
    backoff::Backoff,
    enqueue::Enqueued,
    store::{Control, EventRecord, Filter, Operate, Pausable, RelayOrdering, Schema, Selection},
};
use posthaste_relay::{
    Committed, Config, Destination, Housekeeping, Relay, Retention, Route, Routes,
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};
use uuid::Uuid;

use crate::{
    database::{Backup, MemoryStore, Row, Server},
    destination::{Broker, Line},
    fence::Fences,
    history::{Happened, History, WRITERS, Written, short},
    judge::Promise,
    luck::Luck,
    plan::{Accepts, Accident, Down, Fate, Paused, Plan, Settings, What},
    process::Process,
    stalls::{Excuses, RECOVERY},
    wire::Wire,
};

/// Leases of the simulated relays.
pub(crate) const LEASE: Duration = Duration::from_secs(6);
const HEARTBEAT: Duration = Duration::from_secs(2);
const DISPATCH_TIMEOUT: Duration = Duration::from_secs(4);
pub(crate) const MEMORY: usize = 256 * 1024;
pub(crate) const MAX_ATTEMPTS: u32 = 5;

/// After the last accident, everything has come to its end within this time.
pub(crate) const BOUND: Duration = Duration::from_mins(10);

/// What is left when the world has ended.
#[derive(Debug)]
pub struct End {
    /// What has happened.
    pub history: History,
    /// The committed rows of the last server.
    pub rows: Vec<Row>,
    /// The events that it has deleted, because they were sent.
    pub deleted: Vec<Uuid>,
    /// Most bytes that a relay has counted.
    pub memory: usize,
    /// Rows that reads have walked over.
    pub walked: u64,
    /// The longest time for which an event waited and nothing excused it, in microseconds.
    pub waited: u64,
    /// How long it took after the last accident until nothing waited, in microseconds.
    pub healed: u64,
    /// For how long all of it went on, in microseconds.
    pub lasted: u64,
    /// All came to their end in time.
    pub ended: bool,
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    began: Instant,
    pub(crate) server: Server,
    pub(crate) operator: MemoryStore,
    cut_off: Arc<AtomicBool>,
    brokers: Vec<Broker>,
    pub(crate) history: History,
    fences: Fences,
    excuses: Mutex<Excuses>,
    /// Since when each destination is down, and until when it was.
    outages: Mutex<BTreeMap<usize, (u64, u64)>>,
    /// How often another server has taken over, and an operator has purged.
    failovers: AtomicU64,
    purges: AtomicU64,
    fates: Arc<Mutex<BTreeMap<Uuid, Fate>>>,
    /// In milliseconds: what the database's clock says more than the world's.
    clock: Arc<AtomicI64>,
    /// The most that it has said more.
    latest: AtomicI64,
    deaths: mpsc::UnboundedSender<String>,
    /// Which destination gets what: rotated with each change of the routes.
    rotation: AtomicU64,
    relays: Mutex<Vec<Slot>>,
    memory: AtomicU64,
    waited: AtomicU64,
}

/// A relay's place: which run of it is there now.
#[derive(Default)]
struct Slot {
    run: Option<(Process, Arc<Relay>)>,
    /// Told when it is to be there again.
    wanted: bool,
    /// How many there were.
    runs: u32,
    /// With which settings the next one starts, if not with the usual ones.
    settings: Option<Settings>,
}

/// Somebody who writes events: each has luck and numbers of their own.
struct Pen {
    source: u64,
    events: u32,
    luck: Rng,
    /// The relay in whose process they write: it is told of what they commit.
    relay: Option<usize>,
    /// What they have committed lately, if they write some of it again.
    known: Option<Vec<Known>>,
}

/// An event that was committed.
#[derive(Clone)]
struct Known {
    event: Event,
    sequence: i64,
    /// How many failovers there had been.
    failovers: u64,
}

/// So many of its events a writer remembers.
const REMEMBERED: usize = 20;

impl Pen {
    fn new(source: u64, luck: Luck) -> Self {
        Self { source, events: 0, luck: luck.generator(), relay: None, known: None }
    }

    /// One of the last events, to be written again.
    fn repeated(&mut self) -> Option<Known> {
        let known = self.known.as_ref().filter(|known| !known.is_empty())?;
        (self.luck.u32(..6) == 0).then(|| known[self.luck.usize(..known.len())].clone())
    }

    fn next_id(&mut self) -> Uuid {
        self.events += 1;
        let number = u128::from(self.source) << 32 | u128::from(self.events);
        Uuid::from_u128(0x0198_0000_0000_7000_8000_0000_0000_0000 | number)
    }
}

/// Lives through a plan. Needs a runtime whose time stands still until all wait.
///
/// # Panics
///
/// When the plan's settings are not sound.
pub async fn live(plan: &Plan) -> End {
    let began = Instant::now();
    let clock = Arc::new(AtomicI64::new(0));
    let start = Timestamp::UNIX_EPOCH.as_microsecond() + 1_700_000_000_000_000;
    let now = {
        let clock = Arc::clone(&clock);
        move || start + began.elapsed().as_micros() as i64 + clock.load(Ordering::Relaxed) * 1_000
    };
    let history = History::default();
    let witness = {
        let history = history.clone();
        move |id, replay, verdict| {
            let at = began.elapsed().as_micros() as u64;
            history.add(at, Happened::Wrote { id, replay, verdict });
        }
    };
    let server = Server::new(Arc::new(now)).with_walk(60).with_witness(Arc::new(witness));
    let operator = server.store();
    operator.migrate(Some(plan.shards)).await.expect("an empty server takes tables");
    let (deaths, mut dying) = mpsc::unbounded_channel();
    let world = Arc::new(World {
        plan: plan.clone(),
        began,
        operator,
        cut_off: Arc::default(),
        brokers: plan.acceptance[..plan.destinations]
            .iter()
            .map(|accepts| Broker::new(*accepts))
            .collect(),
        history,
        fates: Arc::default(),
        clock,
        latest: AtomicI64::new(0),
        deaths,
        rotation: AtomicU64::new(0),
        relays: Mutex::new((0..plan.relays).map(|_| Slot::default()).collect()),
        memory: AtomicU64::new(0),
        waited: AtomicU64::new(0),
        fences: Fences::default(),
        excuses: Mutex::new(Excuses::default()),
        outages: Mutex::default(),
        failovers: AtomicU64::new(0),
        purges: AtomicU64::new(0),
        server,
    });
    for relay in 0..plan.relays {
        world.start(relay).await;
    }
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..plan.writers {
        let world = Arc::clone(&world);
        tasks.spawn(async move { world.write(writer).await });
    }
    let undertaker = {
        let world = Arc::clone(&world);
        tokio::spawn(async move {
            while let Some(name) = dying.recv().await {
                let world = Arc::clone(&world);
                // Beside this: a new run takes its time.
                tokio::spawn(async move { world.bury(&name).await });
            }
        })
    };
    // They start, and share the work.
    world.excuses().all(RECOVERY.as_micros() as u64);
    let looking = tokio::spawn(Arc::clone(&world).look_for_stalls());
    for accident in plan.accidents.clone() {
        let world = Arc::clone(&world);
        tasks.spawn(async move {
            let kind = accident.what.kind();
            if world.befall(accident).await {
                world.history.count(format!("accident: {kind:?}"));
            }
        });
    }
    while tasks.join_next().await.is_some() {}
    sleep_until(began + plan.length).await;
    let healing = world.at();
    let ended = world.heal().await;
    let healed = world.at() - healing;
    looking.abort();
    undertaker.abort();
    world.stop().await;
    End {
        rows: world.server.rows(),
        deleted: world.server.deleted(),
        memory: world.memory.load(Ordering::Relaxed) as usize,
        walked: world.server.walked(),
        waited: world.waited.load(Ordering::Relaxed),
        healed,
        lasted: world.at(),
        history: world.history.clone(),
        ended,
    }
}

impl World {
    pub(crate) fn at(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    fn note(&self, text: impl Into<String>) {
        self.history.add(self.at(), Happened::Note(text.into()));
    }

    fn befell(&self, process: Option<&str>, what: impl Into<String>) {
        let process = process.map(str::to_owned);
        self.history.add(self.at(), Happened::Befell { process, what: what.into() });
    }

    pub(crate) fn tell(&self, what: Happened) {
        self.history.add(self.at(), what);
    }

    pub(crate) fn excuses(&self) -> MutexGuard<'_, Excuses> {
        self.excuses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This moment, so many milliseconds later, and the time that all need to recover.
    fn recovered(&self, ms: u64) -> u64 {
        self.at() + ms * 1_000 + RECOVERY.as_micros() as u64
    }

    /// A relay does nothing for so long: the others take its work over, and give it back.
    fn relay_is_out(&self, relay: usize, ms: u64) {
        let until = self.at() + ms * 1_000;
        let recovered = self.recovered(0);
        let mut excuses = self.excuses();
        excuses.relay(relay, until);
        excuses.all(recovered);
    }

    /// It works again.
    fn relay_is_back(&self) {
        let recovered = self.recovered(0);
        self.excuses().all(recovered);
    }

    pub(crate) fn longest_wait(&self, waited: u64) {
        self.waited.fetch_max(waited, Ordering::Relaxed);
    }

    /// How often destinations were given this event.
    pub(crate) fn tries(&self, id: Uuid) -> u32 {
        self.brokers.iter().map(|broker| broker.tries(id)).sum()
    }

    /// Where the routes lead an event.
    pub(crate) fn destination_of(&self, record: &EventRecord) -> usize {
        let kind = record.content.as_ref().ok().and_then(|envelope| {
            envelope.event.aggregate_type().strip_prefix('t')?.parse::<u64>().ok()
        });
        let count = self.plan.destinations as u64;
        ((kind.unwrap_or(0) + self.rotation.load(Ordering::Relaxed)) % count) as usize
    }

    fn outages(&self) -> MutexGuard<'_, BTreeMap<usize, (u64, u64)>> {
        self.outages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It has failed to take an event lately.
    pub(crate) fn has_failed(&self, destination: usize, now: u64) -> bool {
        // What failed there can wait longer for its next try when the database's clock is set back.
        let lately = 10 * RECOVERY.as_micros() as u64;
        self.brokers[destination].failed_at().is_some_and(|at| at + lately > now)
    }

    /// It has been down for so long that all know.
    pub(crate) fn is_down_for_long(&self, destination: usize, now: u64) -> bool {
        let long = RECOVERY.as_micros() as u64;
        self.outages()
            .get(&destination)
            .is_some_and(|(since, until)| *until > now && since + long < now)
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.relays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn process(&self, relay: usize) -> Option<Process> {
        self.slots()[relay].run.as_ref().map(|(process, _)| process.clone())
    }

    fn luck(&self, of: &str) -> Luck {
        Luck::new(self.plan.seed).of(of)
    }

    /// A new run of a relay.
    async fn start(self: &Arc<Self>, relay: usize) {
        let (run, settings) = {
            let slot = &mut self.slots()[relay];
            slot.wanted = true;
            slot.runs += 1;
            (slot.runs, slot.settings.clone().unwrap_or_default())
        };
        let name = format!("r{relay}.{run}");
        let process = Process::new(
            &name,
            Arc::clone(&self.cut_off),
            self.luck(&name),
            self.history.clone(),
            self.began,
        );
        let wire = Wire {
            process: process.clone(),
            store: self.server.store(),
            fences: self.fences.clone(),
        };
        let lines = self.brokers.iter().enumerate().map(|(n, broker)| {
            Destination::new(Arc::new(Line {
                name: format!("d{n}"),
                process: process.clone(),
                broker: broker.clone(),
                history: self.history.clone(),
                fates: Arc::clone(&self.fates),
                began: self.began,
                deaths: self.deaths.clone(),
            }))
        });
        let random = Mutex::new(self.luck(&name).of("backoff").generator());
        let config = Config {
            name: name.clone(),
            ordering: self.plan.ordering,
            on_dead: settings.on_dead.unwrap_or(self.plan.on_dead),
            lease: LEASE,
            heartbeat: HEARTBEAT,
            busy_interval: Duration::from_millis(50),
            idle_interval: Duration::from_millis(500),
            batch: settings.batch,
            concurrency: settings.concurrency,
            dispatch_timeout: DISPATCH_TIMEOUT,
            hot_queue: 32,
            cold_queue: settings.cold_queue,
            memory: MEMORY,
            blocked_lanes: settings.blocked_lanes,
            drain: Duration::from_secs(2),
            backoff: Backoff::Exponential {
                base: Duration::from_millis(200),
                cap: Duration::from_secs(5),
            },
            max_attempts: MAX_ATTEMPTS,
            random: Arc::new(move || random.lock().unwrap_or_else(PoisonError::into_inner).f64()),
            housekeeping: Housekeeping {
                retention: Retention {
                    sent: if self.plan.deletes_sent {
                        Duration::ZERO
                    } else {
                        Duration::from_hours(1)
                    },
                    dead: None,
                },
                ..Housekeeping::default()
            },
            ..Config::default()
        };
        let relay_of = Relay::routed(Arc::new(wire), lines.collect(), self.routes(), config)
            .expect("the plan's settings are sound")
            .with_clock(Arc::new(process.clone()));
        let made = Arc::new(relay_of);
        while let Err(error) = made.start().await {
            if process.is_dead() || !self.slots()[relay].wanted {
                return;
            }
            self.note(format!("{name} cannot start: {error}"));
            sleep(Duration::from_millis(500)).await;
        }
        self.note(format!("{name} starts"));
        self.relay_is_back();
        self.slots()[relay].run = Some((process, made));
    }

    /// Destinations take turns over the aggregate types `t0`, `t1`, `t2`.
    pub(crate) fn routes(&self) -> Routes {
        let count = self.plan.destinations as u64;
        let rotation = self.rotation.load(Ordering::Relaxed);
        (0..count).fold(Routes::new(), |routes, n| {
            let to = format!("d{}", (n + rotation) % count);
            routes.route(Route::to(to).aggregate_type(format!("t{n}")))
        })
    }

    /// A process has died over an event: another one takes its place.
    async fn bury(self: &Arc<Self>, name: &str) {
        self.befell(Some(name), "a process dies over an event");
        let relay = self
            .slots()
            .iter()
            .position(|slot| slot.run.as_ref().is_some_and(|(process, _)| process.name() == name));
        let Some(relay) = relay else { return };
        self.relay_is_out(relay, 700);
        self.slots()[relay].run = None;
        sleep(Duration::from_millis(700)).await;
        self.start(relay).await;
    }

    fn event(&self, pen: &mut Pen, key: usize) -> Event {
        let id = pen.next_id();
        let rng = &mut pen.luck;
        let fate = *rng.choice(&self.plan.fates).unwrap_or(&Fate::Plain);
        // Most events are plain. A panic is one of a handler, which takes one event at a time.
        let fate = if rng.u32(..6) == 0 { fate } else { Fate::Plain };
        let bytes = if fate == Fate::Large { rng.usize(40_000..90_000) } else { rng.usize(2..200) };
        let kind = key % self.plan.destinations;
        let one_by_one =
            self.plan.acceptance[..self.plan.destinations].iter().all(|a| *a == Accepts::One);
        let fate = if matches!(fate, Fate::Panics(_)) && !one_by_one { Fate::Plain } else { fate };
        let mut event = Event::builder("Happened")
            .id(id)
            .tenant(format!("tenant{}", key % 3))
            .bytes("text/plain", vec![b'x'; bytes]);
        event = if rng.u32(..12) == 0 {
            event.aggregate_type(format!("t{kind}"))
        } else {
            event.aggregate(format!("t{kind}"), key.to_string())
        };
        if let Fate::Delayed(ms) = fate {
            let due = self.server.time() + i64::from(ms) * 1_000;
            event = event.deliver_at(Timestamp::from_microsecond(due).unwrap_or_default());
        }
        self.fates.lock().unwrap_or_else(PoisonError::into_inner).insert(id, fate);
        event.build().expect("a sound event")
    }

    async fn write(self: Arc<Self>, writer: usize) {
        let mut pen = Pen::new(writer as u64, self.luck(&format!("writer {writer}")));
        pen.relay = (writer < self.plan.hot).then_some(writer % self.plan.relays);
        pen.known = self.plan.repeats.then(Vec::new);
        let mut left = self.plan.events / self.plan.writers;
        let pace = self.plan.length.as_millis() as u64 * 2 / (left as u64 + 1);
        while left > 0 && self.began.elapsed() < self.plan.length {
            sleep(Duration::from_micros(pen.luck.u64(..=pace.max(1) * 1_000) * 2)).await;
            let count =
                if pen.luck.u32(..8) == 0 { pen.luck.usize(1..30) } else { pen.luck.usize(1..4) }
                    .min(left);
            left -= count;
            let hold =
                if pen.luck.u32(..5) == 0 { pen.luck.u64(..1_500) } else { pen.luck.u64(..5) };
            let rolls_back = pen.luck.u32(..8) == 0;
            self.transact(&mut pen, count, hold, rolls_back).await;
        }
    }

    /// One transaction of a writer.
    async fn transact(&self, pen: &mut Pen, count: usize, hold: u64, rolls_back: bool) {
        let began = self.at();
        let mut transaction = self.server.begin();
        let (mut written, mut undone) = (Vec::new(), Vec::new());
        let mut left = count;
        while left > 0 {
            let part = pen.luck.usize(1..=left);
            left -= part;
            let takes_back = pen.luck.u32(..10) == 0;
            if takes_back {
                transaction.savepoint();
            }
            let mut events: Vec<Event> = (0..part)
                .map(|_| {
                    let key = pen.luck.usize(..self.plan.keys);
                    self.event(pen, key)
                })
                .collect();
            let again = pen.repeated();
            events.extend(again.iter().map(|known| known.event.clone()));
            let Ok(enqueued) = transaction.enqueue(&events).await else { return };
            if let (Some(known), Some(answer)) = (&again, enqueued.last()) {
                self.judge_repeated(known, answer);
            }
            let new = events.into_iter().zip(enqueued).filter(|(_, enqueued)| !enqueued.duplicate);
            if takes_back {
                undone.extend(new.map(|(event, _)| event.id()));
                transaction.roll_back_to_savepoint();
            } else {
                written.extend(new.map(|(event, enqueued)| (event, enqueued.sequence)));
            }
            sleep(Duration::from_micros(pen.luck.u64(..=hold * 1_000 / 2))).await;
        }
        sleep(Duration::from_millis(hold)).await;
        if rolls_back {
            undone.extend(written.iter().map(|(event, _)| event.id()));
            transaction.rollback();
            self.history.count("writer: rolls back");
        } else if transaction.commit().is_ok() {
            let events = written.iter().map(|(event, sequence)| Written {
                id: event.id(),
                sequence: *sequence,
                key: event.key(),
                delayed: event.deliver_at().is_some(),
            });
            self.tell(Happened::Committed { began, events: events.collect() });
            self.committed(pen, written);
        }
        if !undone.is_empty() {
            self.tell(Happened::RolledBack { ids: undone });
        }
    }

    /// Tells the relay in the writer's process of what was committed.
    fn committed(&self, pen: &mut Pen, written: Vec<(Event, i64)>) {
        let slots = self.slots();
        let run = pen.relay.and_then(|relay| slots[relay].run.as_ref());
        if let Some((_, relay)) = run.filter(|(process, _)| process.is_running()) {
            let committed =
                written.iter().map(|(event, sequence)| Committed::new(event, *sequence));
            relay.hot_path().committed(committed.collect());
            self.history.count("writer: tells a relay");
        }
        drop(slots);
        let failovers = self.failovers.load(Ordering::Relaxed);
        if let Some(known) = &mut pen.known {
            let new = written.into_iter();
            known.extend(new.map(|(event, sequence)| Known { event, sequence, failovers }));
            let most = known.len().saturating_sub(REMEMBERED);
            known.drain(..most);
        }
    }

    /// An event was enqueued a second time.
    fn judge_repeated(&self, known: &Known, answer: &Enqueued) {
        let id = known.event.id();
        let failed_over = self.failovers.load(Ordering::Relaxed) > known.failovers;
        let purged = self.purges.load(Ordering::Relaxed) > 0 || self.plan.deletes_sent;
        self.history.count(if answer.duplicate {
            "writer: repeats an event"
        } else {
            "writer: repeats an event that is gone"
        });
        let is_same = answer.duplicate && answer.sequence == known.sequence;
        if !is_same && !purged && !failed_over {
            let text = format!(
                "{} (#{}) was written again, and the answer is {answer:?}",
                short(id),
                known.sequence
            );
            let promise = Promise::RepeatedEnqueueWritesNothing;
            self.tell(Happened::Broke { promise, events: vec![id], text });
        }
    }

    /// Lets an accident happen, and ends it. False when it finds nothing to happen to.
    async fn befall(self: &Arc<Self>, accident: Accident) -> bool {
        let at = self.began + Duration::from_millis(accident.at);
        if let What::FailOver { lost } = accident.what {
            return self.fail_over(at, Duration::from_millis(lost)).await;
        }
        sleep_until(at).await;
        let wait = |ms: u64| sleep(Duration::from_millis(ms));
        match accident.what {
            What::Crash { relay, down } => {
                let Some(run) = self.slots()[relay].run.take() else { return false };
                let (process, relay_of) = run;
                process.kill();
                drop(relay_of);
                self.relay_is_out(relay, down);
                self.befell(Some(process.name()), "a process is killed");
                wait(down).await;
                self.start(relay).await;
            }
            What::Restart { relay } => return self.restart(relay).await,
            What::Settings { relay, settings } => {
                self.slots()[relay].settings = Some(settings);
                return self.restart(relay).await;
            }
            What::Freeze { relay, ms } => {
                let Some(process) = self.process(relay) else { return false };
                process.freeze();
                self.relay_is_out(relay, ms);
                self.befell(Some(process.name()), "a process freezes");
                wait(ms).await;
                process.thaw();
                self.relay_is_back();
                self.befell(Some(process.name()), "a process wakes up");
            }
            What::Lose { relay, calls, happens, silent } => {
                let Some(process) = self.process(relay) else { return false };
                process.lose(calls, happens, silent);
                let recovered = self.recovered(0);
                self.excuses().all(recovered);
                self.befell(
                    Some(process.name()),
                    format!("{calls} answers are lost (happens: {happens}, silent: {silent})"),
                );
            }
            What::Slow { relay, latency, ms } => {
                let Some(process) = self.process(relay) else { return false };
                process.slow(Duration::from_millis(latency));
                let recovered = self.recovered(ms);
                self.excuses().all(recovered);
                self.befell(
                    Some(process.name()),
                    format!("calls take up to {latency} ms each way"),
                );
                wait(ms).await;
                process.slow(Duration::from_millis(2));
                self.befell(Some(process.name()), "calls are quick again");
            }
            What::CutOff { ms } => {
                self.cut_off.store(true, Ordering::Relaxed);
                let recovered = self.recovered(ms);
                self.excuses().all(recovered);
                self.befell(None, "nobody reaches the database");
                wait(ms).await;
                self.cut_off.store(false, Ordering::Relaxed);
                self.befell(None, "the database is there again");
            }
            What::ClockJump { by } => {
                let clock = self.clock.fetch_add(by, Ordering::Relaxed) + by;
                let latest = self.latest.fetch_max(clock, Ordering::Relaxed).max(clock);
                // What was given until a time that the clock has said before lasts until it says so again.
                let recovered = self.recovered((latest - clock).unsigned_abs());
                self.excuses().all(recovered);
                self.befell(None, format!("the database's clock jumps by {by} ms"));
            }
            What::Outage { destination, how, ms } => self.outage(destination, how, ms).await,
            What::Lock { ms } => {
                let rows = self.server.rows();
                let open: Vec<&Row> = rows.iter().rev().take(20).collect();
                let sequences: Vec<i64> = open.iter().map(|row| row.sequence).collect();
                self.server.lock_rows(&sequences);
                let recovered = self.recovered(ms);
                for row in open {
                    match row.key {
                        Some(key) => self.excuses().key(key, recovered),
                        None => self.excuses().all(recovered),
                    }
                }
                if self.plan.ordering != RelayOrdering::PerKey {
                    self.excuses().all(recovered);
                }
                self.befell(None, format!("somebody locks {} rows", sequences.len()));
                wait(ms).await;
                self.server.unlock_rows();
                self.befell(None, "the locks end");
            }
            What::LongTransaction { events, ms, rolls_back } => {
                let luck = self.luck(&format!("long transaction at {}", accident.at));
                let mut pen = Pen::new(WRITERS + accident.at, luck);
                self.transact(&mut pen, events, ms, rolls_back).await;
            }
            What::Pause { what, ms } => return self.pause(what, ms).await,
            What::ReplayDead => self.operate(true, Status::Dead).await,
            What::ReplaySent => self.operate(true, Status::Sent).await,
            What::DiscardDead => self.operate(false, Status::Dead).await,
            What::DiscardWaiting => self.operate(false, Status::Retry).await,
            What::Purge => self.purge().await,
            What::Reroute => {
                self.rotation.fetch_add(1, Ordering::Relaxed);
                self.befell(None, "the routes change");
                for relay in 0..self.plan.relays {
                    self.restart(relay).await;
                }
            }
            What::FailOver { .. } => {}
        }
        true
    }

    async fn outage(&self, destination: usize, how: Down, ms: u64) {
        self.brokers[destination].set_down(Some(how));
        let (now, recovered) = (self.at(), self.recovered(ms));
        self.outages().insert(destination, (now, now + ms * 1_000));
        if self.plan.ordering == RelayOrdering::Global {
            self.excuses().all(recovered);
        } else {
            self.excuses().destination(destination, recovered);
        }
        self.befell(None, format!("d{destination} is down: {how:?}"));
        sleep(Duration::from_millis(ms)).await;
        self.brokers[destination].set_down(None);
        self.befell(None, format!("d{destination} is up"));
    }

    async fn pause(&self, what: Paused, ms: u64) -> bool {
        let recovered = self.recovered(ms);
        let is_global = self.plan.ordering == RelayOrdering::Global;
        self.history.count(format!("pause: {}", what.name()));
        let what = match what {
            Paused::Outbox => {
                self.excuses().all(recovered);
                Pausable::Outbox
            }
            Paused::Relay(relay) => {
                let Some(process) = self.process(relay) else { return false };
                self.relay_is_out(relay, ms);
                Pausable::Relay(process.name().to_owned())
            }
            Paused::Destination(n) => {
                self.excuses().destination(n, recovered);
                Pausable::Destination(format!("d{n}"))
            }
            Paused::Key(key) => {
                self.excuses().key(self.key(key), recovered);
                Pausable::Key(self.key(key))
            }
        };
        if is_global {
            self.excuses().all(recovered);
        }
        let _ = self.operator.pause(&what, "sim", None).await;
        self.befell(None, format!("{what} is paused"));
        sleep(Duration::from_millis(ms)).await;
        let _ = self.operator.resume(&what).await;
        if matches!(what, Pausable::Relay(_)) {
            self.relay_is_back();
        }
        self.befell(None, format!("{what} goes on"));
        true
    }

    /// An operator deletes all that has ended.
    async fn purge(&self) {
        self.purges.fetch_add(1, Ordering::Relaxed);
        let (mut deleted, mut next) = (0, None);
        loop {
            let step = self.operator.purge(Duration::ZERO, Some(Duration::ZERO), 50, next).await;
            let Ok(step) = step else { break };
            deleted += step.deleted;
            next = step.next;
            if next.is_none() {
                break;
            }
        }
        self.befell(None, format!("an operator purges {deleted} events"));
    }

    fn key(&self, key: usize) -> Key {
        let kind = key % self.plan.destinations;
        Key::of(&posthaste_core::key::derived_key(
            &format!("tenant{}", key % 3),
            &format!("t{kind}"),
            &key.to_string(),
        ))
    }

    async fn operate(&self, replays: bool, status: Status) {
        let filter = Filter { status: Some(status), ..Filter::default() };
        let selection = Selection::Matching { filter, limit: 5 };
        let changed = if replays {
            self.operator.replay(&selection).await
        } else {
            self.operator.discard(&selection).await
        };
        let verb = if replays { "replays" } else { "discards" };
        self.befell(None, format!("an operator {verb} {} {status} events", changed.unwrap_or(0)));
    }

    async fn restart(self: &Arc<Self>, relay: usize) -> bool {
        let Some((process, run)) = self.slots()[relay].run.take() else { return false };
        // A stop takes no longer.
        self.relay_is_out(relay, 30_000);
        self.befell(Some(process.name()), "a relay stops");
        // It may be frozen, or its stop be cut off.
        let stopped = tokio::time::timeout(Duration::from_secs(30), run.stop()).await;
        process.kill();
        self.note(format!("{} has stopped (in time: {})", process.name(), stopped.is_ok()));
        drop(run);
        self.start(relay).await;
        true
    }

    /// The new server has what the old one had a while before.
    async fn fail_over(&self, at: Instant, lost: Duration) -> bool {
        sleep_until(at - lost.min(at - self.began)).await;
        let since = self.at();
        let backup: Backup = self.server.backup();
        sleep_until(at).await;
        if !self.server.fail_over(&backup) {
            self.note("a server that was replaced meanwhile does not come back");
            return false;
        }
        self.fences.forget();
        self.failovers.fetch_add(1, Ordering::Relaxed);
        let recovered = self.recovered(0);
        self.excuses().all(recovered);
        self.tell(Happened::FailedOver { since });
        self.befell(None, format!("another server takes over, {} ms older", lost.as_millis()));
        true
    }

    /// Ends all that is wrong, and waits for all events to come to their end. Whether they did in time.
    async fn heal(self: &Arc<Self>) -> bool {
        self.befell(None, "all accidents end");
        self.cut_off.store(false, Ordering::Relaxed);
        let recovered = self.recovered(0);
        self.excuses().all(recovered);
        self.server.unlock_rows();
        for broker in &self.brokers {
            broker.be_kind();
        }
        for pause in self.operator.pauses().await.unwrap_or_default() {
            let _ = self.operator.resume(&pause.what).await;
        }
        let missing: Vec<usize> = {
            let slots = self.slots();
            for slot in slots.iter() {
                if let Some((process, _)) = &slot.run {
                    process.thaw();
                    process.slow(Duration::from_millis(2));
                }
            }
            (0..slots.len()).filter(|relay| slots[*relay].run.is_none()).collect()
        };
        for relay in missing {
            self.start(relay).await;
        }
        let until = Instant::now() + BOUND;
        while Instant::now() < until {
            self.measure();
            let waits = self.server.rows().iter().any(Row::is_unsettled);
            if !waits {
                return true;
            }
            // Parked lanes wait for an operator.
            self.operate_quietly().await;
            sleep(Duration::from_secs(1)).await;
        }
        false
    }

    async fn operate_quietly(&self) {
        let filter = Filter { status: Some(Status::Dead), ..Filter::default() };
        let _ = self.operator.discard(&Selection::Matching { filter, limit: 1_000 }).await;
    }

    fn measure(&self) {
        for slot in self.slots().iter() {
            if let Some((_, relay)) = &slot.run {
                let memory = relay.stats().memory as u64;
                self.memory.fetch_max(memory, Ordering::Relaxed);
            }
        }
    }

    async fn stop(&self) {
        let runs: Vec<_> = self.slots().iter_mut().filter_map(|slot| slot.run.take()).collect();
        for (_, relay) in runs {
            let _ = tokio::time::timeout(Duration::from_secs(30), relay.stop()).await;
        }
    }
}
