//! Writing outcomes back, fenced.
//!
//! The write lock is taken before the lease rows are looked at: nobody can take a shard over
//! between the look and the commit. All outcomes of a batch are written in that transaction.

use std::collections::HashSet;

use async_trait::async_trait;
use posthaste_core::{
    Key, Result,
    limits::cut_error,
    store::{Fence, Held, Identity, RowLease, Settle, SettleReport, Settlement, Verdict},
};
use serde_json::{Value, json};
use sqlx::SqliteConnection;

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
        match fence {
            Fence::Shards { owner, held } => {
                self.settle_shards(owner, held, batch, keep_sent).await
            }
            Fence::Rows(lease) => self.settle_rows(lease, batch, keep_sent).await,
        }
    }

    /// SQLite locks no rows.
    async fn locked(&self, _: &[i64]) -> Result<Vec<i64>> {
        Ok(Vec::new())
    }
}

/// A batch by what is to be written.
#[derive(Default)]
struct Outcomes {
    sent: Vec<(i64, Identity)>,
    retry: Vec<Value>,
    dead: Vec<Value>,
    held: Vec<Value>,
    suspect: Vec<Value>,
    unclaimed: Vec<i64>,
}

impl Outcomes {
    fn of<'b>(batch: impl IntoIterator<Item = &'b Settlement>) -> Self {
        let mut outcomes = Self::default();
        for event in batch {
            let failure = |destination: &str, key: Option<Key>, error: &str| {
                json!({
                    "sequence": event.sequence, "id": event.identity.id.map(|id| id.to_string()),
                    "replay": event.identity.replay, "attempts": event.attempts,
                    "lane": key.map(|key| key.0), "destination": destination,
                    "error": error_text(error),
                })
            };
            match &event.verdict {
                Verdict::Sent => outcomes.sent.push((event.sequence, event.identity)),
                Verdict::Retry { after, error, destination, key, replay } => {
                    let mut retry = failure(destination, *key, error);
                    retry["after"] = micros(*after).into();
                    retry["wait"] = if *replay { "replay" } else { "retry" }.into();
                    outcomes.retry.push(retry);
                }
                Verdict::Dead { error, destination, parked } => {
                    outcomes.dead.push(failure(destination, *parked, error));
                }
                Verdict::Held { destination, key } => {
                    outcomes.held.push(failure(destination, Some(*key), ""));
                }
                Verdict::Suspect { destination, key, replay } => {
                    let mut suspect = failure(destination, *key, "");
                    suspect["wait"] = if *replay { "replay" } else { "suspect" }.into();
                    outcomes.suspect.push(suspect);
                }
                Verdict::Unclaimed => outcomes.unclaimed.push(event.sequence),
            }
        }
        outcomes
    }
}

/// The error as it is kept: cut, and without the character at which most tools end a text.
fn error_text(error: &str) -> String {
    cut_error(error).replace('\0', "")
}

/// Whether a row is the event that was read: nothing else has an id of these, and a replay counts anew.
macro_rules! same {
    () => {
        "(?3 or event_id in (select value from json_each(?4))) and replay = ?5"
    };
}

/// The same of one row `t`.
macro_rules! same_as_t {
    () => {
        "(t.value ->> 'id' is null
            or e.event_id = t.value ->> 'id' and e.replay = t.value ->> 'replay')"
    };
}

/// The right under which rows are written.
#[derive(Clone, Copy)]
struct Right<'r> {
    /// Only rows that carry it are written. `None`: the lease of their shard was looked at.
    token: Option<&'r str>,
    /// What the attempts table says about who tried.
    relay: &'r str,
}

impl SqliteStore {
    async fn settle_shards(
        &self,
        owner: &str,
        held: &[Held],
        batch: &[Settlement],
        keep_sent: bool,
    ) -> Result<SettleReport> {
        const LEASE: &str = "
            select shard from {shards}
            where tenant_group = '' and locked_by = ?1
              and (shard, epoch) in (select value ->> 0, value ->> 1 from json_each(?2))";

        let mut transaction = self.begin("settling").await?;
        let lease: Vec<u16> = sqlx::query_scalar(self.tables.sql(LEASE))
            .bind(owner)
            .bind(pairs(held))
            .fetch_all(&mut *transaction)
            .await
            .map_err(failed("settling"))?;
        let holds = |shard: u16| lease.contains(&shard);
        let outcomes = Outcomes::of(batch.iter().filter(|event| holds(event.shard)));
        let right = Right { token: None, relay: owner };
        self.write_all(&mut transaction, right, &outcomes, keep_sent).await?;
        transaction.commit().await.map_err(failed("settling"))?;
        Ok(SettleReport {
            stale_shards: held.iter().map(|h| h.shard).filter(|&s| !holds(s)).collect(),
            refused: batch
                .iter()
                .filter(|event| !holds(event.shard))
                .map(|event| event.sequence)
                .collect(),
        })
    }

    async fn settle_rows(
        &self,
        lease: &RowLease,
        batch: &[Settlement],
        keep_sent: bool,
    ) -> Result<SettleReport> {
        let mut transaction = self.begin("settling").await?;
        let right = Right { token: Some(&lease.token), relay: owner_of(&lease.token) };
        let outcomes = Outcomes::of(batch);
        let written = self.write_all(&mut transaction, right, &outcomes, keep_sent).await?;
        let missing = batch.iter().filter(|event| !written.contains(&event.sequence));
        let refused = self.refused(&mut transaction, missing.collect(), keep_sent).await?;
        transaction.commit().await.map_err(failed("settling"))?;
        Ok(SettleReport { stale_shards: Vec::new(), refused })
    }

    /// Writes a kind at a time. Gives the rows that were written.
    async fn write_all(
        &self,
        connection: &mut SqliteConnection,
        right: Right<'_>,
        outcomes: &Outcomes,
        keep_sent: bool,
    ) -> Result<HashSet<i64>> {
        const RETRY: &str = concat!(
            "update {events} as e
            set attempts = t.value ->> 'attempts', wait = t.value ->> 'wait',
                lane = t.value ->> 'lane', not_before = ",
            now!(),
            " + (t.value ->> 'after'),
                destination = t.value ->> 'destination', last_error = t.value ->> 'error',
                locked_by = null, locked_until = null
            from json_each(?1) t
            where e.sequence = t.value ->> 'sequence' and ",
            same_as_t!(),
            " and (?2 is null or locked_by = ?2) and ",
            unsettled!(),
            " returning sequence"
        );
        const DEAD: &str = concat!(
            "update {events} as e
            set dead_at = ",
            now!(),
            ", attempts = t.value ->> 'attempts', lane = t.value ->> 'lane',
                wait = case when t.value ->> 'lane' is not null then 'parked' end,
                not_before = case when t.value ->> 'lane' is not null then ?3 end,
                destination = t.value ->> 'destination', last_error = t.value ->> 'error',
                locked_by = null, locked_until = null
            from json_each(?1) t
            where e.sequence = t.value ->> 'sequence' and ",
            same_as_t!(),
            " and (?2 is null or locked_by = ?2) and ",
            unsettled!(),
            " returning sequence"
        );
        const HELD: &str = concat!(
            "update {events} as e
            set not_before = ?3, wait = 'held', lane = t.value ->> 'lane',
                destination = t.value ->> 'destination', locked_by = null, locked_until = null
            from json_each(?1) t
            where e.sequence = t.value ->> 'sequence' and ",
            same_as_t!(),
            " and (?2 is null or locked_by = ?2) and ",
            unsettled!(),
            " returning sequence"
        );
        // The row lease stays: the dispatch comes next.
        const SUSPECT: &str = concat!(
            "update {events} as e
            set attempts = t.value ->> 'attempts', not_before = ",
            now!(),
            ", wait = t.value ->> 'wait', lane = t.value ->> 'lane',
                destination = t.value ->> 'destination'
            from json_each(?1) t
            where e.sequence = t.value ->> 'sequence' and ",
            same_as_t!(),
            " and (?2 is null or locked_by = ?2) and ",
            unsettled!(),
            " returning sequence"
        );
        const UNCLAIMED: &str = concat!(
            "update {events} set locked_by = null, locked_until = null
            where sequence in (select value from json_each(?1))
              and (?2 is null or locked_by = ?2) and ",
            unsettled!(),
            " returning sequence"
        );

        let mut written: HashSet<i64> = HashSet::new();
        written.extend(self.sent(connection, right, &outcomes.sent, keep_sent).await?);
        let retry = self.write(connection, right, RETRY, &outcomes.retry).await?;
        let dead = self.write(connection, right, DEAD, &outcomes.dead).await?;
        written.extend(self.write(connection, right, HELD, &outcomes.held).await?);
        written.extend(self.write(connection, right, SUSPECT, &outcomes.suspect).await?);
        written.extend(self.write(connection, right, UNCLAIMED, &outcomes.unclaimed).await?);
        self.note(connection, right, &retry, &dead).await?;
        written.extend(retry.into_iter().chain(dead));
        Ok(written)
    }

    async fn sent(
        &self,
        connection: &mut SqliteConnection,
        right: Right<'_>,
        sent: &[(i64, Identity)],
        keep_sent: bool,
    ) -> Result<Vec<i64>> {
        const MARK: &str = concat!(
            "update {events}
            set sent_at = ",
            now!(),
            ", not_before = null, wait = null, lane = null, locked_by = null, locked_until = null
            where sequence in (select value from json_each(?1)) and ",
            same!(),
            " and (?2 is null or locked_by = ?2) and ",
            unsettled!(),
            " returning sequence"
        );
        const DELETE: &str = concat!(
            "delete from {events}
            where sequence in (select value from json_each(?1)) and ",
            same!(),
            " and (?2 is null or locked_by = ?2) and ",
            unsettled!(),
            " returning sequence"
        );

        let mut sent = sent.to_vec();
        sent.sort_by_key(|(_, identity)| identity.replay);
        let mut written = Vec::new();
        for alike in sent.chunk_by(|(_, one), (_, next)| one.replay == next.replay) {
            let ids = alike.iter().filter_map(|(_, identity)| identity.id).map(|id| id.to_string());
            let rows = sqlx::query_scalar(self.tables.sql(if keep_sent { MARK } else { DELETE }))
                .bind(list(alike.iter().map(|(sequence, _)| *sequence)))
                .bind(right.token)
                .bind(alike.iter().any(|(_, identity)| identity.id.is_none()))
                .bind(list(ids))
                .bind(alike.first().map(|(_, identity)| identity.replay))
                .fetch_all(&mut *connection)
                .await
                .map_err(failed("settling"))?;
            written.extend::<Vec<i64>>(rows);
        }
        if !keep_sent {
            self.forget_attempts(connection, &written).await?;
        }
        Ok(written)
    }

    async fn write<T: Into<Value> + Clone>(
        &self,
        connection: &mut SqliteConnection,
        right: Right<'_>,
        statement: &'static str,
        rows: &[T],
    ) -> Result<Vec<i64>> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        sqlx::query_scalar(self.tables.sql(statement))
            .bind(list(rows.iter().cloned()))
            .bind(right.token)
            .bind(FOR_EVER)
            .fetch_all(connection)
            .await
            .map_err(failed("settling"))
    }

    /// Notes failed attempts, from what their rows say by now. A retry that burns no attempt has
    /// none to note, or one that was noted before.
    async fn note(
        &self,
        connection: &mut SqliteConnection,
        right: Right<'_>,
        retry: &[i64],
        dead: &[i64],
    ) -> Result<()> {
        const NOTE: &str = concat!(
            "insert into {attempts} (sequence, replay, attempt, at, relay, destination, error)
            select sequence, replay, attempts, ",
            now!(),
            ", ?2, destination, last_error
            from {events}
            where sequence in (select value from json_each(?1))
              and (attempts > 0 or dead_at is not null)
            on conflict do nothing"
        );

        if retry.is_empty() && dead.is_empty() {
            return Ok(());
        }
        sqlx::query(self.tables.sql(NOTE))
            .bind(list(retry.iter().chain(dead).copied()))
            .bind(right.relay)
            .execute(connection)
            .await
            .map_err(failed("noting attempts"))?;
        Ok(())
    }

    /// Attempts go with their event.
    pub(super) async fn forget_attempts(
        &self,
        connection: &mut SqliteConnection,
        sequences: &[i64],
    ) -> Result<()> {
        const FORGET: &str =
            "delete from {attempts} where sequence in (select value from json_each(?1))";

        if sequences.is_empty() {
            return Ok(());
        }
        sqlx::query(self.tables.sql(FORGET))
            .bind(list(sequences.iter().copied()))
            .execute(connection)
            .await
            .map_err(failed("deleting attempts"))?;
        Ok(())
    }

    /// Of the events that a row lease did not write: those that do not stand there just as this
    /// settle wanted, because an earlier try of it got through.
    async fn refused(
        &self,
        connection: &mut SqliteConnection,
        missing: Vec<&Settlement>,
        keep_sent: bool,
    ) -> Result<Vec<i64>> {
        const STANDING: &str = "
            select sequence,
                   case when sent_at is not null then 'sent' when dead_at is not null then 'dead'
                       when discarded_at is not null then 'discarded' else coalesce(wait, '') end,
                   attempts, locked_by is null
            from {events}
            where sequence in (select value from json_each(?1))";

        if missing.is_empty() {
            return Ok(Vec::new());
        }
        let standing: Vec<(i64, String, u32, bool)> = sqlx::query_as(self.tables.sql(STANDING))
            .bind(list(missing.iter().map(|event| event.sequence)))
            .fetch_all(connection)
            .await
            .map_err(failed("settling"))?;
        let stands = |event: &&Settlement| {
            let row = standing.iter().find(|row| row.0 == event.sequence);
            let Some((_, state, attempts, free)) = row else {
                return event.verdict == Verdict::Sent && !keep_sent;
            };
            match &event.verdict {
                Verdict::Sent => state == "sent",
                Verdict::Dead { .. } => state == "dead",
                Verdict::Retry { replay, .. } => {
                    let wait = if *replay { "replay" } else { "retry" };
                    *free && state == wait && *attempts == event.attempts
                }
                Verdict::Held { .. } => *free && state == "held",
                Verdict::Suspect { .. } => false,
                Verdict::Unclaimed => {
                    *free && !matches!(state.as_str(), "sent" | "dead" | "discarded")
                }
            }
        };
        Ok(missing.into_iter().filter(|event| !stands(event)).map(|event| event.sequence).collect())
    }
}

/// The relay's owner text out of a claim's token, which adds the number of the claim.
fn owner_of(token: &str) -> &str {
    token.rsplit_once('#').map_or(token, |(owner, _)| owner)
}
