//! Transactions of the application's, which the server can end by itself.
//!
//! MySQL resolves a deadlock by undoing one of the transactions whole, and takes the next statement on
//! that connection for one that commits by itself. So does a lock that was not had in time, where
//! `innodb_rollback_on_timeout` is set. A statement such as `create table` commits what is open. The
//! driver notices none of it. Savepoints do: they end with their transaction, and outside of one none is
//! set.
//!
//! The driver loses its place in the answers when a statement is dropped while the server prepares
//! it: it takes the description of that statement's placeholders and columns for what the next one
//! answers. Then it panics, waits without end for what nobody sends, or takes one answer for
//! another's. So whatever runs after a statement of the application's, and before the end of its
//! transaction, asks for a token that was never asked for before.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures_util::{FutureExt, TryStreamExt};
use posthaste_core::{Error, ErrorKind, Result};
use sqlx::{
    AssertSqlSafe, Connection, Either, Executor, MySql, MySqlConnection, MySqlPool, Row,
    SqlSafeStr, Transaction,
};
use tokio::time::timeout;
use uuid::Uuid;

use super::number;
use crate::{
    dialect::{begin_undisturbed, count_up},
    failure::failed,
};

/// There is no savepoint of this name.
const NO_SAVEPOINT: u16 = 1305;

pub(super) async fn begin(pool: &MySqlPool) -> sqlx::Result<Transaction<'static, MySql>> {
    const BEGIN: &str = "start transaction; savepoint posthaste_begun";

    begin_undisturbed(pool, Some(BEGIN.into_sql_str())).await
}

/// Commits a transaction of [`begin`].
pub(super) async fn commit(mut transaction: Transaction<'static, MySql>) -> sqlx::Result<()> {
    // One request: where the first of the two fails, the server does not look at the second.
    const COMMIT: &str = "release savepoint posthaste_begun; commit";

    transaction.execute(COMMIT).await?;
    // The driver still counts it as open. Its rollback goes out when the connection is on its way back
    // to the pool, and finds nothing: that keeps nobody waiting, as another round trip here would.
    Ok(())
}

/// Whether a savepoint is gone, as all are when the transaction has ended before.
pub(super) fn had_ended(error: &sqlx::Error) -> bool {
    number(error) == NO_SAVEPOINT
}

/// Before the commit of a transaction of [`begin`]: refuses a connection whose answers are not in
/// order. `proven`: the last statement was one of ours, and has succeeded.
pub(super) async fn ready(connection: &mut MySqlConnection, proven: bool) -> sqlx::Result<()> {
    if proven {
        return Ok(());
    }
    // A panic of the driver's ends the process there.
    if cfg!(panic = "abort") && !is_in_step(connection).await {
        return Err(out_of_step());
    }
    match patiently(answers(connection, "", 0)).await {
        Some(Ok(true)) => Ok(()),
        Some(Ok(false)) | None => Err(out_of_step()),
        Some(Err(error)) => Err(error),
    }
}

/// Sets the savepoint `posthaste_enqueue`, which is there only inside of a transaction. Outside of
/// one the connection is closed: a driver's own commit on it would be answered with success.
/// Refuses a connection whose answers are not in order, too.
pub(super) async fn still_open(connection: &mut MySqlConnection) -> Result<()> {
    const SET: &str = "savepoint posthaste_enqueue; rollback to savepoint posthaste_enqueue; ";

    let lost = match patiently(answers(connection, SET, 2)).await {
        Some(Ok(true)) => return Ok(()),
        Some(Ok(false)) | None => out_of_step(),
        Some(Err(error)) if had_ended(&error) => {
            close(connection).await;
            return Err(ended().with_source(error));
        }
        Some(Err(error @ (sqlx::Error::Database(_) | sqlx::Error::Io(_)))) => {
            return Err(failed("looking after the transaction")(error));
        }
        // What it read is no answer.
        Some(Err(error)) => error,
    };
    // Not of kind `State`: the transaction is there, and the driver may find its place again.
    Err(Error::new(
        ErrorKind::Unavailable,
        "the connection does not answer in order, as after a statement that was given up half-way; \
         roll the transaction back and begin another one",
    )
    .with_source(lost))
}

/// The error of a statement in the caller's transaction, or that the server has ended the transaction with it.
pub(super) async fn failed_in(connection: &mut MySqlConnection, failure: Error) -> Error {
    match still_open(connection).await {
        Err(error) if error.kind() == ErrorKind::State => ended().with_source(failure),
        _ => failure,
    }
}

async fn close(connection: &mut MySqlConnection) {
    // Its answer is an error at any rate.
    let _ = patiently(connection.execute("kill connection_id()")).await;
}

/// Undoes the whole transaction and closes the connection, on which the driver counts so many levels at least.
pub(super) async fn break_off(connection: &mut MySqlConnection, depth: usize) {
    if !is_in_step(connection).await {
        // Nothing gets through to the server. Whoever has the transaction drops it.
        return;
    }
    // Only after a rollback that has worked: whatever begins a transaction commits the one before it. And
    // the driver takes a savepoint for set only inside of a transaction.
    if roll_back(connection).await && connection.execute("start transaction").await.is_ok() {
        let _ = count_up::<MySql>(connection, depth).await;
    }
    close(connection).await;
}

/// How often a statement goes that the driver may answer with the error of an earlier one.
const TRIES: usize = 10;

/// Whether the server has rolled back. The driver gives a statement the error of an earlier one whose answer
/// nobody waited for, and does not send it: then it goes again.
async fn roll_back(connection: &mut MySqlConnection) -> bool {
    for _ in 0..TRIES {
        match connection.execute("rollback").await {
            Ok(_) => return true,
            Err(sqlx::Error::Database(_)) => {}
            Err(_) => return false,
        }
    }
    false
}

/// How long a connection may take to say that it is fit.
const PATIENCE: Duration = Duration::from_secs(5);

/// Rolls back, on a connection that has its answers in order; another one is closed: the pool would
/// wait for it, or lend it.
pub(super) async fn abandon(mut transaction: Transaction<'static, MySql>, pool: MySqlPool) {
    if is_in_step(&mut transaction).await {
        return drop(transaction);
    }
    replace(transaction, pool).await;
}

/// Rolls back as [`abandon`] does, for who waits for it: a statement of the application's can have been
/// dropped before. In a task of its own, so that it is finished even if the caller is dropped meanwhile.
pub(super) async fn rollback(
    mut transaction: Transaction<'static, MySql>,
    pool: MySqlPool,
) -> sqlx::Result<()> {
    let rolled_back = tokio::spawn(async move {
        if is_in_step(&mut transaction).await {
            // Without a limit: what was much takes long to undo.
            return transaction.rollback().await;
        }
        let lost = if replace(transaction, pool).await {
            "the connection did not answer in order; it was closed, which rolls back"
        } else {
            "the connection did not answer in order, and no other could be opened in its place; the \
             server rolls back when it is closed"
        };
        Err(sqlx::Error::Protocol(lost.to_owned()))
    });
    rolled_back.await.map_err(|_| sqlx::Error::WorkerCrashed)?
}

/// Closes a connection that is not fit, and has the server roll back. `false`: no other could be opened, and it
/// went back to the pool as it is.
async fn replace(mut transaction: Transaction<'static, MySql>, pool: MySqlPool) -> bool {
    // A pool closes only what is lent by itself. So it gets back another connection, which is closed.
    let other = timeout(PATIENCE, MySqlConnection::connect_with(&pool.connect_options())).await;
    let Ok(Ok(mut other)) = other else {
        tracing::warn!("a connection that was given up half-way could not be replaced");
        drop(transaction);
        return false;
    };
    let _ = other.execute("kill connection_id()").await;
    std::mem::swap(&mut *transaction, &mut other);
    // Here the connection is closed at which the driver had lost its place, and the server rolls back.
    drop(other);
    true
}

/// Whether a connection has its answers in order.
async fn is_in_step(connection: &mut MySqlConnection) -> bool {
    patiently(async {
        for _ in 0..TRIES {
            // First a ping: what is not its answer is an error to the driver, and to a query a
            // reason to panic.
            match connection.ping().await {
                Ok(()) => return answers(connection, "", 0).await.unwrap_or(false),
                // Of a statement whose answer nobody waited for.
                Err(sqlx::Error::Database(_)) => {}
                Err(_) => return false,
            }
        }
        false
    })
    .await
    .unwrap_or(false)
}

/// Whether these statements, which give no rows, and the question for a token that was never asked
/// for before have the answers that belong to them.
async fn answers(
    connection: &mut MySqlConnection,
    statements: &str,
    number: usize,
) -> sqlx::Result<bool> {
    let token = Uuid::now_v7().to_string();
    let mut answers = connection.fetch_many(AssertSqlSafe(format!("{statements}select '{token}'")));
    let mut place = 0;
    while let Some(answer) = answers.try_next().await? {
        let belongs = match answer {
            Either::Left(_) => place != number,
            Either::Right(row) => {
                place == number && row.try_get::<String, _>(0).is_ok_and(|answer| answer == token)
            }
        };
        if !belongs {
            return Ok(false);
        }
        place += 1;
    }
    // Each statement's, the row, and the end of the rows.
    Ok(place == number + 2)
}

/// The outcome of what is asked on a connection that may have lost its place in the answers: `None`
/// where the driver panics over what it reads, or waits for too long.
async fn patiently<T>(asks: impl Future<Output = T>) -> Option<T> {
    timeout(PATIENCE, AssertUnwindSafe(asks).catch_unwind()).await.ok()?.ok()
}

fn out_of_step() -> sqlx::Error {
    sqlx::Error::Protocol("the connection does not answer in order".to_owned())
}

/// Undoes what was done since [`still_open`], after this failure. Says instead when the server has ended the
/// whole transaction with it.
pub(super) async fn undo(connection: &mut MySqlConnection, failure: Error) -> Error {
    match connection.execute("rollback to savepoint posthaste_enqueue").await {
        Err(error) if had_ended(&error) => {
            close(connection).await;
            ended().with_source(failure)
        }
        _ => failure,
    }
}

fn ended() -> Error {
    Error::new(
        ErrorKind::State,
        "the server has ended the transaction and undone it, as it does with one of two that wait for \
         each other; begin another one",
    )
}
