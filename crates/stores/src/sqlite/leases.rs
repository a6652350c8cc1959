//! Who may work on the shard. Every time is the database's, at the moment of the statement.

use async_trait::async_trait;
use posthaste_core::{
    Result,
    store::{Census, Held, Leases, LiveRelay, Position, Relay, RelayOrdering, Report, ShardLease},
};
use serde_json::json;
use sqlx::{Row, SqliteConnection, sqlite::SqliteRow};

use super::{SqliteStore, list, micros, row::now};
use crate::failure::failed;

/// A relay whose heartbeat lies further ahead than a lease is long: the clock was set back, and it has not
/// reported since. Its lease would last for as long as the clock was set back.
macro_rules! of_the_future {
    () => {
        concat!(
            "select 1 from {relays} r
            where r.owner = locked_by and r.heartbeat_at - r.lease_ms * 1000 > ",
            now!()
        )
    };
}

#[async_trait]
impl Leases for SqliteStore {
    async fn heartbeat(&self, relay: &Relay, reserved: i64) -> Result<Census> {
        let mut transaction = self.begin("sending a heartbeat").await?;
        self.report(&mut transaction, relay, reserved).await?;
        self.forget_dead(&mut transaction).await?;
        let census = Census {
            live: self.live(&mut transaction).await?,
            owners: self.owners(&mut transaction).await?,
        };
        transaction.commit().await.map_err(failed("sending a heartbeat"))?;
        Ok(census)
    }

    async fn acquire(&self, relay: &Relay, wanted: &[u16]) -> Result<Vec<ShardLease>> {
        let mut transaction = self.begin("acquiring leases").await?;
        let leases = self.take(&mut transaction, relay, wanted).await?;
        transaction.commit().await.map_err(failed("acquiring leases"))?;
        Ok(leases)
    }

    async fn renew(&self, relay: &Relay, held: &[Held], mark: &Position) -> Result<Vec<u16>> {
        const RENEW: &str = concat!(
            "update {shards}
            set locked_until = ",
            now!(),
            " + ?3, mark = ?4, mark_context = ?5
            where tenant_group = '' and locked_by = ?1
              and (shard, epoch) in (select value ->> 0, value ->> 1 from json_each(?2))
            returning shard"
        );

        sqlx::query_scalar(self.tables.sql(RENEW))
            .bind(relay.owner())
            .bind(pairs(held))
            .bind(micros(relay.lease))
            .bind(mark.sequence)
            .bind(&mark.context)
            .fetch_all(&self.writer)
            .await
            .map_err(failed("renewing leases"))
    }

    async fn release(&self, relay: &Relay, held: &[Held], mark: &Position) -> Result<()> {
        const RELEASE: &str = "
            update {shards}
            set locked_by = null, locked_until = null, mark = ?3, mark_context = ?4
            where tenant_group = '' and locked_by = ?1
              and (shard, epoch) in (select value ->> 0, value ->> 1 from json_each(?2))";

        sqlx::query(self.tables.sql(RELEASE))
            .bind(relay.owner())
            .bind(pairs(held))
            .bind(mark.sequence)
            .bind(&mark.context)
            .execute(&self.writer)
            .await
            .map_err(failed("releasing leases"))?;
        Ok(())
    }

    async fn report_state(&self, relay: &Relay, report: &Report) -> Result<()> {
        const REPORT: &str = "update {relays} set breakers = ?2 where owner = ?1";

        sqlx::query(self.tables.sql(REPORT))
            .bind(relay.owner())
            .bind(report.column())
            .execute(&self.writer)
            .await
            .map_err(failed("reporting"))?;
        Ok(())
    }

    async fn retire(&self, relay: &Relay) -> Result<()> {
        const RETIRE: &str = "delete from {relays} where owner = ?1";

        sqlx::query(self.tables.sql(RETIRE))
            .bind(relay.owner())
            .execute(&self.writer)
            .await
            .map_err(failed("retiring"))?;
        Ok(())
    }
}

impl SqliteStore {
    async fn report(
        &self,
        connection: &mut SqliteConnection,
        relay: &Relay,
        reserved: i64,
    ) -> Result<()> {
        // One that was given up can still run after the next one: it must not take back what that one has
        // reported.
        const REPORT: &str = concat!(
            "insert into {relays} as r (owner, name, ordering, version, lease_ms, reserved, started_at,
                heartbeat_at)
            select ?1, ?2, ?3, ?4, ?5, ?6, now, now from (select ",
            now!(),
            " as now)
            where true
            on conflict (owner) do update
            set heartbeat_at = excluded.heartbeat_at, lease_ms = excluded.lease_ms,
                reserved = max(r.reserved, excluded.reserved)"
        );

        sqlx::query(self.tables.sql(REPORT))
            .bind(relay.owner())
            .bind(&relay.name)
            .bind(relay.ordering.as_str())
            .bind(env!("CARGO_PKG_VERSION"))
            .bind(micros(relay.lease) / 1000)
            .bind(reserved)
            .execute(connection)
            .await
            .map_err(failed("sending a heartbeat"))?;
        Ok(())
    }

    /// Forgets relays that are long dead. One that still stands in a lease is kept: whoever takes
    /// the shard over asks it how far it had read.
    async fn forget_dead(&self, connection: &mut SqliteConnection) -> Result<()> {
        const FORGET: &str = concat!(
            "delete from {relays}
            where heartbeat_at + lease_ms * 10000 + 3600000000 < ",
            now!(),
            "
              and not exists (select 1 from {shards} where locked_by = owner)"
        );

        sqlx::query(self.tables.sql(FORGET))
            .execute(connection)
            .await
            .map_err(failed("forgetting dead relays"))?;
        Ok(())
    }

    async fn live(&self, connection: &mut SqliteConnection) -> Result<Vec<LiveRelay>> {
        const LIVE: &str = concat!(
            "select owner, ordering from {relays}
            where heartbeat_at + lease_ms * 1000 > ",
            now!(),
            " and heartbeat_at - lease_ms * 1000 < ",
            now!(),
            "
            order by owner"
        );

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

    async fn owners(&self, connection: &mut SqliteConnection) -> Result<Vec<Option<String>>> {
        const OWNERS: &str = concat!(
            "select case when locked_until > ",
            now!(),
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

    async fn take(
        &self,
        connection: &mut SqliteConnection,
        relay: &Relay,
        wanted: &[u16],
    ) -> Result<Vec<ShardLease>> {
        // `returning` shows a row as it has become: who held it is asked before.
        const FREE: &str = concat!(
            "select shard, epoch + 1, mark, mark_context,
                   case when locked_by <> ?2 then min(
                       coalesce((select reserved from {relays} where owner = locked_by),
                           9223372036854775807),
                       coalesce((select max(sequence) from {events}), 0)
                   ) end
            from {shards}
            where tenant_group = '' and shard in (select value from json_each(?1))
              and (locked_by is null or locked_by = ?2 or locked_until < ",
            now!(),
            " or exists (",
            of_the_future!(),
            "))
            order by shard"
        );
        const ACQUIRE: &str = concat!(
            "update {shards}
            set locked_by = ?1, locked_until = ",
            now!(),
            " + ?3, epoch = epoch + 1
            where tenant_group = '' and shard in (select value from json_each(?2))"
        );

        let leases = sqlx::query(self.tables.sql(FREE))
            .bind(list(wanted.iter().copied()))
            .bind(relay.owner())
            .try_map(|row: SqliteRow| {
                Ok(ShardLease {
                    held: Held { shard: row.try_get(0)?, epoch: row.try_get(1)? },
                    mark: Position { sequence: row.try_get(2)?, context: row.try_get(3)? },
                    suspect_to: row.try_get(4)?,
                })
            })
            .fetch_all(&mut *connection)
            .await
            .map_err(failed("acquiring leases"))?;
        sqlx::query(self.tables.sql(ACQUIRE))
            .bind(relay.owner())
            .bind(list(leases.iter().map(|lease| lease.held.shard)))
            .bind(micros(relay.lease))
            .execute(connection)
            .await
            .map_err(failed("acquiring leases"))?;
        Ok(leases)
    }
}

/// Shards and their epochs as one bound value.
pub(super) fn pairs(held: &[Held]) -> String {
    list(held.iter().map(|held| json!([held.shard, held.epoch])))
}
