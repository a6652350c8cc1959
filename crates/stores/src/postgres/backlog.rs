//! What waits: how much, whose, and for how long. What is looked at is bounded, however many events
//! there are.

use std::time::Duration;

use posthaste_core::{
    Result,
    store::{Counts, TenantBacklog, TenantCounts},
};
use sqlx::{Row, postgres::PgRow};

use super::PostgresStore;
use crate::{
    counts::{self, Extent, one_more},
    failure::failed,
    window::{WINDOW, examined},
};

/// The lowest mark: everything before is settled, waits with a `not_before`, or was committed late.
macro_rules! floor {
    () => {
        "coalesce((select min(mark) from {shards} where tenant_group = ''), 0)"
    };
}

/// The rows of the backlog: above the marks, below them with a time of its own, and below them
/// committed so late that no relay has marked it yet. Of each at most `$2` are looked at: what waits
/// for a later time or for ever comes first, since what was due long ago has mostly been sent.
macro_rules! backlog {
    () => {
        concat!(
            "select e.* from (
                 select * from {events} where sequence > ",
            floor!(),
            " order by sequence limit $2
             ) e
             where ",
            unsettled!(),
            "
             union all
             select e.* from (
                 select * from {events} where not_before is not null
                 order by not_before desc limit $2
             ) e
             where e.sequence <= ",
            floor!(),
            " and ",
            unsettled!(),
            "
             union all ",
            unmarked!("$2")
        )
    };
}

/// Fresh rows below the marks that the snapshot of a mark could not see, at most `$limit` looked at for
/// each: of what was written since an old mark, nearly all lies above it.
macro_rules! unmarked {
    ($limit:literal) => {
        concat!(
            "select e.* from {events} e
             where e.sequence = any(array(
                 select e.sequence
                 from (
                     select distinct split_part(mark_context, '|', 1) as snapshot from {shards}
                     where tenant_group = '' and mark_context <> ''
                 ) m
                 cross join lateral (
                     select e.sequence, e.sent_at, e.dead_at, e.discarded_at, e.not_before
                     from pg_snapshot_xip(m.snapshot::pg_snapshot) x
                     cross join lateral (
                         select * from {events} e where e.xid >= x and e.xid <= x limit ",
            $limit,
            "
                     ) e
                 ) e
                 where e.sequence <= ",
            floor!(),
            " and e.not_before is null and ",
            unsettled!(),
            "
             ))"
        )
    };
}

/// As what an event of the backlog is counted: what waits behind another event of its key is told apart from
/// what is new.
macro_rules! counted {
    () => {
        concat!("case when e.wait = 'held' and e.attempts = 0 then 'held' else ", status!(), " end")
    };
}

impl PostgresStore {
    /// How many events are in which state.
    pub(super) async fn count(&self, cap: u64) -> Result<Counts> {
        const COUNTS: &str = concat!(
            "with b as materialized (
                select ",
            counted!(),
            " as status from (",
            backlog!(),
            ") e limit $1
            ),
            d as materialized (
                select from {events} e
                where e.dead_at is not null and e.sent_at is null and e.discarded_at is null
                limit $1
            )
            select status, count(*) from b group by 1
            union all
            select 'dead', count(*) from d"
        );
        let groups: Vec<(String, i64)> = sqlx::query_as(self.tables.sql(COUNTS))
            .bind(one_more(cap))
            .bind(examined(cap))
            .fetch_all(&self.pool)
            .await
            .map_err(failed("counting events"))?;
        counts::by_status(groups, self.extent(cap).await?, cap)
    }

    /// The backlog by tenant.
    pub(super) async fn count_by_tenant(&self, cap: u64) -> Result<TenantCounts> {
        const BY_TENANT: &str = concat!(
            "select tenant, count(*)
            from (select e.tenant from (",
            backlog!(),
            ") e limit $1) b
            group by 1"
        );

        let groups = sqlx::query(self.tables.sql(BY_TENANT))
            .bind(one_more(cap))
            .bind(examined(cap))
            .try_map(|row: PgRow| {
                Ok(TenantBacklog {
                    tenant: row.try_get(0)?,
                    events: row.try_get::<i64, _>(1)?.max(0) as u64,
                })
            })
            .fetch_all(&self.pool)
            .await
            .map_err(failed("counting events by tenant"))?;
        Ok(counts::by_tenant(groups, self.extent(cap).await?, cap))
    }

    /// The age of the oldest event that could be delivered now.
    pub(super) async fn oldest(&self) -> Result<Option<Duration>> {
        // Fresh rows are as old as their place: sequence and time are taken at the same insert. Of
        // what is due the first and the last are looked at: those between may all have been sent.
        const OLDEST: &str = concat!(
            "select (extract(epoch from clock_timestamp() - min(since)) * 1e6)::bigint
            from (
                (select e.created_at as since from (
                     select * from {events} where sequence > ",
            floor!(),
            " order by sequence limit $1 * 2
                 ) e
                 where e.not_before is null and ",
            unsettled!(),
            "
                 order by e.sequence
                 limit 1)
                union all
                select greatest(e.created_at, e.not_before) from (
                    (select * from {events} where not_before <= statement_timestamp()
                     order by not_before limit $1)
                    union all
                    (select * from {events} where not_before <= statement_timestamp()
                     order by not_before desc limit $1)
                ) e
                where ",
            unsettled!(),
            "
                union all
                select e.created_at from (",
            unmarked!("$1"),
            ") e
            ) pending"
        );

        const DOING: &str = "looking for the oldest pending event";

        // On a relay's session: elsewhere the server compiles the statement once the table is large, and
        // that takes 60 to 90 ms of a processor, where running it takes a few.
        let mut session = self.sessions.take(DOING).await?;
        let micros: Option<i64> = sqlx::query_scalar(self.tables.sql(OLDEST))
            .bind(WINDOW)
            .fetch_one(&mut *session)
            .await
            .map_err(failed(DOING))?;
        session.done();
        Ok(micros.map(|micros| Duration::from_micros(micros.max(0) as u64)))
    }

    /// How far the backlog reaches, and whether that is more than is examined.
    async fn extent(&self, cap: u64) -> Result<Extent> {
        const EXTENT: &str = concat!(
            "select coalesce((select max(sequence) from {events}), 0) - ",
            floor!(),
            ", exists (
                select from {events} where not_before is not null order by not_before offset $1
            )"
        );

        let (above, more): (i64, bool) = sqlx::query_as(self.tables.sql(EXTENT))
            .bind(examined(cap))
            .fetch_one(&self.pool)
            .await
            .map_err(failed("counting events"))?;
        Ok(Extent { above, cut: more || above > examined(cap) })
    }
}
