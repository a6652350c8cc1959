//! Running the binary as a user would, in a folder of its own.

#![allow(dead_code, reason = "each test file uses its part")]

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use posthaste::{Event, Outbox};
use sqlx::{AssertSqlSafe, Row, SqlitePool};

/// The binary, without the settings of whoever runs the tests.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
    command.args(args);
    let ours = |name: &str| name.starts_with("POSTHASTE_") || name.starts_with("OUTBOX_");
    for (name, _) in std::env::vars().filter(|(name, _)| ours(name)) {
        command.env_remove(name);
    }
    command.env_remove("RUST_LOG");
    command
}

pub fn posthaste(args: &[&str]) -> Output {
    command(args).output().expect("the binary runs")
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("standard output is UTF-8")
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("standard error is UTF-8")
}

/// Runs the binary, which must succeed, and gives its standard output.
#[track_caller]
pub fn succeed(args: &[&str]) -> String {
    let output = posthaste(args);
    assert!(output.status.success(), "{args:?} failed: {}", stderr(&output));
    stdout(&output)
}

/// Runs the binary, which must refuse: one line on standard error that says all of this, nothing
/// on standard output, and this exit code. Gives the line.
#[track_caller]
pub fn refused(args: &[&str], code: i32, says: &[&str]) -> String {
    let output = posthaste(args);
    let line = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {line}");
    assert_eq!(stdout(&output), "", "{args:?} wrote to standard output");
    assert!(line.starts_with("error: "), "{args:?}: {line}");
    assert_eq!(line.trim_end().lines().count(), 1, "{args:?}: {line}");
    for text in says {
        assert!(line.contains(text), "{args:?} does not say {text:?}: {line}");
    }
    line
}

/// A folder that is removed at the end, with a place for a database.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        let name = format!("posthaste-cli-{}", uuid::Uuid::now_v7());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("the temporary folder can be written");
        Self(path)
    }

    /// The URL of a database that may not be there yet.
    pub fn url(&self) -> String {
        format!("sqlite:{}", self.0.join("app.db").display())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn is_empty(&self) -> bool {
        std::fs::read_dir(&self.0).expect("the folder is there").next().is_none()
    }

    /// A database with an outbox.
    pub fn migrated(&self) -> String {
        let url = self.url();
        succeed(&["migrate", "--url", &url]);
        url
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The caller's own connection to a database that is there.
pub async fn pool(url: &str) -> SqlitePool {
    SqlitePool::connect(url).await.expect("the database opens")
}

/// All that the database holds, to see whether anything changed.
pub async fn content(url: &str) -> Vec<String> {
    let pool = pool(url).await;
    let tables = sqlx::query("select name, coalesce(sql, '') as sql from sqlite_master order by 1")
        .fetch_all(&pool)
        .await
        .expect("the schema can be read");
    let mut content = Vec::new();
    for table in tables {
        let (name, sql): (String, String) = (table.get("name"), table.get("sql"));
        if sql.starts_with("CREATE TABLE") || sql.starts_with("create table") {
            let rows = format!("select count(*) from {name}");
            let rows: i64 = sqlx::query_scalar(AssertSqlSafe(rows)).fetch_one(&pool).await.unwrap();
            content.push(format!("{name}: {rows} rows"));
        }
        content.push(sql);
    }
    if content.iter().any(|text| text.starts_with("outbox_event_meta:")) {
        let meta = sqlx::query("select version, shards from outbox_event_meta");
        let meta = meta.fetch_one(&pool).await.unwrap();
        content.push(format!("{} {}", meta.get::<i64, _>("version"), meta.get::<i64, _>("shards")));
    }
    pool.close().await;
    content
}

/// Writes so many events of two aggregates, as an application does.
pub async fn enqueue(url: &str, count: usize) {
    let pool = pool(url).await;
    let outbox = Outbox::new("outbox_event".parse().unwrap()).with_default_tenant("acme");
    let mut tx = outbox.begin(&pool).await.unwrap();
    for n in 0..count {
        let event = Event::builder("OrderPlaced").aggregate("Order", n % 2);
        let event = event.raw_json(format!("{{\"n\":{n}}}")).build().unwrap();
        outbox.enqueue(&mut tx, event).await.unwrap();
    }
    tx.commit().await.unwrap();
    pool.close().await;
}
