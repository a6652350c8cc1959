//! Every command of an operator, on SQLite and PostgreSQL, beside a running relay that takes its
//! settings from a file.

#![cfg(unix)]

mod command;

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use command::{Folder, stderr, stdout};
use posthaste::{
    Dialect, Event, Outbox,
    stores::{Options, Tables, postgres::PostgresStore},
};
use posthaste_testkit::tables::{drop_outbox, unique};
use serde_json::{Value, json};
use sqlx::{Pool, SqlitePool};

/// Long enough for a loaded machine; nothing waits so long when all is well.
const PATIENCE: Duration = Duration::from_secs(30);

const TOKEN: &str = "a-viewer-of-sixteen";

/// An outbox, and a folder with the configuration that names it.
struct Ground {
    folder: Folder,
    url: String,
    table: String,
}

impl Ground {
    fn new(url: Option<String>, table: &str) -> Self {
        let folder = Folder::new();
        let url = url.unwrap_or_else(|| folder.url());
        let ground = Self { folder, url, table: table.to_owned() };
        let settings = format!(
            r#"
            [outbox]
            url = "${{TEST_DATABASE}}"
            table = "{table}"
            [relay]
            enabled = true
            name = "r1"
            ordering = "per_key"
            on_dead = "skip"
            lease = "20s"
            heartbeat = "5s"
            busy_interval = "20ms"
            idle_interval = "100ms"
            batch = 100
            concurrency = 8
            dispatch_timeout = "10s"
            max_attempts = 5
            hot_queue = 500
            cold_queue = 500
            drain = "3s"
            backoff = {{ base = "100ms", cap = "1s" }}
            [cleaner]
            enabled = true
            interval = "30m"
            retention = "2d"
            dead_retention = "30d"
            inbox_retention = "3d"
            batch = 200
            [destinations.out]
            url = "log"
            format = "json"
            payload = false
            rate = 5000
            concurrency = 4
            [[routes]]
            aggregate_type = "*"
            event_type = "Order*"
            to = "out"
            topic = "{{aggregate_type}}.{{event_type}}"
            [log]
            format = "json"
            level = "info"
            tenant = "hashed"
            [metrics]
            enabled = true
            refresh = "1s"
            tenants = 2
            [health]
            listen = "127.0.0.1:0"
            interval = "1s"
            max_age = "10m"
            [admin]
            enabled = true
            listen = "127.0.0.1:0"
            tokens = [{{ name = "v", role = "viewer", token_file = "token" }}]
            "#
        );
        std::fs::write(ground.folder.join("posthaste.toml"), settings).unwrap();
        std::fs::write(ground.folder.join("token"), format!("{TOKEN}\n")).unwrap();
        ground
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = command::command(args);
        command.current_dir(self.folder.path()).env("TEST_DATABASE", &self.url);
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the binary runs")
    }

    #[track_caller]
    fn says(&self, args: &[&str], says: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        let text = stdout(&output);
        for part in says {
            assert!(text.contains(part), "{args:?} does not say {part:?}: {text}");
        }
        text
    }

    #[track_caller]
    fn json(&self, args: &[&str]) -> Value {
        let text = self.says(&[args, &["--json"]].concat(), &[]);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{args:?}: {error}: {text}"))
    }

    #[track_caller]
    fn refuses(&self, args: &[&str], code: i32, says: &[&str]) {
        let output = self.run(args);
        let line = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {line}");
        assert!(line.starts_with("error: ") && line.trim_end().lines().count() == 1, "{line}");
        for part in says {
            assert!(line.contains(part), "{args:?} does not say {part:?}: {line}");
        }
    }

    /// Asks until it is so.
    #[track_caller]
    fn until(&self, args: &[&str], is: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let value = self.json(args);
            if is(&value) {
                return value;
            }
            assert!(Instant::now() < deadline, "{args:?} stays so: {value}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Until nothing is pending and so many are dead.
    #[track_caller]
    fn until_settled(&self, dead: u64) {
        self.until(&["status"], |status| {
            let counts = &status["counts"];
            counts["dead"] == dead && counts["new"] == 0 && counts["retry"] == 0
        });
    }

    fn start(&self, args: &[&str]) -> Running {
        let mut command = self.command(args);
        Running::new(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }
}

/// A process that runs until its test ends it, by its id.
struct Running {
    child: Child,
    out: mpsc::Receiver<String>,
    err: mpsc::Receiver<String>,
}

impl Running {
    fn new(mut child: Child) -> Self {
        let out = lines(child.stdout.take().unwrap());
        let err = lines(child.stderr.take().unwrap());
        Self { child, out, err }
    }

    /// The next line of standard output that holds this.
    #[track_caller]
    fn line(&self, part: &str) -> String {
        next(&self.out, part)
    }

    /// The URL in the log line with this message.
    #[track_caller]
    fn url(&self, message: &str) -> String {
        let line: Value = serde_json::from_str(&next(&self.err, message)).unwrap();
        line["url"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    fn terminate(mut self) -> Vec<String> {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        assert!(self.child.wait().unwrap().success());
        self.err.iter().collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(stream: impl std::io::Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    receiver
}

#[track_caller]
fn next(lines: &mpsc::Receiver<String>, part: &str) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let line = lines.recv_timeout(left).unwrap_or_else(|_| panic!("no line says {part:?}"));
        if line.contains(part) {
            return line;
        }
    }
}

/// One GET by hand: status line and body.
fn get(url: &str, token: Option<&str>) -> String {
    let (host, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    let request =
        format!("GET /{path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{token}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Writes one event of this type and aggregate, as an application does.
async fn enqueue<DB: Dialect>(pool: &Pool<DB>, table: &str, of: &str, id: u32, tenant: &str) {
    let outbox = Outbox::new(table.parse().unwrap());
    let event = Event::builder(of).aggregate("Order", id).tenant(tenant);
    let event = event.raw_json(r#"{"card":"s3cret"}"#).build().unwrap();
    let mut tx = outbox.begin(pool).await.unwrap();
    outbox.enqueue(&mut tx, event).await.unwrap();
    tx.commit().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_works_beside_a_relay_on_sqlite() {
    let ground = Ground::new(None, "outbox_event");
    ground.says(&["migrate"], &["applied migration"]);
    let pool = SqlitePool::connect(&ground.url).await.unwrap();
    every_command(&ground, &pool).await;
    pool.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_works_beside_a_relay_on_postgres() {
    let url = std::env::var("POSTHASTE_TEST_POSTGRES").expect("scripts/servers starts it");
    let tables: Tables = unique("cli");
    let ground = Ground::new(Some(url.clone()), &tables.name().to_string());
    ground.says(&["migrate", "--shards", "4"], &["applied migration"]);
    let store = PostgresStore::connect(&url, tables.clone(), &Options::default()).await.unwrap();
    every_command(&ground, store.pool()).await;
    drop_outbox(store.pool(), &tables).await.unwrap();
}

async fn every_command<DB: Dialect>(ground: &Ground, pool: &Pool<DB>) {
    let write = async |of, id, tenant| enqueue(pool, &ground.table, of, id, tenant).await;
    let relay = ground.start(&["relay"]);
    let admin = relay.url("admin API");
    let health = relay.url("health");
    for n in 0..3 {
        write("OrderPlaced", n, "acme").await;
    }
    // No route is for them: they are dead at once.
    write("Poison", 7, "acme").await;
    write("Poison", 8, "other").await;
    ground.until_settled(2);

    looking(ground, &admin, &health);
    dead_letters(ground);
    replays(ground, &relay);

    // Pauses are stored, shown, and end.
    for what in
        [&["relay", "r9"][..], &["destination", "far"], &["key", "Order/5", "--tenant", "acme"]]
    {
        if what[0] != "key" {
            // Misspelled, as a rule: it is paused only if somebody insists.
            let pause = [&["pause"], what].concat();
            ground.refuses(&pause, 3, &[what[1], "is not known", "--unknown"]);
        }
        let insists: &[&str] = if what[0] == "key" { &[] } else { &["--unknown"] };
        let pause = [&["pause"], what, insists, &["--note", "looking into it"]].concat();
        for changed in [true, false] {
            let mut told = json!({ "changed": changed });
            if what[0] != "key" {
                told["checked"] = false.into();
            }
            assert_eq!(ground.json(&pause), told, "{pause:?}");
        }
    }
    for what in [["destination", "out"], ["relay", "r1"]] {
        let told = ground.json(&[&["pause"], &what[..]].concat());
        assert_eq!(told, json!({ "changed": true, "checked": true }), "{what:?}");
        assert_eq!(ground.json(&[&["resume"], &what[..]].concat()), json!({ "changed": true }));
    }
    ground.refuses(&["pause", "relay", "r2"], 3, &["there are r1 ("]);
    ground.refuses(&["pause", "destination", "ouut"], 3, &["did you mean out?"]);
    let pauses = ground.json(&["status"])["pauses"].clone();
    assert_eq!(pauses.as_array().unwrap().len(), 3, "{pauses}");
    assert!(pauses[2]["note"].as_str().unwrap().contains("key Order/5 tenant=acme: looking"));
    ground.says(&["resume", "relay", "r9"], &["relay r9 goes on"]);
    ground.says(&["resume", "destination", "far"], &["destination far goes on"]);
    ground.says(
        &["resume", "key", "Order/5", "--tenant", "acme"],
        &["key Order/5 tenant=acme goes on"],
    );
    ground.says(&["resume", "key", "Order/5"], &["was not paused"]);
    // A key of the application's own has no aggregate to name it by.
    for (verb, says) in [("pause", "is paused"), ("resume", "goes on")] {
        ground.says(&[verb, "key", "00ff00ff00ff00ff"], &["key 00ff00ff00ff00ff", says]);
    }
    ground.refuses(&["pause", "key", "Order"], 2, &["Order/42"]);

    // What waits while all is paused can be given up, if it is said which.
    ground.says(&["pause", "outbox", "--note", "freeze"], &["the outbox is paused"]);
    ground.says(&["status"], &["paused", "freeze"]);
    // Obeyed: the relay has given its shards back.
    ground.until(&["status"], |status| status["shards"]["held"] == 0);
    write("OrderHeld", 9, "acme").await;
    ground.refuses(&["events", "discard", "--yes"], 2, &["say which"]);
    let discard = ["events", "discard", "--type", "OrderHeld", "--yes"];
    assert_eq!(ground.json(&discard)["changed"], 1);
    ground.says(&["resume", "outbox"], &["the outbox goes on"]);

    // A tail shows what comes.
    let tail = ground.start(&["events", "tail", "--json", "--interval", "50ms", "--last", "1"]);
    assert!(tail.line("OrderHeld").contains("discarded"));
    write("OrderShipped", 1, "acme").await;
    let line: Value = serde_json::from_str(&tail.line("OrderShipped")).unwrap();
    assert_eq!((&line["aggregate_id"], &line["tenant"]), (&"1".into(), &"acme".into()));
    tail.terminate();
    relay.line("OrderShipped");

    let watch = ground.start(&["status", "--watch", "--json", "--interval", "50ms"]);
    for _ in 0..2 {
        assert!(watch.line("counts").starts_with('{'));
    }
    watch.terminate();

    // Sent: three, one of them twice, and one shipped; two were discarded.
    ground.until_settled(1);
    assert_eq!(ground.json(&["purge", "--retention", "0s"])["deleted"], 6);
    ground.says(&["purge"], &["0 events deleted"]);

    let audit = ground.json(&["audit"]);
    let entries = audit["audit"].as_array().unwrap();
    let by = |action: &str| {
        let entry = entries.iter().find(|entry| entry["action"] == action);
        entry.unwrap_or_else(|| panic!("no {action} in {audit}"))["by"].as_str().unwrap().to_owned()
    };
    assert_eq!(by("dead.discard"), "ada");
    assert!(by("purge").contains('@') && by("outbox.pause").contains('@'));
    for action in ["event.replay", "sent.replay", "new.discard", "key.pause", "destination.resume"]
    {
        by(action);
    }
    ground.says(&["audit", "--limit", "1"], &["purge", "--cursor"]);

    let served = ground.start(&["admin", "--listen", "127.0.0.1:0"]);
    let url = served.line("http://");
    assert!(get(&format!("{url}/api/v1/whoami"), Some(TOKEN)).contains("\"name\":\"v\""));
    assert!(get(&format!("{url}/api/v1/whoami"), None).contains("401"));
    served.terminate();

    let log = relay.terminate().join("\n");
    assert!(!log.contains("s3cret") && !log.contains(TOKEN), "{log}");
    assert_eq!(ground.json(&["relays"])["relays"], json!([]));
    ground.says(&["relays"], &["no relay has reported", "owned by no relay: "]);
    without_a_relay(ground, write).await;
}

/// Switched off, a relay delivers nothing and everything is kept; the doctor says why.
async fn without_a_relay(ground: &Ground, write: impl AsyncFn(&'static str, u32, &'static str)) {
    write("OrderLate", 3, "acme").await;
    let late = ground.json(&["events", "list", "--type", "OrderLate"])["events"][0].clone();
    let id = late["id"].as_str().unwrap();
    let explained = ground.run(&["doctor", id, "--json"]);
    assert_eq!(explained.status.code(), Some(1), "{}", stderr(&explained));
    let explained: Value = serde_json::from_str(&stdout(&explained)).unwrap();
    assert_eq!(explained["cause"], "no_relay", "{explained}");

    let mut off = ground.command(&["relay", "--name", "off"]);
    off.env("OUTBOX_RELAY_ENABLED", "false").stdout(Stdio::piped()).stderr(Stdio::piped());
    let off = Running::new(off.spawn().unwrap());
    next(&off.err, "started");
    // Each of these takes longer than the relay's pause between two polls.
    for _ in 0..3 {
        assert_eq!(ground.json(&["events", "show", id])["event"]["status"], "new");
    }
    off.terminate();
    ground.says(&["relay", "--once"], &["OrderLate"]);
    assert_eq!(ground.json(&["events", "show", id])["event"]["status"], "sent");
}

/// Everything that shows something.
fn looking(ground: &Ground, admin: &str, health: &str) {
    ground.says(&["status"], &["dead", "nothing pending", "r1"]);
    let relays = ground.json(&["relays"]);
    assert_eq!(
        (&relays["relays"][0]["name"], &relays["shards"][0]["relay"]),
        (&"r1".into(), &"r1".into())
    );
    // The owner's columns: how many shards, and which.
    let shards = relays["shards"].as_array().unwrap();
    let is_ours = |shard: &Value| shard["relay"] == "r1";
    assert!(shards.iter().all(is_ours), "{relays}");
    let shown = ground.says(&["relays"], &["r1", "per_key", "shards", "numbers"]);
    let row = shown.lines().find(|line| line.contains("r1")).unwrap();
    let cells: Vec<&str> = row.split(['│', '┆']).map(str::trim).filter(|c| !c.is_empty()).collect();
    let numbers = match shards.len() {
        1 => "0".to_owned(),
        count => format!("0-{}", count - 1),
    };
    assert_eq!(cells[cells.len() - 2..], [shards.len().to_string(), numbers], "{shown}");

    let list = |args: &[&str]| ground.json(&[&["events", "list"], args].concat());
    let count = |args: &[&str]| list(args)["events"].as_array().unwrap().len();
    for (args, events) in [
        (&[][..], 5),
        (&["--status", "sent"], 3),
        (&["--status", "dead", "--tenant", "other"], 1),
        (&["--type", "OrderPlaced"], 3),
        (&["--key", "Order/7"], 1),
        (&["--aggregate-type", "Order", "--tenant", "acme"], 4),
        (&["--from", "1h"], 5),
        (&["--before", "1h"], 0),
        (&["--from", "2001-01-01", "--before", "2100-01-01T00:00:00Z"], 5),
        (&["--tenant", "' or 1=1 --"], 0),
    ] {
        assert_eq!(count(args), events, "{args:?}");
    }
    let first = list(&["--limit", "2"]);
    let cursor = first["next"].to_string();
    assert_eq!(count(&["--limit", "9", "--cursor", &cursor]), 3);
    ground.says(&["events", "list", "--limit", "2"], &["Poison", "older ones with --cursor"]);
    ground.refuses(&["events", "list", "--status", "lost"], 2, &["\"lost\""]);
    ground.refuses(&["events", "list", "--from", "noon"], 2, &["2026-05-01T12:00:00Z"]);

    let sent = list(&["--status", "sent"])["events"][0].clone();
    assert_eq!(sent["topic"], "Order");
    let id = sent["id"].as_str().unwrap();
    let text = ground.says(&["events", "show", id], &[id, "OrderPlaced", "--payload shows it"]);
    assert!(!text.contains("s3cret"), "{text}");
    assert_eq!(ground.json(&["events", "show", id])["event"]["payload"], Value::Null);
    assert!(
        ground.json(&["events", "show", id, "--payload"])["event"]["payload"]
            .to_string()
            .contains("s3cret")
    );
    ground.refuses(&["dead", "show", id], 3, &["is not dead, it is sent"]);
    ground.refuses(&["events", "show", &uuid::Uuid::nil().to_string()], 3, &["is not there"]);
    ground.refuses(&["events", "show", "42"], 2, &["'42'"]);

    assert!(
        get(&format!("{}livez", health.strip_suffix("readyz").unwrap()), None).contains("200 OK")
    );
    assert!(get(health, None).contains("200 OK"));
    assert!(get(&format!("{admin}/metrics"), None).contains("401"));
    assert!(get(&format!("{admin}/metrics"), Some(TOKEN)).contains("200 OK"));
    let overview = format!("{admin}/api/v1/outboxes/{}/overview", ground.table);
    assert!(get(&overview, Some(TOKEN)).contains("\"dead\":2"));
}

fn dead_letters(ground: &Ground) {
    ground.says(&["dead", "list"], &["Poison", "no route"]);
    let dead = ground.json(&["dead", "list"])["events"].clone();
    assert_eq!(dead.as_array().unwrap().len(), 2, "{dead}");
    let id = dead[0]["id"].as_str().unwrap();
    ground.says(&["dead", "show", id], &["Poison", "no route for Poison"]);
    ground.refuses(&["dead", "replay"], 2, &["say which", "--all"]);
    ground.refuses(
        &["dead", "replay", "--all"],
        4,
        &["Replay 2 dead events, all there are?", "--yes"],
    );
    ground.says(&["dead", "discard", "--all", "--dry-run"], &["2 events would be discarded"]);
    let matched = ground.json(&["dead", "replay", "--tenant", "acme", "--dry-run"]);
    assert_eq!(matched, json!({ "matched": 1, "changed": 0, "more": false, "dry_run": true }));
    let asked = ["dead", "replay", "--tenant", "acme"];
    ground.refuses(&asked, 4, &["Replay 1 dead event matching tenant=acme?"]);
    assert_eq!(ground.json(&["status"])["counts"]["dead"], 2, "nothing was changed");

    // It is tried again, and dead again.
    ground.says(&["dead", "replay", id], &["1 event replayed"]);
    ground.until(&["events", "show", id], |shown| {
        shown["event"]["status"] == "dead" && shown["event"]["replay"] == 1
    });
    let discard = ["dead", "discard", "--tenant", "other", "--yes", "--as", "ada"];
    ground.says(&discard, &["1 event discarded"]);
    ground.until_settled(1);
    let gone = ground.json(&["events", "list", "--status", "discarded"])["events"][0].clone();
    ground.refuses(&["dead", "replay", gone["id"].as_str().unwrap()], 4, &["it is discarded"]);
}

fn replays(ground: &Ground, relay: &Running) {
    ground.refuses(&["replay", "--yes"], 2, &["say which"]);
    let by =
        |args: &[&str]| ground.json(&[&["replay", "--dry-run"], args].concat())["matched"].clone();
    assert_eq!(by(&["--type", "OrderPlaced", "--tenant", "acme"]), 3);
    assert_eq!(by(&["--from", "1h", "--limit", "2"]), 2);
    assert_eq!(by(&["--key", "Order/1"]), 1);
    let replay = ground.json(&["replay", "--key", "Order/1", "--rate", "100", "--yes"]);
    assert_eq!((&replay["matched"], &replay["changed"]), (&1.into(), &1.into()));
    let line: Value = serde_json::from_str(&relay.line("\"replay\":1")).unwrap();
    assert_eq!(line["aggregate_id"], "1");
}

#[test]
fn a_name_that_nobody_here_can_check_is_taken_and_that_is_said() {
    let folder = Folder::new();
    let url = folder.migrated();
    let pause = ["pause", "destination", "far", "--url", &url];
    let said = command::succeed(&pause);
    assert!(said.contains("destination far is paused"), "{said}");
    assert!(said.contains("the name was not checked"), "{said}");
    let said = command::succeed(&[&pause[..], &["--json"]].concat());
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said, json!({ "changed": false, "checked": false }));
    // Relays are known from the outbox itself.
    command::refused(&["pause", "relay", "far", "--url", &url], 3, &["no relay has reported"]);
}

#[test]
fn resume_explains_itself_in_its_own_words() {
    let help = command::succeed(&["resume", "--help"]);
    assert!(help.contains("deliver again"), "{help}");
    for of_pause in ["hands its work over", "its events wait"] {
        assert!(!help.contains(of_pause), "{help}");
    }
}

/// What `config check` notes of these routes, with which nothing is wrong.
fn noted(folder: &Folder, routes: &str) -> String {
    let toml =
        format!("[outbox]\nurl = \"sqlite:a.db\"\n[destinations.a]\nurl = \"log\"\n{routes}\n");
    std::fs::write(folder.join("posthaste.toml"), toml).unwrap();
    let mut command = command::command(&["config", "check"]);
    let output = command.current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    stderr(&output)
}

#[test]
fn a_password_that_is_missing_hides_no_mistake_in_the_routes() {
    let folder = Folder::new();
    let toml = "[outbox]\nurl = \"sqlite:a.db\"\n[destinations.a]\nurl = \"nats://${NO_SUCH}@h\"\n\
                [destinations.b]\nurl = \"log\"\n[[routes]]\nevent_type = \"A\"\nto = \"a\"\n\
                [[routes]]\nto = \"c\"\n";
    std::fs::write(folder.join("posthaste.toml"), toml).unwrap();
    let mut command = command::command(&["config", "check"]);
    let output = command.current_dir(folder.path()).output().unwrap();
    let said = stderr(&output);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("NO_SUCH is not set"), "{said}");
    assert!(said.contains("routes[2].to \"c\" is no destination; there are a, b"), "{said}");
    // The route to the destination itself is well.
    assert!(said.contains("(2 problems in posthaste.toml)"), "{said}");
}

#[test]
fn topics_that_leave_events_out_are_noted() {
    let folder = Folder::new();
    for (route, notes) in [
        (
            "topic = \"{tenant}.{aggregate_id}.{header.region}\"",
            &["needs {tenant}", "needs {aggregate_id}", "needs {header.region}"][..],
        ),
        ("topic = \"{aggregate_type}.{event_type}.{schema_version}\"", &[]),
        ("tenant = \"*\"\nheader = { region = \"*\" }\ntopic = \"{tenant}.{header.region}\"", &[]),
        ("topics = { Order = \"orders\" }\ntopic = \"rest\"", &[]),
        ("topics = { Order = \"orders\" }", &["an event of another one is dead at once"]),
        ("aggregate_type = \"Order\"\ntopics = { Order = \"orders\" }", &[]),
        (
            "aggregate_type = \"Order*\"\ntopics = { OrderLine = \"lines\", Invoice = \"bills\" }\n\
             topic = \"rest\"",
            &["routes[1].topics.Invoice is never used; the route takes aggregate type \"Order*\""],
        ),
        (
            "topics = { \"Order*\" = \"orders\" }\ntopic = \"rest\"",
            &["routes[1].topics.Order* is no pattern"],
        ),
        (
            "topics = { Order = \"orders.{tenant}\" }\ntopic = \"rest\"",
            &["\"orders.{tenant}\" as it stands"],
        ),
    ] {
        // The last route takes what the first leaves: of routes nothing is to be noted.
        let routes = format!("[[routes]]\nevent_type = \"E*\"\n{route}\n[[routes]]\nto = \"a\"");
        let said = noted(&folder, &routes);
        assert_eq!(said.lines().count(), notes.len(), "{route}: {said}");
        for note in notes {
            assert!(said.contains(note), "{route}: {said}");
        }
    }
}

#[test]
fn routes_that_leave_events_out_are_noted() {
    let folder = Folder::new();
    let check = |routes: &str| noted(&folder, routes);
    let note = check("[[routes]]\nevent_type = \"Order*\"");
    assert!(note.contains("note: outbox outbox_event: no route takes every event"), "{note}");
    assert_eq!(check("[[routes]]\nevent_type = \"Order*\"\n[[routes]]\nto = \"a\""), "");
    assert_eq!(check(""), "");
}

/// What the row does not know yet, the routes of the configuration do: also of a destination whose URL
/// the relay alone can read.
#[tokio::test]
async fn the_doctor_finds_an_untried_events_destination_by_the_routes() {
    let folder = Folder::new();
    let url = folder.migrated();
    let toml = format!(
        "[outbox]\nurl = \"{url}\"\n[destinations.gone]\nurl = \"nats://127.0.0.1:1\"\n\
         [destinations.partner]\nurl = \"${{PARTNER}}\"\n[[routes]]\nevent_type = \"Other\"\nto = \"gone\"\n\
         [[routes]]\nto = \"partner\"\n[admin]\nenabled = false\n[health]\nlisten = \"off\"\n"
    );
    std::fs::write(folder.join("posthaste.toml"), toml).unwrap();
    let command = |args: &[&str]| {
        let mut command = command::command(args);
        command.current_dir(folder.path());
        command
    };
    let paused = command(&["pause", "destination", "partner"]).output().unwrap();
    assert!(paused.status.success(), "{}", stderr(&paused));
    let mut relay = command(&["relay"]);
    let relay = relay.env("PARTNER", "log").stdout(Stdio::piped()).stderr(Stdio::piped());
    let relay = relay.spawn().unwrap();
    let relay = Running::new(relay);
    next(&relay.err, "started");
    let pool = SqlitePool::connect(&url).await.unwrap();
    enqueue(&pool, "outbox_event", "Invoice", 1, "acme").await;
    pool.close().await;
    let listed = command(&["events", "list", "--json"]).output().unwrap();
    let listed: Value = serde_json::from_str(&stdout(&listed)).unwrap();
    let id = listed["events"][0]["id"].as_str().unwrap().to_owned();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let asked = command(&["doctor", &id]).output().unwrap();
        let said = stdout(&asked);
        // Until the relay owns the shard, that is in the way.
        if said.contains("destination partner is paused") {
            assert!(said.contains("\n  posthaste resume destination partner\n"), "{said}");
            assert!(!said.contains("gone"), "{said}");
            break;
        }
        assert!(Instant::now() < deadline, "{said}");
    }
    relay.terminate();
}

#[tokio::test]
async fn a_pass_that_finds_its_destination_down_fails() {
    let folder = Folder::new();
    let url = folder.migrated();
    command::enqueue(&url, 3).await;
    let args = ["relay", "--once", "--url", &url, "--to", "nats://127.0.0.1:1"];
    let output = command::posthaste(&args);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("1 destination takes nothing, 3 events are still pending"), "{said}");
    // Nothing to deliver is no failure.
    command::succeed(&["relay", "--once", "--url", &url, "--to", "log"]);
    command::succeed(&args);
}

/// What stands in an event cannot write a line of its own, nor the clipboard of whoever looks at it.
#[tokio::test]
async fn an_event_does_not_speak_to_the_terminal() {
    let folder = Folder::new();
    let url = folder.migrated();
    let pool = SqlitePool::connect(&url).await.unwrap();
    let escape = "\u{1b}]52;c;eA==\u{7}\n#2 forged\r\u{9b}31m";
    let enqueue = async |key: u8| {
        let outbox = Outbox::new("outbox_event".parse().unwrap());
        let event = Event::builder(format!("Type{escape}"))
            .aggregate(format!("Order{escape}"), format!("{key}{escape}"))
            .tenant(format!("acme{escape}"))
            .header("note", escape)
            .bytes("text/plain", escape.as_bytes().to_vec())
            .build()
            .unwrap();
        let id = event.id().to_string();
        let mut tx = outbox.begin(&pool).await.unwrap();
        outbox.enqueue(&mut tx, event).await.unwrap();
        tx.commit().await.unwrap();
        id
    };
    let is_tame = |args: &[&str], said: &str| {
        assert!(said.contains("52;c") || args[0] == "status", "{args:?}: {said}");
        let obeyed: Vec<char> = said.chars().filter(|c| c.is_control() && *c != '\n').collect();
        assert!(obeyed.is_empty(), "{args:?}: {said:?}");
        assert!(!said.lines().any(|line| line.starts_with("#2 forged")), "{args:?}: {said}");
    };
    let id = enqueue(7).await;
    for args in [
        &["events", "list"][..],
        &["events", "list", "--json"],
        &["events", "show", &id, "--payload"],
        &["events", "show", &id, "--payload", "--json"],
        &["status"],
        &["status", "--json"],
        &["relay", "--once", "--to", "log", "--payload"],
    ] {
        is_tame(args, &command::succeed(&[args, &["--url", &url]].concat()));
    }
    enqueue(6).await;
    let args = ["relay", "--once", "--to", "log", "--format", "json", "--payload", "--url", &url];
    is_tame(&args, &command::succeed(&args));
    // Nor does what the log says of one that its destination refuses.
    for (key, format, field) in [(8, "text", "sequence="), (9, "json", "\"sequence\":")] {
        enqueue(key).await;
        let hook = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let to = format!("http://{}/?posthaste.allow_private=true", hook.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut request, _) = hook.accept()?;
            let _ = request.read(&mut [0; 4096])?;
            request.write_all(
                b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
            )
        });
        let args = ["relay", "--once", "--to", &to, "--url", &url];
        let mut relay = command::command(&args);
        let output = relay.env("POSTHASTE_LOG_FORMAT", format).output().expect("the binary runs");
        let said = stderr(&output);
        assert!(said.contains(field), "{said}");
        is_tame(&args, &said);
    }
    pool.close().await;
}

/// Events behind a dead one of a parked key are new and not due.
#[tokio::test]
async fn a_status_tells_events_that_are_held() {
    let folder = Folder::new();
    let url = folder.migrated();
    let pool = SqlitePool::connect(&url).await.unwrap();
    for of in ["Poison", "OrderPlaced", "OrderShipped"] {
        enqueue(&pool, "outbox_event", of, 1, "acme").await;
    }
    pool.close().await;
    let relay = ["relay", "--once", "--url", &url, "--to", "log", "--on-dead", "park"];
    // A topic that only Poison lacks: it is dead at once, and parks the key.
    command::succeed(&[&relay[..], &["--topic", "{header.none}"]].concat());
    let status = command::succeed(&["status", "--url", &url]);
    assert!(status.contains("of them held"), "{status}");
    assert!(status.contains("nothing is due") && !status.contains("nothing pending"), "{status}");
}

#[test]
fn a_configuration_is_made_checked_and_shown() {
    let folder = Folder::new();
    let run = |args: &[&str]| {
        let mut command = command::command(args);
        command.current_dir(folder.path()).output().expect("the binary runs")
    };
    let made = run(&["init"]);
    assert!(made.status.success(), "{}", stderr(&made));
    let file = folder.join("posthaste.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let again = run(&["init"]);
    assert_eq!((again.status.code(), std::fs::read_to_string(&file).unwrap()), (Some(4), text));
    let checked = stdout(&run(&["config", "check"]));
    assert!(checked.contains("is well: 1 outbox to 1 destination"), "{checked}");
    assert!(stdout(&run(&["config", "show"])).contains("sqlite:app.db"));
    let shown = stdout(&run(&["config", "show", "--json", "--url", "postgres://u:s3cret@h/d"]));
    let shown: Vec<Value> = serde_json::from_str(&shown).unwrap();
    let url = shown.iter().find(|key| key["key"] == "outbox.url").unwrap();
    assert_eq!((&url["value"], &url["origin"]), (&"postgres://u:***@h/d".into(), &"flag".into()));

    for (toml, says) in [
        ("[[routes]]\nto = \"b\"", &["routes[1].to \"b\" is no destination", "a"][..]),
        ("[[routes]]\ntopic = \"{colour}\"", &["placeholder {colour}"]),
        ("[[routes]]\n[[routes]]\ntenant = \"x\"", &["route 2 can never match"]),
        ("[[routes]]\noutbox = \"x\"", &["routes[1].outbox \"x\" is no outbox"]),
        ("[destinations.b]\nurl = \"redis://h\"", &["several destinations (a, b)", "[[routes]]"]),
        ("[destinations.b]\nurl = \"pigeon://h\"", &["destinations.b", "pigeon://"]),
        (
            "[destinations.b]\nurl = \"nats://h\"\npayload_limit = \"1 MiB\"",
            &["payload_limit", "nats"],
        ),
        ("[admin]\ntls_cert = \"no.pem\"\ntls_key = \"no.pem\"", &["no.pem"]),
        ("[relay]\nlaese = 1\nbatch = 0", &["2 problems"]),
    ] {
        let base = "[outbox]\nurl = \"sqlite:a.db\"\n[destinations.a]\nurl = \"log\"\n";
        std::fs::write(&file, format!("{base}{toml}\n")).unwrap();
        let output = run(&["config", "check"]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{toml}: {said}");
        assert!(says.iter().all(|part| said.contains(part)), "{toml}: {said}");
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(stdout(&run(&["completions", shell])).contains("check-destination"), "{shell}");
    }
    assert_eq!(run(&["relay", "--config", "none.toml"]).status.code(), Some(3));
}

#[test]
fn a_demo_serves_its_dashboard() {
    let args = ["demo", "--for", "3s", "--serve", "127.0.0.1:0"];
    let mut demo = command::command(&args);
    let demo = demo.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut demo = Running::new(demo);
    let line = demo.line("dashboard: ");
    let url = line.strip_prefix("dashboard: ").unwrap();
    assert!(get(&format!("{url}/"), None).contains("<html"));
    for (path, part) in
        [("api/v1/outboxes/demo/overview", "\"alive\":true"), ("metrics", "outbox_shards_owned")]
    {
        let deadline = Instant::now() + PATIENCE;
        while !get(&format!("{url}/{path}"), None).contains(part) {
            assert!(Instant::now() < deadline, "{path} never says {part}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    assert!(demo.child.wait().unwrap().success());
}

#[tokio::test]
async fn one_process_relays_several_outboxes_to_their_destinations() {
    let folder = Folder::new();
    let file = folder.join("two.toml");
    let (a, b) = (folder.url(), folder.url().replace("app.db", "other.db"));
    let settings = format!(
        "[outboxes.orders]\nurl = \"{a}\"\n[outboxes.billing]\nurl = \"{b}\"\ntable = \"bills\"\n\
         [destinations.o]\nurl = \"log\"\n[destinations.b]\nurl = \"log\"\nformat = \"json\"\n\
         [[routes]]\noutbox = \"orders\"\nto = \"o\"\n[[routes]]\noutbox = \"billing\"\nto = \"b\"\n"
    );
    std::fs::write(&file, settings).unwrap();
    let file = file.to_str().unwrap();
    for outbox in ["orders", "billing"] {
        command::succeed(&["migrate", "--config", file, "--outbox", outbox]);
    }
    for (url, table, of) in [(&a, "outbox_event", "OrderPlaced"), (&b, "bills", "BillSent")] {
        let pool = SqlitePool::connect(url).await.unwrap();
        enqueue(&pool, table, of, 1, "acme").await;
        pool.close().await;
    }
    command::refused(&["status", "--config", file], 2, &["--outbox", "orders"]);
    let output = command::posthaste(&["relay", "--config", file, "--once"]);
    let (out, err) = (stdout(&output), stderr(&output));
    assert!(
        out.contains("#1 OrderPlaced Order/1") && out.contains("\"type\":\"BillSent\""),
        "{out}"
    );
    assert!(err.contains("orders: delivered 1,") && err.contains("billing: delivered 1,"), "{err}");
    let status = command::succeed(&["status", "--config", file, "--outbox", "billing", "--sent"]);
    assert!(
        status.contains("outbox billing (sqlite)") && status.contains("sent, kept"),
        "{status}"
    );
}
