//! Messages that were handled.

use std::time::Duration;

use posthaste_core::Result;
use sqlx::{PgConnection, Postgres};

use super::micros;
use crate::{Tables, failure::failed, inbox::InboxDialect};

impl InboxDialect for Postgres {
    async fn record_message<'c>(
        connection: &'c mut PgConnection,
        tables: &'c Tables,
        consumer: &'c str,
        message_id: &'c str,
    ) -> Result<bool> {
        const RECORD: &str = "
            insert into {inbox} (consumer, message_id) values ($1, $2)
            on conflict (consumer, message_id) do nothing";

        let recorded = sqlx::query(tables.sql(RECORD))
            .persistent(tables.named_statements())
            .bind(consumer)
            .bind(message_id)
            .execute(connection)
            .await
            .map_err(failed("recording a message"))?;
        Ok(recorded.rows_affected() == 1)
    }

    async fn purge_inbox<'c>(
        connection: &'c mut PgConnection,
        tables: &'c Tables,
        older_than: Duration,
        limit: usize,
    ) -> Result<u64> {
        const PURGE: &str = "
            delete from {inbox}
            where ctid = any(array(
                select ctid from {inbox}
                where received_at < clock_timestamp() - $1 * interval '1 microsecond'
                order by received_at
                limit $2
                for update skip locked
            ))";

        let purged = sqlx::query(tables.sql(PURGE))
            .persistent(tables.named_statements())
            .bind(micros(older_than))
            .bind(limit as i64)
            .execute(connection)
            .await
            .map_err(failed("purging the inbox"))?;
        Ok(purged.rows_affected())
    }
}
