//! Events that could be delivered and are not: what relays report of them, and what the table tells by
//! itself.

use std::time::Duration;

use jiff::Timestamp;
use posthaste_core::{
    Result,
    store::{EventRecord, Finding, Level, Stall, Store},
};
use serde::Serialize;

use super::{explain::Cause, obstacles::Surroundings, words::since};

/// How long an event may wait for no reason, unless the configuration says otherwise.
pub const STALL_AFTER: Duration = Duration::from_mins(1);

/// Rows that one page of the table examines.
const EXAMINED: usize = 5_000;

/// How many pages are read.
const PAGES: usize = 4;

/// The table is looked at from so many numbers before the lowest checkpoint on.
const BELOW: i64 = 5_000;

/// Events that could be delivered and are not, for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StallLine {
    /// Why, for people.
    pub reason: String,
    /// How many were found; there may be more.
    pub events: u64,
    /// The first of them.
    pub sequence: i64,
    /// Its id.
    pub event_id: Option<String>,
    /// Since when it waits for no reason.
    pub since: Timestamp,
    /// The relay that says so; `None` when the table does.
    pub relay: Option<String>,
}

/// The events that stall: those that live relays report, and those of which the table alone shows that no
/// relay will deliver them. Looks at some ten thousand rows at most.
pub async fn stalls(store: &dyn Store, after: Duration) -> Result<Vec<StallLine>> {
    let around = Surroundings::read(store, &[], None).await?;
    let reported = around.relays().iter().flat_map(|relay| {
        relay.stalls.iter().map(|stall| {
            let Stall { reason, events, sequence, event_id, since } = stall.clone();
            let relay = Some(relay.name.clone());
            StallLine { reason, events, sequence, event_id, since, relay }
        })
    });
    let mut lines: Vec<StallLine> = reported.collect();
    let mut from = Some((around.lowest_mark() - BELOW).max(0));
    for _ in 0..PAGES {
        let Some(after_sequence) = from else { break };
        let page = store.overdue(after_sequence, EXAMINED, after).await?;
        from = page.next;
        for record in &page.events {
            if let Some(reason) = reason(&around, record) {
                add(&mut lines, reason, record, around.now);
            }
        }
    }
    Ok(lines)
}

/// Why nobody delivers this event, as far as the table shows it. What a live relay owns is that relay's to
/// say: it alone knows where the event goes and what it waits for.
fn reason(around: &Surroundings<'_>, record: &EventRecord) -> Option<String> {
    match around.obstacle(record) {
        Some(obstacle) => match obstacle.cause {
            Cause::NoRelay => Some("no relay is alive".to_owned()),
            Cause::ShardUnowned => Some("no relay owns its shard".to_owned()),
            _ => None,
        },
        None if around.is_passed(record) => Some(
            "it lies before the checkpoint of its shard and was not read, unless it was committed \
             only now"
                .to_owned(),
        ),
        None => None,
    }
}

fn add(lines: &mut Vec<StallLine>, reason: String, record: &EventRecord, now: Timestamp) {
    let same = |line: &&mut StallLine| line.relay.is_none() && line.reason == reason;
    if let Some(line) = lines.iter_mut().find(same) {
        line.events += 1;
        return;
    }
    let created = record.content.as_ref().map_or(now, |envelope| envelope.created_at);
    lines.push(StallLine {
        reason,
        events: 1,
        sequence: record.sequence,
        event_id: record.event_id.map(|id| id.to_string()),
        since: record.not_before.map_or(created, |due| due.max(created)),
        relay: None,
    });
}

/// What the doctor says of them.
pub(super) fn findings(stalls: &[StallLine], now: Timestamp) -> Vec<Finding> {
    if stalls.is_empty() {
        return vec![Finding::ok("stalls", "no event waits without a reason")];
    }
    let told = |stall: &StallLine| {
        let StallLine { reason, events, sequence, event_id, since: at, relay } = stall;
        let by = relay.as_ref().map(|relay| format!(" at relay {relay}")).unwrap_or_default();
        let text = format!(
            "events stall{by}: {events}, the first with sequence {sequence} since {}: {reason}",
            since(*at, now)
        );
        let finding = Finding::new("stalls", Level::Problem, text);
        finding.mended_by(match event_id {
            Some(id) => format!("posthaste doctor {id}"),
            None => "posthaste events list".to_owned(),
        })
    };
    stalls.iter().map(told).collect()
}
