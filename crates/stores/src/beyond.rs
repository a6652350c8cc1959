//! Beyond a cursor that stands: which events one look brings, and where the next begins.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicI64, Ordering},
};

use posthaste_core::{Key, store::Limit};

use crate::key::KeyColumns;

/// How many rows one look is over: of a few keys there can be very many.
pub(crate) const LOOK_ROWS: usize = 1_000;

/// An event beyond the cursor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) sequence: i64,
    /// Of payload and headers.
    pub(crate) bytes: i64,
    key: Option<Key>,
}

impl Found {
    pub(crate) fn new(sequence: i64, bytes: i64, key: KeyColumns<'_>) -> Self {
        Self { sequence, bytes, key: key.text().map(|key| Key::of(&key)) }
    }

    pub(crate) fn is_of(&self, keys: &HashSet<Key>) -> bool {
        self.key.is_some_and(|key| keys.contains(&key))
    }
}

/// Of these events, up to [`LOOK_ROWS`], those of other keys than these, within the limit. The next look begins after
/// them, or after `end`, up to which was looked, or from the beginning: what was passed there may have been committed
/// since.
pub(crate) fn page(
    found: &[Found],
    but: &HashSet<Key>,
    limit: Limit,
    next: &AtomicI64,
    end: i64,
    newest: i64,
) -> Vec<i64> {
    let mut bytes = 0_usize;
    let mut page = Vec::new();
    let mut end =
        found.last().filter(|_| found.len() >= LOOK_ROWS).map_or(end, |last| last.sequence);
    for one in found.iter().filter(|one| !one.is_of(but)) {
        // One that is larger than the limit comes alone.
        if bytes >= limit.bytes || page.len() >= limit.rows {
            end = page.last().copied().unwrap_or(end);
            break;
        }
        bytes = bytes.saturating_add(one.bytes.max(0) as usize);
        page.push(one.sequence);
    }
    next.store(if end >= newest { 0 } else { end }, Ordering::Relaxed);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events of three keys, with their sizes.
    fn look(next: &AtomicI64, found: &[(i64, i64)], newest: i64) -> (Vec<i64>, i64) {
        let found: Vec<Found> = found
            .iter()
            .map(|&(sequence, bytes)| Found { sequence, bytes, key: Some(Key(sequence % 3)) })
            .collect();
        let limit = Limit { rows: 3, bytes: 100 };
        let page = page(&found, &HashSet::from([Key(1)]), limit, next, 20_000, newest);
        (page, next.load(Ordering::Relaxed))
    }

    #[test]
    fn a_look_keeps_to_the_limit_and_the_next_goes_on_after_it() {
        let next = AtomicI64::new(0);
        let found = [(3, 10), (4, 900), (6, 10), (9, 10), (12, 10)];
        assert_eq!(look(&next, &found, 90_000), (vec![3, 6, 9], 9), "not of the one key");
        assert_eq!(look(&next, &[(12, 60), (15, 60), (18, 1)], 90_000), (vec![12, 15], 15));
        assert_eq!(look(&next, &[(18, 5_000), (21, 1)], 90_000), (vec![18], 18), "alone");
        assert_eq!(look(&next, &[(21, 1)], 90_000), (vec![21], 20_000), "that far it has looked");
        assert_eq!(look(&next, &[(21_000, 1)], 20_000), (vec![21_000], 0), "again");
    }

    #[test]
    fn a_look_at_very_many_of_one_key_goes_on_behind_them() {
        let next = AtomicI64::new(0);
        let found: Vec<(i64, i64)> = (0..LOOK_ROWS as i64).map(|n| (n * 3 + 1, 1)).collect();
        assert_eq!(look(&next, &found, 90_000), (vec![], 2_998));
    }
}
