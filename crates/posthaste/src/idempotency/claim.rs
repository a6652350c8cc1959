//! A key that a request holds, until it has a response or is given back.
//!
//! Each step runs in a task of its own, to its end: a client that hangs up in the middle of one leaves
//! neither a key that nobody gives back nor a response whose commit is cut off.

use std::sync::Arc;

use posthaste_core::{Error, ErrorKind, Event, Result};
use posthaste_stores::idempotency::{
    IdempotencyDialect, KeyClaim, KeyLease, RequestKey, StoredResponse, claim_key,
};
use sqlx::pool::PoolConnection;

use super::Settings;
use crate::{Outbox, OutboxTransaction};

/// A held key. Dropped without an end (the handler panicked, the client hung up), it is given back
/// by a task of its own; when the process is gone, its lease ends.
pub(super) struct Held<DB: IdempotencyDialect> {
    settings: Arc<Settings<DB>>,
    key: RequestKey,
    lease: KeyLease,
    ended: bool,
}

/// The answer to a claim: the key, or what is in the way.
pub(super) enum Claimed<DB: IdempotencyDialect> {
    Held(Held<DB>),
    Running,
    Completed(StoredResponse),
    OtherRequest,
}

/// Claims a key in a statement of its own, for all to see.
pub(super) async fn claim<DB: IdempotencyDialect>(
    settings: Arc<Settings<DB>>,
    key: RequestKey,
) -> Result<Claimed<DB>> {
    let connection = acquire(&settings).await?;
    to_the_end(claim_on(connection, settings, key)).await
}

async fn claim_on<DB: IdempotencyDialect>(
    mut connection: PoolConnection<DB>,
    settings: Arc<Settings<DB>>,
    key: RequestKey,
) -> Result<Claimed<DB>> {
    let lease = KeyLease {
        token: uuid::Uuid::now_v7().to_string(),
        lease: settings.lease,
        keep: settings.keep.max(settings.lease),
    };
    // Given back when it is dropped: also when the client hung up meanwhile, and nobody takes it.
    let held = Held { settings, key, lease, ended: false };
    let tables = held.settings.outbox.tables();
    let claim = claim_key::<DB>(&mut connection, tables, &held.key, &held.lease).await;
    drop(connection);
    Ok(match claim? {
        KeyClaim::Claimed => Claimed::Held(held),
        KeyClaim::Running => held.not_ours(Claimed::Running),
        KeyClaim::Completed(response) => held.not_ours(Claimed::Completed(response)),
        KeyClaim::OtherRequest => held.not_ours(Claimed::OtherRequest),
    })
}

impl<DB: IdempotencyDialect> Held<DB> {
    fn not_ours(mut self, claimed: Claimed<DB>) -> Claimed<DB> {
        self.ended = true;
        claimed
    }

    /// What the client called it.
    pub(super) fn key(&self) -> &str {
        &self.key.key
    }

    /// The outbox beside which the key is kept.
    pub(super) fn outbox(&self) -> &Outbox<DB> {
        &self.settings.outbox
    }

    /// Writes the response in the handler's transaction and commits both. `false`, and all rolled
    /// back, when the key is somebody else's by now. After an error the key is given back, which
    /// waits for a commit whose result is unknown, and does nothing when it succeeded.
    pub(super) async fn commit(
        self,
        transaction: OutboxTransaction<DB>,
        response: StoredResponse,
    ) -> Result<bool> {
        to_the_end(self.store_and_commit(transaction, response)).await
    }

    async fn store_and_commit(
        mut self,
        mut transaction: OutboxTransaction<DB>,
        response: StoredResponse,
    ) -> Result<bool> {
        // Outside of a transaction the response would be stored by itself.
        transaction.refuse_given_up()?;
        DB::still_open(transaction.connection()).await?;
        let tables = self.settings.outbox.tables();
        let connection = transaction.connection();
        let stored =
            DB::store_response(connection, tables, &self.key, &self.lease, &response).await?;
        if stored {
            transaction.commit_ours().await?;
        } else {
            transaction.rollback().await?;
        }
        self.ended = true;
        Ok(stored)
    }

    /// Writes the response of a handler that used no transaction.
    pub(super) async fn store(mut self, response: StoredResponse) -> Result<()> {
        // Whatever becomes of it: the effect has happened, and a repeat is to wait for the lease.
        self.ended = true;
        to_the_end(async move {
            let mut transaction = OutboxTransaction::<DB>::begin(&self.settings.pool).await?;
            let connection = transaction.connection();
            let tables = self.settings.outbox.tables();
            DB::store_response(connection, tables, &self.key, &self.lease, &response).await?;
            transaction.commit_ours().await
        })
        .await
    }

    /// Whether a transaction that the driver has ended by itself may have taken effect. This event
    /// of it is there if it has; without one nothing tells.
    pub(super) async fn may_have_taken_effect(&self, event: Option<Box<Event>>) -> bool {
        let Some(event) = event else {
            return true;
        };
        let settings = Arc::clone(&self.settings);
        let written = to_the_end(async move {
            let mut transaction = OutboxTransaction::<DB>::begin(&settings.pool).await?;
            let tables = settings.outbox.tables();
            // A writer may ask nothing else: once more, and rolled back.
            let again =
                DB::enqueue(transaction.connection(), tables, std::slice::from_ref(&*event))
                    .await?;
            drop(transaction.rollback().await);
            Ok(again.iter().any(|again| again.duplicate))
        });
        written.await.unwrap_or(true)
    }

    /// Gives the key back: the request can be sent again.
    pub(super) async fn release(mut self) {
        self.ended = true;
        let released = to_the_end(async move {
            release(&self.settings, &self.key, &self.lease).await;
            Ok(())
        });
        // Fails when the process ends: then the lease does, too.
        let _ = released.await;
    }
}

/// Runs a step to its end, whether or not somebody waits for it.
async fn to_the_end<T: Send + 'static>(
    step: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    tokio::spawn(step).await.map_err(|error| {
        Error::new(ErrorKind::Unavailable, "a step of a request was cut off").with_source(error)
    })?
}

impl<DB: IdempotencyDialect> Drop for Held<DB> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let (settings, key, lease) =
            (Arc::clone(&self.settings), self.key.clone(), self.lease.clone());
        runtime.spawn(async move { release(&settings, &key, &lease).await });
    }
}

async fn release<DB: IdempotencyDialect>(
    settings: &Settings<DB>,
    key: &RequestKey,
    lease: &KeyLease,
) {
    let released = async {
        let mut transaction = OutboxTransaction::<DB>::begin(&settings.pool).await?;
        let connection = transaction.connection();
        DB::release_key(connection, settings.outbox.tables(), key, lease).await?;
        transaction.commit_ours().await
    };
    if let Err(error) = released.await {
        tracing::warn!(%error, "an idempotency key was not given back; its lease will end");
    }
}

async fn acquire<DB: IdempotencyDialect>(settings: &Settings<DB>) -> Result<PoolConnection<DB>> {
    settings.pool.acquire().await.map_err(|error| {
        Error::new(ErrorKind::Unavailable, "no connection for idempotency keys").with_source(error)
    })
}
