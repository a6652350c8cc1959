//! Finding events without writing: ahead of the cursor, behind it, by their time, by their lane.

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::Ordering,
    time::Duration,
};

use async_trait::async_trait;
use futures_util::TryStreamExt;
use posthaste_core::{
    Error, ErrorKind, Key, Result,
    store::{
        Blocked, BlockedLanes, Due, DueKey, Fetched, HotRow, LaneKey, LeaveOut, Limit, Page,
        Position, Read, Wait,
    },
};
use sqlx::{
    PgConnection, Postgres, Row,
    postgres::{PgArguments, PgRow},
};
use uuid::Uuid;

use super::{
    PostgresStore,
    context::{self, Context, Snapshot, Walk},
    life::moved,
    row::{COLUMNS, Light, Micros, event, fetched, fetched_all},
    shard_numbers,
};
use crate::{
    beyond::{self, Found, LOOK_ROWS},
    failure::failed,
    key::KeyColumns,
};

/// How many rows of each late transaction a read walks over: together `$4`. So a page costs the same however many
/// there are, and a smaller one costs less.
macro_rules! of_each {
    () => {
        "(select greatest(20, least(2000, $4::bigint / greatest(cardinality(ended), 1))) from seen)"
    };
}

/// So many rows are walked over for each that a read may bring.
const WALKED: i64 = 4;

/// Most sequence numbers that a read ahead walks over: what is settled already costs time, too.
pub(super) const WINDOW: i64 = 50_000;

/// Most rows that a look for due events walks over, and as many in a look for the next time: they may all be of
/// other shards, or settled. Part of the statement: the planner knows no value that is bound, and would take
/// such a walk for one over a tenth of the table.
macro_rules! walked {
    () => {
        "5000"
    };
}

/// The present snapshot, and which of the transactions that `$1`, an earlier one, saw in progress have
/// ended in this one.
macro_rules! seen {
    ($in:literal) => {
        concat!(
            "with seen as materialized (
            select cur, age('3'::xid) as age, array(
                       select x from pg_snapshot_xip(prev) x
                       where pg_visible_in_snapshot(x, ",
            $in,
            ")
                   ) as ended
            from (select pg_current_snapshot() as cur, $1::text::pg_snapshot as prev) s
        )"
        )
    };
}

/// Whether `e` waits for nothing, or only for a time that has come.
macro_rules! fresh {
    () => {
        concat!(
            "(e.not_before is null
              or e.wait is null and e.not_before <= statement_timestamp()) and ",
            unsettled!()
        )
    };
}

/// The rows of the transactions that `seen` tells to look at, from `$3` to `$2`, together about `$4`, and
/// up to where all of them were walked over. By two comparisons of pairs instead of `xid = any(…)`: where
/// one transaction wrote most of the table, an equality looks to the planner as if it fetched most of the
/// table, and it would scan it.
macro_rules! late {
    ($of_shards:literal) => {
        concat!(
            ", walked as materialized (
                select e.* from unnest((select ended from seen)) x
                cross join lateral (
                    select e.xid, e.sequence, (",
            fresh!(),
            $of_shards,
            ") as wanted
                    from {events} e
                    where (e.xid, e.sequence) > (x, $3) and (e.xid, e.sequence) <= (x, $2)
                    order by e.xid, e.sequence
                    limit ",
            of_each!(),
            "
                ) e
            ),
            edge as materialized (
                select min(last) as late_edge from (
                    select max(sequence) as last from walked group by xid
                    having count(*) >= ",
            of_each!(),
            "
                ) w
            )"
        )
    };
}

/// Those of the rows `e` before which there are fewer bytes than allowed.
macro_rules! within {
    ($rows:expr, $bytes:literal) => {
        concat!(
            "select * from (
                select e.*, coalesce(sum(octet_length(e.payload)
                        + coalesce(octet_length(e.headers), 0))
                    over (order by e.sequence rows between unbounded preceding and 1 preceding), 0)
                    as bytes_before
                from (",
            $rows,
            ") e
            ) e where e.bytes_before < ",
            $bytes
        )
    };
}

/// The rows, those larger than `$6` without headers and payload: so a page has no more bytes than its rows
/// times `$6`, and no row but these needs a second look. A sum over the rows before each one made every
/// read a quarter dearer.
macro_rules! light {
    ($rows:expr) => {
        concat!(
            "select ",
            light_columns!("$6"),
            ", null::text from (",
            $rows,
            ") e
            cross join lateral (
                select octet_length(e.payload)::bigint + coalesce(octet_length(e.headers), 0)
                    as bytes
            ) s"
        )
    };
}

/// The late rows, at most `$5`.
macro_rules! late_rows {
    () => {
        light!(
            "select e.* from (
                select sequence from walked
                where wanted and sequence <= coalesce((select late_edge from edge), sequence)
                order by sequence
                limit $5
            ) l join {events} e on e.sequence = l.sequence"
        )
    };
}

/// What is said once for all rows: snapshot, how old the oldest possible transaction id is, newest
/// sequence, how far was walked ahead and among the late ones, the table's file, the server's life.
macro_rules! said {
    () => {
        "concat_ws(' ', cur, age, coalesce(newest, 0), coalesce(ahead_edge, 0),
            coalesce(late_edge, 0), pg_relation_filenode('{events}'::regclass),
            coalesce((select token::text from {life}), '-'))"
    };
}

/// How far a read ahead of `$2` goes.
macro_rules! range {
    () => {
        "range as materialized (
            select (select sequence from {events} order by sequence desc limit 1) as newest,
                   coalesce((select sequence from {events} where sequence > $2
                             order by sequence limit 1), $2) + $8 as ahead_edge
        )"
    };
}

/// The rows ahead of `$2`, and one that is no event: it holds what is said once, which every row would have to
/// carry otherwise.
macro_rules! ahead {
    ($of_shards:literal) => {
        concat!(
            light!(concat!(
                "select * from {events} e
                where e.sequence > $2 and e.sequence <= (select ahead_edge from range) and ",
                fresh!(),
                $of_shards,
                " order by e.sequence limit $7"
            )),
            "
            union all
            select ",
            no_columns!(),
            ", null, ",
            said!(),
            " from seen, edge, range"
        )
    };
}

/// What is late and what is ahead of `$2`, of one snapshot.
macro_rules! on {
    ($of_shards:literal) => {
        concat!(
            seen!("cur"),
            late!($of_shards),
            ", ",
            range!(),
            " ",
            late_rows!(),
            "
            union all
            ",
            ahead!($of_shards)
        )
    };
}

/// The same where the earlier snapshot saw nothing in progress: then nothing can be late. Most polls of a quiet
/// outbox are of this kind, and it costs half as much.
macro_rules! on_without_late {
    ($of_shards:literal) => {
        concat!(
            "with seen as materialized (
                select pg_current_snapshot() as cur, age('3'::xid) as age
            ),
            edge as (select null::bigint as late_edge), ",
            range!(),
            " ",
            ahead!($of_shards)
        )
    };
}

/// Whether a retry or suspect, and whether a dead event, blocks the lane `l`.
macro_rules! blocked_by {
    () => {
        "exists (
            select from {events} e
            where e.lane = l.lane and e.destination = l.destination
              and e.wait in ('retry', 'suspect') and e.sent_at is null
              and e.discarded_at is null and e.dead_at is null
        ),
        exists (
            select from {events} e
            where e.lane = l.lane and e.destination = l.destination and e.wait = 'parked'
              and e.sent_at is null and e.discarded_at is null
        )"
    };
}

/// Whether an event of the lane `l` is held.
macro_rules! held_in {
    () => {
        "exists (
            select from {events} e
            where e.lane = l.lane and e.destination = l.destination and e.wait = 'held'
              and e.sent_at is null and e.discarded_at is null and e.dead_at is null
        )"
    };
}

#[async_trait]
impl Read for PostgresStore {
    async fn read_on(&self, shards: &[u16], from: &Position, limit: Limit) -> Result<Page> {
        const DOING: &str = "reading on";
        const ON: &str = on!(" and e.shard = any($9)");
        const ON_IN_ALL: &str = on!("");
        const AHEAD: &str = on_without_late!(" and e.shard = any($9)");
        const AHEAD_IN_ALL: &str = on_without_late!("");

        let context = Context::parse(&from.context);
        if context.as_ref().is_some_and(|context| context.walk.is_some()) {
            return self.read_late(shards, from, limit).await;
        }
        // Without a context nothing is known to have been seen.
        let sequence = if context.is_some() { from.sequence } else { 0 };
        let all = self.all_shards(shards);
        // Late rows and those ahead share the bytes.
        let half = Limit { bytes: limit.bytes.div_ceil(2), ..limit };
        let saw_all =
            context.as_ref().is_some_and(|context| context.snapshot.in_progress.is_empty());
        let statement = match (saw_all, all) {
            (false, false) => ON,
            (false, true) => ON_IN_ALL,
            (true, false) => AHEAD,
            (true, true) => AHEAD_IN_ALL,
        };
        let query = sqlx::query(self.tables.sql(statement))
            .bind(snapshot(context.as_ref()))
            .bind(sequence)
            .bind(0_i64)
            .bind(WALKED.saturating_mul(limit.rows as i64))
            .bind(limit.rows as i64)
            .bind(share(half))
            .bind(limit.rows as i64)
            .bind(WINDOW);
        let query = if all { query } else { query.bind(shard_numbers(shards)) };
        let mut session = self.sessions.take(DOING).await?;
        let Answer { mut late, mut ahead, said } =
            answer(query, &mut session, sequence, DOING).await?;
        let Some(next) = said.next(context.as_ref(), DOING)? else {
            session.done();
            return Ok(said.start_again());
        };
        if next.snapshot.is_too_wide() {
            session.done();
            return self.narrowed(from).await;
        }
        let late_cut = cut(&mut late, half);
        if let Some(after) = said.late_until(late_cut) {
            let rows = self.filled(&mut session, late, DOING).await?;
            session.done();
            let walk = Walk { next: next.snapshot.clone(), after };
            let snapshot = context.map_or(next.snapshot.clone(), |known| known.snapshot);
            let context = Context { snapshot, walk: Some(walk), ..next }.to_string();
            return Ok(Page { rows, position: Position { sequence, context }, caught_up: false });
        }
        let ahead_cut = cut(&mut ahead, half);
        let last = ahead.last().map_or(sequence, Light::sequence);
        let walked = said.ahead_edge.min(said.newest).max(last);
        let sequence = ahead_cut.unwrap_or(walked);
        let caught_up = ahead_cut.is_none() && said.ahead_edge >= said.newest;
        // Most reads find nothing late: then nothing is moved.
        if !late.is_empty() {
            late.extend(ahead);
            ahead = late;
        }
        let rows = self.filled(&mut session, ahead, DOING).await?;
        session.done();
        Ok(Page { rows, position: Position { sequence, context: next.to_string() }, caught_up })
    }

    async fn read_late(&self, shards: &[u16], from: &Position, limit: Limit) -> Result<Page> {
        // Transactions that are still open are left out by their id: one that stays open for hours
        // with many events would be walked over with every poll. A snapshot of the future is that of
        // another server: then everything is looked at again. What ends while a walk is under way is for the next
        // one: this one is past its first events.
        const DOING: &str = "reading late commits";
        const LATE: &str = concat!(
            seen!("coalesce($8::text::pg_snapshot, cur)"),
            late!(" and e.shard = any($7)"),
            ", range as (select 0::bigint as newest, 0::bigint as ahead_edge)
            ",
            late_rows!(),
            "
            union all
            select ",
            no_columns!(),
            ", null, ",
            said!(),
            " from seen, edge, range"
        );

        let Some(context) = Context::parse(&from.context) else {
            return Ok(Page { rows: Vec::new(), position: from.clone(), caught_up: true });
        };
        let query = sqlx::query(self.tables.sql(LATE))
            .bind(context.snapshot.to_string())
            .bind(from.sequence)
            .bind(context.walk.as_ref().map_or(0, |walk| walk.after))
            .bind(WALKED.saturating_mul(limit.rows as i64))
            .bind(limit.rows as i64)
            .bind(share(limit))
            .bind(shard_numbers(shards))
            .bind(context.walk.as_ref().map(|walk| walk.next.to_string()));
        let mut session = self.sessions.take(DOING).await?;
        let Answer { mut late, said, .. } =
            answer(query, &mut session, from.sequence, DOING).await?;
        let Some(next) = said.next(Some(&context), DOING)? else {
            session.done();
            return Ok(said.start_again());
        };
        if next.snapshot.is_too_wide() {
            session.done();
            return self.narrowed(from).await;
        }
        let until = said.late_until(cut(&mut late, limit));
        let rows = self.filled(&mut session, late, DOING).await?;
        session.done();
        let walking = context.walk.is_some();
        let seen = context.walk.map_or(next.snapshot, |walk| walk.next);
        let context = match until {
            Some(after) => Context { walk: Some(Walk { next: seen, after }), ..context },
            None => Context { snapshot: seen, walk: None, ..context },
        };
        let position = Position { sequence: from.sequence, context: context.to_string() };
        Ok(Page { rows, position, caught_up: until.is_none() && !walking })
    }

    fn join(&self, positions: &[Position]) -> Position {
        context::join(positions)
    }

    async fn read_due_but(
        &self,
        shards: &[u16],
        after: Option<DueKey>,
        limit: Limit,
        but: &LeaveOut,
    ) -> Result<Due> {
        // `statement_timestamp()` is the time of the statement and, unlike `clock_timestamp()`,
        // one that an index scan can start from. The last row of a walk comes along whatever it is: it says
        // where the next walk begins.
        const DUE: &str = concat!(
            "select ",
            columns!(
                "case when e.wanted then e.headers end",
                "case when e.wanted then e.payload else '' end"
            ),
            ", n.micros, e.wanted, e.number = ",
            walked!(),
            "
            from (select (
                select (extract(epoch from e.not_before - statement_timestamp()) * 1e6)::bigint
                from (
                    select e.not_before, e.sequence, (e.shard = any($1) and ",
            unsettled!(),
            ") as wanted
                    from {events} e
                    where e.not_before > statement_timestamp() and e.not_before < 'infinity'
                    order by e.not_before, e.sequence
                    limit ",
            walked!(),
            "
                ) e
                where e.wanted
                order by e.not_before, e.sequence
                limit 1
            ) as micros) n
            left join lateral (
                select * from (
                    select e.*, coalesce(sum(case when e.wanted
                            then octet_length(e.payload) + coalesce(octet_length(e.headers), 0)
                            else 0 end)
                        over (order by e.not_before, e.sequence
                              rows between unbounded preceding and 1 preceding), 0) as bytes_before
                    from (
                        select * from (
                            select e.*, (e.shard = any($1) and ",
            unsettled!(),
            " and (e.wait is null or not (e.wait = 'replay' and $6
                                    or e.wait in ('retry', 'suspect')
                                        and coalesce(e.destination = any($7), false)))) as wanted,
                                row_number() over (order by e.not_before, e.sequence) as number
                            from {events} e
                            where e.not_before <= statement_timestamp()
                              and (e.not_before, e.sequence) > ($4, $5)
                            order by e.not_before, e.sequence
                            limit ",
            walked!(),
            "
                        ) e
                        where e.wanted or e.number = ",
            walked!(),
            "
                        order by e.not_before, e.sequence
                        limit $2
                    ) e
                ) e where e.bytes_before < $3
            ) e on true
            order by e.not_before, e.sequence"
        );
        const DOING: &str = "reading due events";

        let after = after.unwrap_or(DueKey { at: i64::MIN, sequence: 0 });
        let mut session = self.reading_session(DOING).await?;
        let mut next: Option<i64> = None;
        let (mut last, mut walk_cut) = (None, false);
        let rows: Vec<Option<Fetched>> = sqlx::query(self.tables.sql(DUE))
            .bind(shard_numbers(shards))
            .bind(limit.rows as i64)
            .bind(bytes(limit.bytes))
            .bind(Micros(after.at))
            .bind(after.sequence)
            .bind(but.replays)
            .bind(&but.destinations)
            .try_map(|row: PgRow| {
                next = row.try_get(COLUMNS)?;
                let Some(event) = event(&row)? else { return Ok(None) };
                let at = row.try_get_unchecked::<Micros, _>(18)?.0;
                last = Some(DueKey { at, sequence: event.sequence });
                walk_cut = row.try_get(COLUMNS + 2)?;
                Ok(row.try_get::<bool, _>(COLUMNS + 1)?.then_some(event))
            })
            .fetch_all(&mut *session)
            .await
            .map_err(failed(DOING))?;
        session.done();
        let rows: Vec<Fetched> = rows.into_iter().flatten().collect();
        let cut = walk_cut || is_cut(&rows, limit.rows, bytes(limit.bytes));
        Ok(Due {
            more: last.filter(|_| cut),
            rows,
            next: next.map(|micros| Duration::from_micros(micros.max(0) as u64)),
        })
    }

    async fn read_hot(&self, sequences: &[i64], from: &Position) -> Result<Vec<HotRow>> {
        // Most keys have a short history: then the last events of the aggregate are all of them, and
        // those that nobody has settled are what the reader may not know. A key whose history is
        // longer is looked at again, with what the reader knows.
        const HOT: &str = concat!(
            "select ",
            columns!(),
            ", case when e.ordering_key <> '' then null
                    when e.ordering_key is null and e.aggregate_id is not null then array(
                select case when p.ordering_key is null
                        and p.aggregate_type = e.aggregate_type
                        and coalesce(p.tenant, '') = coalesce(e.tenant, '')
                        and p.sent_at is null and p.dead_at is null and p.discarded_at is null
                        and (p.not_before is null or p.wait is not null
                             or p.not_before <= statement_timestamp())
                    then p.sequence end
                from {events} p
                where p.aggregate_id = e.aggregate_id and p.sequence < e.sequence
                order by p.aggregate_id desc, p.sequence desc
                limit 20
            ) else '{}' end, coalesce((select token::text from {life}), '-')
            from {events} e
            where e.sequence = any($1) and e.not_before is null and ",
            unsettled!(),
        );

        let known = Context::parse(&from.context);
        let mut life = None;
        let mut far = Vec::new();
        let mut session = self.sessions.take("reading hot events").await?;
        let mut rows: Vec<HotRow> = sqlx::query(self.tables.sql(HOT))
            .bind(sequences)
            .try_map(|row: PgRow| {
                let walked: Option<Vec<Option<i64>>> = row.try_get(COLUMNS)?;
                if life.is_none() {
                    life = Some(row.try_get::<String, _>(COLUMNS + 1)?);
                }
                let row = fetched(&row)?;
                if walked.as_ref().is_some_and(|walked| walked.len() >= WALK) {
                    far.push(row.sequence);
                }
                let previous = walked.map(|walked| walked.into_iter().flatten().collect());
                Ok(HotRow { row, previous })
            })
            .fetch_all(&mut *session)
            .await
            .map_err(failed("reading hot events"))?;
        if known.as_ref().zip(life).is_some_and(|(known, life)| known.life != life) {
            return Err(moved("reading hot events"));
        }
        if known.is_none() {
            for row in rows.iter_mut().filter(|row| far.contains(&row.row.sequence)) {
                row.previous = None;
            }
            far.clear();
        }
        if !far.is_empty() {
            let far_rows = self.read_hot_far(&mut session, &far, from).await?;
            rows.retain(|row| !far.contains(&row.row.sequence));
            rows.extend(far_rows);
        }
        session.done();
        rows.sort_unstable_by_key(|row| row.row.sequence);
        Ok(rows)
    }

    async fn read_beyond(
        &self,
        shards: &[u16],
        from: &Position,
        but: &HashSet<Key>,
        limit: Limit,
    ) -> Result<Vec<i64>> {
        const DOING: &str = "reading beyond the cursor";
        const BEYOND: &str = concat!(
            "select e.sequence,
                octet_length(e.payload)::bigint + coalesce(octet_length(e.headers), 0),
                e.ordering_key, e.tenant, e.aggregate_type, e.aggregate_id
            from {events} e
            where e.sequence > $1 and e.sequence <= $1 + $2 and e.shard = any($3) and ",
            fresh!(),
            " order by e.sequence limit $4"
        );
        const NEWEST: &str =
            "select coalesce((select sequence from {events} order by sequence desc limit 1), 0)";

        let after = self.beyond.load(Ordering::Relaxed).max(from.sequence);
        let mut session = self.sessions.take(DOING).await?;
        let found = sqlx::query(self.tables.sql(BEYOND))
            .bind(after)
            .bind(WINDOW)
            .bind(shard_numbers(shards))
            .bind(LOOK_ROWS as i64)
            .try_map(|row: PgRow| {
                let key = KeyColumns {
                    ordering_key: row.try_get_unchecked(2)?,
                    tenant: row.try_get_unchecked(3)?,
                    aggregate_type: row.try_get_unchecked(4)?,
                    aggregate_id: row.try_get_unchecked(5)?,
                };
                Ok(Found::new(row.try_get_unchecked(0)?, row.try_get_unchecked(1)?, key))
            })
            .fetch_all(&mut *session)
            .await
            .map_err(failed(DOING))?;
        let newest: i64 = sqlx::query_scalar(self.tables.sql(NEWEST))
            .fetch_one(&mut *session)
            .await
            .map_err(failed(DOING))?;
        session.done();
        Ok(beyond::page(&found, but, limit, &self.beyond, after + WINDOW, newest))
    }

    async fn read_held(
        &self,
        destination: &str,
        key: Key,
        after: i64,
        limit: Limit,
    ) -> Result<Vec<Fetched>> {
        // By comparisons of tuples: an equality on a lane that holds most of the table looks to the planner
        // as if the primary key were the better way.
        const HELD: &str = concat!(
            "select ",
            columns!(),
            " from (",
            within!(
                concat!(
                    "select * from {events} e
                    where e.lane is not null
                      and (e.lane, e.destination, e.wait, e.sequence) > ($1, $2, 'held', $3)
                      and (e.lane, e.destination, e.wait, e.sequence)
                          <= ($1, $2, 'held', 9223372036854775807) and ",
                    unsettled!(),
                    " order by e.lane, e.destination, e.wait, e.sequence limit $4"
                ),
                "$5"
            ),
            ") e order by e.sequence"
        );

        let mut session = self.reading_session("reading held events").await?;
        let rows = sqlx::query(self.tables.sql(HELD))
            .bind(key.0)
            .bind(destination)
            .bind(after)
            .bind(limit.rows as i64)
            .bind(bytes(limit.bytes))
            .try_map(|row: PgRow| fetched(&row))
            .fetch_all(&mut *session)
            .await
            .map_err(failed("reading held events"))?;
        session.done();
        Ok(rows)
    }

    async fn read_lane(
        &self,
        lane: &LaneKey,
        after: Option<(Wait, i64)>,
        limit: Limit,
    ) -> Result<Vec<Fetched>> {
        const LANE: &str = concat!(
            "select ",
            columns!(),
            " from (",
            within!(
                "select * from {events} e
                where e.lane is not null
                  and (e.lane, e.destination, e.wait, e.sequence) > ($1, $2, $3, $4)
                  and (e.lane, e.destination, e.wait, e.sequence)
                      <= ($1, $2, 'suspect', 9223372036854775807)
                  and e.wait in ('held', 'parked', 'retry', 'suspect')
                  and e.sent_at is null and e.discarded_at is null
                  and (e.dead_at is null or e.wait = 'parked')
                order by e.lane, e.destination, e.wait, e.sequence limit $5",
                "$6"
            ),
            ") e order by e.wait, e.sequence"
        );
        const DOING: &str = "reading a lane";

        let (wait, sequence) = after.map_or(("", 0), |(wait, at)| (wait.as_str(), at));
        let mut session = self.reading_session(DOING).await?;
        let rows = sqlx::query(self.tables.sql(LANE))
            .bind(lane.key.0)
            .bind(&lane.destination)
            .bind(wait)
            .bind(sequence)
            .bind(limit.rows as i64)
            .bind(bytes(limit.bytes))
            .try_map(|row: PgRow| fetched(&row))
            .fetch_all(&mut *session)
            .await
            .map_err(failed(DOING))?;
        session.done();
        Ok(rows)
    }

    async fn read_blockers(&self, limit: Limit) -> Result<Vec<Fetched>> {
        const BLOCKERS: &str = concat!(
            "select ",
            columns!(),
            " from (",
            within!(
                concat!(
                    "select * from {events} e
                    where e.lane is not null and e.wait in ('retry', 'suspect')
                      and e.not_before <= statement_timestamp() and ",
                    unsettled!(),
                    " order by e.lane, e.sequence limit $1"
                ),
                "$2"
            ),
            ") e order by e.lane, e.sequence"
        );

        let mut session = self.reading_session("reading what blocks lanes").await?;
        let rows = sqlx::query(self.tables.sql(BLOCKERS))
            .bind(limit.rows as i64)
            .bind(bytes(limit.bytes))
            .try_map(|row: PgRow| fetched(&row))
            .fetch_all(&mut *session)
            .await
            .map_err(failed("reading what blocks lanes"))?;
        session.done();
        Ok(rows)
    }

    async fn read_blocked(
        &self,
        shards: &[u16],
        after: Option<&LaneKey>,
        limit: usize,
    ) -> Result<BlockedLanes> {
        // From lane to lane by the index: a lane with a million held events is one step.
        const BLOCKED: &str = concat!(
            "with recursive lanes as (
                (
                    select lane, destination, shard, 1 as number from {events}
                    where lane is not null and destination is not null
                      and (lane, destination) > ($1, $2)
                    order by lane, destination
                    limit 1
                )
                union all
                select n.lane, n.destination, n.shard, l.number + 1 from lanes l
                cross join lateral (
                    select e.lane, e.destination, e.shard from {events} e
                    where e.lane is not null and e.destination is not null
                      and (e.lane, e.destination) > (l.lane, l.destination)
                    order by e.lane, e.destination
                    limit 1
                ) n
                where l.number < $3
            )
            select l.destination, l.lane, coalesce(b.waiting, false), coalesce(b.parked, false),
                (l.shard = any($4) or l.lane = 0)
            from lanes l
            left join lateral (select ",
            blocked_by!(),
            ") b (waiting, parked) on l.shard = any($4) or l.lane = 0
            order by l.number"
        );

        let mut session = self.reading_session("reading blocked lanes").await?;
        let lanes: Vec<(Blocked, bool)> = sqlx::query(self.tables.sql(BLOCKED))
            .bind(after.map_or(i64::MIN, |after| after.key.0))
            .bind(after.map_or("", |after| after.destination.as_str()))
            .bind(limit as i64)
            .bind(shard_numbers(shards))
            .try_map(|row: PgRow| Ok((blocked(&row)?, row.try_get(4)?)))
            .fetch_all(&mut *session)
            .await
            .map_err(failed("reading blocked lanes"))?;
        session.done();
        Ok(BlockedLanes::walked(lanes, limit))
    }

    async fn still_blocked(&self, lanes: &[LaneKey]) -> Result<Vec<Blocked>> {
        const STILL: &str = concat!(
            "select l.destination, l.lane, ",
            blocked_by!(),
            ", ",
            held_in!(),
            " from unnest($1::bigint[], $2::text[]) as l (lane, destination)"
        );

        let keys: Vec<i64> = lanes.iter().map(|lane| lane.key.0).collect();
        let destinations: Vec<&str> = lanes.iter().map(|lane| lane.destination.as_str()).collect();
        let mut session = self.reading_session("looking at blocked lanes").await?;
        let rows: Vec<(Blocked, bool)> = sqlx::query(self.tables.sql(STILL))
            .bind(keys)
            .bind(destinations)
            .try_map(|row: PgRow| Ok((blocked(&row)?, row.try_get(4)?)))
            .fetch_all(&mut *session)
            .await
            .map_err(failed("looking at blocked lanes"))?;
        session.done();
        let still = |(lane, held): &(Blocked, bool)| lane.waiting || lane.parked || *held;
        Ok(rows.into_iter().filter(still).map(|(lane, _)| lane).collect())
    }
}

fn blocked(row: &PgRow) -> sqlx::Result<Blocked> {
    Ok(Blocked {
        destination: row.try_get(0)?,
        key: Key(row.try_get(1)?),
        waiting: row.try_get(2)?,
        parked: row.try_get(3)?,
    })
}

/// Id, headers and payload.
type Content = (Option<Uuid>, Option<String>, Vec<u8>);

/// How far back the history of an aggregate is walked.
const WALK: usize = 20;

impl PostgresStore {
    /// The rows with the headers and payloads that were left out. A row that has been deleted since is
    /// left out: it is settled. Where its number is another event's, this is another server than a moment ago,
    /// behind a pooler.
    async fn filled(
        &self,
        connection: &mut PgConnection,
        rows: Vec<Light>,
        doing: &'static str,
    ) -> Result<Vec<Fetched>> {
        const CONTENT: &str =
            "select sequence, event_id, headers, payload from {events} where sequence = any($1)";

        let is_hollow = |row: &&Light| matches!(row, Light::Hollow { .. });
        let hollow: Vec<i64> = rows.iter().filter(is_hollow).map(Light::sequence).collect();
        let mut contents: HashMap<i64, Content> = HashMap::new();
        if !hollow.is_empty() {
            let mut found =
                sqlx::query(self.tables.sql(CONTENT)).bind(&hollow).fetch(&mut *connection);
            while let Some(row) = found.try_next().await.map_err(failed(doing))? {
                let content = (|| {
                    Ok((row.try_get(0)?, (row.try_get(1)?, row.try_get(2)?, row.try_get(3)?)))
                })();
                contents.extend([content.map_err(failed(doing))?]);
            }
        }
        let filled = |row: Light| match row {
            Light::Whole(row) => Some(Ok(row)),
            hollow @ Light::Hollow { .. } => {
                let (id, headers, payload) = contents.remove(&hollow.sequence())?;
                Some(hollow.filled(id, headers, payload).ok_or_else(|| moved(doing)))
            }
        };
        rows.into_iter().filter_map(filled).collect()
    }

    /// Nothing was read: a snapshot named too many ids. They are subtransactions of somebody while nothing
    /// else ends, so a transaction of ours ends, and the next snapshot is narrow.
    async fn narrowed(&self, from: &Position) -> Result<Page> {
        const END_ONE: &str = "select pg_current_xact_id()::text";
        const DOING: &str = "ending a transaction";

        let mut session = self.sessions.take(DOING).await?;
        sqlx::query(END_ONE).execute(&mut *session).await.map_err(failed(DOING))?;
        session.done();
        Ok(Page { rows: Vec::new(), position: from.clone(), caught_up: false })
    }

    /// Rows of the hot path whose key has a long history.
    async fn read_hot_far(
        &self,
        connection: &mut PgConnection,
        sequences: &[i64],
        from: &Position,
    ) -> Result<Vec<HotRow>> {
        // Between cursor and row the aggregate's index is walked: a few rows, or the answer is that the
        // store cannot tell. At or before the cursor only what the context could not see is unknown, and of
        // that only what a walk has not read. It lies between the first and the last number of the
        // transactions that have ended since, and there the aggregate's index is walked, too.
        const FAR: &str = concat!(
            seen!("cur"),
            ", late as materialized (
                select min(first) as first, max(last) as last
                from unnest((select ended from seen)) x
                cross join lateral (
                    select (
                        select p.sequence from {events} p
                        where (p.xid, p.sequence) > (x, case
                            when pg_visible_in_snapshot(x, $4::text::pg_snapshot) then $5 else 0
                        end) and (p.xid, p.sequence) <= (x, $3)
                        order by p.xid, p.sequence limit 1
                    ) as first, (
                        select p.sequence from {events} p
                        where (p.xid, p.sequence) > (x, 0) and (p.xid, p.sequence) <= (x, $3)
                        order by p.xid desc, p.sequence desc limit 1
                    ) as last
                ) r
            )
            select ",
            columns!(),
            ", case when e.ordering_key <> '' or h.walked >= 200 or l.walked >= 200 then null
                    else coalesce(h.ahead, '{}') || coalesce(l.late, '{}') end
            from {events} e
            left join lateral (
                select count(*) as walked,
                       array_agg(p.sequence) filter (
                           where p.ordering_key is null
                             and p.aggregate_type = e.aggregate_type
                             and coalesce(p.tenant, '') = coalesce(e.tenant, '')
                             and p.sent_at is null and p.dead_at is null and p.discarded_at is null
                       ) as ahead
                from (
                    select * from {events} p
                    where p.aggregate_id = e.aggregate_id
                      and p.sequence > $3 and p.sequence < e.sequence
                    order by p.aggregate_id, p.sequence
                    limit 200
                ) p
            ) h on e.ordering_key is null and e.aggregate_id is not null
            left join lateral (
                select count(*) as walked,
                       array_agg(p.sequence) filter (
                           where p.xid = any((select ended from seen)::xid8[])
                             and p.ordering_key is null
                             and p.aggregate_type = e.aggregate_type
                             and coalesce(p.tenant, '') = coalesce(e.tenant, '')
                             and p.sent_at is null and p.dead_at is null and p.discarded_at is null
                       ) as late
                from (
                    select * from {events} p
                    where p.aggregate_id = e.aggregate_id
                      and p.sequence >= (select first from late)
                      and p.sequence <= (select last from late)
                    order by p.aggregate_id, p.sequence
                    limit 200
                ) p
            ) l on e.ordering_key is null and e.aggregate_id is not null
            where e.sequence = any($2) and e.not_before is null and ",
            unsettled!(),
            "
            order by e.sequence"
        );

        let context = Context::parse(&from.context);
        let walk = context.as_ref().and_then(|context| context.walk.as_ref());
        sqlx::query(self.tables.sql(FAR))
            .bind(snapshot(context.as_ref()))
            .bind(sequences)
            .bind(from.sequence)
            // A walk has read what its snapshot shows, up to where it is.
            .bind(walk.map_or_else(|| NOTHING_SEEN.to_owned(), |walk| walk.next.to_string()))
            .bind(walk.map_or(0, |walk| walk.after))
            .try_map(|row: PgRow| {
                Ok(HotRow { row: fetched(&row)?, previous: row.try_get(COLUMNS)? })
            })
            .fetch_all(connection)
            .await
            .map_err(failed("reading hot events"))
    }
}

/// A snapshot before everything.
const NOTHING_SEEN: &str = "1:1:";

/// The snapshot of a position. Without one nothing is known to have been seen.
fn snapshot(context: Option<&Context>) -> String {
    context.map_or_else(|| NOTHING_SEEN.to_owned(), |context| context.snapshot.to_string())
}

/// Bytes as they are bound.
pub(super) fn bytes(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX).max(1)
}

/// What each row of a page may have of its bytes.
fn share(limit: Limit) -> i64 {
    bytes(limit.bytes / limit.rows.max(1))
}

/// Leaves what fits into a page. Tells the last sequence when the page ends because of its limits, and not
/// because there was no more.
fn cut(rows: &mut Vec<Light>, limit: Limit) -> Option<i64> {
    let (all, mut bytes) = (rows.len(), 0_usize);
    let fitting = rows.iter().take_while(|row| {
        let before = bytes;
        bytes = bytes.saturating_add(row.bytes());
        before < limit.bytes.max(1)
    });
    let fitting = fitting.count();
    rows.truncate(fitting);
    let more = fitting < all || all >= limit.rows;
    rows.last().filter(|_| more).map(Light::sequence)
}

/// Whether a page ends because of its limits, and not because there was no more.
fn is_cut(rows: &[Fetched], most: usize, bytes: i64) -> bool {
    let sum: usize = rows.iter().map(|row| row.bytes).sum();
    rows.len() >= most || i64::try_from(sum).is_ok_and(|sum| sum >= bytes)
}

/// What a read says once for all its rows.
#[derive(Debug)]
struct Said {
    snapshot: Snapshot,
    newest: i64,
    ahead_edge: i64,
    late_edge: i64,
    file: i64,
    life: String,
}

impl Said {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let snapshot = Snapshot::parse(words.next()?)?.with_begun(words.next()?.parse().ok()?);
        let mut number = || words.next()?.parse().ok();
        let (newest, ahead_edge, late_edge, file) = (number()?, number()?, number()?, number()?);
        Some(Self { snapshot, newest, ahead_edge, late_edge, file, life: words.next()?.to_owned() })
    }

    /// The context of this read. `None` when what `known` says is of no use here: numbers or transaction
    /// ids have begun again.
    fn next(&self, known: Option<&Context>, doing: &str) -> Result<Option<Context>> {
        let next = Context {
            snapshot: self.snapshot.clone(),
            file: self.file,
            life: self.life.clone(),
            walk: None,
        };
        match known {
            Some(known) if known.life != self.life => Err(moved(doing)),
            // Transaction ids rise as long as it is the same server.
            Some(known) if known.file != self.file => Ok(None),
            Some(known) if known.snapshot.xmax > self.snapshot.xmax => Ok(None),
            _ => Ok(Some(next)),
        }
    }

    /// Everything is read again; what is settled is walked over.
    fn start_again(self) -> Page {
        let context =
            Context { snapshot: self.snapshot, file: self.file, life: self.life, walk: None };
        let position = Position { sequence: 0, context: context.to_string() };
        Page { rows: Vec::new(), position, caught_up: false }
    }

    /// Up to where late rows were read, unless these are all. `cut` is where the page ends for want of
    /// room.
    fn late_until(&self, cut: Option<i64>) -> Option<i64> {
        cut.or_else(|| (self.late_edge > 0).then_some(self.late_edge))
    }
}

/// What a read has brought.
struct Answer {
    /// Rows at or before the cursor, in order.
    late: Vec<Light>,
    /// Rows after the cursor, in order.
    ahead: Vec<Light>,
    said: Said,
}

/// Decodes rows as they come, and what is said once.
async fn answer(
    query: sqlx::query::Query<'_, Postgres, PgArguments>,
    session: &mut PgConnection,
    cursor: i64,
    doing: &'static str,
) -> Result<Answer> {
    let (mut late, mut ahead, mut said) = (Vec::new(), Vec::new(), None);
    // Not by `try_map`: the driver would hand each row on through a second stream, at an eighth of what a
    // row costs in all.
    let mut rows = query.fetch(session);
    while let Some(row) = rows.try_next().await.map_err(failed(doing))? {
        match Light::of(&row).map_err(failed(doing))? {
            Some(event) if event.sequence() > cursor => ahead.push(event),
            Some(event) => late.push(event),
            None => {
                let text: Option<&str> = row.try_get(COLUMNS + 1).map_err(failed(doing))?;
                said = text.and_then(Said::parse);
            }
        }
    }
    // A union does not promise an order, so it is looked at.
    for rows in [&mut late, &mut ahead] {
        if !rows.is_sorted_by_key(Light::sequence) {
            rows.sort_unstable_by_key(Light::sequence);
        }
    }
    Ok(Answer { late, ahead, said: said.ok_or_else(|| unsaid(doing))? })
}

fn unsaid(doing: &str) -> Error {
    Error::new(ErrorKind::Database, format!("{doing} failed: the answer is incomplete"))
}

/// The rows in the order of their sequence. A join does not promise to keep it, so it is looked at.
pub(super) fn in_order(rows: &[PgRow]) -> sqlx::Result<Vec<Fetched>> {
    let mut rows = fetched_all(rows)?;
    if !rows.is_sorted_by_key(|row| row.sequence) {
        rows.sort_unstable_by_key(|row| row.sequence);
    }
    Ok(rows)
}
