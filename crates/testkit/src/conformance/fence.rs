//! A relay that lost its lease cannot settle.

use std::time::Duration;

use futures_util::future::join;
use posthaste_core::{
    Status,
    store::{Fence, Fetched, Relay, Settlement},
};

use super::{
    Subject,
    outbox::Outbox,
    relays::{LONG, SHORT, dead, events, held, parked, relay, retry, sent, sequences, suspect},
};

async fn assert_refused(outbox: &Outbox, fence: &Fence, rows: &[Fetched], batch: &[Settlement]) {
    for keep_sent in [true, false] {
        let mut report = outbox.store.settle(fence, batch, keep_sent).await.unwrap();
        report.refused.sort_unstable();
        report.stale_shards.sort_unstable();
        assert_eq!(report.refused, sequences(rows), "{:?} went through", batch[0].verdict);
        let mut touched: Vec<u16> = rows.iter().map(|row| row.shard).collect();
        touched.sort_unstable();
        touched.dedup();
        assert!(touched.iter().all(|shard| report.stale_shards.contains(shard)), "{report:?}");
    }
    for row in rows {
        let id = row.content.as_ref().unwrap().event.id();
        let record = outbox.record(id).await;
        assert_eq!((record.status, record.attempts), (Status::New, 0));
        assert_eq!((record.wait, record.last_error), (None, None));
        assert!(outbox.store.attempts(row.sequence).await.unwrap().is_empty());
    }
}

/// After a takeover the old owner's outcomes are refused, reported, and change nothing.
pub async fn a_stale_epoch_settles_nothing(subject: &Subject) {
    let outbox = subject.outbox().await;
    outbox.enqueue(&events(3)).await;
    let mut stale = outbox.owner_for(SHORT).await;
    let rows = stale.poll().await;
    outbox.all_leases_expired().await;
    let owner = outbox.owner().await;
    let all = |make: &dyn Fn(&Fetched) -> Settlement| rows.iter().map(make).collect::<Vec<_>>();
    for batch in [
        sent(&rows),
        all(&|row| retry(row, 1, Duration::ZERO)),
        all(&dead),
        all(&parked),
        all(&held),
        all(&|row| suspect(row, 1)),
    ] {
        assert_refused(&outbox, &stale.fence(), &rows, &batch).await;
    }
    owner.settle(&sent(&rows)).await;
}

/// The right epoch in the wrong hands is no right.
pub async fn another_owner_with_the_right_epoch_settles_nothing(subject: &Subject) {
    let outbox = subject.outbox().await;
    outbox.enqueue(&events(2)).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    let stranger = Fence::Shards { owner: relay("x", SHORT).owner(), held: owner.held.clone() };
    assert_refused(&outbox, &stranger, &rows, &sent(&rows)).await;
}

/// A relay that lost a shard and got it back has no right by its first lease: somebody else may
/// have worked in between.
pub async fn an_old_epoch_of_the_same_owner_settles_nothing(subject: &Subject) {
    let outbox = subject.outbox().await;
    outbox.enqueue(&events(2)).await;
    let mut owner = outbox.owner_for(SHORT).await;
    let rows = owner.poll().await;
    outbox.all_leases_expired().await;
    let again = Relay { lease: LONG, ..owner.relay.clone() };
    let leases = outbox.store.acquire(&again, &outbox.all_shards()).await.unwrap();
    let fails = |row: &Fetched| retry(row, 1, Duration::ZERO);
    for batch in [sent(&rows), rows.iter().map(fails).collect()] {
        assert_refused(&outbox, &owner.fence(), &rows, &batch).await;
    }
    owner.held = leases.iter().map(|lease| lease.held).collect();
    owner.settle(&sent(&rows)).await;
}

/// A released shard is nobody's.
pub async fn a_released_shard_cannot_be_settled(subject: &Subject) {
    let outbox = subject.outbox().await;
    outbox.enqueue(&events(2)).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    outbox.store.release(&owner.relay, &owner.held, &owner.position).await.unwrap();
    assert_refused(&outbox, &owner.fence(), &rows, &sent(&rows)).await;
}

/// Of a batch over several shards, only what lies in a lost shard is refused.
pub async fn a_lost_shard_does_not_hold_back_the_others(subject: &Subject) {
    if subject.shards < 2 {
        return;
    }
    let outbox = subject.outbox().await;
    outbox.enqueue(&events(40)).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    let lost = rows[0].shard;
    let (refused, written): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.shard == lost);
    assert!(!written.is_empty());
    let of_lost: Vec<_> = owner.held.iter().copied().filter(|held| held.shard == lost).collect();
    outbox.store.release(&owner.relay, &of_lost, &owner.position).await.unwrap();

    let mut report = outbox.store.settle(&owner.fence(), &sent(&rows), true).await.unwrap();
    report.refused.sort_unstable();
    assert_eq!(report.stale_shards, [lost]);
    assert_eq!(report.refused, refused.iter().map(|row| row.sequence).collect::<Vec<_>>());
    assert_eq!(outbox.store.count_sent().await.unwrap(), written.len() as u64);
}

/// An outcome for a shard that the fence does not name is not written.
pub async fn an_event_outside_the_fence_is_not_written(subject: &Subject) {
    let outbox = subject.outbox().await;
    outbox.enqueue(&events(3)).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    let fence = Fence::Shards { owner: owner.relay.owner(), held: Vec::new() };
    for batch in [sent(&rows), rows.iter().map(|row| retry(row, 1, SHORT)).collect()] {
        outbox.store.settle(&fence, &batch, true).await.unwrap();
        assert_eq!(owner.read_all().await.len(), 3, "{:?} went through", batch[0].verdict);
    }
}

/// A takeover that is under way when the settle comes is waited for, and then refuses it: looking
/// at the lease without locking it would let the stale owner through.
pub async fn a_takeover_under_way_refuses_the_settle(subject: &Subject) {
    if !subject.concurrent_writers {
        return;
    }
    let outbox = subject.outbox().await;
    outbox.enqueue(&events(2)).await;
    let mut stale = outbox.owner().await;
    let rows = stale.poll().await;
    let mut takeover = outbox.begin().await;
    outbox.sql_on(&mut takeover, "update {shards} set locked_by = 'heir', epoch = epoch + 1").await;
    let commit = async {
        // Time for the settle to run into the lock; either way it must be refused.
        for _ in 0..50 {
            outbox.store.check().await.unwrap();
        }
        takeover.commit().await.unwrap();
    };
    let batch = sent(&rows);
    let (report, ()) = join(outbox.store.settle(&stale.fence(), &batch, true), commit).await;
    let mut refused = report.unwrap().refused;
    refused.sort_unstable();
    assert_eq!(refused, sequences(&rows), "a stale owner got through");
    assert_eq!(outbox.store.count_sent().await.unwrap(), 0);
}
