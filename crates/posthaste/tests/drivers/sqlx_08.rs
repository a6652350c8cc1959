use futures_util::FutureExt;
use posthaste::{Enqueued, ErrorKind, Result};
use posthaste_sqlx_08::InTransaction;
use sqlx_core_08::{acquire::Acquire, executor::Executor};
use sqlx_postgres_08::PgPool;

use super::adapter::{Adapter, End, Route, Settings, Step, is_conflict};
use crate::support::{Fixture, TestDatabase, event};

pub struct Sqlx08(PgPool);

impl Adapter for Sqlx08 {
    type Database = sqlx::Postgres;

    async fn connect(_: &Fixture<sqlx::Postgres>, route: Route) -> Self {
        Self(PgPool::connect(&route.url()).await.unwrap())
    }

    async fn transaction(
        &mut self,
        settings: &Settings,
        steps: Vec<Step>,
        end: End,
    ) -> Result<Vec<Enqueued>> {
        let outbox = settings.postgres_outbox();
        let mut enqueued = Vec::new();
        let mut tx = self.0.begin().await.unwrap();
        for step in steps {
            match step {
                Step::Enqueue(events) => {
                    enqueued.extend(outbox.enqueue_all(&mut InTransaction(&mut tx), events).await?);
                }
                Step::Conflict(events) => {
                    is_conflict(outbox.enqueue_all(&mut InTransaction(&mut tx), events).await);
                }
                Step::InSavepoint { events, keep } => {
                    let mut savepoint = tx.begin().await.unwrap();
                    let mut inside = InTransaction(&mut savepoint);
                    enqueued.extend(outbox.enqueue_all(&mut inside, events).await?);
                    if keep {
                        savepoint.commit().await.unwrap();
                    } else {
                        savepoint.rollback().await.unwrap();
                    }
                }
                Step::Meanwhile(future) => future.await,
                Step::Sql(sql) => {
                    (&mut *tx).execute(&*sql).await.unwrap();
                }
            }
        }
        match end {
            End::Commit => tx.commit().await.unwrap(),
            End::Rollback => tx.rollback().await.unwrap(),
            End::Drop => drop(tx),
        }
        Ok(enqueued)
    }
}

/// As with a timeout around it. The driver rolls back the whole transaction, and what comes commits by itself.
#[tokio::test]
async fn after_a_savepoint_that_was_given_up_nothing_is_enqueued() {
    let on = sqlx::Postgres::fixture().await;
    let adapter = Sqlx08::connect(&on, Route::Direct).await;
    let outbox = Settings::of(on.table()).postgres_outbox();
    for many in [1, 3] {
        let mut tx = adapter.0.begin().await.unwrap();
        // Polled once, it is dropped half-way.
        while tx.begin().now_or_never().is_some() {}
        let events = (0..many).map(|n| event("k", n)).collect();
        let refused = outbox.enqueue_all(&mut InTransaction(&mut tx), events).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::State, "{refused}");
    }
    assert_eq!(on.number("select count(*) from {events}").await, 0);
    on.clean().await;
}
