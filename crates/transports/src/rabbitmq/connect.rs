//! The connection and its channels: how they are made, and what their errors say.

use std::{
    io,
    net::Shutdown,
    sync::{Arc, Mutex, PoisonError},
};

use lapin::{
    AsyncTcpStream, Channel, ConnectionProperties, ErrorKind as LapinErrorKind, ExchangeKind,
    options::{ConfirmSelectOptions, ExchangeDeclareOptions},
    protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError},
    tcp::RustlsConnector,
    types::FieldTable,
    uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo},
};
use posthaste_core::Secret;
use socket2::{SockRef, Socket};
use tokio::net::lookup_host;

use super::{Broken, Declare, RabbitMq};
use crate::{connection::connect_any, url::Common};

/// Channels kept for the next batches.
const IDLE_CHANNELS: usize = 16;

/// In seconds: a peer that vanished is noticed after twice that.
const HEARTBEAT: u16 = 10;

/// A live connection and its idle channels.
pub(crate) struct Link {
    pub(super) connection: lapin::Connection,
    pub(super) at: String,
    // A channel is taken for one batch; only one that owes no confirm comes back.
    idle: Mutex<Vec<Channel>>,
}

impl Link {
    /// An idle channel, or a new one that confirms.
    pub(super) async fn channel(&self) -> Result<Channel, Broken> {
        while let Some(channel) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            if channel.status().connected() {
                return Ok(channel);
            }
        }
        let channel = self.connection.create_channel().await.map_err(Broken::from)?;
        channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(Broken::from)?;
        Ok(channel)
    }

    pub(super) fn give_back(&self, channel: Channel) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_CHANNELS {
            idle.push(channel);
        }
    }
}

impl RabbitMq {
    pub(super) async fn connect(&self) -> Result<Link, String> {
        let Common { connect_timeout, .. } = self.config.common;
        let connect_to = |host, port| self.connect_to(host, port);
        connect_any(&self.config.hosts, connect_timeout, connect_to).await
    }

    async fn connect_to(&self, host: &str, port: u16) -> Result<Link, String> {
        let uri = AMQPUri {
            scheme: if self.config.tls { AMQPScheme::AMQPS } else { AMQPScheme::AMQP },
            authority: AMQPAuthority {
                userinfo: AMQPUserInfo {
                    username: self.config.user.clone().unwrap_or_else(|| "guest".to_owned()),
                    password: self
                        .config
                        .password
                        .as_ref()
                        .map_or("guest", Secret::expose)
                        .to_owned(),
                },
                host: host.trim_matches(['[', ']']).to_owned(),
                port,
            },
            vhost: self.config.vhost.clone(),
            query: AMQPQueryString { heartbeat: Some(HEARTBEAT), ..AMQPQueryString::default() },
        };
        let properties = ConnectionProperties::default()
            .with_connection_name(format!("posthaste {}", self.config.common.name).into());
        let runtime = lapin::runtime::default_runtime().map_err(|error| reason(&error))?;
        let limit = self.config.common.connect_timeout;
        let tls = self.tls.clone().map(RustlsConnector::from);
        let line = Line::default();
        let _waiting = Waiting(line.clone());
        let dialled = line.clone();
        let connection = lapin::Connection::connector(
            uri,
            runtime,
            async move |uri: AMQPUri, runtime| {
                silence_this_thread();
                let host = &uri.authority.host;
                let connecting = async {
                    let found = lookup_host((host.as_str(), uri.authority.port)).await?;
                    let stream =
                        AsyncTcpStream::connect(&runtime, found.collect::<Vec<_>>()).await?;
                    if let AsyncTcpStream::Plain(plain) = &stream {
                        dialled.open(SockRef::from(plain.get_ref()).try_clone()?)?;
                    }
                    match &tls {
                        None => Ok(stream),
                        Some(tls) => stream.into_rustls(tls, host).await,
                    }
                };
                // Nobody else ends this when the other side is silent.
                tokio::time::timeout(limit, connecting)
                    .await
                    .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
                    .map_err(lapin::Error::from)
            },
            properties,
        )
        .await
        .map_err(|error| reason(&error))?;
        line.keep();
        let link = Link { connection, at: format!("{host}:{port}"), idle: Mutex::default() };
        if let Some(kind) = self.config.declare {
            self.declare(&link, kind).await?;
        }
        Ok(link)
    }

    /// Makes the exchange, or finds it as it should be.
    async fn declare(&self, link: &Link, kind: Declare) -> Result<(), String> {
        let channel = link.connection.create_channel().await.map_err(|error| reason(&error))?;
        let kind = match kind {
            Declare::Topic => ExchangeKind::Topic,
            Declare::Direct => ExchangeKind::Direct,
            Declare::Fanout => ExchangeKind::Fanout,
        };
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let declared = channel
            .exchange_declare(self.exchange.clone(), kind, options, FieldTable::default())
            .await;
        declared.map_err(|error| {
            let exchange = &self.config.exchange;
            match channel_code(&error) {
                Some(406) => format!("exchange {exchange:?} is there already and of another kind"),
                Some(403) => format!("not authorized to declare exchange {exchange:?}"),
                _ => format!("exchange {exchange:?} cannot be declared: {}", reason(&error)),
            }
        })
    }
}

/// The socket of a connection in the making. Whoever gives up waiting hangs up: the client library
/// would hold a thread and a socket for as long as the server says nothing.
#[derive(Clone, Default)]
struct Line(Arc<Mutex<Call>>);

#[derive(Default)]
enum Call {
    #[default]
    Dialling,
    Open(Socket),
    Kept,
    HungUp,
}

impl Line {
    fn open(&self, socket: Socket) -> io::Result<()> {
        let mut call = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Call::HungUp = *call {
            return Err(io::ErrorKind::TimedOut.into());
        }
        *call = Call::Open(socket);
        Ok(())
    }

    /// The connection is made: it ends in the usual way.
    fn keep(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Call::Kept;
    }
}

/// Hangs up when it is dropped before the connection is made.
struct Waiting(Line);

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut call = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Call::Open(socket) = &*call {
            // It may have gone already.
            let _ = socket.shutdown(Shutdown::Both);
        }
        if !matches!(*call, Call::Kept) {
            *call = Call::HungUp;
        }
    }
}

impl From<lapin::Error> for Broken {
    fn from(error: lapin::Error) -> Self {
        match channel_code(&error) {
            Some(code) => Self::Channel(code, refused_topic(&error)),
            None => Self::Connection(reason(&error)),
        }
    }
}

/// The code with which the server closed a channel, if it did.
fn channel_code(error: &lapin::Error) -> Option<u16> {
    match error.kind() {
        LapinErrorKind::ProtocolError(error) => match error.kind() {
            AMQPErrorKind::Soft(soft) => Some(soft.get_id()),
            AMQPErrorKind::Hard(_) => None,
        },
        _ => None,
    }
}

/// The routing key that the server does not let us use, if it says so: it is only compared.
fn refused_topic(error: &lapin::Error) -> Option<String> {
    let LapinErrorKind::ProtocolError(error) = error.kind() else { return None };
    let (_, behind) = error.get_message().as_str().split_once("access to topic '")?;
    let (topic, _) = behind.split_once("' in exchange ")?;
    Some(topic.to_owned())
}

/// What happened to a connection, in words of our own: the server's may quote what it was sent.
fn reason(error: &lapin::Error) -> String {
    match error.kind() {
        LapinErrorKind::IOError(error) => match error.get_ref() {
            Some(_) if error.kind() == io::ErrorKind::InvalidData => {
                "no connection: TLS failed or the certificate is no good".to_owned()
            }
            _ => format!("no connection: {}", error.kind()),
        },
        LapinErrorKind::ProtocolError(error) => match error.kind() {
            AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED) => {
                "authentication failed: the server does not know this user or password".to_owned()
            }
            AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED) => {
                "the virtual host is not there, or this user is not authorized for it".to_owned()
            }
            AMQPErrorKind::Hard(AMQPHardError::CONNECTIONFORCED) => {
                "the server closed the connection, as when it shuts down".to_owned()
            }
            _ => format!("the server closed the connection (code {})", error.get_id()),
        },
        LapinErrorKind::MissingHeartbeatError => "the server is silent".to_owned(),
        _ => "the connection is lost".to_owned(),
    }
}

/// The client library logs returned messages with their payload, from a thread of its own on which
/// the connection is made, too: nothing is logged from there. What matters is in the outcomes.
fn silence_this_thread() {
    std::mem::forget(tracing::dispatcher::set_default(&tracing::Dispatch::none()));
}
