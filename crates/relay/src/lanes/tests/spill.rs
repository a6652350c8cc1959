//! More blocked lanes than may be in memory.

use super::*;

/// Events of so many keys have failed, and at most `most` lanes may stay in memory.
fn failed(count: u8, most: usize) -> Lanes {
    let mut lanes = Lanes::new(Rules { most_lanes: most, ..rules(OnDead::Skip, false) });
    lanes.open_shard(0, None);
    for key in 1..=count {
        lanes.offer(row(i64::from(key), key), Origin::Cold, None, now());
    }
    // With a time of its own it is the event's failure, whatever the others say.
    let after = Some(Duration::from_secs(1));
    let failed = |sequence| (sequence, Outcome::Retry { error: "no".to_owned(), after });
    let failed = dispatch(&mut lanes).into_iter().map(failed).collect();
    lanes.published(failed, now());
    settle(&mut lanes);
    lanes
}

/// The table says that all of them are blocked.
fn forget(lanes: &mut Lanes, count: i64) -> bool {
    let read = lanes.read_began();
    let blocked: Vec<Blocked> = (1..=count).map(|key| blocked(key, true, false)).collect();
    let forgot = lanes.forget(read, &blocked);
    lanes.read_merged(read);
    forgot
}

fn due(sequence: i64, key: u8) -> Fetched {
    Fetched { wait: Some(Wait::Retry), attempts: 1, ..row(sequence, key) }
}

#[test]
fn blocked_lanes_beyond_the_limit_leave_the_memory() {
    let mut lanes = failed(20, 8);
    assert_eq!(lanes.lanes.len(), 20);
    assert!(lanes.is_crowded() && !forget(&mut lanes, 0), "of none it was asked");
    assert!(forget(&mut lanes, 20) && lanes.is_spilled());
    assert_eq!(lanes.lanes.len(), 8);
    assert!(!forget(&mut lanes, 20), "that is enough");
}

#[test]
fn lanes_with_something_in_memory_stay() {
    let mut lanes = failed(20, 8);
    for key in 1..=20 {
        lanes.offer(due(i64::from(key), key), Origin::Due, None, now());
    }
    assert!(!forget(&mut lanes, 20), "all of them go on");
    assert_eq!(dispatch(&mut lanes).len(), 20);
    assert!(!forget(&mut lanes, 20));
}

/// An operator may have removed what blocks the lane before its follower was held, and set nothing free.
#[test]
fn a_lane_whose_follower_was_held_since_the_table_was_asked_stays() {
    let mut lanes = failed(20, 1);
    let read = lanes.read_began();
    assert_eq!(lanes.offer(row(300, 7), Origin::Cold, None, now()), Offered::Held);
    settle(&mut lanes);
    let seen: Vec<Blocked> = (1..=20).map(|key| blocked(key, true, false)).collect();
    assert!(lanes.forget(read, &seen));
    let kept: Vec<i64> = lanes.lanes.keys().map(|id| id.key.0).collect();
    assert_eq!(kept, [7]);
}

#[test]
fn only_lanes_that_are_not_in_memory_are_asked_for() {
    let mut lanes = failed(20, 8);
    let rows: Vec<Fetched> = (1..=21).map(|key| row(200 + i64::from(key), key)).collect();
    assert!(lanes.unknown_lanes(rows.iter()).is_empty(), "all are in memory");
    forget(&mut lanes, 20);
    let unknown = lanes.unknown_lanes(rows.iter());
    assert_eq!(unknown.len(), 13, "12 were forgotten, and one is new");
    assert!(unknown.iter().all(|lane| lane.destination == "there"));
    assert!(lanes.unknown_lanes([due(1, 1)].iter()).is_empty(), "it blocks its lane itself");
}

#[test]
fn what_blocks_a_forgotten_lane_holds_its_followers_when_it_falls_due() {
    let mut lanes = failed(20, 8);
    forget(&mut lanes, 20);
    let forgotten = (1..=20).find(|key| {
        !lanes.lanes.contains_key(&LaneId { destination: 0, key: Key(i64::from(*key)) })
    });
    let key = forgotten.unwrap();
    lanes.offer(due(i64::from(key), key), Origin::Due, None, now());
    assert_eq!(lanes.offer(row(300, key), Origin::Cold, None, now()), Offered::Held);
    assert_eq!(dispatch(&mut lanes), [i64::from(key)]);
    lanes.published(vec![(i64::from(key), Outcome::Delivered)], now());
    settle(&mut lanes);
    // Followers may have been held before the lane was forgotten: they are read back.
    let release = lanes.next_releases().pop().unwrap();
    assert_eq!(release.lane.key, Key(i64::from(key)));
    let held = |sequence| Fetched { wait: Some(Wait::Held), ..row(sequence, key) };
    lanes.released(&release, Some(vec![held(50), held(300)]), now());
    assert_eq!(dispatch(&mut lanes), [50]);
}

#[test]
fn a_lane_that_the_table_says_is_blocked_holds_what_comes() {
    let mut lanes = failed(20, 8);
    forget(&mut lanes, 20);
    let unknown = lanes.unknown_lanes([row(300, 1), row(301, 2), row(302, 3)].iter());
    for lane in &unknown {
        lanes.block_again(0, &blocked(lane.key.0, true, false));
    }
    for key in 1..=3 {
        let offered = lanes.offer(row(299 + i64::from(key), key), Origin::Cold, None, now());
        assert_eq!(offered, Offered::Held);
    }
    assert!(dispatch(&mut lanes).is_empty());
}

/// The head of a lane that was not in memory can have been delivered between the answer and its merge.
#[test]
fn a_lane_that_went_on_before_the_answer_came_is_asked_for_again_at_once() {
    let mut lanes = failed(20, 8);
    forget(&mut lanes, 20);
    let unknown = lanes.unknown_lanes((1..=20).map(|key| row(300, key)).collect::<Vec<_>>().iter());
    let lane = &unknown[0];
    assert!(!lanes.asks());
    lanes.block_again(0, &blocked(lane.key.0, true, false));
    assert!(lanes.asks());
    let asked = lanes.unsure_lanes(100);
    assert_eq!(asked, std::slice::from_ref(lane));
    let held = Fetched { key: Some(lane.key), ..row(300, 1) };
    assert_eq!(lanes.offer(held, Origin::Cold, None, now()), Offered::Held);
    settle(&mut lanes);
    let read = lanes.read_began();
    lanes.reconcile(read, Some(&asked), &[]);
    lanes.read_merged(read);
    assert_eq!(lanes.next_releases().len(), 1, "it goes on, with what was held");
}

/// Two destinations, of which the first gets all; memory for one lane.
pub(super) fn routed() -> Lanes {
    let to = |name: &str| DestinationRules { name: name.to_owned(), together: false };
    let mut lanes = Lanes::new(Rules {
        destinations: vec![to("there"), to("elsewhere")],
        route: Some(Box::new(|_| Ok(Routed { destination: 0, topic: None }))),
        most_lanes: 1,
        ..rules(OnDead::Skip, false)
    });
    lanes.open_shard(0, None);
    lanes
}

pub(super) fn left(destination: &str, key: i64) -> Blocked {
    Blocked { destination: destination.to_owned(), ..blocked(key, true, false) }
}

/// Returns the rows of each lane that is looked at.
pub(super) fn look(lanes: &mut Lanes, rows: &[(&str, Fetched)]) -> Vec<String> {
    let mut seen = Vec::new();
    while let Some(look) = lanes.next_look() {
        let of = |(at, row): &&(&str, Fetched)| {
            *at == look.lane.destination && row.key == Some(look.lane.key)
        };
        let page = rows.iter().filter(of).filter(|_| look.after.is_none());
        let page = page.map(|(_, row)| row.clone()).collect();
        if look.after.is_none() {
            seen.push(look.lane.destination.clone());
        }
        lanes.looked(&look, Some(page));
        settle(lanes);
    }
    seen
}

#[test]
fn a_lane_of_a_name_that_is_not_ours_is_in_memory_whatever_the_limit() {
    let mut lanes = routed();
    assert!(!lanes.surveyed(0, &left("there", 1), true));
    assert!(lanes.surveyed(0, &left("there", 2), true), "it stays in the table");
    assert!(lanes.surveyed(0, &left("elsewhere", 3), true), "it stays in the table");
    assert!(!lanes.surveyed(0, &left("of the past", 4), true));
    let read = lanes.read_began();
    assert!(!lanes.forget(read, &[left("there", 1), left("of the past", 4)]), "both are in doubt");
    let in_doubt: BTreeSet<Key> = lanes.doubts.keys().copied().collect();
    assert_eq!(in_doubt, BTreeSet::from([Key(1), Key(4)]));
}

#[test]
fn a_lane_that_was_left_in_the_table_is_found_at_another_destination_and_looked_at() {
    let mut lanes = routed();
    lanes.surveyed(0, &left("there", 1), true);
    lanes.surveyed(0, &left("elsewhere", 2), true);
    // What blocks a lane under another name asks, too.
    for row in [row(300, 2), due(200, 2)] {
        let unknown = lanes.unknown_lanes([row].iter());
        let names: Vec<&str> = unknown.iter().map(|lane| lane.destination.as_str()).collect();
        assert_eq!(names, ["there", "elsewhere", "unrouted"]);
    }
    lanes.block_again(0, &left("elsewhere", 2));
    assert_eq!(lanes.offer(row(300, 2), Origin::Cold, None, now()), Offered::Held);
    assert_eq!(lanes.offer(due(200, 2), Origin::Due, None, now()), Offered::Ignored);
    settle(&mut lanes);
    let seen = look(&mut lanes, &[("elsewhere", due(200, 2))]);
    assert_eq!(seen, ["elsewhere", "there", "unrouted"]);
    let releases = lanes.next_releases();
    let release = releases.iter().find(|release| release.destination == "there").unwrap();
    let held = |sequence| Fetched { wait: Some(Wait::Held), ..row(sequence, 2) };
    lanes.released(release, Some(vec![held(200), held(300)]), now());
    assert_eq!(dispatch(&mut lanes), [200]);
    assert!(lanes.unknown_lanes([due(200, 2)].iter()).is_empty(), "its key is known now");
}

/// Otherwise it could be forgotten and looked at again and again.
#[test]
fn a_lane_whose_head_fell_due_while_it_was_looked_at_stays_until_that_is_read_again() {
    let mut lanes = routed();
    lanes.surveyed(0, &left("there", 1), true);
    lanes.surveyed(0, &left("there", 2), true);
    lanes.block_again(0, &left("there", 2));
    assert_eq!(lanes.offer(due(200, 2), Origin::Due, None, now()), Offered::Ignored);
    look(&mut lanes, &[("there", due(200, 2))]);
    assert!(lanes.take_due_again());
    let read = lanes.read_began();
    assert!(!lanes.forget(read, &[left("there", 2)]));
    assert_eq!(lanes.offer(due(200, 2), Origin::Due, None, now()), Offered::Accepted);
    assert_eq!(dispatch(&mut lanes), [200]);
}

/// It was let in when all lanes of its key were known.
#[test]
fn a_key_that_is_in_memory_is_not_looked_at_again() {
    let mut lanes = routed();
    lanes.surveyed(0, &left("there", 1), true);
    lanes.surveyed(0, &left("there", 2), true);
    assert_eq!(lanes.offer(row(300, 3), Origin::Cold, None, now()), Offered::Accepted);
    lanes.block_again(0, &left("elsewhere", 3));
    assert!(!lanes.in_doubt(Key(3)));
    assert_eq!(dispatch(&mut lanes), [300]);
}

/// The mark of what was delivered may not be written yet when the table says that its lane is blocked.
#[test]
fn a_lane_blocked_by_what_was_just_delivered_is_asked_for_once_that_is_written() {
    let mut lanes = failed(20, 8);
    forget(&mut lanes, 20);
    let gone =
        |key: &u8| !lanes.lanes.contains_key(&LaneId { destination: 0, key: Key(i64::from(*key)) });
    let key = (1..=20).find(gone).unwrap();
    let head = i64::from(key);
    lanes.offer(due(head, key), Origin::Due, None, now());
    dispatch(&mut lanes);
    lanes.published(vec![(head, Outcome::Delivered)], now());
    let sent = lanes.next_settlements(100); // under way
    let release = lanes.next_releases().pop().unwrap();
    lanes.released(&release, Some(Vec::new()), now());
    lanes.block_again(0, &blocked(head, true, false)); // as the table was before
    assert_eq!(lanes.offer(row(300, key), Origin::Cold, None, now()), Offered::Held);
    let asked = lanes.unsure_lanes(100);
    assert_eq!(asked.len(), 1);
    let read = lanes.read_began();
    lanes.reconcile(read, Some(&asked), &[blocked(head, true, false)]);
    lanes.read_merged(read);
    assert!(!lanes.asks());
    lanes.settled(sent.iter().map(|one| one.settlement.sequence), now());
    settle(&mut lanes);
    assert!(lanes.asks());
    let asked = lanes.unsure_lanes(100);
    let read = lanes.read_began();
    lanes.reconcile(read, Some(&asked), &[]);
    lanes.read_merged(read);
    assert_eq!(lanes.next_releases().len(), 1, "it goes on, with what was held");
}

/// Nothing was held when an operator removed what blocks the lane, so nothing was set free that could tell.
#[test]
fn a_lane_is_asked_for_once_its_first_follower_is_held() {
    let mut lanes = failed(20, 100);
    let read = lanes.read_began();
    assert_eq!(lanes.offer(row(300, 7), Origin::Cold, None, now()), Offered::Held);
    lanes.read_merged(read);
    assert!(!lanes.asks(), "an operator who acts now finds nothing held");
    settle(&mut lanes);
    let key = |lanes: Vec<LaneKey>| lanes.iter().map(|lane| lane.key.0).collect::<Vec<_>>();
    assert_eq!(key(lanes.unsure_lanes(100)), [7]);
    assert_eq!(lanes.offer(row(301, 7), Origin::Cold, None, now()), Offered::Held);
    settle(&mut lanes);
    assert!(!lanes.asks(), "whoever acts from here on sets the first one free");
}

/// There may be more blocked lanes than one question can name.
#[test]
fn the_lane_that_an_operator_set_free_is_asked_for_first_and_the_others_still_have_their_turn() {
    let mut lanes = failed(20, 100);
    let all = |lanes: &mut Lanes, most| -> BTreeSet<i64> {
        lanes.blocked_lanes(most).iter().map(|lane| lane.key.0).collect()
    };
    let first = all(&mut lanes, 10);
    let key = (1..=20).find(|key| first.contains(&i64::from(*key))).unwrap();
    let freed = Fetched { wait: Some(Wait::Held), ..row(300, key) };
    for _ in 0..3 {
        assert_eq!(lanes.offer(freed.clone(), Origin::Due, None, now()), Offered::Ignored);
    }
    assert!(lanes.asks());
    let second = all(&mut lanes, 10);
    assert!(second.contains(&i64::from(key)) && second.len() == 10, "{second:?}");
    assert!(!lanes.asks());
    let third = all(&mut lanes, 10);
    let seen: BTreeSet<i64> = first.into_iter().chain(second).chain(third).collect();
    assert_eq!(seen.len(), 20);
}

/// Of others it would be asked again and again, for nothing.
#[test]
fn only_lanes_that_can_be_forgotten_are_asked_for_when_there_are_too_many() {
    let mut lanes = failed(20, 4);
    lanes.offer(due(1, 1), Origin::Due, None, now());
    lanes.pause(&BTreeSet::from([Key(2)]), &BTreeSet::new(), now());
    lanes.offer(row(300, 3), Origin::Cold, None, now());
    assert!(lanes.is_crowded());
    let read = lanes.read_began();
    let asked = lanes.forgettable_lanes(read, 100);
    let keys: BTreeSet<i64> = asked.iter().map(|lane| lane.key.0).collect();
    assert_eq!(keys, (4..=20).collect(), "in line, paused, and with a hold under way");
    assert_eq!(lanes.forgettable_lanes(read, 5).len(), 5);

    let mut lanes = routed();
    for key in 1..=3 {
        lanes.surveyed(0, &left("of the past", key), true);
    }
    let read = lanes.read_began();
    assert!(lanes.is_crowded() && lanes.forgettable_lanes(read, 100).is_empty(), "in doubt");
}

/// An answer says nothing of lanes that it was not asked for.
#[test]
fn an_answer_frees_only_lanes_that_were_asked_for() {
    let mut lanes = failed(20, 100);
    let asked = lanes.blocked_lanes(5);
    let read = lanes.read_began();
    lanes.reconcile(read, Some(&asked), &[]);
    lanes.read_merged(read);
    assert_eq!(lanes.lanes.values().filter(|lane| lane.is_blocked()).count(), 15);
}
