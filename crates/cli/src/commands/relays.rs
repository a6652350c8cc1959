//! `posthaste relays`: who owns which shards.

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

/// Show the relays of an outbox and which shards each owns.
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
        table(["relay", "alive", "ordering", "version", "since", "heartbeat", "shards", "numbers"]);
    for relay in &lines {
        let owned = shards.iter().filter(|shard| shard.locked_by.as_ref() == Some(&relay.owner));
        let age = Duration::try_from_secs_f64(relay.heartbeat_age_s).unwrap_or_default();
        relays.add_row([
            relay.name.clone(),
            if relay.alive { "yes" } else { "no" }.to_owned(),
            relay.ordering.clone(),
            relay.version.clone(),
            format!("{:.0}", relay.started_at),
            format!("{} ago", duration::age(age)),
            relay.shards.to_string(),
            ranges(owned.map(|shard| shard.shard)),
        ]);
    }
    output::align_right(&mut relays, 6);
    let free: Vec<u16> =
        shards.iter().filter(|s| s.locked_by.is_none()).map(|shard| shard.shard).collect();
    let reported = match lines.as_slice() {
        [] => "no relay has reported".to_owned(),
        _ => relays.to_string(),
    };
    print(&format!("{reported}\n{}", unowned(&free)))
}

/// How many shards have no owner, and which: a number alone could be either.
fn unowned(free: &[u16]) -> String {
    if free.is_empty() {
        return String::new();
    }
    let shards = output::counted(free.len() as u64, "shard", "shards");
    format!("owned by no relay: {shards} (number {})\n", ranges(free.iter().copied()))
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
    fn shards_without_an_owner_are_counted_and_named() {
        assert_eq!(unowned(&[0]), "owned by no relay: 1 shard (number 0)\n");
        assert_eq!(unowned(&[0, 1, 5]), "owned by no relay: 3 shards (number 0-1, 5)\n");
        assert_eq!(unowned(&[]), "");
    }

    #[test]
    fn neighbours_are_one_range() {
        assert_eq!(ranges([0, 1, 2, 5, 7, 8].into_iter()), "0-2, 5, 7-8");
        assert_eq!(ranges([].into_iter()), "-");
    }
}
