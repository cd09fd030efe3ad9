//! Decides how the data of a pod's volumes and of a claim is backed up, and reads what that needs.

use std::sync::Arc;

use berth_api::keys::{BACKUP_VOLUMES, CLAIM_SNAPSHOT_CLASS, DEFAULT_SNAPSHOT_CLASS, EXCLUDE_VOLUMES};
use berth_core::policy::volume::{VolumeAction, action};
use berth_core::selection::ResourceType;
use berth_core::violation::tellable;
use berth_core::volume::class::{Choice, SnapshotClass, choose};
use berth_core::volume::{
    ClaimDecision, FileBackupObstacle, Moment, OfPod, PodVolumeState, VolumeClaim, is_asked_for, names,
    of_claim, of_pod,
};
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::{Client, ResourceExt as _};
use memchr::memmem;
use serde_json::Value;

use super::files::{FileClaim, FilePod, FileVolume};
use super::outcomes::{ClaimOutcome, VolumeDataResult};
use super::read::{FoundClaim, FoundPod, FoundVolume};
use super::snapshots::Ask;
use super::{PlannedClaim, RunVolumes, read};
use crate::backup::archive::ArchiveItem;
use crate::backup::insist::insist;
use crate::backup::ledger::PageId;
use crate::backup::list::{ListError, ListedObject};
use crate::backup::log::ResultsHeading;
use crate::backup::related::{is_name, key};
use crate::text::chain;
use crate::write::WriteResult;

/// Parts of a VolumeSnapshotClass's group, version and kind.
const CLASSES: [&str; 3] = ["snapshot.storage.k8s.io", "v1", "VolumeSnapshotClass"];

/// The decision about the data of a claim, and what it was based on.
pub(super) struct ConsideredClaim<'s> {
    pub decision: ClaimDecision,
    policy: Option<VolumeAction>,
    bound: Option<FoundVolume>,
    /// The CSI driver of its volume; empty if it has none, or is not known.
    pub driver: String,
    choice: Choice<'s, 's>,
}

impl RunVolumes<'_> {
    /// Decides about the volumes of a pod. Pods are decided on in the order of the list: the first
    /// one that asks for the files of a claim gets them backed up.
    ///
    /// # Errors
    /// When the API server cannot be reached.
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
            self.log.warning(&ResultsHeading::Namespace(&namespace), "pods", &message);
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
            moment: Moment::default(),
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
        let mut about = PodVolumeState {
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
        self.settle(&claim_key, ClaimOutcome { volume: volume_name, traits, fate: VolumeDataResult::Files });
        let claim = FileClaim { key: claim_key, name: claim.clone(), uid: read.uid };
        Ok(Some(FileVolume { name: volume.name.clone(), claim: Some(claim) }))
    }

    fn tell_obstacle(&self, found: &ListedObject, volume: &PodVolumeState<'_>, obstacle: FileBackupObstacle) {
        let message =
            format!("volume {} of pod {} is not backed up by files: {obstacle}", volume.name, found.name);
        let about = found.namespace.as_deref().map_or(ResultsHeading::Cluster, ResultsHeading::Namespace);
        if !obstacle.is_loss() {
            self.log.info(&message);
        } else if volume.is_named || volume.policy.is_some() {
            self.log.error(&about, "pods", &message);
        } else {
            self.log.warning(&about, "pods", &message);
        }
    }

    /// Decides about a claim. `None`: the claim is stored at once, without data.
    ///
    /// # Errors
    /// When the API server cannot be reached.
    pub async fn plan_claim(
        &self,
        kind: &Arc<ResourceType>,
        page: PageId,
        found: &ListedObject,
    ) -> Result<Option<PlannedClaim>, ListError> {
        // An unreadable claim is reported where it is read for its references.
        let Ok(object) = serde_json::from_slice::<Value>(&found.json) else { return Ok(None) };
        let claim = FoundClaim::read(&object);
        let (namespace, claim_key) =
            (found.namespace.clone().unwrap_or_default(), key(found.namespace.as_deref(), &found.name));
        let volume_name = claim.bound.clone().unwrap_or_default();
        let ConsideredClaim { decision, policy, bound, driver, choice } =
            self.consider(&claim_key, &claim).await?;
        self.tell_ignored(&claim_key, &driver, choice);
        let class = choice.class.map(|class| class.name.clone()).unwrap_or_default();
        let outcome = |fate| ClaimOutcome {
            volume: volume_name.clone(),
            traits: bound.as_ref().map(|bound| bound.traits.clone()),
            fate,
        };
        let moves = match decision {
            ClaimDecision::Skip(why) => {
                self.settle(&claim_key, outcome(VolumeDataResult::Skipped { reason: why.to_string() }));
                return Ok(None);
            }
            // Its pod has already logged that.
            ClaimDecision::Files => return Ok(None),
            ClaimDecision::Nothing(lack) => {
                let is_asked = is_asked_for(&self.wish, policy);
                let (reason, asked) = (lack.to_string(), Some(is_asked));
                self.settle(
                    &claim_key,
                    outcome(VolumeDataResult::Missing { reason, attempted: false, asked }),
                );
                let mut seen = self.seen.lock();
                let all = if is_asked { &mut seen.asked } else { &mut seen.unasked };
                all.entry(lack).or_default().push(claim_key);
                return Ok(None);
            }
            ClaimDecision::Snapshot => false,
            ClaimDecision::Move => true,
        };
        let group = self.group_of(&namespace, &claim_key, &claim).await?;
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
            driver,
            class,
            moves,
            group,
            is_apart: false,
        };
        let ListedObject { json, namespace, name, lacks_type, .. } = found;
        // A copy, so that the page of the list can be freed.
        let json = bytes::Bytes::copy_from_slice(json);
        let item =
            ArchiveItem { namespace: namespace.clone(), name: name.clone(), json, lacks_type: *lacks_type };
        let under_way = self.under_way.token();
        Ok(Some(PlannedClaim { kind: Arc::clone(kind), page: page.beside(), item, ask, under_way }))
    }

    /// Decides how the data of a claim is backed up.
    ///
    /// # Errors
    /// When the API server cannot be reached.
    pub(super) async fn consider<'s>(
        &'s self,
        claim_key: &str,
        claim: &'s FoundClaim,
    ) -> Result<ConsideredClaim<'s>, ListError> {
        let by_files = self.seen.lock().filed.contains_key(claim_key);
        let mut about = VolumeClaim {
            policy: None,
            by_files,
            is_bound: claim.bound.is_some(),
            // Decided as if everything were there, to find out whether anything has to be read.
            is_csi: true,
            has_class: true,
        };
        let mut decision = of_claim(&self.wish, &about);
        let (mut bound, mut choice) = (None, Choice::default());
        let may_take = matches!(decision, ClaimDecision::Snapshot | ClaimDecision::Move);
        let classes = if may_take || !self.policies.is_empty() { self.classes().await } else { &[] };
        if let Some(name) = &claim.bound
            && (!self.policies.is_empty() || (may_take && !classes.is_empty()))
        {
            bound = self.read_volume(name).await?;
        }
        let volume = claim.with(bound.as_ref());
        let driver = volume.csi.as_ref().map(|csi| csi.driver.clone()).unwrap_or_default();
        if may_take || !self.policies.is_empty() {
            about.policy = action(&self.policies, &volume);
            about.is_csi = bound.is_none() || !driver.is_empty();
            choice = self.class_for(&driver, claim, classes);
            about.has_class = choice.class.is_some();
            decision = of_claim(&self.wish, &about);
        }
        Ok(ConsideredClaim { decision, policy: about.policy, bound, driver, choice })
    }

    fn class_for<'s>(
        &'s self,
        driver: &str,
        claim: &'s FoundClaim,
        classes: &'s [SnapshotClass],
    ) -> Choice<'s, 's> {
        let annotation = format!("{CLAIM_SNAPSHOT_CLASS}_{}", driver.to_lowercase());
        let by_backup = self.access.as_ref().and_then(|access| access.annotations.get(&annotation));
        choose(classes, driver, claim.snapshot_class.as_deref(), by_backup.map(String::as_str))
    }

    fn tell_ignored(&self, claim_key: &str, driver: &str, choice: Choice<'_, '_>) {
        if let (Some(ignored), Some(class)) = (choice.ignored, choice.class) {
            let message = format!(
                "the annotation {CLAIM_SNAPSHOT_CLASS} leads to no VolumeSnapshotClass {ignored} of driver {driver}: {} is used for claim {claim_key}",
                class.name
            );
            self.log.warning(&ResultsHeading::Cluster, "persistentvolumeclaims", &message);
        }
    }

    async fn classes(&self) -> &[SnapshotClass] {
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
                        &ResultsHeading::Cluster,
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

    /// Reads an object that another object names. If it cannot be read, that is an error of the
    /// backup.
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
                self.log.error(&ResultsHeading::Cluster, &kind.qualified(), &message);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

async fn list_classes(client: &Client) -> Result<Vec<SnapshotClass>, kube::Error> {
    let [group, version, kind] = CLASSES;
    let kind = ApiResource {
        plural: "volumesnapshotclasses".to_owned(),
        ..ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk(group, version, kind))
    };
    let class = |class: DynamicObject| SnapshotClass {
        name: class.name_any(),
        driver: class.data["driver"].as_str().unwrap_or_default().to_owned(),
        is_labelled: class.labels().contains_key(CLAIM_SNAPSHOT_CLASS),
        is_default: class.annotations().contains_key(DEFAULT_SNAPSHOT_CLASS),
    };
    list_of(&Api::all_with(client.clone(), &kind), class).await
}

/// All classes; none where the cluster has no such kind.
pub(super) async fn list_of(
    api: &Api<DynamicObject>,
    class: impl Fn(DynamicObject) -> SnapshotClass,
) -> Result<Vec<SnapshotClass>, kube::Error> {
    let read = || async { WriteResult::from(api.list(&ListParams::default()).await) };
    match insist(read).await {
        Ok(found) => Ok(found.items.into_iter().map(class).collect()),
        Err(error) if crate::client::is_not_found(&error) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
