//! After the commit of another driver: two ways to tell a relay that would not look for an hour.

use std::time::Duration;

use posthaste::{
    PostgresOutbox,
    relay::{Config, Relay},
    tokio_postgres::{self, Client, NoTls},
    transports::memory::MemoryTransport,
};

use crate::{
    adapter::Route,
    support::{Fixture, TestDatabase, event, quick, soon, until},
};

/// A relay that has found nothing and sleeps for an hour.
async fn sleeping(on: &Fixture<sqlx::Postgres>, transport: &MemoryTransport) -> Relay {
    let hour = Duration::from_hours(1);
    let config = Config { busy_interval: hour, idle_interval: hour, ..quick() };
    let relay = on.relay(transport.clone(), config);
    relay.start().await.unwrap();
    until(&relay, "its shards", |stats| stats.idle && stats.shards_owned == stats.shards).await;
    relay
}

async fn connect() -> Client {
    let (client, connection) = tokio_postgres::connect(&Route::Direct.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn commit(client: &mut Client, outbox: &PostgresOutbox) {
    let mut tx = client.transaction().await.unwrap();
    outbox.enqueue(&mut tx, event("1", 1)).await.unwrap();
    tx.commit().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn wake_makes_the_relay_in_the_process_look_at_once() {
    let on = sqlx::Postgres::fixture().await;
    let transport = MemoryTransport::new();
    let relay = sleeping(&on, &transport).await;
    let outbox = PostgresOutbox::new(on.table()).with_hot_path(relay.hot_path());
    commit(&mut connect().await, &outbox).await;
    outbox.wake();
    soon("the delivery", transport.wait_for(1)).await;
    relay.stop().await.unwrap();
    on.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notification_on_the_channel_wakes_relays_elsewhere() {
    let on = sqlx::Postgres::fixture().await;
    let transport = MemoryTransport::new();
    let relay = sleeping(&on, &transport).await;
    let outbox = PostgresOutbox::new(on.table());
    let mut client = connect().await;
    commit(&mut client, &outbox).await;
    let channel = outbox.table().channel();
    client.execute("select pg_notify($1, '')", &[&channel]).await.unwrap();
    soon("the delivery", transport.wait_for(1)).await;
    relay.stop().await.unwrap();
    on.clean().await;
}
