//! PostgreSQL: what every store must do, and what only this one promises.

mod claims;
mod commits;
mod cost;
mod findings;
mod support;

use std::time::{Duration, Instant};

use posthaste_core::{
    TableName,
    store::{Limit, Read, Schema, Wake},
};
use posthaste_stores::{Tables, postgres::PostgresStore};
use posthaste_testkit::conformance::Subject;
use sqlx::{AssertSqlSafe, postgres::PgPoolOptions};
use uuid::Uuid;

use self::support::{Outbox, SHARDS, event, pool, soon};

async fn subject() -> Option<Subject> {
    Some(Subject::new(pool(12).await))
}

posthaste_testkit::store_conformance!(subject);

#[tokio::test]
async fn an_outbox_lives_in_the_schema_of_its_name() {
    let pool = pool(4).await;
    let schema = format!("ph_{:016x}", Uuid::now_v7().as_u128() as u64);
    let name: TableName = format!("{schema}.outbox").parse().unwrap();
    let store = PostgresStore::new(pool.clone(), Tables::new(name));
    let refusal = store.migrate(None).await.unwrap_err().to_string();
    assert!(refusal.contains(&format!("create schema {schema}")), "{refusal}");

    sqlx::raw_sql(AssertSqlSafe(format!("create schema {schema}"))).execute(&pool).await.unwrap();
    assert_eq!(store.migrate(None).await.unwrap(), [1]);
    assert_eq!(store.check().await.unwrap(), 64);
    let drop = format!("drop schema {schema} cascade");
    sqlx::raw_sql(AssertSqlSafe(drop)).execute(&pool).await.unwrap();
}

/// A writer's, behind a transaction pooler: the session is anybody's.
#[tokio::test]
async fn without_named_statements_a_notification_leaves_nothing_in_its_session() {
    const SESSION: &str = "
        select pg_backend_pid(), current_setting('plan_cache_mode'), current_setting('lock_timeout'),
               (select count(*) from pg_prepared_statements
                where statement like '%pg_notify%' and statement not like '%pg_prepared_statements%')";

    let outbox = Outbox::new().await;
    let one = PgPoolOptions::new().max_connections(1);
    let one = one.connect_with((*outbox.pool.connect_options()).clone()).await.unwrap();
    let session = async || -> (i32, String, String, i64) {
        sqlx::query_as(SESSION).fetch_one(&one).await.unwrap()
    };
    let before = session().await;
    let mut listener = outbox.store.listen().await.unwrap().expect("PostgreSQL can listen");
    let writer = PostgresStore::new(one.clone(), outbox.tables.without_named_statements());
    writer.notify().await.unwrap();
    soon(listener.wait()).await.unwrap();
    assert_eq!(session().await, before);
    one.close().await;
    outbox.drop().await;
}

#[tokio::test]
async fn connections_that_were_lost_fail_one_call_and_not_one_each() {
    let outbox = Outbox::new().await;
    let read = || outbox.store.read_due(&SHARDS, None, Limit::rows(10));
    // Several at once, each on a connection of its own, which are kept.
    let (a, b, c) = tokio::join!(read(), read(), read());
    a.and(b).and(c).unwrap();
    let kill = "select pg_terminate_backend(pid, 10000) from pg_stat_activity
                where query like $1 and pid <> pg_backend_pid()";
    let killed = sqlx::query(kill)
        .bind(format!("%not_before%{}%", outbox.tables.name().bare()))
        .fetch_all(&outbox.pool)
        .await
        .unwrap();
    assert!(killed.len() > 1, "{} connections", killed.len());

    let error = read().await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    read().await.expect("the others were not tried one after the other");
    outbox.drop().await;
}

#[tokio::test]
async fn a_listener_that_lost_its_connection_says_so() {
    let outbox = Outbox::new().await;
    let mut listener = outbox.store.listen().await.unwrap().expect("PostgreSQL can listen");
    outbox.store.notify().await.unwrap();
    soon(listener.wait()).await.expect("the notification arrives");

    let channel = outbox.tables.name().channel();
    let kill = "select pg_terminate_backend(pid) from pg_stat_activity where query like $1
                and pid <> pg_backend_pid()";
    let killed = sqlx::query(kill)
        .bind(format!("%LISTEN%{channel}%"))
        .fetch_all(&outbox.pool)
        .await
        .unwrap();
    assert_eq!(killed.len(), 1);
    let error = soon(listener.wait()).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    outbox.drop().await;
}

/// Behind a migration that waits for its lock every writer waits, too.
#[tokio::test]
async fn a_migration_waits_for_its_locks_no_longer_than_10_s() {
    let outbox = Outbox::new().await;
    let mut connection = outbox.pool.acquire().await.unwrap();
    outbox.execute(&mut connection, "update {meta} set version = 0 where id = 1").await;
    let mut open = outbox.pool.begin().await.unwrap();
    outbox.enqueue(&mut open, &[event("open")]).await;
    let begun = Instant::now();
    let migrating = tokio::time::timeout(Duration::from_secs(20), outbox.store.migrate(None));
    let error = migrating.await.expect("it gives up").unwrap_err();
    assert!(begun.elapsed() > Duration::from_secs(9), "it gave up too soon: {error}");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("lock timeout"), "{error}: {cause}");
    open.commit().await.unwrap();
    assert_eq!(outbox.store.migrate(None).await.unwrap(), [1]);
    outbox.drop().await;
}
