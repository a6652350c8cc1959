//! A server that refuses MD5, as PostgreSQL under FIPS does, takes events and delivers them.

use std::sync::Arc;

use posthaste::{
    Dialect, Event, Outbox, TableName, key,
    relay::{Config, Relay},
    stores::Tables,
    transports::memory::MemoryTransport,
};
use sqlx::{AssertSqlSafe, PgPool, Postgres, Row};

use crate::servers::{Place, Server, free_address};

#[tokio::test]
async fn postgres_15_needs_no_md5() {
    events_are_written_and_delivered("POSTHASTE_TEST_POSTGRES_SERVER").await;
}

#[tokio::test]
async fn postgres_18_needs_no_md5() {
    events_are_written_and_delivered("POSTHASTE_TEST_POSTGRES_18_SERVER").await;
}

async fn events_are_written_and_delivered(software: &str) {
    const REFUSE: &str = "
        revoke execute on function md5(text), md5(bytea) from public;
        create role app login;
        grant usage, create on schema public to app";
    const EVENTS: i32 = 200;

    let place = Place::new(software);
    let server: Server<Postgres> = place.start("primary", free_address(), &[]).await;
    sqlx::raw_sql(REFUSE).execute(&server.pool).await.unwrap();
    let url = format!("postgres://app@{}/postgres", server.address);
    let pool = PgPool::connect(&url).await.unwrap();
    let refused = sqlx::query("select md5('x')").execute(&pool).await.unwrap_err();
    let code = refused.as_database_error().and_then(|error| error.code().map(String::from));
    assert_eq!(code.as_deref(), Some("42501"), "{refused}");

    let table: TableName = "outbox_event".parse().unwrap();
    let store = Postgres::store(pool.clone(), Tables::new(table.clone()));
    store.migrate(None).await.unwrap();
    let shards = store.check().await.unwrap();
    let outbox = Outbox::new(table);
    let mut tx = outbox.begin(&pool).await.unwrap();
    for n in 0..EVENTS {
        let event = Event::builder("Written").aggregate("Order", n).tenant("acme").raw_json("{}");
        outbox.enqueue(&mut tx, event.build().unwrap()).await.unwrap();
    }
    tx.commit().await.unwrap();
    // And by writers that know nothing of all this.
    for columns in ["'Order', n, null", "'Order', null, null", "'Order', n, 'key ü ' || n"] {
        let sql = format!(
            "insert into outbox_event (event_id, event_type, payload, aggregate_type, aggregate_id,
                 ordering_key)
             select gen_random_uuid(), 'ByHand', '', {columns} from generate_series(1, {EVENTS}) n"
        );
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&pool).await.unwrap();
    }
    let all = 4 * EVENTS as usize;

    let to = MemoryTransport::new();
    let relay = Relay::new(store, Arc::new(to.clone()), Config::default()).unwrap();
    assert_eq!(relay.relay_once().await.unwrap().delivered, all as u64);
    let delivered = to.delivered();
    assert_eq!(delivered.len(), all);
    let rows = sqlx::query("select event_id, shard from outbox_event").fetch_all(&pool).await;
    let rows = rows.unwrap();
    for envelope in delivered {
        let event = &envelope.event;
        let row = rows.iter().find(|row| row.get::<uuid::Uuid, _>(0) == event.id()).unwrap();
        let expected = key::shard_of(event.ordering_key().as_deref(), event.id(), shards);
        assert_eq!(row.get::<i32, _>(1), i32::from(expected), "{:?}", event.ordering_key());
    }
    let used: std::collections::HashSet<i32> = rows.iter().map(|row| row.get(1)).collect();
    assert!(used.len() > usize::from(shards) / 2, "{} shards of {shards} are used", used.len());
    pool.close().await;
}
