//! `posthaste migrate`: makes the tables, or prints the SQL that does.

use clap::Args;
use posthaste::{Result, stores};

use crate::{args::OutboxArgs, database, output::print};

/// Make the tables of an outbox, or bring them to this version. Safe to repeat.
#[derive(Args)]
pub(crate) struct MigrateArgs {
    #[command(flatten)]
    outbox: OutboxArgs,

    /// Number of shards of a new outbox (64; SQLite has 1), fixed once it is made
    #[arg(long, value_name = "N", env = "POSTHASTE_SHARDS")]
    shards: Option<u16>,

    /// Print all migrations as SQL and connect to nothing; of the URL only the scheme counts
    #[arg(long)]
    print: bool,
}

pub(crate) async fn run(args: MigrateArgs) -> Result<()> {
    let outbox = args.outbox.one()?;
    let (url, shards) = (outbox.url.expose(), args.shards);
    if args.print {
        return print(&stores::migrations_sql(url, &database::options(&outbox), shards)?);
    }
    database::refuse_missing_folder(url)?;
    let store = database::connect(&outbox).await?;
    let applied = store.migrate(shards).await?;
    let total = store.check().await?;
    let name = format!("outbox {} ({}, {})", outbox.table, store.database(), of_shards(total));
    print(&match applied.as_slice() {
        [] => format!("{name} is up to date: nothing to apply\n"),
        [one] => format!("{name}: applied migration {one}\n"),
        [first, .., last] => format!("{name}: applied migrations {first} to {last}\n"),
    })
}

fn of_shards(total: u16) -> String {
    match total {
        1 => "1 shard".to_owned(),
        total => format!("{total} shards"),
    }
}
