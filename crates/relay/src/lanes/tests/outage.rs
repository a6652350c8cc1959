//! Failures that are an event's own, and failures of its destination.

use super::*;
use crate::read::due_by_now;

/// Two keys could not be reached: the breaker is open.
fn in_an_outage() -> Lanes {
    let mut lanes = keys(2);
    dispatch(&mut lanes);
    let down = || Outcome::unavailable("down");
    lanes.published(vec![(1, down()), (2, down())], now());
    lanes
}

#[test]
fn two_keys_that_cannot_be_reached_open_the_breaker_and_no_attempt_is_counted() {
    let mut lanes = keys(3);
    assert_eq!(dispatch(&mut lanes), [1, 2, 3]);
    lanes.published(vec![(1, Outcome::unavailable("down"))], now());
    assert_eq!(state(&lanes), "closed", "one may be its own failure");
    lanes.published(vec![(2, Outcome::unavailable("down"))], now());
    assert_eq!(state(&lanes), "open");
    lanes.published(vec![(3, Outcome::retry("no answer"))], now());
    assert!(settle(&mut lanes).is_empty(), "nothing is written: nothing has happened to them");
    assert_eq!(lanes.in_memory(), 0);
    assert_eq!(lanes.take_skipped(), [(0, 1)]);
    assert_eq!(lanes.offer(row(4, 4), Origin::Cold, None, now()), Offered::Ignored);
    assert_eq!(lanes.feed(), Feed::Stands);
}

#[test]
fn an_event_that_fails_while_a_later_one_is_accepted_is_counted_against_itself() {
    let mut lanes = keys(1);
    dispatch(&mut lanes);
    lanes.offer(row(2, 2), Origin::Cold, None, now());
    lanes.published(vec![(1, Outcome::unavailable("this one not"))], now());
    assert_eq!(dispatch(&mut lanes), [2]);
    lanes.published(vec![(2, Outcome::Delivered)], now());
    let written = lanes.next_settlements(10);
    assert_eq!(written[1].settlement.attempts, 1);
    assert!(matches!(written[1].settlement.verdict, Verdict::Retry { .. }));
    assert_eq!(state(&lanes), "closed");
}

#[test]
fn an_answer_to_what_was_sent_before_a_failure_proves_nothing() {
    let mut lanes = keys(10);
    assert_eq!(dispatch(&mut lanes).len(), 10);
    lanes.published(vec![(2, Outcome::retry("no answer"))], now());
    // Accepted before the destination went down, perhaps.
    lanes.published(vec![(1, Outcome::Delivered)], now());
    assert_eq!(settle(&mut lanes), [(1, Verdict::Sent)], "2 is not decided yet");
    for sequence in 3..10 {
        lanes.published(vec![(sequence, Outcome::retry("no answer"))], now());
    }
    assert_eq!(state(&lanes), "closed", "seven in a row may be chance");
    lanes.published(vec![(10, Outcome::retry("no answer"))], now());
    assert_eq!(state(&lanes), "open");
    assert!(settle(&mut lanes).is_empty(), "nothing is counted");
}

#[test]
fn what_was_not_tried_says_nothing_of_its_destination() {
    let mut lanes = keys(2);
    assert_eq!(dispatch(&mut lanes), [1, 2]);
    lanes.published(vec![(1, Outcome::retry("no answer"))], now());
    lanes.offer(row(3, 3), Origin::Cold, None, now());
    assert_eq!(dispatch(&mut lanes), [3]);
    lanes.published(vec![(3, Outcome::held())], now());
    let written = settle(&mut lanes);
    assert!(matches!(written[..], [(3, Verdict::Retry { .. })]), "1 is not decided: {written:?}");
}

#[test]
fn a_time_without_end_is_cut_and_the_relay_goes_on() {
    let can_be_reached = |written: &[(i64, Verdict)]| match written {
        [(_, Verdict::Retry { after, .. })] => now().checked_add(*after).is_some(),
        _ => false,
    };
    let mut lanes = keys(2);
    dispatch(&mut lanes);
    let after = Some(Duration::MAX);
    lanes.published(vec![(1, Outcome::Retry { error: String::new(), after })], now());
    let written = settle(&mut lanes);
    assert!(can_be_reached(&written), "{written:?}");
    lanes.published(vec![(2, Outcome::Unavailable { error: String::new(), after })], now());
    let written = settle(&mut lanes);
    assert!(can_be_reached(&written), "{written:?}");
}

fn in_an_hour() -> Outcome {
    let after = Some(Duration::from_hours(1));
    Outcome::Unavailable { error: "answered with status 429".to_owned(), after }
}

#[test]
fn a_time_that_a_destination_names_delays_its_event_and_no_other() {
    let mut lanes = keys(3);
    assert_eq!(dispatch(&mut lanes), [1, 2, 3]);
    lanes.published(vec![(1, in_an_hour())], now());
    lanes.published(vec![(2, in_an_hour())], now());
    lanes.published(vec![(3, in_an_hour())], now());
    assert_eq!(state(&lanes), "closed");
    let written = lanes.next_settlements(10);
    assert_eq!(written.len(), 3);
    for unsettled in written {
        let Verdict::Retry { after, .. } = unsettled.settlement.verdict else { panic!() };
        assert_eq!((after, unsettled.settlement.attempts), (Duration::from_hours(1), 0));
    }
    lanes.offer(row(4, 4), Origin::Cold, None, now());
    assert_eq!(dispatch(&mut lanes), [4]);
}

#[test]
fn a_destination_that_names_a_time_to_all_is_tried_with_other_keys_at_the_usual_pace() {
    let mut lanes = keys(9);
    dispatch(&mut lanes);
    lanes.published((1..=8).map(|n| (n, in_an_hour())).collect(), now());
    assert_eq!(state(&lanes), "open", "eight in a row");
    // It was under way when the breaker opened.
    lanes.published(vec![(9, in_an_hour())], now());
    assert_eq!(settle(&mut lanes).len(), 9, "all come again in an hour");
    for (key, at, next) in [(10, 100, 300), (11, 300, 700)] {
        lanes.wake_breakers(later(at));
        assert_eq!(state(&lanes), "half_open", "after {at} ms");
        let sequence = i64::from(key);
        lanes.offer(row(sequence, key), Origin::Cold, None, later(at));
        assert_eq!(dispatch(&mut lanes), [sequence]);
        lanes.published(vec![(sequence, in_an_hour())], later(at));
        assert!(matches!(settle(&mut lanes)[..], [(_, Verdict::Retry { .. })]));
        assert_eq!(lanes.wake_breakers(later(at)), Some(later(next)));
    }
    lanes.wake_breakers(later(700));
    lanes.offer(row(12, 12), Origin::Cold, None, later(700));
    assert_eq!(dispatch(&mut lanes), [12]);
    lanes.published(vec![(12, Outcome::Delivered)], later(700));
    assert_eq!(state(&lanes), "closed");
}

fn refused() -> Outcome {
    Outcome::retry("it breaks its connection")
}

/// Ten events that were refused while another one was taken, and nothing else.
fn ten_that_were_refused() -> Lanes {
    that_were_refused(10)
}

fn that_were_refused(events: u8) -> Lanes {
    let mut lanes = keys(events + 1);
    let last = i64::from(events) + 1;
    let mut first = dispatch(&mut lanes);
    while first.len() <= usize::from(events) {
        first.extend(dispatch(&mut lanes));
    }
    let outcome = |&n: &i64| (n, if n == last { Outcome::Delivered } else { refused() });
    lanes.published(first.iter().map(outcome).collect(), now());
    let written = lanes.next_settlements(first.len());
    let counted: u32 = written.iter().map(|one| one.settlement.attempts).sum();
    assert_eq!(counted, u32::from(events));
    lanes.settled(written.iter().map(|one| one.settlement.sequence), now());
    lanes
}

fn fall_due(lanes: &mut Lanes, attempts: u32) {
    all_fall_due(lanes, 10, attempts);
}

fn all_fall_due(lanes: &mut Lanes, events: i64, attempts: u32) {
    for sequence in 1..=events {
        let due = Fetched { wait: Some(Wait::Retry), attempts, ..row(sequence, sequence as u8) };
        lanes.offer(due, Origin::Due, None, now());
    }
}

#[test]
fn events_that_were_refused_while_others_were_taken_end_dead_with_nobody_else_around() {
    let mut lanes = ten_that_were_refused();
    for attempts in 1..=2 {
        fall_due(&mut lanes, attempts);
        assert_eq!(dispatch(&mut lanes).len(), 10, "after {attempts} attempts");
        lanes.published((1..=10).map(|n| (n, refused())).collect(), now());
        assert_eq!(state(&lanes), "closed", "its breaker has nothing to do with them");
        let written = lanes.next_settlements(20);
        for unsettled in &written {
            let Settlement { attempts: counted, verdict, .. } = &unsettled.settlement;
            assert_eq!(*counted, attempts + 1);
            assert_eq!(matches!(verdict, Verdict::Dead { .. }), attempts == 2, "{verdict:?}");
        }
        lanes.settled(written.iter().map(|one| one.settlement.sequence), now());
    }
}

#[test]
fn an_outage_in_which_very_many_are_refused_again_costs_few_of_them_an_attempt() {
    let mut lanes = that_were_refused(40);
    all_fall_due(&mut lanes, 40, 1);
    let mut under_way = dispatch(&mut lanes);
    while under_way.len() < 40 {
        under_way.extend(dispatch(&mut lanes));
    }
    for sequence in under_way {
        lanes.published(vec![(sequence, refused())], now());
    }
    assert_eq!(state(&lanes), "open");
    let written = lanes.next_settlements(100);
    let counted = written.iter().filter(|one| one.settlement.attempts > 1).count();
    assert_eq!((written.len(), counted), (40, 16));
}

#[test]
fn an_outage_costs_an_event_that_was_refused_before_no_attempt() {
    let mut lanes = ten_that_were_refused();
    fall_due(&mut lanes, 1);
    dispatch(&mut lanes);
    lanes.published((1..=10).map(|n| (n, Outcome::unavailable("down"))).collect(), now());
    assert_eq!(state(&lanes), "open");
    let written = lanes.next_settlements(20);
    assert!(written.iter().all(|one| one.settlement.attempts == 1), "{written:?}");
    lanes.settled(written.iter().map(|one| one.settlement.sequence), now());
    // What was known of them before the outage is forgotten.
    lanes.wake_breakers(later(100));
    lanes.offer(row(12, 12), Origin::Cold, None, later(100));
    assert_eq!(dispatch(&mut lanes), [12]);
    lanes.published(vec![(12, Outcome::Delivered)], later(100));
    settle(&mut lanes);
    fall_due(&mut lanes, 1);
    dispatch(&mut lanes);
    lanes.published((1..=10).map(|n| (n, refused())).collect(), later(100));
    assert_eq!(state(&lanes), "open", "it answers all of them so");
}

#[test]
fn two_poisoned_keys_alone_are_counted_and_not_taken_for_an_outage() {
    let mut lanes = keys(2);
    dispatch(&mut lanes);
    lanes.published(vec![(1, Outcome::retry("no")), (2, Outcome::retry("no"))], now());
    assert_eq!(state(&lanes), "closed");
    let written = lanes.next_settlements(10);
    assert_eq!(written.iter().map(|one| one.settlement.attempts).collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn a_failure_with_nobody_else_around_is_its_own() {
    let mut lanes = keys(1);
    dispatch(&mut lanes);
    lanes.published(vec![(1, Outcome::retry("no"))], now());
    assert!(matches!(settle(&mut lanes)[..], [(1, Verdict::Retry { .. })]));
    assert_eq!(state(&lanes), "closed");
}

#[test]
fn probes_go_alone_take_turns_over_keys_and_wait_longer_each_time() {
    let mut lanes = in_an_outage();
    lanes.take_skipped();
    let page = || vec![row(1, 1), row(2, 2), row(3, 1)];
    assert_eq!(lanes.wake_breakers(later(99)), Some(later(100)), "not yet");
    assert_eq!(state(&lanes), "open");
    lanes.wake_breakers(later(100));
    assert_eq!(state(&lanes), "half_open");
    assert!(
        !lanes.catch_up(0, page(), later(100)),
        "the cursor stays: only one of them is in hand"
    );
    assert_eq!(dispatch(&mut lanes), [1]);
    lanes.published(vec![(1, Outcome::retry("still down"))], later(100));
    assert_eq!(lanes.wake_breakers(later(299)), Some(later(300)), "twice as long");
    lanes.wake_breakers(later(300));
    lanes.catch_up(0, page(), later(300));
    assert_eq!(dispatch(&mut lanes), [2], "another key");
    lanes.published(vec![(2, Outcome::Delivered)], later(300));
    assert_eq!(state(&lanes), "closed");
    // What was passed over is not overtaken before its own cursor has caught up, but by other keys.
    assert_eq!(lanes.offer(row(4, 1), Origin::Cold, None, now()), Offered::Ignored);
    assert_eq!(lanes.offer(row(5, 5), Origin::Cold, None, now()), Offered::Accepted);
    assert!(lanes.catch_up(0, page(), later(300)));
    assert_eq!(dispatch(&mut lanes), [5, 1]);
    lanes.caught_up(0);
    assert_eq!(lanes.offer(row(4, 1), Origin::Cold, None, now()), Offered::Accepted);
}

fn late() -> Outcome {
    Outcome::timed_out("no answer")
}

/// One event alone has timed out, and so has the first probe with it.
fn in_a_silence() -> Lanes {
    let mut lanes = keys(1);
    dispatch(&mut lanes);
    lanes.published(vec![(1, late())], now());
    lanes.wake_breakers(later(100));
    lanes.catch_up(0, vec![row(1, 1)], later(100));
    assert_eq!(dispatch(&mut lanes), [1]);
    lanes.published(vec![(1, late())], later(200));
    lanes
}

#[test]
fn an_event_alone_does_not_die_of_a_destination_that_hangs() {
    let mut lanes = keys(1);
    let mut at = 0;
    for round in 0..20 {
        assert_eq!(dispatch(&mut lanes), [1], "round {round}");
        lanes.published(vec![(1, late())], later(at));
        assert_eq!((state(&lanes), settle(&mut lanes)), ("open", vec![]), "round {round}");
        at += 10_000;
        lanes.wake_breakers(later(at));
        lanes.catch_up(0, vec![row(1, 1)], later(at));
    }
    assert_eq!(dispatch(&mut lanes), [1]);
    lanes.published(vec![(1, Outcome::Delivered)], later(at));
    assert_eq!(state(&lanes), "closed");
}

#[test]
fn an_event_that_times_out_while_others_are_taken_is_counted_against_itself() {
    let mut lanes = keys(1);
    dispatch(&mut lanes);
    lanes.offer(row(2, 2), Origin::Cold, None, now());
    assert_eq!(dispatch(&mut lanes), [2]);
    lanes.published(vec![(2, Outcome::Delivered)], now());
    settle(&mut lanes);
    lanes.published(vec![(1, late())], later(30_000));
    assert_eq!(state(&lanes), "closed");
    assert_eq!(lanes.next_settlements(10)[0].settlement.attempts, 1);
}

#[test]
fn several_keys_that_time_out_together_are_an_outage() {
    let mut lanes = keys(3);
    dispatch(&mut lanes);
    lanes.published(vec![(3, Outcome::Delivered)], now());
    settle(&mut lanes);
    lanes.published(vec![(1, late())], now());
    lanes.published(vec![(2, late())], now());
    assert_eq!((state(&lanes), settle(&mut lanes)), ("open", vec![]));
}

#[test]
fn a_poisoned_event_that_hangs_is_found_out_when_another_is_taken() {
    let mut lanes = in_a_silence();
    lanes.wake_breakers(later(1_000));
    lanes.catch_up(0, vec![row(1, 1), row(2, 2)], later(1_000));
    assert_eq!(dispatch(&mut lanes), [2], "another key");
    lanes.published(vec![(2, Outcome::Delivered)], later(1_000));
    assert_eq!(state(&lanes), "closed");
    settle(&mut lanes);
    lanes.catch_up(0, vec![row(1, 1)], later(1_000));
    assert_eq!(dispatch(&mut lanes), [1]);
    lanes.published(vec![(1, late())], later(2_000));
    assert_eq!(state(&lanes), "closed", "it is the event, and not its destination");
    let written = lanes.next_settlements(10);
    assert_eq!((written[0].settlement.sequence, written[0].settlement.attempts), (1, 1));
}

#[test]
fn a_probe_that_hangs_does_not_keep_another_key_from_trying() {
    let mut lanes = in_a_silence();
    lanes.wake_breakers(later(1_000));
    lanes.catch_up(0, vec![row(1, 1)], later(1_000));
    assert_eq!(dispatch(&mut lanes), [1]);
    assert_eq!(lanes.wake_breakers(later(2_000)), Some(later(6_000)));
    assert!(!lanes.wants_probe(0));
    lanes.wake_breakers(later(6_000));
    assert!(lanes.wants_probe(0), "1 is still under way");
    lanes.catch_up(0, vec![row(1, 1), row(2, 2)], later(6_000));
    assert_eq!(dispatch(&mut lanes), [2]);
    lanes.published(vec![(2, Outcome::Delivered)], later(6_000));
    assert_eq!(state(&lanes), "closed");
}

#[test]
fn probes_go_round_all_keys_and_not_only_two() {
    let mut lanes = in_a_silence();
    let mut probed = Vec::new();
    for round in 1..=4 {
        let at = later(round * 10_000);
        lanes.wake_breakers(at);
        lanes.catch_up(0, vec![row(1, 1), row(2, 2), row(3, 3)], at);
        let sent = dispatch(&mut lanes);
        lanes.published(vec![(sent[0], late())], at);
        probed.extend(sent);
    }
    assert_eq!(probed, [2, 3, 1, 2]);
}

#[test]
fn a_retry_that_was_tried_last_lets_another_go_first() {
    let mut lanes = in_a_silence();
    let due = |sequence| Fetched {
        wait: Some(Wait::Retry),
        attempts: 1,
        ..row(sequence, sequence as u8)
    };
    lanes.wake_breakers(later(1_000));
    assert_eq!(lanes.offer(due(1), Origin::Due, None, later(1_000)), Offered::Held);
    assert_eq!(lanes.offer(due(2), Origin::Due, None, later(1_000)), Offered::Accepted);
    assert_eq!(dispatch(&mut lanes), [2]);
    lanes.published(vec![(2, late())], later(1_000));
    settle(&mut lanes);
    lanes.wake_breakers(later(10_000));
    assert_eq!(lanes.offer(due(2), Origin::Due, None, later(10_000)), Offered::Held);
    settle(&mut lanes);
    assert_eq!(lanes.offer(due(2), Origin::Due, None, later(10_100)), Offered::Accepted, "alone");
}

#[test]
fn a_held_event_is_tried_again_when_the_probe_was_lost() {
    let mut lanes = in_an_outage();
    let held = blocked(9, false, false);
    lanes.block(0, &held);
    lanes.wake_breakers(later(100));
    let release = lanes.next_releases().pop().unwrap();
    let rows = || Some(vec![Fetched { wait: Some(Wait::Held), ..row(9, 9) }]);
    lanes.released(&release, rows(), later(100));
    // It is put back before it was handed over.
    lanes.pause(&BTreeSet::new(), &BTreeSet::from(["there"]), later(100));
    lanes.wake_breakers(later(110));
    assert!(lanes.next_releases().is_empty());
    lanes.pause(&BTreeSet::new(), &BTreeSet::new(), later(120));
    lanes.wake_breakers(later(120));
    let release = lanes.next_releases().pop().unwrap();
    lanes.released(&release, rows(), later(120));
    assert_eq!(dispatch(&mut lanes), [9]);
    lanes.published(vec![(9, Outcome::Delivered)], later(120));
    assert_eq!(state(&lanes), "closed");
}

#[test]
fn a_lane_without_held_events_makes_room_for_another_to_try() {
    let mut lanes = in_an_outage();
    for key in [8, 9] {
        lanes.block(0, &blocked(key, false, false));
    }
    let again = lanes.wake_breakers(later(100));
    assert_eq!(again, Some(later(5_100)), "it looks again, should this come to nothing");
    let release = lanes.next_releases().pop().unwrap();
    assert_eq!(release.lane.key, Key(8));
    lanes.released(&release, Some(Vec::new()), later(100));
    lanes.wake_breakers(later(101));
    let release = lanes.next_releases().pop().unwrap();
    assert_eq!(release.lane.key, Key(9));
    let rows = vec![Fetched { wait: Some(Wait::Held), ..row(9, 9) }];
    lanes.released(&release, Some(rows), later(101));
    assert_eq!(dispatch(&mut lanes), [9]);
}

#[test]
fn what_waits_behind_a_delayed_event_is_passed_over_with_what_was_before_it() {
    let mut lanes = Lanes::new(Rules {
        destinations: vec![DestinationRules { name: "there".to_owned(), together: true }],
        ..rules(OnDead::Skip, false)
    });
    lanes.open_shard(0, None);
    lanes.offer(row(2, 1), Origin::Cold, None, now());
    lanes.offer(row(1, 1), Origin::Due, None, now());
    assert_eq!(dispatch(&mut lanes), [2, 1]);
    lanes.offer(row(3, 1), Origin::Cold, None, now());
    lanes.published(
        vec![(2, Outcome::unavailable("down")), (1, Outcome::retry("behind it"))],
        now(),
    );
    assert_eq!(state(&lanes), "open");
    assert_eq!(lanes.take_skipped(), [(0, 2)]);
    assert!(matches!(settle(&mut lanes)[..], [(1, Verdict::Retry { .. })]), "3 would overtake 2");
}

#[test]
fn a_delayed_event_that_is_put_back_comes_again_behind_what_was_before_it() {
    let mut lanes = open(OnDead::Skip);
    lanes.offer(row(1, 1), Origin::Cold, None, now());
    lanes.offer(row(2, 1), Origin::Due, None, now());
    lanes.pause(&BTreeSet::new(), &BTreeSet::from(["there"]), now());
    assert_eq!(lanes.take_skipped(), [(0, 1)]);
    assert!(settle(&mut lanes).is_empty(), "2 would block the lane of 1");
    assert_eq!(lanes.offer(row(2, 1), Origin::Due, None, now()), Offered::Ignored);
    lanes.pause(&BTreeSet::new(), &BTreeSet::new(), now());
    assert_eq!(lanes.offer(row(2, 1), Origin::Due, None, now()), Offered::Ignored);
    assert!(lanes.catch_up(0, vec![row(1, 1), row(2, 1)], now()));
    assert_eq!(dispatch(&mut lanes), [1]);
    lanes.published(vec![(1, Outcome::Delivered)], now());
    assert_eq!(dispatch(&mut lanes), [2]);
}

/// A destination that is behind: of a million events its own cursor has half.
fn behind() -> Lanes {
    let mut lanes = open(OnDead::Skip);
    lanes.pause(&BTreeSet::new(), &BTreeSet::from(["there"]), now());
    lanes.offer(row(500_001, 1), Origin::Cold, None, now());
    assert_eq!(lanes.take_skipped(), [(0, 500_001)]);
    lanes.set_cursor(1_000_000);
    lanes.pause(&BTreeSet::new(), &BTreeSet::new(), now());
    lanes
}

fn offer_due(lanes: &mut Lanes, rows: Vec<Fetched>) {
    for row in due_by_now(rows, 1_000_000) {
        lanes.offer(row, Origin::Due, None, now());
    }
}

#[test]
fn a_delayed_event_does_not_set_the_cursor_of_its_destination_back() {
    let mut lanes = behind();
    // Its own cursor brings the second in its place.
    offer_due(&mut lanes, vec![row(5, 1), row(700_000, 2)]);
    assert!(lanes.take_skipped().is_empty(), "half a million events would be read again");
    assert_eq!(dispatch(&mut lanes), [5], "nothing before it was passed over");
    // Of key 1 there is more to come, which was written later.
    lanes.published(vec![(5, Outcome::Delivered)], now());
    assert!(lanes.catch_up(0, vec![row(500_001, 1), row(700_000, 2)], now()));
    assert_eq!(dispatch(&mut lanes), [500_001, 700_000]);
}

#[test]
fn an_outage_does_not_set_a_cursor_back_to_a_delayed_event() {
    let mut lanes = behind();
    offer_due(&mut lanes, vec![row(5, 1)]);
    lanes.pause(&BTreeSet::new(), &BTreeSet::from(["there"]), now());
    assert!(lanes.take_skipped().is_empty());
    // It blocks its lane in the table, so that 500,001 does not overtake it.
    assert!(matches!(settle(&mut lanes)[..], [(5, Verdict::Retry { .. })]));
    offer_due(&mut lanes, vec![row(6, 2)]);
    assert!(lanes.take_skipped().is_empty());
    assert!(matches!(settle(&mut lanes)[..], [(6, Verdict::Retry { .. })]));
}

#[test]
fn a_delayed_event_that_falls_due_in_an_outage_stays_behind_held_ones() {
    let mut lanes = open(OnDead::Skip);
    lanes.pause(&BTreeSet::new(), &BTreeSet::from(["there"]), now());
    lanes.block(0, &blocked(1, false, false));
    assert_eq!(lanes.offer(row(3, 1), Origin::Due, None, now()), Offered::Held);
    assert!(matches!(settle(&mut lanes)[..], [(3, Verdict::Held { .. })]));
}

#[test]
fn a_delayed_event_for_which_there_is_no_room_stays_due() {
    let mut lanes = Lanes::new(Rules {
        destinations: vec![
            DestinationRules { name: "there".to_owned(), together: false },
            DestinationRules { name: "elsewhere".to_owned(), together: false },
        ],
        route: Some(Box::new(|_| Ok(Routed { destination: 0, topic: None }))),
        cold_queue: 2,
        ..rules(OnDead::Skip, false)
    });
    lanes.open_shard(0, None);
    lanes.set_cursor(1_000_000);
    offer_due(&mut lanes, vec![row(5, 1), row(6, 2), row(7, 3)]);
    assert_eq!((dispatch(&mut lanes), lanes.take_skipped()), (vec![5, 6], vec![]));
    lanes.published(vec![(5, Outcome::Delivered), (6, Outcome::Delivered)], now());
    settle(&mut lanes);
    assert!(!lanes.is_idle(), "7 is to be read again");
    lanes.due_walk_began();
    offer_due(&mut lanes, vec![row(7, 3)]);
    assert_eq!(dispatch(&mut lanes), [7]);
    lanes.published(vec![(7, Outcome::Delivered)], now());
    settle(&mut lanes);
    assert!(lanes.is_idle());
}

#[test]
fn nothing_is_written_of_a_delayed_event_behind_one_that_is_under_way() {
    let mut lanes = open(OnDead::Skip);
    lanes.offer(row(1, 1), Origin::Cold, None, now());
    assert_eq!(dispatch(&mut lanes), [1]);
    lanes.offer(row(2, 1), Origin::Due, None, now());
    lanes.pause(&BTreeSet::new(), &BTreeSet::from(["there"]), now());
    assert!(settle(&mut lanes).is_empty(), "the next owner would hand it over before 1");
    assert_eq!(lanes.in_memory(), 1);
    assert_eq!(lanes.offer(row(2, 1), Origin::Due, None, now()), Offered::Ignored);
}

#[test]
fn a_replay_tries_the_destination_when_there_is_nothing_else() {
    let mut lanes = in_an_outage();
    lanes.wake_breakers(later(100));
    let replay = Fetched { wait: Some(Wait::Replay), ..row(9, 9) };
    assert_eq!(lanes.offer(replay, Origin::Due, None, later(100)), Offered::Accepted);
    assert_eq!(dispatch(&mut lanes), [9]);
    lanes.published(vec![(9, Outcome::Delivered)], later(100));
    assert_eq!(state(&lanes), "closed");
}

#[test]
fn a_delayed_event_does_not_block_a_lane_that_another_blocks() {
    let mut lanes = open(OnDead::Skip);
    let failed = blocked(1, true, false);
    lanes.block(0, &failed);
    lanes.pause(&BTreeSet::new(), &BTreeSet::from(["there"]), now());
    lanes.offer(row(3, 1), Origin::Due, None, now());
    let due = Fetched { wait: Some(Wait::Retry), attempts: 1, ..row(2, 1) };
    assert_eq!(lanes.offer(due, Origin::Due, None, now()), Offered::Ignored, "it stays due");
    let written = settle(&mut lanes);
    assert!(matches!(written[..], [(3, Verdict::Held { .. })]), "{written:?}");
}

#[test]
fn a_retry_that_falls_due_during_an_outage_stays_in_the_table() {
    let mut lanes = in_an_outage();
    let due = || Fetched { wait: Some(Wait::Retry), attempts: 4, ..row(9, 9) };
    assert_eq!(lanes.left_out(), ["there"]);
    assert_eq!(lanes.offer(due(), Origin::Due, None, now()), Offered::Ignored);
    assert!(lanes.next_settlements(10).is_empty(), "nothing has happened to it");
    lanes.wake_breakers(later(100));
    assert!(lanes.take_due_again(), "it is read when the destination is to be tried");
    assert!(lanes.left_out().is_empty());
    assert_eq!(lanes.offer(due(), Origin::Due, None, later(100)), Offered::Accepted);
    assert_eq!(dispatch(&mut lanes), [9]);
    lanes.published(vec![(9, Outcome::unavailable("down"))], later(100));
    let written = lanes.next_settlements(10);
    assert_eq!(written[0].settlement.attempts, 4, "no attempt is counted");
    assert!(matches!(written[0].settlement.verdict, Verdict::Retry { .. }));
}

/// It is written once, and blocks its lane from then on.
#[test]
fn a_delayed_event_that_falls_due_during_an_outage_is_written_once() {
    let mut lanes = open(OnDead::Skip);
    lanes.pause(&BTreeSet::new(), &BTreeSet::from(["there"]), now());
    assert_eq!(lanes.offer(row(9, 9), Origin::Due, None, now()), Offered::Held);
    assert!(matches!(settle(&mut lanes)[..], [(9, Verdict::Retry { .. })]));
    let due = Fetched { wait: Some(Wait::Retry), ..row(9, 9) };
    assert_eq!(lanes.offer(due, Origin::Due, None, now()), Offered::Ignored);
    assert!(settle(&mut lanes).is_empty());
}

#[test]
fn replays_and_retries_of_a_paused_destination_come_when_it_goes_on() {
    let mut lanes = open(OnDead::Skip);
    lanes.pause(&BTreeSet::new(), &BTreeSet::from(["there"]), now());
    for wait in [Wait::Retry, Wait::Replay, Wait::Suspect] {
        let due = Fetched { wait: Some(wait), ..row(9, 9) };
        assert_eq!(lanes.offer(due, Origin::Due, None, now()), Offered::Ignored);
    }
    assert_eq!(lanes.take_left_replays(), Some(false));
    assert!(settle(&mut lanes).is_empty());
    lanes.wake_breakers(now());
    assert!(!lanes.take_due_again());
    lanes.pause(&BTreeSet::new(), &BTreeSet::new(), now());
    lanes.wake_breakers(now());
    assert!(lanes.take_due_again());
}

#[test]
fn retries_that_are_due_in_an_outage_are_not_written_again_and_again() {
    let mut lanes = in_an_outage();
    let mut due: BTreeMap<i64, u64> = (10..1_010).map(|sequence| (sequence, 0)).collect();
    let (mut written, mut tried) = (0, BTreeSet::new());
    for at in (0..60_000).step_by(50) {
        lanes.wake_breakers(later(at));
        lanes.take_due_again();
        let mut rows: Vec<(u64, i64)> = due.iter().map(|(one, since)| (*since, *one)).collect();
        rows.retain(|(since, _)| *since <= at);
        rows.sort_unstable();
        for (_, sequence) in rows {
            let key = Some(Key(sequence));
            let retry = Fetched { key, wait: Some(Wait::Retry), attempts: 1, ..row(sequence, 0) };
            lanes.offer(retry, Origin::Due, None, later(at));
        }
        for sequence in dispatch(&mut lanes) {
            tried.insert(sequence);
            lanes.published(vec![(sequence, Outcome::unavailable("down"))], later(at));
        }
        for Unsettled { settlement, .. } in lanes.next_settlements(10_000) {
            let Verdict::Retry { after, .. } = settlement.verdict else { panic!("{settlement:?}") };
            assert_eq!(settlement.attempts, 1);
            due.insert(settlement.sequence, at + after.as_millis() as u64);
            lanes.settled([settlement.sequence], later(at));
            written += 1;
        }
    }
    assert!(tried.len() >= 10, "they take turns: {tried:?}");
    assert!(written <= 2 * tried.len(), "{written} writes, {} were tried", tried.len());
    assert!(!lanes.take_due_again(), "as long as it takes nothing");
    let at = later(100_000);
    lanes.wake_breakers(at);
    assert!(lanes.take_due_again(), "one of them may be tried");
}

/// One key has more events than a page, and its destination never takes them.
#[test]
fn a_key_with_many_events_does_not_hide_the_others_from_probes() {
    let mut lanes = in_a_silence();
    lanes.wake_breakers(later(10_000));
    let mut walked = HashSet::new();
    let first = (1..=100).map(|sequence| row(sequence, 1)).collect();
    let probed = lanes.probe_new_key(0, first, &mut walked, later(10_000));
    assert_eq!(probed, Probed::OnlyKnown, "key 1 was tried");
    assert!(lanes.wants_probe(0) && dispatch(&mut lanes).is_empty());
    let second = || vec![row(101, 1), row(102, 2), row(103, 3), row(104, 2)];
    assert_eq!(lanes.probe_new_key(0, second(), &mut walked, later(10_000)), Probed::Tried);
    assert_eq!(dispatch(&mut lanes), [102]);
    lanes.published(vec![(102, late())], later(10_000));
    lanes.wake_breakers(later(20_000));
    assert_eq!(lanes.probe_new_key(0, second(), &mut walked, later(20_000)), Probed::Tried);
    assert_eq!(dispatch(&mut lanes), [103]);
    lanes.published(vec![(103, late())], later(20_000));
    lanes.wake_breakers(later(30_000));
    assert_eq!(lanes.probe_new_key(0, second(), &mut walked, later(30_000)), Probed::OnlyKnown);
    assert_eq!(walked, HashSet::from([1, 2, 3]));
    let met = vec![row(105, 3)];
    assert_eq!(lanes.probe_new_key(0, met, &mut walked, later(30_000)), Probed::OnlyKnown);
    assert_eq!(lanes.probe_new_key(0, Vec::new(), &mut walked, later(30_000)), Probed::Nothing);
}

/// Its first event was met on an earlier page, and could not go.
#[test]
fn a_probe_of_a_later_page_does_not_overtake_an_earlier_event_of_its_key() {
    let mut lanes = in_a_silence();
    lanes.wake_breakers(later(10_000));
    let mut walked = HashSet::from([2]);
    let page = vec![row(102, 2), row(103, 3)];
    assert_eq!(lanes.probe_new_key(0, page, &mut walked, later(10_000)), Probed::Tried);
    assert_eq!(dispatch(&mut lanes), [103]);
}
