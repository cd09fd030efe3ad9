//! What the agent sees of one bucket or entry at one moment.

use std::collections::BTreeSet;
use std::time::Duration;

use super::MemberStep;
use crate::check::location::ReviewedLocation;
use crate::entry_life::{EntryPhase, HubState, MemberState, phase};
use crate::location::{self, LocationAccess, is_default};

/// Why something cannot be done, for the status of the hub's object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusProblem {
    pub description: String,
    /// Nothing changes before a person changes something.
    pub is_configuration: bool,
}

impl StatusProblem {
    pub fn of_configuration(description: impl Into<String>) -> Self {
        Self { description: description.into(), is_configuration: true }
    }

    /// A call failed; the next one may not.
    pub fn of_call(description: impl Into<String>) -> Self {
        Self { description: description.into(), is_configuration: false }
    }
}

/// What the agent has learned and done since it began to look at an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub done: BTreeSet<MemberStep>,
    /// Answer to [`MemberStep::AskHub`]: the data is still to be removed.
    pub confirmed: Option<bool>,
    /// How many backups [`MemberStep::CountBackups`] found.
    pub running: Option<usize>,
    /// How many objects [`RemoveBackups`](super::LocationStep::RemoveBackups) found.
    pub removed: Option<usize>,
    /// Why a step of the location failed. No further ones are taken.
    pub location_failed: Option<String>,
    /// Why a step of the object failed. No further ones are taken.
    pub object_failed: Option<StatusProblem>,
}

/// The hub's object of a bucket or an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HubObject {
    pub uid: String,
    pub state: HubState,
    /// A person has said that its data may stay in the store.
    pub forgets_data: bool,
}

/// The hub's BackupEntry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HubEntry {
    pub object: HubObject,
    /// Name of the holder, for people.
    pub holder: String,
    pub bucket: Option<String>,
    /// Its status says that its directory was made.
    pub is_made: bool,
    /// The same, also where the hub has lost its statuses.
    pub was_made: bool,
    /// Its last operation is a move, and the holder has answered that its cluster writes no more.
    pub is_answered: bool,
    /// What its status says is of its present generation.
    pub is_current: bool,
    /// Its location is to be the default one.
    pub wants_default: bool,
    /// Its status says how its location is.
    pub has_condition: bool,
}

/// Credentials of the hub for an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CredentialsState {
    /// The hub has no bucket to have credentials for.
    #[default]
    NoBucket,
    /// The hub has not been heard of them yet.
    Unanswered,
    Missing(StatusProblem),
    Known,
}

/// The member's copy of such credentials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyState {
    #[default]
    Absent,
    /// Its digest is another one, or its labels are.
    Stale,
    Current,
}

/// How the member's object compares with what the hub wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ObjectDrift {
    /// The hub lacks something that it takes to say what it wants.
    #[default]
    Unknown,
    Same,
    /// `in_marks`: labels or annotations differ.
    Different {
        in_marks: bool,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HubKind {
    #[default]
    BackupBucket,
    BackupEntry,
}

impl HubKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BackupBucket => "BackupBucket",
            Self::BackupEntry => "BackupEntry",
        }
    }
}

/// The member's object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectView {
    pub kind: HubKind,
    pub name: String,
    pub state: MemberState,
    /// It was made for a hub.
    pub is_ours: bool,
    /// UID of the hub's object that it was made for.
    pub hub_uid: Option<String>,
    /// The bucket that an entry is in.
    pub bucket: Option<String>,
    pub wanted: ObjectDrift,
    pub credentials: CredentialsState,
    pub copy: CopyState,
    /// The executor may remove its data, by what the hub said.
    pub is_permitted: bool,
    /// The hub said a moment ago that the data of its object is to be removed.
    pub is_permit_fresh: bool,
}

impl ObjectView {
    pub fn is_found(&self) -> bool {
        self.state != MemberState::Absent
    }
}

/// A BackupStorageLocation of the member cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberLocation {
    pub location: ReviewedLocation,
    pub is_ours: bool,
    pub hub_uid: Option<String>,
    pub is_default: bool,
    /// Mark of a run of `berth garden migrate` that is reading from it.
    pub migrated_by: Option<String>,
}

/// The location that was made of the entry, compared with what it should be by now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnLocation {
    pub differs: bool,
}

/// The Secret of the own location.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LocationCredentials {
    /// The store takes none.
    #[default]
    NotNeeded,
    /// The hub's credentials cannot be written as Velero wants them.
    Faulty(String),
    Copy(CopyState),
}

/// How long no location of a leaving entry has been writable, and which migrations were running
/// when that began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quiesced {
    pub lasted: Duration,
    pub migrations: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct BucketView<'a> {
    /// `None`: the hub has none of this name.
    pub hub: Option<HubObject>,
    pub object: ObjectView,
    pub facts: &'a Facts,
}

/// The bucket of an entry, in the hub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketOfEntry {
    /// The bucket was once there. Faults that pass do not change that.
    pub is_made: bool,
}

#[derive(Clone, Debug)]
pub struct EntryView<'a> {
    pub name: &'a str,
    /// Namespace of the locations.
    pub namespace: &'a str,
    /// `None`: the hub has none of this name.
    pub hub: Option<HubEntry>,
    /// The bucket that `hub` names. `None`: the hub has no such bucket.
    pub bucket: Option<BucketOfEntry>,
    /// UIDs of entries of this name whose end is on record in the hub.
    pub ended: BTreeSet<String>,
    pub object: ObjectView,
    /// All of the cluster.
    pub locations: &'a [MemberLocation],
    pub own: OwnLocation,
    pub location_credentials: LocationCredentials,
    /// The Secret beside the location, by the hub UID that it was made for.
    pub location_secret: Option<Option<String>>,
    pub quiet: Option<Quiesced>,
    pub facts: &'a Facts,
}

impl EntryView<'_> {
    pub fn phase(&self) -> Option<EntryPhase> {
        self.hub.as_ref().map(|hub| phase(&hub.object.state))
    }

    /// Was something that names `hub_uid` made for an entry that has ended, and whose end the hub
    /// has on record?
    pub fn has_ended(&self, hub_uid: Option<&str>) -> bool {
        let is_present = |uid: &str| self.hub.as_ref().is_some_and(|hub| hub.object.uid == uid);
        hub_uid.is_some_and(|uid| !is_present(uid) && self.ended.contains(uid))
    }

    /// The entry's own location, and those that people led into its directory.
    pub fn of_entry(&self) -> impl Iterator<Item = &MemberLocation> {
        let is_of = |one: &&MemberLocation| {
            one.location.entry.as_deref() == Some(self.name)
                && (!one.is_ours || one.location.name == self.name)
        };
        self.locations.iter().filter(is_of)
    }

    pub fn own_location(&self) -> Option<&MemberLocation> {
        self.of_entry().find(|one| one.is_ours)
    }

    pub fn named(&self, name: &str) -> Option<&MemberLocation> {
        self.locations.iter().find(|one| one.location.name == name)
    }

    /// Bucket and directory were made.
    pub fn is_ready(&self) -> bool {
        self.bucket.is_some_and(|bucket| bucket.is_made) && self.hub.as_ref().is_some_and(|hub| hub.is_made)
    }

    /// Who may write in the own location, which is there or is to be made. `None`: there should be
    /// none, or it stays as it is.
    pub fn access(&self) -> Option<LocationAccess> {
        match location::wanted(self.phase()?, self.is_ready(), self.own_location().is_some()) {
            location::DesiredLocation::Kept(access) => Some(access),
            location::DesiredLocation::AsItIs | location::DesiredLocation::None => None,
        }
    }

    /// Is the own location to be the one for backups that name none?
    pub fn is_default(&self) -> bool {
        let another = self.locations.iter().any(|one| one.location.name != self.name && one.is_default);
        is_default(self.hub.as_ref().is_some_and(|hub| hub.wants_default), another)
    }
}
