//! The server hangs up on an event: a proxy before it closes the connection at a text in the payload.

use std::sync::Arc;

use posthaste_core::{
    Envelope,
    transport::{Outcome, Transport},
};
use uuid::Uuid;

use super::{
    Destination, Options, Server,
    destination::with_address,
    fixture::{Topic, assert_clear, deliver, id, publish, reason},
};
use crate::proxy::Proxy;

/// The payload on which the server hangs up.
const POISON: &str = "marker-poison-5f1c0de";

/// As many as a batch may have, but no more than that.
const EVENTS: usize = 60;

/// A topic, and a transport to it whose connections go through a proxy.
struct Behind<'a> {
    topic: Topic<'a>,
    proxy: Proxy,
    transport: Arc<dyn Transport>,
    /// The case's own, which ends with it. The shared one otherwise.
    _server: Option<Server>,
}

impl<'a> Behind<'a> {
    async fn new(destination: &'a dyn Destination) -> Option<Self> {
        if !destination.traits().hangs_up {
            eprintln!("skipped: no proxy can stand between this transport and its server");
            return None;
        }
        let proxy = Proxy::start("").await.expect("a port is free");
        let mut server = destination.server_behind(proxy.address());
        let topic = match &mut server {
            Some(server) => {
                server.start().await;
                Topic::on(destination, server)
            }
            None => Topic::shared(destination).await,
        };
        proxy.forward_to(host_of(&topic.url));
        if server.is_some() {
            topic.prepare().await;
        } else {
            proxy.stand_in();
        }
        proxy.hang_up_on(POISON);
        let url = with_address(&topic.url, proxy.address());
        let transport = topic
            .destination
            .transport(&url, &Options::default())
            .unwrap_or_else(|error| panic!("the transport cannot be made: {error}"));
        Some(Self { topic, proxy, transport, _server: server })
    }
}

/// The host and the port in this URL.
fn host_of(url: &str) -> &str {
    let (_, rest) = url.split_once('@').or(url.split_once("://")).expect("a URL");
    rest.split(['/', '?']).next().expect("there is a first part")
}

/// So many events of different keys, those at these places poisoned.
fn events(topic: &Topic<'_>, count: usize, poisoned: &[usize]) -> Vec<Envelope> {
    let payload = |n| if poisoned.contains(&n) { POISON } else { "harmless" };
    (0..count).map(|n| topic.event(&n.to_string(), payload(n))).collect()
}

/// It is the event's own failure: counted, but never final, for another server may take it.
fn assert_refused(outcome: &Outcome) {
    assert!(matches!(outcome, Outcome::Retry { after: None, .. }), "{outcome:?}");
    assert_told(outcome);
}

/// The server has taken nothing since: it may be the server's failure.
fn assert_undecided(outcome: &Outcome) {
    assert!(matches!(outcome, Outcome::TimedOut { .. }), "{outcome:?}");
    assert_told(outcome);
}

fn assert_told(outcome: &Outcome) {
    let error = reason(outcome).expect("it was not delivered");
    assert_clear(error);
    assert!(!error.contains(POISON), "{error}");
}

/// How often this event arrived.
fn count(arrived: &[Uuid], event: &Envelope) -> usize {
    arrived.iter().filter(|id| **id == event.event.id()).count()
}

/// Each of them is found, wherever in its batch it is and however many are side by side; all others are
/// delivered by the same publish. Only of the last one it may be open whose fault it was.
pub async fn a_server_that_hangs_up_on_one_event_takes_the_others(destination: &dyn Destination) {
    let head: Vec<usize> = (0..12).collect();
    for poisoned in [&[17][..], &[0], &[EVENTS - 1], &[3, 4, 40], &head[..]] {
        let Some(behind) = Behind::new(destination).await else { return };
        let Behind { topic, proxy, transport, .. } = &behind;
        let events = events(topic, EVENTS, poisoned);
        let outcomes = publish(&**transport, &events).await;
        for (n, outcome) in outcomes.iter().enumerate() {
            if poisoned == [EVENTS - 1] && matches!(outcome, Outcome::TimedOut { .. }) {
                // All others may have been taken before it broke the first connection.
                assert_eq!(n, EVENTS - 1);
                assert_undecided(outcome);
            } else if poisoned.contains(&n) {
                assert_refused(outcome);
            } else {
                assert_eq!(*outcome, Outcome::Delivered, "event {n} beside {poisoned:?}");
            }
        }
        assert!(proxy.hung_up() >= poisoned.len());
        let arrived: Vec<Uuid> = topic.read().await.iter().map(id).collect();
        for (n, event) in events.iter().enumerate() {
            assert_eq!(count(&arrived, event) > 0, !poisoned.contains(&n), "event {n}");
        }
    }
}

/// Once it is known, it goes over a connection of its own, while others are published: these arrive once.
pub async fn an_event_that_broke_its_connection_disturbs_nobody_when_it_comes_again(
    destination: &dyn Destination,
) {
    let Some(behind) = Behind::new(destination).await else { return };
    let Behind { topic, proxy, transport, .. } = &behind;
    let poison = topic.event("poison", POISON);
    assert_undecided(&publish(&**transport, std::slice::from_ref(&poison)).await[0]);
    deliver(&**transport, &events(topic, 2, &[])).await;
    let before: Vec<Uuid> = topic.read().await.iter().map(id).collect();
    for round in 0..3 {
        let mut batch = events(topic, EVENTS, &[]);
        batch.insert(round * 20, poison.clone());
        let hung_up = proxy.hung_up();
        let beside = events(topic, EVENTS, &[]);
        let (outcomes, ()) =
            tokio::join!(publish(&**transport, &batch), deliver(&**transport, &beside));
        for (envelope, outcome) in batch.iter().zip(&outcomes) {
            if envelope.event.id() == poison.event.id() {
                assert_refused(outcome);
            } else {
                assert_eq!(*outcome, Outcome::Delivered);
            }
        }
        assert_eq!(proxy.hung_up() - hung_up, 1, "it was tried once");
        let arrived: Vec<Uuid> = topic.read().await.iter().map(id).collect();
        let harmless = batch.iter().filter(|envelope| envelope.event.id() != poison.event.id());
        for event in harmless.chain(&beside) {
            assert_eq!(count(&arrived, event), 1, "in round {round}");
        }
        assert_eq!(count(&arrived, &poison), 0);
    }
    assert!(!before.contains(&poison.event.id()));
}

/// It is not the events, then: most of them are told that the destination takes nothing, which the relay
/// believes, and no attempt of any is counted.
pub async fn a_server_that_hangs_up_on_every_event_is_an_outage(destination: &dyn Destination) {
    let Some(behind) = Behind::new(destination).await else { return };
    let Behind { topic, transport, .. } = &behind;
    let all: Vec<usize> = (0..EVENTS).collect();
    let outcomes = publish(&**transport, &events(topic, EVENTS, &all)).await;
    let unavailable = outcomes.iter().filter(|outcome| match outcome {
        Outcome::Unavailable { after: None, .. } => true,
        Outcome::TimedOut { .. } => false,
        outcome => panic!("{outcome:?}"),
    });
    assert!(unavailable.count() >= EVENTS - 8, "{outcomes:?}");
    for outcome in &outcomes {
        assert_clear(reason(outcome).expect("none was delivered"));
    }
    deliver(&*topic.transport(&Options::default()), &events(topic, 3, &[])).await;
}
