//! `posthaste audit`: who changed what.

use clap::Args;
use posthaste::{Result, store::AuditRecord};
use serde_json::json;

use crate::{
    args::OutboxArgs,
    database,
    output::{self, print, table},
};

/// Show who changed what, newest first.
#[derive(Args)]
pub(crate) struct AuditArgs {
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 50,
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,

    /// Go on behind this entry
    #[arg(long, value_name = "N")]
    cursor: Option<i64>,

    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    outbox: OutboxArgs,
}

pub(crate) async fn run(args: AuditArgs) -> Result<()> {
    let (store, _) = database::open(&args.outbox.one()?).await?;
    let limit = usize::from(args.limit);
    let entries = store.audits(args.cursor, limit).await?;
    let next = entries.last().filter(|_| entries.len() == limit).map(|entry| entry.id);
    if args.json {
        return print(&output::json(&json!({ "audit": entries, "next": next }))?);
    }
    if entries.is_empty() {
        return print("nobody has changed anything\n");
    }
    let mut audit = table(["at", "by", "account", "action", "subject", "changed", "ended"]);
    for AuditRecord { at, change, account, ended_at, affected, error, .. } in &entries {
        let ended = match (ended_at, error) {
            (None, _) => "not yet, or it died".to_owned(),
            (Some(_), Some(error)) => error.clone(),
            (Some(ended), None) => format!("{ended:.0}"),
        };
        audit.add_row([
            format!("{at:.0}"),
            change.by.clone(),
            account.clone().unwrap_or_default(),
            change.action.clone(),
            change.subject.clone(),
            affected.to_string(),
            ended,
        ]);
    }
    let older = next.map(|next| format!("older ones with --cursor {next}\n")).unwrap_or_default();
    print(&format!("{audit}\n{older}"))
}
