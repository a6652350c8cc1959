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
