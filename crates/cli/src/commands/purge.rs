//! `posthaste purge`: what is settled and past its retention goes now.

use std::time::Duration;

use clap::Args;
use posthaste::{Result, relay::Retention};

use super::operator::OperatorArgs;
use crate::{
    duration,
    output::{self, counted, print},
};

/// How many events one step deletes.
const BATCH: usize = 500;

/// Delete what is settled and past its retention, as the cleaner does on its schedule.
#[derive(Args)]
pub(crate) struct PurgeArgs {
    /// How long sent events are kept [default: `cleaner.retention`]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    retention: Option<Duration>,

    /// How long dead events are kept [default: `cleaner.dead_retention`]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    dead_retention: Option<Duration>,

    /// One JSON object instead of a sentence
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    operator: OperatorArgs,
}

pub(crate) async fn run(args: PurgeArgs) -> Result<()> {
    let configured = args.operator.outbox().one()?.retention;
    let retention = Retention {
        sent: args.retention.unwrap_or(configured.sent),
        dead: args.dead_retention.or(configured.dead),
    };
    let deleted = args.operator.open().await?.purge(retention, BATCH).await?;
    print(&if args.json {
        output::json(&serde_json::json!({ "deleted": deleted }))?
    } else {
        format!("{} deleted\n", counted(deleted, "event", "events"))
    })
}
