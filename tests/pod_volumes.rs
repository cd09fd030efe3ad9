//! Files of volumes: a folder like a kubelet's, a real API server, the real agent; restic reads
//! what it wrote.

mod alone;
mod by_movers;
mod device;
mod failures;
mod large;
mod mounted;
mod movements;
mod velero;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use berth::install::pod_volumes::AGENT;
use berth::install::{InstallSettings, render};
use berth_api::keys::PROGRESS_TEXT;
use serde_json::{Value, json};

use crate::admission::program;
use crate::support::peers::{self, S3};
use crate::support::process::in_own_session;
use crate::support::{ControlPlane, PATIENCE, Process, binaries, port, wait_for};

const NAMESPACE: &str = "velero";
const NODE: &str = "node-1";

/// A control plane with Velero's kinds, a store that is a folder, and a node with its agent.
struct Stage {
    plane: ControlPlane,
    s3: S3,
    pods: PathBuf,
    agent: Process,
}

impl Stage {
    fn start() -> Self {
        let plane = ControlPlane::start().unwrap();
        peers::install_definitions(&plane).unwrap();
        let s3 = S3::start(&plane, "pod-volumes").unwrap();
        let pods = plane.folder().join("pods");
        fs::create_dir_all(&pods).unwrap();
        fs::create_dir_all(plane.folder().join("stores/bucket")).unwrap();
        let namespaces = [NAMESPACE, "shop", "elsewhere"];
        let namespace =
            |name: &&str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        plane.apply(namespaces.iter().map(namespace).collect()).unwrap();
        let folder = json!({
            "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation", "metadata": {"name": "folder"},
            "spec": {
                "provider": "berth.dev/filesystem", "objectStorage": {"bucket": "bucket", "prefix": "some/where"},
                "config": {"path": plane.folder().join("stores")},
            },
        });
        plane.apply(roles()).unwrap();
        let agent = agent(&plane, &pods, "agent");
        let stage = Self { plane, s3, pods, agent };
        stage.create(&[
            folder,
            stage.s3.location("s3", "some/where"),
            stage.s3.keys.secret_object(NAMESPACE),
        ]);
        stage
    }

    fn create(&self, objects: &[Value]) {
        let made = self.plane.kubectl().create(NAMESPACE, objects).unwrap();
        assert!(made.status.success(), "{}", made.stderr);
    }

    fn read(&self, namespace: &str, kind: &str, name: &str) -> Value {
        read(&self.plane, namespace, kind, name)
    }

    /// A pod of that node, with the folders of its volumes. Its UID.
    fn pod(&self, namespace: &str, name: &str, volumes: &Value, status: &Value) -> String {
        pod(&self.plane, namespace, name, volumes, &json!({}), status)
    }

    fn folder(&self, uid: &str, below: &str) -> PathBuf {
        let folder = self.pods.join(uid).join("volumes").join(below);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn ended(&mut self, kind: &str, name: &str) -> Value {
        self.ended_within(PATIENCE, kind, name)
    }

    fn ended_within(&mut self, patience: Duration, kind: &str, name: &str) -> Value {
        wait_for(&format!("{kind} {name} to end"), patience, || {
            self.agent.ensure_runs()?;
            let object = self.read(NAMESPACE, kind, name);
            let phase = object["status"]["phase"].as_str().unwrap_or_default();
            Ok(matches!(phase, "Completed" | "Failed" | "Canceled").then_some(object))
        })
        .unwrap()
    }

    fn completed(&mut self, kind: &str, name: &str) -> Value {
        let object = self.ended(kind, name);
        assert_eq!(object["status"]["phase"], "Completed", "{:#}", object["status"]);
        object
    }

    /// restic on the repository of a namespace in a location.
    fn restic_command(&self, location: &str) -> Command {
        let folder = self.plane.folder().join("stores/bucket/some/where/restic/shop");
        if location == "folder" {
            return restic_on(&self.plane, location, &folder.display().to_string());
        }
        let spec = self.s3.location("s3", "");
        let bucket = spec["spec"]["objectStorage"]["bucket"].as_str().unwrap();
        let repository = format!("s3:{}/{bucket}/some/where/restic/shop", self.s3.url());
        let mut command = restic_on(&self.plane, location, &repository);
        command.env("AWS_ACCESS_KEY_ID", &self.s3.keys.id);
        command.env("AWS_SECRET_ACCESS_KEY", &self.s3.keys.secret);
        command.env("AWS_DEFAULT_REGION", spec["spec"]["config"]["region"].as_str().unwrap());
        command
    }

    fn restic(&self, location: &str, args: &[&str]) -> String {
        let output = self.restic_command(location).args(args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{args:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.agent.log_text().unwrap_or_default());
        }
    }
}

/// The roles that `berth install --pod-volumes` gives to agents: that of the test has no others.
pub fn roles() -> Vec<Value> {
    let mut objects =
        render(&InstallSettings { pod_volumes: true, ..InstallSettings::new(NAMESPACE) }).unwrap();
    objects.retain(|object| {
        let is_right = object["rules"].is_array() || object["subjects"].is_array();
        object["metadata"]["name"] == AGENT && (is_right || object["kind"] == "ServiceAccount")
    });
    objects
}

fn read(plane: &ControlPlane, namespace: &str, kind: &str, name: &str) -> Value {
    let args = ["get", kind, name, "--namespace", namespace, "-o", "json"];
    serde_json::from_str(&plane.kubectl().run(&args).unwrap()).unwrap()
}

/// A pod of the node. Its UID.
fn pod(
    plane: &ControlPlane,
    namespace: &str,
    name: &str,
    volumes: &Value,
    annotations: &Value,
    status: &Value,
) -> String {
    let mounts: Vec<Value> = volumes.as_array().into_iter().flatten().map(|volume| {
        json!({"name": volume["name"], "mountPath": format!("/{}", volume["name"].as_str().unwrap())})
    }).collect();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "spec": {
            "nodeName": NODE, "automountServiceAccountToken": false, "volumes": volumes,
            "initContainers": [{"name": "restore-wait", "image": "w"}],
            "containers": [{"name": "c", "image": "i", "volumeMounts": mounts}],
        },
    });
    let made = plane.kubectl().create(namespace, &[pod]).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
    let patch = json!({"status": status}).to_string();
    let args = ["patch", "pod", name, "--namespace", namespace, "--subresource=status", "--type=merge"];
    plane.kubectl().run(&[&args[..], &["--patch", &patch]].concat()).unwrap();
    read(plane, namespace, "pod", name)["metadata"]["uid"].as_str().unwrap().to_owned()
}

/// restic on the repository of namespace shop in a location, which is here.
fn restic_on(plane: &ControlPlane, location: &str, repository: &str) -> Command {
    let [program] = binaries::get(["restic"]).unwrap();
    let secret = read(plane, NAMESPACE, "secret", &format!("berth-repository-{location}.shop"));
    let password = base64(secret["data"]["repository-password"].as_str().unwrap());
    let mut command = Command::new(program);
    command.args(["--no-cache", "--repo", repository]).env("RESTIC_PASSWORD", password);
    command
}

fn base64(text: &str) -> String {
    use ::base64::Engine as _;
    String::from_utf8(::base64::engine::general_purpose::STANDARD.decode(text).unwrap()).unwrap()
}

fn agent(plane: &ControlPlane, pods: &Path, name: &str) -> Process {
    agent_with(plane, pods, name, &[])
}

pub fn agent_with(plane: &ControlPlane, pods: &Path, name: &str, more: &[&str]) -> Process {
    agent_by(in_own_session(&program()), plane, pods, name, more)
}

/// An agent that this command starts: it gets the arguments of the agent behind its own.
fn agent_by(mut command: Command, plane: &ControlPlane, pods: &Path, name: &str, more: &[&str]) -> Process {
    command.args(["node-agent", "--node-name", NODE, "--namespace", NAMESPACE, "--host-pods-path"]).arg(pods);
    command.arg("--kubeconfig");
    command.arg(plane.service_account_kubeconfig(NAMESPACE, "berth-node-agent").unwrap());
    // Nothing is mounted here.
    command.arg("--allow-unmounted").args(more);
    // It looks every ten seconds which repositories are due, not every ten minutes.
    command.env("BERTH_PACE", "60");
    // As manifests/components/pod-volumes/agent.yaml has it.
    command.env("MIMALLOC_ARENA_EAGER_COMMIT", "0");
    command.arg("--filesystem-root").arg(plane.folder());
    command.arg(format!("--health-address=127.0.0.1:{}", port::free().unwrap()));
    Process::start("berth node-agent", command, &plane.folder().join(format!("{name}.log"))).unwrap()
}

fn pod_volume_backup(name: &str, uid: &str, location: &str, more: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "velero.io/v1", "kind": "PodVolumeBackup", "metadata": {"name": name},
        "spec": {
            "node": NODE, "volume": "data", "backupStorageLocation": location, "repoIdentifier": "",
            "uploaderType": "restic", "tags": {"backup": "nightly", "volume": "data"},
            "pod": {"kind": "Pod", "namespace": "shop", "name": "web-0", "uid": uid},
        },
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    object
}

fn pod_volume_restore(name: &str, uid: &str, location: &str, snapshot: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "PodVolumeRestore",
        "metadata": {"name": name, "ownerReferences": [{
            "apiVersion": "velero.io/v1", "kind": "Restore", "name": "r", "uid": "the-restore", "controller": true,
        }]},
        "spec": {
            "pod": {"kind": "Pod", "namespace": "elsewhere", "name": "web-0", "uid": uid}, "volume": "data",
            "backupStorageLocation": location, "repoIdentifier": "", "uploaderType": "restic",
            "snapshotID": snapshot, "sourceNamespace": "shop",
        },
    })
}

/// What is there below a folder, by path: all that must come back.
fn tree(top: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![top.to_owned()];
    let mut names: BTreeMap<(u64, u64), Vec<PathBuf>> = BTreeMap::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let short = path.strip_prefix(top).unwrap().to_owned();
            if short == Path::new(".velero") {
                continue;
            }
            let meta = fs::symlink_metadata(&path).unwrap();
            let contents = if meta.is_symlink() {
                format!("{:?}", fs::read_link(&path).unwrap())
            } else if meta.is_file() {
                if meta.nlink() > 1 {
                    names.entry((meta.dev(), meta.ino())).or_default().push(short.clone());
                }
                format!("{:x?}", ring::digest::digest(&ring::digest::SHA256, &fs::read(&path).unwrap()))
            } else {
                String::new()
            };
            if meta.is_dir() {
                folders.push(path);
            }
            let size = if meta.is_dir() { 0 } else { meta.len() };
            let text = format!(
                "{:o} {}:{} {}.{:09} {size} {contents}",
                meta.mode(),
                meta.uid(),
                meta.gid(),
                meta.mtime(),
                meta.mtime_nsec()
            );
            found.insert(short, text);
        }
    }
    for mut same in names.into_values() {
        same.sort();
        found.insert(PathBuf::from("hard links of").join(&same[0]), format!("{same:?}"));
    }
    found
}

fn assert_same(wanted: &Path, found: &Path) {
    let (wanted, found) = (tree(wanted), tree(found));
    for (path, text) in &wanted {
        assert_eq!(found.get(path), Some(text), "{}", path.display());
    }
    let more: Vec<_> = found.keys().filter(|path| !wanted.contains_key(*path)).collect();
    assert!(more.is_empty(), "{more:?}");
}

/// Whatever volumes hold.
fn fill(top: &Path) {
    let noise = |bytes: usize, seed: u64| -> Vec<u8> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33).to_le_bytes()[0]
        };
        (0..bytes).map(|_| next()).collect()
    };
    fs::create_dir_all(top.join("a/deep/er")).unwrap();
    fs::create_dir(top.join("empty")).unwrap();
    fs::write(top.join("a/large"), noise(9_000_000, 1)).unwrap();
    for number in 0..200 {
        fs::write(top.join(format!("a/deep/{number}")), noise(number * 37, number as u64)).unwrap();
    }
    fs::write(top.join("nothing"), "").unwrap();
    fs::hard_link(top.join("a/large"), top.join("a/deep/er/same")).unwrap();
    symlink("a/large", top.join("link")).unwrap();
    symlink("/etc", top.join("out")).unwrap();
    symlink("..", top.join("a/deep/loop")).unwrap();
    symlink(OsStr::from_bytes(b"to/\xff\xfe"), top.join("odd link")).unwrap();
    let names: [&[u8]; 5] =
        [b"not \xff text", b"quote\"s", b"back\\slash", b"new\nline", "é\u{1F980}".as_bytes()];
    for name in names {
        fs::write(top.join(OsStr::from_bytes(name)), name).unwrap();
    }
    nix::unistd::mkfifo(&top.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut sparse = File::create(top.join("sparse")).unwrap();
    sparse.seek(SeekFrom::Start(40_000_000)).unwrap();
    sparse.write_all(b"end").unwrap();
    fs::set_permissions(top.join("a/deep"), Permissions::from_mode(0o2750)).unwrap();
    fs::write(top.join("owned"), "by somebody").unwrap();
    chown(top.join("owned"), Some(999), Some(998)).unwrap();
    fs::set_permissions(top.join("owned"), Permissions::from_mode(0o4711)).unwrap();
    chown(top, Some(999), Some(999)).unwrap();
    fs::set_permissions(top, Permissions::from_mode(0o700)).unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    File::open(top.join("a/deep/7")).unwrap().set_modified(old).unwrap();
    File::open(top.join("empty")).unwrap().set_modified(old).unwrap();
}

fn claim() -> [Value; 2] {
    [
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv-data"},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "csi": {"driver": "csi.test", "volumeHandle": "h"},
            },
        }),
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "shop"},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "volumeName": "pv-data", "storageClassName": "",
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }),
    ]
}

#[test]
fn files_go_into_a_repository_that_restic_reads_and_come_back_behind_the_init_container() {
    let mut stage = Stage::start();
    stage.plane.apply(claim().to_vec()).unwrap();
    let of_claim = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    let uid = stage.pod("shop", "web-0", &of_claim, &json!({"phase": "Running"}));
    let source = stage.folder(&uid, "kubernetes.io~csi/pv-data/mount");
    fill(&source);
    let waiting = waiting();
    let empty = json!([{"name": "data", "emptyDir": {}}]);
    let other = stage.pod("elsewhere", "web-0", &empty, &waiting);

    // Nobody's business.
    stage.create(&[
        pod_volume_backup("other-node", &uid, "folder", &json!({"node": "node-2"})),
        pod_volume_backup("other-uploader", &uid, "folder", &json!({"uploaderType": "kopia"})),
        pod_volume_backup("canceled", &uid, "folder", &json!({"cancel": true})),
        pod_volume_backup("no-volume", &uid, "folder", &json!({"volume": "none"})),
    ]);
    assert_eq!(stage.ended("podvolumebackup", "canceled")["status"]["phase"], "Canceled");
    let failed = stage.ended("podvolumebackup", "no-volume");
    assert_eq!(failed["status"]["phase"], "Failed");
    assert_eq!(failed["status"]["message"], "pod shop/web-0 has no volume none");

    for location in ["folder", "s3"] {
        let name = |name: &str| format!("{name}-{location}");
        let copy = |of: &str| stage_folder(&stage.plane, &name(of));
        let (first_copy, restored_copy) = (copy("first"), copy("restored"));
        stage.create(&[pod_volume_backup(&name("first"), &uid, location, &json!({}))]);
        let first = stage.completed("podvolumebackup", &name("first"));
        let status = &first["status"];
        assert_eq!(status["path"], source.display().to_string());
        assert_eq!(status["progress"]["bytesDone"], status["progress"]["totalBytes"]);
        assert!(status["progress"]["totalBytes"].as_i64().unwrap() > 49_000_000, "{status:#}");
        assert!(status["startTimestamp"].is_string() && status["completionTimestamp"].is_string());
        let files = first["metadata"]["annotations"][PROGRESS_TEXT].as_str();
        let files = files.and_then(|text| text.strip_suffix(" files")?.parse::<u32>().ok());
        assert!(files.is_some_and(|files| files > 200), "{:#}", first["metadata"]);
        let first_id = status["snapshotID"].as_str().unwrap().to_owned();
        let repository = stage.read(NAMESPACE, "backuprepository", &format!("shop-{location}-restic"));
        assert_eq!(repository["status"]["phase"], "Ready", "{repository:#}");
        assert_eq!(repository["metadata"]["labels"]["velero.io/storage-location"], location);
        stage.restic(location, &["check", "--read-data"]);
        stage.restic(location, &["restore", &first_id, "--target", first_copy.to_str().unwrap()]);
        assert_same(&source, &first_copy.join("volume"));
        mounted::assert_mounted(&stage, location, &first_id, &source);

        fs::write(source.join("a/deep/3"), name("changed")).unwrap();
        fs::write(source.join("added"), name("more")).unwrap();
        let _ = fs::remove_file(source.join("a/deep/5"));
        stage.create(&[pod_volume_backup(&name("second"), &uid, location, &json!({}))]);
        let second = stage.completed("podvolumebackup", &name("second"));
        let added = |object: &Value| object["status"]["incrementalBytes"].as_i64().unwrap();
        assert!(
            added(&second) < 100_000 && added(&first) > 9_000_000,
            "{} {}",
            added(&first),
            added(&second)
        );
        let id = second["status"]["snapshotID"].as_str().unwrap();
        let snapshots: Value =
            serde_json::from_str(&stage.restic(location, &["snapshots", "--json"])).unwrap();
        let shown = snapshots.as_array().unwrap().iter().find(|shown| shown["id"] == id).unwrap();
        assert_eq!((&shown["parent"], &shown["hostname"]), (&json!(first_id), &json!("shop")));
        assert!(shown["tags"].as_array().unwrap().contains(&json!("backup=nightly")), "{shown:#}");

        let target = stage.folder(&other, "kubernetes.io~empty-dir/data");
        fs::write(target.join("a"), "a file where a folder belongs").unwrap();
        symlink("/etc", target.join("empty")).unwrap();
        stage.create(&[pod_volume_restore(&name("restore"), &other, location, id)]);
        stage.completed("podvolumerestore", &name("restore"));
        assert_same(&source, &target);
        let meta = fs::metadata(&target).unwrap();
        assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid()), (0o700, 999, 999));
        assert!(fs::metadata(target.join("sparse")).unwrap().blocks() < 20_000, "it is sparse again");
        assert!(target.join(".velero/the-restore").exists());
        fs::rename(&target, &restored_copy).unwrap();
        stage.restic(location, &["check", "--read-data"]);
        assert_eq!(stage.restic(location, &["list", "locks"]).trim(), "");
    }
    written_by_restic(&mut stage, &source, &other);
    // What a process that died had begun is begun again; and a lock of restic's that others may
    // hold, too, is read.
    let mut child = stage.restic_command("folder");
    child.args(["backup", "--stdin", "--quiet"]).stdin(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let locks = stage.plane.folder().join("stores/bucket/some/where/restic/shop/locks");
    wait_for("restic's lock", PATIENCE, || {
        Ok(fs::read_dir(&locks).is_ok_and(|mut locks| locks.next().is_some()).then_some(()))
    })
    .unwrap();
    let mut begun = pod_volume_backup("begun", &uid, "folder", &json!({}));
    begun["status"] = json!({"phase": "InProgress", "startTimestamp": "2026-01-01T00:00:00Z"});
    stage.create(&[begun]);
    let begun = stage.completed("podvolumebackup", "begun");
    assert_eq!(begun["status"]["startTimestamp"], "2026-01-01T00:00:00Z");
    // restic refuses an empty input. What is written here is dropped, which ends the input.
    child.stdin.take().unwrap().write_all(b"late").unwrap();
    assert!(child.wait().unwrap().success());

    // Velero's node-agent would take the same objects.
    let stock = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "stock", "namespace": NAMESPACE, "labels": {"role": "node-agent"}},
        "spec": {
            "nodeName": NODE, "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "node-agent", "image": "i"}],
        },
    });
    // The agent has told the same before its first list of pods.
    let waits = |agent: &Process| {
        let text = agent.log_text().unwrap();
        let told: Vec<_> = text.lines().filter(|line| line.contains("nothing is begun while")).collect();
        (told.len(), told.last().is_some_and(|line| line.ends_with("objects that wait: 1")))
    };
    let (before, _) = waits(&stage.agent);
    stage.create(&[stock]);
    wait_for("the agent to see it", PATIENCE, || Ok((waits(&stage.agent).0 > before).then_some(()))).unwrap();
    stage.create(&[pod_volume_backup("beside", &uid, "folder", &json!({}))]);
    wait_for("the agent to pass over the object", PATIENCE, || Ok(waits(&stage.agent).1.then_some(())))
        .unwrap();
    assert!(stage.read(NAMESPACE, "podvolumebackup", "beside")["status"]["phase"].is_null());
    stage.plane.kubectl().run(&["delete", "pod", "stock", "--namespace", NAMESPACE, "--force"]).unwrap();
    stage.completed("podvolumebackup", "beside");

    for name in ["other-node", "other-uploader"] {
        assert!(stage.read(NAMESPACE, "podvolumebackup", name)["status"]["phase"].is_null());
    }
}

/// What `restic backup` itself wrote comes back as well: links, modes, times, owners, odd names.
fn written_by_restic(stage: &mut Stage, source: &Path, pod: &str) {
    let mut command = stage.restic_command("folder");
    // So its names stand at the top of the snapshot.
    let output = command.args(["backup", ".", "--json"]).current_dir(source).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut ids = lines.filter_map(|line| line["snapshot_id"].as_str().map(str::to_owned));
    let id = ids.next_back().unwrap();
    let target = stage.folder(pod, "kubernetes.io~empty-dir/data");
    stage.create(&[pod_volume_restore("of-restic", pod, "folder", &id)]);
    stage.completed("podvolumerestore", "of-restic");
    assert_same(source, &target);
    assert!(fs::metadata(target.join("sparse")).unwrap().blocks() < 20_000, "it is sparse again");
}

/// The status of a pod that waits for its restores.
fn waiting() -> Value {
    json!({"phase": "Pending", "initContainerStatuses": [{
        "name": "restore-wait", "image": "w", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"running": {}},
    }]})
}

/// Where something is to be; nothing is there.
fn stage_folder(plane: &ControlPlane, name: &str) -> PathBuf {
    plane.folder().join(format!("copy-{name}"))
}
