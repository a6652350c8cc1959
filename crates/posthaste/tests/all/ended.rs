//! Transactions that the server has ended, or will not commit: nothing is written outside of them, and
//! nobody is told that they were committed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::support::{Fixture, TestDatabase, event, hang_up, soon};
use futures_util::FutureExt;
use posthaste::{
    EnqueueIn, ErrorKind, Event, Inbox, OutboxTransaction,
    domain::{Aggregate, Events, UnitOfWork},
    idempotency::IdempotencyLayer,
    store::Store,
    stores::{idempotency::IdempotencyDialect, inbox::InboxDialect},
};
use sqlx::{Connection, MySql, MySqlConnection, Postgres, Sqlite, SqliteConnection};
use tokio::task::yield_now;

type Failure = Box<dyn std::error::Error + Send + Sync>;

on_every_database! {
    a_batch_that_fails_leaves_nothing_behind,
    a_commit_after_an_enqueue_that_was_given_up_is_refused,
    an_enqueue_that_was_given_up_in_a_savepoint_counts_for_the_transaction,
    a_commit_after_a_savepoint_that_was_given_up_is_refused,
    a_transaction_that_ended_with_a_savepoint_of_the_drivers_is_not_committed,
    a_commit_after_a_message_that_was_given_up_is_refused,
    a_message_whose_effect_gave_a_savepoint_up_is_not_committed,
    a_message_after_a_savepoint_that_was_given_up_is_not_committed,
    a_savepoint_in_which_another_one_was_given_up_is_not_kept,
}

const EFFECTS: &str = "select count(*) from {events}_effects";
const EVENTS: &str = "select count(*) from {events}";
const INBOX: &str = "select count(*) from {inbox}";

async fn with_effects<DB: TestDatabase>(on: &Fixture<DB>) {
    on.sql("create table {events}_effects (n int primary key, k int not null)").await;
}

fn effect<DB: TestDatabase>(on: &Fixture<DB>, n: u32) -> String {
    on.tables.fill(&format!("insert into {{events}}_effects (n, k) values ({n}, 0)"))
}

async fn drop_effects<DB: TestDatabase>(on: &Fixture<DB>) {
    on.sql("drop table {events}_effects").await;
}

/// Events of which the last one conflicts with what is there already.
async fn with_a_conflict<DB: TestDatabase>(on: &Fixture<DB>, new: usize) -> Vec<Event> {
    let known = event("known", 1);
    on.enqueue(vec![known.clone()]).await;
    let other = Event::builder("Other").id(known.id()).raw_json("{}").build().unwrap();
    (0..new).map(|n| event("new", n)).chain([other]).collect()
}

/// The application logs the error, and commits what it has.
async fn a_batch_that_fails_leaves_nothing_behind<DB: TestDatabase>(on: &Fixture<DB>) {
    with_effects(on).await;
    let outbox = on.outbox();
    // None beside the conflict, one, and more than go into one statement on MySQL and SQLite.
    for (n, new) in [0, 1, 1_500].into_iter().enumerate() {
        let events = with_a_conflict(on, new).await;
        let before = on.number(EVENTS).await;
        let mut tx = outbox.begin(&on.pool).await.unwrap();
        DB::run_on(tx.connection(), effect(on, n as u32)).await.unwrap();
        let failed = outbox.enqueue_all(&mut tx, events.clone()).await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Conflict, "{failed}");
        let committed = tx.commit().await;
        assert_eq!(on.number(EVENTS).await, before, "{new} new events: {committed:?}");
        let effects = on.number(EFFECTS).await;
        if DB::NAME == "PostgreSQL" {
            assert_eq!((committed.unwrap_err().kind(), effects), (ErrorKind::Database, 0));
        } else {
            committed.unwrap();
            assert_eq!(effects, n as i64 + 1, "the transaction goes on");
        }

        let mut tx = on.pool.begin().await.unwrap();
        outbox.enqueue_all(&mut tx, events).await.unwrap_err();
        let _ = tx.commit().await;
        assert_eq!(on.number(EVENTS).await, before, "in a driver's own transaction");
    }
    drop_effects(on).await;
}

/// Polls it once. Nearly always that gives it up half-way.
fn is_given_up<T>(future: impl Future<Output = T>) -> bool {
    future.now_or_never().is_none()
}

async fn a_commit_after_an_enqueue_that_was_given_up_is_refused<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let outbox = on.outbox();
    let tx = loop {
        let mut tx = outbox.begin(&on.pool).await.unwrap();
        if is_given_up(outbox.enqueue(&mut tx, event("k", 1))) {
            break tx;
        }
    };
    let refused = soon("the commit", tx.commit()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::State, "{refused}");
    assert!(refused.to_string().contains("half-way"), "{refused}");
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    let _ = is_given_up(outbox.enqueue(&mut tx, event("k", 2)));
    let _ = is_given_up(outbox.enqueue(&mut tx, event("k", 3)));
    soon("the rollback", tx.rollback()).await.unwrap();
    on.enqueue(vec![event("k", 4)]).await;
    assert_eq!(on.number(EVENTS).await, 1);
}

async fn an_enqueue_that_was_given_up_in_a_savepoint_counts_for_the_transaction<
    DB: TestDatabase,
>(
    on: &Fixture<DB>,
) {
    let outbox = on.outbox();
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    outbox.enqueue(&mut tx, event("k", 1)).await.unwrap();
    let refused = loop {
        let mut savepoint = tx.savepoint().await.unwrap();
        if is_given_up(outbox.enqueue(&mut savepoint, event("k", 2))) {
            break savepoint.release().await.unwrap_err();
        }
        savepoint.rollback().await.unwrap();
    };
    assert_eq!(refused.kind(), ErrorKind::State, "{refused}");
    let refused = soon("the commit", tx.commit()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::State, "{refused}");
    on.enqueue(vec![event("k", 3)]).await;
    assert_eq!(on.number(EVENTS).await, 1);
}

/// The driver rolls back whole what it was setting a savepoint in. On SQLite it does so in the background.
async fn a_commit_after_a_savepoint_that_was_given_up_is_refused<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let outbox = on.outbox();
    let tx = loop {
        let mut tx = outbox.begin(&on.pool).await.unwrap();
        outbox.enqueue(&mut tx, event("k", 1)).await.unwrap();
        if is_given_up(tx.savepoint()) {
            break tx;
        }
    };
    let refused = soon("the commit", tx.commit()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::State, "{refused}");
    assert!(refused.to_string().contains("half-way"), "{refused}");
    on.enqueue(vec![event("k", 2)]).await;
    assert_eq!(on.number(EVENTS).await, 1);
}

/// The driver rolls back the whole transaction when it is dropped while it sets a savepoint, and says so
/// to nobody.
async fn a_transaction_that_ended_with_a_savepoint_of_the_drivers_is_not_committed<
    DB: TestDatabase,
>(
    on: &Fixture<DB>,
) {
    let outbox = on.outbox();
    for enqueues in [true, false] {
        let mut tx = loop {
            let mut tx = outbox.begin(&on.pool).await.unwrap();
            outbox.enqueue(&mut tx, event("k", 1)).await.unwrap();
            if is_given_up(tx.connection().begin()) {
                break tx;
            }
        };
        if enqueues {
            let refused = outbox.enqueue(&mut tx, event("k", 2)).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::State, "{refused}");
        }
        let refused = soon("the commit", tx.commit()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::State, "{refused}");
        assert_eq!(on.number(EVENTS).await, 0);
    }
}

async fn a_commit_after_a_message_that_was_given_up_is_refused<DB: TestDatabase + InboxDialect>(
    on: &Fixture<DB>,
) {
    let outbox = on.outbox();
    let inbox = Inbox::<DB>::new(on.table());
    for once in [true, false] {
        let tx = loop {
            let mut tx = outbox.begin(&on.pool).await.unwrap();
            outbox.enqueue(&mut tx, event("k", 1)).await.unwrap();
            let given_up = if once {
                is_given_up(inbox.once(&mut tx, "billing", "m", async |_| Ok::<_, Failure>(())))
            } else {
                is_given_up(inbox.first(&mut tx, "billing", "m"))
            };
            if given_up {
                break tx;
            }
        };
        let refused = soon("the commit", tx.commit()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::State, "{refused}");
        assert!(refused.to_string().contains("half-way"), "{refused}");
    }
    // One whose call came to its end is as good as ever, also when the effect has failed.
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    let failed = inbox.once(&mut tx, "billing", "m", async |_| Err::<(), _>(Failure::from("no")));
    failed.await.unwrap_err();
    assert!(inbox.first(&mut tx, "billing", "m").await.unwrap());
    tx.commit().await.unwrap();
    assert_eq!((on.number(INBOX).await, on.number(EVENTS).await), (1, 0));
}

/// The driver rolls back more than the savepoint that it was setting, and counts too few levels.
fn give_up_a_savepoint<DB: TestDatabase>(connection: &mut DB::Connection) {
    while !is_given_up(connection.begin()) {}
}

/// After earlier work in the transaction.
async fn handle_and_give_up<DB: TestDatabase + InboxDialect>(
    on: &Fixture<DB>,
    tx: &mut impl EnqueueIn<DB>,
    fails: bool,
) {
    let inbox = Inbox::<DB>::new(on.table());
    let earlier = inbox.once(tx, "billing", "m1", async |_| Ok::<_, Failure>(())).await.unwrap();
    assert!(!earlier.is_duplicate());
    DB::run_on(tx.connection(), effect(on, 1)).await.unwrap();
    let handled = inbox.once(tx, "billing", "m2", async |tx| {
        DB::run_on(tx, effect(on, 2)).await?;
        give_up_a_savepoint::<DB>(tx);
        if fails { Err(Failure::from("no")) } else { Ok(()) }
    });
    let failure = soon("the message", handled).await.unwrap_err();
    if fails {
        assert_eq!(failure.to_string(), "no");
    } else {
        let refused = failure.downcast::<posthaste::Error>().unwrap();
        assert_eq!(refused.kind(), ErrorKind::State, "{refused}");
    }
}

/// It passes over the timeout of a `begin()`. Whoever acknowledges after the commit would lose the messages.
async fn a_message_whose_effect_gave_a_savepoint_up_is_not_committed<
    DB: TestDatabase + InboxDialect,
>(
    on: &Fixture<DB>,
) {
    with_effects(on).await;
    let nothing = async || {
        assert_eq!((on.number(INBOX).await, on.number(EFFECTS).await), (0, 0));
    };
    for fails in [false, true] {
        let mut tx = on.outbox().begin(&on.pool).await.unwrap();
        handle_and_give_up(on, &mut tx, fails).await;
        let refused = soon("the commit", tx.commit()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::State, "{refused}");
        nothing().await;

        let mut tx = on.outbox().begin(&on.pool).await.unwrap();
        let mut savepoint = tx.savepoint().await.unwrap();
        handle_and_give_up(on, &mut savepoint, fails).await;
        let refused = soon("the release", savepoint.release()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::State, "{refused}");
        let refused = soon("the commit", tx.commit()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::State, "{refused}");
        nothing().await;

        let mut tx = on.pool.begin().await.unwrap();
        handle_and_give_up(on, &mut tx, fails).await;
        soon("the driver's own commit", tx.commit()).await.unwrap_err();
        nothing().await;

        let mut tx = on.pool.begin().await.unwrap();
        let mut savepoint = tx.begin().await.unwrap();
        handle_and_give_up(on, &mut savepoint, fails).await;
        soon("the savepoint's release", savepoint.commit()).await.unwrap_err();
        soon("the driver's own commit", tx.commit()).await.unwrap_err();
        nothing().await;
    }
    drop_effects(on).await;
}

/// The driver counts no transaction any more: what comes would be committed by itself, and the commit be Ok.
async fn a_message_after_a_savepoint_that_was_given_up_is_not_committed<
    DB: TestDatabase + InboxDialect,
>(
    on: &Fixture<DB>,
) {
    let inbox = Inbox::<DB>::new(on.table());
    let mut tx = on.pool.begin().await.unwrap();
    assert!(inbox.first(&mut tx, "billing", "m1").await.unwrap());
    give_up_a_savepoint::<DB>(&mut tx);
    let refused = inbox
        .once(&mut tx, "billing", "m2", async |_| Ok::<_, posthaste::Error>(()))
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::State, "{refused}");
    soon("the driver's own commit", tx.commit()).await.unwrap_err();
    assert_eq!(on.number(INBOX).await, 0);
}

async fn a_savepoint_in_which_another_one_was_given_up_is_not_kept<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let outbox = on.outbox();
    for releases in [true, false] {
        let mut tx = outbox.begin(&on.pool).await.unwrap();
        outbox.enqueue(&mut tx, event("k", 1)).await.unwrap();
        let mut savepoint = tx.savepoint().await.unwrap();
        outbox.enqueue(&mut savepoint, event("k", 2)).await.unwrap();
        give_up_a_savepoint::<DB>(savepoint.connection());
        let refused = if releases {
            soon("the release", savepoint.release()).await.unwrap_err()
        } else {
            soon("the rollback", savepoint.rollback()).await.unwrap_err()
        };
        assert_eq!(refused.kind(), ErrorKind::State, "{refused}");
        let refused = soon("the commit", tx.commit()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::State, "{refused}");
        assert_eq!(on.number(EVENTS).await, 0);
    }
    on.enqueue(vec![event("k", 3)]).await;
    assert_eq!(on.number(EVENTS).await, 1);
}

/// Makes the server end this transaction to resolve a deadlock: it chooses the one that has written
/// less.
async fn deadlock(on: &Fixture<MySql>, connection: &mut MySqlConnection) -> sqlx::Error {
    let update =
        |n: u32| on.tables.fill(&format!("update {{events}}_effects set k = k + 1 where n = {n}"));
    on.sql("delete from {events}_effects where n in (1001, 1002)").await;
    for n in [1001, 1002] {
        on.sql(&effect(on, n)).await;
    }
    let mut other = on.pool.begin().await.unwrap();
    MySql::run_on(&mut other, update(1002)).await.unwrap();
    let more: Vec<_> = (2_000..2_300).map(|n| format!("({n}, 0)")).collect();
    let more = format!("insert into {{events}}_effects (n, k) values {}", more.join(", "));
    MySql::run_on(&mut other, on.tables.fill(&more)).await.unwrap();
    MySql::run_on(connection, update(1001)).await.unwrap();
    let (second, waits) = (update(1001), update(1002));
    let waiting = tokio::spawn(async move {
        MySql::run_on(&mut other, second).await.unwrap();
        other.rollback().await.unwrap();
    });
    let ended = MySql::run_on(connection, waits).await.unwrap_err();
    soon("the other one", waiting).await.unwrap();
    on.sql("delete from {events}_effects where n in (1001, 1002)").await;
    assert!(ended.to_string().contains("1213"), "{ended}");
    ended
}

/// The application passes over the deadlock.
async fn after_a_deadlock(on: &Fixture<MySql>) -> OutboxTransaction<MySql> {
    let mut tx = on.outbox().begin(&on.pool).await.unwrap();
    MySql::run_on(tx.connection(), effect(on, 1)).await.unwrap();
    deadlock(on, tx.connection()).await;
    tx
}

async fn fixture() -> Fixture<MySql> {
    let on = MySql::fixture().await;
    with_effects(&on).await;
    on
}

async fn clean(on: Fixture<MySql>) {
    drop_effects(&on).await;
    on.clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_after_a_deadlock_is_refused() {
    let on = fixture().await;
    let tx = after_a_deadlock(&on).await;
    let refused = tx.commit().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::State, "{refused}");
    assert_eq!(on.number(EFFECTS).await, 0);
    clean(on).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_deadlock_nothing_is_enqueued() {
    let on = fixture().await;
    let outbox = on.outbox();
    for (many, commits) in [(false, true), (true, true), (false, false)] {
        let mut tx = after_a_deadlock(&on).await;
        let events = (0..if many { 3 } else { 1 }).map(|n| event("k", n)).collect();
        let refused = outbox.enqueue_all(&mut tx, events).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::State, "{refused}");
        if commits {
            tx.commit().await.unwrap_err();
        } else {
            let _ = tx.rollback().await;
        }
        assert_eq!((on.number(EVENTS).await, on.number(EFFECTS).await), (0, 0));
    }
    // The same in a driver's own transaction: its commit must not be answered with success either.
    let mut tx = on.pool.begin().await.unwrap();
    MySql::run_on(&mut tx, effect(&on, 1)).await.unwrap();
    deadlock(&on, &mut tx).await;
    outbox.enqueue(&mut tx, event("k", 1)).await.unwrap_err();
    tx.commit().await.unwrap_err();
    assert_eq!((on.number(EVENTS).await, on.number(EFFECTS).await), (0, 0));
    clean(on).await;
}

/// Two transactions that each wait for the other's row: ours writes the id of an event that the other one has
/// written. The other one has written more, so the server ends ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_enqueue_that_meets_a_deadlock_says_that_the_transaction_has_ended() {
    let on = fixture().await;
    let outbox = on.outbox();
    let update = on.tables.fill("update {events}_effects set k = k + 1 where n = 1001");
    for own in [false, true] {
        on.sql(&effect(&on, 1001)).await;
        let mut other = on.pool.begin().await.unwrap();
        let known = event("k", 1);
        outbox.enqueue(&mut other, known.clone()).await.unwrap();
        let more: Vec<_> = (2_000..2_300).map(|n| format!("({n}, 0)")).collect();
        let more = format!("insert into {{events}}_effects (n, k) values {}", more.join(", "));
        MySql::run_on(&mut other, on.tables.fill(&more)).await.unwrap();

        let mut plain = on.pool.begin().await.unwrap();
        let mut ours = outbox.begin(&on.pool).await.unwrap();
        let tx = if own { &mut plain } else { &mut *ours };
        MySql::run_on(tx, effect(&on, 1)).await.unwrap();
        MySql::run_on(tx, update.clone()).await.unwrap();
        let waits = update.clone();
        let waiting = tokio::spawn(async move {
            MySql::run_on(&mut other, waits).await.unwrap();
            other.rollback().await.unwrap();
        });
        let refused = outbox.enqueue(tx, known).await.unwrap_err();
        soon("the other one", waiting).await.unwrap();
        assert_eq!(refused.kind(), ErrorKind::State, "{refused}");
        let committed =
            if own { plain.commit().await.is_ok() } else { ours.commit().await.is_ok() };
        assert!(!committed, "driver's own: {own}");
        on.sql("delete from {events}_effects where n = 1001").await;
        assert_eq!((on.number(EVENTS).await, on.number(EFFECTS).await), (0, 0));
    }
    clean(on).await;
}

/// The application's own statement meets the deadlock in a savepoint, which ends with its transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_savepoint_after_a_deadlock_says_that_the_transaction_has_ended() {
    let on = fixture().await;
    let outbox = on.outbox();
    for releases in [false, true] {
        let mut tx = outbox.begin(&on.pool).await.unwrap();
        let mut savepoint = tx.savepoint().await.unwrap();
        deadlock(&on, savepoint.connection()).await;
        let end = if releases { savepoint.release().await } else { savepoint.rollback().await };
        assert_eq!(end.unwrap_err().kind(), ErrorKind::State);
        tx.commit().await.unwrap_err();
    }
    let mut tx = after_a_deadlock(&on).await;
    let Err(refused) = tx.savepoint().await else {
        panic!("there is no transaction to set it in");
    };
    assert_eq!(refused.kind(), ErrorKind::State, "{refused}");
    tx.commit().await.unwrap_err();
    assert_eq!((on.number(EVENTS).await, on.number(EFFECTS).await), (0, 0));
    clean(on).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_deadlock_no_message_counts_as_handled() {
    let on = fixture().await;
    let inbox = Inbox::<MySql>::new(on.table());
    let mut tx = after_a_deadlock(&on).await;
    let refused = inbox.first(&mut tx, "billing", "m").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::State, "{refused}");
    let _ = tx.rollback().await;
    assert_eq!((on.number(INBOX).await, on.number(EFFECTS).await), (0, 0));
    clean(on).await;
}

/// A consumer handles a batch of messages in one transaction, and goes on after one whose effect has
/// failed. When that was a deadlock, none of them may be acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_messages_is_not_committed_when_a_deadlock_has_undone_it() {
    let on = fixture().await;
    let inbox = Inbox::<MySql>::new(on.table());
    let handle = async |tx: &mut sqlx::Transaction<'_, MySql>, n: u32, deadlocks: bool| {
        inbox
            .once(tx, "billing", &n.to_string(), async |tx| {
                if deadlocks {
                    return Err(Failure::from(deadlock(&on, tx).await));
                }
                MySql::run_on(tx, effect(&on, n)).await?;
                Ok(())
            })
            .await
    };
    for goes_on in [false, true] {
        for own in [false, true] {
            let mut plain = on.pool.begin().await.unwrap();
            let mut ours = on.outbox().begin(&on.pool).await.unwrap();
            let tx = if own { &mut plain } else { &mut *ours };
            assert!(!handle(tx, 1, false).await.unwrap().is_duplicate());
            handle(tx, 2, true).await.unwrap_err();
            if goes_on {
                handle(tx, 3, false).await.unwrap_err();
                handle(tx, 4, false).await.unwrap_err();
            }
            let committed =
                if own { plain.commit().await.is_ok() } else { ours.commit().await.is_ok() };
            assert!(
                !committed,
                "m1 would be acknowledged; goes on: {goes_on}, driver's own: {own}"
            );
            assert_eq!((on.number(INBOX).await, on.number(EFFECTS).await), (0, 0));
        }
    }
    clean(on).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_after_a_statement_that_commits_by_itself_is_refused() {
    let on = fixture().await;
    let mut tx = on.outbox().begin(&on.pool).await.unwrap();
    on.outbox().enqueue(&mut tx, event("k", 1)).await.unwrap();
    let ddl = on.tables.fill("create table {events}_more (n int)");
    MySql::run_on(tx.connection(), ddl).await.unwrap();
    on.outbox().enqueue(&mut tx, event("k", 2)).await.unwrap_err();
    tx.commit().await.unwrap_err();
    assert_eq!(on.number(EVENTS).await, 1, "the statement has committed it");
    on.sql("drop table {events}_more").await;
    clean(on).await;
}

/// SQLite ends the transaction, and the application passes over the error.
async fn after_a_rollback_on_conflict(on: &Fixture<Sqlite>) -> OutboxTransaction<Sqlite> {
    let mut tx = on.outbox().begin(&on.pool).await.unwrap();
    end_on_conflict(on, tx.connection()).await;
    tx
}

async fn end_on_conflict(on: &Fixture<Sqlite>, connection: &mut SqliteConnection) {
    let insert = effect(on, 1);
    Sqlite::run_on(connection, insert.clone()).await.unwrap();
    let again = insert.replacen("insert", "insert or rollback", 1);
    Sqlite::run_on(connection, again).await.unwrap_err();
}

/// With a savepoint SQLite begins another transaction, whose commit would be a success.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_after_sqlite_has_ended_the_transaction_is_refused() {
    let on = Sqlite::fixture().await;
    with_effects(&on).await;
    for goes_on in [false, true] {
        let mut tx = after_a_rollback_on_conflict(&on).await;
        if goes_on {
            let savepoint = tx.connection().begin().await.unwrap();
            savepoint.rollback().await.unwrap();
        }
        let refused = tx.commit().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::State, "{refused}, goes on: {goes_on}");
        assert_eq!(on.number(EFFECTS).await, 0);
    }
    drop_effects(&on).await;
    on.clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_sqlite_has_ended_a_transaction_nothing_is_written_outside_of_it() {
    let on = Sqlite::fixture().await;
    with_effects(&on).await;
    let outbox = on.outbox();
    let inbox = Inbox::<Sqlite>::new(on.table());
    let nothing = async || {
        let counts = [on.number(EVENTS).await, on.number(INBOX).await, on.number(EFFECTS).await];
        assert_eq!(counts, [0, 0, 0]);
    };
    for many in [1, 3] {
        let mut tx = after_a_rollback_on_conflict(&on).await;
        let events = (0..many).map(|n| event("k", n)).collect();
        let refused = outbox.enqueue_all(&mut tx, events).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::State, "{refused}");
        tx.commit().await.unwrap_err();
        nothing().await;
    }

    let mut tx = after_a_rollback_on_conflict(&on).await;
    let refused = inbox.first(&mut tx, "billing", "m").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::State, "{refused}");
    let once = inbox.once(&mut tx, "billing", "m", async |_| Ok::<_, posthaste::Error>(())).await;
    assert_eq!(once.unwrap_err().kind(), ErrorKind::State);
    let Err(refused) = tx.savepoint().await else {
        panic!("a savepoint would begin another transaction");
    };
    assert_eq!(refused.kind(), ErrorKind::State, "{refused}");
    let _ = tx.rollback().await;
    nothing().await;

    let mut tx = on.pool.begin().await.unwrap();
    end_on_conflict(&on, &mut tx).await;
    let refused = outbox.enqueue(&mut tx, event("k", 1)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::State, "{refused}");
    tx.commit().await.unwrap_err();
    nothing().await;
    drop_effects(&on).await;
    on.clean().await;
}

/// The statement that ends it is our own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_enqueue_with_which_sqlite_ends_the_transaction_says_so() {
    let on = Sqlite::fixture().await;
    on.sql(
        "create trigger {events}_end before insert on {events}
         begin select raise(rollback, 'ended'); end",
    )
    .await;
    for many in [1, 3] {
        let mut tx = on.outbox().begin(&on.pool).await.unwrap();
        let events = (0..many).map(|n| event("k", n)).collect();
        let refused = on.outbox().enqueue_all(&mut tx, events).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::State, "{refused}");
        assert_eq!(tx.commit().await.unwrap_err().kind(), ErrorKind::State);
        assert_eq!(on.number(EVENTS).await, 0);
    }
    on.clean().await;
}

#[derive(Default)]
struct Silent(Events);

impl Aggregate for Silent {
    const TYPE: &'static str = "Silent";

    fn aggregate_id(&self) -> String {
        "1".to_owned()
    }

    fn events(&self) -> &Events {
        &self.0
    }
}

/// PostgreSQL answers the commit of a failed transaction with success. Without events there was no insert to
/// fail before it.
#[tokio::test]
async fn a_commit_after_a_failed_statement_is_an_error_also_without_events() {
    let on = Postgres::fixture().await;
    with_effects(&on).await;
    let mut work = UnitOfWork::begin(&on.outbox(), &on.pool).await.unwrap();
    work.track(&Silent::default());
    Postgres::run_on(work.connection(), effect(&on, 1)).await.unwrap();
    Postgres::run_on(work.connection(), effect(&on, 1)).await.unwrap_err();
    assert_eq!(work.commit().await.unwrap_err().kind(), ErrorKind::Database);

    let inbox = Inbox::<Postgres>::new(on.table());
    let mut tx = on.outbox().begin(&on.pool).await.unwrap();
    assert!(inbox.first(&mut tx, "billing", "m").await.unwrap());
    Postgres::run_on(tx.connection(), "select 1 / 0".to_owned()).await.unwrap_err();
    assert_eq!(tx.commit().await.unwrap_err().kind(), ErrorKind::Database);

    assert_eq!((on.number(EFFECTS).await, on.number(INBOX).await), (0, 0));
    drop_effects(&on).await;
    on.clean().await;
}

/// The driver rolls back whole what it fails to set a savepoint in, and the server fails to set one
/// where a statement has failed. What came next was committed by itself.
#[tokio::test]
async fn a_savepoint_after_a_failed_statement_leaves_nothing_to_commit_by_itself() {
    let on = Postgres::fixture().await;
    with_effects(&on).await;
    let inbox = Inbox::<Postgres>::new(on.table());
    let fail = async |connection: &mut sqlx::PgConnection| {
        Postgres::run_on(connection, effect(&on, 1)).await.unwrap();
        Postgres::run_on(connection, "select 1 / 0".to_owned()).await.unwrap_err();
    };
    let goes_on = async |connection: &mut sqlx::PgConnection| {
        Postgres::run_on(connection, effect(&on, 2)).await.expect_err("it commits by itself");
    };
    let nothing = async || {
        let counts = [on.number(EVENTS).await, on.number(INBOX).await, on.number(EFFECTS).await];
        assert_eq!(counts, [0, 0, 0]);
    };

    let mut tx = on.pool.begin().await.unwrap();
    fail(&mut tx).await;
    let refused =
        inbox.once(&mut tx, "billing", "m", async |_| Ok::<_, posthaste::Error>(())).await;
    goes_on(&mut tx).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::State);
    tx.commit().await.unwrap_err();
    nothing().await;

    let mut tx = on.outbox().begin(&on.pool).await.unwrap();
    fail(tx.connection()).await;
    let refused =
        inbox.once(&mut tx, "billing", "m", async |_| Ok::<_, posthaste::Error>(())).await;
    goes_on(tx.connection()).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::State);
    tx.commit().await.unwrap_err();
    nothing().await;

    for in_another in [false, true] {
        let mut tx = on.outbox().begin(&on.pool).await.unwrap();
        if in_another {
            let mut savepoint = tx.savepoint().await.unwrap();
            fail(savepoint.connection()).await;
            let once = inbox.once(&mut savepoint, "billing", "m", async |_| Ok::<_, Failure>(()));
            once.await.unwrap_err();
            goes_on(savepoint.connection()).await;
            savepoint.release().await.unwrap_err();
        } else {
            fail(tx.connection()).await;
            let refused = tx.savepoint().await.map(drop);
            goes_on(tx.connection()).await;
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::State);
        }
        goes_on(tx.connection()).await;
        tx.commit().await.unwrap_err();
        nothing().await;
    }
    drop_effects(&on).await;
    on.clean().await;
}

/// One connection, and nobody to ask it anything before it is lent.
async fn one_connection<DB: TestDatabase>(url: &str) -> sqlx::Pool<DB> {
    let options = sqlx::pool::PoolOptions::<DB>::new().max_connections(1);
    let pool = options.test_before_acquire(false).acquire_timeout(Duration::from_secs(20));
    pool.connect(url).await.unwrap()
}

/// A call that begins a transaction on the application's pool.
#[derive(Clone, Copy, Debug)]
enum Begins {
    Outbox,
    PurgeOfTheInbox,
    PurgeOfKeys,
    Migration,
}

const BEGINS: [Begins; 4] =
    [Begins::Outbox, Begins::PurgeOfTheInbox, Begins::PurgeOfKeys, Begins::Migration];

async fn begin_with<DB: TestDatabase + InboxDialect + IdempotencyDialect>(
    call: Begins,
    on: &Fixture<DB>,
    pool: &sqlx::Pool<DB>,
    store: &dyn Store,
) {
    match call {
        Begins::Outbox => drop(on.outbox().begin(pool).await.unwrap()),
        Begins::PurgeOfTheInbox => {
            let inbox = Inbox::<DB>::new(on.table());
            inbox.purge(pool, Duration::from_hours(1), 1).await.unwrap();
        }
        Begins::PurgeOfKeys => {
            let layer = IdempotencyLayer::new(on.outbox(), pool.clone(), |_| None);
            layer.purge(1).await.unwrap();
        }
        Begins::Migration => drop(store.migrate(None).await.unwrap()),
    }
}

/// A client hangs up while `BEGIN` is under way, or at another await of the call: the next user of the connection
/// finds no transaction open.
async fn a_begin_that_was_given_up_leaves_no_transaction_open<
    DB: TestDatabase + InboxDialect + IdempotencyDialect,
>(
    url: &str,
) {
    let on = DB::fixture().await;
    with_effects(&on).await;
    let pool = one_connection::<DB>(url).await;
    let store = DB::store(pool.clone(), on.tables.clone());
    // Once, so that it knows that no pooler is in between.
    store.migrate(None).await.unwrap();
    let mut n = 0;
    for call in BEGINS {
        let (mut given_up, mut waits) = (0, 0);
        while given_up < 10 || waits > 0 {
            drop(pool.acquire().await.unwrap());
            soon("the connection", async {
                while pool.num_idle() == 0 {
                    yield_now().await;
                }
            })
            .await;
            // At the next await each time, until it comes to its end.
            let begins = Box::pin(begin_with(call, &on, &pool, &*store));
            let ended = soon("the call", hang_up(begins, waits)).await;
            waits = if ended.is_none() { waits + 1 } else { 0 };
            given_up += u32::from(ended.is_none());
            let mut connection = pool.acquire().await.unwrap();
            DB::run_on(&mut connection, effect(&on, n)).await.unwrap();
            n += 1;
            assert_eq!(on.number(EFFECTS).await, i64::from(n), "{call:?}: it was not committed");
            assert!(n < 10_000, "{call:?}: only {given_up} of {n} were given up half-way");
        }
    }
    pool.close().await;
    drop_effects(&on).await;
    on.clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_a_begin_that_was_given_up_leaves_no_transaction_open() {
    let url = crate::support::url("POSTHASTE_TEST_POSTGRES");
    a_begin_that_was_given_up_leaves_no_transaction_open::<Postgres>(&url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mariadb_a_begin_that_was_given_up_leaves_no_transaction_open() {
    let url = crate::support::url("POSTHASTE_TEST_MARIADB");
    a_begin_that_was_given_up_leaves_no_transaction_open::<MySql>(&url).await;
}

/// SQLite works in a thread of its own: a begin that was given up is over before the next statement.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_a_begin_that_was_given_up_leaves_no_transaction_open() {
    let on = Sqlite::fixture().await;
    with_effects(&on).await;
    for n in 0..40 {
        let _ = begin_with(BEGINS[n as usize % 4], &on, &on.pool, &*on.store).now_or_never();
        on.sql(&effect(&on, n)).await;
        assert_eq!(on.number(EFFECTS).await, i64::from(n) + 1);
    }
    drop_effects(&on).await;
    on.clean().await;
}

/// The driver counts the answers of a statement that it prepares only once it knows them: whoever comes next
/// would take one for another, or wait for one that nobody sends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollback_after_a_statement_that_was_given_up_leaves_the_pool_whole() {
    let on = fixture().await;
    let pool = one_connection::<MySql>(&crate::support::url("POSTHASTE_TEST_MARIADB")).await;
    let (mut given_up, mut n) = (0, 0);
    while given_up < 2 {
        let mut tx = soon("a transaction", on.outbox().begin(&pool)).await.unwrap();
        // The server has not prepared it before, and describes two columns.
        let query = on.tables.fill(&format!("select n, k, {n} from {{events}}_effects"));
        given_up += u32::from(is_given_up(MySql::run_on(tx.connection(), query)));
        // An error, where the connection had to be closed.
        let _ = soon("the rollback", tx.rollback()).await;
        let mut connection = soon("the connection", pool.acquire()).await.unwrap();
        soon("the next one", MySql::run_on(&mut connection, effect(&on, n))).await.unwrap();
        n += 1;
        assert_eq!(on.number(EFFECTS).await, i64::from(n), "it was not committed");
        assert!(n < 1_000, "only {given_up} of {n} were given up half-way");
    }
    pool.close().await;
    clean(on).await;
}

/// How the application goes on after a timeout around one of its own statements.
#[derive(Clone, Copy, Debug, PartialEq)]
enum GoesOn {
    Drops,
    RollsBack,
    Commits,
    Enqueues,
    Records,
}

/// So many panics of this process, also of those that nobody hears of.
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Gives up a statement of its own with so many placeholders while the server prepares it, and goes
/// on. Whether what it had done before was committed.
async fn give_up_a_statement_and(
    goes_on: GoesOn,
    on: &Fixture<MySql>,
    pool: &sqlx::Pool<MySql>,
    (placeholders, n): (usize, u32),
) -> bool {
    let mut tx = on.outbox().begin(pool).await.unwrap();
    MySql::run_on(tx.connection(), effect(on, n)).await.unwrap();
    for attempt in 0.. {
        // The server has not prepared it before, and describes each placeholder and each column.
        let placeholders = vec!["?"; placeholders].join(", ");
        let query = format!("select concat({placeholders}) as c{n}_{attempt}");
        if is_given_up(MySql::run_on(tx.connection(), query)) {
            break;
        }
    }
    match goes_on {
        GoesOn::Drops => drop(tx),
        GoesOn::RollsBack => drop(tx.rollback().await),
        GoesOn::Commits => drop(tx.commit().await.unwrap_err()),
        GoesOn::Enqueues => {
            let refused = on.outbox().enqueue(&mut tx, event("k", 1)).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
            return tx.commit().await.is_ok();
        }
        GoesOn::Records => {
            let inbox = Inbox::<MySql>::new(on.table());
            let refused = inbox.first(&mut tx, "billing", "m").await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
            return tx.commit().await.is_ok();
        }
    }
    false
}

/// The definitions of its placeholders and columns are still to be read: whoever comes next takes
/// them for the answer, in which the driver panics, or never returns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_statement_that_was_given_up_every_end_comes_soon_and_leaves_the_pool_whole() {
    let on = Arc::new(fixture().await);
    let url = crate::support::url("POSTHASTE_TEST_MARIADB");
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Relaxed);
        print(panic);
    }));
    let (mut wrong, mut n, mut committed) = (Vec::new(), 0, 0);
    for placeholders in [1, 2, 8] {
        for goes_on in
            [GoesOn::Drops, GoesOn::RollsBack, GoesOn::Commits, GoesOn::Enqueues, GoesOn::Records]
        {
            n += 1;
            let pool = one_connection::<MySql>(&url).await;
            let before = PANICS.load(Relaxed);
            let ends = tokio::spawn({
                let (on, pool) = (Arc::clone(&on), pool.clone());
                async move { give_up_a_statement_and(goes_on, &on, &pool, (placeholders, n)).await }
            });
            let when = format!("{goes_on:?} after one with {placeholders} placeholders");
            match tokio::time::timeout(Duration::from_secs(12), ends).await {
                // After a refusal the driver can find its place again: the rest is as good as ever.
                Ok(Ok(one)) => committed += i64::from(one),
                Ok(Err(panicked)) => wrong.push(format!("{when}: {panicked}")),
                Err(_) => wrong.push(format!("{when}: hangs")),
            }
            let next = async {
                let mut connection = pool.acquire().await?;
                MySql::run_on(&mut connection, effect(&on, 10_000 + n)).await
            };
            match tokio::time::timeout(Duration::from_secs(12), next).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => wrong.push(format!("the next one, {when}: {error}")),
                Err(_) => wrong.push(format!("the next one, {when}: hangs")),
            }
            // Whoever drops it or rolls it back does all right: a process that ends with a panic
            // must live on.
            let own = !matches!(goes_on, GoesOn::Drops | GoesOn::RollsBack);
            if !own && PANICS.load(Relaxed) > before {
                wrong.push(format!("{when}: panics"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let kept = on.number("select count(*) from {events}_effects where n < 10000").await;
    assert_eq!((kept, on.number(EVENTS).await), (committed, 0), "of what was given up");
    assert_eq!(on.number(EFFECTS).await, i64::from(n) + committed, "of the next ones");
    let Ok(on) = Arc::try_unwrap(on) else { panic!("somebody is still at it") };
    clean(on).await;
}

/// The server cuts the connection: its place in the pool is free for another one.
async fn a_rollback_after_the_connection_was_cut_frees_its_place<DB: TestDatabase>(
    url: &str,
    cut: &str,
) {
    let on = DB::fixture().await;
    let pool = one_connection::<DB>(url).await;
    for _ in 0..2 {
        let mut tx = soon("a transaction", on.outbox().begin(&pool)).await.unwrap();
        on.outbox().enqueue(&mut tx, event("k", 1)).await.unwrap();
        DB::run_on(tx.connection(), cut.to_owned()).await.unwrap_err();
        let _ = soon("the rollback", tx.rollback()).await;
    }
    let mut tx = soon("a transaction", on.outbox().begin(&pool)).await.unwrap();
    on.outbox().enqueue(&mut tx, event("k", 2)).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(on.number(EVENTS).await, 1);
    pool.close().await;
    on.clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_a_rollback_after_the_connection_was_cut_frees_its_place() {
    let url = crate::support::url("POSTHASTE_TEST_POSTGRES");
    let cut = "select pg_terminate_backend(pg_backend_pid())";
    a_rollback_after_the_connection_was_cut_frees_its_place::<Postgres>(&url, cut).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mariadb_a_rollback_after_the_connection_was_cut_frees_its_place() {
    let url = crate::support::url("POSTHASTE_TEST_MARIADB");
    a_rollback_after_the_connection_was_cut_frees_its_place::<MySql>(&url, "kill connection_id()")
        .await;
}
