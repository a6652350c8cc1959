//! Passwords, tokens and keys: from the configuration, the environment or a file, and never in a
//! log.

use std::{env, fmt, fs, path::Path};

use crate::{Error, Result};

/// A text that must not be seen. It has no `Display`, and `Debug` shows stars.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// This very text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// What the environment variable holds.
    pub fn from_env(variable: &str) -> Result<Self> {
        match env::var(variable) {
            Ok(text) if !text.is_empty() => Ok(Self(text)),
            _ => Err(Error::invalid(format!(
                "the environment variable {variable} is to hold a secret and is not set"
            ))),
        }
    }

    /// What the file holds, without the line break at its end.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let text = fs::read_to_string(path).map_err(|error| {
            Error::invalid(format!(
                "the secret in {} cannot be read: {}",
                path.display(),
                error.kind()
            ))
        })?;
        let text = text.trim_end_matches(['\r', '\n']);
        if text.is_empty() {
            return Err(Error::invalid(format!("the secret in {} is empty", path.display())));
        }
        Ok(Self(text.to_owned()))
    }

    /// The text, for whoever needs it to connect.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_shows_stars() {
        assert_eq!(format!("{:?}", Some(Secret::new("hush"))), "Some(***)");
    }

    #[test]
    fn a_secret_that_is_not_there_is_named_by_its_place() {
        let error = Secret::from_env("POSTHASTE_NO_SUCH_SECRET").unwrap_err();
        assert!(error.to_string().contains("POSTHASTE_NO_SUCH_SECRET"), "{error}");
        let error = Secret::from_file("/no/such/secret").unwrap_err();
        assert!(error.to_string().contains("/no/such/secret"), "{error}");
    }
}
