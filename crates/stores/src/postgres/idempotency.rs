//! Keys of requests, their leases and their responses.

use posthaste_core::Result;
use sqlx::{PgConnection, Postgres, Row, postgres::PgRow};

use super::micros;
use crate::{
    Tables,
    failure::failed,
    idempotency::{IdempotencyDialect, KeyLease, KeyRecord, RequestKey, StoredResponse},
};

impl IdempotencyDialect for Postgres {
    async fn find_key<'c>(
        connection: &'c mut PgConnection,
        tables: &'c Tables,
        key: &'c RequestKey,
    ) -> Result<Option<KeyRecord>> {
        const FIND: &str = "
            select fingerprint, locked_until > clock_timestamp(), status, headers, body
            from {idempotency}
            where scope = $1 and idempotency_key = $2 and expires_at > clock_timestamp()";

        sqlx::query(tables.sql(FIND))
            .persistent(tables.named_statements())
            .bind(&key.scope)
            .bind(&key.key)
            .try_map(|row: PgRow| record(&row))
            .fetch_optional(connection)
            .await
            .map_err(failed("looking for an idempotency key"))
    }

    async fn take_key<'c>(
        connection: &'c mut PgConnection,
        tables: &'c Tables,
        key: &'c RequestKey,
        lease: &'c KeyLease,
    ) -> Result<bool> {
        const TAKE: &str = "
            insert into {idempotency} as k
                (scope, idempotency_key, fingerprint, locked_by, locked_until, expires_at)
            values ($1, $2, $3, $4, clock_timestamp() + $5 * interval '1 microsecond',
                clock_timestamp() + $6 * interval '1 microsecond')
            on conflict (scope, idempotency_key) do update
            set fingerprint = excluded.fingerprint, locked_by = excluded.locked_by,
                locked_until = excluded.locked_until, expires_at = excluded.expires_at,
                created_at = clock_timestamp(), status = null, headers = null, body = null
            where k.expires_at <= clock_timestamp()
               or (k.status is null and k.locked_until <= clock_timestamp()
                   and k.fingerprint = excluded.fingerprint)";

        let taken = sqlx::query(tables.sql(TAKE))
            .persistent(tables.named_statements())
            .bind(&key.scope)
            .bind(&key.key)
            .bind(&key.fingerprint)
            .bind(&lease.token)
            .bind(micros(lease.lease))
            .bind(micros(lease.keep))
            .execute(connection)
            .await
            .map_err(failed("taking an idempotency key"))?;
        Ok(taken.rows_affected() == 1)
    }

    async fn store_response<'c>(
        connection: &'c mut PgConnection,
        tables: &'c Tables,
        key: &'c RequestKey,
        lease: &'c KeyLease,
        response: &'c StoredResponse,
    ) -> Result<bool> {
        const STORE: &str = "
            update {idempotency}
            set status = $4, headers = $5, body = $6,
                expires_at = clock_timestamp() + $7 * interval '1 microsecond'
            where scope = $1 and idempotency_key = $2 and locked_by = $3 and status is null";

        let stored = sqlx::query(tables.sql(STORE))
            .persistent(tables.named_statements())
            .bind(&key.scope)
            .bind(&key.key)
            .bind(&lease.token)
            .bind(response.status as i16)
            .bind(&response.headers)
            .bind(&response.body)
            .bind(micros(lease.keep))
            .execute(connection)
            .await
            .map_err(failed("storing a response"))?;
        Ok(stored.rows_affected() == 1)
    }

    async fn release_key<'c>(
        connection: &'c mut PgConnection,
        tables: &'c Tables,
        key: &'c RequestKey,
        lease: &'c KeyLease,
    ) -> Result<()> {
        const RELEASE: &str = "
            delete from {idempotency}
            where scope = $1 and idempotency_key = $2 and locked_by = $3 and status is null";

        sqlx::query(tables.sql(RELEASE))
            .persistent(tables.named_statements())
            .bind(&key.scope)
            .bind(&key.key)
            .bind(&lease.token)
            .execute(connection)
            .await
            .map_err(failed("giving an idempotency key back"))?;
        Ok(())
    }

    async fn purge_idempotency<'c>(
        connection: &'c mut PgConnection,
        tables: &'c Tables,
        limit: usize,
    ) -> Result<u64> {
        // By the key: `ctid` cannot be granted by itself, and who purges is not to read responses.
        const PURGE: &str = "
            with expired as materialized (
                select scope, idempotency_key from {idempotency}
                where expires_at <= clock_timestamp()
                order by expires_at
                limit $1
                for update skip locked
            )
            delete from {idempotency} k using expired e
            where k.scope = e.scope and k.idempotency_key = e.idempotency_key";

        let purged = sqlx::query(tables.sql(PURGE))
            .persistent(tables.named_statements())
            .bind(limit as i64)
            .execute(connection)
            .await
            .map_err(failed("purging idempotency keys"))?;
        Ok(purged.rows_affected())
    }
}

fn record(row: &PgRow) -> sqlx::Result<KeyRecord> {
    let status: Option<i16> = row.try_get(2)?;
    let response = match status {
        Some(status) => Some(StoredResponse {
            status: status as u16,
            headers: row.try_get(3)?,
            body: row.try_get(4)?,
        }),
        None => None,
    };
    Ok(KeyRecord { fingerprint: row.try_get(0)?, locked: row.try_get(1)?, response })
}
