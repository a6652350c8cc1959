//! What is wrong with the database file, and what mends it.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use posthaste_core::{
    Result,
    store::{Diagnose, Finding, Level, OpenTransaction, Schema},
};
use sqlx::{ConnectOptions, Connection, Database, Sqlite, sqlite::SqliteRow};

use super::{
    SqliteStore,
    row::{now, time_of_ours},
    schema::MIGRATIONS,
};
use crate::{
    diagnose::{index_name, indexes, made, schema, statements},
    failure::failed,
};

/// A file up to this size is looked through for damage.
const SMALL: u64 = 64 << 20;

/// A write-ahead log beyond this size is worth a warning.
const LARGE_WAL: u64 = 256 << 20;

#[async_trait]
impl Diagnose for SqliteStore {
    async fn now(&self) -> Result<Timestamp> {
        const NOW: &str = concat!("select ", now!());

        sqlx::query(NOW)
            .try_map(|row: SqliteRow| time_of_ours(&row, 0))
            .fetch_one(&self.reader)
            .await
            .map_err(failed("asking for the time"))
    }

    /// SQLite has one writer at a time and does not tell who it is. That there is one shows when the
    /// write lock cannot be had.
    async fn open_transactions(&self, limit: usize) -> Result<Vec<OpenTransaction>> {
        const DOING: &str = "looking for a writer";

        // A connection of its own, which does not wait.
        let options = (*self.writer.connect_options()).clone().busy_timeout(Duration::ZERO);
        let mut connection = options.connect().await.map_err(failed(DOING))?;
        let locked = match connection.begin_with("begin immediate").await.map_err(failed(DOING)) {
            Ok(transaction) => {
                transaction.rollback().await.map_err(failed(DOING))?;
                false
            }
            Err(error) if error.is_transient() => true,
            Err(error) => return Err(error),
        };
        let writer = OpenTransaction {
            since: None,
            who: "a connection to the file".to_owned(),
            state: "holds the write lock".to_owned(),
        };
        Ok(Some(writer).filter(|_| locked && limit > 0).into_iter().collect())
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        let (finding, go_on) = schema(self.check().await, &self.tables.drops(Sqlite::NAME))?;
        let mut findings = vec![finding];
        if !go_on {
            return Ok(findings);
        }
        findings.extend([
            made("indexes", self.indexes().await),
            made("journal", self.journal().await),
            made("durability", self.durability().await),
            made("waiting", self.waiting().await),
            made("file", self.file().await),
        ]);
        Ok(findings)
    }
}

impl SqliteStore {
    async fn indexes(&self) -> Result<Finding> {
        const THERE: &str = "select count(*) from sqlite_master where type = 'index' and name = ?1";

        let mut missing = Vec::new();
        for statement in MIGRATIONS.into_iter().flat_map(|(_, migration)| statements(migration)) {
            let Some(name) = index_name(&statement) else { continue };
            let name = self.tables.fill(name);
            let there: bool = sqlx::query_scalar(THERE)
                .bind(&name)
                .fetch_one(&self.reader)
                .await
                .map_err(failed("looking for indexes"))?;
            if !there {
                missing.push((name, self.tables.fill(&statement)));
            }
        }
        Ok(indexes(&missing))
    }

    /// In WAL mode readers and the writer do not wait for each other.
    async fn journal(&self) -> Result<Finding> {
        let mode: String = self.pragma("pragma journal_mode").await?;
        if mode == "wal" || mode == "memory" {
            return Ok(Finding::ok("journal", format!("the journal is in {mode} mode")));
        }
        let text = format!("the journal is in {mode} mode: every read waits for the writer");
        Ok(Finding::new("journal", Level::Problem, text).mended_by("pragma journal_mode = wal"))
    }

    async fn durability(&self) -> Result<Finding> {
        let synchronous: i64 = self.pragma("pragma synchronous").await?;
        if synchronous >= 2 {
            return Ok(Finding::ok("durability", "a commit is on disk before it is confirmed"));
        }
        let text = "commits are confirmed before they are on disk: a power cut can lose the last \
                    ones, events with them";
        Ok(Finding::new("durability", Level::Note, text).mended_by("pragma synchronous = full"))
    }

    /// How long a statement waits for another process's writer.
    async fn waiting(&self) -> Result<Finding> {
        let millis: i64 = self.pragma("pragma busy_timeout").await?;
        let text = format!("a statement waits up to {millis} ms for another writer");
        if millis >= 1_000 {
            return Ok(Finding::ok("waiting", text));
        }
        Ok(Finding::new("waiting", Level::Warning, format!("{text}, then it fails"))
            .mended_by("pragma busy_timeout = 10000, on every connection"))
    }

    /// How large the file and its log are, and whether a small one is sound.
    async fn file(&self) -> Result<Finding> {
        const FILE: &str = "select file from pragma_database_list where name = 'main'";

        let file: Option<String> = self.pragma(FILE).await?;
        let pages: i64 = self.pragma("pragma page_count").await?;
        let page: i64 = self.pragma("pragma page_size").await?;
        let size = pages.max(0).unsigned_abs() * page.max(0).unsigned_abs();
        let wal = file.and_then(|file| std::fs::metadata(file + "-wal").ok());
        let wal = wal.map_or(0, |wal| wal.len());
        let text =
            format!("the file has {} KiB, its write-ahead log {} KiB", size >> 10, wal >> 10);
        if wal > LARGE_WAL {
            let text = format!("{text}: somebody reads for so long that it cannot be written back");
            return Ok(Finding::new("file", Level::Warning, text)
                .mended_by("end long reads, then: pragma wal_checkpoint(truncate)"));
        }
        if size > SMALL {
            return Ok(Finding::ok("file", format!("{text}; too large to be looked through")));
        }
        let sound: String = self.pragma("pragma quick_check(1)").await?;
        if sound == "ok" {
            return Ok(Finding::ok("file", format!("{text}, and is sound")));
        }
        Ok(Finding::new("file", Level::Problem, format!("{text}, and is damaged"))
            .mended_by("sqlite3 FILE .recover, or a backup"))
    }

    async fn pragma<T>(&self, sql: &'static str) -> Result<T>
    where
        T: Send + Unpin + for<'r> sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
    {
        sqlx::query_scalar(sql).fetch_one(&self.reader).await.map_err(failed("asking the file"))
    }
}
