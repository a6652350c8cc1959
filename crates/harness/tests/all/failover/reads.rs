//! Reads that have no position to compare: what waits, what is held, which lanes are blocked.

use std::{sync::Arc, time::Duration};

use posthaste::{
    ErrorKind, Key,
    store::{LaneKey, Limit, Relay, RelayOrdering, Store},
};
use posthaste_testkit::tables;
use sqlx::{MySql, Pool};
use uuid::Uuid;

use super::forwarder::Forwarder;
use crate::servers::{Engine, Place, Server, free_address, twin};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_of_another_mariadb_are_refused_until_shards_are_taken_there() {
    let place = Place::new("POSTHASTE_TEST_MARIADB_SERVER");
    let at = free_address();
    let (one, two) = tokio::join!(
        place.start("one", at, &["server-id = 1"]),
        place.start("two", twin(at), &["server-id = 2"])
    );
    refused::<MySql>(&one, &two).await;
}

async fn refused<DB: Engine>(one: &Server<DB>, two: &Server<DB>) {
    let tables = tables::unique("reads");
    for server in [one, two] {
        let store = DB::store(server.pool.clone(), tables.clone());
        store.migrate(None).await.expect("the outbox cannot be made");
    }
    let entrance = Forwarder::to(one.address).await;
    let pool = Pool::<DB>::connect_lazy(&DB::url(entrance.address)).expect("a URL");
    let store = DB::store(pool, tables.clone());
    let relay = Relay {
        name: "relay".to_owned(),
        instance: Uuid::now_v7(),
        ordering: RelayOrdering::PerKey,
        lease: Duration::from_secs(30),
    };
    let shards: Vec<u16> = (0..store.shards().await.expect("shards").len() as u16).collect();
    store.heartbeat(&relay, 0).await.expect("a heartbeat");
    assert_eq!(store.acquire(&relay, &shards).await.expect("leases").len(), shards.len());
    for read in READS {
        assert_eq!(kind(&store, read).await, None, "{read} on the server of the leases");
    }

    entrance.switch(two.address);
    for read in READS {
        let mut told = kind(&store, read).await;
        // On a connection that was cut.
        while told == Some(ErrorKind::Unavailable) {
            told = kind(&store, read).await;
        }
        assert_eq!(told, Some(ErrorKind::Moved), "{read} on another server");
    }
    assert!(!store.acquire(&relay, &shards).await.expect("leases").is_empty());
    for read in READS {
        assert_eq!(kind(&store, read).await, None, "{read} after the shards were taken there");
    }
}

const READS: [&str; 5] = ["due", "held", "blockers", "blocked", "still blocked"];

/// What this read fails with.
async fn kind(store: &Arc<dyn Store>, read: &str) -> Option<ErrorKind> {
    let limit = Limit::rows(10);
    let lane = LaneKey { key: Key(1), destination: "broker".to_owned() };
    let error = match read {
        "due" => store.read_due(&[0], None, limit).await.err(),
        "held" => store.read_held("broker", Key(1), 0, limit).await.err(),
        "blockers" => store.read_blockers(limit).await.err(),
        "blocked" => store.read_blocked(&[0], None, 10).await.err(),
        _ => store.still_blocked(&[lane]).await.err(),
    };
    error.map(|error| error.kind())
}
