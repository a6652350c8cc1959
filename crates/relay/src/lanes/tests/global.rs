//! One lane for all events.

use super::*;

fn one_lane() -> Lanes {
    let mut lanes = Lanes::new(rules(OnDead::Skip, true));
    lanes.open_shard(0, None);
    lanes
}

/// They go one after the other, in this order.
fn deliver(lanes: &mut Lanes, order: impl IntoIterator<Item = i64>) {
    for sequence in order {
        assert_eq!(dispatch(lanes), [sequence]);
        lanes.published(vec![(sequence, Outcome::Delivered)], now());
    }
}

#[test]
fn a_failed_event_holds_everything_and_nothing_is_marked() {
    let mut lanes = one_lane();
    for sequence in 1..=3 {
        lanes.offer(row(sequence, sequence as u8), Origin::Cold, None, now());
    }
    assert_eq!(dispatch(&mut lanes), [1]);
    lanes.published(vec![(1, Outcome::retry("no"))], now());
    assert_eq!(settle(&mut lanes).len(), 1);
    assert!(dispatch(&mut lanes).is_empty());
    assert_eq!(lanes.offer(row(4, 4), Origin::Cold, None, now()), Offered::Accepted);
    assert!(dispatch(&mut lanes).is_empty());
    lanes.offer(
        Fetched { wait: Some(Wait::Retry), attempts: 1, ..row(1, 1) },
        Origin::Due,
        None,
        now(),
    );
    deliver(&mut lanes, 1..=4);
}

#[test]
fn a_late_commit_has_its_place_among_what_waits() {
    let mut lanes = one_lane();
    for sequence in [3, 5, 7, 4, 2] {
        lanes.offer(row(sequence, sequence as u8), Origin::Cold, None, now());
    }
    deliver(&mut lanes, [2, 3, 4, 5, 7]);
}

#[test]
fn what_is_in_line_waits_when_another_is_found_to_block() {
    let mut lanes = one_lane();
    lanes.offer(row(57, 7), Origin::Cold, None, now());
    let failed = blocked(0, true, false);
    lanes.block(0, &failed);
    assert!(dispatch(&mut lanes).is_empty());
    assert!(lanes.is_idle(), "there is nothing to do before its time has come");
    let due = Fetched { wait: Some(Wait::Retry), attempts: 1, ..row(50, 5) };
    lanes.offer(due, Origin::Due, None, now());
    deliver(&mut lanes, [50, 57]);
}

#[test]
fn an_old_place_in_line_sends_nothing_to_another_destination() {
    let destination = |name: &str| DestinationRules { name: name.to_owned(), together: false };
    let mut lanes = Lanes::new(Rules {
        destinations: vec![destination("even"), destination("odd")],
        route: Some(Box::new(|envelope| {
            Ok(Routed { destination: (envelope.sequence % 2) as u16, topic: None })
        })),
        ..rules(OnDead::Skip, true)
    });
    lanes.open_shard(0, None);
    lanes.offer(row(2, 2), Origin::Cold, None, now());
    lanes.pause(&BTreeSet::new(), &BTreeSet::from(["even"]), now());
    lanes.lose_shards(&BTreeSet::from([0]));
    lanes.open_shard(0, None);
    lanes.offer(row(3, 3), Origin::Cold, None, now());
    lanes.pause(&BTreeSet::new(), &BTreeSet::new(), now());
    assert!(dispatch(&mut lanes).is_empty());
    let batch = lanes.next_batch(1, 10, i64::MAX).0;
    assert_eq!(batch.iter().map(|envelope| envelope.sequence).collect::<Vec<_>>(), [3]);
}

#[test]
fn what_goes_nowhere_takes_room_as_well() {
    let nowhere = Rules {
        route: Some(Box::new(|_| Err("no route".to_owned()))),
        ..rules(OnDead::Park, true)
    };
    let mut lanes = Lanes::new(nowhere);
    lanes.open_shard(0, None);
    for sequence in 1..=3 {
        lanes.offer(row(sequence, 1), Origin::Cold, None, now());
    }
    assert_eq!(lanes.cold_room(10), 7);
}
