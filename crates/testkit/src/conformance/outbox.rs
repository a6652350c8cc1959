//! A fresh outbox, and what a writer and an operator with a SQL prompt can do to it.

use std::sync::Arc;

use posthaste_core::{
    Event,
    store::{EventRecord, Store},
};
use posthaste_stores::{Dialect, Enqueued, Tables};
use sqlx::{Pool, Transaction};
use uuid::Uuid;

use super::subject::{Earlier, Query};

/// One outbox of one case.
pub(super) struct Outbox<DB: Dialect> {
    pub(super) store: Arc<dyn Store>,
    pub(super) tables: Tables,
    pub(super) pool: Pool<DB>,
    pub(super) query: Query<DB>,
    pub(super) shards: u16,
    pub(super) earlier: Earlier,
}

impl<DB: Dialect> Outbox<DB> {
    pub(super) fn all_shards(&self) -> Vec<u16> {
        (0..self.shards).collect()
    }

    pub(super) async fn begin(&self) -> Transaction<'static, DB> {
        self.pool.begin().await.unwrap()
    }

    /// Enqueues in a transaction that somebody else commits.
    pub(super) async fn enqueue_in(
        &self,
        transaction: &mut Transaction<'_, DB>,
        events: &[Event],
    ) -> Vec<Enqueued> {
        DB::enqueue(&mut *transaction, &self.tables, events).await.unwrap()
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

    /// Plain SQL with the placeholders of [`Tables::fill`], as any language would send it.
    pub(super) async fn sql(&self, template: &str) -> usize {
        let mut connection = self.pool.acquire().await.unwrap();
        self.sql_on(&mut connection, template).await
    }

    /// Plain SQL in a transaction of the caller's.
    pub(super) async fn sql_on(&self, connection: &mut DB::Connection, template: &str) -> usize {
        let sql = self.tables.fill(template);
        (self.query)(connection, sql).await.unwrap_or_else(|error| panic!("{template}: {error}"))
    }

    /// What the store knows about an event that must be there.
    pub(super) async fn record(&self, id: Uuid) -> EventRecord {
        self.store.event(id).await.unwrap().unwrap_or_else(|| panic!("event {id} is gone"))
    }

    /// Makes an event as old as if all that ever happened to it had happened so many hours earlier.
    pub(super) async fn age(&self, id: Uuid, hours: u32) {
        let columns = ["created_at", "sent_at", "dead_at", "discarded_at"]
            .map(|column| format!("{column} = {}", (self.earlier)(column, hours)));
        let update =
            format!("update {{events}} set {} where event_id = '{id}'", columns.join(", "));
        self.sql(&update).await;
    }
}
