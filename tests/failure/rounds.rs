//! Leaders are killed at random moments, round after round: while commands run in pods, while parts
//! are on their way to a store that answers late, while a backup is being completed. The next
//! leader continues from the checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::thread::Builder;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use berth_api::keys;
use berth_api::velero::{Backup, BackupPhase};
use berth_core::run::Runs;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStoreExt};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{create, location_becomes, reason};
use crate::admission::program;
use crate::archive;
use crate::compatibility::s3::fill;
use crate::crash::Dice;
use crate::hooks::{self, Place};
use crate::support::lag::Lag;
use crate::support::peers::S3;
use crate::support::times::Wait;
use crate::support::{Berth, Options, PATIENCE, backup, number, wait_for};

const LOCATION: &str = "slow";
const PREFIX: &str = "shared";
/// By so much each answer of the store comes late.
const LATE: Duration = Duration::from_millis(100);
/// ConfigMaps that no compressor makes smaller: an archive of three parts. And others.
const LARGE: u64 = 12;
const SMALL: usize = 300;
/// Each with a command before it is stored and one after it.
const PODS: [&str; 3] = ["db-0", "db-1", "db-2"];
/// Files of another user of the same bucket, one of them in the folder of our backups.
const STRANGE: [(&str, &str); 3] = [
    ("shared/backups/of-a-stranger/of-a-stranger.tar.gz", "an archive of a stranger"),
    ("shared/backups/of-a-stranger/velero-backup.json", "{}"),
    ("elsewhere/notes", "notes of a stranger"),
];
const STRANGE_UPLOAD: &str = "shared/backups/of-a-stranger/later.bin";
const STRANGE_PART: usize = 5 << 20;
/// In one round of so many a stranger has the folder already.
const TAKEN: usize = 10;

/// What a leader is killed after, and some milliseconds more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// The checkpoint stands in the store.
    Kept,
    /// A command runs in a pod.
    Hooked,
    /// The archive is stored.
    Stored,
    /// The Backup is created.
    Created,
    /// An upload in parts has begun.
    Begun,
    /// Readers see the backup.
    Shown,
}

const MOMENTS: [Moment; 6] =
    [Moment::Kept, Moment::Hooked, Moment::Stored, Moment::Created, Moment::Begun, Moment::Shown];

/// So many rounds for each seed, all seeds at once: they wait most of the time, for a store that is
/// late. `test`: its name.
pub fn pass(test: &str, seeds: &[u64], rounds: usize) {
    let seeds = match number("BERTH_SEED", 0) {
        0 => seeds.to_vec(),
        one => vec![one],
    };
    let _wait = Wait::start("all rounds");
    std::thread::scope(|scope| {
        for seed in seeds {
            let run = move || {
                let alone = format!(
                    "BERTH_SEED={seed} cargo test --locked --workspace --test main -- --include-ignored --nocapture --exact {test}"
                );
                println!("{rounds} rounds; alone: {alone}");
                let mut scene = Scene::new(seed).with_context(|| alone.clone()).unwrap();
                // It stays until here, so that its logs are shown should it fail.
                scene.pass(seed, rounds).with_context(|| alone.clone()).unwrap();
            };
            let named = Builder::new().name(format!("rounds-of-{seed}"));
            named.spawn_scoped(scope, run).unwrap();
        }
    });
}

struct Scene {
    berth: Berth,
    s3: S3,
    /// In front of it.
    _late: Lag,
    runtime: Runtime,
    /// Where commands tell of themselves.
    hooks: PathBuf,
    dice: Dice,
    /// Of each Backup.
    spec: Value,
    /// What an undisturbed backup holds.
    whole: BTreeMap<String, u64>,
    stranger: Stranger,
}

impl Scene {
    fn new(seed: u64) -> anyhow::Result<Self> {
        let (plane, kwok) = hooks::site();
        let mut options = Options::new(program(), &format!("rounds-{seed}"));
        options.item_block_workers = 2;
        options.controller_args =
            ["--after-interruption=resume", "--client-page-size=20"].map(str::to_owned).into();
        let berth = Berth::start(plane, options)?;
        let s3 = S3::start(plane, berth.namespace())?;
        let late = Lag::start(s3.url().trim_start_matches("http://").parse()?, LATE)?;
        let mut location = s3.location(LOCATION, PREFIX);
        location["spec"]["config"]["s3Url"] = json!(format!("http://{}", late.address()));
        create(&berth, &[s3.keys.secret_object(berth.namespace()), location]);
        location_becomes(&berth, LOCATION, "Available");
        berth.await_location(LOCATION)?;
        let hooks = hooks::place(&berth);
        let [large, small] = ["large", "small"].map(|kind| format!("{}-{kind}", berth.namespace()));
        fill(&berth, &large, LARGE);
        let at = Place(&hooks);
        let mut objects = vec![hooks::namespace(&small)];
        objects.extend((0..SMALL).map(|i| {
            json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": format!("c{i}"), "namespace": small}, "data": {"i": format!("{i}")},
            })
        }));
        objects.extend(PODS.map(|pod| {
            let freeze = at.shell(&format!("{}; sleep 0.3", at.tells(&format!("froze-{pod}"))));
            let thaw = at.shell(&format!("sleep 0.1; {}", at.tells(&format!("thawed-{pod}"))));
            // It is stored however that goes.
            let pre = [("command", freeze), ("on-error", json!("Continue"))];
            kwok.pod(&small, pod, &hooks::annotations(&pre, Some(thaw)))
        }));
        hooks::create(&berth, &objects);
        let spec = json!({"includedNamespaces": [large, small], "storageLocation": LOCATION});
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let stranger = runtime.block_on(Stranger::come(&s3))?;
        let (dice, whole) = (Dice(seed), BTreeMap::new());
        Ok(Self { berth, s3, _late: late, runtime, hooks, dice, spec, whole, stranger })
    }

    fn pass(&mut self, seed: u64, rounds: usize) -> anyhow::Result<()> {
        self.leave_alone()?;
        let begun = Instant::now();
        let mut phases: BTreeMap<&str, usize> = BTreeMap::new();
        for round in 0..rounds {
            let turn = usize::try_from(seed % 1000)? + round;
            let moment = MOMENTS[turn % MOMENTS.len()];
            let is_taken = turn % TAKEN == TAKEN - 1;
            let name = format!("round-{round:03}");
            let done = self.round(&name, moment, is_taken);
            let done = done.with_context(|| format!("{name}, of seed {seed}: killed after {moment:?}"))?;
            *phases.entry(done.as_str()).or_default() += 1;
        }
        self.runtime.block_on(self.stranger.go(&self.s3))?;
        let resumed = self.berth.controller.process.log_text()?.matches("is_resumed=true").count();
        println!(
            "seed {seed}: {rounds} rounds in {:.0?}, {phases:?}, {resumed} went on from a checkpoint",
            begun.elapsed()
        );
        // Those whose folder is a stranger's, and those whose leader was killed three times.
        let failed = phases.get(BackupPhase::Failed.as_str()).copied().unwrap_or_default();
        ensure!(failed * 2 <= rounds, "{failed} of {rounds} failed");
        ensure!(rounds < 2 * MOMENTS.len() || resumed > 0, "nothing went on from a checkpoint");
        Ok(())
    }

    /// What is stored if no leader is killed.
    fn leave_alone(&mut self) -> anyhow::Result<()> {
        create(&self.berth, &[backup("whole", self.spec.clone())]);
        let done = self.end_of("whole")?;
        ensure!(done.phase() == BackupPhase::Completed, "undisturbed it ended {:?}", done.status);
        let found = archive::items(&self.folder("whole").join("whole.tar.gz"));
        let count = |kind: &str| found.iter().filter(|item| item.starts_with(kind)).count();
        let stored = (count("configmaps/"), count("pods/"));
        ensure!(stored == (usize::try_from(LARGE)? + SMALL, PODS.len()), "{stored:?}");
        self.whole = self.contents("whole");
        Ok(())
    }

    /// One backup, whose leader is killed.
    fn round(&mut self, name: &str, moment: Moment, is_taken: bool) -> anyhow::Result<BackupPhase> {
        if is_taken {
            self.runtime.block_on(self.stranger.take(&self.s3, name))?;
        }
        let told = self.told().len();
        create(&self.berth, &[backup(name, self.spec.clone())]);
        // One that is killed three times is given up.
        let kills = match self.dice.roll(16) {
            0 => 3,
            1..=3 => 2,
            _ => 1,
        };
        for kill in 1..=kills {
            let is_over = self.await_moment(name, moment, told, kill)?;
            if is_over && kill > 1 {
                break;
            }
            let most = if kill == 1 && moment == Moment::Created { 5000 } else { 500 };
            let later = u64::try_from(self.dice.roll(most))?;
            // The moment itself, not a wait for a condition.
            std::thread::sleep(Duration::from_millis(later));
            let (kubectl, namespace) = (self.berth.kubectl().clone(), self.berth.namespace().to_owned());
            self.berth.controller.kill(&kubectl, &namespace)?;
            self.nothing_is_half_visible()?;
            self.berth.controller.process.restart()?;
        }
        let done = self.end_of(name)?;
        self.judge(name, &done, told, is_taken).with_context(|| format!("{:?}", done.status))?;
        let folder = self.folder(name);
        if !is_taken && folder.exists() {
            // Some 20 MB, in each round.
            std::fs::remove_dir_all(folder)?;
        }
        Ok(done.phase())
    }

    /// For the first kill; each one after that comes when the backup runs again. Has it ended?
    fn await_moment(&mut self, name: &str, moment: Moment, told: usize, kill: u32) -> anyhow::Result<bool> {
        wait_for(&format!("{name} to come to be killed after {moment:?}, {kill}"), PATIENCE, || {
            self.berth.ensure_runs()?;
            let found = self.berth.kubectl().backup(self.berth.namespace(), name)?;
            let is_over = found.phase().is_final();
            let has_come = if kill == 1 { self.has_come(name, moment, told) } else { runs(&found) >= kill };
            Ok((is_over || has_come).then_some(is_over))
        })
    }

    fn has_come(&self, name: &str, moment: Moment, told: usize) -> bool {
        let folder = self.folder(name);
        match moment {
            Moment::Kept => folder.join("berth-checkpoint").exists(),
            Moment::Hooked => self.told().len() > told,
            Moment::Stored => folder.join(format!("{name}.tar.gz")).exists(),
            Moment::Created => true,
            Moment::Begun => uploads(&self.s3) != self.stranger.uploads,
            Moment::Shown => folder.join("velero-backup.json").exists(),
        }
    }

    fn end_of(&mut self, name: &str) -> anyhow::Result<Backup> {
        wait_for(&format!("{name} to end"), PATIENCE, || {
            self.berth.ensure_runs()?;
            let found = self.berth.kubectl().backup(self.berth.namespace(), name)?;
            Ok(found.phase().is_final().then_some(found))
        })
    }

    /// `told`: lines of commands before it.
    fn judge(&self, name: &str, done: &Backup, told: usize, is_taken: bool) -> anyhow::Result<()> {
        let annotations = done.metadata.annotations.as_ref();
        ensure!(
            !annotations.is_some_and(|all| all.contains_key(keys::FROZEN)),
            "pods are on record as frozen"
        );
        self.nothing_stays_frozen(told)?;
        self.nothing_is_half_visible()?;
        self.stranger.is_left_alone(&self.s3)?;
        let shown = self.folder(name).join("velero-backup.json");
        match done.phase() {
            BackupPhase::Completed | BackupPhase::PartiallyFailed if !is_taken => {
                let stored = self.contents(name);
                ensure!(stored == self.whole, "not as undisturbed: {:?}", difference(&self.whole, &stored));
                let shown: Value = serde_json::from_slice(&std::fs::read(&shown)?)?;
                ensure!(shown["status"]["phase"] == done.phase().as_str(), "readers see {}", shown["status"]);
                let progress =
                    done.status.as_ref().and_then(|status| status.progress).context("no progress")?;
                let items = archive::items(&self.folder(name).join(format!("{name}.tar.gz"))).len();
                let items = i64::try_from(items).ok();
                ensure!((progress.total_items, progress.items_backed_up) == (items, items), "{progress:?}");
            }
            BackupPhase::Failed => {
                ensure!(!reason(done).is_empty(), "it does not say why");
                let archive = self.folder(name).join(format!("{name}.tar.gz"));
                ensure!(!archive.exists() && !shown.exists(), "it has left more than its log");
            }
            phase => bail!("it ended {}", phase.as_str()),
        }
        Ok(())
    }

    /// A command that began something is followed by the one that undoes it.
    fn nothing_stays_frozen(&self, told: usize) -> anyhow::Result<()> {
        let all = self.told();
        let lines = all.get(told..).unwrap_or_default();
        for pod in PODS {
            let last = |word: &str| lines.iter().rposition(|line| *line == format!("{word}-{pod}"));
            ensure!(last("froze") <= last("thawed"), "{pod} stays frozen: {lines:?}");
        }
        Ok(())
    }

    /// Whatever readers find has its archive.
    fn nothing_is_half_visible(&self) -> anyhow::Result<()> {
        for folder in std::fs::read_dir(self.s3.file(&format!("{PREFIX}/backups")))? {
            let folder = folder?;
            let name = folder.file_name().to_string_lossy().into_owned();
            let has = |file: &str| folder.path().join(file).exists();
            let is_whole = !has("velero-backup.json") || has(&format!("{name}.tar.gz"));
            ensure!(is_whole, "{name} is visible without its archive");
        }
        Ok(())
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.s3.file(&format!("{PREFIX}/backups/{name}"))
    }

    fn told(&self) -> Vec<String> {
        Place(&self.hooks).told()
    }

    /// What is in its archive, each path once.
    fn contents(&self, name: &str) -> BTreeMap<String, u64> {
        let entries = archive::entries(&self.folder(name).join(format!("{name}.tar.gz")));
        let digest = |content: Vec<u8>| {
            let mut hasher = DefaultHasher::new();
            content.hash(&mut hasher);
            hasher.finish()
        };
        entries.into_iter().map(|(path, content)| (path, digest(content))).collect()
    }
}

/// How often it was run so far.
fn runs(backup: &Backup) -> u32 {
    let annotations = backup.metadata.annotations.as_ref();
    let runs = annotations.and_then(|annotations| annotations.get(keys::RUNS)?.parse::<Runs>().ok());
    runs.map_or(0, |runs| runs.all)
}

/// Some paths that are in one and not in the other, or not the same.
fn difference<'a>(one: &'a BTreeMap<String, u64>, other: &'a BTreeMap<String, u64>) -> BTreeSet<&'a String> {
    let paths = one.keys().chain(other.keys());
    paths.filter(|path| one.get(*path) != other.get(*path)).take(10).collect()
}

/// Uploads in parts that are neither complete nor given up, where versitygw keeps them: a folder
/// for each key, and one for each upload.
fn uploads(s3: &S3) -> BTreeSet<PathBuf> {
    let inside = |folder: PathBuf| {
        let entries = std::fs::read_dir(folder).into_iter().flatten();
        entries.filter_map(|entry| Some(entry.ok()?.path()))
    };
    inside(s3.file(".sgwtmp/multipart")).flat_map(inside).collect()
}

/// Another user of the bucket.
struct Stranger {
    /// What is where.
    files: Vec<(PathBuf, String)>,
    upload: Box<dyn MultipartUpload>,
    uploads: BTreeSet<PathBuf>,
}

impl Stranger {
    async fn come(s3: &S3) -> anyhow::Result<Self> {
        let store = s3.store()?;
        let mut upload = store.put_multipart(&Path::from(STRANGE_UPLOAD)).await?;
        upload.put_part(vec![7; STRANGE_PART].into()).await?;
        let uploads = uploads(s3);
        ensure!(uploads.len() == 1, "versitygw keeps uploads elsewhere: {uploads:?}");
        let mut stranger = Self { files: Vec::new(), upload, uploads };
        for (key, content) in STRANGE {
            stranger.put(s3, key, content).await?;
        }
        Ok(stranger)
    }

    async fn put(&mut self, s3: &S3, key: &str, content: &str) -> anyhow::Result<()> {
        s3.store()?.put(&Path::from(key), content.to_owned().into()).await?;
        self.files.push((s3.file(key), content.to_owned()));
        Ok(())
    }

    /// The folder of a backup that we are about to make.
    async fn take(&mut self, s3: &S3, name: &str) -> anyhow::Result<()> {
        let claim =
            json!({"cluster": "another-cluster", "namespace": "velero", "backup": "theirs", "run": "before"});
        let folder = format!("{PREFIX}/backups/{name}");
        self.put(s3, &format!("{folder}/berth-run.json"), &claim.to_string()).await?;
        self.put(s3, &format!("{folder}/{name}-logs.gz"), "the log of a stranger").await
    }

    /// All that they have is as it was, and of ours nothing is under way any more.
    fn is_left_alone(&self, s3: &S3) -> anyhow::Result<()> {
        for (file, content) in &self.files {
            let found = std::fs::read_to_string(file).with_context(|| format!("{}", file.display()))?;
            ensure!(found == *content, "{} is another one", file.display());
        }
        let found = uploads(s3);
        ensure!(found == self.uploads, "uploads under way: {found:?} in place of {:?}", self.uploads);
        Ok(())
    }

    /// Completes the stranger's upload, which no run has aborted.
    async fn go(&mut self, s3: &S3) -> anyhow::Result<()> {
        self.upload.complete().await?;
        let found = s3.store()?.head(&Path::from(STRANGE_UPLOAD)).await?.size;
        ensure!(found == u64::try_from(STRANGE_PART)?, "{found} bytes of a stranger's upload");
        Ok(())
    }
}
