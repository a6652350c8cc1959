//! The server is down, dies, and comes back.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use posthaste_core::{
    Envelope,
    transport::{Acceptance, Outcome, Transport},
};
use tokio::sync::watch;

use super::{
    Destination,
    fixture::{
        PAUSE, Topic, assert_clear, deliver, first_deliveries, ids, impatient, insist, of, publish,
        reason,
    },
};

/// A busy machine takes so much longer.
const SLACK: Duration = Duration::from_secs(1);

/// A relay starts while its broker is down; nobody has to restart it.
pub async fn a_transport_is_made_while_its_server_is_down_and_delivers_once_it_is_up(
    destination: &dyn Destination,
) {
    let mut server = destination.server();
    let topic = Topic::on(destination, &server);
    let transport = topic.transport(&impatient());
    let events = topic.events("a", 3);
    for outcome in publish(&*transport, &events).await {
        assert!(matches!(outcome, Outcome::Unavailable { .. }), "{outcome:?}");
    }
    server.start().await;
    topic.prepare().await;
    for event in &events {
        insist(&*transport, std::slice::from_ref(event)).await;
    }
    assert_eq!(first_deliveries(&topic.read().await), ids(&events));
}

/// No event burns an attempt while nobody is there, and each error says what is wrong.
pub async fn while_the_server_is_down_every_event_is_told_so(destination: &dyn Destination) {
    let server = destination.server();
    let topic = Topic::on(destination, &server);
    let transport = topic.transport(&impatient());
    for _ in 0..3 {
        for outcome in publish(&*transport, &topic.events("a", 5)).await {
            let Outcome::Unavailable { error, .. } = outcome else {
                panic!("nobody is there, and yet: {outcome:?}");
            };
            assert_clear(&error);
        }
    }
}

/// What the publishers of the stream may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Up,
    Down,
    UpAgain,
}

/// SIGKILL in the middle of a stream of many keys, then a start with the data that was left: what
/// was told delivered is there, nothing was told delivered meanwhile, and what is repeated until it
/// is delivered arrives in order.
pub async fn a_server_killed_in_the_middle_of_a_stream_loses_nothing_and_keeps_order(
    destination: &dyn Destination,
) {
    const KEYS: usize = 8;
    const EVENTS: usize = 60;
    let mut server = destination.server();
    server.start().await;
    let topic = Topic::on(destination, &server);
    topic.prepare().await;
    let transport = topic.transport(&impatient());
    // So many of one key fly together as the transport says is safe.
    let together = match transport.capabilities().acceptance {
        Acceptance::Any => 1,
        _ => transport.capabilities().max_batch.min(5),
    };
    let lanes: Vec<_> = (0..KEYS).map(|key| topic.events(&key.to_string(), EVENTS)).collect();
    let (phase, _) = watch::channel(Phase::Up);
    let (delivered, progress) = watch::channel(0);
    let (failures, mut noticed) = watch::channel(0);
    let publishers = join_all(lanes.iter().map(async |lane| {
        for events in lane.chunks(together) {
            stream(&*transport, events, &phase, &delivered, &failures).await;
        }
    }));
    let fate = async {
        let mut progress = progress;
        progress.wait_for(|count| *count >= KEYS * EVENTS / 4).await.unwrap();
        server.kill();
        phase.send_replace(Phase::Down);
        // Every lane has noticed.
        noticed.wait_for(|count| *count >= KEYS * 2).await.unwrap();
        phase.send_replace(Phase::UpAgain);
        server.start().await;
    };
    tokio::join!(publishers, fate);
    let received = first_deliveries(&topic.read().await);
    for lane in &lanes {
        assert_eq!(of(lane, &received), ids(lane));
    }
    assert_eq!(received.len(), KEYS * EVENTS, "nothing was made up");
}

/// Publishes events of one key until all are delivered, as a lane does.
async fn stream(
    transport: &dyn Transport,
    events: &[Envelope],
    phase: &watch::Sender<Phase>,
    delivered: &watch::Sender<usize>,
    failures: &watch::Sender<usize>,
) {
    let mut waiting = events.to_vec();
    while !waiting.is_empty() {
        let before = *phase.borrow();
        let outcomes = transport.publish(&waiting).await;
        let after = *phase.borrow();
        assert_eq!(outcomes.len(), waiting.len());
        let taken = outcomes.iter().take_while(|o| **o == Outcome::Delivered).count();
        for outcome in &outcomes[taken..] {
            match outcome {
                Outcome::Delivered => panic!("delivered past one that was not: {outcomes:?}"),
                Outcome::Dead { error } => panic!("dead for an outage: {error}"),
                _ => assert_clear(reason(outcome).unwrap()),
            }
        }
        if before == Phase::Down && after == Phase::Down {
            assert_eq!(taken, 0, "delivered to a server that is not there");
        }
        delivered.send_modify(|count| *count += taken);
        waiting.drain(..taken);
        if !waiting.is_empty() {
            failures.send_modify(|count| *count += 1);
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Of a batch that was under way when the server died, either all is there or nothing (atomic), or
/// the first so many events (prefix). What was told delivered is there in any case.
pub async fn a_batch_under_way_when_the_server_dies_is_accepted_as_declared(
    destination: &dyn Destination,
) {
    let mut server = destination.server();
    server.start().await;
    let topic = Topic::on(destination, &server);
    topic.prepare().await;
    let transport = topic.transport(&impatient());
    let size = transport.capabilities().max_batch.min(100);
    // Large enough for the server to read a batch in several steps.
    let payload = vec![b'x'; topic.traits.largest.min(16 * 1024)];
    let (delivered, mut progress) = watch::channel(0);
    let publishers = join_all((0..4).map(async |publisher| {
        let mut batches = Vec::new();
        loop {
            let key = |n| format!("{publisher} {} {n}", batches.len());
            let batch: Vec<_> = (0..size).map(|n| topic.event(&key(n), payload.clone())).collect();
            let outcomes = transport.publish(&batch).await;
            let all = outcomes.iter().all(|outcome| *outcome == Outcome::Delivered);
            batches.push((batch, outcomes));
            if !all {
                return batches;
            }
            delivered.send_modify(|count| *count += 1);
        }
    }));
    let fate = async {
        progress.wait_for(|count| *count >= 8).await.unwrap();
        server.kill();
    };
    let (batches, ()) = tokio::join!(publishers, fate);
    server.start().await;
    let received: HashSet<_> = first_deliveries(&topic.read().await).into_iter().collect();
    for (batch, outcomes) in batches.into_iter().flatten() {
        let there: Vec<bool> = ids(&batch).iter().map(|id| received.contains(id)).collect();
        for (there, outcome) in there.iter().zip(&outcomes) {
            assert!(*there || *outcome != Outcome::Delivered, "delivered, and not there");
        }
        let first = there.iter().take_while(|there| **there).count();
        let count = there.iter().filter(|there| **there).count();
        match transport.capabilities().acceptance {
            Acceptance::Any => {}
            Acceptance::Prefix => assert_eq!(first, count, "not a prefix: {there:?}"),
            Acceptance::Atomic => assert!(count == 0 || count == size, "{count} of {size}"),
        }
    }
}

/// The server was restarted while nothing was published: the next publishes find it again.
pub async fn a_connection_that_broke_while_idle_is_made_again(destination: &dyn Destination) {
    let mut server = destination.server();
    server.start().await;
    let topic = Topic::on(destination, &server);
    topic.prepare().await;
    let transport = topic.transport(&impatient());
    let events = topic.events("a", 2);
    deliver(&*transport, &events[..1]).await;
    server.kill();
    server.start().await;
    insist(&*transport, &events[1..]).await;
    assert_eq!(first_deliveries(&topic.read().await), ids(&events));
}

/// The server takes the bytes and never answers: within the timeouts the events are told not
/// delivered, and they arrive once it goes on.
pub async fn an_acknowledgement_that_does_not_come_is_not_awaited_for_ever(
    destination: &dyn Destination,
) {
    let mut server = destination.server();
    server.start().await;
    let topic = Topic::on(destination, &server);
    topic.prepare().await;
    let transport = topic.transport(&impatient());
    let events = topic.events("a", 3);
    deliver(&*transport, &events[..1]).await;
    server.freeze().await;
    let begun = Instant::now();
    let outcomes = publish(&*transport, &events[1..2]).await;
    let elapsed = begun.elapsed();
    // 2 s to connect and 2 s to acknowledge, at most.
    assert!(elapsed < Duration::from_secs(6), "it took {elapsed:?}");
    let longest = transport.capabilities().longest_publish.expect("the transport declares it");
    assert!(elapsed < longest + SLACK, "it took {elapsed:?} and declares {longest:?}");
    match &outcomes[0] {
        Outcome::TimedOut { error } | Outcome::Unavailable { error, .. } => assert_clear(error),
        outcome => panic!("nobody answered, and yet: {outcome:?}"),
    }
    server.thaw();
    for event in &events[1..] {
        insist(&*transport, std::slice::from_ref(event)).await;
    }
    assert_eq!(first_deliveries(&topic.read().await), ids(&events));
}
