//! Lives through seeds until one breaks a promise, and tells what happened.
//!
//! ```sh
//! cargo run --release -p posthaste-sim -- --from 1 --seeds 10000
//! cargo run --release -p posthaste-sim -- --from 21 --seeds 1 --shrink
//! ```

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Parser;
use posthaste_sim::{Verdict, counters::Counters, plan::Plan, shrink, simulate, world::End};

/// Simulates whole clusters of Posthaste, and judges what they did.
#[derive(Parser)]
struct Args {
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// How many seeds.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// Stop after so many minutes.
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// Stop after so many seeds that break a promise.
    #[arg(long, default_value_t = 1)]
    most: u64,
    /// Look for the fewest accidents that break the same promise.
    #[arg(long)]
    shrink: bool,
    /// Tell what happened also where no promise was broken.
    #[arg(long)]
    story: bool,
    /// Tell the calls of these processes to the database, too.
    #[arg(long)]
    calls: Vec<String>,
    /// Print how often each thing was met.
    #[arg(long)]
    counters: bool,
    /// Print what each simulation has cost.
    #[arg(long)]
    costs: bool,
    /// Print a number for each history: it differs when anything has happened otherwise.
    #[arg(long)]
    fingerprints: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let begun = Instant::now();
    let until = begun + Duration::from_mins(args.minutes);
    let (mut lived, mut broken, mut accidents, mut events) = (0_u64, 0, 0, 0);
    let mut counters = Counters::expected();
    for seed in args.from..args.from.saturating_add(args.seeds) {
        if Instant::now() > until || broken >= args.most {
            break;
        }
        let verdict = simulate(&Plan::of(seed));
        lived += 1;
        counters.add(&verdict);
        if args.costs {
            let End { walked, waited, healed, lasted, history, .. } = &verdict.end;
            let relays = verdict.plan.relays;
            println!(
                "seed {seed}: relays {relays} rows {} walked {walked} calls {} lasted {lasted} \
                 waited {waited} healed {healed}",
                verdict.plan.events,
                history.calls().len(),
            );
        }
        if args.fingerprints {
            println!("seed {seed}: fingerprint {:016x}", verdict.end.history.fingerprint());
        }
        accidents += verdict.plan.accidents.len();
        events += verdict.end.rows.len() + verdict.end.deleted.len();
        if verdict.violations.is_empty() {
            if args.story {
                println!("{}", verdict.story_with_calls_of(&args.calls));
            }
        } else {
            broken += 1;
            let verdict: Verdict = if args.shrink { shrink(verdict) } else { verdict };
            println!("{}", verdict.story_with_calls_of(&args.calls));
        }
    }
    if args.counters {
        print!("{counters}");
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{lived} seeds, {broken} broke a promise; {accidents} accidents, {events} events, \
         {seconds:.1} s, {:.1} seeds/s",
        lived as f64 / seconds
    );
    if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
