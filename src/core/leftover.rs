//! What backups that are gone have left in the cluster, and which of it can be removed: only what
//! is provably of a Backup that is gone. Everything else is told, or left without a word.
//!
//! A Backup is gone if no Backup of the cluster has its name or its UID, and no storage location
//! can still bring one of that name.

use std::collections::BTreeSet;
use std::fmt;

use jiff::{SignedDuration, Timestamp};

/// Younger objects are left: whoever made one may not have come to its end.
pub const YOUNG: SignedDuration = SignedDuration::from_mins(15);
/// A location all of whose backups were brought longer ago than this says nothing about what is in
/// its store.
pub const SYNCED: SignedDuration = SignedDuration::from_hours(1);

/// What stands in the cluster now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExistingBackups {
    /// The names of all Backups of all namespaces, as labels have them.
    pub names: BTreeSet<String>,
    pub uids: BTreeSet<String>,
    /// Storage locations that may still bring Backups.
    pub unsynced: BTreeSet<String>,
}

/// What is known of a storage location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocationSync {
    pub is_available: bool,
    /// When berth's sync last ended with every backup of its store in the cluster.
    pub at: Option<Timestamp>,
}

impl LocationSync {
    /// Would its Backups be in the cluster by now?
    pub fn is_known(&self, now: Timestamp) -> bool {
        self.is_available && self.at.is_some_and(|at| now.duration_since(at) <= SYNCED)
    }
}

/// What becomes of a snapshot in the storage when its content is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// It is deleted, too.
    Delete,
    /// It stays. So does what a newer API calls by another name.
    Retain,
}

impl Policy {
    /// The value of `spec.deletionPolicy`.
    pub fn of(text: &str) -> Self {
        if text == "Delete" { Self::Delete } else { Self::Retain }
    }
}

/// An object that may be left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftoverCandidate {
    pub what: LeftoverKind,
    /// The label with the name of the Backup. Empty: it has none.
    pub backup: String,
    /// The label with the UID of the Backup. Empty: it has none.
    pub backup_uid: String,
    /// A restore has made it, or its claim: labels say so.
    pub is_restored: bool,
    /// Somebody has asked for its deletion.
    pub is_going: bool,
    pub created: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftoverKind {
    /// A VolumeSnapshot or a VolumeGroupSnapshot. `is_made`: a backup has made it, by its name and
    /// its labels; labels alone can be given to somebody's own. `content`: its content, if it has
    /// one, for a group with those of its snapshots ([`SnapshotContent::and`]).
    Snapshot { is_made: bool, content: Option<SnapshotContent> },
    /// A VolumeSnapshotContent or a VolumeGroupSnapshotContent.
    Content { snapshot: OfContent, content: SnapshotContent },
    /// A DataUpload. `is_made`: a backup has made it, by its owner or by the label of the UID.
    Upload { is_made: bool },
    /// A claim that a node-agent has made for a DataUpload, which owns it.
    Claim { is_owner_there: bool },
    /// A VolumeSnapshot that a node-agent has made for a DataUpload, which does not own it.
    /// `is_shared`: another content has the snapshot of its content.
    Copy { of: OfCopy, is_shared: bool },
}

/// What decides about the deletion of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotContent {
    pub policy: Policy,
    /// Its snapshot was taken for it, of a volume. Otherwise somebody has brought a snapshot that
    /// was there before.
    pub is_taken: bool,
    /// Another content has the same snapshot, or group of snapshots.
    pub is_shared: bool,
}

impl SnapshotContent {
    /// What decides about contents that are deleted together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let is_retained = [self, other].iter().any(|one| one.policy == Policy::Retain);
        Self {
            policy: if is_retained { Policy::Retain } else { Policy::Delete },
            is_taken: self.is_taken && other.is_taken,
            is_shared: self.is_shared || other.is_shared,
        }
    }

    fn doubt(self) -> Option<Doubt> {
        if self.policy == Policy::Retain {
            Some(Doubt::Retained)
        } else if !self.is_taken {
            Some(Doubt::Brought)
        } else {
            self.is_shared.then_some(Doubt::Shared)
        }
    }
}

/// The VolumeSnapshot or VolumeGroupSnapshot of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfContent {
    There,
    Gone,
    /// It never had one.
    Never,
}

/// The DataUpload of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfCopy {
    /// It is left, too, and can be removed.
    Left,
    Gone,
    /// It is anything else.
    Kept,
}

/// What becomes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftoverDecision {
    /// It is none that was left, or nobody can know.
    Leave,
    Remove,
    /// It seems to be left, and is not removed.
    Tell(Doubt),
}

/// Why an object that seems to be left is not removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doubt {
    /// Its snapshot is to stay in the storage.
    Retained,
    /// Its snapshot was not taken for it.
    Brought,
    /// Another content has its snapshot, too.
    Shared,
    /// A location may still bring its Backup.
    Unsynced,
    /// There are more objects than were read.
    Unread,
    /// Nothing says of which DataUpload it was.
    Unnamed,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Retained => {
                "its deletion policy is Retain, so somebody may want the snapshot: delete it by hand, after setting Delete if the snapshot is to go, too"
            }
            Self::Brought => {
                "its content was made of a snapshot that was there before, so the snapshot may be somebody's own: delete it by hand if it is not"
            }
            Self::Shared => {
                "another VolumeSnapshotContent has the same snapshot: delete by hand the one that is not wanted, after setting Retain if the snapshot is to stay"
            }
            Self::Unread => "there are more objects than were read, and one of these may need it",
            Self::Unsynced => "a storage location may still bring its Backup",
            Self::Unnamed => {
                "a data mover seems to have made it for a DataUpload that is gone: delete it by hand if that is so"
            }
        })
    }
}

/// Decides on one object. `known` was read after it.
pub fn judge(found: &LeftoverCandidate, known: &ExistingBackups, now: Timestamp) -> LeftoverDecision {
    let is_old = found.created.is_some_and(|created| now.duration_since(created) >= YOUNG);
    if found.is_going || !is_old {
        return LeftoverDecision::Leave;
    }
    let is_of_lost = !found.backup.is_empty()
        && !found.is_restored
        && !known.names.contains(&found.backup)
        && !known.uids.contains(&found.backup_uid);
    let remove = if known.unsynced.is_empty() {
        LeftoverDecision::Remove
    } else {
        LeftoverDecision::Tell(Doubt::Unsynced)
    };
    match found.what {
        // Its owner is gone, and no restore reads it.
        LeftoverKind::Claim { is_owner_there } => {
            if is_owner_there {
                LeftoverDecision::Leave
            } else {
                LeftoverDecision::Remove
            }
        }
        LeftoverKind::Copy { of: OfCopy::Left, is_shared: true } => LeftoverDecision::Tell(Doubt::Shared),
        LeftoverKind::Copy { of: OfCopy::Left, .. } => LeftoverDecision::Remove,
        LeftoverKind::Copy { of: OfCopy::Gone, .. } => LeftoverDecision::Tell(Doubt::Unnamed),
        LeftoverKind::Copy { of: OfCopy::Kept, .. } => LeftoverDecision::Leave,
        _ if !is_of_lost => LeftoverDecision::Leave,
        LeftoverKind::Snapshot { is_made: false, .. } | LeftoverKind::Upload { is_made: false } => {
            LeftoverDecision::Leave
        }
        LeftoverKind::Content { snapshot: OfContent::There | OfContent::Never, .. } => {
            LeftoverDecision::Leave
        }
        LeftoverKind::Snapshot { content: Some(content), .. } | LeftoverKind::Content { content, .. } => {
            content.doubt().map_or(remove, LeftoverDecision::Tell)
        }
        LeftoverKind::Snapshot { .. } | LeftoverKind::Upload { .. } => remove,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Timestamp = Timestamp::constant(1_790_000_000, 0);

    fn known() -> ExistingBackups {
        let set = |one: &str| BTreeSet::from([one.to_owned()]);
        ExistingBackups { names: set("nightly"), uids: set("u-1"), unsynced: BTreeSet::new() }
    }

    fn of(what: LeftoverKind) -> LeftoverCandidate {
        LeftoverCandidate {
            what,
            backup: "gone".to_owned(),
            backup_uid: "u-0".to_owned(),
            is_restored: false,
            is_going: false,
            created: NOW.checked_sub(SignedDuration::from_hours(1)).ok(),
        }
    }

    const TAKEN: SnapshotContent =
        SnapshotContent { policy: Policy::Delete, is_taken: true, is_shared: false };
    const RETAINED: SnapshotContent = SnapshotContent { policy: Policy::Retain, ..TAKEN };
    const BROUGHT: SnapshotContent = SnapshotContent { is_taken: false, ..TAKEN };
    const SHARED: SnapshotContent = SnapshotContent { is_shared: true, ..TAKEN };
    const SNAPSHOT: LeftoverKind = LeftoverKind::Snapshot { is_made: true, content: Some(TAKEN) };
    const UPLOAD: LeftoverKind = LeftoverKind::Upload { is_made: true };
    const CONTENT: LeftoverKind = LeftoverKind::Content { snapshot: OfContent::Gone, content: TAKEN };

    #[test]
    fn each_object_gets_the_verdict_of_its_row() {
        let content = |snapshot, content| of(LeftoverKind::Content { snapshot, content });
        let snapshot = |content| of(LeftoverKind::Snapshot { is_made: true, content });
        let copy = |of_copy, is_shared| of(LeftoverKind::Copy { of: of_copy, is_shared });
        let unsynced = ExistingBackups { unsynced: BTreeSet::from(["default".to_owned()]), ..known() };
        let unsynced = |found: LeftoverCandidate| (found, unsynced.clone());
        let rows = [
            ((of(SNAPSHOT), known()), LeftoverDecision::Remove),
            // It has no content yet, and gets none any more.
            ((snapshot(None), known()), LeftoverDecision::Remove),
            ((snapshot(Some(RETAINED)), known()), LeftoverDecision::Tell(Doubt::Retained)),
            ((snapshot(Some(BROUGHT)), known()), LeftoverDecision::Tell(Doubt::Brought)),
            ((snapshot(Some(SHARED)), known()), LeftoverDecision::Tell(Doubt::Shared)),
            // Somebody's own, with a label that was copied from a claim.
            (
                (of(LeftoverKind::Snapshot { is_made: false, content: Some(TAKEN) }), known()),
                LeftoverDecision::Leave,
            ),
            ((content(OfContent::Gone, TAKEN), known()), LeftoverDecision::Remove),
            ((content(OfContent::Gone, RETAINED), known()), LeftoverDecision::Tell(Doubt::Retained)),
            ((content(OfContent::Gone, BROUGHT), known()), LeftoverDecision::Tell(Doubt::Brought)),
            ((content(OfContent::Gone, SHARED), known()), LeftoverDecision::Tell(Doubt::Shared)),
            ((content(OfContent::There, TAKEN), known()), LeftoverDecision::Leave),
            ((content(OfContent::There, RETAINED), known()), LeftoverDecision::Leave),
            ((content(OfContent::Never, TAKEN), known()), LeftoverDecision::Leave),
            ((of(UPLOAD), known()), LeftoverDecision::Remove),
            ((of(LeftoverKind::Upload { is_made: false }), known()), LeftoverDecision::Leave),
            ((of(LeftoverKind::Claim { is_owner_there: true }), known()), LeftoverDecision::Leave),
            ((of(LeftoverKind::Claim { is_owner_there: false }), known()), LeftoverDecision::Remove),
            ((copy(OfCopy::Left, false), known()), LeftoverDecision::Remove),
            ((copy(OfCopy::Left, true), known()), LeftoverDecision::Tell(Doubt::Shared)),
            ((copy(OfCopy::Kept, false), known()), LeftoverDecision::Leave),
            ((copy(OfCopy::Gone, false), known()), LeftoverDecision::Tell(Doubt::Unnamed)),
            // A location may bring the Backup.
            (unsynced(of(SNAPSHOT)), LeftoverDecision::Tell(Doubt::Unsynced)),
            (unsynced(of(UPLOAD)), LeftoverDecision::Tell(Doubt::Unsynced)),
            (unsynced(of(CONTENT)), LeftoverDecision::Tell(Doubt::Unsynced)),
            (unsynced(content(OfContent::Gone, RETAINED)), LeftoverDecision::Tell(Doubt::Retained)),
            (unsynced(of(LeftoverKind::Claim { is_owner_there: false })), LeftoverDecision::Remove),
            // A restore's own.
            ((LeftoverCandidate { is_restored: true, ..of(SNAPSHOT) }, known()), LeftoverDecision::Leave),
            // A Backup of that name, or of that UID, is there.
            (
                (LeftoverCandidate { backup: "nightly".to_owned(), ..of(SNAPSHOT) }, known()),
                LeftoverDecision::Leave,
            ),
            (
                (LeftoverCandidate { backup: "nightly".to_owned(), ..of(UPLOAD) }, known()),
                LeftoverDecision::Leave,
            ),
            (
                (LeftoverCandidate { backup: "nightly".to_owned(), ..of(CONTENT) }, known()),
                LeftoverDecision::Leave,
            ),
            (
                (LeftoverCandidate { backup_uid: "u-1".to_owned(), ..of(UPLOAD) }, known()),
                LeftoverDecision::Leave,
            ),
            (
                (LeftoverCandidate { backup_uid: String::new(), ..of(SNAPSHOT) }, known()),
                LeftoverDecision::Remove,
            ),
            ((LeftoverCandidate { backup: String::new(), ..of(SNAPSHOT) }, known()), LeftoverDecision::Leave),
            ((LeftoverCandidate { backup: String::new(), ..of(UPLOAD) }, known()), LeftoverDecision::Leave),
        ];
        for ((found, known), verdict) in rows {
            assert_eq!(judge(&found, &known, NOW), verdict, "{found:?} {known:?}");
        }
    }

    #[test]
    fn contents_that_go_together_go_only_if_each_of_them_could_go_alone() {
        let all = [TAKEN, RETAINED, BROUGHT, SHARED];
        for (one, other) in all.into_iter().flat_map(|one| all.map(|other| (one, other))) {
            let both = one.and(other);
            assert_eq!(both.doubt().is_none(), (one, other) == (TAKEN, TAKEN), "{one:?} {other:?}");
            assert_eq!(both, other.and(one));
        }
    }

    #[test]
    fn a_location_says_what_its_store_has_if_it_was_synced_lately() {
        let ago = |minutes| NOW.checked_sub(SignedDuration::from_mins(minutes)).ok();
        for (is_available, at, is_known) in [
            (true, ago(1), true),
            (true, ago(60), true),
            (true, ago(61), false),
            (true, None, false),
            (false, ago(1), false),
            // A clock that is ahead.
            (true, ago(-5), true),
        ] {
            assert_eq!(LocationSync { is_available, at }.is_known(NOW), is_known, "{is_available} {at:?}");
        }
    }

    fn any_what() -> impl Strategy<Value = LeftoverKind> {
        let content = prop_oneof![Just(TAKEN), Just(RETAINED), Just(BROUGHT), Just(SHARED)];
        let of_content = prop_oneof![Just(OfContent::There), Just(OfContent::Gone), Just(OfContent::Never)];
        let of_copy = prop_oneof![Just(OfCopy::Left), Just(OfCopy::Gone), Just(OfCopy::Kept)];
        prop_oneof![
            (any::<bool>(), prop::option::of(content.clone()))
                .prop_map(|(is_made, content)| LeftoverKind::Snapshot { is_made, content }),
            (of_content, content).prop_map(|(snapshot, content)| LeftoverKind::Content { snapshot, content }),
            any::<bool>().prop_map(|is_made| LeftoverKind::Upload { is_made }),
            any::<bool>().prop_map(|is_owner_there| LeftoverKind::Claim { is_owner_there }),
            (of_copy, any::<bool>()).prop_map(|(of, is_shared)| LeftoverKind::Copy { of, is_shared }),
        ]
    }

    proptest! {
        #[test]
        fn nothing_young_or_going_or_of_a_backup_that_is_there_is_removed(
            what in any_what(), backup in "(gone|nightly|)", backup_uid in "(u-0|u-1|)",
            is_restored in any::<bool>(), is_going in any::<bool>(),
            age in prop::option::of(0_i64..3600), is_synced in any::<bool>(),
        ) {
            let created = age.and_then(|age| NOW.checked_sub(SignedDuration::from_secs(age)).ok());
            let found = LeftoverCandidate { what, backup, backup_uid, is_restored, is_going, created };
            let mut known = known();
            if !is_synced {
                known.unsynced.insert("default".to_owned());
            }
            if judge(&found, &known, NOW) == LeftoverDecision::Remove {
                prop_assert!(!is_going && age.is_some_and(|age| age >= 900));
                // What has an owner is judged by that one.
                if !matches!(what, LeftoverKind::Claim { .. } | LeftoverKind::Copy { .. }) {
                    prop_assert!(found.backup == "gone" && found.backup_uid != "u-1" && !is_restored && is_synced);
                }
                if let LeftoverKind::Snapshot { content: Some(content), .. } | LeftoverKind::Content { content, .. } = what {
                    prop_assert_eq!(content, TAKEN);
                }
            }
        }
    }
}
