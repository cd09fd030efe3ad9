//! What backups that are gone have left in the cluster: looked for, told, and removed where
//! [`berth_core::leftover`] allows it.
//!
//! A Backup that somebody deletes while its location still has it comes back with the next sync. So
//! before anything is removed every location is synced twice, the first time perhaps half over when it
//! begins to count, and what is removed was left before and after.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use berth_api::keys::{BACKUP_NAME, BACKUP_UID, RESTORE_NAME, RESTORE_UID, label_value};
use berth_api::velero::{Backup, BackupStorageLocation, DataUpload};
use berth_core::leftover::{Doubt, Found, Known, OfContent, OfCopy, Policy, Synced, Verdict, What, judge};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::{GroupVersionKind, ObjectMeta};
use kube::{Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use super::Finding;
use super::operation::server_time;
use crate::client::is_not_found;
use crate::install::Cluster;
use crate::pace::counted;
use crate::patch::digest;
use crate::text::{chain, few};
use crate::write::{Answer, Write, delete};

const CHECK: &str = "leftovers";
/// Time-out of one page of a list, and its objects.
const LIST: Duration = Duration::from_secs(30);
const PAGE: u32 = 500;
/// Objects of one kind that are looked at.
const MOST: usize = 100_000;
/// How long locations are waited for, and how often they are looked at.
const PATIENCE: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_secs(1);
/// How often each location is synced before anything is removed.
const ROUNDS: usize = 2;
/// What a backup, by Velero or by berth, begins the names of its VolumeSnapshots with.
const MADE: &str = "velero-";

/// A VolumeSnapshot, a VolumeSnapshotContent, a DataUpload or a claim that seems to be left.
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
pub struct Left {
    /// In the order in which it is removed.
    pub all: Vec<Leftover>,
    /// When each location was last synced.
    synced: BTreeMap<String, Option<Timestamp>>,
    /// Locations that may still bring Backups.
    unsynced: BTreeSet<String>,
}

impl Left {
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
            format!("not available, or not synced for an hour: storage location {}", few(&names))
        })
    }
}

/// Told by `berth check`.
pub(super) async fn find(cluster: &Cluster) -> Finding {
    let left = match look(cluster).await {
        Ok(left) => left,
        Err(error) => {
            let message = format!("cannot be looked for: {error:#}");
            let fix = "run this as somebody who may list VolumeSnapshots and Backups in all namespaces";
            return Finding::warning(CHECK, message, fix);
        }
    };
    if left.all.is_empty() {
        return Finding::ok(CHECK, "nothing is left of backups that are gone");
    }
    let names: Vec<String> = left.all.iter().map(Leftover::title).collect();
    let removable = left.to_remove().count();
    let mut message =
        format!("{} objects seem to be left of backups that are gone: {}", names.len(), few(&names));
    if let Some(why) = left.unknown() {
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
pub async fn look(cluster: &Cluster) -> anyhow::Result<Left> {
    let Cluster { client, namespace } = cluster;
    let claims = list(&dynamic::<PersistentVolumeClaim>(client, Some(namespace))).await?;
    let uploads = list(&dynamic::<DataUpload>(client, Some(namespace))).await?;
    let snapshots = list(&snapshots(client, None)).await?;
    let contents = list(&contents(client)).await?;
    let locations = list(&dynamic::<BackupStorageLocation>(client, None)).await?;
    let backups = list(&dynamic::<Backup>(client, None)).await?;
    let now = match server_time(cluster).await {
        Ok(now) => now,
        Err(_) => Timestamp::now(),
    };
    let synced: BTreeMap<_, _> =
        locations.iter().map(|location| (path(location), synced(location))).collect();
    let unsynced: BTreeSet<String> =
        synced.iter().filter(|(_, one)| !one.is_known(now)).map(|(name, _)| name.clone()).collect();
    let mut known = Known {
        names: backups.iter().map(|backup| label_value(&backup.name_any(), digest)).collect(),
        uids: backups.iter().filter_map(kube::ResourceExt::uid).collect(),
        unsynced: unsynced.clone(),
    };
    // No store tells of what it has.
    if locations.is_empty() {
        known.unsynced.insert(String::new());
    }
    let all = Objects { claims, uploads, snapshots, contents, namespace }.judge(&known, now);
    Ok(Left { all, synced: synced.into_iter().map(|(name, one)| (name, one.at)).collect(), unsynced })
}

/// Waits until each location has been synced twice since.
///
/// # Errors
/// When they cannot be listed, or one was not synced in time.
pub async fn wait_synced(cluster: &Cluster, left: &Left) -> anyhow::Result<()> {
    let mut seen: BTreeMap<String, (Option<Timestamp>, usize)> =
        left.synced.iter().map(|(name, at)| (name.clone(), (*at, 0))).collect();
    seen.retain(|name, _| !left.unsynced.contains(name));
    let until = Instant::now() + PATIENCE;
    loop {
        let locations = list(&dynamic::<BackupStorageLocation>(&cluster.client, None)).await?;
        let now: BTreeMap<String, Option<Timestamp>> =
            locations.iter().map(|location| (path(location), synced(location).at)).collect();
        // A new one may bring Backups, too. For those that are not synced nothing is removed anyway.
        for (name, at) in now.iter().filter(|(name, _)| !left.unsynced.contains(*name)) {
            let (last, rounds) = seen.entry(name.clone()).or_insert((*at, 0));
            if *last != *at {
                (*last, *rounds) = (*at, *rounds + 1);
            }
        }
        seen.retain(|name, _| now.contains_key(name));
        let late = seen.iter().filter(|(_, (_, rounds))| *rounds < ROUNDS).map(|(name, _)| name.clone());
        let late: Vec<String> = late.collect();
        if late.is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            let late = few(&late);
            anyhow::bail!(
                "nothing was deleted: in {} s storage location {late} was not synced twice, and might bring a Backup back",
                PATIENCE.as_secs()
            );
        }
        sleep(LOOK).await;
    }
}

/// Removes what is left in `now` and was left in `before`, and says of each what became of it.
pub async fn remove(cluster: &Cluster, before: &Left, now: Left) -> Vec<Leftover> {
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
    fn of(object: &DynamicObject, kind: &'static str, verdict: Verdict) -> Option<Self> {
        let doubt = match verdict {
            Verdict::Leave => return None,
            Verdict::Remove => None,
            Verdict::Tell(doubt) => Some(doubt),
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
    async fn remove(&self, cluster: &Cluster) -> String {
        let namespace = Some(self.namespace.as_str());
        let api = match self.kind {
            SNAPSHOT => snapshots(&cluster.client, namespace),
            CONTENT => contents(&cluster.client),
            UPLOAD => dynamic::<DataUpload>(&cluster.client, namespace),
            _ => dynamic::<PersistentVolumeClaim>(&cluster.client, namespace),
        };
        let write = Write::to(&self.name).uid(self.uid.as_deref()).version(self.version.as_deref());
        match delete(&api, write).await {
            Answer::Written(()) | Answer::Gone(_) => REMOVED.to_owned(),
            Answer::Conflict(_) => "left: it has changed meanwhile".to_owned(),
            Answer::Refused(error) => format!("left: {}", chain(&error)),
            Answer::TimedOut => "the API server did not answer in time: perhaps removed".to_owned(),
        }
    }
}

const SNAPSHOT: &str = "VolumeSnapshot";
const CONTENT: &str = "VolumeSnapshotContent";
const UPLOAD: &str = "DataUpload";
const CLAIM: &str = "PersistentVolumeClaim";

/// What was listed.
struct Objects<'a> {
    claims: Vec<DynamicObject>,
    uploads: Vec<DynamicObject>,
    snapshots: Vec<DynamicObject>,
    contents: Vec<DynamicObject>,
    /// Of the DataUploads.
    namespace: &'a str,
}

impl Objects<'_> {
    /// DataUploads come first, because their node-agents clear up behind them; claims before the
    /// copies that they are made from.
    fn judge(&self, known: &Known, now: Timestamp) -> Vec<Leftover> {
        let decide = |object: &DynamicObject, what: What| judge(&found(object, what, now), known, now);
        let mut left = Vec::new();
        let mut uploads: HashMap<String, Verdict> = HashMap::new();
        for upload in &self.uploads {
            let is_made = upload.labels().contains_key(BACKUP_UID) || owner(upload, "Backup").is_some();
            let verdict = decide(upload, What::Upload { is_made });
            uploads.insert(upload.name_any(), verdict);
            left.extend(Leftover::of(upload, UPLOAD, verdict));
        }
        let uids: BTreeSet<String> = self.uploads.iter().filter_map(kube::ResourceExt::uid).collect();
        for claim in &self.claims {
            let Some(upload) = owner(claim, UPLOAD) else { continue };
            let verdict = decide(claim, What::Claim { is_owner_there: uids.contains(upload) });
            left.extend(Leftover::of(claim, CLAIM, verdict));
        }
        let policies: HashMap<&str, Policy> = self
            .contents
            .iter()
            .map(|content| (text(content, "/spec/volumeSnapshotRef/uid"), policy(content)))
            .collect();
        let (mut copies, mut own) = (Vec::new(), Vec::new());
        for snapshot in &self.snapshots {
            if self.is_copy(snapshot) {
                let of = match uploads.get(&snapshot.name_any()) {
                    Some(Verdict::Remove) => OfCopy::Left,
                    Some(_) => OfCopy::Kept,
                    None => OfCopy::Gone,
                };
                copies.extend(Leftover::of(snapshot, SNAPSHOT, decide(snapshot, What::Copy(of))));
                continue;
            }
            let is_made = snapshot.name_any().starts_with(MADE) || snapshot.labels().contains_key(BACKUP_UID);
            let policy = snapshot.uid().and_then(|uid| policies.get(uid.as_str()).copied());
            own.extend(Leftover::of(
                snapshot,
                SNAPSHOT,
                decide(snapshot, What::Snapshot { is_made, policy }),
            ));
        }
        left.extend(copies);
        left.extend(own);
        let there: BTreeSet<String> = self.snapshots.iter().filter_map(kube::ResourceExt::uid).collect();
        for content in &self.contents {
            let snapshot = match text(content, "/spec/volumeSnapshotRef/uid") {
                "" => OfContent::Never,
                uid if there.contains(uid) => OfContent::There,
                _ => OfContent::Gone,
            };
            let verdict = decide(content, What::Content { snapshot, policy: policy(content) });
            left.extend(Leftover::of(content, CONTENT, verdict));
        }
        left
    }

    /// Node-agents give a copy, and the content that it is made from, the name of the DataUpload, and
    /// no label.
    fn is_copy(&self, snapshot: &DynamicObject) -> bool {
        snapshot.namespace().as_deref() == Some(self.namespace)
            && text(snapshot, "/spec/source/volumeSnapshotContentName") == snapshot.name_any()
            && !snapshot.labels().contains_key(BACKUP_NAME)
    }
}

fn found(object: &DynamicObject, what: What, now: Timestamp) -> Found {
    Found {
        what,
        backup: label(object, BACKUP_NAME),
        backup_uid: label(object, BACKUP_UID),
        is_restored: [RESTORE_NAME, RESTORE_UID].iter().any(|key| object.labels().contains_key(*key)),
        is_going: object.metadata.deletion_timestamp.is_some(),
        created: object.creation_timestamp().map(|time| counted(time.0, now)),
    }
}

fn label(object: &DynamicObject, key: &str) -> String {
    object.labels().get(key).cloned().unwrap_or_default()
}

fn text<'o>(object: &'o DynamicObject, pointer: &str) -> &'o str {
    object.data.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn policy(content: &DynamicObject) -> Policy {
    Policy::of(text(content, "/spec/deletionPolicy"))
}

/// The UID of the owner of that kind.
fn owner<'o>(object: &'o DynamicObject, kind: &str) -> Option<&'o String> {
    object.owner_references().iter().find(|owner| owner.kind == kind).map(|owner| &owner.uid)
}

fn synced(location: &DynamicObject) -> Synced {
    Synced {
        is_available: text(location, "/status/phase") == "Available",
        at: text(location, "/status/lastSyncedTime").parse().ok(),
    }
}

fn path(object: &DynamicObject) -> String {
    let ObjectMeta { namespace, name, .. } = &object.metadata;
    format!("{}/{}", namespace.as_deref().unwrap_or_default(), name.as_deref().unwrap_or_default())
}

fn dynamic<K: Resource<DynamicType = ()>>(client: &Client, namespace: Option<&str>) -> Api<DynamicObject> {
    of_kind(client, namespace, &ApiResource::erase::<K>(&()))
}

fn snapshots(client: &Client, namespace: Option<&str>) -> Api<DynamicObject> {
    of_kind(client, namespace, &snapshot_kind(SNAPSHOT, "volumesnapshots"))
}

fn contents(client: &Client) -> Api<DynamicObject> {
    of_kind(client, None, &snapshot_kind(CONTENT, "volumesnapshotcontents"))
}

fn snapshot_kind(kind: &str, plural: &str) -> ApiResource {
    let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", kind);
    ApiResource::from_gvk_with_plural(&kind, plural)
}

fn of_kind(client: &Client, namespace: Option<&str>, kind: &ApiResource) -> Api<DynamicObject> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, kind),
        None => Api::all_with(client.clone(), kind),
    }
}

/// All of them; none where the cluster has no such kind.
async fn list(api: &Api<DynamicObject>) -> anyhow::Result<Vec<DynamicObject>> {
    let mut params = ListParams::default().limit(PAGE);
    let mut all = Vec::new();
    loop {
        let page = timeout(LIST, api.list(&params)).await.context("the API server did not answer in time")?;
        let page = match page {
            Ok(page) => page,
            Err(error) if is_not_found(&error) => return Ok(all),
            Err(error) => return Err(anyhow!(chain(&error))),
        };
        all.extend(page.items);
        anyhow::ensure!(all.len() < MOST, "there are more than {MOST} objects of one kind");
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(metadata: Value, spec: Value) -> DynamicObject {
        let mut whole = json!({"apiVersion": "v1", "kind": "X", "metadata": metadata, "spec": spec});
        whole["metadata"]["creationTimestamp"] = json!("2026-09-21T10:00:00Z");
        serde_json::from_value(whole).unwrap()
    }

    #[test]
    fn what_is_left_is_told_with_its_reason_and_in_the_order_of_its_removal() {
        let gone = json!({"velero.io/backup-name": "gone"});
        let both = json!({"velero.io/backup-name": "gone", "velero.io/backup-uid": "u-0"});
        let of_claim = json!({"source": {"persistentVolumeClaimName": "data"}});
        let copy_of = |name: &str| json!({"source": {"volumeSnapshotContentName": name}});
        let content =
            |uid: &str, policy: &str| json!({"deletionPolicy": policy, "volumeSnapshotRef": {"uid": uid}});
        let owned = |by: &str| json!([{"apiVersion": "velero.io/v2alpha1", "kind": "DataUpload", "name": "x", "uid": by}]);
        let named = |name: &str, uid: &str, namespace: &str, labels: &Value| json!({"name": name, "uid": uid, "namespace": namespace, "labels": labels});
        let mut claim = named("gone-1", "c-1", "velero", &json!({}));
        claim["ownerReferences"] = owned("nobody");
        let mut claimed = named("gone-2", "c-2", "velero", &json!({}));
        claimed["ownerReferences"] = owned("d-1");
        let objects = Objects {
            namespace: "velero",
            claims: vec![object(claim, json!({})), object(claimed, json!({}))],
            uploads: vec![
                object(named("gone-2", "d-1", "velero", &both), json!({})),
                object(
                    named(
                        "here-1",
                        "d-2",
                        "velero",
                        &json!({"velero.io/backup-name": "here", "velero.io/backup-uid": "u-1"}),
                    ),
                    json!({}),
                ),
            ],
            snapshots: vec![
                object(named("velero-data-1", "s-1", "shop", &gone), of_claim.clone()),
                object(named("velero-kept-1", "s-2", "shop", &both), of_claim.clone()),
                object(named("mine", "s-3", "shop", &gone), of_claim.clone()),
                object(named("velero-other", "s-4", "shop", &json!({})), of_claim.clone()),
                object(named("gone-2", "s-5", "velero", &json!({})), copy_of("gone-2")),
                object(named("here-1", "s-6", "velero", &json!({})), copy_of("here-1")),
                object(named("lost-1", "s-7", "velero", &json!({})), copy_of("lost-1")),
                object(named("lost-2", "s-8", "shop", &json!({})), copy_of("lost-2")),
            ],
            contents: vec![
                object(json!({"name": "of-1", "uid": "k-1"}), content("s-1", "Delete")),
                object(json!({"name": "of-2", "uid": "k-2", "labels": gone}), content("s-2", "Retain")),
                object(json!({"name": "of-none", "uid": "k-3", "labels": gone}), content("s-0", "Retain")),
                object(json!({"name": "of-nothing", "uid": "k-4", "labels": gone}), content("s-0", "Delete")),
                object(json!({"name": "by-hand", "uid": "k-5", "labels": gone}), content("", "Delete")),
                object(json!({"name": "else", "uid": "k-6"}), content("s-0", "Retain")),
            ],
        };
        let set = |one: &str| BTreeSet::from([one.to_owned()]);
        let mut known = Known { names: set("here"), uids: set("u-1"), unsynced: BTreeSet::new() };
        let now: Timestamp = "2026-09-21T11:00:00Z".parse().unwrap();
        let told = |known: &Known, now: Timestamp| -> Vec<(String, Option<Doubt>)> {
            objects.judge(known, now).into_iter().map(|one| (one.title(), one.doubt)).collect()
        };
        let expected = [
            ("DataUpload velero/gone-2", None),
            ("PersistentVolumeClaim velero/gone-1", None),
            ("VolumeSnapshot velero/gone-2", None),
            ("VolumeSnapshot velero/lost-1", Some(Doubt::Unnamed)),
            ("VolumeSnapshot shop/velero-data-1", None),
            ("VolumeSnapshot shop/velero-kept-1", Some(Doubt::Retained)),
            ("VolumeSnapshotContent of-none", Some(Doubt::Retained)),
            ("VolumeSnapshotContent of-nothing", None),
        ];
        let expected: Vec<_> = expected.into_iter().map(|(title, doubt)| (title.to_owned(), doubt)).collect();
        assert_eq!(told(&known, now), expected);
        let soon: Timestamp = "2026-09-21T10:10:00Z".parse().unwrap();
        assert_eq!(told(&known, soon), [], "all of them are young");
        known.names.insert("gone".to_owned());
        let left: Vec<String> = told(&known, now).into_iter().map(|(title, _)| title).collect();
        assert_eq!(left, ["PersistentVolumeClaim velero/gone-1", "VolumeSnapshot velero/lost-1"]);
    }
}
