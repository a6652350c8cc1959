//! `bench growth`: whether a large backlog goes out as fast as a small one, and in how much memory.
//!
//! Both are measured over the same number of events and take turns. The small outbox is filled for
//! each turn; the large one once, and a relay takes the same number of events off it each time. In
//! the end another relay drains what is left of it.

use posthaste::{Error, Result, store::Inspect};
use serde::Serialize;

use super::{
    args::GrowthArgs,
    ground::Ground,
    process::Memory,
    relayed,
    relayed::Until,
    report::{
        Report, median, median_ratio, medians, per_second, progress, rate, rounded, thousands,
        whole,
    },
    target::Target,
};

#[derive(Serialize)]
struct Figures<'f> {
    bench: &'f str,
    database: &'f str,
    release: bool,
    events: u64,
    small: u64,
    payload: usize,
    keys: u64,
    ordering: &'f str,
    batch: usize,
    deleted: bool,
    pairs: u64,
    small_per_s: f64,
    large_per_s: f64,
    ratio: f64,
    /// All that was left of the large backlog, to its end.
    rest_per_s: f64,
    /// Of this process while it drained the large backlog; `null` where it cannot be told.
    max_rss_mb: Option<f64>,
    /// While it drained the small one.
    small_rss_mb: Option<f64>,
    small_runs: Vec<f64>,
    large_runs: Vec<f64>,
}

pub(super) async fn run<DB: Target>(args: &GrowthArgs, ground: &Ground<DB>) -> Result<Report> {
    if args.events < args.small * (args.pairs + 1) {
        return Err(Error::invalid(format!(
            "the large backlog of {} events is too small for {} turns of {} and a rest; give at \
             least --events {}",
            args.events,
            args.pairs,
            args.small,
            args.small * (args.pairs + 1)
        )));
    }
    ground.refill(&ground.large, args.events).await?;
    let (mut small, mut large) = (Vec::new(), Vec::new());
    let (mut small_rss, mut large_rss) = (0, 0);
    let config = || ground.config(args.delete);
    for pair in 1..=args.pairs {
        ground.refill(&ground.tables, args.small).await?;
        let store = ground.store(&ground.tables).await?;
        let memory = Memory::watch();
        let elapsed = relayed::run(store, config(), args.small, Until::Delivered).await?;
        small_rss = memory.peak().max(small_rss);
        small.push(per_second(args.small, elapsed));

        let store = ground.store(&ground.large).await?;
        let memory = Memory::watch();
        let elapsed = relayed::run(store, config(), args.small, Until::Delivered).await?;
        large_rss = memory.peak().max(large_rss);
        large.push(per_second(args.small, elapsed));
        progress(format_args!(
            "pair {pair} of {}: small {}, large {}",
            args.pairs,
            rate(small[small.len() - 1]),
            rate(large[large.len() - 1])
        ));
    }
    let store = ground.store(&ground.large).await?;
    let left = Inspect::counts(&*store, u64::MAX).await?;
    let left = left.new + left.sending + left.retry;
    progress(format_args!("draining the other {left} events of the large backlog"));
    let memory = Memory::watch();
    let elapsed = relayed::run(store, config(), left, Until::Settled).await?;
    large_rss = memory.peak().max(large_rss);
    let rest_per_s = per_second(left, elapsed);
    Ok(report(args, ground, &small, &large, rest_per_s, [small_rss, large_rss]))
}

fn report<DB: Target>(
    args: &GrowthArgs,
    ground: &Ground<DB>,
    small: &[f64],
    large: &[f64],
    rest_per_s: f64,
    peaks: [u64; 2],
) -> Report {
    let middle = |values: &[f64]| median(values).unwrap_or_default().round();
    let megabytes = |bytes: u64| (bytes > 0).then(|| rounded(bytes as f64 / (1024.0 * 1024.0), 1));
    let figures = Figures {
        bench: "growth",
        database: &ground.version,
        release: !cfg!(debug_assertions),
        events: args.events,
        small: args.small,
        payload: ground.content.payload.len(),
        keys: ground.content.keys,
        ordering: ground.ordering.as_str(),
        batch: ground.batch,
        deleted: args.delete,
        pairs: args.pairs,
        small_per_s: middle(small),
        large_per_s: middle(large),
        ratio: rounded(median_ratio(large, small).unwrap_or_default(), 3),
        rest_per_s: rest_per_s.round(),
        max_rss_mb: megabytes(peaks[1]),
        small_rss_mb: megabytes(peaks[0]),
        small_runs: whole(small),
        large_runs: whole(large),
    };
    let title = format!(
        "growth on {}: {} events at a time off backlogs of {} and {}, {} bytes, ordering {}, {}",
        ground.version,
        thousands(args.small),
        thousands(args.small),
        thousands(args.events),
        figures.payload,
        ground.ordering,
        medians(args.pairs)
    );
    let mut report = Report::new(title, &figures);
    report.row("small backlog", rate(figures.small_per_s), String::new());
    let compared = format!("{:.2} of the small one", figures.ratio);
    report.row("large backlog", rate(figures.large_per_s), compared);
    report.row("the rest of it", rate(figures.rest_per_s), String::new());
    if let (Some(large), Some(small)) = (figures.max_rss_mb, figures.small_rss_mb) {
        let compared = format!("{small:.1} MB with the small backlog");
        report.row("resident memory, most", format!("{large:.1} MB"), compared);
    }
    report
}
