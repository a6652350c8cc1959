//! MQTT 5: each event waits for the acknowledgement of its very own message.
//!
//! ```text
//! mqtt://user:password@host:1883,host:1883?qos=1&message_expiry=2m
//! ```
//!
//! | parameter | meaning |
//! | --- | --- |
//! | `name`, `format`, `connect_timeout`, `publish_timeout` | as everywhere |
//! | `password_env`, `password_file` | where the password is |
//! | `qos` | 1 (default) or 2 |
//! | `retain` | `true` makes the server keep the last message of each topic |
//! | `message_expiry` | how long the server keeps a message for a client that is away |
//! | `require_subscriber` | `true` makes an event that nobody subscribes to a retry |
//! | `client_id` | a fixed one; two relays with the same put each other out. Else a random one |
//! | `ca_file` | PEM certificates to trust instead of the system's, with `mqtts://` |
//!
//! Headers travel as user properties, the media type in its own property. Several hosts are tried in
//! their order.
//!
//! # What the server's answer means
//! PUBACK (QoS 1) or PUBCOMP (QoS 2) is *delivered*, also when nobody subscribes: that is how MQTT
//! works, see `require_subscriber`. A topic that is closed to us is a retry. A server whose quota is used
//! up is unavailable. A topic that is none to publish to, as one with wildcards, and a message that is
//! larger than the server says it takes are dead. One over which the server ends the connection is found
//! and tried alone: it is a retry. QoS 2 does not outlive a connection: repeats are possible
//! with both.

mod config;
mod connect;

use std::{pin::pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::future::{Either, select};
use posthaste_core::{
    Envelope, Error, ErrorKind, Result,
    transport::{Capabilities, Outcome, Transport},
};
use rumqttc::{
    PubAckReason, PubCompReason, PubRecReason, Publish, PublishNoticeError, PublishOptions,
    PublishProperties, PublishResult, QoS,
};
use tokio::time::{Instant, timeout_at};

use crate::{
    apart::{Apart, Sent, Shared, Suspects},
    connection::Connection,
    tls,
};

pub use self::config::MqttConfig;
use self::connect::{End, Link};

/// CloudEvents attributes have no prefix in MQTT.
const PREFIX: &str = "";

/// Messages of one batch. How many are under way is the server's to say (receive maximum).
const MAX_BATCH: usize = 256;

/// The longest text in a packet, in bytes.
const LONGEST_TEXT: usize = 65_535;

/// Publishes to an MQTT 5 server.
pub struct Mqtt {
    config: MqttConfig,
    qos: QoS,
    tls: Option<Arc<rustls::ClientConfig>>,
    connection: Connection<Link>,
    apart: Apart<Link>,
}

/// An event, ready for the wire.
struct Outgoing {
    // Its place in the batch.
    place: usize,
    topic: String,
    properties: PublishProperties,
    body: Bytes,
}

/// Why a batch could not be finished.
enum Broken {
    /// The connection has ended.
    Ended(End),
    /// Time is up.
    Late,
}

impl Mqtt {
    /// Checks the configuration. The first publish connects.
    pub fn new(config: MqttConfig) -> Result<Self> {
        let qos = match config.qos {
            1 => QoS::AtLeastOnce,
            2 => QoS::ExactlyOnce,
            other => {
                return Err(Error::invalid(format!(
                    "qos is {other}; it takes 1 or 2, for 0 is never acknowledged"
                )));
            }
        };
        if config.hosts.is_empty() {
            return Err(Error::invalid("MQTT needs a host"));
        }
        if config.ca_file.is_some() && !config.tls {
            return Err(Error::invalid("a ca_file needs mqtts://"));
        }
        if config.message_expiry.is_some_and(|expiry| expiry < Duration::from_secs(1)) {
            return Err(Error::invalid("message_expiry is shorter than MQTT's shortest, 1s"));
        }
        let tls = if config.tls {
            let trusted = tls::client_config(config.ca_file.as_deref()).map_err(Error::invalid)?;
            Some(Arc::new(trusted))
        } else {
            None
        };
        let limit = config.common.connect_timeout;
        let connection = Connection::new(limit);
        // The server ends a connection when another one comes with its client id.
        let apart = Apart::new(limit, config.client_id.is_some());
        Ok(Self { config, qos, tls, connection, apart })
    }

    /// Publishes these events. What has an answer gets its outcome; the others are left, and the
    /// reason is given back.
    async fn hand_over(
        &self,
        link: &Link,
        events: &[Outgoing],
        deadline: Instant,
        outcomes: &mut [Option<Outcome>],
    ) -> Result<(), Broken> {
        let mut broken = None;
        let mut notices = Vec::with_capacity(events.len());
        for event in events {
            let options = PublishOptions::new(self.qos)
                .retain(self.config.retain)
                .properties(event.properties.clone());
            let queued =
                link.client.publish_tracked(event.topic.clone(), event.body.clone(), options);
            match timeout_at(deadline, queued).await {
                Ok(Ok(notice)) => notices.push((event, notice)),
                Ok(Err(_)) => broken = Some(Broken::Ended(link.end().await)),
                Err(_) => broken = Some(Broken::Late),
            }
            if broken.is_some() {
                break;
            }
        }
        for (event, notice) in notices {
            // Of what still stood in line when the connection ended the client says nothing.
            let answer = async {
                match select(pin!(notice.wait_async()), pin!(link.end())).await {
                    Either::Left((answer, _)) => answer,
                    Either::Right(_) => Err(PublishNoticeError::Recv),
                }
            };
            match timeout_at(deadline, answer).await {
                Ok(Ok(result)) => outcomes[event.place] = Some(self.outcome_of(&result)),
                Ok(Err(PublishNoticeError::RetainNotSupported)) => {
                    let said = "the server keeps no retained messages";
                    outcomes[event.place] = Some(Outcome::unavailable(said));
                }
                Ok(Err(_)) => broken = Some(Broken::Ended(link.end().await)),
                Err(_) => broken = broken.or(Some(Broken::Late)),
            }
        }
        broken.map_or(Ok(()), Err)
    }

    /// What an acknowledgement means.
    fn outcome_of(&self, result: &PublishResult) -> Outcome {
        // The codes of PUBACK and PUBREC are the same.
        let reason = match result {
            PublishResult::Qos1(ack) => ack.reason,
            PublishResult::Qos2PubRecRejected(rejected) => match rejected.reason {
                PubRecReason::Success => PubAckReason::Success,
                PubRecReason::NoMatchingSubscribers => PubAckReason::NoMatchingSubscribers,
                PubRecReason::UnspecifiedError => PubAckReason::UnspecifiedError,
                PubRecReason::ImplementationSpecificError => {
                    PubAckReason::ImplementationSpecificError
                }
                PubRecReason::NotAuthorized => PubAckReason::NotAuthorized,
                PubRecReason::TopicNameInvalid => PubAckReason::TopicNameInvalid,
                PubRecReason::PacketIdentifierInUse => PubAckReason::PacketIdentifierInUse,
                PubRecReason::QuotaExceeded => PubAckReason::QuotaExceeded,
                PubRecReason::PayloadFormatInvalid => PubAckReason::PayloadFormatInvalid,
            },
            PublishResult::Qos2Completed(done) if done.reason == PubCompReason::Success => {
                PubAckReason::Success
            }
            PublishResult::Qos2Completed(_) | PublishResult::Qos0Flushed => {
                return Outcome::retry("the server has lost track of it");
            }
        };
        match reason {
            PubAckReason::NoMatchingSubscribers if self.config.require_subscriber => {
                Outcome::retry("nobody subscribes to its topic")
            }
            PubAckReason::Success | PubAckReason::NoMatchingSubscribers => Outcome::Delivered,
            // Others may be open to us.
            PubAckReason::NotAuthorized => {
                Outcome::retry("not authorized to publish to this topic")
            }
            PubAckReason::QuotaExceeded => Outcome::unavailable("the server's quota is used up"),
            PubAckReason::TopicNameInvalid => Outcome::dead("the server does not take its topic"),
            PubAckReason::PayloadFormatInvalid => {
                Outcome::dead("the server does not take its payload's format")
            }
            PubAckReason::UnspecifiedError
            | PubAckReason::ImplementationSpecificError
            | PubAckReason::PacketIdentifierInUse => {
                Outcome::retry(format!("the server refused it (code {})", reason as u8))
            }
        }
    }

    /// The event as MQTT takes it, or why it cannot be.
    fn outgoing(
        &self,
        place: usize,
        envelope: &Envelope,
        largest: usize,
    ) -> Result<Outgoing, String> {
        let topic = envelope.topic();
        if topic.is_empty() || topic.contains(['+', '#', '\0']) {
            return Err("its topic is empty or has wildcards: none to publish to".to_owned());
        }
        let message = self.config.common.format.message(envelope, PREFIX);
        let headers: Vec<(String, String)> =
            message.headers().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let texts = headers.iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]);
        if texts.chain([message.content_type]).any(|text| text.len() > LONGEST_TEXT) {
            return Err(format!("a header is too large: MQTT takes {LONGEST_TEXT} bytes"));
        }
        let properties = PublishProperties {
            content_type: Some(message.content_type.to_owned()),
            user_properties: headers,
            message_expiry_interval: self
                .config
                .message_expiry
                .map(|expiry| u32::try_from(expiry.as_secs()).unwrap_or(u32::MAX)),
            ..PublishProperties::default()
        };
        // A packet that cannot be written would end the connection, and so does one that is larger
        // than the server takes.
        let mut without_body =
            Publish::new(topic, self.qos, Bytes::new(), Some(properties.clone()));
        without_body.pkid = 1;
        let written = without_body.write(&mut BytesMut::new()).map_err(|_| {
            "its topic or a header has characters that MQTT cannot carry".to_owned()
        })?;
        // With its body the packet's length may take three bytes more.
        let size = written + 3 + message.body.len();
        if size > largest {
            return Err(format!(
                "it is too large: a packet of about {size} bytes, the server takes {largest}"
            ));
        }
        Ok(Outgoing { place, topic: topic.to_owned(), properties, body: message.body })
    }
}

#[async_trait]
impl Transport for Mqtt {
    fn name(&self) -> &str {
        &self.config.common.name
    }

    fn capabilities(&self) -> Capabilities {
        let common = &self.config.common;
        Capabilities {
            max_batch: MAX_BATCH,
            longest_publish: Some(common.connect_timeout + common.publish_timeout),
            ..Capabilities::default()
        }
    }

    async fn check(&self) -> Result<String> {
        let unavailable = |error| Error::new(ErrorKind::Unavailable, error);
        let link = self.live(&self.connection).await.map_err(unavailable)?;
        Ok(format!(
            "MQTT 5 server at {}, takes packets of {} bytes and {} messages at a time",
            link.at, link.largest, link.receive_maximum
        ))
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        let limit = self.config.common.publish_timeout;
        self.apart.publish(self, &self.connection, batch, limit).await
    }
}

impl Shared for Mqtt {
    type Live = Link;

    /// A connection that lives, as far as one can know.
    async fn live(&self, place: &Connection<Link>) -> Result<Arc<Link>, String> {
        place.live(Link::is_alive, async || self.connect().await).await
    }

    async fn send(&self, link: &Link, batch: &[&Envelope], deadline: Instant) -> Sent {
        let mut outcomes = vec![None; batch.len()];
        let mut events = Vec::with_capacity(batch.len());
        for (place, envelope) in batch.iter().enumerate() {
            match self.outgoing(place, envelope, link.largest) {
                Ok(event) => events.push(event),
                Err(error) => outcomes[place] = Some(Outcome::dead(error)),
            }
        }
        let left = match self.hand_over(link, &events, deadline, &mut outcomes).await {
            Ok(()) => {
                return Sent { outcomes, broke: None, suspects: Suspects::Unknown, replace: false };
            }
            Err(Broken::Ended(End { why, servers_own: true })) => Outcome::unavailable(why),
            // One message can end the connection of all.
            Err(Broken::Ended(End { why, .. })) => {
                let suspects = Suspects::First;
                return Sent { outcomes, broke: Some(why), suspects, replace: true };
            }
            Err(Broken::Late) => {
                let limit = self.config.common.publish_timeout;
                Outcome::timed_out(format!("no acknowledgement within {limit:?}"))
            }
        };
        let outcomes =
            outcomes.into_iter().map(|outcome| outcome.or_else(|| Some(left.clone()))).collect();
        // Also when time was up: what the server never acknowledged takes up its quota.
        Sent { outcomes, broke: None, suspects: Suspects::Unknown, replace: true }
    }
}
