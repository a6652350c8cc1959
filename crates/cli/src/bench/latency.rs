//! `bench latency`: how long from commit to transport.
//!
//! | way | who commits | who tells the relay |
//! | --- | --- | --- |
//! | `hot` | a plain transaction, in the relay's process | the writer, over the hot path |
//! | `notify` | our transaction, without a hot path, as in another process | NOTIFY, or the file's change |
//! | `poll` | a plain transaction of the driver's | nobody: the relay polls |

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use posthaste::{
    Enqueued, Envelope, Error, ErrorKind, Event, Outbox, Result,
    relay::{Committed, HotPath, Relay},
    store::RelayOrdering,
    transport::{Acceptance, Capabilities, Outcome, Transport},
};
use serde::Serialize;
use sqlx::Connection;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::{
    args::LatencyArgs,
    ground::Ground,
    relayed,
    report::{Percentiles, Report, progress},
    target::{Target, failed},
};

/// Events at the start that are not counted: connections are opened, statements prepared.
const WARM_UP: u64 = 100;

/// Events that are there already, sent: an outbox in use has a history, and a server that has seen
/// an almost empty table plans otherwise.
const HISTORY: u64 = 10_000;

/// What is not delivered so long after the last commit is lost.
const LOST: Duration = Duration::from_secs(30);

#[derive(Serialize)]
struct Figures<'f> {
    bench: &'f str,
    database: &'f str,
    release: bool,
    events: u64,
    rate: u64,
    payload: usize,
    keys: u64,
    ordering: &'f str,
    hot: Option<Percentiles>,
    /// How many of them really came over the hot path; the others were found by a read.
    hot_events: u64,
    /// `null` where a relay cannot hear of commits.
    notify: Option<Percentiles>,
    /// `null` where a relay cannot help hearing of them.
    poll: Option<Percentiles>,
    listen_round_trip_p50_ms: Option<f64>,
    listen_round_trip: Option<Percentiles>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Hot,
    Notify,
    Poll,
}

pub(super) async fn run<DB: Target>(args: &LatencyArgs, ground: &Ground<DB>) -> Result<Report> {
    let events = match args.events {
        Some(events) => events,
        None => (args.length.as_secs_f64() * args.rate as f64) as u64,
    };
    if events == 0 {
        return Err(Error::invalid("--for is too short for one event; give it some seconds"));
    }
    let pause = Duration::from_secs(1).div_f64(args.rate as f64);
    progress(format_args!("bare LISTEN round trips"));
    let round_trips = DB::listen_round_trips(&ground.url, "bench_round_trip", events, pause)
        .await
        .map_err(failed("listening"))?;
    let (hot, hot_events) = measure(ground, Way::Hot, "hot path", events, pause).await?;
    let (mut notify, mut poll) = (None, None);
    if DB::HEARS {
        notify = measure(ground, Way::Notify, "notify", events, pause).await?.0;
    }
    if DB::CAN_BE_DEAF {
        poll = measure(ground, Way::Poll, "poll", events, pause).await?.0;
    }
    let listen_round_trip = round_trips.and_then(|times| Percentiles::of(&times));
    let figures = Figures {
        bench: "latency",
        database: &ground.version,
        release: !cfg!(debug_assertions),
        events,
        rate: args.rate,
        payload: ground.content.payload.len(),
        keys: ground.content.keys,
        ordering: ground.ordering.as_str(),
        hot,
        hot_events: hot_events.saturating_sub(WARM_UP),
        notify,
        poll,
        listen_round_trip_p50_ms: listen_round_trip.map(|times| times.p50_ms),
        listen_round_trip,
    };
    Ok(report(ground, &figures))
}

fn report<DB: Target>(ground: &Ground<DB>, figures: &Figures<'_>) -> Report {
    let title = format!(
        "latency on {}: from commit to transport, {} events each at {} a second, {} bytes, \
         ordering {}",
        ground.version, figures.events, figures.rate, figures.payload, ground.ordering
    );
    let mut report = Report::new(title, figures);
    let mut row = |what: &str, times: Option<Percentiles>, missing: &str| {
        let figure = times.map_or_else(|| missing.to_owned(), |times| times.to_string());
        report.row(what, figure, String::new());
    };
    row("hot path", figures.hot, "");
    row("notify, across processes", figures.notify, "nothing to listen to here");
    row("poll", figures.poll, "a relay watches the file itself here");
    row("bare LISTEN round trip", figures.listen_round_trip, "nothing to listen to here");
    if figures.hot_events < figures.events {
        report.note(format!(
            "Only {} of {} events came over the hot path; reads found the others.",
            figures.hot_events, figures.events
        ));
    }
    report
}

/// One way, with a relay of its own. Also gives how many events came over the hot path.
async fn measure<DB: Target>(
    ground: &Ground<DB>,
    way: Way,
    name: &str,
    events: u64,
    pause: Duration,
) -> Result<(Option<Percentiles>, u64)> {
    ground.refill(&ground.tables, HISTORY).await?;
    progress(format_args!("{name}: {events} events"));
    let arrivals = Arc::new(Arrivals::default());
    let store = ground.store(&ground.tables).await?;
    let transport = Arc::clone(&arrivals) as Arc<dyn Transport>;
    let relay = Relay::new(store, transport, ground.config(false))?;
    relay.start().await?;
    relayed::wait(&relay, |stats| stats.delivered >= HISTORY && stats.idle).await?;
    let writer = Writer {
        outbox: Outbox::<DB>::new(ground.tables.name().clone()),
        hot: (way == Way::Hot).then(|| relay.hot_path()),
        notifies: way == Way::Notify,
    };
    let committed = writer.write(ground, events + WARM_UP, pause).await?;
    let arrived = arrivals.all(committed.len() + HISTORY as usize).await?;
    let stats = relay.stop().await?;
    let times: Vec<Duration> = committed[WARM_UP as usize..]
        .iter()
        .filter_map(|(sequence, at)| Some(arrived.get(sequence)?.saturating_duration_since(*at)))
        .collect();
    Ok((Percentiles::of(&times), stats.hot_enqueued))
}

/// The service's side.
struct Writer<DB: Target> {
    outbox: Outbox<DB>,
    hot: Option<HotPath>,
    notifies: bool,
}

impl<DB: Target> Writer<DB> {
    /// Commits events at the rate. Gives their sequences, and when each commit had returned.
    async fn write(
        &self,
        ground: &Ground<DB>,
        events: u64,
        pause: Duration,
    ) -> Result<Vec<(i64, Instant)>> {
        // One is the writer's own, one for notifications.
        let pool = ground.pool(3).await?;
        // A connection of its own, as the one that sends the bare notifications: a pool asks the
        // server whether a connection that comes back is alive, just when the relay reads.
        let mut connection = pool.acquire().await.map_err(failed("connecting"))?;
        let mut committed = Vec::with_capacity(events as usize);
        let mut ticks = interval(pause);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for number in 0..events {
            ticks.tick().await;
            let event = event(ground, number)?;
            let done = if self.notifies {
                let mut transaction = self.outbox.begin(&pool).await?;
                let sequence = sequence(self.outbox.enqueue(&mut transaction, event).await?)?;
                transaction.commit().await?;
                (sequence, Instant::now())
            } else {
                let mut transaction = connection.begin().await.map_err(failed("beginning"))?;
                let sequence =
                    sequence(self.outbox.enqueue(&mut transaction, event.clone()).await?)?;
                let news = Committed::new(&event, sequence);
                transaction.commit().await.map_err(failed("committing"))?;
                let at = Instant::now();
                if let Some(hot) = &self.hot {
                    hot.committed(vec![news]);
                }
                (sequence, at)
            };
            committed.push(done);
        }
        Ok(committed)
    }
}

/// Where it was written. No hook of a bench's takes an event away.
fn sequence(enqueued: Option<Enqueued>) -> Result<i64> {
    let missing = || Error::new(ErrorKind::State, "the event was not written");
    Ok(enqueued.ok_or_else(missing)?.sequence)
}

fn event<DB: Target>(ground: &Ground<DB>, number: u64) -> Result<Event> {
    let event = Event::builder("OrderPlaced")
        .aggregate("Order", number % ground.content.keys)
        .bytes("application/json", ground.content.payload.clone());
    match ground.ordering {
        RelayOrdering::None => event.unordered().build(),
        RelayOrdering::PerKey | RelayOrdering::Global => event.build(),
    }
}

/// Acknowledges at once and notes when each event came.
#[derive(Default)]
struct Arrivals {
    first: Mutex<HashMap<i64, Instant>>,
}

impl Arrivals {
    /// Waits until so many events came. Gives when each did.
    async fn all(&self, count: usize) -> Result<HashMap<i64, Instant>> {
        let deadline = Instant::now() + LOST;
        loop {
            let arrived = self.first.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if arrived.len() >= count {
                return Ok(arrived);
            }
            if Instant::now() > deadline {
                return Err(Error::new(
                    ErrorKind::State,
                    format!("only {} of {count} events arrived within {LOST:?}", arrived.len()),
                ));
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}

#[async_trait]
impl Transport for Arrivals {
    fn name(&self) -> &str {
        "arrivals"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { max_batch: 500, acceptance: Acceptance::Atomic, ..Capabilities::default() }
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        let now = Instant::now();
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        for envelope in batch {
            first.entry(envelope.sequence).or_insert(now);
        }
        vec![Outcome::Delivered; batch.len()]
    }
}
