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

/// Was it ever made for one? Its label of the Seed is taken off where that hub is gone; the rest of what the hub gave it stays.
pub fn is_of_a_hub(metadata: &ObjectMeta) -> bool {
    is_ours(metadata) || hub_uid(metadata).is_some() || annotation(metadata, keys::HUB_NAMESPACE).is_some()
}

/// Was its directory ever made, by what the hub has on record, even where it lost its statuses?
pub fn was_made(hub: &BackupEntry) -> bool {
    hub.status.as_ref().is_some_and(|status| status.observed_generation.is_some())
        || annotation(&hub.metadata, keys::WRITER).is_some_and(|seed| !seed.is_empty())
}

/// What the member's object of an entry that [`was_made`] lacks to know that itself: for one made before there were marks, and by
/// another cluster. Said once, it stays said.
pub fn needs_word(found: Option<&extensions::BackupEntry>) -> bool {
    let Some(found) = found else { return true };
    let last = found.status.as_ref().and_then(|status| status.common.last_operation.as_ref());
    let is_unmade = last.is_none_or(|last| last.state != OperationState::Succeeded);
    annotation(&found.metadata, keys::OWN_DIRECTORY).is_some()
        || is_unmade && found.metadata.deletion_timestamp.is_none()
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

/// The member's object of an entry in `bucket`. `vouched`: what is unmarked in its directory is its own ([`needs_word`]).
pub fn entry(
    hub: &BackupEntry,
    bucket: &BackupBucket,
    freight: Freight<'_>,
    vouched: bool,
) -> extensions::BackupEntry {
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
    let own = vouched.then(|| (keys::OWN_DIRECTORY.to_owned(), name));
    metadata.annotations.get_or_insert_default().extend(namespace.into_iter().chain(own));
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
        let freight = Freight { seed: "s", namespace: "garden", digest: "d" };
        let said = entry(&hub, &bucket, freight, false);
        assert_eq!(annotation(&said.metadata, keys::HUB_NAMESPACE), Some("one"));
        assert_eq!(annotation(&said.metadata, keys::OWN_DIRECTORY), Some("e"));
        hub.metadata.annotations = None;
        for vouched in [false, true] {
            let own = entry(&hub, &bucket, freight, vouched).metadata;
            assert_eq!(annotation(&own, keys::OWN_DIRECTORY), vouched.then_some("e"));
        }
    }

    #[test]
    fn the_hub_vouches_for_what_was_made_and_is_not_known_here() {
        let mut hub = BackupEntry::new("e", super::super::BackupEntrySpec::default());
        assert!(!was_made(&hub));
        hub.metadata.annotations = Some([(keys::WRITER.to_owned(), "a".to_owned())].into());
        assert!(was_made(&hub), "a hub that lost its statuses");
        hub.metadata.annotations = None;
        hub.status = Some(super::super::BackupEntryStatus {
            observed_generation: Some(1),
            ..super::super::BackupEntryStatus::default()
        });
        assert!(was_made(&hub));

        let spec = extensions::BackupEntrySpec::default();
        let mut found = extensions::BackupEntry { metadata: ObjectMeta::default(), spec, status: None };
        assert!(needs_word(None) && needs_word(Some(&found)));
        for (state, needs) in [(OperationState::Error, true), (OperationState::Succeeded, false)] {
            found.status = Some(extensions::BackupEntryStatus {
                common: extensions::ExtensionStatus {
                    last_operation: Some(operation(OperationType::Create, state)),
                    ..extensions::ExtensionStatus::default()
                },
            });
            assert_eq!(needs_word(Some(&found)), needs);
        }
        found.metadata.annotations = Some([(keys::OWN_DIRECTORY.to_owned(), "e".to_owned())].into());
        assert!(needs_word(Some(&found)), "said once, it stays said");
    }

    #[test]
    fn what_was_made_for_a_hub_is_its_even_without_the_label_of_the_seed() {
        let labeled = |key: &str| ObjectMeta {
            labels: Some([(key.to_owned(), "x".to_owned())].into()),
            ..ObjectMeta::default()
        };
        assert!(is_of_a_hub(&labeled(keys::CARRIED_FOR)) && is_of_a_hub(&labeled(keys::HUB_UID)));
        let annotations = Some([(keys::HUB_NAMESPACE.to_owned(), "one".to_owned())].into());
        assert!(is_of_a_hub(&ObjectMeta { annotations, ..ObjectMeta::default() }));
        assert!(!is_of_a_hub(&ObjectMeta::default()));
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
