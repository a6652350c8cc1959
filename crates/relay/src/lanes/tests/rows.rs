//! Rows that are claimed one by one.

use super::*;

fn by_rows() -> Lanes {
    Lanes::new(Rules { unordered: true, ..rules(OnDead::Skip, false) })
}

fn claim(number: u32) -> Arc<RowLease> {
    Arc::new(RowLease { token: format!("r/1#{number}") })
}

fn suspect(attempts: u32) -> Fetched {
    Fetched { wait: Some(Wait::Suspect), attempts, ..row(1, 1) }
}

/// It was recorded under `per_key`, together with others: no attempt is counted.
#[test]
fn a_suspect_that_another_ordering_left_goes_alone_and_is_counted_then() {
    let mut lanes = by_rows();
    lanes.offer(suspect(0), Origin::Cold, Some(&claim(1)), now());
    assert_eq!(recorded(&mut lanes), [(1, 1, false)]);
    assert_eq!(dispatch(&mut lanes), [1]);
    lanes.published(vec![(1, Outcome::Delivered)], now());
    assert_eq!(settle(&mut lanes), [(1, Verdict::Sent)]);
}

#[test]
fn an_expired_claim_was_counted_when_it_was_taken() {
    let mut lanes = by_rows();
    lanes.offer(suspect(1), Origin::Due, Some(&claim(1)), now());
    assert_eq!(dispatch(&mut lanes), [1]);
    lanes.published(vec![(1, Outcome::retry("no"))], now());
    assert_eq!(lanes.next_settlements(1)[0].settlement.attempts, 1);

    let mut lanes = by_rows();
    lanes.offer(suspect(4), Origin::Due, Some(&claim(1)), now());
    assert!(dispatch(&mut lanes).is_empty(), "three relays died of it");
    assert_eq!(lanes.next_settlements(1)[0].settlement.attempts, 3);
}
