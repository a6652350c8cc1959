//! A library user pays for what is named: one store and one transport bring no other broker's
//! client and no other database's driver, and a writer through one driver no other driver.

use std::{collections::BTreeSet, env, process::Command};

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

/// What a package with these features is compiled from, as `name version`.
fn packages(package: &str, features: &str) -> BTreeSet<String> {
    let output = Command::new(env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()))
        .args(["tree", "-p", package, "--no-default-features", "--features", features])
        .args(["--edges", "normal,build", "--prefix", "none", "--format", "{p}", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" "))
        .collect()
}

fn tree(features: &str) -> Vec<String> {
    let name = |package: String| package.split(' ').next().unwrap_or_default().to_owned();
    packages("posthaste", features).into_iter().map(name).collect()
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

#[test]
fn a_writer_on_postgres_is_at_most_180_crates() {
    let packages = packages("posthaste", "postgres");
    assert!(packages.len() <= 180, "{}: {packages:?}", packages.len());
}

#[test]
fn another_driver_brings_neither_sqlx_nor_libpq() {
    for named in ["tokio-postgres", "deadpool", "diesel-async"] {
        let tree = tree(named);
        let driver = if named == "deadpool" { "deadpool-postgres" } else { named };
        assert!(tree.iter().any(|name| name == driver), "{tree:?}");
        for other in ["sqlx", "sqlx-core", "sqlx-postgres", "posthaste-stores", "pq-sys"] {
            assert!(!tree.iter().any(|name| name == other), "{other} with {named}");
        }
    }
}

#[test]
fn sea_orm_shares_our_sqlx_and_sqlx_08_does_not_bring_it() {
    let with_sea_orm = packages("posthaste", "postgres,sea-orm");
    let of_sqlx = |name: &&String| name.starts_with("sqlx-core ");
    assert_eq!(with_sea_orm.iter().filter(of_sqlx).count(), 1, "{with_sea_orm:?}");
    let of_08 = packages("posthaste-sqlx-08", "");
    let versions: Vec<_> = of_08.iter().filter(of_sqlx).collect();
    assert!(matches!(&versions[..], [one] if one.starts_with("sqlx-core v0.8.")), "{versions:?}");
    assert!(!of_08.iter().any(|name| name.starts_with("libsqlite3-sys ")), "{of_08:?}");
}
