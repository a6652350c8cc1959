//! Which destinations take nothing, told to the other relays and to operators.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use posthaste_core::{Result, store::OpenBreaker};

use crate::{
    driver::{Done, Driver},
    read::within,
};

/// A breaker that opens and closes all the time is not worth a write each time.
const PAUSE: Duration = Duration::from_millis(500);

/// What was reported last.
#[derive(Debug, Default)]
pub(crate) struct Breakers {
    reported: Vec<OpenBreaker>,
    reporting: bool,
    not_before: Option<Instant>,
}

impl Driver {
    /// Reports what has changed since the last time.
    pub(crate) fn report_breakers(&mut self, now: Instant) {
        let idle = self.breakers.reported.is_empty() && self.lanes.breakers_open() == 0;
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
        let same = open.len() == self.breakers.reported.len()
            && open.iter().zip(&self.breakers.reported).all(|(new, old)| {
                (&new.destination, &new.state, &new.error)
                    == (&old.destination, &old.state, &old.error)
            });
        if same {
            return;
        }
        self.breakers.reporting = true;
        let (store, relay) = (Arc::clone(&self.store), self.shards.relay.clone());
        let deadline = self.config.deadline();
        self.tasks.spawn(async move {
            let result = within(deadline, store.report_breakers(&relay, &open)).await;
            Done::Reported { open, result }
        });
    }

    pub(crate) fn reported(&mut self, open: Vec<OpenBreaker>, result: Result<()>, now: Instant) {
        self.breakers.reporting = false;
        self.breakers.not_before = Some(now + PAUSE);
        match result {
            Ok(()) => self.breakers.reported = open,
            Err(error) => self.database_failed("reporting breakers", &error),
        }
    }
}
