//! When events come again whose queue or stream is full: each time later, until one is taken.
//!
//! A jam can last for hours, and each try of a waiting event costs a publish; where an exchange leads to several
//! queues, each try reaches those that are not full. So the wait of a routing key (NATS: subject) doubles
//! while it is refused, and starts anew once an event with it is taken.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use posthaste_core::backoff::{Backoff, Random, system_random};

/// The first wait, before jitter: as a relay's longest pause between probes.
const FIRST_WAIT: Duration = Duration::from_secs(5);

/// The longest wait, before jitter.
const LONGEST_WAIT: Duration = Duration::from_mins(5);

/// Most routing keys that are remembered. One more, and the one whose wait began first is forgotten: it starts
/// with the first wait again.
const MOST_KNOWN: usize = 1_000;

/// The waits of routing keys that were refused since one of their events was taken.
pub(crate) struct Full {
    backoff: Backoff,
    random: Random,
    /// Never locked over an await.
    waits: Mutex<HashMap<String, Wait>>,
}

/// How long events of a routing key wait.
#[derive(Clone, Copy)]
struct Wait {
    /// So many waits, this one with them.
    number: u32,
    began: Instant,
    /// A refusal from this moment on begins the next wait.
    until: Instant,
}

impl Full {
    /// No routing key is known yet.
    pub(crate) fn new() -> Self {
        Self::with(system_random())
    }

    fn with(random: Random) -> Self {
        let backoff = Backoff::Exponential { base: FIRST_WAIT, cap: LONGEST_WAIT };
        Self { backoff, random, waits: Mutex::default() }
    }

    /// Returns when an event with this routing key comes again, which was refused.
    pub(crate) fn refused(&self, key: &str) -> Duration {
        self.refused_at(key, Instant::now())
    }

    /// The same at this moment. Many events of a key are refused at once: the wait grows only with the first
    /// refusal after it.
    fn refused_at(&self, key: &str, now: Instant) -> Duration {
        let mut waits = self.waits();
        let before = waits.get(key).copied();
        let number = match before {
            Some(wait) if now < wait.until => wait.number,
            Some(wait) => wait.number.saturating_add(1),
            None => 1,
        };
        let after = self.backoff.wait(number, &self.random);
        if before.is_none_or(|wait| wait.number != number) {
            let wait = Wait { number, began: now, until: now + after };
            waits.insert(key.to_owned(), wait);
        }
        if waits.len() > MOST_KNOWN {
            let oldest = waits.iter().min_by_key(|(_, wait)| wait.began);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                waits.remove(&oldest);
            }
        }
        after
    }

    /// Forgets these routing keys, for events with them were taken.
    pub(crate) fn taken<'k>(&self, keys: impl IntoIterator<Item = &'k str>) {
        let mut waits = self.waits();
        if waits.is_empty() {
            return;
        }
        for key in keys {
            waits.remove(key);
        }
    }

    fn waits(&self) -> MutexGuard<'_, HashMap<String, Wait>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn knows(&self, key: &str) -> bool {
        self.waits().contains_key(key)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn full(jitter: f64) -> Full {
        Full::with(Arc::new(move || jitter))
    }

    /// How many seconds an event waits that comes again as soon as it may, each time.
    fn waits(full: &Full, key: &str, mut now: Instant, times: usize) -> Vec<u64> {
        let mut next = || {
            let after = full.refused_at(key, now);
            now += after;
            after.as_secs()
        };
        (0..times).map(|_| next()).collect()
    }

    #[test]
    fn the_wait_of_a_routing_key_doubles_up_to_five_minutes() {
        let (full, now) = (full(0.5), Instant::now());
        assert_eq!(waits(&full, "a", now, 9), [5, 10, 20, 40, 80, 160, 300, 300, 300]);
        assert_eq!(waits(&full, "b", now, 2), [5, 10], "each has its own");
    }

    #[test]
    fn many_events_that_are_refused_at_once_are_one_step() {
        let (full, now) = (full(0.5), Instant::now());
        let second = Duration::from_secs(1);
        for n in 0..4 {
            assert_eq!(full.refused_at("a", now + second * n), second * 5);
        }
        for n in 5..15 {
            assert_eq!(full.refused_at("a", now + second * n), second * 10);
        }
        assert_eq!(full.refused_at("a", now + second * 15), second * 20);
    }

    #[test]
    fn a_routing_key_that_is_taken_starts_anew() {
        let (full, now) = (full(0.5), Instant::now());
        assert_eq!(waits(&full, "a", now, 3), [5, 10, 20]);
        assert_eq!(waits(&full, "b", now, 3), [5, 10, 20]);
        full.taken(["a"]);
        assert!(!full.knows("a"));
        let later = now + Duration::from_secs(35);
        assert_eq!(waits(&full, "a", later, 2), [5, 10]);
        assert_eq!(waits(&full, "b", later, 2), [40, 80]);
    }

    #[test]
    fn events_of_a_routing_key_do_not_come_again_all_at_once() {
        let now = Instant::now();
        assert_eq!(full(0.0).refused_at("a", now), FIRST_WAIT / 2);
        assert_eq!(full(1.0).refused_at("a", now), FIRST_WAIT * 3 / 2);
    }

    #[test]
    fn the_routing_key_whose_wait_began_first_is_forgotten() {
        let (full, now) = (full(0.5), Instant::now());
        let millis = |n: usize| Duration::from_millis(n as u64);
        for n in 0..=MOST_KNOWN {
            full.refused_at(&n.to_string(), now + millis(n));
        }
        assert_eq!(full.waits().len(), MOST_KNOWN);
        assert!(!full.knows("0"));
        assert!(full.knows("1"));
        assert!(full.knows(&MOST_KNOWN.to_string()));
    }
}
