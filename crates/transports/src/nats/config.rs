//! Where NATS is, and how to log in.

use std::path::PathBuf;

use posthaste_core::{Error, Result, Secret};

use crate::url::{Common, DestinationUrl};

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
    /// On how many servers the stream that is created keeps each message: 1 to 5, of which
    /// 3 and 5 survive the loss of a server.
    pub replicas: usize,
    /// Whether the events of a batch travel as one, which the stream must allow.
    pub batched: bool,
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
            replicas: 1,
            batched: false,
        }
    }

    /// From `nats://…` or `tls://…`. Parameters: `batched`, `stream`, `create_stream`, `subjects` (with
    /// commas), `replicas`, `ca_file`, `token`, `token_env`, `token_file`, `credentials_env`, `credentials_file`,
    /// `nkey_env`, `nkey_file`, `password_env`, `password_file`, and what every destination takes.
    /// A user without a password is a token, as NATS has it.
    pub fn from_url(url: &str) -> Result<Self> {
        let mut url: DestinationUrl = url.parse()?;
        let tls = url.tls_by_scheme("NATS", "nats", "tls")?;
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
        let create_stream = url.take_flag("create_stream")?;
        let replicas = url.take_parsed("replicas", "a number from 1 to 5")?;
        if replicas.is_some() && !create_stream {
            return Err(Error::invalid(
                "replicas are of a stream that is created: create_stream=true",
            ));
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
            create_stream,
            replicas: replicas.unwrap_or(1),
            subjects: url
                .take("subjects")
                .map(|subjects| subjects.split(',').map(str::to_owned).collect())
                .unwrap_or_default(),
            batched: url.take_flag("batched")?,
        };
        url.finish()?;
        Ok(config)
    }

    /// One line that says what is wrong.
    pub(super) fn check(&self) -> Result<()> {
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
        if !(1..=5).contains(&self.replicas) {
            return Err(Error::invalid(format!(
                "replicas is {}; a stream takes 1 to 5, and an odd number is of use",
                self.replicas
            )));
        }
        if !self.create_stream && !self.subjects.is_empty() {
            return Err(Error::invalid(
                "subjects are for a stream that is created: create_stream=true",
            ));
        }
        Ok(())
    }

    pub(super) fn addresses(&self) -> Vec<String> {
        let scheme = if self.tls { "tls" } else { "nats" };
        self.hosts
            .iter()
            .map(|(host, port)| format!("{scheme}://{host}:{}", port.unwrap_or(4222)))
            .collect()
    }

    /// The servers as people name them.
    pub(super) fn place(&self) -> String {
        let hosts: Vec<String> = self
            .hosts
            .iter()
            .map(|(host, port)| format!("{host}:{}", port.unwrap_or(4222)))
            .collect();
        hosts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::Nats, *};

    #[test]
    fn a_url_says_it_all() {
        let config = NatsConfig::from_url(
            "tls://me:hush@a,b:4333?stream=ORDERS&create_stream=true&subjects=orders.>,bills.*&replicas=3\
             &ca_file=/etc/ca.pem&publish_timeout=3s&format=cloudevents-binary",
        )
        .unwrap();
        assert_eq!(config.addresses(), ["tls://a:4222", "tls://b:4333"]);
        assert_eq!(config.subjects, ["orders.>", "bills.*"]);
        assert_eq!(config.common.name, "nats");
        assert_eq!(config.common.publish_timeout, Duration::from_secs(3));
        assert!(config.create_stream && config.tls);
        assert_eq!(config.replicas, 3);
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
            ("nats://host?replicas=3", "create_stream"),
            ("nats://host?stream=a&create_stream=true&subjects=a&replicas=7", "replicas is 7"),
            ("nats://me:hush@host?token=hush", "one login"),
            ("nats://host?durable=true", "durable"),
        ] {
            let error = NatsConfig::from_url(url).and_then(Nats::new).unwrap_err().to_string();
            assert!(error.contains(says), "{url}: {error}");
            assert!(!error.contains("hush") && !error.contains('\n'), "{error}");
        }
    }
}
