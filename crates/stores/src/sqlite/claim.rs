//! Taking single rows, for unordered work.
//!
//! `begin immediate` makes claimers take turns, so that no row needs a lock of its own. A look
//! beforehand keeps an idle relay away from the write lock. A claim never goes back behind its
//! cursor; a sweep (`claim_late`) does, for what was given back. Its context is `floor;after`: all rows
//! up to the floor are settled or have a `not_before`, by which they are found. Sweeps go in turns over
//! what lies between floor and cursor; the last one has come to `after`.

use std::ops::Range;

use async_trait::async_trait;
use posthaste_core::{
    Result,
    store::{
        Claim, ClaimedRows, ExpiredRow, Fetched, Limit, Position, Relay, RowLease, RowsInHand,
    },
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

/// Whether a row lease is over, or lies further ahead than any lease is long, twice: the clock was set back,
/// and its relay is gone, or renews it soon.
macro_rules! over {
    ($lease:literal) => {
        concat!(
            "locked_until is not null and (locked_until < ",
            now!(),
            " or locked_until > ",
            now!(),
            " + 2 * max(",
            $lease,
            ", coalesce((select max(lease_ms) * 1000 from {relays}), 0)))"
        )
    };
}

/// Most numbers that one claim walks over.
const WINDOW: i64 = 50_000;

/// There may be more than these.
fn is_cut(rows: &[Fetched], limit: Limit) -> bool {
    let size = rows.iter().fold(0_usize, |size, row| size.saturating_add(row.bytes));
    rows.len() >= limit.rows || size >= limit.bytes
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
                where sequence > ?1 and sequence <= ?2
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

        let newest = self.newest().await?;
        let behind = self.lowest_mark().await?.max(from.sequence);
        let edge = self.edge(behind).await?.min(newest).max(behind);
        let any: bool = sqlx::query_scalar(self.tables.sql(ANY))
            .bind(behind)
            .bind(edge)
            .fetch_one(&self.reader)
            .await
            .map_err(failed("claiming events"))?;
        let mut claimed = ClaimedRows {
            rows: Vec::new(),
            position: Position { sequence: edge, context: from.context.clone() },
            caught_up: edge >= newest,
        };
        if !any {
            return Ok(claimed);
        }
        let mut transaction = self.begin("claiming events").await?;
        // Rows that fell due take at most half, so that neither kind starves.
        let half = limit.bytes.div_ceil(2);
        let due = Limit { rows: (limit.rows / 2).max(1), bytes: half };
        let mut rows = self.claim_due(&mut transaction, relay, lease, due).await?;
        let rest = Limit { rows: limit.rows.saturating_sub(rows.len()), bytes: half };
        let fresh = self.claim_fresh(&mut transaction, relay, lease, behind..edge, rest).await?;
        transaction.commit().await.map_err(failed("claiming events"))?;
        claimed.caught_up &= !is_cut(&rows, due) && !is_cut(&fresh, rest);
        if is_cut(&fresh, rest) {
            let last = fresh.iter().map(|row| row.sequence).max();
            claimed.position.sequence = last.unwrap_or(behind);
        }
        rows.extend(fresh);
        rows.sort_unstable_by_key(|row| row.sequence);
        Ok(ClaimedRows { rows, ..claimed })
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

        let sweep = from.context.split_once(';');
        let sweep =
            sweep.and_then(|(floor, after)| Some((floor.parse().ok()?, after.parse().ok()?)));
        let (floor, after): (i64, i64) = match sweep {
            Some(sweep) => sweep,
            None => (self.lowest_mark().await?, 0),
        };
        let up_to = self.edge(floor).await?.min(from.sequence).max(floor);
        let lowest: Option<i64> = sqlx::query_scalar(self.tables.sql(LOWEST))
            .bind(floor)
            .bind(up_to)
            .fetch_optional(&self.reader)
            .await
            .map_err(failed("claiming late events"))?;
        let moved = lowest.map_or(up_to, |lowest| lowest - 1).max(floor);
        if lowest.is_none() && moved == floor {
            let position =
                Position { sequence: from.sequence, context: format!("{floor};{floor}") };
            return Ok(ClaimedRows { rows: Vec::new(), position, caught_up: true });
        }
        let first = after.max(moved);
        let last = self.edge(first).await?.min(from.sequence).max(first);
        let mut transaction = self.begin("claiming late events").await?;
        let rows = sqlx::query(self.tables.sql(CLAIM_LATE))
            .bind(&lease.token)
            .bind(micros(relay.lease))
            .bind(first)
            .bind(last)
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
        let cut = is_cut(&rows, limit);
        let climbs = lowest.is_none() && up_to < from.sequence;
        let goes_on = cut || climbs || (!rows.is_empty() && last < from.sequence);
        let after = match rows.last() {
            Some(row) if cut => row.sequence,
            _ if last < from.sequence => last,
            _ => moved,
        };
        let position = Position { sequence: from.sequence, context: format!("{moved};{after}") };
        Ok(ClaimedRows { rows, position, caught_up: !goes_on })
    }

    async fn claim_expired(
        &self,
        relay: &Relay,
        lease: &RowLease,
        _until: i64,
    ) -> Result<ExpiredRow> {
        const EXPIRED: &str = concat!(
            "select sequence from {events}
            where ",
            over!("?1"),
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
            where sequence = ?3 and ",
            over!("?2"),
            " and ",
            unsettled!(),
            "
            returning ",
            columns!()
        );

        let expired: Option<i64> = sqlx::query_scalar(self.tables.sql(EXPIRED))
            .bind(micros(relay.lease))
            .fetch_optional(&self.reader)
            .await
            .map_err(failed("claiming an expired event"))?;
        let Some(expired) = expired else {
            return Ok(ExpiredRow::default());
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
        // Another claimer may have had it, and may not know the others.
        Ok(ExpiredRow { row: rows.into_iter().next(), more: true })
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

    async fn renew_rows(&self, relay: &Relay, rows: &[RowsInHand]) -> Result<()> {
        const RENEW_ROWS: &str = concat!(
            "update {events}
            set locked_until = ",
            now!(),
            " + ?3
            where sequence in (select value from json_each(?2)) and locked_by = ?1 and ",
            unsettled!()
        );

        let mut transaction = self.begin("renewing row leases").await?;
        for RowsInHand { lease, sequences } in rows {
            sqlx::query(self.tables.sql(RENEW_ROWS))
                .bind(&lease.token)
                .bind(list(sequences.iter().copied()))
                .bind(micros(relay.lease))
                .execute(&mut *transaction)
                .await
                .map_err(failed("renewing row leases"))?;
        }
        transaction.commit().await.map_err(failed("renewing row leases"))
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
        between: Range<i64>,
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

        let rows = sqlx::query(self.tables.sql(CLAIM_FRESH))
            .bind(&lease.token)
            .bind(micros(relay.lease))
            .bind(between.start)
            .bind(between.end)
            .bind(limit.rows as i64)
            .bind(size(limit.bytes))
            .fetch_all(connection)
            .await
            .map_err(failed("claiming fresh events"))?;
        fetched_all(&rows).map_err(failed("claiming fresh events"))
    }

    /// How far a walk goes that begins after this number.
    async fn edge(&self, after: i64) -> Result<i64> {
        const EDGE: &str = "select min(sequence) + ?2 from {events} where sequence > ?1";

        let edge: Option<i64> = sqlx::query_scalar(self.tables.sql(EDGE))
            .bind(after)
            .bind(WINDOW)
            .fetch_one(&self.reader)
            .await
            .map_err(failed("looking for the next event"))?;
        Ok(edge.unwrap_or(i64::MAX))
    }

    async fn lowest_mark(&self) -> Result<i64> {
        const LOWEST_MARK: &str = concat!("select ", floor!());

        sqlx::query_scalar(self.tables.sql(LOWEST_MARK))
            .fetch_one(&self.reader)
            .await
            .map_err(failed("reading the marks"))
    }
}
