//! What every store must do, as one named test a claim.
//!
//! A store proves itself with one call in its tests. For a database that sqlx speaks to (feature
//! `sqlx`):
//!
#![cfg_attr(feature = "sqlx", doc = "```")]
#![cfg_attr(not(feature = "sqlx"), doc = "```ignore")]
//! # use posthaste_testkit::conformance::Subject;
//! # use sqlx::postgres::PgPoolOptions;
//! async fn subject() -> Option<Subject> {
//!     let url = std::env::var("POSTHASTE_TEST_POSTGRES").ok()?; // None: skipped, and said so
//!     let pool = PgPoolOptions::new().max_connections(12).connect(&url).await.unwrap();
//!     Some(Subject::new(pool))
//! }
//!
//! posthaste_testkit::store_conformance!(subject);
//! # fn main() {}
//! ```
//!
//! It becomes a `#[test]` for every case, in modules by theme
//! (`leases::an_expired_lease_is_taken_by_another_relay`). Each case makes outboxes of its own
//! under unique names and drops them in the end, so that cases run side by side in one database.
//!
//! Any other database implements [`Database`] and [`Writer`]: the feature `conformance` alone
//! builds without sqlx. A few cases are about plain SQL itself: writers in other languages, printed
//! migrations, business rows in one transaction with an event, locks on a shard's row. Where a
//! database has no SQL, the call is `store_conformance!(subject, without sql)`, and these cases are
//! ignored tests, which every report lists.
//!
//! Cases know the store by its contracts (`posthaste_core::store`), and change an outbox past its
//! store by the names in [`Edit`]. No case sleeps: where time must pass, leases last milliseconds
//! and the case asks the store until the database says that they are over.

// A case that finds a fault panics: that is its answer.
#![allow(clippy::missing_panics_doc)]

mod database;

mod subject;

#[cfg(feature = "sqlx")]
mod dialect;

mod outbox;

mod relays;

mod states;

mod cases;

pub mod schema;

pub mod enqueue;

pub mod idempotent;

pub mod content;

pub mod leases;

pub mod read;

pub mod late;

pub mod hot;

pub mod claim;

pub mod sweep;

pub mod settle;

pub mod fence;

pub mod inspect;

pub mod operate;

pub mod purge;

pub mod control;

pub mod diagnose;

pub mod wake;

use std::{panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt;

#[cfg(feature = "sqlx")]
pub use self::dialect::SqlxDatabase;
pub use self::{
    database::{Database, Edit, PlainEvent, Sql, Writer},
    subject::Subject,
};

/// No case takes so long unless something hangs.
const TIME_LIMIT: Duration = Duration::from_mins(2);

/// Runs one case on a subject of its own, in a runtime of its own; [`store_conformance!`] calls it.
///
/// [`store_conformance!`]: crate::store_conformance
pub fn run(subject: impl AsyncFnOnce() -> Option<Subject>, case: impl AsyncFnOnce(&Subject)) {
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
        let verdict = outcome.unwrap_or_else(|_| panic!("the case hung for {TIME_LIMIT:?}"));
        if let Err(fault) = verdict {
            std::panic::resume_unwind(fault);
        }
    });
}
#[cfg(test)]
mod tests {
    use crate::listed::{bodies, every_case_is_listed};

    /// What the macro turns into tests, and what the themes hold.
    const LIST: &str = include_str!("cases.rs");
    const THEMES: [(&str, &str); 18] = [
        ("schema", include_str!("schema.rs")),
        ("enqueue", include_str!("enqueue.rs")),
        ("idempotent", include_str!("idempotent.rs")),
        ("content", include_str!("content.rs")),
        ("leases", include_str!("leases.rs")),
        ("read", include_str!("read.rs")),
        ("late", include_str!("late.rs")),
        ("hot", include_str!("hot.rs")),
        ("claim", include_str!("claim.rs")),
        ("sweep", include_str!("sweep.rs")),
        ("settle", include_str!("settle.rs")),
        ("fence", include_str!("fence.rs")),
        ("inspect", include_str!("inspect.rs")),
        ("operate", include_str!("operate.rs")),
        ("purge", include_str!("purge.rs")),
        ("control", include_str!("control.rs")),
        ("diagnose", include_str!("diagnose.rs")),
        ("wake", include_str!("wake.rs")),
    ];

    #[test]
    fn every_case_of_every_theme_becomes_a_test() {
        every_case_is_listed(LIST, &THEMES);
    }

    #[test]
    fn cases_that_need_plain_sql_are_marked_and_no_others() {
        for (theme, source) in THEMES {
            for (case, body) in bodies(source) {
                let marked = LIST.contains(&format!("#[sql] {case}\n"));
                let needs =
                    [".sql(", ".sql_on(", ".plain_sql("].iter().any(|call| body.contains(call));
                assert_eq!(marked, needs, "{theme}::{case}");
            }
        }
    }
}
