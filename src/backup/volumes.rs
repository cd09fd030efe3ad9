//! The data of volumes: how each is backed up (`berth_core::volume` decides), and what becomes of
//! it.
//!
//! Pods enter first ([`Volumes::plan_pod`]): the files of some of their volumes are backed up by
//! node-agents ([`files`]). Then claims enter ([`Volumes::plan_claim`]): of some a CSI snapshot is
//! taken ([`snapshots`]), and the claim is stored when its snapshot is ready, because it names it.
//! What belongs to a pod with hooks is taken between its hooks ([`Volumes::take_frozen`]); all other
//! data is taken by [`Volumes::run`], side by side with the lists. [`outcomes`] keeps what became of
//! each claim, and [`clean`] removes what outlives a run.

pub mod clean;
pub mod files;
pub mod outcomes;
mod read;
pub mod snapshots;
mod watched;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use berth_api::GoDuration;
use berth_api::keys::{
    BACKUP_VOLUMES, CLAIM_SNAPSHOT_CLASS, DEFAULT_SNAPSHOT_CLASS, EXCLUDE_VOLUMES, POD_VOLUME_TIMEOUT,
    label_value,
};
use berth_api::velero::BackupSpec;
use berth_core::policy::volume::{VolumePolicy, action};
use berth_core::selection::{Fate as TypeFate, ResourceType};
use berth_core::violation::tellable;
use berth_core::volume::class::{Class, choose};
use berth_core::volume::{
    Claim, Decision, Lack, Obstacle, OfPod, PodVolume, Wish, is_asked_for, names, of_claim, of_pod,
};
use futures::StreamExt as _;
use futures::future::{BoxFuture, join_all};
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::{Client, ResourceExt as _};
use memchr::memmem;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{OnceCell, Semaphore, mpsc};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::archive::{Batch, Item};
use super::engine::Engine;
use super::inputs::Cluster;
use super::ledger::PageId;
use super::list::{ListError, ListedObject, Lister};
use super::log::{About, BackupLog};
use super::operations::{MoveData, Moved};
use super::prepare::Prepared;
use super::related::{Related, is_name, key};
use super::status::BackupWriter;
use crate::patch::digest;
use crate::text::{chain, few};
use crate::write::Answer;
use clean::insist;
use files::{FileClaim, FilePod, FileVolume, Repository};
use outcomes::{Fate, Outcome, Outcomes};
pub use read::claims;
use read::{FoundClaim, FoundPod, FoundVolume, VolumeTraits, with_snapshot};
use snapshots::{Ask, Cut, Uncut};
use watched::{Files, Shown, Snapshots, Watched};

/// Snapshots of claims without hooks that are being cut at one time.
const CUTS: usize = 32;
/// Pods without hooks whose files are backed up at one time. Node-agents have limits of their own.
const PODS: usize = 256;
/// Claims and pods whose data is under way, most of which only wait.
const UNDER_WAY: usize = 4096;
/// Jobs that may wait.
const JOBS: usize = 1024;
/// Most volumes of which the traits are kept.
const TRAITS: usize = 100_000;
/// `spec.csiSnapshotTimeout` of a Backup that has none.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(600);
/// Nothing is waited for longer, whatever a Backup says.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);
/// Parts of a VolumeSnapshotClass's group, version and kind.
const CLASSES: [&str; 3] = ["snapshot.storage.k8s.io", "v1", "VolumeSnapshotClass"];

/// How the data of volumes is taken where a Backup does not say it.
#[derive(Clone)]
pub struct Defaults {
    /// For watches, which may be silent for long.
    pub watches: Client,
    /// `defaultVolumesToFsBackup`.
    pub files: bool,
    /// `snapshotMoveData`.
    pub moves: bool,
    /// How long a PodVolumeBackup may take.
    pub files_timeout: Duration,
}

/// What is needed to take the data of volumes.
pub struct Access {
    pub client: Client,
    /// For watches, which may be silent for long.
    pub watches: Client,
    pub lister: Lister,
    /// Of the Backup.
    pub namespace: String,
    pub backup: String,
    pub uid: String,
    pub annotations: BTreeMap<String, String>,
    pub location: String,
    /// The run that has the Backup.
    pub run: String,
    /// The cluster has the kinds of snapshots.
    pub serves_snapshots: bool,
    pub snapshot_timeout: Duration,
    pub files_timeout: Duration,
    /// `uploaderConfig.parallelFilesUpload`.
    pub parallel_files: Option<i64>,
}

/// [`MoveData`] behind a reference.
trait MoveLater: Send + Sync {
    fn move_later(&self, moved: Moved) -> BoxFuture<'_, Result<(), String>>;
}

impl<M: MoveData> MoveLater for M {
    fn move_later(&self, moved: Moved) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.move_data(moved))
    }
}

/// The data of one run's volumes.
pub struct Volumes<'a> {
    wish: Wish,
    policies: Vec<VolumePolicy>,
    /// Label of claims of which a group snapshot should be taken.
    group_key: String,
    /// The backup takes claims.
    takes_claims: bool,
    log: &'a BackupLog,
    outcomes: &'a Outcomes,
    access: Option<Access>,
    mover: Option<&'a dyn MoveLater>,
    seen: Mutex<Seen>,
    classes: OnceCell<Vec<Class>>,
    snapshots: OnceCell<Watched<Snapshots>>,
    files: OnceCell<Watched<Shown<Files>>>,
    /// Nodes with a node-agent.
    agents: Mutex<BTreeSet<String>>,
    repositories: Mutex<HashMap<String, Repository>>,
    jobs: mpsc::Sender<Job>,
    under_way: TaskTracker,
}

#[derive(Default)]
struct Seen {
    /// Claims whose files are backed up, each with the pod that does it.
    filed: BTreeMap<String, String>,
    /// Claims of which a snapshot is being taken.
    cut: BTreeSet<String>,
    /// What is known of the volumes that have passed.
    traits: BTreeMap<String, VolumeTraits>,
    /// Claims without data, by reason: those that were asked for, and those that were not.
    asked: BTreeMap<Lack, Vec<String>>,
    unasked: BTreeMap<Lack, Vec<String>>,
    /// Claims that ask for a group snapshot, by namespace and group.
    grouped: BTreeMap<String, Vec<String>>,
    lost: usize,
}

/// Data that is to be taken.
pub struct Job {
    work: Work,
    /// Dropped when it is done.
    _under_way: TaskTrackerToken,
}

enum Work {
    Claim(Box<Planned>),
    /// The snapshot is cut, or is not.
    Settle(Box<Planned>, Result<Cut, Uncut>),
    Files(FilePod),
}

/// A claim that is stored when its snapshot is ready.
pub struct Planned {
    pub kind: Arc<ResourceType>,
    /// No page of a list.
    pub page: PageId,
    pub item: Item,
    ask: Ask,
    under_way: TaskTrackerToken,
}

impl<'a> Volumes<'a> {
    /// Also returns the jobs, for [`Volumes::run`].
    pub fn new(
        wish: Wish,
        policies: Vec<VolumePolicy>,
        (group_key, takes_claims): (String, bool),
        log: &'a BackupLog,
        outcomes: &'a Outcomes,
        access: Option<Access>,
    ) -> (Self, mpsc::Receiver<Job>) {
        let (jobs, waiting) = mpsc::channel(JOBS);
        let under_way = TaskTracker::new();
        // A closed tracker still hands out tokens; only a closed one can be waited for.
        under_way.close();
        let new = Self {
            wish,
            policies,
            group_key,
            takes_claims,
            log,
            outcomes,
            access,
            mover: None,
            seen: Mutex::default(),
            classes: OnceCell::new(),
            snapshots: OnceCell::new(),
            files: OnceCell::new(),
            agents: Mutex::default(),
            repositories: Mutex::default(),
            jobs,
            under_way,
        };
        (new, waiting)
    }

    /// Of a backup that can take no data.
    #[cfg(test)]
    pub fn idle(
        policies: Vec<VolumePolicy>,
        log: &'a BackupLog,
        outcomes: &'a Outcomes,
    ) -> (Self, mpsc::Receiver<Job>) {
        Self::new(Wish::default(), policies, (String::new(), true), log, outcomes, None)
    }

    /// Moves the data of snapshots by `mover`.
    #[must_use]
    pub fn moved_by(self, mover: &'a impl MoveData) -> Self {
        Self { mover: Some(mover), ..self }
    }

    /// Notes a volume that passes.
    pub fn note(&self, kind: &ResourceType, found: &ListedObject) {
        if !Related::Volume.is(kind) {
            return;
        }
        let Ok(object) = serde_json::from_slice::<Value>(&found.json) else { return };
        let traits = FoundVolume::read(&object).traits;
        let mut seen = self.seen.lock();
        if seen.traits.len() < TRAITS {
            seen.traits.insert(found.name.clone(), traits);
        }
    }

    /// Decides on the volumes of a pod, in the order in which pods come: the first pod that wants
    /// the files of a claim has them backed up.
    ///
    /// # Errors
    /// When the API server is gone.
    pub async fn plan_pod(&self, found: &ListedObject) -> Result<Option<FilePod>, ListError> {
        let may_ask = self.wish.files
            || !self.policies.is_empty()
            || memmem::find(&found.json, BACKUP_VOLUMES.as_bytes()).is_some();
        if !may_ask {
            return Ok(None);
        }
        // An unreadable pod asks for nothing that could be served.
        let Ok(object) = serde_json::from_slice::<Value>(&found.json) else { return Ok(None) };
        let pod = FoundPod::read(&object, BACKUP_VOLUMES, EXCLUDE_VOLUMES);
        let namespace = found.namespace.clone().unwrap_or_default();
        for name in names(&pod.named).filter(|name| !pod.volumes.iter().any(|volume| volume.name == *name)) {
            let message = format!(
                "pod {} has no volume {}, which its annotation {BACKUP_VOLUMES} names",
                found.name,
                tellable(name)
            );
            self.log.warning(&About::Namespace(&namespace), "pods", &message);
        }
        let mut taken = Vec::new();
        for volume in &pod.volumes {
            if let Some(volume) = self.plan_volume(found, &pod, volume).await? {
                taken.push(volume);
            }
        }
        Ok((!taken.is_empty()).then(|| FilePod {
            namespace,
            name: found.name.clone(),
            uid: pod.uid,
            node: pod.node,
            volumes: taken,
        }))
    }

    async fn plan_volume(
        &self,
        found: &ListedObject,
        pod: &FoundPod,
        volume: &read::PodVolume,
    ) -> Result<Option<FileVolume>, ListError> {
        let namespace = found.namespace.as_deref();
        let mut about = PodVolume {
            name: &volume.name,
            kind: &volume.source.kind,
            policy: None,
            is_named: names(&pod.named).any(|name| name == volume.name),
            is_excluded: names(&pod.excluded).any(|name| name == volume.name),
            is_of_untaken_claim: volume.claim.is_some() && !self.takes_claims,
            is_stored: false,
            is_host_path: false,
            is_device: volume.is_device,
            is_mounted: volume.is_mounted,
            pod: pod.phase,
        };
        let Some(claim) = &volume.claim else {
            about.policy = action(&self.policies, &volume.source);
            return Ok(match of_pod(&self.wish, &about) {
                OfPod::Files => Some(FileVolume { name: volume.name.clone(), claim: None }),
                OfPod::Skip(obstacle) => {
                    self.tell_obstacle(found, &about, obstacle);
                    None
                }
                OfPod::No => None,
            });
        };
        if self.policies.is_empty() && of_pod(&self.wish, &about) == OfPod::No {
            return Ok(None);
        }
        let claim_key = key(namespace, claim);
        let Some(read) = self.read_claim(namespace, claim).await? else { return Ok(None) };
        let bound = match &read.bound {
            Some(name) => self.read_volume(name).await?,
            None => None,
        };
        let of_policy = read.with(bound.as_ref());
        about.policy = action(&self.policies, &of_policy);
        about.is_host_path = of_policy.kind == "hostPath";
        {
            let pod = key(namespace, &found.name);
            let mut seen = self.seen.lock();
            about.is_stored = self.outcomes.has_snapshot(&claim_key)
                || seen.cut.contains(&claim_key)
                || seen.filed.get(&claim_key).is_some_and(|by| *by != pod);
            match of_pod(&self.wish, &about) {
                OfPod::Files => {
                    seen.filed.insert(claim_key.clone(), pod);
                }
                OfPod::Skip(obstacle) => {
                    drop(seen);
                    self.tell_obstacle(found, &about, obstacle);
                    return Ok(None);
                }
                OfPod::No => return Ok(None),
            }
        }
        let traits = bound.map(|bound| bound.traits);
        let volume_name = read.bound.unwrap_or_default();
        self.settle(&claim_key, Outcome { volume: volume_name, traits, fate: Fate::Files });
        let claim = FileClaim { key: claim_key, name: claim.clone(), uid: read.uid };
        Ok(Some(FileVolume { name: volume.name.clone(), claim: Some(claim) }))
    }

    fn tell_obstacle(&self, found: &ListedObject, volume: &PodVolume<'_>, obstacle: Obstacle) {
        let message =
            format!("volume {} of pod {} is not backed up by files: {obstacle}", volume.name, found.name);
        let about = found.namespace.as_deref().map_or(About::Cluster, About::Namespace);
        if !obstacle.is_loss() {
            self.log.info(&message);
        } else if volume.is_named || volume.policy.is_some() {
            self.log.error(&about, "pods", &message);
        } else {
            self.log.warning(&about, "pods", &message);
        }
    }

    /// Has the files of a pod backed up that no hook waits for.
    ///
    /// # Errors
    /// When the run takes nothing more.
    pub async fn take_later(&self, pod: FilePod) -> Result<(), ListError> {
        self.send(Work::Files(pod), self.under_way.token()).await
    }

    /// Decides on a claim. `None`: it is stored as it is, at once.
    ///
    /// # Errors
    /// When the API server is gone.
    pub async fn plan_claim(
        &self,
        kind: &Arc<ResourceType>,
        page: PageId,
        found: &ListedObject,
    ) -> Result<Option<Planned>, ListError> {
        // An unreadable claim is reported where it is read for its references.
        let Ok(object) = serde_json::from_slice::<Value>(&found.json) else { return Ok(None) };
        let claim = FoundClaim::read(&object);
        let (namespace, claim_key) =
            (found.namespace.clone().unwrap_or_default(), key(found.namespace.as_deref(), &found.name));
        let volume_name = claim.bound.clone().unwrap_or_default();
        let by_files = self.seen.lock().filed.contains_key(&claim_key);
        let mut about = Claim {
            policy: None,
            by_files,
            is_bound: claim.bound.is_some(),
            // As if everything were there: is there anything to look at?
            is_csi: true,
            has_class: true,
        };
        let mut decision = of_claim(&self.wish, &about);
        let (mut bound, mut class) = (None, None);
        let may_take = matches!(decision, Decision::Snapshot | Decision::Move);
        let classes = if may_take || !self.policies.is_empty() { self.classes().await } else { &[] };
        if let Some(name) = &claim.bound
            && (!self.policies.is_empty() || (may_take && !classes.is_empty()))
        {
            bound = self.read_volume(name).await?;
        }
        let volume = claim.with(bound.as_ref());
        if may_take || !self.policies.is_empty() {
            about.policy = action(&self.policies, &volume);
            let driver = volume.csi.as_ref().map(|csi| csi.driver.as_str()).unwrap_or_default();
            about.is_csi = bound.is_none() || !driver.is_empty();
            class = self.class_for(&claim_key, driver, &claim, classes);
            about.has_class = class.is_some();
            decision = of_claim(&self.wish, &about);
        }
        let outcome = |fate| Outcome {
            volume: volume_name.clone(),
            traits: bound.as_ref().map(|bound| bound.traits.clone()),
            fate,
        };
        let moves = match decision {
            Decision::Skip(why) => {
                self.settle(&claim_key, outcome(Fate::Skipped { reason: why.to_string() }));
                return Ok(None);
            }
            // Its pod has told of it.
            Decision::Files => return Ok(None),
            Decision::Nothing(lack) => {
                let is_asked = is_asked_for(&self.wish, about.policy);
                let fate = Fate::Missing { reason: lack.to_string(), attempted: false };
                self.settle(&claim_key, outcome(fate));
                let mut seen = self.seen.lock();
                let all = if is_asked { &mut seen.asked } else { &mut seen.unasked };
                all.entry(lack).or_default().push(claim_key);
                return Ok(None);
            }
            Decision::Snapshot => false,
            Decision::Move => true,
        };
        if let Some(group) = claim.labels.get(&self.group_key).filter(|group| !group.is_empty()) {
            let group = key(found.namespace.as_deref(), group);
            self.seen.lock().grouped.entry(group).or_default().push(claim_key.clone());
        }
        self.seen.lock().cut.insert(claim_key.clone());
        let ask = Ask {
            claim: claim_key,
            namespace,
            name: found.name.clone(),
            uid: claim.uid,
            labels: claim.labels,
            volume: volume_name,
            traits: bound.map(|bound| bound.traits).unwrap_or_default(),
            storage_class: claim.storage_class,
            driver: volume.csi.map(|csi| csi.driver).unwrap_or_default(),
            class: class.map(|class| class.name.clone()).unwrap_or_default(),
            moves,
        };
        let ListedObject { json, namespace, name, lacks_type, .. } = found;
        // Copied, so that the page that it came in can be freed.
        let json = bytes::Bytes::copy_from_slice(json);
        let item = Item { namespace: namespace.clone(), name: name.clone(), json, lacks_type: *lacks_type };
        let under_way = self.under_way.token();
        Ok(Some(Planned { kind: Arc::clone(kind), page: page.beside(), item, ask, under_way }))
    }

    fn class_for<'c>(
        &self,
        claim_key: &str,
        driver: &str,
        claim: &FoundClaim,
        classes: &'c [Class],
    ) -> Option<&'c Class> {
        let annotation = format!("{CLAIM_SNAPSHOT_CLASS}_{}", driver.to_lowercase());
        let by_backup = self.access.as_ref().and_then(|access| access.annotations.get(&annotation));
        let by_backup = by_backup.map(String::as_str);
        let choice = choose(classes, driver, claim.snapshot_class.as_deref(), by_backup);
        if let (Some(ignored), Some(class)) = (choice.ignored, choice.class) {
            let message = format!(
                "the annotation {CLAIM_SNAPSHOT_CLASS} leads to no VolumeSnapshotClass {ignored} of driver {driver}: {} is used for claim {claim_key}",
                class.name
            );
            self.log.warning(&About::Cluster, "persistentvolumeclaims", &message);
        }
        choice.class
    }

    /// Takes a claim's snapshot that no hook waits for, and stores the claim then.
    ///
    /// # Errors
    /// When the run takes nothing more.
    pub async fn take_claim(&self, planned: Planned) -> Result<(), ListError> {
        let under_way = planned.under_way.clone();
        self.send(Work::Claim(Box::new(planned)), under_way).await
    }

    /// Takes the data of what a block of pods uses, while the pods are frozen: all snapshots at one
    /// time until they are cut, and all files until they are stored. The claims are stored when
    /// their snapshots are ready, for which nobody waits here.
    pub async fn take_frozen(&self, claims: Vec<Planned>, pods: Vec<FilePod>) {
        let cuts = claims.into_iter().map(|planned| async move {
            let cut = self.cut(&planned.ask).await;
            let under_way = planned.under_way.clone();
            // If nothing takes it the backup ends early.
            let _ = self.send(Work::Settle(Box::new(planned), cut), under_way).await;
        });
        let files = pods.iter().map(|pod| self.take_files(pod));
        tokio::join!(join_all(cuts), join_all(files));
    }

    async fn send(&self, work: Work, under_way: TaskTrackerToken) -> Result<(), ListError> {
        let job = Job { work, _under_way: under_way };
        self.jobs.send(job).await.map_err(|_| ListError::NobodyTakes)
    }

    /// Takes the data that is asked for, and stores the claims that wait for it. Never ends.
    pub async fn run(&self, mut jobs: mpsc::Receiver<Job>, batches: mpsc::Sender<Batch>) {
        let (cuts, pods) = (Semaphore::new(CUTS), Semaphore::new(PODS));
        let (cuts, pods, batches) = (&cuts, &pods, &batches);
        let jobs = futures::stream::poll_fn(|context| jobs.poll_recv(context));
        let done = jobs.for_each_concurrent(UNDER_WAY, |job| async move {
            let Job { work, _under_way } = job;
            // The semaphores are never closed.
            match work {
                Work::Claim(planned) => {
                    let permit = cuts.acquire().await;
                    let cut = self.cut(&planned.ask).await;
                    drop(permit);
                    self.store(*planned, cut, batches).await;
                }
                Work::Settle(planned, cut) => self.store(*planned, cut, batches).await,
                Work::Files(pod) => {
                    let _permit = pods.acquire().await;
                    self.take_files(&pod).await;
                }
            }
        });
        done.await;
        std::future::pending::<()>().await;
    }

    /// Stores a claim when its snapshot is ready, or without one.
    async fn store(&self, planned: Planned, cut: Result<Cut, Uncut>, batches: &mpsc::Sender<Batch>) {
        let Planned { kind, page, mut item, ask, under_way } = planned;
        let taken = match cut {
            Ok(cut) => self.ready(&ask, &cut).await.map_err(|why| Uncut { why, attempted: true }),
            Err(uncut) => Err(uncut),
        };
        let outcome = |fate| Outcome { volume: ask.volume.clone(), traits: Some(ask.traits.clone()), fate };
        let kept = match taken {
            Ok(taken) if ask.moves => self.hand_over(&ask, &taken).await.map(|()| Fate::Moved),
            Ok(taken) => {
                let backup = self.access.as_ref().map(|access| label_value(&access.backup, digest));
                let json = with_snapshot(&item.json, &taken.name, taken.size, &backup.unwrap_or_default());
                if let Some(json) = json {
                    item.json = json.into();
                }
                self.log.info(&format!("took snapshot {} of claim {}", taken.name, ask.claim));
                Ok(Fate::Snapshot(taken))
            }
            Err(uncut) => Err(uncut),
        };
        let fate = kept.unwrap_or_else(|Uncut { why, attempted }| {
            let message = format!("claim {} is stored without the data of its volume: {why}", ask.name);
            self.log.lasting_error(&About::Namespace(&ask.namespace), "persistentvolumeclaims", &message);
            Fate::Missing { reason: why, attempted }
        });
        // Before the claim is stored, so that a checkpoint with the claim has it.
        self.settle(&ask.claim, outcome(fate));
        let batch = Batch { kind, page, items: vec![item], packed: None };
        // A closed channel means that the backup ends early.
        let _ = batches.send(batch).await;
        drop(under_way);
    }

    async fn hand_over(&self, ask: &Ask, taken: &outcomes::Taken) -> Result<(), Uncut> {
        let moved = Moved {
            namespace: ask.namespace.clone(),
            claim: ask.name.clone(),
            claim_uid: ask.uid.clone(),
            volume: ask.volume.clone(),
            snapshot: taken.name.clone(),
            content: taken.content.clone(),
            storage_class: ask.storage_class.clone(),
            snapshot_class: ask.class.clone(),
            driver: ask.driver.clone(),
        };
        let done = match &self.mover {
            Some(mover) => mover.move_later(moved).await,
            None => Err("nothing moves data".to_owned()),
        };
        done.map_err(|why| Uncut { why: format!("its snapshot cannot be moved: {why}"), attempted: true })
    }

    fn settle(&self, claim: &str, outcome: Outcome) {
        if !self.outcomes.set(claim, outcome) {
            self.seen.lock().lost += 1;
        }
    }

    /// A token for data that is under way although no job has it yet.
    pub fn begin(&self) -> TaskTrackerToken {
        self.under_way.token()
    }

    /// Waits until all data is taken, or known to be missing.
    pub async fn settled(&self) {
        self.under_way.wait().await;
    }

    /// Keys of the VolumeSnapshots that the archive must hold.
    pub fn snapshot_keys(&self) -> Vec<String> {
        let all = self.outcomes.snapshots().into_iter();
        all.map(|(namespace, taken)| key(Some(&namespace), &taken.name)).collect()
    }

    /// Names of contents and keys of snapshots that were made after the lists began.
    pub fn made(&self) -> BTreeSet<String> {
        self.outcomes.objects()
    }

    /// Whether this run may have made objects in the cluster.
    pub fn has_begun(&self) -> bool {
        self.snapshots.initialized() || self.files.initialized()
    }

    /// What is known of the volumes that have passed, by name.
    pub fn traits(&self) -> BTreeMap<String, VolumeTraits> {
        std::mem::take(&mut self.seen.lock().traits)
    }

    async fn classes(&self) -> &[Class] {
        let read = || async {
            let Some(access) = self.access.as_ref().filter(|access| access.serves_snapshots) else {
                return Vec::new();
            };
            match list_classes(&access.client).await {
                Ok(classes) => classes,
                Err(error) => {
                    let message = format!(
                        "the VolumeSnapshotClasses cannot be listed, so no snapshots are taken: {}",
                        chain(&error)
                    );
                    self.log.error(
                        &About::Cluster,
                        "volumesnapshotclasses.snapshot.storage.k8s.io",
                        &message,
                    );
                    Vec::new()
                }
            }
        };
        self.classes.get_or_init(read).await
    }

    async fn read_claim(&self, namespace: Option<&str>, name: &str) -> Result<Option<FoundClaim>, ListError> {
        let found = self.read(&read::claims(), namespace, name).await?;
        Ok(found.map(|object| FoundClaim::read(&object)))
    }

    async fn read_volume(&self, name: &str) -> Result<Option<FoundVolume>, ListError> {
        let found = self.read(&read::volumes(), None, name).await?;
        Ok(found.map(|object| FoundVolume::read(&object)))
    }

    /// Reads an object that another one names. What cannot be read is an error of the backup.
    async fn read(
        &self,
        kind: &ResourceType,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<Value>, ListError> {
        // Users choose these names, and they become part of a URL.
        let is_plain = |name: &str| {
            is_name(name) && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'))
        };
        let Some(access) = &self.access else { return Ok(None) };
        if !(is_plain(name) && namespace.is_none_or(is_plain)) {
            return Ok(None);
        }
        match access.lister.get(kind, namespace, name).await {
            Ok(found) => Ok(found.and_then(|found| serde_json::from_slice(&found.json).ok())),
            Err(error) if error.is_about_type() => {
                let message = format!(
                    "failed to get {name}, and its data is taken by what else is known: {}; {}",
                    chain(&error),
                    error.way_out(kind)
                );
                self.log.error(&About::Cluster, &kind.qualified(), &message);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Logs what is stored without its data: an error where the backup asks for it, a warning where
    /// it takes what can be taken.
    pub fn tell(&self) {
        let mut seen = self.seen.lock();
        for (lack, claims) in std::mem::take(&mut seen.asked) {
            let message = format!(
                "{} claims are stored without the data of their volumes, which the backup asks for ({}): {lack}",
                claims.len(),
                few(&claims)
            );
            self.log.error(&About::Velero, "persistentvolumeclaims", &message);
        }
        for (lack, claims) in std::mem::take(&mut seen.unasked) {
            let message = format!(
                "{} claims are stored without the data of their volumes ({}): {lack} (snapshotVolumes: false says that this is meant)",
                claims.len(),
                few(&claims)
            );
            self.log.warning(&About::Velero, "persistentvolumeclaims", &message);
        }
        let grouped = std::mem::take(&mut seen.grouped).into_values().filter(|claims| claims.len() > 1);
        let grouped: Vec<String> = grouped.flatten().collect();
        if !grouped.is_empty() {
            let message = format!(
                "{} claims have the label {} ({}): berth takes no group snapshots, so the snapshots of a group are not of one moment; use hooks, or let Velero run the backups (berth install --executor=velero)",
                grouped.len(),
                self.group_key,
                few(&grouped)
            );
            self.log.error(&About::Velero, "persistentvolumeclaims", &message);
        }
        if seen.lost > 0 {
            let message = format!(
                "the file of volume infos lacks {} claims, for which there was no room; use several Backups",
                seen.lost
            );
            self.log.error(&About::Velero, "persistentvolumeclaims", &message);
        }
    }
}

async fn list_classes(client: &Client) -> Result<Vec<Class>, kube::Error> {
    let [group, version, kind] = CLASSES;
    let kind = ApiResource {
        plural: "volumesnapshotclasses".to_owned(),
        ..ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk(group, version, kind))
    };
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    let read = || async { Answer::from(api.list(&ListParams::default()).await) };
    let found = match insist(read).await {
        Ok(found) => found,
        Err(error) if crate::client::is_not_found(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let class = |class: DynamicObject| Class {
        name: class.name_any(),
        driver: class.data["driver"].as_str().unwrap_or_default().to_owned(),
        is_labelled: class.labels().contains_key(CLAIM_SNAPSHOT_CLASS),
        is_default: class.annotations().contains_key(DEFAULT_SNAPSHOT_CLASS),
    };
    Ok(found.items.into_iter().map(class).collect())
}

impl Engine {
    /// The data of a run's volumes, by its effective spec.
    pub(super) fn volumes<'a>(
        &self,
        record: &BackupWriter,
        spec: &BackupSpec,
        cluster: &Cluster,
        prepared: &Prepared,
        (backup, run): (&str, &str),
        log: &'a BackupLog,
        outcomes: &'a Outcomes,
    ) -> (Volumes<'a>, mpsc::Receiver<Job>) {
        let served = |related: Related| cluster.types.iter().any(|kind| related.is(kind));
        let claims = cluster.types.iter().find(|kind| Related::Claim.is(kind));
        let takes_claims = claims.is_some_and(|kind| prepared.selection.fate(kind) != TypeFate::Excluded);
        let length = |duration: GoDuration| duration.get().ok().flatten().map(|length| length.min(LONGEST));
        let annotations = record.object().annotations().clone();
        let files_timeout = annotations.get(POD_VOLUME_TIMEOUT);
        let files_timeout = files_timeout.and_then(|text| length(GoDuration(text.clone())));
        let parallel = spec.uploader_config.as_ref().and_then(|config| config.parallel_files_upload);
        let access = Access {
            client: self.client.clone(),
            watches: self.volumes.watches.clone(),
            lister: self.lister(),
            namespace: self.namespace.clone(),
            backup: backup.to_owned(),
            uid: record.uid().to_owned(),
            location: prepared.location.name_any(),
            run: run.to_owned(),
            serves_snapshots: [Related::Snapshot, Related::SnapshotContent, Related::SnapshotClass]
                .into_iter()
                .all(served),
            snapshot_timeout: spec.csi_snapshot_timeout.clone().and_then(length).unwrap_or(SNAPSHOT_TIMEOUT),
            files_timeout: files_timeout.unwrap_or(self.volumes.files_timeout).min(LONGEST),
            parallel_files: parallel.filter(|files| *files > 0),
            annotations,
        };
        let wish = Wish {
            snapshots: spec.snapshot_volumes,
            files: spec.default_volumes_to_fs_backup == Some(true),
            moves: spec.snapshot_move_data == Some(true),
        };
        let policies = prepared.policies.volumes.clone();
        let groups = (prepared.wanted.group_key.clone(), takes_claims);
        Volumes::new(wish, policies, groups, log, outcomes, Some(access))
    }
}
