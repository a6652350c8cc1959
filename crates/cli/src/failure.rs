//! Errors as one line on standard error: what is wrong, what to do, and never a password.

use std::{error::Error, process::ExitCode};

/// Prints a failure of a command. Gives exit code 1.
pub(crate) fn report(error: &dyn Error, url: Option<&str>) -> ExitCode {
    eprintln!("error: {}", line(error, url));
    ExitCode::FAILURE
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
fn line(error: &dyn Error, url: Option<&str>) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = hide_password(&error.to_string(), url);
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

/// Takes the URL's password out of a text, as it stands in the URL and decoded.
fn hide_password(text: &str, url: Option<&str>) -> String {
    let passwords = url.map(passwords).unwrap_or_default();
    passwords.iter().fold(text.to_owned(), |text, password| text.replace(password, "***"))
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
        assert_eq!(line(&error, None), "writing failed: disk is full");
        let error = posthaste::Error::invalid("failed: disk is full").with_source(cause());
        assert_eq!(line(&error, None), "failed: disk is full");
    }

    #[test]
    fn an_error_of_several_lines_becomes_one() {
        assert_eq!(line(&posthaste::Error::invalid("a\n  b\r\nc"), None), "a b c");
    }

    #[test]
    fn a_password_is_hidden_as_written_and_decoded() {
        for url in ["postgres://u:p%40ss@h/db", "postgres://h/db?user=u&password=p%40ss"] {
            let text = hide_password("no p@ss and no p%40ss here", Some(url));
            assert_eq!(text, "no *** and no *** here", "{url}");
        }
        assert_eq!(hide_password("as it is", Some("sqlite:a.db")), "as it is");
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
