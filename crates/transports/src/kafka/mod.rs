//! Kafka: an idempotent producer, and a delivery report for each event.
//!
//! ```text
//! kafka://host:9092,host:9092?compression=zstd
//! kafka+ssl://user:password@host:9093?sasl=scram-sha-512&ca_file=/etc/ca.pem
//! ```
//!
//! | parameter | meaning |
//! | --- | --- |
//! | `name`, `format`, `connect_timeout`, `publish_timeout` | as everywhere |
//! | `password_env`, `password_file` | where the password is |
//! | `sasl` | `plain` (unless set), `scram-sha-256` or `scram-sha-512`, for user and password |
//! | `compression` | `none` (unless set), `gzip`, `snappy`, `lz4` or `zstd` |
//! | `max_message` | largest message in bytes, 2 MiB unless set; the server has a limit of its own, often 1 MiB |
//! | `ca_file` | PEM certificates to trust instead of the system's, with `kafka+ssl://` |
//! | `cert_file`, `key_file` | the client's certificate and its key, PEM, for brokers that ask for one |
//!
//! | event | message |
//! | --- | --- |
//! | topic | topic |
//! | ordering key | key; partitions are chosen as the Java client does. Without one, no key |
//! | payload | value; an empty one is empty and not a tombstone |
//! | headers, metadata | headers, CloudEvents attributes under `ce_` |
//! | content type | header `content-type` |
//!
//! The client is librdkafka, compiled with the crate: `make` and compilers for C and C++ are needed,
//! no library of the system. TLS and SCRAM need OpenSSL and its headers: the feature `kafka-tls`.
//!
//! # What the server's answer means
//! All replicas in sync have the message: *delivered*. A message that is too large, or a topic whose
//! name cannot be one, is dead. A topic that is missing or closed to us is a retry with that reason,
//! because other topics go on; whoever creates it in time loses nothing. Brokers that cannot be
//! reached, refuse the login or lack replicas are unavailable.
//!
//! The server measures a producer's whole batch against its limit, and may refuse all of it for one record
//! that it does not take, such as one without a key for a compacted topic. What it refuses so is sent again,
//! each event by itself, before it is called dead.
//!
//! # When things fail
//! The producer repeats by itself what a broken connection left open, under the same sequence number,
//! so that a short outage costs neither a duplicate nor an attempt. It is thrown away and made
//! anew after all brokers were gone, after a message timed out, and after a fatal error, which it
//! would keep for ever.
//!
//! # Why several events of a key do not fly together
//! `enable.gapless.guarantee` stops the producer at the first event of a partition that fails, but
//! says of itself that messages which time out are not covered. So any part of a batch can have been
//! accepted, and that is what the transport declares.

mod check;
mod config;
mod connect;

#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::PoisonError,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use futures_util::FutureExt;
use posthaste_core::{
    Envelope, Result,
    transport::{Capabilities, Outcome, Transport},
};
use rdkafka::{
    error::{KafkaError, RDKafkaErrorCode as Code},
    message::{Header, OwnedHeaders},
    producer::{DeliveryFuture, FutureRecord},
};
use tokio::time::timeout_at;

use crate::connection::Connection;

pub use self::config::{Compression, KafkaConfig, Sasl};
use self::connect::{Live, Producer};

/// What stands before CloudEvents attributes in binary mode.
const PREFIX: &str = "ce_";

/// Most events in one batch.
const MAX_BATCH: usize = 256;

/// So much more, so that our own words come first.
const CONNECT_DELAY: Duration = Duration::from_millis(200);

/// The library looks for what timed out once a second; a report that is later than this is lost.
const REPORT_DELAY: Duration = Duration::from_secs(2);

/// Publishes to Kafka and waits for the delivery report of each event.
pub struct Kafka {
    config: KafkaConfig,
    connection: Connection<Live>,
}

/// What became of one message.
enum Sent {
    Told(Outcome),
    /// The server refused the batch that it was in, for this reason: any of its messages may be at fault.
    BatchRefused(Code),
}

/// A publish under way. One that is dropped before its end leaves nothing behind that the library would still
/// send.
struct UnderWay<'l> {
    live: &'l Live,
    ended: bool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // What was purged in flight leaves a gap: the producer is made anew.
            self.live.watcher.trouble().spent = true;
            self.live.forget();
        }
    }
}

impl Kafka {
    /// Checks the configuration; the first publish connects.
    pub fn new(config: KafkaConfig) -> Result<Self> {
        config.check()?;
        let connection = Connection::new(config.common.connect_timeout + CONNECT_DELAY);
        Ok(Self { config, connection })
    }

    /// Hands one event to the producer.
    fn send(&self, producer: &Producer, envelope: &Envelope) -> Result<DeliveryFuture, Outcome> {
        let topic = envelope.topic();
        if let Some(fault) = fault_of(topic) {
            return Err(Outcome::dead(format!("topic {topic:?} is no Kafka topic: {fault}")));
        }
        let message = self.config.common.format.message(envelope, PREFIX);
        let count = message.own.len() + message.added.len() + 1;
        let mut headers = OwnedHeaders::new_with_capacity(count);
        for (name, value) in message.headers() {
            if name.eq_ignore_ascii_case("content-type") {
                continue; // the event's content type has this place
            }
            headers = headers.insert(Header { key: name, value: Some(value) });
        }
        headers = headers.insert(Header { key: "content-type", value: Some(message.content_type) });
        let key = envelope.event.ordering_key();
        let mut record =
            FutureRecord::<str, [u8]>::to(topic).payload(&message.body).headers(headers);
        if let Some(key) = &key {
            record = record.key(key);
        }
        producer.send_result(record).map_err(|(error, _)| match code(&error) {
            Code::MessageSizeTooLarge => Outcome::dead(format!(
                "the message is too large: {} bytes without its headers, max_message is {}",
                message.body.len(),
                self.config.max_message
            )),
            code => self.refused(envelope, code),
        })
    }

    /// Sends all events and waits for their reports, until the deadline.
    async fn send_all(
        &self,
        live: &Live,
        producer: &Producer,
        envelopes: &[&Envelope],
        deadline: Instant,
    ) -> Vec<Sent> {
        let begun = Instant::now();
        let mut reports: Vec<_> =
            envelopes.iter().map(|envelope| self.send(producer, envelope)).collect();
        let mut sent = Vec::with_capacity(envelopes.len());
        // In turn and with one timer for all.
        let reporting = async {
            for (report, envelope) in reports.iter_mut().zip(envelopes) {
                sent.push(match report {
                    Ok(report) => self.reported(live, begun, envelope, report.await),
                    Err(outcome) => Sent::Told(outcome.clone()),
                });
            }
        };
        if timeout_at(deadline.into(), reporting).await.is_err() {
            live.forget();
            let missing = reports.iter_mut().zip(envelopes).skip(sent.len());
            let rest: Vec<_> = missing
                .map(|(report, envelope)| match report.as_mut().map(FutureExt::now_or_never) {
                    Ok(Some(report)) => self.reported(live, begun, envelope, report),
                    Ok(None) => self.not_sent(live, begun, envelope, Code::MessageTimedOut),
                    Err(outcome) => Sent::Told(outcome.clone()),
                })
                .collect();
            sent.extend(rest);
        }
        sent
    }

    fn reported(
        &self,
        live: &Live,
        begun: Instant,
        envelope: &Envelope,
        report: <DeliveryFuture as Future>::Output,
    ) -> Sent {
        match report {
            Ok(Ok(_)) => Sent::Told(Outcome::Delivered),
            Ok(Err((error, _))) => self.not_sent(live, begun, envelope, code(&error)),
            // The producer is gone.
            Err(_) => self.not_sent(live, begun, envelope, Code::BrokerDestroy),
        }
    }

    fn not_sent(&self, live: &Live, begun: Instant, envelope: &Envelope, code: Code) -> Sent {
        if matches!(code, Code::MessageTimedOut | Code::Unknown) {
            live.watcher.trouble().spent = true;
        }
        Sent::Told(match code {
            Code::MessageSizeTooLarge
            | Code::MessageBatchTooLarge
            | Code::InvalidRecord
            | Code::InvalidDifferentRecord => return Sent::BatchRefused(code),
            Code::MessageTimedOut => self.late(live, begun),
            code => self.refused(envelope, code),
        })
    }

    /// Sends again what the server refused with its batch, each event in a batch of its own.
    async fn send_lonely(
        &self,
        live: &Live,
        envelopes: &[&Envelope],
        deadline: Instant,
    ) -> Vec<Outcome> {
        let producer = {
            let mut lonely = live.lonely.lock().unwrap_or_else(PoisonError::into_inner);
            if lonely.is_none() {
                let mut client = self.config.client();
                client.set("batch.num.messages", "1");
                *lonely = Self::make(&client, &live.watcher).ok();
            }
            lonely.clone()
        };
        let Some(producer) = producer else {
            return vec![Outcome::unavailable("the Kafka client cannot be made"); envelopes.len()];
        };
        let sent = self.send_all(live, &producer, envelopes, deadline).await;
        let outcomes = sent.into_iter().zip(envelopes).map(|(sent, envelope)| match sent {
            Sent::Told(outcome) => outcome,
            Sent::BatchRefused(code) => self.refused(envelope, code),
        });
        outcomes.collect()
    }

    fn refused(&self, envelope: &Envelope, code: Code) -> Outcome {
        let topic = envelope.topic();
        let place = self.config.place();
        match code {
            Code::InvalidTopic => Outcome::dead(format!("Kafka takes no topic {topic:?}")),
            Code::MessageSizeTooLarge | Code::MessageBatchTooLarge => Outcome::dead(format!(
                "the message is too large for its topic: {} bytes without its headers",
                envelope.event.payload().len()
            )),
            Code::InvalidRecord => Outcome::dead(format!(
                "topic {topic:?} takes no such message; a compacted one wants an ordering key"
            )),
            Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition => {
                Outcome::retry(format!("there is no topic {topic:?}"))
            }
            Code::TopicAuthorizationFailed => {
                Outcome::retry(format!("we may not write to topic {topic:?}"))
            }
            Code::ClusterAuthorizationFailed => Outcome::unavailable(format!(
                "Kafka at {place} lets us write nothing: IDEMPOTENT_WRITE is not allowed to this user"
            )),
            Code::Authentication | Code::SaslAuthenticationFailed => Outcome::unavailable(format!(
                "Kafka at {place} refused the login: check its user and password"
            )),
            Code::QueueFull => {
                Outcome::unavailable("the producer's queue is full: Kafka takes less than comes in")
            }
            Code::NotEnoughReplicas | Code::NotEnoughReplicasAfterAppend => Outcome::unavailable(
                format!("topic {topic:?} has fewer replicas in sync than it asks for"),
            ),
            Code::Fatal
            | Code::GaplessGuarantee
            | Code::OutOfOrderSequenceNumber
            | Code::InvalidProducerEpoch
            | Code::InvalidProducerIdMapping
            | Code::UnknownProducerId
            | Code::ProducerFenced => Outcome::unavailable(
                "the Kafka producer lost count of its messages and is made anew",
            ),
            Code::PurgeQueue | Code::PurgeInflight | Code::BrokerDestroy => {
                Outcome::unavailable("the Kafka producer was thrown away before the report")
            }
            Code::BrokerTransportFailure
            | Code::AllBrokersDown
            | Code::Resolve
            | Code::SSL
            | Code::NetworkException
            | Code::BrokerNotAvailable
            | Code::LeaderNotAvailable
            | Code::NotLeaderForPartition
            | Code::KafkaStorageError
            | Code::RequestTimedOut => Outcome::unavailable(format!(
                "the connection to Kafka at {place} was lost before the report ({code:?})"
            )),
            code => Outcome::retry(format!("topic {topic:?} refused it ({code:?})")),
        }
    }

    fn late(&self, live: &Live, begun: Instant) -> Outcome {
        let trouble = *live.watcher.trouble();
        if trouble.gone.is_some() || trouble.failed.is_some_and(|at| at >= begun) {
            return Outcome::unavailable(format!(
                "the connection to Kafka at {} was lost before the report",
                self.config.place()
            ));
        }
        let timeout = self.config.common.publish_timeout;
        Outcome::timed_out(format!("no acknowledgement within {timeout:?}"))
    }
}

#[async_trait]
impl Transport for Kafka {
    fn name(&self) -> &str {
        &self.config.common.name
    }

    fn capabilities(&self) -> Capabilities {
        let common = &self.config.common;
        Capabilities {
            max_batch: MAX_BATCH,
            max_message: Some(self.config.max_message),
            longest_publish: Some(
                common.connect_timeout + CONNECT_DELAY + common.publish_timeout + REPORT_DELAY,
            ),
            ..Capabilities::default()
        }
    }

    async fn check(&self) -> Result<String> {
        self.found().await
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        if batch.is_empty() {
            return Vec::new();
        }
        let live = match self.live().await {
            Ok(live) => live,
            Err(error) => return vec![Outcome::unavailable(error); batch.len()],
        };
        let Some(producer) = live.producer() else {
            return vec![Outcome::unavailable("the Kafka producer is gone"); batch.len()];
        };
        let mut under_way = UnderWay { live: &live, ended: false };
        let deadline = Instant::now() + self.config.common.publish_timeout + REPORT_DELAY;
        let envelopes: Vec<&Envelope> = batch.iter().collect();
        let sent = self.send_all(&live, producer, &envelopes, deadline).await;
        let again: Vec<&Envelope> = sent
            .iter()
            .zip(batch)
            .filter(|(sent, _)| matches!(sent, Sent::BatchRefused(_)))
            .map(|(_, envelope)| envelope)
            .collect();
        let mut lonely = Vec::new().into_iter();
        if !again.is_empty() {
            lonely = self.send_lonely(&live, &again, deadline).await.into_iter();
        }
        under_way.ended = true;
        let outcomes = sent
            .into_iter()
            .filter_map(|sent| match sent {
                Sent::Told(outcome) => Some(outcome),
                Sent::BatchRefused(_) => lonely.next(),
            })
            .collect();
        if live.is_fatal() {
            live.forget();
        }
        if !live.is_alive() {
            self.connection.lost(&live);
        }
        outcomes
    }
}

fn code(error: &KafkaError) -> Code {
    error.rdkafka_error_code().unwrap_or(Code::Unknown)
}

/// Why a name cannot be a topic's, if it cannot.
fn fault_of(topic: &str) -> Option<&'static str> {
    if topic.is_empty() || topic == "." || topic == ".." {
        return Some("it has no name");
    }
    if topic.len() > 249 {
        return Some("it is longer than 249 characters");
    }
    if topic.contains(|c: char| !c.is_ascii_alphanumeric() && !"._-".contains(c)) {
        return Some("it has characters other than letters, digits, dots, underscores and dashes");
    }
    None
}

impl fmt::Debug for Kafka {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kafka").field("config", &self.config).finish_non_exhaustive()
    }
}
