use posthaste::{
    Enqueued, Result,
    sea_orm::{ConnectOptions, ConnectionTrait, Database, DatabaseConnection, TransactionTrait},
};

use super::adapter::{Adapter, End, Route, Settings, Step, is_conflict};
use crate::support::Fixture;

pub struct SeaOrm(DatabaseConnection);

impl Adapter for SeaOrm {
    type Database = sqlx::Postgres;

    async fn connect(_: &Fixture<sqlx::Postgres>, route: Route) -> Self {
        let mut options = ConnectOptions::new(route.url());
        options.max_connections(4).sqlx_logging(false);
        if route != Route::Direct {
            // A name that was prepared in one transaction is gone in the next.
            options.map_sqlx_postgres_opts(|options| options.statement_cache_capacity(0));
        }
        Self(Database::connect(options).await.unwrap())
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
                    tx.execute_unprepared(&sql).await.unwrap();
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
