//! Looks, while accidents happen, for events that could be handed over and are not.
//!
//! Every second of virtual time the first waiting event of each key is looked at. Something may excuse that it
//! waits: an accident that concerns it, or its end a short while ago. An event that nothing has excused for
//! [`BOUND`], and that no destination was given meanwhile, stalls. What befalls one destination or one key
//! excuses nobody else, and an open transaction excuses nobody at all.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use posthaste_core::{
    Key, Status,
    store::{EventRecord, Filter, Inspect, RelayOrdering, Wait},
};
use tokio::time::sleep;
use uuid::Uuid;

use crate::{
    history::{Happened, short},
    judge::Promise,
    world::World,
};

/// An event that nothing excuses is handed over within this time. Measured: see `docs/simulation.md`.
pub(crate) const BOUND: Duration = Duration::from_secs(20);

/// A destination that a relay takes for down is tried now and then. What has failed there, or is held, waits for its
/// turn to be tried with: this long.
pub(crate) const TURN: Duration = Duration::from_mins(1);

/// How long after its end an accident still excuses: leases run out, relays start again, breakers try again.
pub(crate) const RECOVERY: Duration = Duration::from_secs(15);

/// How often it looks.
const EVERY: Duration = Duration::from_secs(1);

/// Until when something excuses that events wait, in microseconds since the beginning.
#[derive(Debug, Default)]
pub(crate) struct Excuses {
    all: u64,
    destinations: BTreeMap<usize, u64>,
    keys: BTreeMap<Key, u64>,
    /// Relays that do nothing. The others do their work.
    relays: BTreeMap<usize, u64>,
}

impl Excuses {
    pub(crate) fn all(&mut self, until: u64) {
        self.all = self.all.max(until);
    }

    pub(crate) fn destination(&mut self, destination: usize, until: u64) {
        let known = self.destinations.entry(destination).or_default();
        *known = until.max(*known);
    }

    pub(crate) fn key(&mut self, key: Key, until: u64) {
        let known = self.keys.entry(key).or_default();
        *known = until.max(*known);
    }

    pub(crate) fn relay(&mut self, relay: usize, until: u64) {
        let known = self.relays.entry(relay).or_default();
        *known = until.max(*known);
    }

    /// Whether anything that concerns everybody is under way, or has ended a short while ago.
    pub(crate) fn excuse_all(&self, now: u64, relays: usize) -> bool {
        let idle = (0..relays).filter(|relay| {
            self.relays.get(relay).is_some_and(|until| until + RECOVERY.as_micros() as u64 > now)
        });
        self.all > now || idle.count() == relays
    }

    fn excuse(&self, now: u64, relays: usize, destination: usize, key: Option<Key>) -> bool {
        let lasts = |until: Option<&u64>| until.is_some_and(|until| *until > now);
        self.excuse_all(now, relays)
            || lasts(self.destinations.get(&destination))
            || key.is_some_and(|key| lasts(self.keys.get(&key)))
    }
}

/// An event that could be handed over, since when, and how often destinations had been given it then.
struct Eligible {
    since: u64,
    tries: u32,
    told: bool,
}

impl World {
    /// Looks until it is dropped.
    pub(crate) async fn look_for_stalls(self: Arc<Self>) {
        let mut known: BTreeMap<Uuid, Eligible> = BTreeMap::new();
        loop {
            sleep(EVERY).await;
            let (now, mut seen) = (self.at(), BTreeMap::new());
            let waiting = self.waiting().await;
            for record in self.first_of_keys(&waiting) {
                let (Some(id), Ok(envelope)) = (record.event_id, &record.content) else { continue };
                let (key, destination) = (envelope.event.key(), self.destination_of(record));
                let excused = self.excuses().excuse(now, self.plan.relays, destination, key);
                if excused {
                    continue;
                }
                let tries = self.tries(id);
                let before = known.remove(&id).filter(|before| before.tries == tries);
                let mut one = before.unwrap_or(Eligible { since: now, tries, told: false });
                let waited = now - one.since;
                let is_tried = record.wait.is_some() && self.has_failed(destination, now);
                let bound = if is_tried { TURN } else { BOUND };
                if !is_tried {
                    self.longest_wait(waited);
                }
                if waited > bound.as_micros() as u64 && !one.told {
                    one.told = true;
                    let text = format!(
                        "{} (#{}) could be handed to d{destination} for {:.1} s and is not",
                        short(id),
                        record.sequence,
                        waited as f64 / 1e6
                    );
                    let promise = Promise::NobodyStalls;
                    self.tell(Happened::Broke { promise, events: vec![id], text });
                }
                seen.insert(id, one);
            }
            known = seen;
            self.ask_the_doctor(&waiting).await;
        }
    }

    /// All events that wait, in the order of their sequence, and dead ones that block a key.
    async fn waiting(&self) -> Vec<EventRecord> {
        let mut waiting = Vec::new();
        for status in [Status::New, Status::Retry, Status::Sending, Status::Dead] {
            let filter = Filter { status: Some(status), ..Filter::default() };
            let page = self.operator.events(&filter, None, 10_000).await.unwrap_or_default();
            waiting.extend(page.events);
        }
        waiting.retain(|one| one.status != Status::Dead || one.wait == Some(Wait::Parked));
        waiting.sort_unstable_by_key(|one| one.sequence);
        waiting
    }

    /// Those of these that wait for no other, and whose time has come.
    fn first_of_keys<'r>(&self, waiting: &'r [EventRecord]) -> Vec<&'r EventRecord> {
        let now = self.server.time();
        // What is held has no time of its own; what is before it in its key has.
        let is_due = |one: &EventRecord| one.not_before.is_none_or(|at| at.as_microsecond() <= now);
        if self.plan.ordering == RelayOrdering::None {
            let free = waiting.iter().filter(|one| one.status != Status::Sending);
            return free.filter(|one| is_due(one)).collect();
        }
        let mut firsts: BTreeMap<Option<Key>, &EventRecord> = BTreeMap::new();
        let (mut blocked, mut alone) = (Vec::new(), Vec::new());
        for one in waiting {
            let key = one.content.as_ref().ok().and_then(|envelope| envelope.event.key());
            let place = if self.plan.ordering == RelayOrdering::Global { None } else { key };
            if one.status == Status::Dead {
                blocked.push(place);
            } else if one.wait.is_none() && !is_due(one) {
                // It joins its key when its time comes.
            } else if key.is_none() && self.plan.ordering == RelayOrdering::PerKey
                || one.wait == Some(Wait::Replay)
            {
                alone.push(one);
            } else {
                // A late commit can be before what blocks its lane.
                firsts
                    .entry(place)
                    .and_modify(|first| {
                        let waits = matches!(one.wait, Some(Wait::Retry | Wait::Suspect));
                        if waits && !matches!(first.wait, Some(Wait::Retry | Wait::Suspect)) {
                            *first = one;
                        }
                    })
                    .or_insert(one);
            }
        }
        firsts.retain(|place, _| !blocked.contains(place));
        alone.extend(firsts.into_values());
        alone.retain(|one| is_due(one));
        alone
    }
}
