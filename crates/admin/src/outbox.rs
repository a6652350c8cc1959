//! An outbox that is served.

use std::sync::Arc;

use posthaste_core::store::Store;
use posthaste_relay::{Relay, Retention};

/// An outbox, and what this process knows about it.
#[derive(Clone)]
pub struct AdminOutbox {
    /// Its name in paths and in lists.
    pub name: String,
    /// The outbox.
    pub store: Arc<dyn Store>,
    /// Its relay, when it runs in this process.
    pub relay: Option<Arc<Relay>>,
    /// The destinations that this process knows; those that relays report come along.
    pub destinations: Vec<String>,
    /// What a purge keeps.
    pub retention: Retention,
}
