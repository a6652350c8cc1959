//! The TOML file, flat: every key with its whole path, its text and its line.

use std::{collections::BTreeMap, path::Path};

use posthaste::{Error, ErrorKind, Result};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// A value as it stands in the file. Numbers and booleans are text too: a variable may stand for
/// them, and whoever asks for the key knows what it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) text: String,
    pub(crate) line: usize,
}

/// A file taken apart. A list's items are numbered from 1: `routes[1].to`.
#[derive(Debug, Default)]
pub(crate) struct File {
    /// As messages name it.
    pub(crate) name: String,
    pub(crate) values: BTreeMap<String, Entry>,
    /// Tables and items of lists, which may be empty, with their lines.
    pub(crate) tables: BTreeMap<String, usize>,
}

impl File {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| {
            let kind = match error.kind() {
                std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                _ => ErrorKind::Invalid,
            };
            Error::new(kind, format!("configuration {name} cannot be read: {}", error.kind()))
        })?;
        Self::parse(name, &text)
    }

    pub(crate) fn parse(name: String, text: &str) -> Result<Self> {
        let table = DeTable::parse(text).map_err(|error| {
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            // Its full text would quote the line, and with it a password.
            Error::invalid(format!("{name}:{line}: {}", error.message()))
        })?;
        let mut file = Self { name, ..Self::default() };
        file.add_table(text, "", table.get_ref());
        Ok(file)
    }

    /// A list of tables that stands in a variable or a flag: `[{ to = "events" }]`.
    pub(crate) fn list(key: &str, text: &str) -> Option<Self> {
        let value = DeValue::parse(text).ok()?;
        value.get_ref().as_array()?;
        let mut file = Self::default();
        file.add(text, key.to_owned(), &value);
        Some(file)
    }

    fn add_table(&mut self, source: &str, path: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let key = key.get_ref();
            let path = if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
            self.add(source, path, value);
        }
    }

    fn add(&mut self, source: &str, path: String, value: &Spanned<DeValue<'_>>) {
        let line = line_of(source, value.span().start);
        let text = match value.get_ref() {
            DeValue::Table(table) => {
                self.add_table(source, &path, table);
                self.tables.insert(path, line);
                return;
            }
            DeValue::Array(items) => {
                for (number, item) in (1..).zip(items) {
                    self.add(source, format!("{path}[{number}]"), item);
                }
                self.tables.insert(path, line);
                return;
            }
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().to_owned(),
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
                .map_or_else(|_| number.as_str().to_owned(), |number| number.to_string()),
            DeValue::Float(number) => number.as_str().to_owned(),
            DeValue::Boolean(yes) => yes.to_string(),
            DeValue::Datetime(time) => time.to_string(),
        };
        self.values.insert(path, Entry { text, line });
    }

    /// The names that stand directly below a table.
    pub(crate) fn names_below(&self, path: &str) -> Vec<String> {
        let prefix = format!("{path}.");
        let mut names: Vec<String> = self
            .tables
            .keys()
            .filter_map(|key| key.strip_prefix(&prefix))
            .filter(|name| !name.contains(['.', '[']))
            .map(str::to_owned)
            .collect();
        names.dedup();
        names
    }

    /// How many items a list has.
    pub(crate) fn items(&self, path: &str) -> usize {
        let mut items = 0;
        while self.holds(&format!("{path}[{}]", items + 1)) {
            items += 1;
        }
        items
    }

    fn holds(&self, path: &str) -> bool {
        self.tables.contains_key(path) || self.values.contains_key(path)
    }
}

fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count() + 1
}

/// Puts variables of the environment where `${NAME}` stands; `$${` is a plain `${`. The error is
/// the variable that is not set, or what is not closed.
pub(crate) fn expand(
    text: &str,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        if rest[..at].ends_with('$') {
            out += &rest[..at - 1];
            out += "${";
            rest = &rest[at + 2..];
            continue;
        }
        out += &rest[..at];
        let (name, behind) =
            rest[at + 2..].split_once('}').ok_or("it opens ${ and does not close it")?;
        out += &variable(name).ok_or_else(|| format!("the variable {name} is not set"))?;
        rest = behind;
    }
    Ok(out + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_its_path_and_its_line() {
        let text = "[relay]\nbatch = 0x10\nbackoff = { base = \"1s\" }\n\n[[routes]]\nto = \"a\"\n\
                    [[routes]]\n[outboxes.orders]\n";
        let file = File::parse("f".into(), text).unwrap();
        let entry = |text: &str, line| Some(Entry { text: text.into(), line });
        assert_eq!(file.values.get("relay.batch").cloned(), entry("16", 2));
        assert_eq!(file.values.get("relay.backoff.base").cloned(), entry("1s", 3));
        assert_eq!(file.values.get("routes[1].to").cloned(), entry("a", 6));
        assert_eq!(
            (file.items("routes"), file.names_below("outboxes")),
            (2, vec!["orders".into()])
        );
    }

    #[test]
    fn what_is_no_toml_is_told_with_its_line_and_without_its_text() {
        let error = File::parse("f".into(), "a = 1\nurl = \"postgres://u:s3cret@h\n").unwrap_err();
        let error = error.to_string();
        assert!(error.starts_with("f:2: ") && !error.contains("s3cret"), "{error}");
    }

    #[test]
    fn variables_are_put_in_their_places() {
        let variable = |name: &str| (name == "A").then(|| "x".to_owned());
        assert_eq!(expand("${A}-$${A}-${A}", variable).unwrap(), "x-${A}-x");
        assert!(expand("${B}", variable).unwrap_err().contains("B is not set"));
        assert!(expand("a${A", variable).unwrap_err().contains("not close"));
    }
}
