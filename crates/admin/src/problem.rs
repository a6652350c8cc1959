//! Errors as `application/problem+json` (RFC 9457): for people and programs, without inner detail.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use posthaste_core::{Error, ErrorKind};
use serde::Serialize;

/// Why a request was not answered as asked.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    detail: String,
}

pub(crate) type Answer<T> = Result<T, Problem>;

#[derive(Serialize)]
struct Body<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: &'a str,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into() }
    }

    /// The request cannot be read at all.
    pub(crate) fn unreadable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(crate) fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, detail)
    }

    pub(crate) fn not_found(what: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("{what} is not there"))
    }
}

/// What the store says. Faults of ours or of the database's are logged here and told without their
/// cause: it may name hosts, tables and accounts.
impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            ErrorKind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::Conflict | ErrorKind::IllegalTransition | ErrorKind::Refused => {
                StatusCode::CONFLICT
            }
            ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        if !status.is_server_error() {
            return Self::new(status, error.to_string());
        }
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        tracing::error!(%error, cause, "a request to the admin API failed");
        let detail = match error.kind() {
            ErrorKind::Unavailable => "the database cannot be reached now; try again",
            ErrorKind::Schema => "the outbox does not fit this version; run `posthaste doctor`",
            _ => "this failed for a reason that is in the log",
        };
        Self::new(status, detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = Body {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: &self.detail,
        };
        let text = serde_json::to_vec(&body).unwrap_or_default();
        let mut response = (self.status, text).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
        }
        response
    }
}

/// Nothing has this path.
pub(crate) async fn no_such_path() -> Problem {
    Problem::not_found("what this path names")
}

/// The path is there, the method is not.
pub(crate) async fn no_such_method() -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this path does not take this method")
}
