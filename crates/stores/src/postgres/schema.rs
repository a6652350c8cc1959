//! Making the tables, and saying whether they fit.

use async_trait::async_trait;
use posthaste_core::{Error, ErrorKind, Key, Result, store::Schema};
use sqlx::{AssertSqlSafe, PgConnection, Row, postgres::PgRow};

use super::PostgresStore;
use crate::{
    dialect::begin_undisturbed,
    failure::failed,
    sessions::Lent,
    version::{self, Found, Migration},
};

/// All migrations, by version. Append only from the first release on.
pub(super) const MIGRATIONS: [Migration; 1] =
    [(1, include_str!("../../migrations/postgres/0001_outbox.sql"))];

/// The version that this binary knows.
pub(super) const VERSION: i32 = MIGRATIONS[MIGRATIONS.len() - 1].0;

#[async_trait]
impl Schema for PostgresStore {
    fn database(&self) -> &'static str {
        "postgres"
    }

    fn table(&self) -> String {
        self.tables.name().to_string()
    }

    async fn migrate(&self, shards: Option<u16>) -> Result<Vec<i32>> {
        let asked = version::checked_shards(shards)?;
        self.refuse_pooler().await?;
        let mut transaction =
            begin_undisturbed(&self.pool, None).await.map_err(failed("migrating"))?;
        self.lock(&mut transaction).await?;
        self.require_schema(&mut transaction).await?;
        let found = self.found(&mut transaction).await?;
        if let Some(found) = &found {
            version::refuse_unknown(&self.tables, found, &MIGRATIONS)?;
            version::refuse_other_count(&self.tables, found.shards, shards)?;
        }
        let (version, count) = found.map_or((0, asked), |found| (found.version, found.shards));
        // A change of the table waits for whoever uses it, and every writer would queue behind it.
        sqlx::raw_sql("set local lock_timeout = '10s'")
            .execute(&mut *transaction)
            .await
            .map_err(failed("migrating"))?;
        let mut applied = Vec::new();
        for (number, template) in MIGRATIONS.into_iter().filter(|(number, _)| *number > version) {
            let sql = self.migration(number, template, count);
            sqlx::raw_sql(AssertSqlSafe(sql))
                .execute(&mut *transaction)
                .await
                .map_err(failed("migrating"))?;
            applied.push(number);
        }
        transaction.commit().await.map_err(failed("migrating"))?;
        let _ = self.shards.set(count);
        Ok(applied)
    }

    fn migrations_sql(&self, shards: Option<u16>) -> Result<String> {
        let count = version::checked_shards(shards)?;
        let name = self.tables.name();
        let mut sql = format!(
            "-- Posthaste: outbox {name} with {count} shards, for PostgreSQL.\n\
             -- Up to version {VERSION}; run it in one go, for example with psql -1 -f.\n\nbegin;\n"
        );
        for (number, template) in MIGRATIONS {
            sql += "\n";
            sql += &self.migration(number, template, count);
        }
        sql += "\ncommit;\n";
        Ok(sql)
    }

    async fn check(&self) -> Result<u16> {
        self.refuse_pooler().await?;
        let mut lent = Lent::from(&self.pool, "checking the outbox").await?;
        let found = self.found(lent.get()?).await?;
        lent.done();
        let Some(found) = found else {
            return Err(version::absent(&self.tables));
        };
        version::refuse_other(&self.tables, &found, &MIGRATIONS)?;
        let _ = self.shards.set(found.shards);
        Ok(found.shards)
    }
}

impl PostgresStore {
    fn migration(&self, number: i32, template: &str, shards: u16) -> String {
        self.tables.fill(
            &template
                .replace("{checksum}", &version::checksum(&MIGRATIONS, number))
                .replace("{shard_count}", &shards.to_string()),
        )
    }

    /// Two processes that start at once migrate one after the other.
    async fn lock(&self, connection: &mut PgConnection) -> Result<()> {
        const LOCK: &str = "select pg_advisory_xact_lock($1)";

        sqlx::query(LOCK)
            .bind(Key::of(&format!("posthaste migrate {}", self.tables.name())).0)
            .execute(connection)
            .await
            .map_err(failed("waiting for another migration"))?;
        Ok(())
    }

    /// The schema of a qualified name is the application's to make.
    async fn require_schema(&self, connection: &mut PgConnection) -> Result<()> {
        const EXISTS: &str = "select to_regnamespace($1) is not null";

        let Some(schema) = self.tables.name().schema() else {
            return Ok(());
        };
        let exists: bool = sqlx::query_scalar(EXISTS)
            .bind(schema)
            .fetch_one(connection)
            .await
            .map_err(failed("looking for the schema"))?;
        if exists {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Schema,
            format!(
                "schema {schema} of outbox {} is not there; run `create schema {schema}` first",
                self.tables.name()
            ),
        ))
    }

    /// What is said about the tables; `None` when there is no migration yet.
    async fn found(&self, connection: &mut PgConnection) -> Result<Option<Found>> {
        const EXISTS: &str = "select to_regclass($1) is not null";
        // Every column: earlier builds have made tables with fewer.
        const FOUND: &str = "select * from {meta} where id = 1";
        const DOING: &str = "reading the outbox's version";

        // Asked first: a failed statement would end the migration's transaction.
        let exists: bool = sqlx::query_scalar(EXISTS)
            .bind(self.tables.fill("{meta}"))
            .fetch_one(&mut *connection)
            .await
            .map_err(failed(DOING))?;
        if !exists {
            return Ok(None);
        }
        // Not kept prepared: a plan does not survive that the table gets another column.
        sqlx::query(self.tables.sql(FOUND))
            .persistent(false)
            .try_map(|row: PgRow| {
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
}
