//! Which flags stock Velero's commands have, and whether berth's have them, too.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::admission::program;
use crate::support::binaries;

/// Flags of Velero's logging and its features, which every command takes and which change nothing.
const UNUSED: [&str; 16] = [
    "add_dir_header",
    "alsologtostderr",
    "alsologtostderrthreshold",
    "features",
    "legacy_stderr_threshold_behavior",
    "log_backtrace_at",
    "log_dir",
    "log_file",
    "log_file_max_size",
    "logtostderr",
    "one_output",
    "skip_headers",
    "skip_log_headers",
    "stderrthreshold",
    "v",
    "vmodule",
];

/// The flags that a help has, each as `-l, --selector` or `--ttl`.
fn flags(program: &Path, command: &str) -> BTreeSet<String> {
    let mut help = Command::new(program);
    help.args(command.split(' ')).arg("--help").env("HOME", "/nowhere").stdin(Stdio::null());
    let output = help.output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let flag = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().take(2).collect();
        let named =
            |word: &str| word.trim_end_matches(',').split(['=', '[']).next().unwrap_or_default().to_owned();
        match words.as_slice() {
            [long, ..] if long.starts_with("--") => Some(named(long)),
            [short, long] if short.starts_with('-') && short.ends_with(',') => {
                Some(format!("{short} {}", named(long)))
            }
            _ => None,
        }
    };
    text.lines().filter_map(flag).collect()
}

#[test]
fn every_flag_of_veleros_commands_is_a_flag_of_berths() {
    let [velero] = binaries::get(["velero"]).unwrap();
    let mut compared = 0;
    for command in [
        "backup create",
        "backup delete",
        "backup describe",
        "backup download",
        "backup get",
        "backup logs",
        "schedule create",
        "schedule delete",
        "schedule describe",
        "schedule get",
        "schedule pause",
        "schedule unpause",
        "backup-location create",
        "backup-location delete",
        "backup-location get",
        "backup-location set",
        "version",
    ] {
        let (theirs, ours) = (flags(&velero, command), flags(program().as_ref(), command));
        assert!(
            theirs.contains("-n, --namespace") && ours.contains("-n, --namespace"),
            "{command}: {ours:?}"
        );
        let is_kept = |flag: &&String| {
            let long = flag.rsplit("--").next().unwrap_or_default();
            // An alias of `--context`, which no help shows.
            long != "kubecontext" && !UNUSED.contains(&long)
        };
        let theirs: Vec<&String> = theirs.iter().filter(is_kept).collect();
        compared += theirs.len();
        let missing: Vec<&&String> = theirs.iter().filter(|flag| !ours.contains(**flag)).collect();
        assert!(missing.is_empty(), "berth {command} has not {missing:?}");
    }
    assert!(compared >= 150, "{compared} flags are too few: a help is read wrongly");
}
