//! Writers in another language: the examples of docs/plain-sql.md, as they stand there, run by
//! Python with the usual driver of each database.

use std::process::{Command, Stdio};

use crate::support::{Fixture, TestDatabase, quick, url};
use posthaste::transports::memory::MemoryTransport;

const PAGE: &str = include_str!("../../../../docs/plain-sql.md");

/// The Python of the section with this heading, for this outbox.
fn example<DB: TestDatabase>(heading: &str, on: &Fixture<DB>) -> String {
    let section = PAGE.split("\n## ").find(|section| section.starts_with(heading)).unwrap();
    let code = section.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(code.contains("into outbox_event (") && code.contains("into orders ("), "{code}");
    code.replace("into outbox_event (", &on.tables.fill("into {events} ("))
        .replace("into orders (", &on.tables.fill("into {bare}_orders ("))
}

/// Runs the example with these payloads; gives the ids that it committed.
fn run(database: &str, url: &str, code: &str, payloads: &[Vec<u8>]) -> Vec<String> {
    let request = serde_json::json!({
        "database": database, "url": url, "code": code, "payloads": payloads,
    });
    let mut python = Command::new(crate::support::url("POSTHASTE_TEST_PYTHON"))
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/plain_sql.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    serde_json::to_writer(python.stdin.take().unwrap(), &request).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

async fn what_it_commits_is_delivered_byte_for_byte_and_nothing_else<DB: TestDatabase>(
    on: Fixture<DB>,
    database: &str,
    heading: &str,
    url: &str,
) {
    on.sql("create table {bare}_orders (number int)").await;
    let payloads = [
        br#"{"b":1,"a":1.0,"a":2}"#.to_vec(),
        Vec::new(),
        (0..=255).collect(),
        "'\\%s\u{1F4E6}\0".into(),
        vec![0xff; 300_000],
    ];
    let code = example(heading, &on);
    let committed = tokio::task::block_in_place(|| run(database, url, &code, &payloads));
    let transport = MemoryTransport::new();
    on.relay(transport.clone(), quick()).relay_once().await.unwrap();
    let delivered = transport.delivered();
    let ids: Vec<String> = delivered.iter().map(|e| e.event.id().to_string()).collect();
    assert_eq!(ids, committed);
    for (envelope, payload) in delivered.iter().zip(&payloads) {
        assert!(envelope.event.payload() == payload, "{} bytes", payload.len());
        assert_eq!(envelope.event.event_type(), "OrderPlaced");
    }
    on.sql("drop table {bare}_orders").await;
    on.clean().await;
}

use what_it_commits_is_delivered_byte_for_byte_and_nothing_else as check;

#[tokio::test(flavor = "multi_thread")]
async fn psycopg_commits_and_rolls_back_with_the_order() {
    let url = url("POSTHASTE_TEST_POSTGRES");
    check(sqlx::Postgres::fixture().await, "postgres", "PostgreSQL", &url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn psycopg_commits_and_rolls_back_through_a_pooler() {
    let url = url("POSTHASTE_TEST_PGBOUNCER");
    let on = sqlx::Postgres::fixture().await;
    check(on, "postgres through a pooler", "PostgreSQL", &url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pymysql_commits_and_rolls_back_with_the_order() {
    let url = url("POSTHASTE_TEST_MARIADB");
    check(sqlx::MySql::fixture().await, "mysql", "MySQL", &url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite3_commits_and_rolls_back_with_the_order() {
    let on = sqlx::Sqlite::fixture().await;
    let file = on.file().to_str().unwrap().to_owned();
    check(on, "sqlite", "SQLite", &file).await;
}
