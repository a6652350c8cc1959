//! `bench idle`: what a relay with nothing to do costs, in this process and while it runs.
//!
//! The relay has everything on that runs by itself: heartbeats, polls, listening, housekeeping.

use std::{sync::Arc, time::Instant};

use posthaste::{Error, ErrorKind, Result, relay::Relay};
use serde::Serialize;

use super::{
    args::IdleArgs,
    ground::Ground,
    process::{self, Memory},
    relayed,
    report::{Report, progress, rounded},
    target::Target,
};

#[derive(Serialize)]
struct Figures<'f> {
    bench: &'f str,
    database: &'f str,
    release: bool,
    seconds: f64,
    /// Of one core.
    cpu_percent: f64,
    polls_per_s: f64,
    /// `null` where it cannot be told.
    max_rss_mb: Option<f64>,
}

pub(super) async fn run<DB: Target>(args: &IdleArgs, ground: &Ground<DB>) -> Result<Report> {
    let store = ground.store(&ground.tables).await?;
    let relay = Relay::new(store, Arc::new(relayed::Accepting("accepting")), ground.config(false))?;
    relay.start().await?;
    let mut stats = relay.watch();
    let settled = stats.wait_for(|stats| stats.idle).await.map(drop);
    settled.map_err(|_| Error::new(ErrorKind::State, "the relay ended"))?;
    progress(format_args!("watching an idle relay for {:?}", args.length));
    let polls = relay.stats().polls;
    let (memory, begun, before) = (Memory::watch(), Instant::now(), process::cpu());
    tokio::time::sleep(args.length).await;
    let (elapsed, after) = (begun.elapsed().as_secs_f64(), process::cpu());
    let Some(used) = after.zip(before).map(|(after, before)| after.saturating_sub(before)) else {
        return Err(Error::new(ErrorKind::State, "this system does not tell a process's CPU time"));
    };
    let peak = memory.peak();
    let polls = relay.stop().await?.polls - polls;
    let figures = Figures {
        bench: "idle",
        database: &ground.version,
        release: !cfg!(debug_assertions),
        seconds: rounded(elapsed, 1),
        cpu_percent: rounded(used.as_secs_f64() / elapsed * 100.0, 2),
        polls_per_s: rounded(polls as f64 / elapsed, 2),
        max_rss_mb: (peak > 0).then(|| rounded(peak as f64 / (1024.0 * 1024.0), 1)),
    };
    let title = format!("idle on {}: a relay with nothing to do", ground.version);
    let mut report = Report::new(title, &figures);
    report.row("CPU", format!("{:.2} % of a core", figures.cpu_percent), String::new());
    report.row("polls", format!("{:.2} /s", figures.polls_per_s), String::new());
    if let Some(megabytes) = figures.max_rss_mb {
        report.row("resident memory, most", format!("{megabytes:.1} MB"), String::new());
    }
    Ok(report)
}
