//! Finding events without writing: ahead of the cursor, by their time, by their lane.

use std::time::Duration;

use async_trait::async_trait;
use posthaste_core::{
    Key, Result,
    store::{Blocked, Due, Fetched, HotRow, Page, Position, Read},
};
use sqlx::{Row, sqlite::SqliteRow};

use super::{
    SqliteStore, list,
    row::{COLUMNS, FOR_EVER, columns, fetched, fetched_all, now, unsettled},
};
use crate::failure::failed;

#[async_trait]
impl Read for SqliteStore {
    async fn read_ahead(&self, shards: &[u16], from: &Position, limit: usize) -> Result<Page> {
        const AHEAD: &str = concat!(
            "select ",
            columns!(),
            " from {events}
            where sequence > ?1 and not_before is null and ",
            unsettled!(),
            "
            order by sequence
            limit ?2"
        );

        if !shards.contains(&0) {
            return Ok(nothing(from));
        }
        // Asked before: when the read finds nothing more, the cursor may pass everything up to it,
        // or delayed events would be walked over again with every poll.
        let newest = self.newest().await?;
        let rows = sqlx::query(self.tables.sql(AHEAD))
            .bind(from.sequence)
            .bind(limit as i64)
            .fetch_all(&self.reader)
            .await
            .map_err(failed("reading ahead"))?;
        let rows = fetched_all(&rows).map_err(failed("reading ahead"))?;
        let caught_up = rows.len() < limit;
        let last = rows.last().map_or(from.sequence, |row| row.sequence);
        let sequence = if caught_up { last.max(newest) } else { last };
        Ok(Page { rows, position: Position { sequence, context: from.context.clone() }, caught_up })
    }

    /// There are none: with one writer at a time, a sequence is visible before the next is taken.
    async fn read_late(&self, _shards: &[u16], from: &Position, _limit: usize) -> Result<Page> {
        Ok(nothing(from))
    }

    async fn read_due(&self, shards: &[u16], limit: usize) -> Result<Due> {
        const DUE: &str = concat!(
            "select ",
            columns!(),
            " from {events}
            where not_before <= ",
            now!(),
            " and ",
            unsettled!(),
            "
            order by not_before
            limit ?1"
        );
        const NEXT: &str = concat!(
            "select not_before - ",
            now!(),
            " from {events}
            where not_before > ",
            now!(),
            " and not_before < ?1 and ",
            unsettled!(),
            "
            order by not_before
            limit 1"
        );

        if !shards.contains(&0) {
            return Ok(Due { rows: Vec::new(), next: None });
        }
        let rows = sqlx::query(self.tables.sql(DUE))
            .bind(limit as i64)
            .fetch_all(&self.reader)
            .await
            .map_err(failed("reading due events"))?;
        let next: Option<i64> = sqlx::query_scalar(self.tables.sql(NEXT))
            .bind(FOR_EVER)
            .fetch_optional(&self.reader)
            .await
            .map_err(failed("reading due events"))?;
        Ok(Due {
            rows: fetched_all(&rows).map_err(failed("reading due events"))?,
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

    async fn read_held(&self, destination: &str, key: Key, limit: usize) -> Result<Vec<Fetched>> {
        const HELD: &str = concat!(
            "select ",
            columns!(),
            " from {events}
            where lane = ?1 and wait = 'held' and destination = ?2 and ",
            unsettled!(),
            "
            order by sequence
            limit ?3"
        );

        sqlx::query(self.tables.sql(HELD))
            .bind(key.0)
            .bind(destination)
            .bind(limit as i64)
            .try_map(|row: SqliteRow| fetched(&row))
            .fetch_all(&self.reader)
            .await
            .map_err(failed("reading held events"))
    }

    async fn read_blockers(&self, limit: usize) -> Result<Vec<Fetched>> {
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

        sqlx::query(self.tables.sql(BLOCKERS))
            .bind(limit as i64)
            .try_map(|row: SqliteRow| fetched(&row))
            .fetch_all(&self.reader)
            .await
            .map_err(failed("reading what blocks lanes"))
    }

    async fn read_blocked(&self, shards: &[u16]) -> Result<Vec<Blocked>> {
        const BLOCKED: &str = "
            select destination, lane, max(wait in ('retry', 'suspect')), max(wait = 'parked')
            from {events}
            where lane is not null and destination is not null
              and sent_at is null and discarded_at is null
              and (dead_at is null or wait = 'parked')
            group by lane, destination";

        if !shards.contains(&0) {
            return Ok(Vec::new());
        }
        sqlx::query(self.tables.sql(BLOCKED))
            .try_map(|row: SqliteRow| {
                Ok(Blocked {
                    destination: row.try_get(0)?,
                    key: Key(row.try_get(1)?),
                    waiting: row.try_get::<Option<bool>, _>(2)?.unwrap_or(false),
                    parked: row.try_get::<Option<bool>, _>(3)?.unwrap_or(false),
                })
            })
            .fetch_all(&self.reader)
            .await
            .map_err(failed("reading blocked lanes"))
    }
}

impl SqliteStore {
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
