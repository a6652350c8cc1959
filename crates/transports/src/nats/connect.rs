//! The connection: how it is made and its stream created, and how it is known to have broken.

use std::{io, sync::Arc, time::Duration};

use async_nats::{
    Client, ConnectError, ConnectErrorKind, ConnectOptions, Event, ServerError,
    connection::State,
    jetstream::{
        self,
        context::{Context, CreateStreamErrorKind},
        stream,
    },
};
use posthaste_core::{Error, Result};
use tokio::sync::{broadcast, watch};

use super::{Nats, NatsConfig};
use crate::tls;

/// A silent connection is asked whether it lives.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// How many refusals are kept for a batch that is still being sent. Of more it misses the oldest, and waits
/// for the acknowledgements until its deadline.
const REFUSALS: usize = 1_024;

/// What the server does not permit. It says so on the connection, not to the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// To publish to this subject.
    Subject(Arc<str>),
    /// To subscribe to where the acknowledgements arrive.
    Inbox,
}

impl Refusal {
    /// Reads what the server said, as `Permissions Violation for Publish to "orders"`.
    fn of(said: &str) -> Option<Self> {
        let said = said.strip_prefix("Permissions Violation for ")?;
        if said.starts_with("Subscription to") {
            return Some(Self::Inbox);
        }
        let subject = said.strip_prefix("Publish to \"")?.strip_suffix('"')?;
        // In Go's quotes; a subject has neither blanks nor control characters.
        Some(Self::Subject(subject.replace("\\\"", "\"").replace("\\\\", "\\").into()))
    }
}

/// A connection that is given up as soon as it breaks: while the client reconnects by itself it
/// takes messages and cannot say what becomes of them.
pub(crate) struct Live {
    pub(super) client: Client,
    /// False once the connection broke; the client's event callback writes it.
    alive: watch::Receiver<bool>,
    /// What the server refuses, as it says so; the client's event callback sends it.
    refusals: broadcast::Sender<Refusal>,
}

impl Live {
    /// For what is not published.
    pub(super) fn jetstream(&self) -> Context {
        jetstream::new(self.client.clone())
    }

    /// What is refused from now on.
    pub(super) fn refusals(&self) -> broadcast::Receiver<Refusal> {
        self.refusals.subscribe()
    }

    pub(super) fn is_alive(&self) -> bool {
        *self.alive.borrow() && self.client.connection_state() == State::Connected
    }

    /// Waits until the connection breaks.
    pub(super) async fn died(&self) {
        // An error means that the client itself is gone.
        let _ = self.alive.clone().wait_for(|alive| !alive).await;
    }
}

impl Nats {
    pub(super) async fn connect(&self) -> Result<Live, String> {
        let config = &self.config;
        let (died, alive) = watch::channel(true);
        let refusals = broadcast::Sender::new(REFUSALS);
        let refused = refusals.clone();
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
                match event {
                    Event::Disconnected | Event::Closed => {
                        died.send_replace(false);
                    }
                    Event::ServerError(ServerError::Other(said)) => {
                        // Nobody may be waiting.
                        let _ = Refusal::of(&said).map(|refusal| refused.send(refusal));
                    }
                    _ => {}
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
        let live = Live { client, alive, refusals };
        if config.batched && !live.client.is_server_compatible(2, 14, 0) {
            return Err(format!(
                "NATS at {} knows no batches; they need 2.14 or later",
                config.place()
            ));
        }
        if config.create_stream {
            self.create_stream(&live.jetstream()).await?;
        }
        Ok(live)
    }

    pub(super) fn login(config: &NatsConfig) -> Result<ConnectOptions> {
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
            allow_batch_publish: self.config.batched,
            num_replicas: self.config.replicas,
            ..stream::Config::default()
        };
        jetstream.get_or_create_stream(stream).await.map(drop).map_err(|error| match error.kind() {
            CreateStreamErrorKind::JetStream(error) => {
                format!("stream {name} cannot be created: JetStream error {}", error.error_code().0)
            }
            _ => format!("stream {name} cannot be created: JetStream does not answer"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_its_subject() {
        let subject = |text: &str| Some(Refusal::Subject(text.into()));
        for (said, refusal) in [
            (r#"Permissions Violation for Publish to "orders.placed""#, subject("orders.placed")),
            (r#"Permissions Violation for Publish to "a\"b\\c""#, subject(r#"a"b\c"#)),
            (r#"Permissions Violation for Subscription to "_INBOX.x.>""#, Some(Refusal::Inbox)),
            ("Maximum Payload Violation", None),
        ] {
            assert_eq!(Refusal::of(said), refusal, "{said}");
        }
    }
}
