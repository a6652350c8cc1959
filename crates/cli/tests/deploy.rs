//! What `deploy/` holds: configurations that are well. Its roles have tests of their own.

mod command;

use std::{path::Path, process::Command};

use command::{Folder, stderr};

fn deploy(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_configuration_for_kubernetes_is_well() {
    let yaml = deploy("kubernetes/posthaste.yaml");
    let settings: Vec<&str> = yaml
        .lines()
        .skip_while(|line| !line.contains("posthaste.toml: |"))
        .skip(1)
        .take_while(|line| *line != "---")
        .map(|line| line.strip_prefix("    ").unwrap_or(line))
        .collect();
    let folder = Folder::new();
    let secrets = folder.path().display().to_string();
    for (name, secret) in [
        ("database-url", "postgres://u@h/d"),
        ("nats-password", "hush"),
        ("viewer-token", "0123456789abcdef-v"),
        ("operator-token", "0123456789abcdef-o"),
    ] {
        std::fs::write(folder.join(name), secret).unwrap();
    }
    let made = rcgen::generate_simple_self_signed(["posthaste-admin".to_owned()]).unwrap();
    std::fs::write(folder.join("tls.crt"), made.cert.pem()).unwrap();
    std::fs::write(folder.join("tls.key"), made.signing_key.serialize_pem()).unwrap();
    let file = folder.join("posthaste.toml");
    let settings = settings.join("\n");
    let settings = settings.replace("/run/secrets/posthaste-tls", &secrets);
    let settings = settings.replace("/run/secrets/posthaste", &secrets);
    std::fs::write(&file, settings).unwrap();
    let said = command::succeed(&["config", "check", "--config", file.to_str().unwrap()]);
    assert!(said.contains("is well: 1 outbox to 1 destination"), "{said}");
}

/// The service may read none of root's files: every secret that its examples name is handed to it.
#[test]
fn the_unit_of_systemd_loads_every_credential_that_it_reads() {
    const CREDENTIALS: &str = "/run/credentials/posthaste.service/";

    let unit = deploy("systemd/posthaste.service");
    let read: Vec<&str> = unit
        .split(CREDENTIALS)
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap_or_default())
        .collect();
    assert!(read.contains(&"database-url"), "{read:?}");
    for name in read {
        let load = format!("LoadCredential={name}:/etc/posthaste/{name}\n");
        assert!(unit.contains(&load), "{load}");
    }
    assert!(unit.contains("\nLoadCredential=database-url:"), "it is commented out");
}

/// It ignores what it does not know, and says so.
#[test]
fn systemd_understands_every_line_of_the_unit() {
    let unit = deploy("systemd/posthaste.service");
    let unit = unit.replace("/usr/local/bin/posthaste", env!("CARGO_BIN_EXE_posthaste"));
    let folder = Folder::new();
    let file = folder.join("posthaste.service");
    std::fs::write(&file, unit).unwrap();
    let mut verify = Command::new("systemd-analyze");
    let Ok(output) = verify.arg("verify").arg(&file).output() else {
        eprintln!("systemd-analyze is not installed: the unit was not looked at");
        return;
    };
    let said = stderr(&output);
    // Of other units of the machine it may say more.
    let of_ours: Vec<_> = said.lines().filter(|line| line.contains("posthaste")).collect();
    assert!(output.status.success() && of_ours.is_empty(), "{said}");
}

#[test]
fn the_variables_of_the_compose_file_are_well() {
    let yaml = deploy("compose.yaml");
    let mut check = command::command(&["config", "check"]);
    let folder = Folder::new();
    let mut count = 0;
    for line in yaml.lines().map(str::trim).filter(|line| line.starts_with("POSTHASTE_")) {
        let (name, value) = line.split_once(": ").unwrap();
        check.env(name, value.trim_matches('\''));
        count += 1;
    }
    assert!(count >= 5, "{count} variables in the compose file");
    let output = check.current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}
