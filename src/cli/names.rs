//! Which names of the cluster complete a command line: what the completion scripts ask for.

use std::ffi::OsString;

use clap::CommandFactory as _;

use super::typed::arranged;
use crate::args::Args;

/// Kinds whose names are completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionKind {
    Backup,
    Schedule,
    Location,
}

/// What to ask the cluster for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompletionRequest {
    pub kind: Option<CompletionKind>,
    pub namespace: Option<String>,
    pub kubeconfig: Option<String>,
    pub context: Option<String>,
}

/// Commands that take names: how many of them, at most.
const TAKERS: [(&str, &[&str], CompletionKind, usize); 6] = [
    ("backup", &["delete", "describe", "get"], CompletionKind::Backup, usize::MAX),
    ("backup", &["download", "logs", "contents"], CompletionKind::Backup, 1),
    ("backup", &["diff"], CompletionKind::Backup, 2),
    ("queue", &["hold", "release", "cancel", "first", "explain"], CompletionKind::Backup, usize::MAX),
    ("schedule", &["delete", "describe", "get", "pause", "unpause"], CompletionKind::Schedule, usize::MAX),
    ("backup-location", &["delete", "get", "set"], CompletionKind::Location, usize::MAX),
];
/// Flags whose value is a name.
const FLAGS: [(&str, CompletionKind); 3] = [
    ("from-schedule", CompletionKind::Schedule),
    ("storage-location", CompletionKind::Location),
    ("location", CompletionKind::Location),
];

/// Where in a command line a word is being typed.
pub struct Position<'a> {
    /// The command that the words before it name.
    pub command: &'a clap::Command,
    /// The flag whose value it is.
    pub flag: Option<&'a clap::Arg>,
    /// How many words before it are neither commands nor flags.
    pub names: usize,
    pub request: CompletionRequest,
}

/// What completes the word behind these, which stand behind the program's name.
pub fn wanted(words: &[String]) -> CompletionRequest {
    let mut command = Args::command();
    command.build();
    position(&command, words).request
}

/// Where the word behind these is typed. `command`: the program's, which is built.
pub fn position<'a>(command: &'a clap::Command, words: &[String]) -> Position<'a> {
    let typed = ["berth".to_owned()].into_iter().chain(words.iter().cloned()).map(OsString::from);
    let words: Vec<String> =
        arranged(typed).into_iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let mut path = Vec::new();
    let mut found = Position { command, flag: None, names: 0, request: CompletionRequest::default() };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if let Some((arg, takes)) = flag(found.command, word) {
            let value = match word.split_once('=') {
                Some((_, value)) => Some(value.to_owned()),
                None if takes => match words.next() {
                    Some(value) => Some(value.clone()),
                    // The value itself is being typed.
                    None => {
                        found.flag = Some(arg);
                        found.request.kind = kind_of(arg);
                        return found;
                    }
                },
                None => None,
            };
            match arg.get_long() {
                Some("namespace") => found.request.namespace = value,
                Some("kubeconfig") => found.request.kubeconfig = value,
                Some("context") => found.request.context = value,
                _ => {}
            }
        } else if word.starts_with('-') {
            // No flag of this command; whatever it is has no further meaning here.
        } else if let Some(next) = found.command.find_subcommand(word).filter(|_| found.names == 0) {
            found.command = next;
            path.push(next.get_name());
        } else {
            found.names += 1;
        }
    }
    if let [noun, verb] = path.as_slice() {
        let taker = TAKERS.iter().find(|(of, verbs, ..)| of == noun && verbs.contains(verb));
        let taker = taker.filter(|(.., most)| found.names < *most);
        found.request.kind = taker.map(|(_, _, kind, _)| *kind);
    }
    found
}

/// Of which kind the value of a flag is a name.
pub fn kind_of(flag: &clap::Arg) -> Option<CompletionKind> {
    let long = flag.get_long()?;
    FLAGS.iter().find(|(name, _)| *name == long).map(|(_, kind)| *kind)
}

/// The flag that a word is, and whether its value is a word of its own.
pub fn flag<'a>(command: &'a clap::Command, word: &str) -> Option<(&'a clap::Arg, bool)> {
    let name = word.split('=').next().unwrap_or(word);
    let is_it = |arg: &&clap::Arg| {
        let long = name.strip_prefix("--").is_some_and(|name| {
            arg.get_long() == Some(name)
                || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
        });
        let mut letters = name.strip_prefix('-').unwrap_or_default().chars();
        let short = letters.next().filter(|_| letters.next().is_none());
        long || (short.is_some() && arg.get_short() == short)
    };
    let arg = command.get_arguments().find(is_it)?;
    let takes = arg.get_action().takes_values()
        && !arg.is_require_equals_set()
        && arg.get_num_args().is_none_or(|count| count.min_values() > 0);
    Some((arg, takes))
}

/// Whether a name may be handed to a shell.
pub fn is_plain(name: &str) -> bool {
    berth_core::glob::is_subdomain(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(line: &str) -> CompletionRequest {
        wanted(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn a_command_line_wants_the_names_that_its_next_word_may_be() {
        use CompletionKind::{Backup, Location, Schedule};
        for (line, kind) in [
            ("backup describe", Some(Backup)),
            ("describe backups", Some(Backup)),
            ("backup describe one", Some(Backup)),
            ("backup logs", Some(Backup)),
            ("backup logs one", None),
            ("backup diff one", Some(Backup)),
            ("backup diff one two", None),
            ("backup create", None),
            ("backup create x --from-schedule", Some(Schedule)),
            ("backup create x --storage-location", Some(Location)),
            ("backup create x --storage-location default", None),
            ("backup create x --ttl", None),
            ("backup get -o", None),
            ("backup get -o json", Some(Backup)),
            ("backup describe --details", Some(Backup)),
            ("backup delete --confirm", Some(Backup)),
            ("schedule pause daily", Some(Schedule)),
            ("bsl set", Some(Location)),
            ("get backup-locations", Some(Location)),
            ("queue hold", Some(Backup)),
            ("queue hold --location", Some(Location)),
            ("queue list", None),
            ("backup", None),
            ("install", None),
            ("", None),
            ("--nonsense", None),
        ] {
            assert_eq!(of(line).kind, kind, "{line}");
        }
        let found = of("-n team backup describe --kubeconfig=/k --kubecontext c a -n other");
        assert_eq!((found.namespace.as_deref(), found.kind), (Some("other"), Some(CompletionKind::Backup)));
        assert_eq!((found.kubeconfig.as_deref(), found.context.as_deref()), (Some("/k"), Some("c")));
    }

    proptest! {
        #[test]
        fn any_words_are_understood_or_not_and_never_panic(words in proptest::collection::vec(".{0,12}", 0..6)) {
            let _ = wanted(&words);
        }
    }
}
