//! Finding events without writing: ahead of the cursor, by their time, by their lane.

use std::{collections::HashSet, sync::atomic::Ordering, time::Duration};

use async_trait::async_trait;
use futures_util::{StreamExt, stream::BoxStream};
use posthaste_core::{
    Key, Result,
    store::{
        Blocked, BlockedLanes, Due, DueKey, Fetched, HotRow, LaneKey, LeaveOut, Limit, Page,
        Position, Read, Wait,
    },
};
use sqlx::{Row, sqlite::SqliteRow};

use super::{
    SqliteStore, list,
    row::{COLUMNS, FOR_EVER, columns, fetched, fetched_all, fresh, now, unsettled},
};
use crate::{
    beyond::{self, Found, LOOK_ROWS},
    failure::failed,
    key::KeyColumns,
};

/// Most rows that a read ahead walks over: what is settled already costs time, too.
const WINDOW: i64 = 50_000;

/// Whether a retry or suspect, and whether a dead event, blocks the lane `l`.
macro_rules! blocked_by {
    () => {
        "exists (
            select 1 from {events} e
            where e.lane = l.lane and e.destination = l.destination
              and e.wait in ('retry', 'suspect') and e.sent_at is null
              and e.discarded_at is null and e.dead_at is null
        ),
        exists (
            select 1 from {events} e
            where e.lane = l.lane and e.destination = l.destination and e.wait = 'parked'
              and e.sent_at is null and e.discarded_at is null
        )"
    };
}

/// Whether an event of the lane `l` is held.
macro_rules! held_in {
    () => {
        "exists (
            select 1 from {events} e
            where e.lane = l.lane and e.destination = l.destination and e.wait = 'held'
              and e.sent_at is null and e.discarded_at is null and e.dead_at is null
        )"
    };
}

#[async_trait]
impl Read for SqliteStore {
    async fn read_on(&self, shards: &[u16], from: &Position, limit: Limit) -> Result<Page> {
        const ON: &str = concat!(
            "select ",
            columns!(),
            " from {events}
            where sequence > ?1 and sequence <= ?2 and ",
            fresh!(),
            "
            order by sequence
            limit ?3"
        );

        if !shards.contains(&0) {
            return Ok(nothing(from));
        }
        // Asked before: when the read finds nothing more, the cursor may pass everything up to it,
        // or delayed events would be walked over again with every poll.
        let (newest, edge) = self.range(from.sequence).await?;
        let query =
            sqlx::query(self.tables.sql(ON)).bind(from.sequence).bind(edge).bind(limit.rows as i64);
        let (rows, cut) =
            page(query.fetch(&self.reader), limit, fetched).await.map_err(failed("reading on"))?;
        let last = rows.last().map_or(from.sequence, |row| row.sequence);
        let sequence = if cut { last } else { last.max(newest.min(edge)) };
        let position = Position { sequence, context: from.context.clone() };
        Ok(Page { rows, position, caught_up: !cut && edge >= newest })
    }

    /// There are none: with one writer at a time, a sequence is visible before the next is taken.
    async fn read_late(&self, _shards: &[u16], from: &Position, _limit: Limit) -> Result<Page> {
        Ok(nothing(from))
    }

    fn join(&self, positions: &[Position]) -> Position {
        let first = positions.iter().min_by_key(|position| position.sequence);
        first.cloned().unwrap_or_default()
    }

    async fn read_due_but(
        &self,
        shards: &[u16],
        after: Option<DueKey>,
        limit: Limit,
        but: &LeaveOut,
    ) -> Result<Due> {
        // A walk over so many settled events ends, and its last row says where the next one begins.
        const WALK: &str = concat!(
            "select not_before, sequence from {events}
            where not_before <= ",
            now!(),
            " and (not_before, sequence) > (?1, ?2)
            order by not_before, sequence
            limit 1 offset 4999"
        );
        const DUE: &str = concat!(
            "select ",
            columns!(),
            " from {events}
            where not_before <= ",
            now!(),
            " and (not_before, sequence) > (?1, ?2) and (not_before, sequence) <= (?4, ?5) and ",
            unsettled!(),
            " and (wait is null or not (wait = 'replay' and ?6
                or wait in ('retry', 'suspect')
                and coalesce(destination in (select value from json_each(?7)), 0)))
            order by not_before, sequence
            limit ?3"
        );
        const NEXT: &str = concat!(
            "select not_before - ",
            now!(),
            " from {events}
            where not_before > ",
            now!(),
            " and not_before < ?1 and not_before <= coalesce((
                select not_before from {events}
                where not_before > ",
            now!(),
            "
                order by not_before
                limit 1 offset 4999
            ), ?1) and ",
            unsettled!(),
            "
            order by not_before
            limit 1"
        );
        const DOING: &str = "reading due events";

        if !shards.contains(&0) {
            return Ok(Due { rows: Vec::new(), more: None, next: None });
        }
        let after = after.unwrap_or(DueKey { at: i64::MIN, sequence: 0 });
        let walk_end = sqlx::query(self.tables.sql(WALK))
            .bind(after.at)
            .bind(after.sequence)
            .try_map(|row: SqliteRow| Ok(DueKey { at: row.try_get(0)?, sequence: row.try_get(1)? }))
            .fetch_optional(&self.reader)
            .await
            .map_err(failed(DOING))?;
        let up_to = walk_end.unwrap_or(DueKey { at: i64::MAX, sequence: i64::MAX });
        let query = sqlx::query(self.tables.sql(DUE))
            .bind(after.at)
            .bind(after.sequence)
            .bind(limit.rows as i64)
            .bind(up_to.at)
            .bind(up_to.sequence)
            .bind(but.replays)
            .bind(list(but.destinations.iter().cloned()));
        let mut last = None;
        let (rows, cut) = page(query.fetch(&self.reader), limit, |row| {
            let event = fetched(row)?;
            last = Some(DueKey { at: row.try_get(18)?, sequence: event.sequence });
            Ok(event)
        })
        .await
        .map_err(failed(DOING))?;
        let next: Option<i64> = sqlx::query_scalar(self.tables.sql(NEXT))
            .bind(FOR_EVER)
            .fetch_optional(&self.reader)
            .await
            .map_err(failed(DOING))?;
        Ok(Due {
            rows,
            more: if cut { last } else { walk_end },
            next: next.map(|micros| Duration::from_micros(micros.max(0) as u64)),
        })
    }

    async fn read_hot(&self, sequences: &[i64], from: &Position) -> Result<Vec<HotRow>> {
        // Between cursor and row the aggregate's index is walked: a few rows, or the answer is that
        // the store cannot tell. Nothing becomes visible behind the cursor.
        const HOT: &str = concat!(
            "select ",
            columns!(),
            ", case
                when ordering_key <> '' then null
                when ordering_key is null and aggregate_id is not null then (
                    select case when count(*) >= 20 then null else json_group_array(near.sequence)
                        filter (
                            where near.ordering_key is null
                              and near.aggregate_type = e.aggregate_type
                              and coalesce(near.tenant, '') = coalesce(e.tenant, '')
                              and near.sent_at is null and near.dead_at is null
                              and near.discarded_at is null
                        ) end
                    from (
                        select * from {events} p
                        where p.aggregate_id = e.aggregate_id
                          and p.sequence > ?2 and p.sequence < e.sequence
                        limit 20
                    ) near
                )
                else '[]'
            end
            from {events} e
            where sequence in (select value from json_each(?1)) and not_before is null and ",
            unsettled!(),
            "
            order by sequence"
        );

        sqlx::query(self.tables.sql(HOT))
            .bind(list(sequences.iter().copied()))
            .bind(from.sequence)
            .try_map(|row: SqliteRow| {
                let previous: Option<String> = row.try_get(COLUMNS)?;
                Ok(HotRow {
                    row: fetched(&row)?,
                    previous: previous.and_then(|list| serde_json::from_str(&list).ok()),
                })
            })
            .fetch_all(&self.reader)
            .await
            .map_err(failed("reading hot events"))
    }

    async fn read_beyond(
        &self,
        shards: &[u16],
        from: &Position,
        but: &HashSet<Key>,
        limit: Limit,
    ) -> Result<Vec<i64>> {
        const DOING: &str = "reading beyond the cursor";
        const BEYOND: &str = concat!(
            "select sequence, length(payload) + coalesce(length(headers), 0),
                ordering_key, tenant, aggregate_type, aggregate_id
            from {events}
            where sequence > ?1 and sequence <= ?2 and ",
            fresh!(),
            "
            order by sequence
            limit ?3"
        );

        if !shards.contains(&0) {
            return Ok(Vec::new());
        }
        let after = self.beyond.load(Ordering::Relaxed).max(from.sequence);
        let (newest, edge) = self.range(after).await?;
        let found = sqlx::query(self.tables.sql(BEYOND))
            .bind(after)
            .bind(edge)
            .bind(LOOK_ROWS as i64)
            .try_map(|row: SqliteRow| {
                // Whatever a writer gave: what makes no sense as a key follows no other.
                let text = |column| row.try_get::<Option<&str>, usize>(column).unwrap_or_default();
                let key = KeyColumns {
                    ordering_key: text(2),
                    tenant: text(3),
                    aggregate_type: text(4).unwrap_or_default(),
                    aggregate_id: text(5),
                };
                Ok(Found::new(row.try_get(0)?, row.try_get(1).unwrap_or_default(), key))
            })
            .fetch_all(&self.reader)
            .await
            .map_err(failed(DOING))?;
        Ok(beyond::page(&found, but, limit, &self.beyond, edge, newest))
    }

    async fn read_held(
        &self,
        destination: &str,
        key: Key,
        after: i64,
        limit: Limit,
    ) -> Result<Vec<Fetched>> {
        const HELD: &str = concat!(
            "select ",
            columns!(),
            " from {events}
            where lane = ?1 and destination = ?2 and wait = 'held' and sequence > ?3 and ",
            unsettled!(),
            "
            order by sequence
            limit ?4"
        );

        let query = sqlx::query(self.tables.sql(HELD))
            .bind(key.0)
            .bind(destination)
            .bind(after)
            .bind(limit.rows as i64);
        let read = page(query.fetch(&self.reader), limit, fetched).await;
        Ok(read.map_err(failed("reading held events"))?.0)
    }

    async fn read_lane(
        &self,
        lane: &LaneKey,
        after: Option<(Wait, i64)>,
        limit: Limit,
    ) -> Result<Vec<Fetched>> {
        const LANE: &str = concat!(
            "select ",
            columns!(),
            " from {events}
            where lane = ?1 and destination = ?2 and (wait, sequence) > (?3, ?4)
              and wait in ('held', 'parked', 'retry', 'suspect')
              and sent_at is null and discarded_at is null
              and (dead_at is null or wait = 'parked')
            order by wait, sequence
            limit ?5"
        );

        let (wait, sequence) = after.map_or(("", 0), |(wait, at)| (wait.as_str(), at));
        let query = sqlx::query(self.tables.sql(LANE))
            .bind(lane.key.0)
            .bind(&lane.destination)
            .bind(wait)
            .bind(sequence)
            .bind(limit.rows as i64);
        let read = page(query.fetch(&self.reader), limit, fetched).await;
        Ok(read.map_err(failed("reading a lane"))?.0)
    }

    async fn read_blockers(&self, limit: Limit) -> Result<Vec<Fetched>> {
        const BLOCKERS: &str = concat!(
            "select ",
            columns!(),
            " from {events}
            where lane is not null and wait in ('retry', 'suspect') and not_before <= ",
            now!(),
            " and ",
            unsettled!(),
            "
            order by lane, sequence
            limit ?1"
        );

        let query = sqlx::query(self.tables.sql(BLOCKERS)).bind(limit.rows as i64);
        let read = page(query.fetch(&self.reader), limit, fetched).await;
        Ok(read.map_err(failed("reading what blocks lanes"))?.0)
    }

    async fn read_blocked(
        &self,
        shards: &[u16],
        after: Option<&LaneKey>,
        limit: usize,
    ) -> Result<BlockedLanes> {
        // From lane to lane by the index: a lane with a million held events is one step.
        const NEXT: &str = concat!(
            "select l.destination, l.lane, ",
            blocked_by!(),
            " from (
                select lane, destination from {events}
                where lane is not null and destination is not null
                  and (lane, destination) > (?1, ?2)
                order by lane, destination
                limit 1
            ) l"
        );

        if !shards.contains(&0) {
            return Ok(BlockedLanes::default());
        }
        let first = LaneKey { key: Key(i64::MIN), destination: String::new() };
        let mut after = after.cloned().unwrap_or(first);
        let mut lanes: Vec<(Blocked, bool)> = Vec::new();
        while lanes.len() < limit {
            let next = sqlx::query(self.tables.sql(NEXT))
                .bind(after.key.0)
                .bind(&after.destination)
                .try_map(|row: SqliteRow| blocked(&row))
                .fetch_optional(&self.reader)
                .await
                .map_err(failed("reading blocked lanes"))?;
            let Some(lane) = next else { break };
            after = lane.lane();
            lanes.push((lane, true));
        }
        Ok(BlockedLanes::walked(lanes, limit))
    }

    async fn still_blocked(&self, lanes: &[LaneKey]) -> Result<Vec<Blocked>> {
        const STILL: &str = concat!(
            "select l.destination, l.lane, ",
            blocked_by!(),
            ", ",
            held_in!(),
            " from (select value ->> 0 as lane, value ->> 1 as destination from json_each(?1)) l"
        );

        let asked = lanes.iter().map(|lane| serde_json::json!([lane.key.0, lane.destination]));
        let found: Vec<(Blocked, bool)> = sqlx::query(self.tables.sql(STILL))
            .bind(list(asked))
            .try_map(|row: SqliteRow| Ok((blocked(&row)?, row.try_get(4)?)))
            .fetch_all(&self.reader)
            .await
            .map_err(failed("looking at blocked lanes"))?;
        let still = |(lane, held): &(Blocked, bool)| lane.waiting || lane.parked || *held;
        Ok(found.into_iter().filter(still).map(|(lane, _)| lane).collect())
    }
}

fn blocked(row: &SqliteRow) -> sqlx::Result<Blocked> {
    Ok(Blocked {
        destination: row.try_get(0)?,
        key: Key(row.try_get(1)?),
        waiting: row.try_get(2)?,
        parked: row.try_get(3)?,
    })
}

/// Takes rows as they come until there are enough. Says whether there may be more.
async fn page(
    mut rows: BoxStream<'_, sqlx::Result<SqliteRow>>,
    limit: Limit,
    mut decode: impl FnMut(&SqliteRow) -> sqlx::Result<Fetched>,
) -> sqlx::Result<(Vec<Fetched>, bool)> {
    let (mut page, mut bytes) = (Vec::new(), 0_usize);
    while let Some(row) = rows.next().await {
        let row = decode(&row?)?;
        bytes = bytes.saturating_add(row.bytes);
        page.push(row);
        if page.len() >= limit.rows || bytes >= limit.bytes {
            return Ok((page, true));
        }
    }
    Ok((page, false))
}

impl SqliteStore {
    /// The newest sequence, and how far one read may walk beyond `from`.
    async fn range(&self, from: i64) -> Result<(i64, i64)> {
        const RANGE: &str = "
            select coalesce((select max(sequence) from {events}), 0),
                   coalesce((select sequence from {events} where sequence > ?1
                             order by sequence limit 1), ?1)";

        let (newest, first): (i64, i64) = sqlx::query_as(self.tables.sql(RANGE))
            .bind(from)
            .fetch_one(&self.reader)
            .await
            .map_err(failed("reading the newest sequence"))?;
        Ok((newest, first.saturating_add(WINDOW)))
    }

    /// The newest sequence: everything up to it is visible to every read that begins from now on.
    pub(super) async fn newest(&self) -> Result<i64> {
        const NEWEST: &str = "select coalesce(max(sequence), 0) from {events}";

        sqlx::query_scalar(self.tables.sql(NEWEST))
            .fetch_one(&self.reader)
            .await
            .map_err(failed("reading the newest sequence"))
    }
}

fn nothing(from: &Position) -> Page {
    Page { rows: Vec::new(), position: from.clone(), caught_up: true }
}

/// The rows in the order of their sequence, which `returning` does not promise.
pub(super) fn in_order(rows: &[SqliteRow]) -> sqlx::Result<Vec<Fetched>> {
    let mut rows = fetched_all(rows)?;
    rows.sort_unstable_by_key(|row| row.sequence);
    Ok(rows)
}
