//! The handle of a relay: start, stop, one pass by hand.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use posthaste_core::{
    Error, ErrorKind, Result,
    clock::{Clock, SystemClock},
    store::Store,
    transport::Transport,
};
use tokio::{
    sync::{Notify, mpsc, watch},
    task::JoinHandle,
};

use crate::{
    Committed, Config, Destination, Health, HotPath, Interceptor, Route, Routes, Stats,
    driver::{Driver, Parts, Wires},
    health::{Life, Pulse},
    housekeeping::{Duty, Housekeeper},
    meters::Meters,
    observe::Observer,
    purge,
    read::within,
    wake,
};

/// Delivers the events of one outbox to its destinations.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use posthaste_core::{store::Store, transport::Transport};
/// # use posthaste_relay::{Config, Relay};
/// # async fn example(store: Arc<dyn Store>, transport: Arc<dyn Transport>)
/// # -> posthaste_core::Result<()> {
/// let relay = Relay::new(store, transport, Config::default())?;
/// relay.start().await?;
/// // …
/// relay.stop().await?;
/// # Ok(())
/// # }
/// ```
pub struct Relay {
    parts: Parts,
    hot: HotPath,
    /// The driver's end of the hot path until it is started.
    hot_receiver: Mutex<Option<mpsc::Receiver<Vec<Committed>>>>,
    stats: watch::Sender<Stats>,
    /// Whether it keeps house; said by the driver.
    duty: Duty,
    /// Says stop to the driver; set once.
    stop: watch::Sender<bool>,
    state: Mutex<State>,
}

enum State {
    Idle,
    Running { driver: JoinHandle<Result<Stats>>, helpers: Vec<JoinHandle<()>> },
    Stopped,
}

impl Relay {
    /// A relay that is not started yet. Settings that cannot work are refused here.
    pub fn new(
        store: Arc<dyn Store>,
        transport: Arc<dyn Transport>,
        config: Config,
    ) -> Result<Self> {
        Self::build(store, vec![Destination::new(transport)], None, config)
    }

    /// A relay with several destinations; the routes say which of them an event goes to. Settings
    /// and routes that cannot work are refused here.
    pub fn routed(
        store: Arc<dyn Store>,
        destinations: Vec<Destination>,
        routes: Routes,
        config: Config,
    ) -> Result<Self> {
        let routes = routes.checked(&destinations)?;
        Self::build(store, destinations, Some(Arc::new(routes)), config)
    }

    fn build(
        store: Arc<dyn Store>,
        destinations: Vec<Destination>,
        routes: Option<Arc<Routes>>,
        config: Config,
    ) -> Result<Self> {
        config.check()?;
        for (index, destination) in destinations.iter().enumerate() {
            destination.check(config.dispatch_timeout)?;
            if destinations[..index].iter().any(|other| other.name() == destination.name()) {
                return Err(Error::invalid(format!(
                    "two destinations are called {}; give one another name",
                    destination.name()
                )));
            }
        }
        let names: Vec<String> = destinations.iter().map(|to| to.name().to_owned()).collect();
        let outbox = if config.outbox.is_empty() { store.table() } else { config.outbox.clone() };
        let meters = Meters::new(&outbox, &names, config.metric_tenants);
        let (sender, receiver) = mpsc::channel(config.hot_queue);
        let hot =
            HotPath { sender, dropped: Arc::new(AtomicU64::new(0)), wake: Arc::new(Notify::new()) };
        Ok(Self {
            parts: Parts {
                store,
                destinations,
                routes,
                interceptors: Arc::from([]),
                clock: Arc::new(SystemClock),
                observer: Arc::new(Observer::new(meters, config.log_tenant)),
                pulse: Arc::new(Pulse::default()),
                config,
            },
            hot,
            hot_receiver: Mutex::new(Some(receiver)),
            stats: watch::Sender::new(Stats::default()),
            duty: Duty::default(),
            stop: watch::Sender::new(false),
            state: Mutex::new(State::Idle),
        })
    }

    /// Wraps every dispatch with these, in this order.
    pub fn with_interceptors(mut self, interceptors: Vec<Arc<dyn Interceptor>>) -> Self {
        self.parts.interceptors = Arc::from(interceptors);
        self
    }

    /// Another clock for deadlines.
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.parts.clock = clock;
        self
    }

    /// The relay's name.
    pub fn name(&self) -> &str {
        &self.parts.config.name
    }

    /// The routes. A relay with one destination and no routes has one that takes every event.
    pub fn routes(&self) -> Arc<Routes> {
        match (&self.parts.routes, self.parts.destinations.first()) {
            (Some(routes), _) => Arc::clone(routes),
            (None, Some(only)) => Arc::new(Routes::new().route(Route::to(only.name()))),
            (None, None) => Arc::default(),
        }
    }

    /// Where a writer in this process hands over what it committed.
    pub fn hot_path(&self) -> HotPath {
        self.hot.clone()
    }

    /// Counters and gauges as of now.
    pub fn stats(&self) -> Stats {
        let mut stats = *self.stats.borrow();
        stats.hot_dropped = self.hot.dropped.load(Ordering::Relaxed);
        stats
    }

    /// Follows counters and gauges as they change.
    pub fn watch(&self) -> watch::Receiver<Stats> {
        self.stats.subscribe()
    }

    /// Looks for new events now instead of at the next poll.
    pub fn wake(&self) {
        self.hot.wake();
    }

    /// Starts delivering. A relay starts once: after a stop, make a new one.
    pub async fn start(&self) -> Result<()> {
        let total = self.check_store().await?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &*state {
            State::Idle => {}
            State::Running { .. } => {
                return Err(Error::new(
                    ErrorKind::State,
                    format!("relay {} is running already", self.parts.config.name),
                ));
            }
            State::Stopped => {
                return Err(Error::new(
                    ErrorKind::State,
                    format!(
                        "relay {} was stopped and does not start again; make a new one",
                        self.parts.config.name
                    ),
                ));
            }
        }
        let Some(receiver) =
            self.hot_receiver.lock().unwrap_or_else(PoisonError::into_inner).take()
        else {
            return Err(Error::new(ErrorKind::State, "the relay's hot path is taken"));
        };
        let driver = self.driver(total, receiver, self.stop.subscribe(), false);
        let mut helpers = vec![tokio::spawn(wake::listen(
            Arc::clone(&self.parts.store),
            Arc::clone(&self.hot.wake),
        ))];
        helpers.extend(self.housekeeper().start());
        tracing::info!(relay = %self.parts.config.name, ordering = %self.parts.config.ordering, "started");
        *state = State::Running { driver: tokio::spawn(driver.run()), helpers };
        Ok(())
    }

    /// Ends claims, lets what is in flight end within the drain time, releases the leases. Gives
    /// the final counters, or the error that had ended the relay before.
    pub async fn stop(&self) -> Result<Stats> {
        let taken = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *state, State::Stopped)
        };
        let State::Running { driver, helpers } = taken else {
            return Ok(self.stats());
        };
        self.stop.send_replace(true);
        let ended = driver.await;
        for helper in helpers {
            helper.abort();
        }
        tracing::info!(relay = %self.parts.config.name, "stopped");
        ended.map_err(|error| {
            Error::new(ErrorKind::State, "the relay ended unexpectedly").with_source(error)
        })?
    }

    /// Whether it is delivering: started, not stopped, and not ended by an error.
    pub fn is_running(&self) -> bool {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Running { driver, .. } => !driver.is_finished(),
            State::Idle | State::Stopped => false,
        }
    }

    /// Whether it lives and gets on, by what it has seen last: asks nobody.
    pub fn health(&self) -> Health {
        let life = match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Idle => Life::NotStarted,
            State::Running { driver, .. } if driver.is_finished() => Life::Ended,
            State::Running { .. } => Life::Running,
            State::Stopped => Life::Stopped,
        };
        self.parts.pulse.health(life, &self.parts.config.health, self.parts.clock.now())
    }

    /// One pass by hand: takes what shards are free, delivers all that is visible and due, settles
    /// it, gives the shards back. Not while the relay is running.
    pub async fn relay_once(&self) -> Result<Stats> {
        if self.is_running() {
            return Err(Error::new(
                ErrorKind::State,
                format!("relay {} is running; it needs no pass by hand", self.parts.config.name),
            ));
        }
        let total = self.check_store().await?;
        // Nobody hands anything over to a single pass.
        let (_sender, receiver) = mpsc::channel(1);
        // Boxed: callers would carry all of the driver inside their own futures.
        Box::pin(self.driver(total, receiver, self.stop.subscribe(), true).run()).await
    }

    /// One purge by hand. Gives how many events were deleted.
    pub async fn purge_once(&self) -> Result<u64> {
        let housekeeping = &self.parts.config.housekeeping;
        purge(&*self.parts.store, housekeeping.retention, housekeeping.batch).await
    }

    /// The number of shards, if the tables fit and the database answers in time.
    async fn check_store(&self) -> Result<u16> {
        within(self.parts.config.deadline(), self.parts.store.check()).await
    }

    fn housekeeper(&self) -> Housekeeper {
        let Parts { store, clock, config, observer, pulse, .. } = self.parts.clone();
        Housekeeper {
            store,
            observer,
            pulse,
            clock,
            settings: config.housekeeping,
            limits: config.health,
            enabled: config.enabled,
            duty: self.duty.clone(),
        }
    }

    fn driver(
        &self,
        total: u16,
        hot: mpsc::Receiver<Vec<Committed>>,
        stop: watch::Receiver<bool>,
        once: bool,
    ) -> Driver {
        let wires = Wires {
            hot,
            hot_path: self.hot.clone(),
            wake: Arc::clone(&self.hot.wake),
            stop,
            stats: self.stats.clone(),
            duty: self.duty.clone(),
        };
        Driver::new(self.parts.clone(), total, wires, once)
    }
}

impl Drop for Relay {
    /// Dropped without a stop: the tasks end, the leases expire.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let State::Running { driver, helpers } = state {
            driver.abort();
            for helper in helpers {
                helper.abort();
            }
        }
    }
}
