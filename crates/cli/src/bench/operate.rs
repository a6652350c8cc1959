//! `bench operate`: whether an operator's questions are answered as quickly in a large outbox as in a
//! small one.
//!
//! Half of each outbox is sent, half of it waits. Both are asked in turn; what walks over events to
//! find an answer takes longer in the large one.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use posthaste::{
    Error, Result, Status,
    store::{Counts, Filter, Store},
};
use serde::Serialize;
use uuid::Uuid;

use super::{
    args::OperateArgs,
    ground::Ground,
    relayed::{self, Until},
    report::{Percentiles, Report, progress, rounded, thousands},
    target::Target,
};

/// Events on one page.
const PAGE: usize = 50;

/// What an operator asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    /// What a refresh of the metrics and the overview's numbers read.
    Scrape,
    Tenants,
    Shards,
    Event,
    Newest,
    OfAggregate,
    Dead,
    Retry,
    LastHour,
    /// Nothing has this type: the page ends after the events that one look may examine.
    OfType,
}

impl Question {
    const ALL: [Self; 10] = [
        Self::Scrape,
        Self::Tenants,
        Self::Shards,
        Self::Event,
        Self::Newest,
        Self::OfAggregate,
        Self::Dead,
        Self::Retry,
        Self::LastHour,
        Self::OfType,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Scrape => "counts and oldest",
            Self::Tenants => "backlog by tenant",
            Self::Shards => "relays and shards",
            Self::Event => "one event",
            Self::Newest => "events, newest",
            Self::OfAggregate => "events of an aggregate",
            Self::Dead => "dead letters",
            Self::Retry => "events to be tried again",
            Self::LastHour => "events of a time",
            Self::OfType => "events of a rare type",
        }
    }

    fn filter(self) -> Filter {
        let none = Filter::default();
        match self {
            Self::OfAggregate => Filter { aggregate_id: Some("7".to_owned()), ..none },
            Self::Dead => Filter { status: Some(Status::Dead), ..none },
            Self::Retry => Filter { status: Some(Status::Retry), ..none },
            Self::OfType => Filter { event_type: Some("Nothing".to_owned()), ..none },
            Self::LastHour => {
                let since = Timestamp::now() - SignedDuration::from_hours(1);
                Filter { created_from: Some(since), ..none }
            }
            _ => none,
        }
    }

    async fn ask(self, store: &dyn Store) -> Result<()> {
        match self {
            Self::Scrape => {
                store.counts(Counts::CAP).await?;
                store.oldest_pending().await?;
            }
            Self::Tenants => drop(store.counts_by_tenant(Counts::CAP).await?),
            Self::Shards => {
                store.shards().await?;
                store.relays().await?;
            }
            Self::Event => {
                // As the fillings number them.
                let id = Uuid::from_u128(0x0198_0000_0000_7000_8000_0000_0000_0007);
                if store.event(id).await?.is_none() {
                    return Err(Error::invalid("an event of the bench's own is not there"));
                }
            }
            _ => drop(store.events(&self.filter(), None, PAGE).await?),
        }
        Ok(())
    }
}

#[derive(Serialize)]
struct Answer {
    question: &'static str,
    large: Percentiles,
    small: Percentiles,
    /// The medians' ratio.
    ratio: f64,
}

#[derive(Serialize)]
struct Figures<'f> {
    bench: &'f str,
    database: &'f str,
    release: bool,
    events: u64,
    small: u64,
    payload: usize,
    times: u64,
    answers: &'f [Answer],
}

pub(super) async fn run<DB: Target>(args: &OperateArgs, ground: &Ground<DB>) -> Result<Report> {
    let large = half_sent(ground, &ground.large, args.events).await?;
    let small = half_sent(ground, &ground.tables, args.small).await?;
    let mut answers = Vec::new();
    for question in Question::ALL {
        let (mut in_large, mut in_small) = (Vec::new(), Vec::new());
        for _ in 0..args.times {
            in_large.push(timed(question, &*large).await?);
            in_small.push(timed(question, &*small).await?);
        }
        let (Some(large), Some(small)) = (Percentiles::of(&in_large), Percentiles::of(&in_small))
        else {
            continue;
        };
        let ratio = rounded(large.p50_ms / small.p50_ms.max(1e-3), 2);
        progress(format_args!(
            "{}: {:.2} ms, small {:.2} ms",
            question.name(),
            large.p50_ms,
            small.p50_ms
        ));
        answers.push(Answer { question: question.name(), large, small, ratio });
    }
    let figures = Figures {
        bench: "operate",
        database: &ground.version,
        release: !cfg!(debug_assertions),
        events: args.events,
        small: args.small,
        payload: ground.content.payload.len(),
        times: args.times,
        answers: &answers,
    };
    let title = format!(
        "operate on {}: outboxes of {} and {} events, half of them sent, half pending; {} times each",
        ground.version,
        thousands(args.events),
        thousands(args.small),
        args.times
    );
    let mut report = Report::new(title, &figures);
    for answer in &answers {
        let compared = format!("p50 {:.2} ms in the small one", answer.small.p50_ms);
        report.row(answer.question, answer.large.to_string(), compared);
    }
    Ok(report)
}

/// An outbox of so many events, half of which a relay has sent.
async fn half_sent<DB: Target>(
    ground: &Ground<DB>,
    tables: &posthaste::stores::Tables,
    events: u64,
) -> Result<Arc<dyn Store>> {
    ground.refill(tables, events).await?;
    let store = ground.store(tables).await?;
    let sent = events / 2;
    relayed::run(Arc::clone(&store), ground.config(false), sent, Until::Delivered).await?;
    DB::tidy(&mut ground.connection().await?, tables)
        .await
        .map_err(super::target::failed("tidying the table"))?;
    Ok(store)
}

async fn timed(question: Question, store: &dyn Store) -> Result<Duration> {
    let begun = Instant::now();
    question.ask(store).await?;
    Ok(begun.elapsed())
}
