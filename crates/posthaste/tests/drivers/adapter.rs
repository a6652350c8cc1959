//! What the cases ask of a driver: to run a short script in one transaction.

use std::pin::Pin;

use posthaste::{Enqueued, ErrorKind, Event, Limits, Outbox, PostgresOutbox, Result, TableName};

use crate::support::{Fixture, TestDatabase, url};

/// How a driver reaches the database.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Route {
    Direct,
    /// Through PgBouncer, which lends out a connection for one transaction.
    Pooler,
    /// The same, with names of statements forgotten after each transaction.
    PoolerThatResets,
}

impl Route {
    /// The URL of the PostgreSQL server on this route.
    pub fn url(self) -> String {
        url(match self {
            Self::Direct => "POSTHASTE_TEST_POSTGRES",
            Self::Pooler => "POSTHASTE_TEST_PGBOUNCER",
            Self::PoolerThatResets => "POSTHASTE_TEST_PGBOUNCER_RESET",
        })
    }
}

/// One step in a transaction.
pub enum Step {
    /// Enqueues in the transaction.
    Enqueue(Vec<Event>),
    /// Enqueues, and passes over the conflict.
    Conflict(Vec<Event>),
    /// Enqueues in a savepoint of the driver's own, which is then kept or rolled back.
    InSavepoint { events: Vec<Event>, keep: bool },
    /// Plain SQL.
    Sql(String),
    /// Something else happens meanwhile.
    Meanwhile(Pin<Box<dyn Future<Output = ()> + Send>>),
}

/// Of a call that was refused.
#[track_caller]
pub fn is_conflict(answer: Result<Vec<Enqueued>>) {
    let refused = answer.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
}

/// How a transaction ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    Commit,
    Rollback,
    /// Neither: its owner went away.
    Drop,
}

/// How the outbox is set up.
#[derive(Clone)]
pub struct Settings {
    pub table: TableName,
    pub limits: Limits,
    pub default_tenant: Option<String>,
}

impl Settings {
    pub fn of(table: TableName) -> Self {
        Self { table, limits: Limits::default(), default_tenant: None }
    }

    pub fn postgres_outbox(&self) -> PostgresOutbox {
        let outbox = PostgresOutbox::new(self.table.clone()).with_limits(self.limits);
        match &self.default_tenant {
            Some(tenant) => outbox.with_default_tenant(tenant),
            None => outbox,
        }
    }

    pub fn outbox<DB: TestDatabase>(&self) -> Outbox<DB> {
        let outbox = Outbox::new(self.table.clone()).with_limits(self.limits);
        match &self.default_tenant {
            Some(tenant) => outbox.with_default_tenant(tenant),
            None => outbox,
        }
    }
}

/// A driver under test.
pub trait Adapter: Sized {
    type Database: TestDatabase;

    async fn connect(on: &Fixture<Self::Database>, route: Route) -> Self;

    /// Runs the steps in one transaction and ends it so; answers for all that was enqueued. When a
    /// step is refused, the transaction is dropped.
    async fn transaction(
        &mut self,
        settings: &Settings,
        steps: Vec<Step>,
        end: End,
    ) -> Result<Vec<Enqueued>>;
}
