//! A destination that writes down what it gets, fails at random, takes its time, or kills.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use posthaste::{
    Envelope,
    transport::{Outcome, Transport},
};
use posthaste_harness::{
    journal::{Fact, Journal, Step},
    options::RelayOptions,
};

pub(crate) struct Recorder {
    journal: Journal,
    relay: String,
    fail: f64,
    refuse: Option<Duration>,
    delay: Duration,
    abort_on: Option<String>,
    random: Mutex<fastrand::Rng>,
    in_flight: Arc<AtomicU64>,
}

impl Recorder {
    pub(crate) fn new(options: &RelayOptions) -> std::io::Result<Self> {
        Ok(Self {
            journal: Journal::open(&options.out)?,
            relay: options.name.clone(),
            fail: options.fail,
            refuse: options.refuse.map(Duration::from_millis),
            delay: Duration::from_millis(options.delay),
            abort_on: options.abort_on.clone(),
            random: Mutex::new(fastrand::Rng::with_seed(options.seed)),
            in_flight: Arc::default(),
        })
    }

    /// Counts what is with the transport.
    pub(crate) fn in_flight(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.in_flight)
    }

    fn write(&self, step: Step, envelope: &Envelope) {
        let key = envelope.event.aggregate_id().unwrap_or("-");
        self.journal.write(&Fact::line(step, envelope.event.id(), key, &self.relay));
    }

    async fn hand(&self, envelope: &Envelope) -> Outcome {
        self.write(Step::Handed, envelope);
        if self.abort_on.as_deref() == Some(envelope.event.event_type()) {
            self.write(Step::Aborting, envelope);
            std::process::abort();
        }
        if !self.delay.is_zero() {
            tokio::time::sleep(self.delay).await;
        }
        if self.refuse.is_some() {
            self.write(Step::Failed, envelope);
            return Outcome::Retry { error: "refused".to_owned(), after: self.refuse };
        }
        let chance = self.random.lock().unwrap_or_else(PoisonError::into_inner).f64();
        if chance < self.fail {
            self.write(Step::Failed, envelope);
            return Outcome::retry("chance");
        }
        self.write(Step::Delivered, envelope);
        Outcome::Delivered
    }
}

#[async_trait]
impl Transport for Recorder {
    fn name(&self) -> &str {
        "journal"
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(batch.len());
        for envelope in batch {
            self.in_flight.fetch_add(1, Ordering::Relaxed);
            outcomes.push(self.hand(envelope).await);
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
        outcomes
    }
}
