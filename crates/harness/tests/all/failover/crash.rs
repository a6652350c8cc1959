//! A server that is killed and restarted with its own data.

use posthaste::{Dialect, store::RelayOrdering};
use posthaste_testkit::{tables, wait};
use sqlx::MySql;

use super::{IN_FLIGHT, KEYS, Recorder, Writer, forwarder::Forwarder, in_order, relay, rows};
use crate::servers::{Place, Server, free_address};

/// Nothing is lost: what was written before the kill is in the memory of the system. Only a crash of the
/// machine loses the last second, and a failover to a copy without it shows what the relay does then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_that_is_killed_and_restarted_loses_nothing_and_delivers_in_order() {
    let place = Place::new("POSTHASTE_TEST_MARIADB_SERVER");
    let (at, settings) = (free_address(), ["innodb-flush-log-at-trx-commit = 2"]);
    let server: Server<MySql> = place.start("server", at, &settings).await;
    let entrance = Forwarder::to(at).await;
    let tables = tables::unique("crash");
    let store = MySql::store(server.pool.clone(), tables.clone());
    store.migrate(None).await.expect("the outbox cannot be made");
    let recorder = Recorder::default();
    let relay = relay::<MySql>("relay", RelayOrdering::PerKey, &entrance, &tables, &recorder).await;

    let mut writer = Writer { tables: &tables, written: 0 };
    let mut committed = writer.write(&server.pool, "Before", 4 * KEYS).await;
    recorder.until_delivered(&committed).await;
    committed.extend(writer.write(&server.pool, IN_FLIGHT, KEYS).await);
    wait::asked("publishes", async || recorder.in_flight() == KEYS).await;
    server.kill();
    let server: Server<MySql> = place.start("server", at, &settings).await;
    committed.extend(writer.write(&server.pool, "After", 4 * KEYS).await);
    recorder.open.send_replace(true);
    recorder.until_delivered(&committed).await;
    wait::asked("all to be sent", async || {
        rows(&server.pool, &tables).await.iter().all(|row| row.sent)
    })
    .await;
    relay.stop().await.expect("the relay does not stop");

    let rows = rows(&server.pool, &tables).await;
    let kept: Vec<_> = rows.iter().map(|row| (row.id, row.sequence)).collect();
    assert_eq!(kept, committed, "what was committed");
    in_order(&rows, &recorder.delivered(), false);
}
