//! The examples in the helps: each command has one, and each can be typed as it stands. And the
//! command lines of the pages.

use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
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

/// Words as a shell reads them.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None::<char>);
    for c in line.chars() {
        match c {
            '"' | '\'' if quote.is_none_or(|quote| quote == c) => quote = quote.is_none().then_some(c),
            ' ' if quote.is_none() => words.push(std::mem::take(&mut word)),
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
    for operand in command.get_positionals().filter(|operand| !operand.is_hide_set()) {
        let says = operand.get_help().is_some() || !operand.get_possible_values().is_empty();
        assert!(says, "the help of `{path}` does not say what {} is", operand.get_id());
    }
    let typed = arranged(words(line).into_iter().map(Into::into));
    if let Err(error) = Args::try_parse_from(typed) {
        panic!("the example of `{path}` cannot be typed: {line}\n{error}");
    }
    seen.push(path);
}

#[test]
fn every_help_begins_with_an_example_that_can_be_typed_as_it_stands_and_says_what_names_are() {
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

/// The pages for people.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages: Vec<PathBuf> =
        std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    pages.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|page| root.join(page)));
    pages
}

/// The command lines of a page: those in its examples, and those between backquotes in its text.
fn command_lines(page: &str) -> Vec<String> {
    let (mut prose, mut begun, mut found, mut is_example) = (String::new(), String::new(), Vec::new(), false);
    for line in page.lines().map(str::trim) {
        if line.starts_with("```") {
            is_example = !is_example;
        } else if !is_example {
            prose.push_str(line);
            prose.push(' ');
        } else if let Some(part) = line.strip_suffix('\\') {
            begun.push_str(part);
        } else {
            found.push(std::mem::take(&mut begun) + line);
        }
    }
    found.extend(prose.split('`').skip(1).step_by(2).map(str::to_owned));
    let command = |line: String| {
        let line = line.replace("\\|", "|");
        let line = line.strip_prefix("$ ").unwrap_or(&line);
        let ends = [" | ", " > ", " && ", "; ", " # ", " 2>"];
        let command = ends.iter().fold(line, |line, end| line.split(end).next().unwrap_or_default());
        // Some output begins with the program's name and its version.
        let is_one = command.strip_prefix("berth ").is_some_and(|rest| rest.starts_with(char::is_lowercase));
        is_one.then(|| command.to_owned())
    };
    found.into_iter().filter_map(command).collect()
}

/// The command lines for which `berth queue hold|release` stands.
fn alternatives(words: &[String]) -> Vec<Vec<String>> {
    // What is left out, or may be, is no word.
    let words = words.iter().filter(|word| *word != "…" && !word.starts_with('['));
    words.fold(vec![Vec::new()], |lines, word| {
        let with = |line: &Vec<String>, one: &str| [line.as_slice(), &[one.to_owned()]].concat();
        lines.iter().flat_map(|line| word.split('|').map(move |one| with(line, one))).collect()
    })
}

/// Values are often placeholders, so commands and flags alone are looked at.
fn is_known(line: Vec<String>) -> bool {
    let parsed = Args::try_parse_from(arranged(line.into_iter().map(Into::into)));
    !parsed
        .is_err_and(|error| matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand))
}

#[test]
fn every_command_line_of_a_page_has_commands_and_flags_that_are_there() {
    let (mut seen, mut wrong) = (0, Vec::new());
    for page in pages() {
        for line in command_lines(&std::fs::read_to_string(&page).unwrap()) {
            seen += 1;
            if !alternatives(&words(&line)).into_iter().all(is_known) {
                wrong.push(format!("{}: {line}", page.display()));
            }
        }
    }
    assert!(seen > 200, "{seen}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_command_line_that_is_no_more_is_noticed() {
    let page = "`berth queue\nhold\\|forget NAME`\n```console\n$ berth check \\\n  --purge | head\n\
        berth 0.1.0 is ready\n```\n";
    let lines = command_lines(page);
    assert_eq!(lines, ["berth check --purge", "berth queue hold|forget NAME"]);
    assert!(lines.iter().all(|line| !alternatives(&words(line)).into_iter().all(is_known)), "{lines:?}");
    assert!(alternatives(&words("berth queue hold|release NAME")).into_iter().all(is_known));
}
