//! Pauses: looked at once a second and when woken, before anything else is done with the outbox.
//!
//! A relay that is paused, alone or with the whole outbox, lets what is in flight end, hands its
//! shards over (or gives its claims back) and stands by; its heartbeats go on. The others share the
//! work as if it were not there. Pauses of destinations and keys are the lanes' affair.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use posthaste_core::{
    Key, Result,
    store::{Census, LiveRelay, Pausable, Pause},
};

use crate::{
    driver::{Done, Driver},
    read::within,
};

/// How often they are looked at when nobody wakes us.
const INTERVAL: Duration = Duration::from_secs(1);

/// How often at most: a wake-up may come with every commit.
const LEAST_INTERVAL: Duration = Duration::from_millis(100);

/// What is paused, as of the last look.
#[derive(Debug)]
pub(crate) struct Pauses {
    /// Nothing is done before the first look.
    known: bool,
    looking: bool,
    looked_at: Option<Instant>,
    look_at: Instant,
    /// The outbox, or this relay.
    here: bool,
    relays: BTreeSet<String>,
}

impl Pauses {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            known: false,
            looking: false,
            looked_at: None,
            look_at: now,
            here: false,
            relays: BTreeSet::new(),
        }
    }

    /// Something happened in the outbox; it may be a pause.
    pub(crate) fn wake(&mut self) {
        let soon = self.looked_at.map(|at| at + LEAST_INTERVAL);
        self.look_at = soon.map_or(self.look_at, |soon| self.look_at.min(soon));
    }

    pub(crate) fn known(&self) -> bool {
        self.known
    }

    pub(crate) fn next_look(&self) -> Instant {
        self.look_at
    }

    /// The relays that share the work: all that are alive and not paused by their name.
    pub(crate) fn sharing(&self, census: &Census) -> Census {
        let works = |live: &&LiveRelay| {
            let name = live.owner.rsplit_once('/').map_or(&*live.owner, |(name, _)| name);
            !self.relays.contains(name)
        };
        Census {
            live: census.live.iter().filter(works).cloned().collect(),
            owners: census.owners.clone(),
        }
    }
}

impl Driver {
    /// It takes no work: it is switched off, paused, or does not know yet whether it is.
    pub(crate) fn rests(&self) -> bool {
        !self.pauses.known || self.stands_by()
    }

    /// It is switched off or paused.
    pub(crate) fn stands_by(&self) -> bool {
        !self.config.enabled || self.pauses.here
    }

    pub(crate) fn look_at_pauses(&mut self, now: Instant) {
        if self.pauses.looking || now < self.pauses.look_at {
            return;
        }
        self.pauses.looking = true;
        self.pauses.looked_at = Some(now);
        self.pauses.look_at = now + INTERVAL;
        let store = Arc::clone(&self.store);
        let deadline = self.config.deadline();
        self.tasks
            .spawn(async move { Done::Pauses { pauses: within(deadline, store.pauses()).await } });
    }

    pub(crate) fn paused(&mut self, pauses: Result<Vec<Pause>>, now: Instant) {
        self.pauses.looking = false;
        let pauses = match pauses {
            Ok(pauses) => pauses,
            Err(error) => return self.database_failed("looking at pauses", &error),
        };
        self.pulse.reached_database(now);
        let (mut relays, mut destinations) = (BTreeSet::new(), BTreeSet::new());
        let (mut keys, mut outbox) = (BTreeSet::<Key>::new(), false);
        for Pause { what, .. } in &pauses {
            match what {
                Pausable::Outbox => outbox = true,
                Pausable::Relay(name) => drop(relays.insert(name.clone())),
                Pausable::Destination(name) => drop(destinations.insert(name.as_str())),
                Pausable::Key(key) => drop(keys.insert(*key)),
            }
        }
        self.lanes.pause(&keys, &destinations, now);
        self.fall_behind();
        let rested = self.rests();
        let here = outbox || relays.contains(&self.config.name);
        if here != self.pauses.here {
            let relay = &self.config.name;
            if here {
                tracing::info!(relay, outbox, "paused: what is in flight ends, then it stands by");
            } else {
                tracing::info!(relay, "goes on after a pause");
            }
        }
        // Whoever is paused leaves shards to the others, who wait for the next census otherwise.
        self.tick_now |= relays != self.pauses.relays;
        (self.pauses.known, self.pauses.here, self.pauses.relays) = (true, here, relays);
        if rested && !self.rests() {
            self.source.wake();
            self.tick_now = true;
        }
    }

    /// Lets go of everything but what is in flight.
    pub(crate) fn stand_down(&mut self, now: Instant) {
        self.wanted.clear();
        self.let_go(now);
        self.give_away(self.shards.reading());
    }

    /// What failed and is undecided goes back, and so does what was claimed and waits.
    pub(crate) fn let_go(&mut self, now: Instant) {
        self.lanes.decide_all(now);
        self.fall_behind();
        if self.by_rows() {
            self.lanes.give_back(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use posthaste_core::store::RelayOrdering;

    use super::*;

    #[test]
    fn a_relay_that_is_paused_has_no_share() {
        let mut pauses = Pauses::new(Instant::now());
        pauses.relays.insert("b".to_owned());
        let live =
            |owner: &str| LiveRelay { owner: owner.to_owned(), ordering: RelayOrdering::PerKey };
        let census =
            Census { live: vec![live("a/1"), live("b/2"), live("bb/3")], owners: Vec::new() };
        let sharing = pauses.sharing(&census).live;
        assert_eq!(sharing, [live("a/1"), live("bb/3")]);
    }
}
