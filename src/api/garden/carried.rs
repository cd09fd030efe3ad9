//! From the hub to a member cluster: what the member's objects of a bucket and an entry are, what the hub says of them,
//! and where they are in their life.

use std::collections::BTreeMap;

use berth_core::garden::handover::{Held, Told};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde_json::{Value, json};

use super::operation::{OperationState, OperationType};
use super::{BackupBucket, BackupEntry, LastOperation, SecretReference, StoreConfig};
use crate::{extensions, keys};

/// Value of [`keys::OPERATION`]: give it up without touching data.
pub const MIGRATE: &str = "migrate";
const RECONCILE: &str = "reconcile";

/// With what an object goes down.
#[derive(Clone, Copy, Debug)]
pub struct Freight<'a> {
    /// The seed it is for.
    pub seed: &'a str,
    /// Of the member's copies of credentials.
    pub namespace: &'a str,
    /// See [`keys::CREDENTIALS_DIGEST`].
    pub digest: &'a str,
}

/// What the hub says of one of its objects. `None`: it has none of that name; `ended`: but a record of its end.
pub fn told(object: Option<Orders<'_>>, ended: bool, seed: &str) -> Told {
    let Some(orders) = object else {
        return if ended { Told::Elsewhere } else { Told::Nothing };
    };
    match orders.seed.filter(|chosen| !chosen.is_empty()) {
        None => Told::Unassigned,
        Some(chosen) if chosen != seed => Told::Elsewhere,
        Some(_) if !orders.is_released => Told::Keep,
        Some(_) if orders.is_removed => Told::Removed,
        Some(_) => Told::Remove,
    }
}

/// What matters of a hub's object for [`told`].
#[derive(Clone, Copy, Debug)]
pub struct Orders<'a> {
    pub seed: Option<&'a str>,
    /// It is deleted, and the hub gave leave to remove it. A hub that was restored may have the leave without the deletion.
    pub is_released: bool,
    /// It was reported as gone.
    pub is_removed: bool,
}

fn is_removed(last: Option<&LastOperation>) -> bool {
    last.is_some_and(|op| op.kind == OperationType::Delete && op.state == OperationState::Succeeded)
}

impl<'a> From<&'a BackupBucket> for Orders<'a> {
    fn from(bucket: &'a BackupBucket) -> Self {
        let status = bucket.status.as_ref();
        Self {
            seed: status.and_then(|s| s.seed.as_deref()),
            is_released: bucket.metadata.deletion_timestamp.is_some()
                && status.is_some_and(|s| s.released_at.is_some()),
            is_removed: is_removed(status.and_then(|s| s.last_operation.as_ref())),
        }
    }
}

impl<'a> From<&'a BackupEntry> for Orders<'a> {
    fn from(entry: &'a BackupEntry) -> Self {
        let status = entry.status.as_ref();
        Self {
            seed: status.and_then(|s| s.seed.as_deref()),
            is_released: is_leave_for(
                entry.metadata.deletion_timestamp.as_ref(),
                status.and_then(|s| s.released_at.as_ref()),
            ),
            is_removed: is_removed(status.and_then(|s| s.last_operation.as_ref())),
        }
    }
}

/// Leave that is older than the deletion was for another one, before the hub was restored.
fn is_leave_for(deleted: Option<&Time>, released: Option<&Time>) -> bool {
    deleted.zip(released).is_some_and(|(deleted, released)| released.0 >= deleted.0)
}

/// Where the member's object is in its life. `finalizer`: that of whoever executes.
pub fn held(metadata: &ObjectMeta, status: Option<&extensions::ExtensionStatus>, finalizer: &str) -> Held {
    let executes = metadata.finalizers.iter().flatten().any(|f| f == finalizer);
    let last = status.and_then(|s| s.last_operation.as_ref());
    let ended = |kind| last.is_some_and(|op| op.kind == kind && op.state == OperationState::Succeeded);
    let asked = annotation(metadata, keys::OPERATION) == Some(MIGRATE);
    let let_go = asked || last.is_some_and(|op| op.kind == OperationType::Migrate);
    match (metadata.deletion_timestamp.is_some(), executes) {
        (false, false) if ended(OperationType::Migrate) => Held::GivenUp,
        (false, _) => Held::Live { let_go },
        (true, true) => Held::Going { let_go },
        (true, false) => Held::Done { gone: ended(OperationType::Delete) },
    }
}

/// Labels of what is made here for an object of the hub.
pub fn labels(hub: &ObjectMeta, seed: &str) -> BTreeMap<String, String> {
    let uid = hub.uid.clone().unwrap_or_default();
    [(keys::CARRIED_FOR.to_owned(), seed.to_owned()), (keys::HUB_UID.to_owned(), uid)].into()
}

/// UID of the hub's object that this was made for.
pub fn hub_uid(metadata: &ObjectMeta) -> Option<&str> {
    metadata.labels.as_ref()?.get(keys::HUB_UID).map(String::as_str)
}

/// Was it made for a hub?
pub fn is_ours(metadata: &ObjectMeta) -> bool {
    metadata.labels.iter().flatten().any(|(key, _)| key == keys::CARRIED_FOR)
}

/// Name of the member's Secret with a bucket's credentials.
pub fn bucket_secret(bucket: &str) -> String {
    format!("bucket-{bucket}")
}

/// The same of an entry.
pub fn entry_secret(entry: &str) -> String {
    format!("entry-{entry}")
}

/// The member's object of a bucket.
pub fn bucket(hub: &BackupBucket, freight: Freight<'_>) -> extensions::BackupBucket {
    let name = hub.metadata.name.clone().unwrap_or_default();
    let spec = extensions::BackupBucketSpec {
        kind: hub.spec.provider.clone(),
        class: None,
        provider_config: hub.spec.provider_config.as_ref().map(provider_config),
        region: hub.spec.region.clone(),
        secret_ref: secret_ref(bucket_secret(&name), freight),
    };
    let pass_on = &[keys::EMPTY_BUCKET, keys::FORGET_DATA, keys::MAKE_ANEW];
    let metadata =
        metadata(&hub.metadata, freight, [keys::EXTENSION_BUCKET_FINALIZER, keys::GARDEN_FINALIZER], pass_on);
    extensions::BackupBucket { metadata, spec, status: None }
}

/// The member's object of an entry in `bucket`.
pub fn entry(hub: &BackupEntry, bucket: &BackupBucket, freight: Freight<'_>) -> extensions::BackupEntry {
    let name = hub.metadata.name.clone().unwrap_or_default();
    let spec = extensions::BackupEntrySpec {
        kind: bucket.spec.provider.clone(),
        class: None,
        provider_config: bucket.spec.provider_config.as_ref().map(provider_config),
        backup_bucket_provider_status: None,
        region: bucket.spec.region.clone(),
        bucket_name: bucket.metadata.name.clone().unwrap_or_default(),
        secret_ref: secret_ref(entry_secret(&name), freight),
    };
    let pass_on = &[keys::FORGET_DATA, keys::FORCE_DELETION, keys::OWN_DIRECTORY];
    let mut metadata =
        metadata(&hub.metadata, freight, [keys::EXTENSION_ENTRY_FINALIZER, keys::GARDEN_FINALIZER], pass_on);
    let namespace =
        hub.metadata.namespace.clone().map(|namespace| (keys::HUB_NAMESPACE.to_owned(), namespace));
    metadata.annotations.get_or_insert_default().extend(namespace);
    extensions::BackupEntry { metadata, spec, status: None }
}

fn secret_ref(name: String, freight: Freight<'_>) -> SecretReference {
    SecretReference { name, namespace: freight.namespace.to_owned() }
}

/// With the finalizer of whoever executes from the first moment on: an object that is deleted before it was ever looked at
/// must not be gone at once, and its data not. Ours keeps the counts until the hub has them.
fn metadata(hub: &ObjectMeta, freight: Freight<'_>, finalizers: [&str; 2], pass_on: &[&str]) -> ObjectMeta {
    let passed = hub.annotations.iter().flatten().filter(|(key, _)| pass_on.contains(&key.as_str()));
    let mut annotations: BTreeMap<String, String> = passed.map(|(k, v)| (k.clone(), v.clone())).collect();
    annotations.insert(keys::CREDENTIALS_DIGEST.to_owned(), freight.digest.to_owned());
    ObjectMeta {
        name: hub.name.clone(),
        labels: Some(labels(hub, freight.seed)),
        annotations: Some(annotations),
        finalizers: Some(finalizers.map(str::to_owned).into()),
        ..ObjectMeta::default()
    }
}

fn provider_config(config: &StoreConfig) -> Value {
    let config = StoreConfig {
        api_version: Some("garden.berth.dev/v1alpha1".to_owned()),
        kind: Some("StoreConfig".to_owned()),
        ..config.clone()
    };
    json!(config)
}

/// Does an object lack something of what it should have? What others put there besides is theirs.
pub fn lacks(found: &ObjectMeta, wanted: &ObjectMeta) -> bool {
    let missing = |found: &Option<BTreeMap<String, String>>, wanted: &Option<BTreeMap<String, String>>| {
        let found = |key: &str| found.as_ref().and_then(|map| map.get(key));
        wanted.iter().flatten().any(|(key, value)| found(key) != Some(value))
    };
    let has = |finalizer: &String| found.finalizers.iter().flatten().any(|f| f == finalizer);
    missing(&found.labels, &wanted.labels)
        || missing(&found.annotations, &wanted.annotations)
        || !wanted.finalizers.iter().flatten().all(has)
}

/// Asks whoever executes to look again: a gardenlet's way (a mark of its own, so that asking twice is seen).
pub fn ask_to_reconcile(metadata: &mut ObjectMeta, now: Timestamp) {
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.insert(keys::OPERATION.to_owned(), RECONCILE.to_owned());
    annotations.insert(keys::OPERATION_TIMESTAMP.to_owned(), now.to_string());
}

pub(super) fn annotation<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn operation(kind: OperationType, state: OperationState) -> LastOperation {
        LastOperation { description: String::new(), last_update_time: Time(NOW), progress: 0, state, kind }
    }

    #[test]
    fn the_hub_speaks_to_the_seed_it_chose() {
        let told = |object, ended| told(object, ended, "a");
        let by = |seed| Some(Orders { seed, is_released: false, is_removed: false });
        assert_eq!(told(None, false), Told::Nothing);
        assert_eq!(told(None, true), Told::Elsewhere);
        assert_eq!(told(by(None), false), Told::Unassigned);
        assert_eq!(told(by(Some("")), false), Told::Unassigned);
        assert_eq!(told(by(Some("b")), false), Told::Elsewhere);
        assert_eq!(told(by(Some("a")), true), Told::Keep);
    }

    #[test]
    fn an_entry_goes_down_with_its_namespace_for_the_mark_of_its_directory() {
        let mut hub = BackupEntry::new("e", super::super::BackupEntrySpec::default());
        hub.metadata.namespace = Some("one".to_owned());
        let said = [(keys::OWN_DIRECTORY.to_owned(), "e".to_owned())];
        hub.metadata.annotations = Some(said.into());
        let bucket = BackupBucket::new("b", super::super::BackupBucketSpec::default());
        let entry = entry(&hub, &bucket, Freight { seed: "s", namespace: "garden", digest: "d" });
        assert_eq!(annotation(&entry.metadata, keys::HUB_NAMESPACE), Some("one"));
        assert_eq!(annotation(&entry.metadata, keys::OWN_DIRECTORY), Some("e"));
    }

    #[test]
    fn data_goes_on_a_deletion_that_the_hub_gave_leave_to() {
        let deleted = operation(OperationType::Delete, OperationState::Processing);
        let succeeded = operation(OperationType::Delete, OperationState::Succeeded);
        let rows = [
            (true, true, &deleted, Told::Remove),
            (true, true, &succeeded, Told::Removed),
            // In grace; and a hub that was restored: the status is there, the deletion is not.
            (true, false, &deleted, Told::Keep),
            (false, true, &deleted, Told::Keep),
            (false, true, &succeeded, Told::Keep),
        ];
        for (is_deleted, is_released, last, wanted) in rows {
            let mut entry = BackupEntry::new("e", super::super::BackupEntrySpec::default());
            entry.metadata.deletion_timestamp = is_deleted.then_some(Time(NOW));
            entry.status = Some(super::super::BackupEntryStatus {
                seed: Some("a".into()),
                released_at: is_released.then_some(Time(NOW)),
                last_operation: Some(last.clone()),
                ..Default::default()
            });
            assert_eq!(
                told(Some((&entry).into()), false, "a"),
                wanted,
                "{is_deleted} {is_released} {last:?}"
            );
        }
    }

    #[test]
    fn leave_from_before_a_deletion_is_none() {
        let at = |second| Some(Time(Timestamp::from_second(second).unwrap()));
        for (deleted, released, is_leave) in [
            (at(5), at(5), true),
            (at(5), at(6), true),
            (at(5), at(4), false),
            (None, at(6), false),
            (at(5), None, false),
        ] {
            assert_eq!(is_leave_for(deleted.as_ref(), released.as_ref()), is_leave);
        }
    }

    #[test]
    fn a_member_object_is_known_by_its_finalizer_and_last_operation() {
        let meta = |deleted: bool, finalizers: &[&str]| ObjectMeta {
            deletion_timestamp: deleted.then_some(Time(NOW)),
            finalizers: Some(finalizers.iter().map(|f| (*f).to_owned()).collect()),
            ..ObjectMeta::default()
        };
        let status = |kind, state| extensions::ExtensionStatus {
            last_operation: Some(operation(kind, state)),
            ..extensions::ExtensionStatus::default()
        };
        let (theirs, ours) = (keys::EXTENSION_ENTRY_FINALIZER, keys::GARDEN_FINALIZER);
        let deleted = status(OperationType::Delete, OperationState::Succeeded);
        let migrated = status(OperationType::Migrate, OperationState::Succeeded);
        let of = |meta: &ObjectMeta, status| held(meta, status, theirs);
        assert_eq!(of(&meta(false, &[theirs, ours]), None), Held::Live { let_go: false });
        assert_eq!(of(&meta(false, &[ours]), Some(&migrated)), Held::GivenUp);
        assert_eq!(of(&meta(true, &[theirs, ours]), Some(&deleted)), Held::Going { let_go: false });
        assert_eq!(of(&meta(true, &[ours]), Some(&deleted)), Held::Done { gone: true });
        assert_eq!(of(&meta(true, &[ours]), None), Held::Done { gone: false }, "taken off by hand");
        assert_eq!(of(&meta(true, &[ours]), Some(&migrated)), Held::Done { gone: false });
        let mut asked = meta(true, &[theirs]);
        asked.annotations = Some([(keys::OPERATION.to_owned(), MIGRATE.to_owned())].into());
        assert_eq!(of(&asked, None), Held::Going { let_go: true });
    }
}
