use std::fmt;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::{Error, Key, Result};

/// What can be paused. A pause is stored with the outbox: every relay obeys it, and it survives
/// restarts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Pausable {
    /// Every relay of the outbox.
    Outbox,
    /// The relay of this name: it hands its work over to the others and stands by.
    Relay(String),
    /// The destination of this name: its events wait, others go on.
    Destination(String),
    /// One ordering key: its events wait at all destinations.
    Key(Key),
}

impl Pausable {
    /// What stands in the column `kind`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Outbox => "outbox",
            Self::Relay(_) => "relay",
            Self::Destination(_) => "destination",
            Self::Key(_) => "key",
        }
    }

    /// What stands in the column `name`: empty for the outbox, 16 hexadecimal digits for a key.
    pub fn name(&self) -> String {
        match self {
            Self::Outbox => String::new(),
            Self::Relay(name) | Self::Destination(name) => name.clone(),
            Self::Key(key) => format!("{:016x}", key.0),
        }
    }

    /// What the columns say; an error for anything that [`kind`](Self::kind) and
    /// [`name`](Self::name) never give.
    pub fn parse(kind: &str, name: &str) -> Result<Self> {
        match kind {
            "outbox" if name.is_empty() => Ok(Self::Outbox),
            "relay" if !name.is_empty() => Ok(Self::Relay(name.to_owned())),
            "destination" if !name.is_empty() => Ok(Self::Destination(name.to_owned())),
            "key" if name.len() == 16 => u64::from_str_radix(name, 16)
                .map(|bits| Self::Key(Key(bits.cast_signed())))
                .map_err(|_| Error::invalid(format!("key {name:?} is not 16 hexadecimal digits"))),
            _ => Err(Error::invalid(format!(
                "{kind:?} {name:?} is nothing that can be paused; use outbox, relay NAME, \
                 destination NAME or key KEY"
            ))),
        }
    }
}

impl fmt::Display for Pausable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outbox => f.write_str("outbox"),
            other => write!(f, "{} {}", other.kind(), other.name()),
        }
    }
}

/// A pause in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// What is paused.
    pub what: Pausable,
    /// For people: why, and for a key which one it is.
    pub note: Option<String>,
    /// By whom.
    pub by: String,
    /// Since when, by the database's clock.
    pub since: Timestamp,
}

/// Pauses: stored, obeyed by every relay, surviving restarts.
#[async_trait]
pub trait Control {
    /// All pauses in force, oldest first. A row that [`Pausable::parse`] does not know is left out.
    async fn pauses(&self) -> Result<Vec<Pause>>;

    /// Pauses something; `false` when it was paused already, and then nothing changes.
    async fn pause(&self, what: &Pausable, by: &str, note: Option<&str>) -> Result<bool>;

    /// Lets it go on; `false` when it was not paused.
    async fn resume(&self, what: &Pausable) -> Result<bool>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_columns_hold_reads_back() {
        for what in [
            Pausable::Outbox,
            Pausable::Relay("r1".into()),
            Pausable::Destination("nats".into()),
            Pausable::Key(Key(-2)),
            Pausable::Key(Key::of("6:acme")),
        ] {
            assert_eq!(Pausable::parse(what.kind(), &what.name()).unwrap(), what);
        }
    }

    #[test]
    fn nothing_else_can_be_paused() {
        for (kind, name) in [
            ("relay", ""),
            ("outbox", "x"),
            ("key", "12"),
            ("key", "zzzzzzzzzzzzzzzz"),
            ("moon", "x"),
        ] {
            assert!(Pausable::parse(kind, name).is_err(), "{kind} {name}");
        }
    }
}
