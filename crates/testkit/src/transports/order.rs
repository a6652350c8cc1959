//! Events of one key arrive in their order.

use futures_util::future::join_all;
use posthaste_core::transport::{Acceptance, Outcome};

use super::{
    Destination, Options,
    fixture::{Topic, deliver, first_deliveries, ids, of, publish},
};

/// As the relay does: batches side by side, of many keys, one event of a key under way at a time.
pub async fn events_of_a_key_arrive_in_order_beside_other_keys(destination: &dyn Destination) {
    const KEYS: usize = 40;
    const EVENTS: usize = 25;
    let topic = Topic::shared(destination).await;
    let transport = topic.transport(&Options::default());
    let lanes: Vec<_> = (0..KEYS).map(|key| topic.events(&key.to_string(), EVENTS)).collect();
    let groups = lanes.chunks(KEYS / 4).map(async |lanes| {
        for n in 0..EVENTS {
            let round: Vec<_> = lanes.iter().map(|lane| lane[n].clone()).collect();
            deliver(&*transport, &round).await;
        }
    });
    join_all(groups).await;
    let received = first_deliveries(&topic.read().await);
    assert_eq!(received.len(), KEYS * EVENTS);
    for lane in &lanes {
        assert_eq!(of(lane, &received), ids(lane));
    }
}

/// Where several events of a key may fly together, they arrive in the order of the batch.
pub async fn events_of_a_key_in_one_batch_arrive_in_order(destination: &dyn Destination) {
    let topic = Topic::shared(destination).await;
    let transport = topic.transport(&Options::default());
    if transport.capabilities().acceptance == Acceptance::Any {
        return;
    }
    let lanes: Vec<_> = (0..8).map(|key| topic.events(&key.to_string(), 50)).collect();
    let groups = lanes.chunks(2).map(async |lanes| {
        for n in (0..50).step_by(10) {
            let batch: Vec<_> = lanes.iter().flat_map(|lane| lane[n..n + 10].to_vec()).collect();
            deliver(&*transport, &batch).await;
        }
    });
    join_all(groups).await;
    let received = first_deliveries(&topic.read().await);
    assert_eq!(received.len(), 8 * 50);
    for lane in &lanes {
        assert_eq!(of(lane, &received), ids(lane));
    }
}

/// Where several events of a key may fly together, none of them passes one that was refused: what
/// becomes of the key then is the relay's to say. Other keys go on.
pub async fn a_refused_event_holds_back_its_key_in_the_same_batch(destination: &dyn Destination) {
    let topic = Topic::shared(destination).await;
    let Some((limit, size)) = topic.traits.too_large else { return };
    let options = Options { max_message: Some(limit), ..Options::default() };
    let transport = topic.transport(&options);
    if transport.capabilities().acceptance == Acceptance::Any {
        return;
    }
    let batch = [
        topic.event("a", "first"),
        topic.event("a", vec![b'x'; size]),
        topic.event("b", "another key"),
        topic.event("a", "third"),
    ];
    let outcomes = publish(&*transport, &batch).await;
    assert_eq!(outcomes[0], Outcome::Delivered);
    assert!(matches!(outcomes[1], Outcome::Dead { .. }), "{:?}", outcomes[1]);
    assert_eq!(outcomes[2], Outcome::Delivered);
    assert!(
        matches!(outcomes[3], Outcome::Retry { after: Some(_), .. } | Outcome::Unavailable { .. }),
        "it waits and burns no attempt: {:?}",
        outcomes[3]
    );
    assert_eq!(
        first_deliveries(&topic.read().await),
        [batch[0].event.id(), batch[2].event.id()],
        "what was not delivered is not there"
    );
}
