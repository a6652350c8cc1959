//! What every store must do, as one named test a claim.
//!
//! A store proves itself with one call in its tests:
//!
//! ```ignore
//! async fn subject() -> Option<Subject<Postgres>> {
//!     let url = std::env::var("POSTHASTE_TEST_POSTGRES").ok()?; // None: skipped, and said so
//!     let pool = PgPoolOptions::new().max_connections(12).connect(&url).await.unwrap();
//!     Some(Subject::new(pool))
//! }
//!
//! posthaste_testkit::store_conformance!(subject);
//! ```
//!
//! It becomes a `#[test]` for every case, in modules by theme
//! (`leases::an_expired_lease_is_taken_by_another_relay`). Each case makes outboxes of its own under
//! unique names and drops them in the end, so that cases run side by side in one database.
//!
//! Cases know the store by its contracts (`posthaste_core::store`) and the tables by what
//! applications may rely on when they write in plain SQL. No case sleeps: where time must pass,
//! leases last milliseconds and the case asks the store until the database says that they are over.

// A case that finds a fault panics: that is its answer.
#![allow(clippy::missing_panics_doc)]

mod subject;

mod outbox;

mod cases;

pub mod schema;

use std::{panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt;
use posthaste_stores::Dialect;

pub use self::subject::Subject;

/// No case takes so long unless something hangs.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Runs one case on a subject of its own, in a runtime of its own; [`store_conformance!`] calls it.
///
/// [`store_conformance!`]: crate::store_conformance
pub fn run<DB: Dialect>(
    subject: impl AsyncFnOnce() -> Option<Subject<DB>>,
    case: impl AsyncFnOnce(&Subject<DB>),
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be started");
    runtime.block_on(async {
        let Some(subject) = subject().await else {
            eprintln!("skipped: there is no database to run it on");
            return;
        };
        let case = AssertUnwindSafe(case(&subject)).catch_unwind();
        let outcome = tokio::time::timeout(TIME_LIMIT, case).await;
        // A failed case may have left a transaction open, for whose locks a drop would wait.
        let _ = tokio::time::timeout(Duration::from_secs(10), subject.clean()).await;
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(fault)) => std::panic::resume_unwind(fault),
            Err(_) => panic!("the case did not end within {TIME_LIMIT:?}"),
        }
    });
}
#[cfg(test)]
mod tests {
    use super::*;
    #[allow(dead_code)]
    fn x<DB: Dialect>(subject: impl AsyncFnOnce() -> Option<Subject<DB>>) {
        run(subject, schema::migrating_again_changes_nothing);
    }
}
