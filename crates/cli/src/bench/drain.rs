//! `bench drain`: how fast a backlog goes out.
//!
//! Relay and baselines take turns, each on tables that were made and filled for it alone.

use posthaste::{Result, store::RelayOrdering};
use serde::Serialize;

use super::{
    args::DrainArgs,
    ground::Ground,
    process, raw, relayed,
    relayed::Until,
    report::{
        Report, median, median_ratio, medians, per_second, progress, rate, rounded, thousands,
        whole,
    },
    target::{Target, failed},
};

#[derive(Serialize)]
struct Figures<'f> {
    bench: &'f str,
    database: &'f str,
    release: bool,
    events: u64,
    payload: usize,
    keys: u64,
    ordering: &'f str,
    batch: usize,
    deleted: bool,
    pairs: u64,
    /// Medians.
    relay_per_s: f64,
    /// The same statements as the relay's.
    raw_per_s: f64,
    ratio: f64,
    /// Leaner SQL, without a fence.
    lean_per_s: f64,
    lean_ratio: f64,
    held_per_s: Option<f64>,
    /// Relay beside a held snapshot to relay without.
    held_ratio: Option<f64>,
    wal_bytes_per_event: Option<f64>,
    dead_tuples_per_event: Option<f64>,
    raw_wal_bytes_per_event: Option<f64>,
    /// CPU time of this process, without the server's: it says more than a rate on a busy machine.
    relay_cpu_us_per_event: Option<f64>,
    raw_cpu_us_per_event: Option<f64>,
    baseline: &'f str,
    relay_runs: Vec<f64>,
    raw_runs: Vec<f64>,
    lean_runs: Vec<f64>,
    held_runs: Vec<f64>,
}

/// What the runs of one side gave.
#[derive(Default)]
struct Side {
    per_s: Vec<f64>,
    wal_bytes: Vec<f64>,
    dead_tuples: Vec<f64>,
    cpu_micros: Vec<f64>,
}

pub(super) async fn run<DB: Target>(args: &DrainArgs, ground: &Ground<DB>) -> Result<Report> {
    let (mut relay, mut raw) = (Side::default(), Side::default());
    let (mut lean, mut held) = (Side::default(), Side::default());
    for pair in 1..=args.pairs {
        let say = |who: &str, side: &Side| {
            let per_s = side.per_s.last().copied().unwrap_or_default();
            progress(format_args!("pair {pair} of {}: {who} {}", args.pairs, rate(per_s)));
        };
        drain(args, ground, &mut relay, Who::Relay).await?;
        say("relay", &relay);
        drain(args, ground, &mut raw, Who::SameStatements).await?;
        say("the same statements", &raw);
        drain(args, ground, &mut lean, Who::Leaner).await?;
        say("leaner SQL", &lean);
        if args.held_snapshot {
            drain(args, ground, &mut held, Who::RelayBesideSnapshot).await?;
            say("relay beside a held snapshot", &held);
        }
    }
    Ok(report(args, ground, &relay, &raw, &lean, &held))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Relay,
    RelayBesideSnapshot,
    SameStatements,
    Leaner,
}

/// One run on fresh tables.
async fn drain<DB: Target>(
    args: &DrainArgs,
    ground: &Ground<DB>,
    side: &mut Side,
    who: Who,
) -> Result<()> {
    let (events, delete) = (args.events, args.delete);
    ground.refill(&ground.tables, events).await?;
    let mut holder = ground.connection().await?;
    if who == Who::RelayBesideSnapshot {
        DB::hold_snapshot(&mut holder).await.map_err(failed("holding a snapshot"))?;
    }
    let mut watcher = ground.connection().await?;
    let counters = async |watcher: &mut DB::Connection, expected| {
        DB::counters(watcher, &ground.tables, expected).await.map_err(failed("reading counters"))
    };
    let before = counters(&mut watcher, 0).await?;
    let cpu_before = process::cpu();
    let elapsed = match who {
        Who::Relay | Who::RelayBesideSnapshot => {
            let store = ground.store(&ground.tables).await?;
            relayed::run(store, ground.config(delete), events, Until::Settled).await?
        }
        Who::SameStatements => raw::same_statements(ground, events, delete).await?,
        Who::Leaner => raw::leaner(ground, events, delete).await?,
    };
    side.per_s.push(per_second(events, elapsed));
    if let (Some(before), Some(after)) = (cpu_before, process::cpu()) {
        let spent = after.saturating_sub(before);
        side.cpu_micros.push(spent.as_secs_f64() * 1e6 / events as f64);
    }
    // A claim replaces the row once more.
    let versions = if ground.ordering == RelayOrdering::None { 2 } else { 1 };
    let expected = before.map_or(0, |before| before.dead_tuples + versions * events as i64);
    let after = counters(&mut watcher, expected).await?;
    if let (Some(before), Some(after)) = (before, after) {
        let each = |from: i64, to: i64| (to - from) as f64 / events as f64;
        side.wal_bytes.push(each(before.wal_bytes, after.wal_bytes));
        side.dead_tuples.push(each(before.dead_tuples, after.dead_tuples));
    }
    Ok(())
}

fn report<DB: Target>(
    args: &DrainArgs,
    ground: &Ground<DB>,
    relay: &Side,
    raw: &Side,
    lean: &Side,
    held: &Side,
) -> Report {
    let middle = |values: &[f64]| median(values).map(f64::round);
    let ratio_to = |base: &Side| median_ratio(&relay.per_s, &base.per_s).map(|r| rounded(r, 3));
    let baseline = raw::description(ground.ordering, args.delete, ground.batch);
    let figures = Figures {
        bench: "drain",
        database: &ground.version,
        release: !cfg!(debug_assertions),
        events: args.events,
        payload: ground.content.payload.len(),
        keys: ground.content.keys,
        ordering: ground.ordering.as_str(),
        batch: ground.batch,
        deleted: args.delete,
        pairs: args.pairs,
        relay_per_s: middle(&relay.per_s).unwrap_or_default(),
        raw_per_s: middle(&raw.per_s).unwrap_or_default(),
        ratio: ratio_to(raw).unwrap_or_default(),
        lean_per_s: middle(&lean.per_s).unwrap_or_default(),
        lean_ratio: ratio_to(lean).unwrap_or_default(),
        held_per_s: middle(&held.per_s),
        held_ratio: median_ratio(&held.per_s, &relay.per_s[..held.per_s.len()])
            .map(|r| rounded(r, 3)),
        wal_bytes_per_event: middle(&relay.wal_bytes),
        dead_tuples_per_event: median(&relay.dead_tuples).map(|d| rounded(d, 3)),
        raw_wal_bytes_per_event: middle(&raw.wal_bytes),
        relay_cpu_us_per_event: median(&relay.cpu_micros).map(|cpu| rounded(cpu, 2)),
        raw_cpu_us_per_event: median(&raw.cpu_micros).map(|cpu| rounded(cpu, 2)),
        baseline: &baseline,
        relay_runs: whole(&relay.per_s),
        raw_runs: whole(&raw.per_s),
        lean_runs: whole(&lean.per_s),
        held_runs: whole(&held.per_s),
    };
    let kept = if args.delete { "deleted" } else { "kept" };
    let mut report = Report::new(
        format!(
            "drain on {}: {} events of {} bytes, {} keys, ordering {}, sent events {kept}, \
             {}",
            ground.version,
            thousands(args.events),
            figures.payload,
            thousands(figures.keys),
            ground.ordering,
            medians(args.pairs)
        ),
        &figures,
    );
    report.row("relay", rate(figures.relay_per_s), String::new());
    let ratio = |ratio: f64| format!("relay is {ratio:.2} of it");
    report.row("the same statements", rate(figures.raw_per_s), ratio(figures.ratio));
    report.row("leaner SQL, no fence", rate(figures.lean_per_s), ratio(figures.lean_ratio));
    if let (Some(per_s), Some(held)) = (figures.held_per_s, figures.held_ratio) {
        report.row("relay, snapshot held", rate(per_s), format!("{held:.2} of the relay without"));
    }
    if let (Some(wal), Some(dead)) = (figures.wal_bytes_per_event, figures.dead_tuples_per_event) {
        let raw = figures.raw_wal_bytes_per_event.unwrap_or_default();
        report.row("WAL an event", format!("{wal} bytes"), format!("same statements: {raw} bytes"));
        report.row("dead tuples an event", format!("{dead:.2}"), String::new());
    }
    if let (Some(relay), Some(raw)) = (figures.relay_cpu_us_per_event, figures.raw_cpu_us_per_event)
    {
        let raw = format!("same statements: {raw} µs");
        report.row("CPU an event, client", format!("{relay} µs"), raw);
    }
    report.note(format!("Baselines: {baseline}."));
    report
}
