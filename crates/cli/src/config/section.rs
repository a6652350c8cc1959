//! The settings of one section: each getter reads a value, keeps where it came from, and collects what
//! is wrong.

use std::{collections::BTreeMap, fmt::Display, str::FromStr, time::Duration};

use posthaste::Secret;

use super::{
    mask::masked,
    origin::Origin,
    reader::{Given, Reader, Shown},
    size,
};
use crate::duration;

/// The settings below one path, and where those stand that are not there.
pub(crate) struct Section<'r> {
    reader: &'r mut Reader,
    path: String,
    /// A section for all, such as `relay` for `outboxes.orders.relay`.
    general: Option<String>,
}

impl<'r> Section<'r> {
    pub(super) fn new(reader: &'r mut Reader, path: &str) -> Self {
        Self { reader, path: path.to_owned(), general: None }
    }

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
        let value = self.read(name, size::parse, |size| format!("{size} B"));
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
