//! What an operator does to events: replay, discard, purge.
//!
//! Rows are found without a lock, then locked by their primary key and judged again: a search
//! that locks would lock all that it walks over.

use std::time::Duration;

use async_trait::async_trait;
use posthaste_core::{
    Error, ErrorKind, Result, Status,
    status::Step,
    store::{Filter, Operate, Purged, Selection},
};
use sqlx::{AssertSqlSafe, MySqlConnection, Row, mysql::MySqlRow};
use uuid::Uuid;

use super::{
    ClaimStyle, LIST, MySqlStore,
    inspect::{matches_filter, with_filter},
    met_a_lock, micros, padded,
    row::{status, status_of, unsettled},
};
use crate::failure::failed;

#[async_trait]
impl Operate for MySqlStore {
    async fn replay(&self, selection: &Selection) -> Result<u64> {
        let found = self.find_replayable(selection).await?;
        let mut transaction = self.begin("replaying").await?;
        let picked = match selection {
            Selection::One(id) => self.pick_one(&mut transaction, *id, Step::Replay).await?,
            Selection::These { sequences, status } => {
                self.pick_these(&mut transaction, sequences, *status, Step::Replay).await?
            }
            Selection::Matching { .. } => self.pick(&mut transaction, &found, Step::Replay).await?,
        };
        let replayed = self.write_picked(&mut transaction, REPLAY, &picked).await?;
        transaction.commit().await.map_err(failed("replaying"))?;
        Ok(replayed)
    }

    async fn discard(&self, selection: &Selection) -> Result<u64> {
        let found = self.find_discardable(selection).await?;
        let mut transaction = self.begin("discarding").await?;
        let picked = match selection {
            Selection::One(id) => self.pick_one(&mut transaction, *id, Step::Discard).await?,
            Selection::These { sequences, status } => {
                self.pick_these(&mut transaction, sequences, *status, Step::Discard).await?
            }
            Selection::Matching { .. } => {
                self.pick(&mut transaction, &found, Step::Discard).await?
            }
        };
        let discarded = self.write_picked(&mut transaction, DISCARD, &picked).await?;
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
    status: Status,
    /// The lane that it blocks, with its destination: also when it was held and was set free to
    /// let the lane go on.
    blocks: Option<(i64, String)>,
}

impl Picked {
    fn of(row: &MySqlRow) -> sqlx::Result<Self> {
        let lane: Option<i64> = row.try_get(1)?;
        let destination: Option<String> = row.try_get(2)?;
        let blocks: Option<bool> = row.try_get(3)?;
        Ok(Self {
            sequence: row.try_get(0)?,
            status: status_of(row.try_get(4)?)?,
            blocks: lane.zip(destination).filter(|_| blocks == Some(true)),
        })
    }
}

/// What [`Picked`] is made of.
macro_rules! picked {
    () => {
        concat!(
            "e.sequence, e.lane, e.destination, e.wait in ('retry', 'parked', 'suspect')
                or e.wait = 'held' and e.not_before <= utc_timestamp(6), ",
            status!()
        )
    };
}

const PICK_ONE: &str =
    concat!("select ", picked!(), " from {events} e where e.event_id = ? for update");

const PICK: &str = concat!(
    "select ",
    picked!(),
    " from {events} e force index (primary)
    where e.sequence in ({list}) order by e.sequence for update {passing}"
);

const FIND_DEAD: &str = concat!(
    "select e.sequence from {events} e force index ({bare}_dead_idx)
    where e.dead_at is not null and ",
    matches_filter!(),
    " order by e.dead_at limit ?"
);

const FIND_SENT: &str = concat!(
    "select e.sequence from {events} e force index (primary)
    where e.sent_at is not null and ",
    matches_filter!(),
    " order by e.sequence limit ?"
);

const FIND_WAITING: &str = concat!(
    "select e.sequence from {events} e force index ({bare}_due_idx)
    where e.not_before is not null and ",
    unsettled!(),
    " and (e.locked_until is null or e.locked_until <= utc_timestamp(6)) and ",
    matches_filter!(),
    " order by e.not_before limit ?"
);

const FIND_FRESH: &str = concat!(
    "select e.sequence from {events} e
    where e.sequence > (select min(mark) from {shards} where tenant_group = '')
        and e.not_before is null and ",
    unsettled!(),
    " and (e.locked_until is null or e.locked_until <= utc_timestamp(6)) and ",
    matches_filter!(),
    " order by e.sequence limit ?"
);

impl MySqlStore {
    async fn pick_one(
        &self,
        connection: &mut MySqlConnection,
        id: Uuid,
        step: Step,
    ) -> Result<Vec<Picked>> {
        let picked = sqlx::query(self.tables.sql(PICK_ONE))
            .bind(id.hyphenated().to_string())
            .try_map(|row: MySqlRow| Picked::of(&row))
            .fetch_optional(connection)
            .await
            .map_err(failed("looking for an event"))?;
        let Some(picked) = picked else {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("event {id} is not in outbox {}", self.tables.name()),
            ));
        };
        picked.status.after(step)?;
        Ok(vec![picked])
    }

    async fn find(
        &self,
        template: &'static str,
        filter: &Filter,
        limit: usize,
    ) -> Result<Vec<i64>> {
        with_filter(sqlx::query(self.tables.sql(template)), filter)
            .bind(limit as u64)
            .try_map(|row: MySqlRow| row.try_get(0))
            .fetch_all(&self.pool)
            .await
            .map_err(failed("looking for events"))
    }

    async fn find_replayable(&self, selection: &Selection) -> Result<Vec<i64>> {
        let Selection::Matching { filter, limit } = selection else {
            return Ok(Vec::new());
        };
        match filter.status {
            Some(Status::Dead) => self.find(FIND_DEAD, filter, *limit).await,
            Some(Status::Sent) => self.find(FIND_SENT, filter, *limit).await,
            _ => Err(Error::invalid(
                "replay needs a status of dead or sent; events in another state are still on \
                 their way",
            )),
        }
    }

    /// Three indexes find what can be discarded; none of them leads through what was sent.
    async fn find_discardable(&self, selection: &Selection) -> Result<Vec<i64>> {
        let Selection::Matching { filter, limit } = selection else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        for template in [FIND_DEAD, FIND_WAITING, FIND_FRESH] {
            let left = limit.saturating_sub(found.len());
            if left > 0 {
                found.extend(self.find(template, filter, left).await?);
            }
        }
        Ok(found)
    }

    async fn pick_these(
        &self,
        connection: &mut MySqlConnection,
        sequences: &[i64],
        status: Status,
        step: Step,
    ) -> Result<Vec<Picked>> {
        status.after(step)?;
        let mut picked = self.lock_free(connection, PICK, sequences, None).await?;
        picked.retain(|row| row.status == status);
        Ok(picked)
    }

    /// Locks what was found, as far as nobody else has it and its state still allows the step.
    async fn pick(
        &self,
        connection: &mut MySqlConnection,
        found: &[i64],
        step: Step,
    ) -> Result<Vec<Picked>> {
        let mut picked = self.lock_free(connection, PICK, found, None).await?;
        picked.retain(|row| row.status.after(step).is_ok());
        Ok(picked)
    }
}

impl MySqlStore {
    /// Locks those of these rows that nobody else has locked. Never waits.
    async fn lock_free(
        &self,
        connection: &mut MySqlConnection,
        template: &'static str,
        sequences: &[i64],
        older_than: Option<i64>,
    ) -> Result<Vec<Picked>> {
        let mut picked = Vec::with_capacity(sequences.len());
        for sequences in sequences.chunks(LIST) {
            match self.lock_all(connection, template, sequences, older_than).await {
                Ok(rows) => picked.extend(rows),
                // Without `skip locked` one row that is locked refuses them all.
                Err(error) if met_a_lock(&error) => {
                    for sequence in sequences {
                        match self.lock_all(connection, template, &[*sequence], older_than).await {
                            Ok(rows) => picked.extend(rows),
                            Err(error) if met_a_lock(&error) => {}
                            Err(error) => return Err(failed("locking events")(error)),
                        }
                    }
                }
                Err(error) => return Err(failed("locking events")(error)),
            }
        }
        Ok(picked)
    }

    async fn lock_all(
        &self,
        connection: &mut MySqlConnection,
        template: &'static str,
        sequences: &[i64],
        older_than: Option<i64>,
    ) -> sqlx::Result<Vec<Picked>> {
        let passing = match self.claim_style.get() {
            Some(ClaimStyle::Token) => "nowait",
            _ => "skip locked",
        };
        let sql = self.listing(template, sequences.len()).0.replace("{passing}", passing);
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for sequence in padded(sequences) {
            query = query.bind(sequence);
        }
        if let Some(micros) = older_than {
            query = query.bind(micros);
        }
        query.try_map(|row: MySqlRow| Picked::of(&row)).fetch_all(connection).await
    }
}

/// A dead event that parks its lane comes back as the lane's head, not as an exempt replay. MySQL
/// sets one column after the other: `wait` comes last.
const REPLAY: &str = "
    update {events}
    set sent_at = null, dead_at = null, attempts = 0, replay = replay + 1, last_error = null,
        not_before = utc_timestamp(6), locked_by = null, locked_until = null,
        lane = case when wait = 'parked' then lane end,
        wait = case when wait = 'parked' then 'retry' else 'replay' end
    where sequence in ({list})";

const DISCARD: &str = "
    update {events}
    set discarded_at = utc_timestamp(6), dead_at = null, not_before = null, wait = null,
        lane = null, locked_by = null, locked_until = null
    where sequence in ({list})";

/// By a join: given a list and a small table, the server would walk through all rows and wait for
/// those that somebody has locked.
const DELETE: &str = "
    delete e, a from {sequences} v straight_join {events} e on e.sequence = v.sequence
    left join {attempts} a on a.sequence = e.sequence";

const FIRST_HELD: &str = concat!(
    "select e.sequence from {events} e force index ({bare}_lane_idx)
    where e.lane = ? and e.destination = ? and e.wait = 'held' and ",
    unsettled!(),
    " order by e.sequence limit 1"
);

const RELEASE: &str = "
    update {events} set not_before = utc_timestamp(6) where sequence = ? and wait = 'held'";

impl MySqlStore {
    /// Gives how many rows were picked: of a delete, the server would count the attempts too.
    async fn write_picked(
        &self,
        connection: &mut MySqlConnection,
        template: &'static str,
        picked: &[Picked],
    ) -> Result<u64> {
        for rows in picked.chunks(LIST) {
            let sequences: Vec<i64> = rows.iter().map(|row| row.sequence).collect();
            let mut query = sqlx::query(self.listing(template, sequences.len()));
            for sequence in padded(&sequences) {
                query = query.bind(sequence);
            }
            query.execute(&mut *connection).await.map_err(failed("writing what was picked"))?;
        }
        Ok(picked.len() as u64)
    }

    /// The first held event of each lane that lost its blocker falls due: a relay that reads it
    /// lets the lane go on.
    async fn release_lanes(
        &self,
        connection: &mut MySqlConnection,
        picked: &[Picked],
    ) -> Result<()> {
        for (lane, destination) in picked.iter().filter_map(|row| row.blocks.as_ref()) {
            let held: Option<i64> = sqlx::query_scalar(self.tables.sql(FIRST_HELD))
                .bind(lane)
                .bind(destination)
                .fetch_optional(&mut *connection)
                .await
                .map_err(failed("releasing lanes"))?;
            if let Some(sequence) = held {
                sqlx::query(self.tables.sql(RELEASE))
                    .bind(sequence)
                    .execute(&mut *connection)
                    .await
                    .map_err(failed("releasing lanes"))?;
            }
        }
        Ok(())
    }
}

const POSITION: &str = "select purge_position from {meta} where id = 1";

const EXAMINE: &str = "
    select sequence,
        coalesce(coalesce(sent_at, discarded_at)
            < timestampadd(microsecond, -?, utc_timestamp(6)), 0),
        created_at < timestampadd(microsecond, -?, utc_timestamp(6)),
        created_at < utc_timestamp(6) - interval 1 hour
    from {events} force index (primary)
    where sequence > ?
    order by sequence
    limit ?";

const LOCK_OLD: &str = concat!(
    "select ",
    picked!(),
    " from {events} e force index (primary)
    where e.sequence in ({list})
        and coalesce(e.sent_at, e.discarded_at) < timestampadd(microsecond, -?, utc_timestamp(6))
    for update {passing}"
);

const MOVE_POSITION: &str = "
    update {meta} set purge_position = ? where id = 1 and purge_position = ?";

const FIND_OLD_DEAD: &str = "
    select sequence from {events}
    where dead_at < timestampadd(microsecond, -?, utc_timestamp(6))
        and sent_at is null and discarded_at is null
    order by dead_at
    limit ?";

impl MySqlStore {
    /// Deletes what was sent or discarded long ago among the next rows behind the cursor.
    async fn purge_settled(
        &self,
        retention: Duration,
        batch: usize,
        cursor: Option<i64>,
    ) -> Result<Purged> {
        let stored: i64 = sqlx::query_scalar(self.tables.sql(POSITION))
            .fetch_one(&self.pool)
            .await
            .map_err(failed("purging"))?;
        let start = cursor.unwrap_or(stored);
        let examined: Vec<(i64, bool, bool, bool)> = sqlx::query_as(self.tables.sql(EXAMINE))
            .bind(micros(retention))
            .bind(micros(retention))
            .bind(start)
            .bind(batch as u64)
            .fetch_all(&self.pool)
            .await
            .map_err(failed("purging"))?;
        let Some(&(last, _, old, past_late_commits)) = examined.last() else {
            return Ok(Purged::default());
        };
        let candidates: Vec<i64> = examined.iter().filter(|row| row.1).map(|row| row.0).collect();
        let deleted = self.delete_old(&candidates, retention).await?;
        // The stored position only passes what was deleted, and stays an hour behind: an event of
        // a transaction that is still open can have a lower sequence.
        if start == stored && deleted == examined.len() as u64 && past_late_commits {
            sqlx::query(self.tables.sql(MOVE_POSITION))
                .bind(last)
                .bind(stored)
                .execute(&self.pool)
                .await
                .map_err(failed("purging"))?;
        }
        Ok(Purged { deleted, next: (examined.len() >= batch && old).then_some(last) })
    }

    /// The rows are judged again when they are locked: one may just have been replayed.
    async fn delete_old(&self, candidates: &[i64], retention: Duration) -> Result<u64> {
        let mut deleted = 0;
        for sequences in candidates.chunks(LIST) {
            let mut transaction = self.begin("purging").await?;
            let older_than = Some(micros(retention));
            let picked = self.lock_free(&mut transaction, LOCK_OLD, sequences, older_than).await?;
            deleted += self.write_picked(&mut transaction, DELETE, &picked).await?;
            transaction.commit().await.map_err(failed("purging"))?;
        }
        Ok(deleted)
    }

    /// Deletes events that have been dead for long, and lets their parked lanes go on.
    async fn purge_dead(&self, retention: Duration, batch: usize) -> Result<u64> {
        let found: Vec<i64> = sqlx::query_scalar(self.tables.sql(FIND_OLD_DEAD))
            .bind(micros(retention))
            .bind(batch as u64)
            .fetch_all(&self.pool)
            .await
            .map_err(failed("purging dead events"))?;
        if found.is_empty() {
            return Ok(0);
        }
        let mut transaction = self.begin("purging dead events").await?;
        // What died long ago and is dead when it is locked was not revived in between: a replay
        // that dies again would have had to be quick.
        let mut picked = self.pick(&mut transaction, &found, Step::Replay).await?;
        picked.retain(|row| row.status == Status::Dead);
        let deleted = self.write_picked(&mut transaction, DELETE, &picked).await?;
        self.release_lanes(&mut transaction, &picked).await?;
        transaction.commit().await.map_err(failed("purging dead events"))?;
        Ok(deleted)
    }
}
