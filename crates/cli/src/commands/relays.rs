//! `posthaste relays`: who holds which shards.

use std::time::Duration;

use clap::Args;
use posthaste::Result;
use posthaste_operate::{RelayLine, ShardLine};
use serde_json::json;

use crate::{
    args::OutboxArgs,
    database, duration,
    output::{self, print, table},
};

/// Show the relays of an outbox and which shards each holds.
#[derive(Args)]
pub(crate) struct RelaysArgs {
    /// One JSON object instead of tables
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    outbox: OutboxArgs,
}

pub(crate) async fn run(args: RelaysArgs) -> Result<()> {
    let (store, _) = database::open(&args.outbox.one()?).await?;
    let (now, shards) = (store.now().await?, store.shards().await?);
    let lines = store.relays().await?.into_iter().map(|relay| RelayLine::new(relay, &shards, now));
    let lines: Vec<RelayLine> = lines.collect();
    if args.json {
        let shards: Vec<_> = shards.into_iter().map(ShardLine::from).collect();
        return print(&output::json(&json!({ "relays": lines, "shards": shards }))?);
    }
    let mut relays =
        table(["relay", "alive", "ordering", "version", "since", "heartbeat", "shards"]);
    for relay in &lines {
        let held = shards.iter().filter(|shard| shard.locked_by.as_ref() == Some(&relay.owner));
        let age = Duration::try_from_secs_f64(relay.heartbeat_age_s).unwrap_or_default();
        relays.add_row([
            relay.name.clone(),
            if relay.alive { "yes" } else { "no" }.to_owned(),
            relay.ordering.clone(),
            relay.version.clone(),
            format!("{:.0}", relay.started_at),
            format!("{} ago", duration::age(age)),
            ranges(held.map(|shard| shard.shard)),
        ]);
    }
    let free = ranges(shards.iter().filter(|s| s.locked_by.is_none()).map(|shard| shard.shard));
    let reported = match lines.as_slice() {
        [] => "no relay has reported".to_owned(),
        _ => relays.to_string(),
    };
    let free = match free.as_str() {
        "-" => String::new(),
        free => format!("held by nobody: {free}\n"),
    };
    print(&format!("{reported}\n{free}"))
}

/// `0-15, 40`.
fn ranges(shards: impl Iterator<Item = u16>) -> String {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for shard in shards {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == shard => *last = shard,
            _ => ranges.push((shard, shard)),
        }
    }
    let text: Vec<String> = ranges
        .into_iter()
        .map(
            |(first, last)| {
                if first == last { first.to_string() } else { format!("{first}-{last}") }
            },
        )
        .collect();
    if text.is_empty() { "-".to_owned() } else { text.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_range() {
        assert_eq!(ranges([0, 1, 2, 5, 7, 8].into_iter()), "0-2, 5, 7-8");
        assert_eq!(ranges([].into_iter()), "-");
    }
}
