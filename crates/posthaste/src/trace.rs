//! W3C trace context at enqueue: the current span's, in the event's headers.

use opentelemetry::trace::TraceContextExt;
use posthaste_core::Event;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The event with `traceparent` and `tracestate` of the current span, unless it has a
/// `traceparent` already or there is no span to tell of.
pub(crate) fn with_current_span(event: Event) -> Event {
    if event.headers().contains_key("traceparent") {
        return event;
    }
    let context = tracing::Span::current().context();
    let span = context.span();
    let span = span.span_context();
    if !span.is_valid() {
        return event;
    }
    let parent =
        format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), span.trace_flags().to_u8());
    let event = event.with_header("traceparent", parent);
    match span.trace_state().header() {
        state if state.is_empty() => event,
        state => event.with_header("tracestate", state),
    }
}
