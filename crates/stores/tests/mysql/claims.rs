//! Single rows that are claimed.

use super::*;

/// One slow handler has the first event, and many others were sent since.
#[tokio::test]
async fn what_is_given_back_far_behind_a_slow_event_is_claimed_again() {
    let outbox = Outbox::new().await;
    outbox.commit(&[event("slow")]).await;
    let relay = Relay { ordering: RelayOrdering::None, ..new_relay() };
    let lease = |number: u32| RowLease { token: format!("{}#{number}", relay.owner()) };
    let limit = Limit::rows(10);
    let claim = async |number, from: &Position| {
        outbox.store.claim(&relay, &lease(number), from, limit).await.unwrap()
    };
    let mut position = claim(1, &Position::default()).await.position;
    let mut connection = outbox.pool.acquire().await.unwrap();
    let fill = "insert into {events} (event_id, event_type, payload, sent_at)
        select uuid(), 'T', '', utc_timestamp(6) from (
            with recursive n (n) as (select 1 union all select n + 1 from n where n < 250)
            select a.n from n a, n b
        ) n";
    outbox.execute(&mut connection, fill).await;
    let given_back: Vec<i64> = outbox.commit(&[event("given back")]).await;
    let mut claimed = Vec::new();
    for turn in 0.. {
        let page = claim(2, &position).await;
        claimed.extend(page.rows.iter().map(|row| row.sequence));
        position = page.position;
        if page.caught_up {
            break;
        }
        assert!(turn < 5, "it does not come to an end");
    }
    assert_eq!(claimed, given_back);
    outbox.store.unclaim(&lease(2), &given_back).await.unwrap();
    let mut swept = Vec::new();
    for _ in 0..4 {
        let page = outbox.store.claim_late(&relay, &lease(3), &position, limit).await.unwrap();
        swept.extend(page.rows.iter().map(|row| row.sequence));
        position = page.position;
    }
    assert_eq!(swept, given_back);
    outbox.drop().await;
}

/// Its last event lies far beyond its first, and all that lies between was sent meanwhile.
#[tokio::test]
async fn late_commits_beyond_a_page_are_swept_up_by_the_next_sweep() {
    let outbox = Outbox::new().await;
    let relay = Relay { ordering: RelayOrdering::None, ..new_relay() };
    let lease = RowLease { token: format!("{}#1", relay.owner()) };
    let mut open = outbox.pool.begin().await.unwrap();
    let mut late = vec![outbox.enqueue(&mut open, &[event("first")]).await[0].sequence];
    let mut connection = outbox.pool.acquire().await.unwrap();
    let fill = "insert into {events} (event_id, event_type, payload, sent_at)
        select uuid(), 'T', '', utc_timestamp(6) from (
            with recursive n (n) as (select 1 union all select n + 1 from n where n < 350)
            select a.n from n a, n b
        ) n";
    outbox.execute(&mut connection, fill).await;
    late.push(outbox.enqueue(&mut open, &[event("last")]).await[0].sequence);
    let passed = outbox.commit(&[event("after")]).await[0];
    let mut position = Position::default();
    while position.sequence < passed {
        position =
            outbox.store.claim(&relay, &lease, &position, Limit::rows(10)).await.unwrap().position;
    }
    let sweep = async |position: &mut Position| {
        let swept = outbox.store.claim_late(&relay, &lease, position, Limit::rows(1)).await;
        let swept = swept.unwrap();
        *position = swept.position;
        swept.rows.iter().map(|row| row.sequence).collect::<Vec<i64>>()
    };
    for _ in 0..5 {
        assert!(sweep(&mut position).await.is_empty(), "nothing was committed");
    }
    // Both have been seen when the first one is swept up.
    let mut reader = position_of_a_reader(&outbox).await;
    open.commit().await.unwrap();
    let mut seen = Vec::new();
    until("both are seen", async || {
        let page = outbox.store.read_late(&SHARDS, &reader, Limit::rows(10)).await.unwrap();
        seen.extend(page.rows.iter().map(|row| row.sequence));
        reader = page.position;
        late.iter().all(|sequence| seen.contains(sequence))
    })
    .await;
    let first = sweep(&mut position).await;
    assert_eq!([first, sweep(&mut position).await].concat(), late);
    outbox.drop().await;
}

/// One that has read all that can be seen.
async fn position_of_a_reader(outbox: &Outbox) -> Position {
    let mut position = Position::default();
    loop {
        let page = outbox.store.read_on(&SHARDS, &position, Limit::rows(10)).await.unwrap();
        position = page.position;
        if page.caught_up {
            return position;
        }
    }
}
