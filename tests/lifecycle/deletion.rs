//! Deletion and expiry.

use std::path::Path;

use berth_api::velero::{Backup, BackupPhase};
use serde_json::{Value, json};

use crate::admission::program;
use crate::queue::ended;
use crate::support::PATIENCE;
use crate::support::backup::backup_of;
use crate::support::peers::{S3, velero};
use crate::support::{Berth, ControlPlane, Options, backup, wait_for};

pub(super) fn start(namespace: &str, args: &[&str], env: &[(&str, &str)]) -> Berth {
    let mut options = Options::new(program(), namespace);
    options.controller_args.extend(args.iter().map(|arg| (*arg).to_owned()));
    options.env.extend(env.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    Berth::start(ControlPlane::shared().unwrap(), options).unwrap()
}

pub(super) fn create(berth: &Berth, objects: &[Value]) {
    let answer = berth.kubectl().create(berth.namespace(), objects).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
}

/// Asks for a deletion as people do.
pub(super) fn delete(berth: &Berth, name: &str) {
    let answer = velero(berth.plane(), berth.namespace(), &["backup", "delete", name, "--confirm"]).unwrap();
    assert!(answer.status.success(), "{}{}", answer.stdout, answer.stderr);
}

pub(super) fn requests(berth: &Berth) -> Vec<Value> {
    let args = ["get", "deletebackuprequests.velero.io", "-n", berth.namespace(), "-o", "json"];
    let list: Value = serde_json::from_str(&berth.kubectl().run(&args).unwrap()).unwrap();
    list["items"].as_array().unwrap().clone()
}

/// Waits until a Backup and all requests for it are gone.
pub(super) fn is_deleted(berth: &Berth, name: &str) {
    let what = format!("{name} to be deleted");
    wait_for(&what, PATIENCE, || {
        let backups = berth.kubectl().backups(berth.namespace())?;
        let is_asked = requests(berth).iter().any(|request| request["spec"]["backupName"] == name);
        Ok((!backups.contains_key(name) && !is_asked).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}: {:#?}", requests(berth)));
}

/// Waits until a request ends with errors, and gives them.
pub(super) fn errors(berth: &Berth, name: &str) -> String {
    wait_for(&format!("the deletion of {name} to fail"), PATIENCE, || {
        let found = requests(berth).into_iter().find(|request| {
            request["spec"]["backupName"] == name && request["status"]["phase"] == "Processed"
        });
        Ok(found.map(|request| request["status"]["errors"].to_string()))
    })
    .unwrap()
}

pub(super) fn files(folder: &Path) -> Vec<String> {
    let mut files: Vec<String> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    files
}

#[test]
fn stock_veleros_command_deletes_what_ran_and_what_waits_and_nothing_else() {
    let berth = start("deletion-folder", &[], &[]);
    let mut held = backup_of("held", &["default"]);
    held["metadata"]["annotations"] = json!({"berth.dev/hold": "true"});
    create(&berth, &[backup_of("one", &["default"]), backup_of("one-more", &["default"]), held]);
    ended(&berth, &["one", "one-more"]);
    let folder = |name: &str| berth.archives().join("backups").join(name);
    let neighbour = files(&folder("one-more"));
    assert!(neighbour.contains(&"velero-backup.json".to_owned()), "{neighbour:?}");

    delete(&berth, "one");
    is_deleted(&berth, "one");
    assert!(!folder("one").exists(), "{:?}", files(&folder("one")));
    assert_eq!(files(&folder("one-more")), neighbour);
    assert_eq!(berth.kubectl().phase(berth.namespace(), "held").unwrap(), BackupPhase::Queued);
    delete(&berth, "held");
    is_deleted(&berth, "held");
    assert_eq!(berth.kubectl().backups(berth.namespace()).unwrap().len(), 1);

    berth.controller.await_metric(r#"velero_backup_deletion_success_total{schedule=""} 2"#).unwrap();
    // The name is free again.
    create(&berth, &[backup_of("one", &["default"])]);
    assert_eq!(ended(&berth, &["one"])["one"].phase(), BackupPhase::Completed);
}

#[test]
fn a_backup_in_a_bucket_is_deleted_with_its_restores() {
    let berth = start("deletion-s3", &[], &[]);
    let s3 = S3::start_counting(berth.plane(), berth.namespace()).unwrap();
    let apply = |object: &Value| {
        let args = ["apply", "--server-side", "-n", berth.namespace(), "-f", "-"];
        berth.kubectl().run_with(&args, &object.to_string()).unwrap();
    };
    apply(&s3.keys.secret_object(berth.namespace()));
    apply(&s3.location("away", "deep"));
    berth.await_location("away").unwrap();
    let spec = json!({"includedNamespaces": ["default"], "storageLocation": "away"});
    create(&berth, &[backup("one", spec.clone()), backup("two", spec)]);
    ended(&berth, &["one", "two"]);
    assert!(s3.file("deep/backups/one/velero-backup.json").exists());
    // However many files there are, one request removes a thousand of them.
    for i in 0..100 {
        std::fs::write(s3.file(&format!("deep/backups/one/more-{i}")), "x").unwrap();
    }
    let before = s3.requests().unwrap().len();
    delete(&berth, "one");
    is_deleted(&berth, "one");
    let asked = s3.requests().unwrap().split_off(before);
    assert!(asked.len() < 100, "{} requests: {asked:#?}", asked.len());
    // What the list of its folder shows is not asked for, and nothing is read three times but the
    // claim.
    let of_files = asked.iter().filter(|request| request.contains("/deep/backups/one/")).count();
    assert!(of_files <= 14, "{of_files} requests about its files: {asked:#?}");
    assert!(files(&s3.file("deep/backups/one")).is_empty());
    assert!(s3.file("deep/backups/two/velero-backup.json").exists());
}

#[test]
fn an_expired_backup_goes_and_one_that_is_kept_stays_for_whoever_asks() {
    let berth = start("deletion-expiry", &[], &[("BERTH_PACE", "60")]);
    let expiring = |name: &str| backup(name, json!({"includedNamespaces": ["default"], "ttl": "1s"}));
    let mut kept = expiring("kept");
    kept["metadata"]["annotations"] = json!({"berth.dev/keep": "a court asks for it"});
    let lasting = backup_of("lasting", &["default"]);
    create(&berth, &[expiring("old"), kept, lasting]);
    is_deleted(&berth, "old");
    assert!(!berth.archives().join("backups/old").exists());
    ended(&berth, &["kept", "lasting"]);
    delete(&berth, "kept");
    assert!(errors(&berth, "kept").contains("a court asks for it"), "{}", errors(&berth, "kept"));
    let left: Vec<String> = berth.kubectl().backups(berth.namespace()).unwrap().into_keys().collect();
    assert_eq!(left, ["kept", "lasting"]);
    assert_eq!(berth.kubectl().phase(berth.namespace(), "kept").unwrap(), BackupPhase::Completed);
    assert!(berth.archive("kept").exists());
    // Who takes the annotation away may ask again, and the request that failed goes, too.
    let args = ["annotate", "backups.velero.io", "kept", "-n", berth.namespace(), "berth.dev/keep-"];
    berth.kubectl().run(&args).unwrap();
    delete(&berth, "kept");
    is_deleted(&berth, "kept");
}

/// Keeps Backups of a namespace from being removed, as long as it is there.
pub(super) fn hold(berth: &Berth, name: &str) {
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "matchConstraints": {"resourceRules": [{
                    "apiGroups": ["velero.io"], "apiVersions": ["v1"], "operations": ["DELETE"],
                    "resources": ["backups"],
                }]},
                "validations": [{"expression": "false", "message": "held by a test"}],
            },
        },
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {
                "policyName": name,
                "validationActions": ["Deny"],
                "matchResources": {"namespaceSelector": {
                    "matchLabels": {"kubernetes.io/metadata.name": berth.namespace()},
                }},
            },
        },
    ]});
    berth.kubectl().run_with(&["apply", "--server-side", "-f", "-"], &objects.to_string()).unwrap();
    wait_for("the policy to hold", PATIENCE, || {
        let args = ["delete", "backups.velero.io", "one", "-n", berth.namespace(), "--dry-run=server"];
        Ok(berth.kubectl().answer_by_process(&args, "")?.stderr.contains("held by a test").then_some(()))
    })
    .unwrap();
}

/// Ends what [`hold`] began.
pub(super) fn release(berth: &Berth, name: &str) {
    for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
        berth.kubectl().run(&["delete", kind, name]).unwrap();
    }
}

#[test]
fn a_deletion_whose_controller_is_killed_is_finished_by_the_next_one() {
    let mut berth = start("deletion-killed", &[], &[]);
    create(&berth, &[backup_of("one", &["default"])]);
    let done = ended(&berth, &["one"]).remove("one").unwrap();
    hold(&berth, "berth-test-hold-deletion");
    delete(&berth, "one");
    let phase = |berth: &Berth| berth.kubectl().phase(berth.namespace(), "one").unwrap();
    let folder = berth.archives().join("backups/one");
    wait_for("the files to go", PATIENCE, || Ok((!folder.exists()).then_some(()))).unwrap();
    wait_for("the Backup to be Deleting", PATIENCE, || {
        Ok((phase(&berth) == BackupPhase::Deleting).then_some(()))
    })
    .unwrap();
    assert_eq!(requests(&berth)[0]["status"]["phase"], "InProgress");
    berth.kill_controller().unwrap();
    // As if it had been killed while files were still there: the claim of the deletion tells whose.
    std::fs::create_dir_all(&folder).unwrap();
    let uid = done.metadata.uid.clone().unwrap();
    let args = ["get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}"];
    let cluster = berth.kubectl().run(&args).unwrap();
    let claim = json!({
        "cluster": cluster.trim(), "namespace": berth.namespace(), "backup": uid, "run": "deletion-of-the-dead",
    });
    std::fs::write(folder.join("berth-run.json"), claim.to_string()).unwrap();
    std::fs::write(folder.join("one.tar.gz"), "a half").unwrap();
    release(&berth, "berth-test-hold-deletion");
    berth.controller.process.restart().unwrap();
    is_deleted(&berth, "one");
    assert!(!folder.exists(), "{:?}", files(&folder));
}

#[test]
fn a_new_backup_waits_until_the_deletion_of_an_earlier_one_of_its_name_has_ended() {
    let berth = start("deletion-anew", &["--disable-controllers=backup-deletion"], &[]);
    // As somebody leaves it who removes a Backup by kubectl in the middle of its deletion.
    let request = json!({
        "apiVersion": "velero.io/v1", "kind": "DeleteBackupRequest",
        "metadata": {
            "name": "earlier",
            "labels": {"velero.io/backup-name": "one", "velero.io/backup-uid": "uid-of-the-earlier"},
        },
        "spec": {"backupName": "one"}, "status": {"phase": "InProgress"},
    });
    // Nobody else may say that a deletion has begun.
    let controller = format!("--as=system:serviceaccount:{0}:berth-controller", berth.namespace());
    let args = ["create", "-n", berth.namespace(), &controller, "-f", "-"];
    berth.kubectl().run_with(&args, &request.to_string()).unwrap();
    let folder = berth.archives().join("backups/one");
    std::fs::create_dir_all(&folder).unwrap();
    let args = ["get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}"];
    let cluster = berth.kubectl().run(&args).unwrap();
    let claim = json!({
        "cluster": cluster.trim(), "namespace": berth.namespace(), "backup": "uid-of-the-earlier",
        "run": "deletion-of-the-request",
    });
    std::fs::write(folder.join("berth-run.json"), claim.to_string()).unwrap();
    std::fs::write(folder.join("one.tar.gz"), "a half").unwrap();
    create(&berth, &[backup_of("one", &["default"])]);
    wait_for("the run to wait", PATIENCE, || {
        let log = berth.controller.process.log_text()?;
        Ok(log.contains("waiting for the deletion of an earlier backup").then_some(()))
    })
    .unwrap();
    assert_eq!(std::fs::read_to_string(folder.join("berth-run.json")).unwrap(), claim.to_string());
    assert_eq!(files(&folder), ["berth-run.json", "one.tar.gz"]);
    berth.kubectl().run(&["delete", "deletebackuprequests", "earlier", "-n", berth.namespace()]).unwrap();
    let done = ended(&berth, &["one"]).remove("one").unwrap();
    assert_eq!(done.phase(), BackupPhase::Completed, "{:?}", done.status);
    let claim = std::fs::read_to_string(folder.join("berth-run.json")).unwrap();
    assert!(claim.contains(done.metadata.uid.as_deref().unwrap()), "{claim}");
}

/// Writes a claim of another cluster over that of a backup.
fn give_away(berth: &Berth, name: &str, found: &Backup) {
    let claim = json!({
        "cluster": "some-other-cluster", "namespace": "velero", "backup": found.metadata.uid, "run": "r",
    });
    let path = berth.archives().join("backups").join(name).join("berth-run.json");
    std::fs::write(path, claim.to_string()).unwrap();
}

#[test]
fn what_another_cluster_has_written_stays_until_the_location_says_whose_it_is() {
    let berth = start("deletion-strange", &[], &[]);
    create(&berth, &[backup_of("one", &["default"])]);
    let done = ended(&berth, &["one"]).remove("one").unwrap();
    give_away(&berth, "one", &done);
    let folder = berth.archives().join("backups/one");
    let before = files(&folder);
    delete(&berth, "one");
    let said = errors(&berth, "one");
    assert!(said.contains("berth.dev/inherits=some-other-cluster"), "{said}");
    assert_eq!(files(&folder), before);
    assert_eq!(berth.kubectl().phase(berth.namespace(), "one").unwrap(), BackupPhase::Completed);

    // A Backup that failed because the folder was taken goes alone.
    let strange = berth.archives().join("backups/taken");
    std::fs::create_dir_all(&strange).unwrap();
    let claim = json!({"cluster": "some-other-cluster", "namespace": "velero", "backup": "b", "run": "r"});
    std::fs::write(strange.join("berth-run.json"), claim.to_string()).unwrap();
    std::fs::write(strange.join("taken.tar.gz"), "theirs").unwrap();
    create(&berth, &[backup_of("taken", &["default"])]);
    assert_eq!(ended(&berth, &["taken"])["taken"].phase(), BackupPhase::Failed);
    delete(&berth, "taken");
    is_deleted(&berth, "taken");
    assert_eq!(files(&strange), ["berth-run.json", "taken.tar.gz"]);

    let args = ["annotate", "backupstoragelocations.velero.io", "default", "-n", berth.namespace()];
    let mark = "berth.dev/inherits=a-third-cluster,some-other-cluster";
    berth.kubectl().run(&[&args[..], &[mark]].concat()).unwrap();
    delete(&berth, "one");
    is_deleted(&berth, "one");
    assert!(!folder.exists());
    assert!(strange.exists());
}
