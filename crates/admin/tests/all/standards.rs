//! What the tools of others say about what is served.

use std::{collections::BTreeSet, process::Stdio};

use posthaste_testkit::wait::asked;
use tokio::{io::AsyncWriteExt, process::Command};

use crate::{
    on_both,
    support::{LIMIT, OPERATOR, SECRET, Served, TestDatabase, url},
};

const OPENAPI: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
const ALERTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/prometheus/alerts.yml");
const ALERT_TESTS: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/prometheus/alerts_test.yml");
const FUZZ: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/fuzz.toml");

on_both!(
    the_metrics_that_are_served_pass_the_linter,
    a_fuzzer_finds_no_fault_and_no_undocumented_answer
);

/// Runs a program to its end; what it wrote comes back when it succeeds, and is shown otherwise.
async fn run(command: &mut Command, input: &[u8]) -> String {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input).await.unwrap();
    drop(stdin);
    let output = tokio::time::timeout(LIMIT * 4, child.wait_with_output()).await.unwrap().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{command:?}\n{text}");
    text
}

#[tokio::test]
async fn the_description_is_valid_openapi() {
    let mut validator = Command::new(url("POSTHASTE_TEST_PYTHON"));
    let text = run(validator.args(["-m", "openapi_spec_validator", OPENAPI]), b"").await;
    assert!(text.contains("OK"), "{text}");
}

/// A few hundred requests, the same ones every time, made from the description: right ones, and wrong
/// ones of every kind. Every answer must be one that the description has for it.
async fn a_fuzzer_finds_no_fault_and_no_undocumented_answer<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let served = Served::<DB>::new(true).await;
    let [_, dead, _] = served.fates().await;
    // The systematic part once: it is about reading requests, which no database takes part in.
    let phases = if DB::NAME == "SQLite" { "fuzzing" } else { "coverage,fuzzing" };
    let mut fuzzer = Command::new(url("POSTHASTE_TEST_PYTHON"));
    fuzzer
        .args(["-m", "schemathesis.cli", "--config-file", FUZZ, "run", OPENAPI])
        .args(["--url", &format!("http://{}/api/v1", served.server.address)])
        .args(["--header", &format!("Authorization: Bearer {OPERATOR}")])
        .args(["--phases", phases, "--max-examples", "10", "--seed", "5"])
        .args(["--generation-database", "none", "--no-shrink", "--no-color"])
        .env("DEAD_EVENT", dead)
        .current_dir(std::env::temp_dir());
    let text = run(&mut fuzzer, b"").await;
    let tested = format!("Tested: {}", described());
    assert!(text.contains(&tested), "{tested}\n{text}");
    assert!(!text.contains("Missing") && !text.contains("Errors:"), "{text}");
    served.end().await;
}

/// How many operations are described.
fn described() -> usize {
    let description = std::fs::read_to_string(OPENAPI).unwrap();
    let description: serde_json::Value = serde_json::from_str(&description).unwrap();
    let paths = description["paths"].as_object().unwrap().values();
    paths.map(|methods| methods.as_object().unwrap().len()).sum()
}

/// And they are those that the alert rules ask for.
async fn the_metrics_that_are_served_pass_the_linter<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let recorder = posthaste_admin::metrics::record().unwrap();
    let served = Served::<DB>::with(|config| config.metrics = Some(recorder)).await;
    served.fates().await;
    let rules = std::fs::read_to_string(ALERTS).unwrap();
    let wanted: BTreeSet<&str> = rules
        .split(|character: char| !(character.is_ascii_lowercase() || character == '_'))
        .filter(|word| word.starts_with("outbox_"))
        .collect();
    assert!(wanted.len() > 5, "{wanted:?}");
    let mut text = String::new();
    asked("all metrics", async || {
        text = served.server.get("//metrics").await.body;
        wanted.iter().all(|name| text.contains(&format!("\n{name}{{")))
    })
    .await;
    assert!(text.contains("outbox_dispatch_total{outbox=\"shop\""), "{text}");
    assert!(!text.contains(SECRET) && !text.contains("acme"), "{text}");
    let mut linter = Command::new(url("POSTHASTE_TEST_PROMTOOL"));
    run(linter.args(["check", "metrics"]), text.as_bytes()).await;
    served.end().await;
}

/// Each rule fires when it should and is silent when it should be, as Prometheus itself works it out.
#[tokio::test]
async fn every_alert_rule_fires_and_is_silent_in_its_test() {
    let tests = std::fs::read_to_string(ALERT_TESTS).unwrap();
    let rules = std::fs::read_to_string(ALERTS).unwrap();
    let names: Vec<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(names.len() >= 10, "{names:?}");
    for name in names {
        let of_rule = format!("alertname: {name}\n        exp_alerts: [");
        let silent = format!("{of_rule}]");
        assert!(tests.contains(&silent), "no test in which {name} is silent");
        let all = tests.matches(&of_rule).count();
        assert!(all > tests.matches(&silent).count(), "no test in which {name} fires");
    }
    let mut promtool = Command::new(url("POSTHASTE_TEST_PROMTOOL"));
    let text = run(promtool.args(["test", "rules", ALERT_TESTS]), b"").await;
    assert!(text.contains("SUCCESS"), "{text}");
}

#[tokio::test]
async fn the_alert_rules_are_accepted() {
    let mut promtool = Command::new(url("POSTHASTE_TEST_PROMTOOL"));
    let text = run(promtool.args(["check", "rules", ALERTS]), b"").await;
    assert!(text.contains("SUCCESS"), "{text}");
}
