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
use posthaste_sim::{Verdict, plan::Plan, shrink, simulate};

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
}

fn main() -> ExitCode {
    let args = Args::parse();
    let begun = Instant::now();
    let until = begun + Duration::from_mins(args.minutes);
    let (mut lived, mut broken, mut accidents, mut events) = (0_u64, 0, 0, 0);
    for seed in args.from..args.from.saturating_add(args.seeds) {
        if Instant::now() > until || broken >= args.most {
            break;
        }
        let verdict = simulate(&Plan::of(seed));
        lived += 1;
        accidents += verdict.plan.accidents.len();
        events += verdict.end.rows.len() + verdict.end.deleted.len();
        if !verdict.violations.is_empty() {
            broken += 1;
            let verdict: Verdict = if args.shrink { shrink(verdict) } else { verdict };
            println!("{}", verdict.story());
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{lived} seeds, {broken} broke a promise; {accidents} accidents, {events} events, \
         {seconds:.1} s, {:.1} seeds/s",
        lived as f64 / seconds
    );
    if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
