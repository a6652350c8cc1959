use posthaste::{Enqueued, Outbox, Result};
use sqlx::{AssertSqlSafe, Connection, MySql, Pool, Postgres, Sqlite};

use super::adapter::{Adapter, End, Route, Settings, Step, is_conflict};
use crate::support::Fixture;

pub struct Sqlx09<DB: sqlx::Database> {
    pool: Pool<DB>,
    through_pooler: bool,
}

macro_rules! on_sqlx_09 {
    ($($database:ty),*) => {$(
        impl Adapter for Sqlx09<$database> {
            type Database = $database;

            async fn connect(on: &Fixture<$database>, route: Route) -> Self {
                match route {
                    Route::Direct => Self { pool: on.pool.clone(), through_pooler: false },
                    _ => Self {
                        pool: Pool::connect(&route.url()).await.unwrap(),
                        through_pooler: true,
                    },
                }
            }

            async fn transaction(
                &mut self,
                settings: &Settings,
                steps: Vec<Step>,
                end: End,
            ) -> Result<Vec<Enqueued>> {
                let mut outbox: Outbox<$database> = settings.outbox();
                if self.through_pooler {
                    outbox = outbox.without_named_statements();
                }
                let mut enqueued = Vec::new();
                let mut tx = self.pool.begin().await.unwrap();
                for step in steps {
                    match step {
                        Step::Enqueue(events) => {
                            enqueued.extend(outbox.enqueue_all(&mut tx, events).await?);
                        }
                        Step::Conflict(events) => {
                            is_conflict(outbox.enqueue_all(&mut tx, events).await);
                        }
                        Step::InSavepoint { events, keep } => {
                            let mut savepoint = tx.begin().await.unwrap();
                            enqueued.extend(outbox.enqueue_all(&mut savepoint, events).await?);
                            if keep {
                                savepoint.commit().await.unwrap();
                            } else {
                                savepoint.rollback().await.unwrap();
                            }
                        }
                        Step::Meanwhile(future) => future.await,
                        Step::Sql(sql) => {
                            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *tx).await.unwrap();
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
    )*};
}

on_sqlx_09!(Postgres, MySql, Sqlite);
