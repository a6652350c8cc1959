//! The same event id again: writes nothing, gives the first sequence, and never hides a mistake.

use futures_util::future::{join, join_all};
use posthaste_core::{ErrorKind, Event, EventBuilder};
use uuid::Uuid;

use super::{
    Subject,
    outbox::Outbox,
    relays::{event, refusal, sent, sequences},
};

/// A repeat in the same transaction and in a later one gives the first sequence.
pub async fn the_same_id_again_gives_the_first_sequence(subject: &Subject) {
    let outbox = subject.outbox().await;
    let (event, other) = (event(1), event(2));
    let mut transaction = outbox.begin().await;
    let first = outbox.enqueue_in(&mut transaction, std::slice::from_ref(&event)).await[0];
    let same = outbox.enqueue_in(&mut transaction, std::slice::from_ref(&event)).await[0];
    transaction.commit().await.unwrap();
    assert!(!first.duplicate);
    assert!(same.duplicate);
    assert_eq!(same.sequence, first.sequence);

    let later = outbox.enqueue_one(&event).await;
    assert!(later.duplicate);
    assert_eq!(later.sequence, first.sequence);

    // Among new ones, too, and the answers keep the order of the call.
    let mixed = outbox.enqueue(&[other.clone(), event.clone()]).await;
    assert_eq!((mixed[0].id, mixed[0].duplicate), (other.id(), false));
    assert_eq!((mixed[1].id, mixed[1].duplicate), (event.id(), true));
    assert_eq!(mixed[1].sequence, first.sequence);

    let rows = outbox.owner().await.read_all().await;
    assert_eq!(sequences(&rows), [first.sequence, mixed[0].sequence]);
}

/// A repeat inside one call is written once.
pub async fn the_same_id_twice_in_one_call_is_written_once(subject: &Subject) {
    let outbox = subject.outbox().await;
    let (one, two) = (event(1), event(2));
    let enqueued = outbox.enqueue(&[one.clone(), two.clone(), one.clone()]).await;
    let ids: Vec<Uuid> = enqueued.iter().map(|answer| answer.id).collect();
    assert_eq!(ids, [one.id(), two.id(), one.id()]);
    assert_eq!(enqueued[0].sequence, enqueued[2].sequence);
    let duplicates: Vec<bool> = enqueued.iter().map(|answer| answer.duplicate).collect();
    assert_eq!(duplicates, [false, false, true]);
    assert_eq!(outbox.owner().await.read_all().await.len(), 2);
}

/// As long as the row is kept, a repeat of what was delivered is a repeat.
pub async fn the_same_id_after_delivery_is_not_sent_again(subject: &Subject) {
    let outbox = subject.outbox().await;
    let event = event(1);
    let first = outbox.enqueue_one(&event).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    owner.settle(&sent(&rows)).await;
    let again = outbox.enqueue_one(&event).await;
    assert_eq!((again.sequence, again.duplicate), (first.sequence, true));
    assert!(owner.read_all().await.is_empty());
}

/// Only the id, tenant, type and key are compared: another payload is the sender's retry.
pub async fn a_repeat_with_another_payload_keeps_the_first(subject: &Subject) {
    let outbox = subject.outbox().await;
    let build = |json: &str| {
        let builder = Event::builder("Happened").id(Uuid::from_u128(7)).aggregate("Thing", 1);
        builder.raw_json(json).build().unwrap()
    };
    let first = outbox.enqueue_one(&build("1")).await;
    let again = outbox.enqueue_one(&build("2")).await;
    assert_eq!((again.sequence, again.duplicate), (first.sequence, true));
    let record = outbox.record(first.id).await;
    assert_eq!(record.content.unwrap().event.payload().as_ref(), b"1");
}

/// Transactions that run at once with the same id write one row, and all learn its sequence.
pub async fn transactions_at_once_with_the_same_id_write_one_row(subject: &Subject) {
    let outbox = subject.outbox().await;
    for _ in 0..5 {
        let event = event("same");
        let enqueued = join_all((0..6).map(|_| outbox.enqueue_one(&event))).await;
        let first = enqueued[0].sequence;
        assert!(enqueued.iter().all(|answer| answer.sequence == first), "{enqueued:?}");
        let written = enqueued.iter().filter(|answer| !answer.duplicate).count();
        assert_eq!(written, 1, "{written} of six said that they wrote it");
        assert_eq!(outbox.record(event.id()).await.sequence, first);
    }
    assert_eq!(outbox.owner().await.read_all().await.len(), 5);
}

/// A transaction whose snapshot is older than the first write gets the first sequence all the same.
pub async fn an_old_snapshot_does_not_hide_the_first_write(subject: &Subject) {
    if !subject.concurrent_writers {
        return;
    }
    let outbox = subject.outbox().await;
    let (one, two) = (event(1), event(2));
    let mut old = outbox.begin().await;
    assert_eq!(old.count().await.unwrap(), 0);
    let first = outbox.enqueue(&[one.clone(), two.clone()]).await;
    let again = outbox.enqueue_in(&mut old, std::slice::from_ref(&one)).await[0];
    assert_eq!((again.sequence, again.duplicate), (first[0].sequence, true));
    let many = outbox.enqueue_in(&mut old, &[event(3), two, one]).await;
    assert_eq!((many[1].sequence, many[1].duplicate), (first[1].sequence, true));
    assert_eq!((many[2].sequence, many[2].duplicate), (first[0].sequence, true));
    old.commit().await.unwrap();
    assert_eq!(outbox.owner().await.read_all().await.len(), 3);
}

/// An id whose first transaction rolled back is free, also for one that was waiting for it.
pub async fn an_id_whose_transaction_rolled_back_can_be_written(subject: &Subject) {
    let outbox = subject.outbox().await;
    let event = event(1);
    let mut first = outbox.begin().await;
    outbox.enqueue_in(&mut first, std::slice::from_ref(&event)).await;
    let enqueued = if subject.concurrent_writers {
        let rollback = async { first.rollback().await.unwrap() };
        join(outbox.enqueue_one(&event), rollback).await.0
    } else {
        first.rollback().await.unwrap();
        outbox.enqueue_one(&event).await
    };
    assert!(!enqueued.duplicate);
    assert_eq!(outbox.record(event.id()).await.sequence, enqueued.sequence);
}

/// The same id with another tenant, type or key is a mistake, named by its id.
pub async fn the_same_id_with_another_tenant_type_or_key_is_a_conflict(subject: &Subject) {
    let outbox = subject.outbox().await;
    let id = Uuid::now_v7();
    let base = |event_type: &str| {
        let builder = Event::builder(event_type).id(id).aggregate("Thing", "a").tenant("acme");
        builder.raw_json("{}")
    };
    let first = outbox.enqueue_one(&base("Happened").build().unwrap()).await;
    let others: [(&str, EventBuilder); 9] = [
        ("type", base("Undone")),
        ("type, in its case", base("happened")),
        ("tenant", base("Happened").tenant("other")),
        ("tenant, in its case", base("Happened").tenant("Acme")),
        ("aggregate type", base("Happened").aggregate_type("Other")),
        ("aggregate id", base("Happened").aggregate_id("b")),
        ("aggregate id, in a trailing space", base("Happened").aggregate_id("a ")),
        ("ordering key", base("Happened").ordering_key("mine")),
        ("ordering", base("Happened").unordered()),
    ];
    for (what, other) in others {
        let other = other.build().unwrap();
        conflicts(&outbox, std::slice::from_ref(&other), id, what).await;
        conflicts(&outbox, &[event(1), other], id, what).await;
    }
    assert_eq!(sequences(&outbox.owner().await.read_all().await), [first.sequence]);
}

/// A tenant where there was none, and none where there was one, are other tenants.
pub async fn no_tenant_is_another_tenant(subject: &Subject) {
    let outbox = subject.outbox().await;
    let id = Uuid::now_v7();
    let base = || Event::builder("Happened").id(id).aggregate("Thing", "a").raw_json("{}");
    outbox.enqueue_one(&base().build().unwrap()).await;
    conflicts(&outbox, &[base().tenant("acme").build().unwrap()], id, "a tenant").await;
}

/// An id that comes twice in one call with different content is a mistake, too.
pub async fn one_id_for_two_events_of_one_call_is_a_conflict(subject: &Subject) {
    let outbox = subject.outbox().await;
    let id = Uuid::now_v7();
    let of = |event_type: &str| Event::builder(event_type).id(id).raw_json("{}").build().unwrap();
    conflicts(&outbox, &[of("Happened"), event(1), of("Undone")], id, "the type").await;
    assert!(outbox.owner().await.read_all().await.is_empty());
}

/// An application that passes over the error and commits has none of the call's events, also of a call
/// that takes several statements. Where the server commits nothing after that, it has no others either.
pub async fn a_call_that_fails_leaves_none_of_its_events(subject: &Subject) {
    let outbox = subject.outbox().await;
    let known = event(1);
    let first = outbox.enqueue_one(&known).await;
    let other = Event::builder("Undone").id(known.id()).raw_json("{}").build().unwrap();
    let owner = outbox.owner().await;
    for new in [1, 1_500] {
        let mut events: Vec<Event> = (0..new).map(event).collect();
        events.push(other.clone());
        let mut transaction = outbox.begin().await;
        let error = refusal(transaction.enqueue(&events).await);
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        let _ = transaction.commit().await;
        assert_eq!(sequences(&owner.read_all().await), [first.sequence]);
    }
}

async fn conflicts(outbox: &Outbox, events: &[Event], id: Uuid, what: &str) {
    let mut transaction = outbox.begin().await;
    let error = refusal(transaction.enqueue(events).await);
    assert_eq!(error.kind(), ErrorKind::Conflict, "another {what}: {error}");
    assert!(error.to_string().contains(&id.to_string()), "another {what}: {error}");
    transaction.rollback().await.unwrap();
}
