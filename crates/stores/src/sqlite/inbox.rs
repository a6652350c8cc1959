//! Messages that were handled.

use std::time::Duration;

use posthaste_core::Result;
use sqlx::{Sqlite, SqliteConnection};

use super::{micros, row::now};
use crate::{Tables, failure::failed, inbox::InboxDialect};

impl InboxDialect for Sqlite {
    async fn record_message<'c>(
        connection: &'c mut SqliteConnection,
        tables: &'c Tables,
        consumer: &'c str,
        message_id: &'c str,
    ) -> Result<bool> {
        const RECORD: &str = "
            insert into {inbox} (consumer, message_id) values (?1, ?2)
            on conflict (consumer, message_id) do nothing";

        let recorded = sqlx::query(tables.sql(RECORD))
            .bind(consumer)
            .bind(message_id)
            .execute(connection)
            .await
            .map_err(failed("recording a message"))?;
        Ok(recorded.rows_affected() == 1)
    }

    async fn purge_inbox<'c>(
        connection: &'c mut SqliteConnection,
        tables: &'c Tables,
        older_than: Duration,
        limit: usize,
    ) -> Result<u64> {
        const PURGE: &str = concat!(
            "delete from {inbox}
            where rowid in (
                select rowid from {inbox} where received_at < ",
            now!(),
            " - ?1 order by received_at limit ?2
            )"
        );

        let purged = sqlx::query(tables.sql(PURGE))
            .bind(micros(older_than))
            .bind(limit as i64)
            .execute(connection)
            .await
            .map_err(failed("purging the inbox"))?;
        Ok(purged.rows_affected())
    }
}
