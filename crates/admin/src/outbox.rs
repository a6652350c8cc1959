//! An outbox that is served.

use std::sync::Arc;

use posthaste_core::store::Store;
use posthaste_relay::{Relay, Retention, Routes};

/// An outbox, and what this process knows about it.
#[derive(Clone)]
pub struct AdminOutbox {
    /// Its name in paths and in lists.
    pub name: String,
    /// The outbox.
    pub store: Arc<dyn Store>,
    /// Its relay, when it runs in this process.
    pub relay: Option<Arc<Relay>>,
    /// The destinations that this process knows; those that relays report come along. A pause of any other
    /// is refused, unless its caller insists; without any, names are not checked.
    pub destinations: Vec<String>,
    /// Which events go to which destination, for the doctor; `None` when this process does not know, or
    /// when its relay does.
    pub routes: Option<Arc<Routes>>,
    /// What a purge keeps.
    pub retention: Retention,
}

impl AdminOutbox {
    /// The routes, as far as this process knows them.
    pub(crate) fn routes(&self) -> Option<Arc<Routes>> {
        self.routes.clone().or_else(|| self.relay.as_ref().map(|relay| relay.routes()))
    }
}
