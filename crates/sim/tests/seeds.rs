//! Seeds that once broke a promise, and what makes a seed worth anything.

use std::collections::BTreeSet;

use posthaste_sim::{
    plan::{Kind, Plan},
    simulate,
};

/// Each found a fault of the relay, which its comment names.
const KEPT: [u64; 2] = [
    // A read that had no room in memory kept its turn, and the event that blocked everything was not read back.
    21, 32,
];

fn holds(seed: u64) {
    let verdict = simulate(&Plan::of(seed));
    assert!(verdict.violations.is_empty(), "{}", verdict.story());
}

#[test]
fn seeds_that_found_a_fault_find_it_no_more() {
    KEPT.into_iter().for_each(holds);
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
