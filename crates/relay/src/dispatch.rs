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
    intercept::{self, Interceptor},
    settle::SETTLE_BATCHES,
};

/// Publishes a batch and gives exactly one outcome per event, whatever the transport does. Of the
/// timeout of the whole dispatch so much is left.
pub(crate) async fn guarded(
    transport: &dyn Transport,
    batch: &[Envelope],
    left: Duration,
    timeout: Duration,
) -> Vec<Outcome> {
    let publish = transport.publish(batch);
    #[cfg(feature = "trace")]
    let publish =
        tracing::Instrument::instrument(publish, crate::trace::span(transport.name(), batch));
    let publish = AssertUnwindSafe(publish).catch_unwind();
    let failure = match tokio::time::timeout(left, publish).await {
        Ok(Ok(outcomes)) if outcomes.len() == batch.len() => return outcomes,
        Ok(Ok(outcomes)) => format!(
            "transport {} answered {} outcomes for {} events",
            transport.name(),
            outcomes.len(),
            batch.len()
        ),
        // The panic's message can quote the payload: it stays out of the error.
        Ok(Err(_)) => format!("transport {} panicked", transport.name()),
        Err(_) => {
            let late = Outcome::timed_out(format!("dispatch took longer than {timeout:?}"));
            return vec![late; batch.len()];
        }
    };
    vec![Outcome::retry(failure); batch.len()]
}

impl Driver {
    pub(crate) fn dispatch(&mut self, now: Instant) {
        let allowed =
            if self.by_rows() { self.owns_rows(now) } else { self.shards.may_dispatch(now) };
        // A stop or a pause lets what is in flight end; it starts nothing new.
        if !allowed || self.stopping.is_some() || self.rests() {
            return;
        }
        let reserved = if self.by_rows() { i64::MAX } else { self.reserved };
        for destination in 0..self.lanes.destinations() {
            while self.lanes.unsettled() < SETTLE_BATCHES * self.config.batch {
                let outlet = self.outlets.get_mut(usize::from(destination));
                // What has no outlet is not handed to anybody: it dies, or it is long settled.
                let room = outlet.map_or(self.config.batch, |outlet| outlet.room(now));
                if room == 0 {
                    break;
                }
                let (batch, wanted) = self.lanes.next_batch(destination, room, reserved);
                if let Some(wanted) = wanted {
                    // A held event can lie far beyond what the cursor has read. What waits behind it in its
                    // queue may fill that, and then nothing is read that would raise the reservation.
                    self.highest = self.highest.max(wanted);
                    self.tick_now = true;
                }
                if batch.is_empty() {
                    break;
                }
                let Some(outlet) = self.outlets.get_mut(usize::from(destination)) else {
                    break;
                };
                outlet.published(batch.len());
                let transport = Arc::clone(&outlet.transport);
                let timeout = self.config.dispatch_timeout;
                let interceptors = Arc::clone(&self.interceptors);
                let observer = Arc::clone(&self.observer);
                self.tasks.spawn_within(timeout, async move {
                    let began = Instant::now();
                    let outcomes = publish(&*transport, &interceptors, &batch, timeout).await;
                    let failed =
                        observer.published(transport.name(), &batch, &outcomes, began.elapsed());
                    let sequences = batch.iter().map(|envelope| envelope.sequence);
                    let outcomes = sequences.zip(outcomes).collect();
                    Done::Published { destination, outcomes, failed }
                });
            }
        }
        self.lanes.judge_all(now);
    }
}

async fn publish(
    transport: &dyn Transport,
    interceptors: &[Arc<dyn Interceptor>],
    batch: &[Envelope],
    timeout: Duration,
) -> Vec<Outcome> {
    if interceptors.is_empty() {
        guarded(transport, batch, timeout, timeout).await
    } else {
        intercept::around(transport, interceptors, batch, timeout).await
    }
}
