//! What is put to the test: a transport, a server for it, and what their protocol can do.

use std::{fmt::Write as _, net::SocketAddr, sync::Arc, time::Duration};

use async_trait::async_trait;
use posthaste_core::{Result, transport::Transport};
use posthaste_transports::message::MessageFormat;

use super::{Received, Server};

/// A transport and its server, as the suite needs them.
#[async_trait]
pub trait Destination: Send + Sync + 'static {
    /// What the protocol and the server can do.
    fn traits(&self) -> Traits;

    /// Where the server that all cases share is found, with the right credentials in the URL.
    fn url(&self) -> String;

    /// A server for one case alone. It is not started yet, listens on a port of its own, asks for
    /// credentials if the shared one does, and keeps its data across a kill.
    fn server(&self) -> Server;

    /// A server for one case alone that tells its clients this address instead of its own: that of a proxy before
    /// it. `None` where clients stay with the address in the URL, or the server names its own as text: the shared
    /// server is behind the proxy then.
    fn server_behind(&self, _proxy: SocketAddr) -> Option<Server> {
        None
    }

    /// The transport to the server at this URL; [`Options::on`] puts the options into a URL.
    fn transport(&self, url: &str, options: &Options) -> Result<Arc<dyn Transport>>;

    /// Makes the topic ready, as an operator would: a stream, a queue that is bound to it, or a
    /// subscription that outlives its client. It is called before the first publish.
    async fn prepare(&self, url: &str, topic: &str);

    /// All that the server holds of the topic, in its order, read by an independent client. Reading
    /// may take the messages away, as it does from a queue.
    async fn read(&self, url: &str, topic: &str) -> Vec<Received>;
}

/// What a protocol and its server can do.
#[derive(Debug, Clone)]
pub struct Traits {
    /// What stands before the names of CloudEvents attributes in binary mode.
    pub prefix: &'static str,
    /// The binding of Python's `cloudevents` library that reads binary mode: `http`, `kafka`,
    /// `amqp` or `rabbitmq`. Without one the suite looks at the headers itself.
    pub binding: Option<&'static str>,
    /// Whether a header's value may hold any character but line breaks.
    pub unicode_headers: bool,
    /// Whether the consumer can tell the ordering key.
    pub keys: bool,
    /// Whether the content type travels.
    pub content_types: bool,
    /// Largest payload that the suite may send with the defaults.
    pub largest: usize,
    /// A limit, given as [`Options::max_message`], and a payload's size beyond it. The server's own
    /// limit may be the lower one.
    pub too_large: Option<(usize, usize)>,
    /// Whether the server asks for credentials.
    pub credentials: bool,
    /// Whether a proxy can stand between the transport and its server.
    pub hangs_up: bool,
}

impl Default for Traits {
    /// Everything, up to 1 MiB and a little; messages of 96 KiB are too large where 32 KiB is the
    /// limit.
    fn default() -> Self {
        Self {
            prefix: "ce-",
            binding: None,
            unicode_headers: true,
            keys: false,
            content_types: true,
            largest: 1024 * 1024,
            too_large: Some((32 * 1024, 96 * 1024)),
            credentials: true,
            hangs_up: true,
        }
    }
}

/// How a case wants the transport.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// How an event becomes a message.
    pub format: MessageFormat,
    /// A password that is not the right one.
    pub password: Option<String>,
    /// The largest message to let through.
    pub max_message: Option<usize>,
    /// A connection that takes longer has failed.
    pub connect_timeout: Option<Duration>,
    /// An acknowledgement that takes longer has not come.
    pub publish_timeout: Option<Duration>,
}

impl Options {
    /// The URL with these options in it, as `DestinationUrl` reads them: all but `max_message`,
    /// which not every transport knows.
    pub fn on(&self, url: &str) -> String {
        let mut out = match &self.password {
            Some(password) => with_password(url, password),
            None => url.to_owned(),
        };
        let mut parameter = |name: &str, value: String| {
            let separator = if out.contains('?') { '&' } else { '?' };
            // Writing to a string cannot fail.
            let _ = write!(out, "{separator}{name}={value}");
        };
        parameter("format", self.format.to_string());
        if let Some(timeout) = self.connect_timeout {
            parameter("connect_timeout", format!("{}ms", timeout.as_millis()));
        }
        if let Some(timeout) = self.publish_timeout {
            parameter("publish_timeout", format!("{}ms", timeout.as_millis()));
        }
        out
    }
}

/// The URL with another address in it.
pub(super) fn with_address(url: &str, address: SocketAddr) -> String {
    let (scheme, rest) = url.split_once("://").expect("a URL has a scheme");
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let login = authority.rfind('@').map_or("", |at| &authority[..=at]);
    format!("{scheme}://{login}{address}{path}")
}

fn with_password(url: &str, password: &str) -> String {
    let (scheme, rest) = url.split_once("://").expect("a URL has a scheme");
    let (login, hosts) = rest.split_once('@').expect("the URL has credentials in it");
    let user = login.split(':').next().unwrap_or_default();
    format!("{scheme}://{user}:{password}@{hosts}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_parameters() {
        let options = Options {
            password: Some("wrong".to_owned()),
            publish_timeout: Some(Duration::from_secs(1)),
            ..Options::default()
        };
        assert_eq!(
            options.on("nats://me:right@host:4222?stream=a"),
            "nats://me:wrong@host:4222?stream=a&format=raw&publish_timeout=1000ms"
        );
    }

    #[test]
    fn an_address_is_replaced_and_the_rest_stays() {
        let address = "127.0.0.1:7".parse().unwrap();
        for (url, expected) in [
            ("redis://:hush@host:1/0?a=b", "redis://:hush@127.0.0.1:7/0?a=b"),
            ("nats://host:4222?stream=a", "nats://127.0.0.1:7?stream=a"),
            ("mqtt://me:hush@host", "mqtt://me:hush@127.0.0.1:7"),
        ] {
            assert_eq!(with_address(url, address), expected);
        }
    }
}
