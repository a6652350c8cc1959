//! A relay stopped cleanly, and much was written since: the next one delivers at once, within the memory that
//! it has always had.
//!
//! The long form writes 10,000,000 rows: `scripts/test --nightly -- --no-capture -E 'test(takeover::)'`.

use std::{
    fs,
    time::{Duration, Instant},
};

use posthaste::{Dialect, Status};
use posthaste_harness::{
    fixture::{Database, Fixture, OpenTransaction, event, nightly},
    on_databases,
    options::RelayOptions,
    process::Process,
    with_pool,
};
use sqlx::Pool;

on_databases! {
    postgres, Postgres:
        much_that_was_written_since_a_clean_stop_is_delivered_at_once,
        one_transaction_that_wrote_much_since_a_clean_stop_is_delivered_at_once;
    mariadb, MariaDb:
        much_that_was_written_since_a_clean_stop_is_delivered_at_once,
        one_transaction_that_wrote_much_since_a_clean_stop_is_delivered_at_once;
}

/// The first delivery comes so soon after the leases were taken.
const SOON: Duration = Duration::from_secs(2);

/// Resident memory may grow by this much once delivery runs.
const GROWTH: u64 = 16 << 20;

/// Rows of one statement, when it is not to be one transaction.
const STATEMENT: u64 = 1_000_000;

/// How long delivery is watched.
const WATCHED: Duration = Duration::from_secs(20);

fn rows() -> u64 {
    if nightly() { 10_000_000 } else { 60_000 }
}

/// The defaults of the product, in a process of its own.
fn options(on: &Fixture, name: &str) -> RelayOptions {
    RelayOptions {
        lease: 30_000,
        heartbeat: 10_000,
        busy: 100,
        idle: 1_000,
        batch: 500,
        concurrency: 64,
        ..on.relay_options(name)
    }
}

async fn much_that_was_written_since_a_clean_stop_is_delivered_at_once(on: &Fixture) {
    with_pool!(&on.connections, pool => take_over(on, pool, STATEMENT).await);
}

async fn one_transaction_that_wrote_much_since_a_clean_stop_is_delivered_at_once(on: &Fixture) {
    with_pool!(&on.connections, pool => take_over(on, pool, rows()).await);
}

async fn take_over<DB: Dialect>(on: &Fixture, pool: &Pool<DB>, statement: u64) {
    let first = on.relay(&options(on, "first"));
    on.until_holds("first", on.shard_count().await).await;
    let events = |event_type: &str| (0..20).map(|n| event(event_type, &format!("k{n}"))).collect();
    on.enqueue(events("Early")).await;
    on.until_drained().await;
    // A transaction stays open across the stop.
    let open = OpenTransaction::begin(on, pool, events("Open")).await;
    on.enqueue(events("Passing")).await;
    on.until_drained().await;
    first.stop().await;

    let began = Instant::now();
    let mut written = 0;
    while written < rows() {
        let to = rows().min(written + statement);
        write(on, written + 1, to).await;
        written = to;
    }
    println!(
        "{:?}: {written} rows, {statement} a transaction, in {:.0?}",
        on.database,
        began.elapsed()
    );

    let second = on.relay(&options(on, "second"));
    let taken = second.until("leases", |report| report.shards_owned > 0).await;
    let begun = Instant::now();
    if taken.delivered == 0 {
        second.until("a delivery", |report| report.delivered > 0).await;
    }
    let took = begun.elapsed();
    println!("first delivery {took:.2?} after the leases were taken");
    let ids: Vec<_> = open.enqueued.iter().map(|enqueued| enqueued.id).collect();
    open.commit().await;
    watch(&second).await;
    on.until("what was open across the stop", async || {
        for id in &ids {
            if on.event(*id).await.status != Status::Sent {
                return false;
            }
        }
        true
    })
    .await;
    let report = second.stop().await;
    assert_eq!((report.database_errors, report.suspects), (0, 0), "{report:?}");
    assert!(!nightly() || took < SOON, "the first delivery took {took:?}");

    // A mark that stayed back: the first half is sent already.
    if nightly() {
        sent_up_to(on, rows() / 2).await;
        let third = on.relay(&options(on, "third"));
        third.until("leases", |report| report.shards_owned > 0).await;
        let begun = Instant::now();
        third.until("a delivery", |report| report.delivered > 0).await;
        println!("behind {} sent rows: first delivery after {:.2?}", rows() / 2, begun.elapsed());
        third.stop().await;
    }
}

/// Watches the memory of a relay that delivers.
async fn watch(relay: &Process) {
    let begun = Instant::now();
    let (mut settled, mut most) = (0, 0);
    let first = relay.report().delivered;
    while begun.elapsed() < if nightly() { WATCHED } else { Duration::from_secs(2) } {
        let now = resident(relay.id());
        if begun.elapsed() < WATCHED / 10 {
            settled = settled.max(now);
        }
        most = most.max(now);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let delivered = relay.report().delivered - first;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "resident: {:.1} MiB in the first 2 s, {:.1} MiB at most, {:.1} MiB at the end; {delivered} delivered",
        mib(settled),
        mib(most),
        mib(resident(relay.id()))
    );
    assert!(most <= settled + GROWTH, "memory grows: {settled} bytes, then {most}");
}

/// Bytes of memory that this process has.
fn resident(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it has ended");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
    let kib: u64 = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number");
    kib << 10
}

/// Writes rows with these numbers as their ids, in one transaction.
async fn write(on: &Fixture, from: u64, to: u64) {
    let sql = match on.database {
        Database::Postgres => format!(
            "insert into {{events}} (event_id, event_type, aggregate_type, aggregate_id, payload)
            select lpad(to_hex(n), 32, '0')::uuid, 'Changed', 'Thing', 'b' || n % 20000, '{{}}'
            from generate_series({from}, {to}) n"
        ),
        _ => format!(
            "insert into {{events}}
                (event_id, event_type, aggregate_type, aggregate_id, payload, key_hash)
            select concat('00000000-0000-0000-0000-', lpad(hex(seq), 12, '0')), 'Changed', 'Thing',
                concat('b', seq % 20000), '{{}}',
                conv(left(sha2(concat('0:5:Thing', length(concat('b', seq % 20000)), ':b',
                    seq % 20000), 256), 8), 16, 10)
            from seq_{from}_to_{to}"
        ),
    };
    on.sql(&sql).await;
}

/// Marks rows as sent, up to this many, and sets the marks of all shards back to before them.
async fn sent_up_to(on: &Fixture, last: u64) {
    let now = if on.database == Database::Postgres { "now()" } else { "utc_timestamp(6)" };
    let mut from = 0;
    while from < last {
        let to = last.min(from + STATEMENT);
        on.sql(&format!(
            "update {{events}} set sent_at = {now}
            where sequence > {from} and sequence <= {to} and sent_at is null"
        ))
        .await;
        from = to;
    }
    on.sql("update {shards} set mark = 0").await;
}
