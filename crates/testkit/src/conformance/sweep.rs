//! Going back for rows that a claim passed over.

use super::{
    Subject,
    relays::{event, events, sent, sequences},
};

/// A claimer whose cursor has passed rows that were given back finds them by its sweep, also when
/// earlier sweeps found nothing.
pub async fn the_sweep_finds_what_was_given_back_behind_the_cursor(subject: &Subject) {
    let outbox = subject.outbox().await;
    outbox.enqueue(&events(6)).await;
    let (mut stopping, mut sweeping) = (outbox.claimer("stopping"), outbox.claimer("sweeping"));
    let given_back = stopping.claim(3).await;
    let done = sweeping.claim(3).await;
    assert_eq!(done.len(), 3);
    sweeping.settle(&sent(&done)).await;
    for _ in 0..3 {
        assert!(sweeping.claim_late(10).await.is_empty());
        assert!(sweeping.claim(10).await.is_empty());
    }
    outbox.store.unclaim(&stopping.lease, &sequences(&given_back)).await.unwrap();
    assert_eq!(sequences(&sweeping.claim_late(10).await), sequences(&given_back));
}

/// The sweep takes no more than it was asked for, and leaves the rest to the next one.
pub async fn the_sweep_keeps_to_its_limit(subject: &Subject) {
    let outbox = subject.outbox().await;
    outbox.enqueue(&events(7)).await;
    let (mut stopping, mut sweeping) = (outbox.claimer("stopping"), outbox.claimer("sweeping"));
    let given_back = stopping.claim(6).await;
    assert_eq!(sweeping.claim(1).await.len(), 1);
    outbox.store.unclaim(&stopping.lease, &sequences(&given_back)).await.unwrap();
    let mut found = Vec::new();
    for _ in 0..4 {
        let rows = sweeping.claim_late(2).await;
        assert!(rows.len() <= 2, "{} rows", rows.len());
        found.extend(sequences(&rows));
    }
    found.sort_unstable();
    assert_eq!(found, sequences(&given_back));
}

/// A row that was committed behind the cursor is found by the sweep.
pub async fn the_sweep_finds_late_commits(subject: &Subject) {
    if !subject.late_commits {
        return;
    }
    let outbox = subject.outbox().await;
    let mut claimer = outbox.claimer("one");
    let mut open = outbox.begin().await;
    let low = outbox.enqueue_in(&mut open, &[event("slow")]).await[0].sequence;
    for round in 0..5 {
        let committed = outbox.enqueue_one(&event(round)).await.sequence;
        let rows = claimer.claim(10).await;
        assert_eq!(sequences(&rows), [committed], "an open transaction stalls others");
        claimer.settle(&sent(&rows)).await;
        assert!(claimer.claim_late(10).await.is_empty());
    }
    open.commit().await.unwrap();
    let late = claimer.claim_late(10).await;
    assert_eq!(sequences(&late), [low], "the late commit was skipped");
    claimer.settle(&sent(&late)).await;
    assert!(claimer.claim_late(10).await.is_empty());
}

/// A relay that starts anew finds what was committed late before it came.
pub async fn a_new_claimer_finds_everything(subject: &Subject) {
    let outbox = subject.outbox().await;
    let mut first = outbox.claimer("first");
    let mut expected = Vec::new();
    if subject.late_commits {
        let mut open = outbox.begin().await;
        expected.push(outbox.enqueue_in(&mut open, &[event("slow")]).await[0].sequence);
        outbox.enqueue_one(&event("fast")).await;
        let rows = first.claim(10).await;
        first.settle(&sent(&rows)).await;
        first.claim_late(10).await;
        open.commit().await.unwrap();
    }
    expected.push(outbox.enqueue_one(&event("new")).await.sequence);
    let mut second = outbox.claimer("second");
    let mut found = sequences(&second.claim(10).await);
    found.extend(sequences(&second.claim_late(10).await));
    found.sort_unstable();
    assert_eq!(found, expected);
}
