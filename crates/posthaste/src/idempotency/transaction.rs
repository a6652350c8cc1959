//! How a handler gets the transaction, and how the layer gets it back.

use std::{
    mem,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use posthaste_core::{Error, ErrorKind, Event, Result};
use posthaste_stores::Dialect;
use sqlx::Pool;

use crate::{EnqueueIn, Hooks, Outbox, OutboxTransaction, Written};

/// A request's extension through which its handler gets the transaction that commits together with
/// the response. With axum: `Extension(request): Extension<Idempotent<Postgres>>`.
///
/// It is there on every request that passed an [`IdempotencyLayer`](super::IdempotencyLayer) and is
/// not `GET`, `HEAD`, `OPTIONS` or `TRACE`, also on one without a key: so a handler is written once.
pub struct Idempotent<DB: Dialect> {
    inner: Arc<Inner<DB>>,
}

struct Inner<DB: Dialect> {
    outbox: Outbox<DB>,
    pool: Pool<DB>,
    key: Option<String>,
    slot: Mutex<Slot<DB>>,
}

/// Where the transaction of a request is.
pub(super) enum Slot<DB: Dialect> {
    /// The handler has not asked for one.
    Unused,
    /// The handler has it, or has dropped it.
    Begun,
    /// To be committed with the response. The layer takes it.
    HandedBack(OutboxTransaction<DB>),
    /// The handler has dropped it when the driver had ended it by itself, perhaps with a commit.
    /// With an event that is there in that case.
    Ended(Option<Box<Event>>),
    /// The request has been answered.
    Closed,
}

impl<DB: Dialect> Clone for Idempotent<DB> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<DB: Dialect> Idempotent<DB> {
    pub(super) fn new(outbox: Outbox<DB>, pool: Pool<DB>, key: Option<String>) -> Self {
        Self { inner: Arc::new(Inner { outbox, pool, key, slot: Mutex::new(Slot::Unused) }) }
    }

    /// The client's key, to pass it on to another API; `None` when the request has none.
    pub fn key(&self) -> Option<&str> {
        self.inner.key.as_deref()
    }

    /// Begins a transaction for the handler's effect. Dropped, it rolls back; then another one can
    /// be begun.
    pub async fn begin(&self) -> Result<IdempotentTransaction<DB>> {
        self.inner.reopen()?;
        let transaction = self.inner.outbox.begin(&self.inner.pool).await?;
        Ok(IdempotentTransaction { transaction: Some(transaction), inner: Arc::clone(&self.inner) })
    }

    /// What the handler left, once it has answered.
    pub(super) fn close(&self) -> Slot<DB> {
        mem::replace(&mut *self.inner.slot(), Slot::Closed)
    }
}

impl<DB: Dialect> Inner<DB> {
    fn slot(&self) -> MutexGuard<'_, Slot<DB>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reopen(&self) -> Result<()> {
        let mut slot = self.slot();
        match *slot {
            Slot::Unused | Slot::Begun => *slot = Slot::Begun,
            Slot::HandedBack(_) | Slot::Ended(_) | Slot::Closed => return Err(over()),
        }
        Ok(())
    }
}

/// The transaction of a request. Queries take [`connection`](OutboxTransaction::connection),
/// [`Outbox::enqueue`] takes it as it is.
///
/// It ends in one of two ways: handed back with [`commit_with_response`](Self::commit_with_response),
/// or dropped, which rolls back. A handler that drops it must answer with an error (400 or above):
/// the key is then free again. An answer below 400 would claim an effect that is not there, and is
/// replaced by a 500.
pub struct IdempotentTransaction<DB: Dialect> {
    /// `None` when it was handed back.
    transaction: Option<OutboxTransaction<DB>>,
    inner: Arc<Inner<DB>>,
}

impl<DB: Dialect> IdempotentTransaction<DB> {
    /// Hands the transaction back, to be committed together with the response that the handler is
    /// about to give: also a refusal can be an effect to remember. Under 408 and 5xx it is rolled back:
    /// so answers what gives up on a handler that is not done. Call it last; when the commit fails, the
    /// client gets a 500 or 503 instead of the response.
    pub fn commit_with_response(mut self) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        let mut slot = inner.slot();
        if !matches!(*slot, Slot::Begun) {
            return Err(over());
        }
        if let Some(transaction) = self.transaction.take() {
            *slot = Slot::HandedBack(transaction);
        }
        Ok(())
    }
}

impl<DB: Dialect> Drop for IdempotentTransaction<DB> {
    fn drop(&mut self) {
        let Some(transaction) = &mut self.transaction else {
            return;
        };
        if transaction.may_be_committed() {
            let mut slot = self.inner.slot();
            if matches!(*slot, Slot::Begun) {
                let event = transaction.first_event_of(&self.inner.outbox);
                *slot = Slot::Ended(event.map(Box::new));
            }
        }
    }
}

/// Only [`IdempotentTransaction::commit_with_response`] takes it, which consumes the rest.
const HANDED_BACK: &str = "it was handed back";

fn over() -> Error {
    Error::new(
        ErrorKind::State,
        "the request has been answered, or has handed back its transaction, or the driver has ended that by \
         itself; it has one",
    )
}

impl<DB: Dialect> Deref for IdempotentTransaction<DB> {
    type Target = OutboxTransaction<DB>;

    fn deref(&self) -> &Self::Target {
        self.transaction.as_ref().expect(HANDED_BACK)
    }
}

impl<DB: Dialect> DerefMut for IdempotentTransaction<DB> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.transaction.as_mut().expect(HANDED_BACK)
    }
}

impl<DB: Dialect> EnqueueIn<DB> for IdempotentTransaction<DB> {
    fn connection(&mut self) -> &mut DB::Connection {
        (**self).connection()
    }

    fn pool(&self) -> Option<&Pool<DB>> {
        (**self).pool()
    }

    fn writing(&mut self, under_way: bool) {
        (**self).writing(under_way);
    }

    fn ended(&mut self) {
        (**self).ended();
    }

    fn remember(&mut self, written: Vec<Written>, hooks: &Hooks) {
        (**self).remember(written, hooks);
    }
}
