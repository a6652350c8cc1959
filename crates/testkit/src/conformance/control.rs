//! Pauses, and who changed what.

use posthaste_core::{
    Key,
    store::{Change, Pausable},
};

use super::Subject;

fn change(action: &str) -> Change {
    Change { by: "ada".into(), action: action.into(), subject: "tenant=ü".into() }
}

/// A pause stays until it is lifted, with who set it, and setting it again changes nothing.
pub async fn a_pause_is_kept_until_it_is_lifted(subject: &Subject) {
    let outbox = subject.outbox().await;
    assert!(outbox.store.pauses().await.unwrap().is_empty());
    let all = [
        Pausable::Outbox,
        Pausable::Relay("r1".into()),
        Pausable::Destination("nats".into()),
        Pausable::Key(Key(-7)),
    ];
    for what in &all {
        assert!(outbox.store.pause(what, "ada", Some("broker moves")).await.unwrap());
        assert!(!outbox.store.pause(what, "bob", None).await.unwrap(), "{what} paused twice");
    }
    let pauses = outbox.store.pauses().await.unwrap();
    let mut found: Vec<_> = pauses.iter().map(|pause| pause.what.to_string()).collect();
    let mut expected: Vec<_> = all.iter().map(Pausable::to_string).collect();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
    for pause in &pauses {
        assert_eq!((pause.by.as_str(), pause.note.as_deref()), ("ada", Some("broker moves")));
    }
    for what in &all {
        assert!(outbox.store.resume(what).await.unwrap());
        assert!(!outbox.store.resume(what).await.unwrap(), "{what} resumed twice");
    }
    assert!(outbox.store.pauses().await.unwrap().is_empty());
}

/// A row that a newer version, or a hand, has written hides no other.
pub async fn a_pause_of_a_kind_that_is_not_known_is_left_out(subject: &Subject) {
    let outbox = subject.outbox().await;
    for what in [Pausable::Relay("r1".into()), Pausable::Destination("nats".into())] {
        assert!(outbox.store.pause(&what, "ada", None).await.unwrap());
    }
    outbox.sql("update {controls} set kind = 'moon' where kind = 'relay'").await;
    let pauses = outbox.store.pauses().await.unwrap();
    let found: Vec<_> = pauses.into_iter().map(|pause| pause.what).collect();
    assert_eq!(found, [Pausable::Destination("nats".into())]);
}

/// A change is on record before it is made, and its end is written once.
pub async fn a_change_is_on_record_before_it_is_made(subject: &Subject) {
    let outbox = subject.outbox().await;
    let first = outbox.store.audit_begin(&change("dead.replay")).await.unwrap();
    let running = outbox.store.audits(None, 10).await.unwrap();
    assert_eq!((running[0].id, running[0].ended_at), (first, None));
    assert_eq!(running[0].change, change("dead.replay"));
    // The server knows who has logged in.
    let account = running[0].account.as_deref().map(|account| account.contains('@'));
    assert_eq!(account, subject.database.has_accounts().then_some(true));

    outbox.store.audit_end(first, 3, None).await.unwrap();
    outbox.store.audit_end(first, 9, Some("later")).await.unwrap();
    let ended = outbox.store.audits(None, 10).await.unwrap();
    assert_eq!((ended[0].affected, ended[0].error.as_deref()), (3, None));
    assert!(ended[0].ended_at.is_some_and(|end| end >= ended[0].at));
}

/// The audit comes newest first, in pages, and long texts are cut and not refused.
pub async fn the_audit_comes_newest_first_and_in_pages(subject: &Subject) {
    let outbox = subject.outbox().await;
    let mut ids = Vec::new();
    for number in 0..5 {
        ids.push(outbox.store.audit_begin(&change(&format!("a{number}"))).await.unwrap());
    }
    ids.reverse();
    let page = outbox.store.audits(None, 3).await.unwrap();
    let rest = outbox.store.audits(Some(page[2].id), 3).await.unwrap();
    let found: Vec<i64> = page.iter().chain(&rest).map(|record| record.id).collect();
    assert_eq!(found, ids);

    let long = Change { by: "ü".repeat(300), action: "a".repeat(60), subject: "ü".repeat(5_000) };
    let id = outbox.store.audit_begin(&long).await.unwrap();
    outbox.store.audit_end(id, 0, Some(&"e".repeat(5_000))).await.unwrap();
    let record = outbox.store.audits(None, 1).await.unwrap().remove(0);
    let lengths = [record.change.by, record.change.action, record.change.subject]
        .map(|text| text.chars().count());
    assert_eq!(lengths, [200, 50, 4_000]);
    assert_eq!(record.error.unwrap().len(), 4_000);
}
