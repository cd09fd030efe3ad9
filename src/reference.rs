//! The pages of `docs/reference`, written from what the program itself goes by: flags, metrics,
//! annotations and labels, Events, and definitions. `make manifests` writes them, and a test
//! compares them with the program.

mod commands;
mod definitions;
mod flags;
pub mod krew;
pub mod man;
mod metrics;

use std::path::Path;

use anyhow::Context as _;
use berth_api::keys;
use clap::Command;
use kube::runtime::events::EventType;

use crate::events::EventReason;

/// The folder of the pages of commands.
const COMMANDS: &str = "commands";
/// Prose of the pages is at most this wide.
const WIDTH: usize = 100;

/// Each page: the name of its file, and its text.
///
/// # Errors
/// When the metrics cannot be encoded.
pub fn pages() -> anyhow::Result<Vec<(String, String)>> {
    let pages = [
        ("annotations.md", annotations()),
        ("definitions.md", definitions::page()),
        ("events.md", events()),
        ("flags.md", flags::page()),
        ("metrics.md", metrics::page()?),
    ];
    let pages = pages.into_iter().map(|(name, text)| (name.to_owned(), text));
    let commands = commands::pages().into_iter().map(|(name, text)| (format!("{COMMANDS}/{name}"), text));
    Ok(pages.chain(commands).collect())
}

/// Writes the pages to a folder.
///
/// # Errors
/// When a page cannot be made or written.
pub fn write(folder: &Path) -> anyhow::Result<()> {
    let commands = folder.join(COMMANDS);
    std::fs::create_dir_all(commands).with_context(|| format!("--write {}", folder.display()))?;
    for (name, text) in pages()? {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))?;
    }
    Ok(())
}

fn annotations() -> String {
    let intro = "Every annotation, label and finalizer that berth reads or writes, in alphabetical order. Those of \
        `velero.io` and `gardener.cloud` belong to Velero and Gardener.";
    let mut keys: Vec<_> = keys::ALL.iter().collect();
    keys.sort_by_key(|one| one.key);
    let rows = keys.iter().map(|one| vec![code(one.key), one.carrier().to_owned(), one.meaning().to_owned()]);
    head("Annotations and labels", intro) + &table(&["key", "what it is", "meaning"], rows)
}

fn events() -> String {
    let intro = format!(
        "The Events that berth sends, by reason. Their reporting component is `{}`. Most of them are about Backups.",
        keys::REPORTING_COMPONENT
    );
    let row = |what: &EventReason| {
        let (reason, action, severity) = what.parts();
        let severity = match severity {
            EventType::Normal => "Normal",
            EventType::Warning => "Warning",
        };
        vec![code(reason), severity.to_owned(), action.to_owned(), what.meaning().to_owned()]
    };
    head("Events", &intro) + &table(&["reason", "type", "action", "when"], EventReason::ALL.iter().map(row))
}

/// What a command says of itself.
struct CommandSummary {
    summary: String,
    /// Further paragraphs.
    more: Vec<String>,
    /// A command line, or nothing.
    example: String,
}

fn about(command: &Command) -> CommandSummary {
    let text = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let mut paragraphs = text.split("\n\n").map(one_line).filter(|paragraph| !paragraph.is_empty());
    let first = paragraphs.next().unwrap_or_default();
    let (summary, example) = first.split_once(" Example: ").unwrap_or((&first, ""));
    CommandSummary { summary: summary.to_owned(), example: example.to_owned(), more: paragraphs.collect() }
}

fn head(title: &str, intro: &str) -> String {
    let note = "This page is generated from the program: `make manifests` writes it, so change the source.";
    format!("# {title}\n\n{}\n\n{}\n\n", wrap(intro), wrap(note))
}

fn code(text: &str) -> String {
    format!("`{text}`")
}

/// A table in Markdown.
fn table(heads: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut text = format!("| {} |\n|{}\n", heads.join(" | "), "---|".repeat(heads.len()));
    for row in rows {
        let cells: Vec<String> = row.iter().map(|cell| one_line(cell).replace('|', "\\|")).collect();
        text += &format!("| {} |\n", cells.join(" | "));
    }
    text
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// With a full stop, which clap takes away.
fn sentence(text: &str) -> String {
    let text = one_line(text);
    if text.is_empty() || text.ends_with(['.', '!', '?', ':']) { text } else { text + "." }
}

fn wrap(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn page(name: &str) -> String {
        let mut pages = pages().unwrap().into_iter();
        pages.find(|(page, _)| page == name).map(|(_, text)| text).unwrap()
    }

    fn assert_row(page: &str, start: &str) {
        assert!(page.lines().any(|line| line.starts_with(start)), "no row begins with {start}:\n{page}");
    }

    #[test]
    fn the_reference_on_disk_is_what_the_program_says() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference");
        let pages = pages().unwrap();
        for (name, text) in &pages {
            let there = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
            assert!(
                there == *text,
                "docs/reference/{name} is not what the program says: run `make manifests`"
            );
        }
        let mut files = BTreeSet::new();
        for below in ["", COMMANDS] {
            for file in std::fs::read_dir(folder.join(below)).unwrap().map(Result::unwrap) {
                let name = file.file_name().to_string_lossy().into_owned();
                if file.file_type().unwrap().is_file() {
                    files.insert(if below.is_empty() { name } else { format!("{below}/{name}") });
                }
            }
        }
        let wanted: BTreeSet<String> = pages.iter().map(|(name, _)| name.clone()).collect();
        assert_eq!(files, wanted, "docs/reference holds generated pages and nothing else");
    }

    #[test]
    fn flags_are_told_of_every_command_and_hidden_ones_of_none() {
        let flags = page("flags.md");
        for heading in ["## `berth webhook`", "## `berth queue cancel`", "## `berth garden migrate`"] {
            assert_row(&flags, heading);
        }
        assert_row(&flags, "| `--concurrent-backups CONCURRENT_BACKUPS` | `1` | ");
        assert_row(&flags, "| `--dry-run` |  | ");
        assert_row(&flags, "| `NAME` | required | ");
        for hidden in ["mover-orphaned-after", "berth reference`"] {
            assert!(!flags.contains(hidden), "{hidden}");
        }
    }

    #[test]
    fn metrics_are_told_with_their_labels_and_the_names_that_samples_have() {
        let metrics = page("metrics.md");
        for start in [
            "| `berth_queue_depth` | gauge |  | ",
            "| `berth_queue_waiting` | gauge | `reason` | ",
            "| `berth_queue_dequeued_total` | counter |  | ",
            "| `berth_queue_wait_seconds` | histogram |  | ",
            "| `berth_garden_bucket_limit` | gauge | `bucket` | ",
            "| `velero_backup_duration_seconds` | histogram | `schedule` | ",
            "| `velero_backup_tarball_size_bytes` | gauge | `schedule` | ",
            "| `velero_backup_last_successful_timestamp` | gauge | `schedule` | ",
            "| `berth_admission_reviews_total` | counter | `rule`, `verdict` | ",
            "| `berth_admission_turned_away_total` | counter | `rule`, `why` | ",
            "| `berth_certificate_not_after_seconds` | gauge |  | ",
            "| `berth_garden_events_dropped_total` | counter |  | ",
        ] {
            assert_row(&metrics, start);
        }
    }

    #[test]
    fn definitions_are_told_to_their_last_field() {
        let definitions = page("definitions.md");
        for heading in ["## Backup", "## BackupStorageLocation", "## CloudProfile", "## Seed"] {
            assert_row(&definitions, heading);
        }
        assert_row(&definitions, "| `spec.includedNamespaces` | list of string | ");
        assert_row(&definitions, "| `spec.hooks.resources[].name` | string | ");
    }

    #[test]
    fn prose_is_wrapped_and_cells_are_one_line() {
        let long = "word ".repeat(100);
        assert!(wrap(&long).lines().all(|line| line.len() <= WIDTH));
        assert_eq!(wrap(&long).split_whitespace().count(), 100);
        let made = table(&["a", "b"], [vec!["x |\n y".to_owned(), String::new()]]);
        assert_eq!(made, "| a | b |\n|---|---|\n| x \\| y |  |\n");
        assert_eq!(sentence("as it is"), "as it is.");
    }
}
