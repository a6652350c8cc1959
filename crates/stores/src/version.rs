//! Whether the tables of an outbox fit this binary, in the same words on every database.

use std::fmt;

use posthaste_core::{Error, ErrorKind, Key, Result};

use crate::Tables;

/// A version of the tables, and the statements that lead to it from the one before.
pub(crate) type Migration = (i32, &'static str);

/// What the row in `{meta}` says about the tables.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) version: i32,
    pub(crate) shards: u16,
    /// `None` where the column is missing: builds from before it made such tables.
    pub(crate) checksum: Option<String>,
}

/// The tables are those of another build: their checksum differs.
#[derive(Debug)]
pub(crate) struct OtherBuild {
    found: Option<String>,
    known: String,
}

impl fmt::Display for OtherBuild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = self.found.as_deref().unwrap_or("none");
        write!(f, "the checksum of its tables is {found}, this build makes {}", self.known)
    }
}

impl std::error::Error for OtherBuild {}

/// The checksum of the tables of this version: of the statements up to it, comments and the breaks of lines
/// aside.
pub(crate) fn checksum(migrations: &[Migration], version: i32) -> String {
    let mut text = String::new();
    for (_, statements) in migrations.iter().filter(|(number, _)| *number <= version) {
        for line in statements.lines().map(str::trim).filter(|line| !line.starts_with("--")) {
            text.push_str(line);
            text.push(' ');
        }
    }
    format!("{:016x}", Key::of(&text.split_whitespace().collect::<Vec<_>>().join(" ")).0)
}

/// Refuses tables that this binary cannot bring to its own version: a newer binary has made them, or a
/// build from before the first release whose tables were others.
pub(crate) fn refuse_unknown(
    tables: &Tables,
    found: &Found,
    migrations: &[Migration],
) -> Result<()> {
    let (version, latest) = (found.version, latest(migrations));
    let name = tables.name();
    if version > latest && found.checksum.is_some() {
        return Err(Error::new(
            ErrorKind::Schema,
            format!(
                "outbox {name} is at version {version}, newer than this binary knows ({latest}); use a \
                 newer posthaste"
            ),
        ));
    }
    // A first migration that was interrupted has left version 0.
    let known = checksum(migrations, version.max(1));
    if found.checksum.as_ref() == Some(&known) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Schema,
        format!(
            "outbox {name} was made by another build of posthaste (schema version {version}), whose tables \
             this one does not take over: let that build deliver what waits, drop the outbox's tables \
             and run `posthaste migrate`"
        ),
    )
    .with_source(OtherBuild { found: found.checksum.clone(), known }))
}

/// Refuses tables of any other version than the latest that this binary knows.
pub(crate) fn refuse_other(tables: &Tables, found: &Found, migrations: &[Migration]) -> Result<()> {
    refuse_unknown(tables, found, migrations)?;
    let (version, latest) = (found.version, latest(migrations));
    if version == latest {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Schema,
        format!(
            "outbox {} is at version {version}, this binary needs {latest}; run `posthaste migrate`",
            tables.name()
        ),
    ))
}

fn latest(migrations: &[Migration]) -> i32 {
    migrations.last().map_or(0, |(number, _)| *number)
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

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Migration = (1, "-- One.\ncreate table a (\n    b int\n);\n");

    fn found(version: i32, checksum: Option<String>) -> Found {
        Found { version, shards: 8, checksum }
    }

    #[test]
    fn a_checksum_is_that_of_the_statements_and_not_of_their_looks() {
        let second = (2, "create table d (e int);");
        let comment = (1, "-- Another.\ncreate table a (\nb int\n);");
        assert_eq!(checksum(&[FIRST], 1), checksum(&[comment], 1));
        assert_ne!(checksum(&[FIRST], 1), checksum(&[(1, "create table a (c int);")], 1));
        assert_ne!(checksum(&[FIRST, second], 2), checksum(&[FIRST], 1));
        assert_eq!(checksum(&[FIRST, second], 1), checksum(&[FIRST], 1));
    }

    #[test]
    fn tables_of_another_build_are_refused_whatever_their_version() {
        let tables = Tables::new("t".parse().unwrap());
        let known = checksum(&[FIRST], 1);
        for (version, checksum) in [(6, None), (1, None), (0, None), (1, Some("0".repeat(16)))] {
            let error = refuse_unknown(&tables, &found(version, checksum), &[FIRST]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Schema);
            assert!(error.to_string().contains("another build"), "{error}");
        }
        for version in [0, 1] {
            refuse_unknown(&tables, &found(version, Some(known.clone())), &[FIRST]).unwrap();
        }
        let newer = refuse_unknown(&tables, &found(2, Some(known)), &[FIRST]).unwrap_err();
        assert!(newer.to_string().contains("newer"), "{newer}");
    }
}
