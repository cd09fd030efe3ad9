//! Command lines as people type them: `berth get backups` is `berth backup get`, global flags may
//! stand first, and a program named `kubectl-berth` or `kubectl-velero` is this one.

use std::ffi::OsString;

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
const GLOBAL: [&str; 5] = ["-n", "--namespace", "--kubeconfig", "--kubecontext", "--context"];
/// Commands that take the global flags.
const TAKERS: [&str; 13] = [
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
    "webhook",
    "controller",
];

/// The command line with noun and verb in berth's order, and global flags behind them.
pub fn arranged(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
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
    let takes = args.first().is_some_and(|command| TAKERS.iter().any(|taker| command == taker));
    let at = if takes { 1 } else { 0 };
    args.splice(at..at, global);
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
            ("berth get", "berth get"),
            ("berth get nonsense", "berth get nonsense"),
            ("berth -n", "berth -n"),
            ("berth --help", "berth --help"),
            ("berth -n x install", "berth -n x install"),
            ("berth", "berth"),
        ] {
            let args = arranged(typed.split(' ').map(OsString::from));
            let text: Vec<String> = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
            assert_eq!(text.join(" "), arranged_as, "{typed}");
        }
        assert_eq!(arranged([]), Vec::<OsString>::new());
    }
}
