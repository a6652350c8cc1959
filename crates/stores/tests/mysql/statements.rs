//! Statements that run other statements: a trigger, or a function among the values. The server shows these as if they
//! were new ones, with an age and a text of their own, while the one around them still owns its numbers.

use super::*;

const ROWS: i64 = 60;

/// Inserts many rows with one statement, slowly, while others commit: each of them is read once.
async fn all_rows_of_a_slow_statement_are_found(prepare: &[&str], value: &str) {
    let outbox = Outbox::new().await;
    let mut connection = outbox.pool.acquire().await.unwrap();
    for sql in prepare {
        outbox.execute(&mut connection, sql).await;
    }
    let values: Vec<String> =
        (0..ROWS).map(|n| format!("(uuid(), 'T', {value}, 'slow-{n}', '1')")).collect();
    let insert = format!(
        "insert into {{events}} (event_id, event_type, aggregate_type, aggregate_id, payload) values {}",
        values.join(", ")
    );
    let slow = tokio::spawn({
        let outbox = outbox.clone();
        async move { outbox.execute(&mut connection, &insert).await }
    });
    let mut quick = BTreeSet::new();
    let mut found = Vec::new();
    let mut position = Position::default();
    while !slow.is_finished() {
        quick.extend(outbox.commit(&[event("quick")]).await);
        let page = outbox.store.read_on(&SHARDS, &position, Limit::rows(1000)).await.unwrap();
        found.extend(sequences(&page));
        position = page.position;
    }
    slow.await.unwrap();
    assert!(quick.len() > 5, "they were read beside it");
    let page = outbox.store.read_on(&SHARDS, &position, Limit::rows(1000)).await.unwrap();
    found.extend(sequences(&page));
    let of_slow = found.iter().filter(|sequence| !quick.contains(sequence)).count();
    assert_eq!(of_slow, ROWS as usize, "all of them are committed");
    let mut drop = outbox.pool.acquire().await.unwrap();
    outbox.execute(&mut drop, "drop table if exists {events}_side").await;
    outbox.execute(&mut drop, "drop function if exists {events}_slow").await;
    outbox.drop().await;
}

#[tokio::test]
async fn a_trigger_does_not_make_its_statement_look_young() {
    let prepare = [
        "create table {events}_side (n int)",
        "create trigger {events}_trigger after insert on {events} for each row
            insert into {events}_side select if(new.aggregate_type = 'slow', sleep(0.02), 0)",
    ];
    all_rows_of_a_slow_statement_are_found(&prepare, "'slow'").await;
}

#[tokio::test]
async fn a_function_among_the_values_does_not_make_its_statement_look_young() {
    let prepare = ["create function {events}_slow() returns varchar(10) reads sql data
        begin
            declare slept int;
            select sleep(0.02) into slept;
            return 'slow';
        end"];
    all_rows_of_a_slow_statement_are_found(&prepare, "{events}_slow()").await;
}
