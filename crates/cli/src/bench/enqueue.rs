//! `bench enqueue`: what an event costs a business transaction.
//!
//! A transaction inserts an order and an event. One side calls `enqueue`, the other has the very
//! same insert written by hand; they take turns on the same connections, a
//! hundred transactions each. A third side uses our
//! transaction, which also wakes relays in other processes after each commit.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use posthaste::{Error, ErrorKind, Event, Outbox, Result, store::RelayOrdering, stores::Tables};
use serde::Serialize;
use sqlx::Pool;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::{
    args::EnqueueArgs,
    ground::Ground,
    report::{
        Report, median, median_ratio, medians, per_second, progress, rate, rounded, thousands,
        whole,
    },
    target::{ByHand, Target, failed},
};

/// Transactions that one side makes before the next has its turn.
const SLICE: u64 = 100;

#[derive(Serialize)]
struct Figures<'f> {
    bench: &'f str,
    database: &'f str,
    release: bool,
    events: u64,
    payload: usize,
    ordering: &'f str,
    writers: u64,
    pairs: u64,
    by_hand_per_s: f64,
    enqueue_per_s: f64,
    ratio: f64,
    /// With our transaction, which notifies after each commit.
    notifying_per_s: f64,
    notifying_ratio: f64,
    by_hand_runs: Vec<f64>,
    enqueue_runs: Vec<f64>,
    notifying_runs: Vec<f64>,
}

#[derive(Clone, Copy)]
enum How {
    ByHand,
    Enqueue,
    Notifying,
}

/// What a writer needs.
struct Desk<DB: Target> {
    pool: Pool<DB>,
    tables: Tables,
    outbox: Outbox<DB>,
    payload: Vec<u8>,
    keys: u64,
    unordered: bool,
    /// The number of the next order.
    next: AtomicI64,
}

pub(super) async fn run<DB: Target>(args: &EnqueueArgs, ground: &Ground<DB>) -> Result<Report> {
    ground.refill(&ground.tables, 1).await?;
    ground.make_orders().await?;
    let desk = Arc::new(Desk::<DB> {
        // One connection more than writers, for notifications.
        pool: ground.pool(args.writers as u32 + 1).await?,
        tables: ground.tables.clone(),
        outbox: Outbox::new(ground.tables.name().clone()),
        payload: ground.content.payload.clone(),
        keys: ground.content.keys,
        unordered: ground.ordering == RelayOrdering::None,
        next: AtomicI64::new(0),
    });
    let count = (args.events / args.pairs).max(args.writers);
    progress(format_args!("warming up"));
    pair(&desk, SLICE, args.writers).await?;
    let mut runs = [Vec::new(), Vec::new(), Vec::new()];
    for number in 1..=args.pairs {
        let per_s = pair(&desk, count, args.writers).await?;
        let [by_hand, enqueue, notifying] = per_s.map(rate);
        progress(format_args!(
            "pair {number} of {}: by hand {by_hand}, enqueue {enqueue}, enqueue and notify \
             {notifying}",
            args.pairs
        ));
        for (runs, per_s) in runs.iter_mut().zip(per_s) {
            runs.push(per_s);
        }
    }
    desk.pool.close().await;
    let [by_hand, enqueue, notifying] = runs;
    Ok(report(args, ground, &by_hand, &enqueue, &notifying))
}

/// Each side makes so many transactions, in slices and in turn: a disk that is slow for a while is
/// slow for all of them. Gives their rates.
async fn pair<DB: Target>(desk: &Arc<Desk<DB>>, count: u64, writers: u64) -> Result<[f64; 3]> {
    let mut spent = [Duration::ZERO; 3];
    let mut done = 0;
    while done < count {
        let slice = SLICE.min(count - done);
        done += slice;
        for (how, spent) in [How::ByHand, How::Enqueue, How::Notifying].into_iter().zip(&mut spent)
        {
            *spent += turn(desk, how, slice, writers).await?;
        }
    }
    Ok(spent.map(|spent| per_second(count, spent)))
}

/// So many transactions, shared by the writers. Gives how long they took.
async fn turn<DB: Target>(
    desk: &Arc<Desk<DB>>,
    how: How,
    count: u64,
    writers: u64,
) -> Result<Duration> {
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for writer in 0..writers {
        let desk = Arc::clone(desk);
        let share = count / writers + u64::from(writer < count % writers);
        tasks.spawn(async move {
            for _ in 0..share {
                desk.transaction(how).await?;
            }
            Ok::<_, Error>(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.map_err(|error| {
            Error::new(ErrorKind::State, "a writer ended unexpectedly").with_source(error)
        })??;
    }
    Ok(started.elapsed())
}

impl<DB: Target> Desk<DB> {
    async fn transaction(&self, how: How) -> Result<()> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let customer = id as u64 % self.keys;
        match how {
            How::ByHand => {
                let mut transaction = self.pool.begin().await.map_err(failed("beginning"))?;
                self.order(&mut transaction, id).await?;
                let event = ByHand {
                    id: Uuid::now_v7(),
                    aggregate_id: &customer.to_string(),
                    ordering_key: self.unordered.then_some(""),
                    payload: &self.payload,
                    occurred_at: jiff::Timestamp::now().as_microsecond(),
                };
                DB::insert_event(&mut transaction, &self.tables, &event)
                    .await
                    .map_err(failed("inserting an event"))?;
                transaction.commit().await.map_err(failed("committing"))
            }
            How::Enqueue => {
                let mut transaction = self.pool.begin().await.map_err(failed("beginning"))?;
                self.order(&mut transaction, id).await?;
                self.outbox.enqueue(&mut transaction, self.event(customer)?).await?;
                transaction.commit().await.map_err(failed("committing"))
            }
            How::Notifying => {
                let mut transaction = self.outbox.begin(&self.pool).await?;
                self.order(transaction.connection(), id).await?;
                self.outbox.enqueue(&mut transaction, self.event(customer)?).await?;
                transaction.commit().await
            }
        }
    }

    async fn order(&self, connection: &mut DB::Connection, id: i64) -> Result<()> {
        DB::insert_order(connection, &self.tables, id).await.map_err(failed("inserting an order"))
    }

    fn event(&self, customer: u64) -> Result<Event> {
        let event = Event::builder("OrderPlaced")
            .aggregate("Order", customer)
            .bytes("application/json", self.payload.clone());
        if self.unordered { event.unordered().build() } else { event.build() }
    }
}

fn report<DB: Target>(
    args: &EnqueueArgs,
    ground: &Ground<DB>,
    by_hand: &[f64],
    enqueue: &[f64],
    notifying: &[f64],
) -> Report {
    let middle = |values: &[f64]| median(values).unwrap_or_default().round();
    let ratio = |ours: &[f64]| rounded(median_ratio(ours, by_hand).unwrap_or_default(), 3);
    let figures = Figures {
        bench: "enqueue",
        database: &ground.version,
        release: !cfg!(debug_assertions),
        events: args.events,
        payload: ground.content.payload.len(),
        ordering: ground.ordering.as_str(),
        writers: args.writers,
        pairs: args.pairs,
        by_hand_per_s: middle(by_hand),
        enqueue_per_s: middle(enqueue),
        ratio: ratio(enqueue),
        notifying_per_s: middle(notifying),
        notifying_ratio: ratio(notifying),
        by_hand_runs: whole(by_hand),
        enqueue_runs: whole(enqueue),
        notifying_runs: whole(notifying),
    };
    let title = format!(
        "enqueue on {}: transactions of an order and an event of {} bytes, writers: {}, {} of each \
         kind, {}",
        ground.version,
        figures.payload,
        args.writers,
        thousands(args.events),
        medians(args.pairs)
    );
    let mut report = Report::new(title, &figures);
    let compared = |ratio: f64| format!("{ratio:.3} of by hand");
    report.row("by hand", rate(figures.by_hand_per_s), String::new());
    report.row("enqueue", rate(figures.enqueue_per_s), compared(figures.ratio));
    let notifying = rate(figures.notifying_per_s);
    report.row("enqueue and notify", notifying, compared(figures.notifying_ratio));
    report
        .note("Baseline: the same two inserts in a transaction of the driver's, same connections.");
    report
}
