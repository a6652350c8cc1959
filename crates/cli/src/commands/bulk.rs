//! Many events by a filter: counted, asked about, then changed while a bar shows how far it is.

use std::io::{IsTerminal as _, stderr};

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use posthaste::{Result, store::Filter};
use posthaste_operate::{Action, Bulk, BulkReport, MAX_EVENTS, Operator, describe};
use uuid::Uuid;

use super::operator::confirm;
use crate::output::{self, counted, print};

/// How many events are changed, and how.
#[derive(Args)]
pub(super) struct BulkArgs {
    /// Only count, change nothing
    #[arg(long)]
    dry_run: bool,

    /// Do not ask
    #[arg(long, short)]
    yes: bool,

    /// At most so many events a second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,

    /// At most so many events, the oldest
    #[arg(long, value_name = "N")]
    limit: Option<usize>,

    /// One JSON object instead of a sentence
    #[arg(long)]
    json: bool,
}

/// These very events, one after the other. Nobody is asked: they were named.
pub(super) async fn by_id(
    operator: &Operator,
    action: Action,
    ids: &[Uuid],
    args: &BulkArgs,
) -> Result<()> {
    let matched = ids.len() as u64;
    if args.dry_run {
        return told(args, action, BulkReport { matched, changed: 0, more: false });
    }
    for id in ids {
        match action {
            Action::Replay => operator.replay(*id).await?,
            Action::Discard => operator.discard(*id).await?,
        }
    }
    operator.store().notify().await?;
    told(args, action, BulkReport { matched, changed: matched, more: false })
}

/// All that match.
pub(super) async fn by_filter(
    operator: &Operator,
    action: Action,
    filter: Filter,
    args: &BulkArgs,
) -> Result<()> {
    let limit = args.limit.unwrap_or(MAX_EVENTS);
    let bulk = Bulk { action, filter, rate: args.rate, limit };
    let found = bulk.try_out(operator.store()).await?;
    if args.dry_run || found.matched == 0 {
        return told(args, action, found);
    }
    confirm(&question(&bulk, found.matched), args.yes)?;
    let bar = bar(found.matched);
    let report = operator.bulk(&bulk, |progress| bar.set_position(progress.done)).await;
    bar.finish_and_clear();
    told(args, action, report?)
}

/// `Replay 1,234 dead events matching tenant=acme?`
fn question(bulk: &Bulk, matched: u64) -> String {
    let status = bulk.filter.status.map(|status| status.to_string()).unwrap_or_default();
    let events = counted(matched, &format!("{status} event"), &format!("{status} events"));
    let verb = match bulk.action {
        Action::Replay => "Replay",
        Action::Discard => "Discard",
    };
    let rest = Filter { status: None, ..bulk.filter.clone() };
    if rest == Filter::default() {
        return format!("{verb} {events}, all there are?");
    }
    format!("{verb} {events} matching {}?", describe(&rest))
}

fn bar(events: u64) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(events), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:40} {pos} of {len}, {eta} to go");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn told(args: &BulkArgs, action: Action, report: BulkReport) -> Result<()> {
    let BulkReport { matched, changed, more } = report;
    if args.json {
        return print(&output::json(&serde_json::json!({
            "matched": matched, "changed": changed, "more": more, "dry_run": args.dry_run,
        }))?);
    }
    let events = |count| counted(count, "event", "events");
    let mut sentence = match (action, args.dry_run) {
        (action, true) => format!("{} would be {}", events(matched), past(action)),
        (action, false) => format!("{} {}", events(changed), past(action)),
    };
    if changed < matched && !args.dry_run {
        sentence = format!("{sentence}; {} had changed meanwhile", events(matched - changed));
    }
    if more {
        sentence += "; more match, run it again for them";
    }
    print(&format!("{sentence}\n"))
}

fn past(action: Action) -> &'static str {
    match action {
        Action::Replay => "replayed",
        Action::Discard => "discarded",
    }
}
