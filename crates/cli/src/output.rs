//! Standard output.

use std::io::{ErrorKind as Io, Write as _};

use posthaste::{Error, ErrorKind, Result};

/// Writes a text. A reader that has left (`| head`) wants no more, and that is no failure.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != Io::BrokenPipe => {
            let message = "standard output cannot be written";
            Err(Error::new(ErrorKind::State, message).with_source(error))
        }
        _ => Ok(()),
    }
}
