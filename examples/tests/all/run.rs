//! Runs an example and gives what it said.

use std::process::Command;

/// The lines that this program wrote. It must end well.
pub fn lines(program: &str) -> Vec<String> {
    let output = Command::new(program).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}
