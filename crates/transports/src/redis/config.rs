//! Where Redis is, how to log in, and what to do with streams.

use std::path::PathBuf;

use posthaste_core::{Error, Result, Secret};

use crate::url::{Common, DestinationUrl};

/// Largest payload that Redis takes unless it is told otherwise (`proto-max-bulk-len`).
const MAX_MESSAGE: usize = 512 * 1024 * 1024;

/// Where Redis is, how to log in, and what to do with streams.
#[derive(Debug, Clone)]
pub struct RedisConfig {
    /// What every destination can be told.
    pub common: Common,
    /// The server, or some nodes of the cluster; the port is 6379 unless given.
    pub hosts: Vec<(String, Option<u16>)>,
    /// The user's name; without it, Redis' default user.
    pub user: Option<String>,
    /// The user's password.
    pub password: Option<Secret>,
    /// Whether to use TLS.
    pub tls: bool,
    /// Certificates to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// The database's number.
    pub database: i64,
    /// Whether the hosts are nodes of a cluster.
    pub cluster: bool,
    /// Streams are trimmed to about so many entries. Without it they grow.
    pub max_len: Option<u64>,
    /// How many replicas must have an event before it counts as delivered (`WAIT`). None unless set.
    pub replicas: u32,
    /// Largest payload to send: 512 MiB unless set, which is Redis' own limit.
    pub max_message: usize,
}

impl RedisConfig {
    /// One server, no login, no TLS.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            common: Common::new("redis"),
            hosts: vec![(host.into(), Some(port))],
            user: None,
            password: None,
            tls: false,
            ca_file: None,
            database: 0,
            cluster: false,
            max_len: None,
            replicas: 0,
            max_message: MAX_MESSAGE,
        }
    }

    /// From `redis://…` or `rediss://…` (TLS); the path is the database's number. Parameters:
    /// `max_len`, `max_message`, `replicas`, `cluster`, `ca_file`, `password_env`, `password_file`, and what
    /// every destination takes.
    pub fn from_url(url: &str) -> Result<Self> {
        let mut url: DestinationUrl = url.parse()?;
        let tls = url.tls_by_scheme("Redis", "redis", "rediss")?;
        let database = match url.path.as_str() {
            "" => 0,
            path => path.parse().map_err(|_| {
                Error::invalid(format!("the path is {path:?}; it takes a database's number"))
            })?,
        };
        let mut common = url.common()?;
        if common.name == "rediss" {
            "redis".clone_into(&mut common.name);
        }
        let config = Self {
            common,
            hosts: std::mem::take(&mut url.hosts),
            user: url.user.take(),
            password: url.password.take(),
            tls,
            ca_file: url.take("ca_file").map(PathBuf::from),
            database,
            cluster: url.take_flag("cluster")?,
            max_len: url.take_parsed("max_len", "a number of entries")?,
            replicas: url.take_parsed("replicas", "a number of replicas")?.unwrap_or_default(),
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
            return Err(Error::invalid("a Redis destination needs a host"));
        }
        if self.hosts.len() > 1 && !self.cluster {
            return Err(Error::invalid("several Redis hosts are a cluster: cluster=true"));
        }
        if self.cluster && self.database != 0 {
            return Err(Error::invalid("a Redis cluster has only database 0"));
        }
        if self.cluster && self.replicas > 0 {
            return Err(Error::invalid(
                "replicas is for one server and its replicas; a cluster's client cannot wait for those \
                 of a slot",
            ));
        }
        if self.user.is_some() && self.password.is_none() {
            return Err(Error::invalid("a Redis user needs a password"));
        }
        if self.ca_file.is_some() && !self.tls {
            return Err(Error::invalid("ca_file is for TLS: rediss://"));
        }
        if self.max_len == Some(0) {
            return Err(Error::invalid("max_len is 0; a stream keeps at least 1 entry"));
        }
        Ok(())
    }

    /// The servers as people name them.
    pub(super) fn place(&self) -> String {
        let hosts: Vec<String> = self
            .hosts
            .iter()
            .map(|(host, port)| format!("{host}:{}", port.unwrap_or(6379)))
            .collect();
        hosts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use posthaste_core::transport::{Acceptance, Transport};

    use super::{super::Redis, *};

    #[test]
    fn a_url_says_it_all() {
        let config = RedisConfig::from_url(
            "rediss://me:hush@host/3?max_len=1000&max_message=4096&replicas=2&ca_file=/etc/ca.pem",
        )
        .unwrap();
        assert_eq!((config.database, config.max_len, config.max_message), (3, Some(1000), 4096));
        assert_eq!((config.common.name.as_str(), config.replicas), ("redis", 2));
        assert!(config.tls);
        let transport = Redis::new(config).unwrap();
        assert!(!format!("{transport:?}").contains("hush"), "{transport:?}");
        assert_eq!(transport.capabilities().acceptance, Acceptance::Prefix);
    }

    #[test]
    fn a_cluster_accepts_a_batch_in_part() {
        let config = RedisConfig::from_url("redis://a:1,b:2?cluster=true").unwrap();
        assert_eq!(Redis::new(config).unwrap().capabilities().acceptance, Acceptance::Any);
    }

    #[test]
    fn a_wrong_configuration_is_refused_in_one_line() {
        for (url, says) in [
            ("nats://host", "redis://"),
            ("redis://host/orders", "number"),
            ("redis://a,b", "cluster=true"),
            ("redis://a/1?cluster=true", "database 0"),
            ("redis://me@a", "password"),
            ("redis://:hush@a?ca_file=x", "rediss://"),
            ("redis://:hush@a?max_len=many", "max_len"),
            ("redis://:hush@a?max_len=0", "max_len"),
            ("redis://:hush@a?replicas=all", "replicas"),
            ("redis://:hush@a,b?cluster=true&replicas=1", "replicas"),
            ("redis://:hush@a?trim=true", "trim"),
        ] {
            let error = RedisConfig::from_url(url).and_then(Redis::new).unwrap_err().to_string();
            assert!(error.contains(says), "{url}: {error}");
            assert!(!error.contains("hush") && !error.contains('\n'), "{error}");
        }
    }
}
