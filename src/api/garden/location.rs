//! The BackupStorageLocation that an entry yields, its credentials as Velero wants them, and what the hub is told of it.

use std::collections::BTreeMap;

use berth_core::garden::location::Access;
use berth_core::violation::{Field, Violations};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use super::carried::{self, Freight};
use super::report::{CONFIGURATION_PROBLEM, UNAUTHORIZED};
use super::{BackupBucket, BackupEntry, Condition};
use crate::keys;
use crate::velero::backup_storage_location::{AccessMode, ObjectStorageLocation, SecretKey};
use crate::velero::{BackupStorageLocation, BackupStorageLocationPhase, BackupStorageLocationSpec};

/// Type of the entry's condition: its location can be used.
pub const LOCATION_AVAILABLE: &str = "LocationAvailable";
/// Key of the Secret with the credentials: a file as AWS's tools have it.
pub const CLOUD: &str = "cloud";

/// Why [`LOCATION_AVAILABLE`] is as it is.
pub mod reason {
    pub const AVAILABLE: &str = "Available";
    /// For reading: its entry is deleted, or another cluster writes there.
    pub const READ_ONLY: &str = "ReadOnly";
    pub const UNAVAILABLE: &str = "Unavailable";
    /// The store was not asked yet, or not since the last change.
    pub const VALIDATING: &str = "Validating";
    pub const BUCKET_NOT_READY: &str = "BucketNotReady";
    /// Somebody else's location has the entry's name.
    pub const NAME_TAKEN: &str = "NameTaken";
    pub const CREDENTIALS: &str = "Credentials";
    pub const REMOVED: &str = "Removed";
}

/// Name of the Secret, beside the location, with its credentials.
pub fn secret_name(entry: &str) -> String {
    format!("{entry}-credentials")
}

/// The folder of Velero's backups in an entry's directory: others may keep theirs beside it, and Velero takes a location for
/// broken in which there is anything else.
pub fn prefix(entry: &str) -> String {
    format!("{entry}/velero")
}

/// Does this kind of store take credentials at all?
pub fn takes_credentials(provider: &str) -> bool {
    provider != keys::FILESYSTEM_PROVIDER
}

/// The location of an entry in `bucket`.
pub fn location(
    entry: &BackupEntry,
    bucket: &BackupBucket,
    access: Access,
    is_default: bool,
    freight: Freight<'_>,
) -> BackupStorageLocation {
    let name = entry.metadata.name.clone().unwrap_or_default();
    let none = super::StoreConfig::default();
    let store = bucket.spec.provider_config.as_ref().unwrap_or(&none);
    let takes_credentials = takes_credentials(&bucket.spec.provider);
    let yes = |value: Option<bool>| value.unwrap_or_default().then(|| "true".to_owned());
    let config = if takes_credentials {
        BTreeMap::from([
            ("region", Some(bucket.spec.region.clone())),
            ("s3Url", store.endpoint.clone()),
            ("s3ForcePathStyle", yes(store.force_path_style)),
            ("insecureSkipTLSVerify", yes(store.insecure_skip_tls_verify)),
        ])
    } else {
        BTreeMap::from([("path", store.path.clone())])
    };
    let config = config.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
    let pem = store.ca_cert.as_deref().filter(|_| takes_credentials);
    let mut labels = carried::labels(&entry.metadata, freight.seed);
    labels.insert(keys::BACKUP_ENTRY.to_owned(), name.clone());
    BackupStorageLocation {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            labels: Some(labels),
            annotations: Some([(keys::CREDENTIALS_DIGEST.to_owned(), freight.digest.to_owned())].into()),
            ..ObjectMeta::default()
        },
        spec: BackupStorageLocationSpec {
            provider: bucket.spec.provider.clone(),
            config: Some(config),
            credential: takes_credentials.then(|| SecretKey {
                name: secret_name(&name),
                key: CLOUD.to_owned(),
                optional: None,
            }),
            object_storage: ObjectStorageLocation {
                bucket: bucket.metadata.name.clone().unwrap_or_default(),
                prefix: Some(prefix(&name)),
                ca_cert: pem.map(base64),
                ca_cert_ref: None,
            },
            default: is_default.then_some(true),
            access_mode: Some(match access {
                Access::ReadWrite => AccessMode::ReadWrite,
                Access::ReadOnly => AccessMode::ReadOnly,
            }),
            ..BackupStorageLocationSpec::default()
        },
        status: None,
    }
}

fn base64(text: &str) -> String {
    // As every Secret is written.
    let written = serde_json::to_value(ByteString(text.as_bytes().to_vec()));
    written.ok().and_then(|value| Some(value.as_str()?.to_owned())).unwrap_or_default()
}

/// Has a location all that `wanted` has? What people set besides (how often it is checked, say) is theirs.
pub fn is_as(found: &BackupStorageLocationSpec, wanted: &BackupStorageLocationSpec) -> bool {
    let theirs = BackupStorageLocationSpec {
        backup_sync_period: found.backup_sync_period.clone(),
        validation_frequency: found.validation_frequency.clone(),
        default: wanted.default.or(found.default.filter(|is_default| !is_default)),
        ..wanted.clone()
    };
    *found == theirs
}

/// The `cloud` file of a Secret with Gardener's keys.
///
/// # Errors
/// Every key that is missing or cannot stand in such a file. Never quotes one.
pub fn cloud_file(data: &BTreeMap<String, Vec<u8>>) -> Result<String, Violations> {
    let mut faults = Violations::default();
    let mut lines = vec!["[default]".to_owned()];
    let keys = [
        ("accessKeyID", "aws_access_key_id", true),
        ("secretAccessKey", "aws_secret_access_key", true),
        ("sessionToken", "aws_session_token", false),
    ];
    for (key, name, is_needed) in keys {
        let field = Field::root("data").key(key);
        let Some(bytes) = data.get(key).filter(|bytes| !bytes.trim_ascii().is_empty()) else {
            faults.require(!is_needed, &field, "is missing: put the store's key there");
            continue;
        };
        match std::str::from_utf8(bytes.trim_ascii()) {
            Ok(text) if !text.chars().any(char::is_control) => lines.push(format!("{name}={text}")),
            _ => faults.push(field, "must be one line of text"),
        }
    }
    lines.push(String::new());
    faults.into_result(lines.join("\n"))
}

/// What the hub is told of a location that is there.
pub fn condition(found: &BackupStorageLocation, now: Timestamp) -> Condition {
    let status = found.status.clone().unwrap_or_default();
    let read_only = found.spec.access_mode == Some(AccessMode::ReadOnly);
    let message = status.message.unwrap_or_default();
    // A phase without a time is from before the last change.
    match status.phase.filter(|_| status.last_validation_time.is_some()) {
        Some(BackupStorageLocationPhase::Available) if read_only => {
            said("True", reason::READ_ONLY, "nothing is written there any more", now)
        }
        Some(BackupStorageLocationPhase::Available) => said("True", reason::AVAILABLE, "", now),
        Some(BackupStorageLocationPhase::Unavailable) => {
            let refused =
                ["403", "401", "Forbidden", "AccessDenied", "SignatureDoesNotMatch", "InvalidAccessKeyId"];
            let is_refused = refused.iter().any(|sign| message.contains(sign));
            let codes = if is_refused { vec![UNAUTHORIZED.to_owned()] } else { Vec::new() };
            Condition { codes, ..said("False", reason::UNAVAILABLE, &message, now) }
        }
        None => said("Unknown", reason::VALIDATING, "the store is being asked", now),
    }
}

/// What the hub is told where there is no location of ours.
pub fn without_location(why: &str, message: &str, now: Timestamp) -> Condition {
    let by_hand = [reason::NAME_TAKEN, reason::CREDENTIALS].contains(&why);
    let codes = if by_hand { vec![CONFIGURATION_PROBLEM.to_owned()] } else { Vec::new() };
    Condition { codes, ..said("False", why, message, now) }
}

fn said(status: &str, why: &str, message: &str, now: Timestamp) -> Condition {
    Condition {
        kind: LOCATION_AVAILABLE.to_owned(),
        status: status.to_owned(),
        last_transition_time: Time(now),
        last_update_time: Time(now),
        reason: why.to_owned(),
        message: message.to_owned(),
        codes: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BackupBucketSpec, BackupEntrySpec, StoreConfig};
    use super::*;

    fn shared(provider: &str, config: StoreConfig) -> (BackupEntry, BackupBucket) {
        let mut entry = BackupEntry::new("ship--1", BackupEntrySpec::default());
        entry.spec.bucket_name = Some("packet-eu".into());
        let spec = BackupBucketSpec {
            provider: provider.into(),
            region: "eu-west-1".into(),
            provider_config: Some(config),
            ..BackupBucketSpec::default()
        };
        (entry, BackupBucket::new("packet-eu", spec))
    }

    const FREIGHT: Freight<'_> = Freight { seed: "ship", namespace: "garden", digest: "d1" };

    #[test]
    fn a_bucket_knows_all_that_its_locations_need() {
        let config = StoreConfig {
            endpoint: Some("https://s3.example".into()),
            force_path_style: Some(true),
            ca_cert: Some("PEM".into()),
            ..StoreConfig::default()
        };
        let (entry, bucket) = shared("aws", config);
        let found = location(&entry, &bucket, Access::ReadWrite, false, FREIGHT);
        assert_eq!(found.metadata.name.as_deref(), Some("ship--1"));
        let spec = serde_json::to_value(&found.spec).unwrap();
        let wanted = serde_json::json!({
            "provider": "aws",
            "config": {"region": "eu-west-1", "s3Url": "https://s3.example", "s3ForcePathStyle": "true"},
            "credential": {"name": "ship--1-credentials", "key": "cloud"},
            "objectStorage": {"bucket": "packet-eu", "prefix": "ship--1/velero", "caCert": "UEVN"},
            "accessMode": "ReadWrite",
        });
        assert_eq!(spec, wanted);
    }

    #[test]
    fn a_folder_needs_no_credentials() {
        let config = StoreConfig { path: Some("/srv".into()), ..StoreConfig::default() };
        let (entry, bucket) = shared(keys::FILESYSTEM_PROVIDER, config);
        let found = location(&entry, &bucket, Access::ReadOnly, true, FREIGHT);
        let spec = serde_json::to_value(&found.spec).unwrap();
        let wanted = serde_json::json!({
            "provider": "berth.dev/filesystem",
            "config": {"path": "/srv"},
            "objectStorage": {"bucket": "packet-eu", "prefix": "ship--1/velero"},
            "accessMode": "ReadOnly",
            "default": true,
        });
        assert_eq!(spec, wanted);
    }

    #[test]
    fn what_people_set_besides_stays() {
        let (entry, bucket) = shared("aws", StoreConfig::default());
        let wanted = location(&entry, &bucket, Access::ReadWrite, false, FREIGHT).spec;
        let mut found = wanted.clone();
        found.validation_frequency = Some(crate::GoDuration("1s".into()));
        found.default = Some(false);
        assert!(is_as(&found, &wanted));
        found.default = Some(true);
        assert!(!is_as(&found, &wanted));
        found.default = None;
        found.access_mode = Some(AccessMode::ReadOnly);
        assert!(!is_as(&found, &wanted));
    }

    #[test]
    fn keys_become_a_file() {
        let data = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(k, v)| ((*k).to_owned(), v.as_bytes().to_vec())).collect::<BTreeMap<_, _>>()
        };
        let file = cloud_file(&data(&[("accessKeyID", "id\n"), ("secretAccessKey", "s=1"), ("region", "x")]));
        assert_eq!(file.unwrap(), "[default]\naws_access_key_id=id\naws_secret_access_key=s=1\n");
        let faults = cloud_file(&data(&[("secretAccessKey", "top\nsecret")])).unwrap_err().to_string();
        assert_eq!(
            faults,
            "data[accessKeyID]: is missing: put the store's key there; data[secretAccessKey]: must be one line of text"
        );
    }

    #[test]
    fn the_condition_follows_the_phase() {
        let (entry, bucket) = shared("aws", StoreConfig::default());
        let mut found = location(&entry, &bucket, Access::ReadWrite, false, FREIGHT);
        let now = Timestamp::UNIX_EPOCH;
        let says = |found: &BackupStorageLocation| {
            let condition = condition(found, now);
            (condition.status, condition.reason, condition.codes)
        };
        assert_eq!(says(&found), ("Unknown".into(), reason::VALIDATING.into(), Vec::new()));
        let mut status = crate::velero::backup_storage_location::BackupStorageLocationStatus {
            phase: Some(BackupStorageLocationPhase::Available),
            ..Default::default()
        };
        found.status = Some(status.clone());
        assert_eq!(says(&found).0, "Unknown", "from before the keys changed");
        status.last_validation_time = Some(Time(now));
        found.status = Some(status.clone());
        assert_eq!(says(&found), ("True".into(), reason::AVAILABLE.into(), Vec::new()));
        status.phase = Some(BackupStorageLocationPhase::Unavailable);
        status.message = Some("403 Forbidden: SignatureDoesNotMatch".into());
        found.status = Some(status);
        assert_eq!(says(&found), ("False".into(), reason::UNAVAILABLE.into(), vec![UNAUTHORIZED.into()]));
    }
}
