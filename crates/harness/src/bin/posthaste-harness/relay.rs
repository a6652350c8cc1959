//! A relay that says how it stands until it is terminated.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use posthaste::{
    ErrorKind,
    clock::ManualClock,
    relay::Relay,
    stores::{Options, connect},
};
use posthaste_harness::{
    message::{Message, Report, say},
    options::RelayOptions,
};
use tokio::signal::unix::{SignalKind, signal};

use crate::{told, transport::Recorder};

/// Shortest time between two reports.
const REPORT_EVERY: Duration = Duration::from_millis(20);

/// Pause before a start that failed for want of a database is tried again.
pub(crate) const START_AGAIN: Duration = Duration::from_millis(100);

fn is_away(error: &(dyn Error + 'static)) -> bool {
    let error = error.downcast_ref::<posthaste::Error>();
    error.is_some_and(|error| error.kind() == ErrorKind::Unavailable)
}

/// A relay with its destination.
pub(crate) struct Running {
    pub(crate) relay: Relay,
    in_flight: Arc<AtomicU64>,
}

impl Running {
    /// Starts it, as often as the database is away.
    pub(crate) async fn start(options: &RelayOptions) -> Result<Self, Box<dyn Error>> {
        loop {
            match Self::try_start(options).await {
                Err(error) if is_away(&*error) => {
                    tracing::warn!(%error, "not started; trying again");
                    tokio::time::sleep(START_AGAIN).await;
                }
                ended => return ended,
            }
        }
    }

    async fn try_start(options: &RelayOptions) -> Result<Self, Box<dyn Error>> {
        let database = Options { table: options.table.clone(), connections: options.connections };
        let store = connect(&options.url, &database).await?;
        let transport = Recorder::new(options)?;
        let in_flight = transport.in_flight();
        let mut relay = Relay::new(store, Arc::new(transport), options.config())?;
        if options.frozen_clock {
            relay = relay.with_clock(Arc::new(ManualClock::new()));
        }
        relay.start().await?;
        Ok(Self { relay, in_flight })
    }

    pub(crate) fn report(&self) -> Report {
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        Report { in_flight, ..Report::default() }.with_stats(&self.relay.stats())
    }

    /// Stops it, or says why it had ended before.
    pub(crate) async fn stop(&self) -> Result<Report, Box<dyn Error>> {
        let stats = self.relay.stop().await?;
        Ok(Report { stopped: true, ..Report::default() }.with_stats(&stats))
    }
}

pub(crate) async fn run(options: &RelayOptions) -> Result<(), Box<dyn Error>> {
    let mut terminated = signal(SignalKind::terminate())?;
    let _told = told();
    let running = tokio::select! {
        running = Running::start(options) => running?,
        _ = terminated.recv() => {
            say(&Message::Report(Report { stopped: true, ..Report::default() }));
            return Ok(());
        }
    };
    let mut said = Report::default();
    while running.relay.is_running() {
        let report = running.report();
        if report != said {
            say(&Message::Report(report.clone()));
            said = report;
        }
        tokio::select! {
            _ = terminated.recv() => break,
            () = tokio::time::sleep(REPORT_EVERY) => {}
        }
    }
    say(&Message::Report(running.stop().await?));
    Ok(())
}
