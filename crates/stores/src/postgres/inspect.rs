//! Looking at an outbox. Nothing here writes, and nothing walks over what was sent.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use posthaste_core::{
    Result, Status,
    store::{
        Attempt, Counts, EventPage, EventRecord, Filter, Inspect, Overdue, RelayRecord, Report,
        ShardRecord, TenantCounts,
    },
};
use sqlx::{
    AssertSqlSafe, Postgres, Row,
    postgres::{PgArguments, PgRow},
    query::Query,
};
use uuid::Uuid;

use super::{
    PostgresStore,
    row::{Micros, RECORD_COLUMNS, record},
};
use crate::{
    failure::failed,
    window::{self, times, window},
};

/// Whether `e` matches a filter that [`with_filter`] has bound.
macro_rules! matches_filter {
    () => {
        concat!(
            "($1::text is null or e.event_type = $1)
             and ($2::text is null or e.aggregate_type = $2)
             and ($3::text is null or e.aggregate_id = $3)
             and ($4::text is null or e.tenant = $4)
             and ($5::timestamptz is null or e.created_at >= $5)
             and ($6::timestamptz is null or e.created_at < $6)
             and ($7::text is null or ",
            status!(),
            " = $7)"
        )
    };
}

/// A query with the filter as its first seven values.
pub(super) fn with_filter(
    sql: AssertSqlSafe<Arc<str>>,
    filter: &Filter,
) -> Query<'_, Postgres, PgArguments> {
    sqlx::query(sql)
        .bind(filter.event_type.as_deref())
        .bind(filter.aggregate_type.as_deref())
        .bind(filter.aggregate_id.as_deref())
        .bind(filter.tenant.as_deref())
        .bind(filter.created_from.map(Micros::of))
        .bind(filter.created_before.map(Micros::of))
        .bind(filter.status.map(Status::as_str))
}

/// What makes a page out of the window `w`: the rows that hit, and how far the window went.
macro_rules! page {
    () => {
        concat!(
            "select ",
            listed_columns!(),
            ", s.examined, s.lowest
            from (select count(*) as examined, min(sequence) as lowest from w) s
            left join {events} e on e.sequence = any(array(
                select sequence from w where hit order by sequence desc limit $9
            ))
            order by e.sequence desc"
        )
    };
}

#[async_trait]
impl Inspect for PostgresStore {
    async fn event(&self, id: Uuid) -> Result<Option<EventRecord>> {
        const EVENT: &str =
            concat!("select ", record_columns!(), " from {events} e where e.event_id = $1");

        sqlx::query(self.tables.sql(EVENT))
            .bind(id)
            .try_map(|row: PgRow| record(&row))
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("reading an event"))
    }

    async fn events(
        &self,
        filter: &Filter,
        before: Option<i64>,
        limit: usize,
    ) -> Result<EventPage> {
        const DEAD: &str = concat!(
            "with w as materialized (
                select e.sequence, (",
            matches_filter!(),
            ") as hit
                from {events} e
                where e.dead_at is not null and e.sequence < $8 and e.sequence >= $11
                order by e.sequence desc
                limit $10
            ) ",
            page!()
        );
        const RETRY: &str = concat!(
            "with w as materialized (
                select e.sequence, (",
            matches_filter!(),
            ") as hit
                from {events} e
                where (e.wait in ('retry', 'suspect') or e.attempts > 0) and e.sequence < $8 and e.sequence >= $11
                order by e.sequence desc
                limit $10
            ) ",
            page!()
        );
        const OF_AGGREGATE: &str = concat!(
            "with w as materialized (
                select e.sequence, (",
            matches_filter!(),
            ") as hit
                from {events} e
                where e.aggregate_id = $3 and e.sequence < $8 and e.sequence >= $11
                order by e.sequence desc
                limit $10
            ) ",
            page!()
        );
        const ANY: &str = concat!(
            "with w as materialized (
                select e.sequence, (",
            matches_filter!(),
            ") as hit
                from {events} e
                where e.sequence < $8 and e.sequence >= $11
                order by e.sequence desc
                limit $10
            ) ",
            page!()
        );

        let statement = match (filter.status, &filter.aggregate_id) {
            (_, Some(_)) => OF_AGGREGATE,
            (Some(Status::Dead), None) => DEAD,
            (Some(Status::Retry), None) => RETRY,
            _ => ANY,
        };
        let (from, until) = self.sequences_between(filter).await?;
        let window = window(filter, limit);
        let rows = with_filter(self.tables.sql(statement), filter)
            .bind(before.map_or(until, |before| before.min(until)))
            .bind(limit as i64)
            .bind(window)
            .bind(from)
            .fetch_all(&self.pool)
            .await
            .map_err(failed("listing events"))?;
        page(&rows, limit, window).map_err(failed("listing events"))
    }

    async fn attempts(&self, sequence: i64) -> Result<Vec<Attempt>> {
        const ATTEMPTS: &str = "
            select attempt, at, relay, destination, error from {attempts}
            where sequence = $1
            order by replay, attempt";

        sqlx::query(self.tables.sql(ATTEMPTS))
            .bind(sequence)
            .try_map(|row: PgRow| {
                Ok(Attempt {
                    attempt: row.try_get::<i32, _>(0)?.max(0) as u32,
                    at: time(row.try_get(1)?)?,
                    relay: row.try_get(2)?,
                    destination: row.try_get(3)?,
                    error: row.try_get(4)?,
                })
            })
            .fetch_all(&self.pool)
            .await
            .map_err(failed("reading attempts"))
    }

    async fn counts(&self, cap: u64) -> Result<Counts> {
        self.count(cap).await
    }

    async fn counts_by_tenant(&self, cap: u64) -> Result<TenantCounts> {
        self.count_by_tenant(cap).await
    }

    async fn held_by(&self, sequence: i64) -> Result<Option<EventRecord>> {
        const HELD_BY: &str = concat!(
            "select ",
            listed_columns!(),
            " from {events} h join {events} e on e.lane = h.lane and e.destination = h.destination
            where h.sequence = $1 and h.wait = 'held' and h.sent_at is null and h.dead_at is null
              and h.discarded_at is null
              and e.sequence <> h.sequence and e.wait in ('retry', 'parked', 'suspect')
              and e.sent_at is null and e.discarded_at is null
            order by e.sequence
            limit 1"
        );

        sqlx::query(self.tables.sql(HELD_BY))
            .bind(sequence)
            .try_map(|row: PgRow| record(&row))
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("looking for what holds an event"))
    }

    async fn count_sent(&self) -> Result<u64> {
        const SENT: &str = "select count(*) from {events} where sent_at is not null";

        let count: i64 = sqlx::query_scalar(self.tables.sql(SENT))
            .fetch_one(&self.pool)
            .await
            .map_err(failed("counting sent events"))?;
        Ok(count.max(0) as u64)
    }

    async fn oldest_pending(&self) -> Result<Option<Duration>> {
        self.oldest().await
    }

    async fn overdue(&self, after: i64, examine: usize, age: Duration) -> Result<Overdue> {
        self.walk_overdue(after, examine, age).await
    }

    async fn still_overdue(&self, sequences: &[i64], age: Duration) -> Result<Vec<EventRecord>> {
        self.overdue_of(sequences, age).await
    }

    async fn shards(&self) -> Result<Vec<ShardRecord>> {
        const SHARDS: &str = "
            select shard, case when locked_until > clock_timestamp() then locked_by end,
                   case when locked_until > clock_timestamp() then locked_until end, epoch, mark
            from {shards}
            where tenant_group = ''
            order by shard";

        sqlx::query(self.tables.sql(SHARDS))
            .try_map(|row: PgRow| {
                Ok(ShardRecord {
                    shard: row.try_get::<i32, _>(0)? as u16,
                    locked_by: row.try_get(1)?,
                    locked_until: row.try_get::<Option<Micros>, _>(2)?.and_then(Micros::timestamp),
                    epoch: row.try_get(3)?,
                    mark: row.try_get(4)?,
                })
            })
            .fetch_all(&self.pool)
            .await
            .map_err(failed("reading shards"))
    }

    async fn relays(&self) -> Result<Vec<RelayRecord>> {
        const RELAYS: &str = "
            select name, owner, ordering, version, started_at, heartbeat_at,
                   heartbeat_at + lease_ms * interval '1 millisecond' > clock_timestamp(),
                   breakers
            from {relays}
            order by owner";

        sqlx::query(self.tables.sql(RELAYS))
            .try_map(|row: PgRow| {
                let report = Report::parse(row.try_get(7)?);
                Ok(RelayRecord {
                    name: row.try_get(0)?,
                    owner: row.try_get(1)?,
                    ordering: row.try_get(2)?,
                    version: row.try_get(3)?,
                    started_at: time(row.try_get(4)?)?,
                    heartbeat_at: time(row.try_get(5)?)?,
                    alive: row.try_get(6)?,
                    breakers: report.breakers,
                    stalls: report.stalls,
                })
            })
            .fetch_all(&self.pool)
            .await
            .map_err(failed("reading relays"))
    }
}

impl PostgresStore {
    /// The first sequence of the filter's times, and the first behind them.
    async fn sequences_between(&self, filter: &Filter) -> Result<(i64, i64)> {
        let (from, before) = times(filter);
        let from = match from {
            Some(from) => self.first_since(from).await?,
            None => i64::MIN,
        };
        let until = match before {
            Some(before) => self.first_since(before).await?,
            None => i64::MAX,
        };
        Ok((from, until))
    }

    /// The first sequence that was written at this time or later, by bisection: there is no index on
    /// times.
    async fn first_since(&self, at: Timestamp) -> Result<i64> {
        const FIRST: &str = "
            with recursive b(lo, hi) as (
                select coalesce((select min(sequence) from {events}), 0),
                       coalesce((select max(sequence) from {events}), 0) + 1
                union all
                select case when m.earlier then m.middle + 1 else lo end,
                       case when m.earlier then hi else m.middle end
                from b cross join lateral (
                    select (lo + hi) / 2 as middle, (
                        select e.created_at < $1 from {events} e
                        where e.sequence >= (lo + hi) / 2
                        order by e.sequence
                        limit 1
                    ) as earlier
                ) m
                where lo < hi
            )
            select max(lo) from b";

        sqlx::query_scalar(self.tables.sql(FIRST))
            .bind(Micros::of(at))
            .fetch_one(&self.pool)
            .await
            .map_err(failed("looking for a time"))
    }
}

/// What a window answered.
fn page(rows: &[PgRow], limit: usize, window: i64) -> sqlx::Result<EventPage> {
    let Some(first) = rows.first() else {
        return Ok(EventPage::default());
    };
    let extent = (first.try_get(RECORD_COLUMNS)?, first.try_get(RECORD_COLUMNS + 1)?);
    let mut events = Vec::with_capacity(rows.len());
    for row in rows {
        if row.try_get::<Option<i64>, _>(0)?.is_some() {
            events.push(record(row)?);
        }
    }
    Ok(window::page(events, limit, extent, window))
}

pub(super) fn time(micros: Micros) -> sqlx::Result<Timestamp> {
    Timestamp::from_microsecond(micros.0).map_err(|error| sqlx::Error::Decode(Box::new(error)))
}
