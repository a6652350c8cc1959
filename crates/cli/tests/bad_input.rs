//! Bad input: one line that says what is wrong and what to do, an exit code, nothing changed.

mod command;

use command::{Folder, content, pool, posthaste, refused, stdout, succeed};

#[test]
fn an_unknown_url_scheme_is_refused_with_those_that_are_known() {
    let url = "oracle://u:s3cret@host/db";
    for args in [
        &["migrate", "--url", url][..],
        &["migrate", "--print", "--url", url],
        &["relay", "--to", "log", "--url", url],
        &["status", "--url", url],
        &["demo", "--url", url],
    ] {
        let line = refused(args, 2, &["\"oracle\"", "postgres://", "mysql://", "sqlite:"]);
        assert!(!line.contains("s3cret"), "{line}");
    }
}

#[tokio::test]
async fn a_table_name_with_a_quote_is_refused_with_what_is_allowed() {
    let folder = Folder::new();
    let url = folder.migrated();
    let before = content(&url).await;
    for table in ["out\"box", "out'box", "outbox; drop table outbox_event"] {
        for command in [&["migrate"][..], &["relay", "--to", "log"], &["status"]] {
            let args = [command, &["--url", &url, "--table", table]].concat();
            refused(&args, 2, &["table name", "lowercase letters, digits and underscores"]);
        }
    }
    assert_eq!(content(&url).await, before);
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused_before_the_relay_reports_itself() {
    let folder = Folder::new();
    let url = folder.migrated();
    let before = content(&url).await;
    for (settings, says) in [
        (&["--lease", "5s", "--heartbeat", "10s"][..], &["lease (5s)", "heartbeat (10s)"][..]),
        (&["--batch", "0"], &["batch is 0", "at least 1"]),
        (&["--concurrency", "0"], &["concurrency is 0", "at least 1"]),
        (&["--max-attempts", "0"], &["max_attempts is 0", "at least 1"]),
        (&["--name", "a/b"], &["\"a/b\"", "no slash"]),
        (&["--busy-interval", "2s"], &["busy_interval (2s)", "idle_interval (1s)"]),
    ] {
        let args = [&["relay", "--to", "log", "--url", &url], settings].concat();
        refused(&args, 2, says);
    }
    let args = ["relay", "--to", "nats://host", "--url", &url, "--dispatch-timeout", "10s"];
    refused(&args, 2, &["dispatch_timeout is 10s", "may take 15s", "by more than 5s together"]);
    for (settings, says) in [
        (&["--lease", "5"][..], &["--lease", "\"5\" is not a duration", "500ms"][..]),
        (&["--ordering", "total"], &["\"total\"", "per_key, none or global"]),
        (&["--on-dead", "bury"], &["\"bury\"", "skip or park"]),
        (&["--lese", "5s"], &["--lese", "--lease"]),
    ] {
        let args = [&["relay", "--to", "log", "--url", &url], settings].concat();
        refused(&args, 2, says);
    }
    assert_eq!(content(&url).await, before);
}

#[tokio::test]
async fn another_number_of_shards_than_the_outbox_has_is_refused() {
    let folder = Folder::new();
    refused(&["migrate", "--url", &folder.url(), "--shards", "8"], 2, &["1 shard", "8"]);
    assert!(folder.is_empty(), "a file was made");
    let url = folder.migrated();
    let before = content(&url).await;
    refused(&["migrate", "--url", &url, "--shards", "8"], 2, &["1 shard", "8"]);
    assert_eq!(content(&url).await, before);
}

#[tokio::test]
async fn a_database_without_the_migration_is_refused_with_the_command_that_makes_it() {
    let folder = Folder::new();
    let url = folder.migrated();
    let before = content(&url).await;
    for command in [&["relay", "--to", "log"][..], &["relay", "--to", "log", "--once"], &["status"]]
    {
        let args = [command, &["--url", &url, "--table", "another"]].concat();
        refused(&args, 1, &["outbox another", "posthaste migrate"]);
    }
    assert_eq!(content(&url).await, before);
}

#[tokio::test]
async fn a_migration_newer_than_the_binary_is_refused() {
    let folder = Folder::new();
    let url = folder.migrated();
    let database = pool(&url).await;
    sqlx::query("update outbox_event_meta set version = 99").execute(&database).await.unwrap();
    database.close().await;
    let before = content(&url).await;
    for command in [&["migrate"][..], &["relay", "--to", "log", "--once"], &["status"]] {
        let args = [command, &["--url", &url]].concat();
        refused(&args, 1, &["version 99", "newer", "use a newer posthaste"]);
    }
    assert_eq!(content(&url).await, before);
}

#[tokio::test]
async fn an_outbox_of_an_earlier_build_is_refused_with_the_remedy() {
    let folder = Folder::new();
    let url = folder.url();
    let database = pool(&format!("{url}?mode=rwc")).await;
    let before = "create table outbox_event_meta (
            id integer primary key, version integer not null, shards integer not null
        );
        insert into outbox_event_meta (id, version, shards) values (1, 5, 1);
        create table outbox_event (sequence integer primary key);";
    sqlx::raw_sql(before).execute(&database).await.unwrap();
    database.close().await;
    let before = content(&url).await;
    for command in [&["migrate"][..], &["relay", "--to", "log", "--once"], &["status"]] {
        let args = [command, &["--url", &url]].concat();
        refused(&args, 1, &["made by another build", "version 5", "drop the outbox's tables"]);
    }
    let doctor = posthaste(&["doctor", "--url", &url, "--no-destinations"]);
    let said = stdout(&doctor);
    assert!(!doctor.status.success() && said.contains("made by another build"), "{said}");
    assert!(said.contains("drop table if exists outbox_event;"), "{said}");
    assert_eq!(content(&url).await, before);
}

#[test]
fn a_missing_sqlite_file_is_made_by_migrate_and_by_nobody_else() {
    let folder = Folder::new();
    let plain = folder.url();
    let makes = format!("{plain}?mode=rwc");
    for url in [&plain, &makes] {
        for command in [&["relay", "--to", "log"][..], &["status"], &["demo", "--for", "1s"]] {
            let args = [command, &["--url", url]].concat();
            refused(&args, 3, &["app.db is not there", "posthaste migrate"]);
        }
    }
    assert!(folder.is_empty(), "a file was made");
    let nowhere = plain.replace("app.db", "nowhere/app.db");
    refused(&["migrate", "--url", &nowhere], 3, &["nowhere is not there", "make it"]);
    assert!(folder.is_empty(), "a folder was made");
    succeed(&["migrate", "--url", &plain]);
    assert!(!folder.is_empty());
}

#[test]
fn what_is_missing_on_the_command_line_is_named_in_one_line() {
    refused(&["relay"], 2, &["--url", "POSTHASTE_URL", "posthaste init"]);
    refused(&["relay", "--url", "sqlite:a.db"], 2, &["--to", "POSTHASTE_TO", "[destinations"]);
    refused(&["statue"], 2, &["'statue'", "status"]);
    refused(&["demo", "--rate", "0"], 2, &["--rate", "1..="]);
}

#[tokio::test]
async fn a_destination_that_cannot_be_is_refused_before_a_database_is_opened() {
    let folder = Folder::new();
    let url = folder.migrated();
    let before = content(&url).await;
    for (to, says) in [
        ("nowhere", &["\"nowhere\" is not known", "log", "nats://"][..]),
        ("pigeon://loft", &["pigeon:// is no destination", "nats://", "https://"]),
        ("nats://me:s3cret@host:port", &["port", "no number"]),
        ("redis://me:12/s3cret@host", &["percent-encode"]),
        ("nats://to?s3cret@host", &["percent-encode"]),
        ("nats:/me:s3cret@host", &["the destination is not known", "nats://"]),
        ("https://me:12/s3cret@host", &["percent-encode"]),
        ("redis://host?colour=red", &["parameter colour is not known"]),
        ("mqtt://host?qos=3", &["qos", "3"]),
        ("amqp://host?password_env=POSTHASTE_NO_SUCH", &["POSTHASTE_NO_SUCH", "not set"]),
        ("https://127.0.0.1/hook", &["private", "allow_private"]),
    ] {
        let line = refused(&["relay", "--url", &url, "--to", to], 2, says);
        assert!(!line.contains("s3cret"), "{line}");
        let line = refused(&["check-destination", to], 2, says);
        assert!(!line.contains("s3cret"), "{line}");
    }
    let topic = ["relay", "--url", &url, "--to", "log", "--topic", "x.{colour}"];
    refused(&topic, 2, &["placeholder {colour} is not known", "event_type"]);
    assert_eq!(content(&url).await, before);
}

#[test]
fn a_destination_that_does_not_answer_is_told_in_one_line() {
    // Nobody listens there: the port was free a moment ago.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    for scheme in ["nats", "redis", "amqp", "mqtt"] {
        let url = format!("{scheme}://me:s3cret@127.0.0.1:{port}");
        let line = refused(&["check-destination", &url], 1, &["127.0.0.1", "refused"]);
        assert!(!line.contains("s3cret"), "{line}");
    }
}

/// Who builds all of it has Kafka with TLS, too: as the image and the packages do.
#[cfg(feature = "full")]
#[test]
fn the_full_build_has_kafka_with_tls() {
    let args = ["check-destination", "kafka+ssl://127.0.0.1:1", "--no-publish", "--timeout", "2s"];
    let output = posthaste(&args);
    let said = command::stderr(&output);
    assert_eq!(output.status.code(), Some(1), "nobody is there: {said}");
    assert!(!said.contains("not part of this build") && !said.contains("kafka-tls"), "{said}");
}
