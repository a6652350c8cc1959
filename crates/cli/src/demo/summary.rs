//! The end of a demo: what happened, what the checker found, and how it was checked.

use std::{fmt, time::Duration};

use posthaste::{Error, ErrorKind, Result};

use super::{latency::Histogram, ledger::Running, screen::millis, verdict::Verdict};
use crate::output::number;

/// All that the summary tells.
pub(super) struct Summary {
    pub(super) elapsed: Duration,
    pub(super) running: Running,
    pub(super) verdict: Verdict,
    pub(super) latency: Histogram,
    pub(super) retries: u64,
    /// Events that could still be delivered when the drain ended.
    pub(super) pending: u64,
    /// Dead letters that the outbox shows.
    pub(super) dead: u64,
    pub(super) max_attempts: u32,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { running, verdict, .. } = self;
        let count = |count: usize| number(count as u64);
        writeln!(f, "\nafter {:.1} s and a graceful stop:\n", self.elapsed.as_secs_f64())?;
        let mut row = |name: &str, figure: String, rest: &str| {
            writeln!(f, "  {name:<14}{figure:>10}  {rest}")
        };
        row("orders", number(running.orders), "each a key with its own order of events")?;
        row("committed", count(verdict.committed), "events, each in its order's transaction")?;
        row("delivered", count(verdict.delivered), &self.rate())?;
        row("latency p50", millis(self.latency.quantile(0.5)), "from insert to acknowledgement")?;
        row("latency p99", millis(self.latency.quantile(0.99)), "with the waits of retries")?;
        row("retries", number(self.retries), "failed attempts that were repeated")?;
        if self.pending > 0 {
            row("pending", number(self.pending), "undelivered when the drain's time was up")?;
        }
        writeln!(f, "\nlost: {}", verdict.lost)?;
        writeln!(f, "out of order: {}", verdict.reordered)?;
        writeln!(f, "duplicates: {}", verdict.duplicates)?;
        writeln!(
            f,
            "transactions rolled back: {}, their events delivered: {}",
            number(running.rolled_back),
            verdict.made_up
        )?;
        writeln!(
            f,
            "dead letters: {} (given up on after {} attempts, and kept)",
            number(self.dead),
            self.max_attempts
        )?;
        writeln!(f, "\n{}", self.how())
    }
}

impl Summary {
    fn rate(&self) -> String {
        let rate = self.verdict.delivered as f64 / self.elapsed.as_secs_f64().max(0.001);
        format!("{} events/s", number(rate as u64))
    }

    fn how(&self) -> String {
        let how = "\
How it was checked: the shop wrote down every event with the times at which its
transaction began and was committed, the destination every event it accepted.
The checker of posthaste-testkit compared the two. Lost is what was committed
and is neither delivered nor dead; out of order is what was delivered before an
event of the same order that had been committed before it began.";
        match self.verdict.checked_early {
            0 => how.to_owned(),
            early => format!(
                "{how}\nTo bound memory, {} finished orders were checked on the way and \
                 forgotten:\norder is promised per key, and each was checked whole.",
                number(early as u64)
            ),
        }
    }

    /// An error when a promise was broken.
    pub(super) fn verdict(&self) -> Result<()> {
        if self.verdict.is_kept() {
            return Ok(());
        }
        let Verdict { lost, reordered, made_up, .. } = self.verdict;
        Err(Error::new(
            ErrorKind::State,
            format!(
                "the check failed: {lost} lost, {reordered} out of order, {made_up} delivered and \
                 never committed; this is a bug of Posthaste, please report it"
            ),
        ))
    }
}
