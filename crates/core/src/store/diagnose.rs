use async_trait::async_trait;
use jiff::Timestamp;
use serde::Serialize;

use crate::Result;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Good to know.
    Note,
    /// It works, and it could work better, or may stop working.
    Warning,
    /// Something does not work.
    Problem,
}

/// What one check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was checked: `schema`, `indexes`, `privileges`, …
    pub check: String,
    /// How bad it is.
    pub level: Level,
    /// A sentence for people.
    pub text: String,
    /// A command or a statement that mends it.
    pub mend: Option<String>,
}

impl Finding {
    /// A finding without a remedy.
    pub fn new(check: impl Into<String>, level: Level, text: impl Into<String>) -> Self {
        Self { check: check.into(), level, text: text.into(), mend: None }
    }

    /// All is as it should be.
    pub fn ok(check: impl Into<String>, text: impl Into<String>) -> Self {
        Self::new(check, Level::Ok, text)
    }

    /// The same with the command or the statement that mends it.
    #[must_use]
    pub fn mended_by(mut self, mend: impl Into<String>) -> Self {
        self.mend = Some(mend.into());
        self
    }
}

/// A transaction that is open on the server: an event that nobody sees yet may be in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OpenTransaction {
    /// Since when, by the database's clock; `None` where the database does not tell.
    pub since: Option<Timestamp>,
    /// Whose: account, program and session, as far as they are known.
    pub who: String,
    /// What it does: `active`, `idle in transaction`, …
    pub state: String,
}

/// Saying what is wrong with the database under an outbox. Nothing here writes, and nothing scans
/// events.
#[async_trait]
pub trait Diagnose {
    /// The database's clock.
    async fn now(&self) -> Result<Timestamp>;

    /// Transactions that are open now and may write, the oldest first, at most `limit`, without the
    /// one that asks. Only those that the account may see.
    async fn open_transactions(&self, limit: usize) -> Result<Vec<OpenTransaction>>;

    /// Checks the installation: tables, indexes, settings, privileges, and what endangers them. A
    /// check that cannot be made is a finding and not an error. An outbox that was never migrated
    /// gives one finding.
    async fn diagnose(&self) -> Result<Vec<Finding>>;
}
