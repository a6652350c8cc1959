//! The judgement of a run: what the checker says, and two stricter questions.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    path::Path,
};

use posthaste_testkit::checker::{Checker, Committed, Delivered, Report};
use uuid::Uuid;

use crate::journal::{self, End, Fact, Step, Transaction};

/// What the journals say.
#[derive(Debug, Default)]
pub struct Judgement {
    /// Of writers.
    pub transactions: Vec<Transaction>,
    /// Of relays.
    pub facts: Vec<Fact>,
    /// When which relay was killed.
    kills: Vec<(String, u64)>,
    /// The most that a relay had delivered and not settled.
    each: usize,
    /// Relays that lost a lease although nobody killed them: the machine stood still.
    stalled: HashSet<String>,
    /// The event that is meant to end dead.
    dead: HashSet<Uuid>,
    order: Order,
}

/// What keeps its order with what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Order {
    #[default]
    PerKey,
    Global,
    None,
}

impl Judgement {
    /// From the journals of all writers and of all relays.
    pub fn of(commits: &Path, deliveries: &Path) -> Self {
        let transactions = journal::transactions(commits);
        let mut facts = journal::facts(deliveries);
        facts.sort_by_key(|fact| fact.at);
        Self { transactions, facts, ..Self::default() }
    }

    /// A relay was killed at this time, with at most `each` events delivered and not settled.
    pub fn killed(&mut self, relay: &str, at: u64, each: usize) {
        self.kills.push((relay.to_owned(), at));
        self.each = self.each.max(each);
    }

    /// A relay was paused beyond its lease, with at most `each` events in hand: what it had comes by
    /// another meanwhile, and by itself when it goes on.
    pub fn paused(&mut self, relay: &str, paused: u64, resumed: u64, each: usize) {
        self.killed(relay, paused, each);
        self.killed(relay, resumed, each);
    }

    /// A relay lost leases because the machine was too busy to let it run.
    pub fn stalled(&mut self, relay: &str) {
        self.stalled.insert(relay.to_owned());
    }

    /// All events share one order, whatever their keys.
    pub fn one_order(&mut self) {
        self.order = Order::Global;
    }

    /// No order was promised.
    pub fn unordered(&mut self) {
        self.order = Order::None;
    }

    /// This event is meant to end dead.
    pub fn ends_dead(&mut self, id: Uuid) {
        self.dead.insert(id);
    }

    /// How many different events were delivered.
    pub fn delivered(&self) -> usize {
        self.steps(Step::Delivered).map(|fact| fact.id).collect::<HashSet<_>>().len()
    }

    /// The facts of one kind, in the order of time.
    pub fn steps(&self, step: Step) -> impl Iterator<Item = &Fact> {
        self.facts.iter().filter(move |fact| fact.step == step)
    }

    /// The verdict.
    pub fn verdict(&self) -> Verdict {
        let committed = self.committed();
        let mut checker = Checker::new();
        for event in &committed {
            checker.committed(event.clone());
        }
        for fact in self.steps(Step::Delivered) {
            checker.delivered(Delivered::new(fact.id, fact.at, &*fact.relay));
        }
        if self.stalled.is_empty() {
            checker.repeats_after_kills(self.kills.iter().map(|(_, at)| *at), self.each);
        } else {
            checker.repeats_anywhere();
        }
        let report = checker.check();
        let ends = |wanted: fn(End) -> bool| {
            self.transactions.iter().filter(|transaction| wanted(transaction.end)).count()
        };
        Verdict {
            report,
            overtaken: self.overtaken(&committed),
            repeated: self.unexplained_repeats(),
            failed: self.steps(Step::Failed).count(),
            rolled_back: ends(|end| end == End::RolledBack),
            unknown: ends(|end| end == End::Unknown),
            kills: self.kills.len(),
            stalled: self.stalled.len(),
        }
    }

    fn committed(&self) -> Vec<Committed> {
        let mut committed = Vec::new();
        for transaction in &self.transactions {
            for (id, key) in &transaction.events {
                let mut event = match transaction.end {
                    End::Committed(at) => Committed::new(*id, transaction.began, at),
                    End::Unknown => Committed::unacknowledged(*id, transaction.began),
                    // Not committed: its delivery would be a phantom.
                    End::RolledBack => continue,
                };
                event.key = match self.order {
                    Order::PerKey => Some(key.clone()),
                    Order::Global => Some(String::new()),
                    Order::None => None,
                };
                event.may_be_missing |= self.dead.contains(id);
                committed.push(event);
            }
        }
        committed
    }

    /// Promise 3 to the letter: the checker compares deliveries; here no *hand-over* of an event,
    /// even a failed one, may come before the acknowledgement of what had to come first.
    fn overtaken(&self, committed: &[Committed]) -> Vec<String> {
        let mut handed: HashMap<Uuid, &Fact> = HashMap::new();
        let mut delivered: HashMap<Uuid, &Fact> = HashMap::new();
        for fact in &self.facts {
            match fact.step {
                Step::Handed => handed.entry(fact.id).or_insert(fact),
                Step::Delivered => delivered.entry(fact.id).or_insert(fact),
                Step::Failed | Step::Aborting => continue,
            };
        }
        let mut keys: HashMap<&str, Vec<&Committed>> = HashMap::new();
        for event in committed {
            if let Some(key) = &event.key {
                keys.entry(key).or_default().push(event);
            }
        }
        let mut found = Vec::new();
        for events in keys.values_mut() {
            events.sort_by_key(|event| event.began);
            let mut acknowledged: Vec<(u64, &Fact)> = events
                .iter()
                .filter_map(|event| Some((event.acknowledged?, *delivered.get(&event.id)?)))
                .collect();
            acknowledged.sort_by_key(|(at, _)| *at);
            let mut earlier = acknowledged.into_iter().peekable();
            let mut last: Option<&Fact> = None;
            for event in events {
                while let Some((_, fact)) = earlier.next_if(|(at, _)| *at < event.began) {
                    if last.is_none_or(|last| fact.at > last.at) {
                        last = Some(fact);
                    }
                }
                if let (Some(last), Some(fact)) = (last, handed.get(&event.id))
                    && fact.at < last.at
                {
                    found.push(format!(
                        "{} of key {} was handed over by {} at {}, before {} was delivered by {} at {}",
                        fact.id, fact.key, fact.relay, fact.at, last.id, last.relay, last.at
                    ));
                }
            }
        }
        found
    }

    /// Repeats of deliveries by a relay that was neither killed in between nor stalled.
    fn unexplained_repeats(&self) -> Vec<String> {
        let mut last: HashMap<Uuid, &Fact> = HashMap::new();
        let mut found = Vec::new();
        for fact in self.steps(Step::Delivered) {
            let Some(before) = last.insert(fact.id, fact) else { continue };
            let killed = self
                .kills
                .iter()
                .any(|(relay, at)| *relay == before.relay && (before.at..=fact.at).contains(at));
            // A relay that was paused delivers late what another has delivered meanwhile.
            let late = self.kills.iter().any(|(relay, at)| *relay == fact.relay && *at <= fact.at);
            let stalled =
                self.stalled.contains(&before.relay) || self.stalled.contains(&fact.relay);
            if !killed && !late && !stalled {
                found.push(format!(
                    "{} of key {} came by {} at {} and again by {} at {}, and no kill explains it",
                    fact.id, fact.key, before.relay, before.at, fact.relay, fact.at
                ));
            }
        }
        found
    }
}

/// What was found.
#[derive(Debug)]
pub struct Verdict {
    /// The checker's report.
    pub report: Report,
    /// Handed over before what had to be acknowledged first.
    pub overtaken: Vec<String>,
    /// Delivered again without a reason.
    pub repeated: Vec<String>,
    /// Hand-overs that failed, as they were meant to.
    pub failed: usize,
    /// Transactions that were rolled back.
    pub rolled_back: usize,
    /// Transactions whose end nobody knows.
    pub unknown: usize,
    /// Kills.
    pub kills: usize,
    /// Relays that lost leases without being killed.
    pub stalled: usize,
}

impl Verdict {
    /// Prints the verdict, and panics unless it is clean.
    ///
    /// # Panics
    ///
    /// When anything was lost, reordered, repeated without a reason, or made up.
    #[track_caller]
    pub fn assert_clean(&self) {
        println!("{self}");
        assert!(
            self.report.is_clean() && self.overtaken.is_empty() && self.repeated.is_empty(),
            "a promise was broken: {self}"
        );
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.report)?;
        writeln!(
            f,
            "{} hand-overs failed, {} transactions rolled back, {} with unknown end, {} kills, {} \
             stalled relays",
            self.failed, self.rolled_back, self.unknown, self.kills, self.stalled
        )?;
        for (kind, all) in [("overtaken", &self.overtaken), ("unexplained", &self.repeated)] {
            if !all.is_empty() {
                writeln!(f, "{kind}: {}", all.len())?;
            }
            for one in all.iter().take(10) {
                writeln!(f, "  {one}")?;
            }
        }
        Ok(())
    }
}
