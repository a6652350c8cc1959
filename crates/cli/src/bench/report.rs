//! What a bench found: a table for people, or one line of JSON.

use std::{fmt, time::Duration};

use comfy_table::{Table, presets};
use serde::Serialize;

/// The figures of one bench.
pub(super) struct Report {
    title: String,
    json: String,
    rows: Vec<[String; 3]>,
    notes: Vec<String>,
}

impl Report {
    /// The figures as JSON has them.
    pub(super) fn new(title: String, figures: &impl Serialize) -> Self {
        let json = serde_json::to_string(figures).unwrap_or_default();
        Self { title, json, rows: Vec::new(), notes: Vec::new() }
    }

    /// A line of the table: what, how much, and how that compares.
    pub(super) fn row(&mut self, what: &str, figure: String, compared: String) {
        self.rows.push([what.to_owned(), figure, compared]);
    }

    /// A line below the table.
    pub(super) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    pub(super) fn print(&self, json: bool) {
        if json {
            println!("{}", self.json);
            return;
        }
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        let columns = if self.rows.iter().all(|row| row[2].is_empty()) { 2 } else { 3 };
        for row in &self.rows {
            table.add_row(&row[..columns]);
        }
        println!("{}\n{table}", self.title);
        for note in &self.notes {
            println!("{note}");
        }
    }
}

/// Says on standard error what goes on.
pub(super) fn progress(what: fmt::Arguments<'_>) {
    eprintln!("bench: {what}");
}

/// Events a second.
pub(super) fn per_second(events: u64, elapsed: Duration) -> f64 {
    events as f64 / elapsed.as_secs_f64().max(1e-9)
}

/// The middle one; between two, their mean. Nothing of nothing.
pub(super) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// How many pairs the medians are of, in words.
pub(super) fn medians(pairs: u64) -> String {
    match pairs {
        1 => "one pair".to_owned(),
        _ => format!("medians of {pairs} pairs"),
    }
}

/// The median of the pairs' own ratios: what slows the machine down for a while slows both down.
pub(super) fn median_ratio(ours: &[f64], baseline: &[f64]) -> Option<f64> {
    let ratios: Vec<f64> = ours.iter().zip(baseline).map(|(ours, base)| ours / base).collect();
    median(&ratios)
}

/// Latencies of one way.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Percentiles {
    pub(super) p50_ms: f64,
    pub(super) p95_ms: f64,
    pub(super) p99_ms: f64,
}

impl Percentiles {
    /// Nearest rank. `None` of no sample.
    pub(super) fn of(samples: &[Duration]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort();
        let at = |share: f64| {
            let rank = (sorted.len() as f64 * share).ceil() as usize;
            sorted.get(rank.saturating_sub(1)).map(|time| rounded(time.as_secs_f64() * 1e3, 3))
        };
        Some(Self { p50_ms: at(0.5)?, p95_ms: at(0.95)?, p99_ms: at(0.99)? })
    }
}

impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { p50_ms, p95_ms, p99_ms } = self;
        write!(f, "p50 {p50_ms:.3} ms   p95 {p95_ms:.3} ms   p99 {p99_ms:.3} ms")
    }
}

/// So many digits behind the point are enough.
pub(super) fn rounded(value: f64, digits: i32) -> f64 {
    let factor = 10_f64.powi(digits);
    (value * factor).round() / factor
}

/// All of them rounded to whole numbers.
pub(super) fn whole(values: &[f64]) -> Vec<f64> {
    values.iter().map(|value| value.round()).collect()
}

/// `123,456 /s`.
pub(super) fn rate(value: f64) -> String {
    format!("{} /s", thousands(value.round() as u64))
}

/// `123,456`.
pub(super) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_and_a_ratio_is_that_of_the_pairs() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
        assert_eq!(median(&[]), None);
        // The machine was slow in the second pair: its ratio is as good as any.
        assert_eq!(median_ratio(&[80.0, 8.0, 90.0], &[100.0, 10.0, 100.0]), Some(0.8));
    }

    #[test]
    fn percentiles_are_samples_that_were_measured() {
        let samples: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        let found = Percentiles::of(&samples).unwrap();
        assert_eq!((found.p50_ms, found.p95_ms, found.p99_ms), (50.0, 95.0, 99.0));
        assert!(Percentiles::of(&[]).is_none());
    }

    #[test]
    fn large_numbers_are_readable() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_234_567), "1,234,567");
    }
}
