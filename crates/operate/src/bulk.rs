//! Many events by a filter: found first, then changed oldest first in small steps.
//!
//! They are found before the first is changed: an event that is replayed and sent again while the
//! rest is still being looked for would match again, and the work would have no end.

use std::time::Duration;

use posthaste_core::{
    Error, Result, Status,
    status::Step,
    store::{Filter, Selection, Store},
};
use serde::Serialize;
use tokio::time::Instant;

use crate::{
    Operator,
    filter::{describe, narrows},
};

/// Most events that one call changes; what is beyond waits for the next call.
pub const MAX_EVENTS: usize = 1_000_000;

/// How many are listed, or changed in one transaction.
const STEP: usize = 500;

/// What to do to many events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Send dead or sent events again.
    Replay,
    /// Give up new, retried or dead events.
    Discard,
}

impl Action {
    fn step(self) -> Step {
        match self {
            Self::Replay => Step::Replay,
            Self::Discard => Step::Discard,
        }
    }

    /// The verb, as the audit and questions have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Discard => "discard",
        }
    }
}

/// Which events, and how.
#[derive(Debug, Clone)]
pub struct Bulk {
    /// What to do.
    pub action: Action,
    /// To which events. The status must be given and allow it; what was sent or never sent must be
    /// narrowed down by tenant, type, aggregate or time.
    pub filter: Filter,
    /// At most so many events a second.
    pub rate: Option<u32>,
    /// At most so many events, the oldest; no more than [`MAX_EVENTS`].
    pub limit: usize,
}

/// How far the work is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// How many were found.
    pub matched: u64,
    /// How many of them were gone through.
    pub done: u64,
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BulkReport {
    /// How many matched.
    pub matched: u64,
    /// How many were changed: the others had changed meanwhile, or it was only a trial.
    pub changed: u64,
    /// More match than one call takes.
    pub more: bool,
}

impl Bulk {
    /// Refuses what cannot be meant: a status that forbids the step, and a filter that would take in
    /// everything that was sent, or that was never sent.
    pub fn check(&self) -> Result<Status> {
        let Some(status) = self.filter.status else {
            return Err(Error::invalid(format!("{} needs a status", self.action.as_str())));
        };
        status.after(self.action.step())?;
        if status != Status::Dead && !narrows(&self.filter) {
            return Err(Error::invalid(format!(
                "to {} events that are {status}, say which: by tenant, type, aggregate or time",
                self.action.as_str()
            )));
        }
        Ok(status)
    }

    /// How many match, without changing anything.
    pub async fn try_out(&self, store: &dyn Store) -> Result<BulkReport> {
        self.check()?;
        let (found, more) = self.find(store).await?;
        Ok(BulkReport { matched: found.len() as u64, changed: 0, more })
    }

    /// Finds them, newest first, and gives the oldest of them first.
    async fn find(&self, store: &dyn Store) -> Result<(Vec<i64>, bool)> {
        let limit = self.limit.min(MAX_EVENTS);
        let mut found = Vec::new();
        let mut before = None;
        loop {
            let page = store.events(&self.filter, before, STEP).await?;
            found.extend(page.events.iter().map(|event| event.sequence));
            before = page.next;
            if before.is_none() || found.len() > MAX_EVENTS {
                break;
            }
        }
        found.reverse();
        let more = found.len() > limit || before.is_some();
        found.truncate(limit);
        Ok((found, more))
    }
}

impl Operator {
    /// Changes all that match, in steps of a few hundred, each a transaction of its own: dropped in the
    /// middle, what was done stays done.
    pub async fn bulk(&self, bulk: &Bulk, progress: impl FnMut(Progress)) -> Result<BulkReport> {
        let status = bulk.check()?;
        let (found, more) = bulk.find(&*self.store).await?;
        let matched = found.len() as u64;
        let action = format!("{status}.{}", bulk.action.as_str());
        let change = async {
            let mut changed = 0;
            let outcome = self.steps(bulk, status, &found, &mut changed, progress).await;
            (changed, outcome)
        };
        let changed = self.audited_in_steps(&action, describe(&bulk.filter), change).await?;
        if changed > 0 {
            self.store.notify().await?;
        }
        Ok(BulkReport { matched, changed, more })
    }

    /// One transaction after the other, no faster than the rate. `changed` counts also when one fails.
    async fn steps(
        &self,
        bulk: &Bulk,
        status: Status,
        found: &[i64],
        changed: &mut u64,
        mut progress: impl FnMut(Progress),
    ) -> Result<()> {
        let (mut done, matched, begun) = (0, found.len() as u64, Instant::now());
        let step = bulk.rate.map_or(STEP, |rate| STEP.min(rate.max(1) as usize));
        for sequences in found.chunks(step) {
            let these = Selection::These { sequences: sequences.to_vec(), status };
            *changed += match bulk.action {
                Action::Replay => self.store.replay(&these).await?,
                Action::Discard => self.store.discard(&these).await?,
            };
            done += sequences.len() as u64;
            progress(Progress { matched, done });
            if let Some(rate) = bulk.rate.filter(|_| done < matched) {
                let due = Duration::from_secs_f64(done as f64 / f64::from(rate.max(1)));
                tokio::time::sleep_until(begun + due).await;
            }
        }
        Ok(())
    }
}
