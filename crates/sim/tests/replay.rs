//! A seed has one history.

use std::process::Command;

use posthaste_sim::{plan::Plan, simulate};

const SEEDS: u64 = 20;

/// The fingerprints of these seeds' histories, as another process has them.
fn elsewhere(from: u64, seeds: u64) -> Vec<String> {
    let run = Command::new(env!("CARGO_BIN_EXE_posthaste-sim"))
        .args(["--from", &from.to_string(), "--seeds", &seeds.to_string()])
        .args(["--fingerprints", "--most", "1000000"])
        .output()
        .expect("the simulator runs");
    let text = String::from_utf8(run.stdout).expect("it prints text");
    text.lines().filter(|line| line.contains("fingerprint")).map(str::to_owned).collect()
}

#[test]
fn two_runs_of_a_seed_have_the_same_history_call_by_call() {
    for seed in 0..SEEDS {
        let plan = Plan::of(seed);
        let (one, other) = (simulate(&plan).end.history, simulate(&plan).end.history);
        let (calls, others) = (one.calls(), other.calls());
        if let Some(at) = (0..calls.len()).find(|at| others.get(*at) != Some(&calls[*at])) {
            let before: Vec<_> = calls[at.saturating_sub(3)..at].iter().collect();
            panic!(
                "seed {seed}, call {at}: {:?} or {:?}, after {before:?}",
                calls[at],
                others.get(at)
            );
        }
        assert_eq!(one.entries(), other.entries(), "seed {seed}");
        assert_eq!(one.fingerprint(), other.fingerprint(), "seed {seed}");
    }
}

/// Other keys of hash maps, another layout of the address space.
#[test]
fn another_process_has_the_same_history() {
    let one = elsewhere(100, SEEDS);
    assert_eq!(one.len() as u64, SEEDS);
    assert_eq!(one, elsewhere(100, SEEDS));
}
