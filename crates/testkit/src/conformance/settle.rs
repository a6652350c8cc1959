//! Writing outcomes back.

use std::time::Duration;

use posthaste_core::{
    Status, limits,
    store::{Limit, Selection, SettleReport, Verdict, Wait},
};
use uuid::Uuid;

use super::{
    Edit, PlainEvent, Subject,
    relays::{
        BROKER, dead, event, events, held, parked, retry, sent, sequences, settlement, suspect,
    },
};

const HOUR: Duration = Duration::from_hours(1);

/// A delivered event is sent, and is never read again.
pub async fn a_delivered_event_is_sent(subject: &Subject) {
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&events(3)).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    owner.settle(&sent(&rows[..2])).await;
    for sent in &enqueued[..2] {
        let record = outbox.record(sent.id).await;
        assert_eq!((record.status, record.attempts), (Status::Sent, 0));
        assert!(record.sent_at.is_some() && record.dead_at.is_none());
    }
    assert_eq!(outbox.record(enqueued[2].id).await.status, Status::New);
    assert_eq!(sequences(&owner.read_all().await), [enqueued[2].sequence]);
    assert!(owner.read_due().await.is_empty());
    assert_eq!(outbox.store.count_sent().await.unwrap(), 2);
}

/// A batch larger than one statement of any database takes is settled as one.
pub async fn a_large_batch_is_settled_as_one(subject: &Subject) {
    let outbox = subject.outbox().await;
    outbox.enqueue(&events(3_000)).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    let mut batch = sent(&rows[..2_000]);
    batch.extend(rows[2_000..2_500].iter().map(|row| retry(row, 1, HOUR)));
    batch.extend(rows[2_500..].iter().map(held));
    owner.settle(&batch).await;
    assert_eq!(outbox.store.count_sent().await.unwrap(), 2_000);
    let counts = outbox.store.counts(u64::MAX).await.unwrap();
    assert_eq!((counts.new, counts.retry), (500, 500));
}

/// What lies between the events of a batch is not settled with them, whether they are kept or deleted:
/// it can be another's, or still under way.
pub async fn what_lies_between_is_not_settled(subject: &Subject) {
    let others: [fn(usize) -> bool; 4] = [
        |place| place % 2 == 1,
        |place| place % 10 == 5,
        |place| place % 100 == 50,
        // A batch that was sent in the middle of these and is not answered yet.
        |place| (100..200).contains(&place) || place == 250,
    ];
    for keep_sent in [true, false] {
        for other in others {
            let outbox = subject.outbox().await;
            outbox.enqueue(&events(300)).await;
            let mut owner = outbox.owner().await;
            let rows = owner.poll().await;
            let (between, mut delivered): (Vec<_>, Vec<_>) =
                rows.into_iter().enumerate().partition(|(place, _)| other(*place));
            delivered.reverse();
            let rows: Vec<_> = delivered.into_iter().map(|(_, row)| row).collect();
            let report = outbox.store.settle(&owner.fence(), &sent(&rows), keep_sent).await;
            assert_eq!(report.unwrap(), SettleReport::default());
            let left: Vec<_> = between.into_iter().map(|(_, row)| row).collect();
            assert_eq!(sequences(&owner.read_all().await), sequences(&left));
        }
    }
}

/// Settling nothing is no error.
pub async fn an_empty_batch_is_no_error(subject: &Subject) {
    let outbox = subject.outbox().await;
    outbox.owner().await.settle(&[]).await;
    let claimer = outbox.claimer("one");
    claimer.settle(&[]).await;
}

/// With `keep_sent = false` a delivered event is gone, with its attempts; others stay.
pub async fn a_delivered_event_can_be_deleted(subject: &Subject) {
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&events(3)).await;
    let mut owner = outbox.owner().await;
    let mut rows = owner.poll().await;
    owner.settle(&[retry(&rows[0], 1, Duration::ZERO)]).await;
    rows[0].attempts = 1;
    let mut batch = sent(&rows[..2]);
    batch.push(retry(&rows[2], 1, HOUR));
    let report = outbox.store.settle(&owner.fence(), &batch, false).await.unwrap();
    assert_eq!(report, SettleReport::default());
    for deleted in &enqueued[..2] {
        assert!(outbox.store.event(deleted.id).await.unwrap().is_none());
        assert!(outbox.store.attempts(deleted.sequence).await.unwrap().is_empty());
    }
    assert_eq!(outbox.record(enqueued[2].id).await.status, Status::Retry);
    // The answer was lost, the relay asks again.
    let again = outbox.store.settle(&owner.fence(), &batch, false).await.unwrap();
    assert_eq!(again, SettleReport::default());
}

/// A failed event waits for its next attempt, which the attempts table explains.
pub async fn a_failed_event_waits_and_its_attempts_are_recorded(subject: &Subject) {
    let outbox = subject.outbox().await;
    let event = event(1);
    outbox.enqueue_one(&event).await;
    let mut owner = outbox.owner().await;
    let row = owner.poll().await.remove(0);

    owner.settle(&[retry(&row, 1, HOUR)]).await;
    let record = outbox.record(event.id()).await;
    assert_eq!((record.status, record.attempts), (Status::Retry, 1));
    assert_eq!((record.wait, record.last_error.as_deref()), (Some(Wait::Retry), Some("refused 1")));
    assert!(record.not_before.is_some());
    let due = outbox.store.read_due(&owner.shards(), None, Limit::rows(10)).await.unwrap();
    assert!(due.rows.is_empty(), "it was due at once");
    let next = due.next.unwrap();
    assert!(next > HOUR / 2 && next <= HOUR, "due in {next:?}");

    owner.settle(&[retry(&row, 2, Duration::ZERO)]).await;
    let due = owner.read_due().await;
    assert_eq!(sequences(&due), [row.sequence]);
    assert_eq!((due[0].attempts, due[0].wait), (2, Some(Wait::Retry)));
    assert_eq!(due[0].content.as_ref().unwrap().attempts, 2);

    let attempts = outbox.store.attempts(row.sequence).await.unwrap();
    assert_eq!(attempts.iter().map(|one| one.attempt).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(
        attempts.iter().map(|one| &*one.error).collect::<Vec<_>>(),
        ["refused 1", "refused 2"]
    );
    for attempt in &attempts {
        assert_eq!((&*attempt.relay, &*attempt.destination), (&*owner.relay.owner(), BROKER));
    }
    assert!(attempts[0].at <= attempts[1].at);

    owner.settle(&sent(&due)).await;
    let record = outbox.record(event.id()).await;
    assert_eq!((record.status, record.attempts), (Status::Sent, 2));
    assert!(owner.read_due().await.is_empty());
}

/// A settle whose answer was lost can be repeated: attempts are absolute numbers.
pub async fn repeating_a_settle_is_harmless(subject: &Subject) {
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&events(5)).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    let batch = [
        sent(&rows[..1]).remove(0),
        retry(&rows[1], 3, HOUR),
        dead(&rows[2]),
        held(&rows[3]),
        suspect(&rows[4], 2),
    ];
    for _ in 0..3 {
        owner.settle(&batch).await;
    }
    let expected =
        [(Status::Sent, 0, 0), (Status::Retry, 3, 1), (Status::Dead, 1, 1), (Status::New, 0, 0)];
    for (enqueued, (status, attempts, recorded)) in enqueued.iter().zip(expected) {
        let record = outbox.record(enqueued.id).await;
        assert_eq!((record.status, record.attempts), (status, attempts));
        assert_eq!(outbox.store.attempts(enqueued.sequence).await.unwrap().len(), recorded);
    }
    let record = outbox.record(enqueued[4].id).await;
    assert_eq!((record.status, record.attempts), (Status::Retry, 2));
}

/// A settle names the event, not only its number: another event that has the number by now is left alone.
pub async fn another_event_under_the_number_is_not_settled(subject: &Subject) {
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&events(6)).await;
    let mut owner = outbox.owner().await;
    let mut rows = owner.poll().await;
    // One of them is as it was read: it is settled, and its neighbours are not.
    for row in &mut rows[..5] {
        row.identity.id = Some(Uuid::now_v7());
    }
    for others in [
        sent(&rows),
        rows[..5].iter().map(|row| retry(row, 3, HOUR)).collect(),
        rows[..5].iter().map(dead).collect(),
        rows[..5].iter().map(held).collect(),
        rows[..5].iter().map(|row| suspect(row, 2)).collect(),
    ] {
        owner.settle(&others).await;
        for enqueued in &enqueued[..5] {
            let record = outbox.record(enqueued.id).await;
            let left = (record.status, record.attempts, record.wait);
            assert_eq!(left, (Status::New, 0, None), "{others:?}");
            assert!(outbox.store.attempts(enqueued.sequence).await.unwrap().is_empty());
        }
        assert_eq!(outbox.record(enqueued[5].id).await.status, Status::Sent);
    }
    let fence = owner.fence();
    outbox.store.settle(&fence, &sent(&rows[..5]), false).await.unwrap();
    // Far apart they are written in another way.
    outbox.store.settle(&fence, &sent(&[rows[0].clone(), rows[4].clone()]), true).await.unwrap();
    for enqueued in &enqueued[..5] {
        assert_eq!(outbox.record(enqueued.id).await.status, Status::New);
    }
}

/// A settle whose answer was lost is repeated. What an operator replayed in between is still to be sent.
pub async fn a_repeated_settle_does_not_swallow_a_replay(subject: &Subject) {
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&events(4)).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    let mut batch = sent(&rows[..3]);
    batch.push(dead(&rows[3]));
    owner.settle(&batch).await;
    for replayed in [1, 3] {
        let one = Selection::One(enqueued[replayed].id);
        assert_eq!(outbox.store.replay(&one).await.unwrap(), 1);
    }
    for batch in [&batch[..], &batch[1..2], &batch[3..]] {
        owner.settle(batch).await;
        for replayed in [1, 3] {
            let record = outbox.record(enqueued[replayed].id).await;
            assert_eq!(record.wait, Some(Wait::Replay), "{batch:?}");
            assert!(!matches!(record.status, Status::Sent | Status::Dead));
        }
    }
    // The replay's own outcome counts.
    let due = owner.read_due().await;
    assert_eq!(sequences(&due), [enqueued[1].sequence, enqueued[3].sequence]);
    assert!(due.iter().all(|row| row.identity.replay == 1));
    owner.settle(&sent(&due)).await;
    for enqueued in &enqueued {
        assert_eq!(outbox.record(enqueued.id).await.status, Status::Sent);
    }
}

/// A destination that asks to come back later burns no attempt.
pub async fn coming_back_later_burns_no_attempt(subject: &Subject) {
    let outbox = subject.outbox().await;
    let event = event(1);
    let sequence = outbox.enqueue_one(&event).await.sequence;
    let mut owner = outbox.owner().await;
    let row = owner.poll().await.remove(0);
    owner.settle(&[retry(&row, 0, HOUR)]).await;
    let record = outbox.record(event.id()).await;
    assert_eq!((record.status, record.attempts), (Status::Retry, 0));
    assert_eq!(record.last_error.as_deref(), Some("refused 0"));
    assert!(outbox.store.attempts(sequence).await.unwrap().is_empty());
}

/// A dead event is kept with its reason and blocks nobody.
pub async fn a_dead_event_is_kept_with_its_reason(subject: &Subject) {
    let outbox = subject.outbox().await;
    let event = event(1);
    let sequence = outbox.enqueue_one(&event).await.sequence;
    let mut owner = outbox.owner().await;
    let row = owner.poll().await.remove(0);
    owner.settle(&[dead(&row)]).await;
    let record = outbox.record(event.id()).await;
    assert_eq!((record.status, record.attempts), (Status::Dead, 1));
    assert_eq!((record.wait, record.not_before), (None, None));
    assert_eq!(record.last_error.as_deref(), Some("refused for good"));
    assert!(record.dead_at.is_some() && record.sent_at.is_none());
    let attempts = outbox.store.attempts(sequence).await.unwrap();
    assert_eq!(attempts.len(), 1);
    assert_eq!(attempts[0].error, "refused for good");
    assert!(owner.read_all().await.is_empty() && owner.read_due().await.is_empty());
    assert!(outbox.store.read_blocked(&owner.shards(), None, 1000).await.unwrap().lanes.is_empty());
}

/// A dead event that parks its lane is dead, and the lane knows.
pub async fn a_parked_event_is_dead_and_blocks_its_lane(subject: &Subject) {
    let outbox = subject.outbox().await;
    let event = event(1);
    outbox.enqueue_one(&event).await;
    let mut owner = outbox.owner().await;
    let row = owner.poll().await.remove(0);
    owner.settle(&[parked(&row)]).await;
    let record = outbox.record(event.id()).await;
    assert_eq!((record.status, record.wait), (Status::Dead, Some(Wait::Parked)));
    assert_eq!(record.not_before, None, "it waits for an operator, not for a time");
    assert!(owner.read_due().await.is_empty());
    let blocked = outbox.store.read_blocked(&owner.shards(), None, 1000).await.unwrap().lanes;
    assert_eq!(blocked.len(), 1);
    assert!(blocked[0].parked && Some(blocked[0].key) == row.key);
}

/// A held event is new, and found through its lane alone.
pub async fn a_held_event_waits_for_its_lane(subject: &Subject) {
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&[event("key"), event("key")]).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    owner.settle(&[retry(&rows[0], 1, HOUR), held(&rows[1])]).await;
    let record = outbox.record(enqueued[1].id).await;
    assert_eq!((record.status, record.wait), (Status::New, Some(Wait::Held)));
    assert_eq!((record.attempts, record.not_before), (0, None));
    assert!(owner.read_all().await.is_empty() && owner.read_due().await.is_empty());
    let lane =
        outbox.store.read_held(BROKER, rows[1].key.unwrap(), 0, Limit::rows(10)).await.unwrap();
    assert_eq!(sequences(&lane), [rows[1].sequence]);
    // The lane goes on: delivered straight from there.
    owner.settle(&sent(&lane)).await;
    assert_eq!(outbox.record(enqueued[1].id).await.status, Status::Sent);
}

/// A suspect's attempt is recorded before its dispatch, and a successor finds it at once.
pub async fn a_suspect_has_its_attempt_before_its_dispatch(subject: &Subject) {
    let outbox = subject.outbox().await;
    let event = event(1);
    outbox.enqueue_one(&event).await;
    let mut owner = outbox.owner().await;
    let row = owner.poll().await.remove(0);
    owner.settle(&[suspect(&row, 1)]).await;
    let record = outbox.record(event.id()).await;
    assert_eq!((record.status, record.attempts), (Status::Retry, 1));
    assert_eq!(record.wait, Some(Wait::Suspect));
    assert!(owner.read_all().await.is_empty());
    let due = owner.read_due().await;
    assert_eq!((due[0].attempts, due[0].wait), (1, Some(Wait::Suspect)));
    owner.settle(&sent(&due)).await;
    assert_eq!(outbox.record(event.id()).await.status, Status::Sent);
}

/// A replay that fails stays a replay, exempt from its key's order.
pub async fn a_failed_replay_stays_a_replay(subject: &Subject) {
    let outbox = subject.outbox().await;
    outbox.enqueue_one(&event(1)).await;
    let mut owner = outbox.owner().await;
    let row = owner.poll().await.remove(0);
    let verdict = Verdict::Retry {
        after: Duration::ZERO,
        error: "refused".to_owned(),
        destination: BROKER.to_owned(),
        key: None,
        replay: true,
    };
    owner.settle(&[settlement(&row, 1, verdict)]).await;
    assert_eq!(owner.read_due().await[0].wait, Some(Wait::Replay));
    assert!(outbox.store.read_blocked(&owner.shards(), None, 1000).await.unwrap().lanes.is_empty());

    // Also one that may have killed a relay.
    let verdict = Verdict::Suspect { destination: BROKER.to_owned(), key: None, replay: true };
    owner.settle(&[settlement(&row, 2, verdict)]).await;
    let due = owner.read_due().await;
    assert_eq!((due[0].attempts, due[0].wait), (2, Some(Wait::Replay)));
    assert!(outbox.store.read_blocked(&owner.shards(), None, 1000).await.unwrap().lanes.is_empty());
}

/// An event that is sent, dead or discarded stays as it is, whatever a late settle says.
pub async fn a_settled_event_never_changes(subject: &Subject) {
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&events(4)).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    owner.settle(&[sent(&rows[..1]).remove(0), dead(&rows[1]), parked(&rows[2])]).await;
    outbox.store.discard(&Selection::One(enqueued[3].id)).await.unwrap();

    for (row, enqueued) in rows.iter().zip(&enqueued) {
        let before = format!("{:?}", outbox.record(enqueued.id).await);
        let attempts = outbox.store.attempts(enqueued.sequence).await.unwrap();
        let mut later_dead = dead(row);
        later_dead.attempts = 9;
        for settlement in [
            sent(std::slice::from_ref(row)).remove(0),
            retry(row, 9, Duration::ZERO),
            later_dead,
            parked(row),
            held(row),
            suspect(row, 9),
        ] {
            for keep_sent in [true, false] {
                let batch = std::slice::from_ref(&settlement);
                outbox.store.settle(&owner.fence(), batch, keep_sent).await.unwrap();
                let after = format!("{:?}", outbox.record(enqueued.id).await);
                assert_eq!(after, before, "{:?} changed it", settlement.verdict);
            }
        }
        assert_eq!(outbox.store.attempts(enqueued.sequence).await.unwrap(), attempts);
    }
}

/// An error text is cut at its limit, between two characters.
pub async fn a_long_error_is_cut_between_two_characters(subject: &Subject) {
    let outbox = subject.outbox().await;
    let event = event(1);
    let sequence = outbox.enqueue_one(&event).await.sequence;
    let mut owner = outbox.owner().await;
    let row = owner.poll().await.remove(0);
    let error = "xü漢💡".repeat(2_000);
    let expected: String = error.chars().take(limits::ERROR_TEXT).collect();
    let failed = |error: String| {
        let destination = BROKER.to_owned();
        Verdict::Retry { after: HOUR, error, destination, key: row.key, replay: false }
    };
    owner.settle(&[settlement(&row, 1, failed(error.clone()))]).await;
    assert_eq!(outbox.record(event.id()).await.last_error.as_ref(), Some(&expected));
    assert_eq!(outbox.store.attempts(sequence).await.unwrap()[0].error, expected);
    let verdict = Verdict::Dead { error, destination: BROKER.to_owned(), parked: None };
    owner.settle(&[settlement(&row, 2, verdict)]).await;
    assert_eq!(outbox.record(event.id()).await.last_error, Some(expected));
}

/// An error text with any character in it can be written.
pub async fn an_error_may_hold_any_character(subject: &Subject) {
    let outbox = subject.outbox().await;
    let event = event(1);
    outbox.enqueue_one(&event).await;
    let mut owner = outbox.owner().await;
    let row = owner.poll().await.remove(0);
    // Not every database can keep U+0000: it may be left out.
    let error = "a\0b '\" \\ ? $1 \u{10fffd}\r\n".to_owned();
    let verdict = Verdict::Dead { error: error.clone(), destination: BROKER.into(), parked: None };
    owner.settle(&[settlement(&row, 1, verdict)]).await;
    let kept = outbox.record(event.id()).await.last_error.unwrap();
    assert_eq!(kept.replace('\0', ""), error.replace('\0', ""));
}

/// A row that cannot be decoded is handed over with the reason, and can be settled.
pub async fn a_row_that_cannot_be_decoded_can_be_given_up(subject: &Subject) {
    let outbox = subject.outbox().await;
    let id = Uuid::now_v7();
    let broken = PlainEvent {
        id,
        payload: "{}".to_owned(),
        headers: Some("secret is not json".to_owned()),
        ..PlainEvent::default()
    };
    outbox.edit(Edit::Insert(&broken)).await;
    let next = outbox.enqueue_one(&event("next")).await.sequence;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[1].sequence, next, "a broken row hides the others");
    let why = rows[0].content.clone().unwrap_err();
    assert!(why.contains("headers") && !why.contains("secret"), "{why}");
    let record = outbox.record(id).await;
    assert_eq!((record.event_id, record.content.unwrap_err()), (Some(id), why));

    owner.settle(&[dead(&rows[0])]).await;
    assert_eq!(outbox.record(id).await.status, Status::Dead);
    assert_eq!(sequences(&owner.read_all().await), [next]);
}

/// Rows that somebody else has locked are told, without a wait for them; what is gone is not.
pub async fn locked_rows_are_told(subject: &Subject) {
    let outbox = subject.outbox().await;
    let all: Vec<i64> =
        outbox.enqueue(&events(5)).await.iter().map(|enqueued| enqueued.sequence).collect();
    assert!(outbox.store.locked(&all).await.unwrap().is_empty());
    assert!(outbox.store.locked(&[]).await.unwrap().is_empty());
    outbox.delete(&all[4..]).await;

    if !subject.skips_locked {
        // It is not known which.
        return;
    }
    let mut holder = outbox.begin().await;
    holder.lock(&[all[1], all[3]]).await.unwrap();
    let mut locked = outbox.store.locked(&all).await.unwrap();
    locked.sort_unstable();
    assert_eq!(locked, [all[1], all[3]]);
    assert!(outbox.store.locked(&all[..1]).await.unwrap().is_empty());
    holder.rollback().await.unwrap();
    assert!(outbox.store.locked(&all).await.unwrap().is_empty(), "asking locks nothing");
}
