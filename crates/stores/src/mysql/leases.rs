//! Who may work on which shard, decided by the database's clock.
//!
//! `utc_timestamp(6)` is the time at which a statement began: a renewal that had to wait for a
//! lock gives a lease that ends earlier, never later.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use posthaste_core::{
    Result,
    store::{Census, Held, Leases, LiveRelay, Position, Relay, Report, ShardLease},
};
use sqlx::{AssertSqlSafe, MySqlConnection};

use super::{
    ClaimStyle, MySqlStore,
    life::{Stamped, moved},
    met_a_lock, micros, padded,
    tracker::Context,
};
use crate::failure::failed;

/// A relay whose heartbeat lies further ahead than a lease is long: the clock was set back, and it has not
/// reported since. Its lease would last for as long as the clock was set back.
macro_rules! of_the_future {
    () => {
        "select 1 from {relays} r
        where r.owner = locked_by
            and timestampadd(microsecond, r.lease_ms * -1000, r.heartbeat_at) > utc_timestamp(6)"
    };
}

#[async_trait]
impl Leases for MySqlStore {
    async fn heartbeat(&self, relay: &Relay, reserved: i64) -> Result<Census> {
        let mut session = self.session("a heartbeat").await?;
        self.beat(&mut session, relay, reserved).await?;
        let live = self.live(&mut session).await?;
        let owners = self.owners(&mut session).await?;
        session.done();
        Ok(Census { live, owners })
    }

    async fn acquire(&self, relay: &Relay, wanted: &[u16]) -> Result<Vec<ShardLease>> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let mut session = self.session("acquiring shards").await?;
        self.begin_life(&mut session).await?;
        let life = Arc::clone(&session.life);
        let mut transaction = session.begin("acquiring shards").await?;
        let leases = self.take(&mut transaction, &life, relay, wanted).await?;
        transaction.commit().await.map_err(failed("acquiring shards"))?;
        session.done();
        Ok(leases)
    }

    async fn renew(&self, relay: &Relay, held: &[Held], mark: &Position) -> Result<Vec<u16>> {
        const RENEW: &str = "
            update {shards}
            set locked_until = timestampadd(microsecond, ?, utc_timestamp(6)), mark = ?,
                mark_context = ?
            where tenant_group = '' and shard in ({list})";

        let mut session = self.session("renewing leases").await?;
        let life = Arc::clone(&session.life);
        let mut transaction = session.begin("renewing leases").await?;
        let mine = self.lock_mine(&mut transaction, &life, relay, held).await?;
        if !mine.is_empty() {
            let mut query = sqlx::query(self.listing(RENEW, mine.len()))
                .bind(micros(relay.lease))
                .bind(mark.sequence)
                .bind(&mark.context);
            for shard in padded(&mine) {
                query = query.bind(shard);
            }
            query.execute(&mut *transaction).await.map_err(failed("renewing leases"))?;
        }
        transaction.commit().await.map_err(failed("renewing leases"))?;
        session.done();
        Ok(mine)
    }

    async fn release(&self, relay: &Relay, held: &[Held], mark: &Position) -> Result<()> {
        const RELEASE: &str = "
            update {shards}
            set locked_by = null, locked_until = null, mark = ?, mark_context = ?
            where tenant_group = '' and shard in ({list})";

        let mut session = self.session("releasing leases").await?;
        let life = Arc::clone(&session.life);
        let mut transaction = session.begin("releasing leases").await?;
        let mine = self.lock_mine(&mut transaction, &life, relay, held).await?;
        if !mine.is_empty() {
            let mut query = sqlx::query(self.listing(RELEASE, mine.len()))
                .bind(mark.sequence)
                .bind(&mark.context);
            for shard in padded(&mine) {
                query = query.bind(shard);
            }
            query.execute(&mut *transaction).await.map_err(failed("releasing leases"))?;
        }
        transaction.commit().await.map_err(failed("releasing leases"))?;
        session.done();
        Ok(())
    }

    async fn report_state(&self, relay: &Relay, report: &Report) -> Result<()> {
        const REPORT: &str = "update {relays} set breakers = ? where owner = ?";

        let mut session = self.session("reporting").await?;
        sqlx::query(self.tables.sql(REPORT))
            .bind(report.column())
            .bind(relay.owner())
            .execute(&mut *session)
            .await
            .map_err(failed("reporting"))?;
        session.done();
        Ok(())
    }

    async fn retire(&self, relay: &Relay) -> Result<()> {
        const RETIRE: &str = "delete from {relays} where owner = ?";

        sqlx::query(self.tables.sql(RETIRE))
            .bind(relay.owner())
            .execute(&self.pool)
            .await
            .map_err(failed("retiring"))?;
        Ok(())
    }
}

/// One that was given up can still run after the next one: it must not take back what that one has reported.
const BEAT: &str = "
    insert into {relays} (owner, name, ordering, version, lease_ms, reserved, started_at,
        heartbeat_at)
    values (?, ?, ?, ?, ?, ?, utc_timestamp(6), utc_timestamp(6))
    on duplicate key update lease_ms = ?, reserved = greatest(reserved, ?),
        heartbeat_at = utc_timestamp(6)";

const LIVE: &str = "
    select owner, ordering,
        timestampadd(microsecond, lease_ms * 1000, heartbeat_at) > utc_timestamp(6)
            and timestampadd(microsecond, lease_ms * -1000, heartbeat_at) < utc_timestamp(6),
        timestampadd(microsecond, lease_ms * 10000 + 3600000000, heartbeat_at) < utc_timestamp(6)
    from {relays}
    order by owner";

const FORGET: &str = "
    delete from {relays}
    where owner = ?
        and timestampadd(microsecond, lease_ms * 10000 + 3600000000, heartbeat_at)
            < utc_timestamp(6)
        and not exists (select 1 from {shards} s where s.locked_by = {relays}.owner)";

/// A lease of an earlier life counts for nobody: its shard would wait until it expires.
const OWNERS: &str = concat!(
    "select case when locked_until > utc_timestamp(6) and epoch >= ",
    first_epoch!(),
    " and not exists (",
    of_the_future!(),
    ") then locked_by end
    from {shards}
    where tenant_group = ''
    order by shard"
);

impl MySqlStore {
    async fn beat(&self, session: &mut Stamped, relay: &Relay, reserved: i64) -> Result<()> {
        let lease = i64::try_from(relay.lease.as_millis()).unwrap_or(i64::MAX / 1_000_000);
        sqlx::query(self.tables.sql(BEAT))
            .bind(relay.owner())
            .bind(&relay.name)
            .bind(relay.ordering.as_str())
            .bind(env!("CARGO_PKG_VERSION"))
            .bind(lease)
            .bind(reserved)
            .bind(lease)
            .bind(reserved)
            .execute(&mut **session)
            .await
            .map_err(failed("a heartbeat"))?;
        Ok(())
    }

    /// Who is alive. Those who have long been dead are forgotten on the way.
    async fn live(&self, session: &mut Stamped) -> Result<Vec<LiveRelay>> {
        let relays: Vec<(String, String, bool, bool)> = sqlx::query_as(self.tables.sql(LIVE))
            .fetch_all(&mut **session)
            .await
            .map_err(failed("a heartbeat"))?;
        let mut live = Vec::with_capacity(relays.len());
        for (owner, ordering, alive, long_dead) in relays {
            if alive {
                live.push(LiveRelay { owner, ordering: ordering.parse()? });
            } else if long_dead {
                sqlx::query(self.tables.sql(FORGET))
                    .bind(owner)
                    .execute(&mut **session)
                    .await
                    .map_err(failed("forgetting a relay"))?;
            }
        }
        Ok(live)
    }

    async fn owners(&self, session: &mut Stamped) -> Result<Vec<Option<String>>> {
        let life = session.life.to_string();
        sqlx::query_scalar(self.tables.sql(OWNERS))
            .bind(life)
            .fetch_all(&mut **session)
            .await
            .map_err(failed("a heartbeat"))
    }
}

/// Shard, epoch, mark with its context, and who did not release it.
type FreeShard = (i32, i64, i64, String, Option<String>);

const FREE: &str = concat!(
    "select shard, epoch, mark, mark_context, locked_by
    from {shards} force index (primary)
    where tenant_group = '' and shard in ({list})
        and (locked_by is null or locked_by = ? or locked_until < utc_timestamp(6) or epoch < ",
    first_epoch!(),
    " or exists (",
    of_the_future!(),
    "))
    order by shard
    for update {passing}"
);

const TAKE: &str = "
    update {shards}
    set locked_by = ?, locked_until = timestampadd(microsecond, ?, utc_timestamp(6)),
        epoch = greatest(epoch + 1, ?)
    where tenant_group = '' and shard in ({list})";

/// Up to where a relay that died may have handed events out. One that was forgotten may have had
/// any event.
const RESERVED: &str = "
    select least(coalesce((select reserved from {relays} where owner = ?), 9223372036854775807),
        coalesce((select max(sequence) from {events}), 0))";

const ALIVE: &str = "
    select timestampadd(microsecond, lease_ms * 1000, heartbeat_at) > utc_timestamp(6)
    from {relays}
    where owner = ?";

impl MySqlStore {
    async fn take(
        &self,
        connection: &mut MySqlConnection,
        life: &str,
        relay: &Relay,
        wanted: &[u16],
    ) -> Result<Vec<ShardLease>> {
        let free = self.lock_free_shards(connection, life, relay, wanted).await?;
        if free.is_empty() {
            return Ok(Vec::new());
        }
        let shards: Vec<i32> = free.iter().map(|row| row.0).collect();
        let first: Option<i64> = sqlx::query_scalar(self.tables.sql(FIRST_EPOCH))
            .bind(life)
            .fetch_one(&mut *connection)
            .await
            .map_err(failed("acquiring shards"))?;
        let first = first.ok_or_else(|| moved("acquiring shards"))?;
        let mut query = sqlx::query(self.listing(TAKE, shards.len()))
            .bind(relay.owner())
            .bind(micros(relay.lease))
            .bind(first);
        for shard in padded(&shards) {
            query = query.bind(shard);
        }
        query.execute(&mut *connection).await.map_err(failed("acquiring shards"))?;
        let mut reserved = HashMap::new();
        let me = relay.owner();
        for (_, epoch, _, _, owner) in &free {
            let Some(owner) = owner.as_deref().filter(|owner| *owner != me) else { continue };
            if reserved.contains_key(owner) {
                continue;
            }
            // The server has ended a lease of its earlier life, not the relay that had it.
            let ended = *epoch < first && self.is_alive(connection, owner).await?;
            let up_to = if ended { None } else { Some(self.reserved(connection, owner).await?) };
            reserved.insert(owner.to_owned(), up_to);
        }
        let newest: i64 = sqlx::query_scalar(self.tables.sql(NEWEST))
            .fetch_one(&mut *connection)
            .await
            .map_err(failed("acquiring shards"))?;
        let lease = |(shard, epoch, mark, context, previous): FreeShard| ShardLease {
            held: Held { shard: shard as u16, epoch: first.max(epoch + 1) },
            mark: usable(mark, &context, life, newest),
            suspect_to: previous.and_then(|owner| reserved.get(&owner).copied().flatten()),
        };
        Ok(free.into_iter().map(lease).collect())
    }

    /// Locks those that are free and that nobody else is taking.
    async fn lock_free_shards(
        &self,
        connection: &mut MySqlConnection,
        life: &str,
        relay: &Relay,
        wanted: &[u16],
    ) -> Result<Vec<FreeShard>> {
        let style = self.claim_style().await?;
        let (passing, at_once) = match style {
            ClaimStyle::SkipLocked => ("skip locked", wanted.len()),
            ClaimStyle::Token => ("nowait", 1),
        };
        let mut free = Vec::new();
        for wanted in wanted.chunks(at_once) {
            let sql = self.listing(FREE, wanted.len()).0.replace("{passing}", passing);
            let mut query = sqlx::query_as(AssertSqlSafe(sql));
            for shard in padded(wanted) {
                query = query.bind(shard);
            }
            let query = query.bind(relay.owner()).bind(life);
            match query.fetch_all(&mut *connection).await {
                Ok(rows) => free.extend(rows),
                Err(error) if met_a_lock(&error) => {}
                Err(error) => return Err(failed("acquiring shards")(error)),
            }
        }
        Ok(free)
    }

    async fn is_alive(&self, connection: &mut MySqlConnection, owner: &str) -> Result<bool> {
        let alive: Option<bool> = sqlx::query_scalar(self.tables.sql(ALIVE))
            .bind(owner)
            .fetch_optional(connection)
            .await
            .map_err(failed("acquiring shards"))?;
        Ok(alive.unwrap_or(false))
    }

    async fn reserved(&self, connection: &mut MySqlConnection, owner: &str) -> Result<i64> {
        sqlx::query_scalar(self.tables.sql(RESERVED))
            .bind(owner)
            .fetch_one(connection)
            .await
            .map_err(failed("acquiring shards"))
    }
}

const MINE: &str = concat!(
    "select shard, epoch from {shards} force index (primary)
    where tenant_group = '' and locked_by = ? and shard in ({list}) and epoch >= ",
    first_epoch!(),
    " order by shard
    for update"
);

const FIRST_EPOCH: &str = concat!("select ", first_epoch!());

const NEWEST: &str = "select coalesce(max(sequence), 0) from {events}";

/// The mark, unless it is ahead of the data: then reading starts from the first event. Another life is no
/// such reason: a mark is committed after all that it speaks of, and a replica that takes over has
/// committed in the same order.
fn usable(mark: i64, context: &str, life: &str, newest: i64) -> Position {
    match Context::parse(context) {
        Some(context) if mark <= newest => {
            Position { sequence: mark, context: context.in_life(life).to_string() }
        }
        _ => Position::default(),
    }
}

impl MySqlStore {
    /// Locks those shards that are still held, in shard order, as every settle does.
    async fn lock_mine(
        &self,
        connection: &mut MySqlConnection,
        life: &str,
        relay: &Relay,
        held: &[Held],
    ) -> Result<Vec<u16>> {
        if held.is_empty() {
            return Ok(Vec::new());
        }
        let mut query = sqlx::query_as(self.listing(MINE, held.len())).bind(relay.owner());
        for held in padded(held) {
            query = query.bind(held.shard);
        }
        let query = query.bind(life);
        let owned: Vec<(i32, i64)> =
            query.fetch_all(connection).await.map_err(failed("locking leases"))?;
        let still = |(shard, epoch): (i32, i64)| {
            held.contains(&Held { shard: shard as u16, epoch }).then_some(shard as u16)
        };
        Ok(owned.into_iter().filter_map(still).collect())
    }
}
