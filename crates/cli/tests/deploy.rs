//! What `deploy/` holds: roles that suffice and no more, and configurations that are well.

mod command;

use std::{borrow::Cow, path::Path};

use command::{Folder, stderr, stdout};
use posthaste::{
    Event, Outbox,
    stores::{Options, postgres::PostgresStore},
};
use posthaste_testkit::tables::{drop_outbox, unique};
use sqlx::{AssertSqlSafe, Executor as _, PgPool};

fn deploy(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The same account in another role.
fn acting_as(url: &str, role: &str) -> String {
    let separator = if url.contains('?') { '&' } else { '?' };
    format!("{url}{separator}options[role]={role}")
}

async fn execute(pool: &PgPool, sql: String) -> Result<(), sqlx::Error> {
    pool.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.map(drop)
}

/// Refused for want of a privilege, and for no other reason.
async fn forbidden(pool: &PgPool, sql: String) {
    let error = execute(pool, sql.clone()).await.expect_err(&sql);
    let code = error.as_database_error().and_then(|error| error.code().map(Cow::into_owned));
    assert_eq!(code.as_deref(), Some("42501"), "{sql}: {error}");
}

#[tokio::test]
async fn each_role_can_do_its_work_and_nothing_else() {
    let url = std::env::var("POSTHASTE_TEST_POSTGRES").expect("scripts/servers starts it");
    let tables = unique("roles");
    let table = tables.name().to_string();
    let role = |of: &str| format!("{table}_{of}");
    let on = ["--url", &url, "--table", &table];
    command::succeed(&[&["migrate"], &on[..]].concat());
    let owner = PostgresStore::connect(&url, tables.clone(), &Options::default()).await.unwrap();
    let owner = owner.pool();
    let sql = deploy("postgres/roles.sql")
        .replace("posthaste_writer", &role("writer"))
        .replace("posthaste_relay", &role("relay"))
        .replace("posthaste_operator", &role("operator"))
        .replace("outbox_event", &table);
    for _ in 0..2 {
        execute(owner, sql.clone()).await.unwrap();
    }
    for of in ["writer", "relay", "operator"] {
        execute(owner, format!("grant {} to current_user", role(of))).await.unwrap();
    }

    let writer = PgPool::connect(&acting_as(&url, &role("writer"))).await.unwrap();
    let outbox = Outbox::new(table.parse().unwrap());
    let event = Event::builder("OrderPlaced").aggregate("Order", 1).raw_json("{}").build().unwrap();
    let mut tx = outbox.begin(&writer).await.unwrap();
    outbox.enqueue(&mut tx, event).await.unwrap();
    tx.commit().await.unwrap();
    for sql in [
        format!("update {table} set event_type = 'x'"),
        format!("delete from {table}"),
        format!("select * from {table}_shards"),
        format!("select * from {table}_audit"),
        format!("insert into {table}_controls select * from {table}_controls"),
    ] {
        forbidden(&writer, sql).await;
    }
    writer.close().await;

    let as_relay = acting_as(&url, &role("relay"));
    let relay = |args: &[&str]| {
        command::posthaste(&[args, &["--url", &as_relay, "--table", &table]].concat())
    };
    let output = relay(&["relay", "--to", "log", "--once", "--retention", "0s"]);
    assert!(stdout(&output).contains("OrderPlaced"), "{}", stderr(&output));
    let privileges = stdout(&relay(&["doctor", "--json", "--no-destinations"]));
    let findings: serde_json::Value = serde_json::from_str(&privileges).unwrap();
    let found = findings["findings"].as_array().unwrap();
    let found = found.iter().find(|finding| finding["check"] == "privileges").unwrap();
    assert_ne!(found["level"], "problem", "{found}");
    let output = relay(&["pause", "outbox"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let pool = PgPool::connect(&as_relay).await.unwrap();
    forbidden(&pool, format!("insert into {table} default values")).await;
    forbidden(&pool, format!("select * from {table}_audit")).await;
    pool.close().await;

    let as_operator = acting_as(&url, &role("operator"));
    let on = ["--url", &as_operator, "--table", &table];
    command::succeed(&[&["pause", "outbox"], &on[..]].concat());
    command::succeed(&[&["resume", "outbox"], &on[..]].concat());
    let pool = PgPool::connect(&as_operator).await.unwrap();
    forbidden(&pool, format!("delete from {table}_audit")).await;
    pool.close().await;

    drop_outbox(owner, &tables).await.unwrap();
    for of in ["operator", "writer", "relay"] {
        let role = role(of);
        execute(owner, format!("drop owned by {role}; drop role {role}")).await.unwrap();
    }
}

#[test]
fn the_configuration_for_kubernetes_is_well() {
    let yaml = deploy("kubernetes/posthaste.yaml");
    let settings: Vec<&str> = yaml
        .lines()
        .skip_while(|line| !line.contains("posthaste.toml: |"))
        .skip(1)
        .take_while(|line| *line != "---")
        .map(|line| line.strip_prefix("    ").unwrap_or(line))
        .collect();
    let folder = Folder::new();
    let secrets = folder.path().display().to_string();
    for (name, secret) in [
        ("database-url", "postgres://u@h/d"),
        ("nats-password", "hush"),
        ("viewer-token", "0123456789abcdef-v"),
        ("operator-token", "0123456789abcdef-o"),
    ] {
        std::fs::write(folder.join(name), secret).unwrap();
    }
    let file = folder.join("posthaste.toml");
    let settings = settings.join("\n").replace("/run/secrets/posthaste", &secrets);
    std::fs::write(&file, settings).unwrap();
    let said = command::succeed(&["config", "check", "--config", file.to_str().unwrap()]);
    assert!(said.contains("is well: 1 outbox to 1 destination"), "{said}");
}

#[test]
fn the_variables_of_the_compose_file_are_well() {
    let yaml = deploy("compose.yaml");
    let mut check = command::command(&["config", "check"]);
    let folder = Folder::new();
    let mut count = 0;
    for line in yaml.lines().map(str::trim).filter(|line| line.starts_with("POSTHASTE_")) {
        let (name, value) = line.split_once(": ").unwrap();
        check.env(name, value.trim_matches('\''));
        count += 1;
    }
    assert_eq!(count, 5, "variables in the compose file");
    let output = check.current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}
