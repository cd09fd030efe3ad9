//! `berth help`: the help of a command, or what several commands have in common.

use clap::{Command, CommandFactory as _};

use super::suggest::closest;
use crate::args::Args;

/// What is told besides the commands.
const TOPICS: [(&str, &str, &str); 5] = [
    (
        "exit-codes",
        "what the exit code of a command says",
        "0  the command did what it was asked\n1  it failed; the message says why\n2  its flags are wrong\n\n\
         `berth backup create --wait` and `berth backup logs --follow` also tell how the backup ended:\n\n\
         0  Completed\n3  PartiallyFailed\n4  Failed\n5  FailedValidation\n6  it was canceled\n7  it was deleted\n",
    ),
    (
        "connection",
        "how the cluster and the namespace are found",
        "Cluster: --kubeconfig FILE, else KUBECONFIG, else ~/.kube/config, else the pod's service\n\
         account; --context NAME is a context of that file.\n\n\
         Namespace: -n NAME, else `namespace` in ~/.config/velero/config.json (which `velero client\n\
         config set` writes), else VELERO_NAMESPACE, else velero.\n\n\
         Of that file `cacert` and `colorized` count, too; flags outrank it.\n",
    ),
    (
        "output",
        "the ways to print a list",
        "-o table            the default\n\
         -o wide             more columns\n\
         -o name             one name a line\n\
         -o json, -o yaml    the objects\n\
         -o jsonpath=TEMPLATE\n\
         -o custom-columns=HEAD:PATH,…\n\n\
         Templates are kubectl's: {.items[*].metadata.name}, ['field'], [0], [-1:], [*],\n\
         [?(@.status.phase==\"Failed\")], {range .items[*]}…{end}, {\"\\n\"}. `..` and lists of indexes\n\
         are refused. What is not there prints nothing.\n\n\
         Colours are on a terminal only, and never if NO_COLOR is set or --colorized=false is\n\
         given.\n",
    ),
    (
        "dry-run",
        "how to look before a backup is made",
        "berth backup create NAME --dry-run=client  checks the flags and prints the object\n\
         berth backup create NAME --dry-run=server  also asks the API server and the webhooks\n\
         berth backup create NAME --dry-run=plan    also reads what would be stored: objects by type\n\
         \x20                                          and namespace, volumes and why, hooks, what it\n\
         \x20                                          would wait for. Nothing is written.\n",
    ),
    (
        "completion",
        "how a shell completes commands, flags and names",
        "source <(berth completion bash)\n\
         berth completion zsh > \"${fpath[1]}/_berth\"\n\
         berth completion fish | source\n\
         berth completion powershell | Out-String | Invoke-Expression\n\n\
         Names are those of the cluster; if it does not answer within a second, there are none.\n\n\
         `kubectl berth` is completed by kubectl's own script, once this link is in the PATH (in\n\
         /usr/local/bin it needs root):\n\n\
         ln -s \"$(command -v berth)\" /usr/local/bin/kubectl_complete-berth\n",
    ),
];

/// What `berth help WORDS…` prints.
///
/// # Errors
/// When there is no such command or topic.
pub fn help(words: &[String]) -> Result<String, String> {
    let mut root = Args::command();
    root.build();
    match words {
        [] => {
            return Ok(format!("{}\n`berth help topics` lists what commands have in common.\n", long(&root)));
        }
        [one] if one == "topics" => return Ok(topics()),
        [one] => {
            if let Some((_, _, text)) = TOPICS.iter().find(|(name, ..)| name == one) {
                return Ok((*text).to_owned());
            }
        }
        _ => {}
    }
    let mut at = &root;
    for word in words {
        let visible = |command: &&Command| !command.is_hide_set();
        at = match at.find_subcommand(word).filter(visible) {
            Some(command) => command,
            None => {
                let commands = at.get_subcommands().filter(visible).map(Command::get_name);
                let topics = TOPICS.iter().map(|(name, ..)| *name).chain(["topics"]);
                let meant = match closest(word, commands.chain(topics)) {
                    Some(meant) => format!(": did you mean {meant}?"),
                    None => ": `berth help topics` and `berth --help` list them".to_owned(),
                };
                return Err(format!("there is no command or topic {word:?}{meant}"));
            }
        };
    }
    Ok(long(at))
}

fn long(command: &Command) -> String {
    command.clone().render_long_help().to_string()
}

fn topics() -> String {
    let mut text = "`berth help TOPIC` tells\n\n".to_owned();
    for (name, about, _) in TOPICS {
        text += &format!("  {name:12}{about}\n");
    }
    text + "\n`berth help COMMAND` shows the help of a command.\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(words: &[&str]) -> Result<String, String> {
        help(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn topics_and_commands_are_told_and_a_wrong_word_is_suggested() {
        let topics = said(&["topics"]).unwrap();
        for (name, _, text) in TOPICS {
            assert!(topics.contains(name), "{topics}");
            assert_eq!(said(&[name]).unwrap(), text);
            assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        }
        assert!(said(&["backup", "create"]).unwrap().contains("--include-namespaces"));
        assert!(said(&[]).unwrap().contains("help topics"));
        assert!(said(&["exit-code"]).unwrap_err().contains("exit-codes"));
        assert!(said(&["backup", "creat"]).unwrap_err().contains("did you mean create?"));
        assert!(said(&["reference"]).is_err(), "it is hidden");
    }
}
