//! Settings by their keys: flags over environment over file over defaults.
//!
//! Whoever reads a setting names its key here, and that makes the key known: it can stand in the
//! file and in the environment, `config show` lists it, and what nobody reads is refused with the
//! nearest key that somebody does. What is wrong is collected, so that one run tells all of it.

use std::collections::BTreeMap;

use super::{
    file::{File, expand},
    origin::Origin,
    section::Section,
    unknown,
};
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
        let scheme = match url.split_once("://") {
            Some((scheme, _)) => scheme,
            None if url == "log" => "log",
            // The key stands in errors, and the text may hold a password.
            None => "destination",
        };
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
        Section::new(self, path)
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

    pub(super) fn find(&mut self, key: &str, general: Option<&str>) -> Option<Given> {
        let keys: Vec<&str> = std::iter::once(key).chain(general).collect();
        // All are asked, so that all are known.
        let flags = keys.iter().find_map(|key| self.flag_of(key));
        let variables: Vec<_> = keys.iter().map(|key| self.variable_of(key)).collect();
        let files: Vec<_> = keys.iter().map(|key| self.entry_of(key)).collect();
        flags.or(variables.into_iter().chain(files).flatten().next())
    }
}
