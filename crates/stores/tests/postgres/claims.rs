//! Single rows that are claimed: where claims start, and when they must start again.

use posthaste_core::{
    ErrorKind,
    store::{
        Claim, ClaimedRows, Leases, Limit, Position, Read, Relay, RelayOrdering, RowLease,
        RowsInHand,
    },
};
use posthaste_stores::postgres::PostgresStore;

use crate::support::{Outbox, SHARDS, event, new_relay, sequences};

/// A relay that claims rows.
struct Claimer {
    relay: Relay,
    lease: RowLease,
}

impl Claimer {
    fn new() -> Self {
        let relay = Relay { ordering: RelayOrdering::None, ..new_relay("r") };
        let lease = RowLease { token: format!("{}#1", relay.owner()) };
        Self { relay, lease }
    }

    async fn claim(
        &self,
        store: &PostgresStore,
        from: &Position,
    ) -> posthaste_core::Result<ClaimedRows> {
        store.claim(&self.relay, &self.lease, from, Limit::rows(100)).await
    }

    async fn sweep(
        &self,
        store: &PostgresStore,
        from: &Position,
    ) -> posthaste_core::Result<ClaimedRows> {
        store.claim_late(&self.relay, &self.lease, from, Limit::rows(100)).await
    }
}

async fn execute(outbox: &Outbox, sql: &str) {
    let mut connection = outbox.pool.acquire().await.unwrap();
    outbox.execute(&mut connection, sql).await;
}

/// A standby that has not got the last events is promoted: their numbers are given out again.
#[tokio::test]
async fn claims_on_another_server_are_told_so_and_start_from_its_marks() {
    let outbox = Outbox::new().await;
    let claimer = Claimer::new();
    let kept = outbox.commit(&[event("a"), event("b")]).await;
    let first = claimer.claim(&outbox.store, &Position::default()).await.unwrap();
    assert_eq!(sequences(&first.rows), kept);
    execute(&outbox, "update {events} set sent_at = now(), locked_by = null, locked_until = null")
        .await;
    let swept = claimer.sweep(&outbox.store, &first.position).await.unwrap();
    let lost = outbox.commit(&[event("c"), event("d")]).await;
    let ahead = claimer.claim(&outbox.store, &swept.position).await.unwrap();
    assert_eq!(sequences(&ahead.rows), lost);

    let again = format!(
        "truncate {{life}};
         delete from {{events}} where sequence >= {};
         alter table {{events}} alter column sequence restart with {}",
        lost[0], lost[0]
    );
    execute(&outbox, &again).await;
    let reused = outbox.commit(&[event("e")]).await;
    assert_eq!(reused, lost[..1]);
    for position in [&first.position, &swept.position, &ahead.position] {
        let claimed = claimer.claim(&outbox.store, position).await;
        let late = claimer.sweep(&outbox.store, position).await;
        for error in [claimed.unwrap_err(), late.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Moved, "{error}");
        }
    }
    let anew = claimer.claim(&outbox.store, &Position::default()).await.unwrap();
    assert_eq!(sequences(&anew.rows), reused);
    outbox.drop().await;
}

/// Numbers begin again in a table that was truncated.
#[tokio::test]
async fn claims_start_again_in_a_table_that_was_truncated() {
    let outbox = Outbox::new().await;
    let claimer = Claimer::new();
    outbox.commit(&[event("a"), event("b"), event("c")]).await;
    let first = claimer.claim(&outbox.store, &Position::default()).await.unwrap();
    execute(&outbox, "update {events} set sent_at = now(), locked_by = null, locked_until = null")
        .await;
    let swept = claimer.sweep(&outbox.store, &first.position).await.unwrap();
    execute(&outbox, "truncate {events} restart identity").await;
    let written = outbox.commit(&[event("d")]).await;
    let error = claimer.claim(&outbox.store, &swept.position).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Moved, "{error}");
    let anew = claimer.claim(&outbox.store, &Position::default()).await.unwrap();
    assert_eq!(sequences(&anew.rows), written);
    outbox.drop().await;
}

/// Relays that kept the order have left their marks, each with what it had not seen.
#[tokio::test]
async fn what_one_of_the_shards_owners_has_not_seen_is_swept_up() {
    let outbox = Outbox::new().await;
    let (relay, held) = outbox.hold().await;
    let mark = outbox.store.acquire(&relay, &[0]).await.unwrap().remove(0).mark;
    let mut open = outbox.pool.begin().await.unwrap();
    let late = outbox.enqueue(&mut open, &[event("late")]).await;
    outbox.commit(&[event("a"), event("b")]).await;
    let before = outbox.store.read_on(&SHARDS, &mark, Limit::rows(10)).await.unwrap().position;
    open.commit().await.unwrap();
    let after = outbox.store.read_on(&SHARDS, &mark, Limit::rows(10)).await.unwrap().position;
    let lower = Position { sequence: after.sequence - 1, ..after };
    execute(&outbox, "update {events} set sent_at = now() where sequence > 1").await;
    let (_, epochs) = held.split_first().unwrap();
    let first = outbox.store.acquire(&relay, &[0]).await.unwrap().remove(0).held;
    outbox.store.release(&relay, &[first], &before).await.unwrap();
    outbox.store.release(&relay, epochs, &lower).await.unwrap();

    let claimer = Claimer::new();
    let claimed = claimer.claim(&outbox.store, &Position::default()).await.unwrap();
    let swept = claimer.sweep(&outbox.store, &claimed.position).await.unwrap();
    assert_eq!([sequences(&claimed.rows), sequences(&swept.rows)].concat(), late);
    outbox.drop().await;
}

/// Its last event lies far beyond its first, and all that lies between was sent meanwhile.
#[tokio::test]
async fn all_that_a_transaction_committed_late_is_swept_up_by_one_sweep() {
    let outbox = Outbox::new().await;
    let claimer = Claimer::new();
    outbox.commit(&[event("before")]).await;
    let mut open = outbox.pool.begin().await.unwrap();
    let mut late = outbox.enqueue(&mut open, &[event("a")]).await;
    outbox.fill_with_sent(120_000).await;
    late.extend(outbox.enqueue(&mut open, &[event("b"), event("c")]).await);
    let passed = outbox.commit(&[event("after")]).await[0];
    let mut position = Position::default();
    while position.sequence < passed {
        position = claimer.claim(&outbox.store, &position).await.unwrap().position;
    }
    for _ in 0..4 {
        let swept = claimer.sweep(&outbox.store, &position).await.unwrap();
        assert!(swept.rows.is_empty(), "nothing was committed");
        position = swept.position;
    }
    execute(&outbox, "update {events} set sent_at = now(), locked_by = null, locked_until = null")
        .await;
    position = claimer.sweep(&outbox.store, &position).await.unwrap().position;
    open.commit().await.unwrap();
    let swept = claimer.sweep(&outbox.store, &position).await.unwrap();
    assert_eq!(sequences(&swept.rows), late);
    // The mark of the next owner lies before them until they are settled.
    let sweep = claimer.sweep(&outbox.store, &swept.position).await.unwrap();
    assert!(sweep.rows.is_empty());
    let mark: i64 = outbox.scalar("select min(mark) from {shards}").await;
    assert!(mark < late[0], "{mark} has passed {late:?}");
    outbox.drop().await;
}

/// More than a page of them, of two transactions.
#[tokio::test]
async fn late_commits_beyond_a_page_come_page_by_page_and_each_once() {
    let outbox = Outbox::new().await;
    let claimer = Claimer::new();
    let (mut one, mut two) =
        (outbox.pool.begin().await.unwrap(), outbox.pool.begin().await.unwrap());
    let mut late = Vec::new();
    for n in 0..25 {
        late.extend(outbox.enqueue(&mut one, &[event(&format!("a{n}"))]).await);
        late.extend(outbox.enqueue(&mut two, &[event(&format!("b{n}"))]).await);
        outbox.fill_with_sent(10).await;
    }
    let passed = outbox.commit(&[event("after")]).await[0];
    let mut position = claimer.claim(&outbox.store, &Position::default()).await.unwrap().position;
    assert_eq!(position.sequence, passed);
    position = claimer.sweep(&outbox.store, &position).await.unwrap().position;
    one.commit().await.unwrap();
    let mut found = Vec::new();
    let sweep = async |position: &mut Position| {
        let limit = Limit::rows(10);
        let swept = outbox.store.claim_late(&claimer.relay, &claimer.lease, position, limit).await;
        let swept = swept.unwrap();
        *position = swept.position;
        (sequences(&swept.rows), swept.caught_up)
    };
    found.extend(sweep(&mut position).await.0);
    // The walk is under way: what ends now is found by the next one.
    two.commit().await.unwrap();
    for turn in 0.. {
        assert!(turn < 20, "it does not come to an end");
        let (rows, caught_up) = sweep(&mut position).await;
        found.extend(rows);
        if caught_up && found.len() >= late.len() {
            break;
        }
    }
    found.sort_unstable();
    assert_eq!(found, late);
    outbox.drop().await;
}

/// One slow handler has the first event, and many others were sent since.
#[tokio::test]
async fn an_event_that_takes_long_does_not_make_claims_walk_over_what_was_sent_since() {
    const SENT: i64 = 120_000;
    const WINDOW: i64 = 50_000;

    let outbox = Outbox::new().await;
    let claimer = Claimer::new();
    let slow = outbox.commit(&[event("slow")]).await;
    let mut position = claimer.claim(&outbox.store, &Position::default()).await.unwrap().position;
    outbox.fill_with_sent(SENT).await;
    let fresh = outbox.commit(&[event("fresh")]).await;
    execute(&outbox, "analyze {events}").await;

    let in_hand = [RowsInHand { lease: claimer.lease.clone(), sequences: slow.clone() }];
    let renew = async |s: &PostgresStore| s.renew_rows(&claimer.relay, &in_hand).await;
    outbox.touches_few("renew_rows", renew).await;
    // The first claim of another relay starts at the marks, as these do.
    let mut claimed = Vec::new();
    for turn in 0.. {
        let claim = async |s: &PostgresStore| claimer.claim(s, &position).await;
        let page = outbox.touches_fewer_than(WINDOW + 1_000, "claim", claim).await;
        claimed.extend(sequences(&page.rows));
        position = page.position;
        if page.caught_up {
            break;
        }
        assert!(turn < 5, "it does not come to an end");
    }
    assert_eq!(claimed, fresh);

    execute(&outbox, "update {events} set locked_until = now() where sent_at is null").await;
    let until = position.sequence;
    let expired =
        async |s: &PostgresStore| s.claim_expired(&claimer.relay, &claimer.lease, until).await;
    let row = outbox.touches_fewer_than(WINDOW + 1_000, "claim_expired", expired).await;
    assert_eq!(row.row.unwrap().sequence, slow[0]);
    let mut rest = Vec::new();
    for _ in 0..4 {
        let row = outbox.store.claim_expired(&claimer.relay, &claimer.lease, until).await.unwrap();
        rest.extend(row.row.map(|row| row.sequence));
    }
    assert_eq!(rest, fresh, "calls without a row go on where the last one ended");
    outbox.drop().await;
}
