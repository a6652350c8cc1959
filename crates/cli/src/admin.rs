//! `posthaste admin`: the API and the dashboard without a relay.

use std::sync::Arc;

use clap::Args;
use posthaste::{Error, Result};
use posthaste_admin::AdminOutbox;

use crate::{
    args::OutboxArgs,
    config::{Flag, Listen, Origin},
    database, logging,
    output::print,
    serve::Serving,
    stop::StopSignal,
};

/// Serve the admin API and the dashboard of one outbox or several until stopped, without
/// delivering anything.
#[derive(Args)]
pub(crate) struct AdminArgs {
    #[command(flatten)]
    outbox: OutboxArgs,

    /// Where to listen [default: `admin.listen`, 127.0.0.1:9464]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
}

pub(crate) async fn run(args: AdminArgs) -> Result<()> {
    let listen = args.listen.iter().map(|text| Flag {
        key: "admin.listen".to_owned(),
        text: text.clone(),
        origin: Origin::Flag("--listen"),
    });
    let settings = args.outbox.load(listen.collect())?;
    settings.refuse(&["outbox", "outboxes", "cleaner", "log", "admin"])?;
    logging::to_stderr("info", Some(&settings.log));
    let names = settings.destination_names();
    let mut outboxes = Vec::new();
    for outbox in &settings.outboxes {
        let (store, _) = database::open(outbox).await?;
        outboxes.push(AdminOutbox {
            name: outbox.name.clone(),
            store,
            relay: None,
            destinations: names.clone(),
            routes: settings.known_routes(outbox).map(Arc::new),
            retention: outbox.retention,
        });
    }
    let mut admin = settings.admin;
    // Here it is all there is: without it there is nothing to go on with.
    admin.listen = admin.listen.map(|listen| Listen { chosen: true, ..listen });
    let mut signal = StopSignal::new()?;
    let mut serving = Serving::nothing();
    let Some(url) = serving.admin(&admin, None, outboxes).await? else {
        return Err(Error::invalid("admin.enabled is false, or admin.listen is off"));
    };
    print(&format!("{url}\n"))?;
    signal.wait().await;
    serving.stop().await;
    Ok(())
}
