//! Making the tables, and saying whether they fit.

use async_trait::async_trait;
use posthaste_core::{Error, ErrorKind, Key, Result, store::Schema};
use sqlx::{AssertSqlSafe, PgConnection};

use super::PostgresStore;
use crate::{failure::failed, sessions::Lent, version};

/// All migrations, by version. Append only.
pub(super) const MIGRATIONS: [(i32, &str); 6] = [
    (1, include_str!("../../migrations/postgres/0001_outbox.sql")),
    (2, include_str!("../../migrations/postgres/0002_inbox_idempotency.sql")),
    (3, include_str!("../../migrations/postgres/0003_audit.sql")),
    (4, include_str!("../../migrations/postgres/0004_lists.sql")),
    (5, include_str!("../../migrations/postgres/0005_shard.sql")),
    (6, include_str!("../../migrations/postgres/0006_progress.sql")),
];

/// The version that this binary knows.
pub(super) const VERSION: i32 = MIGRATIONS[MIGRATIONS.len() - 1].0;

#[async_trait]
impl Schema for PostgresStore {
    fn database(&self) -> &'static str {
        "postgres"
    }

    async fn migrate(&self, shards: Option<u16>) -> Result<Vec<i32>> {
        let asked = version::checked_shards(shards)?;
        let mut transaction = self.pool.begin().await.map_err(failed("migrating"))?;
        self.lock(&mut transaction).await?;
        self.require_schema(&mut transaction).await?;
        let found = self.version(&mut transaction).await?;
        if let Some((version, count)) = found {
            version::refuse_newer(&self.tables, version, VERSION)?;
            version::refuse_other_count(&self.tables, count, shards)?;
        }
        let (version, count) = found.unwrap_or((0, asked));
        // A change of the table waits for whoever uses it, and every writer would queue behind it.
        sqlx::raw_sql("set local lock_timeout = '10s'")
            .execute(&mut *transaction)
            .await
            .map_err(failed("migrating"))?;
        let mut applied = Vec::new();
        for (number, template) in MIGRATIONS.into_iter().filter(|(number, _)| *number > version) {
            let sql = self.migration(template, count);
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
        for (_, template) in MIGRATIONS {
            sql += "\n";
            sql += &self.migration(template, count);
        }
        sql += "\ncommit;\n";
        Ok(sql)
    }

    async fn check(&self) -> Result<u16> {
        let mut lent = Lent::from(&self.pool, "checking the outbox").await?;
        let found = self.version(lent.get()?).await?;
        lent.done();
        let Some((version, count)) = found else {
            return Err(version::absent(&self.tables));
        };
        version::refuse_other(&self.tables, version, VERSION)?;
        let _ = self.shards.set(count);
        Ok(count)
    }
}

impl PostgresStore {
    fn migration(&self, template: &str, shards: u16) -> String {
        self.tables.fill(&template.replace("{shard_count}", &shards.to_string()))
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

    /// Version and number of shards; `None` when there is no migration yet.
    async fn version(&self, connection: &mut PgConnection) -> Result<Option<(i32, u16)>> {
        const EXISTS: &str = "select to_regclass($1) is not null";
        const VERSION: &str = "select version, shards from {meta} where id = 1";

        // Asked first: a failed statement would end the migration's transaction.
        let exists: bool = sqlx::query_scalar(EXISTS)
            .bind(self.tables.fill("{meta}"))
            .fetch_one(&mut *connection)
            .await
            .map_err(failed("reading the outbox's version"))?;
        if !exists {
            return Ok(None);
        }
        let row: Option<(i32, i32)> = sqlx::query_as(self.tables.sql(VERSION))
            .fetch_optional(connection)
            .await
            .map_err(failed("reading the outbox's version"))?;
        Ok(row.map(|(version, shards)| (version, shards as u16)))
    }
}
