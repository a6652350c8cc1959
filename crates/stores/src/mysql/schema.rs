//! Making the tables, and saying whether they fit.

use std::fmt::Write;

use async_trait::async_trait;
use posthaste_core::{Error, ErrorKind, Result, store::Schema};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, Row, mysql::MySqlRow};

use super::{MySqlStore, number};
use crate::{
    failure::failed,
    sessions::Lent,
    version::{self, Found, Migration},
};

/// All migrations, by version. Append only from the first release on.
pub(super) const MIGRATIONS: [Migration; 1] =
    [(1, include_str!("../../migrations/mysql/0001_outbox.sql"))];

/// The version that this binary knows.
const VERSION: i32 = MIGRATIONS[MIGRATIONS.len() - 1].0;

const NO_SUCH_TABLE: u16 = 1146;

const UNKNOWN_DATABASE: u16 = 1049;

#[async_trait]
impl Schema for MySqlStore {
    fn database(&self) -> &'static str {
        "mysql"
    }

    fn table(&self) -> String {
        self.tables.name().to_string()
    }

    async fn migrate(&self, shards: Option<u16>) -> Result<Vec<i32>> {
        let asked = version::checked_shards(shards)?;
        let connection = self.pool.acquire().await.map_err(failed("migrating"))?;
        // Not the pool's any more: the lock ends with the connection, also when this is cancelled.
        let mut connection = connection.detach();
        self.lock(&mut connection).await?;
        let migrated = self.migrate_locked(&mut connection, shards, asked).await;
        let closed = connection.close().await.map_err(failed("migrating"));
        migrated.and_then(|applied| closed.map(|()| applied))
    }

    fn migrations_sql(&self, shards: Option<u16>) -> Result<String> {
        let count = version::checked_shards(shards)?;
        let name = self.tables.name();
        let mut sql = format!(
            "-- Posthaste: outbox {name} with {count} shards, for MySQL 8 and MariaDB.\n\
             -- Up to version {VERSION}; run it for example with mysql < file.\n"
        );
        for (number, template) in MIGRATIONS {
            let _ = writeln!(sql, "\n-- Migration {number}");
            sql.push_str(&self.migration(number, template, count));
        }
        Ok(sql)
    }

    async fn check(&self) -> Result<u16> {
        let mut lent = Lent::from(&self.pool, "checking the outbox").await?;
        let Some(found) = self.found(lent.get()?).await? else {
            return Err(version::absent(&self.tables));
        };
        version::refuse_other(&self.tables, &found, &MIGRATIONS)?;
        refuse_clusters(lent.get()?).await?;
        lent.done();
        let _ = self.shards.set(found.shards);
        Ok(found.shards)
    }
}

/// Refuses servers of which several are written to: a number that is missing on one may belong to a
/// transaction that only another one knows, and numbers do not follow the order of commits.
async fn refuse_clusters(connection: &mut MySqlConnection) -> Result<()> {
    const VARIABLES: &str = "
        show global variables where variable_name in
            ('wsrep_on', 'group_replication_single_primary_mode', 'version', 'version_comment')";

    let variables: Vec<(String, String)> = sqlx::query(VARIABLES)
        .persistent(false)
        .try_map(|row: MySqlRow| Ok((row.try_get_unchecked(0)?, row.try_get_unchecked(1)?)))
        .fetch_all(connection)
        .await
        .map_err(failed("asking what the server is"))?;
    match refusal(&variables) {
        Some(reason) => Err(Error::new(ErrorKind::State, reason)),
        None => Ok(()),
    }
}

fn refusal(variables: &[(String, String)]) -> Option<String> {
    let is = |name: &str, value: &str| {
        variables.iter().any(|(n, v)| n.eq_ignore_ascii_case(name) && v.eq_ignore_ascii_case(value))
    };
    let of_tidb = variables.iter().any(|(_, value)| value.to_ascii_lowercase().contains("tidb"));
    let (what, remedy) = if of_tidb {
        ("TiDB", "use MySQL, MariaDB or PostgreSQL")
    } else if is("wsrep_on", "ON") {
        ("a node of a Galera cluster", "use a primary with replicas")
    } else if is("group_replication_single_primary_mode", "OFF") {
        ("a member of a group with several primaries", "use group_replication_single_primary_mode")
    } else {
        return None;
    };
    Some(format!(
        "this server is {what}: events that are written through another server could be lost; {remedy}"
    ))
}

impl MySqlStore {
    /// How many shards there are.
    pub(super) async fn shard_count(&self) -> Result<u16> {
        match self.shards.get() {
            Some(&count) => Ok(count),
            None => self.check().await,
        }
    }

    async fn migrate_locked(
        &self,
        connection: &mut MySqlConnection,
        shards: Option<u16>,
        asked: u16,
    ) -> Result<Vec<i32>> {
        self.require_schema(connection).await?;
        let found = self.found(connection).await?;
        if let Some(found) = &found {
            version::refuse_unknown(&self.tables, found, &MIGRATIONS)?;
            version::refuse_other_count(&self.tables, found.shards, shards)?;
        }
        let (version, count) = found.map_or((0, asked), |found| (found.version, found.shards));
        let mut applied = Vec::new();
        for (number, template) in MIGRATIONS.into_iter().filter(|(number, _)| *number > version) {
            let sql = self.migration(number, template, count);
            sqlx::raw_sql(AssertSqlSafe(sql))
                .execute(&mut *connection)
                .await
                .map_err(failed("migrating"))?;
            applied.push(number);
        }
        let _ = self.shards.set(count);
        Ok(applied)
    }

    fn migration(&self, number: i32, template: &str, shards: u16) -> String {
        let rows: Vec<String> = (0..shards).map(|shard| format!("('', {shard}, '')")).collect();
        self.tables.fill(
            &template
                .replace("{checksum}", &version::checksum(&MIGRATIONS, number))
                .replace("{shard_count}", &shards.to_string())
                .replace("{shard_rows}", &rows.join(", ")),
        )
    }

    /// Two processes that start at once migrate one after the other.
    async fn lock(&self, connection: &mut MySqlConnection) -> Result<()> {
        const LOCK: &str = "
            select get_lock(concat('posthaste ', left(sha2(
                concat(coalesce(?, database()), '.', ?), 256), 40)), 60)";

        let locked: Option<i64> = sqlx::query_scalar(LOCK)
            .bind(self.tables.name().schema())
            .bind(self.tables.name().bare())
            .fetch_one(connection)
            .await
            .map_err(failed("waiting for another migration"))?;
        if locked == Some(1) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!("another migration of outbox {} did not end", self.tables.name()),
        ))
    }

    /// The database of a qualified name is the application's to make.
    async fn require_schema(&self, connection: &mut MySqlConnection) -> Result<()> {
        const EXISTS: &str =
            "select count(*) from information_schema.schemata where schema_name = ?";

        let Some(schema) = self.tables.name().schema() else {
            return Ok(());
        };
        let exists: i64 = sqlx::query_scalar(EXISTS)
            .bind(schema)
            .fetch_one(connection)
            .await
            .map_err(failed("looking for the database"))?;
        if exists > 0 {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Schema,
            format!(
                "database {schema} of outbox {} is not there; run `create database {schema}` first",
                self.tables.name()
            ),
        ))
    }

    /// What is said about the tables; `None` when there is no migration yet.
    async fn found(&self, connection: &mut MySqlConnection) -> Result<Option<Found>> {
        // Every column: earlier builds have made tables with fewer.
        const FOUND: &str = "select * from {meta} where id = 1";

        let found = sqlx::query(self.tables.sql(FOUND))
            .persistent(false)
            .try_map(|row: MySqlRow| {
                Ok(Found {
                    version: row.try_get("version")?,
                    shards: row.try_get::<i32, _>("shards")? as u16,
                    checksum: row.try_get("checksum").ok(),
                })
            })
            .fetch_optional(connection)
            .await;
        match found {
            Err(error) if matches!(number(&error), NO_SUCH_TABLE | UNKNOWN_DATABASE) => Ok(None),
            found => found.map_err(failed("reading the outbox's version")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::refusal;

    #[test]
    fn servers_with_several_writers_are_refused_with_the_remedy() {
        let refused = |name: &str, value: &str| refusal(&[(name.to_owned(), value.to_owned())]);
        let galera = refused("wsrep_on", "ON").unwrap();
        assert!(
            galera.contains("Galera") && galera.contains("a primary with replicas"),
            "{galera}"
        );
        assert!(refused("group_replication_single_primary_mode", "OFF").is_some());
        assert!(refused("version", "8.0.11-TiDB-v8.5.0").is_some());
        for (name, value) in [
            ("wsrep_on", "OFF"),
            ("group_replication_single_primary_mode", "ON"),
            ("version", "10.11.19-MariaDB"),
        ] {
            assert_eq!(refused(name, value), None);
        }
    }
}
