//! Names that somebody has: a pause under a misspelled one holds nothing back, and looks as if it did.

use posthaste_core::{
    Error, ErrorKind, Result,
    store::{Pausable, Store},
};

/// Refuses to pause a relay or a destination of a name that nobody has, and names the nearest that somebody
/// has. Relays are those that have reported. Destinations are these, of the caller's configuration, and those
/// in trouble at a relay, which may have others in its own. `insist` tells how any name is taken.
///
/// Returns whether the name was checked: `Some(false)` where no destinations are given, because nobody here
/// can know them, and `None` for what has no such name.
pub async fn check_name(
    store: &dyn Store,
    what: &Pausable,
    destinations: &[String],
    insist: &str,
) -> Result<Option<bool>> {
    let names: Vec<String> = match what {
        Pausable::Outbox | Pausable::Key(_) => return Ok(None),
        Pausable::Destination(_) if destinations.is_empty() => return Ok(Some(false)),
        Pausable::Destination(_) => {
            let breakers = store.relays().await?.into_iter().flat_map(|relay| relay.breakers);
            let reported = breakers.map(|breaker| breaker.destination);
            destinations.iter().cloned().chain(reported).collect()
        }
        Pausable::Relay(_) => store.relays().await?.into_iter().map(|relay| relay.name).collect(),
    };
    let (kind, name) = (what.kind(), what.name());
    if names.contains(&name) {
        return Ok(Some(true));
    }
    let hint = match (nearest(&name, names.iter().map(String::as_str)), &*names) {
        (Some(near), _) => format!("did you mean {near}?"),
        (None, []) => format!("no {kind} has reported"),
        (None, names) => {
            let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
            names.sort_unstable();
            names.dedup();
            format!("there are {}", names.join(", "))
        }
    };
    let text = format!("{kind} {name:?} is not known; {hint} ({insist} takes it all the same)");
    Err(Error::new(ErrorKind::NotFound, text))
}

/// The known word that a misspelled one is most like, if one is like it.
pub fn nearest<'k>(word: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    known
        .map(|known| (strsim::damerau_levenshtein(word, known), known))
        .filter(|(distance, known)| *distance <= 3 && *distance * 3 <= known.len())
        .min()
        .map(|(_, known)| known)
}
