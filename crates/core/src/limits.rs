//! How long each field of an event may be. Lengths of names are counted in characters, the
//! payload in bytes, as the databases count them.

use jiff::Timestamp;

use crate::{Error, Result};

/// Longest event type.
pub const EVENT_TYPE: usize = 128;
/// Longest aggregate type.
pub const AGGREGATE_TYPE: usize = 100;
/// Longest aggregate id.
pub const AGGREGATE_ID: usize = 255;
/// Longest tenant.
pub const TENANT: usize = 100;
/// Longest topic.
pub const TOPIC: usize = 255;
/// Longest routing key.
pub const ROUTING_KEY: usize = 100;
/// Longest schema id.
pub const SCHEMA_ID: usize = 128;
/// Longest ordering key that an application sets.
pub const ORDERING_KEY: usize = 255;
/// Longest content type.
pub const CONTENT_TYPE: usize = 100;
/// Most bytes of all headers together, names and values.
pub const HEADERS: usize = 128 * 1024;
/// Longest error text that is kept with an event.
pub const ERROR_TEXT: usize = 4_000;

/// The limits that an outbox can set for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest payload in bytes: 1 MiB unless set.
    pub payload: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { payload: 1024 * 1024 }
    }
}

/// Refuses a text that is empty, has more characters than `limit`, or holds U+0000.
pub(crate) fn check_text(field: &'static str, text: &str, limit: usize) -> Result<()> {
    if text.is_empty() {
        return Err(Error::invalid(format!("{field} is empty; leave it out or give it a value")));
    }
    let length = text.chars().count();
    if length > limit {
        return Err(Error::too_long(field, length, limit));
    }
    // PostgreSQL takes no such text, and its refusal fails the whole transaction.
    if text.contains('\0') {
        return Err(Error::invalid(format!("{field} must not contain the character U+0000")));
    }
    Ok(())
}

/// Refuses a time outside of the years 1 to 9999: not every database has others.
pub(crate) fn check_time(field: &'static str, time: Timestamp) -> Result<()> {
    /// The first second of year 1, and the first one after year 9999.
    const SECONDS: std::ops::Range<i64> = -62_135_596_800..253_402_300_800;

    if SECONDS.contains(&time.as_second()) {
        return Ok(());
    }
    Err(Error::invalid(format!("{field} is {time}; it takes the years 1 to 9999")))
}

/// Cuts an error text at [`ERROR_TEXT`] characters.
pub fn cut_error(text: &str) -> &str {
    cut(text, ERROR_TEXT)
}

/// Cuts a text at so many characters.
pub fn cut(text: &str, limit: usize) -> &str {
    text.char_indices().nth(limit).map_or(text, |(end, _)| &text[..end])
}
