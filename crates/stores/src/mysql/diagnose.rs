//! What is wrong with the database, and what mends it.

use std::collections::HashMap;

use async_trait::async_trait;
use jiff::Timestamp;
use posthaste_core::{
    Result,
    store::{Diagnose, Finding, Level, OpenTransaction, Schema},
};
use sqlx::{
    AssertSqlSafe, Database, MySql, Row,
    mysql::{MySqlConnectOptions, MySqlRow, MySqlSslMode},
};

use super::{MySqlStore, inspect::time, number, schema::MIGRATIONS, statements::NOT_SHOWN};
use crate::{
    diagnose::{
        LONG_TRANSACTION, Need, OPERATOR_NEEDS, Protection, RELAY_NEEDS, grantable, indexes, made,
        privileges, schema, tls,
    },
    failure::failed,
};

/// The account may not do this with a table, or with a column of it.
const DENIED: [u16; 3] = [1142, 1143, 1044];

/// What a settle does here and not elsewhere: it adds the hash of a key, and passes over attempts that are
/// listed already.
const SETTLE_NEEDS: [Need; 2] =
    [("{events}", &[("update", &["key_hash"])]), ("{attempts}", &[("update", &[])])];

/// What these options insist on.
fn insisted(options: &MySqlConnectOptions) -> Protection {
    match options.get_ssl_mode() {
        MySqlSslMode::VerifyIdentity => Protection::Verified,
        MySqlSslMode::VerifyCa => Protection::Authority,
        MySqlSslMode::Required => Protection::Encrypted,
        MySqlSslMode::Preferred | MySqlSslMode::Disabled => Protection::None,
    }
}

fn tls_of(options: &MySqlConnectOptions, protection: Protection) -> Finding {
    tls(
        options.get_host(),
        options.get_socket().is_some(),
        protection,
        "ssl-mode=VERIFY_IDENTITY in the URL, and ssl-ca=PATH for an authority that the system does \
         not trust",
    )
}

/// Transactions that have written, and the seconds since they began: the list has the server's local
/// time.
macro_rules! written {
    () => {
        "select t.trx_mysql_thread_id as thread, t.trx_state as state,
                timestampdiff(second, t.trx_started,
                    convert_tz(utc_timestamp(), '+00:00', 'SYSTEM')) as age
         from information_schema.innodb_trx t
         where t.trx_rows_modified > 0 and t.trx_mysql_thread_id <> connection_id()"
    };
}

#[async_trait]
impl Diagnose for MySqlStore {
    async fn now(&self) -> Result<Timestamp> {
        const NOW: &str = "select timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))";

        sqlx::query(NOW)
            .try_map(|row: MySqlRow| time(row.try_get(0)?))
            .fetch_one(&self.pool)
            .await
            .map_err(failed("asking for the time"))
    }

    async fn open_transactions(&self, limit: usize) -> Result<Vec<OpenTransaction>> {
        const OPEN: &str = concat!(
            "select timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))
                 - greatest(age, 0) * 1000000, cast(thread as signed), lower(state)
             from (",
            written!(),
            ") t order by age desc limit ?"
        );

        let found = sqlx::query(OPEN)
            .bind(limit as u64)
            .try_map(|row: MySqlRow| {
                Ok(OpenTransaction {
                    since: Some(time(row.try_get(0)?)?),
                    who: format!("connection {}", row.try_get::<i64, _>(1)?),
                    state: row.try_get(2)?,
                })
            })
            .fetch_all(&self.pool)
            .await;
        match found {
            Err(error) if NOT_SHOWN.contains(&number(&error)) => Ok(Vec::new()),
            found => found.map_err(failed("looking for open transactions")),
        }
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        let (finding, go_on) = schema(self.check().await, &self.tables.drops(MySql::NAME))?;
        let mut findings = vec![finding];
        if !go_on {
            return Ok(findings);
        }
        findings.extend([
            made("server", self.server().await),
            made("tls", self.tls().await),
            made("indexes", self.indexes().await),
            made("privileges", self.privileges().await),
            made("transactions", self.long_transactions().await),
            made("replication", self.replication().await),
        ]);
        Ok(findings)
    }
}

impl MySqlStore {
    /// Whether it can be written to under `read committed`, and keeps what it has confirmed.
    async fn server(&self) -> Result<Finding> {
        const SETTINGS: &str = "
            show global variables where variable_name in ('version', 'log_bin', 'binlog_format',
                'innodb_flush_log_at_trx_commit', 'read_only')";

        let rows: Vec<(String, String)> = sqlx::query_as(SETTINGS)
            .fetch_all(&self.pool)
            .await
            .map_err(failed("asking for the server"))?;
        let settings: HashMap<String, String> = rows.into_iter().collect();
        let is = |name: &str, value: &str| {
            settings.get(name).is_some_and(|found| found.eq_ignore_ascii_case(value))
        };
        let version = settings.get("version").map_or("unknown", String::as_str);
        let finding = if is("read_only", "ON") {
            let text = format!("MySQL {version} is read-only: nothing can be written here");
            Finding::new("server", Level::Problem, text).mended_by("give the URL of the primary")
        } else if is("log_bin", "ON") && is("binlog_format", "STATEMENT") {
            let text = format!(
                "MySQL {version} logs statements, which forbids writes under read committed: no \
                 relay can settle"
            );
            Finding::new("server", Level::Problem, text)
                .mended_by("set global binlog_format = 'ROW'")
        } else if !is("innodb_flush_log_at_trx_commit", "1") {
            let text = format!(
                "MySQL {version} confirms commits before they are on disk: a crash can lose the \
                 last ones, events with them"
            );
            Finding::new("server", Level::Warning, text)
                .mended_by("set global innodb_flush_log_at_trx_commit = 1")
        } else {
            Finding::ok("server", format!("MySQL {version}"))
        };
        Ok(finding)
    }

    /// Whether others can listen, or answer in the server's place.
    async fn tls(&self) -> Result<Finding> {
        const CIPHER: &str = "show session status where variable_name = 'Ssl_cipher'";

        let options = self.pool.connect_options();
        let mut protection = insisted(&options);
        if matches!(options.get_ssl_mode(), MySqlSslMode::Preferred) {
            let cipher: Option<(String, String)> = sqlx::query_as(CIPHER)
                .fetch_optional(&self.pool)
                .await
                .map_err(failed("asking for TLS"))?;
            if cipher.is_some_and(|(_, cipher)| !cipher.is_empty()) {
                protection = Protection::Encrypted;
            }
        }
        Ok(tls_of(&options, protection))
    }

    async fn indexes(&self) -> Result<Finding> {
        const THERE: &str = "
            select count(*) from information_schema.statistics
            where table_schema = coalesce(?, database()) and index_name = ?";

        let mut missing = Vec::new();
        for (name, statement) in MIGRATIONS.into_iter().flat_map(|(_, sql)| keys(sql)) {
            let name = self.tables.fill(&name);
            let there: i64 = sqlx::query_scalar(THERE)
                .bind(self.tables.name().schema())
                .bind(&name)
                .fetch_one(&self.pool)
                .await
                .map_err(failed("looking for indexes"))?;
            if there == 0 {
                missing.push((name, self.tables.fill(&statement)));
            }
        }
        Ok(indexes(&missing))
    }

    async fn privileges(&self) -> Result<Finding> {
        let account: String = sqlx::query_scalar("select current_user()")
            .fetch_one(&self.pool)
            .await
            .map_err(failed("reading privileges"))?;
        // As `grant` takes it: 'name'@'host'.
        let (name, host) = account.rsplit_once('@').unwrap_or((&account, "%"));
        let account = format!("'{name}'@'{host}'");
        let mut relay = self.lacking(&RELAY_NEEDS).await?;
        relay.extend(self.lacking(&SETTLE_NEEDS).await?);
        let operator = self.lacking(&OPERATOR_NEEDS).await?;
        Ok(privileges::<MySql>(&relay, &operator, &account))
    }

    /// What of it the account may not do. Grants come from so many places that the server is asked to
    /// plan a statement, which needs the same privileges as running it.
    async fn lacking(&self, needs: &[Need]) -> Result<Vec<String>> {
        let mut lacking = Vec::new();
        for (template, wanted) in needs {
            let table = self.tables.fill(template);
            let first = first_column(template);
            let mut missing = Vec::new();
            for (privilege, of_columns) in *wanted {
                let columns = if of_columns.is_empty() { &[first] } else { *of_columns };
                let list = columns.join(", ");
                let plan = match *privilege {
                    "select" => format!("explain select {list} from {table} where {first} is null"),
                    "insert" => {
                        let nulls = vec!["null"; columns.len()].join(", ");
                        format!("explain insert into {table} ({list}) values ({nulls})")
                    }
                    "update" => {
                        let changes: Vec<String> =
                            columns.iter().map(|column| format!("{column} = null")).collect();
                        let changes = changes.join(", ");
                        format!("explain update {table} set {changes} where {first} is null")
                    }
                    _ => format!("explain delete from {table} where {first} is null"),
                };
                match sqlx::raw_sql(AssertSqlSafe(plan)).fetch_all(&self.pool).await {
                    Err(error) if DENIED.contains(&number(&error)) => {
                        missing.push(grantable(privilege, of_columns));
                    }
                    // Whatever else is wrong with it, it was not forbidden.
                    Err(sqlx::Error::Database(_)) | Ok(_) => {}
                    Err(error) => return Err(failed("reading privileges")(error)),
                }
            }
            if !missing.is_empty() {
                lacking.push(format!("{} on {table}", missing.join(", ")));
            }
        }
        Ok(lacking)
    }

    /// Whether the server follows another one: it was made writable without an end to that.
    async fn replication(&self) -> Result<Finding> {
        // The primary of a group has such threads, too.
        const THREADS: &str = "
            select count(*) from information_schema.processlist p
            where p.user = 'system user' and p.command <> 'Daemon' and not exists (
                select 1 from information_schema.processlist g
                where g.user = 'system user' and g.info like 'Group replication%')";

        let threads = sqlx::query_scalar::<_, i64>(THREADS).fetch_one(&self.pool).await;
        let running = threads.map_err(failed("looking for replication"))?;
        Ok(if running > 0 {
            let text = "the server follows another one: an event that comes from there under a number \
                        which was passed over can be lost";
            Finding::new("replication", Level::Warning, text)
                .mended_by("stop replica, once it has applied all that it received")
        } else {
            Finding::ok("replication", "the server follows no other one")
        })
    }

    /// Whether a transaction has been open for so long that old versions of rows pile up.
    async fn long_transactions(&self) -> Result<Finding> {
        const LONG: &str = "
            select cast(trx_mysql_thread_id as signed), timestampdiff(second, trx_started,
                convert_tz(utc_timestamp(), '+00:00', 'SYSTEM')) as age
            from information_schema.innodb_trx
            where trx_mysql_thread_id <> connection_id()
            order by trx_started limit 1";

        let oldest: sqlx::Result<Option<(i64, i64)>> =
            sqlx::query_as(LONG).fetch_optional(&self.pool).await;
        match oldest {
            Err(error) if NOT_SHOWN.contains(&number(&error)) => {
                let text = "open transactions cannot be seen: an event that is committed more than \
                            ten minutes after its number was passed over can be lost";
                Ok(Finding::new("transactions", Level::Warning, text)
                    .mended_by("grant process on *.* to the relay's account"))
            }
            Ok(Some((thread, age))) if age > LONG_TRANSACTION.as_secs() as i64 => {
                let text = format!(
                    "the transaction of connection {thread} is open for {} minutes: old versions of \
                     rows pile up",
                    age / 60
                );
                Ok(Finding::new("transactions", Level::Warning, text)
                    .mended_by(format!("kill {thread}")))
            }
            Ok(_) => Ok(Finding::ok("transactions", "no transaction is open for long")),
            Err(error) => Err(failed("looking for long transactions")(error)),
        }
    }
}

/// A column that every row of the table has.
fn first_column(table: &str) -> &'static str {
    match table {
        "{events}" | "{attempts}" => "sequence",
        "{shards}" => "shard",
        "{relays}" => "owner",
        "{controls}" => "kind",
        "{inbox}" => "consumer",
        "{idempotency}" => "scope",
        _ => "id",
    }
}

/// The indexes that a migration makes besides the primary keys, each with the statement that adds
/// it.
fn keys(migration: &str) -> Vec<(String, String)> {
    let mut table = "";
    let mut found = Vec::new();
    for line in migration.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("create table if not exists ") {
            table = rest.split_whitespace().next().unwrap_or_default();
        }
        let key = line.strip_prefix("unique ").unwrap_or(line);
        if let Some(key) = key.strip_prefix("key {bare}") {
            let name = format!("{{bare}}{}", key.split_whitespace().next().unwrap_or_default());
            found.push((name, format!("alter table {table} add {}", line.trim_end_matches(','))));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mysql::connect_options;

    #[test]
    fn a_mode_of_tls_is_told_as_what_it_protects_from() {
        for (mode, level, says) in [
            ("", Level::Warning, "TLS: none"),
            ("?ssl-mode=DISABLED", Level::Warning, "TLS: none"),
            ("?ssl-mode=PREFERRED", Level::Warning, "TLS: none"),
            ("?ssl-mode=REQUIRED", Level::Warning, "TLS: not verified"),
            ("?ssl-mode=VERIFY_CA", Level::Warning, "and not its name"),
            ("?ssl-mode=VERIFY_IDENTITY", Level::Ok, "the server's name is verified"),
        ] {
            let url = format!("mysql://name:word@db.example/shop{mode}");
            let options = connect_options(&url).unwrap();
            let found = tls_of(&options, insisted(&options));
            assert!(found.level == level && found.text.contains(says), "{mode}: {}", found.text);
        }
    }

    #[test]
    fn indexes_are_known_from_the_migrations() {
        let found: Vec<_> = MIGRATIONS.into_iter().flat_map(|(_, sql)| keys(sql)).collect();
        assert_eq!(found.len(), 9, "{found:?}");
        let dead = &found.iter().find(|(name, _)| name == "{bare}_dead_idx").unwrap().1;
        assert_eq!(dead, "alter table {events} add key {bare}_dead_idx (dead_at)");
        assert!(found[0].1.contains("add unique key"));
    }
}
