//! What has happened: told in plain words, and judged afterwards.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use posthaste_core::Key;
use uuid::Uuid;

/// One thing that happened.
#[derive(Debug, Clone)]
pub struct Entry {
    /// When, in microseconds since the beginning.
    pub at: u64,
    /// What.
    pub what: Happened,
}

/// What can happen.
#[derive(Debug, Clone)]
pub enum Happened {
    /// A transaction committed these events; each with its key and number.
    Committed {
        /// When the first `enqueue` began.
        began: u64,
        /// The events.
        events: Vec<Written>,
    },
    /// A transaction rolled back, or its savepoint.
    RolledBack {
        /// The events.
        ids: Vec<Uuid>,
    },
    /// A destination was given an event.
    Given {
        /// The event.
        id: Uuid,
        /// Which delivery of it.
        replay: u32,
        /// By which process.
        process: String,
        /// To which destination.
        destination: String,
        /// What came of it.
        came: Came,
    },
    /// The server wrote a verdict.
    Wrote {
        /// The event.
        id: Uuid,
        /// Which delivery of it.
        replay: u32,
        /// `sent`, `dead`, …
        verdict: &'static str,
    },
    /// Something befell a process: repeats of what it had in hand are explained by it.
    Befell {
        /// Which; `None`: all of them.
        process: Option<String>,
        /// What.
        what: String,
    },
    /// Anything else.
    Note(String),
}

/// An event that was committed.
#[derive(Debug, Clone)]
pub struct Written {
    /// The event.
    pub id: Uuid,
    /// Its number.
    pub sequence: i64,
    /// Its key.
    pub key: Option<Key>,
    /// It falls due later.
    pub delayed: bool,
}

/// What came of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Came {
    /// It was taken, and the relay was told so.
    Taken,
    /// It was taken, and the relay was not told so.
    TakenInSilence,
    /// It was not taken; the event's own fault.
    Failed,
    /// It was not taken; the destination's fault.
    Unavailable,
}

/// The history of one simulation. Cheap to clone.
#[derive(Clone, Default)]
pub struct History(Arc<Mutex<Vec<Entry>>>);

impl History {
    pub(crate) fn add(&self, at: u64, what: Happened) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Entry { at, what });
    }

    /// All that has happened so far.
    pub fn entries(&self) -> Vec<Entry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "History of {} entries", self.entries().len())
    }
}

/// The first characters of an id that differ: the number that the simulation gave the event.
pub(crate) fn short(id: Uuid) -> String {
    format!("e{}", id.as_u128() & 0xffff_ffff)
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>10.4} s  ", self.at as f64 / 1e6)?;
        match &self.what {
            Happened::Committed { began, events } => {
                write!(f, "a transaction (since {:.4} s) commits", *began as f64 / 1e6)?;
                for event in events.iter().take(20) {
                    let key =
                        event.key.map_or("-".to_owned(), |key| format!("{:04x}", key.0 as u16));
                    write!(f, " {}(#{}, key {key})", short(event.id), event.sequence)?;
                }
                if events.len() > 20 { write!(f, " … {} events", events.len()) } else { Ok(()) }
            }
            Happened::RolledBack { ids } => {
                let names: Vec<String> = ids.iter().take(20).map(|id| short(*id)).collect();
                write!(f, "a transaction rolls back {}", names.join(" "))
            }
            Happened::Given { id, replay, process, destination, came } => {
                let came = match came {
                    Came::Taken => "takes",
                    Came::TakenInSilence => "takes in silence",
                    Came::Failed => "refuses",
                    Came::Unavailable => "is not there for",
                };
                write!(f, "{destination} {came} {}", short(*id))?;
                if *replay > 0 {
                    write!(f, " (replay {replay})")?;
                }
                write!(f, " from {process}")
            }
            Happened::Wrote { id, verdict, .. } => {
                write!(f, "the table says of {}: {verdict}", short(*id))
            }
            Happened::Befell { process, what } => {
                write!(
                    f,
                    "!! {what}{}",
                    process.as_ref().map_or(String::new(), |p| format!(" ({p})"))
                )
            }
            Happened::Note(text) => write!(f, "{text}"),
        }
    }
}
