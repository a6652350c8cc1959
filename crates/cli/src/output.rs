//! Standard output: tables for people, JSON for programs.

use std::io::{ErrorKind as Io, IsTerminal as _, Write as _};

use comfy_table::{CellAlignment, Table, presets};
use posthaste::{
    Error, ErrorKind, Result,
    transports::log::{visible, visible_json},
};
use serde::Serialize;

/// Writes a text. What it quotes of events cannot speak to the terminal: control characters but line breaks are
/// shown as their escapes.
pub(crate) fn print(text: &str) -> Result<()> {
    print_as_is(&page(text))
}

/// Control characters as their escapes, but for line breaks.
pub(crate) fn page(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(visible).collect();
    lines.join("\n")
}

/// Writes a text with control characters of our own. A reader that has left (`| head`) wants no more, and that is
/// no failure.
pub(crate) fn print_as_is(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != Io::BrokenPipe => {
            let message = "standard output cannot be written";
            Err(Error::new(ErrorKind::State, message).with_source(error))
        }
        _ => Ok(()),
    }
}

/// One line of JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string(value).map_err(|error| {
        Error::new(ErrorKind::State, "the answer cannot be written as JSON").with_source(error)
    })?;
    Ok(visible_json(text) + "\n")
}

/// A table with this header.
pub(crate) fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(header);
    table
}

/// Numbers stand to the right.
pub(crate) fn align_right(table: &mut Table, column: usize) {
    if let Some(column) = table.column_mut(column) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// In this colour on a terminal, unless nobody wants colours.
pub(crate) fn painted(text: &str, colour: u8) -> String {
    if std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        return format!("\x1b[{colour}m{text}\x1b[0m");
    }
    text.to_owned()
}

/// With a comma at the thousands.
pub(crate) fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 event`, `1,234 events`.
pub(crate) fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", number(count), if count == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_reach_no_terminal() {
        assert_eq!(page("a\u{1b}[31m\r\nb"), "a\\u{1b}[31m\\r\nb");
        let text = json(&"a\u{1b}\u{9b}\u{7f}é\n").unwrap();
        assert_eq!(text, "\"a\\u001b\\u009b\\u007fé\\n\"\n");
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), "a\u{1b}\u{9b}\u{7f}é\n");
    }

    #[test]
    fn thousands_have_a_comma() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(number), ["0", "999", "1,000", "1,234,567"]);
    }
}
