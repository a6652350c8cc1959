//! Times and pauses as sentences have them.

use jiff::{SignedDuration, Timestamp};
use posthaste_core::{
    Event, Ordering,
    store::{Pausable, Pause},
};

/// A time to the second.
pub(super) fn time(at: Timestamp) -> String {
    format!("{at:.0}")
}

/// A time and how far it is from now: `2026-01-01T10:00:00Z, 3 min ago`.
pub(super) fn since(at: Timestamp, now: Timestamp) -> String {
    format!("{}, {} ago", time(at), span(now.duration_since(at)))
}

/// A time to come: `2026-01-01T10:00:00Z, in 3 min`.
pub(super) fn until(at: Timestamp, now: Timestamp) -> String {
    format!("{}, in {}", time(at), span(at.duration_since(now)))
}

/// A time span in its largest units; what is negative is none.
pub(super) fn span(span: SignedDuration) -> String {
    let seconds = span.as_secs().max(0);
    match (seconds / 86_400, seconds / 3_600, seconds / 60) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, minutes) => format!("{hours} h {} min", minutes % 60),
        (days, hours, _) => format!("{days} d {} h", hours % 24),
    }
}

/// Who paused it, since when and why.
pub(super) fn by_whom(pause: &Pause, now: Timestamp) -> String {
    let note = pause.note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
    format!("paused by {} since {}{note}", pause.by, since(pause.since, now))
}

/// The command that lets it go on. A key is told by the aggregate of an event of it, if there is one at
/// hand.
pub(super) fn resume(what: &Pausable, event: Option<&Event>) -> String {
    let Some(event) = event.filter(|event| *event.ordering() == Ordering::Aggregate) else {
        return format!("posthaste resume {what}");
    };
    match (what, event.aggregate_id()) {
        (Pausable::Key(_), Some(id)) => {
            let tenant = event.tenant().map(|tenant| format!(" --tenant {tenant}"));
            let aggregate_type = event.aggregate_type();
            format!("posthaste resume key {aggregate_type}/{id}{}", tenant.unwrap_or_default())
        }
        _ => format!("posthaste resume {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_told_in_their_largest_units() {
        for (seconds, words) in [
            (-5, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (3_660, "1 h 1 min"),
            (86_400 + 7_200, "1 d 2 h"),
        ] {
            assert_eq!(span(SignedDuration::from_secs(seconds)), words);
        }
    }
}
