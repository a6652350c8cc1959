//! Keys and destinations that an operator has paused.

use super::*;

fn pause_key(lanes: &mut Lanes, key: u8) {
    lanes.pause(&BTreeSet::from([Key(i64::from(key))]), &BTreeSet::new(), now());
}

fn resume(lanes: &mut Lanes) {
    lanes.pause(&BTreeSet::new(), &BTreeSet::new(), now());
}

#[test]
fn a_paused_key_is_held_and_comes_back_in_order() {
    let mut lanes = open(OnDead::Skip);
    for (sequence, key) in [(1, 1), (2, 1), (3, 2)] {
        lanes.offer(row(sequence, key), Origin::Cold, None, now());
    }
    assert_eq!(dispatch(&mut lanes), [1, 3]);
    pause_key(&mut lanes, 1);
    lanes.published(vec![(1, Outcome::Delivered), (3, Outcome::Delivered)], now());
    assert_eq!(lanes.offer(row(4, 1), Origin::Hot, None, now()), Offered::Held);
    assert!(dispatch(&mut lanes).is_empty());
    let written = settle(&mut lanes);
    assert_eq!(written.iter().filter(|(_, v)| matches!(v, Verdict::Held { .. })).count(), 2);
    assert_eq!(lanes.in_memory(), 0);
    assert!(lanes.next_releases().is_empty());
    assert!(lanes.is_idle(), "a pause is no work left to do");
    resume(&mut lanes);
    let release = lanes.next_releases().pop().unwrap();
    let held = |sequence| Fetched { wait: Some(Wait::Held), ..row(sequence, 1) };
    lanes.released(&release, Some(vec![held(2), held(4)]), now());
    for sequence in [2, 4] {
        assert_eq!(dispatch(&mut lanes), [sequence]);
        lanes.published(vec![(sequence, Outcome::Delivered)], now());
    }
}

#[test]
fn what_comes_back_through_an_old_place_in_line_is_counted_as_what_it_is() {
    let mut lanes = open(OnDead::Skip);
    lanes.offer(row(1, 1), Origin::Hot, None, now());
    pause_key(&mut lanes, 1);
    settle(&mut lanes);
    resume(&mut lanes);
    let release = lanes.next_releases().pop().unwrap();
    let held = Fetched { wait: Some(Wait::Held), ..row(1, 1) };
    lanes.released(&release, Some(vec![held]), now());
    assert_eq!(lanes.waiting(), (0, 1));
    assert_eq!(dispatch(&mut lanes), [1]);
    assert_eq!(lanes.waiting(), (0, 0));
}

#[test]
fn what_was_let_go_and_held_again_is_not_taken_for_new_by_a_slow_read() {
    let stopped: [fn(&mut Lanes); 2] = [
        |lanes| pause_key(lanes, 1),
        |lanes| {
            lanes.pause(&BTreeSet::new(), &BTreeSet::from(["there"]), now());
            resume(lanes);
        },
    ];
    for stop in stopped {
        let mut lanes = open(OnDead::Skip);
        lanes.offer(row(1, 1), Origin::Cold, None, now());
        let slow = lanes.read_began();
        pause_key(&mut lanes, 1);
        settle(&mut lanes);
        resume(&mut lanes);
        let release = lanes.next_releases().pop().unwrap();
        let held = || vec![Fetched { wait: Some(Wait::Held), ..row(1, 1) }];
        lanes.released(&release, Some(held()), now());
        stop(&mut lanes);
        assert_eq!(lanes.offer(row(1, 1), Origin::Hot, None, now()), Offered::Ignored);
        lanes.read_merged(slow);
        assert_eq!(lanes.in_memory(), 0);
        resume(&mut lanes);
        let release = lanes.next_releases().pop().unwrap();
        lanes.released(&release, Some(held()), now());
        assert_eq!(dispatch(&mut lanes), [1]);
    }
}

#[test]
fn what_blocked_a_lane_is_held_with_the_others_when_its_key_is_paused() {
    let mut lanes = open(OnDead::Skip);
    lanes.offer(row(1, 1), Origin::Cold, None, now());
    dispatch(&mut lanes);
    lanes.published(vec![(1, Outcome::retry("no"))], now());
    settle(&mut lanes);
    pause_key(&mut lanes, 1);
    let due = Fetched { wait: Some(Wait::Retry), attempts: 1, ..row(1, 1) };
    assert_eq!(lanes.offer(due, Origin::Due, None, now()), Offered::Held);
    assert!(matches!(settle(&mut lanes)[..], [(1, Verdict::Held { .. })]));
    resume(&mut lanes);
    assert_eq!(lanes.next_releases().len(), 1);
}

#[test]
fn a_lane_that_an_earlier_owner_held_stays_so_while_its_key_is_paused() {
    let mut lanes = open(OnDead::Skip);
    pause_key(&mut lanes, 1);
    let held = blocked(1, false, false);
    lanes.block(0, &held);
    assert!(lanes.next_releases().is_empty());
    assert_eq!(lanes.offer(row(5, 1), Origin::Cold, None, now()), Offered::Held);
    settle(&mut lanes);
    assert!(lanes.next_releases().is_empty());
    resume(&mut lanes);
    assert_eq!(lanes.next_releases().len(), 1);
}

#[test]
fn a_replay_of_a_paused_key_is_written_back_and_stays_a_replay() {
    let mut lanes = open(OnDead::Skip);
    let replay = || Fetched { wait: Some(Wait::Replay), ..row(1, 1) };
    lanes.offer(replay(), Origin::Due, None, now());
    pause_key(&mut lanes, 1);
    assert!(dispatch(&mut lanes).is_empty());
    assert!(matches!(settle(&mut lanes)[..], [(1, Verdict::Retry { replay: true, .. })]));
    assert_eq!(lanes.offer(replay(), Origin::Due, None, now()), Offered::Held);
}

#[test]
fn a_paused_destination_takes_nothing_is_not_tried_and_burns_nothing() {
    let mut lanes = keys(2);
    assert_eq!(lanes.next_batch(0, 1, i64::MAX).0[0].sequence, 1);
    lanes.pause(&BTreeSet::new(), &BTreeSet::from(["there"]), now());
    assert!(dispatch(&mut lanes).is_empty());
    lanes.published(vec![(1, Outcome::retry("no"))], now());
    assert!(settle(&mut lanes).is_empty(), "nothing has happened to it");
    assert_eq!((lanes.in_memory(), lanes.feed()), (0, Feed::Stands));
    assert_eq!(lanes.take_skipped(), [(0, 1)]);
    assert!(lanes.wake_breakers(later(100_000)).is_none());
    assert!(!lanes.wants_probe(0));
    assert_eq!((state(&lanes), lanes.breakers_open()), ("closed", 0));
    resume(&mut lanes);
    assert!(lanes.catch_up(0, vec![row(1, 1), row(2, 2)], now()));
    assert_eq!(dispatch(&mut lanes), [1, 2]);
}

#[test]
fn under_global_everything_waits_behind_a_paused_key() {
    let mut lanes = Lanes::new(rules(OnDead::Skip, true));
    lanes.open_shard(0, None);
    for sequence in 1..=3 {
        lanes.offer(row(sequence, sequence as u8), Origin::Cold, None, now());
    }
    assert_eq!(dispatch(&mut lanes), [1]);
    pause_key(&mut lanes, 2);
    lanes.published(vec![(1, Outcome::Delivered)], now());
    assert!(dispatch(&mut lanes).is_empty());
    resume(&mut lanes);
    assert_eq!(dispatch(&mut lanes), [2]);
}

#[test]
fn under_global_everything_waits_behind_an_event_of_a_paused_destination() {
    let named = |name: &str| DestinationRules { name: name.to_owned(), together: true };
    let rules = Rules {
        destinations: vec![named("left"), named("right")],
        route: Some(Box::new(|envelope| {
            let destination = u16::from(envelope.sequence == 2);
            Ok(Routed { destination, topic: None })
        })),
        ..rules(OnDead::Skip, true)
    };
    let mut lanes = Lanes::new(rules);
    lanes.open_shard(0, None);
    for sequence in 1..=3 {
        lanes.offer(row(sequence, sequence as u8), Origin::Cold, None, now());
    }
    lanes.pause(&BTreeSet::new(), &BTreeSet::from(["right"]), now());
    assert_eq!(dispatch(&mut lanes), [1], "what follows is another destination's");
    lanes.published(vec![(1, Outcome::Delivered)], now());
    assert!(dispatch(&mut lanes).is_empty() && lanes.next_batch(1, 9, i64::MAX).0.is_empty());
    assert!(lanes.stands_behind_a_pause());
    resume(&mut lanes);
    assert!(!lanes.stands_behind_a_pause());
    assert_eq!(lanes.next_batch(1, 9, i64::MAX).0[0].sequence, 2);
}

#[test]
fn claimed_rows_of_a_paused_key_are_given_back() {
    let mut lanes = Lanes::new(Rules { unordered: true, ..rules(OnDead::Skip, false) });
    let lease = Arc::new(RowLease { token: "r#1".to_owned() });
    for sequence in 1..=2 {
        lanes.offer(row(sequence, sequence as u8), Origin::Cold, Some(&lease), now());
    }
    pause_key(&mut lanes, 1);
    assert_eq!(dispatch(&mut lanes), [2]);
    assert!(matches!(settle(&mut lanes)[..], [(1, Verdict::Retry { .. })]));
    assert_eq!(lanes.offer(row(3, 1), Origin::Cold, Some(&lease), now()), Offered::Held);
}

#[test]
fn the_mark_of_a_discard_frees_no_lane_of_a_paused_key_that_another_event_blocks() {
    let mut lanes = open(OnDead::Park);
    lanes.block(0, &blocked(1, true, false));
    pause_key(&mut lanes, 1);
    let marked = Fetched { wait: Some(Wait::Held), ..row(2, 1) };
    assert_eq!(lanes.offer(marked, Origin::Due, None, now()), Offered::Ignored);
    assert!(lanes.asks());
    resume(&mut lanes);
    assert!(lanes.next_releases().is_empty());
}

#[test]
fn the_mark_of_a_discard_stays_while_its_destination_is_paused() {
    let mut lanes = open(OnDead::Park);
    lanes.block(0, &blocked(1, false, true));
    lanes.pause(&BTreeSet::new(), &BTreeSet::from(["there"]), now());
    let marked = Fetched { wait: Some(Wait::Held), ..row(2, 1) };
    assert_eq!(lanes.offer(marked, Origin::Due, None, now()), Offered::Ignored);
    assert!(settle(&mut lanes).is_empty());
    assert!(lanes.asks());
}

/// Its key is paused and its lane has an event in flight while its destination is tried with others.
#[test]
fn a_paused_key_keeps_its_order_when_its_destination_is_tried_again() {
    let mut lanes = open(OnDead::Skip);
    for (sequence, key) in [(10, 1), (11, 1), (12, 2), (13, 3)] {
        lanes.offer(row(sequence, key), Origin::Cold, None, now());
    }
    assert_eq!(dispatch(&mut lanes), [10, 12, 13]);
    for sequence in [12, 13] {
        lanes.published(vec![(sequence, Outcome::unavailable("down"))], now());
    }
    assert_eq!((state(&lanes), lanes.take_skipped()), ("open", vec![(0, 11)]));
    pause_key(&mut lanes, 1);
    lanes.wake_breakers(later(100));
    lanes.catch_up(0, vec![row(11, 1), row(12, 2), row(13, 3)], later(100));
    assert_eq!(dispatch(&mut lanes), [12]);
    lanes.published(vec![(10, Outcome::timed_out("no answer"))], later(100));
    assert_eq!(lanes.take_skipped(), [(0, 10)]);
    lanes.published(vec![(12, Outcome::Delivered)], later(100));
    assert_eq!(state(&lanes), "closed");
    resume(&mut lanes);
    lanes.catch_up(0, vec![row(10, 1), row(11, 1), row(13, 3)], later(100));
    assert_eq!(dispatch(&mut lanes), [10, 13]);
}
