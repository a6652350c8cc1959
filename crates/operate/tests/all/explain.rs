//! Why an event is not delivered yet: every cause is produced, and named.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use posthaste_core::{
    Event,
    store::{OpenBreaker, Pausable, Relay as Reported, Report, Selection},
    transport::{Outcome, Transport},
};
use posthaste_operate::{
    Operator,
    doctor::{Cause, Explanation, explain},
};
use posthaste_relay::{Config, Destination, OnDead, Relay, Retention, Route, Routes};
use posthaste_stores::Dialect;
use posthaste_testkit::wait::asked;
use posthaste_transports::memory::MemoryTransport;
use uuid::Uuid;

use crate::support::{Outbox, event, patient};

on_both! {
    a_delivered_event_says_when
    a_discarded_event_says_so
    an_uncommitted_event_is_not_found_and_the_open_transaction_is_named
    a_purged_event_is_not_found
    an_event_with_a_time_of_its_own_is_delayed
    an_event_that_failed_waits_for_its_retry
    an_event_behind_a_failed_one_is_held
    a_dead_event_says_why
    an_event_behind_a_dead_one_of_a_parked_key_is_parked
    an_event_without_a_route_says_so
    a_row_that_cannot_be_decoded_is_dead_and_not_unrouted
    a_destination_that_takes_nothing_is_named
    an_untried_event_waits_for_the_destination_that_its_route_names
    a_pause_is_named_with_who_set_it
    what_a_pause_put_back_has_not_failed
    without_a_relay_nothing_is_delivered
    a_shard_without_an_owner_is_named
    an_event_that_nothing_keeps_back_is_in_progress
    what_waits_and_has_no_relay_says_both
    a_cause_is_told_to_programs_in_snake_case
}

const NAMES: [&str; 2] = ["memory", "other"];

/// The answer when nothing is known about destinations.
async fn ask<DB: Dialect>(on: &Outbox<DB>, id: Uuid) -> Explanation {
    explain(&*on.store, id, &[], None).await.unwrap()
}

/// Checks cause, words of the sentence and the command.
fn says(explanation: &Explanation, cause: Cause, words: &[&str], mend: Option<&str>) {
    assert_eq!(explanation.cause, cause, "{explanation:?}");
    for word in words {
        assert!(explanation.sentence.contains(word), "{word:?} is not in {explanation:?}");
    }
    assert_eq!(explanation.mend.as_deref(), mend, "{explanation:?}");
}

/// The command where nothing else is to be done.
fn shown(id: Uuid) -> String {
    format!("posthaste events show {id}")
}

fn failing(outcome: fn(&str) -> Outcome) -> impl Transport {
    MemoryTransport::scripted(move |_| outcome("503 from the shop"))
}

async fn a_delivered_event_says_when<DB: Dialect>(on: &Outbox<DB>) {
    let id = on.enqueue(&event("1")).await;
    on.relay(MemoryTransport::new(), Config::default()).relay_once().await.unwrap();
    let sent_at = on.store.event(id).await.unwrap().unwrap().sent_at.unwrap();
    says(&ask(on, id).await, Cause::Delivered, &[&format!("{sent_at:.0}")], None);
}

async fn a_discarded_event_says_so<DB: Dialect>(on: &Outbox<DB>) {
    let id = on.enqueue(&event("1")).await;
    on.store.discard(&Selection::One(id)).await.unwrap();
    says(&ask(on, id).await, Cause::Discarded, &["gave it up"], Some("posthaste audit"));
}

async fn an_uncommitted_event_is_not_found_and_the_open_transaction_is_named<DB: Dialect>(
    on: &Outbox<DB>,
) {
    let mut open = on.pool.begin().await.unwrap();
    let event = event("1");
    DB::enqueue(&mut open, &on.tables, std::slice::from_ref(&event)).await.unwrap();
    let answer = ask(on, event.id()).await;
    let words = ["not committed yet", "rolled back", "purged"];
    says(&answer, Cause::NotFound, &words, Some("posthaste doctor"));
    // Those of other tests on the same server may be older, and end meanwhile.
    asked("an open transaction to be named", async || {
        let open = on.store.open_transactions(3).await.unwrap();
        let answer = ask(on, event.id()).await;
        open.iter().any(|transaction| answer.sentence.contains(&transaction.who))
    })
    .await;

    open.rollback().await.unwrap();
    let answer = ask(on, event.id()).await;
    // Transactions of other tests may be open.
    let mend = answer.mend.clone();
    assert!(mend.is_some(), "{answer:?}");
    let words = ["rolled back", "purged", "Its id was made at"];
    says(&answer, Cause::NotFound, &words, mend.as_deref());
}

async fn a_purged_event_is_not_found<DB: Dialect>(on: &Outbox<DB>) {
    let id = on.enqueue(&event("1")).await;
    on.relay(MemoryTransport::new(), Config::default()).relay_once().await.unwrap();
    let retention = Retention { sent: Duration::ZERO, dead: None };
    let operator = Operator::new(Arc::clone(&on.store), "ada");
    asked("the purge", async || operator.purge(retention, 100).await.unwrap() == 1).await;
    let answer = ask(on, id).await;
    let mend = answer.mend.clone();
    assert!(mend.is_some(), "{answer:?}");
    says(&answer, Cause::NotFound, &["sent and purged"], mend.as_deref());
}

async fn an_event_with_a_time_of_its_own_is_delayed<DB: Dialect>(on: &Outbox<DB>) {
    on.own("r1").await;
    let at = Timestamp::now().checked_add(SignedDuration::from_mins(181)).unwrap();
    let later = Event::builder("Reminder").raw_json("{}").deliver_at(at).build().unwrap();
    let id = on.enqueue(&later).await;
    let words = [&*format!("{at:.0}"), "in 3 h 0 min"];
    says(&ask(on, id).await, Cause::Delayed, &words, Some(&shown(id)));
}

async fn an_event_that_failed_waits_for_its_retry<DB: Dialect>(on: &Outbox<DB>) {
    let id = on.enqueue(&event("1")).await;
    on.enqueue(&event("2")).await;
    let picky = MemoryTransport::scripted(|envelope| match envelope.event.aggregate_id() {
        Some("1") => Outcome::retry("503 from the shop"),
        _ => Outcome::Delivered,
    });
    on.relay(picky, patient()).relay_once().await.unwrap();
    on.own("r1").await;
    let words = ["failed once", "tried again at", "at memory", "503 from the shop"];
    says(&ask(on, id).await, Cause::Retry, &words, Some(&shown(id)));
}

async fn an_event_behind_a_failed_one_is_held<DB: Dialect>(on: &Outbox<DB>) {
    let first = on.enqueue(&event("1")).await;
    let second = on.enqueue(&event("1")).await;
    on.enqueue(&event("2")).await;
    let picky = MemoryTransport::scripted(|envelope| match envelope.event.aggregate_id() {
        Some("1") => Outcome::retry("503 from the shop"),
        _ => Outcome::Delivered,
    });
    on.relay(picky, patient()).relay_once().await.unwrap();
    on.own("r1").await;
    let words = [&*format!("held behind event {first}"), "503 from the shop", "tried again at"];
    let mend = format!("posthaste doctor {first}");
    says(&ask(on, second).await, Cause::Held, &words, Some(&mend));
}

async fn a_dead_event_says_why<DB: Dialect>(on: &Outbox<DB>) {
    let id = on.enqueue(&event("1")).await;
    on.relay(failing(|error| Outcome::dead(error)), Config::default()).relay_once().await.unwrap();
    let mend = format!("posthaste dead replay {id}");
    says(&ask(on, id).await, Cause::Dead, &["dead since", "503 from the shop"], Some(&mend));
}

async fn an_event_behind_a_dead_one_of_a_parked_key_is_parked<DB: Dialect>(on: &Outbox<DB>) {
    let first = on.enqueue(&event("1")).await;
    let second = on.enqueue(&event("1")).await;
    let config = Config { on_dead: OnDead::Park, ..Config::default() };
    on.relay(failing(|error| Outcome::dead(error)), config).relay_once().await.unwrap();
    on.own("r1").await;
    let mend = format!("posthaste dead replay {first}");
    let words = [&*format!("parked behind event {first}"), "503 from the shop"];
    says(&ask(on, second).await, Cause::Parked, &words, Some(&mend));
    let words = ["dead since", "The later events of its key wait"];
    says(&ask(on, first).await, Cause::Dead, &words, Some(&mend));
}

/// A relay with one route.
fn routed<DB: Dialect>(on: &Outbox<DB>, route: Route) -> Relay {
    let destination = Destination::new(Arc::new(MemoryTransport::new()));
    let store = DB::store(on.pool.clone(), on.tables.clone());
    let routes = Routes::new().route(route);
    Relay::routed(store, vec![destination], routes, Config::default()).unwrap()
}

async fn an_event_without_a_route_says_so<DB: Dialect>(on: &Outbox<DB>) {
    let id = on.enqueue(&event("1")).await;
    let relay = routed(on, Route::to("memory").aggregate_type("Invoice"));
    relay.relay_once().await.unwrap();
    let mend = format!("add a route that matches it, then: posthaste dead replay {id}");
    let words = ["dead since", "no route for OrderPlaced of Order 1"];
    says(&ask(on, id).await, Cause::NoRoute, &words, Some(&mend));
}

async fn a_row_that_cannot_be_decoded_is_dead_and_not_unrouted<DB: Dialect>(on: &Outbox<DB>)
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let id = on.enqueue(&event("1")).await;
    let spoil = on.tables.fill("update {events} set headers = '[1]'");
    posthaste_testkit::tables::run(&on.pool, spoil).await.unwrap();
    // It goes nowhere either, and not for want of a route.
    routed(on, Route::to("memory")).relay_once().await.unwrap();
    let mend = format!("posthaste dead replay {id}");
    says(&ask(on, id).await, Cause::Dead, &["headers"], Some(&mend));
}

async fn a_destination_that_takes_nothing_is_named<DB: Dialect>(on: &Outbox<DB>) {
    for key in 0..20 {
        on.enqueue(&event(&key.to_string())).await;
    }
    let id = on.enqueue(&event("last")).await;
    let relay = on.relay(failing(|error| Outcome::unavailable(error)), Config::default());
    relay.start().await.unwrap();
    asked("the open breaker", async || {
        on.store.relays().await.unwrap().iter().any(|relay| !relay.breakers.is_empty())
    })
    .await;
    let words = ["destination memory has taken nothing from relay", "503 from the shop", "since"];
    let its = explain(&*on.store, id, &["memory".to_owned()], None).await.unwrap();
    says(&its, Cause::BreakerOpen, &words, Some("posthaste doctor"));
    assert!(its.sentence.contains("its destination"), "{its:?}");

    // Not known where it goes: it is said which are down, and not that it goes there.
    for names in [vec![], NAMES.map(str::to_owned).to_vec()] {
        let perhaps = explain(&*on.store, id, &names, None).await.unwrap();
        says(&perhaps, Cause::BreakerOpen, &words, Some("posthaste doctor"));
        assert!(perhaps.sentence.contains("if its route leads there"), "{perhaps:?}");
    }
    let elsewhere = explain(&*on.store, id, &["other".to_owned()], None).await.unwrap();
    says(&elsewhere, Cause::InProgress, &[], Some(&shown(id)));
    relay.stop().await.unwrap();
}

/// Nothing was tried yet, so the row names no destination: only the routes do.
async fn an_untried_event_waits_for_the_destination_that_its_route_names<DB: Dialect>(
    on: &Outbox<DB>,
) {
    let id = on.enqueue(&event("1")).await;
    let gone = OpenBreaker {
        destination: "gone".to_owned(),
        state: "open".to_owned(),
        since: Timestamp::now(),
        error: "refused".to_owned(),
    };
    let report = Report { breakers: vec![gone], stalls: Vec::new() };
    on.store.report_state(&on.own("r1").await, &report).await.unwrap();
    let names = ["gone", "partner"].map(str::to_owned);
    let to = |name: &str| {
        Routes::new()
            .route(Route::to("gone").event_type("Other*"))
            .route(Route::to(name).event_type("Order*"))
    };
    let told = async |routes: &Routes| explain(&*on.store, id, &names, Some(routes)).await.unwrap();

    let partner = to("partner");
    let answer = told(&partner).await;
    says(&answer, Cause::InProgress, &["nothing is known to keep it back"], Some(&shown(id)));
    says(
        &told(&to("gone")).await,
        Cause::BreakerOpen,
        &["its destination gone"],
        Some("posthaste doctor"),
    );

    on.store.pause(&Pausable::Destination("partner".to_owned()), "ada", None).await.unwrap();
    let mend = Some("posthaste resume destination partner");
    says(&told(&partner).await, Cause::Paused, &["its destination partner is paused by ada"], mend);

    let nowhere = Routes::new().route(Route::to("partner").event_type("Invoice*"));
    let words = ["no route for OrderPlaced of Order 1"];
    says(&told(&nowhere).await, Cause::NoRoute, &words, Some("posthaste config show"));
}

async fn a_pause_is_named_with_who_set_it<DB: Dialect>(on: &Outbox<DB>) {
    let named = event("7").with_default_tenant(Some("acme"));
    let id = on.enqueue(&named).await;
    on.own("r1").await;
    let key = Pausable::Key(named.key().unwrap());
    let names = ["memory".to_owned()];
    for (what, words, mend) in [
        (Pausable::Outbox, "the outbox is", "posthaste resume outbox"),
        (key, "its key is", "posthaste resume key Order/7 --tenant acme"),
        (
            Pausable::Destination("memory".to_owned()),
            "its destination memory is",
            "posthaste resume destination memory",
        ),
        (
            Pausable::Relay("r1".to_owned()),
            "relay r1, which would deliver it, is",
            "posthaste resume relay r1",
        ),
    ] {
        on.store.pause(&what, "ada", Some("broker moves")).await.unwrap();
        let answer = explain(&*on.store, id, &names, None).await.unwrap();
        let words = [words, "paused by ada since", "(broker moves)"];
        says(&answer, Cause::Paused, &words, Some(mend));
        on.store.resume(&what).await.unwrap();
    }
    // What others need may be paused.
    for what in [
        Pausable::Key(event("8").key().unwrap()),
        Pausable::Destination("other".to_owned()),
        Pausable::Relay("r2".to_owned()),
    ] {
        on.store.pause(&what, "ada", None).await.unwrap();
    }
    assert_eq!(explain(&*on.store, id, &names, None).await.unwrap().cause, Cause::InProgress);
}

/// A replay has no lane to be held in: it is written back, and that is no failure of its own.
async fn what_a_pause_put_back_has_not_failed<DB: Dialect>(on: &Outbox<DB>) {
    let id = on.enqueue(&event("1")).await;
    let relay = || on.relay(MemoryTransport::new(), patient());
    relay().relay_once().await.unwrap();
    on.own("r1").await;
    on.store.pause(&Pausable::Destination("memory".to_owned()), "ada", None).await.unwrap();
    on.store.replay(&Selection::One(id)).await.unwrap();
    relay().relay_once().await.unwrap();
    let answer = explain(&*on.store, id, &["memory".to_owned()], None).await.unwrap();
    let mend = Some("posthaste resume destination memory");
    says(&answer, Cause::Paused, &["destination memory is paused by ada"], mend);
    assert!(!answer.sentence.contains("failed"), "{answer:?}");
}

async fn without_a_relay_nothing_is_delivered<DB: Dialect>(on: &Outbox<DB>) {
    let id = on.enqueue(&event("1")).await;
    says(&ask(on, id).await, Cause::NoRelay, &["no relay"], Some("posthaste relay"));

    // One that has died is remembered for a while.
    let brief = Reported { lease: Duration::from_millis(1), ..on.report("r1").await };
    on.store.heartbeat(&brief, 0).await.unwrap();
    asked("its death", async || on.store.relays().await.unwrap().iter().all(|r| !r.alive)).await;
    says(&ask(on, id).await, Cause::NoRelay, &["no relay"], Some("posthaste relay"));
}

async fn a_shard_without_an_owner_is_named<DB: Dialect>(on: &Outbox<DB>) {
    let id = on.enqueue(&event("1")).await;
    on.report("r1").await;
    let shard = on.store.event(id).await.unwrap().unwrap().shard;
    let words = [&*format!("shard {shard} is held by no relay")];
    says(&ask(on, id).await, Cause::ShardUnowned, &words, Some("posthaste relays"));
}

async fn an_event_that_nothing_keeps_back_is_in_progress<DB: Dialect>(on: &Outbox<DB>) {
    let id = on.enqueue(&event("1")).await;
    on.own("r1").await;
    says(
        &ask(on, id).await,
        Cause::InProgress,
        &["relay r1/", "nothing is known"],
        Some(&shown(id)),
    );
}

async fn what_waits_and_has_no_relay_says_both<DB: Dialect>(on: &Outbox<DB>) {
    let at = Timestamp::now().checked_add(SignedDuration::from_hours(3)).unwrap();
    let later = Event::builder("Reminder").raw_json("{}").deliver_at(at).build().unwrap();
    let id = on.enqueue(&later).await;
    let words = ["not to be delivered before", "Besides, no relay"];
    says(&ask(on, id).await, Cause::Delayed, &words, Some("posthaste relay"));
}

async fn a_cause_is_told_to_programs_in_snake_case<DB: Dialect>(on: &Outbox<DB>) {
    let id = on.enqueue(&event("1")).await;
    let answer = serde_json::to_value(ask(on, id).await).unwrap();
    assert_eq!(answer["cause"], "no_relay");
    assert!(answer["sentence"].is_string() && answer["mend"].is_string());
}
