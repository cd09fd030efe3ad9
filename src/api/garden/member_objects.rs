//! The member cluster's objects of the hub's buckets and entries: how the courier writes them, and
//! what their state is.

use std::collections::BTreeMap;

use berth_api::keys;
use berth_garden_core::entry_life::MemberState;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::operation::{OperationState, OperationType};
use super::{BackupBucket, BackupEntry, SecretReference, StoreConfig};
use crate::extensions;

/// Value of [`keys::OPERATION`]: the executor gives the object up without touching data.
pub const MIGRATE: &str = "migrate";
const RECONCILE: &str = "reconcile";

/// What the member's objects need besides the hub's object.
#[derive(Clone, Copy, Debug)]
pub struct MemberContext<'a> {
    /// Name of this cluster's Seed.
    pub seed: &'a str,
    /// Namespace of the member's copies of credentials.
    pub namespace: &'a str,
    /// See [`keys::CREDENTIALS_DIGEST`].
    pub digest: &'a str,
}

/// State of the member's object. `finalizer`: the executor's.
pub fn member_state(
    metadata: &ObjectMeta,
    status: Option<&extensions::ExtensionStatus>,
    finalizer: &str,
) -> MemberState {
    let executes = metadata.finalizers.iter().flatten().any(|f| f == finalizer);
    let last = status.and_then(|s| s.last_operation.as_ref());
    let ended = |kind| last.is_some_and(|op| op.kind == kind && op.state == OperationState::Succeeded);
    let asked = annotation(metadata, keys::OPERATION) == Some(MIGRATE);
    let let_go = asked || last.is_some_and(|op| op.kind == OperationType::Migrate);
    match (metadata.deletion_timestamp.is_some(), executes) {
        (false, false) if ended(OperationType::Migrate) => MemberState::GivenUp,
        (false, _) => MemberState::Live { let_go },
        (true, true) => MemberState::Going { let_go },
        (true, false) => MemberState::Done { gone: ended(OperationType::Delete) },
    }
}

/// Labels of objects that are created in the member for an object of the hub.
pub fn labels(hub: &ObjectMeta, seed: &str) -> BTreeMap<String, String> {
    let uid = hub.uid.clone().unwrap_or_default();
    [(keys::CARRIED_FOR.to_owned(), seed.to_owned()), (keys::HUB_UID.to_owned(), uid)].into()
}

/// UID of the hub's object that an object was created for.
pub fn hub_uid(metadata: &ObjectMeta) -> Option<&str> {
    metadata.labels.as_ref()?.get(keys::HUB_UID).map(String::as_str)
}

/// Was it created for a hub?
pub fn is_ours(metadata: &ObjectMeta) -> bool {
    metadata.labels.iter().flatten().any(|(key, _)| key == keys::CARRIED_FOR)
}

/// Was it ever created for a hub? People remove the label of the Seed if that hub is gone; other
/// marks of the hub stay.
pub fn is_of_a_hub(metadata: &ObjectMeta) -> bool {
    is_ours(metadata) || hub_uid(metadata).is_some() || annotation(metadata, keys::HUB_NAMESPACE).is_some()
}

/// Was its directory ever created, according to the hub, even if the hub has lost its statuses?
pub fn was_made(hub: &BackupEntry) -> bool {
    hub.status.as_ref().is_some_and(|status| status.observed_generation.is_some())
        || annotation(&hub.metadata, keys::WRITER).is_some_and(|seed| !seed.is_empty())
}

/// Does the member's object of an entry that [`was_made`] need the annotation that its directory is
/// its own? It does if the directory was created before there were marks, or by another cluster.
/// Once set, the annotation stays.
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

/// Name of the member's Secret with an entry's credentials.
pub fn entry_secret(entry: &str) -> String {
    format!("entry-{entry}")
}

/// The member's object of a bucket.
pub fn bucket(hub: &BackupBucket, context: MemberContext<'_>) -> extensions::BackupBucket {
    let name = hub.metadata.name.clone().unwrap_or_default();
    let spec = extensions::BackupBucketSpec {
        kind: hub.spec.provider.clone(),
        class: None,
        provider_config: hub.spec.provider_config.as_ref().map(provider_config),
        region: hub.spec.region.clone(),
        secret_ref: secret_ref(bucket_secret(&name), context),
    };
    let pass_on = &[keys::EMPTY_BUCKET, keys::FORGET_DATA, keys::MAKE_ANEW];
    let metadata =
        metadata(&hub.metadata, context, [keys::EXTENSION_BUCKET_FINALIZER, keys::GARDEN_FINALIZER], pass_on);
    extensions::BackupBucket { metadata, spec, status: None }
}

/// The member's object of an entry in `bucket`. `vouched`: unmarked content of the directory is its
/// own ([`needs_word`]).
pub fn entry(
    hub: &BackupEntry,
    bucket: &BackupBucket,
    context: MemberContext<'_>,
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
        secret_ref: secret_ref(entry_secret(&name), context),
    };
    let pass_on = &[keys::FORGET_DATA, keys::FORCE_DELETION, keys::OWN_DIRECTORY];
    let mut metadata =
        metadata(&hub.metadata, context, [keys::EXTENSION_ENTRY_FINALIZER, keys::GARDEN_FINALIZER], pass_on);
    let namespace =
        hub.metadata.namespace.clone().map(|namespace| (keys::HUB_NAMESPACE.to_owned(), namespace));
    let own = vouched.then(|| (keys::OWN_DIRECTORY.to_owned(), name));
    metadata.annotations.get_or_insert_default().extend(namespace.into_iter().chain(own));
    extensions::BackupEntry { metadata, spec, status: None }
}

fn secret_ref(name: String, context: MemberContext<'_>) -> SecretReference {
    SecretReference { name, namespace: context.namespace.to_owned() }
}

/// With the executor's finalizer from the first moment on, because an object that is deleted before
/// the executor has seen it must not be gone before its data. The courier's finalizer keeps the
/// counts until the hub has them.
fn metadata(
    hub: &ObjectMeta,
    context: MemberContext<'_>,
    finalizers: [&str; 2],
    pass_on: &[&str],
) -> ObjectMeta {
    let passed = hub.annotations.iter().flatten().filter(|(key, _)| pass_on.contains(&key.as_str()));
    let mut annotations: BTreeMap<String, String> = passed.map(|(k, v)| (k.clone(), v.clone())).collect();
    annotations.insert(keys::CREDENTIALS_DIGEST.to_owned(), context.digest.to_owned());
    ObjectMeta {
        name: hub.name.clone(),
        labels: Some(labels(hub, context.seed)),
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

/// Does an object lack labels, annotations or finalizers that it should have? It may have more.
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

/// Asks the executor to reconcile, as a gardenlet does. The time makes a second request visible.
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
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::LastOperation;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn operation(kind: OperationType, state: OperationState) -> LastOperation {
        LastOperation { description: String::new(), last_update_time: Time(NOW), progress: 0, state, kind }
    }

    #[test]
    fn an_entry_goes_down_with_its_namespace_for_the_mark_of_its_directory() {
        let mut hub = BackupEntry::new("e", super::super::BackupEntrySpec::default());
        hub.metadata.namespace = Some("one".to_owned());
        let said = [(keys::OWN_DIRECTORY.to_owned(), "e".to_owned())];
        hub.metadata.annotations = Some(said.into());
        let bucket = BackupBucket::new("b", super::super::BackupBucketSpec::default());
        let context = MemberContext { seed: "s", namespace: "garden", digest: "d" };
        let said = entry(&hub, &bucket, context, false);
        assert_eq!(annotation(&said.metadata, keys::HUB_NAMESPACE), Some("one"));
        assert_eq!(annotation(&said.metadata, keys::OWN_DIRECTORY), Some("e"));
        hub.metadata.annotations = None;
        for vouched in [false, true] {
            let own = entry(&hub, &bucket, context, vouched).metadata;
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
        let of = |meta: &ObjectMeta, status| member_state(meta, status, theirs);
        assert_eq!(of(&meta(false, &[theirs, ours]), None), MemberState::Live { let_go: false });
        assert_eq!(of(&meta(false, &[ours]), Some(&migrated)), MemberState::GivenUp);
        assert_eq!(of(&meta(true, &[theirs, ours]), Some(&deleted)), MemberState::Going { let_go: false });
        assert_eq!(of(&meta(true, &[ours]), Some(&deleted)), MemberState::Done { gone: true });
        assert_eq!(of(&meta(true, &[ours]), None), MemberState::Done { gone: false }, "taken off by hand");
        assert_eq!(of(&meta(true, &[ours]), Some(&migrated)), MemberState::Done { gone: false });
        let mut asked = meta(true, &[theirs]);
        asked.annotations = Some([(keys::OPERATION.to_owned(), MIGRATE.to_owned())].into());
        assert_eq!(of(&asked, None), MemberState::Going { let_go: true });
    }
}
