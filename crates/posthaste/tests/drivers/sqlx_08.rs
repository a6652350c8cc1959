use posthaste::{Enqueued, Result};
use posthaste_sqlx_08::InTransaction;
use sqlx_core_08::{acquire::Acquire, executor::Executor};
use sqlx_postgres_08::PgPool;

use super::adapter::{Adapter, End, Route, Settings, Step};
use crate::support::Fixture;

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
