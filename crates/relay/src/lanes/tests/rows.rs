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

#[test]
fn what_is_in_hand_goes_by_its_last_claim() {
    let mut lanes = by_rows();
    for sequence in [1, 2] {
        lanes.offer(row(sequence, 1), Origin::Cold, Some(&claim(1)), now());
    }
    assert_eq!(dispatch(&mut lanes), [1, 2]);
    lanes.published(vec![(1, Outcome::Delivered)], now());
    // One waits for its settle, one is in flight; the third is nobody's.
    let adopted = [1, 2, 3].map(|sequence| lanes.adopt(&row(sequence, 1), &claim(2)));
    assert_eq!(adopted, [true, true, false]);
    lanes.published(vec![(2, Outcome::Delivered)], now());
    let batch = lanes.next_settlements(10);
    let leases: Vec<_> = batch.iter().map(|one| one.lease.clone()).collect();
    assert_eq!(leases, [Some(claim(2)), Some(claim(2))]);
    // It was claimed anew while it was being written.
    assert!(!lanes.settle_again(&batch[0].settlement, &claim(2)), "the claim is gone");
    assert!(lanes.adopt(&row(1, 1), &claim(3)));
    assert!(lanes.settle_again(&batch[0].settlement, &claim(2)));
    let again = lanes.next_settlements(10).remove(0);
    assert_eq!((again.settlement.sequence, again.lease), (1, Some(claim(3))));
    let other = Identity { id: Some(uuid::Uuid::nil()), ..Identity::default() };
    lanes.offer(row(4, 1), Origin::Cold, Some(&claim(1)), now());
    assert!(!lanes.adopt(&Fetched { identity: other, ..row(4, 1) }, &claim(2)));
}

#[test]
fn an_expired_claim_that_its_destination_does_not_take_costs_no_attempt() {
    let mut lanes = by_rows();
    lanes.pause(&BTreeSet::new(), &BTreeSet::from(["there"]), now());
    assert_eq!(lanes.offer(suspect(3), Origin::Due, Some(&claim(1)), now()), Offered::Held);
    let settlement = lanes.next_settlements(1).remove(0).settlement;
    assert_eq!(settlement.attempts, 2);
    assert!(matches!(settlement.verdict, Verdict::Retry { .. }), "{settlement:?}");
}

#[test]
fn many_that_cannot_go_come_again_one_after_the_other() {
    const EVENTS: i64 = 10_000;

    let mut lanes = by_rows();
    lanes.pause(&BTreeSet::new(), &BTreeSet::from(["there"]), now());
    for sequence in 1..=EVENTS {
        lanes.offer(row(sequence, 1), Origin::Cold, Some(&claim(1)), now());
    }
    let waits: Vec<Duration> = lanes
        .next_settlements(EVENTS as usize)
        .into_iter()
        .map(|unsettled| match unsettled.settlement.verdict {
            Verdict::Retry { after, .. } => after,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(waits[0], Duration::from_secs(1));
    assert!(waits.is_sorted());
    assert!(waits[waits.len() - 1] > Duration::from_secs(5), "2,000 a second");
    // Few of them, some time later, do not wait for those.
    lanes.offer(row(EVENTS + 1, 1), Origin::Cold, Some(&claim(2)), later(60_000));
    let next = lanes.next_settlements(1).remove(0).settlement.verdict;
    assert!(matches!(next, Verdict::Retry { after, .. } if after <= Duration::from_secs(15)));
}

#[test]
fn a_suspect_that_is_being_recorded_while_others_are_given_back_goes_when_it_is() {
    let mut lanes = by_rows();
    lanes.offer(suspect(0), Origin::Cold, Some(&claim(1)), now());
    assert!(dispatch(&mut lanes).is_empty());
    assert_eq!(lanes.next_settlements(10).len(), 1, "the record");
    lanes.offer(row(2, 2), Origin::Cold, Some(&claim(1)), now());
    lanes.give_back(now());
    assert_eq!(settle(&mut lanes), [(2, Verdict::Unclaimed)]);
    lanes.settled([1], now());
    assert_eq!(dispatch(&mut lanes), [1]);
}

#[test]
fn an_attempt_that_was_counted_when_its_claim_was_taken_over_is_taken_back_with_it() {
    let mut lanes = by_rows();
    let expired = Fetched { wait: Some(Wait::Suspect), attempts: 3, ..row(1, 1) };
    lanes.offer(expired, Origin::Due, Some(&claim(1)), now());
    lanes.give_back(now());
    let written = lanes.next_settlements(10);
    assert!(matches!(written[0].settlement.verdict, Verdict::Retry { .. }), "{written:?}");
    assert_eq!(written[0].settlement.attempts, 2);
}
