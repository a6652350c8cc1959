//! What statements touch: success stays inside its page, and nothing walks over what it does not need.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use posthaste_core::{
    Event, Key, Status,
    store::{
        Claim, Fence, Filter, Inspect, LaneKey, Limit, Operate, Position, Read, Relay,
        RelayOrdering, RowLease, Schema, Settle, Wait,
    },
};
use posthaste_stores::postgres::PostgresStore;
use uuid::Uuid;

use crate::support::{Outbox, SHARDS, event, new_relay, sent, sequences};

#[tokio::test]
async fn success_stays_inside_the_page() {
    let outbox = Outbox::new().await;
    // Rows of one size fill their pages most evenly: what fits for one size may not for the next.
    let events: Vec<Event> = (0..1000)
        .map(|n| {
            let payload = "x".repeat(100 * (n / 200));
            Event::builder("T").aggregate("A", n).raw_json(payload).build().unwrap()
        })
        .collect();
    outbox.commit(&events).await;
    let (relay, held) = outbox.hold().await;
    let page =
        outbox.store.read_on(&SHARDS, &Position::default(), Limit::rows(1000)).await.unwrap();
    let fence = Fence::Shards { owner: relay.owner(), held };
    let settler = outbox.other_process().await;
    for batch in page.rows.chunks(100) {
        let batch: Vec<_> = batch.iter().map(|row| sent(row.sequence, row.shard)).collect();
        settler.store.settle(&fence, &batch, true).await.unwrap();
    }
    outbox.end(settler).await;
    assert_eq!(outbox.store.count_sent().await.unwrap(), 1000);

    let updates = outbox.stats().await;
    assert_eq!((updates.updated, updates.updated_in_page), (1000, 1000));
    outbox.drop().await;
}

#[tokio::test]
async fn no_read_walks_over_what_was_sent() {
    let outbox = Outbox::new().await;
    let all: i64 = 20_000;
    outbox.fill_with_sent(all).await;
    let key = Key(7);
    let lane = format!(
        "update {{events}} set not_before = 'infinity', wait = 'held', lane = {}, \
         destination = 'd', sent_at = null where sequence % 5000 = 0",
        key.0
    );
    let mut connection = outbox.pool.acquire().await.unwrap();
    for sql in [
        lane.as_str(),
        "update {events} set not_before = now() - interval '1 day', sent_at = null
         where sequence % 5000 = 1",
        "update {events} set dead_at = now() - interval '1 day', sent_at = null
         where sequence % 5000 = 2",
        "update {events} set sent_at = null where sequence > 19990 and sequence % 5000 > 100",
        "update {shards} set mark = 19990, mark_context = ''",
        "analyze {events}",
    ] {
        outbox.execute(&mut connection, sql).await;
    }
    drop(connection);
    let near_the_end = Position { sequence: all - 100, context: outbox.context().await };
    let some = &SHARDS[..3];
    let of_aggregate = Filter { aggregate_id: Some("7".to_owned()), ..Filter::default() };
    let year = Duration::from_hours(24 * 365);

    outbox
        .touches_few("read_ahead", async |s| s.read_on(some, &near_the_end, Limit::rows(500)).await)
        .await;
    outbox
        .touches_few("read_ahead in all", async |s| {
            s.check().await?;
            s.read_on(&SHARDS, &near_the_end, Limit::rows(500)).await
        })
        .await;
    outbox
        .touches_few("read_on", async |s| s.read_on(some, &near_the_end, Limit::rows(500)).await)
        .await;
    outbox.touches_few("read_due", async |s| s.read_due(some, None, Limit::rows(100)).await).await;
    outbox
        .touches_few("read_hot", async |s| s.read_hot(&[all - 1, all], &near_the_end).await)
        .await;
    outbox
        .touches_few("read_held", async |s| s.read_held("d", key, 0, Limit::rows(100)).await)
        .await;
    let lane = LaneKey { key, destination: "d".to_owned() };
    outbox
        .touches_few("read_lane", async |s| s.read_lane(&lane, None, Limit::rows(100)).await)
        .await;
    let last = Some((Wait::Held, all / 2));
    outbox
        .touches_few("read_lane on", async |s| s.read_lane(&lane, last, Limit::rows(100)).await)
        .await;
    outbox.touches_few("read_blocked", async |s| s.read_blocked(some, None, 1000).await).await;
    outbox
        .touches_few("events of an aggregate", async |s| s.events(&of_aggregate, None, 20).await)
        .await;
    outbox.touches_few("counts", async |s| s.counts(u64::MAX).await).await;
    outbox.touches_few("oldest_pending", async |s| s.oldest_pending().await).await;
    outbox
        .touches_fewer_than(2000, "overdue", async |s| s.overdue(all - 600, 500, year).await)
        .await;
    outbox
        .touches_few("still_overdue", async |s| s.still_overdue(&[1, 5000], Duration::ZERO).await)
        .await;
    outbox.touches_few("purge", async |s| s.purge(year, Some(year), 100, Some(100)).await).await;
    outbox.drop().await;
}

/// However many events of other shards are due, or wait for their time.
#[tokio::test]
async fn a_due_read_walks_over_few_of_other_shards() {
    const MANY: i64 = 20_000;

    let outbox = Outbox::new().await;
    let mut connection = outbox.pool.acquire().await.unwrap();
    for time in ["now() - interval '1 h'", "now() + interval '1 h'"] {
        let fill = format!(
            "insert into {{events}} (event_id, event_type, aggregate_id, payload, not_before)
             select gen_random_uuid(), 'T', 'other', '', {time} from generate_series(1, {MANY})"
        );
        outbox.execute(&mut connection, &fill).await;
    }
    let other = outbox.shard_of(1).await;
    let own = SHARDS.into_iter().filter(|&shard| shard != other).collect::<Vec<u16>>();
    let fill = "insert into {events} (event_id, event_type, aggregate_id, payload, not_before)
        select gen_random_uuid(), 'T', n::text, '', now() - interval '1 min'
        from generate_series(1, 100) n";
    outbox.execute(&mut connection, fill).await;
    outbox.execute(&mut connection, "analyze {events}").await;
    drop(connection);
    let expected: i64 =
        outbox.scalar(&format!("select count(*) from {{events}} where shard <> {other}")).await;
    let (mut found, mut after) = (0, None);
    for round in 0.. {
        assert!(round < 10, "{found} after {round} pages");
        let read = async |s: &PostgresStore| s.read_due(&own, after, Limit::rows(500)).await;
        let due = outbox.touches_fewer_than(11_000, "read_due", read).await;
        assert!(due.more.is_none() || due.more > after, "it stands still");
        assert_eq!(due.next, None, "the next one is of another shard");
        found += due.rows.len() as i64;
        after = due.more;
        if after.is_none() {
            break;
        }
    }
    assert!(expected > 0);
    assert_eq!(found, expected);

    // Of one's own it walks over no more than it brings.
    let read = async |s: &PostgresStore| s.read_due(&SHARDS, None, Limit::rows(100)).await;
    let due = outbox.touches_few("read_due of all shards", read).await;
    assert!(due.rows.len() == 100 && due.more.is_some() && due.next.is_some());
    outbox.drop().await;
}

#[tokio::test]
async fn a_search_for_expired_leases_does_not_walk_over_the_backlog() {
    let outbox = Outbox::new().await;
    outbox.fill_with_sent(20_000).await;
    let mut connection = outbox.pool.acquire().await.unwrap();
    outbox.execute(&mut connection, "update {events} set sent_at = null").await;
    let relay = Relay { ordering: RelayOrdering::None, ..new_relay("r") };
    let lease = RowLease { token: format!("{}#1", relay.owner()) };
    let search = async |s: &PostgresStore| s.claim_expired(&relay, &lease, 100).await;
    assert!(outbox.touches_few("claim_expired", search).await.row.is_none());

    let lock = "update {events} set locked_by = 'gone', locked_until = now() where sequence = 50";
    outbox.execute(&mut connection, lock).await;
    let expired = outbox.touches_few("claim_expired", search).await;
    assert_eq!(expired.row.unwrap().sequence, 50);
    outbox.drop().await;
}

/// A destination was down for long: all of it was written back, and falls due together.
#[tokio::test]
async fn a_search_for_expired_leases_walks_over_few_of_those_that_are_due() {
    const DUE: i64 = 20_000;

    let outbox = Outbox::new().await;
    outbox.fill_with_sent(DUE).await;
    let mut connection = outbox.pool.acquire().await.unwrap();
    for sql in [
        "update {events} set sent_at = null, not_before = now() - interval '1 hour'",
        "update {events} set locked_by = 'gone', locked_until = now() where sequence = 15000",
        "vacuum analyze {events}",
    ] {
        outbox.execute(&mut connection, sql).await;
    }
    let relay = Relay { ordering: RelayOrdering::None, ..new_relay("r") };
    let lease = RowLease { token: format!("{}#1", relay.owner()) };
    let search = async |s: &PostgresStore| s.claim_expired(&relay, &lease, 0).await;
    let first = outbox.touches_fewer_than(6_000, "claim_expired", search).await;
    assert!(first.row.is_none() && first.more, "it lies beyond what one search looks at");
    // The next ones go on there.
    let mut found = Vec::new();
    for _ in 0..5 {
        let row = outbox.store.claim_expired(&relay, &lease, 0).await.unwrap();
        found.extend(row.row.map(|row| row.sequence));
    }
    assert_eq!(found, [15_000]);
    outbox.drop().await;
}

/// However much was written since the last sweep, and however much of it came late.
#[tokio::test]
async fn a_sweep_does_not_walk_over_what_was_written_since() {
    const FILL: &str = "insert into {events} (event_id, event_type, aggregate_id, payload)
        select gen_random_uuid(), 'T', (n % 1000)::text, '' from generate_series(1, 20000) n";

    let outbox = Outbox::new().await;
    let relay = Relay { ordering: RelayOrdering::None, ..new_relay("r") };
    let lease = RowLease { token: format!("{}#1", relay.owner()) };
    let sweep = async |s: &PostgresStore, from: &Position| {
        s.claim_late(&relay, &lease, from, Limit::rows(100)).await
    };
    outbox.commit(&[event("first")]).await;
    let first = outbox.store.claim(&relay, &lease, &Position::default(), Limit::rows(10)).await;
    let swept = sweep(&outbox.store, &first.unwrap().position).await.unwrap();

    let execute = async |sql: &str| {
        let mut connection = outbox.pool.acquire().await.unwrap();
        outbox.execute(&mut connection, sql).await;
    };
    execute(FILL).await;
    execute("analyze {events}").await;
    let read = async |s: &PostgresStore| sweep(s, &swept.position).await;
    let swept = outbox.touches_few("a sweep after much was written", read).await;
    assert!(swept.rows.is_empty(), "nothing was passed over");

    // All of it is sent. Then as much comes late.
    execute("update {events} set sent_at = now()").await;
    let mut open = outbox.pool.begin().await.unwrap();
    outbox.execute(&mut open, FILL).await;
    let passed = outbox.commit(&[event("passed")]).await[0];
    let mut position = Position { sequence: passed, ..swept.position };
    for _ in 0..3 {
        position = sweep(&outbox.store, &position).await.unwrap().position;
    }
    open.commit().await.unwrap();
    execute("analyze {events}").await;
    let mut found = 0;
    for turn in 0..3 {
        let read = async |s: &PostgresStore| sweep(s, &position).await;
        let swept = outbox.touches_few("a sweep over many that came late", read).await;
        assert_eq!(swept.rows.len(), 100, "turn {turn}");
        found += swept.rows.len();
        position = swept.position;
    }
    assert_eq!(found, 300);
    outbox.drop().await;
}

#[tokio::test]
async fn late_events_are_found_by_their_transaction_also_when_one_wrote_nearly_all() {
    let outbox = Outbox::new().await;
    outbox.fill_with_sent(20_000).await;
    let mut open = outbox.pool.begin().await.unwrap();
    let late = outbox.enqueue(&mut open, &[event("late")]).await[0];
    let quick = outbox.commit(&[event("quick")]).await[0];
    let position = Position { sequence: quick, context: outbox.context().await };
    open.commit().await.unwrap();

    let read = async |s: &PostgresStore| s.read_late(&SHARDS, &position, Limit::rows(1000)).await;
    let page = outbox.touches_few("read_late", read).await;
    assert_eq!(sequences(&page.rows), [late]);
    outbox.drop().await;
}

#[tokio::test]
async fn a_list_enters_by_an_index_or_says_how_far_it_looked() {
    let outbox = Outbox::new().await;
    let begin: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    outbox.fill_half_sent(begin).await;
    let second = |n: i64| begin.checked_add(SignedDuration::from_secs(n)).unwrap();
    let text = |text: &str| Some(text.to_owned());
    let status = |status| Filter { status: Some(status), ..Filter::default() };
    let of_key = Filter {
        tenant: text("t7"),
        aggregate_type: text("A"),
        aggregate_id: text("7"),
        ..Filter::default()
    };
    let of_times = Filter {
        created_from: Some(second(10_000)),
        created_before: Some(second(10_200)),
        ..Filter::default()
    };
    let dead_of_times = Filter { status: Some(Status::Dead), ..of_times.clone() };
    let id: Uuid = outbox.scalar("select event_id from {events} where sequence = 777").await;
    let found = outbox.touches_few("an id", async |s| s.event(id).await).await;
    assert_eq!(found.unwrap().sequence, 777);
    for (what, filter, before, expected) in [
        ("everything", Filter::default(), None, 20),
        ("everything behind a cursor", Filter::default(), Some(20_000), 20),
        ("the dead", status(Status::Dead), None, 20),
        ("the dead behind a cursor", status(Status::Dead), Some(20_000), 20),
        ("what failed", status(Status::Retry), None, 20),
        ("an aggregate", Filter { aggregate_id: text("7"), ..Filter::default() }, None, 20),
        ("a key", of_key, None, 20),
        ("a time range", of_times, None, 20),
        ("the dead of a time range", dead_of_times, None, 2),
    ] {
        let list = async |s: &PostgresStore| s.events(&filter, before, 20).await;
        let page = outbox.touches_few(what, list).await;
        assert_eq!(page.events.len(), expected, "{what}");
    }

    for filter in [
        Filter { tenant: text("nobody"), ..Filter::default() },
        Filter { event_type: text("nothing"), ..Filter::default() },
        Filter { tenant: text("nobody"), status: Some(Status::New), ..Filter::default() },
        Filter { tenant: text("nobody"), created_from: Some(second(20_000)), ..Filter::default() },
    ] {
        let list = async |s: &PostgresStore| s.events(&filter, None, 20).await;
        let page = outbox.touches_fewer_than(11_000, "a search", list).await;
        assert_eq!((page.events.len(), page.examined), (0, 10_000), "{filter:?}");
        assert!(page.next.is_some(), "the rest was not looked at");
    }

    // Very many are dead, or have failed.
    let mut connection = outbox.pool.acquire().await.unwrap();
    for sql in [
        "update {events} set dead_at = now(), sent_at = null where sequence <= 15000",
        "update {events} set wait = 'retry', attempts = 1, not_before = now() + interval '1 h'
         where sequence > 15000",
        "analyze {events}",
    ] {
        outbox.execute(&mut connection, sql).await;
    }
    drop(connection);
    for state in [Status::Dead, Status::Retry] {
        let list = async |s: &PostgresStore| s.events(&status(state), None, 20).await;
        let window = if state == Status::Dead { 1_000 } else { 11_000 };
        let page = outbox.touches_fewer_than(window, state.as_str(), list).await;
        assert_eq!(page.events.len(), 20);
        let filter = Filter { tenant: text("nobody"), ..status(state) };
        let list = async |s: &PostgresStore| s.events(&filter, None, 20).await;
        let page = outbox.touches_fewer_than(11_000, state.as_str(), list).await;
        assert_eq!(page.examined, 10_000);
    }
    outbox.drop().await;
}

#[tokio::test]
async fn a_scrape_costs_no_scan_however_many_wait_or_were_sent() {
    const CAP: u64 = 100;

    let outbox = Outbox::new().await;
    outbox.fill_half_sent("2026-01-01T00:00:00Z".parse().unwrap()).await;
    let scrape = async |what: &str| {
        let counts = outbox.touches_fewer_than(5_000, what, async |s| s.counts(CAP).await).await;
        outbox.touches_fewer_than(5_000, what, async |s| s.counts_by_tenant(CAP).await).await;
        let oldest = async |s: &PostgresStore| s.oldest_pending().await;
        let oldest = outbox.touches_fewer_than(25_000, what, oldest).await;
        (counts, oldest)
    };
    let change = async |sql: &str| {
        let mut connection = outbox.pool.acquire().await.unwrap();
        outbox.execute(&mut connection, sql).await;
        outbox.execute(&mut connection, "vacuum analyze {events}").await;
    };
    let (counts, oldest) = scrape("15,000 pending").await;
    assert!(counts.estimated && counts.new > 12_000, "{counts:?}");
    assert!(oldest.is_some());

    // A mark that stays behind: all above it were sent, but for the last.
    change(
        "update {events} set sent_at = now(), not_before = null, wait = null, dead_at = null
            where sequence < 30000",
    )
    .await;
    change("update {shards} set mark = 0").await;
    let (counts, _) = scrape("30,000 sent above a mark").await;
    assert!(counts.estimated, "{counts:?}");

    // All had failed once before they were sent.
    change("update {shards} set mark = 30000").await;
    change("update {events} set not_before = created_at, wait = 'retry'").await;
    let (counts, oldest) = scrape("30,000 that were sent after a failure").await;
    assert!(counts.estimated && counts.retry == 1, "{counts:?}");
    assert!(oldest.is_some());

    // All are held.
    change("update {events} set sent_at = null, wait = 'held', not_before = 'infinity'").await;
    let (counts, oldest) = scrape("30,000 held").await;
    assert!(counts.estimated && counts.new + counts.retry > CAP, "{counts:?}");
    assert_eq!(oldest, None);
    outbox.drop().await;
}
