//! What waits: how much, whose, and for how long. What is looked at is bounded, however many events
//! there are.

use std::time::Duration;

use posthaste_core::{
    Result,
    store::{Counts, TenantBacklog, TenantCounts},
};
use sqlx::{Row, sqlite::SqliteRow};

use super::{
    SqliteStore,
    row::{now, status, unsettled},
};
use crate::{
    counts::{self, Extent, one_more},
    failure::failed,
    window::{WINDOW, examined},
};

/// The lowest mark: everything before is settled, or waits with a `not_before`.
macro_rules! floor {
    () => {
        "coalesce((select min(mark) from {shards} where tenant_group = ''), 0)"
    };
}

pub(super) use floor;

/// What says whether and since when a row is pending. Not all columns: the payload would be read.
macro_rules! pending_columns {
    () => {
        "sequence, tenant, created_at, attempts, not_before, wait, locked_until, discarded_at, \
         dead_at, sent_at"
    };
}

/// Something of every row of the backlog: above the marks, and anywhere with a time of its own. Of each
/// at most `?2` are looked at: what waits for a later time or for ever comes first, since what was due
/// long ago has mostly been sent. The index is named, or SQLite would walk the table for it.
macro_rules! backlog {
    ($($what:tt)+) => {
        concat!(
            "select ",
            $($what)+,
            " as what from (
                 select ",
            pending_columns!(),
            " from {events} where sequence > ",
            floor!(),
            " order by sequence limit ?2
             )
             where not_before is null and ",
            unsettled!(),
            "
             union all
             select ",
            $($what)+,
            " from (
                 select ",
            pending_columns!(),
            " from {events} indexed by {bare}_not_before_idx
                 where not_before is not null
                 order by not_before desc limit ?2
             )
             where ",
            unsettled!()
        )
    };
}

/// As what an event of the backlog is counted: what waits behind another event of its key is told apart from
/// what is new.
macro_rules! counted {
    () => {
        concat!("case when wait = 'held' and attempts = 0 then 'held' else ", status!(), " end")
    };
}

impl SqliteStore {
    /// How many events are in which state.
    pub(super) async fn count(&self, cap: u64) -> Result<Counts> {
        const COUNTS: &str = concat!(
            "select what, count(*) from (select what from (",
            backlog!(counted!()),
            ") limit ?1) group by what
            union all
            select 'dead', count(*) from (
                select 1 from {events} indexed by {bare}_dead_idx
                where dead_at is not null and sent_at is null and discarded_at is null
                limit ?1
            )"
        );
        let groups: Vec<(String, i64)> = sqlx::query_as(self.tables.sql(COUNTS))
            .bind(one_more(cap))
            .bind(examined(cap))
            .fetch_all(&self.reader)
            .await
            .map_err(failed("counting events"))?;
        counts::by_status(groups, self.extent(cap).await?, cap)
    }

    /// The backlog by tenant.
    pub(super) async fn count_by_tenant(&self, cap: u64) -> Result<TenantCounts> {
        const BY_TENANT: &str = concat!(
            "select what, count(*) from (select what from (",
            backlog!("tenant"),
            ") limit ?1) group by what"
        );

        let groups = sqlx::query(self.tables.sql(BY_TENANT))
            .bind(one_more(cap))
            .bind(examined(cap))
            .try_map(|row: SqliteRow| {
                Ok(TenantBacklog {
                    tenant: row.try_get(0)?,
                    events: row.try_get::<i64, _>(1)?.max(0) as u64,
                })
            })
            .fetch_all(&self.reader)
            .await
            .map_err(failed("counting events by tenant"))?;
        Ok(counts::by_tenant(groups, self.extent(cap).await?, cap))
    }

    /// The age of the oldest event that could be delivered now.
    pub(super) async fn oldest(&self) -> Result<Option<Duration>> {
        // Fresh rows are as old as their place: sequence and time are taken at the same insert. Of
        // what is due the first and the last are looked at: those between may all have been sent.
        const OLDEST: &str = concat!(
            "select ",
            now!(),
            " - min(since)
            from (
                select * from (
                    select created_at as since from (
                        select ",
            pending_columns!(),
            " from {events} where sequence > ",
            floor!(),
            " order by sequence limit ?1 * 2
                    )
                    where not_before is null and ",
            unsettled!(),
            "
                    limit 1
                )
                union all
                select max(created_at, not_before) from (
                    select ",
            pending_columns!(),
            " from {events} indexed by {bare}_not_before_idx
                    where not_before <= ",
            now!(),
            " order by not_before limit ?1
                ) where ",
            unsettled!(),
            "
                union all
                select max(created_at, not_before) from (
                    select ",
            pending_columns!(),
            " from {events} indexed by {bare}_not_before_idx
                    where not_before <= ",
            now!(),
            " order by not_before desc limit ?1
                ) where ",
            unsettled!(),
            "
            )"
        );

        let micros: Option<i64> = sqlx::query_scalar(self.tables.sql(OLDEST))
            .bind(WINDOW)
            .fetch_one(&self.reader)
            .await
            .map_err(failed("looking for the oldest pending event"))?;
        Ok(micros.map(|micros| Duration::from_micros(micros.max(0) as u64)))
    }

    /// How far the backlog reaches, and whether that is more than is examined.
    async fn extent(&self, cap: u64) -> Result<Extent> {
        const EXTENT: &str = concat!(
            "select coalesce((select max(sequence) from {events}), 0) - ",
            floor!(),
            ", exists (
                select 1 from {events} indexed by {bare}_not_before_idx
                where not_before is not null limit 1 offset ?1
            )"
        );

        let (above, more): (i64, bool) = sqlx::query_as(self.tables.sql(EXTENT))
            .bind(examined(cap))
            .fetch_one(&self.reader)
            .await
            .map_err(failed("counting events"))?;
        Ok(Extent { above, cut: more || above > examined(cap) })
    }
}
