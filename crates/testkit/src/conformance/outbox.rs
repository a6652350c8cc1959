//! A fresh outbox, and what a writer and somebody with a prompt can do to it.

use std::sync::Arc;

use posthaste_core::{
    Enqueued, Event, TableName,
    store::{EventRecord, Store},
};
use uuid::Uuid;

use super::{Database, Edit, Sql, Writer};

/// A writer's transaction.
pub(super) type Transaction = Box<dyn Writer>;

/// One outbox of one case.
pub(super) struct Outbox {
    pub(super) store: Arc<dyn Store>,
    pub(super) name: TableName,
    pub(super) database: Arc<dyn Database>,
    pub(super) shards: u16,
}

impl Outbox {
    pub(super) fn all_shards(&self) -> Vec<u16> {
        (0..self.shards).collect()
    }

    pub(super) async fn begin(&self) -> Transaction {
        self.database.begin(&self.name).await.unwrap()
    }

    /// Enqueues in a transaction that somebody else commits.
    pub(super) async fn enqueue_in(
        &self,
        transaction: &mut Transaction,
        events: &[Event],
    ) -> Vec<Enqueued> {
        transaction.enqueue(events).await.unwrap()
    }

    /// Enqueues and commits.
    pub(super) async fn enqueue(&self, events: &[Event]) -> Vec<Enqueued> {
        let mut transaction = self.begin().await;
        let enqueued = self.enqueue_in(&mut transaction, events).await;
        transaction.commit().await.unwrap();
        enqueued
    }

    /// Enqueues and commits one event.
    pub(super) async fn enqueue_one(&self, event: &Event) -> Enqueued {
        self.enqueue(std::slice::from_ref(event)).await[0]
    }

    /// Changes the outbox past its store.
    pub(super) async fn edit(&self, edit: Edit<'_>) {
        let outcome = self.database.edit(&self.name, edit).await;
        outcome.unwrap_or_else(|error| panic!("{edit:?}: {error}"));
    }

    /// Makes an event as old as if all that ever happened to it had happened so many hours earlier.
    pub(super) async fn age(&self, id: Uuid, hours: u32) {
        self.edit(Edit::Age { id, hours }).await;
    }

    /// Deletes events.
    pub(super) async fn delete(&self, sequences: &[i64]) {
        self.edit(Edit::Delete { sequences }).await;
    }

    /// Plain SQL, for cases that are marked `#[sql]` in the list.
    pub(super) fn plain_sql(&self) -> &dyn Sql {
        self.database.sql().expect("this case needs plain SQL, which this database does not have")
    }

    /// Runs plain SQL with the placeholders of [`Sql::fill`], as any language would send it.
    pub(super) async fn sql(&self, template: &str) -> usize {
        let sql = self.plain_sql();
        let outcome = sql.run(sql.fill(&self.name, template)).await;
        outcome.unwrap_or_else(|error| panic!("{template}: {error}"))
    }

    /// Runs plain SQL in a transaction of the caller's.
    pub(super) async fn sql_on(&self, transaction: &mut Transaction, template: &str) -> usize {
        let sql = self.plain_sql().fill(&self.name, template);
        let outcome = transaction.sql(sql).await;
        outcome.unwrap_or_else(|error| panic!("{template}: {error}"))
    }

    /// What the store knows about an event that must be there.
    pub(super) async fn record(&self, id: Uuid) -> EventRecord {
        self.store.event(id).await.unwrap().unwrap_or_else(|| panic!("event {id} is gone"))
    }
}
