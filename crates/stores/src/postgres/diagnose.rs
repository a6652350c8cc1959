//! What is wrong with the database, and what mends it.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use posthaste_core::{
    Result,
    store::{Diagnose, Finding, Level, OpenTransaction, Schema},
};
use sqlx::{
    Database, Postgres, Row,
    postgres::{PgConnectOptions, PgRow, PgSslMode},
};
use uuid::Uuid;

use super::{
    PostgresStore, connect_options,
    inspect::time,
    row::Micros,
    schema::{MIGRATIONS, VERSION},
};
use crate::{
    diagnose::{
        LONG_TRANSACTION, Need, OPERATOR_NEEDS, Protection, RELAY_NEEDS, grantable, index_name,
        indexes, made, privileges, schema, statements, tls,
    },
    failure::failed,
};

/// How long a notification to ourselves may take.
const LISTEN_DEADLINE: Duration = Duration::from_secs(2);

/// A purge passes over rows that others have locked: it locks what it deletes, for which the server asks
/// for `update` on some column.
const PURGE_NEEDS: [Need; 2] = [
    ("{inbox}", &[("update", &["received_at"])]),
    ("{idempotency}", &[("update", &["expires_at"])]),
];

/// How much WAL a slot may hold back before it is worth a warning.
const WAL_LIMIT: i64 = 1 << 30;

/// What these options insist on.
fn insisted(options: &PgConnectOptions) -> Protection {
    match options.get_ssl_mode() {
        PgSslMode::VerifyFull => Protection::Verified,
        PgSslMode::VerifyCa => Protection::Authority,
        PgSslMode::Require => Protection::Encrypted,
        _ => Protection::None,
    }
}

/// A password goes to where is listened, too.
fn with_listening(finding: Finding, options: &PgConnectOptions) -> Finding {
    let listening = tls_of(options, insisted(options));
    if finding.level != Level::Ok || listening.level == Level::Ok {
        return finding;
    }
    Finding { text: format!("listen_url: {}", listening.text), ..listening }
}

fn tls_of(options: &PgConnectOptions, protection: Protection) -> Finding {
    tls(
        options.get_host(),
        options.get_socket().is_some(),
        protection,
        "sslmode=verify-full in the URL, and sslrootcert=PATH for an authority that the system does not \
         trust",
    )
}

#[async_trait]
impl Diagnose for PostgresStore {
    async fn now(&self) -> Result<Timestamp> {
        const NOW: &str = "select clock_timestamp()";

        sqlx::query(NOW)
            .try_map(|row: PgRow| time(row.try_get(0)?))
            .fetch_one(&self.pool)
            .await
            .map_err(failed("asking for the time"))
    }

    async fn open_transactions(&self, limit: usize) -> Result<Vec<OpenTransaction>> {
        // One without a number of its own has written nothing.
        const OPEN: &str = "
            select since, who, state from (
                select xact_start as since, state,
                       concat_ws(' ', usename, nullif(application_name, ''),
                                 '(pid ' || pid || ')') as who
                from pg_stat_activity
                where datname = current_database() and backend_xid is not null
                  and pid <> pg_backend_pid()
                union all
                select prepared, 'prepared', owner || ' (' || gid || ')'
                from pg_prepared_xacts where database = current_database()
            ) t
            order by since
            limit $1";

        sqlx::query(OPEN)
            .bind(limit as i64)
            .try_map(|row: PgRow| {
                Ok(OpenTransaction {
                    since: row.try_get::<Option<Micros>, _>(0)?.and_then(Micros::timestamp),
                    who: row.try_get::<Option<String>, _>(1)?.unwrap_or_default(),
                    state: row.try_get::<Option<String>, _>(2)?.unwrap_or_default(),
                })
            })
            .fetch_all(&self.pool)
            .await
            .map_err(failed("looking for open transactions"))
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        let (finding, go_on) = schema(self.check().await, &self.tables.drops(Postgres::NAME))?;
        let mut findings = vec![finding];
        if !go_on {
            return Ok(findings);
        }
        findings.extend([
            made("server", self.server().await),
            made("tls", self.tls().await),
            made("indexes", self.indexes().await),
            made("storage", self.storage().await),
            made("privileges", self.privileges().await),
            made("listen", Ok(self.hears_itself().await)),
            made("transactions", self.long_transactions().await),
            made("vacuum", self.dead_rows().await),
            made("replication", self.slots().await),
        ]);
        Ok(findings)
    }
}

impl PostgresStore {
    /// Whether it can be written to, and keeps what it has confirmed.
    async fn server(&self) -> Result<Finding> {
        const SERVER: &str = "
            select current_setting('server_version'), pg_is_in_recovery(),
                   current_setting('fsync') = 'off' or current_setting('synchronous_commit') = 'off'";

        let (version, standby, forgetful): (String, bool, bool) = sqlx::query_as(SERVER)
            .fetch_one(&self.pool)
            .await
            .map_err(failed("asking for the server"))?;
        if standby {
            let text = format!("PostgreSQL {version} is a standby: nothing can be written here");
            return Ok(Finding::new("server", Level::Problem, text).mended_by(
                "give the URL of the primary, for example with target_session_attrs=read-write",
            ));
        }
        if forgetful {
            let text = format!(
                "PostgreSQL {version} confirms commits before they are on disk: a crash can lose \
                 the last ones, events with them"
            );
            return Ok(Finding::new("server", Level::Warning, text)
                .mended_by("alter system set synchronous_commit = on (and fsync = on)"));
        }
        Ok(Finding::ok("server", format!("PostgreSQL {version}, schema version {VERSION}")))
    }

    /// Whether others can listen, or answer in the server's place.
    async fn tls(&self) -> Result<Finding> {
        const ENCRYPTED: &str =
            "select coalesce((select ssl from pg_stat_ssl where pid = pg_backend_pid()), false)";

        // Behind a pooler the server speaks of the pooler's connection; a mode that insists on TLS does not.
        let options = self.pool.connect_options();
        let mut protection = insisted(&options);
        if matches!(options.get_ssl_mode(), PgSslMode::Prefer) {
            let encrypted: bool = sqlx::query_scalar(ENCRYPTED)
                .fetch_one(&self.pool)
                .await
                .map_err(failed("asking for TLS"))?;
            protection = if encrypted { Protection::Encrypted } else { Protection::None };
        }
        let finding = tls_of(&options, protection);
        Ok(match &self.listen_url {
            Some(url) => with_listening(finding, &connect_options(url.expose())?),
            None => finding,
        })
    }

    async fn indexes(&self) -> Result<Finding> {
        const VALID: &str = "
            select c.relname, i.indisvalid
            from pg_index i join pg_class c on c.oid = i.indexrelid
            where c.relname = any($1) and c.relnamespace = (
                select relnamespace from pg_class where oid = to_regclass($2)
            )";

        let ours: Vec<(String, String)> = MIGRATIONS
            .into_iter()
            .flat_map(|(_, migration)| statements(migration))
            .filter_map(|statement| {
                let name = self.tables.fill(index_name(&statement)?);
                Some((name, self.tables.fill(&statement)))
            })
            .collect();
        let names: Vec<&str> = ours.iter().map(|(name, _)| name.as_str()).collect();
        let found: Vec<(String, bool)> = sqlx::query_as(VALID)
            .bind(&names)
            .bind(self.tables.fill("{events}"))
            .fetch_all(&self.pool)
            .await
            .map_err(failed("looking for indexes"))?;
        let missing: Vec<(String, String)> = ours
            .into_iter()
            .filter_map(|(name, statement)| match found.iter().find(|(there, _)| *there == name) {
                Some((_, true)) => None,
                Some((_, false)) => {
                    let index = self.beside_events(&name);
                    Some((name, format!("reindex index concurrently {index}")))
                }
                None => {
                    let statement = statement.split_whitespace().collect::<Vec<_>>().join(" ");
                    let statement = statement
                        .replace("index if not exists", "index concurrently if not exists");
                    Some((name, statement))
                }
            })
            .collect();
        Ok(indexes(&missing))
    }

    /// Whether fillfactor and autovacuum are set as the migrations set them.
    async fn storage(&self) -> Result<Finding> {
        const OPTIONS: &str =
            "select coalesce(reloptions, '{}') from pg_class where oid = to_regclass($1)";

        let (mut odd, mut mend) = (Vec::new(), Vec::new());
        for statement in MIGRATIONS.into_iter().flat_map(|(_, migration)| statements(migration)) {
            let Some((table, wanted)) = table_options(&statement) else { continue };
            let table = self.tables.fill(table);
            let options: Option<Vec<String>> = sqlx::query_scalar(OPTIONS)
                .bind(&table)
                .fetch_optional(&self.pool)
                .await
                .map_err(failed("reading storage settings"))?;
            let set = options.unwrap_or_default();
            let missing: Vec<String> =
                wanted.into_iter().filter(|option| !set.contains(option)).collect();
            if !missing.is_empty() {
                odd.push(format!("{table} ({})", missing.join(", ")));
                mend.push(format!("alter table {table} set ({})", missing.join(", ")));
            }
        }
        if odd.is_empty() {
            let text = "fillfactor and autovacuum are as the migrations set them";
            return Ok(Finding::ok("storage", text));
        }
        let text = format!("set otherwise than by the migrations: {}", odd.join("; "));
        Ok(Finding::new("storage", Level::Warning, text).mended_by(mend.join("; ")))
    }

    async fn privileges(&self) -> Result<Finding> {
        let account: String = sqlx::query_scalar("select quote_ident(current_user)")
            .fetch_one(&self.pool)
            .await
            .map_err(failed("reading privileges"))?;
        // Without it the server refuses to speak of the tables.
        if let Some(schema) = self.tables.name().schema()
            && !self.may_use(schema).await?
        {
            let lacking = format!("usage on schema {schema}");
            return Ok(privileges::<Postgres>(&[lacking], &[], &account));
        }
        let mut relay = self.lacking(&RELAY_NEEDS).await?;
        relay.extend(self.lacking(&PURGE_NEEDS).await?);
        let operator = self.lacking(&OPERATOR_NEEDS).await?;
        Ok(privileges::<Postgres>(&relay, &operator, &account))
    }

    async fn may_use(&self, schema: &str) -> Result<bool> {
        const MAY: &str =
            "select has_schema_privilege(oid, 'usage') from pg_namespace where nspname = $1";

        let may: Option<bool> = sqlx::query_scalar(MAY)
            .bind(schema)
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("reading privileges"))?;
        Ok(may.unwrap_or(true))
    }

    /// What of it the account may not do.
    async fn lacking(&self, needs: &[Need]) -> Result<Vec<String>> {
        const MAY: &str = "
            select coalesce(has_table_privilege(t, $2) or case
                when cardinality($3) > 0 then (
                    select bool_and(has_column_privilege(t, c, $2)) from unnest($3) c
                )
                when $2 <> 'delete' then has_any_column_privilege(t, $2)
            end, false)
            from (select to_regclass($1)::oid as t) n";

        let mut lacking = Vec::new();
        for (table, wanted) in needs {
            let table = self.tables.fill(table);
            let mut missing = Vec::new();
            for (privilege, columns) in *wanted {
                let may: bool = sqlx::query_scalar(MAY)
                    .bind(&table)
                    .bind(privilege)
                    .bind(columns)
                    .fetch_one(&self.pool)
                    .await
                    .map_err(failed("reading privileges"))?;
                if !may {
                    missing.push(grantable(privilege, columns));
                }
            }
            if !missing.is_empty() {
                lacking.push(format!("{} on {table}", missing.join(", ")));
            }
        }
        Ok(lacking)
    }

    /// Sends a notification to itself: what stands in between may lose it.
    async fn hears_itself(&self) -> Finding {
        let channel = format!("posthaste_doctor_{:016x}", Uuid::now_v7().as_u128() as u64);
        let heard = async {
            let mut listener = self.listener(&channel).await?;
            sqlx::query("select pg_notify($1, '')")
                .bind(&channel)
                .execute(&self.pool)
                .await
                .map_err(failed("notifying"))?;
            listener.recv().await.map_err(failed("listening"))
        };
        let trouble = match tokio::time::timeout(LISTEN_DEADLINE, heard).await {
            Ok(Ok(_)) => return Finding::ok("listen", "a notification to ourselves arrives"),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("a notification to ourselves did not arrive in {LISTEN_DEADLINE:?}"),
        };
        let text = format!(
            "LISTEN does not work through this connection ({trouble}); relays find events by \
             polling, later than they could"
        );
        Finding::new("listen", Level::Warning, text).mended_by(
            "listen_url = \"postgres://…\" in the configuration: a direct connection, not through a pooler",
        )
    }

    /// Whether a transaction has been open for so long that vacuum cannot do its work.
    async fn long_transactions(&self) -> Result<Finding> {
        const LONG: &str = "
            select count(*), max(extract(epoch from clock_timestamp() - xact_start)::bigint),
                   (array_agg(concat_ws(' ', usename, nullif(application_name, '')) order by xact_start))[1],
                   (array_agg(pid order by xact_start))[1]
            from pg_stat_activity
            where datname = current_database() and pid <> pg_backend_pid()
              and backend_type = 'client backend'
              and xact_start < clock_timestamp() - $1 * interval '1 second'";
        const HIDDEN: &str = "
            select not pg_has_role(current_user, 'pg_read_all_stats', 'usage') and exists (
                select from pg_stat_activity
                where datname = current_database() and usename <> current_user
            )";

        let (count, age, who, pid): (i64, Option<i64>, Option<String>, Option<i32>) =
            sqlx::query_as(LONG)
                .bind(LONG_TRANSACTION.as_secs() as i64)
                .fetch_one(&self.pool)
                .await
                .map_err(failed("looking for long transactions"))?;
        if let (Some(age), Some(pid)) = (age, pid) {
            let text = format!(
                "{count} transactions are open for more than {} minutes, the oldest for {} minutes \
                 ({}, pid {pid}): what was sent cannot be vacuumed meanwhile",
                LONG_TRANSACTION.as_secs() / 60,
                age / 60,
                who.unwrap_or_default()
            );
            return Ok(Finding::new("transactions", Level::Warning, text)
                .mended_by(format!("select pg_terminate_backend({pid})")));
        }
        let hidden: bool = sqlx::query_scalar(HIDDEN)
            .fetch_one(&self.pool)
            .await
            .map_err(failed("looking for long transactions"))?;
        if hidden {
            let text = "no transaction of ours is open for long; those of other accounts cannot be \
                        seen";
            return Ok(Finding::new("transactions", Level::Note, text)
                .mended_by("grant pg_read_all_stats to the account"));
        }
        Ok(Finding::ok("transactions", "no transaction is open for long"))
    }

    /// How many rows of the events are dead, by the server's own statistics.
    async fn dead_rows(&self) -> Result<Finding> {
        const DEAD: &str = "
            select n_live_tup, n_dead_tup, pg_size_pretty(pg_total_relation_size(relid))
            from pg_stat_user_tables where relid = to_regclass($1)";

        let table = self.tables.fill("{events}");
        let (live, dead, size): (i64, i64, String) = sqlx::query_as(DEAD)
            .bind(&table)
            .fetch_one(&self.pool)
            .await
            .map_err(failed("reading statistics"))?;
        let text = format!("{table} has about {live} rows and {dead} dead ones, {size} in all");
        if dead > 50_000 && dead > live {
            return Ok(Finding::new("vacuum", Level::Warning, text)
                .mended_by(format!("vacuum (analyze) {table}")));
        }
        Ok(Finding::ok("vacuum", text))
    }

    /// Whether a replication slot that nobody reads fills the disk.
    async fn slots(&self) -> Result<Finding> {
        const SLOTS: &str = "
            select slot_name::text, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint
            from pg_replication_slots
            where not active and restart_lsn is not null
              and pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) > $1
            order by 2 desc";

        let slots: Vec<(String, i64)> = sqlx::query_as(SLOTS)
            .bind(WAL_LIMIT)
            .fetch_all(&self.pool)
            .await
            .map_err(failed("reading replication slots"))?;
        let Some((name, held)) = slots.first() else {
            return Ok(Finding::ok("replication", "no slot that nobody reads holds back WAL"));
        };
        let text = format!(
            "replication slot {name} is read by nobody and holds back {} MiB of WAL; the disk can \
             fill up",
            held >> 20
        );
        Ok(Finding::new("replication", Level::Warning, text)
            .mended_by(format!("select pg_drop_replication_slot('{}')", name.replace('\'', "''"))))
    }

    /// The name with the schema of the events.
    fn beside_events(&self, name: &str) -> String {
        match self.tables.name().schema() {
            Some(schema) => format!("{schema}.{name}"),
            None => name.to_owned(),
        }
    }
}

/// The table that a statement makes, and the storage settings it gives it.
fn table_options(statement: &str) -> Option<(&str, Vec<String>)> {
    let rest = statement.strip_prefix("create table if not exists ")?;
    let (_, options) = rest.rsplit_once(") with (")?;
    let options = options.trim_end().strip_suffix(')')?.split(',');
    let options = options.map(|option| option.split_whitespace().collect()).collect();
    Some((rest.split_whitespace().next()?, options))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_settings_are_known_from_the_migrations() {
        let tables: Vec<String> = MIGRATIONS
            .into_iter()
            .flat_map(|(_, migration)| statements(migration))
            .filter_map(|statement| {
                let (table, options) = table_options(&statement)?;
                assert!(options[0].starts_with("fillfactor="), "{options:?}");
                Some(table.to_owned())
            })
            .collect();
        assert_eq!(tables, ["{events}", "{shards}", "{relays}"]);
    }

    #[test]
    fn where_is_listened_counts_for_tls() {
        let with = |url: &str| {
            let fine = Finding::ok("tls", "fine");
            with_listening(fine, &connect_options(url).unwrap())
        };
        for url in [
            "postgres://name:word@127.0.0.1/shop",
            "postgres://name:word@db.example/shop?sslmode=verify-full",
        ] {
            assert_eq!(with(url).text, "fine", "{url}");
        }
        let found = with("postgres://name:word@db.example/shop?sslmode=require");
        assert_eq!(found.level, Level::Warning);
        assert!(found.text.starts_with("listen_url: TLS: not verified"), "{}", found.text);
        let found = with("postgres://name:word@db.example/shop");
        assert!(found.text.starts_with("listen_url: TLS: none"), "{}", found.text);
    }
}
