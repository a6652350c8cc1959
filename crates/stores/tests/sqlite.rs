//! The SQLite store: the conformance suite, and what only SQLite does.
#![cfg(feature = "sqlite")]

#[path = "sqlite/recovery.rs"]
mod recovery;

use std::{env, fs, path::PathBuf, sync::Arc, time::Duration};

use posthaste_core::{
    ErrorKind, Event, Key, Status,
    store::{
        Claim, Diagnose, Fence, Filter, Identity, Inspect, LaneKey, Leases, Level, Limit, Operate,
        Position, Read, Relay, RelayOrdering, RowLease, RowsInHand, Schema, Selection, Settle,
        Settlement, Verdict, Wake,
    },
};
use posthaste_stores::{Dialect, Options, Tables, sqlite::SqliteStore};
use posthaste_testkit::{
    conformance::{SqlxDatabase, Subject},
    statements::Statements,
};
use sqlx::{
    AssertSqlSafe, Row, Sqlite, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};
use tokio::time::timeout;
use uuid::Uuid;

/// A pool on a file of its own.
async fn pool(folder: &Folder) -> SqlitePool {
    let options = SqliteConnectOptions::new()
        .filename(folder.0.join("app.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(Duration::from_secs(10));
    SqlitePoolOptions::new().max_connections(12).connect_with(options).await.unwrap()
}

async fn subject() -> Option<Subject> {
    let folder = Folder::new();
    let pool = pool(&folder).await;
    Some(Subject::new(pool).single_writer().keep(folder))
}

posthaste_testkit::store_conformance!(subject);

/// As `posthaste --url sqlite:…` opens it: one connection to write, others to read.
mod connected {
    use super::*;

    async fn subject() -> Option<Subject> {
        let folder = Folder::new();
        let database = SqlxDatabase::new(pool(&folder).await).store_with(|pool, tables| {
            let file = pool.connect_options().get_filename().to_owned();
            let url = format!("sqlite:{}", file.display());
            let options = Options { table: tables.name().clone(), connections: 4 };
            let connecting =
                async move { SqliteStore::connect(&url, tables, &options).await.unwrap() };
            // Nothing of the store is tied to the runtime that made it.
            let store = std::thread::spawn(|| {
                tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap()
                    .block_on(connecting)
            });
            Arc::new(store.join().unwrap())
        });
        Some(Subject::on(database).single_writer().keep(folder))
    }

    posthaste_testkit::store_conformance!(subject);
}

#[tokio::test]
async fn a_file_is_made_by_a_migration_and_by_nothing_else() {
    let folder = Folder::new();
    let file = folder.0.join("new.db");
    let store = folder.store("new.db").await;
    let error = store.check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    assert!(!file.exists());
    assert_eq!(store.migrate(None).await.unwrap(), [1]);
    assert!(file.exists());
    assert_eq!(store.check().await.unwrap(), 1);
}

#[tokio::test]
async fn processes_that_start_at_once_can_all_make_the_file() {
    let folder = Folder::new();
    let url = format!("sqlite:{}", folder.0.join("new.db").display());
    let mut starts = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let url = url.clone();
        starts.spawn(async move { connect(&url).await?.migrate(None).await });
    }
    let mut applied = Vec::new();
    while let Some(start) = starts.join_next().await {
        applied.extend(start.unwrap().unwrap());
    }
    assert_eq!(applied, [1]);
}

#[tokio::test]
async fn a_migrated_file_is_in_wal_mode_and_loses_no_commit_at_a_power_cut() {
    let folder = Folder::new();
    let store = folder.migrated("app.db").await;
    let journal: String =
        sqlx::query_scalar("pragma journal_mode").fetch_one(store.pool()).await.unwrap();
    let synchronous: i64 =
        sqlx::query_scalar("pragma synchronous").fetch_one(store.pool()).await.unwrap();
    assert_eq!((journal.as_str(), synchronous), ("wal", 2));
}

#[tokio::test]
async fn a_database_that_nobody_else_could_reach_is_refused() {
    for url in [
        "sqlite::memory:",
        "sqlite://:memory:",
        "sqlite:x?mode=memory",
        "sqlite:file:x?mode=memory&cache=private",
    ] {
        let error = connect(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("sqlite:file:NAME?mode=memory"), "{error}");
    }
    let error = connect("sqlite:").await.unwrap_err();
    assert_eq!(error.to_string(), "database URL names no file; use sqlite:PATH");
}

#[tokio::test]
async fn a_named_database_in_memory_is_shared() {
    let url = format!("sqlite:file:{}?mode=memory", Uuid::now_v7().simple());
    let store = connect(&url).await.unwrap();
    store.migrate(None).await.unwrap();
    let other = connect(&url).await.unwrap();
    enqueue(&other, &[event("1")]).await;
    assert_eq!(
        store.read_on(&[0], &Position::default(), Limit::rows(10)).await.unwrap().rows.len(),
        1
    );
}

#[tokio::test]
async fn a_name_that_sqlite_cannot_have_is_refused_with_what_would_do() {
    for (name, advice) in
        [("billing.outbox", "use billing_outbox"), ("sqlite_outbox", "does not begin with sqlite_")]
    {
        let tables = Tables::new(name.parse().unwrap());
        let connected = SqliteStore::connect("sqlite:app.db", tables, &Options::default()).await;
        let error = connected.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(advice), "{error}");
    }
}

#[tokio::test]
async fn the_listener_wakes_on_a_commit_of_another_connection_and_not_on_a_rollback() {
    let folder = Folder::new();
    let store = folder.migrated("app.db").await;
    let writer = folder.plain("app.db").await;
    let mut listener = store.listen().await.unwrap().unwrap();

    let mut transaction = writer.begin().await.unwrap();
    Sqlite::enqueue(&mut transaction, store.tables(), &[event("1")]).await.unwrap();
    transaction.rollback().await.unwrap();
    // Silence can only be shown by waiting for a while: long enough for several looks.
    assert!(timeout(Duration::from_millis(100), listener.wait()).await.is_err());

    enqueue(&store, &[event("2")]).await;
    timeout(Duration::from_secs(10), listener.wait()).await.unwrap().unwrap();
    assert!(timeout(Duration::from_millis(100), listener.wait()).await.is_err());

    // A commit while nobody waits is not forgotten.
    enqueue(&store, &[event("3")]).await;
    timeout(Duration::from_secs(10), listener.wait()).await.unwrap().unwrap();
}

/// What the documentation tells every language to write: no function that SQLite 3.40 lacks, a
/// text as the payload.
const DOCUMENTED_INSERT: &str = "
    insert into {events} (event_id, event_type, aggregate_type, aggregate_id, payload)
    values ('0198C3A0-1111-7000-8000-00000000ABCD', 'OrderPlaced', 'Order', 42, '{\"total\":1999}')";

#[tokio::test]
async fn an_insert_in_plain_sql_is_read_like_any_event() {
    let folder = Folder::new();
    let store = folder.migrated("app.db").await;
    let plain = folder.plain("app.db").await;
    let insert = store.tables().fill(DOCUMENTED_INSERT);
    sqlx::raw_sql(AssertSqlSafe(insert)).execute(&plain).await.unwrap();

    let page = store.read_on(&[0], &Position::default(), Limit::rows(10)).await.unwrap();
    let [row] = &page.rows[..] else { panic!("{page:?}") };
    let envelope = row.content.as_ref().unwrap();
    assert_eq!(&envelope.event.payload()[..], br#"{"total":1999}"#);
    assert_eq!(envelope.event.aggregate_id(), Some("42"));
    let age = jiff::Timestamp::now().duration_since(envelope.created_at);
    assert!(age.abs() < jiff::SignedDuration::from_secs(60), "{age:?}");
    // A UUID in capitals is the same one.
    assert!(store.event(envelope.event.id()).await.unwrap().is_some());
}

#[tokio::test]
async fn the_systems_own_sqlite_can_write_and_read_the_outbox() {
    let folder = Folder::new();
    let store = folder.migrated("app.db").await;
    let script = "import sqlite3, sys\n\
                  file = sqlite3.connect(sys.argv[1])\n\
                  file.execute(sys.argv[2])\n\
                  file.commit()\n\
                  print(file.execute('select count(*) from ' + sys.argv[3]).fetchone()[0])";
    let python = std::process::Command::new("python3")
        .args(["-c", script])
        .arg(folder.0.join("app.db"))
        .arg(store.tables().fill(DOCUMENTED_INSERT))
        .arg(store.tables().name().qualified())
        .output();
    let Ok(output) = python else {
        eprintln!("skipped: there is no python3");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "1", "{said}");
    assert_eq!(
        store.read_on(&[0], &Position::default(), Limit::rows(10)).await.unwrap().rows.len(),
        1
    );
}

#[tokio::test]
async fn a_value_of_the_wrong_type_spoils_its_own_row_and_no_other() {
    let folder = Folder::new();
    let store = folder.migrated("app.db").await;
    let sql = store.tables().fill(
        "insert into {events} (event_id, event_type, occurred_at, headers, payload) values
            (x'00', 'A', 1, null, 'a'), ('0198c3a0-1111-7000-8000-000000000001', 'B', 'noon', null, 'b'),
            ('0198c3a0-1111-7000-8000-000000000002', 'C', 1, x'ff', 'c')",
    );
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(store.pool()).await.unwrap();
    enqueue(&store, &[event("1")]).await;
    let rows = store.read_on(&[0], &Position::default(), Limit::rows(10)).await.unwrap().rows;
    let faults: Vec<_> = rows.iter().map(|row| row.content.as_ref().err().cloned()).collect();
    let other_type = |column: &str| Some(format!("column {column} holds a value of another type"));
    assert_eq!(
        faults,
        [other_type("event_id"), other_type("occurred_at"), other_type("headers"), None]
    );
    // A time as text would sort behind every other and never fall due.
    let sql = store.tables().fill(
        "insert into {events} (event_id, event_type, not_before, payload) values
            ('0198c3a0-1111-7000-8000-000000000003', 'D', '2030-01-01 00:00:00', 'd')",
    );
    assert!(sqlx::raw_sql(AssertSqlSafe(sql)).execute(store.pool()).await.is_err());
}

#[tokio::test]
async fn a_sequence_is_never_used_again_after_its_event_was_deleted() {
    let folder = Folder::new();
    let store = folder.migrated("app.db").await;
    let relay = relay();
    let first = enqueue(&store, &[event("1")]).await[0];
    let lease = store.acquire(&relay, &[0]).await.unwrap().remove(0);
    let fence = Fence::Shards { owner: relay.owner(), held: vec![lease.held] };
    let sent = Settlement {
        sequence: first,
        identity: Identity::default(),
        shard: 0,
        attempts: 0,
        verdict: Verdict::Sent,
    };
    store.settle(&fence, &[sent], false).await.unwrap();
    assert!(enqueue(&store, &[event("2")]).await[0] > first);
}

#[tokio::test]
async fn reads_do_not_wait_for_a_writer() {
    let folder = Folder::new();
    let store = folder.migrated("app.db").await;
    enqueue(&store, &[event("1")]).await;
    let writer = folder.plain("app.db").await;
    let mut transaction = writer.begin_with("begin immediate").await.unwrap();
    Sqlite::enqueue(&mut transaction, store.tables(), &[event("2")]).await.unwrap();
    let reads = async {
        let page = store.read_on(&[0], &Position::default(), Limit::rows(10)).await.unwrap();
        store.read_due(&[0], None, Limit::rows(10)).await.unwrap();
        store.counts(u64::MAX).await.unwrap();
        // Idle claims stay away from the write lock as well.
        let behind = Position { sequence: page.position.sequence, context: String::new() };
        store.claim(&relay(), &token(1), &behind, Limit::rows(10)).await.unwrap();
        store.claim_expired(&relay(), &token(1), i64::MAX).await.unwrap();
        page.rows.len()
    };
    assert_eq!(timeout(Duration::from_secs(5), reads).await.unwrap(), 1);
    transaction.rollback().await.unwrap();
}

#[tokio::test]
async fn a_freed_event_that_is_discarded_frees_the_next_of_its_lane() {
    let folder = Folder::new();
    let store = folder.migrated("app.db").await;
    let relay = relay();
    let events = [event("1"), event("1"), event("1")];
    let sequences = enqueue(&store, &events).await;
    let lease = store.acquire(&relay, &[0]).await.unwrap().remove(0);
    let fence = Fence::Shards { owner: relay.owner(), held: vec![lease.held] };
    let key = events[0].key().unwrap();
    let settle = |sequence: i64, verdict: Verdict| Settlement {
        sequence,
        identity: Identity::default(),
        shard: 0,
        attempts: 1,
        verdict,
    };
    let held = || Verdict::Held { destination: "d".into(), key };
    let dead = Verdict::Dead { error: "no".into(), destination: "d".into(), parked: Some(key) };
    let batch =
        [settle(sequences[0], dead), settle(sequences[1], held()), settle(sequences[2], held())];
    store.settle(&fence, &batch, true).await.unwrap();
    for (discarded, freed) in [(0, 1), (1, 2)] {
        store.discard(&Selection::One(events[discarded].id())).await.unwrap();
        let due = store.read_due(&[0], None, Limit::rows(10)).await.unwrap().rows;
        assert_eq!(due.iter().map(|row| row.sequence).collect::<Vec<_>>(), [sequences[freed]]);
    }
}

/// One slow handler has the first event, and many others were sent since.
#[tokio::test]
async fn what_is_given_back_far_behind_a_slow_event_is_claimed_again() {
    let folder = Folder::new();
    let store = folder.store("app.db").await;
    store.migrate(None).await.unwrap();
    enqueue(&store, &[event("slow")]).await;
    let (relay, limit) = (relay(), Limit::rows(10));
    let first = store.claim(&relay, &token(1), &Position::default(), limit).await.unwrap();
    let fill = format!(
        "insert into {} (event_id, event_type, payload, sent_at)
         with recursive n (n) as (select 1 union all select n + 1 from n where n < 60000)
         select hex(randomblob(16)), 'T', '', 1 from n",
        store.tables().name()
    );
    sqlx::raw_sql(AssertSqlSafe(fill)).execute(store.pool()).await.unwrap();
    let given_back = enqueue(&store, &[event("given back")]).await;
    let mut position = first.position;
    let mut claimed = Vec::new();
    for turn in 0.. {
        let page = store.claim(&relay, &token(2), &position, limit).await.unwrap();
        claimed.extend(page.rows.iter().map(|row| row.sequence));
        position = page.position;
        if page.caught_up {
            break;
        }
        assert!(turn < 5, "it does not come to an end");
    }
    assert_eq!(claimed, given_back);
    store.unclaim(&token(2), &given_back).await.unwrap();
    let mut swept = Vec::new();
    for _ in 0..3 {
        let page = store.claim_late(&relay, &token(3), &position, limit).await.unwrap();
        swept.extend(page.rows.iter().map(|row| row.sequence));
        position = page.position;
    }
    assert_eq!(swept, given_back);
}

#[tokio::test]
async fn a_file_that_left_wal_mode_is_a_problem_until_it_is_back() {
    let folder = Folder::new();
    let file =
        SqliteConnectOptions::new().filename(folder.0.join("app.db")).create_if_missing(true);
    // One connection: the mode is changed by whoever has the file alone.
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(file).await.unwrap();
    let store = SqliteStore::new(pool.clone(), posthaste_testkit::tables::unique("file"));
    store.migrate(None).await.unwrap();
    let journal = async || {
        let findings = store.diagnose().await.unwrap();
        findings.into_iter().find(|finding| finding.check == "journal").unwrap()
    };
    assert_eq!(journal().await.level, Level::Ok);
    sqlx::query("pragma journal_mode = delete").execute(&pool).await.unwrap();
    let problem = journal().await;
    assert_eq!(problem.level, Level::Problem);
    sqlx::query(AssertSqlSafe(problem.mend.unwrap())).execute(&pool).await.unwrap();
    assert_eq!(journal().await.level, Level::Ok);
}

#[tokio::test]
async fn plans_use_the_indexes() {
    let folder = Folder::new();
    let store = folder.migrated("app.db").await;
    let relay = relay();
    let key = Key(1);
    let id = Uuid::now_v7();
    let all = Filter::default();
    let dead = Filter { status: Some(Status::Dead), ..Filter::default() };
    let retry = Filter { status: Some(Status::Retry), ..Filter::default() };
    let of_aggregate = Filter { aggregate_id: Some("1".into()), ..Filter::default() };

    // Something to find, so that every statement is sent.
    enqueue(&store, &[event("1"), event("2")]).await;
    let lease = store.acquire(&relay, &[0]).await.unwrap().remove(0);
    let fence = Fence::Shards { owner: relay.owner(), held: vec![lease.held] };
    let settle = |sequence: i64, verdict: Verdict| Settlement {
        sequence,
        identity: Identity::default(),
        shard: 0,
        attempts: 1,
        verdict,
    };
    let retry_verdict = Verdict::Retry {
        after: Duration::ZERO,
        error: "no".into(),
        destination: "d".into(),
        key: Some(key),
        replay: false,
    };

    let statements = Statements::on(store.tables().name());
    store.read_on(&[0], &Position::default(), Limit::rows(10)).await.unwrap();
    store.read_due(&[0], None, Limit::rows(10)).await.unwrap();
    store.read_hot(&[1], &Position::default()).await.unwrap();
    store.read_held("d", key, 0, Limit::rows(10)).await.unwrap();
    let lane = LaneKey { key, destination: "d".into() };
    store.read_lane(&lane, None, Limit::rows(10)).await.unwrap();
    store.read_blockers(Limit::rows(10)).await.unwrap();
    store.read_blocked(&[0], None, 1000).await.unwrap();
    store.claim(&relay, &token(1), &Position::default(), Limit::rows(1)).await.unwrap();
    store
        .claim_late(
            &relay,
            &token(2),
            &Position { sequence: 2, ..Position::default() },
            Limit::rows(1),
        )
        .await
        .unwrap();
    store.claim_expired(&relay, &token(3), i64::MAX).await.unwrap();
    store.claim_hot(&relay, &token(4), &[1]).await.unwrap();
    let in_hand = RowsInHand { lease: token(1), sequences: vec![1] };
    store.renew_rows(&relay, &[in_hand]).await.unwrap();
    store.unclaim(&token(1), &[1]).await.unwrap();
    store.settle(&fence, &[settle(1, retry_verdict)], true).await.unwrap();
    store.settle(&fence, &[settle(2, Verdict::Sent)], true).await.unwrap();
    let of_times = Filter {
        created_from: Some(jiff::Timestamp::UNIX_EPOCH),
        created_before: Some(jiff::Timestamp::now()),
        ..Filter::default()
    };
    for filter in [&all, &dead, &retry, &of_aggregate, &of_times] {
        store.events(filter, None, 10).await.unwrap();
    }
    store.event(id).await.unwrap();
    store.attempts(1).await.unwrap();
    store.counts(u64::MAX).await.unwrap();
    store.counts_by_tenant(u64::MAX).await.unwrap();
    store.held_by(1).await.unwrap();
    store.oldest_pending().await.unwrap();
    store.replay(&Selection::Matching { filter: dead.clone(), limit: 10 }).await.unwrap();
    store.discard(&Selection::Matching { filter: all.clone(), limit: 10 }).await.unwrap();
    store.purge(Duration::ZERO, Some(Duration::ZERO), 10, None).await.unwrap();

    let statements = statements.until("set purge_position").await;
    let table = store.tables().name().qualified();
    let mut plans = Vec::new();
    for statement in statements {
        let plan = plan(store.pool(), &statement).await.join("\n").replace(&table, "T");
        // `SCAN` walks all of a table, `SEARCH` enters it by a key.
        for alias in ["T", "e", "p", "h"] {
            let walks = |step: &str| {
                // But for what is blocked or held, which is few.
                let few = step.ends_with("_lanes_idx");
                step == format!("SCAN {alias}")
                    || (step.starts_with(&format!("SCAN {alias} ")) && !few)
            };
            assert!(!plan.lines().any(walks), "{statement}\n{plan}");
        }
        plans.push((statement, plan));
    }
    for (what, wanted) in [
        (
            "where sequence > ?1 and sequence <= ?2 and (not_before is null",
            "T USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
        ),
        ("order by not_before, sequence\n            limit ?3", "T USING INDEX T_not_before_idx"),
        (
            "where lane = ?1 and destination = ?2 and wait = 'held'",
            "T USING INDEX T_lanes_idx (lane=? AND destination=? AND wait=? AND sequence>?)",
        ),
        (
            "where aggregate_id = ?3",
            "T USING INDEX T_aggregate_idx (aggregate_id=? AND sequence>? AND sequence<?)",
        ),
        ("where dead_at is not null and sequence < ?8", "T USING INDEX T_dead_list_idx (sequence"),
        ("or attempts > 0) and sequence < ?8", "T USING INDEX T_retry_list_idx (sequence"),
        ("where sequence < ?8", "T USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        ("with recursive b(lo, hi)", "T USING INTEGER PRIMARY KEY (rowid>?)"),
        (
            "where not_before is not null\n                 order by not_before desc",
            "T USING INDEX T_not_before_idx",
        ),
        ("where p.aggregate_id = e.aggregate_id", "p USING INDEX T_aggregate_idx (aggregate_id=?"),
        ("where locked_until is not null and (locked_until < ", "T USING INDEX T_locked_idx"),
        ("set sent_at = ", "T USING INTEGER PRIMARY KEY (rowid=?)"),
    ] {
        let (_, plan) = plans
            .iter()
            .find(|(statement, _)| statement.contains(what))
            .unwrap_or_else(|| panic!("nothing was sent with {what:?}"));
        assert!(plan.contains(&format!("SEARCH {wanted}")), "{what}\n{plan}");
    }
}

async fn plan(pool: &SqlitePool, statement: &str) -> Vec<String> {
    sqlx::raw_sql(AssertSqlSafe(format!("explain query plan {statement}")))
        .fetch_all(pool)
        .await
        .unwrap_or_else(|error| panic!("{error}: {statement}"))
        .iter()
        .map(|row| row.get("detail"))
        .collect()
}

fn event(aggregate_id: &str) -> Event {
    Event::builder("OrderPlaced").aggregate("Order", aggregate_id).raw_json("{}").build().unwrap()
}

fn relay() -> Relay {
    Relay {
        name: "test".into(),
        instance: Uuid::now_v7(),
        ordering: RelayOrdering::PerKey,
        lease: Duration::from_secs(30),
    }
}

fn token(number: u32) -> RowLease {
    RowLease { token: format!("test#{number}") }
}

async fn connect(url: &str) -> posthaste_core::Result<SqliteStore> {
    SqliteStore::connect(url, Tables::new("outbox".parse().unwrap()), &Options::default()).await
}

/// Enqueues and commits, and gives the sequences.
async fn enqueue(store: &SqliteStore, events: &[Event]) -> Vec<i64> {
    let mut transaction = store.pool().begin().await.unwrap();
    let enqueued = Sqlite::enqueue(&mut transaction, store.tables(), events).await.unwrap();
    transaction.commit().await.unwrap();
    enqueued.iter().map(|enqueued| enqueued.sequence).collect()
}

/// A folder for database files, gone when the test is over.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let folder = env::temp_dir().join(format!("posthaste-sqlite-{}", Uuid::now_v7().simple()));
        fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    /// A store whose outbox has a name of its own, so that what is logged about it can be told.
    async fn store(&self, file: &str) -> SqliteStore {
        let url = format!("sqlite:{}", self.0.join(file).display());
        let tables = posthaste_testkit::tables::unique("file");
        SqliteStore::connect(&url, tables, &Options::default()).await.unwrap()
    }

    async fn migrated(&self, file: &str) -> SqliteStore {
        let store = self.store(file).await;
        store.migrate(None).await.unwrap();
        store
    }

    /// The application's own pool on the same file.
    async fn plain(&self, file: &str) -> SqlitePool {
        SqlitePool::connect(&format!("sqlite:{}", self.0.join(file).display())).await.unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
