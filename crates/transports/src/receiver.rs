//! A function of the application's that takes events, as destinations in the same process keep it.

use std::pin::Pin;

use posthaste_core::{Envelope, Failure, Result};

pub(crate) type Receiver = Box<
    dyn Fn(Envelope) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>> + Send + Sync,
>;

pub(crate) fn receiver<F>(function: impl Fn(Envelope) -> F + Send + Sync + 'static) -> Receiver
where
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    Box::new(move |envelope| Box::pin(function(envelope)))
}
