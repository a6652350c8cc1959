//! Running an example as a user would: a process of its own, ended with the test.

use std::{path::PathBuf, process::Stdio, str::FromStr, time::Duration};

use sqlx::{SqlitePool, sqlite::SqliteConnectOptions};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};
use uuid::Uuid;

/// Nothing here takes so long unless it hangs.
const LIMIT: Duration = Duration::from_mins(1);

pub fn given(variable: &str) -> String {
    std::env::var(variable)
        .unwrap_or_else(|_| panic!("{variable} is not set: run the tests with scripts/test"))
}

pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.unwrap_or_else(|_| panic!("{what} hung"))
}

/// A running example. It is killed when it is dropped.
pub struct Program {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Program {
    pub fn start(binary: &str, args: &[&str]) -> Self {
        let mut child = Command::new(binary)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the example starts");
        let stdout = child.stdout.take().expect("it is piped");
        Self { child, lines: BufReader::new(stdout).lines() }
    }

    /// The next line that it prints.
    pub async fn line(&mut self) -> String {
        let line = soon("a line", self.lines.next_line()).await.unwrap();
        line.expect("the example goes on")
    }

    /// Kills it with SIGKILL, as the machine would.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}

/// A database file of one test.
pub struct Database(PathBuf);

impl Database {
    pub fn new() -> Self {
        let name = format!("posthaste-examples-{}.db", Uuid::now_v7());
        Self(std::env::temp_dir().join(name))
    }

    pub fn url(&self) -> String {
        format!("sqlite:{}", self.0.display())
    }

    pub async fn pool(&self) -> SqlitePool {
        let options = SqliteConnectOptions::from_str(&self.url()).unwrap();
        SqlitePool::connect_with(options).await.unwrap()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        for suffix in ["", "-wal", "-shm"] {
            let mut name = self.0.clone().into_os_string();
            name.push(suffix);
            let _ = std::fs::remove_file(name);
        }
    }
}
