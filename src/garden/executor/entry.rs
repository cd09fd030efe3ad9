//! BackupEntry: a directory in a bucket. Creating one marks it; removing one removes its content.

use std::sync::Arc;

use berth_api::keys;
use berth_garden_api::extensions::{BackupBucket, BackupEntry};
use berth_garden_core::fault::StoreFault;
use berth_garden_core::name::tombstone;
use berth_garden_core::owner::DirectoryEnd;
use berth_garden_core::scope::RemovalScope;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt as _;
use kube::api::Api;
use tracing::warn;

use super::emptying::{empty, waits};
use super::outcome::{OperationError, OperationOutcome};
use super::owner::DirectoryClaim;
use super::purge::{Pick, Purge, RetainedVersions};
use super::task::{Actuator, OperationTask};
use crate::storage::bucket::{Bucket, StoreError, Version};
use crate::write::{WriteResult, create};

impl Actuator for BackupEntry {
    const RESYNC: Option<SignedDuration> = None;
    const IS_SLOW: bool = false;

    async fn set_up(task: &mut OperationTask<'_, Self>) -> Result<OperationOutcome, OperationError> {
        let scope = scope(task)?;
        task.record.prefix = Some(scope.prefix().to_owned());
        let name = task.object.spec.bucket_name.clone();
        let bucket = open(task).await?;
        if !bucket.exists().await? {
            let message = format!(
                "bucket {name} does not exist (not created yet, or deleted): cannot create the directory"
            );
            return Err(StoreError::new(StoreFault::NoSuchBucket, message).into());
        }
        if task.was_set_up() {
            task.record.made = Some(true);
        }
        let refused = match DirectoryClaim::of(&task.object, &task.record, &scope, task.is_restored()) {
            Some(claim) => claim.take(&bucket, &scope).await?,
            None => None,
        };
        if let Some(why) = refused {
            task.record.name_taken = Some(true);
            return Err(OperationError::configuration(format!("{} of bucket {name} {why}", scope.prefix())));
        }
        task.record.made = Some(true);
        task.record.name_taken = None;
        Ok(OperationOutcome::Done { description: format!("directory {} of bucket {name}", scope.prefix()) })
    }

    async fn tear_down(task: &mut OperationTask<'_, Self>) -> Result<OperationOutcome, OperationError> {
        let scope = scope(task)?;
        let bucket_name = task.object.spec.bucket_name.clone();
        if let Some(why) = task.forget_reason() {
            return forget(task, &scope, why).await;
        }
        let bucket = Arc::new(open(task).await?);
        match remove(task, &bucket, &scope).await {
            Err(OperationError::Store(error)) if error.fault == StoreFault::NoSuchBucket => {
                let bucket = bucket_here(task).await?;
                let was_seen = bucket.is_some_and(|bucket| bucket.record().made == Some(true));
                task.believe_it_gone(&bucket_name, was_seen)?;
                Ok(OperationOutcome::Done {
                    description: format!("there is no bucket {bucket_name}: its objects were gone already"),
                })
            }
            done => done,
        }
    }
}

/// Removes the directory and berth's notes of it, unless the mark in it names another owner.
async fn remove(
    task: &mut OperationTask<'_, BackupEntry>,
    bucket: &Arc<Bucket>,
    scope: &RemovalScope,
) -> Result<OperationOutcome, OperationError> {
    let (Some(claim), Some(notes)) =
        (DirectoryClaim::of(&task.object, &task.record, scope, false), scope.notes())
    else {
        return Err(OperationError::configuration(format!("{} has no place for a mark", scope.prefix())));
    };
    // Listed before the mark is read, so that no version is of an owner who came after that.
    let marks = claim.versions(bucket).await?;
    match claim.end(bucket, scope).await? {
        DirectoryEnd::LeftAlone(why) => {
            task.record.name_taken = Some(true);
            let directory = scope.prefix();
            warn!(name = task.object.name_any(), bucket = ?bucket, directory, %why, "left alone");
            let description = format!("{directory} was left alone, for it {why}");
            return Ok(OperationOutcome::Done { description });
        }
        DirectoryEnd::Nothing => {
            task.record.name_taken = None;
            let description = format!("{} was never set up, and nothing is in it", scope.prefix());
            return Ok(OperationOutcome::Done { description });
        }
        DirectoryEnd::Remove => {}
    }
    task.record.name_taken = None;
    // Recorded, because a lock may keep an earlier version of the mark when nothing else is left
    // that shows it.
    task.record.made = Some(true);
    match empty(task, bucket, scope).await? {
        OperationOutcome::Done { description } => {
            let kept = clear(bucket, &notes, (claim.mark(), marks)).await?;
            Ok(kept.map_or(OperationOutcome::Done { description }, |kept| waits(task, kept)))
        }
        waiting => Ok(waiting),
    }
}

async fn bucket_here(task: &OperationTask<'_, BackupEntry>) -> Result<Option<BackupBucket>, kube::Error> {
    let buckets: Api<BackupBucket> = Api::all(task.client());
    buckets.get_opt(&task.object.spec.bucket_name).await
}

/// Removes berth's notes, which are not counted, and the mark last: until then it shows whose the
/// directory is. Of the mark only `versions`, because the next owner may have marked the directory
/// by then. Returns what the store keeps.
async fn clear(
    bucket: &Arc<Bucket>,
    scope: &RemovalScope,
    (mark, versions): (&str, Vec<Version>),
) -> Result<Option<RetainedVersions>, StoreError> {
    for pick in [Pick::AllBut(mark.to_owned()), Pick::These(versions)] {
        let mut purge = Purge::picking(Arc::clone(bucket), scope.clone(), pick);
        while purge.step().await? {}
        if let Some(kept) = purge.kept().await? {
            return Ok(Some(kept));
        }
    }
    bucket.sweep(scope.prefix()).await?;
    Ok(None)
}

fn scope(task: &OperationTask<'_, BackupEntry>) -> Result<RemovalScope, OperationError> {
    let scope = RemovalScope::of_entry(&task.object.name_any(), task.record.prefix.as_deref());
    scope.map_err(|error| OperationError::configuration(error.to_string()))
}

async fn open(task: &OperationTask<'_, BackupEntry>) -> Result<Bucket, OperationError> {
    let spec = &task.object.spec;
    let config = match &spec.provider_config {
        Some(_) => None,
        // The same store as the bucket's, if that is known here, whatever state the bucket is in.
        None => bucket_here(task).await?.and_then(|bucket| bucket.spec.provider_config),
    };
    task.open(&spec.bucket_name, config.as_ref()).await
}

/// Leaves the data in the store, and records that in a ConfigMap, because nothing else shows it
/// once the object is gone.
async fn forget(
    task: &mut OperationTask<'_, BackupEntry>,
    scope: &RemovalScope,
    why: String,
) -> Result<OperationOutcome, OperationError> {
    let (spec, name) = (&task.object.spec, task.object.name_any());
    let uid = task.object.uid().unwrap_or_default();
    let data = [
        ("entry", name.clone()),
        ("uid", uid.clone()),
        ("provider", spec.kind.clone()),
        ("region", spec.region.clone()),
        ("bucket", spec.bucket_name.clone()),
        ("prefix", scope.prefix().to_owned()),
        ("objects", task.record.removed().objects.to_string()),
        ("bytes", task.record.removed().bytes.to_string()),
        ("left", "true".to_owned()),
        ("reason", why.clone()),
        ("at", Timestamp::now().to_string()),
    ];
    let record = ConfigMap {
        metadata: ObjectMeta {
            name: Some(tombstone(&name, &uid)),
            labels: Some([(keys::TOMBSTONE.to_owned(), "true".to_owned())].into()),
            ..ObjectMeta::default()
        },
        data: Some(data.map(|(key, value)| (key.to_owned(), value)).into()),
        ..ConfigMap::default()
    };
    let api: Api<ConfigMap> = Api::namespaced(task.client(), &spec.secret_ref.namespace);
    match create(&api, &record).await {
        // An earlier attempt wrote it.
        WriteResult::Conflict(_) => {}
        answer => drop(answer.written()?),
    }
    warn!(%name, bucket = %spec.bucket_name, prefix = scope.prefix(), %why, "left data in the store");
    let description =
        format!("data below {} of bucket {} was left in the store: {why}", scope.prefix(), spec.bucket_name);
    task.record.forgotten = Some(why);
    Ok(OperationOutcome::Done { description })
}
