//! Finding what is committed behind a reader's position.
//!
//! ```text
//! look:   which numbers are there, table-wide?           → what is missing becomes a gap
//! closed: which transactions are open on the server?     → up to when gaps can no longer be filled
//! probe:  is something visible in the gaps by now?       → the late commits; what is closed is dropped
//! ```
//!
//! The order matters. A reader looks *before* it reads the rows: what becomes visible between the
//! two is read and is a gap, which is harmless; the other way round it would be neither. And it
//! asks for the open transactions *before* it probes: one that commits between the two is found by
//! the probe.
//!
//! A gap is dropped when every transaction that had begun when it was first seen is over. Without
//! the privilege PROCESS nobody tells us; then gaps are kept for an hour, and a transaction that
//! stays open for longer can lose its events.

use std::{
    sync::PoisonError,
    time::{Duration, Instant},
};

use posthaste_core::Result;
use sqlx::{AssertSqlSafe, MySqlConnection};

use super::{MySqlStore, gaps::Gap, number};
use crate::failure::failed;

/// How far in seconds the begin of a transaction may lie behind the number that it took: the
/// server shows whole seconds, from a copy that can be a second old, and begins a transaction in
/// its lists only after its first number was given out.
const MARGIN: i64 = 5;

/// For how long in seconds a gap is kept when the server does not show its transactions.
const BLIND: i64 = 3600;

/// The server's transactions are looked at no more often than this.
const CLOSED_INTERVAL: Duration = Duration::from_secs(1);

/// Most gaps in one statement.
const PROBE: usize = 256;

/// What is visible behind a position, table-wide.
pub(super) struct Look {
    /// The numbers, in order.
    pub(super) present: Vec<i64>,
    /// When, in seconds since 1970 of the database's clock, rounded up.
    pub(super) at: i64,
}

const LOOK: &str = "
    select sequence, cast(unix_timestamp() as signed)
    from {events} force index (primary)
    where sequence > ? and sequence <= ?
    order by sequence
    limit ?";

const TOUCH: &str = "select id from {meta} where id = 1";

/// Whether the server's list is fresh (our own transaction is in it), the time, and when the
/// oldest other transaction began. The list has the server's local time: of the offsets at the
/// oldest gap and now the larger is taken, so that no transaction looks younger than it is when
/// the clocks went back in between.
const OPEN: &str = "
    select coalesce(max(trx_mysql_thread_id = connection_id() and trx_started
            >= convert_tz(utc_timestamp(), '+00:00', 'SYSTEM') - interval 2 second), 0),
        cast(unix_timestamp() as signed),
        min(case when trx_mysql_thread_id <> connection_id() then
            timestampdiff(second, '1970-01-01', trx_started) end)
        - greatest(
            timestampdiff(second, utc_timestamp(),
                convert_tz(utc_timestamp(), '+00:00', 'SYSTEM')),
            timestampdiff(second, timestampadd(second, ?, timestamp'1970-01-01 00:00:00'),
                convert_tz(timestampadd(second, ?, timestamp'1970-01-01 00:00:00'),
                    '+00:00', 'SYSTEM')))
    from information_schema.innodb_trx";

const TIME: &str = "select cast(unix_timestamp() as signed)";

/// The privilege is missing, or there is no such list on this server.
pub(super) const NOT_SHOWN: [u16; 4] = [1227, 1142, 1109, 1146];

impl MySqlStore {
    /// The numbers that are visible behind `behind`, up to `up_to`, at most `limit`.
    pub(super) async fn look(&self, behind: i64, up_to: i64, limit: usize) -> Result<Look> {
        let rows: Vec<(i64, i64)> = sqlx::query_as(self.tables.sql(LOOK))
            .bind(behind)
            .bind(up_to)
            .bind(limit as u64)
            .fetch_all(&self.pool)
            .await
            .map_err(failed("looking for gaps"))?;
        let at = match rows.first() {
            Some(row) => row.1,
            None => self.time().await?,
        };
        Ok(Look { at: at + 1, present: rows.into_iter().map(|row| row.0).collect() })
    }

    /// The second up to which gaps are closed: whatever was missing then stays missing. `oldest`
    /// is when the oldest gap was seen.
    pub(super) async fn closed(&self, oldest: i64) -> Result<i64> {
        let known = *self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, until)) = known
            && at.elapsed() < CLOSED_INTERVAL
        {
            return Ok(until);
        }
        let asked = Instant::now();
        let mut transaction = self.begin("looking at open transactions").await?;
        let until = self.closed_by_list(&mut transaction, oldest).await;
        transaction.commit().await.map_err(failed("looking at open transactions"))?;
        let until = match until? {
            Some(until) => until,
            None => self.closed_by_age(oldest).await?,
        };
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = Some((asked, until));
        Ok(until)
    }

    /// By age alone.
    async fn closed_by_age(&self, oldest: i64) -> Result<i64> {
        let until = self.time().await? - BLIND;
        if oldest <= until {
            tracing::warn!(
                outbox = %self.tables.name(),
                "numbers that were missing for an hour are given up: this user lacks the \
                 privilege PROCESS and cannot see whether a transaction still holds them"
            );
        }
        Ok(until)
    }

    async fn time(&self) -> Result<i64> {
        sqlx::query_scalar(TIME).fetch_one(&self.pool).await.map_err(failed("asking for the time"))
    }

    /// By the server's list of transactions; `None` when it does not show it.
    async fn closed_by_list(
        &self,
        connection: &mut MySqlConnection,
        oldest: i64,
    ) -> Result<Option<i64>> {
        // A read of a table begins our own transaction: its place in the list proves that the
        // list is shown, and that it is not an old copy.
        sqlx::query(self.tables.sql(TOUCH))
            .execute(&mut *connection)
            .await
            .map_err(failed("looking at open transactions"))?;
        let answer = sqlx::query_as(OPEN).bind(oldest).bind(oldest).fetch_one(connection).await;
        let (fresh, now, begun): (i64, i64, Option<i64>) = match answer {
            Ok(answer) => answer,
            Err(error) if NOT_SHOWN.contains(&number(&error)) => return Ok(None),
            Err(error) => return Err(failed("looking at open transactions")(error)),
        };
        Ok((fresh == 1).then(|| begun.map_or(now, |begun| begun.min(now)) - MARGIN))
    }

    /// What is visible in these gaps by now, in order, and whether it is fresh.
    pub(super) async fn probe(&self, gaps: impl Iterator<Item = Gap>) -> Result<Vec<(i64, bool)>> {
        const PROBE_GAPS: &str = "
            select sequence, sent_at is null and dead_at is null and discarded_at is null
                and not_before is null
            from {events} force index (primary)
            where {gaps}
            order by sequence";

        let gaps: Vec<Gap> = gaps.collect();
        let mut visible = Vec::new();
        for gaps in gaps.chunks(PROBE) {
            let places = gaps.len().next_power_of_two();
            let between = vec!["sequence between ? and ?"; places].join(" or ");
            let sql = self.tables.sql(PROBE_GAPS).0.replace("{gaps}", &between);
            let mut query = sqlx::query_as(AssertSqlSafe(sql));
            for gap in super::padded(gaps) {
                query = query.bind(gap.first).bind(gap.last);
            }
            let rows: Vec<(i64, bool)> =
                query.fetch_all(&self.pool).await.map_err(failed("looking into gaps"))?;
            visible.extend(rows);
        }
        Ok(visible)
    }
}
