//! What the tools of others say about what is served.

use std::process::Stdio;

use tokio::{io::AsyncWriteExt, process::Command};

use crate::{
    on_both,
    support::{LIMIT, OPERATOR, Served, TestDatabase, url},
};

const OPENAPI: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
const FUZZ: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/fuzz.toml");

on_both!(a_fuzzer_finds_no_fault_and_no_undocumented_answer);

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
