//! What the two kinds of process can be told. Tests fill these structures and the binary parses
//! them: one definition for both sides.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use posthaste::{
    TableName,
    backoff::Backoff,
    relay::{Config, Housekeeping, OnDead},
    store::RelayOrdering,
};

/// A relay: a process of its own, or one beside a writer.
#[derive(Debug, Clone, Args)]
pub struct RelayOptions {
    /// The database.
    #[arg(long, default_value = "")]
    pub url: String,
    /// The outbox.
    #[arg(long, default_value = "outbox_event")]
    pub table: TableName,
    /// Its name in leases and journals.
    #[arg(long, default_value = "relay")]
    pub name: String,
    /// `per_key`, `none` or `global`.
    #[arg(long, default_value = "per_key")]
    pub ordering: RelayOrdering,
    /// `skip` or `park`.
    #[arg(long, default_value = "skip", value_parser = on_dead)]
    pub on_dead: OnDead,
    /// How long a lease lasts, in milliseconds.
    #[arg(long, default_value_t = 2_000)]
    pub lease: u64,
    /// How often leases are renewed, in milliseconds.
    #[arg(long, default_value_t = 500)]
    pub heartbeat: u64,
    /// Pause between polls while there is work, in milliseconds.
    #[arg(long, default_value_t = 20)]
    pub busy: u64,
    /// Longest pause between polls, in milliseconds.
    #[arg(long, default_value_t = 200)]
    pub idle: u64,
    /// Most events of one read and one settle.
    #[arg(long, default_value_t = 50)]
    pub batch: usize,
    /// Most publishes under way.
    #[arg(long, default_value_t = 16)]
    pub concurrency: usize,
    /// Connections to the database.
    #[arg(long, default_value_t = 4)]
    pub connections: u32,
    /// The failure with this number is the last.
    #[arg(long, default_value_t = 10)]
    pub max_attempts: u32,
    /// The wait after a failure, in milliseconds.
    #[arg(long, default_value_t = 30)]
    pub backoff: u64,
    /// The journal that deliveries are appended to.
    #[arg(long, default_value = "deliveries")]
    pub out: PathBuf,
    /// This part of all hand-overs fails, at random.
    #[arg(long, default_value_t = 0.0)]
    pub fail: f64,
    /// Every hand-over is refused, and to come again after so many milliseconds.
    #[arg(long)]
    pub refuse: Option<u64>,
    /// How long a hand-over takes, in milliseconds.
    #[arg(long, default_value_t = 0)]
    pub delay: u64,
    /// The handler aborts the process for events of this type.
    #[arg(long)]
    pub abort_on: Option<String>,
    /// The relay's own clock stands still, as if it could not be trusted: only the database's
    /// fence is left.
    #[arg(long)]
    pub frozen_clock: bool,
    /// For failures at random.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

fn on_dead(text: &str) -> Result<OnDead, posthaste::Error> {
    text.parse()
}

impl RelayOptions {
    /// The most events that a relay with these settings can have delivered and not settled: four
    /// batches in a settle, four waiting for one, and what is with the transport.
    pub fn most_in_hand(&self) -> usize {
        8 * self.batch + self.concurrency
    }

    /// The lease as a duration.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease)
    }

    /// The heartbeat as a duration.
    pub fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.heartbeat)
    }

    /// The relay's settings.
    pub fn config(&self) -> Config {
        Config {
            name: self.name.clone(),
            ordering: self.ordering,
            on_dead: self.on_dead,
            lease: self.lease(),
            heartbeat: self.heartbeat(),
            busy_interval: Duration::from_millis(self.busy),
            idle_interval: Duration::from_millis(self.idle),
            batch: self.batch,
            concurrency: self.concurrency,
            backoff: Backoff::Fixed(Duration::from_millis(self.backoff)),
            max_attempts: self.max_attempts,
            housekeeping: Housekeeping { purge_interval: None, ..Housekeeping::default() },
            ..Config::default()
        }
    }

    /// The same as arguments of the binary.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments: Vec<String> = [
            ("--url", self.url.clone()),
            ("--table", self.table.qualified()),
            ("--name", self.name.clone()),
            ("--ordering", self.ordering.to_string()),
            ("--on-dead", if self.on_dead == OnDead::Park { "park" } else { "skip" }.to_owned()),
            ("--lease", self.lease.to_string()),
            ("--heartbeat", self.heartbeat.to_string()),
            ("--busy", self.busy.to_string()),
            ("--idle", self.idle.to_string()),
            ("--batch", self.batch.to_string()),
            ("--concurrency", self.concurrency.to_string()),
            ("--connections", self.connections.to_string()),
            ("--max-attempts", self.max_attempts.to_string()),
            ("--backoff", self.backoff.to_string()),
            ("--out", self.out.display().to_string()),
            ("--fail", self.fail.to_string()),
            ("--delay", self.delay.to_string()),
            ("--seed", self.seed.to_string()),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect();
        if let Some(event_type) = &self.abort_on {
            arguments.extend(["--abort-on".to_owned(), event_type.clone()]);
        }
        if let Some(millis) = self.refuse {
            arguments.extend(["--refuse".to_owned(), millis.to_string()]);
        }
        if self.frozen_clock {
            arguments.push("--frozen-clock".to_owned());
        }
        arguments
    }
}

/// Who learns of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Path {
    /// A relay in the writer's own process, at once.
    Hot,
    /// Relays elsewhere are woken.
    Wake,
    /// Nobody is told.
    Plain,
}

/// A writer.
#[derive(Debug, Clone, Args)]
pub struct WriterOptions {
    /// The database and the outbox; with the path `hot`, all about the relay beside it.
    #[command(flatten)]
    pub relay: RelayOptions,
    /// The journal that transactions are appended to.
    #[arg(long, default_value = "commits")]
    pub journal: PathBuf,
    /// Who learns of a commit.
    #[arg(long, value_enum, default_value_t = Path::Wake)]
    pub path: Path,
    /// How many keys are written to.
    #[arg(long, default_value_t = 1_000)]
    pub keys: u32,
    /// How many transactions run side by side.
    #[arg(long, default_value_t = 2)]
    pub side_by_side: u32,
    /// Most events of one transaction.
    #[arg(long, default_value_t = 4)]
    pub per_transaction: usize,
    /// This part of all transactions is rolled back.
    #[arg(long, default_value_t = 0.1)]
    pub rollback: f64,
    /// Longest pause between two transactions, in milliseconds.
    #[arg(long, default_value_t = 10)]
    pub pause: u64,
    /// Writes nothing by itself: each line `write KEY` on its standard input is one transaction.
    #[arg(long)]
    pub commanded: bool,
    /// Dies the moment its first commit is acknowledged, before anything can be made of it.
    #[arg(long)]
    pub dies_after_commit: bool,
}

impl WriterOptions {
    /// The same as arguments of the binary.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = self.relay.arguments();
        let path = match self.path {
            Path::Hot => "hot",
            Path::Wake => "wake",
            Path::Plain => "plain",
        };
        arguments.extend(
            [
                ("--journal", self.journal.display().to_string()),
                ("--path", path.to_owned()),
                ("--keys", self.keys.to_string()),
                ("--side-by-side", self.side_by_side.to_string()),
                ("--per-transaction", self.per_transaction.to_string()),
                ("--rollback", self.rollback.to_string()),
                ("--pause", self.pause.to_string()),
            ]
            .into_iter()
            .flat_map(|(flag, value)| [flag.to_owned(), value]),
        );
        if self.commanded {
            arguments.push("--commanded".to_owned());
        }
        if self.dies_after_commit {
            arguments.push("--dies-after-commit".to_owned());
        }
        arguments
    }
}
