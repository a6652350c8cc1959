//! Numbers that jump, by `auto_increment` or by one large number that somebody wrote: nothing is walked over that is not
//! there.

use std::collections::HashSet;

use super::*;

const MIDDLE: i64 = 500_000_000_000;
const JUMP: i64 = 1_000_000_000_000;

/// As long as a relay waits for a read.
const DEADLINE: Duration = Duration::from_secs(5);

async fn outboxes() -> Vec<Outbox> {
    let mut outboxes = vec![Outbox::new().await];
    match std::env::var(MYSQL) {
        Ok(url) => outboxes.push(Outbox::over(pool(&url, 10).await).await),
        Err(_) => eprintln!("{MYSQL} is not set: no MySQL server to be had here"),
    }
    outboxes
}

impl Outbox {
    /// The next number is the `JUMP`.
    async fn jump(&self) {
        let mut connection = self.pool.acquire().await.unwrap();
        let sql = format!("alter table {{events}} auto_increment = {JUMP}");
        self.execute(&mut connection, &sql).await;
    }

    async fn read_on(&self, position: &Position) -> Page {
        let page = self.store.read_on(&SHARDS, position, Limit::rows(10));
        tokio::time::timeout(DEADLINE, page).await.expect("it is read in time").unwrap()
    }
}

#[tokio::test]
async fn a_jump_of_the_numbers_holds_nobody_up() {
    for outbox in outboxes().await {
        let before = outbox.commit(&[event("before")]).await[0];
        outbox.jump().await;
        let after = outbox.commit(&[event("after")]).await[0];
        assert_eq!(after, JUMP);
        let page = outbox.read_on(&Position::default()).await;
        assert_eq!(sequences(&page), [before, after]);
        outbox.until_closed(page.position).await;
        outbox.drop().await;
    }
}

#[tokio::test]
async fn an_event_in_the_middle_of_a_jump_is_found_when_it_is_committed() {
    for outbox in outboxes().await {
        outbox.commit(&[event("before")]).await;
        outbox.jump().await;
        let mut open = outbox.pool.begin().await.unwrap();
        let insert = format!(
            "insert into {{events}} (sequence, event_id, event_type, aggregate_type, aggregate_id, \
             payload) values ({MIDDLE}, uuid(), 'T', 'A', 'middle', '1')"
        );
        outbox.execute(&mut open, &insert).await;
        outbox.commit(&[event("after")]).await;
        let mut page = outbox.read_on(&Position::default()).await;
        assert_eq!(page.rows.len(), 2);
        until("the rest of the gap is given up", async || {
            page = outbox.read_on(&page.position).await;
            assert!(page.rows.is_empty());
            missing(&page.position) == MIDDLE.to_string()
        })
        .await;
        open.commit().await.unwrap();
        let page = outbox.read_on(&page.position).await;
        assert_eq!(sequences(&page), [MIDDLE]);
        assert_eq!(missing(&page.position), "");
        outbox.drop().await;
    }
}

#[tokio::test]
async fn an_event_beyond_late_ones_is_found_after_a_jump() {
    for outbox in outboxes().await {
        outbox.jump().await;
        let after = outbox.commit(&[event("after")]).await;
        let mut found = Vec::new();
        for _ in 0..2 {
            let from = Position::default();
            let (store, limit) = (&outbox.store, Limit::rows(10));
            found = store.read_beyond(&SHARDS, &from, &HashSet::new(), limit).await.unwrap();
        }
        assert_eq!(found, after);
        outbox.drop().await;
    }
}
