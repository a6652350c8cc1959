//! Where webhooks go, and how the sender shows who it is.

use std::{net::IpAddr, path::PathBuf};

use posthaste_core::{Error, Result, Secret};
use reqwest::{Url, header::HeaderValue};

use super::{
    TOPIC_MARK,
    guard::{PrivateAddress, is_public},
};
use crate::{
    message,
    url::{Common, DestinationUrl, misplaced_at},
};

/// What stands before each parameter that is not the receiver's.
const OWN: &str = "posthaste.";

/// Where webhooks go.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// What every destination can be told.
    pub common: Common,
    /// `http://` or `https://`, without a login. Many receivers know their senders by the URL
    /// alone, so it is a secret. `{topic}` in its path stands for the event's topic.
    pub url: Secret,
    /// The user of basic authentication.
    pub user: Option<String>,
    /// The password of basic authentication.
    pub password: Option<Secret>,
    /// A bearer token instead.
    pub bearer: Option<Secret>,
    /// Signing secrets, `whsec_BASE64`. Each gives one signature; without one nothing is signed.
    pub secrets: Vec<Secret>,
    /// PEM certificates to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Whether private, loopback and other addresses that are not public may be connected to.
    pub allow_private: bool,
}

impl HttpConfig {
    /// Reads a destination's URL; see the [module](super) for its parameters.
    pub fn from_url(url: &str) -> Result<Self> {
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        let (own, theirs): (Vec<_>, Vec<_>) = query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .partition(|pair| pair.starts_with(OWN));
        let (scheme, rest) = address
            .split_once("://")
            .filter(|(scheme, _)| ["http", "https"].contains(scheme))
            .ok_or_else(|| Error::invalid("a webhook's URL begins with http:// or https://"))?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        // `user:12/word@host` would ask the host `user`. Without a colon, but for those of an IPv6 address, it
        // is a path like others.
        if authority.rsplit_once(']').map_or(authority, |(_, port)| port).contains(':')
            && !authority.contains('@')
            && (path.contains('@') || query.contains('@'))
        {
            return Err(misplaced_at());
        }

        let mut own =
            DestinationUrl::with_prefix(&format!("{scheme}://{authority}?{}", own.join("&")), OWN)?;
        if own.hosts.len() != 1 {
            return Err(Error::invalid("a webhook's URL names one host"));
        }
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let mut receiver = format!("{scheme}://{host}/{path}");
        if !theirs.is_empty() {
            receiver = format!("{receiver}?{}", theirs.join("&"));
        }
        let secrets = own.secret("secret")?.map_or_else(Vec::new, |secrets| {
            secrets.expose().split_whitespace().map(Secret::new).collect()
        });
        let config = Self {
            common: own.common()?,
            url: Secret::new(receiver),
            user: own.user.clone(),
            password: own.password.clone(),
            bearer: own.secret("bearer")?,
            secrets,
            ca_file: own.take("ca_file").map(PathBuf::from),
            allow_private: own.take_flag("allow_private")?,
        };
        own.finish()?;
        Ok(config)
    }

    /// The receiver's URL, with a mark where the topic goes.
    pub(super) fn receiver(&self) -> Result<Url> {
        let text = self.url.expose().replace("{topic}", TOPIC_MARK);
        let url = Url::parse(&text)
            .ok()
            .filter(|url| ["http", "https"].contains(&url.scheme()) && url.has_host())
            .ok_or_else(|| Error::invalid("the webhook's URL is not one of http:// or https://"))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Error::invalid("a login belongs in user and password, not in the URL"));
        }
        if text.matches(TOPIC_MARK).count() != url.path().matches(TOPIC_MARK).count() {
            return Err(Error::invalid("{topic} can stand only in the path of a webhook's URL"));
        }
        // The resolver is not asked about these.
        let literal = url.host_str().unwrap_or_default().trim_matches(['[', ']']).parse::<IpAddr>();
        if !self.allow_private && literal.is_ok_and(|address| !is_public(address)) {
            return Err(Error::invalid(format!("{PrivateAddress}; allow_private lets it through")));
        }
        Ok(url)
    }

    pub(super) fn authorization(&self) -> Result<Option<HeaderValue>> {
        let value = match (&self.user, &self.password, &self.bearer) {
            (None, None, None) => return Ok(None),
            (None, None, Some(token)) => format!("Bearer {}", token.expose()),
            (user, password, None) => {
                let user = user.as_deref().unwrap_or_default();
                let password = password.as_ref().map_or("", Secret::expose);
                format!("Basic {}", message::base64(format!("{user}:{password}").as_bytes()))
            }
            _ => return Err(Error::invalid("a login and a bearer token are given; give one")),
        };
        let mut value = HeaderValue::try_from(value).map_err(|_| {
            Error::invalid("the bearer token has characters that no header can carry")
        })?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Http, *};

    #[test]
    fn parameters_of_the_receiver_stay_in_its_url() {
        let config = HttpConfig::from_url(
            "https://me:p%40ss@host:8443/a%2Fb/{topic}?x=1&x=2&format=pdf&posthaste.format=raw\
             &posthaste.name=billing&password_env=theirs",
        )
        .unwrap();
        let url = "https://host:8443/a%2Fb/{topic}?x=1&x=2&format=pdf&password_env=theirs";
        assert_eq!(config.url.expose(), url);
        assert_eq!(config.user.as_deref(), Some("me"));
        assert_eq!(config.password.as_ref().unwrap().expose(), "p@ss");
        assert_eq!(config.common.name, "billing");
        let shown = format!("{config:?}");
        assert!(!shown.contains("p@ss") && !shown.contains("8443"), "{shown}");
    }

    #[test]
    fn a_wrong_parameter_is_named_as_it_was_written() {
        for (parameter, said) in [
            ("posthaste.formt=raw", "posthaste.formt is not known"),
            ("posthaste.allow_private=yes", "posthaste.allow_private is \"yes\"; it takes true"),
            ("posthaste.publish_timeout=soon", "posthaste.publish_timeout is \"soon\""),
            ("posthaste.format=xml", "\"xml\" is not known"),
        ] {
            let error = HttpConfig::from_url(&format!("https://me:hush@host/?{parameter}"))
                .unwrap_err()
                .to_string();
            assert!(error.contains(said) && !error.contains("hush"), "{error}");
        }
    }

    fn refusal(url: &str) -> String {
        HttpConfig::from_url(url).and_then(Http::new).err().map_or_else(String::new, |error| {
            let error = error.to_string();
            assert!(!error.contains("hush"), "{error}");
            error
        })
    }

    #[test]
    fn a_configuration_that_cannot_work_is_refused() {
        assert!(refusal("ftp://me:hush@host/").contains("http:// or https://"));
        assert!(refusal("https://me:hush@a,b/").contains("one host"));
        for url in [
            "https://me:12/hush@host",
            "https://me:12?hush@host",
            "https://[2606:4700::1]:12/hush@host",
        ] {
            assert!(refusal(url).contains("percent-encode"), "{url}");
        }
        for url in
            ["https://host/@me/hook?by=me@home", "https://[2606:4700::1]/@me/hook?by=me@home"]
        {
            assert_eq!(refusal(url), "", "{url}");
        }
        for url in
            ["https://me:1]2/hush@host", "https://me:12]/hush@host", "https://[me:12/hush@host"]
        {
            assert_ne!(refusal(url), "", "{url}");
        }
        assert!(refusal("https://me:hush@host/?x={topic}").contains("only in the path"));
        assert!(refusal("https://me:hush@{topic}.host/").contains("only in the path"));
        assert!(
            refusal("https://me:hush@host/?posthaste.ca_file=/no/such.pem").contains("/no/such")
        );
        assert_eq!(refusal("https://me:hush@host/{topic}"), "");
    }

    #[test]
    fn an_address_that_is_not_public_is_refused_however_it_is_written() {
        for host in [
            "127.0.0.1",
            "0x7f000001",
            "2130706433",
            "127.1",
            "[::1]",
            "[::ffff:1.1.1.1]",
            "10.0.0.1",
        ] {
            let error = refusal(&format!("http://{host}/"));
            assert!(error.contains("not a public one"), "{host}: {error}");
            assert_eq!(refusal(&format!("http://{host}/?posthaste.allow_private=true")), "");
        }
    }
}
