//! What only MySQL makes of an enqueue.

use std::time::Duration;

use posthaste_core::{ErrorKind, Event};
use posthaste_stores::Dialect;
use sqlx::{Connection, MySql, MySqlConnection};
use tokio::time::timeout;

use crate::{MYSQL, Outbox, event, mariadb_url, pool};

/// A transaction that sees what others have not committed takes none of it for there.
#[tokio::test]
async fn under_read_uncommitted_an_event_of_a_transaction_that_rolls_back_is_written() {
    const LEVEL: &str = "set session transaction isolation level read uncommitted";

    let outbox = Outbox::new().await;
    let (committed, open) = (event("committed"), event("open"));
    let first = outbox.commit(std::slice::from_ref(&committed)).await;
    for rolls_back in [true, false] {
        let mut other = outbox.pool.begin().await.unwrap();
        outbox.enqueue(&mut other, std::slice::from_ref(&open)).await;
        let mut connection = outbox.pool.acquire().await.unwrap();
        outbox.execute(&mut connection, LEVEL).await;
        let mut transaction = connection.begin().await.unwrap();
        let events = [event("new"), committed.clone(), open.clone()];
        let enqueue = MySql::enqueue(&mut transaction, &outbox.tables, &events);
        let mut enqueue = Box::pin(enqueue);
        // It waits for the other transaction, as an insert of the same id does. Said at once, it is wrong.
        let early = timeout(Duration::from_millis(300), &mut enqueue).await;
        assert!(early.is_err(), "it did not wait: {early:?}");
        if rolls_back {
            other.rollback().await.unwrap();
        } else {
            other.commit().await.unwrap();
        }
        let enqueued = enqueue.await.unwrap();
        assert_eq!((enqueued[1].sequence, enqueued[1].duplicate), (first[0], true));
        assert_eq!(enqueued[2].duplicate, !rolls_back, "the other one rolls back: {rolls_back}");
        assert!(!rolls_back || enqueued[0].sequence < enqueued[2].sequence, "in their order");
        transaction.rollback().await.unwrap();
    }
    outbox.drop().await;
}

/// As many as one call takes, with headers that together are larger than a packet of the server's.
#[tokio::test]
async fn headers_count_for_the_size_of_a_statement() {
    let outbox = Outbox::new().await;
    let large = |n: usize| {
        let builder = Event::builder("Happened").aggregate("Thing", n);
        builder.header("h", "x".repeat(20_000)).raw_json("{}").build().unwrap()
    };
    let events: Vec<Event> = (0..1_000).map(large).collect();
    assert_eq!(outbox.commit(&events).await.len(), 1_000);
    outbox.drop().await;
}

/// The server closes the connection, and calls it a failure of that: but it would do so each time. Its
/// answer may be overtaken by the end of the connection; then nobody knows why it ended.
#[tokio::test]
async fn an_event_that_is_larger_than_a_packet_is_invalid() {
    let outbox = Outbox::new().await;
    let huge =
        Event::builder("Happened").bytes("text/plain", vec![b'x'; 17 << 20]).build().unwrap();
    for attempt in 1.. {
        let mut transaction = outbox.pool.begin().await.unwrap();
        let events = std::slice::from_ref(&huge);
        let refused = MySql::enqueue(&mut transaction, &outbox.tables, events).await.unwrap_err();
        let source = std::error::Error::source(&refused).unwrap();
        if let Some(sqlx::Error::Io(_)) = source.downcast_ref() {
            assert!(attempt < 100, "the server's answer never came: {refused:?}");
            continue;
        }
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused:?}");
        break;
    }
    outbox.drop().await;
}

/// A value that does not fit will not fit later.
#[tokio::test]
async fn a_row_that_does_not_fit_is_no_reason_to_try_again() {
    let outbox = Outbox::new().await;
    let mut connection: sqlx::pool::PoolConnection<MySql> = outbox.pool.acquire().await.unwrap();
    // As a migration by hand can leave it: a column of somebody else's without a default.
    outbox.execute(&mut connection, "alter table {events} add column mine int not null").await;
    let connection: &mut MySqlConnection = &mut connection;
    let mut transaction = connection.begin().await.unwrap();
    let refused =
        MySql::enqueue(&mut transaction, &outbox.tables, &[event("k")]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Database, "{refused:?}");
    // Or its lock on the table would keep that from being dropped.
    transaction.rollback().await.unwrap();
    outbox.drop().await;
}

/// MySQL puts it in the class of what passes; MariaDB does not.
#[tokio::test]
async fn a_value_that_does_not_fit_is_no_reason_to_try_again() {
    let mysql = std::env::var(MYSQL).ok();
    for url in [Some(mariadb_url()), mysql].into_iter().flatten() {
        let outbox = Outbox::over(pool(&url, 2).await).await;
        let mut connection = outbox.pool.acquire().await.unwrap();
        let numbers = "alter table {events} modify column content_type int not null";
        outbox.execute(&mut connection, numbers).await;
        let mut transaction = connection.begin().await.unwrap();
        let events = [event("k")];
        let refused = MySql::enqueue(&mut transaction, &outbox.tables, &events).await.unwrap_err();
        assert!(format!("{refused:?}").contains("1366"), "{refused:?}");
        assert_eq!(refused.kind(), ErrorKind::Database, "{refused:?}");
        transaction.rollback().await.unwrap();
        outbox.drop().await;
    }
}
