//! Looking at an outbox. Nothing here walks through what was sent, but for `count_sent`.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use posthaste_core::{
    Result, Status,
    store::{Attempt, Counts, EventPage, EventRecord, Filter, Inspect, RelayRecord, ShardRecord},
};
use sqlx::{
    Row, Sqlite,
    query::Query,
    sqlite::{SqliteArguments, SqliteRow},
};
use uuid::Uuid;

use super::{
    SqliteStore,
    row::{fresh, now, record, record_columns, required_time, status, time, unsettled},
};
use crate::failure::failed;

/// Rows that one call of `events` examines at most when no index answers the filter.
const WINDOW: i64 = 10_000;

/// The parts of a [`Filter`] as `?1` to `?7`; see [`bind_filter`].
macro_rules! filter {
    () => {
        concat!(
            "(?1 is null or ?1 = ",
            $crate::sqlite::row::status!(),
            ") and (?2 is null or event_type = ?2)
    and (?3 is null or aggregate_type = ?3) and (?4 is null or aggregate_id = ?4)
    and (?5 is null or tenant = ?5) and (?6 is null or created_at >= ?6)
    and (?7 is null or created_at < ?7)"
        )
    };
}

pub(super) use filter;

/// Binds `?1` to `?7`.
pub(super) fn bind_filter<'q>(
    query: Query<'q, Sqlite, SqliteArguments>,
    filter: &Filter,
) -> Query<'q, Sqlite, SqliteArguments> {
    query
        .bind(filter.status.map(Status::as_str))
        .bind(filter.event_type.as_deref())
        .bind(filter.aggregate_type.as_deref())
        .bind(filter.aggregate_id.as_deref())
        .bind(filter.tenant.as_deref())
        .bind(filter.created_from.map(Timestamp::as_microsecond))
        .bind(filter.created_before.map(Timestamp::as_microsecond))
}

#[async_trait]
impl Inspect for SqliteStore {
    async fn event(&self, id: Uuid) -> Result<Option<EventRecord>> {
        sqlx::query(self.tables.sql(EVENT))
            .bind(id.hyphenated())
            .fetch_optional(&self.reader)
            .await
            .map_err(failed("reading an event"))?
            .as_ref()
            .map(record)
            .transpose()
    }

    async fn events(
        &self,
        filter: &Filter,
        before: Option<i64>,
        limit: usize,
    ) -> Result<EventPage> {
        let listing = || failed("listing events");
        let before = before.unwrap_or(i64::MAX);
        let (statement, edge) = match filter {
            Filter {
                status: Some(Status::Dead),
                ..
            } => (LIST_DEAD, None),
            Filter {
                aggregate_id: Some(_),
                ..
            } => (LIST_AGGREGATE, None),
            Filter {
                status: Some(Status::Retry),
                ..
            } => (LIST_WAITING, None),
            _ => {
                let edge: Option<i64> = sqlx::query_scalar(self.tables.sql(EDGE))
                    .bind(before)
                    .bind(WINDOW - 1)
                    .fetch_optional(&self.reader)
                    .await
                    .map_err(listing())?;
                (LIST_WINDOW, edge)
            }
        };
        let events: Vec<_> = bind_filter(sqlx::query(self.tables.sql(statement)), filter)
            .bind(before)
            .bind(edge.unwrap_or_default())
            .bind(limit as i64)
            .fetch_all(&self.reader)
            .await
            .map_err(listing())?
            .iter()
            .map(record)
            .collect::<Result<_>>()?;
        let next = match events.last() {
            Some(last) if events.len() >= limit => Some(last.sequence),
            _ => edge,
        };
        Ok(EventPage { events, next })
    }

    async fn attempts(&self, sequence: i64) -> Result<Vec<Attempt>> {
        let reading = || failed("reading attempts");
        let attempt = |row: &SqliteRow| {
            Ok(Attempt {
                attempt: row.try_get("attempt").map_err(reading())?,
                at: required_time(row, "at")?,
                relay: row.try_get("relay").map_err(reading())?,
                destination: row.try_get("destination").map_err(reading())?,
                error: row.try_get("error").map_err(reading())?,
            })
        };
        sqlx::query(self.tables.sql(ATTEMPTS))
            .bind(sequence)
            .fetch_all(&self.reader)
            .await
            .map_err(reading())?
            .iter()
            .map(attempt)
            .collect()
    }

    async fn counts(&self) -> Result<Counts> {
        let counting = || failed("counting events");
        let rows = sqlx::query(self.tables.sql(COUNTS))
            .fetch_all(&self.reader)
            .await
            .map_err(counting())?;
        let mut counts = Counts::default();
        for row in &rows {
            let events: i64 = row.try_get("events").map_err(counting())?;
            let status: String = row.try_get("status").map_err(counting())?;
            let count = match status.parse()? {
                Status::New => &mut counts.new,
                Status::Sending => &mut counts.sending,
                Status::Retry => &mut counts.retry,
                Status::Dead => &mut counts.dead,
                Status::Sent | Status::Discarded => continue,
            };
            *count += events as u64;
        }
        Ok(counts)
    }

    async fn counts_by_tenant(&self) -> Result<Vec<(Option<String>, u64)>> {
        let counting = || failed("counting events by tenant");
        sqlx::query(self.tables.sql(COUNTS_BY_TENANT))
            .fetch_all(&self.reader)
            .await
            .map_err(counting())?
            .iter()
            .map(|row| {
                let events: i64 = row.try_get("events").map_err(counting())?;
                Ok((row.try_get("tenant").map_err(counting())?, events as u64))
            })
            .collect()
    }

    async fn count_sent(&self) -> Result<u64> {
        sqlx::query_scalar::<_, i64>(self.tables.sql(COUNT_SENT))
            .fetch_one(&self.reader)
            .await
            .map(|events| events as u64)
            .map_err(failed("counting sent events"))
    }

    async fn oldest_pending(&self) -> Result<Option<Duration>> {
        sqlx::query_scalar::<_, Option<i64>>(self.tables.sql(OLDEST_PENDING))
            .fetch_one(&self.reader)
            .await
            .map(|age| age.map(|age| Duration::from_micros(age.max(0) as u64)))
            .map_err(failed("looking for the oldest pending event"))
    }

    async fn shards(&self) -> Result<Vec<ShardRecord>> {
        let reading = || failed("reading shards");
        let shard = |row: &SqliteRow| {
            Ok(ShardRecord {
                shard: row.try_get("shard").map_err(reading())?,
                locked_by: row.try_get("owner").map_err(reading())?,
                locked_until: time(row, "locked_until"),
                epoch: row.try_get("epoch").map_err(reading())?,
                mark: row.try_get("mark").map_err(reading())?,
            })
        };
        sqlx::query(self.tables.sql(SHARDS))
            .fetch_all(&self.reader)
            .await
            .map_err(reading())?
            .iter()
            .map(shard)
            .collect()
    }

    async fn relays(&self) -> Result<Vec<RelayRecord>> {
        let reading = || failed("reading relays");
        let relay = |row: &SqliteRow| {
            Ok(RelayRecord {
                name: row.try_get("name").map_err(reading())?,
                owner: row.try_get("owner").map_err(reading())?,
                ordering: row.try_get("ordering").map_err(reading())?,
                version: row.try_get("version").map_err(reading())?,
                started_at: required_time(row, "started_at")?,
                heartbeat_at: required_time(row, "heartbeat_at")?,
                alive: row.try_get("alive").map_err(reading())?,
            })
        };
        sqlx::query(self.tables.sql(RELAYS))
            .fetch_all(&self.reader)
            .await
            .map_err(reading())?
            .iter()
            .map(relay)
            .collect()
    }
}

const EVENT: &str = concat!(
    "select ",
    record_columns!(),
    " from {events} where event_id = ?"
);

/// The lists name their index: by itself SQLite would walk the table to save the sort.
const LIST_DEAD: &str = concat!(
    "select ",
    record_columns!(),
    " from {events} indexed by {bare}_dead_idx
where dead_at is not null and sequence < ?8 and sequence >= ?9 and ",
    filter!(),
    " order by sequence desc limit ?10"
);

const LIST_AGGREGATE: &str = concat!(
    "select ",
    record_columns!(),
    " from {events} indexed by {bare}_aggregate_idx
where aggregate_id = ?4 and sequence < ?8 and sequence >= ?9 and ",
    filter!(),
    " order by sequence desc limit ?10"
);

const LIST_WAITING: &str = concat!(
    "select ",
    record_columns!(),
    " from {events} indexed by {bare}_due_idx
where not_before is not null and sequence < ?8 and sequence >= ?9 and ",
    filter!(),
    " order by sequence desc limit ?10"
);

const LIST_WINDOW: &str = concat!(
    "select ",
    record_columns!(),
    " from {events} where sequence < ?8 and sequence >= ?9 and ",
    filter!(),
    " order by sequence desc limit ?10"
);

/// The lowest sequence of a full window.
const EDGE: &str =
    "select sequence from {events} where sequence < ?1 order by sequence desc limit 1 offset ?2";

const ATTEMPTS: &str = "
select attempt, at, relay, destination, error
from {attempts}
where sequence = ?
order by replay, attempt";

/// Three parts that share no row: fresh behind the lowest mark, waiting anywhere, dead.
const COUNTS: &str = concat!(
    "select status, count(*) as events from (
    select ",
    status!(),
    " as status from {events} where sequence > (select min(mark) from {shards}) and ",
    fresh!(),
    " union all
    select ",
    status!(),
    " from {events} indexed by {bare}_due_idx where not_before is not null and ",
    unsettled!(),
    " union all
    select 'dead' from {events} indexed by {bare}_dead_idx where dead_at is not null
) group by status"
);

const COUNTS_BY_TENANT: &str = concat!(
    "select tenant, count(*) as events from (
    select tenant from {events} where sequence > (select min(mark) from {shards}) and ",
    fresh!(),
    " union all
    select tenant from {events} indexed by {bare}_due_idx where not_before is not null and ",
    unsettled!(),
    ") group by tenant order by events desc, tenant"
);

const COUNT_SENT: &str = "select count(*) from {events} where sent_at is not null";

/// Fresh events were created in the order of their sequence: the first is the oldest.
const OLDEST_PENDING: &str = concat!(
    "select ",
    now!(),
    " - min(since) from (
    select * from (select created_at as since from {events}
        where sequence > (select min(mark) from {shards}) and ",
    fresh!(),
    " order by sequence limit 1)
    union all
    select max(created_at, not_before) from {events} where not_before <= ",
    now!(),
    " and (wait is null or wait not in ('held', 'parked')) and ",
    unsettled!(),
    ")"
);

const SHARDS: &str = concat!(
    "select shard, locked_until, epoch, mark, case when locked_until > ",
    now!(),
    " then locked_by end as owner
from {shards}
where tenant_group = ''
order by shard"
);

const RELAYS: &str = concat!(
    "select name, owner, ordering, version, started_at, heartbeat_at,
    heartbeat_at + lease_ms * 1000 > ",
    now!(),
    " as alive
from {relays}
order by owner"
);
