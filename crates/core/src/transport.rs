//! Destinations: the contract that every broker, webhook, bus and handler keeps.

use std::time::Duration;

use async_trait::async_trait;

use crate::{Envelope, Result};

/// A destination.
///
/// What the relay relies on:
/// - `publish` answers with exactly one [`Outcome`] per envelope, in the order of the batch.
/// - [`Outcome::Delivered`] means that the destination itself acknowledged the event and will not
///   lose it. "Handed to a client library" is not delivered.
///
/// What a transport must not assume:
/// - that an event comes once: after a crash, a lost lease or a failed settle it comes again.
/// - that `publish` runs to its end: the relay drops it when it takes longer than the dispatch
///   timeout, and the events of that batch count as failed. A client library that would still send
///   them has to be stopped when the future is dropped.
///
/// A transport whose publishes share a connection finds the event over which the server ends it: that one
/// is a retry, and the others of the batch are delivered. Until the server has taken another event it may
/// be the server: then it is [`Outcome::TimedOut`]. While the server is not there, all are unavailable.
///
/// Different batches may be published side by side; the relay never has two events of one
/// ordering key under way, unless [`Acceptance`] proves that this is safe. A panic is caught and
/// becomes a retry. A transport that takes several events at once limits the time of their
/// acknowledgements itself, and declares it as [`Capabilities::longest_publish`]: the relay's dispatch
/// timeout fails the whole batch.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// The destination's name in logs, attempts and status.
    fn name(&self) -> &str;

    /// What it can do; the relay uses it as declared.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Connects, publishes nothing, and says in a sentence what it found. A destination in the
    /// same process has nothing to say.
    async fn check(&self) -> Result<String> {
        Ok(format!("{} is in this process", self.name()))
    }

    /// Publishes a batch and answers per event.
    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome>;
}

/// What a transport can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Most events that one `publish` takes. With 1 (the default) a slow event delays no other.
    pub max_batch: usize,
    /// What part of a batch can have been accepted when it fails.
    pub acceptance: Acceptance,
    /// Whether the destination drops repeats by [`Envelope::deduplication_id`].
    pub deduplicates: bool,
    /// Largest payload, in bytes.
    pub max_message: Option<usize>,
    /// Whether headers travel.
    pub headers: bool,
    /// Longest time that one `publish` takes, whatever the destination does: connecting, acknowledgements
    /// and tries of single events. A relay whose dispatch timeout is not longer is refused. `None`
    /// where nothing limits it but that timeout.
    pub longest_publish: Option<Duration>,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            max_batch: 1,
            acceptance: Acceptance::Any,
            deduplicates: false,
            max_message: None,
            headers: true,
            longest_publish: None,
        }
    }
}

/// What part of a batch can have been accepted when it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acceptance {
    /// Any part: events of one key go one by one.
    Any,
    /// A prefix: several events of one key may fly together. Behind one that was refused, no later
    /// event of its key in the same batch was accepted.
    Prefix,
    /// All or nothing: several events of one key may fly together. Events that are refused for what
    /// they are (too large, say) are left out, and with them those of their key behind them.
    Atomic,
}

/// What became of one event. Error texts are kept with the event and logged: no payload and no
/// secret belongs in them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The destination acknowledged it.
    Delivered,
    /// It failed and may succeed later. With `after` the destination named the time itself and no
    /// attempt is burnt.
    Retry {
        /// Why.
        error: String,
        /// The destination's own wish.
        after: Option<Duration>,
    },
    /// The destination has not answered in time, and may have taken it. That can be the event's fault
    /// or the destination's: it counts as the event's own failure only when other events are taken.
    TimedOut {
        /// How long it was waited for.
        error: String,
    },
    /// It failed and always will.
    Dead {
        /// Why.
        error: String,
    },
    /// The destination cannot be reached, or takes nothing for now. No attempt is burnt.
    Unavailable {
        /// Why.
        error: String,
        /// The destination's own wish, for this event.
        after: Option<Duration>,
    },
}

impl Outcome {
    /// A failure that may pass.
    pub fn retry(error: impl Into<String>) -> Self {
        Self::Retry { error: error.into(), after: None }
    }

    /// No answer came in time.
    pub fn timed_out(error: impl Into<String>) -> Self {
        Self::TimedOut { error: error.into() }
    }

    /// The destination takes nothing for now.
    pub fn unavailable(error: impl Into<String>) -> Self {
        Self::Unavailable { error: error.into(), after: None }
    }

    /// Not tried, because an earlier event of its key in the same batch was refused: what becomes of
    /// the key then is the relay's to say.
    pub fn held() -> Self {
        Self::Retry {
            error: "an earlier event of its key in the same batch was not taken".to_owned(),
            after: Some(Duration::ZERO),
        }
    }

    /// A failure that will not pass.
    pub fn dead(error: impl Into<String>) -> Self {
        Self::Dead { error: error.into() }
    }

    /// Why it was not delivered; `None` when it was.
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Delivered => None,
            Self::Retry { error, .. }
            | Self::TimedOut { error }
            | Self::Dead { error }
            | Self::Unavailable { error, .. } => Some(error),
        }
    }
}
