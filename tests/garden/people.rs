//! `berth garden plan`, which asks no cluster.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::admission::program;
use crate::support::project;

fn sample(name: &str) -> PathBuf {
    project().join("manifests/samples").join(format!("{name}.yaml"))
}

fn plan(samples: &[&str], more: &[&str]) -> Output {
    let mut command = Command::new(program());
    // No cluster is asked, whatever is set.
    command.args(["garden", "plan"]).env("KUBECONFIG", "/nowhere");
    for name in samples {
        command.arg("-f").arg(sample(name));
    }
    command.args(more).output().unwrap()
}

const ACCEPTED: [&str; 3] = ["cloudprofile-accepted", "seed-accepted", "backupentry-accepted"];

#[test]
fn a_plan_says_which_buckets_come_about_and_who_goes_where() {
    let output = plan(&ACCEPTED, &["--bucket-quota", "aws=2"]);
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected = "\
BUCKET                                PROVIDER  REGION     ENTRIES  SEED
sample-accepted-eu-west-1-xxxxx  new  aws       eu-west-1  1/2      sample-accepted

ENTRY                    CLUSTER          BUCKET
default/sample-accepted  sample-accepted  sample-accepted-eu-west-1-xxxxx

warning: xxxxx stands for the first five characters of the CloudProfile's UID, which it gets when it is created
";
    assert_eq!(told, expected);

    let output = plan(&ACCEPTED, &["-o", "json"]);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let bucket = json!({
        "name": "sample-accepted-eu-west-1-xxxxx", "isNew": true, "provider": "aws", "region": "eu-west-1",
        "entries": 1, "seed": "sample-accepted",
    });
    assert_eq!(told["buckets"], json!([bucket]));
    assert_eq!(told["entries"][0]["bucket"], "sample-accepted-eu-west-1-xxxxx");
}

#[test]
fn without_a_seed_nothing_is_made() {
    let output = plan(&["cloudprofile-accepted"], &["-o", "json"]);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&told["buckets"], &told["entries"]), (&json!([]), &json!([])));
}

#[test]
fn a_plan_names_every_fault_of_every_file() {
    let output = plan(&["cloudprofile-refused", "seed-refused", "backupentry-refused"], &[]);
    assert!(!output.status.success());
    let told = String::from_utf8(output.stderr).unwrap();
    for part in [
        "CloudProfile sample-refused: spec.backup.region: required",
        "CloudProfile sample-refused: spec.backup.secretRef",
        "Seed sample-refused: spec.cloudProfileName",
        "BackupEntry default/source-sample-refused: metadata.name",
        "BackupEntry default/source-sample-refused: spec.seedName",
    ] {
        assert!(told.contains(part), "{part:?} is not in:\n{told}");
    }
}

#[test]
fn a_plan_names_what_stands_there_twice() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("again.yaml");
    let accepted = std::fs::read_to_string(sample("backupentry-accepted")).unwrap();
    let elsewhere = accepted.replace("namespace: default", "namespace: elsewhere");
    assert_ne!(elsewhere, accepted);
    std::fs::write(&file, elsewhere).unwrap();
    let output = plan(&ACCEPTED, &["-f", file.to_str().unwrap()]);
    assert!(!output.status.success());
    let told = String::from_utf8(output.stderr).unwrap();
    // As admission says it.
    for (one, other) in [("default", "elsewhere"), ("elsewhere", "default")] {
        let part = format!(
            "BackupEntry {one}/sample-accepted: metadata.name: namespace \"{other}\" has an entry of this name, and both would \
             have the same directory"
        );
        assert!(told.contains(&part), "{part:?} is not in:\n{told}");
    }
    assert!(!told.contains("twice"), "{told}");
    let output = plan(&[&ACCEPTED[..], &ACCEPTED[..]].concat(), &[]);
    assert!(!output.status.success());
    let told = String::from_utf8(output.stderr).unwrap();
    for what in
        ["CloudProfile sample-accepted", "Seed sample-accepted", "BackupEntry default/sample-accepted"]
    {
        let part = format!("{what}: metadata.name: stands here twice");
        assert_eq!(told.matches(&part).count(), 1, "{part:?} is not in:\n{told}");
    }
    assert!(!told.contains("has an entry of this name"), "{told}");
}
