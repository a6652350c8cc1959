//! What the checks of all databases share: what must be there, as the migrations say it.

use posthaste_core::{
    Error, ErrorKind, Result,
    store::{Finding, Level},
};

#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::failure::grants_file;
use crate::{failure::is_denied, version::OtherBuild};

/// A table and what an account must be allowed to do with it: a privilege, and the columns that it must
/// cover. With none it is enough to have the privilege for the table or any column of it.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) type Need = (&'static str, &'static [(&'static str, &'static [&'static str])]);

/// What a relay does, housekeeping with it.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) const RELAY_NEEDS: [Need; 9] = [
    (
        "{events}",
        &[
            ("select", &[]),
            (
                "update",
                &[
                    "attempts",
                    "not_before",
                    "wait",
                    "lane",
                    "destination",
                    "locked_by",
                    "locked_until",
                    "last_error",
                    "dead_at",
                    "sent_at",
                ],
            ),
            ("delete", &[]),
        ],
    ),
    (
        "{shards}",
        &[
            ("select", &[]),
            ("update", &["locked_by", "locked_until", "epoch", "mark", "mark_context"]),
        ],
    ),
    ("{relays}", &[("select", &[]), ("insert", &[]), ("update", &[]), ("delete", &[])]),
    ("{attempts}", &[("select", &[]), ("insert", &[]), ("delete", &[])]),
    ("{life}", &[("select", &[]), ("insert", &[]), ("update", &[])]),
    ("{controls}", &[("select", &[])]),
    ("{meta}", &[("select", &[]), ("update", &["purge_position"])]),
    ("{inbox}", &[("select", &[]), ("delete", &[])]),
    ("{idempotency}", &[("select", &["scope", "idempotency_key", "expires_at"]), ("delete", &[])]),
];

/// What an operator does on top of it.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) const OPERATOR_NEEDS: [Need; 3] = [
    ("{events}", &[("update", &["replay", "discarded_at"])]),
    ("{controls}", &[("insert", &["kind", "name", "value", "set_by"]), ("delete", &[])]),
    (
        "{audit}",
        &[
            ("select", &[]),
            ("insert", &["changed_by", "action", "subject"]),
            ("update", &["ended_at", "affected", "error"]),
        ],
    ),
];

/// A privilege as `grant` takes it.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn grantable(privilege: &str, columns: &[&str]) -> String {
    match columns {
        [] => privilege.to_owned(),
        columns => format!("{privilege} ({})", columns.join(", ")),
    }
}

/// For how long a transaction may stay open before it is worth a warning.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) const LONG_TRANSACTION: std::time::Duration = std::time::Duration::from_mins(5);

/// What the version check found; `false` when there is nothing more to check. The statements drop the
/// outbox.
pub(crate) fn schema(checked: Result<u16>, drops: &[String]) -> Result<(Finding, bool)> {
    match checked {
        Ok(shards) => {
            let text = format!("the tables are there in the right version, with {shards} shards");
            Ok((Finding::ok("schema", text), true))
        }
        Err(error) if error.kind() == ErrorKind::Schema => {
            let finding = Finding::new("schema", Level::Problem, error.to_string());
            let source = std::error::Error::source(&error);
            let mend = if source.is_some_and(<dyn std::error::Error>::is::<OtherBuild>) {
                format!("once nothing waits: {}; then posthaste migrate", drops.join("; "))
            } else {
                "posthaste migrate".to_owned()
            };
            Ok((finding.mended_by(mend), false))
        }
        // What it lacks is the next check's to say.
        Err(error) if lacks_privilege(&error) => {
            let text = "the account may not read the outbox's tables".to_owned();
            Ok((Finding::new("schema", Level::Problem, text), true))
        }
        Err(error) => Err(error),
    }
}

fn lacks_privilege(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    source.and_then(|source| source.downcast_ref()).is_some_and(is_denied)
}

/// A check that could not be made is a finding too.
pub(crate) fn made(check: &str, outcome: Result<Finding>) -> Finding {
    outcome.unwrap_or_else(|error| unknown(check, &error))
}

fn unknown(check: &str, error: &Error) -> Finding {
    // The error would send its reader to the doctor.
    let why = if lacks_privilege(error) {
        "the account may not look; see `privileges`".to_owned()
    } else {
        error.to_string()
    };
    Finding::new(check, Level::Note, format!("it could not be checked: {why}"))
}

/// The statements of a migration, without comments.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn statements(migration: &str) -> Vec<String> {
    let code: Vec<&str> =
        migration.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
    code.join("\n").split(';').map(|statement| statement.trim().to_owned()).collect()
}

/// The name of the index that a statement makes, if it makes one.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn index_name(statement: &str) -> Option<&str> {
    let rest = statement.strip_prefix("create ")?;
    let rest = rest.strip_prefix("unique ").unwrap_or(rest);
    rest.strip_prefix("index if not exists ")?.split_whitespace().next()
}

/// What is said about indexes: those that are missing, each with the statement that makes it.
pub(crate) fn indexes(missing: &[(String, String)]) -> Finding {
    if missing.is_empty() {
        return Finding::ok("indexes", "every index is there");
    }
    let names: Vec<&str> = missing.iter().map(|(name, _)| name.as_str()).collect();
    let statements: Vec<&str> = missing.iter().map(|(_, statement)| statement.as_str()).collect();
    let text = format!(
        "missing or unfinished: {}; reads that need them walk over the whole table",
        names.join(", ")
    );
    Finding::new("indexes", Level::Problem, text).mended_by(statements.join("; "))
}

/// How a connection to a server is protected on its way.
#[cfg(any(feature = "postgres", feature = "mysql"))]
#[derive(Debug, Clone, Copy)]
pub(crate) enum Protection {
    None,
    /// Against those who listen, not against those who answer in the server's place.
    Encrypted,
    /// A certificate of the right authority, for whatever name.
    Authority,
    Verified,
}

/// What is said about TLS. The remedy is how the URL asks for all of it.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn tls(host: &str, socket: bool, protection: Protection, remedy: &str) -> Finding {
    let local = socket
        || host.starts_with('/')
        || host.eq_ignore_ascii_case("localhost")
        || host
            .trim_matches(['[', ']'])
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback());
    let warn = |text: &str| Finding::new("tls", Level::Warning, text).mended_by(remedy);
    match protection {
        Protection::Verified => {
            Finding::ok("tls", "the connection is encrypted, and the server's name is verified")
        }
        _ if local => Finding::ok("tls", "the connection does not leave this machine"),
        Protection::None => warn(
            "TLS: none: events can be read and changed on their way from the database, and who answers \
             is not known",
        ),
        Protection::Encrypted => warn(
            "TLS: not verified: the connection is encrypted, and anybody can answer in the \
             database's place",
        ),
        Protection::Authority => warn(
            "TLS: the server's certificate is verified, and not its name: whoever has another \
             certificate of the authority can answer in the database's place",
        ),
    }
}

/// What is said about privileges: those that are missing, as `grant` writes them.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn privileges<DB: sqlx::Database>(
    relay: &[String],
    operator: &[String],
    account: &str,
) -> Finding {
    // All of it can be pasted into a prompt.
    let grants = |missing: &[String]| {
        let grants: Vec<String> =
            missing.iter().map(|what| format!("grant {what} to {account}")).collect();
        format!("{} -- or all rights at once: {}", grants.join("; "), grants_file::<DB>())
    };
    match (relay, operator) {
        ([], []) => {
            let text = format!("{account} may do all that a relay and an operator do");
            Finding::ok("privileges", text)
        }
        ([], missing) => {
            let text = format!(
                "{account} may do all that a relay does, but not pause or change events: it lacks {}",
                missing.join(", ")
            );
            Finding::new("privileges", Level::Note, text).mended_by(grants(missing))
        }
        (missing, _) => {
            let text = format!("{account} cannot relay: it lacks {}", missing.join(", "));
            Finding::new("privileges", Level::Problem, text).mended_by(grants(missing))
        }
    }
}

#[cfg(all(test, any(feature = "postgres", feature = "mysql")))]
mod tls_tests {
    use super::*;

    #[test]
    fn a_connection_that_leaves_the_machine_is_to_be_encrypted_and_verified() {
        use Protection::{Authority, Encrypted, None, Verified};

        let of = |host, socket, protection| tls(host, socket, protection, "the remedy");
        for (host, socket) in [
            ("localhost", false),
            ("127.0.0.1", false),
            ("::1", false),
            ("[::1]", false),
            ("/run/postgresql", false),
            ("db.internal", true),
        ] {
            assert_eq!(of(host, socket, None).level, Level::Ok, "{host}");
        }
        for host in ["db.internal", "10.0.0.7", "localhost.example"] {
            for protection in [None, Encrypted, Authority] {
                let finding = of(host, false, protection);
                assert_eq!(finding.level, Level::Warning, "{host}: {}", finding.text);
                assert_eq!(finding.mend.as_deref(), Some("the remedy"));
            }
            assert_eq!(of(host, false, Verified).level, Level::Ok, "{host}");
        }
        assert!(of("db.internal", false, None).text.starts_with("TLS: none"));
        assert!(of("db.internal", false, Encrypted).text.starts_with("TLS: not verified"));
    }
}

#[cfg(all(test, any(feature = "postgres", feature = "sqlite")))]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_known_from_the_migrations() {
        let sql = "-- a; b\ncreate table if not exists {x} (a int);\n\n-- c\n\
                   create unique index if not exists {bare}_a_idx\n    on {x} (a);";
        let found = statements(sql);
        let names: Vec<&str> = found.iter().filter_map(|sql| index_name(sql)).collect();
        assert_eq!(names, ["{bare}_a_idx"]);
    }
}
