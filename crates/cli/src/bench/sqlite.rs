//! SQLite under measurement.

use std::{path::PathBuf, str::FromStr, time::Duration};

use posthaste::stores::Tables;
use sqlx::{
    AssertSqlSafe, Row, Sqlite, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteRow},
};

use super::target::{ByHand, Content, Counters, RawRow, Target, raw_row};

/// Events in one transaction of a filling.
const CHUNK: u64 = 20_000;

macro_rules! columns {
    () => {
        "sequence, event_id, event_type, aggregate_type, aggregate_id, tenant, topic, \
         routing_key, schema_id, schema_version, ordering_key, headers, payload, content_type, \
         occurred_at, created_at, attempts, replay, not_before, wait, shard"
    };
}

macro_rules! now {
    () => {
        "cast((julianday('now') - 2440587.5) * 86400000000.0 as integer)"
    };
}

impl Target for Sqlite {
    const HEARS: bool = true;
    // The relay watches the file itself.
    const CAN_BE_DEAF: bool = false;

    fn missing_file(url: &str) -> Option<PathBuf> {
        let options = SqliteConnectOptions::from_str(url).ok()?;
        let file = options.get_filename();
        (!url.contains("mode=memory") && !file.exists()).then(|| file.to_owned())
    }

    async fn execute(connection: &mut SqliteConnection, sql: String) -> sqlx::Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.map(drop)
    }

    async fn version(connection: &mut SqliteConnection) -> sqlx::Result<String> {
        let version: String =
            sqlx::query_scalar("select sqlite_version()").fetch_one(connection).await?;
        Ok(format!("SQLite {version}"))
    }

    fn is_missing_table(error: &sqlx::Error) -> bool {
        error.as_database_error().is_some_and(|e| e.message().starts_with("no such table"))
    }

    async fn checkpoint(connection: &mut SqliteConnection) -> sqlx::Result<()> {
        Self::execute(connection, "pragma wal_checkpoint(truncate)".to_owned()).await
    }

    async fn fill(
        connection: &mut SqliteConnection,
        tables: &Tables,
        content: &Content,
        events: u64,
    ) -> sqlx::Result<()> {
        const FILL: &str = "
            with recursive k (n) as (select ?1 union all select n + 1 from k where n < ?2)
            insert into {events} (event_id, event_type, aggregate_type, aggregate_id, payload)
            select printf('01980000-0000-7000-8000-%012x', n),
                   case (n % ?3 + n / ?3) % ?5 when 0 then 'OrderPlaced' else 'OrderPaid' end,
                   'Order', cast(n % ?3 as text), ?4
            from k";

        for first in (0..events).step_by(CHUNK as usize) {
            sqlx::query(tables.sql(FILL))
                .bind(first as i64)
                .bind((first + CHUNK).min(events) as i64 - 1)
                .bind(content.keys as i64)
                .bind(&content.payload[..])
                .bind(content.types as i64)
                .execute(&mut *connection)
                .await?;
        }
        Ok(())
    }

    async fn tidy(connection: &mut SqliteConnection, tables: &Tables) -> sqlx::Result<()> {
        Self::execute(connection, tables.fill("analyze {events}")).await?;
        Self::checkpoint(connection).await
    }

    async fn hold_snapshot(connection: &mut SqliteConnection) -> sqlx::Result<()> {
        let sql = "begin; select count(*) from sqlite_master";
        Self::execute(connection, sql.to_owned()).await
    }

    async fn counters(
        _: &mut SqliteConnection,
        _: &Tables,
        _: i64,
    ) -> sqlx::Result<Option<Counters>> {
        Ok(None)
    }

    async fn read(
        connection: &mut SqliteConnection,
        tables: &Tables,
        after: i64,
        limit: i64,
    ) -> sqlx::Result<Vec<RawRow>> {
        const READ: &str = concat!(
            "select ",
            columns!(),
            " from {events} where sequence > ?1 and sent_at is null order by sequence limit ?2"
        );

        let rows = sqlx::query(tables.sql(READ)).bind(after).bind(limit);
        rows.fetch_all(connection).await?.iter().map(decode).collect()
    }

    async fn claim(
        connection: &mut SqliteConnection,
        tables: &Tables,
        token: &str,
        after: i64,
        limit: i64,
    ) -> sqlx::Result<Vec<RawRow>> {
        const CLAIM: &str = concat!(
            "update {events} set locked_by = ?3, locked_until = ",
            now!(),
            " + 30000000
            where sequence in (
                select sequence from {events}
                where sequence > ?1 and sent_at is null and locked_until is null
                order by sequence
                limit ?2
            )
            returning ",
            columns!()
        );

        let rows = sqlx::query(tables.sql(CLAIM)).bind(after).bind(limit).bind(token);
        rows.fetch_all(connection).await?.iter().map(decode).collect()
    }

    async fn mark(
        connection: &mut SqliteConnection,
        tables: &Tables,
        sequences: &[i64],
        token: Option<&str>,
        delete: bool,
    ) -> sqlx::Result<()> {
        const MARK: &str = concat!(
            "update {events} set sent_at = ",
            now!(),
            " where sequence in (select value from json_each(?1))"
        );
        const DELETE: &str =
            "delete from {events} where sequence in (select value from json_each(?1))";
        const MARK_CLAIMED: &str = concat!(
            "update {events} set locked_by = null, locked_until = null, sent_at = ",
            now!(),
            " where sequence in (select value from json_each(?1)) and locked_by = ?2"
        );
        const DELETE_CLAIMED: &str = "
            delete from {events}
            where sequence in (select value from json_each(?1)) and locked_by = ?2";

        let list = serde_json::Value::from(sequences).to_string();
        let mark = match (token, delete) {
            (None, false) => sqlx::query(tables.sql(MARK)).bind(list),
            (None, true) => sqlx::query(tables.sql(DELETE)).bind(list),
            (Some(token), false) => sqlx::query(tables.sql(MARK_CLAIMED)).bind(list).bind(token),
            (Some(token), true) => sqlx::query(tables.sql(DELETE_CLAIMED)).bind(list).bind(token),
        };
        mark.execute(connection).await.map(drop)
    }

    async fn insert_order(
        connection: &mut SqliteConnection,
        tables: &Tables,
        id: i64,
    ) -> sqlx::Result<()> {
        const ORDER: &str =
            "insert into {events}_orders (id, customer, total) values (?1, 'customer', 100)";

        sqlx::query(tables.sql(ORDER)).bind(id).execute(connection).await.map(drop)
    }

    async fn insert_event(
        connection: &mut SqliteConnection,
        tables: &Tables,
        event: &ByHand<'_>,
    ) -> sqlx::Result<()> {
        const INSERT: &str = "
            insert into {events} (event_id, event_type, aggregate_type, aggregate_id, tenant, topic,
                routing_key, schema_id, schema_version, ordering_key, headers, payload,
                content_type, occurred_at, not_before)
            values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)
            on conflict (event_id) do nothing
            returning sequence";

        let sequence: Option<i64> = sqlx::query_scalar(tables.sql(INSERT))
            .bind(event.id.hyphenated())
            .bind("OrderPlaced")
            .bind("Order")
            .bind(event.aggregate_id)
            .bind(None::<&str>)
            .bind(None::<&str>)
            .bind(None::<&str>)
            .bind(None::<&str>)
            .bind(1)
            .bind(event.ordering_key)
            .bind(None::<&str>)
            .bind(event.payload)
            .bind("application/json")
            .bind(event.occurred_at)
            .bind(None::<i64>)
            .fetch_optional(connection)
            .await?;
        std::hint::black_box(sequence);
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

fn decode(row: &SqliteRow) -> sqlx::Result<RawRow> {
    raw_row!(row, super::target::uuid(row.try_get_unchecked(1)?)?)
}
