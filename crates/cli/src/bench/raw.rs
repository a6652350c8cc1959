//! The baselines of `drain`: one task reads ahead on one connection, one task marks in batches on
//! another, a short queue between them. No lanes, no dispatch, no heartbeat.
//!
//! Two of them. The first has the same statements as the relay: what is missing beside it is the
//! relay's. The second is leaner SQL, as a team would write it for itself, without a fence and
//! without a look for late commits: what the statements themselves cost cannot hide in it.
//!
//! A baseline of `publish` has the broker's own client between the statements of the first: the least that
//! an outbox with these statements has to do.

use std::{
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use posthaste::{
    Envelope, Error, ErrorKind, Result,
    store::{
        Fence, Fetched, Limit, Position, Relay, RelayOrdering, RowLease, Settlement, Store, Verdict,
    },
};
use tokio::{
    sync::{Mutex, mpsc},
    task::JoinSet,
};
use uuid::Uuid;

use super::{
    clients::Client,
    ground::Ground,
    publish::BATCHES,
    target::{RawRow, Target, failed},
};

/// Batches that wait between the two tasks: as many events as wait in a relay.
const QUEUE: usize = 2;

/// Most batches in one settle of what a client published, as in a relay.
const SETTLE_BATCHES: usize = 4;

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
    let statements = Statements::of(ground, delete).await?;
    let (send, receive) = mpsc::channel::<Vec<Settlement>>(QUEUE);
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    tasks.spawn(Arc::clone(&statements).read(async move |rows: Vec<Fetched>| {
        let settlements: Vec<Settlement> = rows.iter().map(sent).collect();
        black_box(rows);
        send.send(settlements).await.is_ok()
    }));
    tasks.spawn(Arc::clone(&statements).mark(receive, 1));
    ended(tasks, events).await?;
    let elapsed = started.elapsed();
    statements.end().await?;
    Ok(elapsed)
}

/// Publishes the outbox with a broker's own client between the statements that the relay uses: nobody keeps
/// order, and one failure ends it. Gives how long it took.
pub(super) async fn published<DB: Target>(
    ground: &Ground<DB>,
    events: u64,
    delete: bool,
    client: &Arc<dyn Client>,
    topic: &str,
    window: usize,
) -> Result<Duration> {
    let statements = Statements::of(ground, delete).await?;
    let (send, receive) = mpsc::channel::<Vec<Fetched>>(QUEUE);
    let receive = Arc::new(Mutex::new(receive));
    let (settle, settlements) = mpsc::channel::<Vec<Settlement>>(QUEUE);
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    tasks.spawn(
        Arc::clone(&statements).read(async move |rows: Vec<Fetched>| send.send(rows).await.is_ok()),
    );
    let workers = BATCHES.min(window);
    for _ in 0..workers {
        let (client, receive) = (Arc::clone(client), Arc::clone(&receive));
        let (settle, topic) = (settle.clone(), topic.to_owned());
        tasks.spawn(async move {
            loop {
                let Some(rows) = receive.lock().await.recv().await else { return Ok(0) };
                let settlements: Vec<Settlement> = rows.iter().map(sent).collect();
                let envelopes = rows.into_iter().map(|row| {
                    let envelope =
                        row.content.map_err(|error| Error::new(ErrorKind::State, error))?;
                    Ok(Envelope { topic: Some(topic.clone()), ..*envelope })
                });
                let envelopes: Vec<Envelope> = envelopes.collect::<Result<_>>()?;
                client.publish(&envelopes, window / workers).await?;
                if settle.send(settlements).await.is_err() {
                    return Ok(0);
                }
            }
        });
    }
    drop(settle);
    tasks.spawn(Arc::clone(&statements).mark(settlements, SETTLE_BATCHES));
    ended(tasks, events).await?;
    let elapsed = started.elapsed();
    statements.end().await?;
    Ok(elapsed)
}

/// The relay's own statements, and the right to them.
struct Statements {
    store: Arc<dyn Store>,
    relay: Relay,
    shards: Vec<u16>,
    /// Under row leases.
    claim: Option<RowLease>,
    fence: Fence,
    batch: usize,
    delete: bool,
}

impl Statements {
    async fn of<DB: Target>(ground: &Ground<DB>, delete: bool) -> Result<Arc<Self>> {
        let store = ground.store(&ground.tables).await?;
        let shards: Vec<u16> = (0..store.check().await?).collect();
        let relay = Relay {
            name: "bench".to_owned(),
            instance: Uuid::now_v7(),
            ordering: ground.ordering,
            lease: Duration::from_mins(10),
        };
        store.heartbeat(&relay, i64::MAX).await?;
        let claim = (ground.ordering == RelayOrdering::None)
            .then(|| RowLease { token: format!("{}/1", relay.owner()) });
        let fence = if let Some(claim) = &claim {
            Fence::Rows(claim.clone())
        } else {
            let leases = store.acquire(&relay, &shards).await?;
            let held = leases.into_iter().map(|lease| lease.held).collect();
            Fence::Shards { owner: relay.owner(), held }
        };
        Ok(Arc::new(Self { store, relay, shards, claim, fence, batch: ground.batch, delete }))
    }

    /// Reads until there is no more, or nobody takes it.
    async fn read(self: Arc<Self>, mut give: impl AsyncFnMut(Vec<Fetched>) -> bool) -> Result<u64> {
        let mut position = Position::default();
        loop {
            let rows;
            (rows, position) = if let Some(claim) = &self.claim {
                let claimed = self
                    .store
                    .claim(&self.relay, claim, &position, Limit::rows(self.batch))
                    .await?;
                (claimed.rows, claimed.position)
            } else {
                let page = self.store.read_on(&self.shards, &position, Limit::rows(self.batch));
                let page = page.await?;
                (page.rows, page.position)
            };
            let last = rows.len() < self.batch;
            if rows.is_empty() || !give(rows).await || last {
                return Ok(0);
            }
        }
    }

    /// Settles until there is no more, up to `most` batches at a time. Gives how many events.
    async fn mark(
        self: Arc<Self>,
        mut sent: mpsc::Receiver<Vec<Settlement>>,
        most: usize,
    ) -> Result<u64> {
        let mut settled = 0;
        let mut batches = Vec::new();
        while sent.recv_many(&mut batches, most).await > 0 {
            let batch: Vec<Settlement> = batches.drain(..).flatten().collect();
            let report = self.store.settle(&self.fence, &batch, !self.delete).await?;
            settled += (batch.len() - report.refused.len()) as u64;
        }
        Ok(settled)
    }

    async fn end(&self) -> Result<()> {
        self.store.retire(&self.relay).await
    }
}

fn sent(row: &Fetched) -> Settlement {
    Settlement {
        sequence: row.sequence,
        identity: row.identity,
        shard: row.shard,
        attempts: row.attempts,
        verdict: Verdict::Sent,
    }
}

/// Waits for all tasks. A baseline that did less than it should is none.
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
