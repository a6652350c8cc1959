//! Taking single rows, for unordered work.
//!
//! A claim looks behind its cursor and may pass over rows that another claimer has locked, or that
//! commit later. A sweep (`claim_late`) goes back for them. Its context is `floor;snapshot;after`: of
//! the rows that the snapshot could see, all up to the floor are settled or have a `not_before`,
//! by which they are found. What the snapshot could not see is found by its transaction id: the
//! snapshot names all that were given out by then (see `context`). Sweeps go in turns over what lies
//! between floor and cursor; the last one has come to `after`.

use async_trait::async_trait;
use posthaste_core::{
    Result,
    store::{Claim, ClaimedRows, Fetched, Limit, Position, Relay, RowLease},
};
use sqlx::{Row, postgres::PgRow};

use super::{
    PostgresStore,
    context::WIDEST,
    micros,
    read::{WINDOW, bytes, in_order},
    row::COLUMNS,
};
use crate::failure::failed;

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
        // Rows that fell due take at most half, so that neither kind starves. The first claim of
        // a relay starts from the marks: what lies before is the sweep's.
        const CLAIM: &str = concat!(
            "with due as materialized (
                select e.sequence, ",
            size!(),
            " as bytes from {events} e
                where e.not_before <= statement_timestamp() and e.locked_until is null
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
                where e.sequence > greatest($3, case when $5 then (
                        select min(mark) from {shards} where tenant_group = ''
                    ) end)
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
            e as (
                update {events} e
                set locked_by = $1,
                    locked_until = clock_timestamp() + $2 * interval '1 microsecond'
                where e.sequence = any(array(select sequence from picked))
                returning e.*
            )
            select ",
            columns!(),
            ", n.newest, n.last
            from (
                select case when (select count(*) from found) > (select count(*) from picked)
                           then (select max(sequence) from picked where fresh)
                           else (select sequence from {events} order by sequence desc limit 1)
                       end as newest,
                       (select max(sequence) from picked where fresh) as last
            ) n
            left join e on true"
        );

        let mut session = self.sessions.take("claiming events").await?;
        let rows = sqlx::query(self.tables.sql(CLAIM))
            .bind(&lease.token)
            .bind(micros(relay.lease))
            .bind(from.sequence)
            .bind(limit.rows as i64)
            .bind(from.context.is_empty())
            .bind(bytes(limit.bytes.div_ceil(2)))
            .fetch_all(&mut *session)
            .await
            .map_err(failed("claiming events"))?;
        session.done();
        let sequence = cursor(&rows, limit.rows).map_err(failed("claiming events"))?;
        let rows = in_order(&rows).map_err(failed("claiming events"))?;
        self.remember_claimed(rows.last().map(|row| row.sequence));
        Ok(ClaimedRows {
            rows,
            position: Position {
                sequence: sequence.max(from.sequence),
                context: from.context.clone(),
            },
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
            "with start as materialized (
                select coalesce($3, m.mark) as floor, coalesce($4, m.mark_context) as context,
                       pg_current_snapshot() as cur
                from (
                    select mark, mark_context from {shards}
                    where tenant_group = ''
                    order by mark
                    limit 1
                ) m
            ),
            begun as materialized (
                select s.*, case when ids > 2147483647 then 0 else ids end as begun
                from (
                    select s.*, nullif(split_part(context, '|', 1), '')::pg_snapshot as prev,
                           pg_snapshot_xmax(cur)::text::bigint as xmax,
                           (age('3'::xid)::bigint + 3 + 8589934592
                               - pg_snapshot_xmax(cur)::text::bigint % 4294967296)
                           % 4294967296 as ids
                    from start s
                ) s
            ),
            seen as materialized (
                select case when usable then floor else 0 end as floor,
                       case when usable then array(
                           select x from pg_snapshot_xip(prev) x
                           where pg_visible_in_snapshot(x, cur)
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
                select min(e.sequence) as first from seen s
                cross join unnest(s.ended) x
                cross join lateral (
                    select e.sequence from {events} e
                    where (e.xid, e.sequence) > (x, 0) and (e.xid, e.sequence) <= (x, s.floor)
                      and e.not_before is null and ",
            unsettled!(),
            "
                    order by e.xid, e.sequence
                    limit 1
                ) e
            ),
            moved as materialized (
                select least(l.first - 1, coalesce(
                           (
                               select e.sequence - 1 from {events} e
                               where e.sequence > s.floor and e.sequence <= s.floor + $9
                                 and e.sequence <= $5 and e.not_before is null and ",
            unsettled!(),
            "
                               order by e.sequence
                               limit 1
                           ),
                           greatest(s.floor, least(s.floor + $9, $5))
                       )) as floor,
                       l.first as late, greatest($5, s.floor) as until
                from seen s, late l
            ),
            stretch as materialized (
                select m.floor, m.until, first, least(first + $9, m.until) as last
                from moved m
                cross join lateral (
                    select greatest(m.floor, least(coalesce($8, m.floor), m.late - 1)) as first
                ) f
            ),
            found as materialized (
                select e.sequence, ",
            size!(),
            " as bytes from {events} e
                where e.sequence > (select first from stretch)
                  and e.sequence <= (select last from stretch)
                  and e.not_before is null and e.locked_until is null and ",
            unsettled!(),
            "
                order by e.sequence
                limit $6
                for update skip locked
            ),
            picked as materialized (
                select sequence from (
                    select f.*, coalesce(sum(bytes) over (
                        order by sequence rows between unbounded preceding and 1 preceding), 0)
                        as bytes_before
                    from found f
                ) f where bytes_before < $7
            ),
            e as (
                update {events} e
                set locked_by = $1,
                    locked_until = clock_timestamp() + $2 * interval '1 microsecond'
                where e.sequence = any(array(select sequence from picked))
                returning e.*
            ),
            swept as materialized (
                select floor, case
                    when (select count(*) from found) >= $6
                        or (select count(*) from found) > (select count(*) from picked)
                    then (select max(sequence) from picked)
                    when last < until then last
                    else floor
                end as after
                from stretch
            ),
            marked as (
                update {shards} s
                set mark = (select floor from swept), mark_context = (select next from seen)
                where s.tenant_group = '' and s.shard = any(array(
                        select f.shard from {shards} f
                        where f.tenant_group = '' and f.mark <> (select floor from swept)
                          and (f.locked_by is null or f.locked_until < clock_timestamp())
                          and (select next from seen) is not null
                        order by f.shard
                        for update skip locked
                    ))
            )
            select ",
            columns!(),
            ", n.context
            from (
                select case when s.next is not null then concat_ws(';', w.floor, s.next, w.after)
                    else concat_ws(';', least(s.floor, w.floor), s.prev::text, w.after)
                    end as context
                from seen s, swept w
            ) n
            left join e on true"
        );

        let Sweep { floor, snapshot, after } = Sweep::of(&from.context);
        let mut session = self.sessions.take("claiming late events").await?;
        let rows = sqlx::query(self.tables.sql(CLAIM_LATE))
            .bind(&lease.token)
            .bind(micros(relay.lease))
            .bind(floor)
            .bind(snapshot)
            .bind(from.sequence)
            .bind(limit.rows as i64)
            .bind(bytes(limit.bytes))
            .bind(after)
            .bind(WINDOW)
            .bind(WIDEST as i64)
            .fetch_all(&mut *session)
            .await
            .map_err(failed("claiming late events"))?;
        session.done();
        let context = match rows.first() {
            Some(row) => row.try_get(COLUMNS).map_err(failed("claiming late events"))?,
            None => from.context.clone(),
        };
        let rows = in_order(&rows).map_err(failed("claiming late events"))?;
        self.remember_claimed(rows.last().map(|row| row.sequence));
        Ok(ClaimedRows { rows, position: Position { sequence: from.sequence, context } })
    }

    async fn claim_expired(
        &self,
        relay: &Relay,
        lease: &RowLease,
        until: i64,
    ) -> Result<Option<Fetched>> {
        // Fresh rows are looked for between the marks and the cursor, those that had a time of their
        // own by it.
        const CLAIM_EXPIRED: &str = concat!(
            "with fresh as materialized (
                select e.sequence from {events} e
                where e.sequence > (select min(mark) from {shards} where tenant_group = '')
                  and e.sequence <= $3
                  and e.not_before is null and e.locked_until < statement_timestamp()
                  and ",
            unsettled!(),
            "
                order by e.sequence
                limit 1
                for update skip locked
            ),
            due as materialized (
                select e.sequence from {events} e
                where e.not_before <= statement_timestamp()
                  and e.locked_until < statement_timestamp()
                  and ",
            unsettled!(),
            "
                limit 1
                for update skip locked
            ),
            picked as materialized (
                select sequence from due union all select sequence from fresh limit 1
            )
            update {events} e
            set locked_by = $1, locked_until = clock_timestamp() + $2 * interval '1 microsecond',
                attempts = e.attempts + 1
            where e.sequence = any(array(select sequence from picked))
            returning ",
            columns!()
        );

        let mut session = self.sessions.take("claiming an expired event").await?;
        let rows = sqlx::query(self.tables.sql(CLAIM_EXPIRED))
            .bind(&lease.token)
            .bind(micros(relay.lease))
            .bind(until)
            .fetch_all(&mut *session)
            .await
            .map_err(failed("claiming an expired event"))?;
        session.done();
        let mut rows = in_order(&rows).map_err(failed("claiming an expired event"))?;
        self.remember_claimed(rows.last().map(|row| row.sequence));
        Ok(rows.pop())
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
        let rows = in_order(&rows).map_err(failed("claiming hot events"))?;
        self.remember_claimed(rows.last().map(|row| row.sequence));
        Ok(rows)
    }

    async fn renew_rows(&self, relay: &Relay, leases: &[RowLease]) -> Result<()> {
        // `locked_by` has no index (it would cost every claim and every success); the rows lie
        // between the marks and the last one that was claimed here, or have a time of their own.
        const RENEW_ROWS: &str = concat!(
            "with mine as materialized (
                select e.sequence from {events} e
                where e.sequence > (select min(mark) from {shards} where tenant_group = '')
                  and e.sequence <= $3 and e.not_before is null
                  and e.locked_by = any($1) and ",
            unsettled!(),
            "
                union all
                select e.sequence from {events} e
                where e.not_before <= statement_timestamp()
                  and e.locked_by = any($1) and ",
            unsettled!(),
            "
            )
            update {events} e
            set locked_until = clock_timestamp() + $2 * interval '1 microsecond'
            where e.sequence = any(array(select sequence from mine order by sequence))
              and e.locked_by = any($1) and ",
            unsettled!()
        );

        let tokens: Vec<&str> = leases.iter().map(|lease| lease.token.as_str()).collect();
        let mut session = self.sessions.take("renewing row leases").await?;
        sqlx::query(self.tables.sql(RENEW_ROWS))
            .bind(tokens)
            .bind(micros(relay.lease))
            .bind(self.last_claimed())
            .execute(&mut *session)
            .await
            .map_err(failed("renewing row leases"))?;
        session.done();
        Ok(())
    }

    async fn unclaim(&self, lease: &RowLease, sequences: &[i64]) -> Result<()> {
        const UNCLAIM: &str = concat!(
            "update {events} e set locked_by = null, locked_until = null
            where e.sequence = any($2) and e.locked_by = $1 and ",
            unsettled!()
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

/// Where claims stand after this one: at the last fresh row taken, or, when there were no more, at
/// the newest row that the statement saw.
fn cursor(rows: &[PgRow], limit: usize) -> sqlx::Result<i64> {
    let Some(row) = rows.first() else {
        return Ok(0);
    };
    // A claim of nothing answers with one row without an event.
    let column = if rows.len() < limit || limit == 0 { COLUMNS } else { COLUMNS + 1 };
    Ok(row.try_get::<Option<i64>, _>(column)?.unwrap_or(0))
}

/// A sweep's context; nothing of it before the first sweep.
#[derive(Default)]
struct Sweep<'a> {
    floor: Option<i64>,
    snapshot: Option<&'a str>,
    after: Option<i64>,
}

impl<'a> Sweep<'a> {
    fn of(context: &'a str) -> Self {
        let mut parts = context.split(';');
        let floor = parts.next().and_then(|floor| floor.parse().ok());
        match (floor, parts.next()) {
            (Some(floor), Some(snapshot)) => Self {
                floor: Some(floor),
                snapshot: Some(snapshot),
                after: parts.next().and_then(|after| after.parse().ok()),
            },
            _ => Self::default(),
        }
    }
}
