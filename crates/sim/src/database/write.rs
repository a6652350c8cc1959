//! Transactions of writers.

use std::collections::HashMap;

use posthaste_core::{
    Enqueued, Error, ErrorKind, Event, Result,
    enqueue::{Found, Known, Written, answers, refuse_two_of_one_id},
    envelope::ordering_column,
};

use super::{Data, Row, Server};

/// A writer's transaction. Dropped without a commit it rolls back.
#[derive(Debug)]
pub struct Transaction {
    server: Server,
    /// The life of the server in which it began.
    life: u64,
    /// Its number, once it has written.
    number: Option<u64>,
    /// What was the last number of an event when each savepoint was set.
    savepoints: Vec<i64>,
    /// The rows that it has locked.
    locked: Vec<i64>,
    ended: bool,
}

impl Server {
    /// Begins a transaction. It takes its number with its first write.
    pub fn begin(&self) -> Transaction {
        let life = self.lock().life;
        Transaction {
            server: self.clone(),
            life,
            number: None,
            savepoints: Vec::new(),
            locked: Vec::new(),
            ended: false,
        }
    }

    /// Enqueues in a transaction of its own.
    pub async fn enqueue(&self, events: &[Event]) -> Result<Vec<Enqueued>> {
        let mut transaction = self.begin();
        let enqueued = transaction.enqueue(events).await?;
        transaction.commit()?;
        Ok(enqueued)
    }
}

impl Transaction {
    /// Writes events. An id that another open transaction has written is waited for.
    pub async fn enqueue(&mut self, events: &[Event]) -> Result<Vec<Enqueued>> {
        refuse_two_of_one_id(events)?;
        if events.is_empty() {
            return Ok(Vec::new());
        }
        loop {
            let server = self.server.clone();
            let changed = server.changed.notified();
            if let Some(enqueued) = self.try_enqueue(events) {
                return enqueued;
            }
            changed.await;
        }
    }

    /// `None` when an id is another open transaction's.
    fn try_enqueue(&mut self, events: &[Event]) -> Option<Result<Vec<Enqueued>>> {
        let now = self.server.now();
        let server = self.server.clone();
        let mut data = server.lock();
        if self.life != data.life {
            return Some(Err(gone()));
        }
        let Some(shards) = data.shards else {
            return Some(Err(Error::new(ErrorKind::Schema, "there is no outbox")));
        };
        let mut known = Found::new();
        for event in events {
            let Some(sequence) = data.by_id.get(&event.id()) else { continue };
            let row = data.rows.get(sequence)?;
            if data.open.contains(&row.transaction) && Some(row.transaction) != self.number {
                return None;
            }
            known.insert(event.id(), known_of(row));
        }
        let number = *self.number.get_or_insert_with(|| {
            let number = data.next_transaction;
            data.next_transaction += 1;
            data.open.insert(number);
            number
        });
        let mut written: Written = HashMap::new();
        for event in events {
            if known.contains_key(&event.id()) || written.contains_key(&event.id()) {
                continue;
            }
            let sequence = data.next_sequence;
            data.next_sequence += 1;
            let row = Row::new(sequence, number, event, shards, now);
            if row.not_before.is_some() {
                data.waiting.insert(sequence);
            }
            data.rows.insert(sequence, row);
            data.by_id.insert(event.id(), sequence);
            written.insert(event.id(), sequence);
        }
        let mine: Vec<i64> = written.values().copied().collect();
        let answers = answers(events, written, &known);
        if answers.is_err() {
            // A call that fails leaves none of its events behind.
            for sequence in mine {
                data.remove(sequence);
            }
        }
        Some(answers)
    }

    /// Counts the events that it sees: what is committed, and its own.
    pub fn count(&self) -> usize {
        let data = self.server.lock();
        let mine = |row: &Row| Some(row.transaction) == self.number;
        data.rows.values().filter(|row| data.is_visible(row) || mine(row)).count()
    }

    /// Locks rows until it ends, as an update of them does.
    pub fn lock(&mut self, sequences: &[i64]) -> Result<()> {
        let mut data = self.server.lock();
        if self.life != data.life {
            return Err(gone());
        }
        if sequences.iter().any(|sequence| data.locked.contains(sequence)) {
            return Err(Error::new(ErrorKind::TimedOut, "a lock did not become free"));
        }
        data.locked.extend(sequences);
        self.locked.extend(sequences);
        Ok(())
    }

    /// Sets a savepoint inside of the last one.
    pub fn savepoint(&mut self) {
        let last = self.server.lock().next_sequence - 1;
        self.savepoints.push(last);
    }

    /// Ends the last savepoint, and keeps what was written in it.
    pub fn release(&mut self) {
        self.savepoints.pop();
    }

    /// Ends the last savepoint, and takes back what was written in it.
    pub fn roll_back_to_savepoint(&mut self) {
        let (Some(after), Some(number)) = (self.savepoints.pop(), self.number) else { return };
        let mut data = self.server.lock();
        if self.life == data.life {
            data.undo(number, after);
        }
        drop(data);
        self.server.changed.notify_waiters();
    }

    /// Commits. An error means that nothing was committed.
    pub fn commit(mut self) -> Result<()> {
        self.ended = true;
        let mut data = self.server.lock();
        if self.life != data.life {
            return Err(gone());
        }
        self.leave(&mut data);
        drop(data);
        self.server.changed.notify_waiters();
        Ok(())
    }

    /// Rolls back.
    pub fn rollback(self) {}

    /// It is open no longer, and neither are its locks.
    fn leave(&self, data: &mut Data) {
        if let Some(number) = self.number {
            data.open.remove(&number);
        }
        for sequence in &self.locked {
            data.locked.remove(sequence);
        }
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let mut data = self.server.lock();
        if self.life == data.life {
            if let Some(number) = self.number {
                data.undo(number, 0);
            }
            self.leave(&mut data);
        }
        drop(data);
        self.server.changed.notify_waiters();
    }
}

fn known_of(row: &Row) -> Known {
    let text = |text: Option<&str>| text.map(str::to_owned);
    Known {
        sequence: row.sequence,
        event_type: row.event.event_type().to_owned(),
        aggregate_type: row.event.aggregate_type().to_owned(),
        aggregate_id: text(row.event.aggregate_id()),
        tenant: text(row.event.tenant()),
        ordering_key: text(ordering_column(&row.event)),
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Unavailable, "the server that had this transaction is gone")
}
