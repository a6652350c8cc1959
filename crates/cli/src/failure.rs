//! Errors as one line on standard error: what is wrong, what to do, and never a password.

use std::{
    error::Error,
    process::ExitCode,
    sync::{Mutex, PoisonError},
};

use posthaste::ErrorKind;

/// URLs whose passwords a driver's message may repeat.
static URLS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Keeps the password of this URL out of everything that is reported.
pub(crate) fn keep_secret(url: &str) {
    URLS.lock().unwrap_or_else(PoisonError::into_inner).push(url.to_owned());
}

/// Prints a failure of a command, and gives the exit code that says what kind of one it is.
pub(crate) fn report(error: &posthaste::Error) -> ExitCode {
    let urls = URLS.lock().unwrap_or_else(PoisonError::into_inner);
    eprintln!("error: {}", line(error, &urls));
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
        let text = hide_passwords(&error.to_string(), urls);
        if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
        cause = error.source();
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
    let passwords = urls.iter().flat_map(|url| passwords(url));
    passwords.fold(text.to_owned(), |text, password| text.replace(&password, "***"))
}

fn passwords(url: &str) -> Vec<String> {
    let (address, parameters) = url.split_once('?').unwrap_or((url, ""));
    let in_address = address.split_once("://").and_then(|(_, rest)| {
        let (user, _) = rest.rsplit_once('@')?;
        user.split_once(':').map(|(_, password)| password)
    });
    let in_parameters = parameters.split('&').filter_map(|p| p.strip_prefix("password="));
    let mut passwords = Vec::new();
    for password in in_address.into_iter().chain(in_parameters).filter(|p| !p.is_empty()) {
        passwords.push(password.to_owned());
        passwords.push(decoded(password));
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
