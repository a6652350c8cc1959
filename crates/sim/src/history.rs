//! What has happened: told in plain words, and judged afterwards.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use posthaste_core::Key;
use uuid::Uuid;

use crate::{judge::Promise, luck::Luck};

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// When, in microseconds since the beginning.
    pub at: u64,
    /// What.
    pub what: Happened,
}

/// What can happen.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// Another server answers: what was committed after this moment may be gone.
    FailedOver {
        /// In microseconds since the beginning.
        since: u64,
    },
    /// A promise was seen to be broken.
    Broke {
        /// Which.
        promise: Promise,
        /// The events that it is about.
        events: Vec<Uuid>,
        /// How.
        text: String,
    },
    /// Anything else.
    Note(String),
}

/// An event that was committed.
#[derive(Debug, Clone, PartialEq, Eq)]
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

/// A call to the database that has reached it, or would have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// When, in microseconds since the beginning.
    pub at: u64,
    /// Whose.
    pub process: Arc<str>,
    /// Which.
    pub name: &'static str,
    /// What it asked for, in short.
    pub about: String,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, process, name, about } = self;
        write!(f, "{:>10.4} s  {process} calls {name} {about}", *at as f64 / 1e6)
    }
}

/// The history of one simulation. Cheap to clone.
#[derive(Clone, Default)]
pub struct History(Arc<Mutex<Told>>);

#[derive(Default)]
struct Told {
    entries: Vec<Entry>,
    calls: Vec<Call>,
    counts: Counts,
}

/// How often each kind of thing has happened, by its name.
pub type Counts = BTreeMap<String, u64>;

impl History {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, at: u64, what: Happened) {
        self.told().entries.push(Entry { at, what });
    }

    pub(crate) fn called(&self, call: Call) {
        self.told().calls.push(call);
    }

    /// One more of this kind has happened.
    pub(crate) fn count(&self, what: impl Into<String>) {
        *self.told().counts.entry(what.into()).or_default() += 1;
    }

    /// How often what is counted has happened so far.
    pub fn counts(&self) -> Counts {
        self.told().counts.clone()
    }

    /// All that has happened so far.
    pub fn entries(&self) -> Vec<Entry> {
        self.told().entries.clone()
    }

    /// All calls to the database so far.
    pub fn calls(&self) -> Vec<Call> {
        self.told().calls.clone()
    }

    /// A number that differs when anything has happened otherwise, or at another time.
    pub fn fingerprint(&self) -> u64 {
        let told = self.told();
        let entries = told.entries.iter().map(Entry::to_string);
        let calls = told.calls.iter().map(Call::to_string);
        let all = Luck::new(told.entries.len() as u64);
        entries.chain(calls).fold(all, |all, text| all.of(&text)).draw(0)
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "History of {} entries", self.told().entries.len())
    }
}

/// How an event is called: by whom it was written, and which of theirs it is. `e2.17` is of the writer with
/// number 2, `t33077.4` of the transaction that an accident opened after 33,077 ms.
pub(crate) fn short(id: Uuid) -> String {
    let (source, number) = ((id.as_u128() >> 32) & 0xffff, id.as_u128() & 0xffff_ffff);
    match source.checked_sub(u128::from(WRITERS)) {
        None => format!("e{source}.{number}"),
        Some(at) => format!("t{at}.{number}"),
    }
}

/// Sources of events below this are writers, the others are accidents and their time.
pub(crate) const WRITERS: u64 = 16;

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
            Happened::FailedOver { since } => {
                write!(f, "what was committed after {:.4} s may be gone", *since as f64 / 1e6)
            }
            Happened::Broke { promise, text, .. } => write!(f, "** {promise:?}: {text}"),
            Happened::Note(text) => write!(f, "{text}"),
        }
    }
}
