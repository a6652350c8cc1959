//! The consumer's side: a message that comes twice takes effect once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use posthaste_core::{Error, ErrorKind, Result, TableName};
use posthaste_stores::{
    Tables,
    inbox::{CONSUMER, InboxDialect, MESSAGE_ID},
};
use sqlx::{Pool, Transaction};

use crate::{
    EnqueueIn, OutboxTransaction,
    level::{Level, check_open, unset},
};

/// Where a message's id travels, by what is looked for first: Posthaste's own header, NATS's, and
/// CloudEvents' `id` as the bindings for NATS and HTTP, Kafka, AMQP and MQTT name it. None of them can be
/// an event's own header: those names are reserved.
const ID_HEADERS: [&str; 7] =
    ["posthaste-id", "Nats-Msg-Id", "ce-id", "ce_id", "cloudEvents:id", "cloudEvents_id", "id"];

/// Remembers which messages were handled, in the transaction of their effect. Cheap to clone.
///
/// ```no_run
/// use posthaste::{Inbox, Once, Outbox};
///
/// # type Failure = Box<dyn std::error::Error + Send + Sync>;
/// # async fn example(pool: sqlx::Pool<sqlx::Sqlite>, id: &str) -> Result<(), Failure>
/// # where sqlx::Sqlite: posthaste::Dialect {
/// let inbox = Inbox::new("outbox_event".parse()?);
/// let outbox = Outbox::new("outbox_event".parse()?);
///
/// let mut tx = outbox.begin(&pool).await?;
/// let done = inbox
///     .once(&mut tx, "billing", id, async |tx| {
///         sqlx::query("insert into invoices (id) values (42)").execute(&mut **tx).await?;
///         Ok::<_, Failure>(())
///     })
///     .await?;
/// tx.commit().await?;
/// // Acknowledge now, whether it was done here or is a duplicate.
/// # let _: Once<()> = done;
/// # Ok(())
/// # }
/// ```
///
/// # When things fail
/// Until the commit nothing has happened: a crash, an error or a lost connection undoes the effect
/// and its record together, and the message, which was not acknowledged, comes again. After the commit
/// the record answers every repeat, for as long as it is kept. So acknowledge after the commit, and
/// purge no sooner than the broker may deliver again.
///
/// Two transactions with the same message: the later one waits for the earlier one, and is a
/// duplicate when that commits. Under `repeatable read` on PostgreSQL it fails instead; the error says that
/// trying again may help. MySQL may end it to resolve a deadlock: the error is of kind
/// [`State`](ErrorKind::State), and another transaction may succeed.
#[derive(Debug)]
pub struct Inbox<DB> {
    tables: Tables,
    duplicates: Arc<AtomicU64>,
    database: std::marker::PhantomData<fn() -> DB>,
}

impl<DB> Clone for Inbox<DB> {
    fn clone(&self) -> Self {
        Self {
            tables: self.tables.clone(),
            duplicates: Arc::clone(&self.duplicates),
            database: std::marker::PhantomData,
        }
    }
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Once<T> {
    /// The effect ran, and gave this.
    Ran(T),
    /// This consumer has handled it before: nothing ran.
    Duplicate,
}

impl<T> Once<T> {
    /// Whether the message had been handled before.
    pub fn is_duplicate(&self) -> bool {
        matches!(self, Self::Duplicate)
    }
}

impl<DB: InboxDialect> Inbox<DB> {
    /// The inbox beside the outbox of this table.
    pub fn new(table: TableName) -> Self {
        Self {
            tables: Tables::new(table),
            duplicates: Arc::default(),
            database: std::marker::PhantomData,
        }
    }

    /// Prepares nothing under a name on PostgreSQL, as
    /// [`Outbox::without_named_statements`](crate::Outbox::without_named_statements) does.
    pub fn without_named_statements(self) -> Self {
        Self { tables: self.tables.without_named_statements(), ..self }
    }

    /// Runs the effect, unless this consumer has handled the message before. Effect and record are
    /// in the caller's transaction: nothing has happened until it commits.
    ///
    /// They share a savepoint, so that an effect that fails leaves neither of them behind, whatever
    /// the caller then does with the transaction. Events that are enqueued through the effect's
    /// transaction are found by the relay's poll; for the hot path use [`first`](Self::first).
    ///
    /// MySQL answers a deadlock by undoing the whole transaction, with the messages that were handled
    /// in it before. Then its commit is an error, and all of them come again. A call that is dropped
    /// half-way, or whose effect panics, may have undone the transaction, too: one of
    /// [`Outbox::begin`](crate::Outbox::begin) then refuses its commit, a driver's own must be rolled back.
    ///
    /// An effect that drops `begin()` of its transaction half-way, as with a timeout around it, makes the
    /// driver lose count of its savepoints. Then the whole transaction is rolled back, its commit is an
    /// error, and so is this call: of kind [`State`](ErrorKind::State), or the effect's own.
    pub async fn once<T, E: From<Error>>(
        &self,
        transaction: &mut impl EnqueueIn<DB>,
        consumer: &str,
        message_id: &str,
        effect: impl AsyncFnOnce(&mut Transaction<'_, DB>) -> Result<T, E>,
    ) -> Result<Once<T>, E> {
        transaction.writing(true);
        let (mut lost, mut ended) = (false, false);
        let depth = DB::depth(transaction.connection()).await;
        let recorded = match self.record_apart(transaction.connection(), consumer, message_id).await
        {
            Ok(Some(mut level)) => Ok(match effect(level.transaction()).await {
                Ok(value) => {
                    ended = level.has_ended().await;
                    match level.release().await {
                        Ok(()) => Ok(Once::Ran(value)),
                        Err(error) => {
                            lost = error.kind() == ErrorKind::State;
                            Err(E::from(error))
                        }
                    }
                }
                Err(error) => {
                    ended = level.has_ended().await;
                    lost = level.rollback().await.is_err();
                    Err(error)
                }
            }),
            Ok(None) => Ok(Ok(Once::Duplicate)),
            Err(error) => Err(error),
        };
        let outcome = match recorded {
            Ok(outcome) => outcome,
            Err(error) => {
                let error = unset::<DB>(transaction.connection(), depth, error).await;
                lost = error.is_err();
                Err(E::from(error.unwrap_or_else(|lost| lost)))
            }
        };
        if ended {
            transaction.ended();
        }
        if lost {
            // The connection or the whole transaction is gone, and effect and record with it: then the
            // caller's commit must not be answered with success. One of ours takes this for a call that was
            // given up half-way.
            let _ = DB::still_open(transaction.connection()).await;
        } else {
            transaction.writing(false);
        }
        outcome
    }

    /// Records the message in a savepoint, in which its effect is to run. `None` when this consumer has
    /// handled it before.
    async fn record_apart<'t>(
        &self,
        connection: &'t mut DB::Connection,
        consumer: &str,
        message_id: &str,
    ) -> Result<Option<Level<'t, DB>>> {
        let mut level = Level::<DB>::begin(connection).await?;
        if self.record(level.transaction(), consumer, message_id).await? {
            return Ok(Some(level));
        }
        level.release().await?;
        Ok(None)
    }

    /// Records the message and says whether this consumer handles it for the first time. The effect
    /// is the caller's, in the same transaction: when it fails, the transaction must be rolled
    /// back, or the message would count as handled. So it must when the call is dropped half-way, and one
    /// of [`Outbox::begin`](crate::Outbox::begin) then refuses its commit.
    pub async fn first(
        &self,
        transaction: &mut impl EnqueueIn<DB>,
        consumer: &str,
        message_id: &str,
    ) -> Result<bool> {
        transaction.writing(true);
        let first = self.record_in(transaction.connection(), consumer, message_id).await;
        if first.as_ref().map_err(Error::kind) != Err(ErrorKind::State) {
            transaction.writing(false);
        }
        first
    }

    async fn record_in(
        &self,
        connection: &mut DB::Connection,
        consumer: &str,
        message_id: &str,
    ) -> Result<bool> {
        check_open::<DB>(connection).await?;
        self.record(connection, consumer, message_id).await
    }

    /// The same in a transaction of which it is known that it is open.
    async fn record(
        &self,
        connection: &mut DB::Connection,
        consumer: &str,
        message_id: &str,
    ) -> Result<bool> {
        check("consumer", consumer, CONSUMER)?;
        check("message id", message_id, MESSAGE_ID)?;
        let first = DB::record_message(connection, &self.tables, consumer, message_id).await?;
        if !first {
            self.duplicates.fetch_add(1, Ordering::Relaxed);
            crate::meter::duplicate(self.tables.name());
        }
        Ok(first)
    }

    /// How many duplicates this inbox and its clones have met since it was made.
    pub fn duplicates(&self) -> u64 {
        self.duplicates.load(Ordering::Relaxed)
    }

    /// Deletes up to `limit` records that are older than this, and says how many; call it again while
    /// the answer is the limit. A message that comes again later than that runs again.
    pub async fn purge(&self, pool: &Pool<DB>, older_than: Duration, limit: usize) -> Result<u64> {
        let mut transaction = OutboxTransaction::<DB>::begin(pool).await?;
        let connection = transaction.connection();
        let purged = DB::purge_inbox(connection, &self.tables, older_than, limit).await?;
        transaction.commit_ours().await?;
        Ok(purged)
    }
}

/// The id under which a message of a relay is to be remembered, from the message's headers: give it a
/// function that finds a header by its name. It is the event's id, also for an operator's replay:
/// who has handled the event has nothing more to do.
///
/// | broker | header |
/// | --- | --- |
/// | all, format `raw` | `posthaste-id` |
/// | NATS, every format | `Nats-Msg-Id` |
/// | format `cloudevents-binary` | `ce-id`, `ce_id` (Kafka), `cloudEvents:id` (RabbitMQ), `id` (MQTT) |
///
/// In the format `cloudevents-structured` the id is in the body, as `id`. Of what is found elsewhere (`webhook-id`, the
/// field `id` of an entry in Redis, RabbitMQ's property `message_id`) it cuts off the number of a replay, when it is
/// given that: `message_id(|name| (name == "id").then_some(value))`.
///
/// ```
/// let headers = [("ce_id", "0190a5c4-7c1e-7000-8000-3f1f0c2d4b5a/1"), ("ce_type", "OrderPlaced")];
/// let find = |name: &str| headers.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
/// assert_eq!(posthaste::message_id(find), Some("0190a5c4-7c1e-7000-8000-3f1f0c2d4b5a"));
/// ```
pub fn message_id<'h>(header: impl Fn(&str) -> Option<&'h str>) -> Option<&'h str> {
    let id = ID_HEADERS.into_iter().find_map(|name| header(name).filter(|id| !id.is_empty()))?;
    match id.split_once('/') {
        // As `Envelope::deduplication_id` writes a replay.
        Some((event, replay))
            if event.len() == 36 && replay.bytes().all(|b| b.is_ascii_digit()) =>
        {
            Some(event)
        }
        _ => Some(id),
    }
}

fn check(field: &str, text: &str, limit: usize) -> Result<()> {
    let length = text.chars().count();
    if length == 0 || length > limit {
        return Err(Error::invalid(format!("{field} is {length} long; it takes 1 to {limit}")));
    }
    if text.contains('\0') {
        return Err(Error::invalid(format!("{field} must not contain the character U+0000")));
    }
    Ok(())
}
