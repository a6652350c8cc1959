//! Lanes that an earlier owner left.

use super::{
    spill::{left, look, routed},
    *,
};

fn held(sequence: i64, key: u8) -> Fetched {
    Fetched { wait: Some(Wait::Held), ..row(sequence, key) }
}

/// A page of a survey that began while the shard was still ours.
#[test]
fn a_survey_of_a_shard_that_was_handed_over_leaves_nothing_behind() {
    let mut lanes = open(OnDead::Skip);
    lanes.close_shard(0);
    lanes.surveyed(0, &blocked(2, false, false), true);
    lanes.lose_shards(&BTreeSet::from([0]));
    lanes.surveyed(0, &blocked(1, false, false), true);
    assert!(lanes.next_releases().is_empty(), "it is not ours to read");
    // Another relay had it meanwhile: 3 failed, 4 is held.
    lanes.open_shard(0, None);
    lanes.surveyed(0, &blocked(1, true, false), true);
    for release in lanes.next_releases() {
        lanes.released(&release, Some(vec![held(4, 1)]), now());
    }
    assert!(dispatch(&mut lanes).is_empty(), "3 waits for its next attempt");
}

#[test]
fn a_replay_goes_although_nobody_has_looked_at_the_parked_lane_of_its_key() {
    let mut lanes = routed();
    lanes.surveyed(0, &Blocked { waiting: false, parked: true, ..left("there", 1) }, true);
    let again = || Fetched { wait: Some(Wait::Replay), ..row(50, 1) };
    assert_eq!(lanes.offer(again(), Origin::Due, None, now()), Offered::Accepted);
    assert_eq!(dispatch(&mut lanes), [50]);
    lanes.published(vec![(50, Outcome::Delivered)], now());
    settle(&mut lanes);
    // An operator's pause of its key stops it, and another's does not.
    lanes.pause(&BTreeSet::from([Key(2)]), &BTreeSet::new(), now());
    assert_eq!(lanes.offer(again(), Origin::Due, None, now()), Offered::Accepted);
    assert_eq!(dispatch(&mut lanes), [50]);
    lanes.published(vec![(50, Outcome::Delivered)], now());
    settle(&mut lanes);
    lanes.pause(&BTreeSet::from([Key(1)]), &BTreeSet::new(), now());
    assert_eq!(lanes.offer(again(), Origin::Due, None, now()), Offered::Held);
}

/// The attempt of a replay is recorded first when a relay may have died of it.
#[test]
fn a_suspect_replay_goes_although_its_key_is_in_doubt_and_another_one_is_paused() {
    let mut lanes = routed();
    lanes.open_shard(0, Some(60));
    lanes.surveyed(0, &Blocked { waiting: false, parked: true, ..left("there", 1) }, true);
    lanes.pause(&BTreeSet::from([Key(2)]), &BTreeSet::new(), now());
    let again = Fetched { wait: Some(Wait::Replay), attempts: 1, ..row(50, 1) };
    assert_eq!(lanes.offer(again, Origin::Due, None, now()), Offered::Accepted);
    assert!(dispatch(&mut lanes).is_empty());
    assert!(matches!(settle(&mut lanes)[..], [(50, Verdict::Suspect { .. })]));
    assert_eq!(dispatch(&mut lanes), [50]);
}

/// A dead event of key 2 goes to another destination than it went to when it died.
fn parked(destination: &str) -> Blocked {
    Blocked { waiting: false, parked: true, ..left(destination, 2) }
}

#[test]
fn a_discard_while_a_lane_is_looked_at_is_not_lost() {
    let mut lanes = routed();
    lanes.surveyed(0, &parked("elsewhere"), true);
    assert_eq!(lanes.offer(row(300, 2), Origin::Cold, None, now()), Offered::Held);
    settle(&mut lanes);
    let first = lanes.next_look().unwrap();
    let dead = Fetched { wait: Some(Wait::Parked), ..row(200, 2) };
    lanes.looked(&first, Some(vec![dead]));
    // An operator discards it now.
    let asked = lanes.blocked_lanes(100);
    let read = lanes.read_began();
    lanes.reconcile(read, Some(&asked), &[]);
    lanes.read_merged(read);
    look(&mut lanes, &[]);
    for release in lanes.next_releases().iter().filter(|release| release.destination == "there") {
        lanes.released(release, Some(vec![held(300, 2)]), now());
    }
    assert_eq!(dispatch(&mut lanes), [300]);
}

/// Otherwise nobody asks whether an operator has acted.
#[test]
fn a_dead_event_that_a_look_has_found_in_a_lane_that_is_in_the_table_only_is_asked_for() {
    let mut lanes = routed();
    lanes.surveyed(0, &left("of the past", 2), true);
    assert!(lanes.surveyed(0, &parked("elsewhere"), true), "it stays in the table");
    assert_eq!(lanes.offer(row(300, 2), Origin::Cold, None, now()), Offered::Held);
    settle(&mut lanes);
    let dead = Fetched { wait: Some(Wait::Parked), ..row(200, 2) };
    let seen = look(&mut lanes, &[("elsewhere", dead)]);
    assert!(seen.contains(&"elsewhere".to_owned()));
    let asked = lanes.blocked_lanes(100);
    assert!(asked.iter().any(|lane| lane.destination == "elsewhere"), "{asked:?}");
    // An operator discards it.
    let read = lanes.read_began();
    lanes.reconcile(read, Some(&asked), &[]);
    lanes.read_merged(read);
    look(&mut lanes, &[]);
    assert!(!lanes.in_doubt(Key(2)));
}

/// A destination had another name for a while, and an earlier look was interrupted.
#[test]
fn a_release_that_began_before_a_look_moved_events_is_not_taken() {
    let mut lanes = open(OnDead::Skip);
    lanes.surveyed(0, &blocked(1, false, false), true);
    let before = lanes.next_releases();
    assert_eq!(before.len(), 1);
    lanes.surveyed(0, &Blocked { waiting: false, ..left("was there", 1) }, true);
    assert!(lanes.next_releases().is_empty(), "its other lane was not looked at");
    while let Some(look) = lanes.next_look() {
        let page = if look.after.is_none() { vec![held(2, 1)] } else { Vec::new() };
        lanes.looked(&look, Some(page));
        settle(&mut lanes);
    }
    lanes.released(&before[0], Some(vec![held(102, 1)]), now());
    assert!(dispatch(&mut lanes).is_empty(), "2 is held in the same lane");
    let release = lanes.next_releases().pop().unwrap();
    lanes.released(&release, Some(vec![held(2, 1), held(102, 1)]), now());
    assert_eq!(dispatch(&mut lanes), [2]);
}

#[test]
fn a_release_that_is_wanted_waits_while_its_key_is_in_doubt() {
    let mut lanes = open(OnDead::Skip);
    lanes.surveyed(0, &blocked(1, false, false), true);
    lanes.surveyed(0, &Blocked { waiting: false, ..left("was there", 1) }, true);
    assert!(lanes.next_releases().is_empty(), "its other lane was not looked at");
}

#[test]
fn a_lane_that_is_read_back_does_not_wait_until_something_of_its_parked_other_lane_comes() {
    let mut lanes = open(OnDead::Park);
    lanes.surveyed(0, &blocked(2, false, false), true);
    lanes.surveyed(0, &parked("was there"), true);
    assert!(lanes.next_releases().is_empty() && lanes.next_look().is_some());
}

/// The look writes it as held in its new lane, and nothing in the table tells what it was.
#[test]
fn a_suspect_that_a_look_has_moved_goes_alone_and_its_attempt_is_counted_first() {
    let mut lanes = routed();
    lanes.open_shard(0, Some(250));
    lanes.surveyed(0, &left("of the past", 2), true);
    let suspect = Fetched { wait: Some(Wait::Suspect), ..row(200, 2) };
    assert_eq!(lanes.offer(suspect.clone(), Origin::Due, None, now()), Offered::Ignored);
    look(&mut lanes, &[("of the past", suspect), ("of the past", held(201, 2))]);
    let release = lanes.next_releases().into_iter().find(|release| release.destination == "there");
    lanes.released(&release.unwrap(), Some(vec![held(200, 2), held(201, 2)]), now());
    // Others that may have killed the relay go in a group.
    lanes.offer(row(240, 3), Origin::Cold, None, now());
    lanes.offer(row(241, 4), Origin::Cold, None, now());
    let mut alone = Vec::new();
    for _ in 0..10 {
        let sent = dispatch(&mut lanes);
        if sent.contains(&200) {
            alone = sent.clone();
        }
        let written = lanes.next_settlements(100);
        for one in written.iter().filter(|one| one.settlement.sequence == 200) {
            if matches!(one.settlement.verdict, Verdict::Suspect { .. }) {
                assert_eq!(one.settlement.attempts, 1, "counted before it goes");
            }
        }
        lanes.settled(written.iter().map(|one| one.settlement.sequence), now());
        lanes.published(sent.into_iter().map(|one| (one, Outcome::Delivered)).collect(), now());
    }
    assert_eq!(alone, [200]);
}

/// However many lanes are read back all the time.
#[test]
fn looks_and_releases_take_turns() {
    let mut lanes = open(OnDead::Skip);
    for key in 1..=4 {
        lanes.surveyed(0, &blocked(key, false, false), true);
        let past = Blocked { waiting: false, ..left("was there", 10 + key) };
        lanes.surveyed(0, &past, true);
    }
    let reads: Vec<_> = std::iter::from_fn(|| lanes.next_read_back(1)).collect();
    let looks: Vec<bool> = reads.iter().map(|read| matches!(read, ReadBack::Look(_))).collect();
    assert_eq!(looks, [true, false].repeat(4));
}

/// What they find elsewhere than where it belongs must be written first.
#[test]
fn no_lane_is_looked_at_while_many_outcomes_wait_to_be_written() {
    const MOST: usize = 20;
    let mut lanes = open(OnDead::Skip);
    for key in 1..=50 {
        lanes.surveyed(0, &Blocked { waiting: false, ..left("was there", key) }, true);
        lanes.surveyed(0, &blocked(100 + key, false, false), true);
    }
    let (mut at, mut written) = (0, 0);
    for _ in 0..100 {
        let mut releases = 0;
        while let Some(read) = lanes.next_read_back(MOST) {
            let ReadBack::Look(look) = read else {
                releases += 1;
                continue;
            };
            assert!(lanes.unsettled() < MOST);
            let key = look.lane.key.0 as u8;
            let page = if look.after.is_some() { 0 } else { 5 };
            at += page;
            let rows = (at - page + 1..=at).map(|sequence| held(sequence, key)).collect();
            lanes.looked(&look, Some(rows));
        }
        assert!(written > 0 || releases > 0, "they read what belongs where it is");
        let batch = lanes.next_settlements(MOST);
        written += batch.len();
        lanes.settled(batch.iter().map(|one| one.settlement.sequence), now());
    }
    assert_eq!(written, 250, "in the end all of them");
}
