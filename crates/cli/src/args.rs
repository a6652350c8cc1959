//! Flags that several commands share.

use clap::Args;
use posthaste::{TableName, stores::Options};

/// Which outbox, in which database.
#[derive(Args)]
pub(crate) struct DatabaseArgs {
    /// The database: `postgres://user:password@host/name`, `mysql://…` (also `mariadb://…`) or
    /// `sqlite:file.db`
    // Its value holds a password: help is not to show it.
    #[arg(long, value_name = "URL", env = "POSTHASTE_URL", hide_env_values = true)]
    pub(crate) url: String,

    /// The outbox's table, with or without a schema
    #[arg(long, value_name = "NAME", env = "POSTHASTE_TABLE", default_value_t = TableName::default())]
    pub(crate) table: TableName,
}

impl DatabaseArgs {
    /// How to connect.
    pub(crate) fn options(&self) -> Options {
        Options { table: self.table.clone(), ..Options::default() }
    }
}
