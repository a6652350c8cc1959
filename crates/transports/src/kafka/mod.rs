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
//! so that a short outage costs neither a duplicate nor an attempt. It is used no more and made
//! anew after a connection broke, after a message timed out, and after a fatal error, which it
//! would keep for ever.
//!
//! When another connection breaks while it repeats, it may be over an event. What is under way is given up then, and
//! goes on in a trial, with a producer that repeats nothing: it tells which messages were on a
//! connection that broke.
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
    pin::pin,
    sync::{Arc, PoisonError},
    time::{self, Duration},
};

use async_trait::async_trait;
use futures_util::{
    FutureExt,
    future::{Either, select},
};
use posthaste_core::{
    Envelope, Result,
    transport::{Capabilities, Outcome, Transport},
};
use rdkafka::{
    error::{KafkaError, RDKafkaErrorCode as Code},
    message::{Header, OwnedHeaders},
    producer::{DeliveryFuture, FutureRecord},
};
use tokio::time::{Instant, timeout_at};

use crate::{
    apart::{Apart, Sent, Shared, Suspects},
    connection::Connection,
};

pub use self::config::{Compression, KafkaConfig, Sasl};
use self::connect::{Live, Producer, Use};

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
    apart: Apart<Live>,
}

/// What became of one message.
enum Report {
    Told(Outcome),
    /// The server refused the batch that it was in, for this reason: any of its messages may be at fault.
    BatchRefused(Code),
    /// The connection broke, over this message or another one.
    Lost(Lost),
}

/// What is known of a message that was given up on because a connection broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lost {
    /// The request that it was in was on that connection.
    UnderWay,
    /// It may have been waiting for its turn.
    Unknown,
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
            self.live.forget_now();
        }
    }
}

impl Kafka {
    /// Checks the configuration; the first publish connects.
    pub fn new(config: KafkaConfig) -> Result<Self> {
        config.check()?;
        let limit = config.common.connect_timeout + CONNECT_DELAY;
        let (connection, apart) = (Connection::new(limit), Apart::new(limit, false));
        Ok(Self { config, connection, apart })
    }

    /// Hands one event to the producer.
    fn enqueue(&self, producer: &Producer, envelope: &Envelope) -> Result<DeliveryFuture, Outcome> {
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

    /// Sends all events and waits for their reports, until the deadline. A producer whose connections break is told
    /// to forget what it has.
    async fn send_all(
        &self,
        live: &Live,
        producer: &Producer,
        envelopes: &[&Envelope],
        deadline: Instant,
    ) -> Vec<Report> {
        let begun = time::Instant::now();
        let mut waiting: Vec<_> =
            envelopes.iter().map(|envelope| self.enqueue(producer, envelope)).collect();
        let mut reports = Vec::with_capacity(envelopes.len());
        // In turn and with one timer for all.
        let reporting = async {
            for (report, envelope) in waiting.iter_mut().zip(envelopes) {
                reports.push(match report {
                    Ok(report) => self.reported(live, begun, envelope, report.await),
                    Err(outcome) => Report::Told(outcome.clone()),
                });
            }
        };
        let ended = async {
            let reporting = pin!(reporting);
            if let Either::Right(((), reporting)) = select(reporting, pin!(live.broken())).await {
                // It reports all that is left, then.
                live.forget().await;
                reporting.await;
            }
        };
        if timeout_at(deadline, ended).await.is_err() {
            live.forget().await;
            let missing = waiting.iter_mut().zip(envelopes).skip(reports.len());
            let rest: Vec<_> = missing
                .map(|(report, envelope)| match report.as_mut().map(FutureExt::now_or_never) {
                    Ok(Some(report)) => self.reported(live, begun, envelope, report),
                    Ok(None) => self.not_sent(live, begun, envelope, Code::MessageTimedOut),
                    Err(outcome) => Report::Told(outcome.clone()),
                })
                .collect();
            reports.extend(rest);
        }
        reports
    }

    fn reported(
        &self,
        live: &Live,
        begun: time::Instant,
        envelope: &Envelope,
        report: <DeliveryFuture as Future>::Output,
    ) -> Report {
        match report {
            Ok(Ok(_)) => Report::Told(Outcome::Delivered),
            Ok(Err((error, _))) => self.not_sent(live, begun, envelope, code(&error)),
            // The producer is gone.
            Err(_) => self.not_sent(live, begun, envelope, Code::BrokerDestroy),
        }
    }

    fn not_sent(
        &self,
        live: &Live,
        begun: time::Instant,
        envelope: &Envelope,
        code: Code,
    ) -> Report {
        if matches!(code, Code::MessageTimedOut | Code::Unknown) {
            live.watcher.trouble().spent = true;
        }
        Report::Told(match code {
            Code::MessageSizeTooLarge
            | Code::MessageBatchTooLarge
            | Code::InvalidRecord
            | Code::InvalidDifferentRecord => return Report::BatchRefused(code),
            Code::BrokerTransportFailure if live.used_by == Use::Trial => {
                return Report::Lost(Lost::UnderWay);
            }
            Code::PurgeQueue | Code::PurgeInflight if live.is_broken() => {
                return Report::Lost(Lost::Unknown);
            }
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
    ) -> Vec<Report> {
        let producer = {
            let mut lonely = live.lonely.lock().unwrap_or_else(PoisonError::into_inner);
            if lonely.is_none() {
                let mut client = self.client(live.used_by);
                client.set("batch.num.messages", "1");
                *lonely = Self::make(&client, &live.watcher).ok();
            }
            lonely.clone()
        };
        let Some(producer) = producer else {
            let none = || Report::Told(Outcome::unavailable("the Kafka client cannot be made"));
            return envelopes.iter().map(|_| none()).collect();
        };
        let reports = self.send_all(live, &producer, envelopes, deadline).await;
        let reports = reports.into_iter().zip(envelopes).map(|(report, envelope)| match report {
            Report::BatchRefused(code) => Report::Told(self.refused(envelope, code)),
            report => report,
        });
        reports.collect()
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
            | Code::RequestTimedOut => Outcome::unavailable(format!("{} ({code:?})", self.lost())),
            code => Outcome::retry(format!("topic {topic:?} refused it ({code:?})")),
        }
    }

    fn lost(&self) -> String {
        format!("the connection to Kafka at {} was lost before the report", self.config.place())
    }

    fn late(&self, live: &Live, begun: time::Instant) -> Outcome {
        let trouble = *live.watcher.trouble();
        let has_failed = trouble.failed.is_some_and(|at| at >= begun);
        if trouble.gone.is_some() || has_failed || live.has_lost_one() {
            return Outcome::unavailable(self.lost());
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
        let limit = self.config.common.publish_timeout + REPORT_DELAY;
        self.apart.publish(self, &self.connection, batch, limit).await
    }
}

impl Shared for Kafka {
    type Live = Live;

    /// A producer that lives. One in another place than the shared one is for a trial.
    async fn live(&self, place: &Connection<Live>) -> Result<Arc<Live>, String> {
        let is_shared = std::ptr::eq(place, &raw const self.connection);
        let used_by = if is_shared { Use::Shared } else { Use::Trial };
        place.live(Live::is_alive, async || self.connect(used_by).await).await
    }

    async fn send(&self, live: &Live, batch: &[&Envelope], deadline: Instant) -> Sent {
        let Some(producer) = live.producer() else {
            let outcomes =
                vec![Some(Outcome::unavailable("the Kafka producer is gone")); batch.len()];
            return Sent { outcomes, broke: None, suspects: Suspects::Unknown, replace: true };
        };
        let mut under_way = UnderWay { live, ended: false };
        let mut reports = self.send_all(live, producer, batch, deadline).await;
        let again: Vec<usize> =
            indices(&reports, |report| matches!(report, Report::BatchRefused(_))).collect();
        if !again.is_empty() {
            let envelopes: Vec<&Envelope> = again.iter().map(|index| batch[*index]).collect();
            let lonely = self.send_lonely(live, &envelopes, deadline).await;
            again.iter().zip(lonely).for_each(|(index, report)| reports[*index] = report);
        }
        under_way.ended = true;
        let named = |report: &Report| matches!(report, Report::Lost(Lost::UnderWay));
        let suspects = Suspects::Named(indices(&reports, named).collect());
        let outcomes = reports.into_iter().zip(batch).map(|(report, envelope)| match report {
            Report::Told(outcome) => Some(outcome),
            Report::BatchRefused(code) => Some(self.refused(envelope, code)),
            Report::Lost(_) => None,
        });
        let outcomes: Vec<Option<Outcome>> = outcomes.collect();
        let broke = outcomes.contains(&None).then(|| self.lost());
        if live.is_fatal() {
            live.forget().await;
        }
        Sent { outcomes, replace: broke.is_some() || !live.is_alive(), broke, suspects }
    }
}

/// Where in a batch such reports are.
fn indices(reports: &[Report], is_meant: impl Fn(&Report) -> bool) -> impl Iterator<Item = usize> {
    reports.iter().enumerate().filter(move |(_, report)| is_meant(report)).map(|(index, _)| index)
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
