//! What keeps an event back that could go as far as it is concerned: pauses, and missing hands.

use jiff::Timestamp;
use posthaste_core::{
    Event, Result,
    store::{EventRecord, OpenBreaker, Pausable, Pause, RelayRecord, ShardRecord, Store},
};

use posthaste_relay::Routes;

use super::{
    explain::{Cause, Explanation, UNROUTED},
    words::{by_whom, resume, since},
};

/// What an outbox is like around its events.
pub(super) struct Surroundings<'a> {
    pub(super) now: Timestamp,
    relays: Vec<RelayRecord>,
    shards: Vec<ShardRecord>,
    pauses: Vec<Pause>,
    /// The names of the destinations, as far as they are known.
    destinations: &'a [String],
    /// Which events go to which, if that is known.
    routes: Option<&'a Routes>,
}

impl<'a> Surroundings<'a> {
    pub(super) async fn read(
        store: &dyn Store,
        destinations: &'a [String],
        routes: Option<&'a Routes>,
    ) -> Result<Self> {
        let mut relays = store.relays().await?;
        relays.retain(|relay| relay.alive);
        Ok(Self {
            now: store.now().await?,
            relays,
            shards: store.shards().await?,
            pauses: store.pauses().await?,
            destinations,
            routes,
        })
    }

    /// The first of what keeps this event back, if anything does.
    pub(super) fn obstacle(&self, record: &EventRecord) -> Option<Explanation> {
        let event = record.content.as_ref().ok().map(|envelope| &envelope.event);
        self.paused(record, event)
            .or_else(|| self.no_relay())
            .or_else(|| self.no_route(record))
            .or_else(|| self.breaker_open(record))
            .or_else(|| self.shard_unowned(record))
    }

    /// The relays that are alive.
    pub(super) fn relays(&self) -> &[RelayRecord] {
        &self.relays
    }

    /// The lowest checkpoint of all shards.
    pub(super) fn lowest_mark(&self) -> i64 {
        self.shards.iter().map(|shard| shard.mark).min().unwrap_or(0)
    }

    /// A fresh event before the checkpoint of its shard: a read should have brought it.
    pub(super) fn is_passed(&self, record: &EventRecord) -> bool {
        let by_rows = self.relays.iter().all(|relay| relay.ordering == "none");
        let mark = self.shards.iter().find(|shard| shard.shard == record.shard);
        let passed = mark.is_some_and(|shard| record.sequence <= shard.mark);
        passed && !by_rows && record.wait.is_none() && record.not_before.is_none()
    }

    /// Who holds this shard.
    pub(super) fn owner_of(&self, shard: u16) -> Option<&str> {
        self.shards.iter().find(|record| record.shard == shard)?.locked_by.as_deref()
    }

    /// Where the event goes by the routes, or why it goes nowhere; `None` when they are not known.
    fn routed(&self, record: &EventRecord) -> Option<Result<&'a str, String>> {
        Some(self.routes?.destination_of(record.content.as_ref().ok()?))
    }

    /// Where the event goes, if that is known. A relay routes it anew when it reads it, so where it failed
    /// before tells less than the routes.
    fn destination_of<'r>(&'r self, record: &'r EventRecord) -> Option<&'r str> {
        let failed_at = record.destination.as_deref().filter(|name| *name != UNROUTED);
        match (self.routed(record), self.destinations) {
            (Some(routed), _) => routed.ok(),
            (None, _) if failed_at.is_some() => failed_at,
            (None, [only]) => Some(only),
            (None, _) => None,
        }
    }

    fn paused(&self, record: &EventRecord, event: Option<&Event>) -> Option<Explanation> {
        let key = event.and_then(Event::key);
        let destination = self.destination_of(record);
        let named = |name: &String| {
            let pause = Pausable::Destination(name.clone());
            self.pauses.iter().any(|other| other.what == pause)
        };
        let nowhere_to_go = !self.destinations.is_empty() && self.destinations.iter().all(named);
        let nobody_to_do_it = !self.relays.is_empty()
            && self.relays.iter().all(|relay| {
                self.pauses.iter().any(|pause| pause.what == Pausable::Relay(relay.name.clone()))
            });
        let pause = self.pauses.iter().find(|pause| match &pause.what {
            Pausable::Outbox => true,
            Pausable::Key(paused) => key == Some(*paused),
            Pausable::Destination(name) => destination == Some(name.as_str()) || nowhere_to_go,
            Pausable::Relay(name) => {
                nobody_to_do_it && self.relays.iter().any(|relay| relay.name == *name)
            }
        })?;
        let what = match &pause.what {
            Pausable::Outbox => "the outbox is".to_owned(),
            Pausable::Key(_) => "its key is".to_owned(),
            Pausable::Destination(name) => format!("its destination {name} is"),
            Pausable::Relay(name) => format!("relay {name}, which would deliver it, is"),
        };
        let sentence = format!("{what} {}", by_whom(pause, self.now));
        Some(Explanation::new(Cause::Paused, sentence).mended_by(resume(&pause.what, event)))
    }

    fn no_relay(&self) -> Option<Explanation> {
        if !self.relays.is_empty() {
            return None;
        }
        let sentence = "no relay of this outbox is alive";
        Some(Explanation::new(Cause::NoRelay, sentence).mended_by("posthaste relay"))
    }

    fn no_route(&self, record: &EventRecord) -> Option<Explanation> {
        let why = self.routed(record)?.err()?;
        let sentence = format!("no relay with these routes will deliver it: {why}");
        Some(Explanation::new(Cause::NoRoute, sentence).mended_by("posthaste config show"))
    }

    /// Whether the destination takes nothing. When it is not known where the event goes, those that
    /// take nothing are named, and it is said that it may be one of them.
    fn breaker_open(&self, record: &EventRecord) -> Option<Explanation> {
        let owner = self.owner_of(record.shard);
        let open: Vec<(&RelayRecord, &OpenBreaker)> = self
            .relays
            .iter()
            .filter(|relay| owner.is_none_or(|owner| owner == relay.owner))
            .flat_map(|relay| relay.breakers.iter().map(move |breaker| (relay, breaker)))
            .collect();
        let told = |(relay, breaker): (&RelayRecord, &OpenBreaker)| {
            format!(
                "destination {} has taken nothing from relay {} since {} ({})",
                breaker.destination,
                relay.name,
                since(breaker.since, self.now),
                breaker.error
            )
        };
        let sentence = if let Some(name) = self.destination_of(record) {
            let its = |(_, breaker): &(&RelayRecord, &OpenBreaker)| breaker.destination == name;
            format!("its {}", told(open.into_iter().find(its)?))
        } else {
            let is_down =
                |name: &String| open.iter().any(|(_, breaker)| breaker.destination == *name);
            let all_down = !self.destinations.is_empty() && self.destinations.iter().all(is_down);
            let down: Vec<String> = open.into_iter().map(told).collect();
            match (down.as_slice(), all_down) {
                ([], _) => return None,
                (_, true) => format!("no destination takes anything: {}", down.join("; ")),
                (_, false) => {
                    format!("{}; if its route leads there, it waits for that", down.join("; "))
                }
            }
        };
        let sentence = format!("{sentence}; the relay tries again by itself");
        // Connects to each destination of the configuration, and says why one cannot be reached.
        Some(Explanation::new(Cause::BreakerOpen, sentence).mended_by("posthaste doctor"))
    }

    /// Whether nobody holds the shard although relays divide the work by shards.
    fn shard_unowned(&self, record: &EventRecord) -> Option<Explanation> {
        let by_rows = self.relays.iter().all(|relay| relay.ordering == "none");
        if by_rows || self.owner_of(record.shard).is_some() {
            return None;
        }
        let sentence = format!(
            "shard {} is held by no relay; a live one takes it with its next heartbeat, unless it is \
             switched off (relay.enabled) or cannot reach the database",
            record.shard
        );
        Some(Explanation::new(Cause::ShardUnowned, sentence).mended_by("posthaste relays"))
    }
}
