//! What a process says on its standard output, one JSON object a line.

use posthaste::relay::Stats;
use serde::{Deserialize, Serialize};

/// One line.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// How it stands.
    Report(Report),
    /// A commanded transaction was committed: its key.
    Written(String),
}

/// How a process stands. Relays fill the first part, writers the second.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// See [`Stats::delivered`].
    pub delivered: u64,
    /// See [`Stats::retried`].
    pub retried: u64,
    /// See [`Stats::dead`].
    pub dead: u64,
    /// See [`Stats::stale_settles`].
    pub stale_settles: u64,
    /// See [`Stats::hot_enqueued`].
    pub hot_enqueued: u64,
    /// See [`Stats::cold_enqueued`].
    pub cold_enqueued: u64,
    /// See [`Stats::held`].
    pub held: u64,
    /// See [`Stats::suspects`].
    pub suspects: u64,
    /// See [`Stats::database_errors`].
    pub database_errors: u64,
    /// See [`Stats::shards_owned`].
    pub shards_owned: u16,
    /// See [`Stats::idle`].
    pub idle: bool,
    /// Events with the transport now.
    pub in_flight: u64,
    /// It was asked to stop and has stopped.
    pub stopped: bool,

    /// Events in acknowledged transactions.
    pub committed: u64,
    /// Transactions whose end is unknown: the commit failed.
    pub unknown: u64,
}

impl Report {
    /// Takes over what a relay says of itself.
    pub fn with_stats(mut self, stats: &Stats) -> Self {
        self.delivered = stats.delivered;
        self.retried = stats.retried;
        self.dead = stats.dead;
        self.stale_settles = stats.stale_settles;
        self.hot_enqueued = stats.hot_enqueued;
        self.cold_enqueued = stats.cold_enqueued;
        self.held = stats.held;
        self.suspects = stats.suspects;
        self.database_errors = stats.database_errors;
        self.shards_owned = stats.shards_owned;
        self.idle = stats.idle;
        self
    }
}

/// Says it, in one write. A parent that has gone is not told.
pub fn say(message: &Message) {
    use std::io::Write as _;

    let Ok(mut line) = serde_json::to_string(message) else {
        return;
    };
    line.push('\n');
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}
