//! Manual pages, one for each command, as `man` reads them.

use std::path::Path;

use anyhow::Context as _;
use clap::{Arg, Command, CommandFactory as _};

use super::flags::{default, meaning, name, operand};
use super::{CommandSummary, about, sentence};
use crate::args::Args;

/// Each page: the name of its file, and its text.
pub fn pages() -> Vec<(String, String)> {
    let mut root = Args::command();
    root.build();
    let mut pages = Vec::new();
    page(&root, "", &[], &mut pages);
    pages
}

/// Writes the pages to a folder.
///
/// # Errors
/// When a page cannot be written.
pub fn write(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("--write {}", folder.display()))?;
    for (name, text) in pages() {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))?;
    }
    Ok(())
}

fn page(command: &Command, parent: &str, above: &[&Arg], pages: &mut Vec<(String, String)>) {
    let path = format!("{parent} {}", command.get_name()).trim().to_owned();
    let file = path.replace(' ', "-");
    let CommandSummary { summary, more, example } = about(command);
    let version = command.get_version().unwrap_or(env!("CARGO_PKG_VERSION"));
    let mut text = format!(".TH \"{}\" 1 \"\" \"berth {version}\"\n", escaped(&file.to_uppercase()));
    text += &format!(".SH NAME\n{} \\- {}\n", escaped(&file), line(summary.trim_end_matches('.')));
    text += &format!(".SH SYNOPSIS\n.B {}\n", escaped(&path));
    let is_shown = |arg: &&Arg| !arg.is_hide_set();
    let own: Vec<&Arg> = command.get_arguments().filter(is_shown).collect();
    let commands: Vec<&Command> = command.get_subcommands().filter(|one| !one.is_hide_set()).collect();
    let mut usage: Vec<String> = Vec::new();
    usage.extend((!commands.is_empty()).then(|| "COMMAND".to_owned()));
    usage.extend(own.iter().any(|arg| !arg.is_positional()).then(|| "[FLAGS]".to_owned()));
    usage.extend(own.iter().filter(|arg| arg.is_positional()).map(|arg| operand(arg)));
    text += &format!("{}\n", line(&usage.join(" ")));
    text += &format!(".SH DESCRIPTION\n{}\n", line(&sentence(&summary)));
    for paragraph in &more {
        text += &format!(".PP\n{}\n", line(&sentence(paragraph)));
    }
    if !example.is_empty() {
        text += &format!(".SH EXAMPLE\n.nf\n{}\n.fi\n", line(&example));
    }
    if !commands.is_empty() {
        text += ".SH COMMANDS\n";
    }
    for one in &commands {
        let page = format!("{file}-{}", one.get_name());
        let about = one.get_about().map(ToString::to_string).unwrap_or_default();
        text += &format!(".TP\n.BR {} (1)\n{}\n", escaped(&page), line(&sentence(&about)));
    }
    let inherited = above.iter().copied().filter(|arg| !own.iter().any(|one| one.get_id() == arg.get_id()));
    for (head, args) in [("FLAGS", own.clone()), ("FLAGS OF EVERY SUCH COMMAND", inherited.collect())] {
        if !args.is_empty() {
            text += &format!(".SH \"{head}\"\n");
        }
        for arg in args {
            let default = default(arg).trim_matches('`').to_owned();
            let note = match default.as_str() {
                "" => String::new(),
                "required" => " Required.".to_owned(),
                default => format!(" Default: {default}."),
            };
            text +=
                &format!(".TP\n.B {}\n{}\n", escaped(&name(arg)), line(&format!("{}{note}", meaning(arg))));
        }
    }
    pages.push((format!("{file}.1"), text));
    let global: Vec<&Arg> =
        above.iter().copied().chain(own.iter().copied().filter(|arg| arg.is_global_set())).collect();
    for one in commands {
        page(one, &path, &global, pages);
    }
}

/// Text that no request of the formatter begins.
fn line(text: &str) -> String {
    let text = escaped(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-").replace('"', "\\(dq")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_command_has_a_page_with_its_flags_and_its_example() {
        let pages: BTreeMap<String, String> = pages().into_iter().collect();
        let page = &pages["berth-backup-create.1"];
        for wanted in [
            ".TH \"BERTH\\-BACKUP\\-CREATE\" 1",
            "berth\\-backup\\-create \\- Create a Backup",
            ".SH EXAMPLE\n.nf\nberth backup create nightly \\-\\-include\\-namespaces web \\-\\-wait\n.fi",
            ".B \\-\\-include\\-namespaces",
            ".B \\-\\-kubeconfig",
            "0 Completed, 3 PartiallyFailed",
        ] {
            assert!(page.contains(wanted), "{wanted} is not in {page}");
        }
        assert!(pages["berth.1"].contains(".BR berth\\-backup (1)"));
        assert!(!pages.keys().any(|name| name.contains("reference") || name.contains("complete")), "hidden");
        for (name, page) in &pages {
            let is_request = |line: &str| {
                let word = line.split(' ').next().unwrap_or_default();
                [".TH", ".SH", ".PP", ".TP", ".B", ".BR", ".nf", ".fi"].contains(&word)
            };
            for line in page.lines().filter(|line| line.starts_with(['.', '\''])) {
                assert!(is_request(line), "{name}: {line}");
            }
        }
    }

    #[test]
    fn no_text_is_taken_for_a_request() {
        assert_eq!(line(".TH x"), "\\&.TH x");
        assert_eq!(line("a\\b \"c\"\n'd"), "a\\eb \\(dqc\\(dq 'd");
    }
}
