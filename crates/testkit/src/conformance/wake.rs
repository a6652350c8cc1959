//! Learning of commits sooner than the next poll.

use futures_util::future::join;

use super::{
    Subject,
    relays::{event, without_waiting},
};

/// Where a database has something to listen to, a listener hears of a commit.
pub async fn a_listener_hears_of_a_commit(subject: &Subject) {
    let outbox = subject.outbox().await;
    let Some(mut listener) = outbox.store.listen().await.unwrap() else { return };
    for round in 0..3 {
        let write = async {
            outbox.enqueue_one(&event(round)).await;
            outbox.store.notify().await.unwrap();
        };
        let (heard, ()) = join(without_waiting("the listener", listener.wait()), write).await;
        heard.unwrap();
    }
}

/// An operator can ask for it, when nothing was committed.
pub async fn a_listener_is_woken_without_a_commit(subject: &Subject) {
    let outbox = subject.outbox().await;
    let Some(mut listener) = outbox.store.listen().await.unwrap() else { return };
    for _ in 0..3 {
        let wake = async { assert!(outbox.store.wake().await.unwrap()) };
        let (heard, ()) = join(without_waiting("the listener", listener.wait()), wake).await;
        heard.unwrap();
    }
}

/// Waking relays that are not there is no error. Whether any could be told is said.
pub async fn waking_nobody_is_no_error(subject: &Subject) {
    let outbox = subject.outbox().await;
    outbox.enqueue_one(&event(1)).await;
    let listens = outbox.store.listen().await.unwrap().is_some();
    assert_eq!(outbox.store.notify().await.unwrap(), listens);
    assert_eq!(outbox.store.wake().await.unwrap(), listens);
}
