//! What processes did, one line a fact, appended in single writes: a process that is killed leaves
//! whole lines, and they are true.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::Path,
};

use uuid::Uuid;

use crate::clock;

/// A journal that this process appends to. Several processes may share the file.
#[derive(Debug)]
pub struct Journal {
    file: File,
}

impl Journal {
    /// Opens the file, or makes it.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: OpenOptions::new().create(true).append(true).open(path)? })
    }

    /// Appends one fact with the present time.
    ///
    /// # Panics
    ///
    /// When the file cannot be written: an account with gaps proves nothing.
    pub fn write(&self, fact: &str) {
        let line = format!("{} {fact}\n", clock::now());
        let written = (&self.file).write(line.as_bytes()).expect("the journal cannot be written");
        assert_eq!(written, line.len(), "the journal took half a line");
    }
}

/// What happened to an event at its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The transport got it.
    Handed,
    /// The transport acknowledged it.
    Delivered,
    /// The transport refused it.
    Failed,
    /// The handler is about to abort the process.
    Aborting,
}

impl Step {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Handed, "handed"),
        (Self::Delivered, "delivered"),
        (Self::Failed, "failed"),
        (Self::Aborting, "aborting"),
    ];
}

/// One line of a relay.
#[derive(Debug, Clone)]
pub struct Fact {
    /// When.
    pub at: u64,
    /// What.
    pub step: Step,
    /// The event.
    pub id: Uuid,
    /// Its aggregate id, `-` when it has none.
    pub key: String,
    /// Who.
    pub relay: String,
}

impl Fact {
    /// The line that [`Journal::write`] takes.
    pub fn line(step: Step, id: Uuid, key: &str, relay: &str) -> String {
        let step = Step::ALL.iter().find(|(known, _)| *known == step).map_or("?", |(_, name)| name);
        format!("{step} {id} {key} {relay}")
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let at = words.next()?.parse().ok()?;
        let step = words.next()?;
        let (step, _) = Step::ALL.into_iter().find(|(_, name)| *name == step)?;
        Some(Self {
            at,
            step,
            id: words.next()?.parse().ok()?,
            key: words.next()?.to_owned(),
            relay: words.next()?.to_owned(),
        })
    }
}

/// Everything that relays wrote into this journal.
///
/// # Panics
///
/// When the file is not such a journal.
pub fn facts(path: &Path) -> Vec<Fact> {
    lines(path, Fact::parse)
}

/// What became of a transaction, as its writer knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum End {
    /// Nobody heard: the writer was killed, or its connection.
    #[default]
    Unknown,
    /// The commit was acknowledged.
    Committed(u64),
    /// Rolled back.
    RolledBack,
}

/// A transaction of a writer.
#[derive(Debug, Clone, Default)]
pub struct Transaction {
    /// Before the first of its events was enqueued.
    pub began: u64,
    /// Its events and their keys.
    pub events: Vec<(Uuid, String)>,
    /// What became of it.
    pub end: End,
}

/// One line of a writer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// An event is about to be enqueued.
    Began(Uuid, String),
    /// The commit was acknowledged.
    Committed,
    /// The transaction was rolled back.
    RolledBack,
}

impl Entry {
    /// The line that [`Journal::write`] takes, for this transaction.
    pub fn line(&self, transaction: Uuid) -> String {
        match self {
            Self::Began(id, key) => format!("{transaction} began {id} {key}"),
            Self::Committed => format!("{transaction} committed"),
            Self::RolledBack => format!("{transaction} rolled-back"),
        }
    }

    fn parse(line: &str) -> Option<(u64, Uuid, Self)> {
        let mut words = line.split(' ');
        let at = words.next()?.parse().ok()?;
        let transaction = words.next()?.parse().ok()?;
        let entry = match words.next()? {
            "began" => Self::Began(words.next()?.parse().ok()?, words.next()?.to_owned()),
            "committed" => Self::Committed,
            "rolled-back" => Self::RolledBack,
            _ => return None,
        };
        Some((at, transaction, entry))
    }
}

/// Every transaction of this journal.
///
/// # Panics
///
/// When the file is not such a journal.
pub fn transactions(path: &Path) -> Vec<Transaction> {
    let mut transactions: HashMap<Uuid, Transaction> = HashMap::new();
    for (at, transaction, entry) in lines(path, Entry::parse) {
        let known = transactions
            .entry(transaction)
            .or_insert_with(|| Transaction { began: at, ..Transaction::default() });
        match entry {
            Entry::Began(id, key) => known.events.push((id, key)),
            Entry::Committed => known.end = End::Committed(at),
            Entry::RolledBack => known.end = End::RolledBack,
        }
    }
    transactions.into_values().collect()
}

fn lines<T>(path: &Path, parse: impl Fn(&str) -> Option<T>) -> Vec<T> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => panic!("journal {} cannot be read: {error}", path.display()),
    };
    text.lines()
        .map(|line| {
            parse(line).unwrap_or_else(|| panic!("{} has the line {line:?}", path.display()))
        })
        .collect()
}
