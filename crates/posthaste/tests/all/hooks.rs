//! Hooks around a write, and who is told how its transaction ended.

use std::{
    io,
    sync::{Arc, Mutex},
};

use crate::support::{Fixture, TestDatabase, commit_by_mistake, event, quick, soon, until};
use posthaste::{
    ErrorKind, Event, Failure, Hook, Inbox, OutboxTransaction, Refusal, Written, relay::Config,
    stores::inbox::InboxDialect, transports::memory::MemoryTransport,
};
use sqlx::{Postgres, Sqlite};

on_every_database!(
    hooks_change_a_batch_in_their_order,
    a_suppressed_batch_writes_nothing_and_answers_nothing,
    a_hook_that_refuses_or_panics_fails_the_enqueue_and_not_the_transaction,
    every_batch_is_told_once_how_its_transaction_ended,
    failures_and_panics_after_the_write_go_no_further,
    a_plain_driver_transaction_tells_of_the_write_only,
    each_outbox_of_a_transaction_tells_its_own_hooks,
    what_a_savepoint_took_back_is_never_sent,
    a_savepoint_is_told_of_its_own_end_or_of_its_transactions,
    what_the_driver_has_committed_by_mistake_is_not_called_rolled_back,
);

/// Notes what it is told: the moment, and the aggregates of the batch.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn note(&self, moment: &str, written: &[Written]) {
        let ids: Vec<_> =
            written.iter().map(|one| one.event.aggregate_id().unwrap_or_default()).collect();
        self.0.lock().unwrap().push(format!("{moment}: {}", ids.join(" ")));
    }

    fn taken(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Hook for Notes {
    fn after_write(&self, written: &[Written]) -> Result<(), Failure> {
        self.note("write", written);
        Ok(())
    }

    fn after_commit(&self, written: &[Written]) -> Result<(), Failure> {
        self.note("commit", written);
        Ok(())
    }

    fn after_rollback(&self, written: &[Written]) -> Result<(), Failure> {
        self.note("rollback", written);
        Ok(())
    }

    fn after_unknown(&self, written: &[Written]) -> Result<(), Failure> {
        self.note("unknown", written);
        Ok(())
    }
}

/// A hook that is a function before the write.
struct Before<F>(F);

impl<F> Hook for Before<F>
where
    F: Fn(Vec<Event>) -> Result<Vec<Event>, Refusal> + Send + Sync + 'static,
{
    fn name(&self) -> &str {
        "before"
    }

    fn before_write(&self, events: Vec<Event>) -> Result<Vec<Event>, Refusal> {
        (self.0)(events)
    }
}

async fn written<DB: TestDatabase>(on: &Fixture<DB>) -> u64 {
    on.store.counts(u64::MAX).await.unwrap().new as u64
}

async fn hooks_change_a_batch_in_their_order<DB: TestDatabase>(on: &Fixture<DB>) {
    let tag = |tag: &'static str| {
        Before(move |events: Vec<Event>| {
            let tagged = |event: Event| {
                let before = event.headers().get("tags").cloned().unwrap_or_default();
                event.with_header("tags", before + tag)
            };
            Ok(events.into_iter().map(tagged).collect())
        })
    };
    let double = Before(|events: Vec<Event>| {
        let copy = events[0].clone().edit().id(uuid::Uuid::now_v7()).build()?;
        Ok(vec![events[0].clone(), copy])
    });
    let outbox = on.outbox().with_hook(tag("a")).with_hook(double).with_hook(tag("b"));
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    let enqueued = outbox.enqueue_all(&mut tx, vec![event("k", 1)]).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!((enqueued.len(), written(on).await), (2, 2));

    let transport = MemoryTransport::new();
    on.relay(transport.clone(), quick()).relay_once().await.unwrap();
    for envelope in transport.delivered() {
        assert_eq!(envelope.event.headers()["tags"], "ab");
    }
}

async fn a_suppressed_batch_writes_nothing_and_answers_nothing<DB: TestDatabase>(on: &Fixture<DB>) {
    let notes = Notes::default();
    let outbox = on.outbox().with_hook(Before(|_| Ok(Vec::new()))).with_hook(notes.clone());
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    assert_eq!(outbox.enqueue(&mut tx, event("k", 1)).await.unwrap(), None);
    assert!(outbox.enqueue_all(&mut tx, vec![event("k", 2)]).await.unwrap().is_empty());
    tx.commit().await.unwrap();
    assert_eq!(written(on).await, 0);
    assert!(notes.taken().is_empty());
}

async fn a_hook_that_refuses_or_panics_fails_the_enqueue_and_not_the_transaction<
    DB: TestDatabase,
>(
    on: &Fixture<DB>,
) {
    let picky = Before(|events: Vec<Event>| match events[0].aggregate_id() {
        Some("refused") => Err(io::Error::other("not on a Sunday").into()),
        Some("panic") => panic!("marker"),
        _ => Ok(events),
    });
    let outbox = on.outbox().with_hook(picky);
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    outbox.enqueue(&mut tx, event("k", 1)).await.unwrap();

    let refused = outbox.enqueue(&mut tx, event("refused", 1)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);
    assert_eq!(refused.to_string(), "hook before refused the write");
    let source = std::error::Error::source(&refused).unwrap();
    assert_eq!(source.to_string(), "not on a Sunday");
    let panicked = outbox.enqueue(&mut tx, event("panic", 1)).await.unwrap_err();
    assert_eq!(panicked.to_string(), "hook before panicked before the write");

    outbox.enqueue(&mut tx, event("k", 2)).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(written(on).await, 2);
}

async fn every_batch_is_told_once_how_its_transaction_ended<DB: TestDatabase>(on: &Fixture<DB>) {
    let notes = Notes::default();
    let outbox = on.outbox().with_hook(notes.clone());
    for end in ["commit", "rollback", "drop"] {
        let mut tx = outbox.begin(&on.pool).await.unwrap();
        outbox.enqueue_all(&mut tx, vec![event("a", 1), event("b", 2)]).await.unwrap();
        outbox.enqueue(&mut tx, event("c", 3)).await.unwrap();
        assert_eq!(notes.taken(), ["write: a b", "write: c"]);
        let told = match end {
            "commit" => tx.commit().await.map(|()| "commit").unwrap(),
            "rollback" => tx.rollback().await.map(|()| "rollback").unwrap(),
            _ => {
                drop(tx);
                "rollback"
            }
        };
        assert_eq!(notes.taken(), [format!("{told}: a b"), format!("{told}: c")], "after {end}");
    }
    assert_eq!(written(on).await, 3);
}

/// Fails or panics whenever it can without refusing anything.
struct Clumsy;

impl Hook for Clumsy {
    fn after_write(&self, _: &[Written]) -> Result<(), Failure> {
        Err(Failure::retry("clumsy"))
    }

    fn after_commit(&self, _: &[Written]) -> Result<(), Failure> {
        panic!("marker");
    }

    fn after_rollback(&self, _: &[Written]) -> Result<(), Failure> {
        panic!("marker");
    }
}

async fn failures_and_panics_after_the_write_go_no_further<DB: TestDatabase>(on: &Fixture<DB>) {
    let notes = Notes::default();
    let outbox = on.outbox().with_hook(Clumsy).with_hook(notes.clone());
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    outbox.enqueue(&mut tx, event("a", 1)).await.unwrap();
    tx.commit().await.unwrap();
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    outbox.enqueue(&mut tx, event("b", 1)).await.unwrap();
    drop(tx);
    // Also when the transaction is dropped by another panic.
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    outbox.enqueue(&mut tx, event("c", 1)).await.unwrap();
    let panicking = tokio::spawn(async move {
        let _tx = tx;
        panic!("of the application's");
    });
    assert!(panicking.await.unwrap_err().is_panic());
    let told = ["write: a", "commit: a", "write: b", "rollback: b", "write: c", "rollback: c"];
    assert_eq!(notes.taken(), told);
    assert_eq!(written(on).await, 1);
}

async fn a_plain_driver_transaction_tells_of_the_write_only<DB: TestDatabase>(on: &Fixture<DB>) {
    let notes = Notes::default();
    let outbox = on.outbox().with_hook(notes.clone());
    let mut tx = on.pool.begin().await.unwrap();
    outbox.enqueue(&mut tx, event("a", 1)).await.unwrap();
    tx.commit().await.unwrap();
    let mut tx = on.pool.begin().await.unwrap();
    outbox.enqueue_on_connection(&mut tx, vec![event("b", 1)]).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(notes.taken(), ["write: a", "write: b"]);
}

async fn each_outbox_of_a_transaction_tells_its_own_hooks<DB: TestDatabase>(on: &Fixture<DB>) {
    let (orders, billing) = (Notes::default(), Notes::default());
    let one = on.outbox().with_hook(orders.clone());
    let other = on.outbox().with_hook(billing.clone());
    let mut tx = one.begin(&on.pool).await.unwrap();
    one.enqueue(&mut tx, event("order", 1)).await.unwrap();
    other.enqueue(&mut tx, event("bill", 1)).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(orders.taken(), ["write: order", "commit: order"]);
    assert_eq!(billing.taken(), ["write: bill", "commit: bill"]);
}

/// The writer does not know of the rollback and hands all of them over: the relay finds by their
/// keys what is there.
async fn what_a_savepoint_took_back_is_never_sent<DB: TestDatabase>(on: &Fixture<DB>) {
    let transport = MemoryTransport::new();
    let relay = on.relay(transport.clone(), quick());
    relay.start().await.unwrap();
    until(&relay, "idle", |stats| stats.idle && stats.shards_owned == stats.shards).await;
    let outbox = on.outbox().with_hot_path(relay.hot_path());
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    outbox.enqueue(&mut tx, event("k", 1)).await.unwrap();
    DB::run_on(tx.connection(), "savepoint attempt".to_owned()).await.unwrap();
    outbox.enqueue(&mut tx, event("k", 2)).await.unwrap();
    outbox.enqueue(&mut tx, event("other", 2)).await.unwrap();
    DB::run_on(tx.connection(), "rollback to savepoint attempt".to_owned()).await.unwrap();
    outbox.enqueue(&mut tx, event("k", 3)).await.unwrap();
    tx.commit().await.unwrap();
    soon("delivery", transport.wait_for(2)).await;
    let polls = relay.stats().polls;
    until(&relay, "two more polls", |stats| stats.idle && stats.polls > polls + 2).await;
    let payloads: Vec<_> =
        transport.delivered().iter().map(|one| one.event.payload().clone()).collect();
    assert_eq!(payloads, ["1", "3"]);
    relay.stop().await.unwrap();
}

async fn a_savepoint_is_told_of_its_own_end_or_of_its_transactions<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let notes = Notes::default();
    let outbox = on.outbox().with_hook(notes.clone());
    for commits in [true, false] {
        let mut tx = outbox.begin(&on.pool).await.unwrap();
        outbox.enqueue(&mut tx, event("a", 1)).await.unwrap();
        let mut savepoint = tx.savepoint().await.unwrap();
        outbox.enqueue(&mut savepoint, event("taken back", 1)).await.unwrap();
        savepoint.rollback().await.unwrap();
        let mut savepoint = tx.savepoint().await.unwrap();
        outbox.enqueue(&mut savepoint, event("dropped", 1)).await.unwrap();
        drop(savepoint);
        let mut savepoint = tx.savepoint().await.unwrap();
        outbox.enqueue(&mut savepoint, event("kept", 1)).await.unwrap();
        savepoint.release().await.unwrap();
        let told: Vec<_> =
            notes.taken().into_iter().filter(|told| !told.starts_with("write")).collect();
        assert_eq!(told, ["rollback: taken back", "rollback: dropped"]);
        let end = if commits {
            tx.commit().await.unwrap();
            "commit"
        } else {
            tx.rollback().await.unwrap();
            "rollback"
        };
        assert_eq!(notes.taken(), [format!("{end}: a"), format!("{end}: kept")]);
    }
    assert_eq!(written(on).await, 2);
}

async fn what_the_driver_has_committed_by_mistake_is_not_called_rolled_back<
    DB: TestDatabase + InboxDialect,
>(
    on: &Fixture<DB>,
) {
    let notes = Notes::default();
    let outbox = on.outbox().with_hook(notes.clone());
    let inbox = Inbox::<DB>::new(on.table());
    let unknown = |refused: posthaste::Error, when: &str| {
        assert_eq!(refused.kind(), ErrorKind::State, "{refused}");
        assert!(refused.to_string().contains("may have been committed"), "{when}: {refused}");
    };
    let whens = ["commit", "rollback", "drop", "savepoint", "once", "first", "inside", "effect"];
    for (n, when) in whens.into_iter().enumerate() {
        let mut tx = outbox.begin(&on.pool).await.unwrap();
        outbox.enqueue(&mut tx, event(when, 1)).await.unwrap();
        assert_eq!(notes.taken(), [format!("write: {when}")]);
        match when {
            "inside" => {
                let mut savepoint = tx.savepoint().await.unwrap();
                commit_by_mistake::<DB>(savepoint.connection(), 2).await;
                unknown(savepoint.release().await.unwrap_err(), when);
            }
            "effect" => {
                let effect = async |tx: &mut sqlx::Transaction<'_, DB>| {
                    commit_by_mistake::<DB>(tx, 2).await;
                    Ok::<_, posthaste::Error>(())
                };
                unknown(inbox.once(&mut tx, "c", "m", effect).await.unwrap_err(), when);
            }
            _ => commit_by_mistake::<DB>(tx.connection(), 1).await,
        }
        match when {
            "drop" => drop(tx),
            "rollback" => unknown(tx.rollback().await.unwrap_err(), when),
            "savepoint" => {
                unknown(tx.savepoint().await.map(drop).unwrap_err(), when);
                drop(tx);
            }
            "once" => {
                let once = inbox.once(&mut tx, "c", "m", async |_| Ok::<_, posthaste::Error>(()));
                unknown(once.await.unwrap_err(), when);
                unknown(tx.commit().await.unwrap_err(), when);
            }
            "first" => {
                unknown(inbox.first(&mut tx, "c", "m").await.unwrap_err(), when);
                drop(tx);
            }
            _ => unknown(tx.commit().await.unwrap_err(), when),
        }
        assert_eq!(notes.taken(), [format!("unknown: {when}")]);
        assert_eq!(written(on).await, n as u64 + 1, "{when}: the driver has committed it");
    }
}

/// A table whose values are found to be there twice only by the commit.
const ONCE: &str = "create table {events}_once (id int unique deferrable initially deferred)";

async fn backend(tx: &mut OutboxTransaction<Postgres>) -> i32 {
    sqlx::query_scalar("select pg_backend_pid()").fetch_one(tx.connection()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_commit_fires_neither_after_commit_nor_after_rollback() {
    let on = Postgres::fixture().await;
    let notes = Notes::default();
    let outbox = on.outbox().with_hook(notes.clone());
    // The server ends the connection, and nobody hears what became of the commit.
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    let pid = backend(&mut tx).await;
    // Last, so that nothing is asked before the commit.
    outbox.enqueue(&mut tx, event("a", 1)).await.unwrap();
    let ended: bool = sqlx::query_scalar("select pg_terminate_backend($1, 10000)")
        .bind(pid)
        .fetch_one(&on.pool)
        .await
        .unwrap();
    assert!(ended);
    let lost = tx.commit().await.unwrap_err();
    assert!(lost.is_transient() && lost.to_string().contains("unknown"), "{lost}");
    assert_eq!(notes.taken(), ["write: a", "unknown: a"]);

    on.clean().await;
}

/// The commit waits at the server for another transaction with the same unique value.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_nobody_waits_for_is_unknown() {
    let on = Postgres::fixture().await;
    let notes = Notes::default();
    let outbox = on.outbox().with_hook(notes.clone());
    on.sql(ONCE).await;
    let insert = on.tables.fill("insert into {events}_once values (1)");
    let mut other = on.pool.begin().await.unwrap();
    Postgres::run_on(&mut other, insert.clone()).await.unwrap();
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    outbox.enqueue(&mut tx, event("a", 1)).await.unwrap();
    Postgres::run_on(tx.connection(), insert).await.unwrap();
    let pid = backend(&mut tx).await;
    let commit = tokio::spawn(tx.commit());
    let waits = async || -> bool {
        let waits = "select wait_event_type = 'Lock' from pg_stat_activity where pid = $1";
        let waits: Option<bool> =
            sqlx::query_scalar(waits).bind(pid).fetch_one(&on.pool).await.unwrap();
        waits.unwrap_or(false)
    };
    soon("the commit to wait", async { while !waits().await {} }).await;
    commit.abort();
    assert!(commit.await.unwrap_err().is_cancelled());
    assert_eq!(notes.taken(), ["write: a", "unknown: a"]);
    other.rollback().await.unwrap();
    on.sql("drop table {events}_once").await;
    on.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_the_database_refuses_is_a_rollback() {
    let on = Postgres::fixture().await;
    let notes = Notes::default();
    let outbox = on.outbox().with_hook(notes.clone());
    on.sql(ONCE).await;
    let insert = on.tables.fill("insert into {events}_once values (1), (1)");
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    outbox.enqueue(&mut tx, event("a", 1)).await.unwrap();
    Postgres::run_on(tx.connection(), insert).await.unwrap();
    let refused = tx.commit().await.unwrap_err();
    assert!(refused.to_string().contains("rolled back"), "{refused}");
    assert_eq!(refused.kind(), ErrorKind::Database, "it will not pass");
    assert_eq!(notes.taken(), ["write: a", "rollback: a"]);

    // PostgreSQL would answer this commit with success.
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    outbox.enqueue(&mut tx, event("b", 1)).await.unwrap();
    sqlx::raw_sql("select 1/0").execute(tx.connection()).await.unwrap_err();
    let failed = tx.commit().await.unwrap_err();
    assert!(failed.to_string().contains("a statement has failed"), "{failed}");
    assert_eq!(notes.taken(), ["write: b", "rollback: b"]);
    assert_eq!(written(&on).await, 0);
    on.sql("drop table {events}_once").await;
    on.clean().await;
}

/// An error is the server's answer to the commit, whatever its code: nothing was committed.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_a_constraint_trigger_refuses_is_a_rollback() {
    let on = Postgres::fixture().await;
    let notes = Notes::default();
    let outbox = on.outbox().with_hook(notes.clone());
    on.sql("create table {events}_once (id int)").await;
    for (code, kind) in [
        ("raise_exception", ErrorKind::Database),
        ("unique_violation", ErrorKind::Database),
        ("division_by_zero", ErrorKind::Database),
        ("serialization_failure", ErrorKind::Unavailable),
        ("query_canceled", ErrorKind::TimedOut),
    ] {
        let function = format!(
            "create or replace function {{events}}_refuse() returns trigger language plpgsql as
             $$ begin raise exception using errcode = '{code}', message = 'refused'; end $$"
        );
        on.sql(&function).await;
        on.sql("drop trigger if exists refuse on {events}_once").await;
        on.sql(
            "create constraint trigger refuse after insert on {events}_once
             deferrable initially deferred for each row execute function {events}_refuse()",
        )
        .await;
        let insert = on.tables.fill("insert into {events}_once values (1)");
        let mut tx = outbox.begin(&on.pool).await.unwrap();
        outbox.enqueue(&mut tx, event("a", 1)).await.unwrap();
        Postgres::run_on(tx.connection(), insert).await.unwrap();
        let refused = tx.commit().await.unwrap_err();
        assert!(refused.to_string().contains("rolled back"), "{code}: {refused}");
        assert_eq!(refused.kind(), kind, "{code}");
        assert_eq!(notes.taken(), ["write: a", "rollback: a"], "{code}");
    }
    assert_eq!(written(&on).await, 0);
    on.sql("drop table {events}_once").await;
    on.sql("drop function {events}_refuse()").await;
    on.clean().await;
}

/// The connection breaks before the commit is sent.
async fn a_commit_that_was_never_sent_is_a_rollback<DB: TestDatabase>(cut: &str) {
    let on = DB::fixture().await;
    let notes = Notes::default();
    let outbox = on.outbox().with_hook(notes.clone());
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    outbox.enqueue(&mut tx, event("a", 1)).await.unwrap();
    DB::run_on(tx.connection(), cut.to_owned()).await.unwrap_err();
    let failed = tx.commit().await.unwrap_err();
    assert!(failed.is_transient() && failed.to_string().contains("rolled back"), "{failed}");
    assert_eq!(notes.taken(), ["write: a", "rollback: a"]);
    assert_eq!(written(&on).await, 0);
    on.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgres_a_commit_that_was_never_sent_is_a_rollback() {
    let cut = "select pg_terminate_backend(pg_backend_pid())";
    a_commit_that_was_never_sent_is_a_rollback::<Postgres>(cut).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_mariadb_a_commit_that_was_never_sent_is_a_rollback() {
    a_commit_that_was_never_sent_is_a_rollback::<sqlx::MySql>("kill connection_id()").await;
}

#[tokio::test]
async fn a_commit_that_sqlite_refuses_is_a_rollback() {
    let on = Sqlite::fixture().await;
    let notes = Notes::default();
    let outbox = on.outbox().with_hook(notes.clone());
    on.sql("create table parents (id integer primary key)").await;
    on.sql("create table children (id int references parents deferrable initially deferred)").await;
    let mut tx = outbox.begin(&on.pool).await.unwrap();
    outbox.enqueue(&mut tx, event("a", 1)).await.unwrap();
    Sqlite::run_on(tx.connection(), "insert into children values (1)".to_owned()).await.unwrap();
    let refused = tx.commit().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Database, "{refused}");
    assert_eq!(notes.taken(), ["write: a", "rollback: a"]);
    assert_eq!(written(&on).await, 0);
    on.clean().await;
}

#[tokio::test]
async fn a_full_hot_queue_warns_counts_and_leaves_events_to_the_poller() {
    let log = crate::support::Log::default();
    let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let on = Sqlite::fixture().await;
    let transport = MemoryTransport::new();
    let relay = on.relay(transport.clone(), Config { hot_queue: 1, ..quick() });
    let outbox = on.outbox().with_hot_path(relay.hot_path());
    // Nobody takes anything out of the queue yet.
    for n in 0..3 {
        let mut tx = outbox.begin(&on.pool).await.unwrap();
        outbox.enqueue(&mut tx, event("k", n)).await.unwrap();
        tx.commit().await.unwrap();
    }
    assert_eq!(log.text().matches("hot queue is full; left to the poller").count(), 2);
    relay.start().await.unwrap();
    soon("delivery", transport.wait_for(3)).await;
    assert_eq!(relay.stop().await.unwrap().hot_dropped, 2);
    on.clean().await;
}
