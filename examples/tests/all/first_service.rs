//! The example `first_service`: what the README shows, and that it runs.

use std::{env, fs, process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
    time::timeout,
};

const README: &str = include_str!("../../../README.md");

const PROGRAM: &str = include_str!("../../src/bin/first_service.rs");

/// The README's first program.
fn shown() -> &'static str {
    let (_, rest) = README.split_once("```rust").expect("the README shows a program");
    let (_, rest) = rest.split_once('\n').unwrap();
    rest.split_once("```").unwrap().0
}

#[test]
fn the_readme_shows_this_program_in_at_most_30_lines() {
    let (_, program) = PROGRAM.split_once("\n\n").unwrap();
    assert_eq!(shown(), program);
    assert!(shown().lines().count() <= 30);
}

#[tokio::test]
async fn it_delivers_its_event_and_ends_well_when_it_is_interrupted() {
    let folder = env::temp_dir().join(format!("posthaste-first-{}", uuid::Uuid::now_v7()));
    fs::create_dir(&folder).unwrap();
    let mut service = Command::new(env!("CARGO_BIN_EXE_first_service"))
        .current_dir(&folder)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(service.stdout.take().unwrap()).lines();
    let said = timeout(Duration::from_secs(30), lines.next_line()).await.unwrap().unwrap().unwrap();
    assert!(said.contains("OrderPlaced Order/1"), "{said}");

    let id = service.id().expect("it is running").to_string();
    let interrupted = Command::new("kill").args(["-s", "INT", &id]).status().await.unwrap();
    assert!(interrupted.success());
    let ended = timeout(Duration::from_secs(30), service.wait()).await.unwrap().unwrap();
    fs::remove_dir_all(&folder).unwrap();
    assert!(ended.success(), "{ended}");
}
