//! Traces to a collector: feature `otlp`, and on when `OTEL_EXPORTER_OTLP_ENDPOINT` is set.

#[cfg(feature = "otlp")]
mod client;

#[cfg(feature = "otlp")]
mod export;

#[cfg(feature = "otlp")]
pub(crate) use self::export::{flush, layer};

/// Says so when traces are wanted that this build cannot send.
#[cfg(not(feature = "otlp"))]
pub(crate) fn layer() -> Option<tracing_subscriber::layer::Identity> {
    if std::env::var_os("OTEL_EXPORTER_OTLP_ENDPOINT").is_some() {
        eprintln!(
            "warning: OTEL_EXPORTER_OTLP_ENDPOINT is set, and this build sends no traces: it was \
             made without the feature otlp"
        );
    }
    None
}

#[cfg(not(feature = "otlp"))]
pub(crate) fn flush() {}
