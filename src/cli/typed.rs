//! Command lines as people type them: `berth get backups` is `berth backup get`, global flags may
//! stand first, flags of Velero's logging and its features are dropped, because they change nothing
//! here, and a program named `kubectl-berth` or `kubectl-velero` is this one.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Under these names kubectl asks what completes the words behind `kubectl berth`.
const COMPLETING: [&str; 2] = ["kubectl_complete-berth", "kubectl_complete-velero"];

/// Nouns that may stand behind their verb, with the command that they name.
const NOUNS: [(&str, &str); 8] = [
    ("backup", "backup"),
    ("backups", "backup"),
    ("schedule", "schedule"),
    ("schedules", "schedule"),
    ("backup-location", "backup-location"),
    ("backup-locations", "backup-location"),
    ("bsl", "backup-location"),
    ("queue", "queue"),
];
const VERBS: [&str; 11] = [
    "create", "delete", "describe", "get", "download", "logs", "pause", "unpause", "set", "contents", "diff",
];
/// Global flags with a value.
const GLOBAL: [&str; 6] = ["-n", "--namespace", "--kubeconfig", "--kubecontext", "--context", "--colorized"];
/// Commands that take the global flags.
const TAKERS: [&str; 14] = [
    "backup",
    "backups",
    "schedule",
    "schedules",
    "backup-location",
    "backup-locations",
    "bsl",
    "queue",
    "check",
    "certificates",
    "node-agent",
    "version",
    "webhook",
    "controller",
];

/// Commands of a velero user, which take Velero's flags.
const OF_VELERO: [&str; 4] = ["backup", "schedule", "backup-location", "version"];
/// Global flags of Velero that change nothing here, without and with a value.
const SWITCHES: [&str; 7] = [
    "add_dir_header",
    "alsologtostderr",
    "legacy_stderr_threshold_behavior",
    "logtostderr",
    "one_output",
    "skip_headers",
    "skip_log_headers",
];
const SETTINGS: [&str; 9] = [
    "alsologtostderrthreshold",
    "features",
    "log_backtrace_at",
    "log_dir",
    "log_file",
    "log_file_max_size",
    "stderrthreshold",
    "v",
    "vmodule",
];

/// Nouns of Velero that berth has no command for, and what there is.
const VELERO_ALONE: [(&str, &str); 11] = [
    ("restore", RESTORE),
    ("restores", RESTORE),
    ("repo", "BackupRepositories are Velero's: `velero repo` manages them"),
    ("plugin", PLUGIN),
    ("plugins", PLUGIN),
    ("snapshot-location", SNAPSHOT_LOCATION),
    ("snapshot-locations", SNAPSHOT_LOCATION),
    ("client", "`velero client config set` writes ~/.config/velero/config.json, which berth reads, too"),
    ("debug", "`berth check` says what is wrong with an installation"),
    ("bug", "`berth check` says what is wrong with an installation"),
    ("server", "`berth controller` is what runs in the cluster"),
];
const RESTORE: &str =
    "a stock Velero restores what berth has stored: `velero restore create --from-backup NAME`";
const PLUGIN: &str = "berth runs no plugins: stores are a location's provider and settings";
const SNAPSHOT_LOCATION: &str = "VolumeSnapshotLocations are for Velero's plugins, and `velero snapshot-location` manages them; berth takes CSI snapshots";

/// What to use instead of a command that only Velero has. `args`: as [`arranged`] gives them.
pub fn velero_alone(args: &[OsString]) -> Option<String> {
    let word = |index: usize| args.get(index).and_then(|arg| arg.to_str());
    let first = word(1)?;
    let noun = if VERBS.contains(&first) { word(2)? } else { first };
    let (_, instead) = VELERO_ALONE.iter().find(|(alone, _)| *alone == noun)?;
    Some(format!("berth has no command {noun:?}: {instead}"))
}

/// The command line with noun and verb in berth's order, and global flags behind them.
pub fn arranged(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    let program = args.first().and_then(|program| Path::new(program).file_name());
    if program.is_some_and(|program| COMPLETING.iter().any(|name| program == *name)) {
        args.splice(1..1, ["complete-words", "--"].map(OsString::from));
        return args;
    }
    let arranged = placed(without_unused(&args));
    let command = arranged.get(1).and_then(|command| command.to_str());
    if command.is_some_and(|command| OF_VELERO.contains(&noun(command))) { arranged } else { placed(args) }
}

/// Is it a global flag whose value is the next word?
pub fn is_global(word: &str) -> bool {
    GLOBAL.contains(&word)
}

/// May it stand before a noun?
pub fn is_verb(word: &str) -> bool {
    VERBS.contains(&word)
}

/// The command that a word names, if it is a noun.
fn noun(word: &str) -> &str {
    NOUNS.iter().find(|(typed, _)| *typed == word).map_or(word, |(_, noun)| noun)
}

/// Leaves out the flags that change nothing.
fn without_unused(args: &[OsString]) -> Vec<OsString> {
    let (mut kept, mut rest) = (Vec::new(), args.iter());
    while let Some(arg) = rest.next() {
        match words_of_unused(arg) {
            _ if arg == "--" => {
                kept.push(arg.clone());
                kept.extend(rest.by_ref().cloned());
            }
            0 => kept.push(arg.clone()),
            1 => {}
            _ => {
                rest.next();
            }
        }
    }
    kept
}

/// How many words such a flag has with its value. 0: it is none of them.
fn words_of_unused(arg: &OsStr) -> usize {
    let Some(arg) = arg.to_str() else { return 0 };
    if let Some(level) = arg.strip_prefix("-v") {
        let is_level = level.trim_start_matches('=').chars().all(|c| c.is_ascii_digit());
        return if level.is_empty() { 2 } else { usize::from(is_level) };
    }
    let Some(flag) = arg.strip_prefix("--") else { return 0 };
    match flag.split_once('=') {
        Some((name, _)) => usize::from(SWITCHES.contains(&name) || SETTINGS.contains(&name)),
        None if SETTINGS.contains(&flag) => 2,
        None => usize::from(SWITCHES.contains(&flag)),
    }
}

fn is_one_of(args: &[OsString], wanted: &[&str]) -> bool {
    args.first().is_some_and(|first| wanted.iter().any(|wanted| first == wanted))
}

fn placed(args: Vec<OsString>) -> Vec<OsString> {
    let mut args = args.into_iter();
    let Some(program) = args.next() else { return Vec::new() };
    let mut args: Vec<OsString> = args.collect();
    let first = leading(&args);
    let global: Vec<OsString> = args.drain(..first).collect();
    let is = |index: usize, wanted: &str| args.get(index).is_some_and(|arg| arg == wanted);
    let verb = VERBS.iter().find(|verb| is(0, verb)).copied();
    let noun = NOUNS.iter().find(|(typed, _)| is(1, typed)).map(|(_, noun)| *noun);
    if let (Some(verb), Some(noun)) = (verb, noun)
        && let Some(slots) = args.get_mut(..2)
    {
        slots.clone_from_slice(&[noun.into(), verb.into()]);
    }
    let takes = is_one_of(&args, &TAKERS);
    let at = if takes { 1 } else { 0 };
    // Its help does not depend on them.
    let is_help = args.is_empty() || is_one_of(&args, &["-h", "--help", "help"]);
    if !is_help {
        args.splice(at..at, global);
    }
    args.insert(0, program);
    args
}

/// How many arguments at the beginning are global flags and their values.
fn leading(args: &[OsString]) -> usize {
    let mut count = 0;
    while let Some(arg) = args.get(count).and_then(|arg| arg.to_str()) {
        let named = |flag: &str| arg.strip_prefix(flag).is_some_and(|rest| rest.starts_with('='));
        if GLOBAL.contains(&arg) && args.len() > count + 1 {
            count += 2;
        } else if GLOBAL.iter().any(|flag| named(flag)) {
            count += 1;
        } else {
            break;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nouns_and_verbs_stand_in_either_order_and_global_flags_anywhere() {
        for (typed, arranged_as) in [
            ("berth backup get", "berth backup get"),
            ("berth get backups", "berth backup get"),
            ("berth create backup a -w", "berth backup create a -w"),
            ("berth describe schedules a", "berth schedule describe a"),
            ("berth get backup-locations", "berth backup-location get"),
            ("berth -n ns get backups a", "berth backup -n ns get a"),
            (
                "berth --namespace=ns --kubecontext c backup get",
                "berth backup --namespace=ns --kubecontext c get",
            ),
            ("berth --kubeconfig=x queue list", "berth queue --kubeconfig=x list"),
            ("berth --namespace ns --help", "berth --help"),
            ("berth -n ns help topics", "berth help topics"),
            ("berth --kubeconfig=x", "berth"),
            ("berth get", "berth get"),
            ("berth get nonsense", "berth get nonsense"),
            ("berth -n", "berth -n"),
            ("berth --help", "berth --help"),
            ("berth -n x install", "berth -n x install"),
            ("berth --features=EnableCSI -v 4 get backups", "berth backup get"),
            ("berth --colorized=false -n ns get backups", "berth backup --colorized=false -n ns get"),
            ("berth --colorized false get backups", "berth backup --colorized false get"),
            ("berth backup logs a --v=4 -v3 --logtostderr --log_dir /tmp", "berth backup logs a"),
            ("berth bsl get --features EnableCSI", "berth bsl get"),
            ("berth backup get -- -v 4", "berth backup get -- -v 4"),
            ("berth backup get -vx --volumes", "berth backup get -vx --volumes"),
            ("berth install -v 4", "berth install -v 4"),
            ("berth", "berth"),
            ("kubectl-berth get backups", "kubectl-berth backup get"),
            ("/bin/kubectl_complete-berth get -v", "/bin/kubectl_complete-berth complete-words -- get -v"),
        ] {
            let args = arranged(typed.split(' ').map(OsString::from));
            let text: Vec<String> = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
            assert_eq!(text.join(" "), arranged_as, "{typed}");
        }
        assert_eq!(arranged([]), Vec::<OsString>::new());
    }

    #[test]
    fn a_command_that_only_velero_has_is_told_with_what_there_is() {
        for (typed, instead) in [
            ("berth restore create --from-backup a", Some("velero restore create")),
            ("berth get restores", Some("velero restore create")),
            ("berth -n ns create restore", None),
            ("berth create snapshot-location a", Some("CSI snapshots")),
            ("berth client config get", Some("config.json")),
            ("berth backup get restore", None),
            ("berth get backups restore", None),
            ("berth get", None),
            ("berth", None),
        ] {
            let args = arranged(typed.split(' ').map(OsString::from));
            let told = velero_alone(&args);
            assert_eq!(told.is_some(), instead.is_some(), "{typed}: {told:?}");
            assert!(instead.is_none_or(|instead| told.is_some_and(|told| told.contains(instead))), "{typed}");
        }
    }
}
