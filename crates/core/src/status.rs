//! The states of an event, and the one function that says which step leads from one to another.

use std::{fmt, str::FromStr};

use crate::{Error, ErrorKind, Result};

/// Where an event stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Written and not yet delivered: waiting for its turn, its time, or the event before it.
    New,
    /// Claimed under a row lease.
    Sending,
    /// Failed, and to be tried again.
    Retry,
    /// Acknowledged by its destination.
    Sent,
    /// Given up on, kept until someone replays or discards it.
    Dead,
    /// Given up on by an operator.
    Discarded,
}

/// What happens to an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// A relay takes a row lease.
    Claim,
    /// The lease ends without an outcome: expired, or given back.
    Unclaim,
    /// The destination acknowledged it.
    Deliver,
    /// It failed and will be tried again.
    Fail,
    /// It is given up on.
    Die,
    /// An operator sends it again.
    Replay,
    /// An operator gives it up.
    Discard,
}

impl Status {
    /// All states, in the order of an event's life.
    pub const ALL: [Self; 6] =
        [Self::New, Self::Sending, Self::Retry, Self::Sent, Self::Dead, Self::Discarded];

    /// The state that this step leads to; an error when it leads nowhere from here. Every store
    /// obeys this table, and the conformance suite holds them to it. Where it says new, an event
    /// that has failed before, or that takes the head of its parked lane again, shows as retry.
    pub fn after(self, step: Step) -> Result<Self> {
        use Status::{Dead, Discarded, New, Retry, Sending, Sent};
        match (self, step) {
            (New | Retry, Step::Claim) => Ok(Sending),
            (New | Retry | Sending, Step::Deliver) => Ok(Sent),
            (New | Retry | Sending, Step::Fail) => Ok(Retry),
            (New | Retry | Sending, Step::Die) => Ok(Dead),
            (Sending, Step::Unclaim) | (Dead | Sent, Step::Replay) => Ok(New),
            (New | Retry | Dead, Step::Discard) => Ok(Discarded),
            (from, step) => Err(Error::new(
                ErrorKind::IllegalTransition,
                format!("an event that is {from} cannot {step}"),
            )),
        }
    }

    /// The name in SQL, flags and labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Sending => "sending",
            Self::Retry => "retry",
            Self::Sent => "sent",
            Self::Dead => "dead",
            Self::Discarded => "discarded",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Status {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text).ok_or_else(|| {
            Error::invalid(format!(
                "status {text:?} is not known; use new, sending, retry, sent, dead or discarded"
            ))
        })
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Claim => "be claimed",
            Self::Unclaim => "be given back",
            Self::Deliver => "be delivered",
            Self::Fail => "fail",
            Self::Die => "be given up on",
            Self::Replay => "be replayed",
            Self::Discard => "be discarded",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: [Step; 7] = [
        Step::Claim,
        Step::Unclaim,
        Step::Deliver,
        Step::Fail,
        Step::Die,
        Step::Replay,
        Step::Discard,
    ];

    #[test]
    fn nothing_but_an_operator_revives_a_finished_event() {
        for from in [Status::Sent, Status::Dead, Status::Discarded] {
            for step in [Step::Claim, Step::Deliver, Step::Fail, Step::Die] {
                assert!(from.after(step).is_err(), "{from} let {step:?} through");
            }
        }
    }

    #[test]
    fn a_discarded_event_stays_discarded() {
        assert!(STEPS.into_iter().all(|step| Status::Discarded.after(step).is_err()));
    }

    #[test]
    fn what_was_sent_cannot_be_discarded() {
        let error = Status::Sent.after(Step::Discard).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IllegalTransition);
        assert_eq!(error.to_string(), "an event that is sent cannot be discarded");
    }
}
