//! What is shown of a secret: of a URL everything but what could be one, of anything else nothing.
//!
//! A URL without an `@` may be a login whose host was forgotten. Two rules:
//!
//! - NATS takes a token as the whole login. `nats://s3cret` looks like a host, so a NATS URL without an `@` is shown
//!   only if each of its hosts has a dot or a port, or is `localhost`. That hides `nats://broker`, too.
//! - A port without a host, as in `redis://:12345`, may be a password.
//!
//! Elsewhere a bare name is shown: it is usual (`redis://cache`), and no login. Not told from a host and hence shown:
//! a token with a dot, and a user with a number as the password (`redis://u:12345`).

const STARS: &str = "***";

/// Parameters of a URL whose values are no secret. Neither are those that end in `_env` or `_file`: they name
/// a place.
const PLAIN: [&str; 34] = [
    "mode",
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-ca",
    "application_name",
    "charset",
    "host",
    "port",
    "dbname",
    "user",
    "name",
    "format",
    "connect_timeout",
    "publish_timeout",
    "stream",
    "create_stream",
    "subjects",
    "batched",
    "sasl",
    "compression",
    "exchange",
    "declare",
    "qos",
    "retain",
    "message_expiry",
    "require_subscriber",
    "client_id",
    "cluster",
    "max_len",
    "max_message",
    "replicas",
    "allow_private",
    "proxy",
];

/// What stands before the name of a parameter of ours in a webhook's URL; all others are the receiver's.
const OWN: &str = "posthaste.";

/// Databases and destinations. Of any other scheme nobody knows where a secret stands, and a typing error makes
/// another scheme.
const SCHEMES: [&str; 18] = [
    "postgres",
    "postgresql",
    "mysql",
    "mariadb",
    "nats",
    "tls",
    "kafka",
    "kafka+ssl",
    "pulsar",
    "pulsar+ssl",
    "amqp",
    "amqps",
    "redis",
    "rediss",
    "mqtt",
    "mqtts",
    "http",
    "https",
];

/// A URL without passwords, user-defined parameters and, of a webhook, without its path. Nothing of a URL that
/// is not understood.
pub(crate) fn masked(text: &str) -> String {
    if matches!(text, "log") {
        return text.to_owned();
    }
    if let Some(file) = text.strip_prefix("sqlite:") {
        let (file, parameters) = split(file);
        return if text.contains(['@', '#']) {
            format!("sqlite:{STARS}")
        } else {
            with(format!("sqlite:{file}"), "", parameters)
        };
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        return STARS.to_owned();
    };
    let Some(scheme) = SCHEMES.into_iter().find(|known| known.eq_ignore_ascii_case(scheme)) else {
        return STARS.to_owned();
    };
    let (address, parameters) = split(rest);
    // A question mark or a hash that nobody encoded may stand in the password: then all up to the last `@` is
    // secret. No URL of ours has a fragment.
    let cut = rest.contains('#') || parameters.is_some_and(|text| text.contains('@'));
    match without_password(scheme, address) {
        Some(address) if !cut => with(format!("{scheme}://{address}"), scheme, parameters),
        _ => format!("{scheme}://{STARS}"),
    }
}

fn split(text: &str) -> (&str, Option<&str>) {
    match text.split_once('?') {
        Some((address, parameters)) => (address, Some(parameters)),
        None => (text, None),
    }
}

fn with(shown: String, scheme: &str, parameters: Option<&str>) -> String {
    let Some(parameters) = parameters else { return shown };
    let parameters: Vec<String> =
        parameters.split('&').map(|pair| parameter(pair, scheme.starts_with("http"))).collect();
    format!("{shown}?{}", parameters.join("&"))
}

/// `None` when it names no hosts: what stands in their place may be a login without its `@`.
fn without_password(scheme: &str, rest: &str) -> Option<String> {
    let (authority, path) = match rest.split_once('/') {
        Some((authority, path)) => (authority, Some(path)),
        None => (rest, None),
    };
    // A password may hold a slash that nobody encoded: then all up to the host is the login.
    let (login, host, path) = match rest.rsplit_once('@') {
        Some((login, behind)) => match behind.split_once('/') {
            Some((host, path)) => (Some(login), host, Some(path)),
            None => (Some(login), behind, None),
        },
        None => (None, authority, path),
    };
    let bare_is_host = login.is_some() || !matches!(scheme, "nats" | "tls");
    if !host.split(',').all(|host| is_host(host) && (bare_is_host || is_no_token(host))) {
        return None;
    }
    let webhook = scheme.starts_with("http");
    let login = match login.map(|login| login.split_once(':')) {
        None => String::new(),
        Some(Some((user, _))) if !webhook => format!("{user}:{STARS}@"),
        // Some services take a token as the name of the user.
        Some(_) => format!("{STARS}@"),
    };
    let path = match path {
        None => String::new(),
        Some(path) if webhook && !path.is_empty() => format!("/{STARS}"),
        Some(path) => format!("/{path}"),
    };
    Some(format!("{login}{host}{path}"))
}

/// A name or address, and perhaps a port; or nothing, as before the path of a socket.
fn is_host(text: &str) -> bool {
    let (name, port) = match text.rsplit_once(':') {
        // An IPv6 address without a port ends with its bracket.
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (text, None),
    };
    let plain = |c: char| c.is_alphanumeric() || "-._%".contains(c);
    let is_name = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(address) => address.chars().all(|c| plain(c) || c == ':'),
        None => name.chars().all(plain),
    };
    is_name && port.is_none_or(|port| !name.is_empty() && port.parse::<u16>().is_ok())
}

/// Of a host: it has what a token seldom has.
fn is_no_token(host: &str) -> bool {
    host.contains(['.', ':']) || host.eq_ignore_ascii_case("localhost")
}

/// `theirs`: it stands in a webhook's URL, where the receiver's parameters can be secrets by their names alone.
fn parameter(pair: &str, theirs: bool) -> String {
    let Some((name, value)) = pair.split_once('=') else {
        return STARS.to_owned();
    };
    let ours = name.strip_prefix(OWN);
    if theirs && ours.is_none() {
        return STARS.to_owned();
    }
    let bare = ours.unwrap_or(name);
    let plain = PLAIN.contains(&bare) || bare.ends_with("_env") || bare.ends_with("_file");
    format!("{name}={}", if plain { value } else { STARS })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_secret_is_left() {
        for (text, shown) in [
            (
                "postgres://u:p%40ss@h:1/db?sslmode=require",
                "postgres://u:***@h:1/db?sslmode=require",
            ),
            ("postgres://u:a/b@h/db", "postgres://u:***@h/db"),
            ("nats://token@h?password=x&name=n", "nats://***@h?password=***&name=n"),
            ("https://hooks.example/T0/B0/x", "https://hooks.example/***"),
            ("sqlite:app.db?mode=rwc", "sqlite:app.db?mode=rwc"),
            ("nats://to?hush@h", "nats://***"),
            ("postgres://u:pa?ss@h/db", "postgres://***"),
            ("postgres://u:p?s@s?t@h/db?sslmode=require", "postgres://***"),
            ("nats://h:4222?token=a@b", "nats://***"),
            ("nats://h:4222?s3cret", "nats://h:4222?***"),
            ("nats://h?s3cret", "nats://***"),
            ("https://hooks.example/x?SECRET", "https://hooks.example/***?***"),
            ("https://h/x?key=s3cret&name=s3cret", "https://h/***?***&***"),
            (
                "https://h/x?posthaste.allow_private=true&posthaste.token=s3cret",
                "https://h/***?posthaste.allow_private=true&posthaste.token=***",
            ),
            (
                "kafka://h?password_file=/run/secrets/k&max_message=5&sasl=plain",
                "kafka://h?password_file=/run/secrets/k&max_message=5&sasl=plain",
            ),
            ("sqlite:app.db?key=s3cret", "sqlite:app.db?key=***"),
            ("a plain token", "***"),
            ("log", "log"),
            ("HTTPS://user:pw@hooks.example/T0/x?key=s3cret", "https://***@hooks.example/***?***"),
            ("Postgres://u:pw@h/db", "postgres://u:***@h/db"),
            ("htps://user:pw@hooks.example/T0/x", "***"),
            ("slack://T0/B0/x", "***"),
            (" https://hooks.example/T0/x", "***"),
            ("https://hooks.example/T0/x#s3cret", "https://***"),
            ("nats://h:4222#s3cret", "nats://***"),
            ("kafka://h?name=n#s3cret", "kafka://***"),
            ("sqlite:app.db?mode=rwc#s3cret", "sqlite:***"),
            ("sqlite://u:pw@h/db", "sqlite:***"),
            ("postgres://u:s3cret", "postgres://***"),
            ("nats://h,u:s3cret/x", "nats://***"),
            ("nats://a:4222,b:4222", "nats://a:4222,b:4222"),
            ("nats://s3cret", "nats://***"),
            ("tls://s3cret", "tls://***"),
            ("NATS://s3cret/", "nats://***"),
            ("nats://s3cret?name=n", "nats://***"),
            ("nats://a:4222,s3cret", "nats://***"),
            ("nats://nats.example?name=n", "nats://nats.example?name=n"),
            ("nats://localhost", "nats://localhost"),
            ("nats://[::1]", "nats://[::1]"),
            ("nats://u:s3cret@h", "nats://u:***@h"),
            ("redis://:12345", "redis://***"),
            ("redis://:12345/0", "redis://***"),
            ("redis://h,:12345", "redis://***"),
            ("redis://:12345@cache", "redis://:***@cache"),
            ("redis://cache", "redis://cache"),
            ("kafka://a,b:9092", "kafka://a,b:9092"),
            ("amqp://[::1]:5672/orders", "amqp://[::1]:5672/orders"),
            ("postgres:///db?host=/run/postgresql", "postgres:///db?host=/run/postgresql"),
        ] {
            assert_eq!(masked(text), shown);
        }
    }

    #[test]
    fn every_destination_is_shown() {
        let error = posthaste::transports::open("none").err().unwrap().to_string();
        let words = error.split([' ', ',']);
        let schemes: Vec<&str> = words.filter_map(|word| word.strip_suffix("://")).collect();
        assert!(schemes.contains(&"https"), "{error}");
        for scheme in schemes {
            let url = format!("{scheme}://h:1");
            assert_eq!(masked(&url), url);
        }
    }
}
