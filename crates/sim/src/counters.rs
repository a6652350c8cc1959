//! What all the simulations together have met: a kind of accident that never happens tests nothing.

use std::fmt;

use posthaste_relay::lanes::transitions::{self, STATES};

use crate::{
    Verdict,
    history::Counts,
    plan::{Accepts, Fate, Kind},
};

/// Transitions of a lane that there are, by the names of their states.
///
/// A lane is open when it is made, and becomes what the table says at once. Only under `global` is a lane open
/// again that was blocked, and only a replayed dead event lets a parked one wait.
const TRANSITIONS: [(&str, &str); 14] = [
    ("absent", "open"),
    ("open", "absent"),
    ("open", "waiting"),
    ("open", "parked"),
    ("open", "releasing"),
    ("waiting", "absent"),
    ("waiting", "open"),
    ("waiting", "releasing"),
    ("parked", "absent"),
    ("parked", "waiting"),
    ("parked", "releasing"),
    ("releasing", "absent"),
    ("releasing", "waiting"),
    ("releasing", "parked"),
];

/// How often each thing was met.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters(Counts);

impl Counters {
    /// All that must be met, with zero.
    pub fn expected() -> Self {
        let kinds = Kind::ALL.iter().map(|kind| format!("accident: {kind:?}"));
        let fates = Fate::ALL.iter().map(|fate| format!("fate: {}", fate.name()));
        let lanes = TRANSITIONS.iter().map(|(from, to)| format!("lane: {from} to {to}"));
        let of = |prefix: &'static str, names: &'static [&'static str]| {
            names.iter().map(move |name| format!("{prefix}: {name}"))
        };
        let verdicts = ["sent", "retry", "dead", "held", "suspect", "unclaimed", "discarded"];
        let verdicts = verdicts.iter().map(|verdict| format!("verdict: {verdict}"));
        let accepts = [Accepts::One, Accepts::Any, Accepts::Prefix, Accepts::Atomic];
        let accepts = accepts.iter().map(|accepts| format!("accepts: {accepts:?}"));
        let all = kinds
            .chain(fates)
            .chain(lanes)
            .chain(verdicts)
            .chain(accepts)
            .chain(of("destination", &["Refuses", "Hangs", "SwallowsAnswers", "Fails"]))
            .chain(of("pause", &["Outbox", "Relay", "Destination", "Key"]))
            .chain(of("ordering", &["per_key", "none", "global"]))
            .chain(of("on_dead", &["Skip", "Park"]))
            .chain(of(
                "call",
                &[
                    "not reached",
                    "lost",
                    "lost, no answer",
                    "happened, answer lost",
                    "happened, no answer",
                ],
            ))
            .chain(of(
                "writer",
                &[
                    "rolls back",
                    "tells a relay",
                    "repeats an event",
                    "repeats an event that is gone",
                ],
            ))
            .chain(of(
                "doctor",
                &[
                    "Delayed",
                    "Held",
                    "Parked",
                    "Retry",
                    "BreakerOpen",
                    "Paused",
                    "ShardUnowned",
                    "NoRelay",
                    "InProgress",
                ],
            ));
        Self(all.map(|name| (name, 0)).collect())
    }

    /// Adds what one simulation has met, which has just ended on this thread.
    pub(crate) fn of(plan: &crate::plan::Plan, end: &crate::world::End) -> Self {
        let mut counts = end.history.counts();
        let mut count = |name: String, times: u64| *counts.entry(name).or_default() += times;
        for entry in end.history.entries() {
            if let crate::history::Happened::Wrote { verdict, .. } = entry.what {
                count(format!("verdict: {verdict}"), 1);
            }
        }
        for accepts in &plan.acceptance[..plan.destinations] {
            count(format!("accepts: {accepts:?}"), 1);
        }
        count(format!("ordering: {}", plan.ordering), 1);
        count(format!("on_dead: {:?}", plan.on_dead), 1);
        let lanes = transitions::take();
        for (from, times) in STATES.iter().zip(lanes) {
            for (to, times) in STATES.iter().zip(times).filter(|(_, times)| *times > 0) {
                count(format!("lane: {from} to {to}"), times);
            }
        }
        Self(counts)
    }

    /// Adds what another simulation has met.
    pub fn add(&mut self, verdict: &Verdict) {
        for (name, times) in &verdict.counters.0 {
            *self.0.entry(name.clone()).or_default() += times;
        }
    }

    /// What was never met.
    pub fn missing(&self) -> Vec<&str> {
        let never = self.0.iter().filter(|(_, times)| **times == 0);
        never.map(|(name, _)| name.as_str()).collect()
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, times) in &self.0 {
            writeln!(f, "{times:>12}  {name}")?;
        }
        Ok(())
    }
}
