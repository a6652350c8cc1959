//! Reading requests: like axum's own extractors, with problems as refusals and nothing let through that
//! was not meant.

use std::{fmt, marker::PhantomData, time::Duration};

use axum::{
    body::Bytes,
    extract::{FromRequest, FromRequestParts, Path, Query, Request},
    http::{StatusCode, request::Parts},
};
use posthaste_core::{Error, Result};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, MapAccess, Visitor, value::MapAccessDeserializer},
};

use crate::problem::{Answer, Problem};

/// How long a body may take to arrive.
const BODY_TIME: Duration = Duration::from_secs(10);

/// Most events or entries on a page.
const MOST_ON_A_PAGE: usize = 200;

/// How many there are on a page unless asked otherwise.
const ON_A_PAGE: usize = 50;

/// The parts of the path.
pub(crate) struct PathOf<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathOf<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Self> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(value)) => Ok(Self(value)),
            Err(_) => Err(Problem::unreadable("the path cannot be read")),
        }
    }
}

/// What stands behind the question mark.
pub(crate) struct QueryOf<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryOf<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Self> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(value)) => Ok(Self(value)),
            Err(rejection) => Err(Problem::unreadable(rejection.body_text())),
        }
    }
}

/// The body. An empty one is an empty object: what needs nothing can be asked for with nothing.
pub(crate) struct JsonOf<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonOf<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Answer<Self> {
        let reading = Bytes::from_request(request, state);
        let body = match tokio::time::timeout(BODY_TIME, reading).await {
            Err(_) => {
                return Err(Problem::new(
                    StatusCode::REQUEST_TIMEOUT,
                    "the body took too long to arrive",
                ));
            }
            Ok(Err(rejection)) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                return Err(Problem::new(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    format!("a body has at most {} bytes", crate::guard::BODY_LIMIT),
                ));
            }
            Ok(Err(_)) => return Err(Problem::unreadable("the body broke off")),
            Ok(Ok(body)) => body,
        };
        let text = if body.is_empty() { b"{}" } else { &body[..] };
        serde_json::from_slice(text).map(|Object(value)| Self(value)).map_err(|error| {
            // It quotes what was sent and nothing else.
            let status = if error.is_data() {
                StatusCode::UNPROCESSABLE_ENTITY
            } else {
                StatusCode::BAD_REQUEST
            };
            Problem::new(status, format!("the body cannot be read: {error}"))
        })
    }
}

/// A JSON object. Without it a list of the fields' values would do as well.
#[derive(Debug)]
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(Fields(PhantomData))
    }
}

/// A text of 1 to `longest` characters. NUL is refused: not every database can compare with it.
pub(crate) fn text(name: &str, text: &str, longest: usize) -> Result<()> {
    if text.is_empty() || text.chars().count() > longest || text.contains('\0') {
        return Err(Error::invalid(format!(
            "{name} must have 1 to {longest} characters, none of them NUL"
        )));
    }
    Ok(())
}

/// How many to show.
pub(crate) fn page_limit(limit: Option<&str>) -> Result<usize> {
    let Some(limit) = limit else { return Ok(ON_A_PAGE) };
    match limit.parse() {
        Ok(limit @ 1..=MOST_ON_A_PAGE) => Ok(limit),
        _ => Err(Error::invalid(format!("limit must be a number from 1 to {MOST_ON_A_PAGE}"))),
    }
}

/// Where the page before ended: what its `next` said.
pub(crate) fn cursor(cursor: Option<&str>) -> Result<Option<i64>> {
    cursor
        .map(str::parse)
        .transpose()
        .map_err(|_| Error::invalid("cursor must be what `next` of a page said"))
}
