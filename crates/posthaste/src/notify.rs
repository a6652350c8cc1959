//! The hook that tells relays of a commit: the one in this process by name, those elsewhere by one
//! coalesced notification on a connection of its own, never inside the business transaction.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use posthaste_core::{Failure, store::Store};
use posthaste_stores::{Dialect, Tables};
use sqlx::Pool;
use tokio::runtime::Handle;

use crate::hook::{Hook, Written};

pub(crate) struct Notifier<DB: Dialect> {
    tables: Tables,
    /// A notification is on its way and has not been sent yet: whoever commits now is covered.
    announced: Arc<AtomicBool>,
    /// Through which notifications go out. Locked for moments only.
    way: Arc<Mutex<Option<Way<DB>>>>,
    #[cfg(feature = "relay")]
    hot: Option<posthaste_relay::HotPath>,
}

/// A pool that a transaction came from.
struct Way<DB: Dialect> {
    pool: Pool<DB>,
    /// Made with the first notification; it keeps a connection for them.
    store: Option<Arc<dyn Store>>,
}

/// A notification is on its way for as long as this lives: also when its task never runs, because the
/// runtime ends.
struct Announced(Arc<AtomicBool>);

impl Drop for Announced {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl<DB: Dialect> Clone for Notifier<DB> {
    fn clone(&self) -> Self {
        Self {
            tables: self.tables.clone(),
            announced: Arc::clone(&self.announced),
            way: Arc::clone(&self.way),
            #[cfg(feature = "relay")]
            hot: self.hot.clone(),
        }
    }
}

impl<DB: Dialect> Notifier<DB> {
    pub(crate) fn new(tables: Tables) -> Self {
        Self {
            tables,
            announced: Arc::default(),
            way: Arc::default(),
            #[cfg(feature = "relay")]
            hot: None,
        }
    }

    #[cfg(feature = "relay")]
    pub(crate) fn set_hot_path(&mut self, hot: posthaste_relay::HotPath) {
        self.hot = Some(hot);
    }

    /// Notifications go out through this pool, unless they do through one that is open.
    pub(crate) fn connect(&self, pool: &Pool<DB>) {
        let mut way = self.way.lock().unwrap_or_else(PoisonError::into_inner);
        if way.as_ref().is_none_or(|way| way.pool.is_closed()) {
            *way = Some(Way { pool: pool.clone(), store: None });
        }
    }

    fn store(&self) -> Option<Arc<dyn Store>> {
        let mut way = self.way.lock().unwrap_or_else(PoisonError::into_inner);
        let Way { pool, store } = way.as_mut()?;
        let store = store.get_or_insert_with(|| DB::store(pool.clone(), self.tables.clone()));
        Some(Arc::clone(store))
    }

    /// Something may have been committed.
    fn wake(&self) {
        #[cfg(feature = "relay")]
        if let Some(hot) = &self.hot {
            hot.wake();
        }
        // Without a runtime the transaction was dropped on the way out: relays poll.
        let (Some(store), Ok(runtime)) = (self.store(), Handle::try_current()) else { return };
        if self.announced.swap(true, Ordering::AcqRel) {
            return;
        }
        let (announced, way) = (Announced(Arc::clone(&self.announced)), Arc::clone(&self.way));
        runtime.spawn(async move {
            // Before it is sent: a commit from here on announces itself again.
            drop(announced);
            notify(&way, &store).await;
        });
    }
}

async fn notify<DB: Dialect>(way: &Mutex<Option<Way<DB>>>, store: &Arc<dyn Store>) {
    let Err(error) = store.notify().await else { return };
    tracing::debug!(%error, "relays were not woken; they poll");
    // The runtime of its pool may have ended, which nobody is told: the next write's pool takes its place.
    let mut way = way.lock().unwrap_or_else(PoisonError::into_inner);
    way.take_if(|way| way.store.as_ref().is_some_and(|held| Arc::ptr_eq(held, store)));
}

impl<DB: Dialect> Hook for Notifier<DB> {
    fn name(&self) -> &str {
        "notifier"
    }

    #[cfg_attr(not(feature = "relay"), expect(unused_variables, reason = "nobody to hand them to"))]
    fn after_commit(&self, written: &[Written]) -> Result<(), Failure> {
        #[cfg(feature = "relay")]
        if let Some(hot) = &self.hot {
            let new = written.iter().filter(|written| !written.duplicate);
            let new = new.map(|one| posthaste_relay::Committed::new(&one.event, one.sequence));
            // The relay itself wakes the others for shards that are not its own.
            hot.committed(new.collect());
            return Ok(());
        }
        self.wake();
        Ok(())
    }

    /// The relay is only woken: it finds by itself whether there is anything.
    fn after_unknown(&self, _: &[Written]) -> Result<(), Failure> {
        self.wake();
        Ok(())
    }
}

#[cfg(all(test, feature = "postgres", feature = "sqlite"))]
mod tests {
    use std::time::Duration;

    use sqlx::{Sqlite, SqlitePool, postgres::PgPoolOptions};
    use tokio::runtime::Builder;

    use super::*;

    fn notifier() -> Notifier<Sqlite> {
        Notifier::new(Tables::new("outbox_event".parse().unwrap()))
    }

    fn pool() -> SqlitePool {
        SqlitePool::connect_lazy("sqlite::memory:").unwrap()
    }

    #[test]
    fn a_runtime_that_ends_before_its_notification_does_not_stop_later_ones() {
        let notifier = notifier();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            notifier.connect(&pool());
            notifier.wake();
        });
        assert!(notifier.announced.load(Ordering::Acquire), "its task has not run yet");
        drop(runtime);
        assert!(!notifier.announced.load(Ordering::Acquire));
    }

    #[tokio::test]
    async fn a_pool_that_was_closed_is_replaced_by_the_next_one() {
        let notifier = notifier();
        let (first, second) = (pool(), pool());
        let closed = || notifier.way.lock().unwrap().as_ref().unwrap().pool.is_closed();
        notifier.connect(&first);
        let store = notifier.store().unwrap();
        notifier.connect(&second);
        assert!(
            Arc::ptr_eq(&store, &notifier.store().unwrap()),
            "the first is kept while it is open"
        );
        first.close().await;
        assert!(closed());
        notifier.connect(&second);
        assert!(!closed() && !Arc::ptr_eq(&store, &notifier.store().unwrap()));
    }

    /// As when its runtime has ended: nobody has closed it.
    #[tokio::test]
    async fn a_pool_that_notifies_no_more_is_replaced_by_the_next_one() {
        let notifier = Notifier::new(Tables::new("outbox_event".parse().unwrap()));
        // Nobody listens on this port.
        let lazy = || {
            let options = PgPoolOptions::new().acquire_timeout(Duration::from_millis(10));
            options.connect_lazy("postgres://127.0.0.1:1/nowhere").unwrap()
        };
        notifier.connect(&lazy());
        let first = notifier.store().unwrap();
        notify(&notifier.way, &first).await;
        notifier.connect(&lazy());
        let second = notifier.store().unwrap();
        assert!(!Arc::ptr_eq(&first, &second), "the first was kept");
        // A late failure of the first one is no failure of the second.
        notify(&notifier.way, &first).await;
        assert!(Arc::ptr_eq(&second, &notifier.store().unwrap()));
    }
}
