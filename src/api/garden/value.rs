//! Reads objects into the values that admission checks. Nothing is checked here: a missing field is
//! empty or `None`.

use std::collections::BTreeMap;

use berth_api::keys;
use berth_api::velero::BackupStorageLocation;
use berth_api::velero::backup_storage_location::AccessMode;
use berth_garden_core::check::location::Location;
use berth_garden_core::view::{Bucket, Entry, Extension};
use berth_garden_core::{self as garden, Place};
use kube::ResourceExt;

use super::operation::OperationState;
use super::{
    BackupBucket, BackupEntry, CloudProfile, LocationKeys, ObjectLock, ObjectLockMode, SecretReference, Seed,
    StoreConfig,
};
use crate::extensions;

impl From<&SecretReference> for garden::SecretRef {
    fn from(wire: &SecretReference) -> Self {
        Self { name: wire.name.clone(), namespace: wire.namespace.clone() }
    }
}

impl From<&StoreConfig> for garden::StoreConfig {
    fn from(wire: &StoreConfig) -> Self {
        Self {
            endpoint: wire.endpoint.clone(),
            force_path_style: wire.force_path_style,
            ca_cert: wire.ca_cert.clone(),
            insecure_skip_tls_verify: wire.insecure_skip_tls_verify,
            path: wire.path.clone(),
            object_lock: wire.object_lock.as_ref().map(Into::into),
            location_keys: wire.location_keys.map(Into::into),
            role_arn: wire.role_arn.clone(),
            sts_endpoint: wire.sts_endpoint.clone(),
            key_minutes: wire.key_minutes,
        }
    }
}

impl From<LocationKeys> for garden::LocationKeys {
    fn from(wire: LocationKeys) -> Self {
        match wire {
            LocationKeys::Scoped => Self::Scoped,
            LocationKeys::Shared => Self::Shared,
        }
    }
}

impl From<&ObjectLock> for garden::ObjectLock {
    fn from(wire: &ObjectLock) -> Self {
        let mode = match wire.mode {
            ObjectLockMode::Governance => garden::ObjectLockMode::Governance,
            ObjectLockMode::Compliance => garden::ObjectLockMode::Compliance,
        };
        Self { mode, retention_days: wire.retention_days }
    }
}

impl From<&CloudProfile> for garden::Profile {
    fn from(wire: &CloudProfile) -> Self {
        let backup = wire.spec.backup.as_ref().map(|backup| garden::Backup {
            provider: backup.provider.clone(),
            region: backup.region.clone(),
            secret: backup.secret_ref.as_ref().map(Into::into),
            config: wire.spec.store_config().as_ref().map(Into::into).unwrap_or_default(),
        });
        Self {
            name: wire.name_any(),
            provider: wire.spec.provider.clone(),
            regions: wire.spec.constraints.regions.clone(),
            backup,
            allows_cross_provider: keys::is_set(wire.annotations(), keys::ALLOW_CROSS_PROVIDER),
            same_store: wire.annotations().get(keys::SAME_STORE).cloned(),
        }
    }
}

impl From<&Seed> for garden::Seed {
    fn from(wire: &Seed) -> Self {
        Self {
            name: wire.name_any(),
            profile: wire.spec.cloud_profile_name.clone(),
            region: wire.spec.region.clone(),
            reaches: wire.spec.reaches.clone(),
        }
    }
}

impl From<&BackupBucket> for Bucket {
    fn from(wire: &BackupBucket) -> Self {
        let status = wire.status.clone().unwrap_or_default();
        Self {
            // Not `generateName`, which is no name yet.
            name: wire.metadata.name.clone().unwrap_or_default(),
            place: Place { provider: wire.spec.provider.clone(), region: wire.spec.region.clone() },
            secret: wire.spec.secret_ref.as_ref().map(Into::into),
            config: wire.spec.provider_config.as_ref().map(Into::into).unwrap_or_default(),
            owner: wire.annotations().get(keys::CLOUD_PROFILE).cloned(),
            allocated: status.allocated.into_iter().collect(),
            limit: status.limit,
            is_made: status.observed_generation.is_some(),
            is_terminating: wire.metadata.deletion_timestamp.is_some(),
            has_failed: status.last_operation.is_some_and(|last| last.state == OperationState::Failed),
            forget_data: reason(wire.annotations(), keys::FORGET_DATA),
        }
    }
}

impl From<&BackupEntry> for Entry {
    fn from(wire: &BackupEntry) -> Self {
        let said = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        Self {
            namespace: wire.namespace().unwrap_or_default(),
            // Not `generateName`, which is no name yet.
            name: wire.metadata.name.clone().unwrap_or_default(),
            uid: wire.uid().unwrap_or_default(),
            seed: wire.spec.seed_name.clone(),
            shoot_uid: said(&wire.spec.shoot_uid),
            bucket: said(&wire.spec.bucket_name),
            placed_in: wire.annotations().get(keys::PLACED_IN).cloned(),
            is_terminating: wire.metadata.deletion_timestamp.is_some(),
            is_claimed: wire.finalizers().iter().any(|one| one == keys::GARDEN_FINALIZER),
            force_deletion: reason(wire.annotations(), keys::FORCE_DELETION),
            forget_data: reason(wire.annotations(), keys::FORGET_DATA),
            take_over: wire.annotations().get(keys::TAKE_OVER).cloned(),
        }
    }
}

/// The value of an annotation, unless it is `false`.
fn reason(annotations: &BTreeMap<String, String>, key: &str) -> Option<String> {
    annotations.get(key).filter(|_| keys::is_set(annotations, key)).cloned()
}

impl From<&extensions::BackupBucket> for Extension {
    fn from(wire: &extensions::BackupBucket) -> Self {
        let place = Place { provider: wire.spec.kind.clone(), region: wire.spec.region.clone() };
        extension(wire, place, None, &wire.spec.secret_ref)
    }
}

impl From<&extensions::BackupEntry> for Extension {
    fn from(wire: &extensions::BackupEntry) -> Self {
        let place = Place { provider: wire.spec.kind.clone(), region: wire.spec.region.clone() };
        extension(wire, place, Some(wire.spec.bucket_name.clone()), &wire.spec.secret_ref)
    }
}

fn extension(
    object: &impl ResourceExt,
    place: Place,
    bucket: Option<String>,
    secret: &SecretReference,
) -> Extension {
    Extension {
        name: object.name_any(),
        place,
        bucket,
        secret: Some(secret.into()),
        is_terminating: object.meta().deletion_timestamp.is_some(),
        is_confirmed: object.annotations().get(keys::CONFIRM_DELETION).is_some_and(|value| value == "true"),
    }
}

/// The directory of a store that a BackupStorageLocation of a member names.
pub fn location(wire: &BackupStorageLocation) -> Location {
    let config = |key: &str| wire.spec.config.as_ref()?.get(key).filter(|text| !text.is_empty()).cloned();
    Location {
        name: wire.name_any(),
        provider: wire.spec.provider.clone(),
        bucket: wire.spec.object_storage.bucket.trim_matches('/').to_owned(),
        prefix: wire.spec.object_storage.prefix.clone().unwrap_or_default(),
        region: config("region"),
        is_read_only: wire.spec.access_mode == Some(AccessMode::ReadOnly),
        entry: wire.labels().get(keys::BACKUP_ENTRY).cloned(),
    }
}
