//! Seeds that are lived through with every test run: kept ones and fresh ones.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use posthaste_sim::{
    counters::Counters,
    plan::{Kind, Plan},
    simulate,
};

/// Together they meet everything that there is to meet. A seed that finds a fault of the relay is lived through,
/// too, beside these. A change in `plan.rs` gives all of them other plans.
const KEPT: std::ops::Range<u64> = 40..80;

/// Processors that the test run leaves to a simulation, which needs one.
const THREADS: usize = 2;

/// Lives through seeds on all threads while there are any. Returns what they met, how many there were, and the
/// stories of those that broke a promise.
fn live(next: impl Fn() -> Option<u64> + Sync) -> (Counters, u64, Vec<String>) {
    let met = Mutex::new((Counters::expected(), 0, Vec::new()));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(seed) = next() {
                    let verdict = simulate(&Plan::of(seed));
                    let mut met = met.lock().unwrap();
                    met.0.add(&verdict);
                    met.1 += 1;
                    if !verdict.violations.is_empty() {
                        met.2.push(verdict.story());
                    }
                }
            });
        }
    });
    met.into_inner().unwrap()
}

#[test]
fn kept_seeds_break_no_promise_and_meet_everything() {
    let seed = AtomicU64::new(KEPT.start);
    let (met, _, stories) =
        live(|| Some(seed.fetch_add(1, Ordering::Relaxed)).filter(|seed| KEPT.contains(seed)));
    assert!(stories.is_empty(), "{}", stories.join("\n"));
    assert!(met.missing().is_empty(), "never met: {:?}, of\n{met}", met.missing());
}

/// For half an hour with `scripts/test --nightly`. `POSTHASTE_SIM_FROM` names the first seed, `POSTHASTE_SIM_SECONDS`
/// another time. Not by day as long as there are known faults: each change would wait for those.
#[test]
fn fresh_seeds_break_no_promise() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let from = number("POSTHASTE_SIM_FROM").unwrap_or(since_1970.as_millis() as u64);
    let nightly = std::env::var_os("POSTHASTE_NIGHTLY").is_some();
    let seconds = number("POSTHASTE_SIM_SECONDS").unwrap_or(if nightly { 1_800 } else { 0 });
    if seconds == 0 {
        return println!("fresh seeds are for the night, or for POSTHASTE_SIM_SECONDS");
    }
    let until = Instant::now() + Duration::from_secs(seconds);
    let seed = AtomicU64::new(from);
    println!("the first seed is {from}");
    let (_, lived, stories) =
        live(|| (Instant::now() < until).then(|| seed.fetch_add(1, Ordering::Relaxed)));
    println!("{lived} schedules in {seconds} s, from seed {from} on");
    assert!(stories.is_empty(), "{}", stories.join("\n"));
}

const SEEDS: u64 = 200;

#[test]
fn every_kind_of_accident_is_planned_and_most_plans_are_worth_it() {
    let plans: Vec<Plan> = (0..SEEDS).map(Plan::of).collect();
    let kinds: BTreeSet<Kind> = plans
        .iter()
        .flat_map(|plan| &plan.accidents)
        .map(|accident| accident.what.kind())
        .collect();
    assert_eq!(kinds, BTreeSet::from(Kind::ALL));
    let median = |of: fn(&Plan) -> usize| {
        let mut all: Vec<usize> = plans.iter().map(of).collect();
        all.sort_unstable();
        all[all.len() / 2]
    };
    assert!(median(|plan| plan.relays) >= 3);
    assert!(median(|plan| plan.events) >= 200);
    assert!(median(|plan| plan.accidents.len()) >= 10);
}
