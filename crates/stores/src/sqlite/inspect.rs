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
    AssertSqlSafe, Row, Sqlite,
    query::Query,
    sqlite::{SqliteArguments, SqliteRow},
};
use uuid::Uuid;

use super::{
    SqliteStore,
    row::{
        RECORD_COLUMNS, columns, listed_columns, now, record, record_columns, status, time,
        time_of_ours,
    },
};
use crate::{
    failure::failed,
    window::{self, times, window},
};

/// Whether a row matches a filter that [`with_filter`] has bound.
macro_rules! matches_filter {
    () => {
        concat!(
            "(?1 is null or event_type = ?1)
             and (?2 is null or aggregate_type = ?2)
             and (?3 is null or aggregate_id = ?3)
             and (?4 is null or tenant = ?4)
             and (?5 is null or created_at >= ?5)
             and (?6 is null or created_at < ?6)
             and (?7 is null or ",
            status!(),
            " = ?7)"
        )
    };
}

/// Whether the row in the middle of `lo` and `hi` was written before the time `?1`.
macro_rules! middle_is_earlier {
    () => {
        "(select created_at < ?1 from {events} where sequence >= (lo + hi) / 2
          order by sequence limit 1)"
    };
}

pub(super) use matches_filter;

/// A query with the filter as its first seven values.
pub(super) fn with_filter<'q>(
    sql: AssertSqlSafe<Arc<str>>,
    filter: &Filter,
) -> Query<'q, Sqlite, SqliteArguments> {
    sqlx::query(sql)
        .bind(filter.event_type.as_deref())
        .bind(filter.aggregate_type.as_deref())
        .bind(filter.aggregate_id.as_deref())
        .bind(filter.tenant.as_deref())
        .bind(filter.created_from.map(Timestamp::as_microsecond))
        .bind(filter.created_before.map(Timestamp::as_microsecond))
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
            left join {events} on sequence in (
                select sequence from w where hit order by sequence desc limit ?9
            )
            order by sequence desc"
        )
    };
}

#[async_trait]
impl Inspect for SqliteStore {
    async fn event(&self, id: Uuid) -> Result<Option<EventRecord>> {
        const EVENT: &str =
            concat!("select ", record_columns!(), " from {events} where event_id = ?1");

        sqlx::query(self.tables.sql(EVENT))
            .bind(id.hyphenated())
            .try_map(|row: SqliteRow| record(&row))
            .fetch_optional(&self.reader)
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
                select sequence, (",
            matches_filter!(),
            ") as hit
                from {events} indexed by {bare}_dead_list_idx
                where dead_at is not null and sequence < ?8 and sequence >= ?11
                order by sequence desc
                limit ?10
            ) ",
            page!()
        );
        const RETRY: &str = concat!(
            "with w as materialized (
                select sequence, (",
            matches_filter!(),
            ") as hit
                from {events} indexed by {bare}_retry_list_idx
                where (wait in ('retry', 'suspect') or attempts > 0) and sequence < ?8 and sequence >= ?11
                order by sequence desc
                limit ?10
            ) ",
            page!()
        );
        const OF_AGGREGATE: &str = concat!(
            "with w as materialized (
                select sequence, (",
            matches_filter!(),
            ") as hit
                from {events}
                where aggregate_id = ?3 and sequence < ?8 and sequence >= ?11
                order by sequence desc
                limit ?10
            ) ",
            page!()
        );
        const ANY: &str = concat!(
            "with w as materialized (
                select sequence, (",
            matches_filter!(),
            ") as hit
                from {events}
                where sequence < ?8 and sequence >= ?11
                order by sequence desc
                limit ?10
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
            .fetch_all(&self.reader)
            .await
            .map_err(failed("listing events"))?;
        page(&rows, limit, window).map_err(failed("listing events"))
    }

    async fn attempts(&self, sequence: i64) -> Result<Vec<Attempt>> {
        const ATTEMPTS: &str = "
            select attempt, at, relay, destination, error from {attempts}
            where sequence = ?1
            order by replay, attempt";

        sqlx::query(self.tables.sql(ATTEMPTS))
            .bind(sequence)
            .try_map(|row: SqliteRow| {
                Ok(Attempt {
                    attempt: row.try_get::<i32, _>(0)?.max(0) as u32,
                    at: time_of_ours(&row, 1)?,
                    relay: row.try_get(2)?,
                    destination: row.try_get(3)?,
                    error: row.try_get(4)?,
                })
            })
            .fetch_all(&self.reader)
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
            " from {events}
            where sequence = (
                select e.sequence from {events} h
                join {events} e on e.lane = h.lane and e.destination = h.destination
                where h.sequence = ?1 and h.wait = 'held' and h.sent_at is null
                  and h.dead_at is null and h.discarded_at is null
                  and e.sequence <> h.sequence and e.wait in ('retry', 'parked', 'suspect')
                  and e.sent_at is null and e.discarded_at is null
                order by e.sequence
                limit 1
            )"
        );

        sqlx::query(self.tables.sql(HELD_BY))
            .bind(sequence)
            .try_map(|row: SqliteRow| record(&row))
            .fetch_optional(&self.reader)
            .await
            .map_err(failed("looking for what holds an event"))
    }

    async fn count_sent(&self) -> Result<u64> {
        const SENT: &str = "select count(*) from {events} where sent_at is not null";

        let count: i64 = sqlx::query_scalar(self.tables.sql(SENT))
            .fetch_one(&self.reader)
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
        const SHARDS: &str = concat!(
            "select shard, case when valid then locked_by end,
                   case when valid then locked_until end, epoch, mark
            from (select *, locked_until > ",
            now!(),
            " as valid from {shards})
            where tenant_group = ''
            order by shard"
        );

        sqlx::query(self.tables.sql(SHARDS))
            .try_map(|row: SqliteRow| {
                Ok(ShardRecord {
                    shard: row.try_get(0)?,
                    locked_by: row.try_get(1)?,
                    locked_until: time(&row, 2),
                    epoch: row.try_get(3)?,
                    mark: row.try_get(4)?,
                })
            })
            .fetch_all(&self.reader)
            .await
            .map_err(failed("reading shards"))
    }

    async fn relays(&self) -> Result<Vec<RelayRecord>> {
        const RELAYS: &str = concat!(
            "select name, owner, ordering, version, started_at, heartbeat_at,
                   heartbeat_at + lease_ms * 1000 > ",
            now!(),
            ", breakers
            from {relays}
            order by owner"
        );

        sqlx::query(self.tables.sql(RELAYS))
            .try_map(|row: SqliteRow| {
                let report = Report::parse(row.try_get(7)?);
                Ok(RelayRecord {
                    name: row.try_get(0)?,
                    owner: row.try_get(1)?,
                    ordering: row.try_get(2)?,
                    version: row.try_get(3)?,
                    started_at: time_of_ours(&row, 4)?,
                    heartbeat_at: time_of_ours(&row, 5)?,
                    alive: row.try_get(6)?,
                    breakers: report.breakers,
                    stalls: report.stalls,
                })
            })
            .fetch_all(&self.reader)
            .await
            .map_err(failed("reading relays"))
    }
}

impl SqliteStore {
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
            " then (lo + hi) / 2 + 1 else lo end,
                       case when ",
            middle_is_earlier!(),
            " then hi else (lo + hi) / 2 end
                from b where lo < hi
            )
            select max(lo) from b"
        );

        sqlx::query_scalar(self.tables.sql(FIRST))
            .bind(at.as_microsecond())
            .fetch_one(&self.reader)
            .await
            .map_err(failed("looking for a time"))
    }
}

/// What a window answered.
fn page(rows: &[SqliteRow], limit: usize, window: i64) -> sqlx::Result<EventPage> {
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
