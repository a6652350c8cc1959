//! Events that have been due for a while and are not settled: what a relay, or an operator, asks itself
//! why.

use std::time::Duration;

use posthaste_core::{
    Result,
    store::{EventRecord, Overdue, Read},
};
use sqlx::{Row, mysql::MySqlRow};

use super::{
    LIST, MySqlStore, padded,
    row::{columns, for_ever, listed_columns, record, record_columns, status, unsettled},
};
use crate::{
    failure::failed,
    overdue::{self, HeldLane, LANES},
    window::micros,
};

/// Whether `e` is unsettled, under no row lease, and was written so many microseconds ago or earlier.
macro_rules! is_old {
    () => {
        concat!(
            unsettled!(),
            " and (e.locked_until is null or e.locked_until <= utc_timestamp(6))
              and e.created_at <= timestampadd(microsecond, -?, utc_timestamp(6))"
        )
    };
}

/// Whether `e` has waited for no time of its own for so many microseconds.
macro_rules! is_due {
    () => {
        "(e.not_before is null
          or e.not_before <= timestampadd(microsecond, -?, utc_timestamp(6)))"
    };
}

/// Whether `e` waits in the table for what holds it.
macro_rules! is_held {
    () => {
        concat!("(e.wait = 'held' and e.not_before >= ", for_ever!(), " and e.lane is not null)")
    };
}

/// So many rows after a sequence.
macro_rules! window {
    () => {
        "select sequence from {events} force index (primary)
         where sequence > ? order by sequence limit ?"
    };
}

const DOING: &str = "looking for overdue events";

impl MySqlStore {
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
            "select ",
            listed_columns!(),
            " from (",
            window!(),
            ") w straight_join {events} e on e.sequence = w.sequence where ",
            is_old!(),
            " and ",
            is_due!(),
            " order by e.sequence limit ?"
        );
        const EXTENT: &str = concat!("select count(*), max(sequence) from (", window!(), ") w");

        let count = self.shard_count().await?;
        let mut session = self.sessions.take(DOING).await?;
        let events = sqlx::query(self.tables.sql(OVERDUE))
            .bind(after)
            .bind(examine as i64)
            .bind(micros(age))
            .bind(micros(age))
            .bind(Overdue::MOST as i64)
            .try_map(|row: MySqlRow| record(&row, count))
            .fetch_all(&mut *session)
            .await
            .map_err(failed(DOING))?;
        let extent = sqlx::query(self.tables.sql(EXTENT))
            .bind(after)
            .bind(examine as i64)
            .try_map(|row: MySqlRow| Ok((row.try_get(0)?, row.try_get(1)?)))
            .fetch_one(&mut *session)
            .await
            .map_err(failed(DOING))?;
        session.done();
        Ok(Overdue::walked(events, examine, extent))
    }

    /// The lanes with held events among these rows.
    async fn held_lanes(&self, after: i64, examine: usize, age: Duration) -> Result<Vec<HeldLane>> {
        const LANES_HELD: &str = concat!(
            "select e.lane, e.destination, min(e.sequence) from (",
            window!(),
            ") w straight_join {events} e on e.sequence = w.sequence where ",
            is_held!(),
            " and e.destination is not null and ",
            is_old!(),
            " group by 1, 2 limit ?"
        );

        let mut session = self.sessions.take(DOING).await?;
        let lanes = sqlx::query(self.tables.sql(LANES_HELD))
            .bind(after)
            .bind(examine as i64)
            .bind(micros(age))
            .bind(LANES)
            .try_map(|row: MySqlRow| {
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
            " from {events} e where e.sequence in ({list}) and ",
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
        let count = self.shard_count().await?;
        let mut session = self.sessions.take(DOING).await?;
        let mut records = Vec::new();
        for some in sequences.chunks(LIST) {
            let mut query = sqlx::query(self.listing(THESE, some.len()));
            for sequence in padded(some) {
                query = query.bind(sequence);
            }
            let found = query
                .bind(micros(age))
                .bind(micros(age))
                .try_map(|row: MySqlRow| record(&row, count))
                .fetch_all(&mut *session)
                .await
                .map_err(failed(DOING))?;
            records.extend(found);
        }
        session.done();
        Ok(records)
    }
}
