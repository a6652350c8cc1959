//! Hooks: the application's own code around a write and the end of its transaction.

use std::{
    fmt, iter,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use posthaste_core::{Error, ErrorKind, Event, Failure, Result};

/// An event that was written, and where.
#[derive(Debug, Clone, PartialEq)]
pub struct Written {
    /// The event, as it was written.
    pub event: Event,
    /// Its place in the outbox.
    pub sequence: i64,
    /// The same event was there already: nothing was written, this is the first sequence.
    pub duplicate: bool,
}

/// Why a hook refuses a write. It becomes the source of the error that `enqueue` gives.
pub type Refusal = Box<dyn std::error::Error + Send + Sync>;

/// Runs around the writes of an outbox, see [`Outbox::with_hook`](crate::Outbox::with_hook).
///
/// A *batch* is what one call of `enqueue` or `enqueue_all` writes. It meets `before_write` and
/// `after_write` once each, and then the end of its transaction once: `after_commit`,
/// `after_rollback` or `after_unknown`. Hooks run one after the other, in the order in which they
/// were given.
///
/// A plain driver transaction does not tell how it ends: its batches meet `before_write` and
/// `after_write` only. The others need an [`OutboxTransaction`](crate::OutboxTransaction).
///
/// A transaction keeps its batches in memory until it ends.
///
/// What a hook must not assume:
/// - that it may take its time: it is not async, and until the commit the transaction holds locks.
/// - that `after_commit` comes for every commit: the process may die between the two.
/// - that all of a committed batch is there: a part may have been undone by a `rollback to
///   savepoint` of the application's own.
///
/// Before the write a hook can refuse it. After it, nothing is left to refuse: a failure or a panic is
/// logged and goes no further. What is logged of a [`Failure`] is a text of the program's own.
pub trait Hook: Send + Sync + 'static {
    /// The name in logs and errors.
    fn name(&self) -> &str {
        std::any::type_name::<Self>()
    }

    /// Before a batch is written: gives the events to write instead, in their order. None at all
    /// suppress the batch. An error, or a panic, is an error of `enqueue`; the transaction goes on.
    fn before_write(&self, events: Vec<Event>) -> Result<Vec<Event>, Refusal> {
        Ok(events)
    }

    /// The batch was written; whether it will be committed is open.
    fn after_write(&self, written: &[Written]) -> Result<(), Failure> {
        let _ = written;
        Ok(())
    }

    /// The batch was committed.
    fn after_commit(&self, written: &[Written]) -> Result<(), Failure> {
        let _ = written;
        Ok(())
    }

    /// The batch was rolled back, or its transaction dropped.
    fn after_rollback(&self, written: &[Written]) -> Result<(), Failure> {
        let _ = written;
        Ok(())
    }

    /// The commit was begun and its result is unknown: the connection broke, or whoever waited for
    /// it gave up. The batch may have been committed.
    fn after_unknown(&self, written: &[Written]) -> Result<(), Failure> {
        let _ = written;
        Ok(())
    }
}

/// What has happened to a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    Written,
    Committed,
    RolledBack,
    Unknown,
}

/// The hooks of one outbox, in their order. Cheap to clone.
#[derive(Clone)]
pub struct Hooks(Arc<[Arc<dyn Hook>]>);

impl Hooks {
    /// The outbox's own hook, and behind it the application's: none of them delays the relay.
    pub(crate) fn new(own: Arc<dyn Hook>, application: &[Arc<dyn Hook>]) -> Self {
        Self(iter::once(own).chain(application.iter().cloned()).collect())
    }

    #[cfg(feature = "idempotency")]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn has_application_hooks(&self) -> bool {
        self.0.len() > 1
    }

    /// What is to be written. Behind a hook that suppresses the batch no other is asked.
    pub(crate) fn before_write(&self, mut events: Vec<Event>) -> Result<Vec<Event>> {
        for hook in self.0.iter() {
            if events.is_empty() {
                break;
            }
            let answer = catch_unwind(AssertUnwindSafe(|| hook.before_write(events)));
            events = match answer {
                Ok(Ok(events)) => events,
                Ok(Err(refusal)) => {
                    let message = format!("hook {} refused the write", hook.name());
                    return Err(Error::new(ErrorKind::Refused, message).with_source(refusal));
                }
                // The panic's message can quote the event and stays out.
                Err(_) => {
                    let message = format!("hook {} panicked before the write", hook.name());
                    return Err(Error::new(ErrorKind::Refused, message));
                }
            };
        }
        Ok(events)
    }

    /// Tells every hook, whatever becomes of the others.
    pub(crate) fn after(&self, moment: Moment, written: &[Written]) {
        for hook in self.0.iter() {
            let answer = catch_unwind(AssertUnwindSafe(|| match moment {
                Moment::Written => hook.after_write(written),
                Moment::Committed => hook.after_commit(written),
                Moment::RolledBack => hook.after_rollback(written),
                Moment::Unknown => hook.after_unknown(written),
            }));
            let (events, hook) = (written.len(), hook.name());
            match answer {
                Ok(Ok(())) => {}
                Ok(Err(failure)) => {
                    let reason = failure.reason();
                    tracing::warn!(hook, ?moment, events, reason, "a hook failed");
                }
                Err(_) => tracing::warn!(hook, ?moment, events, "a hook panicked"),
            }
        }
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|hook| hook.name())).finish()
    }
}
