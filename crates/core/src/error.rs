use std::fmt;

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// What went wrong, and through [`kind`](Error::kind) what the caller can do about it.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Source>,
}

/// The caller's question: try again, mend the input, or stop?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The input is wrong and stays wrong: mend it.
    Invalid,
    /// The same event id is there already with another tenant, type or key.
    Conflict,
    /// The application's own code refused it.
    Refused,
    /// What was asked for is not there.
    NotFound,
    /// The event's state does not allow this step.
    IllegalTransition,
    /// The database does not hold what this version expects: run the migration, or a newer binary.
    Schema,
    /// The database could not be reached, or refused for now: trying again may help.
    Unavailable,
    /// There was no answer in time, or a lock did not become free: whether it was done is unknown. Trying
    /// again may help, with less.
    TimedOut,
    /// The database refused the statement for good.
    Database,
    /// The relay was asked for something that its state does not allow, such as a second start.
    State,
    /// The server behind the address is another one than before, or has lost what it had committed:
    /// nothing that was read from it counts any more. Take the shards anew.
    Moved,
}

impl ErrorKind {
    /// What this SQLSTATE of PostgreSQL means to the caller: connection, resources, shutdown,
    /// serialisation, deadlock and timeouts pass; anything else stays.
    pub fn of_sqlstate(code: &str) -> Self {
        // Cancelled, as a rule by `statement_timeout`; a lock that did not become free in time.
        if matches!(code, "57014" | "55P03") {
            return Self::TimedOut;
        }
        let passes = ["08", "53", "57P"].iter().any(|class| code.starts_with(class))
            || matches!(code, "40001" | "40P01");
        if passes { Self::Unavailable } else { Self::Database }
    }
}

impl Error {
    /// An error of this kind with this message.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// The input is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// A field is longer than it may be.
    pub(crate) fn too_long(field: &str, length: usize, limit: usize) -> Self {
        Self::invalid(format!("{field} is {length} long, the limit is {limit}"))
    }

    /// Keeps the error that caused this one.
    pub fn with_source(mut self, source: impl Into<Source>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What the caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, ErrorKind::Unavailable | ErrorKind::TimedOut)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
