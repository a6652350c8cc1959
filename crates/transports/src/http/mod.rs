//! Webhooks: each event is one HTTP POST, signed as the Standard Webhooks say.
//!
//! ```text
//! https://user:password@host/path/{topic}?theirs=1&posthaste.secret_env=HOOK_SECRET
//! ```
//!
//! The URL is the receiver's, with all its parameters. Those that begin with `posthaste.` are for
//! Posthaste and are not sent:
//!
//! | parameter | meaning |
//! | --- | --- |
//! | `posthaste.name` | the destination's name, else the scheme |
//! | `posthaste.format` | `raw`, `cloudevents-binary` or `cloudevents-structured` |
//! | `posthaste.connect_timeout`, `posthaste.publish_timeout` | such as `500ms`, `30s`, `2m` |
//! | `posthaste.secret_env`, `posthaste.secret_file` | where the signing secrets `whsec_BASE64` are; several, one a line, for the time of a key's change |
//! | `posthaste.password_env`, `posthaste.password_file` | where the password of basic authentication is |
//! | `posthaste.bearer_env`, `posthaste.bearer_file` | where a bearer token is |
//! | `posthaste.ca_file` | PEM certificates to trust instead of the system's |
//! | `posthaste.allow_private` | `true` lets it connect to private and loopback addresses |
//!
//! # What is sent
//! `{topic}` in the path stands for the event's topic as one segment. The topic also travels as
//! `posthaste-topic`, the id as `webhook-id`, the time of sending as `webhook-timestamp`. Headers
//! under `posthaste-` and the CloudEvents attributes under `ce-` are percent-encoded where
//! they are not printable ASCII, and so are their spaces, quotes and percent signs. The event's own
//! headers go as they are, but for those by which HTTP frames a message (`content-length` and the
//! like): they stay behind. An event whose headers HTTP cannot carry is dead.
//!
//! # What the answer means
//! | answer | outcome |
//! | --- | --- |
//! | 2xx | delivered |
//! | 401, 403, 407, 429, 502, 503, 504, no connection | unavailable; this event until `Retry-After` (1 h at most) |
//! | no answer in time | timed out |
//! | 404, 405, 408, 409, 410, 425, other 5xx, a connection that breaks | retry |
//! | 3xx (not followed), other 4xx, an address that is not public | dead |
//!
//! Of an answer only its status is kept. Proxies of the environment are not used.

mod config;

mod guard;

mod signature;

use std::{
    error::Error as StdError,
    io,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use jiff::{Timestamp, fmt::rfc2822};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use posthaste_core::{
    Envelope, Error, ErrorKind, Result,
    transport::{Capabilities, Outcome, Transport},
};
use reqwest::{
    Client, Method, Request, Response, StatusCode, Url,
    header::{self, HeaderMap, HeaderName, HeaderValue},
    redirect,
};
use tokio::time::timeout;

use crate::{
    message::{self, MessageFormat},
    tls,
    url::Common,
};

pub use self::config::HttpConfig;
use self::{
    guard::{PrivateAddress, Resolver},
    signature::Signer,
};

/// Where the topic stands in a URL that is checked already.
const TOPIC_MARK: &str = "posthaste-topic-of-the-event";

/// What of a response's body is read, so that its connection can be used again.
const BODY_LIMIT: usize = 64 * 1024;

/// How long a response's body is waited for. Its status has already decided.
const BODY_PATIENCE: Duration = Duration::from_secs(1);

/// The longest pause that a receiver can ask for.
const LONGEST_RETRY_AFTER: Duration = Duration::from_hours(1);

/// Connections kept for the next events.
const IDLE_CONNECTIONS: usize = 32;

/// By these HTTP frames a message; an event's own would make two of one.
const FRAMING: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What CloudEvents say must be encoded in a header: all but printable ASCII, and these.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

/// Posts each event to a URL.
pub struct Http {
    common: Common,
    // With `TOPIC_MARK` where the topic goes.
    url: Url,
    authorization: Option<HeaderValue>,
    signer: Signer,
    client: Client,
}

impl Http {
    /// Checks the configuration. The first publish connects.
    pub fn new(config: HttpConfig) -> Result<Self> {
        let url = config.receiver()?;
        let signer = Signer::new(&config.secrets)?;
        let authorization = config.authorization()?;
        let tls = tls::client_config(config.ca_file.as_deref()).map_err(Error::invalid)?;
        // Well below the time for an answer: a host that cannot be reached is no host that is slow.
        let connect_timeout =
            config.common.connect_timeout.min(config.common.publish_timeout.mul_f64(0.8));
        let client = Client::builder()
            .tls_backend_preconfigured(tls)
            .dns_resolver(Resolver { allow_private: config.allow_private })
            .redirect(redirect::Policy::none())
            .no_proxy()
            .referer(false)
            .user_agent(concat!("posthaste/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(connect_timeout)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .build()
            .map_err(|error| {
                Error::invalid("the HTTP client cannot be set up").with_source(error.without_url())
            })?;
        let common = Common { connect_timeout, ..config.common };
        Ok(Self { common, url, authorization, signer, client })
    }

    async fn deliver(&self, envelope: &Envelope) -> Outcome {
        let request = match self.request(envelope) {
            Ok(request) => request,
            Err(reason) => return Outcome::dead(reason),
        };
        let limit = self.common.publish_timeout;
        match timeout(limit, self.client.execute(request)).await {
            Ok(Ok(response)) => {
                let outcome = outcome_of(response.status(), response.headers());
                drain(response).await;
                outcome
            }
            Ok(Err(error)) => self.failure(&error),
            Err(_) => Outcome::timed_out(format!("no answer within {limit:?}")),
        }
    }

    /// The event as a request, or why HTTP cannot carry it.
    fn request(&self, envelope: &Envelope) -> Result<Request, String> {
        let topic = envelope.topic();
        let message = self.common.format.message(envelope, "ce-");
        let mut request = Request::new(Method::POST, self.url_of(topic)?);
        let headers = request.headers_mut();

        let binary = self.common.format == MessageFormat::CloudEventsBinary;
        for (name, value) in message.headers() {
            let name = name.to_ascii_lowercase();
            if FRAMING.contains(&name.as_str()) {
                continue;
            }
            if name.starts_with("posthaste-") || (binary && name.starts_with("ce-")) {
                set(headers, &name, &encoded(value))?;
            } else {
                set(headers, &name, value)?;
            }
        }
        // After the event's own, which they replace.
        set(headers, "content-type", message.content_type)?;
        set(headers, "posthaste-topic", &encoded(topic))?;
        let timestamp = seconds_since_1970();
        set(headers, "webhook-id", &message.id)?;
        set(headers, "webhook-timestamp", &timestamp.to_string())?;
        headers.remove("webhook-signature");
        if let Some(signature) = self.signer.sign(&message.id, timestamp, &message.body) {
            set(headers, "webhook-signature", &signature)?;
        }
        if let Some(authorization) = &self.authorization {
            headers.insert(header::AUTHORIZATION, authorization.clone());
        }
        *request.body_mut() = Some(message.body.into());
        Ok(request)
    }

    fn url_of(&self, topic: &str) -> Result<Url, String> {
        let mut url = self.url.clone();
        if url.path().contains(TOPIC_MARK) {
            let path = url.path().replace(TOPIC_MARK, &message::segment(topic));
            url.set_path(&path);
            // A topic such as `..` would lead elsewhere.
            if url.path() != path {
                return Err("the topic cannot stand in the URL's path".to_owned());
            }
        }
        Ok(url)
    }

    /// What no answer at all means.
    fn failure(&self, error: &reqwest::Error) -> Outcome {
        if caused_by::<PrivateAddress>(error).is_some() {
            return Outcome::dead(format!("{PrivateAddress}; allow_private lets it through"));
        }
        if !error.is_connect() {
            return Outcome::retry("the connection broke, or what came was no answer of HTTP");
        }
        if error.is_timeout() {
            let limit = self.common.connect_timeout;
            return Outcome::unavailable(format!("no connection within {limit:?}"));
        }
        if caused_by::<rustls::Error>(error).is_some() {
            return Outcome::unavailable("no connection: TLS failed or the certificate is no good");
        }
        match caused_by::<io::Error>(error) {
            _ if error.is_dns() => Outcome::unavailable("the host's name cannot be resolved"),
            Some(error) => Outcome::unavailable(format!("no connection: {}", error.kind())),
            None => Outcome::unavailable("no connection"),
        }
    }
}

/// Sets a header, or says why HTTP cannot carry it. Names are the application's own; values may be
/// of the payload's kind and are not quoted.
fn set(headers: &mut HeaderMap, name: &str, value: &str) -> Result<(), String> {
    let refused = || format!("header {name:?} cannot travel over HTTP");
    let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| refused())?;
    let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| refused())?;
    headers.try_insert(key, value).map_err(|_| "it has too many headers".to_owned())?;
    Ok(())
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// What an answer means. Its body may echo the request: nobody looks at it.
fn outcome_of(status: StatusCode, headers: &HeaderMap) -> Outcome {
    let code = status.as_u16();
    let error = format!("answered with status {code}");
    match code {
        200..=299 => Outcome::Delivered,
        401 | 403 | 407 | 429 | 502 | 503 | 504 => {
            Outcome::Unavailable { error, after: retry_after(headers) }
        }
        300..=399 => Outcome::dead(format!("{error}; redirects are not followed")),
        // 404, 405, 409 and 410 are also the answers of a gateway while its receiver is being deployed.
        404 | 405 | 408 | 409 | 410 | 425 => Outcome::retry(error),
        400..=499 => Outcome::dead(error),
        _ => Outcome::retry(error),
    }
}

/// `Retry-After`, in seconds or as a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    let after = if let Ok(seconds) = text.parse() {
        Duration::from_secs(seconds)
    } else {
        let parser = rfc2822::DateTimeParser::new().relaxed_weekday(true);
        let at = parser.parse_timestamp(text).ok()?;
        Duration::try_from(at.duration_since(Timestamp::now())).ok()?
    };
    Some(after.min(LONGEST_RETRY_AFTER)).filter(|after| !after.is_zero())
}

/// Reads a small body to its end: only then can the connection be used again.
async fn drain(mut response: Response) {
    let _ = timeout(BODY_PATIENCE, async {
        let mut read = 0;
        while let Ok(Some(chunk)) = response.chunk().await {
            read += chunk.len();
            if read > BODY_LIMIT {
                break;
            }
        }
    })
    .await;
}

/// The error of this type among the causes. One inside an `io::Error` is none of its sources.
fn caused_by<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = inner.map(|inner| inner as &(dyn StdError + 'static)).or_else(|| error.source());
    }
    None
}

/// One event a publish, so that a slow answer delays no other key.
#[async_trait]
impl Transport for Http {
    fn name(&self) -> &str {
        &self.common.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            longest_publish: Some(self.common.publish_timeout + BODY_PATIENCE),
            ..Capabilities::default()
        }
    }

    async fn check(&self) -> Result<String> {
        let mut url = self.url.clone();
        url.set_path("/");
        url.set_query(None);
        let host = url.origin().ascii_serialization();
        // Safe by definition; receivers that do not know it answer 404 or 405.
        let request = Request::new(Method::OPTIONS, url);
        match timeout(self.common.publish_timeout, self.client.execute(request)).await {
            Ok(Ok(response)) => {
                Ok(format!("{host} answers (status {})", response.status().as_u16()))
            }
            Ok(Err(error)) => {
                let why = match self.failure(&error) {
                    Outcome::Retry { error, .. }
                    | Outcome::TimedOut { error }
                    | Outcome::Dead { error }
                    | Outcome::Unavailable { error, .. } => error,
                    Outcome::Delivered => String::new(),
                };
                Err(Error::new(ErrorKind::Unavailable, format!("{host}: {why}")))
            }
            Err(_) => {
                let limit = self.common.publish_timeout;
                Err(Error::new(
                    ErrorKind::Unavailable,
                    format!("{host}: no answer within {limit:?}"),
                ))
            }
        }
    }

    async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(batch.len());
        for envelope in batch {
            outcomes.push(self.deliver(envelope).await);
        }
        outcomes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retry_after_of(value: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(header::RETRY_AFTER, value.parse().unwrap());
        retry_after(&headers)
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_and_an_hour_at_most() {
        assert_eq!(retry_after_of("90"), Some(Duration::from_secs(90)));
        assert_eq!(retry_after_of("99999999"), Some(LONGEST_RETRY_AFTER));
        assert_eq!(retry_after_of("Sun, 06 Nov 1994 08:49:37 GMT"), None);
        assert_eq!(retry_after_of("Fri, 31 Dec 9998 23:59:59 GMT"), Some(LONGEST_RETRY_AFTER));
        let soon = Timestamp::now() + Duration::from_secs(90);
        let date = rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&soon).unwrap();
        let after = retry_after_of(&date).unwrap();
        assert!((80..=90).contains(&after.as_secs()), "{date} is in {after:?}");
        for nonsense in ["0", "-5", "soon", "1.5"] {
            assert_eq!(retry_after_of(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn a_topic_cannot_lead_out_of_its_place_in_the_path() {
        let http = |url: &str| Http::new(HttpConfig::from_url(url).unwrap()).unwrap();
        let hooks = http("https://host/hooks/{topic}?a=1");
        let url = hooks.url_of("a/b c?d#e%2e").unwrap();
        assert_eq!(url.as_str(), "https://host/hooks/a%2Fb%20c%3Fd%23e%252e?a=1");
        assert!(hooks.url_of("..").is_err() && hooks.url_of(".").is_err());
        assert!(http("https://host/.{topic}").url_of(".").is_err());
        assert_eq!(hooks.url_of("..a").unwrap().path(), "/hooks/..a");
    }
}
