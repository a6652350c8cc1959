//! Settings by their keys: flags over environment over file over defaults.
//!
//! Whoever reads a setting names its key here, and that makes the key known: it can stand in the
//! file and in the environment, `config show` lists it, and what nobody reads is refused with the
//! nearest key that somebody does. What is wrong is collected, so that one run tells all of it.

use std::{collections::BTreeMap, fmt::Display, str::FromStr, time::Duration};

use posthaste::Secret;

use super::{
    file::{File, expand},
    mask::masked,
    origin::Origin,
    unknown,
};
use crate::duration;

/// Other names of variables: those of the systems that operators come from, and short ones.
const OTHER_NAMES: [(&str, &str); 9] = [
    ("outbox.url", "POSTHASTE_URL"),
    ("outbox.table", "POSTHASTE_TABLE"),
    ("relay.enabled", "OUTBOX_RELAY_ENABLED"),
    ("relay.idle_interval", "OUTBOX_RELAY_POLL_INTERVAL"),
    ("relay.batch", "OUTBOX_RELAY_BATCH_SIZE"),
    ("relay.lease", "OUTBOX_RELAY_LOCK_TTL"),
    ("relay.max_attempts", "OUTBOX_RELAY_MAX_ATTEMPTS"),
    ("cleaner.enabled", "OUTBOX_CLEANER_ENABLED"),
    ("cleaner.retention", "OUTBOX_CLEANER_RETENTION"),
];

/// The variable of a key: `relay.lease` is `POSTHASTE_RELAY_LEASE`.
pub(super) fn variable(key: &str) -> String {
    let name = key.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    format!("POSTHASTE_{}", name.to_ascii_uppercase())
}

/// A setting from the command line.
#[derive(Debug, Clone)]
pub(crate) struct Flag {
    pub(crate) key: String,
    pub(crate) text: String,
    pub(crate) origin: Origin,
}

impl Flag {
    /// The one destination, called after its scheme.
    pub(crate) fn destination(url: String, origin: Origin) -> Self {
        let scheme = url.split("://").next().unwrap_or_default();
        let name = scheme.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        Self { key: format!("destinations.{name}.url"), text: url, origin }
    }
}

/// A key's effective value, for `config show`. Secrets are masked already.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) key: String,
    pub(crate) value: Option<String>,
    pub(crate) origin: Origin,
}

/// Something wrong with a key.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) key: String,
    pub(crate) text: String,
}

/// What was given for a key.
#[derive(Debug, Clone)]
pub(crate) struct Given {
    pub(crate) text: String,
    pub(crate) origin: Origin,
}

#[derive(Debug, Default)]
pub(crate) struct Reader {
    pub(super) file: File,
    pub(super) environment: BTreeMap<String, String>,
    pub(super) flags: Vec<Flag>,
    pub(crate) shown: Vec<Shown>,
    pub(crate) problems: Vec<Problem>,
    /// Keys and variables that somebody has asked for.
    pub(super) asked: Vec<String>,
    pub(super) variables: Vec<String>,
}

impl Reader {
    pub(crate) fn new(
        file: Option<File>,
        environment: BTreeMap<String, String>,
        flags: Vec<Flag>,
    ) -> Self {
        let mut reader =
            Self { file: file.unwrap_or_default(), environment, flags, ..Self::default() };
        // A list has one variable, which holds it as TOML and replaces the file's.
        for key in ["routes", "admin.tokens"] {
            reader.list_from_environment(key);
        }
        reader
    }

    fn list_from_environment(&mut self, key: &str) {
        let variable = variable(key);
        self.variables.push(variable.clone());
        let Some(text) = self.environment.get(&variable) else { return };
        let Some(list) = File::list(key, text) else {
            let text = format!("{key} ({variable}) is not a list of tables, as in [{{ … }}]");
            return self.problem(key, text);
        };
        let prefix = format!("{key}[");
        self.file.values.retain(|path, _| !path.starts_with(&prefix));
        self.file.tables.retain(|path, _| !path.starts_with(&prefix));
        self.file.tables.extend(list.tables);
        for (path, entry) in list.values {
            let origin = Origin::Environment(variable.clone());
            self.flags.push(Flag { key: path, text: entry.text, origin });
        }
    }

    /// `POSTHASTE_TO` is a destination that is called after its scheme, as `--to` is.
    pub(super) fn destination_from_environment(&mut self) {
        let name = "POSTHASTE_TO";
        let url = self.environment.get(name).filter(|url| !url.is_empty()).cloned();
        if let Some(url) = url.filter(|_| self.only_destination().is_none()) {
            self.flags.push(Flag::destination(url, Origin::Environment(name.to_owned())));
        }
    }

    /// The destination that `--to` or `POSTHASTE_TO` names: the only one then.
    pub(super) fn only_destination(&self) -> Option<String> {
        self.flags.iter().find_map(|flag| {
            let name = flag.key.strip_prefix("destinations.")?.strip_suffix(".url")?;
            Some(name.to_owned())
        })
    }

    /// The settings below this path.
    pub(crate) fn section(&mut self, path: &str) -> Section<'_> {
        Section { reader: self, path: path.to_owned(), general: None }
    }

    pub(crate) fn problem(&mut self, key: &str, text: String) {
        self.problems.push(Problem { key: key.to_owned(), text });
    }

    /// Names below a table, from the file and from variables that end in the name of a field.
    pub(crate) fn names(&self, path: &str, fields: &[&str]) -> Vec<String> {
        let mut names = self.file.names_below(path);
        let prefix = format!("{}_", variable(path));
        for rest in self.environment.keys().filter_map(|name| name.strip_prefix(&prefix)) {
            let name = fields
                .iter()
                .find_map(|field| rest.strip_suffix(&format!("_{}", field.to_ascii_uppercase())));
            let known = |name: &str| {
                names.iter().any(|other| variable(other) == format!("POSTHASTE_{name}"))
            };
            if let Some(name) = name.filter(|name| !name.is_empty() && !known(name)) {
                names.push(name.to_ascii_lowercase());
            }
        }
        names
    }

    pub(crate) fn items(&self, path: &str) -> usize {
        self.file.items(path)
    }

    /// Everything that was asked for is known now; what is left is unknown.
    pub(crate) fn refuse_unknown(&mut self) {
        let problems = unknown::keys(self).into_iter().chain(unknown::variables(self));
        // Ahead of the others: a misspelled key is often why another one is missing.
        let mut problems: Vec<Problem> = problems.collect();
        problems.append(&mut self.problems);
        self.problems = problems;
    }

    fn flag_of(&self, key: &str) -> Option<Given> {
        let flag = self.flags.iter().find(|flag| flag.key == key)?;
        Some(Given { text: flag.text.clone(), origin: flag.origin.clone() })
    }

    fn variable_of(&mut self, key: &str) -> Option<Given> {
        let others = OTHER_NAMES.iter().filter(|(of, _)| *of == key);
        let names =
            std::iter::once(variable(key)).chain(others.map(|(_, name)| (*name).to_owned()));
        let mut given = None;
        for name in names {
            let text = self.environment.get(&name).filter(|text| !text.is_empty()).cloned();
            if let (None, Some(text)) = (&given, text) {
                given = Some(Given { text, origin: Origin::Environment(name.clone()) });
            }
            self.variables.push(name);
        }
        given
    }

    fn entry_of(&mut self, key: &str) -> Option<Given> {
        self.asked.push(key.to_owned());
        let entry = self.file.values.get(key)?.clone();
        let origin = Origin::File { name: self.file.name.clone(), line: entry.line };
        match expand(&entry.text, |name| self.environment.get(name).cloned()) {
            Ok(text) => Some(Given { text, origin }),
            Err(why) => {
                self.problem(key, format!("{key} ({origin}) cannot be read: {why}"));
                None
            }
        }
    }

    fn find(&mut self, key: &str, general: Option<&str>) -> Option<Given> {
        let keys: Vec<&str> = std::iter::once(key).chain(general).collect();
        // All are asked, so that all are known.
        let flags = keys.iter().find_map(|key| self.flag_of(key));
        let variables: Vec<_> = keys.iter().map(|key| self.variable_of(key)).collect();
        let files: Vec<_> = keys.iter().map(|key| self.entry_of(key)).collect();
        flags.or(variables.into_iter().chain(files).flatten().next())
    }
}

/// The settings below one path, and where those stand that are not there.
pub(crate) struct Section<'r> {
    reader: &'r mut Reader,
    path: String,
    /// A section for all, such as `relay` for `outboxes.orders.relay`.
    general: Option<String>,
}

impl Section<'_> {
    pub(crate) fn or_in(mut self, general: &str) -> Self {
        self.general = Some(general.to_owned());
        self
    }

    /// A section below this one, with the same general ones.
    pub(crate) fn below(&mut self, name: &str) -> Section<'_> {
        let general = self.general.as_ref().map(|general| format!("{general}.{name}"));
        Section { path: self.key(name), reader: self.reader, general }
    }

    pub(crate) fn key(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    pub(crate) fn problem(&mut self, name: &str, text: String) {
        let key = self.key(name);
        self.reader.problem(&key, text);
    }

    pub(crate) fn given(&mut self, name: &str) -> Option<Given> {
        let general = self.general.as_ref().map(|general| format!("{general}.{name}"));
        self.reader.find(&self.key(name), general.as_deref())
    }

    pub(crate) fn show(&mut self, name: &str, value: Option<String>, origin: Origin) {
        let key = self.key(name);
        self.reader.shown.push(Shown { key, value, origin });
    }

    /// Reads a value; what cannot be read is a problem, and the default stands in for it.
    fn read<T>(
        &mut self,
        name: &str,
        read: impl Fn(&str) -> Result<T, String>,
        show: impl Fn(&T) -> String,
    ) -> Option<T> {
        let given = self.given(name)?;
        match read(&given.text) {
            Ok(value) => {
                self.show(name, Some(show(&value)), given.origin);
                Some(value)
            }
            Err(why) => {
                let key = self.key(name);
                self.problem(name, format!("{key} ({}): {why}", given.origin));
                None
            }
        }
    }

    fn or_default<T>(&mut self, name: &str, value: Option<T>, default: T, shown: String) -> T {
        value.unwrap_or_else(|| {
            self.show(name, Some(shown), Origin::Default);
            default
        })
    }

    fn optional<T>(&mut self, name: &str, value: Option<T>) -> Option<T> {
        if value.is_none() {
            self.show(name, None, Origin::Default);
        }
        value
    }

    pub(crate) fn text(&mut self, name: &str) -> Option<String> {
        let value = self.read(name, |text| Ok(text.to_owned()), Clone::clone);
        self.optional(name, value)
    }

    pub(crate) fn text_or(&mut self, name: &str, default: &str) -> String {
        let value = self.read(name, |text| Ok(text.to_owned()), Clone::clone);
        self.or_default(name, value, default.to_owned(), default.to_owned())
    }

    /// A sentence about several keys, with where each of them stands.
    pub(crate) fn with_origins(&self, sentence: &str) -> String {
        let words: Vec<&str> =
            sentence.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
        let origins: Vec<String> = self
            .reader
            .shown
            .iter()
            .filter(|shown| {
                shown.key.strip_prefix(&self.path).is_some_and(|rest| {
                    rest.strip_prefix('.').is_some_and(|name| words.contains(&name))
                })
            })
            .map(|shown| format!("{} from {}", shown.key, shown.origin))
            .collect();
        if origins.is_empty() {
            return format!("[{}] {sentence}", self.path);
        }
        format!("[{}] {sentence} ({})", self.path, origins.join(", "))
    }

    /// Anything that is read from a text and names what it accepts when it refuses.
    pub(crate) fn parsed<T>(&mut self, name: &str, default: T) -> T
    where
        T: FromStr + Display,
        T::Err: Display,
    {
        let read = |text: &str| text.parse().map_err(|error: T::Err| error.to_string());
        let value = self.read(name, read, T::to_string);
        let shown = default.to_string();
        self.or_default(name, value, default, shown)
    }

    /// One of these words.
    pub(crate) fn choice<T: Copy>(&mut self, name: &str, words: &[(&'static str, T)]) -> T {
        let accepted: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let read = |text: &str| {
            let found = words.iter().find(|(word, _)| *word == text).copied();
            found.ok_or_else(|| format!("{text:?} is not known; use {}", accepted.join(" or ")))
        };
        let value = self.read(name, read, |(word, _)| (*word).to_owned());
        self.or_default(name, value, words[0], words[0].0.to_owned()).1
    }

    pub(crate) fn yes_or_no(&mut self, name: &str, default: bool) -> bool {
        let read = |text: &str| match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Ok(true),
            "false" | "no" | "off" | "0" => Ok(false),
            _ => Err(format!("{text:?} is neither true nor false")),
        };
        let value = self.read(name, read, bool::to_string);
        self.or_default(name, value, default, default.to_string())
    }

    pub(crate) fn number(&mut self, name: &str, default: usize) -> usize {
        let value = self.read(name, number, usize::to_string);
        self.or_default(name, value, default, default.to_string())
    }

    pub(crate) fn maybe_number(&mut self, name: &str) -> Option<usize> {
        let value = self.read(name, number, usize::to_string);
        self.optional(name, value)
    }

    pub(crate) fn duration(&mut self, name: &str, default: Duration) -> Duration {
        let value = self.read(name, duration::parse, |value| duration::exact(*value));
        self.or_default(name, value, default, duration::exact(default))
    }

    pub(crate) fn maybe_duration(&mut self, name: &str) -> Option<Duration> {
        let value = self.read(name, duration::parse, |value| duration::exact(*value));
        self.optional(name, value)
    }

    pub(crate) fn maybe_size(&mut self, name: &str) -> Option<usize> {
        let value = self.read(name, super::size::parse, |size| format!("{size} B"));
        self.optional(name, value)
    }

    /// A URL or a token: here, or in the file that `NAME_file` names. Never both at one place.
    pub(crate) fn secret(&mut self, name: &str) -> Option<(Secret, Origin)> {
        let file_key = format!("{name}_file");
        let (here, there) = (self.given(name), self.given(&file_key));
        let rank = |given: &Option<Given>| match given.as_ref().map(|given| given.origin.layer()) {
            Some("flag") => 3,
            Some("env") => 2,
            Some(_) => 1,
            None => 0,
        };
        if here.is_some() && rank(&here) == rank(&there) {
            let key = self.key(name);
            self.problem(name, format!("{key} and {key}_file are both set; leave one out"));
        }
        if rank(&here) >= rank(&there) {
            let Some(Given { text, origin }) = here else {
                self.show(name, None, Origin::Default);
                return None;
            };
            self.show(name, Some(masked(&text)), origin.clone());
            return Some((Secret::new(text), origin));
        }
        let Given { text: path, origin } = there?;
        self.show(&file_key, Some(path.clone()), origin.clone());
        match Secret::from_file(&path) {
            Ok(secret) => Some((secret, origin)),
            Err(error) => {
                let key = self.key(&file_key);
                self.problem(&file_key, format!("{key} ({origin}): {error}"));
                None
            }
        }
    }

    /// A table of texts, such as `topics = { Order = "orders" }`.
    pub(crate) fn map(&mut self, name: &str) -> BTreeMap<String, String> {
        let prefix = format!("{}.", self.key(name));
        let in_file = self.reader.file.values.keys().cloned();
        let in_flags = self.reader.flags.iter().map(|flag| flag.key.clone());
        let keys: Vec<String> =
            in_file.chain(in_flags).filter(|key| key.starts_with(&prefix)).collect();
        let mut map = BTreeMap::new();
        for key in keys {
            let inner = &key[prefix.len()..];
            let name = format!("{name}.{inner}");
            if let Some(value) = self.read(&name, |text| Ok(text.to_owned()), Clone::clone) {
                map.insert(inner.to_owned(), value);
            }
        }
        self.reader.asked.push(self.key(name));
        map
    }
}

fn number(text: &str) -> Result<usize, String> {
    let plain = text.replace('_', "");
    plain.parse().map_err(|_| format!("{text:?} is not a number of at least 0"))
}
