//! What becomes of claims whose driver does this and that, and of their snapshots when the backup
//! or its leader ends.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::OnceLock;

use berth_api::velero::BackupPhase;
use serde_json::{Value, json};

use super::player::{DRIVER, Player};
use crate::admission::program;
use crate::archive::{entries, items, side, side_text};
use crate::hooks::{Place, annotations, create, namespace, place};
use crate::queue::ended;
use crate::rights::Symptom;
use crate::rights::needs::needs;
use crate::support::csi::define_snapshots;
use crate::support::kwok::Kwok;
use crate::support::peers::install_definitions;
use crate::support::{Berth, ControlPlane, Options, PATIENCE, backup, wait_for};

const CLASS: &str = "played";

pub fn site() -> &'static (ControlPlane, Player) {
    static SITE: OnceLock<(ControlPlane, Player)> = OnceLock::new();
    SITE.get_or_init(|| {
        let plane = ControlPlane::start().unwrap();
        install_definitions(&plane).unwrap();
        define_snapshots(&plane).unwrap();
        let class = json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
            "metadata": {"name": CLASS}, "driver": DRIVER, "deletionPolicy": "Delete",
        });
        let made = plane.kubectl().create("default", &[class]).unwrap();
        assert!(made.status.success(), "{}", made.stderr);
        let player = Player::start(&plane);
        (plane, player)
    })
}

pub fn start(name: &str, more: &[&str]) -> (Berth, &'static Player) {
    let (plane, player) = site();
    let mut options = Options::new(program(), name);
    options.controller_args = more.iter().map(|arg| (*arg).to_owned()).collect();
    (Berth::start(plane, options).unwrap(), player)
}

/// A claim of a namespace, bound to a volume of its own.
pub fn make(berth: &Berth, space: &str, name: &str, source: &Value, labels: &Value) {
    let volume = format!("pv-{space}-{name}");
    let mut spec = json!({
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Delete",
        "storageClassName": "any",
        "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": space, "name": name},
    });
    spec.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
    create(
        berth,
        &[
            json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume}, "spec": spec}),
            json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": space, "labels": labels},
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
                    "storageClassName": "any", "volumeName": volume,
                },
            }),
        ],
    );
    // Nobody binds claims here.
    let bound = json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}).to_string();
    let args = ["patch", "pvc", name, "-n", space, "--subresource=status", "--type=merge", "-p", &bound];
    berth.kubectl().run(&args).unwrap();
}

pub fn csi(driver: &str) -> Value {
    json!({"csi": {"driver": driver, "volumeHandle": "h"}})
}

fn run(berth: &Berth, name: &str, spec: Value) -> berth_api::velero::Backup {
    begin(berth, name, spec);
    ended(berth, &[name]).remove(name).unwrap()
}

pub fn begin(berth: &Berth, name: &str, spec: Value) {
    let made = berth.kubectl().create(berth.namespace(), &[backup(name, spec)]).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
}

pub fn stored(berth: &Berth, name: &str) -> PathBuf {
    berth.archives().join("backups").join(name)
}

/// Until nothing of the snapshots of a namespace is left in the cluster.
pub fn wait_gone(berth: &Berth, space: &str) {
    wait_for("the snapshots' objects to be gone", PATIENCE, || {
        let names = |args: &[&str]| berth.kubectl().run(args);
        let snapshots = names(&["get", "volumesnapshots", "-n", space, "-o", "name"])?;
        let contents = names(&["get", "volumesnapshotcontents", "-o", "json"])?;
        let contents: Value = serde_json::from_str(&contents)?;
        let of_space = contents["items"].as_array().into_iter().flatten();
        let of_space = of_space.filter(|one| one["spec"]["volumeSnapshotRef"]["namespace"] == space).count();
        Ok((snapshots.trim().is_empty() && of_space == 0).then_some(()))
    })
    .unwrap();
}

#[test]
fn a_backup_takes_the_snapshots_that_can_be_taken_and_says_what_became_of_each_volume() {
    let (berth, player) = start("vol-rows", &[]);
    create(&berth, &[namespace("rows")]);
    make(&berth, "rows", "data", &csi(DRIVER), &json!({"app": "db"}));
    make(&berth, "rows", "errs-first", &csi(DRIVER), &json!({}));
    make(&berth, "rows", "foreign", &csi("other.example.com"), &json!({}));
    make(&berth, "rows", "path", &json!({"hostPath": {"path": "/srv"}}), &json!({}));
    let done = run(&berth, "rows", json!({"includedNamespaces": ["rows"]}));
    let folder = stored(&berth, "rows");
    let log = side_text(&folder, "rows-logs.gz");
    let status = done.status.unwrap();
    assert_eq!(
        (status.phase, status.errors, status.warnings),
        (Some(BackupPhase::Completed), None, Some(2)),
        "{log}"
    );
    assert_eq!(
        (status.csi_volume_snapshots_attempted, status.csi_volume_snapshots_completed),
        (Some(2), Some(2))
    );
    for words in [
        "(rows/foreign): its CSI driver has no VolumeSnapshotClass",
        "(rows/path): its volume belongs to no CSI driver",
    ] {
        assert!(log.contains(words), "{words}: {log}");
    }
    assert_eq!(player.stored("rows"), ["rows/data", "rows/errs-first"]);
    wait_gone(&berth, "rows");

    let archive = folder.join("rows.tar.gz");
    let object = |path: &str| -> Value {
        serde_json::from_slice(&entries(&archive)[&format!("resources/{path}.json")]).unwrap()
    };
    let claim = object("persistentvolumeclaims/namespaces/rows/data");
    let name = claim["metadata"]["annotations"]["velero.io/volume-snapshot-name"].as_str().unwrap();
    assert_eq!(claim["metadata"]["labels"]["velero.io/volume-snapshot-name"], name);
    assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "2Gi", "as large as the snapshot");
    let snapshot = object(&format!("volumesnapshots.snapshot.storage.k8s.io/namespaces/rows/{name}"));
    let content = snapshot["status"]["boundVolumeSnapshotContentName"].as_str().unwrap();
    let content = object(&format!("volumesnapshotcontents.snapshot.storage.k8s.io/cluster/{content}"));
    let handle = &content["status"]["snapshotHandle"];
    let annotations = &snapshot["metadata"]["annotations"];
    assert_eq!(annotations["velero.io/csi-volumesnapshot-handle"], *handle);
    assert_eq!(annotations["velero.io/csi-volumesnapshot-restore-size"], "2Gi");
    assert_eq!(annotations["velero.io/csi-driver-name"], DRIVER);
    assert_eq!(annotations["velero.io/csi-vsc-deletion-policy"], "Delete");
    assert_eq!(snapshot["metadata"]["labels"]["app"], "db", "as Velero makes them");
    let found = items(&archive);
    assert!(
        found.contains(&format!("volumesnapshotclasses.snapshot.storage.k8s.io/cluster/{CLASS}")),
        "{found:?}"
    );

    let infos = side(&folder, "rows-volumeinfo.json.gz");
    let info = |claim: &str| infos.as_array().unwrap().iter().find(|info| info["pvcName"] == claim).unwrap();
    assert_eq!(infos.as_array().unwrap().len(), 4);
    assert_eq!(info("data")["backupMethod"], "CSISnapshot");
    assert_eq!(
        (&info("data")["pvName"], &info("data")["result"]),
        (&json!("pv-rows-data"), &json!("succeeded"))
    );
    assert_eq!(info("data")["csiSnapshotInfo"]["snapshotHandle"], *handle);
    for (claim, why) in [("foreign", "VolumeSnapshotClass"), ("path", "CSI driver")] {
        let info = info(claim);
        assert_eq!(
            (&info["skipped"], &info["pvInfo"]["reclaimPolicy"]),
            (&json!(true), &json!("Delete")),
            "{info}"
        );
        assert!(
            info["skippedReason"].as_str().unwrap().contains(why) && info["backupMethod"].is_null(),
            "{info}"
        );
    }
}

/// In time, and nothing of them stays.
#[test]
fn snapshots_that_never_become_ready_are_errors_of_their_claims() {
    let (berth, player) = start("vol-never", &[]);
    create(&berth, &[namespace("never")]);
    for name in ["good", "never", "unready"] {
        make(&berth, "never", name, &csi(DRIVER), &json!({}));
    }
    // Enough for the good one on a busy machine.
    let spec = json!({"includedNamespaces": ["never"], "csiSnapshotTimeout": "10s"});
    let done = run(&berth, "late", spec);
    let folder = stored(&berth, "late");
    let log = side_text(&folder, "late-logs.gz");
    let status = done.status.unwrap();
    assert_eq!((status.phase, status.errors), (Some(BackupPhase::PartiallyFailed), Some(2)), "{log}");
    assert_eq!(
        (status.csi_volume_snapshots_attempted, status.csi_volume_snapshots_completed),
        (Some(3), Some(1))
    );
    for words in [
        "claim never is stored without the data of its volume: its snapshot was not cut within 10 s",
        "the disk is on fire",
        "claim unready is stored without the data of its volume: its snapshot was not ready within 10 s",
    ] {
        assert!(log.contains(words), "{words}: {log}");
    }
    wait_gone(&berth, "never");
    wait_for("the storage to be free of them", PATIENCE, || {
        Ok((player.stored("never") == ["never/good"]).then_some(()))
    })
    .unwrap();
    let found = items(&folder.join("late.tar.gz"));
    for name in ["good", "never", "unready"] {
        assert!(found.contains(&format!("persistentvolumeclaims/namespaces/never/{name}")), "{found:?}");
    }
    assert_eq!(found.iter().filter(|item| item.starts_with("volumesnapshots.")).count(), 1, "{found:?}");
}

/// They are waited for side by side.
#[test]
fn ten_volumes_whose_snapshots_never_become_ready_cost_their_time_out_once() {
    const COUNT: i64 = 10;
    let (berth, player) = start("vol-ten", &[]);
    create(&berth, &[namespace("ten")]);
    for i in 0..COUNT {
        let name = if i % 2 == 0 { format!("never-{i}") } else { format!("unready-{i}") };
        make(&berth, "ten", &name, &csi(DRIVER), &json!({}));
    }
    let done = run(&berth, "ten", json!({"includedNamespaces": ["ten"], "csiSnapshotTimeout": "10s"}));
    let log = side_text(&stored(&berth, "ten"), "ten-logs.gz");
    let status = done.status.unwrap();
    assert_eq!((status.phase, status.errors), (Some(BackupPhase::PartiallyFailed), Some(COUNT)), "{log}");
    let completed = status.csi_volume_snapshots_completed.unwrap_or(0);
    assert_eq!((status.csi_volume_snapshots_attempted, completed), (Some(COUNT), 0), "{log}");
    let (begun, ended) = (status.start_timestamp.unwrap().0, status.completion_timestamp.unwrap().0);
    // One after the other they would take a hundred.
    let seconds = ended.duration_since(begun).as_secs();
    assert!((10..60).contains(&seconds), "{seconds} s: {log}");
    wait_gone(&berth, "ten");
    wait_for("the storage to be free of them", PATIENCE, || {
        Ok(player.stored("ten").is_empty().then_some(()))
    })
    .unwrap();
}

#[test]
fn a_driver_that_errs_on_every_third_costs_a_backup_nothing() {
    let (berth, player) = start("vol-third", &[]);
    create(&berth, &[namespace("third")]);
    for i in 0..9 {
        let name = if i % 3 == 0 { format!("errs-{i}") } else { format!("data-{i}") };
        make(&berth, "third", &name, &csi(DRIVER), &json!({}));
    }
    let done = run(&berth, "third", json!({"includedNamespaces": ["third"], "snapshotVolumes": true}));
    assert_eq!(done.phase(), BackupPhase::Completed, "{:?}", done.status);
    assert_eq!(done.status.unwrap().csi_volume_snapshots_completed, Some(9));
    assert_eq!(player.stored("third").len(), 9);
    wait_gone(&berth, "third");
}

pub fn wait_asked(player: &Player, claim: &str, times: usize) {
    wait_for(
        &format!("a snapshot of {claim}"),
        PATIENCE,
        || Ok((player.asked(claim) >= times).then_some(())),
    )
    .unwrap();
}

/// The next one takes it anew, and removes what the dead one has begun.
#[test]
fn a_killed_leader_leaves_no_snapshot_that_no_backup_has() {
    let (mut berth, player) = start("vol-killed", &[]);
    create(&berth, &[namespace("killed")]);
    for name in ["a", "held"] {
        make(&berth, "killed", name, &csi(DRIVER), &json!({}));
    }
    player.hold("killed/held");
    begin(&berth, "cut", json!({"includedNamespaces": ["killed"]}));
    wait_asked(player, "killed/held", 1);
    wait_asked(player, "killed/a", 1);
    berth.kill_controller().unwrap();
    berth.controller.process.restart().unwrap();
    wait_asked(player, "killed/held", 2);
    player.let_go("killed/held");
    let done = ended(&berth, &["cut"]).remove("cut").unwrap();
    assert_eq!(done.phase(), BackupPhase::Completed, "{:?}", done.status);
    wait_gone(&berth, "killed");
    wait_for("one snapshot of each claim", PATIENCE, || {
        Ok((player.stored("killed") == ["killed/a", "killed/held"]).then_some(()))
    })
    .unwrap();
    let infos = side(&stored(&berth, "cut"), "cut-volumeinfo.json.gz");
    assert_eq!(infos.as_array().unwrap().len(), 2, "{infos:#}");
}

/// Claims that nothing can be taken of, with ten megabytes that no program can make smaller.
fn noise(berth: &Berth, space: &str) {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut random = File::open("/dev/urandom").unwrap();
    for i in 0..6 {
        let claims: Vec<Value> = (0..10)
            .map(|j| {
                let mut bytes = vec![0; 240_000];
                random.read_exact(&mut bytes).unwrap();
                let text: String = bytes.iter().map(|byte| char::from(LETTERS[usize::from(byte % 64)])).collect();
                json!({
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                    "metadata": {"name": format!("noise-{i}-{j}"), "namespace": space, "annotations": {"noise": text}},
                    "spec": {
                        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
                        "storageClassName": "any",
                    },
                })
            })
            .collect();
        create(berth, &claims);
    }
}

/// The one of a claim of which the leader has noted the cut is taken over; one that is gone is
/// taken anew, and told.
#[test]
fn claims_that_were_frozen_together_are_of_one_moment_though_their_leader_is_killed_before_they_are_ready() {
    static KWOK: OnceLock<Kwok> = OnceLock::new();
    let (mut berth, player) = start("vol-still", &[]);
    let kwok = KWOK.get_or_init(|| Kwok::start(berth.plane(), "still").unwrap());
    let folder = place(&berth);
    let at = Place(&folder);
    create(&berth, &[namespace("still")]);
    for name in ["a", "late", "gone"] {
        make(&berth, "still", name, &csi(DRIVER), &json!({}));
    }
    noise(&berth, "still");
    for claim in ["still/late", "still/gone"] {
        player.make_late(claim);
    }
    let mut db = kwok.pod(
        "still",
        "db",
        &annotations(&[("command", at.shell(&at.tells("froze")))], Some(at.shell(&at.tells("thawed")))),
    );
    db["spec"]["volumes"] = ["a", "late", "gone"]
        .map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}))
        .as_slice()
        .into();
    let waits = [("command", at.shell(&at.waits("gate"))), ("timeout", json!("10m"))];
    let gate = kwok.pod("still", "gate", &annotations(&waits, None));
    create(&berth, &[db, gate]);
    let spec = json!({
        "includedNamespaces": ["still"],
        // What is listed behind these pods waits for their hooks.
        "orderedResources": {"pods": "still/db,still/gate"},
    });
    begin(&berth, "cut", spec);
    at.wait_told("thawed");
    let of_claim = |claim: &str, path: &str| {
        let all = berth.kubectl().run(&["get", "volumesnapshots", "-n", "still", "-o", "json"]).unwrap();
        let all: Value = serde_json::from_str(&all).unwrap();
        let is_of = |one: &&Value| one["spec"]["source"]["persistentVolumeClaimName"] == claim;
        let one = all["items"].as_array().unwrap().iter().find(is_of).unwrap();
        one.pointer(path).and_then(Value::as_str).map(str::to_owned)
    };
    wait_for("the snapshot that is ready to be the backup's", PATIENCE, || {
        Ok(of_claim("a", "/metadata/annotations/velero.io~1csi-volumesnapshot-handle"))
    })
    .unwrap();
    at.open("gate");
    let checkpoint = stored(&berth, "cut").join("berth-checkpoint");
    wait_for("a checkpoint", PATIENCE, || Ok(checkpoint.exists().then_some(()))).unwrap();
    let (late, gone) =
        (of_claim("late", "/metadata/name").unwrap(), of_claim("gone", "/metadata/name").unwrap());
    berth.kill_controller().unwrap();
    berth.kubectl().run(&["delete", "volumesnapshot", &gone, "-n", "still"]).unwrap();
    berth.controller.process.restart().unwrap();
    wait_asked(player, "still/gone", 2);
    for claim in ["still/late", "still/gone"] {
        player.make_ready(claim);
    }
    let done = ended(&berth, &["cut"]).remove("cut").unwrap();
    let log = side_text(&stored(&berth, "cut"), "cut-logs.gz");
    assert!(log.contains("it goes on from a checkpoint"), "{log}");
    let status = done.status.unwrap();
    assert_eq!((status.phase, status.errors), (Some(BackupPhase::PartiallyFailed), Some(1)), "{log}");
    let told = "the snapshot of claim gone that was cut while pod db was frozen is gone";
    assert!(log.contains(told), "{log}");
    assert_eq!(at.told().iter().filter(|line| *line == "froze").count(), 1);
    assert_eq!(["a", "late", "gone"].map(|name| player.asked(&format!("still/{name}"))), [1, 1, 2]);
    wait_gone(&berth, "still");
    assert_eq!(player.stored("still"), ["still/a", "still/gone", "still/late"]);
    let claim = entries(&stored(&berth, "cut").join("cut.tar.gz"))
        .remove("resources/persistentvolumeclaims/namespaces/still/late.json")
        .unwrap();
    let claim: Value = serde_json::from_slice(&claim).unwrap();
    assert_eq!(claim["metadata"]["annotations"]["velero.io/volume-snapshot-name"], late);
}

#[test]
fn a_backup_that_is_canceled_or_not_run_again_leaves_no_snapshot() {
    let (mut berth, player) = start("vol-ended", &["--after-interruption=fail"]);
    create(&berth, &[namespace("ended")]);
    for name in ["a", "held"] {
        make(&berth, "ended", name, &csi(DRIVER), &json!({}));
    }
    player.hold("ended/held");
    begin(&berth, "canceled", json!({"includedNamespaces": ["ended"]}));
    wait_asked(player, "ended/held", 1);
    berth
        .kubectl()
        .run(&["annotate", "backups.velero.io", "canceled", "-n", berth.namespace(), "berth.dev/cancel=true"])
        .unwrap();
    assert_eq!(ended(&berth, &["canceled"])["canceled"].phase(), BackupPhase::Failed);
    begin(&berth, "dead", json!({"includedNamespaces": ["ended"]}));
    wait_asked(player, "ended/held", 2);
    berth.kill_controller().unwrap();
    berth.controller.process.restart().unwrap();
    assert_eq!(ended(&berth, &["dead"])["dead"].phase(), BackupPhase::Failed);
    player.let_go("ended/held");
    wait_gone(&berth, "ended");
    wait_for("the storage to be free of them", PATIENCE, || {
        Ok(player.stored("ended").is_empty().then_some(()))
    })
    .unwrap();
}

/// A pod that a kubelet would say runs.
fn run_pod(berth: &Berth, pod: &Value) {
    create(berth, std::slice::from_ref(pod));
    let (space, name) =
        (pod["metadata"]["namespace"].as_str().unwrap(), pod["metadata"]["name"].as_str().unwrap());
    let running = json!({"status": {"phase": "Running"}}).to_string();
    let args = ["patch", "pod", name, "-n", space, "--subresource=status", "--type=merge", "-p", &running];
    berth.kubectl().run(&args).unwrap();
}

#[test]
fn without_any_one_rule_of_its_roles_a_volume_is_not_backed_up_and_the_backup_says_so() {
    let (plane, _) = site();
    // That PodVolumeBackups may be created is in berth-lifecycle, too, because a sync creates them.
    let is_given_twice = |kind: &str, rule: usize| kind == "Role" && rule == 0;
    for need in
        needs().filter(|need| need.symptom == Symptom::NoData && !is_given_twice(need.kind, need.rule))
    {
        let space = format!("vol-rule-{}-{}", need.kind.to_lowercase(), need.rule);
        let mut options = Options::new(program(), &space);
        options.without_rule = Some((need.kind, need.role, need.rule));
        let berth = Berth::start(plane, options).unwrap();
        let app = format!("{space}-app");
        create(&berth, &[namespace(&app)]);
        make(&berth, &app, "data", &csi(DRIVER), &json!({}));
        if need.kind == "Role" {
            let pod = |namespace: &str, name: &str, more: &Value| {
                json!({
                    "apiVersion": "v1", "kind": "Pod",
                    "metadata": {
                        "name": name, "namespace": namespace, "labels": {"role": name},
                        "annotations": {"backup.velero.io/backup-volumes": "files"},
                    },
                    "spec": {
                        "nodeName": "somewhere", "volumes": [{"name": "files", "emptyDir": more}],
                        "containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "files", "mountPath": "/f"}]}],
                    },
                })
            };
            run_pod(&berth, &pod(&space, "node-agent", &json!({})));
            run_pod(&berth, &pod(&app, "db", &json!({})));
        }
        // A snapshot that is cut before berth looks for it is one that nobody has to wait for.
        let mut tried = (1..=4).map(|attempt| {
            let name = format!("lacks-{attempt}");
            let spec = json!({"includedNamespaces": [app], "csiSnapshotTimeout": "3s"});
            let done = run(&berth, &name, spec);
            let log = side_text(&stored(&berth, &name), &format!("{name}-logs.gz"));
            (done.phase(), log)
        });
        let lacking = tried.find(|(phase, _)| *phase != BackupPhase::Completed);
        let Some((phase, log)) = lacking else { panic!("{}: nothing is missed", need.needed_for) };
        assert_eq!(phase, BackupPhase::PartiallyFailed, "{}: {log}", need.needed_for);
        let own = std::fs::read_to_string(berth.controller.process.log()).unwrap_or_default();
        assert!(format!("{log}{own}").contains("is forbidden"), "{}: {log}", need.needed_for);
    }
}
