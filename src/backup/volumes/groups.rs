//! Group snapshots: the snapshots of all claims of a group, cut by the storage at one moment.
//!
//! A claim is taken with its group if the backup takes a snapshot of every claim that has the
//! group's label (`berth_core::volume::group` decides), because the snapshot controller cuts all of
//! them. The claims of a group are held back until all have come. Then one VolumeGroupSnapshot is
//! created, the snapshot controller makes a VolumeSnapshot of each claim, and from there on each of
//! these goes the way of any other snapshot (`snapshots`). The VolumeGroupSnapshot stays until the
//! backup ends, because only with it the storage removes the snapshots of a group: `group_objects`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_api::keys::{
    BACKUP_NAME, BACKUP_UID, CLAIM_GROUP_SNAPSHOT_CLASS, DEFAULT_GROUP_SNAPSHOT_CLASS, EXCLUDE_FROM_BACKUP,
    GROUP_SNAPSHOT_CLASS, SKIP_FROM_BACKUP, label_value,
};
use berth_api::snapshot::VolumeSnapshot;
use berth_core::volume::class::SnapshotClass;
use berth_core::volume::group::{GroupMember, GroupRefusal, MOST_GROUPS, form};
use futures::future::join_all;
use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject};
use serde_json::json;
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::warn;

use super::group_objects::{
    self, CALL, GroupPlan, group_name, groups, is_as_planned, kind_of_groups, labels, list_group,
};
use super::objects::{patch_there, short};
use super::outcomes::EarlierCut;
use super::plan::list_of;
use super::read::FoundClaim;
use super::snapshots::{Ask, Cut, MadeSnapshot, NoSnapshot, late};
use super::watched::{Watched, WatchedObjects, WatchedSnapshot};
use super::{PlannedClaim, RunVolumes, VolumeAccess};
use crate::backup::insist::insist;
use crate::backup::list::ListError;
use crate::backup::log::ResultsHeading;
use crate::backup::related::key;
use crate::client::{already_exists, is_not_found};
use crate::patch::digest;
use crate::queue::refusals::is_lasting;
use crate::text::chain;
use crate::write::create;

/// What is known of the group of a claim. An error without a reason: the claim is alone in it.
pub(super) type KnownGroup = Result<Arc<GroupPlan>, Option<GroupRefusal>>;

/// Why a group has no snapshots.
enum NoGroup {
    /// Nothing was begun, so each claim can get a snapshot of its own.
    Refused(GroupRefusal),
    Failed(String),
}

/// The snapshots of a group, by claim.
type Members = BTreeMap<String, MadeSnapshot>;

/// The claims of a group that came together, and the snapshots that they share.
#[derive(Default)]
struct GroupHere {
    names: BTreeSet<String>,
    made: OnceCell<Result<Members, NoGroup>>,
}

impl PlannedClaim {
    /// The names of all claims of its group, if a group snapshot is to be taken.
    pub fn group(&self) -> Option<&BTreeSet<String>> {
        self.ask.group.as_deref().filter(|_| !self.ask.is_apart).map(|group| &group.names)
    }

    /// Leaves it out of the group snapshot of its group.
    pub fn set_apart(&mut self) {
        self.ask.is_apart = true;
    }
}

impl RunVolumes<'_> {
    /// The group with which a claim is taken. If it belongs to one and is taken alone, this is
    /// noted, to be told.
    ///
    /// # Errors
    /// When the API server is gone.
    pub(super) async fn group_of(
        &self,
        namespace: &str,
        claim_key: &str,
        claim: &FoundClaim,
    ) -> Result<Option<Arc<GroupPlan>>, ListError> {
        let value = claim.labels.get(&self.group_key).filter(|value| !value.is_empty());
        let (Some(value), Some(access)) = (value, &self.access) else { return Ok(None) };
        let group = key(Some(namespace), value);
        let (known, count) = {
            let groups = &self.seen.lock().groups;
            (groups.get(&group).cloned(), groups.len())
        };
        let is_possible = known.is_some() || !self.group_classes(access).await.is_empty();
        let known = match known {
            Some(known) => known,
            None if !is_possible => Err(Some(GroupRefusal::NoClasses)),
            None if count >= MOST_GROUPS => Err(Some(GroupRefusal::TooManyGroups)),
            None => {
                let planned = Box::pin(self.plan_group(access, namespace, value)).await?;
                self.seen.lock().groups.entry(group).or_insert(planned).clone()
            }
        };
        match known {
            Ok(plan) => Ok(Some(plan)),
            Err(None) => Ok(None),
            Err(Some(refusal)) => {
                self.note_ungrouped(refusal, claim_key);
                Ok(None)
            }
        }
    }

    fn note_ungrouped(&self, refusal: GroupRefusal, claim_key: &str) {
        self.seen.lock().ungrouped.entry(refusal).or_default().insert(claim_key.to_owned());
    }

    async fn plan_group(
        &self,
        access: &VolumeAccess,
        namespace: &str,
        value: &str,
    ) -> Result<KnownGroup, ListError> {
        let found = match list_group(access, namespace, (self.group_key.as_str(), value)).await {
            Ok(found) => found,
            Err(error) => {
                let message = format!("the claims of group {value} cannot be listed: {}", chain(&error));
                self.log.warning(&ResultsHeading::Namespace(namespace), "persistentvolumeclaims", &message);
                return Ok(Err(Some(GroupRefusal::Unlisted)));
            }
        };
        if found.len() < 2 {
            return Ok(Err(None));
        }
        let mut members = Vec::new();
        for object in found {
            let name = object.name_any();
            let is_left_out = object.metadata.deletion_timestamp.is_some()
                || object.labels().get(EXCLUDE_FROM_BACKUP).is_some_and(|value| value == "true")
                || object.annotations().contains_key(SKIP_FROM_BACKUP);
            let class = object.annotations().get(CLAIM_GROUP_SNAPSHOT_CLASS);
            let class = class.filter(|class| !class.is_empty()).cloned();
            let claim = FoundClaim::read(&serde_json::to_value(object).unwrap_or_default());
            let considered = self.consider(&key(Some(namespace), &name), &claim).await?;
            let decision = (!is_left_out).then_some(considered.decision);
            members.push(GroupMember { name, decision, driver: considered.driver, class });
        }
        let by_backup = |driver: &str| {
            let class = access.annotations.get(&format!("{GROUP_SNAPSHOT_CLASS}_{driver}"));
            class.filter(|class| !class.is_empty()).cloned()
        };
        let plan = form(&members, self.group_classes(access).await, by_backup).map(|class| {
            Arc::new(GroupPlan {
                key: key(Some(namespace), value),
                namespace: namespace.to_owned(),
                label: self.group_key.clone(),
                value: value.to_owned(),
                names: members.iter().map(|member| member.name.clone()).collect(),
                class: class.name.clone(),
            })
        });
        Ok(plan.map_err(Some))
    }

    async fn group_classes(&self, access: &VolumeAccess) -> &[SnapshotClass] {
        let read = || async {
            let is_true = |value: Option<&String>| value.is_some_and(|value| value == "true");
            let class = |class: DynamicObject| SnapshotClass {
                name: class.name_any(),
                driver: class.data["driver"].as_str().unwrap_or_default().to_owned(),
                is_labelled: is_true(class.labels().get(GROUP_SNAPSHOT_CLASS)),
                is_default: is_true(class.annotations().get(DEFAULT_GROUP_SNAPSHOT_CLASS)),
            };
            match list_of(&group_objects::classes(&access.client), class).await {
                Ok(classes) => classes,
                Err(error) => {
                    let message =
                        format!("the VolumeGroupSnapshotClasses cannot be listed: {}", chain(&error));
                    self.log.error(
                        &ResultsHeading::Cluster,
                        "volumegroupsnapshotclasses.groupsnapshot.storage.k8s.io",
                        &message,
                    );
                    Vec::new()
                }
            }
        };
        self.group_classes.get_or_init(read).await
    }

    /// Takes the snapshots of claims that came together: those of each group by a group snapshot,
    /// if all of its claims are here and no earlier run has cut one of them.
    pub(super) async fn cut_all(
        &self,
        asks: Vec<(&Ask, EarlierCut)>,
        longest: Duration,
    ) -> Vec<Result<Cut, NoSnapshot>> {
        let begun = Instant::now();
        let mut here = BTreeMap::<String, GroupHere>::new();
        for (ask, earlier) in &asks {
            if let (Some(group), false, Ok(None)) = (&ask.group, ask.is_apart, earlier) {
                here.entry(group.key.clone()).or_default().names.insert(ask.name.clone());
            }
        }
        let each = asks.into_iter().map(|(ask, earlier)| self.cut_one(ask, earlier, &here, begun, longest));
        join_all(each).await
    }

    async fn cut_one(
        &self,
        ask: &Ask,
        earlier: EarlierCut,
        here: &BTreeMap<String, GroupHere>,
        begun: Instant,
        longest: Duration,
    ) -> Result<Cut, NoSnapshot> {
        let (Some(group), Ok(None)) = (ask.group.as_deref(), &earlier) else {
            return self.cut(ask, earlier, longest).await;
        };
        let Some(here) = here.get(&group.key).filter(|here| here.names == group.names) else {
            self.note_ungrouped(GroupRefusal::Apart, &ask.claim);
            return self.cut(ask, earlier, longest).await;
        };
        let made = here.made.get_or_init(|| Box::pin(self.make_group(group, begun, longest))).await;
        let why = match made {
            Ok(made) => match made.get(&ask.name) {
                Some(made) => return self.await_cut(ask, made.clone(), begun, longest).await,
                None => "its group has no snapshot of it".to_owned(),
            },
            Err(NoGroup::Refused(refusal)) => {
                self.note_ungrouped(refusal.clone(), &ask.claim);
                return self.cut(ask, earlier, longest).await;
            }
            Err(NoGroup::Failed(why)) => why.clone(),
        };
        Err(NoSnapshot { why, attempted: true })
    }

    /// As [`RunVolumes::cut_all`], for claims of one group that no pod is frozen for. What is cut
    /// is noted, because a run that continues could not cut the rest of the group at that moment.
    pub(super) async fn cut_group_later(&self, claims: &[PlannedClaim]) -> Vec<Result<Cut, NoSnapshot>> {
        let earlier = join_all(claims.iter().map(|planned| self.earlier_cut(&planned.ask, false))).await;
        let asks = claims.iter().map(|planned| &planned.ask).zip(earlier).collect();
        let cuts = self.cut_all(asks, Duration::MAX).await;
        let cut = claims.iter().zip(&cuts);
        let noted = cut.filter_map(|(planned, cut)| planned.ask.noted(cut.as_ref().ok()?, false));
        self.outcomes.note_block(noted.collect(), std::iter::empty());
        cuts
    }

    /// Creates the VolumeGroupSnapshot, and waits for the VolumeSnapshots of all claims. If that
    /// fails nothing of it stays.
    async fn make_group(
        &self,
        plan: &GroupPlan,
        begun: Instant,
        longest: Duration,
    ) -> Result<Members, NoGroup> {
        let Some(access) = &self.access else {
            return Err(NoGroup::Failed("nothing can take it".to_owned()));
        };
        is_as_planned(access, plan).await.map_err(NoGroup::Refused)?;
        // From here on there may be something to remove.
        self.shown(access).await;
        let limit = longest.min(access.limits.waits.snapshot);
        let until = access.limits.snapshot_until(begun).min(begun + limit);
        let group = match timeout_at(until, create_group(access, plan)).await {
            Ok(made) => made?,
            // If it stands nonetheless it is removed when the backup ends.
            Err(_) => return Err(NoGroup::Failed(late("made", until - begun, None))),
        };
        let members = match timeout_at(until, self.members(access, plan, &group)).await {
            Ok(members) => members,
            Err(_) => Err(late("made", until - begun, fault_of(access, &group).await.as_deref())),
        };
        if members.is_err()
            && let Err(error) = timeout(CALL, group_objects::remove(&access.client, &group))
                .await
                .unwrap_or_else(|_| Err("the API server did not answer in time".to_owned()))
        {
            let name = group.name_any();
            warn!(%name, error, "could not remove a group snapshot: it is removed when the backup ends");
        }
        members.map_err(NoGroup::Failed)
    }

    /// Waits for the VolumeSnapshots, retains them, because an archive may name one as soon as its
    /// claim is stored, and gives each the labels by which every run finds it.
    async fn members(
        &self,
        access: &VolumeAccess,
        plan: &GroupPlan,
        group: &DynamicObject,
    ) -> Result<Members, String> {
        let uid = group.uid().unwrap_or_default();
        let shown = Watched::snapshots_in(&access.watches, &plan.namespace);
        let members = shown.find(|shown| members_of(shown, plan, &uid)).await;
        drop(shown);
        group_objects::retain(&access.client, group, &labels(access))
            .await
            .map_err(|error| format!("the snapshots of its group cannot be retained: {error}"))?;
        let api: Api<VolumeSnapshot> = Api::namespaced(access.client.clone(), &plan.namespace);
        let labels = json!({"metadata": {"labels": {
            BACKUP_NAME: label_value(&access.backup, digest), BACKUP_UID: access.uid,
        }}});
        let labelled = members.values().map(|made| {
            let (api, labels) = (&api, &labels);
            async move {
                let labelled =
                    patch_there(api, (&made.name, Some(made.uid.as_str())), labels.clone()).await?;
                labelled.map(drop).ok_or_else(|| "it is gone, or another one has its name by now".to_owned())
            }
        });
        let failed = join_all(labelled).await.into_iter().find_map(Result::err);
        match failed {
            Some(error) => Err(format!("a snapshot of its group cannot be labelled: {error}")),
            None => Ok(members),
        }
    }
}

/// The snapshots of all claims of the group, as soon as all are there.
fn members_of(shown: &WatchedObjects<WatchedSnapshot>, plan: &GroupPlan, group: &str) -> Option<Members> {
    let of_group = shown.iter().filter(|(_, snapshot)| snapshot.group.as_deref() == Some(group));
    let members: Members = of_group
        .filter_map(|((_, name), snapshot)| {
            let claim = snapshot.claim.clone().filter(|claim| plan.names.contains(claim))?;
            Some((claim, MadeSnapshot { name: name.clone(), uid: snapshot.uid.clone(), policy: None }))
        })
        .collect();
    (members.len() == plan.names.len()).then_some(members)
}

/// Creates the VolumeGroupSnapshot, or finds the one that a lost answer was about. Another run
/// takes another name, as for [`super::snapshots::snapshot_name`].
async fn create_group(access: &VolumeAccess, plan: &GroupPlan) -> Result<DynamicObject, NoGroup> {
    let hash = digest(&format!("{}/{}/{}", access.run, access.uid, plan.key));
    let name = group_name(&hash);
    let (label, value) = (&plan.label, &plan.value);
    let mut group = DynamicObject::new(&name, &kind_of_groups()).within(&plan.namespace).data(json!({
        "spec": {
            "volumeGroupSnapshotClassName": plan.class,
            "source": {"selector": {"matchLabels": {label: value}}},
        },
    }));
    group.metadata.labels = Some(labels(access));
    let api = groups(&access.client, Some(&plan.namespace));
    let error = match insist(|| create(&api, &group)).await {
        Ok(made) => return Ok(made),
        Err(error) => error,
    };
    if is_lasting(&error) || is_not_found(&error) {
        return Err(NoGroup::Refused(GroupRefusal::Refused(chain(&error))));
    }
    if !already_exists(&error) {
        let why = format!("the VolumeGroupSnapshot of its group could not be created: {}", chain(&error));
        return Err(NoGroup::Failed(why));
    }
    let found = insist(|| async { api.get(&name).await.into() }).await;
    let found = found.map_err(|error| {
        NoGroup::Failed(format!("the VolumeGroupSnapshot of its group cannot be read: {}", chain(&error)))
    })?;
    if found.labels().get(BACKUP_UID) == Some(&access.uid) {
        Ok(found)
    } else {
        let why = format!("VolumeGroupSnapshot {name} exists and is not berth's");
        Err(NoGroup::Refused(GroupRefusal::Refused(why)))
    }
}

/// What the snapshot controller says of a group that is late.
async fn fault_of(access: &VolumeAccess, group: &DynamicObject) -> Option<String> {
    let api = groups(&access.client, group.namespace().as_deref());
    let found = timeout(CALL, api.get_opt(&group.name_any())).await.ok()?.ok()??;
    found.data["status"]["error"]["message"].as_str().map(short)
}
