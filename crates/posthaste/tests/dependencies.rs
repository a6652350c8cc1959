//! A library user pays for what is named: one store and one transport bring no other broker's
//! client and no other database's driver.

use std::{env, process::Command};

/// The client of each destination, the drivers of the databases, and what must not come at all.
const CLIENTS: [(&str, &str); 9] = [
    ("nats", "async-nats"),
    ("rabbitmq", "lapin"),
    ("redis", "redis"),
    ("mqtt", "rumqttc-v5-next"),
    ("http", "reqwest"),
    ("kafka", "rdkafka"),
    ("pulsar", "pulsar"),
    ("sqlite", "sqlx-sqlite"),
    ("mysql", "sqlx-mysql"),
];

fn tree(features: &str) -> Vec<String> {
    let output = Command::new(env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()))
        .args(["tree", "-p", "posthaste", "--no-default-features", "--features", features])
        .args(["--edges", "normal,build", "--prefix", "none", "--format", "{p}", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .filter_map(|line| line.split(' ').next().map(str::to_owned))
        .collect()
}

#[test]
fn one_store_and_one_transport_bring_no_other_client() {
    for named in ["nats", "rabbitmq", "redis", "mqtt", "http", "log", "handlers"] {
        let tree = tree(&format!("postgres,{named}"));
        assert!(tree.iter().any(|name| name == "sqlx-postgres"), "{tree:?}");
        for (feature, client) in CLIENTS {
            let there = tree.iter().any(|name| name == client);
            assert_eq!(there, feature == named, "{client} with postgres and {named}");
        }
        assert!(!tree.iter().any(|name| name == "aws-lc-sys"), "a second TLS library with {named}");
    }
}

#[test]
fn a_writer_alone_brings_no_relay_and_no_transport() {
    let tree = tree("postgres");
    for name in ["posthaste-relay", "posthaste-transports", "rustls", "ring"] {
        assert!(!tree.iter().any(|known| known == name), "{name}");
    }
}

#[test]
fn idempotency_keys_bring_no_server_and_no_client() {
    let tree = tree("postgres,idempotency");
    for name in ["http", "tower-layer", "tower-service"] {
        assert!(tree.iter().any(|known| known == name), "{name} is missing");
    }
    for name in ["axum", "hyper", "tower", "reqwest", "rustls", "posthaste-relay"] {
        assert!(!tree.iter().any(|known| known == name), "{name}");
    }
}
