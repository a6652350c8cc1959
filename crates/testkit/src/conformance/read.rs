//! Finding events under shard leases, without writing.

use std::{collections::BTreeSet, fmt::Display, time::Duration};

use jiff::{SignedDuration, Timestamp};
use posthaste_core::{
    Event, Key,
    store::{Blocked, Position, Verdict, Wait},
};
use posthaste_stores::Dialect;

use super::{
    Subject,
    relays::{
        BROKER, dead, event, events, held, parked, relay, retry, sent, sequences, settlement,
        suspect,
    },
};

const HOUR: Duration = Duration::from_hours(1);

fn delayed(aggregate_id: impl Display, by: SignedDuration) -> Event {
    let at = Timestamp::now().checked_add(by).unwrap();
    let event = Event::builder("Happened").aggregate("Thing", aggregate_id).raw_json("{}");
    event.deliver_at(at).build().unwrap()
}

/// Pages come in the order of their sequence, hold no more than was asked for, and end.
pub async fn reading_ahead_comes_in_order_and_in_pages<DB: Dialect>(subject: &Subject<DB>) {
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&events(10)).await;
    let expected: Vec<i64> = enqueued.iter().map(|one| one.sequence).collect();
    let owner = outbox.owner().await;
    let (mut position, mut found) = (owner.position.clone(), Vec::new());
    for (size, caught_up) in [(4, false), (4, false), (2, true)] {
        let page = outbox.store.read_ahead(&owner.shards(), &position, 4).await.unwrap();
        assert_eq!(page.rows.len(), size);
        assert_eq!(page.caught_up, caught_up);
        assert_eq!(page.position.sequence, page.rows.last().unwrap().sequence);
        found.extend(sequences(&page.rows));
        position = page.position;
    }
    assert_eq!(found, expected);
    let page = outbox.store.read_ahead(&owner.shards(), &position, 4).await.unwrap();
    assert!(page.rows.is_empty() && page.caught_up);
    assert!(page.position.sequence >= position.sequence);

    let next = outbox.enqueue_one(&event("next")).await;
    let page = outbox.store.read_ahead(&owner.shards(), &page.position, 4).await.unwrap();
    assert_eq!(sequences(&page.rows), [next.sequence]);
}

/// Every event is in one shard, and a reader gets those of its shards alone.
pub async fn reading_ahead_gives_only_the_shards_asked_for<DB: Dialect>(subject: &Subject<DB>) {
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&events(60)).await;
    let start = outbox.owner().await.position;
    let mut found = BTreeSet::new();
    for shard in outbox.all_shards() {
        let page = outbox.store.read_ahead(&[shard], &start, 100).await.unwrap();
        assert!(page.caught_up);
        for row in page.rows {
            assert_eq!(row.shard, shard);
            assert!(found.insert(row.sequence), "{} is in two shards", row.sequence);
        }
    }
    assert_eq!(found, enqueued.iter().map(|one| one.sequence).collect());
}

/// What is settled or waits is not read ahead; what a rollback took is nowhere.
pub async fn reading_ahead_leaves_out_what_is_settled_or_waits<DB: Dialect>(subject: &Subject<DB>) {
    use posthaste_core::store::Selection;
    let outbox = subject.outbox().await;
    let fresh = outbox.enqueue(&events(8)).await;
    outbox.enqueue_one(&delayed("later", SignedDuration::from_hours(1))).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    assert_eq!(rows.len(), 8);
    owner
        .settle(&[
            sent(&rows[..1]).remove(0),
            dead(&rows[1]),
            parked(&rows[2]),
            retry(&rows[3], 1, HOUR),
            held(&rows[4]),
            suspect(&rows[5], 1),
        ])
        .await;
    outbox.store.discard(&Selection::One(fresh[6].id)).await.unwrap();
    assert_eq!(sequences(&owner.read_all().await), [rows[7].sequence]);
}

/// The positions of a reader never go back, and say no more than what it has seen.
pub async fn a_position_stays_before_what_was_not_read<DB: Dialect>(subject: &Subject<DB>) {
    let outbox = subject.outbox().await;
    let owner = outbox.owner().await;
    let mut position = owner.position.clone();
    for round in 0..5 {
        let enqueued = outbox.enqueue_one(&event(round)).await;
        let page = outbox.store.read_ahead(&owner.shards(), &position, 1).await.unwrap();
        assert_eq!(sequences(&page.rows), [enqueued.sequence]);
        assert!(page.position.sequence <= enqueued.sequence);
        let late = outbox.store.read_late(&owner.shards(), &page.position, 1000).await.unwrap();
        assert_eq!(late.position.sequence, page.position.sequence);
        position = late.position;
    }
}

/// A delayed event is due when its time has come, and before that the reader learns how long.
pub async fn a_delayed_event_falls_due<DB: Dialect>(subject: &Subject<DB>) {
    let outbox = subject.outbox().await;
    let owner = outbox.owner().await;
    let due = outbox.store.read_due(&owner.shards(), 10).await.unwrap();
    assert!(due.rows.is_empty() && due.next.is_none());

    outbox.enqueue_one(&delayed("in two hours", SignedDuration::from_hours(2))).await;
    outbox.enqueue_one(&delayed("in one hour", SignedDuration::from_hours(1))).await;
    let due = outbox.store.read_due(&owner.shards(), 10).await.unwrap();
    assert!(due.rows.is_empty());
    // Wide enough for a server whose clock differs from ours.
    let next = due.next.unwrap();
    assert!(next > HOUR / 2 && next < HOUR * 3 / 2, "next in {next:?}");

    let past = outbox.enqueue_one(&delayed("an hour ago", SignedDuration::from_hours(-1))).await;
    let due = outbox.store.read_due(&owner.shards(), 10).await.unwrap();
    assert_eq!(sequences(&due.rows), [past.sequence]);
    assert_eq!(due.rows[0].wait, None);
    assert_eq!(due.rows[0].attempts, 0);
    owner.settle(&sent(&due.rows)).await;
    assert!(owner.read_due().await.is_empty());
}

/// What has been due for longest comes first, at most as many as asked for, of the shards asked
/// for.
pub async fn the_longest_due_comes_first<DB: Dialect>(subject: &Subject<DB>) {
    let outbox = subject.outbox().await;
    let mut expected = Vec::new();
    for hours in [3, 5, 4] {
        let event = delayed(hours, SignedDuration::from_hours(-hours));
        expected.push((-hours, outbox.enqueue_one(&event).await.sequence));
    }
    expected.sort_unstable();
    let expected: Vec<i64> = expected.into_iter().map(|(_, sequence)| sequence).collect();
    let owner = outbox.owner().await;
    assert_eq!(sequences(&owner.read_due().await), expected);
    let first = outbox.store.read_due(&owner.shards(), 2).await.unwrap();
    assert_eq!(sequences(&first.rows), expected[..2]);

    let mut found = BTreeSet::new();
    for shard in owner.shards() {
        let due = outbox.store.read_due(&[shard], 10).await.unwrap();
        assert!(due.rows.iter().all(|row| row.shard == shard));
        found.extend(sequences(&due.rows));
    }
    assert_eq!(found, BTreeSet::from_iter(expected));
}

/// What waits for its lane or for an operator never falls due by itself.
pub async fn held_and_parked_events_are_never_due<DB: Dialect>(subject: &Subject<DB>) {
    let outbox = subject.outbox().await;
    outbox.enqueue(&events(2)).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    owner.settle(&[held(&rows[0]), parked(&rows[1])]).await;
    let due = outbox.store.read_due(&owner.shards(), 10).await.unwrap();
    assert!(due.rows.is_empty(), "{:?} are due", due.rows);
    assert_eq!(due.next, None);
}

/// The held events of a lane come in order and belong to that lane alone.
pub async fn the_held_events_of_a_lane_come_in_order<DB: Dialect>(subject: &Subject<DB>) {
    use posthaste_core::store::Verdict;
    let outbox = subject.outbox().await;
    outbox.enqueue(&[event("a"), event("b"), event("a"), event("a"), event("a")]).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    let key = rows[0].key.unwrap();
    let elsewhere = Verdict::Held { destination: "elsewhere".to_owned(), key };
    // The newest is held first: the order is that of the sequence and not that of the writes.
    owner.settle(&[retry(&rows[0], 1, HOUR), held(&rows[3])]).await;
    owner.settle(&[held(&rows[2]), held(&rows[1]), settlement(&rows[4], 0, elsewhere)]).await;
    let lane = outbox.store.read_held(BROKER, key, 10).await.unwrap();
    assert_eq!(sequences(&lane), [rows[2].sequence, rows[3].sequence]);
    assert!(lane.iter().all(|row| row.wait == Some(Wait::Held) && row.key == Some(key)));
    let first = outbox.store.read_held(BROKER, key, 1).await.unwrap();
    assert_eq!(sequences(&first), [rows[2].sequence]);
    let other = outbox.store.read_held("elsewhere", key, 10).await.unwrap();
    assert_eq!(sequences(&other), [rows[4].sequence]);
    assert!(outbox.store.read_held(BROKER, Key(0), 10).await.unwrap().is_empty());

    owner.settle(&sent(&lane[..1])).await;
    let lane = outbox.store.read_held(BROKER, key, 10).await.unwrap();
    assert_eq!(sequences(&lane), [rows[3].sequence]);
}

/// A new owner learns which lanes are blocked, and by what.
pub async fn blocked_lanes_are_told_with_what_blocks_them<DB: Dialect>(subject: &Subject<DB>) {
    let outbox = subject.outbox().await;
    outbox
        .enqueue(&[
            event("retry"),
            event("suspect"),
            event("parked"),
            event("dead"),
            event("parked"),
        ])
        .await;
    let unordered = Event::builder("Happened").unordered().raw_json("{}").build().unwrap();
    outbox.enqueue_one(&unordered).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    owner
        .settle(&[
            retry(&rows[0], 1, HOUR),
            suspect(&rows[1], 1),
            parked(&rows[2]),
            dead(&rows[3]),
            held(&rows[4]),
            retry(&rows[5], 1, HOUR),
        ])
        .await;
    let lane = |row: usize, waiting, parked| Blocked {
        destination: BROKER.to_owned(),
        key: rows[row].key.unwrap(),
        waiting,
        parked,
    };
    let mut expected = vec![lane(0, true, false), lane(1, true, false), lane(2, false, true)];
    let mut found = outbox.store.read_blocked(&owner.shards()).await.unwrap();
    found.sort_by_key(|lane| lane.key);
    expected.sort_by_key(|lane| lane.key);
    assert_eq!(found, expected);

    for row in &rows[..3] {
        let of_shard = outbox.store.read_blocked(&[row.shard]).await.unwrap();
        assert!(of_shard.iter().any(|lane| Some(lane.key) == row.key));
    }
    let elsewhere: Vec<u16> = owner
        .shards()
        .into_iter()
        .filter(|shard| rows[..3].iter().all(|row| row.shard != *shard))
        .collect();
    if !elsewhere.is_empty() {
        assert!(outbox.store.read_blocked(&elsewhere).await.unwrap().is_empty());
    }

    // What is delivered in the end blocks nobody.
    owner.settle(&sent(&rows[..2])).await;
    let found = outbox.store.read_blocked(&owner.shards()).await.unwrap();
    assert_eq!(found, [lane(2, false, true)]);
}

/// Only what is in the way, and only when its time has come.
pub async fn what_blocks_lanes_is_read_when_it_is_due<DB: Dialect>(subject: &Subject<DB>) {
    let outbox = subject.outbox().await;
    outbox.enqueue(&(0..5).map(|_| event("k")).collect::<Vec<_>>()).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    let replay = Verdict::Retry {
        after: Duration::ZERO,
        error: "no".to_owned(),
        destination: BROKER.to_owned(),
        key: None,
        replay: true,
    };
    owner
        .settle(&[
            retry(&rows[0], 1, Duration::ZERO),
            retry(&rows[1], 1, HOUR),
            held(&rows[2]),
            suspect(&rows[3], 1),
            settlement(&rows[4], 1, replay),
        ])
        .await;
    let blockers = async |limit| {
        let found = outbox.store.read_blockers(limit).await.unwrap();
        found.iter().map(|row| (row.sequence, row.wait)).collect::<Vec<_>>()
    };
    let expected = [(rows[0].sequence, Some(Wait::Retry)), (rows[3].sequence, Some(Wait::Suspect))];
    assert_eq!(blockers(10).await, expected);
    assert_eq!(blockers(1).await, expected[..1]);
    owner.settle(&sent(&rows[..1])).await;
    assert_eq!(blockers(10).await, expected[1..]);
}

/// Reading is not owning: it takes no lease and writes nothing.
pub async fn reading_writes_nothing<DB: Dialect>(subject: &Subject<DB>) {
    let outbox = subject.outbox().await;
    let event = event(1);
    outbox.enqueue_one(&event).await;
    let shards = outbox.all_shards();
    let before = format!("{:?}", outbox.record(event.id()).await);
    let start = Position::default();
    let page = outbox.store.read_ahead(&shards, &start, 10).await.unwrap();
    assert_eq!(page.rows.len(), 1);
    outbox.store.read_due(&shards, 10).await.unwrap();
    outbox.store.read_hot(&sequences(&page.rows), &Position::default()).await.unwrap();
    assert_eq!(format!("{:?}", outbox.record(event.id()).await), before);
    let owners = outbox.store.heartbeat(&relay("observer", HOUR), 0).await.unwrap().owners;
    assert!(owners.iter().all(Option::is_none));
}
