//! What an operator does to events.

use std::time::Duration;

use posthaste_core::{
    ErrorKind, Event, Status,
    status::Step,
    store::{Filter, Limit, Selection, Wait},
};
use uuid::Uuid;

use super::{
    Subject,
    relays::{BROKER, dead, event, events, held, parked, refusal, retry, sent, sequences, suspect},
    states::{enqueue_in_state, in_every_state, in_state},
};

const HOUR: Duration = Duration::from_hours(1);

fn matching(filter: Filter, limit: usize) -> Selection {
    Selection::Matching { filter, limit }
}

fn in_status(status: Status) -> Filter {
    Filter { status: Some(status), ..Filter::default() }
}

/// A replay starts anew, carries its number, and is found behind every cursor.
pub async fn a_replay_starts_anew_and_is_found(subject: &Subject) {
    for from in [Status::Dead, Status::Sent] {
        let outbox = subject.outbox().await;
        let mut owner = outbox.owner().await;
        let id = in_state(&outbox, &owner, from).await;
        outbox.enqueue(&events(3)).await;
        owner.poll().await;
        assert_eq!(outbox.store.replay(&Selection::One(id)).await.unwrap(), 1);

        let record = outbox.record(id).await;
        assert_eq!((record.status, record.attempts), (Status::New, 0));
        assert_eq!((record.sent_at, record.dead_at, record.last_error), (None, None, None));
        let due = owner.read_due().await;
        assert_eq!(sequences(&due), [record.sequence], "the replay of a {from} event is not found");
        assert_eq!((due[0].attempts, due[0].wait), (0, Some(Wait::Replay)));
        assert_eq!(due[0].content.as_ref().unwrap().replay, 1);
        assert!(
            outbox.store.read_blocked(&owner.shards(), None, 1000).await.unwrap().lanes.is_empty()
        );

        owner.settle(&sent(&due)).await;
        assert_eq!(outbox.record(id).await.status, Status::Sent);
        assert_eq!(outbox.store.replay(&Selection::One(id)).await.unwrap(), 1);
        assert_eq!(owner.read_due().await[0].content.as_ref().unwrap().replay, 2);
    }
}

/// A replay can be claimed under row leases, too.
pub async fn a_replay_can_be_claimed(subject: &Subject) {
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&events(3)).await;
    let mut claimer = outbox.claimer("one");
    let rows = claimer.claim(10).await;
    claimer.settle(&sent(&rows)).await;
    outbox.store.replay(&Selection::One(enqueued[0].id)).await.unwrap();
    let again = claimer.claim(10).await;
    assert_eq!(sequences(&again), [enqueued[0].sequence]);
    assert_eq!(again[0].content.as_ref().unwrap().replay, 1);
}

/// The failures of the first life stay on record beside those of the second.
pub async fn attempts_of_an_earlier_life_are_kept(subject: &Subject) {
    let outbox = subject.outbox().await;
    let owner = outbox.owner().await;
    let row = enqueue_in_state(&outbox, &owner, &event(1), Status::Dead).await;
    let id = row.content.as_ref().unwrap().event.id();
    outbox.store.replay(&Selection::One(id)).await.unwrap();
    owner.settle(&[dead(&owner.read_due().await[0])]).await;
    let attempts = outbox.store.attempts(row.sequence).await.unwrap();
    assert_eq!(attempts.iter().map(|one| one.attempt).collect::<Vec<_>>(), [1, 1]);
}

/// Named by their places, events change as far as they are in the state that was asked for; a state that
/// forbids the step is refused as a whole.
pub async fn these_are_changed_as_far_as_their_state_allows(subject: &Subject) {
    let outbox = subject.outbox().await;
    let mut owner = outbox.owner().await;
    outbox.enqueue(&events(4)).await;
    let rows = owner.poll().await;
    owner.settle(&[dead(&rows[0]), dead(&rows[1]), sent(&rows[2..3]).remove(0)]).await;
    let these = |status| Selection::These { sequences: sequences(&rows), status };

    assert_eq!(outbox.store.replay(&these(Status::Dead)).await.unwrap(), 2);
    assert_eq!(outbox.store.replay(&these(Status::Dead)).await.unwrap(), 0);
    assert_eq!(outbox.store.replay(&these(Status::Sent)).await.unwrap(), 1);
    let refused = outbox.store.replay(&these(Status::New)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::IllegalTransition);
    assert_eq!(outbox.store.discard(&these(Status::New)).await.unwrap(), 4);
    let refused = outbox.store.discard(&these(Status::Sent)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::IllegalTransition);
}

/// Many events are replayed in batches, until none is left.
pub async fn many_are_replayed_in_batches(subject: &Subject) {
    for from in [Status::Dead, Status::Sent] {
        let outbox = subject.outbox().await;
        let mut owner = outbox.owner().await;
        outbox.enqueue(&events(26)).await;
        let rows = owner.poll().await;
        match from {
            Status::Dead => owner.settle(&rows[..25].iter().map(dead).collect::<Vec<_>>()).await,
            _ => owner.settle(&sent(&rows[..25])).await,
        }
        let mut batches = Vec::new();
        for _ in 0..4 {
            let replayed = outbox.store.replay(&matching(in_status(from), 10)).await;
            batches.push(replayed.unwrap());
        }
        assert_eq!(batches, [10, 10, 5, 0], "{from}");
        let mut found = sequences(&owner.read_due().await);
        found.sort_unstable();
        assert_eq!(found, sequences(&rows[..25]));
    }
}

/// A filter replays what matches and nothing else, and must say which of the two states it means.
pub async fn a_filtered_replay_takes_only_what_matches(subject: &Subject) {
    let outbox = subject.outbox().await;
    let owner = outbox.owner().await;
    let build = |tenant: &str| {
        let event = Event::builder("Happened").tenant(tenant).aggregate("Thing", Uuid::now_v7());
        event.raw_json("{}").build().unwrap()
    };
    let (ours, theirs, delivered) = (build("ours"), build("theirs"), build("ours"));
    enqueue_in_state(&outbox, &owner, &ours, Status::Dead).await;
    enqueue_in_state(&outbox, &owner, &theirs, Status::Dead).await;
    enqueue_in_state(&outbox, &owner, &delivered, Status::Sent).await;
    let filter = Filter { tenant: Some("ours".to_owned()), ..in_status(Status::Dead) };
    assert_eq!(outbox.store.replay(&matching(filter, 10)).await.unwrap(), 1);
    assert_eq!(outbox.record(ours.id()).await.status, Status::New);
    assert_eq!(outbox.record(theirs.id()).await.status, Status::Dead);
    assert_eq!(outbox.record(delivered.id()).await.status, Status::Sent);

    for status in [None, Some(Status::New), Some(Status::Retry), Some(Status::Discarded)] {
        let filter = Filter { status, ..Filter::default() };
        let error = refusal(outbox.store.replay(&matching(filter, 10)).await);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{status:?}: {error}");
    }
}

/// For every state and both steps of an operator, the store does what `Status::after` says; a
/// forbidden step is an error and changes nothing.
pub async fn a_forbidden_step_is_an_error_and_changes_nothing(subject: &Subject) {
    let outbox = subject.outbox().await;
    let owner = outbox.owner().await;
    for step in [Step::Replay, Step::Discard] {
        for (status, id) in in_every_state(&outbox, &owner).await {
            let before = format!("{:?}", outbox.record(id).await);
            let selection = Selection::One(id);
            let outcome = match step {
                Step::Replay => outbox.store.replay(&selection).await,
                _ => outbox.store.discard(&selection).await,
            };
            let after = outbox.record(id).await;
            if let Ok(expected) = status.after(step) {
                assert_eq!(outcome.unwrap(), 1, "{status} cannot {step}");
                assert_eq!(after.status, expected);
            } else {
                let error = refusal(outcome);
                assert_eq!(error.kind(), ErrorKind::IllegalTransition, "{status}, {step}: {error}");
                assert!(error.to_string().contains(status.as_str()), "{error}");
                assert_eq!(format!("{after:?}"), before, "{step} changed a {status} event");
            }
        }
    }
}

/// An event that is not there is named.
pub async fn an_unknown_event_is_named(subject: &Subject) {
    let outbox = subject.outbox().await;
    let id = Uuid::now_v7();
    let selection = Selection::One(id);
    for outcome in [outbox.store.replay(&selection).await, outbox.store.discard(&selection).await] {
        let error = refusal(outcome);
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.to_string().contains(&id.to_string()), "{error}");
    }
}

/// A discarded event is never delivered.
pub async fn a_discarded_event_is_never_read(subject: &Subject) {
    let outbox = subject.outbox().await;
    let owner = outbox.owner().await;
    for status in [Status::New, Status::Retry, Status::Dead] {
        let id = in_state(&outbox, &owner, status).await;
        assert_eq!(outbox.store.discard(&Selection::One(id)).await.unwrap(), 1);
        assert_eq!(outbox.record(id).await.status, Status::Discarded);
    }
    assert!(owner.read_all().await.is_empty());
    let due = outbox.store.read_due(&owner.shards(), None, Limit::rows(10)).await.unwrap();
    assert!(due.rows.is_empty() && due.next.is_none());
    assert!(outbox.store.read_blocked(&owner.shards(), None, 1000).await.unwrap().lanes.is_empty());
    assert!(outbox.claimer("one").claim(10).await.is_empty());
}

/// A filter discards what may be discarded and skips the rest, in batches.
pub async fn a_filtered_discard_skips_what_it_may_not_touch(subject: &Subject) {
    let outbox = subject.outbox().await;
    let owner = outbox.owner().await;
    let states = in_every_state(&outbox, &owner).await;
    outbox.enqueue(&events(5)).await;
    let mut total = 0;
    for _ in 0..10 {
        let discarded = outbox.store.discard(&matching(Filter::default(), 3)).await.unwrap();
        assert!(discarded <= 3, "{discarded} in one transaction");
        total += discarded;
        if discarded == 0 {
            break;
        }
    }
    assert_eq!(total, 5 + 3);
    for (status, id) in states {
        let expected = status.after(Step::Discard).unwrap_or(status);
        assert_eq!(outbox.record(id).await.status, expected);
    }
}

/// Discarding what blocks a lane sets its first held event free, and no other.
pub async fn discarding_the_head_of_a_lane_frees_the_next(subject: &Subject) {
    for by_filter in [false, true] {
        for block in ["retry", "suspect", "parked"] {
            let outbox = subject.outbox().await;
            let mut owner = outbox.owner().await;
            let enqueued = outbox
                .enqueue(&[
                    event("key"),
                    event("key"),
                    event("key"),
                    event("other"),
                    event("other"),
                ])
                .await;
            let rows = owner.poll().await;
            let head = match block {
                "retry" => retry(&rows[0], 1, HOUR),
                "suspect" => suspect(&rows[0], 1),
                _ => parked(&rows[0]),
            };
            // Held in the wrong order: the first is the one with the lowest sequence.
            owner.settle(&[head, held(&rows[2]), parked(&rows[3]), held(&rows[4])]).await;
            owner.settle(&[held(&rows[1])]).await;

            let selection = if by_filter {
                let aggregate_id = Some("key".to_owned());
                let status = Some(if block == "parked" { Status::Dead } else { Status::Retry });
                matching(Filter { status, aggregate_id, ..Filter::default() }, 10)
            } else {
                Selection::One(enqueued[0].id)
            };
            assert_eq!(outbox.store.discard(&selection).await.unwrap(), 1, "{block}");
            let due = owner.read_due().await;
            assert_eq!(sequences(&due), [rows[1].sequence], "{block}");
            assert_eq!(due[0].wait, Some(Wait::Held));
            // The lane goes on from there: the others are still held behind it.
            let lane = outbox
                .store
                .read_held(BROKER, rows[1].key.unwrap(), 0, Limit::rows(10))
                .await
                .unwrap();
            assert_eq!(sequences(&lane), [rows[1].sequence, rows[2].sequence]);
        }
    }
}

/// An event that was set free and is discarded before a relay came by passes its freedom on: or
/// the rest of the lane would be held for ever.
pub async fn discarding_a_freed_event_frees_the_next(subject: &Subject) {
    let outbox = subject.outbox().await;
    let mut owner = outbox.owner().await;
    let enqueued = outbox.enqueue(&[event("key"), event("key"), event("key")]).await;
    let rows = owner.poll().await;
    owner.settle(&[parked(&rows[0]), held(&rows[1]), held(&rows[2])]).await;
    for discarded in &enqueued[..2] {
        outbox.store.discard(&Selection::One(discarded.id)).await.unwrap();
    }
    assert_eq!(sequences(&owner.read_due().await), [rows[2].sequence]);
}

/// Discarding a follower frees nobody.
pub async fn discarding_a_held_event_frees_nobody(subject: &Subject) {
    let outbox = subject.outbox().await;
    let mut owner = outbox.owner().await;
    let enqueued = outbox.enqueue(&[event("key"), event("key"), event("key")]).await;
    let rows = owner.poll().await;
    owner.settle(&[parked(&rows[0]), held(&rows[1]), held(&rows[2])]).await;
    outbox.store.discard(&Selection::One(enqueued[1].id)).await.unwrap();
    assert!(owner.read_due().await.is_empty(), "the lane is still parked");
    let lane =
        outbox.store.read_held(BROKER, rows[0].key.unwrap(), 0, Limit::rows(10)).await.unwrap();
    assert_eq!(sequences(&lane), [rows[2].sequence]);
}

/// The dead event that parks a lane takes its place at the lane's head again; its followers stay
/// held.
pub async fn a_replayed_parked_event_heads_its_lane_again(subject: &Subject) {
    let outbox = subject.outbox().await;
    let mut owner = outbox.owner().await;
    let enqueued = outbox.enqueue(&[event("key"), event("key")]).await;
    let rows = owner.poll().await;
    owner.settle(&[parked(&rows[0]), held(&rows[1])]).await;
    assert_eq!(outbox.store.replay(&Selection::One(enqueued[0].id)).await.unwrap(), 1);
    let due = owner.read_due().await;
    assert_eq!(sequences(&due), [rows[0].sequence]);
    assert_eq!((due[0].wait, due[0].attempts), (Some(Wait::Retry), 0));
    assert_eq!(due[0].content.as_ref().unwrap().replay, 1);
    let blocked = outbox.store.read_blocked(&owner.shards(), None, 1000).await.unwrap().lanes;
    assert_eq!(blocked.len(), 1);
    assert!(blocked[0].waiting && !blocked[0].parked, "{blocked:?}");
    let lane =
        outbox.store.read_held(BROKER, rows[0].key.unwrap(), 0, Limit::rows(10)).await.unwrap();
    assert_eq!(sequences(&lane), [rows[1].sequence]);
}
