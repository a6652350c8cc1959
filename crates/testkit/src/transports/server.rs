//! A server for one case alone: killed when the case says so, and in the end.

use std::{
    fmt, fs,
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use uuid::Uuid;

/// A server that does not answer for so long does not start.
const START_LIMIT: Duration = Duration::from_mins(1);

/// How often a server may find one of its ports taken.
const PORTS: u32 = 5;

/// One that ends in order does not take longer.
const END_LIMIT: Duration = Duration::from_secs(10);

type MakeUrl = Box<dyn Fn(u16) -> String + Send + Sync>;
type MakeCommand = Box<dyn Fn(u16, &Path) -> Command + Send + Sync>;

/// A server of its own: a free loopback port, a folder that goes when it goes, one process group.
pub struct Server {
    port: u16,
    folder: PathBuf,
    url: MakeUrl,
    command: MakeCommand,
    ready: Option<&'static str>,
    in_order: bool,
    process: Option<Child>,
    /// It has its port for good: others know it.
    ran: bool,
}

impl Server {
    /// Not started yet. `url` gives the address for a port, `command` what to run on that port with
    /// that folder for its data; the folder is there already.
    pub fn new(
        url: impl Fn(u16) -> String + Send + Sync + 'static,
        command: impl Fn(u16, &Path) -> Command + Send + Sync + 'static,
    ) -> Self {
        let random = Uuid::now_v7().as_u128() as u64;
        let folder = std::env::temp_dir().join(format!("posthaste-server-{random:016x}"));
        fs::create_dir_all(&folder).expect("a folder for a server can be made");
        Self {
            port: free_port(),
            folder,
            url: Box::new(url),
            command: Box::new(command),
            ready: None,
            in_order: false,
            process: None,
            ran: false,
        }
    }

    /// It is ready once its output holds this text; otherwise as soon as it accepts a connection.
    pub fn ready_when(mut self, text: &'static str) -> Self {
        self.ready = Some(text);
        self
    }

    /// It keeps its data only when it ends in order: [`kill`](Self::kill) asks it to.
    pub fn ends_in_order(mut self) -> Self {
        self.in_order = true;
        self
    }

    /// Where it is, or will be.
    pub fn url(&self) -> String {
        (self.url)(self.port)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its data and its output, in the file `log`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Starts it, or starts it again with the data that it left, and waits until it is ready.
    pub async fn start(&mut self) {
        assert!(self.process.is_none(), "the server runs already");
        // Some take a second port, which nobody looked whether it is free.
        let mut tries = if self.ran { 1 } else { PORTS };
        while let Err(output) = self.try_start().await {
            tries -= 1;
            assert!(tries > 0, "the server ended by itself: {output}");
            self.kill();
            self.port = free_port();
        }
        self.ran = true;
    }

    /// What it said, if it ended by itself.
    async fn try_start(&mut self) -> Result<(), String> {
        let path = self.folder.join("log");
        let log = fs::File::create(&path).expect("the server's log can be written");
        let command = (self.command)(self.port, &self.folder);
        // It must not outlive the test, however that ends.
        let mut bound = Command::new("setpriv");
        bound.args(["--pdeathsig", "KILL"]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => bound.env(name, value),
                None => bound.env_remove(name),
            };
        }
        bound
            .current_dir(command.get_current_dir().unwrap_or(&self.folder))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file can be opened twice"))
            .stderr(log);
        std::os::unix::process::CommandExt::process_group(&mut bound, 0);
        self.process = Some(bound.spawn().expect("setpriv can be run"));
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let output = fs::read(&path).unwrap_or_default();
            let output = String::from_utf8_lossy(&output);
            if self.ready.is_none_or(|text| output.contains(text)) && self.answers() {
                return Ok(());
            }
            let ended = self.process.as_mut().and_then(|process| process.try_wait().ok().flatten());
            if ended.is_some() {
                return Err(output.into_owned());
            }
            assert!(Instant::now() < deadline, "the server did not start: {output}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn answers(&self) -> bool {
        TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok()
    }

    /// Stops its processes in their tracks: connections stay, and nobody answers.
    pub async fn freeze(&self) {
        self.signal("STOP");
        let Some(process) = &self.process else { return };
        // A thread that waits for a processor notices only when it gets one.
        let deadline = Instant::now() + START_LIMIT;
        while !threads_of(process.id()).all(|state| matches!(state, 'T' | 'Z' | 'X')) {
            assert!(Instant::now() < deadline, "the server cannot be stopped");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Lets them go on.
    pub fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, signal: &str) {
        let Some(process) = &self.process else { return };
        // The group was made for it; standard Rust can only kill, and one process at that.
        let group = format!("kill -{signal} -{}", process.id());
        let _ = Command::new("sh").args(["-c", &group]).stderr(Stdio::null()).status();
    }

    /// Kills it as a power cut would: SIGKILL to all of its processes. Its data stays. One that
    /// [`ends_in_order`](Self::ends_in_order) gets a SIGTERM first, and time to heed it.
    pub fn kill(&mut self) {
        if self.in_order {
            self.signal("TERM");
            let deadline = Instant::now() + END_LIMIT;
            while let Some(Ok(None)) = self.process.as_mut().map(Child::try_wait)
                && Instant::now() < deadline
            {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        self.signal("KILL");
        let Some(mut process) = self.process.take() else { return };
        let _ = process.kill();
        let _ = process.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("port", &self.port)
            .field("runs", &self.process.is_some())
            .finish_non_exhaustive()
    }
}

/// The states of all threads of a process group, as the kernel tells them.
fn threads_of(group: u32) -> impl Iterator<Item = char> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter(move |process| {
            let group = group.to_string();
            // Behind the name, which may hold anything: state, parent, group.
            state_of(&process.path()).is_some_and(|stat| stat.split(' ').nth(2) == Some(&group))
        })
        .flat_map(|process| {
            fs::read_dir(process.path().join("task")).into_iter().flatten().flatten()
        })
        .filter_map(|thread| state_of(&thread.path())?.chars().next())
}

fn state_of(process: &Path) -> Option<String> {
    let stat = fs::read_to_string(process.join("stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.to_owned())
}

/// Below the range from which the kernel takes ports for outgoing connections: nobody gets it
/// while the server is down.
fn free_port() -> u16 {
    for _ in 0..100 {
        let port = fastrand::u16(10_000..20_000);
        if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            return port;
        }
    }
    panic!("no port is free");
}
