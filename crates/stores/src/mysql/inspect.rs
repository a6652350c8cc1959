//! Looking at an outbox. Nothing here writes, and nothing walks over what was sent.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use posthaste_core::{
    Result, Status,
    store::{
        Attempt, Counts, EventPage, EventRecord, Filter, Inspect, Overdue, RelayRecord, Report,
        ShardRecord, TenantCounts,
    },
};
use sqlx::{MySql, Row, mysql::MySqlArguments, mysql::MySqlRow, query::Query};
use uuid::Uuid;

use super::{
    MySqlStore,
    row::{columns, listed_columns, record, record_columns, status, timestamp},
    tracker::from_first,
};
use crate::{
    failure::failed,
    window::{self, WINDOW, times, window},
};

/// Whether `e` matches a filter that [`with_filter`] has bound.
macro_rules! matches_filter {
    () => {
        concat!(
            "cast(e.event_type as binary) <=> cast(coalesce(?, e.event_type) as binary)
             and cast(e.aggregate_type as binary) <=> cast(coalesce(?, e.aggregate_type) as binary)
             and cast(e.aggregate_id as binary) <=> cast(coalesce(?, e.aggregate_id) as binary)
             and cast(e.tenant as binary) <=> cast(coalesce(?, e.tenant) as binary)
             and e.created_at >= timestampadd(microsecond, ?, timestamp'1970-01-01 00:00:00')
             and e.created_at < timestampadd(microsecond, ?, timestamp'1970-01-01 00:00:00')
             and coalesce(?, 'any') in ('any', ",
            status!(),
            ")"
        )
    };
}

pub(super) use matches_filter;

/// The first and the last times that a filter can mean, in microseconds since 1970.
const TIMES: (i64, i64) = (-30_000_000_000_000_000, 253_402_300_799_000_000);

/// A query with the filter as its next seven values.
pub(super) fn with_filter<'q>(
    query: Query<'q, MySql, MySqlArguments>,
    filter: &'q Filter,
) -> Query<'q, MySql, MySqlArguments> {
    query
        .bind(filter.event_type.as_deref())
        .bind(filter.aggregate_type.as_deref())
        .bind(filter.aggregate_id.as_deref())
        .bind(filter.tenant.as_deref())
        .bind(filter.created_from.map_or(TIMES.0, Timestamp::as_microsecond))
        .bind(filter.created_before.map_or(TIMES.1, Timestamp::as_microsecond))
        .bind(filter.status.map(Status::as_str))
}

/// A page out of a window: the rows of it that match; and how far it went.
macro_rules! page {
    ($window:expr) => {
        (
            concat!(
                "select ",
                listed_columns!(),
                " from (",
                $window,
                ") w straight_join {events} e on e.sequence = w.sequence where ",
                matches_filter!(),
                " order by e.sequence desc limit ?"
            ),
            concat!("select count(*), min(sequence) from (", $window, ") w"),
        )
    };
}

/// Whether the row in the middle of `lo` and `hi` was written before a time.
macro_rules! middle_is_earlier {
    () => {
        "(select e.created_at < timestampadd(microsecond, ?, timestamp'1970-01-01 00:00:00')
          from {events} e where e.sequence >= (lo + hi) div 2 order by e.sequence limit 1)"
    };
}

#[async_trait]
impl Inspect for MySqlStore {
    async fn event(&self, id: Uuid) -> Result<Option<EventRecord>> {
        const EVENT: &str =
            concat!("select ", record_columns!(), " from {events} e where e.event_id = ?");

        let count = self.shard_count().await?;
        sqlx::query(self.tables.sql(EVENT))
            .bind(id.hyphenated().to_string())
            .try_map(|row: MySqlRow| record(&row, count))
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
        const DEAD: (&str, &str) = page!(
            "select sequence from {events} force index ({bare}_dead_idx)
            where dead_at is not null and sequence < ? and sequence >= ?
            order by sequence desc limit ?"
        );
        const RETRY: (&str, &str) = page!(
            "select sequence from (
                select sequence from {events} force index ({bare}_due_idx)
                where not_before is not null
                union
                select sequence from {events}
                where attempts > 0
                    and sequence > (select min(mark) from {shards} where tenant_group = '')
            ) b
            where sequence < ? and sequence >= ?
            order by sequence desc limit ?"
        );
        const OF_AGGREGATE: (&str, &str) = page!(
            "select sequence from {events}
            where aggregate_id = ? and sequence < ? and sequence >= ?
            order by sequence desc limit ?"
        );
        const ANY: (&str, &str) = page!(
            "select sequence from {events} force index (primary)
            where sequence < ? and sequence >= ?
            order by sequence desc limit ?"
        );

        let (rows_of, extent_of) = match (filter.status, &filter.aggregate_id) {
            (_, Some(_)) => OF_AGGREGATE,
            (Some(Status::Dead), None) if self.few_are_dead().await? => DEAD,
            (Some(Status::Retry), None) if self.few_wait().await? => RETRY,
            _ => ANY,
        };
        let (from, until) = self.sequences_between(filter).await?;
        let size = window(filter, limit);
        let window = |template: &'static str| {
            let query = sqlx::query(self.tables.sql(template));
            let query = match &filter.aggregate_id {
                Some(id) => query.bind(id),
                None => query,
            };
            query.bind(before.map_or(until, |before| before.min(until))).bind(from).bind(size)
        };
        let count = self.shard_count().await?;
        let events = with_filter(window(rows_of), filter)
            .bind(limit as u64)
            .try_map(|row: MySqlRow| record(&row, count))
            .fetch_all(&self.pool)
            .await
            .map_err(failed("listing events"))?;
        let extent: (i64, Option<i64>) = window(extent_of)
            .try_map(|row: MySqlRow| Ok((row.try_get(0)?, row.try_get(1)?)))
            .fetch_one(&self.pool)
            .await
            .map_err(failed("listing events"))?;
        Ok(window::page(events, limit, extent, size))
    }

    async fn attempts(&self, sequence: i64) -> Result<Vec<Attempt>> {
        const ATTEMPTS: &str = "
            select attempt, timestampdiff(microsecond, '1970-01-01', at), relay, destination, error
            from {attempts}
            where sequence = ?
            order by replay, attempt";

        sqlx::query(self.tables.sql(ATTEMPTS))
            .bind(sequence)
            .try_map(|row: MySqlRow| {
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
            where h.sequence = ? and h.wait = 'held' and h.sent_at is null and h.dead_at is null
              and h.discarded_at is null
              and e.sequence <> h.sequence and e.wait in ('retry', 'parked', 'suspect')
              and e.sent_at is null and e.discarded_at is null
            order by e.sequence
            limit 1"
        );

        let count = self.shard_count().await?;
        sqlx::query(self.tables.sql(HELD_BY))
            .bind(sequence)
            .try_map(|row: MySqlRow| record(&row, count))
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
            select shard, case when locked_until > utc_timestamp(6) then locked_by end,
                case when locked_until > utc_timestamp(6)
                    then timestampdiff(microsecond, '1970-01-01', locked_until) end,
                epoch, mark
            from {shards}
            where tenant_group = ''
            order by shard";

        sqlx::query(self.tables.sql(SHARDS))
            .try_map(|row: MySqlRow| {
                Ok(ShardRecord {
                    shard: row.try_get::<i32, _>(0)? as u16,
                    locked_by: row.try_get(1)?,
                    locked_until: row.try_get::<Option<i64>, _>(2)?.and_then(timestamp),
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
            select name, owner, ordering, version,
                timestampdiff(microsecond, '1970-01-01', started_at),
                timestampdiff(microsecond, '1970-01-01', heartbeat_at),
                timestampadd(microsecond, lease_ms * 1000, heartbeat_at) > utc_timestamp(6), breakers
            from {relays}
            order by owner";

        sqlx::query(self.tables.sql(RELAYS))
            .try_map(|row: MySqlRow| {
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

impl MySqlStore {
    /// Whether so few are dead that they can be sorted: there is no index of them alone by sequence.
    async fn few_are_dead(&self) -> Result<bool> {
        const MORE: &str = "
            select exists (select 1 from {events} force index ({bare}_dead_idx)
                where dead_at is not null limit 1 offset ?)";

        self.is_not(MORE, WINDOW).await
    }

    /// The same for those that wait with a time of their own, or are above the marks.
    async fn few_wait(&self) -> Result<bool> {
        let mark = from_first(self.lowest_mark(&self.pool).await?);
        Ok(!self.extent(&mark, WINDOW as u64 / 10).await?.cut)
    }

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
        const FIRST: &str = concat!(
            "with recursive b(lo, hi) as (
                select coalesce((select min(sequence) from {events}), 0),
                       coalesce((select max(sequence) from {events}), 0) + 1
                union all
                select case when ",
            middle_is_earlier!(),
            " then (lo + hi) div 2 + 1 else lo end,
                       case when ",
            middle_is_earlier!(),
            " then hi else (lo + hi) div 2 end
                from b where lo < hi
            )
            select max(lo) from b"
        );

        let at = at.as_microsecond().clamp(TIMES.0, TIMES.1);
        sqlx::query_scalar(self.tables.sql(FIRST))
            .bind(at)
            .bind(at)
            .fetch_one(&self.pool)
            .await
            .map_err(failed("looking for a time"))
    }
}

pub(super) fn time(micros: i64) -> sqlx::Result<Timestamp> {
    Timestamp::from_microsecond(micros).map_err(|error| sqlx::Error::Decode(Box::new(error)))
}
