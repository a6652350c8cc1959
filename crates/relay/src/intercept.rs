//! Interceptors: the application's own code around every dispatch.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::FutureExt;
use posthaste_core::{
    Envelope, Failure,
    transport::{Outcome, Transport},
};

use crate::dispatch::guarded;

/// Wraps every dispatch, to whichever destination.
///
/// Interceptors run in the order in which they were given before, and in reverse after. One that
/// refuses an event before keeps it from its destination, and those behind it do not see it. What
/// fails after is only logged: the event has been delivered, or not, already.
#[async_trait]
pub trait Interceptor: Send + Sync + 'static {
    /// Before the event is handed over. A failure goes to retry, or dead, as it says.
    async fn before(&self, destination: &str, envelope: &Envelope) -> Result<(), Failure> {
        let _ = (destination, envelope);
        Ok(())
    }

    /// After its destination has answered, with the error if there was one.
    async fn after(
        &self,
        destination: &str,
        envelope: &Envelope,
        error: Option<&str>,
    ) -> Result<(), Failure> {
        let _ = (destination, envelope, error);
        Ok(())
    }
}

/// Publishes what the interceptors let through, and tells them what became of it.
pub(crate) async fn around(
    transport: &dyn Transport,
    interceptors: &[Arc<dyn Interceptor>],
    batch: &[Envelope],
    timeout: Duration,
) -> Vec<Outcome> {
    let name = transport.name();
    let mut refused = Vec::with_capacity(batch.len());
    let mut seen = Vec::with_capacity(batch.len());
    for envelope in batch {
        let (by, refusal) = before(interceptors, name, envelope).await;
        seen.push(by);
        refused.push(refusal);
    }
    let admitted: Vec<Envelope> = batch
        .iter()
        .zip(&refused)
        .filter(|(_, refusal)| refusal.is_none())
        .map(|(envelope, _)| envelope.clone())
        .collect();
    let mut published =
        if admitted.is_empty() { Vec::new() } else { guarded(transport, &admitted, timeout).await }
            .into_iter();
    let mut outcomes = Vec::with_capacity(batch.len());
    for ((envelope, refusal), by) in batch.iter().zip(refused).zip(seen) {
        let outcome = match refusal {
            Some(refusal) => refusal,
            None => published.next().unwrap_or_else(|| Outcome::retry("it got no answer")),
        };
        let error = match &outcome {
            Outcome::Delivered => None,
            Outcome::Retry { error, .. }
            | Outcome::Dead { error }
            | Outcome::Unavailable { error, .. } => Some(error.as_str()),
        };
        after(&interceptors[..by], name, envelope, error).await;
        outcomes.push(outcome);
    }
    outcomes
}

/// Gives how many interceptors have seen the event, and the refusal if there was one.
async fn before(
    interceptors: &[Arc<dyn Interceptor>],
    name: &str,
    envelope: &Envelope,
) -> (usize, Option<Outcome>) {
    for (index, interceptor) in interceptors.iter().enumerate() {
        let asked = AssertUnwindSafe(interceptor.before(name, envelope)).catch_unwind().await;
        let refusal = match asked {
            Ok(Ok(())) => continue,
            Ok(Err(failure)) => failure.into_outcome(),
            // The panic's message can quote the payload: it stays out of the error.
            Err(_) => Outcome::retry("an interceptor panicked"),
        };
        return (index + 1, Some(refusal));
    }
    (interceptors.len(), None)
}

async fn after(
    interceptors: &[Arc<dyn Interceptor>],
    name: &str,
    envelope: &Envelope,
    error: Option<&str>,
) {
    for interceptor in interceptors.iter().rev() {
        let told = AssertUnwindSafe(interceptor.after(name, envelope, error)).catch_unwind().await;
        let reason = match &told {
            Ok(Ok(())) => continue,
            Ok(Err(failure)) => failure.reason(),
            Err(_) => "it panicked",
        };
        tracing::warn!(
            event.id = %envelope.event.id(),
            destination = name,
            error = reason,
            "an interceptor failed after the dispatch"
        );
    }
}
