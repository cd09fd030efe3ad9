//! Completion scripts.

use std::io::Write;

use clap::CommandFactory as _;
use clap_complete::shells;

use crate::args::{Args, Shell};

/// Writes the script for a shell.
pub fn write(shell: Shell, out: &mut impl Write) {
    let mut command = Args::command();
    match shell {
        Shell::Bash => clap_complete::generate(shells::Bash, &mut command, "berth", out),
        Shell::Zsh => clap_complete::generate(shells::Zsh, &mut command, "berth", out),
        Shell::Fish => clap_complete::generate(shells::Fish, &mut command, "berth", out),
        Shell::Powershell => clap_complete::generate(shells::PowerShell, &mut command, "berth", out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_completes_the_commands_of_velero() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Powershell] {
            let mut script = Vec::new();
            write(shell, &mut script);
            let script = String::from_utf8(script).unwrap();
            for wanted in ["backup-location", "unpause", "include-cluster-scoped-resources"] {
                assert!(script.contains(wanted), "{wanted} is not in the script of {shell:?}");
            }
        }
    }
}
