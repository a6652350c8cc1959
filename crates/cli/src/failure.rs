//! Errors as one line on standard error: what is wrong, what to do, and never a password.

use std::{
    error::Error,
    process::ExitCode,
    sync::{Mutex, PoisonError},
};

use posthaste::{ErrorKind, transports::log::visible};

/// URLs whose passwords a driver's message may repeat.
static URLS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Keeps the password of this URL out of everything that is reported.
pub(crate) fn keep_secret(url: &str) {
    URLS.lock().unwrap_or_else(PoisonError::into_inner).push(url.to_owned());
}

/// Prints a failure of a command, and gives the exit code that says what kind of one it is.
pub(crate) fn report(error: &posthaste::Error) -> ExitCode {
    let urls = URLS.lock().unwrap_or_else(PoisonError::into_inner);
    eprintln!("error: {}", visible(&line(error, &urls)));
    ExitCode::from(code(error.kind()))
}

/// 2: what was asked cannot be meant. 3: it is not there. 4: a rule or the operator refused it.
/// 1: it failed.
fn code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Invalid => 2,
        ErrorKind::NotFound => 3,
        ErrorKind::Refused | ErrorKind::IllegalTransition | ErrorKind::Conflict => 4,
        _ => 1,
    }
}

/// Prints what is wrong with the command line. Gives exit code 2, or 0 for help and version.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        // Nobody is left to tell when the output is closed.
        let _ = error.print();
        return ExitCode::from(error.exit_code() as u8);
    }
    eprintln!("{}", usage_line(&error.render().to_string()));
    ExitCode::from(2)
}

/// The error and its causes, each once: a cause whose text was said already adds nothing. Our own
/// message never holds the URL; a driver's may.
fn line(error: &dyn Error, urls: &[String]) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // The driver adds where in its own source the server found out.
        let of_database = error.downcast_ref().and_then(sqlx::Error::as_database_error);
        let text = of_database.map_or_else(|| error.to_string(), |of| of.message().to_owned());
        let text = hide_passwords(&text, urls);
        if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
        cause = if of_database.is_some() { None } else { error.source() };
    }
    one_line(&line)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Of clap's paragraphs the first says what is wrong, and a tip what to do.
fn usage_line(rendered: &str) -> String {
    let mut paragraphs = rendered.split("\n\n").map(one_line);
    let mut line = paragraphs.next().unwrap_or_default();
    for tip in paragraphs.filter_map(|p| p.strip_prefix("tip: ").map(str::to_owned)) {
        line = format!("{line}; {tip}");
    }
    format!("{line}; see --help")
}

/// Takes the URLs' passwords out of a text, as they stand in the URL and decoded.
fn hide_passwords(text: &str, urls: &[String]) -> String {
    let mut passwords: Vec<String> = urls.iter().flat_map(|url| passwords(url)).collect();
    // The longest first: one may be a part of another.
    passwords.sort_by_key(|password| std::cmp::Reverse(password.len()));
    passwords.iter().fold(text.to_owned(), |text, password| hide(&text, password))
}

/// A password so short is found in other words too; it is hidden where it stands alone.
const SHORT: usize = 8;

fn hide(text: &str, password: &str) -> String {
    if password.chars().count() >= SHORT {
        return text.replace(password, STARS);
    }
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(password) {
        let (before, behind) = (&rest[..at], &rest[at + password.len()..]);
        let joins = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        let before_it = before.chars().next_back().or_else(|| shown.chars().next_back());
        let alone = !joins(before_it) && !joins(behind.chars().next());
        shown += before;
        shown += if alone { STARS } else { password };
        rest = behind;
    }
    shown + rest
}

const STARS: &str = "***";

/// All that may be the password of a URL. Question marks and slashes in it may not be encoded: then it reaches
/// up to the last `@`.
fn passwords(url: &str) -> Vec<String> {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let of = |text: &str| {
        let (login, _) = text.rsplit_once('@')?;
        login.split_once(':').map(|(_, password)| password.to_owned())
    };
    let (address, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    let in_parameters = parameters
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .filter(|(name, _)| ["password", "token"].contains(name))
        .map(|(_, value)| value.to_owned());
    let found = of(address).into_iter().chain(of(rest)).chain(in_parameters);
    let mut passwords = Vec::new();
    for password in found.filter(|password| !password.is_empty()) {
        let decoded = decoded(&password);
        passwords.extend([password, decoded]);
    }
    passwords
}

/// `%40` as `@`.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        let code = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => bytes.push(*first),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_cause_is_appended_only_when_it_adds_something() {
        let cause = || io::Error::other("disk is full");
        let error = posthaste::Error::invalid("writing failed").with_source(cause());
        assert_eq!(line(&error, &[]), "writing failed: disk is full");
        let error = posthaste::Error::invalid("failed: disk is full").with_source(cause());
        assert_eq!(line(&error, &[]), "failed: disk is full");
    }

    #[test]
    fn an_error_of_several_lines_becomes_one() {
        assert_eq!(line(&posthaste::Error::invalid("a\n  b\r\nc"), &[]), "a b c");
    }

    #[test]
    fn a_password_is_hidden_as_written_and_decoded() {
        for url in ["postgres://u:p%40ss@h/db", "postgres://h/db?user=u&password=p%40ss"] {
            let text = hide_passwords("no p@ss and no p%40ss here", &[url.to_owned()]);
            assert_eq!(text, "no *** and no *** here", "{url}");
        }
        assert_eq!(hide_passwords("as it is", &["sqlite:a.db".to_owned()]), "as it is");
    }

    #[test]
    fn a_short_password_is_hidden_where_it_stands_alone() {
        let urls = ["postgres://u:b@h/db".to_owned()];
        let text = hide_passwords("the database refused b, or u:b@h", &urls);
        assert_eq!(text, "the database refused ***, or u:***@h");
        assert_eq!(hide_passwords("bb b", &urls), "bb ***");
        let long = ["postgres://u:correct-horse@h/db".to_owned()];
        assert_eq!(hide_passwords("xcorrect-horsey", &long), "x***y");
    }

    #[test]
    fn a_password_with_a_question_mark_is_hidden() {
        let urls = ["postgres://u:pa?ss@h/db".to_owned()];
        assert_eq!(hide_passwords("no pa?ss here", &urls), "no *** here");
    }

    #[test]
    fn a_usage_error_is_one_line_with_its_tip() {
        let rendered = "error: unexpected argument '--lese' found\n\n  tip: a similar argument \
                        exists: '--lease'\n\nUsage: posthaste relay\n\nFor more …";
        assert_eq!(
            usage_line(rendered),
            "error: unexpected argument '--lese' found; a similar argument exists: '--lease'; \
             see --help"
        );
    }
}
