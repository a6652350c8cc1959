use posthaste::deadpool_postgres::{Manager, Pool};
use posthaste::tokio_postgres::{Client, Config, NoTls};
use posthaste::{Enqueued, Result};

use super::adapter::{Adapter, End, Route, Settings, Step, is_conflict};
use crate::support::Fixture;

pub struct TokioPostgres(Client);

pub struct Deadpool(Pool);

/// The two differ in how a transaction begins.
macro_rules! run {
    ($client:expr, $settings:expr, $steps:expr, $end:expr) => {{
        let outbox = $settings.postgres_outbox();
        let mut enqueued = Vec::new();
        let mut tx = $client.transaction().await.unwrap();
        for step in $steps {
            match step {
                Step::Enqueue(events) => {
                    enqueued.extend(outbox.enqueue_all(&mut tx, events).await?);
                }
                Step::Conflict(events) => {
                    is_conflict(outbox.enqueue_all(&mut tx, events).await);
                }
                Step::InSavepoint { events, keep } => {
                    let mut savepoint = tx.transaction().await.unwrap();
                    enqueued.extend(outbox.enqueue_all(&mut savepoint, events).await?);
                    if keep {
                        savepoint.commit().await.unwrap();
                    } else {
                        savepoint.rollback().await.unwrap();
                    }
                }
                Step::Meanwhile(future) => future.await,
                Step::Sql(sql) => tx.batch_execute(&sql).await.unwrap(),
            }
        }
        match $end {
            End::Commit => tx.commit().await.unwrap(),
            End::Rollback => tx.rollback().await.unwrap(),
            End::Drop => drop(tx),
        }
        Ok(enqueued)
    }};
}

impl Adapter for TokioPostgres {
    type Database = sqlx::Postgres;

    async fn connect(_: &Fixture<sqlx::Postgres>, route: Route) -> Self {
        let (client, connection) = tokio_postgres::connect(&route.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        Self(client)
    }

    async fn transaction(
        &mut self,
        settings: &Settings,
        steps: Vec<Step>,
        end: End,
    ) -> Result<Vec<Enqueued>> {
        run!(self.0, settings, steps, end)
    }
}

impl Adapter for Deadpool {
    type Database = sqlx::Postgres;

    async fn connect(_: &Fixture<sqlx::Postgres>, route: Route) -> Self {
        let config: Config = route.url().parse().unwrap();
        Self(Pool::builder(Manager::new(config, NoTls)).max_size(4).build().unwrap())
    }

    async fn transaction(
        &mut self,
        settings: &Settings,
        steps: Vec<Step>,
        end: End,
    ) -> Result<Vec<Enqueued>> {
        let mut client = self.0.get().await.unwrap();
        run!(client, settings, steps, end)
    }
}
