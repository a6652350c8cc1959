//! Errors of the driver as errors of ours.

use posthaste_core::{Error, ErrorKind};
use sqlx::error::DatabaseError;
#[cfg(feature = "mysql")]
use sqlx::mysql::MySqlDatabaseError;

/// Says what was being done, and whether trying again may help. The driver's message is the
/// source; it can quote values, so it is not part of our own message.
pub(crate) fn failed(doing: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    move |error| {
        let kind = kind_of(&error);
        let message = match &error {
            denied if is_denied(denied) => format!(
                "{doing} failed: the account may not do this; `posthaste doctor` names what it lacks, with \
                 the grants"
            ),
            sqlx::Error::Database(database) => match database.code() {
                Some(code) if ["26000", "42P05"].contains(&code.as_ref()) => format!(
                    "{doing} failed: a prepared statement is not where it was made, as through a \
                     transaction pooler; connect directly, or in session mode"
                ),
                Some(code) => format!("{doing} failed: the database answered {code}"),
                None => format!("{doing} failed: the database refused"),
            },
            sqlx::Error::PoolTimedOut => format!("{doing} failed: no connection became free"),
            sqlx::Error::Io(io) => format!("{doing} failed: {}", io.kind()),
            _ => format!("{doing} failed"),
        };
        Error::new(kind, message).with_source(error)
    }
}

/// As [`failed`], where a connection is made. An account that is kept out cannot be told what it lacks by the
/// doctor, who needs the same connection.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn not_connected<DB: sqlx::Database>(
    doing: &'static str,
) -> impl FnOnce(sqlx::Error) -> Error {
    let needs = match DB::NAME {
        // The server does not tell the two apart to those who have no right at all.
        "MySQL" => "a right to something in it, if there is a database of this name",
        _ => "`grant connect on database`",
    };
    move |error| {
        if !is_denied(&error) {
            return failed(doing)(error);
        }
        let message = format!(
            "{doing} failed: the account may not use this database; it needs {needs} ({} has all rights)",
            grants_file::<DB>()
        );
        Error::new(kind_of(&error), message).with_source(error)
    }
}

/// The file of the repository that grants what writers, relays and operators need.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn grants_file<DB: sqlx::Database>() -> &'static str {
    match DB::NAME {
        "MySQL" => "deploy/mysql/grants.sql",
        _ => "deploy/postgres/roles.sql",
    }
}

/// Whether the account lacks a privilege.
pub(crate) fn is_denied(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(database) = error else {
        return false;
    };
    #[cfg(feature = "mysql")]
    if let Some(error) = database.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
        return matches!(error.number(), 1044 | 1142 | 1143);
    }
    database.code().is_some_and(|code| code == "42501")
}

fn kind_of(error: &sqlx::Error) -> ErrorKind {
    #[cfg(feature = "mysql")]
    if crate::mysql::took_too_long(error) {
        return ErrorKind::TimedOut;
    }
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::Protocol(_) => ErrorKind::Unavailable,
        sqlx::Error::Database(database) => of_database(database.as_ref()),
        _ => ErrorKind::Database,
    }
}

fn of_database(error: &dyn DatabaseError) -> ErrorKind {
    #[cfg(feature = "mysql")]
    if let Some(error) = error.try_downcast_ref::<MySqlDatabaseError>() {
        match error.number() {
            // Larger than `max_allowed_packet`. The server closes the connection, and calls it a failure
            // of that.
            1153 => return ErrorKind::Invalid,
            // Columns without a value, and values that do not fit, in the class of what passes.
            1364 | 1366 => return ErrorKind::Database,
            _ => {}
        }
    }
    match error.code().as_deref() {
        // MySQL uses HY000 for every error without a class of its own. Most of these pass: a deadlock, a lock wait, too
        // many connections, a shutdown, a full disk; and a server that is read-only (1290, 1836), as while
        // another one takes over. Another try is in vain at worst, and giving up would lose the work.
        // SQLite: busy and locked, with their extended codes; a disk that fails or is full.
        Some("HY000" | "5" | "6" | "261" | "262" | "517" | "773" | "10" | "13" | "778") => {
            ErrorKind::Unavailable
        }
        Some(code) => ErrorKind::of_sqlstate(code),
        None => ErrorKind::Database,
    }
}
