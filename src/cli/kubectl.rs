//! What kubectl asks for when somebody completes the words behind `kubectl berth`: it runs the
//! program `kubectl_complete-berth` with these words, of which the last one is being typed, and
//! expects a candidate on each line, and then what the shell is to do with them.

use clap::builder::StyledStr;
use clap::{Arg, Command, CommandFactory as _, ValueHint};

use super::names::{CompletionRequest, flag, kind_of, position};
use super::typed::{is_global, is_verb};
use crate::args::Args;

/// The last line: the shell offers nothing else, or its files.
const NO_FILES: &str = ":4";
const FILES: &str = ":0";

/// What may stand where a word is being typed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidates {
    /// What is typed of it.
    begun: String,
    /// Words of the program, with what they mean.
    words: Vec<(String, String)>,
    /// Names of the cluster that may stand there, too.
    pub request: CompletionRequest,
    is_file: bool,
}

/// What completes the last of these words.
pub fn candidates(words: &[String]) -> Candidates {
    let mut root = Args::command();
    root.build();
    let (begun, before) = words.split_last().map_or(("", words), |(last, before)| (last.as_str(), before));
    let found = position(&root, before);
    let mut offered = Candidates { begun: begun.to_owned(), request: found.request, ..Candidates::default() };
    let is_first = std::ptr::eq(found.command, &root) && found.names == 1;
    // Its value; the shell puts what stands before `=` there itself.
    let with_value = begun.strip_prefix('-').and_then(|_| begun.split_once('='));
    if let Some(arg) = found.flag {
        offered.values_of(arg);
    } else if let Some((name, value)) = with_value {
        value.clone_into(&mut offered.begun);
        offered.request.kind = None;
        if let Some((arg, _)) = flag(found.command, name) {
            offered.request.kind = kind_of(arg);
            offered.values_of(arg);
        }
    } else if begun.starts_with('-') {
        offered.request.kind = None;
        offered.flags_of(found.command);
    } else if let Some(last) = before.last().filter(|last| is_global(last)) {
        // It stands before its command, which alone knows it.
        offered.is_file = last == "--kubeconfig";
    } else if let Some(verb) = before.last().filter(|last| is_first && is_verb(last)) {
        let nouns = root.get_subcommands().filter(|noun| noun.find_subcommand(verb).is_some());
        offered.commands(nouns);
    } else {
        if found.names == 0 {
            offered.commands(found.command.get_subcommands());
        }
        if let Some(arg) = found.command.get_positionals().nth(found.names) {
            offered.values_of(arg);
        }
    }
    offered
}

impl Candidates {
    /// What kubectl reads. `names`: what the cluster has.
    pub fn text(&self, names: &[String]) -> String {
        let words = self.words.iter().map(|(word, means)| (word.as_str(), means.as_str()));
        let all = words.chain(names.iter().map(|name| (name.as_str(), "")));
        let mut text = String::new();
        for (word, means) in all.filter(|(word, _)| word.starts_with(&self.begun)) {
            text.push_str(word);
            if !means.is_empty() {
                text.push('\t');
                text.push_str(means);
            }
            text.push('\n');
        }
        text.push_str(if self.is_file { FILES } else { NO_FILES });
        text.push('\n');
        text
    }

    fn values_of(&mut self, arg: &Arg) {
        let values = arg.get_possible_values();
        let values = values.iter().filter(|value| !value.is_hide_set());
        self.words.extend(values.map(|value| (value.get_name().to_owned(), brief(value.get_help()))));
        let hint = arg.get_value_hint();
        self.is_file = matches!(hint, ValueHint::AnyPath | ValueHint::FilePath | ValueHint::DirPath);
    }

    fn flags_of(&mut self, command: &Command) {
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
            if let Some(long) = arg.get_long() {
                self.words.push((format!("--{long}"), brief(arg.get_help())));
            }
        }
    }

    fn commands<'a>(&mut self, all: impl Iterator<Item = &'a Command>) {
        let shown = all.filter(|command| !command.is_hide_set());
        self.words.extend(shown.map(|command| (command.get_name().to_owned(), brief(command.get_about()))));
    }
}

/// The first sentence of a help, in one line.
fn brief(help: Option<&StyledStr>) -> String {
    let text = help.map(ToString::to_string).unwrap_or_default();
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let sentence = words.split(". ").next().unwrap_or_default();
    sentence.trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cli::names::CompletionKind;

    fn of(line: &str) -> Candidates {
        candidates(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    fn words(text: &str) -> Vec<&str> {
        text.lines().map(|line| line.split('\t').next().unwrap_or_default()).collect()
    }

    #[test]
    fn the_last_word_is_completed_by_commands_flags_values_and_names() {
        let names = ["alpha".to_owned(), "beta".to_owned()];
        for (line, offered) in [
            ("backup-l", &["backup-location", ":4"][..]),
            ("backup de", &["delete", "describe", ":4"]),
            ("get sch", &["schedule", ":4"]),
            ("backup describe al", &["alpha", ":4"]),
            // Of a Backup that is named like a verb.
            ("backup describe get be", &["beta", ":4"]),
            ("backup describe get ba", &[":4"]),
            ("backup describe --det", &["--details", ":4"]),
            ("backup describe -o js", &["json", ":4"]),
            ("backup describe --output=js", &["json", ":4"]),
            ("backup create x --storage-location=b", &["beta", ":4"]),
            ("completion z", &["zsh", ":4"]),
            ("backup download a --cacert ", &[":0"]),
            ("--kubeconfig ", &[":0"]),
            ("-n ", &[":4"]),
            ("nonsense x", &[":4"]),
        ] {
            let found = of(line);
            let asked: &[String] = if found.request.kind.is_some() { &names } else { &[] };
            assert_eq!(words(&found.text(asked)), offered, "{line}: {found:?}");
        }
        let text = of("").text(&[]);
        assert!(words(&text).contains(&"backup") && !text.contains("complete-"), "{text}");
        assert!(text.contains("schedule\tCreate, list, pause and delete Schedules\n"), "{text}");
        for hidden in ["krew", "reference"] {
            assert!(!words(&text).contains(&hidden), "{text}");
        }
    }

    #[test]
    fn the_cluster_is_asked_where_its_names_may_stand_and_as_the_flags_say() {
        let found = of("-n team backup describe --kubeconfig=/k b").request;
        assert_eq!((found.namespace.as_deref(), found.kubeconfig.as_deref()), (Some("team"), Some("/k")));
        assert_eq!(found.kind, Some(CompletionKind::Backup));
        for line in ["backup describe --d", "backup create ", "backup create x --ttl=1", "sch"] {
            assert_eq!(of(line).request.kind, None, "{line}");
        }
    }

    proptest! {
        #[test]
        fn any_words_are_completed_or_not_and_never_panic(words in proptest::collection::vec(".{0,12}", 0..6)) {
            let text = candidates(&words).text(&words);
            prop_assert!(text.ends_with(":4\n") || text.ends_with(":0\n"));
        }
    }
}
