//! What a relay says of itself: logs, metrics, health, and the admin API.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use posthaste::Secret;

use super::reader::Reader;

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogLines {
    /// For people.
    Text,
    /// A JSON object a line.
    Json,
}

/// What log lines say of tenants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TenantField {
    /// Their names.
    Plain,
    /// A hash: the same tenant is the same text.
    Hashed,
    /// Nothing.
    Off,
}

#[derive(Debug, Clone)]
pub(crate) struct LogSettings {
    pub(crate) format: LogLines,
    /// `None`: what suits the command.
    pub(crate) level: Option<String>,
    pub(crate) tenant: TenantField,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct MetricsSettings {
    pub(crate) enabled: bool,
    pub(crate) refresh: Duration,
    /// A tenant label for at most so many tenants.
    pub(crate) tenants: usize,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct HealthSettings {
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) interval: Duration,
    /// Ready: the oldest eligible event is younger.
    pub(crate) max_age: Duration,
}

#[derive(Debug, Clone)]
pub(crate) struct AdminSettings {
    pub(crate) enabled: bool,
    pub(crate) listen: SocketAddr,
    pub(crate) tls: Option<(PathBuf, PathBuf)>,
    pub(crate) tokens: Vec<TokenSettings>,
}

/// Somebody who may look, or act.
#[derive(Debug, Clone)]
pub(crate) struct TokenSettings {
    pub(crate) name: String,
    /// May act, and not only look.
    pub(crate) operator: bool,
    pub(crate) secret: Secret,
}

pub(super) fn log(reader: &mut Reader) -> LogSettings {
    let mut log = reader.section("log");
    LogSettings {
        format: log.choice("format", &[("text", LogLines::Text), ("json", LogLines::Json)]),
        level: log.text("level"),
        tenant: log.choice(
            "tenant",
            &[
                ("plain", TenantField::Plain),
                ("hashed", TenantField::Hashed),
                ("off", TenantField::Off),
            ],
        ),
    }
}

pub(super) fn metrics(reader: &mut Reader) -> MetricsSettings {
    let mut metrics = reader.section("metrics");
    MetricsSettings {
        enabled: metrics.yes_or_no("enabled", true),
        refresh: metrics.duration("refresh", Duration::from_secs(30)),
        tenants: metrics.number("tenants", 0),
    }
}

pub(super) fn health(reader: &mut Reader) -> HealthSettings {
    let mut health = reader.section("health");
    HealthSettings {
        listen: address(&mut health, "127.0.0.1:9465"),
        interval: health.duration("interval", Duration::from_mins(1)),
        max_age: health.duration("max_age", Duration::from_mins(5)),
    }
}

/// An address to listen at; `off` for none.
fn address(section: &mut super::reader::Section<'_>, default: &str) -> Option<SocketAddr> {
    let text = section.text_or("listen", default);
    if text == "off" {
        return None;
    }
    let address = text.parse().ok();
    if address.is_none() {
        let key = section.key("listen");
        let text = format!("{key} {text:?} is not an address; use one such as {default}, or off");
        section.problem("listen", text);
    }
    address
}

pub(super) fn admin(reader: &mut Reader) -> AdminSettings {
    let mut admin = reader.section("admin");
    let enabled = admin.yes_or_no("enabled", true);
    let fallback = SocketAddr::from(([127, 0, 0, 1], 9464));
    let listen = address(&mut admin, "127.0.0.1:9464");
    let (cert, key) = (admin.text("tls_cert"), admin.text("tls_key"));
    if cert.is_some() != key.is_some() {
        let text = "admin.tls_cert and admin.tls_key belong together; one of them is not set";
        admin.problem("tls_cert", text.to_owned());
    }
    let tokens = tokens(reader);
    let enabled = enabled && listen.is_some();
    let listen = listen.unwrap_or(fallback);
    if enabled && tokens.is_empty() && !listen.ip().is_loopback() {
        let text = format!(
            "admin.listen {listen} is open to others and there are no admin.tokens; add tokens, \
             or listen at 127.0.0.1"
        );
        reader.problem("admin.listen", text);
    }
    let tls = cert.zip(key).map(|(cert, key)| (cert.into(), key.into()));
    AdminSettings { enabled, listen, tls, tokens }
}

fn tokens(reader: &mut Reader) -> Vec<TokenSettings> {
    let mut tokens: Vec<TokenSettings> = Vec::new();
    for number in 1..=reader.items("admin.tokens") {
        let path = format!("admin.tokens[{number}]");
        let mut section = reader.section(&path);
        let name = section.text("name");
        let operator = section.choice("role", &[("viewer", false), ("operator", true)]);
        let secret = section.secret("token");
        let Some((name, (secret, _))) = name.zip(secret) else {
            let text = format!("{path} needs a name, and a token or a token_file");
            reader.problem(&path, text);
            continue;
        };
        if secret.expose().len() < 16 {
            let text = format!("{path}: the token of {name} has fewer than 16 characters");
            reader.problem(&path, text);
        }
        if tokens.iter().any(|other| other.name == name || other.secret == secret) {
            let text = format!("{path}: another token has the name {name} or the same text");
            reader.problem(&path, text);
        }
        tokens.push(TokenSettings { name, operator, secret });
    }
    tokens
}
