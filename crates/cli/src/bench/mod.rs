//! `posthaste bench`: measures this machine, this database and this build.
//!
//! Every figure stands beside a baseline that was measured in the same run: the two take turns, and
//! a ratio is the median of their pairs. A bench works on tables that it made itself, and drops
//! them in the end, also when it is interrupted.
//!
//! | bench | question | baseline |
//! | --- | --- | --- |
//! | `drain` | how fast does a backlog go out? | the same statements without a relay |
//! | `latency` | how long from commit to transport? | a bare LISTEN round trip |
//! | `enqueue` | what does an event cost a business transaction? | the same insert written by hand |
//! | `growth` | does a large backlog go out as fast as a small one? | the small one |
//! | `publish` | how fast does a backlog go to a broker? | the broker's own client |
//! | `destinations` | does one that is down slow another one down? | both are up |
//! | `operate` | do an operator's questions stay quick in a large outbox? | a small one |
//! | `idle` | what does a relay with nothing to do cost? | |

mod args;

mod target;

mod postgres;

mod mysql;

mod sqlite;

mod ground;

mod raw;

mod relayed;

mod process;

mod clients;

mod drain;

mod latency;

mod enqueue;

mod growth;

mod publish;

mod destinations;

mod operate;

mod idle;

mod report;

use posthaste::{Error, ErrorKind, Result};
use sqlx::{MySql, Postgres, Sqlite};

pub(crate) use self::args::BenchArgs;
use self::{args::What, clients::Broker, ground::Ground, target::Target};
use crate::stop::StopSignal;

/// Runs one bench and prints what it found.
pub(crate) async fn run(args: BenchArgs) -> Result<()> {
    let url = &args.common().url;
    match url.split(':').next().unwrap_or_default() {
        "postgres" | "postgresql" => on::<Postgres>(&args).await,
        "mysql" | "mariadb" => on::<MySql>(&args).await,
        "sqlite" => on::<Sqlite>(&args).await,
        other => Err(Error::invalid(format!(
            "database URL has the unknown scheme {other:?}; use postgres://, mysql://, mariadb:// \
             or sqlite:"
        ))),
    }
}

async fn on<DB: Target>(args: &BenchArgs) -> Result<()> {
    let mut stop = StopSignal::new()?;
    // What is wrong with a destination is said before anything is made.
    let broker = match &args.what {
        What::Publish(args) => Some(Broker::open(&args.to)?),
        _ => None,
    };
    if cfg!(debug_assertions) {
        eprintln!(
            "warning: this is not a release build; its figures say nothing (cargo build --release)"
        );
    }
    let mut ground = Ground::<DB>::claim(args.common()).await?;
    match &args.what {
        What::Publish(args) if args.hot_key => ground.content.keys = 1,
        What::Destinations(_) => ground.content.types = 2,
        _ => {}
    }
    let measured = tokio::select! {
        measured = measure(&args.what, &ground, broker.as_ref()) => measured,
        () = stop.wait() => Err(Error::new(ErrorKind::State, "stopped before the end; no figures")),
    };
    let left = ground.leave().await;
    let left_broker = match &broker {
        Some(broker) => broker.leave().await,
        None => Ok(()),
    };
    measured?.print(args.common().json);
    left.and(left_broker)
}

async fn measure<DB: Target>(
    what: &What,
    ground: &Ground<DB>,
    broker: Option<&Broker>,
) -> Result<report::Report> {
    match what {
        What::Drain(args) => drain::run(args, ground).await,
        What::Latency(args) => latency::run(args, ground).await,
        What::Enqueue(args) => enqueue::run(args, ground).await,
        What::Growth(args) => growth::run(args, ground).await,
        What::Publish(args) => match broker {
            Some(broker) => publish::run(args, ground, broker).await,
            None => Err(Error::new(ErrorKind::State, "there is no broker")),
        },
        What::Destinations(args) => destinations::run(args, ground).await,
        What::Operate(args) => operate::run(args, ground).await,
        What::Idle(args) => idle::run(args, ground).await,
    }
}
