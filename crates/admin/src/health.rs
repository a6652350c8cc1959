//! `/livez` and `/readyz` on a listener of their own, for whoever restarts processes and sends them traffic.
//! They need no token, so they say yes or no and nothing else.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::StatusCode,
    middleware::from_fn,
    response::{IntoResponse, Response},
    routing::get,
};
use posthaste_core::Result;
use tokio::net::TcpListener;

use crate::{
    AdminOutbox, connection,
    guard::harden,
    problem::{no_such_method, no_such_path},
};

/// How long a database may take to answer before it counts as gone; shorter than a connection lives.
const PATIENCE: Duration = Duration::from_secs(4);

type Outboxes = Arc<Vec<AdminOutbox>>;

/// Listens at `health.listen`.
pub async fn bind(listen: SocketAddr) -> Result<TcpListener> {
    connection::bind("health.listen", listen).await
}

/// Answers until `stop` is ready.
pub async fn serve(
    listener: TcpListener,
    outboxes: Vec<AdminOutbox>,
    stop: impl Future<Output = ()>,
) {
    let router = Router::new()
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        .with_state(Arc::new(outboxes))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(from_fn(harden));
    connection::serve(listener, router, None, connection::Limits::HEALTH, stop).await;
}

/// The process answers, and its relays come round.
async fn live(State(outboxes): State<Outboxes>) -> Response {
    answer(outboxes.iter().all(|outbox| outbox.relay.as_ref().is_none_or(|one| one.health().live)))
}

/// Every relay gets on, or stands by; an outbox without one can be reached.
async fn ready(State(outboxes): State<Outboxes>) -> Response {
    for AdminOutbox { relay, store, .. } in outboxes.iter() {
        let ready = match relay {
            Some(relay) => relay.health().ready,
            None => matches!(tokio::time::timeout(PATIENCE, store.check()).await, Ok(Ok(_))),
        };
        if !ready {
            return answer(false);
        }
    }
    answer(true)
}

fn answer(yes: bool) -> Response {
    if yes {
        (StatusCode::OK, "ok\n").into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "unavailable\n").into_response()
    }
}
