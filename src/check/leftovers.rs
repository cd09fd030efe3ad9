//! What backups that are gone have left in the cluster: [`look`] finds it, `berth check` reports it
//! ([`find`]), and [`remove`] removes it where [`berth_core::leftover`] allows that.
//!
//! A Backup that somebody deletes while its location still has it comes back with the next sync. So
//! nothing is removed before berth's sync has brought all of every location twice ([`rounds`]):
//! twice, because the first of these rounds may have begun before the count did. What is removed
//! was left before and after these rounds.

mod judged;
mod kept;
mod listing;
mod rounds;

use std::collections::{BTreeMap, BTreeSet};

use berth_api::keys::{BACKUP_NAME, label_value};
use berth_api::velero::{Backup, DataUpload};
use berth_core::leftover::{Doubt, ExistingBackups, LeftoverDecision};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::{ObjectMeta, PartialObjectMeta};
use serde::Serialize;

use super::Finding;
use super::operation::server_time;
use crate::install::InstallCluster;
use crate::patch::digest;
use crate::text::{chain, few};
use crate::write::{Write, WriteResult, delete};
use judged::ListedLeftovers;
use kept::label;
use listing::{
    AbsentKind, KindListing, MOST, contents, dynamic, group_contents, groups, list, locations, read,
    snapshots,
};
pub use rounds::wait_synced;

const CHECK: &str = "leftovers";
const SNAPSHOT: &str = "VolumeSnapshot";
const GROUP: &str = "VolumeGroupSnapshot";
const CONTENT: &str = "VolumeSnapshotContent";
const GROUP_CONTENT: &str = "VolumeGroupSnapshotContent";
const UPLOAD: &str = "DataUpload";
const CLAIM: &str = "PersistentVolumeClaim";
const LOCATION: &str = "BackupStorageLocation";
const BACKUP: &str = "Backup";

/// A VolumeSnapshot, a VolumeGroupSnapshot, a content of one of these, a DataUpload or a claim that
/// seems to be left.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Leftover {
    pub kind: &'static str,
    /// Empty: it is in none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    pub name: String,
    /// The Backup, as a label names it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub backup: String,
    #[serde(skip)]
    pub doubt: Option<Doubt>,
    /// Why it is not removed, or what became of it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub outcome: String,
    #[serde(skip)]
    uid: Option<String>,
    #[serde(skip)]
    version: Option<String>,
}

/// All that seems to be left, at one moment.
pub struct Leftovers {
    /// In the order in which it is removed.
    pub all: Vec<Leftover>,
    /// When all of each location was last brought.
    synced: BTreeMap<String, Option<Timestamp>>,
    /// Locations that may still bring Backups.
    unsynced: BTreeSet<String>,
    /// Kinds of which not all objects were read.
    unread: BTreeSet<&'static str>,
}

impl Leftovers {
    pub fn to_remove(&self) -> impl Iterator<Item = &Leftover> {
        self.all.iter().filter(|one| one.doubt.is_none())
    }

    /// Why it is not known of some whether their Backup is gone.
    pub fn unknown(&self) -> Option<String> {
        let is_any = self.all.iter().any(|one| one.doubt == Some(Doubt::Unsynced));
        let names: Vec<String> = self.unsynced.iter().cloned().collect();
        is_any.then(|| {
            if names.is_empty() {
                return "there is no storage location that could tell whether a Backup is gone".to_owned();
            }
            format!(
                "not available, or berth's sync has not brought all of it for an hour: storage location {}",
                few(&names)
            )
        })
    }

    /// Of what there is more than was read.
    pub fn more(&self) -> Option<String> {
        let kinds: Vec<String> = self.unread.iter().map(|kind| (*kind).to_owned()).collect();
        (!kinds.is_empty()).then(|| {
            format!("there are more than {MOST} objects of kind {}: the rest was not read", kinds.join(", "))
        })
    }
}

/// Told by `berth check`.
pub(super) async fn find(cluster: &InstallCluster) -> Finding {
    let left = match inspect(cluster).await {
        Ok(left) => left,
        Err(error) => {
            let message = format!("cannot be looked for: {error:#}");
            let fix = "run this as somebody who may list VolumeSnapshots and Backups in all namespaces";
            return Finding::warning(CHECK, message, fix);
        }
    };
    if left.all.is_empty() {
        let nothing = "nothing is left of backups that are gone";
        return Finding::ok(
            CHECK,
            left.more().map_or(nothing.to_owned(), |more| format!("{nothing}; {more}")),
        );
    }
    let names: Vec<String> = left.all.iter().map(Leftover::title).collect();
    let removable = left.to_remove().count();
    let mut message =
        format!("{} objects seem to be left of backups that are gone: {}", names.len(), few(&names));
    for why in left.unknown().into_iter().chain(left.more()) {
        message = format!("{message}; {why}");
    }
    let again = format!("berth check --clean --namespace {}", cluster.namespace);
    let fix = match removable {
        0 => format!("{again} says of each why it is not removed"),
        _ => format!("{again} removes {removable} of them, after asking"),
    };
    Finding::warning(CHECK, message, fix)
}

/// Looks for it: first at the objects, then at what could still need them.
///
/// # Errors
/// When something cannot be listed.
pub async fn inspect(cluster: &InstallCluster) -> anyhow::Result<Leftovers> {
    let InstallCluster { client, namespace } = cluster;
    let claims = list(&dynamic::<PersistentVolumeClaim>(client, Some(namespace)), AbsentKind::Fault).await?;
    let uploads = list(&dynamic::<DataUpload>(client, Some(namespace)), AbsentKind::Empty).await?;
    let snapshots = list(&snapshots(client, None), AbsentKind::Empty).await?;
    let groups = list(&groups(client, None), AbsentKind::Unknown).await?;
    // What one does not know of groups, one cannot say of their contents.
    let group_contents = if groups.is_there {
        list(&group_contents(client), AbsentKind::Fault).await?
    } else {
        KindListing::absent()
    };
    let contents = list(&contents(client), AbsentKind::Empty).await?;
    let locations = locations(client).await?;
    let backups = Api::<Backup>::all(client.clone());
    let names = |backup: &ObjectMeta| {
        (label_value(backup.name.as_deref().unwrap_or_default(), digest), backup.uid.clone())
    };
    let ask = async |params: &ListParams| backups.list_metadata(params).await;
    let backups =
        read(ask, AbsentKind::Fault, MOST, |backup: PartialObjectMeta<Backup>| names(&backup.metadata))
            .await?;
    let now = match server_time(cluster).await {
        Ok(now) => now,
        Err(_) => Timestamp::now(),
    };
    let unsynced: BTreeSet<String> =
        locations.all.iter().filter(|(_, one)| !one.is_known(now)).map(|(name, _)| name.clone()).collect();
    let is_unread = [
        (CLAIM, claims.is_cut),
        (UPLOAD, uploads.is_cut),
        (SNAPSHOT, snapshots.is_cut),
        (GROUP, groups.is_cut),
        (CONTENT, contents.is_cut),
        (GROUP_CONTENT, group_contents.is_cut),
        (LOCATION, locations.is_cut),
        (BACKUP, backups.is_cut),
    ];
    let unread = is_unread.into_iter().filter(|(_, is_cut)| *is_cut).map(|(kind, _)| kind).collect();
    let (names, uids): (BTreeSet<_>, Vec<_>) = backups.all.into_iter().unzip();
    let mut known =
        ExistingBackups { names, uids: uids.into_iter().flatten().collect(), unsynced: unsynced.clone() };
    // No store tells of what it has.
    if locations.all.is_empty() {
        known.unsynced.insert(String::new());
    }
    let (claims, uploads) = (claims.all, uploads.all);
    let objects = ListedLeftovers {
        claims,
        uploads,
        snapshots: snapshots.all,
        groups: groups.all,
        contents: contents.all,
        group_contents: group_contents.all,
        namespace,
        unread,
    };
    let all = objects.judge(&known, now);
    let synced = locations.all.into_iter().map(|(name, one)| (name, one.at)).collect();
    Ok(Leftovers { all, synced, unsynced, unread: objects.unread })
}

/// Removes what is left in `now` and was left in `before`, and says of each what became of it.
pub async fn remove(cluster: &InstallCluster, before: &Leftovers, now: Leftovers) -> Vec<Leftover> {
    let known: BTreeSet<&String> = before.to_remove().filter_map(|one| one.uid.as_ref()).collect();
    let mut all = Vec::new();
    for mut one in now.all {
        if one.doubt.is_none() {
            let is_asked = one.uid.as_ref().is_some_and(|uid| known.contains(uid));
            one.outcome = if is_asked { one.remove(cluster).await } else { continue };
        }
        all.push(one);
    }
    all
}

/// What [`remove`] says of an object that was removed.
pub const REMOVED: &str = "removed";

impl Leftover {
    fn of(object: &DynamicObject, kind: &'static str, verdict: LeftoverDecision) -> Option<Self> {
        let doubt = match verdict {
            LeftoverDecision::Leave => return None,
            LeftoverDecision::Remove => None,
            LeftoverDecision::Tell(doubt) => Some(doubt),
        };
        Some(Self {
            kind,
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            backup: label(object, BACKUP_NAME),
            doubt,
            outcome: doubt.map(|doubt| doubt.to_string()).unwrap_or_default(),
            uid: object.uid(),
            version: object.resource_version(),
        })
    }

    /// As in `VolumeSnapshot shop/velero-data-1`.
    pub fn title(&self) -> String {
        let Self { kind, namespace, name, .. } = self;
        if namespace.is_empty() { format!("{kind} {name}") } else { format!("{kind} {namespace}/{name}") }
    }

    /// Only this very object, as it was looked at.
    async fn remove(&self, cluster: &InstallCluster) -> String {
        let namespace = Some(self.namespace.as_str());
        let api = match self.kind {
            SNAPSHOT => snapshots(&cluster.client, namespace),
            GROUP => groups(&cluster.client, namespace),
            CONTENT => contents(&cluster.client),
            GROUP_CONTENT => group_contents(&cluster.client),
            UPLOAD => dynamic::<DataUpload>(&cluster.client, namespace),
            _ => dynamic::<PersistentVolumeClaim>(&cluster.client, namespace),
        };
        let write = Write::to(&self.name).uid(self.uid.as_deref()).version(self.version.as_deref());
        match delete(&api, write).await {
            WriteResult::Written(()) | WriteResult::Gone(_) => REMOVED.to_owned(),
            WriteResult::Conflict(_) => "left: it has changed meanwhile".to_owned(),
            WriteResult::Refused(error) => format!("left: {}", chain(&error)),
            WriteResult::TimedOut => "the API server did not answer in time: perhaps removed".to_owned(),
        }
    }
}
