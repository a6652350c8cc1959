//! One key, two processes that write to it in turns, two paths to the relay: order holds.

use std::collections::HashMap;

use posthaste_harness::{
    fixture::{Fixture, nightly, seed},
    journal::Step,
    on_databases,
    options::{Path, WriterOptions},
    process::Process,
};

on_databases! {
    postgres, Postgres:
        a_key_written_hot_and_cold_in_turns_keeps_its_order,
        a_key_written_by_two_processes_with_a_relay_each_keeps_its_order,
        what_a_writer_committed_when_it_died_is_delivered_by_another_process;
    mariadb, MariaDb:
        a_key_written_hot_and_cold_in_turns_keeps_its_order,
        a_key_written_by_two_processes_with_a_relay_each_keeps_its_order,
        what_a_writer_committed_when_it_died_is_delivered_by_another_process;
    sqlite, Sqlite:
        a_key_written_hot_and_cold_in_turns_keeps_its_order,
        a_key_written_by_two_processes_with_a_relay_each_keeps_its_order,
        what_a_writer_committed_when_it_died_is_delivered_by_another_process;
}

const KEYS: u32 = 40;

/// One process has the only relay, the other tells nobody: every key comes hot and cold in turns.
async fn a_key_written_hot_and_cold_in_turns_keeps_its_order(on: &Fixture) {
    in_turns(on, Path::Plain).await;
}

/// Each process has a relay with half of the shards: what is hot for one is cold for the other.
async fn a_key_written_by_two_processes_with_a_relay_each_keeps_its_order(on: &Fixture) {
    in_turns(on, Path::Hot).await;
}

/// The hot path has been told, and nothing else has happened yet.
async fn what_a_writer_committed_when_it_died_is_delivered_by_another_process(on: &Fixture) {
    let mut options = WriterOptions {
        path: Path::Hot,
        commanded: true,
        dies_after_commit: true,
        ..on.writer_options("writer")
    };
    options.relay.lease = 1_000;
    options.relay.heartbeat = 200;
    // It does not find the event by itself between the commit and the writer's death.
    (options.relay.busy, options.relay.idle) = (60_000, 60_000);
    let mut writer = on.writer(&options);
    on.until_holds("writer", on.shard_count().await).await;
    writer.until("the first read", |report| report.idle).await;
    writer.tell("write k1");
    assert!(!writer.ended().await.success(), "it died");
    assert_eq!(on.events().await.len(), 1, "and had committed");
    assert_eq!(on.judge().steps(Step::Handed).count(), 0, "and handed over nothing");

    let relay = on.relay(&on.relay_options("other"));
    on.until_drained().await;
    relay.stop().await;
    let judgement = on.judge();
    judgement.verdict().assert_clean();
    let by: Vec<&str> = judgement.steps(Step::Delivered).map(|fact| &*fact.relay).collect();
    assert_eq!(by, ["other"]);
}

async fn in_turns(on: &Fixture, second: Path) {
    let seed = seed();
    let rounds = if nightly() { 400 } else { 20 };
    let writer = |name: &str, path: Path| {
        let mut options =
            WriterOptions { path, commanded: true, side_by_side: 4, ..on.writer_options(name) };
        // Failures, so that lanes are blocked and released while hot events come in.
        options.relay.fail = 0.1;
        options.relay.lease = 20_000;
        options.relay.heartbeat = 1_000;
        options.relay.seed = seed;
        on.writer(&options)
    };
    let writers = [writer("one", Path::Hot), writer("two", second)];
    let total = on.shard_count().await;
    let share = if second == Path::Hot { total.div_ceil(2) } else { total };
    on.until_holds("one", share).await;
    writers[0].until("the first read", |report| report.idle).await;
    take_turns(&writers, rounds).await;
    on.until_drained().await;

    let mut reports = Vec::new();
    for writer in writers {
        reports.push(writer.stop().await);
    }
    let sum = |count: fn(&posthaste_harness::message::Report) -> u64| {
        reports.iter().map(count).sum::<u64>()
    };
    let (hot, cold) = (sum(|report| report.hot_enqueued), sum(|report| report.cold_enqueued));
    println!("{hot} came hot, {cold} cold, {} were held", sum(|report| report.held));
    assert!(hot > 0 && cold > 0, "both paths were taken");
    assert_eq!(sum(|report| report.committed), u64::from(KEYS) * rounds);
    on.judge().verdict().assert_clean();
}

/// Every key is written to in turns, by one process and then by the other, each time only after
/// the commit before was acknowledged. All keys go side by side.
async fn take_turns(writers: &[Process; 2], rounds: u64) {
    let mut written = writers.each_ref().map(Process::written);
    let mut turns: HashMap<String, u64> = HashMap::new();
    for key in 0..KEYS {
        let key = format!("k{key}");
        // Half of the keys begin with the one process, half with the other.
        writers[(turns.len()) % 2].tell(&format!("write {key}"));
        turns.insert(key, rounds - 1);
    }
    let mut left = KEYS;
    while left > 0 {
        let [one, two] = &mut written;
        let (key, next) = tokio::select! {
            Some(key) = one.recv() => (key, 1),
            Some(key) = two.recv() => (key, 0),
            else => panic!("both writers ended"),
        };
        let turns = turns.get_mut(&key).expect("a key of ours");
        if *turns == 0 {
            left -= 1;
        } else {
            *turns -= 1;
            writers[next].tell(&format!("write {key}"));
        }
    }
}
