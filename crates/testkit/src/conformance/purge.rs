//! Deleting what is done with, and nothing else.

use std::time::Duration;

use posthaste_core::{
    Status,
    store::{Purged, Selection},
};

use super::{
    Subject,
    outbox::Outbox,
    relays::{dead, event, events, held, parked, retry, sent, sequences, suspect, without_waiting},
    states::{in_every_state, in_state},
};

const DAY: Duration = Duration::from_hours(24);

/// Purges until the cycle is complete and gives how many went in each step.
async fn cycle(outbox: &Outbox, dead: Option<Duration>, batch: usize) -> Vec<u64> {
    let (mut steps, mut cursor) = (Vec::new(), None);
    for _ in 0..1_000 {
        let purged = outbox.store.purge(DAY, dead, batch, cursor).await.unwrap();
        // The first step may also take a batch of dead ones.
        assert!(purged.deleted as usize <= if cursor.is_none() { 2 * batch } else { batch });
        steps.push(purged.deleted);
        assert!(purged.next.is_none_or(|next| cursor.is_none_or(|cursor| next > cursor)));
        cursor = purged.next;
        if cursor.is_none() {
            return steps;
        }
    }
    panic!("the cycle never ends");
}

/// Of old events, only the sent and the discarded go; with a retention of their own the dead, too.
pub async fn purge_takes_only_what_is_done_with(subject: &Subject) {
    for retention_of_dead in [None, Some(DAY)] {
        let outbox = subject.outbox().await;
        let owner = outbox.owner().await;
        let old = in_every_state(&outbox, &owner).await;
        for (_, id) in &old {
            outbox.age(*id, 48).await;
        }
        let recent = in_every_state(&outbox, &owner).await;
        let steps = cycle(&outbox, retention_of_dead, 100).await;
        let expected = if retention_of_dead.is_some() { 3 } else { 2 };
        assert_eq!(steps.iter().sum::<u64>(), expected);
        for (status, id) in old {
            let goes = match status {
                Status::Sent | Status::Discarded => true,
                Status::Dead => retention_of_dead.is_some(),
                Status::New | Status::Sending | Status::Retry => false,
            };
            let there = outbox.store.event(id).await.unwrap().is_some();
            assert_eq!(there, !goes, "an old {status} event");
        }
        for (status, id) in recent {
            assert_eq!(outbox.record(id).await.status, status, "a recent event");
        }
    }
}

/// An old event that was sent a moment ago is recent.
pub async fn the_retention_counts_from_the_delivery(subject: &Subject) {
    let outbox = subject.outbox().await;
    let event = event(1);
    outbox.enqueue_one(&event).await;
    outbox.age(event.id(), 48).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    owner.settle(&sent(&rows)).await;
    assert_eq!(cycle(&outbox, None, 10).await, [0]);
    outbox.record(event.id()).await;
}

/// Whatever an unfinished event waits for, it is never purged, however old.
pub async fn what_waits_is_never_purged(subject: &Subject) {
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&events(5)).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    owner
        .settle(&[retry(&rows[0], 1, DAY), held(&rows[1]), suspect(&rows[2], 1), parked(&rows[3])])
        .await;
    for enqueued in &enqueued {
        outbox.age(enqueued.id, 480).await;
    }
    assert_eq!(cycle(&outbox, None, 2).await.iter().sum::<u64>(), 0);
    for enqueued in &enqueued {
        outbox.record(enqueued.id).await;
    }
}

/// A cycle goes through the outbox in batches and ends.
pub async fn purge_works_in_batches(subject: &Subject) {
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&events(25)).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    owner.settle(&sent(&rows)).await;
    for enqueued in &enqueued {
        outbox.age(enqueued.id, 48).await;
    }
    let steps = cycle(&outbox, None, 10).await;
    assert_eq!(steps[..3], [10, 10, 5]);
    assert_eq!(outbox.store.count_sent().await.unwrap(), 0);
    assert_eq!(outbox.store.purge(DAY, None, 10, None).await.unwrap(), Purged::default());
}

/// A later cycle finds what an earlier one had to leave, at the front and in the middle.
pub async fn a_later_cycle_takes_what_an_earlier_one_left(subject: &Subject) {
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&events(20)).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    let left = [0, 1, 9];
    let done: Vec<_> =
        (0..20).filter(|n| !left.contains(n)).map(|n: usize| rows[n].clone()).collect();
    owner.settle(&sent(&done)).await;
    for enqueued in &enqueued {
        outbox.age(enqueued.id, 48).await;
    }
    assert_eq!(cycle(&outbox, None, 4).await.iter().sum::<u64>(), 17);
    assert_eq!(cycle(&outbox, None, 4).await.iter().sum::<u64>(), 0);
    assert_eq!(sequences(&owner.read_all().await), left.map(|n| rows[n].sequence));

    owner.settle(&sent(&left.map(|n| rows[n].clone()))).await;
    for n in left {
        outbox.age(enqueued[n].id, 48).await;
    }
    assert_eq!(cycle(&outbox, None, 4).await.iter().sum::<u64>(), 3);

    // And what comes afterwards.
    let next = in_state(&outbox, &owner, Status::Sent).await;
    outbox.age(next, 48).await;
    assert_eq!(cycle(&outbox, None, 4).await.iter().sum::<u64>(), 1);
}

/// Nothing of a purged event stays: its attempts go, and its id is free.
pub async fn nothing_of_a_purged_event_stays(subject: &Subject) {
    let outbox = subject.outbox().await;
    let (delivered, given_up) = (event(1), event(2));
    let enqueued = outbox.enqueue(&[delivered.clone(), given_up.clone()]).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    owner.settle(&[retry(&rows[0], 1, Duration::ZERO), retry(&rows[1], 1, Duration::ZERO)]).await;
    owner.settle(&[sent(&rows[..1]).remove(0), dead(&rows[1])]).await;
    for enqueued in &enqueued {
        outbox.age(enqueued.id, 48).await;
        assert!(!outbox.store.attempts(enqueued.sequence).await.unwrap().is_empty());
    }
    assert_eq!(cycle(&outbox, Some(DAY), 10).await.iter().sum::<u64>(), 2);
    for enqueued in &enqueued {
        assert!(outbox.store.attempts(enqueued.sequence).await.unwrap().is_empty());
    }
    for event in [delivered, given_up] {
        assert!(!outbox.enqueue_one(&event).await.duplicate);
    }
}

/// Purging the dead event that parks a lane sets its first held event free.
pub async fn purging_a_parked_event_frees_its_lane(subject: &Subject) {
    let outbox = subject.outbox().await;
    let mut owner = outbox.owner().await;
    let enqueued = outbox.enqueue(&[event("key"), event("key"), event("key")]).await;
    let rows = owner.poll().await;
    owner.settle(&[parked(&rows[0]), held(&rows[1]), held(&rows[2])]).await;
    outbox.age(enqueued[0].id, 48).await;
    assert_eq!(cycle(&outbox, Some(DAY), 10).await.iter().sum::<u64>(), 1);
    assert_eq!(sequences(&owner.read_due().await), [rows[1].sequence]);
}

/// A purge passes over rows that somebody has locked, and takes them the next time.
pub async fn purge_waits_for_nobody(subject: &Subject) {
    if !subject.concurrent_writers {
        return;
    }
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&events(5)).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    owner.settle(&sent(&rows)).await;
    for enqueued in &enqueued {
        outbox.age(enqueued.id, 48).await;
    }
    let mut busy = outbox.begin().await;
    busy.lock(&[rows[2].sequence]).await.unwrap();
    let steps = without_waiting("purge", cycle(&outbox, None, 10)).await;
    assert_eq!(steps.iter().sum::<u64>(), 4);
    busy.rollback().await.unwrap();
    assert_eq!(cycle(&outbox, None, 10).await.iter().sum::<u64>(), 1);
}

/// A discarded event goes when its time has come, counted from the discard.
pub async fn a_discarded_event_is_purged_in_its_time(subject: &Subject) {
    let outbox = subject.outbox().await;
    let event = event(1);
    outbox.enqueue_one(&event).await;
    outbox.age(event.id(), 48).await;
    outbox.store.discard(&Selection::One(event.id())).await.unwrap();
    assert_eq!(cycle(&outbox, None, 10).await, [0]);
    outbox.age(event.id(), 48).await;
    assert_eq!(cycle(&outbox, None, 10).await.iter().sum::<u64>(), 1);
}
