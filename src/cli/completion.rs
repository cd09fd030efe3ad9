//! Completion scripts: commands and flags, which the scripts have in themselves, and names of
//! Backups, Schedules and locations, for which they ask `berth complete-names`.

use std::io::Write;

use clap::CommandFactory;
use clap_complete::shells;

use crate::args::{Args, Shell};

const BASH: &str = r#"
_berth_names() {
    _berth "$@"
    local word="${COMP_WORDS[COMP_CWORD]}"
    if [[ "$word" == -* ]]; then
        return 0
    fi
    local names
    names="$(command "${COMP_WORDS[0]}" complete-names -- "${COMP_WORDS[@]:1:COMP_CWORD-1}" 2>/dev/null)"
    if [[ -n "$names" ]]; then
        COMPREPLY=($(compgen -W "$names" -- "$word"))
    fi
}
complete -F _berth_names -o bashdefault -o default berth
"#;

const ZSH: &str = r#"_berth() {
    local -a before found
    before=("${(@)words[2,CURRENT-1]}")
    local program="${words[1]}" word="${words[CURRENT]}"
    _berth_words "$@"
    local ended=$?
    if [[ "$word" != -* ]]; then
        found=("${(@f)$(command $program complete-names -- $before 2>/dev/null)}")
        found=(${found:#})
        if (( ${#found} )); then
            compadd -- $found && ended=0
        fi
    fi
    return $ended
}

"#;

const FISH: &str = r#"
function __berth_names
    set -l words (commandline -opc)
    command $words[1] complete-names -- $words[2..-1] 2>/dev/null
end
complete -c berth -a '(__berth_names)'
complete -c berth -l from-schedule -x -a '(__berth_names)'
complete -c berth -l storage-location -x -a '(__berth_names)'
"#;

const POWERSHELL: &str = r#"    $before = @($commandElements | Select-Object -Skip 1 |
        Where-Object { $_.Extent.EndOffset -lt $cursorPosition } | ForEach-Object { $_.ToString() })
    if (-not "$wordToComplete".StartsWith('-')) {
        $names = @(& $commandElements[0].ToString() complete-names '--' @before 2>$null)
        $completions = @($completions) + @($names | Where-Object { $_ } | ForEach-Object {
            [CompletionResult]::new($_, $_, [CompletionResultType]::ParameterValue, $_)
        })
    }

"#;

/// Writes the script for a shell.
///
/// # Errors
/// When it cannot be written.
pub fn write(shell: Shell, out: &mut impl Write) -> std::io::Result<()> {
    out.write_all(script(shell).as_bytes())
}

fn script(shell: Shell) -> String {
    let mut command = Args::command();
    let mut script = Vec::new();
    match shell {
        Shell::Bash => clap_complete::generate(shells::Bash, &mut command, "berth", &mut script),
        Shell::Zsh => clap_complete::generate(shells::Zsh, &mut command, "berth", &mut script),
        Shell::Fish => clap_complete::generate(shells::Fish, &mut command, "berth", &mut script),
        Shell::Powershell => clap_complete::generate(shells::PowerShell, &mut command, "berth", &mut script),
    }
    let script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        Shell::Bash => script + BASH,
        Shell::Fish => script + FISH,
        // The script's own function gets another name, and what it offers is added to.
        Shell::Zsh => {
            let script = script.replacen("\n_berth() {", "\n_berth_words() {", 1);
            let end = "if [ \"$funcstack[1]\" = \"_berth\" ]";
            script.replacen(end, &format!("{ZSH}{end}"), 1)
        }
        Shell::Powershell => {
            let end = "    $completions.Where{";
            script.replacen(end, &format!("{POWERSHELL}{end}"), 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_completes_the_commands_of_velero_and_asks_for_names_once() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Powershell] {
            let script = script(shell);
            for wanted in ["backup-location", "unpause", "include-cluster-scoped-resources"] {
                assert!(script.contains(wanted), "{wanted} is not in the script of {shell:?}");
            }
            let asks = |line: &&str| {
                ["complete-names -- ", "complete-names '--' "].iter().any(|ask| line.contains(ask))
            };
            let asks = script.lines().filter(asks);
            assert_eq!(asks.count(), 1, "{shell:?}: {script}");
        }
        let zsh = script(Shell::Zsh);
        assert_eq!(zsh.matches("\n_berth() {").count(), 1);
        assert_eq!(zsh.matches("\n_berth_words() {").count(), 1);
    }
}
