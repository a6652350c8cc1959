//! Health: whether the relay lives, and whether it gets on.
//!
//! *Live* is about this process: its driver runs and comes round. *Ready* is about progress: the
//! database answers, the shards are somebody's, and no event that could be delivered is too old.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// A relay asks the database every second and gives a call up after 5 s at most: when no answer came for
/// this long, the second try has failed too.
const UNANSWERED: Duration = Duration::from_secs(8);

/// The first failure came after 5 s at most; so long after it all tries since have failed.
const FAILING: Duration = Duration::from_secs(4);

/// What is still healthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthLimits {
    /// The oldest event that could be delivered now is younger.
    pub max_age: Duration,
    /// The driver came round more recently than this, and so did an answer of the database. The database
    /// has 8 s at most.
    pub silence: Duration,
}

impl Default for HealthLimits {
    fn default() -> Self {
        Self { max_age: Duration::from_mins(5), silence: Duration::from_secs(30) }
    }
}

/// How a relay is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// It works, or waits for work; starting it again would not help.
    pub live: bool,
    /// It gets on, or stands by.
    pub ready: bool,
    /// What is wrong, for people; empty when all is well.
    pub reasons: Vec<String>,
}

/// Where a relay is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    NotStarted,
    Running,
    /// An error ended it.
    Ended,
    Stopped,
}

/// Signs of life, written by the driver and by housekeeping.
#[derive(Debug, Default)]
pub(crate) struct Pulse(Mutex<Signs>);

#[derive(Debug, Clone, Default)]
struct Signs {
    turned: Option<Instant>,
    database: Option<Instant>,
    oldest: Option<Duration>,
    /// Shards that nobody owns although this relay would, since when.
    unowned: Option<Instant>,
    /// Switched off or paused.
    stands_by: bool,
    /// When a call will have taken twice as long as it may.
    overdue_at: Option<Instant>,
    /// Since when reads, or settles, have failed one after the other.
    reads_fail: Option<Instant>,
    settles_fail: Option<Instant>,
    /// Events that could be delivered and are not, and why.
    stalled: Option<String>,
}

impl Pulse {
    /// The driver came round.
    pub(crate) fn turned(&self, now: Instant, stands_by: bool) {
        let mut signs = self.signs();
        signs.turned = Some(now);
        signs.stands_by = stands_by;
    }

    pub(crate) fn reached_database(&self, now: Instant) {
        self.signs().database = Some(now);
    }

    /// Whether this relay works and there are shards that nobody owns.
    pub(crate) fn unowned(&self, now: Instant, unowned: bool) {
        let mut signs = self.signs();
        signs.unowned = unowned.then(|| signs.unowned.unwrap_or(now));
    }

    /// The age of the oldest event that could be delivered.
    pub(crate) fn oldest(&self, age: Option<Duration>) {
        self.signs().oldest = age;
    }

    /// When the first of the calls under way will have taken twice as long as it may.
    pub(crate) fn overdue_at(&self, at: Option<Instant>) {
        self.signs().overdue_at = at;
    }

    /// A read came back.
    pub(crate) fn read(&self, now: Instant, failed: bool) {
        let mut signs = self.signs();
        signs.reads_fail = failed.then(|| signs.reads_fail.unwrap_or(now));
    }

    /// A settle came back.
    pub(crate) fn settled(&self, now: Instant, failed: bool) {
        let mut signs = self.signs();
        signs.settles_fail = failed.then(|| signs.settles_fail.unwrap_or(now));
    }

    /// What is said of events that stall.
    pub(crate) fn stalled(&self, stalled: Option<String>) {
        self.signs().stalled = stalled;
    }

    pub(crate) fn health(&self, life: Life, limits: &HealthLimits, now: Instant) -> Health {
        let signs = self.signs().clone();
        let silent = |since: Option<Instant>, limit: Duration| {
            since.is_none_or(|at| now.saturating_duration_since(at) > limit)
        };
        let stuck =
            life == Life::Running && signs.turned.is_some() && silent(signs.turned, limits.silence);
        // Whatever the database does, a call comes back by its deadline, or something blocks it here.
        let blocked =
            life == Life::Running && signs.overdue_at.is_some_and(|at| Instant::now() > at);
        let mut reasons = Vec::new();
        match life {
            Life::NotStarted => reasons.push("not started".to_owned()),
            Life::Ended => reasons.push("ended by an error".to_owned()),
            Life::Stopped => reasons.push("stopped".to_owned()),
            Life::Running => {}
        }
        let unanswered = limits.silence.min(UNANSWERED);
        if life == Life::Running && signs.turned.is_some() && silent(signs.turned, unanswered) {
            reasons.push(format!("the driver has not come round for {unanswered:?}"));
        }
        if blocked {
            reasons.push("a call has taken twice as long as it may".to_owned());
        }
        if life == Life::Running {
            if silent(signs.database, unanswered) {
                reasons.push("the database was not reached lately".to_owned());
            }
            for (doing, since) in [("reads", signs.reads_fail), ("settles", signs.settles_fail)] {
                if since.is_some() && silent(since, FAILING) {
                    reasons.push(format!("{doing} fail, one after the other"));
                }
            }
            if silent(signs.unowned, limits.silence) && signs.unowned.is_some() {
                reasons.push("there are shards that nobody owns".to_owned());
            }
            reasons.extend(signs.stalled.clone());
            if signs.oldest.is_some_and(|age| age > limits.max_age) && !signs.stands_by {
                reasons
                    .push(format!("the oldest eligible event is older than {:?}", limits.max_age));
            }
        }
        Health {
            live: life != Life::Ended && !stuck && !blocked,
            ready: reasons.is_empty(),
            reasons,
        }
    }

    fn signs(&self) -> MutexGuard<'_, Signs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HealthLimits =
        HealthLimits { max_age: Duration::from_mins(5), silence: Duration::from_secs(30) };

    fn pulse(now: Instant) -> Pulse {
        let pulse = Pulse::default();
        pulse.turned(now, false);
        pulse.reached_database(now);
        pulse
    }

    #[test]
    fn a_relay_that_comes_round_and_reaches_its_database_is_ready() {
        let now = Instant::now();
        let health = pulse(now).health(Life::Running, &LIMITS, now);
        assert_eq!(health, Health { live: true, ready: true, reasons: Vec::new() });
    }

    #[test]
    fn a_driver_that_is_stuck_or_ended_is_not_live() {
        let now = Instant::now();
        let later = now + Duration::from_secs(31);
        assert!(!pulse(now).health(Life::Running, &LIMITS, later).live);
        assert!(!pulse(now).health(Life::Ended, &LIMITS, now).live);
    }

    #[test]
    fn a_database_that_is_away_makes_it_unready_and_not_dead() {
        let now = Instant::now();
        let (pulse, later) = (pulse(now), now + Duration::from_secs(9));
        pulse.turned(later, false);
        let health = pulse.health(Life::Running, &LIMITS, later);
        assert!(health.live && !health.ready);
        let sooner = HealthLimits { silence: Duration::from_secs(3), ..LIMITS };
        let soon = now + Duration::from_secs(4);
        assert!(pulse.health(Life::Running, &LIMITS, soon).ready);
        assert!(!pulse.health(Life::Running, &sooner, soon).ready);
    }

    #[test]
    fn a_driver_that_does_not_turn_is_unready_within_10_s_and_dead_after_30() {
        let now = Instant::now();
        let (pulse, later) = (pulse(now), now + Duration::from_secs(9));
        pulse.reached_database(later);
        let health = pulse.health(Life::Running, &LIMITS, later);
        assert!(health.live && !health.ready, "{health:?}");
    }

    #[test]
    fn a_call_that_has_taken_twice_as_long_as_it_may_makes_it_dead() {
        let now = Instant::now();
        let pulse = pulse(now);
        pulse.overdue_at(Some(now + Duration::from_mins(1)));
        assert!(pulse.health(Life::Running, &LIMITS, now).live);
        pulse.overdue_at(now.checked_sub(Duration::from_millis(1)));
        let health = pulse.health(Life::Running, &LIMITS, now);
        assert!(!health.live && !health.ready, "{health:?}");
        assert!(pulse.health(Life::Stopped, &LIMITS, now).live);
    }

    #[test]
    fn reads_or_settles_that_only_fail_make_it_unready_within_10_s() {
        for fail in [Pulse::read, Pulse::settled] {
            let now = Instant::now();
            let (pulse, later) = (pulse(now), now + Duration::from_secs(5));
            fail(&pulse, now, true);
            assert!(pulse.health(Life::Running, &LIMITS, now).ready, "one failure is none");
            fail(&pulse, later, true);
            let health = pulse.health(Life::Running, &LIMITS, later);
            assert!(health.live && !health.ready, "{health:?}");
            fail(&pulse, later, false);
            assert!(pulse.health(Life::Running, &LIMITS, later).ready);
        }
    }

    #[test]
    fn an_event_that_stalls_makes_it_unready_and_says_why() {
        let now = Instant::now();
        let pulse = pulse(now);
        pulse.stalled(Some("events stall: 1".to_owned()));
        let health = pulse.health(Life::Running, &LIMITS, now);
        assert!(health.live && !health.ready);
        assert_eq!(health.reasons, ["events stall: 1"]);
    }

    #[test]
    fn an_event_that_is_too_old_makes_it_unready_unless_it_is_meant_to_wait() {
        let now = Instant::now();
        let pulse = pulse(now);
        pulse.oldest(Some(Duration::from_mins(6)));
        assert!(!pulse.health(Life::Running, &LIMITS, now).ready);
        pulse.turned(now, true);
        assert!(pulse.health(Life::Running, &LIMITS, now).ready);
    }

    #[test]
    fn shards_that_stay_nobodys_make_it_unready() {
        let now = Instant::now();
        let (pulse, later) = (pulse(now), now + Duration::from_secs(31));
        pulse.unowned(now, true);
        assert!(pulse.health(Life::Running, &LIMITS, now).ready, "they are being taken");
        pulse.turned(later, false);
        pulse.reached_database(later);
        pulse.unowned(later, true);
        assert!(!pulse.health(Life::Running, &LIMITS, later).ready);
        pulse.unowned(later, false);
        assert!(pulse.health(Life::Running, &LIMITS, later).ready);
    }
}
