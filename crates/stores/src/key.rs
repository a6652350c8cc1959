//! The ordering key of a row.

use std::borrow::Cow;

use posthaste_core::key::derived_key;

/// The columns that make up an event's ordering key. They can be read also where the content cannot be decoded: its
/// lane must not go on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyColumns<'a> {
    pub(crate) ordering_key: Option<&'a str>,
    pub(crate) tenant: Option<&'a str>,
    pub(crate) aggregate_type: &'a str,
    pub(crate) aggregate_id: Option<&'a str>,
}

impl<'a> KeyColumns<'a> {
    /// `None` for an event that follows no other.
    pub(crate) fn text(self) -> Option<Cow<'a, str>> {
        match (self.ordering_key, self.aggregate_id) {
            (Some(""), _) | (None, None) => None,
            (Some(key), _) => Some(Cow::Borrowed(key)),
            (None, Some(id)) => {
                Some(Cow::Owned(derived_key(self.tenant.unwrap_or(""), self.aggregate_type, id)))
            }
        }
    }
}
