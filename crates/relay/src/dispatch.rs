//! Dispatch: one publish, guarded against panics, delays and miscounted answers.

use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use posthaste_core::{
    Envelope,
    transport::{Outcome, Transport},
};

use crate::{
    driver::{Done, Driver},
    settle::SETTLE_BATCHES,
};

/// Publishes a batch and gives exactly one outcome per event, whatever the transport does.
async fn guarded(transport: &dyn Transport, batch: &[Envelope], timeout: Duration) -> Vec<Outcome> {
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

impl Driver {
    pub(crate) fn dispatch(&mut self, now: Instant) {
        let allowed = if self.by_rows() {
            now + self.config.margin() < self.rows_until
        } else {
            self.shards.may_dispatch(now)
        };
        // A stop lets what is in flight end; it starts nothing new.
        if !allowed || self.stopping.is_some() {
            return;
        }
        let reserved = if self.by_rows() { i64::MAX } else { self.reserved };
        while self.publishing < self.config.concurrency
            && self.lanes.unsettled() < SETTLE_BATCHES * self.config.batch
        {
            let (batch, need_reserve) = self.lanes.next_batch(self.max_batch, reserved);
            self.tick_now |= need_reserve;
            if batch.is_empty() {
                break;
            }
            self.publishing += 1;
            let transport = Arc::clone(&self.transport);
            let timeout = self.config.dispatch_timeout;
            self.tasks.spawn(async move { publish(&*transport, batch, timeout).await });
        }
    }
}

async fn publish(transport: &dyn Transport, batch: Vec<Envelope>, timeout: Duration) -> Done {
    let outcomes = guarded(transport, &batch, timeout).await;
    let sequences = batch.iter().map(|envelope| envelope.sequence);
    Done::Published { outcomes: sequences.zip(outcomes).collect() }
}
