//! The demo ends with a verdict and leaves nothing behind.

mod command;

use command::{Folder, command, content, stderr, stdout, succeed};

#[test]
fn the_demo_delivers_everything_in_order_and_says_how_it_was_checked() {
    // Its files go where the test can see what is left of them.
    let folder = Folder::new();
    let path = folder.url().replace("sqlite:", "").replace("/app.db", "");
    let output = command(&["demo", "--for", "2s"]).env("TMPDIR", &path).output().unwrap();
    let text = stdout(&output);
    assert!(output.status.success(), "{text}\n{}", stderr(&output));
    for line in ["lost: 0", "out of order: 0", "duplicates: 0"] {
        assert!(text.lines().any(|found| found == line), "no line {line:?} in\n{text}");
    }
    assert!(text.contains(", their events delivered: 0"), "{text}");
    assert!(text.contains("How it was checked:"), "{text}");
    assert!(text.contains("   1 s  committed "), "no account on the way in\n{text}");
    assert!(!text.contains('\x1b'), "escape codes where there is no terminal:\n{text}");
    assert_eq!(stderr(&output), "");
    assert!(folder.is_empty(), "the demo left a file behind");
}

/// What fails and what is poison is left to chance: on a busy machine the first run may show none.
#[test]
fn retries_and_dead_letters_show_in_the_summary() {
    let shown = (0..8).any(|_| {
        let text = succeed(&["demo", "--for", "4s", "--rate", "200"]);
        let figure = |name: &str| -> u64 {
            let line = text.lines().rev().find(|line| line.trim_start().starts_with(name)).unwrap();
            line.split_whitespace().find_map(|word| word.replace(',', "").parse().ok()).unwrap()
        };
        figure("retries") > 0 && figure("dead letters:") > 0
    });
    assert!(shown, "no run had a retry and a dead letter");
}

#[tokio::test]
async fn a_demo_in_a_database_of_the_users_leaves_it_as_it_was() {
    let folder = Folder::new();
    let url = folder.migrated();
    let before = content(&url).await;
    succeed(&["demo", "--for", "1s", "--url", &url]);
    assert_eq!(content(&url).await, before);
}

#[cfg(unix)]
#[test]
fn an_interrupted_demo_still_ends_with_its_verdict() {
    use std::{
        io::{BufRead as _, BufReader, Read as _},
        process::{Command, Stdio},
    };

    let mut demo = command(&["demo"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap());
    // The account begins when the shop is open.
    let mut line = String::new();
    while !line.contains("committed") {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "the demo ended by itself");
    }
    let sent = Command::new("kill").args(["-INT", &demo.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert!(demo.wait().unwrap().success(), "{rest}");
    assert!(rest.contains("\nlost: 0\nout of order: 0\n"), "{rest}");
}
