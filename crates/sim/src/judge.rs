//! The checker: knows everything that was committed, and what each destination was given.

use std::{
    collections::{BTreeMap, BTreeSet},
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
    /// Everything comes to its end in time, and is handed over as soon as nothing is in its way.
    NobodyStalls,
    /// A relay that lost its lease cannot settle.
    StaleOwnersAreFenced,
    /// An event that is enqueued again is not written again.
    RepeatedEnqueueWritesNothing,
    /// The doctor names the cause for which an event waits.
    TheDoctorKnows,
    /// Reads walk over no more rows than they must, and relays call no more often.
    WorkIsBounded,
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
    /// It was written, was gone, and was written again.
    again: bool,
}

/// Judges how a world has ended.
pub fn judge(plan: &Plan, end: &End) -> Vec<Violation> {
    let entries = end.history.entries();
    let mut violations = Vec::new();
    let mut failovers: Vec<(u64, u64)> = Vec::new();
    let mut committed: BTreeMap<Uuid, Committed> = BTreeMap::new();
    let mut rolled_back: BTreeSet<Uuid> = BTreeSet::new();
    // In which order a destination took events for the first time.
    let mut firsts: BTreeMap<(String, Uuid), First> = BTreeMap::new();
    let mut taken: BTreeSet<(Uuid, u32)> = BTreeSet::new();
    let mut ended: BTreeMap<Uuid, u64> = BTreeMap::new();
    let mut failures: BTreeMap<Uuid, u32> = BTreeMap::new();
    let mut suspicions: BTreeMap<Uuid, u32> = BTreeMap::new();
    for entry in &entries {
        match &entry.what {
            Happened::Committed { began, events } => {
                for event in events {
                    let one = Committed {
                        began: *began,
                        at: entry.at,
                        key: event.key,
                        delayed: event.delayed,
                        again: committed.contains_key(&event.id),
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
            Happened::FailedOver { since } => {
                failovers.push((*since, entry.at));
            }
            Happened::Broke { promise, events, text } => violations.push(Violation {
                promise: *promise,
                text: text.clone(),
                events: events.clone(),
            }),
            Happened::Befell { .. } | Happened::Note(_) => {}
        }
    }
    invented(&rolled_back, &committed, &taken, &mut violations);
    lost(end, &committed, &taken, &mut violations);
    vanished(end, (&committed, &failovers), (&taken, &ended), &mut violations);
    work(plan, end, committed.len(), &mut violations);
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
    committed: &BTreeMap<Uuid, Committed>,
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

/// A committed event is in the table, or it was taken, given up, or lost with its server.
fn vanished(
    end: &End,
    (committed, failovers): (&BTreeMap<Uuid, Committed>, &[(u64, u64)]),
    (taken, ended): (&BTreeSet<(Uuid, u32)>, &BTreeMap<Uuid, u64>),
    violations: &mut Vec<Violation>,
) {
    let there: BTreeSet<Uuid> = end.rows.iter().map(|row| row.event.id()).collect();
    for (id, one) in committed {
        let with_its_server =
            failovers.iter().any(|(since, until)| (*since..=*until).contains(&one.at));
        let has_ended =
            ended.contains_key(id) || taken.range((*id, 0)..=(*id, u32::MAX)).next().is_some();
        if !there.contains(id) && !with_its_server && !has_ended {
            violations.push(Violation {
                promise: Promise::NothingIsLost,
                text: format!("{} is gone, and nobody took it", short(*id)),
                events: vec![*id],
            });
        }
    }
}

/// Rows that reads may walk over for each event and relay, and calls that a relay may make in a second.
/// Measured: see `docs/simulation.md`.
const ROWS: u64 = 60;
const CALLS: u64 = 120;

/// What it cost.
fn work(plan: &Plan, end: &End, committed: usize, violations: &mut Vec<Violation>) {
    let events = committed.max(50) as u64;
    let rows = end.walked / events / plan.relays as u64;
    let seconds = (end.lasted / 1_000_000).max(1);
    let calls = end.history.calls().len() as u64 / seconds / plan.relays as u64;
    let mut costs = |text: String| {
        violations.push(Violation { promise: Promise::WorkIsBounded, text, events: Vec::new() });
    };
    if rows > ROWS {
        costs(format!("reads have walked over {rows} rows for each event and relay"));
    }
    if calls > CALLS {
        costs(format!("{calls} calls a second for each relay"));
    }
}

fn lost(
    end: &End,
    committed: &BTreeMap<Uuid, Committed>,
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
                    short(id), row.sequence, row.status(i64::MAX), row.attempts, row.wait, row.not_before, row.locked_by.as_deref().and_then(|by| by.split('/').next()),
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
    committed: &BTreeMap<Uuid, Committed>,
    firsts: &BTreeMap<(String, Uuid), First>,
    ended: &BTreeMap<Uuid, u64>,
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
                let skips = of_a.delayed || of_a.again || of_b.again || !there.contains_key(a);
                if of_a.at >= of_b.began || skips {
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
/// shortly before the first one. Once the table says that the event was sent, only what befell the second
/// process explains it, which may have had the event in hand all the time, or a server that has lost the write.
fn repeats(entries: &[Entry], violations: &mut Vec<Violation>) {
    /// What befell a process before it took an event can still be why the outcome was not written.
    const BEFORE: u64 = 40_000_000;
    let mut taken: BTreeMap<(Uuid, u32), (u64, String)> = BTreeMap::new();
    let mut written: BTreeMap<(Uuid, u32), u64> = BTreeMap::new();
    for (place, entry) in entries.iter().enumerate() {
        let (id, replay, process) = match &entry.what {
            Happened::Given { id, replay, process, came: Came::Taken, .. } => (id, replay, process),
            Happened::Wrote { id, replay, verdict: "sent" } => {
                written.insert((*id, *replay), entry.at);
                continue;
            }
            Happened::FailedOver { since } => {
                written.retain(|_, at| *at < *since);
                continue;
            }
            Happened::Committed { events, .. } => {
                // One that was gone was written again: a new life.
                for event in events {
                    taken.retain(|(id, _), _| *id != event.id);
                    written.retain(|(id, _), _| *id != event.id);
                }
                continue;
            }
            _ => continue,
        };
        let first = taken.insert((*id, *replay), (entry.at, process.clone()));
        let Some((first, by)) = first else { continue };
        let sent = written.get(&(*id, *replay));
        let explained = entries[..=place].iter().rev().any(|other| match &other.what {
            Happened::Befell { process: befallen, .. } => {
                let about = befallen.as_ref().is_none_or(|befallen| {
                    *befallen == *process || sent.is_none() && *befallen == by
                });
                about && other.at + BEFORE >= first
            }
            _ => false,
        });
        if !explained {
            let after = match sent {
                Some(at) => format!("although the table said sent at {:.4} s", *at as f64 / 1e6),
                None => "for no reason".to_owned(),
            };
            violations.push(Violation {
                promise: Promise::RepeatsAreExplained,
                text: format!("{} was taken twice, by {by} and {process}, {after}", short(*id)),
                events: vec![*id],
            });
        }
    }
}

/// Attempts are failures of the event itself, or it was in hand when its process died.
fn burnt(
    end: &End,
    entries: &[Entry],
    failures: &BTreeMap<Uuid, u32>,
    suspicions: &BTreeMap<Uuid, u32>,
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
