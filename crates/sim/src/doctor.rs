//! Asks the doctor why events wait, and compares with what the world knows.
//!
//! The doctor knows what the table says. So it may not know yet what has begun a moment ago; it must never name
//! a cause that there is not, nor miss one that has lasted.

use posthaste_core::{
    Status,
    store::{Control, EventRecord, Pausable, Pause, Wait},
};
use posthaste_operate::doctor::{Cause, explain};

use crate::{
    history::{Happened, short},
    judge::Promise,
    world::World,
};

/// How many events are asked about at a time.
const ASKED: usize = 12;

impl World {
    /// Asks about some of these.
    pub(crate) async fn ask_the_doctor(&self, waiting: &[EventRecord]) {
        let names: Vec<String> =
            (0..self.plan.destinations).map(|number| format!("d{number}")).collect();
        let routes = self.routes();
        let pauses = self.operator.pauses().await.unwrap_or_default();
        let asked = waiting.iter().filter(|one| one.status != Status::Dead).take(ASKED);
        for record in asked {
            let Some(id) = record.event_id else { continue };
            let Ok(answer) = explain(&self.operator, id, &names, Some(&routes)).await else {
                continue;
            };
            self.history.count(format!("doctor: {:?}", answer.cause));
            if let Some(wrong) =
                self.differs(record, answer.cause, &answer.sentence, &pauses, waiting)
            {
                // Its sentence has times of the real clock in it.
                let text = format!(
                    "of {} (#{}) the doctor says {:?}, but {wrong}",
                    short(id),
                    record.sequence,
                    answer.cause
                );
                let promise = Promise::TheDoctorKnows;
                self.tell(Happened::Broke { promise, events: vec![id], text });
            }
        }
    }

    /// In which way an answer is not what the world knows.
    fn differs(
        &self,
        record: &EventRecord,
        cause: Cause,
        sentence: &str,
        pauses: &[Pause],
        waiting: &[EventRecord],
    ) -> Option<String> {
        let now = self.at();
        let event = record.content.as_ref().ok().map(|envelope| &envelope.event)?;
        let destination = self.destination_of(record);
        let paused = pauses.iter().any(|pause| match &pause.what {
            Pausable::Outbox => true,
            Pausable::Key(key) => event.key() == Some(*key),
            Pausable::Destination(name) => *name == format!("d{destination}"),
            Pausable::Relay(_) => false,
        });
        let of_key = || {
            waiting.iter().filter(|other| {
                let key = |of: &EventRecord| of.content.as_ref().ok().and_then(|of| of.event.key());
                other.sequence != record.sequence
                    && event.key().is_some()
                    && key(other) == event.key()
            })
        };
        let is_due = record.not_before.is_none_or(|at| at.as_microsecond() <= self.server.time());
        let is_quiet = !self.excuses().excuse_all(now, self.plan.relays);
        match cause {
            Cause::Delivered | Cause::Discarded | Cause::NotFound | Cause::Dead => {
                Some("it waits".to_owned())
            }
            Cause::NoRoute => Some("a route takes it".to_owned()),
            Cause::Delayed if is_due => Some("its time has come".to_owned()),
            Cause::Paused if !paused && pauses.is_empty() => Some("nothing is paused".to_owned()),
            Cause::Held if !of_key().any(|other| other.status != Status::Dead) => {
                Some("no other event of its key waits".to_owned())
            }
            Cause::Parked if !of_key().any(|other| other.wait == Some(Wait::Parked)) => {
                Some("no dead event parks its key".to_owned())
            }
            Cause::NoRelay | Cause::ShardUnowned if is_quiet => {
                Some("nothing has befallen a relay lately".to_owned())
            }
            Cause::BreakerOpen if is_quiet && !self.has_failed(destination, now) => {
                Some(format!("d{destination} has failed nothing lately"))
            }
            // It was claimed before, and may end.
            _ if record.status == Status::Sending => None,
            _ if paused && !sentence.contains("paused") => Some("it is paused".to_owned()),
            Cause::InProgress if is_quiet && self.is_down_for_long(destination, now) => {
                Some(format!("d{destination} has been down for long"))
            }
            _ => None,
        }
    }
}
