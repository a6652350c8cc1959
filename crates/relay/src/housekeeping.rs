//! Housekeeping: what is done for the whole outbox by one relay at a time.
//!
//! It is the first live relay in the order of their names; the driver says so after each heartbeat.
//! When it dies, its heartbeat runs out and the next one takes over. For a moment two can think that
//! they are the one: everything here can be done twice. A relay that is switched off keeps house only
//! as long as no other relay is alive. How healthy a relay is, each finds out for itself.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use posthaste_core::{
    Error, Result,
    clock::Clock,
    store::{Counts, Store},
};
use tokio::{sync::Notify, task::JoinHandle, time::sleep};

use crate::{
    HealthLimits, Retention,
    health::Pulse,
    observe::Observer,
    purge::{PATIENCE, purge},
    read::within,
};

/// A backlog of more is worth a warning.
const BACKLOG: u64 = 1_000;

/// How often an unhealthy relay looks again, at least.
const RECOVERY: Duration = Duration::from_secs(5);

/// How often a relay that is switched off looks whether others are alive.
const LOOK_ROUND: Duration = Duration::from_secs(30);

/// What is done, and how often. Each can be switched off with `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Housekeeping {
    /// How often what is past its retention is purged.
    pub purge_interval: Option<Duration>,
    /// How many rows one step of a purge looks at.
    pub batch: usize,
    /// How long settled events are kept.
    pub retention: Retention,
    /// How long the inbox remembers handled messages. Idempotency keys carry their own time.
    pub inbox_retention: Duration,
    /// How often the counts for metrics are refreshed.
    pub refresh: Option<Duration>,
    /// How often health is looked at. Without it only the database and the driver count.
    pub health: Option<Duration>,
}

impl Default for Housekeeping {
    fn default() -> Self {
        Self {
            purge_interval: Some(Duration::from_hours(1)),
            batch: 500,
            retention: Retention::default(),
            inbox_retention: Duration::from_hours(7 * 24),
            refresh: Some(Duration::from_secs(30)),
            health: Some(Duration::from_mins(1)),
        }
    }
}

impl Housekeeping {
    pub(crate) fn check(&self) -> Result<()> {
        if self.batch == 0 {
            return Err(Error::invalid("housekeeping.batch is 0; it must be at least 1"));
        }
        for (key, interval) in [
            ("purge_interval", self.purge_interval),
            ("refresh", self.refresh),
            ("health", self.health),
        ] {
            if interval.is_some_and(|interval| interval.is_zero()) {
                return Err(Error::invalid(format!(
                    "housekeeping.{key} is 0; give it a duration, or switch it off"
                )));
            }
        }
        Ok(())
    }
}

/// Whether it is this relay's turn to keep house. Clones are one.
///
/// Wakes its waiters in the order in which they came: `tokio::sync::watch` shuffles them, and two simulations of
/// one seed would differ.
#[derive(Debug, Clone, Default)]
pub(crate) struct Duty(Arc<Turn>);

#[derive(Debug, Default)]
struct Turn {
    is_on: AtomicBool,
    changed: Notify,
}

impl Duty {
    /// Said by the driver.
    pub(crate) fn set(&self, is_on: bool) {
        if self.0.is_on.swap(is_on, Ordering::SeqCst) != is_on {
            self.0.changed.notify_waiters();
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.is_on.load(Ordering::SeqCst)
    }

    /// Returns once it is on, or off.
    async fn becomes(&self, is_on: bool) {
        loop {
            // Before the look: a change between the two is not missed.
            let changed = self.0.changed.notified();
            if self.is_on() == is_on {
                return;
            }
            changed.await;
        }
    }
}

/// Keeps house for a relay; ends when its tasks are aborted.
#[derive(Clone)]
pub(crate) struct Housekeeper {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) observer: Arc<Observer>,
    pub(crate) pulse: Arc<Pulse>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) settings: Housekeeping,
    pub(crate) limits: HealthLimits,
    pub(crate) enabled: bool,
    /// Whether it is this relay's turn.
    pub(crate) duty: Duty,
}

impl Housekeeper {
    /// Starts what is switched on.
    pub(crate) fn start(self) -> Vec<JoinHandle<()>> {
        let Housekeeping { purge_interval, refresh, health, .. } = self.settings;
        let mut tasks = Vec::new();
        if let Some(interval) = purge_interval {
            tasks.push(tokio::spawn(self.clone().purge_every(interval)));
        }
        if let Some(interval) = refresh {
            tasks.push(tokio::spawn(self.clone().refresh_every(interval)));
        }
        if let Some(interval) = health {
            tasks.push(tokio::spawn(self.examine_every(interval)));
        }
        tasks
    }

    /// Returns when it is this relay's turn.
    async fn on_duty(&self) {
        if self.enabled {
            return self.duty.becomes(true).await;
        }
        loop {
            let others = within(PATIENCE, self.store.relays()).await;
            if others.is_ok_and(|relays| relays.iter().all(|relay| !relay.alive)) {
                return;
            }
            sleep(LOOK_ROUND).await;
        }
    }

    async fn purge_every(self, interval: Duration) {
        loop {
            self.on_duty().await;
            self.purge().await;
            sleep(interval).await;
        }
    }

    /// One round: events, then what the application's side no longer needs. A step that fails keeps no
    /// other from its turn.
    async fn purge(&self) {
        let Housekeeping { retention, batch, inbox_retention, .. } = self.settings;
        let store = &*self.store;
        self.purged("event", purge(store, retention, batch).await);
        let inbox = || store.purge_inbox(inbox_retention, batch);
        self.purged("inbox", in_steps("inbox", batch, inbox).await);
        let idempotency = || store.purge_idempotency(batch);
        self.purged("idempotency", in_steps("idempotency", batch, idempotency).await);
    }

    fn purged(&self, what: &'static str, outcome: Result<u64>) {
        match outcome {
            Ok(count) => self.observer.meters.purged(what, count),
            Err(error) => {
                tracing::error!(what, %error, "purge failed; trying again at the next turn");
            }
        }
    }

    async fn refresh_every(self, interval: Duration) {
        let mut warned = false;
        loop {
            self.on_duty().await;
            match self.refresh().await {
                Ok(counts) => {
                    let backlog = counts.new + counts.retry;
                    let large = backlog > BACKLOG;
                    if large && !warned {
                        let estimated = counts.estimated;
                        tracing::warn!(backlog, estimated, "backlog: events come faster than go");
                    }
                    warned = large;
                }
                Err(error) => tracing::error!(%error, "counting failed; trying again next turn"),
            }
            let over = async {
                self.duty.becomes(false).await;
                if !self.enabled {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                biased;
                () = over => self.observer.meters.counted(None),
                () = sleep(interval) => {}
            }
        }
    }

    async fn refresh(&self) -> Result<Counts> {
        let counts = within(PATIENCE, self.store.counts(Counts::CAP)).await?;
        let oldest = within(PATIENCE, self.store.oldest_pending()).await?;
        self.observer.meters.counted(Some((&counts, oldest)));
        if self.observer.meters.tenant_limit() > 0 {
            let tenants = within(PATIENCE, self.store.counts_by_tenant(Counts::CAP)).await?;
            self.observer.meters.tenants(Some(&tenants));
        }
        Ok(counts)
    }

    async fn examine_every(self, interval: Duration) {
        loop {
            let mut pause = interval;
            match within(PATIENCE, self.store.oldest_pending()).await {
                Ok(oldest) => {
                    self.pulse.reached_database(self.clock.now());
                    self.pulse.oldest(oldest);
                    if oldest.is_some_and(|age| age > self.limits.max_age) {
                        pause = interval.min(RECOVERY);
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "the oldest event could not be looked for");
                    pause = interval.min(RECOVERY);
                }
            }
            sleep(pause).await;
        }
    }
}

/// Repeats a step until it deletes less than it could. Gives how many rows were deleted.
async fn in_steps<F>(what: &str, batch: usize, mut step: impl FnMut() -> F) -> Result<u64>
where
    F: Future<Output = Result<u64>>,
{
    let mut deleted = 0;
    loop {
        let of_step = within(PATIENCE, step()).await?;
        deleted += of_step;
        if of_step < batch as u64 {
            break;
        }
    }
    if deleted > 0 {
        tracing::info!(what, deleted, "purged what is past its retention");
    }
    Ok(deleted)
}
