//! A replica that was made writable while it still applies what its primary has sent.

use std::time::{Duration, Instant};

use posthaste::{
    Dialect,
    store::{Level, Limit, Position, Store},
    stores::Tables,
};
use posthaste_testkit::{tables, wait};
use sqlx::{AssertSqlSafe, MySql, MySqlConnection, MySqlPool};

use super::replicated::Replicated;
use crate::servers::Place;

/// A number under which nothing is inserted is given up within a second.
const FOR_LONG: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_a_writable_mariadb_replica_applies_late_is_found() {
    let place = Place::new("POSTHASTE_TEST_MARIADB_SERVER");
    let pair = MySql::pair(&place, false).await;
    let (primary, standby) = (&pair.primary.pool, &pair.standby.pool);
    let tables = tables::unique("applier");
    MySql::store(primary.clone(), tables.clone()).migrate(Some(1)).await.expect("an outbox");
    execute(primary, "create table gate (n int primary key)").await;
    execute(primary, "insert into gate values (1)").await;
    let mut first = primary.acquire().await.expect("a connection");
    insert(&mut first, &tables, 1).await;
    let store = MySql::store(standby.clone(), tables.clone());
    wait::asked("the outbox to be there", async || store.check().await.is_ok()).await;
    let mut position = Position::default();
    wait::asked("the first event", async || read(&*store, &mut position).await == [1]).await;

    // What comes next waits for this lock.
    let mut lock = standby.begin().await.expect("a transaction");
    execute(&mut *lock, "select n from gate for update").await;
    let mut late = primary.begin().await.expect("a transaction");
    execute(&mut *late, "update gate set n = 2").await;
    insert(&mut late, &tables, 2).await;
    late.commit().await.expect("a commit");
    wait::asked("the applier to wait", async || applies(standby).await).await;
    let mut ours = standby.acquire().await.expect("a connection");
    insert(&mut ours, &tables, 9).await;
    wait::asked("our own event", async || read(&*store, &mut position).await == [9]).await;
    let since = Instant::now();
    wait::asked("three seconds", async || {
        assert!(read(&*store, &mut position).await.is_empty());
        since.elapsed() > FOR_LONG
    })
    .await;
    lock.rollback().await.expect("the lock ends");
    wait::asked("the late event", async || read(&*store, &mut position).await == [2]).await;

    let findings = store.diagnose().await.expect("findings");
    let replication = findings.iter().find(|finding| finding.check == "replication");
    assert_eq!(replication.map(|finding| finding.level), Some(Level::Warning));
}

async fn execute<'c>(on: impl sqlx::Executor<'c, Database = MySql>, sql: &'static str) {
    sqlx::raw_sql(sql).execute(on).await.expect(sql);
}

async fn insert(on: &mut MySqlConnection, tables: &Tables, sequence: i64) {
    let sql = format!(
        "insert into {{events}} (sequence, event_id, event_type, aggregate_type, aggregate_id, payload)
         values ({sequence}, uuid(), 'T', 'A', '{sequence}', '1')"
    );
    sqlx::raw_sql(AssertSqlSafe(tables.fill(&sql))).execute(on).await.expect("an event");
}

async fn read(store: &dyn Store, position: &mut Position) -> Vec<i64> {
    let page = store.read_on(&[0], position, Limit::rows(10)).await.expect("a page");
    *position = page.position;
    page.rows.iter().map(|row| row.sequence).collect()
}

/// Whether the replica is in the midst of a change of rows.
async fn applies(standby: &MySqlPool) -> bool {
    const APPLIES: &str = "
        select count(*) from information_schema.processlist
        where command like 'Slave%' and state like '%rows%'";

    let count: i64 = sqlx::query_scalar(APPLIES).fetch_one(standby).await.expect("a list");
    count > 0
}
