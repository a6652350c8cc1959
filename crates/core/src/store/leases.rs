use std::{fmt, str::FromStr, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use uuid::Uuid;

use super::{Held, Position};
use crate::{Error, Result};

/// How relays divide the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RelayOrdering {
    /// Events of one key in order; shards are shared among relays.
    #[default]
    PerKey,
    /// No order; rows are shared among relays.
    None,
    /// One lane for all; one relay works, the others stand by.
    Global,
}

impl RelayOrdering {
    /// The name in configuration, flags and tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PerKey => "per_key",
            Self::None => "none",
            Self::Global => "global",
        }
    }
}

impl fmt::Display for RelayOrdering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for RelayOrdering {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "per_key" => Ok(Self::PerKey),
            "none" => Ok(Self::None),
            "global" => Ok(Self::Global),
            other => Err(Error::invalid(format!(
                "ordering {other:?} is not known; use per_key, none or global"
            ))),
        }
    }
}

/// A relay as the others see it.
#[derive(Debug, Clone)]
pub struct Relay {
    /// Its name for people.
    pub name: String,
    /// This run of it. A relay that is started again is another instance.
    pub instance: Uuid,
    /// How it divides the work; relays of one outbox must agree.
    pub ordering: RelayOrdering,
    /// How long its leases last without renewal.
    pub lease: Duration,
}

impl Relay {
    /// What stands in `locked_by`: name and instance.
    pub fn owner(&self) -> String {
        format!("{}/{}", self.name, self.instance.simple())
    }
}

/// What a heartbeat learns: who is alive, and who holds what.
#[derive(Debug, Clone, Default)]
pub struct Census {
    /// Relays whose last heartbeat is younger than their lease, sorted by owner. Includes the
    /// caller.
    pub live: Vec<LiveRelay>,
    /// For every shard the owner whose lease is valid, `None` when it is free or expired.
    pub owners: Vec<Option<String>>,
}

/// A relay that is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveRelay {
    /// See [`Relay::owner`].
    pub owner: String,
    /// How it divides the work.
    pub ordering: RelayOrdering,
}

/// A destination that takes nothing, as one relay sees it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct OpenBreaker {
    /// The destination's name.
    pub destination: String,
    /// `open`, or `half_open` while it is being tried.
    pub state: String,
    /// Since when, by the relay's clock.
    pub since: Timestamp,
    /// Why it opened, or why it stayed open.
    pub error: String,
}

/// Events that could be delivered and are not, for one reason, as one relay sees them.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Stall {
    /// Why, for people.
    pub reason: String,
    /// How many of them were found; there may be more.
    pub events: u64,
    /// The first of them.
    pub sequence: i64,
    /// Its id, if it has one.
    pub event_id: Option<String>,
    /// Since when nothing explains that it waits, by the relay's clock.
    pub since: Timestamp,
}

/// What a relay tells the others and operators, beyond its heartbeat.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Report {
    /// The destinations that take nothing.
    pub breakers: Vec<OpenBreaker>,
    /// The events that could be delivered and are not.
    pub stalls: Vec<Stall>,
}

impl Report {
    /// As the column `breakers` holds it: a JSON array of breakers, an object where there are stalls, null
    /// when there is nothing to tell.
    pub fn column(&self) -> Option<String> {
        match (self.breakers.is_empty(), self.stalls.is_empty()) {
            (true, true) => None,
            (false, true) => serde_json::to_string(&self.breakers).ok(),
            (_, false) => serde_json::to_string(self).ok(),
        }
    }

    /// What the column says; nothing where it holds something else.
    pub fn parse(column: Option<&str>) -> Self {
        let Some(text) = column else { return Self::default() };
        match serde_json::from_str(text) {
            Ok(breakers) => Self { breakers, stalls: Vec::new() },
            Err(_) => serde_json::from_str(text).unwrap_or_default(),
        }
    }
}

/// A lease that was just acquired.
#[derive(Debug, Clone)]
pub struct ShardLease {
    /// Which shard, and the epoch that fences it.
    pub held: Held,
    /// Where the previous owner stood: everything before is settled or marked.
    pub mark: Position,
    /// Set when the previous owner was another relay and did not release the shard: events up to this
    /// sequence may have been in its hands when it died.
    pub suspect_to: Option<i64>,
}

/// Leases on shards, decided by the database's clock (the time of the statement or later, never
/// the time at which a transaction began).
#[async_trait]
pub trait Leases {
    /// Says that this relay is alive and has read no further than `reserved` (the highest
    /// sequence that it may hand out before its next heartbeat), and learns about the others.
    /// Relays that have long been dead and own nothing are forgotten.
    /// Of several heartbeats of one relay the highest `reserved` counts: one that was given up can run late.
    async fn heartbeat(&self, relay: &Relay, reserved: i64) -> Result<Census>;

    /// Takes those of the wanted shards that are free, expired, or stand under this relay's own name: an
    /// answer was lost, or the server has changed. The epoch of each rises by one. Never waits for a
    /// shard that somebody else is taking.
    ///
    /// From here on every read, settle, renewal and release checks, in the same statement, that it runs
    /// on the server that this answer came from, and fails with
    /// [`ErrorKind::Moved`](crate::ErrorKind::Moved) if not.
    async fn acquire(&self, relay: &Relay, wanted: &[u16]) -> Result<Vec<ShardLease>>;

    /// Extends the leases that are still held, writes the mark, and gives the shards that were
    /// still held. A shard that is missing in the answer is lost.
    async fn renew(&self, relay: &Relay, held: &[Held], mark: &Position) -> Result<Vec<u16>>;

    /// Gives shards back, with the mark from which the next owner starts. Shards that were lost
    /// already stay as they are.
    async fn release(&self, relay: &Relay, held: &[Held], mark: &Position) -> Result<()>;

    /// Says which of this relay's destinations take nothing and which events stall, for all to see.
    /// Replaces the last report. Without a heartbeat before, nothing is written.
    async fn report_state(&self, relay: &Relay, report: &Report) -> Result<()>;

    /// Forgets this relay at a graceful stop.
    async fn retire(&self, relay: &Relay) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_reads_back_and_so_does_a_list_of_breakers_alone() {
        let breaker = OpenBreaker {
            destination: "nats".to_owned(),
            state: "open".to_owned(),
            since: Timestamp::UNIX_EPOCH,
            error: "refused".to_owned(),
        };
        let stall = Stall {
            reason: "not read".to_owned(),
            events: 2,
            sequence: 7,
            event_id: None,
            since: Timestamp::UNIX_EPOCH,
        };
        let nothing = Report::default();
        let open = Report { breakers: vec![breaker], stalls: Vec::new() };
        let both = Report { stalls: vec![stall], ..open.clone() };
        assert_eq!(nothing.column(), None);
        assert!(open.column().unwrap().starts_with('['));
        for report in [nothing, open, both] {
            assert_eq!(Report::parse(report.column().as_deref()), report);
        }
        assert_eq!(Report::parse(Some("garbage")), Report::default());
    }
}
