//! Events that break the connection of all: each is found, tried alone, and kept apart from then on.
//!
//! ```text
//!  batch ──► shared connection ──┬─ answered ────────────────────────────────────► its outcome
//!                                └─ the connection broke: what was under way
//!                                     │ over a connection of its own
//!                                     ├─ taken ──────────────────────────────────► delivered
//!                                     ├─ that broke, too: in four parts, one after the other
//!                                     └─ one event alone, and the server is there: a retry of that event
//! ```
//!
//! What is tried apart disturbs nobody: other publishes go on over the shared connection. An event
//! that was found goes alone from the start when it comes again.
//!
//! # When things fail
//!
//! - The server has gone: no connection can be made, and what is left is unavailable. No event is
//!   accused before another connection could be made after the one that it broke.
//! - It is not the events: after eight of them, one after the other, the rest is unavailable, and the
//!   relay sees an outage.
//! - Time is up: what was not tried comes again, and no attempt is counted.

use std::{
    collections::{BTreeSet, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
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
    known: Mutex<BTreeSet<u128>>,
}

/// Places in a batch that are tried together.
type Group = Vec<usize>;

impl<C> Apart<C> {
    /// With connections of its own, unless only the shared one can be had.
    pub(crate) fn new(connect_timeout: Duration, only_shared: bool) -> Self {
        let turns = Semaphore::new(if only_shared { 1 } else { CONNECTIONS });
        let (idle, known) = (Mutex::default(), Mutex::default());
        Self { connect_timeout, only_shared, turns, idle, known }
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
        let mut connection_lives = false;
        if !first.is_empty() {
            let live = match transport.live(shared).await {
                Ok(live) => live,
                Err(error) => return vec![Outcome::unavailable(error); batch.len()],
            };
            deadline = Instant::now() + limit;
            let events: Vec<&Envelope> = first.iter().map(|place| &batch[*place]).collect();
            let sent = transport.send(&live, &events, deadline).await;
            if sent.replace {
                shared.lost(&live);
            }
            if let ([Some(Outcome::Retry { .. })], Some(_)) = (&sent.outcomes[..], &sent.broke) {
                self.remember(events[0]);
            }
            // What broke no more than a channel goes over another one.
            connection_lives = !sent.replace && groups.is_empty();
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
                batch,
                waiting: waiting.collect(),
                outcomes: &mut outcomes,
                groups,
                accused: None,
                in_a_row: 0,
                guess: None,
                in_order: true,
                why,
            };
            let place = (self.only_shared || connection_lives).then_some(shared);
            trial.run(transport, place, deadline).await;
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
            let is_known = known.contains(&envelope.event.id().as_u128());
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

    fn known(&self) -> MutexGuard<'_, BTreeSet<u128>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// False if it was known before.
    fn remember(&self, envelope: &Envelope) -> bool {
        let mut known = self.known();
        let is_new = known.insert(envelope.event.id().as_u128());
        if known.len() > MOST_KNOWN {
            known.pop_first();
        }
        is_new
    }

    /// A connection for a trial, from one that has ended.
    fn own(&self) -> Connection<C> {
        let left = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        left.unwrap_or_else(|| Connection::new(self.connect_timeout))
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

/// Events of a batch that are tried apart.
struct Trial<'a, C> {
    apart: &'a Apart<C>,
    batch: &'a [Envelope],
    outcomes: &'a mut [Option<Outcome>],
    /// What is still to be tried, in this order.
    groups: VecDeque<Group>,
    /// Keys of which an event was not taken: later ones must not pass it.
    waiting: HashSet<String>,
    /// An event that broke its connection alone; whether the server is there is not known yet.
    accused: Option<usize>,
    /// The first of those without an answer, while it is tried alone.
    guess: Option<usize>,
    /// Such a guess was never wrong.
    in_order: bool,
    /// So many events were refused alone since the last one was taken.
    in_a_row: usize,
    /// Why the last connection broke.
    why: String,
}

impl<C> Trial<'_, C> {
    /// Over the connection in this place, or over one of its own.
    async fn run<T: Shared<Live = C>>(
        &mut self,
        transport: &T,
        place: Option<&Connection<C>>,
        until: Instant,
    ) {
        let Ok(Ok(_turn)) = timeout_at(until, self.apart.turns.acquire()).await else { return };
        if let Some(place) = place {
            self.try_all(transport, place, until).await;
        } else {
            let own = self.apart.own();
            self.try_all(transport, &own, until).await;
            self.apart.give_back(own);
        }
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
                self.convict(accused);
            }
            if self.in_a_row >= IN_A_ROW {
                let why = std::mem::take(&mut self.why);
                return self.give_up(&why);
            }
            let Some(group) = self.groups.pop_front() else { continue };
            let group = self.without_those_that_wait(group);
            if group.is_empty() {
                continue;
            }
            let events: Vec<&Envelope> = group.iter().map(|place| &self.batch[*place]).collect();
            let sent = transport.send(&live, &events, until).await;
            if sent.replace {
                place.lost(&live);
            }
            self.note(&group, sent);
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
                    self.in_a_row = 0;
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
    fn convict(&mut self, place: usize) {
        self.refused(place);
        self.outcomes[place] =
            Some(Outcome::retry(format!("it breaks its connection: {}", self.why)));
    }

    /// It is to blame. What was known before says nothing of the server.
    fn refused(&mut self, place: usize) {
        self.in_a_row += usize::from(self.apart.remember(&self.batch[place]));
    }

    /// What has no outcome yet is not to blame.
    fn give_up(&mut self, why: &str) {
        for outcome in self.outcomes.iter_mut().filter(|outcome| outcome.is_none()) {
            *outcome = Some(Outcome::unavailable(why));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use posthaste_core::Event;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// Hangs up on events of the type `Poison`.
    #[derive(Default)]
    struct Server {
        connections: AtomicUsize,
        /// With so many connections made it is gone.
        last: Option<usize>,
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
            let broke = batch.iter().any(|envelope| envelope.event.event_type() == "Poison");
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
        publisher.publish(std::slice::from_ref(&poison)).await;
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
        let unavailable = Outcome::unavailable("hung up");
        assert_eq!(outcomes.iter().filter(|outcome| **outcome == unavailable).count(), 92);
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
