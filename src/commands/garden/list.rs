//! `berth garden buckets` and `berth garden entries`: list the hub's objects.

use std::fmt::Debug;

use anyhow::Context as _;
use berth_garden_api::location::{LEGACY_LOCATION, LOCATION_AVAILABLE};
use berth_garden_api::{BackupBucket, BackupEntry, LastError, LastOperation};
use jiff::Timestamp;
use kube::api::{Api, ListParams};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::args::Output;
use crate::args::garden::HubTarget;
use crate::cli::print::{self, ColumnHead, say};
use crate::client::{Clients, is_not_found};

/// Objects per page of a list request.
const PAGE: u32 = 500;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BucketRow {
    name: String,
    provider: String,
    region: String,
    entries: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<String>,
    operation: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    created_at: Option<Timestamp>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EntryRow {
    namespace: String,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    bucket: Option<String>,
    cluster: String,
    /// The seed that acts on it, if it is not its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<String>,
    operation: String,
    location: String,
    /// For a cluster that still uses its own location: which one, and how to move it.
    #[serde(skip_serializing_if = "Option::is_none")]
    legacy_location: Option<String>,
    /// For a deleted entry: its data is kept until then.
    #[serde(skip_serializing_if = "Option::is_none")]
    data_until: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    created_at: Option<Timestamp>,
}

pub async fn buckets(args: HubTarget) -> anyhow::Result<()> {
    let client = Clients::new(args.kubeconfig.as_deref()).await?.call;
    let found = all::<BackupBucket>(client).await?;
    let buckets: Vec<BucketRow> = found.iter().map(bucket).collect();
    let heads = [
        ColumnHead::Always("NAME"),
        ColumnHead::Always("PROVIDER"),
        ColumnHead::Always("REGION"),
        ColumnHead::Always("ENTRIES"),
        ColumnHead::Always("SEED"),
        ColumnHead::Always("OPERATION"),
        ColumnHead::Always("AGE"),
        ColumnHead::IfAny("ERROR"),
    ];
    show(args.output, "The hub has no buckets.", &buckets, &heads, |bucket, now| {
        let limit = bucket.limit.map_or_else(String::new, |limit| format!("/{limit}"));
        vec![
            bucket.name.clone(),
            bucket.provider.clone(),
            bucket.region.clone(),
            format!("{}{limit}", bucket.entries),
            bucket.seed.clone().unwrap_or_default(),
            bucket.operation.clone(),
            age(bucket.created_at, now),
            bucket.error.clone().unwrap_or_default(),
        ]
    })
}

pub async fn entries(args: HubTarget) -> anyhow::Result<()> {
    let client = Clients::new(args.kubeconfig.as_deref()).await?.call;
    let found = all::<BackupEntry>(client).await?;
    let entries: Vec<EntryRow> = found.iter().map(entry).collect();
    let heads = [
        ColumnHead::Always("NAMESPACE"),
        ColumnHead::Always("NAME"),
        ColumnHead::Always("BUCKET"),
        ColumnHead::Always("CLUSTER"),
        ColumnHead::IfAny("BY"),
        ColumnHead::Always("OPERATION"),
        ColumnHead::Always("LOCATION"),
        ColumnHead::IfAny("DATA UNTIL"),
        ColumnHead::Always("AGE"),
        ColumnHead::IfAny("ERROR"),
    ];
    show(args.output, "The hub has no entries.", &entries, &heads, |entry, now| {
        vec![
            entry.namespace.clone(),
            entry.name.clone(),
            entry.bucket.clone().unwrap_or_else(|| "none yet".to_owned()),
            entry.cluster.clone(),
            entry.seed.clone().unwrap_or_default(),
            entry.operation.clone(),
            match entry.legacy_location {
                Some(_) => format!("{}, {LEGACY_LOCATION}", entry.location),
                None => entry.location.clone(),
            },
            entry.data_until.map(|at| at.to_string()).unwrap_or_default(),
            age(entry.created_at, now),
            entry.error.clone().unwrap_or_default(),
        ]
    })
}

fn bucket(found: &BackupBucket) -> BucketRow {
    let status = found.status.clone().unwrap_or_default();
    BucketRow {
        name: found.name_any(),
        provider: found.spec.provider.clone(),
        region: found.spec.region.clone(),
        entries: status.entries.unwrap_or_default(),
        limit: status.limit,
        seed: status.seed,
        operation: operation(status.last_operation.as_ref()),
        error: error(status.last_error.as_ref()),
        created_at: created_at(found),
    }
}

fn entry(found: &BackupEntry) -> EntryRow {
    let status = found.status.clone().unwrap_or_default();
    let condition = |kind: &str| status.conditions.iter().find(|condition| condition.kind == kind);
    EntryRow {
        namespace: found.namespace().unwrap_or_default(),
        name: found.name_any(),
        bucket: found.spec.bucket_name.clone(),
        cluster: found.spec.seed_name.clone(),
        seed: status.seed.filter(|seed| *seed != found.spec.seed_name),
        operation: operation(status.last_operation.as_ref()),
        location: condition(LOCATION_AVAILABLE).map_or_else(|| "Unknown".to_owned(), |c| c.reason.clone()),
        legacy_location: condition(LEGACY_LOCATION).map(|condition| condition.message.clone()),
        data_until: data_until(found),
        error: error(status.last_error.as_ref()),
        created_at: created_at(found),
    }
}

/// For a deleted entry: the end of the grace period, or of the store's locks if that is later.
fn data_until(found: &BackupEntry) -> Option<Timestamp> {
    let status = found.status.as_ref().filter(|_| found.metadata.deletion_timestamp.is_some())?;
    let known = [status.earliest_deletion_time.as_ref(), status.locked_until.as_ref()];
    known.into_iter().flatten().map(|time| time.0).max()
}

fn operation(last: Option<&LastOperation>) -> String {
    last.map_or_else(
        || "none yet".to_owned(),
        |last| format!("{} {}", last.kind.as_str(), last.state.as_str()),
    )
}

fn error(error: Option<&LastError>) -> Option<String> {
    error.map(|error| error.description.clone())
}

fn created_at(object: &impl Resource) -> Option<Timestamp> {
    object.meta().creation_timestamp.as_ref().map(|time| time.0)
}

fn age(created: Option<Timestamp>, now: Timestamp) -> String {
    created.map(|created| print::age(now.duration_since(created))).unwrap_or_default()
}

/// Lists in pages, because a hub may have many thousands of objects.
async fn all<K>(client: Client) -> anyhow::Result<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let api: Api<K> = Api::all(client);
    let mut params = ListParams::default().limit(PAGE);
    let mut found = Vec::new();
    loop {
        let page = match api.list(&params).await {
            Err(error) if is_not_found(&error) => anyhow::bail!(
                "this cluster is no hub: it has no {} of garden.berth.dev; `berth install` brings the definitions",
                K::plural(&())
            ),
            page => page.with_context(|| format!("failed to list {}", K::plural(&())))?,
        };
        found.extend(page.items);
        match page.metadata.continue_.filter(|more| !more.is_empty()) {
            Some(more) => params = params.continue_token(&more),
            None => break,
        }
    }
    found.sort_by_key(|object| (object.namespace(), object.name_any()));
    Ok(found)
}

fn show<T: Serialize>(
    output: Output,
    nothing: &str,
    all: &[T],
    heads: &[ColumnHead],
    row: impl Fn(&T, Timestamp) -> Vec<String>,
) -> anyhow::Result<()> {
    let mut out = print::stdout();
    if output != Output::Table {
        return print::value(&mut out, &all, output);
    }
    if all.is_empty() {
        say!("{nothing}");
        return Ok(());
    }
    let now = Timestamp::now();
    let rows: Vec<Vec<String>> = all.iter().map(|one| row(one, now)).collect();
    Ok(print::table(&mut out, heads, &rows)?)
}

#[cfg(test)]
mod tests {
    use berth_garden_api::{BackupEntrySpec, BackupEntryStatus};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    #[test]
    fn data_stays_until_its_grace_is_over_and_its_lock_too() {
        let at = |second: Option<i64>| second.map(|second| Time(Timestamp::from_second(second).unwrap()));
        let until = |deleted: bool, grace: Option<i64>, lock: Option<i64>| {
            let mut entry = BackupEntry::new("e", BackupEntrySpec::default());
            entry.metadata.deletion_timestamp = at(deleted.then_some(1));
            entry.status = Some(BackupEntryStatus {
                earliest_deletion_time: at(grace),
                locked_until: at(lock),
                ..BackupEntryStatus::default()
            });
            data_until(&entry).map(Timestamp::as_second)
        };
        assert_eq!(until(true, Some(9), None), Some(9));
        assert_eq!(until(true, Some(9), Some(20)), Some(20));
        assert_eq!(until(true, Some(9), Some(5)), Some(9));
        assert_eq!(until(true, None, Some(5)), Some(5), "without grace");
        assert_eq!(
            until(false, Some(9), Some(20)),
            None,
            "of a deletion that a restored hub knows nothing of"
        );
    }
}
