//! Writes a line per event to standard output or any other writer.

use std::{
    borrow::Cow,
    fmt::Write as _,
    io::{self, Write},
    sync::{Mutex, PoisonError},
};

use async_trait::async_trait;
use posthaste_core::{
    Envelope,
    transport::{Acceptance, Capabilities, Outcome, Transport},
};

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line, for programs.
    Json,
}

/// Shows control characters as their escapes, such as `\u{1b}`: what an application wrote into an event must not
/// start a line of its own, nor speak to the terminal.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if c.is_control() {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

/// JSON with DEL and the control characters U+0080 to U+009F as their escapes. JSON need not escape these, and a
/// terminal may obey them.
pub fn visible_json(json: String) -> String {
    let obeyed = |c: char| ('\u{7f}'..='\u{9f}').contains(&c);
    if !json.contains(obeyed) {
        return json;
    }
    let shown = json.chars().map(|c| match c {
        c if obeyed(c) => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    });
    shown.collect()
}

/// Writes a line per event. Payloads stay out unless asked for.
pub struct LogTransport {
    format: Format,
    payload: bool,
    out: Mutex<Box<dyn Write + Send>>,
}

impl LogTransport {
    /// Lines on standard output.
    pub fn stdout(format: Format) -> Self {
        Self::to(format, Box::new(io::stdout()))
    }

    /// Lines on this writer.
    pub fn to(format: Format, out: Box<dyn Write + Send>) -> Self {
        Self { format, payload: false, out: Mutex::new(out) }
    }

    /// Writes the payload too: as text where it is UTF-8, otherwise its length.
    pub fn with_payload(mut self) -> Self {
        self.payload = true;
        self
    }

    fn line(&self, envelope: &Envelope) -> String {
        let event = &envelope.event;
        let payload = self.payload.then(|| match std::str::from_utf8(event.payload()) {
            Ok(text) => text.to_owned(),
            Err(_) => format!("({} bytes)", event.payload().len()),
        });
        match self.format {
            Format::Json => {
                let mut line = serde_json::json!({
                    "sequence": envelope.sequence,
                    "id": event.id().to_string(),
                    "type": event.event_type(),
                    "aggregate_type": event.aggregate_type(),
                    "aggregate_id": event.aggregate_id(),
                    "tenant": event.tenant(),
                    "topic": event.topic(),
                    "attempts": envelope.attempts,
                    "replay": envelope.replay,
                    "occurred_at": event.occurred_at().to_string(),
                    "bytes": event.payload().len(),
                });
                if let Some(payload) = payload {
                    line["payload"] = payload.into();
                }
                visible_json(line.to_string())
            }
            Format::Text => {
                let mut line = format!("#{} {}", envelope.sequence, event.event_type());
                if let Some(id) = event.aggregate_id() {
                    let _ = write!(line, " {}/{id}", event.aggregate_type());
                }
                if let Some(tenant) = event.tenant() {
                    let _ = write!(line, " tenant={tenant}");
                }
                let _ = write!(line, " id={} {} bytes", event.id(), event.payload().len());
                if let Some(payload) = payload {
                    line += " ";
                    line += &payload;
                }
                visible(&line).into_owned()
            }
        }
    }
}

#[async_trait]
impl Transport for LogTransport {
    fn name(&self) -> &str {
        "log"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { max_batch: 500, acceptance: Acceptance::Prefix, ..Capabilities::default() }
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        let mut lines = String::new();
        for envelope in batch {
            lines += &self.line(envelope);
            lines.push('\n');
        }
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let written = out.write_all(lines.as_bytes()).and_then(|()| out.flush());
        let outcome = match written {
            Ok(()) => Outcome::Delivered,
            Err(error) => Outcome::Unavailable {
                error: format!("log cannot be written: {}", error.kind()),
                after: None,
            },
        };
        vec![outcome; batch.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown_and_others_stay() {
        assert_eq!(visible("Größe 木\t\n"), "Größe 木\\t\\n");
        assert_eq!(
            visible("a\u{1b}]52;c;eA==\u{7}\u{9b}31m"),
            "a\\u{1b}]52;c;eA==\\u{7}\\u{9b}31m"
        );
        assert!(matches!(visible("as it is"), Cow::Borrowed(_)));
    }
}
