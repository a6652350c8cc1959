//! Making the tables, and saying whether they fit.

use async_trait::async_trait;
use posthaste_core::{Error, ErrorKind, Result, store::Schema};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Row, SqliteConnection};
use tokio::time::{Duration, Instant, sleep};

use super::{BUSY_TIMEOUT, SqliteStore};
use crate::{Tables, failure::failed};

/// All migrations, oldest first. Append-only.
const MIGRATIONS: [(i32, &str); 1] = [(1, include_str!("../../migrations/sqlite/0001_outbox.sql"))];

/// The version that this binary knows.
const VERSION: i32 = MIGRATIONS[MIGRATIONS.len() - 1].0;

#[async_trait]
impl Schema for SqliteStore {
    fn database(&self) -> &'static str {
        "sqlite"
    }

    async fn migrate(&self, shards: Option<u16>) -> Result<Vec<i32>> {
        refuse_qualified(&self.tables)?;
        refuse_shards(&self.tables, shards)?;
        self.prepare_file().await?;
        let mut transaction = self.begin("migrating").await?;
        let found = version(&mut transaction, &self.tables)
            .await?
            .unwrap_or_default();
        if found > VERSION {
            return Err(newer(&self.tables, found));
        }
        let mut applied = Vec::new();
        for (version, sql) in MIGRATIONS
            .into_iter()
            .filter(|(version, _)| *version > found)
        {
            sqlx::raw_sql(AssertSqlSafe(self.tables.fill(sql)))
                .execute(&mut *transaction)
                .await
                .map_err(failed("migrating"))?;
            applied.push(version);
        }
        transaction.commit().await.map_err(failed("migrating"))?;
        Ok(applied)
    }

    fn migrations_sql(&self, shards: Option<u16>) -> Result<String> {
        refuse_qualified(&self.tables)?;
        refuse_shards(&self.tables, shards)?;
        let mut text = format!(
            "-- Posthaste: outbox {} for SQLite, version {VERSION}. Run it once:\n\
             --   sqlite3 app.db < outbox.sql\n\
             pragma journal_mode = wal;\n\
             begin immediate;\n",
            self.tables.name()
        );
        for (version, sql) in MIGRATIONS {
            text.push_str(&format!("\n-- version {version}\n"));
            text.push_str(&self.tables.fill(sql));
        }
        text.push_str("\ncommit;\n");
        Ok(text)
    }

    async fn check(&self) -> Result<u16> {
        refuse_qualified(&self.tables)?;
        let absent = || {
            Error::new(
                ErrorKind::Schema,
                format!(
                    "outbox {} is not there or has no migration; run `posthaste migrate --url …`",
                    self.tables.name()
                ),
            )
        };
        let mut connection = match self.reader.acquire().await {
            Ok(connection) => connection,
            Err(error) if is_missing_file(&error) => return Err(absent().with_source(error)),
            Err(error) => return Err(failed("checking the outbox")(error)),
        };
        let found = version(&mut connection, &self.tables)
            .await?
            .ok_or_else(absent)?;
        if found < VERSION {
            return Err(Error::new(
                ErrorKind::Schema,
                format!(
                    "outbox {} is at version {found}, this binary needs {VERSION}; \
                     run `posthaste migrate`",
                    self.tables.name()
                ),
            ));
        }
        if found > VERSION {
            return Err(newer(&self.tables, found));
        }
        Ok(1)
    }
}

impl SqliteStore {
    /// Makes the file when it is not there, and puts it into WAL mode, which it keeps: without it
    /// every read would wait for the writer.
    async fn prepare_file(&self) -> Result<()> {
        let options = (*self.writer.connect_options())
            .clone()
            .create_if_missing(true);
        let opening = failed("opening the database file");
        let mut connection = options.connect().await.map_err(opening)?;
        // The change needs the file for itself, and for that lock SQLite's own timeout is not
        // obeyed: another process that starts at the same time would make this one fail.
        let deadline = Instant::now() + BUSY_TIMEOUT;
        while let Err(error) = sqlx::query("pragma journal_mode = wal")
            .execute(&mut connection)
            .await
        {
            let error = failed("changing to WAL mode")(error);
            if !error.is_transient() || Instant::now() > deadline {
                return Err(error);
            }
            sleep(Duration::from_millis(20)).await;
        }
        connection
            .close()
            .await
            .map_err(failed("opening the database file"))
    }
}

const META_TABLE: &str = "select name from sqlite_master where type = 'table' and name = ?";

const META: &str = "select version from {meta} where id = 1";

/// The version of the outbox, `None` when it was never made.
async fn version(connection: &mut SqliteConnection, tables: &Tables) -> Result<Option<i32>> {
    let table = sqlx::query(META_TABLE)
        .bind(tables.name().with_suffix("_meta"))
        .fetch_optional(&mut *connection)
        .await
        .map_err(failed("reading the outbox's version"))?;
    if table.is_none() {
        return Ok(None);
    }
    sqlx::query(tables.sql(META))
        .fetch_optional(connection)
        .await
        .and_then(|row| row.map(|row| row.try_get("version")).transpose())
        .map_err(failed("reading the outbox's version"))
}

/// SQLite has no schemas; a name with a dot would mean an attached database, which is there on
/// one connection and not on the next.
pub(super) fn refuse_qualified(tables: &Tables) -> Result<()> {
    match tables.name().schema() {
        None => Ok(()),
        Some(schema) => Err(Error::invalid(format!(
            "table name {} has a schema, and SQLite has none; use {} or {schema}_{}",
            tables.name(),
            tables.name().bare(),
            tables.name().bare()
        ))),
    }
}

fn refuse_shards(tables: &Tables, shards: Option<u16>) -> Result<()> {
    match shards {
        None | Some(1) => Ok(()),
        Some(other) => Err(Error::invalid(format!(
            "outbox {} has 1 shard, as every outbox on SQLite, not {other}; leave the number out",
            tables.name()
        ))),
    }
}

/// `SQLITE_CANTOPEN`
pub(super) fn is_missing_file(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .and_then(|error| error.code())
        .as_deref()
        == Some("14")
}

fn newer(tables: &Tables, found: i32) -> Error {
    Error::new(
        ErrorKind::Schema,
        format!(
            "outbox {} is at version {found}, newer than this binary knows ({VERSION}); \
             use a newer posthaste",
            tables.name()
        ),
    )
}
