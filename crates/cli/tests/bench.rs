//! Benches measure, leave nothing behind, and say what is wrong with their arguments.

mod command;

use command::{Folder, refused, succeed};
use serde_json::Value;

fn figures(args: &[&str]) -> Value {
    let text = succeed(&[args, &["--json"]].concat());
    assert_eq!(text.trim_end().lines().count(), 1, "{text}");
    serde_json::from_str(&text).expect("one line of JSON")
}

#[test]
fn a_destination_that_cannot_be_understood_is_refused_before_anything_is_made() {
    let folder = Folder::new();
    let url = folder.url();
    for (to, says) in [
        ("log", &["\"log\"", "nats://"][..]),
        ("carrier-pigeon://loft", &["carrier-pigeon://", "is no destination"]),
        ("nats://u:s3cret@127.0.0.1:1?durable=yes", &["durable"]),
        ("tls://u:s3cret@127.0.0.1:1", &["without TLS", "nats://"]),
        ("rediss://:s3cret@127.0.0.1:1", &["without TLS", "redis://"]),
        ("amqps://u:s3cret@127.0.0.1:1", &["without TLS", "amqp://"]),
        ("redis://:s3cret@127.0.0.1:1?cluster=true", &["cluster"]),
    ] {
        let line = refused(&["bench", "publish", "--url", &url, "--to", to], 2, says);
        assert!(!line.contains("s3cret"), "{line}");
    }
    assert!(folder.is_empty());
}

#[test]
fn arguments_that_measure_nothing_are_refused() {
    let folder = Folder::new();
    let url = folder.url();
    let publish = ["bench", "publish", "--url", &url, "--to", "redis://127.0.0.1:1"];
    for (settings, says) in [
        (&["--events", "0"][..], &["--events", "at least 1"][..]),
        (&["--window", "0"], &["--window", "at least 1"]),
        (&["--window", "many"], &["\"many\" is not a whole number"]),
        (&["--pairs", "0"], &["--pairs", "at least 1"]),
        (&["--payload", "2000000"], &["--payload", "1048576"]),
        (&["--hot-key", "--keys", "5"], &["--hot-key", "--keys"]),
        (&["--hot-key", "--one-by-one"], &["--hot-key", "--one-by-one"]),
    ] {
        refused(&[&publish[..], settings].concat(), 2, says);
    }
    refused(&["bench", "publish", "--url", &url], 2, &["--to"]);
    assert!(folder.is_empty());
}

#[test]
fn a_broker_that_is_down_ends_the_bench_and_nothing_is_left() {
    let folder = Folder::new();
    let url = folder.url();
    let to = "redis://:s3cret@127.0.0.1:1";
    let output = command::posthaste(&["bench", "publish", "--url", &url, "--to", to]);
    let line = command::stderr(&output);
    assert_eq!((output.status.code(), command::stdout(&output).as_str()), (Some(1), ""));
    assert!(line.contains("connection refused") && !line.contains("s3cret"), "{line}");
    assert!(folder.is_empty());
}

#[test]
fn destinations_are_compared_in_a_small_run() {
    let folder = Folder::new();
    let url = folder.url();
    let small = ["--events", "2000", "--keys", "50", "--pairs", "1"];
    let figures = figures(&[&["bench", "destinations", "--url", &url], &small[..]].concat());
    assert_eq!((&figures["bench"], &figures["events"]), (&"destinations".into(), &2000.into()));
    for figure in ["up_per_s", "refusing_per_s", "silent_per_s", "refusing_ratio", "silent_ratio"] {
        assert!(figures[figure].as_f64().is_some_and(|value| value > 0.0), "{figure}: {figures}");
    }
    let global = ["bench", "destinations", "--url", &url, "--ordering", "global"];
    let output = command::posthaste(&global);
    assert!(command::stderr(&output).contains("--ordering per_key or none"));
    assert!(folder.is_empty());
}

#[test]
fn relay_and_client_are_compared_in_a_small_run_at_every_broker() {
    let folder = Folder::new();
    let url = folder.url();
    let small = ["--events", "500", "--keys", "50", "--pairs", "1", "--window", "64"];
    for broker in ["NATS", "REDIS", "RABBITMQ"] {
        let to = server(broker);
        let bench = ["bench", "publish", "--url", &url, "--to", &to];
        let figures = figures(&[&bench[..], &small].concat());
        assert_eq!((&figures["events"], &figures["window"]), (&500.into(), &64.into()));
        let concurrency = figures["concurrency"].as_u64().unwrap();
        assert_eq!(concurrency * figures["max_batch"].as_u64().unwrap(), 64, "{figures}");
        for figure in ["relay_per_s", "ratio", "by_hand_per_s", "by_hand_ratio"] {
            assert!(figures[figure].as_f64().is_some_and(|v| v > 0.0), "{broker}: {figures}");
        }
        assert!(figures["clients"][0]["per_s"].as_f64().is_some_and(|v| v > 0.0), "{figures}");
        assert!(figures["hot_key_ratio"].is_null(), "{figures}");
        assert!(folder.is_empty());
    }
}

#[test]
fn a_hot_key_is_compared_with_one_event_at_a_time() {
    let folder = Folder::new();
    let (url, to) = (folder.url(), server("REDIS"));
    let bench = ["bench", "publish", "--url", &url, "--to", &to, "--hot-key", "--events", "300"];
    let figures = figures(&[&bench[..], &["--pairs", "1"]].concat());
    assert_eq!(figures["keys"], 1);
    let ratio = figures["hot_key_ratio"].as_f64().unwrap();
    assert!(ratio > 1.0 && figures["one_by_one_per_s"].as_f64().is_some(), "{figures}");
    assert!(figures["by_hand_ratio"].is_null(), "it does not keep the key's order: {figures}");
}

#[test]
fn a_destination_without_a_client_to_compare_with_says_so() {
    let folder = Folder::new();
    let (url, to) = (folder.url(), server("MQTT"));
    let bench = ["bench", "publish", "--url", &url, "--to", &to, "--events", "200", "--pairs", "1"];
    assert!(succeed(&bench).contains("no client to compare with"));
    let figures = figures(&bench);
    assert!(figures["clients"] == serde_json::json!([]) && figures["ratio"].is_null(), "{figures}");
    assert!(figures["relay_per_s"].as_f64().is_some_and(|v| v > 0.0), "{figures}");
}

fn server(name: &str) -> String {
    let variable = format!("POSTHASTE_TEST_{name}");
    std::env::var(&variable)
        .unwrap_or_else(|_| panic!("{variable} names no server; scripts/servers starts one"))
}

#[test]
fn an_operators_questions_are_timed_in_a_small_run() {
    let folder = Folder::new();
    let url = folder.url();
    let small = ["--events", "2000", "--small", "100", "--keys", "50", "--times", "2"];
    let figures = figures(&[&["bench", "operate", "--url", &url], &small[..]].concat());
    let answers = figures["answers"].as_array().unwrap();
    assert_eq!(answers.len(), 10, "{figures}");
    for answer in answers {
        assert!(answer["large"]["p50_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{answer}");
    }
    assert!(folder.is_empty());
}

#[test]
fn an_idle_relay_is_watched() {
    let folder = Folder::new();
    let figures = figures(&["bench", "idle", "--url", &folder.url(), "--for", "500ms"]);
    assert!(figures["cpu_percent"].as_f64().is_some(), "{figures}");
    assert!(figures["max_rss_mb"].as_f64().is_some_and(|megabytes| megabytes > 1.0), "{figures}");
    assert!(folder.is_empty());
}
