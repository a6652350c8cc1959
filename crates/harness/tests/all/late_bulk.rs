//! Many events that are committed late, in one transaction, for a destination that is paused or live: all
//! of them are delivered, in order, and events of other keys go on meanwhile.
//!
//! ```text
//! bulk               | insert … | open | commit
//! others   - before -|          | -----| - committed (paused) -- | -- delivering --
//! ```
//!
//! The long form has 100,000 events and judges how long the others take. It wants the machine for itself:
//! `scripts/test --nightly -- --no-capture -E 'test(late_bulk::)'`.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use posthaste::{
    Dialect, Envelope, Event, Outbox,
    relay::{Config, Destination, Housekeeping, Relay, Route, Routes},
    store::Pausable,
    transport::{Outcome, Transport},
};
use posthaste_harness::{
    fixture::{Fixture, nightly},
    on_databases, with_pool,
};
use sqlx::Pool;
use tokio::sync::watch;

on_databases! {
    postgres, Postgres:
        a_late_bulk_for_a_paused_destination_comes_after_the_resume_and_delays_nobody,
        a_late_bulk_for_a_live_destination_comes_whole_and_delays_nobody;
    mariadb, MariaDb:
        a_late_bulk_for_a_paused_destination_comes_after_the_resume_and_delays_nobody,
        a_late_bulk_for_a_live_destination_comes_whole_and_delays_nobody;
    mysql, MySql:
        a_late_bulk_for_a_paused_destination_comes_after_the_resume_and_delays_nobody,
        a_late_bulk_for_a_live_destination_comes_whole_and_delays_nobody;
}

/// Keys of the bulk, and of the others.
const BULK_KEYS: u32 = 5_000;
const OTHER_KEYS: u32 = 50;

/// Between two transactions of the others.
const EVERY: Duration = Duration::from_millis(10);

/// How long something may take that does not hang.
const LIMIT: Duration = Duration::from_mins(3);

/// How many others must get through while nothing of the bulk does.
const THROUGH: u32 = 30;

/// The others' 99th percentile may grow by this factor.
const WORSE: f64 = 2.0;

fn bulk() -> u32 {
    if nightly() { 100_000 } else { 5_000 }
}

async fn a_late_bulk_for_a_paused_destination_comes_after_the_resume_and_delays_nobody(
    on: &Fixture,
) {
    with_pool!(&on.connections, pool => run(on, pool, true).await);
}

async fn a_late_bulk_for_a_live_destination_comes_whole_and_delays_nobody(on: &Fixture) {
    with_pool!(&on.connections, pool => run(on, pool, false).await);
}

async fn run<DB: Dialect>(on: &Fixture, pool: &Pool<DB>, paused: bool) {
    let _ = tracing_subscriber::fmt()
        .with_env_filter("posthaste=warn,posthaste_relay=warn")
        .with_test_writer()
        .try_init();
    let outbox = Outbox::<DB>::new(on.tables.name().clone());
    let received = Received::default();
    let relay = relay(on, &received);
    let pause = Pausable::Destination("bulk".to_owned());
    if paused {
        on.store.pause(&pause, "test", None).await.unwrap();
    }
    relay.start().await.unwrap();
    let others = Others::start(pool.clone(), outbox.clone(), !paused);
    others.until_through(&received, THROUGH).await;
    let before = others.watch(&received).await;

    let mut open = pool.begin().await.unwrap();
    let numbers: Vec<u32> = (0..bulk()).collect();
    for numbers in numbers.chunks(2_000) {
        let events = numbers.iter().map(|n| of_bulk(n % BULK_KEYS, n / BULK_KEYS)).collect();
        outbox.enqueue_all(&mut open, events).await.unwrap();
    }
    // The cursor passes all of them.
    others.until_through(&received, THROUGH).await;
    let opened = others.watch(&received).await;
    // In the short form nothing of the bulk is taken before others have got through.
    received.gate.send_replace(nightly());
    let committed = Instant::now();
    open.commit().await.unwrap();
    // Each goes after the bulk's events of its key.
    let followers: Vec<u32> = (0..BULK_KEYS.min(bulk())).step_by(25).collect();
    let mut after = pool.begin().await.unwrap();
    let last = bulk() / BULK_KEYS;
    let events = followers.iter().map(|&key| of_bulk(key, last)).collect();
    outbox.enqueue_all(&mut after, events).await.unwrap();
    after.commit().await.unwrap();

    let mut resumed = committed;
    if paused {
        others.watch(&received).await;
        assert_eq!(received.taken.borrow().bulk, 0, "the destination was paused");
        resumed = Instant::now();
        on.store.resume(&pause).await.unwrap();
        on.store.notify().await.unwrap();
    }
    if !nightly() {
        others.until_through(&received, THROUGH).await;
        received.gate.send_replace(true);
    }
    let all = bulk() as usize + followers.len();
    received.until("the bulk", |taken| taken.bulk >= all).await;
    let delivered = Instant::now();
    let commits = others.stop().await;
    received.until("the others", |taken| taken.at.len() >= commits.len()).await;
    on.until_drained().await;
    let stats = relay.stop().await.unwrap();

    let taken = received.taken.borrow();
    assert_eq!(taken.faults, Vec::<String>::new());
    assert_eq!(taken.bulk, all, "each once");
    assert_eq!(taken.at.len(), commits.len(), "each once");
    println!("{:?}, paused: {paused}, {} events committed late", on.database, bulk());
    println!("the bulk was delivered {:.1?} after its commit or the resume", delivered - resumed);
    let others = |what: &str, name: &str, window: &Range<Instant>| {
        let of = commits.iter().enumerate();
        let of = of.filter(|(_, commit)| commit.1 == name && window.contains(&commit.0));
        let took = of.map(|(n, commit)| taken.at[&(n as u32)].saturating_duration_since(commit.0));
        quantiles(&format!("{what}, {name}"), took.collect())
    };
    let mut windows = vec![("open", opened), ("delivering", resumed..delivered)];
    if paused {
        windows.push(("paused", committed..resumed));
    }
    let mut worst: f64 = 0.0;
    for name in ["elsewhere", "beside it"].into_iter().take(if paused { 1 } else { 2 }) {
        let before = others("before", name, &before);
        for (what, window) in &windows {
            let p99 = others(what, name, window);
            worst = worst.max(p99.as_secs_f64() / before.as_secs_f64().max(1e-9));
        }
    }
    println!("{stats:?}");
    assert_eq!(stats.database_errors, 0);
    assert!(!nightly() || worst <= WORSE, "the 99th percentile is {worst:.1} times as long");
}

/// Prints the quantiles of how long events of others took. Returns the 99th percentile.
fn quantiles(what: &str, mut took: Vec<Duration>) -> Duration {
    took.sort_unstable();
    let at = |part: f64| {
        let index = (took.len() as f64 * part) as usize;
        took.get(index.min(took.len().saturating_sub(1))).copied().unwrap_or_default()
    };
    if !took.is_empty() {
        println!(
            "{what}: {} events, p50 {:.1?}, p99 {:.1?}, longest {:.1?}",
            took.len(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
    at(0.99)
}

/// A relay with a destination for the bulk, and another one.
fn relay(on: &Fixture, received: &Received) -> Relay {
    let named = |name| {
        let received = received.clone();
        Destination::new(Arc::new(Named { name, received }))
    };
    let routes = Routes::new()
        .route(Route::to("bulk").event_type("Bulk"))
        .route(Route::to("bulk").event_type("Beside"))
        .route(Route::to("other").event_type("Elsewhere"));
    let config = Config {
        housekeeping: Housekeeping { purge_interval: None, ..Housekeeping::default() },
        ..Config::default()
    };
    let destinations = vec![named("bulk"), named("other")];
    Relay::routed(Arc::clone(&on.store), destinations, routes, config).unwrap()
}

fn of_bulk(key: u32, n: u32) -> Event {
    let event = Event::builder("Bulk").aggregate("Bulk", key);
    event.header("text", "x".repeat(100)).payload(&n).build().unwrap()
}

/// Events of other keys, one a transaction, at a steady rate: to the other destination and, where it is
/// live, to that of the bulk.
struct Others {
    committed: watch::Receiver<u32>,
    ends: Arc<AtomicBool>,
    writing: tokio::task::JoinHandle<Vec<(Instant, &'static str)>>,
}

impl Others {
    fn start<DB: Dialect>(pool: Pool<DB>, outbox: Outbox<DB>, beside: bool) -> Self {
        let (sender, committed) = watch::channel(0);
        let ends = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ends);
        let writing = tokio::spawn(async move {
            let mut commits = Vec::new();
            let mut turn = tokio::time::interval(EVERY);
            while !ended.load(Ordering::Relaxed) {
                turn.tick().await;
                let n = commits.len() as u32;
                let (event_type, name) = match n % 2 {
                    1 if beside => ("Beside", "beside it"),
                    _ => ("Elsewhere", "elsewhere"),
                };
                let event = Event::builder(event_type).aggregate("Other", n % OTHER_KEYS);
                let mut transaction = pool.begin().await.unwrap();
                let event = event.payload(&n).build().unwrap();
                outbox.enqueue(&mut transaction, event).await.unwrap();
                transaction.commit().await.unwrap();
                commits.push((Instant::now(), name));
                sender.send_replace(n + 1);
            }
            commits
        });
        Self { committed, ends, writing }
    }

    /// Waits while their times are taken: 8 s in the long form.
    async fn watch(&self, received: &Received) -> Range<Instant> {
        let begun = Instant::now();
        self.until_through(received, THROUGH).await;
        if nightly() {
            tokio::time::sleep(Duration::from_secs(8)).await;
        }
        begun..Instant::now()
    }

    /// Waits until so many are delivered elsewhere that are enqueued after this call.
    async fn until_through(&self, received: &Received, count: u32) {
        let from = *self.committed.borrow() + 1;
        let to = from + count;
        let through =
            |taken: &Taken| (from..to).filter(|n| n % 2 == 0).all(|n| taken.at.contains_key(&n));
        received.until("others", through).await;
    }

    async fn stop(self) -> Vec<(Instant, &'static str)> {
        self.ends.store(true, Ordering::Relaxed);
        self.writing.await.unwrap()
    }
}

/// What was delivered.
#[derive(Clone)]
struct Received {
    taken: watch::Sender<Taken>,
    /// Whether the bulk is taken.
    gate: watch::Sender<bool>,
}

#[derive(Default)]
struct Taken {
    bulk: usize,
    /// The next number of each key of the bulk.
    next: HashMap<String, u32>,
    /// When each of the others came, and the last of each key.
    at: HashMap<u32, Instant>,
    last: HashMap<String, u32>,
    faults: Vec<String>,
}

impl Default for Received {
    fn default() -> Self {
        Self { taken: watch::Sender::default(), gate: watch::Sender::new(false) }
    }
}

impl Received {
    async fn until(&self, what: &str, reached: impl Fn(&Taken) -> bool) {
        let mut taken = self.taken.subscribe();
        let waited = tokio::time::timeout(LIMIT, taken.wait_for(reached)).await;
        assert!(waited.is_ok(), "waited in vain for {what}");
    }
}

impl Taken {
    fn take(&mut self, envelope: &Envelope) {
        let event = &envelope.event;
        let key = event.aggregate_id().unwrap().to_owned();
        let n: u32 = serde_json::from_slice(event.payload()).unwrap();
        if event.event_type() == "Bulk" {
            self.bulk += 1;
            let next = self.next.entry(key.clone()).or_default();
            if *next != n {
                self.faults.push(format!("bulk key {key}: {n} instead of {next}"));
            }
            *next = n + 1;
            return;
        }
        if let Some(last) = self.last.insert(key.clone(), n)
            && last >= n
        {
            self.faults.push(format!("key {key}: {n} after {last}"));
        }
        self.at.insert(n, Instant::now());
    }
}

struct Named {
    name: &'static str,
    received: Received,
}

#[async_trait]
impl Transport for Named {
    fn name(&self) -> &str {
        self.name
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        if batch.iter().any(|envelope| envelope.event.event_type() == "Bulk") {
            let _ = self.received.gate.subscribe().wait_for(|open| *open).await;
        }
        self.received.taken.send_modify(|taken| batch.iter().for_each(|one| taken.take(one)));
        vec![Outcome::Delivered; batch.len()]
    }
}
