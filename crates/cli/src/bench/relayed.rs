//! A relay under measurement: from the moment it has its shards to the last event.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use posthaste::{
    Envelope, Error, ErrorKind, Result,
    relay::{Config, Relay, Stats},
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

/// Runs a relay until so many events are through. Gives how long that took.
pub(super) async fn run(
    store: Arc<dyn Store>,
    config: Config,
    events: u64,
    until: Until,
) -> Result<Duration> {
    let by_rows = config.ordering == RelayOrdering::None;
    let transport = Arc::new(Counting { left: AtomicU64::new(events), reached: Notify::new() });
    let relay = Relay::new(store, Arc::clone(&transport) as Arc<dyn Transport>, config)?;
    relay.start().await?;
    if !by_rows {
        wait(&relay, |stats| stats.shards > 0 && stats.shards_owned == stats.shards).await?;
    }
    let started = Instant::now();
    // The transport tells, and not the statistics: following them would cost the relay time.
    let mut watchdog = Watchdog::new();
    while timeout(LIVENESS, transport.reached.notified()).await.is_err() {
        watchdog.look(&relay).await?;
    }
    let over =
        |stats: &Stats| stats.delivered >= events && (until == Until::Delivered || stats.idle);
    wait(&relay, over).await?;
    let elapsed = started.elapsed();
    relay.stop().await?;
    Ok(elapsed)
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

/// Acknowledges at once and only counts.
struct Counting {
    /// How many events are still to come.
    left: AtomicU64,
    /// Told once, when that is 0.
    reached: Notify,
}

#[async_trait]
impl Transport for Counting {
    fn name(&self) -> &str {
        "counting"
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
        let count = batch.len() as u64;
        let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            Some(left.saturating_sub(count))
        });
        if left.is_ok_and(|left| left > 0 && left <= count) {
            self.reached.notify_one();
        }
        vec![Outcome::Delivered; batch.len()]
    }
}
