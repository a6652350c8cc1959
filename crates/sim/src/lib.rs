//! Whole clusters of Posthaste in one process: seeded and judged.
//!
//! A [`Plan`] is all that a seed decides: how many relays, shards, keys and destinations, what is special about
//! events, and which accidents happen when. [`simulate`] lives through it in virtual time, with the real relay on a
//! database in memory, and judges what happened. A plan with violations can be [`shrink`]ed to the accidents that
//! matter.
//!
//! ```text
//!  seed ──► plan ──► world: writers ─► database in memory ◄─ wire ◄─ relays ─► destinations
//!                              │                                      │            │
//!                              └────────────── history ◄──────────────┴────────────┘
//!                                                 │
//!                                               judge ──► violations, told as a story
//! ```
//!
//! | module | what it does |
//! | --- | --- |
//! | [`plan`] | turns a seed into a plan |
//! | [`world`] | writers, operators, accidents, and the end |
//! | `process`, `wire`, `destination` | what a relay's calls meet on their way out and back |
//! | [`database`] | the store contract, as a model |
//! | [`history`] | what happened |
//! | [`mod@judge`] | which promises were broken |

pub mod counters;
pub mod database;
mod destination;
mod doctor;
mod fence;
pub mod history;
pub mod judge;
mod luck;
pub mod plan;
mod process;
mod stalls;
mod wire;
pub mod world;

use std::fmt::Write;

use crate::{
    counters::Counters,
    history::Happened,
    judge::{Violation, judge},
    plan::{Fate, Plan},
    world::{End, live},
};

/// How one simulation ended.
#[derive(Debug)]
pub struct Verdict {
    /// What was planned.
    pub plan: Plan,
    /// What was left in the end.
    pub end: End,
    /// Which promises were broken.
    pub violations: Vec<Violation>,
    /// What was met.
    pub counters: Counters,
}

/// Lives through a plan, and judges it. The same plan has the same history every time, call by call.
///
/// # Panics
///
/// When no runtime can be started.
pub fn simulate(plan: &Plan) -> Verdict {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime can be started");
    let end = runtime.block_on(live(plan));
    drop(runtime);
    let violations = judge(plan, &end);
    let counters = Counters::of(plan, &end);
    Verdict { plan: plan.clone(), end, violations, counters }
}

/// The same plan with fewer accidents and events that still breaks the promise which the verdict names first.
pub fn shrink(verdict: Verdict) -> Verdict {
    let Some(promise) = verdict.violations.first().map(|violation| violation.promise) else {
        return verdict;
    };
    let breaks = |plan: &Plan| {
        let verdict = simulate(plan);
        let same = verdict.violations.iter().any(|violation| violation.promise == promise);
        same.then_some(verdict)
    };
    let mut best = verdict;
    // Half of the accidents at once, then a quarter, and in the end each by itself.
    let mut size = best.plan.accidents.len().div_ceil(2);
    while size > 0 {
        let mut start = 0;
        while start < best.plan.accidents.len() {
            let mut plan = best.plan.clone();
            let end = (start + size).min(plan.accidents.len());
            plan.accidents.drain(start..end);
            match breaks(&plan) {
                Some(verdict) => best = verdict,
                None => start += size,
            }
        }
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
    // Fates keep their place, so that the others keep their luck.
    for place in 0..best.plan.fates.len() {
        let mut plan = best.plan.clone();
        plan.fates[place] = Fate::Plain;
        best = breaks(&plan).unwrap_or(best);
    }
    loop {
        let mut plan = best.plan.clone();
        plan.events /= 2;
        match breaks(&plan) {
            Some(verdict) if plan.events > 0 => best = verdict,
            _ => return best,
        }
    }
}

impl Verdict {
    /// What was planned, which promises were broken, and what happened to the events that they are about.
    pub fn story(&self) -> String {
        self.story_with_calls_of(&[])
    }

    /// The same, with the calls to the database of these processes.
    pub fn story_with_calls_of(&self, processes: &[String]) -> String {
        let seed = self.plan.seed;
        let mut text = format!("seed {seed}: {:?}\n", self.plan.settings());
        let _ = writeln!(
            text,
            "replay    cargo run --release -p posthaste-sim -- --from {seed} --seeds 1"
        );
        for accident in &self.plan.accidents {
            let _ = writeln!(text, "planned {accident}");
        }
        for violation in self.violations.iter().take(10) {
            let _ = writeln!(text, "VIOLATION {violation}");
        }
        let first = self.violations.iter().take(3);
        let about: Vec<_> = first.flat_map(|violation| violation.events.clone()).collect();
        let calls = self.end.history.calls();
        let mut calls =
            calls.iter().filter(|call| processes.iter().any(|of| **of == *call.process)).peekable();
        for entry in self.end.history.entries() {
            while let Some(call) = calls.next_if(|call| call.at <= entry.at) {
                let _ = writeln!(text, "{call}");
            }
            let concerns = match &entry.what {
                Happened::Committed { events, .. } => {
                    events.iter().any(|event| about.contains(&event.id))
                }
                Happened::RolledBack { ids } => ids.iter().any(|id| about.contains(id)),
                Happened::Given { id, .. } | Happened::Wrote { id, .. } => about.contains(id),
                Happened::Broke { events, .. } => events.iter().any(|id| about.contains(id)),
                Happened::Befell { .. } | Happened::FailedOver { .. } | Happened::Note(_) => true,
            };
            if concerns {
                let _ = writeln!(text, "{entry}");
            }
        }
        text
    }
}
