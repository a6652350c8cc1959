//! W3C trace context at dispatch: the transport's span continues what the writer's began.

use std::str::FromStr;

use opentelemetry::{
    Context,
    trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState},
};
use posthaste_core::Envelope;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// A span for one publish. One event's is the child of the span in its headers; that of several is
/// linked to each of them.
pub(crate) fn span(destination: &str, batch: &[Envelope]) -> tracing::Span {
    let span = tracing::info_span!("publish", destination, events = batch.len());
    let mut contexts = batch.iter().filter_map(context);
    if batch.len() == 1 {
        if let Some(parent) = contexts.next() {
            // Fails only where no layer listens.
            let _ = span.set_parent(Context::new().with_remote_span_context(parent));
        }
    } else {
        for context in contexts {
            span.add_link(context);
        }
    }
    span
}

/// What the event's headers say, if they say something sound.
fn context(envelope: &Envelope) -> Option<SpanContext> {
    let headers = envelope.event.headers();
    let mut parts = headers.get("traceparent")?.split('-');
    let (version, trace, span, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    if version.len() != 2 || version == "ff" || trace.len() != 32 || span.len() != 16 {
        return None;
    }
    let state = headers.get("tracestate").and_then(|state| TraceState::from_str(state).ok());
    let context = SpanContext::new(
        TraceId::from_hex(trace).ok()?,
        SpanId::from_hex(span).ok()?,
        TraceFlags::new(u8::from_str_radix(flags, 16).ok()?),
        true,
        state.unwrap_or_default(),
    );
    context.is_valid().then_some(context)
}
