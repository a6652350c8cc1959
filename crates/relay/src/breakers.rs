//! Which destinations take nothing and which events stall, told to the other relays and to operators.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use posthaste_core::{
    Result,
    store::{OpenBreaker, Report},
};

use crate::{
    driver::{Done, Driver},
    read::within,
};

/// A breaker that opens and closes all the time is not worth a write each time.
const PAUSE: Duration = Duration::from_millis(500);

/// What was reported last.
#[derive(Debug, Default)]
pub(crate) struct Breakers {
    reported: Report,
    reporting: bool,
    not_before: Option<Instant>,
}

impl Driver {
    /// Reports what has changed since the last time.
    pub(crate) fn report_state(&mut self, now: Instant) {
        let idle = self.breakers.reported == Report::default()
            && self.lanes.breakers_open() == 0
            && self.stalls.told().is_empty();
        let early = self.breakers.not_before.is_some_and(|at| now < at);
        // Before the first heartbeat there is no row to write to.
        if idle || early || self.breakers.reporting || !self.acquired_once {
            return;
        }
        let open: Vec<OpenBreaker> = self
            .lanes
            .breakers()
            .into_iter()
            .filter(|breaker| breaker.state != "closed")
            .map(|breaker| OpenBreaker {
                state: breaker.state.to_owned(),
                since: breaker.since.map_or_else(Timestamp::now, |since| {
                    // Whole seconds, so that the same breaker is reported the same each time.
                    let age = now.saturating_duration_since(since);
                    let at = Timestamp::now().checked_sub(age).unwrap_or(Timestamp::UNIX_EPOCH);
                    Timestamp::from_second(at.as_second()).unwrap_or(at)
                }),
                destination: breaker.destination,
                error: breaker.error.unwrap_or_default(),
            })
            .collect();
        let reported = &self.breakers.reported;
        let same = open.len() == reported.breakers.len()
            && open.iter().zip(&reported.breakers).all(|(new, old)| {
                (&new.destination, &new.state, &new.error)
                    == (&old.destination, &old.state, &old.error)
            });
        let stalls = self.stalls.told();
        let same_stalls = stalls.len() == reported.stalls.len()
            && stalls.iter().zip(&reported.stalls).all(|(new, old)| {
                (&new.reason, new.events, new.sequence) == (&old.reason, old.events, old.sequence)
            });
        if same && same_stalls {
            return;
        }
        let report = Report { breakers: open, stalls: stalls.to_vec() };
        self.breakers.reporting = true;
        let (store, relay) = (Arc::clone(&self.store), self.shards.relay.clone());
        let deadline = self.config.deadline();
        self.tasks.spawn(async move {
            let result = within(deadline, store.report_state(&relay, &report)).await;
            Done::Reported { report, result }
        });
    }

    pub(crate) fn reported(&mut self, report: Report, result: Result<()>, now: Instant) {
        self.breakers.reporting = false;
        self.breakers.not_before = Some(now + PAUSE);
        match result {
            Ok(()) => self.breakers.reported = report,
            Err(error) => self.database_failed("reporting", &error),
        }
    }
}
