//! Delivered means: on the server.

use futures_util::future::join_all;

use super::{
    Destination, Options,
    fixture::{Topic, deliver, first_deliveries, ids},
};

/// An event that was told delivered is read back at once by somebody else.
pub async fn what_is_delivered_is_on_the_server(destination: &dyn Destination) {
    let topic = Topic::shared(destination).await;
    let transport = topic.transport(&Options::default());
    let event = topic.event("a", "hello");
    deliver(&*transport, std::slice::from_ref(&event)).await;
    let received = topic.read().await;
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].body, b"hello");
    assert_eq!(first_deliveries(&received), [event.event.id()]);
    if topic.traits.keys {
        assert_eq!(received[0].key, event.event.ordering_key());
    }
}

/// As many outcomes as events, up to the largest batch, and all of them arrive.
pub async fn every_event_of_a_batch_has_its_own_outcome(destination: &dyn Destination) {
    let topic = Topic::shared(destination).await;
    let transport = topic.transport(&Options::default());
    let largest = transport.capabilities().max_batch;
    assert!(largest > 0, "a batch has room for an event");
    let events: Vec<_> = (0..largest.min(1000)).map(|n| topic.event(&n.to_string(), "x")).collect();
    deliver(&*transport, &events).await;
    let mut received = first_deliveries(&topic.read().await);
    received.sort();
    let mut sent = ids(&events);
    sent.sort();
    assert_eq!(received, sent);
}

/// Nothing to publish is nothing to answer.
pub async fn an_empty_batch_is_no_error(destination: &dyn Destination) {
    let topic = Topic::shared(destination).await;
    assert!(topic.transport(&Options::default()).publish(&[]).await.is_empty());
}

/// The topic of the route goes before the event's own.
pub async fn the_topic_of_the_route_decides(destination: &dyn Destination) {
    let topic = Topic::shared(destination).await;
    let transport = topic.transport(&Options::default());
    let mut event = topic.event("a", "routed");
    event.topic = Some(topic.name.clone());
    event.event = posthaste_core::Event::builder("OrderPlaced")
        .aggregate("Order", "a")
        .topic("nobody-listens-here")
        .bytes("text/plain", "routed")
        .build()
        .unwrap();
    deliver(&*transport, &[event]).await;
    assert_eq!(topic.read().await.len(), 1);
}

/// The relay publishes batches side by side: each gets its own answers.
pub async fn publishes_side_by_side_are_all_delivered(destination: &dyn Destination) {
    let topic = Topic::shared(destination).await;
    let transport = topic.transport(&Options::default());
    let batches: Vec<Vec<_>> = (0..16)
        .map(|batch| (0..20).map(|n| topic.event(&format!("{batch}/{n}"), "x")).collect())
        .collect();
    join_all(batches.iter().map(|batch| deliver(&*transport, batch))).await;
    let mut received = first_deliveries(&topic.read().await);
    received.sort();
    let mut sent = ids(&batches.concat());
    sent.sort();
    assert_eq!(received, sent);
}
