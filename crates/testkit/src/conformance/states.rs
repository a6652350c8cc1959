//! Events in every state that an event can be in.

use std::time::Duration;

use posthaste_core::{
    Event, Status,
    store::{Fetched, Selection},
};
use uuid::Uuid;

use super::{
    outbox::Outbox,
    relays::{Owner, dead, event, retry, sent},
};

/// A new event in this state. The owner holds all shards.
pub(super) async fn in_state(outbox: &Outbox, owner: &Owner, status: Status) -> Uuid {
    let event = event(Uuid::now_v7());
    enqueue_in_state(outbox, owner, &event, status).await;
    event.id()
}

/// Enqueues this event and brings it into this state.
pub(super) async fn enqueue_in_state(
    outbox: &Outbox,
    owner: &Owner,
    event: &Event,
    status: Status,
) -> Fetched {
    let sequence = outbox.enqueue_one(event).await.sequence;
    let row = outbox
        .store
        .read_hot(&[sequence], &posthaste_core::store::Position::default())
        .await
        .unwrap()
        .remove(0)
        .row;
    match status {
        Status::New => {}
        Status::Sending => {
            let claimer = outbox.claimer("sending");
            let (relay, lease) = (&claimer.relay, &claimer.lease);
            let claimed = outbox.store.claim_hot(relay, lease, &[sequence]).await.unwrap();
            assert_eq!(claimed.len(), 1);
        }
        Status::Retry => owner.settle(&[retry(&row, 1, Duration::from_hours(1))]).await,
        Status::Sent => owner.settle(&sent(std::slice::from_ref(&row))).await,
        Status::Dead => owner.settle(&[dead(&row)]).await,
        Status::Discarded => {
            let discarded = outbox.store.discard(&Selection::One(event.id())).await;
            assert_eq!(discarded.unwrap(), 1);
        }
    }
    assert_eq!(outbox.record(event.id()).await.status, status);
    row
}

/// One new event in each state.
pub(super) async fn in_every_state(outbox: &Outbox, owner: &Owner) -> Vec<(Status, Uuid)> {
    let mut all = Vec::new();
    for status in Status::ALL {
        all.push((status, in_state(outbox, owner, status).await));
    }
    all
}
