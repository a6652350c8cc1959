//! What an operator does to events: replay, discard, purge.
//!
//! What may take long to find is looked up before the write lock is taken, or every writer of the
//! application would wait for it; the state is then asked again under the lock.

use std::time::Duration;

use async_trait::async_trait;
use posthaste_core::{
    Error, ErrorKind, Result, Status,
    status::Step,
    store::{Filter, Operate, Purged, Selection},
};
use serde_json::json;
use sqlx::{Row, SqliteConnection, sqlite::SqliteRow};
use uuid::Uuid;

use super::{
    SqliteStore,
    backlog::floor,
    inspect::{matches_filter, with_filter},
    list, micros,
    row::{FOR_EVER, now, status, status_of},
};
use crate::failure::failed;

#[async_trait]
impl Operate for SqliteStore {
    async fn replay(&self, selection: &Selection) -> Result<u64> {
        let (filter, limit) = match selection {
            Selection::One(id) => {
                let mut transaction = self.begin("replaying").await?;
                let picked = self.pick_one(&mut transaction, *id, Step::Replay).await?;
                let replayed = self.replay_picked(&mut transaction, &picked).await?;
                transaction.commit().await.map_err(failed("replaying"))?;
                return Ok(replayed);
            }
            Selection::These { sequences, status } => {
                status.after(Step::Replay)?;
                let mut transaction = self.begin("replaying").await?;
                let picked = self.pick(&mut transaction, sequences, Some(*status)).await?;
                let changed = self.replay_picked(&mut transaction, &picked).await?;
                transaction.commit().await.map_err(failed("replaying"))?;
                return Ok(changed);
            }
            Selection::Matching { filter, limit } => (filter, *limit),
        };
        loop {
            let found = match filter.status {
                Some(Status::Dead) => self.find_dead(filter, limit).await?,
                Some(Status::Sent) => self.find_sent(filter, limit).await?,
                _ => {
                    return Err(Error::invalid(
                        "replay needs a status of dead or sent; events in another state are \
                         still on their way",
                    ));
                }
            };
            let mut transaction = self.begin("replaying").await?;
            let picked = self.pick(&mut transaction, &found, filter.status).await?;
            let replayed = self.replay_picked(&mut transaction, &picked).await?;
            transaction.commit().await.map_err(failed("replaying"))?;
            // 0 means that no more match, and not that all of these have just changed.
            if replayed > 0 || found.is_empty() {
                return Ok(replayed);
            }
        }
    }

    async fn discard(&self, selection: &Selection) -> Result<u64> {
        let (filter, limit) = match selection {
            Selection::One(id) => {
                let mut transaction = self.begin("discarding").await?;
                let picked = self.pick_one(&mut transaction, *id, Step::Discard).await?;
                let discarded = self.discard_picked(&mut transaction, &picked).await?;
                self.release_lanes(&mut transaction, &picked).await?;
                transaction.commit().await.map_err(failed("discarding"))?;
                return Ok(discarded);
            }
            Selection::These { sequences, status } => {
                status.after(Step::Discard)?;
                let mut transaction = self.begin("discarding").await?;
                let picked = self.pick(&mut transaction, sequences, Some(*status)).await?;
                let changed = self.discard_picked(&mut transaction, &picked).await?;
                self.release_lanes(&mut transaction, &picked).await?;
                transaction.commit().await.map_err(failed("discarding"))?;
                return Ok(changed);
            }
            Selection::Matching { filter, limit } => (filter, *limit),
        };
        loop {
            let found = match filter.status {
                Some(Status::Dead) => self.find_dead(filter, limit).await?,
                _ => self.find_discardable(filter, limit).await?,
            };
            let mut transaction = self.begin("discarding").await?;
            let picked = self.pick(&mut transaction, &found, filter.status).await?;
            let discarded = self.discard_picked(&mut transaction, &picked).await?;
            self.release_lanes(&mut transaction, &picked).await?;
            transaction.commit().await.map_err(failed("discarding"))?;
            if discarded > 0 || found.is_empty() {
                return Ok(discarded);
            }
        }
    }

    async fn purge(
        &self,
        sent: Duration,
        dead: Option<Duration>,
        batch: usize,
        cursor: Option<i64>,
    ) -> Result<Purged> {
        let mut deleted = 0;
        if let (None, Some(dead)) = (cursor, dead) {
            deleted += self.purge_dead(dead, batch).await?;
        }
        let settled = self.purge_settled(sent, batch, cursor).await?;
        Ok(Purged { deleted: deleted + settled.deleted, next: settled.next })
    }
}

/// A row that an operator's step is about to change, as it stands.
struct Picked {
    sequence: i64,
    /// The lane that it blocks, with its destination.
    blocks: Option<(i64, String)>,
}

impl Picked {
    fn of(row: &SqliteRow) -> sqlx::Result<Self> {
        let lane: Option<i64> = row.try_get(1)?;
        let destination: Option<String> = row.try_get(2)?;
        let blocks: Option<bool> = row.try_get(3)?;
        Ok(Self {
            sequence: row.try_get(0)?,
            blocks: lane.zip(destination).filter(|_| blocks == Some(true)),
        })
    }
}

/// What [`Picked`] is made of; `?2` is for ever. A held event that was set free and that no relay
/// has met yet stands for its lane: gone, it would leave the others held.
macro_rules! picked {
    () => {
        "sequence, lane, destination, wait in ('retry', 'parked', 'suspect')
            or (wait = 'held' and not_before < ?2)"
    };
}

impl SqliteStore {
    async fn pick_one(
        &self,
        connection: &mut SqliteConnection,
        id: Uuid,
        step: Step,
    ) -> Result<Vec<Picked>> {
        const PICK_ONE: &str =
            concat!("select ", picked!(), ", ", status!(), " from {events} where event_id = ?1");

        let row = sqlx::query(self.tables.sql(PICK_ONE))
            .bind(id.hyphenated())
            .bind(FOR_EVER)
            .fetch_optional(connection)
            .await
            .map_err(failed("looking for an event"))?;
        let Some(row) = row else {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("event {id} is not in outbox {}", self.tables.name()),
            ));
        };
        let name = row.try_get(4).map_err(failed("looking for an event"))?;
        status_of(name).map_err(failed("looking for an event"))?.after(step)?;
        Ok(vec![Picked::of(&row).map_err(failed("looking for an event"))?])
    }

    /// Those of the rows that are still in the state by which they were found: this one, or any
    /// that can be discarded.
    async fn pick(
        &self,
        connection: &mut SqliteConnection,
        found: &[i64],
        state: Option<Status>,
    ) -> Result<Vec<Picked>> {
        const PICK: &str = concat!(
            "select ",
            picked!(),
            " from {events}
            where sequence in (select value from json_each(?1)) and ",
            status!(),
            " in (select value from json_each(?3))"
        );

        let states = match state {
            Some(state) => vec![state.as_str()],
            None => vec!["new", "retry", "dead"],
        };
        sqlx::query(self.tables.sql(PICK))
            .bind(list(found.iter().copied()))
            .bind(FOR_EVER)
            .bind(list(states))
            .try_map(|row: SqliteRow| Picked::of(&row))
            .fetch_all(connection)
            .await
            .map_err(failed("looking for events"))
    }

    async fn find_dead(&self, filter: &Filter, limit: usize) -> Result<Vec<i64>> {
        const FIND_DEAD: &str = concat!(
            "select sequence from {events} indexed by {bare}_dead_idx
            where dead_at is not null and ",
            matches_filter!(),
            "
            order by dead_at
            limit ?8"
        );

        self.find(FIND_DEAD, filter, limit).await
    }

    async fn find_sent(&self, filter: &Filter, limit: usize) -> Result<Vec<i64>> {
        const FIND_SENT: &str = concat!(
            "select sequence from {events}
            where sent_at is not null and ",
            matches_filter!(),
            "
            order by sequence
            limit ?8"
        );

        self.find(FIND_SENT, filter, limit).await
    }

    async fn find_discardable(&self, filter: &Filter, limit: usize) -> Result<Vec<i64>> {
        // Three indexes find what can be discarded; none of them leads through what was sent.
        const FIND_DISCARDABLE: &str = concat!(
            "select sequence from {events}
            where sequence in (
                select sequence from {events}
                where sequence > ",
            floor!(),
            "
                union
                select sequence from {events} indexed by {bare}_not_before_idx
                where not_before is not null
                union
                select sequence from {events} indexed by {bare}_dead_idx
                where dead_at is not null
            ) and ",
            status!(),
            " in ('new', 'retry', 'dead') and ",
            matches_filter!(),
            "
            limit ?8"
        );

        self.find(FIND_DISCARDABLE, filter, limit).await
    }

    async fn find(
        &self,
        statement: &'static str,
        filter: &Filter,
        limit: usize,
    ) -> Result<Vec<i64>> {
        with_filter(self.tables.sql(statement), filter)
            .bind(limit as i64)
            .try_map(|row: SqliteRow| row.try_get(0))
            .fetch_all(&self.reader)
            .await
            .map_err(failed("looking for events"))
    }

    async fn replay_picked(
        &self,
        connection: &mut SqliteConnection,
        picked: &[Picked],
    ) -> Result<u64> {
        // A dead event that parks its lane comes back as the lane's head, not as an exempt replay.
        const REPLAY: &str = concat!(
            "update {events}
            set sent_at = null, dead_at = null, attempts = 0, replay = replay + 1,
                last_error = null, not_before = ",
            now!(),
            ",
                wait = case when wait = 'parked' then 'retry' else 'replay' end,
                lane = case when wait = 'parked' then lane end,
                locked_by = null, locked_until = null
            where sequence in (select value from json_each(?1))"
        );

        let done = sqlx::query(self.tables.sql(REPLAY))
            .bind(list(picked.iter().map(|row| row.sequence)))
            .execute(connection)
            .await
            .map_err(failed("replaying"))?;
        Ok(done.rows_affected())
    }

    async fn discard_picked(
        &self,
        connection: &mut SqliteConnection,
        picked: &[Picked],
    ) -> Result<u64> {
        const DISCARD: &str = concat!(
            "update {events}
            set discarded_at = ",
            now!(),
            ", dead_at = null, not_before = null, wait = null,
                lane = null, locked_by = null, locked_until = null
            where sequence in (select value from json_each(?1))"
        );

        let done = sqlx::query(self.tables.sql(DISCARD))
            .bind(list(picked.iter().map(|row| row.sequence)))
            .execute(connection)
            .await
            .map_err(failed("discarding"))?;
        Ok(done.rows_affected())
    }

    /// The first held event of each lane that lost its blocker falls due: a relay that reads it
    /// lets the lane go on.
    async fn release_lanes(
        &self,
        connection: &mut SqliteConnection,
        picked: &[Picked],
    ) -> Result<()> {
        const RELEASE: &str = concat!(
            "update {events} set not_before = ",
            now!(),
            "
            where wait = 'held' and sequence in (
                select (
                    select h.sequence from {events} h
                    where h.lane = t.value ->> 0 and h.destination = t.value ->> 1
                      and h.wait = 'held'
                      and h.sent_at is null and h.dead_at is null and h.discarded_at is null
                    order by h.sequence
                    limit 1
                )
                from json_each(?1) t
            )"
        );

        let blocked: Vec<_> = picked.iter().filter_map(|row| row.blocks.as_ref()).collect();
        if blocked.is_empty() {
            return Ok(());
        }
        sqlx::query(self.tables.sql(RELEASE))
            .bind(list(blocked.iter().map(|(lane, destination)| json!([lane, destination]))))
            .execute(connection)
            .await
            .map_err(failed("releasing lanes"))?;
        Ok(())
    }

    /// Deletes what was sent or discarded long ago among the next rows behind the cursor.
    async fn purge_settled(
        &self,
        retention: Duration,
        batch: usize,
        cursor: Option<i64>,
    ) -> Result<Purged> {
        const POSITION: &str = "select purge_position from {meta} where id = 1";
        const EXAMINE: &str = concat!(
            "select sequence, coalesce(coalesce(sent_at, discarded_at) < now - ?3, false),
                   created_at < now - ?3
            from {events}, (select ",
            now!(),
            " as now)
            where sequence > ?1
            order by sequence
            limit ?2"
        );
        // Judged again under the write lock: one may just have been replayed.
        const PURGE: &str = concat!(
            "delete from {events}
            where sequence in (select value from json_each(?1))
              and coalesce(sent_at, discarded_at) < ",
            now!(),
            " - ?2
            returning sequence"
        );
        const MOVE: &str =
            "update {meta} set purge_position = ?2 where id = 1 and purge_position = ?1";

        let position: i64 = match cursor {
            Some(cursor) => cursor,
            None => sqlx::query_scalar(self.tables.sql(POSITION))
                .fetch_one(&self.reader)
                .await
                .map_err(failed("purging"))?,
        };
        let examined: Vec<(i64, bool, bool)> = sqlx::query_as(self.tables.sql(EXAMINE))
            .bind(position)
            .bind(batch as i64)
            .bind(micros(retention))
            .fetch_all(&self.reader)
            .await
            .map_err(failed("purging"))?;
        let old: Vec<i64> =
            examined.iter().filter(|(_, old, _)| *old).map(|(sequence, ..)| *sequence).collect();
        let Some(&(last, _, last_is_old)) = examined.last() else {
            return Ok(Purged::default());
        };
        let next = (examined.len() >= batch && last_is_old).then_some(last);
        if old.is_empty() {
            return Ok(Purged { deleted: 0, next });
        }
        let mut transaction = self.begin("purging").await?;
        let gone: Vec<i64> = sqlx::query_scalar(self.tables.sql(PURGE))
            .bind(list(old))
            .bind(micros(retention))
            .fetch_all(&mut *transaction)
            .await
            .map_err(failed("purging"))?;
        self.forget_attempts(&mut transaction, &gone).await?;
        if gone.len() == examined.len() {
            sqlx::query(self.tables.sql(MOVE))
                .bind(position)
                .bind(last)
                .execute(&mut *transaction)
                .await
                .map_err(failed("purging"))?;
        }
        transaction.commit().await.map_err(failed("purging"))?;
        Ok(Purged { deleted: gone.len() as u64, next })
    }

    /// Deletes events that have been dead for long, and lets their parked lanes go on.
    async fn purge_dead(&self, retention: Duration, batch: usize) -> Result<u64> {
        const FIND: &str = concat!(
            "select ",
            picked!(),
            " from {events}
            where dead_at < ",
            now!(),
            " - ?1
            order by dead_at
            limit ?3"
        );
        const DELETE: &str =
            "delete from {events} where sequence in (select value from json_each(?1))";

        let mut transaction = self.begin("purging dead events").await?;
        let picked = sqlx::query(self.tables.sql(FIND))
            .bind(micros(retention))
            .bind(FOR_EVER)
            .bind(batch as i64)
            .try_map(|row: SqliteRow| Picked::of(&row))
            .fetch_all(&mut *transaction)
            .await
            .map_err(failed("purging dead events"))?;
        let sequences: Vec<i64> = picked.iter().map(|row| row.sequence).collect();
        sqlx::query(self.tables.sql(DELETE))
            .bind(list(sequences.iter().copied()))
            .execute(&mut *transaction)
            .await
            .map_err(failed("purging dead events"))?;
        self.forget_attempts(&mut transaction, &sequences).await?;
        self.release_lanes(&mut transaction, &picked).await?;
        transaction.commit().await.map_err(failed("purging dead events"))?;
        Ok(sequences.len() as u64)
    }
}
