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
//! Missing numbers are looked at in rounds, from the lowest to the highest, a part at a time
//! ([`Round`](super::tracker::Round)). A part is as much as one statement looks at. Of a long run it begins at the first row
//! that is there, committed or not: a run without rows costs one look-up, however long it is. Parts that are cut off or take
//! long are followed by smaller ones, until one is in time. A read looks back for a second at most, and the next one goes on
//! there. Readers are given numbers up to those that a whole round speaks for.
//!
//! A missing number can still appear if an open transaction has inserted its row, or if a statement has
//! reserved it and has yet to insert. The first is seen exactly: a read of uncommitted rows shows it. The
//! second ends with the statement: every statement that had begun when the number was seen missing is
//! over, or only reads ([`statements`](super::statements)). So neither an open reader, nor a transaction
//! that is open for hours, nor a rollback, nor an `auto_increment_increment` leaves anything behind. While a
//! statement runs for long that may insert, what it may use is quiet and costs nothing
//! ([`tracker`](super::tracker)). Without the privilege PROCESS other users' statements are not shown; then
//! a missing number under which nobody has inserted is kept for ten minutes.

use std::{
    sync::atomic::{AtomicI64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use posthaste_core::Result;
use sqlx::{AssertSqlSafe, Connection, MySql, MySqlConnection, Transaction};

use super::{
    MySqlStore,
    gaps::{Gaps, LEAST, PIECE, Part, Run, Stretch},
    padded,
    statements::Running,
    tracker::{Reader, Round},
};
use crate::failure::failed;

const DOING: &str = "looking for missing numbers";

/// For how long a missing number is kept under which nobody has inserted, where statements are not shown.
const BLIND: Duration = Duration::from_mins(10);

/// For so long one read looks back. What is left of the round is for the next one: a read that takes longer than its
/// deadline would be repeated without end.
const LOOK_BACK: Duration = Duration::from_secs(1);

/// After a part that took longer, the next ones are smaller.
const SLOW: Duration = Duration::from_millis(500);

/// After a whole piece that took no longer, the next ones are larger.
const QUICK: Duration = Duration::from_millis(100);

/// A transaction that sees what is not committed.
const DIRTY: &str = "set transaction isolation level read uncommitted; start transaction read only";

/// With more missing runs than this nothing more is passed over: reading waits for them.
pub(super) const MOST: usize = 200_000;

const LOOK: &str = "
    select sequence from {events} force index (primary)
    where sequence > ? and sequence <= ?
    order by sequence
    limit ?";

/// What may be given up, as the server's statements were listed.
struct Closing {
    running: Option<Running>,
    asked: Instant,
}

impl Closing {
    /// Nobody can use what was seen missing by then.
    fn closed(&self) -> Option<Instant> {
        match &self.running {
            Some(running) => running.since(),
            None => self.asked.checked_sub(BLIND),
        }
    }
}

/// A look at a part. One that is dropped before it has ended was cut off or has failed, and so would the same again.
struct Look<'a> {
    /// Most numbers of the parts to come.
    piece: &'a AtomicI64,
    begun: Instant,
    size: i64,
    /// It has ended, and so many numbers were looked at.
    looked_at: Option<i64>,
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        let took = self.begun.elapsed();
        match self.looked_at {
            Some(looked_at) if took <= SLOW => {
                if took <= QUICK && looked_at >= self.size / 2 {
                    let larger = (self.size * 2).min(PIECE);
                    // Another one may have been cut off meanwhile.
                    let _ = self.piece.compare_exchange(self.size, larger, Relaxed, Relaxed);
                }
            }
            _ => drop(self.piece.fetch_min((self.size / 2).max(LEAST), Relaxed)),
        }
    }
}

impl MySqlStore {
    fn piece(&self) -> i64 {
        self.piece.load(Relaxed)
    }

    fn begin_look(&self, part: &Part) -> Look<'_> {
        Look { piece: &self.piece, begun: Instant::now(), size: part.piece, looked_at: None }
    }

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
            .map_err(failed(DOING))
    }

    /// Those of these numbers that are visible, in order.
    pub(super) async fn probe(
        &self,
        connection: &mut MySqlConnection,
        gaps: &Gaps,
        only: Option<&'static str>,
    ) -> Result<Vec<i64>> {
        let (mut from, mut visible) = (i64::MIN, Vec::new());
        loop {
            let mut part = gaps.part(from, Instant::now(), self.piece());
            visible.extend(self.probe_part(connection, &mut part, only).await?);
            if part.is_last {
                return Ok(visible);
            }
            from = part.end + 1;
        }
    }

    /// Whether one of these numbers is visible, or it takes too long to find out.
    pub(super) async fn may_be_visible(
        &self,
        connection: &mut MySqlConnection,
        gaps: &Gaps,
        only: &'static str,
    ) -> Result<bool> {
        let begun = Instant::now();
        let mut from = i64::MIN;
        loop {
            let mut part = gaps.part(from, begun, self.piece());
            let visible = self.probe_part(connection, &mut part, Some(only)).await?;
            if !visible.is_empty() || !part.is_last && begun.elapsed() > LOOK_BACK {
                return Ok(true);
            }
            if part.is_last {
                return Ok(false);
            }
            from = part.end + 1;
        }
    }

    /// The missing numbers of this part that are visible, in order.
    async fn probe_part(
        &self,
        connection: &mut MySqlConnection,
        part: &mut Part,
        only: Option<&'static str>,
    ) -> Result<Vec<i64>> {
        let mut look = self.begin_look(part);
        if !part.is_small() {
            // Also for what is committed: it would walk over all that is not, to the end of the run.
            let mut transaction = begin_dirty(connection).await?;
            self.seek(&mut transaction, part).await?;
            transaction.commit().await.map_err(failed(DOING))?;
        }
        let visible = self.list(connection, &part.stretches, only).await?;
        look.looked_at = Some(part.numbers());
        Ok(part.gaps.clone().take(&visible))
    }

    /// The missing numbers of this part under which somebody has inserted a row, committed or not, and those of them that
    /// are visible, in order.
    async fn inserted(
        &self,
        connection: &mut MySqlConnection,
        part: &mut Part,
    ) -> Result<(Vec<i64>, Vec<i64>)> {
        let mut look = self.begin_look(part);
        let mut transaction = begin_dirty(connection).await?;
        self.seek(&mut transaction, part).await?;
        let found = self.list(&mut transaction, &part.stretches, None).await?;
        transaction.commit().await.map_err(failed(DOING))?;
        let inserted = part.gaps.clone().take(&found);
        let mut used = part.gaps.clone();
        used.take_unused((part.from, part.end), Instant::now(), &inserted);
        let (mut from, mut visible) = (part.from, Vec::new());
        while !used.is_empty() {
            let mut part = used.part(from, Instant::now(), part.piece);
            // Each begins with a row.
            let first: Vec<_> = part.long().iter().map(|run| Some(run.0)).collect();
            part.begin_long_at(first);
            visible.extend(self.list(connection, &part.stretches, None).await?);
            if part.is_last {
                break;
            }
            from = part.end + 1;
        }
        look.looked_at = Some(part.numbers());
        Ok((inserted, part.gaps.clone().take(&visible)))
    }

    /// Narrows the long runs of a part down to where the first row is. One look-up for each, however long it is.
    async fn seek(&self, dirty: &mut MySqlConnection, part: &mut Part) -> Result<()> {
        const SEEK: &str = "coalesce((select sequence from {events} force index (primary)
            where sequence between ? and ? order by sequence limit 1), 0)";

        if part.is_small() {
            return Ok(());
        }
        let long = part.long();
        let found = self.of_runs(dirty, SEEK, None, &long).await?;
        let first = long.iter().zip(found).map(|(run, found)| match found {
            Some(0) => None,
            // Where that is not known, all of it is looked at.
            found => Some(found.unwrap_or(run.0)),
        });
        part.begin_long_at(first.collect::<Vec<_>>());
        Ok(())
    }

    /// The numbers in these stretches that are visible, in order.
    async fn list(
        &self,
        connection: &mut MySqlConnection,
        stretches: &[Stretch],
        only: Option<&'static str>,
    ) -> Result<Vec<i64>> {
        const COUNT: &str = "(select count(*) from {events} e force index (primary)
            where sequence between ? and ? {only})";

        let run = |stretch: &Stretch| (stretch.first, stretch.last);
        let mut runs: Vec<Run> = stretches.iter().filter(|one| !one.long).map(run).collect();
        let long: Vec<Run> = stretches.iter().filter(|one| one.long).map(run).collect();
        let mut visible = Vec::new();
        if !long.is_empty() {
            let counts = self.of_runs(connection, COUNT, only, &long).await?;
            for (&(first, last), count) in long.iter().zip(counts) {
                if count == Some(last - first + 1) {
                    visible.extend(first..=last);
                } else if count != Some(0) {
                    runs.push((first, last));
                }
            }
        }
        visible.extend(self.list_runs(connection, &runs, only).await?);
        visible.sort_unstable();
        Ok(visible)
    }

    /// A number for each of these runs, which `one` asks for.
    async fn of_runs(
        &self,
        connection: &mut MySqlConnection,
        one: &'static str,
        only: Option<&'static str>,
        runs: &[Run],
    ) -> Result<Vec<Option<i64>>> {
        let one = self.tables.sql(one).0.replace("{only}", only.unwrap_or_default());
        let places = runs.len().next_power_of_two();
        // As one text: a row of hundreds of columns would be more than some servers allow.
        let sql = format!("select concat_ws(',', {})", vec![one; places].join(", "));
        let mut query = sqlx::query_scalar(AssertSqlSafe(sql));
        // What fills the places up costs nothing: no number is in it.
        let nothing = std::iter::repeat_n(&(1, 0), places - runs.len());
        for (first, last) in runs.iter().chain(nothing) {
            query = query.bind(first).bind(last);
        }
        let numbers: String = query.fetch_one(connection).await.map_err(failed(DOING))?;
        let mut numbers = numbers.split(',').map(|number| number.parse().ok());
        Ok(runs.iter().map(|_| numbers.next().flatten()).collect())
    }

    async fn list_runs(
        &self,
        connection: &mut MySqlConnection,
        runs: &[Run],
        only: Option<&'static str>,
    ) -> Result<Vec<i64>> {
        const PROBE: &str = "
            select sequence from {events} e force index (primary)
            where ({stretches}) {only}
            order by sequence";

        if runs.is_empty() {
            return Ok(Vec::new());
        }
        let places = runs.len().next_power_of_two();
        let between = vec!["sequence between ? and ?"; places].join(" or ");
        let sql = self.tables.sql(PROBE).0.replace("{stretches}", &between);
        let sql = sql.replace("{only}", only.unwrap_or_default());
        let mut query = sqlx::query_scalar(AssertSqlSafe(sql));
        for (first, last) in padded(runs) {
            query = query.bind(first).bind(last);
        }
        query.fetch_all(connection).await.map_err(failed(DOING))
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

    /// Learns what has appeared since, and gives up what nobody can use, for as long as one read may. How far that has come
    /// the tracker tells.
    pub(super) async fn look_back(
        &self,
        connection: &mut MySqlConnection,
        reader: Reader,
    ) -> Result<()> {
        // One at a time: what one look finds unused another one may have seen appear meanwhile.
        let _looking_back = self.looking_back.lock().await;
        let begun = Instant::now();
        loop {
            // Another server's rows say nothing about what is missing here.
            let Some(round) = self.tracker_of(reader)?.round(Instant::now()) else {
                return Ok(());
            };
            // The end of one that had begun before says little about what was committed since.
            let in_time = self.go_round(connection, reader, round, begun + LOOK_BACK).await?;
            if !in_time || round.began >= begun {
                return Ok(());
            }
        }
    }

    /// Goes on with a round. What was learnt from a part counts, also when the time is up before the next one. Returns
    /// whether there is time left.
    async fn go_round(
        &self,
        connection: &mut MySqlConnection,
        reader: Reader,
        round: Round,
        until: Instant,
    ) -> Result<bool> {
        // After the round has begun: of what stays quiet nothing was committed by then.
        let closing = self.closing(connection, reader, round).await?;
        loop {
            let begun = Instant::now();
            let (mut part, recalls) = {
                let tracker = self.tracker_of(reader)?;
                let Some(next) = tracker.next_part(round) else {
                    return Ok(true);
                };
                (tracker.missing.part(next, round.began, self.piece()), tracker.recalls())
            };
            let (inserted, visible) = match &closing {
                // After the statements: whatever one of them has inserted before it ended is seen. And only what
                // is inserted can have appeared.
                Some(_) => self.inserted(connection, &mut part).await?,
                None => (Vec::new(), self.probe_part(connection, &mut part, None).await?),
            };
            let mut tracker = self.tracker_of(reader)?;
            if tracker.next_part(round).is_none() {
                return Ok(true);
            }
            // Of numbers that were taken back meanwhile nobody has looked at what is inserted.
            if let Some(closing) = closing.as_ref().filter(|_| tracker.recalls() == recalls) {
                let run = (part.from, part.end);
                if let Some(until) = closing.closed() {
                    tracker.close(run, until.min(round.began), &inserted);
                }
                let running = closing.running.as_ref();
                if let Some((until, running)) =
                    running.and_then(|running| running.unwatched_since().zip(Some(running)))
                {
                    tracker.hush(run, until.min(round.began), &inserted, running.watched());
                }
            }
            tracker.saw(&visible);
            tracker.looked_back(part.end, part.is_last, begun.elapsed());
            if part.is_last {
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
        }
    }

    /// Takes back what is quiet no longer, and lists the statements if this round gives numbers up.
    async fn closing(
        &self,
        connection: &mut MySqlConnection,
        reader: Reader,
        round: Round,
    ) -> Result<Option<Closing>> {
        let asked = Instant::now();
        if round.closes {
            let running = match self.recall(connection, reader).await? {
                Some(running) => Some(self.without_readers(connection, reader, running).await?),
                None => None,
            };
            return Ok(Some(Closing { running, asked }));
        }
        if self.tracker_of(reader)?.has_quiet() {
            self.recall(connection, reader).await?;
        }
        Ok(None)
    }

    /// Takes back the quiet numbers that can have appeared: a statement which could use them has ended.
    pub(super) async fn recall(
        &self,
        connection: &mut MySqlConnection,
        reader: Reader,
    ) -> Result<Option<Running>> {
        let running = self.running(connection, reader).await?;
        self.tracker_of(reader)?.recall_ended(running.as_ref());
        Ok(running)
    }
}

async fn begin_dirty(connection: &mut MySqlConnection) -> Result<Transaction<'_, MySql>> {
    connection.begin_with(DIRTY).await.map_err(failed(DOING))
}
