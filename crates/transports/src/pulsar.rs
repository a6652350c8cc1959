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
//! The client library repeats by itself, in order, what a broken connection left open. After a time-out
//! or a connection that stays broken the client is thrown away, and all it still held with it.
//!
//! The client library logs whole messages at level `trace`: leave that off.

use std::{
    collections::HashMap,
    fmt, io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use posthaste_core::{
    Envelope, Error, ErrorKind, Result, Secret,
    transport::{Capabilities, Outcome, Transport},
};
use pulsar::{
    Authentication, ConnectionRetryOptions, Error as ClientError, OperationRetryOptions, Producer,
    ProducerOptions, Pulsar as Client, TokioExecutor,
    error::{ConnectionError, ProducerError, ServiceDiscoveryError},
    message::proto::ServerError,
    producer::{Message, SendFuture},
    routing_policy::RoutingPolicy,
};
use rustls::crypto::{CryptoProvider, ring};
use tokio::{
    net::TcpStream,
    sync::Mutex as AsyncMutex,
    time::{Instant, timeout, timeout_at},
};

use crate::{
    connection::Connection,
    tls,
    url::{Common, DestinationUrl},
};

/// What stands before CloudEvents attributes in binary mode.
const PREFIX: &str = "ce-";

/// Most events in one batch.
const MAX_BATCH: usize = 256;

/// Largest message unless set otherwise.
const MAX_MESSAGE: usize = 5 * 1024 * 1024;

/// What a message carries besides its payload, keys and properties, generously.
const FRAME: usize = 1024;

/// The library's own time-out comes first; a receipt that is later than this is lost.
const RECEIPT_DELAY: Duration = Duration::from_millis(500);

/// Whoever does not even accept a connection within this time is gone.
const PROBE: Duration = Duration::from_secs(1);

/// Where Pulsar is, and how to log in.
#[derive(Debug, Clone)]
pub struct PulsarConfig {
    /// What every destination can be told.
    pub common: Common,
    /// Brokers or proxies of one cluster; the port is 6650 unless given, with TLS 6651.
    pub hosts: Vec<(String, Option<u16>)>,
    /// A token to log in with.
    pub token: Option<Secret>,
    /// Whether to use TLS.
    pub tls: bool,
    /// Certificates to trust, besides the web's, instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// The tenant of topics that name none.
    pub tenant: String,
    /// The namespace of topics that name none.
    pub namespace: String,
    /// Largest message, in bytes, with its headers.
    pub max_message: usize,
}

impl PulsarConfig {
    /// One broker, no login, no TLS, `public/default`.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            common: Common::new("pulsar"),
            hosts: vec![(host.into(), Some(port))],
            token: None,
            tls: false,
            ca_file: None,
            tenant: "public".to_owned(),
            namespace: "default".to_owned(),
            max_message: MAX_MESSAGE,
        }
    }

    /// From `pulsar://…` or `pulsar+ssl://…`; the parameters stand at the top of this module.
    pub fn from_url(url: &str) -> Result<Self> {
        let mut url: DestinationUrl = url.parse()?;
        let tls = url.tls_by_scheme("Pulsar", "pulsar", "pulsar+ssl")?;
        if url.user.is_some() || url.password.is_some() {
            return Err(Error::invalid(
                "a Pulsar destination has no user; log in with token, token_env or token_file",
            ));
        }
        let (tenant, namespace) = match url.path.split('/').collect::<Vec<_>>()[..] {
            [""] => ("public", "default"),
            [tenant, namespace] if !tenant.is_empty() && !namespace.is_empty() => {
                (tenant, namespace)
            }
            _ => {
                return Err(Error::invalid(
                    "the path of a Pulsar destination is tenant/namespace, or nothing for public/default",
                ));
            }
        };
        let (tenant, namespace) = (tenant.to_owned(), namespace.to_owned());
        let mut common = url.common()?;
        if common.name == "pulsar+ssl" {
            "pulsar".clone_into(&mut common.name);
        }
        let config = Self {
            common,
            hosts: std::mem::take(&mut url.hosts),
            token: url.secret("token")?.or(url.take("token").map(Secret::new)),
            tls,
            ca_file: url.take("ca_file").map(PathBuf::from),
            tenant,
            namespace,
            max_message: url
                .take_parsed("max_message", "a number of bytes")?
                .unwrap_or(MAX_MESSAGE),
        };
        url.finish()?;
        Ok(config)
    }

    /// One line that says what is wrong.
    fn check(&self) -> Result<()> {
        if self.hosts.is_empty() {
            return Err(Error::invalid("a Pulsar destination needs a host"));
        }
        if self.ca_file.is_some() && !self.tls {
            return Err(Error::invalid("ca_file is for TLS: pulsar+ssl://"));
        }
        if self.max_message <= FRAME {
            return Err(Error::invalid(format!(
                "max_message is {}; it takes more than {FRAME} bytes",
                self.max_message
            )));
        }
        Ok(())
    }

    fn addresses(&self) -> impl Iterator<Item = String> {
        let port = if self.tls { 6651 } else { 6650 };
        self.hosts.iter().map(move |(host, given)| format!("{host}:{}", given.unwrap_or(port)))
    }

    /// The servers as people name them.
    fn place(&self) -> String {
        self.addresses().collect::<Vec<_>>().join(", ")
    }

    /// The topic with its tenant and namespace, or why it is none.
    fn topic(&self, topic: &str) -> Result<String, &'static str> {
        let name = match topic.split_once("://") {
            Some(("persistent", name)) => name,
            Some(("non-persistent", _)) => return Err("it is not persistent"),
            Some(_) => return Err("it begins with something other than persistent://"),
            None => topic,
        };
        if name.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err("it has a blank or a control character");
        }
        let parts: Vec<&str> = name.split('/').collect();
        if parts.iter().any(|part| part.is_empty()) {
            return Err("it has an empty part");
        }
        match parts[..] {
            [_, _, _] => Ok(format!("persistent://{name}")),
            [short] if short == topic => {
                Ok(format!("persistent://{}/{}/{short}", self.tenant, self.namespace))
            }
            _ => Err("it is neither a name alone nor tenant/namespace/name"),
        }
    }
}

/// Publishes to Pulsar and waits for the send receipt of each event.
pub struct Pulsar {
    config: PulsarConfig,
    connection: Connection<Live>,
}

/// A client that is connected, and its producers.
struct Live {
    client: Client<TokioExecutor>,
    /// By topic; each is made when its first event comes.
    producers: Mutex<HashMap<String, Slot>>,
}

type Slot = Arc<AsyncMutex<Option<Producer<TokioExecutor>>>>;

/// What became of one message.
enum Sent {
    Told(Outcome),
    /// No receipt in time.
    Late,
    /// The connection is gone.
    Lost,
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
        let connection = Connection::new(config.common.connect_timeout);
        Ok(Self { config, connection })
    }

    async fn live(&self) -> Result<Arc<Live>, String> {
        self.connection.get(async || self.connect().await).await
    }

    async fn connect(&self) -> Result<Live, String> {
        let scheme = if self.config.tls { "pulsar+ssl" } else { "pulsar" };
        let mut authorities = None;
        if self.config.tls {
            authorities = Some(tls::trusted_pem(self.config.ca_file.as_deref())?);
        }
        // So that one that does not answer leaves time for the others.
        let share = self.config.common.connect_timeout / self.config.hosts.len() as u32;
        let connections = ConnectionRetryOptions {
            max_retries: 0, // `Connection` decides when to try again
            connection_timeout: share,
            ..ConnectionRetryOptions::default()
        };
        let operations = OperationRetryOptions {
            operation_timeout: self.config.common.publish_timeout,
            retry_delay: Duration::from_millis(100),
            max_retries: Some(0),
        };
        let mut error = String::new();
        for address in self.config.addresses() {
            let mut builder = Client::builder(format!("{scheme}://{address}"), TokioExecutor)
                .with_connection_retry_options(connections.clone())
                .with_operation_retry_options(operations.clone());
            if let Some(token) = &self.config.token {
                let data = token.expose().as_bytes().to_vec();
                builder = builder.with_auth(Authentication { name: "token".to_owned(), data });
            }
            if let Some(authorities) = &authorities {
                builder = builder.with_certificate_chain(authorities.clone());
            }
            match timeout(share, builder.build()).await {
                Ok(Ok(client)) => return Ok(Live { client, producers: Mutex::default() }),
                Ok(Err(refusal)) => error = self.cannot_connect(&address, &refusal),
                Err(_) => error = format!("Pulsar at {address} does not answer"),
            }
        }
        Err(error)
    }

    fn cannot_connect(&self, address: &str, error: &ClientError) -> String {
        match fault_of(error) {
            Fault::Login => {
                format!("Pulsar at {address} refused the login: check its token")
            }
            Fault::Late => format!("Pulsar at {address} does not answer"),
            // All that the library tells of a handshake that failed, whatever the server said.
            Fault::Io(io::ErrorKind::Other) if self.config.tls => format!(
                "no session with Pulsar at {address}: it refused the token, or its certificate is not trusted"
            ),
            Fault::Io(io::ErrorKind::Other) => {
                format!("no session with Pulsar at {address}: it refused the token, or wants one")
            }
            Fault::Io(kind) => format!("no connection to Pulsar at {address}: {kind}"),
            _ => format!("no connection to Pulsar at {address}: it closed the connection"),
        }
    }

    fn message(&self, envelope: &Envelope) -> Result<Message, Outcome> {
        let message = self.config.common.format.message(envelope, PREFIX);
        let mut properties: HashMap<String, String> = message
            .headers
            .into_iter()
            // The event's content type has this place.
            .filter(|(name, _)| !name.eq_ignore_ascii_case("content-type"))
            .collect();
        properties.insert("content-type".to_owned(), message.content_type);
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
    async fn send(
        &self,
        live: &Live,
        envelope: &Envelope,
        deadline: Instant,
    ) -> Result<SendFuture, Sent> {
        let told = |error| Sent::Told(Outcome::dead(error));
        let topic = self.config.topic(envelope.topic()).map_err(|fault| {
            told(format!("topic {:?} is no Pulsar topic: {fault}", envelope.topic()))
        })?;
        let message = self.message(envelope).map_err(Sent::Told)?;
        let slot = {
            let mut slots = live.producers.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(slots.entry(topic.clone()).or_default())
        };
        let mut slot = timeout_at(deadline, slot.lock()).await.map_err(|_| Sent::Late)?;
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
                Ok(Err(_)) => return Err(Sent::Lost),
                Err(_) => return Err(Sent::Late),
            }
        }
        let Some(producer) = slot.as_mut() else { return Err(Sent::Lost) };
        // The library's futures are large.
        let sending = Box::pin(producer.send_non_blocking(message));
        match timeout_at(deadline, sending).await {
            Ok(sent) => sent.map_err(|error| self.refused(envelope, &error)),
            Err(_) => Err(Sent::Late),
        }
    }

    fn refused(&self, envelope: &Envelope, error: &ClientError) -> Sent {
        let topic = envelope.topic();
        let kind = match fault_of(error) {
            Fault::Server(kind) => kind,
            Fault::Late => return Sent::Late,
            Fault::Login => {
                return Sent::Told(Outcome::unavailable(format!(
                    "Pulsar at {} refused the login: check its token",
                    self.config.place()
                )));
            }
            Fault::Io(_) | Fault::Lost => return Sent::Lost,
        };
        Sent::Told(match kind {
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

    fn lost(&self) -> Outcome {
        Outcome::unavailable(format!(
            "the connection to Pulsar at {} was lost before the receipt",
            self.config.place()
        ))
    }

    /// Whether anybody is there to connect to.
    async fn is_there(&self) -> bool {
        for address in self.config.addresses() {
            if matches!(timeout(PROBE, TcpStream::connect(address)).await, Ok(Ok(_))) {
                return true;
            }
        }
        false
    }
}

/// What is wrong, without a word of the server's, which may quote anything.
enum Fault {
    Server(ServerError),
    Login,
    Late,
    Io(io::ErrorKind),
    Lost,
}

fn fault_of(error: &ClientError) -> Fault {
    let connection = match error {
        ClientError::Connection(error)
        | ClientError::Producer(ProducerError::Connection(error))
        | ClientError::ServiceDiscovery(ServiceDiscoveryError::Connection(error)) => error,
        ClientError::ServiceDiscovery(ServiceDiscoveryError::Query(kind, _)) => {
            return server_fault(*kind);
        }
        ClientError::Authentication(_) => return Fault::Login,
        ClientError::Producer(ProducerError::Fenced) => {
            return Fault::Server(ServerError::ProducerFenced);
        }
        _ => return Fault::Lost,
    };
    match connection {
        ConnectionError::PulsarError(kind, _) => server_fault(*kind),
        ConnectionError::Authentication(_) => Fault::Login,
        ConnectionError::Io(error) => match error.kind() {
            io::ErrorKind::TimedOut => Fault::Late,
            kind => Fault::Io(kind),
        },
        _ => Fault::Lost,
    }
}

fn server_fault(kind: Option<ServerError>) -> Fault {
    match kind {
        Some(ServerError::AuthenticationError) => Fault::Login,
        kind => Fault::Server(kind.unwrap_or(ServerError::UnknownError)),
    }
}

#[async_trait]
impl Transport for Pulsar {
    fn name(&self) -> &str {
        &self.config.common.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_batch: MAX_BATCH,
            max_message: Some(self.config.max_message),
            ..Capabilities::default()
        }
    }

    async fn check(&self) -> Result<String> {
        let unavailable = |error: String| Error::new(ErrorKind::Unavailable, error);
        let live = self.live().await.map_err(unavailable)?;
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
        self.connection.lost(&live).await;
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
        if batch.is_empty() {
            return Vec::new();
        }
        let live = match self.live().await {
            Ok(live) => live,
            Err(error) => return vec![Outcome::unavailable(error); batch.len()],
        };
        let deadline = Instant::now() + self.config.common.publish_timeout + RECEIPT_DELAY;
        let mut sends = Vec::with_capacity(batch.len());
        for envelope in batch {
            sends.push(self.send(&live, envelope, deadline).await);
        }
        let mut results = Vec::with_capacity(batch.len());
        for (send, envelope) in sends.into_iter().zip(batch) {
            results.push(match send {
                Ok(receipt) => match timeout_at(deadline, receipt).await {
                    Ok(Ok(_)) => Sent::Told(Outcome::Delivered),
                    Ok(Err(error)) => self.refused(envelope, &error),
                    Err(_) => Sent::Late,
                },
                Err(sent) => sent,
            });
        }
        let late = results.iter().any(|sent| matches!(sent, Sent::Late));
        if late || results.iter().any(|sent| matches!(sent, Sent::Lost)) {
            self.connection.lost(&live).await;
        }
        let there = !late || self.is_there().await;
        let outcomes = results.into_iter().map(|sent| match sent {
            Sent::Told(outcome) => outcome,
            Sent::Late if there => Outcome::retry(format!(
                "no acknowledgement within {:?}",
                self.config.common.publish_timeout
            )),
            Sent::Late | Sent::Lost => self.lost(),
        });
        outcomes.collect()
    }
}

impl fmt::Debug for Pulsar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pulsar").field("config", &self.config).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    #[test]
    fn a_url_says_it_all() {
        let config = PulsarConfig::from_url(
            "pulsar+ssl://a,b:7000/shop/orders?token=hush&ca_file=/ca.pem&max_message=5000",
        )
        .unwrap();
        assert_eq!(config.place(), "a:6651, b:7000");
        assert_eq!((&*config.tenant, &*config.namespace), ("shop", "orders"));
        assert_eq!(config.common.name, "pulsar");
        let transport = Pulsar::new(config).unwrap();
        assert_eq!(transport.capabilities().max_message, Some(5000));
        assert!(!format!("{transport:?}").contains("hush"), "{transport:?}");
    }

    #[test]
    fn a_wrong_configuration_is_refused_in_one_line() {
        for (url, says) in [
            ("kafka://host", "pulsar://"),
            ("pulsar://me:hush@host", "token"),
            ("pulsar://host/tenant", "tenant/namespace"),
            ("pulsar://host/a/b/c", "tenant/namespace"),
            ("pulsar://host?ca_file=/ca.pem", "pulsar+ssl://"),
            ("pulsar://host?max_message=10", "max_message"),
            ("pulsar://host?batching=true", "batching"),
        ] {
            let error = PulsarConfig::from_url(url).and_then(Pulsar::new).unwrap_err().to_string();
            assert!(error.contains(says), "{url}: {error}");
            assert!(!error.contains("hush") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_short_topic_lies_in_the_tenant_and_namespace_of_the_url() {
        let config = PulsarConfig::from_url("pulsar://host/shop/orders").unwrap();
        for (topic, full) in [
            ("placed", "persistent://shop/orders/placed"),
            ("other/space/placed", "persistent://other/space/placed"),
            ("persistent://other/space/placed", "persistent://other/space/placed"),
        ] {
            assert_eq!(config.topic(topic).as_deref(), Ok(full));
        }
        for topic in [
            "",
            "a b",
            "a/b",
            "a/b/c/d",
            "a//c",
            "persistent://a",
            "non-persistent://a/b/c",
            "x://y",
        ] {
            assert!(config.topic(topic).is_err(), "{topic}");
        }
    }

    /// A server that greets every client with this error. The server of the other tests knows no
    /// tokens.
    async fn refusing(error: ServerError) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                // BaseCommand: its type is ERROR (14), and so is the field that holds it: request,
                // error, message.
                let inner = [0x08, 0x01, 0x10, error as u8, 0x1a, 0x02, b'n', b'o'];
                let mut command = vec![0x08, 0x0e, 0x72, inner.len() as u8];
                command.extend(inner);
                let size = command.len() as u32;
                let mut frame = Vec::from((size + 4).to_be_bytes());
                frame.extend(size.to_be_bytes());
                frame.extend(command);
                let mut greeting = [0; 4096];
                let _ = stream.read(&mut greeting).await;
                let _ = stream.write_all(&frame).await;
            }
        });
        port
    }

    #[tokio::test]
    async fn a_refused_token_is_unavailable_and_not_shown() {
        let port = refusing(ServerError::AuthenticationError).await;
        let url = format!("pulsar://127.0.0.1:{port}?token=hush&connect_timeout=2s");
        let transport = Pulsar::new(PulsarConfig::from_url(&url).unwrap()).unwrap();
        let error = transport.check().await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        assert!(error.to_string().contains("refused the token"), "{error}");
        assert!(!error.to_string().contains("hush"), "{error}");
    }
}
