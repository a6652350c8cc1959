//! The checker: knows everything that was committed, and what each destination was given.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
};

use posthaste_core::{Key, Status, store::RelayOrdering};
use uuid::Uuid;

use crate::{
    history::{Came, Entry, Happened, short},
    plan::Plan,
    world::{End, MEMORY},
};

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which promise.
    pub promise: Promise,
    /// How.
    pub text: String,
    /// The events that it is about.
    pub events: Vec<Uuid>,
}

/// What the checker looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Promise {
    /// A committed event is delivered, or dead and visible.
    NothingIsLost,
    /// What rolled back is never delivered.
    NothingIsInvented,
    /// What the table calls sent was acknowledged.
    SentWasTaken,
    /// Events of a key come in order.
    InOrder,
    /// An event is given twice only where something explains it.
    RepeatsAreExplained,
    /// An outage burns no attempt.
    OutagesBurnNothing,
    /// Everything comes to its end in time.
    NobodyStalls,
    /// Memory is bounded.
    Bounded,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.promise, self.text)
    }
}

/// A first delivery.
#[derive(Clone, Copy)]
struct First {
    at: u64,
}

struct Committed {
    began: u64,
    at: u64,
    key: Option<Key>,
    delayed: bool,
}

/// Judges how a world has ended.
pub fn judge(plan: &Plan, end: &End) -> Vec<Violation> {
    let entries = end.history.entries();
    let mut violations = Vec::new();
    let mut committed: HashMap<Uuid, Committed> = HashMap::new();
    let mut rolled_back: BTreeSet<Uuid> = BTreeSet::new();
    // In which order a destination took events for the first time.
    let mut firsts: BTreeMap<(String, Uuid), First> = BTreeMap::new();
    let mut taken: BTreeSet<(Uuid, u32)> = BTreeSet::new();
    let mut ended: HashMap<Uuid, u64> = HashMap::new();
    let mut failures: HashMap<Uuid, u32> = HashMap::new();
    let mut suspicions: HashMap<Uuid, u32> = HashMap::new();
    for entry in &entries {
        match &entry.what {
            Happened::Committed { began, events } => {
                for event in events {
                    let one = Committed {
                        began: *began,
                        at: entry.at,
                        key: event.key,
                        delayed: event.delayed,
                    };
                    committed.insert(event.id, one);
                }
            }
            Happened::RolledBack { ids } => rolled_back.extend(ids),
            Happened::Given { id, replay, destination, came, .. } => match came {
                Came::Taken | Came::TakenInSilence => {
                    taken.insert((*id, *replay));
                    firsts.entry((destination.clone(), *id)).or_insert(First { at: entry.at });
                }
                Came::Failed => *failures.entry(*id).or_default() += 1,
                Came::Unavailable => {}
            },
            Happened::Wrote { id, verdict, replay } => match *verdict {
                "sent" if !taken.contains(&(*id, *replay)) => violations.push(Violation {
                    promise: Promise::SentWasTaken,
                    text: format!(
                        "{} counts as sent (delivery {replay}), and nobody took it",
                        short(*id)
                    ),
                    events: vec![*id],
                }),
                "suspect" => *suspicions.entry(*id).or_default() += 1,
                "dead" | "discarded" => {
                    ended.entry(*id).or_insert(entry.at);
                }
                _ => {}
            },
            Happened::Befell { .. } | Happened::Note(_) => {}
        }
    }
    invented(&rolled_back, &committed, &taken, &mut violations);
    lost(end, &committed, &taken, &mut violations);
    if plan.ordering != RelayOrdering::None {
        order(&committed, &firsts, &ended, end, &mut violations);
    }
    repeats(&entries, &mut violations);
    // Under row leases a claim that could not be renewed counts: the relay may have died over the event.
    if plan.ordering != RelayOrdering::None {
        burnt(end, &entries, &failures, &suspicions, &mut violations);
    }
    if end.memory > MEMORY + 6 * 100_000 {
        violations.push(Violation {
            promise: Promise::Bounded,
            text: format!("a relay counted {} bytes of events", end.memory),
            events: Vec::new(),
        });
    }
    violations
}

fn invented(
    rolled_back: &BTreeSet<Uuid>,
    committed: &HashMap<Uuid, Committed>,
    taken: &BTreeSet<(Uuid, u32)>,
    violations: &mut Vec<Violation>,
) {
    for (id, _) in taken {
        if rolled_back.contains(id) && !committed.contains_key(id) {
            violations.push(Violation {
                promise: Promise::NothingIsInvented,
                text: format!("{} was rolled back, and was delivered", short(*id)),
                events: vec![*id],
            });
        }
    }
}

fn lost(
    end: &End,
    committed: &HashMap<Uuid, Committed>,
    taken: &BTreeSet<(Uuid, u32)>,
    violations: &mut Vec<Violation>,
) {
    let deleted: BTreeSet<Uuid> = end.deleted.iter().copied().collect();
    for row in &end.rows {
        let id = row.event.id();
        if row.is_unsettled() {
            violations.push(Violation {
                promise: Promise::NobodyStalls,
                text: format!(
                    "{} (#{}) waits at the end: {:?}, attempts {}, wait {:?}, not before {:?}, lease {:?}",
                    short(id), row.sequence, row.status(i64::MAX), row.attempts, row.wait, row.not_before, row.locked_by,
                ),
                events: vec![id],
            });
        } else if row.sent_at.is_some() && !taken.iter().any(|(one, _)| *one == id) {
            violations.push(Violation {
                promise: Promise::NothingIsLost,
                text: format!(
                    "{} (#{}) counts as sent, and nobody took it",
                    short(id),
                    row.sequence
                ),
                events: vec![id],
            });
        }
    }
    for id in &deleted {
        if committed.contains_key(id) && !taken.iter().any(|(one, _)| one == id) {
            violations.push(Violation {
                promise: Promise::NothingIsLost,
                text: format!("{} was deleted as sent, and nobody took it", short(*id)),
                events: vec![*id],
            });
        }
    }
}

/// If a was committed before b's enqueue began, b is not taken before a was taken or was given up.
fn order(
    committed: &HashMap<Uuid, Committed>,
    firsts: &BTreeMap<(String, Uuid), First>,
    ended: &HashMap<Uuid, u64>,
    end: &End,
    violations: &mut Vec<Violation>,
) {
    let there: BTreeMap<Uuid, (&str, Status)> = end
        .rows
        .iter()
        .map(|row| (row.event.id(), (row.event.aggregate_type(), row.status(i64::MAX))))
        .collect();
    let mut keys: BTreeMap<Key, Vec<(Uuid, &Committed)>> = BTreeMap::new();
    for (id, one) in committed {
        if let Some(key) = one.key {
            keys.entry(key).or_default().push((*id, one));
        }
    }
    let mut earliest: BTreeMap<Uuid, u64> = BTreeMap::new();
    for ((_, id), first) in firsts {
        let at = earliest.entry(*id).or_insert(first.at);
        *at = first.at.min(*at);
    }
    let mut destinations: BTreeSet<&String> = BTreeSet::new();
    destinations.extend(firsts.keys().map(|(destination, _)| destination));
    for events in keys.values_mut() {
        events.sort_by_key(|(id, _)| *id);
        for (b, of_b) in events.iter() {
            for (a, of_a) in events.iter() {
                if of_a.at >= of_b.began || of_a.delayed || !there.contains_key(a) {
                    continue;
                }
                for destination in &destinations {
                    let first =
                        |id: Uuid| firsts.get(&((*destination).clone(), id)).map(|first| first.at);
                    let Some(b_at) = first(*b) else { continue };
                    let gone = ended.get(a).is_some_and(|at| *at <= b_at);
                    // Wherever it was taken first: routes may have changed since.
                    let taken = earliest.get(a).is_some_and(|at| *at <= b_at);
                    let late = first(*a).is_some_and(|a_at| a_at > b_at);
                    if late && !gone && !taken {
                        violations.push(Violation {
                            promise: Promise::InOrder,
                            text: format!(
                                "{destination} took {} before {} of the same key",
                                short(*b),
                                short(*a)
                            ),
                            events: vec![*a, *b],
                        });
                    }
                }
            }
        }
    }
}

/// A second delivery needs a reason: something befell the process that had the event, or everybody, since
/// shortly before the first one.
fn repeats(entries: &[Entry], violations: &mut Vec<Violation>) {
    /// What befell a process before it took an event can still be why the outcome was not written.
    const BEFORE: u64 = 40_000_000;
    let mut taken: HashMap<(Uuid, u32), (u64, String)> = HashMap::new();
    for entry in entries {
        let Happened::Given { id, replay, process, came, .. } = &entry.what else { continue };
        match came {
            Came::Taken => {
                let Some((first, by)) = taken.insert((*id, *replay), (entry.at, process.clone()))
                else {
                    continue;
                };
                let explained = entries.iter().any(|other| match &other.what {
                    Happened::Befell { process, .. } => {
                        let about = process.as_ref().is_none_or(|process| *process == by);
                        about && other.at + BEFORE >= first && other.at <= entry.at
                    }
                    _ => false,
                });
                if !explained {
                    violations.push(Violation {
                        promise: Promise::RepeatsAreExplained,
                        text: format!(
                            "{} was taken twice, by {by} and {process}, for no reason",
                            short(*id)
                        ),
                        events: vec![*id],
                    });
                }
            }
            Came::TakenInSilence | Came::Failed | Came::Unavailable => {}
        }
    }
}

/// Attempts are failures of the event itself, or it was in hand when its process died.
fn burnt(
    end: &End,
    entries: &[Entry],
    failures: &HashMap<Uuid, u32>,
    suspicions: &HashMap<Uuid, u32>,
    violations: &mut Vec<Violation>,
) {
    for row in &end.rows {
        let failed = failures.get(&row.event.id()).copied().unwrap_or(0);
        let suspected = suspicions.get(&row.event.id()).copied().unwrap_or(0);
        // Timeouts and failures of everything count once something else was taken.
        let outages = entries.iter().any(|entry| matches!(&entry.what, Happened::Befell { what, .. } if what.contains("is down: Hangs") || what.contains("is down: Fails") || what.contains("is down: SwallowsAnswers") || what.contains("ms each way")));
        if row.replay == 0 && !outages && row.attempts > failed + suspected {
            violations.push(Violation {
                promise: Promise::OutagesBurnNothing,
                text: format!(
                    "{} has {} attempts, {failed} failures of its own and {suspected} suspicions",
                    short(row.event.id()),
                    row.attempts
                ),
                events: vec![row.event.id()],
            });
        }
    }
}
