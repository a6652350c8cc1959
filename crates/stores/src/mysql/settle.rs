//! Writing outcomes back, fenced.
//!
//! The fence comes first in the transaction and holds until its end: the rows of the leases in
//! share mode, in shard order, so that a takeover waits for this settle or this settle for the
//! takeover; or the rows of the events themselves.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use async_trait::async_trait;
use posthaste_core::{
    Key, Result,
    limits::cut_error,
    store::{Fence, Held, RowLease, Settle, SettleReport, Settlement, Verdict},
};
use sqlx::{AssertSqlSafe, MySqlConnection, Row, mysql::MySqlRow};

use super::{
    ClaimStyle, LIST, MySqlStore, micros, padded,
    row::{for_ever, unsettled},
};
use crate::failure::failed;

/// Most events other than delivered ones in one statement.
const OUTCOMES: usize = 200;

#[async_trait]
impl Settle for MySqlStore {
    async fn settle(
        &self,
        fence: &Fence,
        batch: &[Settlement],
        keep_sent: bool,
    ) -> Result<SettleReport> {
        let mut session = self.session("settling").await?;
        let life = Arc::clone(&session.life);
        let mut transaction = session.begin("settling").await?;
        let (relay, allowed, report) = match fence {
            Fence::Shards { owner, held } => {
                let valid = self.lock_leases(&mut transaction, &life, owner, held).await?;
                let (allowed, report) = divide(batch, held, &valid);
                (owner.as_str(), allowed, report)
            }
            Fence::Rows(lease) => {
                let (allowed, report) =
                    self.lock_rows(&mut transaction, lease, batch, keep_sent).await?;
                (owner_of(&lease.token), allowed, report)
            }
        };
        self.write(&mut transaction, relay, &allowed, keep_sent).await?;
        transaction.commit().await.map_err(failed("settling"))?;
        session.done();
        Ok(report)
    }

    async fn locked(&self, sequences: &[i64]) -> Result<Vec<i64>> {
        let mut locked = Vec::new();
        if self.claim_style().await? == ClaimStyle::Token {
            return Ok(locked);
        }
        let mut session = self.session("asking for locked rows").await?;
        for sequences in sequences.chunks(LIST) {
            let present = self.sequences(&mut session, PRESENT, sequences).await?;
            let free = self.sequences(&mut session, FREE, sequences).await?;
            let free: HashSet<i64> = free.into_iter().collect();
            locked.extend(present.into_iter().filter(|sequence| !free.contains(sequence)));
        }
        session.done();
        Ok(locked)
    }
}

const FREE: &str = "
    select e.sequence from {events} e force index (primary) where e.sequence in ({list})
    for update skip locked";

const PRESENT: &str = "
    select e.sequence from {events} e force index (primary) where e.sequence in ({list})";

impl MySqlStore {
    async fn sequences(
        &self,
        connection: &mut MySqlConnection,
        template: &'static str,
        sequences: &[i64],
    ) -> Result<Vec<i64>> {
        let mut query = sqlx::query_scalar(self.listing(template, sequences.len()));
        for sequence in padded(sequences) {
            query = query.bind(sequence);
        }
        query.fetch_all(connection).await.map_err(failed("asking for locked rows"))
    }
}

const LEASES: &str = concat!(
    "select shard, epoch from {shards} force index (primary)
    where tenant_group = '' and locked_by = ? and shard in ({list}) and epoch >= ",
    first_epoch!(),
    " order by shard
    lock in share mode"
);

impl MySqlStore {
    /// Locks the leases that are still held, in share mode. Waits for a takeover that is under
    /// way, and then sees its outcome.
    async fn lock_leases(
        &self,
        connection: &mut MySqlConnection,
        life: &str,
        owner: &str,
        held: &[Held],
    ) -> Result<HashSet<u16>> {
        if held.is_empty() {
            return Ok(HashSet::new());
        }
        let mut query = sqlx::query_as(self.listing(LEASES, held.len())).bind(owner);
        for held in padded(held) {
            query = query.bind(held.shard);
        }
        let query = query.bind(life);
        let owned: Vec<(i32, i64)> =
            query.fetch_all(connection).await.map_err(failed("checking leases"))?;
        let still = |(shard, epoch): (i32, i64)| {
            held.contains(&Held { shard: shard as u16, epoch }).then_some(shard as u16)
        };
        Ok(owned.into_iter().filter_map(still).collect())
    }
}

fn divide<'b>(
    batch: &'b [Settlement],
    held: &[Held],
    valid: &HashSet<u16>,
) -> (Vec<&'b Settlement>, SettleReport) {
    let (allowed, refused): (Vec<_>, Vec<_>) =
        batch.iter().partition(|settlement| valid.contains(&settlement.shard));
    let mut stale_shards: Vec<u16> =
        held.iter().map(|held| held.shard).filter(|shard| !valid.contains(shard)).collect();
    stale_shards.sort_unstable();
    stale_shards.dedup();
    let refused = refused.into_iter().map(|settlement| settlement.sequence).collect();
    (allowed, SettleReport { stale_shards, refused })
}

const ROWS: &str = concat!(
    "select e.sequence, e.locked_by <=> ?, ",
    unsettled!(),
    ", e.locked_by is null, e.sent_at is not null, e.dead_at is not null, e.attempts, e.wait
    from {events} e force index (primary)
    where e.sequence in ({list})
    order by e.sequence
    for update"
);

/// An event as a settle under a row lease finds it.
struct Found {
    ours: bool,
    unsettled: bool,
    free: bool,
    sent: bool,
    dead: bool,
    attempts: i32,
    wait: Option<String>,
}

impl Found {
    fn of(row: &MySqlRow) -> sqlx::Result<(i64, Self)> {
        let found = Self {
            ours: row.try_get(1)?,
            unsettled: row.try_get(2)?,
            free: row.try_get(3)?,
            sent: row.try_get(4)?,
            dead: row.try_get(5)?,
            attempts: row.try_get(6)?,
            wait: row.try_get(7)?,
        };
        Ok((row.try_get(0)?, found))
    }

    /// Whether this settlement was written before: repeating it is no loss of the lease.
    fn has(&self, settlement: &Settlement) -> bool {
        let waits = |names: &[&str]| self.wait.as_deref().is_some_and(|w| names.contains(&w));
        match settlement.verdict {
            Verdict::Sent => self.sent,
            Verdict::Dead { .. } => self.dead,
            Verdict::Retry { .. } => {
                self.free
                    && waits(&["retry", "replay"])
                    && self.attempts == settlement.attempts as i32
            }
            Verdict::Held { .. } => self.free && waits(&["held"]),
            Verdict::Suspect { .. } => false,
            Verdict::Unclaimed => self.free && self.unsettled,
        }
    }
}

impl MySqlStore {
    /// Locks the rows of the batch, and gives those that carry the token.
    async fn lock_rows<'b>(
        &self,
        connection: &mut MySqlConnection,
        lease: &RowLease,
        batch: &'b [Settlement],
        keep_sent: bool,
    ) -> Result<(Vec<&'b Settlement>, SettleReport)> {
        let mut found = HashMap::with_capacity(batch.len());
        for chunk in batch.chunks(LIST) {
            let sequences: Vec<i64> = chunk.iter().map(|settlement| settlement.sequence).collect();
            let mut query = sqlx::query(self.listing(ROWS, sequences.len())).bind(&lease.token);
            for sequence in padded(&sequences) {
                query = query.bind(sequence);
            }
            let rows = query
                .try_map(|row: MySqlRow| Found::of(&row))
                .fetch_all(&mut *connection)
                .await
                .map_err(failed("checking row leases"))?;
            found.extend(rows);
        }
        let mut allowed = Vec::with_capacity(batch.len());
        let mut report = SettleReport::default();
        for settlement in batch {
            match found.get(&settlement.sequence) {
                Some(row) if row.ours && row.unsettled => allowed.push(settlement),
                Some(row) if row.has(settlement) => {}
                None if settlement.verdict == Verdict::Sent && !keep_sent => {}
                _ => report.refused.push(settlement.sequence),
            }
        }
        Ok((allowed, report))
    }
}

/// Whether `e` is the event that was read: nothing else has an id of these, and a replay counts anew.
macro_rules! same {
    () => {
        " (? or e.event_id in ({list})) and e.replay = ? and "
    };
}

const SENT: &str = concat!(
    "update {events} e force index (primary)
    set e.sent_at = utc_timestamp(6), e.not_before = null, e.wait = null, e.lane = null,
        e.locked_by = null, e.locked_until = null
    where e.sequence in ({list}) and ",
    same!(),
    unsettled!()
);

const SENT_AND_GONE: &str = concat!(
    "delete e, a from {sequences} v
    straight_join {events} e force index (primary) on e.sequence = v.sequence
    left join {attempts} a on a.sequence = e.sequence
    where ",
    same!(),
    unsettled!()
);

const UNCLAIM: &str = concat!(
    "update {events} e set e.locked_by = null, e.locked_until = null
    where e.sequence in ({list}) and ",
    unsettled!()
);

/// What is written for an event that was not delivered.
struct Setback<'b> {
    settlement: &'b Settlement,
    /// `None` leaves the number as it is.
    attempts: Option<u32>,
    /// `None` with a wait: for ever.
    after: Option<i64>,
    wait: Option<&'static str>,
    lane: Option<Key>,
    destination: &'b str,
    error: Option<&'b str>,
    dead: bool,
}

impl<'b> Setback<'b> {
    fn of(settlement: &'b Settlement) -> Option<Self> {
        let attempts = Some(settlement.attempts);
        Some(match &settlement.verdict {
            Verdict::Sent | Verdict::Unclaimed => return None,
            Verdict::Retry { after, error, destination, key, replay } => Self {
                settlement,
                attempts,
                after: Some(micros(*after)),
                wait: Some(if *replay { "replay" } else { "retry" }),
                lane: *key,
                destination,
                error: Some(cut_error(error)),
                dead: false,
            },
            Verdict::Dead { error, destination, parked } => Self {
                settlement,
                attempts,
                after: None,
                wait: parked.map(|_| "parked"),
                lane: *parked,
                destination,
                error: Some(cut_error(error)),
                dead: true,
            },
            Verdict::Held { destination, key } => Self {
                settlement,
                attempts: None,
                after: None,
                wait: Some("held"),
                lane: Some(*key),
                destination,
                error: None,
                dead: false,
            },
            Verdict::Suspect { destination, key, replay } => Self {
                settlement,
                attempts,
                after: Some(0),
                wait: Some(if *replay { "replay" } else { "suspect" }),
                lane: *key,
                destination,
                error: None,
                dead: false,
            },
        })
    }

    /// Whether it is listed among the attempts: a wait that burnt none is not.
    fn is_attempt(&self) -> bool {
        self.dead || self.error.is_some() && self.settlement.attempts > 0
    }
}

/// One row of the table `v` that the statements join with.
const SETBACK: &str = "select cast(? as signed) as sequence,
    cast(? as char character set ascii) as event, cast(? as signed) as replay,
    cast(? as unsigned) as shard,
    cast(? as signed) as attempts, cast(? as signed) as after_micros, cast(? as char) as wait,
    cast(? as signed) as lane, cast(? as char) as destination, cast(? as char) as error,
    cast(? as signed) as dead";

/// The shard goes where the hash would be when the writer left it out: modulo the number of shards
/// it gives itself. A suspect keeps its row lease: its dispatch comes next.
const SET_BACK: &str = concat!(
    "update ({setbacks}) v straight_join {events} e on e.sequence = v.sequence
    set e.attempts = coalesce(v.attempts, e.attempts),
        e.not_before = case when v.wait is null then null when v.after_micros is null then ",
    for_ever!(),
    " else timestampadd(microsecond, v.after_micros, utc_timestamp(6)) end,
        e.wait = v.wait, e.lane = v.lane, e.destination = v.destination,
        e.last_error = coalesce(v.error, e.last_error),
        e.dead_at = case when v.dead = 1 then utc_timestamp(6) end,
        e.key_hash = coalesce(e.key_hash, v.shard),
        e.locked_by = case when v.wait = 'suspect' then e.locked_by end,
        e.locked_until = case when v.wait = 'suspect' then e.locked_until end
    where (v.event is null or e.event_id = v.event and e.replay = v.replay) and ",
    unsettled!()
);

const LIST_ATTEMPTS: &str = concat!(
    "insert into {attempts} (sequence, replay, attempt, at, relay, destination, error)
    select e.sequence, e.replay, v.attempts, utc_timestamp(6), ?, v.destination, v.error
    from ({setbacks}) v straight_join {events} e on e.sequence = v.sequence
    where (v.event is null or e.event_id = v.event and e.replay = v.replay) and ",
    unsettled!(),
    " on duplicate key update id = id"
);

impl MySqlStore {
    async fn write(
        &self,
        connection: &mut MySqlConnection,
        relay: &str,
        batch: &[&Settlement],
        keep_sent: bool,
    ) -> Result<()> {
        let of = |verdict: &Verdict| -> Vec<&Settlement> {
            batch.iter().copied().filter(|settlement| settlement.verdict == *verdict).collect()
        };
        let delivered = if keep_sent { SENT } else { SENT_AND_GONE };
        self.write_sent(connection, delivered, of(&Verdict::Sent)).await?;
        for unclaimed in of(&Verdict::Unclaimed).chunks(LIST) {
            let mut query = sqlx::query(self.listing(UNCLAIM, unclaimed.len()));
            for settlement in padded(unclaimed) {
                query = query.bind(settlement.sequence);
            }
            query.execute(&mut *connection).await.map_err(failed("settling"))?;
        }
        let setbacks: Vec<Setback<'_>> =
            batch.iter().filter_map(|settlement| Setback::of(settlement)).collect();
        for setbacks in setbacks.chunks(OUTCOMES) {
            let (attempts, _): (Vec<_>, Vec<_>) =
                setbacks.iter().partition(|setback| setback.is_attempt());
            // Before the events change: a dead one is settled afterwards.
            self.write_setbacks(connection, LIST_ATTEMPTS, Some(relay), &attempts).await?;
            let all: Vec<_> = setbacks.iter().collect();
            self.write_setbacks(connection, SET_BACK, None, &all).await?;
        }
        Ok(())
    }

    async fn write_sent(
        &self,
        connection: &mut MySqlConnection,
        template: &'static str,
        mut sent: Vec<&Settlement>,
    ) -> Result<()> {
        let replay = |settlement: &&Settlement| settlement.identity.replay;
        if !sent.is_sorted_by_key(replay) {
            sent.sort_by_key(replay);
        }
        let alike = sent.chunk_by(|one, next| replay(one) == replay(next));
        for sent in alike.flat_map(|alike| alike.chunks(LIST)) {
            let mut query = sqlx::query(self.listing(template, sent.len()));
            for settlement in padded(sent) {
                query = query.bind(settlement.sequence);
            }
            query = query.bind(sent.iter().any(|settlement| settlement.identity.id.is_none()));
            for settlement in padded(sent) {
                query = query.bind(id(settlement));
            }
            query = query.bind(sent.first().map(replay));
            query.execute(&mut *connection).await.map_err(failed("settling"))?;
        }
        Ok(())
    }

    async fn write_setbacks(
        &self,
        connection: &mut MySqlConnection,
        template: &'static str,
        relay: Option<&str>,
        setbacks: &[&Setback<'_>],
    ) -> Result<()> {
        if setbacks.is_empty() {
            return Ok(());
        }
        let rows = vec![SETBACK; setbacks.len()].join(" union all ");
        let sql = self.tables.sql(template).0.replace("{setbacks}", &rows);
        // Not kept prepared: there are too many lengths.
        let mut query = sqlx::query(AssertSqlSafe(sql)).persistent(false);
        if let Some(relay) = relay {
            query = query.bind(relay);
        }
        for setback in setbacks {
            query = query
                .bind(setback.settlement.sequence)
                .bind(id(setback.settlement))
                .bind(setback.settlement.identity.replay)
                .bind(setback.settlement.shard)
                .bind(setback.attempts)
                .bind(setback.after)
                .bind(setback.wait)
                .bind(setback.lane.map(|key| key.0))
                .bind(setback.destination)
                .bind(setback.error)
                .bind(setback.dead);
        }
        query.execute(connection).await.map_err(failed("settling"))?;
        Ok(())
    }
}

/// The event's id as its column holds it.
fn id(settlement: &Settlement) -> Option<String> {
    settlement.identity.id.map(|id| id.to_string())
}

/// The relay's owner text out of a claim's token, which adds the number of the claim.
fn owner_of(token: &str) -> &str {
    token.rsplit_once('#').map_or(token, |(owner, _)| owner)
}
