//! What a process says of its outboxes over HTTP: admin API, dashboard and metrics, and health on
//! a listener of its own.

use std::{net::SocketAddr, time::Duration};

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use posthaste::{Error, ErrorKind, Result, relay::observe};
use posthaste_admin::{Admin, AdminOutbox, health};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

use crate::config::{AdminSettings, HealthSettings, Listen};

/// How often samples of histograms are put in order between two scrapes.
const UPKEEP: Duration = Duration::from_secs(5);

/// Everything that is served. Ends when it is stopped.
pub(crate) struct Serving {
    tasks: JoinSet<()>,
    /// Says stop to all tasks; set once.
    stop: watch::Sender<bool>,
}

/// Records metrics from here on; what was recorded before is lost.
pub(crate) fn record_metrics() -> Result<PrometheusHandle> {
    let failed = |error: BuildError| {
        Error::new(ErrorKind::State, "metrics cannot be recorded").with_source(error)
    };
    let mut builder = PrometheusBuilder::new();
    for latency in [observe::DISPATCH_LATENCY_SECONDS, observe::DELIVERY_LATENCY_SECONDS] {
        let these = Matcher::Full(latency.to_owned());
        builder =
            builder.set_buckets_for_metric(these, &observe::LATENCY_BUCKETS).map_err(failed)?;
    }
    builder.install_recorder().map_err(failed)
}

impl Serving {
    pub(crate) fn nothing() -> Self {
        Self { tasks: JoinSet::new(), stop: watch::Sender::new(false) }
    }

    /// Serves the API, the dashboard and the metrics. Gives where, if anywhere.
    pub(crate) async fn admin(
        &mut self,
        settings: &AdminSettings,
        metrics: Option<PrometheusHandle>,
        outboxes: Vec<AdminOutbox>,
    ) -> Result<Option<String>> {
        let Some((listen, config)) = settings.listen.zip(settings.config(metrics.clone())) else {
            return Ok(None);
        };
        let scheme = if settings.tls.is_some() { "https" } else { "http" };
        if let Some(metrics) = metrics {
            self.tasks.spawn(upkeep(metrics, stopped(self.stop.subscribe())));
        }
        let admin = Admin::new(outboxes, config)?;
        let Some((listener, address)) = bound(listen, admin.bind().await)? else {
            return Ok(None);
        };
        let stop = stopped(self.stop.subscribe());
        self.tasks.spawn(async move {
            if let Err(error) = admin.serve(listener, stop).await {
                tracing::error!(%error, "the admin API ended");
            }
        });
        let url = format!("{scheme}://{address}");
        tracing::info!(%url, "admin API and dashboard");
        Ok(Some(url))
    }

    /// Serves `/livez` and `/readyz`.
    pub(crate) async fn health(
        &mut self,
        settings: HealthSettings,
        outboxes: Vec<AdminOutbox>,
    ) -> Result<()> {
        let Some(listen) = settings.listen else { return Ok(()) };
        let Some((listener, address)) = bound(listen, health::bind(listen.address).await)? else {
            return Ok(());
        };
        let stop = stopped(self.stop.subscribe());
        self.tasks.spawn(health::serve(listener, outboxes, stop));
        tracing::info!(url = %format!("http://{address}/readyz"), "health");
        Ok(())
    }

    /// Stops, and waits until requests that are under way have ended.
    pub(crate) async fn stop(mut self) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

/// An address that nobody chose may be taken, by another relay of this machine: that is said, and
/// the relay delivers all the same.
fn bound(listen: Listen, bound: Result<TcpListener>) -> Result<Option<(TcpListener, SocketAddr)>> {
    match bound {
        Ok(listener) => {
            // A listener that is bound knows where.
            let address = listener.local_addr().unwrap_or(listen.address);
            Ok(Some((listener, address)))
        }
        Err(error) if !listen.chosen => {
            tracing::warn!(%error, "going on without; choose another address, or off");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

async fn stopped(mut stop: watch::Receiver<bool>) {
    // An end of the sender is a stop too.
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn upkeep(metrics: PrometheusHandle, stop: impl Future<Output = ()>) {
    let mut ticks = tokio::time::interval(UPKEEP);
    let mut stop = std::pin::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => return,
            _ = ticks.tick() => metrics.run_upkeep(),
        }
    }
}
