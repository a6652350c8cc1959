//! Listens for commits of other processes. When listening breaks, polling carries on and listening
//! comes back.

use std::{sync::Arc, time::Duration};

use posthaste_core::store::Store;
use tokio::sync::Notify;

use crate::read::within;

/// Pause before a broken listener is made anew.
const RELISTEN: Duration = Duration::from_secs(1);

/// How long it may take until a listener listens.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs until it is aborted, or at once ends where there is nothing to listen to.
pub(crate) async fn listen(store: Arc<dyn Store>, wake: Arc<Notify>) {
    loop {
        match within(PATIENCE, store.listen()).await {
            Ok(None) => return,
            Ok(Some(mut listener)) => {
                tracing::debug!("listening for commits");
                // What was committed before LISTEN took effect woke nobody.
                wake.notify_one();
                let error = loop {
                    match listener.wait().await {
                        Ok(()) => wake.notify_one(),
                        Err(error) => break error,
                    }
                };
                tracing::warn!(%error, "listening broke; polling carries on");
            }
            Err(error) => tracing::warn!(%error, "cannot listen; polling carries on"),
        }
        tokio::time::sleep(RELISTEN).await;
    }
}
