//! What a database must do for idempotency keys: one holder of a key at a time, and a response that
//! commits together with the effect.
//!
//! ```text
//! (nothing) ── take ──► running ── store ──► completed ── expires ──► (nothing)
//!                        │    ▲
//!               lease ends    └── take, by the same request
//! ```
//!
//! Every time is the database's, at the moment of the statement.

use std::{future::Future, time::Duration};

use posthaste_core::Result;
use sqlx::Connection as _;

use crate::{Dialect, Tables, failure::failed};

/// Longest scope, in characters.
pub const SCOPE: usize = 100;

/// Longest key, in characters. They are ASCII.
pub const KEY: usize = 255;

/// How often a claim looks again when others come and go between its looks.
const LOOKS: usize = 4;

const CLAIMING: &str = "claiming an idempotency key";

/// A key, whose it is, and the request that it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestKey {
    /// The tenant or principal.
    pub scope: String,
    /// What the client sent.
    pub key: String,
    /// Of method, path and body: 64 hexadecimal digits.
    pub fingerprint: String,
}

/// The right to carry out a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyLease {
    /// Fences what is written under it.
    pub token: String,
    /// How long others wait for its holder.
    pub lease: Duration,
    /// How long the key is remembered, from now. Not shorter than the lease.
    pub keep: Duration,
}

/// A response as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredResponse {
    /// The status code.
    pub status: u16,
    /// The headers, as the caller encoded them.
    pub headers: String,
    /// The body.
    pub body: Vec<u8>,
}

/// What is known under a key that has not expired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    /// The request that it stands for.
    pub fingerprint: String,
    /// Its holder's time is not up.
    pub locked: bool,
    /// The response, when there is one.
    pub response: Option<StoredResponse>,
}

/// The answer to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyClaim {
    /// The key is the caller's to carry out.
    Claimed,
    /// Somebody else is carrying it out.
    Running,
    /// It was carried out.
    Completed(StoredResponse),
    /// The key stands for another request.
    OtherRequest,
}

/// A database that remembers idempotency keys.
pub trait IdempotencyDialect: Dialect {
    /// What is known under the key, unless it has expired.
    fn find_key<'c>(
        connection: &'c mut Self::Connection,
        tables: &'c Tables,
        key: &'c RequestKey,
    ) -> impl Future<Output = Result<Option<KeyRecord>>> + Send + 'c;

    /// Takes the key when it is unknown or expired, or when the same request holds it under a
    /// lease that has ended; says whether it did.
    fn take_key<'c>(
        connection: &'c mut Self::Connection,
        tables: &'c Tables,
        key: &'c RequestKey,
        lease: &'c KeyLease,
    ) -> impl Future<Output = Result<bool>> + Send + 'c;

    /// Writes the response in the transaction that is open on this connection. `false`, and nothing
    /// written, when the key is no longer held under this lease: then the caller must roll back.
    fn store_response<'c>(
        connection: &'c mut Self::Connection,
        tables: &'c Tables,
        key: &'c RequestKey,
        lease: &'c KeyLease,
        response: &'c StoredResponse,
    ) -> impl Future<Output = Result<bool>> + Send + 'c;

    /// Gives the key back, unless it has a response or is no longer held under this lease.
    fn release_key<'c>(
        connection: &'c mut Self::Connection,
        tables: &'c Tables,
        key: &'c RequestKey,
        lease: &'c KeyLease,
    ) -> impl Future<Output = Result<()>> + Send + 'c;

    /// Deletes up to `limit` expired keys, the oldest first, and says how many.
    fn purge_idempotency<'c>(
        connection: &'c mut Self::Connection,
        tables: &'c Tables,
        limit: usize,
    ) -> impl Future<Output = Result<u64>> + Send + 'c;
}

/// Claims a key, or says what is in the way. Outside of a transaction: whoever asks next must see
/// the claim while it is being carried out.
pub async fn claim_key<DB: IdempotencyDialect>(
    connection: &mut DB::Connection,
    tables: &Tables,
    key: &RequestKey,
    lease: &KeyLease,
) -> Result<KeyClaim> {
    for _ in 0..LOOKS {
        // On MySQL a pool can be set so that nothing commits by itself, and a lock that is left
        // there keeps everybody from the key.
        let commits_by_itself = tables.named_statements() && DB::NAME != "MySQL";
        let claim = if commits_by_itself {
            look::<DB>(connection, tables, key, lease).await?
        } else {
            // A statement without a name is gone when a pooler lends the server's connection to somebody else.
            let mut transaction = connection.begin().await.map_err(failed(CLAIMING))?;
            let claim = look::<DB>(&mut transaction, tables, key, lease).await?;
            transaction.commit().await.map_err(failed(CLAIMING))?;
            claim
        };
        if let Some(claim) = claim {
            return Ok(claim);
        }
    }
    Ok(KeyClaim::Running)
}

/// `None` when somebody came between the two statements.
async fn look<DB: IdempotencyDialect>(
    connection: &mut DB::Connection,
    tables: &Tables,
    key: &RequestKey,
    lease: &KeyLease,
) -> Result<Option<KeyClaim>> {
    // Looked up first: a repeat is to cost no write.
    if let Some(record) = DB::find_key(connection, tables, key).await? {
        if record.fingerprint != key.fingerprint {
            return Ok(Some(KeyClaim::OtherRequest));
        }
        if let Some(response) = record.response {
            return Ok(Some(KeyClaim::Completed(response)));
        }
        if record.locked {
            return Ok(Some(KeyClaim::Running));
        }
    }
    let taken = DB::take_key(connection, tables, key, lease).await?;
    Ok(taken.then_some(KeyClaim::Claimed))
}
