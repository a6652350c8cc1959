//! Who asks, and what they may do.

use std::sync::Arc;

use axum::{
    extract::{FromRequestParts, Request, State},
    http::{HeaderMap, Method, StatusCode, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use ring::digest::{Digest, SHA256, digest};
use serde::Serialize;
use subtle::ConstantTimeEq;

use crate::{
    Role, Token,
    problem::{Answer, Problem},
};

/// Somebody whose token was known.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Caller {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// Whether they may look at payloads: operators may, but for those that nobody asked for a token.
    pub(crate) payloads: bool,
}

/// The tokens, as digests: of equal length, so that a comparison takes the same time for all.
pub(crate) struct Gate {
    known: Vec<(Digest, Caller)>,
}

impl Gate {
    pub(crate) fn new(tokens: &[Token]) -> Self {
        let known = tokens.iter().map(|Token { name, role, secret }| {
            let payloads = *role >= Role::Operator;
            let caller = Caller { name: name.clone(), role: *role, payloads };
            (digest(&SHA256, secret.expose().as_bytes()), caller)
        });
        Self { known: known.collect() }
    }

    /// Without tokens everybody who gets through is trusted, and only this machine may.
    pub(crate) fn is_open(&self) -> bool {
        self.known.is_empty()
    }

    fn admit(&self, headers: &HeaderMap) -> Answer<Caller> {
        if self.is_open() {
            let (name, role) = ("local".to_owned(), Role::Operator);
            return Ok(Caller { name, role, payloads: false });
        }
        let refused = |detail: &str| Problem::new(StatusCode::UNAUTHORIZED, detail);
        let Some(authorization) = headers.get(header::AUTHORIZATION) else {
            return Err(refused("send a token as `Authorization: Bearer …`"));
        };
        let given = match authorization.as_bytes().split_at_checked(7) {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer ") => token,
            _ => return Err(refused("only `Authorization: Bearer …` is understood")),
        };
        let given = digest(&SHA256, given.trim_ascii());
        let mut found = None;
        // All of them, always: how long it takes says nothing about which one was nearly right.
        for (known, caller) in &self.known {
            if bool::from(known.as_ref().ct_eq(given.as_ref())) {
                found = Some(caller);
            }
        }
        found.cloned().ok_or_else(|| {
            tracing::info!("a token that is not known was refused");
            refused("this token is not known")
        })
    }
}

/// Lets known callers through, and to anything but reading only operators.
pub(crate) async fn authenticate(
    State(gate): State<Arc<Gate>>,
    mut request: Request,
    next: Next,
) -> Response {
    let caller = match gate.admit(request.headers()) {
        Ok(caller) => caller,
        Err(problem) => return problem.into_response(),
    };
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    if !reads && let Err(problem) = must_operate(&caller) {
        return problem.into_response();
    }
    request.extensions_mut().insert(caller);
    next.run(request).await
}

/// Refuses a viewer.
pub(crate) fn must_operate(caller: &Caller) -> Answer<()> {
    if caller.role < Role::Operator {
        return Err(Problem::forbidden(format!(
            "{} is a viewer; this needs an operator",
            caller.name
        )));
    }
    Ok(())
}

/// Refuses payloads to viewers, and to whoever needed no token: that may be anybody on this machine.
pub(crate) fn must_see_payloads(caller: &Caller) -> Answer<()> {
    must_operate(caller)?;
    if !caller.payloads {
        return Err(Problem::forbidden(
            "without tokens anybody on this machine could read payloads; set admin.tokens to see them",
        ));
    }
    Ok(())
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Answer<Self> {
        parts.extensions.get().cloned().ok_or_else(|| {
            Problem::new(StatusCode::UNAUTHORIZED, "send a token as `Authorization: Bearer …`")
        })
    }
}
