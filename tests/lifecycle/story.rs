//! The life of backups in one story, without any Velero server: from a Schedule to the loss of the
//! cluster, with stock Velero's command line. The parts of it are in the files beside this one.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::velero::{Backup, BackupPhase};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde_json::json;

use super::sync::{LOCATION, apply};
use crate::admission::program;
use crate::support::peers::{S3, velero};
use crate::support::{Berth, ControlPlane, Options, PATIENCE, wait_for};

const NAMESPACE: &str = "velero";
const PREFIX: &str = "deep/story";
const SCHEDULE: &str = "often";

/// A new cluster with berth, and with a location in that store.
fn cluster(s3: &S3) -> Berth {
    let mut options = Options::new(program(), NAMESPACE);
    options.env = vec![("BERTH_PACE".to_owned(), "60".to_owned())];
    let berth = Berth::start(ControlPlane::start().unwrap(), options).unwrap();
    apply(&berth, &[s3.keys.secret_object(NAMESPACE), s3.location(LOCATION, PREFIX)]);
    berth.await_location(LOCATION).unwrap();
    berth
}

/// What `velero ARGS` prints, which has to succeed.
fn run(berth: &Berth, args: &[&str]) -> String {
    let answer = velero(berth.plane(), NAMESPACE, args).unwrap();
    assert!(answer.status.success(), "{args:?}: {}{}", answer.stdout, answer.stderr);
    answer.stdout
}

fn scheduled(berth: &Berth) -> anyhow::Result<BTreeMap<String, Backup>> {
    let mut all = berth.kubectl().backups(NAMESPACE)?;
    all.retain(|_, backup| backup.labels().get("velero.io/schedule-name").is_some_and(|of| of == SCHEDULE));
    Ok(all)
}

fn is_lasting(backup: &Backup) -> bool {
    let expiration = backup.status.as_ref().and_then(|status| status.expiration.as_ref());
    expiration.is_some_and(|at| at.0 > Timestamp::now() + SignedDuration::from_hours(1))
}

fn is_completed(backup: &Backup) -> bool {
    backup.phase() == BackupPhase::Completed
}

/// Names of the backups that the store shows.
fn stored(s3: &S3) -> BTreeSet<String> {
    let folders = std::fs::read_dir(s3.file(&format!("{PREFIX}/backups"))).into_iter().flatten();
    let folders = folders.map(|folder| folder.unwrap());
    let shown = folders.filter(|folder| folder.path().join("velero-backup.json").exists());
    shown.map(|folder| folder.file_name().into_string().unwrap()).collect()
}

/// Waits until the cluster and the store have lost a backup.
fn goes(berth: &Berth, s3: &S3, name: &str) {
    wait_for(&format!("{name} to go"), PATIENCE, || {
        let is_there = scheduled(berth)?.contains_key(name) || stored(s3).contains(name);
        Ok((!is_there).then_some(()))
    })
    .unwrap();
}

fn has_its_log(berth: &Berth, name: &str) {
    let log = run(berth, &["backup", "logs", name]);
    assert!(log.contains("backup begins") && log.contains("backup ends: Completed"), "{log}");
}

#[test]
fn backups_come_expire_are_deleted_and_read_and_survive_their_cluster_without_a_velero() {
    // It outlives the cluster.
    let s3 = S3::start(ControlPlane::shared().unwrap(), "story").unwrap();
    let lost = cluster(&s3);
    let (kubectl, deployments) = (lost.kubectl(), ["get", "deployments", "-n", NAMESPACE, "-o", "name"]);
    assert_eq!(kubectl.run(&deployments).unwrap().trim(), "", "there is no Velero server");

    // Backups come by their Schedule, and the first one expires.
    let create = ["schedule", "create", SCHEDULE, "--schedule", "@every 2s", "--ttl", "1s"];
    let of = ["--include-namespaces", "default", "--storage-location", LOCATION];
    run(&lost, &[&create[..], &of].concat());
    let first = wait_for("the first backup", PATIENCE, || {
        let all = scheduled(&lost)?;
        Ok(all.values().find(|backup| is_completed(backup)).map(|backup| backup.name_any()))
    })
    .unwrap();
    let ttl = json!({"spec": {"template": {"ttl": "24h0m0s"}}}).to_string();
    let patch = ["patch", "schedules.velero.io", SCHEDULE, "-n", NAMESPACE, "--type=merge", "-p", &ttl];
    kubectl.run(&patch).unwrap();
    goes(&lost, &s3, &first);
    wait_for("three backups that last", PATIENCE, || {
        let all = scheduled(&lost)?;
        let lasting = all.values().filter(|backup| is_completed(backup) && is_lasting(backup));
        Ok((lasting.count() >= 3).then_some(()))
    })
    .unwrap();
    run(&lost, &["schedule", "pause", SCHEDULE]);
    let mut kept = wait_for("all others to expire", PATIENCE, || {
        let all = scheduled(&lost)?;
        Ok(all.values().all(|backup| is_completed(backup) && is_lasting(backup)).then_some(all))
    })
    .unwrap();

    // One is deleted, and the log of another one is read.
    let (deleted, _) = kept.pop_first().unwrap();
    run(&lost, &["backup", "delete", &deleted, "--confirm"]);
    goes(&lost, &s3, &deleted);
    let last = kept.keys().next_back().unwrap().clone();
    has_its_log(&lost, &last);
    let names: BTreeSet<String> = kept.keys().cloned().collect();
    assert_eq!(stored(&s3), names);

    // The cluster is lost with all that was in it. A new one gets back what the store has.
    drop(lost);
    let new = cluster(&s3);
    let back = wait_for("the backups to come back", PATIENCE, || {
        let all = scheduled(&new)?;
        Ok((all.len() >= names.len()).then_some(all))
    })
    .unwrap();
    assert_eq!(back.keys().cloned().collect::<BTreeSet<_>>(), names);
    for (name, backup) in &back {
        assert_eq!((&backup.spec, &backup.status), (&kept[name].spec, &kept[name].status), "{name}");
        assert_ne!(backup.uid(), kept[name].uid(), "it is an object of the new cluster");
    }
    let listed = run(&new, &["backup", "get"]);
    for name in &names {
        let is_it = |line: &str| line.starts_with(name.as_str()) && line.contains("Completed");
        assert!(listed.lines().any(is_it), "{name}: {listed}");
    }
    has_its_log(&new, &last);
    // It deletes them only once somebody has said that they are its own.
    run(&new, &["backup", "delete", &last, "--confirm"]);
    let cluster_uid = wait_for("the deletion to be refused", PATIENCE, || {
        let found =
            super::deletion::requests(&new).into_iter().find(|one| one["status"]["phase"] == "Processed");
        let said = found.map(|one| one["status"]["errors"].to_string()).unwrap_or_default();
        let uid = said.split_once("berth.dev/inherits=").map(|(_, rest)| rest.to_owned());
        Ok(uid.map(|uid| uid.chars().take_while(|c| c.is_ascii_hexdigit() || *c == '-').collect::<String>()))
    })
    .unwrap();
    let inherits = format!("berth.dev/inherits={cluster_uid}");
    let args = ["annotate", "backupstoragelocations.velero.io", LOCATION, "-n", NAMESPACE, &inherits];
    new.kubectl().run(&args).unwrap();
    run(&new, &["backup", "delete", &last, "--confirm"]);
    goes(&new, &s3, &last);
}
