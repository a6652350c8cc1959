//! Destination URLs: `scheme://user:password@host:port,host:port/path?parameter=value`.
//!
//! A password can stay out of the URL: `password_env=NAME` takes it from the environment,
//! `password_file=PATH` from a file. No error quotes the URL, which may hold one.

use std::{collections::BTreeMap, fmt, str::FromStr, time::Duration};

use percent_encoding::percent_decode_str;
use posthaste_core::{Error, Result, Secret};

use crate::message::MessageFormat;

/// A destination's address, taken apart.
#[derive(Clone)]
pub struct DestinationUrl {
    /// What stands before `://`.
    pub scheme: String,
    /// The user's name.
    pub user: Option<String>,
    /// The password, from wherever it came.
    pub password: Option<Secret>,
    /// Hosts, each with its port if it names one.
    pub hosts: Vec<(String, Option<u16>)>,
    /// What stands behind the hosts, without the slash at its start.
    pub path: String,
    parameters: BTreeMap<String, String>,
    // What stands before the name of each parameter, for URLs that carry others' parameters, too.
    prefix: &'static str,
}

/// Of parameters the names alone: a value may be a token.
impl fmt::Debug for DestinationUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DestinationUrl")
            .field("scheme", &self.scheme)
            .field("hosts", &self.hosts)
            .field("password", &self.password)
            .field("parameters", &self.parameters.keys())
            .finish_non_exhaustive()
    }
}

/// What every destination can be told.
#[derive(Debug, Clone)]
pub struct Common {
    /// Its name in logs, attempts and status.
    pub name: String,
    /// How an event becomes a message.
    pub format: MessageFormat,
    /// A connection that takes longer has failed.
    pub connect_timeout: Duration,
    /// An acknowledgement that takes longer has not come.
    pub publish_timeout: Duration,
}

impl Common {
    /// Defaults: raw messages, 5 s to connect, 10 s to acknowledge.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            format: MessageFormat::Raw,
            connect_timeout: Duration::from_secs(5),
            publish_timeout: Duration::from_secs(10),
        }
    }
}

impl FromStr for DestinationUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::with_prefix(text, "")
    }
}

impl DestinationUrl {
    /// Takes a URL apart whose parameters all carry this prefix.
    pub(crate) fn with_prefix(text: &str, prefix: &'static str) -> Result<Self> {
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| Error::invalid("a destination is a URL such as nats://host:4222"))?;
        let (authority, path, query) = parts(rest);
        // A login that is not encoded ends too early, and its rest would be taken for something that errors
        // may quote.
        if path.contains('@') || query.contains('@') {
            return Err(misplaced_at());
        }
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        let (mut user, mut password) = (None, None);
        if let Some(login) = login {
            let (name, word) = match login.split_once(':') {
                Some((name, word)) => (name, Some(word)),
                None => (login, None),
            };
            user = Some(decoded("user name", name)?).filter(|name| !name.is_empty());
            password = word.map(|word| decoded("password", word).map(Secret::new)).transpose()?;
        }
        let mut parameters = BTreeMap::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').ok_or_else(|| {
                Error::invalid(
                    "a parameter of the URL has no value: write name=value, and an & in a value as %26",
                )
            })?;
            let name = decoded("parameter", name)?;
            let value = decoded("parameter", value)?;
            if parameters.insert(name.clone(), value).is_some() {
                return Err(Error::invalid(format!("parameter {name} stands twice in the URL")));
            }
        }
        let hosts = hosts.split(',').map(host).collect::<Result<_>>()?;
        let mut url = Self {
            scheme: scheme.to_ascii_lowercase(),
            user,
            password,
            hosts,
            path: decoded("path", path)?,
            parameters,
            prefix,
        };
        if let Some(secret) = url.secret("password")? {
            url.password = Some(secret);
        }
        Ok(url)
    }
}

/// Hosts with a login, path and query of what stands behind `://`.
fn parts(rest: &str) -> (&str, &str, &str) {
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    (authority, path, query)
}

/// An `@` behind the hosts.
pub(crate) fn misplaced_at() -> Error {
    Error::invalid(
        "the URL has an @ behind its host: percent-encode a password that has /, ? or # in it, and an @ \
         anywhere else as %40",
    )
}

fn host(text: &str) -> Result<(String, Option<u16>)> {
    let (name, port) = match text.rsplit_once(':') {
        // An IPv6 address without a port ends with its bracket.
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (text, None),
    };
    let port = port
        .map(|port| {
            port.parse().map_err(|_| Error::invalid("a port in the URL is no number up to 65535"))
        })
        .transpose()?;
    if name.is_empty() {
        return Err(Error::invalid("the URL names no host"));
    }
    Ok((name.to_owned(), port))
}

fn decoded(what: &str, text: &str) -> Result<String> {
    percent_decode_str(text)
        .decode_utf8()
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| Error::invalid(format!("the {what} in the URL is not UTF-8")))
}

impl DestinationUrl {
    /// The parameter as it stands in the URL.
    fn named(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Whether the scheme asks for TLS; `plain` and `secure` are those of the destination that people
    /// call `what`.
    pub fn tls_by_scheme(&self, what: &str, plain: &str, secure: &str) -> Result<bool> {
        if self.scheme == plain || self.scheme == secure {
            return Ok(self.scheme == secure);
        }
        Err(Error::invalid(format!("a {what} destination begins with {plain}:// or {secure}://")))
    }

    /// Takes a parameter: what nobody has taken in the end is unknown.
    pub fn take(&mut self, name: &str) -> Option<String> {
        self.parameters.remove(&self.named(name))
    }

    /// Takes a parameter that is to be parsed; the error names it and what it was given.
    pub fn take_parsed<T: FromStr>(&mut self, name: &str, expected: &str) -> Result<Option<T>> {
        let Some(text) = self.take(name) else {
            return Ok(None);
        };
        text.parse().map(Some).map_err(|_| {
            let name = self.named(name);
            Error::invalid(format!("parameter {name} is {text:?}; it takes {expected}"))
        })
    }

    /// Takes a parameter that is `true` or `false`.
    pub fn take_flag(&mut self, name: &str) -> Result<bool> {
        Ok(self.take_parsed(name, "true or false")?.unwrap_or(false))
    }

    /// Takes a parameter that is a time, such as `500ms`, `30s` or `2m`.
    pub fn take_duration(&mut self, name: &str) -> Result<Option<Duration>> {
        let Some(text) = self.take(name) else {
            return Ok(None);
        };
        let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let unit = match &text[at..] {
            "ms" => Some(1),
            "s" => Some(1_000),
            "m" => Some(60_000),
            _ => None,
        };
        unit.and_then(|unit| text[..at].parse::<u64>().ok()?.checked_mul(unit))
            .filter(|millis| *millis > 0)
            .map(|millis| Some(Duration::from_millis(millis)))
            .ok_or_else(|| {
                let name = self.named(name);
                Error::invalid(format!(
                    "parameter {name} is {text:?}; it takes a time such as 500ms, 30s or 2m"
                ))
            })
    }

    /// Takes a secret from `NAME_env` or `NAME_file`.
    pub fn secret(&mut self, name: &str) -> Result<Option<Secret>> {
        let from_env = self.take(&format!("{name}_env"));
        let from_file = self.take(&format!("{name}_file"));
        match (from_env, from_file) {
            (Some(variable), None) => Secret::from_env(&variable).map(Some),
            (None, Some(path)) => Secret::from_file(path).map(Some),
            (None, None) => Ok(None),
            (Some(_), Some(_)) => {
                let name = self.named(name);
                Err(Error::invalid(format!(
                    "{name}_env and {name}_file name two places for one secret; give one"
                )))
            }
        }
    }

    /// Takes what every destination can be told. Its name is the scheme unless it has another.
    pub fn common(&mut self) -> Result<Common> {
        let name = self.take("name").unwrap_or_else(|| self.scheme.clone());
        let mut common = Common::new(name);
        if let Some(format) = self.take("format") {
            common.format = format.parse()?;
        }
        if let Some(timeout) = self.take_duration("connect_timeout")? {
            common.connect_timeout = timeout;
        }
        if let Some(timeout) = self.take_duration("publish_timeout")? {
            common.publish_timeout = timeout;
        }
        Ok(common)
    }

    /// Refuses a parameter that nobody took.
    pub fn finish(self) -> Result<()> {
        match self.parameters.keys().next() {
            None => Ok(()),
            Some(name) => Err(Error::invalid(format!(
                "parameter {name} is not known for {}:// destinations",
                self.scheme
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart() {
        let mut url: DestinationUrl =
            "kafka://me:p%40ss@a:9092,b/x%2Fy?publish_timeout=500ms&compression=zstd"
                .parse()
                .unwrap();
        assert_eq!(url.user.as_deref(), Some("me"));
        assert_eq!(url.password.as_ref().unwrap().expose(), "p@ss");
        assert_eq!(url.hosts, [("a".to_owned(), Some(9092)), ("b".to_owned(), None)]);
        assert_eq!(url.path, "x/y");
        assert_eq!(url.common().unwrap().publish_timeout, Duration::from_millis(500));
        let error = url.clone().finish().unwrap_err().to_string();
        assert_eq!(error, "parameter compression is not known for kafka:// destinations");
        url.take("compression");
        url.finish().unwrap();
    }

    #[test]
    fn an_ipv6_host_keeps_its_colons() {
        let url: DestinationUrl = "nats://[::1]:4222,[::2]".parse().unwrap();
        assert_eq!(url.hosts, [("[::1]".to_owned(), Some(4222)), ("[::2]".to_owned(), None)]);
    }

    #[test]
    fn no_error_and_no_debug_quotes_the_password() {
        for (url, says) in [
            ("nats://me:hush@host:port", "no number"),
            ("redis://me:12/hush@host", "percent-encode"),
            ("nats://to?hush@host", "percent-encode"),
            ("amqp://u:12?hush@host", "percent-encode"),
            ("kafka://u:12/hu?sh@host", "percent-encode"),
            ("nats://host?token=to&hush", "no value"),
        ] {
            let error = url.parse::<DestinationUrl>().unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains("hush"), "{url}: {error}");
        }
        for url in ["nats://me:hush@host", "nats://host?token=hush", "nats://hush@host"] {
            let url: DestinationUrl = url.parse().unwrap();
            assert!(!format!("{url:?}").contains("hush"));
        }
    }
}
