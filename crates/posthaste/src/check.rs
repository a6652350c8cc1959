//! What every event goes through before it is written, whatever the driver.

use posthaste_core::{Event, IntoEvent, Limits, Result};

/// The event with what the outbox adds to it.
pub(crate) fn completed(event: Event, default_tenant: Option<&str>) -> Event {
    #[cfg(feature = "trace")]
    let event = crate::trace::with_current_span(event);
    event.with_default_tenant(default_tenant)
}

/// The events as they are written, or the first violation of the outbox's limits.
pub(crate) fn checked(
    events: Vec<impl IntoEvent>,
    limits: Limits,
    default_tenant: Option<&str>,
) -> Result<Vec<Event>> {
    events
        .into_iter()
        .map(|event| {
            let event = completed(event.into_event()?, default_tenant);
            event.check(&limits)?;
            Ok(event)
        })
        .collect()
}
