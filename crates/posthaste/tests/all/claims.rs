//! Relays that claim single rows.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use posthaste::{
    Enqueued, Envelope, Event, Status,
    relay::Config,
    store::{Limit, Position, Relay as Identity, RelayOrdering, RowLease},
    transport::{Outcome, Transport},
    transports::memory::MemoryTransport,
};
use posthaste_testkit::wait::asked;
use sqlx::Postgres;
use tokio::sync::watch;
use uuid::Uuid;

use crate::support::{Fixture, TestDatabase, event, quick, soon, until};

on_every_database!(
    two_events_that_their_destination_never_takes_do_not_hide_a_fresh_one,
    a_batch_of_one_does_not_hide_fresh_events_behind_those_that_are_due,
    one_pass_delivers_all_whose_claims_have_expired,
    a_row_whose_lease_ends_while_it_is_in_flight_is_delivered_once,
);

/// A relay that claims rows.
fn by_rows() -> Config {
    Config { ordering: RelayOrdering::None, ..quick() }
}

fn number(envelope: &Envelope) -> usize {
    serde_json::from_slice(envelope.event.payload()).unwrap()
}

/// A destination that is down is tried with one event at a time.
async fn two_events_that_their_destination_never_takes_do_not_hide_a_fresh_one<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let transport = MemoryTransport::scripted(|envelope| match number(envelope) {
        0 | 1 => Outcome::unavailable("never"),
        _ => Outcome::Delivered,
    });
    let relay = on.relay(transport.clone(), by_rows());
    relay.start().await.unwrap();
    on.enqueue(vec![event("a", 0), event("b", 1)]).await;
    until(&relay, "the outage", |stats| stats.breakers_open == 1).await;
    // Each has been tried alone since: one of them is due whenever the destination is tried.
    until(&relay, "both in vain", |stats| stats.unavailable >= 6).await;
    on.enqueue(vec![event("c", 2)]).await;
    soon("the fresh one", transport.wait_for(1)).await;
    relay.stop().await.unwrap();
}

async fn a_batch_of_one_does_not_hide_fresh_events_behind_those_that_are_due<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    const DUE: usize = 100;
    const FRESH: usize = 10;

    let past = Timestamp::now().checked_sub(SignedDuration::from_hours(1)).unwrap();
    let due = |n: usize| {
        let due = Event::builder("OrderChanged").aggregate("Order", n).payload(&n);
        due.deliver_at(past).build().unwrap()
    };
    on.enqueue((0..DUE).map(due).collect()).await;
    on.enqueue((DUE..DUE + FRESH).map(|n| event("fresh", n)).collect()).await;
    let transport = MemoryTransport::new();
    let relay = on.relay(transport.clone(), Config { batch: 1, ..by_rows() });
    relay.start().await.unwrap();
    soon("all of them", transport.wait_for(DUE + FRESH)).await;
    relay.stop().await.unwrap();
    let order: Vec<usize> = transport.delivered().iter().map(number).collect();
    let last = order.iter().rposition(|n| *n >= DUE).unwrap();
    assert!(last < DUE / 2, "fresh ones waited for those that are due: {order:?}");
}

/// Takes its time for each event.
#[derive(Clone, Default)]
struct Slow(MemoryTransport);

#[async_trait]
impl Transport for Slow {
    fn name(&self) -> &str {
        "slow"
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        // A pass has time for all its reads meanwhile.
        tokio::time::sleep(Duration::from_millis(50)).await;
        self.0.publish(batch).await
    }
}

async fn one_pass_delivers_all_whose_claims_have_expired<DB: TestDatabase>(on: &Fixture<DB>) {
    let enqueued = on.enqueue((0..3).map(|n| event(&n.to_string(), n)).collect()).await;
    let dying = Identity {
        name: "dying".to_owned(),
        instance: Uuid::now_v7(),
        ordering: RelayOrdering::None,
        lease: Duration::from_millis(1),
    };
    let lease = RowLease { token: format!("{}#1", dying.owner()) };
    let from = Position::default();
    let claimed = on.store.claim(&dying, &lease, &from, Limit::rows(10)).await.unwrap();
    assert_eq!(claimed.rows.len(), 3);
    asked("the end of the leases", async || {
        on.record(enqueued[2].id).await.status != Status::Sending
    })
    .await;
    let transport = Slow::default();
    let relay = on.relay(transport.clone(), by_rows());
    let stats = soon("the pass", relay.relay_once()).await.unwrap();
    assert_eq!(stats.delivered, 3);
    assert_eq!(transport.0.delivered().len(), 3);
}

/// The database's clock was set ahead, or the machine stood still.
async fn a_row_whose_lease_ends_while_it_is_in_flight_is_delivered_once<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let (open, gate) = watch::channel(false);
    let came = Arc::new(Mutex::new(Vec::new()));
    let relay = on.relay(Gated { gate, came: Arc::clone(&came) }, by_rows());
    relay.start().await.unwrap();
    on.enqueue(vec![event("k", 0)]).await;
    let locked = "select count(*) from {events} where locked_by is not null";
    asked("a claim", async || on.number(locked).await == 1).await;
    let earlier = Fixture::<DB>::earlier("locked_until", 1);
    on.sql(&format!("update {{events}} set locked_until = {earlier}")).await;
    let again = "select count(*) from {events} where attempts = 1";
    asked("a claim of what has expired", async || on.number(again).await == 1).await;
    // Its answer has come when the next read begins.
    let polls = relay.stats().polls;
    until(&relay, "a read", |stats| stats.polls >= polls + 4).await;
    open.send_replace(true);
    asked("the settle", async || on.store.count_sent().await.unwrap() == 1).await;
    relay.stop().await.unwrap();
    let came = came.lock().unwrap().clone();
    assert_eq!(came, [(0, 0)], "it was ours all the time");
}

/// SQLite locks no rows.
mod locked {
    use super::a_claimed_row_that_somebody_has_locked_holds_back_no_other as it;

    mod postgres {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn a_claimed_row_that_somebody_has_locked_holds_back_no_other() {
            let fixture = <sqlx::Postgres as crate::support::TestDatabase>::fixture().await;
            super::it(&fixture).await;
            fixture.clean().await;
        }
    }

    mod mariadb {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn a_claimed_row_that_somebody_has_locked_holds_back_no_other() {
            let fixture = <sqlx::MySql as crate::support::TestDatabase>::fixture().await;
            super::it(&fixture).await;
            fixture.clean().await;
        }
    }
}

/// Neither its lease nor its outcome can be written, for longer than the lease lasts.
async fn a_claimed_row_that_somebody_has_locked_holds_back_no_other<DB: TestDatabase>(
    on: &Fixture<DB>,
) {
    let (open, gate) = watch::channel(false);
    let came = Arc::new(Mutex::new(Vec::new()));
    let relay = on.relay(Gated { gate, came: Arc::clone(&came) }, by_rows());
    relay.start().await.unwrap();
    let Enqueued { id, sequence, .. } = on.enqueue(vec![event("locked", 0)]).await.remove(0);
    asked("a claim", async || on.record(id).await.status == Status::Sending).await;
    let mut operator = on.pool.begin().await.unwrap();
    let lock = format!("select sequence from {{events}} where sequence = {sequence} for update");
    DB::run_on(&mut operator, on.tables.fill(&lock)).await.unwrap();
    open.send_replace(true);
    asked("the end of its lease", async || on.record(id).await.status != Status::Sending).await;
    on.enqueue(vec![event("later", 2)]).await;
    asked("the later one", async || on.store.count_sent().await.unwrap() == 1).await;
    operator.rollback().await.unwrap();
    asked("both", async || on.store.count_sent().await.unwrap() == 2).await;
    relay.stop().await.unwrap();
    assert_eq!(*came.lock().unwrap(), [(0, 0), (2, 0)], "each once");
}

/// The relay's heartbeats wait, and nothing else does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_claimed_and_what_waits_is_given_back_while_leases_are_not_renewed() {
    const EVENTS: usize = 5_000;
    const BATCH: usize = 100;

    let on = Postgres::fixture().await;
    on.enqueue((0..EVENTS).map(|n| event(&n.to_string(), n)).collect()).await;
    let (open, gate) = watch::channel(false);
    let came = Arc::new(Mutex::new(Vec::new()));
    let config = Config {
        lease: Duration::from_secs(3),
        batch: BATCH,
        cold_queue: 2 * BATCH,
        concurrency: 1,
        ..by_rows()
    };
    let relay = on.relay(Gated { gate, came: Arc::clone(&came) }, config);
    relay.start().await.unwrap();
    let locked = "select count(*) from {events} where locked_by is not null";
    asked("claims", async || on.number(locked).await >= 2 * BATCH as i64).await;
    let mut heartbeats_wait = on.pool.begin().await.unwrap();
    let lock = on.tables.fill("lock table {relays} in exclusive mode");
    Postgres::run_on(&mut heartbeats_wait, lock).await.unwrap();
    asked("all but what is in flight", async || on.number(locked).await == 1).await;
    heartbeats_wait.rollback().await.unwrap();
    open.send_replace(true);
    asked("the rest", async || on.store.count_sent().await.unwrap() == EVENTS as u64).await;
    relay.stop().await.unwrap();
    let came = came.lock().unwrap().clone();
    assert!(came.iter().all(|(_, attempts)| *attempts == 0), "an attempt was counted");
    on.clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_is_answered_during_a_stop_is_given_back() {
    const WAITING: &str = "select count(*) from pg_locks l
        where not l.granted and l.relation = '{events}'::regclass";

    let on = Postgres::fixture().await;
    on.enqueue(vec![event("a", 0), event("b", 1)]).await;
    let mut claims_wait = on.pool.begin().await.unwrap();
    let lock = on.tables.fill("lock table {events} in exclusive mode");
    Postgres::run_on(&mut claims_wait, lock).await.unwrap();
    let transport = MemoryTransport::new();
    let relay = on.relay(transport.clone(), by_rows());
    relay.start().await.unwrap();
    asked("a claim", async || on.number(WAITING).await > 0).await;
    let mut stop = Box::pin(relay.stop());
    let stopped = tokio::time::timeout(Duration::from_millis(300), &mut stop).await;
    assert!(stopped.is_err(), "it does not wait for the claim");
    claims_wait.rollback().await.unwrap();
    stop.await.unwrap();
    let locked = "select count(*) from {events} where locked_by is not null";
    assert_eq!(on.number(locked).await, 0);
    assert!(transport.delivered().is_empty());
    on.clean().await;
}

/// Nothing is taken before the gate is open. Event 1 is not tried when it comes first.
struct Gated {
    gate: watch::Receiver<bool>,
    /// The number and the attempts of all that came.
    came: Arc<Mutex<Vec<(usize, u32)>>>,
}

#[async_trait]
impl Transport for Gated {
    fn name(&self) -> &str {
        "gated"
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        let _ = self.gate.clone().wait_for(|open| *open).await;
        let mut came = self.came.lock().unwrap();
        let outcome = |envelope: &Envelope| {
            let number: usize = serde_json::from_slice(envelope.event.payload()).unwrap();
            let first = !came.iter().any(|(known, _)| *known == number);
            came.push((number, envelope.attempts));
            if number == 1 && first { Outcome::held() } else { Outcome::Delivered }
        };
        batch.iter().map(outcome).collect()
    }
}

async fn until_number(on: &Fixture<Postgres>, what: &str, sql: String, number: i64) {
    let reached = async {
        while Postgres::number(&on.pool, sql.clone()).await != number {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(what, reached).await;
}

/// Both go together and are settled together, each under a claim of its own. While the write of the second
/// waits, the first is free in the table, and its settle is not answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_claimed_again_before_its_settle_is_answered_does_not_wait_for_its_lease() {
    const LEASE: Duration = Duration::from_mins(5);

    let on = Postgres::fixture().await;
    let (open, gate) = watch::channel(false);
    let came = Arc::new(Mutex::new(Vec::new()));
    let transport = Gated { gate, came: Arc::clone(&came) };
    let ordering = RelayOrdering::None;
    let relay = on.relay(transport, Config { ordering, lease: LEASE, concurrency: 1, ..quick() });
    relay.start().await.unwrap();
    let table = on.table();
    for number in 0..3 {
        on.enqueue(vec![event(&number.to_string(), number)]).await;
        let claimed = format!("select count(*) from {table} where locked_by is not null");
        until_number(&on, "a claim", claimed, number as i64 + 1).await;
    }
    let mut settles_wait = on.pool.begin().await.unwrap();
    let lock = format!("select from {table} where sequence = 3 for update");
    Postgres::run_on(&mut settles_wait, lock).await.unwrap();
    open.send_replace(true);
    let free =
        format!("select count(*) from {table} where sequence = 2 and not_before is not null");
    until_number(&on, "the first part of the settle", free, 1).await;
    let polls = relay.stats().polls;
    until(&relay, "claims", |stats| stats.polls >= polls + 8).await;
    settles_wait.commit().await.unwrap();
    until(&relay, "all", |stats| stats.delivered == 3).await;
    relay.stop().await.unwrap();
    let came = came.lock().unwrap().clone();
    assert_eq!(came[came.len() - 1], (1, 0), "it went again, and no attempt was counted: {came:?}");
}
