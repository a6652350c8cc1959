//! Flags that several commands share.

use std::path::PathBuf;

use clap::Args;
use posthaste::{Error, Result};

use crate::{
    config::{Flag, Origin, OutboxSettings, Settings},
    logging,
};

/// Which outbox, in which database.
#[derive(Args)]
pub(crate) struct OutboxArgs {
    /// The configuration file [default: `posthaste.toml`, if it is there]
    #[arg(long, value_name = "FILE", env = "POSTHASTE_CONFIG")]
    config: Option<PathBuf>,

    /// The database: `postgres://user:password@host/name?sslmode=verify-full`, `mysql://…` (also
    /// `mariadb://…`) or `sqlite:file.db` [env: `POSTHASTE_URL`]
    #[arg(long, value_name = "URL")]
    url: Option<String>,

    /// The outbox's table, with or without a schema [env: `POSTHASTE_TABLE`; default:
    /// `outbox_event`]
    #[arg(long, value_name = "NAME")]
    table: Option<String>,

    /// Which outbox, when the configuration has several
    #[arg(long, value_name = "NAME")]
    outbox: Option<String>,
}

impl OutboxArgs {
    /// All settings; what is wrong is not refused yet.
    pub(crate) fn load(&self, mut flags: Vec<Flag>) -> Result<Settings> {
        for (key, flag, text) in
            [("outbox.url", "--url", &self.url), ("outbox.table", "--table", &self.table)]
        {
            flags.extend(text.iter().map(|text| Flag {
                key: key.to_owned(),
                text: text.clone(),
                origin: Origin::Flag(flag),
            }));
        }
        let mut settings = Settings::load(self.config.as_deref(), flags)?;
        if let Some(name) = &self.outbox {
            let names: Vec<&str> = settings.outboxes.iter().map(|o| o.name.as_str()).collect();
            if !names.contains(&name.as_str()) {
                return Err(Error::invalid(format!(
                    "--outbox {name:?} is not in the configuration; there are {}",
                    names.join(", ")
                )));
            }
            settings.outboxes.retain(|outbox| outbox.name == *name);
        }
        Ok(settings)
    }

    /// The settings of a command that looks at one outbox or changes it.
    pub(crate) fn one(&self) -> Result<OutboxSettings> {
        let mut settings = self.load(Vec::new())?;
        settings.refuse(&["outbox", "outboxes", "log"])?;
        logging::to_stderr("warn", Some(&settings.log));
        if settings.outboxes.len() > 1 {
            let names: Vec<&str> = settings.outboxes.iter().map(|o| o.name.as_str()).collect();
            return Err(Error::invalid(format!(
                "the configuration has several outboxes; choose one with --outbox: {}",
                names.join(", ")
            )));
        }
        settings.outboxes.pop().ok_or_else(|| Error::invalid("no outbox is configured"))
    }
}
