//! Making the tables, and saying whether they fit.

use std::fmt::Write;

use async_trait::async_trait;
use posthaste_core::{Error, Result, store::Schema};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, Row, SqliteConnection, error::DatabaseError,
    sqlite::SqliteRow,
};
use tokio::time::{Duration, Instant, sleep};

use super::{BUSY_TIMEOUT, SqliteStore};
use crate::{
    Tables,
    failure::failed,
    version::{self, Found, Migration},
};

/// All migrations, by version. Append only from the first release on.
pub(super) const MIGRATIONS: [Migration; 1] =
    [(1, include_str!("../../migrations/sqlite/0001_outbox.sql"))];

/// The version that this binary knows.
const VERSION: i32 = MIGRATIONS[MIGRATIONS.len() - 1].0;

#[async_trait]
impl Schema for SqliteStore {
    fn database(&self) -> &'static str {
        "sqlite"
    }

    fn table(&self) -> String {
        self.tables.name().to_string()
    }

    async fn migrate(&self, shards: Option<u16>) -> Result<Vec<i32>> {
        refuse_name(&self.tables)?;
        self.refuse_other_count(shards)?;
        self.prepare_file().await?;
        let mut transaction = self.begin("migrating").await?;
        let found = self.found(&mut transaction).await?;
        if let Some(found) = &found {
            version::refuse_unknown(&self.tables, found, &MIGRATIONS)?;
        }
        let version = found.map_or(0, |found| found.version);
        let mut applied = Vec::new();
        for (number, template) in MIGRATIONS.into_iter().filter(|(number, _)| *number > version) {
            sqlx::raw_sql(AssertSqlSafe(self.migration(number, template)))
                .execute(&mut *transaction)
                .await
                .map_err(failed("migrating"))?;
            applied.push(number);
        }
        transaction.commit().await.map_err(failed("migrating"))?;
        Ok(applied)
    }

    fn migrations_sql(&self, shards: Option<u16>) -> Result<String> {
        refuse_name(&self.tables)?;
        self.refuse_other_count(shards)?;
        let name = self.tables.name();
        let mut sql = format!(
            "-- Posthaste: outbox {name} for SQLite.\n\
             -- Up to version {VERSION}; run it in one go, for example with sqlite3 app.db < FILE.\n\n\
             pragma journal_mode = wal;\n\nbegin immediate;\n"
        );
        for (number, template) in MIGRATIONS {
            let _ = write!(sql, "\n-- Migration {number}\n{}", self.migration(number, template));
        }
        sql.push_str("\ncommit;\n");
        Ok(sql)
    }

    async fn check(&self) -> Result<u16> {
        refuse_name(&self.tables)?;
        let absent = || version::absent(&self.tables);
        let mut connection = match self.reader.acquire().await {
            Ok(connection) => connection,
            Err(error) if is_missing_file(&error) => return Err(absent().with_source(error)),
            Err(error) => return Err(failed("checking the outbox")(error)),
        };
        let found = self.found(&mut connection).await?.ok_or_else(absent)?;
        version::refuse_other(&self.tables, &found, &MIGRATIONS)?;
        Ok(found.shards)
    }
}

impl SqliteStore {
    fn migration(&self, number: i32, template: &str) -> String {
        let checksum = version::checksum(&MIGRATIONS, number);
        self.tables.fill(&template.replace("{checksum}", &checksum))
    }

    /// Makes the file when it is not there, and puts it into WAL mode, which it keeps: without it
    /// every read would wait for the writer.
    async fn prepare_file(&self) -> Result<()> {
        const WAL: &str = "pragma journal_mode = wal";

        let mut connection = (*self.writer.connect_options())
            .clone()
            .create_if_missing(true)
            .connect()
            .await
            .map_err(failed("opening the database file"))?;
        // The change needs the file for itself, and SQLite does not wait for that: a process that
        // starts at the same time would make this one fail.
        let deadline = Instant::now() + BUSY_TIMEOUT;
        while let Err(error) = sqlx::query(WAL).execute(&mut connection).await {
            let error = failed("changing to WAL mode")(error);
            if !error.is_transient() || Instant::now() > deadline {
                return Err(error);
            }
            sleep(Duration::from_millis(20)).await;
        }
        connection.close().await.map_err(failed("opening the database file"))
    }

    /// What is said about the tables; `None` when there is no migration yet.
    async fn found(&self, connection: &mut SqliteConnection) -> Result<Option<Found>> {
        const EXISTS: &str =
            "select count(*) from sqlite_master where type = 'table' and name = ?1";
        // Every column: earlier builds have made tables with fewer.
        const FOUND: &str = "select * from {meta} where id = 1";
        const DOING: &str = "reading the outbox's version";

        let exists: bool = sqlx::query_scalar(EXISTS)
            .bind(self.tables.fill("{meta}"))
            .fetch_one(&mut *connection)
            .await
            .map_err(failed(DOING))?;
        if !exists {
            return Ok(None);
        }
        sqlx::query(self.tables.sql(FOUND))
            .persistent(false)
            .try_map(|row: SqliteRow| {
                Ok(Found {
                    version: row.try_get("version")?,
                    shards: row.try_get::<i32, _>("shards")? as u16,
                    checksum: row.try_get("checksum").ok(),
                })
            })
            .fetch_optional(connection)
            .await
            .map_err(failed(DOING))
    }

    fn refuse_other_count(&self, asked: Option<u16>) -> Result<()> {
        match asked {
            None | Some(1) => Ok(()),
            Some(asked) => Err(Error::invalid(format!(
                "outbox {} is in SQLite, which has 1 shard, not {asked}; leave the number out",
                self.tables.name()
            ))),
        }
    }
}

/// SQLite has no schemas: a name with a dot would mean an attached database, which is there on one
/// connection and not on the next. What begins with `sqlite_` is its own.
pub(super) fn refuse_name(tables: &Tables) -> Result<()> {
    let name = tables.name();
    if let Some(schema) = name.schema() {
        return Err(Error::invalid(format!(
            "outbox {name} is in schema {schema}, and SQLite has no schemas; use {schema}_{}",
            name.bare()
        )));
    }
    if name.bare().starts_with("sqlite_") {
        return Err(Error::invalid(format!(
            "outbox {name} has a name that SQLite keeps for itself; use one that does not begin \
             with sqlite_"
        )));
    }
    Ok(())
}

/// Whether the file could not be opened (`SQLITE_CANTOPEN`).
pub(super) fn is_missing_file(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(DatabaseError::code).as_deref() == Some("14")
}
