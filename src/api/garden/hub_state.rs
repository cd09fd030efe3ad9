//! The hub's buckets and entries, as far as they concern one seed.

use berth_api::keys;
use berth_api::velero::BackupStorageLocation;
use berth_garden_core::entry_life::{AssignedSeed, HubState};
use berth_garden_core::member::{BucketOfEntry, HubEntry, HubObject, MemberLocation};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use super::location::LOCATION_AVAILABLE;
use super::member_objects::{hub_uid, is_ours, was_made};
use super::operation::{OperationState, OperationType};
use super::{BackupBucket, BackupEntry, LastOperation, value};

fn holder(named: Option<&str>, seed: &str) -> AssignedSeed {
    match named.filter(|named| !named.is_empty()) {
        None => AssignedSeed::Nobody,
        Some(named) if named == seed => AssignedSeed::Us,
        Some(_) => AssignedSeed::Another,
    }
}

fn is_removed(last: Option<&LastOperation>) -> bool {
    ended(last, OperationType::Delete)
}

fn ended(last: Option<&LastOperation>, kind: OperationType) -> bool {
    last.is_some_and(|last| (last.kind, last.state) == (kind, OperationState::Succeeded))
}

/// A release that is older than the deletion was for an earlier one, before the hub was restored.
fn is_release_of(deleted: Option<&Time>, released: Option<&Time>) -> bool {
    deleted.zip(released).is_some_and(|(deleted, released)| released.0 >= deleted.0)
}

fn object(metadata: &ObjectMeta, state: HubState) -> HubObject {
    let forgets_data =
        metadata.annotations.as_ref().is_some_and(|annotations| keys::is_set(annotations, keys::FORGET_DATA));
    HubObject { uid: metadata.uid.clone().unwrap_or_default(), state, forgets_data }
}

/// A bucket of the hub, as `seed` sees it.
pub fn bucket(wire: &BackupBucket, seed: &str) -> HubObject {
    let status = wire.status.as_ref();
    let is_deleted = wire.metadata.deletion_timestamp.is_some();
    let state = HubState {
        is_ours: false,
        holder: holder(status.and_then(|status| status.seed.as_deref()), seed),
        is_deleted,
        is_released: is_deleted && status.is_some_and(|status| status.released_at.is_some()),
        is_removed: is_removed(status.and_then(|status| status.last_operation.as_ref())),
    };
    object(&wire.metadata, state)
}

/// An entry of the hub, as `seed` sees it.
pub fn entry(wire: &BackupEntry, seed: &str) -> HubEntry {
    let status = wire.status.clone().unwrap_or_default();
    let deleted = wire.metadata.deletion_timestamp.as_ref();
    let last = status.last_operation.as_ref();
    let state = HubState {
        is_ours: wire.spec.seed_name == seed,
        holder: holder(status.seed.as_deref(), seed),
        is_deleted: deleted.is_some(),
        is_released: is_release_of(deleted, status.released_at.as_ref()),
        is_removed: is_removed(last),
    };
    HubEntry {
        object: object(&wire.metadata, state),
        is_made: status.observed_generation.is_some(),
        was_made: was_made(wire),
        is_answered: ended(last, OperationType::Migrate),
        is_current: status.observed_generation == wire.metadata.generation,
        bucket: wire.spec.bucket_name.clone(),
        wants_default: wire
            .metadata
            .annotations
            .as_ref()
            .is_some_and(|annotations| keys::is_set(annotations, keys::DEFAULT_LOCATION)),
        has_condition: status.conditions.iter().any(|condition| condition.kind == LOCATION_AVAILABLE),
        holder: status.seed.unwrap_or_default(),
    }
}

/// The bucket of an entry. One with a passing fault was made.
pub fn bucket_of_entry(wire: &BackupBucket) -> BucketOfEntry {
    let is_made = wire.status.as_ref().is_some_and(|status| status.observed_generation.is_some());
    BucketOfEntry { is_made }
}

/// A BackupStorageLocation of the member, and what the agent wants to know of it.
pub fn member_location(wire: &BackupStorageLocation) -> MemberLocation {
    let annotations = wire.metadata.annotations.as_ref();
    MemberLocation {
        location: value::location(wire),
        is_ours: is_ours(&wire.metadata),
        hub_uid: hub_uid(&wire.metadata).map(str::to_owned),
        is_default: wire.spec.default == Some(true),
        migrated_by: annotations.and_then(|all| all.get(keys::MIGRATED_BY)).cloned(),
    }
}

#[cfg(test)]
mod tests {
    use berth_garden_core::entry_life::{Intent, intent};
    use jiff::Timestamp;

    use super::*;
    use crate::{BackupEntrySpec, BackupEntryStatus};

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    #[test]
    fn data_goes_on_a_deletion_that_the_hub_has_released() {
        let operation = |state| LastOperation {
            description: String::new(),
            last_update_time: Time(NOW),
            progress: 0,
            state,
            kind: OperationType::Delete,
        };
        let (deleted, succeeded) =
            (operation(OperationState::Processing), operation(OperationState::Succeeded));
        let rows = [
            (true, true, "a", &deleted, Intent::Remove),
            (true, true, "a", &succeeded, Intent::Removed),
            // In grace; and a hub that was restored: the status is there, the deletion is not.
            (true, false, "a", &deleted, Intent::Keep),
            (false, true, "a", &deleted, Intent::Keep),
            (false, true, "a", &succeeded, Intent::Keep),
            (true, true, "b", &deleted, Intent::Elsewhere),
            (true, true, "", &deleted, Intent::Unassigned),
        ];
        for (is_deleted, is_released, seed, last, wanted) in rows {
            let mut wire = BackupEntry::new("e", BackupEntrySpec::default());
            wire.metadata.deletion_timestamp = is_deleted.then_some(Time(NOW));
            wire.status = Some(BackupEntryStatus {
                seed: Some(seed.to_owned()),
                released_at: is_released.then_some(Time(NOW)),
                last_operation: Some(last.clone()),
                ..BackupEntryStatus::default()
            });
            let state = entry(&wire, "a").object.state;
            assert_eq!(intent(Some(&state), false), wanted, "{is_deleted} {is_released} {seed} {last:?}");
        }
    }

    #[test]
    fn a_release_from_before_a_deletion_is_none() {
        let at = |second| Some(Time(Timestamp::from_second(second).unwrap()));
        for (deleted, released, is_release) in [
            (at(5), at(5), true),
            (at(5), at(6), true),
            (at(5), at(4), false),
            (None, at(6), false),
            (at(5), None, false),
        ] {
            assert_eq!(is_release_of(deleted.as_ref(), released.as_ref()), is_release);
        }
    }
}
