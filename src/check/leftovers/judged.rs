//! Which of the listed objects are left: what each of them is, and what could still need it, for
//! [`berth_core::leftover`] to judge.

use std::collections::{BTreeSet, HashMap};

use berth_api::keys::{BACKUP_NAME, BACKUP_UID, RESTORE_NAME, RESTORE_UID};
use berth_core::leftover::{
    Doubt, ExistingBackups, LeftoverCandidate, LeftoverDecision, LeftoverKind, OfContent, OfCopy, Policy,
    SnapshotContent, judge,
};
use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::DynamicObject;

use super::kept::{
    GROUP_UID, OF_CONTENT, OF_GROUP_HANDLE, OF_HANDLE, OF_VOLUME, OF_VOLUMES, POLICY, SNAPSHOT_UID,
    group_handle, handle, label, owner, text,
};
use super::{BACKUP, CLAIM, CONTENT, GROUP, GROUP_CONTENT, LOCATION, Leftover, SNAPSHOT, UPLOAD};
use crate::pace::counted;

/// What a backup, by Velero or by berth, begins the names of its VolumeSnapshots with.
const MADE: &str = "velero-";

/// What was listed.
pub(super) struct ListedLeftovers<'a> {
    pub claims: Vec<DynamicObject>,
    pub uploads: Vec<DynamicObject>,
    pub snapshots: Vec<DynamicObject>,
    /// VolumeGroupSnapshots.
    pub groups: Vec<DynamicObject>,
    pub contents: Vec<DynamicObject>,
    /// VolumeGroupSnapshotContents.
    pub group_contents: Vec<DynamicObject>,
    /// Of the DataUploads.
    pub namespace: &'a str,
    /// Kinds of which there are more.
    pub unread: BTreeSet<&'static str>,
}

impl ListedLeftovers<'_> {
    /// DataUploads come first, because their node-agents clear up behind them; claims before the
    /// copies that they are made from.
    pub(super) fn judge(&self, known: &ExistingBackups, now: Timestamp) -> Vec<Leftover> {
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
        let shared_snapshots = shared(self.contents.iter().filter_map(handle));
        let traits = |content: &DynamicObject| SnapshotContent {
            policy: Policy::of(text(content, POLICY)),
            is_taken: !text(content, OF_VOLUME).is_empty() && text(content, OF_HANDLE).is_empty(),
            is_shared: handle(content).is_some_and(|handle| shared_snapshots.contains(&handle)),
        };
        let shared_groups = shared(self.group_contents.iter().filter_map(group_handle));
        let group_traits = |content: &DynamicObject| SnapshotContent {
            policy: Policy::of(text(content, POLICY)),
            is_taken: !text(content, OF_VOLUMES).is_empty() && text(content, OF_GROUP_HANDLE).is_empty(),
            is_shared: group_handle(content).is_some_and(|handle| shared_groups.contains(&handle)),
        };
        let by_snapshot: HashMap<&str, SnapshotContent> =
            self.contents.iter().map(|content| (text(content, SNAPSHOT_UID), traits(content))).collect();
        let (mut copies, mut own) = (Vec::new(), Vec::new());
        // With a group its content goes, and all of its snapshots.
        let mut of_groups: HashMap<&str, SnapshotContent> = HashMap::new();
        for content in &self.group_contents {
            add(&mut of_groups, text(content, GROUP_UID), group_traits(content));
        }
        for snapshot in &self.snapshots {
            let content = snapshot.uid().and_then(|uid| by_snapshot.get(uid.as_str()).copied());
            if let (Some(group), Some(content)) = (owner(snapshot, GROUP), content) {
                add(&mut of_groups, group, content);
            }
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
        for group in &self.groups {
            let is_made = group.name_any().starts_with(MADE) && group.labels().contains_key(BACKUP_NAME);
            let content = group.uid().and_then(|uid| of_groups.get(uid.as_str()).copied());
            let verdict = decide(group, GROUP, LeftoverKind::Snapshot { is_made, content });
            own.extend(Leftover::of(group, GROUP, verdict));
        }
        left.extend(copies);
        left.extend(own);
        let there: BTreeSet<String> = self.snapshots.iter().filter_map(kube::ResourceExt::uid).collect();
        for content in &self.contents {
            let snapshot = of_content(text(content, SNAPSHOT_UID), &there);
            let verdict =
                decide(content, CONTENT, LeftoverKind::Content { snapshot, content: traits(content) });
            left.extend(Leftover::of(content, CONTENT, verdict));
        }
        let there: BTreeSet<String> = self.groups.iter().filter_map(kube::ResourceExt::uid).collect();
        for content in &self.group_contents {
            let snapshot = of_content(text(content, GROUP_UID), &there);
            let what = LeftoverKind::Content { snapshot, content: group_traits(content) };
            left.extend(Leftover::of(content, GROUP_CONTENT, decide(content, GROUP_CONTENT, what)));
        }
        left
    }

    /// Could an object that was not read need one of this kind?
    fn may_be_needed(&self, kind: &str) -> bool {
        let needed_by: &[&str] = match kind {
            UPLOAD => &[BACKUP, LOCATION],
            CLAIM => &[UPLOAD],
            GROUP | GROUP_CONTENT => &[BACKUP, LOCATION, UPLOAD, SNAPSHOT, CONTENT, GROUP, GROUP_CONTENT],
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

/// The handles that several contents have.
fn shared<'h>(handles: impl Iterator<Item = (&'h str, &'h str)>) -> BTreeSet<(&'h str, &'h str)> {
    let mut seen = BTreeSet::new();
    handles.filter(|handle| !seen.insert(*handle)).collect()
}

/// Notes what goes with a group (its UID).
fn add<'g>(all: &mut HashMap<&'g str, SnapshotContent>, group: &'g str, content: SnapshotContent) {
    all.entry(group).and_modify(|of_group| *of_group = of_group.and(content)).or_insert(content);
}

/// `uid`: what a content says of the object that it is of. `there`: those that were listed.
fn of_content(uid: &str, there: &BTreeSet<String>) -> OfContent {
    match uid {
        "" => OfContent::Never,
        uid if there.contains(uid) => OfContent::There,
        _ => OfContent::Gone,
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::kept::HANDLE;
    use super::super::kept::tests::object;
    use super::*;

    #[test]
    fn what_is_left_is_told_with_its_reason_and_in_the_order_of_its_removal() {
        let gone = json!({"velero.io/backup-name": "gone"});
        let both = json!({"velero.io/backup-name": "gone", "velero.io/backup-uid": "u-0"});
        let of_claim = json!({"source": {"persistentVolumeClaimName": "data"}});
        let copy_of = |name: &str| json!({"source": {"volumeSnapshotContentName": name}});
        let content = |uid: &str, policy: &str| json!({"deletionPolicy": policy, "driver": "d", "source": {"volumeHandle": "v"}, "volumeSnapshotRef": {"uid": uid}});
        let brought = |uid: &str, handle: &str| json!({"deletionPolicy": "Delete", "driver": "d", "source": {"snapshotHandle": handle}, "volumeSnapshotRef": {"uid": uid}});
        let group_content = |uid: &str, policy: &str| json!({"deletionPolicy": policy, "driver": "d", "source": {"volumeHandles": ["v"]}, "volumeGroupSnapshotRef": {"uid": uid}});
        let brought_group = |uid: &str| json!({"deletionPolicy": "Delete", "driver": "d", "source": {"groupSnapshotHandles": {"volumeGroupSnapshotHandle": "h"}}, "volumeGroupSnapshotRef": {"uid": uid}});
        let owned = |by: &str| json!([{"apiVersion": "velero.io/v2alpha1", "kind": "DataUpload", "name": "x", "uid": by}]);
        let named = |name: &str, uid: &str, namespace: &str, labels: &Value| json!({"name": name, "uid": uid, "namespace": namespace, "labels": labels});
        let mut claim = named("gone-1", "c-1", "velero", &json!({}));
        claim["ownerReferences"] = owned("nobody");
        let mut claimed = named("gone-2", "c-2", "velero", &json!({}));
        claimed["ownerReferences"] = owned("d-1");
        let mut foreign = named("mine-3", "c-3", "velero", &json!({}));
        foreign["ownerReferences"] =
            json!([{"apiVersion": "movers.example/v1", "kind": "DataUpload", "name": "x", "uid": "nobody"}]);
        let mut member = named("snapshot-1", "s-10", "shop", &json!({}));
        member["ownerReferences"] = json!([
            {"apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot", "name": "x", "uid": "g-2"},
        ]);
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
                object(member, of_claim.clone()),
            ],
            groups: vec![
                object(named("velero-group", "g-1", "shop", &both), json!({})),
                object(named("velero-stored", "g-2", "shop", &both), json!({})),
                object(named("my-group", "g-3", "shop", &both), json!({})),
                object(named("velero-cut", "g-4", "shop", &both), json!({})),
                object(named("velero-begun", "g-5", "shop", &both), json!({})),
            ],
            group_contents: vec![
                object(
                    json!({"name": "of-cut", "uid": "l-1", "labels": gone}),
                    group_content("g-4", "Retain"),
                ),
                object(
                    json!({"name": "of-begun", "uid": "l-2", "labels": gone}),
                    group_content("g-5", "Delete"),
                ),
                object(json!({"name": "cut", "uid": "l-3", "labels": gone}), group_content("g-0", "Retain")),
                object(
                    json!({"name": "begun", "uid": "l-4", "labels": gone}),
                    group_content("g-0", "Delete"),
                ),
                object(json!({"name": "mine", "uid": "l-5"}), group_content("g-0", "Delete")),
                object(json!({"name": "old", "uid": "l-6", "labels": gone}), brought_group("g-0")),
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
                object(json!({"name": "of-member", "uid": "k-10"}), content("s-10", "Retain")),
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
            ("VolumeGroupSnapshot shop/velero-group", None),
            ("VolumeGroupSnapshot shop/velero-stored", Some(Doubt::Retained)),
            // Its content would stay, and nothing would tell of it.
            ("VolumeGroupSnapshot shop/velero-cut", Some(Doubt::Retained)),
            ("VolumeGroupSnapshot shop/velero-begun", None),
            ("VolumeSnapshotContent of-none", Some(Doubt::Retained)),
            ("VolumeSnapshotContent of-nothing", None),
            ("VolumeSnapshotContent brought", Some(Doubt::Brought)),
            ("VolumeGroupSnapshotContent cut", Some(Doubt::Retained)),
            ("VolumeGroupSnapshotContent begun", None),
            ("VolumeGroupSnapshotContent old", Some(Doubt::Brought)),
        ];
        let expected: Vec<_> = expected.into_iter().map(|(title, doubt)| (title.to_owned(), doubt)).collect();
        assert_eq!(told(&objects, &known, now), expected);
        // What was not read may need what was.
        let rest = ["gone-2", "gone-1", "gone-2", "velero-data-1"];
        for (kind, removed) in [
            (CLAIM, [&rest[..], &["velero-group", "velero-begun", "of-nothing", "begun"]].concat()),
            (GROUP, [&rest[..], &["of-nothing"]].concat()),
            (GROUP_CONTENT, [&rest[..], &["of-nothing"]].concat()),
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
}
