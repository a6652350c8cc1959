use async_trait::async_trait;

use crate::Result;

/// The tables of an outbox.
#[async_trait]
pub trait Schema {
    /// The database's family: `postgres`, `mysql`, `sqlite`.
    fn database(&self) -> &'static str;

    /// The outbox's table, as the configuration names it.
    fn table(&self) -> String;

    /// Brings the tables to this version. Safe to repeat, and when several processes start at
    /// once. `shards` is fixed with the first migration; another number later is refused, `None`
    /// takes what is there or the database's default. Gives the versions that were applied.
    async fn migrate(&self, shards: Option<u16>) -> Result<Vec<i32>>;

    /// All migrations as SQL, for teams who run their own. Needs no connection.
    fn migrations_sql(&self, shards: Option<u16>) -> Result<String>;

    /// Checks that the tables are there in the version that this binary knows, neither older nor
    /// newer, and gives the number of shards. Changes nothing.
    async fn check(&self) -> Result<u16>;
}
