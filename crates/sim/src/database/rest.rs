//! Tables, pauses, the audit, and what a database in memory has little to say to.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use posthaste_core::{
    Error, ErrorKind, Result,
    limits::{cut, cut_error},
    store::{
        Audit, AuditRecord, Change, Control, Diagnose, Expire, Finding, Level, Listener,
        OpenTransaction, Pausable, Pause, Schema, Wake,
    },
};

use super::{Lease, MemoryStore, Server};

const SHARDS: u16 = 8;

/// The version of the tables that this model knows.
const VERSION: i32 = 1;

impl MemoryStore {
    fn time(&self) -> Timestamp {
        Timestamp::from_microsecond(self.server.now()).unwrap_or_default()
    }

    /// The refusal of tables that a newer version has made.
    fn newer(&self, version: i32) -> Error {
        let outbox = &self.server.outbox;
        let error = format!("outbox {outbox} is at version {version}, newer than {VERSION}");
        Error::new(ErrorKind::Schema, error)
    }
}

#[async_trait]
impl Schema for MemoryStore {
    fn database(&self) -> &'static str {
        "memory"
    }

    fn table(&self) -> String {
        self.server.outbox.to_string()
    }

    async fn migrate(&self, shards: Option<u16>) -> Result<Vec<i32>> {
        if let Some(asked) = shards.filter(|asked| !(1..=1024).contains(asked)) {
            return Err(Error::invalid(format!("{asked} shards: an outbox has 1 to 1024")));
        }
        let mut data = self.server.lock();
        if data.version > VERSION {
            return Err(self.newer(data.version));
        }
        match (data.shards, shards) {
            (Some(has), Some(asked)) if has != asked => {
                return Err(Error::invalid(format!("the outbox has {has} shards, not {asked}")));
            }
            (Some(_), _) => {}
            (None, asked) => {
                let shards = asked.unwrap_or(SHARDS);
                data.shards = Some(shards);
                data.leases = vec![Lease::default(); usize::from(shards)];
            }
        }
        let applied = (data.version + 1..=VERSION).collect();
        data.version = VERSION;
        Ok(applied)
    }

    fn migrations_sql(&self, _: Option<u16>) -> Result<String> {
        Err(Error::invalid("a database in memory has no SQL"))
    }

    async fn check(&self) -> Result<u16> {
        let data = self.server.lock();
        let outbox = &self.server.outbox;
        let Some(shards) = data.shards else {
            let error = format!("there is no outbox {outbox}; migrate first");
            return Err(Error::new(ErrorKind::Schema, error));
        };
        match data.version {
            VERSION => Ok(shards),
            newer if newer > VERSION => Err(self.newer(newer)),
            older => {
                let error =
                    format!("outbox {outbox} is at version {older}, not {VERSION}; migrate");
                Err(Error::new(ErrorKind::Schema, error))
            }
        }
    }
}

#[async_trait]
impl Control for MemoryStore {
    async fn pauses(&self) -> Result<Vec<Pause>> {
        Ok(self.server.lock().pauses.clone())
    }

    async fn pause(&self, what: &Pausable, by: &str, note: Option<&str>) -> Result<bool> {
        let since = self.time();
        let mut data = self.server.lock();
        if data.pauses.iter().any(|pause| pause.what == *what) {
            return Ok(false);
        }
        let (by, note) = (cut(by, 200).to_owned(), note.map(str::to_owned));
        data.pauses.push(Pause { what: what.clone(), note, by, since });
        Ok(true)
    }

    async fn resume(&self, what: &Pausable) -> Result<bool> {
        let mut data = self.server.lock();
        let before = data.pauses.len();
        data.pauses.retain(|pause| pause.what != *what);
        Ok(data.pauses.len() < before)
    }
}

#[async_trait]
impl Audit for MemoryStore {
    async fn audit_begin(&self, change: &Change) -> Result<i64> {
        let at = self.time();
        let mut data = self.server.lock();
        let id = data.audit.len() as i64 + 1;
        data.audit.push(AuditRecord {
            id,
            at,
            change: Change {
                by: cut(&change.by, 200).to_owned(),
                action: cut(&change.action, 50).to_owned(),
                subject: cut(&change.subject, 4_000).to_owned(),
            },
            account: None,
            ended_at: None,
            affected: 0,
            error: None,
        });
        Ok(id)
    }

    async fn audit_end(&self, id: i64, affected: u64, error: Option<&str>) -> Result<()> {
        let at = self.time();
        let mut data = self.server.lock();
        let entry = data.audit.iter_mut().find(|entry| entry.id == id && entry.ended_at.is_none());
        if let Some(entry) = entry {
            entry.ended_at = Some(at);
            entry.affected = affected;
            entry.error = error.map(|error| cut_error(error).to_owned());
        }
        Ok(())
    }

    async fn audits(&self, before: Option<i64>, limit: usize) -> Result<Vec<AuditRecord>> {
        let data = self.server.lock();
        let older =
            data.audit.iter().rev().filter(|entry| before.is_none_or(|before| entry.id < before));
        Ok(older.take(limit).cloned().collect())
    }
}

#[async_trait]
impl Diagnose for MemoryStore {
    async fn now(&self) -> Result<Timestamp> {
        Ok(self.time())
    }

    async fn open_transactions(&self, limit: usize) -> Result<Vec<OpenTransaction>> {
        let data = self.server.lock();
        let open = data.open.iter().take(limit).map(|number| OpenTransaction {
            since: None,
            who: format!("transaction {number}"),
            state: "active".to_owned(),
        });
        Ok(open.collect())
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        Ok(match self.server.lock().shards {
            Some(_) => vec![
                Finding::ok("schema", "the tables are there"),
                Finding::ok("indexes", "a database in memory needs none"),
            ],
            None => vec![
                Finding::new("schema", Level::Problem, "there is no outbox")
                    .mended_by("posthaste migrate"),
            ],
        })
    }
}

#[async_trait]
impl Expire for MemoryStore {
    async fn purge_inbox(&self, _: Duration, _: usize) -> Result<u64> {
        Ok(0)
    }

    async fn purge_idempotency(&self, _: usize) -> Result<u64> {
        Ok(0)
    }
}

#[async_trait]
impl Wake for MemoryStore {
    async fn listen(&self) -> Result<Option<Box<dyn Listener>>> {
        Ok(Some(Box::new(Commits(self.server.clone()))))
    }

    async fn notify(&self) -> Result<bool> {
        Ok(true)
    }

    async fn wake(&self) -> Result<bool> {
        self.server.changed.notify_waiters();
        Ok(true)
    }
}

/// Hears of each commit.
struct Commits(Server);

#[async_trait]
impl Listener for Commits {
    async fn wait(&mut self) -> Result<()> {
        self.0.changed.notified().await;
        Ok(())
    }
}
