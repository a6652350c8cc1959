//! Removes what is settled and past its retention, in small steps.

use posthaste_core::{Result, store::Store};

use crate::Retention;

/// One whole cycle. Gives how many events were deleted.
pub async fn purge(store: &dyn Store, retention: Retention, batch: usize) -> Result<u64> {
    let mut deleted = 0;
    let mut cursor = None;
    loop {
        let step = store.purge(retention.sent, retention.dead, batch, cursor).await?;
        deleted += step.deleted;
        match step.next {
            Some(next) => cursor = Some(next),
            None => break,
        }
        // Each step is a transaction of its own; between two of them everybody else has a turn.
        tokio::task::yield_now().await;
    }
    if deleted > 0 {
        tracing::info!(deleted, "purged settled events past their retention");
    }
    Ok(deleted)
}
