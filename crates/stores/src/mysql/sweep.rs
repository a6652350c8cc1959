//! How far behind its cursor a claimer still looks: the floor of its sweeps.

use std::{
    sync::PoisonError,
    time::{Duration, Instant},
};

use posthaste_core::{Result, store::Position};
use sqlx::MySqlConnection;

use super::{
    MySqlStore,
    life::Stamped,
    read::LOOK_LIMIT,
    row::{fresh, unsettled},
    tracker::Reader,
};
use crate::failure::failed;

/// A sweep's floor is written down no more often than this.
const KEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Most numbers that one step of a sweep walks over.
const WINDOW: i64 = 50_000;

/// What has appeared late.
pub(super) struct Late {
    pub(super) numbers: Vec<i64>,
    /// There may be more.
    pub(super) cut: bool,
    /// The position of a sweep that was given none of them.
    pub(super) before: Position,
}

/// Where the sweeps of a relay stand.
pub(super) struct Sweep {
    /// Nothing fresh is left at or before it but what appears late.
    pub(super) floor: i64,
    /// Between floor and cursor, the last sweep has come to here.
    pub(super) after: i64,
    /// What was seen up to the cursor.
    pub(super) seen: Position,
}

impl Sweep {
    /// The context of a sweep is its floor, how far it has come, and the context of a reader.
    pub(super) fn parse(from: &Position) -> Option<Self> {
        let (floor, rest) = from.context.split_once('#')?;
        let (after, context) = rest.split_once('#')?;
        let seen = Position { sequence: from.sequence, context: context.to_owned() };
        Some(Self { floor: floor.parse().ok()?, after: after.parse().ok()?, seen })
    }

    pub(super) fn from_mark(mark: Position) -> Self {
        Self { floor: mark.sequence, after: mark.sequence, seen: mark }
    }

    pub(super) fn to_text(&self) -> String {
        format!("{}#{}#{}", self.floor, self.after, self.seen.context)
    }
}

const LOWEST_FRESH: &str = concat!(
    "select e.sequence from {events} e force index (primary)
    where e.sequence > ? and e.sequence <= ? and ",
    fresh!(),
    " order by e.sequence limit 1"
);

const FIRST_AFTER: &str = "select min(sequence) from {events} where sequence > ?";

/// A shard that somebody owns has a mark of its owner's.
const KEEP_FLOOR: &str = "
    update {shards} set mark = ?, mark_context = ?
    where tenant_group = '' and mark < ?
        and (locked_by is null or locked_until < utc_timestamp(6))";

impl MySqlStore {
    /// Up to where nothing fresh is left, as far as one step goes, and whether the next one can go on.
    pub(super) async fn raise_floor(
        &self,
        session: &mut Stamped,
        floor: i64,
        until: i64,
    ) -> Result<(i64, bool)> {
        let up_to = self.edge(session, floor).await?.min(until).max(floor);
        let lowest: Option<i64> = sqlx::query_scalar(self.tables.sql(LOWEST_FRESH))
            .bind(floor)
            .bind(up_to)
            .fetch_optional(&mut **session)
            .await
            .map_err(failed("sweeping"))?;
        let raised = lowest.map_or(up_to, |lowest| lowest - 1).max(floor);
        Ok((raised, lowest.is_none() && up_to < until))
    }

    /// How far a walk goes that begins after this number.
    pub(super) async fn edge(&self, connection: &mut MySqlConnection, after: i64) -> Result<i64> {
        let first: Option<i64> = sqlx::query_scalar(self.tables.sql(FIRST_AFTER))
            .bind(after)
            .fetch_one(connection)
            .await
            .map_err(failed("looking for the next event"))?;
        Ok(first.map_or(i64::MAX, |first| first.saturating_add(WINDOW)))
    }

    /// Looks up to the cursor, and lowers the floor to before what has appeared late. Returns at most so many
    /// of that; the next look goes on with the rest.
    pub(super) async fn look_behind(
        &self,
        session: &mut Stamped,
        sweep: &mut Sweep,
        cursor: i64,
        most: usize,
    ) -> Result<Late> {
        let reader = self.reader(session, &sweep.seen, "sweeping")?;
        sweep.floor = sweep.floor.min(reader.sequence);
        {
            let _looking = self.looking.lock().await;
            self.track(session, reader, cursor, LOOK_LIMIT).await?;
        }
        self.look_back(session, reader).await?;
        // In one answer: another reader can make the tracker start again in between.
        let (reader, late, given, frontier) = {
            let tracker = self.tracker_of(reader)?;
            let reader = tracker.again(reader).unwrap_or(reader);
            let late = tracker.late(reader, i64::MAX, most);
            (reader, late, tracker.appeared(), tracker.frontier())
        };
        sweep.floor = sweep.floor.min(reader.sequence);
        let cut = late.len() >= most;
        let given = late.last().filter(|_| cut).map_or(given, |(given, _)| *given);
        let numbers: Vec<i64> = late.into_iter().map(|(_, number)| number).collect();
        if let Some(lowest) = numbers.iter().min() {
            sweep.floor = sweep.floor.min(lowest - 1);
        }
        let sequence = frontier.min(cursor);
        let before = self.position(Reader { sequence, ..reader })?;
        sweep.seen = self.position(Reader { sequence, given, ..reader })?;
        Ok(Late { numbers, cut, before })
    }

    /// So that a restart does not sweep from the beginning.
    pub(super) async fn keep_floor(&self, session: &mut Stamped, sweep: &Sweep) -> Result<()> {
        {
            let mut kept = self.floor_kept.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.is_some_and(|at| at.elapsed() < KEEP_INTERVAL) {
                return Ok(());
            }
            *kept = Some(Instant::now());
        }
        let mut transaction = session.begin("keeping the floor of a sweep").await?;
        sqlx::query(self.tables.sql(KEEP_FLOOR))
            .bind(sweep.floor)
            .bind(&sweep.seen.context)
            .bind(sweep.floor)
            .execute(&mut *transaction)
            .await
            .map_err(failed("keeping the floor of a sweep"))?;
        transaction.commit().await.map_err(failed("keeping the floor of a sweep"))
    }
}
