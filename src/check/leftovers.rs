//! What backups that are gone have left in the cluster: looked for, told, and removed where
//! [`berth_core::leftover`] allows it.
//!
//! A Backup that somebody deletes while its location still has it comes back with the next sync. So
//! before anything is removed berth's sync has brought all of every location twice, the first time
//! perhaps half over when it begins to count, and what is removed was left before and after.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use berth_api::keys::{ALL_BROUGHT, BACKUP_NAME, BACKUP_UID, RESTORE_NAME, RESTORE_UID, label_value};
use berth_api::velero::{Backup, BackupStorageLocation, DataUpload};
use berth_core::leftover::{
    Doubt, ExistingBackups, LeftoverCandidate, LeftoverDecision, LeftoverKind, LocationSync, OfContent,
    OfCopy, Policy, SnapshotContent, judge,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::{GroupVersionKind, ObjectList, ObjectMeta, PartialObjectMeta};
use kube::{Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use super::Finding;
use super::operation::server_time;
use crate::client::is_not_found;
use crate::install::InstallCluster;
use crate::pace::counted;
use crate::patch::digest;
use crate::text::{chain, few};
use crate::write::{Write, WriteResult, delete};

const CHECK: &str = "leftovers";
/// Time-out of one page of a list, and its objects.
const LIST: Duration = Duration::from_secs(30);
const PAGE: u32 = 100;
/// Objects of one kind that are looked at, some hundred bytes of each.
const MOST: usize = 100_000;
/// Characters of a value that is kept; of longer ones the digest is.
const KEPT: usize = 256;
/// How long locations are waited for, and how often they are looked at.
const PATIENCE: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_secs(1);
/// How often all of each location is brought before anything is removed.
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
    let left = match look(cluster).await {
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
pub async fn look(cluster: &InstallCluster) -> anyhow::Result<Leftovers> {
    let InstallCluster { client, namespace } = cluster;
    let claims = list(&dynamic::<PersistentVolumeClaim>(client, Some(namespace)), AbsentKind::Fault).await?;
    let uploads = list(&dynamic::<DataUpload>(client, Some(namespace)), AbsentKind::Empty).await?;
    let snapshots = list(&snapshots(client, None), AbsentKind::Empty).await?;
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
        (CONTENT, contents.is_cut),
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
        contents: contents.all,
        namespace,
        unread,
    };
    let all = objects.judge(&known, now);
    let synced = locations.all.into_iter().map(|(name, one)| (name, one.at)).collect();
    Ok(Leftovers { all, synced, unsynced, unread: objects.unread })
}

/// Waits until all of each location has been brought twice since.
///
/// # Errors
/// When they cannot be listed, or not all of one was brought in time.
pub async fn wait_synced(cluster: &InstallCluster, left: &Leftovers) -> anyhow::Result<()> {
    let mut rounds = Rounds::after(left);
    let until = Instant::now() + PATIENCE;
    loop {
        let locations = locations(&cluster.client).await?;
        let late = rounds.note(locations.all.into_iter().map(|(name, one)| (name, one.at)).collect());
        if late.is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            let late = few(&late);
            anyhow::bail!(
                "nothing was deleted: in {} s berth's sync has not twice brought all of storage location {late}, which might bring a Backup back",
                PATIENCE.as_secs()
            );
        }
        sleep(LOOK).await;
    }
}

/// How often all of each location was brought since.
struct Rounds<'l> {
    /// When it last was, and how often.
    seen: BTreeMap<String, (Option<Timestamp>, usize)>,
    /// For those that are not known nothing is removed anyway.
    unsynced: &'l BTreeSet<String>,
}

impl<'l> Rounds<'l> {
    fn after(left: &'l Leftovers) -> Self {
        let seen = left.synced.iter().map(|(name, at)| (name.clone(), (*at, 0))).collect();
        Self { seen, unsynced: &left.unsynced }
    }

    /// Notes what the locations say now, and returns those that are not brought often enough.
    fn note(&mut self, now: BTreeMap<String, Option<Timestamp>>) -> Vec<String> {
        self.seen.retain(|name, _| now.contains_key(name));
        // A new one may bring Backups, too.
        for (name, at) in now {
            let (last, rounds) = self.seen.entry(name).or_insert((at, 0));
            // A mark that goes says that a round did not bring all.
            if at > *last {
                (*last, *rounds) = (at, *rounds + 1);
            }
        }
        let late = |(name, (_, rounds)): &(&String, &(Option<Timestamp>, usize))| {
            *rounds < ROUNDS && !self.unsynced.contains(*name)
        };
        self.seen.iter().filter(late).map(|(name, _)| name.clone()).collect()
    }
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
            CONTENT => contents(&cluster.client),
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

const SNAPSHOT: &str = "VolumeSnapshot";
const CONTENT: &str = "VolumeSnapshotContent";
const UPLOAD: &str = "DataUpload";
const CLAIM: &str = "PersistentVolumeClaim";
const LOCATION: &str = "BackupStorageLocation";
const BACKUP: &str = "Backup";

/// What was listed.
struct ListedLeftovers<'a> {
    claims: Vec<DynamicObject>,
    uploads: Vec<DynamicObject>,
    snapshots: Vec<DynamicObject>,
    contents: Vec<DynamicObject>,
    /// Of the DataUploads.
    namespace: &'a str,
    /// Kinds of which there are more.
    unread: BTreeSet<&'static str>,
}

impl ListedLeftovers<'_> {
    /// DataUploads come first, because their node-agents clear up behind them; claims before the
    /// copies that they are made from.
    fn judge(&self, known: &ExistingBackups, now: Timestamp) -> Vec<Leftover> {
        let decide = |object: &DynamicObject, kind: &'static str, what: LeftoverKind| match judge(
            &found(object, what, now),
            known,
            now,
        ) {
            LeftoverDecision::Remove if self.may_be_needed(kind) => LeftoverDecision::Tell(Doubt::Unread),
            verdict => verdict,
        };
        let mut left = Vec::new();
        let mut uploads: HashMap<String, LeftoverDecision> = HashMap::new();
        for upload in &self.uploads {
            let is_made = upload.labels().contains_key(BACKUP_UID) || owner(upload, BACKUP).is_some();
            let verdict = decide(upload, UPLOAD, LeftoverKind::Upload { is_made });
            uploads.insert(upload.name_any(), verdict);
            left.extend(Leftover::of(upload, UPLOAD, verdict));
        }
        let uids: BTreeSet<String> = self.uploads.iter().filter_map(kube::ResourceExt::uid).collect();
        for claim in &self.claims {
            let Some(upload) = owner(claim, UPLOAD) else { continue };
            let verdict = decide(claim, CLAIM, LeftoverKind::Claim { is_owner_there: uids.contains(upload) });
            left.extend(Leftover::of(claim, CLAIM, verdict));
        }
        let mut handles: HashMap<(&str, &str), usize> = HashMap::new();
        for handle in self.contents.iter().filter_map(handle) {
            *handles.entry(handle).or_default() += 1;
        }
        let traits = |content: &DynamicObject| SnapshotContent {
            policy: Policy::of(text(content, POLICY)),
            is_taken: !text(content, OF_VOLUME).is_empty() && text(content, OF_HANDLE).is_empty(),
            is_shared: handle(content).is_some_and(|handle| handles.get(&handle).is_some_and(|all| *all > 1)),
        };
        let by_snapshot: HashMap<&str, SnapshotContent> =
            self.contents.iter().map(|content| (text(content, SNAPSHOT_UID), traits(content))).collect();
        let (mut copies, mut own) = (Vec::new(), Vec::new());
        for snapshot in &self.snapshots {
            let content = snapshot.uid().and_then(|uid| by_snapshot.get(uid.as_str()).copied());
            if self.is_copy(snapshot) {
                let of = match uploads.get(&snapshot.name_any()) {
                    Some(LeftoverDecision::Remove) => OfCopy::Left,
                    Some(_) => OfCopy::Kept,
                    None => OfCopy::Gone,
                };
                let is_shared = content.is_some_and(|content| content.is_shared);
                let verdict = decide(snapshot, SNAPSHOT, LeftoverKind::Copy { of, is_shared });
                copies.extend(Leftover::of(snapshot, SNAPSHOT, verdict));
                continue;
            }
            let is_made =
                snapshot.name_any().starts_with(MADE) && snapshot.labels().contains_key(BACKUP_NAME);
            let verdict = decide(snapshot, SNAPSHOT, LeftoverKind::Snapshot { is_made, content });
            own.extend(Leftover::of(snapshot, SNAPSHOT, verdict));
        }
        left.extend(copies);
        left.extend(own);
        let there: BTreeSet<String> = self.snapshots.iter().filter_map(kube::ResourceExt::uid).collect();
        for content in &self.contents {
            let snapshot = match text(content, SNAPSHOT_UID) {
                "" => OfContent::Never,
                uid if there.contains(uid) => OfContent::There,
                _ => OfContent::Gone,
            };
            let verdict =
                decide(content, CONTENT, LeftoverKind::Content { snapshot, content: traits(content) });
            left.extend(Leftover::of(content, CONTENT, verdict));
        }
        left
    }

    /// Could an object that was not read need one of this kind?
    fn may_be_needed(&self, kind: &str) -> bool {
        let needed_by: &[&str] = match kind {
            UPLOAD => &[BACKUP, LOCATION],
            CLAIM => &[UPLOAD],
            _ => &[BACKUP, LOCATION, UPLOAD, SNAPSHOT, CONTENT],
        };
        needed_by.iter().any(|kind| self.unread.contains(kind))
    }

    /// Node-agents give a copy, and the content that it is made from, the name of the DataUpload,
    /// and no label.
    fn is_copy(&self, snapshot: &DynamicObject) -> bool {
        snapshot.namespace().as_deref() == Some(self.namespace)
            && text(snapshot, OF_CONTENT) == snapshot.name_any()
            && !snapshot.labels().contains_key(BACKUP_NAME)
    }
}

fn found(object: &DynamicObject, what: LeftoverKind, now: Timestamp) -> LeftoverCandidate {
    LeftoverCandidate {
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

const OF_CONTENT: &str = "/spec/source/volumeSnapshotContentName";
const OF_VOLUME: &str = "/spec/source/volumeHandle";
const OF_HANDLE: &str = "/spec/source/snapshotHandle";
const DRIVER: &str = "/spec/driver";
const POLICY: &str = "/spec/deletionPolicy";
const SNAPSHOT_UID: &str = "/spec/volumeSnapshotRef/uid";
const HANDLE: &str = "/status/snapshotHandle";
const PHASE: &str = "/status/phase";
/// All that is kept of an object beside its metadata, by its place.
const FIELDS: [&str; 8] = [OF_CONTENT, OF_VOLUME, OF_HANDLE, DRIVER, POLICY, SNAPSHOT_UID, HANDLE, PHASE];
const LABELS: [&str; 4] = [BACKUP_NAME, BACKUP_UID, RESTORE_NAME, RESTORE_UID];

/// What is kept of an object.
fn kept(object: DynamicObject) -> DynamicObject {
    let DynamicObject { types, metadata, data } = object;
    let short = |text: &str| if text.len() > KEPT { digest(text) } else { text.to_owned() };
    let fields = FIELDS
        .iter()
        .filter_map(|at| Some(((*at).to_owned(), Value::from(short(data.pointer(at)?.as_str()?)))));
    let some = |all: Option<BTreeMap<String, String>>, keys: &[&str]| {
        all.map(|all| {
            all.into_iter().filter(|(key, _)| keys.contains(&key.as_str())).collect::<BTreeMap<_, _>>()
        })
    };
    let owners = metadata.owner_references.map(|mut owners| {
        owners.retain(|owner| {
            owner.api_version.starts_with("velero.io/") && [UPLOAD, BACKUP].contains(&owner.kind.as_str())
        });
        owners
    });
    let metadata = ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        creation_timestamp: metadata.creation_timestamp,
        deletion_timestamp: metadata.deletion_timestamp,
        labels: some(metadata.labels, &LABELS),
        annotations: some(metadata.annotations, &[ALL_BROUGHT]),
        owner_references: owners,
        ..ObjectMeta::default()
    };
    DynamicObject { types, metadata, data: Value::Object(fields.collect()) }
}

fn text<'o>(object: &'o DynamicObject, field: &str) -> &'o str {
    object.data.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Driver and handle of the snapshot of a content.
fn handle(content: &DynamicObject) -> Option<(&str, &str)> {
    let handle =
        [HANDLE, OF_HANDLE].into_iter().map(|at| text(content, at)).find(|handle| !handle.is_empty());
    Some((text(content, DRIVER), handle?))
}

/// The UID of the owner of that kind of Velero's.
fn owner<'o>(object: &'o DynamicObject, kind: &str) -> Option<&'o String> {
    object.owner_references().iter().find(|owner| owner.kind == kind).map(|owner| &owner.uid)
}

fn synced(location: &DynamicObject) -> LocationSync {
    LocationSync {
        is_available: text(location, PHASE) == "Available",
        at: location.annotations().get(ALL_BROUGHT).and_then(|at| at.parse().ok()),
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

/// What is read of one kind.
struct KindListing<T> {
    all: Vec<T>,
    /// There is more.
    is_cut: bool,
}

/// What it means that the cluster has no such kind.
#[derive(Clone, Copy)]
enum AbsentKind {
    /// There are none.
    Empty,
    Fault,
}

async fn list(api: &Api<DynamicObject>, absent: AbsentKind) -> anyhow::Result<KindListing<DynamicObject>> {
    read(async |params: &ListParams| api.list(params).await, absent, MOST, kept).await
}

async fn locations(client: &Client) -> anyhow::Result<KindListing<(String, LocationSync)>> {
    let api = dynamic::<BackupStorageLocation>(client, None);
    let ask = async |params: &ListParams| api.list(params).await;
    read(ask, AbsentKind::Fault, MOST, |location: DynamicObject| {
        let location = kept(location);
        (path(&location), synced(&location))
    })
    .await
}

/// All of them, in pages, up to `most`.
async fn read<K: Clone, T>(
    ask: impl AsyncFn(&ListParams) -> Result<ObjectList<K>, kube::Error>,
    absent: AbsentKind,
    most: usize,
    keep: impl Fn(K) -> T,
) -> anyhow::Result<KindListing<T>> {
    let mut params = ListParams::default().limit(PAGE);
    let mut all = Vec::new();
    loop {
        let is_first = params.continue_token.is_none();
        let page = timeout(LIST, ask(&params)).await.context("the API server did not answer in time")?;
        let page = match page {
            Ok(page) => page,
            Err(error) if is_not_found(&error) && is_first && matches!(absent, AbsentKind::Empty) => {
                return Ok(KindListing { all, is_cut: false });
            }
            Err(error) => return Err(anyhow!(chain(&error))),
        };
        let token = page.metadata.continue_.filter(|token| !token.is_empty());
        let is_cut =
            all.len() + page.items.len() > most || token.is_some() && all.len() + page.items.len() == most;
        all.extend(page.items.into_iter().map(&keep).take(most - all.len()));
        match token {
            Some(token) if !is_cut => params = params.continue_token(&token),
            _ => return Ok(KindListing { all, is_cut }),
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_test_scripted::{Scripted, get};
    use serde_json::json;

    use super::*;

    fn object(metadata: Value, spec: Value) -> DynamicObject {
        let mut whole = json!({"apiVersion": "v1", "kind": "X", "metadata": metadata, "spec": spec});
        whole["metadata"]["creationTimestamp"] = json!("2026-09-21T10:00:00Z");
        kept(serde_json::from_value(whole).unwrap())
    }

    #[test]
    fn what_is_left_is_told_with_its_reason_and_in_the_order_of_its_removal() {
        let gone = json!({"velero.io/backup-name": "gone"});
        let both = json!({"velero.io/backup-name": "gone", "velero.io/backup-uid": "u-0"});
        let of_claim = json!({"source": {"persistentVolumeClaimName": "data"}});
        let copy_of = |name: &str| json!({"source": {"volumeSnapshotContentName": name}});
        let content = |uid: &str, policy: &str| json!({"deletionPolicy": policy, "driver": "d", "source": {"volumeHandle": "v"}, "volumeSnapshotRef": {"uid": uid}});
        let brought = |uid: &str, handle: &str| json!({"deletionPolicy": "Delete", "driver": "d", "source": {"snapshotHandle": handle}, "volumeSnapshotRef": {"uid": uid}});
        let owned = |by: &str| json!([{"apiVersion": "velero.io/v2alpha1", "kind": "DataUpload", "name": "x", "uid": by}]);
        let named = |name: &str, uid: &str, namespace: &str, labels: &Value| json!({"name": name, "uid": uid, "namespace": namespace, "labels": labels});
        let mut claim = named("gone-1", "c-1", "velero", &json!({}));
        claim["ownerReferences"] = owned("nobody");
        let mut claimed = named("gone-2", "c-2", "velero", &json!({}));
        claimed["ownerReferences"] = owned("d-1");
        let mut foreign = named("mine-3", "c-3", "velero", &json!({}));
        foreign["ownerReferences"] =
            json!([{"apiVersion": "movers.example/v1", "kind": "DataUpload", "name": "x", "uid": "nobody"}]);
        let mut objects = ListedLeftovers {
            namespace: "velero",
            unread: BTreeSet::new(),
            claims: vec![object(claim, json!({})), object(claimed, json!({})), object(foreign, json!({}))],
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
                object(named("mine", "s-3", "shop", &both), of_claim.clone()),
                object(named("velero-twice", "s-9", "shop", &gone), of_claim.clone()),
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
                object(json!({"name": "brought", "uid": "k-7", "labels": gone}), brought("s-0", "h-1")),
                object(json!({"name": "of-twice", "uid": "k-8"}), content("s-9", "Delete")),
                object(json!({"name": "second", "uid": "k-9"}), brought("", "h-2")),
            ],
        };
        let twice = objects.contents.iter_mut().find(|one| one.name_any() == "of-twice").unwrap();
        twice.data[HANDLE] = json!("h-2");
        let set = |one: &str| BTreeSet::from([one.to_owned()]);
        let mut known = ExistingBackups { names: set("here"), uids: set("u-1"), unsynced: BTreeSet::new() };
        let now: Timestamp = "2026-09-21T11:00:00Z".parse().unwrap();
        let told =
            |objects: &ListedLeftovers<'_>, known: &ExistingBackups, now| -> Vec<(String, Option<Doubt>)> {
                objects.judge(known, now).into_iter().map(|one| (one.title(), one.doubt)).collect()
            };
        let expected = [
            ("DataUpload velero/gone-2", None),
            ("PersistentVolumeClaim velero/gone-1", None),
            ("VolumeSnapshot velero/gone-2", None),
            ("VolumeSnapshot velero/lost-1", Some(Doubt::Unnamed)),
            ("VolumeSnapshot shop/velero-data-1", None),
            ("VolumeSnapshot shop/velero-kept-1", Some(Doubt::Retained)),
            ("VolumeSnapshot shop/velero-twice", Some(Doubt::Shared)),
            ("VolumeSnapshotContent of-none", Some(Doubt::Retained)),
            ("VolumeSnapshotContent of-nothing", None),
            ("VolumeSnapshotContent brought", Some(Doubt::Brought)),
        ];
        let expected: Vec<_> = expected.into_iter().map(|(title, doubt)| (title.to_owned(), doubt)).collect();
        assert_eq!(told(&objects, &known, now), expected);
        // What was not read may need what was.
        for (kind, removed) in [
            (CLAIM, vec!["gone-2", "gone-1", "gone-2", "velero-data-1", "of-nothing"]),
            (UPLOAD, vec!["gone-2"]),
            (SNAPSHOT, vec!["gone-2", "gone-1"]),
            (CONTENT, vec!["gone-2", "gone-1"]),
            (BACKUP, vec!["gone-1"]),
            (LOCATION, vec!["gone-1"]),
        ] {
            objects.unread = BTreeSet::from([kind]);
            let all = objects.judge(&known, now);
            let found: Vec<&str> =
                all.iter().filter(|one| one.doubt.is_none()).map(|one| one.name.as_str()).collect();
            assert_eq!(found, removed, "{kind}");
        }
        objects.unread.clear();
        let soon: Timestamp = "2026-09-21T10:10:00Z".parse().unwrap();
        assert_eq!(told(&objects, &known, soon), [], "all of them are young");
        known.names.insert("gone".to_owned());
        let left: Vec<String> = told(&objects, &known, now).into_iter().map(|(title, _)| title).collect();
        assert_eq!(left, ["PersistentVolumeClaim velero/gone-1", "VolumeSnapshot velero/lost-1"]);
    }

    #[test]
    fn nothing_of_an_object_is_kept_that_is_not_used() {
        let metadata = json!({
            "name": "s", "uid": "u", "annotations": {"big": "x"}, "managedFields": [],
            "labels": {"velero.io/backup-name": "b", "app": "shop"},
        });
        let long = "h".repeat(KEPT + 1);
        let found = object(metadata, json!({"source": {"snapshotHandle": long}, "more": {"a": 1}}));
        assert_eq!(found.labels().len(), 1);
        assert!(found.annotations().is_empty() && found.metadata.managed_fields.is_none());
        assert_eq!(found.data, json!({OF_HANDLE: digest(&long)}));
    }

    #[test]
    fn a_location_has_to_be_brought_twice_and_whole_to_count() {
        let at = |minute: i64| Timestamp::from_second(minute * 60).ok();
        let of = |all: &[(&str, Option<Timestamp>)]| -> BTreeMap<String, Option<Timestamp>> {
            all.iter().map(|(name, at)| ((*name).to_owned(), *at)).collect()
        };
        let left = Leftovers {
            all: Vec::new(),
            synced: of(&[("v/a", at(5)), ("v/velero", None), ("v/goes", at(5))]),
            unsynced: BTreeSet::from(["v/velero".to_owned()]),
            unread: BTreeSet::new(),
        };
        let mut rounds = Rounds::after(&left);
        for (a, new, late) in [
            (at(5), None, vec!["v/a"]),
            // A round that did not bring all, and one that did.
            (None, None, vec!["v/a"]),
            (at(5), None, vec!["v/a"]),
            (at(6), Some(at(6)), vec!["v/a", "v/new"]),
            (at(7), Some(at(7)), vec!["v/new"]),
            (at(7), Some(at(8)), vec![]),
        ] {
            let mut now = of(&[("v/a", a), ("v/velero", None)]);
            now.extend(new.map(|at| ("v/new".to_owned(), at)));
            assert_eq!(rounds.note(now), late, "{a:?} {new:?}");
        }
    }

    const BACKUPS: &str = "/apis/velero.io/v1/backups";

    fn page(kind: &str, names: &[&str], token: &str) -> Value {
        let items: Vec<Value> = names
            .iter()
            .map(|name| json!({"metadata": {"name": name, "uid": format!("u-{name}")}}))
            .collect();
        json!({
            "apiVersion": "velero.io/v1", "kind": kind, "items": items,
            "metadata": {"continue": token, "resourceVersion": "7"},
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_is_not_found_has_no_objects_only_if_it_may_be_absent_and_at_first() {
        let path = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents";
        let api = Scripted::new().once(get(path).refuses(404));
        let found = list(&contents(&api.client("velero")), AbsentKind::Empty).await.unwrap();
        assert!(found.all.is_empty() && !found.is_cut);
        let api = Scripted::new()
            .next(get(path).answers(page("VolumeSnapshotContentList", &["a"], "more")))
            .next(get(path).page("more").refuses(404));
        assert!(list(&contents(&api.client("velero")), AbsentKind::Empty).await.is_err());
        let api = Scripted::new().once(get(BACKUPS).refuses(404));
        let backups = dynamic::<Backup>(&api.client("velero"), None);
        assert!(list(&backups, AbsentKind::Fault).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_the_limit_is_read_and_the_rest_is_known_to_be_there() {
        for (most, token, read_names, is_cut) in
            [(1, "", vec!["a"], true), (2, "", vec!["a", "b"], false), (2, "more", vec!["a", "b"], true)]
        {
            let api = Scripted::new().once(get(BACKUPS).answers(page("BackupList", &["a", "b"], token)));
            let backups = Api::<Backup>::all(api.client("velero"));
            let ask = async |params: &ListParams| backups.list_metadata(params).await;
            let found = read(ask, AbsentKind::Fault, most, |one: PartialObjectMeta<Backup>| {
                one.metadata.name.unwrap()
            })
            .await
            .unwrap();
            assert_eq!(
                (found.all, found.is_cut),
                (read_names.iter().map(|name| (*name).to_owned()).collect(), is_cut)
            );
        }
    }
}
