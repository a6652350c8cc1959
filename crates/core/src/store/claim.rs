use async_trait::async_trait;

use super::{Fetched, Limit, Position, Relay};
use crate::Result;

/// A claim on rows: its token fences every later write to them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RowLease {
    /// What stands in `locked_by`: the relay's owner text, `#`, and the number of the claim.
    pub token: String,
}

/// Rows that were claimed together.
#[derive(Debug)]
pub struct ClaimedRows {
    /// The rows, in the order of their sequence.
    pub rows: Vec<Fetched>,
    /// Where the claims of this relay stand. Without a context, reading starts at the stored marks.
    pub position: Position,
    /// Nothing more can be claimed now. Otherwise the next call goes on at once.
    pub caught_up: bool,
}

/// What one look for expired claims has brought.
#[derive(Debug, Default)]
pub struct ExpiredRow {
    /// The row, if it has met one.
    pub row: Option<Fetched>,
    /// There are rows left that it has not looked at: the next call goes on there.
    pub more: bool,
}

/// Rows in hand under one claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowsInHand {
    /// The claim.
    pub lease: RowLease,
    /// The rows.
    pub sequences: Vec<i64>,
}

/// Taking single rows, for unordered work (`none`). Two claimers never share a row; an expired
/// lease is claimable; times are the database's.
#[async_trait]
pub trait Claim {
    /// Claims fresh rows with `sequence > from.sequence`, and rows whose time has come: of each kind up to half
    /// the bytes of `limit`, and one at least, if there are any.
    async fn claim(
        &self,
        relay: &Relay,
        lease: &RowLease,
        from: &Position,
        limit: Limit,
    ) -> Result<ClaimedRows>;

    /// Claims rows at or before `from.sequence` that a claim passed over: committed late, or
    /// locked by a claimer that went away. The answer's position is where such sweeps may start
    /// from now on.
    async fn claim_late(
        &self,
        relay: &Relay,
        lease: &RowLease,
        from: &Position,
        limit: Limit,
    ) -> Result<ClaimedRows>;

    /// Claims one row whose lease has expired, and records an attempt before it is handed out: its
    /// dispatch may have killed the relay that had it. A row beyond `until`, the claimer's cursor, may
    /// be left out: where a large backlog waits, it would be looked through for nothing. One call walks over a
    /// part of the rows; calls without a row go on where the last one ended.
    async fn claim_expired(
        &self,
        relay: &Relay,
        lease: &RowLease,
        until: i64,
    ) -> Result<ExpiredRow>;

    /// Claims these rows by their sequence, as far as they are free (hot path). The caller bounds it by what it
    /// asks for: whoever wrote a row has told its size.
    async fn claim_hot(
        &self,
        relay: &Relay,
        lease: &RowLease,
        sequences: &[i64],
    ) -> Result<Vec<Fetched>>;

    /// Extends the leases of these rows, as far as they are still held and nobody has locked them.
    async fn renew_rows(&self, relay: &Relay, rows: &[RowsInHand]) -> Result<()>;

    /// Gives rows back, but for those that somebody has locked.
    async fn unclaim(&self, lease: &RowLease, sequences: &[i64]) -> Result<()>;
}
