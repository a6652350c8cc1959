//! Log lines on standard error: for people, or JSON.

use std::{
    fmt::{self, Write as _},
    io::{IsTerminal as _, stderr},
};

use jiff::Timestamp;
use serde_json::{Map, Value};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    EnvFilter,
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
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
            let lines = builder.with_ansi(stderr().is_terminal()).finish();
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

/// One JSON object a line: `time`, `level`, `target`, `message` and the fields.
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
        writeln!(writer, "{}", Value::Object(fields.0))
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
