//! A call of another driver that fails has written nothing, whatever is done with its transaction.

use posthaste::{
    ErrorKind, Event, PostgresOutbox,
    tokio_postgres::{self, NoTls},
};

use crate::{
    adapter::Route,
    support::{TestDatabase, event},
};

#[tokio::test]
async fn a_call_that_fails_leaves_none_of_its_events() {
    let on = sqlx::Postgres::fixture().await;
    let (mut client, connection) =
        tokio_postgres::connect(&Route::Direct.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let known = event("known", 1);
    on.enqueue(vec![known.clone()]).await;
    let other = Event::builder("Other").id(known.id()).raw_json("{}").build().unwrap();
    let outbox = PostgresOutbox::new(on.table());
    let mut tx = client.transaction().await.unwrap();
    let failed = outbox.enqueue_all(&mut tx, vec![event("new", 1), other]).await.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Conflict, "{failed}");
    // The application passes over the error.
    let _ = tx.commit().await;
    assert_eq!(on.number("select count(*) from {events}").await, 1);
    on.clean().await;
}
