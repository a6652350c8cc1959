//! PostgreSQL: what every store must do, and what only this one promises.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use posthaste_core::{
    Event, Key, Status, TableName,
    store::{
        Claim, Diagnose, Fence, Filter, Finding, Held, Inspect, Leases, Level, Operate, Position,
        Read, Relay, RelayOrdering, RowLease, Schema, Settle, Settlement, ShardLease, Verdict,
        Wake,
    },
};
use posthaste_stores::{Dialect, Tables, postgres::PostgresStore};
use posthaste_testkit::{conformance::Subject, tables};
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Postgres, postgres::PgPoolOptions};
use uuid::Uuid;

async fn subject() -> Option<Subject<Postgres>> {
    Some(Subject::new(pool(12).await))
}

posthaste_testkit::store_conformance!(subject);

#[tokio::test]
async fn an_open_transaction_stalls_nobody_and_its_event_is_found_after_its_commit() {
    let outbox = Outbox::new().await;
    let lease = outbox.acquire().await;
    let mut open = outbox.pool.begin().await.unwrap();
    let slow = outbox.enqueue(&mut open, &[event("slow")]).await[0];
    let quick = outbox.commit(&[event("a"), event("b")]).await;

    let page = outbox.store.read_ahead(&SHARDS, &lease.mark, 10).await.unwrap();
    assert_eq!(sequences(&page.rows), quick);
    let page = outbox.store.read_late(&SHARDS, &page.position, 1000).await.unwrap();
    assert!(!sequences(&page.rows).contains(&slow), "it is not committed yet");
    let more = outbox.commit(&[event("c")]).await;
    let ahead = outbox.store.read_ahead(&SHARDS, &page.position, 10).await.unwrap();
    assert_eq!(sequences(&ahead.rows), more, "the open transaction holds nobody back");
    open.commit().await.unwrap();

    let late = outbox.store.read_late(&SHARDS, &ahead.position, 1000).await.unwrap();
    assert_eq!(
        sequences(&late.rows),
        [slow, more[0]],
        "what the last snapshot could not see; the caller drops what it knows"
    );
    let again = outbox.store.read_late(&SHARDS, &late.position, 1000).await.unwrap();
    assert!(again.rows.is_empty(), "found once");
    outbox.drop().await;
}

#[tokio::test]
async fn events_that_commit_in_reverse_order_are_all_found() {
    let outbox = Outbox::new().await;
    let mut position = outbox.acquire().await.mark;
    let mut open = Vec::new();
    for n in 0..5 {
        let mut transaction = outbox.pool.begin().await.unwrap();
        let sequence = outbox.enqueue(&mut transaction, &[event(&n.to_string())]).await[0];
        open.push((sequence, transaction));
    }
    for (sequence, transaction) in open.into_iter().rev() {
        transaction.commit().await.unwrap();
        let ahead = outbox.store.read_ahead(&SHARDS, &position, 10).await.unwrap();
        let late = outbox.store.read_late(&SHARDS, &ahead.position, 1000).await.unwrap();
        let found: Vec<i64> = [sequences(&ahead.rows), sequences(&late.rows)].concat();
        assert!(found.contains(&sequence), "{sequence} is missing in {found:?}");
        position = late.position;
    }
    outbox.drop().await;
}

#[tokio::test]
async fn a_snapshot_from_the_future_is_not_trusted() {
    // As after a restore into another server, or a failover that lost the last transactions.
    let outbox = Outbox::new().await;
    let written = outbox.commit(&[event("a"), event("b")]).await;
    let future = Position { sequence: written[1], context: "999999999:999999999:".to_owned() };
    let late = outbox.store.read_late(&SHARDS, &future, 1000).await.unwrap();
    assert_eq!(sequences(&late.rows), written);

    let (relay, held) = outbox.hold().await;
    outbox.store.release(&relay, &held, &future).await.unwrap();
    let lease = outbox.acquire().await;
    assert_eq!(lease.mark.sequence, 0, "reading starts again from the first event");
    outbox.drop().await;
}

#[tokio::test]
async fn a_settle_that_waits_for_a_takeover_is_refused() {
    let outbox = Outbox::new().await;
    let sequence = outbox.commit(&[event("a")]).await[0];
    let (relay, held) = outbox.hold().await;
    let settler = outbox.other_process().await;

    let mut takeover = outbox.pool.begin().await.unwrap();
    let sql = "update {shards} set locked_by = 'thief', epoch = epoch + 1";
    outbox.execute(&mut takeover, sql).await;
    let fence = Fence::Shards { owner: relay.owner(), held: held.clone() };
    let shard = outbox.shard_of(sequence).await;
    let store = settler.store.clone();
    let settle =
        tokio::spawn(async move { store.settle(&fence, &[sent(sequence, shard)], true).await });
    outbox.until_waiting(settler.pid).await;
    takeover.commit().await.unwrap();

    let report = settle.await.unwrap().unwrap();
    assert_eq!(report.refused, [sequence]);
    assert_eq!(report.stale_shards, SHARDS);
    assert_eq!(outbox.store.count_sent().await.unwrap(), 0);
    outbox.drop().await;
}

#[tokio::test]
async fn a_takeover_does_not_get_a_shard_whose_settle_is_under_way() {
    let outbox = Outbox::new().await;
    let sequence = outbox.commit(&[event("a")]).await[0];
    let (relay, held) = outbox.hold().await;
    let settler = outbox.other_process().await;
    let mut connection = outbox.pool.acquire().await.unwrap();
    outbox.execute(&mut connection, "update {shards} set locked_until = now()").await;

    let mut reader = outbox.pool.begin().await.unwrap();
    outbox.execute(&mut reader, "select from {events} for update").await;
    let fence = Fence::Shards { owner: relay.owner(), held };
    let shard = outbox.shard_of(sequence).await;
    let store = settler.store.clone();
    let settle =
        tokio::spawn(async move { store.settle(&fence, &[sent(sequence, shard)], true).await });
    outbox.until_waiting(settler.pid).await;
    let thief = new_relay("thief");
    assert!(outbox.store.acquire(&thief, &SHARDS).await.unwrap().is_empty());
    reader.commit().await.unwrap();

    let report = settle.await.unwrap().unwrap();
    assert!(report.refused.is_empty() && report.stale_shards.is_empty());
    assert_eq!(outbox.store.count_sent().await.unwrap(), 1);
    let taken = outbox.store.acquire(&thief, &SHARDS).await.unwrap();
    assert_eq!(taken.len(), SHARDS.len(), "now that it is over, the shards can be taken");
    outbox.drop().await;
}

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
    let page = outbox.store.read_ahead(&SHARDS, &Position::default(), 1000).await.unwrap();
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
        "update {shards} set mark = 19990, mark_context = pg_current_snapshot()::text",
        "analyze {events}",
    ] {
        outbox.execute(&mut connection, sql).await;
    }
    drop(connection);
    let near_the_end = Position { sequence: all - 100, context: outbox.snapshot().await };
    let some = &SHARDS[..3];
    let of_aggregate = Filter { aggregate_id: Some("7".to_owned()), ..Filter::default() };
    let year = Duration::from_hours(24 * 365);

    outbox.touches_few("read_ahead", async |s| s.read_ahead(some, &near_the_end, 500).await).await;
    outbox
        .touches_few("read_ahead in all", async |s| {
            s.check().await?;
            s.read_ahead(&SHARDS, &near_the_end, 500).await
        })
        .await;
    outbox.touches_few("read_on", async |s| s.read_on(some, &near_the_end, 500, 1000).await).await;
    outbox.touches_few("read_late", async |s| s.read_late(some, &near_the_end, 1000).await).await;
    outbox.touches_few("read_due", async |s| s.read_due(some, 100).await).await;
    outbox
        .touches_few("read_hot", async |s| s.read_hot(&[all - 1, all], &near_the_end).await)
        .await;
    outbox.touches_few("read_held", async |s| s.read_held("d", key, 100).await).await;
    outbox.touches_few("read_blocked", async |s| s.read_blocked(some).await).await;
    outbox
        .touches_few("events of an aggregate", async |s| s.events(&of_aggregate, None, 20).await)
        .await;
    outbox.touches_few("counts", async |s| s.counts(u64::MAX).await).await;
    outbox.touches_few("oldest_pending", async |s| s.oldest_pending().await).await;
    outbox.touches_few("purge", async |s| s.purge(year, Some(year), 100, Some(100)).await).await;
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

async fn finding(store: &PostgresStore, check: &str) -> Finding {
    let findings = store.diagnose().await.unwrap();
    let found = findings.into_iter().find(|finding| finding.check == check);
    found.unwrap_or_else(|| panic!("{check} was not checked"))
}

#[tokio::test]
async fn settings_that_were_changed_are_found_and_the_statement_mends_them() {
    let outbox = Outbox::new().await;
    assert_eq!(finding(&outbox.store, "storage").await.level, Level::Ok);
    let mut connection = outbox.pool.acquire().await.unwrap();
    let change = "alter table {events} reset (autovacuum_vacuum_threshold), set (fillfactor = 100)";
    outbox.execute(&mut connection, change).await;
    let odd = finding(&outbox.store, "storage").await;
    assert_eq!(odd.level, Level::Warning);
    assert!(odd.text.contains("fillfactor=48"), "{}", odd.text);
    outbox.execute(&mut connection, &odd.mend.unwrap()).await;
    assert_eq!(finding(&outbox.store, "storage").await.level, Level::Ok);
    outbox.drop().await;
}

#[tokio::test]
async fn privileges_that_are_missing_are_named_with_the_grant_that_gives_them() {
    let outbox = Outbox::new().await;
    let mut connection = outbox.pool.acquire().await.unwrap();
    let role = format!("role_{}", outbox.tables.name().bare());
    // The account that asks has all privileges; it takes on a role that has few.
    outbox.execute(&mut connection, &format!("create role {role}")).await;
    outbox.execute(&mut connection, &format!("grant {role} to current_user")).await;
    for table in Tables::ALL {
        outbox.execute(&mut connection, &format!("grant select on {table} to {role}")).await;
    }
    let set_role = AssertSqlSafe(format!("set role {role}"));
    let limited = PgPoolOptions::new().max_connections(1);
    let limited = limited.connect_with((*outbox.pool.connect_options()).clone()).await.unwrap();
    sqlx::query(set_role).execute(&limited).await.unwrap();
    let limited = PostgresStore::new(limited, outbox.tables.clone());

    let lacking = finding(&limited, "privileges").await;
    assert_eq!(lacking.level, Level::Problem);
    let events = outbox.tables.fill("update, delete on {events}");
    assert!(lacking.text.contains(&events) && lacking.text.contains(&role), "{}", lacking.text);
    outbox.execute(&mut connection, &lacking.mend.unwrap()).await;
    let lacking = finding(&limited, "privileges").await;
    assert_eq!(lacking.level, Level::Note, "it relays, and cannot operate: {}", lacking.text);
    outbox.execute(&mut connection, &lacking.mend.unwrap()).await;
    assert_eq!(finding(&limited, "privileges").await.level, Level::Ok);

    limited.pool().close().await;
    outbox.execute(&mut connection, &format!("drop owned by {role}; drop role {role}")).await;
    drop(connection);
    outbox.drop().await;
}

#[tokio::test]
async fn listening_through_a_transaction_pooler_is_found_out() {
    let outbox = Outbox::new().await;
    assert_eq!(finding(&outbox.store, "listen").await.level, Level::Ok);
    let url = std::env::var("POSTHASTE_TEST_PGBOUNCER")
        .expect("POSTHASTE_TEST_PGBOUNCER names a pooler; scripts/servers starts one");
    let swallowed = outbox.store.clone().with_listen_url(url);
    let lost = finding(&swallowed, "listen").await;
    assert_eq!(lost.level, Level::Warning);
    assert!(lost.mend.unwrap().contains("listen_url"));
    outbox.drop().await;
}

#[tokio::test]
async fn an_open_transaction_is_told_with_its_session() {
    let outbox = Outbox::new().await;
    let mut open = outbox.pool.begin().await.unwrap();
    let pid: i32 =
        sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut *open).await.unwrap();
    let session = format!("(pid {pid})");
    let seen = async || {
        let open = outbox.store.open_transactions(1_000).await.unwrap();
        open.into_iter().find(|transaction| transaction.who.ends_with(&session))
    };
    assert!(seen().await.is_none(), "it has written nothing");
    outbox.enqueue(&mut open, &[event("a")]).await;
    let transaction = seen().await.expect("it has written");
    assert_eq!(transaction.state, "idle in transaction");
    let age = Timestamp::now().duration_since(transaction.since.unwrap());
    assert!(age.abs() < SignedDuration::from_mins(1), "{age:?}");
    open.commit().await.unwrap();
    assert!(seen().await.is_none(), "it is over");
    outbox.drop().await;
}

#[tokio::test]
async fn a_hot_row_waits_for_a_delayed_event_of_its_key_only_once_that_is_due() {
    let outbox = Outbox::new().await;
    let delayed = outbox.commit(&[event("a")]).await[0];
    let mut connection = outbox.pool.acquire().await.unwrap();
    outbox
        .execute(&mut connection, "update {events} set not_before = now() + interval '1 h'")
        .await;
    let hot = outbox.commit(&[event("a")]).await[0];
    let previous = async || {
        let rows = outbox.store.read_hot(&[hot], &Position::default()).await.unwrap();
        rows[0].previous.clone()
    };
    assert_eq!(previous().await, Some(vec![]));
    let due = "update {events} set not_before = now() where not_before is not null";
    outbox.execute(&mut connection, due).await;
    assert_eq!(previous().await, Some(vec![delayed]));
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
    assert!(outbox.touches_few("claim_expired", search).await.is_none());

    let lock = "update {events} set locked_by = 'gone', locked_until = now() where sequence = 50";
    outbox.execute(&mut connection, lock).await;
    let expired = outbox.touches_few("claim_expired", search).await;
    assert_eq!(expired.unwrap().sequence, 50);
    outbox.drop().await;
}

#[tokio::test]
async fn late_events_are_found_by_their_transaction_also_when_one_wrote_nearly_all() {
    let outbox = Outbox::new().await;
    outbox.fill_with_sent(20_000).await;
    let mut open = outbox.pool.begin().await.unwrap();
    let late = outbox.enqueue(&mut open, &[event("late")]).await[0];
    let quick = outbox.commit(&[event("quick")]).await[0];
    let position = Position { sequence: quick, context: outbox.snapshot().await };
    open.commit().await.unwrap();

    let read = async |s: &PostgresStore| s.read_late(&SHARDS, &position, 1000).await;
    let page = outbox.touches_few("read_late", read).await;
    assert_eq!(sequences(&page.rows), [late]);
    outbox.drop().await;
}

#[tokio::test]
async fn an_outbox_lives_in_the_schema_of_its_name() {
    let pool = pool(4).await;
    let schema = format!("ph_{:016x}", Uuid::now_v7().as_u128() as u64);
    let name: TableName = format!("{schema}.outbox").parse().unwrap();
    let store = PostgresStore::new(pool.clone(), Tables::new(name));
    let refusal = store.migrate(None).await.unwrap_err().to_string();
    assert!(refusal.contains(&format!("create schema {schema}")), "{refusal}");

    sqlx::raw_sql(AssertSqlSafe(format!("create schema {schema}"))).execute(&pool).await.unwrap();
    assert_eq!(store.migrate(None).await.unwrap(), [1, 2, 3, 4, 5]);
    assert_eq!(store.check().await.unwrap(), 64);
    let drop = format!("drop schema {schema} cascade");
    sqlx::raw_sql(AssertSqlSafe(drop)).execute(&pool).await.unwrap();
}

#[tokio::test]
async fn shards_that_the_table_computed_stay_and_a_trigger_computes_the_next() {
    const FIRST: &str = include_str!("../migrations/postgres/0001_outbox.sql");

    let outbox = Outbox::new().await;
    tables::drop_outbox(&outbox.pool, &outbox.tables).await.unwrap();
    let mut connection = outbox.pool.acquire().await.unwrap();
    outbox.execute(&mut connection, &FIRST.replace("{shard_count}", "8")).await;
    let generated = "select is_generated = 'ALWAYS' from information_schema.columns
        where table_name = '{bare}' and column_name = 'shard'";
    assert!(outbox.scalar::<bool>(generated).await, "migration 1 made something else");
    let before = outbox.commit(&[event("a"), event("b")]).await;
    let shards: Vec<i32> = outbox.scalar(SHARDS_IN_ORDER).await;

    assert_eq!(outbox.store.migrate(None).await.unwrap(), [2, 3, 4, 5]);
    assert!(!outbox.scalar::<bool>(generated).await);
    assert_eq!(outbox.scalar::<Vec<i32>>(SHARDS_IN_ORDER).await, shards, "no row has moved");
    let after = outbox.commit(&[event("a"), event("b")]).await;
    for (old, new) in before.iter().zip(&after) {
        assert_eq!(outbox.shard_of(*new).await, outbox.shard_of(*old).await);
    }
    outbox.drop().await;
}

const SHARDS_IN_ORDER: &str = "select array_agg(shard order by sequence) from {events}";

#[tokio::test]
async fn connections_that_were_lost_fail_one_call_and_not_one_each() {
    let outbox = Outbox::new().await;
    let read = || outbox.store.read_due(&SHARDS, 10);
    // Several at once, each on a connection of its own, which are kept.
    let (a, b, c) = tokio::join!(read(), read(), read());
    a.and(b).and(c).unwrap();
    let kill = "select pg_terminate_backend(pid, 10000) from pg_stat_activity
                where query like $1 and pid <> pg_backend_pid()";
    let killed = sqlx::query(kill)
        .bind(format!("%not_before%{}%", outbox.tables.name().bare()))
        .fetch_all(&outbox.pool)
        .await
        .unwrap();
    assert!(killed.len() > 1, "{} connections", killed.len());

    let error = read().await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    read().await.expect("the others were not tried one after the other");
    outbox.drop().await;
}

#[tokio::test]
async fn a_listener_that_lost_its_connection_says_so() {
    let outbox = Outbox::new().await;
    let mut listener = outbox.store.listen().await.unwrap().expect("PostgreSQL can listen");
    outbox.store.notify().await.unwrap();
    soon(listener.wait()).await.expect("the notification arrives");

    let channel = outbox.tables.name().channel();
    let kill = "select pg_terminate_backend(pid) from pg_stat_activity where query like $1
                and pid <> pg_backend_pid()";
    let killed = sqlx::query(kill)
        .bind(format!("%LISTEN%{channel}%"))
        .fetch_all(&outbox.pool)
        .await
        .unwrap();
    assert_eq!(killed.len(), 1);
    let error = soon(listener.wait()).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    outbox.drop().await;
}

const SHARDS: [u16; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

/// An outbox of its own for one test.
#[derive(Clone)]
struct Outbox {
    pool: PgPool,
    tables: Tables,
    store: PostgresStore,
}

/// A store on one connection, whose waiting can be watched.
struct OtherProcess {
    store: PostgresStore,
    pid: i32,
}

/// What the server counted for the events.
struct Stats {
    updated: i64,
    updated_in_page: i64,
    scans_of_all: i64,
    fetched: i64,
    searches: i64,
}

impl Outbox {
    async fn new() -> Self {
        let pool = pool(8).await;
        let tables = tables::unique("pg");
        let store = PostgresStore::new(pool.clone(), tables.clone());
        store.migrate(Some(8)).await.unwrap();
        Self { pool, tables, store }
    }

    async fn drop(self) {
        tables::drop_outbox(&self.pool, &self.tables).await.unwrap();
    }

    /// Executes, and has the session report at once what it did.
    async fn execute(&self, connection: &mut PgConnection, sql: &str) {
        for sql in [self.tables.fill(sql), "select pg_stat_force_next_flush()".to_owned()] {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *connection).await.unwrap();
        }
    }

    async fn enqueue(&self, connection: &mut PgConnection, events: &[Event]) -> Vec<i64> {
        let enqueued = Postgres::enqueue(connection, &self.tables, events).await.unwrap();
        enqueued.into_iter().map(|event| event.sequence).collect()
    }

    async fn commit(&self, events: &[Event]) -> Vec<i64> {
        let mut transaction = self.pool.begin().await.unwrap();
        let sequences = self.enqueue(&mut transaction, events).await;
        transaction.commit().await.unwrap();
        sequences
    }

    /// Sent events, all of one transaction.
    async fn fill_with_sent(&self, count: i64) {
        let mut connection = self.pool.acquire().await.unwrap();
        let sql = format!(
            "insert into {{events}} (event_id, event_type, aggregate_id, payload, created_at,
                 sent_at)
             select gen_random_uuid(), 'T', (n % 1000)::text, '', now() - interval '1 day', now()
             from generate_series(1, {count}) n;
             analyze {{events}}"
        );
        self.execute(&mut connection, &sql).await;
    }

    /// 15,000 sent events and 15,000 behind the marks, one a second, some of them dead or failed.
    async fn fill_half_sent(&self, begin: Timestamp) {
        let mut connection = self.pool.acquire().await.unwrap();
        let fill = format!(
            "insert into {{events}} (event_id, event_type, aggregate_type, aggregate_id, tenant,
                 payload, created_at, sent_at)
             select gen_random_uuid(), 'T', 'A', (n % 1000)::text, 't' || n % 1000, 'x',
                    timestamptz '{begin}' + n * interval '1 second',
                    case when n <= 15000 then now() end
             from generate_series(1, 30000) n"
        );
        for sql in [
            fill.as_str(),
            "update {events} set dead_at = now(), sent_at = null where sequence % 100 = 3",
            "update {events} set attempts = 1, wait = 'retry', not_before = now() + interval '1 h',
                 sent_at = null where sequence % 100 = 4",
            "update {shards} set mark = 15000, mark_context = pg_current_snapshot()::text",
            "vacuum analyze {events}",
        ] {
            self.execute(&mut connection, sql).await;
        }
    }

    async fn scalar<T>(&self, sql: &str) -> T
    where
        T: Send + Unpin + for<'r> sqlx::Decode<'r, Postgres> + sqlx::Type<Postgres>,
    {
        let sql = AssertSqlSafe(self.tables.fill(sql));
        sqlx::query_scalar(sql).fetch_one(&self.pool).await.unwrap()
    }

    async fn acquire(&self) -> ShardLease {
        let mut leases = self.store.acquire(&new_relay("r"), &SHARDS).await.unwrap();
        leases.swap_remove(0)
    }

    async fn hold(&self) -> (Relay, Vec<Held>) {
        let relay = new_relay("r");
        let leases = self.store.acquire(&relay, &SHARDS).await.unwrap();
        (relay, leases.into_iter().map(|lease| lease.held).collect())
    }

    async fn shard_of(&self, sequence: i64) -> u16 {
        let sql = self.tables.fill("select shard from {events} where sequence = $1");
        let shard: i32 = sqlx::query_scalar(AssertSqlSafe(sql))
            .bind(sequence)
            .fetch_one(&self.pool)
            .await
            .unwrap();
        shard as u16
    }

    async fn snapshot(&self) -> String {
        let sql = "select pg_current_snapshot()::text";
        sqlx::query_scalar(sql).fetch_one(&self.pool).await.unwrap()
    }

    async fn other_process(&self) -> OtherProcess {
        let pool = pool(1).await;
        let pid = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&pool).await.unwrap();
        OtherProcess { store: PostgresStore::new(pool, self.tables.clone()), pid }
    }

    /// Asks the server until this session waits for a lock.
    async fn until_waiting(&self, pid: i32) {
        const WAITS: &str = "
            select exists (select from pg_stat_activity where pid = $1 and wait_event_type = 'Lock')";

        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let waits: bool =
                sqlx::query_scalar(WAITS).bind(pid).fetch_one(&self.pool).await.unwrap();
            if waits {
                return;
            }
            assert!(Instant::now() < deadline, "session {pid} never came to wait for a lock");
            tokio::task::yield_now().await;
        }
    }

    async fn stats(&self) -> Stats {
        const STATS: &str = "
            select n_tup_upd, n_tup_hot_upd, seq_scan, coalesce(idx_tup_fetch, 0) + seq_tup_read,
                   idx_scan
            from pg_stat_user_tables where relname = $1";

        let (updated, updated_in_page, scans_of_all, fetched, searches) = sqlx::query_as(STATS)
            .bind(self.tables.name().bare())
            .fetch_one(&self.pool)
            .await
            .unwrap();
        Stats { updated, updated_in_page, scans_of_all, fetched, searches }
    }

    /// Lets every session of the pool report what it has done so far: they do it now and then, and
    /// what comes late would be taken for somebody else's.
    async fn report(&self) {
        let mut sessions = Vec::new();
        for _ in 0..self.pool.size() {
            let mut session = self.pool.acquire().await.unwrap();
            let flush = sqlx::query("select pg_stat_force_next_flush()");
            flush.execute(&mut *session).await.unwrap();
            sessions.push(session);
        }
    }

    /// Ends the session and waits until it is gone: it reports what it did when it ends.
    async fn end(&self, process: OtherProcess) {
        const GONE: &str = "select not exists (select from pg_stat_activity where pid = $1)";

        let OtherProcess { store, pid } = process;
        store.pool().close().await;
        drop(store);
        let gone = async || -> bool {
            sqlx::query_scalar(GONE).bind(pid).fetch_one(&self.pool).await.unwrap()
        };
        soon(async {
            while !gone().await {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    async fn touches_few<T>(
        &self,
        what: &str,
        read: impl AsyncFnOnce(&PostgresStore) -> posthaste_core::Result<T>,
    ) -> T {
        self.touches_fewer_than(1000, what, read).await
    }

    async fn touches_fewer_than<T>(
        &self,
        limit: i64,
        what: &str,
        read: impl AsyncFnOnce(&PostgresStore) -> posthaste_core::Result<T>,
    ) -> T {
        self.report().await;
        let before = self.stats().await;
        let reader = self.other_process().await;
        let answer = read(&reader.store).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        self.end(reader).await;
        let after = self.stats().await;
        assert_eq!(after.scans_of_all, before.scans_of_all, "{what} scans the whole table");
        let fetched = after.fetched - before.fetched;
        assert!(fetched < limit, "{what} looked at {fetched} events");
        assert!(after.searches > before.searches, "{what} was not counted at all");
        answer
    }
}

/// # Panics
///
/// Without a server: a test that was not run must not look as if it had passed.
async fn pool(connections: u32) -> PgPool {
    let url = std::env::var("POSTHASTE_TEST_POSTGRES")
        .expect("POSTHASTE_TEST_POSTGRES names a PostgreSQL server; scripts/servers starts one");
    PgPoolOptions::new()
        .max_connections(connections)
        .connect(&url)
        .await
        .expect("the server of POSTHASTE_TEST_POSTGRES answers")
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("it happens in time")
}

fn new_relay(name: &str) -> Relay {
    Relay {
        name: name.to_owned(),
        instance: Uuid::now_v7(),
        ordering: RelayOrdering::PerKey,
        lease: Duration::from_mins(1),
    }
}

fn event(id: &str) -> Event {
    Event::builder("T").aggregate("A", id).raw_json("{}").build().unwrap()
}

fn sent(sequence: i64, shard: u16) -> Settlement {
    Settlement { sequence, shard, attempts: 0, verdict: Verdict::Sent }
}

fn sequences(rows: &[posthaste_core::store::Fetched]) -> Vec<i64> {
    rows.iter().map(|row| row.sequence).collect()
}
