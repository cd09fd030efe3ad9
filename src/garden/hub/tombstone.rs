//! The record of an entry that is no more: what there was, and where it went. It outlives the entry, its namespace, and its
//! bucket.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::garden::{BackupBucket, BackupEntry};
use berth_api::keys;
use berth_core::garden::hub::End;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};
use tokio::time::timeout;

use crate::client::is_conflict;
use crate::install::{PART_OF, PART_OF_BERTH};

const WRITE: Duration = Duration::from_secs(10);

/// Writes it, once.
///
/// # Errors
/// When the API server does not take it.
pub async fn write(
    client: &Client,
    namespace: &str,
    entry: &BackupEntry,
    bucket: Option<&BackupBucket>,
    end: End,
    now: Timestamp,
) -> anyhow::Result<()> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let record = record(entry, bucket, end, now);
    match timeout(WRITE, api.create(&PostParams::default(), &record)).await? {
        Ok(_) => Ok(()),
        // A hub that died between this and the next step wrote it.
        Err(error) if is_conflict(&error) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn record(entry: &BackupEntry, bucket: Option<&BackupBucket>, end: End, now: Timestamp) -> ConfigMap {
    let (name, uid) = (entry.name_any(), entry.uid().unwrap_or_default());
    let status = entry.status.clone().unwrap_or_default();
    let annotation = |key: &str| entry.annotations().get(key).cloned();
    let reason = match end {
        End::Forgotten => Some(match annotation(keys::FORGET_DATA) {
            Some(why) => format!("its data was left alone: {why}"),
            None => "the directory of its name is another entry's, and was left alone".to_owned(),
        }),
        End::Removed => annotation(keys::FORCE_DELETION).map(|why| format!("its grace was skipped: {why}")),
    };
    let mut data = BTreeMap::from([
        ("entry".to_owned(), name.clone()),
        ("namespace".to_owned(), entry.namespace().unwrap_or_default()),
        ("uid".to_owned(), uid.clone()),
        ("bucket".to_owned(), entry.spec.bucket_name.clone().unwrap_or_default()),
        ("prefix".to_owned(), format!("{name}/")),
        ("when".to_owned(), format!("{now:.0}")),
        ("who".to_owned(), status.seed.unwrap_or_default()),
        ("reason".to_owned(), reason.unwrap_or_else(|| "deleted, and its grace is over".to_owned())),
        ("data".to_owned(), if end == End::Removed { "removed" } else { "left" }.to_owned()),
    ]);
    let deleted = entry.metadata.deletion_timestamp.as_ref();
    data.extend(deleted.map(|time| ("deleted".to_owned(), time.0.to_string())));
    data.extend(bucket.map(|bucket| ("provider".to_owned(), bucket.spec.provider.clone())));
    data.extend(bucket.map(|bucket| ("region".to_owned(), bucket.spec.region.clone())));
    // Absent: whoever removed it did not count.
    if let Some(removed) = status.removed {
        data.insert("objects".to_owned(), removed.objects.to_string());
        data.insert("bytes".to_owned(), removed.bytes.to_string());
    }
    let labels = [(keys::TOMBSTONE, "true"), (PART_OF, PART_OF_BERTH)];
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(format!("tombstone-{name}-{}", uid.get(..5).unwrap_or(&uid))),
            labels: Some(labels.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect()),
            ..ObjectMeta::default()
        },
        data: Some(data),
        ..ConfigMap::default()
    }
}
