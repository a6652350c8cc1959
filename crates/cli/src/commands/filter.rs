//! Which events, as flags say it.

use clap::Args;
use jiff::{Timestamp, civil::Date, tz::TimeZone};
use posthaste::{Status, store::Filter};

use crate::duration;

/// Which events; what is given must all match.
#[derive(Args, Clone)]
pub(super) struct FilterArgs {
    /// Only of this event type
    #[arg(long = "type", value_name = "TYPE")]
    event_type: Option<String>,

    /// Only of this aggregate
    #[arg(long, value_name = "TYPE/ID", value_parser = key)]
    key: Option<(String, String)>,

    /// Only of this aggregate type
    #[arg(long, value_name = "TYPE", conflicts_with = "key")]
    aggregate_type: Option<String>,

    /// Only of this tenant
    #[arg(long)]
    tenant: Option<String>,

    /// Only written at or after this time: `2026-05-01T12:00:00Z`, `2026-05-01`, or `2h` for two
    /// hours ago
    #[arg(long, value_name = "TIME", value_parser = time)]
    from: Option<Timestamp>,

    /// Only written before this time
    #[arg(long, value_name = "TIME", value_parser = time)]
    before: Option<Timestamp>,
}

impl FilterArgs {
    /// The filter, in this state.
    pub(super) fn filter(self, status: Option<Status>) -> Filter {
        let (of_key, id) = self.key.unzip();
        Filter {
            status,
            event_type: self.event_type,
            aggregate_type: of_key.or(self.aggregate_type),
            aggregate_id: id,
            tenant: self.tenant,
            created_from: self.from,
            created_before: self.before,
        }
    }
}

/// `Order/42`: the first slash ends the type.
pub(super) fn key(text: &str) -> Result<(String, String), String> {
    match text.split_once('/') {
        Some((of, id)) if !of.is_empty() && !id.is_empty() => Ok((of.to_owned(), id.to_owned())),
        _ => Err(format!("{text:?} is not an aggregate; use its type and id, as in Order/42")),
    }
}

/// A time, a day (by UTC), or how long ago.
fn time(text: &str) -> Result<Timestamp, String> {
    if let Ok(time) = text.parse() {
        return Ok(time);
    }
    if let Ok(day) = text.parse::<Date>() {
        let midnight = day.to_zoned(TimeZone::UTC).map_err(|error| error.to_string())?;
        return Ok(midnight.timestamp());
    }
    let ago = duration::parse(text).ok();
    ago.and_then(|ago| Timestamp::now().checked_sub(ago).ok()).ok_or_else(|| {
        format!(
            "{text:?} is not a time; use 2026-05-01T12:00:00Z, 2026-05-01, or 2h for two hours ago"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        let noon: Timestamp = "2026-05-01T12:00:00Z".parse().unwrap();
        assert_eq!(time("2026-05-01T12:00:00Z"), Ok(noon));
        assert_eq!(time("2026-05-01"), Ok("2026-05-01T00:00:00Z".parse().unwrap()));
        let ago = Timestamp::now().duration_since(time("2h").unwrap());
        assert!((7_199..7_260).contains(&ago.as_secs()), "{ago:?}");
        for text in ["", "yesterday", "12:00", "2"] {
            assert!(time(text).unwrap_err().contains("2026-05-01T12:00:00Z"), "{text}");
        }
    }

    #[test]
    fn an_aggregate_is_its_type_and_id() {
        assert_eq!(key("Order/a/b"), Ok(("Order".to_owned(), "a/b".to_owned())));
        assert!(key("Order").is_err() && key("/1").is_err() && key("Order/").is_err());
    }
}
