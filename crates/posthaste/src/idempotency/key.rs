//! The key that a client sent, and the fingerprint of what it sent it with.

use std::fmt::Write;

use http::{HeaderMap, Method, Uri};
use posthaste_stores::idempotency::KEY;
use sha2::{Digest, Sha256};

/// The request header.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The key of a request, if it has one: a string in quotes, as the draft wants it, or bare, as many
/// clients send it; both are the same key. `Err` says what is wrong with it.
pub(super) fn key(headers: &HeaderMap) -> Result<Option<String>, String> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err("The request has more than one Idempotency-Key.".to_owned());
    }
    let malformed = || "The Idempotency-Key is not a string of printable ASCII.".to_owned();
    let text = value.to_str().map_err(|_| malformed())?.trim();
    let key = match text.strip_prefix('"') {
        Some(rest) => unquoted(rest).ok_or_else(malformed)?,
        None if text.contains(['"', ',', ';', '\\', ' ', '\t']) => return Err(malformed()),
        None => text.to_owned(),
    };
    match key.len() {
        1..=KEY => Ok(Some(key)),
        length => {
            Err(format!("The Idempotency-Key is {length} characters long; it takes 1 to {KEY}."))
        }
    }
}

/// What stands between the quotes of a structured field's string, without its first quote.
fn unquoted(rest: &str) -> Option<String> {
    let mut key = String::with_capacity(rest.len());
    let mut characters = rest.chars();
    loop {
        match characters.next()? {
            '"' => return characters.as_str().is_empty().then_some(key),
            '\\' => key.push(characters.next().filter(|c| ['"', '\\'].contains(c))?),
            '\t' => return None,
            character => key.push(character),
        }
    }
}

/// SHA-256 of method, path with query, and body, each behind its length, in hexadecimal.
pub(super) fn fingerprint(method: &Method, uri: &Uri, body: &[u8]) -> String {
    let path = uri.path_and_query().map_or("", |path| path.as_str());
    let mut hash = Sha256::new();
    for part in [method.as_str().as_bytes(), path.as_bytes(), body] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hexadecimal(&hash.finalize())
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn read(value: &[u8]) -> Result<Option<String>, String> {
        let mut headers = HeaderMap::new();
        headers.insert(IDEMPOTENCY_KEY, HeaderValue::from_bytes(value).unwrap());
        key(&headers)
    }

    #[test]
    fn a_key_is_the_same_in_quotes_and_bare() {
        for value in ["\"8e03978e-40d5\"", "8e03978e-40d5", " 8e03978e-40d5 "] {
            assert_eq!(read(value.as_bytes()).unwrap().as_deref(), Some("8e03978e-40d5"));
        }
        assert_eq!(read(br#""a \"b\" \\c""#).unwrap().as_deref(), Some(r#"a "b" \c"#));
        assert_eq!(key(&HeaderMap::new()).unwrap(), None);
    }

    #[test]
    fn a_malformed_key_is_refused() {
        let (long, longest) = ("k".repeat(256), "k".repeat(255));
        for value in
            ["", "\"\"", "\"a", "a\"", "\"a\"b", "\"a\";x=1", "a, b", "a b", r#""\a""#, "é", &long]
        {
            assert!(read(value.as_bytes()).is_err(), "{value:?}");
        }
        assert!(read(longest.as_bytes()).is_ok());
        let mut headers = HeaderMap::new();
        headers.append(IDEMPOTENCY_KEY, HeaderValue::from_static("a"));
        headers.append(IDEMPOTENCY_KEY, HeaderValue::from_static("a"));
        assert!(key(&headers).is_err());
    }

    #[test]
    fn a_fingerprint_tells_method_path_query_and_body_apart() {
        let of =
            |method, uri: &'static str, body| fingerprint(&method, &Uri::from_static(uri), body);
        let all = [
            of(Method::POST, "/a", b"b"),
            of(Method::PATCH, "/a", b"b"),
            of(Method::POST, "/a?c", b"b"),
            of(Method::POST, "/ab", b""),
            of(Method::POST, "/a", b"c"),
        ];
        let different: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
        assert_eq!(all[0], of(Method::POST, "http://host/a", b"b"), "the host does not count");
        assert_eq!(all[0].len(), 64);
    }
}
