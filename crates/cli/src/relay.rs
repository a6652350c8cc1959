//! `posthaste relay`: delivers until it is told to stop, or does one pass.

use std::{sync::Arc, time::Duration};

use clap::Args;
use posthaste::{
    Result,
    relay::{Config, Destination, Housekeeping, OnDead, Relay, Retention, Route, Routes, Stats},
    store::{Counts, RelayOrdering, Store},
    transport::Transport,
};

use crate::{
    args::DatabaseArgs,
    database,
    destination::{self, LogFormat},
    duration,
    stop::StopSignal,
};

/// How often the relay is asked whether it still runs.
const LIVENESS: Duration = Duration::from_millis(200);

/// Deliver the events of an outbox until stopped. Events go to standard output, logs to standard
/// error (`RUST_LOG` chooses them). Ctrl-C or SIGTERM stops: what is in flight ends, leases are
/// released.
#[derive(Args)]
pub(crate) struct RelayArgs {
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,

    /// Where events go: `nats://…`, `kafka://…`, `amqp://…`, `redis://…`, `mqtt://…`,
    /// `pulsar://…`, `https://…`, or `log`, which writes a line per event to standard output
    // Its value can hold a password: help is not to show it.
    #[arg(long, value_name = "DESTINATION", env = "POSTHASTE_TO", hide_env_values = true)]
    to: String,

    /// The topic there, with placeholders: `{aggregate_type}.{event_type}` [default: the event's own
    /// topic, or its aggregate type]
    #[arg(long, value_name = "TEMPLATE", env = "POSTHASTE_TOPIC")]
    topic: Option<String>,

    /// The relay's name in leases, logs and status [default: a unique one]
    #[arg(long, env = "POSTHASTE_NAME")]
    name: Option<String>,

    /// Which order is kept, and so how relays share the work: `per_key`, `none` or `global`
    #[arg(long, env = "POSTHASTE_ORDERING", default_value = "per_key")]
    ordering: RelayOrdering,

    /// What a key's later events do when one is given up on: go on (`skip`) or wait (`park`)
    #[arg(long, env = "POSTHASTE_ON_DEAD", default_value = "skip")]
    on_dead: OnDead,

    /// How long a lease lasts without renewal
    #[arg(long, value_name = "DURATION", env = "POSTHASTE_LEASE", default_value = "30s",
        value_parser = duration::parse)]
    lease: Duration,

    /// How often leases are renewed; shorter than the lease
    #[arg(long, value_name = "DURATION", env = "POSTHASTE_HEARTBEAT", default_value = "10s",
        value_parser = duration::parse)]
    heartbeat: Duration,

    /// Pause between polls right after there was work
    #[arg(long, value_name = "DURATION", env = "POSTHASTE_BUSY_INTERVAL", default_value = "100ms",
        value_parser = duration::parse)]
    busy_interval: Duration,

    /// Longest pause between polls
    #[arg(long, value_name = "DURATION", env = "POSTHASTE_IDLE_INTERVAL", default_value = "1s",
        value_parser = duration::parse)]
    idle_interval: Duration,

    /// Most events that one read fetches and one settle writes
    #[arg(long, value_name = "N", env = "POSTHASTE_BATCH", default_value_t = Config::default().batch)]
    batch: usize,

    /// Most publishes under way at once
    #[arg(long, value_name = "N", env = "POSTHASTE_CONCURRENCY",
        default_value_t = Config::default().concurrency)]
    concurrency: usize,

    /// A publish that takes longer has failed
    #[arg(long, value_name = "DURATION", env = "POSTHASTE_DISPATCH_TIMEOUT", default_value = "30s",
        value_parser = duration::parse)]
    dispatch_timeout: Duration,

    /// The failure with this number is an event's last: it is dead
    #[arg(long, value_name = "N", env = "POSTHASTE_MAX_ATTEMPTS",
        default_value_t = Config::default().max_attempts)]
    max_attempts: u32,

    /// How long sent events are kept; 0 deletes them as they are settled
    #[arg(long, value_name = "DURATION", env = "POSTHASTE_RETENTION", default_value = "7d",
        value_parser = duration::parse)]
    retention: Duration,

    /// How long a stop waits for what is in flight
    #[arg(long, value_name = "DURATION", env = "POSTHASTE_DRAIN", default_value = "5s",
        value_parser = duration::parse)]
    drain: Duration,

    /// Deliver what is due now, then end
    #[arg(long)]
    once: bool,

    /// How `log` writes an event
    #[arg(long, env = "POSTHASTE_FORMAT", default_value = "text")]
    format: LogFormat,

    /// Let `log` write the payload too
    #[arg(long, env = "POSTHASTE_PAYLOAD")]
    payload: bool,
}

impl RelayArgs {
    fn transport(&self) -> Result<Arc<dyn Transport>> {
        match self.to.as_str() {
            "log" => Ok(destination::log(self.format, self.payload)),
            url => destination::open(url),
        }
    }

    fn relay(&self, store: Arc<dyn Store>, transport: Arc<dyn Transport>) -> Result<Relay> {
        let Some(topic) = &self.topic else {
            return Relay::new(store, transport, self.config());
        };
        let routes = Routes::new().route(Route::to(transport.name()).topic(topic));
        Relay::routed(store, vec![Destination::new(transport)], routes, self.config())
    }

    fn config(&self) -> Config {
        let default = Config::default();
        Config {
            name: self.name.clone().unwrap_or(default.name),
            ordering: self.ordering,
            on_dead: self.on_dead,
            lease: self.lease,
            heartbeat: self.heartbeat,
            busy_interval: self.busy_interval,
            idle_interval: self.idle_interval,
            batch: self.batch,
            concurrency: self.concurrency,
            dispatch_timeout: self.dispatch_timeout,
            max_attempts: self.max_attempts,
            housekeeping: Housekeeping {
                retention: Retention { sent: self.retention, ..Retention::default() },
                ..default.housekeeping
            },
            drain: self.drain,
            ..default
        }
    }
}

pub(crate) async fn run(args: RelayArgs) -> Result<()> {
    // Everything that can be wrong without a database is refused before one is opened.
    let transport = args.transport()?;
    args.config().check()?;
    let (store, _) = database::open(&args.database).await?;
    let relay = args.relay(Arc::clone(&store), transport)?;
    if args.once { one_pass(&relay, &*store).await } else { until_stopped(&relay).await }
}

async fn one_pass(relay: &Relay, store: &dyn Store) -> Result<()> {
    let mut signal = StopSignal::new()?;
    let mut pass = std::pin::pin!(relay.relay_once());
    let stats = tokio::select! {
        stats = &mut pass => stats?,
        () = signal.wait() => {
            relay.stop().await?;
            pass.await?
        }
    };
    let Counts { new, sending, retry, .. } = store.counts(u64::MAX).await?;
    let pending = new + sending + retry;
    eprintln!("{}, still pending {pending}", summary(&stats));
    if retry > 0 {
        eprintln!("{retry} failed before and wait for their next attempt");
    }
    let held = store.shards().await?.iter().filter(|shard| shard.locked_by.is_some()).count();
    if pending > 0 && held > 0 {
        eprintln!("{held} shards are held by other relays, which deliver their events");
    }
    Ok(())
}

async fn until_stopped(relay: &Relay) -> Result<()> {
    let mut signal = StopSignal::new()?;
    relay.start().await?;
    let mut liveness = tokio::time::interval(LIVENESS);
    while relay.is_running() {
        tokio::select! {
            () = signal.wait() => break,
            _ = liveness.tick() => {}
        }
    }
    let stats = relay.stop().await?;
    eprintln!("{}", summary(&stats));
    Ok(())
}

fn summary(stats: &Stats) -> String {
    let Stats { delivered, retried, dead, stale_settles, .. } = stats;
    let line = format!("delivered {delivered}, to be tried again {retried}, dead {dead}");
    match stale_settles {
        0 => line,
        refused => format!("{line}, refused because the lease was lost {refused}"),
    }
}
