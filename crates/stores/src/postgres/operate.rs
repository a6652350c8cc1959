//! What an operator does to events: replay, discard, purge.

use std::time::Duration;

use async_trait::async_trait;
use posthaste_core::{
    Error, ErrorKind, Result, Status,
    status::Step,
    store::{Filter, Operate, Purged, Selection},
};
use sqlx::{PgConnection, Row, postgres::PgRow};
use uuid::Uuid;

use super::{PostgresStore, inspect::with_filter, micros, row::status_of};
use crate::{dialect::begin_undisturbed, failure::failed};

#[async_trait]
impl Operate for PostgresStore {
    async fn replay(&self, selection: &Selection) -> Result<u64> {
        let mut transaction =
            begin_undisturbed(&self.pool, None).await.map_err(failed("replaying"))?;
        let picked = match selection {
            Selection::One(id) => self.pick_one(&mut transaction, *id, Step::Replay).await?,
            Selection::These { sequences, status } => {
                status.after(Step::Replay)?;
                self.pick_these(&mut transaction, sequences, *status).await?
            }
            Selection::Matching { filter, limit } => match filter.status {
                Some(Status::Dead) => self.pick_dead(&mut transaction, filter, *limit).await?,
                Some(Status::Sent) => self.pick_sent(&mut transaction, filter, *limit).await?,
                _ => {
                    return Err(Error::invalid(
                        "replay needs a status of dead or sent; events in another state are \
                         still on their way",
                    ));
                }
            },
        };
        let replayed = self.replay_picked(&mut transaction, &picked).await?;
        transaction.commit().await.map_err(failed("replaying"))?;
        Ok(replayed)
    }

    async fn discard(&self, selection: &Selection) -> Result<u64> {
        let mut transaction =
            begin_undisturbed(&self.pool, None).await.map_err(failed("discarding"))?;
        let picked = match selection {
            Selection::One(id) => self.pick_one(&mut transaction, *id, Step::Discard).await?,
            Selection::These { sequences, status } => {
                status.after(Step::Discard)?;
                self.pick_these(&mut transaction, sequences, *status).await?
            }
            Selection::Matching { filter, limit } => match filter.status {
                Some(Status::Dead) => self.pick_dead(&mut transaction, filter, *limit).await?,
                _ => self.pick_discardable(&mut transaction, filter, *limit).await?,
            },
        };
        let discarded = self.discard_picked(&mut transaction, &picked).await?;
        self.release_lanes(&mut transaction, &picked).await?;
        transaction.commit().await.map_err(failed("discarding"))?;
        Ok(discarded)
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

/// A row that an operator's step has locked, as it stood before.
struct Picked {
    sequence: i64,
    /// The lane that waits for it, with its destination: it blocks the lane, or was just set free
    /// to take the lane on.
    blocks: Option<(i64, String)>,
}

impl Picked {
    fn of(row: &PgRow) -> sqlx::Result<Self> {
        let lane: Option<i64> = row.try_get(1)?;
        let destination: Option<String> = row.try_get(2)?;
        let blocks: Option<bool> = row.try_get(3)?;
        Ok(Self {
            sequence: row.try_get(0)?,
            blocks: lane.zip(destination).filter(|_| blocks == Some(true)),
        })
    }
}

/// What [`Picked`] is made of.
macro_rules! picked {
    () => {
        "e.sequence, e.lane, e.destination, \
         e.wait in ('retry', 'parked', 'suspect') or e.wait = 'held' and e.not_before < 'infinity'"
    };
}

impl PostgresStore {
    async fn pick_one(
        &self,
        connection: &mut PgConnection,
        id: Uuid,
        step: Step,
    ) -> Result<Vec<Picked>> {
        const PICK_ONE: &str = concat!(
            "select ",
            picked!(),
            ", ",
            status!(),
            " from {events} e where e.event_id = $1 for update"
        );

        let row = sqlx::query(self.tables.sql(PICK_ONE))
            .bind(id)
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

    async fn pick_these(
        &self,
        connection: &mut PgConnection,
        sequences: &[i64],
        status: Status,
    ) -> Result<Vec<Picked>> {
        const PICK_THESE: &str = concat!(
            "select ",
            picked!(),
            " from {events} e
            where e.sequence = any($1) and ",
            status!(),
            " = $2
            order by e.sequence
            for update skip locked"
        );

        sqlx::query(self.tables.sql(PICK_THESE))
            .bind(sequences)
            .bind(status.as_str())
            .try_map(|row: PgRow| Picked::of(&row))
            .fetch_all(connection)
            .await
            .map_err(failed("looking for events"))
    }

    async fn pick_dead(
        &self,
        connection: &mut PgConnection,
        filter: &Filter,
        limit: usize,
    ) -> Result<Vec<Picked>> {
        const PICK_DEAD: &str = concat!(
            "select ",
            picked!(),
            " from {events} e
            where e.dead_at is not null and ",
            matches_filter!(),
            "
            order by e.dead_at
            limit $8
            for update skip locked"
        );

        with_filter(self.tables.sql(PICK_DEAD), filter)
            .bind(limit as i64)
            .try_map(|row: PgRow| Picked::of(&row))
            .fetch_all(connection)
            .await
            .map_err(failed("looking for dead events"))
    }

    async fn pick_sent(
        &self,
        connection: &mut PgConnection,
        filter: &Filter,
        limit: usize,
    ) -> Result<Vec<Picked>> {
        const PICK_SENT: &str = concat!(
            "select ",
            picked!(),
            " from {events} e
            where e.sent_at is not null and ",
            matches_filter!(),
            "
            order by e.sequence
            limit $8
            for update skip locked"
        );

        with_filter(self.tables.sql(PICK_SENT), filter)
            .bind(limit as i64)
            .try_map(|row: PgRow| Picked::of(&row))
            .fetch_all(connection)
            .await
            .map_err(failed("looking for sent events"))
    }

    async fn pick_discardable(
        &self,
        connection: &mut PgConnection,
        filter: &Filter,
        limit: usize,
    ) -> Result<Vec<Picked>> {
        // Three indexes find what can be discarded; none of them leads through what was sent.
        const PICK_DISCARDABLE: &str = concat!(
            "select ",
            picked!(),
            " from {events} e
            where (e.sequence > ",
            floor!(),
            " or e.not_before is not null or e.dead_at is not null)
              and ",
            status!(),
            " in ('new', 'retry', 'dead')
              and ",
            matches_filter!(),
            "
            limit $8
            for update skip locked"
        );

        with_filter(self.tables.sql(PICK_DISCARDABLE), filter)
            .bind(limit as i64)
            .try_map(|row: PgRow| Picked::of(&row))
            .fetch_all(connection)
            .await
            .map_err(failed("looking for events to discard"))
    }

    async fn replay_picked(&self, connection: &mut PgConnection, picked: &[Picked]) -> Result<u64> {
        // A dead event that parks its lane comes back as the lane's head, not as an exempt replay.
        const REPLAY: &str = "
            update {events}
            set sent_at = null, dead_at = null, attempts = 0, replay = replay + 1,
                last_error = null, not_before = clock_timestamp(),
                wait = case when wait = 'parked' then 'retry' else 'replay' end,
                lane = case when wait = 'parked' then lane end,
                locked_by = null, locked_until = null
            where sequence = any($1)";

        let sequences: Vec<i64> = picked.iter().map(|row| row.sequence).collect();
        let done = sqlx::query(self.tables.sql(REPLAY))
            .bind(sequences)
            .execute(connection)
            .await
            .map_err(failed("replaying"))?;
        Ok(done.rows_affected())
    }

    async fn discard_picked(
        &self,
        connection: &mut PgConnection,
        picked: &[Picked],
    ) -> Result<u64> {
        const DISCARD: &str = "
            update {events}
            set discarded_at = clock_timestamp(), dead_at = null, not_before = null, wait = null,
                lane = null, locked_by = null, locked_until = null
            where sequence = any($1)";

        let sequences: Vec<i64> = picked.iter().map(|row| row.sequence).collect();
        let done = sqlx::query(self.tables.sql(DISCARD))
            .bind(sequences)
            .execute(connection)
            .await
            .map_err(failed("discarding"))?;
        Ok(done.rows_affected())
    }

    /// The first held event of each lane that lost its blocker falls due: a relay that reads it
    /// lets the lane go on.
    async fn release_lanes(&self, connection: &mut PgConnection, picked: &[Picked]) -> Result<()> {
        const RELEASE: &str = "
            update {events} set not_before = clock_timestamp()
            where wait = 'held' and sequence = any(array(
                select (
                    select h.sequence from {events} h
                    where h.lane = t.lane and h.destination = t.destination and h.wait = 'held'
                      and h.sent_at is null and h.dead_at is null and h.discarded_at is null
                    order by h.sequence
                    limit 1
                )
                from unnest($1::bigint[], $2::text[]) as t (lane, destination)
            ))";

        let blocked: Vec<_> = picked.iter().filter_map(|row| row.blocks.as_ref()).collect();
        if blocked.is_empty() {
            return Ok(());
        }
        sqlx::query(self.tables.sql(RELEASE))
            .bind(blocked.iter().map(|(lane, _)| *lane).collect::<Vec<_>>())
            .bind(blocked.iter().map(|(_, destination)| destination.as_str()).collect::<Vec<_>>())
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
        // The rows are judged again when they are locked: one may just have been replayed. The
        // stored position only passes what was deleted, and stays an hour behind: an event of a
        // transaction that is still open can have a lower sequence.
        const PURGE: &str = "
            with start as materialized (
                select coalesce($3, purge_position) as position,
                       clock_timestamp() - $1 * interval '1 microsecond' as cutoff
                from {meta} where id = 1
            ),
            examined as materialized (
                select sequence, created_at from {events}
                where sequence > (select position from start)
                order by sequence
                limit $2
            ),
            gone as (
                delete from {events} where sequence = any(array(
                    select e.sequence from {events} e
                    where e.sequence > (select position from start)
                      and e.sequence <= (select max(sequence) from examined)
                      and coalesce(e.sent_at, e.discarded_at) < (select cutoff from start)
                    for update skip locked
                ))
                returning sequence, attempts, replay
            ),
            forgotten as (
                delete from {attempts} where sequence = any(array(
                    select sequence from gone where attempts > 0 or replay > 0
                ))
            ),
            last as materialized (
                select sequence, created_at from examined order by sequence desc limit 1
            ),
            moved as (
                update {meta} set purge_position = last.sequence
                from last
                where id = 1 and purge_position = (select position from start)
                  and last.created_at < clock_timestamp() - interval '1 hour'
                  and (select count(*) from gone) = (select count(*) from examined)
            )
            select (select count(*) from examined), (select count(*) from gone),
                   (select sequence from last),
                   (select last.created_at < start.cutoff from last, start)";

        let row = sqlx::query(self.tables.sql(PURGE))
            .bind(micros(retention))
            .bind(batch as i64)
            .bind(cursor)
            .fetch_one(&self.pool)
            .await
            .map_err(failed("purging"))?;
        let read = || {
            let examined: i64 = row.try_get(0)?;
            let deleted: i64 = row.try_get(1)?;
            let last: Option<i64> = row.try_get(2)?;
            let old: Option<bool> = row.try_get(3)?;
            let more = examined as usize >= batch && old == Some(true);
            Ok(Purged { deleted: deleted.max(0) as u64, next: last.filter(|_| more) })
        };
        read().map_err(failed("purging"))
    }

    /// Deletes events that have been dead for long, and lets their parked lanes go on.
    async fn purge_dead(&self, retention: Duration, batch: usize) -> Result<u64> {
        // A lane goes on by its first held event. When somebody has that one locked, the dead
        // event stays until the next cycle: nothing here waits for a lock.
        const PURGE_DEAD: &str = "
            with picked as materialized (
                select e.sequence, e.lane, e.destination from {events} e
                where e.dead_at < statement_timestamp() - $1 * interval '1 microsecond'
                  and e.sent_at is null and e.discarded_at is null
                order by e.dead_at
                limit $2
                for update skip locked
            ),
            head as materialized (
                select p.lane, p.destination, (
                    select h.sequence from {events} h
                    where h.lane = p.lane and h.destination = p.destination and h.wait = 'held'
                      and h.sent_at is null and h.dead_at is null and h.discarded_at is null
                    order by h.sequence
                    limit 1
                ) as sequence
                from (select distinct lane, destination from picked where lane is not null) p
            ),
            free as materialized (
                select e.sequence from {events} e
                where e.sequence = any(array(select sequence from head)) and e.wait = 'held'
                for update skip locked
            ),
            released as (
                update {events} set not_before = clock_timestamp()
                where sequence = any(array(select sequence from free))
            ),
            gone as (
                delete from {events} where sequence = any(array(
                    select p.sequence from picked p
                    left join head h on h.lane = p.lane and h.destination = p.destination
                    where h.sequence is null or h.sequence in (select sequence from free)
                ))
                returning sequence
            ),
            forgotten as (
                delete from {attempts} where sequence = any(array(select sequence from gone))
            )
            select count(*) from gone";

        let deleted: i64 = sqlx::query_scalar(self.tables.sql(PURGE_DEAD))
            .bind(micros(retention))
            .bind(batch as i64)
            .fetch_one(&self.pool)
            .await
            .map_err(failed("purging dead events"))?;
        Ok(deleted.max(0) as u64)
    }
}
