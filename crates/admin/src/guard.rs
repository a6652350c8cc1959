//! What is refused whoever asks: other sites that use somebody's browser, bodies that are not JSON,
//! requests without an end.
//!
//! Without tokens the browser of whoever sits at this machine is trusted, so no page of another site may
//! speak through it. A page can point its own name at 127.0.0.1 (DNS rebinding): the `Host` is that
//! name then. It can send a form: the `Origin` is that page then, and a form cannot be JSON. And a proxy
//! on this machine would let everybody in: what it adds to a request gives it away.

use std::{net::IpAddr, sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::problem::{Answer, Problem};

/// Largest body.
pub(crate) const BODY_LIMIT: usize = 64 * 1024;

/// How long a question may take.
const READ_LIMIT: Duration = Duration::from_secs(30);

/// How long the answer to a change is waited for; the change itself goes on.
const CHANGE_LIMIT: Duration = Duration::from_mins(5);

/// By which names the server may be called.
pub(crate) struct Guard {
    /// The address that it listens on.
    pub(crate) listen: IpAddr,
    /// Nobody gets further without a token, which no other site and no stranger has: any name will do, and
    /// so will a proxy.
    pub(crate) tokens: bool,
}

impl Guard {
    fn check_host(&self, headers: &HeaderMap) -> Answer<()> {
        let Some(host) = host(headers) else {
            return Err(Problem::unreadable("the request names no host"));
        };
        let name = host.host();
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        let known = match bare.parse::<IpAddr>() {
            Ok(address) => address.is_loopback() || address == self.listen,
            Err(_) => name.eq_ignore_ascii_case("localhost"),
        };
        if known || self.tokens {
            return Ok(());
        }
        Err(Problem::forbidden("the server is not known by the name in `Host`"))
    }
}

impl Guard {
    /// Without tokens this machine alone may ask. A proxy on it asks for others.
    fn check_direct(&self, headers: &HeaderMap) -> Answer<()> {
        let of_proxy = |name: &HeaderName| {
            let name = name.as_str();
            ["forwarded", "via", "x-real-ip"].contains(&name) || name.starts_with("x-forwarded-")
        };
        if self.tokens || !headers.keys().any(of_proxy) {
            return Ok(());
        }
        Err(Problem::forbidden(
            "this request came through a proxy, and without tokens only this machine may ask; set \
             admin.tokens",
        ))
    }
}

fn host(headers: &HeaderMap) -> Option<Authority> {
    headers.get(header::HOST)?.to_str().ok()?.parse().ok()
}

/// Refuses a change that a page of another site asks for.
fn check_origin(headers: &HeaderMap) -> Answer<()> {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    if site.is_some_and(|site| site != b"same-origin" && site != b"none") {
        return Err(Problem::forbidden("changes are not taken from pages of other sites"));
    }
    if let Some(origin) = headers.get(header::ORIGIN) {
        let origin = origin.to_str().ok().and_then(|text| text.parse::<Uri>().ok());
        if origin.and_then(|uri| uri.authority().cloned()) != host(headers) {
            return Err(Problem::forbidden("changes are not taken from pages of other sites"));
        }
    }
    Ok(())
}

/// Keeps other sites out.
pub(crate) async fn keep_out(
    State(guard): State<Arc<Guard>>,
    request: Request,
    next: Next,
) -> Response {
    let (method, headers) = (request.method(), request.headers());
    let mut checked = guard.check_host(headers).and_then(|()| guard.check_direct(headers));
    if checked.is_ok() && !matches!(*method, Method::GET | Method::HEAD) {
        checked = check_origin(headers);
    }
    match checked {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// Refuses what a form could send: that needs no permission of the browser. Every route that takes a POST has it.
pub(crate) async fn only_json(request: Request, next: Next) -> Response {
    let content_type = request.headers().get(header::CONTENT_TYPE);
    let essence = content_type
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .unwrap_or_default();
    if essence.trim().eq_ignore_ascii_case("application/json") {
        return next.run(request).await;
    }
    Problem::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "changes are taken as `Content-Type: application/json`",
    )
    .into_response()
}

/// Ends questions that take too long. A change runs on even when whoever asked has gone: its audit
/// entry is completed, and nothing stays half done.
pub(crate) async fn limit_time(request: Request, next: Next) -> Response {
    let late = |detail| Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).into_response();
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return match tokio::time::timeout(READ_LIMIT, next.run(request)).await {
            Ok(response) => response,
            Err(_) => late("this took too long and was given up"),
        };
    }
    let change = tokio::spawn(next.run(request));
    match tokio::time::timeout(CHANGE_LIMIT, change).await {
        Ok(Ok(response)) => response,
        Ok(Err(_)) => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "this failed unexpectedly")
            .into_response(),
        Err(_) => late("this is still being worked on; the audit says when it has ended"),
    }
}

/// What every answer carries: browsers must not guess types, tell others the address, or frame it.
pub(crate) async fn harden(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        // The dashboard has said what it needs.
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}
