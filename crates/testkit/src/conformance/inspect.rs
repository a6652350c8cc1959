//! Looking at an outbox.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use posthaste_core::{
    Event, Status,
    store::{
        Counts, EventRecord, Filter, OpenBreaker, Overdue, Report, Stall, TenantBacklog,
        TenantCounts,
    },
};
use uuid::Uuid;

use super::{
    Edit, PlainEvent, Subject,
    outbox::Outbox,
    relays::{LONG, dead, event, events, held, parked, relay, retry, sent, suspect},
    states::{in_every_state, in_state},
};

const HOUR: Duration = Duration::from_hours(1);

/// Lists all that match, page by page, and checks that each page keeps to its contract.
async fn list(outbox: &Outbox, filter: &Filter, limit: usize) -> Vec<EventRecord> {
    let (mut found, mut before): (Vec<EventRecord>, _) = (Vec::new(), None);
    for _ in 0..1_000 {
        let page = outbox.store.events(filter, before, limit).await.unwrap();
        assert!(page.events.len() <= limit, "{} events of {limit}", page.events.len());
        found.extend(page.events);
        before = page.next;
        if before.is_none() {
            assert!(
                found.is_sorted_by(|one, next| one.sequence > next.sequence),
                "not newest first"
            );
            return found;
        }
    }
    panic!("the pages never end");
}

fn ids(records: &[EventRecord]) -> Vec<Uuid> {
    records.iter().filter_map(|record| record.event_id).collect()
}

/// An event is found by its id; one that is not there is `None`.
pub async fn an_event_is_found_by_its_id(subject: &Subject) {
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&events(3)).await;
    let record = outbox.record(enqueued[1].id).await;
    assert_eq!((record.sequence, record.event_id), (enqueued[1].sequence, Some(enqueued[1].id)));
    assert_eq!((record.status, record.attempts), (Status::New, 0));
    assert_eq!((record.sent_at, record.dead_at, record.locked_by), (None, None, None));
    assert!(outbox.store.event(Uuid::now_v7()).await.unwrap().is_none());
}

/// A list comes newest first and in pages that neither repeat nor leave out anything.
pub async fn a_list_comes_newest_first_and_in_pages(subject: &Subject) {
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&events(25)).await;
    let newest_first: Vec<Uuid> = enqueued.iter().rev().map(|one| one.id).collect();
    for limit in [1, 7, 25, 100] {
        assert_eq!(ids(&list(&outbox, &Filter::default(), limit).await), newest_first);
    }
    let page = outbox.store.events(&Filter::default(), Some(enqueued[5].sequence), 3).await;
    assert_eq!(ids(&page.unwrap().events), [enqueued[4].id, enqueued[3].id, enqueued[2].id]);
}

/// Each part of a filter narrows the list, and given parts must all match.
pub async fn filters_narrow_the_list(subject: &Subject) {
    let outbox = subject.outbox().await;
    let build = |event_type: &str, aggregate: &str, id: &str, tenant: &str| {
        let event = Event::builder(event_type).aggregate(aggregate, id).tenant(tenant);
        event.raw_json("{}").build().unwrap()
    };
    let all = [
        build("Placed", "Order", "1", "acme"),
        build("Placed", "Order", "2", "acme"),
        build("Paid", "Order", "1", "other"),
        build("Paid", "Invoice", "1", "acme"),
    ];
    let bare = Event::builder("Placed").raw_json("{}").build().unwrap();
    outbox.enqueue(&all).await;
    outbox.enqueue_one(&bare).await;
    let text = |text: &str| Some(text.to_owned());
    let filters = [
        (Filter { event_type: text("Paid"), ..Filter::default() }, vec![3, 2]),
        (Filter { aggregate_type: text("Order"), ..Filter::default() }, vec![2, 1, 0]),
        (Filter { aggregate_id: text("1"), ..Filter::default() }, vec![3, 2, 0]),
        (Filter { tenant: text("acme"), ..Filter::default() }, vec![3, 1, 0]),
        (Filter { aggregate_id: text("1"), tenant: text("acme"), ..Filter::default() }, vec![3, 0]),
        (
            Filter { event_type: text("Placed"), aggregate_id: text("3"), ..Filter::default() },
            vec![],
        ),
        (Filter { tenant: text("ACME"), ..Filter::default() }, vec![]),
        (Filter { tenant: text("acme' or 1=1 --"), ..Filter::default() }, vec![]),
    ];
    for (filter, expected) in filters {
        let expected: Vec<Uuid> =
            expected.into_iter().map(|index: usize| all[index].id()).collect();
        for limit in [1, 10] {
            assert_eq!(ids(&list(&outbox, &filter, limit).await), expected, "{filter:?}");
        }
        let status = Filter { status: Some(Status::New), ..filter.clone() };
        assert_eq!(ids(&list(&outbox, &status, 10).await), expected, "{status:?}");
        let status = Filter { status: Some(Status::Dead), ..filter };
        assert!(list(&outbox, &status, 10).await.is_empty(), "{status:?}");
    }
}

/// A filter of times takes the first moment in and leaves the last one out.
pub async fn times_of_a_filter_are_from_and_before(subject: &Subject) {
    let outbox = subject.outbox().await;
    let mut created: Vec<(Uuid, Timestamp)> = Vec::new();
    for hours in [30, 20, 10, 0] {
        let event = event(hours);
        outbox.enqueue_one(&event).await;
        outbox.age(event.id(), hours).await;
        let envelope = outbox.record(event.id()).await.content.unwrap();
        created.push((event.id(), envelope.created_at));
    }
    let filter = Filter {
        created_from: Some(created[1].1),
        created_before: Some(created[3].1),
        ..Filter::default()
    };
    assert_eq!(ids(&list(&outbox, &filter, 10).await), [created[2].0, created[1].0]);
}

/// A time range is found wherever it lies, also when many events are gone.
pub async fn a_time_range_is_found_whatever_gaps_there_are(subject: &Subject) {
    let outbox = subject.outbox().await;
    let all = events(24);
    outbox.enqueue(&all).await;
    for (event, hours) in all.iter().zip((0..24).rev()) {
        outbox.age(event.id(), hours).await;
    }
    outbox.delete(&[2, 3, 4, 11, 23, 24]).await;
    let records = list(&outbox, &Filter::default(), 100).await;
    let rest = sequences(&records);
    let left: Vec<(Uuid, Timestamp)> = records
        .into_iter()
        .map(|record| (record.event_id.unwrap(), record.content.unwrap().created_at))
        .collect();
    assert_eq!(left.len(), 18);
    let times = left.iter().flat_map(|(_, at)| [-1_800, 0, 1_800].map(|s| plus(*at, s)));
    let times: Vec<Timestamp> = times.step_by(5).collect();
    for from in &times {
        for before in times.iter().filter(|before| *before >= from) {
            let filter = Filter {
                created_from: Some(*from),
                created_before: Some(*before),
                ..Filter::default()
            };
            let inside = left.iter().filter(|(_, at)| at >= from && at < before);
            let expected: Vec<Uuid> = inside.map(|(id, _)| *id).collect();
            assert_eq!(ids(&list(&outbox, &filter, 100).await), expected, "{from} to {before}");
        }
    }
    outbox.delete(&rest).await;
    let filter = Filter { created_from: Some(times[0]), ..Filter::default() };
    assert!(list(&outbox, &filter, 10).await.is_empty(), "an empty outbox has no times");
}

fn plus(at: Timestamp, seconds: i64) -> Timestamp {
    at.checked_add(SignedDuration::from_secs(seconds)).unwrap()
}

/// A page says how many events it looked at, so that nobody takes a part for the whole.
pub async fn a_page_says_how_many_events_it_looked_at(subject: &Subject) {
    let outbox = subject.outbox().await;
    outbox.enqueue(&events(25)).await;
    let nobody = Filter { tenant: Some("nobody".to_owned()), ..Filter::default() };
    let page = outbox.store.events(&nobody, None, 10).await.unwrap();
    assert_eq!((page.events.len(), page.examined, page.next), (0, 25, None));
    let page = outbox.store.events(&Filter::default(), None, 10).await.unwrap();
    assert!((10..=25).contains(&page.examined), "{} looked at", page.examined);
    let page = outbox.store.events(&Filter::default(), None, 25).await.unwrap();
    assert_eq!((page.events.len(), page.examined, page.next), (25, 25, None));
}

/// Every state can be listed, and shows the events that are in it.
pub async fn every_state_can_be_listed(subject: &Subject) {
    let outbox = subject.outbox().await;
    let owner = outbox.owner().await;
    let mut expected: BTreeMap<Status, Vec<Uuid>> = BTreeMap::new();
    for _ in 0..2 {
        for (status, id) in in_every_state(&outbox, &owner).await {
            expected.entry(status).or_default().insert(0, id);
        }
    }
    for (status, expected) in expected {
        let filter = Filter { status: Some(status), ..Filter::default() };
        for limit in [1, 10] {
            let found = list(&outbox, &filter, limit).await;
            assert_eq!(ids(&found), expected, "{status}");
            assert!(found.iter().all(|record| record.status == status));
        }
    }
}

/// A row that cannot be decoded is listed with the reason.
pub async fn a_list_shows_rows_that_cannot_be_decoded(subject: &Subject) {
    let outbox = subject.outbox().await;
    let broken = PlainEvent {
        id: Uuid::now_v7(),
        payload: "{}".to_owned(),
        headers: Some("[1]".to_owned()),
        ..PlainEvent::default()
    };
    outbox.edit(Edit::Insert(&broken)).await;
    let found = list(&outbox, &Filter::default(), 10).await;
    assert_eq!(ids(&found), [broken.id]);
    assert!(found[0].content.is_err());
}

/// Lists say how large a payload is, and only the event itself has it.
pub async fn a_list_tells_how_large_a_payload_is_and_holds_none(subject: &Subject) {
    let outbox = subject.outbox().await;
    let payload = "\"ü\"".repeat(5_000);
    let large = Event::builder("Happened").aggregate("Thing", 1).raw_json(payload.clone());
    let large = large.build().unwrap();
    outbox.enqueue_one(&large).await;
    let by_hand = Uuid::now_v7();
    let four = PlainEvent { id: by_hand, payload: "four".to_owned(), ..PlainEvent::default() };
    outbox.edit(Edit::Insert(&four)).await;
    let of_aggregate = Filter { aggregate_id: Some("1".to_owned()), ..Filter::default() };
    for filter in [Filter::default(), of_aggregate] {
        for record in list(&outbox, &filter, 10).await {
            let size = if record.event_id == Some(by_hand) { 4 } else { payload.len() as u64 };
            assert_eq!(record.payload_bytes, size);
            assert!(record.content.unwrap().event.payload().is_empty());
        }
    }
    let record = outbox.record(large.id()).await;
    assert_eq!(record.payload_bytes, payload.len() as u64);
    assert_eq!(record.content.unwrap().event.payload(), payload.as_bytes());
}

/// An event that failed or is held names its destination; one to which nothing happened has none.
pub async fn an_event_that_failed_names_its_destination(subject: &Subject) {
    let outbox = subject.outbox().await;
    let mut owner = outbox.owner().await;
    outbox.enqueue(&[event(1), event(1), event(2), event(3)]).await;
    let rows = owner.poll().await;
    owner.settle(&[retry(&rows[0], 1, HOUR), held(&rows[1]), dead(&rows[2])]).await;
    for record in list(&outbox, &Filter::default(), 10).await {
        let untouched = record.sequence == rows[3].sequence;
        assert_eq!(record.destination.is_none(), untouched, "{record:?}");
    }
}

/// Every event is counted once, in its state; what is finished well is not counted.
pub async fn every_pending_event_is_counted_once(subject: &Subject) {
    let outbox = subject.outbox().await;
    assert_eq!(outbox.store.counts(u64::MAX).await.unwrap(), Counts::default());
    let owner = outbox.owner().await;
    for (times, status) in [(1, Status::New), (2, Status::Sending), (3, Status::Retry)] {
        for _ in 0..times {
            in_state(&outbox, &owner, status).await;
        }
    }
    for (times, status) in [(4, Status::Dead), (5, Status::Sent), (6, Status::Discarded)] {
        for _ in 0..times {
            in_state(&outbox, &owner, status).await;
        }
    }
    let expected = Counts { new: 1, held: 0, sending: 2, retry: 3, dead: 4, estimated: false };
    assert_eq!(outbox.store.counts(u64::MAX).await.unwrap(), expected);
    assert_eq!(outbox.store.count_sent().await.unwrap(), 5);
}

/// What waits behind every owner's mark is still counted, and only once.
pub async fn what_waits_behind_the_marks_is_counted_once(subject: &Subject) {
    let outbox = subject.outbox().await;
    let mut owner = outbox.owner().await;
    outbox.enqueue(&events(6)).await;
    let rows = owner.poll().await;
    owner
        .settle(&[
            sent(&rows[..1]).remove(0),
            retry(&rows[1], 1, HOUR),
            held(&rows[2]),
            dead(&rows[3]),
            parked(&rows[4]),
            suspect(&rows[5], 1),
        ])
        .await;
    let expected = Counts { new: 1, held: 1, sending: 0, retry: 2, dead: 2, estimated: false };
    assert_eq!(outbox.store.counts(u64::MAX).await.unwrap(), expected);
    outbox.store.renew(&owner.relay, &owner.held, &owner.position).await.unwrap();
    assert_eq!(outbox.store.counts(u64::MAX).await.unwrap(), expected);
    outbox.enqueue(&events(2)).await;
    let delayed = Timestamp::now().checked_add(SignedDuration::from_hours(1)).unwrap();
    let delayed = Event::builder("Happened").raw_json("{}").deliver_at(delayed).build().unwrap();
    outbox.enqueue_one(&delayed).await;
    let expected = Counts { new: 4, ..expected };
    assert_eq!(outbox.store.counts(u64::MAX).await.unwrap(), expected);
    let backlog = outbox.store.counts_by_tenant(u64::MAX).await.unwrap();
    assert_eq!(backlog, TenantCounts { tenants: vec![part(None, 6)], estimated: false });
}

fn part(tenant: Option<&str>, events: u64) -> TenantBacklog {
    TenantBacklog { tenant: tenant.map(str::to_owned), events }
}

/// Up to the cap counts are exact; beyond it they say so, and are no less than the cap.
pub async fn counts_beyond_the_cap_are_estimates(subject: &Subject) {
    let outbox = subject.outbox().await;
    outbox.enqueue(&events(6)).await;
    let counts = outbox.store.counts(6).await.unwrap();
    assert_eq!(counts, Counts { new: 6, ..Counts::default() });
    let counts = outbox.store.counts(4).await.unwrap();
    assert!(counts.estimated && counts.new >= 5, "{counts:?}");
    assert!(!outbox.store.counts_by_tenant(6).await.unwrap().estimated);
    assert!(outbox.store.counts_by_tenant(4).await.unwrap().estimated);

    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    owner.settle(&rows.iter().map(dead).collect::<Vec<_>>()).await;
    assert_eq!(outbox.store.counts(6).await.unwrap(), Counts { dead: 6, ..Counts::default() });
    assert!(outbox.store.counts(4).await.unwrap().estimated);
}

/// Whoever is held can ask by whom; whoever is not is held by nobody.
pub async fn a_held_event_names_what_holds_it(subject: &Subject) {
    let outbox = subject.outbox().await;
    let mut owner = outbox.owner().await;
    outbox.enqueue(&[event(1), event(1), event(1), event(2)]).await;
    let rows = owner.poll().await;
    owner.settle(&[retry(&rows[0], 1, HOUR), held(&rows[1]), held(&rows[2])]).await;
    for row in &rows[1..3] {
        let holder = outbox.store.held_by(row.sequence).await.unwrap().unwrap();
        assert_eq!(holder.sequence, rows[0].sequence);
    }
    for row in [&rows[0], &rows[3]] {
        assert!(outbox.store.held_by(row.sequence).await.unwrap().is_none());
    }
    owner.settle(&[parked(&rows[0])]).await;
    let holder = outbox.store.held_by(rows[1].sequence).await.unwrap().unwrap();
    assert_eq!((holder.sequence, holder.status), (rows[0].sequence, Status::Dead));
}

/// The backlog is told per tenant, largest first; what is finished or dead is none.
pub async fn the_backlog_is_told_per_tenant(subject: &Subject) {
    let outbox = subject.outbox().await;
    let of = |tenant: &str| {
        let event = Event::builder("Happened").tenant(tenant).aggregate("Thing", Uuid::now_v7());
        event.raw_json("{}").build().unwrap()
    };
    let all = [of("a"), of("b"), of("b"), of("b"), of("b"), event(1), event(2), of("gone")];
    outbox.enqueue(&all).await;
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    owner.settle(&[dead(&rows[1]), retry(&rows[2], 1, HOUR), sent(&rows[7..]).remove(0)]).await;
    let backlog = outbox.store.counts_by_tenant(u64::MAX).await.unwrap();
    let expected = vec![part(Some("b"), 3), part(None, 2), part(Some("a"), 1)];
    assert_eq!(backlog, TenantCounts { tenants: expected, estimated: false });
}

/// The oldest event that could go and has not is what lags.
pub async fn the_oldest_pending_event_tells_the_lag(subject: &Subject) {
    let outbox = subject.outbox().await;
    assert_eq!(outbox.store.oldest_pending().await.unwrap(), None);
    let enqueued = outbox.enqueue(&events(5)).await;
    let lag = outbox.store.oldest_pending().await.unwrap().unwrap();
    assert!(lag < HOUR, "{lag:?}");
    for enqueued in &enqueued[..4] {
        outbox.age(enqueued.id, 48).await;
    }
    let lag = outbox.store.oldest_pending().await.unwrap().unwrap();
    assert!(lag > 47 * HOUR && lag < 49 * HOUR, "{lag:?}");

    // What is sent, dead, waits for its time or for its lane could not go now.
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    owner
        .settle(&[
            sent(&rows[..1]).remove(0),
            dead(&rows[1]),
            retry(&rows[2], 1, HOUR),
            held(&rows[3]),
        ])
        .await;
    let lag = outbox.store.oldest_pending().await.unwrap().unwrap();
    assert!(lag < HOUR, "{lag:?}");
    owner.settle(&sent(&rows[4..])).await;
    assert_eq!(outbox.store.oldest_pending().await.unwrap(), None);
}

/// A delayed event lags from the time at which it fell due.
pub async fn a_delayed_event_lags_from_its_own_time(subject: &Subject) {
    let outbox = subject.outbox().await;
    let delayed = |hours: i64| {
        let at = Timestamp::now().checked_add(SignedDuration::from_hours(hours)).unwrap();
        Event::builder("Happened").raw_json("{}").deliver_at(at).build().unwrap()
    };
    let future = delayed(5);
    outbox.enqueue_one(&future).await;
    outbox.age(future.id(), 48).await;
    assert_eq!(outbox.store.oldest_pending().await.unwrap(), None);
    let past = delayed(-5);
    outbox.enqueue_one(&past).await;
    outbox.age(past.id(), 48).await;
    let lag = outbox.store.oldest_pending().await.unwrap().unwrap();
    assert!(lag > 4 * HOUR && lag < 6 * HOUR, "{lag:?}");
}

/// Shards show their owner, their epoch and their mark.
pub async fn shards_show_owner_epoch_and_mark(subject: &Subject) {
    let outbox = subject.outbox().await;
    let mut owner = outbox.owner().await;
    outbox.enqueue(&events(3)).await;
    owner.poll().await;
    outbox.store.renew(&owner.relay, &owner.held, &owner.position).await.unwrap();
    let shards = outbox.store.shards().await.unwrap();
    assert_eq!(shards.len(), owner.held.len());
    for (shard, held) in shards.iter().zip(&owner.held) {
        assert_eq!((shard.shard, shard.epoch), (held.shard, held.epoch));
        assert_eq!(shard.locked_by.as_ref(), Some(&owner.relay.owner()));
        assert_eq!(shard.mark, owner.position.sequence);
        let left = shard.locked_until.unwrap().duration_since(Timestamp::now());
        assert!(left > SignedDuration::ZERO && left < SignedDuration::from_hours(1), "{left:?}");
    }
}

/// Relays show what they reported.
pub async fn relays_show_what_they_reported(subject: &Subject) {
    let outbox = subject.outbox().await;
    let relay = relay("reporting", LONG);
    for _ in 0..2 {
        outbox.store.heartbeat(&relay, 0).await.unwrap();
    }
    let relays = outbox.store.relays().await.unwrap();
    assert_eq!(relays.len(), 1);
    let record = &relays[0];
    assert_eq!((&*record.name, &*record.owner), ("reporting", &*relay.owner()));
    assert_eq!((&*record.ordering, record.alive), ("per_key", true));
    assert!(!record.version.is_empty());
    assert!(record.started_at <= record.heartbeat_at);
}

/// A relay's open breakers are seen by all until they close.
pub async fn open_breakers_are_seen_by_all_until_they_close(subject: &Subject) {
    let outbox = subject.outbox().await;
    let relay = relay("watching", LONG);
    outbox.store.heartbeat(&relay, 0).await.unwrap();
    let open = OpenBreaker {
        destination: "ship's \"log\"".to_owned(),
        state: "open".to_owned(),
        since: Timestamp::from_second(1_700_000_000).unwrap(),
        error: "connection refused".to_owned(),
    };
    let report = Report { breakers: vec![open.clone()], stalls: Vec::new() };
    outbox.store.report_state(&relay, &report).await.unwrap();
    outbox.store.heartbeat(&relay, 1).await.unwrap();
    assert_eq!(outbox.store.relays().await.unwrap()[0].breakers, [open]);
    outbox.store.report_state(&relay, &Report::default()).await.unwrap();
    assert!(outbox.store.relays().await.unwrap()[0].breakers.is_empty());
}

/// A relay's stalls are seen by all until they end, beside its open breakers.
pub async fn stalls_are_seen_by_all_until_they_end(subject: &Subject) {
    let outbox = subject.outbox().await;
    let relay = relay("watching", LONG);
    outbox.store.heartbeat(&relay, 0).await.unwrap();
    let stall = Stall {
        reason: "not read: the cursor's \"own\" fault".to_owned(),
        events: 3,
        sequence: 7,
        event_id: Some(Uuid::now_v7().to_string()),
        since: Timestamp::from_second(1_700_000_000).unwrap(),
    };
    let report = Report { breakers: Vec::new(), stalls: vec![stall.clone()] };
    outbox.store.report_state(&relay, &report).await.unwrap();
    outbox.store.heartbeat(&relay, 1).await.unwrap();
    assert_eq!(outbox.store.relays().await.unwrap()[0].stalls, [stall]);
    outbox.store.report_state(&relay, &Report::default()).await.unwrap();
    assert!(outbox.store.relays().await.unwrap()[0].stalls.is_empty());
}

fn sequences(records: &[EventRecord]) -> Vec<i64> {
    records.iter().map(|record| record.sequence).collect()
}

/// Walks over all that is overdue, so many rows at a time.
async fn overdue(outbox: &Outbox, examine: usize, age: Duration) -> Vec<i64> {
    let (mut found, mut after) = (Vec::new(), 0);
    for _ in 0..1_000 {
        let Overdue { events, next } = outbox.store.overdue(after, examine, age).await.unwrap();
        assert!(events.len() <= Overdue::MOST);
        found.extend(sequences(&events));
        let Some(next) = next else { return found };
        assert!(next > after, "the walk stands at {after}");
        after = next;
    }
    panic!("the pages never end");
}

/// Every event that has been due for long enough is found, in pages of any size; what is settled, young,
/// waits for its time or is under a row lease is not.
pub async fn overdue_events_are_found_in_pages_and_no_others(subject: &Subject) {
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&events(260)).await;
    for one in &enqueued[..250] {
        outbox.age(one.id, 48).await;
    }
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    let (first, second) = (rows[3].sequence, rows[4].sequence);
    owner
        .settle(&[
            sent(&rows[..1]).remove(0),
            dead(&rows[1]),
            retry(&rows[2], 1, HOUR),
            retry(&rows[3], 1, Duration::ZERO),
        ])
        .await;
    let claimer = outbox.claimer("claimer");
    let claimed = outbox.store.claim_hot(&claimer.relay, &claimer.lease, &[second]).await;
    assert_eq!(claimed.unwrap().len(), 1);
    let expected: Vec<i64> = enqueued[5..250].iter().map(|one| one.sequence).collect();
    for examine in [7, 100, 5_000] {
        assert_eq!(overdue(&outbox, examine, HOUR).await, expected, "{examine} at a time");
    }
    assert!(overdue(&outbox, 100, 72 * HOUR).await.is_empty());
    // The retry fell due only now, however old the event is.
    let now = overdue(&outbox, 100, Duration::ZERO).await;
    assert!(now.contains(&first) && now.len() == 256, "{}", now.len());
    let asked = [rows[0].sequence, expected[0], second, expected[9]];
    let still = outbox.store.still_overdue(&asked, HOUR).await.unwrap();
    assert_eq!(sequences(&still), [expected[0], expected[9]]);
    assert!(outbox.store.still_overdue(&[], HOUR).await.unwrap().is_empty());
}

/// A held event waits for what holds it, and is overdue when that is gone.
pub async fn a_held_event_is_overdue_when_nothing_holds_it(subject: &Subject) {
    let outbox = subject.outbox().await;
    let enqueued = outbox.enqueue(&[event(1), event(1)]).await;
    for one in &enqueued {
        outbox.age(one.id, 48).await;
    }
    let mut owner = outbox.owner().await;
    let rows = owner.poll().await;
    owner.settle(&[retry(&rows[0], 1, HOUR), held(&rows[1])]).await;
    assert!(overdue(&outbox, 100, HOUR).await.is_empty());
    outbox.delete(&[rows[0].sequence]).await;
    assert_eq!(overdue(&outbox, 100, HOUR).await, [rows[1].sequence]);
    let still = outbox.store.still_overdue(&[rows[1].sequence], HOUR).await.unwrap();
    assert_eq!(sequences(&still), [rows[1].sequence]);
}
