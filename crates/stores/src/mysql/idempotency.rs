//! Keys of requests, their leases and their responses.

use posthaste_core::Result;
use sqlx::{
    Executor, MySql, MySqlConnection, Row,
    mysql::{MySqlArguments, MySqlRow},
};

use super::{enqueue::DUPLICATE_ENTRY, micros, number};
use crate::{
    Tables,
    failure::failed,
    idempotency::{IdempotencyDialect, KeyLease, KeyRecord, RequestKey, StoredResponse},
};

type Query = sqlx::query::Query<'static, MySql, MySqlArguments>;

/// What both ways of taking a key bind first.
fn bind_taking(query: Query, key: &RequestKey, lease: &KeyLease) -> Query {
    query
        .bind(key.fingerprint.clone())
        .bind(lease.token.clone())
        .bind(micros(lease.lease))
        .bind(micros(lease.keep))
        .bind(key.scope.clone())
        .bind(key.key.clone())
}

impl IdempotencyDialect for MySql {
    async fn find_key<'c>(
        connection: &'c mut MySqlConnection,
        tables: &'c Tables,
        key: &'c RequestKey,
    ) -> Result<Option<KeyRecord>> {
        const FIND: &str = "
            select fingerprint, locked_until > utc_timestamp(6), status, headers, body
            from {idempotency}
            where scope = ? and idempotency_key = ? and expires_at > utc_timestamp(6)";

        sqlx::query(tables.sql(FIND))
            .bind(&key.scope)
            .bind(&key.key)
            .try_map(|row: MySqlRow| record(&row))
            .fetch_optional(connection)
            .await
            .map_err(failed("looking for an idempotency key"))
    }

    async fn take_key<'c>(
        connection: &'c mut MySqlConnection,
        tables: &'c Tables,
        key: &'c RequestKey,
        lease: &'c KeyLease,
    ) -> Result<bool> {
        const INSERT: &str = "
            insert into {idempotency}
                (fingerprint, locked_by, locked_until, expires_at, scope, idempotency_key)
            values (?, ?, timestampadd(microsecond, ?, utc_timestamp(6)),
                timestampadd(microsecond, ?, utc_timestamp(6)), ?, ?)";
        const TAKE_OVER: &str = "
            update {idempotency}
            set fingerprint = ?, locked_by = ?,
                locked_until = timestampadd(microsecond, ?, utc_timestamp(6)),
                expires_at = timestampadd(microsecond, ?, utc_timestamp(6)),
                created_at = utc_timestamp(6), status = null, headers = null, body = null
            where scope = ? and idempotency_key = ?
              and (expires_at <= utc_timestamp(6)
                   or (status is null and locked_until <= utc_timestamp(6) and fingerprint = ?))";

        let inserted = bind_taking(sqlx::query(tables.sql(INSERT)), key, lease)
            .execute(&mut *connection)
            .await;
        match inserted {
            Ok(_) => return Ok(true),
            Err(error) if number(&error) == DUPLICATE_ENTRY => {}
            Err(error) => return Err(failed("taking an idempotency key")(error)),
        }
        // The refused insert holds a lock that lets others read: two that both go on to update the
        // row would wait for each other.
        connection.execute("commit").await.map_err(failed("taking an idempotency key"))?;
        let taken = bind_taking(sqlx::query(tables.sql(TAKE_OVER)), key, lease)
            .bind(&key.fingerprint)
            .execute(connection)
            .await
            .map_err(failed("taking an idempotency key"))?;
        Ok(taken.rows_affected() == 1)
    }

    async fn store_response<'c>(
        connection: &'c mut MySqlConnection,
        tables: &'c Tables,
        key: &'c RequestKey,
        lease: &'c KeyLease,
        response: &'c StoredResponse,
    ) -> Result<bool> {
        const STORE: &str = "
            update {idempotency}
            set status = ?, headers = ?, body = ?,
                expires_at = timestampadd(microsecond, ?, utc_timestamp(6))
            where scope = ? and idempotency_key = ? and locked_by = ? and status is null";

        let stored = sqlx::query(tables.sql(STORE))
            .bind(response.status as i16)
            .bind(&response.headers)
            .bind(&response.body)
            .bind(micros(lease.keep))
            .bind(&key.scope)
            .bind(&key.key)
            .bind(&lease.token)
            .execute(connection)
            .await
            .map_err(failed("storing a response"))?;
        Ok(stored.rows_affected() == 1)
    }

    async fn release_key<'c>(
        connection: &'c mut MySqlConnection,
        tables: &'c Tables,
        key: &'c RequestKey,
        lease: &'c KeyLease,
    ) -> Result<()> {
        const RELEASE: &str = "
            delete from {idempotency}
            where scope = ? and idempotency_key = ? and locked_by = ? and status is null";

        sqlx::query(tables.sql(RELEASE))
            .bind(&key.scope)
            .bind(&key.key)
            .bind(&lease.token)
            .execute(connection)
            .await
            .map_err(failed("giving an idempotency key back"))?;
        Ok(())
    }

    async fn purge_idempotency<'c>(
        connection: &'c mut MySqlConnection,
        tables: &'c Tables,
        limit: usize,
    ) -> Result<u64> {
        const PURGE: &str = "
            delete from {idempotency}
            where expires_at <= utc_timestamp(6)
            order by expires_at
            limit ?";

        let purged = sqlx::query(tables.sql(PURGE))
            .bind(limit as u64)
            .execute(connection)
            .await
            .map_err(failed("purging idempotency keys"))?;
        Ok(purged.rows_affected())
    }
}

fn record(row: &MySqlRow) -> sqlx::Result<KeyRecord> {
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
