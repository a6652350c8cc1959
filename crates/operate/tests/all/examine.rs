//! What is wrong with an installation, and how it stands.

use std::time::Duration;

use jiff::Timestamp;
use posthaste_core::{
    store::{Finding, Level, OpenBreaker, Pausable, Position, Report, Stall},
    transport::Outcome,
};
use posthaste_operate::{
    Overview,
    doctor::{STALL_AFTER, examine, stalls},
};
use posthaste_relay::Config;
use posthaste_stores::Dialect;
use posthaste_transports::memory::MemoryTransport;

use crate::support::{Outbox, event};

on_both! {
    an_installation_at_work_is_well
    without_a_relay_there_is_a_problem
    what_is_paused_or_down_or_dead_is_found
    an_outbox_without_tables_has_one_finding
    an_overview_shows_what_waits_who_works_and_what_is_paused
    events_that_nobody_delivers_stall_and_paused_ones_do_not
    an_event_before_the_checkpoint_of_its_shard_stalls
    what_relays_report_to_stall_is_a_problem
}

async fn findings<DB: Dialect>(on: &Outbox<DB>, check: &str) -> Vec<Finding> {
    let mut findings = examine(&*on.store, STALL_AFTER).await.unwrap();
    findings.retain(|finding| finding.check == check);
    assert!(!findings.is_empty(), "{check} was not checked");
    findings
}

async fn an_installation_at_work_is_well<DB: Dialect>(on: &Outbox<DB>) {
    on.own("r1").await;
    let findings = examine(&*on.store, STALL_AFTER).await.unwrap();
    for finding in &findings {
        assert!(finding.level < Level::Problem, "{finding:?}");
    }
    for check in [
        "schema",
        "indexes",
        "clock",
        "relays",
        "shards",
        "pauses",
        "destinations",
        "stalls",
        "dead",
    ] {
        let found = findings.iter().find(|finding| finding.check == check);
        assert_eq!(found.map(|finding| finding.level), Some(Level::Ok), "{check}: {found:?}");
    }
}

async fn without_a_relay_there_is_a_problem<DB: Dialect>(on: &Outbox<DB>) {
    let found = &findings(on, "relays").await[0];
    assert_eq!((found.level, found.mend.as_deref()), (Level::Problem, Some("posthaste relay")));
    on.report("r1").await;
    assert_eq!(findings(on, "relays").await[0].level, Level::Ok);
    assert_eq!(findings(on, "shards").await[0].level, Level::Warning, "it has taken none");
}

async fn what_is_paused_or_down_or_dead_is_found<DB: Dialect>(on: &Outbox<DB>) {
    on.enqueue(&event("1")).await;
    let poison = MemoryTransport::scripted(|_| Outcome::dead("no"));
    on.relay(poison, Config::default()).relay_once().await.unwrap();
    let relay = on.own("r1").await;
    on.store.pause(&Pausable::Outbox, "ada", Some("move")).await.unwrap();
    on.store.pause(&Pausable::Destination("nats".into()), "bob", None).await.unwrap();
    let open = OpenBreaker {
        destination: "nats".to_owned(),
        state: "open".to_owned(),
        since: Timestamp::now(),
        error: "connection refused".to_owned(),
    };
    let report = Report { breakers: vec![open], stalls: Vec::new() };
    on.store.report_state(&relay, &report).await.unwrap();

    let pauses = findings(on, "pauses").await;
    assert_eq!(pauses.len(), 2);
    for (words, mend) in [
        ("outbox is paused by ada", "posthaste resume outbox"),
        ("destination nats is paused by bob", "posthaste resume destination nats"),
    ] {
        let pause = pauses.iter().find(|pause| pause.text.contains(words));
        assert_eq!(pause.unwrap().mend.as_deref(), Some(mend));
    }
    let down = &findings(on, "destinations").await[0];
    assert_eq!(down.level, Level::Problem);
    assert!(down.text.contains("nats") && down.text.contains("connection refused"), "{down:?}");
    let dead = &findings(on, "dead").await[0];
    assert_eq!((dead.level, dead.text.as_str()), (Level::Warning, "1 events are dead"));
}

async fn an_outbox_without_tables_has_one_finding<DB: Dialect>(on: &Outbox<DB>) {
    let nowhere = DB::store(on.pool.clone(), posthaste_testkit::tables::unique("absent"));
    let findings = examine(&*nowhere, STALL_AFTER).await.unwrap();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].mend.as_deref(), Some("posthaste migrate"));
}

async fn an_overview_shows_what_waits_who_works_and_what_is_paused<DB: Dialect>(on: &Outbox<DB>) {
    on.enqueue_all(&[event("1"), event("2").with_default_tenant(Some("acme"))]).await;
    on.own("r1").await;
    on.store.pause(&Pausable::Relay("r1".into()), "ada", Some("move")).await.unwrap();
    let overview = Overview::read(&*on.store, "orders", STALL_AFTER).await.unwrap();
    let overview = serde_json::to_value(&overview).unwrap();
    assert_eq!(overview["outbox"], "orders");
    assert_eq!(overview["counts"]["new"], 2);
    assert_eq!(overview["counts"]["estimated"], false);
    assert_eq!(overview["backlog_by_tenant"].as_array().unwrap().len(), 2);
    assert!(overview["oldest_pending_s"].as_f64().unwrap() < 60.0);
    let relay = &overview["relays"][0];
    assert_eq!((&relay["name"], &relay["alive"]), (&"r1".into(), &true.into()));
    assert_eq!(relay["shards"], overview["shards"]["total"]);
    assert!(relay["heartbeat_age_s"].as_f64().unwrap() < 60.0);
    assert_eq!(overview["shards"]["free"], 0);
    let pause = &overview["pauses"][0];
    assert_eq!((&pause["kind"], &pause["name"]), (&"relay".into(), &"r1".into()));
    assert_eq!((&pause["by"], &pause["note"]), (&"ada".into(), &"move".into()));
}

async fn reasons<DB: Dialect>(on: &Outbox<DB>) -> Vec<(String, u64)> {
    let stalls = stalls(&*on.store, Duration::ZERO).await.unwrap();
    stalls.into_iter().map(|stall| (stall.reason, stall.events)).collect()
}

async fn events_that_nobody_delivers_stall_and_paused_ones_do_not<DB: Dialect>(on: &Outbox<DB>) {
    assert_eq!(reasons(on).await, []);
    on.enqueue_all(&[event("1"), event("2")]).await;
    assert_eq!(reasons(on).await, [("no relay is alive".to_owned(), 2)]);
    assert_eq!(stalls(&*on.store, Duration::from_mins(1)).await.unwrap(), [], "they are young");
    on.report("r1").await;
    assert_eq!(reasons(on).await, [("no relay owns its shard".to_owned(), 2)]);
    on.store.pause(&Pausable::Outbox, "ada", None).await.unwrap();
    assert_eq!(reasons(on).await, []);
    on.store.resume(&Pausable::Outbox).await.unwrap();
    on.own("r2").await;
    assert_eq!(reasons(on).await, [], "what a live relay owns is its to say");
}

async fn an_event_before_the_checkpoint_of_its_shard_stalls<DB: Dialect>(on: &Outbox<DB>) {
    on.enqueue_all(&[event("1"), event("2")]).await;
    let relay = on.own("r1").await;
    assert_eq!(reasons(on).await, []);
    let shards = on.store.shards().await.unwrap();
    let held: Vec<_> = shards
        .iter()
        .map(|shard| posthaste_core::store::Held { shard: shard.shard, epoch: shard.epoch })
        .collect();
    let mark = Position { sequence: 1, context: String::new() };
    on.store.renew(&relay, &held, &mark).await.unwrap();
    let found = stalls(&*on.store, Duration::ZERO).await.unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].events, found[0].sequence), (1, 1));
    assert!(found[0].reason.contains("before the checkpoint"), "{found:?}");
}

async fn what_relays_report_to_stall_is_a_problem<DB: Dialect>(on: &Outbox<DB>) {
    let relay = on.own("r1").await;
    assert_eq!(findings(on, "stalls").await[0].level, Level::Ok);
    let stall = Stall {
        reason: "not read: the cursor stands at 7".to_owned(),
        events: 3,
        sequence: 8,
        event_id: Some("0190a5b0-0000-7000-8000-000000000000".to_owned()),
        since: Timestamp::now(),
    };
    let report = Report { breakers: Vec::new(), stalls: vec![stall] };
    on.store.report_state(&relay, &report).await.unwrap();
    let found = &findings(on, "stalls").await[0];
    assert_eq!(found.level, Level::Problem);
    for part in ["r1", "sequence 8", "the cursor stands at 7"] {
        assert!(found.text.contains(part), "{found:?}");
    }
    let mend = "posthaste doctor 0190a5b0-0000-7000-8000-000000000000";
    assert_eq!(found.mend.as_deref(), Some(mend));
    let overview = Overview::read(&*on.store, "orders", STALL_AFTER).await.unwrap();
    assert_eq!(overview.stalls.len(), 1);
    assert_eq!(overview.stalls[0].relay.as_deref(), Some("r1"));
}
