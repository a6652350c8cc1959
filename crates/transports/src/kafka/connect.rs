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
use tokio::{sync::watch, task::spawn_blocking};

use super::Kafka;

/// How long the client library is asked at a time whether it has found the cluster.
const SLICE: Duration = Duration::from_millis(50);

/// All brokers are gone only after this time: a host may have a second address that works.
const PATIENCE: Duration = Duration::from_millis(500);

/// No topic can have this name: whoever is asked about it does not make it.
const NO_TOPIC: &str = ".";

/// What the library logs of a connection that ends: under this name, and with this in its text if the connection
/// had been made.
const FAILED: &str = "FAIL";
const WAS_UP: &str = "in state UP";

/// But with this the library ended it itself.
const TIMED_OUT: &str = "timed out";

pub(super) type Producer = FutureProducer<Watcher>;

/// Who uses a producer, and so what becomes of a message whose connection breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// All publishes. The library sends it once more, under its sequence number.
    Shared,
    /// One trial. It has failed.
    Trial,
}

impl Use {
    /// So many broken connections are the library's to mend.
    fn mended(self) -> usize {
        match self {
            Self::Shared => 1,
            Self::Trial => 0,
        }
    }
}

/// A producer that has found its cluster.
pub(crate) struct Live {
    pub(super) used_by: Use,
    /// Taken when this is dropped.
    producer: Option<Producer>,
    /// Puts each message into a batch of its own; made when the server first called one too large.
    pub(super) lonely: Mutex<Option<Producer>>,
    pub(super) watcher: Watcher,
}

/// What the library told of its brokers. It names brokers, not messages; its log may quote anything
/// and is not kept.
#[derive(Clone, Default)]
pub(super) struct Watcher {
    trouble: Arc<Mutex<Trouble>>,
    /// How many connections broke that had been made. Only the log tells it of each: a callback comes when none is
    /// left. The library is silent of one that was idle.
    breaks: watch::Sender<usize>,
}

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
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Watcher {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, text: &str) {
        if facility == FAILED && text.contains(WAS_UP) && !text.contains(TIMED_OUT) {
            self.breaks.send_modify(|count| *count += 1);
        }
    }

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
            // The library does not tell of each break when there are many.
            && !self.has_lost_one()
            && !matches!(trouble.reason, Some(Reason::Login))
            && !self.is_fatal()
    }

    /// A connection broke that had been made.
    pub(super) fn has_lost_one(&self) -> bool {
        *self.watcher.breaks.borrow() > 0
    }

    /// Connections broke, and what was under way is not the library's to repeat any more.
    pub(super) fn is_broken(&self) -> bool {
        *self.watcher.breaks.borrow() > self.used_by.mended()
    }

    /// Returns when that is so.
    pub(super) async fn broken(&self) {
        let mut breaks = self.watcher.breaks.subscribe();
        // The sender lives as long as this.
        let _ = breaks.wait_for(|count| *count > self.used_by.mended()).await;
    }

    /// Forgets all messages: none is sent behind our back once its outcome is told. It waits for the library's
    /// threads, which may be looking up a name.
    pub(super) async fn forget(&self) {
        let producers = self.producers();
        let _ = spawn_blocking(move || purge(&producers)).await;
    }

    /// The same at once, for those who cannot wait.
    pub(super) fn forget_now(&self) {
        purge(&self.producers());
    }

    fn producers(&self) -> Vec<Producer> {
        let lonely = self.lonely.lock().unwrap_or_else(PoisonError::into_inner);
        self.producer().into_iter().chain(&*lonely).cloned().collect()
    }
}

fn purge(producers: &[Producer]) {
    for producer in producers {
        producer.purge(PurgeConfig::default().queue().inflight());
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

/// Makes a broker tell of itself once more. An idempotent producer asks for its id whenever one does, and otherwise
/// only every 500 ms: too early the first time, when it has no connection to a broker that it knows by its id.
fn make_ready(producer: &Producer, limit: Duration) {
    // Without an answer it only takes longer.
    let _ = producer.client().fetch_metadata(Some(NO_TOPIC), limit);
}

impl Kafka {
    pub(super) fn client(&self, used_by: Use) -> ClientConfig {
        match used_by {
            Use::Shared => self.config.client(),
            Use::Trial => self.config.trial(),
        }
    }

    pub(super) fn make(client: &ClientConfig, watcher: &Watcher) -> Result<Producer, String> {
        // The library's words are about its configuration, which may hold a password.
        Producer::from_config_and_context(client, watcher.clone()).map_err(|_| {
            "the Kafka client cannot be made: check ca_file, cert_file, key_file and hosts"
                .to_owned()
        })
    }

    /// Makes a producer and waits until it has found the cluster.
    pub(super) async fn connect(&self, used_by: Use) -> Result<Live, String> {
        let begun = Instant::now();
        let watcher = Watcher::default();
        let producer = Some(Self::make(&self.client(used_by), &watcher)?);
        let live = Live { used_by, producer, lonely: Mutex::default(), watcher };
        let limit = self.config.common.connect_timeout;
        loop {
            // The last one that goes must not go on the runtime.
            let client = live.producer().cloned();
            let found = spawn_blocking(move || {
                let Some(client) = client else { return false };
                let asked = Instant::now();
                let cluster = client.client().fetch_cluster_id(SLICE);
                // An answer without an id comes at once, no answer takes all the time.
                let found = cluster.is_some() || asked.elapsed() < SLICE / 2;
                if found && used_by == Use::Shared {
                    make_ready(&client, PATIENCE.min(limit.saturating_sub(begun.elapsed())));
                }
                found
            });
            if found.await.unwrap_or_default() {
                return Ok(live);
            }
            let trouble = *live.watcher.trouble();
            let final_reason =
                matches!(trouble.reason, Some(Reason::Login | Reason::Certificate | Reason::Tls));
            let gone = trouble.gone.is_some_and(|since| since.elapsed() >= PATIENCE);
            if final_reason || gone || begun.elapsed() >= limit {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_counts_as_broken_when_it_had_been_made_and_others_end_it() {
        let watcher = Watcher::default();
        let says = |facility: &str, text: &str| watcher.log(RDKafkaLogLevel::Info, facility, text);
        let broker = "[thrd:host:9092/1]: host:9092/1:";
        says("FAIL", &format!("{broker} Connect failed: refused (after 0ms in state CONNECT)"));
        says(
            "FAIL",
            &format!("{broker} 1 request(s) timed out: disconnect (after 9ms in state UP)"),
        );
        says("REQTMOUT", &format!("{broker} Timed out 1 in-flight (after 9ms in state UP)"));
        assert_eq!(*watcher.breaks.borrow(), 0);
        says("FAIL", &format!("{broker} Disconnected (after 9ms in state UP)"));
        assert_eq!(*watcher.breaks.borrow(), 1);
    }
}
