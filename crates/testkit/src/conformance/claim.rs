//! Taking single rows, for unordered work.

use std::{collections::BTreeSet, time::Duration};

use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};
use posthaste_core::{
    Event, Status,
    store::{Fetched, Limit, Position, Relay, Verdict, Wait},
};

use super::{
    Edit, Subject,
    outbox::Outbox,
    relays::{Claimer, SHORT, dead, event, events, retry, sent, sequences, settlement},
};

const HOUR: Duration = Duration::from_hours(1);

/// Claimed rows come in order, no more than asked for, and are being sent from then on.
pub async fn a_claimed_row_is_being_sent(subject: &Subject) {
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&events(5)).await;
    let mut claimer = outbox.claimer("one");
    let rows = claimer.claim(3).await;
    let expected: Vec<i64> = enqueued.iter().map(|one| one.sequence).collect();
    assert_eq!(sequences(&rows), expected[..3]);
    assert_eq!(claimer.position.sequence, expected[2]);
    for (row, enqueued) in rows.iter().zip(&enqueued) {
        let event = &row.content.as_ref().unwrap().event;
        assert_eq!((event.id(), row.key), (enqueued.id, event.key()));
        let record = outbox.record(enqueued.id).await;
        assert_eq!(record.status, Status::Sending);
        assert_eq!(record.locked_by.as_ref(), Some(&claimer.lease.token));
    }
    assert_eq!(outbox.record(enqueued[3].id).await.status, Status::New);

    assert_eq!(sequences(&claimer.claim(3).await), expected[3..]);
    let before = claimer.position.clone();
    assert!(claimer.claim(3).await.is_empty());
    assert_eq!(claimer.position.sequence, before.sequence);
}

/// Claimers side by side share all the rows and not one of them.
pub async fn two_claimers_never_share_a_row(subject: &Subject) {
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&events(200)).await;
    let mut claimers: Vec<_> = (0..4).map(|n| outbox.claimer(&format!("claimer{n}"))).collect();
    let mut taken = BTreeSet::new();
    // Rows that one claimer passes over because another one is just taking them are found by the
    // sweep, so that a few rounds are enough.
    for _ in 0..100 {
        let answers = join_all(claimers.iter_mut().map(async |claimer| {
            let mut rows = claimer.claim(20).await;
            rows.extend(claimer.claim_late(20).await);
            rows
        }))
        .await;
        for row in answers.iter().flatten() {
            assert!(taken.insert(row.sequence), "{} was claimed twice", row.sequence);
        }
        if taken.len() == enqueued.len() {
            break;
        }
    }
    assert_eq!(taken, enqueued.iter().map(|one| one.sequence).collect());
}

/// What waits for its time is not claimed before, and is claimed then.
pub async fn only_what_is_due_is_claimed(subject: &Subject) {
    let outbox = subject.outbox().await;
    let delayed = |hours: i64| {
        let at = Timestamp::now().checked_add(SignedDuration::from_hours(hours)).unwrap();
        Event::builder("Happened").raw_json("{}").deliver_at(at).build().unwrap()
    };
    let due = outbox.enqueue_one(&delayed(-1)).await.sequence;
    outbox.enqueue_one(&delayed(1)).await;
    let failed = outbox.enqueue(&events(2)).await;
    let mut one = outbox.claimer("one");
    let rows = one.claim(10).await;
    let mut expected = vec![due, failed[0].sequence, failed[1].sequence];
    expected.sort_unstable();
    assert_eq!(sequences(&rows), expected);
    let of = |sequence| rows.iter().find(|row| row.sequence == sequence).unwrap();
    let later = retry(of(failed[0].sequence), 1, HOUR);
    let soon = retry(of(failed[1].sequence), 1, Duration::ZERO);
    one.settle(&sent(&[of(due).clone()])).await;
    one.settle(&[later, soon]).await;

    // Behind every cursor, and yet found.
    let mut other = outbox.claimer("other");
    other.position = one.position.clone();
    let rows = other.claim(10).await;
    assert_eq!(sequences(&rows), [failed[1].sequence]);
    assert_eq!((rows[0].attempts, rows[0].wait), (1, Some(Wait::Retry)));
    let waiting = outbox.record(failed[0].id).await;
    assert_eq!((waiting.status, waiting.locked_by), (Status::Retry, None));
}

/// Settled events are never claimed.
pub async fn a_settled_row_is_not_claimed(subject: &Subject) {
    use posthaste_core::store::Selection;
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&events(4)).await;
    let mut one = outbox.claimer("one");
    let rows = one.claim(2).await;
    one.settle(&[sent(&rows[..1]).remove(0), dead(&rows[1])]).await;
    outbox.store.discard(&Selection::One(enqueued[2].id)).await.unwrap();

    let mut other = outbox.claimer("other");
    assert_eq!(sequences(&other.claim(10).await), [enqueued[3].sequence]);
    let all: Vec<i64> = enqueued.iter().map(|one| one.sequence).collect();
    assert!(outbox.store.claim_hot(&other.relay, &other.lease, &all).await.unwrap().is_empty());
    assert!(other.claim_late(10).await.is_empty());
    assert!(other.claim_expired().await.is_none());
}

/// An expired row goes to one other claimer, with an attempt recorded before it is handed out.
pub async fn an_expired_row_is_claimed_once_and_an_attempt_is_recorded(subject: &Subject) {
    let outbox = subject.outbox().await;
    let poison = event("poison");
    outbox.enqueue_one(&poison).await;
    let mut dying = outbox.claimer_for("dying", SHORT);
    assert_eq!(dying.claim(10).await[0].attempts, 0);
    outbox.row_lease_expired(poison.id()).await;

    let heirs: Vec<_> = (0..4).map(|n| outbox.claimer(&format!("heir{n}"))).collect();
    let answers = join_all(heirs.iter().map(Claimer::claim_expired)).await;
    let rows: Vec<_> = answers.into_iter().flatten().collect();
    assert_eq!(rows.len(), 1, "{} heirs got it", rows.len());
    assert_eq!(rows[0].attempts, 1);
    assert_eq!(rows[0].content.as_ref().unwrap().event.id(), poison.id());
    let record = outbox.record(poison.id()).await;
    assert_eq!((record.status, record.attempts), (Status::Sending, 1));
    for heir in &heirs {
        assert!(heir.claim_expired().await.is_none(), "it was claimed again");
    }
}

/// A row whose lease is valid has not expired.
pub async fn a_valid_lease_is_not_taken_over(subject: &Subject) {
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&events(2)).await;
    let mut holder = outbox.claimer("holder");
    assert_eq!(holder.claim(10).await.len(), 2);
    let mut other = outbox.claimer("other");
    assert!(other.claim_expired().await.is_none());
    assert!(other.claim(10).await.is_empty());
    other.position = Position { sequence: enqueued[1].sequence, ..other.position };
    assert!(other.claim_late(10).await.is_empty());
}

/// A claimer whose lease went to somebody else settles nothing.
pub async fn a_stale_token_settles_nothing(subject: &Subject) {
    let outbox = subject.outbox().await;
    let event = event(1);
    let sequence = outbox.enqueue_one(&event).await.sequence;
    let mut stale = outbox.claimer_for("stale", SHORT);
    let rows = stale.claim(10).await;
    outbox.row_lease_expired(event.id()).await;
    let owner = outbox.claimer("owner");
    owner.claim_expired().await.unwrap();

    for batch in [sent(&rows), vec![retry(&rows[0], 7, HOUR)], vec![dead(&rows[0])]] {
        let report = outbox.store.settle(&stale.fence(), &batch, true).await.unwrap();
        assert_eq!(report.refused, [sequence], "{:?} went through", batch[0].verdict);
        let record = outbox.record(event.id()).await;
        assert_eq!((record.status, record.attempts), (Status::Sending, 1));
        assert_eq!(record.locked_by.as_ref(), Some(&owner.lease.token));
    }
    let report = outbox.store.settle(&stale.fence(), &sent(&rows), false).await.unwrap();
    assert_eq!(report.refused, [sequence]);
    outbox.record(event.id()).await;
}

/// A claimer settles what it holds, of every kind, and repeating it is harmless.
pub async fn a_claimer_settles_what_it_holds(subject: &Subject) {
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&events(4)).await;
    let mut claimer = outbox.claimer("one");
    let rows = claimer.claim(10).await;
    let batch = [
        sent(&rows[..1]).remove(0),
        retry(&rows[1], 1, HOUR),
        dead(&rows[2]),
        settlement(&rows[3], 0, Verdict::Unclaimed),
    ];
    claimer.settle(&batch).await;
    let expected = [Status::Sent, Status::Retry, Status::Dead, Status::New];
    for (enqueued, expected) in enqueued.iter().zip(expected) {
        let record = outbox.record(enqueued.id).await;
        assert_eq!((record.status, record.locked_by), (expected, None));
    }
    // The answer was lost, the claimer asks again.
    let report = outbox.store.settle(&claimer.fence(), &batch[..1], true).await.unwrap();
    assert!(report.refused.is_empty(), "{report:?}");
    outbox.store.settle(&claimer.fence(), &batch, true).await.unwrap();
    let attempts = outbox.store.attempts(rows[1].sequence).await.unwrap();
    assert_eq!(attempts.len(), 1);
    assert_eq!(outbox.record(enqueued[1].id).await.attempts, 1);
}

/// With `keep_sent = false` a delivered row is gone.
pub async fn a_delivered_row_can_be_deleted(subject: &Subject) {
    let outbox = subject.outbox().await;
    let event = event(1);
    outbox.enqueue_one(&event).await;
    let mut claimer = outbox.claimer("one");
    let rows = claimer.claim(10).await;
    outbox.store.settle(&claimer.fence(), &sent(&rows), false).await.unwrap();
    assert!(outbox.store.event(event.id()).await.unwrap().is_none());
}

/// Shortens both leases to the same end, then renews the first.
async fn renew_one_of_two(outbox: &Outbox, renewed: &Claimer, forgotten: &Claimer) {
    let both = [renewed.in_hand(), forgotten.in_hand()];
    let hasty = Relay { lease: SHORT, ..renewed.relay.clone() };
    outbox.store.renew_rows(&hasty, &both).await.unwrap();
    outbox.store.renew_rows(&renewed.relay, &both[..1]).await.unwrap();
}

/// A renewed row outlives one that was claimed at the same time and not renewed.
pub async fn a_renewed_row_is_kept(subject: &Subject) {
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&events(2)).await;
    let (mut renewed, mut forgotten) = (outbox.claimer("renewed"), outbox.claimer("forgotten"));
    assert_eq!(renewed.claim(1).await.len(), 1);
    assert_eq!(forgotten.claim(1).await.len(), 1);
    renew_one_of_two(&outbox, &renewed, &forgotten).await;
    outbox.row_lease_expired(enqueued[1].id).await;
    assert_eq!(outbox.record(enqueued[0].id).await.status, Status::Sending);
    let heir = outbox.claimer("heir");
    assert_eq!(heir.claim_expired().await.unwrap().sequence, enqueued[1].sequence);
    assert!(heir.claim_expired().await.is_none());

    // What went to the heir is the heir's.
    outbox.store.renew_rows(&forgotten.relay, &[forgotten.in_hand()]).await.unwrap();
    assert_eq!(outbox.record(enqueued[1].id).await.locked_by, Some(heir.lease.token));
}

/// Those in hand beside a row that somebody has locked are renewed and given back all the same.
pub async fn a_locked_row_hinders_no_renewal(subject: &Subject) {
    let outbox = subject.outbox().await;
    let ids: Vec<_> = outbox.enqueue(&events(3)).await.iter().map(|event| event.id).collect();
    let mut claimer = outbox.claimer("one");
    let rows = claimer.claim(3).await;
    if subject.skips_locked {
        let mut holder = outbox.begin().await;
        holder.lock(&[rows[1].sequence]).await.unwrap();
        let hasty = Relay { lease: SHORT, ..claimer.relay.clone() };
        outbox.store.renew_rows(&hasty, &[claimer.in_hand()]).await.unwrap();
        outbox.row_lease_expired(ids[2]).await;
        assert_eq!(outbox.record(ids[1]).await.status, Status::Sending, "it was left as it was");
        holder.rollback().await.unwrap();
    }
    outbox.store.renew_rows(&claimer.relay, &[claimer.in_hand()]).await.unwrap();
    let mut holder = outbox.begin().await;
    if subject.skips_locked {
        holder.lock(&[rows[1].sequence]).await.unwrap();
    }
    let sequences: Vec<i64> = rows.iter().map(|row| row.sequence).collect();
    outbox.store.unclaim(&claimer.lease, &sequences).await.unwrap();
    holder.rollback().await.unwrap();
    let mut still = Vec::new();
    for id in ids {
        still.push(outbox.record(id).await.status == Status::Sending);
    }
    assert_eq!(still, [false, subject.skips_locked, false]);
}

/// The same for a row that was claimed because its time had come.
pub async fn a_renewed_retry_is_kept(subject: &Subject) {
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&events(2)).await;
    let mut first = outbox.claimer("first");
    let failed = first.claim(10).await;
    let again: Vec<_> = failed.iter().map(|row| retry(row, 1, Duration::ZERO)).collect();
    first.settle(&again).await;

    let (mut renewed, mut forgotten) = (outbox.claimer("renewed"), outbox.claimer("forgotten"));
    let kept = renewed.claim(1).await.remove(0).sequence;
    assert_eq!(forgotten.claim(1).await.len(), 1);
    renew_one_of_two(&outbox, &renewed, &forgotten).await;
    let of = |sequence| enqueued.iter().find(|one| one.sequence == sequence).unwrap().id;
    let lost = enqueued.iter().find(|one| one.sequence != kept).unwrap();
    outbox.row_lease_expired(lost.id).await;
    assert_eq!(outbox.record(of(kept)).await.status, Status::Sending);
    let heir = outbox.claimer("heir");
    let expired = heir.claim_expired().await.unwrap();
    assert_eq!((expired.sequence, expired.attempts), (lost.sequence, 2));
}

/// A row that cost an attempt and is given back is to be tried again, and its attempt stays.
pub async fn a_row_given_back_after_an_attempt_is_a_retry(subject: &Subject) {
    let outbox = subject.outbox().await;
    let event = event(1);
    let sequence = outbox.enqueue_one(&event).await.sequence;
    let mut dying = outbox.claimer_for("dying", SHORT);
    assert_eq!(dying.claim(1).await.len(), 1);
    outbox.row_lease_expired(event.id()).await;
    let heir = outbox.claimer("heir");
    assert!(heir.claim_expired().await.is_some());
    outbox.store.unclaim(&heir.lease, &[sequence]).await.unwrap();
    let record = outbox.record(event.id()).await;
    assert_eq!((record.status, record.attempts), (Status::Retry, 1));
    let rows = outbox.claimer("next").claim(10).await;
    assert_eq!((sequences(&rows), rows[0].attempts), (vec![sequence], 1));
}

/// Rows that are given back are free at once, for everybody, and no attempt is burnt.
pub async fn rows_that_are_given_back_are_free(subject: &Subject) {
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&events(3)).await;
    let mut stopping = outbox.claimer("stopping");
    let rows = stopping.claim(10).await;
    let other = outbox.claimer("other");
    outbox.store.unclaim(&other.lease, &sequences(&rows)).await.unwrap();
    assert_eq!(outbox.record(enqueued[0].id).await.status, Status::Sending, "not its to give");

    outbox.store.unclaim(&stopping.lease, &sequences(&rows[..2])).await.unwrap();
    for given_back in &enqueued[..2] {
        let record = outbox.record(given_back.id).await;
        assert_eq!((record.status, record.attempts), (Status::New, 0));
        assert_eq!(record.locked_by, None);
    }
    let mut other = outbox.claimer("other");
    assert_eq!(sequences(&other.claim(10).await), sequences(&rows[..2]));
}

/// The hot path claims by sequence what is free, and only that.
pub async fn a_hot_claim_takes_what_is_free(subject: &Subject) {
    let outbox = subject.outbox().await;
    let at = Timestamp::now().checked_add(SignedDuration::from_hours(1)).unwrap();
    let later = Event::builder("Happened").raw_json("{}").deliver_at(at).build().unwrap();
    let enqueued = outbox.enqueue(&[event(1), event(2), later]).await;
    let mut wanted: Vec<i64> = enqueued.iter().map(|one| one.sequence).collect();
    wanted.push(i64::MAX);
    let mut other = outbox.claimer("other");
    assert_eq!(other.claim(1).await.len(), 1);
    let hot = outbox.claimer("hot");
    let rows = outbox.store.claim_hot(&hot.relay, &hot.lease, &wanted).await.unwrap();
    assert_eq!(sequences(&rows), [enqueued[1].sequence]);
    let record = outbox.record(enqueued[1].id).await;
    assert_eq!(record.status, Status::Sending);
    assert_eq!(record.locked_by.as_ref(), Some(&hot.lease.token));
    assert!(outbox.store.claim_hot(&hot.relay, &hot.lease, &wanted).await.unwrap().is_empty());
    assert!(outbox.store.claim_hot(&hot.relay, &hot.lease, &[]).await.unwrap().is_empty());
}

/// A claim takes no more than half a page of what is due. The rest is no reason to wait for the next poll.
pub async fn a_claim_says_that_more_is_due(subject: &Subject) {
    let outbox = subject.outbox().await;
    let past = Timestamp::now().checked_sub(SignedDuration::from_hours(1)).unwrap();
    let due = |_| Event::builder("Happened").raw_json("{}").deliver_at(past).build().unwrap();
    let all: Vec<Event> = (0..20).map(due).collect();
    let mut expected: Vec<i64> =
        outbox.enqueue(&all).await.iter().map(|one| one.sequence).collect();
    let claimer = outbox.claimer("one");
    let (mut position, mut found) = (claimer.position.clone(), Vec::new());
    for claims in 1.. {
        assert!(claims <= all.len(), "the claims come to no end");
        let limit = Limit::rows(10);
        let claimed = outbox.store.claim(&claimer.relay, &claimer.lease, &position, limit).await;
        let claimed = claimed.unwrap();
        found.extend(sequences(&claimed.rows));
        position = claimed.position;
        if claimed.caught_up {
            break;
        }
    }
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

/// So many that a store may ask for fewer at once.
pub async fn a_large_claim_says_that_more_is_due(subject: &Subject) {
    const DUE: usize = 1_500;

    let outbox = subject.outbox().await;
    let past = Timestamp::now().checked_sub(SignedDuration::from_hours(1)).unwrap();
    let due = |_| Event::builder("Happened").raw_json("{}").deliver_at(past).build().unwrap();
    outbox.enqueue(&(0..DUE).map(due).collect::<Vec<Event>>()).await;
    let claimer = outbox.claimer("one");
    let (mut position, mut found) = (claimer.position.clone(), 0);
    for claims in 1.. {
        assert!(claims < 10, "the claims come to no end");
        let limit = Limit::rows(4_000);
        let claimed = outbox.store.claim(&claimer.relay, &claimer.lease, &position, limit).await;
        let claimed = claimed.unwrap();
        found += claimed.rows.len();
        position = claimed.position;
        if claimed.caught_up {
            break;
        }
    }
    assert_eq!(found, DUE);
}

/// One of those whose time has come, and a fresh one.
pub async fn a_claim_of_two_brings_both_kinds(subject: &Subject) {
    let outbox = subject.outbox().await;
    let past = Timestamp::now().checked_sub(SignedDuration::from_hours(1)).unwrap();
    let due = |_| Event::builder("Happened").raw_json("{}").deliver_at(past).build().unwrap();
    let all: Vec<Event> = (0..3).map(due).chain(events(3)).collect();
    outbox.enqueue(&all).await;
    let mut claimer = outbox.claimer("one");
    for _ in 0..3 {
        let rows = claimer.claim(2).await;
        let is_due = |row: &&Fetched| row.content.as_ref().unwrap().event.deliver_at().is_some();
        assert_eq!((rows.len(), rows.iter().filter(is_due).count()), (2, 1));
    }
}

/// Those that are due fill the bytes. The cursor goes on: fresh rows may lie beyond what it has seen.
pub async fn due_rows_that_are_cut_do_not_stop_the_cursor(subject: &Subject) {
    let outbox = subject.outbox().await;
    let past = Timestamp::now().checked_sub(SignedDuration::from_hours(1)).unwrap();
    let payload = format!("{:?}", "x".repeat(10_000));
    let due = |_| {
        let due = Event::builder("Happened").raw_json(payload.clone()).deliver_at(past);
        due.build().unwrap()
    };
    outbox.enqueue(&(0..4).map(due).collect::<Vec<Event>>()).await;
    let taken = outbox.enqueue(&events(3)).await;
    let other = outbox.claimer("other");
    let sequences: Vec<i64> = taken.iter().map(|one| one.sequence).collect();
    outbox.store.claim_hot(&other.relay, &other.lease, &sequences).await.unwrap();
    let mut claimer = outbox.claimer("one");
    let rows = claimer.claim_within(Limit { rows: 100, bytes: 10_000 }).await;
    assert_eq!(rows.len(), 1, "that is half of the bytes");
    assert_eq!(claimer.position.sequence, sequences[2]);
}

/// The database's clock was set back after the claim.
pub async fn a_row_lease_of_the_future_is_nobodys(subject: &Subject) {
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&events(2)).await;
    let mut dying = outbox.claimer("dying");
    outbox.store.heartbeat(&dying.relay, 0).await.unwrap();
    assert_eq!(dying.claim(10).await.len(), 2);
    let heir = outbox.claimer_for("heir", SHORT);
    outbox.store.heartbeat(&heir.relay, 0).await.unwrap();
    assert!(heir.claim_expired().await.is_none(), "the other one's leases are longer");
    let first = enqueued[0].sequence;
    outbox.edit(Edit::PostponeRowLease { sequence: first, hours: 100 }).await;
    let mut found = None;
    // A call may look at a part of the rows; the next one goes on there. The heir's own lease ends soon.
    for _ in 0..4 {
        found = heir.claim_expired().await;
        if found.is_some() {
            break;
        }
    }
    let found = found.map(|row| (row.sequence, row.attempts));
    assert_eq!(found, Some((first, 1)), "it is longer than any lease");
}

/// A claim ends where its bytes do, and so does a sweep; one event that is larger comes alone.
pub async fn a_claim_ends_where_its_bytes_do(subject: &Subject) {
    let outbox = subject.outbox().await;
    let payload = format!("{:?}", "x".repeat(10_000));
    let large = |n: i64| {
        let event = Event::builder("Happened").aggregate("Thing", n).raw_json(payload.clone());
        event.build().unwrap()
    };
    let all: Vec<Event> = (0..12).map(large).collect();
    let expected: Vec<i64> = outbox.enqueue(&all).await.iter().map(|one| one.sequence).collect();
    for (bytes, most) in [(1, 1), (40_000, 5)] {
        let limit = Limit { rows: 100, bytes };
        let mut claimer = outbox.claimer(&format!("within-{bytes}"));
        let mut found = Vec::new();
        while found.len() < expected.len() {
            let rows = claimer.claim_within(limit).await;
            assert!((1..=most).contains(&rows.len()), "{} events in {bytes} bytes", rows.len());
            found.extend(sequences(&rows));
        }
        assert_eq!(found, expected);
        assert!(claimer.claim_within(limit).await.is_empty());

        // What was given back is swept up in the same way.
        outbox.store.unclaim(&claimer.lease, &expected).await.unwrap();
        let mut swept = Vec::new();
        while swept.len() < expected.len() {
            let rows = claimer.claim_late_within(limit).await;
            assert!((1..=most).contains(&rows.len()), "{} swept in {bytes} bytes", rows.len());
            swept.extend(sequences(&rows));
        }
        swept.sort_unstable();
        assert_eq!(swept, expected);
        outbox.store.unclaim(&claimer.lease, &expected).await.unwrap();
    }
}
