//! Where Kafka is, how to log in, and how its client is set up.

use std::{path::PathBuf, str::FromStr, time::Duration};

use posthaste_core::{Error, Result, Secret};
use rdkafka::{ClientConfig, config::RDKafkaLogLevel};

use crate::url::{Common, DestinationUrl};

/// Largest message unless set otherwise.
const MAX_MESSAGE: usize = 2 * 1024 * 1024;

/// Most messages of one request in a trial: a request over which the connection breaks names so many suspects,
/// and each of these is tried alone.
const SUSPECTS: usize = 16;

/// How a user proves who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sasl {
    /// The password as it is.
    #[default]
    Plain,
    /// SCRAM with SHA-256; needs the feature `kafka-tls`.
    ScramSha256,
    /// SCRAM with SHA-512; needs the feature `kafka-tls`.
    ScramSha512,
}

impl Sasl {
    fn mechanism(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

impl FromStr for Sasl {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        [Self::Plain, Self::ScramSha256, Self::ScramSha512]
            .into_iter()
            .find(|sasl| sasl.mechanism().eq_ignore_ascii_case(text))
            .ok_or(())
    }
}

/// How messages are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// gzip
    Gzip,
    /// Snappy
    Snappy,
    /// LZ4
    Lz4,
    /// Zstandard
    Zstd,
}

impl Compression {
    /// Its name in configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

impl FromStr for Compression {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        [Self::None, Self::Gzip, Self::Snappy, Self::Lz4, Self::Zstd]
            .into_iter()
            .find(|compression| compression.as_str() == text)
            .ok_or(())
    }
}

/// Where Kafka is, and how to log in.
#[derive(Debug, Clone)]
pub struct KafkaConfig {
    /// What every destination can be told.
    pub common: Common,
    /// Some brokers of the cluster, which name the others; the port is 9092 unless given.
    pub hosts: Vec<(String, Option<u16>)>,
    /// The user's name.
    pub user: Option<String>,
    /// The user's password.
    pub password: Option<Secret>,
    /// How the user logs in.
    pub sasl: Sasl,
    /// Whether to use TLS; needs the feature `kafka-tls`.
    pub tls: bool,
    /// Certificates to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// The certificate that proves who we are, PEM, with those of its authorities.
    pub cert_file: Option<PathBuf>,
    /// The key of that certificate, PEM, without a password.
    pub key_file: Option<PathBuf>,
    /// How messages are packed.
    pub compression: Compression,
    /// Largest message, in bytes.
    pub max_message: usize,
}

impl KafkaConfig {
    /// One broker, no login, no TLS.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            common: Common::new("kafka"),
            hosts: vec![(host.into(), Some(port))],
            user: None,
            password: None,
            sasl: Sasl::default(),
            tls: false,
            ca_file: None,
            cert_file: None,
            key_file: None,
            compression: Compression::default(),
            max_message: MAX_MESSAGE,
        }
    }

    /// From `kafka://…` or `kafka+ssl://…`; the parameters stand at the top of this module.
    pub fn from_url(url: &str) -> Result<Self> {
        let mut url: DestinationUrl = url.parse()?;
        let tls = url.tls_by_scheme("Kafka", "kafka", "kafka+ssl")?;
        if !url.path.is_empty() {
            return Err(Error::invalid("a Kafka destination has no path; events name their topic"));
        }
        let mut common = url.common()?;
        if common.name == "kafka+ssl" {
            "kafka".clone_into(&mut common.name);
        }
        let config = Self {
            common,
            hosts: std::mem::take(&mut url.hosts),
            user: url.user.take(),
            password: url.password.take(),
            sasl: url
                .take_parsed("sasl", "plain, scram-sha-256 or scram-sha-512")?
                .unwrap_or_default(),
            tls,
            ca_file: url.take("ca_file").map(PathBuf::from),
            cert_file: url.take("cert_file").map(PathBuf::from),
            key_file: url.take("key_file").map(PathBuf::from),
            compression: url
                .take_parsed("compression", "none, gzip, snappy, lz4 or zstd")?
                .unwrap_or_default(),
            max_message: url
                .take_parsed("max_message", "a number of bytes")?
                .unwrap_or(MAX_MESSAGE),
        };
        url.finish()?;
        Ok(config)
    }

    /// One line that says what is wrong.
    pub(super) fn check(&self) -> Result<()> {
        if self.hosts.is_empty() {
            return Err(Error::invalid("a Kafka destination needs a host"));
        }
        if self.user.is_some() != self.password.is_some() {
            return Err(Error::invalid("Kafka takes a user and a password together"));
        }
        let files = [
            ("ca_file", &self.ca_file),
            ("cert_file", &self.cert_file),
            ("key_file", &self.key_file),
        ];
        for (name, file) in files {
            if file.is_some() && !self.tls {
                return Err(Error::invalid(format!("{name} is for TLS: kafka+ssl://")));
            }
        }
        if self.cert_file.is_some() != self.key_file.is_some() {
            return Err(Error::invalid("Kafka takes cert_file and key_file together"));
        }
        if !cfg!(feature = "kafka-tls") && (self.tls || self.sasl != Sasl::Plain) {
            return Err(Error::invalid(
                "this build of Kafka has no TLS and no SCRAM; they need the feature kafka-tls",
            ));
        }
        if !(1000..=1_000_000_000).contains(&self.max_message) {
            return Err(Error::invalid(format!(
                "max_message is {}; it takes 1000 to 1000000000 bytes",
                self.max_message
            )));
        }
        Ok(())
    }

    /// The brokers as people name them, and the library reads them.
    pub(super) fn place(&self) -> String {
        let hosts: Vec<String> = self
            .hosts
            .iter()
            .map(|(host, port)| format!("{host}:{}", port.unwrap_or(9092)))
            .collect();
        hosts.join(",")
    }

    pub(super) fn client(&self) -> ClientConfig {
        let millis = |time: Duration, least: u128, most: u128| {
            time.as_millis().clamp(least, most).to_string()
        };
        let timeout = self.common.publish_timeout;
        let security = match (self.tls, self.user.is_some()) {
            (false, false) => "plaintext",
            (false, true) => "sasl_plaintext",
            (true, false) => "ssl",
            (true, true) => "sasl_ssl",
        };
        let mut client = ClientConfig::new();
        client
            // Nothing else than the log tells of a connection that breaks while others are left.
            .set_log_level(RDKafkaLogLevel::Info)
            .set("bootstrap.servers", self.place())
            .set("client.id", "posthaste")
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("compression.type", self.compression.as_str())
            .set("partitioner", "murmur2_random")
            .set("message.max.bytes", self.max_message.to_string())
            .set("message.timeout.ms", millis(timeout, 2, i32::MAX as u128))
            .set("request.timeout.ms", millis(timeout, 1, 900_000))
            .set("socket.timeout.ms", millis(timeout, 1_000, 300_000))
            // So that a missing topic is told before its events time out.
            .set("topic.metadata.propagation.max.ms", millis(timeout / 2, 1, 3_600_000))
            .set(
                "socket.connection.setup.timeout.ms",
                millis(self.common.connect_timeout, 1_000, i32::MAX as u128),
            )
            // A batch is handed over at once, nobody waits for more.
            .set("linger.ms", "1")
            // The first time; both grow with each. Half of the first one is also what it waits for until it connects to
            // the broker that the first one names.
            .set("reconnect.backoff.ms", "10")
            .set("retry.backoff.ms", "10")
            .set("security.protocol", security);
        if let (Some(user), Some(password)) = (&self.user, &self.password) {
            client
                .set("sasl.mechanism", self.sasl.mechanism())
                .set("sasl.username", user)
                .set("sasl.password", password.expose());
        }
        for (setting, file) in [
            ("ssl.ca.location", &self.ca_file),
            ("ssl.certificate.location", &self.cert_file),
            ("ssl.key.location", &self.key_file),
        ] {
            if let Some(path) = file {
                client.set(setting, path.display().to_string());
            }
        }
        client
    }

    /// The client of a trial: a message whose connection breaks has failed, and is not repeated. One request at a time
    /// keeps the order without idempotence, which repeats at least once.
    pub(super) fn trial(&self) -> ClientConfig {
        let mut client = self.client();
        client
            .set("enable.idempotence", "false")
            .set("message.send.max.retries", "0")
            .set("max.in.flight.requests.per.connection", "1")
            .set("linger.ms", "0")
            .set("batch.num.messages", SUSPECTS.to_string());
        client
    }
}

#[cfg(test)]
mod tests {
    use posthaste_core::transport::Transport;

    use super::{super::Kafka, *};

    #[test]
    fn a_url_says_it_all() {
        let config = KafkaConfig::from_url(
            "kafka://me:hush@a,b:9093,[::1]:9094?compression=zstd&publish_timeout=3s\
             &max_message=5000&format=cloudevents-binary",
        )
        .unwrap();
        assert_eq!(config.place(), "a:9092,b:9093,[::1]:9094");
        assert_eq!(config.compression, Compression::Zstd);
        assert_eq!(config.common.name, "kafka");
        let transport = Kafka::new(config).unwrap();
        assert_eq!(transport.capabilities().max_message, Some(5000));
        assert!(!format!("{transport:?}").contains("hush"), "{transport:?}");
    }

    #[test]
    fn a_wrong_configuration_is_refused_in_one_line() {
        for (url, says) in [
            ("nats://host", "kafka://"),
            ("kafka://host/topic", "no path"),
            ("kafka://me@host", "together"),
            ("kafka://host?compression=rar", "zstd"),
            ("kafka://me:hush@host?sasl=kerberos", "scram-sha-512"),
            ("kafka://host?ca_file=/ca.pem", "kafka+ssl://"),
            ("kafka://host?cert_file=/me.pem&key_file=/me.key", "cert_file is for TLS"),
            ("kafka+ssl://host?cert_file=/me.pem", "cert_file and key_file together"),
            ("kafka+ssl://host?key_file=/me.key", "cert_file and key_file together"),
            ("kafka://host?max_message=10", "max_message"),
            ("kafka://host?acks=1", "acks"),
        ] {
            let error = KafkaConfig::from_url(url).and_then(Kafka::new).unwrap_err().to_string();
            assert!(error.contains(says), "{url}: {error}");
            assert!(!error.contains("hush") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_build_without_tls_says_so() {
        let urls = ["kafka+ssl://host", "kafka://me:hush@host?sasl=scram-sha-256"];
        for url in urls {
            let made = KafkaConfig::from_url(url).and_then(Kafka::new);
            assert_eq!(made.is_ok(), cfg!(feature = "kafka-tls"));
            if let Err(error) = made {
                assert!(error.to_string().contains("kafka-tls"), "{error}");
            }
        }
    }
}
