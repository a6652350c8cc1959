//! The world of one simulation: a database, destinations, relays, writers, operators, and what befalls them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use fastrand::Rng;
use jiff::Timestamp;
use posthaste_core::{
    Event, Key, Status,
    backoff::Backoff,
    store::{Control, Filter, Operate, Pausable, Schema, Selection},
};
use posthaste_relay::{Config, Destination, Housekeeping, Relay, Retention, Route, Routes};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until},
};
use uuid::Uuid;

use crate::{
    database::{Backup, MemoryStore, Row, Server},
    destination::{Broker, Line},
    history::{Happened, History, Written},
    plan::{Accepts, Accident, Fate, Paused, Plan, What},
    process::Process,
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
    /// All came to their end in time.
    pub ended: bool,
}

struct World {
    plan: Plan,
    began: Instant,
    server: Server,
    operator: MemoryStore,
    cut_off: watch::Sender<bool>,
    brokers: Vec<Broker>,
    history: History,
    fates: Arc<Mutex<BTreeMap<Uuid, Fate>>>,
    /// In milliseconds: what the database's clock says more than the world's.
    clock: Arc<AtomicI64>,
    deaths: mpsc::UnboundedSender<String>,
    /// Which destination gets what: rotated with each change of the routes.
    rotation: AtomicU64,
    relays: Mutex<Vec<Slot>>,
    incarnations: AtomicU64,
    numbers: AtomicU64,
    memory: AtomicU64,
}

/// A relay's place: which run of it is there now.
#[derive(Default)]
struct Slot {
    run: Option<(Process, Arc<Relay>)>,
    /// Told when it is to be there again.
    wanted: bool,
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
        cut_off: watch::Sender::new(false),
        brokers: plan.acceptance[..plan.destinations]
            .iter()
            .map(|accepts| Broker::new(*accepts))
            .collect(),
        history,
        fates: Arc::default(),
        clock,
        deaths,
        rotation: AtomicU64::new(0),
        relays: Mutex::new((0..plan.relays).map(|_| Slot::default()).collect()),
        incarnations: AtomicU64::new(0),
        numbers: AtomicU64::new(0),
        memory: AtomicU64::new(0),
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
    for accident in plan.accidents.clone() {
        let world = Arc::clone(&world);
        tasks.spawn(async move { world.befall(accident).await });
    }
    while tasks.join_next().await.is_some() {}
    sleep_until(began + plan.length).await;
    let ended = world.heal().await;
    undertaker.abort();
    world.stop().await;
    End {
        rows: world.server.rows(),
        deleted: world.server.deleted(),
        memory: world.memory.load(Ordering::Relaxed) as usize,
        walked: world.server.walked(),
        history: world.history.clone(),
        ended,
    }
}

impl World {
    fn at(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    fn note(&self, text: impl Into<String>) {
        self.history.add(self.at(), Happened::Note(text.into()));
    }

    fn befell(&self, process: Option<&str>, what: impl Into<String>) {
        let process = process.map(str::to_owned);
        self.history.add(self.at(), Happened::Befell { process, what: what.into() });
    }

    fn slots(&self) -> std::sync::MutexGuard<'_, Vec<Slot>> {
        self.relays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn process(&self, relay: usize) -> Option<Process> {
        self.slots()[relay].run.as_ref().map(|(process, _)| process.clone())
    }

    fn luck(&self, of: &str) -> Rng {
        let hash = of.bytes().fold(self.plan.seed ^ 0x9e37_79b9_7f4a_7c15, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Rng::with_seed(hash)
    }

    /// A new run of a relay.
    async fn start(self: &Arc<Self>, relay: usize) {
        self.slots()[relay].wanted = true;
        let run = self.incarnations.fetch_add(1, Ordering::Relaxed);
        let name = format!("r{relay}.{run}");
        let process = Process::new(&name, self.cut_off.subscribe(), self.luck(&name));
        let wire = Wire { process: process.clone(), store: self.server.store() };
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
        let random = Mutex::new(self.luck(&format!("{name}'s backoff")));
        let config = Config {
            name: name.clone(),
            ordering: self.plan.ordering,
            on_dead: self.plan.on_dead,
            lease: LEASE,
            heartbeat: HEARTBEAT,
            busy_interval: Duration::from_millis(50),
            idle_interval: Duration::from_millis(500),
            batch: 8,
            concurrency: 4,
            dispatch_timeout: DISPATCH_TIMEOUT,
            hot_queue: 32,
            cold_queue: 32,
            memory: MEMORY,
            blocked_lanes: 16,
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
        self.slots()[relay].run = Some((process, made));
    }

    /// Destinations take turns over the aggregate types `t0`, `t1`, `t2`.
    fn routes(&self) -> Routes {
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
        self.slots()[relay].run = None;
        sleep(Duration::from_millis(700)).await;
        self.start(relay).await;
    }

    fn event(&self, rng: &mut Rng, key: usize) -> Event {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let id =
            Uuid::from_u128((0x0198_0000_0000_7000_8000_0000_0000_0000_u128) | u128::from(number));
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
        let mut rng = self.luck(&format!("writer {writer}"));
        let mut left = self.plan.events / self.plan.writers;
        let pace = self.plan.length.as_millis() as u64 * 2 / (left as u64 + 1);
        while left > 0 && self.began.elapsed() < self.plan.length {
            sleep(Duration::from_micros(rng.u64(..=pace.max(1) * 1_000) * 2)).await;
            let count =
                if rng.u32(..8) == 0 { rng.usize(1..30) } else { rng.usize(1..4) }.min(left);
            left -= count;
            let hold = if rng.u32(..5) == 0 { rng.u64(..1_500) } else { rng.u64(..5) };
            let rolls_back = rng.u32(..8) == 0;
            self.transact(&mut rng, count, hold, rolls_back).await;
        }
    }

    /// One transaction of a writer.
    async fn transact(&self, rng: &mut Rng, count: usize, hold: u64, rolls_back: bool) {
        let began = self.at();
        let mut transaction = self.server.begin();
        let (mut written, mut undone) = (Vec::new(), Vec::new());
        let mut left = count;
        while left > 0 {
            let part = rng.usize(1..=left);
            left -= part;
            let takes_back = rng.u32(..10) == 0;
            if takes_back {
                transaction.savepoint();
            }
            let events: Vec<Event> = (0..part)
                .map(|_| {
                    let key = rng.usize(..self.plan.keys);
                    self.event(rng, key)
                })
                .collect();
            let Ok(enqueued) = transaction.enqueue(&events).await else { return };
            let new = events.iter().zip(enqueued).map(|(event, enqueued)| Written {
                id: event.id(),
                sequence: enqueued.sequence,
                key: event.key(),
                delayed: event.deliver_at().is_some(),
            });
            if takes_back {
                undone.extend(new.map(|one| one.id));
                transaction.roll_back_to_savepoint();
            } else {
                written.extend(new);
            }
            sleep(Duration::from_micros(rng.u64(..=hold * 1_000 / 2))).await;
        }
        sleep(Duration::from_millis(hold)).await;
        if rolls_back {
            undone.extend(written.iter().map(|one| one.id));
            transaction.rollback();
            written.clear();
        } else if transaction.commit().is_ok() {
            self.history.add(self.at(), Happened::Committed { began, events: written });
        }
        if !undone.is_empty() {
            self.history.add(self.at(), Happened::RolledBack { ids: undone });
        }
    }

    async fn befall(self: Arc<Self>, accident: Accident) {
        let at = self.began + Duration::from_millis(accident.at);
        if let What::FailOver { lost } = accident.what {
            return self.fail_over(at, Duration::from_millis(lost)).await;
        }
        sleep_until(at).await;
        let wait = |ms: u64| sleep(Duration::from_millis(ms));
        match accident.what {
            What::Crash { relay, down } => {
                let Some(run) = self.slots()[relay].run.take() else { return };
                let (process, relay_of) = run;
                process.kill();
                drop(relay_of);
                self.befell(Some(process.name()), "a process is killed");
                wait(down).await;
                self.start(relay).await;
            }
            What::Restart { relay } => self.restart(relay).await,
            What::Freeze { relay, ms } => {
                let Some(process) = self.process(relay) else { return };
                process.freeze();
                self.befell(Some(process.name()), "a process freezes");
                wait(ms).await;
                process.thaw();
                self.befell(Some(process.name()), "a process wakes up");
            }
            What::Lose { relay, calls, happens, silent } => {
                let Some(process) = self.process(relay) else { return };
                process.lose(calls, happens, silent);
                self.befell(
                    Some(process.name()),
                    format!("{calls} answers are lost (happens: {happens}, silent: {silent})"),
                );
            }
            What::Slow { relay, latency, ms } => {
                let Some(process) = self.process(relay) else { return };
                process.slow(Duration::from_millis(latency));
                self.befell(
                    Some(process.name()),
                    format!("calls take up to {latency} ms each way"),
                );
                wait(ms).await;
                process.slow(Duration::from_millis(2));
                self.befell(Some(process.name()), "calls are quick again");
            }
            What::CutOff { ms } => {
                self.cut_off.send_replace(true);
                self.befell(None, "nobody reaches the database");
                wait(ms).await;
                self.cut_off.send_replace(false);
                self.befell(None, "the database is there again");
            }
            What::ClockJump { by } => {
                self.clock.fetch_add(by, Ordering::Relaxed);
                self.befell(None, format!("the database's clock jumps by {by} ms"));
            }
            What::Outage { destination, how, ms } => {
                self.brokers[destination].set_down(Some(how));
                self.befell(None, format!("d{destination} is down: {how:?}"));
                wait(ms).await;
                self.brokers[destination].set_down(None);
                self.befell(None, format!("d{destination} is up"));
            }
            What::Lock { ms } => {
                let rows = self.server.rows();
                let open: Vec<i64> = rows.iter().rev().take(20).map(|row| row.sequence).collect();
                self.server.lock_rows(&open);
                self.befell(None, format!("somebody locks {} rows", open.len()));
                wait(ms).await;
                self.server.unlock_rows();
                self.befell(None, "the locks end");
            }
            What::LongTransaction { events, ms, rolls_back } => {
                let mut rng = self.luck(&format!("long transaction at {}", accident.at));
                self.transact(&mut rng, events, ms, rolls_back).await;
            }
            What::Pause { what, ms } => {
                let what = match what {
                    Paused::Outbox => Pausable::Outbox,
                    Paused::Relay(relay) => match self.process(relay) {
                        Some(process) => Pausable::Relay(process.name().to_owned()),
                        None => return,
                    },
                    Paused::Destination(n) => Pausable::Destination(format!("d{n}")),
                    Paused::Key(key) => Pausable::Key(self.key(key)),
                };
                let _ = self.operator.pause(&what, "sim", None).await;
                self.befell(None, format!("{what} is paused"));
                wait(ms).await;
                let _ = self.operator.resume(&what).await;
                self.befell(None, format!("{what} goes on"));
            }
            What::ReplayDead => self.operate(true, Status::Dead).await,
            What::ReplaySent => self.operate(true, Status::Sent).await,
            What::DiscardDead => self.operate(false, Status::Dead).await,
            What::DiscardWaiting => self.operate(false, Status::Retry).await,
            What::Reroute => {
                self.rotation.fetch_add(1, Ordering::Relaxed);
                self.befell(None, "the routes change");
                for relay in 0..self.plan.relays {
                    self.restart(relay).await;
                }
            }
            What::FailOver { .. } => {}
        }
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

    async fn restart(self: &Arc<Self>, relay: usize) {
        let Some((process, run)) = self.slots()[relay].run.take() else { return };
        self.befell(Some(process.name()), "a relay stops");
        // It may be frozen, or its stop be cut off.
        let stopped = tokio::time::timeout(Duration::from_secs(30), run.stop()).await;
        process.kill();
        self.note(format!("{} has stopped (in time: {})", process.name(), stopped.is_ok()));
        drop(run);
        self.start(relay).await;
    }

    /// The new server has what the old one had a while before.
    async fn fail_over(&self, at: Instant, lost: Duration) {
        sleep_until(at - lost.min(at - self.began)).await;
        let backup: Backup = self.server.backup();
        sleep_until(at).await;
        if !self.server.fail_over(&backup) {
            return self.note("a server that was replaced meanwhile does not come back");
        }
        self.befell(None, format!("another server takes over, {} ms older", lost.as_millis()));
    }

    /// Ends all that is wrong, and waits for all events to come to their end. Whether they did in time.
    async fn heal(self: &Arc<Self>) -> bool {
        self.befell(None, "all accidents end");
        self.cut_off.send_replace(false);
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
