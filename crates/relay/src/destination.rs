//! A destination as a relay keeps it: a transport with limits.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use posthaste_core::{Error, Result, transport::Transport};

/// A transport and how much of it may be used.
#[derive(Clone)]
pub struct Destination {
    pub(crate) transport: Arc<dyn Transport>,
    concurrency: Option<usize>,
    rate: Option<u32>,
}

impl Destination {
    /// This transport, limited only by the relay's own settings.
    pub fn new(transport: Arc<dyn Transport>) -> Self {
        Self { transport, concurrency: None, rate: None }
    }

    /// Most publishes under way at once; the relay's own `concurrency` otherwise.
    pub fn with_concurrency(mut self, publishes: usize) -> Self {
        self.concurrency = Some(publishes);
        self
    }

    /// Most events a second.
    pub fn with_rate(mut self, events_per_second: u32) -> Self {
        self.rate = Some(events_per_second);
        self
    }

    /// Its name in logs, attempts and status.
    pub fn name(&self) -> &str {
        self.transport.name()
    }

    /// Refuses limits that cannot work with a publish that is dropped after `dispatch_timeout`.
    pub(crate) fn check(&self, dispatch_timeout: Duration) -> Result<()> {
        let name = self.name();
        if name.is_empty() || name.chars().count() > 100 || name == "unrouted" {
            return Err(Error::invalid(format!(
                "destination name {name:?} must have 1 to 100 characters and not be unrouted"
            )));
        }
        if self.concurrency == Some(0) {
            return Err(Error::invalid(format!(
                "concurrency of destination {name} is 0; it must be at least 1"
            )));
        }
        if self.rate == Some(0) {
            return Err(Error::invalid(format!(
                "rate of destination {name} is 0; it must be at least 1 event a second"
            )));
        }
        if let Some(longest) = self.transport.capabilities().longest_publish
            && longest >= dispatch_timeout
        {
            return Err(Error::invalid(format!(
                "dispatch_timeout is {dispatch_timeout:?}, and a publish to destination {name} may take \
                 {longest:?} by its connect_timeout and publish_timeout; dispatch_timeout must be \
                 longer than that, or these two shorter by more than {:?} together",
                longest.saturating_sub(dispatch_timeout)
            )));
        }
        Ok(())
    }

    pub(crate) fn outlet(&self, concurrency: usize, batch: usize, now: Instant) -> Outlet {
        Outlet {
            transport: Arc::clone(&self.transport),
            max_batch: self.transport.capabilities().max_batch.clamp(1, batch),
            concurrency: self.concurrency.unwrap_or(concurrency),
            limiter: self.rate.map(|rate| Limiter::new(rate, now)),
            publishing: 0,
        }
    }
}

/// A destination at work.
pub(crate) struct Outlet {
    pub(crate) transport: Arc<dyn Transport>,
    max_batch: usize,
    concurrency: usize,
    limiter: Option<Limiter>,
    /// Publishes under way.
    pub(crate) publishing: usize,
}

impl Outlet {
    /// How many events the next publish may have; 0 when it must wait.
    pub(crate) fn room(&mut self, now: Instant) -> usize {
        if self.publishing >= self.concurrency {
            return 0;
        }
        match &mut self.limiter {
            Some(limiter) => self.max_batch.min(limiter.allowance(now)),
            None => self.max_batch,
        }
    }

    /// As many publishes are under way as there may be.
    pub(crate) fn is_full(&self) -> bool {
        self.publishing >= self.concurrency
    }

    pub(crate) fn published(&mut self, events: usize) {
        self.publishing += 1;
        if let Some(limiter) = &mut self.limiter {
            limiter.allowed -= events as f64;
        }
    }

    /// When the rate allows the next event, if that is what it waits for.
    pub(crate) fn waits_until(&self) -> Option<Instant> {
        self.limiter.as_ref().and_then(Limiter::next)
    }
}

/// So many events a second, evenly: what was not used for a tenth of a second is gone.
struct Limiter {
    per_second: f64,
    allowed: f64,
    as_of: Instant,
}

impl Limiter {
    fn new(rate: u32, now: Instant) -> Self {
        Self { per_second: f64::from(rate), allowed: 1.0, as_of: now }
    }

    fn allowance(&mut self, now: Instant) -> usize {
        let passed = now.saturating_duration_since(self.as_of).as_secs_f64();
        self.as_of = self.as_of.max(now);
        let most = (self.per_second / 10.0).max(1.0);
        self.allowed = (self.allowed + passed * self.per_second).min(most);
        self.allowed.max(0.0) as usize
    }

    fn next(&self) -> Option<Instant> {
        let missing = 1.0 - self.allowed;
        (missing > 0.0).then(|| self.as_of + Duration::from_secs_f64(missing / self.per_second))
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use posthaste_core::{
        Envelope,
        transport::{Capabilities, Outcome},
    };

    use super::*;

    /// A transport whose publish takes at most so long.
    struct Within(Option<Duration>);

    #[async_trait]
    impl Transport for Within {
        fn name(&self) -> &str {
            "kafka"
        }

        fn capabilities(&self) -> Capabilities {
            Capabilities { longest_publish: self.0, ..Capabilities::default() }
        }

        async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
            vec![Outcome::Delivered; batch.len()]
        }
    }

    #[test]
    fn a_publish_that_may_take_longer_than_a_dispatch_is_refused_with_both_times() {
        let checked = |longest: Option<u64>, dispatch: u64| {
            let transport = Within(longest.map(Duration::from_millis));
            Destination::new(Arc::new(transport)).check(Duration::from_millis(dispatch))
        };
        for (longest, dispatch) in [(None, 1), (Some(17_199), 17_200)] {
            checked(longest, dispatch).unwrap();
        }
        let error = checked(Some(17_200), 10_000).unwrap_err().to_string();
        assert_eq!(
            error,
            "dispatch_timeout is 10s, and a publish to destination kafka may take 17.2s by its \
             connect_timeout and publish_timeout; dispatch_timeout must be longer than that, or \
             these two shorter by more than 7.2s together"
        );
        assert!(checked(Some(17_200), 17_200).is_err());
    }

    #[test]
    fn a_rate_is_kept_over_time_and_not_saved_up() {
        let start = Instant::now();
        let mut limiter = Limiter::new(100, start);
        let mut sent = 0;
        for millis in 0..1_000 {
            let allowed = limiter.allowance(start + Duration::from_millis(millis));
            limiter.allowed -= allowed as f64;
            sent += allowed;
        }
        assert!((99..=101).contains(&sent), "{sent}");
        assert!(limiter.allowance(start + Duration::from_mins(1)) <= 10);
    }

    #[test]
    fn what_waits_knows_until_when() {
        let start = Instant::now();
        let mut limiter = Limiter::new(4, start);
        assert_eq!(limiter.allowance(start), 1);
        limiter.allowed -= 1.0;
        assert_eq!(limiter.next(), Some(start + Duration::from_millis(250)));
    }
}
