//! The tables of one outbox, and the only place where their names become SQL.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use posthaste_core::TableName;
use sqlx::AssertSqlSafe;

/// The tables of one outbox. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tables(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: TableName,
    /// Whether a writer's statements are prepared under a name and kept with the connection.
    named_statements: bool,
    /// Finished statements by the place of their template, so that each is put together once. To hash its text
    /// with every call would cost microseconds.
    statements: RwLock<HashMap<(usize, usize), Arc<str>>>,
}

impl Tables {
    /// What an outbox consists of, as [`fill`](Self::fill) names it. Side tables come first, so that an
    /// outbox that is half gone can still be dropped.
    pub const ALL: [&str; 10] = [
        "{life}",
        "{audit}",
        "{idempotency}",
        "{inbox}",
        "{attempts}",
        "{controls}",
        "{relays}",
        "{shards}",
        "{meta}",
        "{events}",
    ];

    /// The tables of the outbox of this name.
    pub fn new(name: TableName) -> Self {
        Self(Arc::new(Inner { name, named_statements: true, statements: RwLock::default() }))
    }

    /// The same tables for a writer behind a transaction pooler that does not follow prepared
    /// statements: on PostgreSQL its statements are prepared anew with every call, under no name.
    pub fn without_named_statements(&self) -> Self {
        let name = self.0.name.clone();
        Self(Arc::new(Inner { name, named_statements: false, statements: RwLock::default() }))
    }

    /// Whether a writer's statements are prepared under a name and kept with the connection.
    pub fn named_statements(&self) -> bool {
        self.0.named_statements
    }

    /// The outbox's name.
    pub fn name(&self) -> &TableName {
        &self.0.name
    }

    /// A statement with the names filled in: `{events}`, `{shards}`, `{relays}`, `{attempts}`,
    /// `{controls}`, `{meta}`, `{audit}`, `{inbox}`, `{idempotency}`, on PostgreSQL
    /// `{life}` and the functions `{shard_of}`, `{take_xid}` and `{keep_audit}`, and `{bare}` for
    /// index names. The template is a constant of ours and the name is validated, so nothing else can
    /// get in.
    pub fn sql(&self, template: &'static str) -> AssertSqlSafe<Arc<str>> {
        let place = (template.as_ptr().addr(), template.len());
        let known = self.0.statements.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(statement) = known.get(&place) {
            return AssertSqlSafe(Arc::clone(statement));
        }
        drop(known);
        let statement: Arc<str> = self.fill(template).into();
        self.0
            .statements
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(place, Arc::clone(&statement));
        AssertSqlSafe(statement)
    }

    /// The same for a text that is not executed again and again, such as a migration.
    pub fn fill(&self, template: &str) -> String {
        let name = &self.0.name;
        template
            .replace("{events}", &name.qualified())
            .replace("{shards}", &name.with_suffix("_shards"))
            .replace("{relays}", &name.with_suffix("_relays"))
            .replace("{attempts}", &name.with_suffix("_attempts"))
            .replace("{controls}", &name.with_suffix("_controls"))
            .replace("{meta}", &name.with_suffix("_meta"))
            .replace("{audit}", &name.with_suffix("_audit"))
            .replace("{inbox}", &name.with_suffix("_inbox"))
            .replace("{idempotency}", &name.with_suffix("_idempotency"))
            .replace("{life}", &name.with_suffix("_life"))
            .replace("{shard_of}", &name.with_suffix("_shard_of"))
            .replace("{take_xid}", &name.with_suffix("_take_xid"))
            .replace("{keep_audit}", &name.with_suffix("_keep_audit"))
            .replace("{bare}", name.bare())
    }

    /// The statements that drop an outbox, as far as it is there, on the database that the driver calls
    /// by this name (`sqlx::Database::NAME`).
    pub fn drops(&self, database: &str) -> Vec<String> {
        let tables = Self::ALL.into_iter().map(|table| format!("drop table if exists {table}"));
        // Their triggers go with the table.
        let functions = ["{shard_of}", "{take_xid}", "{keep_audit}"]
            .into_iter()
            .filter(|_| database == "PostgreSQL")
            .map(|function| format!("drop function if exists {function}()"));
        tables.chain(functions).map(|template| self.fill(&template)).collect()
    }
}
