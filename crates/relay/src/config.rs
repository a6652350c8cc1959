//! What a relay can be told, with defaults that suit most, checked before anything starts.

use std::time::Duration;

use posthaste_core::{
    Error, Result,
    backoff::{Backoff, LONGEST_WAIT, Random, system_random},
    store::RelayOrdering,
};

use crate::{HealthLimits, Housekeeping, LogTenant};

/// What happens to a key's later events when one of them dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDead {
    /// They go on.
    #[default]
    Skip,
    /// They wait until an operator replays or discards the dead one.
    Park,
}

impl std::str::FromStr for OnDead {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "skip" => Ok(Self::Skip),
            "park" => Ok(Self::Park),
            other => {
                Err(Error::invalid(format!("on_dead {other:?} is not known; use skip or park")))
            }
        }
    }
}

/// How long settled events are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Sent events; zero deletes them as they are settled.
    pub sent: Duration,
    /// Dead ones; `None` keeps them for ever.
    pub dead: Option<Duration>,
}

impl Default for Retention {
    fn default() -> Self {
        Self { sent: Duration::from_hours(7 * 24), dead: None }
    }
}

/// The settings of a relay.
#[derive(Clone)]
pub struct Config {
    /// Its name in leases, logs and status; unique by default.
    pub name: String,
    /// How relays divide the work.
    pub ordering: RelayOrdering,
    /// What happens to a key's later events when one dies.
    pub on_dead: OnDead,
    /// How long a lease lasts without renewal.
    pub lease: Duration,
    /// How often leases are renewed.
    pub heartbeat: Duration,
    /// Pause between polls right after there was work.
    pub busy_interval: Duration,
    /// Longest pause between polls.
    pub idle_interval: Duration,
    /// Most events that one read fetches, under `none` two at least; a settle writes what has come together,
    /// up to four times as many.
    pub batch: usize,
    /// Most publishes under way at once.
    pub concurrency: usize,
    /// A publish that takes longer has failed.
    pub dispatch_timeout: Duration,
    /// Most events that wait from the hot path.
    pub hot_queue: usize,
    /// Most events that wait from polls.
    pub cold_queue: usize,
    /// Most bytes of events in memory, all copies counted. One event that is larger passes alone.
    pub memory: usize,
    /// Most ordering keys in memory whose events cannot go on. Of more the table alone knows, and is asked
    /// with every page: a little slower, and as ordered.
    pub blocked_lanes: usize,
    /// How long a stop waits for what is under way.
    pub drain: Duration,
    /// The wait after a failure.
    pub backoff: Backoff,
    /// The failure with this number is the last.
    pub max_attempts: u32,
    /// Jitter for the backoff.
    pub random: Random,
    /// The outbox's name in metrics; the name of its table where this is empty.
    pub outbox: String,
    /// An event that could be handed over and is not, for no known reason, stalls after this time.
    pub stall_after: Duration,
    /// Switched off, it delivers nothing and everything is kept; others share the work as if it were
    /// not there.
    pub enabled: bool,
    /// What is done for the whole outbox, by one relay at a time.
    pub housekeeping: Housekeeping,
    /// What is still healthy.
    pub health: HealthLimits,
    /// How log lines name an event's tenant.
    pub log_tenant: LogTenant,
    /// How many tenants have a metric of their backlog; none by default.
    pub metric_tenants: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: format!("relay-{:06x}", fastrand::u32(..) & 0x00ff_ffff),
            ordering: RelayOrdering::default(),
            on_dead: OnDead::default(),
            lease: Duration::from_secs(30),
            heartbeat: Duration::from_secs(10),
            busy_interval: Duration::from_millis(100),
            idle_interval: Duration::from_secs(1),
            batch: 500,
            concurrency: 64,
            dispatch_timeout: Duration::from_secs(30),
            hot_queue: 1_000,
            cold_queue: 1_000,
            memory: 64 << 20,
            blocked_lanes: 100_000,
            drain: Duration::from_secs(5),
            backoff: Backoff::default(),
            max_attempts: 10,
            random: system_random(),
            outbox: String::new(),
            stall_after: Duration::from_mins(1),
            enabled: true,
            housekeeping: Housekeeping::default(),
            health: HealthLimits::default(),
            log_tenant: LogTenant::default(),
            metric_tenants: 0,
        }
    }
}

impl Config {
    /// Refuses settings that cannot work: names the key, the value and what would be accepted.
    pub fn check(&self) -> Result<()> {
        if self.name.is_empty() || self.name.chars().count() > 100 || self.name.contains('/') {
            return Err(Error::invalid(format!(
                "relay name {:?} must have 1 to 100 characters and no slash",
                self.name
            )));
        }
        for (key, value) in [
            ("batch", self.batch),
            ("concurrency", self.concurrency),
            ("hot_queue", self.hot_queue),
            ("cold_queue", self.cold_queue),
            ("memory", self.memory),
            ("blocked_lanes", self.blocked_lanes),
            ("max_attempts", self.max_attempts as usize),
        ] {
            if value == 0 {
                return Err(Error::invalid(format!("{key} is 0; it must be at least 1")));
            }
        }
        for (key, value) in [
            ("lease", self.lease),
            ("heartbeat", self.heartbeat),
            ("busy_interval", self.busy_interval),
            ("idle_interval", self.idle_interval),
            ("dispatch_timeout", self.dispatch_timeout),
            ("stall_after", self.stall_after),
        ] {
            if value.is_zero() {
                return Err(Error::invalid(format!("{key} is 0; give it a duration")));
            }
        }
        for (key, value) in [
            ("lease", self.lease),
            ("idle_interval", self.idle_interval),
            ("dispatch_timeout", self.dispatch_timeout),
            ("drain", self.drain),
            ("stall_after", self.stall_after),
        ] {
            if value > LONGEST_WAIT {
                return Err(Error::invalid(format!(
                    "{key} is {value:?}; it must be a year at most"
                )));
            }
        }
        self.housekeeping.check()?;
        if self.heartbeat >= self.lease {
            return Err(Error::invalid(format!(
                "lease ({:?}) is not longer than heartbeat ({:?}); every lease would expire before \
                 it is renewed, three heartbeats to a lease work well",
                self.lease, self.heartbeat
            )));
        }
        if self.busy_interval > self.idle_interval {
            return Err(Error::invalid(format!(
                "busy_interval ({:?}) is longer than idle_interval ({:?})",
                self.busy_interval, self.idle_interval
            )));
        }
        Ok(())
    }

    /// How long the database may take to answer a call on which the work or the leases depend. Far below
    /// the lease: a connection that has gone silent is given up and the call repeated in time.
    pub(crate) fn deadline(&self) -> Duration {
        (self.lease / 6).clamp(Duration::from_secs(2), Duration::from_secs(5))
    }

    /// How long before the end of a lease nothing more is handed to a transport.
    pub(crate) fn margin(&self) -> Duration {
        self.lease / 10
    }
}
