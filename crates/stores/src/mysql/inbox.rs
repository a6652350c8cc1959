//! Messages that were handled.

use std::time::Duration;

use posthaste_core::Result;
use sqlx::{MySql, MySqlConnection};

use super::{enqueue::DUPLICATE_ENTRY, micros, number, transaction::failed_in};
use crate::{Tables, failure::failed, inbox::InboxDialect};

impl InboxDialect for MySql {
    async fn record_message<'c>(
        connection: &'c mut MySqlConnection,
        tables: &'c Tables,
        consumer: &'c str,
        message_id: &'c str,
    ) -> Result<bool> {
        const RECORD: &str = "insert into {inbox} (consumer, message_id) values (?, ?)";

        let recorded = sqlx::query(tables.sql(RECORD))
            .bind(consumer)
            .bind(message_id)
            .execute(&mut *connection)
            .await;
        match recorded {
            Ok(_) => Ok(true),
            // Only the statement was undone, not the caller's transaction.
            Err(error) if number(&error) == DUPLICATE_ENTRY => Ok(false),
            // A deadlock has undone all of it.
            Err(error) => Err(failed_in(connection, failed("recording a message")(error)).await),
        }
    }

    async fn purge_inbox<'c>(
        connection: &'c mut MySqlConnection,
        tables: &'c Tables,
        older_than: Duration,
        limit: usize,
    ) -> Result<u64> {
        const PURGE: &str = "
            delete from {inbox}
            where received_at < timestampadd(microsecond, -?, utc_timestamp(6))
            order by received_at
            limit ?";

        let purged = sqlx::query(tables.sql(PURGE))
            .bind(micros(older_than))
            .bind(limit as u64)
            .execute(connection)
            .await
            .map_err(failed("purging the inbox"))?;
        Ok(purged.rows_affected())
    }
}
