//! How far one look at an outbox goes: what it costs is bounded, however many events there are.

use jiff::{SignedDuration, Timestamp};
use posthaste_core::{
    Status,
    store::{EventPage, EventRecord, Filter},
};

/// Rows that one page examines at most, and that each half of the search for the oldest pending event
/// does.
pub(crate) const WINDOW: i64 = 10_000;

/// How far the order of the times may differ from the order of the sequences. Both are taken at the
/// same insert, but a statement that writes many rows can take a while, and clocks are set.
const MARGIN: SignedDuration = SignedDuration::from_secs(10);

/// How many rows a page examines: no more than it shows when all of them match.
pub(crate) fn window(filter: &Filter, limit: usize) -> i64 {
    let Filter { status, aggregate_id, .. } = filter;
    let by_index = Filter {
        status: status.filter(|status| *status == Status::Dead && aggregate_id.is_none()),
        aggregate_id: aggregate_id.clone(),
        ..Filter::default()
    };
    if *filter == by_index { (limit as i64).saturating_add(1).min(WINDOW) } else { WINDOW }
}

/// The times between which to look for sequences: those of the filter, and a margin.
pub(crate) fn times(filter: &Filter) -> (Option<Timestamp>, Option<Timestamp>) {
    let Filter { created_from, created_before, .. } = filter;
    (
        created_from.map(|from| from.checked_sub(MARGIN).unwrap_or(Timestamp::MIN)),
        created_before.map(|before| before.checked_add(MARGIN).unwrap_or(Timestamp::MAX)),
    )
}

/// The events of a window, and where the next page goes on: behind the last of them when the page is
/// full, else behind the window when that was full.
pub(crate) fn page(
    events: Vec<EventRecord>,
    limit: usize,
    (examined, lowest): (i64, Option<i64>),
    window: i64,
) -> EventPage {
    let last = events.last().map(|event| event.sequence);
    let next = if events.len() >= limit && last != lowest {
        last
    } else if examined >= window {
        lowest
    } else {
        None
    };
    EventPage { events, next, examined: examined.max(0) as u64 }
}

/// A duration in microseconds.
pub(crate) fn micros(age: std::time::Duration) -> i64 {
    i64::try_from(age.as_micros()).unwrap_or(i64::MAX)
}

/// How many rows a count examines at most. Where many were sent above the lowest mark, or had failed
/// before they were sent, they are passed over one by one.
pub(crate) fn examined(cap: u64) -> i64 {
    i64::try_from(cap.saturating_mul(10)).unwrap_or(i64::MAX)
}
