//! What is wrong with an installation: the database's own findings, clocks, relays, shards, pauses
//! and destinations.

use std::time::Duration;

use jiff::Timestamp;
use posthaste_core::{
    Result,
    store::{Counts, Finding, Level, Pausable, Pause, RelayRecord, ShardRecord, Store},
};

use super::{
    stalls::{self, stalls},
    words::{by_whom, resume, since, span},
};

/// How far clocks may lie apart. Leases use the database's alone; deliver-at and the times that
/// writers give use their own.
const SKEW: jiff::SignedDuration = jiff::SignedDuration::from_secs(2);

/// Checks the installation. An outbox that was never migrated gives one finding. An event that waits for
/// no reason for longer than `stall_after` is a problem.
pub async fn examine(store: &dyn Store, stall_after: Duration) -> Result<Vec<Finding>> {
    let mut findings = store.diagnose().await?;
    if findings.iter().any(|finding| finding.check == "schema" && finding.level == Level::Problem) {
        return Ok(findings);
    }
    findings.push(clock(store).await?);
    let now = store.now().await?;
    let relays = store.relays().await?;
    let alive: Vec<&RelayRecord> = relays.iter().filter(|relay| relay.alive).collect();
    findings.push(hands(&relays, &alive));
    findings.extend(shards(&alive, &store.shards().await?));
    findings.extend(pauses(&store.pauses().await?, now));
    findings.extend(destinations(&alive, now));
    findings.extend(stalls::findings(&stalls(store, stall_after).await?, now));
    findings.push(dead(store.counts(Counts::CAP).await?));
    Ok(findings)
}

/// Whether this machine's clock and the database's agree.
async fn clock(store: &dyn Store) -> Result<Finding> {
    let before = Timestamp::now();
    let theirs = store.now().await?;
    let after = Timestamp::now();
    // The answer was given at some time in between: only what lies outside is skew.
    let ahead = theirs.duration_since(after);
    let behind = before.duration_since(theirs);
    let skew = ahead.max(behind);
    if skew <= SKEW {
        return Ok(Finding::ok("clock", "this machine's clock and the database's agree"));
    }
    let direction = if ahead > behind { "ahead of" } else { "behind" };
    let text = format!(
        "the database's clock is {} {direction} this machine's: delayed events and ages are off by \
         as much",
        span(skew)
    );
    Ok(Finding::new("clock", Level::Warning, text)
        .mended_by("synchronise both clocks, for example with chrony"))
}

fn hands(relays: &[RelayRecord], alive: &[&RelayRecord]) -> Finding {
    let Some(first) = alive.first() else {
        let text = match relays.iter().map(|relay| relay.heartbeat_at).max() {
            Some(last) => format!("no relay is alive; the last one reported at {last:.0}"),
            None => "no relay is alive: nothing is delivered".to_owned(),
        };
        return Finding::new("relays", Level::Problem, text).mended_by("posthaste relay");
    };
    let names: Vec<&str> = alive.iter().map(|relay| relay.name.as_str()).collect();
    let names = names.join(", ");
    if let Some(other) = alive.iter().find(|relay| relay.ordering != first.ordering) {
        let text = format!(
            "relays divide the work in different ways: {} has ordering {}, {} has {}",
            first.name, first.ordering, other.name, other.ordering
        );
        return Finding::new("relays", Level::Problem, text)
            .mended_by("give all relays of the outbox the same ordering");
    }
    if let Some(other) = alive.iter().find(|relay| relay.version != first.version) {
        let text = format!(
            "alive: {names}; they are of different versions ({} and {})",
            first.version, other.version
        );
        return Finding::new("relays", Level::Note, text).mended_by("posthaste relays");
    }
    Finding::ok("relays", format!("alive: {names}"))
}

/// Whether every shard has an owner, where relays divide the work by shards.
fn shards(alive: &[&RelayRecord], shards: &[ShardRecord]) -> Option<Finding> {
    if alive.iter().all(|relay| relay.ordering == "none") {
        return None;
    }
    let free: Vec<String> = shards
        .iter()
        .filter(|shard| shard.locked_by.is_none())
        .map(|shard| shard.shard.to_string())
        .collect();
    if free.is_empty() {
        return Some(Finding::ok("shards", format!("all {} shards have an owner", shards.len())));
    }
    let text = format!(
        "held by no relay: shards {}; live relays take them with their next heartbeat, unless they \
         are paused, switched off (relay.enabled) or cannot reach the database",
        free.join(", ")
    );
    Some(Finding::new("shards", Level::Warning, text).mended_by("posthaste relays"))
}

fn pauses(pauses: &[Pause], now: Timestamp) -> Vec<Finding> {
    if pauses.is_empty() {
        return vec![Finding::ok("pauses", "nothing is paused")];
    }
    let told = |pause: &Pause| {
        let level = match pause.what {
            Pausable::Outbox => Level::Warning,
            _ => Level::Note,
        };
        Finding::new("pauses", level, format!("{} is {}", pause.what, by_whom(pause, now)))
            .mended_by(resume(&pause.what, None))
    };
    pauses.iter().map(told).collect()
}

/// Destinations that take nothing, as live relays see them.
fn destinations(alive: &[&RelayRecord], now: Timestamp) -> Vec<Finding> {
    if alive.is_empty() {
        return Vec::new();
    }
    let open: Vec<Finding> = alive
        .iter()
        .flat_map(|relay| relay.breakers.iter().map(move |breaker| (relay, breaker)))
        .map(|(relay, breaker)| {
            let text = format!(
                "destination {} has taken nothing from relay {} since {}: {}",
                breaker.destination,
                relay.name,
                since(breaker.since, now),
                breaker.error
            );
            let mend =
                format!("posthaste check-destination URL, with the URL of {}", breaker.destination);
            Finding::new("destinations", Level::Problem, text).mended_by(mend)
        })
        .collect();
    if open.is_empty() {
        return vec![Finding::ok("destinations", "every destination takes events")];
    }
    open
}

fn dead(counts: Counts) -> Finding {
    match counts.dead {
        0 => Finding::ok("dead", "no event is dead"),
        dead => {
            let least = if dead > Counts::CAP { "more than " } else { "" };
            let text = format!("{least}{} events are dead", dead.min(Counts::CAP));
            Finding::new("dead", Level::Warning, text).mended_by("posthaste dead list")
        }
    }
}
