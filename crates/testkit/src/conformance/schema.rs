//! Making the tables, and knowing whether they fit.

use futures_util::future::join_all;
use posthaste_core::ErrorKind;

use super::{
    Edit, Subject,
    relays::{event, refusal, sequences},
};

/// A second migration applies nothing and loses nothing.
pub async fn migrating_again_changes_nothing(subject: &Subject) {
    let outbox = subject.unmigrated();
    let first = outbox.store.migrate(Some(outbox.shards)).await.unwrap();
    assert!(!first.is_empty(), "a fresh outbox needs a migration");
    let event = event(1);
    outbox.enqueue_one(&event).await;
    for shards in [Some(outbox.shards), None] {
        let again = outbox.store.migrate(shards).await.unwrap();
        assert!(again.is_empty(), "{again:?} was applied again");
    }
    assert_eq!(outbox.store.check().await.unwrap(), outbox.shards);
    outbox.record(event.id()).await;
}

/// Four processes that start at once all succeed, and each version is applied by one of them.
pub async fn processes_that_start_at_once_can_all_migrate(subject: &Subject) {
    let outbox = subject.unmigrated();
    let stores: Vec<_> = (0..4).map(|_| subject.store(&outbox.name)).collect();
    let outcomes = join_all(stores.iter().map(|store| store.migrate(Some(subject.shards)))).await;
    let mut applied: Vec<i32> = outcomes.into_iter().flat_map(|outcome| outcome.unwrap()).collect();
    let all = applied.len();
    applied.sort_unstable();
    applied.dedup();
    assert_eq!(applied.len(), all, "a version was applied twice");
    for store in &stores {
        assert_eq!(store.check().await.unwrap(), subject.shards);
    }
    let shards = outbox.store.shards().await.unwrap();
    assert_eq!(shards.len(), usize::from(subject.shards));
}

/// Every shard has its row from the start, free and at the beginning.
pub async fn a_fresh_outbox_has_all_its_shards_and_they_are_free(subject: &Subject) {
    let outbox = subject.outbox().await;
    let shards = outbox.store.shards().await.unwrap();
    assert_eq!(shards.iter().map(|shard| shard.shard).collect::<Vec<_>>(), outbox.all_shards());
    assert!(shards.iter().all(|shard| shard.locked_by.is_none() && shard.mark == 0));
}

/// `None` makes an outbox with the database's default.
pub async fn the_number_of_shards_has_a_default(subject: &Subject) {
    let outbox = subject.unmigrated();
    outbox.store.migrate(None).await.unwrap();
    let shards = outbox.store.check().await.unwrap();
    assert!((1..=1024).contains(&shards), "{shards} shards");
    assert_eq!(outbox.store.shards().await.unwrap().len(), usize::from(shards));
}

/// Without tables there is nothing to check, and the message says what to do.
pub async fn check_refuses_an_outbox_that_was_never_migrated(subject: &Subject) {
    let outbox = subject.unmigrated();
    let error = refusal(outbox.store.check().await);
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    let message = error.to_string();
    assert!(message.contains(&outbox.name.qualified()), "{message}");
    assert!(message.contains("migrate"), "{message}");
}

/// Tables of an older version are refused with both versions and what to do.
pub async fn check_refuses_an_older_version(subject: &Subject) {
    let outbox = subject.outbox().await;
    outbox.edit(Edit::SetVersion(0)).await;
    let error = refusal(outbox.store.check().await);
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    let message = error.to_string();
    assert!(message.contains("version 0") && message.contains("migrate"), "{message}");
}

/// The tables of a build from before the first release, as far as they tell which one it was.
const BEFORE_THE_FIRST_RELEASE: [&str; 3] = [
    "create table {meta} (
        id int not null primary key check (id = 1),
        version int not null,
        shards int not null,
        purge_position bigint not null default 0
    )",
    "insert into {meta} (id, version, shards) values (1, 6, 8)",
    "create table {events} (sequence bigint not null primary key, event_type varchar(128) not null)",
];

/// An outbox of a build whose tables were others is neither used nor changed, and the remedy is said.
pub async fn an_outbox_of_an_earlier_build_is_refused_and_left_alone(subject: &Subject) {
    let outbox = subject.unmigrated();
    for sql in BEFORE_THE_FIRST_RELEASE {
        outbox.sql(sql).await;
    }
    for version in [6, 1] {
        outbox.sql(&format!("update {{meta}} set version = {version}")).await;
        for refused in [
            refusal(outbox.store.check().await),
            refusal(outbox.store.migrate(None).await),
            refusal(outbox.store.migrate(Some(outbox.shards)).await),
        ] {
            assert_eq!(refused.kind(), ErrorKind::Schema, "{refused}");
            let message = refused.to_string();
            assert!(message.contains("made by another build"), "{message}");
            assert!(message.contains("drop the outbox's tables"), "{message}");
        }
        let findings = outbox.store.diagnose().await.unwrap();
        assert_eq!(findings.len(), 1, "{findings:?}");
        let mend = findings[0].mend.as_deref().unwrap();
        let drop = format!("drop table if exists {}", outbox.name.qualified());
        assert!(mend.contains(&drop), "{mend}");
        assert!(mend.ends_with("then posthaste migrate"), "{mend}");
        let kept = format!("select 1 from {{meta}} where version = {version} and shards = 8");
        assert_eq!(outbox.sql(&kept).await, 1);
    }
    outbox.database.drop_outbox(&outbox.name).await.unwrap();
    outbox.store.migrate(Some(outbox.shards)).await.unwrap();
    outbox.store.check().await.unwrap();
}

/// The same version is not enough: until the first release a change of the tables keeps the number.
pub async fn tables_made_by_other_statements_are_refused(subject: &Subject) {
    let outbox = subject.outbox().await;
    outbox.sql("update {meta} set checksum = '0123456789abcdef'").await;
    for refused in [refusal(outbox.store.check().await), refusal(outbox.store.migrate(None).await)]
    {
        assert_eq!(refused.kind(), ErrorKind::Schema, "{refused}");
        let cause = std::error::Error::source(&refused).unwrap().to_string();
        assert!(cause.contains("0123456789abcdef"), "{refused}: {cause}");
    }
}

/// Tables of a newer version are refused: this binary does not know what they mean.
pub async fn check_refuses_a_newer_version(subject: &Subject) {
    let outbox = subject.outbox().await;
    outbox.edit(Edit::SetVersion(1000)).await;
    let error = refusal(outbox.store.check().await);
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    let message = error.to_string();
    assert!(message.contains("version 1000") && message.contains("newer"), "{message}");
}

/// An old binary that migrates a newer outbox is refused and changes nothing.
pub async fn migrate_refuses_a_newer_version_and_changes_nothing(subject: &Subject) {
    let outbox = subject.outbox().await;
    outbox.edit(Edit::SetVersion(1000)).await;
    let error = refusal(outbox.store.migrate(None).await);
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    let message = refusal(outbox.store.check().await).to_string();
    assert!(message.contains("version 1000"), "{message}");
}

/// The number of shards is fixed with the first migration and has a range.
pub async fn another_number_of_shards_is_refused(subject: &Subject) {
    let outbox = subject.outbox().await;
    for shards in [outbox.shards + 1, 0, 1025] {
        let error = refusal(outbox.store.migrate(Some(shards)).await);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{shards} shards: {error}");
    }
    assert_eq!(outbox.store.check().await.unwrap(), outbox.shards);
    let fresh = subject.unmigrated();
    for shards in [0, 1025] {
        let error = refusal(fresh.store.migrate(Some(shards)).await);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{shards} shards: {error}");
        assert!(fresh.store.migrations_sql(Some(shards)).is_err(), "{shards} shards were printed");
    }
}

/// Teams who run their own migrations get the same outbox.
pub async fn printed_sql_makes_the_same_outbox(subject: &Subject) {
    let outbox = subject.unmigrated();
    let sql = outbox.store.migrations_sql(Some(outbox.shards)).unwrap();
    outbox.sql(&sql).await;
    assert_eq!(outbox.store.check().await.unwrap(), outbox.shards);
    let applied = outbox.store.migrate(None).await.unwrap();
    assert!(applied.is_empty(), "the printed SQL left out {applied:?}");

    let enqueued = outbox.enqueue(&[event(1), event(2)]).await;
    let owner = outbox.owner().await;
    let expected: Vec<i64> = enqueued.iter().map(|one| one.sequence).collect();
    assert_eq!(sequences(&owner.read_all().await), expected);
}

/// Outboxes share a database, not their events.
pub async fn two_outboxes_in_one_database_do_not_mix(subject: &Subject) {
    let (ours, theirs) = (subject.outbox().await, subject.outbox().await);
    let event = event(1);
    ours.enqueue_one(&event).await;
    assert!(theirs.store.event(event.id()).await.unwrap().is_none());
    assert_eq!(ours.owner().await.read_all().await.len(), 1);
    assert_eq!(theirs.owner().await.read_all().await.len(), 0);
}
