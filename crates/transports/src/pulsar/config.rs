//! Where Pulsar is, how to log in, and what a topic's full name is.

use std::path::PathBuf;

use posthaste_core::{Error, Result, Secret};

use super::FRAME;
use crate::url::{Common, DestinationUrl};

/// Largest message unless set otherwise.
const MAX_MESSAGE: usize = 5 * 1024 * 1024;

/// Where Pulsar is, and how to log in.
#[derive(Debug, Clone)]
pub struct PulsarConfig {
    /// What every destination can be told.
    pub common: Common,
    /// Brokers or proxies of one cluster; the port is 6650 unless given, with TLS 6651.
    pub hosts: Vec<(String, Option<u16>)>,
    /// A token to log in with.
    pub token: Option<Secret>,
    /// Whether to use TLS.
    pub tls: bool,
    /// Certificates to trust, besides the web's, instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// The tenant of topics that name none.
    pub tenant: String,
    /// The namespace of topics that name none.
    pub namespace: String,
    /// Largest message, in bytes, with its headers.
    pub max_message: usize,
}

impl PulsarConfig {
    /// One broker, no login, no TLS, `public/default`.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            common: Common::new("pulsar"),
            hosts: vec![(host.into(), Some(port))],
            token: None,
            tls: false,
            ca_file: None,
            tenant: "public".to_owned(),
            namespace: "default".to_owned(),
            max_message: MAX_MESSAGE,
        }
    }

    /// From `pulsar://…` or `pulsar+ssl://…`; the parameters stand at the top of this module.
    pub fn from_url(url: &str) -> Result<Self> {
        let mut url: DestinationUrl = url.parse()?;
        let tls = url.tls_by_scheme("Pulsar", "pulsar", "pulsar+ssl")?;
        if url.user.is_some() || url.password.is_some() {
            return Err(Error::invalid(
                "a Pulsar destination has no user; log in with token, token_env or token_file",
            ));
        }
        let (tenant, namespace) = match url.path.split('/').collect::<Vec<_>>()[..] {
            [""] => ("public", "default"),
            [tenant, namespace] if !tenant.is_empty() && !namespace.is_empty() => {
                (tenant, namespace)
            }
            _ => {
                return Err(Error::invalid(
                    "the path of a Pulsar destination is tenant/namespace, or nothing for public/default",
                ));
            }
        };
        let (tenant, namespace) = (tenant.to_owned(), namespace.to_owned());
        let mut common = url.common()?;
        if common.name == "pulsar+ssl" {
            "pulsar".clone_into(&mut common.name);
        }
        let config = Self {
            common,
            hosts: std::mem::take(&mut url.hosts),
            token: url.secret("token")?.or(url.take("token").map(Secret::new)),
            tls,
            ca_file: url.take("ca_file").map(PathBuf::from),
            tenant,
            namespace,
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
            return Err(Error::invalid("a Pulsar destination needs a host"));
        }
        if self.ca_file.is_some() && !self.tls {
            return Err(Error::invalid("ca_file is for TLS: pulsar+ssl://"));
        }
        if self.max_message <= FRAME {
            return Err(Error::invalid(format!(
                "max_message is {}; it takes more than {FRAME} bytes",
                self.max_message
            )));
        }
        Ok(())
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = String> {
        let port = if self.tls { 6651 } else { 6650 };
        self.hosts.iter().map(move |(host, given)| format!("{host}:{}", given.unwrap_or(port)))
    }

    /// The servers as people name them.
    pub(super) fn place(&self) -> String {
        self.addresses().collect::<Vec<_>>().join(", ")
    }

    /// The topic with its tenant and namespace, or why it is none.
    pub(super) fn topic(&self, topic: &str) -> Result<String, &'static str> {
        let name = match topic.split_once("://") {
            Some(("persistent", name)) => name,
            Some(("non-persistent", _)) => return Err("it is not persistent"),
            Some(_) => return Err("it begins with something other than persistent://"),
            None => topic,
        };
        if name.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err("it has a blank or a control character");
        }
        let parts: Vec<&str> = name.split('/').collect();
        if parts.iter().any(|part| part.is_empty()) {
            return Err("it has an empty part");
        }
        match parts[..] {
            [_, _, _] => Ok(format!("persistent://{name}")),
            [short] if short == topic => {
                Ok(format!("persistent://{}/{}/{short}", self.tenant, self.namespace))
            }
            _ => Err("it is neither a name alone nor tenant/namespace/name"),
        }
    }
}

#[cfg(test)]
mod tests {
    use posthaste_core::transport::Transport;

    use super::{super::Pulsar, *};

    #[test]
    fn a_url_says_it_all() {
        let config = PulsarConfig::from_url(
            "pulsar+ssl://a,b:7000/shop/orders?token=hush&ca_file=/ca.pem&max_message=5000",
        )
        .unwrap();
        assert_eq!(config.place(), "a:6651, b:7000");
        assert_eq!((&*config.tenant, &*config.namespace), ("shop", "orders"));
        assert_eq!(config.common.name, "pulsar");
        let transport = Pulsar::new(config).unwrap();
        assert_eq!(transport.capabilities().max_message, Some(5000));
        assert!(!format!("{transport:?}").contains("hush"), "{transport:?}");
    }

    #[test]
    fn a_wrong_configuration_is_refused_in_one_line() {
        for (url, says) in [
            ("kafka://host", "pulsar://"),
            ("pulsar://me:hush@host", "token"),
            ("pulsar://host/tenant", "tenant/namespace"),
            ("pulsar://host/a/b/c", "tenant/namespace"),
            ("pulsar://host?ca_file=/ca.pem", "pulsar+ssl://"),
            ("pulsar://host?max_message=10", "max_message"),
            ("pulsar://host?batching=true", "batching"),
        ] {
            let error = PulsarConfig::from_url(url).and_then(Pulsar::new).unwrap_err().to_string();
            assert!(error.contains(says), "{url}: {error}");
            assert!(!error.contains("hush") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_short_topic_lies_in_the_tenant_and_namespace_of_the_url() {
        let config = PulsarConfig::from_url("pulsar://host/shop/orders").unwrap();
        for (topic, full) in [
            ("placed", "persistent://shop/orders/placed"),
            ("other/space/placed", "persistent://other/space/placed"),
            ("persistent://other/space/placed", "persistent://other/space/placed"),
        ] {
            assert_eq!(config.topic(topic).as_deref(), Ok(full));
        }
        for topic in [
            "",
            "a b",
            "a/b",
            "a/b/c/d",
            "a//c",
            "persistent://a",
            "non-persistent://a/b/c",
            "x://y",
        ] {
            assert!(config.topic(topic).is_err(), "{topic}");
        }
    }
}
