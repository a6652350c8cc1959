//! What every event goes through before it is written, whatever the driver.

use posthaste_core::{Event, Limits, Result};

/// The events with what the outbox adds to them, or the first violation of its limits.
pub(crate) fn checked(
    events: Vec<Event>,
    limits: Limits,
    default_tenant: Option<&str>,
) -> Result<Vec<Event>> {
    events
        .into_iter()
        .map(|event| {
            event.check(&limits)?;
            #[cfg(feature = "trace")]
            let event = crate::trace::with_current_span(event);
            Ok(event.with_default_tenant(default_tenant))
        })
        .collect()
}
