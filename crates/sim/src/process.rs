//! A simulated process: it can freeze, die, lose answers, and has a clock of its own.
//!
//! A relay runs on the ordinary runtime. What makes it part of the simulation is that every call that it
//! makes to the database or to a destination passes through [`Process::pass`], before the call has its
//! effect and again before the answer arrives. A process that is frozen waits there, a dead one waits for
//! ever: it has no effect on the world any more. A frozen process' clock stands, so that it learns only
//! when it wakes up how late it is.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use fastrand::Rng;
use posthaste_core::{Error, ErrorKind, Result, clock::Clock};
use tokio::sync::watch;

/// Whether a process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Runs,
    /// Since this moment of its clock.
    Frozen(Instant),
    Dead,
}

/// What happens to the next calls to the database.
#[derive(Debug, Clone, Copy, Default)]
struct Loss {
    calls: u32,
    /// The call has its effect, and the answer is lost.
    happens: bool,
    /// The answer never comes; otherwise the connection breaks at once.
    silent: bool,
}

/// One run of one relay.
#[derive(Clone)]
pub(crate) struct Process(Arc<Inner>);

struct Inner {
    name: String,
    state: watch::Sender<State>,
    loss: Mutex<Loss>,
    /// No call to the database is answered while this is true.
    cut_off: watch::Receiver<bool>,
    random: Mutex<Rng>,
    /// Longest time that a call takes each way, in microseconds.
    latency: AtomicU32,
}

impl Process {
    pub(crate) fn new(name: &str, cut_off: watch::Receiver<bool>, random: Rng) -> Self {
        Self(Arc::new(Inner {
            name: name.to_owned(),
            state: watch::Sender::new(State::Runs),
            loss: Mutex::default(),
            cut_off,
            random: Mutex::new(random),
            latency: AtomicU32::new(2_000),
        }))
    }

    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    fn random(&self) -> MutexGuard<'_, Rng> {
        self.0.random.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number below this one, of the process' own luck.
    pub(crate) fn below(&self, most: u32) -> u32 {
        self.random().u32(..most.max(1))
    }

    /// It stands still until [`thaw`](Self::thaw).
    pub(crate) fn freeze(&self) {
        let now = tokio::time::Instant::now().into_std();
        self.0.state.send_if_modified(|state| {
            let runs = *state == State::Runs;
            if runs {
                *state = State::Frozen(now);
            }
            runs
        });
    }

    pub(crate) fn thaw(&self) {
        self.0.state.send_if_modified(|state| {
            let frozen = matches!(state, State::Frozen(_));
            if frozen {
                *state = State::Runs;
            }
            frozen
        });
    }

    /// It has no effect on anything from now on.
    pub(crate) fn kill(&self) {
        self.0.state.send_replace(State::Dead);
    }

    pub(crate) fn is_dead(&self) -> bool {
        *self.0.state.borrow() == State::Dead
    }

    /// The answers to its next calls to the database are lost.
    pub(crate) fn lose(&self, calls: u32, happens: bool, silent: bool) {
        *self.0.loss.lock().unwrap_or_else(PoisonError::into_inner) =
            Loss { calls, happens, silent };
    }

    /// How long its calls take at most, each way.
    pub(crate) fn slow(&self, latency: Duration) {
        let micros = u32::try_from(latency.as_micros()).unwrap_or(u32::MAX);
        self.0.latency.store(micros, Ordering::Relaxed);
    }

    /// Waits while it is frozen. Never returns once it is dead.
    pub(crate) async fn runs(&self) {
        let mut state = self.0.state.subscribe();
        // The sender lives as long as this process does.
        let _ = state.wait_for(|state| *state == State::Runs).await;
    }

    /// Does this, unless the process is dead: then its bytes were never sent.
    pub(crate) fn unless_dead(&self, effect: impl FnOnce()) {
        if !self.is_dead() {
            effect();
        }
    }

    /// On the way to the outside, or back.
    pub(crate) async fn pass(&self) {
        self.runs().await;
        let most = self.0.latency.load(Ordering::Relaxed);
        let micros = u64::from(self.below(most));
        tokio::time::sleep(Duration::from_micros(micros)).await;
        self.runs().await;
    }

    /// A call to the database: on the way there, its effect, and the answer on the way back.
    pub(crate) async fn call<T>(&self, effect: impl Future<Output = Result<T>>) -> Result<T> {
        self.pass().await;
        let mut cut_off = self.0.cut_off.clone();
        if *cut_off.borrow_and_update() {
            self.pass().await;
            return Err(Error::new(ErrorKind::Unavailable, "the database is not there"));
        }
        let loss = {
            let mut loss = self.0.loss.lock().unwrap_or_else(PoisonError::into_inner);
            let now = *loss;
            loss.calls = loss.calls.saturating_sub(1);
            (now.calls > 0).then_some(now)
        };
        let Some(loss) = loss else {
            let answer = effect.await;
            self.pass().await;
            return answer;
        };
        if loss.happens {
            // Its answer is what is lost.
            let _ = effect.await;
        }
        if loss.silent {
            std::future::pending::<()>().await;
        }
        self.pass().await;
        Err(Error::new(ErrorKind::Unavailable, "the connection was lost"))
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Process").field(&self.0.name).finish()
    }
}

impl Clock for Process {
    fn now(&self) -> Instant {
        match *self.0.state.borrow() {
            State::Frozen(since) => since,
            State::Runs | State::Dead => tokio::time::Instant::now().into_std(),
        }
    }
}
