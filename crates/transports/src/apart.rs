//! Events that break the connection of all: each is found, tried alone, and kept apart from then on.
//!
//! ```text
//!  batch ──► shared connection ──┬─ answered ────────────────────────────────────► its outcome
//!                                └─ the connection broke: what was under way
//!                                     │ over a connection of its own
//!                                     ├─ taken ──────────────────────────────────► delivered
//!                                     ├─ that broke, too: in four parts, one after the other
//!                                     └─ one event alone ──┬─ others are taken ──► a retry of that event
//!                                                          └─ nothing is ────────► undecided: timed out
//! ```
//!
//! What is tried apart disturbs nobody: other publishes go on over the shared connection. An event
//! that was found goes alone from the start when it comes again.
//!
//! # Whose fault it is
//!
//! A server can let everybody in and hang up on every event, as a proxy does before one that is down. So an
//! event that breaks its connection alone is to blame only once the server has taken another event, on a
//! connection that was made after the break which brought this one here, in this publish or in another. What
//! an older connection takes says nothing of new ones. Until then nobody knows: the event is told as
//! [`Outcome::TimedOut`], which the relay counts against the destination as long as that takes nothing. An
//! event that was found to blame stays so, also with nobody else around, until it is taken.
//!
//! At the end of a trial the last events have no witness from after their own break: what the server took
//! earlier in this trial is one, for it let them in again afterwards. Without any witness the shared connection
//! is made anew: whatever goes over it next tells.
//!
//! Such events may lie side by side. When four broke their connections, one after the other, four that lie
//! far from them go next: one that is taken clears the server.
//!
//! # When things fail
//!
//! - The server has gone: no connection can be made, and what is left is unavailable. No event is
//!   accused before another connection could be made after the one that it broke.
//! - It is not the events: after eight of them, one after the other, nobody is to blame and all that is left is
//!   unavailable, and the relay sees an outage. Where others were taken before these, after 32.
//! - An outage in which the server still lets everybody in begins while events are tried and others were taken:
//!   up to 31 that are tried last are blamed for it, as events are that were refused shortly before a webhook
//!   refuses everything. The relay counts them until new events have opened its breaker.
//! - Time is up: what was not tried comes again, and no attempt is counted.
//! - The publish is dropped: its connection is not used again.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{self, Duration},
};

use posthaste_core::{Envelope, transport::Outcome};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};

use crate::connection::Connection;

/// Most connections beside the shared one at a time.
const CONNECTIONS: usize = 4;

/// What broke a connection goes on in so many parts. With more each round costs more publishes, with
/// fewer there are more rounds, and each of them ends a connection.
const PARTS: usize = 4;

/// So many events, one after the other, that end their connection or are refused alone: as the relay,
/// which takes so many failures in a row for an outage.
const IN_A_ROW: usize = 8;

/// The same, when the server has taken others since the connection of the batch broke.
const IN_A_ROW_BESIDE_OTHERS: usize = 32;

/// So many of these may be neighbours. The next ones are taken from elsewhere.
const NEIGHBOURS: usize = 4;

/// Most events that are remembered.
const MOST_KNOWN: usize = 1_000;

/// A transport whose publishes share a connection, which one event can break.
pub(crate) trait Shared: Sync {
    /// The connection.
    type Live: Send + Sync;

    /// The connection in this place, made if there is none that lives.
    fn live(
        &self,
        place: &Connection<Self::Live>,
    ) -> impl Future<Output = Result<Arc<Self::Live>, String>> + Send;

    /// Publishes these, of which there is at least one.
    fn send(
        &self,
        live: &Self::Live,
        batch: &[&Envelope],
        deadline: Instant,
    ) -> impl Future<Output = Sent> + Send;
}

/// What became of a batch.
pub(crate) struct Sent {
    /// For each event, in order; `None` for what was under way when the connection broke.
    pub(crate) outcomes: Vec<Option<Outcome>>,
    /// The connection, or the batch's own channel of it, broke over one of these events, or may have.
    /// Where that leaves events without an outcome, the connection is to be replaced.
    pub(crate) broke: Option<String>,
    /// Which of those without an outcome it may have been.
    pub(crate) suspects: Suspects,
    /// The connection is not to be used again.
    pub(crate) replace: bool,
}

/// What a server gives away of the events that broke a connection.
#[derive(Debug, Default)]
pub(crate) enum Suspects {
    /// It may be any that was under way.
    #[default]
    Unknown,
    /// It answers in the order in which it reads: the first without an answer.
    First,
    /// It said so: those at these places.
    Named(Vec<usize>),
}

/// Finds the events that break connections, and remembers them.
pub(crate) struct Apart<C> {
    connect_timeout: Duration,
    /// A server that knows its clients by their names may take one connection only.
    only_shared: bool,
    turns: Semaphore,
    /// Connections for those who wait for their turn; none while nobody does.
    idle: Mutex<Vec<Connection<C>>>,
    /// Events that broke a connection alone. Ids are in order of time: the oldest goes first.
    known: Mutex<BTreeMap<u128, Known>>,
    /// When the youngest connection was begun on which the server has taken an event.
    taken: Mutex<Option<time::Instant>>,
}

/// What is known of an event that broke a connection alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// The server has taken nothing on a connection that was made after this moment.
    Undecided(time::Instant),
    /// The server takes others.
    Guilty,
}

/// Places in a batch that are tried together.
type Group = Vec<usize>;

impl<C> Apart<C> {
    /// With connections of its own, unless only the shared one can be had.
    pub(crate) fn new(connect_timeout: Duration, only_shared: bool) -> Self {
        let turns = Semaphore::new(if only_shared { 1 } else { CONNECTIONS });
        let (idle, known, taken) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { connect_timeout, only_shared, turns, idle, known, taken }
    }

    /// Publishes a batch over the shared connection, and apart what has to be. All of it has so much
    /// time, once there is a connection.
    pub(crate) async fn publish<T: Shared<Live = C>>(
        &self,
        transport: &T,
        shared: &Connection<C>,
        batch: &[Envelope],
        limit: Duration,
    ) -> Vec<Outcome> {
        let mut outcomes: Vec<Option<Outcome>> = vec![None; batch.len()];
        let (first, mut groups) = self.divide(batch);
        let mut deadline = Instant::now() + limit;
        let mut why = String::new();
        let mut takes = false;
        let mut began = time::Instant::now();
        if !first.is_empty() {
            let live = match transport.live(shared).await {
                Ok(live) => live,
                Err(error) => return vec![Outcome::unavailable(error); batch.len()],
            };
            deadline = Instant::now() + limit;
            let events: Vec<&Envelope> = first.iter().map(|place| &batch[*place]).collect();
            let sent = send_over(transport, shared, &live, &events, deadline).await;
            takes = self.note_taken(&sent, shared, &live);
            if sent.replace {
                // Of whoever shares it, the first has noticed it: what others have made since counts.
                began = shared.lost(&live);
            }
            if let ([Some(Outcome::Retry { .. })], Some(_)) = (&sent.outcomes[..], &sent.broke) {
                self.blame(events[0]);
            }
            let mut under_way = Group::new();
            for (&place, outcome) in first.iter().zip(sent.outcomes) {
                if outcome.is_none() {
                    under_way.push(place);
                }
                outcomes[place] = outcome;
            }
            why = sent.broke.unwrap_or_default();
            // In their keys they come before what goes apart from the start.
            if let Suspects::Named(indices) = sent.suspects {
                let named: Group = indices.into_iter().map(|index| first[index]).collect();
                under_way.retain(|place| !named.contains(place));
                named.into_iter().rev().for_each(|place| groups.push_front(vec![place]));
            }
            if !under_way.is_empty() {
                groups.push_front(under_way);
            }
        }
        if !groups.is_empty() {
            let refused = |outcome: &Option<Outcome>| {
                outcome.as_ref().is_some_and(|outcome| *outcome != Outcome::Delivered)
            };
            let not_taken = batch.iter().zip(&outcomes).filter(|(_, outcome)| refused(outcome));
            let waiting = not_taken.filter_map(|(envelope, _)| envelope.event.ordering_key());
            let mut trial = Trial {
                apart: self,
                shared,
                batch,
                waiting: waiting.collect(),
                outcomes: &mut outcomes,
                groups,
                began,
                broke: began,
                accused: None,
                undecided: Vec::new(),
                takes,
                in_a_row: 0,
                guess: None,
                in_order: true,
                why,
            };
            trial.run(transport, deadline).await;
        }
        let not_tried = || Outcome::Retry {
            error: "there was no time left to try it alone".to_owned(),
            after: Some(Duration::ZERO),
        };
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(not_tried)).collect()
    }

    /// What goes over the shared connection, and what goes apart from the start: events that broke one
    /// before, and what follows them in their key.
    fn divide(&self, batch: &[Envelope]) -> (Vec<usize>, VecDeque<Group>) {
        let known = self.known();
        if known.is_empty() {
            return ((0..batch.len()).collect(), VecDeque::new());
        }
        let mut first = Vec::with_capacity(batch.len());
        let mut groups: VecDeque<Group> = VecDeque::new();
        let mut keys = HashSet::new();
        for (place, envelope) in batch.iter().enumerate() {
            let key = envelope.event.ordering_key();
            let is_known = known.contains_key(&envelope.event.id().as_u128());
            let follows = key.as_ref().is_some_and(|key| keys.contains(key));
            if is_known || follows {
                keys.extend(key);
                groups.push_back(vec![place]);
            } else {
                first.push(place);
            }
        }
        (first, groups)
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<u128, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_of(&self, envelope: &Envelope) -> Option<Known> {
        self.known().get(&envelope.event.id().as_u128()).copied()
    }

    /// It is the event. False if that was known before.
    fn blame(&self, envelope: &Envelope) -> bool {
        let mut known = self.known();
        let before = known.insert(envelope.event.id().as_u128(), Known::Guilty);
        forget_the_oldest(&mut known);
        before != Some(Known::Guilty)
    }

    /// It may be the server: the next connection on which that takes an event will tell.
    fn suspect(&self, envelope: &Envelope, since: time::Instant) {
        let mut known = self.known();
        known.entry(envelope.event.id().as_u128()).or_insert(Known::Undecided(since));
        forget_the_oldest(&mut known);
    }

    /// Takes note that the server has taken an event on this connection, if it has. Before that is lost.
    fn note_taken(&self, sent: &Sent, place: &Connection<C>, live: &Arc<C>) -> bool {
        let takes = sent.outcomes.contains(&Some(Outcome::Delivered));
        if takes {
            let mut taken = self.taken();
            *taken = (*taken).max(place.begun(live));
        }
        takes
    }

    /// Whether the server has taken an event on a connection that was made after this moment.
    fn has_taken_since(&self, moment: time::Instant) -> bool {
        self.taken().is_some_and(|begun| begun >= moment)
    }

    fn taken(&self) -> MutexGuard<'_, Option<time::Instant>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection for a trial, from one that has ended. An older one than the trial would tell nothing of
    /// the server.
    fn own(&self, began: time::Instant) -> Connection<C> {
        let left = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let own = left.unwrap_or_else(|| Connection::new(self.connect_timeout));
        own.renew(began);
        own
    }

    /// A trial has ended.
    fn give_back(&self, own: Connection<C>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if self.turns.available_permits() == 0 {
            idle.push(own);
        } else {
            idle.clear();
        }
    }

    fn forget(&self, envelope: &Envelope) {
        self.known().remove(&envelope.event.id().as_u128());
    }
}

/// Publishes these over this connection. Dropped before the end, it has the connection replaced: the client
/// library may have events that it would still send.
async fn send_over<T: Shared>(
    transport: &T,
    place: &Connection<T::Live>,
    live: &Arc<T::Live>,
    events: &[&Envelope],
    deadline: Instant,
) -> Sent {
    let mut under_way = UnderWay { place, live, has_ended: false };
    let sent = transport.send(live, events, deadline).await;
    under_way.has_ended = true;
    sent
}

/// A publish over a connection.
struct UnderWay<'a, C> {
    place: &'a Connection<C>,
    live: &'a Arc<C>,
    has_ended: bool,
}

impl<C> Drop for UnderWay<'_, C> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.place.lost(self.live);
        }
    }
}

fn forget_the_oldest(known: &mut BTreeMap<u128, Known>) {
    if known.len() > MOST_KNOWN {
        known.pop_first();
    }
}

/// Events of a batch that are tried apart.
struct Trial<'a, C> {
    apart: &'a Apart<C>,
    /// The connection over which everything goes that is not tried.
    shared: &'a Connection<C>,
    batch: &'a [Envelope],
    outcomes: &'a mut [Option<Outcome>],
    /// What is still to be tried, in this order.
    groups: VecDeque<Group>,
    /// Keys of which an event was not taken: later ones must not pass it.
    waiting: HashSet<String>,
    /// The connection of the batch has broken before.
    began: time::Instant,
    /// An event that broke its connection alone; whether another one can be made is not known yet.
    accused: Option<usize>,
    /// Events that broke theirs alone since one was taken: another one could be made.
    undecided: Vec<Alone>,
    /// The server has taken one of the batch: what it refuses by its word is the event's own.
    takes: bool,
    /// The first of those without an answer, while it is tried alone.
    guess: Option<usize>,
    /// Such a guess was never wrong.
    in_order: bool,
    /// So many events were refused alone since the last one was taken.
    in_a_row: usize,
    /// When the last connection broke.
    broke: time::Instant,
    /// Why the last connection broke.
    why: String,
}

/// An event that broke a connection alone.
struct Alone {
    place: usize,
    broke: time::Instant,
    why: String,
}

impl<C> Trial<'_, C> {
    /// Over a connection of its own, where the server takes more than one.
    async fn run<T: Shared<Live = C>>(&mut self, transport: &T, until: Instant) {
        let Ok(Ok(_turn)) = timeout_at(until, self.apart.turns.acquire()).await else { return };
        if self.apart.only_shared {
            self.try_all(transport, self.shared, until).await;
        } else {
            let own = self.apart.own(self.began);
            self.try_all(transport, &own, until).await;
            self.apart.give_back(own);
        }
        self.decide();
    }

    /// Until everything has its outcome, or time is up.
    async fn try_all<T: Shared<Live = C>>(
        &mut self,
        transport: &T,
        place: &Connection<C>,
        until: Instant,
    ) {
        while (!self.groups.is_empty() || self.accused.is_some()) && Instant::now() < until {
            let live = match timeout_at(until, transport.live(place)).await {
                Ok(Ok(live)) => live,
                Ok(Err(error)) => return self.give_up(&error),
                Err(_) => return,
            };
            if let Some(accused) = self.accused.take() {
                self.accuse(accused);
            }
            if self.in_a_row >= self.most_in_a_row() {
                let why = std::mem::take(&mut self.why);
                return self.give_up(&why);
            }
            if self.in_a_row == NEIGHBOURS {
                self.look_elsewhere();
            }
            let Some(group) = self.groups.pop_front() else { continue };
            let group = self.without_those_that_wait(group);
            if group.is_empty() {
                continue;
            }
            let events: Vec<&Envelope> = group.iter().map(|place| &self.batch[*place]).collect();
            let sent = send_over(transport, place, &live, &events, until).await;
            let takes = self.apart.note_taken(&sent, place, &live);
            if sent.replace {
                self.broke = place.lost(&live);
            }
            if takes {
                self.takes = true;
                self.in_a_row = 0;
                // It was sent after these, and is taken.
                if self.apart.has_taken_since(self.began) {
                    self.decide();
                }
            }
            self.note(&group, sent);
        }
    }

    /// With so many it is not the events.
    fn most_in_a_row(&self) -> usize {
        if self.apart.has_taken_since(self.began) { IN_A_ROW_BESIDE_OTHERS } else { IN_A_ROW }
    }

    /// Some of those that are left go next, each alone, and the last one first.
    fn look_elsewhere(&mut self) {
        let mut keys = HashSet::new();
        let mut free = Vec::new();
        for &place in self.groups.iter().flatten() {
            let envelope = &self.batch[place];
            // None passes an earlier one of its key.
            let key = envelope.event.ordering_key();
            let first = key.is_none_or(|key| !self.waiting.contains(&key) && keys.insert(key));
            if first && self.apart.known_of(envelope).is_none() {
                free.push(place);
            }
        }
        let count = free.len().min(NEIGHBOURS);
        let chosen: Vec<usize> = (1..=count).map(|n| free[free.len() * n / count - 1]).collect();
        for group in &mut self.groups {
            group.retain(|place| !chosen.contains(place));
        }
        self.groups.retain(|group| !group.is_empty());
        for place in chosen {
            self.groups.push_front(vec![place]);
        }
    }

    /// Behind one of its key that was not taken, an event is not tried.
    fn without_those_that_wait(&mut self, mut group: Group) -> Group {
        group.retain(|place| {
            let key = self.batch[*place].event.ordering_key();
            let waits = key.is_some_and(|key| self.waiting.contains(&key));
            if waits {
                self.outcomes[*place] = Some(Outcome::held());
            }
            !waits
        });
        group
    }

    fn note(&mut self, group: &[usize], sent: Sent) {
        let mut under_way = Group::new();
        for (&place, outcome) in group.iter().zip(sent.outcomes) {
            match &outcome {
                None => under_way.push(place),
                Some(Outcome::Delivered) => {
                    self.in_order &= self.guess != Some(place);
                    self.apart.forget(&self.batch[place]);
                }
                Some(_) => self.wait_behind(place),
            }
            self.outcomes[place] = outcome;
        }
        let Some(why) = sent.broke else { return };
        self.why = why;
        match (group, &under_way[..]) {
            // The server has said what is wrong with it.
            (&[alone], []) => {
                if matches!(self.outcomes[alone], Some(Outcome::Retry { .. })) {
                    self.refused(alone);
                }
            }
            (&[alone], _) => {
                self.wait_behind(alone);
                self.accused = Some(alone);
            }
            (_, []) => {}
            (_, [first, rest @ ..]) => match sent.suspects {
                Suspects::First if self.in_order && !rest.is_empty() => {
                    self.guess = Some(*first);
                    self.groups.push_front(rest.to_vec());
                    self.groups.push_front(vec![*first]);
                }
                Suspects::Named(indices) if !indices.is_empty() => {
                    let named: Group = indices.into_iter().map(|index| group[index]).collect();
                    under_way.retain(|place| !named.contains(place));
                    named.into_iter().rev().for_each(|place| self.groups.push_front(vec![place]));
                    self.groups.push_front(under_way);
                }
                _ => {
                    for part in under_way.chunks(under_way.len().div_ceil(PARTS)).rev() {
                        self.groups.push_front(part.to_vec());
                    }
                }
            },
        }
    }

    fn wait_behind(&mut self, place: usize) {
        self.waiting.extend(self.batch[place].event.ordering_key());
    }

    /// It broke a connection that it had for itself, and another one could be made.
    fn accuse(&mut self, place: usize) {
        let envelope = &self.batch[place];
        let is_to_blame = match self.apart.known_of(envelope) {
            Some(Known::Guilty) => true,
            // Counted here, many of these would be an outage again, whatever was taken since.
            Some(Known::Undecided(since)) => self.apart.has_taken_since(since),
            None => false,
        };
        if is_to_blame {
            self.apart.blame(envelope);
            self.outcomes[place] = Some(breaks_its_connection(&self.why));
        } else {
            self.undecided.push(Alone { place, broke: self.broke, why: self.why.clone() });
            self.in_a_row += 1;
        }
    }

    /// The server has said so. What was known before says nothing of the server.
    fn refused(&mut self, place: usize) {
        let is_new = self.apart.blame(&self.batch[place]);
        self.in_a_row += usize::from(is_new && !self.takes);
    }

    /// Says whose fault it was that these broke their connections.
    fn decide(&mut self) {
        for Alone { place, broke, why } in std::mem::take(&mut self.undecided) {
            let envelope = &self.batch[place];
            let since = match self.apart.known_of(envelope) {
                Some(Known::Undecided(since)) => since,
                Some(Known::Guilty) | None => self.began,
            };
            self.outcomes[place] = Some(if self.apart.has_taken_since(since) {
                self.apart.blame(envelope);
                breaks_its_connection(&why)
            } else {
                self.apart.suspect(envelope, since);
                self.shared.renew(broke);
                Outcome::timed_out(format!(
                    "it breaks its connection, and the server has taken no other event since: {why}"
                ))
            });
        }
    }

    /// What has no outcome yet is not to blame.
    fn give_up(&mut self, why: &str) {
        let others_were_taken = self.apart.has_taken_since(self.began);
        for Alone { place, broke, .. } in std::mem::take(&mut self.undecided) {
            // What was taken before these is no witness against them.
            let since = if others_were_taken { broke } else { self.began };
            self.apart.suspect(&self.batch[place], since);
        }
        for outcome in self.outcomes.iter_mut().filter(|outcome| outcome.is_none()) {
            *outcome = Some(Outcome::unavailable(why));
        }
    }
}

fn breaks_its_connection(why: &str) -> Outcome {
    Outcome::retry(format!("it breaks its connection: {why}"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use posthaste_core::Event;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// Hangs up on events of the type `Poison`.
    #[derive(Default)]
    struct Server {
        /// It lets everybody in and hangs up on all of them.
        is_down: AtomicBool,
        connections: AtomicUsize,
        /// With so many connections made it is gone.
        last: Option<usize>,
        /// With so many events taken it is down.
        most: Option<usize>,
        /// What was accepted, by its number in the key of its aggregate.
        taken: Mutex<Vec<String>>,
        /// A publish takes so long.
        slow: Duration,
    }

    impl Shared for Server {
        type Live = ();

        async fn live(&self, place: &Connection<()>) -> Result<Arc<()>, String> {
            let connect = async || {
                let made = self.connections.fetch_add(1, Ordering::Relaxed);
                if self.last.is_some_and(|last| made >= last) {
                    return Err("nobody is there".to_owned());
                }
                Ok(())
            };
            place.get(connect).await
        }

        async fn send(&self, (): &(), batch: &[&Envelope], _: Instant) -> Sent {
            tokio::time::sleep(self.slow).await;
            let taken = self.taken.lock().unwrap().len();
            let broke = self.is_down.load(Ordering::Relaxed)
                || self.most.is_some_and(|most| taken >= most)
                || batch.iter().any(|envelope| envelope.event.event_type() == "Poison");
            let outcome = (!broke).then_some(Outcome::Delivered);
            if !broke {
                let ids = batch.iter().filter_map(|envelope| envelope.event.aggregate_id());
                self.taken.lock().unwrap().extend(ids.map(str::to_owned));
            }
            let broke = broke.then(|| "hung up".to_owned());
            let outcomes = vec![outcome; batch.len()];
            Sent { outcomes, replace: broke.is_some(), broke, suspects: Suspects::Unknown }
        }
    }

    fn event(n: usize, key: usize, poison: bool) -> Envelope {
        let event = Event::builder(if poison { "Poison" } else { "Food" });
        let event = event.aggregate("A", n).ordering_key(key.to_string()).raw_json("{}");
        let event = event.build().unwrap();
        let created_at = event.occurred_at();
        Envelope { topic: None, sequence: 1, attempts: 0, replay: 0, created_at, event }
    }

    fn batch(count: usize, poisoned: &[usize]) -> Vec<Envelope> {
        (0..count).map(|n| event(n, n, poisoned.contains(&n))).collect()
    }

    fn is_undecided(outcome: &Outcome) -> bool {
        matches!(outcome, Outcome::TimedOut { .. })
    }

    struct Publisher {
        server: Server,
        shared: Connection<()>,
        apart: Apart<()>,
    }

    impl Publisher {
        fn new(server: Server) -> Self {
            Self { server, shared: Connection::new(LIMIT), apart: Apart::new(LIMIT, false) }
        }

        async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
            self.apart.publish(&self.server, &self.shared, batch, LIMIT).await
        }
    }

    #[tokio::test]
    async fn one_of_256_is_found_with_seven_connections_and_nobody_is_sent_twice() {
        for poison in [0, 100, 255] {
            let publisher = Publisher::new(Server::default());
            let outcomes = publisher.publish(&batch(256, &[poison])).await;
            let refused = Outcome::retry("it breaks its connection: hung up");
            for (n, outcome) in outcomes.iter().enumerate() {
                let expected = if n == poison { &refused } else { &Outcome::Delivered };
                assert_eq!(outcome, expected, "event {n}");
            }
            let mut taken = publisher.server.taken.lock().unwrap().clone();
            assert_eq!(taken.len(), 255);
            taken.dedup();
            assert_eq!(taken.len(), 255);
            // Shared, all, a quarter, … one alone, and one more to see that the server is there.
            assert_eq!(publisher.server.connections.load(Ordering::Relaxed), 7);
        }
    }

    #[tokio::test]
    async fn an_event_that_is_known_goes_alone_and_its_key_waits() {
        let publisher = Publisher::new(Server::default());
        let poison = event(1, 7, true);
        let outcomes = publisher.publish(std::slice::from_ref(&poison)).await;
        assert!(is_undecided(&outcomes[0]), "nobody else was taken: {outcomes:?}");
        publisher.server.taken.lock().unwrap().clear();
        let before = publisher.server.connections.load(Ordering::Relaxed);
        let others = [event(0, 7, false), poison, event(2, 7, false), event(3, 8, false)];
        let outcomes = publisher.publish(&others).await;
        assert_eq!([&outcomes[0], &outcomes[3]], [&Outcome::Delivered; 2]);
        assert!(matches!(outcomes[1], Outcome::Retry { after: None, .. }), "{outcomes:?}");
        assert_eq!(outcomes[2], Outcome::held());
        assert_eq!(*publisher.server.taken.lock().unwrap(), ["0", "3"]);
        // The shared one anew, its own, and one to see that the server is there.
        assert_eq!(publisher.server.connections.load(Ordering::Relaxed) - before, 3);
    }

    #[tokio::test]
    async fn nobody_is_accused_when_the_server_is_gone_afterwards() {
        for last in 1..=6 {
            let server = Server { last: Some(last), ..Server::default() };
            let outcomes = Publisher::new(server).publish(&batch(256, &[0])).await;
            let gone = Outcome::unavailable("nobody is there");
            assert_eq!(outcomes, vec![gone; 256], "after {last} connections");
        }
    }

    #[tokio::test]
    async fn many_that_are_known_are_refused_each_for_itself() {
        let publisher = Publisher::new(Server::default());
        let poisoned: Vec<usize> = (0..100).step_by(10).collect();
        let batch = batch(100, &poisoned);
        publisher.publish(&batch).await;
        let again: Vec<Envelope> = poisoned.iter().map(|n| batch[*n].clone()).collect();
        let refused = Outcome::retry("it breaks its connection: hung up");
        assert_eq!(publisher.publish(&again).await, vec![refused; 10]);
    }

    #[tokio::test]
    async fn it_is_not_the_events_when_eight_in_a_row_are_refused() {
        let all: Vec<usize> = (0..100).collect();
        let publisher = Publisher::new(Server::default());
        let outcomes = publisher.publish(&batch(100, &all)).await;
        assert_eq!(outcomes, vec![Outcome::unavailable("hung up"); 100]);
        // All, all apart, a quarter, … one alone, and each of eight; one more for the last of them.
        assert!(publisher.server.connections.load(Ordering::Relaxed) <= 20);
    }

    #[tokio::test]
    async fn a_server_that_hangs_up_on_everything_costs_no_event_an_attempt() {
        let server = Server { is_down: true.into(), ..Server::default() };
        let publisher = Publisher::new(server);
        let events = batch(3, &[]);
        for round in 0..5 {
            for event in &events {
                let outcomes = publisher.publish(std::slice::from_ref(event)).await;
                assert!(is_undecided(&outcomes[0]), "round {round}: {outcomes:?}");
            }
            for outcome in publisher.publish(&events).await {
                assert!(is_undecided(&outcome), "round {round}: {outcome:?}");
            }
        }
        publisher.server.is_down.store(false, Ordering::Relaxed);
        assert_eq!(publisher.publish(&events).await, vec![Outcome::Delivered; 3]);
    }

    #[tokio::test]
    async fn many_side_by_side_are_each_found_and_their_neighbours_are_delivered() {
        for poisoned in [0..20, 40..60, 79..99] {
            let poisoned: Vec<usize> = poisoned.collect();
            let publisher = Publisher::new(Server::default());
            let outcomes = publisher.publish(&batch(100, &poisoned)).await;
            for (n, outcome) in outcomes.iter().enumerate() {
                if poisoned.contains(&n) {
                    assert_eq!(*outcome, Outcome::retry("it breaks its connection: hung up"));
                } else {
                    assert_eq!(*outcome, Outcome::Delivered, "event {n} beside {poisoned:?}");
                }
            }
            assert_eq!(publisher.server.taken.lock().unwrap().len(), 80, "each once");
        }
    }

    #[tokio::test]
    async fn many_that_came_alone_are_blamed_once_others_were_taken_since() {
        let publisher = Publisher::new(Server::default());
        let poisoned: Vec<usize> = (0..20).collect();
        let all = batch(30, &poisoned);
        let (poisons, others) = all.split_at(20);
        // Eight more are found each time.
        for _ in 0..3 {
            let outcomes = publisher.publish(poisons).await;
            assert_eq!(outcomes, vec![Outcome::unavailable("hung up"); 20]);
        }
        // Another event makes the shared connection anew; those that come with the poisons go over the same.
        let other = event(30, 30, false);
        assert_eq!(publisher.publish(&[other]).await, [Outcome::Delivered]);
        let outcomes = publisher.publish(&all).await;
        let refused = Outcome::retry("it breaks its connection: hung up");
        assert_eq!(outcomes[..20], vec![refused.clone(); 20]);
        assert_eq!(outcomes[20..], vec![Outcome::Delivered; others.len()]);
        assert_eq!(publisher.publish(poisons).await, vec![refused; 20], "with nobody else around");
    }

    #[tokio::test]
    async fn what_an_outage_within_a_trial_was_blamed_on_is_cleared_when_it_is_taken() {
        let mut publisher = Publisher::new(Server { most: Some(1), ..Server::default() });
        let events = batch(8, &[0, 7]);
        let refused = Outcome::retry("it breaks its connection: hung up");
        let outcomes = publisher.publish(&events).await;
        assert_eq!(outcomes[1], Outcome::Delivered);
        assert_eq!(outcomes[0], refused);
        assert_eq!(outcomes[2..], vec![refused.clone(); 6]);
        // Nobody else is around to tell an outage from these: the poison among them must end, too.
        for round in 0..5 {
            for event in [&events[..1], &events[2..3], &events[7..]] {
                let outcomes = publisher.publish(event).await;
                assert_eq!(outcomes[..], *std::slice::from_ref(&refused), "round {round}");
            }
        }
        // New events say that it is the server.
        let outcomes = publisher.publish(&[event(8, 8, false)]).await;
        assert!(is_undecided(&outcomes[0]), "{outcomes:?}");
        publisher.server.most = None;
        assert_eq!(publisher.publish(&events[2..7]).await, vec![Outcome::Delivered; 5]);
        publisher.server.is_down.store(true, Ordering::Relaxed);
        let outcomes = publisher.publish(&events[2..3]).await;
        assert!(is_undecided(&outcomes[0]), "it was taken since: {outcomes:?}");
    }

    #[tokio::test]
    async fn the_last_of_all_events_is_found_although_nothing_comes_after_it() {
        let publisher = Publisher::new(Server::default());
        let events = batch(3, &[2]);
        let refused = Outcome::retry("it breaks its connection: hung up");
        let outcomes = publisher.publish(&events).await;
        assert_eq!(outcomes, [Outcome::Delivered, Outcome::Delivered, refused.clone()]);
        for _ in 0..5 {
            assert_eq!(publisher.publish(&events[2..]).await, vec![refused.clone()]);
        }
    }

    #[tokio::test]
    async fn what_is_tried_elsewhere_passes_no_earlier_one_of_its_key() {
        let publisher = Publisher::new(Server::default());
        // Behind the poisoned ones each key comes twice.
        let poisons = (0..8).map(|n| event(n, 100 + n, true));
        let others = (8..28).map(|n| event(n, n / 2, false));
        let outcomes = publisher.publish(&poisons.chain(others).collect::<Vec<_>>()).await;
        assert_eq!(outcomes[8..], vec![Outcome::Delivered; 20]);
        let taken = publisher.server.taken.lock().unwrap().clone();
        let at = |n: usize| taken.iter().position(|taken| *taken == n.to_string()).unwrap();
        assert!((8..28).step_by(2).all(|n| at(n) < at(n + 1)), "{taken:?}");
    }

    #[tokio::test]
    async fn what_an_older_connection_takes_clears_no_server() {
        let publisher = Publisher::new(Server::default());
        publisher.publish(&[event(0, 0, false)]).await;
        let other = Connection::new(LIMIT);
        let poison = event(1, 1, true);
        let alone = std::slice::from_ref(&poison);
        publisher.apart.publish(&publisher.server, &other, alone, LIMIT).await;
        let outcomes = publisher.publish(&[event(2, 2, false), poison.clone()]).await;
        assert!(is_undecided(&outcomes[1]), "{outcomes:?}");
        let shared = publisher.server.live(&publisher.shared).await.unwrap();
        publisher.shared.lost(&shared);
        let outcomes = publisher.publish(&[event(3, 3, false), poison]).await;
        assert_eq!(outcomes[1], Outcome::retry("it breaks its connection: hung up"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_publish_that_is_dropped_takes_its_connection_with_it() {
        let second = Duration::from_secs(1);
        let mut publisher = Publisher::new(Server { slow: 4 * second, ..Server::default() });
        let connections = |p: &Publisher| p.server.connections.load(Ordering::Relaxed);
        let events = batch(2, &[0]);
        let harmless = &events[1..];
        assert_eq!(publisher.publish(harmless).await, [Outcome::Delivered]);
        assert_eq!(publisher.publish(harmless).await, [Outcome::Delivered]);
        assert_eq!(connections(&publisher), 1, "what has ended keeps it");
        timeout_at(Instant::now() + second, publisher.publish(harmless)).await.unwrap_err();
        assert_eq!(publisher.publish(harmless).await, [Outcome::Delivered]);
        assert_eq!(connections(&publisher), 2);
        // In a trial, where that goes over the same one.
        publisher.apart = Apart::new(LIMIT, true);
        timeout_at(Instant::now() + 5 * second, publisher.publish(&events)).await.unwrap_err();
        assert_eq!(connections(&publisher), 3);
        assert_eq!(publisher.publish(harmless).await, [Outcome::Delivered]);
        assert_eq!(connections(&publisher), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn what_there_is_no_time_for_comes_again_without_an_attempt() {
        let server = Server { slow: Duration::from_secs(4), ..Server::default() };
        let publisher = Publisher::new(server);
        let began = Instant::now();
        let outcomes = publisher.publish(&batch(16, &[0])).await;
        assert!(began.elapsed() <= LIMIT + Duration::from_secs(4));
        for outcome in outcomes {
            let after = Some(Duration::ZERO);
            assert!(
                matches!(outcome, Outcome::Retry { after: is, .. } if is == after),
                "{outcome:?}"
            );
        }
    }
}
