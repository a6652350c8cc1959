use async_trait::async_trait;

use crate::Result;

/// Learning of commits sooner than the next poll. A wake-up is a hint: it may come without a
/// reason, once for many commits, or not at all; polling carries on in any case.
#[async_trait]
pub trait Wake {
    /// A listener of its own connection; `None` where the database has nothing to listen to.
    async fn listen(&self) -> Result<Option<Box<dyn Listener>>>;

    /// Wakes the relays of this outbox in other processes, after a commit: where a commit itself wakes them,
    /// it does nothing more. Never called inside the business transaction: there it would serialise every
    /// commit of the server. Returns `false` where the database has nothing to listen to: those relays look
    /// at their next poll.
    async fn notify(&self) -> Result<bool>;

    /// Wakes the same relays although nothing was committed, as when an operator asks for it. Returns what
    /// [`notify`](Self::notify) returns.
    async fn wake(&self) -> Result<bool> {
        self.notify().await
    }
}

/// Waits for something to happen in the outbox.
#[async_trait]
pub trait Listener: Send {
    /// Returns when something may have been committed. An error means that listening broke: make a
    /// new listener.
    async fn wait(&mut self) -> Result<()>;
}
