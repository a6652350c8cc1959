//! Saying what is wrong with the database.

use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use posthaste_core::store::{Finding, Level};

use super::{Subject, outbox::Outbox, relays::event};

async fn finding(outbox: &Outbox, check: &str) -> Finding {
    let findings = outbox.store.diagnose().await.unwrap();
    let found = findings.into_iter().find(|finding| finding.check == check);
    found.unwrap_or_else(|| panic!("{check} was not checked"))
}

/// The database tells its time.
pub async fn the_database_tells_its_time(subject: &Subject) {
    let outbox = subject.outbox().await;
    let first = outbox.store.now().await.unwrap();
    let second = outbox.store.now().await.unwrap();
    assert!(first <= second, "{first} and then {second}");
    let skew = Timestamp::now().duration_since(second).abs();
    assert!(skew < SignedDuration::from_mins(1), "{skew:?} away from ours, on one machine");
}

/// A sound outbox has nothing wrong with it.
pub async fn a_sound_outbox_has_nothing_wrong_with_it(subject: &Subject) {
    let outbox = subject.outbox().await;
    let findings = outbox.store.diagnose().await.unwrap();
    for finding in &findings {
        assert!(finding.level < Level::Problem, "{finding:?}");
        assert!(!finding.text.contains("could not be checked"), "{finding:?}");
    }
    for check in ["schema", "indexes"] {
        assert_eq!(finding(&outbox, check).await.level, Level::Ok);
    }
}

/// Without tables there is one thing to say, and how to mend it.
pub async fn an_outbox_that_was_never_migrated_is_one_problem(subject: &Subject) {
    let outbox = subject.unmigrated();
    let findings = outbox.store.diagnose().await.unwrap();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!((findings[0].check.as_str(), findings[0].level), ("schema", Level::Problem));
    assert!(findings[0].mend.as_ref().unwrap().contains("migrate"));
}

/// A missing index is named, and the statement that is given makes it.
pub async fn a_missing_index_is_named_with_the_statement_that_makes_it(subject: &Subject) {
    let outbox = subject.outbox().await;
    let drop = match outbox.plain_sql().dialect() {
        "MySQL" => "drop index {bare}_dead_idx on {events}",
        _ => "drop index {bare}_dead_idx",
    };
    outbox.sql(drop).await;
    let missing = finding(&outbox, "indexes").await;
    assert_eq!(missing.level, Level::Problem);
    let index = outbox.plain_sql().fill(&outbox.name, "{bare}_dead_idx");
    assert!(missing.text.contains(&index), "{}", missing.text);
    assert!(!missing.text.contains("_lane_idx"), "{}", missing.text);
    // Concurrently it would wait for every transaction of the server, those of other cases too.
    outbox.sql(&missing.mend.unwrap().replace("concurrently ", "")).await;
    assert_eq!(finding(&outbox, "indexes").await.level, Level::Ok);
}

/// A transaction that has written is seen as long as it is open.
pub async fn a_transaction_that_has_written_is_seen_until_it_ends(subject: &Subject) {
    let outbox = subject.outbox().await;
    let mut open = outbox.begin().await;
    outbox.enqueue_in(&mut open, &[event(1)]).await;
    // MySQL's list is as old as the last look at it, by whomever, if that was a moment ago.
    let deadline = Instant::now() + Duration::from_secs(30);
    let seen = loop {
        let seen = outbox.store.open_transactions(100).await.unwrap();
        if !seen.is_empty() {
            break seen;
        }
        assert!(Instant::now() < deadline, "nothing is seen of it");
        tokio::time::sleep(Duration::from_millis(150)).await;
    };
    assert!(seen.iter().all(|transaction| !transaction.who.is_empty()));
    assert_eq!(outbox.store.open_transactions(1).await.unwrap().len(), 1, "the limit is kept");
    open.rollback().await.unwrap();
    // Others may write to the same server meanwhile.
    if !subject.concurrent_writers {
        assert!(outbox.store.open_transactions(100).await.unwrap().is_empty());
    }
}
