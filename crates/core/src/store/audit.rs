use async_trait::async_trait;
use jiff::Timestamp;

use crate::Result;

/// A change that somebody is about to make.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Change {
    /// Who: a token's name, or the account at the terminal. Cut at 200 characters.
    pub by: String,
    /// What is done: `dead.replay`, `destination.pause`, … Cut at 50 characters.
    pub action: String,
    /// To what: an event's id, or the filter. Never a payload. Cut at 4,000 characters.
    pub subject: String,
}

/// A change as the audit table remembers it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct AuditRecord {
    /// Its number; rises with time.
    pub id: i64,
    /// When it began, by the database's clock.
    pub at: Timestamp,
    /// The change.
    #[serde(flatten)]
    pub change: Change,
    /// As whom and from where its connection had logged in to the database, as the server knows it; `None` where it
    /// knows no accounts.
    pub account: Option<String>,
    /// When it ended; `None` while it runs, or when whoever made it died.
    pub ended_at: Option<Timestamp>,
    /// How many it changed.
    pub affected: u64,
    /// Why it ended early.
    pub error: Option<String>,
}

/// Who changed what. An entry is written before the change and completed after it: a crash between
/// the two leaves an entry without an end, and never a change without an entry.
#[async_trait]
pub trait Audit {
    /// Writes down that a change begins. Gives its number.
    async fn audit_begin(&self, change: &Change) -> Result<i64>;

    /// Writes down how it ended. The first end stays.
    async fn audit_end(&self, id: i64, affected: u64, error: Option<&str>) -> Result<()>;

    /// The changes, newest first, at most `limit`, older than `before`.
    async fn audits(&self, before: Option<i64>, limit: usize) -> Result<Vec<AuditRecord>>;
}
