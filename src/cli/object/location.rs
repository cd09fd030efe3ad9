//! BackupStorageLocations: the object of `backup-location create`, and the change of
//! `backup-location set`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::map;
use crate::args::location::{AccessModeArg, CreateLocationArgs, SetLocationArgs};
use crate::args::value::{Pairs, go_text};

/// The location that the flags ask for. `authority`: what the file of `--cacert` holds.
///
/// # Errors
/// Every flag that is missing or wrong.
pub fn location(
    namespace: &str,
    args: &CreateLocationArgs,
    authority: Option<&[u8]>,
) -> Result<Value, Vec<String>> {
    let mut faults = Vec::new();
    let mut wanted = |value: &Option<String>, flag: &str, what: &str| {
        let value = value.clone().unwrap_or_default();
        if value.is_empty() {
            faults.push(format!("{flag} is missing: name {what}"));
        }
        value
    };
    let provider = wanted(&args.provider, "--provider", "the store's provider, such as aws");
    let bucket = wanted(&args.bucket, "--bucket", "the bucket that holds the backups");
    let credential = credential(&args.credential).unwrap_or_else(|fault| {
        faults.push(fault);
        None
    });
    if !faults.is_empty() {
        return Err(faults);
    }
    let mut storage = Map::from_iter([("bucket".to_owned(), json!(bucket))]);
    if let Some(prefix) = args.prefix.as_ref().filter(|prefix| !prefix.is_empty()) {
        storage.insert("prefix".to_owned(), json!(prefix));
    }
    if let Some(authority) = authority.filter(|authority| !authority.is_empty()) {
        storage.insert("caCert".to_owned(), json!(STANDARD.encode(authority)));
    }
    let access = match args.access_mode {
        AccessModeArg::ReadWrite => "ReadWrite",
        AccessModeArg::ReadOnly => "ReadOnly",
    };
    let mut spec = Map::from_iter([
        ("provider".to_owned(), json!(provider)),
        ("objectStorage".to_owned(), Value::Object(storage)),
        ("accessMode".to_owned(), json!(access)),
    ]);
    let config = map(&args.config);
    if !config.is_empty() {
        spec.insert("config".to_owned(), json!(config));
    }
    if args.default {
        spec.insert("default".to_owned(), json!(true));
    }
    for (key, time) in
        [("backupSyncPeriod", args.backup_sync_period), ("validationFrequency", args.validation_frequency)]
    {
        if let Some(time) = time {
            spec.insert(key.to_owned(), json!(go_text(time.0)));
        }
    }
    if let Some(credential) = credential {
        spec.insert("credential".to_owned(), credential);
    }
    let mut metadata =
        Map::from_iter([("name".to_owned(), json!(args.name)), ("namespace".to_owned(), json!(namespace))]);
    let labels = map(&args.labels);
    if !labels.is_empty() {
        metadata.insert("labels".to_owned(), json!(labels));
    }
    Ok(json!({
        "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation", "metadata": metadata, "spec": spec,
    }))
}

/// The change that `backup-location set` asks for, as a merge patch. What no flag names stays as
/// it is, the certificate authority included.
///
/// # Errors
/// When no flag is given, or one is wrong.
pub fn change(args: &SetLocationArgs, authority: Option<&[u8]>) -> Result<Value, Vec<String>> {
    let credential = credential(&args.credential).map_err(|fault| vec![fault])?;
    let mut spec = Map::new();
    if let Some(default) = args.default.and_then(|default| default.0) {
        spec.insert("default".to_owned(), json!(default));
    }
    if let Some(credential) = credential {
        spec.insert("credential".to_owned(), credential);
    }
    if let Some(authority) = authority {
        // Both together make a location Unavailable.
        let authority = json!({"caCert": STANDARD.encode(authority), "caCertRef": null});
        spec.insert("objectStorage".to_owned(), authority);
    }
    if spec.is_empty() {
        return Err(vec!["nothing is to be changed: give --default, --credential or --cacert".to_owned()]);
    }
    Ok(json!({ "spec": spec }))
}

fn credential(pairs: &[Pairs]) -> Result<Option<Value>, String> {
    let credentials = map(pairs);
    if credentials.len() > 1 {
        return Err("--credential names more than one Secret: give one SECRET=KEY".to_owned());
    }
    Ok(credentials.into_iter().next().map(|(name, key)| json!({"name": name, "key": key})))
}
