//! The API: one file a subject, every route in one list.

mod overview;

mod series;

mod events;

mod event;

mod bulk;

mod relays;

mod doctor;

mod pauses;

mod audit;

mod housekeeping;

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{FromRequestParts, RawPathParams},
    handler::Handler,
    http::{Method, header, request::Parts},
    middleware::from_fn,
    response::IntoResponse,
    routing::{MethodFilter, MethodRouter, on},
};
use posthaste_operate::Operator;
use serde::{Deserialize, Serialize};

use crate::{
    AdminOutbox,
    auth::Caller,
    guard::only_json,
    problem::{Answer, Problem, no_such_method, no_such_path},
    series::Series,
};

/// What the handlers share: the outboxes.
pub(crate) type Served = Arc<Vec<ServedOutbox>>;

/// An outbox, and what the charts show of it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ServedOutbox {
    pub(crate) outbox: Arc<AdminOutbox>,
    pub(crate) series: Arc<Series>,
}

impl ServedOutbox {
    /// The caller at work on this outbox.
    fn operator(&self, caller: Caller) -> Operator {
        Operator::new(Arc::clone(&self.outbox.store), caller.name)
    }
}

/// The outbox that the path names.
impl FromRequestParts<Served> for ServedOutbox {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, served: &Served) -> Answer<Self> {
        let parameters = RawPathParams::from_request_parts(parts, served)
            .await
            .map_err(|_| Problem::unreadable("the path cannot be read"))?;
        let name = parameters.iter().find(|(key, _)| *key == "outbox").map(|(_, name)| name);
        let found = served.iter().find(|one| Some(one.outbox.name.as_str()) == name);
        found.cloned().ok_or_else(|| Problem::not_found("an outbox of this name"))
    }
}

/// A body that says nothing.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// Whether a change changed anything.
#[derive(Serialize)]
struct Changed {
    changed: u64,
}

struct Route {
    #[cfg_attr(not(test), allow(dead_code, reason = "compared with openapi.json by the test"))]
    method: Method,
    path: &'static str,
    handler: MethodRouter<Served>,
}

/// Every route, as `openapi.json` describes them.
fn routes() -> Vec<Route> {
    fn get<H: Handler<T, Served>, T: 'static>(path: &'static str, handler: H) -> Route {
        Route { method: Method::GET, path, handler: on(MethodFilter::GET, handler) }
    }
    fn post<H: Handler<T, Served>, T: 'static>(path: &'static str, handler: H) -> Route {
        let handler = on(MethodFilter::POST, handler).route_layer(from_fn(only_json));
        Route { method: Method::POST, path, handler }
    }
    fn delete<H: Handler<T, Served>, T: 'static>(path: &'static str, handler: H) -> Route {
        Route { method: Method::DELETE, path, handler: on(MethodFilter::DELETE, handler) }
    }
    vec![
        get("/whoami", whoami),
        get("/openapi.json", openapi),
        get("/outboxes", overview::outboxes),
        get("/outboxes/{outbox}/overview", overview::overview),
        get("/outboxes/{outbox}/series", series::series),
        get("/outboxes/{outbox}/events", events::list),
        get("/outboxes/{outbox}/events/{id}", event::show),
        get("/outboxes/{outbox}/events/{id}/payload", event::payload),
        post("/outboxes/{outbox}/events/{id}/replay", event::replay),
        post("/outboxes/{outbox}/events/{id}/discard", event::discard),
        post("/outboxes/{outbox}/bulk", bulk::bulk),
        get("/outboxes/{outbox}/relays", relays::relays),
        get("/outboxes/{outbox}/shards", relays::shards),
        get("/outboxes/{outbox}/destinations", relays::destinations),
        get("/outboxes/{outbox}/tenants", overview::tenants),
        get("/outboxes/{outbox}/doctor", doctor::doctor),
        get("/outboxes/{outbox}/pauses", pauses::list),
        post("/outboxes/{outbox}/pauses", pauses::pause),
        delete("/outboxes/{outbox}/pauses/{kind}/{name}", pauses::resume),
        get("/outboxes/{outbox}/audit", audit::audit),
        post("/outboxes/{outbox}/poll", housekeeping::poll),
        post("/outboxes/{outbox}/purge", housekeeping::purge),
    ]
}

/// Without guards: see [`Admin`](crate::Admin).
pub(crate) fn router() -> Router<Served> {
    routes()
        .into_iter()
        .fold(Router::new(), |router, route| router.route(route.path, route.handler))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
}

async fn whoami(caller: Caller) -> Json<Caller> {
    Json(caller)
}

/// The description of this API.
const OPENAPI: &str = include_str!("../../openapi.json");

async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_route_is_described_and_nothing_else_is() {
        let described: serde_json::Value = serde_json::from_str(OPENAPI).unwrap();
        let described: BTreeSet<String> = described["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, methods)| {
                let methods = methods.as_object().unwrap().keys();
                methods.map(move |method| format!("{} {path}", method.to_uppercase()))
            })
            .collect();
        let served: BTreeSet<String> =
            routes().iter().map(|route| format!("{} {}", route.method, route.path)).collect();
        assert_eq!(served, described);
    }
}
