//! Idempotency keys for HTTP APIs: a request that is sent twice takes effect once.
//!
//! A tower layer after the IETF draft `Idempotency-Key`. The handler gets a transaction in which its
//! effect, its events, the key's record and the response commit together.
//!
//! ```text
//! request ─► key ─► claim ─► handler ─► begin … commit_with_response ─► response stored, commit ─► answer
//!              │      └─ known: the stored response, 409 or 422
//!              └─ missing or malformed: 400
//! ```
//!
//! ```no_run
//! use posthaste::{Outbox, idempotency::{Idempotent, IdempotencyLayer}};
//!
//! /// Who asks: authentication, which runs before, puts it into the request's extensions.
//! #[derive(Clone)]
//! struct Account(String);
//!
//! # type Failure = Box<dyn std::error::Error + Send + Sync>;
//! # fn layer(pool: sqlx::Pool<sqlx::Sqlite>) -> Result<(), Failure>
//! # where sqlx::Sqlite: posthaste::stores::idempotency::IdempotencyDialect {
//! let outbox = Outbox::new("outbox_event".parse()?);
//! let layer = IdempotencyLayer::new(outbox, pool, |request| {
//!     // Whose key it is. Never what a client can choose, such as a header: whoever names another's
//!     // scope reads their responses.
//!     request.extensions.get::<Account>().map(|account| account.0.clone())
//! })
//! .required();
//! // With axum: Router::new().route("/payments", post(pay)).layer(layer)
//! # Ok(())
//! # }
//!
//! // The handler's part, with the extension `Idempotent` of its request:
//! # async fn pay(request: Idempotent<sqlx::Sqlite>) -> Result<(), Failure>
//! # where sqlx::Sqlite: posthaste::stores::idempotency::IdempotencyDialect {
//! let mut tx = request.begin().await?;
//! sqlx::query("insert into payments (amount) values (42)").execute(tx.connection()).await?;
//! tx.commit_with_response()?;
//! // … and answer with whatever status and body.
//! # Ok(())
//! # }
//! ```
//!
//! # What is promised
//! | the handler | its effect |
//! | --- | --- |
//! | does all it does in [`Idempotent::begin`]'s transaction and hands it back with [`commit_with_response`](IdempotentTransaction::commit_with_response) | **exactly once** for each key, as long as the key is kept |
//! | does not use it, or does something else besides | **at least once**: a crash after the effect and before the response was stored lets a repeat run it again |
//!
//! # When things fail
//! A handler that dies (crash, panic, a client that hung up) leaves nothing behind in its
//! transaction. Its key is free again at once, or, when the process is gone, when its lease ends.
//! A handler that hands its transaction back and then answers 408 or 5xx, as a timeout or a caught panic
//! between the layer and the handler makes it, is rolled back as well.
//! A handler that outlives its lease can be overtaken by a repeat. The latest claim wins, and the other's
//! transaction is rolled back: the response is written under the lease's token, which fences the late
//! one. So a lease must be longer than the slowest handler: a client that repeats in between starts it
//! anew each time, and none of them ends.

mod key;

mod claim;

mod transaction;

mod response;

mod problem;

mod service;

use std::{sync::Arc, time::Duration};

use http::request::Parts;
use posthaste_core::Result;
use posthaste_stores::idempotency::IdempotencyDialect;
use sqlx::Pool;
use tower_layer::Layer;

pub use self::{
    response::REPLAYED,
    service::{IdempotencyBody, IdempotencyService},
    transaction::{Idempotent, IdempotentTransaction},
};
use crate::{Outbox, OutboxTransaction};

type Scope = dyn Fn(&Parts) -> Option<String> + Send + Sync;

/// What the layer, its services and their requests share.
struct Settings<DB: IdempotencyDialect> {
    outbox: Outbox<DB>,
    pool: Pool<DB>,
    scope: Arc<Scope>,
    required: bool,
    lease: Duration,
    keep: Duration,
    max_request: usize,
    max_response: usize,
}

impl<DB: IdempotencyDialect> Clone for Settings<DB> {
    fn clone(&self) -> Self {
        Self {
            outbox: self.outbox.clone(),
            pool: self.pool.clone(),
            scope: Arc::clone(&self.scope),
            ..*self
        }
    }
}

/// A tower layer that honours `Idempotency-Key`. See the [module](self).
///
/// Requests that change nothing (`GET`, `HEAD`, `OPTIONS`, `TRACE`) pass through. Put it inside of
/// authentication, which tells the scope. What passes through the layer is what is stored and
/// repeated.
pub struct IdempotencyLayer<DB: IdempotencyDialect> {
    settings: Arc<Settings<DB>>,
}

impl<DB: IdempotencyDialect> Clone for IdempotencyLayer<DB> {
    fn clone(&self) -> Self {
        Self { settings: Arc::clone(&self.settings) }
    }
}

impl<DB: IdempotencyDialect> IdempotencyLayer<DB> {
    /// Keys are kept beside this outbox. `scope` tells whose key it is, the principal, or tenant and principal:
    /// the keys of one are unknown to another. It comes from authentication and is stored as it is, so it is no
    /// token; one of more than 100 characters is stored as its SHA-256. A request for which it says `None` or
    /// nothing is refused with 403.
    ///
    /// A key stands for the method, path and body that the layer sees. Inside of axum's `nest` the path has
    /// lost its prefix: put the layer around the nest, or the prefix into the scope.
    pub fn new(
        outbox: Outbox<DB>,
        pool: Pool<DB>,
        scope: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            settings: Arc::new(Settings {
                outbox,
                pool,
                scope: Arc::new(scope),
                required: false,
                lease: Duration::from_mins(1),
                keep: Duration::from_hours(24),
                max_request: 1024 * 1024,
                max_response: 1024 * 1024,
            }),
        }
    }

    /// A request without a key is refused with 400.
    pub fn required(self) -> Self {
        self.change(|settings| settings.required = true)
    }

    /// How long a key is locked for a request that was not heard of again: 1 minute unless set. Longer
    /// than the slowest handler, or a repeat starts beside it.
    pub fn lease(self, lease: Duration) -> Self {
        self.change(|settings| settings.lease = lease)
    }

    /// How long a response is kept: 24 hours unless set. Not shorter than the lease.
    pub fn keep(self, keep: Duration) -> Self {
        self.change(|settings| settings.keep = keep)
    }

    /// Largest body of a request with a key, in bytes: 1 MiB unless set. It is held in memory, for its
    /// fingerprint; a larger one is refused with 413.
    pub fn max_request(self, bytes: usize) -> Self {
        self.change(|settings| settings.max_request = bytes)
    }

    /// Largest body of a response that is stored, in bytes: 1 MiB unless set. A larger one is
    /// answered with 500, and the handler's transaction is rolled back. When it used none, that
    /// answer is stored and the handler does not run again.
    pub fn max_response(self, bytes: usize) -> Self {
        self.change(|settings| settings.max_response = bytes)
    }

    /// Deletes up to `limit` expired keys, and says how many; call it again while the answer is
    /// the limit.
    pub async fn purge(&self, limit: usize) -> Result<u64> {
        let mut transaction = OutboxTransaction::<DB>::begin(&self.settings.pool).await?;
        let (connection, tables) = (transaction.connection(), self.settings.outbox.tables());
        let purged = DB::purge_idempotency(connection, tables, limit).await?;
        transaction.commit_ours().await?;
        Ok(purged)
    }

    fn change(self, change: impl FnOnce(&mut Settings<DB>)) -> Self {
        let mut settings = Arc::unwrap_or_clone(self.settings);
        change(&mut settings);
        Self { settings: Arc::new(settings) }
    }
}

impl<S, DB: IdempotencyDialect> Layer<S> for IdempotencyLayer<DB> {
    type Service = IdempotencyService<S, DB>;

    fn layer(&self, inner: S) -> Self::Service {
        IdempotencyService::new(inner, Arc::clone(&self.settings))
    }
}
