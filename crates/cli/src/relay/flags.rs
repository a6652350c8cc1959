//! The flags of `posthaste relay`: each stands for a key of the configuration.

use clap::Args;

use crate::config::{Flag, Origin};

/// Settings of the relay; each is a key of the configuration, and `POSTHASTE_RELAY_…` in the
/// environment.
#[derive(Args)]
pub(super) struct RelayFlags {
    /// Where events go: `nats://…`, `kafka://…`, `amqp://…`, `redis://…`, `mqtt://…`,
    /// `pulsar://…`, `https://…`, or `log`, which writes a line per event to standard output
    /// [env: `POSTHASTE_TO`]
    #[arg(long, value_name = "DESTINATION")]
    to: Option<String>,

    /// The topic there, with placeholders: `{aggregate_type}.{event_type}` [env: `POSTHASTE_TOPIC`;
    /// default: the event's own topic, or its aggregate type]
    #[arg(long, value_name = "TEMPLATE")]
    topic: Option<String>,

    /// The relay's name in leases, logs and status [default: a unique one]
    #[arg(long)]
    name: Option<String>,

    /// Which order is kept, and so how relays share the work: `per_key`, `none` or `global`
    #[arg(long)]
    ordering: Option<String>,

    /// What a key's later events do when one is given up on: go on (`skip`) or wait (`park`)
    #[arg(long)]
    on_dead: Option<String>,

    /// How long a lease lasts without renewal
    #[arg(long, value_name = "DURATION")]
    lease: Option<String>,

    /// How often leases are renewed; shorter than the lease
    #[arg(long, value_name = "DURATION")]
    heartbeat: Option<String>,

    /// Pause between polls right after there was work
    #[arg(long, value_name = "DURATION")]
    busy_interval: Option<String>,

    /// Longest pause between polls
    #[arg(long, value_name = "DURATION")]
    idle_interval: Option<String>,

    /// Most events that one read fetches and one settle writes
    #[arg(long, value_name = "N")]
    batch: Option<String>,

    /// Most publishes under way at once
    #[arg(long, value_name = "N")]
    concurrency: Option<String>,

    /// A publish that takes longer has failed
    #[arg(long, value_name = "DURATION")]
    dispatch_timeout: Option<String>,

    /// The failure with this number is an event's last: it is dead
    #[arg(long, value_name = "N")]
    max_attempts: Option<String>,

    /// How long sent events are kept; 0 deletes them as they are settled
    #[arg(long, value_name = "DURATION")]
    retention: Option<String>,

    /// How long a stop waits for what is in flight
    #[arg(long, value_name = "DURATION")]
    drain: Option<String>,

    /// How `log` writes an event: `text` or `json`
    #[arg(long)]
    format: Option<String>,

    /// Let `log` write the payload too
    #[arg(long)]
    payload: bool,
}

impl RelayFlags {
    /// As the configuration reads them.
    pub(super) fn flags(&self) -> Vec<Flag> {
        let payload = self.payload.then(|| "true".to_owned());
        let mut flags: Vec<Flag> = [
            ("topic", "--topic", &self.topic),
            ("relay.name", "--name", &self.name),
            ("relay.ordering", "--ordering", &self.ordering),
            ("relay.on_dead", "--on-dead", &self.on_dead),
            ("relay.lease", "--lease", &self.lease),
            ("relay.heartbeat", "--heartbeat", &self.heartbeat),
            ("relay.busy_interval", "--busy-interval", &self.busy_interval),
            ("relay.idle_interval", "--idle-interval", &self.idle_interval),
            ("relay.batch", "--batch", &self.batch),
            ("relay.concurrency", "--concurrency", &self.concurrency),
            ("relay.dispatch_timeout", "--dispatch-timeout", &self.dispatch_timeout),
            ("relay.max_attempts", "--max-attempts", &self.max_attempts),
            ("relay.drain", "--drain", &self.drain),
            ("cleaner.retention", "--retention", &self.retention),
            ("destinations.log.format", "--format", &self.format),
            ("destinations.log.payload", "--payload", &payload),
        ]
        .into_iter()
        .filter_map(|(key, flag, text)| {
            let (key, text) = (key.to_owned(), text.clone()?);
            Some(Flag { key, text, origin: Origin::Flag(flag) })
        })
        .collect();
        let to = self.to.clone();
        flags.extend(to.map(|url| Flag::destination(url, Origin::Flag("--to"))));
        flags
    }
}
