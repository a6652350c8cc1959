//! Several destinations: one that takes its time leaves the others their room, and their care.

use super::*;

/// `slow` gets the events with an even number, `quick` the others.
fn slow_and_quick() -> Lanes {
    let named = |name: &str| DestinationRules { name: name.to_owned(), together: false };
    let rules = Rules {
        destinations: vec![named("slow"), named("quick")],
        route: Some(Box::new(|envelope| {
            let destination = u16::from(envelope.sequence % 2 == 1);
            Ok(Routed { destination, topic: None })
        })),
        ..rules(OnDead::Skip, false)
    };
    Lanes::new(rules)
}

/// An event of 1 KiB and of a key of its own.
fn own(sequence: i64) -> Fetched {
    Fetched { key: Some(Key(sequence)), bytes: 1_024, ..row(sequence, 0) }
}

fn due(sequence: i64) -> Fetched {
    Fetched { wait: Some(Wait::Retry), attempts: 1, ..own(sequence) }
}

fn sent(lanes: &mut Lanes, destination: u16, most: usize) -> Vec<i64> {
    let batch = lanes.next_batch(destination, most, i64::MAX).0;
    batch.iter().map(|envelope| envelope.sequence).collect()
}

fn deliver(lanes: &mut Lanes, sequences: Vec<i64>) {
    lanes.published(sequences.into_iter().map(|one| (one, Outcome::Delivered)).collect(), now());
    let written = lanes.next_settlements(10_000);
    lanes.settled(written.iter().map(|one| one.settlement.sequence), now());
}

#[test]
fn retries_of_a_slow_destination_leave_room_for_the_others() {
    let mut lanes = slow_and_quick();
    lanes.open_shard(0, None);
    lanes.due_walk_began();
    for n in 1..=20_000 {
        lanes.offer(due(2 * n), Origin::Due, None, now());
    }
    assert!(lanes.in_memory() <= 1_000, "{} in memory", lanes.in_memory());
    assert!(lanes.budget().page().is_some(), "no page fits into the memory");
    assert_eq!(lanes.offer(own(50_001), Origin::Cold, None, now()), Offered::Accepted);
    assert_eq!(sent(&mut lanes, 1, 10), [50_001]);
    // As soon as some of them are through, there is room for more.
    let first = sent(&mut lanes, 0, 1_000);
    assert_eq!(first[..3], [2, 4, 6]);
    deliver(&mut lanes, first);
    assert!(!lanes.is_idle(), "others were left in the table");
    assert_eq!(lanes.offer(due(40_000), Origin::Due, None, now()), Offered::Accepted);
}

#[test]
fn a_backlog_keeps_no_retry_of_its_destination_from_being_read() {
    let mut lanes = slow_and_quick();
    lanes.open_shard(0, None);
    let large = |sequence| Fetched { bytes: 1 << 20, ..own(sequence) };
    while lanes.offer(large(2 * lanes.in_memory() as i64 + 2), Origin::Cold, None, now())
        == Offered::Accepted
    {}
    assert!(lanes.in_memory() > 1, "its share");
    assert_eq!(lanes.offer(due(1_000), Origin::Due, None, now()), Offered::Accepted);
}

#[test]
fn lanes_of_a_slow_destination_are_read_back_when_there_is_room() {
    let mut lanes = slow_and_quick();
    lanes.open_shard(0, None);
    // Everything of these keys is held.
    let keys: BTreeSet<Key> = (1..=20).map(Key).collect();
    lanes.pause(&keys, &BTreeSet::new(), now());
    for sequence in 1..=20 {
        lanes.offer(own(sequence), Origin::Cold, None, now());
    }
    deliver(&mut lanes, Vec::new());
    lanes.due_walk_began();
    for n in 1_001..=20_000 {
        lanes.offer(due(2 * n), Origin::Due, None, now());
    }
    lanes.pause(&BTreeSet::new(), &BTreeSet::new(), now());
    let to = |releases: &[Release]| {
        releases.iter().map(|release| release.lane.destination).collect::<Vec<_>>()
    };
    assert_eq!(to(&lanes.next_releases()), [1; 10], "to the one that has room");
    let first = sent(&mut lanes, 0, 1_000);
    deliver(&mut lanes, first);
    let first: Vec<Release> = lanes.next_releases().into_iter().take(10).collect();
    assert!(first.iter().all(|release| keys.contains(&release.lane.key)), "{first:?}");
    assert_eq!(to(&first), [0; 10]);
}

/// After a crash.
#[test]
fn suspects_of_one_destination_do_not_wait_for_those_of_another() {
    let mut lanes = slow_and_quick();
    lanes.open_shard(0, Some(100));
    for sequence in 1..=100 {
        lanes.offer(own(sequence), Origin::Cold, None, now());
    }
    let mut to_quick = Vec::new();
    for _ in 0..10 {
        // It never answers.
        let slow = sent(&mut lanes, 0, 100);
        let quick = sent(&mut lanes, 1, 100);
        assert!(quick.len() <= 16 && slow.len() <= 16, "few at a time: {quick:?} {slow:?}");
        to_quick.extend(quick.clone());
        deliver(&mut lanes, quick);
    }
    assert_eq!(to_quick.len(), 50, "{to_quick:?}");
}

/// One that was in flight when a relay died goes alone, whatever the destinations.
#[test]
fn nothing_that_may_kill_the_relay_goes_beside_what_was_in_flight_when_one_died() {
    let mut lanes = slow_and_quick();
    lanes.open_shard(0, Some(100));
    for sequence in [2, 4, 1, 3] {
        lanes.offer(own(sequence), Origin::Cold, None, now());
    }
    for sequence in [6, 7] {
        let suspect = Fetched { wait: Some(Wait::Suspect), ..own(sequence) };
        lanes.offer(suspect, Origin::Due, None, now());
    }
    let mut groups = Vec::new();
    for _ in 0..20 {
        let mut group: Vec<i64> = (0..2).flat_map(|of| sent(&mut lanes, of, 100)).collect();
        group.sort_unstable();
        deliver(&mut lanes, group.clone());
        groups.extend((!group.is_empty()).then_some(group));
    }
    for alone in [6, 7] {
        assert!(groups.contains(&vec![alone]), "{groups:?}");
    }
    assert_eq!(groups.iter().map(Vec::len).sum::<usize>(), 6, "{groups:?}");
}
