//! A page for each command, as people read it in a browser: what it does, an example, and its
//! flags.

use clap::{Arg, Command, CommandFactory as _};

use super::flags::{default, meaning, name, operand};
use super::{CommandSummary, about, code, sentence, table, wrap};
use crate::args::Args;

/// Each page: the name of its file, and its text.
pub fn pages() -> Vec<(String, String)> {
    let root = Args::command();
    let mut pages = Vec::new();
    page(&root, &[], &[], &mut pages);
    pages
}

/// `README.md` is what a folder shows.
fn file(path: &[&str]) -> String {
    if path.len() == 1 { "README.md".to_owned() } else { format!("{}.md", path.join("-")) }
}

/// `above`: the flags that a command takes because those above it do, each with whose it is.
fn page(command: &Command, parents: &[&str], above: &[(String, &Arg)], pages: &mut Vec<(String, String)>) {
    let path: Vec<&str> = parents.iter().copied().chain([command.get_name()]).collect();
    let typed = path.join(" ");
    let CommandSummary { summary, more, example } = about(command);
    let mut text = format!("# `{typed}`\n\n{}\n\n", wrap(&sentence(&summary)));
    for paragraph in &more {
        text += &format!("{}\n\n", wrap(&sentence(paragraph)));
    }
    if !example.is_empty() {
        text += &format!("```sh\n{example}\n```\n\n");
    }
    let own: Vec<&Arg> = command.get_arguments().filter(|arg| !arg.is_hide_set()).collect();
    let commands: Vec<&Command> = command.get_subcommands().filter(|one| !one.is_hide_set()).collect();
    let mut usage = vec![typed.clone()];
    usage.extend((!commands.is_empty()).then(|| "COMMAND".to_owned()));
    usage.extend(own.iter().any(|arg| !arg.is_positional()).then(|| "[FLAGS]".to_owned()));
    usage.extend(own.iter().filter(|arg| arg.is_positional()).map(|arg| operand(arg)));
    text += &format!("Usage: `{}`\n\n", usage.join(" "));
    if !commands.is_empty() {
        let rows = commands.iter().map(|one| {
            let below: Vec<&str> = path.iter().copied().chain([one.get_name()]).collect();
            let link = format!("[{}]({})", code(&below.join(" ")), file(&below));
            vec![link, sentence(&about(one).summary)]
        });
        text += &format!("## Commands\n\n{}\n", table(&["command", "what it does"], rows));
    }
    let heads = ["flag", "default", "meaning"];
    let rows = |args: &[&Arg]| {
        args.iter().map(|arg| vec![code(&name(arg)), default(arg), meaning(arg)]).collect::<Vec<_>>()
    };
    if !own.is_empty() {
        text += &format!("## Flags\n\n{}\n", table(&heads, rows(&own)));
    }
    let mut groups: Vec<(&str, Vec<&Arg>)> = Vec::new();
    for (whose, arg) in above.iter().filter(|(_, arg)| !own.iter().any(|one| one.get_id() == arg.get_id())) {
        let (whose, arg): (&str, &Arg) = (whose, arg);
        match groups.last_mut().filter(|(last, _)| *last == whose) {
            Some((_, args)) => args.push(arg),
            None => groups.push((whose, vec![arg])),
        }
    }
    for (whose, args) in groups {
        text += &format!("## Flags of every `{whose}` command\n\n{}\n", table(&heads, rows(&args)));
    }
    if !parents.is_empty() {
        text += &format!("See [{}]({}).", code(&parents.join(" ")), file(parents));
    }
    text += " This page is generated from the program: `make manifests` writes it.";
    pages.push((file(&path), text.trim_end().replace("\n\n This", "\n\nThis") + "\n"));
    let global = own.iter().copied().filter(|arg| arg.is_global_set()).map(|arg| (typed.clone(), arg));
    let above: Vec<(String, &Arg)> = above.iter().cloned().chain(global).collect();
    for one in commands {
        page(one, &path, &above, pages);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_command_has_a_page_with_its_example_and_the_flags_that_it_takes() {
        let pages: BTreeMap<String, String> = pages().into_iter().collect();
        let page = &pages["berth-backup-create.md"];
        for wanted in [
            "# `berth backup create`\n\nCreate a Backup",
            "```sh\nberth backup create nightly --include-namespaces web --wait\n```",
            "Usage: `berth backup create [FLAGS] ",
            "\n| `--include-namespaces ",
            "## Flags of every `berth backup` command\n\n",
            "\n| `--kubeconfig ",
            "See [`berth backup`](berth-backup.md). This page is generated",
        ] {
            assert!(page.contains(wanted), "{wanted} is not in {page}");
        }
        let all = &pages["README.md"];
        assert!(all.contains("| [`berth backup`](berth-backup.md) | "), "{all}");
        assert!(pages["berth-backup.md"].contains("| [`berth backup create`](berth-backup-create.md) | "));
        assert!(
            !pages.keys().any(|name| name.contains("reference") || name.contains("complete-names")),
            "hidden"
        );
        // Every link leads to a page.
        for (name, page) in &pages {
            for link in page.split("](").skip(1).filter_map(|rest| rest.split_once(')')) {
                let is_there = pages.contains_key(link.0) || link.0.contains("://");
                assert!(is_there, "{name}: {}", link.0);
            }
        }
    }
}
