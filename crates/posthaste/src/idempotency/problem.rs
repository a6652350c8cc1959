//! What the layer itself answers, as `application/problem+json` (RFC 9457).

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Response, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER},
};
use http_body_util::Full;
use posthaste_core::Error;

/// Where every type of problem is described.
const TYPES: &str = "https://github.com/posthaste-rs/posthaste/blob/main/docs/idempotency.md#";

/// An answer of the layer's own.
pub(super) struct Problem {
    status: StatusCode,
    kind: &'static str,
    title: &'static str,
    detail: String,
    retry: bool,
}

impl Problem {
    fn new(status: StatusCode, kind: &'static str, title: &'static str) -> Self {
        Self { status, kind, title, detail: String::new(), retry: false }
    }

    fn detail(self, detail: impl Into<String>) -> Self {
        Self { detail: detail.into(), ..self }
    }

    fn retry(self) -> Self {
        Self { retry: true, ..self }
    }

    pub(super) fn missing() -> Self {
        Self::new(StatusCode::BAD_REQUEST, "key-missing", "Idempotency-Key is missing")
            .detail("This operation needs an Idempotency-Key: a new one for each operation.")
    }

    pub(super) fn malformed(why: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "key-malformed", "Idempotency-Key is malformed")
            .detail(why)
    }

    pub(super) fn other_request() -> Self {
        let title = "Idempotency-Key is already used";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "key-reused", title)
            .detail("The key stands for another request; a new operation needs a new key.")
    }

    pub(super) fn running() -> Self {
        let title = "A request is outstanding for this Idempotency-Key";
        Self::new(StatusCode::CONFLICT, "key-in-use", title)
            .detail("The same request is being carried out; its response can be fetched later.")
            .retry()
    }

    pub(super) fn nobody() -> Self {
        let title = "Nobody to whom the Idempotency-Key belongs";
        Self::new(StatusCode::FORBIDDEN, "no-scope", title)
            .detail("The request names no principal.")
    }

    pub(super) fn request_too_large(limit: usize) -> Self {
        let title = "Request is too large for an Idempotency-Key";
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "request-too-large", title)
            .detail(format!("A body with an Idempotency-Key has at most {limit} bytes."))
    }

    pub(super) fn request_broken() -> Self {
        Self::new(StatusCode::BAD_REQUEST, "request-broken", "Request could not be read")
            .detail("The body ended before it was complete.")
    }

    pub(super) fn response_lost(loss: &Loss, undone: bool) -> Self {
        let happened = if undone {
            "Nothing was done: the operation was rolled back."
        } else {
            "The operation was carried out and is not carried out again."
        };
        match loss {
            Loss::TooLarge(limit) => {
                let title = "Response is too large to be stored";
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "response-too-large", title)
                    .detail(format!("{happened} A response has at most {limit} bytes."))
            }
            Loss::Broken => {
                let title = "Response could not be produced";
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "response-broken", title)
                    .detail(happened)
            }
        }
    }

    pub(super) fn not_committed() -> Self {
        let title = "Nothing was committed";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "not-committed", title)
            .detail("The operation was rolled back although it reported success.")
    }

    pub(super) fn outcome_unknown() -> Self {
        let title = "Nobody knows what took effect";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "outcome-unknown", title).detail(
            "A part of the operation may have been carried out. A repeat with the same key does not \
             carry it out again.",
        )
    }

    /// The database failed. What it said is for the log.
    pub(super) fn database(error: &Error) -> Self {
        let (status, kind) = if error.is_transient() {
            (StatusCode::SERVICE_UNAVAILABLE, "unavailable")
        } else {
            (StatusCode::INTERNAL_SERVER_ERROR, "database")
        };
        let problem = Self::new(status, kind, "Idempotency-Key could not be honoured")
            .detail("Send the request again with the same key: it takes effect at most once.");
        if error.is_transient() { problem.retry() } else { problem }
    }

    pub(super) fn response(&self) -> Response<Full<Bytes>> {
        let (status, headers, body) = self.parts();
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }

    pub(super) fn parts(&self) -> (StatusCode, HeaderMap, Bytes) {
        let document = serde_json::json!({
            "type": format!("{TYPES}{}", self.kind),
            "title": self.title,
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.retry {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        (self.status, headers, document.to_string().into())
    }
}

/// Why a response cannot be stored.
pub(super) enum Loss {
    /// It has more bytes than this.
    TooLarge(usize),
    /// Its body failed half-way.
    Broken,
}
