//! Durations as people write them: `10s`, `500ms`, `1m30s`, `7d`.

use std::time::Duration;

const UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Reads a duration. A number without a unit is refused unless it is 0: nobody could tell seconds
/// from milliseconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let refused = || {
        format!("{text:?} is not a duration; use a number and ms, s, m, h or d, as in 500ms or 7d")
    };
    let mut rest = text.trim();
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(refused());
    }
    let mut millis: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number: u64 = rest[..digits].parse().map_err(|_| refused())?;
        rest = &rest[digits..];
        let letters = rest.len() - rest.trim_start_matches(|c: char| c.is_alphabetic()).len();
        let (_, factor) =
            UNITS.into_iter().find(|(unit, _)| *unit == &rest[..letters]).ok_or_else(refused)?;
        rest = rest[letters..].trim_start();
        millis = number
            .checked_mul(factor)
            .and_then(|part| millis.checked_add(part))
            .ok_or_else(refused)?;
    }
    Ok(Duration::from_millis(millis))
}

/// Writes a duration as [`parse`] reads it: `1m30s`.
pub(crate) fn exact(duration: Duration) -> String {
    let mut millis = duration.as_millis() as u64;
    let mut text = String::new();
    for (unit, factor) in UNITS.into_iter().rev() {
        if millis >= factor {
            text.push_str(&(millis / factor).to_string());
            text.push_str(unit);
            millis %= factor;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Writes an age for people: its two largest units.
pub(crate) fn age(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..10 => format!("{:.1} s", duration.as_secs_f64()),
        10..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, millis) in [
            ("500ms", 500),
            ("10s", 10_000),
            ("1m30s", 90_000),
            ("2h 5m", 7_500_000),
            ("7d", 604_800_000),
            ("0", 0),
            ("0s", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
            assert_eq!(parse(&exact(Duration::from_millis(millis))), parse(text), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused_with_its_text_and_an_example() {
        for text in ["", "10", "s", "-1s", "1.5s", "10 s", "10x", "10sec", "99999999999999999999d"]
        {
            let message = parse(text).unwrap_err();
            assert!(message.contains(&format!("{text:?}")) && message.contains("500ms"), "{text}");
        }
    }

    #[test]
    fn an_age_has_at_most_two_units() {
        assert_eq!(age(Duration::from_millis(1_260)), "1.3 s");
        assert_eq!(age(Duration::from_secs(125)), "2 min 5 s");
        assert_eq!(age(Duration::from_hours(25)), "1 d 1 h");
    }
}
