//! What a relay says of itself: logs, metrics, health, and the admin API.

use std::{net::SocketAddr, time::Duration};

use posthaste::relay::LogTenant;
use posthaste_admin::metrics::PrometheusHandle;
use posthaste_admin::{AdminConfig, Role, Tls, Token};

use tracing_subscriber::EnvFilter;

use super::{origin::Origin, reader::Reader, section::Section};

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogLines {
    /// For people.
    Text,
    /// A JSON object a line.
    Json,
}

#[derive(Debug, Clone)]
pub(crate) struct LogSettings {
    pub(crate) format: LogLines,
    /// `None`: what suits the command.
    pub(crate) level: Option<String>,
    pub(crate) tenant: LogTenant,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct MetricsSettings {
    pub(crate) enabled: bool,
    pub(crate) refresh: Duration,
    /// A tenant label for at most so many tenants.
    pub(crate) tenants: usize,
}

/// Where to listen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Listen {
    pub(crate) address: SocketAddr,
    /// Somebody chose it: then it must be free. Where nobody did, a second relay on a machine goes
    /// without.
    pub(crate) chosen: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct HealthSettings {
    /// `None`: nowhere.
    pub(crate) listen: Option<Listen>,
    pub(crate) interval: Duration,
    /// Ready: the oldest eligible event is younger.
    pub(crate) max_age: Duration,
}

#[derive(Debug, Clone)]
pub(crate) struct AdminSettings {
    /// `None`: nowhere.
    pub(crate) listen: Option<Listen>,
    pub(crate) tls: Option<Tls>,
    pub(crate) plain_http: bool,
    pub(crate) tokens: Vec<Token>,
}

impl AdminSettings {
    /// As the server is told; `None` when it is not to serve.
    pub(crate) fn config(&self, metrics: Option<PrometheusHandle>) -> Option<AdminConfig> {
        let Self { listen, tls, plain_http, tokens } = self.clone();
        Some(AdminConfig { listen: listen?.address, tokens, tls, plain_http, metrics })
    }
}

pub(super) fn log(reader: &mut Reader) -> LogSettings {
    let mut log = reader.section("log");
    LogSettings {
        format: log.choice("format", &[("text", LogLines::Text), ("json", LogLines::Json)]),
        level: level(&mut log),
        tenant: log.choice(
            "tenant",
            &[("plain", LogTenant::Plain), ("hashed", LogTenant::Hashed), ("off", LogTenant::Off)],
        ),
    }
}

/// What `EnvFilter` understands; `info` for what runs, `warn` for what looks.
fn level(log: &mut Section<'_>) -> Option<String> {
    let Some(given) = log.given("level") else {
        log.show("level", Some("info".to_owned()), Origin::Default);
        return None;
    };
    if let Err(error) = EnvFilter::try_new(&given.text) {
        let text = format!(
            "log.level ({}): {:?} is no level ({error}); use error, warn, info, debug or trace",
            given.origin, given.text
        );
        log.problem("level", text);
    }
    log.show("level", Some(given.text.clone()), given.origin);
    Some(given.text)
}

pub(super) fn metrics(reader: &mut Reader) -> MetricsSettings {
    let mut metrics = reader.section("metrics");
    MetricsSettings {
        enabled: metrics.yes_or_no("enabled", true),
        refresh: some_time(&mut metrics, "refresh", Duration::from_secs(30)),
        tenants: metrics.number("tenants", 0),
    }
}

pub(super) fn health(reader: &mut Reader) -> HealthSettings {
    let mut health = reader.section("health");
    HealthSettings {
        listen: address(&mut health, "127.0.0.1:9465"),
        interval: some_time(&mut health, "interval", Duration::from_mins(1)),
        max_age: some_time(&mut health, "max_age", Duration::from_mins(5)),
    }
}

/// A duration that is not 0.
fn some_time(section: &mut Section<'_>, name: &str, default: Duration) -> Duration {
    let time = section.duration(name, default);
    if time.is_zero() {
        let key = section.key(name);
        section.problem(name, format!("{key} is 0; give it a duration, such as 30s"));
    }
    time
}

/// An address to listen at; `off` for none.
fn address(section: &mut Section<'_>, default: &str) -> Option<Listen> {
    let chosen = section.given("listen").is_some();
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
    address.map(|address| Listen { address, chosen })
}

pub(super) fn admin(reader: &mut Reader) -> AdminSettings {
    let mut admin = reader.section("admin");
    let enabled = admin.yes_or_no("enabled", true);
    let listen = address(&mut admin, "127.0.0.1:9464").filter(|_| enabled);
    let (cert, key) = (admin.text("tls_cert"), admin.text("tls_key"));
    if cert.is_some() != key.is_some() {
        let text = "admin.tls_cert and admin.tls_key belong together; one of them is not set";
        admin.problem("tls_cert", text.to_owned());
    }
    let plain_http = admin.yes_or_no("plain_http", false);
    let tokens = tokens(reader);
    let tls = cert.zip(key).map(|(cert, key)| Tls { cert: cert.into(), key: key.into() });
    let settings = AdminSettings { listen, tls, plain_http, tokens };
    if let Some(Err(error)) = settings.config(None).map(|config| config.check()) {
        reader.problem("admin", error.to_string());
    }
    settings
}

fn tokens(reader: &mut Reader) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    for number in 1..=reader.items("admin.tokens") {
        let path = format!("admin.tokens[{number}]");
        let mut section = reader.section(&path);
        let name = section.text("name");
        let role =
            section.choice("role", &[("viewer", Role::Viewer), ("operator", Role::Operator)]);
        let secret = section.secret("token");
        let Some((name, (secret, _))) = name.zip(secret) else {
            let text = format!("{path} needs a name, and a token or a token_file");
            reader.problem(&path, text);
            continue;
        };
        if tokens.iter().any(|other| other.secret == secret) {
            reader.problem(&path, format!("{path}: another token has the same text"));
        }
        tokens.push(Token { name, role, secret });
    }
    tokens
}
