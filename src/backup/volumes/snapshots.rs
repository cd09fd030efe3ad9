//! CSI snapshots: made, cut, ready, and marked as belonging to the backup.
//!
//! A snapshot is cut when its content has a handle: from then on the volume may change. It is ready
//! when its driver says so, which may be much later, and which no pod waits for.
//!
//! Every snapshot that berth makes has the UID of its Backup as a label from its creation on, so a
//! later leader finds what a dead one has made. When it is ready, two writes give it to the backup:
//! its content is retained from then on, and the snapshot is annotated with what a restore needs.
//! Only then its claim is stored. So a snapshot that any archive names has the annotation, unless a
//! user has taken it off, and a content that is kept. One that has neither can be removed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::keys::{BACKUP_NAME, BACKUP_UID, MADE_FOR, label_value};
use berth_api::snapshot::{VolumeSnapshot, VolumeSnapshotContent, VolumeSnapshotSource, VolumeSnapshotSpec};
use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::Api;
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::group_objects::GroupPlan;
use super::objects::{patch_own, patch_there};
use super::outcomes::{CompletedSnapshot, EarlierCut};
use super::read::VolumeTraits;
use super::watched::{Snapshots, Watched, WatchedContent, WatchedSnapshot};
use super::{RunVolumes, VolumeAccess};
use crate::backup::actions::snapshots::annotate;
use crate::backup::insist::insist;
use crate::patch::digest;
use crate::text::chain;
use crate::write::create;

/// Limit of the characters of a claim's name in the name of its snapshot, because a label of the
/// claim has to hold the whole name.
const OF_CLAIM: usize = 44;
/// The beginning of the names of snapshots.
pub(super) const MADE: &str = "velero-";

/// A claim of which a snapshot is to be taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    pub claim: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub labels: BTreeMap<String, String>,
    pub volume: String,
    pub traits: VolumeTraits,
    pub storage_class: String,
    pub driver: String,
    pub class: String,
    /// Its data is moved into the storage location.
    pub moves: bool,
    /// Its snapshot is part of this group snapshot.
    pub group: Option<Arc<GroupPlan>>,
    /// It has a snapshot of its own although it belongs to a group, because pods that use other
    /// claims of the group are not frozen.
    pub is_apart: bool,
}

/// A VolumeSnapshot that is there.
#[derive(Clone, Debug)]
pub(super) struct MadeSnapshot {
    pub name: String,
    pub uid: String,
    /// The deletion policy of its content, as an earlier run has recorded it.
    pub policy: Option<String>,
}

/// A snapshot that is cut.
#[derive(Debug)]
pub struct Cut {
    pub(super) name: String,
    pub(super) uid: String,
    content: String,
    /// The deletion policy of its content before the backup changed it.
    pub(super) policy: String,
    begun: Instant,
    until: Instant,
}

/// Why there is no snapshot.
#[derive(Debug)]
pub struct NoSnapshot {
    pub why: String,
    /// A snapshot was started.
    pub attempted: bool,
}

/// The name of the snapshot of a claim. Each run uses other names, because the snapshots that a
/// dead run has started are removed.
pub fn snapshot_name(claim: &str, uid: &str, run: &str) -> String {
    let head: String = claim.chars().take(OF_CLAIM).collect();
    let head = head.trim_end_matches(['.', '-']);
    let hash = digest(&format!("{run}/{uid}"));
    format!("{MADE}{head}-{}", hash.get(..10).unwrap_or_default())
}

impl RunVolumes<'_> {
    pub(super) async fn shown(&self, access: &VolumeAccess) -> &Watched<Snapshots> {
        let start = || async { Watched::snapshots(&access.watches, &access.uid) };
        self.snapshots.get_or_init(start).await
    }

    /// As [`RunVolumes::cut`], for a claim that no pod is frozen for.
    pub(super) async fn cut_later(&self, ask: &Ask) -> Result<Cut, NoSnapshot> {
        let earlier = self.earlier_cut(ask, false).await;
        self.cut(ask, earlier, Duration::MAX).await
    }

    /// Takes a snapshot, unless an `earlier` run has taken it, and waits until it is cut, for at
    /// most `longest`. If it is not cut in time, it is removed.
    pub(super) async fn cut(
        &self,
        ask: &Ask,
        earlier: EarlierCut,
        longest: Duration,
    ) -> Result<Cut, NoSnapshot> {
        let Some(access) = &self.access else {
            return Err(NoSnapshot { why: "nothing can take it".to_owned(), attempted: false });
        };
        let begun = Instant::now();
        let until = access.limits.snapshot_until(begun);
        if self.upload_of(ask).is_some() {
            let [name, uid, content, policy] = [const { String::new() }; 4];
            return Ok(Cut { name, uid, content, policy, begun, until });
        }
        self.shown(access).await;
        let made = match earlier {
            Ok(Some((found, noted))) => Ok((found, Some(noted.policy))),
            Ok(None) => self.make(access, ask).await.map(|made| (made, None)),
            Err(why) => Err(why),
        };
        let (snapshot, policy) = made.map_err(|why| NoSnapshot { why, attempted: true })?;
        let (name, uid) = (snapshot.name_any(), snapshot.uid().unwrap_or_default());
        self.await_cut(ask, MadeSnapshot { name, uid, policy }, begun, longest).await
    }

    /// Waits until a snapshot that was requested at `begun` is cut. If it is not cut in time, it is
    /// removed.
    pub(super) async fn await_cut(
        &self,
        ask: &Ask,
        made: MadeSnapshot,
        begun: Instant,
        longest: Duration,
    ) -> Result<Cut, NoSnapshot> {
        let Some(access) = &self.access else {
            return Err(NoSnapshot { why: "nothing can take it".to_owned(), attempted: false });
        };
        let until = access.limits.snapshot_until(begun);
        let shown = self.shown(access).await;
        let MadeSnapshot { name, uid, policy: noted } = made;
        let key = (ask.namespace.clone(), name.clone());
        let (mut was_seen, mut fault) = (false, None);
        let found = shown.find(|shown| match shown.snapshots.get(&key) {
            None => was_seen.then(|| Err("somebody deleted its VolumeSnapshot".to_owned())),
            Some(snapshot) => {
                was_seen = true;
                let content = snapshot.content.as_ref();
                let bound = content.and_then(|content| shown.contents.get(&(String::new(), content.clone())));
                let of = bound.filter(|content| content.of == uid);
                let new = of.and_then(|content| content.fault.as_ref()).or(snapshot.fault.as_ref());
                if let Some(new) = new {
                    fault = Some(new.clone());
                }
                let (of, content) = of.zip(content)?;
                of.handle.as_ref().map(|_| Ok((content.clone(), of.deletion_policy.clone())))
            }
        });
        let cut_until = until.min(begun + longest.min(access.limits.waits.snapshot));
        let why = match timeout_at(cut_until, found).await {
            Ok(Ok((content, policy))) => {
                let policy = noted.unwrap_or(policy);
                return Ok(Cut { name, uid, content, policy, begun, until });
            }
            Ok(Err(why)) => why,
            Err(_) => late("cut", cut_until - begun, fault.as_deref()),
        };
        self.discard(access, &ask.namespace, (name.as_str(), uid.as_str()), true).await;
        Err(NoSnapshot { why, attempted: true })
    }

    /// Creates the VolumeSnapshot, or finds it if the answer to an earlier attempt was lost.
    async fn make(&self, access: &VolumeAccess, ask: &Ask) -> Result<VolumeSnapshot, String> {
        let name = snapshot_name(&ask.name, &ask.uid, &access.run);
        let spec = VolumeSnapshotSpec {
            volume_snapshot_class_name: Some(ask.class.clone()),
            source: VolumeSnapshotSource { persistent_volume_claim_name: Some(ask.name.clone()) },
        };
        let mut snapshot = VolumeSnapshot::new(&name, spec);
        let mut labels = ask.labels.clone();
        labels.insert(BACKUP_NAME.to_owned(), label_value(&access.backup, digest));
        labels.insert(BACKUP_UID.to_owned(), access.uid.clone());
        snapshot.metadata.labels = Some(labels);
        let api: Api<VolumeSnapshot> = Api::namespaced(access.client.clone(), &ask.namespace);
        let made = insist(|| create(&api, &snapshot)).await;
        let error = match made {
            Ok(made) => return Ok(made),
            Err(error) => error,
        };
        if !crate::client::already_exists(&error) {
            return Err(format!("its VolumeSnapshot could not be created: {}", chain(&error)));
        }
        let found = insist(|| async { api.get(&name).await.into() }).await;
        let found = found.map_err(|error| format!("its VolumeSnapshot cannot be read: {}", chain(&error)))?;
        if is_of(&found, access, ask) {
            Ok(found)
        } else {
            Err(format!("VolumeSnapshot {name} exists and is not berth's"))
        }
    }

    /// Waits until the snapshot is ready, and makes it the backup's. If that fails, it is removed.
    pub(super) async fn ready(&self, ask: &Ask, cut: &Cut) -> Result<CompletedSnapshot, String> {
        let Some(access) = &self.access else { return Err("nothing can take it".to_owned()) };
        // An earlier run has taken it, and handed it to a data mover.
        if cut.name.is_empty() {
            return Ok(CompletedSnapshot::default());
        }
        let shown = self.shown(access).await;
        let key = (ask.namespace.clone(), cut.name.clone());
        let mut fault = None;
        let found = shown.find(|shown| {
            let Some(snapshot) = shown.snapshots.get(&key).filter(|snapshot| snapshot.uid == cut.uid) else {
                return Some(Err("somebody deleted its VolumeSnapshot".to_owned()));
            };
            let Some(content) = shown.contents.get(&(String::new(), cut.content.clone())) else {
                return Some(Err("somebody deleted its VolumeSnapshotContent".to_owned()));
            };
            if let Some(new) = content.fault.as_ref().or(snapshot.fault.as_ref()) {
                fault = Some(new.clone());
            }
            (snapshot.is_ready && content.is_ready && content.of == cut.uid)
                .then(|| Ok((snapshot.clone(), content.clone())))
        });
        let found = match timeout_at(cut.until, found).await {
            Ok(found) => found,
            Err(_) => Err(late("ready", cut.until - cut.begun, fault.as_deref())),
        };
        // A leader that lost its place without noticing must not remove what its successor has
        // kept. Below, this run may have kept it itself, so whoever has the Backup then decides.
        let spares_kept = found.is_err();
        let kept = match found {
            Ok((snapshot, content)) if ask.moves => Ok(taken(cut, &snapshot, &content)),
            Ok((snapshot, content)) => self.keep(access, ask, cut, &snapshot, &content).await,
            Err(why) => Err(why),
        };
        if kept.is_err() {
            self.discard(access, &ask.namespace, (cut.name.as_str(), cut.uid.as_str()), spares_kept).await;
        }
        kept
    }

    /// Hands a snapshot over to the data movement with this UID, and removes the label of the
    /// backup, so that no run of the backup touches it any more.
    pub(super) async fn part_with(
        &self,
        ask: &Ask,
        (name, uid): (&str, &str),
        movement: &str,
    ) -> Result<(), String> {
        let Some(access) = &self.access else { return Ok(()) };
        let api: Api<VolumeSnapshot> = Api::namespaced(access.client.clone(), &ask.namespace);
        let unlabelled = json!({"metadata": {"labels": {BACKUP_UID: null, MADE_FOR: movement}}});
        // The data mover may have removed it already, and another snapshot may have its name.
        patch_own(&api, (name, Some(uid)), unlabelled).await
    }

    /// Makes a snapshot part of the backup.
    async fn keep(
        &self,
        access: &VolumeAccess,
        ask: &Ask,
        cut: &Cut,
        snapshot: &WatchedSnapshot,
        content: &WatchedContent,
    ) -> Result<CompletedSnapshot, String> {
        let told = |error: String| format!("it could not be kept: {error}");
        let gone = || told("it is gone, or another one has its name by now".to_owned());
        let contents: Api<VolumeSnapshotContent> = Api::all(access.client.clone());
        let retained = json!({
            "metadata": {"labels": {BACKUP_NAME: label_value(&access.backup, digest)}},
            "spec": {"deletionPolicy": "Retain"},
        });
        let retained = patch_there(&contents, (&cut.content, Some(content.uid.as_str())), retained).await;
        let retained = retained.map_err(told)?.ok_or_else(gone)?;
        // The driver may have removed it from the storage before it was retained.
        if retained.metadata.deletion_timestamp.is_some() {
            return Err("somebody deleted its VolumeSnapshot before it was kept".to_owned());
        }
        let mut annotated = json!({"metadata": {}});
        let seen = json!({
            "spec": {"deletionPolicy": cut.policy, "driver": content.driver},
            "status": {
                "snapshotHandle": content.handle, "restoreSize": content.size,
                "volumeGroupSnapshotHandle": content.group_handle,
            },
        });
        annotate(&mut annotated, &seen);
        let api: Api<VolumeSnapshot> = Api::namespaced(access.client.clone(), &ask.namespace);
        let kept = patch_there(&api, (&cut.name, Some(cut.uid.as_str())), annotated).await;
        kept.map_err(told)?.ok_or_else(gone)?;
        Ok(taken(cut, snapshot, content))
    }
}

fn taken(cut: &Cut, snapshot: &WatchedSnapshot, content: &WatchedContent) -> CompletedSnapshot {
    CompletedSnapshot {
        name: cut.name.clone(),
        content: cut.content.clone(),
        handle: content.handle.clone().unwrap_or_default(),
        group_handle: content.group_handle.clone(),
        driver: content.driver.clone(),
        size: content.size,
        cut_at: snapshot.cut_at.clone(),
        ready_at: Some(Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
    }
}

/// `fault`: the driver's message, shortened when it was read.
pub(super) fn late(what: &str, limit: Duration, fault: Option<&str>) -> String {
    let seconds = limit.as_secs();
    let fault = fault.map(|fault| format!("; its driver says: {fault}"));
    format!(
        "its snapshot was not {what} within {seconds} s (spec.csiSnapshotTimeout; less while hooks keep its pod frozen, or when the backup has taken long: --fs-backup-timeout){}",
        fault.unwrap_or_default()
    )
}

/// Did a run of this backup make the snapshot, of this claim?
pub(super) fn is_of(snapshot: &VolumeSnapshot, access: &VolumeAccess, ask: &Ask) -> bool {
    snapshot.labels().get(BACKUP_UID) == Some(&access.uid)
        && snapshot.spec.source.persistent_volume_claim_name.as_ref() == Some(&ask.name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// It is the value of a label of the claim, and the name of an object.
        #[test]
        fn the_name_of_a_snapshot_is_a_name_and_a_label(claim in "[a-z0-9]{1,30}([-.][a-z0-9]{1,30}){0,6}") {
            let name = snapshot_name(&claim, "u", "r");
            prop_assert!(name.len() <= 63 && name.starts_with("velero-"));
            prop_assert!(!name.contains(".-") && !name.contains("-."), "{}", name);
            prop_assert!(name != snapshot_name(&claim, "u", "other") && name != snapshot_name(&claim, "v", "r"));
            prop_assert_eq!(&name, &snapshot_name(&claim, "u", "r"));
        }
    }
}
