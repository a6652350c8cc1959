//! Aggregates, and the events that they keep in memory until a unit of work has written them.

use std::{
    any::Any,
    fmt, mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use jiff::Timestamp;
use posthaste_core::{Ordering, TypedEvent};
use serde::Serialize;
use uuid::Uuid;

use super::Payload;

/// A thing of the domain that changes as a whole and says what happened to it.
pub trait Aggregate {
    /// What kind of thing it is: the aggregate type of its events.
    const TYPE: &'static str;

    /// Which one it is. Asked when a unit of work [tracks](super::UnitOfWork::track) it, so an id
    /// that the database gives is in time.
    fn aggregate_id(&self) -> String;

    /// Where it keeps what it raised: a field.
    fn events(&self) -> &Events;

    /// Records that something happened. The event's id and its time are fixed here; the id is
    /// given back.
    fn raise(&mut self, event: impl TypedEvent + Serialize + Send + Sync + 'static) -> Uuid {
        self.events().raise(event)
    }

    /// Takes what was raised, in that order: once, and for whoever writes it without a unit of
    /// work, see [`Context::event`](super::Context::event).
    fn pull_events(&mut self) -> Vec<Raised> {
        mem::take(&mut *self.events().log.lock())
    }
}

/// The events of one aggregate that are not written yet. A field of the aggregate; it is not cloned
/// with it, for two clones would raise the same events.
#[derive(Default)]
pub struct Events {
    log: Log,
    clock: Option<Box<dyn Fn() -> Timestamp + Send + Sync>>,
}

impl Events {
    /// None yet. Each will carry the time at which it was raised.
    pub fn new() -> Self {
        Self::default()
    }

    /// None yet. Each will carry the time that this clock shows.
    pub fn with_clock(clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self { log: Log::default(), clock: Some(Box::new(clock)) }
    }

    /// How many wait to be written.
    pub fn len(&self) -> usize {
        self.log.lock().len()
    }

    /// Whether none waits to be written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn raise(&self, event: impl TypedEvent + Serialize + Send + Sync + 'static) -> Uuid {
        /// The next number of an event in this process.
        static NEXT: AtomicU64 = AtomicU64::new(0);

        let id = Uuid::now_v7();
        let occurred_at = self.clock.as_ref().map_or_else(Timestamp::now, |clock| clock());
        let mut log = self.log.lock();
        // Under the lock, so that the numbers of one log only rise.
        let number = NEXT.fetch_add(1, Relaxed);
        log.push(Raised { number, id, occurred_at, event: Box::new(event) });
        id
    }

    pub(super) fn log(&self) -> &Log {
        &self.log
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.log.lock().iter()).finish()
    }
}

/// What an aggregate raised, shared with the units of work that track it.
#[derive(Clone, Default)]
pub(super) struct Log(Arc<Mutex<Vec<Raised>>>);

impl Log {
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Raised>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// An event that was raised and not written yet.
pub struct Raised {
    /// Its place among all that were raised in this process.
    pub(super) number: u64,
    id: Uuid,
    occurred_at: Timestamp,
    pub(super) event: Box<dyn DomainEvent>,
}

impl Raised {
    /// The id that it will be written with.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// When it was raised.
    pub fn occurred_at(&self) -> Timestamp {
        self.occurred_at
    }

    /// What happened.
    pub fn event_type(&self) -> &'static str {
        self.event.event_type()
    }

    /// The event itself, if it is one of this type.
    pub fn event<E: TypedEvent + 'static>(&self) -> Option<&E> {
        self.event.as_any().downcast_ref()
    }
}

impl fmt::Debug for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.event_type(), self.id)
    }
}

/// A typed event whose type is forgotten, so that an aggregate can keep several kinds.
pub(super) trait DomainEvent: Send + Sync {
    fn event_type(&self) -> &'static str;
    fn version(&self) -> i32;
    fn aggregate_type(&self) -> &'static str;
    fn aggregate_id(&self) -> Option<String>;
    fn ordering(&self) -> Ordering;
    fn payload(&self) -> &dyn Payload;
    fn as_any(&self) -> &dyn Any;
}

impl<E: TypedEvent + Serialize + Send + Sync + 'static> DomainEvent for E {
    fn event_type(&self) -> &'static str {
        E::TYPE
    }

    fn version(&self) -> i32 {
        E::VERSION
    }

    fn aggregate_type(&self) -> &'static str {
        E::AGGREGATE
    }

    fn aggregate_id(&self) -> Option<String> {
        TypedEvent::aggregate_id(self)
    }

    fn ordering(&self) -> Ordering {
        TypedEvent::ordering(self)
    }

    fn payload(&self) -> &dyn Payload {
        self
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
