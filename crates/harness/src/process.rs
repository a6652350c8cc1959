//! A process of a test: started, watched, paused, killed, and ended by its id whatever happens.

use std::{
    fmt, fs,
    io::{BufRead, BufReader, Write},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::{mpsc, watch};

use crate::{
    clock,
    message::{Message, Report},
};

/// Nothing here takes so long unless it hangs.
pub const LIMIT: Duration = Duration::from_mins(1);

/// One process of the binary `posthaste-harness`.
pub struct Process {
    /// The name that it was started with.
    pub name: String,
    child: Child,
    /// Stays open as long as we live: its end tells the process that its parent has gone.
    stdin: Mutex<ChildStdin>,
    /// Closed when the process ends. Written by the thread that reads its standard output.
    reports: watch::Receiver<Report>,
    written: Mutex<Option<mpsc::UnboundedReceiver<String>>>,
    log: PathBuf,
}

impl Process {
    /// Starts the binary with these arguments. Its log goes to this file.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub fn start(binary: &Path, name: &str, arguments: &[String], log: PathBuf) -> Self {
        let file = fs::File::create(&log).expect("a log file cannot be made");
        let mut child = Command::new(binary)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn()
            .unwrap_or_else(|error| panic!("{} cannot be started: {error}", binary.display()));
        let stdin = Mutex::new(child.stdin.take().expect("its input is piped"));
        let stdout = child.stdout.take().expect("its output is piped");
        let (report_sender, reports) = watch::channel(Report::default());
        let (written_sender, written) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                match line.ok().and_then(|line| serde_json::from_str(&line).ok()) {
                    Some(Message::Report(report)) => {
                        let _ = report_sender.send(report);
                    }
                    Some(Message::Written(key)) => {
                        let _ = written_sender.send(key);
                    }
                    // Half a line of a process that was killed while it spoke.
                    None => break,
                }
            }
        });
        Self {
            name: name.to_owned(),
            child,
            stdin,
            reports,
            written: Mutex::new(Some(written)),
            log,
        }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it last said.
    pub fn report(&self) -> Report {
        self.reports.borrow().clone()
    }

    /// Waits until it says so.
    ///
    /// # Panics
    ///
    /// When it does not say so within [`LIMIT`], or ends before.
    pub async fn until(&self, what: &str, reached: impl FnMut(&Report) -> bool) -> Report {
        let mut reports = self.reports.clone();
        let Ok(outcome) = tokio::time::timeout(LIMIT, reports.wait_for(reached)).await else {
            panic!("waited in vain for {what}: {self}");
        };
        let Ok(report) = outcome else {
            panic!("waited for {what}, but it ended: {self}");
        };
        report.clone()
    }

    /// The keys of commanded transactions as they are committed. Given once.
    ///
    /// # Panics
    ///
    /// When it was taken before.
    pub fn written(&self) -> mpsc::UnboundedReceiver<String> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.take().expect("somebody listens already")
    }

    /// Says a line to it.
    ///
    /// # Panics
    ///
    /// When it does not listen any more.
    pub fn tell(&self, line: &str) {
        let mut stdin = self.stdin.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(stdin, "{line}").unwrap_or_else(|error| panic!("{error}: {self}"));
    }

    /// SIGKILL. Gives a time after its last deed.
    pub fn kill(&mut self) -> u64 {
        let _ = self.child.kill();
        let _ = self.child.wait();
        clock::now()
    }

    /// SIGTERM, without waiting for what comes of it.
    pub fn terminate(&mut self) {
        self.signal(Signal::TERM);
    }

    /// SIGTERM, and waits for the end that must come of it. Gives its last report.
    ///
    /// # Panics
    ///
    /// When it does not end, or not well.
    pub async fn stop(mut self) -> Report {
        self.terminate();
        self.stopped().await
    }

    /// Waits for the good end of a process that was terminated. Gives its last report.
    ///
    /// # Panics
    ///
    /// When it does not end, or not well.
    pub async fn stopped(mut self) -> Report {
        let status = self.ended().await;
        let report = self.report();
        if status.signal() == Some(Signal::TERM.as_raw()) && report == Report::default() {
            // So early that it had not yet learnt to listen.
            return Report { stopped: true, ..report };
        }
        assert!(status.success(), "ended with {status}: {self}");
        assert!(report.stopped, "ended before it had stopped: {self}");
        report
    }

    /// Waits until it ends by itself, or of a signal.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub async fn ended(&mut self) -> ExitStatus {
        let mut reports = self.reports.clone();
        let silent = async { while reports.changed().await.is_ok() {} };
        let ended = tokio::time::timeout(LIMIT, silent).await;
        assert!(ended.is_ok(), "waited in vain for the end of {self}");
        // Its output is closed: it is ending, or has ended.
        self.child.wait().expect("its end cannot be heard of")
    }

    /// SIGSTOP; returns when it stands still.
    ///
    /// # Panics
    ///
    /// When it has ended.
    pub fn pause(&mut self) {
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.id());
        loop {
            let text = fs::read_to_string(&stat).expect("it has ended");
            // The state follows the name, which stands in parentheses.
            let state = text.rsplit_once(')').map(|(_, rest)| rest.trim_start().chars().next());
            if matches!(state, Some(Some('T' | 't'))) {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// SIGCONT.
    pub fn resume(&mut self) {
        self.signal(Signal::CONT);
    }

    /// Only while it has not been waited for: afterwards its id can be another's.
    fn signal(&mut self, signal: Signal) {
        let ended = self.child.try_wait().expect("its state cannot be asked for");
        assert!(ended.is_none(), "it has ended: {self}");
        let id = i32::try_from(self.id()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(id, signal).expect("it cannot be signalled");
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} (process {}), {:?}", self.name, self.id(), self.report())?;
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        for line in &lines[lines.len().saturating_sub(20)..] {
            writeln!(f, "  {line}")?;
        }
        Ok(())
    }
}

impl Drop for Process {
    /// Whatever happened, it ends here.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
