//! The record of an entry that has ended: what there was, and what became of it. It outlives the
//! entry, its namespace and its bucket.

use std::collections::BTreeMap;

use berth_api::keys;
use berth_garden_api::{BackupBucket, BackupEntry};
use berth_garden_core::hub::{self, EntryEnd, EntryRecord, LeftoverData};
use berth_garden_core::name;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Api;
use kube::{Client, ResourceExt};

use crate::objects::{PART_OF, PART_OF_BERTH};
use crate::write::{WriteResult, create};

/// What `data` says of an entry's data.
const REMOVED: &str = "removed";
const LEFT: &str = "left";
/// How the reason begins if an older version wrote [`LEFT`] of a directory that another entry has.
const ANOTHERS: &str = "the directory of its name is another entry's";

/// By name of an entry: what was left of its data in stores.
pub fn left<'r>(records: impl IntoIterator<Item = &'r ConfigMap>) -> BTreeMap<String, Vec<LeftoverData>> {
    hub::left(records.into_iter().filter_map(read))
}

/// Absent: it tells of no data.
fn read(record: &ConfigMap) -> Option<EntryRecord<'_>> {
    let data = record.data.as_ref()?;
    let text = |key: &str| data.get(key).map(String::as_str);
    let is_removed = match text("data")? {
        REMOVED => true,
        LEFT if text("reason").is_none_or(|why| !why.starts_with(ANOTHERS)) => false,
        _ => return None,
    };
    Some(EntryRecord {
        name: record.metadata.name.as_deref()?,
        entry: text("entry")?,
        // A record that an agent wrote, where hub and member are one cluster, has no namespace.
        namespace: text("namespace")?,
        bucket: text("bucket").unwrap_or_default(),
        when: text("when").and_then(|when| when.parse().ok()),
        is_removed,
    })
}

/// Writes the record once, and returns it.
///
/// # Errors
/// When the API server refuses it.
pub async fn write(
    client: &Client,
    namespace: &str,
    entry: &BackupEntry,
    bucket: Option<&BackupBucket>,
    end: EntryEnd,
    now: Timestamp,
) -> anyhow::Result<ConfigMap> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let record = record(namespace, entry, bucket, end, now);
    match create(&api, &record).await {
        // Written by a hub that died between this step and the next.
        WriteResult::Conflict(_) => Ok(record),
        answer => Ok(answer.written()?),
    }
}

fn record(
    namespace: &str,
    entry: &BackupEntry,
    bucket: Option<&BackupBucket>,
    end: EntryEnd,
    now: Timestamp,
) -> ConfigMap {
    let (name, uid) = (entry.name_any(), entry.uid().unwrap_or_default());
    let status = entry.status.clone().unwrap_or_default();
    let annotation = |key: &str| entry.annotations().get(key).cloned();
    let reason = match end {
        EntryEnd::Forgotten => {
            annotation(keys::FORGET_DATA).map(|why| format!("its data was left alone: {why}"))
        }
        EntryEnd::NotIts => {
            Some("the directory of its name was never its own, and was left alone".to_owned())
        }
        EntryEnd::Removed => {
            annotation(keys::FORCE_DELETION).map(|why| format!("its grace was skipped: {why}"))
        }
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
        ("data".to_owned(), data_of(end).to_owned()),
    ]);
    let deleted = entry.metadata.deletion_timestamp.as_ref();
    data.extend(deleted.map(|time| ("deleted".to_owned(), time.0.to_string())));
    data.extend(bucket.map(|bucket| ("provider".to_owned(), bucket.spec.provider.clone())));
    data.extend(bucket.map(|bucket| ("region".to_owned(), bucket.spec.region.clone())));
    // Absent: the executor that removed the data did not count.
    if let Some(removed) = status.removed {
        data.insert("objects".to_owned(), removed.objects.to_string());
        data.insert("bytes".to_owned(), removed.bytes.to_string());
    }
    let labels = [(keys::TOMBSTONE, "true"), (PART_OF, PART_OF_BERTH)];
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name::tombstone(&name, &uid)),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect()),
            ..ObjectMeta::default()
        },
        data: Some(data),
        ..ConfigMap::default()
    }
}

fn data_of(end: EntryEnd) -> &'static str {
    match end {
        EntryEnd::Removed => REMOVED,
        EntryEnd::Forgotten => LEFT,
        EntryEnd::NotIts => "none",
    }
}

#[cfg(test)]
mod tests {
    use berth_garden_api::BackupEntrySpec;

    use super::*;

    fn ended(namespace: &str, name: &str, end: EntryEnd, second: i64) -> ConfigMap {
        let mut entry = BackupEntry::new(name, BackupEntrySpec::default());
        entry.metadata.namespace = Some(namespace.to_owned());
        entry.metadata.uid = Some(format!("{namespace}-uid"));
        entry.spec.bucket_name = Some("shared".to_owned());
        record("garden", &entry, None, end, Timestamp::from_second(second).unwrap())
    }

    #[test]
    fn data_is_left_where_its_record_says_so_and_nowhere_else() {
        let mut of_an_agent = ended("three", "a", EntryEnd::Forgotten, 0);
        of_an_agent.data.as_mut().unwrap().remove("namespace");
        let mut of_an_older_version = ended("five", "a", EntryEnd::Forgotten, 0);
        let reason = "the directory of its name is another entry's, and was left alone".to_owned();
        of_an_older_version.data.as_mut().unwrap().insert("reason".to_owned(), reason);
        let records = [
            ended("one", "a", EntryEnd::Forgotten, 0),
            ended("two", "a", EntryEnd::NotIts, 0),
            ended("one", "b", EntryEnd::Removed, 0),
            of_an_agent,
            of_an_older_version,
            ended("four", "a", EntryEnd::Forgotten, 0),
            ended("four", "a", EntryEnd::Removed, 1),
        ];
        let expected = LeftoverData {
            namespace: "one".to_owned(),
            bucket: "shared".to_owned(),
            record: "tombstone-a-one-uid".to_owned(),
        };
        assert_eq!(left(&records), BTreeMap::from([("a".to_owned(), vec![expected])]));
    }
}
