//! Why one event is not delivered yet.
//!
//! What the event's own row says comes first; then what keeps back every event like it.

use jiff::Timestamp;
use posthaste_core::{
    Result, Status,
    store::{EventRecord, OpenTransaction, Store, Wait},
};
use posthaste_relay::Routes;
use serde::Serialize;
use uuid::Uuid;

use super::{
    obstacles::Surroundings,
    words::{since, span, time, until},
};

/// The destination that stands for "no route matched".
pub(super) const UNROUTED: &str = "unrouted";

/// How many open transactions are named.
const TRANSACTIONS: usize = 3;

/// Why an event is where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// It was delivered.
    Delivered,
    /// An operator gave it up.
    Discarded,
    /// No such event: uncommitted, rolled back, purged, or of another outbox.
    NotFound,
    /// Its deliver-at lies in the future.
    Delayed,
    /// It waits behind another event of its key.
    Held,
    /// Its key waits for an operator, behind a dead event.
    Parked,
    /// It failed and waits for its next attempt.
    Retry,
    /// It was given up on.
    Dead,
    /// Its destination takes nothing.
    BreakerOpen,
    /// Somebody paused what it needs.
    Paused,
    /// Nobody holds its shard.
    ShardUnowned,
    /// No route matches it: it was given up on, or will be as soon as a relay reads it.
    NoRoute,
    /// No relay is alive.
    NoRelay,
    /// Nothing keeps it back.
    InProgress,
}

/// The answer for one event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// Why, in a word.
    pub cause: Cause,
    /// Why, in sentences.
    pub sentence: String,
    /// The command that mends it, or that shows more; `None` for an event that was delivered.
    pub mend: Option<String>,
}

impl Explanation {
    pub(super) fn new(cause: Cause, sentence: impl Into<String>) -> Self {
        Self { cause, sentence: sentence.into(), mend: None }
    }

    pub(super) fn mended_by(mut self, mend: impl Into<String>) -> Self {
        self.mend = Some(mend.into());
        self
    }

    /// Where nothing else is to be done, the command that shows the event with all its failures.
    fn or_look_at(self, id: Uuid) -> Self {
        if self.mend.is_some() || self.cause == Cause::Delivered {
            return self;
        }
        self.mended_by(format!("posthaste events show {id}"))
    }

    /// Adds what keeps it back besides.
    fn besides(mut self, obstacle: Option<Self>) -> Self {
        if let Some(Self { sentence, mend, .. }) = obstacle {
            self.sentence = format!("{} Besides, {sentence}.", self.sentence);
            self.mend = self.mend.or(mend);
        }
        self
    }
}

/// Says why an event is not delivered yet. `destinations` are the names of the outbox's destinations as
/// far as the caller knows them: with one, it is known where every event goes. With several, `routes` say
/// it; they are those of the caller's configuration.
pub async fn explain(
    store: &dyn Store,
    id: Uuid,
    destinations: &[String],
    routes: Option<&Routes>,
) -> Result<Explanation> {
    let Some(record) = store.event(id).await? else {
        let open = store.open_transactions(TRANSACTIONS).await?;
        return Ok(not_found(id, &open, store.now().await?));
    };
    let around = Surroundings::read(store, destinations, routes).await?;
    let now = around.now;

    let explanation = match record.status {
        Status::Sent => delivered(&record),
        Status::Discarded => {
            Explanation::new(Cause::Discarded, "An operator gave it up; it is never delivered.")
                .mended_by("posthaste audit")
        }
        Status::Dead => dead(id, &record, now),
        Status::Sending => {
            let by = record.locked_by.as_deref().unwrap_or("a relay");
            Explanation::new(Cause::InProgress, format!("It is being delivered by {by}."))
                .mended_by("posthaste relays")
        }
        Status::New | Status::Retry => {
            let waits = waiting(store, &record, now).await?;
            let obstacle = around.obstacle(&record);
            // What was put back without an attempt waits for what it was put back for.
            let put_back =
                |waits: &Explanation| waits.cause == Cause::Retry && record.attempts == 0;
            match (waits, obstacle) {
                (waits, Some(obstacle)) if waits.as_ref().is_none_or(put_back) => Explanation {
                    sentence: format!("It is due, but {}.", obstacle.sentence),
                    ..obstacle
                },
                (Some(waits), obstacle) => waits.besides(obstacle),
                (None, _) => in_progress(&record, &around),
            }
        }
    };
    Ok(explanation.or_look_at(id))
}

fn not_found(id: Uuid, open: &[OpenTransaction], now: Timestamp) -> Explanation {
    let begun = |transaction: &OpenTransaction| match transaction.since {
        Some(at) => format!(", open since {}", since(at, now)),
        None => String::new(),
    };
    let open: Vec<String> =
        open.iter().map(|one| format!("{} ({}){}", one.who, one.state, begun(one))).collect();
    let made = id.get_timestamp().and_then(|made| {
        let (seconds, nanos) = made.to_unix();
        Timestamp::new(i64::try_from(seconds).ok()?, i32::try_from(nanos).ok()?).ok()
    });
    let made = made.map(|made| format!(" Its id was made at {}.", since(made, now)));
    let uncommitted = if open.is_empty() {
        "No transaction is seen that has written and is still open: its own was rolled back, or it \
         was sent and purged, or it belongs to another outbox."
            .to_owned()
    } else {
        format!(
            "It may be in a transaction that is not committed yet; the oldest that have written: {}. \
             Otherwise its transaction was rolled back, or it was sent and purged, or it belongs to \
             another outbox.",
            open.join("; ")
        )
    };
    let sentence =
        format!("The outbox holds no such event.{} {uncommitted}", made.unwrap_or_default());
    // The installation's check names every transaction that is open for long, and how to end it.
    let mend = if open.is_empty() { "posthaste events list" } else { "posthaste doctor" };
    Explanation::new(Cause::NotFound, sentence).mended_by(mend)
}

fn delivered(record: &EventRecord) -> Explanation {
    let at = record.sent_at.map(|at| format!(" at {}", time(at))).unwrap_or_default();
    let after = match record.attempts {
        0 => String::new(),
        failed => format!(", after {failed} failed attempts"),
    };
    Explanation::new(Cause::Delivered, format!("It was delivered{at}{after}."))
}

fn dead(id: Uuid, record: &EventRecord, now: Timestamp) -> Explanation {
    let when = record.dead_at.map(|at| format!(" since {}", since(at, now))).unwrap_or_default();
    let why = record.last_error.as_deref().unwrap_or("the reason was not kept");
    // A row that cannot be decoded goes nowhere either.
    if record.destination.as_deref() == Some(UNROUTED) && record.content.is_ok() {
        let sentence = format!("It is dead{when}: {why}.");
        let mend = format!("add a route that matches it, then: posthaste dead replay {id}");
        return Explanation::new(Cause::NoRoute, sentence).mended_by(mend);
    }
    let parked = match record.wait {
        Some(Wait::Parked) => {
            " The later events of its key wait until it is replayed or discarded."
        }
        _ => "",
    };
    let failed = match record.attempts {
        1 => "1 failed attempt".to_owned(),
        attempts => format!("{attempts} failed attempts"),
    };
    let sentence = format!("It is dead{when}, after {failed}: {why}.{parked}");
    Explanation::new(Cause::Dead, sentence).mended_by(format!("posthaste dead replay {id}"))
}

/// What the row itself waits for; `None` when it is due.
async fn waiting(
    store: &dyn Store,
    record: &EventRecord,
    now: Timestamp,
) -> Result<Option<Explanation>> {
    if record.wait == Some(Wait::Held) {
        let holder = store.held_by(record.sequence).await?;
        return Ok(holder.map(|holder| behind(&holder, now)));
    }
    let Some(at) = record.not_before.filter(|at| *at > now) else {
        return Ok(None);
    };
    if record.wait.is_none() {
        let sentence = format!("It is not to be delivered before {}.", until(at, now));
        return Ok(Some(Explanation::new(Cause::Delayed, sentence)));
    }
    let place = record.destination.as_ref().map(|name| format!(" at {name}")).unwrap_or_default();
    let why = record.last_error.as_deref().unwrap_or("the reason was not kept");
    let next = until(at, now);
    let sentence = match record.attempts {
        0 => {
            format!("It was put back without an attempt{place} ({why}) and comes again at {next}.")
        }
        1 => format!("It has failed once and is tried again at {next}. The failure{place}: {why}."),
        failed => format!(
            "It has failed {failed} times and is tried again at {next}. The last failure{place}: {why}."
        ),
    };
    Ok(Some(Explanation::new(Cause::Retry, sentence)))
}

/// Waiting behind another event of its key.
fn behind(holder: &EventRecord, now: Timestamp) -> Explanation {
    let name = match holder.event_id {
        Some(id) => format!("event {id}"),
        None => format!("the event with sequence {}", holder.sequence),
    };
    let id = holder.event_id.map(|id| id.to_string()).unwrap_or_default();
    let why = holder.last_error.as_deref().unwrap_or("the reason was not kept");
    if holder.status == Status::Dead {
        let when = holder.dead_at.map(|at| format!(" since {}", since(at, now)));
        let sentence = format!(
            "Its key is parked behind {name}, which is dead{} ({why}), until somebody replays or \
             discards that.",
            when.unwrap_or_default()
        );
        return Explanation::new(Cause::Parked, sentence)
            .mended_by(format!("posthaste dead replay {id}"));
    }
    let next = match holder.not_before.filter(|at| *at > now) {
        Some(at) => format!("is tried again at {}", until(at, now)),
        None => "is due".to_owned(),
    };
    let sentence = format!("It is held behind {name} of its key, which failed ({why}) and {next}.");
    Explanation::new(Cause::Held, sentence).mended_by(format!("posthaste doctor {id}"))
}

fn in_progress(record: &EventRecord, around: &Surroundings<'_>) -> Explanation {
    let written = record.content.as_ref().ok().map(|envelope| envelope.created_at);
    let due = record.not_before.or(written);
    let waited = due.map(|at| format!(" for {}", span(around.now.duration_since(at))));
    let owner = match around.owner_of(record.shard) {
        Some(owner) => format!("relay {owner} holds its shard {}", record.shard),
        None => "relays are alive".to_owned(),
    };
    let sentence = format!(
        "It has been due{}, {owner}, and nothing is known to keep it back: it is being delivered, or \
         others are before it.",
        waited.unwrap_or_default()
    );
    Explanation::new(Cause::InProgress, sentence)
}
