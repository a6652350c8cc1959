//! Where RabbitMQ is, how to log in, and which exchange takes the messages.

use std::{path::PathBuf, str::FromStr};

use posthaste_core::{Error, Result, Secret};

use crate::url::{Common, DestinationUrl};

/// RabbitMQ's own default since 4.0; older ones take more.
const MAX_MESSAGE: usize = 16 * 1024 * 1024;

/// Where messages go.
#[derive(Debug, Clone)]
pub struct RabbitMqConfig {
    /// What every destination can be told.
    pub common: Common,
    /// Hosts and ports, tried in this order.
    pub hosts: Vec<(String, u16)>,
    /// The virtual host.
    pub vhost: String,
    /// The user, `guest` unless set.
    pub user: Option<String>,
    /// The password, `guest` unless set.
    pub password: Option<Secret>,
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// PEM certificates to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// The exchange; empty is the default one.
    pub exchange: String,
    /// What the exchange is to be, if it is to be made.
    pub declare: Option<Declare>,
    /// Largest body, in bytes. RabbitMQ closes the channel on one beyond its own limit.
    pub max_message: usize,
}

/// The kinds of exchanges that can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Declare {
    /// Routes by patterns.
    Topic,
    /// Routes by the very key.
    Direct,
    /// Routes to all.
    Fanout,
}

impl FromStr for Declare {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "topic" => Ok(Self::Topic),
            "direct" => Ok(Self::Direct),
            "fanout" => Ok(Self::Fanout),
            _ => Err(Error::invalid("an exchange is topic, direct or fanout")),
        }
    }
}

impl RabbitMqConfig {
    /// Reads a destination's URL; see the [module](super) for its parameters.
    pub fn from_url(url: &str) -> Result<Self> {
        let mut url: DestinationUrl = url.parse()?;
        let tls = url.tls_by_scheme("RabbitMQ", "amqp", "amqps")?;
        let port = if tls { 5671 } else { 5672 };
        let config = Self {
            common: url.common()?,
            hosts: url.hosts.iter().map(|(host, at)| (host.clone(), at.unwrap_or(port))).collect(),
            vhost: if url.path.is_empty() { "/".to_owned() } else { url.path.clone() },
            user: url.user.clone(),
            password: url.password.clone(),
            tls,
            ca_file: url.take("ca_file").map(PathBuf::from),
            exchange: url.take("exchange").unwrap_or_default(),
            declare: url.take_parsed("declare", "topic, direct or fanout")?,
            max_message: url
                .take_parsed("max_message", "a number of bytes")?
                .unwrap_or(MAX_MESSAGE),
        };
        url.finish()?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::RabbitMq, *};

    #[test]
    fn a_url_names_hosts_virtual_host_and_exchange() {
        let config = RabbitMqConfig::from_url(
            "amqps://me:hush@a,b:7/x%2Fy?exchange=events&declare=fanout&max_message=10",
        )
        .unwrap();
        assert_eq!(config.hosts, [("a".to_owned(), 5671), ("b".to_owned(), 7)]);
        assert_eq!((config.vhost.as_str(), config.exchange.as_str()), ("x/y", "events"));
        assert_eq!((config.declare, config.max_message), (Some(Declare::Fanout), 10));
        assert!(!format!("{config:?}").contains("hush"));
        assert_eq!(RabbitMqConfig::from_url("amqp://a").unwrap().vhost, "/");
    }

    #[test]
    fn a_configuration_that_cannot_work_is_refused() {
        for (url, said) in [
            ("http://me:hush@a", "amqp:// or amqps://"),
            ("amqp://me:hush@a?declare=headers", "declare is \"headers\"; it takes topic, direct"),
            ("amqp://me:hush@a?declare=topic", "declare needs an exchange"),
            ("amqp://me:hush@a?exchnge=x", "exchnge is not known"),
            ("amqp://me:hush@a?ca_file=x.pem", "needs amqps://"),
            ("amqps://me:hush@a?ca_file=/no/such.pem", "/no/such.pem"),
        ] {
            let refused = RabbitMqConfig::from_url(url).and_then(RabbitMq::new);
            let error = refused.err().unwrap().to_string();
            assert!(error.contains(said) && !error.contains("hush"), "{error}");
        }
    }
}
