//! What housekeeping deletes for the application's side.

use std::time::Duration;

use async_trait::async_trait;
use posthaste_core::{Result, store::Expire};
use sqlx::Sqlite;

use super::SqliteStore;
use crate::{failure::failed, idempotency::IdempotencyDialect, inbox::InboxDialect};

#[async_trait]
impl Expire for SqliteStore {
    async fn purge_inbox(&self, older_than: Duration, limit: usize) -> Result<u64> {
        let mut connection = self.writer.acquire().await.map_err(failed("purging the inbox"))?;
        Sqlite::purge_inbox(&mut connection, &self.tables, older_than, limit).await
    }

    async fn purge_idempotency(&self, limit: usize) -> Result<u64> {
        let acquired = self.writer.acquire().await;
        let mut connection = acquired.map_err(failed("purging idempotency keys"))?;
        Sqlite::purge_idempotency(&mut connection, &self.tables, limit).await
    }
}
