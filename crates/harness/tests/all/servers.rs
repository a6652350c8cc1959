//! Database servers of one test: in a folder of their own, ended with it.

mod mariadb;

mod postgres;

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    os::unix::{fs::chown, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command},
    time::{Duration, Instant},
};

use posthaste::Dialect;
use posthaste_harness::process::LIMIT;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use sqlx::{Pool, pool::PoolOptions};

/// Database servers refuse to run as root. This account owns nothing else.
const NOBODY: u32 = 65_534;

/// A kind of server.
pub(super) trait Engine: Dialect {
    /// Ends a server and its processes at once.
    const QUIT: Signal;

    /// The URL of the server at this address.
    fn url(at: SocketAddr) -> String;

    /// The program that serves this data, which is made if there is none.
    fn command(place: &Place, data: &str, at: SocketAddr, settings: &[&str]) -> Command;
}

/// Where the server's programs are, and where the servers' data is.
pub(super) struct Place {
    program: PathBuf,
    folder: PathBuf,
}

impl Place {
    /// With the server program that this variable names.
    pub(super) fn new(variable: &str) -> Self {
        let program = std::env::var(variable).unwrap_or_else(|_| {
            panic!(
                "{variable} is not set: stop and start scripts/servers, source target/servers/env"
            )
        });
        let name = format!("posthaste-servers-{}", uuid::Uuid::now_v7());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).expect("a folder for the servers cannot be made");
        let place = Self { program: program.into(), folder };
        give_away(&place.folder);
        place
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("LC_ALL", "C").current_dir(&self.folder);
        if geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    /// Starts a server with this data.
    pub(super) async fn start<DB: Engine>(
        &self,
        data: &str,
        at: SocketAddr,
        settings: &[&str],
    ) -> Server<DB> {
        let log = self.folder.join(format!("{data}.log"));
        let server = self.launch(data, at, settings);
        let begun = Instant::now();
        while let Err(error) = server.pool.acquire().await {
            if begun.elapsed() > LIMIT {
                let said = fs::read_to_string(&log).unwrap_or_default();
                panic!("the {data} does not answer: {error}\n{said}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        server
    }

    fn launch<DB: Engine>(&self, data: &str, at: SocketAddr, settings: &[&str]) -> Server<DB> {
        let mut command = DB::command(self, data, at, settings);
        let log = self.folder.join(format!("{data}.log"));
        let log = fs::File::create(&log).expect("a log file cannot be made");
        let process = command.stderr(log).spawn().expect("the server did not start");
        let pool = PoolOptions::new().max_connections(4).connect_lazy(&DB::url(at));
        Server { address: at, pool: pool.expect("a URL"), process }
    }
}

/// Servers refuse to run as root.
fn give_away(path: &Path) {
    if geteuid().is_root() {
        chown(path, Some(NOBODY), Some(NOBODY)).expect("a folder cannot be given away");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A server that runs until it is dropped.
pub(super) struct Server<DB: Engine> {
    pub(super) address: SocketAddr,
    /// Connections that do not go through a forwarder.
    pub(super) pool: Pool<DB>,
    process: Child,
}

impl<DB: Engine> Server<DB> {
    /// Ends it without a chance to write or send anything more.
    pub(super) fn kill(mut self) {
        self.process.kill().expect("the server cannot be killed");
    }

    /// Ends it in order.
    pub(super) fn stop(mut self) {
        let pid = Pid::from_child(&self.process);
        kill_process(pid, Signal::TERM).expect("the server cannot be stopped");
        self.process.wait().expect("the server does not stop");
    }
}

impl<DB: Engine> Drop for Server<DB> {
    fn drop(&mut self) {
        if let Ok(None) = self.process.try_wait() {
            let _ = kill_process(Pid::from_child(&self.process), DB::QUIT);
        }
        let _ = self.process.wait();
    }
}

/// An address of this machine that nobody listens at.
pub(super) fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .expect("a free port")
}

/// The same port of another address of this machine: the server there believes that it has the same
/// address.
pub(super) fn twin(of: SocketAddr) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)), of.port())
}
