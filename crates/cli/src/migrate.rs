//! `posthaste migrate`: makes the tables, or prints the SQL that does.

use clap::Args;
use posthaste::{Result, stores};

use crate::{args::DatabaseArgs, database::refuse_missing_folder, output::print};

/// Make the tables of an outbox, or bring them to this version. Safe to repeat.
#[derive(Args)]
pub(crate) struct MigrateArgs {
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,

    /// Number of shards of a new outbox (64; SQLite has 1), fixed once it is made
    #[arg(long, value_name = "N", env = "POSTHASTE_SHARDS")]
    shards: Option<u16>,

    /// Print all migrations as SQL and connect to nothing; of the URL only the scheme counts
    #[arg(long)]
    print: bool,
}

pub(crate) async fn run(args: MigrateArgs) -> Result<()> {
    let MigrateArgs { database, shards, .. } = args;
    if args.print {
        let sql = stores::migrations_sql(&database.url, &database.options(), shards)?;
        return print(&sql);
    }
    refuse_missing_folder(&database.url)?;
    let store = stores::connect(&database.url, &database.options()).await?;
    let applied = store.migrate(shards).await?;
    let total = store.check().await?;
    let outbox = format!("outbox {} ({}, {})", database.table, store.database(), of_shards(total));
    print(&match applied.as_slice() {
        [] => format!("{outbox} is up to date: nothing to apply\n"),
        [one] => format!("{outbox}: applied migration {one}\n"),
        [first, .., last] => format!("{outbox}: applied migrations {first} to {last}\n"),
    })
}

fn of_shards(total: u16) -> String {
    match total {
        1 => "1 shard".to_owned(),
        total => format!("{total} shards"),
    }
}
