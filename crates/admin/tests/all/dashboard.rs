//! The dashboard in a real browser. What somebody does there is in `dashboard.py`; what became of the
//! outbox is looked at here.

use std::{net::SocketAddr, path::Path, process::Stdio, time::Duration};

use posthaste::{Event, Ordering, store::Pausable};
use posthaste_admin::{AdminConfig, AdminOutbox};
use serde_json::{Value, json};
use sqlx::{Postgres, Sqlite};
use tokio::process::Command;

use crate::{
    on_both,
    support::{
        OPERATOR, SECRET, Served, Server, TestDatabase, VIEWER, event, loopback, silent, url,
    },
};

/// The script ends itself, and the browser with it, well before.
const LIMIT: Duration = Duration::from_secs(90);

/// Has somebody do `visit` at the dashboard. Panics with what went wrong.
async fn browse<DB: TestDatabase>(served: &Served<DB>, visit: &str, known: Value)
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    browse_at(served.server.address, visit, known).await;
}

async fn browse_at(address: SocketAddr, visit: &str, mut known: Value) {
    known["base"] = format!("http://{address}").into();
    known["chromium"] = url("POSTHASTE_TEST_CHROMIUM").into();
    known["chromedriver"] = url("POSTHASTE_TEST_CHROMEDRIVER").into();
    known["secret"] = SECRET.into();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/dashboard.py");
    let child = Command::new(url("POSTHASTE_TEST_PYTHON"))
        .arg("-I")
        .arg(script)
        .arg(visit)
        .arg(known.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the Python of POSTHASTE_TEST_PYTHON can be run");
    let output = tokio::time::timeout(LIMIT, child.wait_with_output())
        .await
        .expect("the browser hangs")
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{visit}: {said}");
}

/// Dead letters about as many orders.
async fn dead_letters<DB: TestDatabase>(served: &Served<DB>, orders: &[&str]) -> Vec<String>
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let events = orders.iter().map(|order| event("Poison", order)).collect();
    let ids = served.enqueue(events).await;
    for id in &ids {
        served.until_status(id, "dead").await;
    }
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_numbers_move() {
    let served = Served::<Postgres>::new(false).await;
    let write = async {
        for number in 0.. {
            served.enqueue(vec![event("Placed", &format!("{number}"))]).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        () = write => {}
        () = browse(&served, "live_numbers_move", json!({})) => {}
    }
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_numbers_never_look_well() {
    let served = Served::<Sqlite>::new(false).await;
    browse(&served, "old_numbers_never_look_well", json!({})).await;
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_asks_seldom_notices_a_cut() {
    let served = Served::<Sqlite>::new(false).await;
    browse(&served, "a_page_that_asks_seldom_notices_a_cut", json!({})).await;
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_of_another_question_are_not_live() {
    let served = Served::<Sqlite>::new(false).await;
    browse(&served, "data_of_another_question_are_not_live", json!({})).await;
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_database_is_not_blamed_on_the_api() {
    let served = Served::<Sqlite>::new(false).await;
    let (store, only) = silent(&served.tables).await;
    let outbox = AdminOutbox { store, relay: None, ..served.outbox() };
    let config = AdminConfig { listen: loopback(), ..AdminConfig::default() };
    let server = Server::start(vec![outbox], config).await;
    browse_at(server.address, "a_silent_database_is_not_blamed_on_the_api", json!({})).await;
    // What still asks gets its answer: the stop waits for that.
    drop(only);
    server.stop().await;
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_destination_without_a_relay_is_not_green() {
    let served = Served::<Sqlite>::new(false).await;
    served.relay.stop().await.unwrap();
    browse(&served, "a_destination_without_a_relay_is_not_green", json!({})).await;
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_verdict_tells_what_waits() {
    let served = Served::<Sqlite>::new(false).await;
    browse(&served, "the_verdict_tells_what_waits", json!({})).await;
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dialog_belongs_to_its_page() {
    let served = Served::<Sqlite>::new(false).await;
    browse(&served, "a_dialog_belongs_to_its_page", json!({})).await;
    served.end().await;
}

async fn dead_letters_are_replayed_and_delivered<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let served = Served::<DB>::new(true).await;
    let ids = dead_letters(&served, &["1", "2", "3"]).await;
    browse(&served, "dead_letters_are_replayed", json!({ "token": OPERATOR, "dead": 3 })).await;
    for id in &ids {
        served.until_status(id, "sent").await;
    }
    assert_eq!(served.relay.stats().delivered, 3);
    let audit = served.store.audits(None, 10).await.unwrap();
    assert_eq!(audit.len(), 1, "what was cancelled left no trace: {audit:?}");
    assert_eq!((audit[0].change.by.as_str(), audit[0].affected), ("oscar", 3));
    served.end().await;
}

on_both!(dead_letters_are_replayed_and_delivered);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_done_to_one_event_destination_and_relay_is_obeyed() {
    let served = Served::<Sqlite>::new(true).await;
    let ids = dead_letters(&served, &["1", "2"]).await;
    let known = json!({ "token": OPERATOR, "replayed": ids[0], "discarded": ids[1] });
    browse(&served, "single_actions", known).await;
    // The last thing that was done is a purge: the events are gone by now.
    assert_eq!(served.relay.stats().delivered, 1, "what was discarded is not delivered");
    let audit = served.store.audits(None, 20).await.unwrap();
    let done: Vec<_> = audit.iter().rev().map(|one| one.change.action.as_str()).collect();
    assert_eq!(
        done,
        [
            "event.replay",
            "event.discard",
            "outbox.pause",
            "outbox.resume",
            "destination.pause",
            "destination.resume",
            "relay.pause",
            "relay.resume",
            "purge"
        ]
    );
    assert!(served.store.pauses().await.unwrap().is_empty(), "each pause was ended again");
    served.end().await;
}

/// Not that of its aggregate where it has a key of its own, and none where it is unordered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_that_is_paused_is_the_events() {
    let served = Served::<Sqlite>::new(true).await;
    let of_order = || Event::builder("Poison").aggregate("Order", "1").tenant("acme");
    let own = of_order().ordering_key("basket-7").raw_json("{}").build().unwrap();
    let unordered = of_order().ordering(Ordering::Unordered).raw_json("{}").build().unwrap();
    let derived = event("Poison", "1");
    let keys = [&own, &derived].map(|event| Pausable::Key(event.key().unwrap()));
    let ids = served.enqueue(vec![own, derived, unordered]).await;
    let known = json!({ "token": OPERATOR, "own": ids[0], "derived": ids[1], "unordered": ids[2] });
    browse(&served, "the_key_that_is_paused_is_the_events", known).await;
    let paused: Vec<_> = served
        .store
        .pauses()
        .await
        .unwrap()
        .into_iter()
        .map(|pause| (pause.what, pause.note))
        .collect();
    assert_eq!(paused.len(), 2, "{paused:?}");
    for (key, note) in keys.into_iter().zip(["ordering key basket-7", "Order/1 of tenant acme"]) {
        assert!(paused.contains(&(key, Some(note.to_owned()))), "{note}: {paused:?}");
    }
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_viewer_cannot_act() {
    let served = Served::<Sqlite>::new(true).await;
    let ids = dead_letters(&served, &["1"]).await;
    browse(&served, "a_viewer_cannot_act", json!({ "token": VIEWER, "id": ids[0] })).await;
    served.until_status(&ids[0], "dead").await;
    assert!(served.store.audits(None, 10).await.unwrap().is_empty());
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_is_hidden_until_asked_for() {
    let served = Served::<Sqlite>::new(true).await;
    let [sent, ..] = served.fates().await;
    browse(&served, "a_payload_is_hidden", json!({ "token": OPERATOR, "id": sent })).await;
    served.end().await;
}

/// Somebody's event that would like to run in the reader's browser.
fn hostile() -> Event {
    let script = "<img src=x onerror=alert(1)><script>alert(2)</script>";
    Event::builder("Poison")
        .aggregate(script, script)
        .tenant(script)
        .header("x-script", script)
        .payload(&json!({ "script": script }))
        .build()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_is_clean_in_light_in_dark_and_on_a_phone() {
    let served = Served::<Sqlite>::new(false).await;
    served.fates().await;
    let id = served.enqueue(vec![hostile()]).await.remove(0);
    served.until_status(&id, "dead").await;
    browse(&served, "every_page_is_clean", json!({ "id": id })).await;
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_keyboard_reaches_everything() {
    let served = Served::<Sqlite>::new(false).await;
    let [_, dead, _] = served.fates().await;
    browse(&served, "the_keyboard_reaches_everything", json!({ "id": dead })).await;
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_asked_for_and_kept_in_the_tab_alone() {
    let served = Served::<Sqlite>::new(true).await;
    browse(&served, "a_token_is_asked_for", json!({ "token": VIEWER })).await;
    served.end().await;
}
