//! The producer: how it finds its cluster, what it is told of its brokers, when it is given up.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rdkafka::{
    ClientConfig, ClientContext,
    config::{FromClientConfigAndContext, RDKafkaLogLevel},
    error::{KafkaError, RDKafkaErrorCode as Code},
    producer::{FutureProducer, Producer as _, PurgeConfig},
};
use tokio::task::spawn_blocking;

use super::Kafka;

/// How long the client library is asked at a time whether it has found the cluster.
const SLICE: Duration = Duration::from_millis(50);

/// All brokers are gone only after this time: a host may have a second address that works.
const PATIENCE: Duration = Duration::from_millis(500);

pub(super) type Producer = FutureProducer<Watcher>;

/// A producer that has found its cluster.
pub(super) struct Live {
    /// Taken when this is dropped.
    producer: Option<Producer>,
    /// Puts each message into a batch of its own; made when the server first called one too large.
    pub(super) lonely: Mutex<Option<Producer>>,
    pub(super) watcher: Watcher,
}

/// What the library told of its brokers. It names brokers, not messages; its log may quote anything
/// and is not kept.
#[derive(Clone, Default)]
pub(super) struct Watcher(Arc<Mutex<Trouble>>);

#[derive(Clone, Copy, Default)]
pub(super) struct Trouble {
    /// When the last broker was lost.
    pub(super) gone: Option<Instant>,
    /// When a broker was lost or did not answer.
    pub(super) failed: Option<Instant>,
    /// What trying again does not mend.
    reason: Option<Reason>,
    fatal: bool,
    /// Whether a message failed in a way that the producer has to make good: it goes on under a new
    /// epoch, which not every server takes.
    pub(super) spent: bool,
}

#[derive(Clone, Copy)]
enum Reason {
    Login,
    Certificate,
    Tls,
    Name,
}

impl Watcher {
    pub(super) fn trouble(&self) -> MutexGuard<'_, Trouble> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Watcher {
    fn log(&self, _: RDKafkaLogLevel, _: &str, _: &str) {}

    fn error(&self, error: KafkaError, why: &str) {
        let mut trouble = self.trouble();
        match error.rdkafka_error_code() {
            Some(Code::AllBrokersDown) => trouble.gone = trouble.gone.or(Some(Instant::now())),
            Some(Code::Authentication | Code::SaslAuthenticationFailed) => {
                trouble.reason = Some(Reason::Login);
            }
            // Under TLS 1.3 a server looks at the client's certificate when the client is already
            // done, and all that comes of a refusal is the alert.
            Some(Code::SSL | Code::BrokerTransportFailure) if why.contains("SSL alert") => {
                trouble.reason = Some(Reason::Certificate);
            }
            Some(Code::SSL) => trouble.reason = Some(Reason::Tls),
            Some(Code::Resolve) => trouble.reason = Some(Reason::Name),
            Some(Code::Fatal) => trouble.fatal = true,
            _ => {}
        }
        trouble.failed = Some(Instant::now());
    }
}

impl Live {
    pub(super) fn producer(&self) -> Option<&Producer> {
        self.producer.as_ref()
    }

    pub(super) fn is_fatal(&self) -> bool {
        self.watcher.trouble().fatal
            || self.producer().is_some_and(|producer| producer.client().fatal_error().is_some())
    }

    pub(super) fn is_alive(&self) -> bool {
        let trouble = *self.watcher.trouble();
        trouble.gone.is_none()
            && !trouble.spent
            && !matches!(trouble.reason, Some(Reason::Login))
            && !self.is_fatal()
    }

    /// Forgets all messages: none is sent behind our back once its outcome is told.
    pub(super) fn forget(&self) {
        let lonely = self.lonely.lock().unwrap_or_else(PoisonError::into_inner);
        for producer in self.producer().into_iter().chain(&*lonely) {
            producer.purge(PurgeConfig::default().queue().inflight());
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let lonely = self.lonely.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let producers = (self.producer.take(), lonely);
        // Ending a producer waits for its threads, which is nothing for an asynchronous one.
        let _ = std::thread::Builder::new().spawn(move || drop(producers));
    }
}

impl Kafka {
    pub(super) async fn live(&self) -> Result<Arc<Live>, String> {
        self.connection.live(Live::is_alive, async || self.connect().await).await
    }

    pub(super) fn make(client: &ClientConfig, watcher: &Watcher) -> Result<Producer, String> {
        // The library's words are about its configuration, which may hold a password.
        Producer::from_config_and_context(client, watcher.clone()).map_err(|_| {
            "the Kafka client cannot be made: check ca_file, cert_file, key_file and hosts"
                .to_owned()
        })
    }

    /// Makes a producer and waits until it has found the cluster.
    async fn connect(&self) -> Result<Live, String> {
        let begun = Instant::now();
        let watcher = Watcher::default();
        let producer = Self::make(&self.config.client(), &watcher)?;
        let live = Live { producer: Some(producer.clone()), lonely: Mutex::default(), watcher };
        loop {
            let client = producer.clone();
            let found = spawn_blocking(move || {
                let asked = Instant::now();
                let cluster = client.client().fetch_cluster_id(SLICE);
                // An answer without an id comes at once, no answer takes all the time.
                cluster.is_some() || asked.elapsed() < SLICE / 2
            });
            if found.await.unwrap_or_default() {
                return Ok(live);
            }
            let trouble = *live.watcher.trouble();
            let final_reason =
                matches!(trouble.reason, Some(Reason::Login | Reason::Certificate | Reason::Tls));
            let gone = trouble.gone.is_some_and(|since| since.elapsed() >= PATIENCE);
            if final_reason || gone || begun.elapsed() >= self.config.common.connect_timeout {
                return Err(self.cannot_connect(trouble));
            }
        }
    }

    fn cannot_connect(&self, trouble: Trouble) -> String {
        let place = self.config.place();
        match trouble.reason {
            Some(Reason::Login) => {
                format!("Kafka at {place} refused the login: check its user and password")
            }
            Some(Reason::Certificate) => format!(
                "Kafka at {place} refused our certificate, or asks for one: check cert_file and key_file"
            ),
            Some(Reason::Tls) => format!(
                "no TLS connection to Kafka at {place}: its certificate is not trusted, or it speaks no TLS"
            ),
            Some(Reason::Name) => format!("Kafka at {place}: the host's name is not known"),
            None if trouble.failed.is_some() => format!("no connection to Kafka at {place}"),
            None => format!("Kafka at {place} does not answer"),
        }
    }
}
