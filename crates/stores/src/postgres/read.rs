//! Finding events without writing: ahead of the cursor, behind it, by their time, by their lane.

use std::time::Duration;

use async_trait::async_trait;
use posthaste_core::{
    Key, Result,
    store::{Blocked, Due, Fetched, HotRow, Page, Position, Read},
};
use sqlx::{PgConnection, Row, postgres::PgRow};

use super::{
    PostgresStore,
    row::{COLUMNS, fetched, fetched_all},
    shard_numbers,
};
use crate::failure::failed;

/// The present snapshot, and which transactions it can see that `$1`, an earlier one, could not:
/// those of `ended`, and all from `since` to before `until`.
macro_rules! seen {
    () => {
        "with seen as materialized (
            select cur, pg_snapshot_xmax(cur) as until,
                   case when pg_snapshot_xmax(prev) <= pg_snapshot_xmax(cur)
                        then pg_snapshot_xmax(prev) else '0'::xid8 end as since,
                   array(
                       select x from pg_snapshot_xip(prev) x
                       where pg_visible_in_snapshot(x, cur)
                   ) as ended
            from (select pg_current_snapshot() as cur, $1::text::pg_snapshot as prev) s
        )"
    };
}

/// The events at or before `$2` that `seen` tells to look at.
macro_rules! late {
    ($of_shards:literal) => {
        concat!(
            "select e.* from (
                select e.* from unnest((select ended from seen)) x
                cross join lateral (
                    select * from {events} e where e.xid >= x and e.xid <= x offset 0
                ) e
                where e.sequence <= $2 ",
            $of_shards,
            " and e.not_before is null and ",
            unsettled!(),
            " union all
                select * from {events} e
                where e.xid >= (select since from seen) and e.xid < (select until from seen)
                  and e.sequence <= $2 ",
            $of_shards,
            " and e.not_before is null and ",
            unsettled!(),
            ") e
            order by e.sequence"
        )
    };
}

/// What is late and what is ahead of `$2`, of one snapshot. One row is no event: it holds the snapshot
/// and the newest sequence, which every row would have to carry otherwise.
macro_rules! on {
    ($of_shards:literal) => {
        concat!(
            seen!(),
            " select ",
            columns!(),
            ", null::text, null::bigint from (",
            late!($of_shards),
            " limit $4) e
            union all
            select ",
            columns!(),
            ", null, null from (
                select * from {events} e
                where e.sequence > $2 ",
            $of_shards,
            " and e.not_before is null and ",
            unsettled!(),
            " order by e.sequence limit $3
            ) e
            union all
            select ",
            no_columns!(),
            ", cur::text, (select sequence from {events} order by sequence desc limit 1)
            from seen"
        )
    };
}

#[async_trait]
impl Read for PostgresStore {
    async fn read_on(
        &self,
        shards: &[u16],
        from: &Position,
        limit: usize,
        late_limit: usize,
    ) -> Result<Page> {
        const ON: &str = on!("and e.shard = any($5)");
        const ON_IN_ALL: &str = on!("");

        let all = self.all_shards(shards);
        let query = sqlx::query(self.tables.sql(if all { ON_IN_ALL } else { ON }))
            .bind(snapshot(from))
            .bind(from.sequence)
            .bind(limit as i64)
            .bind(late_limit as i64);
        let query = if all { query } else { query.bind(shard_numbers(shards)) };
        let mut session = self.sessions.take("reading on").await?;
        let rows = query.fetch_all(&mut *session).await.map_err(failed("reading on"))?;
        session.done();
        let (context, newest) = match no_event(&rows) {
            Some(row) => (
                row.try_get(COLUMNS).map_err(failed("reading on"))?,
                row.try_get::<Option<i64>, _>(COLUMNS + 1).map_err(failed("reading on"))?,
            ),
            None => (from.context.clone(), None),
        };
        let mut rows = in_order(&rows).map_err(failed("reading on"))?;
        let late = rows.partition_point(|row| row.sequence <= from.sequence);
        if late >= late_limit {
            rows.truncate(late);
            return Ok(Page { rows, position: from.clone(), caught_up: false });
        }
        let caught_up = rows.len() - late < limit;
        let last = rows.last().map_or(0, |row| row.sequence).max(from.sequence);
        let sequence = if caught_up { last.max(newest.unwrap_or(0)) } else { last };
        Ok(Page { rows, position: Position { sequence, context }, caught_up })
    }

    async fn read_ahead(&self, shards: &[u16], from: &Position, limit: usize) -> Result<Page> {
        // The newest sequence comes from the same snapshot: when nothing more was visible, the
        // cursor may pass everything up to it, or a relay of quiet shards would walk over the
        // others' events again with every poll.
        const AHEAD: &str = concat!(
            "select ",
            columns!(),
            ", n.newest
            from (
                select (select sequence from {events} order by sequence desc limit 1) as newest
            ) n
            left join lateral (
                select * from {events} e
                where e.sequence > $1 and e.shard = any($3) and e.not_before is null
                  and ",
            unsettled!(),
            "
                order by e.sequence
                limit $2
            ) e on true"
        );
        const AHEAD_IN_ALL: &str = concat!(
            "select ",
            columns!(),
            ", n.newest
            from (
                select (select sequence from {events} order by sequence desc limit 1) as newest
            ) n
            left join lateral (
                select * from {events} e
                where e.sequence > $1 and e.not_before is null
                  and ",
            unsettled!(),
            "
                order by e.sequence
                limit $2
            ) e on true"
        );

        let query = if self.all_shards(shards) {
            sqlx::query(self.tables.sql(AHEAD_IN_ALL)).bind(from.sequence).bind(limit as i64)
        } else {
            sqlx::query(self.tables.sql(AHEAD))
                .bind(from.sequence)
                .bind(limit as i64)
                .bind(shard_numbers(shards))
        };
        let mut session = self.sessions.take("reading ahead").await?;
        let rows = query.fetch_all(&mut *session).await.map_err(failed("reading ahead"))?;
        session.done();
        let newest = newest(&rows).map_err(failed("reading ahead"))?;
        let rows = in_order(&rows).map_err(failed("reading ahead"))?;
        let caught_up = rows.len() < limit;
        let last = rows.last().map_or(from.sequence, |row| row.sequence);
        let sequence = if caught_up { last.max(newest) } else { last };
        Ok(Page { rows, position: Position { sequence, context: from.context.clone() }, caught_up })
    }

    async fn read_late(&self, shards: &[u16], from: &Position, limit: usize) -> Result<Page> {
        // What `prev` could not see and this statement's own snapshot can. Transactions that are
        // still open are left out by their id: one that stays open for hours with many events
        // would be walked over with every poll. A snapshot from the future is that of a server
        // which lost its last transactions in a failover: then everything is looked at again.
        // Two inequalities in a subquery of their own instead of `xid = any(…)`: where one
        // transaction wrote most of the table, an equality looks to the planner as if it fetched
        // most of the table, and it would scan it.
        const LATE: &str = concat!(
            seen!(),
            " select ",
            columns!(),
            ", null::text from (",
            late!("and e.shard = any($3)"),
            " limit $4) e
            union all
            select ",
            no_columns!(),
            ", cur::text from seen"
        );

        let mut session = self.sessions.take("reading late commits").await?;
        let rows = sqlx::query(self.tables.sql(LATE))
            .bind(snapshot(from))
            .bind(from.sequence)
            .bind(shard_numbers(shards))
            .bind(limit as i64)
            .fetch_all(&mut *session)
            .await
            .map_err(failed("reading late commits"))?;
        session.done();
        let context = match no_event(&rows) {
            Some(row) => row.try_get(COLUMNS).map_err(failed("reading late commits"))?,
            None => from.context.clone(),
        };
        let rows = in_order(&rows).map_err(failed("reading late commits"))?;
        let caught_up = rows.len() < limit;
        let context = if caught_up { context } else { from.context.clone() };
        Ok(Page { rows, position: Position { sequence: from.sequence, context }, caught_up })
    }

    async fn read_due(&self, shards: &[u16], limit: usize) -> Result<Due> {
        // `statement_timestamp()` is the time of the statement and, unlike `clock_timestamp()`,
        // one that an index scan can start from.
        const DUE: &str = concat!(
            "select ",
            columns!(),
            ", n.micros
            from (select (
                select (extract(epoch from e.not_before - statement_timestamp()) * 1e6)::bigint
                from {events} e
                where e.not_before > statement_timestamp() and e.not_before < 'infinity'
                  and e.shard = any($1) and ",
            unsettled!(),
            "
                order by e.not_before
                limit 1
            ) as micros) n
            left join lateral (
                select * from {events} e
                where e.not_before <= statement_timestamp() and e.shard = any($1)
                  and ",
            unsettled!(),
            "
                order by e.not_before
                limit $2
            ) e on true
            order by e.not_before, e.sequence"
        );

        let mut session = self.sessions.take("reading due events").await?;
        let rows = sqlx::query(self.tables.sql(DUE))
            .bind(shard_numbers(shards))
            .bind(limit as i64)
            .fetch_all(&mut *session)
            .await
            .map_err(failed("reading due events"))?;
        session.done();
        let next: Option<i64> = match rows.first() {
            Some(row) => row.try_get(COLUMNS).map_err(failed("reading due events"))?,
            None => None,
        };
        Ok(Due {
            rows: fetched_all(&rows).map_err(failed("reading due events"))?,
            next: next.map(|micros| Duration::from_micros(micros.max(0) as u64)),
        })
    }

    async fn read_hot(&self, sequences: &[i64], from: &Position) -> Result<Vec<HotRow>> {
        // Most keys have a short history: then the last events of the aggregate are all of them, and
        // those that nobody has settled are what the reader may not know. A key whose history is
        // longer is looked at again, with what the reader knows.
        const HOT: &str = concat!(
            "select ",
            columns!(),
            ", case when e.ordering_key <> '' then null
                    when e.ordering_key is null and e.aggregate_id is not null then array(
                select case when p.ordering_key is null
                        and p.aggregate_type = e.aggregate_type
                        and coalesce(p.tenant, '') = coalesce(e.tenant, '')
                        and p.sent_at is null and p.dead_at is null and p.discarded_at is null
                        and (p.not_before is null or p.wait is not null
                             or p.not_before <= statement_timestamp())
                    then p.sequence end
                from {events} p
                where p.aggregate_id = e.aggregate_id and p.sequence < e.sequence
                order by p.aggregate_id desc, p.sequence desc
                limit 20
            ) else '{}' end
            from {events} e
            where e.sequence = any($1) and e.not_before is null and ",
            unsettled!(),
        );

        let mut far = Vec::new();
        let mut session = self.sessions.take("reading hot events").await?;
        let mut rows = sqlx::query(self.tables.sql(HOT))
            .bind(sequences)
            .try_map(|row: PgRow| {
                let walked: Option<Vec<Option<i64>>> = row.try_get(COLUMNS)?;
                let row = fetched(&row)?;
                if walked.as_ref().is_some_and(|walked| walked.len() >= WALK) {
                    far.push(row.sequence);
                }
                let previous = walked.map(|walked| walked.into_iter().flatten().collect());
                Ok(HotRow { row, previous })
            })
            .fetch_all(&mut *session)
            .await
            .map_err(failed("reading hot events"))?;
        if !far.is_empty() {
            let far_rows = self.read_hot_far(&mut session, &far, from).await?;
            rows.retain(|row| !far.contains(&row.row.sequence));
            rows.extend(far_rows);
        }
        session.done();
        rows.sort_unstable_by_key(|row| row.row.sequence);
        Ok(rows)
    }

    async fn read_held(&self, destination: &str, key: Key, limit: usize) -> Result<Vec<Fetched>> {
        const HELD: &str = concat!(
            "select ",
            columns!(),
            " from {events} e
            where e.lane = $1 and e.wait = 'held' and e.destination = $2 and ",
            unsettled!(),
            "
            order by e.sequence
            limit $3"
        );

        let mut session = self.sessions.take("reading held events").await?;
        let rows = sqlx::query(self.tables.sql(HELD))
            .bind(key.0)
            .bind(destination)
            .bind(limit as i64)
            .try_map(|row: PgRow| fetched(&row))
            .fetch_all(&mut *session)
            .await
            .map_err(failed("reading held events"))?;
        session.done();
        Ok(rows)
    }

    async fn read_blockers(&self, limit: usize) -> Result<Vec<Fetched>> {
        const BLOCKERS: &str = concat!(
            "select ",
            columns!(),
            " from {events} e
            where e.lane is not null and e.wait in ('retry', 'suspect')
              and e.not_before <= statement_timestamp() and ",
            unsettled!(),
            "
            order by e.lane, e.sequence
            limit $1"
        );

        let mut session = self.sessions.take("reading what blocks lanes").await?;
        let rows = sqlx::query(self.tables.sql(BLOCKERS))
            .bind(limit as i64)
            .try_map(|row: PgRow| fetched(&row))
            .fetch_all(&mut *session)
            .await
            .map_err(failed("reading what blocks lanes"))?;
        session.done();
        Ok(rows)
    }

    async fn read_blocked(&self, shards: &[u16]) -> Result<Vec<Blocked>> {
        const BLOCKED: &str = "
            select e.destination, e.lane, bool_or(e.wait in ('retry', 'suspect')),
                   bool_or(e.wait = 'parked')
            from {events} e
            where e.lane is not null and e.destination is not null and e.shard = any($1)
              and e.sent_at is null and e.discarded_at is null
              and (e.dead_at is null or e.wait = 'parked')
            group by e.destination, e.lane";

        let mut session = self.sessions.take("reading blocked lanes").await?;
        let rows = sqlx::query(self.tables.sql(BLOCKED))
            .bind(shard_numbers(shards))
            .try_map(|row: PgRow| {
                Ok(Blocked {
                    destination: row.try_get(0)?,
                    key: Key(row.try_get(1)?),
                    waiting: row.try_get::<Option<bool>, _>(2)?.unwrap_or(false),
                    parked: row.try_get::<Option<bool>, _>(3)?.unwrap_or(false),
                })
            })
            .fetch_all(&mut *session)
            .await
            .map_err(failed("reading blocked lanes"))?;
        session.done();
        Ok(rows)
    }
}

/// How far back the history of an aggregate is walked.
const WALK: usize = 20;

impl PostgresStore {
    /// Rows of the hot path whose key has a long history.
    async fn read_hot_far(
        &self,
        connection: &mut PgConnection,
        sequences: &[i64],
        from: &Position,
    ) -> Result<Vec<HotRow>> {
        // Between cursor and row the aggregate's index is walked: a few rows, or the answer is that
        // the store cannot tell. Behind the cursor only what the context could not see is unknown;
        // it is found as `read_late` finds it.
        const FAR: &str = concat!(
            seen!(),
            " select ",
            columns!(),
            ", case when e.ordering_key <> '' or h.walked >= 20 then null
                    else coalesce(h.ahead, '{}') || coalesce(l.late, '{}') end
            from {events} e
            left join lateral (
                select count(*) as walked,
                       array_agg(p.sequence) filter (
                           where p.ordering_key is null
                             and p.aggregate_type = e.aggregate_type
                             and coalesce(p.tenant, '') = coalesce(e.tenant, '')
                             and p.sent_at is null and p.dead_at is null and p.discarded_at is null
                       ) as ahead
                from (
                    select * from {events} p
                    where p.aggregate_id = e.aggregate_id
                      and p.sequence > $3 and p.sequence < e.sequence
                    order by p.aggregate_id, p.sequence
                    limit 20
                ) p
            ) h on e.ordering_key is null and e.aggregate_id is not null
            left join lateral (
                select array_agg(p.sequence) as late
                from (
                    select p.* from seen s cross join unnest(s.ended) x
                    cross join lateral (
                        select * from {events} p where p.xid >= x and p.xid <= x offset 0
                    ) p
                    union all
                    select p.* from seen s cross join lateral (
                        select * from {events} p
                        where p.xid >= s.since and p.xid < pg_snapshot_xmax(s.cur) offset 0
                    ) p
                ) p
                where p.sequence <= $3 and p.aggregate_id = e.aggregate_id
                  and p.aggregate_type = e.aggregate_type
                  and coalesce(p.tenant, '') = coalesce(e.tenant, '')
                  and p.ordering_key is null
                  and p.sent_at is null and p.dead_at is null and p.discarded_at is null
            ) l on e.ordering_key is null and e.aggregate_id is not null
            where e.sequence = any($2) and e.not_before is null and ",
            unsettled!(),
            "
            order by e.sequence"
        );

        sqlx::query(self.tables.sql(FAR))
            .bind(snapshot(from))
            .bind(sequences)
            .bind(from.sequence)
            .try_map(|row: PgRow| {
                Ok(HotRow { row: fetched(&row)?, previous: row.try_get(COLUMNS)? })
            })
            .fetch_all(connection)
            .await
            .map_err(failed("reading hot events"))
    }
}

/// The snapshot of a position. Without one nothing is known to have been seen.
fn snapshot(from: &Position) -> &str {
    if from.context.is_empty() { "1:1:" } else { &from.context }
}

/// The newest sequence that the statement saw, which it adds to the columns.
fn newest(rows: &[PgRow]) -> sqlx::Result<i64> {
    match rows.first() {
        Some(row) => Ok(row.try_get::<Option<i64>, _>(COLUMNS)?.unwrap_or(0)),
        None => Ok(0),
    }
}

/// The row that is said once, for all of them. It is the last one, though a union does not promise it.
fn no_event(rows: &[PgRow]) -> Option<&PgRow> {
    let is_event = |row: &PgRow| matches!(row.try_get_unchecked::<Option<i64>, _>(0), Ok(Some(_)));
    rows.iter().rev().find(|row| !is_event(row))
}

/// The rows in the order of their sequence. A join does not promise to keep it, so it is looked at.
pub(super) fn in_order(rows: &[PgRow]) -> sqlx::Result<Vec<Fetched>> {
    let mut rows = fetched_all(rows)?;
    if !rows.is_sorted_by_key(|row| row.sequence) {
        rows.sort_unstable_by_key(|row| row.sequence);
    }
    Ok(rows)
}
