//! Tells relays of a commit: the one in this process by name, those elsewhere by one coalesced
//! notification on a connection of its own, never inside the business transaction.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use posthaste_core::store::Store;
use posthaste_stores::{Dialect, Tables};
use sqlx::Pool;

pub(crate) struct Notifier<DB: Dialect> {
    tables: Tables,
    /// A notification is on its way and has not been sent yet: whoever commits now is covered.
    announced: Arc<AtomicBool>,
    /// Made with the first pool that comes; it keeps a connection for notifications.
    store: Arc<OnceLock<Arc<dyn Store>>>,
    #[cfg(feature = "relay")]
    hot: Option<posthaste_relay::HotPath>,
    database: std::marker::PhantomData<fn() -> DB>,
}

impl<DB: Dialect> Clone for Notifier<DB> {
    fn clone(&self) -> Self {
        Self {
            tables: self.tables.clone(),
            announced: Arc::clone(&self.announced),
            store: Arc::clone(&self.store),
            #[cfg(feature = "relay")]
            hot: self.hot.clone(),
            database: std::marker::PhantomData,
        }
    }
}

impl<DB: Dialect> Notifier<DB> {
    pub(crate) fn new(tables: Tables) -> Self {
        Self {
            tables,
            announced: Arc::default(),
            store: Arc::default(),
            #[cfg(feature = "relay")]
            hot: None,
            database: std::marker::PhantomData,
        }
    }

    #[cfg(feature = "relay")]
    pub(crate) fn set_hot_path(&mut self, hot: posthaste_relay::HotPath) {
        self.hot = Some(hot);
    }

    /// Whether events are handed over one by one.
    #[allow(clippy::unused_self, reason = "without the relay there is nobody to hand over to")]
    pub(crate) fn wants_details(&self) -> bool {
        #[cfg(feature = "relay")]
        return self.hot.is_some();
        #[cfg(not(feature = "relay"))]
        return false;
    }

    /// These events (sequence and hash) were committed.
    pub(crate) fn committed(&self, pool: &Pool<DB>, events: Vec<(i64, u32)>) {
        if events.is_empty() {
            return;
        }
        #[cfg(feature = "relay")]
        if let Some(hot) = &self.hot {
            let events = events
                .into_iter()
                .map(|(sequence, hash)| posthaste_relay::Committed { sequence, hash });
            // The relay itself wakes the others for shards that are not its own.
            hot.committed(events.collect());
            return;
        }
        self.wake(pool);
    }

    /// Something may have been committed.
    pub(crate) fn wake(&self, pool: &Pool<DB>) {
        #[cfg(feature = "relay")]
        if let Some(hot) = &self.hot {
            hot.wake();
        }
        if self.announced.swap(true, Ordering::AcqRel) {
            return;
        }
        let announced = Arc::clone(&self.announced);
        let store = self.store.get_or_init(|| DB::store(pool.clone(), self.tables.clone()));
        let store = Arc::clone(store);
        tokio::spawn(async move {
            // Cleared before it is sent: a commit from here on announces itself again.
            announced.store(false, Ordering::Release);
            if let Err(error) = store.notify().await {
                tracing::debug!(%error, "relays were not woken; they poll");
            }
        });
    }
}
