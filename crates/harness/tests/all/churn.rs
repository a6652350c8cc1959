//! Eight relays, a thousand keys, a fifth of all hand-overs fail, and relays join, leave and are
//! killed at random moments: nothing is lost, reordered or made up, and nothing comes twice that no
//! kill explains.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use posthaste::{Dialect, store::RelayOrdering};
use posthaste_harness::{
    fixture::{Connections, Fixture, OpenTransaction, event, nightly, seed},
    journal::Step,
    message::Report,
    on_databases,
    options::{Path, RelayOptions, WriterOptions},
    process::Process,
};
use sqlx::Pool;
use tokio::task::JoinHandle;

on_databases! {
    postgres, Postgres:
        eight_relays_that_join_leave_and_are_killed_lose_and_reorder_nothing,
        relays_that_only_join_and_leave_deliver_everything_once,
        relays_whose_connections_are_cut_deliver_everything_once,
        relays_that_share_rows_and_are_killed_lose_nothing,
        relays_that_stand_by_and_are_killed_keep_the_order_of_all;
    mariadb, MariaDb:
        relays_that_join_leave_and_are_killed_lose_and_reorder_nothing,
        relays_that_only_join_and_leave_deliver_everything_once;
    sqlite, Sqlite:
        relays_that_join_leave_and_are_killed_lose_and_reorder_nothing,
        relays_that_only_join_and_leave_deliver_everything_once,
        relays_that_share_rows_and_are_killed_lose_nothing;
}

async fn eight_relays_that_join_leave_and_are_killed_lose_and_reorder_nothing(on: &Fixture) {
    Churn { seconds: 15, relays: 8, keys: 1_000, kills: true, ..Churn::default() }.run(on).await;
}

async fn relays_that_join_leave_and_are_killed_lose_and_reorder_nothing(on: &Fixture) {
    Churn { kills: true, ..Churn::default() }.run(on).await;
}

/// Leases are long, so that nothing but a fault can make anything come twice.
async fn relays_that_only_join_and_leave_deliver_everything_once(on: &Fixture) {
    Churn { lease: 30_000, ..Churn::default() }.run(on).await;
}

async fn relays_whose_connections_are_cut_deliver_everything_once(on: &Fixture) {
    Churn { lease: 6_000, cuts: true, ..Churn::default() }.run(on).await;
}

async fn relays_that_share_rows_and_are_killed_lose_nothing(on: &Fixture) {
    let ordering = RelayOrdering::None;
    Churn { kills: true, ordering, seconds: 5, ..Churn::default() }.run(on).await;
}

/// One event goes after the other, each a fifth of the time in vain: the wait after a failure is short,
/// or there would be nothing but waiting.
async fn relays_that_stand_by_and_are_killed_keep_the_order_of_all(on: &Fixture) {
    let ordering = RelayOrdering::Global;
    let quick = Churn { seconds: 5, keys: 50, backoff: 5, pause: 100, ..Churn::default() };
    Churn { kills: true, ordering, ..quick }.run(on).await;
}

/// A run.
struct Churn {
    /// How long relays come and go.
    seconds: u64,
    /// How many there are at most, and at the start.
    relays: usize,
    keys: u32,
    ordering: RelayOrdering,
    /// In milliseconds.
    lease: u64,
    /// The wait after a failure, in milliseconds.
    backoff: u64,
    /// That of a writer after each transaction, in milliseconds.
    pause: u64,
    /// Half of those that leave are killed, and once a writer.
    kills: bool,
    /// All connections of all processes are cut every now and then.
    cuts: bool,
}

impl Default for Churn {
    fn default() -> Self {
        Self {
            seconds: 7,
            relays: 4,
            keys: 200,
            ordering: RelayOrdering::PerKey,
            lease: 2_000,
            backoff: 30,
            pause: 20,
            kills: false,
            cuts: false,
        }
    }
}

/// What a run has come to so far.
struct Run<'a> {
    churn: Churn,
    on: &'a Fixture,
    random: fastrand::Rng,
    relays: Vec<Process>,
    started: usize,
    /// Terminated and on their way out, with their names.
    leaving: Vec<(String, JoinHandle<Report>)>,
    kills: Vec<(String, u64)>,
    /// Relays that lost a lease although nobody touched them.
    stalled: HashSet<String>,
}

impl Churn {
    async fn run(mut self, on: &Fixture) {
        if nightly() {
            self.seconds *= 10;
        }
        let random = fastrand::Rng::with_seed(seed());
        let run = Run {
            churn: self,
            on,
            random,
            relays: Vec::new(),
            started: 0,
            leaving: Vec::new(),
            kills: Vec::new(),
            stalled: HashSet::new(),
        };
        match &on.connections {
            Connections::Postgres(pool) => run.beside_an_open_transaction(pool).await,
            Connections::MySql(pool) => run.beside_an_open_transaction(pool).await,
            // There is one writer: an open transaction would stop everybody.
            Connections::Sqlite(_) => run.alone().await,
        }
    }
}

impl Run<'_> {
    /// A transaction with events of its own stays open all the time.
    async fn beside_an_open_transaction<DB: Dialect>(mut self, pool: &Pool<DB>) {
        let events = (0..20).map(|key| event("Late", &format!("k{key}"))).collect();
        let open = OpenTransaction::begin(self.on, pool, events).await;
        self.come_and_go().await;
        open.commit().await;
        self.judge().await;
    }

    async fn alone(mut self) {
        self.come_and_go().await;
        self.judge().await;
    }

    fn relay_options(&mut self, name: &str) -> RelayOptions {
        RelayOptions {
            ordering: self.churn.ordering,
            lease: self.churn.lease,
            heartbeat: 500,
            backoff: self.churn.backoff,
            fail: 0.2,
            // A fifth of a fifth …: with 10 attempts one event in 10 million would end dead.
            max_attempts: 25,
            seed: self.random.u64(..),
            ..self.on.relay_options(name)
        }
    }

    fn join(&mut self) {
        self.started += 1;
        let options = self.relay_options(&format!("relay-{}", self.started));
        let relay = self.on.relay(&options);
        self.relays.push(relay);
    }

    fn writer(&mut self, name: &str, path: Path) -> Process {
        let options = WriterOptions {
            relay: self.relay_options(name),
            path,
            keys: self.churn.keys,
            side_by_side: 3,
            pause: self.churn.pause,
            ..self.on.writer_options(name)
        };
        self.on.writer(&options)
    }

    fn leave(&mut self) {
        let mut relay = self.relays.swap_remove(self.random.usize(..self.relays.len()));
        if self.churn.kills && self.random.bool() {
            self.kill(relay);
            return;
        }
        relay.terminate();
        self.leaving.push((relay.name.clone(), tokio::spawn(relay.stopped())));
    }

    fn kill(&mut self, mut process: Process) {
        let at = process.kill();
        self.note_stall(&process.name, &process.report());
        self.kills.push((process.name.clone(), at));
    }

    /// A relay whose settles were refused has lost a lease: with nobody pausing it, because the
    /// machine was too busy.
    fn note_stall(&mut self, name: &str, report: &Report) {
        if report.stale_settles > 0 {
            println!(
                "{name} had {} settles refused: is the machine too busy?",
                report.stale_settles
            );
            let log = std::fs::read_to_string(self.on.folder.join(format!("{name}.log")));
            for line in log.unwrap_or_default().lines().filter(|line| line.contains("WARN")) {
                println!("  {line}");
            }
            self.stalled.insert(name.to_owned());
        }
    }

    /// Events of every key, one after the other, that are there before anybody delivers.
    async fn fill(&self) {
        for _ in 0..4 {
            let events = (0..self.churn.keys).map(|key| event("Early", &format!("k{key}")));
            self.on.enqueue(events.collect()).await;
        }
    }

    async fn come_and_go(&mut self) {
        self.fill().await;
        let begun = Instant::now();
        let length = Duration::from_secs(self.churn.seconds);
        for _ in 0..self.churn.relays {
            self.join();
        }
        let mut hot = self.writer("writer-hot", Path::Hot);
        let cold = self.writer("writer-cold", Path::Wake);
        let mut generation = 1;
        while begun.elapsed() < length {
            let pause = self.random.u64(50..500);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let few = self.relays.len() <= self.churn.relays / 2;
            let all = self.relays.len() >= self.churn.relays;
            if few || (!all && self.random.bool()) {
                self.join();
            } else {
                self.leave();
            }
            if self.churn.kills && self.random.u8(..20) == 0 {
                // The last commit of the killed one may have arrived, or not: nobody knows.
                generation += 1;
                let next = self.writer(&format!("writer-hot-{generation}"), Path::Hot);
                self.kill(std::mem::replace(&mut hot, next));
            }
            if self.churn.cuts && self.random.u8(..5) == 0 {
                println!("{} connections cut", self.on.cut_connections().await);
            }
        }
        if self.relays.is_empty() {
            self.join();
        }
        for writer in [hot, cold] {
            let name = writer.name.clone();
            let report = writer.stop().await;
            self.note_stall(&name, &report);
        }
    }

    async fn judge(mut self) {
        let begun = Instant::now();
        self.on.until_drained().await;
        println!("drained {:?} after the last commit", begun.elapsed());
        for (name, leaving) in std::mem::take(&mut self.leaving) {
            let report = leaving.await.expect("it left well");
            self.note_stall(&name, &report);
        }
        let (mut held, mut suspects) = (0, 0);
        for relay in std::mem::take(&mut self.relays) {
            let name = relay.name.clone();
            let report = relay.stop().await;
            held += report.held;
            suspects += report.suspects;
            self.note_stall(&name, &report);
        }

        let each = self.relay_options("").most_in_hand();
        let mut judgement = self.on.judge();
        for (relay, at) in &self.kills {
            judgement.killed(relay, *at, each);
        }
        for relay in &self.stalled {
            judgement.stalled(relay);
        }
        match self.churn.ordering {
            RelayOrdering::PerKey => {}
            RelayOrdering::Global => judgement.one_order(),
            RelayOrdering::None => judgement.unordered(),
        }
        let verdict = judgement.verdict();
        println!("{} relays were started", self.started);
        verdict.assert_clean();
        if !self.churn.kills && self.stalled.is_empty() {
            assert_eq!(verdict.report.excused, 0, "came twice although nothing was killed");
        }
        let counts = self.on.store.counts(u64::MAX).await.unwrap();
        assert_eq!(counts.dead, 0, "nothing had to die");
        assert_eq!(self.on.store.count_sent().await.unwrap(), judgement.delivered() as u64);

        // The run was what it claims to be.
        let delivered = judgement.delivered() as f64;
        let failed = verdict.failed as f64;
        assert!((0.15..0.25).contains(&(failed / (failed + delivered))), "a fifth fails");
        let busy: HashSet<&str> =
            judgement.steps(Step::Delivered).map(|fact| &*fact.relay).collect();
        println!(
            "{} processes delivered; those that were left had {held} held, {suspects} suspects",
            busy.len()
        );
        // One shard, or all of them, have one owner, and who that is, and whether it is killed, is
        // chance.
        let shared = !matches!(self.on.connections, Connections::Sqlite(_))
            && self.churn.ordering != RelayOrdering::Global;
        assert!(!shared || busy.len() > 2, "the work was shared");
        assert!(!self.churn.kills || verdict.kills > 0, "somebody was killed");
    }
}
