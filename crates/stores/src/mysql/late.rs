//! Finding what is committed late: with a number that readers have passed already.
//!
//! ```text
//! look:   which numbers are there, table-wide?        → the others are missing
//! probe:  which missing numbers are there by now?     → these have appeared
//! close:  which missing numbers can nobody use?       → these are given up
//! ```
//!
//! A reader looks *before* it reads the rows: what becomes visible between the two is read and counts
//! as missing, which is harmless; the other way round it would be neither.
//!
//! A missing number can still appear if an open transaction has inserted its row, or if a statement has
//! reserved it and has yet to insert. The first is seen exactly: a read of uncommitted rows shows it. The
//! second ends with the statement: every statement that had begun when the number was seen missing is
//! over. So neither an open reader, nor a transaction that is open for hours, nor a rollback, nor an
//! `auto_increment_increment` leaves anything behind. Without the privilege PROCESS other users'
//! statements are not shown; then a missing number under which nobody has inserted is kept for ten
//! minutes.

use std::time::{Duration, Instant};

use posthaste_core::Result;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection};

use super::{MySqlStore, gaps::Gaps, number, padded, tracker::Reader};
use crate::failure::failed;

/// For how long a missing number is kept under which nobody has inserted, where statements are not shown.
const BLIND: Duration = Duration::from_mins(10);

/// How often the server's statements are looked at while few numbers are missing.
const CLOSE_INTERVAL: Duration = Duration::from_millis(200);

/// With more missing runs than this they are looked at with every read.
const FEW: usize = 64;

/// With more missing runs than this nothing more is passed over: reading waits for them.
pub(super) const MOST: usize = 200_000;

/// Most stretches of numbers in one statement.
const STRETCHES: usize = 256;

/// Gaps that are no further apart than this are looked at together, with the rows between them.
const NEAR: i64 = 8;

const LOOK: &str = "
    select sequence from {events} force index (primary)
    where sequence > ? and sequence <= ?
    order by sequence
    limit ?";

/// How long the oldest statement of somebody else has been running, in milliseconds.
const RUNNING: &str = "
    select cast(max({age}) as signed)
    from information_schema.processlist p
    where p.id <> connection_id() and p.user <> 'system user'
        and p.command not in ('Sleep', 'Daemon', 'Binlog Dump', 'Binlog Dump GTID')";

/// But for those of transactions that have locked and changed nothing for seconds: they only read, since
/// a number is taken in the same moment as the lock on the table. If the list is fresh: it can be an old
/// copy, and is none when our own transaction, which has just begun, is in it.
const BUT_READERS: &str = "
        and p.id not in (
            select t.trx_mysql_thread_id from information_schema.innodb_trx t
            where t.trx_lock_structs = 0 and t.trx_rows_modified = 0
                and t.trx_started < convert_tz(utc_timestamp(), '+00:00', 'SYSTEM')
                    - interval 10 second
                and exists (
                    select 1 from information_schema.innodb_trx o
                    where o.trx_mysql_thread_id = connection_id() and o.trx_started
                        >= convert_tz(utc_timestamp(), '+00:00', 'SYSTEM') - interval 2 second
                )
        )";

/// A read of a table begins our own transaction.
const TOUCH: &str = "select id from {meta} where id = 1";

/// Whether statements of other users are shown: the same privilege shows the server's metrics. Not asked of
/// its list of transactions, which the server renews only when nobody has read it for a while.
const SHOWN: &str = "select count(*) from information_schema.innodb_metrics where name = ''";

/// A statement that runs for longer may be one that only reads. Who does is looked up now and then: the
/// server renews its list of transactions only when nobody has read it for a while.
const LONG: Duration = Duration::from_secs(5);

/// How old the list can be and still pass for fresh, and more.
const COPY: Duration = Duration::from_secs(4);

/// How often it is looked up.
const READERS_INTERVAL: Duration = Duration::from_secs(1);

/// The privilege is missing, or there is no such list on this server.
pub(super) const NOT_SHOWN: [u16; 4] = [1227, 1142, 1109, 1146];

/// No such column.
const UNKNOWN_COLUMN: u16 = 1054;

impl MySqlStore {
    /// The numbers that are visible after `after`, up to `up_to`, at most `limit`, in order.
    pub(super) async fn look(
        &self,
        connection: &mut MySqlConnection,
        after: i64,
        up_to: i64,
        limit: usize,
    ) -> Result<Vec<i64>> {
        sqlx::query_scalar(self.tables.sql(LOOK))
            .bind(after)
            .bind(up_to)
            .bind(limit as u64)
            .fetch_all(connection)
            .await
            .map_err(failed("looking for missing numbers"))
    }

    /// The numbers in these gaps that are visible, in order, and maybe others between them.
    pub(super) async fn probe(
        &self,
        connection: &mut MySqlConnection,
        gaps: &Gaps,
        only: Option<&'static str>,
    ) -> Result<Vec<i64>> {
        const PROBE: &str = "
            select sequence from {events} e force index (primary)
            where ({stretches}) {only}
            order by sequence";

        let mut visible = Vec::new();
        for stretches in gaps.stretches(NEAR).chunks(STRETCHES) {
            let places = stretches.len().next_power_of_two();
            let between = vec!["sequence between ? and ?"; places].join(" or ");
            let sql = self.tables.sql(PROBE).0.replace("{stretches}", &between);
            let sql = sql.replace("{only}", only.unwrap_or_default());
            let mut query = sqlx::query_scalar(AssertSqlSafe(sql));
            for (first, last) in padded(stretches) {
                query = query.bind(first).bind(last);
            }
            let rows: Vec<i64> = query
                .fetch_all(&mut *connection)
                .await
                .map_err(failed("looking for missing numbers"))?;
            visible.extend(rows);
        }
        Ok(visible)
    }

    /// Gives up the missing numbers that nobody can use any more, if it is time to look.
    pub(super) async fn close(&self, connection: &mut MySqlConnection) -> Result<()> {
        let asked = Instant::now();
        let (missing, id) = {
            let mut tracker = self.tracker();
            let recent = |at: Instant| asked.duration_since(at) < CLOSE_INTERVAL;
            let wait = tracker.missing.len() <= FEW && tracker.closed_at.is_some_and(recent);
            if tracker.missing.is_empty() || wait {
                return Ok(());
            }
            tracker.closed_at = Some(asked);
            (tracker.missing.clone(), tracker.id())
        };
        let until = match self.running(connection).await? {
            Some(running) => asked.checked_sub(running),
            None => asked.checked_sub(BLIND),
        };
        let Some(until) = until else { return Ok(()) };
        let old = missing.seen_by(until);
        if old.is_empty() {
            return Ok(());
        }
        // After the statements: whatever one of them has inserted before it ended is seen.
        let inserted = self.inserted(connection, &old).await?;
        let mut tracker = self.tracker();
        if tracker.id() == id {
            tracker.missing.close(until, &inserted);
        }
        Ok(())
    }

    /// How long the oldest statement of somebody else has been running that can use a number; `None` when
    /// that is not shown.
    async fn running(&self, connection: &mut MySqlConnection) -> Result<Option<Duration>> {
        const DOING: &str = "looking at running statements";

        if !self.shows_statements(connection).await? {
            return Ok(None);
        }
        let age = oldest(connection, "").await?;
        let recent = |at: Instant| at.elapsed() < READERS_INTERVAL;
        if age < LONG || self.tracker().readers_at.is_some_and(recent) {
            return Ok(Some(age));
        }
        self.tracker().readers_at = Some(Instant::now());
        let mut transaction = connection.begin_with(super::BEGIN).await.map_err(failed(DOING))?;
        sqlx::query(self.tables.sql(TOUCH))
            .execute(&mut *transaction)
            .await
            .map_err(failed(DOING))?;
        let age = oldest(&mut transaction, BUT_READERS).await?;
        transaction.commit().await.map_err(failed(DOING))?;
        // The copy can be as old as our own transactions before this one: who only read then may have
        // taken a number since.
        Ok(Some(age.max(COPY)))
    }

    async fn shows_statements(&self, connection: &mut MySqlConnection) -> Result<bool> {
        // Each time: a connection has the privileges of the moment at which it was made.
        match sqlx::query(SHOWN).execute(connection).await {
            Ok(_) => Ok(true),
            Err(error) if NOT_SHOWN.contains(&number(&error)) => Ok(false),
            Err(error) => Err(failed("looking at running statements")(error)),
        }
    }

    /// The numbers in these gaps under which somebody has inserted a row, committed or not.
    async fn inserted(&self, connection: &mut MySqlConnection, gaps: &Gaps) -> Result<Vec<i64>> {
        const DIRTY: &str =
            "set transaction isolation level read uncommitted; start transaction read only";
        const DOING: &str = "looking for uncommitted events";

        let mut transaction = connection.begin_with(DIRTY).await.map_err(failed(DOING))?;
        let inserted = self.probe(&mut transaction, gaps, None).await?;
        transaction.commit().await.map_err(failed(DOING))?;
        Ok(inserted)
    }

    /// Looks on from where the tracker stands up to `up_to`, as far as one step goes.
    pub(super) async fn track(
        &self,
        connection: &mut MySqlConnection,
        reader: Reader,
        up_to: i64,
        limit: usize,
    ) -> Result<()> {
        let frontier = self.tracker_of(reader)?.frontier();
        if frontier >= up_to || self.tracker().missing.len() >= MOST {
            return Ok(());
        }
        let present = self.look(connection, frontier, up_to, limit).await?;
        let end =
            if present.len() < limit { up_to } else { present.last().copied().unwrap_or(up_to) };
        self.tracker_of(reader)?.looked(frontier, &present, end, Instant::now());
        Ok(())
    }

    /// Learns what has appeared since, and gives up what nobody can use.
    pub(super) async fn look_back(&self, connection: &mut MySqlConnection) -> Result<()> {
        let (missing, id) = {
            let tracker = self.tracker();
            (tracker.missing.clone(), tracker.id())
        };
        if missing.is_empty() {
            return Ok(());
        }
        let visible = self.probe(connection, &missing, None).await;
        if let Ok(visible) = &visible {
            let mut tracker = self.tracker();
            if tracker.id() == id {
                tracker.saw(visible);
            }
        }
        // Also when there were too many to be looked at in time: fewer are left the next time.
        self.close(connection).await?;
        visible.map(|_| ())
    }
}

async fn oldest(connection: &mut MySqlConnection, but: &str) -> Result<Duration> {
    // MariaDB counts milliseconds; MySQL has whole seconds, of which the last may have begun.
    // A negative age is that of a session with a clock of its own, or of a clock that was set back.
    for age in [
        "case when p.time_ms < 0 then 600000 else p.time_ms + 50 end",
        "case when p.time < 0 then 600000 else (p.time + 1) * 1000 + 50 end",
    ] {
        let sql = format!("{RUNNING}{but}").replace("{age}", age);
        let asked = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut *connection).await;
        let age: Option<i64> = match asked {
            Ok(age) => age,
            Err(error) if number(&error) == UNKNOWN_COLUMN => continue,
            Err(error) => return Err(failed("looking at running statements")(error)),
        };
        return Ok(Duration::from_millis(age.unwrap_or(0).max(0) as u64));
    }
    // Without a list of statements nothing is known to have ended.
    Ok(BLIND)
}
