//! MariaDB.

use std::{fs, net::SocketAddr, process::Command};

use rustix::process::Signal;
use sqlx::MySql;

use super::{Engine, Place, give_away};

impl Engine for MySql {
    const QUIT: Signal = Signal::KILL;

    fn url(at: SocketAddr) -> String {
        format!("mysql://posthaste:posthaste@{at}/posthaste")
    }

    fn command(place: &Place, data: &str, at: SocketAddr, settings: &[&str]) -> Command {
        let folder = place.folder.join(data);
        if !folder.exists() {
            fs::create_dir(&folder).expect("a folder for the server cannot be made");
            give_away(&folder);
        }
        let mut command = place.command(&place.program);
        let bind = format!("bind-address = {}\n", at.ip());
        command.arg(at.port().to_string()).arg(folder).arg(bind + &settings.join("\n"));
        command
    }
}
