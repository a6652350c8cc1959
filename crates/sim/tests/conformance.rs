//! The database in memory keeps the contract of all stores.
//!
//! Real time: leases of milliseconds run out, as on a server.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use jiff::Timestamp;
use posthaste_core::{Enqueued, Event, Result, TableName, store::Store};
use posthaste_sim::database::{Server, Transaction};
use posthaste_testkit::conformance::{Database, Edit, PlainEvent, Subject, Writer};

async fn subject() -> Option<Subject> {
    Some(Subject::on(Memory::default()))
}

posthaste_testkit::store_conformance!(subject, without sql);

/// As outboxes are under `global`, and on SQLite.
mod of_one_shard {
    use super::*;

    async fn one_shard() -> Option<Subject> {
        Some(Subject::on(Memory::default()).shards(1))
    }

    posthaste_testkit::store_conformance!(one_shard, without sql);
}

/// How many rows one read walks over: fewer than a case has that asks for a bound.
const WALK: usize = 10_000;

/// A server for each outbox: they share nothing in memory.
#[derive(Default)]
struct Memory(Mutex<HashMap<TableName, Server>>);

impl Memory {
    fn server(&self, outbox: &TableName) -> Server {
        let mut servers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || {
            let clock = Arc::new(|| Timestamp::now().as_microsecond());
            Server::new(clock).named(&outbox.qualified()).with_walk(WALK)
        };
        servers.entry(outbox.clone()).or_insert_with(new).clone()
    }
}

#[async_trait]
impl Database for Memory {
    fn store(&self, outbox: &TableName) -> Arc<dyn Store> {
        Arc::new(self.server(outbox).store())
    }

    async fn begin(&self, outbox: &TableName) -> Result<Box<dyn Writer>> {
        Ok(Box::new(InMemory(self.server(outbox).begin())))
    }

    async fn edit(&self, outbox: &TableName, edit: Edit<'_>) -> Result<()> {
        let server = self.server(outbox);
        match edit {
            Edit::Age { id, hours } => server.age(id, of_hours(hours)),
            Edit::Delete { sequences } => server.delete(sequences),
            Edit::MarkSent => server.mark_sent(),
            Edit::PostponeRowLease { sequence, hours } => {
                server.postpone_row_lease(sequence, of_hours(hours));
            }
            Edit::PostponeShardLeases { hours } => server.postpone_shard_leases(of_hours(hours)),
            Edit::PostponeHeartbeat { owner, hours } => {
                server.postpone_heartbeat(owner, of_hours(hours));
            }
            Edit::SetVersion(version) => server.set_version(version),
            Edit::Insert(event) => server.insert(&by_hand(event)?, event.headers.clone()),
        }
        Ok(())
    }

    async fn drop_outbox(&self, outbox: &TableName) -> Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(outbox);
        Ok(())
    }
}

fn of_hours(hours: u32) -> Duration {
    Duration::from_hours(hours.into())
}

/// The event that the columns make.
fn by_hand(plain: &PlainEvent) -> Result<Event> {
    let mut event = Event::builder("ByHand").id(plain.id);
    event = event.bytes("application/json", plain.payload.clone());
    if let Some(tenant) = &plain.tenant {
        event = event.tenant(tenant);
    }
    if let Some(aggregate_type) = &plain.aggregate_type {
        event = event.aggregate_type(aggregate_type);
    }
    if let Some(aggregate_id) = &plain.aggregate_id {
        event = event.aggregate_id(aggregate_id);
    }
    event = match plain.ordering_key.as_deref() {
        None => event,
        Some("") => event.unordered(),
        Some(key) => event.ordering_key(key),
    };
    event.build()
}

struct InMemory(Transaction);

#[async_trait]
impl Writer for InMemory {
    async fn enqueue(&mut self, events: &[Event]) -> Result<Vec<Enqueued>> {
        self.0.enqueue(events).await
    }

    async fn enqueue_and_undo(&mut self, events: &[Event]) -> Result<()> {
        self.0.savepoint();
        self.0.enqueue(events).await?;
        self.0.roll_back_to_savepoint();
        Ok(())
    }

    async fn count(&mut self) -> Result<usize> {
        Ok(self.0.count())
    }

    async fn lock(&mut self, sequences: &[i64]) -> Result<()> {
        self.0.lock(sequences)
    }

    async fn commit(self: Box<Self>) -> Result<()> {
        self.0.commit()
    }

    async fn rollback(self: Box<Self>) -> Result<()> {
        self.0.rollback();
        Ok(())
    }
}
