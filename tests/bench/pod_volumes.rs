//! Files of a volume by berth's node agent, and by restic itself on the same folder and disk: the
//! first backup, one before which nothing has changed, one before which a hundredth has, and a
//! restore. What both need: time, processor and memory.
//!
//! - What berth needs besides counts as well: the object that asks for it, and the look whether it
//!   is done.
//! - Of the four steps each program is first in two, because the second one finds files and disk as
//!   the first one has left them. Before each of them everything is on the disk.
//! - restic derives its key anew each time that it is run, and the agent keeps repositories open.
//!   The row of an empty command says how much of restic's time that is.
//! - berth waits until what it has restored is on the disk, and restic does not.
//! - The files do not compress, so this says nothing of compression.
//! - Velero's kopia is not here: it writes only to a bucket, through a Velero server, a node-agent
//!   and a pod for each volume, which is neither the same store nor the same work.

use std::fs;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use berth_test_support::peers::install_definitions;
use berth_test_support::process::in_own_session;
use berth_test_support::{ControlPlane, Process, binaries, port};
use serde_json::{Value, json};

use crate::report::{Aim, Report};
use crate::system::{cpu_seconds, cpu_seconds_of_children, peak_mib};

const NAMESPACE: &str = "velero";
const NODE: &str = "node-1";
const VOLUME: &str = "data";
/// Bytes of a large file, and of a small one.
const LARGE: usize = 64 << 20;
const SMALL: usize = 4 << 10;
/// Files of one folder.
const OF_FOLDER: usize = 1_000;
/// How often it is looked whether something has ended.
const PERIOD: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(3600);
const GIB: f64 = 1_073_741_824.0;

pub struct Sizes {
    /// MiB in large files.
    pub mib: usize,
    /// How many small files.
    pub files: usize,
}

/// What a volume holds.
struct Contents {
    what: String,
    files: usize,
    bytes: usize,
    /// How many times as long as berth restic is to take.
    aim: f64,
}

/// What is done with a volume, in this order.
const STEPS: [&str; 4] = ["first backup", "nothing changed", CHANGED, RESTORE];
const CHANGED: &str = "1 % changed";
const RESTORE: &str = "restore";
/// What an agent may need, also for a million files.
const MOST_MEMORY: f64 = 256.0;
const PART: &str = "pod volumes";

/// What one step took.
struct Taken {
    seconds: f64,
    cpu: f64,
}

pub fn measure(berth: &Path, sizes: &Sizes, report: &mut Report) -> anyhow::Result<()> {
    eprintln!("Files of volumes:");
    let large = (sizes.mib << 20).div_ceil(LARGE);
    let of_large = format!("{:.1} GiB in large files", (large * LARGE) as f64 / GIB);
    let of_small = format!("{} small files", sizes.files);
    for (what, files, bytes, aim) in [(of_large, large, LARGE, 1.2), (of_small, sizes.files, SMALL, 1.5)] {
        compare(berth, &Contents { what, files, bytes, aim }, report)?;
    }
    Ok(())
}

fn compare(berth: &Path, contents: &Contents, report: &mut Report) -> anyhow::Result<()> {
    let mut stage = Stage::start(berth)?;
    // By then the agent knows everything, and there is a repository, as restic has one.
    let running = json!({"phase": "Running"});
    fs::write(stage.volume("before", &running)?.join("file"), "small")?;
    stage.back_up("before", "before")?;
    let volume = stage.volume("web", &running)?;
    contents.fill(&volume)?;
    let mut restic = Restic::start(stage.plane.folder())?;
    for (number, step) in STEPS.into_iter().enumerate() {
        if step == CHANGED {
            contents.change(&volume)?;
        }
        let (ours, theirs) = if number % 2 == 0 {
            let ours = stage.carry_out(step)?;
            (ours, restic.carry_out(step, &volume)?)
        } else {
            let theirs = restic.carry_out(step, &volume)?;
            (stage.carry_out(step)?, theirs)
        };
        contents.tell(step, &ours, &theirs, report);
    }
    let empty = restic.run(&["cat", "config"])?;
    let what = |what: &str| format!("{}, {what}", contents.what);
    report.add(PART, &what("an empty command of restic"), empty.seconds, "s", Aim::None);
    let peak = peak_mib(stage.agent.id())?;
    report.add(PART, &what("most memory of the agent"), peak, "MiB", Aim::AtMost(MOST_MEMORY));
    report.add(PART, &what("most memory of restic"), restic.peak, "MiB", Aim::None);
    Ok(())
}

/// Waits until everything is on the disk: nobody is to wait for what another one wrote.
fn settle() -> anyhow::Result<()> {
    let status = Command::new("sync").status().context("failed to run sync (of coreutils)")?;
    ensure!(status.success(), "sync failed: {status}");
    Ok(())
}

impl Contents {
    fn path(&self, volume: &Path, number: usize) -> PathBuf {
        volume.join(format!("{}/{number}", number / OF_FOLDER))
    }

    fn fill(&self, volume: &Path) -> anyhow::Result<()> {
        for number in 0..self.files {
            if number % OF_FOLDER == 0 {
                fs::create_dir_all(volume.join((number / OF_FOLDER).to_string()))?;
            }
            fs::write(self.path(volume, number), noise(number, self.bytes))?;
        }
        Ok(())
    }

    /// Of many files each hundredth; of few ones a hundredth of each.
    fn change(&self, volume: &Path) -> anyhow::Result<()> {
        let (each, bytes) = if self.bytes == SMALL { (100, SMALL) } else { (1, self.bytes / 100) };
        for number in (0..self.files).step_by(each) {
            let mut file = fs::File::options().write(true).open(self.path(volume, number))?;
            file.seek(SeekFrom::Start((self.bytes - bytes) as u64 / 2))?;
            file.write_all(&noise(self.files + number, bytes))?;
        }
        Ok(())
    }

    fn tell(&self, step: &str, ours: &Taken, theirs: &Taken, report: &mut Report) {
        let what = |what: &str| format!("{}, {step}, {what}", self.what);
        report.add(PART, &what("berth"), ours.seconds, "s", Aim::None);
        report.add(PART, &what("restic"), theirs.seconds, "s", Aim::None);
        let times = theirs.seconds / ours.seconds;
        report.add(PART, &what("faster than restic"), times, "times", Aim::AtLeast(self.aim));
        let gib = self.files as f64 * self.bytes as f64 / GIB;
        let most = theirs.cpu / gib;
        report.add(PART, &what("CPU per GiB, berth"), ours.cpu / gib, "s", Aim::AtMost(most));
        report.add(PART, &what("CPU per GiB, restic"), most, "s", Aim::None);
    }
}

/// Bytes that no compressor makes fewer, others for each seed.
fn noise(seed: usize, bytes: usize) -> Vec<u8> {
    let mut state = (seed as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut noise = Vec::with_capacity(bytes + 8);
    while noise.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        noise.extend_from_slice(&state.to_le_bytes());
    }
    noise.truncate(bytes);
    noise
}

/// A control plane, a store that is a folder, and a node with berth's agent.
struct Stage {
    agent: Process,
    pods: PathBuf,
    /// The last one of the volume.
    snapshot: String,
    plane: ControlPlane,
}

impl Stage {
    fn start(berth: &Path) -> anyhow::Result<Self> {
        let plane = ControlPlane::start()?;
        install_definitions(&plane)?;
        let (pods, stores) = (plane.folder().join("pods"), plane.folder().join("stores"));
        fs::create_dir_all(&pods)?;
        fs::create_dir_all(stores.join("bucket"))?;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        let location = json!({
            "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
            "metadata": {"name": "default", "namespace": NAMESPACE},
            "spec": {
                "provider": "berth.dev/filesystem", "objectStorage": {"bucket": "bucket"},
                "config": {"path": stores},
            },
        });
        plane.apply(vec![namespace])?;
        plane.apply(vec![location])?;
        let mut command = in_own_session(berth);
        command.args(["node-agent", "--node-name", NODE, "--namespace", NAMESPACE, "--host-pods-path"]);
        command.arg(&pods).arg("--kubeconfig").arg(plane.kubeconfig());
        command.arg("--filesystem-root").arg(plane.folder());
        command.arg(format!("--health-address=127.0.0.1:{}", port::free()?));
        // As manifests/components/pod-volumes/agent.yaml has it.
        command.env("MIMALLOC_ARENA_EAGER_COMMIT", "0");
        let log = plane.folder().join("node-agent.log");
        let agent = Process::start("berth node-agent", command, &log)?;
        Ok(Self { agent, pods, snapshot: String::new(), plane })
    }

    fn create(&self, object: Value) -> anyhow::Result<()> {
        let answer = self.plane.kubectl().create(NAMESPACE, &[object])?;
        ensure!(answer.status.success(), "{}", answer.stderr);
        Ok(())
    }

    /// The folder of the volume of a new pod.
    fn volume(&self, pod: &str, status: &Value) -> anyhow::Result<PathBuf> {
        self.create(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod},
            "spec": {
                "nodeName": NODE, "automountServiceAccountToken": false,
                "volumes": [{"name": VOLUME, "emptyDir": {}}],
                "initContainers": [{"name": "restore-wait", "image": "w"}],
                "containers": [{"name": "c", "image": "i"}],
            },
        }))?;
        let patch = json!({"status": status}).to_string();
        let args = ["patch", "pod", pod, "--namespace", NAMESPACE, "--subresource=status", "--type=merge"];
        self.plane.kubectl().run(&[&args[..], &["--patch", &patch]].concat())?;
        let args = ["get", "pod", pod, "--namespace", NAMESPACE, "-o", "json"];
        let made: Value = serde_json::from_str(&self.plane.kubectl().run(&args)?)?;
        let uid = made["metadata"]["uid"].as_str().context("a pod without a UID")?;
        let folder = self.pods.join(uid).join("volumes/kubernetes.io~empty-dir").join(VOLUME);
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    fn carry_out(&mut self, step: &str) -> anyhow::Result<Taken> {
        settle()?;
        match step {
            RESTORE => self.restore(),
            _ => self.back_up("web", &step.replace([' ', '%'], "-")),
        }
    }

    fn back_up(&mut self, pod: &str, name: &str) -> anyhow::Result<Taken> {
        let asked = json!({
            "apiVersion": "velero.io/v1", "kind": "PodVolumeBackup", "metadata": {"name": name},
            "spec": {
                "node": NODE, "volume": VOLUME, "backupStorageLocation": "default", "repoIdentifier": "",
                "uploaderType": "restic", "pod": {"kind": "Pod", "namespace": NAMESPACE, "name": pod},
            },
        });
        let (taken, done) = self.carried_out("podvolumebackup", name, asked)?;
        let snapshot = done["status"]["snapshotID"].as_str().context("a backup without a snapshot")?;
        snapshot.clone_into(&mut self.snapshot);
        Ok(taken)
    }

    fn restore(&mut self) -> anyhow::Result<Taken> {
        let running = json!({"running": {}});
        let waiting = json!({"phase": "Pending", "initContainerStatuses": [{
            "name": "restore-wait", "image": "w", "imageID": "", "ready": false, "restartCount": 0,
            "state": running,
        }]});
        self.volume("restored", &waiting)?;
        let asked = json!({
            "apiVersion": "velero.io/v1", "kind": "PodVolumeRestore",
            "metadata": {"name": "restore", "ownerReferences": [{
                "apiVersion": "velero.io/v1", "kind": "Restore", "name": "r", "uid": "r", "controller": true,
            }]},
            "spec": {
                "pod": {"kind": "Pod", "namespace": NAMESPACE, "name": "restored"}, "volume": VOLUME,
                "backupStorageLocation": "default", "repoIdentifier": "", "uploaderType": "restic",
                "snapshotID": self.snapshot, "sourceNamespace": NAMESPACE,
            },
        });
        Ok(self.carried_out("podvolumerestore", "restore", asked)?.0)
    }

    fn carried_out(&mut self, kind: &str, name: &str, asked: Value) -> anyhow::Result<(Taken, Value)> {
        let (begun, before) = (Instant::now(), cpu_seconds(self.agent.id())?);
        self.create(asked)?;
        let args = ["get", kind, name, "--namespace", NAMESPACE, "-o", "json"];
        loop {
            self.agent.ensure_runs()?;
            let object: Value = serde_json::from_str(&self.plane.kubectl().run(&args)?)?;
            let status = object["status"].clone();
            match status["phase"].as_str() {
                Some("Completed") => {
                    let cpu = cpu_seconds(self.agent.id())? - before;
                    return Ok((Taken { seconds: begun.elapsed().as_secs_f64(), cpu }, object));
                }
                Some("Failed" | "Canceled") => bail!("{kind} {name}: {status}"),
                _ => ensure!(begun.elapsed() < PATIENCE, "{kind} {name} did not end: {status}"),
            }
            std::thread::sleep(PERIOD);
        }
    }
}

/// restic itself, with a cache, as people run it.
struct Restic {
    program: PathBuf,
    folder: PathBuf,
    /// The most memory that any run of it held, in MiB.
    peak: f64,
}

impl Restic {
    /// With an empty repository.
    fn start(folder: &Path) -> anyhow::Result<Self> {
        let [program] = binaries::get(["restic"])?;
        let mut restic = Self { program, folder: folder.to_owned(), peak: 0.0 };
        restic.run(&["init"])?;
        restic.peak = 0.0;
        Ok(restic)
    }

    fn carry_out(&mut self, step: &str, volume: &Path) -> anyhow::Result<Taken> {
        settle()?;
        if step == RESTORE {
            let target = self.folder.join("restored").display().to_string();
            return self.run(&["restore", "latest", "--target", &target]);
        }
        self.run(&["backup", &volume.display().to_string()])
    }

    fn run(&mut self, args: &[&str]) -> anyhow::Result<Taken> {
        let mut command = Command::new(&self.program);
        command.arg("--quiet").arg("--repo").arg(self.folder.join("restic")).args(args);
        command.env("RESTIC_PASSWORD", "secret").env("RESTIC_CACHE_DIR", self.folder.join("restic-cache"));
        let (begun, before) = (Instant::now(), cpu_seconds_of_children()?);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            self.peak = peak_mib(child.id()).unwrap_or(0.0).max(self.peak);
            ensure!(begun.elapsed() < PATIENCE, "restic {args:?} did not end");
            std::thread::sleep(PERIOD);
        };
        let seconds = begun.elapsed().as_secs_f64();
        ensure!(status.success(), "restic {args:?} failed: {status}");
        Ok(Taken { seconds, cpu: cpu_seconds_of_children()? - before })
    }
}
