//! An event for people. Its payload only when somebody asked for it.

use comfy_table::Table;
use jiff::Timestamp;
use posthaste::{
    store::{Attempt, EventRecord},
    transports::log::visible,
};

use crate::output::table;

fn text(time: Option<Timestamp>) -> Option<String> {
    time.map(|time| time.to_string())
}

/// A list.
pub(super) fn list(records: &[EventRecord]) -> Table {
    let mut list = table(["#", "status", "type", "aggregate", "tenant", "created", "id", "error"]);
    for record in records {
        list.add_row(cells(record));
    }
    list
}

/// One line, where a table has no end.
pub(super) fn line(record: &EventRecord) -> String {
    let [sequence, status, of, aggregate, tenant, created, id, error] = cells(record);
    let tenant = if tenant.is_empty() { tenant } else { format!(" tenant={tenant}") };
    format!("{created} #{sequence} {status} {of} {aggregate}{tenant} id={id} {error}")
        .trim_end()
        .to_owned()
}

fn cells(record: &EventRecord) -> [String; 8] {
    let id = record.event_id.map(|id| id.to_string()).unwrap_or_default();
    let (sequence, status) = (record.sequence.to_string(), state(record));
    let error = shortened(record.last_error.as_deref().unwrap_or_default());
    match &record.content {
        Ok(envelope) => {
            let event = &envelope.event;
            let aggregate =
                event.aggregate_id().map(|id| format!("{}/{id}", event.aggregate_type()));
            let tenant = event.tenant().unwrap_or_default().to_owned();
            let created = format!("{:.0}", envelope.created_at);
            let of = event.event_type().to_owned();
            // One line an event: a line break in a name begins none.
            [sequence, status, of, aggregate.unwrap_or_default(), tenant, created, id, error]
                .map(|cell| visible(&cell).into_owned())
        }
        Err(why) => {
            let nothing = String::new;
            let why = shortened(&format!("cannot be decoded: {why}"));
            [sequence, status, nothing(), nothing(), nothing(), nothing(), id, why]
        }
    }
}

/// The state, and what it waits for.
fn state(record: &EventRecord) -> String {
    match record.wait {
        Some(wait) if wait.as_str() != record.status.as_str() => {
            format!("{} ({})", record.status, wait.as_str())
        }
        _ => record.status.to_string(),
    }
}

/// The first line of an error, not longer than a table can show.
fn shortened(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let mut short: String = line.chars().take(60).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// Everything about one event.
pub(super) fn page(record: &EventRecord, attempts: &[Attempt], payload: bool) -> String {
    let mut page = table(["field", "value"]);
    let mut row = |name: &str, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            page.add_row([name.to_owned(), value]);
        }
    };
    row("id", record.event_id.map(|id| id.to_string()));
    row("sequence", Some(record.sequence.to_string()));
    row("status", Some(state(record)));
    match &record.content {
        Ok(envelope) => {
            let event = &envelope.event;
            row("type", Some(event.event_type().to_owned()));
            row("aggregate type", Some(event.aggregate_type().to_owned()));
            row("aggregate id", event.aggregate_id().map(str::to_owned));
            row("tenant", event.tenant().map(str::to_owned));
            row("topic", Some(envelope.topic().to_owned()));
            row("routing key", event.routing_key().map(str::to_owned));
            row("ordering key", event.ordering_key());
            row("schema", event.schema_id().map(|id| format!("{id} {}", event.schema_version())));
            for (name, value) in event.headers() {
                row(&format!("header {name}"), Some(value.clone()));
            }
            row("occurred", Some(event.occurred_at().to_string()));
            row("created", Some(envelope.created_at.to_string()));
            row("replay", Some(envelope.replay).filter(|n| *n > 0).map(|n| n.to_string()));
            row("content type", Some(event.content_type().to_owned()));
            let bytes = format!("{} bytes", record.payload_bytes);
            let shown = String::from_utf8_lossy(event.payload()).into_owned();
            row(
                "payload",
                Some(if payload { shown } else { format!("{bytes}; --payload shows it") }),
            );
        }
        Err(why) => row("cannot be decoded", Some(why.clone())),
    }
    row("shard", Some(record.shard.to_string()));
    row("attempts", Some(record.attempts.to_string()));
    row("destination", record.destination.clone());
    row("not before", text(record.not_before));
    row("locked by", record.locked_by.clone());
    row("sent", text(record.sent_at));
    row("dead", text(record.dead_at));
    row("last error", record.last_error.clone());
    if attempts.is_empty() {
        return format!("{page}\n");
    }
    let mut failed = table(["attempt", "at", "relay", "destination", "error"]);
    for Attempt { attempt, at, relay, destination, error } in attempts {
        let (attempt, at) = (attempt.to_string(), at.to_string());
        failed.add_row([&attempt, &at, relay, destination, error]);
    }
    format!("{page}\n{failed}\n")
}
