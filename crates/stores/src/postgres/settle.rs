//! Writing outcomes back, fenced.
//!
//! Under shard leases the statement that marks events sent first locks its lease rows in share
//! mode, in shard order, and compares owner and epoch. Whoever takes a shard over updates that row:
//! either the takeover waits for the settle, or the settle waits for the takeover, looks at the
//! row again, and is refused. Other outcomes are written in the same transaction, behind it.

use std::collections::HashSet;

use async_trait::async_trait;
use posthaste_core::{
    Result,
    store::{Fence, Held, Identity, RowLease, Settle, SettleReport, Settlement, Verdict},
};
use sqlx::PgConnection;

use super::{
    PostgresStore,
    outcomes::{Failure, Outcomes, Span, replay},
};
use crate::failure::failed;

/// A few shards, asked about once for each event: a hash of each would cost more than all comparisons.
struct Sorted(Vec<u16>);

impl Sorted {
    fn of(shards: impl Iterator<Item = u16>) -> Self {
        let mut shards: Vec<u16> = shards.collect();
        shards.sort_unstable();
        Self(shards)
    }

    fn contains(&self, shard: u16) -> bool {
        self.0.binary_search(&shard).is_ok()
    }
}

#[async_trait]
impl Settle for PostgresStore {
    async fn settle(
        &self,
        fence: &Fence,
        batch: &[Settlement],
        keep_sent: bool,
    ) -> Result<SettleReport> {
        match fence {
            Fence::Shards { owner, held } => {
                // What the fence does not name is not written, whoever owns it.
                let named = Sorted::of(held.iter().map(|held| held.shard));
                let outcomes =
                    Outcomes::of(batch.iter().filter(|event| named.contains(event.shard)));
                let lease = self.settle_shards(owner, held, &outcomes, keep_sent).await?;
                let leased = Sorted::of(lease.iter().map(|&shard| shard as u16));
                Ok(SettleReport {
                    stale_shards: held
                        .iter()
                        .map(|h| h.shard)
                        .filter(|&s| !leased.contains(s))
                        .collect(),
                    refused: batch
                        .iter()
                        .filter(|event| !leased.contains(event.shard))
                        .map(|event| event.sequence)
                        .collect(),
                })
            }
            Fence::Rows(lease) => {
                let outcomes = Outcomes::of(batch.iter());
                let written = self.settle_rows(lease, &outcomes, keep_sent).await?;
                let missing = batch.iter().filter(|event| !written.contains(&event.sequence));
                let refused = self.refused(missing.collect(), keep_sent).await?;
                Ok(SettleReport { stale_shards: Vec::new(), refused })
            }
        }
    }

    async fn locked(&self, sequences: &[i64]) -> Result<Vec<i64>> {
        const LOCKED: &str = "
            with free as materialized (
                select e.sequence from {events} e where e.sequence = any($1)
                for update skip locked
            )
            select e.sequence from {events} e
            where e.sequence = any($1)
              and not exists (select 1 from free f where f.sequence = e.sequence)";

        let mut session = self.sessions.take("asking for locked rows").await?;
        let locked = sqlx::query_scalar(self.tables.sql(LOCKED))
            .bind(sequences)
            .fetch_all(&mut *session)
            .await
            .map_err(failed("asking for locked rows"))?;
        session.done();
        Ok(locked)
    }
}

/// The leases of the owner `$1` on the shards `$2`, locked until the transaction ends. They are only
/// compared with the epochs `$3` once they are locked: a join here is planned badly as long as
/// nobody has analysed the table, and then takes longer than all the rest.
macro_rules! lease {
    () => {
        concat!(
            "with lease as materialized (
                select shard, epoch from {shards}
                where tenant_group = '' and locked_by = $1 and shard = any($2) and ",
            alive!(),
            "
                order by shard
                for share
            )"
        )
    };
}

/// Whether all leases are held: `$2` and `$3` are in the order of the shards. A subquery, so that it
/// is asked once and not for every row.
macro_rules! all_held {
    () => {
        "(select array(select epoch from lease) = $3)"
    };
}

/// The shards whose lease is held.
macro_rules! held {
    () => {
        "array(
            select l.shard from lease l
            join unnest($2, $3) as h (shard, epoch) on h.shard = l.shard and h.epoch = l.epoch
        )"
    };
}

/// Which of the events `$rows` may be written: with `$6` all of them or none.
macro_rules! allowed {
    ($rows:expr) => {
        concat!(
            $rows,
            " and case when $6 then ",
            all_held!(),
            " else e.shard = any(",
            held!(),
            ") end and ",
            unsettled!()
        )
    };
}

/// Marks under leases.
macro_rules! mark {
    ($rows:expr) => {
        concat!(
            lease!(),
            ", done as (
                update {events} e
                set sent_at = clock_timestamp(), not_before = null, wait = null, lane = null,
                    locked_by = null, locked_until = null
                where ",
            allowed!($rows),
            ")
            ",
            held_now!()
        )
    };
}

/// Deletes under leases.
macro_rules! delete {
    ($rows:expr) => {
        concat!(
            lease!(),
            ", done as (
                delete from {events} e
                where ",
            allowed!($rows),
            "
                returning e.sequence, e.attempts, e.replay
            ),
            forgotten as (
                delete from {attempts} where sequence = any(array(
                    select sequence from done where attempts > 0 or replay > 0
                ))
            )
            ",
            held_now!()
        )
    };
}

/// The events `$4`, each by itself, as far as they are still those of the ids `$7` and replays `$8`, or have
/// no id in `$7`. `is true` keeps the list a list: as a join it is planned badly as long as nobody has
/// analysed the table.
macro_rules! each {
    () => {
        "e.sequence = any($4) and (
            ((e.sequence, e.event_id, e.replay) in (
                select * from unnest($4::bigint[], $7::uuid[], $8::int[])
            )) is true
            or (e.sequence in (
                select sequence from unnest($4::bigint[], $7::uuid[]) as u (sequence, id)
                where id is null
            )) is true
        )"
    };
}

/// The events from `$7` to `$8` but those from `$9` to before `$10`, each with its id at its place in `$4`:
/// one walk along the index, where [`each`] starts at its root for every event, which is a quarter of the
/// time of a mark (measured).
macro_rules! span {
    () => {
        "e.sequence between $7 and $8 and (e.sequence < $9 or e.sequence >= $10)
            and e.replay = 0
            and e.event_id = ($4::uuid[])[(
                e.sequence - $7 + 1 - case when e.sequence < $9 then 0 else $10 - $9 end
            )::int]"
    };
}

/// The answer. With `$5` the transaction does not wait for the disk.
macro_rules! held_now {
    () => {
        concat!(
            "select case when ",
            all_held!(),
            " then $2 else ",
            held!(),
            " end, case when $5 then set_config('synchronous_commit', 'off', true) end"
        )
    };
}

/// The outcomes `t` that an update of `e` writes, as far as there is a right to it. All kinds take
/// the same values; not all use the relay's name.
macro_rules! given {
    () => {
        concat!(
            "from unnest($4::bigint[], $5::int[], $6::bigint[], $7::text[], $8::bigint[],
                $9::text[], $10::text[], $11::uuid[], $12::int[])
                as t (sequence, attempts, after, wait, lane, destination, error, id, replay)
            where e.sequence = t.sequence and $3::text is not null
              and (t.id is null or e.event_id = t.id and e.replay = t.replay)
              and (e.shard = any($1) or e.locked_by = $2) and ",
            unsettled!()
        )
    };
}

/// The right under which rows other than sent ones are written: one of the two is given.
#[derive(Clone, Copy)]
struct Right<'r> {
    /// The shards whose lease rows this transaction has locked.
    lease: Option<&'r [i32]>,
    token: Option<&'r str>,
    /// What the attempts table says about who tried.
    relay: &'r str,
}

impl PostgresStore {
    /// Gives the shards whose lease is still held.
    async fn settle_shards(
        &self,
        owner: &str,
        held: &[Held],
        outcomes: &Outcomes<'_>,
        keep_sent: bool,
    ) -> Result<Vec<i32>> {
        let mut session = self.sessions.take("settling").await?;
        if outcomes.only_sent() {
            let lease =
                self.sent_under_lease(&mut session, owner, held, outcomes, keep_sent, true).await?;
            session.done();
            return Ok(lease);
        }
        let mut transaction = Self::begin(&mut session, "settling").await?;
        let lease = self
            .sent_under_lease(&mut transaction, owner, held, outcomes, keep_sent, false)
            .await?;
        let right = Right { lease: Some(&lease), token: None, relay: owner };
        self.others(&mut transaction, right, outcomes).await?;
        transaction.commit().await.map_err(failed("settling"))?;
        session.done();
        Ok(lease)
    }

    async fn sent_under_lease(
        &self,
        connection: &mut PgConnection,
        owner: &str,
        held: &[Held],
        outcomes: &Outcomes<'_>,
        keep_sent: bool,
        alone: bool,
    ) -> Result<Vec<i32>> {
        const MARK: [&str; 2] = [mark!(each!()), mark!(span!())];
        const DELETE: [&str; 2] = [delete!(each!()), delete!(span!())];

        let statements = if keep_sent { MARK } else { DELETE };
        let span = Span::of(&outcomes.sent);
        let statement = statements[usize::from(span.is_some())];
        let mut held = held.to_vec();
        held.sort_unstable();
        let shards: Vec<i32> = held.iter().map(|held| i32::from(held.shard)).collect();
        let epochs: Vec<i64> = held.iter().map(|held| held.epoch).collect();
        // Nearly always every lease is held: then one comparison decides for all rows. Otherwise
        // nothing was written, and each row is held against the leases that are left.
        let mut lease: Vec<i32> = Vec::new();
        for all_or_nothing in [true, false] {
            // Marks alone need not reach the disk at once: when the server loses the last of them
            // in a crash, those events are delivered twice, and nothing worse. Waiting for the disk
            // would be most of the relay's time. Deaths, retries and leases do wait.
            let query = sqlx::query_scalar(self.tables.sql(statement))
                .bind(owner)
                .bind(&shards)
                .bind(&epochs);
            let query = match &span {
                Some(Span { first, last, gap, ids }) => query
                    .bind(ids)
                    .bind(alone)
                    .bind(all_or_nothing)
                    .bind(first)
                    .bind(last)
                    .bind(gap.start)
                    .bind(gap.end),
                None => query
                    .bind(sequences(&outcomes.sent))
                    .bind(alone)
                    .bind(all_or_nothing)
                    .bind(outcomes.sent.iter().map(|(_, identity)| identity.id).collect::<Vec<_>>())
                    .bind(
                        outcomes
                            .sent
                            .iter()
                            .map(|&(_, identity)| replay(identity))
                            .collect::<Vec<_>>(),
                    ),
            };
            lease = query.fetch_one(&mut *connection).await.map_err(failed("settling"))?;
            if lease.len() == held.len() || lease.is_empty() {
                break;
            }
        }
        Ok(lease)
    }

    /// Gives the rows that were written.
    async fn settle_rows(
        &self,
        lease: &RowLease,
        outcomes: &Outcomes<'_>,
        keep_sent: bool,
    ) -> Result<HashSet<i64>> {
        let mut session = self.sessions.take("settling").await?;
        if outcomes.only_sent() {
            let sent =
                self.sent_under_token(&mut session, lease, outcomes, keep_sent, true).await?;
            session.done();
            return Ok(sent.into_iter().collect());
        }
        let mut transaction = Self::begin(&mut session, "settling").await?;
        let sent =
            self.sent_under_token(&mut transaction, lease, outcomes, keep_sent, false).await?;
        let right = Right { lease: None, token: Some(&lease.token), relay: owner_of(&lease.token) };
        let mut written = self.others(&mut transaction, right, outcomes).await?;
        transaction.commit().await.map_err(failed("settling"))?;
        session.done();
        written.extend(sent);
        Ok(written)
    }

    async fn sent_under_token(
        &self,
        connection: &mut PgConnection,
        lease: &RowLease,
        outcomes: &Outcomes<'_>,
        keep_sent: bool,
        alone: bool,
    ) -> Result<Vec<i64>> {
        const MARK: &str = concat!(
            "with quick as materialized (
                select case when $3 then set_config('synchronous_commit', 'off', true) end
            )
            update {events} e
            set sent_at = clock_timestamp(), not_before = null, wait = null, lane = null,
                locked_by = null, locked_until = null
            where e.sequence = any($2) and e.locked_by = $1 and exists (select from quick) and ",
            unsettled!(),
            " returning e.sequence"
        );
        const DELETE: &str = concat!(
            "with quick as materialized (
                select case when $3 then set_config('synchronous_commit', 'off', true) end
            ),
            done as (
                delete from {events} e
                where e.sequence = any($2) and e.locked_by = $1 and exists (select from quick) and ",
            unsettled!(),
            "
                returning e.sequence, e.attempts, e.replay
            ),
            forgotten as (
                delete from {attempts} where sequence = any(array(
                    select sequence from done where attempts > 0 or replay > 0
                ))
            )
            select sequence from done"
        );

        if outcomes.sent.is_empty() {
            return Ok(Vec::new());
        }
        sqlx::query_scalar(self.tables.sql(if keep_sent { MARK } else { DELETE }))
            .bind(&lease.token)
            .bind(sequences(&outcomes.sent))
            .bind(alone)
            .fetch_all(connection)
            .await
            .map_err(failed("settling"))
    }

    /// Everything but sent, a kind at a time. Gives the rows that were written.
    async fn others(
        &self,
        connection: &mut PgConnection,
        right: Right<'_>,
        outcomes: &Outcomes<'_>,
    ) -> Result<HashSet<i64>> {
        const RETRY: &str = concat!(
            "with written as (
                update {events} e
                set attempts = t.attempts, wait = t.wait, lane = t.lane,
                    not_before = clock_timestamp() + t.after * interval '1 microsecond',
                    destination = t.destination, last_error = t.error,
                    locked_by = null, locked_until = null ",
            given!(),
            " returning e.sequence, e.replay, t.attempts, t.destination, t.error
            ),
            noted as (
                insert into {attempts} (sequence, replay, attempt, relay, destination, error)
                select sequence, replay, attempts, $3, destination, error
                from written where attempts > 0
                on conflict do nothing
            )
            select sequence from written"
        );
        const DEAD: &str = concat!(
            "with written as (
                update {events} e
                set dead_at = clock_timestamp(), attempts = t.attempts, lane = t.lane,
                    wait = case when t.lane is not null then 'parked' end,
                    not_before = case when t.lane is not null then timestamptz 'infinity' end,
                    destination = t.destination, last_error = t.error,
                    locked_by = null, locked_until = null ",
            given!(),
            " returning e.sequence, e.replay, t.attempts, t.destination, t.error
            ),
            noted as (
                insert into {attempts} (sequence, replay, attempt, relay, destination, error)
                select sequence, replay, attempts, $3, destination, error from written
                on conflict do nothing
            )
            select sequence from written"
        );
        const HELD: &str = concat!(
            "update {events} e
            set not_before = 'infinity', wait = 'held', lane = t.lane,
                destination = t.destination, locked_by = null, locked_until = null ",
            given!(),
            " returning e.sequence"
        );
        // The row lease stays: the dispatch comes next.
        const SUSPECT: &str = concat!(
            "update {events} e
            set attempts = t.attempts, not_before = clock_timestamp(), wait = t.wait,
                lane = t.lane, destination = t.destination ",
            given!(),
            " returning e.sequence"
        );
        const UNCLAIMED: &str = concat!(
            "update {events} e set locked_by = null, locked_until = null
            where e.sequence = any($3) and (e.shard = any($1) or e.locked_by = $2) and ",
            unsettled!(),
            " returning e.sequence"
        );

        let mut written = HashSet::new();
        for (statement, failures) in [
            (RETRY, &outcomes.retry),
            (DEAD, &outcomes.dead),
            (HELD, &outcomes.held),
            (SUSPECT, &outcomes.suspect),
        ] {
            written.extend(self.write(connection, right, statement, failures).await?);
        }
        if !outcomes.unclaimed.is_empty() {
            let unclaimed: Vec<i64> = sqlx::query_scalar(self.tables.sql(UNCLAIMED))
                .bind(right.lease)
                .bind(right.token)
                .bind(&outcomes.unclaimed)
                .fetch_all(connection)
                .await
                .map_err(failed("settling"))?;
            written.extend(unclaimed);
        }
        Ok(written)
    }

    async fn write(
        &self,
        connection: &mut PgConnection,
        right: Right<'_>,
        statement: &'static str,
        failures: &[Failure<'_>],
    ) -> Result<Vec<i64>> {
        fn column<'f, T>(failures: &'f [Failure<'_>], of: impl Fn(&'f Failure<'_>) -> T) -> Vec<T> {
            failures.iter().map(of).collect()
        }
        if failures.is_empty() {
            return Ok(Vec::new());
        }
        sqlx::query_scalar(self.tables.sql(statement))
            .bind(right.lease)
            .bind(right.token)
            .bind(right.relay)
            .bind(column(failures, |f| f.sequence))
            .bind(column(failures, |f| f.attempts))
            .bind(column(failures, |f| f.after))
            .bind(column(failures, |f| f.wait))
            .bind(column(failures, |f| f.lane))
            .bind(column(failures, |f| f.destination))
            .bind(column(failures, |f| f.error.as_str()))
            .bind(column(failures, |f| f.id))
            .bind(column(failures, |f| f.replay))
            .fetch_all(connection)
            .await
            .map_err(failed("settling"))
    }

    /// Of the events that a row lease did not write: those that do not stand there just as this
    /// settle wanted, because an earlier try of it got through.
    async fn refused(&self, missing: Vec<&Settlement>, keep_sent: bool) -> Result<Vec<i64>> {
        const STANDING: &str = "
            select sequence, sent_at is not null, dead_at is not null, attempts, wait,
                   locked_by is null
            from {events}
            where sequence = any($1)";

        if missing.is_empty() {
            return Ok(Vec::new());
        }
        let sequences: Vec<i64> = missing.iter().map(|event| event.sequence).collect();
        let standing: Vec<(i64, bool, bool, i32, Option<String>, bool)> =
            sqlx::query_as(self.tables.sql(STANDING))
                .bind(sequences)
                .fetch_all(&self.pool)
                .await
                .map_err(failed("settling"))?;
        let stands = |event: &&Settlement| {
            let row = standing.iter().find(|row| row.0 == event.sequence);
            let Some((_, sent, dead, attempts, wait, free)) = row else {
                return event.verdict == Verdict::Sent && !keep_sent;
            };
            let waits = |names: &[&str]| wait.as_deref().is_some_and(|w| names.contains(&w));
            match &event.verdict {
                Verdict::Sent => *sent,
                Verdict::Dead { .. } => *dead,
                Verdict::Retry { .. } => {
                    *free && waits(&["retry", "replay"]) && *attempts == event.attempts as i32
                }
                Verdict::Held { .. } => *free && waits(&["held"]),
                Verdict::Suspect { .. } => false,
                Verdict::Unclaimed => *free && !*sent && !*dead,
            }
        };
        Ok(missing.into_iter().filter(|event| !stands(event)).map(|event| event.sequence).collect())
    }
}

fn sequences(sent: &[(i64, Identity)]) -> Vec<i64> {
    sent.iter().map(|(sequence, _)| *sequence).collect()
}

/// The relay's owner text out of a claim's token, which adds the number of the claim.
fn owner_of(token: &str) -> &str {
    token.rsplit_once('#').map_or(token, |(owner, _)| owner)
}
