//! Who is at the terminal, and whether they mean it.

use std::io::{BufRead as _, IsTerminal as _, Write as _, stderr, stdin};

use clap::Args;
use posthaste::{Error, ErrorKind, Result};
use posthaste_operate::Operator;

use crate::{args::OutboxArgs, database};

/// Where, and under whose name.
#[derive(Args)]
pub(super) struct OperatorArgs {
    #[command(flatten)]
    outbox: OutboxArgs,

    /// The name that the audit remembers [default: user@host]
    #[arg(long = "as", value_name = "NAME")]
    by: Option<String>,
}

impl OperatorArgs {
    /// Opens the outbox for changes.
    pub(super) async fn open(&self) -> Result<Operator> {
        let (store, _) = database::open(&self.outbox.one()?).await?;
        Ok(Operator::new(store, self.by.clone().unwrap_or_else(at_the_terminal)))
    }

    pub(super) fn outbox(&self) -> &OutboxArgs {
        &self.outbox
    }
}

/// `user@host`, as far as the system tells.
fn at_the_terminal() -> String {
    let variable = |names: &[&str]| {
        names.iter().find_map(|name| std::env::var(name).ok().filter(|text| !text.is_empty()))
    };
    let user = variable(&["USER", "LOGNAME", "USERNAME"])
        .or_else(account_number)
        .unwrap_or_else(|| "unknown".to_owned());
    let kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let host = kernel
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .or_else(|| variable(&["HOSTNAME", "COMPUTERNAME"]))
        .unwrap_or_else(|| "localhost".to_owned());
    format!("{user}@{host}")
}

/// Services and containers often have no name in their environment.
fn account_number() -> Option<String> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        std::fs::metadata("/proc/self").ok().map(|own| format!("uid-{}", own.uid()))
    }
    #[cfg(not(unix))]
    None
}

/// Asks before something happens to many events. A "no" is a refusal, and so is nobody to ask.
pub(super) fn confirm(question: &str, yes: bool) -> Result<()> {
    if yes {
        return Ok(());
    }
    let refused = |text: String| Err(Error::new(ErrorKind::Refused, text));
    if !stdin().is_terminal() {
        return refused(format!("{question} Nobody is there to answer; say --yes to go ahead"));
    }
    // A question that cannot be written is answered by whoever reads nothing.
    let _ = write!(stderr(), "{question} [y/N] ").and_then(|()| stderr().flush());
    let mut answer = String::new();
    let read = stdin().lock().read_line(&mut answer);
    match (read, answer.trim().to_ascii_lowercase().as_str()) {
        (Ok(_), "y" | "yes") => Ok(()),
        _ => refused("nothing was changed".to_owned()),
    }
}
