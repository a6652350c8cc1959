//! A simulated process: it can freeze, die, lose answers, and has a clock of its own.
//!
//! A relay runs on the ordinary runtime. What makes it part of the simulation is that every call that it
//! makes to the database or to a destination passes through [`Process::pass`], before the call has its
//! effect and again before the answer arrives. A process that is frozen waits there, a dead one waits for
//! ever: it has no effect on the world any more. A frozen process' clock stands, so that it learns only
//! when it wakes up how late it is.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use posthaste_core::{Error, ErrorKind, Result, clock::Clock};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::{
    history::{Call, Happened, History},
    judge::Promise,
    luck::{Luck, number},
};

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
    name: Arc<str>,
    state: Mutex<State>,
    /// Told when a frozen one wakes up. In the order in which they came: `tokio::sync::watch` shuffles.
    wakes: Notify,
    loss: Mutex<Loss>,
    /// No call to the database is answered while this is true.
    cut_off: Arc<AtomicBool>,
    luck: Luck,
    /// How often each call was on its way, by the number of its name.
    passed: Mutex<BTreeMap<u64, u64>>,
    /// Longest time that a call takes each way, in microseconds.
    latency: AtomicU32,
    /// Which deliveries destinations have acknowledged to it.
    acknowledged: Mutex<BTreeSet<(Uuid, u32)>>,
    history: History,
    began: tokio::time::Instant,
}

impl Process {
    pub(crate) fn new(
        name: &str,
        cut_off: Arc<AtomicBool>,
        luck: Luck,
        history: History,
        began: tokio::time::Instant,
    ) -> Self {
        Self(Arc::new(Inner {
            name: Arc::from(name),
            state: Mutex::new(State::Runs),
            wakes: Notify::new(),
            loss: Mutex::default(),
            cut_off,
            luck,
            passed: Mutex::default(),
            latency: AtomicU32::new(2_000),
            acknowledged: Mutex::default(),
            history,
            began,
        }))
    }

    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    fn at(&self) -> u64 {
        self.0.began.elapsed().as_micros() as u64
    }

    fn acknowledgements(&self) -> MutexGuard<'_, BTreeSet<(Uuid, u32)>> {
        self.0.acknowledged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A destination has told it that it took this delivery of an event.
    pub(crate) fn acknowledged(&self, id: Uuid, replay: u32) {
        self.acknowledgements().insert((id, replay));
    }

    pub(crate) fn has_acknowledgement(&self, id: Uuid, replay: u32) -> bool {
        self.acknowledgements().contains(&(id, replay))
    }

    /// It has broken a promise.
    pub(crate) fn broke(&self, promise: Promise, id: Option<Uuid>, text: String) {
        let text = format!("{text}, by {}", self.name());
        let what = Happened::Broke { promise, events: id.into_iter().collect(), text };
        self.0.history.add(self.at(), what);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It stands still until [`thaw`](Self::thaw).
    pub(crate) fn freeze(&self) {
        let mut state = self.state();
        if *state == State::Runs {
            *state = State::Frozen(tokio::time::Instant::now().into_std());
        }
    }

    pub(crate) fn thaw(&self) {
        let mut state = self.state();
        if matches!(*state, State::Frozen(_)) {
            *state = State::Runs;
            drop(state);
            self.0.wakes.notify_waiters();
        }
    }

    /// It has no effect on anything from now on.
    pub(crate) fn kill(&self) {
        *self.state() = State::Dead;
    }

    pub(crate) fn is_dead(&self) -> bool {
        *self.state() == State::Dead
    }

    pub(crate) fn is_running(&self) -> bool {
        *self.state() == State::Runs
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
        loop {
            // Before the look: a change between the two is not missed.
            let wakes = self.0.wakes.notified();
            if *self.state() == State::Runs {
                return;
            }
            wakes.await;
        }
    }

    /// Does this, unless the process is dead: then its bytes were never sent.
    pub(crate) fn unless_dead(&self, effect: impl FnOnce()) {
        if !self.is_dead() {
            effect();
        }
    }

    /// On the way to the outside, or back. How long that takes depends on the name of the call and on how often
    /// this process has made it: a call more or less shifts no other.
    pub(crate) async fn pass(&self, call: &str) {
        self.runs().await;
        let most = u64::from(self.0.latency.load(Ordering::Relaxed));
        let before = {
            let mut passed = self.0.passed.lock().unwrap_or_else(PoisonError::into_inner);
            let count = passed.entry(number(call)).or_default();
            *count += 1;
            *count
        };
        let micros = self.0.luck.of(call).draw(before) % most.max(1);
        tokio::time::sleep(Duration::from_micros(micros)).await;
        self.runs().await;
    }

    /// A call to the database: on the way there, its effect, and the answer on the way back.
    pub(crate) async fn call<T>(
        &self,
        name: &'static str,
        about: String,
        effect: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.pass(name).await;
        self.0.history.called(Call {
            at: self.at(),
            process: Arc::clone(&self.0.name),
            name,
            about,
        });
        if self.0.cut_off.load(Ordering::Relaxed) {
            self.0.history.count("call: not reached");
            self.pass(name).await;
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
            self.pass(name).await;
            return answer;
        };
        self.0.history.count(match (loss.happens, loss.silent) {
            (true, true) => "call: happened, no answer",
            (true, false) => "call: happened, answer lost",
            (false, true) => "call: lost, no answer",
            (false, false) => "call: lost",
        });
        if loss.happens {
            // Its answer is what is lost.
            let _ = effect.await;
        }
        if loss.silent {
            std::future::pending::<()>().await;
        }
        self.pass(name).await;
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
        match *self.state() {
            State::Frozen(since) => since,
            State::Runs | State::Dead => tokio::time::Instant::now().into_std(),
        }
    }
}
