use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn id(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

/// Three events of one key, one after the other, each delivered once at the given time.
fn in_turn(deliveries: [Option<u64>; 3]) -> Checker {
    let mut checker = Checker::new();
    for (n, at) in (0..).zip(deliveries) {
        checker.committed(Committed::new(id(n), n as u64 * 10, n as u64 * 10 + 5).key("k"));
        if let Some(at) = at {
            checker.delivered(Delivered::new(id(n), at, "relay"));
        }
    }
    checker
}

#[test]
fn a_faultless_run_is_clean() {
    let report = in_turn([Some(100), Some(110), Some(120)]).check();
    report.assert_clean();
    assert_eq!((report.committed, report.delivered, report.deliveries), (3, 3, 3));
}

#[test]
fn a_lost_event_is_found() {
    let report = in_turn([Some(100), None, Some(120)]).check();
    assert_eq!(report.lost.iter().map(|event| event.id).collect::<Vec<_>>(), [id(1)]);
    assert!(!report.is_clean());
}

#[test]
fn a_reordered_event_is_found_with_what_it_passed() {
    let report = in_turn([Some(100), Some(130), Some(120)]).check();
    let expected = Reordered { key: "k".to_owned(), earlier: (id(1), 130), later: (id(2), 120) };
    assert_eq!(report.reordered, [expected]);
    assert!(report.lost.is_empty() && !report.is_clean());
}

#[test]
fn a_phantom_is_found() {
    let mut checker = in_turn([Some(100), Some(110), Some(120)]);
    checker.delivered(Delivered::new(id(99), 50, "relay"));
    let report = checker.check();
    assert_eq!(report.phantoms, [Delivered::new(id(99), 50, "relay")]);
    assert!(!report.is_clean());
}

#[test]
fn a_repeat_is_found_unless_it_is_excused() {
    let repeated = || {
        let mut checker = in_turn([Some(100), Some(110), Some(120)]);
        checker.delivered(Delivered::new(id(0), 200, "heir"));
        checker
    };
    let report = repeated().check();
    let expected =
        Repeated { id: id(0), before: (100, "relay".to_owned()), again: (200, "heir".to_owned()) };
    assert_eq!(report.repeated, [expected]);
    assert!(!report.is_clean());

    let mut checker = repeated();
    checker.repeats_after_kills([150], 1);
    let report = checker.check();
    report.assert_clean();
    assert_eq!(report.excused, 1);

    for (kills, each) in [(vec![99], 1), (vec![201], 1), (vec![150], 0), (vec![], 9)] {
        let mut checker = repeated();
        checker.repeats_after_kills(kills.clone(), each);
        assert!(!checker.check().is_clean(), "kills at {kills:?} excused it");
    }

    let mut checker = repeated();
    checker.repeats_anywhere();
    checker.check().assert_clean();
}

#[test]
fn a_kill_excuses_no_more_repeats_than_it_may() {
    let mut checker = Checker::new();
    for n in 0..5 {
        checker.committed(Committed::new(id(n), 0, 1));
        checker.delivered(Delivered::new(id(n), 100, "one"));
        checker.delivered(Delivered::new(id(n), 200, "two"));
    }
    checker.repeats_after_kills([150, 160], 2);
    let report = checker.check();
    assert_eq!((report.repeated.len(), report.excused), (1, 4));
}

#[test]
fn an_event_that_may_be_missing_is_no_loss_but_keeps_its_order() {
    let mut checker = Checker::new();
    checker.committed(Committed::new(id(0), 0, 5).key("k"));
    checker.committed(Committed::unacknowledged(id(1), 10).key("k"));
    checker.delivered(Delivered::new(id(0), 100, "relay"));
    checker.clone().check().assert_clean();

    checker.delivered(Delivered::new(id(1), 99, "relay"));
    assert_eq!(checker.check().reordered.len(), 1, "its enqueue began after the acknowledgement");
}

#[test]
fn what_nobody_acknowledged_holds_nobody_back() {
    let mut checker = Checker::new();
    checker.committed(Committed::unacknowledged(id(0), 0).key("k"));
    checker.committed(Committed::new(id(1), 10, 15).key("k"));
    checker.delivered(Delivered::new(id(1), 100, "relay"));
    checker.delivered(Delivered::new(id(0), 110, "relay"));
    checker.check().assert_clean();
}

#[test]
fn concurrent_transactions_other_keys_and_late_repeats_are_no_reordering() {
    let mut checker = Checker::new();
    checker.committed(Committed::new(id(0), 0, 20).key("k"));
    checker.committed(Committed::new(id(1), 20, 30).key("k"));
    checker.committed(Committed::new(id(2), 40, 50).key("other"));
    checker.committed(Committed::new(id(3), 60, 70));
    for (event, at) in [(3, 100), (2, 110), (1, 120), (0, 130), (1, 140)] {
        checker.delivered(Delivered::new(id(event), at, "relay"));
    }
    checker.repeats_anywhere();
    checker.check().assert_clean();
}

#[test]
fn an_event_enqueued_again_after_an_unknown_commit_is_one_event() {
    let mut checker = Checker::new();
    checker.committed(Committed::unacknowledged(id(0), 0).key("k"));
    checker.committed(Committed::new(id(0), 50, 60).key("k"));
    let report = checker.check();
    assert_eq!((report.committed, report.lost.len()), (1, 1));
    assert_eq!((report.lost[0].began, report.lost[0].acknowledged), (0, Some(60)));
}

#[test]
#[should_panic(expected = "lost: 1\n  00000000-0000-0000-0000-000000000001 of key \"k\", \
                           enqueued at 0.000010 ms, acknowledged at 0.000015 ms\n")]
fn the_panic_of_a_failed_check_can_be_read() {
    in_turn([Some(100), None, Some(120)]).check().assert_clean();
}

#[test]
fn a_long_list_of_findings_is_cut() {
    let mut checker = Checker::new();
    for n in 0..25 {
        checker.committed(Committed::new(id(n), 0, 1));
    }
    let text = checker.check().to_string();
    assert!(text.contains("lost: 25\n") && text.contains("  and 15 more\n"), "{text}");
    assert_eq!(text.lines().count(), 1 + 12 + 3);
}

#[test]
fn a_hot_key_is_not_checked_pair_by_pair() {
    // All violate, which is the worst case: 5,000,000,000 pairs would run into the time limit.
    let mut checker = Checker::new();
    for n in 0..100_000_u64 {
        checker.committed(Committed::new(id(n.into()), 2 * n, 2 * n + 1).key("hot"));
        checker.delivered(Delivered::new(id(n.into()), 1_000_000 - n, "relay"));
    }
    assert_eq!(checker.check().reordered.len(), 99_999);
}

/// The promise as it is written, pair by pair.
fn naive_reordered(committed: &[Committed], delivered: &[Delivered]) -> BTreeSet<(Uuid, u64)> {
    let first = |id| delivered.iter().filter(|one| one.id == id).map(|one| one.at).min();
    let mut found = BTreeSet::new();
    for b in committed {
        let worst = committed
            .iter()
            .filter(|a| a.key.is_some() && a.key == b.key)
            .filter(|a| a.acknowledged.is_some_and(|at| at < b.began))
            .filter_map(|a| Some((first(a.id)?, first(b.id)?)))
            .filter(|(of_a, of_b)| of_a > of_b)
            .map(|(of_a, _)| of_a)
            .max();
        found.extend(worst.map(|worst| (b.id, worst)));
    }
    found
}

prop_compose! {
    fn an_event(n: u128)(
        key in proptest::option::of(0_u8..3),
        began in 0_u64..40,
        takes in proptest::option::weighted(0.9, 0_u64..10),
        may_be_missing in any::<bool>(),
        deliveries in proptest::collection::vec((20_u64..80, 0_u8..3), 0..3),
    ) -> (Committed, Vec<Delivered>) {
        let committed = Committed {
            id: id(n),
            key: key.map(|key| key.to_string()),
            began,
            acknowledged: takes.map(|takes| began + takes),
            may_be_missing,
        };
        let deliveries = deliveries
            .into_iter()
            .map(|(at, relay)| Delivered::new(id(n), at, relay.to_string()))
            .collect();
        (committed, deliveries)
    }
}

proptest! {
    #[test]
    fn the_checker_agrees_with_the_promise_pair_by_pair(
        events in (0_usize..24).prop_flat_map(|count| {
            (0..count as u128).map(an_event).collect::<Vec<_>>()
        }),
        unknown in 0_usize..3,
        kills in proptest::collection::vec(15_u64..85, 0..4),
        each in 0_usize..3,
    ) {
        // The last few were never committed.
        let known = events.len().saturating_sub(unknown);
        let committed: Vec<Committed> = events[..known].iter().map(|(one, _)| one.clone()).collect();
        let delivered: Vec<Delivered> = events.iter().flat_map(|(_, many)| many.clone()).collect();
        let mut checker = Checker::new();
        committed.iter().cloned().for_each(|event| checker.committed(event));
        delivered.iter().cloned().for_each(|delivery| checker.delivered(delivery));
        checker.repeats_after_kills(kills.clone(), each);
        let report = checker.check();

        let count = |event: &Committed| delivered.iter().filter(|one| one.id == event.id).count();
        let lost: BTreeSet<Uuid> = committed
            .iter()
            .filter(|event| !event.may_be_missing && count(event) == 0)
            .map(|event| event.id)
            .collect();
        prop_assert_eq!(report.lost.iter().map(|event| event.id).collect::<BTreeSet<_>>(), lost);

        let phantoms = delivered
            .iter()
            .filter(|delivery| committed.iter().all(|event| event.id != delivery.id))
            .count();
        prop_assert_eq!(report.phantoms.len(), phantoms);

        let reordered: BTreeSet<(Uuid, u64)> =
            report.reordered.iter().map(|found| (found.later.0, found.earlier.1)).collect();
        prop_assert_eq!(reordered.len(), report.reordered.len());
        prop_assert_eq!(reordered, naive_reordered(&committed, &delivered));

        let repeats: usize = committed.iter().map(|event| count(event).saturating_sub(1)).sum();
        prop_assert_eq!(report.repeated.len() + report.excused, repeats);
        prop_assert_eq!(report.excused, naive_excused(&committed, &delivered, &kills, each));
    }
}

/// The most repeats that these kills can excuse, by trying: each unit of each kill is given to one
/// repeat around it (augmenting paths).
fn naive_excused(
    committed: &[Committed],
    delivered: &[Delivered],
    kills: &[u64],
    each: usize,
) -> usize {
    let mut repeats = Vec::new();
    for event in committed {
        let mut times: Vec<u64> =
            delivered.iter().filter(|one| one.id == event.id).map(|one| one.at).collect();
        times.sort_unstable();
        repeats.extend(times.windows(2).map(|pair| (pair[0], pair[1])));
    }
    let units: Vec<u64> = kills.iter().flat_map(|kill| vec![*kill; each]).collect();
    let mut given: Vec<Option<usize>> = vec![None; units.len()];
    (0..repeats.len())
        .filter(|repeat| excuse(*repeat, &repeats, &units, &mut given, &mut BTreeSet::new()))
        .count()
}

fn excuse(
    repeat: usize,
    repeats: &[(u64, u64)],
    units: &[u64],
    given: &mut [Option<usize>],
    seen: &mut BTreeSet<usize>,
) -> bool {
    let (before, again) = repeats[repeat];
    for unit in 0..units.len() {
        if (before..=again).contains(&units[unit]) && seen.insert(unit) {
            let free = match given[unit] {
                None => true,
                Some(other) => excuse(other, repeats, units, given, seen),
            };
            if free {
                given[unit] = Some(repeat);
                return true;
            }
        }
    }
    false
}
