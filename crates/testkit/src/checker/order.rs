//! Promise 3, word for word, in `n log n`.
//!
//! For one key, take its delivered events in the order in which their enqueues began. By the time
//! *b* began, a growing set of events had been acknowledged; of that set only the one that was
//! delivered last matters: if even that came before *b*, all did.

use std::collections::HashMap;

use uuid::Uuid;

use super::{Committed, Reordered};

/// Every event that was delivered before one that had to come first, with the worst such one.
pub(super) fn violations<'a>(
    committed: impl Iterator<Item = &'a Committed>,
    first: &HashMap<Uuid, u64>,
) -> Vec<Reordered> {
    let mut keys: HashMap<&str, Vec<(&Committed, u64)>> = HashMap::new();
    for event in committed {
        if let (Some(key), Some(at)) = (&event.key, first.get(&event.id)) {
            keys.entry(key).or_default().push((event, *at));
        }
    }
    let mut found: Vec<Reordered> =
        keys.into_iter().flat_map(|(key, events)| violations_of_key(key, events)).collect();
    found.sort_by_key(|violation| (violation.later.1, violation.later.0));
    found
}

fn violations_of_key(key: &str, mut events: Vec<(&Committed, u64)>) -> Vec<Reordered> {
    let mut acknowledged: Vec<(u64, Uuid, u64)> = events
        .iter()
        .filter_map(|(event, at)| Some((event.acknowledged?, event.id, *at)))
        .collect();
    acknowledged.sort_unstable();
    let mut acknowledged = acknowledged.into_iter().peekable();
    events.sort_unstable_by_key(|(event, _)| (event.began, event.id));

    let mut delivered_last: Option<(Uuid, u64)> = None;
    let mut found = Vec::new();
    for (event, at) in events {
        while let Some((_, id, at)) = acknowledged.next_if(|(when, ..)| *when < event.began) {
            if delivered_last.is_none_or(|(_, last)| at > last) {
                delivered_last = Some((id, at));
            }
        }
        if let Some(earlier) = delivered_last.filter(|(_, last)| *last > at) {
            found.push(Reordered { key: key.to_owned(), earlier, later: (event.id, at) });
        }
    }
    found
}
