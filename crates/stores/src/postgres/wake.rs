//! Learning of commits by NOTIFY.
//!
//! Never inside the business transaction: a transaction that notifies takes a lock at its commit
//! that every other such commit of the server waits for.

use std::time::Duration;

use async_trait::async_trait;
use posthaste_core::{
    Error, ErrorKind, Result,
    store::{Listener, Wake},
};
use sqlx::{
    AssertSqlSafe, Executor, Postgres,
    postgres::{PgListener, PgPoolOptions},
};
use tokio::time::timeout;

use super::{PostgresStore, connect_options};
use crate::{
    connect::ACQUIRE_TIMEOUT,
    failure::{failed, not_connected},
    sessions::Lent,
};

/// After so long without a notification the server is asked whether it is there.
const SILENCE: Duration = Duration::from_secs(10);

/// How long it may take to say so.
const ANSWER: Duration = Duration::from_secs(4);

#[async_trait]
impl Wake for PostgresStore {
    async fn listen(&self) -> Result<Option<Box<dyn Listener>>> {
        let listener = self.listener(&self.tables.name().channel()).await?;
        Ok(Some(Box::new(PostgresListener(listener))))
    }

    async fn notify(&self) -> Result<bool> {
        const NOTIFY: &str = "select pg_notify($1, '')";

        if !self.tables.named_statements() {
            self.notify_plainly().await?;
            return Ok(true);
        }
        let mut session = self.sessions.take("notifying").await?;
        sqlx::query(NOTIFY)
            .bind(self.tables.name().channel())
            .execute(&mut *session)
            .await
            .map_err(failed("notifying"))?;
        session.done();
        Ok(true)
    }
}

impl PostgresStore {
    /// For a writer behind a transaction pooler, whose session is anybody's: nothing is set in it, nothing is
    /// prepared, and the connection goes back to the writer's pool.
    async fn notify_plainly(&self) -> Result<()> {
        let doing = "notifying";
        let mut lent = Lent::from(&self.pool, doing).await?;
        // Of lowercase letters, digits and underscores; the simple protocol binds nothing.
        let notify = format!("select pg_notify('{}', '')", self.tables.name().channel());
        lent.get()?.execute(AssertSqlSafe(notify)).await.map_err(failed(doing))?;
        lent.done();
        Ok(())
    }

    /// Listens on a connection of its own: one out of the store's pool would be missing there.
    pub(super) async fn listener(&self, channel: &str) -> Result<PgListener> {
        const CONNECTING: &str = "connecting to listen";

        let options = match &self.listen_url {
            Some(url) => connect_options(url.expose())?,
            None => (*self.pool.connect_options()).clone(),
        };
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .max_lifetime(None)
            .idle_timeout(None)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .connect_with(options)
            .await
            .map_err(not_connected::<Postgres>(CONNECTING))?;
        let mut listener = PgListener::connect_with(&pool).await.map_err(failed(CONNECTING))?;
        // A lost connection is the caller's to know: what was notified meanwhile is lost as well.
        listener.eager_reconnect(false);
        listener.listen(channel).await.map_err(failed("listening"))?;
        Ok(listener)
    }
}

struct PostgresListener(PgListener);

#[async_trait]
impl Listener for PostgresListener {
    async fn wait(&mut self) -> Result<()> {
        loop {
            // A server that has gone away without a word notifies nobody, and looks like one that has
            // nothing to tell.
            let Ok(notified) = timeout(SILENCE, self.0.try_recv()).await else {
                self.ask().await?;
                continue;
            };
            return match notified.map_err(failed("listening"))? {
                Some(_) => Ok(()),
                None => Err(lost("the connection to PostgreSQL was lost")),
            };
        }
    }
}

impl PostgresListener {
    /// Whether the server is still there.
    async fn ask(&mut self) -> Result<()> {
        match timeout(ANSWER, self.0.execute("select 1")).await {
            Ok(answer) => answer.map(drop).map_err(failed("listening")),
            Err(_) => Err(lost("PostgreSQL does not answer")),
        }
    }
}

fn lost(why: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("listening failed: {why}"))
}
