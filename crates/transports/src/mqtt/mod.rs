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
//! works, see `require_subscriber`. A server that does not authorize us, or whose quota is used up,
//! is unavailable. A topic that is none to publish to, as one with wildcards, and a message that is
//! larger than the server takes are dead. QoS 2 does not outlive a connection: repeats are possible
//! with both.

mod config;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use posthaste_core::{
    Envelope, Error, ErrorKind, Result,
    transport::{Capabilities, Outcome, Transport},
};
use rumqttc::{
    AsyncClient, ConnAck, ConnectReturnCode, ConnectionError, DisconnectReasonCode, Event,
    EventLoop, MqttOptions, Packet, PubAckReason, PubCompReason, PubRecReason, Publish,
    PublishNoticeError, PublishOptions, PublishProperties, PublishResult, QoS, StateError,
    TlsConfiguration,
};
use tokio::{
    task::AbortHandle,
    time::{Instant, timeout_at},
};

use crate::{
    connection::{Connection, connect_any},
    tls,
    url::Common,
};

pub use self::config::MqttConfig;

/// CloudEvents attributes have no prefix in MQTT.
const PREFIX: &str = "";

/// Messages of one batch. How many are under way is the server's to say (receive maximum).
const MAX_BATCH: usize = 256;

/// In seconds: a peer that vanished is noticed after twice that.
const KEEP_ALIVE: u16 = 10;

/// What MQTT's own length field can tell.
const LARGEST_PACKET: usize = 268_435_455;

/// The longest text in a packet, in bytes.
const LONGEST_TEXT: usize = 65_535;

/// Publishes to an MQTT 5 server.
pub struct Mqtt {
    config: MqttConfig,
    qos: QoS,
    client_id: String,
    tls: Option<Arc<rustls::ClientConfig>>,
    connection: Connection<Link>,
}

/// A live connection. It does not mend itself: once it ends, the next publish makes another one.
struct Link {
    client: AsyncClient,
    at: String,
    largest: usize,
    receive_maximum: u16,
    ended: Ended,
    // Reads and writes for the client; ended when the link is dropped.
    driver: AbortHandle,
}

/// Why a connection ended, once it has.
type Ended = Arc<OnceLock<End>>;

#[derive(Debug, Clone)]
struct End {
    why: String,
    /// Whether a message of ours may be the reason.
    blames_message: bool,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
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
        let client_id = config
            .client_id
            .clone()
            .unwrap_or_else(|| format!("posthaste-{:012x}", fastrand::u64(..1 << 48)));
        let connection = Connection::new(config.common.connect_timeout);
        Ok(Self { config, qos, client_id, tls, connection })
    }

    /// A connection that lives, as far as one can know.
    async fn link(&self) -> Result<Arc<Link>, String> {
        let alive = |link: &Link| link.ended.get().is_none();
        self.connection.live(alive, async || self.connect().await).await
    }

    async fn connect(&self) -> Result<Link, String> {
        let Common { connect_timeout, .. } = self.config.common;
        let connect_to = |host, port| self.connect_to(host, port);
        connect_any(&self.config.hosts, connect_timeout, connect_to).await
    }

    async fn connect_to(&self, host: &str, port: u16) -> Result<Link, String> {
        let name = host.trim_matches(['[', ']']);
        let mut options = MqttOptions::new(self.client_id.clone(), (name, port));
        options
            .set_clean_start(true)
            .set_keep_alive(KEEP_ALIVE)
            .set_connect_timeout(self.config.common.connect_timeout);
        match (&self.config.user, &self.config.password) {
            (Some(user), Some(password)) => {
                options.set_credentials(user.clone(), password.expose().to_owned());
            }
            (Some(user), None) => {
                options.set_username(user.clone());
            }
            (None, Some(password)) => {
                options.set_password(password.expose().to_owned());
            }
            (None, None) => {}
        }
        if let Some(tls) = &self.tls {
            let tls = TlsConfiguration::Rustls(Arc::clone(tls));
            options.set_transport(rumqttc::Transport::tls_with_config(tls));
        }
        let (client, mut driver) = AsyncClient::builder(options)
            .capacity(MAX_BATCH)
            .try_build()
            .map_err(|_| "the client cannot be set up".to_owned())?;
        let found = loop {
            match driver.poll().await {
                Ok(Event::Incoming(Packet::ConnAck(found))) => break found,
                Ok(_) => {}
                Err(error) => return Err(end_of(&error).why),
            }
        };
        self.accept(&found)?;
        let properties = found.properties.as_ref();
        let ended = Ended::default();
        let driver = tokio::spawn(drive(driver, Arc::clone(&ended))).abort_handle();
        Ok(Link {
            client,
            at: format!("{host}:{port}"),
            largest: properties
                .and_then(|properties| properties.max_packet_size)
                .map_or(LARGEST_PACKET, |size| LARGEST_PACKET.min(size as usize)),
            receive_maximum: properties
                .and_then(|properties| properties.receive_max)
                .unwrap_or(u16::MAX),
            ended,
            driver,
        })
    }

    /// Whether the server can do what was configured.
    fn accept(&self, found: &ConnAck) -> Result<(), String> {
        let Some(properties) = &found.properties else {
            return Ok(());
        };
        if let Some(qos) = properties.max_qos
            && qos < self.config.qos
        {
            return Err(format!("the server takes at most QoS {qos}"));
        }
        if self.config.retain && properties.retain_available == Some(0) {
            return Err("the server keeps no retained messages".to_owned());
        }
        Ok(())
    }

    /// Publishes these events. What has an answer gets its outcome; the others are left, and the
    /// reason is given back.
    async fn send(
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
            match timeout_at(deadline, notice.wait_async()).await {
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
            PubAckReason::NotAuthorized => {
                Outcome::unavailable("not authorized to publish to this topic")
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

    /// What is left without an answer, and why.
    fn unanswered(&self, broken: &Broken) -> Outcome {
        match broken {
            Broken::Ended(end) if end.blames_message => Outcome::retry(&end.why),
            Broken::Ended(end) => Outcome::unavailable(&end.why),
            Broken::Late => {
                let limit = self.config.common.publish_timeout;
                Outcome::retry(format!("no acknowledgement within {limit:?}"))
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
        let mut headers: Vec<(String, String)> = Vec::new();
        for (name, value) in message.headers() {
            // Without a prefix the event's own may have the name of an attribute, which replaces it.
            headers.retain(|(known, _)| known != name);
            headers.push((name.to_owned(), value.to_owned()));
        }
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

impl Link {
    /// Why it ended. The client notices a moment before the reason is written down.
    async fn end(&self) -> End {
        for _ in 0..100 {
            if let Some(end) = self.ended.get() {
                return end.clone();
            }
            tokio::task::yield_now().await;
        }
        End { why: "the connection is lost".to_owned(), blames_message: false }
    }
}

/// Reads and writes until the connection ends, and says why it did.
async fn drive(mut driver: EventLoop, ended: Ended) {
    loop {
        if let Err(error) = driver.poll().await {
            // Before the driver goes, and with it whatever waits for an acknowledgement.
            let _ = ended.set(end_of(&error));
            return;
        }
    }
}

/// What happened to a connection, in words of our own: the server's may quote what it was sent.
fn end_of(error: &ConnectionError) -> End {
    let mut blames_message = false;
    let why = match error {
        ConnectionError::ConnectionRefused(code)
        | ConnectionError::MqttState(StateError::ConnFail { reason: code }) => match code {
            ConnectReturnCode::BadUserNamePassword | ConnectReturnCode::NotAuthorized => {
                "authentication failed: the server does not know this user or password".to_owned()
            }
            code => format!("the server refused the connection ({code:?})"),
        },
        ConnectionError::MqttState(StateError::ServerDisconnect { reason_code, .. }) => {
            blames_message = matches!(
                reason_code,
                DisconnectReasonCode::MalformedPacket
                    | DisconnectReasonCode::ProtocolError
                    | DisconnectReasonCode::ImplementationSpecificError
                    | DisconnectReasonCode::TopicNameInvalid
                    | DisconnectReasonCode::PacketTooLarge
                    | DisconnectReasonCode::PayloadFormatInvalid
            );
            format!("the server ended the connection ({reason_code:?})")
        }
        ConnectionError::MqttState(StateError::OutgoingPacketTooLarge { max, .. }) => {
            blames_message = true;
            format!("a packet was too large, the server takes {max} bytes")
        }
        ConnectionError::MqttState(StateError::Io(error)) | ConnectionError::Io(error) => {
            format!("no connection: {}", error.kind())
        }
        ConnectionError::MqttState(StateError::AwaitPingResp) => "the server is silent".to_owned(),
        ConnectionError::Tls(_) => {
            "no connection: TLS failed or the certificate is no good".to_owned()
        }
        ConnectionError::Timeout(_) => "no connection in time".to_owned(),
        _ => "the connection is lost".to_owned(),
    };
    End { why, blames_message }
}

#[async_trait]
impl Transport for Mqtt {
    fn name(&self) -> &str {
        &self.config.common.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { max_batch: MAX_BATCH, ..Capabilities::default() }
    }

    async fn check(&self) -> Result<String> {
        let link = self.link().await.map_err(|error| Error::new(ErrorKind::Unavailable, error))?;
        Ok(format!(
            "MQTT 5 server at {}, takes packets of {} bytes and {} messages at a time",
            link.at, link.largest, link.receive_maximum
        ))
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        let mut link = match self.link().await {
            Ok(link) => link,
            Err(error) => return vec![Outcome::unavailable(error); batch.len()],
        };
        let deadline = Instant::now() + self.config.common.publish_timeout;
        let mut outcomes = vec![None; batch.len()];
        let mut events = Vec::with_capacity(batch.len());
        for (place, envelope) in batch.iter().enumerate() {
            match self.outgoing(place, envelope, link.largest) {
                Ok(event) => events.push(event),
                Err(error) => outcomes[place] = Some(Outcome::dead(error)),
            }
        }
        let mut broken = self.send(&link, &events, deadline, &mut outcomes).await;
        // One message can end the connection of all: each of the others tries alone.
        if let Err(Broken::Ended(End { blames_message: true, .. })) = broken
            && events.len() > 1
        {
            events.retain(|event| outcomes[event.place].is_none());
            for event in events.chunks(1) {
                self.connection.lost(&link).await;
                link = match self.link().await {
                    Ok(link) => link,
                    Err(why) => {
                        broken = Err(Broken::Ended(End { why, blames_message: false }));
                        break;
                    }
                };
                broken = self.send(&link, event, deadline, &mut outcomes).await;
                match &broken {
                    Ok(()) => {}
                    Err(end @ Broken::Ended(End { blames_message: true, .. })) => {
                        outcomes[event[0].place] = Some(self.unanswered(end));
                    }
                    Err(_) => break,
                }
            }
        }
        // Also when time was up: what the server never acknowledged takes up its quota.
        if broken.is_err() {
            self.connection.lost(&link).await;
        }
        let left = broken.err().map(|broken| self.unanswered(&broken));
        outcomes
            .into_iter()
            .map(|outcome| outcome.or_else(|| left.clone()))
            .map(|outcome| outcome.unwrap_or_else(|| Outcome::retry("no acknowledgement")))
            .collect()
    }
}
