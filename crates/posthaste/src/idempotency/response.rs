//! A response as it is stored, and as it comes back.

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode,
    header::{
        CONNECTION, CONTENT_LENGTH, DATE, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
    },
};
use http_body_util::Full;
use posthaste_core::{Error, ErrorKind, Result};
use posthaste_stores::idempotency::StoredResponse;

/// The header that marks a repeated response; its value is `true`.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Headers that are never stored: those of one connection (RFC 9110, 7.6.1), those that the server
/// sets anew, and cookies, which are secrets of a session that may have ended.
const NOT_STORED: [HeaderName; 12] = [
    CONNECTION,
    CONTENT_LENGTH,
    DATE,
    SET_COOKIE,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-authenticate"),
    HeaderName::from_static("proxy-authorization"),
    HeaderName::from_static("proxy-connection"),
];

/// What of a response is stored.
pub(super) fn to_store(status: StatusCode, headers: &HeaderMap, body: &Bytes) -> StoredResponse {
    let named = named_by_connection(headers);
    let headers: Vec<(&str, String)> = headers
        .iter()
        .filter(|(name, _)| !NOT_STORED.contains(name) && !named.contains(name))
        // A value can be any bytes: each becomes the character of its number.
        .map(|(name, value)| {
            (name.as_str(), value.as_bytes().iter().map(|&byte| char::from(byte)).collect())
        })
        .collect();
    StoredResponse {
        status: status.as_u16(),
        headers: serde_json::json!(headers).to_string(),
        body: body.to_vec(),
    }
}

/// The response again, with its mark.
pub(super) fn replayed(stored: StoredResponse) -> Result<Response<Full<Bytes>>> {
    let unreadable = |why: &'static str| {
        Error::new(ErrorKind::Schema, format!("a stored response cannot be read: {why}"))
    };
    let headers: Vec<(String, String)> = serde_json::from_str(&stored.headers)
        .map_err(|_| unreadable("its headers are not pairs of texts"))?;
    let mut response = Response::new(Full::new(Bytes::from(stored.body)));
    *response.status_mut() =
        StatusCode::from_u16(stored.status).map_err(|_| unreadable("its status is none"))?;
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes());
        let bytes: Result<Vec<u8>, _> = value.chars().map(u8::try_from).collect();
        let value = bytes.ok().and_then(|bytes| HeaderValue::from_bytes(&bytes).ok());
        let (Ok(name), Some(value)) = (name, value) else {
            return Err(unreadable("a header is none"));
        };
        response.headers_mut().append(name, value);
    }
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    Ok(response)
}

/// Whether a handler that used no transaction is done with this answer. One that says "not now" or
/// "not you" is not stored: the same key is to be tried again.
pub(super) fn is_final(status: StatusCode) -> bool {
    let try_again = [
        StatusCode::UNAUTHORIZED,
        StatusCode::FORBIDDEN,
        StatusCode::REQUEST_TIMEOUT,
        StatusCode::TOO_EARLY,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    !status.is_server_error() && !try_again.contains(&status)
}

/// Whether an answer says that the handler did not come to its end: a timeout, a panic that was caught, or
/// an error. A transaction that was handed back before is not committed under such an answer.
pub(super) fn gave_up(status: StatusCode) -> bool {
    status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT
}

fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_comes_back_with_every_header_that_may_be_stored() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("content-type", &b"text/plain"[..]),
            ("link", b"<a>"),
            ("link", b"<b>"),
            ("x-bytes", b"caf\xe9 \xff"),
            ("set-cookie", b"session=secret"),
            ("connection", b"close, X-Hop"),
            ("x-hop", b"1"),
            ("keep-alive", b"timeout=5"),
            ("transfer-encoding", b"chunked"),
            ("date", b"Sun, 15 Nov 2026 00:00:00 GMT"),
        ] {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, HeaderValue::from_bytes(value).unwrap());
        }
        let stored = to_store(StatusCode::CREATED, &headers, &Bytes::from_static(b"\0\xff"));
        assert!(!stored.headers.contains("secret"));
        let response = replayed(stored).unwrap();
        assert_eq!(response.status(), StatusCode::CREATED);
        let names: Vec<&str> = response.headers().keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["content-type", "link", "x-bytes", "idempotent-replayed"]);
        assert_eq!(response.headers().get_all("link").iter().count(), 2);
        assert_eq!(response.headers()["x-bytes"].as_bytes(), b"caf\xe9 \xff");
    }

    #[test]
    fn answers_that_say_not_now_or_not_you_are_not_final() {
        for status in [401, 403, 408, 425, 429, 500, 502, 503] {
            assert!(!is_final(StatusCode::from_u16(status).unwrap()), "{status}");
        }
        for status in [200, 201, 303, 400, 402, 404, 409, 422] {
            assert!(is_final(StatusCode::from_u16(status).unwrap()), "{status}");
        }
    }
}
