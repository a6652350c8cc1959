//! A writer that commits and rolls back, and writes down first what it is about to do.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use posthaste::{Dialect, Event, Outbox};
use posthaste_harness::{
    fixture::Connections,
    journal::{Entry, Journal},
    message::{Message, Report, say},
    options::{Path, WriterOptions},
};
use sqlx::Pool;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    signal::unix::{SignalKind, signal},
    sync::Semaphore,
    task::JoinSet,
};
use uuid::Uuid;

use crate::relay::Running;

/// Shortest time between two reports.
const REPORT_EVERY: Duration = Duration::from_millis(50);

pub(crate) async fn run(options: WriterOptions) -> Result<(), Box<dyn Error>> {
    match Connections::open(&options.relay.url, options.relay.connections).await? {
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
    let writer = Arc::new(Writer {
        pool,
        outbox,
        journal: Journal::open(&options.journal)?,
        options,
        committed: AtomicU64::new(0),
        unknown: AtomicU64::new(0),
        stopping: AtomicBool::new(false),
    });

    let mut writing = JoinSet::new();
    if writer.options.commanded {
        tokio::spawn(Arc::clone(&writer).obey());
    } else {
        tokio::spawn(end_with_parent());
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
            let keys = (0..count).map(|_| format!("k{}", random.u32(..self.options.keys)));
            let keys: Vec<String> = keys.collect();
            let commits = random.f64() >= self.options.rollback;
            self.transaction(keys, commits).await;
            if self.options.pause > 0 {
                tokio::time::sleep(Duration::from_millis(random.u64(..=self.options.pause))).await;
            }
        }
    }

    /// A transaction for every line `write KEY`, side by side.
    async fn obey(self: Arc<Self>) {
        let room = Arc::new(Semaphore::new(self.options.side_by_side as usize));
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let Some(key) = line.strip_prefix("write ") else { continue };
            let (writer, key) = (Arc::clone(&self), key.to_owned());
            let permit = Arc::clone(&room).acquire_owned().await;
            tokio::spawn(async move {
                writer.transaction(vec![key.clone()], true).await;
                say(&Message::Written(key));
                drop(permit);
            });
        }
        // The one that started this process has gone.
        std::process::exit(1);
    }

    /// One transaction. Its events are in the journal before the database knows of them, its end
    /// only once that is certain.
    async fn transaction(&self, keys: Vec<String>, commits: bool) {
        let transaction = Uuid::now_v7();
        let events: Vec<Event> = keys
            .iter()
            .map(|key| {
                let event = Event::builder("Changed").aggregate("Thing", key).raw_json("{}");
                event.build().expect("an event that is valid")
            })
            .collect();
        for (event, key) in events.iter().zip(&keys) {
            self.journal.write(&Entry::Began(event.id(), key.clone()).line(transaction));
        }
        let count = events.len() as u64;
        let end = match self.options.path {
            Path::Hot | Path::Wake => self.with_wrapper(events, commits).await,
            Path::Plain => self.with_driver(events, commits).await,
        };
        match end {
            End::Committed => {
                self.journal.write(&Entry::Committed.line(transaction));
                self.committed.fetch_add(count, Ordering::Relaxed);
            }
            End::RolledBack => self.journal.write(&Entry::RolledBack.line(transaction)),
            End::Unknown => {
                self.unknown.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Through our own transaction.
    async fn with_wrapper(&self, events: Vec<Event>, commits: bool) -> End {
        let Ok(mut tx) = self.outbox.begin(&self.pool).await else {
            return End::RolledBack;
        };
        if let Err(error) = self.outbox.enqueue_all(&mut tx, events).await {
            tracing::warn!(%error, "enqueue failed");
            return End::RolledBack;
        }
        if !commits {
            // The connection can break now; what was not committed is rolled back all the same.
            let _ = tx.rollback().await;
            return End::RolledBack;
        }
        match tx.commit().await {
            Ok(()) => End::Committed,
            Err(error) => End::unknown(&error),
        }
    }

    /// Through the driver's own transaction, as an application that knows nothing of relays.
    async fn with_driver(&self, events: Vec<Event>, commits: bool) -> End {
        let Ok(mut tx) = self.pool.begin().await else {
            return End::RolledBack;
        };
        if let Err(error) = self.outbox.enqueue_all(&mut tx, events).await {
            tracing::warn!(%error, "enqueue failed");
            return End::RolledBack;
        }
        if !commits {
            let _ = tx.rollback().await;
            return End::RolledBack;
        }
        match tx.commit().await {
            Ok(()) => End::Committed,
            Err(error) => End::unknown(&error),
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
    fn unknown(error: &dyn Error) -> Self {
        tracing::warn!(%error, "commit failed");
        Self::Unknown
    }
}

/// Ends this process when the one that started it has gone without ending it.
async fn end_with_parent() {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(_)) = lines.next_line().await {}
    std::process::exit(1);
}
