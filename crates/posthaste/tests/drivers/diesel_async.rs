use posthaste::{
    Enqueued, Error, ErrorKind, Result,
    diesel::result::{ConnectionError, Error as DieselError},
    diesel_async::{AsyncConnection, AsyncPgConnection, SimpleAsyncConnection},
};

use super::{
    adapter::{Adapter, End, Route, Settings, Step, is_conflict},
    cases::cut,
};
use crate::support::{Fixture, TestDatabase, event};

pub struct DieselAsync(AsyncPgConnection);

/// A closure's way to say that its transaction shall not be kept.
enum Undo {
    OnPurpose(Vec<Enqueued>),
    Refused(Error),
}

impl From<DieselError> for Undo {
    fn from(error: DieselError) -> Self {
        panic!("{error}")
    }
}

impl From<Error> for Undo {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl Adapter for DieselAsync {
    type Database = sqlx::Postgres;

    async fn connect(_: &Fixture<sqlx::Postgres>, route: Route) -> Self {
        // The driver prepares what it sets up a connection with before any transaction, which an old
        // pooler can send to two servers. A pool would try again as well.
        for _ in 0..100 {
            match AsyncPgConnection::establish(&route.url()).await {
                Err(ConnectionError::CouldntSetupConfiguration(_)) => {}
                connection => return Self(connection.unwrap()),
            }
        }
        panic!("the pooler never kept a connection to one server");
    }

    async fn transaction(
        &mut self,
        settings: &Settings,
        steps: Vec<Step>,
        end: End,
    ) -> Result<Vec<Enqueued>> {
        let outbox = &settings.postgres_outbox();
        let done = self.0.transaction(async |connection| {
            let mut enqueued = Vec::new();
            for step in steps {
                match step {
                    Step::Enqueue(events) => {
                        enqueued.extend(outbox.enqueue_all(connection, events).await?);
                    }
                    Step::Conflict(events) => {
                        is_conflict(outbox.enqueue_all(connection, events).await);
                    }
                    Step::InSavepoint { events, keep } => {
                        let inside = connection.transaction(async |connection| {
                            let enqueued = outbox.enqueue_all(connection, events).await?;
                            if keep { Ok(enqueued) } else { Err(Undo::OnPurpose(enqueued)) }
                        });
                        match inside.await {
                            Ok(inside) | Err(Undo::OnPurpose(inside)) => enqueued.extend(inside),
                            Err(refused) => return Err(refused),
                        }
                    }
                    Step::Meanwhile(future) => future.await,
                    Step::Sql(sql) => connection.batch_execute(&sql).await?,
                }
            }
            if end == End::Commit { Ok(enqueued) } else { Err(Undo::OnPurpose(enqueued)) }
        });
        match done.await {
            Ok(enqueued) | Err(Undo::OnPurpose(enqueued)) => Ok(enqueued),
            Err(Undo::Refused(error)) => Err(error),
        }
    }
}

#[tokio::test]
async fn a_connection_without_a_transaction_is_refused() {
    let on = sqlx::Postgres::fixture().await;
    let mut adapter = DieselAsync::connect(&on, Route::Direct).await;
    let outbox = Settings::of(on.table()).postgres_outbox();
    let error = outbox.enqueue(&mut adapter.0, event("1", 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::State, "{error}");
    assert_eq!(on.store.counts(u64::MAX).await.unwrap().new, 0);
    on.clean().await;
}

/// Not among the cases: what `transaction` gives back is the failure of its own rollback.
#[tokio::test]
async fn a_lost_connection_is_worth_another_try() {
    let on = sqlx::Postgres::fixture().await;
    let mut adapter = DieselAsync::connect(&on, Route::Direct).await;
    let outbox = Settings::of(on.table()).postgres_outbox();
    let (mark, cut) = cut(&on);
    let mut answer = None;
    let transaction = adapter.0.transaction(async |connection| {
        connection.batch_execute(&mark).await?;
        cut.await;
        // diesel keeps no code of the server's farewell, which whoever comes first gets to read.
        let _ = connection.batch_execute("select 1").await;
        answer = Some(outbox.enqueue(connection, event("1", 1)).await);
        Ok::<_, DieselError>(())
    });
    assert!(transaction.await.is_err());
    let error = answer.unwrap().unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    on.clean().await;
}
