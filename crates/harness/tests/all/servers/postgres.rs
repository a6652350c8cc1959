//! PostgreSQL.

use std::{net::SocketAddr, path::PathBuf, process::Command};

use rustix::process::Signal;
use sqlx::Postgres;

use super::{Engine, Place, Server};

impl Engine for Postgres {
    const QUIT: Signal = Signal::QUIT;

    fn url(at: SocketAddr) -> String {
        format!("postgres://postgres@{at}/postgres")
    }

    fn command(place: &Place, data: &str, at: SocketAddr, settings: &[&str]) -> Command {
        if !place.folder.join(data).exists() {
            let arguments = ["--username=postgres", "--auth=trust", "--no-locale", "--no-sync"];
            let folder = format!("--pgdata={data}");
            place.run("initdb", &[&arguments[..], &["--encoding=UTF8", &folder]].concat());
        }
        let mut command = place.postgres("postgres");
        command
            .args(["-D", data, "-p", &at.port().to_string()])
            .arg(format!("-clisten_addresses={}", at.ip()))
            .args(["-c", "unix_socket_directories=", "-c", "shared_buffers=32MB"])
            .args(["-c", "max_connections=60", "-c", "fsync=off"])
            .args(["-c", "wal_level=replica", "-c", "wal_retrieve_retry_interval=200ms"])
            .args(settings.iter().flat_map(|setting| ["-c", setting]));
        command
    }
}

impl Place {
    fn programs(&self) -> PathBuf {
        self.program.parent().expect("a folder").to_owned()
    }

    fn postgres(&self, program: &str) -> Command {
        let mut command = self.command(&self.programs().join(program));
        // Downloaded binaries look for libpq elsewhere, and a standby would not stream.
        command.env("LD_LIBRARY_PATH", self.programs().with_file_name("lib"));
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let output = self.postgres(program).args(arguments).output();
        let output = output.unwrap_or_else(|error| panic!("{program} did not start: {error}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} failed: {said}");
    }

    /// Starts a standby of the server on this port.
    pub(in super::super) async fn standby(&self, at: SocketAddr, of: u16) -> Server<Postgres> {
        let from = format!("host=127.0.0.1 port={of} user=postgres");
        let copy = ["--pgdata=standby", "--write-recovery-conf", "--checkpoint=fast", "--no-sync"];
        self.run("pg_basebackup", &[&copy[..], &["--dbname", &from]].concat());
        self.start("standby", at, &[]).await
    }
}
