//! What goes wrong, and that nothing is lost or half visible when it does.

mod rounds;

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use berth_api::velero::{Backup, BackupPhase};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use crate::admission::program;
use crate::queue::{PATIENCE, ended, start};
use crate::support::backup::backup_of;
use crate::support::berth::Plane;
use crate::support::lag::Lag;
use crate::support::{Berth, ControlPlane, Options, backup, wait_for};

/// A namespace that takes seconds when it is asked for one object at a time.
const FULL: &str = "full";
const OBJECTS: usize = 200;
/// How long each answer of the API server takes. Thousands of objects would take as long without
/// it, and keep both cores busy.
const LATE: Duration = Duration::from_millis(40);
/// One that takes none.
const BESIDE: &str = "beside-the-full";

/// berth with a controller that asks for one object at a time, and is answered late.
struct Slow {
    berth: Berth,
    _lag: Lag,
}

impl Deref for Slow {
    type Target = Berth;

    fn deref(&self) -> &Berth {
        &self.berth
    }
}

impl DerefMut for Slow {
    fn deref_mut(&mut self) -> &mut Berth {
        &mut self.berth
    }
}

fn slow(plane: impl Into<Plane>, namespace: &str) -> Slow {
    slow_with(plane, namespace, &[])
}

fn slow_with(plane: impl Into<Plane>, namespace: &str, flags: &[&str]) -> Slow {
    let plane = plane.into();
    let lag = Lag::start(plane.address(), LATE).unwrap();
    let mut options = Options::new(program(), namespace);
    options.controller_url = Some(format!("https://{}", lag.address()));
    options.controller_args = vec!["--client-page-size=1".into()];
    options.controller_args.extend(flags.iter().map(|flag| (*flag).to_owned()));
    let berth = Berth::start(plane, options).unwrap();
    fill(berth.plane());
    Slow { berth, _lag: lag }
}

/// Once per control plane.
fn fill(plane: &ControlPlane) {
    static FILLED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let mut filled = FILLED.lock().unwrap();
    if !filled.insert(plane.folder().to_owned()) {
        return;
    }
    let namespace = |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    plane.apply([FULL, BESIDE].map(namespace).to_vec()).unwrap();
    // kubectl creates twenty in a second.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let api: Api<ConfigMap> = Api::namespaced(runtime.block_on(plane.client()).unwrap(), FULL);
    let creates = (0..OBJECTS).map(|i| {
        let api = api.clone();
        let object = json!({"metadata": {"name": format!("c{i}")}, "data": {"i": format!("{i}")}});
        async move {
            let object = serde_json::from_value(object).unwrap();
            api.create(&PostParams::default(), &object).await.map(drop)
        }
    });
    let created = stream::iter(creates).buffer_unordered(16).try_collect::<Vec<_>>();
    runtime.block_on(created).unwrap();
}

fn create(berth: &Berth, objects: &[Value]) {
    let answer = berth.kubectl().create(berth.namespace(), objects).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
}

/// A runtime and a client, made beforehand: kubectl may take longer to start than a backup runs.
fn client(berth: &Berth) -> (tokio::runtime::Runtime, Api<Backup>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime.block_on(berth.plane().client()).unwrap();
    (runtime, Api::namespaced(client, berth.namespace()))
}

/// Waits until nothing of it is in the store.
fn nothing_is_left(berth: &Berth, name: &str) {
    wait_for(&format!("nothing of {name} to be in the store"), PATIENCE, || {
        Ok(files_of(berth, name).is_empty().then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}: {:?}", files_of(berth, name)));
}

/// Creates a slow backup and two quick ones that wait for it; returns once the first one runs.
fn one_runs_two_wait(berth: &Berth) {
    three(berth, [BESIDE; 2]);
}

/// The same with two that take these.
fn three(berth: &Berth, others: [&str; 2]) {
    let [second, third] = others;
    create(
        berth,
        &[
            backup_of("running", &[FULL, BESIDE]),
            backup_of("second", &[second]),
            backup_of("third", &[third]),
        ],
    );
    wait_for("the first to run", PATIENCE, || {
        Ok(berth.controller.process.log_text()?.contains("running name=running").then_some(()))
    })
    .unwrap();
}

fn reason(backup: &Backup) -> String {
    backup.status.as_ref().and_then(|s| s.failure_reason.clone()).unwrap_or_default()
}

fn files_of(berth: &Berth, name: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(berth.archives().join("backups").join(name)).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// What is left of one that failed: its log, and the claim on it.
fn is_log_alone(berth: &Berth, name: &str) {
    let mut files: Vec<String> = files_of(berth, name)
        .iter()
        .map(|path| path.file_name().unwrap_or_default().to_string_lossy().into_owned())
        .collect();
    files.sort_unstable();
    let left = ["berth-run.json".to_owned(), format!("{name}-logs.gz"), format!("{name}-results.gz")];
    assert_eq!(files, left);
}

/// How often it was run.
fn runs(backup: &Backup) -> &str {
    &backup.metadata.annotations.as_ref().unwrap()["berth.dev/runs"]
}

#[test]
fn a_backup_whose_controller_is_killed_is_run_again_by_the_next_one_and_the_queue_goes_on() {
    let mut berth = slow(ControlPlane::shared().unwrap(), "killed");
    let ns = berth.namespace().to_owned();
    one_runs_two_wait(&berth);
    wait_for("it to claim its folder", PATIENCE, || {
        Ok(berth.archives().join("backups/running/berth-run.json").exists().then_some(()))
    })
    .unwrap();
    berth.kill_controller().unwrap();
    let places = |berth: &Berth| {
        let backups = berth.kubectl().backups(&ns).unwrap();
        ["second", "third"].map(|name| backups[name].status.as_ref().unwrap().queue_position)
    };
    let before = places(&berth);
    assert!(before[0] < before[1], "{before:?}");
    assert_eq!(
        berth.kubectl().phase(&ns, "running").unwrap(),
        BackupPhase::InProgress,
        "nobody could say more"
    );
    berth.controller.process.restart().unwrap();
    let done = ended(&berth, &["running", "second", "third"]);
    for name in ["running", "second", "third"] {
        assert_eq!(done[name].phase(), BackupPhase::Completed, "{}", reason(&done[name]));
    }
    assert_eq!((runs(&done["running"]), runs(&done["second"])), ("2", "1"));
    assert_eq!(crate::archive::items(&berth.archive("running")).len(), OBJECTS + 2, "as if nothing had been");
    let log = crate::archive::side_text(&berth.archives().join("backups/running"), "running-logs.gz");
    assert!(log.contains("the run before it ended early"), "{log}");
    let status = |name: &str| done[name].status.as_ref().unwrap();
    let start = |name: &str| status(name).start_timestamp.clone().unwrap().0;
    assert!(
        status("running").completion_timestamp.clone().unwrap().0 <= start("second"),
        "its slot was free"
    );
    assert!(start("second") <= start("third"), "they kept their places");
}

#[test]
fn a_controller_that_is_asked_to_stop_hands_over_the_queue_and_what_runs() {
    let mut berth = slow(ControlPlane::shared().unwrap(), "handed-over");
    let ns = berth.namespace().to_owned();
    one_runs_two_wait(&berth);
    let status = berth.controller.process.terminate(PATIENCE).unwrap();
    assert!(status.success(), "{status}");
    let left = berth.kubectl().backup(&ns, "running").unwrap();
    assert_eq!((left.phase(), runs(&left)), (BackupPhase::InProgress, "0"), "{}", reason(&left));
    let path = "jsonpath={.spec.holderIdentity}";
    let args = ["get", "lease", "berth-controller", "-n", &ns, "-o", path];
    assert_eq!(berth.kubectl().run(&args).unwrap(), "", "nobody need wait for it");
    berth.controller.process.restart().unwrap();
    let done = ended(&berth, &["running", "second", "third"]);
    for name in ["running", "second", "third"] {
        assert_eq!((done[name].phase(), runs(&done[name])), (BackupPhase::Completed, "1"), "{name}");
    }
    assert_eq!(crate::archive::items(&berth.archive("running")).len(), OBJECTS + 2);
}

#[test]
fn where_runs_are_to_fail_a_controller_that_is_stopped_ends_its_backup_first() {
    let flags = ["--after-interruption=fail"];
    let mut berth = slow_with(ControlPlane::shared().unwrap(), "stopped", &flags);
    let ns = berth.namespace().to_owned();
    one_runs_two_wait(&berth);
    let status = berth.controller.process.terminate(PATIENCE).unwrap();
    assert!(status.success(), "{status}");
    let failed = berth.kubectl().backup(&ns, "running").unwrap();
    assert_eq!(
        (failed.phase(), reason(&failed).as_str()),
        (BackupPhase::Failed, "the controller was stopped while the backup ran")
    );
    is_log_alone(&berth, "running");
    let folder = berth.archives().join("backups/running");
    let log = crate::archive::side_text(&folder, "running-logs.gz");
    assert!(log.contains("level=error msg=\"the controller was stopped while the backup ran\""), "{log}");
    assert_eq!(berth.kubectl().phase(&ns, "second").unwrap(), BackupPhase::Queued);
}

#[test]
fn a_few_rounds_of_kill_9_with_hooks_a_slow_store_and_resume() {
    rounds::pass(
        "failure::a_few_rounds_of_kill_9_with_hooks_a_slow_store_and_resume",
        // Each of the moments, and a folder that a stranger has.
        &[20_261_000, 20_262_003, 20_263_007],
        3,
    );
}

#[test]
#[ignore = "takes minutes: make test-large"]
fn rounds_of_kill_9_with_hooks_a_slow_store_and_resume() {
    let seeds = [20_261_001, 20_262_003, 20_263_004, 20_264_006];
    rounds::pass("failure::rounds_of_kill_9_with_hooks_a_slow_store_and_resume", &seeds, 50);
}

/// Running backups end undisturbed; waiting ones are left to the next leader.
#[test]
fn a_controller_that_may_take_its_time_lets_its_backup_complete() {
    let mut berth = slow_with(ControlPlane::shared().unwrap(), "drained", &["--drain-timeout=1h"]);
    let ns = berth.namespace().to_owned();
    one_runs_two_wait(&berth);
    let status = berth.controller.process.terminate(PATIENCE).unwrap();
    assert!(status.success(), "{status}");
    let backups = berth.kubectl().backups(&ns).unwrap();
    assert_eq!(backups["running"].phase(), BackupPhase::Completed, "{}", reason(&backups["running"]));
    for name in ["second", "third"] {
        assert_eq!(backups[name].phase(), BackupPhase::Queued);
    }
}

/// The webhooks of a cluster call one berth. Another one starts nothing, and says so, until they
/// call it.
#[test]
fn a_second_berth_starts_nothing_and_says_so() {
    let mut berth = Berth::start(ControlPlane::shared().unwrap(), Options::new(program(), "second")).unwrap();
    let (ns, name) = (berth.namespace().to_owned(), "berth-second");
    let kubectl = berth.kubectl().clone();
    let text = kubectl.run(&["get", "mutatingwebhookconfiguration", name, "-o", "json"]).unwrap();
    let ours: Value = serde_json::from_str(&text).unwrap();
    let url = ours["webhooks"][0]["clientConfig"]["url"].clone();
    let call = |config: Value| {
        let mut patch = vec![json!({"op": "replace", "path": "/webhooks/0/clientConfig", "value": config})];
        patch.push(json!({"op": "test", "path": "/webhooks/0/name", "value": "backups.mutate.berth.dev"}));
        let patch = Value::from(patch).to_string();
        kubectl.run(&["patch", "mutatingwebhookconfiguration", name, "--type=json", "-p", &patch]).unwrap();
    };
    call(json!({"service": {"name": "berth-webhook", "namespace": "somewhere-else"}}));
    berth.controller.stop().unwrap();
    berth.controller.process.restart().unwrap();
    let stopped = || -> anyhow::Result<String> {
        let path = "jsonpath={.metadata.annotations.berth\\.dev/stopped}";
        kubectl.run(&["get", "lease", "berth-controller", "-n", &ns, "-o", path])
    };
    wait_for("the controller to say so", PATIENCE, || {
        Ok(stopped()?.contains("another berth, in namespace somewhere-else").then_some(()))
    })
    .unwrap();
    kubectl.create(&ns, &[backup_of("waits", &["default"])]).unwrap();
    let listed = Command::new(program())
        .args(["queue", "list", "--namespace", &ns, "--kubeconfig"])
        .arg(berth.plane().kubeconfig())
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains("berth uninstall --namespace somewhere-else"), "{listed}");
    let phase = kubectl.phase(&ns, "waits").unwrap();
    assert!(!phase.is_final() && phase != BackupPhase::InProgress, "{phase:?}");
    call(json!({"url": url}));
    let done = ended(&berth, &["waits"]);
    assert_eq!(done["waits"].phase(), BackupPhase::Completed);
}

/// Each write met another version, so such a Backup neither began nor ended, and kept its slot and
/// its namespaces.
#[test]
fn a_backup_that_is_patched_without_a_pause_begins_and_ends_and_the_next_one_runs() {
    let berth = start("patched", 1);
    let stop = AtomicBool::new(false);
    let patch_for_ever = |patcher: usize| {
        let (runtime, api) = client(&berth);
        let mut written = 0;
        while !stop.load(Ordering::Relaxed) {
            let annotations = json!({format!("patcher-{patcher}"): written.to_string()});
            let mark = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
            // Until it is created, there is nothing to patch.
            written +=
                u32::from(runtime.block_on(api.patch("patched", &PatchParams::default(), &mark)).is_ok());
        }
        written
    };
    let patch_for_ever = &patch_for_ever;
    let (done, written) = thread::scope(|scope| {
        let patchers: Vec<_> = (0..4).map(|i| scope.spawn(move || patch_for_ever(i))).collect();
        create(&berth, &[backup_of("patched", &["default"]), backup_of("behind", &["default"])]);
        let done = catch_unwind(AssertUnwindSafe(|| ended(&berth, &["patched", "behind"])));
        stop.store(true, Ordering::Relaxed);
        let written: u32 = patchers.into_iter().map(|patcher| patcher.join().unwrap()).sum();
        (done, written)
    });
    let done = done.unwrap_or_else(|failed| resume_unwind(failed));
    for name in ["patched", "behind"] {
        assert_eq!(done[name].phase(), BackupPhase::Completed);
    }
    assert!(written > 20, "it was patched {written} times");
}

#[test]
fn a_backup_that_is_deleted_while_it_runs_stops_and_frees_its_slot() {
    let berth = slow(ControlPlane::shared().unwrap(), "deleted");
    let (runtime, api) = client(&berth);
    one_runs_two_wait(&berth);
    runtime.block_on(api.delete("running", &DeleteParams::default())).unwrap();
    let done = ended(&berth, &["second"]);
    assert_eq!(done["second"].phase(), BackupPhase::Completed);
    nothing_is_left(&berth, "running");
    assert!(berth.controller.process.log_text().unwrap().contains("the Backup is gone name=running"));
}

#[test]
fn a_running_backup_that_is_canceled_ends_and_leaves_nothing() {
    let berth = slow(ControlPlane::shared().unwrap(), "canceled");
    let (runtime, api) = client(&berth);
    one_runs_two_wait(&berth);
    let cancel = Patch::Merge(json!({"metadata": {"annotations": {"berth.dev/cancel": "true"}}}));
    runtime.block_on(api.patch("running", &PatchParams::default(), &cancel)).unwrap();
    let done = ended(&berth, &["running", "second"]);
    assert_eq!(
        (done["running"].phase(), reason(&done["running"]).as_str()),
        (BackupPhase::Failed, "Canceled: berth.dev/cancel was set, or the Backup was deleted")
    );
    nothing_is_left(&berth, "running");
    assert_eq!(done["second"].phase(), BackupPhase::Completed);
}

#[test]
fn an_api_server_that_goes_away_makes_no_backup_with_holes() {
    let berth = slow(ControlPlane::start().unwrap(), "outage");
    let api_server = berth.plane().api_server().pid().unwrap();
    three(&berth, [FULL, BESIDE]);
    // The API server is silent for a moment: the run asks again, and nothing is missing.
    kill(api_server, Signal::SIGSTOP).unwrap();
    std::thread::sleep(Duration::from_millis(700)); // The length of the outage, not a wait for a condition.
    kill(api_server, Signal::SIGCONT).unwrap();
    let done = ended(&berth, &["running"]);
    assert_eq!(done["running"].phase(), BackupPhase::Completed, "{:?}", done["running"].status);
    // With both namespaces.
    assert_eq!(crate::archive::items(&berth.archive("running")).len(), OBJECTS + 2);
    // The API server is silent for longer than a Lease lasts: the run is given up, and the next
    // leader runs it again.
    wait_for("the second to run", PATIENCE, || {
        Ok(berth.controller.process.log_text()?.contains("running name=second").then_some(()))
    })
    .unwrap();
    kill(api_server, Signal::SIGSTOP).unwrap();
    let lost = wait_for("the leader to give up", PATIENCE, || {
        Ok(berth.controller.process.log_text()?.contains("no longer leading").then_some(()))
    });
    kill(api_server, Signal::SIGCONT).unwrap();
    lost.unwrap();
    let done = ended(&berth, &["second", "third"]);
    for (name, items) in [("second", OBJECTS + 1), ("third", 1)] {
        assert_eq!(done[name].phase(), BackupPhase::Completed, "{:?}", done[name].status);
        assert_eq!(crate::archive::items(&berth.archive(name)).len(), items);
    }
    assert_eq!(runs(&done["second"]), "2");
}

fn location(name: &str, path: &Path) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation", "metadata": {"name": name},
        "spec": {"provider": "berth.dev/filesystem", "objectStorage": {"bucket": "b"}, "config": {"path": path}},
    })
}

/// Its status, once it has this phase.
fn location_becomes(berth: &Berth, name: &str, phase: &str) -> Value {
    let seen = wait_for(&format!("location {name} to be {phase}"), PATIENCE, || {
        let text = berth.kubectl().run(&["get", "bsl", name, "-n", berth.namespace(), "-o", "json"])?;
        let mut found: Value = serde_json::from_str(&text)?;
        let status = found["status"].take();
        Ok((status["phase"] == phase).then_some(status))
    });
    seen.unwrap()
}

#[test]
fn a_location_that_cannot_be_written_fails_the_backup_and_one_that_is_away_lets_it_wait() {
    let berth = start("unwritable", 1);
    let folder = berth.plane().folder().join("unwritable-locations");
    std::fs::create_dir_all(folder.join("b")).unwrap();
    // A file stands where the folder of backups should be.
    std::fs::write(folder.join("b/backups"), "in the way").unwrap();
    std::fs::write(folder.join("file"), "no folder").unwrap();
    let mut away = location("no-folder", &folder.join("file"));
    away["spec"]["validationFrequency"] = json!("1s");
    assert!(
        berth
            .kubectl()
            .create(berth.namespace(), &[location("in-the-way", &folder), away])
            .unwrap()
            .status
            .success()
    );
    location_becomes(&berth, "in-the-way", "Available");
    let status = location_becomes(&berth, "no-folder", "Unavailable");
    assert!(status["message"].as_str().unwrap().contains("cannot be used"), "{status}");
    let of = |name: &str| backup(name, json!({"includedNamespaces": ["default"], "storageLocation": name}));
    let queue = |name: &str| {
        let answer = berth.kubectl().create(berth.namespace(), &[of(name)]).unwrap();
        assert!(answer.status.success(), "{}", answer.stderr);
    };
    for name in ["in-the-way", "no-folder"] {
        berth.await_location(name).unwrap();
    }
    queue("no-folder");
    // It is behind the other one, and blocks none.
    queue("in-the-way");
    let done = ended(&berth, &["in-the-way"]);
    assert_eq!(done["in-the-way"].phase(), BackupPhase::Failed);
    assert!(
        reason(&done["in-the-way"]).starts_with("the storage location failed"),
        "{}",
        reason(&done["in-the-way"])
    );
    let args =
        ["get", "backups.velero.io", "no-folder", "-n", berth.namespace(), "-o", "jsonpath={.status.phase}"];
    assert_eq!(berth.kubectl().run(&args).unwrap(), "Queued");
    std::fs::remove_file(folder.join("file")).unwrap();
    // berth does not create the folder, because a missing folder may be a missing mount.
    let missing = wait_for("the folder to be missed", PATIENCE, || {
        let status = location_becomes(&berth, "no-folder", "Unavailable");
        let message = status["message"].as_str().unwrap_or_default().to_owned();
        Ok(message.contains("does not exist").then_some(message))
    });
    assert!(missing.unwrap().contains("mount its volume"));
    std::fs::create_dir_all(folder.join("file/b")).unwrap();
    assert_eq!(ended(&berth, &["no-folder"])["no-folder"].phase(), BackupPhase::Completed);
}

/// The controller may use what lies below the folder of its control plane.
#[test]
fn a_folder_outside_of_what_berth_may_use_is_no_store_whatever_leads_there() {
    let berth = start("other-folders", 1);
    let (inside, outside) =
        (berth.plane().folder().join("other-folders-inside"), tempfile::tempdir().unwrap());
    std::fs::create_dir_all(&inside).unwrap();
    std::os::unix::fs::symlink(outside.path(), inside.join("link")).unwrap();
    let mut up = location("up", &inside);
    up["spec"]["objectStorage"]["bucket"] = json!("..");
    let locations = [
        location("outside", outside.path()),
        location("link", &inside.join("link")),
        location("dots", &inside.join("../../..")),
        up,
    ];
    assert!(berth.kubectl().create(berth.namespace(), &locations).unwrap().status.success());
    for (name, said) in [
        ("outside", "spec.config.path: "),
        ("link", "--filesystem-root"),
        ("dots", "`..`"),
        ("up", "spec.objectStorage.bucket: "),
    ] {
        let message = wait_for("the location to be Unavailable", PATIENCE, || {
            let text = berth.kubectl().run(&["get", "bsl", name, "-n", berth.namespace(), "-o", "json"])?;
            let found: Value = serde_json::from_str(&text)?;
            let message = found["status"]["message"].as_str().unwrap_or_default().to_owned();
            Ok((found["status"]["phase"] == "Unavailable").then_some(message))
        });
        let message = message.unwrap();
        assert!(message.contains(said), "{name}: {message}");
    }
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
}

#[test]
fn a_full_disk_fails_the_backup_and_leaves_nothing() {
    let plane = ControlPlane::shared().unwrap();
    let folder = plane.folder().join("full-disk");
    std::fs::create_dir_all(&folder).unwrap();
    // The controller sees a very small disk, in a mount namespace of its own.
    let wrapper = folder.join("berth-on-a-small-disk");
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = controller ] || exec {berth} \"$@\"\nexec unshare --map-root-user --mount sh -c 'mount -t tmpfs -o size=512k tmpfs {folder} && exec {berth} \"$@\"' {folder} \"$@\"\n",
        berth = program().display(),
        folder = folder.join("disk").display(),
    );
    std::fs::create_dir_all(folder.join("disk")).unwrap();
    std::fs::write(&wrapper, script).unwrap();
    std::fs::set_permissions(&wrapper, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let berth = Berth::start(plane, Options::new(wrapper, "full-disk")).unwrap();
    let mut state = 1_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(b'#' + (state >> 32) as u8 % 90)
    };
    let noise: String = (0..900_000).map(|_| random()).collect();
    let objects = [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fills-a-disk"}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "noise", "namespace": "fills-a-disk"}, "data": {"noise": noise}}),
    ];
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    berth.kubectl().run_with(&["create", "-f", "-"], &list.to_string()).unwrap();
    create(&berth, &[location("small", &folder.join("disk"))]);
    berth.await_location("small").unwrap();
    let of = |name: &str, takes: &str| {
        backup(name, json!({"includedNamespaces": [takes], "storageLocation": "small"}))
    };
    create(&berth, &[of("too-much", "fills-a-disk"), of("little", "default")]);
    let done = ended(&berth, &["too-much", "little"]);
    assert_eq!(done["too-much"].phase(), BackupPhase::Failed);
    let reason = reason(&done["too-much"]);
    assert!(reason.contains("No space left"), "{reason}");
    assert_eq!(
        done["little"].phase(),
        BackupPhase::Completed,
        "what the first one left was removed: {:?}",
        done["little"].status
    );
}

#[test]
fn a_name_that_is_in_the_store_already_is_not_written_over() {
    let berth = start("twice", 1);
    create(&berth, &[backup_of("same", &["default"])]);
    ended(&berth, &["same"]);
    let before = std::fs::read(berth.archive("same")).unwrap();
    berth.kubectl().run(&["delete", "backups.velero.io", "same", "-n", berth.namespace()]).unwrap();
    create(&berth, &[backup_of("same", &["default"])]);
    let done = ended(&berth, &["same"]);
    assert_eq!(done["same"].phase(), BackupPhase::Failed);
    assert!(
        reason(&done["same"]).contains("is in the storage location already"),
        "{}",
        reason(&done["same"])
    );
    assert_eq!(std::fs::read(berth.archive("same")).unwrap(), before, "what was there stays");
}

/// Names are no proof: two clusters may share a prefix, and a Backup may be deleted and made again.
#[test]
fn a_folder_that_another_one_has_claimed_is_left_alone_until_that_one_is_gone() {
    let berth = start("claimed", 1);
    let kubectl = berth.kubectl();
    let here = kubectl.run(&["get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}"]).unwrap();
    let other = kubectl.create(berth.namespace(), &[backup_of("alive", &["default"])]).unwrap();
    assert!(other.status.success(), "{}", other.stderr);
    ended(&berth, &["alive"]);
    let alive = kubectl.backup(berth.namespace(), "alive").unwrap().metadata.uid.unwrap();
    let claimed = |name: &str, cluster: &str, uid: &str| {
        let folder = berth.archives().join("backups").join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let claim =
            json!({"cluster": cluster, "namespace": berth.namespace(), "backup": uid, "run": "before"});
        std::fs::write(folder.join("berth-run.json"), claim.to_string()).unwrap();
        std::fs::write(folder.join(format!("{name}-logs.gz")), "of another").unwrap();
        folder
    };
    let theirs = claimed("theirs", "another-cluster", &alive);
    let gone = claimed("gone", here.trim(), "of-one-that-is-gone");
    kubectl
        .create(berth.namespace(), &[backup_of("theirs", &["default"]), backup_of("gone", &["default"])])
        .unwrap();
    let done = ended(&berth, &["theirs", "gone"]);
    assert_eq!(done["theirs"].phase(), BackupPhase::Failed);
    let said = format!("Backup claimed/theirs with UID {alive} of the cluster with UID another-cluster");
    assert!(reason(&done["theirs"]).contains(&said), "{}", reason(&done["theirs"]));
    assert_eq!(std::fs::read_to_string(theirs.join("theirs-logs.gz")).unwrap(), "of another");
    assert_eq!(files_of(&berth, "theirs").len(), 2);
    assert_eq!(done["gone"].phase(), BackupPhase::Completed, "{}", reason(&done["gone"]));
    assert!(crate::archive::side_text(&gone, "gone-logs.gz").contains("backup ends: Completed"));
    // A Backup that has ended says until when it is kept, unless whoever removes it then would
    // remove what is another one's.
    for (name, backup) in &done {
        let status = backup.status.as_ref().unwrap();
        assert_eq!(status.expiration.is_some(), name != "theirs", "{status:?}");
        assert!(status.format_version.is_some(), "{status:?}");
    }
}

#[test]
fn an_address_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (command, flag) in
        [("webhook", "--listen"), ("webhook", "--health-address"), ("controller", "--health-address")]
    {
        let plane = ControlPlane::shared().unwrap();
        let mut started = Command::new(program());
        started.args([command, flag, &address, "--kubeconfig"]).arg(plane.kubeconfig());
        if flag == "--health-address" && command == "webhook" {
            started.args(["--listen", "127.0.0.1:0"]);
        }
        let output = started.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success());
        assert!(said.contains(&format!("{flag} {address} cannot be used: ")), "{said}");
    }
}

#[test]
fn a_cache_folder_that_cannot_be_written_is_named() {
    let output = Command::new(crate::support::project().join("tests/control-plane/get"))
        .arg("velero")
        .env_remove("KUBEBUILDER_ASSETS")
        .env("BERTH_CACHE", "/proc/no-such-folder")
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("/proc/no-such-folder") && said.contains("BERTH_CACHE"), "{said}");
}

#[test]
fn what_this_machine_cannot_run_is_left_out_even_if_it_is_there() {
    let folder = tempfile::tempdir().unwrap();
    for (tool, program) in [("node", "azurite"), ("python3", "moto")] {
        std::os::unix::fs::symlink("/bin/false", folder.path().join(tool)).unwrap();
        std::fs::create_dir(folder.path().join(program)).unwrap();
    }
    let usual = std::env::var_os("PATH").unwrap();
    let path =
        std::env::join_paths(std::iter::once(folder.path().to_owned()).chain(std::env::split_paths(&usual)));
    let output = Command::new(crate::support::project().join("tests/control-plane/get"))
        .args(["azurite", "moto"])
        .env("KUBEBUILDER_ASSETS", folder.path())
        .env("PATH", path.unwrap())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "azurite=\nmoto=\n", "{said}");
    assert_eq!(said.matches("left out").count(), 2, "{said}");
}
