//! Reads objects into the values that admission checks; the hub's buckets and entries are read in
//! [`super::hub`]. Nothing is checked here: a missing field is empty or `None`.

use berth_api::keys;
use berth_api::velero::BackupStorageLocation;
use berth_api::velero::backup_storage_location::AccessMode;
use berth_garden_core::check::location::ReviewedLocation;
use berth_garden_core::lock::{DefaultLockMode, Lock};
use berth_garden_core::view::ExtensionObject;
use berth_garden_core::{self as garden, ProviderRegion};
use kube::ResourceExt;

use super::{CloudProfile, LocationKeys, ObjectLock, ObjectLockMode, SecretReference, Seed, StoreConfig};
use crate::extensions;

impl From<&SecretReference> for garden::SecretRef {
    fn from(wire: &SecretReference) -> Self {
        Self { name: wire.name.clone(), namespace: wire.namespace.clone() }
    }
}

impl From<&StoreConfig> for garden::StoreSettings {
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

impl From<LocationKeys> for garden::LocationKeyMode {
    fn from(wire: LocationKeys) -> Self {
        match wire {
            LocationKeys::Scoped => Self::Scoped,
            LocationKeys::Shared => Self::Shared,
        }
    }
}

impl From<&ObjectLock> for garden::ObjectLockSettings {
    fn from(wire: &ObjectLock) -> Self {
        let mode = match wire.mode {
            ObjectLockMode::Governance => garden::RetentionMode::Governance,
            ObjectLockMode::Compliance => garden::RetentionMode::Compliance,
        };
        Self { mode, retention_days: wire.retention_days }
    }
}

impl From<&ObjectLock> for Lock {
    fn from(wire: &ObjectLock) -> Self {
        let mode = match wire.mode {
            ObjectLockMode::Governance => DefaultLockMode::Governance,
            ObjectLockMode::Compliance => DefaultLockMode::Compliance,
        };
        Self { mode, days: wire.retention_days }
    }
}

impl From<&CloudProfile> for garden::Profile {
    fn from(wire: &CloudProfile) -> Self {
        let backup = wire.spec.backup.as_ref().map(|backup| garden::ProfileBackupSettings {
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

impl From<&extensions::BackupBucket> for ExtensionObject {
    fn from(wire: &extensions::BackupBucket) -> Self {
        let place = ProviderRegion { provider: wire.spec.kind.clone(), region: wire.spec.region.clone() };
        extension(wire, place, None, &wire.spec.secret_ref)
    }
}

impl From<&extensions::BackupEntry> for ExtensionObject {
    fn from(wire: &extensions::BackupEntry) -> Self {
        let place = ProviderRegion { provider: wire.spec.kind.clone(), region: wire.spec.region.clone() };
        extension(wire, place, Some(wire.spec.bucket_name.clone()), &wire.spec.secret_ref)
    }
}

fn extension(
    object: &impl ResourceExt,
    place: ProviderRegion,
    bucket: Option<String>,
    secret: &SecretReference,
) -> ExtensionObject {
    ExtensionObject {
        name: object.name_any(),
        place,
        bucket,
        secret: Some(secret.into()),
        is_terminating: object.meta().deletion_timestamp.is_some(),
        is_confirmed: object.annotations().get(keys::CONFIRM_DELETION).is_some_and(|value| value == "true"),
    }
}

/// The directory of a store that a BackupStorageLocation of a member names.
pub fn location(wire: &BackupStorageLocation) -> ReviewedLocation {
    let config = |key: &str| wire.spec.config.as_ref()?.get(key).filter(|text| !text.is_empty()).cloned();
    ReviewedLocation {
        name: wire.name_any(),
        provider: wire.spec.provider.clone(),
        bucket: wire.spec.object_storage.bucket.trim_matches('/').to_owned(),
        prefix: wire.spec.object_storage.prefix.clone().unwrap_or_default(),
        region: config("region"),
        is_read_only: wire.spec.access_mode == Some(AccessMode::ReadOnly),
        entry: wire.labels().get(keys::BACKUP_ENTRY).cloned(),
    }
}
