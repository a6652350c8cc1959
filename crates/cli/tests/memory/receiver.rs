//! Receivers that keep no payloads: they count, and see whether each key's events come in order.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use redis::{
    AsyncCommands as _, AsyncConnectionConfig, Value,
    streams::{StreamReadOptions, StreamReadReply},
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// The headers by which an event says where it belongs: its key, and its number there from 0 on.
pub const KEY: &str = "test-key";
pub const NUMBER: &str = "test-number";

/// How many entries are read from Redis at once, and so are in this process at most.
const ENTRIES: usize = 16;

/// How long Redis may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// What has come.
#[derive(Debug, Clone, Default)]
pub struct Received(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    /// The number that is next, by key.
    next: HashMap<String, u64>,
    events: u64,
    repeated: u64,
    out_of_order: Vec<String>,
}

impl Received {
    /// How many different events.
    pub fn events(&self) -> u64 {
        self.counts(|counts| counts.events)
    }

    /// No event came before an earlier one of its key.
    pub fn assert_in_order(&self) {
        let out_of_order = self.counts(|counts| counts.out_of_order.clone());
        assert!(out_of_order.is_empty(), "out of order: {out_of_order:?}");
    }

    fn take(&self, key: &str, number: u64) {
        self.counts(|counts| {
            let next = counts.next.entry(key.to_owned()).or_default();
            match number.cmp(next) {
                std::cmp::Ordering::Less => counts.repeated += 1,
                std::cmp::Ordering::Equal => {
                    *next += 1;
                    counts.events += 1;
                }
                std::cmp::Ordering::Greater => {
                    let line = format!("{key}: {number} came, {next} was next");
                    counts.out_of_order.push(line);
                }
            }
        });
    }

    fn counts<T>(&self, look: impl FnOnce(&mut Counts) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Display for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (events, repeated) = self.counts(|counts| (counts.events, counts.repeated));
        write!(f, "{events} events, {repeated} repeated")
    }
}

/// A server of webhooks, until it is dropped.
pub struct Webhooks {
    pub url: String,
    pub received: Received,
    requests: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

/// Whether a request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    Always,
    /// The request is read, and that is all.
    Never,
}

impl Webhooks {
    pub async fn start(answers: Answers) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (received, requests) = (Received::default(), Arc::new(AtomicUsize::new(0)));
        let (to, count) = (received.clone(), Arc::clone(&requests));
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (to, count) = (to.clone(), Arc::clone(&count));
                // It ends when the relay closes the connection.
                tokio::spawn(async move { serve(stream, answers, &to, &count).await });
            }
        });
        let url = format!("http://{address}/?posthaste.allow_private=true");
        Self { url, received, requests, task }
    }

    /// How many requests have come, answered or not.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

impl Drop for Webhooks {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(stream: TcpStream, answers: Answers, to: &Received, requests: &AtomicUsize) {
    let mut stream = BufReader::with_capacity(64 << 10, stream);
    while let Some(head) = head(&mut stream).await {
        let length: u64 = head["content-length"].parse().unwrap();
        let body = &mut (&mut stream).take(length);
        if tokio::io::copy_buf(body, &mut tokio::io::sink()).await.is_err() {
            return;
        }
        requests.fetch_add(1, Ordering::Relaxed);
        if answers == Answers::Never {
            std::future::pending::<()>().await;
        }
        to.take(&head[KEY], head[NUMBER].parse().unwrap());
        if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.is_err() {
            return;
        }
    }
}

/// The headers of the next request; `None` when there is no more.
async fn head(stream: &mut BufReader<TcpStream>) -> Option<HashMap<String, String>> {
    let mut head = HashMap::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        match line.trim_end().split_once(':') {
            Some((name, value)) => {
                head.insert(name.to_ascii_lowercase(), value.trim().to_owned());
            }
            None if line.trim_end().is_empty() => return Some(head),
            // The request line.
            None => {}
        }
    }
}

/// A reader of a Redis stream that deletes what it has read, until it is dropped.
pub struct Stream {
    pub received: Received,
    task: JoinHandle<()>,
}

impl Stream {
    pub async fn start(url: &str, stream: &str) -> Self {
        let client = redis::Client::open(url).unwrap();
        // Entries of many MiB: on a busy machine they take their time.
        let patient = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
        let connection = client.get_multiplexed_async_connection_with_config(&patient).await;
        let mut connection = connection.unwrap();
        let (received, stream) = (Received::default(), stream.to_owned());
        let to = received.clone();
        let task = tokio::spawn(async move {
            let options = StreamReadOptions::default().count(ENTRIES);
            loop {
                let reply: Option<StreamReadReply> =
                    connection.xread_options(&[&stream], &["0"], &options).await.unwrap();
                let entries = reply.into_iter().flat_map(|reply| reply.keys);
                let entries: Vec<_> = entries.flat_map(|key| key.ids).collect();
                if entries.is_empty() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    continue;
                }
                for entry in &entries {
                    let Some(Value::BulkString(headers)) = entry.map.get("headers") else {
                        panic!("{} has no headers", entry.id);
                    };
                    let headers: HashMap<String, String> = serde_json::from_slice(headers).unwrap();
                    to.take(&headers[KEY], headers[NUMBER].parse().unwrap());
                }
                let ids: Vec<String> = entries.into_iter().map(|entry| entry.id).collect();
                let _: usize = connection.xdel(&stream, &ids).await.unwrap();
                // What comes after a test that failed is removed in the end.
                let _: bool = connection.expire(&stream, 600).await.unwrap();
            }
        });
        Self { received, task }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.task.abort();
    }
}
