//! `posthaste status`: counts, ages, relays and shards of an outbox.

use std::{fmt, time::Duration};

use clap::Args;
use comfy_table::Table;
use jiff::Timestamp;
use posthaste::{
    Result,
    store::{Counts, OpenBreaker, Store, TenantBacklog},
};
use serde::Serialize;

use crate::{
    args::OutboxArgs,
    database, duration,
    output::{align_right, json, print, table},
};

/// Show how an outbox stands. Changes nothing.
#[derive(Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    outbox: OutboxArgs,

    /// Count the sent events that are still kept too; this reads all of them
    #[arg(long)]
    sent: bool,

    /// One JSON object instead of tables
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: StatusArgs) -> Result<()> {
    let outbox = args.outbox.one()?;
    let (store, shards) = database::open(&outbox).await?;
    let report = Report::read(&*store, outbox.name, shards, args.sent).await?;
    print(&if args.json { json(&report)? } else { report.to_string() })
}

/// What `--json` writes. Ages are in seconds.
#[derive(Serialize)]
struct Report {
    outbox: String,
    database: &'static str,
    counts: Counts,
    /// Only with `--sent`.
    sent: Option<u64>,
    oldest_pending_s: Option<f64>,
    backlog_by_tenant: Vec<TenantBacklog>,
    relays: Vec<RelayLine>,
    shards: Shards,
}

#[derive(Serialize)]
struct RelayLine {
    name: String,
    alive: bool,
    ordering: String,
    version: String,
    shards: usize,
    heartbeat_age_s: f64,
    started_at: String,
    breakers: Vec<OpenBreaker>,
}

#[derive(Serialize)]
struct Shards {
    total: u16,
    held: usize,
    free: usize,
}

impl Report {
    async fn read(store: &dyn Store, outbox: String, total: u16, sent: bool) -> Result<Self> {
        let counts = store.counts(Counts::CAP).await?;
        let sent = if sent { Some(store.count_sent().await?) } else { None };
        let oldest = store.oldest_pending().await?;
        let tenants = store.counts_by_tenant(Counts::CAP).await?;
        let shards = store.shards().await?;
        let now = Timestamp::now();
        let relays = store.relays().await?.into_iter().map(|relay| RelayLine {
            shards: shards.iter().filter(|s| s.locked_by.as_ref() == Some(&relay.owner)).count(),
            heartbeat_age_s: now.duration_since(relay.heartbeat_at).as_secs_f64().max(0.0),
            started_at: relay.started_at.to_string(),
            breakers: relay.breakers,
            name: relay.name,
            alive: relay.alive,
            ordering: relay.ordering,
            version: relay.version,
        });
        let held = shards.iter().filter(|shard| shard.locked_by.is_some()).count();
        Ok(Self {
            outbox,
            database: store.database(),
            counts,
            sent,
            oldest_pending_s: oldest.map(|age| age.as_secs_f64()),
            backlog_by_tenant: tenants.tenants,
            relays: relays.collect(),
            shards: Shards { total, held, free: shards.len() - held },
        })
    }

    fn event_table(&self) -> Table {
        let Counts { new, sending, retry, dead, estimated } = self.counts;
        let about = if estimated { "about " } else { "" };
        let mut events = table(["status", "events"]);
        for (status, count) in [("new", new), ("sending", sending), ("retry", retry)] {
            events.add_row([status.to_owned(), format!("{about}{count}")]);
        }
        events.add_row(["dead".to_owned(), format!("{about}{dead}")]);
        if let Some(sent) = self.sent {
            events.add_row(["sent, kept".to_owned(), sent.to_string()]);
        }
        align_right(&mut events, 1);
        events
    }

    fn tenant_table(&self) -> Table {
        let mut backlog = table(["tenant", "backlog"]);
        for TenantBacklog { tenant, events } in &self.backlog_by_tenant {
            backlog.add_row([tenant.as_deref().unwrap_or("(none)").to_owned(), events.to_string()]);
        }
        align_right(&mut backlog, 1);
        backlog
    }

    /// Destinations that take nothing, as the relays see them.
    fn breaker_table(&self) -> Table {
        let mut breakers = table(["destination", "breaker", "relay", "since", "why"]);
        for relay in &self.relays {
            for breaker in &relay.breakers {
                breakers.add_row([
                    breaker.destination.clone(),
                    breaker.state.clone(),
                    relay.name.clone(),
                    breaker.since.to_string(),
                    breaker.error.clone(),
                ]);
            }
        }
        breakers
    }

    fn relay_table(&self) -> Table {
        let mut relays = table(["relay", "alive", "ordering", "shards", "last heartbeat"]);
        for relay in &self.relays {
            relays.add_row([
                relay.name.clone(),
                if relay.alive { "yes" } else { "no" }.to_owned(),
                relay.ordering.clone(),
                relay.shards.to_string(),
                format!("{} ago", seconds(relay.heartbeat_age_s)),
            ]);
        }
        align_right(&mut relays, 3);
        relays
    }
}

/// For people.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shards { total, held, free } = self.shards;
        writeln!(f, "outbox {} ({})\n\n{}", self.outbox, self.database, self.event_table())?;
        match self.oldest_pending_s {
            Some(age) => writeln!(f, "oldest pending for {}\n", seconds(age))?,
            None => writeln!(f, "nothing pending\n")?,
        }
        if !self.backlog_by_tenant.is_empty() {
            writeln!(f, "{}\n", self.tenant_table())?;
        }
        if self.relays.is_empty() {
            writeln!(f, "no relay has reported")?;
        } else {
            writeln!(f, "{}", self.relay_table())?;
            if self.relays.iter().any(|relay| !relay.breakers.is_empty()) {
                writeln!(f, "{}", self.breaker_table())?;
            }
        }
        writeln!(f, "shards: {total}, held {held}, free {free}")
    }
}

fn seconds(seconds: f64) -> String {
    duration::age(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}
