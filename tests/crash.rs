//! `kill -9` at random moments, again and again, and what a watch saw meanwhile.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use berth::queue::seen::entry;
use berth_api::velero::{Backup, BackupPhase};
use berth_core::glob::Effort;
use berth_core::queue::{QueueEntry, QueueOrder, QueuePhase};
use futures::TryStreamExt;
use jiff::SignedDuration;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use serde_json::{Value, json};

use crate::admission::program;
use crate::support::backup::backup_of;
use crate::support::berth::holder;
use crate::support::wait::wait_until;
use crate::support::{Berth, ControlPlane, Options, PATIENCE, number};

/// Each has its own namespace and its own dice. More of them are more than the API server that most
/// tests share can answer beside the other tests on two cores.
const SEEDS: [u64; 4] = [20_261_121, 20_261_122, 20_261_123, 20_261_124];
const NAME: &str = "crash::two_hundred_crashes_lose_nothing_and_break_no_order";
/// Crashes of one of them.
const ROUNDS: usize = 50;
const SLOTS: u16 = 2;
/// One of so many backs up all types, of which each is listed. The others are as long in the queue,
/// and come to their end by the same steps.
const WHOLE: usize = 3;
/// Replicas and restarted webhooks answer from caches that lag: among backups created within that
/// time of one another any order is fair. On a busy machine so is the order of what the leader has
/// seen late.
const SLACK: SignedDuration = SignedDuration::from_secs(10);
const SETS: [&[&str]; 8] = [
    &["crash-a"],
    &["crash-b"],
    &["crash-c"],
    &["crash-a", "crash-b"],
    &["crash-b", "crash-c"],
    &["crash-*"],
    &["crash-d"],
    &["default"],
];

/// What the watch showed, judged as it comes.
#[derive(Default)]
struct Witness {
    /// By UID: the phase, and what the queue sees while it waits or runs.
    seen: HashMap<String, (BackupPhase, Option<QueueEntry>)>,
    /// By UID: since when a Backup waits that is not held.
    able_since: HashMap<String, Instant>,
    starts: usize,
    faults: Vec<String>,
    log: Vec<String>,
}

impl Witness {
    fn saw(&mut self, backup: &Backup, deleted: bool) {
        let (name, uid, to) = (backup.name_any(), backup.uid().unwrap_or_default(), backup.phase());
        let now = entry(backup, &QueueOrder::default());
        self.log.push(format!("{name} {} {deleted} {:?}", to.as_str(), now.as_ref().map(|e| e.position)));
        if deleted {
            self.seen.remove(&uid);
            self.able_since.remove(&uid);
            return;
        }
        let from = self.seen.get(&uid).map(|(phase, _)| *phase);
        if !is_legal(from, to) {
            self.faults.push(format!("{name} went from {from:?} to {to:?}"));
        }
        if from != Some(to) && to == BackupPhase::ReadyToStart {
            self.starts += 1;
            if let Some(started) = &now {
                self.check_order(started);
            }
        }
        if now.as_ref().is_some_and(|e| e.phase == QueuePhase::Queued && !e.held && !e.canceled) {
            self.able_since.entry(uid.clone()).or_insert_with(Instant::now);
        } else {
            self.able_since.remove(&uid);
        }
        self.seen.insert(uid, (to, now));
        let running: Vec<&QueueEntry> =
            self.seen.values().filter_map(|(_, e)| e.as_ref()).filter(|e| e.phase.is_running()).collect();
        if running.len() > usize::from(SLOTS) {
            self.faults.push(format!("{} run at once", running.len()));
        }
        for (i, a) in running.iter().enumerate() {
            for b in running.iter().skip(i + 1) {
                if a.namespaces.meets(&b.namespaces, &Effort::of_decision()).is_some() {
                    self.faults.push(format!("{} and {} overlap and run together", a.name, b.name));
                }
            }
        }
    }

    /// Has a Backup that shares a namespace with `started` waited since long before it?
    fn check_order(&mut self, started: &QueueEntry) {
        let since = |e: &QueueEntry| e.enqueued_at.unwrap_or(e.created_at);
        for waiting in self.seen.values().filter_map(|(_, e)| e.as_ref()) {
            let able =
                self.able_since.get(&waiting.uid).is_some_and(|since| since.elapsed() > SLACK.unsigned_abs());
            let is_passed = able
                && waiting.uid != started.uid
                && since(waiting) + SLACK < since(started)
                && waiting.namespaces.meets(&started.namespaces, &Effort::of_decision()).is_some();
            if is_passed {
                let both = |line: &&String| line.contains(&started.name) || line.contains(&waiting.name);
                let log: Vec<&String> = self.log.iter().filter(both).collect();
                self.faults.push(format!("{} started before {}: {log:#?}", started.name, waiting.name));
            }
        }
    }
}

fn is_legal(from: Option<BackupPhase>, to: BackupPhase) -> bool {
    use BackupPhase::{Failed, FailedValidation, InProgress, New, Queued, ReadyToStart};
    match (from, to) {
        (None, New | Queued) => true,
        (Some(from), to) if from == to => true,
        (Some(New), Queued | Failed) | (Some(Queued), ReadyToStart | Failed) => true,
        (Some(ReadyToStart), InProgress | Failed | FailedValidation) => true,
        (Some(InProgress), to) => to.is_final(),
        _ => false,
    }
}

/// Random enough, and the same at every run.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap_or_default() % sides
    }
}

async fn watch(api: Api<Backup>, from: String, witness: Arc<Mutex<Witness>>) -> anyhow::Result<()> {
    let mut version = from;
    loop {
        let mut events = std::pin::pin!(api.watch(&WatchParams::default().timeout(290), &version).await?);
        while let Some(event) = events.try_next().await? {
            let (backup, deleted) = match event {
                WatchEvent::Added(backup) | WatchEvent::Modified(backup) => (backup, false),
                WatchEvent::Deleted(backup) => (backup, true),
                WatchEvent::Bookmark(mark) => {
                    version = mark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(error) => anyhow::bail!("the watch failed: {error:?}"),
            };
            version = backup.resource_version().unwrap_or_default();
            witness.lock().unwrap_or_else(PoisonError::into_inner).saw(&backup, deleted);
        }
    }
}

#[test]
fn two_hundred_crashes_lose_nothing_and_break_no_order() {
    let plane = ControlPlane::shared().unwrap();
    for name in ["a", "b", "c", "d"] {
        plane.kubectl().run(&["create", "namespace", &format!("crash-{name}")]).unwrap();
    }
    std::thread::scope(|scope| {
        let run = |seed: u64| {
            let mut options = Options::new(program(), &format!("crash-of-{seed}"));
            options.concurrent_backups = SLOTS;
            // A sync would bring back what a disturbance deletes.
            options.controller_args.push("--backup-sync-period=0s".to_owned());
            let mut berth = Berth::start(plane, options).unwrap();
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let alone = || {
                format!(
                    "BERTH_SEED={seed} cargo test --locked --workspace --test main -- --nocapture --exact {NAME}"
                )
            };
            runtime.block_on(crash(&mut berth, seed)).with_context(alone).unwrap();
        };
        let seeds = match number("BERTH_SEED", 0) {
            0 => SEEDS.to_vec(),
            one => vec![one],
        };
        for seed in seeds {
            let named = std::thread::Builder::new().name(format!("crash-of-{seed}"));
            named.spawn_scoped(scope, move || run(seed)).unwrap();
        }
    });
}

async fn crash(berth: &mut Berth, seed: u64) -> anyhow::Result<()> {
    let mut other = berth.start_another_controller("controller-2")?;
    let (kubectl, namespace) = (berth.kubectl().clone(), berth.namespace().to_owned());
    let api: Api<Backup> = Api::namespaced(berth.plane().client().await?, &namespace);
    let from = api.list(&ListParams::default().limit(1)).await?.metadata.resource_version.unwrap_or_default();
    let witness = Arc::new(Mutex::new(Witness::default()));
    let watching = tokio::spawn(watch(api.clone(), from, Arc::clone(&witness)));
    let look = || witness.lock().unwrap_or_else(PoisonError::into_inner);
    let mut dice = Dice(seed);
    let mut created = 0_usize;
    let begun = Instant::now();
    for round in 0..ROUNDS {
        for _ in 0..=dice.roll(3) {
            let mut made = backup_of(&format!("crash-{created:03}"), SETS[dice.roll(SETS.len())]);
            if !created.is_multiple_of(WHOLE) {
                made["spec"]["includedResources"] = json!(["configmaps"]);
            }
            created += 1;
            api.create(&PostParams::default(), &serde_json::from_value(made)?).await?;
        }
        disturb(&api, &mut dice, created).await?;
        let starts = look().starts;
        // Something must move between two crashes, or nothing is ever in the middle of anything.
        wait_until(&format!("a start after crash {round}"), PATIENCE, async || {
            anyhow::ensure!(!watching.is_finished(), "the watch has ended");
            let witness = look();
            Ok((witness.starts > starts || witness.able_since.is_empty()).then_some(()))
        })
        .await?;
        tokio::time::sleep(Duration::from_millis(u64::try_from(dice.roll(250))?)).await;
        let victim = match dice.roll(5) {
            0 => &mut berth.webhook,
            1 | 2 => &mut other,
            _ => &mut berth.controller,
        };
        if victim.kill(&kubectl, &namespace)? && dice.roll(2) == 0 {
            // The next leader is one that has watched, and none that reads everything anew.
            wait_until("the other one to lead", PATIENCE, async || {
                Ok((!holder(&kubectl, &namespace)?.is_empty()).then_some(()))
            })
            .await?;
        }
        victim.process.restart()?;
        anyhow::ensure!(look().faults.is_empty(), "after crash {round}: {:#?}", look().faults);
    }
    let what = format!("all {created} backups to end");
    let ended = wait_until(&what, PATIENCE, async || {
        anyhow::ensure!(!watching.is_finished(), "the watch has ended");
        let all: BTreeMap<String, Backup> =
            api.list(&ListParams::default()).await?.into_iter().map(|b| (b.name_any(), b)).collect();
        // What is held in the end is never released.
        let held =
            |b: &Backup| b.phase() == BackupPhase::Queued && b.annotations().contains_key("berth.dev/hold");
        let over = |b: &Backup| b.phase().is_final() || held(b);
        // The watch has shown it all, too.
        let witness = look();
        let judged = |b: &Backup| {
            witness.seen.get(&b.uid().unwrap_or_default()).is_some_and(|(phase, _)| *phase == b.phase())
        };
        Ok(all.values().all(|b| over(b) && judged(b)).then_some(all))
    })
    .await?;
    watching.abort();
    let witness = look();
    anyhow::ensure!(witness.faults.is_empty(), "{:#?}\n{}", witness.faults, witness.log.join("\n"));
    let count = |phase: BackupPhase| ended.values().filter(|b| b.phase() == phase).count();
    let completed = count(BackupPhase::Completed);
    println!(
        "{ROUNDS} crashes in {:.0?}: {created} created, {completed} completed, {} failed, {} starts",
        begun.elapsed(),
        count(BackupPhase::Failed),
        witness.starts
    );
    // Many are deleted, canceled or held, and a crash may end a run for the third time.
    anyhow::ensure!(completed > created / 10, "only {completed} of {created} completed");
    for (name, backup) in &ended {
        let stored = berth.archives().join("backups").join(name).join("velero-backup.json").exists();
        anyhow::ensure!(
            stored == (backup.phase() == BackupPhase::Completed),
            "{name} is {:?}, stored: {stored}",
            backup.status
        );
        let reason = backup.status.as_ref().and_then(|s| s.failure_reason.as_ref());
        anyhow::ensure!(
            backup.phase() != BackupPhase::Failed || reason.is_some(),
            "{name} failed without a reason"
        );
    }
    Ok(())
}

/// People delete, cancel, hold and release, in whatever phase a backup happens to be.
async fn disturb(api: &Api<Backup>, dice: &mut Dice, created: usize) -> anyhow::Result<()> {
    let name = format!("crash-{:03}", created - 1 - dice.roll(created.min(4)));
    let annotate = |key: &str, value: Value| json!({"metadata": {"annotations": {key: value}}});
    let patch = match dice.roll(12) {
        0 => {
            let deleted = api.delete(&name, &DeleteParams::default()).await;
            return ignore_missing(deleted.map(|_| ()));
        }
        1 => annotate("berth.dev/cancel", json!("true")),
        2 => annotate("berth.dev/hold", json!("true")),
        3 | 4 => annotate("berth.dev/hold", Value::Null),
        _ => return Ok(()),
    };
    ignore_missing(api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.map(|_| ()))
}

fn ignore_missing(answer: Result<(), kube::Error>) -> anyhow::Result<()> {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => Ok(other?),
    }
}
