//! Dispatch: one publish, guarded against panics, delays and miscounted answers.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt;
use posthaste_core::{
    Envelope,
    transport::{Outcome, Transport},
};

/// Publishes a batch and gives exactly one outcome per event, whatever the transport does.
pub(crate) async fn publish(
    transport: &dyn Transport,
    batch: &[Envelope],
    timeout: Duration,
) -> Vec<Outcome> {
    let publish = AssertUnwindSafe(transport.publish(batch)).catch_unwind();
    let failure = match tokio::time::timeout(timeout, publish).await {
        Ok(Ok(outcomes)) if outcomes.len() == batch.len() => return outcomes,
        Ok(Ok(outcomes)) => format!(
            "transport {} answered {} outcomes for {} events",
            transport.name(),
            outcomes.len(),
            batch.len()
        ),
        // The panic's message can quote the payload: it stays out of the error.
        Ok(Err(_)) => format!("transport {} panicked", transport.name()),
        Err(_) => format!("dispatch took longer than {timeout:?}"),
    };
    vec![Outcome::retry(failure); batch.len()]
}
