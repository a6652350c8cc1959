//! PostgreSQL under measurement.

use std::time::{Duration, Instant};

use posthaste::stores::Tables;
use sqlx::{
    AssertSqlSafe, Connection, Encode, PgConnection, Postgres, Row, Type,
    encode::IsNull,
    error::BoxDynError,
    postgres::{PgArgumentBuffer, PgListener, PgPoolOptions, PgRow, PgTypeInfo, types::Oid},
};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::target::{ByHand, Content, Counters, RawRow, Target, raw_row};

/// Events in one insert of a filling.
const CHUNK: u64 = 20_000;

/// How long the server may take to count dead tuples.
const COUNTED_WITHIN: Duration = Duration::from_secs(5);

macro_rules! columns {
    () => {
        "e.sequence, e.event_id, e.event_type, e.aggregate_type, e.aggregate_id, e.tenant, \
         e.topic, e.routing_key, e.schema_id, e.schema_version, e.ordering_key, e.headers, \
         e.payload, e.content_type, e.occurred_at, e.created_at, e.attempts, e.replay, \
         e.not_before, e.wait, e.shard"
    };
}

impl Target for Postgres {
    const HEARS: bool = true;
    const CAN_BE_DEAF: bool = true;

    async fn execute(connection: &mut PgConnection, sql: String) -> sqlx::Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.map(drop)
    }

    async fn version(connection: &mut PgConnection) -> sqlx::Result<String> {
        let version: String = sqlx::query_scalar("select current_setting('server_version')")
            .fetch_one(connection)
            .await?;
        Ok(format!("PostgreSQL {}", version.split(' ').next().unwrap_or_default()))
    }

    fn is_missing_table(error: &sqlx::Error) -> bool {
        error.as_database_error().is_some_and(|e| e.code().is_some_and(|code| code == "42P01"))
    }

    async fn checkpoint(connection: &mut PgConnection) -> sqlx::Result<()> {
        match Self::execute(connection, "checkpoint".to_owned()).await {
            // Not everybody may; then the server's own checkpoints come when they come.
            Err(sqlx::Error::Database(_)) => Ok(()),
            other => other,
        }
    }

    async fn fill(
        connection: &mut PgConnection,
        tables: &Tables,
        content: &Content,
        events: u64,
    ) -> sqlx::Result<()> {
        const FILL: &str = "
            insert into {events} (event_id, event_type, aggregate_type, aggregate_id, payload)
            select ('01980000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid,
                   case (n % $3 + n / $3) % $5 when 0 then 'OrderPlaced' else 'OrderPaid' end,
                   'Order', (n % $3)::text, $4
            from generate_series($1, $2) n";

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

    async fn tidy(connection: &mut PgConnection, tables: &Tables) -> sqlx::Result<()> {
        Self::execute(connection, tables.fill("vacuum analyze {events}")).await
    }

    async fn hold_snapshot(connection: &mut PgConnection) -> sqlx::Result<()> {
        let sql = "begin isolation level repeatable read; select pg_current_snapshot()";
        Self::execute(connection, sql.to_owned()).await
    }

    async fn counters(
        connection: &mut PgConnection,
        tables: &Tables,
        expected: i64,
    ) -> sqlx::Result<Option<Counters>> {
        const WAL: &str = "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::int8";
        // A vacuum takes dead tuples away; what was replaced or deleted stays counted.
        const DEAD: &str = "
            select coalesce(sum(n_tup_upd + n_tup_del), 0)::int8 from pg_stat_user_tables
            where relid in ('{events}'::regclass, '{shards}'::regclass, '{relays}'::regclass)";

        let wal_bytes = sqlx::query_scalar(WAL).fetch_one(&mut *connection).await?;
        // Sessions report what they did up to a second later, and at once when they end.
        let deadline = Instant::now() + COUNTED_WITHIN;
        loop {
            let dead_tuples =
                sqlx::query_scalar(tables.sql(DEAD)).fetch_one(&mut *connection).await?;
            if dead_tuples >= expected || Instant::now() > deadline {
                return Ok(Some(Counters { wal_bytes, dead_tuples }));
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn read(
        connection: &mut PgConnection,
        tables: &Tables,
        after: i64,
        limit: i64,
    ) -> sqlx::Result<Vec<RawRow>> {
        const READ: &str = concat!(
            "select ",
            columns!(),
            " from {events} e
            where e.sequence > $1 and e.sent_at is null
            order by e.sequence
            limit $2"
        );

        let rows = sqlx::query(tables.sql(READ)).bind(after).bind(limit);
        rows.fetch_all(connection).await?.iter().map(decode).collect()
    }

    async fn claim(
        connection: &mut PgConnection,
        tables: &Tables,
        token: &str,
        after: i64,
        limit: i64,
    ) -> sqlx::Result<Vec<RawRow>> {
        const CLAIM: &str = concat!(
            "with picked as materialized (
                select sequence from {events}
                where sequence > $1 and sent_at is null and locked_until is null
                order by sequence
                limit $2
                for update skip locked
            )
            update {events} e
            set locked_by = $3, locked_until = clock_timestamp() + interval '30 seconds'
            from picked
            where e.sequence = picked.sequence
            returning ",
            columns!()
        );

        let rows = sqlx::query(tables.sql(CLAIM)).bind(after).bind(limit).bind(token);
        rows.fetch_all(connection).await?.iter().map(decode).collect()
    }

    async fn mark(
        connection: &mut PgConnection,
        tables: &Tables,
        sequences: &[i64],
        token: Option<&str>,
        delete: bool,
    ) -> sqlx::Result<()> {
        const MARK: &str =
            "update {events} set sent_at = clock_timestamp() where sequence = any($1)";
        const DELETE: &str = "delete from {events} where sequence = any($1)";
        const MARK_CLAIMED: &str = "
            update {events} set sent_at = clock_timestamp(), locked_by = null, locked_until = null
            where sequence = any($1) and locked_by = $2";
        const DELETE_CLAIMED: &str =
            "delete from {events} where sequence = any($1) and locked_by = $2";

        let mark = match (token, delete) {
            (None, false) => sqlx::query(tables.sql(MARK)).bind(sequences),
            (None, true) => sqlx::query(tables.sql(DELETE)).bind(sequences),
            (Some(token), false) => {
                sqlx::query(tables.sql(MARK_CLAIMED)).bind(sequences).bind(token)
            }
            (Some(token), true) => {
                sqlx::query(tables.sql(DELETE_CLAIMED)).bind(sequences).bind(token)
            }
        };
        mark.execute(connection).await.map(drop)
    }

    async fn insert_order(
        connection: &mut PgConnection,
        tables: &Tables,
        id: i64,
    ) -> sqlx::Result<()> {
        const ORDER: &str =
            "insert into {events}_orders (id, customer, total) values ($1, 'customer', 100)";

        sqlx::query(tables.sql(ORDER)).bind(id).execute(connection).await.map(drop)
    }

    async fn insert_event(
        connection: &mut PgConnection,
        tables: &Tables,
        event: &ByHand<'_>,
    ) -> sqlx::Result<()> {
        const INSERT: &str = "
            insert into {events} (event_id, event_type, aggregate_type, aggregate_id, tenant, topic,
                routing_key, schema_id, schema_version, ordering_key, headers, payload,
                content_type, occurred_at, not_before)
            values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
            on conflict (event_id) do nothing
            returning sequence";

        let sequence: Option<i64> = sqlx::query_scalar(tables.sql(INSERT))
            .bind(event.id)
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
            .bind(Micros(event.occurred_at))
            .bind(None::<Micros>)
            .fetch_optional(connection)
            .await?;
        std::hint::black_box(sequence);
        Ok(())
    }

    async fn listen_round_trips(
        url: &str,
        channel: &str,
        count: u64,
        pause: Duration,
    ) -> sqlx::Result<Option<Vec<Duration>>> {
        const NOTIFY: &str = "select pg_notify($1, '')";

        let pool = PgPoolOptions::new().max_connections(1).connect(url).await?;
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.listen(channel).await?;
        let listening = tokio::spawn(async move {
            let mut heard = Vec::with_capacity(count as usize);
            while heard.len() < count as usize {
                listener.recv().await?;
                heard.push(Instant::now());
            }
            Ok::<_, sqlx::Error>(heard)
        });
        let mut notifier = PgConnection::connect(url).await?;
        let mut ticks = interval(pause);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut told = Vec::with_capacity(count as usize);
        for _ in 0..count {
            ticks.tick().await;
            told.push(Instant::now());
            sqlx::query(NOTIFY).bind(channel).execute(&mut notifier).await?;
        }
        let heard = listening.await.map_err(|_| sqlx::Error::WorkerCrashed)??;
        Ok(Some(told.into_iter().zip(heard).map(|(told, heard)| heard - told).collect()))
    }
}

fn decode(row: &PgRow) -> sqlx::Result<RawRow> {
    raw_row!(row, row.try_get_unchecked(1)?)
}

/// A `timestamptz` of microseconds since 1970; the driver's own types of time are features.
struct Micros(i64);

impl Type<Postgres> for Micros {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(1184))
    }
}

impl Encode<'_, Postgres> for Micros {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        Encode::<Postgres>::encode(self.0 - 946_684_800_000_000, buffer)
    }
}
