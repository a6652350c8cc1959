//! What every transport must do, as one named test a claim, against a real server.
//!
//! A transport proves itself with one call in its tests:
//!
//! ```text
//! async fn nats() -> Option<Nats> {
//!     std::env::var("POSTHASTE_TEST_NATS").ok()?; // None: skipped, and said so
//!     Some(Nats)                                  // implements Destination
//! }
//!
//! posthaste_testkit::transport_conformance!(nats);
//! ```
//!
//! It becomes a `#[test]` for every case, in modules by theme
//! (`refuse::a_message_that_is_too_large_is_dead_and_the_next_one_goes_on`). Each case has a topic of
//! its own, so that cases run side by side on one server; cases that kill the server start one of
//! their own.
//!
//! What arrived is read back with a client that shares no code with the transport: a small Python
//! program under `consumers/`, run by the interpreter that `POSTHASTE_TEST_PYTHON` names. What the
//! transport declares in its capabilities, and the subject in its [`Traits`], chooses which cases
//! apply.

// A case that finds a fault panics: that is its answer.
#![allow(clippy::missing_panics_doc)]

mod destination;

mod server;

mod consumer;

mod fixture;

mod cases;

pub mod deliver;

pub mod content;

pub mod format;

pub mod order;

pub mod outage;

pub mod refuse;

pub mod hang_up;

pub mod repeat;

pub mod check;

use std::time::Duration;

pub use self::{
    consumer::{Received, consume, consumer, feed},
    destination::{Destination, Options, Traits},
    server::Server,
};

/// No case takes so long unless something hangs.
const TIME_LIMIT: Duration = Duration::from_mins(2);

/// Runs one case on a subject of its own, in a runtime of its own; [`transport_conformance!`]
/// calls it.
///
/// [`transport_conformance!`]: crate::transport_conformance
pub fn run<D: Destination>(
    subject: impl AsyncFnOnce() -> Option<D>,
    case: impl AsyncFnOnce(&dyn Destination),
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be started");
    runtime.block_on(async {
        let Some(subject) = subject().await else {
            eprintln!("skipped: there is no server to run it on");
            return;
        };
        tokio::time::timeout(TIME_LIMIT, case(&subject))
            .await
            .unwrap_or_else(|_| panic!("the case hung for {TIME_LIMIT:?}"));
    });
}

#[cfg(test)]
mod tests {
    use crate::listed::every_case_is_listed;

    /// What the macro turns into tests, and what the themes hold.
    const LIST: &str = include_str!("cases.rs");
    const THEMES: [(&str, &str); 9] = [
        ("deliver", include_str!("deliver.rs")),
        ("content", include_str!("content.rs")),
        ("format", include_str!("format.rs")),
        ("order", include_str!("order.rs")),
        ("outage", include_str!("outage.rs")),
        ("refuse", include_str!("refuse.rs")),
        ("hang_up", include_str!("hang_up.rs")),
        ("repeat", include_str!("repeat.rs")),
        ("check", include_str!("check.rs")),
    ];

    #[test]
    fn every_case_of_every_theme_becomes_a_test() {
        every_case_is_listed(LIST, &THEMES);
    }
}
