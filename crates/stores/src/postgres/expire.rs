//! What housekeeping deletes for the application's side.

use std::time::Duration;

use async_trait::async_trait;
use posthaste_core::{Result, store::Expire};
use sqlx::Postgres;

use super::PostgresStore;
use crate::{failure::failed, idempotency::IdempotencyDialect, inbox::InboxDialect};

#[async_trait]
impl Expire for PostgresStore {
    async fn purge_inbox(&self, older_than: Duration, limit: usize) -> Result<u64> {
        let mut connection = self.pool.acquire().await.map_err(failed("purging the inbox"))?;
        Postgres::purge_inbox(&mut connection, &self.tables, older_than, limit).await
    }

    async fn purge_idempotency(&self, limit: usize) -> Result<u64> {
        let acquired = self.pool.acquire().await;
        let mut connection = acquired.map_err(failed("purging idempotency keys"))?;
        Postgres::purge_idempotency(&mut connection, &self.tables, limit).await
    }
}
