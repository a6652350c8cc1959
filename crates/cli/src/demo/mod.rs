//! `posthaste demo`: a small shop, a relay beside it, a destination that stumbles, and the proof
//! that nothing was lost or delivered out of order.

mod database;

mod shop;

mod destination;

mod ledger;

mod latency;

mod screen;

mod summary;

mod run;

use std::time::Duration;

use clap::Args;
use posthaste::{
    Result,
    stores::{self, Options},
};
use posthaste_testkit::tables::unique;
use sqlx::{MySql, Postgres, Sqlite};

use self::{database::Folder, run::Demo};
use crate::{database::refuse_missing_file, duration, stop::StopSignal};

/// Run a small shop with a relay and watch its events arrive: orders are placed, paid and shipped
/// in transactions, some of which roll back; the destination fails now and then; a few events are
/// poison. At the end a checker says whether anything was lost or delivered out of order.
#[derive(Args)]
pub(crate) struct DemoArgs {
    /// Stop after this time [default: at Ctrl-C]
    #[arg(long = "for", value_name = "DURATION", value_parser = duration::parse)]
    time: Option<Duration>,

    /// The database to work in, with tables of the demo's own that are dropped at the end
    /// [default: a temporary SQLite file]
    // Not from POSTHASTE_URL: nobody wants a demo in production by accident.
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,

    /// New orders a second, three events each
    #[arg(long, value_name = "N", default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
}

pub(crate) async fn run(args: DemoArgs) -> Result<()> {
    let signal = StopSignal::new()?;
    // Removed when this function ends, however it ends.
    let mut folder = None;
    let url = match &args.url {
        Some(url) => {
            refuse_missing_file(url)?;
            url.clone()
        }
        None => folder.insert(Folder::new()?).url(),
    };
    let tables = unique("posthaste_demo");
    let options = Options { table: tables.name().clone(), ..Options::default() };
    let store = stores::connect(&url, &options).await?;
    println!("posthaste demo: a shop on {}", place(&args, store.database()));
    let demo = Demo { store, tables, signal, time: args.time, rate: args.rate };
    let summary = match demo.store.database() {
        "postgres" => demo.run::<Postgres>(&url).await?,
        "mysql" => demo.run::<MySql>(&url.replacen("mariadb:", "mysql:", 1)).await?,
        _ => demo.run::<Sqlite>(&url).await?,
    };
    summary.print();
    summary.verdict()
}

fn place(args: &DemoArgs, database: &str) -> String {
    match args.url {
        None => "SQLite, in a temporary file that is removed at the end".to_owned(),
        Some(_) => format!("{database}, in tables of its own that are dropped at the end"),
    }
}
