//! Log lines on standard error: for people, or JSON.

use std::{
    fmt::{self, Write as _},
    io::{IsTerminal as _, stderr},
};

use jiff::Timestamp;
use posthaste::transports::log::{visible, visible_json};
use serde_json::{Map, Value};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    EnvFilter,
    field::{RecordFields, VisitOutput as _},
    fmt::{
        FmtContext, FormatEvent, FormatFields, SubscriberBuilder,
        format::{DefaultFields, DefaultVisitor, Format, Writer},
    },
    layer::SubscriberExt,
    registry::LookupSpan,
    util::SubscriberInitExt,
};

use crate::{
    config::{LogLines, LogSettings},
    otlp,
};

/// Logs from here on. `RUST_LOG` wins over the settings, and they over `level`.
pub(crate) fn to_stderr(level: &str, settings: Option<&LogSettings>) {
    let level = settings.and_then(|log| log.level.as_deref()).unwrap_or(level);
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(quieted(level)));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
    // A second call changes nothing.
    let _ = match settings.map_or(LogLines::Text, |log| log.format) {
        LogLines::Json => {
            let lines = builder.event_format(JsonLines).finish();
            lines.with(otlp::layer()).try_init()
        }
        LogLines::Text => {
            let lines = text_lines(builder, stderr().is_terminal()).finish();
            lines.with(otlp::layer()).try_init()
        }
    };
}

/// The relay tells of connections that matter; the brokers' clients tell of all.
fn quieted(level: &str) -> String {
    if level == "info" {
        return "info,async_nats=warn,lapin=warn,redis=warn,rumqttc=warn".to_owned();
    }
    level.to_owned()
}

/// One line for people.
fn text_lines<F, W>(
    builder: SubscriberBuilder<DefaultFields, Format, F, W>,
    ansi: bool,
) -> SubscriberBuilder<VisibleFields, Format, F, W> {
    builder.fmt_fields(VisibleFields).with_ansi(ansi)
}

/// The usual fields, with control characters of their values as escapes. A topic, or an error that quotes a
/// broker, must not start a line of its own, nor speak to the terminal.
struct VisibleFields;

impl<'a> FormatFields<'a> for VisibleFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'a>, fields: R) -> fmt::Result {
        let mut visitor = VisibleVisitor(DefaultVisitor::new(writer, true));
        fields.record(&mut visitor);
        visitor.0.finish()
    }
}

struct VisibleVisitor<'a>(DefaultVisitor<'a>);

impl Visit for VisibleVisitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        self.0.record_debug(field, &format_args!("{}", visible(&text)));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.record_debug(field, &format_args!("{value}"));
        } else {
            self.record_debug(field, &value);
        }
    }
}

/// One JSON object a line: `time`, `level`, `target`, `message` and the fields. No value speaks to the terminal.
struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields(Map::new());
        let metadata = event.metadata();
        for (name, value) in [
            ("time", Timestamp::now().to_string()),
            ("level", metadata.level().as_str().to_ascii_lowercase()),
            ("target", metadata.target().to_owned()),
        ] {
            fields.0.insert(name.to_owned(), value.into());
        }
        event.record(&mut fields);
        let line = Value::Object(fields.0).to_string();
        writeln!(writer, "{}", visible_json(line))
    }
}

struct Fields(Map<String, Value>);

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        self.0.insert(field.name().to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        // Into a string it never fails.
        let _ = write!(text, "{value:?}");
        self.add(field, text.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use super::*;

    #[derive(Default)]
    struct Log(Mutex<Vec<u8>>);

    impl io::Write for &Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Log {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    /// The text lines of a failure in which every value would speak to the terminal.
    fn forged(ansi: bool) -> String {
        let log = Arc::new(Log::default());
        let builder = tracing_subscriber::fmt().with_writer(Arc::clone(&log));
        tracing::subscriber::with_default(text_lines(builder, ansi).finish(), || {
            let told = "told\n2026-01-01 ERROR forged\r\u{1b}]52;c;eA==\u{7}\u{9b}31m";
            let _in = tracing::error_span!("publish", topic = %told).entered();
            tracing::error!(quoted = told, error = %told, "dead: {told}");
        });
        log.text()
    }

    #[test]
    fn a_value_neither_starts_a_line_nor_speaks_to_the_terminal() {
        let text = forged(false);
        let shown = r"told\n2026-01-01 ERROR forged\r\u{1b}]52;c;eA==\u{7}\u{9b}31m";
        for field in ["topic=", "quoted=\"", "error=", "dead: "] {
            assert!(text.contains(&format!("{field}{shown}")), "{field} {text}");
        }
        let line = text.strip_suffix('\n').unwrap();
        assert!(!line.contains(char::is_control), "{text:?}");
    }

    #[test]
    fn a_terminal_gets_the_colours_of_the_line_and_none_of_its_values() {
        let text = forged(true);
        assert!(text.contains("\u{1b}[3merror\u{1b}[0m"), "{text:?}");
        assert!(!text.contains("\u{1b}]") && !text.contains('\u{9b}'), "{text:?}");
        assert_eq!(text.lines().count(), 1, "{text:?}");
    }

    #[test]
    fn a_value_in_json_does_not_speak_to_the_terminal() {
        let log = Arc::new(Log::default());
        let builder = tracing_subscriber::fmt().with_writer(Arc::clone(&log));
        let told = "told\n\u{1b}]52;c;eA==\u{7}\u{7f}\u{80}\u{9b}31m\u{9f}\u{a0}é";
        tracing::subscriber::with_default(builder.event_format(JsonLines).finish(), || {
            tracing::error!(quoted = told, error = %told, "dead: {told}");
        });
        let text = log.text();
        let line = text.strip_suffix('\n').unwrap();
        assert!(!line.contains(char::is_control), "{text:?}");
        assert!(line.contains("\\u007f\\u0080\\u009b31m\\u009f\u{a0}é"), "{text:?}");
        let fields: Value = serde_json::from_str(line).unwrap();
        assert_eq!(fields["quoted"], told);
        assert_eq!(fields["error"], told);
        assert_eq!(fields["message"], format!("dead: {told}"));
    }
}
