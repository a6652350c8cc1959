//! Lanes: what goes when, what waits for what, and what is written of it.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet, VecDeque},
    sync::OnceLock,
    time::Instant,
};

use posthaste_core::{
    Event,
    store::{Blocked, LaneKey},
};
use proptest::prelude::*;

use posthaste_core::{
    Envelope,
    store::{Fetched, Identity, Wait},
    transport::Outcome,
};

use super::*;

mod global;
mod left;
mod outage;
mod pause;
mod release;
mod rows;
mod schedule;
mod shares;
mod spill;
mod whereabouts;

fn one() -> Vec<DestinationRules> {
    vec![DestinationRules { name: "there".to_owned(), together: false }]
}

fn rules(on_dead: OnDead, global: bool) -> Rules {
    Rules {
        global,
        unordered: false,
        on_dead,
        max_attempts: 3,
        wait: Box::new(|n| Duration::from_millis(u64::from(n))),
        destinations: one(),
        route: None,
        cold_queue: 1_000,
        budget: Budget::new(64 << 20),
        most_lanes: 1_000,
    }
}

fn now() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

fn envelope(sequence: i64, key: u8) -> Envelope {
    Envelope {
        topic: None,
        sequence,
        attempts: 0,
        replay: 0,
        created_at: jiff_epoch(),
        event: Event::builder("E").aggregate("A", key).raw_json("{}").build().unwrap(),
    }
}

fn jiff_epoch() -> jiff::Timestamp {
    jiff::Timestamp::UNIX_EPOCH
}

fn row(sequence: i64, key: u8) -> Fetched {
    Fetched {
        identity: Identity::default(),
        sequence,
        shard: 0,
        key: Some(Key(i64::from(key))),
        attempts: 0,
        wait: None,
        bytes: 2,
        content: Ok(Box::new(envelope(sequence, key))),
    }
}

fn open(on_dead: OnDead) -> Lanes {
    let mut lanes = Lanes::new(rules(on_dead, false));
    lanes.open_shard(0, None);
    lanes
}

fn keys(count: u8) -> Lanes {
    let mut lanes = open(OnDead::Skip);
    for key in 1..=count {
        lanes.offer(row(i64::from(key), key), Origin::Cold, None, now());
    }
    lanes
}

/// What the table says of a lane of the only destination.
fn blocked(key: i64, waiting: bool, parked: bool) -> Blocked {
    Blocked { destination: "there".to_owned(), key: Key(key), waiting, parked }
}

fn later(millis: u64) -> Instant {
    now() + Duration::from_millis(millis)
}

fn state(lanes: &Lanes) -> &'static str {
    lanes.breakers()[0].state
}

fn dispatch(lanes: &mut Lanes) -> Vec<i64> {
    lanes.next_batch(0, 100, i64::MAX).0.iter().map(|envelope| envelope.sequence).collect()
}

/// Writes everything that waits to be written, and says so. Gives what it was.
fn settle(lanes: &mut Lanes) -> Vec<(i64, Verdict)> {
    let written: Vec<_> = lanes
        .next_settlements(100)
        .into_iter()
        .map(|unsettled| (unsettled.settlement.sequence, unsettled.settlement.verdict))
        .collect();
    lanes.settled(written.iter().map(|(sequence, _)| *sequence), now());
    written
}

#[test]
fn events_of_one_key_go_one_after_the_other_and_keys_side_by_side() {
    let mut lanes = open(OnDead::Skip);
    for (sequence, key) in [(1, 1), (2, 1), (3, 2)] {
        assert_eq!(lanes.offer(row(sequence, key), Origin::Cold, None, now()), Offered::Accepted);
    }
    assert_eq!(dispatch(&mut lanes), [1, 3]);
    lanes.published(vec![(1, Outcome::Delivered)], now());
    assert_eq!(dispatch(&mut lanes), [2]);
}

#[test]
fn a_failed_event_blocks_only_its_own_lane_and_its_followers_are_marked_held_once() {
    let mut lanes = open(OnDead::Skip);
    for (sequence, key) in [(1, 1), (2, 1), (3, 2)] {
        lanes.offer(row(sequence, key), Origin::Cold, None, now());
    }
    dispatch(&mut lanes);
    lanes.published(vec![(1, Outcome::retry("no"))], now());
    lanes.published(vec![(3, Outcome::Delivered)], now());
    let written = settle(&mut lanes);
    assert!(matches!(written[0], (3, Verdict::Sent)), "{written:?}");
    assert!(matches!(written[1], (1, Verdict::Retry { .. })), "{written:?}");
    assert!(matches!(written[2], (2, Verdict::Held { .. })), "{written:?}");
    // Later followers are held as well; other keys go on.
    assert_eq!(lanes.offer(row(4, 1), Origin::Cold, None, now()), Offered::Held);
    assert_eq!(lanes.offer(row(5, 2), Origin::Cold, None, now()), Offered::Accepted);
    assert_eq!(dispatch(&mut lanes), [5]);
}

#[test]
fn a_lane_passes_a_dead_event_only_after_its_death_was_written() {
    let mut lanes = open(OnDead::Skip);
    lanes.offer(row(1, 1), Origin::Cold, None, now());
    lanes.offer(row(2, 1), Origin::Cold, None, now());
    dispatch(&mut lanes);
    lanes.published(vec![(1, Outcome::dead("never"))], now());
    assert!(dispatch(&mut lanes).is_empty());
    settle(&mut lanes);
    assert_eq!(dispatch(&mut lanes), [2]);
}

#[test]
fn a_parked_lane_waits_until_an_operator_sets_its_first_follower_free() {
    let mut lanes = open(OnDead::Park);
    lanes.offer(row(1, 1), Origin::Cold, None, now());
    lanes.offer(row(2, 1), Origin::Cold, None, now());
    dispatch(&mut lanes);
    lanes.published(vec![(1, Outcome::dead("never"))], now());
    settle(&mut lanes);
    assert!(dispatch(&mut lanes).is_empty());
    let nudge = Fetched { wait: Some(Wait::Held), ..row(2, 1) };
    assert!(!lanes.asks());
    assert_eq!(lanes.offer(nudge.clone(), Origin::Due, None, now()), Offered::Ignored);
    assert!(lanes.asks(), "the table knows what blocks the lane");
    assert!(!lanes.is_idle());
    assert_eq!(lanes.unsure_lanes(100).len(), 1);
    assert!(!lanes.asks());
    let read = lanes.read_began();
    let parked = blocked(1, false, true);
    lanes.reconcile(read, None, &[parked]);
    assert!(lanes.next_releases().is_empty(), "it was for an event before that");
    lanes.reconcile(read, None, &[]);
    let release = lanes.next_releases().pop().unwrap();
    lanes.released(&release, Some(vec![nudge]), now());
    assert_eq!(dispatch(&mut lanes), [2]);
}

#[test]
fn the_tenth_failure_is_the_last_and_retry_after_burns_no_attempt() {
    let mut lanes = open(OnDead::Skip);
    let due = |attempts| Fetched { wait: Some(Wait::Retry), attempts, ..row(1, 1) };
    let patience = Outcome::Retry { error: "later".to_owned(), after: Some(Duration::ZERO) };
    lanes.offer(row(1, 1), Origin::Cold, None, now());
    for (outcome, attempts) in [(patience, 0), (Outcome::retry("1"), 1), (Outcome::retry("2"), 2)] {
        dispatch(&mut lanes);
        lanes.published(vec![(1, outcome)], now());
        let unsettled = lanes.next_settlements(1).pop().unwrap();
        assert_eq!(unsettled.settlement.attempts, attempts);
        lanes.settled([1], now());
        lanes.offer(due(attempts), Origin::Due, None, now());
    }
    dispatch(&mut lanes);
    lanes.published(vec![(1, Outcome::retry("3"))], now());
    let unsettled = lanes.next_settlements(1).pop().unwrap();
    assert_eq!(unsettled.settlement.attempts, 3);
    assert!(matches!(unsettled.settlement.verdict, Verdict::Dead { .. }));
}

#[test]
fn a_row_that_cannot_be_decoded_dies_in_its_turn_and_the_rows_behind_it_go_on() {
    let mut lanes = open(OnDead::Skip);
    lanes.offer(
        Fetched { content: Err("headers".to_owned()), ..row(1, 1) },
        Origin::Cold,
        None,
        now(),
    );
    lanes.offer(row(2, 1), Origin::Cold, None, now());
    assert!(dispatch(&mut lanes).is_empty());
    assert!(matches!(settle(&mut lanes)[0], (1, Verdict::Dead { .. })));
    assert_eq!(dispatch(&mut lanes), [2]);
}

#[test]
fn a_suspect_is_recorded_before_it_is_dispatched_and_dies_alone() {
    let mut lanes = Lanes::new(rules(OnDead::Skip, false));
    lanes.open_shard(0, Some(40));
    for sequence in 1..=40 {
        lanes.offer(row(sequence, sequence as u8), Origin::Cold, None, now());
    }
    lanes.offer(row(41, 41), Origin::Cold, None, now());
    assert_eq!(dispatch(&mut lanes), [41], "what came after the crash needs no care");
    let recorded = settle(&mut lanes);
    assert_eq!(recorded.len(), 16);
    assert!(recorded.iter().all(|(_, v)| matches!(v, Verdict::Suspect { .. })));
    assert_eq!(dispatch(&mut lanes).len(), 16);

    // The relay dies; the next owner finds 16 recorded ones and takes them one at a time.
    let mut lanes = Lanes::new(rules(OnDead::Skip, false));
    lanes.open_shard(0, Some(40));
    for sequence in 1..=16 {
        let due =
            Fetched { wait: Some(Wait::Suspect), attempts: 1, ..row(sequence, sequence as u8) };
        lanes.offer(due, Origin::Due, None, now());
    }
    dispatch(&mut lanes);
    assert_eq!(settle(&mut lanes).len(), 1);
    assert_eq!(dispatch(&mut lanes), [1]);
    lanes.published(vec![(1, Outcome::Delivered)], now());
    dispatch(&mut lanes);
    assert_eq!(settle(&mut lanes).len(), 2, "sent, and the next one's record");

    // One that was recorded as often as may be is dead without another try.
    let mut lanes = open(OnDead::Skip);
    lanes.offer(
        Fetched { wait: Some(Wait::Suspect), attempts: 3, ..row(7, 7) },
        Origin::Due,
        None,
        now(),
    );
    assert!(dispatch(&mut lanes).is_empty());
    assert!(matches!(settle(&mut lanes)[0], (7, Verdict::Dead { .. })));
}

/// A relay that has taken everything over from one that died, with a last attempt that is the first.
fn after_a_crash(rows: impl IntoIterator<Item = Fetched>) -> Lanes {
    let mut lanes = Lanes::new(Rules { max_attempts: 1, ..rules(OnDead::Skip, false) });
    lanes.open_shard(0, Some(40));
    for row in rows {
        let origin = if row.wait.is_some() { Origin::Due } else { Origin::Cold };
        lanes.offer(row, origin, None, now());
    }
    lanes
}

/// What is written of each before it is handed over: its number, attempts, and whether it is dead.
fn recorded(lanes: &mut Lanes) -> Vec<(i64, u32, bool)> {
    dispatch(lanes);
    let written: Vec<_> = lanes.next_settlements(100).into_iter().map(|u| u.settlement).collect();
    lanes.settled(written.iter().map(|one| one.sequence), now());
    let is_dead = |verdict: &Verdict| matches!(verdict, Verdict::Dead { .. });
    written.iter().map(|one| (one.sequence, one.attempts, is_dead(&one.verdict))).collect()
}

#[test]
fn only_a_suspect_that_was_alone_when_its_relay_died_is_counted() {
    let mut lanes = after_a_crash([row(1, 1), row(2, 2)]);
    assert_eq!(
        recorded(&mut lanes),
        [(1, 0, false), (2, 0, false)],
        "in a group: named, not counted"
    );
    assert_eq!(dispatch(&mut lanes), [1, 2]);

    let suspect = |sequence, attempts| Fetched {
        wait: Some(Wait::Suspect),
        attempts,
        ..row(sequence, sequence as u8)
    };
    let mut lanes = after_a_crash([suspect(1, 0), suspect(2, 0)]);
    assert_eq!(recorded(&mut lanes), [(1, 1, false)], "alone");
    assert_eq!(dispatch(&mut lanes), [1]);

    let mut lanes = after_a_crash([suspect(1, 1), suspect(2, 0)]);
    assert_eq!(
        recorded(&mut lanes),
        [(1, 1, true), (2, 1, false)],
        "2 was never handed over alone"
    );
    assert_eq!(dispatch(&mut lanes), [2]);
}

#[test]
fn a_suspect_whose_row_is_locked_makes_way_and_goes_when_that_is_free() {
    let suspect = |sequence| Fetched { wait: Some(Wait::Suspect), ..row(sequence, sequence as u8) };
    let mut lanes = Lanes::new(rules(OnDead::Skip, false));
    lanes.open_shard(0, Some(40));
    for sequence in [1, 2] {
        lanes.offer(suspect(sequence), Origin::Due, None, now());
    }
    dispatch(&mut lanes);
    assert_eq!(lanes.next_settlements(10).len(), 1, "the record of 1");
    lanes.cannot_record(1);
    let written = lanes.next_settlements(10);
    assert!(matches!(written[0].settlement.verdict, Verdict::Retry { .. }), "{written:?}");
    assert_eq!(written[0].settlement.attempts, 0);
    // The row stays locked meanwhile.
    assert_eq!(recorded(&mut lanes), [(2, 1, false)]);
    assert_eq!(dispatch(&mut lanes), [2]);
    lanes.published(vec![(2, Outcome::Delivered)], now());
    assert_eq!(settle(&mut lanes), [(2, Verdict::Sent)]);

    lanes.settled([1], now());
    let due = Fetched { wait: Some(Wait::Retry), ..row(1, 1) };
    assert_eq!(lanes.offer(due, Origin::Due, None, now()), Offered::Accepted);
    assert_eq!(recorded(&mut lanes).len(), 1);
    assert_eq!(dispatch(&mut lanes), [1]);
}

#[test]
fn a_failure_of_a_suspect_in_a_group_is_counted_as_any_other() {
    let mut lanes = Lanes::new(rules(OnDead::Skip, false));
    lanes.open_shard(0, Some(40));
    lanes.offer(row(1, 1), Origin::Cold, None, now());
    recorded(&mut lanes);
    assert_eq!(dispatch(&mut lanes), [1]);
    lanes.published(vec![(1, Outcome::retry("no"))], now());
    assert_eq!(lanes.next_settlements(1)[0].settlement.attempts, 1);
}

#[test]
fn a_replay_goes_alone_before_it_dies_of_a_crash() {
    let replay = |attempts| Fetched { wait: Some(Wait::Replay), attempts, ..row(1, 1) };
    // It stays a replay in the table: only its attempts tell that it was in a group.
    let mut lanes = after_a_crash([replay(0), row(2, 2)]);
    assert_eq!(recorded(&mut lanes), [(2, 0, false), (1, 1, false)]);
    let mut lanes = after_a_crash([replay(1), row(2, 2)]);
    assert_eq!(recorded(&mut lanes), [(1, 2, false)], "alone");
    let mut lanes = after_a_crash([replay(2)]);
    assert_eq!(recorded(&mut lanes), [(1, 2, true)]);
}

#[test]
fn what_a_read_began_before_the_settle_brings_back_is_ignored() {
    let mut lanes = open(OnDead::Skip);
    let read = lanes.read_began();
    lanes.offer(row(1, 1), Origin::Hot, None, now());
    dispatch(&mut lanes);
    lanes.published(vec![(1, Outcome::Delivered)], now());
    settle(&mut lanes);
    assert_eq!(lanes.offer(row(1, 1), Origin::Cold, None, now()), Offered::Ignored);
    lanes.read_merged(read);
    assert_eq!(lanes.in_memory(), 0);
}

#[test]
fn an_outcome_after_the_shard_was_lost_is_counted_and_written_nowhere() {
    let mut lanes = open(OnDead::Skip);
    lanes.offer(row(1, 1), Origin::Cold, None, now());
    dispatch(&mut lanes);
    lanes.lose_shards(&BTreeSet::from([0]));
    assert_eq!(lanes.busy_shards(|_| false), BTreeSet::from([0]), "not to be taken back yet");
    lanes.published(vec![(1, Outcome::Delivered)], now());
    assert_eq!((lanes.unsettled(), lanes.stats.stale_settles), (0, 1));
    assert!(lanes.busy_shards(|_| false).is_empty());
}

#[test]
fn a_number_that_an_event_in_flight_has_of_another_shard_was_given_out_again() {
    let mut lanes = open(OnDead::Skip);
    lanes.offer(row(1, 1), Origin::Cold, None, now());
    dispatch(&mut lanes);
    lanes.lose_shards(&BTreeSet::from([0]));
    lanes.open_shard(1, None);
    let other = || Fetched { shard: 1, ..row(1, 2) };
    assert!(lanes.is_reused(&other()));
    assert!(!lanes.is_reused(&row(1, 1)), "the shard is not ours");
    lanes.published(vec![(1, Outcome::Delivered)], now());
    assert!(!lanes.is_reused(&other()));
    assert_eq!(lanes.offer(other(), Origin::Cold, None, now()), Offered::Accepted);
}

#[test]
fn suspects_go_on_after_a_shard_was_lost_while_one_of_its_was_recorded() {
    let mut lanes = Lanes::new(rules(OnDead::Skip, false));
    lanes.open_shard(0, Some(40));
    lanes.open_shard(1, Some(40));
    lanes.offer(row(1, 1), Origin::Cold, None, now());
    assert!(dispatch(&mut lanes).is_empty());
    lanes.offer(Fetched { shard: 1, ..row(2, 2) }, Origin::Cold, None, now());
    let recording = lanes.next_settlements(10);
    assert_eq!(recording.len(), 1);
    lanes.lose_shards(&BTreeSet::from([0]));
    dispatch(&mut lanes);
    assert!(matches!(settle(&mut lanes)[..], [(2, Verdict::Suspect { .. })]));
    assert_eq!(dispatch(&mut lanes), [2]);
}

#[test]
fn a_shard_that_comes_back_knows_nothing_of_reads_from_before() {
    let mut lanes = open(OnDead::Skip);
    let held = blocked(1, false, false);
    lanes.block(0, &held);
    let before = lanes.next_releases().pop().unwrap();
    let hot = lanes.read_began();
    assert!(lanes.saw(hot, 0));
    lanes.lose_shards(&BTreeSet::from([0]));
    assert!(!lanes.saw(hot, 0));
    lanes.open_shard(0, None);
    lanes.block(0, &held);
    assert!(!lanes.saw(hot, 0));
    let again = lanes.next_releases().pop().unwrap();
    let rows = |sequence| Some(vec![Fetched { wait: Some(Wait::Held), ..row(sequence, 1) }]);
    // Another relay has delivered 1 meanwhile.
    lanes.released(&before, rows(1), now());
    assert!(dispatch(&mut lanes).is_empty());
    lanes.released(&again, rows(2), now());
    assert_eq!(dispatch(&mut lanes), [2]);
}

#[test]
fn hot_and_cold_are_drained_two_to_one() {
    let mut lanes = open(OnDead::Skip);
    for sequence in 0..30 {
        let origin = if sequence < 15 { Origin::Cold } else { Origin::Hot };
        lanes.offer(row(sequence, sequence as u8), origin, None, now());
    }
    let first: Vec<bool> =
        lanes.next_batch(0, 9, i64::MAX).0.iter().map(|e| e.sequence >= 15).collect();
    assert_eq!(first, [true, true, false, true, true, false, true, true, false]);
}

fn replay(sequence: i64) -> Fetched {
    Fetched { wait: Some(Wait::Replay), ..row(sequence, sequence as u8) }
}

#[test]
fn replays_let_others_go_first_and_have_one_turn_in_eight() {
    let mut lanes = open(OnDead::Skip);
    for sequence in 1..=20 {
        lanes.offer(replay(sequence), Origin::Due, None, now());
    }
    for sequence in 101..=120 {
        lanes.offer(row(sequence, sequence as u8), Origin::Cold, None, now());
    }
    let sent = dispatch(&mut lanes);
    let turns: Vec<usize> = (0..22).filter(|turn| sent[*turn] <= 20).collect();
    assert_eq!(turns, [7, 15], "{sent:?}");
    assert!(sent[22..].iter().all(|sequence| *sequence <= 20), "{sent:?}");
    assert_eq!(sent.len(), 40);
}

#[test]
fn a_replay_has_its_turn_after_many_others() {
    let mut lanes = open(OnDead::Skip);
    for sequence in 1..=300 {
        let unordered = Fetched { key: None, ..row(sequence, 0) };
        lanes.offer(unordered, Origin::Cold, None, now());
    }
    assert_eq!(lanes.next_batch(0, 299, i64::MAX).0.len(), 299);
    lanes.offer(replay(301), Origin::Due, None, now());
    assert_eq!(dispatch(&mut lanes), [301, 300]);
}

#[test]
fn replays_that_wait_leave_room_for_what_polls_read() {
    let mut lanes = open(OnDead::Skip);
    for sequence in 1..=10 {
        lanes.offer(replay(sequence), Origin::Due, None, now());
    }
    assert_eq!((lanes.cold_room(10), lanes.replay_room(10)), (10, 0));
    lanes.rules.cold_queue = 10;
    assert_eq!(lanes.take_left_replays(), None);
    assert_eq!(lanes.offer(replay(11), Origin::Due, None, now()), Offered::Ignored);
    assert_eq!(lanes.take_left_replays(), Some(true));
    assert_eq!(lanes.waiting(), (0, 10));
    assert!(!lanes.is_idle());
}

#[test]
fn nothing_behind_the_reservation_is_handed_out() {
    let mut lanes = open(OnDead::Skip);
    lanes.offer(row(1, 1), Origin::Cold, None, now());
    lanes.offer(row(20, 2), Origin::Cold, None, now());
    let (batch, wanted) = lanes.next_batch(0, 10, 10);
    assert_eq!((batch.len(), wanted), (1, Some(20)));
    assert_eq!(lanes.next_batch(0, 10, 20).0[0].sequence, 20);
}

#[test]
fn a_shard_that_is_lost_twice_is_not_taken_back_before_the_answer() {
    let mut lanes = open(OnDead::Skip);
    lanes.offer(row(1, 1), Origin::Cold, None, now());
    dispatch(&mut lanes);
    for _ in 0..2 {
        lanes.lose_shards(&BTreeSet::from([0]));
        assert_eq!(lanes.busy_shards(|_| false), BTreeSet::from([0]));
    }
    lanes.published(vec![(1, Outcome::Delivered)], now());
    assert_eq!((lanes.in_flight(), lanes.busy_shards(|_| false)), (0, BTreeSet::new()));
}

#[test]
fn events_of_one_key_fly_together_where_the_destination_takes_them_so() {
    let rules = Rules {
        destinations: vec![DestinationRules { name: "there".to_owned(), together: true }],
        ..rules(OnDead::Skip, false)
    };
    let mut lanes = Lanes::new(rules);
    lanes.open_shard(0, None);
    for sequence in 1..=4 {
        lanes.offer(row(sequence, 1), Origin::Cold, None, now());
    }
    let batch = lanes.next_batch(0, 3, i64::MAX).0;
    assert_eq!(batch.iter().map(|e| e.sequence).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(dispatch(&mut lanes).is_empty(), "4 comes behind them");
    let no = || Outcome::retry("no");
    lanes.published(vec![(1, Outcome::Delivered), (2, no()), (3, no())], now());
    let written = settle(&mut lanes);
    assert_eq!(written[0], (1, Verdict::Sent));
    assert!(matches!(written[1], (2, Verdict::Retry { .. })), "{written:?}");
    assert!(matches!(written[2..], [(3, Verdict::Held { .. }), (4, Verdict::Held { .. })]));
}

#[test]
fn followers_of_a_refused_event_come_after_it_and_no_attempt_of_theirs_is_counted() {
    let mut lanes = Lanes::new(Rules {
        destinations: vec![DestinationRules { name: "there".to_owned(), together: true }],
        ..rules(OnDead::Skip, false)
    });
    lanes.open_shard(0, None);
    for sequence in 1..=3 {
        lanes.offer(row(sequence, 1), Origin::Cold, None, now());
    }
    assert_eq!(dispatch(&mut lanes), [1, 2, 3]);
    let refused = vec![(1, Outcome::retry("no")), (2, Outcome::held()), (3, Outcome::held())];
    lanes.published(refused, now());
    let written: Vec<_> =
        lanes.next_settlements(10).into_iter().map(|one| one.settlement).collect();
    let attempts: Vec<u32> = written.iter().map(|one| one.attempts).collect();
    assert_eq!(attempts, [1, 0, 0]);
    lanes.settled(1..=3, now());
    let due = Fetched { wait: Some(Wait::Retry), attempts: 1, ..row(1, 1) };
    lanes.offer(due, Origin::Due, None, now());
    assert_eq!(dispatch(&mut lanes), [1]);
    lanes.published(vec![(1, Outcome::Delivered)], now());
    let release = lanes.next_releases().pop().unwrap();
    let held = |sequence| Fetched { wait: Some(Wait::Held), ..row(sequence, 1) };
    lanes.released(&release, Some(vec![held(2), held(3)]), now());
    assert_eq!(dispatch(&mut lanes), [2, 3]);
}

#[test]
fn an_event_without_a_route_dies_and_its_key_goes_on() {
    let rules = Rules {
        route: Some(Box::new(|envelope| match envelope.sequence {
            1 => Err("no route".to_owned()),
            _ => Ok(Routed { destination: 0, topic: Some("there".to_owned()) }),
        })),
        ..rules(OnDead::Skip, false)
    };
    let mut lanes = Lanes::new(rules);
    lanes.open_shard(0, None);
    lanes.offer(row(1, 1), Origin::Cold, None, now());
    lanes.offer(row(2, 1), Origin::Cold, None, now());
    let batch = lanes.next_batch(0, 10, i64::MAX).0;
    assert_eq!((batch[0].sequence, batch[0].topic()), (2, "there"));
    assert!(lanes.next_batch(1, 10, i64::MAX).0.is_empty());
    let written = settle(&mut lanes);
    assert!(matches!(&written[0], (1, Verdict::Dead { error, .. }) if error == "no route"));
}

#[test]
fn a_destination_whose_queue_is_full_falls_behind_and_holds_nobody_back() {
    let named = |name: &str| DestinationRules { name: name.to_owned(), together: false };
    let rules = Rules {
        destinations: vec![named("slow"), named("quick")],
        route: Some(Box::new(|envelope| {
            let destination = u16::from(envelope.sequence % 2 == 0);
            Ok(Routed { destination, topic: None })
        })),
        cold_queue: 3,
        ..rules(OnDead::Skip, false)
    };
    let mut lanes = Lanes::new(rules);
    lanes.open_shard(0, None);
    for sequence in 1..=20 {
        lanes.offer(row(sequence, sequence as u8), Origin::Cold, None, now());
        // Only the quick one takes anything.
        for envelope in lanes.next_batch(1, 10, i64::MAX).0 {
            lanes.published(vec![(envelope.sequence, Outcome::Delivered)], now());
        }
    }
    assert_eq!(lanes.stats.delivered, 10);
    assert_eq!(lanes.take_skipped(), [(0, 7)]);
    assert_eq!(lanes.feed(), Feed::Flows);
}
