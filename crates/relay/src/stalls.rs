//! Stalls: events that could be handed over and are not.
//!
//! Every few seconds the relay asks the table which events have been due for a while. It knows why most
//! of them wait: they are in hand, behind an earlier event of their key, paused, or their destination
//! takes nothing or has enough to do. An event that nothing explains is a *suspect*. When nothing has
//! explained it for [`Config::stall_after`](crate::Config::stall_after), it is a stall, and readiness,
//! metrics, `status` and the doctor say so with the reason.
//!
//! The look costs the same whatever the table holds: a few pages of rows by their primary key. One walk
//! goes over the last rows that were read, a slower one over all of them.
//! See `docs/decisions/0019-stalls.md`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use posthaste_core::{
    Result,
    store::{DueKey, EventRecord, Stall, Store},
};
use uuid::Uuid;

use crate::{
    destination::Outlet,
    driver::{Done, Driver},
    lanes::Whereabouts,
    read::within,
};

/// How often it looks, unless the bound is short.
const LOOK: Duration = Duration::from_secs(10);

/// Rows that one page of a walk examines.
const EXAMINED: usize = 5_000;

/// Rows beyond the cursor that are examined while it stands.
const AHEAD: usize = 1_000;

/// The quicker walk begins so many numbers before the cursor.
const RECENT: i64 = 50_000;

/// Most suspects that are kept in mind.
const SUSPECTS: usize = 500;

/// What is watched.
#[derive(Debug)]
pub(crate) struct Stalls {
    looking: bool,
    look_at: Instant,
    walks: Walks,
    last: Progress,
    /// Shards that nobody owns, as of the last census.
    pub(crate) unowned: BTreeSet<u16>,
    suspects: Suspects,
    /// What was told of them at the last look: nothing is said of one that may have gone since.
    told: Vec<Stall>,
    count: usize,
    first: Option<Instant>,
}

/// Where each walk goes on.
#[derive(Debug, Clone, Copy, Default)]
struct Walks {
    all: i64,
    recent: i64,
}

/// How far things were at the last look. Whatever has moved since is no stall.
#[derive(Debug, Default)]
struct Progress {
    cursor: i64,
    behind: BTreeMap<u16, i64>,
    due: [Option<DueKey>; 2],
    handed_over: Vec<u64>,
}

/// What a look found.
pub(crate) struct Looked {
    found: Vec<EventRecord>,
    walks: Walks,
}

impl Stalls {
    pub(crate) fn new(bound: Duration, now: Instant) -> Self {
        Self {
            looking: false,
            look_at: now + interval(bound),
            walks: Walks::default(),
            last: Progress::default(),
            unowned: BTreeSet::new(),
            suspects: Suspects { bound, known: BTreeMap::new() },
            told: Vec::new(),
            count: 0,
            first: None,
        }
    }

    /// What is told of them.
    pub(crate) fn told(&self) -> &[Stall] {
        &self.told
    }

    /// How many events stall, and for how long the first of them.
    pub(crate) fn extent(&self, now: Instant) -> (usize, Option<Duration>) {
        (self.count, self.first.map(|since| now.saturating_duration_since(since)))
    }
}

/// How often to look.
fn interval(bound: Duration) -> Duration {
    LOOK.min(bound / 4)
}

impl Driver {
    /// Looks for events that wait for no reason.
    pub(crate) fn look_for_stalls(&mut self, now: Instant) {
        if self.stalls.looking || now < self.stalls.look_at || self.once {
            return;
        }
        let every = interval(self.config.stall_after);
        self.stalls.look_at = now + every;
        if self.rests() || self.stopping.is_some() || !self.acquired_once {
            self.stalls.suspects.known.clear();
            return self.tell_stalls(now);
        }
        self.stalls.looking = true;
        let (store, deadline) = (Arc::clone(&self.store), self.config.deadline());
        let (cursor, walks) = (self.source.position().sequence, self.stalls.walks);
        let stands = cursor == self.stalls.last.cursor;
        let asked: Vec<i64> = self.stalls.suspects.known.keys().copied().collect();
        self.tasks.spawn(async move {
            let look = async {
                let found = within(deadline, store.still_overdue(&asked, every)).await?;
                let mut looked = Looked { found, walks };
                if stands {
                    let page = within(deadline, store.overdue(cursor, AHEAD, every)).await?;
                    looked.found.extend(page.events);
                }
                walk(&*store, cursor, every, deadline, &mut looked).await?;
                Ok(looked)
            };
            Done::Stalls { looked: look.await }
        });
    }

    pub(crate) fn looked_for_stalls(&mut self, looked: Result<Looked>, now: Instant) {
        self.stalls.looking = false;
        match looked {
            Ok(Looked { found, walks }) => {
                self.stalls.walks = walks;
                let seen: Vec<Seen> = found
                    .into_iter()
                    .map(|record| Seen {
                        sequence: record.sequence,
                        event_id: record.event_id,
                        reason: self.why_it_stalls(&record),
                    })
                    .collect();
                self.stalls.suspects.see(seen, now);
            }
            Err(error) => self.database_failed("looking for overdue events", &error),
        }
        self.stalls.last = Progress {
            cursor: self.source.position().sequence,
            behind: self
                .source
                .behind()
                .map(|destination| (destination, self.source.behind_position(destination)))
                .collect(),
            due: self.source.due_positions(),
            handed_over: self.lanes.handed_over(),
        };
        self.tell_stalls(now);
    }

    /// Why this event waits, if nothing explains it.
    fn why_it_stalls(&self, record: &EventRecord) -> Option<String> {
        let (limit, last) = (self.config.cold_queue, &self.stalls.last);
        let least = self.config.batch.div_ceil(2).min(limit);
        let cursor = self.source.position().sequence;
        match self.lanes.whereabouts(record, least) {
            Whereabouts::Accounted => None,
            Whereabouts::Elsewhere => {
                let unowned = self.stalls.unowned.contains(&record.shard);
                unowned.then(|| "no relay owns its shard".to_owned())
            }
            Whereabouts::Stranded => Some("read, and its lane does not stand in line".to_owned()),
            Whereabouts::InLine(destination) => {
                let index = usize::from(destination);
                let moves = last.handed_over.get(index) != self.lanes.handed_over().get(index);
                let busy = self.outlets.get(index).is_none_or(Outlet::is_full);
                (!moves && !busy).then(|| {
                    let name = self.outlets.get(index).map_or("", |outlet| outlet.transport.name());
                    format!("read, and not handed to {name}, which takes events")
                })
            }
            Whereabouts::Unread { .. } if record.wait.is_some() => {
                let moves = self.source.due_positions() != last.due;
                let held = record.not_before.is_none();
                let why = if held { "held, and nothing holds it" } else { "due, and not read" };
                (held || !moves).then(|| why.to_owned())
            }
            Whereabouts::Unread { destination, behind: true }
                if record.sequence > self.source.behind_position(destination) =>
            {
                let at = self.source.behind_position(destination);
                let moves = last.behind.get(&destination) != Some(&at);
                let full = self.lanes.room_behind(destination, limit) < least;
                let name = || {
                    let outlet = self.outlets.get(usize::from(destination));
                    outlet.map_or("", |outlet| outlet.transport.name()).to_owned()
                };
                (!moves && !full)
                    .then(|| format!("not read: the cursor of {} stands at {at}", name()))
            }
            Whereabouts::Unread { .. } if record.sequence > cursor => {
                let why = || {
                    let detail = self.why_the_cursor_stands();
                    format!("not read: the cursor stands at {cursor}{detail}")
                };
                (cursor == last.cursor).then(why)
            }
            Whereabouts::Unread { .. } => {
                Some("not read: the cursor has passed it, and no read brings it".to_owned())
            }
        }
    }

    /// What is known of a cursor that does not move.
    fn why_the_cursor_stands(&self) -> &'static str {
        if self.source.is_reading() {
            ", and its reads are not answered"
        } else if self.survey.is_some() || self.acquiring {
            ", and shards are still being taken"
        } else if self.lanes.budget().page().is_none() {
            ", and events of other destinations fill the memory"
        } else if !self.unwritten.is_empty() {
            ", and outcomes cannot be written"
        } else {
            ""
        }
    }

    /// Tells readiness and the log.
    fn tell_stalls(&mut self, now: Instant) {
        let stalls = self.stalls.suspects.stalls(now);
        for stall in &stalls {
            let known = self.stalls.told.iter().any(|told| told.reason == stall.reason);
            if !known {
                let Stall { reason, events, sequence, .. } = stall;
                tracing::error!(reason, events, sequence, "stalled: nothing explains the wait");
            }
        }
        if stalls.is_empty() && !self.stalls.told.is_empty() {
            tracing::info!("no event stalls any more");
        }
        self.pulse.stalled(stalls.first().map(|stall| {
            let Stall { reason, events, sequence, .. } = stall;
            format!("events stall: {events}, the first with sequence {sequence} ({reason})")
        }));
        self.stalls.told = stalls;
        (self.stalls.count, self.stalls.first) = self.stalls.suspects.extent(now);
    }
}

/// One page of each walk.
async fn walk(
    store: &dyn Store,
    cursor: i64,
    age: Duration,
    deadline: Duration,
    looked: &mut Looked,
) -> Result<()> {
    let Walks { all, recent } = looked.walks;
    let recent = recent.max(cursor - RECENT);
    for (from, first) in [(all, true), (recent, false)] {
        let page = within(deadline, store.overdue(from, EXAMINED, age)).await?;
        let next = page.next.filter(|next| *next < cursor);
        if first {
            looked.walks.all = next.unwrap_or(0);
        } else {
            looked.walks.recent = next.unwrap_or(0);
        }
        // Rows beyond the cursor are looked at by themselves, and only while it stands.
        looked.found.extend(page.events.into_iter().filter(|event| event.sequence <= cursor));
    }
    Ok(())
}

/// An event as a look saw it.
#[derive(Debug)]
struct Seen {
    sequence: i64,
    event_id: Option<Uuid>,
    /// Why it stalls; `None` when something explains that it waits.
    reason: Option<String>,
}

/// Events that nothing explains, each since when.
#[derive(Debug)]
struct Suspects {
    bound: Duration,
    known: BTreeMap<i64, Suspect>,
}

#[derive(Debug)]
struct Suspect {
    since: Instant,
    event_id: Option<Uuid>,
    reason: String,
}

impl Suspects {
    /// A look saw these; a suspect that is not among them is settled. The time of one that was explained
    /// meanwhile begins anew.
    fn see(&mut self, seen: Vec<Seen>, now: Instant) {
        let mut before = std::mem::take(&mut self.known);
        for Seen { sequence, event_id, reason } in seen {
            let Some(reason) = reason else { continue };
            if self.known.len() >= SUSPECTS && !before.contains_key(&sequence) {
                continue;
            }
            let since = before.remove(&sequence).map_or(now, |suspect| suspect.since);
            self.known.entry(sequence).or_insert(Suspect { since, event_id, reason });
        }
    }

    fn stalled(&self, now: Instant) -> impl Iterator<Item = (i64, &Suspect)> {
        let bound = self.bound;
        self.known
            .iter()
            .filter(move |(_, suspect)| now.saturating_duration_since(suspect.since) >= bound)
            .map(|(sequence, suspect)| (*sequence, suspect))
    }

    /// How many stall, and since when the first of them.
    fn extent(&self, now: Instant) -> (usize, Option<Instant>) {
        let first = self.stalled(now).map(|(_, suspect)| suspect.since).min();
        (self.stalled(now).count(), first)
    }

    /// The stalls by their reason, the one with the earliest event first.
    fn stalls(&self, now: Instant) -> Vec<Stall> {
        let mut stalls: Vec<Stall> = Vec::new();
        for (sequence, Suspect { since, event_id, reason }) in self.stalled(now) {
            if let Some(stall) = stalls.iter_mut().find(|stall| stall.reason == *reason) {
                stall.events += 1;
                continue;
            }
            let age = now.saturating_duration_since(*since);
            let at = Timestamp::now().checked_sub(age).unwrap_or(Timestamp::UNIX_EPOCH);
            stalls.push(Stall {
                reason: reason.clone(),
                events: 1,
                sequence,
                event_id: event_id.map(|id| id.to_string()),
                since: Timestamp::from_second(at.as_second()).unwrap_or(at),
            });
        }
        stalls
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Duration = Duration::from_mins(1);

    fn suspects() -> Suspects {
        Suspects { bound: BOUND, known: BTreeMap::new() }
    }

    fn seen(sequence: i64, reason: Option<&str>) -> Seen {
        Seen { sequence, event_id: None, reason: reason.map(str::to_owned) }
    }

    #[test]
    fn an_event_stalls_once_nothing_has_explained_it_for_the_bound() {
        let (mut suspects, start) = (suspects(), Instant::now());
        suspects.see(vec![seen(7, Some("not read"))], start);
        assert!(suspects.stalls(start).is_empty(), "it was seen once");
        let later = start + BOUND;
        suspects.see(vec![seen(7, Some("not read"))], later);
        let stalls = suspects.stalls(later);
        assert_eq!((stalls.len(), stalls[0].sequence, stalls[0].events), (1, 7, 1));
        assert_eq!(stalls[0].reason, "not read");
        assert_eq!(suspects.extent(later), (1, Some(start)));
    }

    #[test]
    fn its_time_begins_anew_when_something_explained_it_meanwhile() {
        let (mut suspects, start) = (suspects(), Instant::now());
        suspects.see(vec![seen(7, Some("not read"))], start);
        suspects.see(vec![seen(7, None)], start + BOUND / 2);
        suspects.see(vec![seen(7, Some("not read"))], start + BOUND);
        assert!(suspects.stalls(start + BOUND).is_empty());
        suspects.see(vec![seen(7, Some("not read"))], start + 2 * BOUND);
        assert_eq!(suspects.stalls(start + 2 * BOUND).len(), 1);
    }

    #[test]
    fn an_event_that_was_settled_is_forgotten() {
        let (mut suspects, start) = (suspects(), Instant::now());
        suspects.see(vec![seen(7, Some("not read"))], start);
        suspects.see(Vec::new(), start + BOUND);
        assert_eq!(suspects.extent(start + BOUND), (0, None));
    }

    #[test]
    fn stalls_are_told_by_their_reason_and_most_are_only_counted() {
        let (mut suspects, start) = (suspects(), Instant::now());
        let many = || {
            let both = [seen(3, Some("held")), seen(3, Some("held"))];
            both.into_iter().chain((10..10_000).map(|n| seen(n, Some("not read")))).collect()
        };
        suspects.see(many(), start);
        suspects.see(many(), start + BOUND);
        let stalls = suspects.stalls(start + BOUND);
        let told: Vec<_> = stalls.iter().map(|s| (s.reason.as_str(), s.sequence)).collect();
        assert_eq!(told, [("held", 3), ("not read", 10)]);
        assert_eq!(stalls[0].events, 1, "seen by two walks, it is one event");
        assert_eq!(stalls[1].events, SUSPECTS as u64 - 1);
    }
}
