//! Removes what is settled and past its retention, in small steps.

use std::time::Duration;

use posthaste_core::{Result, store::Store};

use crate::{Retention, read::within};

/// How long one step of housekeeping may take. Nothing that is delivered waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// One whole cycle. Gives how many events were deleted.
pub async fn purge(store: &dyn Store, retention: Retention, batch: usize) -> Result<u64> {
    let mut deleted = 0;
    let mut cursor = None;
    loop {
        let step = store.purge(retention.sent, retention.dead, batch, cursor);
        let step = within(PATIENCE, step).await?;
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
