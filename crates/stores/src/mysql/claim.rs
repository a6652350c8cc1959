//! Taking single rows.
//!
//! Fresh rows are taken in the order of their numbers, with `skip locked`, or in the way of
//! [`ClaimStyle::Token`] where the server has no such thing. All others are found without a lock
//! and then locked by their primary key: a lock through a secondary index would go the other way
//! round than a settle's, and the two could deadlock.

use std::collections::HashSet;

use async_trait::async_trait;
use futures_util::TryStreamExt;
use posthaste_core::{
    Result,
    store::{
        Claim, ClaimedRows, ExpiredRow, Fetched, Limit, Position, Relay, RowLease, RowsInHand,
    },
};
use sqlx::{MySqlConnection, MySqlExecutor};

use super::{
    ClaimStyle, LIST, MySqlStore,
    life::Stamped,
    micros, padded,
    read::Query,
    row::{columns, fetched, fetched_all, fresh, unsettled},
    sweep::Sweep,
    tracker::{Context, join},
};
use crate::failure::failed;

/// How many expired leases are looked at to take one, and when others have locked all of these.
const EXPIRED_LIMITS: [u64; 2] = [16, LIST as u64];

#[async_trait]
impl Claim for MySqlStore {
    async fn claim(
        &self,
        relay: &Relay,
        lease: &RowLease,
        from: &Position,
        limit: Limit,
    ) -> Result<ClaimedRows> {
        let mut session = self.session("claiming events").await?;
        // At most half for those whose time has come: neither they nor the fresh ones starve.
        let half = Limit { rows: limit.rows.div_ceil(2), bytes: limit.bytes.div_ceil(2) };
        let most_due = self.fewer(half).rows.min(LIST);
        let due = self.due(&mut session, most_due).await?;
        let behind = self.lowest_mark(&mut *session).await?.sequence.max(from.sequence);
        let Ahead { fresh, edge, newest } = self.fresh_ahead(&mut session, behind).await?;
        let mut claimed = ClaimedRows {
            rows: Vec::new(),
            position: Position { sequence: edge, context: from.context.clone() },
            caught_up: edge >= newest,
        };
        if due.is_empty() && !fresh {
            session.done();
            return Ok(claimed);
        }
        let mut transaction = session.begin("claiming events").await?;
        let taken = self.take_listed(&mut transaction, relay, lease, &due, half.bytes).await?;
        let mut rows = taken.rows;
        claimed.caught_up &= due.len() < most_due && rows.len() == due.len();
        if fresh {
            let limit = Limit { rows: limit.rows.saturating_sub(rows.len()), ..half };
            let taken =
                self.take_between(&mut transaction, relay, lease, behind, edge, limit).await?;
            // When there were no more, claims go on behind what others hold or have sent; the
            // sweep looks after what was passed over.
            if taken.cut {
                let last = taken.rows.last().map_or(behind, |last| last.sequence);
                (claimed.position.sequence, claimed.caught_up) = (last, false);
            }
            rows.extend(taken.rows);
        }
        transaction.commit().await.map_err(failed("claiming events"))?;
        session.done();
        claimed.rows = in_order(rows);
        Ok(claimed)
    }

    /// Behind the floor of the sweep nothing fresh is left but what appears late; what has a
    /// `not_before` is found by its time, wherever it lies.
    async fn claim_late(
        &self,
        relay: &Relay,
        lease: &RowLease,
        from: &Position,
        limit: Limit,
    ) -> Result<ClaimedRows> {
        let mut session = self.session("sweeping").await?;
        let mut sweep = if let Some(sweep) = Sweep::parse(from) {
            sweep
        } else {
            Sweep::from_mark(self.all_marks(&mut session).await?)
        };
        let most = limit.rows.max(1);
        let late = self.look_behind(&mut session, &mut sweep, from.sequence, most).await?;
        let up_to = sweep.seen.sequence;
        let (floor, climbs) = self.raise_floor(&mut session, sweep.floor, up_to).await?;
        let moved = floor != sweep.floor;
        sweep.floor = floor;
        let (mut rows, mut cut) = (Vec::new(), late.cut);
        if !late.numbers.is_empty() {
            // They can lie far apart.
            let mut transaction = session.begin("sweeping").await?;
            let taken = self
                .take_listed(&mut transaction, relay, lease, &late.numbers, limit.bytes)
                .await?;
            transaction.commit().await.map_err(failed("sweeping"))?;
            if taken.cut {
                // The next sweep is given all of them again; what this one has taken is locked.
                (sweep.seen, cut) = (late.before, true);
            }
            rows = taken.rows;
        }
        let size = rows.iter().fold(0_usize, |size, row| size.saturating_add(row.bytes));
        let rest = Limit {
            rows: limit.rows.saturating_sub(rows.len()),
            bytes: limit.bytes.saturating_sub(size),
        };
        let first = sweep.after.max(floor);
        let last = self.edge(&mut session, first).await?.min(from.sequence).max(first);
        cut |= rest.rows == 0 || rest.bytes == 0;
        sweep.after = if cut { first } else { last };
        if !cut && self.fresh_between(&mut session, first, last).await? {
            let mut transaction = session.begin("sweeping").await?;
            let taken =
                self.take_between(&mut transaction, relay, lease, first, last, rest).await?;
            transaction.commit().await.map_err(failed("sweeping"))?;
            cut = taken.cut;
            if let Some(row) = taken.rows.last().filter(|_| cut) {
                sweep.after = row.sequence;
            }
            rows.extend(taken.rows);
        }
        if sweep.after >= from.sequence {
            sweep.after = floor;
        }
        if moved {
            self.keep_floor(&mut session, &sweep).await?;
        }
        session.done();
        let goes_on = cut || climbs || (!rows.is_empty() && last < from.sequence);
        Ok(ClaimedRows {
            rows: in_order(rows),
            position: Position { sequence: from.sequence, context: sweep.to_text() },
            caught_up: !goes_on,
        })
    }

    async fn claim_expired(
        &self,
        relay: &Relay,
        lease: &RowLease,
        _until: i64,
    ) -> Result<ExpiredRow> {
        let mut session = self.session("looking for expired leases").await?;
        let longest: String = sqlx::query_scalar(self.tables.sql(LONGEST))
            .bind(relay.lease.as_millis() as i64)
            .fetch_one(&mut *session)
            .await
            .map_err(failed("looking for expired leases"))?;
        let mut found = ExpiredRow::default();
        for limit in EXPIRED_LIMITS {
            let expired: Vec<i64> = sqlx::query_scalar(self.tables.sql(EXPIRED))
                .bind(&longest)
                .bind(limit)
                .fetch_all(&mut *session)
                .await
                .map_err(failed("looking for expired leases"))?;
            if expired.is_empty() {
                break;
            }
            let mut transaction = session.begin("claiming an expired event").await?;
            let row = self.take_expired(&mut transaction, relay, lease, &expired, &longest).await?;
            transaction.commit().await.map_err(failed("claiming an expired event"))?;
            // Those that others are just taking are theirs; behind them there may be more.
            let all = (expired.len() as u64) < limit;
            found = ExpiredRow { more: row.is_some() || !all, row };
            if found.row.is_some() || all {
                break;
            }
        }
        session.done();
        Ok(found)
    }

    async fn claim_hot(
        &self,
        relay: &Relay,
        lease: &RowLease,
        sequences: &[i64],
    ) -> Result<Vec<Fetched>> {
        if sequences.is_empty() {
            return Ok(Vec::new());
        }
        let mut session = self.session("claiming hot events").await?;
        let mut transaction = session.begin("claiming hot events").await?;
        let taken = self.take_listed(&mut transaction, relay, lease, sequences, usize::MAX).await?;
        transaction.commit().await.map_err(failed("claiming hot events"))?;
        session.done();
        Ok(in_order(taken.rows))
    }

    async fn renew_rows(&self, relay: &Relay, rows: &[RowsInHand]) -> Result<()> {
        // Of however many claims they are: a statement for each would not end before the deadline.
        let mut in_hand: Vec<(i64, &str)> = Vec::new();
        for RowsInHand { lease, sequences } in rows {
            in_hand.extend(sequences.iter().map(|sequence| (*sequence, lease.token.as_str())));
        }
        in_hand.sort_unstable();
        let lease = Some(micros(relay.lease));
        self.change_mine("renewing row leases", &in_hand, RENEW_ROWS, lease).await
    }

    async fn unclaim(&self, lease: &RowLease, sequences: &[i64]) -> Result<()> {
        let rows: Vec<(i64, &str)> =
            sequences.iter().map(|sequence| (*sequence, lease.token.as_str())).collect();
        self.change_mine("giving events back", &rows, UNCLAIM, None).await
    }
}

fn in_order(mut rows: Vec<Fetched>) -> Vec<Fetched> {
    rows.sort_unstable_by_key(|row| row.sequence);
    rows
}

/// Behind the lowest mark nothing fresh is left but what appears in its gaps.
const LOWEST_MARK: &str = "
    select mark, mark_context from {shards} where tenant_group = '' order by mark limit 1";

const MARKS: &str = "select mark, mark_context from {shards} where tenant_group = ''";

const NEWEST: &str = "select coalesce(max(sequence), 0) from {events}";

/// What lies behind the cursor of a claim.
struct Ahead {
    /// Whether something of it can be claimed up to the edge.
    fresh: bool,
    /// Up to here one claim looks.
    edge: i64,
    /// The newest number of all.
    newest: i64,
}

const FRESH_BETWEEN: &str = concat!(
    "select exists (select 1 from {events} e force index (primary)
        where e.sequence > ? and e.sequence <= ? and e.locked_until is null and ",
    fresh!(),
    ")"
);

const DUE: &str = concat!(
    "select e.sequence from {events} e
    where e.not_before <= utc_timestamp(6) and e.locked_until is null and ",
    unsettled!(),
    " order by e.not_before limit ?"
);

impl MySqlStore {
    pub(super) async fn lowest_mark<'c>(
        &self,
        connection: impl MySqlExecutor<'c>,
    ) -> Result<Position> {
        let mark: Option<(i64, String)> = sqlx::query_as(self.tables.sql(LOWEST_MARK))
            .fetch_optional(connection)
            .await
            .map_err(failed("reading the lowest mark"))?;
        let (sequence, context) = mark.unwrap_or_default();
        Ok(Position { sequence, context })
    }

    /// Where sweeps start: behind the lowest mark, with what any of the shards' owners has not seen.
    async fn all_marks(&self, session: &mut Stamped) -> Result<Position> {
        let marks: Vec<(i64, String)> = sqlx::query_as(self.tables.sql(MARKS))
            .fetch_all(&mut **session)
            .await
            .map_err(failed("reading the marks"))?;
        // A mark is of use in any life of the server.
        let usable = |(sequence, context): (i64, String)| match Context::parse(&context) {
            Some(context) => {
                Position { sequence, context: context.in_life(&session.life).to_string() }
            }
            None => Position::default(),
        };
        let marks: Vec<Position> = marks.into_iter().map(usable).collect();
        Ok(join(&marks))
    }

    async fn fresh_ahead(&self, connection: &mut MySqlConnection, behind: i64) -> Result<Ahead> {
        let newest: i64 = sqlx::query_scalar(self.tables.sql(NEWEST))
            .fetch_one(&mut *connection)
            .await
            .map_err(failed("looking for fresh events"))?;
        let edge = self.edge(connection, behind).await?.min(newest).max(behind);
        let fresh = edge > behind && self.fresh_between(connection, behind, edge).await?;
        Ok(Ahead { fresh, edge, newest })
    }

    async fn fresh_between(
        &self,
        connection: &mut MySqlConnection,
        floor: i64,
        up_to: i64,
    ) -> Result<bool> {
        sqlx::query_scalar(self.tables.sql(FRESH_BETWEEN))
            .bind(floor)
            .bind(up_to)
            .fetch_one(connection)
            .await
            .map_err(failed("looking for fresh events"))
    }

    async fn due(&self, connection: &mut MySqlConnection, limit: usize) -> Result<Vec<i64>> {
        sqlx::query_scalar(self.tables.sql(DUE))
            .bind(limit as u64)
            .fetch_all(connection)
            .await
            .map_err(failed("looking for due events"))
    }
}

const LOCK_LISTED: &str = concat!(
    "select ",
    columns!(),
    " from {events} e force index (primary)
    where e.sequence in ({list}) and e.locked_until is null
        and (e.not_before is null or e.not_before <= utc_timestamp(6)) and ",
    unsettled!(),
    " for update {skip_locked}"
);

const LOCK_BETWEEN: &str = concat!(
    "select ",
    columns!(),
    " from {events} e force index (primary)
    where e.sequence > ? and e.sequence <= ? and e.locked_until is null and ",
    fresh!(),
    " order by e.sequence limit ? for update skip locked"
);

const TAKE: &str = "
    update {events}
    set locked_by = ?, locked_until = timestampadd(microsecond, ?, utc_timestamp(6))
    where sequence in ({list})";

const TAKE_BETWEEN: &str = concat!(
    "update {events} e force index (primary)
    set e.locked_by = ?, e.locked_until = timestampadd(microsecond, ?, utc_timestamp(6))
    where e.sequence > ? and e.sequence <= ? and e.locked_until is null and ",
    fresh!(),
    " order by e.sequence limit ?"
);

const TAKEN_NUMBERS: &str =
    concat!("select e.sequence from {events} e where e.locked_by = ? and ", unsettled!());

const TAKEN: &str = concat!(
    "select ",
    columns!(),
    " from {events} e where e.sequence in ({list}) order by e.sequence"
);

/// Rows that were taken.
struct Taken {
    rows: Vec<Fetched>,
    /// There may be more.
    cut: bool,
}

impl MySqlStore {
    /// Keeps rows until there are enough bytes. The rest of the answer is read and dropped: a transaction that
    /// is given up with its connection would take nothing. Returns the numbers of what was dropped.
    async fn within(
        &self,
        connection: &mut MySqlConnection,
        query: Query<'_>,
        bytes: usize,
    ) -> Result<(Vec<Fetched>, Vec<i64>)> {
        let count = self.shard_count().await?;
        let (mut kept, mut dropped, mut size) = (Vec::new(), Vec::new(), 0_usize);
        let mut rows = query.fetch(connection);
        while let Some(row) = rows.try_next().await.map_err(failed("claiming events"))? {
            let row = fetched(&row, count).map_err(failed("claiming events"))?;
            if size < bytes {
                size = size.saturating_add(row.bytes);
                kept.push(row);
            } else {
                dropped.push(row.sequence);
            }
        }
        self.learn(kept.len(), size);
        Ok((kept, dropped))
    }

    /// Takes those of these rows that are claimable.
    async fn take_listed(
        &self,
        connection: &mut MySqlConnection,
        relay: &Relay,
        lease: &RowLease,
        sequences: &[i64],
        bytes: usize,
    ) -> Result<Taken> {
        let (mut taken, mut size) = (Taken { rows: Vec::new(), cut: false }, 0_usize);
        for sequences in sequences.chunks(LIST) {
            let mut query = sqlx::query(self.locking(LOCK_LISTED, sequences.len()).await?);
            for sequence in padded(sequences) {
                query = query.bind(sequence);
            }
            let left = bytes.saturating_sub(size);
            let (rows, dropped) = self.within(connection, query, left).await?;
            self.mark_taken(connection, relay, lease, &rows).await?;
            size = rows.iter().fold(size, |size, row| size.saturating_add(row.bytes));
            taken.cut |= !dropped.is_empty();
            taken.rows.extend(rows);
        }
        Ok(taken)
    }

    /// Takes fresh rows between two numbers, in their order.
    async fn take_between(
        &self,
        connection: &mut MySqlConnection,
        relay: &Relay,
        lease: &RowLease,
        behind: i64,
        up_to: i64,
        limit: Limit,
    ) -> Result<Taken> {
        if limit.rows == 0 || behind >= up_to {
            return Ok(Taken { rows: Vec::new(), cut: true });
        }
        let rows = self.fewer(limit).rows;
        if self.claim_style().await? == ClaimStyle::SkipLocked {
            let query = sqlx::query(self.tables.sql(LOCK_BETWEEN));
            let query = query.bind(behind).bind(up_to).bind(rows as u64);
            let (taken, dropped) = self.within(connection, query, limit.bytes).await?;
            self.mark_taken(connection, relay, lease, &taken).await?;
            let cut = taken.len() + dropped.len() >= rows || !dropped.is_empty();
            return Ok(Taken { rows: taken, cut });
        }
        // What carries the token already, from this transaction or an earlier one, is not new.
        let before: Vec<i64> = sqlx::query_scalar(self.tables.sql(TAKEN_NUMBERS))
            .bind(&lease.token)
            .fetch_all(&mut *connection)
            .await
            .map_err(failed("claiming events"))?;
        let before: HashSet<i64> = before.into_iter().collect();
        sqlx::query(self.tables.sql(TAKE_BETWEEN))
            .bind(&lease.token)
            .bind(micros(relay.lease))
            .bind(behind)
            .bind(up_to)
            .bind(rows as u64)
            .execute(&mut *connection)
            .await
            .map_err(failed("claiming events"))?;
        let numbers: Vec<i64> = sqlx::query_scalar(self.tables.sql(TAKEN_NUMBERS))
            .bind(&lease.token)
            .fetch_all(&mut *connection)
            .await
            .map_err(failed("claiming events"))?;
        let mut new: Vec<i64> = numbers.into_iter().filter(|n| !before.contains(n)).collect();
        new.sort_unstable();
        let (mut taken, mut size, mut surplus) = (Vec::new(), 0_usize, Vec::new());
        for numbers in new.chunks(LIST) {
            let mut query = sqlx::query(self.listing(TAKEN, numbers.len()));
            for number in padded(numbers) {
                query = query.bind(number);
            }
            let left = limit.bytes.saturating_sub(size);
            let (kept, dropped) = self.within(connection, query, left).await?;
            size = kept.iter().fold(size, |size, row| size.saturating_add(row.bytes));
            taken.extend(kept);
            surplus.extend(dropped);
        }
        for numbers in surplus.chunks(LIST) {
            let mut query = sqlx::query(self.listing(UNCLAIM, numbers.len()));
            for number in padded(numbers) {
                query = query.bind(number);
            }
            query.execute(&mut *connection).await.map_err(failed("claiming events"))?;
        }
        Ok(Taken { rows: taken, cut: new.len() >= rows || !surplus.is_empty() })
    }

    async fn mark_taken(
        &self,
        connection: &mut MySqlConnection,
        relay: &Relay,
        lease: &RowLease,
        rows: &[Fetched],
    ) -> Result<()> {
        for rows in rows.chunks(LIST) {
            let mut query = sqlx::query(self.listing(TAKE, rows.len()))
                .bind(&lease.token)
                .bind(micros(relay.lease));
            let sequences: Vec<i64> = rows.iter().map(|row| row.sequence).collect();
            for sequence in padded(&sequences) {
                query = query.bind(sequence);
            }
            query.execute(&mut *connection).await.map_err(failed("claiming events"))?;
        }
        Ok(())
    }
}

/// Further ahead than any lease is long, twice.
const LONGEST: &str = "
    select cast(timestampadd(microsecond,
        2000 * greatest(?, coalesce((select max(lease_ms) from {relays}), 0)), utc_timestamp(6)) as char)";

/// Whether the row lease of `e` is over, or lies further ahead than any is long: the clock was set back, and
/// its relay is gone, or renews it soon.
macro_rules! over {
    () => {
        "(e.locked_until < utc_timestamp(6) or e.locked_until > ?)"
    };
}

/// Through the index of what is locked, which is little.
const EXPIRED: &str = concat!(
    "select e.sequence from {events} e force index ({bare}_locked_idx)
    where e.locked_by is not null and ",
    over!(),
    " and ",
    unsettled!(),
    " order by e.locked_until limit ?"
);

const LOCK_EXPIRED: &str = concat!(
    "select e.sequence from {events} e force index (primary)
    where e.sequence in ({list}) and ",
    over!(),
    " and ",
    unsettled!(),
    " order by e.sequence limit 1 for update {skip_locked}"
);

const TAKE_EXPIRED: &str = "
    update {events}
    set attempts = attempts + 1, locked_by = ?,
        locked_until = timestampadd(microsecond, ?, utc_timestamp(6))
    where sequence = ?";

const ONE: &str = concat!("select ", columns!(), " from {events} e where e.sequence = ?");

const LOCK_MINE: &str = concat!(
    "select e.sequence from {events} e force index (primary)
    where e.sequence in ({list}) and (e.sequence, e.locked_by) in ({pairs}) and ",
    unsettled!(),
    " order by e.sequence for update {skip_locked}"
);

const RENEW_ROWS: &str = "
    update {events} e force index (primary)
    set e.locked_until = timestampadd(microsecond, ?, utc_timestamp(6))
    where e.sequence in ({list})";

const UNCLAIM: &str = "
    update {events} e force index (primary)
    set e.locked_by = null, e.locked_until = null
    where e.sequence in ({list})";

impl MySqlStore {
    /// Changes rows that claims still hold, but for those that somebody else has locked at the moment.
    async fn change_mine(
        &self,
        doing: &'static str,
        rows: &[(i64, &str)],
        change: &'static str,
        lease: Option<i64>,
    ) -> Result<()> {
        let mut session = self.session(doing).await?;
        for rows in rows.chunks(LIST) {
            let mut transaction = session.begin(doing).await?;
            let mut query = sqlx::query_scalar(self.locking(LOCK_MINE, rows.len()).await?);
            for (sequence, _) in padded(rows) {
                query = query.bind(sequence);
            }
            for (sequence, token) in padded(rows) {
                query = query.bind(sequence).bind(token);
            }
            let mine: Vec<i64> = query.fetch_all(&mut *transaction).await.map_err(failed(doing))?;
            if !mine.is_empty() {
                let mut query = sqlx::query(self.listing(change, mine.len()));
                if let Some(lease) = lease {
                    query = query.bind(lease);
                }
                for sequence in padded(&mine) {
                    query = query.bind(sequence);
                }
                query.execute(&mut *transaction).await.map_err(failed(doing))?;
            }
            transaction.commit().await.map_err(failed(doing))?;
        }
        session.done();
        Ok(())
    }

    async fn take_expired(
        &self,
        connection: &mut MySqlConnection,
        relay: &Relay,
        lease: &RowLease,
        expired: &[i64],
        longest: &str,
    ) -> Result<Option<Fetched>> {
        let mut query = sqlx::query_scalar(self.locking(LOCK_EXPIRED, expired.len()).await?);
        for sequence in padded(expired) {
            query = query.bind(sequence);
        }
        let query = query.bind(longest);
        let locked: Option<i64> = query
            .fetch_optional(&mut *connection)
            .await
            .map_err(failed("claiming an expired event"))?;
        let Some(sequence) = locked else {
            return Ok(None);
        };
        sqlx::query(self.tables.sql(TAKE_EXPIRED))
            .bind(&lease.token)
            .bind(micros(relay.lease))
            .bind(sequence)
            .execute(&mut *connection)
            .await
            .map_err(failed("claiming an expired event"))?;
        let count = self.shard_count().await?;
        let rows = sqlx::query(self.tables.sql(ONE))
            .bind(sequence)
            .fetch_all(connection)
            .await
            .and_then(|rows| fetched_all(&rows, count))
            .map_err(failed("claiming an expired event"))?;
        Ok(rows.into_iter().next())
    }
}
