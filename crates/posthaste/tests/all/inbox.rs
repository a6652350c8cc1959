//! The inbox: however often a message comes, and whatever breaks meanwhile, it takes effect once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::support::{Fixture, TestDatabase, event, soon, url};
use futures_util::future::join_all;
use posthaste::{
    Envelope, Error, ErrorKind, Inbox, Once, message_id, stores::inbox::InboxDialect,
    transports::message::MessageFormat,
};
use sqlx::{AssertSqlSafe, Transaction, postgres::PgPoolOptions};
use tokio::{sync::oneshot, task::JoinSet};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A database whose connections can be cut.
trait InboxDatabase: TestDatabase + InboxDialect {
    /// Cuts the connection that the transaction is open on.
    fn cut(transaction: Transaction<'static, Self>) -> impl Future<Output = ()> + Send;
}

macro_rules! cut_by_a_statement {
    ($database:ty, $statement:literal) => {
        impl InboxDatabase for $database {
            async fn cut(mut transaction: Transaction<'static, Self>) {
                let cut = sqlx::query($statement).execute(&mut *transaction).await;
                assert!(cut.is_err(), "the connection survived");
            }
        }
    };
}

cut_by_a_statement!(sqlx::Postgres, "select pg_terminate_backend(pg_backend_pid())");
cut_by_a_statement!(sqlx::MySql, "kill connection_id()");

impl InboxDatabase for sqlx::Sqlite {
    // There is no server that could cut it.
    async fn cut(transaction: Transaction<'static, Self>) {
        drop(transaction);
    }
}

on_every_database! {
    a_message_takes_effect_once_and_a_duplicate_says_so,
    consumers_are_independent_of_each_other,
    a_message_whose_transaction_rolled_back_comes_again,
    an_effect_that_fails_leaves_neither_itself_nor_its_record,
    ids_that_look_alike_are_different_messages,
    names_that_do_not_fit_are_refused,
    old_records_are_purged_in_steps,
    a_thousand_messages_delivered_five_times_by_crashing_consumers_take_effect_once,
}

async fn begin<DB: InboxDatabase>(fixture: &Fixture<DB>) -> Transaction<'static, DB> {
    DB::begin(&fixture.pool).await.unwrap()
}

async fn with_effects<DB: InboxDatabase>(fixture: &Fixture<DB>) -> Inbox<DB> {
    fixture.sql("create table {events}_effects (n varchar(40) not null)").await;
    Inbox::new(fixture.table())
}

async fn drop_effects<DB: InboxDatabase>(fixture: &Fixture<DB>) {
    fixture.sql("drop table {events}_effects").await;
}

fn effect<DB: InboxDatabase>(fixture: &Fixture<DB>, n: impl std::fmt::Display) -> String {
    fixture.tables.fill(&format!("insert into {{events}}_effects (n) values ('{n}')"))
}

async fn once<DB: InboxDatabase>(
    inbox: &Inbox<DB>,
    transaction: &mut Transaction<'_, DB>,
    consumer: &str,
    id: &str,
    effect: String,
) -> Result<Once<()>, Failure> {
    inbox
        .once(transaction, consumer, id, async |tx| Ok::<_, Failure>(DB::run_on(tx, effect).await?))
        .await
}

async fn handle<DB: InboxDatabase>(
    fixture: &Fixture<DB>,
    inbox: &Inbox<DB>,
    consumer: &str,
    id: &str,
) -> Once<()> {
    let mut tx = begin(fixture).await;
    let outcome = once(inbox, &mut tx, consumer, id, effect(fixture, id.len())).await.unwrap();
    tx.commit().await.unwrap();
    outcome
}

const EFFECTS: &str = "select count(*) from {events}_effects";

async fn a_message_takes_effect_once_and_a_duplicate_says_so<DB: InboxDatabase>(
    fixture: &Fixture<DB>,
) {
    let inbox = with_effects(fixture).await;
    assert_eq!(handle(fixture, &inbox, "billing", "m1").await, Once::Ran(()));
    assert_eq!(inbox.duplicates(), 0);
    for n in 1..=3 {
        assert!(handle(fixture, &inbox, "billing", "m1").await.is_duplicate());
        assert_eq!(inbox.clone().duplicates(), n);
    }
    assert_eq!(fixture.number(EFFECTS).await, 1);
    drop_effects(fixture).await;
}

async fn consumers_are_independent_of_each_other<DB: InboxDatabase>(fixture: &Fixture<DB>) {
    let inbox = with_effects(fixture).await;
    for consumer in ["billing", "shipping", "Billing"] {
        assert_eq!(handle(fixture, &inbox, consumer, "m1").await, Once::Ran(()), "{consumer}");
    }
    assert_eq!(fixture.number(EFFECTS).await, 3);
    drop_effects(fixture).await;
}

async fn a_message_whose_transaction_rolled_back_comes_again<DB: InboxDatabase>(
    fixture: &Fixture<DB>,
) {
    let inbox = with_effects(fixture).await;
    let mut tx = begin(fixture).await;
    once(&inbox, &mut tx, "billing", "m1", effect(fixture, 1)).await.unwrap();
    tx.rollback().await.unwrap();
    let mut tx = begin(fixture).await;
    once(&inbox, &mut tx, "billing", "m1", effect(fixture, 1)).await.unwrap();
    drop(tx);
    assert_eq!(handle(fixture, &inbox, "billing", "m1").await, Once::Ran(()));
    assert_eq!(fixture.number(EFFECTS).await, 1);
    drop_effects(fixture).await;
}

async fn an_effect_that_fails_leaves_neither_itself_nor_its_record<DB: InboxDatabase>(
    fixture: &Fixture<DB>,
) {
    let inbox = with_effects(fixture).await;
    let mut tx = begin(fixture).await;
    let (good, bad) = (effect(fixture, 1), "insert into nowhere (n) values (1)".to_owned());
    let outcome = inbox
        .once(&mut tx, "billing", "m1", async |tx| {
            DB::run_on(tx, good).await?;
            DB::run_on(tx, bad).await?;
            Ok::<_, Failure>(())
        })
        .await;
    assert!(outcome.is_err());
    // The caller goes on with its transaction, and commits it.
    DB::run_on(&mut tx, effect(fixture, "refused")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(fixture.number(EFFECTS).await, 1, "the caller's own row alone");
    assert_eq!(handle(fixture, &inbox, "billing", "m1").await, Once::Ran(()));
    drop_effects(fixture).await;
}

async fn ids_that_look_alike_are_different_messages<DB: InboxDatabase>(fixture: &Fixture<DB>) {
    let inbox = with_effects(fixture).await;
    let long = "x".repeat(255);
    let ids = ["m", "M", "m ", " m", "m\t", "ḿ", "é", "e", "e\u{301}", "ſ", "s", &long];
    for id in ids {
        assert_eq!(handle(fixture, &inbox, "billing", id).await, Once::Ran(()), "{id:?}");
    }
    for id in ids {
        assert!(handle(fixture, &inbox, "billing", id).await.is_duplicate(), "{id:?}");
    }
    drop_effects(fixture).await;
}

async fn names_that_do_not_fit_are_refused<DB: InboxDatabase>(fixture: &Fixture<DB>) {
    let inbox = Inbox::<DB>::new(fixture.table());
    let (consumer, id) = ("é".repeat(101), "é".repeat(256));
    for (consumer, id) in
        [("", "m"), ("c", ""), (&*consumer, "m"), ("c", &*id), ("c", "a\0b"), ("c\0", "m")]
    {
        let mut tx = begin(fixture).await;
        let error: Error = inbox.first(&mut tx, consumer, id).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    let mut tx = begin(fixture).await;
    assert!(inbox.first(&mut tx, &"é".repeat(100), &"é".repeat(255)).await.unwrap());
}

async fn old_records_are_purged_in_steps<DB: InboxDatabase>(fixture: &Fixture<DB>) {
    const DAY: Duration = Duration::from_hours(24);

    let inbox = with_effects(fixture).await;
    for n in 0..7 {
        handle(fixture, &inbox, "billing", &format!("old-{n}")).await;
    }
    let earlier = Fixture::<DB>::earlier("received_at", 48);
    fixture.sql(&format!("update {{inbox}} set received_at = {earlier}")).await;
    handle(fixture, &inbox, "billing", "new").await;

    assert_eq!(inbox.purge(&fixture.pool, 3 * DAY, 10).await.unwrap(), 0);
    assert_eq!(inbox.purge(&fixture.pool, DAY, 5).await.unwrap(), 5);
    assert_eq!(fixture.store.purge_inbox(DAY, 5).await.unwrap(), 2);
    assert_eq!(fixture.store.purge_inbox(DAY, 5).await.unwrap(), 0);
    assert_eq!(fixture.number("select count(*) from {inbox}").await, 1);
    assert!(handle(fixture, &inbox, "billing", "new").await.is_duplicate());
    drop_effects(fixture).await;
}

/// 8 consumers share 5 deliveries of 1,000 messages. Of the first deliveries many crash: before the
/// commit the transaction is dropped or its connection cut, after it the acknowledgement is
/// lost; what was not acknowledged comes again.
async fn a_thousand_messages_delivered_five_times_by_crashing_consumers_take_effect_once<
    DB: InboxDatabase,
>(
    fixture: &Fixture<DB>,
) {
    const MESSAGES: u64 = 1_000;
    const DELIVERIES: u64 = 5;

    let inbox = with_effects(fixture).await;
    let next = AtomicU64::new(0);
    let crashes = AtomicU64::new(0);
    let consumer = async |seed: u64| {
        let mut random = Random(seed);
        loop {
            let delivery = next.fetch_add(1, Ordering::Relaxed);
            if delivery >= MESSAGES * DELIVERIES {
                return;
            }
            // Neighbours have the same message, so that its deliveries meet.
            let id = format!("m{}", delivery / DELIVERIES);
            loop {
                let Ok(mut tx) = DB::begin(&fixture.pool).await else { continue };
                let done = once(&inbox, &mut tx, "billing", &id, effect(fixture, &id)).await;
                match (done, random.below(64)) {
                    (Err(_), _) | (Ok(_), 0..4) => drop(tx),
                    (Ok(_), 4) => DB::cut(tx).await,
                    // Committed, and then the acknowledgement is lost.
                    (Ok(_), 5..9) => drop(tx.commit().await),
                    (Ok(_), _) => match tx.commit().await {
                        Ok(()) => break,
                        Err(_) => continue,
                    },
                }
                crashes.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    let consumers = (1..=8).map(consumer);
    soon("consuming", futures_util::future::join_all(consumers)).await;

    let crashed = crashes.load(Ordering::Relaxed);
    assert!(crashed > 500, "only {crashed} crashes: nothing was put to the test");
    assert_eq!(fixture.number(EFFECTS).await, MESSAGES as i64);
    let distinct = "select count(distinct n) from {events}_effects";
    assert_eq!(fixture.number(distinct).await, MESSAGES as i64);
    assert!(inbox.duplicates() >= MESSAGES * (DELIVERIES - 1));
    drop_effects(fixture).await;
}

/// Numbers that are the same in every run (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) % limit
    }
}

/// Two deliveries at once: the second one waits for the first, and runs when that rolled back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_waits_for_another_one_of_the_same_message() {
    let fixture = <sqlx::Postgres as TestDatabase>::fixture().await;
    let inbox = Arc::new(Inbox::<sqlx::Postgres>::new(fixture.table()));
    for commits in [false, true] {
        let mut first = begin(&fixture).await;
        assert!(inbox.first(&mut first, "billing", "m").await.unwrap());
        let mut tasks = JoinSet::new();
        let (pool, inbox) = (fixture.pool.clone(), Arc::clone(&inbox));
        let (send, pid) = oneshot::channel();
        tasks.spawn(async move {
            let mut tx = pool.begin().await.unwrap();
            let pid: i32 =
                sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut *tx).await.unwrap();
            send.send(pid).unwrap();
            let first = inbox.first(&mut tx, "billing", "m").await.unwrap();
            tx.rollback().await.unwrap();
            first
        });
        let pid = pid.await.unwrap();
        soon("the second delivery", async {
            let waits = "select count(*) from pg_locks where pid = $1 and not granted";
            while sqlx::query_scalar::<_, i64>(waits)
                .bind(pid)
                .fetch_one(&fixture.pool)
                .await
                .unwrap()
                == 0
            {
                tokio::task::yield_now().await;
            }
        })
        .await;
        if commits {
            first.commit().await.unwrap();
        } else {
            first.rollback().await.unwrap();
        }
        let second = soon("the second delivery", tasks.join_next()).await.unwrap().unwrap();
        assert_eq!(second, !commits);
    }
    fixture.clean().await;
}

/// A consumer's task is spawned: what `once` gives must be able to move between threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spawned_task_can_consume() {
    let fixture = <sqlx::Sqlite as TestDatabase>::fixture().await;
    let inbox = Inbox::<sqlx::Sqlite>::new(fixture.table());
    let pool = fixture.pool.clone();
    let spawned = tokio::spawn(async move {
        let mut tx = pool.begin().await.unwrap();
        let one = inbox
            .once(&mut tx, "billing", "m", async |tx| {
                sqlx::query_scalar::<_, i64>("select 1").fetch_one(&mut **tx).await.map_err(
                    |error| Error::new(ErrorKind::Database, "selecting failed").with_source(error),
                )
            })
            .await
            .unwrap();
        tx.commit().await.unwrap();
        one
    });
    assert_eq!(soon("consuming", spawned).await.unwrap(), Once::Ran(1));
    fixture.clean().await;
}

#[test]
fn the_id_is_found_whatever_the_format_and_the_broker() {
    let event = crate::support::event("o", 1);
    let id = event.id().to_string();
    for replay in [0, 2] {
        let envelope = Envelope {
            sequence: 7,
            attempts: 0,
            replay,
            created_at: event.occurred_at(),
            topic: None,
            event: event.clone(),
        };
        for (format, prefix) in [
            (MessageFormat::Raw, ""),
            (MessageFormat::CloudEventsBinary, "ce-"),
            (MessageFormat::CloudEventsBinary, "ce_"),
            (MessageFormat::CloudEventsBinary, "cloudEvents:"),
            (MessageFormat::CloudEventsBinary, ""),
        ] {
            let message = format.message(&envelope, prefix);
            let find = |name: &str| {
                message.headers().find(|(known, _)| *known == name).map(|(_, value)| value)
            };
            assert_eq!(message_id(find), Some(&*id), "{format} with {prefix:?}, replay {replay}");
        }
        let message = MessageFormat::CloudEventsStructured.message(&envelope, "ce-");
        let body: serde_json::Value = serde_json::from_slice(&message.body).unwrap();
        assert_eq!(body["id"], *id, "replay {replay}");
        assert_eq!(body["replay"].as_str(), (replay > 0).then_some("2"));
        let broker = envelope.deduplication_id();
        assert_eq!(message_id(|name| (name == "Nats-Msg-Id").then_some(&*broker)), Some(&*id));
    }
    assert_eq!(message_id(|_| None), None);
    assert_eq!(message_id(|_| Some("a/1")), Some("a/1"), "an id of somebody else's");
}

/// A service that passes the headers of the message it handles on to its own events, as it does for
/// correlation: a consumer further down must not take them for one.
#[tokio::test]
async fn events_that_carry_the_headers_of_a_message_have_ids_of_their_own() {
    let fixture = <sqlx::Sqlite as TestDatabase>::fixture().await;
    let upstream = [("posthaste-id", "upstream"), ("ce-id", "upstream"), ("id", "upstream")];
    let event = || {
        let builder = posthaste::Event::builder("Happened").raw_json("{}");
        builder.headers(upstream).header("correlation", "7").build().unwrap()
    };
    let events = [event(), event()];
    fixture.enqueue(events.to_vec()).await;
    // Another language has written the headers as they were.
    fixture
        .sql(
            "update {events} set headers = '{\"posthaste-id\":\"upstream\",\"correlation\":\"7\"}'",
        )
        .await;
    let transport = posthaste::transports::memory::MemoryTransport::new();
    fixture.relay(transport.clone(), crate::support::quick()).relay_once().await.unwrap();
    let delivered = transport.delivered();
    assert_eq!(delivered.len(), 2);
    for envelope in delivered {
        assert_eq!(envelope.event.headers()["correlation"], "7");
        let id = envelope.event.id().to_string();
        for format in [MessageFormat::Raw, MessageFormat::CloudEventsBinary] {
            let message = format.message(&envelope, "ce-");
            let find = |name: &str| {
                message.headers().find(|(known, _)| *known == name).map(|(_, value)| value)
            };
            assert_eq!(message_id(find), Some(&*id), "{format}");
        }
        let message = MessageFormat::CloudEventsStructured.message(&envelope, "ce-");
        assert!(message.headers().all(|(name, _)| name == "correlation"));
    }
    fixture.clean().await;
}

/// Behind a transaction pooler that does not follow prepared statements a name could be another's.
#[tokio::test]
async fn without_named_statements_the_inbox_leaves_none_on_its_connection() {
    const LEFT: &str = "
        select count(*) from pg_prepared_statements where statement like '%insert into%_inbox %'
            and statement not like '%pg_prepared_statements%'";

    let fixture = <sqlx::Postgres as TestDatabase>::fixture().await;
    let named = Inbox::<sqlx::Postgres>::new(fixture.table());
    let unnamed = named.clone().without_named_statements();
    let mut tx = begin(&fixture).await;
    for (inbox, left) in [(unnamed, 0), (named, 1)] {
        assert!(inbox.first(&mut tx, "billing", &left.to_string()).await.unwrap());
        let found: i64 = sqlx::query_scalar(LEFT).fetch_one(&mut *tx).await.unwrap();
        assert_eq!(found, left);
    }
    tx.rollback().await.unwrap();
    fixture.clean().await;
}

/// Behind a pooler that lends out connections by the transaction, to more than it has.
async fn behind_a_transaction_pooler_a_message_takes_effect_once(variable: &str) {
    const MESSAGES: usize = 50;

    let fixture = <sqlx::Postgres as TestDatabase>::fixture().await;
    let pool = PgPoolOptions::new().max_connections(30).connect(&url(variable)).await.unwrap();
    let inbox = with_effects(&fixture).await.without_named_statements();
    let outbox = fixture.outbox().without_named_statements();
    let deliveries = join_all((0..3 * MESSAGES).map(async |delivery| {
        let id = format!("m{}", delivery / 3);
        // Not prepared under a name either.
        let effect = sqlx::raw_sql(AssertSqlSafe(effect(&fixture, &id)));
        let mut tx = outbox.begin(&pool).await.unwrap();
        let outcome = inbox
            .once(&mut tx, "billing", &id, async |tx| {
                effect.execute(&mut **tx).await?;
                Ok::<_, Failure>(())
            })
            .await
            .unwrap();
        if !outcome.is_duplicate() {
            outbox.enqueue(&mut tx, event(&id, 1)).await.unwrap();
        }
        tx.commit().await.unwrap();
        outcome
    }));
    let outcomes = soon("the deliveries", deliveries).await;
    let ran = outcomes.iter().filter(|outcome| !outcome.is_duplicate()).count();
    let events = fixture.number("select count(*) from {events}").await;
    let counts = (ran as i64, fixture.number(EFFECTS).await, events);
    assert_eq!(counts, (MESSAGES as i64, MESSAGES as i64, MESSAGES as i64));

    let earlier = Fixture::<sqlx::Postgres>::earlier("received_at", 2);
    fixture.sql(&format!("update {{inbox}} set received_at = {earlier}")).await;
    let purges = (0..20).map(|_| inbox.purge(&pool, Duration::from_hours(1), MESSAGES));
    let purged: u64 = join_all(purges).await.into_iter().map(Result::unwrap).sum();
    assert_eq!(purged, MESSAGES as u64);
    pool.close().await;
    drop_effects(&fixture).await;
    fixture.clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_pgbouncer_a_message_takes_effect_once() {
    behind_a_transaction_pooler_a_message_takes_effect_once("POSTHASTE_TEST_PGBOUNCER").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pgbouncer_that_resets_a_message_takes_effect_once() {
    behind_a_transaction_pooler_a_message_takes_effect_once("POSTHASTE_TEST_PGBOUNCER_RESET").await;
}
