//! Transactions of the application's of which the driver has lost count.

use sqlx::{Executor, PgConnection, Postgres};

use crate::dialect::count_up;

/// Undoes the whole transaction and closes the connection, on which the driver counts so many levels at least.
pub(super) async fn break_off(connection: &mut PgConnection, depth: usize) {
    // A savepoint is set only inside of a transaction.
    if roll_back(connection).await {
        // The role that the application has taken may not be allowed to end the login role's session.
        let _ = connection.execute("set role none").await;
        if connection.execute("begin").await.is_ok() {
            let _ = count_up::<Postgres>(connection, depth).await;
        }
    }
    // Its answer is an error at any rate.
    let _ = connection.execute("select pg_terminate_backend(pg_backend_pid())").await;
}

/// Whether the server has rolled back. The driver gives a statement the error of an earlier one whose answer
/// nobody waited for, and does not send it: then it goes again.
async fn roll_back(connection: &mut PgConnection) -> bool {
    const TRIES: usize = 10;

    for _ in 0..TRIES {
        match connection.execute("rollback").await {
            Ok(_) => return true,
            Err(sqlx::Error::Database(_)) => {}
            Err(_) => return false,
        }
    }
    false
}
