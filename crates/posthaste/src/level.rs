//! A savepoint of the driver's whose end is the end of this level, and of no other.
//!
//! The driver counts levels, and names savepoints by their number. When one is dropped while it is
//! being set, as by a timeout around `begin()`, the driver takes back too much and counts too few.
//! What it then sends for the end of a savepoint is the `COMMIT` of the whole transaction, or
//! nothing, answered with success. Where it counts none, nobody knows whether the transaction was
//! committed.

use std::mem::forget;

use posthaste_core::{Error, ErrorKind, Result};
use posthaste_stores::Dialect;
use sqlx::{Connection, Transaction};

use crate::transaction::{commit_failed, ended, savepoint_failed};

/// An error of kind [`State`](ErrorKind::State) means that the whole transaction is gone.
pub(crate) struct Level<'t, DB: Dialect> {
    inner: Transaction<'t, DB>,
    /// With this level.
    depth: usize,
}

impl<'t, DB: Dialect> Level<'t, DB> {
    pub(crate) async fn begin(connection: &'t mut DB::Connection) -> Result<Self> {
        // First: where the server has ended the transaction, the driver counts it as over once it fails to
        // set a savepoint, and says Ok to its commit.
        check_open::<DB>(connection).await?;
        let begun = connection.begin().await;
        let mut inner = begun.map_err(|error| savepoint_failed::<DB>(error, UNSET))?;
        let depth = DB::depth(&mut inner).await;
        Ok(Self { inner, depth })
    }

    pub(crate) fn transaction(&mut self) -> &mut Transaction<'t, DB> {
        &mut self.inner
    }

    /// Whether the driver counts the whole transaction as over, and may have committed it.
    pub(crate) async fn has_ended(&mut self) -> bool {
        DB::depth(&mut self.inner).await == 0
    }

    pub(crate) async fn release(self) -> Result<()> {
        let released = self.counted().await?.commit().await;
        released
            .map_err(|error| savepoint_failed::<DB>(error, "the savepoint could not be released"))
    }

    pub(crate) async fn rollback(self) -> Result<()> {
        let taken_back = self.counted().await?.rollback().await;
        taken_back.map_err(|error| {
            savepoint_failed::<DB>(error, "the savepoint could not be rolled back")
        })
    }

    /// For its end, if the driver counts the levels that there are.
    async fn counted(self) -> Result<Transaction<'t, DB>> {
        let Self { mut inner, depth } = self;
        let counted = DB::depth(&mut inner).await;
        if counted == depth {
            return Ok(inner);
        }
        DB::break_off(&mut inner, depth.saturating_sub(1)).await;
        // It only borrows the connection. Dropped, it would count down the level of its outer one.
        forget(inner);
        Err(if counted == 0 { ended() } else { lost() })
    }
}

/// The error of a call that was to set a savepoint, in a transaction of which the driver counted so
/// many levels: `Err` where the whole transaction is gone. The driver rolls back whole what it
/// fails to set one in, and what comes next would be committed by itself: then the caller's commit
/// is made to fail, too.
pub(crate) async fn unset<DB: Dialect>(
    connection: &mut DB::Connection,
    depth: usize,
    error: Error,
) -> Result<Error> {
    if error.kind() == ErrorKind::State {
        return Err(error);
    }
    if DB::depth(connection).await >= depth {
        return Ok(error);
    }
    DB::break_off(connection, depth).await;
    let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref());
    Err(if matches!(source, Some(sqlx::Error::Database(_))) { refused(error) } else { error })
}

/// Refuses where the database would set no savepoint. `proven`: the last statement was one of ours,
/// and has succeeded.
pub(crate) async fn check_healthy<DB: Dialect>(
    connection: &mut DB::Connection,
    proven: bool,
) -> Result<()> {
    let depth = DB::depth(connection).await;
    if depth == 0 {
        return Ok(());
    }
    let Err(error) = DB::takes_savepoints(connection, proven).await else {
        return Ok(());
    };
    DB::break_off(connection, depth).await;
    Err(match error {
        sqlx::Error::Database(_) => refused(error),
        lost => commit_failed(lost, UNSET),
    })
}

const UNSET: &str = "no savepoint could be set";

fn refused(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(
        ErrorKind::State,
        "no savepoint could be set, as after a statement that has failed; the transaction was rolled \
         back, begin another one",
    )
    .with_source(source)
}

/// Refuses where no transaction is open, and has the caller's commit fail, too.
pub(crate) async fn check_open<DB: Dialect>(connection: &mut DB::Connection) -> Result<()> {
    if DB::depth(connection).await == 0 {
        DB::break_off(connection, 1).await;
        return Err(ended());
    }
    DB::still_open(connection).await
}

fn lost() -> Error {
    Error::new(
        ErrorKind::State,
        "a savepoint of the driver's was given up while it was being set, and other parts of the transaction \
         ended with it; the transaction was rolled back, begin another one",
    )
}
