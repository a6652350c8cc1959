//! Commits that come late, and settles beside a takeover.

use posthaste_core::{
    ErrorKind, Key,
    store::{Fence, Inspect, LaneKey, Leases, Limit, Position, Read, Settle},
};

use crate::support::{Outbox, SHARDS, event, new_relay, sent, sequences};

#[tokio::test]
async fn an_open_transaction_stalls_nobody_and_its_event_is_found_after_its_commit() {
    let outbox = Outbox::new().await;
    let lease = outbox.acquire().await;
    let mut open = outbox.pool.begin().await.unwrap();
    let slow = outbox.enqueue(&mut open, &[event("slow")]).await[0];
    let quick = outbox.commit(&[event("a"), event("b")]).await;

    let page = outbox.store.read_on(&SHARDS, &lease.mark, Limit::rows(10)).await.unwrap();
    assert_eq!(sequences(&page.rows), quick);
    let page = outbox.store.read_late(&SHARDS, &page.position, Limit::rows(1000)).await.unwrap();
    assert!(!sequences(&page.rows).contains(&slow), "it is not committed yet");
    let more = outbox.commit(&[event("c")]).await;
    let ahead = outbox.store.read_on(&SHARDS, &page.position, Limit::rows(10)).await.unwrap();
    assert_eq!(sequences(&ahead.rows), more, "the open transaction holds nobody back");
    open.commit().await.unwrap();

    let late = outbox.store.read_late(&SHARDS, &ahead.position, Limit::rows(1000)).await.unwrap();
    assert_eq!(sequences(&late.rows), [slow]);
    let again = outbox.store.read_late(&SHARDS, &late.position, Limit::rows(1000)).await.unwrap();
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
        let ahead = outbox.store.read_on(&SHARDS, &position, Limit::rows(10)).await.unwrap();
        let late =
            outbox.store.read_late(&SHARDS, &ahead.position, Limit::rows(1000)).await.unwrap();
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
    let (relay, held) = outbox.hold().await;
    let known = outbox.context().await;
    let (_, rest) = known.split_once('|').unwrap();
    let future = Position { sequence: written[1], context: format!("999999999:999999999:|{rest}") };
    let late = outbox.store.read_late(&SHARDS, &future, Limit::rows(10)).await.unwrap();
    let on = outbox.store.read_on(&SHARDS, &future, Limit::rows(10)).await.unwrap();
    for again in [late, on] {
        assert!(again.rows.is_empty() && !again.caught_up);
        let page = outbox.store.read_on(&SHARDS, &again.position, Limit::rows(10)).await.unwrap();
        assert_eq!(sequences(&page.rows), written, "everything is read again");
    }

    outbox.store.release(&relay, &held, &future).await.unwrap();
    let lease = outbox.acquire().await;
    assert_eq!(lease.mark.sequence, 0, "reading starts again from the first event");
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
async fn numbers_from_a_cache_are_refused_with_the_remedy() {
    let outbox = Outbox::new().await;
    let mut connection = outbox.pool.acquire().await.unwrap();
    let cache = "alter table {events} alter column sequence set cache 20";
    outbox.execute(&mut connection, cache).await;
    let error = outbox.store.acquire(&new_relay("r"), &SHARDS).await.unwrap_err();
    assert!(error.to_string().contains("alter column sequence set cache 1"), "{error}");
    outbox.execute(&mut connection, "alter table {events} alter column sequence set cache 1").await;
    assert_eq!(outbox.store.acquire(&new_relay("r"), &SHARDS).await.unwrap().len(), SHARDS.len());
    outbox.drop().await;
}

#[tokio::test]
async fn a_reader_on_another_server_is_told_so_and_its_leases_count_no_more() {
    let outbox = Outbox::new().await;
    let written = outbox.commit(&[event("a")]).await;
    let (relay, held) = outbox.hold().await;
    let lease = outbox.store.acquire(&relay, &[0]).await.unwrap().remove(0);
    let page = outbox.store.read_on(&SHARDS, &lease.mark, Limit::rows(10)).await.unwrap();
    // What promotion and crash recovery do.
    let mut connection = outbox.pool.acquire().await.unwrap();
    outbox.execute(&mut connection, "truncate {life}").await;

    for position in [&lease.mark, &page.position] {
        let on = outbox.store.read_on(&SHARDS, position, Limit::rows(10)).await;
        let late = outbox.store.read_late(&SHARDS, position, Limit::rows(10)).await;
        let hot = outbox.store.read_hot(&written, position).await;
        for error in [on.unwrap_err(), late.unwrap_err(), hot.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Moved, "{error}");
        }
    }
    // Those of before were closed when they were refused: these are new ones, as after either of them.
    let lane = LaneKey { key: Key(1), destination: "d".to_owned() };
    let lanes = std::slice::from_ref(&lane);
    let limit = Limit::rows(10);
    for error in [
        outbox.store.read_due(&SHARDS, None, limit).await.err(),
        outbox.store.read_held("d", lane.key, 0, limit).await.err(),
        outbox.store.read_lane(&lane, None, limit).await.err(),
        outbox.store.read_blockers(limit).await.err(),
        outbox.store.read_blocked(&SHARDS, None, 10).await.err(),
        outbox.store.still_blocked(lanes).await.err(),
    ] {
        assert_eq!(error.map(|error| error.kind()), Some(ErrorKind::Moved));
    }
    let fence = Fence::Shards { owner: relay.owner(), held: held.clone() };
    let row = &page.rows[0];
    let batch = [sent(row.sequence, row.shard)];
    for begun in [false, true] {
        let report = outbox.store.settle(&fence, &batch, true).await.unwrap();
        assert_eq!(report.refused, [row.sequence], "a new life has begun: {begun}");
        assert!(outbox.store.renew(&relay, &held, &page.position).await.unwrap().is_empty());
        outbox.store.release(&relay, &held, &page.position).await.unwrap();
        // Somebody else takes the shards: they are free although their leases have not run out, and
        // everybody is told so.
        let census = outbox.store.heartbeat(&relay, 0).await.unwrap();
        assert!(!census.owners.contains(&Some(relay.owner())), "{:?}", census.owners);
        let other = new_relay("other");
        let leases = outbox.store.acquire(&other, &SHARDS).await.unwrap();
        assert_eq!(leases.len(), if begun { 0 } else { SHARDS.len() });
        assert!(leases.iter().all(|lease| lease.held.epoch > held[0].epoch));
    }
    outbox.drop().await;
}
