//! What is shown of a secret: of a URL everything but what could be one, of anything else nothing.

const STARS: &str = "***";

/// Parameters of a URL whose values are no secret.
const PLAIN: [&str; 13] = [
    "mode",
    "sslmode",
    "name",
    "format",
    "stream",
    "exchange",
    "declare",
    "qos",
    "client_id",
    "cluster",
    "max_len",
    "max_message",
    "replicas",
];

/// A URL without passwords, user-defined parameters and, of a webhook, without its path.
pub(crate) fn masked(text: &str) -> String {
    if matches!(text, "log") {
        return text.to_owned();
    }
    let (address, parameters) = match text.split_once('?') {
        Some((address, parameters)) => (address, Some(parameters)),
        None => (text, None),
    };
    let shown = match address.split_once("://") {
        Some((scheme, rest)) => format!("{scheme}://{}", without_password(scheme, rest)),
        None if address.starts_with("sqlite:") => address.to_owned(),
        None => return STARS.to_owned(),
    };
    match parameters {
        None => shown,
        Some(parameters) => {
            let parameters: Vec<String> = parameters.split('&').map(parameter).collect();
            format!("{shown}?{}", parameters.join("&"))
        }
    }
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

fn parameter(pair: &str) -> String {
    match pair.split_once('=') {
        Some((name, _)) if !PLAIN.contains(&name) => format!("{name}={STARS}"),
        Some(_) => pair.to_owned(),
        // The rest of something that was not encoded.
        None => STARS.to_owned(),
    }
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
            ("nats://to?hush@h", "nats://to?***"),
            ("a plain token", "***"),
            ("log", "log"),
        ] {
            assert_eq!(masked(text), shown);
        }
    }
}
