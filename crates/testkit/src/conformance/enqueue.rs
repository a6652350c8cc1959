//! Writing events in the caller's own transaction.

use futures_util::future::join_all;
use jiff::{Timestamp, ToSpan};
use posthaste_core::Event;

use super::{
    Subject,
    outbox::Outbox,
    relays::{event, events, sequences},
};

const BUSINESS_TABLE: &str = "create table {events}_business (id int primary key)";

async fn with_business_table(subject: &Subject) -> Outbox {
    let outbox = subject.outbox().await;
    outbox.sql(BUSINESS_TABLE).await;
    outbox
}

/// Business row and event commit together.
pub async fn commit_leaves_business_row_and_event(subject: &Subject) {
    let outbox = with_business_table(subject).await;
    let event = event(1);
    let mut transaction = outbox.begin().await;
    outbox.sql_on(&mut transaction, "insert into {events}_business (id) values (1)").await;
    outbox.enqueue_in(&mut transaction, std::slice::from_ref(&event)).await;
    transaction.commit().await.unwrap();
    assert_eq!(outbox.sql("select id from {events}_business").await, 1);
    outbox.record(event.id()).await;
}

/// Business row and event roll back together.
pub async fn rollback_leaves_neither_business_row_nor_event(subject: &Subject) {
    let outbox = with_business_table(subject).await;
    let event = event(1);
    let mut transaction = outbox.begin().await;
    outbox.sql_on(&mut transaction, "insert into {events}_business (id) values (1)").await;
    outbox.enqueue_in(&mut transaction, std::slice::from_ref(&event)).await;
    transaction.rollback().await.unwrap();
    assert_eq!(outbox.sql("select id from {events}_business").await, 0);
    assert!(outbox.store.event(event.id()).await.unwrap().is_none());
    assert!(outbox.owner().await.read_all().await.is_empty());
}

/// What a savepoint wrote goes with it; what stands before and after stays.
pub async fn a_savepoint_that_rolled_back_leaves_nothing_of_its_own(subject: &Subject) {
    let outbox = subject.outbox().await;
    let (before, inside, after) = (event("before"), event("inside"), event("after"));
    let mut transaction = outbox.begin().await;
    outbox.enqueue_in(&mut transaction, std::slice::from_ref(&before)).await;
    transaction.enqueue_and_undo(std::slice::from_ref(&inside)).await.unwrap();
    outbox.enqueue_in(&mut transaction, std::slice::from_ref(&after)).await;
    transaction.commit().await.unwrap();
    outbox.record(before.id()).await;
    outbox.record(after.id()).await;
    assert!(outbox.store.event(inside.id()).await.unwrap().is_none());
}

/// Nobody sees an event before its transaction is committed.
pub async fn an_event_is_invisible_until_its_commit(subject: &Subject) {
    let outbox = subject.outbox().await;
    let owner = outbox.owner().await;
    let event = event(1);
    let mut transaction = outbox.begin().await;
    let enqueued = outbox.enqueue_in(&mut transaction, std::slice::from_ref(&event)).await;
    assert!(outbox.store.event(event.id()).await.unwrap().is_none());
    assert!(owner.read_all().await.is_empty());
    assert!(
        outbox
            .store
            .read_hot(&[enqueued[0].sequence], &posthaste_core::store::Position::default())
            .await
            .unwrap()
            .is_empty()
    );
    transaction.commit().await.unwrap();
    assert_eq!(sequences(&owner.read_all().await), [enqueued[0].sequence]);
}

/// More events than one statement of any database takes keep their order.
pub async fn many_events_keep_their_order_and_get_their_answers_in_it(subject: &Subject) {
    let outbox = subject.outbox().await;
    let events = events(5_000);
    let enqueued = outbox.enqueue(&events).await;
    assert_eq!(enqueued.len(), events.len());
    for (event, enqueued) in events.iter().zip(&enqueued) {
        assert_eq!(enqueued.id, event.id());
        assert!(!enqueued.duplicate);
    }
    let expected: Vec<i64> = enqueued.iter().map(|one| one.sequence).collect();
    assert!(expected.is_sorted_by(|one, next| one < next), "sequences fall within one call");

    let rows = outbox.owner().await.read_all().await;
    assert_eq!(sequences(&rows), expected);
    for (event, row) in events.iter().zip(&rows) {
        assert_eq!(row.content.as_ref().unwrap().event.id(), event.id());
    }
}

/// Calls inside one transaction keep their order.
pub async fn later_calls_of_one_transaction_get_higher_sequences(subject: &Subject) {
    let outbox = subject.outbox().await;
    let mut transaction = outbox.begin().await;
    let mut taken = Vec::new();
    for batch in [1, 3, 1, 2] {
        let enqueued = outbox.enqueue_in(&mut transaction, &events(batch)).await;
        taken.extend(enqueued.iter().map(|one| one.sequence));
    }
    transaction.commit().await.unwrap();
    assert!(taken.is_sorted_by(|one, next| one < next), "{taken:?}");
    assert_eq!(sequences(&outbox.owner().await.read_all().await), taken);
}

/// What is enqueued after a commit was acknowledged comes behind it.
pub async fn an_event_enqueued_after_a_commit_gets_a_higher_sequence(subject: &Subject) {
    let outbox = subject.outbox().await;
    let mut last = 0;
    for _ in 0..20 {
        let sequence = outbox.enqueue_one(&event("same")).await.sequence;
        assert!(sequence > last, "{sequence} came after {last}");
        last = sequence;
    }
}

/// Nothing to enqueue is no error and writes nothing.
pub async fn no_events_are_no_error(subject: &Subject) {
    let outbox = subject.outbox().await;
    assert!(outbox.enqueue(&[]).await.is_empty());
    assert!(outbox.owner().await.read_all().await.is_empty());
}

/// A delayed event keeps its time and is not read ahead.
pub async fn a_delayed_event_keeps_its_time(subject: &Subject) {
    let outbox = subject.outbox().await;
    let at = Timestamp::from_microsecond(Timestamp::now().as_microsecond()).unwrap();
    let at = at.checked_add(1.hour()).unwrap();
    let delayed = |id: &str| {
        Event::builder("Happened").aggregate("Thing", id).raw_json("{}").deliver_at(at).build()
    };
    let (one, two) = (delayed("1").unwrap(), delayed("2").unwrap());
    outbox.enqueue_one(&one).await;
    outbox.enqueue(&[two.clone(), event(3)]).await;
    for delayed in [one, two] {
        assert_eq!(outbox.record(delayed.id()).await.not_before, Some(at));
    }
    assert_eq!(outbox.owner().await.read_all().await.len(), 1, "a delayed event was read ahead");
}

/// The driver knows its own transactions, so that the front door can refuse to enqueue outside.
pub async fn the_driver_knows_whether_a_transaction_is_open(subject: &Subject) {
    let outbox = subject.outbox().await;
    let known = outbox.plain_sql().in_transaction().await.unwrap();
    // Before it, in it, in a savepoint, after that, after the commit.
    assert_eq!(known, [false, true, true, true, false]);
}

/// Writers side by side neither fail nor lose anything.
pub async fn many_writers_at_once_lose_nothing(subject: &Subject) {
    let outbox = subject.outbox().await;
    let writers = join_all((0..8).map(async |writer| {
        let mut taken = Vec::new();
        for round in 0..20 {
            let enqueued = outbox.enqueue(&[event(writer), event(round)]).await;
            taken.extend(enqueued.iter().map(|one| one.sequence));
        }
        taken
    }));
    let mut taken = writers.await.concat();
    taken.sort_unstable();
    assert_eq!(sequences(&outbox.owner().await.read_all().await), taken);
    assert_eq!(taken.len(), 8 * 20 * 2);
}
