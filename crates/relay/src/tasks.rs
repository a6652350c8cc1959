//! What runs beside the driver: each task with the time by which it must have come back.

use std::{
    collections::HashMap,
    future::Future,
    time::{Duration, Instant},
};

use tokio::task::{Id, JoinError, JoinSet};

/// The tasks of a driver. Every call has a deadline of its own and ends by it; a task that has not come
/// back after twice that time is blocked, and only another process helps.
pub(crate) struct Tasks<T> {
    set: JoinSet<T>,
    overdue_at: HashMap<Id, Instant>,
    /// How long a task may take that only asks the database.
    patience: Duration,
}

impl<T: Send + 'static> Tasks<T> {
    /// `deadline` is that of one call to the database; a task makes three of them at most.
    pub(crate) fn new(deadline: Duration) -> Self {
        Self { set: JoinSet::new(), overdue_at: HashMap::new(), patience: 3 * deadline }
    }

    /// Starts a task that asks the database.
    pub(crate) fn spawn(&mut self, task: impl Future<Output = T> + Send + 'static) {
        self.spawn_within(self.patience, task);
    }

    /// Starts a task that must have come back after this time.
    pub(crate) fn spawn_within(
        &mut self,
        patience: Duration,
        task: impl Future<Output = T> + Send + 'static,
    ) {
        // Not the relay's clock: it is about the machine.
        let overdue_at = Instant::now() + 2 * patience;
        let id = self.set.spawn(task).id();
        self.overdue_at.insert(id, overdue_at);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.set.is_empty()
    }

    /// The next one that comes back. Safe to drop and ask again.
    pub(crate) async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        let joined = self.set.join_next_with_id().await;
        self.ended(joined)
    }

    /// One that has come back already.
    pub(crate) fn try_join_next(&mut self) -> Option<Result<T, JoinError>> {
        let joined = self.set.try_join_next_with_id();
        self.ended(joined)
    }

    pub(crate) fn abort_all(&mut self) {
        self.set.abort_all();
    }

    /// When the first of them has taken twice as long as it may.
    pub(crate) fn overdue_at(&self) -> Option<Instant> {
        self.overdue_at.values().min().copied()
    }

    fn ended(
        &mut self,
        joined: Option<Result<(Id, T), JoinError>>,
    ) -> Option<Result<T, JoinError>> {
        Some(match joined? {
            Ok((id, done)) => {
                self.overdue_at.remove(&id);
                Ok(done)
            }
            Err(error) => {
                self.overdue_at.remove(&error.id());
                Err(error)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_is_overdue_after_twice_its_time_until_it_comes_back() {
        let mut tasks = Tasks::new(Duration::from_secs(5));
        let start = Instant::now();
        tasks.spawn(async { 1 });
        tasks.spawn_within(Duration::from_mins(1), async { 2 });
        let first = tasks.overdue_at().unwrap();
        assert!(first >= start + Duration::from_secs(30), "three calls of 5 s, twice");
        assert!(first < start + Duration::from_mins(1));
        let mut done = Vec::new();
        while let Some(Ok(one)) = tasks.join_next().await {
            done.push(one);
        }
        done.sort_unstable();
        assert_eq!((done, tasks.overdue_at()), (vec![1, 2], None));
    }
}
