//! A transaction that tells the outbox's hooks how it ended.

use std::{
    borrow::Cow,
    mem::take,
    ops::{Deref, DerefMut},
};

#[cfg(feature = "idempotency")]
use posthaste_core::Event;
use posthaste_core::{Error, ErrorKind, Result};
use posthaste_stores::{Dialect, dialect::IN_FAILED_TRANSACTION, is_rolled_back};
use sqlx::{Pool, Transaction, error::DatabaseError};

#[cfg(feature = "idempotency")]
use crate::Outbox;
use crate::{
    EnqueueIn, Savepoint,
    hook::{Hooks, Moment, Written},
    level::{Level, check_healthy},
};

/// A driver's transaction that remembers what was enqueued in it, until it ends. After a commit the
/// relay in this process gets it at once, relays elsewhere are woken, and the application's
/// [hooks](crate::Hook) are told. Dropping it rolls back.
///
/// What is enqueued in a savepoint of the driver's (`tx.begin()`) is as safe, but not remembered: the
/// driver does not tell what becomes of it. [`savepoint`](Self::savepoint) does.
pub struct OutboxTransaction<DB: Dialect> {
    // Before `batches`: the rollback is under way when the hooks are told of it.
    open: Open<DB>,
    batches: Batches,
    /// The last statement was one of ours, and has succeeded. The application's are its own.
    proven: bool,
}

impl<DB: Dialect> OutboxTransaction<DB> {
    /// Begins one. Dropped half-way, it leaves no transaction open.
    pub(crate) async fn begin(pool: &Pool<DB>) -> Result<Self> {
        let transaction = DB::begin(pool).await.map_err(|error| {
            Error::new(ErrorKind::Unavailable, "no transaction could be begun").with_source(error)
        })?;
        let open = Open { transaction: Some(transaction), pool: pool.clone() };
        Ok(Self { open, batches: Batches::default(), proven: true })
    }

    /// The connection, for queries: `query.execute(tx.connection())`.
    pub fn connection(&mut self) -> &mut DB::Connection {
        self
    }

    /// Commits after a statement of ours, which has succeeded.
    pub(crate) async fn commit_ours(mut self) -> Result<()> {
        self.proven = true;
        self.commit().await
    }

    /// Begins a part that can be taken back. On PostgreSQL this costs one question more, unless
    /// `enqueue` came last: after a statement that has failed, as after any error of kind
    /// [`State`](ErrorKind::State), the transaction was rolled back and its connection is closed.
    pub async fn savepoint(&mut self) -> Result<Savepoint<'_, DB>> {
        self.look_for_its_end();
        let Self { open, batches, proven } = self;
        let proven = std::mem::take(proven);
        let pool = open.pool.clone();
        // The driver rolls back whole what it was setting a savepoint in: it stays so after an error, too.
        batches.writing(true);
        batches.sets_a_savepoint = true;
        // Before, because afterwards the connection is lent to the savepoint.
        check_healthy::<DB>(open, proven).await?;
        let level = Level::<DB>::begin(open).await?;
        batches.sets_a_savepoint = false;
        batches.writing(false);
        Ok(Savepoint::new(level, pool, batches))
    }

    /// Commits, then hands over what was enqueued. When the result of the commit is unknown, the
    /// relay is only woken: it finds by itself whether there is anything.
    ///
    /// It is an error where nothing was committed, also where the server would answer with success:
    /// a statement has failed before (PostgreSQL), the database has ended the transaction (MySQL,
    /// SQLite), a call of `enqueue`, `savepoint`, `release`, `rollback` of a savepoint or the inbox
    /// was dropped half-way, or a savepoint of the driver's was dropped while it was being set. On
    /// PostgreSQL and MySQL this costs one question more, unless `enqueue` came last.
    pub async fn commit(mut self) -> Result<()> {
        self.refuse_given_up()?;
        if let Err(error) = DB::ready(&mut self.open, self.proven).await {
            return Err(refused(error, "nothing was committed; the transaction was rolled back"));
        }
        // From here on it is unknown until it is known: nobody may wait for the answer.
        self.batches.end = Moment::Unknown;
        match DB::commit(self.open.take()).await {
            Ok(()) => {
                self.batches.end = Moment::Committed;
                Ok(())
            }
            Err(error) if is_rolled_back(&error) => {
                self.batches.end = Moment::RolledBack;
                Err(refused(error, "the database refused the commit; it was rolled back"))
            }
            Err(error) if DB::had_ended(&error) => {
                let message = "the database has ended the transaction before the commit, as after a \
                               deadlock on MySQL or with a full disk on SQLite; begin another one";
                Err(Error::new(ErrorKind::State, message).with_source(error))
            }
            Err(error) => Err(commit_failed(error, "the result of the commit is unknown")),
        }
    }

    /// Refuses when a call was given up half-way that wrote in it, or that ended it. It can only be dropped then.
    pub(crate) fn refuse_given_up(&mut self) -> Result<()> {
        if self.may_be_committed() {
            return Err(ended());
        }
        if !self.batches.is_torn() {
            return Ok(());
        }
        let refusal = "a call that wrote in the transaction, or ended a part of it, failed or was given up \
                       half-way; it was rolled back";
        Err(Error::new(ErrorKind::State, refusal))
    }

    /// Whether the driver has ended the transaction by itself. It counts too few levels after a
    /// savepoint that was given up half-way, and has rolled all of it back, or sent the commit for
    /// the end of another savepoint: it does not tell which.
    pub(crate) fn may_be_committed(&mut self) -> bool {
        self.look_for_its_end();
        self.batches.end == Moment::Unknown
    }

    /// The first event that was written in it, by this outbox: it is there if the transaction was
    /// committed.
    #[cfg(feature = "idempotency")]
    pub(crate) fn first_event_of(&self, outbox: &Outbox<DB>) -> Option<Event> {
        let mut batches = self.batches.written.iter().filter(|(hooks, _)| outbox.has_hooks(hooks));
        let new = |written: &&Written| !written.duplicate;
        batches.find_map(|(_, written)| written.iter().find(new)).map(|one| one.event.clone())
    }

    fn look_for_its_end(&mut self) {
        let Some(transaction) = &mut self.open.transaction else {
            return;
        };
        // Inside of the call that sets a savepoint of ours nothing else is sent: the driver has
        // rolled back.
        if !self.batches.sets_a_savepoint && !DB::in_transaction(transaction) {
            self.batches.end = Moment::Unknown;
        }
    }

    /// Rolls back: nothing was enqueued, whatever the database answers. Except after a savepoint of
    /// the driver's that was given up half-way: the driver can have committed the transaction
    /// before, and this is an error of kind [`State`](ErrorKind::State).
    pub async fn rollback(mut self) -> Result<()> {
        if self.may_be_committed() {
            return Err(ended());
        }
        if self.batches.is_torn() {
            // In the background: the driver can have lost its place in the server's answers.
            return Ok(());
        }
        let transaction = self.open.take();
        DB::rollback(transaction, &self.open.pool).await.map_err(|error| {
            Error::new(ErrorKind::Unavailable, "the rollback failed").with_source(error)
        })
    }
}

/// The error of a transaction that the driver has ended by itself.
pub(crate) fn ended() -> Error {
    Error::new(
        ErrorKind::State,
        "the driver has ended the transaction before, with a savepoint that was given up half-way; parts of \
         it may have been committed, and parts rolled back",
    )
}

/// The error of a transaction that was rolled back instead of committed.
fn refused(error: sqlx::Error, message: &'static str) -> Error {
    let code = error.as_database_error().and_then(DatabaseError::code).map(Cow::into_owned);
    if code.as_deref() == Some(IN_FAILED_TRANSACTION) {
        let message = "a statement has failed in the transaction; it was rolled back";
        return Error::new(ErrorKind::Database, message).with_source(error);
    }
    match code {
        // The application's own code can raise anything. MySQL's general code says nothing.
        Some(code) if code.len() == 5 && !code.starts_with("40") && code != "HY000" => {
            let kind = ErrorKind::of_sqlstate(&code);
            Error::new(kind, message).with_source(error)
        }
        _ => commit_failed(error, message),
    }
}

/// As [`commit_failed`], unless the server has ended the transaction before, and its savepoints with it.
pub(crate) fn savepoint_failed<DB: Dialect>(error: sqlx::Error, message: &'static str) -> Error {
    if !DB::had_ended(&error) {
        return commit_failed(error, message);
    }
    let message =
        "the database has ended the transaction, and its savepoints with it; begin another one";
    Error::new(ErrorKind::State, message).with_source(error)
}

/// A violated constraint stays violated; after anything else trying again may help.
pub(crate) fn commit_failed(error: sqlx::Error, message: &'static str) -> Error {
    let kind = match error.as_database_error().map(DatabaseError::kind) {
        None | Some(sqlx::error::ErrorKind::Other) => ErrorKind::Unavailable,
        Some(_) => ErrorKind::Database,
    };
    Error::new(kind, message).with_source(error)
}

impl<DB: Dialect> Drop for OutboxTransaction<DB> {
    fn drop(&mut self) {
        self.look_for_its_end();
    }
}

/// A transaction that was begun. Dropped before it was taken, it is rolled back.
struct Open<DB: Dialect> {
    /// `None` when its end has begun.
    transaction: Option<Transaction<'static, DB>>,
    pool: Pool<DB>,
}

impl<DB: Dialect> Open<DB> {
    /// For its end.
    fn take(&mut self) -> Transaction<'static, DB> {
        self.transaction.take().expect(ENDED)
    }
}

/// Only what consumes the transaction takes it.
const ENDED: &str = "its end has consumed it";

impl<DB: Dialect> Deref for Open<DB> {
    type Target = Transaction<'static, DB>;

    fn deref(&self) -> &Self::Target {
        self.transaction.as_ref().expect(ENDED)
    }
}

impl<DB: Dialect> DerefMut for Open<DB> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.transaction.as_mut().expect(ENDED)
    }
}

impl<DB: Dialect> Drop for Open<DB> {
    fn drop(&mut self) {
        if let Some(transaction) = self.transaction.take() {
            DB::abandon(transaction, &self.pool);
        }
    }
}

impl<DB: Dialect> Deref for OutboxTransaction<DB> {
    type Target = Transaction<'static, DB>;

    fn deref(&self) -> &Self::Target {
        &self.open
    }
}

impl<DB: Dialect> DerefMut for OutboxTransaction<DB> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.proven = false;
        &mut self.open
    }
}

impl<DB: Dialect> EnqueueIn<DB> for OutboxTransaction<DB> {
    fn connection(&mut self) -> &mut DB::Connection {
        self
    }

    fn pool(&self) -> Option<&Pool<DB>> {
        Some(&self.open.pool)
    }

    fn writing(&mut self, under_way: bool) {
        // What comes may undo what the driver has left of it.
        self.look_for_its_end();
        self.batches.writing(under_way);
    }

    fn ended(&mut self) {
        self.batches.end = Moment::Unknown;
    }

    fn remember(&mut self, written: Vec<Written>, hooks: &Hooks) {
        self.proven = true;
        self.batches.add(written, hooks);
    }
}

/// What was written in a transaction, each batch with the hooks of its outbox. They are told when
/// this is dropped: a transaction that is given up somewhere has an end as well.
pub(crate) struct Batches {
    written: Vec<(Hooks, Vec<Written>)>,
    pub(crate) end: Moment,
    /// A savepoint is being set, or was dropped or has failed meanwhile.
    sets_a_savepoint: bool,
    /// A call that writes is under way, or was dropped half-way.
    under_way: bool,
    /// One was dropped half-way, and others came after it.
    torn: bool,
}

impl Default for Batches {
    fn default() -> Self {
        Self {
            written: Vec::new(),
            end: Moment::RolledBack,
            sets_a_savepoint: false,
            under_way: false,
            torn: false,
        }
    }
}

impl Batches {
    /// A call begins to write, or has come to its end.
    pub(crate) fn writing(&mut self, under_way: bool) {
        self.torn |= self.under_way && under_way;
        self.under_way = under_way;
    }

    /// Whether it is not known what was written.
    pub(crate) fn is_torn(&self) -> bool {
        self.torn || self.under_way
    }

    pub(crate) fn add(&mut self, mut written: Vec<Written>, hooks: &Hooks) {
        // A bulk load keeps its payloads in memory only for an application that wants them.
        if !hooks.has_application_hooks() {
            let bare = |one: Written| Written { event: one.event.without_payload(), ..one };
            written = written.into_iter().map(bare).collect();
        }
        self.written.push((hooks.clone(), written));
    }

    /// Those of a savepoint that was released: they end as the transaction does.
    pub(crate) fn take_over(&mut self, released: &mut Self) {
        self.written.append(&mut released.written);
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        for (hooks, written) in take(&mut self.written) {
            hooks.after(self.end, &written);
        }
    }
}
