//! Missing numbers that are so many that no read comes to their end.

use tokio::time::timeout;

use super::*;

const RUNS: i64 = 180_000;

/// The numbers of this kind that are missing, and a row after all of them.
const APART: i64 = 20;
const LAST: i64 = RUNS * APART + 1;

#[tokio::test]
async fn reads_that_run_out_of_time_give_up_some_of_many_missing_numbers_each() {
    let outbox = Outbox::new().await;
    outbox.commit(&[event("first")]).await;
    let page = outbox.store.read_on(&SHARDS, &Position::default(), Limit::rows(10)).await.unwrap();
    let mut connection = outbox.pool.acquire().await.unwrap();
    let insert = format!(
        "insert into {{events}} (sequence, event_id, event_type, aggregate_type, aggregate_id, \
         payload) values ({LAST}, uuid(), 'T', 'A', 'last', '1')"
    );
    outbox.execute(&mut connection, &insert).await;

    // A reader of another process tells of them.
    let life = page.position.context.split('|').next().unwrap();
    let missing: Vec<String> = (1..=RUNS).map(|n| (n * APART).to_string()).collect();
    let context = format!("{life}|{}:0|{}", Uuid::nil(), missing.join(","));
    let elsewhere = Position { sequence: LAST - 1, context };
    let told = outbox.store.read_late(&SHARDS, &elsewhere, Limit::rows(10));
    let _ = timeout(Duration::from_millis(300), told).await;

    let here = Position { sequence: LAST - 1, ..page.position };
    let mut late = 0;
    until("it is read", async || {
        let page = outbox.store.read_on(&SHARDS, &here, Limit::rows(10));
        if let Ok(page) = timeout(Duration::from_millis(300), page).await {
            return sequences(&page.unwrap()) == [LAST];
        }
        late += 1;
        assert!(late < 100, "no read comes to its end");
        false
    })
    .await;
    outbox.drop().await;
}

/// More than a read is given time for.
#[tokio::test]
async fn a_part_that_no_read_comes_to_the_end_of_is_looked_at_in_smaller_ones() {
    const ROWS: i64 = 100_000;

    let outbox = Outbox::new().await;
    outbox.commit(&[event("first")]).await;
    let page = outbox.store.read_on(&SHARDS, &Position::default(), Limit::rows(10)).await.unwrap();
    let mut connection = outbox.pool.acquire().await.unwrap();
    // Some are missing: so all the others are listed.
    let insert = format!(
        "insert into {{events}} (sequence, event_id, event_type, aggregate_type, aggregate_id, \
         payload) select seq + 1, uuid(), 'T', 'A', seq, '1' from seq_1_to_{ROWS} \
         where seq % 1000 <> 0"
    );
    outbox.execute(&mut connection, &insert).await;
    let life = page.position.context.split('|').next().unwrap();
    let context = format!("{life}|{}:0|2-{}", Uuid::nil(), ROWS + 1);
    let elsewhere = Position { sequence: ROWS + 1, context };

    let other = MySqlStore::new(outbox.pool.clone(), outbox.tables.clone());
    let begun = Instant::now();
    let late = other.read_late(&SHARDS, &elsewhere, Limit::rows(10)).await.unwrap();
    assert_eq!(late.rows.len(), 10);
    let whole = begun.elapsed();
    let mut short = whole / 6;

    let told = outbox.store.read_late(&SHARDS, &elsewhere, Limit::rows(10));
    assert!(timeout(short, told).await.is_err(), "all of it in one part takes longer");
    for reads in 1.. {
        let late = outbox.store.read_late(&SHARDS, &elsewhere, Limit::rows(10));
        if let Ok(late) = timeout(short, late).await {
            assert_eq!(late.unwrap().rows.len(), 10);
            break;
        }
        assert!(reads < 400, "no read comes to its end");
        // A busy machine takes longer for what each read does besides. All of it in one part takes longer still.
        if reads % 20 == 0 {
            short = (short * 5 / 4).min(whole * 4 / 5);
        }
    }
    outbox.drop().await;
}
