//! `migrate`, `relay` and `status` on an outbox in SQLite.

mod command;

use command::{Folder, content, enqueue, pool, posthaste, stderr, stdout, succeed};
use sqlx::AssertSqlSafe;

#[test]
fn migrate_says_what_it_applied_and_can_be_repeated() {
    let folder = Folder::new();
    let url = folder.url();
    let first = succeed(&["migrate", "--url", &url]);
    assert_eq!(first, "outbox outbox_event (sqlite, 1 shard): applied migration 1\n");
    let second = succeed(&["migrate", "--url", &url]);
    assert_eq!(second, "outbox outbox_event (sqlite, 1 shard) is up to date: nothing to apply\n");
}

#[tokio::test]
async fn the_printed_sql_makes_the_same_tables_as_migrate() {
    let (by_migrate, by_hand) = (Folder::new(), Folder::new());
    let migrated = by_migrate.migrated();
    let sql = succeed(&["migrate", "--print", "--url", &by_hand.url()]);
    assert!(by_hand.is_empty(), "printing made a file");
    let url = by_hand.url();
    let database = pool(&format!("{url}?mode=rwc")).await;
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&database).await.unwrap();
    database.close().await;
    assert_eq!(content(&url).await, content(&migrated).await);
    let again = succeed(&["migrate", "--url", &url]);
    assert!(again.contains("nothing to apply"), "{again}");
}

#[test]
fn sql_is_printed_for_every_database_without_connecting() {
    for url in ["postgres://nowhere.invalid/x", "mysql:", "mariadb://nowhere.invalid/x", "sqlite:"]
    {
        let sql = succeed(&["migrate", "--print", "--url", url, "--table", "orders_outbox"]);
        for table in [
            "",
            "_shards",
            "_relays",
            "_attempts",
            "_controls",
            "_meta",
            "_inbox",
            "_idempotency",
            "_audit",
        ] {
            let create = format!("create table if not exists orders_outbox{table} (");
            assert!(sql.contains(&create), "{url}: no {create:?}");
        }
    }
}

#[tokio::test]
async fn one_pass_delivers_what_was_enqueued_in_order_and_once() {
    let folder = Folder::new();
    let url = folder.migrated();
    enqueue(&url, 4).await;
    let relay = ["relay", "--url", &url, "--to", "log", "--once"];

    let output = posthaste(&[&relay[..], &["--format", "json", "--payload"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let mut payloads: Vec<(String, String)> = Vec::new();
    for line in stdout(&output).lines() {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!((&event["type"], &event["tenant"]), (&"OrderPlaced".into(), &"acme".into()));
        let text = |field: &str| event[field].as_str().unwrap().to_owned();
        payloads.push((text("aggregate_id"), text("payload")));
    }
    // Order is promised within an aggregate.
    payloads.sort_by(|one, two| one.0.cmp(&two.0));
    let expected = [("0", 0), ("0", 2), ("1", 1), ("1", 3)];
    assert_eq!(payloads, expected.map(|(id, n)| (id.to_owned(), format!("{{\"n\":{n}}}"))));
    assert_eq!(stderr(&output), "delivered 4, to be tried again 0, dead 0, still pending 0\n");

    let output = posthaste(&relay);
    assert_eq!(stdout(&output), "", "delivered again");
    assert!(stderr(&output).starts_with("delivered 0,"), "{}", stderr(&output));
}

#[tokio::test]
async fn payloads_stay_out_of_the_log_unless_asked_for() {
    let folder = Folder::new();
    let url = folder.migrated();
    enqueue(&url, 1).await;
    let text = succeed(&["relay", "--url", &url, "--to", "log", "--once"]);
    assert!(text.starts_with("#1 OrderPlaced Order/0 tenant=acme id="), "{text}");
    assert!(!text.contains("\"n\""), "{text}");
}

#[tokio::test]
async fn status_counts_the_backlog_for_people_and_for_programs() {
    let folder = Folder::new();
    let url = folder.migrated();
    enqueue(&url, 3).await;
    let status = || -> serde_json::Value {
        let text = succeed(&["status", "--url", &url, "--json", "--sent"]);
        assert_eq!(text.lines().count(), 1, "{text}");
        serde_json::from_str(&text).unwrap()
    };
    let before = status();
    assert_eq!(before["counts"]["new"], 3);
    assert_eq!(before["backlog_by_tenant"], serde_json::json!([{ "tenant": "acme", "events": 3 }]));
    assert!(before["oldest_pending_s"].as_f64().is_some());
    assert_eq!(before["shards"], serde_json::json!({ "total": 1, "held": 0, "free": 1 }));
    let text = succeed(&["status", "--url", &url]);
    assert!(text.contains("acme") && text.contains("oldest pending for "), "{text}");

    succeed(&["relay", "--url", &url, "--to", "log", "--once"]);
    let after = status();
    assert_eq!((&after["counts"]["new"], &after["sent"]), (&0.into(), &3.into()));
    assert_eq!(after["oldest_pending_s"], serde_json::Value::Null);
    assert_eq!(after["relays"], serde_json::json!([]), "a pass by hand leaves no relay behind");
}

#[cfg(unix)]
#[tokio::test]
async fn a_relay_shows_in_status_and_gives_its_shard_back_when_terminated() {
    use std::{
        io::{BufRead as _, BufReader},
        process::{Command, Stdio},
    };

    let folder = Folder::new();
    let url = folder.migrated();
    enqueue(&url, 1).await;
    let args = ["relay", "--url", &url, "--to", "log", "--name", "r7"];
    let mut relay = command::command(&args).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(relay.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("#1 OrderPlaced"), "{line}");

    let status = |name: &str| -> serde_json::Value {
        let text = succeed(&["status", "--url", &url, "--json"]);
        serde_json::from_str::<serde_json::Value>(&text).unwrap()[name].clone()
    };
    let relays = status("relays");
    assert_eq!((&relays[0]["name"], &relays[0]["alive"]), (&"r7".into(), &true.into()));
    assert_eq!((&relays[0]["shards"], &relays[0]["ordering"]), (&1.into(), &"per_key".into()));

    let sent = Command::new("kill").args(["-TERM", &relay.id().to_string()]).status().unwrap();
    assert!(sent.success());
    assert!(relay.wait().unwrap().success());
    assert_eq!(status("relays"), serde_json::json!([]));
    assert_eq!(status("shards")["free"], 1);
}

#[test]
fn settings_come_from_the_environment_and_help_shows_no_password() {
    let folder = Folder::new();
    let url = folder.migrated();
    let output =
        command::command(&["status", "--json"]).env("POSTHASTE_URL", &url).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    for command_name in ["migrate", "relay", "status", "bench"] {
        let mut help = command::command(&[command_name, "--help"]);
        let output = help.env("POSTHASTE_URL", "postgres://u:s3cret@h/db").output().unwrap();
        assert!(output.status.success() && !stdout(&output).contains("s3cret"), "{command_name}");
    }
}

#[test]
fn a_destination_that_works_is_checked_with_a_message() {
    let Ok(url) = std::env::var("POSTHASTE_TEST_REDIS") else {
        panic!("POSTHASTE_TEST_REDIS is not set: run the tests with scripts/test")
    };
    let said = succeed(&["check-destination", &url]);
    assert!(said.contains("connected: Redis"), "{said}");
    assert!(said.contains("acknowledged in"), "{said}");
    assert!(!said.contains("posthaste@"), "no password is told: {said}");
    let said = succeed(&["check-destination", "--no-publish", &url]);
    assert!(!said.contains("published"), "{said}");
}
