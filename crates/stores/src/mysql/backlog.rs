//! What waits: how much, whose, and for how long. What is looked at is bounded, however many events
//! there are.

use std::{collections::HashMap, time::Duration};

use posthaste_core::{
    Result,
    store::{Counts, Position, TenantBacklog, TenantCounts},
};
use sqlx::MySql;

use super::{
    LIST, MySqlStore,
    gaps::Gaps,
    padded,
    row::{fresh, status, unsettled},
    tracker::{Context, from_first},
};
use crate::{
    counts::{self, Extent, one_more},
    failure::failed,
    window::{WINDOW, examined},
};

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

/// As what an event of the backlog is counted: what waits behind another event of its key is told apart from
/// what is new.
macro_rules! counted {
    () => {
        concat!("case when e.wait = 'held' and e.attempts = 0 then 'held' else ", status!(), " end")
    };
}

impl MySqlStore {
    /// How many events are in which state.
    pub(super) async fn count(&self, cap: u64) -> Result<Counts> {
        const ABOVE: &str = concat!(
            "select what, count(*) from (select ",
            counted!(),
            " as what from (",
            above!(),
            ") e where ",
            unsettled!(),
            " limit ?) b group by 1"
        );
        const BELOW: &str = concat!(
            "select what, count(*) from (select ",
            counted!(),
            " as what from (",
            waiting!(),
            ") e where e.sequence <= ? and ",
            unsettled!(),
            " limit ?) b group by 1"
        );
        const LATE: &str = concat!(
            "select ",
            counted!(),
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
        let mark = from_first(self.lowest_mark(&self.pool).await?);
        let backlog = self.backlog::<String>(&mark, [ABOVE, BELOW, LATE], cap).await?;
        let dead: (String, i64) = sqlx::query_as(self.tables.sql(DEAD))
            .bind(one_more(cap))
            .fetch_one(&self.pool)
            .await
            .map_err(failed("counting events"))?;
        let extent = self.extent(&mark, cap).await?;
        counts::by_status(backlog.into_iter().chain([dead]), extent, cap)
    }

    /// The backlog by tenant.
    pub(super) async fn count_by_tenant(&self, cap: u64) -> Result<TenantCounts> {
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

        let mark = from_first(self.lowest_mark(&self.pool).await?);
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

    /// The age of the oldest event that could be delivered now.
    pub(super) async fn oldest(&self) -> Result<Option<Duration>> {
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

        let mark = from_first(self.lowest_mark(&self.pool).await?);
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

    /// How far the backlog reaches, and whether that is more than is examined.
    pub(super) async fn extent(&self, mark: &Position, cap: u64) -> Result<Extent> {
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
    pub(super) async fn is_not(&self, template: &'static str, number: i64) -> Result<bool> {
        let yes: bool = sqlx::query_scalar(self.tables.sql(template))
            .bind(number)
            .fetch_one(&self.pool)
            .await
            .map_err(failed("counting events"))?;
        Ok(!yes)
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

    /// Fresh rows at or below the mark that have appeared late.
    async fn unmarked(&self, context: &str, mark: i64) -> Result<Vec<i64>> {
        let gaps = Context::parse(context).map_or_else(Gaps::default, |context| context.gaps());
        if gaps.is_empty() {
            return Ok(Vec::new());
        }
        let mut connection = self.pool.acquire().await.map_err(failed("counting events"))?;
        let visible = self.probe(&mut connection, &gaps, Some(concat!("and ", fresh!()))).await?;
        Ok(visible.into_iter().filter(|&sequence| sequence <= mark).collect())
    }
}
