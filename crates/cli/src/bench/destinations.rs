//! `bench destinations`: whether a destination that is down slows another one down.
//!
//! Every key has events for both, in turns. Measured is how long the living one waits for all of
//! its own: with both up, with the other refusing everything, and with the other not answering.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use posthaste::{
    Envelope, Error, Result,
    relay::{Config, Destination, Relay, Route, Routes},
    store::RelayOrdering,
    transport::{Capabilities, Outcome, Transport},
};
use serde::Serialize;

use super::{
    args::DestinationsArgs,
    ground::Ground,
    relayed::{self, Accepting, Counted},
    report::{
        Report, median, median_ratio, medians, per_second, progress, rate, rounded, thousands,
        whole,
    },
    target::Target,
};

/// How long one that refuses takes for it.
const REFUSES_AFTER: Duration = Duration::from_millis(1);

/// How long one that does not answer is waited for.
const SILENT_FOR: Duration = Duration::from_millis(250);

#[derive(Serialize)]
struct Figures<'f> {
    bench: &'f str,
    database: &'f str,
    release: bool,
    events: u64,
    payload: usize,
    keys: u64,
    ordering: &'f str,
    pairs: u64,
    /// Medians, of the living one.
    up_per_s: f64,
    refusing_per_s: f64,
    silent_per_s: f64,
    /// To both up.
    refusing_ratio: f64,
    silent_ratio: f64,
    up_runs: Vec<f64>,
    refusing_runs: Vec<f64>,
    silent_runs: Vec<f64>,
}

/// What the other destination does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Other {
    Accepts,
    Refuses,
    IsSilent,
}

pub(super) async fn run<DB: Target>(
    args: &DestinationsArgs,
    ground: &Ground<DB>,
) -> Result<Report> {
    if ground.ordering == RelayOrdering::Global {
        return Err(Error::invalid(
            "in global order every event waits for the one before it, wherever that goes; use \
             --ordering per_key or none",
        ));
    }
    let (mut up, mut refusing, mut silent) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 1..=args.pairs {
        for (other, side, who) in [
            (Other::Accepts, &mut up, "both up"),
            (Other::Refuses, &mut refusing, "the other refuses"),
            (Other::IsSilent, &mut silent, "the other is silent"),
        ] {
            let living = of_the_living(args.events, ground.content.keys);
            let elapsed = measure(args, ground, other, living).await?;
            side.push(per_second(living, elapsed));
            let per_s = rate(side[side.len() - 1]);
            progress(format_args!("pair {pair} of {}: {who} {per_s}", args.pairs));
        }
    }
    Ok(report(args, ground, &up, &refusing, &silent))
}

/// How many of the events are `OrderPlaced`, as the tables are filled.
fn of_the_living(events: u64, keys: u64) -> u64 {
    (0..events).filter(|n| (n % keys + n / keys).is_multiple_of(2)).count() as u64
}

async fn measure<DB: Target>(
    args: &DestinationsArgs,
    ground: &Ground<DB>,
    other: Other,
    living: u64,
) -> Result<Duration> {
    ground.refill(&ground.tables, args.events).await?;
    let store = ground.store(&ground.tables).await?;
    let counted = Counted::new(Arc::new(Accepting("living")), living);
    let transport: Arc<dyn Transport> = match other {
        Other::Accepts => Arc::new(Accepting("other")),
        Other::Refuses | Other::IsSilent => Arc::new(Down(other)),
    };
    let destinations = vec![
        Destination::new(Arc::clone(&counted) as Arc<dyn Transport>),
        Destination::new(transport),
    ];
    let routes = Routes::new()
        .route(Route::to("living").event_type("OrderPlaced"))
        .route(Route::to("other").event_type("OrderPaid"));
    let config = Config { drain: SILENT_FOR, ..ground.config(false) };
    let relay = Relay::routed(store, destinations, routes, config)?;
    let started: Instant = relayed::acknowledged(&relay, &counted, ground.ordering).await?;
    let elapsed = started.elapsed();
    relay.stop().await?;
    Ok(elapsed)
}

/// Takes nothing.
struct Down(Other);

#[async_trait]
impl Transport for Down {
    fn name(&self) -> &str {
        "other"
    }

    fn capabilities(&self) -> Capabilities {
        Accepting("other").capabilities()
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        let outcome = if self.0 == Other::Refuses {
            tokio::time::sleep(REFUSES_AFTER).await;
            Outcome::unavailable("connection refused")
        } else {
            tokio::time::sleep(SILENT_FOR).await;
            Outcome::timed_out(format!("no acknowledgement within {SILENT_FOR:?}"))
        };
        vec![outcome; batch.len()]
    }
}

fn report<DB: Target>(
    args: &DestinationsArgs,
    ground: &Ground<DB>,
    up: &[f64],
    refusing: &[f64],
    silent: &[f64],
) -> Report {
    let middle = |values: &[f64]| median(values).unwrap_or_default().round();
    let ratio = |values: &[f64]| rounded(median_ratio(values, up).unwrap_or_default(), 3);
    let figures = Figures {
        bench: "destinations",
        database: &ground.version,
        release: !cfg!(debug_assertions),
        events: args.events,
        payload: ground.content.payload.len(),
        keys: ground.content.keys,
        ordering: ground.ordering.as_str(),
        pairs: args.pairs,
        up_per_s: middle(up),
        refusing_per_s: middle(refusing),
        silent_per_s: middle(silent),
        refusing_ratio: ratio(refusing),
        silent_ratio: ratio(silent),
        up_runs: whole(up),
        refusing_runs: whole(refusing),
        silent_runs: whole(silent),
    };
    let title = format!(
        "destinations on {}: {} events of {} bytes for two destinations, {} keys with events for \
         both, ordering {}, {}",
        ground.version,
        thousands(args.events),
        figures.payload,
        thousands(figures.keys),
        ground.ordering,
        medians(args.pairs)
    );
    let mut report = Report::new(title, &figures);
    let compared = |ratio: f64| format!("{ratio:.2} of both up");
    report.row("both up", rate(figures.up_per_s), String::new());
    let refusing = compared(figures.refusing_ratio);
    report.row("the other refuses", rate(figures.refusing_per_s), refusing);
    let silent = compared(figures.silent_ratio);
    report.row("the other is silent", rate(figures.silent_per_s), silent);
    report.note(format!(
        "Events of the living one a second, until it had all of its own. Refusing takes \
         {REFUSES_AFTER:?}, silence ends after {SILENT_FOR:?}."
    ));
    report
}
