//! A relay under measurement: from the moment it has its shards to the last event.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use posthaste::{
    Envelope, Error, ErrorKind, Result,
    relay::{Config, Destination, Relay, Route, Routes, Stats},
    store::{RelayOrdering, Store},
    transport::{Acceptance, Capabilities, Outcome, Transport},
};
use tokio::{sync::Notify, time::timeout};

/// How often a relay that is waited for is asked whether it still runs.
const LIVENESS: Duration = Duration::from_millis(500);

/// A relay that delivers nothing for so long has stalled.
const STALLED: Duration = Duration::from_mins(1);

/// When a run is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// All events were delivered and the last settle is written.
    Settled,
    /// So many events were delivered; there are more.
    Delivered,
}

/// Runs a relay to nowhere until so many events are through. Gives how long that took.
pub(super) async fn run(
    store: Arc<dyn Store>,
    config: Config,
    events: u64,
    until: Until,
) -> Result<Duration> {
    let ordering = config.ordering;
    let counted = Counted::new(Arc::new(Accepting("accepting")), events);
    let relay = Relay::new(store, Arc::clone(&counted) as Arc<dyn Transport>, config)?;
    let started = acknowledged(&relay, &counted, ordering).await?;
    let over =
        |stats: &Stats| stats.delivered >= events && (until == Until::Delivered || stats.idle);
    wait(&relay, over).await?;
    let elapsed = started.elapsed();
    relay.stop().await?;
    Ok(elapsed)
}

/// Runs a relay to a destination, under this topic, until all its events are settled. Gives how long
/// that took.
pub(super) async fn run_to(
    store: Arc<dyn Store>,
    counted: Arc<Counted>,
    topic: &str,
    config: Config,
) -> Result<Duration> {
    let (ordering, events) = (config.ordering, counted.events);
    let routes = Routes::new().route(Route::to(counted.name()).topic(topic));
    let destination = Destination::new(Arc::clone(&counted) as Arc<dyn Transport>);
    let relay = Relay::routed(store, vec![destination], routes, config)?;
    let started = acknowledged(&relay, &counted, ordering).await?;
    wait(&relay, |stats| stats.delivered >= events && stats.idle).await?;
    let elapsed = started.elapsed();
    relay.stop().await?;
    Ok(elapsed)
}

/// Starts the relay and waits until the transport has acknowledged all that was counted on. Gives
/// when the relay had all its shards.
pub(super) async fn acknowledged(
    relay: &Relay,
    counted: &Counted,
    ordering: RelayOrdering,
) -> Result<Instant> {
    relay.start().await?;
    if ordering != RelayOrdering::None {
        wait(relay, |stats| stats.shards > 0 && stats.shards_owned == stats.shards).await?;
    }
    let started = Instant::now();
    // The transport tells, and not the statistics: following them would cost the relay time.
    let mut watchdog = Watchdog::new();
    while timeout(LIVENESS, counted.reached.notified()).await.is_err() {
        watchdog.look(relay).await?;
    }
    match counted.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(error) => {
            let error = format!("{} did not take an event: {error}", counted.name());
            Err(Error::new(ErrorKind::Unavailable, error))
        }
        None => Ok(started),
    }
}

/// Waits until the relay says so. An error when it has ended, or nothing moves any more.
pub(super) async fn wait(relay: &Relay, over: impl Fn(&Stats) -> bool) -> Result<()> {
    let mut watch = relay.watch();
    let mut watchdog = Watchdog::new();
    loop {
        if let Ok(Ok(_)) = timeout(LIVENESS, watch.wait_for(|stats| over(stats))).await {
            return Ok(());
        }
        watchdog.look(relay).await?;
    }
}

/// Notices a relay that ended, or stands still.
struct Watchdog {
    delivered: u64,
    moved: Instant,
}

impl Watchdog {
    fn new() -> Self {
        Self { delivered: 0, moved: Instant::now() }
    }

    async fn look(&mut self, relay: &Relay) -> Result<()> {
        let stats = relay.stats();
        if stats.delivered != self.delivered {
            (self.delivered, self.moved) = (stats.delivered, Instant::now());
        }
        if !relay.is_running() {
            // Its error is what stop gives.
            relay.stop().await?;
            return Err(Error::new(ErrorKind::State, "the relay ended by itself"));
        }
        if self.moved.elapsed() > STALLED {
            return Err(Error::new(ErrorKind::State, format!("the relay stalled at {stats:?}")));
        }
        Ok(())
    }
}

/// Acknowledges at once.
pub(super) struct Accepting(pub(super) &'static str);

#[async_trait]
impl Transport for Accepting {
    fn name(&self) -> &str {
        self.0
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_batch: 500,
            // It takes a batch or, if it ended in the middle, nothing that anybody would know of.
            acceptance: Acceptance::Atomic,
            ..Capabilities::default()
        }
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        vec![Outcome::Delivered; batch.len()]
    }
}

/// Any transport, counted. A failure ends the count: a run with one has no figure.
pub(super) struct Counted {
    transport: Arc<dyn Transport>,
    capabilities: Capabilities,
    events: u64,
    /// How many events are still to come.
    left: AtomicU64,
    failure: Mutex<Option<String>>,
    /// Told once when none is left, and when there is a failure.
    reached: Notify,
}

impl Counted {
    pub(super) fn new(transport: Arc<dyn Transport>, events: u64) -> Arc<Self> {
        let capabilities = transport.capabilities();
        Self::with(transport, capabilities, events)
    }

    /// It can do less than it says.
    pub(super) fn with(
        transport: Arc<dyn Transport>,
        capabilities: Capabilities,
        events: u64,
    ) -> Arc<Self> {
        Arc::new(Self {
            transport,
            capabilities,
            events,
            left: AtomicU64::new(events),
            failure: Mutex::default(),
            reached: Notify::new(),
        })
    }

    fn failed(&self, error: &str) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert_with(|| error.to_owned());
        self.reached.notify_one();
    }
}

#[async_trait]
impl Transport for Counted {
    fn name(&self) -> &str {
        self.transport.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        let outcomes = self.transport.publish(batch).await;
        let mut count = 0;
        for outcome in &outcomes {
            match outcome {
                Outcome::Delivered => count += 1,
                Outcome::Retry { error, .. }
                | Outcome::TimedOut { error }
                | Outcome::Dead { error }
                | Outcome::Unavailable { error, .. } => self.failed(error),
            }
        }
        let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            Some(left.saturating_sub(count))
        });
        if left.is_ok_and(|left| left > 0 && left <= count) {
            self.reached.notify_one();
        }
        outcomes
    }
}
