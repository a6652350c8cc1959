//! The hook that tells relays of a commit: the one in this process by name, those elsewhere by one
//! coalesced notification on a connection of its own, never inside the business transaction.

use std::sync::{
    Arc, OnceLock,
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
    /// The first pool that a transaction came from.
    pool: Arc<OnceLock<Pool<DB>>>,
    /// Made with the first notification; it keeps a connection for them.
    store: Arc<OnceLock<Arc<dyn Store>>>,
    #[cfg(feature = "relay")]
    hot: Option<posthaste_relay::HotPath>,
}

impl<DB: Dialect> Clone for Notifier<DB> {
    fn clone(&self) -> Self {
        Self {
            tables: self.tables.clone(),
            announced: Arc::clone(&self.announced),
            pool: Arc::clone(&self.pool),
            store: Arc::clone(&self.store),
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
            pool: Arc::default(),
            store: Arc::default(),
            #[cfg(feature = "relay")]
            hot: None,
        }
    }

    #[cfg(feature = "relay")]
    pub(crate) fn set_hot_path(&mut self, hot: posthaste_relay::HotPath) {
        self.hot = Some(hot);
    }

    /// Notifications go out through this pool.
    pub(crate) fn connect(&self, pool: &Pool<DB>) {
        self.pool.get_or_init(|| pool.clone());
    }

    /// Something may have been committed.
    fn wake(&self) {
        #[cfg(feature = "relay")]
        if let Some(hot) = &self.hot {
            hot.wake();
        }
        // Without a runtime the transaction was dropped on the way out: relays poll.
        let (Some(pool), Ok(runtime)) = (self.pool.get(), Handle::try_current()) else { return };
        if self.announced.swap(true, Ordering::AcqRel) {
            return;
        }
        let announced = Arc::clone(&self.announced);
        let store = self.store.get_or_init(|| DB::store(pool.clone(), self.tables.clone()));
        let store = Arc::clone(store);
        runtime.spawn(async move {
            // Cleared before it is sent: a commit from here on announces itself again.
            announced.store(false, Ordering::Release);
            if let Err(error) = store.notify().await {
                tracing::debug!(%error, "relays were not woken; they poll");
            }
        });
    }
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
