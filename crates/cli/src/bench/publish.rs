//! `bench publish`: how fast a backlog goes to a broker.
//!
//! Relay and client publish the same messages, to a place at the broker that is made anew for each
//! run. Both make each message when its turn comes, and have as many that are not acknowledged. The
//! client has its events in memory already; the relay reads them from the database and marks them.
//! How much of that the statements cost shows a third one: the client between the relay's own reads and
//! marks, and nothing else.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use posthaste::{
    Envelope, Error, ErrorKind, Result,
    relay::Config,
    store::{Limit, Position, Read},
    transport::{Acceptance, Capabilities},
};
use serde::Serialize;

use super::{
    args::PublishArgs,
    clients::{Broker, Client},
    ground::Ground,
    process, raw,
    relayed::{self, Counted},
    report::{
        Report, median, median_ratio, medians, per_second, progress, rate, rounded, thousands,
        whole,
    },
    target::Target,
};

/// Into how many batches a window is divided at least.
pub(super) const BATCHES: usize = 4;

/// The least that an outbox with the relay's statements has to do, in a few words.
const BY_HAND: &str = "reads, client, marks by hand";

#[derive(Serialize)]
struct Figures<'f> {
    bench: &'f str,
    database: &'f str,
    /// What the destination says of itself.
    destination: &'f str,
    release: bool,
    events: u64,
    payload: usize,
    keys: u64,
    ordering: &'f str,
    pairs: u64,
    window: u64,
    delete: bool,
    /// Most publishes of the relay at once, and most events in one.
    concurrency: usize,
    max_batch: usize,
    one_by_one: bool,
    /// Medians.
    relay_per_s: f64,
    /// To the first of the clients.
    ratio: Option<f64>,
    /// The first of the clients between the relay's own statements.
    by_hand_per_s: Option<f64>,
    by_hand_ratio: Option<f64>,
    by_hand_cpu_us_per_event: Option<f64>,
    one_by_one_per_s: Option<f64>,
    /// The relay to the relay one by one, on one key.
    hot_key_ratio: Option<f64>,
    /// CPU time of this process, without the servers'.
    relay_cpu_us_per_event: Option<f64>,
    clients: Vec<Bare<'f>>,
    relay_runs: Vec<f64>,
    by_hand_runs: Vec<f64>,
    one_by_one_runs: Vec<f64>,
}

/// A broker's own client.
#[derive(Serialize)]
struct Bare<'f> {
    client: &'f str,
    per_s: f64,
    /// The relay to it.
    ratio: f64,
    cpu_us_per_event: Option<f64>,
    runs: Vec<f64>,
}

/// What the runs of one side gave.
#[derive(Default)]
struct Side {
    per_s: Vec<f64>,
    cpu_micros: Vec<f64>,
}

impl Side {
    fn add(&mut self, events: u64, elapsed: Duration, cpu_before: Option<Duration>) {
        self.per_s.push(per_second(events, elapsed));
        if let (Some(before), Some(after)) = (cpu_before, process::cpu()) {
            let spent = after.saturating_sub(before);
            self.cpu_micros.push(spent.as_secs_f64() * 1e6 / events as f64);
        }
    }

    fn last(&self) -> String {
        rate(self.per_s.last().copied().unwrap_or_default())
    }
}

pub(super) async fn run<DB: Target>(
    args: &PublishArgs,
    ground: &Ground<DB>,
    broker: &Broker,
) -> Result<Report> {
    // Connects: no run pays for that.
    let found = broker.transport.check().await?;
    let envelopes = if broker.clients.is_empty() {
        Vec::new()
    } else {
        envelopes(ground, broker, args.events).await?
    };
    let (mut relay, mut by_hand) = (Side::default(), Side::default());
    let mut one_by_one = Side::default();
    let mut bare: Vec<Side> = broker.clients.iter().map(|_| Side::default()).collect();
    for pair in 1..=args.pairs {
        let say = |who: &str, side: &Side| {
            progress(format_args!("pair {pair} of {}: {who} {}", args.pairs, side.last()));
        };
        let limits = Limits::of(args, ground, broker, args.one_by_one);
        publish(args, ground, broker, limits, &mut relay).await?;
        say("relay", &relay);
        if args.hot_key {
            let limits = Limits::of(args, ground, broker, true);
            publish(args, ground, broker, limits, &mut one_by_one).await?;
            say("relay, one by one", &one_by_one);
        }
        if !broker.clients.is_empty() && !args.hot_key && !args.one_by_one {
            publish_by_hand(args, ground, broker, &mut by_hand).await?;
            say(BY_HAND, &by_hand);
        }
        for (client, bare) in broker.clients.iter().zip(&mut bare) {
            client.make().await?;
            let (cpu, started) = (process::cpu(), Instant::now());
            client.publish(&envelopes, args.window as usize).await?;
            bare.add(args.events, started.elapsed(), cpu);
            complete(&**client, args.events).await?;
            say(client.name(), bare);
        }
    }
    Ok(report(args, ground, broker, &found, [&relay, &by_hand, &one_by_one], &bare))
}

/// The very events of the relay, for the client.
async fn envelopes<DB: Target>(
    ground: &Ground<DB>,
    broker: &Broker,
    events: u64,
) -> Result<Vec<Envelope>> {
    ground.refill(&ground.tables, events).await?;
    let store = ground.store(&ground.tables).await?;
    let shards: Vec<u16> = (0..store.check().await?).collect();
    let mut position = Position::default();
    let mut envelopes = Vec::with_capacity(events as usize);
    while (envelopes.len() as u64) < events {
        let page = Read::read_on(&*store, &shards, &position, Limit::rows(ground.batch)).await?;
        if page.rows.is_empty() {
            return Err(Error::new(ErrorKind::State, "not all events can be read back"));
        }
        position = page.position;
        for row in page.rows {
            let envelope = row.content.map_err(|error| Error::new(ErrorKind::State, error))?;
            envelopes.push(Envelope { topic: Some(broker.topic.clone()), ..*envelope });
        }
    }
    Ok(envelopes)
}

/// How much of a destination a relay may use, so that no more than the window is outstanding.
struct Limits {
    concurrency: usize,
    capabilities: Capabilities,
}

impl Limits {
    fn of<DB: Target>(
        args: &PublishArgs,
        ground: &Ground<DB>,
        broker: &Broker,
        one_by_one: bool,
    ) -> Self {
        let window = args.window as usize;
        // Several batches share the window, as the client's messages do; a key has one under way.
        let most = if args.hot_key { window } else { window.div_ceil(BATCHES) };
        let mut capabilities = broker.transport.capabilities();
        capabilities.max_batch = capabilities.max_batch.min(most).clamp(1, ground.batch);
        if one_by_one {
            capabilities.max_batch = 1;
            capabilities.acceptance = Acceptance::Any;
        }
        Self { concurrency: (window / capabilities.max_batch).max(1), capabilities }
    }
}

/// One run of the relay, on fresh tables.
async fn publish<DB: Target>(
    args: &PublishArgs,
    ground: &Ground<DB>,
    broker: &Broker,
    limits: Limits,
    side: &mut Side,
) -> Result<()> {
    ground.refill(&ground.tables, args.events).await?;
    if let Some(client) = broker.clients.first() {
        client.make().await?;
    }
    let store = ground.store(&ground.tables).await?;
    let transport = Arc::clone(&broker.transport);
    let counted = Counted::with(transport, limits.capabilities, args.events);
    let config = Config { concurrency: limits.concurrency, ..ground.config(args.delete) };
    let cpu = process::cpu();
    let elapsed = relayed::run_to(store, counted, &broker.topic, config).await?;
    side.add(args.events, elapsed, cpu);
    match broker.clients.first() {
        Some(client) => complete(&**client, args.events).await,
        None => Ok(()),
    }
}

/// One run of the client between the relay's own statements, on fresh tables.
async fn publish_by_hand<DB: Target>(
    args: &PublishArgs,
    ground: &Ground<DB>,
    broker: &Broker,
    side: &mut Side,
) -> Result<()> {
    let Some(client) = broker.clients.first() else { return Ok(()) };
    ground.refill(&ground.tables, args.events).await?;
    client.make().await?;
    let cpu = process::cpu();
    let window = args.window as usize;
    let elapsed =
        raw::published(ground, args.events, args.delete, client, &broker.topic, window).await?;
    side.add(args.events, elapsed, cpu);
    complete(&**client, args.events).await
}

/// Who published less than all was not measured.
async fn complete(client: &dyn Client, events: u64) -> Result<()> {
    let there = client.count().await?;
    if there == events {
        return Ok(());
    }
    Err(Error::new(ErrorKind::State, format!("{there} messages are there of {events} events")))
}

fn report<DB: Target>(
    args: &PublishArgs,
    ground: &Ground<DB>,
    broker: &Broker,
    found: &str,
    [relay, by_hand, one_by_one]: [&Side; 3],
    bare: &[Side],
) -> Report {
    let middle = |side: &Side| median(&side.per_s).map(f64::round);
    let cpu = |side: &Side| median(&side.cpu_micros).map(|cpu| rounded(cpu, 2));
    let ratio = |base: &Side| median_ratio(&relay.per_s, &base.per_s).map(|r| rounded(r, 3));
    let limits = Limits::of(args, ground, broker, args.one_by_one);
    let clients = broker.clients.iter().zip(bare).map(|(client, side)| Bare {
        client: client.name(),
        per_s: middle(side).unwrap_or_default(),
        ratio: ratio(side).unwrap_or_default(),
        cpu_us_per_event: cpu(side),
        runs: whole(&side.per_s),
    });
    let figures = Figures {
        bench: "publish",
        database: &ground.version,
        destination: found,
        release: !cfg!(debug_assertions),
        events: args.events,
        payload: ground.content.payload.len(),
        keys: ground.content.keys,
        ordering: ground.ordering.as_str(),
        pairs: args.pairs,
        window: args.window,
        delete: args.delete,
        concurrency: limits.concurrency,
        max_batch: limits.capabilities.max_batch,
        one_by_one: args.one_by_one,
        relay_per_s: middle(relay).unwrap_or_default(),
        ratio: bare.first().and_then(ratio),
        by_hand_per_s: middle(by_hand),
        by_hand_ratio: ratio(by_hand),
        by_hand_cpu_us_per_event: cpu(by_hand),
        one_by_one_per_s: middle(one_by_one),
        hot_key_ratio: ratio(one_by_one),
        relay_cpu_us_per_event: cpu(relay),
        clients: clients.collect(),
        relay_runs: whole(&relay.per_s),
        by_hand_runs: whole(&by_hand.per_s),
        one_by_one_runs: whole(&one_by_one.per_s),
    };
    let keys = if figures.keys == 1 { "key" } else { "keys" };
    let title = format!(
        "publish from {} to {found}: {} events of {} bytes, {} {keys}, ordering {}, {} when sent, a \
         window of {}, {}",
        ground.version,
        thousands(args.events),
        figures.payload,
        thousands(figures.keys),
        ground.ordering,
        if args.delete { "deleted" } else { "kept" },
        thousands(args.window),
        medians(args.pairs)
    );
    let mut report = Report::new(title, &figures);
    let who = if args.one_by_one { "relay, one by one" } else { "relay" };
    report.row(who, rate(figures.relay_per_s), String::new());
    let compared = |ratio: f64| format!("relay is {ratio:.2} of it");
    if let (Some(per_s), Some(ratio)) = (figures.one_by_one_per_s, figures.hot_key_ratio) {
        report.row("relay, one by one", rate(per_s), format!("relay is {ratio:.1} times that"));
    }
    if let (Some(per_s), Some(ratio)) = (figures.by_hand_per_s, figures.by_hand_ratio) {
        report.row(BY_HAND, rate(per_s), compared(ratio));
    }
    for bare in &figures.clients {
        report.row(bare.client, rate(bare.per_s), compared(bare.ratio));
    }
    if let Some(relay) = figures.relay_cpu_us_per_event {
        let by_hand = figures.by_hand_cpu_us_per_event.map(|cpu| (BY_HAND, cpu));
        let bare =
            figures.clients.iter().filter_map(|bare| Some((bare.client, bare.cpu_us_per_event?)));
        let bare: Vec<String> =
            by_hand.into_iter().chain(bare).map(|(who, cpu)| format!("{who}: {cpu} µs")).collect();
        report.row("CPU an event, this process", format!("{relay} µs"), bare.join("; "));
    }
    if figures.by_hand_per_s.is_some() {
        report.note(format!(
            "{BY_HAND}: the relay's own reads and marks with the first client between them, as much at \
             a time; nobody keeps order, and one failure ends it."
        ));
    }
    if figures.clients.is_empty() {
        report.note("There is no client to compare with: the figure is the relay's alone.");
    }
    report
}
