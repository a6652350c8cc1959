//! Looking at an outbox. Nothing here writes, and nothing walks over what was sent.

use std::{collections::HashMap, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use posthaste_core::{
    Result, Status,
    store::{
        Attempt, Counts, EventPage, EventRecord, Filter, Inspect, OpenBreaker, Position,
        RelayRecord, ShardRecord, TenantBacklog, TenantCounts,
    },
};
use sqlx::{MySql, Row, mysql::MySqlArguments, mysql::MySqlRow, query::Query};
use uuid::Uuid;

use super::{
    LIST, MySqlStore,
    gaps::Gaps,
    padded,
    row::{columns, fresh, listed_columns, record, record_columns, status, timestamp, unsettled},
};
use crate::{
    counts::{self, Extent, one_more},
    failure::failed,
    window::{self, WINDOW, examined, times, window},
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

/// What says whether and since when a row is pending. Not all columns: the payload would be copied.
macro_rules! pending_columns {
    () => {
        "sequence, tenant, created_at, attempts, not_before, wait, locked_until, discarded_at, \
         dead_at, sent_at"
    };
}

/// So many rows above a mark.
macro_rules! above {
    () => {
        concat!(
            "select ",
            pending_columns!(),
            " from {events} force index (primary) where sequence > ? order by sequence limit ?"
        )
    };
}

/// So many rows that wait with a time of their own: what waits for a later time or for ever comes
/// first, since what was due long ago has mostly been sent.
macro_rules! waiting {
    () => {
        concat!(
            "select ",
            pending_columns!(),
            " from {events} force index ({bare}_due_idx) where not_before is not null
             order by not_before desc limit ?"
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
        const ABOVE: &str = concat!(
            "select what, count(*) from (select ",
            status!(),
            " as what from (",
            above!(),
            ") e where ",
            unsettled!(),
            " limit ?) b group by 1"
        );
        const BELOW: &str = concat!(
            "select what, count(*) from (select ",
            status!(),
            " as what from (",
            waiting!(),
            ") e where e.sequence <= ? and ",
            unsettled!(),
            " limit ?) b group by 1"
        );
        const LATE: &str = concat!(
            "select ",
            status!(),
            ", count(*) from {events} e where e.sequence in ({list}) and ",
            fresh!(),
            " group by 1"
        );
        const DEAD: &str = "
            select 'dead', count(*) from (
                select 1 from {events} force index ({bare}_dead_idx)
                where dead_at is not null and sent_at is null and discarded_at is null
                limit ?
            ) d";
        let mark = self.lowest_mark().await?;
        let backlog = self.backlog::<String>(&mark, [ABOVE, BELOW, LATE], cap).await?;
        let dead: (String, i64) = sqlx::query_as(self.tables.sql(DEAD))
            .bind(one_more(cap))
            .fetch_one(&self.pool)
            .await
            .map_err(failed("counting events"))?;
        let extent = self.extent(&mark, cap).await?;
        counts::by_status(backlog.into_iter().chain([dead]), extent, cap)
    }

    async fn counts_by_tenant(&self, cap: u64) -> Result<TenantCounts> {
        const ABOVE: &str = concat!(
            "select tenant, count(*) from (select e.tenant from (",
            above!(),
            ") e where ",
            unsettled!(),
            " limit ?) b group by 1"
        );
        const BELOW: &str = concat!(
            "select tenant, count(*) from (select e.tenant from (",
            waiting!(),
            ") e where e.sequence <= ? and ",
            unsettled!(),
            " limit ?) b group by 1"
        );
        const LATE: &str = concat!(
            "select e.tenant, count(*) from {events} e where e.sequence in ({list}) and ",
            fresh!(),
            " group by 1"
        );

        let mark = self.lowest_mark().await?;
        let mut groups: HashMap<Option<String>, u64> = HashMap::new();
        for (tenant, count) in
            self.backlog::<Option<String>>(&mark, [ABOVE, BELOW, LATE], cap).await?
        {
            *groups.entry(tenant).or_default() += count.max(0) as u64;
        }
        let tenants =
            groups.into_iter().map(|(tenant, events)| TenantBacklog { tenant, events }).collect();
        Ok(counts::by_tenant(tenants, self.extent(&mark, cap).await?, cap))
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
        // Fresh rows are as old as their place: sequence and time are taken at the same insert. Of
        // what is due the first and the last are looked at: those between may all have been sent.
        const FRESH: &str = concat!(
            "select timestampdiff(microsecond, e.created_at, utc_timestamp(6)) from (",
            above!(),
            ") e where ",
            fresh!(),
            " order by e.sequence limit 1"
        );
        const DUE: &str = concat!(
            "select max(timestampdiff(microsecond, greatest(e.created_at, e.not_before),
                utc_timestamp(6)))
            from (
                (select ",
            pending_columns!(),
            " from {events} force index ({bare}_due_idx)
                where not_before <= utc_timestamp(6) order by not_before limit ?)
                union all
                (select ",
            pending_columns!(),
            " from {events} force index ({bare}_due_idx)
                where not_before <= utc_timestamp(6) order by not_before desc limit ?)
            ) e
            where ",
            unsettled!()
        );

        let mark = self.lowest_mark().await?;
        let late =
            self.unmarked(&mark.context, mark.sequence).await?.first().map_or(i64::MAX, |s| s - 1);
        let fresh: Option<i64> = sqlx::query_scalar(self.tables.sql(FRESH))
            .bind(mark.sequence.min(late))
            .bind(WINDOW * 2)
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("looking for the oldest pending event"))?;
        let due: Option<i64> = sqlx::query_scalar(self.tables.sql(DUE))
            .bind(WINDOW)
            .bind(WINDOW)
            .fetch_one(&self.pool)
            .await
            .map_err(failed("looking for the oldest pending event"))?;
        Ok(fresh.max(due).map(|micros| Duration::from_micros(micros.max(0) as u64)))
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
                Ok(RelayRecord {
                    name: row.try_get(0)?,
                    owner: row.try_get(1)?,
                    ordering: row.try_get(2)?,
                    version: row.try_get(3)?,
                    started_at: time(row.try_get(4)?)?,
                    heartbeat_at: time(row.try_get(5)?)?,
                    alive: row.try_get(6)?,
                    breakers: OpenBreaker::parse(row.try_get(7)?),
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
        let mark = self.lowest_mark().await?;
        Ok(!self.extent(&mark, WINDOW as u64 / 10).await?.cut)
    }

    async fn extent(&self, mark: &Position, cap: u64) -> Result<Extent> {
        const ABOVE: &str = "select coalesce(max(sequence), 0) - ? from {events}";
        const MORE: &str = "
            select exists (select 1 from {events} force index ({bare}_due_idx)
                where not_before is not null limit 1 offset ?)";

        let above: i64 = sqlx::query_scalar(self.tables.sql(ABOVE))
            .bind(mark.sequence)
            .fetch_one(&self.pool)
            .await
            .map_err(failed("counting events"))?;
        let all_waiting = self.is_not(MORE, examined(cap)).await?;
        Ok(Extent { above, cut: !all_waiting || above > examined(cap) })
    }

    /// Whether a question with a number has the answer no.
    async fn is_not(&self, template: &'static str, number: i64) -> Result<bool> {
        let yes: bool = sqlx::query_scalar(self.tables.sql(template))
            .bind(number)
            .fetch_one(&self.pool)
            .await
            .map_err(failed("counting events"))?;
        Ok(!yes)
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

    /// Counts the backlog: above the lowest mark, below it with a time of its own, and below it
    /// committed so late that no relay has marked it yet.
    async fn backlog<G>(
        &self,
        mark: &Position,
        [above, below, late]: [&'static str; 3],
        cap: u64,
    ) -> Result<Vec<(G, i64)>>
    where
        G: Send + Unpin + for<'r> sqlx::Decode<'r, MySql> + sqlx::Type<MySql>,
    {
        let mut counts = Vec::new();
        for (template, first, second) in
            [(above, mark.sequence, examined(cap)), (below, examined(cap), mark.sequence)]
        {
            let rows: Vec<(G, i64)> = sqlx::query_as(self.tables.sql(template))
                .bind(first)
                .bind(second)
                .bind(one_more(cap))
                .fetch_all(&self.pool)
                .await
                .map_err(failed("counting events"))?;
            counts.extend(rows);
        }
        for sequences in self.unmarked(&mark.context, mark.sequence).await?.chunks(LIST) {
            let mut query = sqlx::query_as(self.listing(late, sequences.len()));
            for sequence in padded(sequences) {
                query = query.bind(sequence);
            }
            let rows: Vec<(G, i64)> =
                query.fetch_all(&self.pool).await.map_err(failed("counting events"))?;
            counts.extend(rows);
        }
        Ok(counts)
    }

    /// Fresh rows at or below the mark that have appeared in its gaps.
    async fn unmarked(&self, context: &str, mark: i64) -> Result<Vec<i64>> {
        let visible = self.probe(Gaps::parse(context).iter()).await?;
        Ok(visible
            .into_iter()
            .filter_map(|(sequence, fresh)| (fresh && sequence <= mark).then_some(sequence))
            .collect())
    }
}

pub(super) fn time(micros: i64) -> sqlx::Result<Timestamp> {
    Timestamp::from_microsecond(micros).map_err(|error| sqlx::Error::Decode(Box::new(error)))
}
