//! Changes: what is refused, what is done, and what the audit says of it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use posthaste_core::{
    ErrorKind, Status,
    store::{AuditRecord, Filter, Pausable, Selection},
    transport::Outcome,
};
use posthaste_operate::{Action, Bulk, BulkReport, MAX_EVENTS, Operator};
use posthaste_relay::Config;
use posthaste_stores::Dialect;
use posthaste_testkit::wait::asked;
use posthaste_transports::memory::MemoryTransport;
use sqlx::AssertSqlSafe;
use tokio::sync::Notify;
use uuid::Uuid;

use crate::support::{Outbox, event};

on_both! {
    a_change_is_on_record_with_its_end
    what_is_refused_is_on_record_with_the_reason
    a_change_that_dies_halfway_leaves_its_entry_without_an_end
    a_dry_run_changes_nothing
    the_oldest_come_first_and_the_rest_is_told
    a_replay_of_sent_events_ends_although_they_are_sent_again_meanwhile
    a_rate_is_kept
    what_takes_in_everything_is_refused
}

fn operator<DB: Dialect>(on: &Outbox<DB>) -> Operator {
    Operator::new(Arc::clone(&on.store), "ada")
}

fn bulk(action: Action, status: Status) -> Bulk {
    let filter = Filter { status: Some(status), ..Filter::default() };
    Bulk { action, filter, rate: None, limit: MAX_EVENTS }
}

fn of_orders(mut bulk: Bulk) -> Bulk {
    bulk.filter.aggregate_type = Some("Order".to_owned());
    bulk
}

/// The last entry of the audit.
async fn last<DB: Dialect>(on: &Outbox<DB>) -> AuditRecord {
    on.store.audits(None, 1).await.unwrap().remove(0)
}

async fn kill<DB: Dialect>(on: &Outbox<DB>, count: usize) -> Vec<Uuid> {
    let events: Vec<_> = (0..count).map(|key| event(&key.to_string())).collect();
    on.enqueue_all(&events).await;
    let poison = MemoryTransport::scripted(|_| Outcome::dead("no"));
    on.relay(poison, Config::default()).relay_once().await.unwrap();
    events.iter().map(posthaste_core::Event::id).collect()
}

async fn a_change_is_on_record_with_its_end<DB: Dialect>(on: &Outbox<DB>) {
    let ids = kill(on, 3).await;
    operator(on).replay(ids[0]).await.unwrap();
    let entry = last(on).await;
    assert_eq!((&*entry.change.by, &*entry.change.action), ("ada", "event.replay"));
    assert_eq!(entry.change.subject, format!("id={}", ids[0]));
    assert!(entry.ended_at.is_some() && entry.affected == 1 && entry.error.is_none());

    operator(on).bulk(&bulk(Action::Discard, Status::Dead), |_| ()).await.unwrap();
    let entry = last(on).await;
    assert_eq!((&*entry.change.action, &*entry.change.subject), ("dead.discard", "status=dead"));
    assert_eq!(entry.affected, 2);

    let key = Pausable::Destination("nats".to_owned());
    assert!(operator(on).pause(&key, Some("move")).await.unwrap());
    assert!(!operator(on).pause(&key, None).await.unwrap());
    assert!(operator(on).resume(&key).await.unwrap());
    let actions: Vec<String> =
        on.store.audits(None, 3).await.unwrap().into_iter().map(|e| e.change.action).collect();
    assert_eq!(actions, ["destination.resume", "destination.pause", "destination.pause"]);
}

async fn what_is_refused_is_on_record_with_the_reason<DB: Dialect>(on: &Outbox<DB>) {
    let id = on.enqueue(&event("1")).await;
    let error = operator(on).replay(id).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::IllegalTransition);
    let entry = last(on).await;
    assert_eq!((entry.affected, entry.error), (0, Some(error.to_string())));
    assert!(entry.ended_at.is_some());
}

async fn a_change_that_dies_halfway_leaves_its_entry_without_an_end<DB: Dialect>(on: &Outbox<DB>) {
    kill(on, 3).await;
    let halfway = Arc::new(Notify::new());
    let told = Arc::clone(&halfway);
    let slowly = Bulk { rate: Some(2), ..bulk(Action::Replay, Status::Dead) };
    let operator = operator(on);
    tokio::select! {
        _ = operator.bulk(&slowly, move |_| told.notify_one()) => panic!("it ended"),
        () = halfway.notified() => {}
    }
    let entry = last(on).await;
    assert_eq!((entry.ended_at, &*entry.change.action), (None, "dead.replay"));
    let counts = on.store.counts(u64::MAX).await.unwrap();
    assert_eq!((counts.new, counts.dead), (2, 1), "what was done stays done");
}

async fn a_dry_run_changes_nothing<DB: Dialect>(on: &Outbox<DB>) {
    kill(on, 3).await;
    let report = bulk(Action::Replay, Status::Dead).try_out(&*on.store).await.unwrap();
    assert_eq!(report, BulkReport { matched: 3, changed: 0, more: false });
    assert_eq!(on.store.counts(u64::MAX).await.unwrap().dead, 3);
    assert!(on.store.audits(None, 10).await.unwrap().is_empty());
}

async fn the_oldest_come_first_and_the_rest_is_told<DB: Dialect>(on: &Outbox<DB>) {
    let ids = kill(on, 5).await;
    let two = Bulk { limit: 2, ..bulk(Action::Discard, Status::Dead) };
    let mut seen = Vec::new();
    let report = operator(on).bulk(&two, |progress| seen.push(progress.done)).await.unwrap();
    assert_eq!(report, BulkReport { matched: 2, changed: 2, more: true });
    assert_eq!(seen, [2]);
    for (number, id) in ids.into_iter().enumerate() {
        let status = on.store.event(id).await.unwrap().unwrap().status;
        assert_eq!(status == Status::Discarded, number < 2, "event {number} is {status}");
    }
}

async fn a_replay_of_sent_events_ends_although_they_are_sent_again_meanwhile<DB: Dialect>(
    on: &Outbox<DB>,
) {
    let count = 1_200;
    let events: Vec<_> = (0..count).map(|n| event(&(n % 50).to_string())).collect();
    on.enqueue_all(&events).await;
    let memory = MemoryTransport::new();
    let relay = on.relay(memory.clone(), Config::default());
    relay.start().await.unwrap();
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, memory.wait_for(count)).await.unwrap();
    asked("all to be marked", async || on.store.count_sent().await.unwrap() == count as u64).await;

    let all = of_orders(bulk(Action::Replay, Status::Sent));
    let operator = operator(on);
    let report = tokio::time::timeout(limit, operator.bulk(&all, |_| ()))
        .await
        .expect("it has an end")
        .unwrap();
    assert_eq!(report, BulkReport { matched: 1_200, changed: 1_200, more: false });
    tokio::time::timeout(limit, memory.wait_for(2 * count)).await.unwrap();
    relay.stop().await.unwrap();
    let replays = memory.delivered().iter().filter(|envelope| envelope.replay == 1).count();
    assert_eq!(replays, count, "each once more");
}

async fn a_rate_is_kept<DB: Dialect>(on: &Outbox<DB>) {
    kill(on, 3).await;
    let slowly = Bulk { rate: Some(2), ..bulk(Action::Discard, Status::Dead) };
    let begun = Instant::now();
    let mut steps = Vec::new();
    operator(on).bulk(&slowly, |progress| steps.push(progress.done)).await.unwrap();
    assert_eq!(steps, [2, 3]);
    assert!(begun.elapsed() >= Duration::from_secs(1), "2 a second, and then the third");
}

/// What was done before the failure stays done, and the audit says how much that was.
#[tokio::test]
async fn a_change_that_fails_halfway_is_on_record_with_what_it_did() {
    let on = crate::support::on_sqlite().await;
    let dead = kill(&on, 4).await;
    let rename = |sql: &str| AssertSqlSafe(on.tables.fill(sql));
    let (away, back) = (
        rename("alter table {events} rename to {bare}_away"),
        rename("alter table {bare}_away rename to {events}"),
    );
    let slowly = Bulk { rate: Some(1), ..bulk(Action::Discard, Status::Dead) };
    let begun = Notify::new();
    let operator = operator(&on);
    let change = operator.bulk(&slowly, |_| begun.notify_one());
    let fault = async {
        begun.notified().await;
        sqlx::query(away).execute(&on.pool).await.unwrap();
    };
    let (failed, ()) = tokio::join!(change, fault);
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Database);
    sqlx::query(back).execute(&on.pool).await.unwrap();
    let mut discarded = 0;
    for id in dead {
        let record = on.store.event(id).await.unwrap().unwrap();
        discarded += u64::from(record.status == Status::Discarded);
    }
    let entry = last(&on).await;
    assert!((1..4).contains(&discarded), "{discarded}");
    assert_eq!((entry.affected, entry.error.is_some()), (discarded, true), "{entry:?}");
    on.clean().await;
}

async fn what_takes_in_everything_is_refused<DB: Dialect>(on: &Outbox<DB>) {
    let id = on.enqueue(&event("1")).await;
    let refused = [
        bulk(Action::Discard, Status::New),
        bulk(Action::Discard, Status::Retry),
        bulk(Action::Replay, Status::Sent),
        of_orders(bulk(Action::Discard, Status::Sent)),
        of_orders(bulk(Action::Discard, Status::Sending)),
        of_orders(bulk(Action::Replay, Status::New)),
        Bulk { filter: Filter::default(), ..bulk(Action::Discard, Status::New) },
    ];
    for bulk in refused {
        assert!(bulk.try_out(&*on.store).await.is_err(), "{bulk:?}");
        assert!(operator(on).bulk(&bulk, |_| ()).await.is_err(), "{bulk:?}");
    }
    assert_eq!(on.store.event(id).await.unwrap().unwrap().status, Status::New);
    assert!(on.store.audits(None, 10).await.unwrap().is_empty(), "nothing was begun");

    let narrowed = of_orders(bulk(Action::Discard, Status::New));
    assert_eq!(operator(on).bulk(&narrowed, |_| ()).await.unwrap().changed, 1);
    let error = on.store.replay(&Selection::One(id)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::IllegalTransition);
}
