//! What a database must do for a consumer: remember, in the caller's own transaction, that a
//! message was handled.

use std::{future::Future, time::Duration};

use posthaste_core::Result;

use crate::{Dialect, Tables};

/// Longest name of a consumer, in characters.
pub const CONSUMER: usize = 100;

/// Longest id of a message, in characters.
pub const MESSAGE_ID: usize = 255;

/// A database that has an inbox.
pub trait InboxDialect: Dialect {
    /// Records in the transaction that is open on this connection that the consumer handles the
    /// message, and says whether it is the first to do so. A transaction that has recorded the same
    /// message and is still open is waited for: `false` means that it committed, or that it is
    /// this very transaction.
    ///
    /// The caller has checked both names against [`CONSUMER`] and [`MESSAGE_ID`].
    fn record_message<'c>(
        connection: &'c mut Self::Connection,
        tables: &'c Tables,
        consumer: &'c str,
        message_id: &'c str,
    ) -> impl Future<Output = Result<bool>> + Send + 'c;

    /// Deletes up to `limit` records that are older than this, the oldest first, and says how many.
    fn purge_inbox<'c>(
        connection: &'c mut Self::Connection,
        tables: &'c Tables,
        older_than: Duration,
        limit: usize,
    ) -> impl Future<Output = Result<u64>> + Send + 'c;
}
