//! Metrics as Prometheus reads them.

use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
pub use metrics_exporter_prometheus::PrometheusHandle;
use posthaste_core::{Error, ErrorKind, Result};
use posthaste_relay::observe::LATENCY_BUCKETS;

/// How often samples are summed up when nobody scrapes; they would pile up otherwise.
const UPKEEP: Duration = Duration::from_secs(5);

/// Records the metrics of this process from here on, latencies in buckets that can be summed over
/// relays. What was recorded before is lost, so call it first.
pub fn record() -> Result<PrometheusHandle> {
    let recorder = PrometheusBuilder::new()
        .set_buckets(&LATENCY_BUCKETS)
        .and_then(PrometheusBuilder::install_recorder);
    recorder.map_err(|error| {
        Error::new(ErrorKind::State, "metrics cannot be recorded").with_source(error)
    })
}

/// Sums up until it is dropped.
pub(crate) async fn keep_up(metrics: PrometheusHandle) {
    let mut ticks = tokio::time::interval(UPKEEP);
    loop {
        ticks.tick().await;
        metrics.run_upkeep();
    }
}

/// The metrics as text. A gauge called `…_count` is told to be untyped: Prometheus keeps that ending
/// for histograms, and its linter refuses it on a gauge. To queries that makes no difference.
pub(crate) fn render(metrics: &PrometheusHandle) -> String {
    metrics.render().replace("_count gauge\n", "_count untyped\n")
}
