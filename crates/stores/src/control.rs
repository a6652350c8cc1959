//! The table `controls` as a relay of this version understands it.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use posthaste_core::store::Pausable;

/// So many rows are remembered as reported; whoever has more of them has other troubles.
const MOST_REPORTED: usize = 1_000;

/// Returns what a row pauses. A row that a newer version or a hand has written is left out: it must not
/// keep relays from starting. It is reported once, because relays read the table every second.
pub(crate) fn pausable(kind: &str, name: &str) -> Option<Pausable> {
    static REPORTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

    match Pausable::parse(kind, name) {
        Ok(what) => Some(what),
        Err(error) => {
            let mut reported = REPORTED.lock().unwrap_or_else(PoisonError::into_inner);
            if reported.len() < MOST_REPORTED && reported.insert(error.to_string()) {
                tracing::warn!(%error, "a row in the table of pauses is not known and pauses nothing");
            }
            None
        }
    }
}
