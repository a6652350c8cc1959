//! PostgreSQL servers of one test: in a folder of their own, ended with it.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    os::unix::{fs::chown, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command},
    time::{Duration, Instant},
};

use posthaste_harness::process::LIMIT;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use sqlx::{PgPool, pool::PoolOptions};

/// PostgreSQL refuses to run as root. This account owns nothing else.
const NOBODY: u32 = 65_534;

/// Where PostgreSQL's programs are, and where the servers' data is.
pub(super) struct Place {
    programs: PathBuf,
    folder: PathBuf,
}

impl Place {
    /// With the server program that this variable names.
    pub(super) fn new(variable: &str) -> Self {
        let server = std::env::var(variable).unwrap_or_else(|_| {
            panic!(
                "{variable} is not set: stop and start scripts/servers, source target/servers/env"
            )
        });
        let programs = Path::new(&server).parent().expect("a folder").to_owned();
        let name = format!("posthaste-failover-{}", uuid::Uuid::now_v7());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).expect("a folder for the servers cannot be made");
        if geteuid().is_root() {
            chown(&folder, Some(NOBODY), Some(NOBODY)).expect("the folder cannot be given away");
        }
        Self { programs, folder }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        // Downloaded binaries look for libpq elsewhere, and a standby would not stream.
        command.env("LD_LIBRARY_PATH", self.programs.with_file_name("lib"));
        command.env("LC_ALL", "C").current_dir(&self.folder);
        if geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let output = self.command(program).args(arguments).output();
        let output = output.unwrap_or_else(|error| panic!("{program} did not start: {error}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} failed: {said}");
    }

    /// Starts a new primary.
    pub(super) async fn primary(&self) -> Server {
        let data = ["--pgdata=primary", "--username=postgres", "--auth=trust"];
        self.run("initdb", &[&data[..], &["--no-locale", "--encoding=UTF8", "--no-sync"]].concat());
        self.start("primary").await
    }

    /// Starts a standby of the server on this port.
    pub(super) async fn standby(&self, of: u16) -> Server {
        let from = format!("host=127.0.0.1 port={of} user=postgres");
        let copy = ["--pgdata=standby", "--write-recovery-conf", "--checkpoint=fast", "--no-sync"];
        self.run("pg_basebackup", &[&copy[..], &["--dbname", &from]].concat());
        self.start("standby").await
    }

    async fn start(&self, data: &str) -> Server {
        let log = self.folder.join(format!("{data}.log"));
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|listener| listener.local_addr())
            .expect("a free port")
            .port();
        let process = self
            .command("postgres")
            .args(["-D", data, "-p", &port.to_string()])
            .args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="])
            .args(["-c", "shared_buffers=32MB", "-c", "max_connections=60", "-c", "fsync=off"])
            .args(["-c", "wal_level=replica", "-c", "wal_retrieve_retry_interval=200ms"])
            .stderr(fs::File::create(&log).expect("a log file cannot be made"))
            .spawn()
            .expect("postgres did not start");
        let pool = PoolOptions::new().max_connections(4).connect_lazy(&url(port)).expect("a URL");
        let server = Server { port, pool, process };
        let begun = Instant::now();
        while let Err(error) = sqlx::query("select 1").execute(&server.pool).await {
            if begun.elapsed() > LIMIT {
                let said = fs::read_to_string(&log).unwrap_or_default();
                panic!("the {data} does not answer: {error}\n{said}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        server
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A server that runs until it is dropped.
pub(super) struct Server {
    pub(super) port: u16,
    /// Connections that do not go through a forwarder.
    pub(super) pool: PgPool,
    process: Child,
}

impl Server {
    /// Ends it without a chance to write or send anything more.
    pub(super) fn kill(mut self) {
        self.process.kill().expect("the server cannot be killed");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(None) = self.process.try_wait() {
            // Ends at once, and ends its own processes before.
            let _ = kill_process(Pid::from_child(&self.process), Signal::QUIT);
        }
        let _ = self.process.wait();
    }
}

/// The URL of the server on this port.
pub(super) fn url(port: u16) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/postgres")
}
