//! The brokers' own clients, as a team uses them without an outbox: the baselines of `publish`.
//!
//! Each has a file and a line in [`open`]. A client publishes what a relay would (topic, headers,
//! body), makes each message when its turn comes, and waits for acknowledgements only when so many
//! are outstanding as a relay may have.

#[cfg(feature = "kafka")]
mod kafka;

#[cfg(feature = "nats")]
mod nats;

#[cfg(feature = "redis")]
mod redis;

#[cfg(feature = "rabbitmq")]
mod rabbitmq;

use std::sync::Arc;

use async_trait::async_trait;
use posthaste::{Envelope, Error, ErrorKind, Result, transport::Transport};

use crate::destination;

/// A broker's own client, and the place at the broker that the bench has for itself.
#[async_trait]
pub(super) trait Client: Send + Sync {
    /// As people call it.
    fn name(&self) -> &'static str;

    /// Makes the bench's own place, or makes it anew: no message is left there, and none is known as
    /// a repeat.
    async fn make(&self) -> Result<()>;

    /// Publishes all of these, at most `window` of them not acknowledged. An error unless all are.
    async fn publish(&self, events: &[Envelope], window: usize) -> Result<()>;

    /// How many messages there are.
    async fn count(&self) -> Result<u64>;

    /// Removes what was made.
    async fn remove(&self) -> Result<()>;
}

/// A destination under measurement.
pub(super) struct Broker {
    pub(super) transport: Arc<dyn Transport>,
    /// The first is what the relay is compared with; none where there is no client.
    pub(super) clients: Vec<Arc<dyn Client>>,
    /// The bench's own.
    pub(super) topic: String,
}

impl Broker {
    /// Connects to nobody yet.
    #[allow(unused_variables, reason = "each client is a feature")]
    pub(super) fn open(url: &str) -> Result<Self> {
        let topic = format!("bench_{:08x}", fastrand::u32(..));
        let scheme = url.split("://").next().unwrap_or_default().to_ascii_lowercase();
        match scheme.as_str() {
            #[cfg(feature = "kafka")]
            "kafka" | "kafka+ssl" => kafka::open(url, topic),
            #[cfg(feature = "nats")]
            "nats" | "tls" => nats::open(url, topic),
            #[cfg(feature = "redis")]
            "redis" | "rediss" => redis::open(url, topic),
            #[cfg(feature = "rabbitmq")]
            "amqp" | "amqps" => rabbitmq::open(url, topic),
            _ => Ok(Self { transport: destination::open(url)?, clients: Vec::new(), topic }),
        }
    }

    /// Removes what the bench made at the broker.
    pub(super) async fn leave(&self) -> Result<()> {
        for client in &self.clients {
            client.remove().await?;
        }
        Ok(())
    }
}

/// An error of a client as one of ours.
#[allow(dead_code, reason = "each client is a feature")]
fn failed<E: std::error::Error + Send + Sync + 'static>(
    doing: &'static str,
) -> impl FnOnce(E) -> Error {
    move |error| Error::new(ErrorKind::Unavailable, format!("{doing} failed")).with_source(error)
}

/// Baselines are measured over plain connections.
#[allow(dead_code, reason = "each client is a feature")]
fn refuse_tls(tls: bool, scheme: &str) -> Result<()> {
    if tls {
        return Err(Error::invalid(format!(
            "a bench compares over connections without TLS; use {scheme}://"
        )));
    }
    Ok(())
}
