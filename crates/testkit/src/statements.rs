//! The statements that this process sends, as sqlx logs them.

use std::{
    fmt,
    sync::{Mutex, Once, PoisonError},
    time::Duration,
};

use posthaste_core::TableName;
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

/// How long a statement may take.
const LIMIT: Duration = Duration::from_secs(30);

/// All of them, from the first [`Statements::on`] on.
static SENT: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The statements on one outbox, from when this was made.
#[derive(Debug)]
pub struct Statements {
    table: String,
    from: usize,
}

impl Statements {
    /// The statements on this outbox from now on.
    ///
    /// # Panics
    ///
    /// If somebody else listens to the process's log.
    pub fn on(table: &TableName) -> Self {
        static ONCE: Once = Once::new();

        ONCE.call_once(|| {
            tracing::subscriber::set_global_default(Recorder).expect("nobody else listens");
        });
        let from = SENT.lock().unwrap_or_else(PoisonError::into_inner).len();
        Self { table: table.qualified(), from }
    }

    /// Waits for one with this text, and gives all up to it: the driver logs a statement when it is done with
    /// it.
    ///
    /// # Panics
    ///
    /// If it does not come.
    pub async fn until(&self, last: &str) -> Vec<String> {
        let find = async {
            loop {
                let sent: Vec<_> = SENT.lock().unwrap_or_else(PoisonError::into_inner)[self.from..]
                    .iter()
                    .filter(|statement| statement.contains(&self.table))
                    .cloned()
                    .collect();
                if sent.iter().any(|statement| statement.contains(last)) {
                    return sent;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LIMIT, find)
            .await
            .unwrap_or_else(|_| panic!("no statement with {last:?} was sent"))
    }
}

struct Recorder;

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "sqlx::query"
    }

    fn event(&self, event: &Event<'_>) {
        struct Statement;
        impl Visit for Statement {
            fn record_str(&mut self, field: &Field, value: &str) {
                if field.name() == "db.statement" {
                    SENT.lock().unwrap_or_else(PoisonError::into_inner).push(value.to_owned());
                }
            }

            fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
        }
        event.record(&mut Statement);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
