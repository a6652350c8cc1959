//! Every route that looks or changes, beside a relay that runs.

use std::sync::Arc;

use async_trait::async_trait;
use posthaste::{
    Envelope, Event,
    relay::{self, Destination, Route, Routes},
    store::{OpenBreaker, Relay, RelayOrdering, Report},
    transport::{Outcome, Transport},
};
use posthaste_admin::{AdminConfig, AdminOutbox};
use posthaste_testkit::wait::asked;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    on_both,
    support::{LIMIT, OPERATOR, SECRET, Served, Server, TestDatabase, event, loopback, quick},
};

on_both!(
    an_outbox_shows_how_it_stands,
    a_destination_shows_which_relays_cannot_reach_it,
    an_event_is_shown_with_its_history_and_without_its_payload,
    a_payload_is_shown_as_it_was_written,
    pages_follow_each_other_without_gap_or_repeat,
    a_dead_event_is_replayed_and_delivered,
    an_event_is_discarded_once,
    many_events_are_changed_by_a_filter_after_a_trial,
    what_is_paused_is_listed_until_it_is_resumed,
    a_pause_of_a_name_that_nobody_has_is_refused_unless_its_caller_insists,
    what_is_paused_waits_and_says_so_until_it_is_resumed,
    the_routes_tell_which_pause_holds_an_event_back,
    a_purge_deletes_what_was_sent,
    a_poll_wakes_the_relay,
    a_poll_says_whether_relays_of_other_processes_were_woken,
    the_last_minutes_are_sampled,
    every_change_is_audited_page_by_page,
);

on_both!(@ mariadb, sqlx::MySql, a_poll_says_whether_relays_of_other_processes_were_woken);

/// A server of this outbox alone.
async fn serve(outbox: AdminOutbox) -> Server {
    let config = AdminConfig { listen: loopback(), ..AdminConfig::default() };
    Server::start(vec![outbox], config).await
}

async fn an_outbox_shows_how_it_stands<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let served = Served::<DB>::new(false).await;
    served.fates().await;
    let get = async |path: &str| served.server.get(path).await.json();

    assert_eq!(
        get("/whoami").await,
        json!({ "name": "local", "role": "operator", "payloads": false })
    );
    let shards = served.store.check().await.unwrap();
    let database = served.store.database();
    let line = json!({ "name": "shop", "database": database, "shards": shards });
    assert_eq!(get("/outboxes").await, json!({ "outboxes": [line] }));

    let overview = get("/outboxes/shop/overview").await;
    let counts = json!({
        "new": 0, "held": 0, "sending": 0, "retry": 1, "dead": 1, "estimated": false
    });
    assert_eq!(overview["counts"], counts);
    assert_eq!(overview["outbox"], "shop");
    assert_eq!(overview["backlog_by_tenant"], json!([{ "tenant": "acme", "events": 1 }]));
    assert_eq!(overview["shards"], json!({ "total": shards, "held": shards, "free": 0 }));
    assert_eq!(overview["relays"][0]["name"], "one");
    assert_eq!(overview["relays"][0]["alive"], true);
    assert_eq!(overview["relays"][0]["shards"], shards);

    let relays = get("/outboxes/shop/relays").await;
    let owner = &relays["relays"][0]["owner"];
    let held = get("/outboxes/shop/shards").await;
    assert_eq!(held["shards"].as_array().unwrap().len(), usize::from(shards));
    assert_eq!(&held["shards"][0]["locked_by"], owner);
    assert_eq!(held["shards"][0]["relay"], "one");
    assert_eq!(
        get("/outboxes/shop/destinations").await,
        json!({ "destinations": [{ "name": "memory", "paused": false, "breakers": [] }] })
    );
    assert_eq!(
        get("/outboxes/shop/tenants").await,
        json!({ "tenants": [{ "tenant": "acme", "events": 1 }], "estimated": false })
    );
    let findings = get("/outboxes/shop/doctor").await;
    assert!(findings["findings"].as_array().unwrap().iter().any(|one| one["check"] == "schema"));
    assert_eq!(get("/openapi.json").await["openapi"], "3.1.0");
    served.end().await;
}

async fn a_destination_shows_which_relays_cannot_reach_it<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let served = Served::<DB>::new(false).await;
    let two = Relay {
        name: "two".to_owned(),
        instance: Uuid::now_v7(),
        ordering: RelayOrdering::PerKey,
        lease: LIMIT,
    };
    let since = "2026-05-01T12:00:00Z";
    let open = OpenBreaker {
        destination: "mail".to_owned(),
        state: "open".to_owned(),
        since: since.parse().unwrap(),
        error: "connection refused".to_owned(),
    };
    served.store.heartbeat(&two, 0).await.unwrap();
    let report = Report { breakers: vec![open], stalls: Vec::new() };
    served.store.report_state(&two, &report).await.unwrap();
    let breaker =
        json!({ "relay": "two", "state": "open", "since": since, "error": "connection refused" });
    assert_eq!(
        served.server.get("/outboxes/shop/destinations").await.json()["destinations"],
        json!([
            { "name": "mail", "paused": false, "breakers": [breaker] },
            { "name": "memory", "paused": false, "breakers": [] },
        ])
    );
    served.end().await;
}

async fn an_event_is_shown_with_its_history_and_without_its_payload<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let served = Served::<DB>::new(false).await;
    let [sent, dead, failed] = served.fates().await;

    let reply = served.server.get(&format!("/outboxes/shop/events/{dead}")).await;
    let shown = reply.json();
    assert!(!reply.body.contains(SECRET), "{}", reply.body);
    for (field, value) in [
        ("id", json!(dead)),
        ("status", json!("dead")),
        ("type", json!("Poison")),
        ("aggregate_type", json!("Order")),
        ("aggregate_id", json!("Poison")),
        ("tenant", json!("acme")),
        ("topic", json!("Order")),
        ("headers", json!({ "source": "test" })),
        ("content_type", json!("application/json")),
        ("destination", json!("memory")),
        ("last_error", json!("no such order")),
        ("payload_bytes", json!(json!({ "card": SECRET }).to_string().len())),
        ("ordering_key", json!("4:acme5:Order6:Poison")),
        ("key", json!(format!("{:016x}", event("Poison", "Poison").key().unwrap().0))),
        ("undecodable", Value::Null),
    ] {
        assert_eq!(shown["event"][field], value, "{field}");
    }
    assert!(shown["attempts"][0]["relay"].as_str().unwrap().starts_with("one/"));
    assert_eq!(shown["attempts"][0]["error"], "no such order");
    assert_eq!(shown["explanation"]["cause"], "dead");

    let shown = served.server.get(&format!("/outboxes/shop/events/{failed}")).await.json();
    assert_eq!(shown["event"]["wait"], "retry");
    assert_eq!(shown["explanation"]["cause"], "retry");
    let shown = served.server.get(&format!("/outboxes/shop/events/{sent}")).await.json();
    assert!(shown["event"]["sent_at"].is_string());
    assert_eq!(shown["attempts"], json!([]));

    let nobody = "/outboxes/shop/events/00000000-0000-7000-8000-000000000000";
    served.server.get(nobody).await.problem(404);
    served.server.get("/outboxes/shop/events/42").await.problem(400);
    served.server.get("/outboxes/moon/events").await.problem(404);
    served.end().await;
}

async fn a_payload_is_shown_as_it_was_written<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let served = Served::<DB>::new(true).await;
    let bytes = Event::builder("Scan").bytes("image/png", vec![0_u8, 159, 146, 150]);
    let ids = served.enqueue(vec![event("Placed", "1"), bytes.build().unwrap()]).await;
    let path = |id: &str| format!("/outboxes/shop/events/{id}/payload");
    let payload = async |id: &str| served.server.get_as(OPERATOR, &path(id)).await;

    let text = json!({ "card": SECRET }).to_string();
    assert_eq!(
        payload(&ids[0]).await.json(),
        json!({ "content_type": "application/json", "encoding": "utf8", "payload": text })
    );
    assert_eq!(
        payload(&ids[1]).await.json(),
        json!({ "content_type": "image/png", "encoding": "base64", "payload": "AJ+Slg==" })
    );
    served.end().await;
}

async fn pages_follow_each_other_without_gap_or_repeat<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let served = Served::<DB>::new(false).await;
    let mut written =
        served.enqueue((0..7).map(|n| event("Placed", &n.to_string())).collect()).await;
    served.enqueue(vec![event("Moved", "1")]).await;
    let mut listed = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = format!("/outboxes/shop/events?type=Placed&tenant=acme&limit=3{cursor}");
        let page = served.server.get(&page).await.json();
        for event in page["events"].as_array().unwrap() {
            listed.push(event["id"].as_str().unwrap().to_owned());
        }
        assert_eq!(page["window_ended"], false);
        let Some(next) = page["next"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    written.reverse();
    assert_eq!(listed, written, "newest first");

    let none = served.server.get("/outboxes/shop/events?before=2000-01-01T00:00:00Z").await.json();
    assert_eq!(none["events"], json!([]));
    let order = "/outboxes/shop/events?aggregate_type=Order&aggregate_id=1";
    assert_eq!(served.server.get(order).await.json()["events"].as_array().unwrap().len(), 2);
    for refused in
        ["limit=0", "limit=201", "limit=x", "cursor=x", "status=gone", "from=now", "type="]
    {
        served.server.get(&format!("/outboxes/shop/events?{refused}")).await.problem(422);
    }
    served.server.get("/outboxes/shop/events?tpye=Placed").await.problem(400);
    served.end().await;
}

async fn a_dead_event_is_replayed_and_delivered<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let served = Served::<DB>::new(false).await;
    let [_, dead, failed] = served.fates().await;
    let replay = |id: &str| format!("/outboxes/shop/events/{id}/replay");
    assert_eq!(served.server.post(&replay(&dead), &json!({})).await.json()["changed"], 1);
    served.until_status(&dead, "sent").await;
    let shown = served.server.get(&format!("/outboxes/shop/events/{dead}")).await.json();
    assert_eq!(shown["event"]["replay"], 1);

    let refused = served.server.post(&replay(&failed), &json!({})).await.problem(409);
    assert_eq!(refused, "an event that is retry cannot be replayed");
    let nobody = replay("00000000-0000-7000-8000-000000000000");
    served.server.post(&nobody, &json!({})).await.problem(404);
    served.server.post(&replay(&dead), &json!({ "force": true })).await.problem(422);
    served.end().await;
}

async fn an_event_is_discarded_once<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let served = Served::<DB>::new(false).await;
    let [sent, _, failed] = served.fates().await;
    let discard = |id: &str| format!("/outboxes/shop/events/{id}/discard");
    assert_eq!(served.server.post(&discard(&failed), &json!({})).await.json()["changed"], 1);
    served.until_status(&failed, "discarded").await;
    served.server.post(&discard(&failed), &json!({})).await.problem(409);
    served.server.post(&discard(&sent), &json!({})).await.problem(409);
    served.end().await;
}

async fn many_events_are_changed_by_a_filter_after_a_trial<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let served = Served::<DB>::new(false).await;
    let ids = served.enqueue((0..5).map(|n| event("Poison", &n.to_string())).collect()).await;
    for id in &ids {
        served.until_status(id, "dead").await;
    }
    let bulk = async |body: Value| served.server.post("/outboxes/shop/bulk", &body).await;
    let dead = json!({ "status": "dead", "type": "Poison" });

    let trial = json!({ "action": "replay", "filter": dead, "dry_run": true });
    let report = json!({ "matched": 5, "changed": 0, "more": false, "dry_run": true });
    assert_eq!(bulk(trial).await.json(), report);
    let some = json!({ "action": "discard", "filter": dead, "dry_run": false, "limit": 2 });
    let report = json!({ "matched": 2, "changed": 2, "more": true, "dry_run": false });
    assert_eq!(bulk(some).await.json(), report);
    for id in &ids[..2] {
        served.until_status(id, "discarded").await;
    }
    let rest = json!({ "action": "replay", "filter": dead, "dry_run": false, "rate": 1000 });
    let report = json!({ "matched": 3, "changed": 3, "more": false, "dry_run": false });
    assert_eq!(bulk(rest).await.json(), report);
    for id in &ids[2..] {
        served.until_status(id, "sent").await;
    }

    for (status, refused) in [
        (422, json!({ "action": "replay", "filter": {}, "dry_run": true })),
        (422, json!({ "action": "replay", "filter": { "status": "sent" }, "dry_run": true })),
        (422, json!({ "action": "discard", "filter": { "status": "new" }, "dry_run": false })),
        (422, json!({ "action": "send", "filter": dead, "dry_run": true })),
        (422, json!({ "action": "replay", "filter": dead, "dry_run": true, "limit": 10_001 })),
        (422, json!({ "action": "replay", "filter": dead, "dry_run": true, "rate": 0 })),
        (422, json!({ "action": "replay", "filter": { "stauts": "dead" }, "dry_run": true })),
        (422, json!({ "action": "replay", "filter": dead })),
        (422, json!({ "action": "replay", "filter": ["dead"], "dry_run": true })),
        (409, json!({ "action": "discard", "filter": { "status": "sent" }, "dry_run": false })),
    ] {
        bulk(refused.clone()).await.problem(status);
    }
    served.end().await;
}

async fn what_is_paused_is_listed_until_it_is_resumed<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let served = Served::<DB>::new(false).await;
    let pause = async |body: Value| served.server.post("/outboxes/shop/pauses", &body).await;
    let listed = async || {
        let pauses = served.server.get("/outboxes/shop/pauses").await.json();
        let overview = served.server.get("/outboxes/shop/overview").await.json();
        assert_eq!(pauses["pauses"], overview["pauses"]);
        pauses["pauses"].as_array().unwrap().clone()
    };
    let order = json!({ "tenant": "acme", "aggregate_type": "Order", "aggregate_id": "42" });
    let key = format!("{:016x}", event("Placed", "42").key().unwrap().0);

    asked("the relay to report", async || !served.store.relays().await.unwrap().is_empty()).await;
    let (changed, named) = (json!({ "changed": 1 }), json!({ "changed": 1, "checked": true }));
    let destination = json!({ "kind": "destination", "name": "memory", "note": "moving" });
    assert_eq!(pause(json!({ "kind": "outbox" })).await.json(), changed);
    assert_eq!(pause(destination.clone()).await.json(), named);
    assert_eq!(pause(json!({ "kind": "relay", "name": "one" })).await.json(), named);
    assert_eq!(pause(json!({ "kind": "key", "key": order, "note": "why" })).await.json(), changed);
    assert_eq!(pause(destination).await.json(), json!({ "changed": 0, "checked": true }));
    let destinations = served.server.get("/outboxes/shop/destinations").await.json();
    assert_eq!(destinations["destinations"][0]["paused"], true);

    let pauses = listed().await;
    assert_eq!(pauses.len(), 4);
    let of = |kind: &str| pauses.iter().find(|pause| pause["kind"] == kind).unwrap();
    assert_eq!(of("outbox")["name"], "");
    assert_eq!(of("destination")["note"], "moving");
    assert_eq!(of("relay")["by"], "local");
    assert_eq!(of("key")["name"], key);
    assert_eq!(of("key")["note"], "Order/42 of tenant acme: why");

    for path in ["outbox/-", "destination/memory", "relay/one", &format!("key/{key}")] {
        let path = format!("/outboxes/shop/pauses/{path}");
        assert_eq!(served.server.delete(&path).await.json(), changed);
        assert_eq!(served.server.delete(&path).await.json(), json!({ "changed": 0 }));
    }
    assert_eq!(listed().await, Vec::<Value>::new());

    for refused in [
        json!({ "kind": "moon" }),
        json!({ "kind": "relay" }),
        json!({ "kind": "outbox", "name": "shop" }),
        json!({ "kind": "key", "name": "42" }),
        json!({ "kind": "relay", "name": "one", "key": order }),
        json!({ "kind": "relay", "name": "a\u{0}b" }),
        json!({ "kind": "relay", "name": "x".repeat(101) }),
        json!({ "kind": "outbox", "unknown": true }),
        json!({ "kind": "relay", "name": "two", "unknown": "yes" }),
    ] {
        pause(refused).await.problem(422);
    }
    served.server.delete("/outboxes/shop/pauses/moon/x").await.problem(404);
    served.end().await;
}

async fn a_pause_of_a_name_that_nobody_has_is_refused_unless_its_caller_insists<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let served = Served::<DB>::new(false).await;
    asked("the relay to report", async || !served.store.relays().await.unwrap().is_empty()).await;
    for (kind, name, hint) in [
        ("destination", "memroy", "did you mean memory?"),
        ("destination", "far", "there are memory ("),
        ("relay", "on", "did you mean one?"),
        ("relay", "r9", "there are one ("),
    ] {
        let pause = |unknown: Value| json!({ "kind": kind, "name": name, "unknown": unknown });
        for not_insisting in [Value::Null, json!(false)] {
            let reply = served.server.post("/outboxes/shop/pauses", &pause(not_insisting)).await;
            let detail = reply.problem(404);
            for part in [&format!("{kind} {name:?} is not known"), hint, "\"unknown\": true"] {
                assert!(detail.contains(part), "{part}: {detail}");
            }
        }
        assert!(served.store.pauses().await.unwrap().is_empty());
        let insisting = pause(json!(true));
        let paused = served.server.post("/outboxes/shop/pauses", &insisting).await.json();
        assert_eq!(paused, json!({ "changed": 1, "checked": false }));
        let resume = format!("/outboxes/shop/pauses/{kind}/{name}");
        assert_eq!(served.server.delete(&resume).await.json()["changed"], 1);
    }

    // Who knows no destination takes any name, and says so.
    let server = serve(AdminOutbox { destinations: Vec::new(), ..served.outbox() }).await;
    let pause = json!({ "kind": "destination", "name": "far" });
    let paused = server.post("/outboxes/shop/pauses", &pause).await.json();
    assert_eq!(paused, json!({ "changed": 1, "checked": false }));
    server.stop().await;
    served.end().await;
}

async fn what_is_paused_waits_and_says_so_until_it_is_resumed<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let served = Served::<DB>::new(false).await;
    served.server.post("/outboxes/shop/pauses", &json!({ "kind": "outbox" })).await.json();
    asked("the relay to pause", async || served.relay.stats().paused).await;
    let ids = served.enqueue(vec![event("Placed", "1")]).await;
    let shown = served.server.get(&format!("/outboxes/shop/events/{}", ids[0])).await.json();
    assert_eq!(shown["event"]["status"], "new");
    assert_eq!(shown["explanation"]["cause"], "paused");
    let sentence = shown["explanation"]["sentence"].as_str().unwrap();
    assert!(sentence.contains("local"), "by whom: {sentence}");
    served.server.delete("/outboxes/shop/pauses/outbox/-").await.json();
    served.until_status(&ids[0], "sent").await;
    served.end().await;
}

/// Its row does not say where it goes: the routes do, of a relay in this process or of its configuration.
async fn the_routes_tell_which_pause_holds_an_event_back<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let served = Served::<DB>::new(false).await;
    served.relay.stop().await.unwrap();
    let names = ["a", "b"];
    let routes = || Routes::new().route(Route::to("a").event_type("A")).route(Route::to("b"));
    let destinations = names.map(|name| Destination::new(Arc::new(Named(name))));
    let store = Arc::clone(&served.store);
    let relay = relay::Relay::routed(store, destinations.into(), routes(), quick("two"));
    let relay = Arc::new(relay.unwrap());
    let destinations = names.map(str::to_owned).into();
    let with_relay =
        AdminOutbox { relay: Some(Arc::clone(&relay)), destinations, ..served.outbox() };
    let routes = Some(Arc::new(routes()));
    let with_routes = AdminOutbox { relay: None, routes, ..with_relay.clone() };

    let servers = [serve(with_relay).await, serve(with_routes).await];
    let pause = json!({ "kind": "destination", "name": "b" });
    let paused = servers[0].post("/outboxes/shop/pauses", &pause).await.json();
    assert_eq!(paused["changed"], 1);
    // It obeys from its first event on.
    relay.start().await.unwrap();
    let ids = served.enqueue(vec![event("A", "1"), event("B", "2")]).await;
    served.until_status(&ids[0], "sent").await;
    for server in servers {
        let shown = server.get(&format!("/outboxes/shop/events/{}", ids[1])).await.json();
        assert_eq!(shown["event"]["destination"], Value::Null, "the row says it by itself");
        let explanation = &shown["explanation"];
        assert_eq!(explanation["cause"], "paused", "{explanation}");
        assert_eq!(explanation["mend"], "posthaste resume destination b");
        let sentence = explanation["sentence"].as_str().unwrap();
        assert!(sentence.contains("its destination b is paused by local"), "{sentence}");
        let found = server.get("/outboxes/shop/doctor").await.json();
        let found = found["findings"].as_array().unwrap();
        let pauses = found.iter().find(|finding| finding["check"] == "pauses").unwrap();
        assert_eq!(pauses["mend"], "posthaste resume destination b");
        server.stop().await;
    }
    relay.stop().await.unwrap();
    served.end().await;
}

/// A destination that takes everything.
struct Named(&'static str);

#[async_trait]
impl Transport for Named {
    fn name(&self) -> &str {
        self.0
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        vec![Outcome::Delivered; batch.len()]
    }
}

async fn a_purge_deletes_what_was_sent<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let served = Served::<DB>::new(false).await;
    let [sent, dead, _] = served.fates().await;
    let purged = served.server.post("/outboxes/shop/purge", &json!({})).await.json();
    assert_eq!(purged, json!({ "deleted": 1 }));
    served.server.get(&format!("/outboxes/shop/events/{sent}")).await.problem(404);
    served.server.get(&format!("/outboxes/shop/events/{dead}")).await.json();
    served.end().await;
}

async fn a_poll_wakes_the_relay<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let served = Served::<DB>::new(false).await;
    let before = served.relay.stats().polls;
    let polled = served.server.post("/outboxes/shop/poll", &json!({})).await.json();
    assert_eq!(polled, json!({ "woken": true }));
    asked("a poll", async || served.relay.stats().polls > before).await;
    served.end().await;
}

/// As `posthaste admin` beside a relay: of that only the listener is there.
async fn a_poll_says_whether_relays_of_other_processes_were_woken<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let served = Served::<DB>::new(false).await;
    // Whatever it commits would wake the listener as well.
    served.relay.stop().await.unwrap();
    let server = serve(AdminOutbox { relay: None, ..served.outbox() }).await;
    let elsewhere = DB::store(served.pool.clone(), served.tables.clone());
    let listener = elsewhere.listen().await.unwrap();
    assert_eq!(listener.is_some(), DB::NAME != "MySQL");

    let polled = server.post("/outboxes/shop/poll", &json!({})).await.json();
    assert_eq!(polled, json!({ "woken": listener.is_some() }));
    if let Some(mut listener) = listener {
        let heard = tokio::time::timeout(LIMIT, listener.wait()).await;
        heard.expect("it says so, and nobody was woken").unwrap();
    }
    server.stop().await;
    served.end().await;
}

async fn the_last_minutes_are_sampled<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let served = Served::<DB>::new(false).await;
    let series = async |since: &str| {
        served.server.get(&format!("/outboxes/shop/series{since}")).await.json()
    };
    // What happens before the first point is in no rate.
    asked("a point", async || series("").await["points"].get(0).is_some()).await;
    served.fates().await;
    for rate in ["delivered_per_s", "failed_per_s"] {
        asked(rate, async || {
            let points = series("").await["points"].clone();
            let some = |point: &Value| point[rate].as_f64().is_some_and(|rate| rate > 0.0);
            points.as_array().unwrap().iter().any(some)
        })
        .await;
    }
    let all = series("").await;
    assert_eq!(all["interval_s"], 2);
    let points = all["points"].as_array().unwrap();
    assert_eq!(points[0]["delivered_per_s"], Value::Null, "a rate needs two points");
    assert!(points[0]["backlog"].is_u64() && points[0]["dead"].is_u64());
    let first = points[0]["at"].as_str().unwrap();
    assert_eq!(&series(&format!("?since={first}")).await["points"][0], &points[1]);
    served.server.get("/outboxes/shop/series?since=noon").await.problem(422);
    // The relay works latencies out once a second: they may come a point later than the rates.
    asked("a latency", async || {
        let points = series("").await["points"].clone();
        points.as_array().unwrap().iter().any(|point| {
            let (half, most) =
                (point["delivery_p50_ms"].as_f64(), point["delivery_p95_ms"].as_f64());
            half.is_some() && half <= most
        })
    })
    .await;
    served.end().await;
}

async fn every_change_is_audited_page_by_page<DB: TestDatabase>()
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let served = Served::<DB>::new(false).await;
    let [sent, dead, _] = served.fates().await;
    let post = async |path: &str, body: Value| {
        served.server.post(&format!("/outboxes/shop{path}"), &body).await
    };
    let mail = json!({ "kind": "destination", "name": "mail", "unknown": true });
    post("/pauses", mail).await.json();
    served.server.delete("/outboxes/shop/pauses/destination/mail").await.json();
    post(&format!("/events/{dead}/replay"), json!({})).await.json();
    post(&format!("/events/{sent}/discard"), json!({})).await.problem(409);
    let filter = json!({ "status": "retry", "type": "Shaky" });
    post("/bulk", json!({ "action": "discard", "filter": filter, "dry_run": true })).await.json();
    post("/bulk", json!({ "action": "discard", "filter": filter, "dry_run": false })).await.json();
    post("/purge", json!({})).await.json();
    post("/poll", json!({})).await.json();

    let mut audit = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = format!("/outboxes/shop/audit?limit=4{cursor}");
        let page = served.server.get(&page).await.json();
        audit.extend(page["audit"].as_array().unwrap().clone());
        let Some(next) = page["next"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    audit.reverse();
    let told: Vec<_> = audit
        .iter()
        .map(|entry| {
            assert_eq!(entry["by"], "local");
            assert!(entry["ended_at"].is_string(), "{entry}");
            (entry["action"].as_str().unwrap(), entry["subject"].as_str().unwrap())
        })
        .collect();
    assert_eq!(
        told[..5],
        [
            ("destination.pause", "destination mail"),
            ("destination.resume", "destination mail"),
            ("event.replay", &*format!("id={dead}")),
            ("event.discard", &*format!("id={sent}")),
            ("retry.discard", "status=retry type=Shaky"),
        ]
    );
    assert_eq!((told[5].0, told.len()), ("purge", 6), "looking and trying out change nothing");
    assert_eq!(audit[3]["error"], "an event that is sent cannot be discarded");
    assert_eq!(audit[4]["affected"], 1);
    served.server.get("/outboxes/shop/audit?limit=0").await.problem(422);
    served.end().await;
}
