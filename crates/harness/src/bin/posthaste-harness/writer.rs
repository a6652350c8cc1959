//! A writer that commits and rolls back, and writes down first what it is about to do.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use posthaste::{Dialect, EnqueueIn, Event, Failure, Hook, Outbox, Written};
use posthaste_harness::{
    fixture::{Connections, event},
    journal::{Entry, Journal},
    message::{Message, Report, say},
    options::{Path, WriterOptions},
};
use sqlx::Pool;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{Semaphore, mpsc},
    task::JoinSet,
};
use uuid::Uuid;

use crate::{
    relay::{Running, START_AGAIN},
    told,
};

/// Shortest time between two reports.
const REPORT_EVERY: Duration = Duration::from_millis(50);

pub(crate) async fn run(options: WriterOptions) -> Result<(), Box<dyn Error>> {
    let connections = loop {
        match Connections::open(&options.relay.url, options.relay.connections).await {
            Ok(connections) => break connections,
            // Connections are cut on purpose, at any time.
            Err(error) => tracing::warn!(%error, "not connected; trying again"),
        }
        tokio::time::sleep(START_AGAIN).await;
    };
    match connections {
        Connections::Postgres(pool) => write_on(pool, options).await,
        Connections::MySql(pool) => write_on(pool, options).await,
        Connections::Sqlite(pool) => write_on(pool, options).await,
    }
}

async fn write_on<DB: Dialect>(
    pool: Pool<DB>,
    options: WriterOptions,
) -> Result<(), Box<dyn Error>> {
    let mut terminated = signal(SignalKind::terminate())?;
    let mut outbox = Outbox::new(options.relay.table.clone());
    let relay = match options.path {
        Path::Hot => {
            let running = Running::start(&options.relay).await?;
            outbox = outbox.with_hot_path(running.relay.hot_path());
            Some(running)
        }
        Path::Wake | Path::Plain => None,
    };
    if options.dies_after_commit {
        outbox = outbox.with_hook(Death);
    }
    let writer = Arc::new(Writer {
        pool,
        outbox,
        journal: Journal::open(&options.journal)?,
        options,
        committed: AtomicU64::new(0),
        unknown: AtomicU64::new(0),
        stopping: AtomicBool::new(false),
    });

    let told = told();
    let mut writing = JoinSet::new();
    if writer.options.commanded {
        tokio::spawn(Arc::clone(&writer).obey(told));
    } else {
        for number in 0..writer.options.side_by_side {
            let seed = writer.options.relay.seed.wrapping_add(u64::from(number));
            writing.spawn(Arc::clone(&writer).roam(fastrand::Rng::with_seed(seed)));
        }
    }
    loop {
        say(&Message::Report(writer.report(relay.as_ref().map(Running::report))));
        tokio::select! {
            _ = terminated.recv() => break,
            () = tokio::time::sleep(REPORT_EVERY) => {}
        }
    }
    writer.stopping.store(true, Ordering::Relaxed);
    writing.join_all().await;
    let last = match &relay {
        Some(running) => running.stop().await?,
        None => Report { stopped: true, ..Report::default() },
    };
    say(&Message::Report(writer.report(Some(last))));
    Ok(())
}

/// Ends the process with the first commit, as a SIGKILL would: nothing is cleaned up.
struct Death;

impl Hook for Death {
    fn after_commit(&self, _: &[Written]) -> Result<(), Failure> {
        std::process::abort();
    }
}

struct Writer<DB: Dialect> {
    pool: Pool<DB>,
    outbox: Outbox<DB>,
    journal: Journal,
    options: WriterOptions,
    committed: AtomicU64,
    unknown: AtomicU64,
    stopping: AtomicBool,
}

impl<DB: Dialect> Writer<DB> {
    /// Transactions at random, one after the other, until it is terminated.
    async fn roam(self: Arc<Self>, mut random: fastrand::Rng) {
        while !self.stopping.load(Ordering::Relaxed) {
            let count = random.usize(1..=self.options.per_transaction);
            let keys: Vec<String> = (0..count).map(|_| self.key(&mut random)).collect();
            let commits = random.f64() >= self.options.rollback;
            self.transaction(&keys, commits).await;
            if self.options.pause > 0 {
                tokio::time::sleep(Duration::from_millis(random.u64(..=self.options.pause))).await;
            }
        }
    }

    /// Some keys are written to far more often than others: order needs company.
    fn key(&self, random: &mut fastrand::Rng) -> String {
        let skewed = random.f64().powi(2) * f64::from(self.options.keys);
        format!("k{}", skewed as u32)
    }

    /// A transaction for every line `write KEY`, side by side.
    async fn obey(self: Arc<Self>, mut told: mpsc::UnboundedReceiver<String>) {
        let room = Arc::new(Semaphore::new(self.options.side_by_side as usize));
        while let Some(line) = told.recv().await {
            let Some(key) = line.strip_prefix("write ") else { continue };
            let (writer, key) = (Arc::clone(&self), key.to_owned());
            let permit = Arc::clone(&room).acquire_owned().await;
            tokio::spawn(async move {
                writer.transaction(std::slice::from_ref(&key), true).await;
                say(&Message::Written(key));
                drop(permit);
            });
        }
    }

    /// One transaction of these keys, by our own wrapper or by the driver's.
    async fn transaction(&self, keys: &[String], commits: bool) {
        let id = Uuid::now_v7();
        let end = match self.options.path {
            Path::Hot | Path::Wake => {
                let Ok(mut tx) = self.outbox.begin(&self.pool).await else { return };
                match (self.enqueue(&mut tx, id, keys).await, commits) {
                    (true, true) => End::of(tx.commit().await),
                    // The connection can break now; it is rolled back all the same.
                    _ => End::rolled_back(tx.rollback().await),
                }
            }
            // As an application that knows nothing of relays.
            Path::Plain => {
                let Ok(mut tx) = self.pool.begin().await else { return };
                match (self.enqueue(&mut tx, id, keys).await, commits) {
                    (true, true) => End::of(tx.commit().await),
                    _ => End::rolled_back(tx.rollback().await),
                }
            }
        };
        match end {
            End::Committed => {
                self.journal.write(&Entry::Committed.line(id));
                self.committed.fetch_add(keys.len() as u64, Ordering::Relaxed);
            }
            End::RolledBack => self.journal.write(&Entry::RolledBack.line(id)),
            End::Unknown => {
                self.unknown.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Events are in the journal before the database knows of them.
    async fn enqueue(&self, tx: &mut impl EnqueueIn<DB>, id: Uuid, keys: &[String]) -> bool {
        let events: Vec<Event> = keys.iter().map(|key| event("Changed", key)).collect();
        for (event, key) in events.iter().zip(keys) {
            self.journal.write(&Entry::Began(event.id(), key.clone()).line(id));
        }
        match self.outbox.enqueue_all(tx, events).await {
            Ok(_) => true,
            Err(error) => {
                tracing::warn!(%error, "enqueue failed");
                false
            }
        }
    }

    fn report(&self, relay: Option<Report>) -> Report {
        Report {
            committed: self.committed.load(Ordering::Relaxed),
            unknown: self.unknown.load(Ordering::Relaxed),
            ..relay.unwrap_or_default()
        }
    }
}

enum End {
    Committed,
    RolledBack,
    Unknown,
}

impl End {
    /// Committed for certain, or nobody knows.
    fn of(commit: Result<(), impl Error>) -> Self {
        match commit {
            Ok(()) => Self::Committed,
            Err(error) => {
                tracing::warn!(%error, "commit failed");
                Self::Unknown
            }
        }
    }

    fn rolled_back(_: Result<(), impl Error>) -> Self {
        Self::RolledBack
    }
}
