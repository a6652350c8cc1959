//! Where the MQTT server is, how to log in, and what is asked of it.

use std::{path::PathBuf, time::Duration};

use posthaste_core::{Error, Result, Secret};

use crate::url::{Common, DestinationUrl};

/// Where messages go.
#[derive(Debug, Clone)]
pub struct MqttConfig {
    /// What every destination can be told.
    pub common: Common,
    /// Hosts and ports, tried in this order.
    pub hosts: Vec<(String, u16)>,
    /// The user.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Secret>,
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// PEM certificates to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// 1 or 2.
    pub qos: u8,
    /// Whether the server is to keep the last message of each topic.
    pub retain: bool,
    /// How long the server keeps a message for a client that is away.
    pub message_expiry: Option<Duration>,
    /// Whether an event that nobody subscribes to is a retry.
    pub require_subscriber: bool,
    /// The client's id, random unless set.
    pub client_id: Option<String>,
}

impl MqttConfig {
    /// Reads a destination's URL; see the [module](super) for its parameters.
    pub fn from_url(url: &str) -> Result<Self> {
        let mut url: DestinationUrl = url.parse()?;
        let tls = url.tls_by_scheme("MQTT", "mqtt", "mqtts")?;
        if !url.path.is_empty() {
            return Err(Error::invalid("MQTT's URL has no path; the topic is the event's"));
        }
        let port = if tls { 8883 } else { 1883 };
        let config = Self {
            common: url.common()?,
            hosts: url.hosts.iter().map(|(host, at)| (host.clone(), at.unwrap_or(port))).collect(),
            user: url.user.clone(),
            password: url.password.clone(),
            tls,
            ca_file: url.take("ca_file").map(PathBuf::from),
            qos: url.take_parsed("qos", "1 or 2")?.unwrap_or(1),
            retain: url.take_flag("retain")?,
            message_expiry: url.take_duration("message_expiry")?,
            require_subscriber: url.take_flag("require_subscriber")?,
            client_id: url.take("client_id"),
        };
        url.finish()?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Mqtt, *};

    #[test]
    fn a_url_names_hosts_and_wishes() {
        let config = MqttConfig::from_url(
            "mqtts://me:hush@a,b:7?qos=2&retain=true&message_expiry=2m&client_id=relay-1",
        )
        .unwrap();
        assert_eq!(config.hosts, [("a".to_owned(), 8883), ("b".to_owned(), 7)]);
        assert_eq!((config.qos, config.retain, config.require_subscriber), (2, true, false));
        assert_eq!(config.message_expiry, Some(Duration::from_mins(2)));
        assert_eq!(config.client_id.as_deref(), Some("relay-1"));
        assert!(!format!("{config:?}").contains("hush"));
    }

    #[test]
    fn a_configuration_that_cannot_work_is_refused() {
        for (url, said) in [
            ("tcp://me:hush@a", "mqtt:// or mqtts://"),
            ("mqtt://me:hush@a/topic", "has no path"),
            ("mqtt://me:hush@a?qos=0", "qos is 0; it takes 1 or 2"),
            ("mqtt://me:hush@a?qos=three", "qos is \"three\"; it takes 1 or 2"),
            ("mqtt://me:hush@a?message_expiry=10ms", "shortest, 1s"),
            ("mqtt://me:hush@a?retained=true", "retained is not known"),
            ("mqtt://me:hush@a?ca_file=x.pem", "needs mqtts://"),
            ("mqtts://me:hush@a?ca_file=/no/such.pem", "/no/such.pem"),
        ] {
            let refused = MqttConfig::from_url(url).and_then(Mqtt::new);
            let error = refused.err().unwrap().to_string();
            assert!(error.contains(said) && !error.contains("hush"), "{error}");
        }
    }
}
