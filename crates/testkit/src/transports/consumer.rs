//! Reading back with clients that share no code with the transports: programs in Python.

use std::{path::PathBuf, process::Stdio, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};
use tokio::{io::AsyncWriteExt, process::Command};

/// A consumer that takes longer hangs.
const TIME_LIMIT: Duration = Duration::from_mins(1);

/// A message as an independent client saw it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    /// Where it lay.
    pub topic: String,
    /// Its key, where the protocol has one.
    #[serde(default)]
    pub key: Option<String>,
    /// Its headers, in the order in which they came.
    #[serde(default)]
    pub headers: Vec<(String, String)>,
    /// Its media type.
    #[serde(default)]
    pub content_type: Option<String>,
    /// Its bytes; base64 on the way here.
    #[serde(serialize_with = "to_base64", deserialize_with = "from_base64")]
    pub body: Vec<u8>,
}

impl Received {
    /// A header's value. Names are compared without regard to case, as some protocols do.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

impl std::fmt::Debug for Received {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Received")
            .field("topic", &self.topic)
            .field("key", &self.key)
            .field("headers", &self.headers)
            .field("content_type", &self.content_type)
            .field("bytes", &self.body.len())
            .finish()
    }
}

fn to_base64<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&BASE64_STANDARD.encode(bytes))
}

fn from_base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    BASE64_STANDARD.decode(text).map_err(serde::de::Error::custom)
}

/// The path of a consumer that comes with this crate, such as `nats`.
pub fn consumer(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("consumers").join(format!("{name}.py"))
}

/// Runs a consumer and gives what it printed, one JSON object a line.
pub async fn consume<T: DeserializeOwned>(script: PathBuf, arguments: &[&str]) -> Vec<T> {
    feed(script, arguments, &[] as &[Received]).await
}

/// The same with something to read on its standard input, one JSON object a line.
pub async fn feed<I: Serialize, T: DeserializeOwned>(
    script: PathBuf,
    arguments: &[&str],
    input: &[I],
) -> Vec<T> {
    let python = std::env::var("POSTHASTE_TEST_PYTHON")
        .expect("POSTHASTE_TEST_PYTHON names a Python with the clients; scripts/servers makes it");
    let mut lines = Vec::new();
    for item in input {
        serde_json::to_writer(&mut lines, item).expect("what was received is JSON");
        lines.push(b'\n');
    }
    // Isolated: or a consumer called nats.py would be what `import nats` finds.
    let mut child = Command::new(python)
        .arg("-I")
        .arg(&script)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the Python of POSTHASTE_TEST_PYTHON can be run");
    let mut stdin = child.stdin.take().expect("its input is ours");
    let run = async {
        let write = async move {
            // A consumer that reads nothing may have closed it.
            let _ = stdin.write_all(&lines).await;
        };
        tokio::join!(child.wait_with_output(), write).0
    };
    let output = tokio::time::timeout(TIME_LIMIT, run)
        .await
        .unwrap_or_else(|_| panic!("{} hung for {TIME_LIMIT:?}", script.display()))
        .expect("a consumer's output can be read");
    assert!(
        output.status.success(),
        "{} failed: {}",
        script.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout)
        .expect("a consumer prints UTF-8")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}
