//! What is shown of a secret: of a URL everything but what could be one, of anything else nothing.

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

/// A URL without passwords, user-defined parameters and, of a webhook, without its path.
pub(crate) fn masked(text: &str) -> String {
    if matches!(text, "log") {
        return text.to_owned();
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        let is_file = text.starts_with("sqlite:");
        let (address, parameters) = split(text);
        return if is_file { with(address.to_owned(), "", parameters) } else { STARS.to_owned() };
    };
    let (address, parameters) = split(rest);
    // A question mark that nobody encoded may stand in the password: then all up to the last `@` is secret.
    if parameters.is_some_and(|parameters| parameters.contains('@')) {
        return format!("{scheme}://{STARS}");
    }
    with(format!("{scheme}://{}", without_password(scheme, address)), scheme, parameters)
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

fn without_password(scheme: &str, rest: &str) -> String {
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
    let login = match login.map(|login| login.split_once(':')) {
        None => String::new(),
        Some(Some((user, _))) => format!("{user}:{STARS}@"),
        // Some services take a token as the name of the user.
        Some(None) => format!("{STARS}@"),
    };
    let path = match path {
        None => String::new(),
        Some(path) if scheme.starts_with("http") && !path.is_empty() => format!("/{STARS}"),
        Some(path) => format!("/{path}"),
    };
    format!("{login}{host}{path}")
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
            ("nats://h?s3cret", "nats://h?***"),
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
        ] {
            assert_eq!(masked(text), shown);
        }
    }
}
