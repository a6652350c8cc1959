//! Taking single rows, for unordered work.
//!
//! A claim looks behind its cursor and may pass over rows that another claimer has locked, or that
//! commit later. A sweep (`claim_late`) goes back for them. The context of both is
//! `floor;snapshot;after;next;walked;file;life`: of the rows that the snapshot could see, all up to the
//! floor are settled or have a `not_before`, by which they are found. What the snapshot could not see is
//! found by its transaction id: the snapshot names all that were given out by then (see `context`). When
//! more of that came than fits, a walk is under way: it has come to `walked`, and then `next` becomes the
//! snapshot. Sweeps go in turns over what lies between floor and cursor; the last one has come to `after`. Where the file of the
//! table or the life of the server is another one, nothing is claimed and no mark is written: claims
//! start again from the stored marks.

use std::{fmt, sync::PoisonError};

use async_trait::async_trait;
use posthaste_core::{
    Result,
    store::{
        Claim, ClaimedRows, DueKey, ExpiredRow, Fetched, Limit, Position, Relay, RowLease,
        RowsInHand,
    },
};
use sqlx::{Decode, Postgres, Row, Type, postgres::PgRow};

use super::{
    PostgresStore,
    context::{Snapshot, WIDEST},
    life::moved,
    micros,
    read::{WINDOW, bytes, in_order},
    row::{COLUMNS, Micros},
};
use crate::{failure::failed, sessions::Session};

/// Whether the file of the table and the life of the server are those of the claims' context.
macro_rules! here {
    ($file:literal, $life:literal) => {
        concat!(
            "with here as materialized (
                select pg_relation_filenode('{events}'::regclass)::bigint = ",
            $file,
            " and coalesce((select token::text from {life}) = ",
            $life,
            ", false) as same
            )"
        )
    };
}

/// Whether the row lease of `e` is over, or lies further ahead than any lease is long, twice: the clock was
/// set back, and its relay is gone, or renews it soon.
macro_rules! over {
    () => {
        "(e.locked_until < statement_timestamp() or e.locked_until > (select until from longest))"
    };
}

/// Bytes of payload and headers of `e`.
macro_rules! size {
    () => {
        "octet_length(e.payload) + coalesce(octet_length(e.headers), 0)"
    };
}

#[async_trait]
impl Claim for PostgresStore {
    async fn claim(
        &self,
        relay: &Relay,
        lease: &RowLease,
        from: &Position,
        limit: Limit,
    ) -> Result<ClaimedRows> {
        // Rows that fell due take at most half, so that neither kind starves.
        const CLAIM: &str = concat!(
            here!("$7", "$8"),
            ", range as materialized (
                select (select sequence from {events} order by sequence desc limit 1) as newest,
                       (select sequence from {events} where sequence > $3
                        order by sequence limit 1) + $5 as edge
            ),
            due as materialized (
                select e.sequence, ",
            size!(),
            " as bytes from {events} e
                where (select same from here)
                  and e.not_before <= statement_timestamp() and e.locked_until is null
                  and ",
            unsettled!(),
            "
                order by e.not_before
                limit greatest($4 / 2, 1)
                for update skip locked
            ),
            fresh as materialized (
                select e.sequence, ",
            size!(),
            " as bytes from {events} e
                where (select same from here)
                  and e.sequence > $3 and e.sequence <= (select edge from range)
                  and e.not_before is null and e.locked_until is null
                  and ",
            unsettled!(),
            "
                order by e.sequence
                limit $4
                for update skip locked
            ),
            found as materialized (
                select sequence, bytes, false as fresh from due
                union all
                select sequence, bytes, true from fresh
                limit $4
            ),
            picked as materialized (
                select sequence, fresh from (
                    select f.*, coalesce(sum(bytes) over (
                        partition by fresh order by sequence
                        rows between unbounded preceding and 1 preceding), 0) as bytes_before
                    from found f
                ) f where bytes_before < $6
            ),
            -- What is due and does not fit says nothing of where fresh rows are.
            cut as materialized (
                select found >= $4 or found - due > picked - due_picked as cut,
                       due >= greatest($4 / 2, 1) or due > due_picked as more_due
                from (
                    select (select count(*) from found) as found,
                           (select count(*) from picked) as picked,
                           (select count(*) from due) as due,
                           (select count(*) from picked where not fresh) as due_picked
                ) c
            ),
            e as (
                update {events} e
                set locked_by = $1,
                    locked_until = clock_timestamp() + $2 * interval '1 microsecond'
                where e.sequence = any(array(select sequence from picked))
                returning e.*
            )
            select ",
            columns!(),
            ", n.same, n.caught_up, n.cursor
            from (
                select h.same,
                       not c.cut and not c.more_due and coalesce(r.newest <= r.edge, true) as caught_up,
                       greatest($3, case when c.cut
                           then (select max(sequence) from picked where fresh)
                           else least(r.edge, r.newest)
                       end) as cursor
                from here h, range r, cut c
            ) n
            left join e on true"
        );
        const DOING: &str = "claiming events";

        let mut session = self.sessions.take(DOING).await?;
        let (sequence, sweep) = self.claims_from(&mut session, from).await?;
        let rows = sqlx::query(self.tables.sql(CLAIM))
            .bind(&lease.token)
            .bind(micros(relay.lease))
            .bind(sequence)
            .bind(limit.rows as i64)
            .bind(WINDOW)
            .bind(bytes(limit.bytes.div_ceil(2)))
            .bind(sweep.file)
            .bind(&sweep.life)
            .fetch_all(&mut *session)
            .await
            .map_err(failed(DOING))?;
        session.done();
        let caught_up = said_caught_up(&rows, DOING)?;
        let sequence = said(&rows, 2, DOING)?;
        let rows = in_order(&rows).map_err(failed(DOING))?;
        Ok(ClaimedRows {
            rows,
            position: Position { sequence, context: sweep.to_string() },
            caught_up,
        })
    }

    async fn claim_late(
        &self,
        relay: &Relay,
        lease: &RowLease,
        from: &Position,
        limit: Limit,
    ) -> Result<ClaimedRows> {
        // The floor moves up to the first row that is open, whoever holds it, or down below the first one that
        // came late. It becomes the mark of the shards that nobody owns, so that neither a restart nor the
        // search for expired leases starts from the first event. A sweep claims what is free in one stretch of
        // numbers, and the next one goes on there.
        const CLAIM_LATE: &str = concat!(
            here!("$11", "$12"),
            ", begun as materialized (
                select s.*, case when ids > 2147483647 then 0 else ids end as begun
                from (
                    select $4::text::pg_snapshot as prev, cur,
                           pg_snapshot_xmax(cur)::text::bigint as xmax,
                           (age('3'::xid)::bigint + 3 + 8589934592
                               - pg_snapshot_xmax(cur)::text::bigint % 4294967296)
                           % 4294967296 as ids
                    from (select pg_current_snapshot() as cur) s
                ) s
            ),
            seen as materialized (
                select case when usable then $3 else 0 end as floor,
                       case when usable then array(
                           select x from pg_snapshot_xip(prev) x
                           where pg_visible_in_snapshot(x, coalesce($13::text::pg_snapshot, cur))
                       ) end as ended,
                       case when begun <= $10 then concat(
                           pg_snapshot_xmin(cur), ':', xmax + begun, ':', (
                               select string_agg(x::text, ',' order by x) from (
                                   select x::text::bigint as x from pg_snapshot_xip(cur) x
                                   union all
                                   select generate_series(xmax, xmax + begun - 1)
                               ) x
                           )
                       ) end as next, prev
                from (
                    select b.*, prev is not null
                        and pg_snapshot_xmax(prev)::text::bigint <= xmax + begun as usable
                    from begun b
                ) b
            ),
            late as materialized (
                select e.sequence from seen s
                cross join unnest(s.ended) x
                cross join lateral (
                    select e.sequence from {events} e
                    where (e.xid, e.sequence) > (x, coalesce($14::bigint, 0))
                      and (e.xid, e.sequence) <= (x, greatest(s.floor, $5))
                      and e.not_before is null and ",
            unsettled!(),
            "
                    order by e.xid, e.sequence
                    limit $6
                ) e
                order by e.sequence
                limit $6
            ),
            moved as materialized (
                select least(l.first - 1, coalesce(
                           (
                               select e.sequence - 1 from {events} e
                               where e.sequence > s.floor and e.sequence <= g.edge
                                 and e.sequence <= $5 and e.not_before is null and ",
            unsettled!(),
            "
                               order by e.sequence
                               limit 1
                           ),
                           greatest(s.floor, least(g.edge, $5))
                       )) as floor,
                       greatest($5, s.floor) as until
                from seen s
                cross join (select min(sequence) as first from late) l
                cross join lateral (
                    select (select sequence from {events} where sequence > s.floor
                            order by sequence limit 1) + $9 as edge
                ) g
            ),
            stretch as materialized (
                select m.floor, m.until, first, least((
                           select sequence from {events} where sequence > first
                           order by sequence limit 1
                       ) + $9, m.until) as last
                from moved m
                cross join lateral (
                    select greatest(m.floor, coalesce($8, m.floor)) as first
                ) f
            ),
            came_late as materialized (
                select e.sequence, ",
            size!(),
            " as bytes from {events} e
                where (select same from here)
                  and e.sequence = any(array(select sequence from late))
                  and e.not_before is null and e.locked_until is null and ",
            unsettled!(),
            "
                for update skip locked
            ),
            passed_over as materialized (
                select e.sequence, ",
            size!(),
            " as bytes from {events} e
                where (select same from here)
                  and e.sequence > (select first from stretch)
                  and e.sequence <= (select last from stretch)
                  and e.not_before is null and e.locked_until is null and ",
            unsettled!(),
            "
                  and e.sequence <> all(array(select sequence from came_late))
                order by e.sequence
                limit greatest($6 - (select count(*) from came_late), 0)
                for update skip locked
            ),
            picked as materialized (
                select sequence, late from (
                    select f.*, coalesce(sum(bytes) over (
                        order by late desc, sequence
                        rows between unbounded preceding and 1 preceding), 0) as bytes_before
                    from (
                        select c.*, true as late from came_late c
                        union all
                        select p.*, false from passed_over p
                    ) f
                ) f where bytes_before < $7
            ),
            e as (
                update {events} e
                set locked_by = $1,
                    locked_until = clock_timestamp() + $2 * interval '1 microsecond'
                where e.sequence = any(array(select sequence from picked))
                returning e.*
            ),
            -- Of late commits a walk goes on after this one, with the snapshots that it began with.
            walk as materialized (
                select case
                    when c.late_found > c.late_picked
                        then (select max(sequence) from picked where late)
                    when (select count(*) from late) >= $6 then (select max(sequence) from late)
                end as walked, c.*
                from (
                    select (select count(*) from came_late) as late_found,
                           (select count(*) from picked where late) as late_picked,
                           (select count(*) from passed_over) as found,
                           (select count(*) from picked where not late) as picked
                ) c
            ),
            swept as materialized (
                select t.floor, walked, cut, last < until and found > 0 as goes_on, case
                    when cut then coalesce((select max(sequence) from picked where not late), first)
                    when last < until then last
                    else t.floor
                end as after, case
                    when walked is not null then s.prev::text
                    else coalesce($13, s.next)
                end as seen, case when walked is not null then coalesce($13, s.next) end as walk
                from seen s, stretch t, (
                    select w.*, found >= $6 - late_found or found > picked as cut from walk w
                ) c
            ),
            marked as (
                update {shards} s
                set mark = (select floor from swept),
                    mark_context = concat_ws('|', (select seen from swept), $11::text, $12::text)
                where s.tenant_group = '' and s.shard = any(array(
                        select f.shard from {shards} f
                        where f.tenant_group = '' and f.mark <> (select floor from swept)
                          and (f.locked_by is null or f.locked_until < clock_timestamp())
                          and (select seen from swept) is not null and (select same from here)
                        order by f.shard
                        for update skip locked
                    ))
            )
            select ",
            columns!(),
            ", n.same, n.caught_up, n.floor, n.snapshot, n.after, n.walk, n.walked
            from (
                select h.same, not w.cut and not w.goes_on and w.walk is null as caught_up,
                       case when s.next is null then least(s.floor, w.floor) else w.floor end
                           as floor,
                       coalesce(w.seen, s.prev::text) as snapshot, w.after, w.walk,
                       case when w.walk is not null then w.walked end as walked
                from here h, seen s, swept w
            ) n
            left join e on true"
        );
        const DOING: &str = "claiming late events";

        let mut session = self.sessions.take(DOING).await?;
        let (sequence, sweep) = self.claims_from(&mut session, from).await?;
        let rows = sqlx::query(self.tables.sql(CLAIM_LATE))
            .bind(&lease.token)
            .bind(micros(relay.lease))
            .bind(sweep.floor)
            .bind(&sweep.snapshot)
            .bind(sequence)
            .bind(limit.rows as i64)
            .bind(bytes(limit.bytes))
            .bind(sweep.after)
            .bind(WINDOW)
            .bind(WIDEST as i64)
            .bind(sweep.file)
            .bind(&sweep.life)
            .bind(sweep.walk.as_ref().map(|(next, _)| next))
            .bind(sweep.walk.as_ref().map(|(_, after)| after))
            .fetch_all(&mut *session)
            .await
            .map_err(failed(DOING))?;
        session.done();
        let caught_up = said_caught_up(&rows, DOING)?;
        let sweep = Sweep {
            floor: said(&rows, 2, DOING)?,
            snapshot: said(&rows, 3, DOING)?,
            after: said(&rows, 4, DOING)?,
            walk: said::<Option<String>>(&rows, 5, DOING)?.zip(said(&rows, 6, DOING)?),
            ..sweep
        };
        let rows = in_order(&rows).map_err(failed(DOING))?;
        Ok(ClaimedRows {
            rows,
            position: Position { sequence, context: sweep.to_string() },
            caught_up,
        })
    }

    async fn claim_expired(
        &self,
        relay: &Relay,
        lease: &RowLease,
        until: i64,
    ) -> Result<ExpiredRow> {
        // Fresh rows are looked for between the marks and the cursor, a stretch at a time, those that had a
        // time of their own by it, a page at a time: a destination that was down leaves very many of them.
        const CLAIM_EXPIRED: &str = concat!(
            "with longest as materialized (
                select statement_timestamp() + 2 * greatest($2 * interval '1 microsecond', (
                    select max(lease_ms) * interval '1 millisecond' from {relays}
                )) as until
            ),
            stretch as materialized (
                select first, least($3, (
                    select sequence from {events} where sequence > first order by sequence limit 1
                ) + $5) as last
                from (
                    select greatest($4, (select min(mark) from {shards} where tenant_group = ''))
                        as first
                ) f
            ),
            fresh as materialized (
                select e.sequence from {events} e
                where e.sequence > (select first from stretch)
                  and e.sequence <= (select last from stretch)
                  and e.not_before is null and ",
            over!(),
            " and ",
            unsettled!(),
            "
                order by e.sequence
                limit 1
                for update skip locked
            ),
            walked as materialized (
                select e.not_before, e.sequence, (",
            over!(),
            " and ",
            unsettled!(),
            ") as wanted
                from {events} e
                where e.not_before <= statement_timestamp()
                  and (e.not_before, e.sequence) > ($6, $7)
                order by e.not_before, e.sequence
                limit ",
            walked!(),
            "
            ),
            due as materialized (
                select e.sequence from {events} e
                where e.sequence = any(array(select sequence from walked where wanted)) and ",
            over!(),
            " and ",
            unsettled!(),
            "
                limit 1
                for update skip locked
            ),
            picked as materialized (
                select sequence from due union all select sequence from fresh limit 1
            ),
            e as (
                update {events} e
                set locked_by = $1,
                    locked_until = clock_timestamp() + $2 * interval '1 microsecond',
                    attempts = e.attempts + 1
                where e.sequence = any(array(select sequence from picked))
                returning e.*
            )
            select ",
            columns!(),
            ", case when s.last < $3 then s.last else 0 end, w.not_before, w.sequence
            from stretch s
            left join (
                select not_before, sequence from walked
                order by not_before, sequence
                limit 1 offset ",
            walked!(),
            " - 1
            ) w on true
            left join e on true"
        );
        const DOING: &str = "claiming an expired event";

        let searched = *self.searched.lock().unwrap_or_else(PoisonError::into_inner);
        let due = searched.due.unwrap_or(DueKey { at: i64::MIN, sequence: 0 });
        let mut session = self.sessions.take(DOING).await?;
        let rows = sqlx::query(self.tables.sql(CLAIM_EXPIRED))
            .bind(&lease.token)
            .bind(micros(relay.lease))
            .bind(until)
            .bind(searched.fresh)
            .bind(WINDOW)
            .bind(Micros(due.at))
            .bind(due.sequence)
            .fetch_all(&mut *session)
            .await
            .map_err(failed(DOING))?;
        session.done();
        let at: Option<Micros> = said(&rows, 1, DOING)?;
        let sequence: Option<i64> = said(&rows, 2, DOING)?;
        let due = at.zip(sequence).map(|(at, sequence)| DueKey { at: at.0, sequence });
        let after = Searched { fresh: said(&rows, 0, DOING)?, due };
        let row = in_order(&rows).map_err(failed(DOING))?.pop();
        if row.is_none() {
            *self.searched.lock().unwrap_or_else(PoisonError::into_inner) = after;
        }
        let more = row.is_some() || after.fresh > 0 || after.due.is_some();
        Ok(ExpiredRow { row, more })
    }

    async fn claim_hot(
        &self,
        relay: &Relay,
        lease: &RowLease,
        sequences: &[i64],
    ) -> Result<Vec<Fetched>> {
        const CLAIM_HOT: &str = concat!(
            "with picked as materialized (
                select e.sequence from {events} e
                where e.sequence = any($3) and e.locked_until is null
                  and (e.not_before is null or e.not_before <= statement_timestamp())
                  and ",
            unsettled!(),
            "
                for update skip locked
            )
            update {events} e
            set locked_by = $1, locked_until = clock_timestamp() + $2 * interval '1 microsecond'
            where e.sequence = any(array(select sequence from picked))
            returning ",
            columns!()
        );

        let mut session = self.sessions.take("claiming hot events").await?;
        let rows = sqlx::query(self.tables.sql(CLAIM_HOT))
            .bind(&lease.token)
            .bind(micros(relay.lease))
            .bind(sequences)
            .fetch_all(&mut *session)
            .await
            .map_err(failed("claiming hot events"))?;
        session.done();
        in_order(&rows).map_err(failed("claiming hot events"))
    }

    async fn renew_rows(&self, relay: &Relay, rows: &[RowsInHand]) -> Result<()> {
        // Locked in the order of their numbers, as by claims.
        const RENEW_ROWS: &str = concat!(
            "with mine as materialized (
                select e.sequence from unnest($1, $2) as m (sequence, token)
                join {events} e on e.sequence = m.sequence and e.locked_by = m.token
                where ",
            unsettled!(),
            "
                order by e.sequence
                for update of e skip locked
            )
            update {events} e
            set locked_until = clock_timestamp() + $3 * interval '1 microsecond'
            where e.sequence = any(array(select sequence from mine))"
        );

        let (mut sequences, mut tokens) = (Vec::new(), Vec::new());
        for in_hand in rows {
            for sequence in &in_hand.sequences {
                sequences.push(*sequence);
                tokens.push(in_hand.lease.token.as_str());
            }
        }
        let mut session = self.sessions.take("renewing row leases").await?;
        sqlx::query(self.tables.sql(RENEW_ROWS))
            .bind(sequences)
            .bind(tokens)
            .bind(micros(relay.lease))
            .execute(&mut *session)
            .await
            .map_err(failed("renewing row leases"))?;
        session.done();
        Ok(())
    }

    async fn unclaim(&self, lease: &RowLease, sequences: &[i64]) -> Result<()> {
        const UNCLAIM: &str = concat!(
            "with mine as materialized (
                select e.sequence from {events} e
                where e.sequence = any($2) and e.locked_by = $1 and ",
            unsettled!(),
            "
                order by e.sequence
                for update skip locked
            )
            update {events} e set locked_by = null, locked_until = null
            where e.sequence = any(array(select sequence from mine))"
        );

        let mut session = self.sessions.take("giving events back").await?;
        sqlx::query(self.tables.sql(UNCLAIM))
            .bind(&lease.token)
            .bind(sequences)
            .execute(&mut *session)
            .await
            .map_err(failed("giving events back"))?;
        session.done();
        Ok(())
    }
}

impl PostgresStore {
    /// The cursor and the sweep of these claims. Without a context they start from the marks of all shards:
    /// behind the lowest one, with what any of them has not seen.
    async fn claims_from(
        &self,
        session: &mut Session<Postgres>,
        from: &Position,
    ) -> Result<(i64, Sweep)> {
        // A mark is of use under the same conditions as where shards are taken.
        const MARKS: &str = "
            select pg_relation_filenode('{events}'::regclass)::bigint, l.token::text, s.mark,
                   case when split_part(s.mark_context, '|', 2)
                           = pg_relation_filenode('{events}'::regclass)::text
                       and pg_snapshot_xmax(split_part(s.mark_context, '|', 1)::pg_snapshot)
                           <= pg_current_xact_id()
                   then split_part(s.mark_context, '|', 1) end
            from {life} l
            join {shards} s on s.tenant_group = ''";
        const DOING: &str = "starting to claim";

        if let Some(sweep) = Sweep::parse(&from.context) {
            return Ok((from.sequence, sweep));
        }
        self.begin_life(session).await?;
        let marks: Vec<(i64, String, i64, Option<String>)> = sqlx::query_as(self.tables.sql(MARKS))
            .fetch_all(&mut **session)
            .await
            .map_err(failed(DOING))?;
        let Some((file, life, ..)) = marks.first().cloned() else { return Err(moved(DOING)) };
        let seen = |(.., mark, snapshot): &(_, _, i64, Option<String>)| {
            Some((*mark, Snapshot::parse(snapshot.as_deref()?)?))
        };
        let together = |known: (i64, Snapshot), (mark, snapshot): (i64, Snapshot)| {
            (known.0.min(mark), known.1.meet(&snapshot))
        };
        let seen: Option<Vec<(i64, Snapshot)>> = marks.iter().map(seen).collect();
        let (floor, snapshot) = match seen.and_then(|seen| seen.into_iter().reduce(together)) {
            Some((floor, snapshot)) => (floor, Some(snapshot.to_string())),
            None => (0, None),
        };
        let sweep = Sweep { floor, snapshot, after: None, walk: None, file, life };
        Ok((from.sequence.max(floor), sweep))
    }
}

/// What the statement says beside its rows, in this column. A claim of nothing answers with one row without
/// an event.
fn said<'r, T>(rows: &'r [PgRow], column: usize, doing: &'static str) -> Result<T>
where
    T: Decode<'r, Postgres> + Type<Postgres>,
{
    let row = rows.first().ok_or(sqlx::Error::RowNotFound).map_err(failed(doing))?;
    row.try_get(COLUMNS + column).map_err(failed(doing))
}

/// Whether there is nothing more to claim, from a server that is still the same.
fn said_caught_up(rows: &[PgRow], doing: &'static str) -> Result<bool> {
    if said(rows, 0, doing)? { said(rows, 1, doing) } else { Err(moved(doing)) }
}

/// How far expired claims were looked for: the next look goes on there.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Searched {
    /// Among fresh rows.
    fresh: i64,
    /// Among those whose time had come.
    due: Option<DueKey>,
}

/// Where the claims of a relay stand, beside their cursor.
struct Sweep {
    floor: i64,
    /// What could be seen; without it, all rows are looked at again.
    snapshot: Option<String>,
    after: Option<i64>,
    /// A walk over late commits is under way: what could be seen when it began, and how far it has come.
    walk: Option<(String, i64)>,
    /// The table's file.
    file: i64,
    /// The server's life.
    life: String,
}

impl Sweep {
    fn parse(context: &str) -> Option<Self> {
        let mut parts = context.splitn(7, ';');
        let floor = parts.next()?.parse().ok()?;
        let snapshot = Some(parts.next()?.to_owned()).filter(|snapshot| !snapshot.is_empty());
        let after = parts.next()?.parse().ok();
        let walk = Some(parts.next()?.to_owned()).zip(parts.next()?.parse().ok());
        let file = parts.next()?.parse().ok()?;
        let life = parts.next()?.to_owned();
        Some(Self { floor, snapshot, after, walk, file, life })
    }
}

impl fmt::Display for Sweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { floor, snapshot, after, walk, file, life } = self;
        let after = after.map(|after| after.to_string()).unwrap_or_default();
        write!(f, "{floor};{};{after};", snapshot.as_deref().unwrap_or_default())?;
        match walk {
            Some((next, walked)) => write!(f, "{next};{walked};{file};{life}"),
            None => write!(f, ";;{file};{life}"),
        }
    }
}
