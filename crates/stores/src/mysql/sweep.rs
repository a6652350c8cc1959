//! How far behind its cursor a claimer still looks: the floor of its sweeps, and the gaps.

use std::{
    sync::PoisonError,
    time::{Duration, Instant},
};

use posthaste_core::{Result, store::Position};

use super::{
    MySqlStore,
    gaps::Gaps,
    read::LOOK_LIMIT,
    row::{fresh, unsettled},
};
use crate::failure::failed;

/// A sweep's floor is written down no more often than this.
const KEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Where the sweeps of a relay stand.
pub(super) struct Sweep {
    /// Nothing fresh is left at or before it but what appears in a gap.
    pub(super) floor: i64,
    /// Gaps were looked for up to here.
    pub(super) looked: i64,
    pub(super) gaps: Gaps,
}

impl Sweep {
    pub(super) fn parse(context: &str) -> Option<Self> {
        let (floor, rest) = context.split_once('|')?;
        let (looked, gaps) = rest.split_once('|')?;
        let (floor, looked) = (floor.parse().ok()?, looked.parse().ok()?);
        Some(Self { floor, looked, gaps: Gaps::parse(gaps) })
    }

    pub(super) fn from_mark(mark: Position) -> Self {
        Self { floor: mark.sequence, looked: mark.sequence, gaps: Gaps::parse(&mark.context) }
    }

    pub(super) fn to_text(&self) -> String {
        format!("{}|{}|{}", self.floor, self.looked, self.gaps)
    }
}

const LOWEST_FRESH: &str = concat!(
    "select e.sequence from {events} e force index (primary)
    where e.sequence > ? and e.sequence <= ? and ",
    fresh!(),
    " order by e.sequence limit 1"
);

/// A shard that somebody owns has a mark of its owner's.
const KEEP_FLOOR: &str = "
    update {shards} set mark = ?, mark_context = ?
    where tenant_group = '' and mark < ?
        and (locked_by is null or locked_until < utc_timestamp(6))";

impl MySqlStore {
    pub(super) async fn lowest_fresh(&self, behind: i64, up_to: i64) -> Result<Option<i64>> {
        sqlx::query_scalar(self.tables.sql(LOWEST_FRESH))
            .bind(behind)
            .bind(up_to)
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("sweeping"))
    }

    /// Looks for gaps up to the cursor and gives what has appeared in those that were known and
    /// is fresh. That stays among the gaps: whoever claims it may give it back.
    pub(super) async fn look_behind(&self, sweep: &mut Sweep, cursor: i64) -> Result<Vec<i64>> {
        let closed = match sweep.gaps.oldest() {
            Some(oldest) => self.closed(oldest).await?,
            None => 0,
        };
        let visible = self.probe(sweep.gaps.iter()).await?;
        let numbers: Vec<i64> = visible.iter().map(|(sequence, _)| *sequence).collect();
        sweep.gaps.remove(&numbers);
        sweep.gaps.close(closed);
        let appeared: Vec<i64> =
            visible.into_iter().filter_map(|(sequence, fresh)| fresh.then_some(sequence)).collect();
        for &sequence in &appeared {
            // Added after the closing, and found again before the next one.
            sweep.gaps.add(sequence, sequence, closed + 1);
        }
        if sweep.looked < cursor {
            let look = self.look(sweep.looked, cursor, LOOK_LIMIT).await?;
            sweep.gaps.add_missing(sweep.looked, &look.present, look.at);
            let last = look.present.last().copied().unwrap_or(sweep.looked);
            if look.present.len() == LOOK_LIMIT {
                sweep.looked = last;
            } else {
                sweep.gaps.add(last + 1, cursor, look.at);
                sweep.looked = cursor;
            }
        }
        Ok(appeared)
    }

    /// So that a restart does not sweep from the beginning.
    pub(super) async fn keep_floor(&self, sweep: &Sweep) -> Result<()> {
        {
            let mut kept = self.floor_kept.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.is_some_and(|at| at.elapsed() < KEEP_INTERVAL) {
                return Ok(());
            }
            *kept = Some(Instant::now());
        }
        let mut transaction = self.begin("keeping the floor of a sweep").await?;
        sqlx::query(self.tables.sql(KEEP_FLOOR))
            .bind(sweep.floor)
            .bind(sweep.gaps.to_string())
            .bind(sweep.floor)
            .execute(&mut *transaction)
            .await
            .map_err(failed("keeping the floor of a sweep"))?;
        transaction.commit().await.map_err(failed("keeping the floor of a sweep"))
    }
}
