//! Files of a volume by berth's node agent, and by restic and kopia on the same folder and disk:
//! the first backup, one before which nothing has changed, one before which a hundredth has, and a
//! restore. What each needs: time, processor and memory.
//!
//! - What berth needs besides counts as well: the object that asks for it, and the look whether it
//!   is done.
//! - The programs take turns in who is first in a step, because the next one finds files and disk
//!   as
//!   the one before has left them. Before each of them everything is on the disk.
//! - restic and kopia derive their keys anew each time that they are run, and the agent keeps
//!   repositories open. The row of an empty command says how much of their time that is.
//! - berth waits until what it has restored is on the disk, and the others do not.
//! - The files do not compress, so this says nothing of compression.
//! - kopia is the version that Velero links into its own program, as a command, with the settings
//!   that both have by default. What a Velero server, a node-agent and a pod for each volume add is
//!   left out. Where kopia cannot be had the others are measured without it.

use std::collections::BTreeMap;
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
    let mut rivals = rivals(stage.plane.folder())?;
    for (number, step) in STEPS.into_iter().enumerate() {
        if step == CHANGED {
            contents.change(&volume)?;
        }
        let all = rivals.len() + 1;
        let mut taken: BTreeMap<Program, Taken> = BTreeMap::new();
        for turn in 0..all {
            match rivals.get_mut((number + turn) % all) {
                Some(rival) => taken.insert(rival.program, rival.carry_out(step, &volume)?),
                None => taken.insert(Program::Berth, stage.carry_out(step)?),
            };
        }
        contents.tell(step, &taken, report)?;
    }
    let what = |what: &str| format!("{}, {what}", contents.what);
    let peak = peak_mib(stage.agent.id())?;
    report.add(PART, &what("most memory of the agent"), peak, "MiB", Aim::AtMost(MOST_MEMORY));
    for rival in &mut rivals {
        let name = rival.program.name();
        report.add(PART, &what(&format!("most memory of {name}")), rival.peak, "MiB", Aim::None);
        let empty = rival.run(&rival.program.empty())?;
        report.add(PART, &what(&format!("an empty command of {name}")), empty.seconds, "s", Aim::None);
    }
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

    fn tell(&self, step: &str, taken: &BTreeMap<Program, Taken>, report: &mut Report) -> anyhow::Result<()> {
        let what = |what: &str| format!("{}, {step}, {what}", self.what);
        let of = |program| taken.get(&program).context("a program that was not measured");
        let (ours, restics) = (of(Program::Berth)?, of(Program::Restic)?);
        for (program, taken) in taken {
            report.add(PART, &what(program.name()), taken.seconds, "s", Aim::None);
        }
        for (program, theirs) in taken.iter().filter(|(program, _)| **program != Program::Berth) {
            let aim = if *program == Program::Restic { Aim::AtLeast(self.aim) } else { Aim::None };
            let times = theirs.seconds / ours.seconds;
            report.add(PART, &what(&format!("faster than {}", program.name())), times, "times", aim);
        }
        let gib = self.files as f64 * self.bytes as f64 / GIB;
        for (program, taken) in taken {
            let is_ours = *program == Program::Berth;
            let aim = if is_ours { Aim::AtMost(restics.cpu / gib) } else { Aim::None };
            let name = format!("CPU per GiB, {}", program.name());
            report.add(PART, &what(&name), taken.cpu / gib, "s", aim);
        }
        Ok(())
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
        let restored = self.volume("restored", &waiting)?;
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
        let (taken, _) = self.carried_out("podvolumerestore", "restore", asked)?;
        fs::remove_dir_all(restored)?;
        Ok(taken)
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

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Program {
    Berth,
    Restic,
    Kopia,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Berth => "berth",
            Self::Restic => "restic",
            Self::Kopia => "kopia",
        }
    }

    /// A command that opens the repository and does nothing with it.
    fn empty(self) -> Vec<String> {
        let words: &[&str] = if self == Self::Kopia { &["repository", "status"] } else { &["cat", "config"] };
        words.iter().map(|word| (*word).to_owned()).collect()
    }
}

/// Another program with a repository and a cache, as people run it.
struct Rival {
    program: Program,
    path: PathBuf,
    folder: PathBuf,
    /// The most memory that any run of it held, in MiB.
    peak: f64,
}

/// restic, and kopia where it can be had. Each has an empty repository.
fn rivals(folder: &Path) -> anyhow::Result<Vec<Rival>> {
    let [restic] = binaries::get(["restic"])?;
    let mut rivals = vec![Rival::start(Program::Restic, restic, folder)?];
    match binaries::get(["kopia"]) {
        Ok([kopia]) => rivals.push(Rival::start(Program::Kopia, kopia, folder)?),
        Err(error) => eprintln!("kopia is not measured: {error:#}"),
    }
    Ok(rivals)
}

impl Rival {
    fn start(program: Program, path: PathBuf, folder: &Path) -> anyhow::Result<Self> {
        let folder = folder.join(program.name());
        fs::create_dir_all(&folder)?;
        let mut rival = Self { program, path, folder, peak: 0.0 };
        let repository = rival.repository();
        let words = match program {
            Program::Kopia => vec!["repository", "create", "filesystem", "--path", &repository],
            Program::Restic | Program::Berth => vec!["init"],
        };
        rival.run(&words.into_iter().map(str::to_owned).collect::<Vec<_>>())?;
        rival.peak = 0.0;
        Ok(rival)
    }

    fn repository(&self) -> String {
        self.folder.join("repository").display().to_string()
    }

    fn carry_out(&mut self, step: &str, volume: &Path) -> anyhow::Result<Taken> {
        settle()?;
        let volume = volume.display().to_string();
        if step != RESTORE {
            let words = if self.program == Program::Kopia { "snapshot create" } else { "backup" };
            let words = words.split(' ').map(str::to_owned).chain([volume]);
            return self.run(&words.collect::<Vec<_>>());
        }
        let restored = self.folder.join("restored");
        let target = restored.display().to_string();
        let words = match self.program {
            // The latest snapshot of that folder.
            Program::Kopia => vec!["restore", &volume, &target],
            Program::Restic | Program::Berth => vec!["restore", "latest", "--target", &target],
        };
        let taken = self.run(&words.into_iter().map(str::to_owned).collect::<Vec<_>>())?;
        fs::remove_dir_all(restored)?;
        Ok(taken)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        let cache = self.folder.join("cache");
        match self.program {
            Program::Kopia => {
                // Velero has a process of its own for maintenance.
                command.args(["--no-progress", "--no-auto-maintenance", "--log-level=warning"]);
                command.env("KOPIA_PASSWORD", "secret").env("KOPIA_CACHE_DIRECTORY", cache);
                command.env("KOPIA_CONFIG_PATH", self.folder.join("repository.config"));
                command.env("KOPIA_LOG_DIR", self.folder.join("logs"));
                command.env("KOPIA_CHECK_FOR_UPDATES", "false").env("HOME", &self.folder);
            }
            Program::Restic | Program::Berth => {
                command.args(["--quiet", "--repo", &self.repository()]);
                command.env("RESTIC_PASSWORD", "secret").env("RESTIC_CACHE_DIR", cache);
            }
        }
        command
    }

    fn run(&mut self, args: &[String]) -> anyhow::Result<Taken> {
        let name = self.program.name();
        let mut command = self.command();
        let (begun, before) = (Instant::now(), cpu_seconds_of_children()?);
        let mut child = command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            self.peak = peak_mib(child.id()).unwrap_or(0.0).max(self.peak);
            ensure!(begun.elapsed() < PATIENCE, "{name} {args:?} did not end");
            std::thread::sleep(PERIOD);
        };
        let seconds = begun.elapsed().as_secs_f64();
        ensure!(status.success(), "{name} {args:?} failed: {status}");
        Ok(Taken { seconds, cpu: cpu_seconds_of_children()? - before })
    }
}
