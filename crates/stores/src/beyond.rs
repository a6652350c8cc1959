//! Beyond a cursor that stands: which events one look brings, and where the next begins.

use std::sync::atomic::{AtomicI64, Ordering};

use posthaste_core::store::Limit;

/// Of these events, with their sizes, those within the limit. The next look begins after them, or after `end`, up to
/// which was looked, or from the beginning: what was passed there may have been committed since.
pub(crate) fn page(
    found: Vec<(i64, i64)>,
    limit: Limit,
    next: &AtomicI64,
    end: i64,
    newest: i64,
) -> Vec<i64> {
    let mut bytes = 0;
    let mut page = Vec::with_capacity(found.len());
    let all = found.len();
    for (sequence, size) in found {
        // One that is larger than the limit comes alone.
        if bytes >= limit.bytes {
            break;
        }
        bytes = bytes.saturating_add(size.max(0) as usize);
        page.push(sequence);
    }
    let cut = page.len() < all || all >= limit.rows;
    let end = page.last().copied().filter(|_| cut).unwrap_or(end);
    next.store(if end >= newest { 0 } else { end }, Ordering::Relaxed);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(next: &AtomicI64, found: &[(i64, i64)], newest: i64) -> (Vec<i64>, i64) {
        let limit = Limit { rows: 3, bytes: 100 };
        let page = page(found.to_vec(), limit, next, 1_000, newest);
        (page, next.load(Ordering::Relaxed))
    }

    #[test]
    fn a_look_keeps_to_the_limit_and_the_next_goes_on_after_it() {
        let next = AtomicI64::new(0);
        assert_eq!(look(&next, &[(5, 10), (7, 10), (9, 10)], 2_000), (vec![5, 7, 9], 9));
        assert_eq!(look(&next, &[(11, 60), (12, 60), (13, 1)], 2_000), (vec![11, 12], 12));
        assert_eq!(look(&next, &[(13, 5_000), (14, 1)], 2_000), (vec![13], 13), "alone");
        assert_eq!(look(&next, &[(15, 1)], 2_000), (vec![15], 1_000), "that far it has looked");
        assert_eq!(look(&next, &[(1_001, 1)], 1_000), (vec![1_001], 0), "again");
    }
}
