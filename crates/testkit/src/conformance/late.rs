//! Commits that become visible behind the cursor: found soon, and nobody waits for them. Databases
//! that have none of them pass these cases without a word.

use std::{
    cell::Cell,
    collections::{BTreeSet, HashSet},
};

use futures_util::future::{join, join_all};
use posthaste_core::{Event, key, store::Limit};

use super::{
    Subject,
    relays::{LONG, SHORT, event, events, sent, sequences},
};

/// Transactions that commit in the reverse order of their sequences are both found.
pub async fn transactions_that_commit_in_reverse_order_are_both_found(subject: &Subject) {
    if !subject.late_commits {
        return;
    }
    let outbox = subject.outbox().await;
    let mut owner = outbox.owner().await;
    let (mut slow, mut fast) = (outbox.begin().await, outbox.begin().await);
    let low = outbox.enqueue_in(&mut slow, &[event("slow")]).await[0].sequence;
    let high = outbox.enqueue_in(&mut fast, &[event("fast")]).await[0].sequence;
    assert!(low < high);
    fast.commit().await.unwrap();
    assert_eq!(sequences(&owner.poll().await), [high]);
    slow.commit().await.unwrap();
    assert_eq!(sequences(&owner.poll().await), [low], "the late commit was skipped");
    assert!(owner.poll().await.is_empty());
}

/// A transaction that had not even begun when the reader last looked for late commits is found,
/// too.
pub async fn a_transaction_that_began_after_the_last_look_is_found(subject: &Subject) {
    if !subject.late_commits {
        return;
    }
    let outbox = subject.outbox().await;
    let owner = outbox.owner().await;
    let (mut slow, mut fast) = (outbox.begin().await, outbox.begin().await);
    let low = outbox.enqueue_in(&mut slow, &[event("slow")]).await[0].sequence;
    let high = outbox.enqueue_in(&mut fast, &[event("fast")]).await[0].sequence;
    fast.commit().await.unwrap();
    let ahead =
        outbox.store.read_on(&owner.shards(), &owner.position, Limit::rows(10)).await.unwrap();
    assert_eq!(sequences(&ahead.rows), [high]);
    owner.settle(&sent(&ahead.rows)).await;
    slow.commit().await.unwrap();
    let late =
        outbox.store.read_late(&owner.shards(), &ahead.position, Limit::rows(1000)).await.unwrap();
    assert_eq!(sequences(&late.rows), [low], "the late commit was skipped");
}

/// An event that was enqueued after a late commit does not come without it: one step of the cursor
/// brings both. When too much came late, that comes first, page by page, and then the cursor moves on,
/// whatever became of the pages: here nothing of them is settled.
pub async fn a_step_ahead_brings_what_came_late(subject: &Subject) {
    if !subject.late_commits {
        return;
    }
    let outbox = subject.outbox().await;
    let owner = outbox.owner().await;
    let shards = owner.shards();
    let mut slow = outbox.begin().await;
    let low = outbox.enqueue_in(&mut slow, &[event("slow"), event("slow")]).await;
    let low: Vec<i64> = low.iter().map(|one| one.sequence).collect();
    let high = outbox.enqueue_one(&event("fast")).await.sequence;
    let first = outbox.store.read_on(&shards, &owner.position, Limit::rows(10)).await.unwrap();
    assert_eq!(sequences(&first.rows), [high]);
    owner.settle(&sent(&first.rows)).await;
    slow.commit().await.unwrap();
    let next = outbox.enqueue_one(&event("slow")).await.sequence;

    let (mut found, mut position) = (Vec::new(), first.position.clone());
    for _ in 0..20 {
        let page = outbox.store.read_on(&shards, &position, Limit::rows(1)).await.unwrap();
        found.extend(sequences(&page.rows));
        position = page.position;
        if page.caught_up {
            break;
        }
    }
    assert_eq!(found, [low[0], low[1], next], "in order, each once, without a settle between");

    let step = outbox.store.read_on(&shards, &first.position, Limit::rows(10)).await.unwrap();
    assert_eq!(sequences(&step.rows), [low[0], low[1], next]);
    assert!(step.caught_up);
    assert!(step.position.sequence >= next);
    owner.settle(&sent(&step.rows)).await;
    let rest = outbox.store.read_on(&shards, &step.position, Limit::rows(10)).await.unwrap();
    assert!(rest.rows.is_empty(), "found once: {:?}", sequences(&rest.rows));
}

/// A transaction with more events than any page holds commits late: all of them are found, in order, and
/// then what was written after it, also when nothing of it can be settled meanwhile.
pub async fn a_late_commit_larger_than_a_page_is_found_whole(subject: &Subject) {
    if !subject.late_commits {
        return;
    }
    for settled in [true, false] {
        let outbox = subject.outbox().await;
        let mut owner = outbox.owner().await;
        let mut slow = outbox.begin().await;
        let mut expected = Vec::new();
        for _ in 0..5 {
            let taken = outbox.enqueue_in(&mut slow, &events(1000)).await;
            expected.extend(taken.iter().map(|one| one.sequence));
            // Others' numbers in between.
            outbox.enqueue_one(&event("other")).await;
        }
        let before = owner.poll().await;
        assert_eq!(before.len(), 5);
        owner.settle(&sent(&before)).await;
        slow.commit().await.unwrap();
        expected.push(outbox.enqueue_one(&event("after")).await.sequence);

        let mut found = Vec::new();
        for round in 0.. {
            assert!(round < 500, "{} of {} after {round} pages", found.len(), expected.len());
            let shards = owner.shards();
            let page = outbox.store.read_on(&shards, &owner.position, Limit::rows(100));
            let page = page.await.unwrap();
            if settled {
                owner.settle(&sent(&page.rows)).await;
            }
            found.extend(sequences(&page.rows));
            owner.position = page.position;
            if page.caught_up {
                break;
            }
        }
        assert_eq!(found, expected);
        assert!(owner.poll().await.is_empty() || !settled);
    }
}

/// While late commits come page by page, events beyond the cursor are told of, and a hot read of them knows what
/// of their key has yet to come: also what is committed during the walk.
pub async fn events_beyond_late_commits_know_those_of_their_key(subject: &Subject) {
    const KEYS: usize = 20;
    const SMALL: Limit = Limit { rows: 100, bytes: 1 };

    if !subject.late_commits {
        return;
    }
    let outbox = subject.outbox().await;
    let mut owner = outbox.owner().await;
    let shards = owner.shards();
    let of_all_keys = |times: usize| -> Vec<Event> {
        (0..times * KEYS).map(|n| event(format!("late-{}", n % KEYS))).collect()
    };
    let (mut first, mut second) = (outbox.begin().await, outbox.begin().await);
    let lowest = outbox.enqueue_in(&mut second, &of_all_keys(1)).await;
    let of_first = outbox.enqueue_in(&mut first, &of_all_keys(30)).await;
    let highest = outbox.enqueue_in(&mut second, &of_all_keys(1)).await;
    outbox.enqueue_one(&event("fast")).await;
    let passed = owner.poll().await;
    owner.settle(&sent(&passed)).await;
    first.commit().await.unwrap();
    // One of each key, and one of another.
    let mut beyond: Vec<i64> =
        outbox.enqueue(&of_all_keys(1)).await.iter().map(|one| one.sequence).collect();
    beyond.push(outbox.enqueue_one(&event("other")).await.sequence);

    let mut late = of_first;
    let mut second = Some(second);
    let mut came = BTreeSet::new();
    let mut free = BTreeSet::new();
    loop {
        let page = outbox.store.read_on(&shards, &owner.position, Limit::rows(50)).await.unwrap();
        came.extend(sequences(&page.rows));
        let stands = page.position.sequence == owner.position.sequence;
        owner.position = page.position;
        if page.caught_up || !stands {
            break;
        }
        let (from, no_key) = (&owner.position, HashSet::new());
        let told =
            outbox.store.read_beyond(&shards, from, &no_key, Limit::rows(100)).await.unwrap();
        assert_eq!(told, beyond);
        // As many as fit, in turns.
        for alone in beyond.chunks(1) {
            assert_eq!(
                outbox.store.read_beyond(&shards, from, &no_key, SMALL).await.unwrap(),
                alone
            );
        }
        let hot = outbox.store.read_hot(&told, from).await.unwrap();
        assert_eq!(hot.len(), beyond.len());
        for (key, hot) in hot.into_iter().enumerate() {
            let Some(previous) = hot.previous else { continue };
            let of_key = late.iter().enumerate().filter(|(n, _)| n % KEYS == key);
            for (_, unknown) in of_key.filter(|(_, one)| !came.contains(&one.sequence)) {
                assert!(previous.contains(&unknown.sequence), "{unknown:?} is not in {previous:?}");
            }
            if previous.is_empty() {
                free.insert(key);
            }
        }
        if let Some(second) = second.take_if(|_| came.len() > 200) {
            second.commit().await.unwrap();
            late.extend(lowest.iter().chain(&highest).copied());
        }
    }
    assert!(second.is_none(), "the walk ended after {} events", came.len());
    assert!(free.contains(&KEYS), "the other one could not go");
}

/// What a walk over late commits has passed can be filled by another late commit: the next walk finds it.
pub async fn a_commit_during_a_walk_over_late_ones_is_found(subject: &Subject) {
    if !subject.late_commits {
        return;
    }
    let outbox = subject.outbox().await;
    let mut owner = outbox.owner().await;
    let (mut first, mut second) = (outbox.begin().await, outbox.begin().await);
    let lowest = outbox.enqueue_in(&mut second, &[event("second")]).await[0].sequence;
    let walked = outbox.enqueue_in(&mut first, &events(20)).await;
    outbox.enqueue_one(&event("fast")).await;
    assert_eq!(owner.poll().await.len(), 1);
    first.commit().await.unwrap();
    let page =
        outbox.store.read_on(&owner.shards(), &owner.position, Limit::rows(5)).await.unwrap();
    assert_eq!(page.rows[0].sequence, walked[0].sequence);
    second.commit().await.unwrap();
    owner.position = page.position;
    let rest = sequences(&owner.poll().await);
    assert!(rest.contains(&lowest), "{lowest} is not among {rest:?}");
    assert_eq!(rest.len(), 16, "{rest:?}");
}

/// A walk is past the first events of what commits during it: its last ones must not come before these.
pub async fn what_commits_during_a_walk_keeps_its_own_order(subject: &Subject) {
    if !subject.late_commits {
        return;
    }
    let outbox = subject.outbox().await;
    let mut owner = outbox.owner().await;
    let (mut first, mut second) = (outbox.begin().await, outbox.begin().await);
    let lowest = outbox.enqueue_in(&mut second, &[event("second")]).await[0].sequence;
    outbox.enqueue_in(&mut first, &events(20)).await;
    let highest = outbox.enqueue_in(&mut second, &[event("second")]).await[0].sequence;
    outbox.enqueue_one(&event("fast")).await;
    assert_eq!(owner.poll().await.len(), 1);
    first.commit().await.unwrap();
    let five = Limit::rows(5);
    let page = outbox.store.read_on(&owner.shards(), &owner.position, five).await.unwrap();
    second.commit().await.unwrap();
    let (mut found, mut position) = (sequences(&page.rows), page.position);
    for _ in 0..20 {
        let page = outbox.store.read_on(&owner.shards(), &position, five).await.unwrap();
        found.extend(sequences(&page.rows));
        position = page.position;
    }
    let at = |sequence| found.iter().position(|of| *of == sequence);
    let (lowest, highest) = (at(lowest), at(highest));
    assert!(lowest.is_some() && highest.is_some(), "something is missing of {found:?}");
    assert!(lowest < highest, "{found:?}");
}

/// A transaction that has begun after another one can take its number before it: when the other one has
/// ended, and nothing that began later has, it is still known to be open.
pub async fn a_commit_that_began_last_and_took_its_number_first_is_found(subject: &Subject) {
    if !subject.late_commits {
        return;
    }
    let outbox = subject.outbox().await;
    let mut owner = outbox.owner().await;
    let (mut early, mut late) = (outbox.begin().await, outbox.begin().await);
    let first = outbox.enqueue_in(&mut early, &[event("first")]).await[0].sequence;
    let between = outbox.enqueue_in(&mut late, &[event("between")]).await[0].sequence;
    let last = outbox.enqueue_in(&mut early, &[event("last")]).await[0].sequence;
    early.commit().await.unwrap();
    assert_eq!(sequences(&owner.poll().await), [first, last]);
    late.commit().await.unwrap();
    assert_eq!(sequences(&owner.poll().await), [between]);
}

/// Positions that several owners left have a common one, from which nothing is missed.
pub async fn a_common_position_misses_nothing(subject: &Subject) {
    let outbox = subject.outbox().await;
    let mut early = outbox.owner_for(SHORT).await;
    let start = early.position.clone();
    let one = outbox.enqueue_one(&event(1)).await.sequence;
    early.poll().await;
    let first = early.position.clone();
    let two = outbox.enqueue_one(&event(2)).await.sequence;
    early.poll().await;
    let second = early.position.clone();
    for (positions, expected) in [
        (vec![second.clone(), first.clone()], vec![two]),
        (vec![first.clone(), start.clone(), second.clone()], vec![one, two]),
        (vec![second.clone()], vec![]),
    ] {
        let joined = outbox.store.join(&positions);
        let page = outbox.store.read_on(&early.shards(), &joined, Limit::rows(10)).await.unwrap();
        assert_eq!(sequences(&page.rows), expected);
    }
}

/// The same when what was found is settled at once, as a relay does, marked or deleted.
pub async fn a_late_commit_behind_settled_events_is_found(subject: &Subject) {
    if !subject.late_commits {
        return;
    }
    for keep_sent in [true, false] {
        let outbox = subject.outbox().await;
        let mut owner = outbox.owner().await;
        let mut slow = outbox.begin().await;
        let low = outbox.enqueue_in(&mut slow, &[event("slow")]).await[0].sequence;
        for round in 0..5 {
            outbox.enqueue(&[event(round)]).await;
            let rows = owner.poll().await;
            assert_eq!(rows.len(), 1);
            outbox.store.settle(&owner.fence(), &sent(&rows), keep_sent).await.unwrap();
            let (relay, held) = (&owner.relay, &owner.held);
            let renewed = outbox.store.renew(relay, held, &owner.position).await.unwrap();
            assert_eq!(renewed.len(), held.len());
        }
        slow.commit().await.unwrap();
        assert_eq!(sequences(&owner.poll().await), [low], "the late commit was skipped");
    }
}

/// A relay that owns one shard finds the late commits of that one, whatever goes on in the others.
pub async fn a_reader_of_one_shard_finds_its_late_commits(subject: &Subject) {
    if !subject.late_commits {
        return;
    }
    let outbox = subject.outbox().await;
    let shard =
        |event: &Event| key::shard_of(event.ordering_key().as_deref(), event.id(), outbox.shards);
    let ours = event("ours");
    let mine = shard(&ours);
    let mut owner = outbox.owner_of(&[mine], LONG).await;
    let mut slow = outbox.begin().await;
    let low = outbox.enqueue_in(&mut slow, &[ours]).await[0].sequence;
    let all = events(30);
    let enqueued = outbox.enqueue(&all).await;
    let expected: Vec<i64> = all
        .iter()
        .zip(&enqueued)
        .filter(|(event, _)| shard(event) == mine)
        .map(|(_, enqueued)| enqueued.sequence)
        .collect();
    assert_eq!(sequences(&owner.poll().await), expected);
    // Others' events only.
    let others: Vec<Event> = events(30).into_iter().filter(|event| shard(event) != mine).collect();
    outbox.enqueue(&others).await;
    assert!(owner.poll().await.is_empty());
    slow.commit().await.unwrap();
    assert_eq!(sequences(&owner.poll().await), [low], "the late commit was skipped");
}

/// While a transaction stays open, everybody else's events are read as soon as they are committed,
/// however many polls pass.
pub async fn an_open_transaction_stalls_nobody(subject: &Subject) {
    if !subject.late_commits {
        return;
    }
    let outbox = subject.outbox().await;
    let mut owner = outbox.owner().await;
    let mut open = outbox.begin().await;
    let kept = outbox.enqueue_in(&mut open, &[event("same"), event("same")]).await;
    for round in 0..30 {
        let committed = outbox.enqueue_one(&event(round)).await.sequence;
        assert_eq!(sequences(&owner.poll().await), [committed]);
        // More of the open transaction, between those of the others.
        outbox.enqueue_in(&mut open, &[event("same")]).await;
        assert!(owner.poll().await.is_empty());
    }
    open.commit().await.unwrap();
    let late = sequences(&owner.poll().await);
    assert_eq!(late.len(), 32);
    assert_eq!(late[..2], [kept[0].sequence, kept[1].sequence]);
}

/// A transaction that rolls back leaves nothing behind that would be read or waited for.
pub async fn a_late_rollback_is_forgotten(subject: &Subject) {
    if !subject.late_commits {
        return;
    }
    let outbox = subject.outbox().await;
    let mut owner = outbox.owner().await;
    let mut open = outbox.begin().await;
    outbox.enqueue_in(&mut open, &[event("never")]).await;
    let one = outbox.enqueue_one(&event(1)).await.sequence;
    assert_eq!(sequences(&owner.poll().await), [one]);
    open.rollback().await.unwrap();
    assert!(owner.poll().await.is_empty());
    let two = outbox.enqueue_one(&event(2)).await.sequence;
    assert_eq!(sequences(&owner.poll().await), [two]);
    let rows = owner.read_all().await;
    owner.settle(&sent(&rows)).await;
    assert!(owner.poll().await.is_empty());
}

/// The mark that a relay hands over is enough to find what it had not seen.
pub async fn a_new_owner_finds_a_late_commit_from_the_mark(subject: &Subject) {
    if !subject.late_commits {
        return;
    }
    for commit_before_takeover in [true, false] {
        let outbox = subject.outbox().await;
        let mut first = outbox.owner().await;
        let mut open = outbox.begin().await;
        let low = outbox.enqueue_in(&mut open, &[event("slow")]).await[0].sequence;
        outbox.enqueue_one(&event("fast")).await;
        for _ in 0..3 {
            let rows = first.poll().await;
            first.settle(&sent(&rows)).await;
        }
        outbox.store.release(&first.relay, &first.held, &first.position).await.unwrap();
        let mut second;
        if commit_before_takeover {
            open.commit().await.unwrap();
            second = outbox.owner().await;
        } else {
            second = outbox.owner().await;
            assert!(second.poll().await.is_empty());
            open.commit().await.unwrap();
        }
        assert_eq!(sequences(&second.poll().await), [low]);
    }
}

/// The mark of the last renewal is enough when the relay died.
pub async fn a_late_commit_survives_the_death_of_the_owner(subject: &Subject) {
    if !subject.late_commits {
        return;
    }
    let outbox = subject.outbox().await;
    let mut first = outbox.owner_for(SHORT).await;
    let mut open = outbox.begin().await;
    let low = outbox.enqueue_in(&mut open, &[event("slow")]).await[0].sequence;
    outbox.enqueue_one(&event("fast")).await;
    let rows = first.poll().await;
    first.settle(&sent(&rows)).await;
    outbox.store.renew(&first.relay, &first.held, &first.position).await.unwrap();
    outbox.all_leases_expired().await;
    let mut second = outbox.owner().await;
    open.commit().await.unwrap();
    assert_eq!(sequences(&second.poll().await), [low]);
}

/// An outbox that nobody has read yet may have commits in any order.
pub async fn the_first_owner_finds_what_was_open_when_it_came(subject: &Subject) {
    if !subject.late_commits {
        return;
    }
    let outbox = subject.outbox().await;
    let mut open = outbox.begin().await;
    let low = outbox.enqueue_in(&mut open, &[event("slow")]).await[0].sequence;
    let high = outbox.enqueue_one(&event("fast")).await.sequence;
    let mut owner = outbox.owner().await;
    assert_eq!(sequences(&owner.poll().await), [high]);
    open.commit().await.unwrap();
    assert_eq!(sequences(&owner.poll().await), [low]);
}

/// Writers that commit and roll back in any order while a relay polls and settles lose nothing.
pub async fn a_reader_among_many_writers_finds_everything(subject: &Subject) {
    let outbox = subject.outbox().await;
    let mut owner = outbox.owner().await;
    // Small pages end between the events of a transaction, and between those of two.
    owner.page_size = 3;
    let writers = join_all((0..6).map(async |writer| {
        let mut random = fastrand::Rng::with_seed(writer);
        let mut committed = BTreeSet::new();
        for _ in 0..25 {
            let mut transaction = outbox.begin().await;
            let mut taken = Vec::new();
            for _ in 0..random.u8(1..4) {
                let enqueued = outbox.enqueue_in(&mut transaction, &[event(random.u8(..))]).await;
                taken.push(enqueued[0].sequence);
            }
            if random.u8(..5) == 0 {
                transaction.rollback().await.unwrap();
            } else {
                transaction.commit().await.unwrap();
                committed.extend(taken);
            }
        }
        committed
    }));
    let done = Cell::new(false);
    let writers = async {
        let committed = writers.await;
        done.set(true);
        committed
    };
    let reader = async {
        let mut found = BTreeSet::new();
        loop {
            let last = done.get();
            let rows = owner.poll().await;
            owner.settle(&sent(&rows)).await;
            found.extend(sequences(&rows));
            if last {
                return found;
            }
        }
    };
    let (committed, found) = join(writers, reader).await;
    let committed: BTreeSet<i64> = committed.into_iter().flatten().collect();
    let missed: Vec<_> = committed.difference(&found).collect();
    assert!(missed.is_empty(), "{missed:?} were committed and not found");
    assert_eq!(found, committed);
}
