//! Lanes that were blocked and go on: held followers are read back.

use super::*;

fn held(sequence: i64) -> Fetched {
    Fetched { wait: Some(Wait::Held), ..row(sequence, 1) }
}

#[test]
fn held_followers_are_released_in_order_after_the_failed_one_is_delivered() {
    let mut lanes = open(OnDead::Skip);
    for sequence in 1..=3 {
        lanes.offer(row(sequence, 1), Origin::Cold, None, now());
    }
    dispatch(&mut lanes);
    lanes.published(vec![(1, Outcome::retry("no"))], now());
    settle(&mut lanes);
    let due = Fetched { wait: Some(Wait::Retry), attempts: 1, ..row(1, 1) };
    assert_eq!(lanes.offer(due, Origin::Due, None, now()), Offered::Accepted);
    assert_eq!(dispatch(&mut lanes), [1]);
    // Written while the head is under way: must not overtake 2 and 3.
    assert_eq!(lanes.offer(row(4, 1), Origin::Hot, None, now()), Offered::Held);
    lanes.published(vec![(1, Outcome::Delivered)], now());
    assert!(lanes.next_releases().is_empty(), "4 is not written yet");
    settle(&mut lanes);
    let release = lanes.next_releases().pop().unwrap();
    assert_eq!(release.destination, "there");
    lanes.released(&release, Some(vec![held(2), held(3), held(4)]), now());
    for sequence in [2, 3, 4] {
        assert_eq!(dispatch(&mut lanes), [sequence]);
        lanes.published(vec![(sequence, Outcome::Delivered)], now());
    }
    settle(&mut lanes);
    // Only an empty page says that there are no more.
    let last = lanes.next_releases().pop().unwrap();
    lanes.released(&last, Some(Vec::new()), now());
    assert!(lanes.next_releases().is_empty());
    assert!(lanes.is_idle());
    assert_eq!(lanes.offer(row(5, 1), Origin::Cold, None, now()), Offered::Accepted);
}

/// One of those that were read back goes back into the table: the next read begins with it.
#[test]
fn what_is_held_again_while_its_lane_is_read_back_is_not_passed_over() {
    let mut lanes = open(OnDead::Skip);
    lanes.block(0, &blocked(1, false, false));
    let release = lanes.next_releases().pop().unwrap();
    lanes.released(&release, Some(vec![held(2), held(3)]), now());
    assert_eq!(dispatch(&mut lanes), [2]);
    lanes.published(vec![(2, Outcome::retry("no"))], now());
    settle(&mut lanes);
    let due = Fetched { wait: Some(Wait::Retry), attempts: 1, ..row(2, 1) };
    assert_eq!(lanes.offer(due, Origin::Due, None, now()), Offered::Accepted);
    assert_eq!(dispatch(&mut lanes), [2]);
    lanes.published(vec![(2, Outcome::Delivered)], now());
    settle(&mut lanes);
    let release = lanes.next_releases().pop().unwrap();
    assert_eq!(release.after, 0, "3 was in memory and is held again");
}

/// The read waits for its turn when 3 comes, and looks before 3 is written as held.
#[test]
fn a_follower_that_is_held_while_its_lane_is_read_back_is_read_back_too() {
    let mut lanes = open(OnDead::Skip);
    lanes.block(0, &blocked(1, false, false));
    assert_eq!(lanes.offer(row(3, 1), Origin::Cold, None, now()), Offered::Held);
    let release = lanes.next_releases().pop().unwrap();
    settle(&mut lanes);
    lanes.released(&release, Some(Vec::new()), now());
    assert_eq!(lanes.offer(row(4, 1), Origin::Cold, None, now()), Offered::Held, "3 comes first");
    settle(&mut lanes);
    let release = lanes.next_releases().pop().unwrap();
    lanes.released(&release, Some(vec![held(3), held(4)]), now());
    assert_eq!(dispatch(&mut lanes), [3]);
}

#[test]
fn a_blocked_lane_that_is_no_longer_blocked_in_the_table_goes_on() {
    let mut lanes = open(OnDead::Park);
    lanes.offer(row(1, 1), Origin::Cold, None, now());
    dispatch(&mut lanes);
    let early = lanes.read_began();
    lanes.published(vec![(1, Outcome::dead("never"))], now());
    settle(&mut lanes);
    // This read began before the death was written: its silence says nothing.
    lanes.reconcile(early, None, &[]);
    lanes.read_merged(early);
    assert_eq!(lanes.offer(row(2, 1), Origin::Cold, None, now()), Offered::Held);
    settle(&mut lanes);
    let read = lanes.read_began();
    lanes.reconcile(read, None, &[]);
    lanes.read_merged(read);
    let release = lanes.next_releases().pop().unwrap();
    lanes.released(&release, Some(vec![Fetched { wait: Some(Wait::Held), ..row(2, 1) }]), now());
    assert_eq!(dispatch(&mut lanes), [2]);
}

#[test]
fn a_lane_of_a_new_shard_stays_blocked_when_an_older_read_does_not_name_it() {
    let mut lanes = open(OnDead::Skip);
    let early = lanes.read_began();
    // The shard is acquired while that read is under way, which asks for other shards.
    let blocked = blocked(1, true, false);
    lanes.block(0, &blocked);
    lanes.reconcile(early, None, &[]);
    lanes.read_merged(early);
    assert!(lanes.next_releases().is_empty(), "its followers overtake what blocks it");
    assert_eq!(lanes.offer(row(2, 1), Origin::Cold, None, now()), Offered::Held);
}

/// Its events are not taken any more, so it would be read back again and again.
#[test]
fn a_lane_of_a_shard_that_is_being_handed_over_is_not_read_back() {
    let mut lanes = open(OnDead::Skip);
    lanes.offer(row(1, 1), Origin::Cold, None, now());
    lanes.offer(row(2, 1), Origin::Cold, None, now());
    dispatch(&mut lanes);
    lanes.published(vec![(1, Outcome::retry("no"))], now());
    settle(&mut lanes);
    let due = Fetched { wait: Some(Wait::Retry), attempts: 1, ..row(1, 1) };
    lanes.offer(due, Origin::Due, None, now());
    assert_eq!(dispatch(&mut lanes), [1]);
    lanes.close_shard(0);
    lanes.published(vec![(1, Outcome::Delivered)], now());
    assert!(lanes.next_releases().is_empty());
    settle(&mut lanes);
    assert!(lanes.next_releases().is_empty());
    assert!(lanes.busy_shards(|_| false).is_empty());
}

#[test]
fn a_destination_is_tried_with_a_held_lane_of_a_shard_that_stays() {
    let mut lanes = open(OnDead::Skip);
    lanes.open_shard(1, None);
    let stays = |sequence, key| Fetched { shard: 1, ..row(sequence, key) };
    lanes.block(0, &blocked(1, true, false));
    lanes.block(1, &blocked(4, false, false));
    let due = Fetched { wait: Some(Wait::Retry), attempts: 1, ..row(1, 1) };
    lanes.offer(due, Origin::Due, None, now());
    lanes.offer(stays(2, 2), Origin::Cold, None, now());
    lanes.offer(stays(3, 3), Origin::Cold, None, now());
    assert_eq!(dispatch(&mut lanes), [1, 2, 3]);
    lanes.close_shard(0);
    lanes.published(vec![(1, Outcome::Delivered)], now());
    let down = || Outcome::unavailable("down");
    lanes.published(vec![(2, down()), (3, down())], now());
    assert_eq!(state(&lanes), "open");
    let before = lanes.next_releases().pop().unwrap();
    lanes.released(&before, None, now());
    lanes.wake_breakers(later(100));
    let lane = |release: &Release| release.lane.key;
    assert_eq!(lanes.next_releases().iter().map(lane).collect::<Vec<_>>(), [Key(4)]);
}
