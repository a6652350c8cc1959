//! Finding events under shard leases, without writing.

use std::{
    collections::{BTreeSet, HashSet},
    fmt::Display,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use posthaste_core::{
    Event, Key, Status,
    store::{
        Blocked, Filter, LaneKey, LeaveOut, Limit, Position, Selection, Settlement, Verdict, Wait,
    },
};

use super::{
    Edit, Subject,
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
pub async fn reading_ahead_comes_in_order_and_in_pages(subject: &Subject) {
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&events(10)).await;
    let expected: Vec<i64> = enqueued.iter().map(|one| one.sequence).collect();
    let owner = outbox.owner().await;
    let (mut position, mut found) = (owner.position.clone(), Vec::new());
    for (size, caught_up) in [(4, false), (4, false), (2, true)] {
        let page = outbox.store.read_on(&owner.shards(), &position, Limit::rows(4)).await.unwrap();
        assert_eq!(page.rows.len(), size);
        assert_eq!(page.caught_up, caught_up);
        assert_eq!(page.position.sequence, page.rows.last().unwrap().sequence);
        found.extend(sequences(&page.rows));
        position = page.position;
    }
    assert_eq!(found, expected);
    let page = outbox.store.read_on(&owner.shards(), &position, Limit::rows(4)).await.unwrap();
    assert!(page.rows.is_empty() && page.caught_up);
    assert!(page.position.sequence >= position.sequence);

    let next = outbox.enqueue_one(&event("next")).await;
    let page = outbox.store.read_on(&owner.shards(), &page.position, Limit::rows(4)).await.unwrap();
    assert_eq!(sequences(&page.rows), [next.sequence]);
}

/// A reader whose memory a few keys fill is told of the others: a few at a time, round and round.
pub async fn events_beyond_a_cursor_that_stands_are_told_in_turns(subject: &Subject) {
    let outbox = subject.outbox().await;
    outbox.enqueue(&events(2)).await;
    let mut owner = outbox.owner().await;
    let passed = owner.poll().await;
    owner.settle(&sent(&passed)).await;
    let ahead = outbox.enqueue(&events(6)).await;
    let soon = outbox.enqueue_one(&delayed("soon", SignedDuration::from_hours(1))).await;
    let all: Vec<i64> = ahead.iter().map(|one| one.sequence).collect();
    let rows = outbox.store.read_on(&owner.shards(), &owner.position, Limit::rows(100)).await;
    let taken: Vec<_> = rows.unwrap().rows.drain(..1).collect();
    owner.settle(&sent(&taken)).await;
    for expected in [&all[1..3], &all[3..5], &all[5..], &all[1..3]] {
        let told = outbox
            .store
            .read_beyond(&owner.shards(), &owner.position, &HashSet::new(), Limit::rows(2))
            .await
            .unwrap();
        assert_eq!(told, expected, "{} is delayed", soon.sequence);
    }
    let hot = outbox.store.read_hot(&all[1..3], &owner.position).await.unwrap();
    assert!(hot.iter().all(|hot| hot.previous.as_ref().is_some_and(Vec::is_empty)), "{hot:?}");
}

/// Every event is in one shard, and a reader gets those of its shards alone.
pub async fn reading_ahead_gives_only_the_shards_asked_for(subject: &Subject) {
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&events(60)).await;
    let start = outbox.owner().await.position;
    let mut found = BTreeSet::new();
    for shard in outbox.all_shards() {
        let page = outbox.store.read_on(&[shard], &start, Limit::rows(100)).await.unwrap();
        assert!(page.caught_up);
        for row in page.rows {
            assert_eq!(row.shard, shard);
            assert!(found.insert(row.sequence), "{} is in two shards", row.sequence);
        }
    }
    assert_eq!(found, enqueued.iter().map(|one| one.sequence).collect());
}

/// What is settled or waits is not read ahead; what a rollback took is nowhere.
pub async fn reading_ahead_leaves_out_what_is_settled_or_waits(subject: &Subject) {
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
pub async fn a_position_stays_before_what_was_not_read(subject: &Subject) {
    let outbox = subject.outbox().await;
    let owner = outbox.owner().await;
    let mut position = owner.position.clone();
    for round in 0..5 {
        let enqueued = outbox.enqueue_one(&event(round)).await;
        let page = outbox.store.read_on(&owner.shards(), &position, Limit::rows(1)).await.unwrap();
        assert_eq!(sequences(&page.rows), [enqueued.sequence]);
        assert!(page.position.sequence <= enqueued.sequence);
        let late = outbox
            .store
            .read_late(&owner.shards(), &page.position, Limit::rows(1000))
            .await
            .unwrap();
        assert_eq!(late.position.sequence, page.position.sequence);
        position = late.position;
    }
}

/// A delayed event is due when its time has come, and before that the reader learns how long.
pub async fn a_delayed_event_falls_due(subject: &Subject) {
    let outbox = subject.outbox().await;
    let owner = outbox.owner().await;
    let due = outbox.store.read_due(&owner.shards(), None, Limit::rows(10)).await.unwrap();
    assert!(due.rows.is_empty() && due.next.is_none());

    outbox.enqueue_one(&delayed("in two hours", SignedDuration::from_hours(2))).await;
    outbox.enqueue_one(&delayed("in one hour", SignedDuration::from_hours(1))).await;
    let due = outbox.store.read_due(&owner.shards(), None, Limit::rows(10)).await.unwrap();
    assert!(due.rows.is_empty());
    // Wide enough for a server whose clock differs from ours.
    let next = due.next.unwrap();
    assert!(next > HOUR / 2 && next < HOUR * 3 / 2, "next in {next:?}");

    let past = outbox.enqueue_one(&delayed("an hour ago", SignedDuration::from_hours(-1))).await;
    let due = outbox.store.read_due(&owner.shards(), None, Limit::rows(10)).await.unwrap();
    assert_eq!(sequences(&due.rows), [past.sequence]);
    assert_eq!(due.rows[0].wait, None);
    assert_eq!(due.rows[0].attempts, 0);
    owner.settle(&sent(&due.rows)).await;
    assert!(owner.read_due().await.is_empty());
}

/// What has been due for longest comes first, at most as many as asked for, of the shards asked
/// for.
pub async fn the_longest_due_comes_first(subject: &Subject) {
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
    let first = outbox.store.read_due(&owner.shards(), None, Limit::rows(2)).await.unwrap();
    assert_eq!(sequences(&first.rows), expected[..2]);

    let mut found = BTreeSet::new();
    for shard in owner.shards() {
        let due = outbox.store.read_due(&[shard], None, Limit::rows(10)).await.unwrap();
        assert!(due.rows.iter().all(|row| row.shard == shard));
        found.extend(sequences(&due.rows));
    }
    assert_eq!(found, BTreeSet::from_iter(expected));
}

/// What could not be handed over now is left out of a read of due events, and a page is filled with what comes after.
pub async fn due_events_that_cannot_go_now_are_left_out(subject: &Subject) {
    let outbox = subject.outbox().await;
    outbox.enqueue(&events(5)).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    let elsewhere = |mut settlement: Settlement| {
        if let Verdict::Retry { destination, .. } = &mut settlement.verdict {
            "elsewhere, \"quoted\"".clone_into(destination);
        }
        settlement
    };
    owner.settle(&[dead(&rows[0]), dead(&rows[1])]).await;
    let these = Filter { status: Some(Status::Dead), ..Filter::default() };
    outbox.store.replay(&Selection::Matching { filter: these, limit: 10 }).await.unwrap();
    owner.settle(&[retry(&rows[2], 1, Duration::ZERO), suspect(&rows[3], 0)]).await;
    owner.settle(&[elsewhere(retry(&rows[4], 1, Duration::ZERO))]).await;
    let delayed = delayed("delayed", SignedDuration::from_hours(-1));
    let delayed = outbox.enqueue_one(&delayed).await.sequence;

    let due = async |replays, destinations: &[&str], rows| {
        let destinations = destinations.iter().map(|name| (*name).to_owned()).collect();
        let but = LeaveOut { replays, destinations };
        let (shards, limit) = (owner.shards(), Limit::rows(rows));
        let due = outbox.store.read_due_but(&shards, None, limit, &but).await.unwrap();
        let mut due = sequences(&due.rows);
        due.sort_unstable();
        due
    };
    let at: Vec<i64> = sequences(&rows).into_iter().chain([delayed]).collect();
    assert_eq!(due(false, &[], 10).await, at);
    assert_eq!(due(true, &[], 4).await, at[2..]);
    assert_eq!(due(false, &[BROKER], 4).await, [at[0], at[1], at[4], at[5]]);
    assert_eq!(due(true, &[BROKER, "nobody"], 2).await, at[4..]);
    assert_eq!(due(true, &[BROKER, "elsewhere, \"quoted\""], 1).await, at[5..]);
}

/// What waits for its lane or for an operator never falls due by itself.
pub async fn held_and_parked_events_are_never_due(subject: &Subject) {
    let outbox = subject.outbox().await;
    outbox.enqueue(&events(2)).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    owner.settle(&[held(&rows[0]), parked(&rows[1])]).await;
    let due = outbox.store.read_due(&owner.shards(), None, Limit::rows(10)).await.unwrap();
    assert!(due.rows.is_empty(), "{:?} are due", due.rows);
    assert_eq!(due.next, None);
}

/// The held events of a lane come in order and belong to that lane alone.
pub async fn the_held_events_of_a_lane_come_in_order(subject: &Subject) {
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
    let lane = outbox.store.read_held(BROKER, key, 0, Limit::rows(10)).await.unwrap();
    assert_eq!(sequences(&lane), [rows[2].sequence, rows[3].sequence]);
    assert!(lane.iter().all(|row| row.wait == Some(Wait::Held) && row.key == Some(key)));
    let first = outbox.store.read_held(BROKER, key, 0, Limit::rows(1)).await.unwrap();
    assert_eq!(sequences(&first), [rows[2].sequence]);
    let rest =
        outbox.store.read_held(BROKER, key, first[0].sequence, Limit::rows(10)).await.unwrap();
    assert_eq!(sequences(&[first, rest].concat()), sequences(&lane), "the rest comes after it");
    let other = outbox.store.read_held("elsewhere", key, 0, Limit::rows(10)).await.unwrap();
    assert_eq!(sequences(&other), [rows[4].sequence]);
    assert!(outbox.store.read_held(BROKER, Key(0), 0, Limit::rows(10)).await.unwrap().is_empty());

    owner.settle(&sent(&lane[..1])).await;
    let lane = outbox.store.read_held(BROKER, key, 0, Limit::rows(10)).await.unwrap();
    assert_eq!(sequences(&lane), [rows[3].sequence]);
}

/// A lane is read whole, with what blocks it and a dead event that parks it, in pages.
pub async fn a_lane_is_read_with_what_blocks_it(subject: &Subject) {
    use posthaste_core::store::{LaneKey, Verdict};
    let outbox = subject.outbox().await;
    outbox.enqueue(&(0..9).map(|_| event("k")).collect::<Vec<_>>()).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    let key = rows[0].key.unwrap();
    let elsewhere = Verdict::Held { destination: "elsewhere".to_owned(), key };
    owner
        .settle(&[
            retry(&rows[0], 1, HOUR),
            suspect(&rows[1], 1),
            parked(&rows[2]),
            held(&rows[3]),
            held(&rows[4]),
            dead(&rows[5]),
            settlement(&rows[6], 0, elsewhere),
            held(&rows[7]),
        ])
        .await;
    owner.settle(&sent(&rows[7..8])).await;
    let lane = LaneKey { key, destination: BROKER.to_owned() };
    for limit in [1, 2, 10] {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = outbox.store.read_lane(&lane, after, Limit::rows(limit)).await.unwrap();
            assert!(page.len() <= limit);
            let Some(last) = page.last() else { break };
            after = Some((last.wait.unwrap(), last.sequence));
            found.extend(page);
        }
        let waits: Vec<_> = found.iter().map(|row| (row.wait.unwrap(), row.sequence)).collect();
        let expected = [
            (Wait::Held, rows[3].sequence),
            (Wait::Held, rows[4].sequence),
            (Wait::Parked, rows[2].sequence),
            (Wait::Retry, rows[0].sequence),
            (Wait::Suspect, rows[1].sequence),
        ];
        assert_eq!(waits, expected);
        assert!(found.iter().all(|row| row.key == Some(key) && row.content.is_ok()));
    }
}

/// A new owner learns which lanes are blocked, and by what.
pub async fn blocked_lanes_are_told_with_what_blocks_them(subject: &Subject) {
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
    let mut found = outbox.store.read_blocked(&owner.shards(), None, 1000).await.unwrap().lanes;
    found.sort_by_key(|lane| lane.key);
    expected.sort_by_key(|lane| lane.key);
    assert_eq!(found, expected);

    for row in &rows[..3] {
        let of_shard = outbox.store.read_blocked(&[row.shard], None, 1000).await.unwrap().lanes;
        assert!(of_shard.iter().any(|lane| Some(lane.key) == row.key));
    }
    let elsewhere: Vec<u16> = owner
        .shards()
        .into_iter()
        .filter(|shard| rows[..3].iter().all(|row| row.shard != *shard))
        .collect();
    if !elsewhere.is_empty() {
        assert!(outbox.store.read_blocked(&elsewhere, None, 1000).await.unwrap().lanes.is_empty());
    }

    // What is delivered in the end blocks nobody.
    owner.settle(&sent(&rows[..2])).await;
    let found = outbox.store.read_blocked(&owner.shards(), None, 1000).await.unwrap().lanes;
    assert_eq!(found, [lane(2, false, true)]);
}

/// Only what is in the way, and only when its time has come.
pub async fn what_blocks_lanes_is_read_when_it_is_due(subject: &Subject) {
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
        let found = outbox.store.read_blockers(Limit::rows(limit)).await.unwrap();
        found.iter().map(|row| (row.sequence, row.wait)).collect::<Vec<_>>()
    };
    let expected = [(rows[0].sequence, Some(Wait::Retry)), (rows[3].sequence, Some(Wait::Suspect))];
    assert_eq!(blockers(10).await, expected);
    assert_eq!(blockers(1).await, expected[..1]);
    owner.settle(&sent(&rows[..1])).await;
    assert_eq!(blockers(10).await, expected[1..]);
}

/// Reading is not owning: it takes no lease and writes nothing.
pub async fn reading_writes_nothing(subject: &Subject) {
    let outbox = subject.outbox().await;
    let event = event(1);
    outbox.enqueue_one(&event).await;
    let shards = outbox.all_shards();
    let before = format!("{:?}", outbox.record(event.id()).await);
    let start = Position::default();
    let page = outbox.store.read_on(&shards, &start, Limit::rows(10)).await.unwrap();
    assert_eq!(page.rows.len(), 1);
    outbox.store.read_due(&shards, None, Limit::rows(10)).await.unwrap();
    outbox.store.read_hot(&sequences(&page.rows), &Position::default()).await.unwrap();
    assert_eq!(format!("{:?}", outbox.record(event.id()).await), before);
    let owners = outbox.store.heartbeat(&relay("observer", HOUR), 0).await.unwrap().owners;
    assert!(owners.iter().all(Option::is_none));
}

/// Due events come page by page to the last one, also when nothing becomes of any of them.
pub async fn due_events_come_in_pages_whatever_becomes_of_them(subject: &Subject) {
    let outbox = subject.outbox().await;
    let at = Timestamp::now().checked_sub(SignedDuration::from_hours(1)).unwrap();
    let due: Vec<Event> = (0..7)
        .map(|n| {
            let event = Event::builder("Happened").aggregate("Thing", n).raw_json("{}");
            // Some fall due at the same moment.
            event.deliver_at(at + SignedDuration::from_secs(n / 3)).build().unwrap()
        })
        .collect();
    let expected: Vec<i64> = outbox.enqueue(&due).await.iter().map(|one| one.sequence).collect();
    let owner = outbox.owner().await;
    let (mut found, mut after) = (Vec::new(), None);
    for round in 0.. {
        assert!(round < 10, "{found:?} after {round} pages");
        let page = outbox.store.read_due(&owner.shards(), after, Limit::rows(2)).await.unwrap();
        assert!(page.rows.len() <= 2);
        found.extend(sequences(&page.rows));
        after = page.more;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found, expected);
}

/// Due events of other shards, and settled ones, hide nobody's own, however many there are: a read that ends
/// before it has seen all of them says where the next one goes on.
pub async fn a_due_event_behind_very_many_others_is_found(subject: &Subject) {
    const MANY: usize = 12_000;

    let outbox = subject.outbox().await;
    let at = Timestamp::now().checked_sub(SignedDuration::from_hours(2)).unwrap();
    let in_an_hour = Timestamp::now().checked_add(SignedDuration::from_hours(1)).unwrap();
    let other = |number: usize| {
        let event = Event::builder("Happened").aggregate("Thing", "other").raw_json("{}");
        // Half of them wait for their time. Many of one time.
        let past = at + SignedDuration::from_secs(number as i64 / 5_000);
        event.deliver_at(if number.is_multiple_of(2) { past } else { in_an_hour }).build().unwrap()
    };
    let others: Vec<Event> = (0..2 * MANY).map(other).collect();
    for some in others.chunks(1_000) {
        outbox.enqueue(some).await;
    }
    let own_shards = if outbox.shards > 1 {
        let other = outbox.record(others[0].id()).await.shard;
        outbox.all_shards().into_iter().filter(|&shard| shard != other).collect()
    } else {
        outbox.edit(Edit::MarkSent).await;
        outbox.all_shards()
    };
    let own: Vec<Event> = (0..20).map(|n| delayed(n, SignedDuration::from_hours(-1))).collect();
    outbox.enqueue(&own).await;
    outbox
        .enqueue(&(0..20).map(|n| delayed(n, SignedDuration::from_hours(3))).collect::<Vec<_>>())
        .await;
    let mut expected = Vec::new();
    for event in &own {
        let record = outbox.record(event.id()).await;
        if own_shards.contains(&record.shard) {
            expected.push(record.sequence);
        }
    }
    expected.sort_unstable();
    let (mut found, mut after) = (Vec::new(), None);
    for round in 0.. {
        assert!(round < 50, "{found:?} after {round} pages");
        let due = outbox.store.read_due(&own_shards, after, Limit::rows(7)).await.unwrap();
        assert!(due.rows.len() <= 7);
        assert!(round > 0 || due.rows.is_empty(), "one read walks over all of them");
        found.extend(sequences(&due.rows));
        // A read that has not seen the next one does not tell the time of another.
        assert!(due.next.is_none_or(|next| next > HOUR * 2), "next in {:?}", due.next);
        assert!(due.more.is_none() || due.more > after, "it stands still at {after:?}");
        after = due.more;
        if after.is_none() {
            break;
        }
    }
    assert!(!expected.is_empty());
    assert_eq!(found, expected);
}

/// A delayed event whose time has come before it was read is read in its place.
pub async fn a_delayed_event_that_is_due_keeps_its_place(subject: &Subject) {
    let outbox = subject.outbox().await;
    let first = outbox.enqueue_one(&event("key")).await.sequence;
    let due = outbox.enqueue_one(&delayed("key", SignedDuration::from_secs(-1))).await.sequence;
    let later = outbox.enqueue_one(&delayed("key", SignedDuration::from_hours(1))).await.sequence;
    let last = outbox.enqueue_one(&event("key")).await.sequence;
    let mut owner = outbox.owner().await;
    assert_eq!(sequences(&owner.poll().await), [first, due, last]);
    assert!(later > due);
}

/// A page ends where its bytes do, and one event that is larger comes alone.
pub async fn a_page_ends_where_its_bytes_do(subject: &Subject) {
    let outbox = subject.outbox().await;
    let payload = format!("{:?}", "x".repeat(10_000));
    let large = |n: i64| {
        let event = Event::builder("Happened").aggregate("Thing", n).raw_json(payload.clone());
        event.build().unwrap()
    };
    let all: Vec<Event> = (0..12).map(large).collect();
    let expected: Vec<i64> = outbox.enqueue(&all).await.iter().map(|one| one.sequence).collect();
    let owner = outbox.owner().await;
    for (bytes, most) in [(1, 1), (40_000, 5)] {
        let (mut found, mut position) = (Vec::new(), owner.position.clone());
        for round in 0.. {
            assert!(round < 40, "{found:?} after {round} pages of {bytes} bytes");
            let limit = Limit { rows: 100, bytes };
            let page = outbox.store.read_on(&owner.shards(), &position, limit).await.unwrap();
            assert!(page.rows.len() <= most, "{} events in {bytes} bytes", page.rows.len());
            assert!(page.rows.iter().all(|row| row.bytes > 10_000));
            found.extend(sequences(&page.rows));
            position = page.position;
            if page.caught_up {
                break;
            }
        }
        assert_eq!(found, expected);
    }
}

/// What is settled is walked over, a bounded stretch at a time, and what lies behind it is found.
pub async fn a_read_walks_over_what_is_settled_in_steps(subject: &Subject) {
    let outbox = subject.outbox().await;
    let mut owner = outbox.owner().await;
    let start = owner.position.clone();
    outbox.enqueue(&events(300)).await;
    let rows = owner.poll().await;
    owner.settle(&sent(&rows)).await;
    let last = outbox.enqueue_one(&event("last")).await.sequence;
    let mut position = start;
    for round in 0.. {
        assert!(round < 10, "not found after {round} pages");
        let page = outbox.store.read_on(&owner.shards(), &position, Limit::rows(2)).await.unwrap();
        if !page.rows.is_empty() {
            assert_eq!(sequences(&page.rows), [last]);
            break;
        }
        assert!(page.position.sequence > position.sequence, "it stands still");
        position = page.position;
    }
}

/// Blocked lanes come page by page, and some of them can be asked for.
pub async fn blocked_lanes_come_in_pages_and_can_be_asked_for(subject: &Subject) {
    let outbox = subject.outbox().await;
    outbox.enqueue(&events(9)).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    let failed: Vec<_> = rows.iter().take(7).map(|row| retry(row, 1, HOUR)).collect();
    owner.settle(&failed).await;
    let (mut found, mut after) = (Vec::new(), None);
    for round in 0.. {
        assert!(round < 10, "{} lanes after {round} pages", found.len());
        let page = outbox.store.read_blocked(&owner.shards(), after.as_ref(), 2).await.unwrap();
        found.extend(page.lanes);
        after = page.more;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found.len(), 7);
    assert!(found.is_sorted_by_key(|lane| lane.key) && found.iter().all(|lane| lane.waiting));

    let lane = |row: usize| LaneKey { key: rows[row].key.unwrap(), destination: BROKER.to_owned() };
    let still = outbox.store.still_blocked(&[lane(0), lane(8), lane(3)]).await.unwrap();
    let mut keys: Vec<Key> = still.iter().map(|lane| lane.key).collect();
    keys.sort();
    let mut expected = [lane(0).key, lane(3).key];
    expected.sort();
    assert_eq!(keys, expected);
    assert!(outbox.store.still_blocked(&[]).await.unwrap().is_empty());

    // One whose events are held although nothing blocks it any more is named, too.
    owner.settle(&[held(&rows[7]), parked(&rows[8])]).await;
    let still = outbox.store.still_blocked(&[lane(7), lane(8)]).await.unwrap();
    let by = |row: usize| {
        let found = still.iter().find(|blocked| blocked.key == lane(row).key).unwrap();
        (found.waiting, found.parked)
    };
    assert_eq!((by(7), by(8)), ((false, false), (false, true)));
}
