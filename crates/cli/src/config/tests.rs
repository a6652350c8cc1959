//! Reading settings: layers, origins, secrets, and what is refused.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use posthaste::{Envelope, Event};

use super::{
    Settings,
    command::STARTER,
    file::File,
    origin::Origin,
    reader::{Flag, Reader, variable},
};

fn read(toml: &str, environment: &[(&str, &str)], flags: Vec<Flag>) -> Settings {
    let file = File::parse("p.toml".to_owned(), toml).unwrap();
    let environment: BTreeMap<String, String> =
        environment.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    Settings::read(Reader::new(Some(file), environment, flags))
}

fn flag(key: &str, text: &str) -> Flag {
    Flag { key: key.to_owned(), text: text.to_owned(), origin: Origin::Flag("--flag") }
}

fn shown(settings: &Settings, key: &str) -> (String, String) {
    let shown = settings.shown.iter().find(|shown| shown.key == key);
    let shown = shown.unwrap_or_else(|| panic!("{key} is not shown"));
    (shown.value.clone().unwrap_or_default(), shown.origin.to_string())
}

const BASE: &str = "[outbox]\nurl = \"sqlite:app.db\"\n[destinations.log]\nurl = \"log\"\n";

/// One of everything, as the starter file has it, with each default said aloud.
fn everything() -> String {
    // Behind the paragraph at its top, what stands behind a `#` and a space is a setting.
    let lines = STARTER.lines().skip_while(|line| !line.is_empty());
    let uncommented = lines.map(|line| line.strip_prefix("# ").unwrap_or(line));
    let without = ["url_file", "listen_url", "tls_", "topic =", "{ name = \"ada\""];
    uncommented
        .filter(|line| !without.iter().any(|left_out| line.trim_start().starts_with(left_out)))
        .map(|line| {
            line.replace("${VIEWER_TOKEN}", "0123456789abcdef")
                .replace("\"orders\"  ", "\"outbox_event\"  ")
        })
        .collect::<Vec<_>>()
        .join("\n")
        .replace("payload_limit = \"1 MiB\"", "")
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let toml = format!("{BASE}[relay]\nlease = \"20s\"\nbatch = 7\nheartbeat = \"2s\"\n");
    let environment = [("POSTHASTE_RELAY_LEASE", "21s"), ("POSTHASTE_RELAY_BATCH", "8")];
    let settings = read(&toml, &environment, vec![flag("relay.lease", "22s")]);
    assert_eq!(settings.problems(), [""; 0]);
    assert_eq!(shown(&settings, "relay.lease"), ("22s".into(), "--flag".into()));
    assert_eq!(shown(&settings, "relay.batch"), ("8".into(), "POSTHASTE_RELAY_BATCH".into()));
    assert_eq!(shown(&settings, "relay.heartbeat"), ("2s".into(), "p.toml:8".into()));
    assert_eq!(shown(&settings, "relay.drain"), ("5s".into(), "default".into()));
    let relay = &settings.outboxes[0].relay;
    assert_eq!((relay.lease, relay.batch), (Duration::from_secs(22), 8));
}

#[test]
fn the_starter_file_is_well_and_names_every_key_with_its_default() {
    let settings = read(STARTER, &[], Vec::new());
    assert_eq!(settings.problems(), [""; 0]);
    let defaults: BTreeMap<_, _> = settings.shown.iter().map(|s| (&s.key, &s.value)).collect();
    let full = read(&everything(), &[], Vec::new());
    assert_eq!(full.problems(), [""; 0], "{}", everything());
    let mut from_file = 0;
    for key in &full.shown {
        let name = key.key.rsplit('.').next().unwrap();
        assert!(STARTER.contains(&format!("{name} = ")), "{} is not in the starter", key.key);
        from_file += usize::from(key.origin.layer() == "file");
        // What has a default shows that very default.
        if let Some(Some(default)) = defaults.get(&key.key) {
            assert_eq!(key.value.as_ref(), Some(default), "{}", key.key);
        }
    }
    assert!(from_file >= 50, "{from_file} keys were read");
}

#[test]
fn every_key_is_a_variable_of_the_environment() {
    let full = read(&everything(), &[], Vec::new());
    let is_plain = |key: &str| !key.contains('[');
    let values: Vec<(String, String)> = full
        .shown
        .iter()
        .filter(|shown| is_plain(&shown.key))
        .filter_map(|shown| Some((shown.key.clone(), shown.value.clone()?)))
        .collect();
    assert!(values.len() > 40, "{}", values.len());
    for (key, value) in values {
        let settings = read(BASE, &[(&variable(&key), &value)], Vec::new());
        assert_eq!(settings.problems(), [""; 0], "{key} = {value}");
        assert_eq!(shown(&settings, &key), (value, variable(&key)), "{key}");
    }
    // Lists are TOML in one variable.
    let routes =
        ("POSTHASTE_ROUTES", "[{ to = \"log\", event_type = \"A*\", topics = { A = \"b\" } }]");
    let tokens = (
        "POSTHASTE_ADMIN_TOKENS",
        "[{ name = \"v\", role = \"operator\", token = \"0123456789abcdef\" }]",
    );
    let settings = read(BASE, &[routes, tokens], Vec::new());
    assert_eq!(settings.problems(), [""; 0]);
    assert_eq!(settings.routes[0].topics["A"], "b");
    assert_eq!(settings.admin.tokens[0].role, posthaste_admin::Role::Operator);
    assert_eq!(shown(&settings, "admin.tokens[1].token").0, "***");
}

#[test]
fn names_that_operators_know_are_other_names_of_the_same_keys() {
    for (name, key, value) in [
        ("OUTBOX_RELAY_ENABLED", "relay.enabled", "false"),
        ("OUTBOX_RELAY_POLL_INTERVAL", "relay.idle_interval", "3s"),
        ("OUTBOX_RELAY_BATCH_SIZE", "relay.batch", "100"),
        ("OUTBOX_RELAY_LOCK_TTL", "relay.lease", "1m"),
        ("OUTBOX_RELAY_MAX_ATTEMPTS", "relay.max_attempts", "25"),
        ("OUTBOX_CLEANER_ENABLED", "cleaner.enabled", "false"),
        ("OUTBOX_CLEANER_RETENTION", "cleaner.retention", "3d"),
        ("POSTHASTE_TABLE", "outbox.table", "orders"),
        ("POSTHASTE_URL", "outbox.url", "sqlite:b.db"),
    ] {
        let settings = read(BASE, &[(name, value)], Vec::new());
        assert_eq!(settings.problems(), [""; 0], "{name}");
        assert_eq!(shown(&settings, key), (value.into(), name.into()));
    }
    let settings =
        read(BASE, &[("POSTHASTE_TO", "redis://h"), ("POSTHASTE_TOPIC", "t")], Vec::new());
    assert_eq!(settings.problems(), [""; 0]);
    assert_eq!((settings.destinations.len(), settings.routes[0].topic.as_deref()), (1, Some("t")));
}

#[test]
fn several_outboxes_share_what_none_of_them_says_otherwise() {
    let toml = "[relay]\nlease = \"40s\"\nbatch = 3\n[destinations.log]\nurl = \"log\"\n\
                [outboxes.orders]\nurl = \"sqlite:a.db\"\n[outboxes.orders.relay]\nbatch = 9\n\
                [outboxes.billing]\nurl = \"sqlite:b.db\"\n[outboxes.billing.cleaner]\nretention = \"1d\"\n";
    let environment = [("POSTHASTE_OUTBOXES_AUDIT_URL", "sqlite:c.db")];
    let settings = read(toml, &environment, Vec::new());
    assert_eq!(settings.problems(), [""; 0]);
    let seen: Vec<_> = settings
        .outboxes
        .iter()
        .map(|o| {
            (
                o.name.as_str(),
                o.relay.batch,
                o.relay.lease.as_secs(),
                o.retention.sent.as_secs() / 86_400,
            )
        })
        .collect();
    assert_eq!(seen, [("billing", 3, 40, 1), ("orders", 9, 40, 7), ("audit", 3, 40, 7)]);
    // For all outboxes, whatever the file says of one.
    let settings = read(toml, &[("OUTBOX_RELAY_BATCH_SIZE", "50")], Vec::new());
    assert!(settings.outboxes.iter().all(|outbox| outbox.relay.batch == 50));
    // A database on the command line is the one that is meant.
    let settings = read(toml, &[], vec![flag("outbox.url", "sqlite:d.db")]);
    assert_eq!((settings.outboxes.len(), settings.problems().len()), (1, 0));
}

#[test]
fn what_is_wrong_is_named_with_its_key_its_place_and_what_is_accepted() {
    for (toml, says) in [
        ("[relay]\nlaese = \"5s\"", &["relay.laese (p.toml:6)", "did you mean relay.lease?"][..]),
        ("[rellay]\nlease = \"5s\"", &["rellay", "did you mean relay?"]),
        ("[moon]\nphase = 1", &["moon", "there are admin", "outbox"]),
        ("[relay.backoff]\nfactor = 2", &["relay.backoff.factor", "there are base, cap"]),
        ("[destinations.log.tls]\nx = 1", &["destinations.log.tls"]),
        ("[relay]\nlease = 5", &["relay.lease (p.toml:6)", "\"5\" is not a duration", "500ms"]),
        (
            "[relay]\nlease = \"5s\"",
            &["lease (5s)", "heartbeat (10s)", "relay.lease from p.toml:6"],
        ),
        ("[relay]\nbatch = -1", &["relay.batch", "\"-1\" is not a number"]),
        ("[relay]\nbatch = 0", &["batch is 0", "at least 1", "p.toml:6"]),
        (
            "[relay]\nordering = \"total\"",
            &["relay.ordering", "\"total\"", "per_key, none or global"],
        ),
        ("[relay]\non_dead = \"bury\"", &["relay.on_dead", "\"bury\"", "skip or park"]),
        ("[relay]\nname = \"a/b\"", &["\"a/b\"", "no slash"]),
        ("[relay]\nenabled = \"maybe\"", &["relay.enabled", "neither true nor false"]),
        ("[cleaner]\ninterval = \"0s\"", &["cleaner.interval is 0"]),
        (
            "[destinations.b]\nurl = \"redis://h\"\npayload_limit = \"1 XB\"",
            &["is not a size", "1 MiB"],
        ),
        ("[destinations.b]", &["destinations.b.url is not set", "nats://"]),
        ("[destinations.\"a/b\"]\nurl = \"log\"", &["[destinations.a/b]", "letters, digits"]),
        (
            "[destinations.b]\nurl = \"${NO_SUCH}\"",
            &["destinations.b.url (p.toml:6)", "NO_SUCH is not set"],
        ),
        (
            "[destinations.b]\nurl_file = \"/no/such\"",
            &["destinations.b.url_file (p.toml:6)", "/no/such"],
        ),
        ("[destinations.b]\nurl = \"log\"\nurl_file = \"x\"", &["are both set"]),
        ("[outboxes.a]\nurl = \"sqlite:b.db\"", &["outbox.url (p.toml:2)", "[outboxes.a]"]),
        ("[outboxes.a]", &["outboxes.a.url is not set"]),
        ("[log]\nformat = \"xml\"", &["log.format", "\"xml\"", "text or json"]),
        ("[log]\nlevel = \"loud,=x\"", &["log.level", "error, warn, info"]),
        ("[log]\ntenant = \"rot13\"", &["log.tenant", "plain or hashed or off"]),
        ("[health]\nlisten = \"here\"", &["health.listen \"here\"", "127.0.0.1:9465", "off"]),
        ("[admin]\nlisten = \"0.0.0.0:80\"", &["0.0.0.0:80", "tokens", "127.0.0.1"]),
        ("[admin]\ntls_cert = \"c\"", &["tls_cert and admin.tls_key belong together"]),
        ("[admin]\ntokens = [{ name = \"a\" }]", &["admin.tokens[1] needs a name, and a token"]),
        (
            "[admin]\nlisten = \"0.0.0.0:80\"\ntokens = [{ name = \"a\", token = \"s3cret\" }]",
            &["\"a\" has fewer than 16 characters"],
        ),
        (
            "[admin]\nlisten = \"0.0.0.0:80\"\ntokens = [{ name = \"a\", token = \"0123456789s3cret\" }]",
            &["plain HTTP", "admin.tls_cert", "admin.plain_http"],
        ),
        (
            "[admin]\ntokens = [{ name = \"a\", role = \"root\", token = \"s3cret\" }]",
            &["viewer or operator"],
        ),
        ("[[routes]]\nfrom = \"x\"", &["routes[1].from (p.toml:6)"]),
    ] {
        let problems = read(&format!("{BASE}{toml}\n"), &[], Vec::new()).problems();
        let told = problems.iter().any(|problem| says.iter().all(|part| problem.contains(part)));
        assert!(told, "{toml}: {problems:?}");
        assert!(!problems.iter().any(|problem| problem.contains("s3cret")), "{problems:?}");
    }
}

#[test]
fn a_misspelled_variable_is_refused_and_anothers_is_not() {
    let problems = read(BASE, &[("POSTHASTE_RELAY_LAESE", "5s")], Vec::new()).problems();
    assert!(problems[0].contains("did you mean POSTHASTE_RELAY_LEASE?"), "{problems:?}");
    for name in
        ["POSTHASTE_PASSWORD", "POSTHASTE_RELAY_SERVICE_HOST", "POSTHASTE_ADMIN_PORT_80_TCP"]
    {
        assert_eq!(read(BASE, &[(name, "x")], Vec::new()).problems(), [""; 0], "{name}");
    }
}

#[test]
fn secrets_come_from_variables_and_are_shown_as_stars() {
    let toml = "[outbox]\nurl = \"postgres://app:${PASSWORD}@db/app\"\n";
    let settings = read(toml, &[("PASSWORD", "s3cret")], Vec::new());
    assert_eq!(settings.outboxes[0].url.expose(), "postgres://app:s3cret@db/app");
    assert_eq!(shown(&settings, "outbox.url").0, "postgres://app:***@db/app");
    assert!(!format!("{:?}", settings.shown).contains("s3cret"));
}

#[test]
fn looking_at_an_outbox_does_not_take_the_brokers_password() {
    let toml = "[outbox]\nurl = \"sqlite:a.db\"\n[destinations.n]\nurl = \"nats://${NO_SUCH}@h\"\n";
    let settings = read(toml, &[], Vec::new());
    settings.refuse(&["outbox", "outboxes"]).unwrap();
    assert!(settings.refuse(&["outbox", "destinations"]).is_err());
    let misspelled = read(&format!("{toml}[relay]\nlaese = 1\n"), &[], Vec::new());
    assert!(misspelled.refuse(&["outbox"]).is_err());
}

#[test]
fn a_destination_whose_secret_cannot_be_read_keeps_its_name_and_its_routes() {
    for unread in ["url = \"nats://${NO_SUCH}@h\"", "url_file = \"/no/such\"", ""] {
        let toml = format!(
            "[outbox]\nurl = \"sqlite:a.db\"\n[destinations.log]\nurl = \"log\"\n\
             [destinations.partner]\n{unread}\n[[routes]]\nevent_type = \"Invoice\"\n\
             to = \"partner\"\n[[routes]]\nto = \"log\"\n"
        );
        let settings = read(&toml, &[], Vec::new());
        assert_eq!(settings.problems().len(), 1, "{unread}: {:?}", settings.problems());
        assert!(settings.problems()[0].contains("destinations.partner.url"), "{unread}");
        assert_eq!(settings.destination_names(), ["log", "partner"], "{unread}");
        let routes = settings.known_routes(&settings.outboxes[0]).unwrap();
        for (event_type, destination) in [("Invoice", "partner"), ("Order", "log")] {
            let event = Event::builder(event_type).topic("t").raw_json("{}").build().unwrap();
            let envelope = Envelope {
                sequence: 1,
                attempts: 0,
                replay: 0,
                created_at: Timestamp::UNIX_EPOCH,
                topic: None,
                event,
            };
            assert_eq!(routes.destination_of(&envelope), Ok(destination), "{unread}");
        }
        // No relay starts with it.
        assert!(settings.refuse(&["destinations"]).is_err(), "{unread}");
    }
}

#[test]
fn a_destination_by_flag_is_the_only_one_and_those_of_the_file_stay_known() {
    let toml = "[outbox]\nurl = \"sqlite:a.db\"\n[destinations.log]\nurl = \"log\"\n\
                [destinations.partner]\nurl = \"nats://${NO_SUCH}@h\"\nrate = 5\n";
    let to = |url: &str| Flag::destination(url.to_owned(), Origin::Flag("--to"));
    for url in ["log", "nats://other"] {
        let settings = read(toml, &[], vec![to(url)]);
        assert_eq!(settings.problems(), [""; 0], "{url}");
        assert_eq!(settings.destinations.len(), 1, "{url}");
        assert_eq!(settings.destinations[0].url.as_ref().unwrap().expose(), url);
    }
    let misspelled = format!("{toml}rat = 1\n");
    let problems = read(&misspelled, &[], vec![to("log")]).problems();
    assert!(problems[0].contains("did you mean destinations.partner.rate?"), "{problems:?}");
}
