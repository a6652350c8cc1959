//! The dashboard: static files that hold no data. Every number they show comes from the API.

use axum::{
    Router,
    http::{Uri, header},
    response::{IntoResponse, Response},
    routing::get,
};
use rust_embed::RustEmbed;

use crate::problem::no_such_path;

/// Nothing but our own files, no frames, no forms.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; \
    form-action 'none'";

#[derive(RustEmbed)]
#[folder = "assets"]
struct Assets;

pub(crate) fn router() -> Router {
    Router::new().route("/", get(index)).fallback(get(file))
}

async fn index() -> Response {
    asset("index.html").await
}

async fn file(uri: Uri) -> Response {
    asset(uri.path().trim_start_matches('/')).await
}

async fn asset(path: &str) -> Response {
    let Some(file) = Assets::get(path) else { return no_such_path().await.into_response() };
    let content_type = match path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    };
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, file.data).into_response()
}
