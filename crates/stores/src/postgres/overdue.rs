//! Events that have been due for a while and are not settled: what a relay, or an operator, asks itself
//! why.

use std::time::Duration;

use posthaste_core::{
    Result,
    store::{EventRecord, Overdue, Read},
};
use sqlx::{Row, postgres::PgRow};

use super::{
    PostgresStore,
    row::{RECORD_COLUMNS, record},
};
use crate::{
    failure::failed,
    overdue::{self, HeldLane, LANES},
    window::micros,
};

/// Whether `e` is unsettled, under no row lease, and was written `$1` microseconds ago or earlier.
macro_rules! is_old {
    () => {
        concat!(
            unsettled!(),
            " and (e.locked_until is null or e.locked_until <= clock_timestamp())
              and e.created_at <= statement_timestamp() - $1 * interval '1 microsecond'"
        )
    };
}

/// Whether `e` has waited for no time of its own for as long.
macro_rules! is_due {
    () => {
        "(e.not_before is null
          or e.not_before <= statement_timestamp() - $1 * interval '1 microsecond')"
    };
}

/// Whether `e` waits in the table for what holds it.
macro_rules! is_held {
    () => {
        "(e.wait = 'held' and e.not_before = 'infinity' and e.lane is not null)"
    };
}

const DOING: &str = "looking for overdue events";

impl PostgresStore {
    /// A page of a walk in the order of the sequence. Of the lanes whose held events nothing holds, it
    /// gives the first event.
    pub(super) async fn walk_overdue(
        &self,
        after: i64,
        examine: usize,
        age: Duration,
    ) -> Result<Overdue> {
        let mut page = self.walk_due(after, examine, age).await?;
        let lanes = self.held_lanes(after, examine, age).await?;
        let first = self.unblocked(&lanes).await?;
        // A page that is full goes on after its last event; what lies beyond comes then.
        let end = page.next.unwrap_or(i64::MAX);
        let held: Vec<i64> = first.into_iter().filter(|sequence| *sequence <= end).collect();
        page.events.extend(self.records_of(&held, age).await?);
        page.events.sort_unstable_by_key(|event| event.sequence);
        if page.events.len() > Overdue::MOST {
            page.events.truncate(Overdue::MOST);
            page.next = page.events.last().map(|event| event.sequence);
        }
        Ok(page)
    }

    /// Those of these that still are.
    pub(super) async fn overdue_of(
        &self,
        sequences: &[i64],
        age: Duration,
    ) -> Result<Vec<EventRecord>> {
        let records = self.records_of(sequences, age).await?;
        let unblocked = self.unblocked(&overdue::held_lanes(&records)).await?;
        Ok(overdue::without_blocked(records, &unblocked))
    }

    /// The first events of those lanes that nothing blocks.
    async fn unblocked(&self, lanes: &[HeldLane]) -> Result<Vec<i64>> {
        if lanes.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<_> = lanes.iter().map(|held| held.lane.clone()).collect();
        let mut blocked = Vec::new();
        for some in keys.chunks(LANES as usize) {
            blocked.extend(self.still_blocked(some).await?);
        }
        Ok(overdue::unblocked(lanes, &blocked))
    }

    /// What is due.
    async fn walk_due(&self, after: i64, examine: usize, age: Duration) -> Result<Overdue> {
        const OVERDUE: &str = concat!(
            "with w as materialized (
                select e.sequence, (",
            is_old!(),
            " and ",
            is_due!(),
            ") as hit
                from {events} e
                where e.sequence > $2
                order by e.sequence
                limit $3
            )
            select ",
            listed_columns!(),
            ", s.examined, s.last
            from (select count(*) as examined, max(sequence) as last from w) s
            left join {events} e on e.sequence = any(array(
                select sequence from w where hit order by sequence limit $4
            ))
            order by e.sequence"
        );

        let mut session = self.sessions.take(DOING).await?;
        let rows = sqlx::query(self.tables.sql(OVERDUE))
            .bind(micros(age))
            .bind(after)
            .bind(examine as i64)
            .bind(Overdue::MOST as i64)
            .fetch_all(&mut *session)
            .await
            .map_err(failed(DOING))?;
        session.done();
        walked(&rows, examine).map_err(failed(DOING))
    }

    /// The lanes with held events among these rows.
    async fn held_lanes(&self, after: i64, examine: usize, age: Duration) -> Result<Vec<HeldLane>> {
        const LANES_HELD: &str = concat!(
            "select e.lane, e.destination, min(e.sequence)
            from (
                select sequence, lane, destination, wait, not_before, sent_at, dead_at,
                    discarded_at, locked_until, created_at
                from {events} where sequence > $2 order by sequence limit $3
            ) e
            where ",
            is_held!(),
            " and e.destination is not null and ",
            is_old!(),
            " group by 1, 2 limit $4"
        );

        let mut session = self.sessions.take(DOING).await?;
        let lanes = sqlx::query(self.tables.sql(LANES_HELD))
            .bind(micros(age))
            .bind(after)
            .bind(examine as i64)
            .bind(LANES)
            .try_map(|row: PgRow| {
                Ok(HeldLane::new(row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))
            })
            .fetch_all(&mut *session)
            .await
            .map_err(failed(DOING))?;
        session.done();
        Ok(lanes)
    }

    /// Those of these that are due, or held by whatever it is.
    async fn records_of(&self, sequences: &[i64], age: Duration) -> Result<Vec<EventRecord>> {
        const THESE: &str = concat!(
            "select ",
            listed_columns!(),
            " from {events} e where e.sequence = any($2) and ",
            is_old!(),
            " and (",
            is_due!(),
            " or ",
            is_held!(),
            ") order by e.sequence"
        );

        if sequences.is_empty() {
            return Ok(Vec::new());
        }
        let mut session = self.sessions.take(DOING).await?;
        let records = sqlx::query(self.tables.sql(THESE))
            .bind(micros(age))
            .bind(sequences)
            .try_map(|row: PgRow| record(&row))
            .fetch_all(&mut *session)
            .await
            .map_err(failed(DOING))?;
        session.done();
        Ok(records)
    }
}

fn walked(rows: &[PgRow], examine: usize) -> sqlx::Result<Overdue> {
    let Some(first) = rows.first() else {
        return Ok(Overdue::default());
    };
    let extent = (first.try_get(RECORD_COLUMNS)?, first.try_get(RECORD_COLUMNS + 1)?);
    let mut events = Vec::new();
    for row in rows {
        if row.try_get::<Option<i64>, _>(0)?.is_some() {
            events.push(record(row)?);
        }
    }
    Ok(Overdue::walked(events, examine, extent))
}
