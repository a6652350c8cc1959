//! The baselines of `drain`: one task reads ahead on one connection, one task marks in batches on
//! another, a short queue between them. No lanes, no dispatch, no heartbeat.
//!
//! Two of them. The first has the same statements as the relay: what is missing beside it is the
//! relay's. The second is leaner SQL, as a team would write it for itself, without a fence and
//! without a look for late commits: what the statements themselves cost cannot hide in it.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use posthaste::{
    Error, ErrorKind, Result,
    store::{Fence, Fetched, Held, Position, Relay, RelayOrdering, RowLease, Settlement, Verdict},
};
use tokio::{sync::mpsc, task::JoinSet};
use uuid::Uuid;

use super::{
    ground::Ground,
    target::{RawRow, Target, failed},
};

/// Batches that wait between the two tasks: as many events as wait in a relay.
const QUEUE: usize = 2;

/// In a few words, for the report.
pub(super) fn description(ordering: RelayOrdering, delete: bool, batch: usize) -> String {
    let ends = if delete { "delete" } else { "mark" };
    let begins = match ordering {
        RelayOrdering::None => "claim rows (skip locked)",
        _ => "read ahead",
    };
    format!(
        "{begins} on one connection, {ends} in batches on another, {batch} events each, all \
         columns decoded; with the relay's own statements, and with leaner ones by hand that have \
         no fence and do not look for late commits"
    )
}

/// Drains the outbox with as little SQL as it takes. Gives how long it took.
pub(super) async fn leaner<DB: Target>(
    ground: &Ground<DB>,
    events: u64,
    delete: bool,
) -> Result<Duration> {
    const TOKEN: &str = "bench/1";

    let mut reader = ground.connection().await?;
    let mut marker = ground.connection().await?;
    let (tables, limit) = (ground.tables.clone(), ground.batch as i64);
    let by_rows = ground.ordering == RelayOrdering::None;
    let (send, mut receive) = mpsc::channel::<Vec<i64>>(QUEUE);
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    tasks.spawn({
        let tables = tables.clone();
        async move {
            let mut after = 0;
            loop {
                let rows: Vec<RawRow> = if by_rows {
                    DB::claim(&mut reader, &tables, TOKEN, after, limit).await
                } else {
                    DB::read(&mut reader, &tables, after, limit).await
                }
                .map_err(failed("the baseline's read"))?;
                let sequences: Vec<i64> = rows.iter().map(|row| row.sequence).collect();
                black_box(rows);
                after = sequences.iter().copied().max().unwrap_or(after);
                let last = sequences.len() < limit as usize;
                if sequences.is_empty() || send.send(sequences).await.is_err() || last {
                    return Ok(0);
                }
            }
        }
    });
    tasks.spawn(async move {
        let token = by_rows.then_some(TOKEN);
        let mut marked = 0;
        while let Some(sequences) = receive.recv().await {
            DB::mark(&mut marker, &tables, &sequences, token, delete)
                .await
                .map_err(failed("the baseline's mark"))?;
            marked += sequences.len() as u64;
        }
        Ok(marked)
    });
    ended(tasks, events).await?;
    Ok(started.elapsed())
}

/// Drains the outbox with the statements that the relay uses. Gives how long it took.
pub(super) async fn same_statements<DB: Target>(
    ground: &Ground<DB>,
    events: u64,
    delete: bool,
) -> Result<Duration> {
    let store = ground.store(&ground.tables).await?;
    let total = store.check().await?;
    let relay = Relay {
        name: "bench".to_owned(),
        instance: Uuid::now_v7(),
        ordering: ground.ordering,
        lease: Duration::from_mins(10),
    };
    store.heartbeat(&relay, i64::MAX).await?;
    let by_rows = ground.ordering == RelayOrdering::None;
    let shards: Vec<u16> = (0..total).collect();
    let held: Vec<Held> = if by_rows {
        Vec::new()
    } else {
        store.acquire(&relay, &shards).await?.into_iter().map(|lease| lease.held).collect()
    };
    let lease = RowLease { token: format!("{}/1", relay.owner()) };
    let fence = if by_rows {
        Fence::Rows(lease.clone())
    } else {
        Fence::Shards { owner: relay.owner(), held }
    };
    let limit = ground.batch;
    let (send, mut receive) = mpsc::channel::<Vec<Settlement>>(QUEUE);
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    tasks.spawn({
        let (store, relay) = (store.clone(), relay.clone());
        async move {
            let mut position = Position::default();
            loop {
                let rows;
                (rows, position) = if by_rows {
                    let claimed = store.claim(&relay, &lease, &position, limit).await?;
                    (claimed.rows, claimed.position)
                } else {
                    let page = store.read_on(&shards, &position, limit, limit).await?;
                    (page.rows, page.position)
                };
                let settlements: Vec<Settlement> = rows.iter().map(sent).collect();
                black_box(rows);
                let last = settlements.len() < limit;
                if settlements.is_empty() || send.send(settlements).await.is_err() || last {
                    return Ok(0);
                }
            }
        }
    });
    tasks.spawn({
        let store = store.clone();
        async move {
            let mut settled = 0;
            while let Some(batch) = receive.recv().await {
                let report = store.settle(&fence, &batch, !delete).await?;
                settled += (batch.len() - report.refused.len()) as u64;
            }
            Ok(settled)
        }
    });
    ended(tasks, events).await?;
    let elapsed = started.elapsed();
    store.retire(&relay).await?;
    Ok(elapsed)
}

fn sent(row: &Fetched) -> Settlement {
    Settlement {
        sequence: row.sequence,
        shard: row.shard,
        attempts: row.attempts,
        verdict: Verdict::Sent,
    }
}

/// Waits for both tasks. A baseline that did less than it should is none.
async fn ended(mut tasks: JoinSet<Result<u64>>, events: u64) -> Result<()> {
    let mut done = 0;
    while let Some(task) = tasks.join_next().await {
        done += task.map_err(|error| {
            Error::new(ErrorKind::State, "the baseline ended unexpectedly").with_source(error)
        })??;
    }
    if done == events {
        return Ok(());
    }
    Err(Error::new(ErrorKind::State, format!("the baseline drained {done} of {events} events")))
}
