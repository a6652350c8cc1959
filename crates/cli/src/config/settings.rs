//! Every key of the configuration, and what becomes of it.

use std::collections::BTreeMap;

use posthaste::{
    Secret, TableName,
    backoff::Backoff,
    relay::{Config, Housekeeping, OnDead, Retention},
};

use super::{origin::Origin, reader::Reader, section::Section};
use crate::destination::LogFormat;

/// An outbox, and how its events are relayed.
pub(crate) struct OutboxSettings {
    pub(crate) name: String,
    pub(crate) url: Secret,
    /// Another connection for LISTEN, where `url` leads through a proxy that passes no notifications on.
    pub(crate) listen_url: Option<Secret>,
    pub(crate) table: TableName,
    pub(crate) relay: Config,
    pub(crate) retention: Retention,
}

pub(crate) struct DestinationSettings {
    /// `None`: it is called as its URL says.
    pub(crate) name: Option<String>,
    /// `None`: it is not set, or cannot be read. Its name and its routes are known all the same.
    pub(crate) url: Option<Secret>,
    pub(crate) rate: Option<usize>,
    pub(crate) concurrency: Option<usize>,
    pub(crate) payload_limit: Option<usize>,
    /// How `log` writes an event, and whether with its payload.
    pub(crate) format: LogFormat,
    pub(crate) payload: bool,
}

pub(crate) struct RouteSettings {
    /// Only for this outbox.
    pub(crate) outbox: Option<String>,
    pub(crate) aggregate_type: Option<String>,
    pub(crate) event_type: Option<String>,
    pub(crate) tenant: Option<String>,
    pub(crate) header: BTreeMap<String, String>,
    /// `None`: the only destination.
    pub(crate) to: Option<String>,
    pub(crate) topic: Option<String>,
    pub(crate) topics: BTreeMap<String, String>,
}

pub(super) fn outboxes(reader: &mut Reader) -> Vec<OutboxSettings> {
    let names = reader.names("outboxes", &["listen_url", "url", "url_file", "table"]);
    let mut outboxes = Vec::new();
    for name in &names {
        refuse_name(reader, "outboxes", name);
        let path = format!("outboxes.{name}");
        let (url, listen_url, table) = place(&mut reader.section(&path));
        let relay = reader.section(&format!("{path}.relay")).or_in("relay");
        let relay = relay_config(relay);
        let cleaner = reader.section(&format!("{path}.cleaner")).or_in("cleaner");
        let (relay, retention) = cleaned(cleaner, relay);
        let Some((url, _)) = url else {
            reader.problem(&path, format!("{path}.url is not set; name the outbox's database"));
            continue;
        };
        outboxes.push(OutboxSettings {
            name: name.clone(),
            url,
            listen_url: listen_url.map(|(url, _)| url),
            table,
            relay,
            retention,
        });
    }
    let (url, listen_url, table) = place(&mut reader.section("outbox"));
    let relay = relay_config(reader.section("relay"));
    let (relay, retention) = cleaned(reader.section("cleaner"), relay);
    let by_flag = matches!(&url, Some((_, Origin::Flag(_))));
    match url {
        // Whoever names a database on the command line means that one.
        Some((url, _)) if by_flag || names.is_empty() => vec![OutboxSettings {
            name: table.to_string(),
            url,
            listen_url: listen_url.map(|(url, _)| url),
            table,
            relay,
            retention,
        }],
        Some((_, origin)) => {
            reader.problem(
                "outbox",
                format!(
                    "outbox.url ({origin}) stands beside [outboxes.{}]; make it one of them",
                    names[0]
                ),
            );
            outboxes
        }
        None if names.is_empty() => {
            let text = "no database is named; give --url, POSTHASTE_URL, or outbox.url in a \
                        configuration file (`posthaste init` writes one)";
            reader.problem("outbox", text.to_owned());
            outboxes
        }
        None => outboxes,
    }
}

type Url = Option<(Secret, Origin)>;

fn place(section: &mut Section<'_>) -> (Url, Url, TableName) {
    let url = section.secret("url");
    let listen_url = section.secret("listen_url");
    let table = section.parsed("table", TableName::default());
    let scheme =
        |(url, _): &(Secret, Origin)| url.expose().split(':').next().unwrap_or_default().to_owned();
    if let (Some(scheme), Some(_)) = (url.as_ref().map(scheme), &listen_url)
        && !scheme.starts_with("postgres")
    {
        let key = section.key("listen_url");
        section.problem("listen_url", format!("{key} is only for PostgreSQL, not for {scheme}"));
    }
    (url, listen_url, table)
}

fn refuse_name(reader: &mut Reader, table: &str, name: &str) {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if name.is_empty() || name.len() > 60 || !name.chars().all(allowed) {
        let text = format!(
            "[{table}.{name}]: a name has 1 to 60 letters, digits, underscores and hyphens"
        );
        reader.problem(table, text);
    }
}

fn relay_config(mut relay: Section<'_>) -> Config {
    let default = Config::default();
    let config = Config {
        enabled: relay.yes_or_no("enabled", default.enabled),
        name: relay.text("name").unwrap_or(default.name),
        ordering: relay.parsed("ordering", default.ordering),
        on_dead: relay.choice("on_dead", &[("skip", OnDead::Skip), ("park", OnDead::Park)]),
        lease: relay.duration("lease", default.lease),
        heartbeat: relay.duration("heartbeat", default.heartbeat),
        busy_interval: relay.duration("busy_interval", default.busy_interval),
        idle_interval: relay.duration("idle_interval", default.idle_interval),
        batch: relay.number("batch", default.batch),
        concurrency: relay.number("concurrency", default.concurrency),
        dispatch_timeout: relay.duration("dispatch_timeout", default.dispatch_timeout),
        hot_queue: relay.number("hot_queue", default.hot_queue),
        cold_queue: relay.number("cold_queue", default.cold_queue),
        stall_after: relay.duration("stall_after", default.stall_after),
        memory: relay.number("memory", default.memory >> 20).saturating_mul(1 << 20),
        drain: relay.duration("drain", default.drain),
        max_attempts: u32::try_from(relay.number("max_attempts", default.max_attempts as usize))
            .unwrap_or(u32::MAX),
        backoff: backoff(relay.below("backoff")),
        ..Config::default()
    };
    if let Err(error) = config.check() {
        let text = relay.with_origins(&error.to_string());
        relay.problem("", text);
    }
    config
}

fn backoff(mut backoff: Section<'_>) -> Backoff {
    let Backoff::Exponential { base, cap } = Backoff::default() else {
        return Backoff::default();
    };
    Backoff::Exponential { base: backoff.duration("base", base), cap: backoff.duration("cap", cap) }
}

/// Housekeeping of settled events.
fn cleaned(mut cleaner: Section<'_>, relay: Config) -> (Config, Retention) {
    let default = Housekeeping::default();
    let enabled = cleaner.yes_or_no("enabled", true);
    let interval = cleaner.duration("interval", default.purge_interval.unwrap_or_default());
    let retention = Retention {
        sent: cleaner.duration("retention", default.retention.sent),
        dead: cleaner.maybe_duration("dead_retention"),
    };
    let housekeeping = Housekeeping {
        purge_interval: enabled.then_some(interval),
        batch: cleaner.number("batch", default.batch),
        retention,
        inbox_retention: cleaner.duration("inbox_retention", default.inbox_retention),
        ..default
    };
    for (name, value) in [("interval", interval.as_millis()), ("batch", housekeeping.batch as u128)]
    {
        if value == 0 {
            let key = cleaner.key(name);
            cleaner.problem(name, format!("{key} is 0; it must be at least 1"));
        }
    }
    (Config { housekeeping, ..relay }, retention)
}

pub(super) fn destinations(reader: &mut Reader) -> Vec<DestinationSettings> {
    let mut names = reader.names("destinations", &["url", "url_file"]);
    let given = reader.only_destination();
    if let Some(name) = given.as_ref().filter(|name| !names.contains(name)) {
        names.push(name.clone());
    }
    let mut destinations = Vec::new();
    for name in names {
        let by_flag = given.as_ref() == Some(&name);
        let problems = reader.problems.len();
        let settings = destination(reader, name, by_flag);
        if given.is_some() && !by_flag {
            // Read, so that its keys are known, and not used: what is wrong with it is no matter.
            reader.problems.truncate(problems);
        } else {
            destinations.push(settings);
        }
    }
    if destinations.is_empty() {
        let text = "there is no destination; give --to, POSTHASTE_TO, or [destinations.NAME] in \
                    a configuration file";
        reader.problem("destinations", text.to_owned());
    }
    destinations
}

/// `by_flag`: a flag or `POSTHASTE_TO` names it, and it is called as its URL says.
fn destination(reader: &mut Reader, name: String, by_flag: bool) -> DestinationSettings {
    refuse_name(reader, "destinations", &name);
    let path = format!("destinations.{name}");
    let problems = reader.problems.len();
    let url = reader.section(&path).secret("url").map(|(url, _)| url);
    // One that is set and cannot be read is a problem already, which says why.
    if url.is_none() && reader.problems.len() == problems {
        let text = format!("{path}.url is not set; use log, or a URL such as nats://host:4222");
        reader.problem(&path, text);
    }
    let mut section = reader.section(&path);
    let rate = section.maybe_number("rate");
    let concurrency = section.maybe_number("concurrency");
    let payload_limit = section.maybe_size("payload_limit");
    let format = section.choice("format", &[("text", LogFormat::Text), ("json", LogFormat::Json)]);
    let payload = section.yes_or_no("payload", false);
    let name = (!by_flag).then_some(name);
    DestinationSettings { name, url, rate, concurrency, payload_limit, format, payload }
}

pub(super) fn routes(reader: &mut Reader) -> Vec<RouteSettings> {
    let mut routes = Vec::new();
    for number in 1..=reader.items("routes") {
        let mut section = reader.section(&format!("routes[{number}]"));
        let route = RouteSettings {
            outbox: section.text("outbox"),
            aggregate_type: section.text("aggregate_type"),
            event_type: section.text("event_type"),
            tenant: section.text("tenant"),
            header: section.map("header"),
            to: section.text("to"),
            topic: section.text("topic"),
            topics: section.map("topics"),
        };
        routes.push(route);
    }
    // `--topic` goes with `--to`: everything to the only destination, under this topic.
    let topic = reader.section("").given("topic");
    if let Some(topic) = topic {
        reader.section("").show("topic", Some(topic.text.clone()), topic.origin);
        return vec![RouteSettings { topic: Some(topic.text), ..RouteSettings::everything() }];
    }
    if reader.only_destination().is_some() { Vec::new() } else { routes }
}

impl RouteSettings {
    /// Every event to the only destination.
    pub(crate) fn everything() -> Self {
        Self {
            outbox: None,
            aggregate_type: None,
            event_type: None,
            tenant: None,
            header: BTreeMap::new(),
            to: None,
            topic: None,
            topics: BTreeMap::new(),
        }
    }
}
