//! The admin server: what is served, in which order a request is checked.

use std::{collections::HashSet, sync::Arc};

use axum::{
    Router,
    extract::DefaultBodyLimit,
    middleware::{from_fn, from_fn_with_state},
    routing::get,
};
use posthaste_core::{Error, Result};
use tokio::{net::TcpListener, task::JoinSet};

use crate::{
    AdminConfig, AdminOutbox,
    api::{self, Served, ServedOutbox},
    auth::{Gate, authenticate},
    connection, dashboard,
    guard::{BODY_LIMIT, Guard, harden, keep_out, limit_time},
    metrics::{keep_up, render},
    problem::no_such_method,
    tls,
};

/// Serves the API, the dashboard and the metrics of some outboxes.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use posthaste_admin::{Admin, AdminConfig, AdminOutbox};
/// # use posthaste_core::store::Store;
/// # use posthaste_relay::{Relay, Retention};
/// # async fn example(store: Arc<dyn Store>, relay: Arc<Relay>) -> posthaste_core::Result<()> {
/// let orders = AdminOutbox {
///     name: "orders".to_owned(),
///     store,
///     relay: Some(relay),
///     destinations: vec!["nats".to_owned()],
///     routes: None,
///     retention: Retention::default(),
/// };
/// let admin = Admin::new(vec![orders], AdminConfig::default())?;
/// let listener = admin.bind().await?;
/// admin.serve(listener, std::future::pending()).await
/// # }
/// ```
pub struct Admin {
    served: Served,
    config: AdminConfig,
    tls: Option<tls::Acceptor>,
}

impl Admin {
    /// A server that does not serve yet. Settings that cannot work, and certificates that cannot be
    /// read, are refused here.
    pub fn new(outboxes: Vec<AdminOutbox>, config: AdminConfig) -> Result<Self> {
        config.check()?;
        let mut names = HashSet::new();
        for outbox in &outboxes {
            if outbox.name.is_empty() || !names.insert(&outbox.name) {
                return Err(Error::invalid(format!(
                    "two outboxes are called {:?}, or one has no name",
                    outbox.name
                )));
            }
        }
        let tls = config.tls.as_ref().map(tls::acceptor).transpose()?;
        let served = outboxes
            .into_iter()
            .map(|outbox| ServedOutbox { outbox: Arc::new(outbox), series: Arc::default() })
            .collect();
        Ok(Self { served: Arc::new(served), config, tls })
    }

    /// Listens where the configuration says.
    pub async fn bind(&self) -> Result<TcpListener> {
        connection::bind("admin.listen", self.config.listen).await
    }

    /// Serves until `stop` is ready, then lets requests that are under way end.
    pub async fn serve(self, listener: TcpListener, stop: impl Future<Output = ()>) -> Result<()> {
        let mut samplers = JoinSet::new();
        if let Some(metrics) = self.config.metrics.clone() {
            samplers.spawn(keep_up(metrics));
        }
        for ServedOutbox { outbox, series } in self.served.iter() {
            let (outbox, series) = (Arc::clone(outbox), Arc::clone(series));
            samplers.spawn(async move { series.sample(&outbox).await });
        }
        let router = self.router();
        connection::serve(listener, router, self.tls, connection::Limits::ADMIN, stop).await;
        Ok(())
    }

    /// From the outside in: headers, host and origin, token and role, time, size.
    fn router(&self) -> Router {
        let gate = Arc::new(Gate::new(&self.config.tokens));
        let guard = Guard { listen: self.config.listen.ip(), tokens: !gate.is_open() };
        let authenticate = || from_fn_with_state(Arc::clone(&gate), authenticate);
        let api = api::router()
            .with_state(Arc::clone(&self.served))
            .layer(DefaultBodyLimit::max(BODY_LIMIT))
            .layer(from_fn(limit_time))
            .layer(authenticate());
        let mut router = Router::new().nest("/api/v1", api);
        if let Some(metrics) = self.config.metrics.clone() {
            let metrics = get(async move || {
                ([("content-type", "text/plain; version=0.0.4; charset=utf-8")], render(&metrics))
            });
            router = router.route("/metrics", metrics.layer(authenticate()));
        }
        router
            .merge(dashboard::router())
            .method_not_allowed_fallback(no_such_method)
            .layer(from_fn_with_state(Arc::new(guard), keep_out))
            .layer(from_fn(harden))
    }
}
