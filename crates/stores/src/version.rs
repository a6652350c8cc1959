//! Whether the tables of an outbox fit this binary, in the same words on every database.

use posthaste_core::{Error, ErrorKind, Result};

use crate::Tables;

/// Refuses tables that a newer binary has made.
pub(crate) fn refuse_newer(tables: &Tables, version: i32, known: i32) -> Result<()> {
    if version <= known {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Schema,
        format!(
            "outbox {} is at version {version}, newer than this binary knows ({known}); use a newer \
             posthaste",
            tables.name()
        ),
    ))
}

/// Refuses tables of any other version than the one that this binary knows.
pub(crate) fn refuse_other(tables: &Tables, version: i32, known: i32) -> Result<()> {
    refuse_newer(tables, version, known)?;
    if version == known {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Schema,
        format!(
            "outbox {} is at version {version}, this binary needs {known}; run `posthaste migrate`",
            tables.name()
        ),
    ))
}

/// There are no tables, or others of that name.
pub(crate) fn absent(tables: &Tables) -> Error {
    Error::new(
        ErrorKind::Schema,
        format!(
            "outbox {} is not there or has no migration; run `posthaste migrate --url …`",
            tables.name()
        ),
    )
}

/// How many shards a new outbox on a server gets.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn checked_shards(shards: Option<u16>) -> Result<u16> {
    const DEFAULT: u16 = 64;
    const MOST: u16 = 1024;

    match shards {
        None => Ok(DEFAULT),
        Some(count @ 1..=MOST) => Ok(count),
        Some(count) => {
            Err(Error::invalid(format!("shards is {count}; use a number from 1 to {MOST}")))
        }
    }
}

/// Refuses another number of shards than the outbox was made with.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn refuse_other_count(tables: &Tables, count: u16, asked: Option<u16>) -> Result<()> {
    match asked {
        Some(asked) if asked != count => Err(Error::invalid(format!(
            "outbox {} was made with {count} shards, not {asked}; the number is fixed, leave it out \
             or make a new outbox",
            tables.name()
        ))),
        _ => Ok(()),
    }
}
