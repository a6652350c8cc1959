//! One request on its way through the layer.

use std::{
    error::Error as StdError,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Method, Request, Response, request::Parts, response};
use http_body::Body;
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use posthaste_core::Error;
use posthaste_stores::idempotency::{IdempotencyDialect, RequestKey, SCOPE};
use sha2::{Digest as _, Sha256};
use tower_service::Service;

use super::{
    Settings,
    claim::{Claimed, Held, claim},
    key::{fingerprint, hexadecimal, key},
    problem::{Loss, Problem},
    response::{gave_up, is_final, replayed, to_store},
    transaction::{Idempotent, Slot},
};

/// A body that passes through, or one that the layer has in memory.
pub type IdempotencyBody<B> = Either<B, Full<Bytes>>;

/// The service of an [`IdempotencyLayer`](super::IdempotencyLayer).
pub struct IdempotencyService<S, DB: IdempotencyDialect> {
    inner: S,
    settings: Arc<Settings<DB>>,
}

impl<S, DB: IdempotencyDialect> IdempotencyService<S, DB> {
    pub(super) fn new(inner: S, settings: Arc<Settings<DB>>) -> Self {
        Self { inner, settings }
    }
}

impl<S: Clone, DB: IdempotencyDialect> Clone for IdempotencyService<S, DB> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), settings: Arc::clone(&self.settings) }
    }
}

type Answer<B> = Response<IdempotencyBody<B>>;

impl<S, DB, I, O> Service<Request<I>> for IdempotencyService<S, DB>
where
    S: Service<Request<IdempotencyBody<I>>, Response = Response<O>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    DB: IdempotencyDialect,
    I: Body<Data = Bytes> + Send + 'static,
    I::Error: Into<Box<dyn StdError + Send + Sync>>,
    O: Body<Data = Bytes> + Send + 'static,
    O::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    type Response = Answer<O>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Answer<O>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<I>) -> Self::Future {
        // The one that was asked whether it is ready is the one that is called.
        let clone = self.inner.clone();
        let inner = mem::replace(&mut self.inner, clone);
        let settings = Arc::clone(&self.settings);
        Box::pin(async move {
            if changes_nothing(request.method()) {
                return pass(inner, request.map(Either::Left)).await;
            }
            let found = key(request.headers());
            match found {
                Ok(Some(key)) => with_key(&settings, inner, request, key).await,
                Ok(None) if settings.required => Ok(answer(&Problem::missing())),
                Ok(None) => without_key(&settings, inner, request).await,
                Err(why) => Ok(answer(&Problem::malformed(why))),
            }
        })
    }
}

fn changes_nothing(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE].contains(method)
}

fn answer<B>(problem: &Problem) -> Answer<B> {
    problem.response().map(Either::Right)
}

async fn pass<S, B, O>(mut inner: S, request: Request<B>) -> Result<Answer<O>, S::Error>
where
    S: Service<Request<B>, Response = Response<O>>,
{
    Ok(inner.call(request).await?.map(Either::Left))
}

/// No key, no promise; but the handler has its transaction, and it commits before the answer.
async fn without_key<S, DB, I, O>(
    settings: &Settings<DB>,
    inner: S,
    mut request: Request<I>,
) -> Result<Answer<O>, S::Error>
where
    S: Service<Request<IdempotencyBody<I>>, Response = Response<O>>,
    DB: IdempotencyDialect,
{
    let handle = Idempotent::new(settings.outbox.clone(), settings.pool.clone(), None);
    request.extensions_mut().insert(handle.clone());
    let response = pass(inner, request.map(Either::Left)).await?;
    Ok(match handle.close() {
        Slot::HandedBack(transaction) if gave_up(response.status()) => {
            drop(transaction.rollback().await);
            response
        }
        Slot::HandedBack(transaction) => match transaction.commit().await {
            Ok(()) => response,
            Err(error) => failed(&error),
        },
        Slot::Begun if is_success(&response) => not_committed(),
        Slot::Ended(_) if is_success(&response) => answer(&Problem::outcome_unknown()),
        _ => response,
    })
}

async fn with_key<S, DB, I, O>(
    settings: &Arc<Settings<DB>>,
    mut inner: S,
    request: Request<I>,
    key: String,
) -> Result<Answer<O>, S::Error>
where
    S: Service<Request<IdempotencyBody<I>>, Response = Response<O>>,
    DB: IdempotencyDialect,
    I: Body<Data = Bytes>,
    I::Error: Into<Box<dyn StdError + Send + Sync>>,
    O: Body<Data = Bytes>,
    O::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    let (parts, body) = request.into_parts();
    // All callers whose scope could not be found would share an empty one.
    let Some(scope) = (settings.scope)(&parts).filter(|scope| !scope.is_empty()) else {
        return Ok(answer(&Problem::nobody()));
    };
    let body = match read(body, settings.max_request).await {
        Ok(body) => body,
        Err(Loss::TooLarge(limit)) => return Ok(answer(&Problem::request_too_large(limit))),
        Err(Loss::Broken) => return Ok(answer(&Problem::request_broken())),
    };
    let fingerprint = fingerprint(&parts.method, &parts.uri, &body);
    let claimed = match stored_scope(scope) {
        Ok(scope) => claim(Arc::clone(settings), RequestKey { scope, key, fingerprint }).await,
        Err(error) => Err(error),
    };
    let held = match claimed {
        Ok(Claimed::Held(held)) => held,
        Ok(Claimed::Running) => return Ok(answer(&Problem::running())),
        Ok(Claimed::OtherRequest) => return Ok(answer(&Problem::other_request())),
        Ok(Claimed::Completed(stored)) => {
            return Ok(match replayed(stored) {
                Ok(response) => response.map(Either::Right),
                Err(error) => failed(&error),
            });
        }
        Err(error) => return Ok(failed(&error)),
    };
    let (request, handle) = keyed_request(settings, parts, body, held.key());
    let (parts, body) = inner.call(request).await?.into_parts();
    let body = read(body, settings.max_response).await;
    Ok(finish(held, handle.close(), parts, body).await)
}

fn keyed_request<DB: IdempotencyDialect, I>(
    settings: &Settings<DB>,
    mut parts: Parts,
    body: Bytes,
    key: &str,
) -> (Request<IdempotencyBody<I>>, Idempotent<DB>) {
    let handle =
        Idempotent::new(settings.outbox.clone(), settings.pool.clone(), Some(key.to_owned()));
    parts.extensions.insert(handle.clone());
    (Request::from_parts(parts, Either::Right(Full::new(body))), handle)
}

/// The handler has answered: its transaction and the response become one, or neither is.
async fn finish<DB: IdempotencyDialect, O>(
    held: Held<DB>,
    slot: Slot<DB>,
    parts: response::Parts,
    body: Result<Bytes, Loss>,
) -> Answer<O> {
    let mut refusal = None;
    let mut slot = match slot {
        Slot::HandedBack(mut transaction) => match transaction.refuse_given_up() {
            Err(error) if transaction.may_be_committed() => {
                refusal = Some(error);
                // Here what is left of it is rolled back: whoever looks for its event waits for
                // that.
                Slot::Ended(transaction.first_event_of(held.outbox()).map(Box::new))
            }
            _ => Slot::HandedBack(transaction),
        },
        slot => slot,
    };
    if let Slot::Ended(event) = slot {
        if held.may_have_taken_effect(event).await {
            return outcome_unknown(held).await;
        }
        if let Some(error) = refusal
            && !gave_up(parts.status)
        {
            held.release().await;
            return failed(&error);
        }
        slot = Slot::Begun;
    }
    match (slot, body) {
        (Slot::HandedBack(transaction), Ok(body)) if gave_up(parts.status) => {
            drop(transaction.rollback().await);
            held.release().await;
            whole(parts, body)
        }
        (Slot::HandedBack(transaction), Ok(body)) => {
            let stored = to_store(parts.status, &parts.headers, &body);
            match held.commit(transaction, stored).await {
                Ok(true) => whole(parts, body),
                // Overtaken after its lease had ended: the other one's response counts.
                Ok(false) => answer(&Problem::running()),
                Err(error) => failed(&error),
            }
        }
        (Slot::HandedBack(transaction), Err(loss)) => {
            // Rolled back before the key is free, or a repeat could meet what is being undone.
            drop(transaction.rollback().await);
            held.release().await;
            lost(&loss, true)
        }
        (Slot::Begun | Slot::Ended(_) | Slot::Closed, body) => {
            held.release().await;
            match body {
                _ if parts.status.as_u16() < 400 => not_committed(),
                Ok(body) => whole(parts, body),
                Err(loss) => lost(&loss, true),
            }
        }
        (Slot::Unused, Ok(body)) => {
            if is_final(parts.status) {
                store(held, to_store(parts.status, &parts.headers, &body)).await;
            } else {
                held.release().await;
            }
            whole(parts, body)
        }
        (Slot::Unused, Err(loss)) => {
            let (status, headers, body) = Problem::response_lost(&loss, false).parts();
            store(held, to_store(status, &headers, &body)).await;
            lost(&loss, false)
        }
    }
}

/// There may be an effect without its response: no repeat may add another one.
async fn outcome_unknown<DB: IdempotencyDialect, O>(held: Held<DB>) -> Answer<O> {
    tracing::error!(
        "the driver has ended a handler's transaction by itself, and may have committed it"
    );
    let problem = Problem::outcome_unknown();
    let (status, headers, body) = problem.parts();
    store(held, to_store(status, &headers, &body)).await;
    answer(&problem)
}

/// The effect has happened already, so that the answer is given whatever becomes of its record.
async fn store<DB: IdempotencyDialect>(
    held: Held<DB>,
    response: posthaste_stores::idempotency::StoredResponse,
) {
    if let Err(error) = held.store(response).await {
        tracing::error!(%error, "a response was not stored; a repeat of its request will run again");
    }
}

async fn read<B>(body: B, limit: usize) -> Result<Bytes, Loss>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Loss::TooLarge(limit)),
        Err(_) => Err(Loss::Broken),
    }
}

fn whole<O>(parts: response::Parts, body: Bytes) -> Answer<O> {
    Response::from_parts(parts, Either::Right(Full::new(body)))
}

fn is_success<B>(response: &Response<B>) -> bool {
    response.status().as_u16() < 400
}

fn not_committed<O>() -> Answer<O> {
    tracing::error!(
        "a handler began the request's transaction, did not hand it back and reported success"
    );
    answer(&Problem::not_committed())
}

fn lost<O>(loss: &Loss, undone: bool) -> Answer<O> {
    tracing::error!(undone, "a response could not be stored: it is too large, or broke off");
    answer(&Problem::response_lost(loss, undone))
}

fn failed<O>(error: &Error) -> Answer<O> {
    tracing::error!(%error, "an idempotency key could not be honoured");
    answer(&Problem::database(error))
}

/// What stands before a scope that is stored as its hash.
const HASHED: &str = "sha256:";

/// The scope as it is stored: itself, or its hash where it is too long. One that looks like a hash is hashed, so
/// that no two are the same.
fn stored_scope(scope: String) -> Result<String, Error> {
    if scope.contains('\0') {
        return Err(Error::invalid("the scope of an idempotency key must not contain U+0000"));
    }
    if scope.chars().count() <= SCOPE && !scope.starts_with(HASHED) {
        return Ok(scope);
    }
    Ok(format!("{HASHED}{}", hexadecimal(&Sha256::digest(&scope))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_that_is_too_long_is_stored_as_its_hash() {
        let stored = |scope: &str| stored_scope(scope.to_owned()).unwrap();
        let longest = "ä".repeat(SCOPE);
        assert_eq!(stored(&longest), longest);
        let hash = stored(&"a".repeat(101));
        assert!(hash.starts_with(HASHED) && hash.len() == HASHED.len() + 64, "{hash}");
        assert_ne!(hash, stored(&"a".repeat(102)));
        // Nobody who may choose their scope takes another one's.
        assert_ne!(stored(&hash), hash);
        assert!(stored_scope("a\0".to_owned()).is_err());
    }
}
