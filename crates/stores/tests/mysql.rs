//! MySQL and MariaDB: what every store must do, and what only this one promises.
#![cfg(feature = "mysql")]

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use posthaste_core::{
    ErrorKind, Event,
    store::{
        Claim, Fence, Held, Identity, Inspect, Leases, Limit, Operate, Page, Position, Read, Relay,
        RelayOrdering, RowLease, Schema, Settle, Settlement, Verdict,
    },
};
use posthaste_stores::{
    Dialect, Enqueued, Options, Tables,
    mysql::{ClaimStyle, MySqlStore},
};
use posthaste_testkit::{
    conformance::{SqlxDatabase, Subject},
    tables,
};
use sqlx::{
    AssertSqlSafe, Connection, Executor, MySql, MySqlConnection, MySqlPool, Row,
    mysql::MySqlPoolOptions,
};
use uuid::Uuid;

#[path = "mysql/claims.rs"]
mod claims;
#[path = "mysql/enqueue.rs"]
mod enqueue;
#[path = "mysql/jumps.rs"]
mod jumps;
#[path = "mysql/lives.rs"]
mod lives;
#[path = "mysql/rounds.rs"]
mod rounds;
#[path = "mysql/statements.rs"]
mod statements;

const MARIADB: &str = "POSTHASTE_TEST_MARIADB";
const MYSQL: &str = "POSTHASTE_TEST_MYSQL";

async fn mariadb() -> Option<Subject> {
    Some(Subject::new(mariadb_pool(12).await))
}

async fn claimed_by_token() -> Option<Subject> {
    let pool = mariadb_pool(12).await;
    let database = SqlxDatabase::new(pool).store_with(|pool, tables| {
        Arc::new(MySqlStore::new(pool, tables).with_claim_style(ClaimStyle::Token))
    });
    Some(Subject::on(database).without_skip_locked())
}

async fn mysql() -> Option<Subject> {
    let Ok(url) = std::env::var(MYSQL) else {
        eprintln!("{MYSQL} is not set: no MySQL server to be had here");
        return None;
    };
    Some(Subject::new(pool(&url, 12).await))
}

mod on_mariadb {
    use super::mariadb;
    posthaste_testkit::store_conformance!(mariadb);
}

/// The way of servers that cannot skip locked rows.
mod on_mariadb_by_token {
    use super::claimed_by_token;
    posthaste_testkit::store_conformance!(claimed_by_token);
}

mod on_mysql {
    use super::mysql;
    posthaste_testkit::store_conformance!(mysql);
}

#[tokio::test]
async fn events_that_commit_in_reverse_order_are_all_found() {
    let outbox = Outbox::new().await;
    let mut position = Position::default();
    let mut open = Vec::new();
    for n in 0..5 {
        let mut transaction = outbox.pool.begin().await.unwrap();
        let sequence = outbox.enqueue(&mut transaction, &[event(&n.to_string())]).await[0];
        open.push((sequence.sequence, transaction));
    }
    for (sequence, transaction) in open.into_iter().rev() {
        transaction.commit().await.unwrap();
        let ahead = outbox.store.read_on(&SHARDS, &position, Limit::rows(10)).await.unwrap();
        let late =
            outbox.store.read_late(&SHARDS, &ahead.position, Limit::rows(1000)).await.unwrap();
        let found = [sequences(&ahead), sequences(&late)].concat();
        assert_eq!(found, [sequence]);
        position = late.position;
    }
    assert_eq!(missing(&position), "", "no gap is left open");
    outbox.drop().await;
}

#[tokio::test]
async fn an_open_transaction_stalls_nobody_and_its_event_is_found_after_its_commit() {
    let outbox = Outbox::new().await;
    let mut open = outbox.pool.begin().await.unwrap();
    let slow = outbox.enqueue(&mut open, &[event("slow")]).await[0].sequence;
    let mut position = Position::default();
    for n in 0..20 {
        let quick = outbox.commit(&[event(&n.to_string())]).await;
        let ahead = outbox.store.read_on(&SHARDS, &position, Limit::rows(10)).await.unwrap();
        assert_eq!(sequences(&ahead), quick, "the open transaction holds nobody back");
        let late =
            outbox.store.read_late(&SHARDS, &ahead.position, Limit::rows(1000)).await.unwrap();
        assert!(late.rows.is_empty(), "nothing was committed late yet");
        position = late.position;
    }
    // For longer than a gap lives that nobody can fill any more.
    let begin = Instant::now();
    until("seven seconds have passed", async || {
        let late = outbox.store.read_late(&SHARDS, &position, Limit::rows(1000)).await.unwrap();
        assert!(late.rows.is_empty());
        position = late.position;
        assert_eq!(missing(&position), slow.to_string());
        begin.elapsed().as_secs() >= 7
    })
    .await;
    open.commit().await.unwrap();

    let late = outbox.store.read_late(&SHARDS, &position, Limit::rows(1000)).await.unwrap();
    assert_eq!(sequences(&late), [slow]);
    let again = outbox.store.read_late(&SHARDS, &late.position, Limit::rows(1000)).await.unwrap();
    assert!(again.rows.is_empty(), "found once");
    assert_eq!(missing(&again.position), "");
    outbox.drop().await;
}

#[tokio::test]
async fn a_gap_of_a_rolled_back_transaction_is_dropped() {
    let outbox = Outbox::new().await;
    outbox.leave_a_gap().await;
    let page = outbox.store.read_on(&SHARDS, &Position::default(), Limit::rows(10)).await.unwrap();
    assert_eq!(sequences(&page), [2]);
    // Other tests run statements on this server, but not for long.
    outbox.until_closed(page.position).await;
    outbox.drop().await;
}

#[tokio::test]
async fn an_idle_transaction_keeps_only_the_gaps_that_it_can_fill() {
    let outbox = Outbox::new().await;
    let mut reader = outbox.pool.begin().await.unwrap();
    outbox.execute(&mut reader, "select count(*) from {events}").await;
    let mut writer = outbox.pool.begin().await.unwrap();
    let open = outbox.enqueue(&mut writer, &[event("open")]).await[0].sequence;
    outbox.leave_a_gap().await;
    let mut position = Position::default();
    until("the gap is dropped", async || {
        let page = outbox.store.read_on(&SHARDS, &position, Limit::rows(10)).await.unwrap();
        position = page.position;
        missing(&position) == open.to_string()
    })
    .await;
    writer.commit().await.unwrap();
    let late = outbox.store.read_late(&SHARDS, &position, Limit::rows(10)).await.unwrap();
    assert_eq!(sequences(&late), [open]);
    reader.rollback().await.unwrap();
    outbox.drop().await;
}

#[tokio::test]
async fn numbers_that_are_far_apart_and_rolled_back_ones_leave_nothing_behind() {
    let outbox = Outbox::new().await;
    let mut reader = outbox.pool.begin().await.unwrap();
    outbox.execute(&mut reader, "select count(*) from {events}").await;
    let mut writer = outbox.pool.acquire().await.unwrap();
    outbox.execute(&mut writer, "set auto_increment_increment = 3").await;
    let mut expected = Vec::new();
    for round in 0..40 {
        let batch: Vec<Event> = (0..100).map(|n| event(&format!("{round}-{n}"))).collect();
        let mut transaction = writer.begin().await.unwrap();
        let written = outbox.enqueue(&mut transaction, &batch).await;
        if round % 10 == 9 {
            transaction.rollback().await.unwrap();
        } else {
            expected.extend(written.into_iter().map(|event| event.sequence));
            transaction.commit().await.unwrap();
        }
    }
    let (mut found, mut position) = (Vec::new(), Position::default());
    for round in 0.. {
        assert!(round < 200, "{} of {} after {round} pages", found.len(), expected.len());
        let page = outbox.store.read_on(&SHARDS, &position, Limit::rows(100)).await.unwrap();
        found.extend(sequences(&page));
        position = page.position;
        if page.caught_up {
            break;
        }
    }
    assert_eq!(found, expected);
    outbox.until_closed(position).await;
    outbox.execute(&mut writer, "set auto_increment_increment = 1").await;
    reader.rollback().await.unwrap();
    outbox.drop().await;
}

/// With its first row a statement reserves the numbers of all. Readers pass them, and while it runs they cost
/// nothing.
#[tokio::test]
async fn numbers_that_a_long_statement_has_yet_to_use_are_found_when_it_is_committed() {
    const SLOW: &str = "
        insert into {events} (event_id, event_type, payload)
        values (uuid(), 'T', '1'), (uuid(), 'T', sleep(2)), (uuid(), 'T', '3')";

    let outbox = Outbox::new().await;
    for after in [None, Some(Duration::from_millis(700))] {
        let mut connection = outbox.pool.acquire().await.unwrap();
        let (slow, commit) = (outbox.tables.fill(SLOW), after.is_some());
        let mut running = tokio::spawn(async move {
            if let Some(after) = after {
                connection.execute("start transaction").await.unwrap();
                connection.execute(AssertSqlSafe(slow)).await.unwrap();
                tokio::time::sleep(after).await;
                connection.execute("commit").await.unwrap();
            } else {
                connection.execute(AssertSqlSafe(slow)).await.unwrap();
            }
        });
        let (mut found, mut position) = (Vec::new(), Position::default());
        let mut read = async || {
            outbox.commit(&[event("quick")]).await;
            let page = outbox.store.read_on(&SHARDS, &position, Limit::rows(1000)).await.unwrap();
            found.extend(sequences(&page));
            position = page.position;
        };
        while tokio::time::timeout(Duration::from_millis(20), &mut running).await.is_err() {
            read().await;
        }
        read().await;
        found.sort_unstable();
        let all = outbox.tables.fill("select sequence from {events} order by sequence");
        let all: Vec<i64> =
            sqlx::query_scalar(AssertSqlSafe(all)).fetch_all(&outbox.pool).await.unwrap();
        assert_eq!(found, all, "in a transaction: {commit}");
    }
    outbox.drop().await;
}

#[tokio::test]
async fn a_row_with_a_zero_date_dies_alone() {
    let outbox = Outbox::new().await;
    let written = outbox.commit(&[event("a"), event("b"), event("c")]).await;
    let mut connection = outbox.pool.acquire().await.unwrap();
    outbox.execute(&mut connection, "set sql_mode = ''").await;
    let spoil = "update {events} set occurred_at = '0000-00-00' where sequence = 2";
    outbox.execute(&mut connection, spoil).await;
    let page = outbox.store.read_on(&SHARDS, &Position::default(), Limit::rows(10)).await.unwrap();
    assert_eq!(sequences(&page), written);
    assert_eq!(
        page.rows[1].content.as_ref().unwrap_err(),
        "column occurred_at holds a time that is out of range"
    );
    assert!(page.rows[0].content.is_ok() && page.rows[2].content.is_ok());
    outbox.execute(&mut connection, "set sql_mode = default").await;
    outbox.drop().await;
}

#[tokio::test]
async fn a_duplicate_enqueue_that_stays_open_holds_no_lock_that_a_settle_needs() {
    for seen in [true, false] {
        let outbox = Outbox::new().await;
        let mut again = outbox.pool.begin().await.unwrap();
        if !seen {
            // What is committed from now on is not visible to it.
            outbox.execute(&mut again, "select count(*) from {events}").await;
        }
        let event = event("a");
        let first = outbox.enqueue_and_commit(std::slice::from_ref(&event)).await[0];
        let second = outbox.enqueue(&mut again, &[event]).await[0];
        assert!(second.duplicate);
        assert_eq!(second.sequence, first.sequence);
        let (relay, held) = outbox.hold().await;
        let page =
            outbox.store.read_on(&SHARDS, &Position::default(), Limit::rows(10)).await.unwrap();
        let batch = [sent(first.sequence, page.rows[0].shard)];
        let fence = Fence::Shards { owner: relay.owner(), held };
        let report = outbox.store.settle(&fence, &batch, true).await.unwrap();
        assert!(report.refused.is_empty());
        again.rollback().await.unwrap();
        outbox.drop().await;
    }
}

/// The numbers that a position names as missing.
fn missing(position: &Position) -> &str {
    position.context.rsplit('|').next().unwrap()
}

#[tokio::test]
async fn a_settle_that_waits_for_a_takeover_is_refused() {
    let outbox = Outbox::new().await;
    let written = outbox.enqueue_and_commit(&[event("a")]).await[0];
    let (relay, held) = outbox.hold().await;
    let settler = outbox.other_process().await;

    let mut takeover = outbox.pool.begin().await.unwrap();
    let sql = "update {shards} set locked_by = 'thief', epoch = epoch + 1";
    outbox.execute(&mut takeover, sql).await;
    let fence = Fence::Shards { owner: relay.owner(), held };
    let shard = outbox.store.event(written.id).await.unwrap().unwrap().shard;
    let sequence = written.sequence;
    let store = settler.store.clone();
    let settle =
        tokio::spawn(async move { store.settle(&fence, &[sent(sequence, shard)], true).await });
    outbox.until_waiting(settler.thread).await;
    takeover.commit().await.unwrap();

    let report = settle.await.unwrap().unwrap();
    assert_eq!(report.refused, [sequence]);
    assert_eq!(report.stale_shards, SHARDS);
    assert_eq!(outbox.store.count_sent().await.unwrap(), 0);
    outbox.drop().await;
}

#[tokio::test]
async fn claims_and_purges_pass_over_locked_rows_and_leave_inserts_alone() {
    let outbox = Outbox::new().await;
    outbox.commit(&[event("a"), event("b")]).await;
    let relay = new_relay();
    let lease = RowLease { token: format!("{}#1", relay.owner()) };
    // On the very rows at the end of the table, where a gap lock would lie.
    let mut holder = outbox.pool.begin().await.unwrap();
    let lock = "select * from {events} where sequence = 2 for update";
    outbox.execute(&mut holder, lock).await;
    let claimed =
        outbox.store.claim(&relay, &lease, &Position::default(), Limit::rows(10)).await.unwrap();
    assert_eq!(claimed.rows.len(), 1, "what is locked is skipped");
    outbox.commit(&[event("c")]).await;
    let purged = outbox.store.purge(Duration::ZERO, None, 10, None).await.unwrap().deleted;
    assert_eq!(purged, 0, "nothing was sent");
    outbox.commit(&[event("d")]).await;
    holder.rollback().await.unwrap();
    outbox.drop().await;
}

#[tokio::test]
async fn batches_at_once_that_share_ids_write_each_event_once() {
    let outbox = Outbox::new().await;
    let events: Vec<Event> = (0..40).map(|n| event(&n.to_string())).collect();
    let mut writers = Vec::new();
    for n in 0..6 {
        let (outbox, mut events) = (outbox.clone(), events.clone());
        writers.push(tokio::spawn(async move {
            // The same order in all: opposite orders would deadlock, as in any database.
            events.drain(..n * 3);
            loop {
                let mut transaction = outbox.pool.begin().await.unwrap();
                // Under repeatable read, this fixes what plain reads see from here on.
                outbox.execute(&mut transaction, "select count(*) from {events}").await;
                match MySql::enqueue(&mut transaction, &outbox.tables, &events).await {
                    Ok(enqueued) => {
                        transaction.commit().await.unwrap();
                        return enqueued;
                    }
                    // Two of them may wait for each other all the same: the server ends one.
                    Err(error) => {
                        let begins_another = error.kind() == ErrorKind::State;
                        assert!(error.is_transient() || begins_another, "{error}");
                    }
                }
            }
        }));
    }
    let mut answers: Vec<Enqueued> = Vec::new();
    for writer in writers {
        answers.extend(writer.await.unwrap());
    }
    for event in &events {
        let of_event: Vec<_> = answers.iter().filter(|answer| answer.id == event.id()).collect();
        let first = of_event.iter().filter(|answer| !answer.duplicate).count();
        assert_eq!(first, 1, "{:?} was written {first} times", event.id());
        assert!(of_event.iter().all(|answer| answer.sequence == of_event[0].sequence));
    }
    let page = outbox.store.read_on(&SHARDS, &Position::default(), Limit::rows(100)).await.unwrap();
    assert_eq!(page.rows.len(), events.len());
    outbox.drop().await;
}

#[tokio::test]
async fn an_insert_that_waited_for_the_same_id_sees_it_under_repeatable_read() {
    let outbox = Outbox::new().await;
    let event = event("a");
    let mut first = outbox.pool.begin().await.unwrap();
    let written = outbox.enqueue(&mut first, std::slice::from_ref(&event)).await[0];
    let writer = outbox.other_process().await;
    let (pool, tables) = (writer.store.pool().clone(), outbox.tables.clone());
    let second = tokio::spawn(async move {
        let mut transaction = pool.begin().await.unwrap();
        let answer = MySql::enqueue(&mut transaction, &tables, &[event]).await.unwrap();
        transaction.commit().await.unwrap();
        answer[0]
    });
    outbox.until_waiting(writer.thread).await;
    first.commit().await.unwrap();
    assert_eq!(second.await.unwrap(), Enqueued { duplicate: true, ..written });
    outbox.drop().await;
}

#[tokio::test]
async fn a_row_of_another_language_gets_its_shard_when_it_first_fails() {
    let outbox = Outbox::new().await;
    let mut connection = outbox.pool.acquire().await.unwrap();
    let id = Uuid::now_v7();
    let insert = format!(
        "insert into {{events}} (event_id, event_type, aggregate_id, payload)
         values ('{id}', 'ByHand', '7', '')"
    );
    outbox.execute(&mut connection, &insert).await;
    let (relay, held) = outbox.hold().await;
    let page = outbox.store.read_on(&SHARDS, &Position::default(), Limit::rows(10)).await.unwrap();
    let row = &page.rows[0];
    let shard = row.shard;
    let others: Vec<u16> = SHARDS.into_iter().filter(|&other| other != shard).collect();
    let nothing =
        outbox.store.read_on(&others, &Position::default(), Limit::rows(10)).await.unwrap();
    assert!(nothing.rows.is_empty(), "the other shards have no such event");

    let settlement = Settlement {
        sequence: row.sequence,
        identity: row.identity,
        shard,
        attempts: 1,
        verdict: Verdict::Retry {
            after: Duration::ZERO,
            error: "refused".to_owned(),
            destination: "d".to_owned(),
            key: row.key,
            replay: false,
        },
    };
    let fence = Fence::Shards { owner: relay.owner(), held };
    outbox.store.settle(&fence, &[settlement], true).await.unwrap();
    assert_eq!(outbox.store.read_blocked(&[shard], None, 1000).await.unwrap().lanes.len(), 1);
    assert!(outbox.store.read_blocked(&others, None, 1000).await.unwrap().lanes.is_empty());
    assert_eq!(outbox.store.read_due(&[shard], None, Limit::rows(10)).await.unwrap().rows.len(), 1);
    assert!(outbox.store.read_due(&others, None, Limit::rows(10)).await.unwrap().rows.is_empty());
    outbox.drop().await;
}

/// A context that names only the first of many missing numbers says of none after it that it was seen.
#[tokio::test]
async fn a_hot_row_knows_late_commits_that_a_context_does_not_name() {
    let outbox = Outbox::new().await;
    let mut open = outbox.pool.begin().await.unwrap();
    let mut late = Vec::new();
    for n in 0..250 {
        late.push(outbox.enqueue(&mut open, &[event("key")]).await[0].sequence);
        outbox.commit(&[event(&n.to_string())]).await;
    }
    let page =
        outbox.store.read_on(&SHARDS, &Position::default(), Limit::rows(1000)).await.unwrap();
    assert_eq!(missing(&page.position), format!("<{}", late[0]));
    open.commit().await.unwrap();
    let next = outbox.commit(&[event("key")]).await;
    let other = outbox.other_process().await.store;
    let hot = other.read_hot(&next, &page.position).await.unwrap();
    let previous = hot[0].previous.as_ref();
    assert!(previous.is_none_or(|known| known.contains(&late[0])), "{previous:?}");
    outbox.drop().await;
}

#[tokio::test]
async fn a_pool_that_does_not_commit_by_itself_reads_what_is_new() {
    let outbox = Outbox::new().await;
    let pool = MySqlPoolOptions::new()
        .after_connect(|connection, _| {
            Box::pin(async { connection.execute("set autocommit = 0").await.map(drop) })
        })
        .connect(&mariadb_url())
        .await
        .unwrap();
    let store = MySqlStore::new(pool.clone(), outbox.tables.clone());
    let mut position = Position::default();
    for n in 0..3 {
        let new = outbox.commit(&[event(&n.to_string())]).await;
        let page = store.read_on(&SHARDS, &position, Limit::rows(10)).await.unwrap();
        assert_eq!(sequences(&page), new);
        position = page.position;
    }
    // Other statements of the pool have left transactions open, and tables with them.
    drop(store);
    pool.close().await;
    outbox.drop().await;
}

#[tokio::test]
async fn a_mariadb_url_opens_a_store() {
    let tables = tables::unique("my");
    let url = mariadb_url().replacen("mysql:", "mariadb:", 1);
    let store = MySqlStore::connect(&url, tables.clone(), &Options::default()).await.unwrap();
    assert_eq!(store.migrate(None).await.unwrap(), [1]);
    assert_eq!(store.check().await.unwrap(), 64);
    tables::drop_outbox(store.pool(), &tables).await.unwrap();
}

const SHARDS: [u16; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

/// An outbox of its own for one test.
#[derive(Clone)]
struct Outbox {
    pool: MySqlPool,
    tables: Tables,
    store: MySqlStore,
}

/// A store on one connection, whose waiting can be watched.
struct OtherProcess {
    store: MySqlStore,
    thread: u64,
}

impl Outbox {
    async fn new() -> Self {
        Self::over(mariadb_pool(10).await).await
    }

    async fn over(pool: MySqlPool) -> Self {
        let tables = tables::unique("my");
        let store = MySqlStore::new(pool.clone(), tables.clone());
        store.migrate(Some(8)).await.unwrap();
        Self { pool, tables, store }
    }

    async fn drop(self) {
        tables::drop_outbox(&self.pool, &self.tables).await.unwrap();
    }

    async fn execute(&self, connection: &mut MySqlConnection, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(self.tables.fill(sql))).execute(connection).await.unwrap();
    }

    async fn enqueue(&self, connection: &mut MySqlConnection, events: &[Event]) -> Vec<Enqueued> {
        MySql::enqueue(connection, &self.tables, events).await.unwrap()
    }

    async fn enqueue_and_commit(&self, events: &[Event]) -> Vec<Enqueued> {
        let mut transaction = self.pool.begin().await.unwrap();
        let enqueued = self.enqueue(&mut transaction, events).await;
        transaction.commit().await.unwrap();
        enqueued
    }

    async fn commit(&self, events: &[Event]) -> Vec<i64> {
        let enqueued = self.enqueue_and_commit(events).await;
        enqueued.into_iter().map(|event| event.sequence).collect()
    }

    /// A number that no row will ever have, and one behind it.
    async fn leave_a_gap(&self) {
        let mut transaction = self.pool.begin().await.unwrap();
        self.enqueue(&mut transaction, &[event("never")]).await;
        transaction.rollback().await.unwrap();
        self.commit(&[event("behind")]).await;
    }

    async fn until_closed(&self, mut position: Position) {
        until("the gap is dropped", async || {
            let late = self.store.read_late(&SHARDS, &position, Limit::rows(1000)).await.unwrap();
            assert!(late.rows.is_empty());
            position = late.position;
            missing(&position).is_empty()
        })
        .await;
    }

    async fn hold(&self) -> (Relay, Vec<Held>) {
        let relay = new_relay();
        let leases = self.store.acquire(&relay, &SHARDS).await.unwrap();
        (relay, leases.into_iter().map(|lease| lease.held).collect())
    }

    async fn other_process(&self) -> OtherProcess {
        let pool = mariadb_pool(1).await;
        let thread = sqlx::query_scalar("select cast(connection_id() as unsigned)")
            .fetch_one(&pool)
            .await
            .unwrap();
        let store = MySqlStore::new(pool, self.tables.clone());
        store.check().await.unwrap();
        OtherProcess { store, thread }
    }

    /// Asks the server until this session waits for a lock.
    async fn until_waiting(&self, thread: u64) {
        // Not from the list of transactions: while several ask for it, the server does not renew it.
        until("the session waits for a lock", async || {
            let status = sqlx::raw_sql("show engine innodb status").fetch_one(&self.pool).await;
            let status: String = status.unwrap().get(2);
            let ours = format!("thread id {thread},");
            status
                .split("---TRANSACTION")
                .any(|one| one.contains("LOCK WAIT") && one.contains(&ours))
        })
        .await;
    }
}

/// Asks again and again, with a pause between.
async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(2);
    while !done().await {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
}

fn mariadb_url() -> String {
    std::env::var(MARIADB).unwrap_or_else(|_| {
        panic!("{MARIADB} is not set; run scripts/servers start and source target/servers/env")
    })
}

async fn mariadb_pool(connections: u32) -> MySqlPool {
    pool(&mariadb_url(), connections).await
}

async fn pool(url: &str, connections: u32) -> MySqlPool {
    MySqlPoolOptions::new().max_connections(connections).connect(url).await.unwrap()
}

fn event(aggregate: &str) -> Event {
    Event::builder("T").aggregate("A", aggregate).payload(&1).build().unwrap()
}

fn new_relay() -> Relay {
    Relay {
        name: "r".to_owned(),
        instance: Uuid::now_v7(),
        ordering: RelayOrdering::PerKey,
        lease: Duration::from_mins(1),
    }
}

fn sent(sequence: i64, shard: u16) -> Settlement {
    Settlement {
        sequence,
        identity: Identity::default(),
        shard,
        attempts: 0,
        verdict: Verdict::Sent,
    }
}

fn sequences(page: &Page) -> Vec<i64> {
    page.rows.iter().map(|row| row.sequence).collect()
}
