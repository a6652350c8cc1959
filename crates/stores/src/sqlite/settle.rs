//! Writing outcomes back, fenced. The write lock is taken before the lease is looked at, so that
//! nobody can take the shard over between the look and the commit.

use std::collections::{HashMap, HashSet};

use async_trait::async_trait;
use posthaste_core::{
    Result,
    limits::cut_error,
    store::{Fence, Held, Settle, SettleReport, Settlement, Verdict},
};
use serde_json::{Value, json};
use sqlx::{Row, SqliteConnection};

use super::{
    SqliteStore,
    leases::pairs,
    list, micros,
    row::{FOR_EVER, now, unsettled},
};
use crate::failure::failed;

#[async_trait]
impl Settle for SqliteStore {
    async fn settle(
        &self,
        fence: &Fence,
        batch: &[Settlement],
        keep_sent: bool,
    ) -> Result<SettleReport> {
        let mut transaction = self.begin("settling").await?;
        let report = match fence {
            Fence::Shards { owner, held } => {
                let valid = self.valid(&mut transaction, owner, held).await?;
                let (right, lost): (Vec<_>, Vec<_>) = batch
                    .iter()
                    .partition(|settlement| valid.contains(&settlement.shard));
                self.write(&mut transaction, owner, None, &right, keep_sent)
                    .await?;
                SettleReport {
                    stale_shards: held
                        .iter()
                        .map(|held| held.shard)
                        .filter(|shard| !valid.contains(shard))
                        .collect(),
                    refused: lost
                        .into_iter()
                        .map(|settlement| settlement.sequence)
                        .collect(),
                }
            }
            Fence::Rows(lease) => {
                let all: Vec<_> = batch.iter().collect();
                let token = Some(lease.token.as_str());
                let written = self
                    .write(&mut transaction, &lease.token, token, &all, keep_sent)
                    .await?;
                let missed: Vec<_> = all
                    .into_iter()
                    .filter(|settlement| !written.contains(&settlement.sequence))
                    .collect();
                SettleReport {
                    stale_shards: Vec::new(),
                    refused: self.refused(&mut transaction, &missed).await?,
                }
            }
        };
        transaction.commit().await.map_err(failed("settling"))?;
        Ok(report)
    }
}

const VALID: &str = "
select shard from {shards}
where tenant_group = '' and locked_by = ?1
    and (shard, epoch) in (select value ->> 0, value ->> 1 from json_each(?2))";

impl SqliteStore {
    /// The shards of the fence that are still this owner's.
    async fn valid(
        &self,
        connection: &mut SqliteConnection,
        owner: &str,
        held: &[Held],
    ) -> Result<HashSet<u16>> {
        let shards: Vec<u16> = sqlx::query_scalar(self.tables.sql(VALID))
            .bind(owner)
            .bind(pairs(held))
            .fetch_all(connection)
            .await
            .map_err(failed("checking leases"))?;
        Ok(shards.into_iter().collect())
    }

    /// Writes what may be written and gives the sequences that were. With a token only rows that
    /// carry it are touched.
    async fn write(
        &self,
        connection: &mut SqliteConnection,
        relay: &str,
        token: Option<&str>,
        batch: &[&Settlement],
        keep_sent: bool,
    ) -> Result<HashSet<i64>> {
        let (mut sent, mut retry, mut dead) = (Vec::new(), Vec::new(), Vec::new());
        let (mut held, mut suspect, mut unclaimed) = (Vec::new(), Vec::new(), Vec::new());
        for settlement in batch {
            let row = row(settlement);
            match &settlement.verdict {
                Verdict::Sent => sent.push(row),
                Verdict::Retry { .. } => retry.push(row),
                Verdict::Dead { .. } => dead.push(row),
                Verdict::Held { .. } => held.push(row),
                Verdict::Suspect { .. } => suspect.push(row),
                Verdict::Unclaimed => unclaimed.push(row),
            }
        }
        let mut written = HashSet::with_capacity(batch.len());
        let sent_statement = if keep_sent { SENT } else { DELETE_SENT };
        let gone = self.update(connection, sent_statement, token, sent).await?;
        if !keep_sent && !gone.is_empty() {
            self.forget_attempts(connection, &gone).await?;
        }
        written.extend(gone);
        let mut failures = self.update(connection, RETRY, token, retry).await?;
        failures.extend(self.update(connection, DEAD, token, dead).await?);
        self.record_attempts(connection, relay, &failures).await?;
        written.extend(failures);
        written.extend(self.update(connection, HELD, token, held).await?);
        written.extend(self.update(connection, SUSPECT, token, suspect).await?);
        written.extend(self.update(connection, UNCLAIMED, token, unclaimed).await?);
        Ok(written)
    }

    async fn update(
        &self,
        connection: &mut SqliteConnection,
        statement: &'static str,
        token: Option<&str>,
        rows: Vec<Value>,
    ) -> Result<Vec<i64>> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        sqlx::query_scalar(self.tables.sql(statement))
            .bind(list(rows))
            .bind(token)
            .fetch_all(connection)
            .await
            .map_err(failed("settling"))
    }
}

/// What the statements below take from a settlement, by its short names: `s`equence, `n`umber of
/// attempts, `a`fter, `e`rror, `d`estination, `l`ane, `w`ait, `b`efore.
fn row(settlement: &Settlement) -> Value {
    let (s, n) = (settlement.sequence, settlement.attempts);
    match &settlement.verdict {
        Verdict::Sent | Verdict::Unclaimed => json!({ "s": s }),
        Verdict::Retry {
            after,
            error,
            destination,
            key,
            replay,
        } => json!({
            "s": s, "n": n, "a": micros(*after), "e": error_text(error), "d": destination,
            "l": key.map(|key| key.0), "w": if *replay { "replay" } else { "retry" },
        }),
        Verdict::Dead {
            error,
            destination,
            parked,
        } => json!({
            "s": s, "n": n, "e": error_text(error), "d": destination,
            "l": parked.map(|key| key.0), "w": parked.map(|_| "parked"),
            "b": parked.map(|_| FOR_EVER),
        }),
        Verdict::Held { destination, key } => {
            json!({ "s": s, "d": destination, "l": key.0, "b": FOR_EVER })
        }
        Verdict::Suspect { destination, key } => {
            json!({ "s": s, "n": n, "d": destination, "l": key.map(|key| key.0) })
        }
    }
}

/// A text ends at its first NUL for most tools that read it.
fn error_text(error: &str) -> String {
    cut_error(error).replace('\0', "")
}

const SENT: &str = concat!(
    "update {events} set sent_at = ",
    now!(),
    ", not_before = null, wait = null, lane = null, locked_by = null, locked_until = null
where sequence in (select value ->> 's' from json_each(?1))
    and (?2 is null or locked_by = ?2) and ",
    unsettled!(),
    " returning sequence"
);

const DELETE_SENT: &str = concat!(
    "delete from {events}
where sequence in (select value ->> 's' from json_each(?1))
    and (?2 is null or locked_by = ?2) and ",
    unsettled!(),
    " returning sequence"
);

const RETRY: &str = concat!(
    "update {events} set attempts = v.value ->> 'n', wait = v.value ->> 'w',
    lane = v.value ->> 'l', destination = v.value ->> 'd', last_error = v.value ->> 'e',
    locked_by = null, locked_until = null, not_before = (v.value ->> 'a') + ",
    now!(),
    " from json_each(?1) v
where sequence = v.value ->> 's' and (?2 is null or locked_by = ?2) and ",
    unsettled!(),
    " returning sequence"
);

const DEAD: &str = concat!(
    "update {events} set attempts = v.value ->> 'n', wait = v.value ->> 'w',
    lane = v.value ->> 'l', destination = v.value ->> 'd', last_error = v.value ->> 'e',
    locked_by = null, locked_until = null, not_before = v.value ->> 'b', dead_at = ",
    now!(),
    " from json_each(?1) v
where sequence = v.value ->> 's' and (?2 is null or locked_by = ?2) and ",
    unsettled!(),
    " returning sequence"
);

const HELD: &str = concat!(
    "update {events} set wait = 'held', lane = v.value ->> 'l', destination = v.value ->> 'd',
    locked_by = null, locked_until = null, not_before = v.value ->> 'b'
from json_each(?1) v
where sequence = v.value ->> 's' and (?2 is null or locked_by = ?2) and ",
    unsettled!(),
    " returning sequence"
);

const SUSPECT: &str = concat!(
    "update {events} set attempts = v.value ->> 'n', wait = 'suspect', lane = v.value ->> 'l',
    destination = v.value ->> 'd', not_before = ",
    now!(),
    " from json_each(?1) v
where sequence = v.value ->> 's' and (?2 is null or locked_by = ?2) and ",
    unsettled!(),
    " returning sequence"
);

const UNCLAIMED: &str = concat!(
    "update {events} set locked_by = null, locked_until = null
where sequence in (select value ->> 's' from json_each(?1))
    and (?2 is null or locked_by = ?2) and ",
    unsettled!(),
    " returning sequence"
);

const RECORD_ATTEMPTS: &str = concat!(
    "insert into {attempts} (sequence, replay, attempt, at, relay, destination, error)
select sequence, replay, attempts, ",
    now!(),
    ", ?2, destination, last_error
from {events}
where sequence in (select value from json_each(?1)) and attempts > 0
on conflict (sequence, replay, attempt) do nothing"
);

const FORGET_ATTEMPTS: &str =
    "delete from {attempts} where sequence in (select value from json_each(?1))";

impl SqliteStore {
    /// One row a failed attempt, from what the event's row says by now. A failure that burns no
    /// attempt has its number already, or none.
    async fn record_attempts(
        &self,
        connection: &mut SqliteConnection,
        relay: &str,
        sequences: &[i64],
    ) -> Result<()> {
        if sequences.is_empty() {
            return Ok(());
        }
        sqlx::query(self.tables.sql(RECORD_ATTEMPTS))
            .bind(list(sequences.iter().copied()))
            .bind(relay)
            .execute(connection)
            .await
            .map_err(failed("recording attempts"))?;
        Ok(())
    }

    /// Attempts go with their event.
    pub(super) async fn forget_attempts(
        &self,
        connection: &mut SqliteConnection,
        sequences: &[i64],
    ) -> Result<()> {
        sqlx::query(self.tables.sql(FORGET_ATTEMPTS))
            .bind(list(sequences.iter().copied()))
            .execute(connection)
            .await
            .map_err(failed("deleting attempts"))?;
        Ok(())
    }
}

const STATES: &str = "
select sequence, attempts, coalesce(wait, '') as wait, locked_by is not null as locked,
    sent_at is not null as sent, dead_at is not null as dead,
    discarded_at is not null as discarded
from {events}
where sequence in (select value from json_each(?1))";

/// Where a row stands that a settle did not write.
struct State {
    attempts: u32,
    wait: String,
    locked: bool,
    sent: bool,
    dead: bool,
    settled: bool,
}

impl SqliteStore {
    /// Those that were not written and do not stand where this settle would have put them: a
    /// repeat of what was written before is no refusal.
    async fn refused(
        &self,
        connection: &mut SqliteConnection,
        missed: &[&Settlement],
    ) -> Result<Vec<i64>> {
        if missed.is_empty() {
            return Ok(Vec::new());
        }
        let rows = sqlx::query(self.tables.sql(STATES))
            .bind(list(missed.iter().map(|settlement| settlement.sequence)))
            .fetch_all(connection)
            .await
            .map_err(failed("settling"))?;
        let mut states = HashMap::with_capacity(rows.len());
        for row in &rows {
            let state = State::of(row).map_err(failed("settling"))?;
            states.insert(
                row.try_get::<i64, _>("sequence")
                    .map_err(failed("settling"))?,
                state,
            );
        }
        let repeated = |settlement: &Settlement| {
            State::is_repeat(states.get(&settlement.sequence), settlement)
        };
        Ok(missed
            .iter()
            .filter(|settlement| !repeated(settlement))
            .map(|settlement| settlement.sequence)
            .collect())
    }
}

impl State {
    fn of(row: &sqlx::sqlite::SqliteRow) -> sqlx::Result<Self> {
        let (sent, dead) = (row.try_get("sent")?, row.try_get("dead")?);
        Ok(Self {
            attempts: row.try_get("attempts")?,
            wait: row.try_get("wait")?,
            locked: row.try_get("locked")?,
            sent,
            dead,
            settled: sent || dead || row.try_get("discarded")?,
        })
    }

    fn is_repeat(state: Option<&Self>, settlement: &Settlement) -> bool {
        let Some(state) = state else {
            // Sent and deleted at once, or purged since.
            return settlement.verdict == Verdict::Sent;
        };
        let waits = |wait: &str| !state.settled && !state.locked && state.wait == wait;
        match &settlement.verdict {
            Verdict::Sent => state.sent,
            Verdict::Dead { .. } => state.dead,
            Verdict::Retry { replay, .. } => {
                waits(if *replay { "replay" } else { "retry" })
                    && state.attempts == settlement.attempts
            }
            Verdict::Held { .. } => waits("held"),
            Verdict::Suspect { .. } => {
                state.wait == "suspect" && state.attempts == settlement.attempts
            }
            Verdict::Unclaimed => !state.settled && !state.locked,
        }
    }
}
