//! Who may go in a batch whose events of one key fly together.

use std::collections::HashMap;

use posthaste_core::Envelope;

/// No event passes a refused one of its key, and a key takes one way a batch: ways fail apart from
/// each other.
pub(crate) struct Turns<'b> {
    several_ways: bool,
    /// The way of each key; `None` once one of its events stayed behind.
    keys: HashMap<String, Option<&'b str>>,
}

impl<'b> Turns<'b> {
    pub(crate) fn new(several_ways: bool) -> Self {
        Self { several_ways, keys: HashMap::new() }
    }

    /// Whether this event may go this way. If not, nothing of its key goes any more.
    pub(crate) fn takes(&mut self, envelope: &Envelope, way: &'b str) -> bool {
        // With one way and nothing refused there is nothing to keep apart.
        if !self.several_ways && self.keys.is_empty() {
            return true;
        }
        let Some(key) = envelope.event.ordering_key() else { return true };
        let of_key = self.keys.entry(key).or_insert(Some(way));
        if *of_key != Some(way) {
            *of_key = None;
        }
        of_key.is_some()
    }

    /// This event stays behind, and what comes after it of its key.
    pub(crate) fn refuse(&mut self, envelope: &Envelope) {
        self.keys.extend(envelope.event.ordering_key().map(|key| (key, None)));
    }
}
