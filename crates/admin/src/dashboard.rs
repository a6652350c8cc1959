//! The dashboard: hand-written files that the binary carries and serves as they are.
//!
//! The files hold no number of any outbox: what they show they ask the API for, with the reader's
//! token. So they need none themselves.

use axum::{
    Router,
    extract::Path,
    http::{HeaderMap, HeaderName, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use rust_embed::{Embed, EmbeddedFile};

use crate::problem::no_such_path;

#[derive(Embed)]
#[folder = "assets"]
struct Assets;

/// Nothing but our own files: no inline script or style, no other host, no frame around it. Trusted
/// types close the door that a careless `innerHTML` would open.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// The page at `/` and its files under `/assets/`; any other path is none.
pub(crate) fn router() -> Router {
    Router::new().route("/", get(index)).route("/assets/{*path}", get(asset)).fallback(no_such_path)
}

async fn index(request: HeaderMap) -> Response {
    asset(Path("index.html".to_owned()), request).await
}

async fn asset(Path(path): Path<String>, request: HeaderMap) -> Response {
    match answer(&path, &request) {
        Some(response) => response,
        None => no_such_path().await.into_response(),
    }
}

/// A browser may keep a file but asks each time whether it still is the newest: after an upgrade
/// nobody runs yesterday's script against today's API.
fn answer(path: &str, request: &HeaderMap) -> Option<Response> {
    let file = Assets::get(path)?;
    let tag = entity_tag(&file);
    let known = request.get_all(header::IF_NONE_MATCH).iter();
    let unchanged = known
        .filter_map(|value| value.to_str().ok())
        .flat_map(|tags| tags.split(','))
        .any(|known| known.trim().trim_start_matches("W/") == tag);
    let headers = [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    let headers = (headers, [(header::ETAG, tag)]);
    Some(if unchanged {
        (StatusCode::NOT_MODIFIED, headers).into_response()
    } else {
        (headers, [(header::CONTENT_TYPE, content_type(path))], file.data).into_response()
    })
}

fn entity_tag(file: &EmbeddedFile) -> String {
    let hash = file.metadata.sha256_hash();
    let head = hash.iter().take(8).fold(0_u64, |head, byte| (head << 8) | u64::from(*byte));
    format!("\"{head:016x}\"")
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str, request: &HeaderMap) -> Response {
        answer(path, request).unwrap_or_else(|| panic!("{path} is served"))
    }

    #[test]
    fn every_file_has_a_content_type_and_the_policy() {
        for path in Assets::iter() {
            let response = get(&path, &HeaderMap::new());
            assert_eq!(response.status(), StatusCode::OK, "{path}");
            assert_ne!(
                response.headers()[header::CONTENT_TYPE],
                "application/octet-stream",
                "{path}"
            );
            assert_eq!(
                response.headers()[header::CONTENT_SECURITY_POLICY],
                CONTENT_SECURITY_POLICY
            );
        }
    }

    #[test]
    fn what_the_browser_has_is_not_sent_again() {
        let first = get("index.html", &HeaderMap::new());
        let mut request = HeaderMap::new();
        request.insert(header::IF_NONE_MATCH, first.headers()[header::ETAG].clone());
        assert_eq!(get("index.html", &request).status(), StatusCode::NOT_MODIFIED);
        assert_eq!(get("app.js", &request).status(), StatusCode::OK);
    }

    #[test]
    fn the_page_names_every_script_so_that_all_are_fetched_at_once() {
        let index = Assets::get("index.html").unwrap();
        let index = std::str::from_utf8(&index.data).unwrap();
        for path in Assets::iter().filter(|path| path.ends_with(".js")) {
            assert!(index.contains(&format!("\"assets/{path}\"")), "{path}");
        }
    }

    #[test]
    fn nothing_outside_the_folder_is_served() {
        for path in ["../Cargo.toml", "../src/lib.rs", "/etc/passwd", "pages", ""] {
            assert!(answer(path, &HeaderMap::new()).is_none(), "{path}");
        }
    }

    #[test]
    fn no_file_names_another_host_or_an_inline_script() {
        for path in Assets::iter() {
            let file = Assets::get(&path).unwrap();
            let text = std::str::from_utf8(&file.data).unwrap();
            // The names of XML vocabularies look like addresses and are never fetched.
            let text = text.replace("http://www.w3.org/", "");
            for forbidden in ["http://", "https://", "innerHTML", "eval(", "style=", "onclick="] {
                assert!(!text.contains(forbidden), "{path} holds {forbidden}");
            }
        }
    }
}
