//! The live account: redrawn in place on a terminal, a line a second elsewhere.

use std::{io::IsTerminal, time::Duration};

use posthaste::{relay::Stats, store::Counts};

use super::{latency::Histogram, ledger::Running};
use crate::output::{number, print_as_is};

/// What is shown at one moment.
pub(super) struct Moment {
    pub(super) elapsed: Duration,
    /// When it will end, if that is known.
    pub(super) until: Option<Duration>,
    pub(super) running: Running,
    pub(super) per_second: f64,
    pub(super) latency: Histogram,
    pub(super) counts: Counts,
    pub(super) stats: Stats,
}

/// Where the account is drawn.
pub(super) struct Screen {
    in_place: bool,
    /// Lines of the last drawing, to be drawn over.
    drawn: usize,
}

impl Screen {
    pub(super) fn new() -> Self {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Self { in_place: std::io::stdout().is_terminal() && !dumb, drawn: 0 }
    }

    /// How often to draw.
    pub(super) fn pace(&self) -> Duration {
        if self.in_place { Duration::from_millis(250) } else { Duration::from_secs(1) }
    }

    pub(super) fn draw(&mut self, moment: &Moment) {
        let out =
            if self.in_place { self.over_the_last(&lines(moment)) } else { line(moment) + "\n" };
        // An output that fails must not end the run: the check's result is in the exit code too.
        let _ = print_as_is(&out);
    }
}

impl Screen {
    /// Back to the first line of the last drawing; every line is erased before it is written.
    fn over_the_last(&mut self, lines: &[String]) -> String {
        let back = match self.drawn {
            0 => String::new(),
            drawn => format!("\x1b[{drawn}A"),
        };
        self.drawn = lines.len();
        lines.iter().fold(back, |out, line| out + "\x1b[2K" + line + "\n")
    }
}

/// For a terminal; no line is longer than 80 columns, or it could not be drawn over.
fn lines(moment: &Moment) -> Vec<String> {
    let Moment { elapsed, until, running, per_second, latency, counts, stats } = moment;
    let Running { orders, committed, delivered, rolled_back } = running;
    let backlog = counts.new + counts.sending + counts.retry;
    let row =
        |name: &str, figure: String, rest: String| format!("  {name:<14}{figure:>10}  {rest}");
    vec![
        match until {
            Some(until) => {
                format!("  {} of {} s; Ctrl-C stops", elapsed.as_secs(), until.as_secs())
            }
            None => format!("  {} s; Ctrl-C stops", elapsed.as_secs()),
        },
        String::new(),
        row(
            "orders",
            number(*orders),
            format!("{} transactions rolled back", number(*rolled_back)),
        ),
        row("committed", number(*committed), "events, each in its order's transaction".into()),
        row("delivered", number(*delivered), format!("{} events/s", number(*per_second as u64))),
        row(
            "latency p50",
            millis(latency.quantile(0.5)),
            "from insert to acknowledgement, last 5 s".into(),
        ),
        row(
            "latency p99",
            millis(latency.quantile(0.99)),
            "with the waits of retried events".into(),
        ),
        row("backlog", number(backlog), format!("of them to be tried again: {}", counts.retry)),
        row("retries", number(stats.retried), "the destination stumbles on purpose".into()),
        row("held", number(stats.held), "waited behind a failed event of their order".into()),
        row("dead letters", number(counts.dead), "poison on purpose, kept for an operator".into()),
    ]
}

fn line(moment: &Moment) -> String {
    let Moment { elapsed, running, per_second, latency, counts, stats, .. } = moment;
    format!(
        "{:>4} s  committed {}  delivered {} ({}/s)  p50 {}  p99 {}  backlog {}  retries {}  \
         held {}  dead {}",
        elapsed.as_secs(),
        number(running.committed),
        number(running.delivered),
        number(*per_second as u64),
        millis(latency.quantile(0.5)),
        millis(latency.quantile(0.99)),
        counts.new + counts.sending + counts.retry,
        stats.retried,
        stats.held,
        counts.dead,
    )
}

pub(super) fn millis(latency: Option<Duration>) -> String {
    match latency.map(|latency| latency.as_secs_f64() * 1e3) {
        None => "-".to_owned(),
        Some(millis) if millis < 10.0 => format!("{millis:.2} ms"),
        Some(millis) => format!("{millis:.0} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_too_long_to_be_drawn_over() {
        let huge = u64::MAX / 1_000_000_000;
        let moment = Moment {
            elapsed: Duration::from_secs(1_000_000),
            until: Some(Duration::from_secs(2_000_000)),
            running: Running { orders: huge, committed: huge, delivered: huge, rolled_back: huge },
            per_second: 1e6,
            latency: Histogram::default(),
            counts: Counts {
                new: huge,
                held: 0,
                sending: 0,
                retry: huge,
                dead: 999_999,
                estimated: false,
            },
            stats: Stats::default(),
        };
        for line in lines(&moment) {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}
