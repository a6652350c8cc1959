//! Reading by sequence right after the commit, with what must come before.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use posthaste_core::{Event, store::Position};

use super::{
    Subject,
    relays::{dead, event, events, held, retry, sent},
};

const HOUR: Duration = Duration::from_hours(1);

/// The hot path gets fresh rows with the event before them, if that is not settled.
pub async fn a_hot_row_knows_the_unsettled_event_before_it(subject: &Subject) {
    let outbox = subject.outbox().await;
    let first = outbox.enqueue_one(&event("key")).await.sequence;
    let second = outbox.enqueue_one(&event("key")).await.sequence;
    let alone = outbox.enqueue_one(&event("alone")).await.sequence;
    let none = || Some(Vec::new());
    let hot = async |wanted: &[i64]| {
        let rows = outbox.store.read_hot(wanted, &Position::default()).await.unwrap();
        let mut rows: Vec<_> =
            rows.into_iter().map(|hot| (hot.row.sequence, hot.previous)).collect();
        rows.sort_unstable();
        rows
    };
    assert_eq!(
        hot(&[first, second, alone]).await,
        [(first, none()), (second, Some(vec![first])), (alone, none())]
    );

    // A previous event that waits is not settled; one that is sent, dead or discarded is.
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    owner.settle(&[retry(&rows[0], 1, HOUR)]).await;
    assert_eq!(hot(&[first, second]).await, [(second, Some(vec![first]))]);
    owner.settle(&[dead(&rows[0])]).await;
    assert_eq!(hot(&[second]).await, [(second, none())]);
    owner.settle(&sent(&rows[1..2])).await;
    let third = outbox.enqueue_one(&event("key")).await.sequence;
    assert_eq!(hot(&[first, second, third]).await, [(third, none())]);
}

/// The hot path gets nothing of what waits, is settled, was rolled back or never was.
pub async fn a_hot_read_leaves_out_what_is_not_fresh(subject: &Subject) {
    let outbox = subject.outbox().await;
    let mut transaction = outbox.begin().await;
    let gone = outbox.enqueue_in(&mut transaction, &[event("gone")]).await[0].sequence;
    transaction.rollback().await.unwrap();
    let taken = outbox.enqueue(&events(3)).await;
    let at = Timestamp::now().checked_add(SignedDuration::from_hours(1)).unwrap();
    let later = Event::builder("Happened").raw_json("{}").deliver_at(at).build().unwrap();
    let later = outbox.enqueue_one(&later).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    owner.settle(&[sent(&rows[..1]).remove(0), held(&rows[1])]).await;
    // A rolled back sequence may be given again where the database reuses it.
    let mut wanted: Vec<i64> = taken.iter().map(|one| one.sequence).collect();
    wanted.extend([later.sequence, i64::MAX]);
    if !wanted.contains(&gone) {
        wanted.push(gone);
    }
    let found = outbox.store.read_hot(&wanted, &Position::default()).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].row.sequence, taken[2].sequence);
    assert!(outbox.store.read_hot(&[], &Position::default()).await.unwrap().is_empty());
}

/// Tenants and unordered events do not wait for each other; for a key of the application's the
/// store may say that it cannot tell.
pub async fn a_hot_row_looks_only_at_its_own_key(subject: &Subject) {
    let outbox = subject.outbox().await;
    let of = |tenant: Option<&str>| {
        let event = Event::builder("Happened").aggregate("Thing", "same").raw_json("{}");
        match tenant {
            Some(tenant) => event.tenant(tenant),
            None => event,
        }
    };
    let build = [
        of(None),
        of(Some("a")),
        of(Some("b")),
        of(Some("a")).aggregate_type("Other"),
        of(None).unordered(),
        of(None).unordered(),
        Event::builder("Happened").raw_json("{}"),
        Event::builder("Happened").raw_json("{}"),
    ];
    let build = build.map(|event| event.build().unwrap());
    let taken: Vec<i64> = outbox.enqueue(&build).await.iter().map(|one| one.sequence).collect();
    let rows = outbox.store.read_hot(&taken, &Position::default()).await.unwrap();
    assert_eq!(rows.len(), taken.len());
    for hot in rows {
        assert_eq!(hot.previous, Some(vec![]), "{:?}", hot.row.content.unwrap().event);
    }

    let keyed = || of(None).ordering_key("mine").build().unwrap();
    let first = outbox.enqueue_one(&keyed()).await.sequence;
    let second = outbox.enqueue_one(&keyed()).await.sequence;
    for (sequence, told) in [(first, vec![]), (second, vec![first])] {
        let rows = outbox.store.read_hot(&[sequence], &Position::default()).await.unwrap();
        let previous = rows[0].previous.as_ref();
        assert!(previous.is_none_or(|known| *known == told), "{previous:?} before {sequence}");
    }
}

/// An event that was enqueued after the commit of an earlier one of its key must not overtake it,
/// although the reader's cursor has passed that one's sequence.
pub async fn a_hot_row_knows_the_late_commit_of_its_key(subject: &Subject) {
    if !subject.late_commits {
        return;
    }
    // Also when the key's history is longer than what a store cares to walk over.
    for delivered in [1, 30] {
        let outbox = subject.outbox().await;
        let mut owner = outbox.owner().await;
        let mut open = outbox.begin().await;
        let late = outbox.enqueue_in(&mut open, &[event("key")]).await[0].sequence;
        // Of the same key, delivered while the first one's transaction is open: they are concurrent.
        let concurrent: Vec<Event> = (0..delivered).map(|_| event("key")).collect();
        outbox.enqueue(&concurrent).await;
        let rows = owner.poll().await;
        owner.settle(&sent(&rows)).await;
        assert!(owner.position.sequence > late, "the cursor has passed it");
        open.commit().await.unwrap();
        let next = outbox.enqueue_one(&event("key")).await.sequence;
        let hot = outbox.store.read_hot(&[next], &owner.position).await.unwrap();
        let previous = hot[0].previous.as_ref();
        assert!(previous.is_none_or(|known| known.contains(&late)), "{previous:?} before {next}");
    }
}
