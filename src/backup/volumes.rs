//! The data of volumes: how each is backed up (`berth_core::volume` decides), and what becomes of
//! it.
//!
//! Pods enter first ([`RunVolumes::plan_pod`]): the files of some of their volumes are backed up by
//! node-agents ([`files`]). Then claims enter ([`RunVolumes::plan_claim`]): of some a CSI snapshot
//! is taken ([`snapshots`]), of those of a group together (`groups`), and the claim is stored when
//! its snapshot is ready, because it names it. What belongs to a pod with hooks is taken between
//! its hooks ([`RunVolumes::take_frozen`]); all other data is taken by [`RunVolumes::run`], side by
//! side with the lists. [`outcomes`] keeps what became of each claim, and `stored` what the backup
//! says of all. [`clean`] removes snapshots that outlive a run, and [`cancel`] ends what is still
//! read for it.
//!
//! What pods of one block use is of one moment, also if the run ends and another one continues:
//! nothing of it is stored before all of it is taken and noted, and the next run takes over what is
//! noted (`adopt`).

mod access;
mod adopt;
pub mod cancel;
pub mod clean;
pub mod files;
mod group_objects;
mod groups;
mod node_agents;
pub mod objects;
pub mod outcomes;
mod plan;
mod read;
mod rehearse;
pub mod snapshots;
mod stored;
mod told;
mod watched;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use berth_api::keys::label_value;
use berth_core::limits;
use berth_core::policy::volume::VolumePolicy;
use berth_core::selection::ResourceType;
use berth_core::volume::class::SnapshotClass;
use berth_core::volume::group::GroupRefusal;
use berth_core::volume::node_agents::NodeAgents;
use berth_core::volume::{UnstorableReason, VolumeOptions};
use futures::StreamExt as _;
use futures::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::archive::{ArchiveItem, Batch};
use super::ledger::PageId;
use super::list::{ListError, ListedObject};
use super::log::{BackupLog, ResultsHeading};
use super::movement::{MoveData, Moved};
use super::related::{Related, key};
use crate::patch::digest;
pub use access::{VolumeAccess, WaitLimits};
pub(super) use access::{of_spec, serves_snapshots};
use files::FilePod;
use groups::KnownGroup;
use node_agents::Repository;
use outcomes::{ClaimOutcome, EarlierCut, Outcomes, VolumeDataResult};
pub use read::claims;
use read::{FoundVolume, VolumeTraits, with_snapshot};
pub use rehearse::{RehearsedVolume, RehearsedVolumes, VolumeMethod};
use snapshots::{Ask, Cut, NoSnapshot};
use watched::{Snapshots, Watched, WatchedObjects, WatchedPodVolumeBackup};

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

/// [`MoveData`] behind a reference.
trait MoveLater: Send + Sync {
    fn move_later(&self, moved: Moved) -> BoxFuture<'_, Result<String, String>>;

    fn moved_by(&self, claim_uid: &str) -> Option<String>;
}

impl<M: MoveData> MoveLater for M {
    fn move_later(&self, moved: Moved) -> BoxFuture<'_, Result<String, String>> {
        Box::pin(self.move_data(moved))
    }

    fn moved_by(&self, claim_uid: &str) -> Option<String> {
        self.upload_of(claim_uid)
    }
}

/// The data of one run's volumes.
pub struct RunVolumes<'a> {
    wish: VolumeOptions,
    policies: Vec<VolumePolicy>,
    /// Label of claims of which a group snapshot is taken.
    group_key: String,
    /// The backup takes claims.
    takes_claims: bool,
    log: &'a BackupLog,
    outcomes: &'a Outcomes,
    access: Option<VolumeAccess>,
    mover: Option<&'a dyn MoveLater>,
    seen: Mutex<VolumeFindings>,
    classes: OnceCell<Vec<SnapshotClass>>,
    group_classes: OnceCell<Vec<SnapshotClass>>,
    snapshots: OnceCell<Watched<Snapshots>>,
    files: OnceCell<Watched<WatchedObjects<WatchedPodVolumeBackup>>>,
    /// The node-agents that were seen last.
    agents: Mutex<NodeAgents>,
    repositories: Mutex<HashMap<String, Repository>>,
    /// UIDs of pods whose files are being backed up.
    reading: Mutex<BTreeSet<String>>,
    jobs: mpsc::Sender<VolumeJob>,
    settled: mpsc::UnboundedSender<Settle>,
    /// Places of claims in `settled`.
    admitted: Arc<Semaphore>,
    under_way: TaskTracker,
}

#[derive(Default)]
struct VolumeFindings {
    /// Claims whose files are backed up, each with the pod that does it.
    filed: BTreeMap<String, String>,
    /// Claims of which a snapshot is being taken.
    cut: BTreeSet<String>,
    /// Claims of pods that an earlier run has stored between their hooks, each with such a pod.
    past: BTreeMap<String, String>,
    /// What is known of the volumes that have passed.
    traits: BTreeMap<String, VolumeTraits>,
    /// Claims without data, by reason: those that were asked for, and those that were not.
    asked: BTreeMap<UnstorableReason, Vec<String>>,
    unasked: BTreeMap<UnstorableReason, Vec<String>>,
    /// What is known of groups of claims, by namespace and value of the label.
    groups: BTreeMap<String, KnownGroup>,
    /// Claims that no hook waits for and that wait for others of their groups.
    parked: BTreeMap<String, Vec<PlannedClaim>>,
    /// Claims of groups that get a snapshot each.
    ungrouped: BTreeMap<GroupRefusal, BTreeSet<String>>,
    lost: usize,
}

/// Data that is to be taken.
pub struct VolumeJob {
    work: VolumeWork,
    /// Dropped when it is done.
    _under_way: TaskTrackerToken,
}

enum VolumeWork {
    Claim(Box<PlannedClaim>),
    /// Claims of one group.
    Group(Vec<PlannedClaim>),
    Files(FilePod),
}

/// A claim whose snapshot is cut, or is not, while pods were frozen for it.
pub struct Settle {
    planned: PlannedClaim,
    cut: Result<Cut, NoSnapshot>,
    _room: Room,
}

/// What is to be taken, for [`RunVolumes::run`].
pub struct Jobs {
    later: mpsc::Receiver<VolumeJob>,
    /// Apart from the others, which may wait for hours, because frozen pods would wait with them.
    /// Its bound is the room that blocks are given.
    settled: mpsc::UnboundedReceiver<Settle>,
}

/// The place of the claims of one block.
type Room = Option<Arc<OwnedSemaphorePermit>>;

/// The claims of one block, which have room until they are stored, each with the snapshot that an
/// earlier run has cut.
pub struct Admitted {
    claims: Vec<(PlannedClaim, EarlierCut)>,
    room: Room,
}

/// A claim that is stored when its snapshot is ready.
pub struct PlannedClaim {
    pub kind: Arc<ResourceType>,
    /// No page of a list.
    pub page: PageId,
    pub item: ArchiveItem,
    ask: Ask,
    under_way: TaskTrackerToken,
}

impl<'a> RunVolumes<'a> {
    /// Also returns the jobs, for [`RunVolumes::run`].
    pub fn new(
        wish: VolumeOptions,
        policies: Vec<VolumePolicy>,
        (group_key, takes_claims): (String, bool),
        log: &'a BackupLog,
        outcomes: &'a Outcomes,
        access: Option<VolumeAccess>,
    ) -> (Self, Jobs) {
        let (jobs, later) = mpsc::channel(JOBS);
        let (settled, cut) = mpsc::unbounded_channel();
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
            group_classes: OnceCell::new(),
            snapshots: OnceCell::new(),
            files: OnceCell::new(),
            agents: Mutex::default(),
            repositories: Mutex::default(),
            reading: Mutex::default(),
            jobs,
            settled,
            admitted: Arc::new(Semaphore::new(UNDER_WAY)),
            under_way,
        };
        (new, Jobs { later, settled: cut })
    }

    /// Of a backup that can take no data.
    #[cfg(test)]
    pub fn idle(policies: Vec<VolumePolicy>, log: &'a BackupLog, outcomes: &'a Outcomes) -> (Self, Jobs) {
        Self::new(VolumeOptions::default(), policies, (String::new(), true), log, outcomes, None)
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

    /// Has the files of a pod backed up that no hook waits for.
    ///
    /// # Errors
    /// When the run takes nothing more.
    pub async fn take_later(&self, pod: FilePod) -> Result<(), ListError> {
        self.send(VolumeWork::Files(pod), self.under_way.token()).await
    }

    /// Takes a claim's snapshot that no hook waits for, and stores the claim then. A claim of a
    /// group waits until all claims of the group have come. When too many wait, one group goes as
    /// it is: its claims get a snapshot each, which is told.
    ///
    /// # Errors
    /// When the run takes nothing more.
    pub async fn take_claim(&self, planned: PlannedClaim) -> Result<(), ListError> {
        let under_way = planned.under_way.clone();
        let Some(group) = planned.ask.group.clone() else {
            return self.send(VolumeWork::Claim(Box::new(planned)), under_way).await;
        };
        let sent = {
            let parked = &mut self.seen.lock().parked;
            let here = parked.entry(group.key.clone()).or_default();
            here.push(planned);
            if here.len() >= group.names.len() {
                parked.remove(&group.key)
            } else if parked.values().map(Vec::len).sum::<usize>() > UNDER_WAY {
                parked.pop_first().map(|(_, claims)| claims)
            } else {
                None
            }
        };
        match sent {
            Some(claims) => self.send(VolumeWork::Group(claims), under_way).await,
            None => Ok(()),
        }
    }

    /// Waits until there is room for the claims of a block, so that nobody has to while its pods
    /// are frozen.
    pub async fn admit(&self, claims: Vec<PlannedClaim>) -> Admitted {
        let count = u32::try_from(claims.len().min(UNDER_WAY)).unwrap_or_default();
        let claims = claims.into_iter().map(|planned| (planned, Ok(None))).collect();
        if count == 0 {
            return Admitted { claims, room: None };
        }
        // The semaphore is never closed.
        let room = Arc::clone(&self.admitted).acquire_many_owned(count).await;
        Admitted { claims, room: room.ok().map(Arc::new) }
    }

    /// Reads the snapshots that an earlier run has noted of the claims of a block, before its pods
    /// are frozen, so that they do not wait for that.
    pub async fn look_back(&self, admitted: &mut Admitted) {
        let each = admitted.claims.iter_mut().map(|(planned, earlier)| async move {
            *earlier = self.earlier_cut(&planned.ask, true).await;
        });
        join_all(each).await;
    }

    /// Takes the data of what a block of pods uses, while the pods are frozen: all snapshots at one
    /// time until they are cut, and all files until they are stored. The claims are stored when
    /// their snapshots are ready, for which nobody waits here. None of them is before all of this
    /// is done and noted: a run that ends meanwhile has stored nothing of the block, and the next
    /// one takes all of it anew. So does one that finds its pods not stored and some of its data
    /// missing, because what is missing would be of a later moment than the rest.
    pub async fn take_frozen(&self, admitted: Admitted, pods: Vec<FilePod>) {
        let Admitted { claims, room } = admitted;
        let (claims, earlier): (Vec<PlannedClaim>, Vec<EarlierCut>) = claims.into_iter().unzip();
        let asks = claims.iter().map(|planned| &planned.ask).zip(earlier).collect();
        let files = pods.iter().map(|pod| self.take_files(pod));
        let (cuts, read) = tokio::join!(self.cut_all(asks, limits::BLOCK_STILL), join_all(files));
        let cuts: Vec<(PlannedClaim, Result<Cut, NoSnapshot>)> = claims.into_iter().zip(cuts).collect();
        let is_whole = read.into_iter().all(|is_read| is_read) && cuts.iter().all(|(_, cut)| cut.is_ok());
        let noted = cuts.iter().filter_map(|(planned, cut)| planned.ask.noted(cut.as_ref().ok()?, is_whole));
        let whole = pods.iter().filter(|_| is_whole).map(|pod| pod.uid.as_str());
        self.outcomes.note_block(noted.collect(), whole);
        for (planned, cut) in cuts {
            // If nothing takes it the backup ends early.
            let _ = self.settled.send(Settle { planned, cut, _room: room.clone() });
        }
    }

    async fn send(&self, work: VolumeWork, under_way: TaskTrackerToken) -> Result<(), ListError> {
        let job = VolumeJob { work, _under_way: under_way };
        self.jobs.send(job).await.map_err(|_| ListError::NobodyTakes)
    }

    /// Takes the data that is asked for, and stores the claims that wait for it. Never ends.
    pub async fn run(&self, jobs: Jobs, batches: mpsc::Sender<Batch>) {
        tokio::join!(self.do_jobs(jobs.later, &batches), self.store_settled(jobs.settled, &batches));
        std::future::pending::<()>().await;
    }

    async fn do_jobs(&self, mut later: mpsc::Receiver<VolumeJob>, batches: &mpsc::Sender<Batch>) {
        let (cuts, pods) = (Semaphore::new(CUTS), Semaphore::new(PODS));
        let (cuts, pods) = (&cuts, &pods);
        let later = futures::stream::poll_fn(|context| later.poll_recv(context));
        let done = later.for_each_concurrent(UNDER_WAY, |job| async move {
            let VolumeJob { work, _under_way } = job;
            // The semaphores are never closed.
            match work {
                VolumeWork::Claim(planned) => {
                    let permit = cuts.acquire().await;
                    let cut = self.cut_later(&planned.ask).await;
                    drop(permit);
                    self.store(*planned, cut, batches).await;
                }
                VolumeWork::Group(claims) => {
                    let permit = cuts.acquire().await;
                    let all = self.cut_group_later(&claims).await;
                    drop(permit);
                    let stored = claims.into_iter().zip(all);
                    join_all(stored.map(|(planned, cut)| self.store(planned, cut, batches))).await;
                }
                VolumeWork::Files(pod) => {
                    let _permit = pods.acquire().await;
                    self.take_files(&pod).await;
                }
            }
        });
        done.await;
    }

    /// Each block has its room, however many claims it has.
    async fn store_settled(
        &self,
        mut settled: mpsc::UnboundedReceiver<Settle>,
        batches: &mpsc::Sender<Batch>,
    ) {
        let settled = futures::stream::poll_fn(|context| settled.poll_recv(context));
        let done = settled.for_each_concurrent(None, |settle| async move {
            let Settle { planned, cut, _room } = settle;
            self.store(planned, cut, batches).await;
        });
        done.await;
    }

    /// Stores a claim when its snapshot is ready, or without one.
    async fn store(
        &self,
        planned: PlannedClaim,
        cut: Result<Cut, NoSnapshot>,
        batches: &mpsc::Sender<Batch>,
    ) {
        let PlannedClaim { kind, page, mut item, ask, under_way } = planned;
        let uid = cut.as_ref().map(|cut| cut.uid.clone()).unwrap_or_default();
        let taken = match cut {
            Ok(cut) => self.ready(&ask, &cut).await.map_err(|why| NoSnapshot { why, attempted: true }),
            Err(uncut) => Err(uncut),
        };
        let outcome =
            |fate| ClaimOutcome { volume: ask.volume.clone(), traits: Some(ask.traits.clone()), fate };
        let handed = match taken {
            Ok(taken) if ask.moves => self
                .hand_over(&ask, &taken, &uid)
                .await
                .map(|()| (taken, VolumeDataResult::Moved, self.upload_of(&ask))),
            Ok(taken) => {
                self.log.info(&format!("took snapshot {} of claim {}", taken.name, ask.claim));
                Ok((taken.clone(), VolumeDataResult::Snapshot(taken), None))
            }
            Err(uncut) => Err(uncut),
        };
        let kept = handed.map(|(taken, fate, upload)| {
            let backup = self.access.as_ref().map(|access| label_value(&access.backup, digest));
            // Moved data fits into a volume as large as the claim's.
            let size = taken.size.filter(|_| !ask.moves);
            let json =
                with_snapshot(&item.json, &taken.name, size, &backup.unwrap_or_default(), upload.as_deref());
            if let Some(json) = json {
                item.json = json.into();
            }
            fate
        });
        let fate = kept.unwrap_or_else(|NoSnapshot { why, attempted }| {
            let message = format!("claim {} is stored without the data of its volume: {why}", ask.name);
            self.log.lasting_error(
                &ResultsHeading::Namespace(&ask.namespace),
                "persistentvolumeclaims",
                &message,
            );
            VolumeDataResult::Missing { reason: why, attempted, asked: None }
        });
        // Before the claim is stored, so that a checkpoint with the claim has it.
        self.settle(&ask.claim, outcome(fate));
        let batch = Batch { kind, page, items: vec![item], packed: None };
        // A closed channel means that the backup ends early.
        let _ = batches.send(batch).await;
        drop(under_way);
    }

    /// By what an earlier run, or this one, moves the data of a claim.
    fn upload_of(&self, ask: &Ask) -> Option<String> {
        self.mover.filter(|_| ask.moves).and_then(|mover| mover.moved_by(&ask.uid))
    }

    /// Has the data of a snapshot (with this UID) moved. From then on the snapshot belongs to the
    /// movement, and is neither kept nor removed with the backup.
    async fn hand_over(
        &self,
        ask: &Ask,
        taken: &outcomes::CompletedSnapshot,
        uid: &str,
    ) -> Result<(), NoSnapshot> {
        // An earlier run has handed one over.
        if taken.name.is_empty() {
            return Ok(());
        }
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
        if let Ok(movement) = &done
            && let Err(why) = self.part_with(ask, (taken.name.as_str(), uid), movement).await
        {
            // Its data is moved nonetheless.
            let message = format!(
                "snapshot {} of claim {} keeps the label of the backup, though its data is being moved: {why}",
                taken.name, ask.name
            );
            self.log.warning(&ResultsHeading::Namespace(&ask.namespace), "persistentvolumeclaims", &message);
        }
        done.map(drop).map_err(|why| NoSnapshot {
            why: format!("its snapshot cannot be moved: {why}"),
            attempted: true,
        })
    }

    fn settle(&self, claim: &str, outcome: ClaimOutcome) {
        if !self.outcomes.set(claim, outcome) {
            self.seen.lock().lost += 1;
        }
    }

    /// Waits until all data is taken, or known to be missing. No claims come after this.
    pub async fn settled(&self) {
        let parked = std::mem::take(&mut self.seen.lock().parked);
        for claims in parked.into_values() {
            let Some(first) = claims.first() else { continue };
            let under_way = first.under_way.clone();
            // If nothing takes them the backup ends early.
            let _ = self.send(VolumeWork::Group(claims), under_way).await;
        }
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
}

#[cfg(test)]
pub(super) mod tests;
