//! What a user may create who may create Backups and nothing else: it costs this user's backup, and
//! no other.

use std::collections::BTreeMap;

use berth_api::velero::{Backup, BackupPhase};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::admission::program;
use crate::queue::PATIENCE;
use crate::support::backup::{backup, backup_of};
use crate::support::{Berth, ControlPlane, Kubectl, Options, wait_for};

fn wait_ended(kubectl: &Kubectl, namespace: &str, names: &[&str]) -> BTreeMap<String, Backup> {
    wait_for(&format!("{names:?} to end"), PATIENCE, || {
        let backups = kubectl.backups(namespace)?;
        let ended = |name: &&str| backups.get(*name).is_some_and(|backup| backup.phase().is_final());
        Ok(names.iter().all(ended).then_some(backups))
    })
    .unwrap()
}

/// Patterns that have no name in common with any other, and that are long in saying so.
fn long_to_compare(seed: usize) -> Value {
    let letter = |i: usize| char::from(b'a' + u8::try_from(i % 26).unwrap());
    let pattern = |p: usize| {
        (0..31).map(|i| format!("*{}", letter(seed + 7 * p + i * (p % 5 + 1)))).collect::<String>()
    };
    let patterns: Vec<String> = (0..100).map(pattern).collect();
    json!({"includedNamespaces": patterns, "excludedNamespaces": ["?*", "*a*b*c*d*"]})
}

fn log(berth: &Berth) -> String {
    berth.controller.process.log_text().unwrap()
}

#[test]
fn backups_that_are_long_to_compare_stop_nobody() {
    let mut berth =
        Berth::start(ControlPlane::shared().unwrap(), Options::new(program(), "long-to-compare")).unwrap();
    let (kubectl, ns) = (berth.kubectl().clone(), berth.namespace().to_owned());
    let names: Vec<String> = (0..12).map(|i| format!("long{i}")).collect();
    for (i, name) in names.iter().enumerate() {
        let answer = kubectl.create(&ns, &[backup(name, long_to_compare(i))]).unwrap();
        assert!(answer.stderr.contains("berth: queued"), "{name} has no place: {}", answer.stderr);
    }
    let answer = kubectl.create(&ns, &[backup_of("ordinary", &["default"])]).unwrap();
    assert!(answer.stderr.contains("berth: queued"), "{}", answer.stderr);
    let mut all: Vec<&str> = names.iter().map(String::as_str).collect();
    all.push("ordinary");
    let backups = wait_ended(&kubectl, &ns, &all);
    assert!(backups.values().all(|b| b.phase() == BackupPhase::Completed), "{backups:#?}");
    assert!(!log(&berth).contains("no longer leading"));
    berth.ensure_runs().unwrap();
}

/// While the webhook is away everything gets in.
#[test]
fn lists_that_are_wrong_or_too_long_end_short_and_keep_no_slot() {
    let mut berth =
        Berth::start(ControlPlane::shared().unwrap(), Options::new(program(), "wrong-lists")).unwrap();
    let (kubectl, ns) = (berth.kubectl().clone(), berth.namespace().to_owned());
    let wrong = |count: usize| vec!["A".to_owned(); count];
    let too_long: Vec<String> = (0..1001).map(|i| format!("ns{i}")).collect();
    let refused = backup("refused", json!({"includedNamespaces": too_long}));
    let huge =
        backup("huge", json!({"includedNamespaces": wrong(60_000), "excludedNamespaces": wrong(60_000)}));
    // By the policy, which the API server takes up a moment after it was made; the webhook refuses
    // it, too.
    let is_refused = |backup: &Value| {
        let mut said = String::new();
        let wanted =
            "a list of namespaces or resources has more than 1000 entries: use patterns, or several Backups";
        wait_for("the policy to refuse it", PATIENCE, || {
            said = kubectl.create(&ns, std::slice::from_ref(backup))?.stderr;
            anyhow::ensure!(!said.is_empty(), "it was created");
            Ok(said.contains(wanted).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error}: {said}"));
    };
    is_refused(&refused);
    let patterns: Vec<String> = (0..101).map(|i| format!("*{i}*")).collect();
    let answer = kubectl.create(&ns, &[backup("patterns", json!({"includedNamespaces": patterns}))]).unwrap();
    let said = "spec.includedNamespaces: has 101 patterns, and at most 100 are taken";
    assert!(answer.stderr.contains(said), "{}", answer.stderr);
    let values = json!({"matchExpressions": [{"key": "app", "operator": "In", "values": vec!["v"; 1000]}]});
    let selectors = backup("selectors", json!({"orLabelSelectors": vec![values; 6]}));
    let answer = kubectl.create(&ns, std::slice::from_ref(&selectors)).unwrap();
    let said = "spec: its label selectors have 6000 labels and values in all, and at most 5000 are taken";
    assert!(answer.stderr.contains(said), "{}", answer.stderr);
    berth.webhook.process.kill().unwrap();
    is_refused(&refused);
    is_refused(&huge);
    let backups = [
        selectors,
        backup("many-wrong", json!({"includedNamespaces": wrong(900)})),
        backup(
            "wrong-both-ways",
            json!({"includedNamespaces": wrong(900), "excludedNamespaces": wrong(900)}),
        ),
        backup("wrong-resources", json!({"includedResources": vec!["/".to_owned(); 900]})),
        backup("patterns", json!({"includedNamespaces": patterns})),
        backup_of("ordinary", &["default"]),
    ];
    for backup in &backups {
        assert!(kubectl.create(&ns, std::slice::from_ref(backup)).unwrap().status.success());
    }
    let names = ["many-wrong", "wrong-both-ways", "wrong-resources", "patterns", "selectors", "ordinary"];
    let backups = wait_ended(&kubectl, &ns, &names);
    assert_eq!(backups["ordinary"].phase(), BackupPhase::Completed);
    for name in &names[..5] {
        let backup = &backups[*name];
        assert_eq!(backup.phase(), BackupPhase::FailedValidation, "{name}");
        let errors = backup.status.as_ref().unwrap().validation_errors.clone().unwrap_or_default();
        let told: usize = errors.iter().map(String::len).sum();
        assert!(!errors.is_empty() && errors.len() <= 21 && told < 10_000, "{name}: {errors:?}");
    }
    // What the queue itself has to read never took a slot.
    let started = |name: &str| log(&berth).contains(&format!("dequeued name={name} "));
    assert!(!started("many-wrong") && !started("wrong-both-ways") && !started("patterns"));
    berth.controller.process.ensure_runs().unwrap();
}

/// All but the largest one that the API server stores: there is room for an annotation, and not for
/// all that is written to a backup. One that leaves no byte can only be deleted.
fn largest(kubectl: &Kubectl, namespace: &str) -> Value {
    let of = |size: usize| {
        let spec = json!({"includedNamespaces": ["default"], "orderedResources": {"pods": "x".repeat(size)}});
        backup("largest", spec)
    };
    let (mut fits, mut does_not) = (1_000_000_usize, 1_700_000_usize);
    while does_not - fits > 64 {
        let size = fits.midpoint(does_not);
        let answer = kubectl.create(namespace, &[of(size)]).unwrap();
        if answer.status.success() {
            fits = size;
            let args = ["delete", "backups.velero.io", "largest", "-n", namespace, "--wait=true"];
            kubectl.run(&args).unwrap();
        } else {
            does_not = size;
        }
    }
    of(fits - 512)
}

#[test]
fn a_backup_that_fills_all_that_the_store_takes_keeps_no_slot_and_can_be_held_canceled_and_deleted() {
    let mut berth =
        Berth::start(ControlPlane::shared().unwrap(), Options::new(program(), "largest")).unwrap();
    let (kubectl, ns) = (berth.kubectl().clone(), berth.namespace().to_owned());
    // The webhook would refuse it, and no mover is there that moves it.
    berth.webhook.process.kill().unwrap();
    berth.controller.process.signal(Signal::SIGSTOP).unwrap();
    let largest = largest(&kubectl, &ns);
    assert!(kubectl.create(&ns, std::slice::from_ref(&largest)).unwrap().status.success());
    let queue = |args: &[&str]| {
        let kubeconfig = berth.plane().kubeconfig();
        let mut command = std::process::Command::new(program());
        command.args(["queue"]).args(args).args(["-n", &ns]).env("KUBECONFIG", kubeconfig);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    queue(&["hold", "largest"]);
    queue(&["release", "largest"]);
    berth.controller.process.signal(Signal::SIGCONT).unwrap();
    assert!(kubectl.create(&ns, &[backup_of("ordinary", &["default"])]).unwrap().status.success());
    let backups = wait_ended(&kubectl, &ns, &["ordinary"]);
    assert_eq!(backups["ordinary"].phase(), BackupPhase::Completed);
    wait_for("the largest one to end", PATIENCE, || {
        Ok(kubectl.backup(&ns, "largest")?.phase().is_final().then_some(()))
    })
    .unwrap();
    kubectl.run(&["delete", "backups.velero.io", "largest", "-n", &ns]).unwrap();
    assert!(kubectl.create(&ns, &[backup_of("another", &["default"])]).unwrap().status.success());
    wait_ended(&kubectl, &ns, &["another"]);
}
