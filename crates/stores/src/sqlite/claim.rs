//! Taking single rows, for unordered work.
//!
//! `begin immediate` makes claimers take turns, so that no row needs a lock of its own. A look
//! beforehand keeps an idle relay away from the write lock. A claim never goes back behind its
//! cursor; a sweep (`claim_late`) does, for what was given back. Its context is the floor: all rows
//! up to it are settled or have a `not_before`, by which they are found.

use async_trait::async_trait;
use posthaste_core::{
    Result,
    store::{Claim, ClaimedRows, Fetched, Limit, Position, Relay, RowLease},
};
use sqlx::SqliteConnection;

use super::{
    SqliteStore,
    backlog::floor,
    list, micros,
    read::in_order,
    row::{columns, fetched, fetched_all, now, unsettled},
};
use crate::failure::failed;

/// The numbers of those of the rows before which there are fewer bytes than allowed.
macro_rules! within {
    ($rows:expr, $bytes:literal) => {
        concat!(
            "select sequence from (
                select sequence, coalesce(sum(length(cast(payload as blob))
                        + coalesce(length(cast(headers as blob)), 0))
                    over (order by sequence rows between unbounded preceding and 1 preceding), 0)
                    as bytes_before
                from (",
            $rows,
            ")
            ) where bytes_before < ",
            $bytes
        )
    };
}

/// So many bytes, as the database counts.
fn size(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[async_trait]
impl Claim for SqliteStore {
    async fn claim(
        &self,
        relay: &Relay,
        lease: &RowLease,
        from: &Position,
        limit: Limit,
    ) -> Result<ClaimedRows> {
        // Behind the lowest mark nothing fresh is left: neither the first claim of a relay nor
        // one that others outrun walks through what was sent.
        const ANY: &str = concat!(
            "select exists (
                select 1 from {events}
                where sequence > max(?1, ",
            floor!(),
            ")
                  and not_before is null and locked_until is null and ",
            unsettled!(),
            "
            ) or exists (
                select 1 from {events}
                where not_before <= ",
            now!(),
            " and locked_until is null and ",
            unsettled!(),
            "
            )"
        );

        let mut position = from.clone();
        let newest = self.newest().await?;
        let any: bool = sqlx::query_scalar(self.tables.sql(ANY))
            .bind(from.sequence)
            .fetch_one(&self.reader)
            .await
            .map_err(failed("claiming events"))?;
        if !any {
            position.sequence = position.sequence.max(newest);
            return Ok(ClaimedRows { rows: Vec::new(), position });
        }
        let mut transaction = self.begin("claiming events").await?;
        // Rows that fell due take at most half, so that neither kind starves.
        let half = limit.bytes.div_ceil(2);
        let due = Limit { rows: (limit.rows / 2).max(1), bytes: half };
        let mut rows = self.claim_due(&mut transaction, relay, lease, due).await?;
        let rest = Limit { rows: limit.rows.saturating_sub(rows.len()), bytes: half };
        let fresh = self.claim_fresh(&mut transaction, relay, lease, from.sequence, rest).await?;
        transaction.commit().await.map_err(failed("claiming events"))?;
        let last = fresh.iter().map(|row| row.sequence).max().unwrap_or(0);
        let size = fresh.iter().fold(0_usize, |size, row| size.saturating_add(row.bytes));
        let all = fresh.len() < rest.rows && size < rest.bytes;
        let passed = if all { last.max(newest) } else { last };
        position.sequence = position.sequence.max(passed);
        rows.extend(fresh);
        rows.sort_unstable_by_key(|row| row.sequence);
        Ok(ClaimedRows { rows, position })
    }

    async fn claim_late(
        &self,
        relay: &Relay,
        lease: &RowLease,
        from: &Position,
        limit: Limit,
    ) -> Result<ClaimedRows> {
        const LOWEST: &str = concat!(
            "select sequence from {events}
            where sequence > ?1 and sequence <= ?2 and not_before is null and ",
            unsettled!(),
            "
            order by sequence
            limit 1"
        );
        const CLAIM_LATE: &str = concat!(
            "update {events}
            set locked_by = ?1, locked_until = ",
            now!(),
            " + ?2
            where sequence in (",
            within!(
                concat!(
                    "select sequence, payload, headers from {events}
                    where sequence > ?3 and sequence <= ?4
                      and not_before is null and locked_until is null and ",
                    unsettled!(),
                    " order by sequence limit ?5"
                ),
                "?6"
            ),
            ")
            returning ",
            columns!()
        );
        // So that a restart does not sweep from the first event. A shard that somebody owns has
        // its owner's mark.
        const MARK: &str = concat!(
            "update {shards}
            set mark = ?1
            where tenant_group = '' and mark < ?1
              and (locked_by is null or locked_until < ",
            now!(),
            ")"
        );

        let floor = match from.context.parse() {
            Ok(floor) => floor,
            Err(_) => self.lowest_mark().await?,
        };
        let lowest: Option<i64> = sqlx::query_scalar(self.tables.sql(LOWEST))
            .bind(floor)
            .bind(from.sequence)
            .fetch_optional(&self.reader)
            .await
            .map_err(failed("claiming late events"))?;
        let moved = lowest.map_or(from.sequence, |lowest| lowest - 1).max(floor);
        let position = Position { sequence: from.sequence, context: moved.to_string() };
        if lowest.is_none() && moved == floor {
            return Ok(ClaimedRows { rows: Vec::new(), position });
        }
        let mut transaction = self.begin("claiming late events").await?;
        let rows = sqlx::query(self.tables.sql(CLAIM_LATE))
            .bind(&lease.token)
            .bind(micros(relay.lease))
            .bind(moved)
            .bind(from.sequence)
            .bind(limit.rows as i64)
            .bind(size(limit.bytes))
            .fetch_all(&mut *transaction)
            .await
            .map_err(failed("claiming late events"))?;
        sqlx::query(self.tables.sql(MARK))
            .bind(moved)
            .execute(&mut *transaction)
            .await
            .map_err(failed("claiming late events"))?;
        transaction.commit().await.map_err(failed("claiming late events"))?;
        let rows = in_order(&rows).map_err(failed("claiming late events"))?;
        Ok(ClaimedRows { rows, position })
    }

    async fn claim_expired(
        &self,
        relay: &Relay,
        lease: &RowLease,
        _until: i64,
    ) -> Result<Option<Fetched>> {
        const EXPIRED: &str = concat!(
            "select sequence from {events}
            where locked_until < ",
            now!(),
            " and ",
            unsettled!(),
            "
            order by locked_until
            limit 1"
        );
        const CLAIM_EXPIRED: &str = concat!(
            "update {events}
            set locked_by = ?1, locked_until = ",
            now!(),
            " + ?2, attempts = attempts + 1
            where sequence = ?3 and locked_until < ",
            now!(),
            " and ",
            unsettled!(),
            "
            returning ",
            columns!()
        );

        let expired: Option<i64> = sqlx::query_scalar(self.tables.sql(EXPIRED))
            .fetch_optional(&self.reader)
            .await
            .map_err(failed("claiming an expired event"))?;
        let Some(expired) = expired else {
            return Ok(None);
        };
        // All rows, although there is at most one: SQLite commits after the last row, and
        // `fetch_optional` would not see that the commit failed.
        let rows = sqlx::query(self.tables.sql(CLAIM_EXPIRED))
            .bind(&lease.token)
            .bind(micros(relay.lease))
            .bind(expired)
            .try_map(|row| fetched(&row))
            .fetch_all(&self.writer)
            .await
            .map_err(failed("claiming an expired event"))?;
        Ok(rows.into_iter().next())
    }

    async fn claim_hot(
        &self,
        relay: &Relay,
        lease: &RowLease,
        sequences: &[i64],
    ) -> Result<Vec<Fetched>> {
        const CLAIM_HOT: &str = concat!(
            "update {events}
            set locked_by = ?1, locked_until = ",
            now!(),
            " + ?2
            where sequence in (select value from json_each(?3)) and locked_until is null
              and (not_before is null or not_before <= ",
            now!(),
            ") and ",
            unsettled!(),
            "
            returning ",
            columns!()
        );

        let rows = sqlx::query(self.tables.sql(CLAIM_HOT))
            .bind(&lease.token)
            .bind(micros(relay.lease))
            .bind(list(sequences.iter().copied()))
            .fetch_all(&self.writer)
            .await
            .map_err(failed("claiming hot events"))?;
        in_order(&rows).map_err(failed("claiming hot events"))
    }

    async fn renew_rows(&self, relay: &Relay, leases: &[RowLease]) -> Result<()> {
        // Through the index of what is locked, which is little.
        const RENEW_ROWS: &str = concat!(
            "update {events}
            set locked_until = ",
            now!(),
            " + ?2
            where locked_until is not null
              and locked_by in (select value from json_each(?1)) and ",
            unsettled!()
        );

        sqlx::query(self.tables.sql(RENEW_ROWS))
            .bind(list(leases.iter().map(|lease| lease.token.as_str())))
            .bind(micros(relay.lease))
            .execute(&self.writer)
            .await
            .map_err(failed("renewing row leases"))?;
        Ok(())
    }

    async fn unclaim(&self, lease: &RowLease, sequences: &[i64]) -> Result<()> {
        const UNCLAIM: &str = concat!(
            "update {events} set locked_by = null, locked_until = null
            where sequence in (select value from json_each(?2)) and locked_by = ?1 and ",
            unsettled!()
        );

        sqlx::query(self.tables.sql(UNCLAIM))
            .bind(&lease.token)
            .bind(list(sequences.iter().copied()))
            .execute(&self.writer)
            .await
            .map_err(failed("giving events back"))?;
        Ok(())
    }
}

impl SqliteStore {
    async fn claim_due(
        &self,
        connection: &mut SqliteConnection,
        relay: &Relay,
        lease: &RowLease,
        limit: Limit,
    ) -> Result<Vec<Fetched>> {
        const CLAIM_DUE: &str = concat!(
            "update {events}
            set locked_by = ?1, locked_until = ",
            now!(),
            " + ?2
            where sequence in (",
            within!(
                concat!(
                    "select sequence, payload, headers from {events}
                    where not_before <= ",
                    now!(),
                    " and locked_until is null and ",
                    unsettled!(),
                    " order by not_before limit ?3"
                ),
                "?4"
            ),
            ")
            returning ",
            columns!()
        );

        let rows = sqlx::query(self.tables.sql(CLAIM_DUE))
            .bind(&lease.token)
            .bind(micros(relay.lease))
            .bind(limit.rows as i64)
            .bind(size(limit.bytes))
            .fetch_all(connection)
            .await
            .map_err(failed("claiming due events"))?;
        fetched_all(&rows).map_err(failed("claiming due events"))
    }

    async fn claim_fresh(
        &self,
        connection: &mut SqliteConnection,
        relay: &Relay,
        lease: &RowLease,
        from: i64,
        limit: Limit,
    ) -> Result<Vec<Fetched>> {
        const CLAIM_FRESH: &str = concat!(
            "update {events}
            set locked_by = ?1, locked_until = ",
            now!(),
            " + ?2
            where sequence in (",
            within!(
                concat!(
                    "select sequence, payload, headers from {events}
                    where sequence > max(?3, ",
                    floor!(),
                    ")
                      and not_before is null and locked_until is null and ",
                    unsettled!(),
                    " order by sequence limit ?4"
                ),
                "?5"
            ),
            ")
            returning ",
            columns!()
        );

        let rows = sqlx::query(self.tables.sql(CLAIM_FRESH))
            .bind(&lease.token)
            .bind(micros(relay.lease))
            .bind(from)
            .bind(limit.rows as i64)
            .bind(size(limit.bytes))
            .fetch_all(connection)
            .await
            .map_err(failed("claiming fresh events"))?;
        fetched_all(&rows).map_err(failed("claiming fresh events"))
    }

    async fn lowest_mark(&self) -> Result<i64> {
        const LOWEST_MARK: &str = concat!("select ", floor!());

        sqlx::query_scalar(self.tables.sql(LOWEST_MARK))
            .fetch_one(&self.reader)
            .await
            .map_err(failed("reading the marks"))
    }
}
