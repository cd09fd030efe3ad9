//! Backups of a store in other namespaces and clusters, and how old they are.

use std::fs;
use std::process::Stdio;

use berth_api::velero::BackupPhase;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::admission::program;
use crate::queue::ended;
use crate::support::peers::{S3, Velero, install_definitions, prepare};
use crate::support::{Berth, ControlPlane, Options, PATIENCE, backup, binaries, wait_for};

pub(super) const LOCATION: &str = "away";

fn start(plane: &'static ControlPlane, namespace: &str) -> Berth {
    let mut options = Options::new(program(), namespace);
    options.env = vec![("BERTH_PACE".to_owned(), "20".to_owned())];
    Berth::start(plane, options).unwrap()
}

pub(super) fn apply(berth: &Berth, objects: &[Value]) {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    let args = ["apply", "--server-side", "-n", berth.namespace(), "-f", "-"];
    berth.kubectl().run_with(&args, &list.to_string()).unwrap();
}

fn location(berth: &Berth) -> Value {
    let args = ["get", "backupstoragelocations", LOCATION, "-n", berth.namespace(), "-o", "json"];
    serde_json::from_str(&berth.kubectl().run(&args).unwrap()).unwrap()
}

pub(super) fn is_there(berth: &Berth, name: &str) -> bool {
    berth.kubectl().backups(berth.namespace()).unwrap().contains_key(name)
}

pub(super) fn wait_there(berth: &Berth, name: &str, is: bool) {
    let what = format!("Backup {name} to be {}", if is { "there" } else { "gone" });
    wait_for(&what, PATIENCE, || Ok((is_there(berth, name) == is).then_some(())))
        .unwrap_or_else(|error| panic!("{error:#}\n{}", berth.controller.process.log_text().unwrap()));
}

/// Waits for as many whole rounds from now on.
pub(super) fn wait_rounds(berth: &Berth, count: usize) {
    for _ in 0..=count {
        let before = location(berth)["status"]["lastSyncedTime"].clone();
        wait_for("a round", PATIENCE, || {
            Ok((location(berth)["status"]["lastSyncedTime"] != before).then_some(()))
        })
        .unwrap();
    }
}

fn store(berth: &Berth, names: &[&str]) {
    let spec = json!({"includedNamespaces": ["default"], "storageLocation": LOCATION});
    let backups: Vec<Value> = names.iter().map(|name| backup(name, spec.clone())).collect();
    let answer = berth.kubectl().create(berth.namespace(), &backups).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
    let done = ended(berth, names);
    for name in names {
        assert_eq!(done[*name].phase(), BackupPhase::Completed, "{:?}", done[*name].status);
    }
}

/// `velero ARGS` as people run it against this berth.
fn velero(berth: &Berth, args: &[&str]) -> String {
    let [program] = binaries::get(["velero"]).unwrap();
    let mut command = std::process::Command::new("timeout");
    command.arg("60").arg(program).args(args).args(["--namespace", berth.namespace(), "--kubeconfig"]);
    command.arg(berth.plane().kubeconfig()).env("HOME", berth.plane().folder()).stdin(Stdio::null());
    for proxy in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"] {
        command.env_remove(proxy);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn backups_come_from_a_store_and_go_only_with_it() {
    let plane = ControlPlane::shared().unwrap();
    let one = start(plane, "sync-one");
    let mut s3 = S3::start(plane, "sync").unwrap();
    apply(&one, &[s3.keys.secret_object("sync-one"), s3.location(LOCATION, "deep/sync")]);
    one.await_location(LOCATION).unwrap();
    store(&one, &["first", "second", "third"]);

    // Foreign folders of each kind.
    let root = s3.file("deep/sync/backups");
    let folder = |name: &str| root.join(name);
    let put = |name: &str, file: &str, text: &str| {
        fs::create_dir_all(folder(name)).unwrap();
        fs::write(folder(name).join(file), text).unwrap();
    };
    let whole = fs::read_to_string(folder("first").join("velero-backup.json")).unwrap();
    put("not-a-backup", "readme", "x");
    put("cut", "velero-backup.json", &whole[..whole.len() / 2]);
    put("renamed", "velero-backup.json", &whole);
    put("Odd_Name", "velero-backup.json", &whole);
    let newer = whole.replace("\"first\"", "\"newer\"").replace("\"1.1.0\"", "\"2.0.0\"");
    put("newer", "velero-backup.json", &newer);
    let running = whole.replace("\"first\"", "\"running\"").replace("\"Completed\"", "\"InProgress\"");
    put("running", "velero-backup.json", &running);
    put("headless", "velero-backup.json", &whole.replace("\"first\"", "\"headless\""));

    // Another control plane's view: an empty namespace with the same store.
    let two = start(plane, "sync-two");
    apply(&two, &[s3.keys.secret_object("sync-two"), s3.location(LOCATION, "deep/sync")]);
    for name in ["first", "second", "third"] {
        wait_there(&two, name, true);
    }
    let (here, there) = (
        two.kubectl().backup("sync-two", "first").unwrap(),
        one.kubectl().backup("sync-one", "first").unwrap(),
    );
    assert_ne!(here.uid(), there.uid());
    assert_eq!(here.status, there.status, "the status came with it");
    assert_eq!(here.spec, there.spec);
    assert_eq!(here.labels()["velero.io/storage-location"], LOCATION);
    let shown = velero(&two, &["backup", "get"]);
    assert!(shown.lines().any(|line| line.starts_with("first") && line.contains("Completed")), "{shown}");
    let version = velero(&two, &["version"]);
    assert!(version.contains("Server:") && version.contains("berth."), "{version}");

    // What is skipped is told once, and counted.
    wait_rounds(&two, 3);
    let log = two.controller.process.log_text().unwrap();
    for name in ["cut", "renamed", "Odd_Name", "newer"] {
        let told = log.lines().filter(|line| line.contains("gets no Backup") && line.contains(name)).count();
        assert_eq!(told, 1, "{name}: {log}");
        assert!(!is_there(&two, name));
    }
    for (reason, count) in [
        ("Name", 1),
        ("Unreadable", 1),
        ("OtherName", 1),
        ("NewerFormat", 1),
        ("Unfinished", 1),
        ("NoMetadata", 1),
        ("NoArchive", 1),
    ] {
        let line =
            format!("berth_sync_folders_skipped{{location=\"{LOCATION}\",reason=\"{reason}\"}} {count}");
        two.controller.await_metric(&line).unwrap();
    }
    two.controller.await_metric("berth_sync_backups_created_total{location=\"away\"} 3").unwrap();
    wait_for("the age of the namespace's backup", PATIENCE, || {
        let counted = two.controller.metrics()?;
        let line = counted.lines().find_map(|line| {
            line.strip_prefix("berth_last_good_backup_of_namespace_timestamp_seconds{namespace=\"default\"} ")
        });
        Ok(line.is_some_and(|at| at != "0").then_some(()))
    })
    .unwrap();
    assert!(
        two.controller
            .metrics()
            .unwrap()
            .contains("velero_backup_location_status_gauge{backup_location_name=\"away\"} 1")
    );

    // A Backup that somebody deletes by mistake comes back, as long as the store has it.
    let deleted = two.kubectl().backup("sync-two", "third").unwrap().uid();
    two.kubectl().run(&["delete", "backups.velero.io", "third", "-n", "sync-two"]).unwrap();
    wait_for("the deleted Backup to come back", PATIENCE, || {
        let found = two.kubectl().backups("sync-two")?;
        Ok(found.get("third").is_some_and(|backup| backup.uid() != deleted).then_some(()))
    })
    .unwrap();

    // While the store is away, and while it is empty, nothing goes.
    s3.process.kill().unwrap();
    wait_for("the location to be Unavailable", PATIENCE, || {
        Ok((location(&two)["status"]["phase"] == "Unavailable").then_some(()))
    })
    .unwrap();
    let (backups, aside) = (s3.file("deep/sync/backups"), s3.file("deep/aside"));
    fs::rename(&backups, &aside).unwrap();
    fs::create_dir(&backups).unwrap();
    s3.start_again().unwrap();
    wait_rounds(&two, 3);
    for name in ["first", "second", "third"] {
        assert!(is_there(&two, name), "{name}");
    }
    fs::remove_dir_all(&backups).unwrap();
    fs::rename(&aside, &backups).unwrap();
    wait_rounds(&two, 1);

    // What the store has no longer goes, and nothing else.
    fs::remove_dir_all(folder("second")).unwrap();
    wait_there(&two, "second", false);
    wait_rounds(&two, 3);
    assert!(is_there(&two, "first") && is_there(&two, "third"));
    let text = two.controller.process.log_text().unwrap();
    assert!(text.contains("removed a Backup that the store has no longer"), "{text}");
    assert!(!s3.file("deep/sync/backups/berth-write-check").exists());
}

#[test]
fn what_a_stock_velero_stored_comes_too() {
    let plane = ControlPlane::start().unwrap();
    plane.define().unwrap();
    install_definitions(&plane).unwrap();
    let s3 = S3::start(&plane, "from-velero").unwrap();
    prepare(&plane, "velero", &s3, "shared").unwrap();
    let stock = Velero::start(&plane, "velero", &s3, &[], &[]).unwrap();
    stock.run(&["backup", "create", "voyage", "--include-namespaces=default", "--wait"]).unwrap();
    drop(stock);
    // A volume that a node-agent had backed up.
    let file = s3.file("shared/backups/voyage/voyage-podvolumebackups.json.gz");
    assert!(file.exists(), "Velero writes it in any case");
    let volume = json!([{
        "apiVersion": "velero.io/v1", "kind": "PodVolumeBackup",
        "metadata": {"name": "voyage-abcde", "namespace": "velero", "labels": {"velero.io/backup-name": "voyage"}},
        "spec": {
            "node": "n", "pod": {"kind": "Pod", "namespace": "default", "name": "p"}, "volume": "v",
            "backupStorageLocation": "default", "repoIdentifier": "", "uploaderType": "kopia",
        },
        "status": {"phase": "Completed", "snapshotID": "s1", "progress": {"totalBytes": 1, "bytesDone": 1}},
    }]);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, volume.to_string().as_bytes()).unwrap();
    fs::write(file, gzip.finish().unwrap()).unwrap();

    let berth = Berth::start(plane, Options::new(program(), "after-velero")).unwrap();
    apply(&berth, &[s3.keys.secret_object("after-velero"), s3.location(LOCATION, "shared")]);
    wait_there(&berth, "voyage", true);
    let found = wait_for("its PodVolumeBackup", PATIENCE, || {
        let args = ["get", "podvolumebackups.velero.io", "-n", "after-velero", "-o", "json"];
        let list: Value = serde_json::from_str(&berth.kubectl().run(&args)?)?;
        Ok(list["items"].get(0).cloned())
    })
    .unwrap();
    let owner = berth.kubectl().backup("after-velero", "voyage").unwrap();
    assert_eq!(owner.phase(), BackupPhase::Completed);
    assert_eq!(owner.spec.storage_location.as_deref(), Some(LOCATION));
    assert_eq!(found["metadata"]["ownerReferences"][0]["uid"], json!(owner.uid()));
    assert_eq!(found["spec"]["backupStorageLocation"], LOCATION);
    assert_eq!(found["status"]["snapshotID"], "s1");
    wait_for("nothing to be missing", PATIENCE, || {
        let backup = berth.kubectl().backup("after-velero", "voyage")?;
        Ok((!backup.annotations().contains_key("berth.dev/volumes-missing")).then_some(()))
    })
    .unwrap();
    let described = velero(&berth, &["backup", "describe", "voyage", "--colorized=false"]);
    assert!(described.contains("Phase:  Completed"), "{described}");
}
