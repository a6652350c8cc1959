//! Commits that come late, and settles beside a takeover.

use posthaste_core::store::{Fence, Inspect, Leases, Limit, Position, Read, Settle};

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
