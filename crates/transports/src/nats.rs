//! NATS with JetStream: a stream's acknowledgement for each event.
//!
//! ```text
//! nats://user:password@host:4222,host:4222?stream=ORDERS&create_stream=true&subjects=orders.>
//! tls://host?credentials_file=/run/secrets/relay.creds
//! ```
//!
//! | event | message |
//! | --- | --- |
//! | topic | subject; one with blanks, wildcards or empty parts is refused |
//! | deduplication id | `Nats-Msg-Id`: the stream drops repeats within its window, 2 minutes unless set |
//! | headers, metadata | headers, UTF-8; CloudEvents attributes percent-encoded as over HTTP |
//! | content type | header `content-type` |
//!
//! A header that NATS cannot carry (a line break in its value, a blank in its name) makes the event
//! dead, and so does one that begins with `Nats-`: those are orders to the server.

use std::{fmt, io, path::PathBuf, pin::pin, time::Duration};

use async_nats::{
    ConnectError, ConnectErrorKind, ConnectOptions, Event, HeaderMap,
    connection::State,
    header,
    jetstream::{
        self, ErrorCode,
        context::{
            Context, ContextBuilder, CreateStreamErrorKind, GetStreamErrorKind, PublishAckFuture,
            PublishError, PublishErrorKind,
        },
        message::PublishMessage,
        publish::PublishAck,
        stream,
    },
};
use async_trait::async_trait;
use futures_util::{
    FutureExt,
    future::{Either, select},
};
use posthaste_core::{
    Envelope, Error, ErrorKind, Result, Secret,
    transport::{Capabilities, Outcome, Transport},
};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use crate::{
    connection::Connection,
    message::{MessageFormat, percent_encoded},
    tls,
    url::{Common, DestinationUrl},
};

/// What stands before CloudEvents attributes in binary mode.
const PREFIX: &str = "ce-";

/// Most events in one batch.
const MAX_BATCH: usize = 256;

/// Most events under way: more than relays have.
const MAX_UNDER_WAY: usize = 1 << 20;

/// A silent connection is asked whether it lives.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// Where NATS is, and how to log in. At most one way to log in may be set: user and password, token,
/// credentials or nkey.
#[derive(Debug, Clone)]
pub struct NatsConfig {
    /// What every destination can be told.
    pub common: Common,
    /// Servers of one cluster; the port is 4222 unless given.
    pub hosts: Vec<(String, Option<u16>)>,
    /// The user's name.
    pub user: Option<String>,
    /// The user's password.
    pub password: Option<Secret>,
    /// A token instead of user and password.
    pub token: Option<Secret>,
    /// The content of a credentials file (JWT and nkey).
    pub credentials: Option<Secret>,
    /// An nkey's seed.
    pub nkey: Option<Secret>,
    /// Whether to insist on TLS. A server that asks for it gets it in any case.
    pub tls: bool,
    /// Certificates to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// The stream that must take the events. Without it, any stream that listens to the subject.
    pub stream: Option<String>,
    /// Whether to create the stream when it is missing.
    pub create_stream: bool,
    /// Subjects of the stream that is created.
    pub subjects: Vec<String>,
}

impl NatsConfig {
    /// One server, no login, no TLS.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            common: Common::new("nats"),
            hosts: vec![(host.into(), Some(port))],
            user: None,
            password: None,
            token: None,
            credentials: None,
            nkey: None,
            tls: false,
            ca_file: None,
            stream: None,
            create_stream: false,
            subjects: Vec::new(),
        }
    }

    /// From `nats://…` or `tls://…`. Parameters: `stream`, `create_stream`, `subjects` (with
    /// commas), `ca_file`, `token`, `token_env`, `token_file`, `credentials_env`, `credentials_file`,
    /// `nkey_env`, `nkey_file`, `password_env`, `password_file`, and what every destination takes.
    /// A user without a password is a token, as NATS has it.
    pub fn from_url(url: &str) -> Result<Self> {
        let mut url: DestinationUrl = url.parse()?;
        let tls = match url.scheme.as_str() {
            "nats" => false,
            "tls" => true,
            _ => {
                return Err(Error::invalid("a NATS destination begins with nats:// or tls://"));
            }
        };
        if !url.path.is_empty() {
            return Err(Error::invalid(
                "a NATS destination has no path; the stream is named by the parameter stream",
            ));
        }
        let mut common = url.common()?;
        if common.name == "tls" {
            "nats".clone_into(&mut common.name);
        }
        let mut token = url.secret("token")?.or(url.take("token").map(Secret::new));
        let (mut user, password) = (url.user.take(), url.password.take());
        if password.is_none() && token.is_none() {
            token = user.take().map(Secret::new);
        }
        let config = Self {
            common,
            hosts: std::mem::take(&mut url.hosts),
            user,
            password,
            token,
            credentials: url.secret("credentials")?,
            nkey: url.secret("nkey")?,
            tls,
            ca_file: url.take("ca_file").map(PathBuf::from),
            stream: url.take("stream"),
            create_stream: url.take_flag("create_stream")?,
            subjects: url
                .take("subjects")
                .map(|subjects| subjects.split(',').map(str::to_owned).collect())
                .unwrap_or_default(),
        };
        url.finish()?;
        Ok(config)
    }

    /// One line that says what is wrong.
    fn check(&self) -> Result<()> {
        if self.hosts.is_empty() {
            return Err(Error::invalid("a NATS destination needs a host"));
        }
        if self.user.is_some() != self.password.is_some() {
            return Err(Error::invalid("NATS takes a user and a password together"));
        }
        let logins = [
            self.user.is_some(),
            self.token.is_some(),
            self.credentials.is_some(),
            self.nkey.is_some(),
        ];
        if logins.into_iter().filter(|set| *set).count() > 1 {
            return Err(Error::invalid(
                "NATS takes one login: user and password, token, credentials or nkey",
            ));
        }
        if let Some(stream) = &self.stream
            && (stream.is_empty()
                || stream.contains(|c: char| {
                    c.is_whitespace() || c.is_control() || ".*>/\\".contains(c)
                }))
        {
            return Err(Error::invalid(format!(
                "stream is {stream:?}; a stream's name has no blanks, dots, slashes, * or >"
            )));
        }
        if self.create_stream && (self.stream.is_none() || self.subjects.is_empty()) {
            return Err(Error::invalid(
                "create_stream needs the parameters stream and subjects, such as \
                 stream=ORDERS&subjects=orders.>",
            ));
        }
        if !self.create_stream && !self.subjects.is_empty() {
            return Err(Error::invalid(
                "subjects are for a stream that is created: create_stream=true",
            ));
        }
        Ok(())
    }

    fn addresses(&self) -> Vec<String> {
        let scheme = if self.tls { "tls" } else { "nats" };
        self.hosts
            .iter()
            .map(|(host, port)| format!("{scheme}://{host}:{}", port.unwrap_or(4222)))
            .collect()
    }

    /// The servers as people name them.
    fn place(&self) -> String {
        let hosts: Vec<String> = self
            .hosts
            .iter()
            .map(|(host, port)| format!("{host}:{}", port.unwrap_or(4222)))
            .collect();
        hosts.join(", ")
    }
}

/// Publishes to JetStream and waits for the stream's acknowledgement of each event.
pub struct Nats {
    config: NatsConfig,
    connection: Connection<Live>,
}

/// A connection that is given up as soon as it breaks: while the client reconnects by itself it
/// takes messages and cannot say what becomes of them.
struct Live {
    jetstream: Context,
    /// False once the connection broke; the client's event callback writes it.
    alive: watch::Receiver<bool>,
}

impl Live {
    fn is_alive(&self) -> bool {
        *self.alive.borrow() && self.jetstream.client().connection_state() == State::Connected
    }

    /// Waits until the connection breaks.
    async fn died(&self) {
        // An error means that the client itself is gone.
        let _ = self.alive.clone().wait_for(|alive| !alive).await;
    }
}

impl Nats {
    /// Checks the configuration; the first publish connects.
    pub fn new(config: NatsConfig) -> Result<Self> {
        config.check()?;
        Self::login(&config)?;
        let connection = Connection::new(config.common.connect_timeout);
        Ok(Self { config, connection })
    }

    async fn live(&self) -> Result<std::sync::Arc<Live>, String> {
        let live = self.connection.get(async || self.connect().await).await?;
        if live.is_alive() {
            return Ok(live);
        }
        self.connection.lost(&live).await;
        self.connection.get(async || self.connect().await).await
    }

    async fn connect(&self) -> Result<Live, String> {
        let config = &self.config;
        let (died, alive) = watch::channel(true);
        let mut options = Self::login(config)
            .map_err(|error| error.to_string())?
            .name("posthaste")
            // So that one that does not answer leaves time for the others.
            .connection_timeout(config.common.connect_timeout / config.hosts.len() as u32)
            .ping_interval(PING_INTERVAL)
            .ignore_discovered_servers()
            // Each server once: then it ends and `Connection` decides when to try again.
            .max_reconnects(config.hosts.len())
            .event_callback(move |event| {
                if matches!(event, Event::Disconnected | Event::Closed) {
                    died.send_replace(false);
                }
                std::future::ready(())
            });
        if config.tls || config.ca_file.is_some() {
            options = options
                .require_tls(config.tls)
                .tls_client_config(tls::client_config(config.ca_file.as_deref())?);
        }
        let client = options
            .connect(config.addresses())
            .await
            .map_err(|error| self.cannot_connect(&error))?;
        // A batch holds its place until it is acknowledged: if all places were taken by batches that
        // wait for more, none would go on. How much is under way is for the relay to say.
        let jetstream = ContextBuilder::new()
            .timeout(config.common.publish_timeout)
            .max_ack_inflight(MAX_UNDER_WAY)
            .build(client);
        let live = Live { jetstream, alive };
        if config.create_stream {
            self.create_stream(&live.jetstream).await?;
        }
        Ok(live)
    }

    fn login(config: &NatsConfig) -> Result<ConnectOptions> {
        let options = ConnectOptions::new();
        Ok(if let (Some(user), Some(password)) = (&config.user, &config.password) {
            options.user_and_password(user.clone(), password.expose().to_owned())
        } else if let Some(token) = &config.token {
            options.token(token.expose().to_owned())
        } else if let Some(nkey) = &config.nkey {
            options.nkey(nkey.expose().to_owned())
        } else if let Some(credentials) = &config.credentials {
            // The parser wants the line break at the end, which secrets from files have lost.
            options
                .credentials(&format!("{}\n", credentials.expose()))
                .map_err(|_| Error::invalid("the NATS credentials hold no JWT and nkey"))?
        } else {
            options
        })
    }

    fn cannot_connect(&self, error: &ConnectError) -> String {
        let place = self.config.place();
        let io = std::error::Error::source(error)
            .and_then(|source| source.downcast_ref::<io::Error>())
            .map(io::Error::kind);
        match error.kind() {
            ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                format!("NATS at {place} refused the login: check its user, password or token")
            }
            ConnectErrorKind::Dns => format!("NATS at {place}: the host's name is not known"),
            ConnectErrorKind::Tls => format!("NATS at {place}: no TLS connection"),
            ConnectErrorKind::TimedOut => format!("NATS at {place} does not answer"),
            ConnectErrorKind::ServerParse => format!("NATS at {place}: the host is no host's name"),
            _ => match io {
                // What TLS cannot read or does not trust comes as invalid data.
                Some(io::ErrorKind::InvalidData) if self.config.tls => {
                    format!(
                        "no TLS connection to NATS at {place}: its certificate is not trusted, or it speaks no TLS"
                    )
                }
                Some(kind) => format!("no connection to NATS at {place}: {kind}"),
                None => format!("no connection to NATS at {place}: it closed the connection"),
            },
        }
    }

    async fn create_stream(&self, jetstream: &Context) -> Result<(), String> {
        let Some(name) = &self.config.stream else { return Ok(()) };
        let stream = stream::Config {
            name: name.clone(),
            subjects: self.config.subjects.clone(),
            ..stream::Config::default()
        };
        jetstream.get_or_create_stream(stream).await.map(drop).map_err(|error| match error.kind() {
            CreateStreamErrorKind::JetStream(error) => {
                format!("stream {name} cannot be created: JetStream error {}", error.error_code().0)
            }
            _ => format!("stream {name} cannot be created: JetStream does not answer"),
        })
    }

    fn message(&self, envelope: &Envelope) -> Result<(String, PublishMessage), Outcome> {
        let subject = envelope.topic();
        if let Some(fault) = fault_of(subject) {
            return Err(Outcome::dead(format!("topic {subject:?} is no NATS subject: {fault}")));
        }
        let message = self.config.common.format.message(envelope, PREFIX);
        let encoded = self.config.common.format == MessageFormat::CloudEventsBinary;
        let mut headers = HeaderMap::new();
        for (name, value) in message.headers {
            if name.eq_ignore_ascii_case("content-type") {
                continue; // the event's content type has this place
            }
            if name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("nats-")) {
                return Err(Outcome::dead(format!(
                    "header {name:?} begins with Nats-, which is for orders to the server"
                )));
            }
            let value =
                if encoded && name.starts_with(PREFIX) { percent_encoded(&value) } else { value };
            if name.contains(|c: char| !c.is_ascii_graphic() || c == ':') {
                return Err(Outcome::dead(format!(
                    "header {name:?} has a name that NATS cannot carry: ASCII without blanks and \
                     colons"
                )));
            }
            if has_line_break(&value) {
                return Err(Outcome::dead(format!(
                    "header {name:?} has a line break in its value, which NATS cannot carry"
                )));
            }
            // The client would panic at what is refused above.
            headers.insert(name, value);
        }
        if has_line_break(&message.content_type) {
            return Err(Outcome::dead("the content type has a line break in it"));
        }
        headers.insert("content-type", message.content_type);
        // Last, so that nothing above it can take its place.
        headers.insert(header::NATS_MESSAGE_ID, message.id);
        let mut publish = PublishMessage::build().payload(message.body).headers(headers);
        if let Some(stream) = &self.config.stream {
            publish = publish.expected_stream(stream);
        }
        Ok((subject.to_owned(), publish))
    }

    /// Sends one event; its acknowledgement is awaited later.
    async fn send(&self, live: &Live, envelope: &Envelope) -> Result<PublishAckFuture, Outcome> {
        let (subject, message) = self.message(envelope)?;
        live.jetstream
            .send_publish(subject, message)
            .await
            .map_err(|error| self.refused(live, envelope, &error))
    }

    /// Does this until it is done, the connection breaks or time is up. Gives what cut it short. Once
    /// for a whole batch: for each event it would cost more than the event.
    async fn in_time(
        &self,
        live: &Live,
        deadline: Instant,
        work: impl Future<Output = ()>,
    ) -> Option<Outcome> {
        match timeout_at(deadline, select(pin!(work), pin!(live.died()))).await {
            Ok(Either::Left(((), _))) => None,
            Ok(Either::Right(_)) => Some(self.lost()),
            Err(_) => Some(self.late(live)),
        }
    }

    fn outcome(
        &self,
        live: &Live,
        envelope: &Envelope,
        acknowledged: Result<PublishAck, PublishError>,
    ) -> Outcome {
        match acknowledged {
            Ok(_) => Outcome::Delivered,
            Err(error) => self.refused(live, envelope, &error),
        }
    }

    fn refused(&self, live: &Live, envelope: &Envelope, error: &PublishError) -> Outcome {
        let subject = envelope.topic();
        match error.kind() {
            PublishErrorKind::StreamNotFound => Outcome::unavailable(format!(
                "no stream listens to subject {subject:?}, or JetStream is not enabled"
            )),
            PublishErrorKind::MaxPayloadExceeded => Outcome::dead(format!(
                "the message is too large: {} bytes without its headers, NATS takes {} with them",
                envelope.event.payload().len(),
                live.jetstream.client().max_payload()
            )),
            PublishErrorKind::BrokenPipe => self.lost(),
            PublishErrorKind::TimedOut => self.late(live),
            _ => match error_code(error) {
                ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM
                | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM => Outcome::dead(format!(
                    "the message is too large for its stream: {} bytes",
                    envelope.event.payload().len()
                )),
                ErrorCode::STREAM_NOT_MATCH => Outcome::retry(format!(
                    "subject {subject:?} belongs to another stream than {}",
                    self.config.stream.as_deref().unwrap_or_default()
                )),
                // Full, out of storage, without a leader: all of it takes nothing for now.
                code @ (ErrorCode::STREAM_STORE_FAILED
                | ErrorCode::INSUFFICIENT_RESOURCES
                | ErrorCode::ACCOUNT_RESOURCES_EXCEEDED
                | ErrorCode::STORAGE_RESOURCES_EXCEEDED
                | ErrorCode::MEMORY_RESOURCES_EXCEEDED
                | ErrorCode::CLUSTER_NOT_AVAILABLE
                | ErrorCode::CLUSTER_NOT_LEADER
                | ErrorCode::JETSTREAM_NOT_ENABLED
                | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT
                | ErrorCode::STREAM_SEALED) => Outcome::unavailable(format!(
                    "the stream of subject {subject:?} takes nothing for now (JetStream error {})",
                    code.0
                )),
                ErrorCode(0) => Outcome::retry(format!(
                    "what answered to subject {subject:?} was not JetStream"
                )),
                code => Outcome::retry(format!(
                    "the stream of subject {subject:?} refused it (JetStream error {})",
                    code.0
                )),
            },
        }
    }

    fn lost(&self) -> Outcome {
        Outcome::unavailable(format!(
            "the connection to NATS at {} was lost before the acknowledgement",
            self.config.place()
        ))
    }

    fn late(&self, live: &Live) -> Outcome {
        if live.is_alive() {
            let timeout = self.config.common.publish_timeout;
            Outcome::retry(format!("no acknowledgement within {timeout:?}"))
        } else {
            self.lost()
        }
    }
}

#[async_trait]
impl Transport for Nats {
    fn name(&self) -> &str {
        &self.config.common.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { max_batch: MAX_BATCH, deduplicates: true, ..Capabilities::default() }
    }

    async fn check(&self) -> Result<String> {
        let unavailable = |error: String| Error::new(ErrorKind::Unavailable, error);
        let live = self.live().await.map_err(unavailable)?;
        let place = self.config.place();
        let server = live.jetstream.client().server_info();
        let found = format!("NATS {} at {place}", server.version);
        let Some(name) = &self.config.stream else {
            let account = live.jetstream.query_account().await.map_err(|_| {
                unavailable(format!("{found}: JetStream does not answer, or is not enabled"))
            })?;
            return Ok(format!("{found}, JetStream with {} streams", account.streams));
        };
        let stream = live.jetstream.get_stream(name).await.map_err(|error| match error.kind() {
            GetStreamErrorKind::JetStream(error) if error.code() == 404 => {
                unavailable(format!("{found}: there is no stream {name}"))
            }
            _ => unavailable(format!("{found}: JetStream does not answer, or is not enabled")),
        })?;
        let info = stream.cached_info();
        Ok(format!(
            "{found}, stream {name} on {} with {} messages",
            info.config.subjects.join(", "),
            info.state.messages
        ))
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        if batch.is_empty() {
            return Vec::new();
        }
        let live = match self.live().await {
            Ok(live) => live,
            Err(error) => return vec![Outcome::unavailable(error); batch.len()],
        };
        let deadline = Instant::now() + self.config.common.publish_timeout;
        let mut sent = Vec::with_capacity(batch.len());
        let sending = async {
            for envelope in batch {
                let acknowledgement = self.send(&live, envelope).await;
                sent.push(acknowledgement.map(IntoFuture::into_future));
            }
        };
        if let Some(cut_short) = self.in_time(&live, deadline, sending).await {
            sent.resize_with(batch.len(), || Err(cut_short.clone()));
        }
        let mut outcomes = Vec::with_capacity(batch.len());
        let acknowledging = async {
            for (sent, envelope) in sent.iter_mut().zip(batch) {
                outcomes.push(match sent {
                    Ok(acknowledgement) => self.outcome(&live, envelope, acknowledgement.await),
                    Err(outcome) => outcome.clone(),
                });
            }
        };
        if let Some(cut_short) = self.in_time(&live, deadline, acknowledging).await {
            // An acknowledgement may be there although the connection broke.
            let done = outcomes.len();
            for (sent, envelope) in sent.iter_mut().zip(batch).skip(done) {
                outcomes.push(match sent {
                    Ok(acknowledgement) => match acknowledgement.now_or_never() {
                        Some(acknowledged) => self.outcome(&live, envelope, acknowledged),
                        None => cut_short.clone(),
                    },
                    Err(outcome) => outcome.clone(),
                });
            }
        }
        if !live.is_alive() {
            self.connection.lost(&live).await;
        }
        outcomes
    }
}

fn has_line_break(text: &str) -> bool {
    text.contains(['\r', '\n'])
}

/// What JetStream answered; 0 when it was not JetStream.
fn error_code(error: &PublishError) -> ErrorCode {
    std::error::Error::source(error)
        .and_then(|source| source.downcast_ref::<jetstream::Error>())
        .map_or(ErrorCode(0), jetstream::Error::error_code)
}

/// Why a topic is no subject to publish to, if it is none.
fn fault_of(subject: &str) -> Option<&'static str> {
    if subject.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Some("it has a blank or a control character");
    }
    if subject.starts_with('$') {
        return Some("subjects that begin with $ are the server's own");
    }
    for part in subject.split('.') {
        match part {
            "" => return Some("it has an empty part"),
            "*" | ">" => return Some("it has a wildcard"),
            _ => {}
        }
    }
    None
}

impl fmt::Debug for Nats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nats").field("config", &self.config).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_it_all() {
        let config = NatsConfig::from_url(
            "tls://me:hush@a,b:4333?stream=ORDERS&create_stream=true&subjects=orders.>,bills.*\
             &ca_file=/etc/ca.pem&publish_timeout=3s&format=cloudevents-binary",
        )
        .unwrap();
        assert_eq!(config.addresses(), ["tls://a:4222", "tls://b:4333"]);
        assert_eq!(config.subjects, ["orders.>", "bills.*"]);
        assert_eq!(config.common.name, "nats");
        assert_eq!(config.common.publish_timeout, Duration::from_secs(3));
        assert!(config.create_stream && config.tls);
        let transport = Nats::new(config).unwrap();
        assert!(!format!("{transport:?}").contains("hush"), "{transport:?}");
    }

    #[test]
    fn a_user_without_a_password_is_a_token() {
        let config = NatsConfig::from_url("nats://t0ken@host").unwrap();
        assert_eq!(config.token.as_ref().map(Secret::expose), Some("t0ken"));
        assert!(!format!("{config:?}").contains("t0ken"), "{config:?}");
    }

    #[test]
    fn a_wrong_configuration_is_refused_in_one_line() {
        for (url, says) in [
            ("kafka://host", "nats://"),
            ("nats://host/path", "no path"),
            ("nats://host?stream=a.b", "stream"),
            ("nats://host?stream=a&create_stream=true", "subjects"),
            ("nats://host?subjects=a", "create_stream"),
            ("nats://me:hush@host?token=hush", "one login"),
            ("nats://host?durable=true", "durable"),
        ] {
            let error = NatsConfig::from_url(url).and_then(Nats::new).unwrap_err().to_string();
            assert!(error.contains(says), "{url}: {error}");
            assert!(!error.contains("hush") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_topic_that_is_no_subject_is_told_why() {
        for topic in ["orders.placed", "a", "a*b.c>d", "Zürich"] {
            assert_eq!(fault_of(topic), None, "{topic}");
        }
        for topic in ["", ".a", "a.", "a..b", "a b", "a\tb", "a.*", "a.>", ">", "$JS.API.INFO"] {
            assert!(fault_of(topic).is_some(), "{topic}");
        }
    }
}
