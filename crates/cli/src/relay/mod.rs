//! `posthaste relay`: delivers until it is told to stop, or does one pass.

mod flags;

mod topics;

mod build;

use std::{sync::Arc, time::Duration};

use clap::Args;
use posthaste::{
    Error, ErrorKind, Result,
    relay::{Relay, Stats},
    store::{Counts, Store},
};
use posthaste_admin::AdminOutbox;

pub(crate) use self::build::{build_notes, build_problems, route_problems, routes};
use self::flags::RelayFlags;
use crate::{
    args::OutboxArgs,
    config::{OutboxSettings, Settings},
    database, logging,
    output::counted,
    serve::Serving,
    stop::StopSignal,
};

/// How often the relays are asked whether they still run.
const LIVENESS: Duration = Duration::from_millis(200);

/// Deliver the events of one outbox or several until stopped. Events of the destination `log` go
/// to standard output, logs to standard error (`RUST_LOG` chooses them). Ctrl-C or SIGTERM stops:
/// what is in flight ends, leases are released.
#[derive(Args)]
pub(crate) struct RelayArgs {
    #[command(flatten)]
    outbox: OutboxArgs,

    #[command(flatten)]
    flags: RelayFlags,

    /// Deliver what is due now, then end; a destination that takes nothing is a failure
    #[arg(long)]
    once: bool,
}

/// A relay and what it works on.
struct Running {
    served: AdminOutbox,
    /// In front of what is said of it, where there are several.
    label: String,
    store: Arc<dyn Store>,
    relay: Arc<Relay>,
}

impl Running {
    fn new(
        settings: &Settings,
        outbox: &OutboxSettings,
        store: Arc<dyn Store>,
        relay: Relay,
        destinations: Vec<String>,
    ) -> Self {
        let relay = Arc::new(relay);
        let label = match settings.outboxes.len() {
            1 => String::new(),
            _ => format!("{}: ", outbox.name),
        };
        let served = AdminOutbox {
            name: outbox.name.clone(),
            store: Arc::clone(&store),
            relay: Some(Arc::clone(&relay)),
            destinations,
            // The relay knows them.
            routes: None,
            retention: outbox.retention,
        };
        Self { served, label, store, relay }
    }
}

pub(crate) async fn run(args: RelayArgs) -> Result<()> {
    // Everything that can be wrong without a database is refused before one is opened.
    let settings = args.outbox.load(args.flags.flags())?;
    settings.refuse(&[
        "outbox",
        "outboxes",
        "relay",
        "cleaner",
        "destinations",
        "routes",
        "log",
        "metrics",
        "health",
        "admin",
    ])?;
    logging::to_stderr("info", Some(&settings.log));
    let destinations = build::destinations(&settings)?;
    let mut routed = Vec::new();
    for outbox in &settings.outboxes {
        routed.push(build::routing(&settings, outbox, &destinations)?);
    }
    // Before the relays are made: what they record earlier is lost.
    let served = !args.once && settings.admin.listen.is_some();
    let metrics =
        (served && settings.metrics.enabled).then(posthaste_admin::metrics::record).transpose()?;
    let mut running = Vec::new();
    for (outbox, (destinations, routes)) in settings.outboxes.iter().zip(routed) {
        let (store, _) = database::open(outbox).await?;
        let names = destinations.iter().map(|one| one.name().to_owned()).collect();
        let config = settings.relay_config(outbox);
        let relay = Relay::routed(Arc::clone(&store), destinations, routes, config)?;
        running.push(Running::new(&settings, outbox, store, relay, names));
    }
    if args.once {
        return one_pass(&running).await;
    }
    let mut signal = StopSignal::new()?;
    let outboxes: Vec<AdminOutbox> = running.iter().map(|one| one.served.clone()).collect();
    let mut serving = Serving::nothing();
    serving.admin(&settings.admin, metrics, outboxes.clone()).await?;
    serving.health(settings.health, outboxes).await?;
    let ended = until_stopped(&running, &mut signal).await;
    serving.stop().await;
    ended
}

async fn one_pass(running: &[Running]) -> Result<()> {
    let mut signal = StopSignal::new()?;
    let mut stuck = Vec::new();
    for Running { label, store, relay, .. } in running {
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
        eprintln!("{label}{}, still pending {pending}", summary(&stats));
        if retry > 0 {
            eprintln!("{label}{retry} failed before and wait for their next attempt");
        }
        let held = store.shards().await?.iter().filter(|shard| shard.locked_by.is_some()).count();
        if pending > 0 && held > 0 {
            eprintln!("{label}{held} shards are held by other relays, which deliver their events");
        }
        if pending > 0 && stats.breakers_open > 0 {
            let destinations =
                counted(u64::from(stats.breakers_open), "destination takes", "destinations take");
            let events = counted(pending, "event is", "events are");
            stuck.push(format!("{label}{destinations} nothing, {events} still pending"));
        }
    }
    if stuck.is_empty() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unavailable, stuck.join("; ")))
}

async fn until_stopped(running: &[Running], signal: &mut StopSignal) -> Result<()> {
    for Running { relay, .. } in running {
        relay.start().await?;
    }
    let mut liveness = tokio::time::interval(LIVENESS);
    // One that ended by itself failed: the process ends, and whoever watches it starts it again.
    while running.iter().all(|running| running.relay.is_running()) {
        tokio::select! {
            () = signal.wait() => break,
            _ = liveness.tick() => {}
        }
    }
    let mut ended = Ok(());
    for Running { label, relay, .. } in running {
        match relay.stop().await {
            Ok(stats) => eprintln!("{label}{}", summary(&stats)),
            Err(error) => ended = Err(error),
        }
    }
    ended
}

fn summary(stats: &Stats) -> String {
    let Stats { delivered, retried, dead, stale_settles, .. } = stats;
    let line = format!("delivered {delivered}, to be tried again {retried}, dead {dead}");
    match stale_settles {
        0 => line,
        refused => format!("{line}, refused because the lease was lost {refused}"),
    }
}
