//! Why the application's own code, a handler or a subscriber, could not take an event.

use std::{any::type_name, borrow::Cow, time::Duration};

use crate::transport::Outcome;

/// Why a handler failed, and what is to become of the event.
///
/// What is kept with the event and logged is a text of the program's own. An error that is
/// converted with `?` shows only its type: its message may quote the event, and no payload belongs
/// in logs and errors.
///
/// ```
/// use posthaste_core::Failure;
///
/// fn handle(payload: &[u8]) -> Result<(), Failure> {
///     let text = std::str::from_utf8(payload)?;
///     if text.is_empty() {
///         return Err(Failure::dead("an order without lines"));
///     }
///     Ok(())
/// }
///
/// assert_eq!(handle(b"\xff").unwrap_err().reason(), "failed with core::str::error::Utf8Error");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    reason: Cow<'static, str>,
    permanent: bool,
    after: Option<Duration>,
}

impl Failure {
    /// It may succeed later: an attempt is counted.
    pub fn retry(reason: &'static str) -> Self {
        Self { reason: reason.into(), permanent: false, after: None }
    }

    /// It may succeed after this time: no attempt is counted.
    pub fn retry_after(reason: &'static str, after: Duration) -> Self {
        Self { after: Some(after), ..Self::retry(reason) }
    }

    /// It will never succeed.
    pub fn dead(reason: &'static str) -> Self {
        Self { permanent: true, ..Self::retry(reason) }
    }

    /// It will never succeed, for a reason that this crate put together.
    pub(crate) fn dead_because(reason: String) -> Self {
        Self { reason: reason.into(), permanent: true, after: None }
    }

    /// It may succeed after this time, for a reason that this crate put together.
    pub(crate) fn retry_after_because(reason: String, after: Duration) -> Self {
        Self { reason: reason.into(), permanent: false, after: Some(after) }
    }

    /// Why, without a word of the event.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Whether it will never succeed.
    pub fn is_permanent(&self) -> bool {
        self.permanent
    }

    /// The time after which it may succeed, if it named one.
    pub fn after(&self) -> Option<Duration> {
        self.after
    }

    /// What the relay is told.
    pub fn into_outcome(self) -> Outcome {
        let error = self.reason.into_owned();
        if self.permanent {
            Outcome::Dead { error }
        } else {
            Outcome::Retry { error, after: self.after }
        }
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(_: E) -> Self {
        Self {
            reason: format!("failed with {}", type_name::<E>()).into(),
            permanent: false,
            after: None,
        }
    }
}
