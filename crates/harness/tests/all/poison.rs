//! An event that kills its process ends dead, and takes no other with it.

use std::collections::HashSet;

use posthaste::{Status, store::RelayOrdering};
use posthaste_harness::{
    clock,
    fixture::{Fixture, event},
    journal::Step,
    on_databases,
    options::RelayOptions,
};
use uuid::Uuid;

on_databases! {
    postgres, Postgres:
        an_event_that_kills_its_process_ends_dead_and_all_others_arrive_in_order,
        an_event_that_kills_its_process_ends_dead_and_all_others_arrive_under_row_leases;
    mariadb, MariaDb:
        an_event_that_kills_its_process_ends_dead_and_all_others_arrive_in_order;
    sqlite, Sqlite:
        an_event_that_kills_its_process_ends_dead_and_all_others_arrive_in_order,
        an_event_that_kills_its_process_ends_dead_and_all_others_arrive_under_row_leases;
}

async fn an_event_that_kills_its_process_ends_dead_and_all_others_arrive_in_order(on: &Fixture) {
    poison(on, RelayOrdering::PerKey).await;
}

async fn an_event_that_kills_its_process_ends_dead_and_all_others_arrive_under_row_leases(
    on: &Fixture,
) {
    poison(on, RelayOrdering::None).await;
}

/// Five events for each of thirty keys; in the middle, one of the first key's kills.
async fn fill(on: &Fixture) -> Uuid {
    let poison = event("Poison", "k0");
    let id = poison.id();
    let round = || (0..30).map(|key| event("Changed", &format!("k{key}"))).collect::<Vec<_>>();
    for events in [round(), round(), vec![poison], round(), round(), round()] {
        on.enqueue(events).await;
    }
    id
}

async fn poison(on: &Fixture, ordering: RelayOrdering) {
    let id = fill(on).await;
    let begun = clock::now();
    let mut crashes: Vec<(String, u64)> = Vec::new();
    let options = |name: &str| RelayOptions {
        ordering,
        lease: 500,
        heartbeat: 100,
        busy: 10,
        idle: 50,
        abort_on: Some("Poison".to_owned()),
        ..on.relay_options(name)
    };
    // The supervisor: starts a relay again as often as it dies.
    loop {
        let name = format!("life-{}", crashes.len() + 1);
        let mut relay = on.relay(&options(&name));
        let died = tokio::select! {
            status = relay.ended() => Some(status),
            () = on.until_drained() => None,
        };
        let Some(status) = died else {
            relay.stop().await;
            break;
        };
        assert!(!status.success(), "{relay}");
        crashes.push((name, clock::now()));
        assert!(crashes.len() < 40, "it goes on and on");
    }
    println!("{} crashes, all over after {:?}", crashes.len(), clock::since(begun));

    let record = on.event(id).await;
    println!(
        "the poison: {:?}, {} attempts, {:?}",
        record.status, record.attempts, record.last_error
    );
    assert_eq!((record.status, record.attempts), (Status::Dead, 10));
    let counts = on.store.counts(u64::MAX).await.unwrap();
    assert_eq!(counts.dead, 1, "an innocent event is dead");
    assert_eq!(on.store.count_sent().await.unwrap(), 150);

    let mut judgement = on.judge();
    let aborting: Vec<Uuid> = judgement.steps(Step::Aborting).map(|fact| fact.id).collect();
    assert_eq!(aborting.len(), crashes.len(), "every death was of the poison");
    assert_eq!(HashSet::from_iter(aborting), HashSet::from([id]));
    for (relay, at) in &crashes {
        judgement.killed(relay, *at, options("").most_in_hand());
    }
    judgement.ends_dead(id);
    if ordering == RelayOrdering::None {
        judgement.unordered();
    }
    judgement.verdict().assert_clean();
}
