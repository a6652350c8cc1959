//! MySQL and MariaDB under measurement.

use std::{fmt::Write, time::Duration};

use posthaste::{key, stores::Tables};
use sqlx::{AssertSqlSafe, Connection, MySql, MySqlConnection, Row, mysql::MySqlRow};
use uuid::Uuid;

use super::target::{ByHand, Content, Counters, RawRow, Target, raw_row};

macro_rules! columns {
    () => {
        "e.sequence, e.event_id, e.event_type, e.aggregate_type, e.aggregate_id, e.tenant, \
         e.topic, e.routing_key, e.schema_id, e.schema_version, e.ordering_key, e.headers, \
         e.payload, e.content_type, timestampdiff(microsecond, '1970-01-01', e.occurred_at), \
         timestampdiff(microsecond, '1970-01-01', e.created_at), e.attempts, e.replay, \
         timestampdiff(microsecond, '1970-01-01', e.not_before), e.wait, e.shard"
    };
}

impl Target for MySql {
    const HEARS: bool = false;
    const CAN_BE_DEAF: bool = true;

    fn url(url: &str) -> String {
        match url.strip_prefix("mariadb:") {
            Some(rest) => format!("mysql:{rest}"),
            None => url.to_owned(),
        }
    }

    async fn execute(connection: &mut MySqlConnection, sql: String) -> sqlx::Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.map(drop)
    }

    async fn version(connection: &mut MySqlConnection) -> sqlx::Result<String> {
        let version: String = sqlx::query_scalar("select version()").fetch_one(connection).await?;
        let number = version.split('-').next().unwrap_or_default();
        let name = if version.contains("MariaDB") { "MariaDB" } else { "MySQL" };
        Ok(format!("{name} {number}"))
    }

    fn is_missing_table(error: &sqlx::Error) -> bool {
        error.as_database_error().is_some_and(|e| e.code().is_some_and(|code| code == "42S02"))
    }

    /// Nothing that a user could ask for: pages are written all the time.
    async fn checkpoint(_: &mut MySqlConnection) -> sqlx::Result<()> {
        Ok(())
    }

    async fn fill(
        connection: &mut MySqlConnection,
        tables: &Tables,
        content: &Content,
        events: u64,
    ) -> sqlx::Result<()> {
        const KEYS: &str = "
            create temporary table {bare}_keys (
                n bigint not null primary key, hash int unsigned not null
            )";
        const FILL: &str = "
            insert into {events} (event_id, event_type, aggregate_type, aggregate_id, key_hash,
                payload)
            select concat('01980000-0000-7000-8000-', lpad(lower(hex(k.n + ?)), 12, '0')),
                   case (k.n + ?) % ? when 0 then 'OrderPlaced' else 'OrderPaid' end,
                   'Order', k.n, k.hash, ?
            from {bare}_keys k
            where k.n < ?
            order by k.n";

        // The hash of a key is the writer's to compute.
        Self::execute(connection, tables.fill(KEYS)).await?;
        let keys: Vec<u64> = (0..content.keys.min(events)).collect();
        for chunk in keys.chunks(1000) {
            let mut sql = tables.fill("insert into {bare}_keys (n, hash) values ");
            for n in chunk {
                let text = key::derived_key("", "Order", &n.to_string());
                let hash = key::shard_hash(Some(&text), Uuid::nil());
                let comma = if *n == chunk[0] { "" } else { ", " };
                let _ = write!(sql, "{comma}({n}, {hash})");
            }
            Self::execute(connection, sql).await?;
        }
        for (turn, first) in (0..events).step_by(keys.len()).enumerate() {
            sqlx::query(tables.sql(FILL))
                .bind(first)
                .bind(turn as u64)
                .bind(content.types)
                .bind(&content.payload[..])
                .bind(events - first)
                .execute(&mut *connection)
                .await?;
        }
        Self::execute(connection, tables.fill("drop temporary table {bare}_keys")).await
    }

    async fn tidy(connection: &mut MySqlConnection, tables: &Tables) -> sqlx::Result<()> {
        Self::execute(connection, tables.fill("analyze table {events}")).await
    }

    async fn hold_snapshot(connection: &mut MySqlConnection) -> sqlx::Result<()> {
        let sql = "set session transaction isolation level repeatable read; \
                   start transaction with consistent snapshot";
        Self::execute(connection, sql.to_owned()).await
    }

    async fn counters(
        _: &mut MySqlConnection,
        _: &Tables,
        _: i64,
    ) -> sqlx::Result<Option<Counters>> {
        Ok(None)
    }

    async fn read(
        connection: &mut MySqlConnection,
        tables: &Tables,
        after: i64,
        limit: i64,
    ) -> sqlx::Result<Vec<RawRow>> {
        const READ: &str = concat!(
            "select ",
            columns!(),
            " from {events} e
            where e.sequence > ? and e.sent_at is null
            order by e.sequence
            limit ?"
        );

        let rows = sqlx::query(tables.sql(READ)).bind(after).bind(limit);
        rows.fetch_all(connection).await?.iter().map(decode).collect()
    }

    async fn claim(
        connection: &mut MySqlConnection,
        tables: &Tables,
        token: &str,
        after: i64,
        limit: i64,
    ) -> sqlx::Result<Vec<RawRow>> {
        const BEGIN: &str = "set transaction isolation level read committed; start transaction";
        const PICK: &str = concat!(
            "select ",
            columns!(),
            " from {events} e
            where e.sequence > ? and e.sent_at is null and e.locked_until is null
            order by e.sequence
            limit ?
            for update skip locked"
        );
        const TAKE: &str = "
            update {events}
            set locked_by = ?, locked_until = timestampadd(second, 30, utc_timestamp(6))
            where sequence in ({list})";

        let mut transaction = connection.begin_with(BEGIN).await?;
        let rows = sqlx::query(tables.sql(PICK)).bind(after).bind(limit);
        let rows: Vec<RawRow> = rows
            .fetch_all(&mut *transaction)
            .await?
            .iter()
            .map(decode)
            .collect::<sqlx::Result<_>>()?;
        if !rows.is_empty() {
            let mut take = sqlx::query(listing(tables, TAKE, rows.len())).bind(token);
            for row in &rows {
                take = take.bind(row.sequence);
            }
            take.execute(&mut *transaction).await?;
        }
        transaction.commit().await?;
        Ok(rows)
    }

    async fn mark(
        connection: &mut MySqlConnection,
        tables: &Tables,
        sequences: &[i64],
        token: Option<&str>,
        delete: bool,
    ) -> sqlx::Result<()> {
        const MARK: &str =
            "update {events} set sent_at = utc_timestamp(6) where sequence in ({list})";
        const DELETE: &str = "delete from {events} where sequence in ({list})";
        const MARK_CLAIMED: &str = "
            update {events} set sent_at = utc_timestamp(6), locked_by = null, locked_until = null
            where sequence in ({list}) and locked_by = ?";
        const DELETE_CLAIMED: &str =
            "delete from {events} where sequence in ({list}) and locked_by = ?";

        let template = match (token, delete) {
            (None, false) => MARK,
            (None, true) => DELETE,
            (Some(_), false) => MARK_CLAIMED,
            (Some(_), true) => DELETE_CLAIMED,
        };
        let mut mark = sqlx::query(listing(tables, template, sequences.len()));
        for sequence in sequences {
            mark = mark.bind(sequence);
        }
        if let Some(token) = token {
            mark = mark.bind(token);
        }
        mark.execute(connection).await.map(drop)
    }

    async fn insert_order(
        connection: &mut MySqlConnection,
        tables: &Tables,
        id: i64,
    ) -> sqlx::Result<()> {
        const ORDER: &str =
            "insert into {events}_orders (id, customer, total) values (?, 'customer', 100)";

        sqlx::query(tables.sql(ORDER)).bind(id).execute(connection).await.map(drop)
    }

    async fn insert_event(
        connection: &mut MySqlConnection,
        tables: &Tables,
        event: &ByHand<'_>,
    ) -> sqlx::Result<()> {
        const INSERT: &str = "
            insert into {events} (event_id, event_type, aggregate_type, aggregate_id, tenant, topic,
                routing_key, schema_id, schema_version, ordering_key, key_hash, headers, payload,
                content_type, occurred_at, not_before)
            values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
                timestampadd(microsecond, ?, timestamp'1970-01-01 00:00:00'),
                timestampadd(microsecond, ?, timestamp'1970-01-01 00:00:00'))";

        let key = match event.ordering_key {
            Some(_) => None,
            None => Some(key::derived_key("", "Order", event.aggregate_id)),
        };
        let written = sqlx::query(tables.sql(INSERT))
            .bind(event.id.hyphenated().to_string())
            .bind("OrderPlaced")
            .bind("Order")
            .bind(event.aggregate_id)
            .bind(None::<&str>)
            .bind(None::<&str>)
            .bind(None::<&str>)
            .bind(None::<&str>)
            .bind(1)
            .bind(event.ordering_key)
            .bind(key::shard_hash(key.as_deref(), event.id))
            .bind(None::<&str>)
            .bind(event.payload)
            .bind("application/json")
            .bind(event.occurred_at)
            .bind(None::<i64>)
            .execute(connection)
            .await?;
        std::hint::black_box(written.last_insert_id());
        Ok(())
    }

    async fn listen_round_trips(
        _: &str,
        _: &str,
        _: u64,
        _: Duration,
    ) -> sqlx::Result<Option<Vec<Duration>>> {
        Ok(None)
    }
}

fn listing(tables: &Tables, template: &'static str, places: usize) -> AssertSqlSafe<String> {
    let list = vec!["?"; places].join(", ");
    AssertSqlSafe(tables.sql(template).0.replace("{list}", &list))
}

fn decode(row: &MySqlRow) -> sqlx::Result<RawRow> {
    raw_row!(row, super::target::uuid(row.try_get_unchecked(1)?)?)
}
