//! The configuration: one TOML file, every key also a variable of the environment, and some a flag.
//!
//! ```text
//!  file, environment, flags ──► reader ──► settings
//!                               (keys, origins, problems)
//! ```

mod origin;

mod file;

mod mask;

mod size;

mod unknown;

mod reader;

mod section;

mod settings;

mod serving;

mod command;

use std::path::{Path, PathBuf};

use posthaste::{
    Error, Result,
    relay::{Config, Routes},
};

pub(crate) use self::{
    command::{ConfigArgs, InitArgs, config, init},
    origin::Origin,
    reader::{Flag, Shown},
    serving::{AdminSettings, HealthSettings, Listen, LogLines, LogSettings, MetricsSettings},
    settings::{DestinationSettings, OutboxSettings, RouteSettings},
};
use crate::destination;

use self::{
    file::File,
    reader::{Problem, Reader},
};

/// Read when it is there and no other file is named.
const FILE: &str = "posthaste.toml";

/// All settings, and what is wrong with them.
pub(crate) struct Settings {
    pub(crate) outboxes: Vec<OutboxSettings>,
    /// The names of all outboxes of the configuration, also when `outboxes` holds a chosen one only.
    pub(crate) outbox_names: Vec<String>,
    pub(crate) destinations: Vec<DestinationSettings>,
    pub(crate) routes: Vec<RouteSettings>,
    pub(crate) log: LogSettings,
    pub(crate) metrics: MetricsSettings,
    pub(crate) health: HealthSettings,
    pub(crate) admin: AdminSettings,
    /// Every key with its effective value.
    pub(crate) shown: Vec<Shown>,
    problems: Vec<Problem>,
    /// The file that was read.
    pub(crate) file: Option<PathBuf>,
}

impl Settings {
    /// What a relay of this outbox is told, with what holds for all.
    pub(crate) fn relay_config(&self, outbox: &OutboxSettings) -> Config {
        let mut config = Config { outbox: outbox.name.clone(), ..outbox.relay.clone() };
        let Self { log, metrics, health, .. } = self;
        config.log_tenant = log.tenant;
        config.metric_tenants = metrics.tenants;
        config.housekeeping.refresh = metrics.enabled.then_some(metrics.refresh);
        config.housekeeping.health = Some(health.interval);
        config.health.max_age = health.max_age;
        config
    }
}

impl Settings {
    /// Reads the named file, or the one that is there, and what the environment and flags say.
    pub(crate) fn load(file: Option<&Path>, flags: Vec<Flag>) -> Result<Self> {
        let path = file.or_else(|| Some(Path::new(FILE)).filter(|path| path.exists()));
        let file = path.map(File::read).transpose()?;
        // What is not UTF-8 is none of ours.
        let environment = std::env::vars_os()
            .filter_map(|(name, text)| Some((name.into_string().ok()?, text.into_string().ok()?)))
            .collect();
        let mut settings = Self::read(Reader::new(file, environment, flags));
        settings.file = path.map(Path::to_owned);
        Ok(settings)
    }

    fn read(mut reader: Reader) -> Self {
        let reader = &mut reader;
        reader.destination_from_environment();
        let outboxes = settings::outboxes(reader);
        let destinations = settings::destinations(reader);
        let routes = settings::routes(reader);
        let log = serving::log(reader);
        let metrics = serving::metrics(reader);
        let health = serving::health(reader);
        let admin = serving::admin(reader);
        reader.refuse_unknown();
        let shown = std::mem::take(&mut reader.shown);
        let problems = std::mem::take(&mut reader.problems);
        Self {
            outbox_names: outboxes.iter().map(|outbox| outbox.name.clone()).collect(),
            outboxes,
            destinations,
            routes,
            log,
            metrics,
            health,
            admin,
            shown,
            problems,
            file: None,
        }
    }

    /// The names of the destinations, also of those whose URL cannot be read. One that only has a URL is
    /// called as that says.
    pub(crate) fn destination_names(&self) -> Vec<String> {
        let name = |one: &DestinationSettings| {
            let by_url = || Some(destination::configured(one).ok()?.name().to_owned());
            one.name.clone().or_else(by_url)
        };
        self.destinations.iter().filter_map(name).collect()
    }

    /// The routes of this outbox; `None` where the configuration has no destination, or something is wrong
    /// with the routes: looking at an outbox does not take them. A destination whose password is missing
    /// here is one that events go to nonetheless.
    pub(crate) fn known_routes(&self, outbox: &OutboxSettings) -> Option<Routes> {
        self.refuse(&["routes"]).ok()?;
        let names = self.destination_names();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        Some(crate::relay::routes(self, outbox, &names).ok()?.1)
    }

    /// All that is wrong, in sentences.
    pub(crate) fn problems(&self) -> Vec<String> {
        self.problems.iter().map(|problem| problem.text.clone()).collect()
    }

    /// Refuses what is wrong with the sections that somebody needs: looking at an outbox does not
    /// take the broker's password. What nobody knows is refused in any case.
    pub(crate) fn refuse(&self, needed: &[&str]) -> Result<()> {
        let concerns = |key: &str| {
            key.is_empty()
                || needed.iter().any(|section| {
                    key.strip_prefix(section)
                        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
                })
        };
        match self.problems.iter().find(|problem| concerns(&problem.key)) {
            Some(problem) => Err(Error::invalid(problem.text.clone())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
