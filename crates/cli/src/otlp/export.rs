//! Spans, in batches, to the collector that the standard variables name.

use std::{env, sync::OnceLock};

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use tracing::Subscriber;
use tracing_subscriber::{Layer, registry::LookupSpan};

use super::client::Client;

/// Asked for its last spans when the process ends.
static PROVIDER: OnceLock<SdkTracerProvider> = OnceLock::new();

/// What sends spans, when the variable is set. A collector that cannot be used is said so and
/// does not keep the relay from its work.
pub(crate) fn layer<S>() -> Option<impl Layer<S>>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    env::var_os("OTEL_EXPORTER_OTLP_ENDPOINT")?;
    let exporter = Client::new().and_then(|client| {
        SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_protocol(Protocol::HttpBinary)
            .build()
            .map_err(|error| error.to_string())
    });
    let exporter = match exporter {
        Ok(exporter) => exporter,
        Err(error) => {
            eprintln!("warning: no traces are sent: {error}");
            return None;
        }
    };
    let mut resource = Resource::builder();
    if env::var_os("OTEL_SERVICE_NAME").is_none() {
        resource = resource.with_service_name("posthaste");
    }
    let provider = SdkTracerProvider::builder()
        .with_resource(resource.build())
        .with_batch_exporter(exporter)
        .build();
    let tracer = provider.tracer("posthaste");
    PROVIDER.get_or_init(|| provider);
    Some(tracing_opentelemetry::layer().with_tracer(tracer))
}

/// Sends what has not been sent yet.
pub(crate) fn flush() {
    if let Some(provider) = PROVIDER.get()
        && let Err(error) = provider.shutdown()
    {
        tracing::warn!(%error, "the last spans were not sent");
    }
}
