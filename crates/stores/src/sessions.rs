//! Connections that a store keeps for its relay.
//!
//! A pool asks the server whether a connection lives before it lends it and again when it comes
//! back: three round trips for a statement instead of one. A relay's statements are all its work,
//! and it repeats what failed. So it takes connections out of the pool for good, and those whose
//! work came to its end are used again without a question.

use std::{
    ops::{Deref, DerefMut},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use posthaste_core::Result;
use sqlx::{Database, Executor, Pool, pool::PoolConnection};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::{connect::ACQUIRE_TIMEOUT, failure::failed};

/// How old a connection grows: afterwards the server may have moved, or have forgotten the user.
const MAX_AGE: Duration = Duration::from_mins(30);

/// How long a connection is kept that nobody needs.
/// Below the 60 s after which a server is told to close an idle connection.
const MAX_IDLE: Duration = Duration::from_secs(50);

/// Connections out of a pool, lent one at a time to whoever asks. Cheap to clone.
pub(crate) struct Sessions<DB: Database> {
    pool: Pool<DB>,
    /// What every connection is told first.
    greeting: &'static str,
    permits: Arc<Semaphore>,
    idle: Arc<Mutex<Vec<Idle<DB>>>>,
    /// How often all of them were forgotten: those that were lent before do not come back.
    generation: Arc<AtomicU64>,
}

struct Idle<DB: Database> {
    connection: DB::Connection,
    stamp: Option<Arc<str>>,
    made: Instant,
    since: Instant,
}

impl<DB: Database> Clone for Sessions<DB> {
    fn clone(&self) -> Self {
        Self {
            pool: self.pool.clone(),
            greeting: self.greeting,
            permits: Arc::clone(&self.permits),
            idle: Arc::clone(&self.idle),
            generation: Arc::clone(&self.generation),
        }
    }
}

impl<DB: Database> std::fmt::Debug for Sessions<DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sessions").field("free", &self.permits).finish_non_exhaustive()
    }
}

impl<DB: Database> Sessions<DB>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    pub(crate) fn new(pool: Pool<DB>, limit: u32, greeting: &'static str) -> Self {
        Self {
            pool,
            greeting,
            permits: Arc::new(Semaphore::new(limit.max(1) as usize)),
            idle: Arc::default(),
            generation: Arc::default(),
        }
    }

    /// A connection, when one is free. Opens one if there is none.
    pub(crate) async fn take(&self, doing: &'static str) -> Result<Session<DB>> {
        let permit = timeout(ACQUIRE_TIMEOUT, Arc::clone(&self.permits).acquire_owned()).await;
        let Ok(Ok(permit)) = permit else {
            return Err(failed(doing)(sqlx::Error::PoolTimedOut));
        };
        let (connection, stamp, made) = match self.used_last() {
            Some(idle) => (idle.connection, idle.stamp, idle.made),
            None => (self.open().await.map_err(failed(doing))?, None, Instant::now()),
        };
        let home = Home {
            idle: Arc::clone(&self.idle),
            generation: Arc::clone(&self.generation),
            lent: self.generation.load(Ordering::Relaxed),
            broken: true,
        };
        Ok(Session { connection, stamp, made, home, _permit: permit })
    }

    /// Closes the connection and opens another in its place, although nothing is wrong with it: more of
    /// an answer is on its way than is wanted.
    #[cfg(feature = "mysql")]
    pub(crate) async fn reopen(
        &self,
        session: &mut Session<DB>,
        doing: &'static str,
    ) -> Result<()> {
        session.connection = self.open().await.map_err(failed(doing))?;
        (session.stamp, session.made) = (None, Instant::now());
        Ok(())
    }

    /// The pool makes it, as its owner has told the pool to.
    async fn open(&self) -> sqlx::Result<DB::Connection> {
        let mut connection = self.pool.acquire().await?.detach();
        connection.execute(self.greeting).await?;
        Ok(connection)
    }

    /// Closes the connections that nobody uses.
    pub(crate) fn forget(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The one that was used last: the others can grow old and are closed.
    fn used_last(&self) -> Option<Idle<DB>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|idle| idle.since.elapsed() < MAX_IDLE && idle.made.elapsed() < MAX_AGE);
        idle.pop()
    }
}

/// A connection that was lent. Dropped without [`done`](Self::done), it is closed.
pub(crate) struct Session<DB: Database> {
    connection: DB::Connection,
    /// What its user has learnt of the server that it leads to.
    pub(crate) stamp: Option<Arc<str>>,
    made: Instant,
    home: Home<DB>,
    _permit: OwnedSemaphorePermit,
}

impl<DB: Database> Session<DB> {
    /// Its work came to its end: the next one may have it.
    pub(crate) fn done(mut self) {
        self.home.broken = false;
        if self.home.generation.load(Ordering::Relaxed) != self.home.lent {
            return;
        }
        let idle = Idle {
            connection: self.connection,
            stamp: self.stamp,
            made: self.made,
            since: Instant::now(),
        };
        self.home.idle.lock().unwrap_or_else(PoisonError::into_inner).push(idle);
    }
}

/// A connection of the pool that is closed when its caller goes away before it is [`done`](Self::done):
/// the pool would wait for ever for one that stays silent. What its owner has told it stays as it is.
pub(crate) struct Lent<DB: Database>(Option<PoolConnection<DB>>);

impl<DB: Database> Lent<DB> {
    pub(crate) async fn from(pool: &Pool<DB>, doing: &'static str) -> Result<Self> {
        Ok(Self(Some(pool.acquire().await.map_err(failed(doing))?)))
    }

    pub(crate) fn get(&mut self) -> Result<&mut DB::Connection> {
        match &mut self.0 {
            Some(connection) => Ok(&mut *connection),
            None => Err(failed("using a connection")(sqlx::Error::PoolClosed)),
        }
    }

    /// Its work came to its end.
    pub(crate) fn done(mut self) {
        drop(self.0.take());
    }
}

impl<DB: Database> Drop for Lent<DB> {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            drop(connection.detach());
        }
    }
}

/// Where a connection goes back to.
struct Home<DB: Database> {
    idle: Arc<Mutex<Vec<Idle<DB>>>>,
    generation: Arc<AtomicU64>,
    lent: u64,
    broken: bool,
}

impl<DB: Database> Drop for Home<DB> {
    /// Whatever broke one connection has most likely broken the others.
    fn drop(&mut self) {
        if self.broken {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }
}

impl<DB: Database> Deref for Session<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &Self::Target {
        &self.connection
    }
}

impl<DB: Database> DerefMut for Session<DB> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.connection
    }
}
