//! Every way of creating a Backup gets it queued: the answer says position and reason, and a dry
//! run stores nothing.

use std::path::PathBuf;
use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::support::peers::velero;
use crate::support::shared::{Shared, SharedBerth};
use crate::support::{Berth, ControlPlane, Options, backup, backup::backup_of};

/// A second name of the program that these tests were built with, because a build beside them puts
/// another one in its place.
pub fn program() -> PathBuf {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
        let built = PathBuf::from(env!("CARGO_BIN_EXE_berth"));
        let folder = built.with_file_name("under-test");
        std::fs::create_dir_all(&folder).unwrap();
        // What earlier runs left there is removed, unless its process still runs.
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            let runs = entry.file_name().to_str().is_some_and(|id| PathBuf::from("/proc").join(id).exists());
            if !runs {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
        let own = folder.join(std::process::id().to_string());
        std::fs::create_dir_all(&own).unwrap();
        let program = own.join("berth");
        let _ = std::fs::remove_file(&program);
        std::fs::hard_link(&built, &program).unwrap();
        program
    });
    PROGRAM.clone()
}

/// berth in a namespace of its own, where nothing ever starts: no controller leads.
fn queue_that_stands(namespace: &str) -> anyhow::Result<Berth> {
    let mut berth = Berth::start(ControlPlane::shared()?, Options::new(program(), namespace))?;
    berth.controller.process.kill()?;
    Ok(berth)
}

/// One for the tests that do not mind which places are taken.
fn standing() -> SharedBerth {
    static STANDING: Shared<Berth> = Shared::unstarted();
    STANDING.berth(|| queue_that_stands("standing")).unwrap()
}

fn stored(answer: &str) -> Value {
    serde_json::from_str(answer).unwrap()
}

fn position(object: &Value) -> u64 {
    assert_eq!(object["status"]["phase"], "Queued", "{object}");
    object["status"]["queuePosition"].as_u64().unwrap()
}

#[test]
fn every_way_to_create_a_backup_shows_position_and_reason() {
    let berth = queue_that_stands("intercept").unwrap();
    let (kubectl, ns) = (berth.kubectl(), berth.namespace());
    let of = |name: &str| backup_of(name, &["a"]).to_string();
    let json_out = ["-n", ns, "-o", "json", "-f", "-"];
    let args = |first: &[&'static str]| -> Vec<&str> { first.iter().copied().chain(json_out).collect() };

    let created = kubectl.answer_by_process(&args(&["create"]), &of("created")).unwrap();
    assert_eq!(position(&stored(&created.stdout)), 1, "{}", created.stderr);
    assert_eq!(created.warnings(), ["berth: queued at position 1; it starts next"]);

    let applied = kubectl.answer(&args(&["apply"]), &of("applied")).unwrap();
    assert_eq!(position(&stored(&applied.stdout)), 2, "{}", applied.stderr);
    let waits = "berth: queued at position 2; waits for created (ahead in the queue), which also takes a";
    assert_eq!(applied.warnings(), [waits]);

    let again = kubectl.answer(&args(&["apply"]), &of("applied")).unwrap();
    assert_eq!(position(&stored(&again.stdout)), 2, "an apply of the same keeps the place: {}", again.stderr);

    for _ in 0..2 {
        let server_side = kubectl.answer(&args(&["apply", "--server-side"]), &of("server-side")).unwrap();
        assert_eq!(position(&stored(&server_side.stdout)), 3, "{}", server_side.stderr);
    }

    let mut generated = backup_of("", &["a"]);
    generated["metadata"] = json!({"generateName": "generated-"});
    let generated = kubectl.answer_by_process(&args(&["create"]), &generated.to_string()).unwrap();
    let object = stored(&generated.stdout);
    assert_eq!(position(&object), 4, "{}", generated.stderr);
    assert!(object["metadata"]["name"].as_str().unwrap().len() > "generated-".len());
    assert_eq!(generated.warnings().len(), 1);

    let before = kubectl.backups(ns).unwrap().len();
    let yaml = ["create", "--dry-run=server", "-n", ns, "-o", "yaml", "-f", "-"];
    for _ in 0..3 {
        let dry = kubectl.answer(&yaml, &of("dry")).unwrap();
        assert!(dry.stdout.contains("phase: Queued"), "{}{}", dry.stdout, dry.stderr);
        assert!(dry.stdout.contains("queuePosition: 5"), "{}", dry.stdout);
        assert_eq!(dry.warnings().len(), 1, "{}", dry.stderr);
    }
    let diff = kubectl.answer(&["diff", "-n", ns, "-f", "-"], &of("diffed")).unwrap();
    assert!(diff.stdout.contains("queuePosition: 5"), "{}{}", diff.stdout, diff.stderr);
    assert_eq!(kubectl.backups(ns).unwrap().len(), before, "a dry run stores nothing");
    let next = kubectl.answer(&args(&["create"]), &of("next")).unwrap();
    assert_eq!(position(&stored(&next.stdout)), 5, "dry runs leave no gap");

    let create = ["backup", "create", "from-velero", "--include-namespaces", "a"];
    let created = velero(berth.plane(), ns, &create).unwrap();
    let said = format!("{}{}", created.stdout, created.stderr);
    assert!(created.status.success() && said.contains("submitted successfully"), "{said}");
    let queued = kubectl.backup(ns, "from-velero").unwrap();
    assert_eq!(queued.status.unwrap().queue_position, Some(6));
    let table = velero(berth.plane(), ns, &["backup", "get"]).unwrap().stdout;
    let is_shown = |line: &str| line.starts_with("from-velero") && line.contains("Queued");
    assert!(table.lines().any(is_shown), "{table}");
}

#[test]
fn every_fault_is_refused_at_once_with_its_field() {
    let berth = standing();
    let bad = backup(
        "bad",
        json!({
            "includedNamespaces": ["Bad_Name"],
            "includedResources": ["pods"],
            "excludedNamespaceScopedResources": ["secrets"],
            "labelSelector": {"matchExpressions": [{"key": "app", "operator": "Is"}]},
            "orLabelSelectors": [{"matchLabels": {"a": "b"}}],
            "ttl": "1d",
            "storageLocation": "nowhere",
        }),
    );
    for dry in [false, true] {
        let args: &[&str] = if dry { &["create", "--dry-run=server"] } else { &["create"] };
        let args: Vec<&str> = args.iter().copied().chain(["-n", berth.namespace(), "-f", "-"]).collect();
        let answer = berth.kubectl().answer_by_process(&args, &bad.to_string()).unwrap();
        assert!(!answer.status.success());
        for field in [
            "spec.includedNamespaces[0]",
            "spec.excludedNamespaceScopedResources",
            "spec.labelSelector.matchExpressions[0].operator",
            "spec.orLabelSelectors",
            "spec.ttl",
            "spec.storageLocation",
        ] {
            assert!(answer.stderr.contains(field), "{field} is not named in: {}", answer.stderr);
        }
    }
    // What was accepted may be labelled, but its place is for what was asked for.
    berth.kubectl().create(berth.namespace(), &[backup_of("good", &["a"])]).unwrap();
    let patch = |patch: Value| {
        let patch = patch.to_string();
        let args =
            ["patch", "backups.velero.io", "good", "-n", berth.namespace(), "--type=merge", "-p", &patch];
        berth.kubectl().answer(&args, "").unwrap()
    };
    assert!(patch(json!({"metadata": {"labels": {"x": "y"}}})).status.success());
    let refused = patch(json!({"spec": {"ttl": "soon"}}));
    assert!(refused.stderr.contains("spec: what a backup asks for cannot change"), "{}", refused.stderr);
}

#[test]
fn other_namespaces_are_left_alone() {
    let berth = standing();
    berth.kubectl().run(&["create", "namespace", "not-served"]).unwrap();
    let args = ["create", "-n", "not-served", "-o", "json", "-f", "-"];
    let wrong = backup("wrong", json!({"ttl": "never"}));
    let answer = berth.kubectl().answer(&args, &wrong.to_string()).unwrap();
    assert!(answer.status.success() && answer.warnings().is_empty(), "{}", answer.stderr);
    assert_eq!(stored(&answer.stdout)["status"], Value::Null);
}

#[test]
fn finished_backups_that_are_copied_from_a_store_keep_their_phase() {
    let berth = standing();
    let mut copied = backup_of("copied", &["a"]);
    copied["status"] = json!({"phase": "Completed"});
    let args = ["create", "-n", berth.namespace(), "-o", "json", "-f", "-"];
    let answer = berth.kubectl().answer(&args, &copied.to_string()).unwrap();
    assert_eq!(stored(&answer.stdout)["status"], json!({"phase": "Completed"}), "{}", answer.stderr);
    assert!(answer.warnings().is_empty());
}
