//! The examples in the helps: each command has one, and each can be typed as it stands.

use clap::{Command, CommandFactory as _, Parser as _};

use crate::args::Args;
use crate::cli::typed::arranged;

/// What stands before an example.
const MARK: &str = "Example: ";

/// The first paragraph of what a command's help begins with, in one line.
fn beginning(command: &Command) -> String {
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let first = about.split("\n\n").next().unwrap_or_default().to_owned();
    first.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Words as a shell reads them; examples have nothing but double quotes.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut is_quoted) = (Vec::new(), String::new(), false);
    for c in line.chars() {
        match c {
            '"' => is_quoted = !is_quoted,
            ' ' if !is_quoted => words.push(std::mem::take(&mut word)),
            c => word.push(c),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

fn visit(path: &str, command: &Command, seen: &mut Vec<String>) {
    if command.is_hide_set() {
        return;
    }
    let path = format!("{path} {}", command.get_name());
    if command.has_subcommands() {
        command.get_subcommands().for_each(|command| visit(&path, command, seen));
        return;
    }
    let help = beginning(command);
    let example = help.split_once(MARK).map(|(_, example)| example.to_owned());
    let example = example.unwrap_or_else(|| panic!("the help of `{path}` has no example: {help:?}"));
    // In a subshell, as the completion is sourced.
    let line = example.strip_prefix("source <(").and_then(|rest| rest.strip_suffix(')')).unwrap_or(&example);
    assert!(
        line.starts_with(&format!("{path} ")) || line == path,
        "`{path}` has an example of another command: {line}"
    );
    let typed = arranged(words(line).into_iter().map(Into::into));
    if let Err(error) = Args::try_parse_from(typed) {
        panic!("the example of `{path}` cannot be typed: {line}\n{error}");
    }
    seen.push(path);
}

#[test]
fn every_help_begins_with_an_example_that_can_be_typed_as_it_stands() {
    let mut seen = Vec::new();
    let root = Args::command();
    root.get_subcommands().for_each(|command| visit("berth", command, &mut seen));
    assert!(seen.len() > 35, "{seen:#?}");
}

#[test]
fn words_in_quotes_stay_together() {
    assert_eq!(
        words("berth  create --schedule \"0 1 * * *\" x"),
        ["berth", "create", "--schedule", "0 1 * * *", "x"]
    );
}
