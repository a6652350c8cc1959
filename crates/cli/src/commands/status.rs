//! `posthaste status`: counts, ages, relays and shards of an outbox.

use std::{fmt, io::IsTerminal as _, time::Duration};

use clap::Args;
use comfy_table::Table;
use posthaste::{
    Result,
    store::{Counts, Store, TenantBacklog},
};
use posthaste_operate::{Overview, ShardCounts};

use crate::{
    args::OutboxArgs,
    config::OutboxSettings,
    database, duration,
    output::{self, align_right, json, number, print, print_as_is, table},
    stop::StopSignal,
};

/// Show counts, ages, relays and shards of an outbox. Changes nothing.
#[derive(Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    outbox: OutboxArgs,

    /// Show it again and again until Ctrl-C
    #[arg(long)]
    watch: bool,

    /// How often, with `--watch`
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration::parse)]
    interval: Duration,

    /// Count the sent events that are still kept too; this reads all of them
    #[arg(long)]
    sent: bool,

    /// JSON instead of tables
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: StatusArgs) -> Result<()> {
    let outbox = args.outbox.one()?;
    let (store, _) = database::open(&outbox).await?;
    if !args.watch {
        return print(&page(&*store, &outbox, &args).await?);
    }
    let in_place = !args.json && std::io::stdout().is_terminal();
    let mut signal = StopSignal::new()?;
    if in_place {
        print_as_is("\x1b[2J")?;
    }
    loop {
        let page = page(&*store, &outbox, &args).await?;
        if in_place {
            print_as_is(&over_the_last(&output::page(&page)))?;
        } else {
            print(&page)?;
        }
        tokio::select! {
            () = signal.wait() => return Ok(()),
            () = tokio::time::sleep(args.interval) => {}
        }
    }
}

async fn page(store: &dyn Store, outbox: &OutboxSettings, args: &StatusArgs) -> Result<String> {
    let mut overview = Overview::read(store, &outbox.name, outbox.relay.stall_after).await?;
    if args.sent {
        overview.sent = Some(store.count_sent().await?);
    }
    if args.json { json(&overview) } else { Ok(ForPeople(&overview).to_string()) }
}

/// From the top of the screen; what is left of the last page is erased.
fn over_the_last(page: &str) -> String {
    let lines = page.lines().fold("\x1b[H".to_owned(), |out, line| out + line + "\x1b[K\n");
    lines + "\x1b[J"
}

struct ForPeople<'o>(&'o Overview);

impl ForPeople<'_> {
    fn event_table(&self) -> Table {
        let Counts { new, held, sending, retry, dead, estimated } = self.0.counts;
        let about = if estimated { "about " } else { "" };
        let mut events = table(["status", "events"]);
        for (status, count) in [
            ("new", new),
            ("  of them held", held),
            ("sending", sending),
            ("retry", retry),
            ("dead", dead),
        ] {
            events.add_row([status.to_owned(), format!("{about}{}", number(count))]);
        }
        if let Some(sent) = self.0.sent {
            events.add_row(["sent, kept".to_owned(), number(sent)]);
        }
        align_right(&mut events, 1);
        events
    }

    fn stall_table(&self) -> Table {
        let mut stalls = table(["stalled", "first event", "since", "why"]);
        for stall in &self.0.stalls {
            let first = stall.event_id.clone().unwrap_or_else(|| stall.sequence.to_string());
            let since = format!("{:.0}", stall.since);
            stalls.add_row([number(stall.events), first, since, stall.reason.clone()]);
        }
        align_right(&mut stalls, 0);
        stalls
    }

    fn tenant_table(&self) -> Table {
        let of = if self.0.backlog_estimated { "of the oldest" } else { "backlog" };
        let mut backlog = table(["tenant", of]);
        for TenantBacklog { tenant, events } in &self.0.backlog_by_tenant {
            backlog.add_row([tenant.as_deref().unwrap_or("(none)").to_owned(), number(*events)]);
        }
        align_right(&mut backlog, 1);
        backlog
    }

    fn relay_table(&self) -> Table {
        let mut relays = table(["relay", "alive", "ordering", "shards", "last heartbeat"]);
        for relay in &self.0.relays {
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

    /// Destinations that take nothing, as the relays see them.
    fn breaker_table(&self) -> Table {
        let mut breakers = table(["destination", "breaker", "relay", "since", "why"]);
        for relay in &self.0.relays {
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

    fn pause_table(&self) -> Table {
        let mut pauses = table(["paused", "name", "by", "since", "why"]);
        for pause in &self.0.pauses {
            let note = pause.note.clone().unwrap_or_default();
            let since = format!("{:.0}", pause.since);
            pauses.add_row([pause.kind, &pause.name, &pause.by, &since, &note]);
        }
        pauses
    }
}

impl fmt::Display for ForPeople<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let overview = self.0;
        let ShardCounts { total, held, free } = overview.shards;
        writeln!(
            f,
            "outbox {} ({})\n\n{}",
            overview.outbox,
            overview.database,
            self.event_table()
        )?;
        match overview.oldest_pending_s {
            Some(age) => writeln!(f, "oldest pending for {}\n", seconds(age))?,
            None => writeln!(f, "{}\n", nothing_due(&overview.counts))?,
        }
        if !overview.stalls.is_empty() {
            writeln!(f, "{}\n", self.stall_table())?;
        }
        if !overview.backlog_by_tenant.is_empty() {
            writeln!(f, "{}\n", self.tenant_table())?;
        }
        if overview.relays.is_empty() {
            writeln!(f, "no relay has reported")?;
        } else {
            writeln!(f, "{}", self.relay_table())?;
        }
        if overview.relays.iter().any(|relay| !relay.breakers.is_empty()) {
            writeln!(f, "{}", self.breaker_table())?;
        }
        if !overview.pauses.is_empty() {
            writeln!(f, "{}", self.pause_table())?;
        }
        writeln!(f, "shards: {total}, owned {held}, free {free}")
    }
}

/// Why no event could be delivered now.
fn nothing_due(counts: &Counts) -> String {
    let waiting = counts.new + counts.retry;
    if waiting == 0 {
        return "nothing pending".to_owned();
    }
    let held = match counts.held {
        0 => String::new(),
        held => format!(
            "; {} held behind an event of the same key that failed or is dead: `posthaste doctor EVENT_ID` \
             names it",
            number(held)
        ),
    };
    format!("nothing is due: what waits is to be tried or delivered later{held}")
}

fn seconds(seconds: f64) -> String {
    duration::age(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}
