//! Names that nobody else uses.

use posthaste_core::TableName;
use uuid::Uuid;

/// An outbox name that no other test has: `prefix_` and 16 random characters.
pub(crate) fn unique(prefix: &str) -> TableName {
    // The first half of a UUID v7 is mostly time; the second half is random.
    let random = Uuid::now_v7().as_u128() as u64;
    format!("{prefix}_{random:016x}")
        .parse()
        .unwrap_or_else(|error| panic!("prefix {prefix:?} makes no table name: {error}"))
}
