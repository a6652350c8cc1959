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
//! over, or only reads ([`statements`](super::statements)). So neither an open reader, nor a transaction
//! that is open for hours, nor a rollback, nor an `auto_increment_increment` leaves anything behind. While a
//! statement runs for long that may insert, what it may use is quiet and costs nothing
//! ([`tracker`](super::tracker)). Without the privilege PROCESS other users' statements are not shown; then
//! a missing number under which nobody has inserted is kept for ten minutes.

use std::time::{Duration, Instant};

use posthaste_core::Result;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection};
use uuid::Uuid;

use super::{MySqlStore, gaps::Gaps, padded, statements::Running, tracker::Reader};
use crate::failure::failed;

/// For how long a missing number is kept under which nobody has inserted, where statements are not shown.
const BLIND: Duration = Duration::from_mins(10);

/// How often the server's statements are looked at while few numbers are missing.
const CLOSE_INTERVAL: Duration = Duration::from_millis(200);

/// Up to so long that is quick.
const CLOSING_QUICK: Duration = Duration::from_millis(20);

/// After one that is not, so many times as long as it took passes before they are looked at again: the numbers of a large
/// transaction that is open are there to stay.
const CLOSING_REST: u32 = 8;

/// With more missing runs than this they are looked at with every read.
const FEW: usize = 64;

/// With more missing runs than this nothing more is passed over: reading waits for them.
pub(super) const MOST: usize = 200_000;

/// Most stretches of numbers in one statement.
const STRETCHES: usize = 256;

/// Of runs that are longer than this, the numbers that are there are counted before they are listed: a
/// transaction with many events shows all of them at once, or none.
const LONG_RUN: i64 = 64;

/// Most numbers of long runs that one statement looks at.
const PIECE: i64 = 100_000;

/// Gaps that are no further apart than this are looked at together, with the rows between them.
const NEAR: i64 = 8;

const LOOK: &str = "
    select sequence from {events} force index (primary)
    where sequence > ? and sequence <= ?
    order by sequence
    limit ?";

/// These runs, as many at a time as one statement looks at.
fn pieces(runs: &[(i64, i64)]) -> impl Iterator<Item = &[(i64, i64)]> {
    let mut numbers = 0;
    runs.chunk_by(move |run, next| {
        numbers += run.1 - run.0;
        let together = numbers + next.1 - next.0 < PIECE;
        if !together {
            numbers = 0;
        }
        together
    })
    .flat_map(|runs| runs.chunks(STRETCHES))
}

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
        let mut short = gaps.clone();
        let long = short.take_long(LONG_RUN, PIECE);
        if long.is_empty() {
            return self.list(connection, &short, only).await;
        }
        let mut visible = Vec::new();
        for runs in pieces(&long) {
            visible.extend(self.probe_long(connection, runs, only).await?);
        }
        visible.extend(self.list(connection, &short, only).await?);
        visible.sort_unstable();
        Ok(visible)
    }

    /// The numbers in these long runs that are visible, in order.
    async fn probe_long(
        &self,
        connection: &mut MySqlConnection,
        runs: &[(i64, i64)],
        only: Option<&'static str>,
    ) -> Result<Vec<i64>> {
        let counts = self.count_runs(connection, runs, only).await?;
        let (mut visible, mut partly) = (Vec::new(), Gaps::default());
        for (&(first, last), count) in runs.iter().zip(counts) {
            if count == last - first + 1 {
                visible.extend(first..=last);
            } else if count > 0 {
                partly.add(first, last, Instant::now());
            }
        }
        visible.extend(self.list(connection, &partly, only).await?);
        visible.sort_unstable();
        visible.dedup();
        Ok(visible)
    }

    /// Learns which numbers of long runs have appeared, some at a time: what was learnt before the time was up
    /// counts, however many there are.
    async fn look_for_long(&self, connection: &mut MySqlConnection, id: Uuid) -> Result<()> {
        let long = self.tracker().missing.clone().take_long(LONG_RUN, PIECE);
        for runs in pieces(&long) {
            let visible = self.probe_long(connection, runs, None).await?;
            self.saw(id, &visible);
        }
        Ok(())
    }

    /// How many numbers of each run are visible.
    async fn count_runs(
        &self,
        connection: &mut MySqlConnection,
        runs: &[(i64, i64)],
        only: Option<&'static str>,
    ) -> Result<Vec<i64>> {
        const COUNT: &str = "(select count(*) from {events} e force index (primary)
            where sequence between ? and ? {only})";

        let one = self.tables.sql(COUNT).0.replace("{only}", only.unwrap_or_default());
        let places = runs.len().next_power_of_two();
        // As one text: a row of hundreds of columns would be more than some servers allow.
        let sql = format!("select concat_ws(',', {})", vec![one; places].join(", "));
        let mut query = sqlx::query_scalar(AssertSqlSafe(sql));
        // What fills the places up costs nothing: no number is in it.
        let nothing = std::iter::repeat_n(&(1, 0), places - runs.len());
        for (first, last) in runs.iter().chain(nothing) {
            query = query.bind(first).bind(last);
        }
        let counts: String =
            query.fetch_one(connection).await.map_err(failed("looking for missing numbers"))?;
        // A run whose count is not known is listed.
        Ok(counts.split(',').map(|count| count.parse().unwrap_or(1)).take(runs.len()).collect())
    }

    async fn list(
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
        // One at a time: what one look finds unused another one may have seen appear meanwhile.
        let _looking_back = self.looking_back.lock().await;
        let asked = Instant::now();
        let (id, due) = {
            let mut tracker = self.tracker();
            if tracker.misses_nothing() {
                return Ok(());
            }
            let few = tracker.missing.len() <= FEW && !tracker.has_quiet();
            let interval = if few { CLOSE_INTERVAL } else { Duration::ZERO };
            let rest = CLOSING_REST * tracker.closing_took.saturating_sub(CLOSING_QUICK);
            let pause = interval.max(rest);
            let due = tracker.closed_at.is_none_or(|at| asked.duration_since(at) >= pause);
            if due {
                tracker.closed_at = Some(asked);
            }
            (tracker.id(), due)
        };
        if due {
            return self.look_back_and_close(connection, asked, id).await;
        }
        if self.tracker().has_quiet() {
            self.recall(connection, id).await?;
        }
        self.look_for_long(connection, id).await?;
        let mut missing = self.tracker().missing.clone();
        missing.take_long(LONG_RUN, PIECE);
        let visible = self.probe(connection, &missing, None).await?;
        self.saw(id, &visible);
        Ok(())
    }

    fn saw(&self, id: Uuid, visible: &[i64]) {
        let mut tracker = self.tracker();
        if tracker.id() == id {
            tracker.saw(visible);
        }
    }

    /// Gives up the missing numbers that nobody can use any more. Those that only long statements can use
    /// are quiet.
    async fn look_back_and_close(
        &self,
        connection: &mut MySqlConnection,
        asked: Instant,
        id: Uuid,
    ) -> Result<()> {
        let running = match self.recall(connection, id).await? {
            Some(running) => Some(self.without_readers(connection, id, running).await?),
            None => None,
        };
        let (closed, quiet) = match &running {
            Some(running) => (running.since(), running.unwatched_since()),
            None => (asked.checked_sub(BLIND), None),
        };
        self.look_for_long(connection, id).await?;
        let (mut missing, recalls) = {
            let tracker = self.tracker();
            (tracker.missing.clone(), tracker.recalls())
        };
        // After the statements: whatever one of them has inserted before it ended is seen. And only what
        // is inserted can have appeared.
        let inserted = self.inserted(connection, &missing).await?;
        missing.take_long(LONG_RUN, PIECE);
        let (used, _) = missing.split(Instant::now(), &inserted);
        let visible = self.probe(connection, &used, None).await?;
        let mut tracker = self.tracker();
        if tracker.id() != id {
            return Ok(());
        }
        // Of numbers that were taken back meanwhile nobody has looked at what is inserted.
        if tracker.recalls() == recalls {
            if let Some(until) = closed {
                tracker.close(until, &inserted);
            }
            if let Some((until, running)) = quiet.zip(running.as_ref()) {
                tracker.hush(until, &inserted, running.watched());
            }
        }
        tracker.closing_took = asked.elapsed();
        tracker.saw(&visible);
        Ok(())
    }

    /// Takes back the quiet numbers that can have appeared: a statement which could use them has ended.
    pub(super) async fn recall(
        &self,
        connection: &mut MySqlConnection,
        id: Uuid,
    ) -> Result<Option<Running>> {
        let running = self.running(connection).await?;
        let mut tracker = self.tracker();
        if tracker.id() == id {
            tracker.recall_ended(running.as_ref());
        }
        Ok(running)
    }
}
