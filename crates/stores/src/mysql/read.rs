//! Finding events, without writing.
//!
//! A row that was written without the hash of its key has no shard in the database: statements
//! take it along, and its shard is computed here.

use std::{
    collections::{HashMap, HashSet},
    sync::{MutexGuard, atomic::Ordering},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use futures_util::TryStreamExt;
use posthaste_core::{
    Key, Result,
    store::{
        Blocked, BlockedLanes, Due, DueKey, Fetched, HotRow, LaneKey, LeaveOut, Limit, Page,
        Position, Read, Wait,
    },
};
use sqlx::{
    AssertSqlSafe, MySql, MySqlConnection, Row,
    mysql::{MySqlArguments, MySqlRow},
};

use super::{
    LIST, MySqlStore,
    late::MOST,
    life::{Stamped, is_same, moved},
    padded,
    row::{COLUMNS, columns, fetched, for_ever, fresh, unsettled},
    tracker::{self, Context, News, Reader, Tracker},
};
use crate::{
    Tables,
    beyond::{self, Found, LOOK_ROWS},
    failure::failed,
    key::KeyColumns,
};

/// Most numbers that one look takes in.
pub(super) const LOOK_LIMIT: usize = 10_000;

/// Most looks in one read over what is settled already.
const LOOKS: usize = 5;

/// Most lanes that are asked about in one statement.
const LANES: usize = 256;

/// Whether `e` waits for nothing, or only for a time that has come.
macro_rules! readable {
    () => {
        concat!(
            "(e.not_before is null or e.wait is null and e.not_before <= utc_timestamp(6)) and ",
            unsettled!()
        )
    };
}

/// The number of `p` if nobody has settled it and it has the key of `e`.
macro_rules! same_key {
    () => {
        "case when p.sent_at is null and p.dead_at is null and p.discarded_at is null
            and cast(p.aggregate_id as binary) = cast(e.aggregate_id as binary)
            and cast(p.aggregate_type as binary) = cast(e.aggregate_type as binary)
            and cast(coalesce(p.tenant, '') as binary) = cast(coalesce(e.tenant, '') as binary)
            and p.ordering_key is null
        then p.sequence end"
    };
}

/// The unsettled events in this part of the key's history, in one text. `null` if there are too many to tell: the
/// aggregate's index is walked, and a text of more than 40 numbers would not fit into what MySQL joins.
macro_rules! unsettled_of_key {
    ($part:literal) => {
        concat!(
            "case when (
                select 1 from {events} p force index ({bare}_aggregate_idx)
                where p.aggregate_id = e.aggregate_id and ",
            $part,
            " limit 1 offset 200) is not null then null
            else (
                select case when count(",
            same_key!(),
            ") >= 40 then null else coalesce(group_concat(",
            same_key!(),
            "), '') end
                from {events} p force index ({bare}_aggregate_idx)
                where p.aggregate_id = e.aggregate_id and ",
            $part,
            ") end"
        )
    };
}

/// Whether a retry or suspect, and whether a dead event, blocks the lane `l`.
macro_rules! blocked_by {
    () => {
        "exists (
            select 1 from {events} e
            where e.lane = l.lane and e.destination = l.destination
                and e.wait in ('retry', 'suspect') and e.sent_at is null
                and e.discarded_at is null and e.dead_at is null
        ),
        exists (
            select 1 from {events} e
            where e.lane = l.lane and e.destination = l.destination and e.wait = 'parked'
                and e.sent_at is null and e.discarded_at is null
        )"
    };
}

/// Whether an event of the lane `l` is held.
macro_rules! held_in {
    () => {
        "exists (
            select 1 from {events} e
            where e.lane = l.lane and e.destination = l.destination and e.wait = 'held'
                and e.sent_at is null and e.discarded_at is null and e.dead_at is null
        )"
    };
}

#[async_trait]
impl Read for MySqlStore {
    async fn read_on(&self, shards: &[u16], from: &Position, limit: Limit) -> Result<Page> {
        const DOING: &str = "reading on";

        if shards.is_empty() || limit.rows == 0 {
            return Ok(Page { rows: Vec::new(), position: from.clone(), caught_up: true });
        }
        let looking = self.looking.lock().await;
        let mut session = self.session(DOING).await?;
        let reader = self.reader(&session, from, DOING)?;
        let waiting = self.tracker_of(reader)?.late(reader, reader.sequence, limit.rows).len();
        if waiting >= limit.rows {
            let page = self.late_page(&mut session, shards, reader, limit).await?;
            session.done();
            return Ok(Page { caught_up: false, ..page });
        }
        let half = Limit { bytes: limit.bytes.div_ceil(2), ..limit };
        let ahead = self.ahead(&mut session, shards, reader, half).await?;
        drop(looking);
        // After the rows: an event that is ahead can have been enqueued after the commit of one that is
        // late.
        self.look_back(&mut session, reader).await?;
        let news = self.tracker_of(reader)?.news(reader, ahead.end, limit.rows);
        let (late, end, given) = match news {
            News::Late { late, end, appeared } => (late, end, appeared),
            News::Again(again) => {
                session.done();
                return self.start_again(again);
            }
        };
        let caught_up = ahead.caught_up && end == ahead.end;
        let numbers: Vec<i64> = late.iter().map(|&(_, number)| number).collect();
        let found = self.rows_of(&mut session, shards, &numbers, half).await?;
        if late.len() >= limit.rows || found.cut {
            // More than fit beside the others: they come alone.
            let page = self.late_page(&mut session, shards, reader, limit).await?;
            session.done();
            return Ok(Page { caught_up: false, ..page });
        }
        session.done();
        let mut rows = ahead.rows;
        rows.retain(|row| row.sequence <= end);
        rows.extend(found.rows);
        rows.sort_by_key(|row| row.sequence);
        rows.dedup_by_key(|row| row.sequence);
        let position = self.position(Reader { sequence: end, given, ..reader })?;
        Ok(Page { rows, position, caught_up })
    }

    async fn read_late(&self, shards: &[u16], from: &Position, limit: Limit) -> Result<Page> {
        const DOING: &str = "reading late commits";

        if Context::parse(&from.context).is_none() {
            return Ok(Page { rows: Vec::new(), position: from.clone(), caught_up: true });
        }
        let mut session = self.session(DOING).await?;
        let reader = self.reader(&session, from, DOING)?;
        self.look_back(&mut session, reader).await?;
        let page = self.late_page(&mut session, shards, reader, limit).await?;
        session.done();
        Ok(page)
    }

    fn join(&self, positions: &[Position]) -> Position {
        tracker::join(positions)
    }

    async fn read_due_but(
        &self,
        shards: &[u16],
        after: Option<DueKey>,
        limit: Limit,
        but: &LeaveOut,
    ) -> Result<Due> {
        const DOING: &str = "reading due events";

        if shards.is_empty() {
            return Ok(Due { rows: Vec::new(), more: None, next: None });
        }
        let mut session = self.reading_session(DOING).await?;
        let limit = self.fewer(limit);
        let walk = due_walk(&self.tables, &mut session, after).await.map_err(failed(DOING))?;
        let query = bind_shards(sqlx::query(self.listing(DUE, shards.len())), shards);
        let query = bind_due_key(bind_due_key(query, after), walk.due)
            .bind(but.replays)
            .bind(serde_json::json!(but.destinations).to_string())
            .bind(limit.rows as u64);
        let found = self.page(&mut session, query, limit, DOING).await?;
        let query = bind_shards(sqlx::query(self.listing(NEXT_DUE, shards.len())), shards);
        let next: Option<i64> = bind_due_key(query, walk.next)
            .fetch_optional(&mut *session)
            .await
            .and_then(|row| row.map(|row| row.try_get(0)).transpose())
            .map_err(failed(DOING))?;
        session.done();
        Ok(Due {
            more: if found.cut { found.last_due } else { walk.due },
            // Others' rows without a shard were taken along.
            rows: found.rows.into_iter().filter(|row| shards.contains(&row.shard)).collect(),
            next: next.map(|micros| Duration::from_micros(micros.max(0) as u64)),
        })
    }

    async fn read_hot(&self, sequences: &[i64], from: &Position) -> Result<Vec<HotRow>> {
        const DOING: &str = "reading hot events";

        let count = self.shard_count().await?;
        let mut session = self.session(DOING).await?;
        let reader = self.reader(&session, from, DOING)?;
        let (first, last, known) = {
            let tracker = self.tracker_of(reader)?;
            let (first, last) = tracker.late_between(reader).unwrap_or((1, 0));
            (first, last, tracker.appeared())
        };
        let mut hot = Vec::with_capacity(sequences.len());
        // Unsettled events of the same key among the late ones, and others between them.
        let mut between = Vec::with_capacity(sequences.len());
        for sequences in sequences.chunks(LIST) {
            let mut query = sqlx::query(self.listing(HOT, sequences.len()))
                .bind(reader.sequence)
                .bind(reader.sequence)
                .bind(first)
                .bind(last)
                .bind(first)
                .bind(last);
            for sequence in padded(sequences) {
                query = query.bind(sequence);
            }
            let rows = query.fetch_all(&mut *session).await.map_err(failed(DOING))?;
            for row in &rows {
                let previous: Result<Option<String>, _> = row.try_get(COLUMNS);
                let among_late: Result<Option<String>, _> = row.try_get(COLUMNS + 1);
                hot.push(HotRow {
                    row: fetched(row, count).map_err(failed(DOING))?,
                    previous: previous.map_err(failed(DOING))?.map(numbers),
                });
                between.push(among_late.map_err(failed(DOING))?.map(numbers));
            }
        }
        // Asked after the rows: whatever was committed before one of them was enqueued is seen. A number
        // that has appeared under something fresh may be of the same key.
        if self.tracker_of(reader)?.has_quiet() {
            self.recall(&mut session, reader).await?;
        }
        let (missing, late, appeared) = {
            let tracker = self.tracker_of(reader)?;
            let candidates = between.iter().flatten().flatten().copied().collect();
            let late = tracker.late_among(reader, &candidates);
            (tracker.missing.clone(), late, tracker.appeared())
        };
        for (row, between) in hot.iter_mut().zip(between) {
            row.previous = row.previous.take().zip(between).map(|(mut previous, between)| {
                previous.extend(between.into_iter().filter(|number| late.contains(number)));
                previous
            });
        }
        let mut appeared = appeared != known;
        if !appeared && !missing.is_empty() {
            let fresh = concat!("and ", readable!());
            appeared = self.may_be_visible(&mut session, &missing, fresh).await?;
        }
        session.done();
        if appeared {
            for row in hot.iter_mut().filter(|hot| hot.row.key.is_some()) {
                row.previous = None;
            }
        }
        Ok(hot)
    }

    async fn read_beyond(
        &self,
        shards: &[u16],
        from: &Position,
        but: &HashSet<Key>,
        limit: Limit,
    ) -> Result<Vec<i64>> {
        const DOING: &str = "reading beyond the cursor";
        const NEWEST: &str = "select max(sequence) from {events}";

        let mut session = self.session(DOING).await?;
        let after = self.beyond.load(Ordering::Relaxed).max(from.sequence);
        let end = after.saturating_add(LOOK_LIMIT as i64);
        let mut found: Vec<Found> =
            bind_shards(sqlx::query(self.listing(BEYOND, shards.len())), shards)
                .bind(after)
                .bind(end)
                .bind(LOOK_ROWS as u64)
                .try_map(|row: MySqlRow| {
                    let key = KeyColumns {
                        ordering_key: row.try_get_unchecked(1)?,
                        tenant: row.try_get_unchecked(2)?,
                        aggregate_type: row.try_get_unchecked(3)?,
                        aggregate_id: row.try_get_unchecked(4)?,
                    };
                    Ok(Found::new(row.try_get(0)?, 0, key))
                })
                .fetch_all(&mut *session)
                .await
                .map_err(failed(DOING))?;
        // The server reads a payload whole to tell its length: only of those that may go.
        let limit = self.fewer(limit);
        let others = found.iter_mut().filter(|one| !one.is_of(but)).take(limit.rows.min(LIST));
        let mut others: Vec<&mut Found> = others.collect();
        if !others.is_empty() {
            let numbers: Vec<i64> = others.iter().map(|one| one.sequence).collect();
            let mut query = sqlx::query_as(self.listing(SIZES, numbers.len()));
            for number in padded(&numbers) {
                query = query.bind(number);
            }
            let sizes: Vec<(i64, i64)> =
                query.fetch_all(&mut *session).await.map_err(failed(DOING))?;
            let sizes: HashMap<i64, i64> = sizes.into_iter().collect();
            for one in &mut others {
                one.bytes = sizes.get(&one.sequence).copied().unwrap_or_default();
            }
        }
        let newest: Option<i64> = sqlx::query_scalar(self.tables.sql(NEWEST))
            .fetch_one(&mut *session)
            .await
            .map_err(failed(DOING))?;
        let (newest, mut end) = (newest.unwrap_or(0), end);
        if found.is_empty() && end < newest {
            // Numbers can jump: the next look begins before the next row.
            let next = self.look(&mut session, end, newest, 1).await?;
            end = next.first().map_or(end, |next| next - 1);
        }
        session.done();
        Ok(beyond::page(&found, but, limit, &self.beyond, end, newest))
    }

    async fn read_held(
        &self,
        destination: &str,
        key: Key,
        after: i64,
        limit: Limit,
    ) -> Result<Vec<Fetched>> {
        const DOING: &str = "reading held events";

        let mut session = self.reading_session(DOING).await?;
        let limit = self.fewer(limit);
        let query = sqlx::query(self.tables.sql(HELD))
            .bind(key.0)
            .bind(destination)
            .bind(after)
            .bind(limit.rows as u64);
        let found = self.page(&mut session, query, limit, DOING).await?;
        session.done();
        Ok(found.rows)
    }

    async fn read_lane(
        &self,
        lane: &LaneKey,
        after: Option<(Wait, i64)>,
        limit: Limit,
    ) -> Result<Vec<Fetched>> {
        const DOING: &str = "reading a lane";

        let (wait, sequence) = after.map_or(("", 0), |(wait, at)| (wait.as_str(), at));
        let mut session = self.reading_session(DOING).await?;
        let limit = self.fewer(limit);
        let query = sqlx::query(self.tables.sql(LANE))
            .bind(lane.key.0)
            .bind(&lane.destination)
            .bind(wait)
            .bind(wait)
            .bind(sequence)
            .bind(limit.rows as u64);
        let found = self.page(&mut session, query, limit, DOING).await?;
        session.done();
        Ok(found.rows)
    }

    async fn read_blockers(&self, limit: Limit) -> Result<Vec<Fetched>> {
        const DOING: &str = "reading what blocks lanes";

        let mut session = self.reading_session(DOING).await?;
        let limit = self.fewer(limit);
        let query = sqlx::query(self.tables.sql(BLOCKERS)).bind(limit.rows as u64);
        let found = self.page(&mut session, query, limit, DOING).await?;
        session.done();
        Ok(found.rows)
    }

    async fn read_blocked(
        &self,
        shards: &[u16],
        after: Option<&LaneKey>,
        limit: usize,
    ) -> Result<BlockedLanes> {
        const DOING: &str = "reading blocked lanes";

        let count = self.shard_count().await?;
        let mut session = self.reading_session(DOING).await?;
        let first = LaneKey { key: Key(i64::MIN), destination: String::new() };
        let after = after.unwrap_or(&first);
        let found: Vec<(String, i64, bool, bool)> = sqlx::query_as(self.tables.sql(BLOCKED))
            .bind(after.key.0)
            .bind(after.key.0)
            .bind(&after.destination)
            .bind(limit as u64)
            .fetch_all(&mut *session)
            .await
            .map_err(failed(DOING))?;
        session.done();
        let ours = |lane: Blocked| {
            let ours = lane.key == Key::OF_ALL || shards.contains(&lane.key.shard(count));
            (lane, ours)
        };
        let lanes = found.into_iter().map(blocked).map(ours).collect();
        Ok(BlockedLanes::walked(lanes, limit))
    }

    async fn still_blocked(&self, lanes: &[LaneKey]) -> Result<Vec<Blocked>> {
        const DOING: &str = "looking at blocked lanes";

        let mut session = self.reading_session(DOING).await?;
        let mut still = Vec::new();
        for lanes in lanes.chunks(LANES) {
            let places = lanes.len().next_power_of_two();
            let listed = vec![
                "select cast(? as signed) as lane, cast(? as char(100)) as destination";
                places
            ]
            .join(" union ");
            let sql = self.tables.sql(STILL).0.replace("{lanes}", &listed);
            let mut query = sqlx::query_as(AssertSqlSafe(sql));
            let lanes: Vec<(i64, &str)> =
                lanes.iter().map(|lane| (lane.key.0, lane.destination.as_str())).collect();
            for (key, destination) in padded(&lanes) {
                query = query.bind(key).bind(destination);
            }
            let found: Vec<(String, i64, bool, bool, bool)> =
                query.fetch_all(&mut *session).await.map_err(failed(DOING))?;
            for (destination, key, waiting, parked, held) in found {
                if waiting || parked || held {
                    still.push(blocked((destination, key, waiting, parked)));
                }
            }
        }
        session.done();
        Ok(still)
    }
}

fn blocked((destination, lane, waiting, parked): (String, i64, bool, bool)) -> Blocked {
    Blocked { destination, key: Key(lane), waiting, parked }
}

const AHEAD: &str = concat!(
    "select ",
    columns!(),
    " from {events} e force index (primary)
    where (e.shard in ({list}) or e.shard is null) and e.sequence > ? and e.sequence <= ? and ",
    readable!(),
    " order by e.sequence limit ?"
);

const BEYOND: &str = concat!(
    "select e.sequence, e.ordering_key, e.tenant, e.aggregate_type, e.aggregate_id
    from {events} e force index (primary)
    where (e.shard in ({list}) or e.shard is null) and e.sequence > ? and e.sequence <= ? and ",
    readable!(),
    " order by e.sequence limit ?"
);

const SIZES: &str = "
    select e.sequence, cast(length(e.payload) + coalesce(length(e.headers), 0) as signed)
    from {events} e force index (primary) where e.sequence in ({list})";

const LATE: &str = concat!(
    "select ",
    columns!(),
    " from {events} e where e.sequence in ({list}) and ",
    readable!(),
    " order by e.sequence"
);

/// Whether `e` comes after the key that [`bind_due_key`] binds, or there is none.
macro_rules! after_due_key {
    () => {
        "(? or e.not_before > timestampadd(microsecond, ?, timestamp'1970-01-01 00:00:00')
            or e.not_before = timestampadd(microsecond, ?, timestamp'1970-01-01 00:00:00')
                and e.sequence > ?)"
    };
}

/// Whether `e` comes no later than the key that [`bind_due_key`] binds, or there is none.
macro_rules! up_to_due_key {
    () => {
        "(? or e.not_before < timestampadd(microsecond, ?, timestamp'1970-01-01 00:00:00')
            or e.not_before = timestampadd(microsecond, ?, timestamp'1970-01-01 00:00:00')
                and e.sequence <= ?)"
    };
}

/// Whether the time of `e` has yet to come.
macro_rules! delayed {
    () => {
        concat!("e.not_before > utc_timestamp(6) and e.not_before < ", for_ever!())
    };
}

/// The last rows of a walk of 5,000 over what is due, and of one over what is delayed, where there are so many: they
/// may all be of other shards, or settled. The index alone is looked at, and the walks themselves end where they
/// have found enough. A limit inside of them would have to be a table of its own, always written to its end.
const DUE_WALK: &str = concat!(
    "select 'due', timestampdiff(microsecond, '1970-01-01', e.not_before), e.sequence from (
        select e.not_before, e.sequence from {events} e force index ({bare}_due_idx)
        where e.not_before <= utc_timestamp(6) and ",
    after_due_key!(),
    " order by e.not_before, e.sequence limit 4999, 1
    ) e
    union all
    select 'delayed', timestampdiff(microsecond, '1970-01-01', e.not_before), e.sequence from (
        select e.not_before, e.sequence from {events} e force index ({bare}_due_idx)
        where ",
    delayed!(),
    " order by e.not_before, e.sequence limit 4999, 1
    ) e"
);

const DUE: &str = concat!(
    "select ",
    columns!(),
    " from {events} e force index ({bare}_due_idx)
    where (e.shard in ({list}) or e.shard is null) and e.not_before <= utc_timestamp(6)
        and ",
    after_due_key!(),
    " and ",
    up_to_due_key!(),
    " and ",
    unsettled!(),
    " and (e.wait is null or not (e.wait = 'replay' and ?
        or e.wait in ('retry', 'suspect')
        and coalesce(json_contains(?, json_quote(e.destination)), 0)))
    order by e.not_before, e.sequence limit ?"
);

const NEXT_DUE: &str = concat!(
    "select timestampdiff(microsecond, utc_timestamp(6), e.not_before)
    from {events} e force index ({bare}_due_idx)
    where (e.shard in ({list}) or e.shard is null) and ",
    delayed!(),
    " and ",
    up_to_due_key!(),
    " and ",
    unsettled!(),
    " order by e.not_before limit 1"
);

/// The row before it of the same aggregate, whatever its state, is one step in the index; whether
/// that one is settled is asked afterwards, or this would walk through all that was sent. Texts are
/// compared as bytes: to the collation, which both servers know, a space at the end is nothing. Only
/// when ordered by the whole index does MySQL walk it backwards instead of sorting.
/// Unsettled events of the key that the reader may not know lie between the cursor and the row, or between the first
/// and the last of the late numbers.
const HOT: &str = concat!(
    "select ",
    columns!(),
    ", case
        when length(e.ordering_key) > 0 then null
        when e.ordering_key is null and e.aggregate_id is not null then ",
    unsettled_of_key!("p.sequence > ? and p.sequence < e.sequence"),
    " else ''
    end,
    case when e.ordering_key is null and e.aggregate_id is not null then ",
    unsettled_of_key!("p.sequence between ? and ?"),
    " else '' end
    from {events} e
    where e.sequence in ({list}) and ",
    fresh!(),
    " order by e.sequence"
);

/// A lane that holds most of the table looks to the planner as if the primary key were the better way: over all
/// that was sent.
const HELD: &str = concat!(
    "select ",
    columns!(),
    " from {events} e force index ({bare}_lane_idx)
    where e.lane = ? and e.destination = ? and e.wait = 'held' and e.sequence > ? and ",
    unsettled!(),
    " order by e.sequence limit ?"
);

const LANE: &str = concat!(
    "select ",
    columns!(),
    " from {events} e force index ({bare}_lane_idx)
    where e.lane = ? and e.destination = ? and (e.wait > ? or e.wait = ? and e.sequence > ?)
        and e.wait in ('held', 'parked', 'retry', 'suspect')
        and e.sent_at is null and e.discarded_at is null
        and (e.dead_at is null or e.wait = 'parked')
    order by e.wait, e.sequence limit ?"
);

const BLOCKERS: &str = concat!(
    "select ",
    columns!(),
    " from {events} e force index ({bare}_lane_idx)
    where e.lane is not null and e.wait in ('retry', 'suspect')
        and e.not_before <= utc_timestamp(6) and ",
    unsettled!(),
    " order by e.lane, e.sequence limit ?"
);

/// From lane to lane by the index: a lane with a million held events is one step.
const BLOCKED: &str = concat!(
    "select l.destination, l.lane, ",
    blocked_by!(),
    " from (
        select lane, destination from {events} force index ({bare}_lane_idx)
        where lane is not null and destination is not null
            and (lane > ? or lane = ? and destination > ?)
        group by lane, destination
        order by lane, destination
        limit ?
    ) l order by l.lane, l.destination"
);

const STILL: &str =
    concat!("select l.destination, l.lane, ", blocked_by!(), ", ", held_in!(), " from ({lanes}) l");

/// Rows of a page.
struct Rows {
    rows: Vec<Fetched>,
    /// There may be more.
    cut: bool,
    /// When the last row fell due.
    last_due: Option<DueKey>,
}

/// What is ahead of a reader.
struct Ahead {
    rows: Vec<Fetched>,
    end: i64,
    caught_up: bool,
}

/// The numbers of a list that the database wrote.
fn numbers(list: String) -> Vec<i64> {
    list.split(',').filter_map(|number| number.parse().ok()).collect()
}

pub(super) type Query<'q> = sqlx::query::Query<'q, MySql, MySqlArguments>;

fn bind_shards<'q>(mut query: Query<'q>, shards: &[u16]) -> Query<'q> {
    for shard in padded(shards) {
        query = query.bind(shard);
    }
    query
}

/// Where walks over due and delayed events end; `None` when they see all of them.
struct DueWalk {
    due: Option<DueKey>,
    next: Option<DueKey>,
}

async fn due_walk(
    tables: &Tables,
    connection: &mut MySqlConnection,
    after: Option<DueKey>,
) -> sqlx::Result<DueWalk> {
    let mut walk = DueWalk { due: None, next: None };
    let rows = bind_due_key(sqlx::query(tables.sql(DUE_WALK)), after).fetch_all(connection).await?;
    for row in rows {
        let (of, at): (String, Option<i64>) = (row.try_get(0)?, row.try_get(1)?);
        let last = DueKey { at: at.unwrap_or_default(), sequence: row.try_get(2)? };
        let end = if of == "due" { &mut walk.due } else { &mut walk.next };
        *end = Some(last);
    }
    Ok(walk)
}

fn bind_due_key(query: Query<'_>, key: Option<DueKey>) -> Query<'_> {
    let DueKey { at, sequence } = key.unwrap_or(DueKey { at: 0, sequence: 0 });
    query.bind(key.is_none()).bind(at).bind(at).bind(sequence)
}

impl MySqlStore {
    /// Where the reader of this position stands, if it is of the life of this connection.
    pub(super) fn reader(&self, session: &Stamped, from: &Position, doing: &str) -> Result<Reader> {
        let known = Context::parse(&from.context);
        if known.is_some_and(|context| !is_same(&context.life, &session.life)) {
            return Err(moved(doing));
        }
        let mut tracker = self.tracker();
        // Another connection may have learnt of another life since.
        if !is_same(tracker.life(), &session.life) {
            return Err(moved(doing));
        }
        Ok(tracker.reader(from, Instant::now()))
    }

    /// The tracker of this reader, unless the server has changed while it was reading.
    pub(super) fn tracker_of(&self, reader: Reader) -> Result<MutexGuard<'_, Tracker>> {
        let tracker = self.tracker();
        if tracker.id() == reader.tracker { Ok(tracker) } else { Err(moved("reading")) }
    }

    pub(super) fn position(&self, reader: Reader) -> Result<Position> {
        let context = self.tracker_of(reader)?.context(reader);
        Ok(Position { sequence: reader.sequence, context })
    }

    /// The page of a reader that was not given something which nobody remembers.
    fn start_again(&self, reader: Reader) -> Result<Page> {
        Ok(Page { rows: Vec::new(), position: self.position(reader)?, caught_up: false })
    }

    /// Fewer rows where events are large: of what was not wanted the server would send all the same.
    pub(super) fn fewer(&self, limit: Limit) -> Limit {
        let average = self.average.load(Ordering::Relaxed).max(1);
        Limit { rows: limit.rows.min(limit.bytes / average + 1).max(1), ..limit }
    }

    /// Reads on from where the reader stands, over what is settled as far as one read goes.
    async fn ahead(
        &self,
        session: &mut Stamped,
        shards: &[u16],
        reader: Reader,
        limit: Limit,
    ) -> Result<Ahead> {
        let mut ahead = Ahead { rows: Vec::new(), end: reader.sequence, caught_up: true };
        let limit = self.fewer(limit);
        // As many numbers as should hold `limit` rows of these shards.
        let share = usize::from(self.shard_count().await?).div_ceil(shards.len());
        let rows = limit.rows;
        let mut window = rows.saturating_mul(share).clamp(rows.min(LOOK_LIMIT), LOOK_LIMIT);
        for _ in 0..LOOKS {
            let frontier = self.tracker().frontier();
            if ahead.end >= frontier && self.tracker().missing.len() >= MOST {
                tracing::warn!(
                    outbox = %self.tables.name(),
                    "too many numbers are missing; reading waits until no statement can use them"
                );
                ahead.caught_up = true;
                break;
            }
            let from = ahead.end;
            let present = self.look(&mut *session, from, i64::MAX, window).await?;
            let Some(&horizon) = present.last() else {
                ahead.caught_up = true;
                break;
            };
            let query = bind_shards(sqlx::query(self.listing(AHEAD, shards.len())), shards)
                .bind(from)
                .bind(horizon)
                .bind(limit.rows as u64);
            let found = self.page(session, query, limit, "reading on").await?;
            ahead.caught_up = present.len() < window && !found.cut;
            ahead.end = match found.rows.last() {
                Some(last) if found.cut => last.sequence,
                _ => horizon,
            };
            self.tracker_of(reader)?.looked(from, &present, ahead.end, Instant::now());
            ahead.rows = found.rows;
            ahead.rows.retain(|row| shards.contains(&row.shard));
            if ahead.caught_up || found.cut || !ahead.rows.is_empty() {
                break;
            }
            window = LOOK_LIMIT;
        }
        Ok(ahead)
    }

    /// A page of what has appeared up to where the reader stands.
    async fn late_page(
        &self,
        session: &mut Stamped,
        shards: &[u16],
        reader: Reader,
        limit: Limit,
    ) -> Result<Page> {
        let news = self.tracker_of(reader)?.news(reader, reader.sequence, limit.rows);
        let (late, appeared) = match news {
            News::Late { late, appeared, .. } => (late, appeared),
            News::Again(again) => return self.start_again(again),
        };
        let numbers: Vec<i64> = late.iter().map(|&(_, number)| number).collect();
        let found = self.rows_of(session, shards, &numbers, limit).await?;
        let given = if found.cut {
            late.get(found.asked.wrapping_sub(1)).map_or(reader.given, |late| late.0)
        } else if late.len() < limit.rows {
            appeared
        } else {
            late.last().map_or(appeared, |late| late.0)
        };
        let position = self.position(Reader { given, ..reader })?;
        Ok(Page { rows: found.rows, position, caught_up: given == appeared })
    }

    /// The rows of these numbers that can go, in order, a few at a time until there are enough bytes.
    async fn rows_of(
        &self,
        session: &mut Stamped,
        shards: &[u16],
        sequences: &[i64],
        limit: Limit,
    ) -> Result<Late> {
        let count = self.shard_count().await?;
        let mut late = Late { rows: Vec::new(), asked: 0, cut: false };
        let (mut bytes, mut left) = (0_usize, sequences);
        while !left.is_empty() {
            if bytes >= limit.bytes {
                late.cut = true;
                break;
            }
            let rest = Limit { rows: LIST, bytes: limit.bytes - bytes };
            let (now, later) = left.split_at(self.fewer(rest).rows.min(left.len()));
            left = later;
            let mut query = sqlx::query(self.listing(LATE, now.len()));
            for sequence in padded(now) {
                query = query.bind(sequence);
            }
            let rows = query
                .try_map(|row| fetched(&row, count))
                .fetch_all(&mut **session)
                .await
                .map_err(failed("reading late commits"))?;
            late.asked += now.len();
            let read: usize = rows.iter().map(|row| row.bytes).sum();
            self.learn(rows.len(), read);
            bytes = bytes.saturating_add(read);
            late.rows.extend(rows.into_iter().filter(|row| shards.contains(&row.shard)));
        }
        late.rows.sort_by_key(|row| row.sequence);
        Ok(late)
    }

    pub(super) fn learn(&self, rows: usize, bytes: usize) {
        if let Some(average) = bytes.checked_div(rows) {
            self.average.store(average, Ordering::Relaxed);
        }
    }

    /// Takes rows as they come until there are enough.
    async fn page(
        &self,
        session: &mut Stamped,
        query: Query<'_>,
        limit: Limit,
        doing: &'static str,
    ) -> Result<Rows> {
        let count = self.shard_count().await?;
        let mut page = Rows { rows: Vec::new(), cut: false, last_due: None };
        let (mut bytes, mut cut_short) = (0_usize, false);
        {
            let mut rows = query.fetch(&mut **session);
            while let Some(row) = rows.try_next().await.map_err(failed(doing))? {
                if page.rows.len() >= limit.rows || bytes >= limit.bytes {
                    (page.cut, cut_short) = (true, true);
                    break;
                }
                let event = fetched(&row, count).map_err(failed(doing))?;
                let at: Option<i64> = row.try_get_unchecked(18).map_err(failed(doing))?;
                page.last_due =
                    Some(DueKey { at: at.unwrap_or_default(), sequence: event.sequence });
                bytes = bytes.saturating_add(event.bytes);
                page.rows.push(event);
            }
        }
        if cut_short {
            // The server sends the rest of its answer all the same: it is not waited for.
            self.reopen(session, doing).await?;
        }
        page.cut |= page.rows.len() >= limit.rows;
        self.learn(page.rows.len(), bytes);
        Ok(page)
    }
}

/// Rows of numbers that have appeared.
struct Late {
    rows: Vec<Fetched>,
    /// How many numbers were asked for.
    asked: usize,
    /// Not all were, for want of room.
    cut: bool,
}
