//! A transaction that SQLite has ended, or that its caller has dropped, spoils no later write.
//!
//! A full disk, an I/O error and `raise(rollback)` make SQLite roll back by itself.

use std::{
    future::poll_fn,
    pin::pin,
    task::{Context, Poll},
};

use futures_util::future::BoxFuture;
use posthaste_core::{
    Result,
    store::{Audit, Change},
};
use sqlx::Acquire;

use super::*;

const LONG_AGO: Duration = Duration::from_hours(1);

/// An outbox in which every kind of write finds something to do.
struct Outbox {
    store: SqliteStore,
    relay: Relay,
    fence: Fence,
    /// One sent, one dead, one claimed with `token(1)`, one whose row lease has expired, the rest
    /// fresh.
    events: Vec<Event>,
    sequences: Vec<i64>,
}

impl Outbox {
    async fn new(store: SqliteStore) -> Self {
        store.migrate(None).await.unwrap();
        let relay = relay();
        let events: Vec<Event> = (0..6).map(|number| event(&number.to_string())).collect();
        let sequences = enqueue(&store, &events).await;
        let lease = store.acquire(&relay, &[0]).await.unwrap().remove(0);
        let fence = Fence::Shards { owner: relay.owner(), held: vec![lease.held] };
        let dead = Verdict::Dead { error: "no".into(), destination: "d".into(), parked: None };
        let batch = [settlement(sequences[0], Verdict::Sent), settlement(sequences[1], dead)];
        store.settle(&fence, &batch, true).await.unwrap();
        for number in [1, 2] {
            let from = Position::default();
            let claimed =
                store.claim(&relay, &token(number), &from, Limit::rows(1)).await.unwrap().rows;
            assert_eq!(claimed[0].sequence, sequences[number as usize + 1]);
        }
        let outbox = Self { store, relay, fence, events, sequences };
        let earlier = "update {events}
            set sent_at = sent_at - 7200000000, dead_at = dead_at - 7200000000,
                locked_until = case when locked_by = 'test#2' then 1 else locked_until end";
        outbox.run(earlier).await;
        outbox
    }

    async fn run(&self, sql: &str) {
        let sql = AssertSqlSafe(self.store.tables().fill(sql));
        sqlx::raw_sql(sql).execute(self.store.pool()).await.unwrap();
    }

    /// Lets SQLite end every transaction that writes to the outbox.
    async fn sabotage(&self) {
        for (table, event) in self.triggers().await {
            let sql = format!(
                "create trigger {table}_{event} before {event} on {table}
                 begin select raise(rollback, 'ended'); end"
            );
            self.run(&sql).await;
        }
    }

    async fn repair(&self) {
        for (table, event) in self.triggers().await {
            self.run(&format!("drop trigger {table}_{event}")).await;
        }
    }

    async fn triggers(&self) -> Vec<(String, &'static str)> {
        let tables: Vec<String> = sqlx::query_scalar(
            "select name from sqlite_master where type = 'table' and name like ?1 || '%'",
        )
        .bind(self.store.tables().name().qualified())
        .fetch_all(self.store.pool())
        .await
        .unwrap();
        let all =
            |table: String| ["insert", "update", "delete"].map(|event| (table.clone(), event));
        tables.into_iter().flat_map(all).collect()
    }
}

type Write = for<'o> fn(&'o Outbox) -> BoxFuture<'o, Result<()>>;

/// Every write of the store that is a transaction.
const TRANSACTIONS: [(&str, Write); 11] = [
    ("heartbeat", |o| Box::pin(async { o.store.heartbeat(&o.relay, 1).await.map(drop) })),
    ("acquire", |o| Box::pin(async { o.store.acquire(&o.relay, &[0]).await.map(drop) })),
    ("settle by shard", |o| {
        Box::pin(async {
            let sent = [settlement(o.sequences[4], Verdict::Sent)];
            o.store.settle(&o.fence, &sent, true).await.map(drop)
        })
    }),
    ("settle by row", |o| {
        Box::pin(async {
            let sent = [settlement(o.sequences[2], Verdict::Sent)];
            o.store.settle(&Fence::Rows(token(1)), &sent, true).await.map(drop)
        })
    }),
    ("claim", |o| {
        Box::pin(async {
            o.store.claim(&o.relay, &token(3), &Position::default(), Limit::rows(1)).await.map(drop)
        })
    }),
    ("claim late", |o| {
        Box::pin(async {
            let from = Position { sequence: o.sequences[5], ..Position::default() };
            o.store.claim_late(&o.relay, &token(3), &from, Limit::rows(1)).await.map(drop)
        })
    }),
    ("replay", |o| {
        let one = Selection::One(o.events[1].id());
        Box::pin(async move { o.store.replay(&one).await.map(drop) })
    }),
    ("discard", |o| {
        let one = Selection::One(o.events[1].id());
        Box::pin(async move { o.store.discard(&one).await.map(drop) })
    }),
    ("discard matching", |o| {
        let fresh = Filter { aggregate_id: Some("5".into()), ..Filter::default() };
        let matching = Selection::Matching { filter: fresh, limit: 10 };
        Box::pin(async move { o.store.discard(&matching).await.map(drop) })
    }),
    ("purge", |o| Box::pin(async { o.store.purge(LONG_AGO, None, 10, None).await.map(drop) })),
    ("purge dead", |o| {
        Box::pin(async { o.store.purge(LONG_AGO * 24, Some(LONG_AGO), 10, None).await.map(drop) })
    }),
];

/// The three ways to a store: its own connections, the caller's pool, and a database that lives as
/// long as its only connection.
async fn stores(folder: &Folder) -> [(&'static str, SqliteStore); 3] {
    let id = Uuid::now_v7().simple();
    let own = folder.store(&format!("{id}.db?mode=rwc")).await;
    let file = SqliteConnectOptions::new()
        .filename(folder.0.join(format!("{id}-caller.db")))
        .create_if_missing(true);
    // With a test, the pool closes a connection whose acquire is dropped meanwhile.
    let one = || SqlitePoolOptions::new().max_connections(1).test_before_acquire(false);
    let callers = one().connect_with(file).await.unwrap();
    let memory = one().connect("sqlite::memory:").await.unwrap();
    let tables = || posthaste_testkit::tables::unique("broken");
    [
        ("own connections", own),
        ("the caller's pool", SqliteStore::new(callers, tables())),
        ("a database in memory", SqliteStore::new(memory, tables())),
    ]
}

#[tokio::test]
async fn every_write_works_again_after_sqlite_has_ended_its_transaction() {
    let folder = Folder::new();
    let mut failures = Vec::new();
    for (name, write) in TRANSACTIONS {
        for (kind, store) in stores(&folder).await {
            let outbox = Outbox::new(store).await;
            outbox.sabotage().await;
            let error = write(&outbox).await.unwrap_err();
            assert!(error.to_string().ends_with("the database answered 1811"), "{name}: {error}");
            outbox.repair().await;
            if let Err(error) = write(&outbox).await {
                failures.push(format!("{name} ({kind}): {error}, {:?}", source(&error)));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[tokio::test]
async fn a_full_disk_is_over_once_there_is_room() {
    let folder = Folder::new();
    for (kind, store) in stores(&folder).await {
        let outbox = Outbox::new(store).await;
        let pages: i64 =
            sqlx::query_scalar("pragma page_count").fetch_one(outbox.store.pool()).await.unwrap();
        // Ends the statement. A disk that is really full shows at the commit, as in the test of it.
        outbox.run(&format!("pragma max_page_count = {pages}")).await;
        let large = Relay { name: "x".repeat(1_000_000), ..relay() };
        let error = outbox.store.heartbeat(&large, 0).await.unwrap_err();
        assert_eq!(error.to_string(), "sending a heartbeat failed: the database answered 13");
        outbox.run("pragma max_page_count = 1000000").await;
        outbox.store.heartbeat(&large, 0).await.unwrap_or_else(|error| {
            panic!("{kind}: {error}, {:?}", source(&error));
        });
    }
}

#[tokio::test]
async fn a_commit_that_fails_is_reported_and_the_next_one_works() {
    let folder = Folder::new();
    let audit: Write = |o| {
        let change = Change { by: "me".into(), action: "a".into(), subject: "s".into() };
        Box::pin(async move { o.store.audit_begin(&change).await.map(drop) })
    };
    let expired: Write = |o| {
        Box::pin(async {
            let row = o.store.claim_expired(&o.relay, &token(3), i64::MAX).await?;
            assert_eq!(row.row.unwrap().sequence, o.sequences[3]);
            Ok(())
        })
    };
    let others = [("audit", audit), ("claim expired", expired)];
    let mut failures = Vec::new();
    for (name, write) in TRANSACTIONS.into_iter().chain(others) {
        for (kind, store) in stores(&folder).await {
            let outbox = Outbox::new(store).await;
            let writer = outbox.store.pool();
            writer.acquire().await.unwrap().lock_handle().await.unwrap().set_commit_hook(|| false);
            match write(&outbox).await {
                Ok(()) => failures.push(format!("{name} ({kind}): says that it has committed")),
                Err(error) => assert!(error.to_string().ends_with("answered 531"), "{error}"),
            }
            writer.acquire().await.unwrap().lock_handle().await.unwrap().remove_commit_hook();
            if let Err(error) = write(&outbox).await {
                failures.push(format!("{name} ({kind}): {error}, {:?}", source(&error)));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[tokio::test]
async fn a_migration_that_fails_can_be_run_again() {
    let folder = Folder::new();
    for (_, store) in stores(&folder).await {
        let writer = store.pool();
        writer.acquire().await.unwrap().lock_handle().await.unwrap().set_commit_hook(|| false);
        store.migrate(None).await.unwrap_err();
        writer.acquire().await.unwrap().lock_handle().await.unwrap().remove_commit_hook();
        store.migrate(None).await.unwrap();
        store.check().await.unwrap();
    }
}

#[tokio::test]
async fn a_write_that_is_dropped_at_any_point_keeps_no_lock_and_the_next_one_works() {
    let folder = Folder::new();
    for (name, write) in TRANSACTIONS {
        for (kind, store) in stores(&folder).await {
            let outbox = Outbox::new(store).await;
            for polls in 1.. {
                assert!(polls < 1_000, "{name} ({kind}) does not end");
                let ended = polled(polls, write(&outbox)).await;
                outbox.store.heartbeat(&outbox.relay, polls).await.unwrap_or_else(|error| {
                    panic!("{name} ({kind}), {polls} polls: {error}, {:?}", source(&error));
                });
                if kind != "a database in memory" {
                    assert_unlocked(&outbox.store).await;
                }
                if let Some(result) = ended {
                    // What was dropped may have been committed before.
                    let done = result.is_ok() || matches!(name, "replay" | "discard");
                    assert!(done, "{name} ({kind}): {result:?}");
                    break;
                }
            }
        }
    }
}

#[tokio::test]
async fn a_write_that_is_dropped_while_it_waits_for_the_lock_does_not_take_it_later() {
    let folder = Folder::new();
    let outbox = Outbox::new(folder.store("app.db").await).await;
    let other = folder.plain("app.db").await;
    let locked = other.begin_with("begin immediate").await.unwrap();
    let waiting = outbox.store.heartbeat(&outbox.relay, 1);
    assert!(timeout(Duration::from_millis(50), waiting).await.is_err());
    locked.rollback().await.unwrap();
    outbox.store.heartbeat(&outbox.relay, 2).await.unwrap();
    assert_unlocked(&outbox.store).await;
}

#[tokio::test]
async fn the_application_can_begin_on_its_pool_after_a_write_of_the_store_has_failed() {
    let folder = Folder::new();
    let [_, callers, memory] = stores(&folder).await;
    for (_, store) in [callers, memory] {
        let outbox = Outbox::new(store).await;
        outbox.sabotage().await;
        outbox.store.heartbeat(&outbox.relay, 1).await.unwrap_err();
        let pool = outbox.store.pool();
        assert!(!Sqlite::in_transaction(&mut pool.acquire().await.unwrap()));
        pool.begin_with("begin immediate").await.unwrap().rollback().await.unwrap();
    }
}

#[tokio::test]
async fn begin_and_the_store_work_after_sqlite_has_ended_a_transaction_of_the_application() {
    let folder = Folder::new();
    let [_, callers, memory] = stores(&folder).await;
    for (_, store) in [callers, memory] {
        let outbox = Outbox::new(store).await;
        let pool = outbox.store.pool();
        for round in 0..3 {
            outbox.sabotage().await;
            let mut transaction = Sqlite::begin(pool).await.unwrap();
            Sqlite::enqueue(&mut transaction, outbox.store.tables(), &[event("6")])
                .await
                .unwrap_err();
            drop(transaction);
            outbox.repair().await;
            if round == 1 {
                outbox.store.heartbeat(&outbox.relay, 1).await.unwrap();
            }
        }
        let mut transaction = Sqlite::begin(pool).await.unwrap();
        Sqlite::enqueue(&mut transaction, outbox.store.tables(), &[event("7")]).await.unwrap();
        transaction.commit().await.unwrap();
        assert!(!Sqlite::in_transaction(&mut pool.acquire().await.unwrap()));
        // A database in memory would be empty had its only connection been closed.
        let all = outbox.store.events(&Filter::default(), None, 100).await.unwrap();
        assert_eq!(all.events.len(), outbox.events.len() + 1);
    }
}

#[tokio::test]
async fn begin_works_after_sqlite_has_ended_a_transaction_with_a_savepoint() {
    let folder = Folder::new();
    let outbox = {
        let [_, (_, callers), _] = stores(&folder).await;
        Outbox::new(callers).await
    };
    let pool = outbox.store.pool();
    outbox.sabotage().await;
    let mut transaction = Sqlite::begin(pool).await.unwrap();
    let mut savepoint = transaction.begin().await.unwrap();
    Sqlite::enqueue(&mut savepoint, outbox.store.tables(), &[event("6")]).await.unwrap_err();
    drop(savepoint);
    drop(transaction);
    outbox.repair().await;
    Sqlite::begin(pool).await.unwrap().rollback().await.unwrap();
}

/// Polls a future so many times and drops it then.
async fn polled<T>(times: i64, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|context: &mut Context<'_>| {
        polls += 1;
        match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if polls >= times => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Another process can write: it does not even have to wait.
async fn assert_unlocked(store: &SqliteStore) {
    assert!(store.open_transactions(1).await.unwrap().is_empty());
}

fn settlement(sequence: i64, verdict: Verdict) -> Settlement {
    Settlement { sequence, identity: Identity::default(), shard: 0, attempts: 1, verdict }
}

fn source(error: &posthaste_core::Error) -> Option<String> {
    std::error::Error::source(error).map(ToString::to_string)
}
