//! The signals that end a command: Ctrl-C and SIGTERM.

use posthaste::{Error, ErrorKind, Result};

/// Waits for signals. Made before the work begins, so that none is missed.
pub(crate) struct StopSignal {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl StopSignal {
    /// From here on the signals no longer end the process by themselves.
    pub(crate) fn new() -> Result<Self> {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let handle = |kind| {
                signal(kind).map_err(|error| {
                    Error::new(ErrorKind::State, "signals cannot be handled").with_source(error)
                })
            };
            Ok(Self {
                interrupt: handle(SignalKind::interrupt())?,
                terminate: handle(SignalKind::terminate())?,
            })
        }
        #[cfg(not(unix))]
        Ok(Self {})
    }

    /// Returns at the next signal.
    pub(crate) async fn wait(&mut self) {
        #[cfg(unix)]
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
        #[cfg(not(unix))]
        let _ = tokio::signal::ctrl_c().await;
    }
}
