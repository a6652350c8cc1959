//! Who may work on which shard, by the database's clock.

use std::collections::BTreeSet;

use futures_util::future::{join, join_all};
use posthaste_core::store::{Fence, Held, Relay, RelayOrdering};

use super::{
    Edit, Subject,
    relays::{LONG, SHORT, event, events, eventually, relay, sent, without_waiting},
};

/// A free shard can be taken; every owner gets a higher epoch.
pub async fn every_owner_of_a_shard_gets_a_higher_epoch(subject: &Subject) {
    let outbox = subject.outbox().await;
    let first = outbox.owner().await;
    outbox.store.release(&first.relay, &first.held, &first.position).await.unwrap();
    let second = outbox.owner().await;
    assert_eq!(second.shards(), first.shards());
    for (before, after) in first.held.iter().zip(&second.held) {
        assert_eq!(after.epoch, before.epoch + 1);
    }
}

/// Only what was asked for is taken.
pub async fn only_the_wanted_shards_are_taken(subject: &Subject) {
    let outbox = subject.outbox().await;
    let relay = relay("modest", LONG);
    let wanted = [outbox.shards - 1];
    assert!(outbox.store.acquire(&relay, &[]).await.unwrap().is_empty());
    let leases = outbox.store.acquire(&relay, &wanted).await.unwrap();
    assert_eq!(leases.iter().map(|lease| lease.held.shard).collect::<Vec<_>>(), wanted);
    let shards = outbox.store.shards().await.unwrap();
    for shard in shards {
        let owner = wanted.contains(&shard.shard).then(|| relay.owner());
        assert_eq!(shard.locked_by, owner, "shard {}", shard.shard);
    }
}

/// A shard that another relay holds is not given away.
pub async fn a_held_shard_is_left_out(subject: &Subject) {
    let outbox = subject.outbox().await;
    let owner = outbox.owner().await;
    let other = relay("other", LONG);
    let leases = outbox.store.acquire(&other, &outbox.all_shards()).await.unwrap();
    assert!(leases.is_empty(), "the other one got {leases:?}");
    owner.settle(&[]).await;
}

/// A relay whose answer was lost finds its own name on the shards and takes them again: with a higher
/// epoch, and without a suspicion, since it has not died.
pub async fn a_shard_under_its_own_name_is_taken_anew(subject: &Subject) {
    let outbox = subject.outbox().await;
    let mut owner = outbox.owner().await;
    let event = outbox.enqueue_one(&event("first")).await;
    let rows = owner.poll().await;
    let again = outbox.store.acquire(&owner.relay, &outbox.all_shards()).await.unwrap();
    assert_eq!(again.len(), owner.held.len());
    for (lease, held) in again.iter().zip(&owner.held) {
        assert_eq!((lease.held.shard, lease.held.epoch), (held.shard, held.epoch + 1));
        assert_eq!(lease.suspect_to, None);
    }
    // What was read before counts no more.
    let report = outbox.store.settle(&owner.fence(), &sent(&rows), true).await.unwrap();
    assert_eq!(report.refused, [event.sequence]);
}

/// Relays that ask at once get different shards, and none is left over.
pub async fn two_relays_never_share_a_shard(subject: &Subject) {
    let outbox = subject.outbox().await;
    let relays: Vec<Relay> = (0..4).map(|n| relay(&format!("relay{n}"), LONG)).collect();
    let shards = outbox.all_shards();
    let answers = join_all(relays.iter().map(|relay| outbox.store.acquire(relay, &shards))).await;
    let mut taken = BTreeSet::new();
    for (relay, leases) in relays.iter().zip(answers) {
        for lease in leases.unwrap() {
            assert!(taken.insert(lease.held.shard), "shard {} went twice", lease.held.shard);
            let record = &outbox.store.shards().await.unwrap()[usize::from(lease.held.shard)];
            assert_eq!(record.locked_by, Some(relay.owner()));
            assert_eq!(record.epoch, lease.held.epoch);
        }
    }
    assert_eq!(taken.len(), shards.len(), "shards were left over");
}

/// Taking shards never waits for one that somebody else is taking.
pub async fn acquire_does_not_wait_for_a_shard_that_is_being_taken(subject: &Subject) {
    if !subject.concurrent_writers || subject.shards < 2 {
        return;
    }
    let outbox = subject.outbox().await;
    let mut other = outbox.begin().await;
    outbox.sql_on(&mut other, "update {shards} set epoch = epoch where shard = 0").await;
    let relay = relay("eager", LONG);
    let shards = outbox.all_shards();
    let leases = without_waiting("acquire", outbox.store.acquire(&relay, &shards)).await.unwrap();
    let taken: Vec<u16> = leases.iter().map(|lease| lease.held.shard).collect();
    assert_eq!(taken, shards[1..]);
    other.rollback().await.unwrap();
}

/// An expired lease goes to another relay, which learns what may have been in the first one's
/// hands.
pub async fn an_expired_lease_is_taken_by_another_relay(subject: &Subject) {
    let outbox = subject.outbox().await;
    let taken = outbox.enqueue(&events(5)).await;
    let reserved = taken[2].sequence;
    let first = outbox.owner_for(SHORT).await;
    outbox.store.heartbeat(&first.relay, reserved).await.unwrap();
    outbox.all_leases_expired().await;

    let second = relay("second", LONG);
    let leases = outbox.store.acquire(&second, &outbox.all_shards()).await.unwrap();
    assert_eq!(leases.len(), usize::from(outbox.shards));
    for (lease, before) in leases.iter().zip(&first.held) {
        assert_eq!(lease.held.epoch, before.epoch + 1);
        assert_eq!(lease.suspect_to, Some(reserved));
    }
}

/// A heartbeat that was given up and reaches the database after the next one takes nothing back of what that one has
/// reported.
pub async fn a_late_heartbeat_does_not_lower_what_may_be_in_hand(subject: &Subject) {
    let outbox = subject.outbox().await;
    let taken = outbox.enqueue(&events(5)).await;
    let first = outbox.owner_for(SHORT).await;
    for reserved in [taken[1].sequence, taken[3].sequence, taken[2].sequence] {
        outbox.store.heartbeat(&first.relay, reserved).await.unwrap();
    }
    outbox.all_leases_expired().await;

    let second = relay("second", LONG);
    let leases = outbox.store.acquire(&second, &outbox.all_shards()).await.unwrap();
    assert_eq!(leases.len(), usize::from(outbox.shards));
    assert!(leases.iter().all(|lease| lease.suspect_to == Some(taken[3].sequence)), "{leases:?}");
}

/// The clock was set back, and the owner has not been heard of since: its lease does not last for as long.
pub async fn a_lease_of_the_future_is_nobodys(subject: &Subject) {
    let outbox = subject.outbox().await;
    let taken = outbox.enqueue(&events(5)).await;
    let mut first = outbox.owner().await;
    let rows = first.poll().await;
    outbox.store.heartbeat(&first.relay, taken[2].sequence).await.unwrap();
    let owned = outbox.shards;
    let second = relay("second", LONG);
    let census = outbox.store.heartbeat(&second, 0).await.unwrap();
    assert_eq!(census.owners.iter().flatten().count(), usize::from(owned));
    outbox.edit(Edit::PostponeShardLeases { hours: 100 }).await;
    // Its owner reports: it is alive.
    let census = outbox.store.heartbeat(&second, 0).await.unwrap();
    assert_eq!(census.owners.iter().flatten().count(), usize::from(owned));
    assert!(outbox.store.acquire(&second, &outbox.all_shards()).await.unwrap().is_empty());

    let name = first.relay.owner();
    outbox.edit(Edit::PostponeHeartbeat { owner: &name, hours: 100 }).await;
    let census = outbox.store.heartbeat(&second, 0).await.unwrap();
    assert_eq!(census.owners.iter().flatten().count(), 0);
    assert!(census.live.iter().all(|live| live.owner != name));
    let leases = outbox.store.acquire(&second, &outbox.all_shards()).await.unwrap();
    assert_eq!(leases.len(), usize::from(owned));
    assert!(leases.iter().all(|lease| lease.suspect_to == Some(taken[2].sequence)));
    // It was alive all the same: its outcomes are refused, and its next heartbeat counts.
    let fence = Fence::Shards { owner: name.clone(), held: first.held.clone() };
    let report = outbox.store.settle(&fence, &sent(&rows), true).await.unwrap();
    assert_eq!(report.refused.len(), rows.len());
    let census = outbox.store.heartbeat(&first.relay, 0).await.unwrap();
    assert!(census.live.iter().any(|live| live.owner == name));
}

/// When the dead owner's report is gone, all that was written is suspect.
pub async fn without_a_report_of_its_owner_all_of_a_shard_is_suspect(subject: &Subject) {
    let outbox = subject.outbox().await;
    let last = outbox.enqueue(&events(5)).await[4].sequence;
    let first = outbox.owner_for(SHORT).await;
    outbox.store.retire(&first.relay).await.unwrap();
    outbox.all_leases_expired().await;
    let second = relay("second", LONG);
    for lease in outbox.store.acquire(&second, &outbox.all_shards()).await.unwrap() {
        assert_eq!(lease.suspect_to, Some(last));
    }
}

/// A released shard is handed over with its mark, and nothing in it is suspect.
pub async fn a_released_shard_is_handed_over_with_its_mark(subject: &Subject) {
    let outbox = subject.outbox().await;
    let mut first = outbox.owner().await;
    outbox.store.heartbeat(&first.relay, 1_000).await.unwrap();
    outbox.enqueue(&events(3)).await;
    let rows = first.poll().await;
    first.settle(&sent(&rows)).await;
    outbox.store.release(&first.relay, &first.held, &first.position).await.unwrap();
    assert_eq!(first.position.sequence, rows[2].sequence);

    let second = relay("second", LONG);
    let leases = outbox.store.acquire(&second, &outbox.all_shards()).await.unwrap();
    assert_eq!(leases.len(), usize::from(outbox.shards));
    for lease in leases {
        assert_eq!(lease.mark, first.position);
        assert_eq!(lease.suspect_to, None);
    }
}

/// A renewed lease outlives its first end, and the mark of the renewal is what a successor gets.
pub async fn a_renewal_keeps_the_lease_and_stores_the_mark(subject: &Subject) {
    let outbox = subject.outbox().await;
    let mut owner = outbox.owner_for(SHORT).await;
    outbox.enqueue(&events(3)).await;
    owner.poll().await;

    let patient = Relay { lease: LONG, ..owner.relay.clone() };
    let renewed = outbox.store.renew(&patient, &owner.held, &owner.position).await.unwrap();
    assert_eq!(BTreeSet::from_iter(renewed), BTreeSet::from_iter(outbox.all_shards()));
    let other = relay("other", LONG);
    let census = outbox.store.heartbeat(&other, 0).await.unwrap();
    assert!(census.owners.iter().all(|holder| holder.as_ref() == Some(&owner.relay.owner())));
    assert!(outbox.store.acquire(&other, &outbox.all_shards()).await.unwrap().is_empty());

    outbox.store.renew(&owner.relay, &owner.held, &owner.position).await.unwrap();
    outbox.all_leases_expired().await;
    for lease in outbox.store.acquire(&other, &outbox.all_shards()).await.unwrap() {
        assert_eq!(lease.mark, owner.position);
    }
}

/// A lease that ran out and that nobody took can be renewed.
pub async fn an_expired_lease_that_nobody_took_can_be_renewed(subject: &Subject) {
    let outbox = subject.outbox().await;
    let owner = outbox.owner_for(SHORT).await;
    outbox.all_leases_expired().await;
    let patient = Relay { lease: LONG, ..owner.relay.clone() };
    let renewed = outbox.store.renew(&patient, &owner.held, &owner.position).await.unwrap();
    assert_eq!(renewed.len(), usize::from(outbox.shards));
    let other = relay("other", LONG);
    assert!(outbox.store.acquire(&other, &outbox.all_shards()).await.unwrap().is_empty());
}

/// A renewal leaves out what was lost, and its mark does not overwrite the new owner's.
pub async fn a_lost_shard_is_not_renewed(subject: &Subject) {
    let outbox = subject.outbox().await;
    let mut late = outbox.owner_for(SHORT).await;
    outbox.enqueue(&events(3)).await;
    late.poll().await;
    outbox.all_leases_expired().await;
    let owner = outbox.owner().await;
    let before = outbox.store.shards().await.unwrap();

    let renewed = outbox.store.renew(&late.relay, &late.held, &late.position).await.unwrap();
    assert!(renewed.is_empty(), "{renewed:?} were renewed");
    for (after, before) in outbox.store.shards().await.unwrap().iter().zip(&before) {
        assert_eq!(after.locked_by, Some(owner.relay.owner()));
        assert_eq!((after.epoch, after.mark), (before.epoch, before.mark));
        assert_eq!(after.locked_until, before.locked_until);
    }
}

/// Giving back what was lost takes nothing from the new owner.
pub async fn a_lost_shard_is_not_released(subject: &Subject) {
    let outbox = subject.outbox().await;
    let late = outbox.owner_for(SHORT).await;
    outbox.all_leases_expired().await;
    let owner = outbox.owner().await;
    outbox.store.release(&late.relay, &late.held, &late.position).await.unwrap();
    for shard in outbox.store.shards().await.unwrap() {
        assert_eq!(shard.locked_by, Some(owner.relay.owner()));
    }
}

/// An epoch of the past is worth nothing, even in the hands of the present owner.
pub async fn an_old_epoch_of_the_same_owner_is_not_renewed(subject: &Subject) {
    let outbox = subject.outbox().await;
    let first = outbox.owner_for(SHORT).await;
    outbox.all_leases_expired().await;
    let again = Relay { lease: LONG, ..first.relay.clone() };
    let leases = outbox.store.acquire(&again, &outbox.all_shards()).await.unwrap();
    assert_eq!(leases.len(), usize::from(outbox.shards));
    let renewed = outbox.store.renew(&again, &first.held, &first.position).await.unwrap();
    assert!(renewed.is_empty(), "{renewed:?} were renewed with an old epoch");
    let held: Vec<Held> = leases.iter().map(|lease| lease.held).collect();
    let renewed = outbox.store.renew(&again, &held, &first.position).await.unwrap();
    assert_eq!(renewed.len(), held.len());
}

/// A heartbeat learns who is alive and who owns what.
pub async fn a_heartbeat_learns_who_lives_and_who_owns_what(subject: &Subject) {
    let outbox = subject.outbox().await;
    let one = relay("one", LONG);
    let two = Relay { ordering: RelayOrdering::Global, ..relay("two", LONG) };
    outbox.store.acquire(&two, &[0]).await.unwrap();
    outbox.store.heartbeat(&two, 0).await.unwrap();
    for _ in 0..2 {
        let census = outbox.store.heartbeat(&one, 0).await.unwrap();
        let live: Vec<_> = census.live.iter().map(|live| live.owner.clone()).collect();
        assert_eq!(live, [one.owner(), two.owner()]);
        assert_eq!(census.live[0].ordering, RelayOrdering::PerKey);
        assert_eq!(census.live[1].ordering, RelayOrdering::Global);
        assert_eq!(census.owners.len(), usize::from(outbox.shards));
        assert_eq!(census.owners[0], Some(two.owner()));
        assert!(census.owners[1..].iter().all(Option::is_none));
    }
}

/// A relay that stopped reporting is not alive.
pub async fn a_relay_that_stopped_reporting_is_not_alive(subject: &Subject) {
    let outbox = subject.outbox().await;
    let (silent, observer) = (relay("silent", SHORT), relay("observer", LONG));
    outbox.store.heartbeat(&silent, 0).await.unwrap();
    let live = eventually("the end of the silent relay", async || {
        let census = outbox.store.heartbeat(&observer, 0).await.unwrap();
        (census.live.len() == 1).then_some(census.live)
    })
    .await;
    assert_eq!(live[0].owner, observer.owner());
    let relays = outbox.store.relays().await.unwrap();
    let record = relays.iter().find(|relay| relay.owner == silent.owner());
    assert!(record.is_none_or(|relay| !relay.alive));
}

/// A relay that retired is forgotten at once.
pub async fn a_retired_relay_is_forgotten(subject: &Subject) {
    let outbox = subject.outbox().await;
    let (gone, observer) = (relay("gone", LONG), relay("observer", LONG));
    outbox.store.heartbeat(&gone, 0).await.unwrap();
    outbox.store.retire(&gone).await.unwrap();
    let census = outbox.store.heartbeat(&observer, 0).await.unwrap();
    assert_eq!(census.live.len(), 1);
    let relays = outbox.store.relays().await.unwrap();
    assert!(relays.iter().all(|relay| relay.owner != gone.owner()));
}

/// A relay that works, renews and reports at the same time never stands in its own way.
pub async fn renewing_and_settling_at_once_do_not_deadlock(subject: &Subject) {
    let outbox = subject.outbox().await;
    let mut owner = outbox.owner().await;
    for round in 0..30 {
        outbox.enqueue(&[event(round), event(round + 1), event(round + 2)]).await;
        let batch = sent(&owner.poll().await);
        let renewal = outbox.store.renew(&owner.relay, &owner.held, &owner.position);
        let heartbeat = outbox.store.heartbeat(&owner.relay, owner.position.sequence);
        let ((renewed, census), ()) = join(join(renewal, heartbeat), owner.settle(&batch)).await;
        assert_eq!(renewed.unwrap().len(), usize::from(outbox.shards));
        census.unwrap();
    }
    assert_eq!(outbox.store.count_sent().await.unwrap(), 90);
}
