//! Finding events, without writing.
//!
//! A row that was written without the hash of its key has no shard in the database: statements
//! take it along, and its shard is computed here.

use std::time::Duration;

use async_trait::async_trait;
use posthaste_core::{
    Key, Result,
    store::{Blocked, Due, Fetched, HotRow, Page, Position, Read},
};
use sqlx::{MySql, Row, mysql::MySqlArguments};

use super::{
    LIST, MySqlStore,
    gaps::{Gap, Gaps},
    padded,
    row::{COLUMNS, columns, fetched, fetched_all, for_ever, fresh, unsettled},
};
use crate::failure::failed;

/// Most numbers that one look takes in.
pub(super) const LOOK_LIMIT: usize = 10_000;

/// Most looks in one read over what is settled already.
const LOOKS: usize = 100;

#[async_trait]
impl Read for MySqlStore {
    async fn read_ahead(&self, shards: &[u16], from: &Position, limit: usize) -> Result<Page> {
        let mut page = Page { rows: Vec::new(), position: from.clone(), caught_up: true };
        if shards.is_empty() || limit == 0 {
            return Ok(page);
        }
        let mut gaps = Gaps::parse(&from.context);
        // As many numbers as should hold `limit` rows of these shards.
        let share = usize::from(self.shard_count().await?).div_ceil(shards.len());
        let mut window = limit.saturating_mul(share).clamp(limit.min(LOOK_LIMIT), LOOK_LIMIT);
        for _ in 0..LOOKS {
            let behind = page.position.sequence;
            let mut look = self.look(behind, i64::MAX, window).await?;
            let Some(&horizon) = look.present.last() else {
                page.caught_up = true;
                break;
            };
            let rows = self.rows_between(shards, behind, horizon, limit).await?;
            page.caught_up = look.present.len() < window && rows.end.is_none();
            page.position.sequence = rows.end.unwrap_or(horizon);
            look.present.retain(|&number| number <= page.position.sequence);
            gaps.add_missing(behind, &look.present, look.at);
            page.rows = rows.rows;
            if page.caught_up || !page.rows.is_empty() {
                break;
            }
            window = LOOK_LIMIT;
        }
        page.position.context = gaps.to_string();
        Ok(page)
    }

    async fn read_late(&self, shards: &[u16], from: &Position, limit: usize) -> Result<Page> {
        let mut page = Page { rows: Vec::new(), position: from.clone(), caught_up: true };
        let mut gaps = Gaps::parse(&from.context);
        let Some(oldest) = gaps.oldest() else {
            return Ok(page);
        };
        let closed = self.closed(oldest).await?;
        let behind = |gap: Gap| {
            (gap.first <= from.sequence).then(|| Gap { last: gap.last.min(from.sequence), ..gap })
        };
        let visible = self.probe(gaps.iter().filter_map(behind)).await?;
        let mut visible: Vec<i64> = visible.into_iter().map(|(sequence, _)| sequence).collect();
        page.caught_up = visible.len() <= limit;
        visible.truncate(limit);
        page.rows = self.rows_of(shards, &visible).await?;
        if page.caught_up {
            gaps.remove(&visible);
            gaps.close(closed);
            page.position.context = gaps.to_string();
        }
        Ok(page)
    }

    async fn read_due(&self, shards: &[u16], limit: usize) -> Result<Due> {
        if shards.is_empty() {
            return Ok(Due { rows: Vec::new(), next: None });
        }
        let count = self.shard_count().await?;
        let mut rows = Vec::new();
        let mut passed = 0;
        loop {
            let query = sqlx::query(self.listing(DUE, shards.len()));
            let found = bind_shards(query, shards)
                .bind(limit as u64)
                .bind(passed as u64)
                .fetch_all(&self.pool)
                .await
                .map_err(failed("reading due events"))?;
            let page = fetched_all(&found, count).map_err(failed("reading due events"))?;
            rows.extend(page.into_iter().filter(|row| shards.contains(&row.shard)));
            passed += found.len();
            // Others' rows without a shard must not hide ours behind them.
            if found.len() < limit || rows.len() >= limit {
                break;
            }
        }
        rows.truncate(limit);
        let next: Option<i64> =
            bind_shards(sqlx::query(self.listing(NEXT_DUE, shards.len())), shards)
                .fetch_optional(&self.pool)
                .await
                .and_then(|row| row.map(|row| row.try_get(0)).transpose())
                .map_err(failed("reading due events"))?;
        Ok(Due { rows, next: next.map(|micros| Duration::from_micros(micros.max(0) as u64)) })
    }

    async fn read_hot(&self, sequences: &[i64], from: &Position) -> Result<Vec<HotRow>> {
        let count = self.shard_count().await?;
        let mut hot = Vec::with_capacity(sequences.len());
        for sequences in sequences.chunks(LIST) {
            let mut query = sqlx::query(self.listing(HOT, sequences.len())).bind(from.sequence);
            for sequence in padded(sequences) {
                query = query.bind(sequence);
            }
            let rows = query.fetch_all(&self.pool).await.map_err(failed("reading hot events"))?;
            for row in &rows {
                let previous: Result<Option<String>, _> = row.try_get(COLUMNS);
                hot.push(HotRow {
                    row: fetched(row, count).map_err(failed("reading hot events"))?,
                    previous: previous.map_err(failed("reading hot events"))?.map(numbers),
                });
            }
        }
        // Asked after the rows: whatever was committed before one of them was enqueued is seen. A
        // gap that is filled by something fresh may be of the same key.
        let gaps = Gaps::parse(&from.context);
        let filled = self.probe(gaps.iter()).await?;
        if filled.iter().any(|(_, fresh)| *fresh) {
            for row in hot.iter_mut().filter(|hot| hot.row.key.is_some()) {
                row.previous = None;
            }
        }
        Ok(hot)
    }

    async fn read_held(&self, destination: &str, key: Key, limit: usize) -> Result<Vec<Fetched>> {
        let count = self.shard_count().await?;
        sqlx::query(self.tables.sql(HELD))
            .bind(key.0)
            .bind(destination)
            .bind(limit as u64)
            .fetch_all(&self.pool)
            .await
            .and_then(|rows| fetched_all(&rows, count))
            .map_err(failed("reading held events"))
    }

    async fn read_blockers(&self, limit: usize) -> Result<Vec<Fetched>> {
        let count = self.shard_count().await?;
        sqlx::query(self.tables.sql(BLOCKERS))
            .bind(limit as u64)
            .fetch_all(&self.pool)
            .await
            .and_then(|rows| fetched_all(&rows, count))
            .map_err(failed("reading what blocks lanes"))
    }

    async fn read_blocked(&self, shards: &[u16]) -> Result<Vec<Blocked>> {
        if shards.is_empty() {
            return Ok(Vec::new());
        }
        let mut query = sqlx::query_as(self.listing(BLOCKED, shards.len()));
        for shard in padded(shards) {
            query = query.bind(shard);
        }
        let lanes: Vec<(String, i64, bool, bool)> =
            query.fetch_all(&self.pool).await.map_err(failed("reading blocked lanes"))?;
        let blocked = |(destination, lane, waiting, parked)| Blocked {
            destination,
            key: Key(lane),
            waiting,
            parked,
        };
        Ok(lanes.into_iter().map(blocked).collect())
    }
}

const AHEAD: &str = concat!(
    "select ",
    columns!(),
    " from {events} e force index (primary)
    where (e.shard in ({list}) or e.shard is null) and e.sequence > ? and e.sequence <= ? and ",
    fresh!(),
    " order by e.sequence limit ?"
);

const LATE: &str = concat!(
    "select ",
    columns!(),
    " from {events} e where e.sequence in ({list}) and ",
    fresh!(),
    " order by e.sequence"
);

const DUE: &str = concat!(
    "select ",
    columns!(),
    " from {events} e
    where (e.shard in ({list}) or e.shard is null) and e.not_before <= utc_timestamp(6) and ",
    unsettled!(),
    " order by e.not_before, e.sequence limit ? offset ?"
);

const NEXT_DUE: &str = concat!(
    "select timestampdiff(microsecond, utc_timestamp(6), e.not_before)
    from {events} e
    where (e.shard in ({list}) or e.shard is null) and e.not_before > utc_timestamp(6)
        and e.not_before < ",
    for_ever!(),
    " and ",
    unsettled!(),
    " order by e.not_before limit 1"
);

/// The row before it of the same aggregate, whatever its state, is one step in the index; whether
/// that one is settled is asked afterwards, or this would walk through all that was sent. Texts are
/// compared as bytes: to the collation, which both servers know, a space at the end is nothing. Only
/// when ordered by the whole index does MySQL walk it backwards instead of sorting.
/// Between cursor and row the aggregate's index is walked: a few rows, or the answer is that the
/// store cannot tell.
const HOT: &str = concat!(
    "select ",
    columns!(),
    ", case
        when length(e.ordering_key) > 0 then null
        when e.ordering_key is null and e.aggregate_id is not null then (
            select case when count(*) >= 20 then null else coalesce(group_concat(
                case when p.sent_at is null and p.dead_at is null and p.discarded_at is null
                    and cast(p.aggregate_id as binary) = cast(e.aggregate_id as binary)
                    and cast(p.aggregate_type as binary) = cast(e.aggregate_type as binary)
                    and cast(coalesce(p.tenant, '') as binary)
                        = cast(coalesce(e.tenant, '') as binary)
                    and p.ordering_key is null
                then p.sequence end), '') end
            from {events} p
            where p.aggregate_id = e.aggregate_id and p.sequence > ? and p.sequence < e.sequence)
        else ''
    end
    from {events} e
    where e.sequence in ({list}) and ",
    fresh!(),
    " order by e.sequence"
);

const HELD: &str = concat!(
    "select ",
    columns!(),
    " from {events} e where e.lane = ? and e.destination = ? and e.wait = 'held' and ",
    unsettled!(),
    " order by e.sequence limit ?"
);

const BLOCKERS: &str = concat!(
    "select ",
    columns!(),
    " from {events} e force index ({bare}_lane_idx)
    where e.lane is not null and e.wait in ('retry', 'suspect')
        and e.not_before <= utc_timestamp(6) and ",
    unsettled!(),
    " order by e.lane, e.sequence limit ?"
);

/// A parked event is dead and yet holds its lane. Whoever wrote the lane wrote the shard as well.
const BLOCKED: &str = "
    select destination, lane, max(wait in ('retry', 'suspect')), max(wait = 'parked')
    from {events}
    where lane is not null and destination is not null and wait is not null
        and sent_at is null and discarded_at is null and shard in ({list})
    group by destination, lane";

/// Rows of some shards, and where the search ended when it ended early.
struct Rows {
    rows: Vec<Fetched>,
    end: Option<i64>,
}

/// The numbers of a list that the database wrote.
fn numbers(list: String) -> Vec<i64> {
    list.split(',').filter_map(|number| number.parse().ok()).collect()
}

type Query<'q> = sqlx::query::Query<'q, MySql, MySqlArguments>;

fn bind_shards<'q>(mut query: Query<'q>, shards: &[u16]) -> Query<'q> {
    for shard in padded(shards) {
        query = query.bind(shard);
    }
    query
}

impl MySqlStore {
    async fn rows_between(
        &self,
        shards: &[u16],
        behind: i64,
        horizon: i64,
        limit: usize,
    ) -> Result<Rows> {
        let count = self.shard_count().await?;
        let rows = bind_shards(sqlx::query(self.listing(AHEAD, shards.len())), shards)
            .bind(behind)
            .bind(horizon)
            .bind(limit as u64)
            .fetch_all(&self.pool)
            .await
            .and_then(|rows| fetched_all(&rows, count))
            .map_err(failed("reading ahead"))?;
        let end = rows.last().filter(|_| rows.len() == limit).map(|last| last.sequence);
        Ok(Rows { rows: rows.into_iter().filter(|row| shards.contains(&row.shard)).collect(), end })
    }

    async fn rows_of(&self, shards: &[u16], sequences: &[i64]) -> Result<Vec<Fetched>> {
        let count = self.shard_count().await?;
        let mut late = Vec::new();
        for sequences in sequences.chunks(LIST) {
            let mut query = sqlx::query(self.listing(LATE, sequences.len()));
            for sequence in padded(sequences) {
                query = query.bind(sequence);
            }
            let rows = query
                .fetch_all(&self.pool)
                .await
                .and_then(|rows| fetched_all(&rows, count))
                .map_err(failed("reading late commits"))?;
            late.extend(rows.into_iter().filter(|row| shards.contains(&row.shard)));
        }
        Ok(late)
    }
}
