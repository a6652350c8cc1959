//! `posthaste demo`: a small shop, a relay beside it, a destination that stumbles, and the proof
//! that nothing was lost or delivered out of order.

mod database;

mod shop;

mod destination;

mod ledger;

mod verdict;

mod latency;

mod screen;

mod summary;

mod run;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use clap::Args;
use posthaste::{
    Result,
    stores::{self, Options, mysql::MySqlStore, postgres::PostgresStore, sqlite::SqliteStore},
};
use posthaste_testkit::tables::unique;

use self::{
    database::{Folder, shop_pool},
    run::Demo,
};
use crate::{database::refuse_missing_file, duration, failure, output::print, stop::StopSignal};

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
    url: Option<String>,

    /// New orders a second, three events each
    #[arg(long, value_name = "N", default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,

    /// Serve the dashboard while it runs [default: 127.0.0.1:9464]
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1,
        default_missing_value = "127.0.0.1:9464")]
    serve: Option<SocketAddr>,
}

pub(crate) async fn run(args: DemoArgs) -> Result<()> {
    let mut signal = StopSignal::new()?;
    // Removed when this function ends, however it ends.
    let mut folder = None;
    let url = match &args.url {
        Some(url) => {
            failure::keep_secret(url);
            refuse_missing_file(url)?;
            url.clone()
        }
        None => folder.insert(Folder::new()?).url(),
    };
    let tables = unique("posthaste_demo");
    let options = Options { table: tables.name().clone(), ..Options::default() };
    let own = folder.is_some();
    let DemoArgs { time, rate, serve, .. } = args;
    let demo = |store| Demo { store, tables: tables.clone(), own, time, rate, serve };
    let summary = match url.split(':').next() {
        Some("postgres" | "postgresql") => {
            let store = PostgresStore::connect(&url, tables.clone(), &options).await?;
            let pool = shop_pool(store.pool()).await?;
            demo(Arc::new(store)).run(pool, &mut signal).await?
        }
        Some("mysql" | "mariadb") => {
            let store = MySqlStore::connect(&url, tables.clone(), &options).await?;
            let pool = shop_pool(store.pool()).await?;
            demo(Arc::new(store)).run(pool, &mut signal).await?
        }
        Some("sqlite") => {
            let store = SqliteStore::connect(&url, tables.clone(), &options).await?;
            // SQLite has one writer: two that share a pool take turns, two with a pool each would
            // wait for the file's lock.
            let pool = store.pool().clone();
            demo(Arc::new(store)).run(pool, &mut signal).await?
        }
        // It says which schemes are known.
        _ => return stores::connect(&url, &options).await.map(drop),
    };
    print(&summary.to_string())?;
    summary.verdict()
}
