//! Where an event of the table is: what explains that it waits, and what does not.

use posthaste_core::{Status, store::EventRecord};

use super::*;

/// The event of this number and key as the table shows it.
fn record(sequence: i64, key: u8) -> EventRecord {
    EventRecord {
        status: Status::New,
        sequence,
        shard: 0,
        event_id: None,
        content: Ok(envelope(sequence, key)),
        payload_bytes: 2,
        attempts: 0,
        not_before: None,
        wait: None,
        sent_at: None,
        dead_at: None,
        last_error: None,
        destination: None,
        locked_by: None,
    }
}

/// The row of the same event, whose key is the one of its content.
fn real(sequence: i64, key: u8) -> Fetched {
    Fetched { key: envelope(sequence, key).event.key(), ..row(sequence, key) }
}

fn place(lanes: &Lanes, sequence: i64, key: u8) -> Whereabouts {
    lanes.whereabouts(&record(sequence, key), 10)
}

const UNREAD: Whereabouts = Whereabouts::Unread { destination: 0, behind: false };

#[test]
fn an_event_in_hand_is_in_line_or_accounted_for() {
    let mut lanes = open(OnDead::Skip);
    for (sequence, key) in [(1, 1), (2, 1), (3, 2)] {
        lanes.offer(real(sequence, key), Origin::Cold, None, now());
    }
    assert_eq!(place(&lanes, 1, 1), Whereabouts::InLine(0));
    assert_eq!(place(&lanes, 2, 1), Whereabouts::Accounted, "behind the first of its key");
    lanes.next_batch(0, 10, i64::MAX);
    assert_eq!(place(&lanes, 1, 1), Whereabouts::Accounted, "in flight");
    assert_eq!(place(&lanes, 2, 1), Whereabouts::Accounted);
}

#[test]
fn an_event_that_was_not_read_waits_only_for_its_key_its_destination_or_a_pause() {
    let mut lanes = open(OnDead::Skip);
    assert_eq!(place(&lanes, 7, 1), UNREAD);
    let elsewhere = EventRecord { shard: 9, ..record(7, 1) };
    assert_eq!(lanes.whereabouts(&elsewhere, 10), Whereabouts::Elsewhere);

    lanes.offer(real(1, 1), Origin::Cold, None, now());
    assert_eq!(place(&lanes, 7, 1), Whereabouts::Accounted, "an earlier one of its key is in hand");
    assert_eq!(place(&lanes, 7, 2), UNREAD, "that is none of another key's");
    lanes.next_batch(0, 10, i64::MAX);
    lanes.published(vec![(1, Outcome::retry("no"))], now());
    lanes.judge_all(now());
    assert_eq!(place(&lanes, 7, 1), Whereabouts::Accounted, "its lane is blocked");

    let key = envelope(7, 3).event.key().unwrap();
    lanes.pause(&BTreeSet::from([key]), &BTreeSet::new(), now());
    assert_eq!(place(&lanes, 7, 3), Whereabouts::Accounted, "its key is paused");
    assert_eq!(place(&lanes, 7, 2), UNREAD);
    lanes.pause(&BTreeSet::new(), &BTreeSet::from(["there"]), now());
    assert_eq!(place(&lanes, 7, 2), Whereabouts::Accounted, "its destination is paused");
    lanes.pause(&BTreeSet::new(), &BTreeSet::new(), now());
    assert_eq!(place(&lanes, 7, 2), UNREAD);
}

#[test]
fn a_destination_with_enough_to_do_explains_what_is_not_read() {
    let mut lanes = Lanes::new(Rules { cold_queue: 20, ..rules(OnDead::Skip, false) });
    lanes.open_shard(0, None);
    for n in 1..=10 {
        lanes.offer(real(i64::from(n), n), Origin::Cold, None, now());
    }
    assert_eq!(place(&lanes, 77, 77), UNREAD);
    lanes.offer(real(11, 11), Origin::Cold, None, now());
    assert_eq!(place(&lanes, 77, 77), Whereabouts::Accounted);
}

/// Nobody postpones it: if it does not go, that is a stall.
#[test]
fn a_replay_does_not_wait_for_a_doubt_about_the_lanes_of_its_key() {
    let mut lanes = super::spill::routed();
    let key = envelope(1, 1).event.key().unwrap();
    lanes.surveyed(0, &blocked(key.0, false, true), true);
    assert!(lanes.in_doubt(key));
    assert_eq!(place(&lanes, 1, 1), Whereabouts::Accounted);
    let replay = EventRecord { wait: Some(Wait::Replay), ..record(1, 1) };
    assert_eq!(lanes.whereabouts(&replay, 10), UNREAD);
    lanes.offer(Fetched { wait: Some(Wait::Replay), ..real(1, 1) }, Origin::Due, None, now());
    assert_eq!(lanes.whereabouts(&replay, 10), Whereabouts::InLine(0));
}
