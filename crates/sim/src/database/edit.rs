//! Changes that no store makes: time that has passed, somebody with a prompt.

use std::time::Duration;

use posthaste_core::Event;
use uuid::Uuid;

use super::{Row, Server, micros};

impl Server {
    /// The same server, whose outbox has this name.
    #[must_use]
    pub fn named(mut self, outbox: &str) -> Self {
        self.outbox = outbox.into();
        self
    }

    /// Makes an event as old as if all that ever happened to it had happened so much earlier.
    pub fn age(&self, id: Uuid, by: Duration) {
        let by = micros(by);
        let mut data = self.lock();
        let Some(&sequence) = data.by_id.get(&id) else { return };
        data.change(sequence, |row| {
            row.created_at -= by;
            for time in [&mut row.sent_at, &mut row.dead_at, &mut row.discarded_at] {
                *time = time.map(|at| at - by);
            }
        });
    }

    /// Deletes events.
    pub fn delete(&self, sequences: &[i64]) {
        let mut data = self.lock();
        for &sequence in sequences {
            data.remove(sequence);
        }
    }

    /// Gives every event a time at which it was sent. Those that waited for a time keep that time.
    pub fn mark_sent(&self) {
        for row in self.lock().rows.values_mut() {
            row.sent_at = Some(row.created_at);
        }
    }

    /// Moves the end of an event's row lease into the future.
    pub fn postpone_row_lease(&self, sequence: i64, by: Duration) {
        self.lock().change(sequence, |row| {
            row.locked_until = row.locked_until.map(|until| until + micros(by));
        });
    }

    /// Moves the end of all leases on shards into the future.
    pub fn postpone_shard_leases(&self, by: Duration) {
        for lease in &mut self.lock().leases {
            lease.locked_until += micros(by);
        }
    }

    /// Moves the last heartbeat of a relay into the future.
    pub fn postpone_heartbeat(&self, owner: &str, by: Duration) {
        if let Some(relay) = self.lock().relays.get_mut(owner) {
            relay.heartbeat_at += micros(by);
        }
    }

    /// Says that the outbox was made by another version.
    pub fn set_version(&self, version: i32) {
        self.lock().version = version;
    }

    /// Writes an event without `enqueue`, with this text as its headers.
    pub fn insert(&self, event: &Event, headers: Option<String>) {
        let now = self.now();
        let mut data = self.lock();
        let Some(shards) = data.shards else { return };
        let (sequence, number) = (data.next_sequence, data.next_transaction);
        data.next_sequence += 1;
        data.next_transaction += 1;
        let mut row = Row::new(sequence, number, event, shards, now);
        row.bytes += headers.as_ref().map_or(0, String::len);
        row.headers = headers;
        if row.not_before.is_some() {
            data.waiting.insert(sequence);
        }
        data.by_id.insert(event.id(), sequence);
        data.rows.insert(sequence, row);
        drop(data);
        self.changed.notify_waiters();
    }
}
