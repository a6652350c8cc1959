//! A function of the application's that takes events, as destinations in the same process keep it.

use std::pin::Pin;

use posthaste_core::{Envelope, Failure, Result};
#[cfg(feature = "handlers")]
use {posthaste_core::TypedEvent, serde::de::DeserializeOwned};

pub(crate) type Receiver = Box<
    dyn Fn(Envelope) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>> + Send + Sync,
>;

pub(crate) fn receiver<F>(function: impl Fn(Envelope) -> F + Send + Sync + 'static) -> Receiver
where
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    Box::new(move |envelope| Box::pin(function(envelope)))
}

/// A function that takes its event typed. What cannot be decoded is dead.
#[cfg(feature = "handlers")]
pub(crate) fn typed_receiver<T, F>(
    function: impl Fn(T, Envelope) -> F + Send + Sync + 'static,
) -> Receiver
where
    T: TypedEvent + DeserializeOwned,
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    Box::new(move |envelope| match envelope.event.decode() {
        Ok(event) => Box::pin(function(event, envelope)),
        Err(failure) => Box::pin(std::future::ready(Err(failure))),
    })
}
