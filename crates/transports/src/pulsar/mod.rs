//! Pulsar: a send receipt for each event.
//!
//! ```text
//! pulsar://host:6650,host:6650/tenant/namespace
//! pulsar+ssl://host:6651?token_file=/run/secrets/pulsar.jwt
//! ```
//!
//! | parameter | meaning |
//! | --- | --- |
//! | `name`, `format`, `connect_timeout`, `publish_timeout` | as everywhere |
//! | `token`, `token_env`, `token_file` | a token to log in with |
//! | `max_message` | largest message in bytes with its headers, 5 MiB unless set, as servers have it |
//! | `ca_file` | PEM certificates to trust besides the web's instead of the system's, with `pulsar+ssl://` |
//!
//! | event | message |
//! | --- | --- |
//! | topic | `persistent://tenant/namespace/topic`, or `topic` in the tenant and namespace of the URL, `public/default` unless given |
//! | ordering key | partition key and ordering key |
//! | headers, metadata | properties, CloudEvents attributes under `ce-` |
//! | content type | property `content-type` |
//! | occurred-at | event time |
//!
//! Several hosts are tried in their order. The crate needs `protoc` to compile.
//!
//! # What the server's answer means
//! A receipt is *delivered*. A name that cannot be a topic's, one that is not persistent, a topic that
//! was terminated and a message that is too large are dead. A topic that is missing or closed to us is
//! a retry with that reason, because other topics go on. A server that cannot be reached, refuses the
//! login or takes nothing for now (quota, storage, too many requests) is unavailable.
//!
//! The server would drop repeats by a sequence number of the producer, not by the event's id; so
//! no deduplication is declared.
//!
//! # When things fail
//! The client library would repeat by itself what a broken connection left open. It is not left to: with the first
//! connection that breaks, and after a time-out, the client is thrown away, and all it still held with it. What was
//! under way goes on in a trial.
//!
//! The client library logs whole messages at level `trace`: leave that off.

mod config;
mod connect;

use std::{
    collections::HashMap,
    fmt,
    pin::pin,
    sync::{Arc, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{
    FutureExt,
    future::{Either, select},
};
use posthaste_core::{
    Envelope, Error, ErrorKind, Result,
    transport::{Capabilities, Outcome, Transport},
};
use pulsar::{
    Error as ClientError, ProducerOptions,
    message::proto::ServerError,
    producer::{Message, SendFuture},
    routing_policy::RoutingPolicy,
};
use rustls::crypto::{CryptoProvider, ring};
use tokio::time::{Instant, timeout, timeout_at};

use crate::{
    apart::{Apart, Sent, Shared, Suspects},
    connection::Connection,
};

pub use self::config::PulsarConfig;
use self::connect::{Fault, Live, PROBE, fault_of};

/// What stands before CloudEvents attributes in binary mode.
const PREFIX: &str = "ce-";

/// Most events in one batch.
const MAX_BATCH: usize = 256;

/// What a message carries besides its payload, keys and properties, generously.
const FRAME: usize = 1024;

/// The library's own time-out comes first; a receipt that is later than this is lost.
const RECEIPT_DELAY: Duration = Duration::from_millis(500);

/// Publishes to Pulsar and waits for the send receipt of each event.
pub struct Pulsar {
    config: PulsarConfig,
    connection: Connection<Live>,
    apart: Apart<Live>,
}

/// What became of one message.
enum Receipt {
    Told(Outcome),
    /// No receipt in time.
    Late,
    /// The connection is gone.
    Lost,
}

/// What was sent of a batch, and what became of the first ones.
#[derive(Default)]
struct Progress {
    sends: Vec<Result<SendFuture, Receipt>>,
    receipts: Vec<Receipt>,
}

impl Pulsar {
    /// Checks the configuration; the first publish connects.
    pub fn new(config: PulsarConfig) -> Result<Self> {
        config.check()?;
        if config.tls && CryptoProvider::get_default().is_none() {
            // The client library takes the process's own, and finds none where several are
            // compiled in. Whoever was first is as good.
            let _ = ring::default_provider().install_default();
        }
        let limit = config.common.connect_timeout;
        let (connection, apart) = (Connection::new(limit), Apart::new(limit, false));
        Ok(Self { config, connection, apart })
    }

    fn message(&self, envelope: &Envelope) -> Result<Message, Outcome> {
        let message = self.config.common.format.message(envelope, PREFIX);
        let mut properties: HashMap<String, String> = message
            .headers()
            // The event's content type has this place.
            .filter(|(name, _)| !name.eq_ignore_ascii_case("content-type"))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        properties.insert("content-type".to_owned(), message.content_type.to_owned());
        let key = envelope.event.ordering_key();
        let keys = 2 * key.as_ref().map_or(0, String::len);
        let headers: usize = properties.iter().map(|(n, v)| n.len() + v.len() + 16).sum();
        let size = message.body.len() + headers + keys + FRAME;
        if size > self.config.max_message {
            return Err(Outcome::dead(format!(
                "the message is too large: {} bytes and {headers} of headers, max_message is {}",
                message.body.len(),
                self.config.max_message
            )));
        }
        Ok(Message {
            payload: message.body.to_vec(),
            properties,
            ordering_key: key.as_ref().map(|key| key.as_bytes().to_vec()),
            partition_key: key,
            event_time: u64::try_from(envelope.event.occurred_at().as_millisecond()).ok(),
            ..Message::default()
        })
    }

    /// Sends one event; its receipt is awaited later.
    async fn send_one(
        &self,
        live: &Live,
        envelope: &Envelope,
        deadline: Instant,
    ) -> Result<SendFuture, Receipt> {
        let told = |error| Receipt::Told(Outcome::dead(error));
        let topic = self.config.topic(envelope.topic()).map_err(|fault| {
            told(format!("topic {:?} is no Pulsar topic: {fault}", envelope.topic()))
        })?;
        let message = self.message(envelope).map_err(Receipt::Told)?;
        let slot = {
            let mut slots = live.producers.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(slots.entry(topic.clone()).or_default())
        };
        let mut slot = timeout_at(deadline, slot.lock()).await.map_err(|_| Receipt::Late)?;
        if slot.is_none() {
            let options = ProducerOptions {
                block_queue_if_full: true,
                // A key has its partition; what has none goes round.
                routing_policy: Some(RoutingPolicy::RoundRobin),
                ..ProducerOptions::default()
            };
            let producer = live.client.producer().with_topic(&topic).with_options(options);
            // On its own: the library keeps waiting for a connection that was given up half made.
            let made = tokio::spawn(producer.build());
            match timeout_at(deadline, made).await {
                Ok(Ok(Ok(producer))) => *slot = Some(producer),
                Ok(Ok(Err(error))) => return Err(self.refused(envelope, &error)),
                Ok(Err(_)) => return Err(Receipt::Lost),
                Err(_) => return Err(Receipt::Late),
            }
        }
        let Some(producer) = slot.as_mut() else { return Err(Receipt::Lost) };
        // The library's futures are large.
        let sending = Box::pin(producer.send_non_blocking(message));
        match timeout_at(deadline, sending).await {
            Ok(sent) => sent.map_err(|error| self.refused(envelope, &error)),
            Err(_) => Err(Receipt::Late),
        }
    }

    fn refused(&self, envelope: &Envelope, error: &ClientError) -> Receipt {
        let topic = envelope.topic();
        let kind = match fault_of(error) {
            Fault::Server(kind) => kind,
            Fault::Late => return Receipt::Late,
            Fault::Login => {
                return Receipt::Told(Outcome::unavailable(format!(
                    "Pulsar at {} refused the login: check its token",
                    self.config.place()
                )));
            }
            Fault::Io(_) | Fault::Lost => return Receipt::Lost,
        };
        Receipt::Told(match kind {
            ServerError::InvalidTopicName => {
                Outcome::dead(format!("Pulsar takes no topic {topic:?}"))
            }
            ServerError::TopicTerminatedError => {
                Outcome::dead(format!("topic {topic:?} was terminated"))
            }
            ServerError::TopicNotFound => {
                Outcome::retry(format!("there is no topic {topic:?}, or no such namespace"))
            }
            ServerError::AuthorizationError => {
                Outcome::retry(format!("we may not write to topic {topic:?}"))
            }
            ServerError::IncompatibleSchema => {
                Outcome::retry(format!("topic {topic:?} has a schema and takes no plain bytes"))
            }
            ServerError::MetadataError
            | ServerError::PersistenceError
            | ServerError::ServiceNotReady
            | ServerError::ProducerBlockedQuotaExceededError
            | ServerError::ProducerBlockedQuotaExceededException
            | ServerError::ProducerBusy
            | ServerError::ProducerFenced
            | ServerError::TooManyRequests => Outcome::unavailable(format!(
                "topic {topic:?} takes nothing for now ({})",
                kind.as_str_name()
            )),
            kind => Outcome::retry(format!("topic {topic:?} refused it ({})", kind.as_str_name())),
        })
    }

    fn receipt(&self, envelope: &Envelope, answer: <SendFuture as Future>::Output) -> Receipt {
        match answer {
            Ok(_) => Receipt::Told(Outcome::Delivered),
            Err(error) => self.refused(envelope, &error),
        }
    }

    /// Sends all, then waits for their receipts in turn, until the deadline.
    async fn send_all(
        &self,
        live: &Live,
        batch: &[&Envelope],
        deadline: Instant,
        progress: &mut Progress,
    ) {
        for envelope in batch {
            progress.sends.push(self.send_one(live, envelope, deadline).await);
        }
        for (send, envelope) in progress.sends.iter_mut().zip(batch) {
            let receipt = match send {
                Ok(receipt) => match timeout_at(deadline, receipt).await {
                    Ok(answer) => self.receipt(envelope, answer),
                    Err(_) => Receipt::Late,
                },
                Err(receipt) => std::mem::replace(receipt, Receipt::Lost),
            };
            progress.receipts.push(receipt);
        }
    }

    /// What became of each event when a connection broke.
    fn when_it_broke(&self, batch: &[&Envelope], mut progress: Progress) -> Vec<Receipt> {
        let mut receipts = progress.receipts;
        for (place, envelope) in batch.iter().enumerate().skip(receipts.len()) {
            receipts.push(match progress.sends.get_mut(place) {
                // It may have come before.
                Some(Ok(receipt)) => match receipt.now_or_never() {
                    Some(answer) => self.receipt(envelope, answer),
                    None => Receipt::Lost,
                },
                Some(Err(receipt)) => std::mem::replace(receipt, Receipt::Lost),
                None => Receipt::Lost,
            });
        }
        receipts
    }

    fn lost(&self) -> String {
        format!("the connection to Pulsar at {} was lost before the receipt", self.config.place())
    }
}

#[async_trait]
impl Transport for Pulsar {
    fn name(&self) -> &str {
        &self.config.common.name
    }

    fn capabilities(&self) -> Capabilities {
        let common = &self.config.common;
        // Each host is asked whether it is there before the events are called late.
        let probes = PROBE * self.config.hosts.len() as u32;
        Capabilities {
            max_batch: MAX_BATCH,
            max_message: Some(self.config.max_message),
            longest_publish: Some(
                common.connect_timeout + common.publish_timeout + RECEIPT_DELAY + probes,
            ),
            ..Capabilities::default()
        }
    }

    async fn check(&self) -> Result<String> {
        let unavailable = |error: String| Error::new(ErrorKind::Unavailable, error);
        let live = self.live(&self.connection).await.map_err(unavailable)?;
        let place = self.config.place();
        let namespace = format!("{}/{}", self.config.tenant, self.config.namespace);
        // Asks who serves it; the topic is not made.
        let topic = format!("persistent://{namespace}/posthaste-check");
        let broker = Box::pin(live.client.lookup_topic(topic));
        let error = match timeout(self.config.common.connect_timeout, broker).await {
            Ok(Ok(broker)) => {
                let broker = broker.broker_url;
                return Ok(format!("Pulsar at {place}, namespace {namespace} served by {broker}"));
            }
            Ok(Err(error)) => Some(fault_of(&error)),
            Err(_) => None,
        };
        // What came may be the end of an old connection.
        self.connection.lost(&live);
        Err(unavailable(match error {
            Some(Fault::Server(kind)) => format!(
                "Pulsar at {place} does not tell who serves {namespace} ({})",
                kind.as_str_name()
            ),
            Some(Fault::Login) => format!("Pulsar at {place} refused the login: check its token"),
            Some(_) => format!("no connection to Pulsar at {place}"),
            None => format!("Pulsar at {place} does not answer"),
        }))
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        let limit = self.config.common.publish_timeout + RECEIPT_DELAY;
        self.apart.publish(self, &self.connection, batch, limit).await
    }
}

impl Shared for Pulsar {
    type Live = Live;

    async fn live(&self, place: &Connection<Live>) -> Result<Arc<Live>, String> {
        place.live(|live| !live.is_broken(), async || self.connect().await).await
    }

    async fn send(&self, live: &Live, batch: &[&Envelope], deadline: Instant) -> Sent {
        let mut progress = Progress::default();
        let has_ended = {
            let sending = pin!(self.send_all(live, batch, deadline, &mut progress));
            matches!(select(sending, pin!(live.broken())).await, Either::Left(_))
        };
        let receipts = if has_ended {
            progress.receipts
        } else {
            live.forget();
            self.when_it_broke(batch, progress)
        };
        let late = receipts.iter().any(|receipt| matches!(receipt, Receipt::Late));
        let lost = receipts.iter().any(|receipt| matches!(receipt, Receipt::Lost));
        // After a time-out it is the library that ends a connection.
        let by_the_server = live.is_broken() && !late;
        let there = !late || self.is_there().await;
        let outcomes = receipts.into_iter().map(|receipt| match receipt {
            Receipt::Told(outcome) => Some(outcome),
            Receipt::Late if there => Some(Outcome::timed_out(format!(
                "no acknowledgement within {:?}",
                self.config.common.publish_timeout
            ))),
            Receipt::Lost if by_the_server => None,
            Receipt::Late | Receipt::Lost => Some(Outcome::unavailable(self.lost())),
        });
        let outcomes: Vec<Option<Outcome>> = outcomes.collect();
        let broke = outcomes.contains(&None).then(|| self.lost());
        Sent { outcomes, broke, suspects: Suspects::Unknown, replace: late || lost }
    }
}

impl fmt::Debug for Pulsar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pulsar").field("config", &self.config).finish_non_exhaustive()
    }
}
