//! What a bench can be told.

use std::time::Duration;

use clap::{Args, Subcommand};
use posthaste::{Limits, TableName, relay::Config, store::RelayOrdering};

use crate::duration;

/// Measure, each figure beside its baseline.
#[derive(Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(super) what: What,
}

#[derive(Subcommand)]
pub(super) enum What {
    /// How fast a backlog goes out, beside the same statements without a relay
    Drain(DrainArgs),
    /// How long an event takes from commit to transport, beside a bare LISTEN round trip
    Latency(LatencyArgs),
    /// What an event costs a business transaction, beside the same insert written by hand
    Enqueue(EnqueueArgs),
    /// Whether a large backlog goes out as fast as a small one, and in how much memory
    Growth(GrowthArgs),
    /// How fast a backlog goes to a broker, beside the broker's own client without an outbox
    Publish(PublishArgs),
    /// Whether a destination that is down slows another one down
    Destinations(DestinationsArgs),
    /// Whether an operator's questions are answered as quickly in a large outbox as in a small one
    Operate(OperateArgs),
    /// What a relay with nothing to do costs in CPU time and memory
    Idle(IdleArgs),
}

impl BenchArgs {
    /// What all benches share.
    pub(super) fn common(&self) -> &Common {
        match &self.what {
            What::Drain(args) => &args.common,
            What::Latency(args) => &args.common,
            What::Enqueue(args) => &args.common,
            What::Growth(args) => &args.common,
            What::Publish(args) => &args.common,
            What::Destinations(args) => &args.common,
            What::Operate(args) => &args.common,
            What::Idle(args) => &args.common,
        }
    }

    /// The database: its password is not to be shown in errors.
    pub(crate) fn url(&self) -> &str {
        &self.common().url
    }
}

#[derive(Args)]
pub(super) struct Common {
    /// The database: `postgres://user:password@host/name?sslmode=verify-full`, `mysql://…` (also
    /// `mariadb://…`) or `sqlite:file.db`
    #[arg(long, value_name = "URL", env = "POSTHASTE_URL", hide_env_values = true)]
    pub(super) url: String,

    /// Tables to make and drop; the name starts with `bench_` and is not taken [default: a new one]
    #[arg(long, value_name = "NAME")]
    pub(super) table: Option<TableName>,

    /// Bytes of payload an event
    #[arg(long, value_name = "BYTES", default_value_t = 300, value_parser = payload)]
    pub(super) payload: usize,

    /// How many ordering keys the events have, in turn
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = positive)]
    pub(super) keys: u64,

    /// Which order the relay keeps: `per_key`, `none` or `global`
    #[arg(long, default_value = "per_key")]
    pub(super) ordering: RelayOrdering,

    /// Most events that one read fetches and one settle writes, of relay and baseline
    #[arg(long, value_name = "N", default_value_t = Config::default().batch as u64,
        value_parser = positive)]
    pub(super) batch: u64,

    /// One line of JSON instead of a table
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Args)]
pub(super) struct DrainArgs {
    #[command(flatten)]
    pub(super) common: Common,

    /// How many events are drained each time
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = positive)]
    pub(super) events: u64,

    /// How often relay and baseline take turns; figures are medians
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = positive)]
    pub(super) pairs: u64,

    /// Delete sent events (a retention of zero) instead of keeping them; the baseline does as well
    #[arg(long)]
    pub(super) delete: bool,

    /// Also drain while a transaction with a snapshot stands idle for the whole run
    #[arg(long)]
    pub(super) held_snapshot: bool,
}

#[derive(Args)]
pub(super) struct LatencyArgs {
    #[command(flatten)]
    pub(super) common: Common,

    /// How many events a second are committed
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = positive)]
    pub(super) rate: u64,

    /// For how long each way is measured
    #[arg(long = "for", value_name = "DURATION", default_value = "20s",
        value_parser = duration::parse)]
    pub(super) length: Duration,

    /// How many events each way is measured with, instead of a time
    #[arg(long, value_name = "N", value_parser = positive, conflicts_with = "length")]
    pub(super) events: Option<u64>,
}

#[derive(Args)]
pub(super) struct EnqueueArgs {
    #[command(flatten)]
    pub(super) common: Common,

    /// How many transactions each side makes, over all pairs
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = positive)]
    pub(super) events: u64,

    /// How often the two sides take turns; figures are medians
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = positive)]
    pub(super) pairs: u64,

    /// How many connections write side by side
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = positive)]
    pub(super) writers: u64,
}

#[derive(Args)]
pub(super) struct OperateArgs {
    #[command(flatten)]
    pub(super) common: Common,

    /// Events in the large outbox: half of them sent, half of them pending
    #[arg(long, value_name = "N", default_value_t = 2_000_000, value_parser = positive)]
    pub(super) events: u64,

    /// Events in the small one
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = positive)]
    pub(super) small: u64,

    /// How often each question is asked of either, in turn
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = positive)]
    pub(super) times: u64,
}

#[derive(Args)]
pub(super) struct IdleArgs {
    #[command(flatten)]
    pub(super) common: Common,

    /// For how long the relay is watched
    #[arg(long = "for", value_name = "DURATION", default_value = "60s",
        value_parser = duration::parse)]
    pub(super) length: Duration,
}

#[derive(Args)]
pub(super) struct GrowthArgs {
    #[command(flatten)]
    pub(super) common: Common,

    /// Events in the large backlog
    #[arg(long, value_name = "N", default_value_t = 2_000_000, value_parser = positive)]
    pub(super) events: u64,

    /// Events in the small backlog; so many are drained of the large one each time
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = positive)]
    pub(super) small: u64,

    /// How often the two backlogs take turns; figures are medians
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = positive)]
    pub(super) pairs: u64,

    /// Delete sent events (a retention of zero) instead of keeping them
    #[arg(long)]
    pub(super) delete: bool,
}

#[derive(Args)]
pub(super) struct PublishArgs {
    #[command(flatten)]
    pub(super) common: Common,

    /// The destination: `nats://…`, `kafka://…`, `amqp://…`, `redis://…`; others have no client to compare with
    // Its value can hold a password: help is not to show it.
    #[arg(long, value_name = "URL", env = "POSTHASTE_TO", hide_env_values = true)]
    pub(super) to: String,

    /// How many events are published each time
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = positive)]
    pub(super) events: u64,

    /// Most events that are not acknowledged, of relay and client
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = positive)]
    pub(super) window: u64,

    /// How often relay and client take turns; figures are medians
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = positive)]
    pub(super) pairs: u64,

    /// Let the relay delete sent events (a retention of zero) instead of keeping them
    #[arg(long)]
    pub(super) delete: bool,

    /// Let the relay hand over one event at a time, and one of a key
    #[arg(long)]
    pub(super) one_by_one: bool,

    /// One key for all events: the relay as it is beside the relay one by one
    #[arg(long, conflicts_with_all = ["keys", "one_by_one"])]
    pub(super) hot_key: bool,
}

#[derive(Args)]
pub(super) struct DestinationsArgs {
    #[command(flatten)]
    pub(super) common: Common,

    /// How many events there are each time, half of them for either destination
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = positive)]
    pub(super) events: u64,

    /// How often the sides take turns; figures are medians
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = positive)]
    pub(super) pairs: u64,
}

fn positive(text: &str) -> Result<u64, String> {
    match text.replace('_', "").parse() {
        Ok(0) => Err("0 measures nothing; give at least 1".to_owned()),
        Ok(number) if number <= 1_000_000_000 => Ok(number),
        Ok(_) => Err(format!("{text} is too large; give at most 1000000000")),
        Err(_) => Err(format!("{text:?} is not a whole number")),
    }
}

fn payload(text: &str) -> Result<usize, String> {
    let limit = Limits::default().payload;
    let bytes = positive(text)? as usize;
    if bytes > limit {
        return Err(format!("{bytes} bytes are more than an outbox takes; the limit is {limit}"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_and_nonsense_are_refused_with_what_would_do() {
        assert_eq!(positive("200_000"), Ok(200_000));
        assert!(positive("0").unwrap_err().contains("at least 1"));
        for text in ["", "-1", "1.5", "many", "99999999999999999999"] {
            assert!(positive(text).is_err(), "{text:?} was accepted");
        }
        assert!(positive("2000000000").unwrap_err().contains("at most"));
        assert!(payload("1048577").unwrap_err().contains("1048576"));
    }
}
