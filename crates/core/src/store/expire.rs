use std::time::Duration;

use async_trait::async_trait;

use crate::Result;

/// What housekeeping deletes for the application's side, in small steps: an answer below the limit
/// says that there is no more for now.
#[async_trait]
pub trait Expire {
    /// Deletes up to `limit` records of messages that were handled longer ago than this. A message
    /// that comes again later than that is handled again.
    async fn purge_inbox(&self, older_than: Duration, limit: usize) -> Result<u64>;

    /// Deletes up to `limit` idempotency keys that have expired.
    async fn purge_idempotency(&self, limit: usize) -> Result<u64>;
}
