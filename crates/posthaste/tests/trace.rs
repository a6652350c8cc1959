//! W3C trace context: from the span that enqueues, through the headers, to the span that publishes.

mod support;

use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use posthaste::{Event, transports::memory::MemoryTransport};
use sqlx::Sqlite;
use support::{TestDatabase, quick};
use tracing::Instrument;
use tracing_subscriber::layer::SubscriberExt;

fn event(n: u64) -> Event {
    Event::builder("Traced").aggregate("Order", n).payload(&n).build().unwrap()
}

fn named<'s>(spans: &'s [SpanData], name: &str) -> Vec<&'s SpanData> {
    spans.iter().filter(|span| span.name == name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_span_of_a_publish_continues_the_one_that_enqueued() {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer)).unwrap();

    let on = Sqlite::fixture().await;
    async {
        on.enqueue(vec![event(1)]).await;
    }
    .instrument(tracing::info_span!("place order"))
    .await;
    let own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let memory = MemoryTransport::scripted(|_| posthaste::transport::Outcome::Delivered);
    on.relay(memory.clone(), quick()).relay_once().await.unwrap();
    on.enqueue(vec![event(2).with_header("traceparent", own)]).await;
    on.relay(memory.clone(), quick()).relay_once().await.unwrap();

    let delivered = memory.delivered();
    assert_eq!(delivered[1].event.headers()["traceparent"], own, "the application's own stays");
    provider.force_flush().unwrap();
    let spans = exporter.get_finished_spans().unwrap();
    let placed = named(&spans, "place order")[0];
    let (trace, span) = (placed.span_context.trace_id(), placed.span_context.span_id());
    let header = &delivered[0].event.headers()["traceparent"];
    assert_eq!(*header, format!("00-{trace}-{span}-01"));
    let published = named(&spans, "publish");
    assert_eq!(published.len(), 2);
    assert_eq!(published[0].span_context.trace_id(), trace);
    assert_eq!(published[0].parent_span_id, span);
    assert_eq!(published[1].parent_span_id.to_string(), "b7ad6b7169203331");
    on.clean().await;
}

#[tokio::test]
async fn without_a_span_nothing_is_added() {
    let on = Sqlite::fixture().await;
    on.enqueue(vec![event(1)]).await;
    let memory = MemoryTransport::new();
    on.relay(memory.clone(), quick()).relay_once().await.unwrap();
    assert!(memory.delivered()[0].event.headers().is_empty());
    on.clean().await;
}
