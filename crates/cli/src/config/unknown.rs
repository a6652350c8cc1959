//! Keys and variables that nobody reads: refused, with the nearest one that somebody does.

use posthaste_operate::nearest;

use super::{
    origin::Origin,
    reader::{Problem, Reader, variable},
};

/// The sections of the file. A variable that begins with one of them is meant for us.
const SECTIONS: [&str; 10] = [
    "outbox",
    "outboxes",
    "relay",
    "cleaner",
    "destinations",
    "routes",
    "log",
    "metrics",
    "health",
    "admin",
];

/// Keys of the file that nobody asked for.
pub(super) fn keys(reader: &Reader) -> Vec<Problem> {
    let file = &reader.file;
    let values = file.values.iter().map(|(key, entry)| (key, entry.line));
    let tables = file.tables.iter().map(|(key, line)| (key, *line));
    let unknown = values.chain(tables.filter(|(path, _)| !holds_known(reader, path)));
    let mut unknown: Vec<(usize, &String)> = unknown
        .filter(|(key, _)| !reader.asked.contains(key))
        .map(|(key, line)| (line, key))
        .collect();
    unknown.sort();
    unknown.dedup();
    // What stands in an unknown table is not told beside the table.
    let outermost = |key: &str| {
        !unknown.iter().any(|(_, other)| {
            key.strip_prefix(other.as_str()).is_some_and(|rest| rest.starts_with(['.', '[']))
        })
    };
    let outermost: Vec<_> = unknown.iter().filter(|(_, key)| outermost(key)).collect();
    outermost
        .into_iter()
        .map(|(line, key)| {
            let origin = Origin::File { name: file.name.clone(), line: *line };
            let hint = hint(reader, key);
            of_everybody(format!("{key} ({origin}) is not known; {hint}"))
        })
        .collect()
}

/// Whether somebody asked for something in this table, or it is a section that may be empty.
fn holds_known(reader: &Reader, path: &str) -> bool {
    let known =
        |asked: &String| asked.strip_prefix(path).is_some_and(|rest| rest.starts_with(['.', '[']));
    SECTIONS.contains(&path) || path == "admin.tokens" || reader.asked.iter().any(known)
}

fn hint(reader: &Reader, key: &str) -> String {
    if let Some(near) = nearest(key, reader.asked.iter().map(String::as_str).chain(SECTIONS)) {
        return format!("did you mean {near}?");
    }
    let section = key.rsplit_once('.').map(|(section, _)| section);
    let mut there: Vec<&str> = match section {
        None => SECTIONS.to_vec(),
        Some(section) => reader
            .asked
            .iter()
            .filter_map(|key| key.strip_prefix(section)?.strip_prefix('.'))
            .filter(|name| !name.contains('.'))
            .collect(),
    };
    if there.is_empty() {
        there = SECTIONS.to_vec();
    }
    there.sort_unstable();
    there.dedup();
    format!("there are {}", there.join(", "))
}

/// Variables that begin as ours do and are none.
pub(super) fn variables(reader: &Reader) -> Vec<Problem> {
    let ours = |name: &&String| {
        SECTIONS.iter().any(|section| name.starts_with(&format!("{}_", variable(section))))
    };
    let unknown = |name: &&String| !reader.variables.contains(name) && !of_a_service(name);
    reader
        .environment
        .keys()
        .filter(ours)
        .filter(unknown)
        .map(|name| {
            let near = nearest(name, reader.variables.iter().map(String::as_str));
            let hint = near.map_or_else(
                || "`posthaste config show` lists what there is".to_owned(),
                |near| format!("did you mean {near}?"),
            );
            of_everybody(format!("the variable {name} is not known; {hint}"))
        })
        .collect()
}

/// A problem of no key that anybody reads: it concerns whoever reads any.
fn of_everybody(text: String) -> Problem {
    Problem { key: String::new(), text }
}

/// Kubernetes sets such variables for a service called `posthaste-relay`; nobody meant us.
fn of_a_service(name: &str) -> bool {
    name.contains("_SERVICE_HOST") || name.contains("_SERVICE_PORT") || name.contains("_PORT")
}
