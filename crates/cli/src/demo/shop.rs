//! The demo's shop: orders are placed, paid and shipped, each step a transaction that writes a row
//! of the shop's own and an event. Some transactions fail and roll back, on purpose.

use std::{sync::Arc, time::Duration};

use posthaste::{Error, ErrorKind, Event, Outbox, Result, stores::Tables};
use sqlx::Pool;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};

use super::{database::ShopDatabase, destination::POISON, ledger::Ledger};

/// One transaction in so many fails.
const FAILS: u32 = 12;

/// One order in so many gets an event that its destination never accepts.
const POISONED: i64 = 200;

/// Most orders that live at once.
const LIVE: usize = 64;

pub(super) struct Shop<DB: ShopDatabase> {
    pub(super) pool: Pool<DB>,
    pub(super) outbox: Outbox<DB>,
    pub(super) tables: Tables,
    pub(super) ledger: Arc<Ledger>,
}

impl<DB: ShopDatabase> Shop<DB> {
    /// Takes `rate` orders a second until told to close, then lets the last ones end. Gives the
    /// first error that was not on purpose.
    pub(super) async fn trade(self, rate: u32, mut close: watch::Receiver<bool>) -> Result<()> {
        let shop = Arc::new(self);
        let mut lives: JoinSet<Result<()>> = JoinSet::new();
        let mut arrivals = interval(Duration::from_secs(1) / rate);
        // A slow disk makes for fewer orders, not for a crowd later.
        arrivals.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut number = 0;
        while !*close.borrow() {
            tokio::select! {
                Ok(()) = close.changed() => {}
                Some(ended) = lives.join_next(), if !lives.is_empty() => ended.map_err(crashed)??,
                _ = arrivals.tick(), if lives.len() < LIVE && !shop.ledger.is_full() => {
                    number += 1;
                    let shop = Arc::clone(&shop);
                    lives.spawn(async move { shop.live(number).await });
                }
                // Full books are asked again.
                () = sleep(Duration::from_millis(100)) => {}
            }
        }
        while let Some(ended) = lives.join_next().await {
            ended.map_err(crashed)??;
        }
        Ok(())
    }

    /// One order's life.
    async fn live(&self, order: i64) -> Result<()> {
        self.ledger.order(order);
        let lived = self.steps(order).await;
        self.ledger.over(order);
        lived
    }

    async fn steps(&self, order: i64) -> Result<()> {
        if !self.step(order, "OrderPlaced").await? {
            // The customer gave up: this order never existed, nor did its event.
            return Ok(());
        }
        for event in ["OrderPaid", "OrderShipped"] {
            pause().await;
            while !self.step(order, event).await? {
                pause().await;
            }
        }
        Ok(())
    }

    /// One transaction: the shop's row and its event, or neither. Gives whether it was committed.
    async fn step(&self, order: i64, event_type: &str) -> Result<bool> {
        let event = event(order, event_type)?;
        let id = event.id();
        let began = self.ledger.now();
        let mut tx = self.outbox.begin(&self.pool).await?;
        let wrote = match event_type {
            "OrderPlaced" => DB::place(tx.connection(), &self.tables, order).await,
            _ => DB::advance(tx.connection(), &self.tables, order, event_type).await,
        };
        wrote.map_err(|error| {
            Error::new(ErrorKind::Database, "the shop could not write an order").with_source(error)
        })?;
        self.outbox.enqueue(&mut tx, event).await?;
        if fastrand::u32(..FAILS) == 0 {
            // The card is declined, the shelf is empty.
            tx.rollback().await?;
            self.ledger.rolled_back();
            return Ok(false);
        }
        match tx.commit().await {
            Ok(()) => self.ledger.committed(order, id, began),
            Err(error) => {
                self.ledger.unknown(order, id, began);
                return Err(error);
            }
        }
        Ok(true)
    }
}

fn event(order: i64, event_type: &str) -> Result<Event> {
    let event = Event::builder(event_type)
        .aggregate("Order", order)
        .payload(&serde_json::json!({ "order": order, "total_cents": fastrand::u32(500..20_000) }));
    let poisoned = event_type == "OrderPaid" && order % POISONED == POISONED / 4;
    if poisoned { event.header(POISON, "yes") } else { event }.build()
}

/// Between two steps of an order's life.
async fn pause() {
    sleep(Duration::from_millis(fastrand::u64(1..60))).await;
}

pub(super) fn crashed(error: tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::State, "the shop crashed").with_source(error)
}

/// It closed although nobody said so.
pub(super) fn closed_early() -> Error {
    Error::new(ErrorKind::State, "the shop closed before its time")
}
