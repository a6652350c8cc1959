//! The memory that a relay gives to events, and whether those of this outbox fit.

use posthaste_core::{
    Result,
    store::{Filter, Finding, Level, Store},
};

/// How many of the newest events are looked at.
const EVENTS: usize = 100;

/// Which part of its memory one page of a relay may take.
const PAGE: usize = 8;

/// Names the memory that a relay gives to events, in bytes, and warns where the largest of the newest events is
/// larger than a page: such events pass one at a time. Asks for no payload.
pub async fn memory(store: &dyn Store, budget: usize) -> Result<Finding> {
    let newest = store.events(&Filter::default(), None, EVENTS).await?.events;
    let largest = newest.iter().map(|event| event.payload_bytes).max().unwrap_or(0);
    Ok(finding(budget, largest))
}

fn finding(budget: usize, largest: u64) -> Finding {
    let page = budget / PAGE;
    let text = format!(
        "a relay gives events {} of memory, one page {}; the largest payload of the newest {EVENTS} \
         events has {}",
        size(budget as u64),
        size(page as u64),
        size(largest)
    );
    if largest <= page as u64 {
        return Finding::ok("memory", text);
    }
    let enough = largest.saturating_mul(PAGE as u64).div_ceil(1 << 20);
    let text = format!("{text}: such events pass one at a time");
    Finding::new("memory", Level::Warning, text).mended_by(format!(
        "set relay.memory to {enough} (MiB) or more, or keep large data elsewhere"
    ))
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_024 => format!("{bytes} bytes"),
        1_024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1_024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_larger_than_a_page_is_a_warning_that_says_what_is_enough() {
        let fits = finding(64 << 20, 300);
        assert_eq!(fits.level, Level::Ok);
        assert!(fits.text.contains("64.0 MiB of memory, one page 8.0 MiB"), "{}", fits.text);
        assert!(fits.text.contains("300 bytes"), "{}", fits.text);
        assert_eq!(finding(64 << 20, 8 << 20).level, Level::Ok);
        let large = finding(64 << 20, 10 << 20);
        assert_eq!(large.level, Level::Warning);
        assert!(large.mend.unwrap().contains("relay.memory to 80 (MiB)"));
    }
}
