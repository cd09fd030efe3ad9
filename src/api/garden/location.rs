//! The BackupStorageLocation of an entry, its credentials in Velero's form, and the conditions that
//! are reported of it.

use std::collections::BTreeMap;

use berth_api::keys;
use berth_api::velero::backup_storage_location::{AccessMode, ObjectStorageLocation, SecretKey};
use berth_api::velero::{BackupStorageLocation, BackupStorageLocationPhase, BackupStorageLocationSpec};
use berth_core::violation::{Field, Violations};
use berth_garden_core::location::{LegacyCandidate, LocationAccess};
use berth_garden_core::store::{AZURE, GCP};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use super::member_objects::{self, MemberContext};
use super::report::{CONFIGURATION_PROBLEM, UNAUTHORIZED};
use super::{BackupBucket, BackupEntry, Condition, StoreConfig};

/// Type of the entry's condition: its location can be used.
pub const LOCATION_AVAILABLE: &str = "LocationAvailable";
/// Type of the entry's condition: its cluster still uses a location of its own. Absent if it does
/// not.
pub const LEGACY_LOCATION: &str = "LegacyLocation";
/// Key of the Secret with the credentials: a file as the tools of its provider have it.
pub const CLOUD: &str = "cloud";

/// What the `cloud` file calls the key of an Azure account, as in the documentation of Velero's
/// plugin.
const ACCOUNT_KEY: &str = "AZURE_STORAGE_ACCOUNT_ACCESS_KEY";
const SERVICE_ACCOUNT: &str = "serviceaccount.json";

/// Reasons of [`LOCATION_AVAILABLE`] and [`LEGACY_LOCATION`].
pub mod reason {
    pub const AVAILABLE: &str = "Available";
    /// It can be read only: its entry is deleted, or another cluster writes there.
    pub const READ_ONLY: &str = "ReadOnly";
    pub const UNAVAILABLE: &str = "Unavailable";
    /// The store has not been checked yet, or not since the last change.
    pub const VALIDATING: &str = "Validating";
    pub const BUCKET_NOT_READY: &str = "BucketNotReady";
    /// The cluster that the entry comes from has to stop writing first.
    pub const MOVING: &str = "Moving";
    /// A foreign location has the entry's name.
    pub const NAME_TAKEN: &str = "NameTaken";
    pub const CREDENTIALS: &str = "Credentials";
    pub const REMOVED: &str = "Removed";
    /// Backups that name no location go to the cluster's own location.
    pub const OWN_DEFAULT: &str = "OwnDefault";
}

/// Name of the Secret, beside the location, with its credentials.
pub fn secret_name(entry: &str) -> String {
    format!("{entry}-credentials")
}

/// The folder of Velero's backups in an entry's directory. Other tools may have theirs beside it,
/// and Velero considers a location broken that contains anything else.
pub fn prefix(entry: &str) -> String {
    format!("{entry}/velero")
}

/// Does this kind of store take credentials at all?
pub fn takes_credentials(provider: &str) -> bool {
    provider != keys::FILESYSTEM_PROVIDER
}

/// The location of an entry in `bucket`. `account`: see [`account`].
pub fn location(
    entry: &BackupEntry,
    bucket: &BackupBucket,
    access: LocationAccess,
    is_default: bool,
    account: Option<&StorageAccount>,
    context: MemberContext<'_>,
) -> BackupStorageLocation {
    let name = entry.metadata.name.clone().unwrap_or_default();
    let none = StoreConfig::default();
    let store = bucket.spec.provider_config.as_ref().unwrap_or(&none);
    let takes_credentials = takes_credentials(&bucket.spec.provider);
    let config = config(bucket, store, account);
    let pem = store.ca_cert.as_deref().filter(|_| takes_credentials);
    let mut labels = member_objects::labels(&entry.metadata, context.seed);
    labels.insert(keys::BACKUP_ENTRY.to_owned(), name.clone());
    BackupStorageLocation {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            labels: Some(labels),
            annotations: Some([(keys::CREDENTIALS_DIGEST.to_owned(), context.digest.to_owned())].into()),
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
                LocationAccess::ReadWrite => AccessMode::ReadWrite,
                LocationAccess::ReadOnly => AccessMode::ReadOnly,
            }),
            ..BackupStorageLocationSpec::default()
        },
        status: None,
    }
}

/// Only settings that Velero's plugin of that provider knows, because it refuses a location with
/// others.
fn config(
    bucket: &BackupBucket,
    store: &StoreConfig,
    account: Option<&StorageAccount>,
) -> BTreeMap<String, String> {
    let yes = |value: Option<bool>| value.unwrap_or_default().then(|| "true".to_owned());
    let endpoint = store.endpoint.as_deref().map(|url| url.trim_end_matches('/').to_owned());
    let config = match bucket.spec.provider.as_str() {
        keys::FILESYSTEM_PROVIDER => vec![("path", store.path.clone())],
        AZURE => vec![
            ("storageAccount", account.map(|account| account.name.clone())),
            ("storageAccountKeyEnvVar", Some(ACCOUNT_KEY.to_owned())),
            ("storageAccountURI", endpoint.or_else(|| account?.uri())),
        ],
        // As Google's own clients take an endpoint: with the path of the JSON API.
        GCP => vec![("storeEndpoint", endpoint.map(|url| format!("{url}/storage/v1/")))],
        _ => vec![
            ("region", Some(bucket.spec.region.clone())),
            ("s3Url", store.endpoint.clone()),
            ("s3ForcePathStyle", yes(store.force_path_style)),
            ("insecureSkipTLSVerify", yes(store.insecure_skip_tls_verify)),
        ],
    };
    config.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

/// An Azure storage account, which a location names in clear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageAccount {
    pub name: String,
    /// Of its cloud, where that is not the public one.
    pub domain: Option<String>,
}

impl StorageAccount {
    fn uri(&self) -> Option<String> {
        self.domain.as_ref().map(|domain| format!("https://{}.{domain}", self.name))
    }
}

/// The account that a Secret with Gardener's keys is for; `None` at other providers.
pub fn account(provider: &str, data: &BTreeMap<String, Vec<u8>>) -> Option<StorageAccount> {
    let get = |key: &str| {
        let text = std::str::from_utf8(data.get(key)?.trim_ascii()).ok()?;
        (!text.is_empty()).then(|| text.to_owned())
    };
    let name = get("storageAccount").filter(|_| provider == AZURE)?;
    Some(StorageAccount { name, domain: get("domain") })
}

/// The account of a location that is there, as [`location`] wrote it.
pub fn account_of(found: &BackupStorageLocation) -> Option<StorageAccount> {
    let config = found.spec.config.as_ref().filter(|_| found.spec.provider == AZURE)?;
    let name = config.get("storageAccount")?.clone();
    let host = config.get("storageAccountURI").and_then(|uri| uri.strip_prefix("https://"));
    let domain = host.and_then(|host| host.strip_prefix(&name)?.strip_prefix('.')).map(str::to_owned);
    Some(StorageAccount { name, domain })
}

fn base64(text: &str) -> String {
    // The encoding of Secrets.
    let written = serde_json::to_value(ByteString(text.as_bytes().to_vec()));
    written.ok().and_then(|value| Some(value.as_str()?.to_owned())).unwrap_or_default()
}

/// Has a location all that `wanted` has? People may have set more, for example how often it is
/// checked.
pub fn is_as(found: &BackupStorageLocationSpec, wanted: &BackupStorageLocationSpec) -> bool {
    let theirs = BackupStorageLocationSpec {
        backup_sync_period: found.backup_sync_period.clone(),
        validation_frequency: found.validation_frequency.clone(),
        default: wanted.default.or(found.default.filter(|is_default| !is_default)),
        ..wanted.clone()
    };
    *found == theirs
}

/// The `cloud` file of a Secret with Gardener's keys, as Velero's plugin of that provider reads it.
///
/// # Errors
/// Every key that is missing or cannot stand in such a file. Never quotes one.
pub fn cloud_file(provider: &str, data: &BTreeMap<String, Vec<u8>>) -> Result<String, Violations> {
    match provider {
        AZURE => of_lines(data, None, &[("storageAccount", None), ("storageKey", Some(ACCOUNT_KEY))], &[]),
        GCP => service_account(data),
        _ => of_lines(
            data,
            Some("[default]"),
            &[("accessKeyID", Some("aws_access_key_id")), ("secretAccessKey", Some("aws_secret_access_key"))],
            &[("sessionToken", Some("aws_session_token"))],
        ),
    }
}

/// Keys of a Secret, and their names in the file; keys without a name are not in the file.
type SecretKeyNames = [(&'static str, Option<&'static str>)];

fn of_lines(
    data: &BTreeMap<String, Vec<u8>>,
    head: Option<&str>,
    needed: &SecretKeyNames,
    optional: &SecretKeyNames,
) -> Result<String, Violations> {
    let mut faults = Violations::default();
    let mut lines: Vec<String> = head.map(str::to_owned).into_iter().collect();
    let needed = needed.iter().map(|(key, name)| (*key, *name, true));
    for (key, name, is_needed) in needed.chain(optional.iter().map(|(key, name)| (*key, *name, false))) {
        let field = Field::root("data").key(key);
        let Some(bytes) = data.get(key).filter(|bytes| !bytes.trim_ascii().is_empty()) else {
            faults.require(!is_needed, &field, "is missing: put the store's key there");
            continue;
        };
        match std::str::from_utf8(bytes.trim_ascii()) {
            Ok(text) if !text.chars().any(char::is_control) => {
                lines.extend(name.map(|name| format!("{name}={text}")));
            }
            _ => faults.push(field, "must be one line of text"),
        }
    }
    lines.push(String::new());
    faults.into_result(lines.join("\n"))
}

/// Unchanged, because Google's tools have no other form.
fn service_account(data: &BTreeMap<String, Vec<u8>>) -> Result<String, Violations> {
    let field = Field::root("data").key(SERVICE_ACCOUNT);
    let mut faults = Violations::default();
    let text = data.get(SERVICE_ACCOUNT).map(|bytes| std::str::from_utf8(bytes.trim_ascii()));
    let text = match text {
        None | Some(Ok("")) => {
            faults.push(field, "is missing: put the service account's JSON file there");
            ""
        }
        Some(Ok(text)) if serde_json::from_str::<serde_json::Map<_, serde_json::Value>>(text).is_ok() => text,
        Some(_) => {
            faults.push(field, "must be the service account's JSON file");
            ""
        }
    };
    faults.into_result(format!("{text}\n"))
}

/// Condition of a location that exists.
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
            let refused = [
                "403",
                "401",
                "Forbidden",
                "AccessDenied",
                "SignatureDoesNotMatch",
                "InvalidAccessKeyId",
                "AuthenticationFailed",
            ];
            let is_refused = refused.iter().any(|sign| message.contains(sign));
            let codes = if is_refused { vec![UNAUTHORIZED.to_owned()] } else { Vec::new() };
            Condition { codes, ..said("False", reason::UNAVAILABLE, &message, now) }
        }
        None => said("Unknown", reason::VALIDATING, "the store is being asked", now),
    }
}

/// Condition where the entry has no location.
pub fn without_location(why: &str, message: &str, now: Timestamp) -> Condition {
    let by_hand = [reason::NAME_TAKEN, reason::CREDENTIALS].contains(&why);
    let codes = if by_hand { vec![CONFIGURATION_PROBLEM.to_owned()] } else { Vec::new() };
    Condition { codes, ..said("False", why, message, now) }
}

/// Condition of an entry whose cluster still uses a default location of its own, if one of `all` is
/// that.
pub fn legacy(all: &[&BackupStorageLocation], entry: &str, now: Timestamp) -> Option<Condition> {
    let candidates: Vec<_> = all.iter().map(|location| candidate(location)).collect();
    let name = berth_garden_core::location::legacy(&candidates)?;
    let found = all.iter().find(|location| location.metadata.name.as_deref() == Some(name))?;
    let message = format!(
        "backups that name no location go to BackupStorageLocation {name} of this cluster's own (bucket {}); \
         to move them into this entry's directory: berth garden migrate --from {name} --to-entry {entry}",
        found.spec.object_storage.bucket
    );
    let condition = said("True", reason::OWN_DEFAULT, &message, now);
    Some(Condition { kind: LEGACY_LOCATION.to_owned(), ..condition })
}

fn candidate(location: &BackupStorageLocation) -> LegacyCandidate<'_> {
    let labels = location.metadata.labels.as_ref();
    LegacyCandidate {
        name: location.metadata.name.as_deref().unwrap_or_default(),
        is_default: location.spec.default == Some(true),
        is_shared: member_objects::is_ours(&location.metadata)
            || labels.is_some_and(|labels| labels.contains_key(keys::BACKUP_ENTRY)),
    }
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
mod tests;
