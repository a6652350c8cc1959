//! What the admin server can be told, checked before it serves anything.

use std::{collections::HashSet, net::SocketAddr, path::PathBuf};

use metrics_exporter_prometheus::PrometheusHandle;
use posthaste_core::{Error, Result, Secret};
use serde::Serialize;

/// Shortest token that is accepted when anybody on the network can try.
const SHORTEST_REMOTE_TOKEN: usize = 16;

/// The settings of the admin server.
#[derive(Clone)]
pub struct AdminConfig {
    /// Where it is to listen. Beyond loopback it needs tokens, and a certificate.
    pub listen: SocketAddr,
    /// Who may do what. Without any, everybody on this machine is an operator called `local`, who sees no
    /// payloads.
    pub tokens: Vec<Token>,
    /// Serves HTTPS with this certificate.
    pub tls: Option<Tls>,
    /// Serves plain HTTP beyond loopback: tokens can be read on the way, unless something in between
    /// encrypts.
    pub plain_http: bool,
    /// What `/metrics` renders, see [`metrics::record`](crate::metrics::record); `None` leaves it out.
    pub metrics: Option<PrometheusHandle>,
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 9464)),
            tokens: Vec::new(),
            tls: None,
            plain_http: false,
            metrics: None,
        }
    }
}

/// Somebody who may use the API.
#[derive(Debug, Clone)]
pub struct Token {
    /// Their name in logs and in the audit.
    pub name: String,
    /// What they may do.
    pub role: Role,
    /// What they send as `Authorization: Bearer …`.
    pub secret: Secret,
}

/// What somebody may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Look at everything but payloads.
    Viewer,
    /// Change things, and see payloads.
    Operator,
}

impl std::str::FromStr for Role {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "viewer" => Ok(Self::Viewer),
            "operator" => Ok(Self::Operator),
            other => {
                Err(Error::invalid(format!("role {other:?} is not known; use viewer or operator")))
            }
        }
    }
}

/// A certificate and its key, as PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The certificate, followed by those that lead to its root.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl AdminConfig {
    /// Refuses settings that would be unsafe or could not work.
    pub fn check(&self) -> Result<()> {
        let remote = !self.listen.ip().is_loopback();
        if remote && self.tokens.is_empty() {
            return Err(Error::invalid(format!(
                "admin.listen {} is reachable from other machines and admin.tokens is empty; add \
                 a token, or listen on 127.0.0.1",
                self.listen
            )));
        }
        let mut names = HashSet::new();
        for Token { name, secret, .. } in &self.tokens {
            if name.is_empty() || name.chars().count() > 200 || name.contains(char::is_control) {
                return Err(Error::invalid(format!(
                    "token name {name:?} must have 1 to 200 characters and no control character"
                )));
            }
            if !names.insert(name) {
                return Err(Error::invalid(format!("two tokens are called {name:?}")));
            }
            let secret = secret.expose();
            if secret.is_empty() || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(Error::invalid(format!(
                    "the token of {name:?} must be visible ASCII characters without spaces"
                )));
            }
            if remote && secret.len() < SHORTEST_REMOTE_TOKEN {
                return Err(Error::invalid(format!(
                    "the token of {name:?} has fewer than {SHORTEST_REMOTE_TOKEN} characters, too \
                     few for {}",
                    self.listen
                )));
            }
        }
        if remote && self.tls.is_none() && !self.plain_http {
            return Err(Error::invalid(format!(
                "admin.listen {} is reachable from other machines and tokens would travel over plain \
                 HTTP; set admin.tls_cert and admin.tls_key, or admin.plain_http = true where \
                 something in between encrypts",
                self.listen
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(listen: &str, secrets: &[&str]) -> AdminConfig {
        let token = |(index, secret): (usize, &&str)| Token {
            name: format!("t{index}"),
            role: Role::Viewer,
            secret: Secret::new(*secret),
        };
        AdminConfig {
            listen: listen.parse().unwrap(),
            tokens: secrets.iter().enumerate().map(token).collect(),
            ..AdminConfig::default()
        }
    }

    #[test]
    fn beyond_loopback_a_long_token_is_needed() {
        assert!(config("127.0.0.1:0", &[]).check().is_ok());
        assert!(config("[::1]:0", &["short"]).check().is_ok());
        assert!(config("0.0.0.0:0", &[]).check().is_err());
        let plain = |listen, secrets| AdminConfig { plain_http: true, ..config(listen, secrets) };
        assert!(plain("0.0.0.0:0", &[]).check().is_err());
        assert!(plain("192.0.2.1:0", &["short"]).check().is_err());
        assert!(plain("0.0.0.0:0", &["0123456789abcdef"]).check().is_ok());
    }

    #[test]
    fn beyond_loopback_tokens_do_not_travel_in_clear_unless_somebody_says_so() {
        let refused = config("0.0.0.0:0", &["0123456789abcdef"]);
        let error = refused.check().unwrap_err().to_string();
        assert!(error.contains("admin.tls_cert") && error.contains("admin.plain_http"), "{error}");
        assert!(AdminConfig { plain_http: true, ..refused.clone() }.check().is_ok());
        let tls = Some(Tls { cert: "c".into(), key: "k".into() });
        assert!(AdminConfig { tls, ..refused }.check().is_ok());
    }

    #[test]
    fn a_token_that_no_header_can_carry_is_refused_without_being_shown() {
        for secret in ["", "two words", "tränen", "line\nbreak"] {
            let error = config("127.0.0.1:0", &[secret]).check().unwrap_err().to_string();
            assert!(error.contains("t0") && (secret.is_empty() || !error.contains(secret)));
        }
    }

    #[test]
    fn two_tokens_of_one_name_are_refused() {
        let mut twice = config("127.0.0.1:0", &["one", "two"]);
        twice.tokens[1].name = twice.tokens[0].name.clone();
        assert!(twice.check().is_err());
    }
}
