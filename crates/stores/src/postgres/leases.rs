//! Who may work on which shard. Every time is the database's, at the moment of the statement.

use async_trait::async_trait;
use posthaste_core::{
    Result,
    store::{Census, Held, Leases, LiveRelay, Position, Relay, RelayOrdering, Report, ShardLease},
};
use sqlx::{PgConnection, Row, postgres::PgRow};

use super::{PostgresStore, context::Context, micros, shard_numbers};
use crate::failure::failed;

/// A relay whose heartbeat lies further ahead than a lease is long: the clock was set back, and it has not
/// reported since. Its lease would last for as long as the clock was set back.
macro_rules! of_the_future {
    () => {
        "select from {relays} r
        where r.owner = locked_by
          and r.heartbeat_at - r.lease_ms * interval '1 millisecond' > clock_timestamp()"
    };
}

#[async_trait]
impl Leases for PostgresStore {
    async fn heartbeat(&self, relay: &Relay, reserved: i64) -> Result<Census> {
        let mut session = self.sessions.take("sending a heartbeat").await?;
        self.report(&mut session, relay, reserved).await?;
        self.forget_dead(&mut session).await?;
        let census = Census {
            live: self.live(&mut session).await?,
            owners: self.owners(&mut session).await?,
        };
        session.done();
        Ok(census)
    }

    async fn acquire(&self, relay: &Relay, wanted: &[u16]) -> Result<Vec<ShardLease>> {
        self.take(relay, wanted).await
    }

    async fn renew(&self, relay: &Relay, held: &[Held], mark: &Position) -> Result<Vec<u16>> {
        // Locked in shard order before any of them is written: a settle locks in the same order.
        const RENEW: &str = concat!(
            "with locked as materialized (
                select shard, epoch from {shards}
                where tenant_group = '' and locked_by = $1 and shard = any($2) and ",
            alive!(),
            "
                order by shard
                for update
            ),
            mine as (
                select shard from locked
                join unnest($2, $3) as held (shard, epoch) using (shard, epoch)
            )
            update {shards} s
            set locked_until = clock_timestamp() + $4 * interval '1 microsecond',
                mark = $5, mark_context = $6
            from mine
            where s.tenant_group = '' and s.shard = mine.shard
            returning s.shard"
        );

        let (shards, epochs) = numbers(held);
        let mut session = self.sessions.take("renewing leases").await?;
        let renewed: Vec<i32> = sqlx::query_scalar(self.tables.sql(RENEW))
            .bind(relay.owner())
            .bind(shards)
            .bind(epochs)
            .bind(micros(relay.lease))
            .bind(mark.sequence)
            .bind(&mark.context)
            .fetch_all(&mut *session)
            .await
            .map_err(failed("renewing leases"))?;
        session.done();
        Ok(renewed.into_iter().map(|shard| shard as u16).collect())
    }

    async fn release(&self, relay: &Relay, held: &[Held], mark: &Position) -> Result<()> {
        const RELEASE: &str = concat!(
            "with locked as materialized (
                select shard, epoch from {shards}
                where tenant_group = '' and locked_by = $1 and shard = any($2) and ",
            alive!(),
            "
                order by shard
                for update
            ),
            mine as (
                select shard from locked
                join unnest($2, $3) as held (shard, epoch) using (shard, epoch)
            )
            update {shards} s
            set locked_by = null, locked_until = null, mark = $4, mark_context = $5
            from mine
            where s.tenant_group = '' and s.shard = mine.shard"
        );

        let (shards, epochs) = numbers(held);
        let mut session = self.sessions.take("releasing leases").await?;
        sqlx::query(self.tables.sql(RELEASE))
            .bind(relay.owner())
            .bind(shards)
            .bind(epochs)
            .bind(mark.sequence)
            .bind(&mark.context)
            .execute(&mut *session)
            .await
            .map_err(failed("releasing leases"))?;
        session.done();
        Ok(())
    }

    async fn report_state(&self, relay: &Relay, report: &Report) -> Result<()> {
        const REPORT: &str = "update {relays} set breakers = $2 where owner = $1";

        let mut session = self.sessions.take("reporting").await?;
        sqlx::query(self.tables.sql(REPORT))
            .bind(relay.owner())
            .bind(report.column())
            .execute(&mut *session)
            .await
            .map_err(failed("reporting"))?;
        session.done();
        Ok(())
    }

    async fn retire(&self, relay: &Relay) -> Result<()> {
        const RETIRE: &str = "delete from {relays} where owner = $1";

        let mut session = self.sessions.take("retiring").await?;
        sqlx::query(self.tables.sql(RETIRE))
            .bind(relay.owner())
            .execute(&mut *session)
            .await
            .map_err(failed("retiring"))?;
        session.done();
        Ok(())
    }
}

impl PostgresStore {
    async fn report(
        &self,
        connection: &mut PgConnection,
        relay: &Relay,
        reserved: i64,
    ) -> Result<()> {
        // One that was given up can still run after the next one: it must not take back what that one has
        // reported.
        const REPORT: &str = "
            insert into {relays} as r (owner, name, ordering, version, lease_ms, reserved)
            values ($1, left($2, 100), $3, $4, $5, $6)
            on conflict (owner) do update
            set heartbeat_at = clock_timestamp(), lease_ms = excluded.lease_ms,
                reserved = greatest(r.reserved, excluded.reserved)";

        sqlx::query(self.tables.sql(REPORT))
            .bind(relay.owner())
            .bind(&relay.name)
            .bind(relay.ordering.as_str())
            .bind(env!("CARGO_PKG_VERSION"))
            .bind(i64::try_from(relay.lease.as_millis()).unwrap_or(i64::MAX))
            .bind(reserved)
            .execute(connection)
            .await
            .map_err(failed("sending a heartbeat"))?;
        Ok(())
    }

    /// Forgets relays that are long dead. One that still stands in a lease is kept: whoever takes
    /// the shard over asks it how far it had read.
    async fn forget_dead(&self, connection: &mut PgConnection) -> Result<()> {
        const FORGET: &str = "
            delete from {relays} where owner in (
                select r.owner from {relays} r
                where r.heartbeat_at + r.lease_ms * interval '10 milliseconds'
                        + interval '1 hour' < clock_timestamp()
                  and not exists (select from {shards} s where s.locked_by = r.owner)
                for update skip locked
            )";

        sqlx::query(self.tables.sql(FORGET))
            .execute(connection)
            .await
            .map_err(failed("forgetting dead relays"))?;
        Ok(())
    }

    async fn live(&self, connection: &mut PgConnection) -> Result<Vec<LiveRelay>> {
        const LIVE: &str = "
            select owner, ordering from {relays}
            where heartbeat_at + lease_ms * interval '1 millisecond' > clock_timestamp()
              and heartbeat_at - lease_ms * interval '1 millisecond' < clock_timestamp()
            order by owner collate \"C\"";

        let rows: Vec<(String, String)> = sqlx::query_as(self.tables.sql(LIVE))
            .fetch_all(connection)
            .await
            .map_err(failed("reading the live relays"))?;
        rows.into_iter()
            .map(|(owner, ordering)| {
                Ok(LiveRelay { owner, ordering: ordering.parse::<RelayOrdering>()? })
            })
            .collect()
    }

    async fn owners(&self, connection: &mut PgConnection) -> Result<Vec<Option<String>>> {
        // A lease of an earlier life counts for nobody: its shard would wait until it expires.
        const OWNERS: &str = concat!(
            "select case when locked_until > clock_timestamp() and ",
            alive!(),
            " and not exists (",
            of_the_future!(),
            ") then locked_by end
            from {shards}
            where tenant_group = ''
            order by shard"
        );

        sqlx::query_scalar(self.tables.sql(OWNERS))
            .fetch_all(connection)
            .await
            .map_err(failed("reading the shards' owners"))
    }

    async fn take(&self, relay: &Relay, wanted: &[u16]) -> Result<Vec<ShardLease>> {
        // A mark without a context, with a snapshot from the future (the database was restored into
        // another server, whose transaction ids are lower), or of another file of the table (which was
        // truncated), tells nothing about what can still commit at or before it. Then reading starts
        // from the first event. Another life is no such reason: a mark is in the log after all that it
        // speaks of, and so are the transaction ids and numbers that were given out before it.
        const ACQUIRE: &str = concat!(
            "with free as materialized (
                -- The server has ended a lease of its earlier life, not the relay that had it.
                select shard, case when epoch >= (select first_epoch from {life}) or not exists (
                           select from {relays} r
                           where r.owner = locked_by and r.heartbeat_at
                               + r.lease_ms * interval '1 millisecond' > clock_timestamp()
                       ) then nullif(locked_by, $2) end as previous,
                       case when split_part(mark_context, '|', 2)
                               = pg_relation_filenode('{events}'::regclass)::text
                           then pg_snapshot_xmax(split_part(mark_context, '|', 1)::pg_snapshot)
                               <= pg_current_xact_id()
                           else false end as usable
                from {shards}
                where tenant_group = '' and shard = any($1)
                  and (locked_by is null or locked_by = $2 or locked_until < clock_timestamp()
                       or epoch < (select first_epoch from {life}) or exists (",
            of_the_future!(),
            "))
                  and exists (select from {life})
                order by shard
                for update skip locked
            )
            update {shards} s
            set locked_by = $2, locked_until = clock_timestamp() + $3 * interval '1 microsecond',
                epoch = greatest(s.epoch + 1, (select first_epoch from {life}))
            from free f
            where s.tenant_group = '' and s.shard = f.shard
            returning s.shard, s.epoch,
                case when f.usable then s.mark else 0 end,
                case when f.usable then s.mark_context else concat_ws('|', pg_current_snapshot(),
                    pg_relation_filenode('{events}'::regclass), '') end,
                -- What was written since it died, it cannot have had in its hands.
                case when f.previous is not null then least(
                    (select r.reserved from {relays} r where r.owner = f.previous),
                    (select coalesce(max(e.sequence), 0) from {events} e)
                ) end,
                (select token::text from {life})"
        );

        let mut session = self.sessions.take("acquiring leases").await?;
        self.begin_life(&mut session).await?;
        let mut leases = sqlx::query(self.tables.sql(ACQUIRE))
            .bind(shard_numbers(wanted))
            .bind(relay.owner())
            .bind(micros(relay.lease))
            .try_map(|row: PgRow| {
                let (sequence, context): (i64, String) = (row.try_get(2)?, row.try_get(3)?);
                let life = row.try_get(5)?;
                let context = Context::parse(&context).map(|known| Context { life, ..known });
                Ok(ShardLease {
                    held: Held { shard: row.try_get::<i32, _>(0)? as u16, epoch: row.try_get(1)? },
                    mark: context.map_or_else(Position::default, |context| Position {
                        sequence,
                        context: context.to_string(),
                    }),
                    suspect_to: row.try_get(4)?,
                })
            })
            .fetch_all(&mut *session)
            .await
            .map_err(failed("acquiring leases"))?;
        session.done();
        leases.sort_by_key(|lease| lease.held);
        Ok(leases)
    }
}

fn numbers(held: &[Held]) -> (Vec<i32>, Vec<i64>) {
    held.iter().map(|held| (i32::from(held.shard), held.epoch)).unzip()
}
