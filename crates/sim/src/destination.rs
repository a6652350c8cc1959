//! A simulated destination: what it takes is written into the history.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use posthaste_core::{
    Envelope,
    transport::{Acceptance, Capabilities, Outcome, Transport},
};
use uuid::Uuid;

use crate::{
    history::{Came, Happened, History},
    plan::{Accepts, Down, Fate},
    process::Process,
};

/// How long a publish waits for acknowledgements.
const PATIENCE: Duration = Duration::from_secs(2);

/// A broker, as the world sees it.
#[derive(Debug, Clone)]
pub(crate) struct Broker(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    accepts: Accepts,
    down: Option<Down>,
    /// How often an event was given to it.
    tries: BTreeMap<Uuid, u32>,
    /// When it last did not take an event, in microseconds since the beginning.
    failed_at: Option<u64>,
    /// All events come to their end now, whatever their fate was.
    is_kind: bool,
}

impl Broker {
    pub(crate) fn new(accepts: Accepts) -> Self {
        let state =
            State { accepts, down: None, tries: BTreeMap::new(), failed_at: None, is_kind: false };
        Self(Arc::new(Mutex::new(state)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_down(&self, down: Option<Down>) {
        self.lock().down = down;
    }

    pub(crate) fn failed_at(&self) -> Option<u64> {
        self.lock().failed_at
    }

    /// How often it was given this event.
    pub(crate) fn tries(&self, id: Uuid) -> u32 {
        self.lock().tries.get(&id).copied().unwrap_or(0)
    }

    pub(crate) fn be_kind(&self) {
        let mut state = self.lock();
        state.down = None;
        state.is_kind = true;
    }
}

/// One process' way to a broker.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) process: Process,
    pub(crate) broker: Broker,
    pub(crate) history: History,
    pub(crate) fates: Arc<Mutex<BTreeMap<Uuid, Fate>>>,
    pub(crate) began: tokio::time::Instant,
    /// Told when the process is to die over an event.
    pub(crate) deaths: tokio::sync::mpsc::UnboundedSender<String>,
}

impl Line {
    fn note(&self, envelope: &Envelope, came: Came) {
        let at = self.began.elapsed().as_micros() as u64;
        if came != Came::Taken {
            self.broker.lock().failed_at = Some(at);
        }
        let what = Happened::Given {
            id: envelope.event.id(),
            replay: envelope.replay,
            process: self.process.name().to_owned(),
            destination: self.name.clone(),
            came,
        };
        self.history.add(at, what);
    }

    fn fate(&self, envelope: &Envelope) -> Fate {
        let fates = self.fates.lock().unwrap_or_else(PoisonError::into_inner);
        fates.get(&envelope.event.id()).copied().unwrap_or(Fate::Plain)
    }

    /// What becomes of one event that has reached the broker.
    fn take(&self, envelope: &Envelope) -> Answer {
        let fate = self.fate(envelope);
        let (down, is_kind, tries) = {
            let mut state = self.broker.lock();
            let tries = state.tries.entry(envelope.event.id()).or_default();
            *tries += 1;
            let tries = *tries;
            (state.down, state.is_kind, tries)
        };
        let noted = |came: Came, answer: Answer| {
            self.process.unless_dead(|| self.note(envelope, came));
            answer
        };
        if let Some(down) = down {
            self.history.count(format!("destination: {down:?}"));
        } else {
            self.history.count(format!("fate: {}", fate.name()));
        }
        match down {
            Some(Down::Refuses) => {
                let refused = Outcome::unavailable("connection refused");
                return noted(Came::Unavailable, Answer::Now(refused));
            }
            Some(Down::Hangs) => return noted(Came::Unavailable, Answer::Never),
            Some(Down::SwallowsAnswers) => return noted(Came::TakenInSilence, Answer::Never),
            Some(Down::Fails) => {
                return noted(Came::Unavailable, Answer::Now(Outcome::retry("everything fails")));
            }
            None => {}
        }
        match fate {
            Fate::Fails(times) if tries <= times && !is_kind => {
                noted(Came::Failed, Answer::Now(Outcome::retry("not this time")))
            }
            Fate::Poison if !is_kind => noted(Came::Failed, Answer::Now(Outcome::retry("never"))),
            Fate::Refused => noted(Came::Failed, Answer::Now(Outcome::dead("refused for good"))),
            Fate::Slow(ms) => {
                let after = Duration::from_millis(u64::from(ms));
                noted(Came::Taken, Answer::After(after))
            }
            Fate::Hangs if tries == 1 => noted(Came::Failed, Answer::Never),
            Fate::Panics(times) if tries <= times => {
                self.note(envelope, Came::Failed);
                std::panic::resume_unwind(Box::new("a handler's panic"));
            }
            Fate::Kills(times) if tries <= times => {
                let _ = self.deaths.send(self.process.name().to_owned());
                let died = noted(Came::Failed, Answer::Never);
                self.process.kill();
                died
            }
            _ => noted(Came::Taken, Answer::Now(Outcome::Delivered)),
        }
    }
}

/// What a broker says of an event.
enum Answer {
    Now(Outcome),
    /// It takes the event, and says so after this time.
    After(Duration),
    Never,
}

#[async_trait]
impl Transport for Line {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        let (max_batch, acceptance) = match self.broker.lock().accepts {
            Accepts::One => (1, Acceptance::Any),
            Accepts::Any => (8, Acceptance::Any),
            Accepts::Prefix => (8, Acceptance::Prefix),
            Accepts::Atomic => (8, Acceptance::Atomic),
        };
        Capabilities { max_batch, acceptance, ..Capabilities::default() }
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        self.process.pass(&self.name).await;
        let mut outcomes = Vec::with_capacity(batch.len());
        let mut refused = BTreeSet::new();
        let mut waits = Duration::ZERO;
        for envelope in batch {
            let key = envelope.event.ordering_key();
            // Behind one that was refused, none of its key is accepted.
            if key.as_ref().is_some_and(|key| refused.contains(key)) {
                outcomes.push(Outcome::held());
                continue;
            }
            let outcome = match self.take(envelope) {
                Answer::Now(outcome) => outcome,
                Answer::After(after) => {
                    waits = waits.max(after);
                    Outcome::Delivered
                }
                Answer::Never => {
                    waits = waits.max(PATIENCE);
                    Outcome::timed_out("no acknowledgement in time")
                }
            };
            if outcome != Outcome::Delivered {
                refused.extend(key);
            }
            outcomes.push(outcome);
        }
        tokio::time::sleep(waits).await;
        self.process.pass(&self.name).await;
        for (envelope, _) in
            batch.iter().zip(&outcomes).filter(|(_, outcome)| **outcome == Outcome::Delivered)
        {
            self.process.acknowledged(envelope.event.id(), envelope.replay);
        }
        outcomes
    }
}
