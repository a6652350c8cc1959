//! One run: open the shop, start the relay, show the account, close the shop, stop the relay,
//! drain, check.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use posthaste::{
    Error, ErrorKind, Outbox, Result, Status,
    backoff::Backoff,
    relay::{Config, Housekeeping, Relay, Retention, Stats},
    store::{Counts, Filter, Store},
    stores::Tables,
};
use posthaste_admin::AdminOutbox;
use posthaste_admin::metrics::PrometheusHandle;
use sqlx::{Executor, Pool};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval, sleep},
};

use super::{
    database::{ShopDatabase, create, remove},
    destination::{Destination, order},
    ledger::Ledger,
    screen::{Moment, Screen},
    shop::{Shop, closed_early, crashed},
    summary::Summary,
};
use crate::{
    config::{AdminSettings, Listen},
    output::print,
    serve::Serving,
    stop::StopSignal,
};

/// The failure with this number is an event's last: few, so that poison ends while one watches.
const MAX_ATTEMPTS: u32 = 5;

/// A long run is not to fill the disk.
const RETENTION: Retention = Retention { sent: Duration::from_secs(30), dead: None };

/// How long the end waits for what is still to be delivered.
const DRAIN: Duration = Duration::from_secs(30);

pub(super) struct Demo {
    pub(super) store: Arc<dyn Store>,
    pub(super) tables: Tables,
    /// The database is the demo's own.
    pub(super) own: bool,
    pub(super) time: Option<Duration>,
    pub(super) rate: u32,
    /// Where the dashboard is.
    pub(super) serve: Option<SocketAddr>,
}

impl Demo {
    /// Makes the tables, runs, and drops them, whatever happened in between.
    pub(super) async fn run<DB: ShopDatabase>(
        self,
        pool: Pool<DB>,
        signal: &mut StopSignal,
    ) -> Result<Summary>
    where
        for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    {
        self.store.migrate(None).await?;
        create(&pool, &self.tables).await?;
        print(&self.title())?;
        let ran = self.trade(&pool, signal).await;
        let removed = remove(&pool, &self.tables).await;
        pool.close().await;
        let summary = ran?;
        removed.map(|()| summary)
    }

    async fn trade<DB: ShopDatabase>(
        &self,
        pool: &Pool<DB>,
        signal: &mut StopSignal,
    ) -> Result<Summary> {
        let ledger = Arc::new(Ledger::new());
        let serving = &mut Serving::nothing();
        let metrics = self.serve.map(|_| posthaste_admin::metrics::record()).transpose()?;
        let relay = Arc::new(self.relay(&ledger)?);
        relay.start().await?;
        self.serve(serving, metrics, &relay).await?;
        // The shop opens when the relay has its leases, so that the figures show its usual day.
        let mut stats = relay.watch();
        let leased = stats.wait_for(|stats| stats.shards_owned == stats.shards && stats.shards > 0);
        let _ = tokio::time::timeout(Duration::from_secs(3), leased).await;
        let shop = Shop {
            pool: pool.clone(),
            outbox: Outbox::new(self.tables.name().clone()).with_hot_path(relay.hot_path()),
            tables: self.tables.clone(),
            ledger: Arc::clone(&ledger),
        };
        let started = Instant::now();
        let closing = watch::Sender::new(false);
        let mut trading = tokio::spawn(shop.trade(self.rate, closing.subscribe()));
        tokio::select! {
            watched = self.watch(&relay, &ledger, signal) => watched?,
            // It ends early only when it failed.
            ended = &mut trading => return ended.map_err(crashed)?.and(Err(closed_early())),
        }
        let end = async {
            closing.send_replace(true);
            trading.await.map_err(crashed)??;
            let elapsed = started.elapsed();
            self.close(&relay, &ledger, elapsed).await
        };
        tokio::select! {
            summary = end => summary,
            () = signal.wait() => Err(Error::new(
                ErrorKind::State,
                "stopped by a second signal before the end; nothing was checked",
            )),
        }
    }

    /// Serves the dashboard until the demo ends.
    async fn serve(
        &self,
        serving: &mut Serving,
        metrics: Option<PrometheusHandle>,
        relay: &Arc<Relay>,
    ) -> Result<()> {
        let listen = self.serve.map(|address| Listen { address, chosen: true });
        let outbox = AdminOutbox {
            name: "demo".to_owned(),
            store: Arc::clone(&self.store),
            relay: Some(Arc::clone(relay)),
            destinations: vec!["demo".to_owned()],
            routes: None,
            retention: RETENTION,
        };
        let settings = AdminSettings { listen, tls: None, plain_http: false, tokens: Vec::new() };
        match serving.admin(&settings, metrics, vec![outbox]).await? {
            Some(url) => print(&format!("dashboard: {url}\n")),
            None => Ok(()),
        }
    }

    /// Stops the relay, delivers what is left, and checks.
    async fn close(
        &self,
        relay: &Relay,
        ledger: &Arc<Ledger>,
        elapsed: Duration,
    ) -> Result<Summary> {
        let mut stats = relay.stop().await?;
        let counts = self.drain(ledger, &mut stats).await?;
        self.note_dead(ledger, usize::MAX).await?;
        let (verdict, running, latency) = ledger.close();
        Ok(Summary {
            elapsed,
            running,
            verdict,
            latency,
            retries: stats.retried,
            pending: counts.new + counts.sending + counts.retry,
            dead: counts.dead,
            max_attempts: MAX_ATTEMPTS,
        })
    }

    fn title(&self) -> String {
        let database = match self.store.database() {
            "postgres" => "PostgreSQL",
            "mysql" => "MySQL",
            _ => "SQLite",
        };
        let place =
            if self.own { "a temporary file, removed" } else { "tables of its own, dropped" };
        format!("posthaste demo: a shop on {database}, in {place} at the end\n")
    }

    fn relay(&self, ledger: &Arc<Ledger>) -> Result<Relay> {
        let config = Config {
            name: "demo".to_owned(),
            max_attempts: MAX_ATTEMPTS,
            backoff: Backoff::Exponential {
                base: Duration::from_millis(50),
                cap: Duration::from_secs(1),
            },
            outbox: "demo".to_owned(),
            housekeeping: Housekeeping {
                retention: RETENTION,
                purge_interval: Some(Duration::from_secs(10)),
                ..Housekeeping::default()
            },
            ..Config::default()
        };
        let destination = Destination::new(Arc::clone(ledger));
        Relay::new(Arc::clone(&self.store), Arc::new(destination), config)
    }

    /// Draws until the time is up, a signal comes, or the relay has ended by itself.
    async fn watch(&self, relay: &Relay, ledger: &Ledger, signal: &mut StopSignal) -> Result<()> {
        let started = Instant::now();
        let mut screen = Screen::new();
        let mut draw = interval(screen.pace());
        draw.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut second = interval(Duration::from_secs(1));
        let mut throughput = Throughput::default();
        let time_is_up = sleep(self.time.unwrap_or(Duration::MAX));
        tokio::pin!(time_is_up);
        while relay.is_running() {
            tokio::select! {
                () = signal.wait() => break,
                () = &mut time_is_up => break,
                _ = second.tick() => {
                    ledger.next_second();
                    self.note_dead(ledger, 1).await?;
                }
                _ = draw.tick() => {
                    let (running, latency) = ledger.running();
                    let elapsed = started.elapsed();
                    let per_second = throughput.now(elapsed, running.delivered);
                    let (counts, stats) = (self.store.counts(u64::MAX).await?, relay.stats());
                    let until = self.time;
                    let moment =
                        Moment { elapsed, until, running, per_second, latency, counts, stats };
                    screen.draw(&moment);
                }
            }
        }
        Ok(())
    }

    /// Delivers what was waiting when the relay stopped: passes by hand until nothing is pending.
    async fn drain(&self, ledger: &Arc<Ledger>, stats: &mut Stats) -> Result<Counts> {
        let deadline = Instant::now() + DRAIN;
        loop {
            let counts = self.store.counts(u64::MAX).await?;
            if counts.new + counts.sending + counts.retry == 0 || Instant::now() > deadline {
                return Ok(counts);
            }
            stats.retried += self.relay(ledger)?.relay_once().await?.retried;
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Writes down which events the outbox shows as dead: so many pages, newest first.
    async fn note_dead(&self, ledger: &Ledger, pages: usize) -> Result<()> {
        let dead = Filter { status: Some(Status::Dead), ..Filter::default() };
        let mut before = None;
        for _ in 0..pages {
            let page = self.store.events(&dead, before, 500).await?;
            for envelope in page.events.iter().filter_map(|record| record.content.as_ref().ok()) {
                if let Some(order) = order(envelope) {
                    ledger.dead(order, envelope.event.id());
                }
            }
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        Ok(())
    }
}

/// Deliveries a second over the last five.
#[derive(Default)]
struct Throughput(VecDeque<(Duration, u64)>);

impl Throughput {
    fn now(&mut self, elapsed: Duration, delivered: u64) -> f64 {
        self.0.push_back((elapsed, delivered));
        while self.0.len() > 2 && elapsed > self.0[0].0 + Duration::from_secs(5) {
            self.0.pop_front();
        }
        let (then, had) = self.0[0];
        let passed = elapsed.saturating_sub(then).as_secs_f64().max(0.001);
        (delivered - had) as f64 / passed
    }
}
