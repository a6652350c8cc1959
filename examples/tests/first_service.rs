//! The example `first_service`: what the README shows, and that it runs.

use std::{env, fs, process::Command};

const README: &str = include_str!("../../README.md");

const PROGRAM: &str = include_str!("../src/bin/first_service.rs");

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

#[test]
fn it_delivers_its_event() {
    let folder = env::temp_dir().join(format!("posthaste-first-{}", uuid::Uuid::now_v7()));
    fs::create_dir(&folder).unwrap();
    let program = env!("CARGO_BIN_EXE_first_service");
    let output = Command::new(program).current_dir(&folder).output().unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let (said, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{errors}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("OrderPlaced") && said.contains("a book, by tomorrow"), "{said}");
}
