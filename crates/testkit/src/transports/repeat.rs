//! The same event again.

use super::{
    Destination, Options,
    fixture::{Topic, deliver, id},
};

/// A repeat is acknowledged, too. Where the destination drops repeats, it lies there once.
pub async fn a_repeat_is_dropped_where_that_is_declared(destination: &dyn Destination) {
    let topic = Topic::shared(destination).await;
    let transport = topic.transport(&Options::default());
    let events = topic.events("a", 3);
    for event in &events {
        deliver(&*transport, std::slice::from_ref(event)).await;
    }
    // Another process, after a crash.
    let after = topic.transport(&Options::default());
    for event in &events {
        deliver(&*after, std::slice::from_ref(event)).await;
    }
    let received = topic.read().await;
    let expected = if transport.capabilities().deduplicates { 3 } else { 6 };
    assert_eq!(received.len(), expected);
}

/// What an operator asked to send again is sent again, and says that it is a repeat.
pub async fn a_replay_is_not_dropped(destination: &dyn Destination) {
    let topic = Topic::shared(destination).await;
    let transport = topic.transport(&Options::default());
    let mut event = topic.event("a", "hello");
    deliver(&*transport, std::slice::from_ref(&event)).await;
    event.replay = 1;
    deliver(&*transport, std::slice::from_ref(&event)).await;
    let received = topic.read().await;
    assert_eq!(received.len(), 2);
    for message in &received {
        assert_eq!(id(message), event.event.id(), "a consumer recognises it");
    }
    if transport.capabilities().headers {
        assert_eq!(received[0].header("posthaste-replay"), None);
        assert_eq!(received[1].header("posthaste-replay"), Some("1"));
    }
}
