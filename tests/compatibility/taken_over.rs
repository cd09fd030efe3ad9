//! A stock Velero ends in the middle of its work, and berth carries on what it has left.

use std::collections::BTreeMap;

use berth_api::velero::{Backup, BackupPhase};
use jiff::Timestamp;
use kube::ResourceExt;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::admission::program;
use crate::queue::ended;
use crate::support::PATIENCE;
use crate::support::peers::{S3, Velero, install_definitions, prepare, velero};
use crate::support::{Berth, ControlPlane, Kubectl, Options, wait_for};

const NAMESPACE: &str = "velero";
const PREFIX: &str = "shared";
const SCHEDULE: &str = "often";

fn run(plane: &ControlPlane, args: &[&str]) -> String {
    let answer = velero(plane, NAMESPACE, args).unwrap();
    assert!(answer.status.success(), "{args:?}: {}{}", answer.stdout, answer.stderr);
    answer.stdout
}

fn create(plane: &ControlPlane, name: &str, namespace: &str, more: &[&str]) {
    run(plane, &[&["backup", "create", name, "--include-namespaces", namespace], more].concat());
}

fn wait_phase(kubectl: &Kubectl, name: &str, phase: BackupPhase) {
    wait_for(&format!("{name} to be {}", phase.as_str()), PATIENCE, || {
        Ok((kubectl.phase(NAMESPACE, name)? == phase).then_some(()))
    })
    .unwrap();
}

fn is_scheduled(backup: &Backup) -> bool {
    backup.labels().get("velero.io/schedule-name").is_some_and(|of| of == SCHEDULE)
}

fn scheduled(kubectl: &Kubectl) -> anyhow::Result<BTreeMap<String, Backup>> {
    let mut all = kubectl.backups(NAMESPACE)?;
    all.retain(|_, backup| is_scheduled(backup));
    Ok(all)
}

/// The time that a scheduled backup of berth is for, by its name.
fn tick(name: &str) -> Timestamp {
    let text = name.strip_prefix(&format!("{SCHEDULE}-")).unwrap();
    let civil = jiff::civil::DateTime::strptime("%Y%m%d%H%M%S", text).unwrap();
    civil.to_zoned(jiff::tz::TimeZone::UTC).unwrap().timestamp()
}

/// Stops the store at a moment when no backup runs: the Schedule may have one made at any time.
fn freeze(kubectl: &Kubectl, s3: &mut S3) {
    let rests = || {
        let all = kubectl.backups(NAMESPACE)?;
        anyhow::Ok(all.values().all(|backup| backup.phase().is_final()))
    };
    wait_for("a moment without a backup", PATIENCE, || {
        if !rests()? {
            return Ok(None);
        }
        s3.process.signal(Signal::SIGSTOP)?;
        if rests()? {
            return Ok(Some(()));
        }
        s3.process.signal(Signal::SIGCONT)?;
        Ok(None)
    })
    .unwrap();
}

fn read(kubectl: &Kubectl, args: &[&str]) -> Value {
    let args = [&["get"][..], args, &["-n", NAMESPACE, "-o", "json"]].concat();
    serde_json::from_str(&kubectl.run(&args).unwrap()).unwrap()
}

fn requests(kubectl: &Kubectl) -> Vec<Value> {
    read(kubectl, &["deletebackuprequests.velero.io"])["items"].as_array().unwrap().clone()
}

#[test]
fn what_a_stock_velero_has_left_in_the_middle_is_carried_on() {
    let plane = ControlPlane::start().unwrap();
    install_definitions(&plane).unwrap();
    let mut s3 = S3::start(&plane, "taken-over").unwrap();
    prepare(&plane, NAMESPACE, &s3, PREFIX).unwrap();
    let kubectl = plane.kubectl().clone();
    // As a Velero before it has left it: else it refuses what it runs before it has looked.
    let available = json!({"status": {"phase": "Available"}}).to_string();
    let of_default = ["patch", "backupstoragelocation", "default", "-n", NAMESPACE];
    kubectl.run(&[&of_default[..], &["--type=merge", "-p", &available]].concat()).unwrap();
    // Velero looks at Schedules when it starts, and then once a minute: this one is due by then.
    let schedule = ["schedule", "create", SCHEDULE, "--schedule", "@every 2s"];
    run(&plane, &[&schedule[..], &["--include-namespaces", "default"]].concat());
    // Each has a namespace of its own, and there are slots for all: Velero looks at what waits for
    // a slot when a backup has ended, often before it counts the slot as free, and then once a
    // minute. What waits for a namespace begins when a backup has ended.
    let finished = ["voyage", "brief", "leaving-1", "leaving-2"];
    let namespace =
        |name: &&str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    plane.apply(finished.iter().map(namespace).collect()).unwrap();
    // Expiry is left to berth. A sync may take a Backup for one that the store has lost.
    let disabled = ["gc", "backup-sync"];
    let mut stock = Velero::start(&plane, NAMESPACE, &s3, &disabled, &["--concurrent-backups=8"]).unwrap();
    for name in finished {
        let more: &[&str] = if name == "brief" { &["--ttl", "1s"] } else { &[] };
        create(&plane, name, name, more);
    }
    for name in finished {
        wait_phase(&kubectl, name, BackupPhase::Completed);
    }
    wait_for("a scheduled backup of Velero", PATIENCE, || {
        let all = scheduled(&kubectl)?;
        Ok(all.values().any(|backup| backup.phase() == BackupPhase::Completed).then_some(()))
    })
    .unwrap();

    // A store that does not answer holds Velero in the middle: of a backup, and of a deletion.
    freeze(&kubectl, &mut s3);
    let await_one = |what: &str, phase: BackupPhase| {
        wait_for(what, PATIENCE, || {
            let all = kubectl.backups(NAMESPACE)?;
            Ok(all.values().any(|backup| backup.phase() == phase).then_some(()))
        })
        .unwrap();
    };
    create(&plane, "next-1", "default", &[]);
    await_one("Velero to run a backup", BackupPhase::InProgress);
    create(&plane, "next-2", "default", &[]);
    await_one("Velero to queue a backup", BackupPhase::Queued);
    run(&plane, &["backup", "delete", "leaving-1", "leaving-2", "--confirm"]);
    await_one("Velero to delete a backup", BackupPhase::Deleting);
    stock.process.kill().unwrap();
    drop(stock);
    kubectl.run(&["delete", "deployment", "velero", "-n", NAMESPACE]).unwrap();
    s3.process.signal(Signal::SIGCONT).unwrap();
    s3.wait_ready().unwrap();
    let asked = requests(&kubectl);
    assert_eq!(asked.len(), 2, "{asked:#?}");
    assert!(asked.iter().any(|request| request["status"]["phase"] == "InProgress"), "{asked:#?}");
    let left = kubectl.backups(NAMESPACE).unwrap();
    let schedule = read(&kubectl, &["schedules.velero.io", SCHEDULE]);
    let last: Timestamp = schedule["status"]["lastBackup"].as_str().unwrap().parse().unwrap();

    let mut options = Options::new(program(), NAMESPACE);
    options.has_location = true;
    options.env = vec![("BERTH_PACE".to_owned(), "60".to_owned())];
    let berth = Berth::start(plane, options).unwrap();
    let stored = |name: &str, file: &str| s3.file(&format!("{PREFIX}/backups/{name}/{file}")).exists();

    // What waited runs, and what ran ends with the reason.
    let of = |is_it: fn(BackupPhase) -> bool| -> Vec<&str> {
        left.iter().filter(|(_, backup)| is_it(backup.phase())).map(|(name, _)| name.as_str()).collect()
    };
    let interrupted = of(|phase| phase == BackupPhase::InProgress);
    let waiting =
        of(|phase| !phase.is_final() && phase != BackupPhase::InProgress && phase != BackupPhase::Deleting);
    assert!(!interrupted.is_empty() && !waiting.is_empty(), "{left:#?}");
    let done = ended(&berth, &[&waiting[..], &interrupted[..]].concat());
    for name in waiting {
        assert_eq!(done[name].phase(), BackupPhase::Completed, "{:?}", done[name].status);
        assert!(stored(name, "berth-run.json") && stored(name, "velero-backup.json"), "{name}");
    }
    for name in interrupted {
        let failed = done[name].status.clone().unwrap();
        assert_eq!(done[name].phase(), BackupPhase::Failed, "{failed:?}");
        let why = failed.failure_reason.unwrap_or_default();
        assert!(why.contains("the controller that ran it ended before the backup did"), "{why}");
    }

    // What was being deleted goes, as what was only asked for, and what has expired.
    for name in ["leaving-1", "leaving-2", "brief"] {
        wait_for(&format!("{name} to go"), PATIENCE, || {
            let is_asked = requests(&kubectl).iter().any(|request| request["spec"]["backupName"] == name);
            Ok((!is_asked && !kubectl.backups(NAMESPACE)?.contains_key(name)).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error}: {:#?}", requests(&kubectl)));
        assert!(!stored(name, "velero-backup.json") && !stored(name, &format!("{name}.tar.gz")), "{name}");
    }

    // The Schedule goes on where Velero was.
    let uid = schedule["metadata"]["uid"].as_str().unwrap();
    let own = |backup: &Backup| {
        backup.annotations().get("berth.dev/schedule-uid").is_some_and(|of| of == uid)
            && backup.phase() == BackupPhase::Completed
    };
    let all = wait_for("two scheduled backups of berth", PATIENCE, || {
        let all = scheduled(&kubectl)?;
        Ok((all.values().filter(|backup| own(backup)).count() >= 2).then_some(all))
    })
    .unwrap();
    run(berth.plane(), &["schedule", "pause", SCHEDULE]);
    for (name, backup) in &all {
        let is_new = !left.contains_key(name);
        assert_eq!(backup.annotations().contains_key("berth.dev/schedule-uid"), is_new, "{name}");
        // No time has a second backup.
        assert!(!is_new || tick(name) > last, "{name} is for a time before {last}");
    }
    let of_velero: Vec<&String> =
        left.iter().filter(|(_, one)| is_scheduled(one)).map(|(name, _)| name).collect();
    assert!(of_velero.iter().all(|name| all.contains_key(*name)), "{of_velero:?}: {:?}", all.keys());

    // What Velero had finished is read through berth.
    assert_eq!(kubectl.phase(NAMESPACE, "voyage").unwrap(), BackupPhase::Completed);
    let log = run(berth.plane(), &["backup", "logs", "voyage"]);
    assert!(log.contains("backup=velero/voyage"), "{log}");
    let listed = run(berth.plane(), &["backup", "get"]);
    assert!(listed.lines().any(|line| line.starts_with("voyage") && line.contains("Completed")), "{listed}");
}
