//! Somebody who changes things: every change is logged and audited under their name.

use std::sync::Arc;

use posthaste_core::{
    Result,
    store::{Change, Pausable, Selection, Store},
};
use posthaste_relay::{Retention, purge};
use uuid::Uuid;

/// An operator at one outbox. Cheap to clone.
#[derive(Clone)]
pub struct Operator {
    pub(crate) store: Arc<dyn Store>,
    by: String,
}

impl Operator {
    /// An operator of this name: a token's, or the account at the terminal.
    pub fn new(store: Arc<dyn Store>, by: impl Into<String>) -> Self {
        Self { store, by: by.into() }
    }

    /// The outbox.
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Their name.
    pub fn name(&self) -> &str {
        &self.by
    }

    /// Sends one dead or sent event again.
    pub async fn replay(&self, id: Uuid) -> Result<()> {
        let change = async { self.store.replay(&Selection::One(id)).await };
        self.audited("event.replay", format!("id={id}"), change).await.map(drop)
    }

    /// Gives one event up that is new, retried or dead.
    pub async fn discard(&self, id: Uuid) -> Result<()> {
        let change = async { self.store.discard(&Selection::One(id)).await };
        self.audited("event.discard", format!("id={id}"), change).await.map(drop)
    }

    /// Pauses something; `false` when it was paused already.
    pub async fn pause(&self, what: &Pausable, note: Option<&str>) -> Result<bool> {
        let change = async { self.store.pause(what, &self.by, note).await.map(u64::from) };
        let action = format!("{}.pause", what.kind());
        let changed = self.audited(&action, what.to_string(), change).await?;
        // Relays learn of it now, and not at their next look.
        self.store.notify().await?;
        Ok(changed > 0)
    }

    /// Lets something go on; `false` when it was not paused.
    pub async fn resume(&self, what: &Pausable) -> Result<bool> {
        let change = async { self.store.resume(what).await.map(u64::from) };
        let action = format!("{}.resume", what.kind());
        let changed = self.audited(&action, what.to_string(), change).await?;
        self.store.notify().await?;
        Ok(changed > 0)
    }

    /// Removes what is settled and past its retention. Gives how many events were deleted.
    pub async fn purge(&self, retention: Retention, batch: usize) -> Result<u64> {
        let subject = format!("sent={:?} dead={:?}", retention.sent, retention.dead);
        self.audited("purge", subject, purge(&*self.store, retention, batch)).await
    }

    /// Makes a change that is done as a whole or not at all; see [`audited_in_steps`].
    ///
    /// [`audited_in_steps`]: Self::audited_in_steps
    async fn audited(
        &self,
        action: &str,
        subject: String,
        change: impl Future<Output = Result<u64>>,
    ) -> Result<u64> {
        let whole = async {
            match change.await {
                Ok(affected) => (affected, Ok(())),
                Err(error) => (0, Err(error)),
            }
        };
        self.audited_in_steps(action, subject, whole).await
    }

    /// Makes a change between the two halves of its audit entry. The future gives how many it
    /// changed, also when it ended early: what was done stays done, and is on record.
    pub(crate) async fn audited_in_steps(
        &self,
        action: &str,
        subject: String,
        change: impl Future<Output = (u64, Result<()>)>,
    ) -> Result<u64> {
        let entry = Change { by: self.by.clone(), action: action.to_owned(), subject };
        let id = self.store.audit_begin(&entry).await?;
        let (affected, outcome) = change.await;
        let error = outcome.as_ref().err().map(ToString::to_string);
        let Change { by, action, subject } = entry;
        match &error {
            None => tracing::info!(%by, %action, %subject, affected, "changed by an operator"),
            Some(error) => {
                tracing::warn!(%by, %action, %subject, affected, %error, "an operator's change failed");
            }
        }
        self.store.audit_end(id, affected, error.as_deref()).await?;
        outcome.map(|()| affected)
    }
}
