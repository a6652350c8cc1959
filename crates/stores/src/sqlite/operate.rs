//! Replay, discard, purge. What is to be acted on is looked up beforehand, outside the write lock,
//! and its state is asked again inside.

use std::time::Duration;

use async_trait::async_trait;
use posthaste_core::{
    Error, ErrorKind, Result, Status,
    status::Step,
    store::{Filter, Operate, Purged, Selection},
};
use sqlx::{Row, SqliteConnection};
use uuid::Uuid;

use super::{
    SqliteStore,
    inspect::{bind_filter, filter},
    list, micros,
    row::{FOR_EVER, fresh, now, status, unsettled},
};
use crate::failure::failed;

#[async_trait]
impl Operate for SqliteStore {
    async fn replay(&self, selection: &Selection) -> Result<u64> {
        let (filter, limit) = match selection {
            Selection::One(id) => return self.act_on_one(*id, Step::Replay).await,
            Selection::Matching { filter, limit } => (filter, *limit),
        };
        let statement = match filter.status {
            Some(Status::Dead) => DEAD_MATCHING,
            Some(Status::Sent) => SENT_MATCHING,
            _ => {
                return Err(Error::invalid(
                    "only dead or sent events can be replayed; filter by status dead or sent",
                ));
            }
        };
        self.act_on_matching(statement, filter, limit, Step::Replay)
            .await
    }

    async fn discard(&self, selection: &Selection) -> Result<u64> {
        let (filter, limit) = match selection {
            Selection::One(id) => return self.act_on_one(*id, Step::Discard).await,
            Selection::Matching { filter, limit } => (filter, *limit),
        };
        let statement = match filter.status {
            Some(Status::Dead) => DEAD_MATCHING,
            _ => UNSENT_MATCHING,
        };
        self.act_on_matching(statement, filter, limit, Step::Discard)
            .await
    }

    async fn purge(
        &self,
        sent: Duration,
        dead: Option<Duration>,
        batch: usize,
        cursor: Option<i64>,
    ) -> Result<Purged> {
        let purging = || failed("purging");
        let mut deleted = 0;
        if let (None, Some(dead)) = (cursor, dead) {
            deleted += self.purge_dead(dead, batch).await?;
        }
        let position: i64 = sqlx::query_scalar(self.tables.sql(PURGE_POSITION))
            .fetch_one(&self.reader)
            .await
            .map_err(purging())?;
        let from = cursor.unwrap_or(position);
        let examined = sqlx::query(self.tables.sql(EXAMINE))
            .bind(from)
            .bind(batch as i64)
            .bind(micros(sent))
            .fetch_all(&self.reader)
            .await
            .map_err(purging())?;
        let Some(last) = examined.last() else {
            return Ok(Purged {
                deleted,
                next: None,
            });
        };
        let last_sequence: i64 = last.try_get("sequence").map_err(purging())?;
        let last_is_young: bool = last.try_get("young").map_err(purging())?;
        let mut old = Vec::new();
        for row in &examined {
            if row.try_get("old").map_err(purging())? {
                old.push(row.try_get::<i64, _>("sequence").map_err(purging())?);
            }
        }
        if !old.is_empty() {
            let mut transaction = self.begin("purging").await?;
            let gone = self.delete_old(&mut transaction, &old, sent).await?;
            if from == position && gone == examined.len() as u64 {
                sqlx::query(self.tables.sql(MOVE_PURGE_POSITION))
                    .bind(last_sequence)
                    .execute(&mut *transaction)
                    .await
                    .map_err(purging())?;
            }
            transaction.commit().await.map_err(purging())?;
            deleted += gone;
        }
        let complete = examined.len() < batch || last_is_young;
        Ok(Purged {
            deleted,
            next: (!complete).then_some(last_sequence),
        })
    }
}

const FIND: &str = concat!(
    "select sequence, ",
    status!(),
    " as status from {events} where event_id = ?"
);

const DEAD_MATCHING: &str = concat!(
    "select sequence from {events} indexed by {bare}_dead_idx where dead_at is not null and ",
    filter!(),
    " order by sequence limit ?8"
);

const SENT_MATCHING: &str = concat!(
    "select sequence from {events} where ",
    filter!(),
    " order by sequence limit ?8"
);

/// Fresh behind the lowest mark, waiting anywhere, dead: no walk through what was sent.
const UNSENT_MATCHING: &str = concat!(
    "select sequence from {events} where sequence in (
    select sequence from {events} where sequence > (select min(mark) from {shards}) and ",
    fresh!(),
    " union
    select sequence from {events} indexed by {bare}_due_idx where not_before is not null
    union
    select sequence from {events} indexed by {bare}_dead_idx where dead_at is not null
) and ",
    status!(),
    " in ('new', 'retry', 'dead') and ",
    filter!(),
    " order by sequence limit ?8"
);

impl SqliteStore {
    async fn act_on_one(&self, id: Uuid, step: Step) -> Result<u64> {
        let mut transaction = self.begin("acting on an event").await?;
        let found = sqlx::query(self.tables.sql(FIND))
            .bind(id.hyphenated())
            .fetch_optional(&mut *transaction)
            .await
            .map_err(failed("looking for an event"))?;
        let Some(row) = found else {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("event {id} is not in outbox {}", self.tables.name()),
            ));
        };
        let status: String = row
            .try_get("status")
            .map_err(failed("looking for an event"))?;
        status.parse::<Status>()?.after(step)?;
        let sequence: i64 = row
            .try_get("sequence")
            .map_err(failed("looking for an event"))?;
        let acted = self.act(&mut transaction, &[sequence], step).await?;
        transaction
            .commit()
            .await
            .map_err(failed("acting on an event"))?;
        Ok(acted)
    }

    async fn act_on_matching(
        &self,
        statement: &'static str,
        filter: &Filter,
        limit: usize,
        step: Step,
    ) -> Result<u64> {
        loop {
            let mut sequences = Vec::new();
            let rows = bind_filter(sqlx::query(self.tables.sql(statement)), filter)
                .bind(limit as i64)
                .fetch_all(&self.reader)
                .await
                .map_err(failed("looking for events"))?;
            for row in &rows {
                sequences.push(
                    row.try_get("sequence")
                        .map_err(failed("looking for events"))?,
                );
            }
            if sequences.is_empty() {
                return Ok(0);
            }
            let mut transaction = self.begin("acting on events").await?;
            let acted = self.act(&mut transaction, &sequences, step).await?;
            transaction
                .commit()
                .await
                .map_err(failed("acting on events"))?;
            // All of them changed since they were looked up: 0 would mean that no more match.
            if acted > 0 {
                return Ok(acted);
            }
        }
    }

    async fn act(
        &self,
        connection: &mut SqliteConnection,
        sequences: &[i64],
        step: Step,
    ) -> Result<u64> {
        match step {
            Step::Replay => self.replay_these(connection, sequences).await,
            _ => self.discard_these(connection, sequences).await,
        }
    }
}

/// A dead event that parks its lane takes its head again; any other replay is exempt from order.
const REPLAY: &str = concat!(
    "update {events} set sent_at = null, dead_at = null, attempts = 0, replay = replay + 1,
    last_error = null, lane = case when wait = 'parked' then lane end,
    wait = case when wait = 'parked' then 'retry' else 'replay' end,
    locked_by = null, locked_until = null, not_before = ",
    now!(),
    " where sequence in (select value from json_each(?1)) and discarded_at is null
    and (sent_at is not null or dead_at is not null)"
);

const DISCARD: &str = concat!(
    "update {events} set dead_at = null, not_before = null, wait = null, lane = null,
    locked_by = null, locked_until = null, discarded_at = ",
    now!(),
    " where sequence in (select value from json_each(?1)) and ",
    status!(),
    " in ('new', 'retry', 'dead')"
);

impl SqliteStore {
    async fn replay_these(
        &self,
        connection: &mut SqliteConnection,
        sequences: &[i64],
    ) -> Result<u64> {
        let done = sqlx::query(self.tables.sql(REPLAY))
            .bind(list(sequences.iter().copied()))
            .execute(connection)
            .await
            .map_err(failed("replaying"))?;
        Ok(done.rows_affected())
    }

    async fn discard_these(
        &self,
        connection: &mut SqliteConnection,
        sequences: &[i64],
    ) -> Result<u64> {
        let lanes = self.blocked_by(connection, sequences).await?;
        let done = sqlx::query(self.tables.sql(DISCARD))
            .bind(list(sequences.iter().copied()))
            .execute(&mut *connection)
            .await
            .map_err(failed("discarding"))?;
        self.set_free(connection, &lanes).await?;
        Ok(done.rows_affected())
    }
}

/// A held event that was set free and not yet met by the relay stands for its lane as well:
/// discarded in between, it would leave the rest held for ever.
const BLOCKED_BY: &str = concat!(
    "select distinct destination, lane from {events}
where sequence in (select value from json_each(?1))
    and lane is not null and destination is not null
    and (wait in ('retry', 'suspect', 'parked') or (wait = 'held' and not_before < ?2)) and ",
    status!(),
    " in ('new', 'retry', 'dead')"
);

const SET_FREE: &str = concat!(
    "update {events} set not_before = ",
    now!(),
    " where sequence = (select sequence from {events}
    where lane = ?2 and destination = ?1 and wait = 'held' and ",
    unsettled!(),
    " order by sequence limit 1)"
);

impl SqliteStore {
    /// The lanes that wait for these events.
    async fn blocked_by(
        &self,
        connection: &mut SqliteConnection,
        sequences: &[i64],
    ) -> Result<Vec<(String, i64)>> {
        let rows = sqlx::query(self.tables.sql(BLOCKED_BY))
            .bind(list(sequences.iter().copied()))
            .bind(FOR_EVER)
            .fetch_all(connection)
            .await
            .map_err(failed("looking for blocked lanes"))?;
        rows.iter()
            .map(|row| Ok((row.try_get("destination")?, row.try_get("lane")?)))
            .collect::<sqlx::Result<_>>()
            .map_err(failed("looking for blocked lanes"))
    }

    /// Makes the first held event of each lane due: the relay meets it and releases the lane.
    async fn set_free(
        &self,
        connection: &mut SqliteConnection,
        lanes: &[(String, i64)],
    ) -> Result<()> {
        for (destination, lane) in lanes {
            sqlx::query(self.tables.sql(SET_FREE))
                .bind(destination)
                .bind(lane)
                .execute(&mut *connection)
                .await
                .map_err(failed("releasing a lane"))?;
        }
        Ok(())
    }
}

const PURGE_POSITION: &str = "select purge_position from {meta} where id = 1";

const MOVE_PURGE_POSITION: &str = "update {meta} set purge_position = ?1 where id = 1";

const EXAMINE: &str = concat!(
    "select sequence, created_at > ",
    now!(),
    " - ?3 as young,
    coalesce(coalesce(sent_at, discarded_at) < ",
    now!(),
    " - ?3, 0) as old
from {events}
where sequence > ?1
order by sequence limit ?2"
);

const DELETE_OLD: &str = concat!(
    "delete from {events}
where sequence in (select value from json_each(?1)) and coalesce(sent_at, discarded_at) < ",
    now!(),
    " - ?2 returning sequence"
);

const DEAD_LONG_AGO: &str = concat!(
    "select sequence from {events} where dead_at < ",
    now!(),
    " - ?1 order by dead_at limit ?2"
);

const DELETE_DEAD: &str =
    "delete from {events} where sequence in (select value from json_each(?1))";

impl SqliteStore {
    async fn delete_old(
        &self,
        connection: &mut SqliteConnection,
        sequences: &[i64],
        sent: Duration,
    ) -> Result<u64> {
        let gone: Vec<i64> = sqlx::query_scalar(self.tables.sql(DELETE_OLD))
            .bind(list(sequences.iter().copied()))
            .bind(micros(sent))
            .fetch_all(&mut *connection)
            .await
            .map_err(failed("purging"))?;
        self.forget_attempts(connection, &gone).await?;
        Ok(gone.len() as u64)
    }

    async fn purge_dead(&self, dead: Duration, batch: usize) -> Result<u64> {
        let purging = || failed("purging dead events");
        let mut transaction = self.begin("purging dead events").await?;
        let sequences: Vec<i64> = sqlx::query_scalar(self.tables.sql(DEAD_LONG_AGO))
            .bind(micros(dead))
            .bind(batch as i64)
            .fetch_all(&mut *transaction)
            .await
            .map_err(purging())?;
        if sequences.is_empty() {
            return Ok(0);
        }
        let lanes = self.blocked_by(&mut transaction, &sequences).await?;
        sqlx::query(self.tables.sql(DELETE_DEAD))
            .bind(list(sequences.iter().copied()))
            .execute(&mut *transaction)
            .await
            .map_err(purging())?;
        self.forget_attempts(&mut transaction, &sequences).await?;
        self.set_free(&mut transaction, &lanes).await?;
        transaction.commit().await.map_err(purging())?;
        Ok(sequences.len() as u64)
    }
}
